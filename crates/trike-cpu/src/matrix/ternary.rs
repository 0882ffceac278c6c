//! Ternary weights as the kernels read them.

use half::f16;
use trike_trit::{Coupling, Granularity, GroupSize, TritTensor};

use crate::error::{Result, check_range};
use crate::kernels::Kernels;
use crate::line::{BLOCK, CodeLine, Line, TILE};

/// Columns that the integer kernels are proven for: `2^20` products of a code up to 2 and an activation of magnitude up
/// to 128 do not exceed `2^28`, and neither do the in-place sums of the AVX-512 kernel.
pub const MAX_COLS: usize = 1 << 20;

/// What the scale of a tied plane is divided by.
const DIVISORS: [f32; 6] = [1.0, 3.0, 9.0, 27.0, 81.0, 243.0];

/// A trit tensor packed for the kernels: two bits a weight, rows in tiles of four.
///
/// ```text
/// line:  64 bytes = 256 weights of one row; byte j holds weights j, j+64, j+128, j+192
///        in bits 1..0, 3..2, 5..4, 7..6; code = trit + 1
/// tile:  rows 4t .. 4t+4: line 0 of each row, then line 1 of each row, ...
/// all:   [tile][plane][block][row of the tile], padded with trit zero to whole lines and tiles
/// ```
///
/// One mask turns a line into 64 codes that lie next to each other, four rows share every load of an activation, and a
/// range of tiles is one contiguous range of memory. Scales lie in the same order, `[tile][plane][group][row of the
/// tile]`, in the type that the tensor had. What was given up: the matrix is a copy, and a single row is strided.
///
/// ```
/// use trike_cpu::TernaryMatrix;
/// use trike_trit::{Encoding, Scales, TritTensor};
///
/// let trits: Vec<i8> = (0..8 * 512).map(|i| (i % 3) as i8 - 1).collect();
/// let tensor = TritTensor::from_trits(8, 512, &trits, Encoding::Base3, Scales::tensor(0.5))?;
/// let matrix = TernaryMatrix::pack(&tensor)?;
/// assert_eq!((matrix.rows(), matrix.cols(), matrix.depth()), (8, 512, 1));
/// assert_eq!(matrix.bytes(), 8 * 512 / 4 + 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TernaryMatrix {
    rows: usize,
    cols: usize,
    depth: usize,
    group: Option<GroupSize>,
    tied: bool,
    lines: Vec<CodeLine>,
    scales: Shared,
    means: Option<Shared>,
}

/// Scales or means: one for each plane, or four (one a row) for each tile, plane and group.
#[derive(Clone, Debug)]
enum Shared {
    Tensor(Vec<f32>),
    F16(Vec<[f16; TILE]>),
    F32(Vec<[f32; TILE]>),
}

impl Shared {
    fn bytes(&self) -> usize {
        match self {
            Self::Tensor(v) => 4 * v.len(),
            Self::F16(v) => 2 * TILE * v.len(),
            Self::F32(v) => 4 * TILE * v.len(),
        }
    }

    /// `count` groups from `first`, or the one value of set `set` for all of them.
    fn read<K: Kernels>(&self, kernels: K, set: usize, first: usize, out: &mut [[f32; TILE]]) {
        match self {
            Self::Tensor(v) => out.fill([v[set]; TILE]),
            Self::F16(v) => kernels.widen(v[first..first + out.len()].as_flattened(), out.as_flattened_mut()),
            Self::F32(v) => out.copy_from_slice(&v[first..first + out.len()]),
        }
    }
}

impl TernaryMatrix {
    /// Packs a tensor of any encoding, depth, coupling and granularity; every weight keeps its value.
    ///
    /// # Errors
    ///
    /// [`CpuError::Range`](crate::CpuError::Range) when the rows are longer than [`MAX_COLS`].
    pub fn pack(tensor: &TritTensor) -> Result<Self> {
        let (rows, cols, depth) = (tensor.rows(), tensor.cols(), tensor.depth());
        check_range("columns of a ternary matrix", 1, MAX_COLS, cols)?;
        let (blocks, tiles) = (cols.div_ceil(BLOCK), rows.div_ceil(TILE));
        let mut lines = vec![Line([0b01_01_01_01u8; 64]); tiles * depth * blocks * TILE];
        let mut trits = vec![0i8; cols];
        for row in 0..rows {
            for plane in 0..depth {
                tensor.read_row(plane, row, &mut trits)?;
                let first = ((row / TILE * depth + plane) * blocks) * TILE + row % TILE;
                for (block, trits) in trits.chunks(BLOCK).enumerate() {
                    lines[first + block * TILE] = pack_line(trits);
                }
            }
        }
        let tied = tensor.coupling() == Coupling::Tied;
        let sets = if tied { 1 } else { depth };
        let scales = tensor.scales();
        let halves = matches!(scales.values(), trike_trit::ScaleValues::F16(_));
        // Scales of a tied plane are derived; plane 0 has the stored ones.
        let packed = shared(tensor, sets, halves, |plane, row, group| tensor.scale(plane, row, group))?;
        let means = match scales.means() {
            None => None,
            Some(means) => {
                let halves = matches!(means, trike_trit::ScaleValues::F16(_));
                Some(shared(tensor, 1, halves, |_, row, group| tensor.mean(row, group))?)
            }
        };
        let group = match scales.granularity() {
            Granularity::Group(size) => Some(size),
            Granularity::Tensor | Granularity::Row => None,
        };
        Ok(Self { rows, cols, depth, group, tied, lines, scales: packed, means })
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Planes, 1 to 6.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Columns that share a scale, or `None` when a whole row does.
    #[must_use]
    pub fn group(&self) -> Option<GroupSize> {
        self.group
    }

    /// Bytes that the kernels read: codes, scales and means, padding included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(self.lines.as_slice())
            + self.scales.bytes()
            + self.means.as_ref().map_or(0, Shared::bytes)
    }

    pub(crate) fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    pub(crate) fn groups(&self) -> usize {
        self.group.map_or(1, |size| self.cols.div_ceil(size.get()))
    }

    pub(crate) fn has_means(&self) -> bool {
        self.means.is_some()
    }

    /// The lines of one plane of one tile.
    pub(crate) fn tile(&self, tile: usize, plane: usize) -> &[CodeLine] {
        let len = self.blocks() * TILE;
        &self.lines[(tile * self.depth + plane) * len..][..len]
    }

    /// The scales of one plane of one tile, one for each group.
    pub(crate) fn scales<K: Kernels>(&self, kernels: K, tile: usize, plane: usize, out: &mut [[f32; TILE]]) {
        let (set, sets) = if self.tied { (0, 1) } else { (plane, self.depth) };
        self.scales.read(kernels, set, (tile * sets + set) * self.groups(), out);
        if self.tied && plane > 0 {
            // Divided, not multiplied by a rounded third: the value is the one that the tensor defines.
            for scale in out.as_flattened_mut() {
                *scale /= DIVISORS[plane];
            }
        }
    }

    /// The means of one tile, one for each group; `false` when the weights have none.
    pub(crate) fn means<K: Kernels>(&self, kernels: K, tile: usize, out: &mut [[f32; TILE]]) -> bool {
        let Some(means) = &self.means else { return false };
        means.read(kernels, 0, tile * self.groups(), out);
        true
    }

    /// Writes the weights of one row: the mean, then each plane's scale times its trit.
    pub(crate) fn dequantize_row<K: Kernels>(&self, kernels: K, row: usize, out: &mut [f32]) {
        let (tile, r) = (row / TILE, row % TILE);
        let len = self.group.map_or(self.cols, GroupSize::get);
        let mut shared = vec![[0.0; TILE]; self.groups()];
        out.fill(0.0);
        if self.means(kernels, tile, &mut shared) {
            for (out, mean) in out.chunks_mut(len).zip(&shared) {
                out.fill(mean[r]);
            }
        }
        for plane in 0..self.depth {
            self.scales(kernels, tile, plane, &mut shared);
            let lines = self.tile(tile, plane);
            for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                let line = &lines[block * TILE + r];
                for (i, out) in out.iter_mut().enumerate() {
                    let trit = ((line.0[i % 64] >> (2 * (i / 64))) & 3) as i8 - 1;
                    *out += shared[(block * BLOCK + i) / len][r] * f32::from(trit);
                }
            }
        }
    }
}

/// Up to 256 trits as codes; what is missing is trit zero.
fn pack_line(trits: &[i8]) -> CodeLine {
    let mut line = Line([0b01_01_01_01u8; 64]);
    for (i, &trit) in trits.iter().enumerate() {
        let shift = 2 * (i / 64);
        let byte = &mut line.0[i % 64];
        *byte = (*byte & !(3 << shift)) | (((trit + 1) as u8) << shift);
    }
    line
}

/// Brings scales or means into tile order.
fn shared(
    tensor: &TritTensor,
    sets: usize,
    halves: bool,
    value: impl Fn(usize, usize, usize) -> std::result::Result<f32, trike_trit::TritError>,
) -> Result<Shared> {
    if tensor.scales().granularity() == Granularity::Tensor {
        let values: std::result::Result<Vec<f32>, _> = (0..sets).map(|set| value(set, 0, 0)).collect();
        return Ok(Shared::Tensor(values?));
    }
    let (rows, groups) = (tensor.rows(), tensor.groups_per_row());
    let mut all = vec![[0.0; TILE]; rows.div_ceil(TILE) * sets * groups];
    for row in 0..rows {
        for set in 0..sets {
            for group in 0..groups {
                all[(row / TILE * sets + set) * groups + group][row % TILE] = value(set, row, group)?;
            }
        }
    }
    if halves {
        // The values came from f16, so this is exact.
        return Ok(Shared::F16(all.iter().map(|tile| tile.map(f16::from_f32)).collect()));
    }
    Ok(Shared::F32(all))
}
