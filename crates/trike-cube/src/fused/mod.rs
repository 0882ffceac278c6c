//! Products of one token fused with the preceding row operation, in one launch if that is faster.

mod kernel;

use cubecl::client::Client;
use cubecl::prelude::{CubeCount, CubeDim};
use half::f16;

use crate::capabilities::Capabilities;
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, unsupported};
use crate::linear::kernels::Form;
use crate::linear::{
    ActivationPrecision, ActivationShape, Activations, CubeTernaryMatrix, DecodeBlueprint, LinearBlueprint,
    TernaryLayout, TernaryProblem, check_outputs, dims_of, written,
};
use crate::ops::rows::{RowProblem, RowTarget, checked_rows, kernel::Form as RowForm};
use crate::ops::{RowBlueprint, RowInput, RowNorm, RowSource};
use crate::plan::{KernelProblem, Settings, Strategy};
use trike_core::Cost;

/// Maximum work per cube for repeating the row operation in each of them, in columns; a gated activation counts as four.
///
/// Predicted: a cube of 512 units computes the norm of 4,096 columns in about the latency of its first weights.
const MOST_WORK: usize = 16_384;

/// `y = rows(x) W^T`: a row operation that quantizes, and a product with its result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowLinearProblem {
    /// The row operation; its target is codes.
    pub rows: RowProblem,
    /// The product with its result.
    pub linear: TernaryProblem,
}

/// Kernel variants of [`RowLinearProblem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowLinearBlueprint {
    /// Two launches, each with its own inferred blueprint.
    Separate,
    /// One launch, in which every cube quantizes the row for itself: one token, one code row per token, two bits per weight.
    Fused {
        /// The row operation within a cube, using the units of the cube.
        rows: RowBlueprint,
        /// Groups of 32 units that split the columns.
        splits: usize,
    },
}

impl RowLinearProblem {
    /// Blocks of codes that fit in shared memory; a power of two, so that few kernels are compiled.
    fn room(&self) -> usize {
        self.linear.w.blocks().next_power_of_two()
    }

    fn fused_settings(&self, rows: &RowBlueprint, splits: usize, device: &Capabilities) -> Result<Settings> {
        let (x, w) = (&self.linear.x, &self.linear.w);
        if x.code_rows() != 1 || w.layout != TernaryLayout::TwoBit {
            let property = format!("{} code rows with TernaryLayout::{:?}", x.code_rows(), w.layout);
            return unsupported("fused product", property, "use RowLinearBlueprint::Separate");
        }
        check_len("units of a cube", 32 * splits, rows.units as usize)?;
        let of_rows = self.rows.settings(rows, device)?;
        let blueprint = LinearBlueprint::Decode(DecodeBlueprint { rows: 1, splits });
        let of_product = self.linear.settings(&blueprint, device)?;
        let room = self.room();
        let codes = 4 * (32 * room + 4 * room + 4 + 4 * room);
        Ok(Settings { units: [rows.units, 1], bindings: 9, ..of_product }
            .shared(of_rows.shared_bytes + of_product.shared_bytes + codes))
    }
}

impl KernelProblem for RowLinearProblem {
    type Blueprint = RowLinearBlueprint;
    const NAME: &'static str = "rows and ternary linear";

    fn validate(&self) -> Result<()> {
        self.rows.validate()?;
        self.linear.validate()?;
        check_len("columns of rows before a linear", self.linear.w.cols, self.rows.cols)?;
        check_len("rows before a linear", self.linear.x.tokens, self.rows.rows)?;
        if self.rows.target == RowTarget::Codes(self.linear.x.precision) {
            Ok(())
        } else {
            unsupported(Self::NAME, "rows that are not the codes of the product", "give both one precision")
        }
    }

    fn candidates(&self, device: &Capabilities) -> Vec<RowLinearBlueprint> {
        let of_column = if self.rows.source == RowSource::Plain { 1 } else { 4 };
        let mut all = Vec::with_capacity(2);
        let is_short = self.linear.x.code_rows() == 1 && of_column * self.rows.cols <= MOST_WORK;
        // Candidates for many tokens take long to compare.
        let product = if is_short { self.linear.candidates(device).into_iter().next() } else { None };
        if let Some(LinearBlueprint::Decode(DecodeBlueprint { rows: 1, splits })) = product {
            let units = 32 * splits as u32;
            let lanes = if self.rows.cols.is_multiple_of(4) { 4 } else { 1 };
            let planes = device.planes.is_some_and(|(_, most)| most <= units);
            all.push(RowLinearBlueprint::Fused { rows: RowBlueprint { units, planes, lanes }, splits });
        }
        all.push(RowLinearBlueprint::Separate);
        all
    }

    fn settings(&self, blueprint: &RowLinearBlueprint, device: &Capabilities) -> Result<Settings> {
        match blueprint {
            RowLinearBlueprint::Fused { rows, splits } => self.fused_settings(rows, *splits, device),
            RowLinearBlueprint::Separate => Ok(self.linear.plan(&Strategy::Inferred, device)?.1),
        }
    }

    fn cost(&self) -> Cost {
        let (rows, linear) = (self.rows.cost(), self.linear.cost());
        Cost { macs: rows.macs.saturating_add(linear.macs), bytes: rows.bytes.saturating_add(linear.bytes) }
    }
}

impl CubeDevice {
    /// `outs[i] = q(rows) W_i^T` for the parts of `w`: [`CubeDevice::quantize`] in `precision`, with the rotation of `w`, and
    /// [`CubeDevice::linear`]; for one token in a single launch if that is predicted to be faster.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::quantize`] and [`CubeDevice::linear`].
    pub fn quantized_linear(
        &self,
        input: RowInput<'_>,
        norm: Option<RowNorm<'_>>,
        precision: ActivationPrecision,
        w: &CubeTernaryMatrix,
        outs: &[&Buffer<f32>],
        strategy: &Strategy<RowLinearBlueprint>,
    ) -> Result<()> {
        self.row_linear((input, norm), precision, w, outs, false, strategy)
    }

    /// `outs[i] += q(rows) W_i^T`, as [`CubeDevice::quantized_linear`]: fuses a residual connection.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::quantized_linear`].
    pub fn quantized_linear_add(
        &self,
        input: RowInput<'_>,
        norm: Option<RowNorm<'_>>,
        precision: ActivationPrecision,
        w: &CubeTernaryMatrix,
        outs: &[&Buffer<f32>],
        strategy: &Strategy<RowLinearBlueprint>,
    ) -> Result<()> {
        self.row_linear((input, norm), precision, w, outs, true, strategy)
    }

    fn row_linear(
        &self,
        (input, norm): (RowInput<'_>, Option<RowNorm<'_>>),
        precision: ActivationPrecision,
        w: &CubeTernaryMatrix,
        outs: &[&Buffer<f32>],
        add: bool,
        strategy: &Strategy<RowLinearBlueprint>,
    ) -> Result<()> {
        let cols = w.form().cols;
        let tokens = checked_rows(&input, cols)?;
        if let Some(norm) = norm {
            check_len("weight of a norm", cols, norm.weight.len())?;
        }
        let rows = RowProblem {
            rows: tokens,
            cols,
            source: input.source(),
            norm: norm.is_some(),
            target: RowTarget::Codes(precision),
            rotation: w.rotation(),
        };
        let x = ActivationShape { tokens, cols, precision };
        let linear = TernaryProblem { x, w: w.form().clone(), add };
        let problem = RowLinearProblem { rows, linear };
        // For several tokens the product caches its own plan.
        let of_one = x.code_rows() == 1 || *strategy != Strategy::Inferred;
        let planned = of_one.then(|| problem.plan(strategy, self.capabilities())).transpose()?;
        let (first, second) = input.buffers();
        let weight = norm.map_or(second, |norm| norm.weight);
        // A cube may store its outputs before another one has read the row.
        let apart = ![first, second, weight].iter().any(|input| outs.iter().any(|out| out.overlaps(input)));
        let Some((RowLinearBlueprint::Fused { rows, splits }, settings)) = planned.filter(|_| apart) else {
            let codes = Activations::empty(self, x)?.with_rotation(w.rotation())?;
            self.quantize(input, norm, &codes, &Strategy::Inferred)?;
            return match add {
                true => self.linear_add(&codes, w, outs, &Strategy::Inferred),
                false => self.linear(&codes, w, outs, &Strategy::Inferred),
            };
        };
        let eps = norm.map_or(0.0, |norm| norm.eps);
        if !(eps >= 0.0 && eps.is_finite()) {
            return Err(CubeError::NonFinite { what: "eps of a norm", index: 0, value: eps });
        }
        check_outputs(&problem.linear, outs)?;
        let forms = (problem.linear.compiled(), problem.rows.form(&rows));
        let f16_scales = problem.linear.w.f16_scales;
        let key = (forms, splits, problem.room(), rows.lanes, f16_scales);
        let launch = Launch::new(RowLinearProblem::NAME, &key, settings);
        let call = Call { problem: &problem, x: [first, second, weight], w, outs, eps, forms, rows, splits };
        self.launch(&launch, &written(outs), |client, cubes, units| {
            if f16_scales {
                call.run::<f16>(client, cubes, units);
            } else {
                call.run::<f32>(client, cubes, units);
            }
        })
    }
}

/// Checked arguments of a launch.
struct Call<'a> {
    problem: &'a RowLinearProblem,
    /// Input, second input, and weight of the norm; placeholders if absent.
    x: [&'a Buffer<f32>; 3],
    w: &'a CubeTernaryMatrix,
    outs: &'a [&'a Buffer<f32>],
    eps: f32,
    forms: (Form, RowForm),
    rows: RowBlueprint,
    splits: usize,
}

impl Call<'_> {
    fn run<S: cubecl::prelude::Float>(&self, client: &Client, cubes: CubeCount, units: CubeDim) {
        let n = self.rows.lanes;
        let [x, other, weight] = self.x.map(|buffer| buffer.vectors(n));
        let out = |part: usize| self.outs.get(part).unwrap_or(&self.outs[0]).arg();
        let w = self.w;
        // SAFETY: the lengths of the weights come from `CubeTernaryMatrix::pack`, those of the inputs were checked against one row
        // of its columns, which `lanes` divides (`RowProblem::settings`), and those of the outputs by `check_outputs`. Shared
        // memory has room for all blocks (`RowLinearProblem::room`), and the kernel's loops end at `blocks` and `cols`.
        unsafe {
            kernel::fused::launch_unchecked::<S>(
                client,
                cubes,
                units,
                n,
                w.codes.vectors(4),
                w.scales.arg(),
                w.means.as_ref().unwrap_or(&w.scales).arg(),
                x,
                other,
                weight,
                out(0),
                out(1),
                out(2),
                dims_of(w.form(), 1),
                self.problem.rows.cols as u32,
                self.eps,
                self.forms.0,
                self.forms.1,
                self.splits,
                self.problem.room(),
            );
        }
    }
}
