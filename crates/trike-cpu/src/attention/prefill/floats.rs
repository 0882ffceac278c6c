//! Prefill attention in f32, for caches in f32 and the first positions of others.

use super::blocks::Blocks;
use super::product::{Keys, Values, product};
use super::shares::{Sample, Tally, tally};
use super::{
    Item, KEYS, Panel, ROWS, Row, SCALARS, blocks_of, finish, items, mask, panel, panels, row_of, seen_part,
    vectors,
};
use crate::attention::lanes::Lanes;
use crate::attention::{Job, Ring};
use crate::kernels::{Kernels as _, with_float_kernels};
use crate::math::exp;
use trike_host::Isa;
use trike_host::Loop;
use trike_host::Pool;

pub(in crate::attention) fn run(
    job: &Job<'_>,
    isa: Isa,
    pool: &Pool,
    k: Ring<'_, f32>,
    v: Ring<'_, f32>,
    out: &mut [f32],
) {
    pool.run(items(job, pool, out), |items| {
        let mut blocks = Blocks::new(job.problem.head_dim);
        for item in items {
            match vectors(item.out.len()) {
                1 => attend::<1>(job, isa, [k, v], item, &mut blocks),
                2 => attend::<2>(job, isa, [k, v], item, &mut blocks),
                _ => attend::<3>(job, isa, [k, v], item, &mut blocks),
            }
        }
    });
}

/// Computes one item.
fn attend<const V: usize>(
    job: &Job<'_>,
    isa: Isa,
    [k, v]: [Ring<'_, f32>; 2],
    mut item: Item<'_>,
    blocks: &mut Blocks,
) {
    let mut panels = panels::<V>(job, isa, &item);
    let mut scores = [row_of::<V>(0.0); KEYS];
    for (start, positions) in blocks_of(job, &item) {
        let run = |ring| job.block(ring, item.kv_head, &positions);
        blocks.fill(isa, run(k), run(v), start, &positions);
        let (scale, blocks, panels, scores) = (job.problem.scale, &*blocks, &mut panels[..], &mut scores);
        with_float_kernels!(isa, s => s.run(AttendBlock { s, scale, blocks, start, panels, scores }));
    }
    for (panel, out) in panels.iter().zip(item.out.chunks_mut(16 * V)) {
        finish(isa, panel, out);
    }
}

/// Accumulates a block into the panels of an item.
struct AttendBlock<'a, S, const V: usize> {
    s: S,
    scale: f32,
    blocks: &'a Blocks,
    start: usize,
    panels: &'a mut [Panel<V>],
    scores: &'a mut [Row<V>; KEYS],
}

impl<S: Lanes, const V: usize> Loop for AttendBlock<'_, S, V> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for panel in self.panels {
            attend_block(self.s, self.scale, self.blocks, self.start, panel, self.scores);
        }
    }
}

/// Accumulates a block into a panel.
#[inline(always)]
fn attend_block<S: Lanes, const V: usize>(
    s: S,
    scale: f32,
    blocks: &Blocks,
    start: usize,
    panel: &mut Panel<V>,
    scores: &mut [Row<V>; KEYS],
) {
    let q = panel.q.as_chunks::<V>().0;
    let d = q.len();
    let Some((part, masked)) = seen_part(panel, start) else {
        return;
    };
    let (low, high) = (part.start, part.end);
    let scores = &mut scores[low..high];
    let keys = blocks.keys[low * d..high * d].chunks_exact(SCALARS * d);
    for (keys, scores) in keys.zip(scores.as_chunks_mut::<SCALARS>().0) {
        product(s, Keys::new(keys, d), q, None, scores);
    }
    if masked {
        mask(&panel.seen, start + low, scores);
    }
    let keep = soften(scale, scores, &mut panel.largest, &mut panel.total);
    let outs = panel.out.as_chunks_mut::<V>().0.as_chunks_mut::<SCALARS>().0;
    if masked && !blocks.finite {
        for (values, outs) in blocks.values.iter().zip(outs) {
            add_seen(&values[low..high], scores, &keep, &panel.seen, start + low, outs);
        }
        return;
    }
    for (values, outs) in blocks.values.iter().zip(outs) {
        product(s, Values(&values[low..high]), scores, Some(&keep), outs);
    }
}

/// Attention of sampled rows.
pub(super) fn sample<'o>(
    job: &Job<'_>,
    isa: Isa,
    k: Ring<'_, f32>,
    mut samples: Vec<Sample<'o>>,
) -> Vec<Sample<'o>> {
    let mut blocks = Blocks::new(job.problem.head_dim);
    for sample in &mut samples {
        match vectors(sample.rows.len()) {
            1 => sample_rows::<1>(job, isa, k, sample, &mut blocks),
            2 => sample_rows::<2>(job, isa, k, sample, &mut blocks),
            _ => sample_rows::<3>(job, isa, k, sample, &mut blocks),
        }
    }
    samples
}

fn sample_rows<const V: usize>(
    job: &Job<'_>,
    isa: Isa,
    k: Ring<'_, f32>,
    sample: &mut Sample<'_>,
    blocks: &mut Blocks,
) {
    let panel = panel::<V>(job, isa, sample.rows.len(), &|row| sample.rows[row]);
    let mut scores = [row_of::<V>(0.0); KEYS];
    let (mut tallies, mut exponentials) = (Vec::new(), Vec::new());
    for (start, positions) in sample.blocks(job) {
        blocks.fill_keys(job.block(k, sample.kv_head, &positions), start, &positions);
        let (scale, blocks, panel, all) = (job.problem.scale, &*blocks, &panel, &mut scores);
        let tally =
            with_float_kernels!(isa, s => s.run(TallyBlock { s, scale, blocks, start, panel, scores: all }));
        if let (Some(tally), true) = (&tally, sample.is_by_position()) {
            exponentials.extend_from_slice(&scores[tally.part.clone()]);
        }
        tallies.extend(tally);
    }
    sample.finish(&tallies, &exponentials);
}

/// Counts the scores of a block.
struct TallyBlock<'a, S, const V: usize> {
    s: S,
    scale: f32,
    blocks: &'a Blocks,
    start: usize,
    panel: &'a Panel<V>,
    scores: &'a mut [Row<V>; KEYS],
}

impl<S: Lanes, const V: usize> Loop for TallyBlock<'_, S, V> {
    type Output = Option<Tally<V>>;

    #[inline(always)]
    fn run(self) -> Option<Tally<V>> {
        let Self { s, scale, blocks, start, panel, scores } = self;
        let (part, masked) = seen_part(panel, start)?;
        let q = panel.q.as_chunks::<V>().0;
        let d = q.len();
        let scores = &mut scores[part.clone()];
        let keys = blocks.keys[part.start * d..part.end * d].chunks_exact(SCALARS * d);
        for (keys, scores) in keys.zip(scores.as_chunks_mut::<SCALARS>().0) {
            product(s, Keys::new(keys, d), q, None, scores);
        }
        for scores in scores.iter_mut() {
            for v in 0..V {
                for l in 0..16 {
                    scores[v].0[l] *= scale;
                }
            }
        }
        if masked {
            mask(&panel.seen, start + part.start, scores);
        }
        Some(tally(start, part, scores))
    }
}

/// Replaces each score by `exp(score - largest so far)` and returns the factor by which the sums of earlier blocks
/// must be multiplied.
#[inline(always)]
fn soften<const V: usize>(
    scale: f32,
    scores: &mut [Row<V>],
    largest: &mut Row<V>,
    total: &mut Row<V>,
) -> Row<V> {
    let mut keep = row_of::<V>(0.0);
    for v in 0..V {
        let mut top = largest[v].0;
        for scores in scores.iter_mut() {
            for l in 0..16 {
                let score = scores[v].0[l] * scale;
                scores[v].0[l] = score;
                // Not a maximum: NaN is ignored here and propagates through the exponential.
                top[l] = if score > top[l] { score } else { top[l] };
            }
        }
        // A row without visible positions so far keeps minus infinity as its largest score, and all its exponentials
        // are zero.
        let mut from = [0.0; 16];
        for l in 0..16 {
            from[l] = if top[l] == f32::NEG_INFINITY { 0.0 } else { top[l] };
            keep[v].0[l] = exp(largest[v].0[l] - from[l]);
        }
        let mut sum = [0.0; 16];
        for scores in scores.iter_mut() {
            for l in 0..16 {
                let weight = exp(scores[v].0[l] - from[l]);
                scores[v].0[l] = weight;
                sum[l] += weight;
            }
        }
        for l in 0..16 {
            total[v].0[l] = total[v].0[l] * keep[v].0[l] + sum[l];
        }
        largest[v].0 = top;
    }
    keep
}

/// The second product when a value is not finite and is masked for some row: zero times infinity is not zero.
fn add_seen<const V: usize>(
    values: &[[f32; SCALARS]],
    weights: &[Row<V>],
    keep: &Row<V>,
    seen: &[(usize, usize); ROWS],
    start: usize,
    out: &mut [Row<V>; SCALARS],
) {
    for (i, out) in out.iter_mut().enumerate() {
        for row in 0..16 * V {
            let sum = &mut out[row / 16].0[row % 16];
            *sum *= keep[row / 16].0[row % 16];
            for (position, (values, weights)) in (start..).zip(values.iter().zip(weights)) {
                if (seen[row].0..seen[row].1).contains(&position) {
                    *sum += weights[row / 16].0[row % 16] * values[i];
                }
            }
        }
    }
}
