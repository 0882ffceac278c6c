//! Single tokens of several sequences in one launch, against a launch for each of them.

use trike_cube::attention::{
    AttentionBlueprint, AttentionProblem, AttentionSpec, CacheSegment, CacheShape, CacheToken, CubeKvCache,
    KvPrecision, Positions, TokenBatch, TokenTable,
};
use trike_cube::ops::{CubeRopeTable, RopePairing};
use trike_cube::{Buffer, CubeDevice, CubeError, Strategy};
use trike_testkit::Rng;

use crate::session::{Oracle, Session, Verdict};

use KvPrecision::{F16, F32, Int8};

/// Query heads, key heads, head dimension, slots, position of each sequence's token, window, precision.
type Row = (usize, usize, usize, usize, &'static [u32], Option<usize>, KvPrecision);

/// Positions of all lengths; rings that wrap; parts of the positions; heads of no whole vector.
const CASES: &[Row] = &[
    (4, 2, 32, 70, &[0, 69, 33], None, F32),
    (6, 2, 64, 300, &[250, 3, 299, 128, 64], None, F16),
    (5, 1, 80, 90, &[500, 95, 89], Some(40), F32),
    (3, 1, 128, 150, &[149, 20], None, F16),
    (2, 2, 6, 40, &[12, 39], None, F32),
    (4, 1, 96, 50, &[7, 8], None, F16),
];

/// Initial value of outputs.
const POISON: f32 = -12345.0;
/// Positions of the table of rotations.
const TABLE: usize = 600;

/// All of them.
pub fn several(session: &mut Session) {
    let device = session.device();
    // All of them in int8, too, where heads are of whole words.
    let codes = CASES.iter().filter(|row| row.2.is_multiple_of(4)).map(|row| (row, Int8));
    let given = CASES.iter().map(|row| (row, row.6)).chain(codes);
    for (&(heads, kv_heads, head_dim, capacity, positions, window, _), precision) in given {
        let cache = CacheShape { kv_heads, head_dim, capacity, precision };
        let last = positions.iter().copied().max().unwrap_or(0) as usize;
        let sequences = positions.len();
        let problem =
            AttentionProblem { heads, window, tokens: 1, sequences, first_position: last, cache, mask: None };
        let name = format!(
            "of several, {heads}/{kv_heads} heads of {head_dim}, at {positions:?} in {capacity}, window {window:?}, {precision:?}"
        );
        session.each(name, &problem, |oracle, strategy| check(oracle, device, &problem, positions, strategy));
    }
    session.case("attention of several refuses what does not fit", |oracle| refusals(oracle, device));
}

/// Stores random keys and values of all positions before `end` in both caches.
fn fill(device: &CubeDevice, rng: &mut Rng, end: u32, caches: [&CubeKvCache; 2]) -> trike_cube::Result<()> {
    let CacheShape { kv_heads, head_dim, capacity, .. } = caches[0].shape();
    let all: Vec<u32> = (0..end).collect();
    for some in all.chunks(capacity) {
        let mut new = || device.upload(&rng.normals(some.len() * kv_heads * head_dim));
        let (k, v) = (new()?, new()?);
        let positions = Positions::upload(device, some)?;
        for cache in caches {
            device.store(&k, &v, &CacheSegment { rows: 0..some.len(), positions: &positions, cache })?;
        }
    }
    Ok(())
}

fn same_caches(oracle: &Oracle, device: &CubeDevice, caches: [&[CubeKvCache]; 2]) -> Verdict {
    for (one, other) in caches[0].iter().zip(caches[1]) {
        let ((k, v), (keys, values)) = (one.read(device)?, other.read(device)?);
        // What was never written may be no number.
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        oracle.exact("keys", &bits(k), &bits(keys))?;
        oracle.exact("values", &bits(v), &bits(values))?;
    }
    Ok(())
}

fn check(
    oracle: &Oracle,
    device: &CubeDevice,
    problem: &AttentionProblem,
    positions: &[u32],
    strategy: &Strategy<AttentionBlueprint>,
) -> Verdict {
    let (heads, shape) = (problem.heads, problem.cache);
    let count = positions.len();
    let mut rng = Rng::new(count as u64);
    let together = CubeKvCache::several(device, shape, count)?;
    let alone: Vec<CubeKvCache> =
        positions.iter().map(|_| CubeKvCache::empty(device, shape)).collect::<trike_cube::Result<_>>()?;
    let zeros = device.upload(&vec![0f32; shape.elements()?])?;
    let slots = Positions::upload(device, &(0..shape.capacity as u32).collect::<Vec<_>>())?;
    for (i, &position) in positions.iter().enumerate() {
        for cache in [&together[i], &alone[i]] {
            let all = CacheSegment { rows: 0..shape.capacity, positions: &slots, cache };
            device.store(&zeros, &zeros, &all)?;
        }
        fill(device, &mut rng, position, [&together[i], &alone[i]])?;
    }

    // Rows in another order than the sequences, between rows of others.
    let rows = count + 2;
    let row_of = |i: usize| count - i;
    let mut at = vec![5; rows];
    positions.iter().enumerate().for_each(|(i, &position)| at[row_of(i)] = position);
    let at = Positions::upload(device, &at)?;
    let [q, k, v] = [heads, shape.kv_heads, shape.kv_heads].map(|n| rng.normals(rows * n * shape.head_dim));
    let (k, v) = (device.upload(&k)?, device.upload(&v)?);
    let token = |(i, cache)| CacheToken { row: row_of(i), position: positions[i], cache };
    let tokens: Vec<CacheToken<'_>> = together.iter().enumerate().map(token).collect();
    let tokens = TokenTable::upload(device, &tokens)?;
    let caches: Vec<&CubeKvCache> = together.iter().collect();
    let batch = TokenBatch { tokens: &tokens, caches: &caches };
    let segment =
        |i: usize| CacheSegment { rows: row_of(i)..row_of(i) + 1, positions: &at, cache: &alone[i] };

    device.store_tokens(&k, &v, &batch)?;
    for i in 0..count {
        device.store(&k, &v, &segment(i))?;
    }
    same_caches(oracle, device, [&together, &alone])?;
    let [turned, expected] = [device.upload(&q)?, device.upload(&q)?];
    let table = CubeRopeTable::upload(device, &[1.0, 0.3, 0.1], TABLE, RopePairing::Halves)?;
    device.rotate_and_store_tokens(&turned, &k, &v, &batch, &table)?;
    for i in 0..count {
        device.rotate_and_store(&expected, &k, &v, &segment(i), &table)?;
    }
    same_caches(oracle, device, [&together, &alone])?;
    oracle.exact("queries", &device.read(&turned)?, &device.read(&expected)?)?;

    let spec = AttentionSpec {
        heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        scale: 1.0 / (shape.head_dim as f32).sqrt(),
        window: problem.window,
    };
    let poisoned = || device.upload(&vec![POISON; q.len()]);
    let (out, each): (Buffer<f32>, Buffer<f32>) = (poisoned()?, poisoned()?);
    device.attention_of_tokens(&spec, &turned, &batch, &out, strategy)?;
    for i in 0..count {
        device.attention(&spec, &turned, &segment(i), &each, &Strategy::Inferred)?;
    }
    // Rows of others keep the poison; parts differ in number, and so does rounding.
    let each: Vec<f64> = device.read(&each)?.into_iter().map(f64::from).collect();
    oracle.within("attended", &device.read(&out)?, &each, 5e-6)
}

fn refusals(oracle: &Oracle, device: &CubeDevice) -> Verdict {
    let shape = CacheShape { kv_heads: 2, head_dim: 8, capacity: 10, precision: F32 };
    let together = CubeKvCache::several(device, shape, 2)?;
    let other = CubeKvCache::empty(device, shape)?;
    let (q, kv) = (device.upload(&[0.5f32; 3 * 32])?, device.upload(&[0.5f32; 3 * 16])?);
    let out = device.upload(&[0f32; 3 * 32])?;
    let token = |row, position, cache| CacheToken { row, position, cache };
    let tokens = [token(0, 3, &together[0]), token(2, 4, &together[1])];
    let uploaded = TokenTable::upload(device, &tokens)?;
    let caches = [&together[0], &together[1]];
    let batch = TokenBatch { tokens: &uploaded, caches: &caches };
    device.store_tokens(&kv, &kv, &batch)?;
    let twice = [tokens[0], token(1, 3, &together[0])];
    let refused = TokenTable::upload(device, &twice).map(drop);
    oracle.refused("a cache twice", refused, |e| matches!(e, CubeError::Overlap { .. }))?;
    let refused = TokenTable::upload(device, &tokens[..1]).map(drop);
    oracle.refused("one token", refused, |e| matches!(e, CubeError::Range { minimum: 2, got: 1, .. }))?;
    for caches in [[&together[1], &together[0]], [&together[0], &other]] {
        let refused = device.store_tokens(&kv, &kv, &TokenBatch { tokens: &uploaded, caches: &caches });
        oracle.refused("other caches", refused, |e| matches!(e, CubeError::Apart))?;
    }
    let refused = device.store_tokens(&kv, &kv, &TokenBatch { tokens: &uploaded, caches: &caches[..1] });
    oracle.refused("one cache", refused, |e| matches!(e, CubeError::Length { expected: 2, got: 1, .. }))?;
    let few = device.upload(&[0.5f32; 2 * 16])?;
    let refused = device.store_tokens(&few, &few, &batch);
    oracle.refused("rows", refused, |e| matches!(e, CubeError::Range { minimum: 3, got: 2, .. }))?;
    let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 8, scale: 0.5, window: None };
    let refused =
        device.attention_of_tokens(&spec, &q, &batch, &out, &Strategy::Forced(AttentionBlueprint::Prefill));
    oracle.refused("a prompt", refused, |e| matches!(e, CubeError::Range { maximum: 1, got: 2, .. }))?;
    let over = [token(0, 3, &together[0]), token(2, 10, &together[1])];
    let over = TokenTable::upload(device, &over)?;
    let over = TokenBatch { tokens: &over, caches: &caches };
    let refused = device.attention_of_tokens(&spec, &q, &over, &out, &Strategy::Inferred);
    oracle.refused("capacity", refused, |e| matches!(e, CubeError::Range { maximum: 10, got: 11, .. }))?;
    let refused = device.attention_of_tokens(&spec, &q, &batch, &q, &Strategy::Inferred);
    oracle.refused("in place", refused, |e| matches!(e, CubeError::Overlap { .. }))
}
