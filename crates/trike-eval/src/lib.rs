//! Evaluation of models: perplexity, divergence, tasks, needles, KV caches, speed.
//!
//! Start from [`score`](fn@score): the perplexity of a model on a text. Every measurement is a function over `&dyn Model`, so that it
//! runs on any backend.
//!
//! ```
//! use trike_eval::{ScoreOptions, score};
//! use trike_llm::{DeviceChoice, Split, open};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
//! let model = open(path, &DeviceChoice::Cpu)?;
//! let text = "Once upon a time, there was a little girl named Lily. She loved to play.";
//! let figures = score(&*model, text, &ScoreOptions::new(Split::Lines), &mut |_, _| ())?;
//! assert!(figures.perplexity < 10.0);
//! # Ok::<(), trike_eval::EvalError>(())
//! ```
//!
//! The decision that shaped this crate: a measurement uses only the interface that users of a model have, logits and text, and
//! nothing is reimplemented for it. The cost: features of the CPU backend (errors of single layers, ceilings, costs) are reached
//! through [`Model::host`], and are an error or left out elsewhere.
//!
//! * texts: [`score`](fn@score), [`start_token`](fn@start_token), [`ScoreOptions`], [`Score`]
//! * two models: [`compare`](fn@compare), [`compare_ids`](fn@compare_ids), [`Comparison`], [`PositionFigures`], [`divergence`](fn@divergence)
//! * tasks: [`read_questions`](fn@read_questions), [`Question`], [`answer`](fn@answer), [`TaskScore`]
//! * long contexts: [`find_needles`](fn@find_needles), [`NeedleOptions`], [`NeedleScore`], [`haystacks`](fn@haystacks), [`Haystack`]
//! * KV caches: [`choose_kv`](fn@choose_kv), [`ChooseKv`], [`ChosenKv`], [`cache_errors`](fn@cache_errors)
//! * speed: [`mod@bench`]
//! * errors: [`EvalError`]
//!
//! It depends on `trike-llm` and its dependencies; `trike` re-exports it.
//!
//! [`Model::host`]: trike_llm::Model::host
#![forbid(unsafe_code)]

pub mod bench;
mod choose_kv;
mod error;
mod mean;
mod needle;
mod perplexity;
mod positions;
mod tasks;

pub use choose_kv::{ChooseKv, ChosenKv, cache_errors, choose_kv, start_token};
pub use error::EvalError;
pub use needle::{
    Haystack, NeedleAnswers, NeedleDepth, NeedleFigures, NeedleOptions, NeedleScore, NeedleSetting,
    find_needles, haystacks,
};
pub use perplexity::{Comparison, Score, ScoreOptions, compare, compare_ids, divergence, score};
pub use positions::PositionFigures;
pub use tasks::{Question, TaskScore, answer, read_questions};
