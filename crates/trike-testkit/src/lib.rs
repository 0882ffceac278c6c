//! Oracles, seeded inputs, tolerances and test data for the tests of all Trike crates.
//!
//! Start from [`shared`], which finds public test data or reports a skip, and [`Rng`], the only source of seeded
//! inputs. Nothing here depends on a crate under test: an oracle that shares code with the tested crate proves
//! nothing.
//!
//! * data: [`tiny`], the bundled model, and [`golden`], numbers of it by numpy; [`shared`], [`python`], [`skip`] where they are missing,
//!   [`npz`], [`NpyArray`]
//! * inputs: [`Rng`]; [`story`] and [`stories`], text, and [`storyteller`], a dense model that knows it; [`Llama2cCheckpoint`];
//!   files of tokenizers: [`llama2c_vocabulary`], [`other_llama2c_vocabulary`], [`sentencepiece_vocabulary`],
//!   [`tiktoken_vocabulary`], [`byte_level_tokenizer`]
//! * operations of a decoder in f64, and derivatives by differences: [`exact`]
//! * comparison, with the tolerances of `approx`: [`assert_near!`], [`is_near`] and [`Tolerance`]; [`assert_all_near!`], [`assert_close`]
//!   and [`max_rel`] for vectors
#![forbid(unsafe_code)]

mod checkpoint;
mod compare;
pub mod exact;
mod golden;
mod npz;
mod rng;
mod shared;
mod story;
mod vocabulary;

pub use checkpoint::{Llama2cCheckpoint, Llama2cShape};
pub use compare::{Real, Tolerance, assert_close, is_near, max_rel};
#[doc(hidden)]
pub use compare::{check_all_near, check_near};
pub use golden::{Golden, golden};
pub use npz::{NpyArray, NpyData, npz};
pub use rng::Rng;
pub use shared::{python, shared, skip, tiny};
pub use story::{STORY_END, stories, story, story_tokens, storyteller};
pub use vocabulary::{
    byte_level_tokenizer, llama2c_vocabulary, other_llama2c_vocabulary, sentencepiece_vocabulary,
    tiktoken_vocabulary,
};
