//! Other engines with the same model file, in turns with Trike.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use trike_bench::{
    Align, Ceiling, Engine, EngineJob, Figure, LlamaBench, Measured, NotRun, Record, Table, percent,
};
use trike_cpu::{Cpu, Isa};
use trike_eval::bench::{self, BenchOptions};
use trike_llm::{Device, LoadOptions, ModelFile};

use crate::ceilings::raise_all;
use crate::models::{Round, add_round, raise_found};
use crate::plan::Plan;

/// Name of Trike in the rows of a model file.
pub const TRIKE: &str = "trike";
/// Instruction set in the rows of other engines, which choose their own.
pub const ENGINE_ISA: &str = "own";

/// Other engines, and the model file that they are timed with.
#[derive(Debug)]
pub struct EngineSetup {
    programs: Vec<LlamaBench>,
    path: PathBuf,
    file: ModelFile,
    /// Prompt tokens.
    pub prompt: usize,
    /// Generated tokens.
    pub generate: usize,
    /// Number of rounds; each times all engines, phases and numbers of threads, after a warm-up.
    pub rounds: usize,
}

/// Figures of the engines.
#[derive(Debug, Default)]
pub struct EngineRun {
    /// Samples of Trike and of the other engines. Times and costs are per token.
    pub measured: Vec<Measured>,
    /// The engines that were timed.
    pub engines: Vec<Engine>,
    /// The engines that failed; none of their samples are kept.
    pub not_run: Vec<NotRun>,
}

impl EngineSetup {
    /// Finds the `llama-bench` programs in a folder and opens the model, a GGUF file.
    ///
    /// # Errors
    ///
    /// If there is no program, or the model cannot be opened.
    pub fn new(folder: &Path, model: &Path) -> Result<Self> {
        let programs = LlamaBench::find(folder)?;
        ensure!(
            programs.iter().all(|program| program.name() != TRIKE),
            "{}: the folder of another engine is named {TRIKE}",
            folder.display()
        );
        let (path, file) = (model.to_owned(), ModelFile::open(model)?);
        let context = file.config().spec.context;
        Ok(Self { programs, path, file, prompt: 512.min(context), generate: 32.min(context), rounds: 4 })
    }

    /// Problem name of a phase: the file's name, and the phase as in [`trike_bench::ModelRun::problems`].
    fn problem(&self, kind: &str) -> String {
        let name = self.path.file_stem().unwrap_or_default().to_string_lossy();
        if kind == "prefill" { format!("{name} prefill {}", self.prompt) } else { format!("{name} decode") }
    }

    /// Whether the filters of the plan select any row.
    fn is_asked_for(&self, plan: &Plan, threads: &[usize]) -> bool {
        let isa = Isa::detect().name();
        let others = self.programs.iter().map(|program| (program.name(), ENGINE_ISA));
        let mut engines = others.chain([(TRIKE, isa)]);
        engines.any(|(name, isa)| {
            ["prefill", "decode"].iter().any(|kind| {
                threads.iter().any(|&threads| plan.has_row(&self.problem(kind), name, isa, threads))
            })
        })
    }
}

/// Times Trike with the settings of `trike bench -m` and each of the other engines, one after the other in each round. An engine
/// that fails is left out and reported; the others continue.
///
/// # Errors
///
/// If Trike cannot load or run the model.
pub fn engines(
    plan: &Plan,
    setup: &EngineSetup,
    ceilings: &mut Vec<Ceiling>,
    progress: &mut dyn FnMut(&str),
) -> Result<EngineRun> {
    let threads = Plan::threads(Cpu::new(0)?.threads());
    let mut run = EngineRun::default();
    if !setup.is_asked_for(plan, &threads) {
        return Ok(run);
    }
    let name = setup.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    progress(&format!("{name}: loading"));
    let mut model = Device::cpu().load(&setup.file, &LoadOptions::default(), &mut |_, _| {})?;
    let options = BenchOptions::default()
        .with_prompt(setup.prompt)
        .with_generate(setup.generate)
        .with_threads(threads.clone())
        .with_repetitions(1);
    let job =
        EngineJob { model: &setup.path, prompt: setup.prompt, generate: setup.generate, threads: &threads };
    let mut programs: Vec<&LlamaBench> = setup.programs.iter().collect();
    for round in 1..=setup.rounds {
        progress(&format!("{name}: round {round} of {}", setup.rounds));
        let report = bench::run(&mut *model, &options, &mut |_, _| {})?;
        let ours = Round { kernel: TRIKE, isa: Isa::detect().name(), problem: &|kind| setup.problem(kind) };
        add_round(&mut run.measured, &report.rows, &ours)?;
        raise_found(ceilings, report.ceilings);
        programs.retain(|program| match program.time(&job) {
            Ok((engine, times)) => {
                for time in times {
                    run.add(setup.problem(time.kind), program.name(), time.threads, time.seconds);
                }
                if !run.engines.contains(&engine) {
                    run.engines.push(engine);
                }
                true
            }
            Err(error) => {
                progress(&format!("error: {}: {error}", program.name()));
                let (kernel, reason) = (program.name().to_owned(), error.reason);
                run.measured.retain(|row| row.kernel != kernel);
                run.engines.retain(|engine| engine.name != kernel);
                run.not_run.push(NotRun { problem: None, kernel, reason });
                false
            }
        });
    }
    raise_all(ceilings, &threads)?;
    // The report expects the rows of a problem to be adjacent.
    run.measured.sort_by_key(|row| row.problem != setup.problem("decode"));
    Ok(run)
}

impl EngineRun {
    /// Adds a sample of another engine.
    fn add(&mut self, problem: String, kernel: &str, threads: usize, seconds: f64) {
        let is = |row: &Measured, kernel: &str| {
            row.problem == problem && row.threads == threads && row.kernel == kernel
        };
        if let Some(known) = self.measured.iter_mut().find(|row| is(row, kernel)) {
            known.samples.push(seconds);
            return;
        }
        // The work of the model as Trike packs it: what another engine reads is not known, so it has no shares.
        let Some(ours) = self.measured.iter().find(|row| is(row, TRIKE)) else { return };
        let (kernel, isa) = (kernel.to_owned(), ENGINE_ISA.to_owned());
        let row = Measured { kernel, isa, rival: true, samples: vec![seconds], limits: &[], ..ours.clone() };
        self.measured.push(row);
    }
}

/// Whether the rows of this problem are those of a model file.
pub(crate) fn is_of_engines(row: &Figure) -> bool {
    row.kernel == TRIKE
}

/// The engines' commits and failures, one line each, and the table of their speeds; `None` if no file was timed.
pub(crate) fn engine_section(record: &Record) -> Option<String> {
    use Align::{Left, Right};
    let files = record.rows.chunk_by(|a, b| a.problem == b.problem).filter(|rows| is_of_engines(&rows[0]));
    let mut table = Table::new(&[
        ("file", Left),
        ("engine", Left),
        ("threads", Right),
        ("/s", Right),
        ("spread", Right),
        ("x trike", Right),
    ]);
    let mut is_empty = true;
    for rows in files {
        for row in rows {
            is_empty = false;
            let ours = rows.iter().find(|other| is_of_engines(other) && other.threads == row.threads);
            let ratio = ours.map(|ours| ours.seconds / row.seconds).filter(|_| !is_of_engines(row));
            table.row([
                row.problem.clone(),
                row.kernel.clone(),
                row.threads.to_string(),
                format!("{:.1}", 1.0 / row.seconds),
                percent(row.spread),
                ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            ]);
        }
    }
    if is_empty {
        return None;
    }
    let mut text = String::new();
    for Engine { name, commit, build } in &record.engines {
        let _ = writeln!(text, "* {name}: commit `{commit}`, build {build}");
    }
    for NotRun { kernel, reason, .. } in &record.not_run {
        let _ = writeln!(text, "* not timed: {kernel}: {reason}");
    }
    if !text.is_empty() {
        text.push('\n');
    }
    Some(text + &table.to_string())
}

/// The setup of the options `--rivals` and `--rivals-model`, or the reason why the run does not use it.
///
/// # Errors
///
/// As [`EngineSetup::new`], and for a folder without a model.
pub fn engine_setup(folder: Option<&Path>, model: Option<&Path>) -> Result<Option<EngineSetup>> {
    let Some(folder) = folder else { return Ok(None) };
    let model = model.context("other engines need a model: set TRIKE_RIVALS_MODEL to a GGUF file")?;
    EngineSetup::new(folder, model).map(Some)
}
