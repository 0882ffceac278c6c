//! Kernels of sign codes: means of keys, codes of keys and queries, scores.

use cubecl::prelude::*;

use super::super::codes::{Scales, element_at};
use super::super::index::words_of;
use crate::math::{magnitude, nearest};
use crate::reduce::{max_words, sum_floats, sum_ints};

/// Bits of a query's integers, in two's complement.
pub(super) const PLANES: usize = 4;
/// The largest magnitude of these integers.
pub(super) const LARGEST: usize = 7;
/// The length code of a key of the mean length.
const MEAN_LENGTH: f32 = 64.0;
/// The largest length code, at which longer keys saturate.
pub(super) const LONGEST: u32 = 255;
/// Right shift of a product with a length.
pub(super) const SHIFT: u32 = 7;
/// Keys that a cube of [`add_keys`] adds up.
pub(super) const ADDED: usize = 512;
/// Keys that a cube of [`code_keys`] codes.
pub(super) const CODED: usize = 8;

/// Compile-time parameters of the kernels: unit `c` of a cube has channel `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Head dimension.
    pub(super) head_dim: usize,
    /// Block size of the Hadamard transform, a power of two.
    pub(super) block: usize,
    /// Units per cube, a power of two of at least the head dimension.
    pub(super) units: usize,
}

impl Form {
    pub(super) fn new(head_dim: usize) -> Self {
        let block = 1 << head_dim.trailing_zeros();
        Self { head_dim, block, units: head_dim.next_power_of_two() }
    }

    /// Words of a code.
    pub(super) fn words(self) -> usize {
        words_of(self.head_dim)
    }

    /// Words of a code per load.
    pub(super) fn lanes(self) -> usize {
        [4, 2, 1].into_iter().find(|lanes| self.words().is_multiple_of(*lanes)).unwrap_or(1)
    }

    /// Words of a query: bit planes of each word, and the sum of the integers.
    pub(super) fn query_words(self) -> usize {
        PLANES * self.words() + 1
    }

    /// Offset that makes every score positive.
    pub(super) fn bias(self) -> u32 {
        (((LARGEST * self.head_dim) as u32 * LONGEST) >> SHIFT) + 2
    }

    /// Bytes of shared memory: two numbers per unit.
    pub(super) fn shared_bytes(self) -> usize {
        2 * 4 * self.units
    }
}

/// The unit's channel of the normalized Hadamard transform, in blocks of a head whose elements are distributed over the units.
#[cube]
fn transform(element: f32, shared: &mut Shared<[f32]>, #[comptime] form: Form) -> f32 {
    let mut x = element;
    #[unroll]
    for stage in 0..comptime!(form.block.ilog2()) {
        let step = comptime!(1u32 << stage);
        shared[UNIT_POS as usize] = x;
        sync_cube();
        let other = shared[(UNIT_POS ^ step) as usize];
        x = select(UNIT_POS & step == 0, x + other, other - x);
        sync_cube();
    }
    x * comptime!(1.0 / (form.block as f32).sqrt())
}

/// The unit's element of a key; zero past the last one.
#[cube]
fn element_of<E: Numeric>(
    k: &[E],
    scales: &ComptimeOption<Scales>,
    key: usize,
    #[comptime] form: Form,
) -> f32 {
    let mut element = 0.0f32;
    if (UNIT_POS as usize) < form.head_dim {
        element = element_at::<E>(k, scales, key, UNIT_POS as usize, form.head_dim);
    }
    element
}

/// Cube `(part, KV head)` adds up the elements of a part of the keys before `end`, and their squares: `[head][part][channels + 1]`.
#[cube(launch_unchecked)]
pub(super) fn add_keys<E: Numeric>(
    k: &[E],
    scales: ComptimeOption<Scales>,
    sums: &mut [f32],
    end: u32,
    capacity: u32,
    #[comptime] form: Form,
) {
    let mut floats = Shared::<[f32]>::new_slice(form.units);
    let head = CUBE_POS_Y as usize;
    let first = CUBE_POS_X as usize * ADDED;
    let last = min(first + ADDED, end as usize);
    let mut sum = 0.0f32;
    let mut squares = 0.0f32;
    for slot in first..last {
        let x = element_of::<E>(k, &scales, head * capacity as usize + slot, form);
        sum += x;
        squares += x * x;
    }
    let to = (head * CUBE_COUNT_X as usize + CUBE_POS_X as usize) * comptime!(form.head_dim + 1);
    let squares = sum_floats(squares, &mut floats, form.units, false);
    if (UNIT_POS as usize) < form.head_dim {
        sums[to + UNIT_POS as usize] = sum;
    }
    if UNIT_POS == 0 {
        sums[to + form.head_dim] = squares;
    }
}

/// Cube `head` writes the center of the codes, `[head][channels + 1]`: the channels of the mean of `count` keys, and
/// [`MEAN_LENGTH`] divided by the root mean square of the lengths of centred keys.
#[cube(launch_unchecked)]
pub(super) fn center(sums: &[f32], centers: &mut [f32], parts: u32, count: u32, #[comptime] form: Form) {
    let mut floats = Shared::<[f32]>::new_slice(form.units);
    let head = CUBE_POS_X as usize;
    let width = comptime!(form.head_dim + 1);
    let channel = clamp_max(UNIT_POS as usize, form.head_dim);
    let mut sum = 0.0f32;
    let mut squares = 0.0f32;
    for part in 0..parts as usize {
        let at = (head * parts as usize + part) * width;
        sum += sums[at + channel];
        squares += sums[at + form.head_dim];
    }
    let count = f32::cast_from(count);
    let used = (UNIT_POS as usize) < form.head_dim;
    let mean = select(used, sum / count, 0.0f32);
    let of_mean = sum_floats(mean * mean, &mut floats, form.units, false);
    let mean = transform(mean, &mut floats, form);
    if used {
        centers[head * width + UNIT_POS as usize] = mean;
    }
    if UNIT_POS == 0 {
        let all = squares / count;
        let square = all - of_mean;
        // A difference of nearly equal numbers is rounding noise.
        let mut scale = 0.0f32;
        if square > all * 1e-6 {
            scale = MEAN_LENGTH / f32::sqrt(square);
        }
        centers[head * width + form.head_dim] = scale;
    }
}

/// Codes one key: bit `c % 32` of word `c / 32` is set if channel `c` exceeds that of the mean; the length is that of the centred
/// key.
#[cube]
fn code_key<E: Numeric>(
    k: &[E],
    scales: &ComptimeOption<Scales>,
    centers: &[f32],
    codes: &mut [u32],
    lengths: &mut [u32],
    head: usize,
    key: usize,
    floats: &mut Shared<[f32]>,
    bits: &mut Shared<[u32]>,
    #[comptime] form: Form,
) {
    let x = transform(element_of::<E>(k, scales, key, form), floats, form);
    let at = head * comptime!(form.head_dim + 1);
    let mean = centers[at + clamp_max(UNIT_POS as usize, comptime!(form.head_dim - 1))];
    let used = (UNIT_POS as usize) < form.head_dim;
    bits[UNIT_POS as usize] = select(used && x > mean, 1u32, 0u32);
    let difference = select(used, x - mean, 0.0f32);
    // Also synchronizes the bits.
    let square = sum_floats(difference * difference, floats, form.units, false);
    if (UNIT_POS as usize) < comptime!(form.words()) {
        codes[key * comptime!(form.words()) + UNIT_POS as usize] =
            word_of(bits, UNIT_POS as usize, 0u32, form);
    }
    if UNIT_POS == 0 {
        let length = f32::sqrt(square) * centers[at + form.head_dim];
        // NaN is the longest.
        let length = select(length < 255.0f32, length, 255.0f32);
        lengths[key] = u32::cast_from(nearest(length));
    }
    sync_cube();
}

/// Bit `plane` of 32 units' numbers, as a word.
#[cube]
fn word_of(bits: &mut Shared<[u32]>, word: usize, plane: u32, #[comptime] form: Form) -> u32 {
    let mut packed = 0u32;
    for i in 0..32u32 {
        let at = word * 32 + i as usize;
        if at < form.head_dim {
            packed |= (bits[at] >> plane & 1u32) << i;
        }
    }
    packed
}

/// Cube `(part, KV head)` codes some of the keys at positions `first..end`.
#[cube(launch_unchecked)]
pub(super) fn code_keys<E: Numeric>(
    k: &[E],
    scales: ComptimeOption<Scales>,
    centers: &[f32],
    codes: &mut [u32],
    lengths: &mut [u32],
    first: u32,
    end: u32,
    capacity: u32,
    #[comptime] form: Form,
) {
    let mut floats = Shared::<[f32]>::new_slice(form.units);
    let mut bits = Shared::<[u32]>::new_slice(form.units);
    let head = CUBE_POS_Y as usize;
    let from = first as usize + CUBE_POS_X as usize * CODED;
    let to = min(from + CODED, end as usize);
    for slot in from..to {
        let key = head * capacity as usize + slot;
        code_key::<E>(k, &scales, centers, codes, lengths, head, key, &mut floats, &mut bits, form);
    }
}

/// Cube `head` codes the key at the position of a row, and writes the sum of the queries of the heads that share its keys, as
/// integers from -7 to 7 in bit planes, and the sum of these integers: `[head][PLANES x words + 1]`. A query that is zero or not
/// finite becomes zeros.
#[cube(launch_unchecked)]
pub(super) fn code_step<E: Numeric>(
    q: &[f32],
    k: &[E],
    scales: ComptimeOption<Scales>,
    centers: &[f32],
    positions: &[u32],
    codes: &mut [u32],
    lengths: &mut [u32],
    query: &mut [u32],
    row: u32,
    capacity: u32,
    #[comptime] share: usize,
    #[comptime] form: Form,
) {
    let mut floats = Shared::<[f32]>::new_slice(form.units);
    let mut bits = Shared::<[u32]>::new_slice(form.units);
    let mut ints = Shared::<[i32]>::new_slice(form.units);
    let head = CUBE_POS_X as usize;
    let key = head * capacity as usize + positions[row as usize] as usize;
    code_key::<E>(k, &scales, centers, codes, lengths, head, key, &mut floats, &mut bits, form);

    let used = (UNIT_POS as usize) < form.head_dim;
    let mut sum = 0.0f32;
    if used {
        let first = (row as usize * CUBE_COUNT_X as usize + head) * share;
        for h in 0..share {
            sum += q[(first + h) * form.head_dim + UNIT_POS as usize];
        }
    }
    let x = transform(sum, &mut floats, form);
    let size = max_words(select(used, magnitude(x), 0u32), &mut bits, form.units, false);
    let factor = comptime!(LARGEST as f32) / f32::reinterpret(size);
    let mut integer = 0i32;
    if used && size > 0 && size < 0x7F80_0000 && magnitude(factor) < 0x7F80_0000 {
        integer = nearest(x * factor);
    }
    let total = sum_ints(integer, &mut ints, form.units, false);
    bits[UNIT_POS as usize] = u32::reinterpret(integer);
    sync_cube();
    let to = head * comptime!(form.query_words());
    let words = comptime!(form.words());
    if (UNIT_POS as usize) < comptime!(PLANES * form.words()) {
        let (plane, word) = (UNIT_POS as usize / words, UNIT_POS as usize % words);
        query[to + UNIT_POS as usize] = word_of(&mut bits, word, plane as u32, form);
    }
    if UNIT_POS == 0 {
        query[to + comptime!(PLANES * form.words())] = u32::reinterpret(total);
    }
}

/// The units of KV head `y` score positions `2 i` and `2 i + 1` in a grid-stride loop, each in 16 bits: the floor of the sum of the
/// query's integers, with the signs of the code, times the length, over 128, plus the bias; 0 for positions before `first` and for
/// the `last` ones.
///
/// The sum over the signs is twice the sum over the set bits, minus the sum of all integers.
#[cube(launch_unchecked)]
pub(super) fn score<N: Size>(
    codes: &[Vector<u32, N>],
    lengths: &[u32],
    query: &[u32],
    positions: &[u32],
    scores: &mut [u32],
    row: u32,
    capacity: u32,
    pairs: u32,
    first: u32,
    last: u32,
    #[comptime] form: Form,
) {
    let head = CUBE_POS_Y as usize;
    let words = comptime!(form.words());
    let loads = comptime!(form.words() / form.lanes());
    let mut planes = Array::<u32>::new(comptime!(PLANES * form.words()));
    let from = head * comptime!(form.query_words());
    #[unroll]
    for i in 0..comptime!(PLANES * form.words()) {
        planes[i] = query[from + i];
    }
    let sum = i32::reinterpret(query[from + comptime!(PLANES * form.words())]);
    let end = positions[row as usize] + 1 - last;
    let mut pair = CUBE_POS_X * CUBE_DIM + UNIT_POS;
    while pair < pairs {
        let mut both = 0u32;
        #[unroll]
        for n in 0..2u32 {
            let position = 2 * pair + n;
            // Positions past the last one are clamped and unused, so that no load waits for a comparison.
            let key = head * capacity as usize + clamp_max(position, capacity - 1) as usize;
            let mut set = 0i32;
            #[unroll]
            for i in 0..loads {
                let code = codes[key * loads + i];
                #[unroll]
                for lane in 0..form.lanes() {
                    let word = code.extract(lane);
                    #[unroll]
                    for plane in 0..PLANES {
                        let ones =
                            (word & planes[comptime!(plane * words + i * form.lanes() + lane)]).count_ones();
                        // The last plane is the sign.
                        let weight =
                            comptime!(if plane == PLANES - 1 { -(1i32 << plane) } else { 1i32 << plane });
                        set += i32::cast_from(ones) * weight;
                    }
                }
            }
            let product = (2 * set - sum) * i32::cast_from(lengths[key]);
            let biased = u32::cast_from((product >> comptime!(SHIFT as i32)) + comptime!(form.bias() as i32));
            let used = position >= first && position < end;
            both |= select(used, biased & 0xFFFF, 0u32) << comptime!(16 * n);
        }
        scores[head * pairs as usize + pair as usize] = both;
        pair += CUBE_COUNT_X * CUBE_DIM;
    }
}
