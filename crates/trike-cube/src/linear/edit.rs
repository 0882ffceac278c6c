//! In-place edits of trits.

use std::collections::BTreeMap;

use cubecl::prelude::*;
use trike_trit::Edit;

use super::shape::BLOCK;
use super::ternary::{CubeTernaryMatrix, TILE, TernaryForm, TernaryLayout, code_of};
use crate::device::{CubeDevice, Launch};
use crate::error::{CubeError, Result, unsupported};
use crate::plan::{Settings, spread};

/// Units per cube.
const UNITS: u32 = 64;

/// Unit `i` replaces bits of one word; no word occurs twice.
#[cube(launch_unchecked)]
fn replace_bits(codes: &mut [u32], changes: &[u32], count: u32) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < count as usize {
        let at = changes[3 * i] as usize;
        codes[at] = (codes[at] & !changes[3 * i + 1]) | changes[3 * i + 2];
    }
}

impl CubeDevice {
    /// Changes single trits of part `part` of a matrix, each given by plane, row and column in the tensor that the part was
    /// packed from; of two edits of one trit the later one wins. Clones of the matrix change too.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] for an index out of range, [`CubeError::Unsupported`] for a matrix in [`TernaryLayout::Base3`] or
    /// [`TernaryLayout::Blocks`]; nothing is changed then. Also errors of the launch.
    pub fn edit(&self, w: &CubeTernaryMatrix, part: usize, edits: &[Edit]) -> Result<()> {
        let changes = changes(w.form(), w.depth(), part, edits)?;
        if changes.is_empty() {
            return Ok(());
        }
        let cubes = spread((changes.len() / 3).div_ceil(UNITS as usize));
        let settings = Settings { cubes, ..Settings::linear(1, UNITS, 2) };
        let count = (changes.len() / 3) as u32;
        let changes = self.upload(&changes)?;
        self.launch(&Launch::new("edit of trits", &(), settings), &[&w.codes], |client, cubes, units| {
            // SAFETY: `changes` checked every edit, so word indices are within the codes; units check their index against the
            // count.
            unsafe {
                replace_bits::launch_unchecked(client, cubes, units, w.codes.arg(), changes.arg(), count);
            }
        })
    }
}

/// Index, mask and bits of every changed word.
pub fn changes(form: &TernaryForm, depth: usize, part: usize, edits: &[Edit]) -> Result<Vec<u32>> {
    let check = |what, limit: usize, got: usize| {
        let maximum = limit - 1;
        if got < limit { Ok(()) } else { Err(CubeError::Range { what, minimum: 0, maximum, got }) }
    };
    check("part of an edit", form.parts.len(), part)?;
    // A base-3 byte packs five trits into shared bits, and an omitted block has no storage.
    if form.layout != TernaryLayout::TwoBit {
        let property = format!("TernaryLayout::{:?}", form.layout);
        return unsupported("in-place edit", property, "pack the matrix in TernaryLayout::TwoBit");
    }
    let first: usize = form.parts[..part].iter().map(|rows| rows.div_ceil(TILE)).sum();
    let mut words: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for edit in edits {
        check("plane of an edit", depth, edit.plane)?;
        check("row of an edit", form.parts[part], edit.row)?;
        check("column of an edit", form.cols, edit.col)?;
        let place = edit.plane + form.sets * form.planes - depth;
        let (set, plane) = (place / form.planes, place % form.planes);
        let (tile, r) = (first + edit.row / TILE, edit.row % TILE);
        let (block, c) = (edit.col / BLOCK, edit.col % BLOCK);
        let (i, h, t, b) = (c / 32, c % 32 / 16, c % 16 / 4, c % 4);
        let line = ((tile * form.sets + set) * form.blocks() + block) * form.planes + plane;
        let word = line * BLOCK + (4 * (r % 8) + t) * 4 + i;
        let shift = 8 * b + 2 * (2 * h + r / 8);
        let code = u32::from(code_of(form.planes)(edit.trit.value()));
        // The matrix was checked to have fewer than `2^32` words.
        let (mask, bits) = words.entry(word as u32).or_default();
        *mask |= 3 << shift;
        *bits = *bits & !(3 << shift) | code << shift;
    }
    Ok(words.into_iter().flat_map(|(word, (mask, bits))| [word, mask, bits]).collect())
}
