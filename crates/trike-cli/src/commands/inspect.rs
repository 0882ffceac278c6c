//! `trike inspect`.

use trike::Inspection;

use crate::{args::InspectArgs, progress::Progress};

/// Describes a checkpoint.
pub(crate) fn inspect(args: &InspectArgs, quiet: bool) -> anyhow::Result<Inspection> {
    let path = super::hub::resolve(&args.model, quiet)?;
    let progress = Progress::start("counting", quiet);
    Ok(trike::inspect(path, &mut |done, total| progress.set(done, total))?)
}
