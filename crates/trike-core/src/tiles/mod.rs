//! Tiled matrices: the order of weights that host kernels read, in memory and in files.

mod int8;
mod trits;

pub use int8::{Int8Shape, Int8Tiles, Spread};
pub use trits::{TileLayout, TritShape, TritTiles, put_two_bits};

use half::f16;
use trike_trit::ScaleValues;

/// Rows per tile: the 32-bit lanes of the widest vector.
pub const TILE_ROWS: usize = 16;

/// Bytes per line of a tile: a cache line.
pub const LINE_BYTES: usize = 64;

/// A tiled matrix; `B` holds bytes, for example those of a mapped file.
#[derive(Clone, Debug, PartialEq)]
pub enum Tiles<B> {
    /// Trits with scales.
    Trits(TritTiles<B>),
    /// Int8 codes with scales.
    Int8(Int8Tiles<B>),
}

impl<B> Tiles<B> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::Trits(t) => t.rows,
            Self::Int8(t) => t.rows,
        }
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        match self {
            Self::Trits(t) => t.cols,
            Self::Int8(t) => t.cols,
        }
    }
}

/// Numbers of `values` in tile order: `[set][row][group]` becomes `[tile][set][group][row of the tile]`, padded with zeros.
fn tile_values(values: &ScaleValues, rows: usize, sets: usize, groups: usize) -> Vec<u8> {
    fn order<T: Copy + Default>(values: &[T], rows: usize, sets: usize, groups: usize) -> Vec<T> {
        let mut all = vec![T::default(); rows.div_ceil(TILE_ROWS) * sets * groups * TILE_ROWS];
        for (i, value) in values.iter().enumerate() {
            let (set, row, group) = (i / groups / rows, i / groups % rows, i % groups);
            all[((row / TILE_ROWS * sets + set) * groups + group) * TILE_ROWS + row % TILE_ROWS] = *value;
        }
        all
    }
    match values {
        ScaleValues::F16(v) => order(v, rows, sets, groups).iter().flat_map(|v| v.to_le_bytes()).collect(),
        ScaleValues::F32(v) => order(v, rows, sets, groups).iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// The inverse of [`tile_values`]; `bytes` has the length that it returns.
fn untile_values(bytes: &[u8], halves: bool, rows: usize, sets: usize, groups: usize) -> ScaleValues {
    let place = |i: usize| {
        let (set, row, group) = (i / groups / rows, i / groups % rows, i % groups);
        ((row / TILE_ROWS * sets + set) * groups + group) * TILE_ROWS + row % TILE_ROWS
    };
    let count = sets * rows * groups;
    if halves {
        let all = bytes.as_chunks::<2>().0;
        ScaleValues::F16((0..count).map(|i| f16::from_le_bytes(all[place(i)])).collect())
    } else {
        let all = bytes.as_chunks::<4>().0;
        ScaleValues::F32((0..count).map(|i| f32::from_le_bytes(all[place(i)])).collect())
    }
}

/// Bytes of a number.
fn number_bytes(halves: bool) -> usize {
    if halves { 2 } else { 4 }
}

/// Checks the length of a part.
fn check_len(what: &'static str, expected: usize, got: usize) -> Result<(), crate::TensorError> {
    if expected == got { Ok(()) } else { Err(crate::TensorError::Length { what, expected, got }) }
}
