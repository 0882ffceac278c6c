//! `trike logits`.

use anyhow::Context;
use serde::Serialize;
use trike::{Backend, HeadPrecision, KvPrecision, KvSpec, LanguageModel, ModelFile, llm::Use};

use super::Wanted;
use crate::{
    args::{self, LogitsArgs},
    npy::NpyWriter,
    progress::Progress,
};

/// What was written. The field names are the schema of `trike logits --json`.
#[derive(Debug, Serialize)]
pub(crate) struct LogitsOutcome {
    pub(crate) model: String,
    pub(crate) output: String,
    /// Token ids, vocabulary.
    pub(crate) shape: [usize; 2],
    /// Type of cached keys and values.
    pub(crate) kv: &'static str,
}

/// Writes the logits of every id.
pub(crate) fn logits(args: &LogitsArgs, quiet: bool) -> anyhow::Result<LogitsOutcome> {
    let file = ModelFile::open(args.model.path(quiet)?)?;
    // This command shows what a model computes, so nothing is rounded unless asked for.
    let head = args.precision.head.unwrap_or(HeadPrecision::AsStored);
    let kv = args.precision.kv.unwrap_or(KvPrecision::F32);
    let cpu = args.cpu.cpu()?;
    let wanted = Wanted {
        head,
        kv: KvSpec::new(kv, args.ids.len().max(1)),
        ..Wanted::new(&file, &args.device.device, &cpu, &args.precision, quiet)
    };
    wanted.load(&file, Compute { args, file: &file, kv, quiet })
}

/// What is done with the model.
struct Compute<'a> {
    args: &'a LogitsArgs,
    file: &'a ModelFile,
    kv: KvPrecision,
    quiet: bool,
}

impl Use for Compute<'_> {
    type Out = anyhow::Result<LogitsOutcome>;

    fn with<B: Backend>(self, model: LanguageModel<B>) -> Self::Out {
        compute(&model, &self)
    }
}

fn compute<B: Backend>(model: &LanguageModel<B>, compute: &Compute<'_>) -> anyhow::Result<LogitsOutcome> {
    let Compute { args, file, kv, quiet } = *compute;
    let shape = [args.ids.len(), model.decoder().spec().vocab];
    let progress = Progress::start("computing", quiet);
    let mut writer = NpyWriter::create(&args.output, shape[0], shape[1])?;
    let mut written = Ok(());
    model.logits(&args.ids, kv, |token, row| {
        if written.is_ok() {
            written = writer.row(row);
        }
        progress.set(token + 1, shape[0]);
    })?;
    written.with_context(|| format!("cannot write {}", args.output.display()))?;
    writer.finish()?;
    Ok(LogitsOutcome {
        model: file.path().display().to_string(),
        output: args.output.display().to_string(),
        shape,
        kv: args::kv_name(kv),
    })
}
