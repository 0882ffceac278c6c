//! Attention with few query rows, for PTX: the last of the cubes that share heads combines the partial results of all of them.
//! Other compilers need a [second kernel](super::combine), because their fences do not reach beyond a cube.

use cubecl::prelude::*;

use super::codes::Scales;
use super::decode::{Chosen, Form, LOWEST, attend, heads_of, power, token_of};

/// Units of a plane.
const LANES: usize = 32;
/// Parts that a unit loads before using them.
const AT_ONCE: usize = 8;

/// As [`decode`](super::decode::decode); `parts` and `arrived` are those of [`join`].
#[cube(launch_unchecked)]
pub(super) fn decode_joined<E: Float, S: Numeric, N: Size, W: Size, M: Size>(
    q: &[Vector<f32, N>],
    k: &[Vector<S, W>],
    v: &[Vector<S, W>],
    scales: ComptimeOption<Scales>,
    positions: &[u32],
    parts: &mut [f32],
    arrived: &mut [Atomic<u32>],
    out: &mut [f32],
    first_row: u32,
    kv_heads: u32,
    capacity: u32,
    window: u32,
    scale: f32,
    chosen: ComptimeOption<Chosen>,
    #[comptime] form: Form,
) {
    let row = first_row as usize + CUBE_POS_Z as usize;
    let position = positions[row];
    attend::<E, S, N, W, M>(
        q, k, v, &scales, parts, row, position, 0usize, kv_heads, capacity, window, scale, &chosen, form,
    );
    join(parts, arrived, out, row, kv_heads, form);
}

/// As [`decode_several`](super::decode::decode_several); `parts` and `arrived` are those of [`join`].
#[cube(launch_unchecked)]
pub(super) fn decode_several_joined<E: Float, S: Numeric, N: Size, W: Size, M: Size>(
    q: &[Vector<f32, N>],
    k: &[Vector<S, W>],
    v: &[Vector<S, W>],
    scales: ComptimeOption<Scales>,
    table: &[u32],
    parts: &mut [f32],
    arrived: &mut [Atomic<u32>],
    out: &mut [f32],
    kv_heads: u32,
    capacity: u32,
    window: u32,
    scale: f32,
    #[comptime] form: Form,
) {
    let token = token_of(table, form);
    attend::<E, S, N, W, M>(
        q,
        k,
        v,
        &scales,
        parts,
        token.row,
        token.position,
        token.place,
        kv_heads,
        capacity,
        window,
        scale,
        &ComptimeOption::new_None(),
        form,
    );
    join(parts, arrived, out, token.row, kv_heads, form);
}

/// If the cube is the last to arrive among those that share its heads and row, combines their partial results. Each plane has its
/// own heads; the order of sums does not depend on which cube is the last.
///
/// `parts` has `[row of the launch][head][cube along x]` sums, their maximum, and total weights; `arrived` one zero per cube along
/// `y` and `z`, which is reset to zero at the end.
#[cube]
fn join(
    parts: &mut [f32],
    arrived: &mut [Atomic<u32>],
    out: &mut [f32],
    row: usize,
    kv_heads: u32,
    #[comptime] form: Form,
) {
    let shared = (CUBE_POS_Z * CUBE_COUNT_Y + CUBE_POS_Y) as usize;
    let splits = CUBE_COUNT_X as usize;
    let mut before = Shared::<u32>::new();
    sync_storage();
    if UNIT_POS == 0 {
        *before = arrived[shared].fetch_add(1u32);
    }
    sync_storage();
    let last = *before == CUBE_COUNT_X - 1;
    if last {
        if UNIT_POS == 0 {
            // For the next launch.
            arrived[shared].store(0u32);
        }
        let (lane, plane) = (UNIT_POS as usize % LANES, UNIT_POS as usize / LANES);
        let of = heads_of(kv_heads, form);
        let (kv_head, first_head, query_heads) = (of.kv, of.first, of.of_row);
        let stride = comptime!(form.head_dim + 2);
        let columns = comptime!(form.head_dim.div_ceil(LANES));
        let mut h = plane;
        while h < form.heads {
            if first_head + h < form.share {
                let head = kv_head * form.share + first_head + h;
                let base = (CUBE_POS_Z as usize * query_heads + head) * splits * stride;
                let mut most = LOWEST.runtime();
                let mut s = lane;
                while s < splits {
                    most = max(most, parts[base + s * stride + form.head_dim]);
                    s += LANES;
                }
                let most = plane_max(most);
                let mut total = 0.0f32;
                let mut sums = Array::<f32>::new(columns);
                #[unroll]
                for j in 0..columns {
                    sums[j] = 0.0;
                }
                let mut taken = Array::<f32>::new(comptime!(AT_ONCE * columns));
                let mut first = 0usize;
                while first < splits {
                    // The weight of the lane's own part; zero for parts past the last.
                    let at = base + clamp_max(first + lane, splits - 1) * stride + form.head_dim;
                    let weight = power(parts[at] - most, form.ptx);
                    let weight = select(first + lane < splits, weight, 0.0f32);
                    total += weight * parts[at + 1];
                    let end = min(splits - first, LANES);
                    let mut i = 0usize;
                    while i < end {
                        #[unroll]
                        for n in 0..AT_ONCE {
                            let part = base + clamp_max(first + i + n, splits - 1) * stride;
                            #[unroll]
                            for j in 0..columns {
                                let d = clamp_max(lane + j * LANES, comptime!(form.head_dim - 1));
                                taken[comptime!(n * columns + j)] = parts[part + d];
                            }
                        }
                        #[unroll]
                        for n in 0..AT_ONCE {
                            let weight = plane_shuffle(weight, (i + n) as u32);
                            #[unroll]
                            for j in 0..columns {
                                sums[j] += taken[comptime!(n * columns + j)] * weight;
                            }
                        }
                        i += AT_ONCE;
                    }
                    first += LANES;
                }
                let total = plane_sum(total);
                #[unroll]
                for j in 0..columns {
                    let d = lane + comptime!(j * LANES);
                    if d < form.head_dim {
                        out[(row * query_heads + head) * form.head_dim + d] = sums[j] / total;
                    }
                }
            }
            h += comptime!(form.units / LANES);
        }
    }
}
