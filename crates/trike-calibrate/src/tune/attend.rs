//! Rotation and causal attention of whole sequences, forward and backward.

use trike_cpu::RopePairing;
use trike_nn::DecoderSpec;

use super::math::{add_scaled, dot, exp, on_threads};

/// The sines and cosines of positions.
pub(super) struct Turns {
    pairing: RopePairing,
    /// `[position][pair]`.
    cos: Vec<f32>,
    sin: Vec<f32>,
    pairs: usize,
}

impl Turns {
    pub(super) fn new(spec: &DecoderSpec, positions: usize) -> Self {
        let frequencies = spec.rope.frequencies(spec.head_dim);
        let angles = (0..positions).flat_map(|p| frequencies.iter().map(move |f| f64::from(p as f32 * f)));
        let (sin, cos) = angles.map(|a| (a.sin() as f32, a.cos() as f32)).unzip();
        Self { pairing: spec.rope.pairing, cos, sin, pairs: frequencies.len() }
    }

    /// Turns all heads of the rows of one sequence, or back again with `sign` -1, which is also the gradient.
    fn turn(&self, rows: &mut [f32], width: usize, sign: f32) {
        let (pairs, dim) = (self.pairs, 2 * self.pairs);
        for (position, row) in rows.chunks_exact_mut(width).enumerate() {
            let cos = &self.cos[position * pairs..(position + 1) * pairs];
            let sin = &self.sin[position * pairs..(position + 1) * pairs];
            for head in row.chunks_exact_mut(dim) {
                for (i, (cos, sin)) in cos.iter().zip(sin).enumerate() {
                    let (a, b) = match self.pairing {
                        RopePairing::Adjacent => (2 * i, 2 * i + 1),
                        RopePairing::Halves => (i, i + pairs),
                    };
                    let (x, y) = (head[a], head[b]);
                    head[a] = x * cos - y * sin * sign;
                    head[b] = y * cos + x * sin * sign;
                }
            }
        }
    }
}

/// Cuts a buffer of rows `width` wide into sequences.
fn cut<'a>(mut rows: &'a mut [f32], lengths: &[usize], width: usize) -> Vec<&'a mut [f32]> {
    let mut out = Vec::with_capacity(lengths.len());
    for length in lengths {
        let (one, rest) = std::mem::take(&mut rows).split_at_mut(length * width);
        out.push(one);
        rows = rest;
    }
    out
}

fn parts<'a>(rows: &'a [f32], lengths: &'a [usize], width: usize) -> impl Iterator<Item = &'a [f32]> {
    lengths.iter().scan(0, move |start, length| {
        let part = &rows[*start * width..(*start + length) * width];
        *start += length;
        Some(part)
    })
}

/// Turns queries or keys, `tokens x width`, of the sequences one after the other.
pub(super) fn rotate(
    turns: &Turns,
    x: &mut [f32],
    lengths: &[usize],
    width: usize,
    sign: f32,
    threads: usize,
) {
    on_threads(threads, cut(x, lengths, width), |rows| turns.turn(rows, width, sign));
}

/// What every sequence of a batch has in common.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    scale: f32,
    window: usize,
}

impl Heads {
    pub(super) fn of(spec: &DecoderSpec) -> Self {
        Self {
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            dim: spec.head_dim,
            scale: spec.attention().scale,
            window: spec.window.unwrap_or(usize::MAX),
        }
    }

    /// One head of rows that hold `heads` of them, transposed: `dim x tokens`.
    fn column(&self, rows: &[f32], heads: usize, head: usize) -> Vec<f32> {
        let (width, tokens) = (heads * self.dim, rows.len() / (heads * self.dim));
        let mut out = vec![0.0; self.dim * tokens];
        for (t, row) in rows.chunks_exact(width).enumerate() {
            for (d, v) in row[head * self.dim..(head + 1) * self.dim].iter().enumerate() {
                out[d * tokens + t] = *v;
            }
        }
        out
    }

    /// The positions that a query sees.
    fn seen(&self, position: usize) -> std::ops::Range<usize> {
        (position + 1).saturating_sub(self.window)..position + 1
    }

    /// The weights of the positions that a query sees, into `out`.
    fn weigh(&self, query: &[f32], keys: &[f32], tokens: usize, position: usize, out: &mut Vec<f32>) {
        let seen = self.seen(position);
        out.clear();
        out.resize(seen.len(), 0.0);
        for (d, q) in query.iter().enumerate() {
            add_scaled(out, q * self.scale, &keys[d * tokens + seen.start..d * tokens + seen.end]);
        }
        let largest = out.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
        for v in out.iter_mut() {
            *v = exp(*v - largest);
        }
        let share = 1.0 / out.iter().sum::<f32>();
        for v in out.iter_mut() {
            *v *= share;
        }
    }

    /// What attention returns, `tokens x heads dim`, of turned queries and keys.
    pub(super) fn attend(self, [q, k, v]: [&[f32]; 3], lengths: &[usize], threads: usize) -> Vec<f32> {
        let (width, kv_width) = (self.heads * self.dim, self.kv_heads * self.dim);
        let mut out = vec![0.0; q.len()];
        let inputs =
            parts(q, lengths, width).zip(parts(k, lengths, kv_width)).zip(parts(v, lengths, kv_width));
        let inputs = inputs.map(|((q, k), v)| [q, k, v]);
        let items = inputs.zip(cut(&mut out, lengths, width)).collect();
        on_threads(threads, items, |([q, k, v], out): ([&[f32]; 3], &mut [f32])| {
            let tokens = q.len() / width;
            let mut weights = Vec::new();
            for head in 0..self.heads {
                let kv = head / (self.heads / self.kv_heads);
                let (keys, values) = (self.column(k, self.kv_heads, kv), self.column(v, self.kv_heads, kv));
                for t in 0..tokens {
                    let place = t * width + head * self.dim..t * width + (head + 1) * self.dim;
                    self.weigh(&q[place.clone()], &keys, tokens, t, &mut weights);
                    let seen = self.seen(t);
                    for (d, out) in out[place].iter_mut().enumerate() {
                        *out = dot(&weights, &values[d * tokens + seen.start..d * tokens + seen.end]);
                    }
                }
            }
        });
        out
    }

    /// The gradients by turned queries, turned keys and values, from that by what attention returned.
    pub(super) fn attend_back(
        self,
        [q, k, v]: [&[f32]; 3],
        d_out: &[f32],
        lengths: &[usize],
        threads: usize,
    ) -> [Vec<f32>; 3] {
        let (width, kv_width) = (self.heads * self.dim, self.kv_heads * self.dim);
        let mut grads = [vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]];
        let [dq, dk, dv] = &mut grads;
        let inputs =
            parts(q, lengths, width).zip(parts(k, lengths, kv_width)).zip(parts(v, lengths, kv_width));
        let outs = cut(dq, lengths, width).into_iter().zip(cut(dk, lengths, kv_width));
        let outs = outs.zip(cut(dv, lengths, kv_width)).zip(parts(d_out, lengths, width));
        on_threads(threads, inputs.zip(outs).collect(), |(((q, k), v), (((dq, dk), dv), d_out))| {
            self.one_back([q, k, v], [dq, dk, dv], d_out);
        });
        grads
    }

    /// [`attend_back`](Self::attend_back) of one sequence.
    fn one_back(self, [q, k, v]: [&[f32]; 3], [dq, dk, dv]: [&mut [f32]; 3], d_out: &[f32]) {
        let (width, kv_width) = (self.heads * self.dim, self.kv_heads * self.dim);
        let (tokens, share) = (q.len() / width, self.heads / self.kv_heads);
        let (mut weights, mut by_score) = (Vec::new(), Vec::new());
        for kv in 0..self.kv_heads {
            let (keys, values) = (self.column(k, self.kv_heads, kv), self.column(v, self.kv_heads, kv));
            let (mut d_keys, mut d_values) = (vec![0f32; keys.len()], vec![0f32; values.len()]);
            for head in kv * share..(kv + 1) * share {
                for t in 0..tokens {
                    let place = t * width + head * self.dim..t * width + (head + 1) * self.dim;
                    let (query, d_out) = (&q[place.clone()], &d_out[place.clone()]);
                    self.weigh(query, &keys, tokens, t, &mut weights);
                    let seen = self.seen(t);
                    let span = |d: usize| d * tokens + seen.start..d * tokens + seen.end;
                    by_score.clear();
                    by_score.resize(weights.len(), 0.0);
                    for (d, g) in d_out.iter().enumerate() {
                        add_scaled(&mut by_score, *g, &values[span(d)]);
                        add_scaled(&mut d_values[span(d)], *g, &weights);
                    }
                    // The softmax: weights times what each is above the mean.
                    let mean = dot(&weights, &by_score);
                    for (s, w) in by_score.iter_mut().zip(&weights) {
                        *s = w * (*s - mean) * self.scale;
                    }
                    for (d, (dq, q)) in dq[place].iter_mut().zip(query).enumerate() {
                        *dq = dot(&by_score, &keys[span(d)]);
                        add_scaled(&mut d_keys[span(d)], *q, &by_score);
                    }
                }
            }
            for (out, columns) in [(&mut *dk, &d_keys), (&mut *dv, &d_values)] {
                for (t, row) in out.chunks_exact_mut(kv_width).enumerate() {
                    for (d, to) in row[kv * self.dim..(kv + 1) * self.dim].iter_mut().enumerate() {
                        *to = columns[d * tokens + t];
                    }
                }
            }
        }
    }
}
