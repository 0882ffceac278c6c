//! Generates training text with a model, for students with any vocabulary: `write MODEL TOKENIZER DOCUMENTS [SEED] > TEXT`.
//!
//! MODEL is a dense model, TOKENIZER its file in the format of llama2.c. The documents are sampled at temperature 1, one per seed
//! and index, and separated as `trike train` reads them. Documents that do not end within 512 tokens, or within the context of the
//! model, are dropped.
use std::io::Write as _;

use trike_cpu::Cpu;
use trike_llm::ModelFile;
use trike_text::tokenizer::Tokenizer;
use trike_train::{DocumentSampler, Parameters, SampleConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (model, tokenizer, documents, seed) = match &arguments[..] {
        [model, tokenizer, documents] => (model, tokenizer, documents, 0),
        [model, tokenizer, documents, seed] => (model, tokenizer, documents, seed.parse()?),
        _ => return Err("usage: write MODEL TOKENIZER DOCUMENTS [SEED] > TEXT".into()),
    };
    let cpu = Cpu::new(0)?;
    let model = Parameters::open(&ModelFile::open(model)?)?;
    let tokenizer = Tokenizer::from_llama2c(tokenizer, model.spec().vocab)?;
    let config = SampleConfig { documents: documents.parse()?, seed, ..SampleConfig::default() };
    let length = config.length.min(model.spec().context);
    let mut output = std::io::stdout().lock();
    let documents = DocumentSampler::new(&model, &tokenizer, config)?.documents(&cpu, 0..config.documents)?;
    for tokens in documents {
        if tokens.len() < length {
            writeln!(output, "{}\n<|endoftext|>", tokenizer.decode(&tokens)?.trim())?;
        }
    }
    output.flush()?;
    Ok(())
}
