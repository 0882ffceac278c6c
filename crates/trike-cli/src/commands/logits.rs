//! `trike logits`.

use anyhow::Context;
use serde::Serialize;
use trike::{HeadPrecision, KvPrecision, ModelFile};

use super::load;
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
    let model = load(&file, &args.cpu.cpu()?, None, args.precision.activations, head, quiet)?;
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
