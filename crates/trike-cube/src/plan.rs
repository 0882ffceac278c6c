//! What every kernel has: a problem that says what, a blueprint that says how, settings that say where, and a cost.

use std::fmt::Debug;
use std::hash::Hash;

use trike_core::Cost;

use crate::capabilities::Capabilities;
use crate::error::{CubeError, Result};

/// How an operation chooses its kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strategy<B> {
    /// The plan chooses for the device.
    #[default]
    Inferred,
    /// This blueprint, for tests and for tuning; an operation refuses one that the device or the problem does not allow.
    Forced(B),
}

/// Where a kernel runs: how many cubes of how many units, and what each cube holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Cubes along x, y and z.
    pub cubes: [u32; 3],
    /// Units of a cube along x and y.
    pub units: [u32; 2],
    /// Bytes of shared memory of a cube.
    pub shared_bytes: usize,
    /// Buffers that the kernel binds.
    pub bindings: usize,
}

impl Settings {
    /// `cubes` cubes of `units` units in one line, without shared memory.
    #[must_use]
    pub fn linear(cubes: usize, units: u32, bindings: usize) -> Self {
        // A number that does not fit is refused by `check`, like any other above the limit.
        let cubes = u32::try_from(cubes).unwrap_or(u32::MAX);
        Self { cubes: [cubes, 1, 1], units: [units, 1], shared_bytes: 0, bindings }
    }

    /// With this much shared memory.
    #[must_use]
    pub fn shared(self, bytes: usize) -> Self {
        Self { shared_bytes: bytes, ..self }
    }

    /// Units of a cube.
    #[must_use]
    pub fn units_per_cube(&self) -> u32 {
        self.units[0].saturating_mul(self.units[1])
    }

    /// Refuses what the device does not have.
    ///
    /// # Errors
    ///
    /// [`CubeError::Limit`] with the first limit that is exceeded; a side of zero is [`CubeError::Range`].
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

/// Refuses a request over a limit.
pub(crate) fn check_limit(
    kernel: &'static str,
    what: &'static str,
    requested: u64,
    limit: u64,
) -> Result<()> {
    if requested <= limit { Ok(()) } else { Err(CubeError::Limit { kernel, what, requested, limit }) }
}

/// Cubes in two lines, where one would be longer than any device allows. Kernels compare `CUBE_POS` with the number.
pub(crate) fn spread(cubes: usize) -> [u32; 3] {
    const LONGEST: usize = 65_535;
    let lines = cubes.div_ceil(LONGEST).max(1);
    [cubes.div_ceil(lines).max(1), lines, 1].map(|n| u32::try_from(n).unwrap_or(u32::MAX))
}

/// Refuses a kernel that exchanges values inside of planes where there are none, or where a cube is no whole number of them.
pub(crate) fn check_planes(kernel: &'static str, units: u32, device: &Capabilities) -> Result<()> {
    match device.planes {
        Some((_, most)) if units.is_multiple_of(most) => Ok(()),
        Some((_, most)) => Err(CubeError::NotMultiple {
            what: "units of a cube of planes",
            unit: most as usize,
            got: units as usize,
        }),
        None => Err(CubeError::Feature { kernel, feature: "plane operations", device: device.name.clone() }),
    }
}

/// A problem that knows its kernels.
///
/// [`Plan::candidates`] lists every blueprint that [`Strategy::Inferred`] may choose on some device like this one, the best
/// first; the first that is inside of the device's limits is chosen: tests run all of them, and the compile phase of `cargo xtask gpu-test` compiles all of them for every target.
pub trait Plan {
    /// What is compiled into the kernel.
    type Blueprint: Clone + Debug + PartialEq + Eq + Hash;

    /// The operation's name in errors and reports.
    const NAME: &'static str;

    /// Refuses shapes that no kernel of this operation takes.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the problem itself, on any device.
    fn validate(&self) -> Result<()>;

    /// Every blueprint that fits this problem on this device, the best first.
    fn candidates(&self, device: &Capabilities) -> Vec<Self::Blueprint>;

    /// Where a blueprint runs.
    ///
    /// # Errors
    ///
    /// What makes this blueprint impossible for the problem or for the device.
    fn settings(&self, blueprint: &Self::Blueprint, device: &Capabilities) -> Result<Settings>;

    /// Operations and compulsory bytes.
    fn cost(&self) -> Cost;

    /// Validates, chooses, and checks the device's limits.
    ///
    /// # Errors
    ///
    /// Those of [`Plan::validate`], [`Plan::settings`] and [`Settings::check`]; [`CubeError::NoKernel`] when there is no
    /// blueprint at all.
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
                // Where none fits, the best one says by its error what is missing.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_checked_at_its_edge() {
        let device = Capabilities::smallest();
        let at = Settings {
            cubes: device.max_cubes,
            units: [device.max_units, 1],
            shared_bytes: device.max_shared_bytes,
            bindings: device.max_bindings as usize,
        };
        at.check("edge", &device).expect("at the limit");
        let mut over = vec![
            Settings { shared_bytes: at.shared_bytes + 1, ..at },
            Settings { bindings: at.bindings + 1, ..at },
            Settings { units: [device.max_units, 2], ..at },
            Settings { units: [device.max_unit_sides[0] + 1, 1], ..at },
        ];
        for axis in 0..3 {
            let mut cubes = at.cubes;
            cubes[axis] += 1;
            over.push(Settings { cubes, ..at });
        }
        for settings in over {
            let refused = settings.check("edge", &device).expect_err("over the limit");
            assert!(
                matches!(refused, CubeError::Limit { requested, limit, .. } if requested > limit),
                "{refused}"
            );
        }
        for zero in [Settings { cubes: [1, 0, 1], ..at }, Settings { units: [0, 1], ..at }] {
            assert!(matches!(zero.check("edge", &device), Err(CubeError::Range { got: 0, .. })));
        }
    }

    #[test]
    fn cubes_are_spread_over_two_lines() {
        assert_eq!(spread(0), [1, 1, 1]);
        for cubes in [1, 65_535, 65_536, 131_071, 1 << 24] {
            let [x, y, z] = spread(cubes).map(|n| n as usize);
            assert!(x <= 65_535 && y <= 65_535 && z == 1, "{cubes}");
            assert!(x * y >= cubes && x * y < cubes + y, "{cubes}: {x} x {y}");
        }
    }
}
