//! Attention: every blueprint over ring buffers of keys and values with and without wrap-around, windows and groups.

use std::ops::Range;

use half::f16;
use trike_cube::attention::{
    AttentionBlueprint, AttentionProblem, AttentionSpec, BlockBitmap, BlockMask, CacheShape, KvCache,
    KvPrecision, Positions, Segment,
};
use trike_cube::{CubeError, Device, Plan, Strategy};
use trike_testkit::Rng;

use crate::session::{Oracle, Session, Verdict};

/// Query heads, key heads, head dimension, slots, position of the first token, tokens, window, precision.
pub(super) type Row = (usize, usize, usize, usize, usize, usize, Option<usize>, KvPrecision);

use KvPrecision::{F16, F32};

/// One token, few, many; full and partial windows; rings that wrap; all head dimensions used by models.
const CASES: &[Row] = &[
    (1, 1, 8, 1, 0, 1, None, F32),
    (2, 1, 32, 70, 62, 1, None, F32),
    (2, 1, 32, 70, 69, 1, None, F16),
    (6, 2, 64, 300, 250, 1, None, F16),
    (5, 1, 80, 200, 130, 1, None, F32),
    (4, 4, 96, 66, 64, 1, Some(33), F32),
    (4, 2, 128, 150, 140, 1, None, F16),
    (3, 3, 6, 40, 30, 2, None, F32),
    (4, 2, 32, 40, 100, 1, Some(37), F32),
    (8, 2, 32, 80, 9, 3, None, F32),
    (4, 2, 32, 70, 0, 1, None, F32),
    (4, 2, 32, 70, 0, 70, None, F32),
    (6, 2, 64, 64, 0, 35, None, F16),
    (5, 1, 80, 90, 50, 33, Some(40), F32),
    (2, 2, 96, 50, 31, 17, None, F32),
    (2, 1, 128, 100, 60, 40, None, F16),
    (3, 1, 8, 48, 200, 31, Some(17), F32),
    (3, 1, 128, 700, 1500, 1, Some(650), F16),
    (3, 1, 128, 500, 700, 1, Some(333), F32),
    (8, 1, 64, 200, 199, 1, None, F16),
    (2, 1, 256, 150, 140, 1, None, F16),
    (2, 2, 6, 40, 33, 1, None, F16),
    (5, 1, 80, 300, 450, 2, Some(260), F16),
    (6, 2, 32, 97, 150, 45, Some(37), F16),
    (5, 1, 96, 131, 300, 33, Some(99), F16),
    (2, 2, 128, 193, 180, 70, Some(120), F16),
];

/// As [`CASES`], with scores so far apart that the running maximum rises in every tile.
const STEEP: &[Row] = &[(4, 2, 64, 300, 0, 280, None, F16), (4, 2, 64, 300, 290, 1, None, F16)];

/// Attention, and the stores into the cache.
pub fn attention(session: &mut Session) {
    let device = session.device();
    let rows = CASES.iter().map(|row| (row, false)).chain(STEEP.iter().map(|row| (row, true)));
    for (seed, (row, steep)) in rows.enumerate() {
        let mut case = Case::new(seed as u64, *row);
        let &(heads, kv_heads, head_dim, capacity, first, tokens, window, precision) = row;
        let mut name = format!(
            "{heads}/{kv_heads} heads of {head_dim}, {tokens} at {first} in {capacity}, window {window:?}, {precision:?}"
        );
        if steep {
            case.make_steep();
            name += ", steep";
        }
        session.each(name, &case.problem, |oracle, strategy| case.check(oracle, device, strategy));
    }
    refusals(session);
}

/// Attention with the blueprints inferred for model shapes, on small caches.
pub fn shapes(session: &mut Session) {
    let device = session.device();
    for (heads, kv_heads, head_dim) in [(20, 5, 128), (32, 8, 128), (32, 32, 64), (12, 4, 96), (32, 8, 80)] {
        for (first_position, tokens) in [(0, 1), (500, 1), (4000, 1), (100, 4), (0, 2048)] {
            for precision in [F32, F16] {
                let cache = CacheShape { kv_heads, head_dim, capacity: 8192, precision };
                let large = AttentionProblem {
                    heads,
                    window: None,
                    tokens,
                    sequences: 1,
                    first_position,
                    cache,
                    mask: None,
                };
                let name = format!(
                    "attention {heads}/{kv_heads} heads of {head_dim}, {tokens} at {first_position} {precision:?}"
                );
                session.case(name, |oracle| {
                    let (blueprint, _) = large.plan(&Strategy::Inferred, device.capabilities())?;
                    let (blueprint, first, tokens) = match blueprint {
                        // Clamp the splits to the chunks of the small cache.
                        AttentionBlueprint::Decode { units, heads, splits } => {
                            (AttentionBlueprint::Decode { units, heads, splits: splits.min(2) }, 100, 1)
                        }
                        other => (other, 0, 20),
                    };
                    let case = Case::new(1, (heads, kv_heads, head_dim, 128, first, tokens, None, precision));
                    case.check(oracle, device, &Strategy::Forced(blueprint))
                });
            }
        }
    }
}

/// Extra batch rows before the tokens.
pub(super) const BEFORE: usize = 1;
/// Extra batch rows after the tokens.
const AFTER: usize = 1;
/// Initial value of outputs.
pub(super) const POISON: f32 = -12345.0;

/// Attention of the tokens of one sequence.
pub(super) struct Case {
    pub(super) problem: AttentionProblem,
    mask: Option<BlockBitmap>,
    /// The positions of each KV head that are attended to, if not all.
    pub(super) chosen: Option<Vec<Vec<u32>>>,
    scale: f32,
    /// Allowance of f32 kernels in addition to twice the error of a plain loop.
    slack: f64,
    pub(super) q: Vec<f32>,
    /// `[position][kv_head][head_dim]`, from position 0.
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
}

impl Case {
    pub(super) fn new(seed: u64, row: Row) -> Self {
        let (heads, kv_heads, head_dim, capacity, first_position, tokens, window, precision) = row;
        let cache = CacheShape { kv_heads, head_dim, capacity, precision };
        let problem =
            AttentionProblem { heads, window, tokens, sequences: 1, first_position, cache, mask: None };
        let mut rng = Rng::new(seed);
        let count = (first_position + tokens) * kv_heads * head_dim;
        let q = rng.normals((BEFORE + tokens + AFTER) * heads * head_dim);
        let (k, v) = (rng.normals(count), rng.normals(count));
        Self {
            problem,
            mask: None,
            chosen: None,
            scale: 2.0 / (head_dim as f32).sqrt(),
            slack: 1e-6,
            q,
            k,
            v,
        }
    }

    /// The positions of the tokens.
    pub(super) fn positions(&self) -> Range<usize> {
        self.problem.first_position..self.problem.first_position + self.problem.tokens
    }

    /// The same with a mask.
    pub(super) fn masked(mut self, mask: BlockBitmap) -> Self {
        let AttentionProblem { window, cache, .. } = self.problem;
        self.problem.mask = Some(mask.work(cache.kv_heads, &self.positions(), window));
        self.mask = Some(mask);
        self
    }

    pub(super) fn spec(&self) -> AttentionSpec {
        let AttentionProblem { heads, window, cache, .. } = self.problem;
        let CacheShape { kv_heads, head_dim, .. } = cache;
        AttentionSpec { heads, kv_heads, head_dim, scale: self.scale, window }
    }

    /// The queries of the tokens.
    pub(super) fn queries(&self) -> &[f32] {
        let row = self.problem.heads * self.problem.cache.head_dim;
        &self.q[BEFORE * row..(BEFORE + self.problem.tokens) * row]
    }

    /// Makes the scores of later keys larger, and all scores differ more.
    pub(super) fn make_steep(&mut self) {
        // Scores are up to eight times as large, and so are their rounding errors, which the exponential passes on.
        self.slack = 8e-6;
        let shape = self.problem.cache;
        let width = shape.kv_heads * shape.head_dim;
        let all = self.problem.first_position + self.problem.tokens;
        for (position, key) in self.k.chunks_mut(width).enumerate() {
            let factor = 0.5 + 8.0 * position as f32 / all as f32;
            key.iter_mut().for_each(|x| *x *= factor);
        }
    }

    /// A value rounded to the precision of the cache.
    fn kept(&self, x: f32) -> f32 {
        if self.problem.cache.precision == F16 { f16::from_f32(x).to_f32() } else { x }
    }

    /// Stores everything up to the last token, a few positions at a time, in batches with extra rows.
    pub(super) fn fill(&self, device: &Device) -> trike_cube::Result<KvCache> {
        let shape = self.problem.cache;
        let cache = KvCache::empty(device, shape)?;
        let width = shape.kv_heads * shape.head_dim;
        let all = self.problem.first_position + self.problem.tokens;
        let step = shape.capacity.min(33);
        for first in (0..all).step_by(step) {
            let count = step.min(all - first);
            let around = |values: &[f32]| {
                let mut batch = vec![f32::NAN; width];
                batch.extend_from_slice(&values[first * width..(first + count) * width]);
                batch.extend(vec![f32::NAN; width]);
                device.upload(&batch)
            };
            // The extra rows belong to other sequences.
            let mut positions = Positions::upload(device, &vec![0; count + 2])?;
            let of_rows = (first as u32..).take(count);
            positions.write(device, &[7].into_iter().chain(of_rows).chain([9]).collect::<Vec<_>>())?;
            let segment = of(1..1 + count, &positions, &cache);
            device.store(&around(&self.k)?, &around(&self.v)?, &segment)?;
        }
        Ok(cache)
    }

    /// Whether the mask, if any, has the block of a key.
    fn attends(&self, kv_head: usize, query: usize, key: usize) -> bool {
        let block = |position: usize| position / BlockBitmap::BLOCK;
        let is_chosen = |of: &Vec<Vec<u32>>| of[kv_head].binary_search(&(key as u32)).is_ok();
        self.chosen.as_ref().is_none_or(is_chosen)
            && self.mask.as_ref().is_none_or(|mask| {
                mask.contains(if mask.heads() == 1 { 0 } else { kv_head }, block(query), block(key))
            })
    }

    /// The expected outputs, exact and by f32 loops, with scaled queries and weights rounded to f16 if `halves`.
    fn expected(&self, halves: bool) -> (Vec<f64>, Vec<f32>) {
        let stored = |x: f32| if halves { f16::from_f32(x).to_f32() } else { x };
        let AttentionProblem { heads, window, tokens, first_position, cache, .. } = self.problem;
        let (d, width) = (cache.head_dim, cache.kv_heads * cache.head_dim);
        let (mut exact, mut plain) = (Vec::new(), Vec::new());
        for token in 0..tokens {
            let position = first_position + token;
            let start = (position + 1).saturating_sub(window.unwrap_or(usize::MAX));
            for head in 0..heads {
                let kv = head / (heads / cache.kv_heads) * d;
                let seen: Vec<usize> =
                    (start..=position).filter(|&p| self.attends(kv / d, position, p)).collect();
                let q = &self.q[((BEFORE + token) * heads + head) * d..][..d];
                let row = |of: &[f32], p: usize| -> Vec<f32> {
                    of[p * width + kv..][..d].iter().map(|&x| self.kept(x)).collect()
                };
                let keys: Vec<Vec<f32>> = seen.iter().map(|&p| row(&self.k, p)).collect();
                let values: Vec<Vec<f32>> = seen.iter().map(|&p| row(&self.v, p)).collect();
                let dot =
                    |k: &Vec<f32>| q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>();
                let scores: Vec<f64> = keys.iter().map(|k| dot(k) * f64::from(self.scale)).collect();
                let most = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                let total: f64 = weights.iter().sum();
                let column =
                    |c: usize| weights.iter().zip(&values).map(|(w, v)| w * f64::from(v[c])).sum::<f64>();
                exact.extend((0..d).map(|c| column(c) / total));
                let scaled: Vec<f32> = q.iter().map(|q| stored(q * self.scale)).collect();
                let dot = |k: &Vec<f32>| scaled.iter().zip(k).map(|(q, k)| q * k).sum::<f32>();
                let scores: Vec<f32> = keys.iter().map(dot).collect();
                let most = scores.iter().copied().fold(f32::MIN, f32::max);
                let weights: Vec<f32> = scores.iter().map(|s| (s - most).exp()).collect();
                let total: f32 = weights.iter().sum();
                let column =
                    |c: usize| weights.iter().zip(&values).map(|(&w, v)| stored(w) * v[c]).sum::<f32>();
                plain.extend((0..d).map(|c| column(c) / total));
            }
        }
        (exact, plain)
    }

    pub(super) fn check(
        &self,
        oracle: &Oracle,
        device: &Device,
        strategy: &Strategy<AttentionBlueprint>,
    ) -> Verdict {
        let AttentionProblem { heads, tokens, first_position, cache: shape, .. } = self.problem;
        let cache = self.fill(device)?;
        let first = first_position as u32;
        let mut positions = vec![first + 500];
        positions.extend(first..first + tokens as u32);
        positions.push(3);
        let positions = Positions::upload(device, &positions)?;
        let q = device.upload(&self.q)?;
        let out = device.upload(&vec![POISON; self.q.len()])?;
        let spec = self.spec();
        let segment = Segment { rows: BEFORE..BEFORE + tokens, positions: &positions, cache: &cache };
        match &self.mask {
            None => device.attention(&spec, &q, &segment, &out, strategy)?,
            Some(mask) => {
                let mask = BlockMask::upload(device, mask.clone())?;
                device.attention_masked(&spec, &q, &segment, &mask, &out, strategy)?;
            }
        }
        let got = device.read(&out)?;
        if !oracle.compares() {
            return Ok(());
        }
        let (k, v) = cache.read(device)?;
        let last = first_position + tokens;
        for (what, got, given) in [("cached keys", k, &self.k), ("cached values", v, &self.v)] {
            let width = shape.kv_heads * shape.head_dim;
            for p in last.saturating_sub(shape.capacity)..last {
                for head in 0..shape.kv_heads {
                    let got = &got[(head * shape.capacity + p % shape.capacity) * shape.head_dim..]
                        [..shape.head_dim];
                    let want = given[p * width + head * shape.head_dim..][..shape.head_dim].iter();
                    oracle.exact(what, got, &want.map(|&x| self.kept(x)).collect::<Vec<_>>())?;
                }
            }
        }
        let row = heads * shape.head_dim;
        let (before, rest) = got.split_at(BEFORE * row);
        let (of_tokens, after) = rest.split_at(tokens * row);
        oracle.exact("rows before", before, &vec![POISON; BEFORE * row])?;
        oracle.exact("rows after", after, &vec![POISON; AFTER * row])?;
        self.compare(oracle, device, strategy, of_tokens)
    }

    /// Compares the results of the tokens.
    pub(super) fn compare(
        &self,
        oracle: &Oracle,
        device: &Device,
        strategy: &Strategy<AttentionBlueprint>,
        of_tokens: &[f32],
    ) -> Verdict {
        let (blueprint, _) = self.problem.plan(strategy, device.capabilities())?;
        let halves = matches!(blueprint, AttentionBlueprint::Mma { .. });
        let (exact, plain) = self.expected(halves);
        let slack = if halves { 2e-4 } else { self.slack };
        let row = self.problem.heads * self.problem.cache.head_dim;
        oracle.twice_plain("attended", of_tokens, &exact, &plain, row, slack)
    }
}

/// A segment of some rows over a cache.
pub(super) fn of<'a>(rows: Range<usize>, positions: &'a Positions, cache: &'a KvCache) -> Segment<'a> {
    Segment { rows, positions, cache }
}

fn refusals(session: &mut Session) {
    let device = session.device();
    session.case("attention refuses what does not fit", |oracle| {
        let shape = CacheShape { kv_heads: 2, head_dim: 8, capacity: 10, precision: F32 };
        let cache = KvCache::empty(device, shape)?;
        let (q, kv) = (device.upload(&[0.5f32; 3 * 32])?, device.upload(&[0.5f32; 3 * 16])?);
        let out = device.upload(&[0f32; 3 * 32])?;
        let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 8, scale: 0.5, window: None };
        let strategy = &Strategy::Inferred;
        let at = |values: &[u32]| Positions::upload(device, values);
        let fits = at(&[7, 8, 9])?;
        device.store(&kv, &kv, &of(0..3, &fits, &cache))?;
        device.attention(&spec, &q, &of(0..3, &fits, &cache), &out, strategy)?;
        let over = at(&[8, 9, 10])?;
        let refused = device.attention(&spec, &q, &of(0..3, &over, &cache), &out, strategy);
        oracle
            .refused("capacity", refused, |e| matches!(e, CubeError::Range { maximum: 10, got: 11, .. }))?;
        let windowed = AttentionSpec { window: Some(8), ..spec };
        device.attention(&windowed, &q, &of(0..3, &at(&[20, 21, 22])?, &cache), &out, strategy)?;
        let holes = at(&[7, 9, 10])?;
        let refused = device.attention(&spec, &q, &of(0..3, &holes, &cache), &out, strategy);
        oracle.refused("holes", refused, |e| {
            matches!(e, CubeError::NotConsecutive { row: 1, expected: 8, got: 9 })
        })?;
        let refused = device.store(&kv, &kv, &of(0..3, &holes, &cache));
        oracle.refused("holes", refused, |e| {
            matches!(e, CubeError::NotConsecutive { row: 1, expected: 8, got: 9 })
        })?;
        for rows in [0..4, 3..3] {
            let refused = device.store(&kv, &kv, &of(rows.clone(), &fits, &cache));
            oracle.refused("rows", refused, |e| matches!(e, CubeError::Range { .. }))?;
            let refused = device.attention(&spec, &q, &of(rows, &fits, &cache), &out, strategy);
            oracle.refused("rows", refused, |e| matches!(e, CubeError::Range { .. }))?;
        }
        let refused = device.store(&q, &kv, &of(0..3, &fits, &cache));
        oracle.refused("keys", refused, |e| matches!(e, CubeError::Length { expected: 48, got: 96, .. }))?;
        let refused = device.attention(&spec, &kv, &of(0..3, &fits, &cache), &out, strategy);
        oracle
            .refused("queries", refused, |e| matches!(e, CubeError::Length { expected: 96, got: 48, .. }))?;
        let refused = device.attention(&spec, &q, &of(0..3, &fits, &cache), &kv, strategy);
        oracle
            .refused("output", refused, |e| matches!(e, CubeError::Length { expected: 96, got: 48, .. }))?;
        let refused = device.attention(&spec, &q, &of(0..3, &fits, &cache), &q, strategy);
        oracle.refused("in place", refused, |e| matches!(e, CubeError::Overlap { .. }))?;
        let odd = AttentionSpec { heads: 5, ..spec };
        let refused = device.attention(&odd, &q, &of(0..3, &fits, &cache), &out, strategy);
        oracle.refused("heads", refused, |e| matches!(e, CubeError::NotMultiple { unit: 2, got: 5, .. }))?;
        for other in [AttentionSpec { kv_heads: 4, ..spec }, AttentionSpec { head_dim: 16, ..spec }] {
            let refused = device.attention(&other, &q, &of(0..3, &fits, &cache), &out, strategy);
            oracle.refused("cache of another shape", refused, |e| matches!(e, CubeError::Length { .. }))?;
        }
        let scaled = AttentionSpec { scale: f32::NAN, ..spec };
        let refused = device.attention(&scaled, &q, &of(0..3, &fits, &cache), &out, strategy);
        oracle.refused("scale", refused, |e| matches!(e, CubeError::NonFinite { .. }))?;
        for (units, heads, splits) in
            [(48, 2, 1), (16, 2, 1), (128, 3, 1), (128, 0, 1), (128, 2, 2), (1024, 2, 1)]
        {
            let forced = Strategy::Forced(AttentionBlueprint::Decode { units, heads, splits });
            let refused = device.attention(&spec, &q, &of(0..3, &fits, &cache), &out, &forced);
            oracle.refused("blueprint", refused, |e| {
                matches!(e, CubeError::Range { .. } | CubeError::NotMultiple { .. })
            })?;
        }
        let capacity = CacheShape { capacity: 2, ..shape };
        let refused = device.store(&kv, &kv, &of(0..3, &fits, &KvCache::empty(device, capacity)?));
        oracle.refused("tokens", refused, |e| matches!(e, CubeError::Range { maximum: 2, got: 3, .. }))?;
        oracle.refused("positions", at(&[]), |e| matches!(e, CubeError::Range { .. }))?;
        oracle
            .refused("positions", at(&[1 << 30]), |e| matches!(e, CubeError::Range { got: 0x4000_0000, .. }))
    });
}
