//! `cargo xtask bench-report`: times the catalogue, compares it with the last run, records it, and updates the book.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command reports on both")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use trike_bench::{
    Engine, Judgement, Kept, Machine, NotRun, Record, SCHEMA, Software, ceilings_text, figure_table, figures,
    keep, load, load_all, newest, now, parse_threshold, published_pages, write_pages,
};
use trike_benches::{
    BASES, EngineRun, EngineSetup, Plan, engine_setup, engines, models, operations, products, void_reasons,
    write_chapter,
};
use trike_cpu::Isa;

/// Times the catalogue of products and whole models against rivals, compares it with the last run on this machine, and
/// records it.
///
/// A full run without regressions is written to `benches/records/` and to the chapter "Measured figures" of the book. A
/// quick or filtered run is only compared and printed.
///
/// The exit status is 0 for a good run, 1 for a regression or an error, 2 for wrong usage, and 3 for a void run: the machine was
/// too busy for its figures to count.
#[derive(Parser)]
#[command(name = "cargo xtask bench-report", bin_name = "cargo xtask bench-report")]
struct Args {
    /// Time fewer problems in fewer rounds (about 90 seconds).
    #[arg(long)]
    quick: bool,
    /// Time only rows whose names contain this text, such as `square m=1 /` or `avx2`, and their references; repeatable.
    #[arg(long, value_name = "TEXT")]
    filter: Vec<String>,
    /// Drop in a row's share of the ceiling and in its speedup over the rival that counts as a regression, in percent.
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = parse_threshold)]
    threshold: f64,
    /// Record the run as the new baseline despite regressions.
    #[arg(long)]
    accept: bool,
    /// Also write the record to this file, regardless of the outcome.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Folder with `llama-bench` of other engines (`llama-bench`, or `NAME/llama-bench` or `NAME/build/bin/llama-bench` for
    /// several), which a full run times in turns with Trike; needs --rivals-model.
    #[arg(long, value_name = "DIR", env = "TRIKE_RIVALS")]
    rivals: Option<PathBuf>,
    /// GGUF file that Trike and the other engines are timed with.
    #[arg(long, value_name = "FILE", env = "TRIKE_RIVALS_MODEL")]
    rivals_model: Option<PathBuf>,
    /// Regenerate the book's chapter from the last record, and the plots of the README, without measuring.
    #[arg(long, conflicts_with_all = ["quick", "filter", "threshold", "accept", "output"])]
    render: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(status) => ExitCode::from(status),
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the exit status.
fn run(args: &Args) -> Result<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no directory above this package")?;
    let (folder, book) = (root.join("benches/records"), root.join("docs/src"));
    // Loaded before measuring for minutes, so that a broken record is reported first.
    let records = load_all(&folder)?;
    if args.render {
        let (path, record) = newest(&records, false).context("no record to show")?;
        write_chapter(&book, record, path)?;
        write_pages(&book, &published_pages(&folder, &book)?)?;
        println!("docs/src/figures.md shows {}", path.display());
        println!("docs/src/plots shows benches/records/engines.json and quality.json");
        return Ok(0);
    }
    let plan = Plan { quick: args.quick, filters: args.filter.clone() };
    let setup = engine_setup(args.rivals.as_deref().filter(|_| !args.quick), args.rivals_model.as_deref())?;
    if args.rivals.is_some() && setup.is_none() {
        eprintln!("--rivals: a quick run does not time other engines");
    }
    let record = measure(&plan, setup.as_ref(), root)?;
    for rows in record.rows.chunk_by(|a, b| a.problem == b.problem) {
        println!("### {}\n\n{}", rows[0].problem, figure_table(rows, BASES));
    }
    for Engine { name, commit, build } in &record.engines {
        println!("{name}: commit {commit}, build {build}");
    }
    for NotRun { kernel, reason, .. } in &record.not_run {
        println!("not timed: {kernel}: {reason}");
    }
    println!("{}", ceilings_text(&record.ceilings));
    if let Some(path) = &args.output {
        record.write(path)?;
        println!("written: {}", path.display());
    }
    let judgement = Judgement { threshold: args.threshold, accept: args.accept };
    let kept = keep(&folder, &records, &record, judgement, &mut |line| println!("{line}"))?;
    if kept == Kept::Yes {
        write_chapter(&book, &record, &record.path())?;
        println!("docs/src/figures.md shows it");
    }
    Ok(kept.exit_status())
}

fn measure(plan: &Plan, setup: Option<&EngineSetup>, root: &Path) -> Result<Record> {
    let before = load();
    let mut progress = |what: &str| eprintln!("{what}");
    let mut ceilings = Vec::new();
    let mut measured = products(plan, &mut ceilings, &mut progress)?;
    measured.extend(operations(plan, &mut ceilings, &mut progress)?);
    measured.extend(models(plan, &mut ceilings, &mut progress)?);
    let run = match setup {
        Some(setup) => engines(plan, setup, &mut ceilings, &mut progress)?,
        None => EngineRun::default(),
    };
    measured.extend(run.measured);
    ensure!(!measured.is_empty(), "no row name contains {}", plan.filters.join(" or "));
    let machine = Machine::detect(Isa::detect().name());
    Ok(Record {
        schema: SCHEMA,
        date: now(),
        quick: !plan.is_full(),
        complete: true,
        device: None,
        software: Software::detect(root),
        load: [before, load()],
        void: void_reasons(&machine, &ceilings),
        rows: figures(&measured, &ceilings, BASES),
        machine,
        ceilings,
        engines: run.engines,
        not_run: run.not_run,
        failures: Vec::new(),
    })
}
