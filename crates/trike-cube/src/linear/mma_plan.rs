//! The shape of the matrix-instruction kernel for a problem.

use super::blueprint::MAX_SPLIT_CUBES;
use super::kernels::{MAX_STAGES, MmaShape};
use super::plan::{BINDINGS, LANES, TernaryProblem};
use crate::capabilities::Capabilities;
use crate::device::COUNTERS;
use crate::error::{CubeError, Result, check_range};
use crate::plan::{KernelProblem, Settings};

/// Maximum of [`TernaryProblem::registers`]: of 255, some are needed for addresses.
const MAX_REGISTERS: usize = 224;
/// Registers per multiprocessor.
const REGISTERS: usize = 65536;

impl TernaryProblem {
    pub(super) fn mma_settings(&self, shape: MmaShape, device: &Capabilities) -> Result<Settings> {
        let needs = |feature| CubeError::Feature { kernel: Self::NAME, feature, device: device.name.clone() };
        if !device.int8_mma {
            return Err(needs("int8 matrix instructions (s8 m16n8k32)"));
        }
        if !device.async_copy {
            return Err(needs("asynchronous copies to shared memory"));
        }
        if device.planes != Some((32, 32)) {
            return Err(needs("planes of 32 units"));
        }
        check_range("tiles of a plane", 1, 4, shape.tiles)?;
        check_range("octets of a plane", 1, 8, shape.octets)?;
        check_range("registers per unit", 1, MAX_REGISTERS, self.registers(shape))?;
        check_range("planes of a cube", 1, 16, shape.planes())?;
        check_range("steps of blocks in shared memory", 2, MAX_STAGES, shape.stages)?;
        check_range("cubes that split the columns", 1, MAX_SPLIT_CUBES, shape.cubes)?;
        let [x, y] = self.squares(shape);
        if shape.cubes > 1 {
            check_range(
                "squares of outputs of cubes that split the columns",
                1,
                COUNTERS,
                x.saturating_mul(y),
            )?;
        }
        self.mma_scratch(shape)?;
        let side = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(Settings {
            cubes: [side(x), side(y), side(shape.cubes)],
            units: [LANES as u32, side(shape.planes())],
            shared_bytes: shape.shared_bytes(self.w.planes),
            bindings: BINDINGS + 2,
        })
    }

    /// Approximate registers per unit: the sums, f32 sums in addition to integers if segments are scaled, the weights of a block,
    /// and others.
    fn registers(&self, shape: MmaShape) -> usize {
        let form = self.compiled();
        64 + shape.tiles * (shape.octets * if form.exact() { 4 } else { 8 } + 4 * form.planes)
    }

    /// Cubes along the rows of weights and along the code rows.
    fn squares(&self, shape: MmaShape) -> [usize; 2] {
        [self.w.tiles().div_ceil(shape.rows() / 16), self.x.code_rows().div_ceil(shape.code_rows())]
    }

    /// Length of the scratch buffer of a shape whose cubes split the columns.
    pub(super) fn mma_scratch(&self, shape: MmaShape) -> Result<usize> {
        let [x, y] = self.squares(shape);
        let numbers = [x, y, shape.partial()].into_iter().try_fold(shape.cubes, usize::checked_mul);
        let fits = numbers.filter(|&n| shape.cubes == 1 || u32::try_from(n).is_ok());
        fits.ok_or(CubeError::Shape {
            what: "partial sums of cubes",
            rows: shape.cubes,
            cols: self.x.code_rows(),
        })
    }

    /// Predicted time in nanoseconds, without terms common to all shapes.
    ///
    /// The steps of the resident cubes of a multiprocessor take the maximum of: their instructions and matrix instructions; their
    /// weights from memory; weights and activations from the last-level cache; operands from shared memory; the serial work of a
    /// plane; and the latency of a copy, over the steps in flight. The sums of planes and of cubes that split the columns are added
    /// to that.
    ///
    /// The formula models the machine, the constants are fitted: to the times of 2,600 kernels on an H200, 11 to 63 for each of 60
    /// problems (`trike-gpu-test explore`), with an error of 13 %. The shapes chosen with it took 1.07 times the time of the
    /// fastest of these; with constants from data sheets it was 1.2 times.
    fn mma_time(&self, shape: MmaShape, device: &Capabilities, multiprocessors: usize) -> f64 {
        /// Instructions of a plane per tile and plane of weights, per copy, and per tile and octet if segments are scaled.
        const UNPACK: f64 = 27.0;
        const COPY: f64 = 22.0;
        const SCALE: f64 = 22.0;
        /// Overhead of a matrix instruction beyond its throughput.
        const MATRIX: f64 = 1.5;
        /// Serial nanoseconds of a plane per tile, per copy, for the scales of a segment, and per tile and octet scaled by them;
        /// and to start and end a wave of cubes.
        const TILE: f64 = 94.0;
        const COPIED: f64 = 10.0;
        const SCALES: f64 = 386.0;
        const SCALED: f64 = 10.5;
        const WAVE: f64 = 950.0;
        /// Nanoseconds of a unit per sum that it adds up from shared memory, from a cube, and that it stores for other cubes.
        const OF_PLANE: f64 = 9.8;
        const OF_CUBE: f64 = 18.5;
        const LEFT: f64 = 28.5;

        let rates = device.family.rates();
        let form = self.compiled();
        let [x, y] = self.squares(shape);
        let (units, planes) = (LANES * shape.planes(), shape.planes());
        let steps = self.w.blocks().div_ceil(shape.splits).div_ceil(shape.cubes) * form.sets;
        let cubes = x * y * shape.cubes;
        let by_shared = device.max_shared_bytes / (shape.shared_bytes(form.planes) + 1024);
        let by_registers = REGISTERS / (units * self.registers(shape).next_multiple_of(8));
        let most = by_registers.min(by_shared).clamp(1, 2048 / units);
        let resident = most.min(cubes.div_ceil(multiprocessors));
        let waves = cubes.div_ceil(multiprocessors * resident) as f64;
        // Fraction of the multiprocessors with work in the first wave.
        let at_work = (cubes as f64 / (multiprocessors * resident) as f64).min(1.0);

        let copies = (shape.splits * shape.weights(form.planes)).div_ceil(units)
            + (shape.splits * shape.code_rows() * 8).div_ceil(units);
        let (tiles, copies) = (shape.tiles as f64, copies as f64);
        let sums = (shape.tiles * shape.octets) as f64;
        let scaled = match form.segment() {
            0 => 0.0,
            segment => 128.0 / segment as f64,
        };
        let unpacked = tiles * form.planes as f64;
        let instructions = UNPACK * unpacked + COPY * copies + SCALE * sums * scaled;
        // A scheduler has a quarter of the planes.
        let busy = (resident * planes).next_multiple_of(4) as f64;
        let computing =
            busy * (instructions / rates.issue + MATRIX * sums * (16 * 8 * 128) as f64 / rates.matrix);
        let of_step = (resident * shape.splits) as f64;
        let weights = of_step * (shape.rows() * 32 * form.planes) as f64;
        let activations = of_step * (shape.code_rows() * 128) as f64;
        let by_memory = at_work * weights / rates.memory;
        let by_cache = at_work * (weights + activations) / rates.cache;
        let operands = (resident * planes) as f64 * (1024 * shape.octets + 512 * shape.tiles) as f64;
        let by_shared = operands / (rates.shared / 2.0);
        let slower = rates.latency / 700.0;
        let serial =
            slower * (TILE * unpacked + COPIED * copies + (SCALES + SCALED * sums) * scaled.min(1.0));
        let latency = 0.7 * rates.latency / (shape.stages - 1) as f64;
        // Times of similar size do not overlap completely.
        let all = [computing, by_memory, by_cache, by_shared, serial, latency];
        let step = all.into_iter().map(|time| time.powi(8)).sum::<f64>().powf(1.0 / 8.0);

        let of_unit = shape.partial() as f64 / units as f64;
        let within = if shape.splits > 1 { OF_PLANE * of_unit * of_step } else { 0.0 };
        let joining = match shape.cubes {
            1 => 0.0,
            cubes => rates.join + (OF_CUBE * cubes as f64 + LEFT) * of_unit,
        };
        waves * (slower * WAVE + steps as f64 * step + within) + joining
    }

    /// The shape with the shortest predicted time.
    #[doc(hidden)]
    #[must_use]
    pub fn mma_candidate(&self, device: &Capabilities) -> Option<MmaShape> {
        self.mma_candidates(device, 1).pop()
    }

    /// Up to `most` shapes with the shortest predicted times, shortest first.
    pub(super) fn mma_candidates(&self, device: &Capabilities, most: usize) -> Vec<MmaShape> {
        let multiprocessors = device.multiprocessors.map_or(1, |n| (n as usize).max(1));
        let octets = self.x.code_rows().div_ceil(8);
        let ways = if octets > 16 { of_many() } else { of_few(octets.next_power_of_two()) };
        let blocks = self.w.blocks();
        let worth = |shape: &MmaShape| {
            (2..=16).contains(&shape.planes())
                && shape.shared_bytes(self.w.planes) <= device.max_shared_bytes
                && self.registers(*shape) <= MAX_REGISTERS
                && (shape.splits == 1 || blocks >= shape.splits)
                && (shape.cubes == 1
                    || blocks >= 2 * shape.splits * shape.cubes
                        && self.squares(*shape).into_iter().product::<usize>() < multiprocessors)
        };
        let timed = ways
            .into_iter()
            .filter(worth)
            .map(|shape| (shape, self.mma_time(shape, device, multiprocessors)));
        let mut timed: Vec<(MmaShape, f64)> = timed.collect();
        // Stable sort: of equal times the first one wins.
        timed.sort_by(|a, b| a.1.total_cmp(&b.1));
        timed.truncate(most);
        let shapes = timed.into_iter().map(|(shape, _)| shape);
        shapes.filter(|&shape| self.mma_settings(shape, device).is_ok()).collect()
    }
}

/// Shapes for up to 128 code rows, `octets` groups of eight.
fn of_few(octets: usize) -> Vec<MmaShape> {
    let mut all = Vec::new();
    let sides = [1, 2, 4, 8].into_iter().flat_map(|octets| [1, 2, 4].map(|planes| [octets, planes]));
    // Cubes wider than the code rows waste products; much narrower ones unpack weights repeatedly.
    let sides = sides.filter(|[of_plane, planes]| {
        let wide = of_plane * planes;
        wide <= octets && 4 * wide >= octets
    });
    for [octets, code_planes] in sides {
        for tiles in [4, 2, 1] {
            for row_planes in [4, 2, 1] {
                for splits in [8, 4, 2, 1] {
                    for cubes in [1, 2, 4, 8] {
                        all.extend([4, 3, 2].map(|stages| MmaShape {
                            tiles,
                            octets,
                            row_planes,
                            code_planes,
                            splits,
                            stages,
                            cubes,
                        }));
                    }
                }
            }
        }
    }
    all
}

/// Shapes for more code rows: the fastest ones for 2,048 tokens on an H200.
fn of_many() -> Vec<MmaShape> {
    // Octets, planes along both sides, splits.
    let sides = [[8, 2, 4, 1], [4, 2, 4, 1], [4, 2, 1, 2], [4, 1, 4, 1], [4, 1, 2, 2]];
    let shapes = sides.into_iter().flat_map(|[octets, row_planes, code_planes, splits]| {
        [1, 2, 4, 8].into_iter().flat_map(move |cubes| {
            [3, 2].map(|stages| MmaShape { tiles: 4, octets, row_planes, code_planes, splits, stages, cubes })
        })
    });
    shapes.collect()
}
