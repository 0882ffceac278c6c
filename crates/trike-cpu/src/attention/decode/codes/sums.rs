//! Products of weights with values.

use bytemuck::cast_slice;

use super::{Codes, beginning};
use crate::attention::decode::CHUNK;
use crate::attention::decode::ahead::Ahead;
use crate::attention::lanes::CodeLanes;
use crate::line::FloatLine;
use trike_host::Loop;

/// Positions whose weights share a step.
pub(super) const BLOCK: usize = 64;
/// Floats near `1.5 * 2^23` are 1 apart: adding this rounds to nearest even, and the low bits of the sum are the integer.
const MAGIC: f32 = 12_582_912.0;

/// Weights of a head over a block as integers.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    /// Pairs of 16-bit integers.
    pairs: [i32; BLOCK / 2],
    /// Their sum.
    total: i32,
    /// The value of one step; NaN if a weight is not finite.
    step: f32,
}

impl Weights {
    pub(super) const NONE: Self = Self { pairs: [0; BLOCK / 2], total: 0, step: 0.0 };

    /// Rounds the products of weights and scales.
    #[inline(always)]
    fn round(weights: &[f32; BLOCK], scales: &[f32; BLOCK]) -> Self {
        let mut products = [0.0f32; BLOCK];
        for i in 0..BLOCK {
            products[i] = weights[i] * scales[i];
        }
        // As integers, magnitudes sort like the floats, and non-finite values sort above all others.
        let mut largest = 0;
        for i in 0..BLOCK {
            largest = largest.max(products[i].to_bits() & 0x7FFF_FFFF);
        }
        if largest == 0 {
            return Self::NONE;
        }
        // The limit keeps the factor finite; tiny weights round to zero.
        let factor = (f32::from(i16::MAX) / f32::from_bits(largest)).min(1e30);
        let mut integers = [0i16; BLOCK];
        for i in 0..BLOCK {
            integers[i] = (products[i] * factor + MAGIC).to_bits() as i16;
        }
        let mut total = 0;
        for i in 0..BLOCK {
            total += i32::from(integers[i]);
        }
        Self {
            // Two neighbours form a pair, the first one in the low half.
            pairs: bytemuck::cast::<_, [i32; BLOCK / 2]>(integers.map(i16::to_le)).map(i32::from_le),
            total,
            step: if largest < f32::INFINITY.to_bits() { 1.0 / factor } else { f32::NAN },
        }
    }
}

/// A block of weights or scales, zero-padded.
#[inline(always)]
fn filled(some: &[f32]) -> [f32; BLOCK] {
    match some.as_array() {
        Some(all) => *all,
        None => {
            let mut all = [0.0; BLOCK];
            all[..some.len()].copy_from_slice(some);
            all
        }
    }
}

/// `sums[h] += sum_j weights[h][first + j] * scales[j] * rows[j]`
pub(super) struct AddCodes<'a, S, E> {
    pub(super) s: S,
    /// `[share][CHUNK]`
    pub(super) weights: &'a [f32],
    pub(super) first: usize,
    /// `[scales.len()][width]`
    pub(super) rows: &'a [E],
    pub(super) scales: &'a [f32],
    pub(super) width: usize,
    /// The bytes read after `rows`, for prefetching.
    pub(super) next: &'a [u8],
    /// `[share][width.div_ceil(16)][PARTS / 2]`: sixteen columns of the low nibbles, and of the high ones.
    pub(super) sums: &'a mut [FloatLine],
    /// `[share]`
    pub(super) room: &'a mut [Weights],
}

/// Rows of a block.
struct Block<'a> {
    /// The bytes from the first row on, continuing past the last one.
    bytes: &'a [u8],
    width: usize,
    rows: usize,
    ahead: Ahead<'a>,
}

impl<S: CodeLanes, E: Codes> Loop for AddCodes<'_, S, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        if const { E::PARTS == 2 } { self.of::<1>() } else { self.of::<2>() }
    }
}

impl<S: CodeLanes, E: Codes> AddCodes<'_, S, E> {
    #[inline(always)]
    fn of<const HALVES: usize>(self) {
        let Self { s, weights, first, rows, scales, width, next, sums, room } = self;
        let (rows, share): (&[u8], _) = (cast_slice(rows), room.len());
        let lines = sums.len() / share;
        for (n, scales) in scales.chunks(BLOCK).enumerate() {
            let at = n * BLOCK;
            let filled_scales = filled(scales);
            for h in 0..share {
                let weights = filled(&weights[h * CHUNK + first + at..][..scales.len()]);
                room[h] = Weights::round(&weights, &filled_scales);
            }
            let ahead = Ahead::new(rows, at, next, width);
            let block = Block { bytes: &rows[at * width..], width, rows: scales.len(), ahead };
            let mut head = 0;
            while head < share {
                let heads = (share - head).min(heads_at_once::<S>(HALVES));
                let sums = &mut sums[head * lines..][..heads * lines];
                let fetch = head == 0;
                match heads {
                    4 if const { heads_at_once::<S>(HALVES) >= 4 } => {
                        add::<S, E, HALVES, 4>(s, &room[head..], &block, fetch, sums);
                    }
                    3 if const { heads_at_once::<S>(HALVES) >= 3 } => {
                        add::<S, E, HALVES, 3>(s, &room[head..], &block, fetch, sums);
                    }
                    2 if const { heads_at_once::<S>(HALVES) >= 2 } => {
                        add::<S, E, HALVES, 2>(s, &room[head..], &block, fetch, sums);
                    }
                    _ => add::<S, E, HALVES, 1>(s, &room[head..], &block, fetch, sums),
                }
                head += heads;
            }
        }
    }
}

/// Number of heads whose sums of a unit fit the registers.
const fn heads_at_once<S: CodeLanes>(halves: usize) -> usize {
    match (S::PAIR_SUMS, halves) {
        (16.., _) | (4.., 1) => 4,
        (4.., _) | (_, 1) => 2,
        _ => 1,
    }
}

/// The sums of `H` heads.
#[inline(always)]
fn add<S: CodeLanes, E: Codes, const HALVES: usize, const H: usize>(
    s: S,
    weights: &[Weights],
    block: &Block<'_>,
    fetch: bool,
    sums: &mut [FloatLine],
) {
    let mut few = [&Weights::NONE; H];
    for h in 0..H {
        few[h] = &weights[h];
    }
    // Sixteen bytes of a row are a unit. With 512 bits the sums of 64 columns fit the registers.
    let whole = block.width / 16;
    let mut unit = 0;
    while unit < whole {
        let left = whole - unit;
        let sums = Sums { all: &mut *sums, unit };
        if const { S::PAIR_SUMS >= 16 && HALVES == 1 } && left >= 4 {
            tile::<S, E, HALVES, H, 4>(s, few, block, 16 * unit, fetch, sums);
            unit += 4;
        } else if const { S::PAIR_SUMS >= 16 } && left >= 2 {
            tile::<S, E, HALVES, H, 2>(s, few, block, 16 * unit, fetch, sums);
            unit += 2;
        } else {
            tile::<S, E, HALVES, H, 1>(s, few, block, 16 * unit, fetch, sums);
            unit += 1;
        }
    }
    let rest = block.width % 16;
    if rest > 0 {
        // Padded to a whole unit, so that the loop over the rows needs no special case.
        let mut copy = [0; 16 * BLOCK];
        for (row, copy) in copy.as_chunks_mut().0[..block.rows].iter_mut().enumerate() {
            *copy = beginning(&block.bytes[row * block.width + 16 * whole..], rest);
        }
        if fetch && whole == 0 {
            for at in (0..block.rows).step_by(4) {
                block.ahead.fetch(s, at, (block.rows - at).min(4));
            }
        }
        let block = Block { bytes: &copy, width: 16, ..*block };
        tile::<S, E, HALVES, H, 1>(s, few, &block, 0, false, Sums { all: sums, unit: whole });
    }
}

/// Destination of the sums of a tile.
struct Sums<'a> {
    /// `[H]` as in [`AddCodes`].
    all: &'a mut [FloatLine],
    /// The first unit of the tile.
    unit: usize,
}

/// The sums of `H` heads and `U` units, kept in registers.
#[inline(always)]
fn tile<S: CodeLanes, E: Codes, const HALVES: usize, const H: usize, const U: usize>(
    s: S,
    weights: [&Weights; H],
    block: &Block<'_>,
    column: usize,
    fetch: bool,
    sums: Sums<'_>,
) {
    let mut acc = [[[s.splat_int(0); HALVES]; U]; H];
    let (width, (place, offset)) = (block.width, block.ahead.place(0));
    for j in 0..block.rows.div_ceil(4).min(BLOCK / 4) {
        // As many lines as are read here, spread over all tiles: issued together, prefetches would fill the load buffers.
        if fetch {
            for u in 0..U {
                s.prefetch(place, offset + column * BLOCK + 64 * (U * j + u));
            }
        }
        let mut rows: [&[[u8; 16]]; 4] = [&[]; 4];
        for r in 0..4 {
            // Missing rows repeat the last one, with weights of zero.
            let at = (4 * j + r).min(block.rows - 1) * width + column;
            rows[r] = block.bytes[at..][..16 * U].as_chunks().0;
        }
        let mut bytes = [s.splat_byte(0); U];
        for u in 0..U {
            bytes[u] = s.load_columns([&rows[0][u], &rows[1][u], &rows[2][u], &rows[3][u]]);
        }
        let mut w = [s.splat_int(0); H];
        for h in 0..H {
            w[h] = s.splat_int(weights[h].pairs[2 * j]);
        }
        // Written out with literals: a loop over the parts would add a jump for each.
        for u in 0..U {
            let x = [E::widen(s, bytes[u], 0), E::widen(s, bytes[u], HALVES - 1)];
            for half in 0..HALVES {
                for h in 0..H {
                    acc[h][u][half] = s.dot_pairs(acc[h][u][half], x[half], w[h]);
                }
            }
        }
        for h in 0..H {
            w[h] = s.splat_int(weights[h].pairs[2 * j + 1]);
        }
        for u in 0..U {
            let x = [E::widen(s, bytes[u], HALVES), E::widen(s, bytes[u], 2 * HALVES - 1)];
            for half in 0..HALVES {
                for h in 0..H {
                    acc[h][u][half] = s.dot_pairs(acc[h][u][half], x[half], w[h]);
                }
            }
        }
    }
    let lines = sums.all.len() / H;
    for h in 0..H {
        let correction = s.splat_int(-E::OFFSET * weights[h].total);
        let step = s.splat(weights[h].step);
        let sums = &mut sums.all[h * lines + HALVES * sums.unit..][..HALVES * U];
        for u in 0..U {
            for half in 0..HALVES {
                let mut sum = acc[h][u][half];
                if E::FACTOR == 2 {
                    sum = s.add_ints(sum, sum);
                }
                let line = &mut sums[HALVES * u + half];
                let new = s.mul(s.to_floats(s.add_ints(sum, correction)), step);
                s.store_floats(s.add(s.load_floats(line), new), line);
            }
        }
    }
}
