//! Attention with many query rows: tiles of keys and values are staged in shared memory while scores and sums stay in registers
//! (after FlashAttention: Dao et al., 2022).

use cubecl::prelude::*;

use super::decode::LOWEST;
use super::walk::{self, BLOCK, Mask};

/// Rows per cube; a row is one token and one query head of a KV head.
pub(super) const ROWS: usize = 16;
/// Keys per tile.
const KEYS: usize = 32;
/// Units per row; each holds four scores of a tile.
const PER_ROW: usize = 8;
/// Units per cube.
pub(super) const UNITS: usize = ROWS * PER_ROW;
/// Vectors per slab: the columns of a tile that are in shared memory at a time.
const SLAB: usize = 8;
/// Stride of the keys of a slab, in vectors: one of padding, so that units of a row access different banks.
const STRIDE: usize = SLAB + 1;

/// Four numbers.
type Quad = Vector<f32, Const<4>>;

/// Compile-time parameters of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Head dimension, a multiple of 4.
    pub(super) head_dim: usize,
    /// Query heads per KV head.
    pub(super) share: usize,
    /// True if only the key blocks of a mask are attended to.
    pub(super) masked: bool,
}

impl Form {
    fn vectors(self) -> usize {
        self.head_dim / 4
    }

    fn slabs(self) -> usize {
        self.vectors().div_ceil(SLAB)
    }

    /// Bytes of shared memory.
    pub(super) fn shared_bytes(self) -> usize {
        16 * ROWS * self.slabs() * SLAB + 16 * KEYS * STRIDE + 4 * ROWS * (KEYS + 1)
    }
}

/// Copies a slab of the keys or values of a tile, zero-padded past `end` and past the columns of the head. Keys before `first_key`
/// are zero as well: a tile of a mask starts at a block, not at the first visible key.
#[cube]
fn load<E: Float>(
    from: &[Vector<E, Const<4>>],
    tile: &mut Shared<[Quad]>,
    kv_head: usize,
    capacity: usize,
    first: usize,
    first_key: usize,
    end: usize,
    slab: usize,
    #[comptime] form: Form,
) {
    let vectors = comptime!(form.vectors());
    #[unroll]
    for i in 0..comptime!(KEYS * SLAB / UNITS) {
        let n = UNIT_POS as usize + comptime!(i * UNITS);
        let (key, c) = (n / SLAB, n % SLAB);
        let column = slab * SLAB + c;
        let mut value = Quad::new(0.0f32);
        let mut visible = first + key < end && column < vectors;
        if comptime!(form.masked) {
            visible = visible && first + key >= first_key;
        }
        if visible {
            let at = (kv_head * capacity + (first + key) % capacity) * vectors + column;
            value = Quad::cast_from(from[at]);
        }
        tile[key * STRIDE + c] = value;
    }
}

/// Cube `(block, KV head)` computes attention for rows `16 block ..`, whose queries share their keys.
///
/// Unit `(r, g)` holds the scores of row `r` with keys `g, g + 8, ..` of a tile, and columns `4 g ..` of each slab of the sums. All
/// loop bounds depend only on scalars and the cube. With a mask the cube iterates over the key blocks of all its rows; blocks that
/// a row does not attend to have weight zero in it.
#[cube(launch_unchecked)]
pub(super) fn prefill<E: Float>(
    q: &[Quad],
    k: &[Vector<E, Const<4>>],
    v: &[Vector<E, Const<4>>],
    out: &mut [Quad],
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
    let unit = UNIT_POS as usize;
    let (r, g) = (unit / PER_ROW, unit % PER_ROW);
    let vectors = comptime!(form.vectors());
    let slabs = comptime!(form.slabs());
    let kv_head = CUBE_POS_Y as usize;
    let query_heads = kv_heads as usize * form.share;
    let last = tokens as usize - 1;
    let block = CUBE_POS_X as usize * ROWS;

    // Number of visible keys of the first and of the last row of the block.
    let low = first_position + block as u32 / form.share as u32 + 1;
    let first_key = (low - min(window, low)) as usize;
    let end = first_position as usize + clamp_max((block + comptime!(ROWS - 1)) / form.share, last) + 1;

    let row = block + r;
    let token = clamp_max(row / form.share, last);
    let query = (first_row as usize + token) * query_heads + kv_head * form.share + row % form.share;
    let position_end = first_position + token as u32 + 1;
    let start = (position_end - min(window, position_end)) as usize;

    let mut queries = Shared::<[Quad]>::new_slice(comptime!(ROWS * form.slabs() * SLAB));
    let mut tile = Shared::<[Quad]>::new_slice(comptime!(KEYS * STRIDE));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(ROWS * (KEYS + 1)));
    let mut sums = Array::<Quad>::new(slabs);
    #[unroll]
    for slab in 0..slabs {
        let column = slab * SLAB + g;
        let mut value = Quad::new(0.0f32);
        if column < vectors {
            value = q[query * vectors + column] * Quad::new(scale);
        }
        queries[r * comptime!(form.slabs() * SLAB) + column] = value;
        sums[slab] = Quad::new(0.0f32);
    }
    let mut largest = LOWEST.runtime();
    let mut total = 0.0f32;
    let mut scores = Array::<f32>::new(4usize);
    let mut dots = Array::<Quad>::new(4usize);

    // A key block is two tiles.
    let mut tiles = (end - first_key).div_ceil(KEYS);
    let mut walked = Array::<u32>::new(walk::STATE);
    let rows = walk::rows_of(&mask, kv_head as u32, low - 1, end as u32);
    if comptime!(form.masked) {
        tiles = (end.div_ceil(BLOCK) - first_key / BLOCK) * comptime!(BLOCK / KEYS);
        walk::start(&mask, &rows, &mut walked, first_key as u32);
    }
    for t in 0..tiles {
        let mut first = first_key + t * KEYS;
        let mut attends = true;
        if comptime!(form.masked) {
            if t % comptime!(BLOCK / KEYS) == 0 {
                walk::next_block(&mask, &rows, &mut walked, end as u32);
            }
            let key_block = walk::block_of(&walked);
            first = key_block as usize + t % comptime!(BLOCK / KEYS) * KEYS;
            if first >= end {
                break;
            }
            attends = walk::is_set(&mask, kv_head as u32, position_end - 1, key_block);
        }
        #[unroll]
        for i in 0..4usize {
            dots[i] = Quad::new(0.0f32);
        }
        for slab in 0..slabs {
            sync_cube();
            load::<E>(k, &mut tile, kv_head, capacity as usize, first, first_key, end, slab, form);
            sync_cube();
            #[unroll]
            for c in 0..SLAB {
                let x = queries[r * comptime!(form.slabs() * SLAB) + slab * SLAB + c];
                #[unroll]
                for i in 0..4usize {
                    dots[i] += x * tile[(g + comptime!(PER_ROW * i)) * STRIDE + c];
                }
            }
        }
        #[unroll]
        for i in 0..4usize {
            let key = first + g + comptime!(PER_ROW * i);
            let dot = dots[i].extract(0usize)
                + dots[i].extract(1usize)
                + dots[i].extract(2usize)
                + dots[i].extract(3usize);
            let mut seen = key >= start && key < position_end as usize;
            if comptime!(form.masked) {
                seen = seen && attends;
            }
            scores[i] = select(seen, dot, LOWEST);
            weights[r * comptime!(KEYS + 1) + g + comptime!(PER_ROW * i)] = scores[i];
        }
        sync_cube();
        let mut most = largest;
        #[unroll]
        for j in 0..KEYS {
            most = max(most, weights[r * comptime!(KEYS + 1) + j]);
        }
        let kept = f32::exp(largest - most);
        largest = most;
        sync_cube();
        #[unroll]
        for i in 0..4usize {
            let key = first + g + comptime!(PER_ROW * i);
            let mut seen = key >= start && key < position_end as usize;
            if comptime!(form.masked) {
                seen = seen && attends;
            }
            weights[r * comptime!(KEYS + 1) + g + comptime!(PER_ROW * i)] =
                select(seen, f32::exp(scores[i] - most), 0.0f32);
        }
        total *= kept;
        #[unroll]
        for slab in 0..slabs {
            sync_cube();
            load::<E>(v, &mut tile, kv_head, capacity as usize, first, first_key, end, slab, form);
            sync_cube();
            let mut sum = sums[slab] * Quad::new(kept);
            for j in 0..KEYS {
                let weight = weights[r * comptime!(KEYS + 1) + j];
                sum += tile[j * STRIDE + g] * Quad::new(weight);
                if comptime!(slab == 0) {
                    total += weight;
                }
            }
            sums[slab] = sum;
        }
    }
    if row < tokens as usize * form.share {
        #[unroll]
        for slab in 0..slabs {
            let column = slab * SLAB + g;
            if column < vectors {
                out[query * vectors + column] = sums[slab] / Quad::new(total);
            }
        }
    }
}
