//! Gradients of attention over packed documents, in three kernels that recompute the weights: statistics of each query, the
//! gradient of the queries, and those of keys and values.
//!
//! With weights `p_ij = exp(s_ij - l_i)` and `g_ij = dy_i v_j`, the gradient of a score is `p_ij (g_ij - sum_k p_ik g_ik)`.

use cubecl::prelude::*;
use trike_core::AttentionSpec;

use super::attention::{
    AttentionGradForm, AttentionGradShape, DocumentBounds, LANES, LOWEST, ROWS, check, dot, first_visible,
    load, settings,
};
use super::check_apart;
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{Result, check_len, check_shape};
use crate::math::exp;

/// Writes two statistics of each query: the logarithm of the sum of its exponentials, and the sum of its weights times the
/// gradients of the weights. The iteration space is that of the forward kernel; unit `(r, g)` sums over lines `g, g + 8, ..`.
#[cube(launch_unchecked)]
fn numbers(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    dy: &[f32],
    starts: &[u32],
    out: &mut [f32],
    tokens: u32,
    kv_heads: u32,
    window: u32,
    scale: f32,
    #[comptime] form: AttentionGradForm,
) {
    let (r, g) = (UNIT_POS as usize / LANES, UNIT_POS as usize % LANES);
    let (dim, share, lines) = (form.head_dim, form.share, form.lines);
    let kv_head = CUBE_POS_Y as usize;
    let kv_width = kv_heads as usize * dim;
    let last = tokens as usize - 1;
    let block = CUBE_POS_X as usize * ROWS;
    let first_key = first_visible(starts, clamp_max(block / share, last), window);
    let end = clamp_max((block + comptime!(ROWS - 1)) / share, last) + 1;
    let row = block + r;
    let token = clamp_max(row / share, last);
    let start = first_visible(starts, token, window);
    let query = token * kv_heads as usize * share + kv_head * share + row % share;
    let at = query * dim;

    let mut tile = Shared::<[f32]>::new_slice(comptime!(form.tile()));
    let mut exchange = Shared::<[f32]>::new_slice(comptime!(form.exchange()));
    let mut more = Shared::<[f32]>::new_slice(comptime!(form.exchange()));
    let mine = r * comptime!(lines + 1);
    let mut scores = Array::<f32>::new(comptime!(lines / LANES));
    let mut largest = LOWEST.runtime();
    let mut total = 0.0f32;
    let mut along = 0.0f32;
    for t in 0..(end - first_key).div_ceil(lines) {
        let first = first_key + t * lines;
        sync_cube();
        load(k, &mut tile, first, end, kv_width, kv_head * dim, form);
        sync_cube();
        #[unroll]
        for i in 0..comptime!(lines / LANES) {
            let line = g + comptime!(i * LANES);
            let key = first + line;
            let score = dot(q, at, &tile, line, form) * scale;
            scores[i] = select(key >= start && key <= token, score, LOWEST);
            exchange[mine + line] = scores[i];
        }
        sync_cube();
        let mut most = largest;
        for line in 0..lines {
            most = max(most, exchange[mine + line]);
        }
        let kept = exp(largest - most);
        largest = most;
        load(v, &mut tile, first, end, kv_width, kv_head * dim, form);
        sync_cube();
        total *= kept;
        along *= kept;
        #[unroll]
        for i in 0..comptime!(lines / LANES) {
            let line = g + comptime!(i * LANES);
            let key = first + line;
            let weight = select(key >= start && key <= token, exp(scores[i] - most), 0.0f32);
            total += weight;
            along += weight * dot(dy, at, &tile, line, form);
        }
    }
    sync_cube();
    exchange[mine + g] = total;
    more[mine + g] = along;
    sync_cube();
    if g == 0 && row < tokens as usize * share {
        let mut total = 0.0f32;
        let mut along = 0.0f32;
        for lane in 0..LANES {
            total += exchange[mine + lane];
            along += more[mine + lane];
        }
        out[2 * query] = largest + f32::ln(total);
        out[2 * query + 1] = along / total;
    }
}

/// The gradient of the queries; the iteration space is that of the forward kernel.
#[cube(launch_unchecked)]
fn queries(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    dy: &[f32],
    numbers: &[f32],
    starts: &[u32],
    dq: &mut [f32],
    tokens: u32,
    kv_heads: u32,
    window: u32,
    scale: f32,
    #[comptime] form: AttentionGradForm,
) {
    let (r, g) = (UNIT_POS as usize / LANES, UNIT_POS as usize % LANES);
    let (dim, share, lines) = (form.head_dim, form.share, form.lines);
    let kv_head = CUBE_POS_Y as usize;
    let kv_width = kv_heads as usize * dim;
    let last = tokens as usize - 1;
    let block = CUBE_POS_X as usize * ROWS;
    let first_key = first_visible(starts, clamp_max(block / share, last), window);
    let end = clamp_max((block + comptime!(ROWS - 1)) / share, last) + 1;
    let row = block + r;
    let token = clamp_max(row / share, last);
    let start = first_visible(starts, token, window);
    let query = token * kv_heads as usize * share + kv_head * share + row % share;
    let at = query * dim;
    let (logarithm, mean) = (numbers[2 * query], numbers[2 * query + 1]);

    let mut keys = Shared::<[f32]>::new_slice(comptime!(form.tile()));
    let mut values = Shared::<[f32]>::new_slice(comptime!(form.tile()));
    let mut slopes = Shared::<[f32]>::new_slice(comptime!(form.exchange()));
    let mine = r * comptime!(lines + 1);
    let mut sums = Array::<f32>::new(comptime!(form.slots()));
    #[unroll]
    for slot in 0..comptime!(form.slots()) {
        sums[slot] = 0.0;
    }
    for t in 0..(end - first_key).div_ceil(lines) {
        let first = first_key + t * lines;
        sync_cube();
        load(k, &mut keys, first, end, kv_width, kv_head * dim, form);
        load(v, &mut values, first, end, kv_width, kv_head * dim, form);
        sync_cube();
        #[unroll]
        for i in 0..comptime!(lines / LANES) {
            let line = g + comptime!(i * LANES);
            let key = first + line;
            let weight = exp(dot(q, at, &keys, line, form) * scale - logarithm);
            let slope = weight * (dot(dy, at, &values, line, form) - mean) * scale;
            slopes[mine + line] = select(key >= start && key <= token, slope, 0.0f32);
        }
        sync_cube();
        #[unroll]
        for slot in 0..comptime!(form.slots()) {
            let d = clamp_max(g + comptime!(slot * LANES), dim - 1);
            let mut sum = sums[slot];
            for line in 0..lines {
                sum += slopes[mine + line] * keys[line * comptime!(form.stride()) + d];
            }
            sums[slot] = sum;
        }
    }
    if row < tokens as usize * share {
        #[unroll]
        for slot in 0..comptime!(form.slots()) {
            let d = g + comptime!(slot * LANES);
            if d < dim {
                dq[at + d] = sums[slot];
            }
        }
    }
}

/// Cube `(block, key/value head)` computes the gradients of keys and values `8 block ..`; unit `(r, g)` has queries `g, g + 8, ..`
/// of a tile, and elements `g, g + 8, ..` of both gradients of key `r`. The queries of a tile are ordered by token, then by the
/// heads that share the key.
#[cube(launch_unchecked)]
fn keys_values(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    dy: &[f32],
    numbers: &[f32],
    bounds: &[u32],
    dk: &mut [f32],
    dv: &mut [f32],
    tokens: u32,
    kv_heads: u32,
    window: u32,
    scale: f32,
    #[comptime] form: AttentionGradForm,
) {
    let (r, g) = (UNIT_POS as usize / LANES, UNIT_POS as usize % LANES);
    let (dim, share, lines) = (form.head_dim, form.share, form.lines);
    let kv_head = CUBE_POS_Y as usize;
    let heads = kv_heads as usize * share;
    let last = tokens as usize - 1;
    let block = CUBE_POS_X as usize * ROWS;
    // The last query that sees any key of the block is bounded by the document of its last key, or by the window.
    let last_key = clamp_max(block + comptime!(ROWS - 1), last);
    let room = min(bounds[last_key] - last_key as u32, window) as usize;
    let (first_query, end) = (block * share, (last_key + room) * share);
    let key = clamp_max(block + r, last);
    let at = (key * kv_heads as usize + kv_head) * dim;
    let seen_until = key + min(bounds[key] - key as u32, window) as usize;

    let mut q_tile = Shared::<[f32]>::new_slice(comptime!(form.tile()));
    let mut dy_tile = Shared::<[f32]>::new_slice(comptime!(form.tile()));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(form.exchange()));
    let mut slopes = Shared::<[f32]>::new_slice(comptime!(form.exchange()));
    let mine = r * comptime!(lines + 1);
    let mut of_key = Array::<f32>::new(comptime!(form.slots()));
    let mut of_value = Array::<f32>::new(comptime!(form.slots()));
    #[unroll]
    for slot in 0..comptime!(form.slots()) {
        of_key[slot] = 0.0;
        of_value[slot] = 0.0;
    }
    for t in 0..(end - first_query).div_ceil(lines) {
        let first = first_query + t * lines;
        sync_cube();
        let mut n = UNIT_POS as usize;
        while n < comptime!(lines * dim) {
            let (line, d) = (n / dim, n % dim);
            let query = clamp_max(first + line, end - 1);
            let from = (query / share * heads + kv_head * share + query % share) * dim + d;
            let inside = first + line < end;
            q_tile[line * comptime!(form.stride()) + d] = select(inside, q[from], 0.0f32);
            dy_tile[line * comptime!(form.stride()) + d] = select(inside, dy[from], 0.0f32);
            n += comptime!(ROWS * LANES);
        }
        sync_cube();
        #[unroll]
        for i in 0..comptime!(lines / LANES) {
            let line = g + comptime!(i * LANES);
            let query = clamp_max(first + line, end - 1);
            let token = query / share;
            let place = 2 * (token * heads + kv_head * share + query % share);
            let seen = first + line < end && token >= key && token < seen_until;
            let weight = exp(dot(k, at, &q_tile, line, form) * scale - numbers[place]);
            let slope = weight * (dot(v, at, &dy_tile, line, form) - numbers[place + 1]) * scale;
            weights[mine + line] = select(seen, weight, 0.0f32);
            slopes[mine + line] = select(seen, slope, 0.0f32);
        }
        sync_cube();
        #[unroll]
        for slot in 0..comptime!(form.slots()) {
            let d = clamp_max(g + comptime!(slot * LANES), dim - 1);
            let mut key_sum = of_key[slot];
            let mut value_sum = of_value[slot];
            for line in 0..lines {
                let from = line * comptime!(form.stride()) + d;
                key_sum += slopes[mine + line] * q_tile[from];
                value_sum += weights[mine + line] * dy_tile[from];
            }
            of_key[slot] = key_sum;
            of_value[slot] = value_sum;
        }
    }
    if block + r < tokens as usize {
        #[unroll]
        for slot in 0..comptime!(form.slots()) {
            let d = g + comptime!(slot * LANES);
            if d < dim {
                dk[at + d] = of_key[slot];
                dv[at + d] = of_value[slot];
            }
        }
    }
}

impl CubeDevice {
    /// Gradients of [`CubeDevice::documents_attention`] with respect to queries, keys and values.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::documents_attention`].
    pub fn documents_attention_back(
        &self,
        spec: &AttentionSpec,
        qkv: [&Buffer<f32>; 3],
        documents: &DocumentBounds,
        dy: &Buffer<f32>,
        [dq, dk, dv]: [&Buffer<f32>; 3],
    ) -> Result<()> {
        let shape = check(spec, qkv, documents)?;
        let [q, k, v] = qkv;
        for (input, gradient) in [(q, dy), (q, dq), (k, dk), (v, dv)] {
            check_len("gradients of attention", input.len(), gradient.len())?;
        }
        for (gradient, others) in [(dq, [dk, dv]), (dk, [dq, dv]), (dv, [dq, dk])] {
            check_apart("gradients of attention", gradient, &[q, k, v, dy])?;
            check_apart("gradients of attention", gradient, &others)?;
        }
        let AttentionGradShape { form, tokens, kv_heads, window } = shape;
        let queries_of_all = documents.tokens() * spec.heads;
        let two = self.empty::<f32>(check_shape("numbers of queries", queries_of_all, 2)?)?;
        let rows = documents.tokens() * form.share;
        let launch = Launch::new("documents numbers", &form, settings(&shape, rows, 1, 2, 6));
        self.launch(&launch, &[&two], |client, cubes, units| {
            let ([q, k, v], dy, starts) = (qkv.map(Buffer::arg), dy.arg(), documents.starts.arg());
            // SAFETY: `check` checked the lengths of all inputs; starts are tokens, and the kernel clamps tokens and keys to them.
            unsafe {
                numbers::launch_unchecked(
                    client,
                    cubes,
                    units,
                    q,
                    k,
                    v,
                    dy,
                    starts,
                    two.arg(),
                    tokens,
                    kv_heads,
                    window,
                    spec.scale,
                    form,
                );
            }
        })?;
        let launch = Launch::new("documents queries", &form, settings(&shape, rows, 2, 1, 7));
        self.launch(&launch, &[dq], |client, cubes, units| {
            let ([q, k, v], dy, starts) = (qkv.map(Buffer::arg), dy.arg(), documents.starts.arg());
            // SAFETY: as above; there are two numbers per query.
            unsafe {
                queries::launch_unchecked(
                    client,
                    cubes,
                    units,
                    q,
                    k,
                    v,
                    dy,
                    two.arg(),
                    starts,
                    dq.arg(),
                    tokens,
                    kv_heads,
                    window,
                    spec.scale,
                    form,
                );
            }
        })?;
        let of_keys = settings(&shape, documents.tokens(), 2, 2, 8);
        let launch = Launch::new("documents keys", &form, of_keys);
        self.launch(&launch, &[dk, dv], |client, cubes, units| {
            let ([q, k, v], dy, ends) = (qkv.map(Buffer::arg), dy.arg(), documents.ends.arg());
            // SAFETY: as above; the end of a document is after its tokens and at most their number.
            unsafe {
                keys_values::launch_unchecked(
                    client,
                    cubes,
                    units,
                    q,
                    k,
                    v,
                    dy,
                    two.arg(),
                    ends,
                    dk.arg(),
                    dv.arg(),
                    tokens,
                    kv_heads,
                    window,
                    spec.scale,
                    form,
                );
            }
        })
    }
}
