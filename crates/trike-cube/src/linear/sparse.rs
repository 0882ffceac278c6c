//! Ternary weights that are nearly all zero.

use trike_trit::{Granularity, TritTensor};

use super::activations::{ActivationShape, Activations};
use super::kernels::sparse;
use crate::device::{Buffer, Capabilities, Device, Launch};
use crate::error::{CubeError, Result, check_len, check_range, check_shape};
use crate::plan::{Cost, Plan, Settings, Strategy};

/// Columns of a sparse matrix, at most: a column and a sign are two bytes.
pub const MAX_SPARSE_COLS: usize = 1 << 15;

/// A trit tensor of one plane as the list of its nonzeros, two bytes each.
///
/// ```text
/// offsets  [row], [rows]: entries before the row's, counted in entries
/// entries  2 column + (1 when the trit is -1), two a word, the first in its lower half
/// scales   [row]
/// ```
///
/// Smaller than two bits a weight from 87.5 % zeros. What was given up: scales of groups, and a place for every weight.
#[derive(Clone, Debug)]
pub struct SparseMatrix {
    form: SparseForm,
    offsets: Buffer<u32>,
    entries: Buffer<u32>,
    scales: Buffer<f32>,
}

/// What a plan must know about a sparse matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SparseForm {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Trits that are not zero.
    pub nonzeros: usize,
}

impl SparseForm {
    /// Bytes that a kernel reads.
    #[must_use]
    pub fn bytes(&self) -> usize {
        4 * (self.rows + 1) + 4 * self.nonzeros.div_ceil(2).max(1) + 4 * self.rows
    }

    fn validate(&self) -> Result<()> {
        check_range("columns of a sparse matrix", 1, MAX_SPARSE_COLS, self.cols)?;
        check_shape("sparse matrix", self.rows, self.cols)?;
        Ok(())
    }
}

impl SparseMatrix {
    /// Lists the nonzeros of a tensor with one plane and a scale for the tensor or for each row.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] for more planes, [`CubeError::Range`] for rows longer than [`MAX_SPARSE_COLS`] and for scales of
    /// groups or means, [`CubeError::Shape`] and [`CubeError::Memory`].
    pub fn pack(device: &Device, tensor: &TritTensor) -> Result<Self> {
        let nonzeros = (tensor.rows() as u64 * tensor.cols() as u64).saturating_sub(tensor.zeros()) as usize;
        let form = SparseForm { rows: tensor.rows(), cols: tensor.cols(), nonzeros };
        check_len("planes of a sparse matrix", 1, tensor.depth())?;
        form.validate()?;
        let grouped = matches!(tensor.scales().granularity(), Granularity::Group(_));
        if grouped || tensor.scales().means().is_some() {
            return Err(CubeError::Range {
                what: "scales of a row of a sparse matrix (without means)",
                minimum: 1,
                maximum: 1,
                got: tensor.groups_per_row(),
            });
        }
        let host = pack(tensor)?;
        Ok(Self {
            form,
            offsets: device.upload_weights(&host.offsets)?,
            entries: device.upload_weights(&host.entries)?,
            scales: device.upload_weights(&host.scales)?,
        })
    }

    /// What plans know about it.
    #[must_use]
    pub fn form(&self) -> SparseForm {
        self.form
    }

    /// Bytes that it takes on the device.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.form.bytes()
    }
}

struct Packed {
    offsets: Vec<u32>,
    entries: Vec<u32>,
    scales: Vec<f32>,
}

fn pack(tensor: &TritTensor) -> Result<Packed> {
    let mut offsets = vec![0];
    let (mut halves, mut scales) = (Vec::new(), Vec::new());
    let mut trits = vec![0i8; tensor.cols()];
    for row in 0..tensor.rows() {
        tensor.read_row(0, row, &mut trits)?;
        halves.extend(
            trits
                .iter()
                .enumerate()
                .filter(|(_, t)| **t != 0)
                .map(|(col, t)| 2 * col as u32 + u32::from(*t < 0)),
        );
        offsets.push(halves.len() as u32);
        scales.push(tensor.scale(0, row, 0)?);
    }
    // A buffer is never empty.
    let mut entries: Vec<u32> =
        halves.chunks(2).map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 16).collect();
    if entries.is_empty() {
        entries.push(0);
    }
    Ok(Packed { offsets, entries, scales })
}

/// One sparse linear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SparseProblem {
    /// The activations.
    pub x: ActivationShape,
    /// The weights.
    pub w: SparseForm,
    /// Whether the products are added to what the output holds.
    pub add: bool,
}

/// How it is computed: rows of codes that share one pass over the weights, 1, 2, 4, 8 or 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SparseBlueprint {
    /// Rows of codes of a cube, at least those of a token.
    pub rows: usize,
}

impl Plan for SparseProblem {
    type Blueprint = SparseBlueprint;

    const NAME: &'static str = "sparse linear";

    fn validate(&self) -> Result<()> {
        self.x.validate()?;
        self.w.validate()?;
        check_len("columns of the activations of a sparse linear", self.w.cols, self.x.cols)?;
        check_len(
            "columns that share a factor, for a sparse linear",
            0,
            self.x.precision.group().unwrap_or(0),
        )?;
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
            bindings: 6,
        })
    }

    fn cost(&self) -> Cost {
        let [code_rows, nonzeros] = [self.x.code_rows(), self.w.nonzeros].map(|n| n as u64);
        let outputs = (self.x.tokens * self.w.rows) as u64 * if self.add { 8 } else { 4 };
        let x = 4 * (self.x.code_words() + self.x.factors()) as u64;
        Cost { operations: 2 * nonzeros * code_rows, bytes: self.w.bytes() as u64 + x + outputs }
    }
}

impl Device {
    /// `out = x W^T`, as [`Device::linear`].
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] when the columns or the output do not fit, or with factors of groups of columns; those of
    /// [`Plan::plan`] and of the launch.
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
        let problem = SparseProblem { x: x.shape(), w: w.form, add };
        let (blueprint, settings) = problem.plan(strategy, self.capabilities())?;
        check_len("output of a sparse linear", problem.x.tokens * w.form.rows, out.len())?;
        let slices = problem.x.precision.slices();
        let launch = Launch::new(SparseProblem::NAME, &(blueprint, slices, add), settings);
        self.launch(&launch, &[out], |client, cubes, units| {
            // SAFETY: offsets, entries and scales come from `pack`, so that entries lie between offsets and name columns that
            // exist; the lengths of the activations come from `ActivationShape`, that of `out` was checked above; the kernel
            // clamps rows and codes to them. Its loop ends at the row's last entry.
            unsafe {
                sparse::sparse::launch_unchecked(
                    client,
                    cubes,
                    units,
                    w.offsets.arg(),
                    w.entries.arg(),
                    w.scales.arg(),
                    x.codes.arg(),
                    x.factors.arg(),
                    out.arg(),
                    w.form.rows as u32,
                    problem.x.code_rows() as u32,
                    problem.x.blocks() as u32,
                    slices,
                    add,
                    blueprint.rows,
                );
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::ActivationPrecision::{F32, Int8PerGroup, Int8PerToken};
    use crate::testing;
    use trike_testkit::{Rng, assert_close};
    use trike_trit::{Encoding, GroupSize, Scales};

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
                let w = SparseMatrix::pack(&device, &tensor).expect("packed");
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

    #[test]
    fn nonzeros_are_listed_in_order() {
        let trits = [0, 1, 0, -1, 0, 0, 0, 0, -1];
        let tensor =
            TritTensor::from_trits(3, 3, &trits, Encoding::TwoBit, Scales::tensor(0.5)).expect("a tensor");
        let packed = pack(&tensor).expect("packed");
        assert_eq!(packed.offsets, [0, 1, 2, 3]);
        assert_eq!(packed.entries, [2 | 1 << 16, 5]);
        assert_eq!(packed.scales, [0.5; 3]);
        let form = SparseForm { rows: 3, cols: 3, nonzeros: 3 };
        assert_eq!(form.bytes(), 4 * (packed.offsets.len() + packed.entries.len() + packed.scales.len()));
    }

    #[test]
    fn forms_without_a_kernel_are_refused() {
        let form = SparseForm { rows: 1, cols: 64, nonzeros: 1 };
        let x = ActivationShape { tokens: 1, cols: 64, precision: Int8PerToken };
        let problem = SparseProblem { x, w: form, add: false };
        problem.validate().expect("the plain case");
        let grouped = ActivationShape { precision: Int8PerGroup(GroupSize::G32), ..x };
        assert!(matches!(
            SparseProblem { x: grouped, ..problem }.validate(),
            Err(CubeError::Length { got: 32, .. })
        ));
        let wide = |cols| SparseProblem {
            x: ActivationShape { cols, ..x },
            w: SparseForm { cols, ..form },
            add: false,
        };
        wide(MAX_SPARSE_COLS).validate().expect("the widest");
        assert!(matches!(wide(MAX_SPARSE_COLS + 1).validate(), Err(CubeError::Range { .. })));
        let Some(device) = testing::device(crate::Planes::Off) else { return };
        let grouped = Scales::new(Granularity::Group(GroupSize::G32), vec![1.0; 2], None);
        let tensor = TritTensor::from_trits(1, 64, &[1; 64], Encoding::TwoBit, grouped).expect("a tensor");
        assert!(matches!(SparseMatrix::pack(&device, &tensor), Err(CubeError::Range { got: 2, .. })));
    }
}
