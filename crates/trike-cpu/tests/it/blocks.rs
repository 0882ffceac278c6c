//! Weights with omitted blocks of zeros, or omitted planes.

use crate::common::{GRANULARITIES, PRECISIONS, as_quantized, bits, cpus, describe, oracle};
use trike_cpu::{
    ActivationPrecision, Cpu, CpuOps, Isa, Layout, MAX_COLS, Matrix, TernaryMatrix, choose_layout,
};
use trike_testkit::{Rng, assert_close};
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, Scales, TritTensor};

const LAYOUTS: [Layout; 4] = [Layout::TwoBit, Layout::Base3, Layout::Sparse, Layout::Blocks];

fn pack(tensor: &TritTensor, layout: Layout) -> Matrix {
    TernaryMatrix::pack_as(tensor, layout).expect("a packable tensor").into()
}

/// Runs on poisoned outputs.
fn run(cpu: &Cpu, x: &[f32], w: &Matrix, precision: ActivationPrecision) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / w.cols() * w.rows()];
    cpu.linear(x, w, precision, &mut out).expect("valid shapes");
    out
}

/// Which weights of a plane may be nonzero.
type Pattern = fn(row: usize, col: usize) -> bool;

/// Random zeros, blocks of zeros of several sizes and offsets, and all zeros.
const PATTERNS: [(&str, Pattern); 12] = [
    ("no structure", |_, _| true),
    ("nothing", |_, _| false),
    ("the first block", |row, col| row < 16 && col < 32),
    ("the last rows", |row, _| row >= 32),
    ("the last columns", |_, col| col >= 1056),
    ("one weight", |row, col| row == 17 && col == 65),
    ("every second block", |row, col| (row / 16 + col / 32).is_multiple_of(2)),
    ("tiles that have nothing in common", |row, col| (row / 16) % 2 == (col / 512) % 2),
    ("tiles that have half in common", |row, col| (col / 32) % 3 == (row / 16) % 3 || col / 64 == 3),
    ("blocks that start within others", |row, col| (row / 24 + (col + 16) / 48) % 3 == 1),
    ("a row of each tile", |row, _| row % 16 == 5),
    ("scattered blocks", |row, col| (row / 16 * 37 + col / 32 * 11) % 7 < 2),
];

fn plane((rows, cols): (usize, usize), pattern: Pattern, rng: &mut Rng) -> Vec<i8> {
    let mut trits = rng.trits(rows * cols, 0.6);
    let at = trits.iter_mut().enumerate().filter(|(i, _)| !pattern(i / cols, i % cols));
    at.for_each(|(_, trit)| *trit = 0);
    trits
}

fn tensor(
    (rows, cols): (usize, usize),
    planes: &[Vec<i8>],
    granularity: Granularity,
    coupling: Coupling,
    means: bool,
    rng: &mut Rng,
) -> TritTensor {
    let sets = if coupling == Coupling::Free { planes.len() } else { 1 };
    let count = granularity.count(rows, cols).expect("small");
    let mut values = |n: usize| -> Vec<f32> { (0..n).map(|_| 0.5 - rng.f32_unit()).collect() };
    let (scales, means) = (values(sets * count), means.then(|| values(count).into()));
    let planes: Vec<&[i8]> = planes.iter().map(Vec::as_slice).collect();
    let scales = Scales::new(granularity, scales, means);
    TritTensor::from_planes(rows, cols, &planes, Encoding::TwoBit, coupling, scales).expect("valid parts")
}

/// Bit-identical to the two-bit layout on every instruction set, and compared with the oracle.
fn check(cpus: &[Cpu], tensor: &TritTensor, tokens: usize, what: &str, rng: &mut Rng) {
    let cols = tensor.cols();
    let x = rng.normals(tokens * cols);
    let (dense, blocks) = (pack(tensor, Layout::TwoBit), pack(tensor, Layout::Blocks));
    for precision in [PRECISIONS[0], PRECISIONS[1], PRECISIONS[2], PRECISIONS[4]] {
        let want = run(&cpus[0], &x, &dense, precision);
        let exact = oracle(&as_quantized(&x, cols, precision), &tensor.dequantize(), cols);
        if exact.iter().any(|v| *v != 0.0) {
            assert_close(&want, &exact, 2e-5);
        }
        for cpu in cpus {
            let same = bits(&run(cpu, &x, &blocks, precision)) == bits(&want);
            let (rows, on) = (tensor.rows(), describe(cpu));
            assert!(same, "{on}: {what}, {rows} x {cols}, {tokens} tokens, {precision:?}");
        }
    }
}

#[test]
fn every_structure_and_granularity() {
    let (cpus, mut rng) = (cpus(), Rng::new(1));
    for (what, pattern) in PATTERNS {
        for granularity in GRANULARITIES {
            for (tokens, depth, coupling, means) in [
                (1, 1, Coupling::Free, false),
                (3, 2, Coupling::Tied, true),
                (14, 1, Coupling::Free, true),
                (7, 2, Coupling::Free, false),
            ] {
                let shape = [(70, 1100), (33, 1087)][tokens % 2];
                // Each plane has different blocks.
                let other = PATTERNS[rng.below(PATTERNS.len())].1;
                let planes: Vec<_> =
                    [pattern, other][..depth].iter().map(|p| plane(shape, *p, &mut rng)).collect();
                let tensor = tensor(shape, &planes, granularity, coupling, means, &mut rng);
                check(&cpus, &tensor, tokens, what, &mut rng);
            }
        }
    }
}

#[test]
fn odd_sizes_and_every_number_of_tokens() {
    let (cpus, mut rng) = (cpus(), Rng::new(2));
    for case in 0..150 {
        let shape = (1 + rng.below(50), 1 + rng.below(300));
        let pattern = PATTERNS[[0, 1, 2, 6, 8, 9, 11][case % 7]];
        let planes = [plane(shape, pattern.1, &mut rng)];
        let granularity = GRANULARITIES[rng.below(6)];
        let tensor = tensor(shape, &planes, granularity, Coupling::Free, case % 3 == 0, &mut rng);
        check(&cpus, &tensor, 1 + case % 30, pattern.0, &mut rng);
    }
}

#[test]
fn up_to_six_planes() {
    let (cpus, mut rng) = (cpus(), Rng::new(3));
    let shape = (40, 700);
    for depth in 1..=6 {
        for coupling in [Coupling::Free, Coupling::Tied] {
            let planes: Vec<_> = (0..depth).map(|p| plane(shape, PATTERNS[6 + p].1, &mut rng)).collect();
            let granularity = GRANULARITIES[1 + depth % 5];
            let tensor = tensor(shape, &planes, granularity, coupling, true, &mut rng);
            for tokens in [1, 4, 9] {
                check(&cpus, &tensor, tokens, "six planes", &mut rng);
            }
        }
    }
}

/// Sums at their limits, in rows so long that they are cut into units and panels.
#[test]
fn long_rows_and_extreme_activations_are_exact() {
    let cpus = cpus();
    for (cols, from, to) in [(16_321, 0, 16_321), (40_000, 16_300, 16_330), (MAX_COLS, 900_000, MAX_COLS)] {
        for sign in [1i8, -1] {
            let trits: Vec<i8> =
                (0..cols).map(|col| if (from..to).contains(&col) { sign } else { 0 }).collect();
            let scales = Scales::tensor(1.0);
            let tensor = TritTensor::from_trits(1, cols, &trits, Encoding::TwoBit, scales).expect("valid");
            let (dense, blocks) = (pack(&tensor, Layout::TwoBit), pack(&tensor, Layout::Blocks));
            for cpu in cpus.iter().filter(|cpu| cpu.threads() == 1) {
                for tokens in [1, 5] {
                    for value in [1.0, -1.0, -0.501_960_8] {
                        for precision in [PRECISIONS[0], PRECISIONS[1]] {
                            let x = vec![value; tokens * cols];
                            let [got, want] = [&blocks, &dense].map(|w| bits(&run(cpu, &x, w, precision)));
                            assert_eq!(got, want, "{}: {cols} from {from}", describe(cpu));
                        }
                    }
                }
            }
        }
    }
}

/// The product of a scale and a factor may overflow, and times a sum of zero it is NaN: then units without blocks are not skipped.
#[test]
fn scales_that_overflow_reach_units_of_zeros() {
    let cols = 256;
    let trits: Vec<i8> = (0..20 * cols).map(|i| i8::from(i % cols < 32)).collect();
    let granularity = Granularity::Group(GroupSize::G64);
    let count = granularity.count(20, cols).expect("small");
    let scales = Scales::new(granularity, vec![3e38f32; count], None);
    let tensor = TritTensor::from_trits(20, cols, &trits, Encoding::TwoBit, scales).expect("valid");
    for tokens in [1, 6] {
        let x = vec![1e4; tokens * cols];
        for cpu in cpus() {
            let want = run(&cpu, &x, &pack(&tensor, Layout::TwoBit), PRECISIONS[2]);
            assert!(want.iter().all(|y| y.is_nan()), "infinite scales times sums of zero");
            let got = run(&cpu, &x, &pack(&tensor, Layout::Blocks), PRECISIONS[2]);
            assert!(got.iter().all(|y| y.is_nan()), "{}: {got:?}", describe(&cpu));
        }
    }
}

#[test]
fn rows_are_read_and_bytes_are_counted() {
    let mut rng = Rng::new(4);
    for (_, pattern) in PATTERNS {
        for coupling in [Coupling::Free, Coupling::Tied] {
            let planes = [plane((33, 500), pattern, &mut rng), plane((33, 500), PATTERNS[6].1, &mut rng)];
            let tensor = tensor((33, 500), &planes, GRANULARITIES[3], coupling, true, &mut rng);
            for layout in LAYOUTS {
                let ids: Vec<u32> = (0..33).collect();
                let mut out = vec![f32::NAN; 33 * 500];
                let cpu = Cpu::new(1).expect("one thread");
                cpu.embed(&pack(&tensor, layout), &ids, &mut out).expect("valid");
                assert_eq!(out, tensor.dequantize(), "{layout:?}");
            }
        }
    }
    // A stored block is two lines and a number, an omitted one takes no space; each tile has an end and half a scale.
    for (present, size) in [(0usize, 512), (1, 512), (7, 512), (64, 512)] {
        let trits: Vec<i8> =
            (0..64 * size).map(|i| i8::from(i / size / 16 * 16 + i % size / 32 < present)).collect();
        let tensor =
            TritTensor::from_trits(64, size, &trits, Encoding::TwoBit, Scales::tensor(1.0)).expect("valid");
        let ends = if present == 0 { 0 } else { 4 * size_of::<usize>() + 4 };
        assert_eq!(pack(&tensor, Layout::Blocks).bytes(), present * (128 + 2) + ends, "{present} blocks");
    }
}

/// A plane of zeros costs nothing, wherever it is; between tied planes it costs nothing in the block layout.
#[test]
fn planes_of_zeros_cost_nothing() {
    let (cpus, mut rng) = (cpus(), Rng::new(5));
    let shape = (37, 400);
    let zeros = vec![0i8; shape.0 * shape.1];
    for coupling in [Coupling::Free, Coupling::Tied] {
        for empty in [vec![0], vec![1], vec![2], vec![0, 1], vec![0, 2], vec![1, 2], vec![0, 1, 2]] {
            let mut planes: Vec<_> = (0..3).map(|_| plane(shape, PATTERNS[0].1, &mut rng)).collect();
            empty.iter().for_each(|&p| planes[p].clone_from(&zeros));
            let kept: Vec<_> = planes.iter().filter(|plane| **plane != zeros).cloned().collect();
            for granularity in [GRANULARITIES[0], GRANULARITIES[2]] {
                let tensor = tensor(shape, &planes, granularity, coupling, true, &mut rng);
                for tokens in [1, 6] {
                    check(&cpus, &tensor, tokens, "planes of zeros", &mut rng);
                }
                let between = coupling == Coupling::Tied && empty == [1];
                for layout in LAYOUTS.into_iter().filter(|layout| !between || *layout == Layout::Blocks) {
                    let w = pack(&tensor, layout);
                    let least = if kept.is_empty() {
                        0
                    } else {
                        let other = self::tensor(shape, &kept, granularity, coupling, true, &mut rng);
                        pack(&other, layout).bytes()
                    };
                    let ends = if between { 3 * size_of::<usize>() } else { 0 };
                    let means = granularity.count(48, shape.1).expect("small") * 4;
                    let most = least.max(if kept.is_empty() { means } else { 0 }) + ends;
                    assert!(w.bytes() <= most, "{layout:?} without {empty:?}: {} of {most}", w.bytes());
                    let want = run(&cpus[0], &[1.0; 400], &pack(&tensor, Layout::TwoBit), PRECISIONS[1]);
                    assert_eq!(bits(&run(&cpus[0], &[1.0; 400], &w, PRECISIONS[1])), bits(&want));
                }
            }
        }
    }
}

#[test]
fn the_planner_takes_blocks_where_they_are_faster() {
    let mut rng = Rng::new(6);
    let shape = (256, 1024);
    let g64 = Granularity::Group(GroupSize::G64);
    let tied = |first: Pattern, second: Pattern, third: Pattern| vec![first, second, third];
    let choose = |patterns: Vec<Pattern>, granularity, coupling, rng: &mut Rng| {
        let planes: Vec<_> = patterns.into_iter().map(|pattern| plane(shape, pattern, rng)).collect();
        choose_layout(&tensor(shape, &planes, granularity, coupling, false, rng), Isa::detect())
    };
    let (all, none, half): (Pattern, Pattern, Pattern) = (PATTERNS[0].1, PATTERNS[1].1, PATTERNS[6].1);
    for granularity in [Granularity::Tensor, Granularity::Row, g64] {
        for (pattern, want) in [
            (all, Layout::TwoBit),
            (half, Layout::Blocks),
            (none, Layout::Blocks),
            (PATTERNS[11].1, Layout::Blocks),
            // Fifteen of sixteen rows are zero, but no block is.
            (PATTERNS[10].1, if granularity == g64 { Layout::TwoBit } else { Layout::Sparse }),
        ] {
            assert_eq!(choose(vec![pattern], granularity, Coupling::Free, &mut rng), want, "{granularity:?}");
        }
        // Omitted only because every layout omits the plane.
        for (planes, want) in [
            (tied(all, all, none), Layout::TwoBit),
            (tied(none, all, none), Layout::TwoBit),
            (tied(all, none, all), if granularity == g64 { Layout::TwoBit } else { Layout::Blocks }),
        ] {
            assert_eq!(choose(planes, granularity, Coupling::Tied, &mut rng), want, "{granularity:?}");
        }
    }
}

/// Packing in shares on threads gives the same matrix.
#[test]
fn packing_on_threads_changes_no_bit() {
    let mut rng = Rng::new(7);
    let shape = (1003, 1100);
    let (one, three) = (Cpu::new(1).expect("one thread"), Cpu::new(3).expect("a few threads"));
    for pattern in
        [PATTERNS[0].1, PATTERNS[11].1, |row: usize, col: usize| (row * 7 + col).is_multiple_of(31)]
    {
        let planes = [plane(shape, pattern, &mut rng), plane(shape, pattern, &mut rng)];
        for granularity in [Granularity::Row, Granularity::Group(GroupSize::G128)] {
            let tensor = tensor(shape, &planes, granularity, Coupling::Tied, true, &mut rng);
            let x = rng.normals(shape.1);
            let ids: Vec<u32> = (0..shape.0 as u32).collect();
            for layout in LAYOUTS {
                let shared: Matrix = three.pack(&tensor, layout).expect("packable").into();
                let alone = pack(&tensor, layout);
                assert_eq!(shared.bytes(), alone.bytes(), "{layout:?}");
                let [got, want] = [&shared, &alone].map(|w| {
                    let mut rows = vec![f32::NAN; shape.0 * shape.1];
                    one.embed(w, &ids, &mut rows).expect("valid");
                    (bits(&rows), bits(&run(&one, &x, w, PRECISIONS[1])))
                });
                assert!(got == want, "{layout:?}");
            }
        }
    }
}
