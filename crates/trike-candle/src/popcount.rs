//! Attention with scores that are exact integer products of trits.

use std::ops::Range;

use trike_core::AttentionSpec;
use trike_cpu::Cpu;
use trike_popcount::TritOps;

use crate::CandleError;
use crate::mask::Visible;
use crate::trits::TritRows;

/// Maximum number of tokens whose scores are in memory at the same time.
const BLOCK: usize = 64;

/// The keys and values of one sequence.
pub(crate) struct Context<'a> {
    /// For each head, one row per slot; position `p` is in slot `p % capacity`.
    pub(crate) keys: &'a [TritRows],
    pub(crate) capacity: usize,
    /// `kv_heads x positions x head_dim`.
    pub(crate) values: &'a [f32],
    pub(crate) positions: Range<usize>,
}

/// The rounded queries of one sequence, `tokens x heads x head_dim`: for each key/value head, one row per token and query head that
/// shares it.
pub(crate) fn round_queries(spec: &AttentionSpec, q: &[f32]) -> Result<Vec<TritRows>, CandleError> {
    TritRows::round_heads("a query", q, spec.kv_heads, spec.heads / spec.kv_heads, spec.head_dim)
}

/// Attention of the rounded queries of one sequence, `tokens x heads x head_dim`.
pub(crate) fn attend(
    cpu: &Cpu,
    visible: &Visible<'_>,
    sequence: usize,
    queries: &[TritRows],
    context: &Context<'_>,
    out: &mut [f32],
) -> Result<(), CandleError> {
    let spec = visible.spec();
    let (d, share, width) = (spec.head_dim, spec.heads / spec.kv_heads, spec.heads * spec.head_dim);
    let of_heads = context.keys.iter().zip(context.values.chunks_exact(context.positions.len() * d));
    for (kv_head, (all, (keys, values))) in queries.iter().zip(of_heads).enumerate() {
        for first in (0..visible.tokens()).step_by(BLOCK) {
            let tokens = first..visible.tokens().min(first + BLOCK);
            let mut queries = TritRows::new(d)?;
            for (i, row) in (tokens.start * share..tokens.end * share).enumerate() {
                queries.set(i, all, row)?;
            }
            let stored = keys.planes().rows();
            let mut products = vec![0; queries.scales().len() * stored];
            cpu.trit_matmul(queries.planes(), keys.planes(), &mut products)?;
            let row = |(i, products): (usize, &[i32])| {
                let (token, head) = (first + i / share, kv_head * share + i % share);
                let scale = spec.scale * queries.scales()[i];
                let span = visible.span(token);
                let seen = span.start.max(context.positions.start)..span.end.min(context.positions.end);
                let score = |position: usize| {
                    let slot = position % context.capacity;
                    // The integer is below 2^24: exact.
                    scale * keys.scales()[slot] * products[slot] as f32
                        + visible.bias(sequence, head, token, position)
                };
                let values = &values[(seen.start - context.positions.start) * d..];
                weighted(&seen.map(score).collect::<Vec<f32>>(), values, d)
            };
            let rows: Vec<_> = products.chunks_exact(stored).enumerate().collect();
            let work = products.len().saturating_mul(d);
            let means: Vec<Vec<f32>> = if cpu.pool().parts(work) > 1 {
                cpu.pool().map(rows, row)
            } else {
                rows.into_iter().map(row).collect()
            };
            let places = tokens.flat_map(|token| (0..share).map(move |i| (token, kv_head * share + i)));
            for (mean, (token, head)) in means.iter().zip(places) {
                out[token * width + head * d..][..d].copy_from_slice(mean);
            }
        }
    }
    Ok(())
}

/// The mean of the values, weighted by the softmax of the scores.
fn weighted(scores: &[f32], values: &[f32], d: usize) -> Vec<f32> {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (mut sum, mut mean) = (0.0, vec![0.0; d]);
    for (score, value) in scores.iter().zip(values.chunks_exact(d)) {
        let weight = (score - largest).exp();
        // Masked values are not read: they may be infinite.
        if weight > 0.0 {
            sum += weight;
            mean.iter_mut().zip(value).for_each(|(mean, value)| *mean += weight * value);
        }
    }
    mean.iter_mut().for_each(|mean| *mean /= sum);
    mean
}
