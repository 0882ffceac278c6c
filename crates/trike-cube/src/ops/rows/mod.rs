//! Fused row operations: gate, RMSNorm, and output as floats or as codes for the ternary kernels, in one kernel.

pub(crate) mod kernel;

use cubecl::client::Client;
use cubecl::prelude::{CubeCount, CubeDim};

use crate::capabilities::Capabilities;
use crate::device::{AnyBuffer, Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_shape, unsupported};
use crate::linear::{ActivationPrecision, ActivationShape, Activations};
use crate::plan::{KernelProblem, Settings, Strategy, spread};
use kernel::Form;
use trike_core::Cost;
use trike_core::GatedActivation;
use trike_trit::Hadamard;

/// Source of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSource {
    /// One input buffer.
    Plain,
    /// `activation(gate) * up`.
    Gated(GatedActivation),
}

/// Output format of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowTarget {
    /// f32; only with a norm.
    Floats,
    /// Codes for the ternary kernels.
    Codes(ActivationPrecision),
}

/// A fused operation on `rows x cols` values before a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowProblem {
    /// Tokens, or tokens times heads for a norm of heads.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Source of the rows.
    pub source: RowSource,
    /// Rows are normalized.
    pub norm: bool,
    /// Output format.
    pub target: RowTarget,
    /// Rotation before quantization.
    pub rotation: Option<Hadamard>,
}

/// Kernel variants of [`RowProblem`], with one cube per row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowBlueprint {
    /// Units per cube, a power of two, at least 32 (64 with factors per group).
    pub units: u32,
    /// Reductions use plane operations.
    pub planes: bool,
    /// Elements per load: 4, or 1 if the columns are not a multiple of 4.
    pub lanes: usize,
}

/// Maximum units per cube: more add synchronization and no bandwidth.
const MOST_UNITS: u32 = 512;

impl RowProblem {
    fn codes(&self) -> Option<ActivationShape> {
        match self.target {
            RowTarget::Floats => None,
            RowTarget::Codes(precision) => {
                Some(ActivationShape { tokens: self.rows, cols: self.cols, precision })
            }
        }
    }

    /// Minimum units per cube.
    fn fewest_units(&self) -> u32 {
        // A group of 256 columns is 64 quads and must not be split across iterations; nor must a rotation block.
        let grouped = self.codes().is_some_and(|shape| shape.precision.group().is_some());
        let of_block = self.rotation.map_or(0, |rotation| rotation.block() as u32 / 4);
        of_block.max(if grouped { 64 } else { 32 })
    }

    pub(crate) fn form(&self, blueprint: &RowBlueprint) -> Form {
        let precision = self.codes().map(|shape| shape.precision);
        Form {
            gate: match self.source {
                RowSource::Gated(activation) => Some(activation),
                RowSource::Plain => None,
            },
            norm: self.norm,
            slices: precision.map_or(1, ActivationPrecision::slices),
            group: precision.and_then(ActivationPrecision::group).unwrap_or(0),
            units: blueprint.units as usize,
            planes: blueprint.planes,
            rotation: self.rotation.map_or(0, Hadamard::block),
        }
    }
}

impl KernelProblem for RowProblem {
    type Blueprint = RowBlueprint;
    const NAME: &'static str = "rows";

    fn validate(&self) -> Result<()> {
        check_shape("rows", self.rows, self.cols)?;
        if let Some(unit) = self.rotation.map(Hadamard::block) {
            if !self.cols.is_multiple_of(unit) {
                return Err(CubeError::NotMultiple { what: "columns of rotated rows", unit, got: self.cols });
            }
            if self.codes().is_none() {
                let property = format!("rows of floats rotated in blocks of {unit}");
                return unsupported(Self::NAME, property, "quantize the rows, or leave the rotation out");
            }
        }
        match self.codes() {
            Some(shape) => shape.validate(),
            None if self.norm => Ok(()),
            None => {
                unsupported(Self::NAME, "rows of floats without a norm", "add a norm, or quantize the rows")
            }
        }
    }

    fn candidates(&self, device: &Capabilities) -> Vec<RowBlueprint> {
        let quads = self.cols.div_ceil(4).next_power_of_two();
        let most = MOST_UNITS
            .max(self.fewest_units())
            .min(device.max_units.max(1))
            .min(device.max_unit_sides[0].max(1));
        // The largest power of two within the device's limit.
        let most = 1 << most.ilog2();
        // Two quads per unit, so that their loads overlap.
        let units = u32::try_from(quads / 2).unwrap_or(u32::MAX).clamp(self.fewest_units().min(most), most);
        let lanes = if self.cols.is_multiple_of(4) { 4 } else { 1 };
        let mut all = Vec::new();
        // The rotation uses shared memory per unit, which may be too small for the preferred number of units.
        let fewest = if self.rotation.is_some() { self.fewest_units().min(units) } else { units };
        let mut units = units;
        while units >= fewest {
            let whole = device.planes.is_some_and(|(_, most)| most <= units);
            all.extend(whole.then_some(RowBlueprint { units, planes: true, lanes }));
            all.push(RowBlueprint { units, planes: false, lanes });
            units /= 2;
        }
        all
    }

    fn settings(&self, blueprint: &RowBlueprint, device: &Capabilities) -> Result<Settings> {
        let RowBlueprint { units, planes, lanes } = *blueprint;
        if !units.is_power_of_two() || units < self.fewest_units() {
            return Err(CubeError::NotMultiple {
                what: "units of a row (power of two)",
                unit: self.fewest_units() as usize,
                got: units as usize,
            });
        }
        if !matches!(lanes, 1 | 4) || !self.cols.is_multiple_of(lanes) {
            return Err(CubeError::NotMultiple { what: "columns of rows", unit: lanes, got: self.cols });
        }
        if planes {
            crate::plan::check_planes(Self::NAME, units, device)?;
        }
        let form = self.form(blueprint);
        let (arrays, bindings) = match self.target {
            RowTarget::Floats => (1, 4),
            RowTarget::Codes(_) => (2 + form.slices + if form.rotation > 4 { 4 } else { 0 }, 6),
        };
        let settings = Settings { cubes: spread(self.rows), ..Settings::linear(1, units, bindings) };
        Ok(settings.shared(4 * arrays * units as usize))
    }

    fn cost(&self) -> Cost {
        let count = (self.rows as u64).saturating_mul(self.cols as u64);
        let (read, mut operations) = match self.source {
            RowSource::Plain => (4, 0),
            RowSource::Gated(GatedActivation::SquaredReLu) => (8, 3),
            RowSource::Gated(GatedActivation::SiLu) => (8, 20),
        };
        operations += if self.norm { 4 } else { 0 };
        operations += self.rotation.map_or(0, |rotation| u64::from(rotation.block().ilog2()) + 1);
        let written = match self.codes() {
            None => 4 * count,
            Some(shape) => {
                operations += 4 + 3 * shape.precision.slices() as u64;
                let sums = 4 * (shape.code_rows() * shape.sum_stride()) as u64;
                4 * shape.code_words() as u64 + sums + 4 * shape.factors() as u64
            }
        };
        let weight = if self.norm { 4 * self.cols as u64 } else { 0 };
        let bytes = count.saturating_mul(read).saturating_add(written).saturating_add(weight);
        Cost::of_operations(count.saturating_mul(operations), bytes)
    }
}

/// Input buffers of rows.
#[derive(Clone, Copy, Debug)]
pub enum RowInput<'a> {
    /// `rows x cols` values.
    Plain(&'a Buffer<f32>),
    /// `activation(gate) * up`.
    Gated {
        /// Input of the activation.
        gate: &'a Buffer<f32>,
        /// Second factor, as long as the gate.
        up: &'a Buffer<f32>,
        /// The activation.
        activation: GatedActivation,
    },
}

impl<'a> RowInput<'a> {
    pub(crate) fn source(&self) -> RowSource {
        match self {
            Self::Plain(_) => RowSource::Plain,
            Self::Gated { activation, .. } => RowSource::Gated(*activation),
        }
    }

    /// The first buffer, and the second or, as a placeholder, the first.
    pub(crate) fn buffers(&self) -> (&'a Buffer<f32>, &'a Buffer<f32>) {
        match *self {
            Self::Plain(x) => (x, x),
            Self::Gated { gate, up, .. } => (gate, up),
        }
    }
}

/// An RMSNorm: `x / sqrt(mean(x^2) + eps) * weight` (Zhang and Sennrich, 2019).
#[derive(Clone, Copy, Debug)]
pub struct RowNorm<'a> {
    /// One weight per column.
    pub weight: &'a Buffer<f32>,
    /// Added to the mean square; finite and at least 0.
    pub eps: f32,
}

impl CubeDevice {
    /// RMSNorm of rows with as many columns as the weight.
    ///
    /// Squares are summed in f32, in an order that depends only on the blueprint.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotMultiple`] when the input is not a whole number of rows, [`CubeError::Length`] when the output has
    /// another length, [`CubeError::NonFinite`] for an invalid `eps`, [`CubeError::Overlap`] when the output shares memory with
    /// an input, and those of [`KernelProblem::plan`] and of the launch.
    pub fn rms_norm(
        &self,
        input: RowInput<'_>,
        norm: RowNorm<'_>,
        out: &Buffer<f32>,
        strategy: &Strategy<RowBlueprint>,
    ) -> Result<()> {
        let cols = norm.weight.len();
        let rows = checked_rows(&input, cols)?;
        check_len("output of a norm", rows * cols, out.len())?;
        let problem = RowProblem {
            rows,
            cols,
            source: input.source(),
            norm: true,
            target: RowTarget::Floats,
            rotation: None,
        };
        self.rows(&problem, &input, Some(norm), Outputs::Floats(out), strategy)
    }

    /// Quantizes rows for the ternary kernels, after an optional norm. `out` determines their length and the rotation before
    /// quantization, which is bit-identical to [`Hadamard::apply`].
    ///
    /// For equal inputs the codes are bit-identical to those of `trike-cpu` if the device's division conforms to IEEE 754 (it
    /// does on CUDA and the software driver; Vulkan allows 2.5 ULP, which can change the code of a value halfway between two
    /// codes). A row with a non-finite value gets the factor NaN and zero codes.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::rms_norm`]; a norm's weight must have one element per column of `out`.
    pub fn quantize(
        &self,
        input: RowInput<'_>,
        norm: Option<RowNorm<'_>>,
        out: &Activations,
        strategy: &Strategy<RowBlueprint>,
    ) -> Result<()> {
        let shape = out.shape();
        check_len("rows to quantize", shape.tokens, checked_rows(&input, shape.cols)?)?;
        if let Some(norm) = norm {
            check_len("weight of a norm", shape.cols, norm.weight.len())?;
        }
        let target = RowTarget::Codes(shape.precision);
        let problem = RowProblem {
            rows: shape.tokens,
            cols: shape.cols,
            source: input.source(),
            norm: norm.is_some(),
            target,
            rotation: out.rotation(),
        };
        self.rows(&problem, &input, norm, Outputs::Codes(out), strategy)
    }

    fn rows(
        &self,
        problem: &RowProblem,
        input: &RowInput<'_>,
        norm: Option<RowNorm<'_>>,
        outputs: Outputs<'_>,
        strategy: &Strategy<RowBlueprint>,
    ) -> Result<()> {
        let eps = norm.map_or(0.0, |norm| norm.eps);
        if !(eps >= 0.0 && eps.is_finite()) {
            return Err(CubeError::NonFinite { what: "eps of a norm", index: 0, value: eps });
        }
        let (x, other) = input.buffers();
        let weight = norm.map_or(other, |norm| norm.weight);
        let written: Vec<&dyn AnyBuffer> = match outputs {
            Outputs::Floats(out) => {
                if [x, other, weight].iter().any(|input| input.overlaps(out)) {
                    return Err(CubeError::Overlap { what: "input and output of a norm" });
                }
                vec![out]
            }
            Outputs::Codes(out) => vec![&out.codes, &out.sums, &out.factors],
        };
        let (blueprint, settings) = problem.plan(strategy, self.capabilities())?;
        let form = problem.form(&blueprint);
        let args = Args { x, other, weight, problem, eps, form, lanes: blueprint.lanes };
        let launch = Launch::new(RowProblem::NAME, &(form, problem.target, blueprint.lanes), settings);
        self.launch(&launch, &written, |client, cubes, units| match outputs {
            Outputs::Floats(out) => args.floats(client, cubes, units, out),
            Outputs::Codes(out) => args.codes(client, cubes, units, out),
        })
    }
}

/// The number of rows of an input; its buffers must have equal lengths.
pub(crate) fn checked_rows(input: &RowInput<'_>, cols: usize) -> Result<usize> {
    let (x, other) = input.buffers();
    check_len("second input of rows", x.len(), other.len())?;
    if x.len().is_multiple_of(cols) {
        Ok(x.len() / cols)
    } else {
        Err(CubeError::NotMultiple { what: "elements of rows", unit: cols, got: x.len() })
    }
}

#[derive(Clone, Copy)]
enum Outputs<'a> {
    Floats(&'a Buffer<f32>),
    Codes(&'a Activations),
}

/// Common arguments of the row kernels.
struct Args<'a> {
    x: &'a Buffer<f32>,
    other: &'a Buffer<f32>,
    weight: &'a Buffer<f32>,
    problem: &'a RowProblem,
    eps: f32,
    form: Form,
    lanes: usize,
}

impl Args<'_> {
    fn shape(&self) -> (u32, u32) {
        // `check_shape` checked that the product fits.
        (self.problem.rows as u32, self.problem.cols as u32)
    }

    fn floats(&self, client: &Client, cubes: CubeCount, units: CubeDim, out: &Buffer<f32>) {
        let (x, other, weight, n) = (
            self.x.vectors(self.lanes),
            self.other.vectors(self.lanes),
            self.weight.vectors(self.lanes),
            self.lanes,
        );
        let (rows, cols) = self.shape();
        // SAFETY: `checked_rows` and `rms_norm` checked every length against `rows x cols`, the kernel checks every row against
        // `rows` and every column against `cols`, and `lanes` divides `cols` (`RowProblem::settings`).
        unsafe {
            kernel::floats::launch_unchecked(
                client,
                cubes,
                units,
                n,
                x,
                other,
                weight,
                out.vectors(n),
                rows,
                cols,
                self.eps,
                self.form,
            );
        };
    }

    fn codes(&self, client: &Client, cubes: CubeCount, units: CubeDim, out: &Activations) {
        let (x, other, weight, n) = (
            self.x.vectors(self.lanes),
            self.other.vectors(self.lanes),
            self.weight.vectors(self.lanes),
            self.lanes,
        );
        let (codes, sums, factors) = (out.codes.arg(), out.sums.arg(), out.factors.arg());
        let (rows, cols) = self.shape();
        // SAFETY: as in `floats`; the lengths of the outputs come from `ActivationShape`, which has the same rows and columns.
        unsafe {
            kernel::codes::launch_unchecked(
                client, cubes, units, n, x, other, weight, codes, sums, factors, rows, cols, self.eps,
                self.form,
            );
        };
    }
}
