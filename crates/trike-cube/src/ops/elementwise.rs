//! Elementwise operations: gates, sums, biases.

use cubecl::prelude::*;

use crate::capabilities::Capabilities;
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_range};
use crate::plan::{KernelProblem, Settings, Strategy, spread};
use trike_core::Cost;
use trike_core::GatedActivation;

/// Elementwise operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elementwise {
    /// `out = activation(gate) * up`.
    Gated(GatedActivation),
    /// `x += y`, where `y` has this many elements and repeats: as many as `x` for a sum, one row for a bias.
    Add(usize),
}

/// An elementwise operation on `len` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ElementwiseProblem {
    /// The operation.
    pub operation: Elementwise,
    /// Number of elements.
    pub len: usize,
}

/// Kernel variants of [`ElementwiseProblem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ElementwiseBlueprint {
    /// Elements per load: 4, or 1 if the length is not a multiple of 4.
    pub lanes: usize,
}

/// Units per cube.
const UNITS: u32 = 128;

impl KernelProblem for ElementwiseProblem {
    type Blueprint = ElementwiseBlueprint;
    const NAME: &'static str = "elementwise";

    fn validate(&self) -> Result<()> {
        // Indices of units in the last line of cubes exceed the length and must not wrap around.
        check_range("elements of an elementwise operation", 1, (u32::MAX - (1 << 24)) as usize, self.len)?;
        match self.operation {
            Elementwise::Add(period) if period == 0 || !self.len.is_multiple_of(period) => {
                Err(CubeError::NotMultiple { what: "elements of a sum", unit: period, got: self.len })
            }
            _ => Ok(()),
        }
    }

    fn candidates(&self, _: &Capabilities) -> Vec<ElementwiseBlueprint> {
        let whole = match self.operation {
            Elementwise::Gated(_) => self.len.is_multiple_of(4),
            Elementwise::Add(period) => period.is_multiple_of(4),
        };
        let one = ElementwiseBlueprint { lanes: 1 };
        if whole { vec![ElementwiseBlueprint { lanes: 4 }, one] } else { vec![one] }
    }

    fn settings(&self, blueprint: &ElementwiseBlueprint, device: &Capabilities) -> Result<Settings> {
        if !self.candidates(device).contains(blueprint) {
            let what = "elements of an elementwise operation";
            return Err(CubeError::NotMultiple { what, unit: blueprint.lanes, got: self.len });
        }
        let bindings = if matches!(self.operation, Elementwise::Gated(_)) { 3 } else { 2 };
        let cubes = spread((self.len / blueprint.lanes).div_ceil(UNITS as usize));
        Ok(Settings { cubes, ..Settings::linear(1, UNITS, bindings) })
    }

    fn cost(&self) -> Cost {
        let len = self.len as u64;
        match self.operation {
            Elementwise::Gated(GatedActivation::SiLu) => Cost::of_operations(20 * len, 12 * len),
            Elementwise::Gated(GatedActivation::SquaredReLu) => Cost::of_operations(3 * len, 12 * len),
            Elementwise::Add(period) => Cost::of_operations(len, 8 * len + 4 * period as u64),
        }
    }
}

mod kernel {
    use super::super::gated::activate;
    use super::*;

    /// Unit `i` computes vector `i`.
    #[cube(launch_unchecked)]
    pub(super) fn gated<N: Size>(
        gate: &[Vector<f32, N>],
        up: &[Vector<f32, N>],
        out: &mut [Vector<f32, N>],
        #[comptime] activation: GatedActivation,
        #[comptime] lanes: usize,
    ) {
        let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
        if i < out.len() {
            let (g, u) = (gate[i], up[i]);
            let mut value = Vector::<f32, N>::new(0.0f32);
            #[unroll]
            for lane in 0..lanes {
                value.insert(lane, activate(g.extract(lane), activation) * u.extract(lane));
            }
            out[i] = value;
        }
    }

    /// Unit `i` adds to vector `i`.
    #[cube(launch_unchecked)]
    pub(super) fn add<N: Size>(x: &mut [Vector<f32, N>], y: &[Vector<f32, N>]) {
        let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
        if i < x.len() {
            let sum = x[i] + y[i % y.len()];
            x[i] = sum;
        }
    }
}

impl CubeDevice {
    /// `out = activation(gate) * up`.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] when the lengths differ, [`CubeError::Overlap`] when the output shares memory with an input, and
    /// those of [`KernelProblem::plan`] and of the launch.
    pub fn gated(
        &self,
        gate: &Buffer<f32>,
        up: &Buffer<f32>,
        activation: GatedActivation,
        out: &Buffer<f32>,
        strategy: &Strategy<ElementwiseBlueprint>,
    ) -> Result<()> {
        check_len("up projection of gated", gate.len(), up.len())?;
        check_len("output of gated", gate.len(), out.len())?;
        if out.overlaps(gate) || out.overlaps(up) {
            return Err(CubeError::Overlap { what: "input and output of gated" });
        }
        let problem = ElementwiseProblem { operation: Elementwise::Gated(activation), len: out.len() };
        let (ElementwiseBlueprint { lanes }, settings) = problem.plan(strategy, self.capabilities())?;
        self.launch(&Launch::new("gated", &(activation, lanes), settings), &[out], |client, cubes, units| {
            let (gate, up, out) = (gate.vectors(lanes), up.vectors(lanes), out.vectors(lanes));
            // SAFETY: the lengths were checked above, and the kernel checks its index against them.
            unsafe {
                kernel::gated::launch_unchecked(
                    client, cubes, units, lanes, gate, up, out, activation, lanes,
                );
            };
        })
    }

    /// `x += y`, where a shorter `y` is repeated: one row for a bias.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotMultiple`] when the length of `x` is not a multiple of that of `y`, [`CubeError::Overlap`] when they
    /// share memory, and those of [`KernelProblem::plan`] and of the launch.
    pub fn add(
        &self,
        x: &Buffer<f32>,
        y: &Buffer<f32>,
        strategy: &Strategy<ElementwiseBlueprint>,
    ) -> Result<()> {
        if x.overlaps(y) {
            return Err(CubeError::Overlap { what: "summands" });
        }
        let problem = ElementwiseProblem { operation: Elementwise::Add(y.len()), len: x.len() };
        let (ElementwiseBlueprint { lanes }, settings) = problem.plan(strategy, self.capabilities())?;
        self.launch(&Launch::new("add", &lanes, settings), &[x], |client, cubes, units| {
            let (x, y) = (x.vectors(lanes), y.vectors(lanes));
            // SAFETY: the kernel checks its index against the length of `x` and takes it modulo that of `y`, which is not 0.
            unsafe {
                kernel::add::launch_unchecked(client, cubes, units, lanes, x, y);
            };
        })
    }
}
