//! What is done: each command takes its arguments and returns data.

mod bench;
mod chat;
mod completions;
mod convert;
mod device;
mod doctor;
mod edit;
mod eval;
mod hub;
mod inspect;
mod logits;
mod perplexity;
mod quantize;
mod run;
mod sampling;
mod shipped;
mod text;

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    process::ExitCode,
};

use trike::{
    ActivationPrecision, Backend, Cpu, CpuBackend, HeadPrecision, Isa, KvPrecision, KvSpec, LanguageModel,
    LoadOptions, ModelFile, Place,
    llm::{Opened, Use},
};

use crate::{
    args::{Cli, Command, CpuArgs, ModelArg, PrecisionArgs},
    interrupt, output,
    progress::Progress,
};

pub(crate) use bench::BenchOutcome;
pub(crate) use device::DeviceOutcome;
pub(crate) use doctor::{Diagnosis, Measured};
pub(crate) use eval::EvalOutcome;
pub(crate) use inspect::MemoryOutcome;
pub(crate) use logits::LogitsOutcome;
pub(crate) use perplexity::PerplexityOutcome;
pub(crate) use quantize::QuantizeOutcome;
pub(crate) use run::RunOutcome;

/// Does what the command line says and shows the result.
pub(crate) fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let quiet = cli.quiet;
    match cli.command {
        Command::Run(args) if args.json.json => {
            let outcome = run::run(&args, quiet, &mut |_| Ok(()))?;
            output::show(&outcome, true)?;
            return Ok(finished(&outcome));
        }
        Command::Run(args) => {
            let outcome = run::run(&args, quiet, &mut output::stream)?;
            output::end_stream()?;
            if !quiet {
                output::note(&outcome.speed());
            }
            return Ok(finished(&outcome));
        }
        Command::Chat(args) => chat::chat(&args, quiet)?,
        Command::Inspect(args) if args.memory => {
            output::show(&inspect::memory(&args, quiet)?, args.json.json)?;
        }
        Command::Inspect(args) => output::show(&inspect::inspect(&args, quiet)?, args.json.json)?,
        Command::Convert(args) => output::show(&convert::convert(&args, quiet)?, args.json.json)?,
        Command::Quantize(args) => output::show(&quantize::quantize(&args, quiet)?, args.json.json)?,
        Command::Edit(args) => output::show(&edit::edit(&args)?, args.json.json)?,
        Command::Perplexity(args) => output::show(&perplexity::perplexity(&args, quiet)?, args.json.json)?,
        Command::Eval(args) => output::show(&eval::eval(&args, quiet)?, args.json.json)?,
        Command::Logits(args) => output::show(&logits::logits(&args, quiet)?, args.json.json)?,
        Command::Bench(args) => {
            output::show(&bench::bench(&args, quiet)?, args.json || args.output == "json")?;
        }
        Command::Doctor(args) => output::show(&doctor::doctor(&args, quiet)?, args.json.json)?,
        Command::Completions(args) => output::stream(&completions::script(args.shell)?)?,
        Command::Man(args) => output::stream(&completions::manual(&args.dir)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn finished(outcome: &RunOutcome) -> ExitCode {
    if outcome.is_interrupted() { ExitCode::from(interrupt::CODE) } else { ExitCode::SUCCESS }
}

impl CpuArgs {
    fn cpu(&self) -> anyhow::Result<Cpu> {
        Ok(Cpu::with_isa(self.isa.unwrap_or_else(Isa::detect), self.threads)?)
    }
}

impl ModelArg {
    /// The model that was named, or the one that comes with Trike.
    fn path(&self, quiet: bool) -> anyhow::Result<PathBuf> {
        match &self.model {
            Some(path) => hub::resolve(path, quiet),
            None => shipped::find(),
        }
    }
}

/// Opens a place, and says where `auto` ended up without a GPU.
fn open(place: &Place, quiet: bool) -> anyhow::Result<Opened> {
    let opened = place.open()?;
    if *place == Place::Auto && opened.is_cpu() && !quiet {
        output::note("--device auto: no GPU that this build reaches, running on the processor");
    }
    Ok(opened)
}

/// How a command wants its model.
struct Wanted<'a> {
    place: &'a Place,
    cpu: &'a Cpu,
    tokenizer: Option<&'a Path>,
    activations: Option<ActivationPrecision>,
    head: HeadPrecision,
    /// Keys and values that the command is going to need at most, for the memory plan of a device.
    kv: KvSpec,
    quiet: bool,
}

impl<'a> Wanted<'a> {
    /// What the common options say; a sequence over the model's context.
    fn new(file: &ModelFile, place: &'a Place, cpu: &'a Cpu, precision: &PrecisionArgs, quiet: bool) -> Self {
        let kv = precision.kv.unwrap_or(if file.is_f32() { KvPrecision::F32 } else { KvPrecision::F16 });
        Self {
            place,
            cpu,
            tokenizer: None,
            activations: precision.activations,
            head: precision.head.unwrap_or(HeadPrecision::Auto),
            kv: KvSpec::new(kv, file.config().spec.context),
            quiet,
        }
    }

    /// Loads a model where it is wanted, with a progress bar, and hands it to `user`.
    fn load<U: Use<Out = anyhow::Result<T>>, T>(&self, file: &ModelFile, user: U) -> anyhow::Result<T> {
        self.load_in(open(self.place, self.quiet)?, file, user)
    }

    /// [`load`](Self::load) where the place is open already.
    fn load_in<U: Use<Out = anyhow::Result<T>>, T>(
        &self,
        opened: Opened,
        file: &ModelFile,
        user: U,
    ) -> anyhow::Result<T> {
        let progress = Progress::start(format!("loading {}", file.path().display()), self.quiet);
        let progress = RefCell::new(Some(progress));
        let mut set = |done, total| {
            if let Some(progress) = &*progress.borrow() {
                progress.set(done, total);
            }
        };
        opened.load(
            file,
            &self.options(),
            self.cpu,
            &self.kv,
            &mut set,
            Loaded { progress: &progress, user },
        )?
    }

    fn options(&self) -> LoadOptions {
        LoadOptions {
            tokenizer: self.tokenizer.map(Path::to_owned),
            threads: self.cpu.threads(),
            activations: self.activations,
            head: self.head,
        }
    }
}

/// Ends the progress of loading before the model is used.
struct Loaded<'a, U> {
    progress: &'a RefCell<Option<Progress>>,
    user: U,
}

impl<U: Use> Use for Loaded<'_, U> {
    type Out = U::Out;

    fn with<B: Backend>(self, model: LanguageModel<B>) -> U::Out {
        drop(self.progress.take());
        self.user.with(model)
    }
}

/// Loads a model for the processor, with a progress bar.
fn load(
    file: &ModelFile,
    cpu: &Cpu,
    tokenizer: Option<&Path>,
    activations: Option<ActivationPrecision>,
    head: HeadPrecision,
    quiet: bool,
) -> anyhow::Result<LanguageModel> {
    let progress = Progress::start(format!("loading {}", file.path().display()), quiet);
    let options =
        LoadOptions { tokenizer: tokenizer.map(Path::to_owned), threads: cpu.threads(), activations, head };
    let trained = file.config().family.activations();
    let backend = CpuBackend::new(cpu.clone(), activations.unwrap_or(trained));
    Ok(LanguageModel::load_on(backend, file, &options, &mut |done, total| progress.set(done, total))?)
}
