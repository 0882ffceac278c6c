//! Loss of each precision of keys and values compared with f32: perplexity ratio, Kullback-Leibler divergence and top-1 agreement.
//!
//! `cargo run -p trike-eval --example kv -- MODEL TEXT TOKENIZER|- [WINDOWS]` runs up to WINDOWS (50) windows of the model's
//! context, with f32 activations; `-` is the model's own tokenizer. (`trike perplexity --kv --base` compares one precision with the
//! model's default.)
#![expect(clippy::print_stdout, reason = "the example prints its result")]

use std::error::Error;

use trike_eval::divergence;
use trike_llm::{LanguageModel, LoadOptions, ModelFile, Split, sequences};
use trike_nn::{ActivationPrecision, KvPrecision, KvSpec};

/// Negative log-likelihood of a token.
fn nats(row: &[f32], next: u32) -> f64 {
    let largest = row.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x));
    let total: f64 = row.iter().map(|x| f64::from(x - largest).exp()).sum();
    total.ln() - f64::from(row[next as usize] - largest)
}

fn best(row: &[f32]) -> Option<usize> {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]))
}

/// Mean, and its standard error.
fn mean(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, (variance / n).sqrt())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, tokenizer, rest @ ..] = &args[..] else {
        return Err("arguments: MODEL TEXT TOKENIZER|- [WINDOWS]".into());
    };
    let windows = rest.first().map_or(Ok(50), |n| n.parse())?;
    let file = ModelFile::open(model)?;
    let tokenizer = file.tokenizer((tokenizer != "-").then(|| tokenizer.as_ref()))?;
    let options = LoadOptions::default().with_tokenizer(tokenizer).with_activations(ActivationPrecision::F32);
    let model = LanguageModel::load_with(&file, &options, &mut |_, _| ())?;
    let spec = &model.config().spec;
    let text = std::fs::read_to_string(text)?;
    let all = sequences(model.tokenizer()?, &text, Split::Window, spec.context, Some(windows))?;
    println!("{} windows, heads of {}", all.len(), spec.head_dim);
    println!("| `--kv` | perplexity ratio | KL divergence | top-1 agreement |\n|---|---|---|---|");
    let rows = |kv, ids: &[u32]| {
        let mut rows = Vec::new();
        model
            .logits_with(ids, &KvSpec::new(kv, ids.len()), |_, row: &[f32]| rows.push(row.to_vec()))
            .map(|()| rows)
    };
    for kv in [KvPrecision::F16, KvPrecision::Int8, KvPrecision::Int8Int4, KvPrecision::Int4] {
        // Means per window, since tokens of a window are not independent.
        let (mut gaps, mut divergences, mut agreed) = (Vec::new(), Vec::new(), Vec::new());
        for ids in &all {
            let (inputs, next) = (&ids[..ids.len() - 1], &ids[1..]);
            let (got, want) = (rows(kv, inputs)?, rows(KvPrecision::F32, inputs)?);
            let both = || got.iter().zip(&want);
            let n = next.len() as f64;
            gaps.push(both().zip(next).map(|((g, w), &id)| nats(g, id) - nats(w, id)).sum::<f64>() / n);
            divergences.push(both().map(|(g, w)| divergence(g, w)).sum::<f64>() / n);
            agreed.push(both().filter(|(g, w)| best(g) == best(w)).count() as f64 / n);
        }
        let ((gap, error), (kl, kl_error), (agreed, _)) = (mean(&gaps), mean(&divergences), mean(&agreed));
        println!(
            "| `{}` | {:.4} +- {:.4} | {kl:.5} +- {kl_error:.5} nats | {:.2} % |",
            kv.name(),
            gap.exp(),
            gap.exp() * error,
            100.0 * agreed
        );
    }
    Ok(())
}
