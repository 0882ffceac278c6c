//! Attention with few query rows: positions are split across cubes, and each cube reads a key and a value once for several
//! heads.

use cubecl::prelude::*;

/// Score of masked positions: finite, so that the difference of two is not NaN.
pub(super) const LOWEST: f32 = -3.0e38;

/// Compile-time parameters of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Head dimension.
    pub(super) head_dim: usize,
    /// Query heads per KV head.
    pub(super) share: usize,
    /// Query heads per cube.
    pub(super) heads: usize,
    /// Units per key: they split its dot products.
    pub(super) lanes: usize,
    /// Positions per update of the running maximum.
    pub(super) chunk: usize,
    /// Units per cube.
    pub(super) units: usize,
    /// Elements per vector load.
    pub(super) width: usize,
    /// True if positions are split across cubes, so that partial sums are written for [`combine`].
    pub(super) split: bool,
}

impl Form {
    /// Vectors per head.
    fn vectors(self) -> usize {
        self.head_dim / self.width
    }

    /// Groups of units that sum the values of different positions.
    fn subsets(self) -> usize {
        self.units / self.vectors()
    }

    /// Partial maxima per head, each computed by one unit.
    const MAXIMA: usize = 16;

    /// Floats of scratch memory for the partial scores, later for the partial sums.
    fn scratch(self) -> usize {
        let scores = self.heads * self.chunk * self.lanes;
        scores.max(self.heads * self.subsets() * self.head_dim)
    }

    /// Bytes of shared memory.
    pub(super) fn shared_bytes(self) -> usize {
        let query = self.heads * self.head_dim;
        let small = self.heads * (Self::MAXIMA + 3 + self.subsets());
        4 * (query + self.heads * self.chunk + self.scratch() + small)
    }
}

/// Cube `(split, KV head and block of its query heads, row)` computes attention of `heads` query heads over its part of the
/// row's visible positions. All parts have the same number of whole chunks; the last ones are empty when there are fewer chunks
/// than parts.
///
/// For each chunk of positions: `lanes` units compute the dot products of a key with all heads, the scores become weights
/// relative to the running maximum, and units that hold a vector of columns sum the values (online softmax: Milakov and
/// Gimelshein, 2018). The loops depend only on the row's position, so every unit reaches every barrier.
///
/// The kernel, not the host, computes the extent of a part, because the arguments of a recorded launch are fixed: the grid is
/// sized for [`AttentionProblem::horizon`](super::AttentionProblem::horizon), and the position is read from a buffer.
#[cube(launch_unchecked)]
pub(super) fn decode<E: Float, N: Size>(
    q: &[Vector<f32, N>],
    k: &[Vector<E, N>],
    v: &[Vector<E, N>],
    positions: &[u32],
    out: &mut [f32],
    first_row: u32,
    kv_heads: u32,
    capacity: u32,
    window: u32,
    scale: f32,
    #[comptime] form: Form,
) {
    let unit = UNIT_POS as usize;
    let vectors = comptime!(form.vectors());
    let subsets = comptime!(form.subsets());
    let chunk = form.chunk;
    let blocks = comptime!(form.share.div_ceil(form.heads));
    let kv_head = CUBE_POS_Y as usize / blocks;
    let first_head = CUBE_POS_Y as usize % blocks * form.heads;
    let query_heads = kv_heads as usize * form.share;
    let row = first_row as usize + CUBE_POS_Z as usize;

    let end = positions[row] + 1;
    let start = select(window < end, end - min(window, end), 0u32);
    let parts = CUBE_COUNT_X;
    let chunk_len = comptime!(form.chunk as u32);
    let per = (end - start).div_ceil(parts).div_ceil(chunk_len) * chunk_len;
    let from = start + CUBE_POS_X * per;
    // A part that begins after the last position is empty.
    let to = max(from, min(from + per, end));

    let mut queries = Shared::<[Vector<f32, N>]>::new_slice(comptime!(form.heads * form.vectors()));
    let mut scores = Shared::<[f32]>::new_slice(comptime!(form.heads * form.chunk));
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(form.scratch()));
    let mut maxima = Shared::<[f32]>::new_slice(comptime!(form.heads * Form::MAXIMA));
    let mut largest = Shared::<[f32]>::new_slice(form.heads);
    let mut next = Shared::<[f32]>::new_slice(form.heads);
    let mut kept = Shared::<[f32]>::new_slice(form.heads);
    let mut weights = Shared::<[f32]>::new_slice(comptime!(form.heads * form.subsets()));

    let mut i = unit;
    while i < comptime!(form.heads * form.vectors()) {
        // Heads past the last repeat the last one and are not stored.
        let head = kv_head * form.share + clamp_max(first_head + i / vectors, comptime!(form.share - 1));
        queries[i] = q[(row * query_heads + head) * vectors + i % vectors] * Vector::new(scale);
        i += form.units;
    }
    if unit < form.heads {
        largest[unit] = LOWEST;
    }
    let mut sums = Array::<Vector<f32, N>>::new(form.heads);
    let mut weight_sums = Array::<f32>::new(form.heads);
    #[unroll]
    for h in 0..form.heads {
        sums[h] = Vector::new(0.0f32);
        weight_sums[h] = 0.0;
    }
    let (column, subset) = (unit % vectors, unit / vectors);
    let (lane, slot) = (unit % form.lanes, unit / form.lanes);
    let at_once = comptime!(form.units / form.lanes);
    sync_cube();

    for c in 0..(to - from).div_ceil(chunk_len) as usize {
        let base = from as usize + c * chunk;
        // Partial scores, one per lane.
        for turn in 0..comptime!(form.chunk / (form.units / form.lanes)) {
            let j = turn * at_once + slot;
            let mut dots = Array::<Vector<f32, N>>::new(form.heads);
            #[unroll]
            for h in 0..form.heads {
                dots[h] = Vector::new(0.0f32);
            }
            if base + j < to as usize {
                let at = (kv_head * capacity as usize + (base + j) % capacity as usize) * vectors;
                let mut i = lane;
                while i < vectors {
                    let key = Vector::<f32, N>::cast_from(k[at + i]);
                    #[unroll]
                    for h in 0..form.heads {
                        dots[h] += key * queries[h * vectors + i];
                    }
                    i += form.lanes;
                }
            }
            #[unroll]
            for h in 0..form.heads {
                let mut dot = 0.0f32;
                #[unroll]
                for n in 0..form.width {
                    dot += dots[h].extract(n);
                }
                scratch[(h * chunk + j) * form.lanes + lane] = dot;
            }
        }
        sync_cube();
        let mut n = unit;
        while n < comptime!(form.heads * form.chunk) {
            let mut score = 0.0f32;
            #[unroll]
            for l in 0..form.lanes {
                score += scratch[n * form.lanes + l];
            }
            scores[n] = select(base + n % chunk < to as usize, score, LOWEST);
            n += form.units;
        }
        sync_cube();
        let mut n = unit;
        while n < comptime!(form.heads * Form::MAXIMA) {
            let each = comptime!(form.chunk / Form::MAXIMA);
            let mut most = scores[n * each];
            #[unroll]
            for l in 1..each {
                most = max(most, scores[n * each + l]);
            }
            maxima[n] = most;
            n += form.units;
        }
        sync_cube();
        // Weights relative to the new maximum.
        let mut n = unit;
        while n < comptime!(form.heads * form.chunk) {
            let h = n / chunk;
            let mut most = largest[h];
            #[unroll]
            for l in 0..Form::MAXIMA {
                most = max(most, maxima[h * Form::MAXIMA + l]);
            }
            scores[n] = select(base + n % chunk < to as usize, f32::exp(scores[n] - most), 0.0f32);
            if n == h * chunk {
                next[h] = most;
                kept[h] = f32::exp(largest[h] - most);
            }
            n += form.units;
        }
        sync_cube();
        if unit < form.heads {
            largest[unit] = next[unit];
        }
        if subset < subsets {
            #[unroll]
            for h in 0..form.heads {
                sums[h] *= Vector::new(kept[h]);
                weight_sums[h] *= kept[h];
            }
            let mut j = subset;
            while j < chunk {
                if base + j < to as usize {
                    let at =
                        (kv_head * capacity as usize + (base + j) % capacity as usize) * vectors + column;
                    let value = Vector::<f32, N>::cast_from(v[at]);
                    #[unroll]
                    for h in 0..form.heads {
                        let weight = scores[h * chunk + j];
                        sums[h] += value * Vector::new(weight);
                        weight_sums[h] += weight;
                    }
                }
                j += subsets;
            }
        }
        sync_cube();
    }

    if subset < subsets {
        #[unroll]
        for h in 0..form.heads {
            #[unroll]
            for n in 0..form.width {
                scratch[(h * subsets + subset) * form.head_dim + column * form.width + n] =
                    sums[h].extract(n);
            }
            if column == 0 {
                weights[h * subsets + subset] = weight_sums[h];
            }
        }
    }
    sync_cube();
    let mut n = unit;
    while n < comptime!(form.heads * form.head_dim) {
        let (h, d) = (n / form.head_dim, n % form.head_dim);
        if first_head + h < form.share {
            let mut sum = 0.0f32;
            let mut total = 0.0f32;
            for s in 0..subsets {
                sum += scratch[(h * subsets + s) * form.head_dim + d];
                total += weights[h * subsets + s];
            }
            let head = kv_head * form.share + first_head + h;
            if comptime!(form.split) {
                let stride = comptime!(form.head_dim + 2);
                let at = ((CUBE_POS_Z as usize * query_heads + head) * CUBE_COUNT_X as usize
                    + CUBE_POS_X as usize)
                    * stride;
                out[at + d] = sum;
                if d == 0 {
                    out[at + form.head_dim] = largest[h];
                    out[at + form.head_dim + 1] = total;
                }
            } else {
                out[(row * query_heads + head) * form.head_dim + d] = sum / total;
            }
        }
        n += form.units;
    }
}

/// Cube `i` combines the partial results of all splits for one head of one row: sums, their maximum, and total weights.
#[cube(launch_unchecked)]
pub(super) fn combine(
    parts: &[f32],
    out: &mut [f32],
    count: u32,
    first: u32,
    splits: u32,
    #[comptime] head_dim: usize,
    #[comptime] units: usize,
) {
    let stride = comptime!(head_dim + 2);
    if CUBE_POS < count as usize {
        let base = CUBE_POS * splits as usize * stride;
        let mut most = LOWEST.runtime();
        for s in 0..splits as usize {
            most = max(most, parts[base + s * stride + head_dim]);
        }
        let mut d = UNIT_POS as usize;
        while d < head_dim {
            let mut sum = 0.0f32;
            let mut total = 0.0f32;
            for s in 0..splits as usize {
                let at = base + s * stride;
                let weight = f32::exp(parts[at + head_dim] - most);
                sum += parts[at + d] * weight;
                total += parts[at + head_dim + 1] * weight;
            }
            out[(first as usize + CUBE_POS) * head_dim + d] = sum / total;
            d += units;
        }
    }
}
