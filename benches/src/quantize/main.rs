//! Seconds and memory of `trike_calibrate::quantize` on blocks of a real size:
//! `cargo run --release -p trike-benches --bin bench-quantize -- [--hidden N] [--inner N] [--heads N] [--kv-heads N] [--blocks N]
//! [--repeat N] [--sequences N] [--tokens N] [--planes N] [--threads N] [--tune] [--tune-max-weights N] [--keep DIR]`.
//!
//! A checkpoint of random weights in f16 is written first; only its first blocks differ, the others repeat them. The weights decide
//! nothing about the work but how often the Hessian needs more damping, so that a block takes as long as one of a trained model. The text is random bytes, with the tokenizer of the bundled model. Times are those between two reports of progress:
//! on the clock, and of processors on Linux, which other work on the machine changes less.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::{fs, path::PathBuf, time::Instant};

use anyhow::{Context, Result};
use clap::Parser;
use half::f16;
use serde_json::json;
use trike_calibrate::{Calibration, ModelQuantizationConfig, Tuning, estimate_memory, quantize};
use trike_format::{DenseData, DenseTensor, HfDirWriter};
use trike_llm::{ModelFile, Split};
use trike_nn::{DecoderSpec, WeightName};
use trike_testkit::Rng;

/// The vocabulary of the bundled model's tokenizer.
const VOCAB: usize = 512;

#[derive(Parser)]
struct Options {
    /// Hidden size.
    #[arg(long, default_value_t = 4096)]
    hidden: usize,
    /// Intermediate size.
    #[arg(long, default_value_t = 11008)]
    inner: usize,
    /// Query heads.
    #[arg(long, default_value_t = 32)]
    heads: usize,
    /// Key and value heads.
    #[arg(long, default_value_t = 32)]
    kv_heads: usize,
    /// Blocks that differ.
    #[arg(long, default_value_t = 2)]
    blocks: usize,
    /// Times that they are repeated.
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    /// Sequences of the text.
    #[arg(long, default_value_t = 16)]
    sequences: usize,
    /// Tokens of a sequence.
    #[arg(long, default_value_t = 2048)]
    tokens: usize,
    /// Planes of trits.
    #[arg(long, default_value_t = 2)]
    planes: usize,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Tune, by default as `trike quantize` does.
    #[arg(long)]
    tune: bool,
    /// Codes are tuned end to end in models with at most this many weights in their blocks.
    #[arg(long, default_value_t = Tuning::default().max_weights)]
    tune_max_weights: u64,
    /// Keep the checkpoint and the result in this directory.
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// Writes the checkpoint.
fn checkpoint(options: &Options, dir: &std::path::Path) -> Result<()> {
    let &Options { hidden, inner, heads, kv_heads, blocks, repeat, tokens, .. } = options;
    let layers = blocks * repeat;
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "vocab_size": VOCAB, "max_position_embeddings": tokens,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu",
        "bos_token_id": 0, "eos_token_id": 1,
    });
    let mut writer = HfDirWriter::create(dir, config)?;
    let spec =
        DecoderSpec { intermediate: inner, kv_heads, ..DecoderSpec::llama(hidden, layers, heads, VOCAB) };
    let tensor = |seed: u64, shape: Vec<usize>, spread: f32| -> Result<DenseTensor> {
        let mut rng = Rng::new(seed);
        let values = (0..shape.iter().product()).map(|_| f16::from_f32(spread * rng.normal())).collect();
        Ok(DenseTensor::new(shape, DenseData::F16(values))?)
    };
    let ones = || DenseTensor::new(vec![hidden], DenseData::F16(vec![f16::ONE; hidden]));
    writer.tensor(&WeightName::Embedding.to_string(), &tensor(1, vec![VOCAB, hidden], 1.0)?.into())?;
    for layer in 0..layers {
        let seed = |i: usize| (8 * (layer % blocks) + i + 2) as u64;
        for (i, name) in WeightName::matrices(layer).into_iter().enumerate() {
            let (rows, cols) = spec.shape(name);
            let spread = (cols as f32).powf(-0.5);
            writer.tensor(&name.to_string(), &tensor(seed(i), vec![rows, cols], spread)?.into())?;
        }
        for name in [WeightName::AttentionNorm(layer), WeightName::MlpNorm(layer)] {
            writer.tensor(&name.to_string(), &ones()?.into())?;
        }
    }
    writer.tensor(&WeightName::FinalNorm.to_string(), &ones()?.into())?;
    let tokenizer = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/tiny/tokenizer.json");
    writer.write_file("tokenizer.json", &fs::read(tokenizer)?)?;
    Ok(writer.finish()?)
}

/// A peak of memory in bytes, as Linux counts it.
fn peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Processor seconds of all threads, as Linux counts them: in hundredths, after the name in parentheses and 11 other numbers.
fn processor() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let mut numbers = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || numbers.next()?.parse::<f64>().ok();
    Some((next()? + next()?) / 100.0)
}

fn main() -> Result<()> {
    let options = Options::parse();
    let temporary = tempfile::tempdir()?;
    let dir = options.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
    let (dense, ternary) = (dir.join("dense"), dir.join("ternary"));
    let start = Instant::now();
    checkpoint(&options, &dense).context("writing the checkpoint")?;
    println!("checkpoint written in {:.1} s", start.elapsed().as_secs_f64());
    let mut rng = Rng::new(1);
    let letters = 5 * options.tokens * (options.sequences + options.sequences.div_ceil(10) + 4);
    let text: String = (0..letters).map(|_| char::from(b' ' + rng.below(95) as u8)).collect();
    let config = ModelQuantizationConfig::planes(options.planes)
        .with_tuning(
            options.tune.then(|| Tuning { max_weights: options.tune_max_weights, ..Tuning::default() }),
        )
        .with_hold_out(false)
        .with_threads(options.threads);
    let calibration = Calibration::Text { text: &text, split: Split::Window, limit: Some(options.sequences) };
    let mut last = (String::new(), 0, Instant::now(), processor());
    let mut step = |name: &str, done: usize, all: usize| {
        if last.0 != name || last.1 != done {
            let (clock, now) = (last.2.elapsed().as_secs_f64(), processor());
            let busy =
                now.zip(last.3).map_or_else(|| "-".to_owned(), |(now, last)| format!("{:.1}", now - last));
            println!("{clock:9.1} s {busy:>9} s  {name}: {done} of {all}");
            last = (name.to_owned(), done, Instant::now(), now);
        }
    };
    let model = ModelFile::open(&dense)?;
    let expected = estimate_memory(&model, &config, options.sequences * options.tokens, options.tokens)?;
    let report = quantize(&model, &ternary, &calibration, &config, &mut step)?;
    for (layer, tuned) in &report.tuned_blocks {
        println!("block {layer}: {} steps of tuning in {:.1} s", tuned.steps, tuned.seconds);
    }
    if let Some(tuned) = &report.tuned_model {
        println!("the model: {} steps of tuning in {:.1} s", tuned.steps, tuned.seconds);
    }
    let tokens = report.calibration_tokens;
    println!("{:.1} s for {tokens} tokens, {} weights", report.seconds, report.ternary.parameters);
    if let Some(peak) = peak() {
        let files = fs::read_dir(&dense)?.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()));
        let mapped: u64 = files.sum();
        let [peak, expected, mapped] = [peak, expected, mapped].map(|bytes| bytes as f64 / 1e9);
        println!(
            "peak of memory {peak:.2} GB; expected {expected:.2}, and {mapped:.2} of mapped files at the most"
        );
    }
    Ok(())
}
