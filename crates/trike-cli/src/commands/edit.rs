//! `trike edit`.

use trike::calibrate::{Change, EditReport, edit_file, undo_edits};

use crate::args::EditArgs;

/// Edits a packed model in place, or undoes edits.
pub(crate) fn edit(args: &EditArgs) -> anyhow::Result<EditReport> {
    if let Some(steps) = args.undo {
        return Ok(undo_edits(&args.model, steps)?);
    }
    let rows = args.zero_row.iter().map(|&row| Change::ZeroRow(row));
    let negated = args.negate_row.iter().map(|&row| Change::NegateRow(row));
    let changes: Vec<Change> = args.set.iter().cloned().chain(rows).chain(negated).collect();
    // The parser requires a tensor unless `--undo` is given.
    Ok(edit_file(&args.model, args.tensor.as_deref().unwrap_or_default(), &changes)?)
}
