//! Linears with sparse ternary weights.

use super::kernels::{bitmap, sparse};
use super::sparse_matrix::{SparseForm, SparseLayout, SparseMatrix, Weights};
use super::{activations::Activations, shape::ActivationShape};
use crate::capabilities::Capabilities;
use crate::device::{Buffer, Device, Launch};
use crate::error::{CubeError, Result, check_len, check_range, check_rotation, check_shape, unsupported};
use crate::plan::{Plan, Settings, Strategy};
use trike_core::Cost;

/// One sparse linear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SparseProblem {
    /// The activations.
    pub x: ActivationShape,
    /// The weights.
    pub w: SparseForm,
    /// Adds the products to the existing output.
    pub add: bool,
}

/// Kernel variant: number of code rows that share one pass over the weights, 1, 2, 4, 8 or 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SparseBlueprint {
    /// Code rows per cube, at least those of one token.
    pub rows: usize,
}

impl Plan for SparseProblem {
    type Blueprint = SparseBlueprint;

    const NAME: &'static str = "sparse linear";

    fn validate(&self) -> Result<()> {
        self.x.validate()?;
        self.w.validate()?;
        check_len("columns of the activations of a sparse linear", self.w.cols, self.x.cols)?;
        if let Some(group) = self.x.precision.group() {
            let property = format!("activation factors per {group} columns");
            return unsupported(Self::NAME, property, "quantize the activations with one factor per token");
        }
        check_shape("output of a sparse linear", self.x.tokens, self.w.rows)?;
        Ok(())
    }

    fn candidates(&self, _device: &Capabilities) -> Vec<SparseBlueprint> {
        let rows = self.x.code_rows().next_power_of_two().clamp(self.x.precision.slices(), 16);
        vec![SparseBlueprint { rows }]
    }

    fn settings(&self, blueprint: &SparseBlueprint, _device: &Capabilities) -> Result<Settings> {
        let rows = blueprint.rows;
        let slices = self.x.precision.slices();
        check_range("rows of codes of a cube", slices, 16, rows)?;
        if !rows.is_power_of_two() {
            return Err(CubeError::NotMultiple { what: "rows of codes of a cube", unit: slices, got: rows });
        }
        let side = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(Settings {
            cubes: [side(self.w.rows.div_ceil(sparse::ROWS)), side(self.x.code_rows().div_ceil(rows)), 1],
            units: [sparse::UNITS as u32, sparse::ROWS as u32],
            shared_bytes: sparse::shared_bytes(rows),
            bindings: match self.w.layout {
                SparseLayout::Entries => 6,
                SparseLayout::Bitmap => 8,
            },
        })
    }

    fn cost(&self) -> Cost {
        let [code_rows, nonzeros] = [self.x.code_rows(), self.w.nonzeros].map(|n| n as u64);
        let outputs = (self.x.tokens * self.w.rows) as u64 * if self.add { 8 } else { 4 };
        let x = 4 * (self.x.code_words() + self.x.factors()) as u64;
        Cost { macs: nonzeros * code_rows, bytes: self.w.bytes() as u64 + x + outputs }
    }
}

impl Device {
    /// `out = x W^T`, as [`Device::linear`].
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] when the columns or the output do not match, [`CubeError::Unsupported`] for activations with
    /// factors per group of columns, and those of [`Plan::plan`] and of the launch.
    pub fn sparse(
        &self,
        x: &Activations,
        w: &SparseMatrix,
        out: &Buffer<f32>,
        strategy: &Strategy<SparseBlueprint>,
    ) -> Result<()> {
        self.sparse_linear(x, w, out, false, strategy)
    }

    /// `out += x W^T`, as [`Device::sparse`].
    ///
    /// # Errors
    ///
    /// As [`Device::sparse`].
    pub fn sparse_add(
        &self,
        x: &Activations,
        w: &SparseMatrix,
        out: &Buffer<f32>,
        strategy: &Strategy<SparseBlueprint>,
    ) -> Result<()> {
        self.sparse_linear(x, w, out, true, strategy)
    }

    fn sparse_linear(
        &self,
        x: &Activations,
        w: &SparseMatrix,
        out: &Buffer<f32>,
        add: bool,
        strategy: &Strategy<SparseBlueprint>,
    ) -> Result<()> {
        check_rotation("activations of a sparse linear", None, x.rotation())?;
        let problem = SparseProblem { x: x.shape(), w: w.form(), add };
        let (blueprint, settings) = problem.plan(strategy, self.capabilities())?;
        check_len("output of a sparse linear", problem.x.tokens * w.form().rows, out.len())?;
        let slices = problem.x.precision.slices();
        let key = (blueprint, slices, add, w.form().layout);
        let launch = Launch::new(SparseProblem::NAME, &key, settings);
        let (rows, code_rows, blocks) =
            (w.form().rows as u32, problem.x.code_rows() as u32, problem.x.blocks() as u32);
        self.launch(&launch, &[out], |client, cubes, units| match &w.weights {
            Weights::Entries { offsets, entries } => {
                // SAFETY: offsets, entries and scales come from `list`, so offsets are within the entries and columns exist;
                // the lengths of the activations come from `ActivationShape`, that of `out` was checked above; the kernel
                // clamps rows and code rows to them. Its loop ends at the row's last entry.
                unsafe {
                    sparse::sparse::launch_unchecked(
                        client,
                        cubes,
                        units,
                        offsets.arg(),
                        entries.arg(),
                        w.scales.arg(),
                        x.codes.arg(),
                        x.factors.arg(),
                        out.arg(),
                        rows,
                        code_rows,
                        blocks,
                        slices,
                        add,
                        blueprint.rows,
                    );
                }
            }
            Weights::Bitmap { starts, headers, bits, signs } => {
                // SAFETY: as above, with the buffers of `map`: starts are within the chunks, whose numbers are below `blocks`,
                // the signs of a row begin at its start, and two padding words follow the last. Loops end at the row's last
                // chunk and when no bit is left.
                unsafe {
                    bitmap::bitmap::launch_unchecked(
                        client,
                        cubes,
                        units,
                        starts.arg(),
                        headers.arg(),
                        bits.arg(),
                        signs.arg(),
                        w.scales.arg(),
                        x.codes.arg(),
                        x.factors.arg(),
                        out.arg(),
                        rows,
                        code_rows,
                        blocks,
                        slices,
                        add,
                        blueprint.rows,
                    );
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::ActivationPrecision::{F32, Int8PerGroup, Int8PerToken};
    use crate::linear::{MAX_COLS, MAX_SPARSE_COLS};
    use crate::testing;
    use trike_testkit::{Rng, assert_close};
    use trike_trit::{Encoding, Granularity, GroupSize, Hadamard, Scales, TritTensor};

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
                // Values that one byte holds with a factor of one.
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
        assert!(matches!(
            SparseProblem { x: grouped, ..problem }.validate(),
            Err(CubeError::Unsupported { .. })
        ));
        let wide = |cols| SparseProblem {
            x: ActivationShape { cols, ..x },
            w: SparseForm { cols, ..form },
            add: false,
        };
        wide(MAX_SPARSE_COLS).validate().expect("the widest");
        assert!(matches!(wide(MAX_SPARSE_COLS + 1).validate(), Err(CubeError::Range { .. })));
        let mapped = |cols| {
            let problem = wide(cols);
            SparseProblem { w: SparseForm { layout: SparseLayout::Bitmap, ..problem.w }, ..problem }
        };
        mapped(MAX_COLS).validate().expect("the widest bitmap");
        assert!(matches!(mapped(MAX_COLS + 1).validate(), Err(CubeError::Range { .. })));
        let Some(device) = testing::device(crate::Planes::Off) else { return };
        let grouped = Scales::new(Granularity::Group(GroupSize::G32), vec![1.0; 2], None);
        let tensor = TritTensor::from_trits(1, 64, &[1; 64], Encoding::TwoBit, grouped).expect("a tensor");
        assert!(matches!(SparseMatrix::pack(&device, &tensor), Err(CubeError::Unsupported { .. })));
        let plain =
            TritTensor::from_trits(1, 64, &[1; 64], Encoding::TwoBit, Scales::tensor(1.0)).expect("one");
        let rotated = plain.clone().with_rotation(Hadamard::new(8).ok()).expect("whole blocks");
        let refused = SparseMatrix::pack(&device, &rotated).expect_err("a rotation");
        assert!(matches!(refused, CubeError::Rotation { expected: 1, got: 8, .. }));
        let w = SparseMatrix::pack(&device, &plain).expect("a matrix");
        let codes =
            Activations::empty(&device, x).and_then(|codes| codes.with_rotation(Hadamard::new(8).ok()));
        let out = device.empty(1).expect("room");
        let refused = device.sparse(&codes.expect("room"), &w, &out, &Strategy::Inferred);
        assert!(matches!(refused, Err(CubeError::Rotation { expected: 1, got: 8, .. })));
    }
}
