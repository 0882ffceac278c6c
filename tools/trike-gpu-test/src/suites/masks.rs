//! Block-sparse masks of attention: dense attention without the masked keys, and the rejections.

use trike_core::BlockError;
use trike_cube::attention::{
    AttentionBlueprint, AttentionSpec, BlockBitmap, BlockMask, CacheShape, CubeKvCache, KvPrecision,
    Positions,
};
use trike_cube::{CubeDevice, CubeError, KernelProblem, Strategy};
use trike_testkit::Rng;

use super::attention::{Case, POISON, Row, of};
use crate::session::{Oracle, Session, Verdict, poisoned};

use KvPrecision::{F16, F32, Int8};

/// Share of the key blocks before the query block that are set, in quarters.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Set {
    Diagonal,
    Quarter,
    All,
}

/// An attention, whether each KV head has a mask of its own, and its share of blocks.
///
/// Prompts begin inside of a block and end in one, so that rows of a cube are of several query blocks; a head count of three
/// does that too. Windows begin and end inside of blocks, and rings wrap there.
const CASES: &[(Row, bool, Set)] = &[
    ((2, 1, 32, 300, 0, 300, None, F32), false, Set::Quarter),
    ((2, 2, 32, 300, 0, 300, None, F16), true, Set::Diagonal),
    ((6, 2, 64, 260, 0, 257, None, F16), true, Set::Quarter),
    ((4, 4, 128, 330, 131, 190, None, F16), true, Set::Quarter),
    ((5, 1, 96, 400, 250, 97, None, F16), false, Set::Quarter),
    ((3, 1, 64, 220, 401, 90, Some(130), F16), false, Set::Quarter),
    ((2, 2, 32, 150, 1000, 63, Some(70), F16), true, Set::All),
    ((8, 1, 128, 200, 64, 65, None, F16), false, Set::Diagonal),
    ((1, 1, 32, 2300, 2100, 100, None, F16), false, Set::Quarter),
    ((2, 1, 80, 130, 127, 1, None, F32), false, Set::Quarter),
    ((3, 3, 8, 90, 500, 31, Some(40), F32), true, Set::Quarter),
    ((12, 2, 32, 40, 31, 9, Some(17), F16), true, Set::Diagonal),
    ((4, 4, 128, 330, 131, 190, None, Int8), true, Set::Quarter),
    ((3, 1, 64, 220, 401, 90, Some(130), Int8), false, Set::Quarter),
    ((3, 3, 8, 90, 500, 31, Some(40), Int8), true, Set::Quarter),
];

fn bitmap(seed: u64, case: &Case, own: bool, set: Set) -> trike_cube::Result<BlockBitmap> {
    let mut rng = Rng::new(seed);
    let heads = if own { case.problem.cache.kv_heads } else { 1 };
    Ok(BlockBitmap::from_fn(heads, case.positions(), |_, _, _| match set {
        Set::Diagonal => false,
        Set::Quarter => rng.below(4) == 0,
        Set::All => true,
    })?)
}

/// Attention with masks.
pub fn masks(session: &mut Session) {
    let device = session.device();
    for (seed, &(row, own, set)) in CASES.iter().enumerate() {
        let (heads, kv_heads, head_dim, capacity, first, tokens, window, precision) = row;
        let of_heads = if own { "masks" } else { "one mask" };
        let name = format!(
            "{of_heads} of {set:?}, {heads}/{kv_heads} heads of {head_dim}, {tokens} at {first} in {capacity}, window {window:?}, {precision:?}"
        );
        let case = Case::new(seed as u64, row);
        match bitmap(seed as u64, &case, own, set) {
            Ok(mask) => {
                let case = case.masked(mask);
                session.each(name, &case.problem, |oracle, strategy| case.check(oracle, device, strategy));
            }
            Err(error) => session.case(name, |_| Err(error.into())),
        }
    }
    // A row that sees little of its first tiles.
    let mut steep = Case::new(1, (4, 2, 64, 400, 70, 330, None, F16));
    steep.make_steep();
    if let Ok(mask) = bitmap(1, &steep, true, Set::Quarter) {
        let steep = steep.masked(mask);
        let name = "masks of Quarter, 4/2 heads of 64, steep";
        session.each(name, &steep.problem, |oracle, strategy| steep.check(oracle, device, strategy));
    }
    for row in [
        (4, 2, 64, 300, 90, 200, None, F16),
        (2, 2, 32, 257, 0, 257, None, F32),
        (2, 2, 32, 257, 0, 257, None, Int8),
    ] {
        let case = Case::new(3, row);
        let shown = format!("masks of all blocks change nothing, {:?}", row.7);
        if let Ok(mask) = bitmap(3, &case, true, Set::All) {
            let problem = Case::new(3, row).masked(mask.clone()).problem;
            session.each(shown, &problem, |oracle, strategy| {
                // The kernel that is inferred without a mask may be another one.
                let (blueprint, _) = problem.plan(strategy, device.capabilities())?;
                unchanged(oracle, device, &case, &mask, &Strategy::Forced(blueprint))
            });
        }
    }
    let problem = Case::new(0, LENGTHS[0]).problem;
    for blueprint in problem.candidates(device.capabilities()) {
        if !matches!(blueprint, AttentionBlueprint::Decode { .. }) {
            session.case(format!("masks of segments of a batch, {blueprint:?}"), |oracle| {
                segments(oracle, device, &Strategy::Forced(blueprint))
            });
        }
    }
    session.case("masks refuse what does not fit", |oracle| refusals(oracle, device));
}

/// A mask of all blocks gives the results without a mask, to the bit.
fn unchanged(
    oracle: &Oracle,
    device: &CubeDevice,
    case: &Case,
    mask: &BlockBitmap,
    strategy: &Strategy<AttentionBlueprint>,
) -> Verdict {
    let cache = case.fill(device)?;
    let positions: Vec<u32> = case.positions().map(|p| p as u32).collect();
    let positions = Positions::upload(device, &positions)?;
    let q = device.upload(case.queries())?;
    let segment = of(0..case.problem.tokens, &positions, &cache);
    let (plain, masked) = (poisoned(device, q.len())?, poisoned(device, q.len())?);
    device.attention(&case.spec(), &q, &segment, &plain, strategy)?;
    let mask = BlockMask::upload(device, mask.clone())?;
    device.attention_masked(&case.spec(), &q, &segment, &mask, &masked, strategy)?;
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    oracle.exact("with all blocks", &bits(device.read(&masked)?), &bits(device.read(&plain)?))
}

/// Segments of one batch; their lengths and first positions differ.
const LENGTHS: [Row; 3] = [
    (4, 2, 32, 200, 0, 150, None, F16),
    (4, 2, 32, 200, 61, 70, None, F16),
    (4, 2, 32, 200, 130, 5, None, F16),
];

/// Segments of different lengths in one batch, each with a cache and a mask of its own.
fn segments(oracle: &Oracle, device: &CubeDevice, strategy: &Strategy<AttentionBlueprint>) -> Verdict {
    let mut cases = Vec::new();
    for (seed, row) in LENGTHS.into_iter().enumerate() {
        let case = Case::new(seed as u64, row);
        let mask = bitmap(seed as u64, &case, seed != 1, Set::Quarter)?;
        cases.push((BlockMask::upload(device, mask.clone())?, case.masked(mask)));
    }
    let queries: Vec<f32> = cases.iter().flat_map(|(_, case)| case.queries().to_vec()).collect();
    let positions: Vec<u32> = cases.iter().flat_map(|(_, case)| case.positions().map(|p| p as u32)).collect();
    let positions = Positions::upload(device, &positions)?;
    let (q, out) = (device.upload(&queries)?, device.upload(&vec![POISON; queries.len()])?);
    let mut rows = 0;
    for (mask, case) in &cases {
        let cache = case.fill(device)?;
        let segment = of(rows..rows + case.problem.tokens, &positions, &cache);
        device.attention_masked(&case.spec(), &q, &segment, mask, &out, strategy)?;
        rows += case.problem.tokens;
    }
    let got = device.read(&out)?;
    let mut rest = &got[..];
    for (_, case) in &cases {
        let (of_tokens, after) = rest.split_at(case.queries().len());
        case.compare(oracle, device, strategy, of_tokens)?;
        rest = after;
    }
    Ok(())
}

fn refusals(oracle: &Oracle, device: &CubeDevice) -> Verdict {
    let shape = CacheShape { kv_heads: 2, head_dim: 8, capacity: 100, precision: F32 };
    let cache = CubeKvCache::empty(device, shape)?;
    let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 8, scale: 0.5, window: None };
    let positions = Positions::upload(device, &[62, 63, 64, 65])?;
    let kv = device.upload(&[0.5f32; 4 * 16])?;
    device.store(&kv, &kv, &of(0..4, &positions, &cache))?;
    let (q, out) = (device.upload(&[0.5f32; 4 * 32])?, device.upload(&[0f32; 4 * 32])?);
    let of_bitmap = |bitmap| BlockMask::upload(device, bitmap);
    let attend = |mask: &BlockMask, rows, strategy: &Strategy<AttentionBlueprint>| {
        device.attention_masked(&spec, &q, &of(rows, &positions, &cache), mask, &out, strategy)
    };
    let inferred = &Strategy::Inferred;
    let first = of_bitmap(BlockBitmap::diagonal(2, 0..64)?)?;
    let second = of_bitmap(BlockBitmap::diagonal(2, 64..128)?)?;
    attend(&first, 0..2, inferred)?;
    attend(&second, 2..4, inferred)?;
    oracle.refused("a later position", attend(&first, 0..3, inferred), |e| {
        matches!(e, CubeError::Blocks(BlockError::Range { maximum: 64, got: 65, .. }))
    })?;
    oracle.refused("an earlier position", attend(&second, 1..4, inferred), |e| {
        matches!(e, CubeError::Blocks(BlockError::Range { minimum: 64, got: 63, .. }))
    })?;
    for heads in [1, 2, 3] {
        let mask = of_bitmap(BlockBitmap::diagonal(heads, 0..128)?)?;
        match attend(&mask, 0..4, inferred) {
            Ok(()) if heads < 3 => {}
            result => oracle.refused("heads", result, |e| {
                heads == 3 && matches!(e, CubeError::Blocks(BlockError::Length { expected: 2, got: 3, .. }))
            })?,
        }
    }
    let decode = Strategy::Forced(AttentionBlueprint::Decode { units: 128, heads: 2, splits: 1 });
    oracle.refused("the kernel for few rows", attend(&first, 0..1, &decode), |e| {
        matches!(e, CubeError::Unsupported { operation: "attention/decode", .. })
    })?;
    let odd = CacheShape { head_dim: 6, ..shape };
    let odd_cache = CubeKvCache::empty(device, odd)?;
    let odd_spec = AttentionSpec { head_dim: 6, ..spec };
    let (q, out) = (device.upload(&[0.5f32; 4 * 24])?, device.upload(&[0f32; 4 * 24])?);
    let segment = of(0..2, &positions, &odd_cache);
    let refused = device.attention_masked(&odd_spec, &q, &segment, &first, &out, inferred);
    oracle.refused("head_dim", refused, |e| matches!(e, CubeError::NotMultiple { unit: 4, got: 6, .. }))
}
