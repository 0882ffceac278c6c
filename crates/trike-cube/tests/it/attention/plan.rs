//! Attention problems and their kernels.

use trike_cube::attention::{
    AttentionBlueprint, AttentionProblem, BlockBitmap, CacheShape, KvPrecision, MaskedWork, horizon,
};
use trike_cube::internals::attention::MAX_POSITION;
use trike_cube::{Capabilities, Cost, CubeError, KernelProblem, Strategy};

fn problem() -> AttentionProblem {
    let cache = CacheShape { kv_heads: 2, head_dim: 64, capacity: 100, precision: KvPrecision::F32 };
    AttentionProblem {
        heads: 6,
        window: None,
        tokens: 20,
        sequences: 1,
        first_position: 80,
        cache,
        mask: None,
    }
}

#[test]
fn limits_are_refused_at_their_edge() {
    problem().validate().expect("just fits");
    type Spoil = fn(&mut AttentionProblem);
    let table: [(&str, Spoil); 10] = [
        ("sequences", |p| p.sequences = 0),
        ("tokens", |p| p.sequences = 2),
        ("heads", |p| p.heads = 7),
        ("heads", |p| p.heads = 0),
        ("tokens", |p| p.tokens = 0),
        ("window", |p| p.window = Some(0)),
        ("hold", |p| p.first_position = 81),
        ("hold", |p| (p.window, p.first_position) = (Some(82), 1000)),
        ("first position", |p| (p.window, p.first_position) = (Some(5), MAX_POSITION)),
        ("cache", |p| p.cache.capacity = 0),
    ];
    for (what, spoil) in table {
        let mut spoiled = problem();
        spoil(&mut spoiled);
        let refused = spoiled.validate().expect_err(what).to_string();
        assert!(refused.contains(what), "{what}: {refused}");
    }
    AttentionProblem { window: Some(81), first_position: 1000, ..problem() }
        .validate()
        .expect("a full window");
}

#[test]
fn every_candidate_fits_the_smallest_device() {
    let device = Capabilities::smallest();
    for head_dim in [1, 2, 3, 4, 6, 8, 32, 64, 80, 96, 128, 256] {
        for tokens in [1, 3, 20] {
            let cache = CacheShape { head_dim, capacity: 1 << 14, ..problem().cache };
            let problem = AttentionProblem { cache, tokens, first_position: 5000, ..problem() };
            let candidates = problem.candidates(&device);
            assert!(!candidates.is_empty());
            for blueprint in candidates {
                let settings = problem.settings(&blueprint, &device).expect("its own candidate");
                settings
                    .check("attention", &device)
                    .unwrap_or_else(|e| panic!("{head_dim} {blueprint:?}: {e}"));
            }
        }
    }
}

#[test]
fn every_candidate_over_an_int8_cache_fits_the_smallest_device() {
    let device = Capabilities::smallest();
    for head_dim in [4, 8, 12, 16, 32, 64, 80, 96, 128, 256] {
        for (heads, tokens) in [(6, 1), (16, 3), (8, 20)] {
            let precision = KvPrecision::Int8;
            let cache = CacheShape { head_dim, capacity: 1 << 14, precision, ..problem().cache };
            let problem = AttentionProblem { heads, cache, tokens, first_position: 5000, ..problem() };
            for blueprint in problem.candidates(&device) {
                let settings = problem.settings(&blueprint, &device).expect("its own candidate");
                settings
                    .check("attention", &device)
                    .unwrap_or_else(|e| panic!("{head_dim} {blueprint:?}: {e}"));
                let is_decode = matches!(blueprint, AttentionBlueprint::Decode { .. });
                assert_eq!(settings.bindings, if is_decode { 6 } else { 4 }, "{blueprint:?}");
            }
            // Exactly the positions visible to the tokens.
            let wide = problem.wide_shape(&device);
            assert_eq!((wide.capacity, wide.precision), (5000 + tokens, KvPrecision::F32));
        }
    }
    for head_dim in [1, 2, 6, 130] {
        let odd = CacheShape { head_dim, precision: KvPrecision::Int8, ..problem().cache };
        let refused = AttentionProblem { cache: odd, ..problem() }.validate().expect_err("refused");
        assert!(matches!(refused, CubeError::NotMultiple { unit: 4, got, .. } if got == head_dim));
    }
}

#[test]
fn plans_are_the_same_within_a_horizon() {
    // Position, window, capacity, horizon.
    let table = [
        (0, None, 1000, 64),
        (63, None, 1000, 64),
        (64, None, 1000, 128),
        (128, None, 1000, 256),
        (255, None, 1000, 256),
        (512, None, 1000, 1000),
        (999, None, 1000, 1000),
        (5, None, 10, 10),
        (9, Some(33), 66, 33),
        (500, Some(33), 66, 33),
        (100, Some(200), 300, 128),
        (128, Some(200), 300, 200),
        (1 << 29, Some(200), 300, 200),
        (usize::MAX, None, 7, usize::MAX),
    ];
    for (position, window, capacity, want) in table {
        assert_eq!(horizon(position, window, capacity), want, "{position} {window:?} {capacity}");
    }
    let mut device = Capabilities::smallest();
    device.multiprocessors = Some(132);
    let cache = CacheShape { capacity: 5000, ..problem().cache };
    for window in [None, Some(300)] {
        let mut plans = std::collections::HashMap::new();
        for first_position in 0..5000 {
            let one = AttentionProblem { tokens: 1, window, first_position, cache, ..problem() };
            let plan = one.plan(&Strategy::Inferred, &device).expect("a plan");
            assert_eq!(*plans.entry(one.horizon()).or_insert(plan), plan, "{first_position}");
        }
        assert_eq!(plans.len(), if window.is_some() { 4 } else { 8 });
    }
}

#[test]
fn costs_count_what_is_seen() {
    let one = AttentionProblem { tokens: 1, first_position: 9, ..problem() };
    assert_eq!(one.cost(), Cost { macs: 2 * 10 * 6 * 64, bytes: 2 * 4 * 10 * 128 + 8 * 6 * 64 });
    let two = AttentionProblem { tokens: 2, first_position: 9, ..problem() };
    assert_eq!(two.cost().macs, 2 * (10 + 11) * 6 * 64);
    let windowed = AttentionProblem { tokens: 3, window: Some(4), first_position: 2, ..problem() };
    assert_eq!(windowed.cost().macs, 2 * (3 + 4 + 4) * 6 * 64);
    // Tokens 80 to 99 of two KV heads: the diagonal is keys 64 to 99; all blocks give the problem without a mask.
    let positions = 80..100;
    let of = |set: bool| BlockBitmap::from_fn(2, positions.clone(), |_, _, _| set).expect("fits");
    let masked = |set| AttentionProblem { mask: Some(of(set).work(2, &positions, None)), ..problem() }.cost();
    let pairs: u64 = (80..100).map(|p| p + 1 - 64).sum();
    let expected = Cost { macs: 2 * pairs * 6 * 64, bytes: 2 * 4 * 36 * 128 + 20 * 8 * 6 * 64 };
    assert_eq!(masked(false), expected);
    assert_eq!(masked(true), problem().cost());
    // Keys and values of 64 bytes with a scale of four bytes each.
    let codes = CacheShape { precision: KvPrecision::Int8, ..problem().cache };
    let codes = AttentionProblem { cache: codes, tokens: 1, first_position: 9, ..problem() };
    assert_eq!(codes.cost().bytes, 2 * 10 * 2 * (64 + 4) + 8 * 6 * 64);
}

#[test]
fn a_mask_leaves_the_kernels_for_prompts() {
    let mask = Some(MaskedWork { pairs: 1, keys: 1 });
    let device = Capabilities::smallest();
    for tokens in [1, 2, 20] {
        let masked = AttentionProblem { tokens, mask, ..problem() };
        assert_eq!(masked.candidates(&device), [AttentionBlueprint::Prefill]);
        let (_, settings) = masked.plan(&Strategy::Inferred, &device).expect("a plan");
        assert_eq!(settings.bindings, 5);
        let decode = AttentionBlueprint::Decode { units: 64, heads: 1, splits: 1 };
        let refused = masked.settings(&decode, &device).expect_err("refused");
        assert!(matches!(refused, CubeError::Unsupported { operation: "attention/decode", .. }));
    }
    let odd = CacheShape { head_dim: 6, ..problem().cache };
    let refused = AttentionProblem { cache: odd, mask, ..problem() }
        .plan(&Strategy::Inferred, &device)
        .expect_err("no kernel");
    assert!(matches!(refused, CubeError::NotMultiple { unit: 4, got: 6, .. }));
    let several = AttentionProblem { tokens: 1, sequences: 2, mask, ..problem() };
    assert!(matches!(several.validate(), Err(CubeError::Range { maximum: 1, got: 2, .. })));
}
