//! Kernels of linear layers, and shared helpers.

pub(super) mod base3;
pub(super) mod bitmap;
pub(super) mod combine;
pub(crate) mod decode;
pub(crate) mod dense;
pub(super) mod dense_mma;
pub(super) mod mma;
pub(super) mod sparse;
pub(super) mod tiled;
pub(super) mod wmma;

pub use mma::{MAX_STAGES, MmaShape};
pub use wmma::{WmmaElement, WmmaShape};

use cubecl::prelude::*;

/// Four words of a lane.
pub(crate) type Quad = Vector<u32, Const<4>>;

/// Compile-time parameters of all ternary kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    /// Sets of trit planes; each set has its own scales.
    pub(crate) sets: usize,
    /// Trit planes per set, folded into one integer.
    pub(crate) planes: usize,
    /// Group size in columns; 0 = one scale per row.
    pub(crate) group: usize,
    /// Groups have means.
    pub(crate) means: bool,
    /// Code rows per token.
    pub(crate) slices: usize,
    /// Columns of a token per factor; 0 = one factor per token.
    pub(crate) x_group: usize,
    /// Number of outputs.
    pub(crate) parts: usize,
    /// Adds the products to the existing outputs.
    pub(crate) add: bool,
    /// Zero blocks are omitted.
    pub(crate) skip: bool,
    /// Five trits per byte, see [`TernaryLayout::Base3`](super::TernaryLayout::Base3).
    pub(crate) base3: bool,
}

impl Form {
    /// Columns per scaled integer sum, at most a block; 0 = the whole row.
    pub(crate) fn segment(self) -> usize {
        match (self.group, self.x_group) {
            (0, 0) => 0,
            (0, n) | (n, 0) => n.min(128),
            (a, b) => a.min(b).min(128),
        }
    }

    /// Returns true if a whole row is one integer sum.
    pub(crate) fn exact(self) -> bool {
        self.segment() == 0 && self.sets == 1 && !self.means
    }

    /// Largest magnitude of a weight, in units of [`unit`](Self::unit).
    pub(super) fn largest(self) -> usize {
        (3usize.pow(self.planes as u32) - 1) / 2
    }

    /// The integer that kernels multiply for a trit of one. With unfolded two-bit weights the two bits are at the top of a byte and
    /// need no sign extension, so it is 64; it is 1 for folded planes and for base 3. [`store`] divides by it, which is exact for a
    /// power of two.
    pub(super) fn unit(self) -> f32 {
        if self.planes == 1 && !self.base3 { 64.0 } else { 1.0 }
    }

    /// Bias of the weight codes of base 3, which are trits plus one; subtracted once per unit of the activation sum.
    pub(super) fn bias(self) -> i32 {
        i32::from(self.base3)
    }

    /// True if sums of activations are needed.
    pub(super) fn needs_sums(self) -> bool {
        self.base3 || self.means
    }
}

/// Run-time shapes.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Dims {
    /// Blocks of 128 columns.
    pub(crate) blocks: u32,
    /// Groups per row.
    pub(super) groups: u32,
    /// Code rows of the activations.
    pub(super) code_rows: u32,
    /// The first tile of the second part.
    pub(super) tile1: u32,
    /// The first tile of the third part.
    pub(super) tile2: u32,
    /// Rows of the first part.
    pub(super) rows0: u32,
    /// Rows of the second part.
    pub(super) rows1: u32,
    /// Rows of the third part.
    pub(super) rows2: u32,
}

/// Field `j` of word `i` of a lane's planes: four signed bytes, each [`Form::unit`] times the weight.
#[cube]
pub(super) fn four_codes(
    words: &Array<Quad>,
    #[comptime] i: usize,
    #[comptime] j: usize,
    #[comptime] planes: usize,
) -> i32 {
    let mut four = words[0].extract(i);
    if comptime!(planes == 1) {
        // Two bits of two's complement at the top of each byte.
        four = (four << comptime!(6 - 2 * j as u32)) & 0xC0C0_C0C0;
    } else {
        four = (four >> comptime!(2 * j as u32)) & 0x0303_0303;
        #[unroll]
        for p in 1..planes {
            // Trits plus one: the sum stays below 243, so no byte carries into the next.
            four = four * 3 + ((words[p].extract(i) >> comptime!(2 * j as u32)) & 0x0303_0303);
        }
        // Subtracts `(3^planes - 1) / 2` from each byte: adds an offset so that the largest is 255, then flips the sign bit.
        four = (four + comptime!(0x0101_0101 * (128 - (3u32.pow(planes as u32) - 1) / 2))) ^ 0x8080_8080;
    }
    i32::reinterpret(four)
}

/// The sum of a row's codes over the columns scaled together: `segment` columns starting at segment `first`, or the whole row.
#[cube]
pub(super) fn sum_of(sums: &[i32], row: usize, first: usize, dims: &Dims, #[comptime] segment: usize) -> i32 {
    let segments = dims.blocks as usize * 4;
    let base = row * (segments + 4);
    let mut sum = 0i32;
    if comptime!(segment == 0) {
        sum = sums[base + segments];
    } else {
        #[unroll]
        for s in 0..comptime!(segment / 32) {
            // Skip past the last segment: memory there holds another sum.
            sum += select(first + s < segments, sums[base + first + s], 0i32);
        }
    }
    sum
}

/// The group of a segment's scale; padding columns use the last group.
#[cube]
pub(super) fn group_of(first: usize, dims: &Dims, #[comptime] group: usize) -> usize {
    let mut index = 0usize;
    if comptime!(group != 0) {
        index = clamp_max(first * 32 / group, dims.groups as usize - 1);
    }
    index
}

/// The factor of a token at a segment; 1 if there is one factor for the whole token.
#[cube]
pub(super) fn segment_factor(
    factors: &[f32],
    token: usize,
    first: usize,
    dims: &Dims,
    #[comptime] x_group: usize,
) -> f32 {
    let mut factor = 1.0f32;
    if comptime!(x_group != 0) {
        let segments = dims.blocks as usize * 4;
        factor = factors[token * segments + clamp_max(first, segments - 1)];
    }
    factor
}

/// Writes the output of row `r` of a tile for a token, `value` over [`Form::unit`]; padding rows are dropped.
#[cube]
pub(super) fn store(
    out0: &mut [f32],
    out1: &mut [f32],
    out2: &mut [f32],
    value: f32,
    token: usize,
    tile: usize,
    r: usize,
    dims: &Dims,
    #[comptime] form: Form,
) {
    let value = value * comptime!(1.0 / form.unit());
    if comptime!(form.parts == 1) {
        store_part(out0, value, token, tile * 16 + r, dims.rows0 as usize, form.add);
    } else {
        let (tile1, tile2) = (dims.tile1 as usize, dims.tile2 as usize);
        if tile < tile1 {
            store_part(out0, value, token, tile * 16 + r, dims.rows0 as usize, form.add);
        } else {
            if comptime!(form.parts == 2) {
                store_part(out1, value, token, (tile - tile1) * 16 + r, dims.rows1 as usize, form.add);
            } else {
                if tile < tile2 {
                    store_part(out1, value, token, (tile - tile1) * 16 + r, dims.rows1 as usize, form.add);
                } else {
                    store_part(out2, value, token, (tile - tile2) * 16 + r, dims.rows2 as usize, form.add);
                }
            }
        }
    }
}

/// The output that [`store`] adds to; zero if it does not add.
#[cube]
pub(super) fn stored(
    out0: &mut [f32],
    out1: &mut [f32],
    out2: &mut [f32],
    token: usize,
    tile: usize,
    r: usize,
    dims: &Dims,
    #[comptime] form: Form,
) -> f32 {
    let (tile1, tile2) = (dims.tile1 as usize, dims.tile2 as usize);
    if comptime!(form.parts == 1) || tile < tile1 {
        stored_part(out0, token, tile * 16 + r, dims.rows0 as usize)
    } else if comptime!(form.parts == 2) || tile < tile2 {
        stored_part(out1, token, (tile - tile1) * 16 + r, dims.rows1 as usize)
    } else {
        stored_part(out2, token, (tile - tile2) * 16 + r, dims.rows2 as usize)
    }
}

#[cube]
fn stored_part(out: &mut [f32], token: usize, row: usize, rows: usize) -> f32 {
    let mut value = 0.0f32;
    if row < rows {
        value = out[token * rows + row];
    }
    value
}

#[cube]
fn store_part(out: &mut [f32], value: f32, token: usize, row: usize, rows: usize, #[comptime] add: bool) {
    if row < rows {
        let at = token * rows + row;
        if comptime!(add) {
            out[at] += value;
        } else {
            out[at] = value;
        }
    }
}
