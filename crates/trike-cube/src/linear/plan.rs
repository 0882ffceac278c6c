//! Kernel choice and launch settings of ternary linears.

use super::blueprint::{DecodeBlueprint, LinearBlueprint, MAX_SPLIT_CUBES, SplitBlueprint};
use super::kernels::decode::ring_slots;
use super::kernels::wmma::EXACT_SUM;
use super::kernels::{Form, WmmaElement, WmmaShape, combine, tiled};
use super::shape::{ActivationShape, BLOCK};
use super::ternary::{TILE, TernaryForm, TernaryLayout};
use crate::capabilities::Capabilities;
use crate::error::{CubeError, Result, check_len, check_range};
use crate::plan::{KernelProblem, Settings};
use crate::rates::Rates;
use trike_core::Cost;

/// Lanes per tile.
pub(super) const LANES: usize = 32;
/// Buffers bound by the kernels.
pub(super) const BINDINGS: usize = 10;
/// Units resident on a multiprocessor: two cubes of 512. On an H200, reading 4.3 TB/s with 132 multiprocessors takes about 23 KB in
/// flight per multiprocessor (at 700 ns), which is 1.4 vectors of weights per unit.
const BUSY_UNITS: usize = 1024;

/// One ternary linear: activations times one or more matrices with the same columns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TernaryProblem {
    /// The activations.
    pub x: ActivationShape,
    /// The weights.
    pub w: TernaryForm,
    /// Adds the products to the existing outputs (residual connection).
    pub add: bool,
}

/// Bytes of shared memory of a decode kernel, for the partial sums of all lanes.
fn decode_shared_bytes(blueprint: DecodeBlueprint) -> usize {
    4 * blueprint.splits * TILE * blueprint.rows * 4 + 4
}

impl TernaryProblem {
    /// Compile-time parameters of the kernels.
    pub(crate) fn compiled(&self) -> Form {
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
            base3: self.w.layout == TernaryLayout::Base3,
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
            shared_bytes: decode_shared_bytes(blueprint),
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

    fn wmma_settings(&self, shape: WmmaShape, device: &Capabilities) -> Result<Settings> {
        let needs = |feature| CubeError::Feature { kernel: Self::NAME, feature, device: device.name.clone() };
        let WmmaShape { m, n, k, .. } = shape;
        let (shapes, feature) = match shape.element {
            WmmaElement::I8 => (&device.int8_cmma, "cooperative matrices of bytes of this shape"),
            WmmaElement::F16 => (&device.f16_cmma, "cooperative matrices of f16 of this shape"),
        };
        if !shapes.contains(&[m, n, k]) {
            return Err(needs(feature));
        }
        if shape.element == WmmaElement::F16 {
            check_range("columns of one exact sum in f32", 1, self.exact_cols(), self.sum_cols())?;
        }
        let Some((_, most)) = device.planes else {
            return Err(needs("planes"));
        };
        check_range("matrices of a plane along the rows of weights", 1, 8, shape.row_matrices)?;
        check_range("matrices of a plane along the rows of codes", 1, 8, shape.code_matrices)?;
        for planes in [shape.row_planes, shape.code_planes] {
            check_range("planes of a cube along one side", 1, 16, planes)?;
        }
        check_range("planes of a cube", 1, 16, shape.planes())?;
        let multiple = |what, unit: usize, got: usize| match got {
            got if unit != 0 && got.is_multiple_of(unit) => Ok(()),
            got => Err(CubeError::NotMultiple { what, unit, got }),
        };
        // Scales may change every 32 columns; each unit of a cube gets the same number of sums, of whole tokens.
        let slices = self.x.precision.slices();
        multiple("columns that share a scale", k, 32)?;
        multiple("bytes of a row of a matrix", 16, k * shape.element.bytes())?;
        multiple("rows of weights of a cube", TILE, shape.rows())?;
        multiple("rows of codes of a matrix", slices, n)?;
        multiple("sums of a matrix", most as usize * slices, m * n)?;
        let side = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(Settings {
            cubes: [
                side(self.w.tiles().div_ceil(shape.rows() / TILE)),
                side(self.x.code_rows().div_ceil(shape.code_rows())),
                1,
            ],
            units: [most, side(shape.planes())],
            shared_bytes: shape.shared_bytes(),
            bindings: BINDINGS,
        })
    }

    /// Columns of the longest integer sum.
    fn sum_cols(&self) -> usize {
        match self.compiled().segment() {
            0 => self.x.cols,
            segment => segment,
        }
    }

    /// Maximum columns for which an f32 sum of products of the largest weights and codes is exact.
    fn exact_cols(&self) -> usize {
        /// Largest magnitude of a signed byte.
        const CODE: usize = 128;
        EXACT_SUM / (CODE * self.compiled().largest())
    }

    fn split_settings(&self, blueprint: SplitBlueprint) -> Result<Settings> {
        check_range("cubes that split the columns", 2, MAX_SPLIT_CUBES, blueprint.cubes)?;
        let one = self.decode_settings(blueprint.decode)?;
        self.scratch_numbers(blueprint.cubes)?;
        Ok(Settings { cubes: [one.cubes[0], one.cubes[1], blueprint.cubes as u32], ..one })
    }

    /// Length of the scratch buffer of a [`SplitBlueprint`].
    pub(super) fn scratch_numbers(&self, cubes: usize) -> Result<usize> {
        let shape = CubeError::Shape { what: "partial sums of cubes", rows: cubes, cols: self.x.code_rows() };
        let factors = [self.x.code_rows(), self.w.tiles(), TILE, combine::numbers(self.compiled())];
        let numbers = factors.into_iter().try_fold(cubes, usize::checked_mul);
        numbers.filter(|&n| u32::try_from(n).is_ok()).ok_or(shape)
    }

    /// Predicted time in nanoseconds with the columns split across `cubes` cubes.
    ///
    /// A multiprocessor's bandwidth is its bytes in flight per latency; the total is limited by the memory bandwidth.
    fn predicted(
        &self,
        decode: DecodeBlueprint,
        one: &Settings,
        cubes: usize,
        multiprocessors: usize,
        rates: Rates,
    ) -> f64 {
        // Vectors of a plane that a unit has in flight: those of its ring, or one.
        let vectors = match self.w.layout {
            TernaryLayout::TwoBit => ring_slots(self.compiled(), decode.rows).max(1),
            _ => 1,
        };
        let count = one.cubes.iter().fold(cubes, |product, &n| product.saturating_mul(n as usize));
        let units = one.units_per_cube() as usize;
        let bytes_of_cube = (self.w.code_words() * 4) as f64 / (self.w.tiles() * cubes) as f64;
        let busiest = count.div_ceil(multiprocessors);
        let resident = busiest.min((BUSY_UNITS / units).max(1));
        let rate = ((resident * units * vectors * 16) as f64 / rates.latency).min(rates.loads);
        let by_latency = rates.latency + busiest as f64 * bytes_of_cube / rate;
        let by_memory = count as f64 * bytes_of_cube / (rates.memory * multiprocessors as f64);
        by_latency.max(by_memory) + if cubes > 1 { rates.launch } else { 0.0 }
    }

    /// Splits the columns across cubes if the predicted gain exceeds the cost of the second launch.
    fn split_candidate(&self, decode: DecodeBlueprint, device: &Capabilities) -> Option<SplitBlueprint> {
        let multiprocessors = device.multiprocessors? as usize;
        if multiprocessors == 0 {
            return None;
        }
        let one = self.decode_settings(decode).ok()?;
        let rates = device.family.rates();
        let alone = self.predicted(decode, &one, 1, multiprocessors, rates);
        let ways = [2, 4, 8, MAX_SPLIT_CUBES]
            .into_iter()
            .filter(|cubes| self.w.steps() >= 2 * decode.splits * cubes)
            .map(|cubes| (cubes, self.predicted(decode, &one, cubes, multiprocessors, rates)));
        let (cubes, time) = ways.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let blueprint = SplitBlueprint { decode, cubes };
        (time < alone && self.split_settings(blueprint).is_ok()).then_some(blueprint)
    }

    /// The blueprint for cooperative matrices of bytes, else of f16: four planes with squares of 32 rows by 32 code rows; fewer
    /// code rows, then fewer weight rows, if there are few or shared memory is small.
    fn wmma_candidate(&self, device: &Capabilities) -> Option<WmmaShape> {
        let bytes = self.wmma_shape(device, WmmaElement::I8, &device.int8_cmma);
        bytes.or_else(|| self.wmma_shape(device, WmmaElement::F16, &device.f16_cmma))
    }

    fn wmma_shape(
        &self,
        device: &Capabilities,
        element: WmmaElement,
        matrices: &[[usize; 3]],
    ) -> Option<WmmaShape> {
        let few = self.x.code_rows() <= 32;
        let sides = [[32, 32], [32, 16], [16, 16]].into_iter().filter(|&[_, codes]| !few || codes == 16);
        let shapes = sides.flat_map(|[rows, codes]| {
            matrices.iter().map(move |&[m, n, k]| WmmaShape {
                m,
                n,
                k,
                row_matrices: (rows / m.max(1)).max(1),
                code_matrices: (codes / n.max(1)).max(1),
                row_planes: 2,
                code_planes: 2,
                element,
            })
        });
        let fits = |shape: &WmmaShape| {
            self.wmma_settings(*shape, device)
                .is_ok_and(|settings| settings.check(Self::NAME, device).is_ok())
        };
        shapes.into_iter().find(fits)
    }

    /// The blueprints of the decode kernel, best first.
    fn decode_candidates(&self, device: &Capabilities) -> Vec<DecodeBlueprint> {
        let (slices, code_rows) = (self.x.precision.slices(), self.x.code_rows());
        // Whole tokens; a few unused rows cost less than a second pass over the weights.
        let rows = code_rows.next_power_of_two().clamp(slices, 16);
        // As many loads in flight as shared memory and the columns allow: every unit processes two blocks or more. More than
        // four groups only if all cubes fit on the device at once, more than eight only if that is known.
        let units = device.multiprocessors.map_or(0, |n| n as usize * BUSY_UNITS);
        let least = if units > 0 { 4 } else { 8 };
        let cubes = self.w.tiles() * code_rows.div_ceil(rows);
        let widest = [32, 16, 8, 4, 2, 1].into_iter().find(|&splits| {
            let fits = decode_shared_bytes(DecodeBlueprint { rows, splits })
                <= device.max_shared_bytes.min(16384)
                && (LANES * splits) as u32 <= device.max_units;
            let few = splits <= least || cubes.saturating_mul(LANES * splits) <= units;
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

impl TernaryProblem {
    /// The decode kernel's blueprints, preceded by the best one with columns split across cubes if that pays.
    fn with_split(&self, decode: Vec<DecodeBlueprint>, device: &Capabilities) -> Vec<LinearBlueprint> {
        let best = decode.first().copied().filter(|_| self.x.code_rows() <= 16);
        let split = best.and_then(|decode| self.split_candidate(decode, device)).map(LinearBlueprint::Split);
        split.into_iter().chain(decode.into_iter().map(LinearBlueprint::Decode)).collect()
    }
}

impl KernelProblem for TernaryProblem {
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
            return self.with_split(self.decode_candidates(device), device);
        }
        // 4-byte dot products keep up with memory only for one or two code rows; see the instruction budget in the chapter on
        // GPUs.
        if code_rows > 2 {
            all.extend(self.mma_candidate(device).map(LinearBlueprint::Mma));
        }
        let decode = self.with_split(self.decode_candidates(device), device);
        if code_rows <= 16 {
            all.extend(decode);
            all.push(LinearBlueprint::Tiled);
        } else {
            if !device.int8_mma {
                all.extend(self.wmma_candidate(device).map(LinearBlueprint::Wmma));
            }
            all.push(LinearBlueprint::Tiled);
            all.extend(decode);
        }
        all
    }

    fn settings(&self, blueprint: &LinearBlueprint, device: &Capabilities) -> Result<Settings> {
        let of_any_layout = matches!(blueprint, LinearBlueprint::Decode(_) | LinearBlueprint::Split(_));
        if self.w.layout != TernaryLayout::TwoBit && !of_any_layout {
            let (feature, device) = ("two bits per weight (TernaryLayout::TwoBit)", "the matrix".to_owned());
            return Err(CubeError::Feature { kernel: Self::NAME, feature, device });
        }
        match *blueprint {
            LinearBlueprint::Decode(blueprint) => self.decode_settings(blueprint),
            LinearBlueprint::Tiled => Ok(self.tiled_settings()),
            LinearBlueprint::Mma(shape) => self.mma_settings(shape, device),
            LinearBlueprint::Wmma(shape) => self.wmma_settings(shape, device),
            LinearBlueprint::Split(blueprint) => self.split_settings(blueprint),
        }
    }

    fn cost(&self) -> Cost {
        let [rows, cols, code_rows] = [self.w.rows(), self.w.cols, self.x.code_rows()].map(|n| n as u64);
        let planes = (self.w.sets * self.w.planes) as u64;
        let mut weights = rows.saturating_mul(cols).saturating_mul(planes);
        if self.w.layout == TernaryLayout::Blocks {
            weights = weights.min(planes * (self.w.stored * TILE * BLOCK) as u64);
        }
        // Bytes of codes, sums and factors, then f32 outputs, which are also read when adding.
        let x = code_rows * (self.x.blocks() * BLOCK + 4 * self.x.sum_stride()) as u64
            + 4 * self.x.factors() as u64;
        let y = self.x.tokens as u64 * rows * if self.add { 8 } else { 4 };
        Cost {
            macs: weights.saturating_mul(code_rows),
            bytes: (self.w.bytes() as u64).saturating_add(x).saturating_add(y),
        }
    }
}
