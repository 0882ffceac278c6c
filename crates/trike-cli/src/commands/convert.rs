//! `trike convert`.

use anyhow::bail;
use trike::{ConvertOptions, ConvertReport, EmbeddingStorage, Encoding, ModelFile, Target};

use super::conflict;
use crate::{args::ConvertArgs, progress::Progress};

/// Converts a model to another format.
pub(crate) fn convert(args: &ConvertArgs, quiet: bool) -> anyhow::Result<ConvertReport> {
    let is_gguf = args.output.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
    let to = args.to.unwrap_or(if is_gguf { Target::Tq2_0 } else { Target::Trike });
    if args.encoding.is_some() && to != Target::Trike {
        return Err(conflict(
            "--encoding applies only to `--to trike`; the other formats have a fixed encoding",
        ));
    }
    if args.packed && to != Target::Trike {
        return Err(conflict(
            "--packed applies only to `--to trike`; the other formats have a fixed order of weights",
        ));
    }
    if args.embeddings == EmbeddingStorage::Int8 && to == Target::F16 {
        return Err(conflict("`--embeddings int8` cannot be combined with `--to f16`, which stores floats"));
    }
    let input = ModelFile::open(super::hub::resolve(&args.input, quiet)?)?;
    // Never overwrite: the output may be a model, or the input itself.
    if args.output.exists() {
        bail!("{} exists: remove it or choose another output", args.output.display());
    }
    let options = ConvertOptions::new(to)
        .with_encoding(args.encoding.unwrap_or(Encoding::Base3))
        .with_embeddings(args.embeddings)
        .with_scales(args.scales)
        .with_strict(args.strict)
        .with_packed(args.packed)
        .with_tokenizer(args.tokenizer.tokenizer.clone());
    let progress = Progress::start(format!("writing {}", args.output.display()), quiet);
    let report =
        trike::convert(&input, &args.output, &options, &mut |done, total| progress.set(done, total))?;
    Ok(report)
}
