//! In-place edits compared with repacking the edited tensor.

use crate::common::{GRANULARITIES, PRECISIONS, Weights, bits, cpus, describe};
use trike_cpu::{Cpu, CpuError, CpuOps, EditOutcome, Layout, Matrix, TernaryMatrix};
use trike_testkit::Rng;
use trike_trit::{Coupling, Edit, Encoding, Granularity, GroupSize, Scales, Trit, TritTensor};

const LAYOUTS: [Layout; 4] = [Layout::TwoBit, Layout::Base3, Layout::Sparse, Layout::Blocks];
const TRITS: [Trit; 3] = [Trit::N, Trit::Z, Trit::P];

fn pack(tensor: &TritTensor, layout: Layout) -> TernaryMatrix {
    TernaryMatrix::pack_as(tensor, layout).expect("a packable tensor")
}

fn linear(cpu: &Cpu, x: &[f32], w: &Matrix, precision: trike_cpu::ActivationPrecision) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / w.cols() * w.rows()];
    cpu.linear(x, w, precision, &mut out).expect("valid shapes");
    out
}

fn rows_of(cpu: &Cpu, w: &Matrix) -> Vec<f32> {
    let ids: Vec<u32> = (0..w.rows() as u32).collect();
    let mut out = vec![f32::NAN; w.rows() * w.cols()];
    cpu.embed(w, &ids, &mut out).expect("rows of the matrix");
    out
}

/// Random edits; with `keep` only those that every layout can store: sign changes of nonzeros.
fn some(tensor: &TritTensor, count: usize, keep: bool, rng: &mut Rng) -> Vec<Edit> {
    let mut edits = Vec::new();
    while edits.len() < count {
        let (plane, row, col) =
            (rng.below(tensor.depth()), rng.below(tensor.rows()), rng.below(tensor.cols()));
        let old = tensor.get(plane, row, col).expect("a place");
        let trit = TRITS[rng.below(3)];
        if !keep || (old != Trit::Z && trit != Trit::Z) {
            edits.push(Edit { plane, row, col, trit });
        }
    }
    edits
}

/// The edited matrix compared with the repacked tensor on every instruction set, or with the original if it is unchanged.
fn check(cpus: &[Cpu], tensor: &TritTensor, layout: Layout, edits: &[Edit], rng: &mut Rng) -> EditOutcome {
    let mut matrix = pack(tensor, layout);
    let outcome = matrix.edit(edits).expect("places");
    let mut edited = tensor.clone();
    if outcome == EditOutcome::InPlace {
        edited.edit(edits).expect("places");
    }
    let (got, want) = (Matrix::from(matrix), Matrix::from(pack(&edited, layout)));
    assert_eq!(bits(&rows_of(&cpus[0], &got)), bits(&rows_of(&cpus[0], &want)), "{layout:?} {outcome:?}");
    for tokens in [1, 5] {
        let x = rng.normals(tokens * tensor.cols());
        for precision in [PRECISIONS[0], PRECISIONS[1], PRECISIONS[3]] {
            for cpu in cpus {
                let [got, want] = [&got, &want].map(|w| bits(&linear(cpu, &x, w, precision)));
                assert!(
                    got == want,
                    "{}: {layout:?} {outcome:?}, {tokens} tokens, {precision:?}",
                    describe(cpu)
                );
            }
        }
    }
    outcome
}

#[test]
fn edited_weights_are_those_of_the_edited_tensor() {
    let (cpus, mut rng) = (cpus(), Rng::new(1));
    for (depth, coupling) in [
        (1, Coupling::Free),
        (3, Coupling::Free),
        (2, Coupling::Tied),
        (4, Coupling::Tied),
        (5, Coupling::Tied),
        (6, Coupling::Tied),
    ] {
        for (i, granularity) in GRANULARITIES.into_iter().enumerate() {
            let spec = Weights {
                depth,
                coupling,
                means: i == 2,
                halves: i % 2 == 1,
                encoding: Encoding::ALL[i % 5],
                ..Weights::plain(37, 333, granularity)
            };
            let tensor = spec.make(&mut rng);
            for layout in LAYOUTS {
                let edits = some(&tensor, 200, false, &mut rng);
                let outcome = check(&cpus, &tensor, layout, &edits, &mut rng);
                // With 60 % nonzeros every block is stored, but few nonzeros have a free slot.
                if layout != Layout::Sparse {
                    assert_eq!(outcome, EditOutcome::InPlace, "{layout:?} {spec:?}");
                }
                let signs = some(&tensor, 200, true, &mut rng);
                assert_eq!(check(&cpus, &tensor, layout, &signs, &mut rng), EditOutcome::InPlace);
            }
        }
    }
}

/// One edit at a time, until a weight cannot be stored.
#[test]
fn sparse_weights_are_edited_one_by_one() {
    let (cpu, mut rng) = (Cpu::new(1).expect("a thread"), Rng::new(2));
    for (zeros, granularity) in [
        (0.95, Granularity::Row),
        (0.9, Granularity::Group(GroupSize::G128)),
        (0.8, Granularity::Group(GroupSize::G32)),
        (0.99, Granularity::Tensor),
    ] {
        let (rows, cols) = (33, 900);
        let scales = Scales::new(granularity, vec![0.5; granularity.count(rows, cols).expect("few")], None);
        let trits = rng.trits(rows * cols, 1.0 - zeros);
        let mut tensor =
            TritTensor::from_trits(rows, cols, &trits, Encoding::RowCompressed, scales).expect("trits");
        for layout in [Layout::Sparse, Layout::Blocks] {
            let mut matrix = pack(&tensor, layout);
            let (mut in_place, mut emptied, mut filled) = (0, 0, 0);
            for edit in some(&tensor, 1500, false, &mut rng) {
                let old = tensor.get(0, edit.row, edit.col).expect("a place");
                let outcome = matrix.edit(&[edit]).expect("a place");
                if outcome == EditOutcome::InPlace {
                    tensor.set(0, edit.row, edit.col, edit.trit).expect("a place");
                    in_place += 1;
                    emptied += usize::from(old != Trit::Z && edit.trit == Trit::Z);
                    filled += usize::from(old == Trit::Z && edit.trit != Trit::Z);
                }
            }
            assert!(in_place > 600 && emptied > 0 && filled > 0, "{layout:?}: {in_place} {emptied} {filled}");
            let (got, want) = (Matrix::from(matrix), Matrix::from(pack(&tensor, layout)));
            assert_eq!(bits(&rows_of(&cpu, &got)), bits(&rows_of(&cpu, &want)));
            let x = rng.normals(3 * cols);
            for precision in PRECISIONS {
                for cpu in cpus() {
                    let [got, want] = [&got, &want].map(|w| bits(&linear(&cpu, &x, w, precision)));
                    assert!(got == want, "{}: {layout:?} {precision:?}", describe(&cpu));
                }
            }
        }
    }
}

#[test]
fn planes_that_come_or_go_need_packing() {
    let (cpus, mut rng) = (vec![Cpu::new(1).expect("a thread")], Rng::new(3));
    let (rows, cols) = (17, 70);
    let mut last = vec![0i8; rows * cols];
    last[5 * cols + 9] = 1;
    let (zero, dense) = (vec![0i8; rows * cols], rng.trits(rows * cols, 0.7));
    for coupling in [Coupling::Free, Coupling::Tied] {
        let planes: [&[i8]; 3] = [&dense, &zero, &last];
        let scales =
            Scales::new(Granularity::Tensor, vec![0.5; if coupling == Coupling::Free { 3 } else { 1 }], None);
        let tensor =
            TritTensor::from_planes(rows, cols, &planes, Encoding::Planes, coupling, scales).expect("planes");
        let edit = |plane, trit| Edit { plane, row: 5, col: 9, trit };
        for layout in LAYOUTS {
            let outcomes = [
                &[edit(0, Trit::N), edit(2, Trit::Z)][..],
                &[edit(2, Trit::Z), edit(2, Trit::N)],
                &[edit(1, Trit::Z), edit(2, Trit::N)],
                &[edit(2, Trit::N), edit(1, Trit::P)],
                &[],
            ]
            .map(|edits| check(&cpus, &tensor, layout, edits, &mut rng) == EditOutcome::InPlace);
            // The second plane is between two tied ones: packed, and stored by the first two layouts.
            let fixed = matches!(layout, Layout::TwoBit | Layout::Base3);
            let between = coupling == Coupling::Tied && (fixed || outcomes[3]);
            assert_eq!(outcomes, [false, true, true, between, true], "{layout:?} {coupling:?}");
        }
    }
}

#[test]
fn places_that_do_not_exist_are_refused() {
    let tensor = Weights { depth: 2, ..Weights::plain(5, 40, Granularity::Row) }.make(&mut Rng::new(4));
    let edit = Edit { plane: 1, row: 4, col: 39, trit: Trit::P };
    for layout in LAYOUTS {
        let mut matrix = pack(&tensor, layout);
        assert!(matrix.edit(&[edit]).is_ok());
        for wrong in [Edit { plane: 2, ..edit }, Edit { row: 5, ..edit }, Edit { col: 40, ..edit }] {
            assert!(matches!(matrix.edit(&[edit, wrong]), Err(CpuError::Range { .. })), "{wrong:?}");
        }
    }
}
