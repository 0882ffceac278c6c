//! `trike logits`.

use serde::Serialize;
use trike::{ActivationPrecision, HeadPrecision, KvPrecision, KvSpec, ModelFile};

use super::{
    conflict,
    load::{load, open},
};
use crate::{
    args::{self, ActivationChoice, KvChoice, LogitsArgs, PrecisionArgs},
    npy::NpyWriter,
    output,
    progress::Progress,
};

/// The written file. The field names are the schema of `trike logits --json`.
#[derive(Debug, Serialize)]
pub(crate) struct LogitsOutcome {
    pub(crate) model: String,
    pub(crate) output: String,
    /// Token ids, vocabulary.
    pub(crate) shape: [usize; 2],
    /// Activation precisions of ternary layers.
    pub(crate) activations: String,
    /// KV cache precision.
    pub(crate) kv: String,
}

/// Writes the logits of all ids.
pub(crate) fn logits(args: &LogitsArgs, quiet: bool) -> anyhow::Result<LogitsOutcome> {
    let file = ModelFile::open(args.model.path(quiet)?)?;
    // Default to the stored precision: this command exposes the exact model outputs.
    let head = args.precision.head.unwrap_or(HeadPrecision::AsStored);
    let device = open(&args.device.device, quiet)?;
    let kv = match args.precision.kv_request(device.is_cpu())?.choice {
        Some(KvChoice::Auto) => return Err(conflict("--kv auto: `logits` needs a given precision")),
        Some(KvChoice::Given(kv)) => kv,
        None => KvPrecision::F32.into(),
    };
    let sequence = KvSpec::new(kv, args.ids.len().max(1));
    let f32 = ActivationChoice(Some(ActivationPrecision::F32.into()));
    let activations = Some(args.precision.activations.unwrap_or(f32));
    let wanted = PrecisionArgs { activations, ..args.precision }
        .options(&file, &args.cpu.cpu()?)
        .with_head(head)
        .with_sequence(sequence);
    let model = load(device, &file, &wanted, quiet)?;
    let shape = [args.ids.len(), model.config().spec.vocab];
    let progress = Progress::start("computing", quiet);
    let mut writer = NpyWriter::create(&args.output, shape[0], shape[1])?;
    let mut written = Ok(());
    model.logits_with(&args.ids, &sequence, &mut |token, row| {
        if written.is_ok() {
            written = writer.row(row);
        }
        progress.set(token + 1, shape[0]);
    })?;
    written?;
    writer.finish()?;
    Ok(LogitsOutcome {
        model: output::model_name(file.path()),
        output: args.output.display().to_string(),
        shape,
        activations: args::activations_name(&model.activations()),
        kv: kv.to_string(),
    })
}
