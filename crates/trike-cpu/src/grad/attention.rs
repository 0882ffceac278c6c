//! Gradients of causal attention over whole sequences, without a cache.
//!
//! A query at position `t` of its sequence has the scores `s_j = scale q_t . k_j` over the visible positions `j`, the
//! weights
//! `p = softmax(s)` and the output `o_t = sum_j p_j v_j`. With `g_j = do_t . v_j` the gradients are
//!
//! ```text
//! ds_j = p_j (g_j - sum_i p_i g_i)      dv_j += p_j do_t
//! dq_t = scale sum_j ds_j k_j           dk_j += scale ds_j q_t
//! ```
//!
//! where the sums for a key/value head run over all query heads that share it (as in the backward pass of
//! FlashAttention, Dao et al., 2205.14135; the weights are recomputed, not stored).

use std::ops::Range;

use trike_core::AttentionSpec;
use trike_host::Cpu;

use super::lanes::{add_scaled, dot};
use crate::error::{CpuError, check_len, check_range};
use crate::math::exp;

/// Gradients of attention over whole sequences with respect to queries, keys and values.
///
/// `q`, `dy` and `dq` are `tokens x heads x head_dim`; `k`, `v`, `dk` and `dv` are `tokens x kv_heads x head_dim`. The
/// tokens are the concatenation of sequences of `lengths` tokens, each starting at position 0. Rotary embedding is not
/// included: `q` and `k` are already rotated.
///
/// # Errors
///
/// [`CpuError::Range`] and [`CpuError::Heads`] for a `spec` without heads or with heads that cannot be shared,
/// [`CpuError::Length`] when a slice does not have its length.
pub fn attention(
    cpu: &Cpu,
    spec: &AttentionSpec,
    [q, k, v]: [&[f32]; 3],
    lengths: &[usize],
    dy: &[f32],
    [dq, dk, dv]: [&mut [f32]; 3],
) -> Result<(), CpuError> {
    let (width, kv_width) = check(spec, [q, k, v], lengths)?;
    check_len("gradient of attention's output", q.len(), dy.len())?;
    check_len("gradient of the queries", q.len(), dq.len())?;
    check_len("gradient of the keys", k.len(), dk.len())?;
    check_len("gradient of the values", v.len(), dv.len())?;
    let inputs = parts(q, lengths, width).zip(parts(k, lengths, kv_width)).zip(parts(v, lengths, kv_width));
    let outputs = cut(dq, lengths, width).into_iter().zip(cut(dk, lengths, kv_width));
    let outputs = outputs.zip(cut(dv, lengths, kv_width)).zip(parts(dy, lengths, width));
    cpu.pool().run(inputs.zip(outputs).collect(), |(((q, k), v), (((dq, dk), dv), dy))| {
        sequence(spec, [q, k, v], dy, [dq, dk, dv]);
    });
    Ok(())
}

/// Checks all arguments and returns the widths of the query and key rows.
fn check(
    spec: &AttentionSpec,
    [q, k, v]: [&[f32]; 3],
    lengths: &[usize],
) -> Result<(usize, usize), CpuError> {
    check_range("heads of attention", 1, 1 << 20, spec.heads)?;
    check_range("key/value heads of attention", 1, spec.heads, spec.kv_heads)?;
    check_range("head_dim of attention", 1, 1 << 20, spec.head_dim)?;
    check_range("window of attention", 1, usize::MAX, spec.window.unwrap_or(1))?;
    if !spec.heads.is_multiple_of(spec.kv_heads) {
        return Err(CpuError::Heads { heads: spec.heads, kv_heads: spec.kv_heads });
    }
    let (width, kv_width) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    let tokens: usize = lengths.iter().sum();
    check_len("queries of attention", tokens * width, q.len())?;
    check_len("keys of attention", tokens * kv_width, k.len())?;
    check_len("values of attention", tokens * kv_width, v.len())?;
    Ok((width, kv_width))
}

/// Splits rows of `width` elements into the sequences.
pub(super) fn cut<'a>(mut rows: &'a mut [f32], lengths: &[usize], width: usize) -> Vec<&'a mut [f32]> {
    let mut out = Vec::with_capacity(lengths.len());
    for length in lengths {
        let (one, rest) = rows.split_at_mut(length * width);
        out.push(one);
        rows = rest;
    }
    out
}

/// Like [`cut`], for shared slices.
pub(super) fn parts<'a>(
    rows: &'a [f32],
    lengths: &'a [usize],
    width: usize,
) -> impl Iterator<Item = &'a [f32]> {
    lengths.iter().scan(0, move |start, length| {
        let part = &rows[*start * width..(*start + length) * width];
        *start += length;
        Some(part)
    })
}

/// Element range of a query head of a token.
fn head_of(spec: &AttentionSpec, token: usize, head: usize) -> Range<usize> {
    let at = (token * spec.heads + head) * spec.head_dim;
    at..at + spec.head_dim
}

/// A key/value head of all tokens, transposed to `head_dim x tokens`, so that loops over positions are contiguous.
fn column(spec: &AttentionSpec, rows: &[f32], head: usize) -> Vec<f32> {
    let (width, dim) = (spec.kv_heads * spec.head_dim, spec.head_dim);
    let tokens = rows.len() / width;
    let mut out = vec![0.0; dim * tokens];
    for (t, row) in rows.chunks_exact(width).enumerate() {
        for (d, v) in row[head * dim..(head + 1) * dim].iter().enumerate() {
            out[d * tokens + t] = *v;
        }
    }
    out
}

/// Writes the attention weights of the visible positions to `out`.
fn softmax(
    spec: &AttentionSpec,
    query: &[f32],
    keys: &[f32],
    tokens: usize,
    position: usize,
    out: &mut Vec<f32>,
) {
    let seen = spec.span(position);
    out.clear();
    out.resize(seen.len(), 0.0);
    for (d, q) in query.iter().enumerate() {
        add_scaled(out, q * spec.scale, &keys[d * tokens + seen.start..d * tokens + seen.end]);
    }
    let largest = out.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    for v in out.iter_mut() {
        *v = exp(*v - largest);
    }
    let factor = 1.0 / out.iter().sum::<f32>();
    for v in out.iter_mut() {
        *v *= factor;
    }
}

/// [`attention`] of one sequence.
fn sequence(spec: &AttentionSpec, [q, k, v]: [&[f32]; 3], dy: &[f32], [dq, dk, dv]: [&mut [f32]; 3]) {
    let (dim, kv_width) = (spec.head_dim, spec.kv_heads * spec.head_dim);
    let (tokens, shared) = (q.len() / (spec.heads * dim), spec.heads / spec.kv_heads);
    let (mut weights, mut d_scores) = (Vec::new(), Vec::new());
    for kv in 0..spec.kv_heads {
        let (keys, values) = (column(spec, k, kv), column(spec, v, kv));
        let (mut d_keys, mut d_values) = (vec![0f32; keys.len()], vec![0f32; values.len()]);
        for head in kv * shared..(kv + 1) * shared {
            for t in 0..tokens {
                let row = head_of(spec, t, head);
                let (query, dy) = (&q[row.clone()], &dy[row.clone()]);
                softmax(spec, query, &keys, tokens, t, &mut weights);
                let seen = spec.span(t);
                let span = |d: usize| d * tokens + seen.start..d * tokens + seen.end;
                d_scores.clear();
                d_scores.resize(weights.len(), 0.0);
                for (d, g) in dy.iter().enumerate() {
                    add_scaled(&mut d_scores, *g, &values[span(d)]);
                    add_scaled(&mut d_values[span(d)], *g, &weights);
                }
                let mean = dot(&weights, &d_scores);
                for (s, w) in d_scores.iter_mut().zip(&weights) {
                    *s = w * (*s - mean) * spec.scale;
                }
                for (d, (dq, q)) in dq[row].iter_mut().zip(query).enumerate() {
                    *dq = dot(&d_scores, &keys[span(d)]);
                    add_scaled(&mut d_keys[span(d)], *q, &d_scores);
                }
            }
        }
        for (out, columns) in [(&mut *dk, &d_keys), (&mut *dv, &d_values)] {
            for (t, row) in out.chunks_exact_mut(kv_width).enumerate() {
                for (d, to) in row[kv * dim..(kv + 1) * dim].iter_mut().enumerate() {
                    *to = columns[d * tokens + t];
                }
            }
        }
    }
}
