//! Attention with many query rows on matrix instructions: `mma` f16 m16n8k16 with f32 accumulation (after FlashAttention-2: Dao,
//! 2023). Only CUDA has the instruction, so the kernel also uses other PTX instructions.

use std::f32::consts::LOG2_E;

use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::barrier::copy_async;
use cubecl::prelude::*;
use half::f16;

use super::decode::LOWEST;
use super::ptx::{end_of_copies, exp2, packed, wait_for_copies};
use super::walk::{self, BLOCK, Mask};

/// Keys per tile: one key block of a mask.
const KEYS: usize = BLOCK;
/// Rows per plane.
pub(super) const PLANE_ROWS: usize = 16;
/// Units per plane.
pub(super) const LANES: usize = 32;
/// Elements per vector.
const WIDTH: usize = 8;
/// Maximum excess of a score over the reference of its row before the sums are rescaled. Weights are then at most `e^5`, far below
/// the largest f16.
const HEADROOM: f32 = 5.0;

/// Eight elements of a key or a value.
type Eight = Vector<f16, Const<8>>;

/// Compile-time parameters of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Head dimension, a multiple of 32.
    pub(super) head_dim: usize,
    /// Query heads per KV head.
    pub(super) share: usize,
    /// Planes per cube.
    pub(super) planes: usize,
    /// True if a sliding window hides old positions.
    pub(super) windowed: bool,
    /// True if only the key blocks of a mask are attended to.
    pub(super) masked: bool,
}

impl Form {
    fn units(self) -> usize {
        LANES * self.planes
    }

    /// Vectors of a key.
    fn vectors(self) -> usize {
        self.head_dim / WIDTH
    }

    /// Stride of keys and values in shared memory, in vectors: odd, so that eight rows start in different banks.
    fn stride(self) -> usize {
        self.vectors() + 1
    }

    /// Vectors of a tile of keys, or of values, copied per unit.
    fn copies(self) -> usize {
        KEYS * self.vectors() / self.units()
    }

    /// True if the copies divide evenly among the units.
    pub(super) fn even(self) -> bool {
        self.copies() * self.units() == KEYS * self.vectors()
    }

    /// Bytes of shared memory.
    pub(super) fn shared_bytes(self) -> usize {
        2 * 16 * KEYS * self.stride()
    }
}

/// Index `at` counted from the end.
#[cube]
fn from_end(count: u32, at: u32) -> u32 {
    count - 1 - at
}

/// The key of a tile, and the vector within it, of a unit's `i`-th copy.
#[cube]
fn place_of(#[comptime] i: usize, #[comptime] form: Form) -> (usize, usize) {
    let vectors = form.vectors();
    let unit = UNIT_POS as usize;
    let mut key = unit / vectors + comptime!(i * form.units() / vectors);
    let mut column = unit % vectors;
    if comptime!(!form.units().is_multiple_of(vectors)) {
        let n = unit + comptime!(i * form.units());
        key = n / vectors;
        column = n % vectors;
    }
    (key, column)
}

/// Computes the unit's addresses for a tile in the ring, whose first visible key is in `slot`, after `before` masked keys: these
/// exist only with both a window and a mask, since a tile then starts at a block. At most `left` keys follow the first visible one.
/// Keys outside this range are clamped to it, because the ring may hold NaN there.
#[cube]
fn locate(
    at: &mut Array<usize>,
    base: usize,
    slot: u32,
    before: u32,
    capacity: u32,
    left: u32,
    #[comptime] form: Form,
) {
    #[unroll]
    for i in 0..form.copies() {
        let (key, column) = place_of(i, form);
        let mut key = key as u32;
        if comptime!(form.masked && form.windowed) {
            key = max(key, before) - before;
        }
        let past = slot + min(key, left);
        // No more keys are visible than there are slots.
        let slot = select(past >= capacity, past - capacity, past);
        at[i] = (base + slot as usize) * comptime!(form.vectors()) + column;
    }
}

/// The slot of the key `ahead` positions after the one in `slot`; no more keys are visible than there are slots.
#[cube]
fn slot_of(slot: u32, ahead: u32, capacity: u32) -> u32 {
    let past = slot + ahead;
    select(past >= capacity, past - capacity, past)
}

/// Starts the asynchronous copy of the unit's share of a tile to shared memory.
#[cube]
fn copy(from: &[Eight], tile: &mut [Eight], at: &Array<usize>, #[comptime] form: Form) {
    #[unroll]
    for i in 0..form.copies() {
        let (key, column) = place_of(i, form);
        let (from_at, to) = (at[i], key * comptime!(form.stride()) + column);
        copy_async(&from[from_at..from_at + 1], &mut tile[to..to + 1], 8u32);
    }
    end_of_copies();
}

/// Plane `p` of cube `(block, KV head)` computes attention for rows `16 p ..` of the block; a row is one token and one query head
/// of the KV head. The longest blocks come first.
///
/// Lane `(g, t)` holds rows `g` and `g + 8`. Keys and values are copied unchanged from the ring to shared memory, the values while
/// scores are computed, the next keys while values are summed; `ldmatrix` loads them as operands, transposing the values. A lane's
/// scores of two tiles of eight keys are its operands of the next product.
///
/// A weight is a power of two: `e^(score - reference)` is `2^(log2(e) score - log2(e) reference)`, one multiply-add and one
/// instruction. The reference of a row is raised only when a score exceeds it by [`HEADROOM`], usually once, in the first tile.
///
/// With a mask the cube iterates over the key blocks of all its rows; if the rows span several query blocks, each row masks the
/// blocks that it does not attend to.
#[cube(launch_unchecked)]
pub(super) fn mma(
    q: &[Vector<f32, Const<2>>],
    k: &[Eight],
    v: &[Eight],
    out: &mut [Vector<f32, Const<2>>],
    tokens: u32,
    first_row: u32,
    first_position: u32,
    kv_heads: u32,
    capacity: u32,
    window: u32,
    scale: f32,
    mask: ComptimeOption<Mask>,
    #[comptime] form: Form,
) {
    let def = MmaDefinition::<f16, f16, f32>::new(16usize, 8usize, 16usize);
    let size!(NA) = def.vector_size(MatrixIdent::A);
    let size!(NB) = def.vector_size(MatrixIdent::B);
    let size!(NC) = def.vector_size(MatrixIdent::Accumulator);

    let lane = UNIT_POS_X as usize;
    let (g, t) = (lane / 4, lane % 4);
    let head_dim = form.head_dim;
    let kv_head = CUBE_POS_Y as usize;
    let query_heads = kv_heads as usize * form.share;
    let base = kv_head * capacity as usize;
    let last = tokens as usize - 1;
    let of_cube = comptime!(PLANE_ROWS * form.planes);
    let block = from_end(CUBE_COUNT_X, CUBE_POS_X) as usize * of_cube;

    // Number of visible keys of the first and of the last row of the block.
    let low_end = first_position as usize + block / form.share + 1;
    let first_key = low_end - min(window as usize, low_end);
    let end = first_position as usize
        + clamp_max((block + comptime!(PLANE_ROWS * form.planes - 1)) / form.share, last)
        + 1;
    let high_start = end - min(window as usize, end);

    let mut queries = Array::<usize>::new(2usize);
    let mut ends = Array::<i32>::new(2usize);
    let mut starts = Array::<i32>::new(2usize);
    let mut largest = Array::<f32>::new(2usize);
    // The reference of weights, times `log2(e)`.
    let mut reference = Array::<f32>::new(2usize);
    let mut totals = Array::<f32>::new(2usize);
    #[unroll]
    for h in 0..2usize {
        let row = block + UNIT_POS_Y as usize * PLANE_ROWS + g + comptime!(8 * h);
        let token = clamp_max(row / form.share, last);
        queries[h] = (first_row as usize + token) * query_heads + kv_head * form.share + row % form.share;
        let position_end = first_position as usize + token + 1;
        // Relative to the lane's first column.
        ends[h] = position_end as i32 - 2 * t as i32;
        starts[h] = (position_end - min(window as usize, position_end)) as i32 - 2 * t as i32;
        largest[h] = LOWEST;
        reference[h] = 0.0;
        totals[h] = 0.0;
    }
    // Operand words `[step][g or g + 8 of low columns, then of high ones]`.
    let mut query = Array::<u32>::new(comptime!(form.head_dim / 4));
    #[unroll]
    for s in 0..comptime!(form.head_dim / 16) {
        #[unroll]
        for j in 0..4usize {
            let at = (queries[comptime!(j % 2)] * head_dim + comptime!(16 * s + 8 * (j / 2))) / 2 + t;
            let two = q[at] * Vector::new(scale);
            query[comptime!(4 * s + j)] = packed(two.extract(0usize), two.extract(1usize));
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
    let mut keys = Shared::<[Eight]>::new_aligned_slice(comptime!(KEYS * form.stride()), 16usize);
    let mut values = Shared::<[Eight]>::new_aligned_slice(comptime!(KEYS * form.stride()), 16usize);
    // The rows that the lane addresses for `ldmatrix`: of eight keys and four vectors, or of sixteen values and two vectors.
    let key_at = lane % 8 * comptime!(form.stride()) + lane / 8;
    let value_at = lane % 16 * comptime!(form.stride()) + lane / 16;

    let tiles = if comptime!(form.masked) {
        end.div_ceil(KEYS) - first_key / KEYS
    } else {
        (end - first_key).div_ceil(KEYS)
    };
    let mut slot = first_key as u32 % capacity;
    let mut at = Array::<usize>::new(form.copies());
    // With a mask, tiles are its key blocks; the next one is located while the current one is multiplied, and `slot` remains that
    // of the first visible key.
    let rows = walk::rows_of(&mask, kv_head as u32, low_end as u32 - 1, end as u32);
    let mut walked = Array::<u32>::new(walk::STATE);
    if comptime!(form.masked) {
        walk::start(&mask, &rows, &mut walked, first_key as u32);
        let next = walk::next_block(&mask, &rows, &mut walked, end as u32);
        let seen = max(next, first_key as u32);
        let at_slot = slot_of(slot, seen - first_key as u32, capacity);
        locate(&mut at, base, at_slot, seen - next, capacity, end as u32 - 1 - seen, form);
    } else {
        locate(&mut at, base, slot, 0u32, capacity, (end - 1 - first_key) as u32, form);
    }
    copy(k, &mut keys, &at, form);
    for tile in 0..tiles {
        let first =
            if comptime!(form.masked) { walk::block_of(&walked) as usize } else { first_key + tile * KEYS };
        wait_for_copies();
        sync_cube();
        copy(v, &mut values, &at, form);
        #[unroll]
        for n in 0..comptime!(KEYS / 8) {
            let c = scores.index_mut(n);
            c[0] = Vector::zeroed();
            c[1] = Vector::zeroed();
        }
        #[unroll]
        for s in 0..comptime!(form.head_dim / 32) {
            #[unroll]
            for n in 0..comptime!(KEYS / 8) {
                let from = key_at + comptime!(8 * n * form.stride() + 4 * s);
                let four = def.load_matrix::<_, NB>(&keys[from..from + 1], MatrixIdent::B, 4usize, false);
                #[unroll]
                for step in 0..2usize {
                    #[unroll]
                    for j in 0..4usize {
                        operand_a[j] = Vector::<f16, NA>::reinterpret(query[comptime!(8 * s + 4 * step + j)]);
                    }
                    #[unroll]
                    for j in 0..2usize {
                        operand_b[j] = four[comptime!(2 * step + j)];
                    }
                    def.execute_inplace(&operand_a, &operand_b, scores.index_mut(n));
                }
            }
        }
        wait_for_copies();
        sync_cube();
        if comptime!(form.masked) {
            let next = walk::next_block(&mask, &rows, &mut walked, end as u32);
            if next < end as u32 {
                let seen = max(next, first_key as u32);
                let at_slot = slot_of(slot, seen - first_key as u32, capacity);
                locate(&mut at, base, at_slot, seen - next, capacity, end as u32 - 1 - seen, form);
                copy(k, &mut keys, &at, form);
            }
        } else if tile + 1 < tiles {
            slot += comptime!(KEYS as u32);
            if slot >= capacity {
                slot -= capacity;
            }
            locate(&mut at, base, slot, 0u32, capacity, (end - 1 - first - KEYS) as u32, form);
            copy(k, &mut keys, &at, form);
        }
        let partial = if comptime!(form.masked) {
            first + KEYS > low_end || first < high_start || rows.count > 1
        } else {
            first + KEYS > low_end || first < high_start
        };
        if partial {
            #[unroll]
            for h in 0..2usize {
                let (ahead, start) = (ends[h] - first as i32, starts[h] - first as i32);
                let last = if comptime!(form.masked) {
                    let position = (ends[h] + 2 * t as i32 - 1) as u32;
                    select(walk::is_set(&mask, kv_head as u32, position, first as u32), ahead, 0i32)
                } else {
                    ahead
                };
                #[unroll]
                for n in 0..comptime!(KEYS / 8) {
                    let c = scores.index_mut(n);
                    let mut two = c[h];
                    #[unroll]
                    for e in 0..2usize {
                        let column = comptime!((8 * n + e) as i32).runtime();
                        let mut seen = column < last;
                        if comptime!(form.windowed) {
                            seen = seen && column >= start;
                        }
                        two.insert(e, select(seen, two.extract(e), LOWEST));
                    }
                    c[h] = two;
                }
            }
        }
        let mut raised = false;
        let mut most = Array::<f32>::new(2usize);
        #[unroll]
        for h in 0..2usize {
            let mut score = largest[h];
            #[unroll]
            for n in 0..comptime!(KEYS / 8) {
                let c = scores.index_mut(n);
                score = max(score, max(c[h].extract(0usize), c[h].extract(1usize)));
            }
            score = max(score, plane_shuffle_xor(score, 1));
            score = max(score, plane_shuffle_xor(score, 2));
            most[h] = score;
            raised = raised || score > largest[h] + HEADROOM;
        }
        if plane_any(raised) {
            #[unroll]
            for h in 0..2usize {
                let kept = exp2((largest[h] - most[h]) * LOG2_E);
                largest[h] = most[h];
                // A row without a visible key so far gets zero weights.
                reference[h] = select(most[h] == LOWEST, 0.0f32, most[h] * LOG2_E);
                totals[h] *= kept;
                #[unroll]
                for n in 0..comptime!(form.head_dim / 8) {
                    let c = sums.index_mut(n);
                    let scaled = c[h] * Vector::new(kept);
                    c[h] = scaled;
                }
            }
        }
        #[unroll]
        for s in 0..comptime!(KEYS / 16) {
            #[unroll]
            for j in 0..4usize {
                let c = scores.index_mut(comptime!(2 * s + j / 2));
                let h = comptime!(j % 2);
                let low = exp2(fma(c[h].extract(0usize), LOG2_E, -reference[h]));
                let high = exp2(fma(c[h].extract(1usize), LOG2_E, -reference[h]));
                totals[h] += low + high;
                operand_a[j] = Vector::<f16, NA>::reinterpret(packed(low, high));
            }
            #[unroll]
            for n in 0..comptime!(form.head_dim / 16) {
                let from = value_at + comptime!(16 * s * form.stride() + 2 * n);
                let four = def.load_matrix::<_, NB>(&values[from..from + 1], MatrixIdent::B, 4usize, true);
                #[unroll]
                for half in 0..2usize {
                    #[unroll]
                    for j in 0..2usize {
                        operand_b[j] = four[comptime!(2 * half + j)];
                    }
                    def.execute_inplace(&operand_a, &operand_b, sums.index_mut(comptime!(2 * n + half)));
                }
            }
        }
        if comptime!(form.masked) {
            let next = walk::block_of(&walked);
            if next >= end as u32 {
                break;
            }
        }
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
