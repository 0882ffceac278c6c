//! Compares codecs by the final loss: trains a configuration on ranks in one process, once per codec and seed. `cargo run -p
//! trike-train --example ranks -- run.toml 4 0..3 none ternary top-k none:16`: the configuration, the number of ranks, the seeds,
//! then codecs with an optional number of local steps. Without arguments, a tiny run.
#![expect(clippy::print_stdout, reason = "an example prints its figures")]

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use trike_comm::{Communicator, Threads};
use trike_cpu::Cpu;
use trike_train::TrainError;
use trike_train::run::{Run, RunConfig, RunReport};

/// Trains on ranks in this process; only the first one writes files.
fn train(config: &RunConfig, ranks: usize, dir: &Path) -> Result<RunReport, TrainError> {
    let reports: Result<Vec<RunReport>, TrainError> = Threads::run(ranks, |comm| {
        let output_dir = dir.join(format!("rank-{}", comm.rank()));
        let cpu = Cpu::new(1).map_err(trike_cpu::CpuError::from)?;
        let run = Run::open(RunConfig { output_dir, ..config.clone() })?;
        run.train_ranks(&cpu, &comm, &mut |_| ControlFlow::Continue(()))
    })
    .into_iter()
    .collect();
    Ok(reports?.swap_remove(0))
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let dir = tempfile::tempdir()?;
    let tiny = dir.path().join("run.toml");
    let (path, ranks, seeds, codecs) = match &args[..] {
        [path, ranks, seeds, codecs @ ..] => {
            let (first, end) = seeds.split_once("..").ok_or("expected seeds as 0..3")?;
            (Path::new(path), ranks.parse()?, first.parse::<u64>()?..end.parse()?, codecs.to_vec())
        }
        [] => {
            write_tiny(dir.path(), &tiny)?;
            (tiny.as_path(), 2, 0..1, vec!["none".to_owned(), "ternary".to_owned(), "sparse:4".to_owned()])
        }
        _ => return Err("expected CONFIG RANKS SEEDS CODEC..., or nothing".into()),
    };
    println!("{:<14} {:>4} {:>15} {:>14} {:>8}", "codec", "seed", "bits per token", "bytes sent", "smaller");
    for seed in seeds {
        let mut exact = None;
        for codec in &codecs {
            let (name, local) = codec.split_once(':').unwrap_or((codec, "1"));
            let mut config = RunConfig::open(path)?;
            let more = RunConfig::parse(&format!("codec = '{name}'\nlocal_steps = {local}"))?;
            (config.codec, config.local_steps, config.seed) = (more.codec, more.local_steps, seed);
            let report = train(&config, ranks, &dir.path().join(format!("{codec}-{seed}")))?;
            let bits = report.best.map_or(f64::NAN, |best| best.bits_per_token);
            let sent = report.ranks.map_or(0, |ranks| ranks.sent_bytes);
            let exact = *exact.get_or_insert(sent);
            let smaller = exact as f64 / sent.max(1) as f64;
            println!("{codec:<14} {seed:>4} {bits:>15.4} {sent:>14} {smaller:>7.1}x");
        }
    }
    Ok(())
}

/// A model of the bundled one's architecture with random weights, and training sentences.
fn write_tiny(dir: &Path, config: &Path) -> Result<(), Box<dyn Error>> {
    for (name, bytes) in trike_models::TINY {
        std::fs::write(dir.join(name), bytes)?;
    }
    let sentences: Vec<String> =
        (0..40).map(|i| format!("Once there were {i} cats and {} dogs. They were happy.", 3 * i)).collect();
    std::fs::write(dir.join("text.txt"), sentences.join("<|endoftext|>"))?;
    std::fs::write(
        config,
        "base_model_config = 'config.json'\ntokenizer = 'tokenizer.json'\ndatasets = [{ path = 'text.txt' }]\n\
         output_dir = 'out'\nmax_steps = 8\nsequence_len = 64\nmicro_batch_size = 16\nteacher_documents = 0\n",
    )?;
    Ok(())
}

#[test]
fn trits_are_a_fraction_of_the_bytes() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("run.toml");
    write_tiny(dir.path(), &path).expect("it is written");
    let sent = ["none", "ternary"].map(|codec| {
        let mut config = RunConfig::open(&path).expect("a configuration");
        config.max_steps = Some(2);
        config.codec = RunConfig::parse(&format!("codec = '{codec}'")).expect("a codec").codec;
        let report = train(&config, 2, &dir.path().join(codec)).expect("a report");
        let ranks = report.ranks.expect("ranks");
        assert!(ranks.sent_messages > 0 && ranks.step_seconds > ranks.waiting_seconds, "{ranks:?}");
        ranks.sent_bytes
    });
    // Between two ranks, 4 bytes per weight and rank plus messages without gradients, compared with 1.61 bits.
    assert!(sent[0] > 15 * sent[1], "{sent:?}");
}
