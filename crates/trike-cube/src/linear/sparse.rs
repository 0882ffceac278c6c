//! Linears with sparse ternary weights.

use super::kernels::{bitmap, sparse};
use super::sparse_matrix::{SparseForm, SparseLayout, SparseMatrix, Weights};
use super::{activations::Activations, shape::ActivationShape};
use crate::capabilities::Capabilities;
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_range, check_rotation, check_shape, unsupported};
use crate::plan::{KernelProblem, Settings, Strategy};
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

impl KernelProblem for SparseProblem {
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

impl CubeDevice {
    /// `out = x W^T`, as [`CubeDevice::linear`].
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] when the columns or the output do not match, [`CubeError::Unsupported`] for activations with
    /// factors per group of columns, and those of [`KernelProblem::plan`] and of the launch.
    pub fn sparse(
        &self,
        x: &Activations,
        w: &SparseMatrix,
        out: &Buffer<f32>,
        strategy: &Strategy<SparseBlueprint>,
    ) -> Result<()> {
        self.sparse_linear(x, w, out, false, strategy)
    }

    /// `out += x W^T`, as [`CubeDevice::sparse`].
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::sparse`].
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
        check_rotation("activations of a sparse linear", None, x.rotation(), "quantize them without one")?;
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
