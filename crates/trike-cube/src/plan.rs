//! Planning of kernels: a problem, a blueprint (kernel variant), launch settings, and a cost.

use std::fmt::Debug;
use std::hash::Hash;

use trike_core::Cost;

use crate::capabilities::Capabilities;
use crate::error::{CubeError, Result};

/// Kernel selection of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strategy<B> {
    /// Chosen by the plan for the device.
    #[default]
    Inferred,
    /// This blueprint, for tests and tuning; an error if the device or the problem does not allow it.
    Forced(B),
}

/// Launch settings of a kernel: cubes, units per cube, shared memory and bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Cubes along x, y and z.
    pub cubes: [u32; 3],
    /// Units per cube along x and y.
    pub units: [u32; 2],
    /// Bytes of shared memory per cube.
    pub shared_bytes: usize,
    /// Buffers bound by the kernel.
    pub bindings: usize,
}

impl Settings {
    /// `cubes` cubes of `units` units in one line, without shared memory.
    #[must_use]
    pub fn linear(cubes: usize, units: u32, bindings: usize) -> Self {
        // `check` rejects a number that does not fit, like any other above the limit.
        let cubes = u32::try_from(cubes).unwrap_or(u32::MAX);
        Self { cubes: [cubes, 1, 1], units: [units, 1], shared_bytes: 0, bindings }
    }

    /// Sets the bytes of shared memory.
    #[must_use]
    pub fn shared(self, bytes: usize) -> Self {
        Self { shared_bytes: bytes, ..self }
    }

    /// Units per cube.
    #[must_use]
    pub fn units_per_cube(&self) -> u32 {
        self.units[0].saturating_mul(self.units[1])
    }

    /// Checks the settings against the device's limits.
    ///
    /// # Errors
    ///
    /// [`CubeError::Limit`] for the first exceeded limit; [`CubeError::Range`] for a side of zero.
    pub fn check(&self, kernel: &'static str, device: &Capabilities) -> Result<()> {
        const CUBES: [&str; 3] = ["cubes along x", "cubes along y", "cubes along z"];
        const UNITS: [&str; 2] = ["units along x", "units along y"];
        let mut requests = Vec::with_capacity(8);
        for ((what, requested), limit) in CUBES.into_iter().zip(self.cubes).zip(device.max_cubes) {
            requests.push((what, requested, limit));
        }
        for ((what, requested), limit) in UNITS.into_iter().zip(self.units).zip(device.max_unit_sides) {
            requests.push((what, requested, limit));
        }
        requests.push(("units of a cube", self.units_per_cube(), device.max_units));
        for (what, requested, limit) in requests {
            if requested == 0 {
                return Err(CubeError::Range { what, minimum: 1, maximum: limit as usize, got: 0 });
            }
            check_limit(kernel, what, u64::from(requested), u64::from(limit))?;
        }
        check_limit(
            kernel,
            "bytes of shared memory",
            self.shared_bytes as u64,
            device.max_shared_bytes as u64,
        )?;
        check_limit(kernel, "buffers", self.bindings as u64, u64::from(device.max_bindings))
    }
}

/// Checks a request against a limit.
pub(crate) fn check_limit(
    kernel: &'static str,
    what: &'static str,
    requested: u64,
    limit: u64,
) -> Result<()> {
    if requested <= limit { Ok(()) } else { Err(CubeError::Limit { kernel, what, requested, limit }) }
}

/// Arranges cubes in several lines if they exceed 65,535, the number that every device allows along one dimension. Kernels
/// check `CUBE_POS` against their number.
pub fn spread(cubes: usize) -> [u32; 3] {
    const LONGEST: usize = 65_535;
    let lines = cubes.div_ceil(LONGEST).max(1);
    [cubes.div_ceil(lines).max(1), lines, 1].map(|n| u32::try_from(n).unwrap_or(u32::MAX))
}

/// Checks that the device has plane operations and that a cube is a whole number of planes.
pub(crate) fn check_planes(kernel: &'static str, units: u32, device: &Capabilities) -> Result<()> {
    match device.planes {
        Some((_, most)) if units.is_multiple_of(most) => Ok(()),
        Some((_, most)) => Err(CubeError::NotMultiple {
            what: "units of a cube (whole planes)",
            unit: most as usize,
            got: units as usize,
        }),
        None => Err(CubeError::Feature { kernel, feature: "plane operations", device: device.name.clone() }),
    }
}

/// A problem with its kernel variants.
///
/// [`KernelProblem::candidates`] lists the blueprints that [`Strategy::Inferred`] may choose on such a device, best first; the
/// first one within the device's limits is chosen. Tests run all of them, and the compile phase of `cargo xtask gpu-test` compiles
/// all of them for every target.
pub trait KernelProblem {
    /// Kernel variant: the compile-time parameters.
    type Blueprint: Clone + Debug + PartialEq + Eq + Hash;

    /// The operation's name in errors and reports.
    const NAME: &'static str;

    /// Checks that kernels of this operation support the shapes.
    ///
    /// # Errors
    ///
    /// When the problem is invalid on every device.
    fn validate(&self) -> Result<()>;

    /// The blueprints for this problem on this device, best first.
    fn candidates(&self, device: &Capabilities) -> Vec<Self::Blueprint>;

    /// Launch settings of a blueprint.
    ///
    /// # Errors
    ///
    /// When the blueprint does not support the problem or the device.
    fn settings(&self, blueprint: &Self::Blueprint, device: &Capabilities) -> Result<Settings>;

    /// Operations and compulsory bytes.
    fn cost(&self) -> Cost;

    /// Validates the problem, selects a blueprint, and checks the device's limits.
    ///
    /// # Errors
    ///
    /// Errors of [`KernelProblem::validate`], [`KernelProblem::settings`] and [`Settings::check`]; [`CubeError::NoKernel`] when
    /// there is no candidate.
    fn plan(
        &self,
        strategy: &Strategy<Self::Blueprint>,
        device: &Capabilities,
    ) -> Result<(Self::Blueprint, Settings)> {
        self.validate()?;
        let blueprint = match strategy {
            Strategy::Forced(blueprint) => blueprint.clone(),
            Strategy::Inferred => {
                let candidates = self.candidates(device);
                let fits = |b: &&Self::Blueprint| {
                    self.settings(b, device).is_ok_and(|s| s.check(Self::NAME, device).is_ok())
                };
                // If none fits, the best one's error is returned.
                candidates.iter().find(fits).or(candidates.first()).cloned().ok_or_else(|| {
                    CubeError::NoKernel { operation: Self::NAME, device: device.name.clone() }
                })?
            }
        };
        let settings = self.settings(&blueprint, device)?;
        settings.check(Self::NAME, device)?;
        Ok((blueprint, settings))
    }
}
