//! In-place edits of trits.

use std::collections::BTreeMap;

use cubecl::prelude::*;
use trike_trit::Edit;

use super::shape::BLOCK;
use super::ternary::{TILE, TernaryForm, TernaryLayout, TernaryMatrix, code_of};
use crate::device::{Device, Launch};
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

impl Device {
    /// Changes single trits of part `part` of a matrix, each given by plane, row and column in the tensor that the part was
    /// packed from; of two edits of one trit the later one wins. Clones of the matrix change too.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] for an index out of range, [`CubeError::Unsupported`] for a matrix in [`TernaryLayout::Base3`] or
    /// [`TernaryLayout::Blocks`]; nothing is changed then. Also those of the launch.
    pub fn edit(&self, w: &TernaryMatrix, part: usize, edits: &[Edit]) -> Result<()> {
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
fn changes(form: &TernaryForm, depth: usize, part: usize, edits: &[Edit]) -> Result<Vec<u32>> {
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

#[cfg(test)]
mod tests {
    use super::super::ternary::{form_of, pack};
    use super::*;
    use crate::testing;
    use trike_testkit::Rng;
    use trike_trit::{Coupling, Encoding, Scales, Trit, TritTensor};

    fn tensor(rng: &mut Rng, rows: usize, depth: usize) -> TritTensor {
        let trits: Vec<Vec<i8>> = (0..depth).map(|_| rng.trits(rows * 140, 0.5)).collect();
        let planes: Vec<&[i8]> = trits.iter().map(Vec::as_slice).collect();
        TritTensor::from_planes(rows, 140, &planes, Encoding::Planes, Coupling::Tied, Scales::tensor(1.0))
            .expect("a tensor")
    }

    fn some(rng: &mut Rng, rows: usize, depth: usize) -> Vec<Edit> {
        let trits = [Trit::N, Trit::Z, Trit::P];
        (0..400)
            .map(|_| Edit {
                plane: rng.below(depth),
                row: rng.below(rows),
                col: rng.below(140),
                trit: trits[rng.below(3)],
            })
            .collect()
    }

    #[test]
    fn edited_words_are_those_of_the_edited_tensor() {
        let mut rng = Rng::new(8);
        for depth in [1, 6] {
            let mut tensors = [tensor(&mut rng, 5, depth), tensor(&mut rng, 21, depth)];
            let device = testing::device(crate::Planes::Off);
            let form = form_of(&[&tensors[0], &tensors[1]], false, TernaryLayout::TwoBit).expect("a form");
            let mut codes = pack(&form, &[&tensors[0], &tensors[1]]).expect("packed").codes;
            let resident =
                device.as_ref().map(|d| TernaryMatrix::pack(d, &[&tensors[0], &tensors[1]]).expect("packed"));
            let edits = some(&mut rng, 21, depth);
            for change in changes(&form, depth, 1, &edits).expect("places").as_chunks::<3>().0 {
                let word = &mut codes[change[0] as usize];
                *word = *word & !change[1] | change[2];
            }
            tensors[1].edit(&edits).expect("places");
            assert_eq!(codes, pack(&form, &[&tensors[0], &tensors[1]]).expect("packed").codes);
            if let (Some(device), Some(resident)) = (device, resident) {
                device.edit(&resident, 1, &edits).expect("a launch");
                assert_eq!(device.read(&resident.codes).expect("a device"), codes);
                device.edit(&resident, 0, &[]).expect("nothing");
            }
        }
    }

    #[test]
    fn places_that_do_not_exist_are_refused() {
        let tensor = tensor(&mut Rng::new(9), 5, 2);
        let form = form_of(&[&tensor], false, TernaryLayout::TwoBit).expect("a form");
        let edit = Edit { plane: 0, row: 0, col: 0, trit: Trit::P };
        changes(&form, 2, 0, &[Edit { plane: 1, row: 4, col: 139, ..edit }]).expect("the last place");
        for (part, edit) in [
            (1, edit),
            (0, Edit { plane: 2, ..edit }),
            (0, Edit { row: 5, ..edit }),
            (0, Edit { col: 140, ..edit }),
        ] {
            assert!(matches!(changes(&form, 2, part, &[edit]), Err(CubeError::Range { .. })), "{edit:?}");
        }
    }
}
