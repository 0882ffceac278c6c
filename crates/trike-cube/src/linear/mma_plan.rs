//! The shape of the matrix-instruction kernel for a problem.

use super::blueprint::MAX_SPLIT_CUBES;
use super::kernels::{MAX_STAGES, MmaShape};
use super::plan::{BINDINGS, LANES, TernaryProblem};
use crate::capabilities::Capabilities;
use crate::device::COUNTERS;
use crate::error::{CubeError, Result, check_range};
use crate::plan::{Plan, Settings};

/// Most that [`TernaryProblem::registers`] may find: of 255, some are for addresses.
const MAX_REGISTERS: usize = 224;
/// Planes that keep a multiprocessor's pipes busy.
const BUSY_PLANES: f64 = 8.0;
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

    /// Registers per unit, roughly: the sums, f32 sums beside integers where segments are scaled, the weights of a block, others.
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

    /// Predicted time in nanoseconds: the largest of the times for memory, for the last cache, and for instructions and matrix
    /// instructions, of which the shorter overlaps by half.
    ///
    /// Each cube reads its weights and its activations once, all of them from the last cache; `rows / 16` tiles share the
    /// activations, so their traffic is `weights' rows / shape.rows()` times their bytes.
    fn mma_time(&self, shape: MmaShape, device: &Capabilities, multiprocessors: usize) -> f64 {
        let rates = device.family.rates();
        let form = self.compiled();
        let [x, y] = self.squares(shape);
        let steps = self.w.blocks().div_ceil(shape.splits).div_ceil(shape.cubes);
        let blocks = (steps * shape.splits * form.sets) as f64;
        let (rows, code_rows) = (shape.rows() as f64, shape.code_rows() as f64);
        let weights = rows * (32 * form.planes) as f64;
        let activations = code_rows * 128.0;
        // Per plane and block: `mma`, unpacking, scaling, and all else.
        let products = (4 * shape.tiles * shape.octets) as f64;
        let unpacking = (28 * shape.tiles * form.planes) as f64;
        let scaling = match form.segment() {
            0 => 0.0,
            segment => 2.0 * products * 128.0 / segment as f64,
        };
        let planes = (shape.row_planes * shape.code_planes) as f64;
        let slots = planes * (products + unpacking + scaling + 40.0);

        let cubes = x * y * shape.cubes;
        let busiest = cubes.div_ceil(multiprocessors);
        let units = LANES * shape.planes();
        let by_shared = device.max_shared_bytes / shape.shared_bytes(form.planes);
        let resident =
            (REGISTERS / (units * self.registers(shape))).min(by_shared).clamp(1, 2048 / units).min(busiest);
        let busy = ((resident * shape.planes()) as f64 / BUSY_PLANES).min(1.0);
        let in_flight = (resident * (shape.stages - 1) * shape.splits) as f64 * weights;
        let count = busiest as f64 * blocks;
        let by_memory = count * weights / (in_flight / rates.latency).min(2.0 * rates.memory);
        let of_all = (cubes as f64 * blocks * weights) / (rates.memory * multiprocessors as f64);
        let by_cache = count * (weights + activations) / rates.cache;
        let by_issue = count * slots / (rates.issue * busy);
        let by_matrix = count * rows * code_rows * 128.0 / (rates.matrix * busy);
        let computing = by_issue.max(by_matrix) + by_issue.min(by_matrix) / 2.0;
        // Sums that planes share are written and read.
        let within = match shape.splits {
            1 => 0.0,
            splits => (8 * splits * shape.partial() * resident) as f64 / rates.shared,
        };
        let joining = match shape.cubes {
            1 => 0.0,
            _ => rates.join + (8 * cubes * shape.partial()) as f64 / (rates.cache * multiprocessors as f64),
        };
        rates.latency + by_memory.max(of_all).max(by_cache).max(computing) + within + joining
    }

    /// The shape with the shortest predicted time.
    pub(super) fn mma_candidate(&self, device: &Capabilities) -> Option<MmaShape> {
        self.mma_candidates(device, 1).pop()
    }

    /// Up to `most` shapes with the shortest predicted times, shortest first.
    pub(super) fn mma_candidates(&self, device: &Capabilities, most: usize) -> Vec<MmaShape> {
        // Octets and planes along the code rows.
        let sides: &[[usize; 2]] = match self.x.code_rows().div_ceil(8) {
            1 => &[[1, 1]],
            2 => &[[2, 1]],
            3 | 4 => &[[4, 1]],
            5..=8 => &[[4, 2]],
            9..=16 => &[[4, 4]],
            _ if self.compiled().exact() => &[[8, 4], [4, 4]],
            _ => &[[4, 4]],
        };
        let multiprocessors = device.multiprocessors.map_or(1, |n| (n as usize).max(1));
        let ways = sides.iter().flat_map(|&[octets, code_planes]| {
            [[4, 2], [4, 1], [2, 2], [2, 1], [1, 1]].into_iter().flat_map(move |[tiles, row_planes]| {
                [16, 8, 4, 2, 1].into_iter().flat_map(move |splits| {
                    [1, 2, 4, 8, MAX_SPLIT_CUBES].into_iter().flat_map(move |cubes| {
                        [3, 2].map(|stages| MmaShape {
                            tiles,
                            octets,
                            row_planes,
                            code_planes,
                            splits,
                            stages,
                            cubes,
                        })
                    })
                })
            })
        });
        let blocks = self.w.blocks();
        let worth = |shape: &MmaShape| {
            shape.planes() <= 16
                && shape.shared_bytes(self.w.planes) <= device.max_shared_bytes
                && self.registers(*shape) <= MAX_REGISTERS
                && (shape.splits == 1 || blocks >= shape.splits)
                && (shape.cubes == 1
                    || blocks >= 2 * shape.splits * shape.cubes
                        && self.squares(*shape).into_iter().product::<usize>() < multiprocessors)
        };
        let timed = ways.filter(worth).map(|shape| (shape, self.mma_time(shape, device, multiprocessors)));
        let mut timed: Vec<(MmaShape, f64)> = timed.collect();
        // Stable: of equal times the first.
        timed.sort_by(|a, b| a.1.total_cmp(&b.1));
        timed.truncate(most);
        let shapes = timed.into_iter().map(|(shape, _)| shape);
        shapes.filter(|&shape| self.mma_settings(shape, device).is_ok()).collect()
    }
}
