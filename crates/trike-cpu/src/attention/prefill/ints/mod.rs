//! Prefill attention in 16-bit integers, for caches in f16 and int8: twice the products per instruction of f32, and
//! the same bits on every instruction set.
//!
//! `q . k` of a row and a position is an exact sum of products of 16-bit integers. Queries and keys in f16 are scaled to Euclidean
//! norms of [`LONGEST`], or to maxima of [`LARGEST`] if that is less; by the Cauchy-Schwarz inequality the sum then fits an i32 for
//! every `head_dim`. With `head_dim = 128` one step is a quarter of a permille of the standard deviation of the elements. Codes of
//! an int8 cache are used unchanged, and their bound leaves all 16 bits to the queries.
//!
//! The second product sums weights times values over the positions of a block. The values of a position in f16 are scaled to a
//! maximum of [`LARGEST`], and its weights are multiplied by the inverse scale; the weights of a row are then scaled such that
//! their sum is below `2^16` and the largest at most `i16::MAX`. The sum of products fits an i32 again, and is scaled and added to
//! the f32 outputs once per block. Every scale belongs to one row or one position, so a row does not depend on the rest of the
//! call.

mod blocks;
mod weights;

use std::ops::Range;

use super::product::{Keys, Scalars, Values};
use super::shares::{Sample, Tally, tally};
use super::{
    Item, KEYS, Panel, Row, SCALARS, blocks_of, finish, items, mask, panel, panels, row_of, seen_part,
    vectors,
};
use crate::attention::cached::Cached;
use crate::attention::{Job, Ring};
use crate::kernels::{Kernels as _, with_float_kernels, with_kernels};
use crate::line::IntLine;
use crate::simd::Simd;
use trike_host::CacheLine;
use trike_host::Isa;
use trike_host::Loop;
use trike_host::Pool;

use blocks::{Blocks, Run};
use weights::{Change, add_fault, soften};

pub(in crate::attention) use blocks::Stored;

/// Norm of queries and keys after rounding: its square is below `2^31`.
const LONGEST: f32 = 46_300.0;
/// Maximum of queries, keys and values: below `i16::MAX` after rounding.
const LARGEST: f32 = 32_700.0;
/// Floats near `1.5 * 2^23` are 1 apart: adding this rounds to nearest even, and the low bits of the sum are the integer.
const MAGIC: f32 = 12_582_912.0;

/// A pair of i16 for each of sixteen rows.
type Pairs<const V: usize> = [IntLine; V];

/// Two 16-bit integers as one operand; the bits above the low sixteen of each are ignored.
#[inline(always)]
fn pair(low: u32, high: u32) -> i32 {
    (low & 0xFFFF | high << 16).cast_signed()
}

/// Squared norms below this count as zero, and are too small to compute a scale from.
const NOTHING: f32 = 1e-30;

/// The norm before rounding for which the rounded norm is at most `longest`.
fn before_rounding(longest: f32, columns: usize) -> f32 {
    longest - 0.5 * (columns as f32).sqrt()
}

/// The factor that scales a vector to a norm of at most `longest` and a maximum of at most [`LARGEST`], and the step size of the
/// integers, given its squared norm and its maximum. The step of a non-finite vector is NaN.
#[inline(always)]
fn factor_and_step(longest: f32, square: f32, largest: f32) -> (f32, f32) {
    if square < NOTHING {
        return (0.0, 0.0);
    }
    let norm = square.sqrt();
    let (by_norm, by_most) = (longest / norm, LARGEST / largest);
    let factor = if by_norm < by_most { by_norm } else { by_most };
    if norm < f32::INFINITY { (factor, 1.0 / factor) } else { (0.0, f32::NAN) }
}

pub(in crate::attention) fn run<K, V>(
    job: &Job<'_>,
    isa: Isa,
    pool: &Pool,
    k: Ring<'_, K>,
    v: Ring<'_, V>,
    out: &mut [f32],
) where
    K: Cached<Element: Stored>,
    V: Cached<Element: Stored>,
{
    pool.run(items(job, pool, out), |items| {
        let mut blocks = Blocks::new(job.problem.head_dim);
        for item in items {
            match vectors(item.out.len()) {
                1 => attend::<K, V, 1>(job, isa, k, v, item, &mut blocks),
                2 => attend::<K, V, 2>(job, isa, k, v, item, &mut blocks),
                _ => attend::<K, V, 3>(job, isa, k, v, item, &mut blocks),
            }
        }
    });
}

/// A panel with its queries as integers.
struct IntPanel<const V: usize> {
    /// Without queries.
    panel: Panel<V>,
    /// `[columns / 2][V]`, columns as in [`Blocks`].
    q: Vec<Pairs<V>>,
    /// Scale of the queries times that of the scores.
    scales: Row<V>,
}

/// Computes one item.
fn attend<K, V, const L: usize>(
    job: &Job<'_>,
    isa: Isa,
    k: Ring<'_, K>,
    v: Ring<'_, V>,
    mut item: Item<'_>,
    blocks: &mut Blocks,
) where
    K: Cached<Element: Stored>,
    V: Cached<Element: Stored>,
{
    // Scores are logarithms of base 2.
    let (columns, scale) = (blocks.columns(), job.problem.scale * std::f32::consts::LOG2_E);
    let longest = longest::<K::Element>(columns);
    let mut panels = quantized(isa, panels::<L>(job, isa, &item), columns, longest, scale);
    let mut buffers = Buffers::<L>::new();
    for (start, positions) in blocks_of(job, &item) {
        let (head, first) = (item.kv_head, positions.start - start);
        let keys =
            Run { stored: job.block(k, head, &positions), scales: job.block_scales(k, head, &positions) };
        let values =
            Run { stored: job.block(v, head, &positions), scales: job.block_scales(v, head, &positions) };
        blocks.fill_keys(isa, keys, job.problem.head_dim, first);
        blocks.fill_values(isa, values, job.problem.head_dim, first);
        let (blocks, panels, buffers) = (&*blocks, &mut panels[..], &mut buffers);
        with_kernels!(isa, s => s.run(AttendBlock { s, blocks, start, panels, buffers }));
    }
    for (IntPanel { panel, .. }, out) in panels.iter().zip(item.out.chunks_mut(16 * L)) {
        finish(isa, panel, out);
    }
}

/// Rounds the queries of panels.
fn quantized<const V: usize>(
    isa: Isa,
    panels: Vec<Panel<V>>,
    columns: usize,
    longest: f32,
    scale: f32,
) -> Vec<IntPanel<V>> {
    let mut rounded = Vec::with_capacity(panels.len());
    for panel in panels {
        rounded.push(with_float_kernels!(isa, s => s.run(Quantize { panel, columns, longest, scale })));
    }
    rounded
}

/// Norm of the queries for keys of this type, before rounding.
fn longest<E: Stored>(columns: usize) -> f32 {
    // The norm of the codes of a key, -128 included, times that of a query must be below 2^31.
    let longest = if E::CODES { LONGEST * LONGEST / (128.0 * (columns as f32).sqrt()) } else { LONGEST };
    before_rounding(longest, columns)
}

/// The factor of a query before rounding, for keys that are codes, and the step size of the integers, NaN if it is not finite. The
/// integers are at most `parts` times those of 16 bits.
pub(in crate::attention) fn query_factor(q: &[f32], parts: f32) -> (f32, f32) {
    let square = q.iter().map(|x| x * x).sum();
    let largest = q.iter().fold(0.0, |most, x| if x.abs() > most { x.abs() } else { most });
    factor_and_step(longest::<i8>(q.len().next_multiple_of(16)), square, largest / parts)
}

/// An element of a query as an integer below `2^22`.
pub(in crate::attention) fn round_query(x: f32, factor: f32) -> i32 {
    (x * factor + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits()).cast_signed()
}

/// Attention of sampled rows.
pub(super) fn sample<'o, K: Cached<Element: Stored>>(
    job: &Job<'_>,
    isa: Isa,
    k: Ring<'_, K>,
    mut samples: Vec<Sample<'o>>,
) -> Vec<Sample<'o>> {
    let mut blocks = Blocks::new(job.problem.head_dim);
    for sample in &mut samples {
        match vectors(sample.rows.len()) {
            1 => sample_rows::<K, 1>(job, isa, k, sample, &mut blocks),
            2 => sample_rows::<K, 2>(job, isa, k, sample, &mut blocks),
            _ => sample_rows::<K, 3>(job, isa, k, sample, &mut blocks),
        }
    }
    samples
}

fn sample_rows<K: Cached<Element: Stored>, const V: usize>(
    job: &Job<'_>,
    isa: Isa,
    k: Ring<'_, K>,
    sample: &mut Sample<'_>,
    blocks: &mut Blocks,
) {
    let panel = panel::<V>(job, isa, sample.rows.len(), &|row| sample.rows[row]);
    let (columns, scale) = (blocks.columns(), job.problem.scale);
    let longest = longest::<K::Element>(columns);
    let panel = with_float_kernels!(isa, s => s.run(Quantize { panel, columns, longest, scale }));
    let mut scores = [row_of::<V>(0.0); KEYS];
    let (mut tallies, mut exponentials) = (Vec::new(), Vec::new());
    for (start, positions) in sample.blocks(job) {
        let keys = Run {
            stored: job.block(k, sample.kv_head, &positions),
            scales: job.block_scales(k, sample.kv_head, &positions),
        };
        let (head_dim, first) = (job.problem.head_dim, positions.start - start);
        blocks.fill_keys(isa, keys, head_dim, first);
        let (blocks, panel, all) = (&*blocks, &panel, &mut scores);
        let tally = with_kernels!(isa, s => s.run(TallyBlock { s, blocks, start, panel, scores: all }));
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
    blocks: &'a Blocks,
    start: usize,
    panel: &'a IntPanel<V>,
    scores: &'a mut [Row<V>; KEYS],
}

impl<S: Simd, const V: usize> Loop for TallyBlock<'_, S, V> {
    type Output = Option<Tally<V>>;

    #[inline(always)]
    fn run(self) -> Option<Tally<V>> {
        let Self { s, blocks, start, panel, scores } = self;
        let (part, masked) = seen_part(&panel.panel, start)?;
        let scores = &mut scores[part.clone()];
        score(s, blocks, &part, panel, scores);
        if masked {
            mask(&panel.panel.seen, start + part.start, scores);
        }
        Some(tally(start, part, scores))
    }
}

/// The scores of a part of a block.
#[inline(always)]
fn score<S: Simd, const V: usize>(
    s: S,
    blocks: &Blocks,
    part: &Range<usize>,
    panel: &IntPanel<V>,
    scores: &mut [Row<V>],
) {
    let IntPanel { q, scales, .. } = panel;
    let keys = blocks.keys[part.start * q.len()..part.end * q.len()].chunks_exact(SCALARS * q.len());
    let key_scales = blocks.key_scales[part.clone()].as_chunks::<SCALARS>().0;
    for ((keys, key_scales), scores) in keys.zip(key_scales).zip(scores.as_chunks_mut::<SCALARS>().0) {
        product(s, Keys::new(keys, q.len()), q, Scores { key_scales, scales, scores });
    }
}

/// Rounds the queries of a panel.
struct Quantize<const V: usize> {
    panel: Panel<V>,
    columns: usize,
    /// Norm of the queries.
    longest: f32,
    /// Factor of the scores.
    scale: f32,
}

impl<const V: usize> Loop for Quantize<V> {
    type Output = IntPanel<V>;

    #[inline(always)]
    fn run(self) -> IntPanel<V> {
        let Self { mut panel, columns, longest, scale } = self;
        let floats = std::mem::take(&mut panel.q);
        let floats = floats.as_chunks::<V>().0;
        let (mut squares, mut largest) = (row_of::<V>(0.0), row_of::<V>(0.0));
        for column in floats {
            for v in 0..V {
                for l in 0..16 {
                    squares[v].0[l] += column[v].0[l] * column[v].0[l];
                    let (most, size) = (largest[v].0[l], column[v].0[l].abs());
                    largest[v].0[l] = if size > most { size } else { most };
                }
            }
        }
        let (mut factors, mut scales) = (row_of::<V>(0.0), row_of::<V>(0.0));
        for v in 0..V {
            for l in 0..16 {
                let (factor, own) = factor_and_step(longest, squares[v].0[l], largest[v].0[l]);
                (factors[v].0[l], scales[v].0[l]) = (factor, own * scale);
            }
        }
        let mut q = bytemuck::zeroed_vec::<IntLine>(columns / 2 * V);
        let zeros = row_of::<V>(0.0);
        for (pairs, columns) in q.as_chunks_mut::<V>().0.iter_mut().zip(floats.chunks(2)) {
            let (low, high) = (&columns[0], columns.get(1).unwrap_or(&zeros));
            for v in 0..V {
                for l in 0..16 {
                    let code = |x: &Row<V>| (x[v].0[l] * factors[v].0[l] + MAGIC).to_bits();
                    pairs[v].0[l] = pair(code(low), code(high));
                }
            }
        }
        IntPanel { panel, q: q.as_chunks().0.to_vec(), scales }
    }
}

/// Scores and weights of a block for one panel.
struct Buffers<const V: usize> {
    scores: [Row<V>; KEYS],
    weights: [Pairs<V>; KEYS / 2],
}

impl<const V: usize> Buffers<V> {
    fn new() -> Self {
        Self { scores: [row_of(0.0); KEYS], weights: [[CacheLine([0; 16]); V]; KEYS / 2] }
    }
}

/// Accumulates a block into the panels of an item.
struct AttendBlock<'a, S, const V: usize> {
    s: S,
    blocks: &'a Blocks,
    start: usize,
    panels: &'a mut [IntPanel<V>],
    buffers: &'a mut Buffers<V>,
}

impl<S: Simd, const V: usize> Loop for AttendBlock<'_, S, V> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for panel in self.panels {
            attend_block(self.s, self.blocks, self.start, panel, self.buffers);
        }
    }
}

/// Accumulates a block into a panel.
#[inline(always)]
fn attend_block<S: Simd, const V: usize>(
    s: S,
    blocks: &Blocks,
    start: usize,
    panel: &mut IntPanel<V>,
    buffers: &mut Buffers<V>,
) {
    let Some((part, masked)) = seen_part(&panel.panel, start) else {
        return;
    };
    let scores = &mut buffers.scores[part.clone()];
    score(s, blocks, &part, panel, scores);
    let panel = &mut panel.panel;
    if masked {
        mask(&panel.seen, start + part.start, scores);
    }
    let faults: Vec<_> =
        blocks.faults_in(&part).map(|fault| (fault, scores[fault.at - part.start])).collect();
    let weights = &mut buffers.weights[part.start / 2..part.end / 2];
    let change = soften(&blocks.value_scales[part.clone()], scores, weights, panel);
    let outs = panel.out.as_chunks_mut::<V>().0.as_chunks_mut::<SCALARS>().0;
    for (values, outs) in blocks.values.iter().zip(outs) {
        product(s, Values(&values[part.start / 2..part.end / 2]), weights, Outputs { change: &change, outs });
    }
    for (fault, scores) in faults {
        add_fault(&fault.values, &scores, &panel.largest, panel.out.as_chunks_mut::<V>().0);
    }
}

/// Consumer of the sums of a product.
trait Sink<const V: usize> {
    /// Takes the sums of scalar `i` and the rows of line `v`.
    fn put<S: Simd>(&mut self, s: S, i: usize, v: usize, sums: S::Ints);
}

/// Converts sums of query-key products to scores.
struct Scores<'a, const V: usize> {
    key_scales: &'a [f32; SCALARS],
    scales: &'a Row<V>,
    scores: &'a mut [Row<V>; SCALARS],
}

impl<const V: usize> Sink<V> for Scores<'_, V> {
    #[inline(always)]
    fn put<S: Simd>(&mut self, s: S, i: usize, v: usize, sums: S::Ints) {
        let scale = s.mul(s.load_floats(&self.scales[v]), s.splat(self.key_scales[i]));
        s.store_floats(s.mul(s.to_floats(sums), scale), &mut self.scores[i][v]);
    }
}

/// Adds sums of weight-value products to the outputs.
struct Outputs<'a, const V: usize> {
    change: &'a Change<V>,
    outs: &'a mut [Row<V>; SCALARS],
}

impl<const V: usize> Sink<V> for Outputs<'_, V> {
    #[inline(always)]
    fn put<S: Simd>(&mut self, s: S, i: usize, v: usize, sums: S::Ints) {
        let new = s.mul(s.to_floats(sums), s.load_floats(&self.change.add[v]));
        let old = s.mul(s.load_floats(&self.outs[i][v]), s.load_floats(&self.change.keep[v]));
        s.store_floats(s.add(old, new), &mut self.outs[i][v]);
    }
}

/// The sums `sum_k a(k, i) . b[k]` over pairs, for eight scalars.
#[inline(always)]
fn product<S: Simd, A: Scalars<Scalar = i32>, const V: usize>(
    s: S,
    a: A,
    b: &[Pairs<V>],
    mut sink: impl Sink<V>,
) {
    // As many sums as fit the registers. Conditions are constants, so that each instance contains only one of the tiles.
    if const { S::PAIR_SUMS >= 24 } {
        tile::<S, A, V, 8, V>(s, a, b, 0, 0, &mut sink);
    } else if const { S::PAIR_SUMS >= 6 } {
        for i in (0..SCALARS).step_by(2) {
            tile::<S, A, V, 2, V>(s, a, b, i, 0, &mut sink);
        }
    } else {
        for i in (0..SCALARS).step_by(2) {
            for v in 0..V {
                tile::<S, A, V, 2, 1>(s, a, b, i, v, &mut sink);
            }
        }
    }
}

/// [`product`] for `I` scalars from `scalar` and `N` lines from `line`, with the sums in registers.
#[inline(always)]
fn tile<S: Simd, A: Scalars<Scalar = i32>, const V: usize, const I: usize, const N: usize>(
    s: S,
    a: A,
    b: &[Pairs<V>],
    scalar: usize,
    line: usize,
    sink: &mut impl Sink<V>,
) {
    let mut sums = [[s.splat_int(0); N]; I];
    let a = a.cut(b.len());
    for (k, b) in b.iter().enumerate() {
        let mut x = [s.splat_int(0); N];
        for n in 0..N {
            x[n] = s.load_ints(&b[line + n]);
        }
        for i in 0..I {
            let w = s.splat_int(a.at(k, scalar + i));
            for n in 0..N {
                sums[i][n] = s.dot_pairs(sums[i][n], w, x[n]);
            }
        }
    }
    for i in 0..I {
        for n in 0..N {
            sink.put(s, scalar + i, line + n, sums[i][n]);
        }
    }
}
