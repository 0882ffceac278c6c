//! Edits of trits in place.

use trike_cube::internals::linear::changes;
use trike_cube::internals::linear::ternary::{form_of, pack};
use trike_cube::linear::{CubeTernaryMatrix, TernaryLayout};
use trike_cube::{CubeError, Planes};
use trike_testkit::Rng;
use trike_trit::{Coupling, Edit, Encoding, Scales, Trit, TritTensor};

use crate::testing;

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
        let device = testing::device(Planes::Off);
        let form = form_of(&[&tensors[0], &tensors[1]], false, TernaryLayout::TwoBit).expect("a form");
        let mut codes = pack(&form, &[&tensors[0], &tensors[1]]).expect("packed").codes;
        let resident =
            device.as_ref().map(|d| CubeTernaryMatrix::pack(d, &[&tensors[0], &tensors[1]]).expect("packed"));
        let edits = some(&mut rng, 21, depth);
        for change in changes(&form, depth, 1, &edits).expect("places").as_chunks::<3>().0 {
            let word = &mut codes[change[0] as usize];
            *word = *word & !change[1] | change[2];
        }
        tensors[1].edit(&edits).expect("places");
        assert_eq!(codes, pack(&form, &[&tensors[0], &tensors[1]]).expect("packed").codes);
        if let (Some(device), Some(resident)) = (device, resident) {
            device.edit(&resident, 1, &edits).expect("a launch");
            assert_eq!(device.read(resident.codes()).expect("a device"), codes);
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
