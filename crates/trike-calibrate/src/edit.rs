//! Edits of single weights or rows of a packed model, in a file or in memory, with undo.

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};
use trike_format::{Digest, HfDir, Lock, OutputFile, Tensor, TensorSource};
use trike_llm::{LanguageModel, WeightSource};
use trike_nn::{Backend, WeightName};
use trike_quant::Grid;
use trike_trit::{Coupling, Edit, Trit, TritTensor};

use crate::{CalibrateError, EditError};

/// Undo journal in a model directory.
const JOURNAL: &str = "edits.json";

/// A change of a ternary weight matrix.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Sets a weight to the level of its group's grid that is nearest to a value.
    Value {
        /// Output feature.
        row: usize,
        /// Input feature.
        col: usize,
        /// The value.
        value: f32,
    },
    /// Sets the trits of a weight, the most significant plane first. With rotated inputs this changes all weights of
    /// the row within the block.
    Trits {
        /// Output feature.
        row: usize,
        /// Input feature.
        col: usize,
        /// One per plane.
        trits: Vec<Trit>,
    },
    /// Sets all weights of a row to zero.
    ZeroRow(usize),
    /// Negates all weights of a row.
    NegateRow(usize),
}

/// Changes single weights or rows of a tensor in place, one after the other, all or none, and returns the edits that
/// undo the changes.
///
/// ```
/// use trike_calibrate::{Change, edit_tensor};
/// use trike_trit::{Encoding, Scales, TritTensor};
///
/// let mut w = TritTensor::from_trits(2, 3, &[1, 0, -1, 0, 1, 1], Encoding::Base3, Scales::tensor(0.5))?;
/// let before = w.clone();
/// let undo = edit_tensor(&mut w, &[Change::Value { row: 0, col: 1, value: 0.4 }, Change::NegateRow(1)])?;
/// assert_eq!(w.dequantize(), [0.5, 0.5, -0.5, -0.0, -0.5, -0.5]);
/// w.edit(&undo)?;
/// assert_eq!(w, before);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`CalibrateError::Nn`] for an index outside the tensor, [`CalibrateError::Edit`] for a number of trits other than
/// the number of planes, a non-finite value, or a whole row of a tensor with means, in which a zero trit is not a zero
/// weight.
pub fn edit_tensor(tensor: &mut TritTensor, changes: &[Change]) -> Result<Vec<Edit>, CalibrateError> {
    let mut undo = Vec::new();
    let made = changes.iter().try_for_each(|change| {
        // Each change applies to the result of the previous ones.
        let mut edits = Vec::new();
        edits_of(tensor, change, &mut edits)?;
        make(tensor, &edits, &mut undo)
    });
    // Undo in reverse order.
    undo.reverse();
    if let Err(error) = made {
        tensor.edit(&undo)?;
        return Err(error);
    }
    Ok(undo)
}

/// Applies edits, and appends their inverses to `undo`.
fn make(tensor: &mut TritTensor, edits: &[Edit], undo: &mut Vec<Edit>) -> Result<(), CalibrateError> {
    for edit in edits {
        undo.push(Edit { trit: tensor.set(edit.plane, edit.row, edit.col, edit.trit)?, ..*edit });
    }
    Ok(())
}

fn edits_of(tensor: &TritTensor, change: &Change, edits: &mut Vec<Edit>) -> Result<(), CalibrateError> {
    let depth = tensor.depth();
    match change {
        &Change::Value { row, col, value } => {
            if !value.is_finite() {
                return Err(EditError::Value { got: value }.into());
            }
            if let Some(rotation) = tensor.rotation() {
                return Err(EditError::Rotated { block: rotation.block() }.into());
            }
            // Checks the index.
            tensor.get(0, row, col)?;
            let group = col / tensor.group_len();
            let mean = tensor.mean(row, group)?;
            let scales: Vec<f32> =
                (0..depth).map(|p| tensor.scale(p, row, group)).collect::<Result<_, _>>()?;
            let grid = match tensor.coupling() {
                Coupling::Tied => Grid::tied(depth, scales[depth - 1], mean),
                Coupling::Free => Grid::free(&scales, mean),
            };
            let trits = Grid::trits(grid.nearest(value), depth);
            for (plane, &t) in trits[..depth].iter().enumerate() {
                edits.push(Edit { plane, row, col, trit: trit(t)? });
            }
        }
        Change::Trits { row, col, trits } => {
            if trits.len() != depth {
                return Err(EditError::Trits { planes: depth, got: trits.len() }.into());
            }
            tensor.get(0, *row, *col)?;
            edits.extend(trits.iter().enumerate().map(|(plane, &trit)| Edit {
                plane,
                row: *row,
                col: *col,
                trit,
            }));
        }
        &(Change::ZeroRow(row) | Change::NegateRow(row)) => {
            if tensor.scales().means().is_some() {
                return Err(EditError::Means.into());
            }
            let mut trits = vec![0; tensor.cols()];
            for plane in 0..depth {
                tensor.read_row(plane, row, &mut trits)?;
                let negate = matches!(change, Change::NegateRow(_));
                for (col, &t) in trits.iter().enumerate().filter(|(_, t)| **t != 0) {
                    edits.push(Edit { plane, row, col, trit: trit(if negate { -t } else { 0 })? });
                }
            }
        }
    }
    Ok(())
}

fn trit(value: i8) -> Result<Trit, EditError> {
    Trit::from_value(value).ok_or(EditError::Journal { got: value })
}

/// Result of an edit. The field names are the schema of `trike edit --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EditReport {
    /// The directory.
    pub model: String,
    /// The changed tensors, and the number of changed trits of each.
    pub changed: Vec<(String, usize)>,
    /// Number of edits that can be undone.
    pub undoable: usize,
}

/// One edit of one tensor in the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    tensor: String,
    /// Plane, row, column and previous trit of every changed position.
    undo: Vec<(usize, usize, usize, i8)>,
    /// Digest of the tensor before the edit, checked after undoing it. Absent in a journal of an earlier version.
    #[serde(default)]
    before: String,
}

/// Changes a packed tensor of a Trike directory in place. The undo entry is written to `edits.json` in the directory
/// before the first byte changes, so that [`undo_edits`] can also repair an interrupted edit.
///
/// The directory must not be open elsewhere at the same time; it is locked against other edits.
///
/// # Errors
///
/// Errors of [`edit_tensor`]; [`CalibrateError::Edit`] when the tensor is not ternary, and I/O and format errors, for example when
/// a compressed encoding has no room for another nonzero.
pub fn edit_file(dir: &Path, tensor: &str, changes: &[Change]) -> Result<EditReport, CalibrateError> {
    let _lock = lock(dir)?;
    let mut journal = journal(dir)?;
    let (hf, mut trits) = open(dir, tensor)?;
    let before = Digest::default().ternary(&trits).to_string();
    let undo = edit_tensor(&mut trits, changes)?;
    let count = undo.len();
    let undo = undo.iter().map(|e| (e.plane, e.row, e.col, e.trit.value())).collect();
    // An edit that does not fit into the file must not leave an entry in the journal.
    let entry = Entry { tensor: tensor.to_owned(), undo, before };
    journal.push(entry);
    save(dir, &journal)?;
    if let Err(error) = hf.overwrite(tensor, &Tensor::Ternary(trits)) {
        use trike_format::FormatError::{NotPacked, PackedSize, Write};
        // The edit was rejected before anything was written.
        if matches!(error, NotPacked { .. } | PackedSize { .. } | Write { .. }) {
            journal.pop();
            save(dir, &journal)?;
        }
        return Err(error.into());
    }
    Ok(EditReport {
        model: dir.display().to_string(),
        changed: vec![(tensor.to_owned(), count)],
        undoable: journal.len(),
    })
}

/// Undoes the last `steps` edits of a directory, the last one first.
///
/// # Errors
///
/// [`CalibrateError::Edit`] when there are fewer, and I/O and format errors.
pub fn undo_edits(dir: &Path, steps: usize) -> Result<EditReport, CalibrateError> {
    let _lock = lock(dir)?;
    let mut journal = journal(dir)?;
    if steps == 0 || journal.len() < steps {
        return Err(EditError::Undo { asked: steps, made: journal.len() }.into());
    }
    let mut changed = Vec::new();
    for _ in 0..steps {
        let Some(entry) = journal.pop() else { break };
        let (hf, mut trits) = open(dir, &entry.tensor)?;
        let edits: Vec<Edit> = entry
            .undo
            .iter()
            .map(|&(plane, row, col, t)| Ok(Edit { plane, row, col, trit: trit(t)? }))
            .collect::<Result<_, CalibrateError>>()?;
        trits.edit(&edits)?;
        // This also holds after an edit that was interrupted during writing.
        if Digest::default().ternary(&trits).to_string() != entry.before {
            return Err(EditError::Changed { tensor: entry.tensor }.into());
        }
        hf.overwrite(&entry.tensor, &Tensor::Ternary(trits))?;
        save(dir, &journal)?;
        changed.push((entry.tensor, edits.len()));
    }
    Ok(EditReport { model: dir.display().to_string(), changed, undoable: journal.len() })
}

fn open(dir: &Path, name: &str) -> Result<(HfDir, TritTensor), CalibrateError> {
    let hf = HfDir::open(dir)?;
    match hf.load(name)? {
        Tensor::Ternary(trits) => Ok((hf, trits)),
        Tensor::Dense(_) | Tensor::Int8(_) => {
            let kind = hf.info(name).map_or_else(String::new, |i| i.kind.to_string());
            Err(EditError::NotTernary { tensor: name.to_owned(), kind }.into())
        }
    }
}

/// Locks a directory for editing. A file is refused; a missing path is reported when it is opened.
fn lock(path: &Path) -> Result<Option<Lock>, CalibrateError> {
    if path.is_file() {
        return Err(EditError::NotADirectory { path: path.to_owned() }.into());
    }
    Ok(if path.is_dir() { Some(Lock::new(path)?) } else { None })
}

fn journal(dir: &Path) -> Result<Vec<Entry>, CalibrateError> {
    let path = dir.join(JOURNAL);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let io = |source| CalibrateError::Io { path: path.clone(), source };
    let text = fs::read(&path).map_err(io)?;
    serde_json::from_slice(&text).map_err(|e| io(e.into()))
}

/// Replaces the journal atomically; an empty one is removed.
fn save(dir: &Path, journal: &[Entry]) -> Result<(), CalibrateError> {
    let path = dir.join(JOURNAL);
    let io = |source| CalibrateError::Io { path: path.clone(), source };
    if journal.is_empty() {
        return fs::remove_file(&path).map_err(io);
    }
    let text = serde_json::to_vec(journal).map_err(|e| io(e.into()))?;
    OutputFile::replace(&path, text).map_err(io)
}

/// Changes single weights or rows of a linear layer in a loaded model, in place if the layout allows it, and returns
/// the edits for [`undo_layer`]. `source` is the source that the model was loaded from; it is not modified.
///
/// # Errors
///
/// Errors of [`edit_tensor`]; [`CalibrateError::Edit`] when the layer is not ternary, and errors of `source` and the backend.
pub fn edit_layer<B: Backend>(
    model: &mut LanguageModel<B>,
    source: &dyn WeightSource,
    name: WeightName,
    changes: &[Change],
) -> Result<Vec<Edit>, CalibrateError> {
    model.edit_layer(name, || ternary_layer(source, name), |tensor| edit_tensor(tensor, changes))
}

/// Undoes the latest [`edit_layer`] of a layer: the weights are restored bit-identically. Returns the edits that redo
/// it.
///
/// # Errors
///
/// Errors of [`edit_layer`].
pub fn undo_layer<B: Backend>(
    model: &mut LanguageModel<B>,
    source: &dyn WeightSource,
    name: WeightName,
    undo: &[Edit],
) -> Result<Vec<Edit>, CalibrateError> {
    let take_back = |tensor: &mut TritTensor| {
        let mut redo = Vec::new();
        let made = make(tensor, undo, &mut redo);
        redo.reverse();
        if let Err(error) = made {
            tensor.edit(&redo)?;
            return Err(error);
        }
        Ok(redo)
    };
    model.edit_layer(name, || ternary_layer(source, name), take_back)
}

/// The tensor of a linear layer of a block.
fn ternary_layer(source: &dyn WeightSource, name: WeightName) -> Result<TritTensor, CalibrateError> {
    match source.load(name)? {
        Tensor::Ternary(tensor) if name.is_block_matrix() => Ok(tensor),
        _ => Err(EditError::NotLinear { weight: name }.into()),
    }
}

#[cfg(test)]
mod tests {
    use trike_llm::ModelFile;
    use trike_trit::{Encoding, Scales};

    use super::*;

    #[test]
    fn each_change_sees_what_those_before_it_did() {
        let start =
            TritTensor::from_trits(2, 3, &[1, 0, -1, 0, 1, 1], Encoding::Base3, Scales::tensor(0.5)).unwrap();
        let set = Change::Value { row: 1, col: 0, value: 0.5 };
        for (changes, expected) in [
            (&[Change::NegateRow(0), Change::NegateRow(0)][..], [0.5, 0.0, -0.5, 0.0, 0.5, 0.5]),
            (&[set.clone(), Change::ZeroRow(1)], [0.5, 0.0, -0.5, 0.0, 0.0, 0.0]),
            (&[Change::ZeroRow(1), set.clone()], [0.5, 0.0, -0.5, 0.5, 0.0, 0.0]),
            (&[set.clone(), Change::NegateRow(1)], [0.5, 0.0, -0.5, -0.5, -0.5, -0.5]),
        ] {
            let mut tensor = start.clone();
            let undo = edit_tensor(&mut tensor, changes).unwrap();
            assert_eq!(tensor.dequantize(), expected, "{changes:?}");
            tensor.edit(&undo).unwrap();
            assert_eq!(tensor, start, "{changes:?}");
        }
        // All or nothing.
        let mut tensor = start.clone();
        assert!(edit_tensor(&mut tensor, &[set, Change::ZeroRow(2)]).is_err());
        assert_eq!(tensor, start);
    }

    #[test]
    fn edits_in_memory_follow_each_other_and_are_taken_back() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
        let file = ModelFile::open(path).unwrap();
        let mut model = LanguageModel::load(path).unwrap();
        let name = WeightName::Down(0);
        let Tensor::Ternary(start) = file.load(name).unwrap() else { panic!("ternary") };
        let first = edit_layer(&mut model, &file, name, &[Change::ZeroRow(0)]).unwrap();
        let once = model.replaced_layer(name).unwrap().clone();
        let second = edit_layer(&mut model, &file, name, &[Change::NegateRow(1)]).unwrap();
        let row = |tensor: &TritTensor, row: usize| {
            tensor.dequantize()[row * tensor.cols()..][..tensor.cols()].to_vec()
        };
        let now = model.replaced_layer(name).unwrap();
        assert!(row(&start, 0).iter().any(|v| *v != 0.0) && row(now, 0).iter().all(|v| *v == 0.0));
        assert!(row(now, 1).iter().zip(row(&start, 1)).all(|(v, was)| *v == -was));
        // All or nothing, and weights outside of the blocks are refused.
        let wrong = [Change::ZeroRow(3), Change::ZeroRow(usize::MAX)];
        let twice = now.clone();
        assert!(edit_layer(&mut model, &file, name, &wrong).is_err());
        assert_eq!(model.replaced_layer(name), Some(&twice));
        let refused = edit_layer(&mut model, &file, WeightName::Embedding, &[Change::ZeroRow(0)]);
        assert!(matches!(refused, Err(CalibrateError::Edit(EditError::NotLinear { .. }))), "{refused:?}");
        let redo = undo_layer(&mut model, &file, name, &second).unwrap();
        assert_eq!(model.replaced_layer(name), Some(&once));
        undo_layer(&mut model, &file, name, &redo).unwrap();
        assert_eq!(model.replaced_layer(name), Some(&twice));
        undo_layer(&mut model, &file, name, &second).unwrap();
        undo_layer(&mut model, &file, name, &first).unwrap();
        assert_eq!(model.replaced_layer(name), Some(&start));
    }
}
