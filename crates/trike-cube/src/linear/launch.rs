//! `y = x W^T` on a device.

use cubecl::client::Client;
use cubecl::prelude::{CubeCount, CubeDim, Numeric};
use half::f16;

use super::activations::Activations;
use super::blueprint::{DecodeBlueprint, LinearBlueprint, SplitBlueprint};
use super::kernels::{self, DimsLaunch, Form, MmaShape, WmmaElement, WmmaShape};
use super::plan::TernaryProblem;
use super::ternary::{CubeTernaryMatrix, Shared, TILE, TernaryForm, TernaryLayout};
use crate::device::{AnyBuffer, Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_rotation};
use crate::plan::{KernelProblem, Settings, Strategy, spread};

impl CubeDevice {
    /// `outs[i] = x W_i^T` for the parts of `w`, each `tokens x rows` of its part, row-major.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] when the columns or an output do not match, [`CubeError::Mismatch`] when the rotations of `x` and
    /// `w` differ, and those of [`KernelProblem::plan`] and of the launch.
    pub fn linear(
        &self,
        x: &Activations,
        w: &CubeTernaryMatrix,
        outs: &[&Buffer<f32>],
        strategy: &Strategy<LinearBlueprint>,
    ) -> Result<()> {
        self.ternary_linear(x, w, outs, false, strategy)
    }

    /// `outs[i] += x W_i^T`, as [`CubeDevice::linear`]: fuses a residual connection.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::linear`].
    pub fn linear_add(
        &self,
        x: &Activations,
        w: &CubeTernaryMatrix,
        outs: &[&Buffer<f32>],
        strategy: &Strategy<LinearBlueprint>,
    ) -> Result<()> {
        self.ternary_linear(x, w, outs, true, strategy)
    }

    fn ternary_linear(
        &self,
        x: &Activations,
        w: &CubeTernaryMatrix,
        outs: &[&Buffer<f32>],
        add: bool,
        strategy: &Strategy<LinearBlueprint>,
    ) -> Result<()> {
        let remedy = "quantize them with the rotation of the weights";
        check_rotation("activations of a linear", w.rotation(), x.rotation(), remedy)?;
        let problem = TernaryProblem { x: x.shape(), w: w.form().clone(), add };
        check_outputs(&problem, outs)?;
        let blueprint = match *strategy {
            Strategy::Forced(blueprint) => blueprint,
            Strategy::Inferred => self.tuning().planned(&problem, || match problem.tuned(self) {
                Some(measured) => Ok(measured),
                None => Ok(problem.plan(&Strategy::Inferred, self.capabilities())?.0),
            })?,
        };
        let (blueprint, settings) = problem.plan(&Strategy::Forced(blueprint), self.capabilities())?;
        let form = problem.compiled();
        let args = Args { x, w, outs, dims: &problem.w, code_rows: problem.x.code_rows() };
        let launch = Launch::new(
            TernaryProblem::NAME,
            &(blueprint, form, problem.w.f16_scales, problem.w.layout),
            settings,
        );
        match blueprint {
            LinearBlueprint::Split(SplitBlueprint { cubes, .. }) => {
                let scratch = self.empty::<f32>(problem.scratch_numbers(cubes)?)?;
                let first = Args { outs: &[&scratch], ..args };
                self.launch(&launch, &[&scratch], |client, grid, units| {
                    first.run(client, grid, units, form, blueprint, &scratch);
                })?;
                self.combine_columns(&problem, &args, &scratch, form, cubes)
            }
            LinearBlueprint::Mma(shape) if shape.cubes > 1 => {
                let scratch = self.empty::<f32>(problem.mma_scratch(shape)?)?;
                self.launch(&launch, &written(outs), |client, grid, units| {
                    args.run(client, grid, units, form, blueprint, &scratch);
                })
            }
            _ => self.launch(&launch, &written(outs), |client, grid, units| {
                args.run(client, grid, units, form, blueprint, outs[0]);
            }),
        }
    }

    /// Launches the second kernel of split columns, which adds up the partial sums of the cubes.
    fn combine_columns(
        &self,
        problem: &TernaryProblem,
        args: &Args<'_>,
        scratch: &Buffer<f32>,
        form: Form,
        cubes: usize,
    ) -> Result<()> {
        let outputs = problem.x.tokens * problem.w.tiles() * TILE;
        let grid = spread(outputs.div_ceil(kernels::combine::UNITS as usize));
        let settings = Settings { cubes: grid, ..Settings::linear(1, kernels::combine::UNITS, 7) };
        let launch = Launch::new("ternary linear/combine", &(form, problem.w.f16_scales), settings);
        self.launch(&launch, &written(args.outs), |client, grid, units| {
            if problem.w.f16_scales {
                args.combine::<f16>(client, grid, units, scratch, form, cubes);
            } else {
                args.combine::<f32>(client, grid, units, scratch, form, cubes);
            }
        })
    }
}

/// Checks the outputs of a problem: one per part, with matching lengths, and not overlapping.
pub(crate) fn check_outputs(problem: &TernaryProblem, outs: &[&Buffer<f32>]) -> Result<()> {
    check_len("outputs of a linear", problem.w.parts.len(), outs.len())?;
    for (i, (out, rows)) in outs.iter().zip(&problem.w.parts).enumerate() {
        let expected = problem.x.tokens.checked_mul(*rows);
        let overflow = CubeError::Shape { what: "output of a linear", rows: problem.x.tokens, cols: *rows };
        check_len("output of a linear", expected.ok_or(overflow)?, out.len())?;
        if outs[..i].iter().any(|other| other.overlaps(out)) {
            return Err(CubeError::Overlap { what: "outputs of a linear" });
        }
    }
    Ok(())
}

/// Shapes of a launch.
pub(crate) fn dims_of(w: &TernaryForm, code_rows: usize) -> DimsLaunch {
    let rows = |part: usize| w.parts.get(part).copied().unwrap_or(0);
    let tiles = |parts: usize| (0..parts).map(|part| rows(part).div_ceil(TILE)).sum::<usize>();
    DimsLaunch::new(
        w.blocks() as u32,
        w.groups() as u32,
        code_rows as u32,
        tiles(1) as u32,
        tiles(2) as u32,
        rows(0) as u32,
        rows(1) as u32,
        rows(2) as u32,
    )
}

/// The outputs as the written buffers of a launch.
pub(crate) fn written<'a>(outs: &'a [&'a Buffer<f32>]) -> Vec<&'a dyn AnyBuffer> {
    outs.iter().map(|&out| out as &dyn AnyBuffer).collect()
}

/// The buffers of a launch.
#[derive(Clone, Copy)]
struct Args<'a> {
    x: &'a Activations,
    w: &'a CubeTernaryMatrix,
    outs: &'a [&'a Buffer<f32>],
    dims: &'a TernaryForm,
    code_rows: usize,
}

impl Args<'_> {
    /// An output, or the first one as a placeholder: a kernel compiled for fewer parts does not access the others.
    fn out(&self, part: usize) -> &Buffer<f32> {
        self.outs.get(part).unwrap_or(&self.outs[0])
    }

    fn dims(&self) -> DimsLaunch {
        dims_of(self.dims, self.code_rows)
    }

    /// Runs the kernel of a blueprint; with [`LinearBlueprint::Split`], the first of the two. `scratch` is a placeholder unless the
    /// cubes of [`LinearBlueprint::Mma`] split the columns.
    fn run(
        &self,
        client: &Client,
        grid: CubeCount,
        units: CubeDim,
        form: Form,
        blueprint: LinearBlueprint,
        scratch: &Buffer<f32>,
    ) {
        if self.dims.f16_scales {
            self.run_as::<f16>(client, grid, units, form, blueprint, scratch);
        } else {
            self.run_as::<f32>(client, grid, units, form, blueprint, scratch);
        }
    }

    fn run_as<S: cubecl::prelude::Float>(
        &self,
        client: &Client,
        grid: CubeCount,
        units: CubeDim,
        form: Form,
        blueprint: LinearBlueprint,
        scratch: &Buffer<f32>,
    ) {
        let (decode, cubes) = match blueprint {
            LinearBlueprint::Split(SplitBlueprint { decode, cubes }) => (decode, cubes),
            LinearBlueprint::Decode(decode) => (decode, 1),
            LinearBlueprint::Mma(shape) => return self.mma::<S>(client, grid, units, form, shape, scratch),
            LinearBlueprint::Tiled => return self.tiled::<S>(client, grid, units, form),
            LinearBlueprint::Wmma(shape) => return self.wmma::<S>(client, grid, units, form, shape),
        };
        if self.dims.layout == TernaryLayout::Base3 {
            self.base3::<S>(client, grid, units, form, decode, cubes);
        } else {
            self.decode::<S>(client, grid, units, form, decode, cubes);
        }
    }

    fn decode<S: cubecl::prelude::Float>(
        &self,
        client: &Client,
        cubes: CubeCount,
        units: CubeDim,
        form: Form,
        b: DecodeBlueprint,
        split_cubes: usize,
    ) {
        let (scales, means) = (self.w.scales.arg(), self.w.means.as_ref().unwrap_or(&self.w.scales).arg());
        // SAFETY: the lengths of the weights come from `CubeTernaryMatrix::pack`, those of the activations from `ActivationShape`,
        // those of the outputs were checked above, and with split columns the only output is a scratch buffer of
        // `TernaryProblem::scratch_numbers`; all match `TernaryProblem`, and the kernel clamps code rows and groups to them.
        // Its loops end at `blocks` and at the number of outputs.
        unsafe {
            kernels::decode::decode::launch_unchecked::<S>(
                client,
                cubes,
                units,
                self.w.codes.vectors(4),
                scales,
                means,
                self.x.codes.vectors(4),
                self.x.sums.arg(),
                self.x.factors.arg(),
                self.w.index.as_ref().unwrap_or(&self.w.codes).arg(),
                self.out(0).arg(),
                self.out(1).arg(),
                self.out(2).arg(),
                self.dims(),
                form,
                b.rows,
                b.splits,
                split_cubes,
            );
        }
    }

    fn base3<S: cubecl::prelude::Float>(
        &self,
        client: &Client,
        cubes: CubeCount,
        units: CubeDim,
        form: Form,
        b: DecodeBlueprint,
        split_cubes: usize,
    ) {
        let (scales, means) = (self.w.scales.arg(), self.w.means.as_ref().unwrap_or(&self.w.scales).arg());
        // SAFETY: as in `decode`, with the blocks of this layout; the kernel clamps columns to those of the activations.
        unsafe {
            kernels::base3::base3::launch_unchecked::<S>(
                client,
                cubes,
                units,
                self.w.codes.vectors(4),
                scales,
                means,
                self.x.codes.arg(),
                self.x.sums.arg(),
                self.x.factors.arg(),
                self.out(0).arg(),
                self.out(1).arg(),
                self.out(2).arg(),
                self.dims(),
                self.dims.steps() as u32,
                form,
                b.rows,
                b.splits,
                split_cubes,
            );
        }
    }

    fn combine<S: cubecl::prelude::Float>(
        &self,
        client: &Client,
        cubes: CubeCount,
        units: CubeDim,
        scratch: &Buffer<f32>,
        form: Form,
        split_cubes: usize,
    ) {
        // SAFETY: `scratch` has the length of `TernaryProblem::scratch_numbers` and is fully written by the first kernel for
        // existing code rows; units past the last output do nothing, and the outputs were checked as in `decode`.
        unsafe {
            kernels::combine::combine::launch_unchecked::<S>(
                client,
                cubes,
                units,
                scratch.arg(),
                self.w.scales.arg(),
                self.x.sums.arg(),
                self.x.factors.arg(),
                self.out(0).arg(),
                self.out(1).arg(),
                self.out(2).arg(),
                self.dims(),
                self.dims.tiles() as u32,
                split_cubes as u32,
                form,
            );
        }
    }

    fn tiled<S: cubecl::prelude::Float>(
        &self,
        client: &Client,
        cubes: CubeCount,
        units: CubeDim,
        form: Form,
    ) {
        let (scales, means) = (self.w.scales.arg(), self.w.means.as_ref().unwrap_or(&self.w.scales).arg());
        // SAFETY: as in `decode`; tiles past the last are clamped too.
        unsafe {
            kernels::tiled::tiled::launch_unchecked::<S>(
                client,
                cubes,
                units,
                self.w.codes.vectors(4),
                scales,
                means,
                self.x.codes.vectors(4),
                self.x.sums.arg(),
                self.x.factors.arg(),
                self.out(0).arg(),
                self.out(1).arg(),
                self.out(2).arg(),
                self.dims(),
                self.dims.tiles() as u32,
                form,
            );
        }
    }

    fn mma<S: cubecl::prelude::Float>(
        &self,
        client: &Client,
        cubes: CubeCount,
        units: CubeDim,
        form: Form,
        shape: MmaShape,
        scratch: &Buffer<f32>,
    ) {
        let (scales, means) = (self.w.scales.arg(), self.w.means.as_ref().unwrap_or(&self.w.scales).arg());
        // SAFETY: as in `tiled`; the plan checked that the device's planes match the instruction. With cubes that split the
        // columns, `scratch` has the length of `TernaryProblem::mma_scratch`, the plan checked that there are at most as many
        // squares of outputs as counters, and a device with the instruction has counters.
        unsafe {
            kernels::mma::mma::launch_unchecked::<S>(
                client,
                cubes,
                units,
                self.w.codes.vectors(4),
                scales,
                means,
                self.x.codes.vectors(4),
                self.x.sums.arg(),
                self.x.factors.arg(),
                self.out(0).arg(),
                self.out(1).arg(),
                self.out(2).arg(),
                scratch.arg(),
                self.w.arrived.as_ref().unwrap_or(&self.w.codes).arg(),
                self.dims(),
                self.dims.tiles() as u32,
                form,
                shape,
            );
        }
    }

    fn wmma<S: cubecl::prelude::Float>(
        &self,
        client: &Client,
        cubes: CubeCount,
        units: CubeDim,
        form: Form,
        shape: WmmaShape,
    ) {
        match shape.element {
            WmmaElement::I8 => self.wmma_as::<S, i8, i32>(client, cubes, units, form, shape),
            WmmaElement::F16 => self.wmma_as::<S, f16, f32>(client, cubes, units, form, shape),
        }
    }

    fn wmma_as<S: cubecl::prelude::Float, E: Numeric, A: Numeric>(
        &self,
        client: &Client,
        cubes: CubeCount,
        units: CubeDim,
        form: Form,
        shape: WmmaShape,
    ) {
        let (scales, means) = (self.w.scales.arg(), self.w.means.as_ref().unwrap_or(&self.w.scales).arg());
        // SAFETY: as in `tiled`; the plan checked that the device supports these matrices and that their elements divide evenly
        // among the units of a cube.
        unsafe {
            kernels::wmma::wmma::launch_unchecked::<S, E, A>(
                client,
                cubes,
                units,
                self.w.codes.vectors(4),
                scales,
                means,
                self.x.codes.vectors(4),
                self.x.sums.arg(),
                self.x.factors.arg(),
                self.out(0).arg(),
                self.out(1).arg(),
                self.out(2).arg(),
                self.dims(),
                self.dims.tiles() as u32,
                form,
                shape,
                units.num_elems() as usize,
            );
        }
    }
}

impl Shared {
    pub(crate) fn arg(&self) -> cubecl::prelude::BufferArg {
        match self {
            Self::F16(buffer) => buffer.arg(),
            Self::F32(buffer) => buffer.arg(),
        }
    }
}
