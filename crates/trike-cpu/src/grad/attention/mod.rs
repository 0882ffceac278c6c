//! Causal attention over whole sequences, without a cache, and its gradients.
//!
//! A query at position `t` of its sequence has the scores `s_j = scale q_t . k_j` over the visible positions `j`, the
//! weights `p = softmax(s)` and the output `o_t = sum_j p_j v_j`. With `g_j = do_t . v_j` the gradients are
//!
//! ```text
//! ds_j = p_j (g_j - sum_i p_i g_i)      dv_j += p_j do_t
//! dq_t = scale sum_j ds_j k_j           dk_j += scale ds_j q_t
//! ```
//!
//! where sums for a key/value head run over all query heads that share it (as in the backward pass of FlashAttention, Dao et al.,
//! 2205.14135). The weights are recomputed for some queries at a time ([`tiles`]), so memory is linear in the length of a sequence.

mod tiles;

use trike_core::AttentionSpec;
use trike_host::Cpu;

use crate::attention::{KvData, KvView};
use crate::error::{CpuError, check_len, check_range};
use crate::kernels::{Kernels, View, with_float_kernels};
use crate::ops::CpuOps;
use tiles::Head;

/// Self-attention of several sequences, with the arguments and the layout of [`attention`]; `out` has the length of `q`. The values
/// are those of [`CpuOps::attention`] with a cache in f32.
///
/// # Errors
///
/// As [`attention`].
pub fn attend(
    cpu: &Cpu,
    spec: &AttentionSpec,
    [q, k, v]: [&[f32]; 3],
    lengths: &[usize],
    out: &mut [f32],
) -> Result<(), CpuError> {
    let (width, kv_width) = check(spec, [q, k, v], lengths)?;
    check_len("output of attention", q.len(), out.len())?;
    let inputs = parts(q, lengths, width).zip(parts(k, lengths, kv_width)).zip(parts(v, lengths, kv_width));
    for (((q, k), v), out) in inputs.zip(cut(out, lengths, width)) {
        let (k, v) = (by_head(spec, k), by_head(spec, v));
        let kv = KvView { k: KvData::F32(&k), v: KvData::F32(&v), capacity: q.len() / width };
        cpu.attention(spec, q, 0, kv, out)?;
    }
    Ok(())
}

/// Keys or values in cache order, `kv_heads x tokens x head_dim`.
fn by_head(spec: &AttentionSpec, rows: &[f32]) -> Vec<f32> {
    let (dim, width) = (spec.head_dim, spec.kv_heads * spec.head_dim);
    let mut out = Vec::with_capacity(rows.len());
    for head in 0..spec.kv_heads {
        for row in rows.chunks_exact(width) {
            out.extend_from_slice(&row[head * dim..(head + 1) * dim]);
        }
    }
    out
}

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
    let groups: Vec<(usize, usize, usize)> = {
        let starts = lengths.iter().scan(0, |start, &length| {
            *start += length;
            Some((*start - length, length))
        });
        starts.flat_map(|(start, length)| (0..spec.kv_heads).map(move |head| (start, length, head))).collect()
    };
    let isa = cpu.isa();
    let dim = spec.head_dim;
    let done = cpu.pool().map(groups.clone(), |(start, length, head)| {
        let queries = &q[start * width..(start + length) * width];
        let [keys, values] = [k, v].map(|x| {
            View::new(&x[start * kv_width..(start + length) * kv_width][head * dim..], length, dim, kv_width)
        });
        let dy = &dy[start * width..(start + length) * width];
        with_float_kernels!(isa, simd => simd.run(Head { simd, spec, head, queries, keys, values, dy }))
    });
    for ((start, _, head), [head_dq, head_dk, head_dv]) in groups.into_iter().zip(done) {
        let group = width / spec.kv_heads;
        for (out, from, row, each) in [
            (&mut *dq, &head_dq, width, group),
            (&mut *dk, &head_dk, kv_width, dim),
            (&mut *dv, &head_dv, kv_width, dim),
        ] {
            let rows = out[start * row..].chunks_exact_mut(row).zip(from.chunks_exact(each));
            for (out, from) in rows {
                out[head * each..(head + 1) * each].copy_from_slice(from);
            }
        }
    }
    Ok(())
}

/// Peak bytes that [`attend`] allocates: the keys and values of the longest sequence, head by head.
#[must_use]
pub fn attend_bytes(spec: &AttentionSpec, lengths: &[usize]) -> u64 {
    let longest = lengths.iter().max().map_or(0, |length| *length as u64);
    8 * longest * (spec.kv_heads * spec.head_dim) as u64
}

/// Peak bytes that [`attention`] allocates on `threads` threads: the gradients of all heads, and per-thread memory for one
/// key/value head of the longest sequence.
///
/// ```
/// use trike_cpu::{AttentionSpec, grad};
///
/// let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 64, scale: 0.125, window: None };
/// let gradients = 4 * 128 * (4 + 2 + 2) * 64;
/// assert!(grad::attention_bytes(&spec, &[128], 1) > gradients);
/// ```
#[must_use]
pub fn attention_bytes(spec: &AttentionSpec, lengths: &[usize], threads: usize) -> u64 {
    let (tokens, longest) =
        lengths.iter().fold((0, 0), |(sum, most), &length| (sum + length, most.max(length)));
    let gradients = 4 * tokens as u64 * ((spec.heads + 2 * spec.kv_heads) * spec.head_dim) as u64;
    let tasks = lengths.len() * spec.kv_heads;
    gradients + tiles::head_bytes(spec.head_dim, longest) * threads.clamp(1, tasks.max(1)) as u64
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
fn cut<'a>(mut rows: &'a mut [f32], lengths: &[usize], width: usize) -> Vec<&'a mut [f32]> {
    let mut out = Vec::with_capacity(lengths.len());
    for length in lengths {
        let (one, rest) = rows.split_at_mut(length * width);
        out.push(one);
        rows = rest;
    }
    out
}

/// Like [`cut`], for shared slices.
fn parts<'a>(rows: &'a [f32], lengths: &'a [usize], width: usize) -> impl Iterator<Item = &'a [f32]> {
    lengths.iter().scan(0, move |start, length| {
        let part = &rows[*start * width..(*start + length) * width];
        *start += length;
        Some(part)
    })
}
