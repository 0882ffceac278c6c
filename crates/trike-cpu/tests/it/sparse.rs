//! Sparse weights: every fraction of zeros, and shapes that fill or overflow their slots.

use crate::common::{GRANULARITIES, PRECISIONS, as_quantized, bits, cpus, describe, oracle};
use trike_cpu::{Cpu, CpuOps, Isa, Layout, MAX_COLS, Matrix, TernaryMatrix, choose_layout};
use trike_testkit::{Rng, assert_close};
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, Scales, TritTensor};

fn tensor(
    (rows, cols): (usize, usize),
    planes: &[Vec<i8>],
    granularity: Granularity,
    coupling: Coupling,
    rng: &mut Rng,
) -> TritTensor {
    let sets = if coupling == Coupling::Free { planes.len() } else { 1 };
    let count = sets * granularity.count(rows, cols).expect("small");
    let values: Vec<f32> = (0..count).map(|_| 0.5 + rng.f32_unit()).collect();
    let planes: Vec<&[i8]> = planes.iter().map(Vec::as_slice).collect();
    let scales = Scales::new(granularity, values, None);
    TritTensor::from_planes(rows, cols, &planes, Encoding::TwoBit, coupling, scales).expect("valid parts")
}

/// Bit-identical to the 2-bit layout on every instruction set, and compared with the oracle.
fn check(cpus: &[Cpu], tensor: &TritTensor, tokens: usize, rng: &mut Rng) {
    let cols = tensor.cols();
    let x = rng.normals(tokens * cols);
    let pack = |layout| Matrix::from(TernaryMatrix::pack_as(tensor, layout).expect("a packable tensor"));
    let (dense, sparse) = (pack(Layout::TwoBit), pack(Layout::Sparse));
    for precision in [PRECISIONS[0], PRECISIONS[1], PRECISIONS[2], PRECISIONS[4]] {
        let run = |cpu: &Cpu, w: &Matrix| {
            let mut out = vec![f32::NAN; tokens * tensor.rows()];
            cpu.linear(&x, w, precision, &mut out).expect("valid shapes");
            out
        };
        let want = run(&cpus[0], &dense);
        let exact = oracle(&as_quantized(&x, cols, precision), &tensor.dequantize(), cols);
        if exact.iter().any(|v| *v != 0.0) {
            assert_close(&want, &exact, 1e-5);
        }
        for cpu in cpus {
            let got = run(cpu, &sparse);
            let same = bits(&got) == bits(&want);
            assert!(same, "{}: {} x {cols}, {tokens} tokens, {precision:?}", describe(cpu), tensor.rows());
        }
    }
}

#[test]
fn every_share_of_zeros() {
    let (cpus, mut rng) = (cpus(), Rng::new(1));
    for zeros in [0, 1, 50, 85, 95, 99, 100] {
        for granularity in GRANULARITIES {
            for (tokens, depth, coupling) in [
                (1, 1, Coupling::Free),
                (2, 2, Coupling::Tied),
                (5, 3, Coupling::Tied),
                (67, 2, Coupling::Free),
            ] {
                let shape = (19, 1 + rng.below(900));
                let share = 1.0 - zeros as f32 / 100.0;
                let planes: Vec<Vec<i8>> = (0..depth).map(|_| rng.trits(shape.0 * shape.1, share)).collect();
                check(&cpus, &tensor(shape, &planes, granularity, coupling, &mut rng), tokens, &mut rng);
            }
        }
    }
}

/// Rows that no assignment of slots fits together: full ones next to empty ones, and runs of nonzeros.
#[test]
fn rows_that_spill() {
    let (cpus, mut rng) = (cpus(), Rng::new(2));
    let (rows, cols) = (37, 1100);
    let trits = |value: fn(usize, usize) -> i8| -> Vec<i8> {
        (0..rows * cols).map(|i| value(i / cols, i % cols)).collect()
    };
    let cases = [
        trits(|_, _| 1),
        trits(|_, _| -1),
        trits(|row, _| i8::from(row == 20)),
        trits(|row, col| if row % 5 == 0 { (col % 3) as i8 - 1 } else { 0 }),
        trits(|_, col| -i8::from(col % 300 < 40)),
        trits(|row, col| i8::from(col == 1099 - row)),
        trits(|_, col| i8::from(col < 30) - i8::from(col >= 1070)),
    ];
    for trits in cases {
        for granularity in
            [Granularity::Row, Granularity::Group(GroupSize::G128), Granularity::Group(GroupSize::G32)]
        {
            let tensor =
                tensor((rows, cols), std::slice::from_ref(&trits), granularity, Coupling::Free, &mut rng);
            for tokens in [1, 3, 70] {
                check(&cpus, &tensor, tokens, &mut rng);
            }
        }
    }
}

/// Sums at their limits: activations of -128 (the low bytes of f32 codes), in long rows that are cut into units.
#[test]
fn long_rows_and_extreme_activations_are_exact() {
    let cpus = cpus();
    for (cols, every) in [(16_320, 1), (16_321, 7), (40_000, 20), (MAX_COLS, 128)] {
        for sign in [1i8, -1] {
            let trits: Vec<i8> = (0..cols).map(|col| if col % every == 0 { sign } else { 0 }).collect();
            let tensor = TritTensor::from_trits(1, cols, &trits, Encoding::TwoBit, Scales::tensor(1.0))
                .expect("valid");
            let pack = |layout| Matrix::from(TernaryMatrix::pack_as(&tensor, layout).expect("packable"));
            let (dense, sparse) = (pack(Layout::TwoBit), pack(Layout::Sparse));
            for cpu in cpus.iter().filter(|cpu| cpu.threads() == 1) {
                for tokens in [1, 5] {
                    for value in [1.0, -1.0, -0.501_960_8] {
                        for precision in [PRECISIONS[0], PRECISIONS[1]] {
                            let x = vec![value; tokens * cols];
                            let run = |w: &Matrix| {
                                let mut out = vec![f32::NAN; tokens];
                                cpu.linear(&x, w, precision, &mut out).expect("valid");
                                bits(&out)
                            };
                            assert_eq!(run(&sparse), run(&dense), "{}: {cols} / {every}", describe(cpu));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn rows_are_read_and_bytes_are_counted() {
    let mut rng = Rng::new(3);
    for zeros in [0.0, 0.5, 0.95, 1.0] {
        for granularity in [Granularity::Row, Granularity::Group(GroupSize::G64)] {
            let planes = [rng.trits(33 * 500, 1.0 - zeros), rng.trits(33 * 500, 1.0 - zeros)];
            let tensor = tensor((33, 500), &planes, granularity, Coupling::Tied, &mut rng);
            let w = Matrix::from(TernaryMatrix::pack_as(&tensor, Layout::Sparse).expect("packable"));
            let ids: Vec<u32> = (0..33).collect();
            let mut out = vec![f32::NAN; 33 * 500];
            Cpu::new(1).expect("one thread").embed(&w, &ids, &mut out).expect("valid");
            assert_eq!(bits(&out), bits(&tensor.dequantize()));
        }
    }
    let trits = rng.trits(512 * 4096, 0.05);
    let scales = Scales::tensor(1.0);
    let tensor = TritTensor::from_trits(512, 4096, &trits, Encoding::TwoBit, scales).expect("valid");
    assert_eq!(choose_layout(&tensor, Isa::detect()), Layout::Sparse);
    let w = TernaryMatrix::pack_as(&tensor, Layout::Sparse).expect("packable");
    assert_eq!(w.layout(), Layout::Sparse);
    let bits = w.bytes() as f64 * 8.0 / (512.0 * 4096.0);
    assert!((0.4..0.8).contains(&bits), "a byte for each nonzero and some unused: {bits} bits a weight");
}

#[test]
fn the_planner_takes_the_sparse_layout_where_it_is_faster() {
    let mut rng = Rng::new(4);
    let (g64, g128) = (Granularity::Group(GroupSize::G64), Granularity::Group(GroupSize::G128));
    for (zeros, granularity, want) in [
        (0.0, Granularity::Row, Layout::TwoBit),
        (0.85, Granularity::Row, Layout::TwoBit),
        (0.95, Granularity::Tensor, Layout::Sparse),
        (0.95, g128, Layout::TwoBit),
        (0.993, g128, Layout::Sparse),
        (0.993, g64, Layout::TwoBit),
        (1.0, g64, Layout::Blocks),
    ] {
        let planes = [rng.trits(64 * 512, 1.0 - zeros)];
        let tensor = tensor((64, 512), &planes, granularity, Coupling::Free, &mut rng);
        assert_eq!(choose_layout(&tensor, Isa::detect()), want, "{zeros} zeros, {granularity:?}");
    }
}
