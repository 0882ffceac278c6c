//! Precisions of the KV cache chosen on a model's own text, measured on another text:
//! `cargo run --release -p trike-eval --example choose_kv -- MODEL TEXT TOKENIZER SEQUENCES [TOKENS]`
//!
//! For several bounds on the KL divergence, prints the cache chosen on TOKENS sampled tokens (256 by default), its bytes, its
//! divergence there, and its divergence on the first SEQUENCES windows of TEXT, relative to the model's default precision.
//! TOKENIZER is `-` for the model's own. Ternary layers use f32 activations.

#![expect(clippy::print_stdout, reason = "the example prints its result")]

use std::{env, error::Error, fs, time::Instant};

use trike_eval::{ChooseKv, ScoreOptions, choose_kv, compare_ids};
use trike_llm::{LanguageModel, LoadOptions, Model, ModelFile, Split, sequences};
use trike_nn::ActivationPrecision;

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = env::args().skip(1).collect();
    let [model, text, tokenizer, count, rest @ ..] = &given[..] else {
        return Err("expected MODEL TEXT TOKENIZER SEQUENCES [TOKENS]".into());
    };
    let file = ModelFile::open(model)?;
    let path = (tokenizer != "-").then_some(tokenizer.as_ref());
    let options = LoadOptions::default()
        .with_activations(ActivationPrecision::F32)
        .with_tokenizer(file.tokenizer(path)?);
    let model = LanguageModel::load_with(&file, &options, &mut |_, _| ())?;
    let text = fs::read_to_string(text)?.replace("<|endoftext|>", "");
    let context = model.decoder().spec().context;
    let all = sequences(Model::tokenizer(&model)?, &text, Split::Window, context, Some(count.parse()?))?;
    let tokens = rest.first().map_or(Ok(ChooseKv::default().tokens), |tokens| tokens.parse())?;
    println!(
        "| bound | seed | chosen | bytes per position | KL on its own text | KL on the text | seconds |"
    );
    println!("|---|---|---|---|---|---|---|");
    for kl in [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05] {
        for seed in 0..2 {
            let start = Instant::now();
            let options = ChooseKv::default().with_kl(kl).with_tokens(tokens).with_seed(seed);
            let chosen = choose_kv(&model, &options, &mut |_, _| ())?;
            let seconds = start.elapsed().as_secs_f64();
            let options = ScoreOptions::new(Split::Window).with_kv(chosen.precision);
            let held = compare_ids(&model, &model, &all, &options, &mut |_, _| ())?;
            println!(
                "| {kl} | {seed} | `{}` | {} of {} | {:.5} +- {:.5} | {:.5} +- {:.5} | {seconds:.1} |",
                chosen.precision,
                chosen.bytes_per_position,
                chosen.default_bytes_per_position,
                chosen.kl,
                chosen.kl_error,
                held.kl,
                held.kl_error
            );
        }
    }
    Ok(())
}
