//! `trike edit`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use trike::calibrate::Change;

use super::JsonArg;

/// `ROW,COL=VALUE`.
fn set(text: &str) -> Result<Change, String> {
    let wrong = || "expected ROW,COL=VALUE, such as 3,17=-0.02".to_owned();
    let (place, value) = text.split_once('=').ok_or_else(wrong)?;
    let (row, col) = place.split_once(',').ok_or_else(wrong)?;
    let index = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
    let value = value.trim().parse().map_err(|_| wrong())?;
    Ok(Change::Value { row: index(row)?, col: index(col)?, value })
}

/// Change single weights or rows of a packed model in place, or take that back
///
/// Only the bytes that differ are written. What takes an edit back is kept in edits.json in the model's directory. Nothing else may
/// use the directory meanwhile.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("change").required(true).multiple(true).args(["set", "zero_row", "negate_row", "undo"])))]
pub(crate) struct EditArgs {
    /// Directory of a packed model, as `trike quantize` and `trike convert --to trike` write it
    pub(crate) model: PathBuf,
    /// Name of the ternary tensor to change
    #[arg(short, long, required_unless_present = "undo")]
    pub(crate) tensor: Option<String>,
    /// ROW,COL=VALUE: make a weight the level of its grid that is nearest to VALUE; may be repeated
    #[arg(short, long, value_parser = set, value_name = "ROW,COL=VALUE", allow_hyphen_values = true)]
    pub(crate) set: Vec<Change>,
    /// Make every weight of a row zero; may be repeated
    #[arg(long, value_name = "ROW")]
    pub(crate) zero_row: Vec<usize>,
    /// Change the sign of every weight of a row; may be repeated
    #[arg(long, value_name = "ROW")]
    pub(crate) negate_row: Vec<usize>,
    /// Take the last so many edits back
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
