//! Ternary weights stored without their blocks of zeros.

use trike_trit::{BLOCK_TRITS, TritTensor};

use super::shares::{Share, for_tiles};
use crate::error::CpuError;
use crate::line::{CodeLine, ROWS};
use trike_core::put_two_bits;
use trike_host::CacheLine;
use trike_host::Pool;
use trike_host::{HostError, Lines};

/// Columns per block: one bit of a tensor's sparsity index.
pub(crate) const BLOCK: usize = BLOCK_TRITS;
/// Columns per line.
pub(super) const LINE: usize = 16;

/// The two lines of a block: sixteen rows by [`BLOCK`] columns, two bits each.
pub(crate) type BlockLines = [CodeLine; BLOCK / LINE];

/// A line of zeros.
pub(crate) const ZEROS: CodeLine = CacheLine([0b01_01_01_01; 64]);

/// The nonzero blocks of all planes of a matrix.
///
/// ```text
/// lines:   [tile][plane][present block][line], line contents as in the two-bit layout
/// places:  [tile][plane][present block], block number = first column / 32, ascending
/// ```
///
/// A range of tiles is one contiguous range of both.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    pub(super) lines: Lines<BlockLines>,
    pub(super) places: Vec<u16>,
    /// End of the blocks of each plane of each tile.
    pub(super) ends: Vec<usize>,
    /// The largest magnitude of a scale.
    largest_scale: f32,
}

/// One plane of one tile.
#[derive(Clone, Copy)]
pub(crate) struct BlockTile<'a> {
    pub(crate) lines: &'a [BlockLines],
    /// Block number of each entry of `lines`.
    pub(crate) places: &'a [u16],
}

impl Blocks {
    /// Packs some planes of a tensor.
    pub(crate) fn pack(
        tensor: &TritTensor,
        planes: &[usize],
        largest_scale: f32,
        pool: Option<&Pool>,
    ) -> Result<Self, CpuError> {
        let tiles = tensor.rows().div_ceil(ROWS);
        let (mut places, mut ends) = (Vec::new(), Vec::with_capacity(tiles * planes.len()));
        for tile in 0..tiles {
            for &plane in planes {
                let words = present(tensor, plane, tile);
                let count: u32 = words.iter().map(|word| word.count_ones()).sum();
                let requested = size_of::<u16>() * (places.len() + count as usize);
                places.try_reserve(count as usize).map_err(|_| HostError::Memory { requested })?;
                // At most 2^20 columns (`MAX_COLS`), so a block number fits.
                places.extend(numbers(&words).map(|block| block as u16));
                ends.push(places.len());
            }
        }
        places.shrink_to_fit();
        let lines = Lines::zeroed(places.len())?;
        let mut this = Self { lines, places, ends, largest_scale };
        let Self { lines, places, ends, .. } = &mut this;
        let start = |index: usize| if index == 0 { 0 } else { ends[index - 1] };
        let work = places.len() * ROWS * BLOCK;
        for_tiles(pool, work, tiles, lines, &|tile| start(tile * planes.len()), |Share { tiles, part }| {
            let first = start(tiles.start * planes.len());
            for tile in tiles {
                for (p, &plane) in planes.iter().enumerate() {
                    let range = start(tile * planes.len() + p)..ends[tile * planes.len() + p];
                    let part = &mut part[range.start - first..range.end - first];
                    pack_tile(tensor, plane, tile, &places[range], part)?;
                }
            }
            Ok(())
        })?;
        Ok(this)
    }

    /// Bytes of the tiles before `tile`.
    pub(crate) fn bytes_before(&self, tile: usize, planes: usize) -> usize {
        self.start(tile * planes) * (size_of::<BlockLines>() + size_of::<u16>())
    }

    pub(crate) fn largest_scale(&self) -> f32 {
        self.largest_scale
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val::<[BlockLines]>(&self.lines)
            + size_of_val(self.places.as_slice())
            + size_of_val(self.ends.as_slice())
    }

    #[inline(always)]
    pub(super) fn start(&self, index: usize) -> usize {
        if index == 0 { 0 } else { self.ends[index - 1] }
    }

    /// The `index`-th plane over all tiles.
    #[inline(always)]
    pub(crate) fn tile(&self, index: usize) -> BlockTile<'_> {
        let range = self.start(index)..self.ends[index];
        BlockTile { lines: &self.lines[range.clone()], places: &self.places[range] }
    }

    /// The codes, `trit + 1`, of one row.
    pub(crate) fn read_row(&self, index: usize, row: usize, out: &mut [u8]) {
        out.fill(1);
        let tile = self.tile(index);
        for (lines, place) in tile.lines.iter().zip(tile.places) {
            for (col, out) in out[usize::from(*place) * BLOCK..].iter_mut().take(BLOCK).enumerate() {
                let byte = lines[col / LINE].0[4 * row + col % 4];
                *out = (byte >> (2 * (col % LINE / 4))) & 3;
            }
        }
    }
}

/// The fraction of nonzero blocks of some planes of a tensor; 0 for no planes.
pub(crate) fn share_present(tensor: &TritTensor, planes: &[usize]) -> f64 {
    let tiles = tensor.rows().div_ceil(ROWS);
    let count = move |plane: usize, tile: usize| {
        present(tensor, plane, tile).iter().map(|word| u64::from(word.count_ones())).sum::<u64>()
    };
    let there: u64 = planes.iter().flat_map(|&plane| (0..tiles).map(move |tile| count(plane, tile))).sum();
    let all = planes.len() * tiles * tensor.cols().div_ceil(BLOCK);
    there as f64 / all.max(1) as f64
}

/// One bit per block of a tile: whether any of its rows has a nonzero in the block.
fn present(tensor: &TritTensor, plane: usize, tile: usize) -> Vec<u64> {
    let Some(index) = tensor.sparsity(plane) else { return Vec::new() };
    let mut words = vec![0; index.chunks_per_row()];
    for row in tile * ROWS..tensor.rows().min((tile + 1) * ROWS) {
        let chunks = index.row_chunks(row).unwrap_or_default();
        words.iter_mut().zip(chunks).for_each(|(word, chunk)| *word |= chunk);
    }
    words
}

/// Indices of the set bits, ascending.
pub(crate) fn numbers(words: &[u64]) -> impl Iterator<Item = usize> {
    words.iter().enumerate().flat_map(|(i, &word)| {
        let mut left = word;
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(64 * i + bit)
        })
    })
}

/// Writes the present blocks of one plane of one tile.
fn pack_tile(
    tensor: &TritTensor,
    plane: usize,
    tile: usize,
    places: &[u16],
    lines: &mut [BlockLines],
) -> Result<(), CpuError> {
    if places.is_empty() {
        return Ok(());
    }
    let cols = tensor.cols();
    // Padding, in columns and rows, is trit zero.
    let mut codes = vec![1u8; cols.next_multiple_of(BLOCK)];
    let mut trits = vec![0i8; cols];
    for r in 0..ROWS {
        let row = tile * ROWS + r;
        if row < tensor.rows() {
            tensor.read_row(plane, row, &mut trits)?;
            codes.iter_mut().zip(&trits).for_each(|(code, trit)| *code = (trit + 1).cast_unsigned());
        } else {
            codes.fill(1);
        }
        for (block, place) in lines.iter_mut().zip(places) {
            let codes = codes[usize::from(*place) * BLOCK..].as_chunks::<LINE>().0;
            for (line, codes) in block.iter_mut().zip(codes) {
                put_two_bits(&mut line.0, r, codes);
            }
        }
    }
    Ok(())
}
