//! Text for language models: tokenizers, chat templates, samplers and streaming detokenization.
//!
//! Start from [`tokenizer::Tokenizer`]: it opens the tokenizer files of Llama-like models, and converts
//! text to ids and back.
//!
//! ```
//! use trike_text::{sampler::{Sampler, SamplerConfig}, stream::TextStream, tokenizer::Tokenizer};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
//! let tokenizer = Tokenizer::open(path)?;
//! let ids = tokenizer.encode("Once upon a time", false)?;
//!
//! // Logits as from a model: one token is far more likely than the others.
//! let mut logits = vec![0.0; tokenizer.vocab_size()];
//! logits[ids[0] as usize] = 9.0;
//! let id = Sampler::new(SamplerConfig::default())?.sample(&mut logits, &[])?;
//!
//! let mut stream = TextStream::new(&tokenizer);
//! let text = stream.push(id)?.text + &stream.finish();
//! assert_eq!(text, tokenizer.decode(&ids[..1])?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The decision that shaped this crate: it handles text, ids and logits, and depends neither on models nor on their files. A
//! vocabulary from a GGUF file is passed as plain lists, logits as a slice. The price is that the caller must extract the lists;
//! `trike-llm` does so for every supported format. The benefit: code with another inference engine can use the tokenizers, the
//! templates and the sampler without compiling a kernel.
//!
//! * [`tokenizer`]: text to ids and back
//! * [`chat`]: messages to a prompt, with the model's chat template
//! * [`constraint`]: constrained decoding with a JSON schema, a grammar or a regular expression
//! * [`reply`]: reasoning, content and tool calls in the text that a model writes
//! * [`sampler`]: logits to the next token
//! * [`stream`]: streaming detokenization
#![forbid(unsafe_code)]

pub mod chat;
pub mod constraint;
pub mod reply;
pub mod sampler;
pub mod stream;
pub mod tokenizer;
