//! Rotary position embedding (Su et al., RoFormer, 2021).

use cubecl::prelude::*;
use trike_core::RopePairing;

use crate::attention::{MAX_POSITION, Positions};
use crate::capabilities::Capabilities;
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_range, check_shape};
use crate::plan::{KernelProblem, Settings, Strategy, spread};
use trike_core::Cost;

/// Table of cosines and sines per position, on the device.
///
/// The frequencies include the model's RoPE scaling, so one kernel serves every scaling.
#[derive(Clone, Debug)]
pub struct CubeRopeTable {
    /// `[position][2][frequency]`: cosines, then sines.
    turns: Buffer<f32>,
    frequencies: usize,
    positions: usize,
    pairing: RopePairing,
}

impl CubeRopeTable {
    /// Computes rotations by `position * frequency` radians for positions below `positions`.
    ///
    /// The angle is the f32 product, as in the models' own code; its sine and cosine are computed in f64 and rounded once.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] for zero frequencies or positions, [`CubeError::NonFinite`] for a frequency, and those of
    /// [`CubeDevice::empty`].
    pub fn upload(
        device: &CubeDevice,
        frequencies: &[f32],
        positions: usize,
        pairing: RopePairing,
    ) -> Result<Self> {
        check_range("frequencies of rope", 1, 1 << 15, frequencies.len())?;
        check_range("positions of rope", 1, MAX_POSITION, positions)?;
        check_shape("table of rope", positions, 2 * frequencies.len())?;
        if let Some((index, &value)) = frequencies.iter().enumerate().find(|(_, f)| !f.is_finite()) {
            return Err(CubeError::NonFinite { what: "frequency of rope", index, value });
        }
        let mut turns = Vec::with_capacity(positions * 2 * frequencies.len());
        for position in 0..positions {
            let angle = |f: &f32| f64::from(position as f32 * f);
            turns.extend(frequencies.iter().map(|f| angle(f).cos() as f32));
            turns.extend(frequencies.iter().map(|f| angle(f).sin() as f32));
        }
        Ok(Self { turns: device.upload(&turns)?, frequencies: frequencies.len(), positions, pairing })
    }

    /// Rotated elements per head.
    #[must_use]
    pub fn rotated(&self) -> usize {
        2 * self.frequencies
    }

    /// `[position][2][frequency]`: cosines, then sines.
    pub(super) fn turns(&self) -> &Buffer<f32> {
        &self.turns
    }

    pub(super) fn pairing(&self) -> RopePairing {
        self.pairing
    }

    /// Number of positions in the table; token positions must be below it.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.positions
    }
}

/// A RoPE rotation of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeProblem {
    /// Number of tokens.
    pub tokens: usize,
    /// Heads per token.
    pub heads: usize,
    /// Head dimension.
    pub head_dim: usize,
    /// Rotated elements per head; the rest is unchanged.
    pub rotated: usize,
    /// Pairing of the rotated elements.
    pub pairing: RopePairing,
}

/// Kernel variant of [`RopeProblem`]: one unit rotates one pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeBlueprint {
    /// Units per cube.
    pub units: u32,
}

impl KernelProblem for RopeProblem {
    type Blueprint = RopeBlueprint;
    const NAME: &'static str = "rope";

    fn validate(&self) -> Result<()> {
        check_range("heads of rope", 1, 1 << 20, self.heads)?;
        check_range("head_dim of rope", self.rotated.max(1), 1 << 16, self.head_dim)?;
        if self.rotated == 0 || !self.rotated.is_multiple_of(2) {
            return Err(CubeError::NotMultiple {
                what: "rotated elements of a head",
                unit: 2,
                got: self.rotated,
            });
        }
        check_shape("input of rope", self.tokens, self.heads * self.head_dim).map(|_| ())
    }

    fn candidates(&self, _: &Capabilities) -> Vec<RopeBlueprint> {
        vec![RopeBlueprint { units: 64 }]
    }

    fn settings(&self, blueprint: &RopeBlueprint, _: &Capabilities) -> Result<Settings> {
        let pairs = self.tokens * self.heads * (self.rotated / 2);
        let cubes = spread(pairs.div_ceil(blueprint.units.max(1) as usize));
        Ok(Settings { cubes, ..Settings::linear(1, blueprint.units, 3) })
    }

    fn cost(&self) -> Cost {
        let pairs = (self.tokens * self.heads) as u64 * (self.rotated / 2) as u64;
        let turns = 4 * self.tokens as u64 * (self.rotated as u64 + 1);
        Cost { macs: 3 * pairs, bytes: 16 * pairs + turns }
    }
}

mod kernel {
    use super::*;

    /// Unit `i` rotates pair `i % pairs` of head `i / pairs`.
    #[cube(launch_unchecked)]
    pub(super) fn rope(
        x: &mut [f32],
        positions: &[u32],
        turns: &[f32],
        count: u32,
        heads: u32,
        head_dim: u32,
        pairs: u32,
        #[comptime] pairing: RopePairing,
    ) {
        let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
        if i < count as usize {
            let pairs = pairs as usize;
            let (pair, head) = (i % pairs, i / pairs);
            let at = positions[head / heads as usize] as usize * 2 * pairs + pair;
            let (cos, sin) = (turns[at], turns[at + pairs]);
            let first = head * head_dim as usize;
            let (low, high) = if comptime!(pairing == RopePairing::Adjacent) {
                (first + 2 * pair, first + 2 * pair + 1)
            } else {
                (first + pair, first + pairs + pair)
            };
            let (a, b) = (x[low], x[high]);
            x[low] = a * cos - b * sin;
            x[high] = a * sin + b * cos;
        }
    }
}

impl CubeDevice {
    /// Rotates `x` (`positions x heads x head_dim`) in place, each token by its position.
    ///
    /// Elements of a head beyond [`CubeRopeTable::rotated`] are unchanged.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotMultiple`] when `x` is not a whole number of heads, [`CubeError::Length`] when its tokens differ in number
    /// from the positions, [`CubeError::Range`] when the table rotates more elements than a head has or lacks a position, and
    /// errors of [`KernelProblem::plan`] and of the launch.
    pub fn rope(
        &self,
        x: &Buffer<f32>,
        head_dim: usize,
        positions: &Positions,
        table: &CubeRopeTable,
        strategy: &Strategy<RopeBlueprint>,
    ) -> Result<()> {
        let tokens = positions.values().len();
        let unit = tokens.saturating_mul(head_dim).max(1);
        if !x.len().is_multiple_of(unit) {
            return Err(CubeError::NotMultiple { what: "input of rope", unit, got: x.len() });
        }
        let heads = x.len() / unit;
        let problem =
            RopeProblem { tokens, heads, head_dim, rotated: table.rotated(), pairing: table.pairing };
        let (_, settings) = problem.plan(strategy, self.capabilities())?;
        check_len("input of rope", tokens * heads * head_dim, x.len())?;
        positions.check_current()?;
        let last = positions.values().iter().copied().max().unwrap_or(0);
        check_range("position of rope", 0, table.positions - 1, last as usize)?;
        if self.is_capturing() {
            positions.keep_below(table.positions);
        }
        self.launch(&Launch::new("rope", &table.pairing, settings), &[x], |client, cubes, units| {
            let (x, positions, turns) = (x.arg(), positions.buffer().arg(), table.turns.arg());
            // `validate` checked that the product fits.
            let [count, heads, dim, pairs] =
                [tokens * heads * table.frequencies, heads, head_dim, table.frequencies].map(|n| n as u32);
            // SAFETY: the length of `x` and the largest position were checked above, `Positions::write` checks later positions
            // of recorded launches, and the kernel checks its index.
            unsafe {
                kernel::rope::launch_unchecked(
                    client,
                    cubes,
                    units,
                    x,
                    positions,
                    turns,
                    count,
                    heads,
                    dim,
                    pairs,
                    table.pairing,
                );
            }
        })
    }
}
