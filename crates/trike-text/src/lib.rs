//! Text for language models: tokenizers, chat templates, samplers and streaming detokenization.
//!
//! Start from [`tokenizer::Tokenizer`]: it opens every tokenizer file that comes with a Llama-like model, and turns
//! text into ids and back.
//!
//! ```
//! use trike_text::{sampler::{Sampler, SamplerConfig}, stream::TextStream, tokenizer::Tokenizer};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
//! let tokenizer = Tokenizer::open(path)?;
//! let ids = tokenizer.encode("Once upon a time", false)?;
//!
//! // A model would give these logits: here one token is far more likely than the others.
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
//! The decision that shaped this crate: it knows text, ids and logits, and neither models nor their files. A
//! vocabulary out of a GGUF file comes as plain lists, logits as a slice. The price is that the caller looks the
//! lists up; `trike-llm` does it for every format that Trike reads. What is gained: whoever runs models by other means
//! has the tokenizers, the templates and the sampler without compiling a kernel.
//!
//! * [`tokenizer`]: text to ids and back
//! * [`chat`]: messages to a prompt, by the model's own template
//! * [`sampler`]: logits to the next token
//! * [`stream`]: ids to text as they are generated
#![forbid(unsafe_code)]

pub mod chat;
pub mod sampler;
pub mod stream;
pub mod tokenizer;
