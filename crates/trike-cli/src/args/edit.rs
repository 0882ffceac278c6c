//! `trike edit`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use trike::calibrate::Change;

use super::JsonArg;

/// Parses `ROW,COL=VALUE`.
fn set(text: &str) -> Result<Change, String> {
    let wrong = || "expected ROW,COL=VALUE, such as 3,17=-0.02".to_owned();
    let (place, value) = text.split_once('=').ok_or_else(wrong)?;
    let (row, col) = place.split_once(',').ok_or_else(wrong)?;
    let index = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
    let value = value.trim().parse().map_err(|_| wrong())?;
    Ok(Change::Value { row: index(row)?, col: index(col)?, value })
}

/// Edit weights of a packed model in place, or undo edits
///
/// Only bytes that differ are written. The journal for undoing is edits.json in the model's directory. Nothing else may use the
/// directory meanwhile.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("change").required(true).multiple(true).args(["set", "zero_row", "negate_row", "undo"])))]
pub(crate) struct EditArgs {
    /// Directory of a packed model, as `trike quantize` and `trike convert --to trike` write it
    pub(crate) model: PathBuf,
    /// Name of the ternary tensor to change
    #[arg(short, long, required_unless_present = "undo")]
    pub(crate) tensor: Option<String>,
    /// Set a weight to the quantization level nearest to VALUE; may be repeated
    #[arg(short, long, value_parser = set, value_name = "ROW,COL=VALUE", allow_hyphen_values = true)]
    pub(crate) set: Vec<Change>,
    /// Set all weights of a row to zero; may be repeated
    #[arg(long, value_name = "ROW")]
    pub(crate) zero_row: Vec<usize>,
    /// Negate all weights of a row; may be repeated
    #[arg(long, value_name = "ROW")]
    pub(crate) negate_row: Vec<usize>,
    /// Undo the last EDITS edits (1 if omitted)
    #[arg(
        long,
        value_name = "EDITS",
        num_args = 0..=1,
        default_missing_value = "1",
        conflicts_with_all = ["tensor", "set", "zero_row", "negate_row"]
    )]
    pub(crate) undo: Option<usize>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
