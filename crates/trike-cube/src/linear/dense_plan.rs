//! Kernel choice and launch of dense linears.

use super::dense::{CubeDenseMatrix, DenseForm, DenseKind};
use super::kernels::dense::{self, DenseCompiled, ScaleMode};
use super::kernels::dense_mma;
use crate::capabilities::Capabilities;
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_range, check_shape};
use crate::plan::{KernelProblem, Settings, Strategy, spread};
use trike_core::Cost;

/// One dense linear: `tokens x cols` f32 activations times `rows x cols` weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DenseProblem {
    /// Number of tokens: rows of the activations.
    pub tokens: usize,
    /// The weights.
    pub w: DenseForm,
    /// Adds the products to the existing output.
    pub add: bool,
}

/// Kernel variants of a dense linear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DenseBlueprint {
    /// Few tokens: the 64 units of a cube split the columns of two rows.
    Decode {
        /// Tokens per cube: 1, 2, 4 or 8.
        tokens: usize,
    },
    /// Many tokens: 64 rows times 64 tokens per cube, 16 columns at a time through shared memory.
    Tiled,
    /// Many tokens times f16, bf16 or int8 with a scale per row, on tf32 matrix instructions: activations are rounded to 11 bits.
    Mma {
        /// Tokens per cube: 32, 64 or 128.
        tokens: usize,
    },
}

impl DenseProblem {
    /// Why [`DenseBlueprint::Mma`] does not support the problem, if so.
    fn without_mma(&self, device: &Capabilities) -> Option<&'static str> {
        if !device.tf32_mma {
            return Some("matrix instructions on tf32");
        }
        if !device.ptx || !device.async_copy || device.planes != Some((32, 32)) {
            return Some("asynchronous copies");
        }
        let exact = self.w.kind != DenseKind::F32;
        let scaled = matches!(self.compiled().scale, ScaleMode::None | ScaleMode::Row);
        match exact && scaled && self.w.cols.is_multiple_of(dense_mma::STEP) {
            true => None,
            false => Some(
                "weights that are exact in tf32, with at most a scale per row, and columns in steps of 32",
            ),
        }
    }

    fn compiled(&self) -> DenseCompiled {
        let scale = match self.w.kind {
            DenseKind::Int8 if self.w.group == self.w.cols => ScaleMode::Row,
            DenseKind::Int8 if self.w.group.is_multiple_of(4) => ScaleMode::Word,
            DenseKind::Int8 => ScaleMode::Weight,
            DenseKind::F32 | DenseKind::F16 | DenseKind::Bf16 => ScaleMode::None,
        };
        DenseCompiled { kind: self.w.kind, scale, add: self.add }
    }
}

impl KernelProblem for DenseProblem {
    type Blueprint = DenseBlueprint;

    const NAME: &'static str = "dense linear";

    fn validate(&self) -> Result<()> {
        self.w.validate()?;
        check_shape("activations of a dense linear", self.tokens, self.w.cols)?;
        check_shape("output of a dense linear", self.tokens, self.w.rows)?;
        Ok(())
    }

    fn candidates(&self, device: &Capabilities) -> Vec<DenseBlueprint> {
        let decode = DenseBlueprint::Decode { tokens: self.tokens.next_power_of_two().min(8) };
        let tokens = self.tokens.next_power_of_two().clamp(dense_mma::OF_PLANE, 128);
        let mma = DenseBlueprint::Mma { tokens };
        let fits = self.settings(&mma, device).is_ok_and(|s| s.check(Self::NAME, device).is_ok());
        let many = fits.then_some(mma).into_iter().chain([DenseBlueprint::Tiled]);
        if self.tokens <= 8 {
            [decode].into_iter().chain(many).collect()
        } else {
            many.chain([decode]).collect()
        }
    }

    fn settings(&self, blueprint: &DenseBlueprint, device: &Capabilities) -> Result<Settings> {
        let side = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(match *blueprint {
            DenseBlueprint::Decode { tokens } => {
                check_range("tokens of a cube", 1, 8, tokens)?;
                if !tokens.is_power_of_two() {
                    return Err(CubeError::NotMultiple { what: "tokens of a cube", unit: 2, got: tokens });
                }
                // An LM head has more pairs of rows than a device allows cubes along one dimension.
                let [x, z, _] = spread(self.w.rows.div_ceil(dense::ROWS));
                Settings {
                    cubes: [x, side(self.tokens.div_ceil(tokens)), z],
                    units: [dense::UNITS as u32, 1],
                    shared_bytes: dense::shared_bytes(tokens),
                    bindings: 4,
                }
            }
            DenseBlueprint::Tiled => Settings {
                cubes: [side(self.w.rows.div_ceil(dense::SIDE)), side(self.tokens.div_ceil(dense::SIDE)), 1],
                units: [16, 16],
                shared_bytes: dense::TILED_SHARED_BYTES,
                bindings: 4,
            },
            DenseBlueprint::Mma { tokens } => {
                if let Some(feature) = self.without_mma(device) {
                    let device = device.name.clone();
                    return Err(CubeError::Feature { kernel: Self::NAME, feature, device });
                }
                check_range("tokens of a cube", dense_mma::OF_PLANE, 128, tokens)?;
                if !tokens.is_power_of_two() {
                    return Err(CubeError::NotMultiple { what: "tokens of a cube", unit: 32, got: tokens });
                }
                let rows = self.w.rows.div_ceil(dense_mma::rows_of(tokens));
                Settings {
                    cubes: [side(rows), side(self.tokens.div_ceil(tokens)), 1],
                    units: [32, dense_mma::planes(tokens) as u32],
                    shared_bytes: dense_mma::shared_bytes(self.w.kind, tokens),
                    bindings: 4,
                }
            }
        })
    }

    fn cost(&self) -> Cost {
        let [tokens, rows, cols] = [self.tokens, self.w.rows, self.w.cols].map(|n| n as u64);
        let outputs = if self.add { 8 } else { 4 } * tokens * rows;
        Cost {
            macs: tokens.saturating_mul(rows * cols),
            bytes: (self.w.bytes() as u64).saturating_add(4 * tokens * cols).saturating_add(outputs),
        }
    }
}

impl CubeDevice {
    /// `out = x W^T`, with `x` of `tokens x cols` and `out` of `tokens x rows`, row-major; `tokens = x.len() / cols`.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotMultiple`] and [`CubeError::Length`] for wrong lengths, [`CubeError::Overlap`] when `out` shares memory with
    /// `x`, and errors of [`KernelProblem::plan`] and of the launch.
    pub fn dense(
        &self,
        x: &Buffer<f32>,
        w: &CubeDenseMatrix,
        out: &Buffer<f32>,
        strategy: &Strategy<DenseBlueprint>,
    ) -> Result<()> {
        self.dense_linear(x, w, out, false, strategy)
    }

    /// `out += x W^T`, as [`CubeDevice::dense`].
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::dense`].
    pub fn dense_add(
        &self,
        x: &Buffer<f32>,
        w: &CubeDenseMatrix,
        out: &Buffer<f32>,
        strategy: &Strategy<DenseBlueprint>,
    ) -> Result<()> {
        self.dense_linear(x, w, out, true, strategy)
    }

    fn dense_linear(
        &self,
        x: &Buffer<f32>,
        w: &CubeDenseMatrix,
        out: &Buffer<f32>,
        add: bool,
        strategy: &Strategy<DenseBlueprint>,
    ) -> Result<()> {
        let form = w.form();
        if !x.len().is_multiple_of(form.cols) {
            return Err(CubeError::NotMultiple {
                what: "activations of a dense linear",
                unit: form.cols,
                got: x.len(),
            });
        }
        let problem = DenseProblem { tokens: x.len() / form.cols, w: form, add };
        problem.validate()?;
        check_len("output of a dense linear", problem.tokens * form.rows, out.len())?;
        if out.overlaps(x) {
            return Err(CubeError::Overlap { what: "activations and output of a dense linear" });
        }
        let (blueprint, settings) = problem.plan(strategy, self.capabilities())?;
        let compiled = problem.compiled();
        let launch = Launch::new(DenseProblem::NAME, &(blueprint, compiled), settings);
        let [tokens, rows, cols] = [problem.tokens, form.rows, form.cols].map(|n| n as u32);
        let (stride, group, groups) = (form.stride() as u32, form.group as u32, form.groups() as u32);
        self.launch(&launch, &[out], |client, cubes, units| match blueprint {
            DenseBlueprint::Decode { tokens: each } => {
                // SAFETY: the lengths of the weights come from `CubeDenseMatrix::upload`, those of `x` and `out` were checked
                // above; the kernel clamps rows and tokens to them and checks columns. Its loop ends at `stride`.
                unsafe {
                    dense::dense_decode::launch_unchecked(
                        client,
                        cubes,
                        units,
                        w.words.arg(),
                        w.scales.arg(),
                        x.arg(),
                        out.arg(),
                        tokens,
                        rows,
                        cols,
                        stride,
                        group,
                        groups,
                        compiled,
                        each,
                    );
                }
            }
            DenseBlueprint::Tiled => {
                // SAFETY: as above.
                unsafe {
                    dense::dense_tiled::launch_unchecked(
                        client,
                        cubes,
                        units,
                        w.words.arg(),
                        w.scales.arg(),
                        x.arg(),
                        out.arg(),
                        tokens,
                        rows,
                        cols,
                        stride,
                        group,
                        groups,
                        compiled,
                    );
                }
            }
            DenseBlueprint::Mma { tokens: each } => {
                let words = form.kind.lane_words();
                // SAFETY: as above; columns are a multiple of those of a step, so no vector is past the end of a row.
                unsafe {
                    dense_mma::dense_mma::launch_unchecked(
                        client,
                        cubes,
                        units,
                        words,
                        w.words.vectors(words),
                        w.scales.arg(),
                        x.vectors(4),
                        out.arg(),
                        tokens,
                        rows,
                        cols,
                        compiled,
                        each,
                    );
                }
            }
        })
    }
}
