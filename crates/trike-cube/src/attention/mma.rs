//! Attention with many query rows on matrix instructions: `mma` f16 m16n8k16 with f32 accumulation (after FlashAttention-2:
//! Dao, 2023).

use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;
use half::f16;

use super::decode::LOWEST;

/// Keys per tile.
const KEYS: usize = 64;
/// Rows per plane.
pub(super) const PLANE_ROWS: usize = 16;
/// Units per plane.
pub(super) const LANES: usize = 32;

type Quad = Vector<u32, Const<4>>;
type Pair = Vector<u32, Const<2>>;

/// Compile-time parameters of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Head dimension, a multiple of 32.
    pub(super) head_dim: usize,
    /// Query heads per KV head.
    pub(super) share: usize,
    /// Planes per cube.
    pub(super) planes: usize,
}

impl Form {
    fn units(self) -> usize {
        LANES * self.planes
    }

    /// Stride of keys in shared memory, in vectors of eight f16: 16 words more than a multiple of 32, so that the four lanes of
    /// two keys access each bank once.
    fn key_stride(self) -> usize {
        let words = self.head_dim / 2;
        (words + (48 - words % 32) % 32) / 4
    }

    /// Stride of quads of values in shared memory, in pairs of words: 8 words more than a multiple of 32.
    fn value_stride(self) -> usize {
        self.head_dim + 4
    }

    /// Vectors of keys copied per unit.
    fn key_copies(self) -> usize {
        KEYS * self.head_dim / 8 / self.units()
    }

    /// Blocks of four values by eight columns copied per unit.
    fn value_copies(self) -> usize {
        KEYS / 4 * self.head_dim / 8 / self.units()
    }

    /// True if the copies divide evenly among the units.
    pub(super) fn even(self) -> bool {
        self.value_copies() * self.units() == KEYS / 4 * self.head_dim / 8
    }

    /// Bytes of shared memory.
    pub(super) fn shared_bytes(self) -> usize {
        16 * KEYS * self.key_stride() + 8 * (KEYS / 4) * self.value_stride()
    }
}

/// Index `at` counted from the end.
#[cube]
fn from_end(count: u32, at: u32) -> u32 {
    count - 1 - at
}

/// Two numbers as f16 in one word, the first in the low half.
#[cube]
fn packed(low: f32, high: f32) -> u32 {
    let mut both = Vector::<f16, Const<2>>::new(f16::cast_from(low));
    both.insert(1usize, f16::cast_from(high));
    u32::reinterpret(both)
}

/// Loads the unit's share of a tile of keys from global memory into registers.
#[cube]
fn take_keys(
    k: &[Quad],
    taken: &mut Array<Quad>,
    base: usize,
    capacity: usize,
    first: usize,
    end: usize,
    #[comptime] form: Form,
) {
    let unit = UNIT_POS as usize;
    let vectors = comptime!(form.head_dim / 8);
    #[unroll]
    for i in 0..comptime!(form.key_copies()) {
        let n = unit + comptime!(i * form.units());
        let key = first + n / vectors;
        let mut value = Quad::new(0u32);
        if key < end {
            value = k[(base + key % capacity) * vectors + n % vectors];
        }
        taken[i] = value;
    }
}

/// Stores the loaded keys to shared memory.
#[cube]
fn put_keys(keys: &mut Shared<[Quad]>, taken: &Array<Quad>, #[comptime] form: Form) {
    let vectors = comptime!(form.head_dim / 8);
    #[unroll]
    for i in 0..comptime!(form.key_copies()) {
        let n = UNIT_POS as usize + comptime!(i * form.units());
        keys[n / vectors * comptime!(form.key_stride()) + n % vectors] = taken[i];
    }
}

/// The quad of values and the eight columns of a unit's `i`-th copy: neighbouring units load two vectors of a row and four
/// quads, which map to different banks.
#[cube]
fn place_of(#[comptime] i: usize, #[comptime] form: Form) -> (usize, usize) {
    let n = UNIT_POS as usize + comptime!(i * form.units());
    let column_pairs = comptime!(form.head_dim / 16);
    let rest = n / 8;
    let quad = rest / column_pairs * 4 + n % 8 / 2;
    let column = rest % column_pairs * 2 + n % 2;
    (quad, column)
}

/// Loads the unit's share of a tile of values from global memory into registers; values past the end are zero.
#[cube]
fn take_values(
    v: &[Quad],
    taken: &mut Array<Quad>,
    base: usize,
    capacity: usize,
    first: usize,
    end: usize,
    #[comptime] form: Form,
) {
    let vectors = comptime!(form.head_dim / 8);
    #[unroll]
    for i in 0..comptime!(form.value_copies()) {
        let (quad, column) = place_of(i, form);
        #[unroll]
        for j in 0..4usize {
            let key = first + quad * 4 + j;
            let mut value = Quad::new(0u32);
            if key < end {
                value = v[(base + key % capacity) * vectors + column];
            }
            taken[comptime!(4 * i + j)] = value;
        }
    }
}

/// Stores the loaded values to shared memory, four values of a column adjacent.
#[cube]
fn put_values(values: &mut Shared<[Pair]>, taken: &Array<Quad>, #[comptime] form: Form) {
    #[unroll]
    for i in 0..comptime!(form.value_copies()) {
        let (quad, column) = place_of(i, form);
        let at = quad * comptime!(form.value_stride()) + column * 8;
        #[unroll]
        for w in 0..4usize {
            let a = taken[comptime!(4 * i)].extract(w);
            let b = taken[comptime!(4 * i + 1)].extract(w);
            let c = taken[comptime!(4 * i + 2)].extract(w);
            let d = taken[comptime!(4 * i + 3)].extract(w);
            let mut even = Pair::new((a & 0xFFFF) | (b << 16));
            even.insert(1usize, (c & 0xFFFF) | (d << 16));
            let mut odd = Pair::new((a >> 16) | (b & 0xFFFF_0000));
            odd.insert(1usize, (c >> 16) | (d & 0xFFFF_0000));
            values[at + comptime!(2 * w)] = even;
            values[at + comptime!(2 * w + 1)] = odd;
        }
    }
}

/// Plane `p` of cube `(block, KV head)` computes attention for rows `16 p ..` of the block; a row is one token and one query
/// head of the KV head. The longest blocks come first.
///
/// Lane `(g, t)` holds rows `g` and `g + 8`. The instruction sums over columns in any order, as long as both operands use the
/// same, so a lane's operands of 32 columns are the eight from `8 t` on: one vector of a key. The mapping of keys to score
/// columns is free too: tiles `2 s` and `2 s + 1` hold keys `16 s + 4 t ..` of lane `t`, so that weights are operands of the
/// next product without a shuffle, and the four matching values are adjacent. Values are loaded while scores are computed, and
/// the next keys while values are summed.
#[cube(launch_unchecked)]
pub(super) fn mma(
    q: &[Vector<f32, Const<4>>],
    k: &[Quad],
    v: &[Quad],
    out: &mut [Vector<f32, Const<2>>],
    tokens: u32,
    first_row: u32,
    first_position: u32,
    kv_heads: u32,
    capacity: u32,
    window: u32,
    scale: f32,
    #[comptime] form: Form,
) {
    let def = MmaDefinition::<f16, f16, f32>::new(16usize, 8usize, 16usize);
    let size!(NA) = def.vector_size(MatrixIdent::A);
    let size!(NB) = def.vector_size(MatrixIdent::B);
    let size!(NC) = def.vector_size(MatrixIdent::Accumulator);

    let lane = UNIT_POS_X as usize;
    let (g, t) = (lane / 4, lane % 4);
    let head_dim = form.head_dim;
    let doubles = comptime!(form.head_dim / 32);
    let kv_head = CUBE_POS_Y as usize;
    let query_heads = kv_heads as usize * form.share;
    let capacity = capacity as usize;
    let base = kv_head * capacity;
    let last = tokens as usize - 1;
    let of_cube = comptime!(PLANE_ROWS * form.planes);
    let block = from_end(CUBE_COUNT_X, CUBE_POS_X) as usize * of_cube;

    // Visible keys of the first and of the last row of the block.
    let low_end = first_position as usize + block / form.share + 1;
    let first_key = low_end - min(window as usize, low_end);
    let end = first_position as usize
        + clamp_max((block + comptime!(PLANE_ROWS * form.planes - 1)) / form.share, last)
        + 1;
    let high_start = end - min(window as usize, end);

    let mut queries = Array::<usize>::new(2usize);
    let mut ends = Array::<usize>::new(2usize);
    let mut starts = Array::<usize>::new(2usize);
    let mut largest = Array::<f32>::new(2usize);
    let mut totals = Array::<f32>::new(2usize);
    #[unroll]
    for h in 0..2usize {
        let row = block + UNIT_POS_Y as usize * PLANE_ROWS + g + comptime!(8 * h);
        let token = clamp_max(row / form.share, last);
        queries[h] = (first_row as usize + token) * query_heads + kv_head * form.share + row % form.share;
        ends[h] = first_position as usize + token + 1;
        starts[h] = ends[h] - min(window as usize, ends[h]);
        largest[h] = LOWEST;
        totals[h] = 0.0;
    }
    // Operand words `[double step][step][g or g + 8 of low columns, then of high ones]`.
    let mut query = Array::<u32>::new(comptime!(form.head_dim / 4));
    #[unroll]
    for s in 0..doubles {
        #[unroll]
        for h in 0..2usize {
            let at = (queries[h] * head_dim + comptime!(32 * s) + 8 * t) / 4;
            #[unroll]
            for step in 0..2usize {
                let four = q[at + step] * Vector::new(scale);
                let word = comptime!(8 * s + 4 * step + h);
                query[word] = packed(four.extract(0usize), four.extract(1usize));
                query[comptime!(word + 2)] = packed(four.extract(2usize), four.extract(3usize));
            }
        }
    }
    let mut sums = Sequence::<Array<Vector<f32, NC>>>::new();
    #[unroll]
    for _ in 0..comptime!(form.head_dim / 8) {
        let mut c = Array::<Vector<f32, NC>>::new(2usize);
        c[0] = Vector::zeroed();
        c[1] = Vector::zeroed();
        sums.push(c);
    }
    let mut scores = Sequence::<Array<Vector<f32, NC>>>::new();
    #[unroll]
    for _ in 0..comptime!(KEYS / 8) {
        let mut c = Array::<Vector<f32, NC>>::new(2usize);
        c[0] = Vector::zeroed();
        c[1] = Vector::zeroed();
        scores.push(c);
    }
    let mut operand_a = Array::<Vector<f16, NA>>::new(4usize);
    let mut operand_b = Array::<Vector<f16, NB>>::new(2usize);
    let mut keys = Shared::<[Quad]>::new_aligned_slice(comptime!(KEYS * form.key_stride()), 16usize);
    let mut values = Shared::<[Pair]>::new_aligned_slice(comptime!(KEYS / 4 * form.value_stride()), 16usize);
    let mut taken_keys = Array::<Quad>::new(comptime!(form.key_copies()));
    let mut taken_values = Array::<Quad>::new(comptime!(4 * form.value_copies()));

    take_keys(k, &mut taken_keys, base, capacity, first_key, end, form);
    put_keys(&mut keys, &taken_keys, form);
    sync_cube();
    for tile in 0..(end - first_key).div_ceil(KEYS) {
        let first = first_key + tile * KEYS;
        take_values(v, &mut taken_values, base, capacity, first, end, form);
        #[unroll]
        for n in 0..comptime!(KEYS / 8) {
            let c = scores.index_mut(n);
            c[0] = Vector::zeroed();
            c[1] = Vector::zeroed();
        }
        #[unroll]
        for s in 0..doubles {
            #[unroll]
            for n in 0..comptime!(KEYS / 8) {
                let key = comptime!(16 * (n / 2) + 2 * (n % 2)) + g / 2 * 4 + g % 2;
                let eight = keys[key * comptime!(form.key_stride()) + comptime!(4 * s) + t];
                #[unroll]
                for step in 0..2usize {
                    #[unroll]
                    for j in 0..4usize {
                        operand_a[j] = Vector::<f16, NA>::reinterpret(query[comptime!(8 * s + 4 * step + j)]);
                    }
                    #[unroll]
                    for j in 0..2usize {
                        operand_b[j] = Vector::<f16, NB>::reinterpret(eight.extract(comptime!(2 * step + j)));
                    }
                    def.execute_inplace(&operand_a, &operand_b, scores.index_mut(n));
                }
            }
        }
        if first + KEYS > low_end || first < high_start {
            #[unroll]
            for n in 0..comptime!(KEYS / 8) {
                let c = scores.index_mut(n);
                #[unroll]
                for h in 0..2usize {
                    let mut two = c[h];
                    #[unroll]
                    for e in 0..2usize {
                        let key = first + comptime!(16 * (n / 2) + 2 * (n % 2) + e) + 4 * t;
                        let seen = key >= starts[h] && key < ends[h];
                        two.insert(e, select(seen, two.extract(e), LOWEST));
                    }
                    c[h] = two;
                }
            }
        }
        #[unroll]
        for h in 0..2usize {
            let mut most = largest[h];
            #[unroll]
            for n in 0..comptime!(KEYS / 8) {
                let c = scores.index_mut(n);
                most = max(most, max(c[h].extract(0usize), c[h].extract(1usize)));
            }
            most = max(most, plane_shuffle_xor(most, 1));
            most = max(most, plane_shuffle_xor(most, 2));
            // A row without a visible key so far gets zero weights.
            let from = select(most == LOWEST, 0.0f32, most);
            let kept = f32::exp(largest[h] - from);
            largest[h] = most;
            let mut total = totals[h] * kept;
            #[unroll]
            for n in 0..comptime!(KEYS / 8) {
                let c = scores.index_mut(n);
                let mut two = c[h];
                #[unroll]
                for e in 0..2usize {
                    let weight = f32::exp(two.extract(e) - from);
                    two.insert(e, weight);
                    total += weight;
                }
                c[h] = two;
            }
            totals[h] = total;
            #[unroll]
            for n in 0..comptime!(form.head_dim / 8) {
                let c = sums.index_mut(n);
                let scaled = c[h] * Vector::new(kept);
                c[h] = scaled;
            }
        }
        put_values(&mut values, &taken_values, form);
        sync_cube();
        take_keys(k, &mut taken_keys, base, capacity, first + KEYS, end, form);
        #[unroll]
        for s in 0..comptime!(KEYS / 16) {
            #[unroll]
            for j in 0..4usize {
                let c = scores.index_mut(comptime!(2 * s + j / 2));
                let two = c[comptime!(j % 2)];
                operand_a[j] =
                    Vector::<f16, NA>::reinterpret(packed(two.extract(0usize), two.extract(1usize)));
            }
            #[unroll]
            for n in 0..comptime!(form.head_dim / 8) {
                let four =
                    values[(comptime!(4 * s) + t) * comptime!(form.value_stride()) + comptime!(8 * n) + g];
                operand_b[0] = Vector::<f16, NB>::reinterpret(four.extract(0usize));
                operand_b[1] = Vector::<f16, NB>::reinterpret(four.extract(1usize));
                def.execute_inplace(&operand_a, &operand_b, sums.index_mut(n));
            }
        }
        put_keys(&mut keys, &taken_keys, form);
        sync_cube();
    }
    #[unroll]
    for h in 0..2usize {
        let mut total = totals[h];
        total += plane_shuffle_xor(total, 1);
        total += plane_shuffle_xor(total, 2);
        let row = block + UNIT_POS_Y as usize * PLANE_ROWS + g + comptime!(8 * h);
        if row < tokens as usize * form.share {
            #[unroll]
            for n in 0..comptime!(form.head_dim / 8) {
                let c = sums.index_mut(n);
                let mut two = Vector::<f32, Const<2>>::new(c[h].extract(0usize) / total);
                two.insert(1usize, c[h].extract(1usize) / total);
                out[(queries[h] * head_dim + comptime!(8 * n)) / 2 + t] = two;
            }
        }
    }
}
