//! `trike inspect`.

use trike::Inspection;

use crate::{args::InspectArgs, progress::Progress};

/// Describes a checkpoint.
pub(crate) fn inspect(args: &InspectArgs, quiet: bool) -> anyhow::Result<Inspection> {
    let progress = Progress::start("counting", quiet);
    Ok(trike::inspect(super::hub::resolve(&args.model)?, &mut |done, total| progress.set(done, total))?)
}
