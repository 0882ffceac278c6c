//! Attention: every blueprint over ring buffers of keys and values with and without wrap-around, windows and groups.

use std::ops::Range;

use half::f16;
use trike_cube::attention::{
    AttentionBlueprint, AttentionProblem, AttentionSpec, BlockBitmap, BlockMask, CacheSegment, CacheShape,
    CubeKvCache, KvPrecision, Positions,
};
use trike_cube::{CubeDevice, CubeError, KernelProblem, Strategy};
use trike_testkit::Rng;

use crate::session::{Oracle, Session, Verdict, poisoned};

/// Query heads, key heads, head dimension, slots, position of the first token, tokens, window, precision.
pub(super) type Row = (usize, usize, usize, usize, usize, usize, Option<usize>, KvPrecision);

use KvPrecision::{F16, F32, Int8};

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
    let given = CASES.iter().map(|row| (*row, false)).chain(STEEP.iter().map(|row| (*row, true)));
    let given: Vec<(Row, bool)> = given.collect();
    // All of them in int8, too.
    let codes = given.iter().filter_map(|&(row, steep)| Some((in_codes(row)?, steep)));
    for (seed, (row, steep)) in given.iter().copied().chain(codes).enumerate() {
        let mut case = Case::new(seed as u64, row);
        let (heads, kv_heads, head_dim, capacity, first, tokens, window, precision) = row;
        let mut name = format!(
            "{heads}/{kv_heads} heads of {head_dim}, {tokens} at {first} in {capacity}, window {window:?}, {precision:?}"
        );
        if steep {
            case.make_steep();
            name += ", steep";
        }
        session.each(name, &case.problem, |oracle, strategy| case.check(oracle, device, strategy));
    }
    for (head_dim, tokens) in [(128, 1), (32, 40)] {
        let row = (4, 2, head_dim, 120, 70, tokens, None, Int8);
        let name = format!("what is not finite, heads of {head_dim}, {tokens} tokens, Int8");
        let problem = Case::new(5, row).problem;
        session.each(name, &problem, |oracle, strategy| faults(oracle, device, row, strategy));
    }
    session.case("attention/codes of an int8 cache are the nearest, and ties are even", |oracle| {
        ties(oracle, device)
    });
    refusals(session);
}

/// A case in int8, if its heads can be.
pub(super) fn in_codes(row: Row) -> Option<Row> {
    let (heads, kv_heads, head_dim, capacity, first, tokens, window, _) = row;
    head_dim.is_multiple_of(4).then_some((heads, kv_heads, head_dim, capacity, first, tokens, window, Int8))
}

/// The codes of a head in int8, and their scale.
pub(super) fn codes_of(values: &[f32]) -> (Vec<f32>, f32) {
    let largest =
        values.iter().fold(0f32, |most, x| if x.is_finite() { most.max(x.abs()) } else { f32::NAN });
    let scale = if values.iter().all(|x| x.is_finite()) { largest / 127.0 } else { f32::NAN };
    let code = |x: &f32| if scale > 0.0 { (x / scale).round_ties_even().clamp(-127.0, 127.0) } else { 0.0 };
    (values.iter().map(code).collect(), scale)
}

/// A key and a value that are not finite make the outputs of the heads that see them NaN, and no others.
fn faults(
    oracle: &Oracle,
    device: &CubeDevice,
    row: Row,
    strategy: &Strategy<AttentionBlueprint>,
) -> Verdict {
    let of_head = row.2;
    // Key head 0 in the first case, key head 1 in the second.
    for (kv_head, of_keys, fault) in [(0, true, f32::NAN), (1, false, f32::NEG_INFINITY)] {
        let mut case = Case::new(5, row);
        let at = (33 * 2 + kv_head) * of_head + 1;
        if of_keys {
            case.k[at] = fault;
        } else {
            case.v[at] = fault;
        }
        let cache = case.fill(device)?;
        let positions: Vec<u32> = case.positions().map(|p| p as u32).collect();
        let positions = Positions::upload(device, &positions)?;
        let (q, out) = (device.upload(case.queries())?, poisoned(device, case.queries().len())?);
        let segment = of(0..case.problem.tokens, &positions, &cache);
        device.attention(&case.spec(), &q, &segment, &out, strategy)?;
        let got = device.read(&out)?;
        let is_nan = got.chunks(of_head).map(|head| head.iter().all(|x| x.is_nan()));
        let is_finite = got.chunks(of_head).map(|head| head.iter().all(|x| x.is_finite()));
        let found: Vec<(bool, bool)> = is_nan.zip(is_finite).collect();
        let heads = (0..got.len() / of_head).map(|head| head % 4 / 2 == kv_head);
        oracle.exact("NaN and finite heads", &found, &heads.map(|of| (of, !of)).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Quotients halfway between two codes; zeros; numbers of very different sizes.
fn ties(oracle: &Oracle, device: &CubeDevice) -> Verdict {
    let shape = CacheShape { kv_heads: 1, head_dim: 12, capacity: 4, precision: Int8 };
    let cache = CubeKvCache::empty(device, shape)?;
    let ties = [127.0, 0.5, 1.5, -2.5, -127.0, 0.49, -0.51, 125.5, 126.5, -0.0, 63.5, 62.5];
    let mut rng = Rng::new(2);
    let rows = [ties.to_vec(), vec![0.0; 12], ties.map(|x| x * 2f32.powi(90)).to_vec(), rng.normals(12)];
    let other: Vec<f32> = ties.iter().map(|x| -x * 2f32.powi(-60)).collect();
    let values = [rng.normals(12), other, ties.to_vec(), vec![-0.0; 12]];
    let positions = Positions::upload(device, &[0, 1, 2, 3])?;
    let (k, v) = (device.upload(&rows.concat())?, device.upload(&values.concat())?);
    device.store(&k, &v, &of(0..4, &positions, &cache))?;
    let (k, v) = cache.read(device)?;
    for (what, got, given) in [("keys", k, rows), ("values", v, values)] {
        let want = given.iter().flat_map(|row| {
            let (codes, scale) = codes_of(row);
            codes.into_iter().map(move |code| code * scale)
        });
        oracle.exact(what, &got, &want.collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Attention with the blueprints inferred for model shapes, on small caches.
pub fn shapes(session: &mut Session) {
    let device = session.device();
    for (heads, kv_heads, head_dim) in [(20, 5, 128), (32, 8, 128), (32, 32, 64), (12, 4, 96), (32, 8, 80)] {
        for (first_position, tokens) in [(0, 1), (500, 1), (4000, 1), (100, 4), (0, 2048)] {
            for precision in [F32, F16, Int8] {
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

    /// A key or value of a head as the cache has it: exactly what is stored, and that in f32, or in f16 if `halves`.
    fn kept(&self, head: &[f32], halves: bool) -> (Vec<f64>, Vec<f32>) {
        let half = |x: f32| f16::from_f32(x).to_f32();
        let widened = |exact: Vec<f64>, plain: Vec<f32>| {
            (exact, if halves { plain.into_iter().map(half).collect() } else { plain })
        };
        match self.problem.cache.precision {
            Int8 => {
                let (codes, scale) = codes_of(head);
                let exact = codes.iter().map(|code| f64::from(*code) * f64::from(scale)).collect();
                widened(exact, codes.iter().map(|code| code * scale).collect())
            }
            precision => {
                let plain: Vec<f32> =
                    head.iter().map(|&x| if precision == F16 { half(x) } else { x }).collect();
                widened(plain.iter().map(|&x| f64::from(x)).collect(), plain)
            }
        }
    }

    /// Stores everything up to the last token, a few positions at a time, in batches with extra rows.
    pub(super) fn fill(&self, device: &CubeDevice) -> trike_cube::Result<CubeKvCache> {
        let shape = self.problem.cache;
        let cache = CubeKvCache::empty(device, shape)?;
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

    /// The expected outputs, exact and by f32 loops, with scaled queries and weights rounded to f16 if `halves`, and keys and
    /// values of an int8 cache if `widened`.
    fn expected(&self, halves: bool, widened: bool) -> (Vec<f64>, Vec<f32>) {
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
                let rows = |of: &[f32]| -> (Vec<Vec<f64>>, Vec<Vec<f32>>) {
                    seen.iter().map(|&p| self.kept(&of[p * width + kv..][..d], widened)).unzip()
                };
                let ((exact_keys, keys), (exact_values, values)) = (rows(&self.k), rows(&self.v));
                let dot = |k: &Vec<f64>| q.iter().zip(k).map(|(&q, &k)| f64::from(q) * k).sum::<f64>();
                let scores: Vec<f64> = exact_keys.iter().map(|k| dot(k) * f64::from(self.scale)).collect();
                let most = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                let total: f64 = weights.iter().sum();
                let column = |c: usize| weights.iter().zip(&exact_values).map(|(w, v)| w * v[c]).sum::<f64>();
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
        device: &CubeDevice,
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
        let segment = CacheSegment { rows: BEFORE..BEFORE + tokens, positions: &positions, cache: &cache };
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
                    let want = &given[p * width + head * shape.head_dim..][..shape.head_dim];
                    oracle.exact(what, got, &self.kept(want, false).1)?;
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
        device: &CubeDevice,
        strategy: &Strategy<AttentionBlueprint>,
        of_tokens: &[f32],
    ) -> Verdict {
        let (blueprint, _) = self.problem.plan(strategy, device.capabilities())?;
        let halves = matches!(blueprint, AttentionBlueprint::Mma { .. });
        // The kernels for prompts read a copy of an int8 cache in f16, where there is f16.
        let is_copied = self.problem.cache.precision == Int8 && device.capabilities().f16;
        let widened = is_copied && !matches!(blueprint, AttentionBlueprint::Decode { .. });
        let (exact, plain) = self.expected(halves, widened);
        let slack = if halves { 2e-4 } else { self.slack };
        let row = self.problem.heads * self.problem.cache.head_dim;
        oracle.twice_plain("attended", of_tokens, &exact, &plain, row, slack)
    }
}

/// A segment of some rows over a cache.
pub(super) fn of<'a>(
    rows: Range<usize>,
    positions: &'a Positions,
    cache: &'a CubeKvCache,
) -> CacheSegment<'a> {
    CacheSegment { rows, positions, cache }
}

fn refusals(session: &mut Session) {
    let device = session.device();
    session.case("attention refuses what does not fit", |oracle| {
        let shape = CacheShape { kv_heads: 2, head_dim: 8, capacity: 10, precision: F32 };
        let cache = CubeKvCache::empty(device, shape)?;
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
        let is_hole = |e: &CubeError| {
            matches!(e, CubeError::Mismatch { what, got, .. } if what == "position of row 1" && got == "9")
        };
        let refused = device.attention(&spec, &q, &of(0..3, &holes, &cache), &out, strategy);
        oracle.refused("holes", refused, is_hole)?;
        let refused = device.store(&kv, &kv, &of(0..3, &holes, &cache));
        oracle.refused("holes", refused, is_hole)?;
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
        let refused = device.store(&kv, &kv, &of(0..3, &fits, &CubeKvCache::empty(device, capacity)?));
        oracle.refused("tokens", refused, |e| matches!(e, CubeError::Range { maximum: 2, got: 3, .. }))?;
        for head_dim in [6, 9] {
            let odd = CubeKvCache::empty(device, CacheShape { head_dim, precision: Int8, ..shape });
            oracle.refused(
                "head_dim in int8",
                odd,
                |e| matches!(e, CubeError::NotMultiple { unit: 4, got, .. } if *got == head_dim),
            )?;
        }
        for precision in [KvPrecision::Int4, KvPrecision::Int8Int4] {
            let refused = CubeKvCache::empty(device, CacheShape { precision, ..shape });
            oracle.refused("int4", refused, |e| matches!(e, CubeError::Feature { .. }))?;
        }
        oracle.refused("positions", at(&[]), |e| matches!(e, CubeError::Range { .. }))?;
        oracle
            .refused("positions", at(&[1 << 30]), |e| matches!(e, CubeError::Range { got: 0x4000_0000, .. }))
    });
}
