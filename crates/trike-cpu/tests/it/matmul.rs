//! Products of matrices in either order of storage, on every instruction set: compared with f64, with 1 and 3 threads.

use crate::common::{cpus, describe};
use trike_core::ProductPrecision;
use trike_cpu::{Cpu, CpuError, Isa, MatrixRef, Store, matmul, matmul_rounded};
use trike_testkit::Rng;

/// Around tiles (4, 6 and 12 rows; 8, 16 and 32 columns), packed widths (512) and depths (256).
const SHAPES: [(usize, usize, usize); 14] = [
    (1, 1, 1),
    (2, 3, 5),
    (4, 8, 2),
    (6, 16, 3),
    (12, 32, 4),
    (13, 33, 255),
    (11, 31, 256),
    (25, 65, 257),
    (37, 17, 600),
    (5, 511, 7),
    (3, 512, 9),
    (14, 513, 258),
    (130, 40, 64),
    (97, 1025, 1),
];

/// `a` is `m x k` and `b` is `k x n`.
fn naive([a, b]: [&[f32]; 2], m: usize, n: usize, k: usize) -> (Vec<f64>, f64) {
    let at = |i: usize, j: usize| (0..k).map(move |p| f64::from(a[i * k + p]) * f64::from(b[p * n + j]));
    let all = || (0..m).flat_map(move |i| (0..n).map(move |j| (i, j)));
    let size = all().map(|(i, j)| at(i, j).map(f64::abs).sum()).fold(0f64, f64::max);
    (all().map(|(i, j)| at(i, j).sum()).collect(), size)
}

fn transposed(values: &[f32], cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|c| values.iter().skip(c).step_by(cols)).copied().collect()
}

#[test]
fn products_are_those_of_their_definition() {
    let mut rng = Rng::new(1);
    for (m, n, k) in SHAPES {
        let (a, b) = (rng.normals(m * k), rng.normals(k * n));
        let (a_t, b_t) = (transposed(&a, k), transposed(&b, n));
        let matrix = |values, cols| MatrixRef::new(values, cols).expect("whole rows");
        let operands = [
            (matrix(&a, k), matrix(&b, n)),
            (matrix(&a, k), matrix(&b_t, k).t()),
            (matrix(&a_t, m).t(), matrix(&b, n)),
            (matrix(&a_t, m).t(), matrix(&b_t, k).t()),
        ];
        let precisions = [ProductPrecision::F32, ProductPrecision::Bf16, ProductPrecision::F16];
        for (cpu, precision) in cpus().into_iter().flat_map(|cpu| precisions.map(|p| (cpu.clone(), p))) {
            let rounded = [&a, &b].map(|all| all.iter().map(|v| precision.round(*v)).collect::<Vec<_>>());
            let (want, size) = naive([&rounded[0], &rounded[1]], m, n, k);
            let mut first = None;
            for (a, b) in operands {
                let mut out = vec![f32::NAN; m * n];
                matmul_rounded(&cpu, a, b, &mut out, Store::Overwrite, precision).expect("shapes fit");
                if precision == ProductPrecision::F32 {
                    let mut exact = vec![f32::NAN; m * n];
                    matmul(&cpu, a, b, &mut exact, Store::Overwrite).expect("shapes fit");
                    assert_eq!(out, exact);
                }
                for (got, want) in out.iter().zip(&want) {
                    let bound = 4.0 * f64::from(f32::EPSILON) * size;
                    let off = (f64::from(*got) - want).abs();
                    assert!(
                        off <= bound,
                        "{}, {precision:?}, {m} x {n} x {k}: {got}, {want}",
                        describe(&cpu)
                    );
                }
                let same = first.get_or_insert_with(|| out.clone());
                assert_eq!(*same, out, "the order of storage changes nothing");
                let mut twice = out.clone();
                matmul_rounded(&cpu, a, b, &mut twice, Store::Add, precision).expect("shapes fit");
                for (twice, once) in twice.iter().zip(&out) {
                    let off = f64::from((twice - 2.0 * once).abs());
                    assert!(off <= 4.0 * f64::from(f32::EPSILON) * size, "{twice}, {once}");
                }
            }
        }
    }
}

#[test]
fn values_beyond_f16_become_infinite() {
    let w = [65519.0, 0.0, 65520.0, 0.0];
    for cpu in cpus() {
        let (x, w) = (MatrixRef::new(&[1.0, 0.0], 2).expect("a row"), MatrixRef::new(&w, 2).expect("rows"));
        for (precision, want) in
            [(ProductPrecision::F16, [65504.0, f32::INFINITY]), (ProductPrecision::Bf16, [65536.0, 65536.0])]
        {
            let mut out = [f32::NAN; 2];
            matmul_rounded(&cpu, x, w.t(), &mut out, Store::Overwrite, precision).expect("shapes fit");
            assert_eq!(out, want, "{}", describe(&cpu));
        }
    }
}

#[test]
fn results_do_not_depend_on_threads_or_on_other_rows() {
    let mut rng = Rng::new(2);
    let (m, n, k) = (301, 70, 520);
    let (a, b) = (rng.normals(m * k), rng.normals(k * n));
    let b = MatrixRef::new(&b, n).expect("whole rows");
    let mut want = vec![f32::NAN; m * n];
    for (i, threads) in [1, 2, 3, 8].into_iter().enumerate() {
        let cpu = Cpu::new(threads).expect("a few threads");
        for rows in [m, 150, 7, 1] {
            let mut out = vec![f32::NAN; rows * n];
            let a = MatrixRef::new(&a[(m - rows) * k..], k).expect("whole rows");
            // Awake and sleeping workers split the work differently.
            for _ in 0..3 {
                matmul(&cpu, a, b, &mut out, Store::Overwrite).expect("shapes fit");
            }
            if (i, rows) == (0, m) {
                want.copy_from_slice(&out);
            }
            assert_eq!(out, want[(m - rows) * n..], "{threads} threads, {rows} rows");
        }
    }
}

#[test]
fn instruction_sets_with_fma_agree_to_the_bit() {
    let mut rng = Rng::new(3);
    for (m, n, k) in SHAPES {
        let (a, b) = (rng.normals(m * k), rng.normals(k * n));
        let (a, b) = (MatrixRef::new(&a, k).expect("rows"), MatrixRef::new(&b, n).expect("rows"));
        let mut first = None;
        for isa in Isa::available().into_iter().filter(|isa| isa.to_string().starts_with("avx")) {
            let cpu = Cpu::with_isa(isa, 1).expect("a thread");
            let mut out = vec![f32::NAN; m * n];
            matmul(&cpu, a, b, &mut out, Store::Overwrite).expect("shapes fit");
            assert_eq!(*first.get_or_insert_with(|| out.clone()), out, "{isa}: {m} x {n} x {k}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let cpu = Cpu::new(1).expect("a thread");
    assert!(matches!(MatrixRef::new(&[0.0; 5], 2), Err(CpuError::NotMultiple { unit: 2, got: 5, .. })));
    assert!(MatrixRef::new(&[], 0).is_err());
    let (a, empty) = (MatrixRef::new(&[1.0; 6], 3).expect("2 x 3"), MatrixRef::new(&[], 3).expect("0 x 3"));
    let mut out = [7.0; 4];
    let refused = matmul(&cpu, a, a, &mut out, Store::Overwrite);
    assert!(matches!(refused, Err(CpuError::Length { expected: 3, got: 2, .. })));
    let refused = matmul(&cpu, a, a.t(), &mut out[..3], Store::Overwrite);
    assert!(matches!(refused, Err(CpuError::Length { expected: 4, got: 3, .. })));
    assert_eq!(out, [7.0; 4]);
    matmul(&cpu, empty, a.t(), &mut [], Store::Overwrite).expect("no rows");
    // An empty sum is zero, and adds nothing.
    let mut sum = [7.0; 9];
    matmul(&cpu, empty.t(), empty, &mut sum, Store::Add).expect("3 x 0 x 3");
    assert_eq!(sum, [7.0; 9]);
    matmul(&cpu, empty.t(), empty, &mut sum, Store::Overwrite).expect("3 x 0 x 3");
    assert_eq!(sum, [0.0; 9]);
}
