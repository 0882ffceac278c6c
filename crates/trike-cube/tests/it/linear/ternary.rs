//! Ternary weights in the layout of the kernels.

use half::f16;
use trike_cube::CubeError;
use trike_cube::internals::linear::ternary::{Packed, form_of, pack, without_zeros};
use trike_cube::linear::{BLOCK, TILE, TernaryForm, TernaryLayout};
use trike_testkit::{Rng, assert_near};
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, ScaleValues, Scales, TritTensor};

/// The weight at a row and column, decoded from the documented packed layout.
fn weight(form: &TernaryForm, packed: &Packed, first_tile: usize, row: usize, col: usize) -> f32 {
    let (tile, r) = (first_tile + row / TILE, row % TILE);
    let (block, c) = (col / BLOCK, col % BLOCK);
    let (i, h, t, b) = (c / 32, c % 32 / 16, c % 16 / 4, c % 4);
    let (g, j) = (r % 8, 2 * h + r / 8);
    let group = form.group.map_or(0, |group| col / group);
    let mut sum = packed.means.as_ref().map_or(0.0, |m| m[(tile * form.groups() + group) * TILE + r]);
    for set in 0..form.sets {
        let mut folded = 0i32;
        for plane in 0..form.planes {
            let at = (((tile * form.sets + set) * form.blocks() + block) * form.planes + plane) * 128;
            let word = packed.codes[at + (4 * g + t) * 4 + i];
            let code = (word >> (8 * b + 2 * j) & 3) as i32;
            // Two's complement: 3 is -1.
            let trit = if form.planes == 1 { code - (code & 2) * 2 } else { code - 1 };
            assert!((-1..=1).contains(&trit), "code {code}");
            folded = 3 * folded + trit;
        }
        let scale = packed.scales[((tile * form.sets + set) * form.groups() + group) * TILE + r];
        sum += scale * folded as f32;
    }
    sum
}

#[test]
fn every_weight_is_where_the_diagram_says() {
    let mut rng = Rng::new(5);
    for (depth, coupling) in [
        (1, Coupling::Free),
        (3, Coupling::Free),
        (2, Coupling::Tied),
        (5, Coupling::Tied),
        (6, Coupling::Tied),
    ] {
        for granularity in [Granularity::Tensor, Granularity::Row, Granularity::Group(GroupSize::G64)] {
            let tensors: Vec<TritTensor> = [19, 1]
                .into_iter()
                .map(|rows| {
                    let cols = 150;
                    let trits: Vec<Vec<i8>> = (0..depth).map(|_| rng.trits(rows * cols, 0.6)).collect();
                    let planes: Vec<&[i8]> = trits.iter().map(Vec::as_slice).collect();
                    let set = granularity.count(rows, cols).expect("a count");
                    let sets = if coupling == Coupling::Free { depth } else { 1 };
                    let values: Vec<f32> = rng.normals(set * sets);
                    let means = ScaleValues::F32(rng.normals(set));
                    let scales = Scales::new(granularity, values, Some(means));
                    TritTensor::from_planes(rows, cols, &planes, Encoding::TwoBit, coupling, scales)
                        .expect("a tensor")
                })
                .collect();
            let parts: Vec<&TritTensor> = tensors.iter().collect();
            let form = form_of(&parts, true, TernaryLayout::TwoBit).expect("one form");
            let packed = pack(&form, &parts).expect("packed");
            assert_eq!((form.tiles(), form.rows()), (3, 20));
            assert_eq!(
                form.bytes(),
                4 * (packed.codes.len() + packed.scales.len() + packed.means.as_ref().map_or(0, Vec::len))
            );
            for (first, tensor) in [(0, parts[0]), (2, parts[1])] {
                for (at, want) in tensor.dequantize().into_iter().enumerate() {
                    let got = weight(&form, &packed, first, at / 150, at % 150);
                    let bound = 1e-5 * want.abs().max(1.0);
                    assert_near!(got, want, abs = bound, "{depth} planes, {coupling:?}, weight {at}");
                }
            }
        }
    }
}

#[test]
fn parts_that_differ_are_refused() {
    let make = |rows: usize, cols: usize, scales: Scales| {
        TritTensor::from_trits(rows, cols, &vec![1; rows * cols], Encoding::TwoBit, scales).expect("a tensor")
    };
    let a = make(2, 64, Scales::tensor(1.0));
    let b = make(2, 65, Scales::tensor(1.0));
    let c = make(2, 64, Scales::new(Granularity::Group(GroupSize::G32), vec![1.0; 4], None));
    assert!(matches!(
        form_of(&[&a, &b], true, TernaryLayout::TwoBit),
        Err(CubeError::Mismatch { what, expected, got, .. })
            if what.starts_with("columns of part 1") && expected.starts_with("64 ") && got == "65"
    ));
    assert!(matches!(
        form_of(&[&a, &c], true, TernaryLayout::TwoBit),
        Err(CubeError::Mismatch { expected, got, .. }) if expected.starts_with("0 ") && got == "32"
    ));
    assert!(matches!(form_of(&[], true, TernaryLayout::TwoBit), Err(CubeError::Range { got: 0, .. })));
    assert!(matches!(form_of(&[&a; 4], true, TernaryLayout::TwoBit), Err(CubeError::Range { got: 4, .. })));
    assert!(form_of(&[&a, &a, &a], true, TernaryLayout::TwoBit).is_ok());
}

#[test]
fn blocks_of_zeros_are_left_out() {
    // Two tiles by three blocks; one weight in the first tile's last block, none in the second tile.
    let mut trits = vec![0; 20 * 300];
    trits[3 * 300 + 260] = -1;
    let tensor =
        TritTensor::from_trits(20, 300, &trits, Encoding::Bitmap, Scales::tensor(1.0)).expect("a tensor");
    let mut form = form_of(&[&tensor], true, TernaryLayout::Blocks).expect("a form");
    let packed = pack(&form, &[&tensor]).expect("packed");
    let mut codes = packed.codes.clone();
    let index = without_zeros(&mut form, &mut codes);
    assert_eq!(index, [0, 1, 1, 2]);
    assert_eq!((form.stored, &codes[..]), (1, &packed.codes[2 * 128..3 * 128]));
    assert_eq!(form.bytes(), 4 * (128 + 4) + 4 * 2 * TILE);
}

#[test]
fn base_3_holds_every_trit() {
    let mut rng = Rng::new(6);
    let trits = rng.trits(17 * 330, 0.6);
    let tensor =
        TritTensor::from_trits(17, 330, &trits, Encoding::Planes, Scales::tensor(1.0)).expect("a tensor");
    let form = form_of(&[&tensor], true, TernaryLayout::Base3).expect("a form");
    let packed = pack(&form, &[&tensor]).expect("packed");
    assert_eq!((form.steps(), packed.codes.len()), (3, 2 * 3 * 128));
    for (at, &want) in trits.iter().enumerate() {
        let (row, col) = (at / 330, at % 330);
        let (tile, r, block, c) = (row / 16, row % 16, col / 160, col % 160);
        let f = 2 * (c / 16) + r / 8;
        let lane = 4 * (r % 8) + c % 16 / 4;
        let word = packed.codes[((tile * 3 + block) * 32 + lane) * 4 + f / 5];
        let mut byte = u32::from(word.to_le_bytes()[c % 4]);
        for _ in 0..f % 5 {
            byte = (byte * 3) & 0xFF;
        }
        assert_eq!(((byte * 3) >> 8) as i8 - 1, want, "{row} {col}");
    }
    let two = form_of(&[&tensor], true, TernaryLayout::TwoBit).expect("a form");
    assert_eq!((two.code_words(), form.code_words()), (2 * 3 * 128, 2 * 3 * 128));
    let tied = TritTensor::from_planes(
        1,
        3,
        &[&[1, 0, 1], &[0, 0, 1]],
        Encoding::TwoBit,
        Coupling::Tied,
        Scales::tensor(1.0),
    );
    let refused = form_of(&[&tied.expect("a tensor")], true, TernaryLayout::Base3);
    let message = refused.expect_err("tied planes").to_string();
    assert!(message.contains("2 tied trit planes"), "{message}");
}

#[test]
fn two_bits_and_a_scale_a_weight() {
    let scales = Scales::new(Granularity::Group(GroupSize::G128), vec![f16::ONE; 2 * 32], None);
    let tensor =
        TritTensor::from_trits(32, 256, &vec![1; 32 * 256], Encoding::TwoBit, scales).expect("a tensor");
    let form = form_of(&[&tensor], true, TernaryLayout::TwoBit).expect("a form");
    assert_eq!(form.bytes() as f64 * 8.0 / (32.0 * 256.0), 2.125);
    assert_eq!(
        form_of(&[&tensor], false, TernaryLayout::TwoBit).expect("a form").bytes() * 8 / (32 * 256),
        2
    );
}
