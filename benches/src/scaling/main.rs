//! `cargo xtask bench-report --ranks 1,2,4`: scaling of training on ranks that MPI starts.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command reports on both")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use trike_bench::{Machine, Software, load, now, with_part};
use trike_benches::scaling::{
    Exchange, Measured, Programs, Report, Scaling, Setting, Task, measure_codec, measure_mean, parameters,
    probe, tables, train,
};
use trike_host::Isa;

/// Version of the record.
const SCHEMA: u32 = 1;
/// Weights of the largest tensor of the model, its embedding of 512 tokens.
const LARGEST: u64 = 512 * 256;

/// Times training on ranks that MPI starts, with each exchange, compares it with a model of the cost, and predicts steps of more
/// ranks. A run with the ranks 1, 2 and 4 writes the record and the tables of the chapter "Scaling" of the book.
#[derive(Parser)]
#[command(name = "cargo xtask bench-report", bin_name = "cargo xtask bench-report")]
struct Args {
    /// Numbers of ranks, of which one is 1.
    #[arg(long, value_delimiter = ',', num_args = 0.., default_values_t = [1, 2, 4], default_missing_values = ["1", "2", "4"])]
    ranks: Vec<usize>,
    /// Rounds in which all settings take turns; medians are reported.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Also write the record to this file.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Only evaluate the measurements of the record again, and write it and the tables of the chapter.
    #[arg(long, conflicts_with_all = ["rounds", "output"])]
    render: bool,
    /// The command `trike` with the feature `mpi`, which xtask builds.
    #[arg(long, value_name = "FILE", hide = true, required_unless_present = "render")]
    trike: Option<PathBuf>,
    /// The example `exchange` of trike-comm, which xtask builds.
    #[arg(long, value_name = "FILE", hide = true, required_unless_present = "render")]
    exchange: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no root")?;
    let record = root.join("benches/scaling.json");
    if args.render {
        let text = std::fs::read_to_string(&record).context("no record to show")?;
        return keep(root, &record, &Report::of(serde_json::from_str(&text)?)?);
    }
    ensure!(args.ranks.contains(&1), "--ranks: expected 1 among them, to which the model is fitted");
    ensure!(
        args.ranks.iter().any(|ranks| *ranks > 1),
        "--ranks: expected more than one rank, to time messages"
    );
    ensure!(
        args.ranks.iter().all(|ranks| (1..=4).contains(ranks)),
        "--ranks: a step has work for 1 to 4 ranks"
    );
    ensure!(args.rounds > 0, "--rounds: expected at least 1");
    let report = measure(args, root)?;
    println!("{}", tables(&report));
    let text = to_text(&report)?;
    if let Some(path) = &args.output {
        std::fs::write(path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("written: {}", path.display());
    }
    let mut ranks = args.ranks.clone();
    ranks.sort_unstable();
    if ranks != [1, 2, 4] {
        println!("not recorded: only runs of 1, 2 and 4 ranks are");
        return Ok(());
    }
    keep(root, &record, &report)
}

fn to_text(report: &Report) -> Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

/// Writes the record and the tables of the chapter.
fn keep(root: &Path, record: &Path, report: &Report) -> Result<()> {
    std::fs::write(record, to_text(report)?).context("cannot write the record")?;
    let path = root.join("docs/src/scaling.md");
    let page = std::fs::read_to_string(&path).context("cannot read docs/src/scaling.md")?;
    std::fs::write(&path, with_part(&page, "scaling", &tables(report))?)?;
    println!("docs/src/scaling.md shows benches/scaling.json");
    Ok(())
}

fn measure(args: &Args, root: &Path) -> Result<Report> {
    let programs = Programs {
        trike: args.trike.clone().context("no --trike")?,
        exchange: args.exchange.clone().context("no --exchange")?,
        model: root.join("models/tiny"),
    };
    let dir = &std::env::temp_dir().join(format!("trike-scaling-{}", std::process::id()));
    let machine = Machine::detect(Isa::detect().name());
    let before = load();
    let elements = parameters(&programs, dir)?;
    let (mut runs, mut probes) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        for &ranks in &args.ranks {
            eprintln!("round {round} of {}: {ranks} ranks", args.rounds);
            probes.extend(probe(&programs, ranks)?);
            for exchange in Exchange::ALL {
                for scaling in [Scaling::Strong, Scaling::Weak] {
                    runs.push(train(&programs, dir, Setting { exchange, scaling, ranks })?);
                }
            }
        }
    }
    let _ = std::fs::remove_dir_all(dir);
    eprintln!("codecs");
    let mut codecs = BTreeMap::new();
    for exchange in Exchange::ALL {
        if let Some(config) = exchange.codec() {
            codecs.insert(exchange, measure_codec(config)?);
        }
    }
    let mean = measure_mean()?;
    let weak = Setting { exchange: Exchange::Exact, scaling: Scaling::Weak, ranks: 1 };
    let task = Task { elements, tokens: weak.tokens(), largest: LARGEST };
    Report::of(Measured {
        schema: SCHEMA,
        kind: "ranks".to_owned(),
        date: now(),
        software: Software::detect(root),
        load: [before, load()],
        rounds: args.rounds,
        task,
        machine,
        runs,
        probes,
        codecs,
        mean,
    })
}
