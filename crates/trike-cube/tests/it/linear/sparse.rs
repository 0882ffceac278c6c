//! Products with sparse weights.

use trike_cube::linear::ActivationPrecision::{F32, Int8PerGroup, Int8PerToken};
use trike_cube::linear::{
    ActivationShape, Activations, MAX_COLS, MAX_SPARSE_COLS, SparseForm, SparseLayout, SparseMatrix,
    SparseProblem,
};
use trike_cube::{CubeError, KernelProblem, Planes, Strategy};
use trike_testkit::{Rng, assert_close};
use trike_trit::{Encoding, Granularity, GroupSize, Hadamard, Scales, TritTensor};

use crate::testing;

fn tensor(rng: &mut Rng, rows: usize, cols: usize, density: f32) -> TritTensor {
    let scales = Scales::new(Granularity::Row, rng.normals(rows), None);
    TritTensor::from_trits(rows, cols, &rng.trits(rows * cols, density), Encoding::RowCompressed, scales)
        .expect("a tensor")
}

#[test]
fn products_are_those_of_the_weights() {
    let mut rng = Rng::new(31);
    for device in testing::devices() {
        for (rows, cols, tokens, precision, density) in
            [(1, 1, 1, Int8PerToken, 0.0), (9, 700, 3, Int8PerToken, 0.05), (6, 300, 5, F32, 0.1)]
        {
            let tensor = tensor(&mut rng, rows, cols, density);
            // Values that one byte represents exactly with a factor of one.
            let mut x: Vec<f32> = (0..tokens * cols).map(|_| rng.below(255) as f32 - 127.0).collect();
            x.iter_mut().step_by(cols).for_each(|x| *x = 127.0);
            let weights = tensor.dequantize();
            let want: Vec<f32> = (0..tokens * rows)
                .map(|i| {
                    let (w, x) = (&weights[i % rows * cols..][..cols], &x[i / rows * cols..][..cols]);
                    w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() as f32
                })
                .collect();
            let x = Activations::upload(&device, ActivationShape { tokens, cols, precision }, &x)
                .expect("uploaded");
            for layout in [SparseLayout::Entries, SparseLayout::Bitmap] {
                let w = SparseMatrix::pack_as(&device, &tensor, layout).expect("packed");
                let out = device.upload(&vec![f32::NAN; tokens * rows]).expect("room");
                device.sparse(&x, &w, &out, &Strategy::Inferred).expect("a launch");
                let got = device.read(&out).expect("a device");
                assert_close(&got, &want, 1e-6);
                device.sparse_add(&x, &w, &out, &Strategy::Inferred).expect("a launch");
                let doubled: Vec<f32> = got.iter().map(|v| v + v).collect();
                assert_eq!(device.read(&out).expect("a device"), doubled);
            }
        }
    }
}

#[test]
fn forms_without_a_kernel_are_refused() {
    let form = SparseForm { rows: 1, cols: 64, nonzeros: 1, chunks: 1, layout: SparseLayout::Entries };
    let x = ActivationShape { tokens: 1, cols: 64, precision: Int8PerToken };
    let problem = SparseProblem { x, w: form, add: false };
    problem.validate().expect("the plain case");
    let grouped = ActivationShape { precision: Int8PerGroup(GroupSize::G32), ..x };
    assert!(matches!(SparseProblem { x: grouped, ..problem }.validate(), Err(CubeError::Unsupported { .. })));
    let wide =
        |cols| SparseProblem { x: ActivationShape { cols, ..x }, w: SparseForm { cols, ..form }, add: false };
    wide(MAX_SPARSE_COLS).validate().expect("the widest");
    assert!(matches!(wide(MAX_SPARSE_COLS + 1).validate(), Err(CubeError::Range { .. })));
    let mapped = |cols| {
        let problem = wide(cols);
        SparseProblem { w: SparseForm { layout: SparseLayout::Bitmap, ..problem.w }, ..problem }
    };
    mapped(MAX_COLS).validate().expect("the widest bitmap");
    assert!(matches!(mapped(MAX_COLS + 1).validate(), Err(CubeError::Range { .. })));
    let Some(device) = testing::device(Planes::Off) else { return };
    let grouped = Scales::new(Granularity::Group(GroupSize::G32), vec![1.0; 2], None);
    let tensor = TritTensor::from_trits(1, 64, &[1; 64], Encoding::TwoBit, grouped).expect("a tensor");
    assert!(matches!(SparseMatrix::pack(&device, &tensor), Err(CubeError::Unsupported { .. })));
    let plain = TritTensor::from_trits(1, 64, &[1; 64], Encoding::TwoBit, Scales::tensor(1.0)).expect("one");
    let rotated = plain.clone().with_rotation(Hadamard::new(8).ok()).expect("whole blocks");
    let refused = SparseMatrix::pack(&device, &rotated).expect_err("a rotation");
    assert_eq!(
        refused.to_string(),
        "rotation of a sparse matrix: expected none, got blocks of 8; pack the tensor as a CubeTernaryMatrix"
    );
    let w = SparseMatrix::pack(&device, &plain).expect("a matrix");
    let codes = Activations::empty(&device, x).and_then(|codes| codes.with_rotation(Hadamard::new(8).ok()));
    let out = device.empty(1).expect("room");
    let refused = device.sparse(&codes.expect("room"), &w, &out, &Strategy::Inferred);
    assert_eq!(
        refused.expect_err("rotated codes").to_string(),
        "rotation of activations of a sparse linear: expected none, got blocks of 8; quantize them without one"
    );
}
