//! Which kernel multiplies ternary weights, and where it runs.

use super::activations::{ActivationShape, BLOCK};
use super::kernels::{Form, MmaShape, tiled};
use super::ternary::{TILE, TernaryForm, TernaryLayout};
use crate::device::Capabilities;
use crate::error::{CubeError, Result, check_len, check_range};
use crate::plan::{Cost, Plan, Settings};

/// Lanes of a tile.
const LANES: usize = 32;
/// Buffers that the kernels bind.
const BINDINGS: usize = 10;
/// Units of a multiprocessor that have a vector of weights on its way, two cubes of 512: 16 KiB, and those of the next
/// block beside them. To read 4.3 TB/s with 132 multiprocessors takes about 23 KB of each (at 700 ns).
const BUSY_UNITS: usize = 1024;

/// One ternary linear: some activations times one or more matrices side by side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinearProblem {
    /// The activations.
    pub x: ActivationShape,
    /// The weights.
    pub w: TernaryForm,
    /// Whether the products are added to what the outputs hold, as a residual connection does.
    pub add: bool,
}

/// How a ternary linear is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinearBlueprint {
    /// Dot products of four bytes for few tokens, see [`DecodeBlueprint`]; the one kernel of
    /// [`TernaryLayout::Base3`] and [`TernaryLayout::Blocks`].
    Decode(DecodeBlueprint),
    /// Dot products of four bytes for many tokens: 64 rows times 32 rows of codes a cube, unpacked into shared memory.
    Tiled,
    /// Matrix instructions; see [`MmaShape`].
    Mma(MmaShape),
}

/// Cubes of one tile and some rows of codes; the columns are shared by the units of a cube.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecodeBlueprint {
    /// Rows of codes of a cube: 1, 2, 4, 8 or 16, and at least those of a token.
    pub rows: usize,
    /// Groups of 32 units that share the columns.
    pub splits: usize,
}

impl DecodeBlueprint {
    /// Partial sums of every lane, in shared memory.
    fn shared_bytes(self) -> usize {
        4 * self.splits * TILE * self.rows * 4 + 4
    }
}

impl LinearProblem {
    /// What is compiled into the kernels.
    pub(super) fn compiled(&self) -> Form {
        Form {
            sets: self.w.sets,
            planes: self.w.planes,
            group: self.w.group.unwrap_or(0),
            means: self.w.means,
            slices: self.x.precision.slices(),
            x_group: self.x.precision.group().unwrap_or(0),
            parts: self.w.parts.len(),
            add: self.add,
            skip: self.w.layout == TernaryLayout::Blocks,
        }
    }

    fn decode_settings(&self, blueprint: DecodeBlueprint) -> Result<Settings> {
        let DecodeBlueprint { rows, splits } = blueprint;
        let slices = self.x.precision.slices();
        check_range("rows of codes of a cube", slices, 16, rows)?;
        check_range("splits of the columns", 1, 32, splits)?;
        if !rows.is_power_of_two() {
            return Err(CubeError::NotMultiple { what: "rows of codes of a cube", unit: slices, got: rows });
        }
        let chunks = self.x.code_rows().div_ceil(rows);
        let side = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(Settings {
            cubes: [side(self.w.tiles()), side(chunks), 1],
            units: [LANES as u32, side(splits)],
            shared_bytes: blueprint.shared_bytes(),
            bindings: BINDINGS,
        })
    }

    fn tiled_settings(&self) -> Settings {
        let side = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Settings {
            cubes: [
                side(self.w.tiles().div_ceil(tiled::TILES)),
                side(self.x.code_rows().div_ceil(tiled::CODE_ROWS)),
                1,
            ],
            units: tiled::UNITS.map(side),
            shared_bytes: tiled::SHARED_BYTES,
            bindings: BINDINGS,
        }
    }

    fn mma_settings(&self, shape: MmaShape, device: &Capabilities) -> Result<Settings> {
        let needs = |feature| CubeError::Feature { kernel: Self::NAME, feature, device: device.name.clone() };
        if !device.int8_mma {
            return Err(needs("matrix instructions on bytes (s8 m16n8k32)"));
        }
        if device.planes != Some((32, 32)) {
            return Err(needs("planes of 32 units"));
        }
        check_range("tiles of a plane", 1, 4, shape.tiles)?;
        check_range("octets of a plane", 1, 8, shape.octets)?;
        check_range("planes of a cube", 1, 16, shape.planes())?;
        if shape.splits > 1 {
            check_range(
                "planes side by side when columns are split",
                1,
                1,
                shape.row_planes * shape.code_planes,
            )?;
        }
        if shape.staged {
            check_range("splits of staged columns", 1, 1, shape.splits)?;
            let per_unit = 2 * shape.octets;
            if !per_unit.is_multiple_of(shape.row_planes) {
                let unit = shape.row_planes;
                return Err(CubeError::NotMultiple {
                    what: "vectors that a unit stages",
                    unit,
                    got: per_unit,
                });
            }
        }
        let side = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(Settings {
            cubes: [
                side(self.w.tiles().div_ceil(shape.tiles * shape.row_planes)),
                side(self.x.code_rows().div_ceil(8 * shape.octets * shape.code_planes)),
                1,
            ],
            units: [LANES as u32, side(shape.planes())],
            shared_bytes: shape.shared_bytes(),
            bindings: BINDINGS,
        })
    }

    /// The matrix instructions' blueprint: few rows of codes share the columns among planes, many stage them.
    fn mma_candidate(&self, device: &Capabilities) -> Option<MmaShape> {
        let code_rows = self.x.code_rows();
        let shape = if code_rows <= 32 {
            let octets = code_rows.div_ceil(8).next_power_of_two();
            let splits = [8, 4, 2, 1].into_iter().find(|&s| s == 1 || self.w.blocks() >= 2 * s)?;
            MmaShape { tiles: 1, octets, row_planes: 1, code_planes: 1, splits, staged: false }
        } else {
            // Squares of 128 rows by 128 rows of codes; narrower ones where those are fewer than the multiprocessors.
            let (row_planes, code_planes, octets) = (2, 4, 4);
            let columns = code_rows.div_ceil(8 * octets * code_planes);
            let cubes = |tiles: usize| self.w.tiles().div_ceil(tiles * row_planes) * columns;
            let enough = device.multiprocessors.map_or(1, |n| n as usize);
            let tiles = [4, 2].into_iter().find(|&tiles| cubes(tiles) >= enough).unwrap_or(1);
            MmaShape { tiles, octets, row_planes, code_planes, splits: 1, staged: true }
        };
        self.mma_settings(shape, device).ok().map(|_| shape)
    }

    /// The blueprints of the decode kernel, the best first.
    fn decode_candidates(&self, device: &Capabilities) -> Vec<DecodeBlueprint> {
        let (slices, code_rows) = (self.x.precision.slices(), self.x.code_rows());
        // Whole tokens; a few too many rows cost less than a second pass over the weights.
        let rows = code_rows.next_power_of_two().clamp(slices, 16);
        // As many loads in flight as shared memory and the columns allow: every unit walks two blocks or more. More than
        // eight groups only where tiles are few for the device.
        let units = device.multiprocessors.map_or(0, |n| n as usize * BUSY_UNITS);
        let cubes = self.w.tiles() * code_rows.div_ceil(rows);
        let widest = [32, 16, 8, 4, 2, 1].into_iter().find(|&splits| {
            let fits = DecodeBlueprint { rows, splits }.shared_bytes() <= device.max_shared_bytes.min(16384)
                && (LANES * splits) as u32 <= device.max_units;
            let few = splits <= 8 || cubes.saturating_mul(LANES * splits) <= units;
            fits && few && (splits == 1 || self.w.steps() >= 2 * splits)
        });
        let best = DecodeBlueprint { rows, splits: widest.unwrap_or(1) };
        let mut all = vec![best];
        if best.splits > 1 {
            all.push(DecodeBlueprint { rows, splits: 1 });
        }
        all
    }
}

impl Plan for LinearProblem {
    type Blueprint = LinearBlueprint;

    const NAME: &'static str = "ternary linear";

    fn validate(&self) -> Result<()> {
        self.x.validate()?;
        self.w.validate()?;
        check_len("columns of the activations of a linear", self.w.cols, self.x.cols)?;
        for &rows in &self.w.parts {
            crate::error::check_shape("output of a linear", self.x.tokens, rows)?;
        }
        Ok(())
    }

    fn candidates(&self, device: &Capabilities) -> Vec<LinearBlueprint> {
        let code_rows = self.x.code_rows();
        let mut all = Vec::with_capacity(4);
        if self.w.layout != TernaryLayout::TwoBit {
            return self.decode_candidates(device).into_iter().map(LinearBlueprint::Decode).collect();
        }
        // The dot products keep up with memory for one or two rows only; see the instruction budget in the chapter on GPUs.
        if code_rows > 2 {
            all.extend(self.mma_candidate(device).map(LinearBlueprint::Mma));
        }
        let decode = self.decode_candidates(device).into_iter().map(LinearBlueprint::Decode);
        if code_rows <= 16 {
            all.extend(decode);
            all.push(LinearBlueprint::Tiled);
        } else {
            all.push(LinearBlueprint::Tiled);
            all.extend(decode);
        }
        all
    }

    fn settings(&self, blueprint: &LinearBlueprint, device: &Capabilities) -> Result<Settings> {
        if self.w.layout != TernaryLayout::TwoBit && !matches!(blueprint, LinearBlueprint::Decode(_)) {
            let (feature, device) = ("a place of two bits for every weight", "the matrix".to_owned());
            return Err(CubeError::Feature { kernel: Self::NAME, feature, device });
        }
        match *blueprint {
            LinearBlueprint::Decode(blueprint) => self.decode_settings(blueprint),
            LinearBlueprint::Tiled => Ok(self.tiled_settings()),
            LinearBlueprint::Mma(shape) => self.mma_settings(shape, device),
        }
    }

    fn cost(&self) -> Cost {
        let [rows, cols, code_rows] = [self.w.rows(), self.w.cols, self.x.code_rows()].map(|n| n as u64);
        let planes = (self.w.sets * self.w.planes) as u64;
        let mut weights = rows.saturating_mul(cols).saturating_mul(planes);
        if self.w.layout == TernaryLayout::Blocks {
            weights = weights.min(planes * (self.w.stored * TILE * BLOCK) as u64);
        }
        // Bytes of codes, sums and factors, then f32 outputs, read too where they are added to.
        let x = code_rows * (self.x.blocks() * BLOCK + 4 * self.x.sum_stride()) as u64
            + 4 * self.x.factors() as u64;
        let y = self.x.tokens as u64 * rows * if self.add { 8 } else { 4 };
        Cost {
            operations: weights.saturating_mul(code_rows).saturating_mul(2),
            bytes: (self.w.bytes() as u64).saturating_add(x).saturating_add(y),
        }
    }
}
