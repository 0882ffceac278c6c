//! `AttentionMask`, and non-causal attention.

use candle_core::{DType, Device, Tensor, Var};
use trike_candle::{
    Attention, AttentionMask, AttentionScores, AttentionSpec, BlockBitmap, CandleError, KvCache, KvPrecision,
    NnError,
};
use trike_testkit::Rng;

use super::{close, distance, loss, normal, softmax_attention, spec_error, tokens};

const SPEC: AttentionSpec = AttentionSpec { heads: 6, kv_heads: 2, head_dim: 4, scale: 0.5, window: None };

fn var(rng: &mut Rng, shape: &[usize]) -> Var {
    Var::from_tensor(&normal(rng, shape)).expect("a variable")
}

fn attention(causal: bool, window: Option<usize>) -> Attention {
    let attention = Attention::new(AttentionSpec { window, ..SPEC }).expect("valid");
    if causal { attention } else { attention.bidirectional().expect("no window") }
}

/// A random 0/1 mask in which each query attends at least to its own position.
fn holes(rng: &mut Rng, shape: [usize; 4]) -> Tensor {
    let [.., tokens, positions] = shape;
    let trits = rng.trits(shape.iter().product(), 0.5);
    let one = |(i, trit): (usize, &i8)| {
        let (token, position) = (i / positions % tokens, i % positions);
        u8::from(*trit == 0 || position == positions - tokens + token)
    };
    Tensor::from_vec(trits.iter().enumerate().map(one).collect(), &shape, &Device::Cpu).expect("a mask")
}

/// A 0/1 mask as additive bias.
fn numbers(mask: &Tensor) -> Tensor {
    let full = |value: f32| Tensor::full(value, mask.shape(), &Device::Cpu).expect("numbers");
    mask.where_cond(&full(0.0), &full(f32::NEG_INFINITY)).expect("numbers")
}

#[test]
fn dense_masks_and_both_directions_are_candles_with_gradients() {
    let mut rng = Rng::new(61);
    let [q, k, v] = [24, 8, 8].map(|width| var(&mut rng, &[2, 9, width]));
    let mut seen: Vec<Tensor> = Vec::new();
    for (causal, window) in [(true, None), (true, Some(4)), (false, None)] {
        let attention = attention(causal, window);
        for shape in [[1, 1, 9, 9], [2, 1, 9, 9], [1, 6, 9, 9], [2, 6, 9, 9]] {
            let holes = holes(&mut rng, shape);
            // Positions are masked by zeros alone, or by minus infinity in a bias that is a variable.
            let learned = var(&mut rng, &shape);
            let both = (learned.as_tensor() + numbers(&holes)).expect("numbers");
            for (mask, bias) in [(&holes, numbers(&holes)), (&both, both.clone())] {
                let mask = Some(AttentionMask::Dense(mask));
                let got = attention.forward(&q, &k, &v, None, mask).expect("y");
                let want = softmax_attention(&q, &k, &v, attention.spec(), causal, Some(&bias)).expect("y");
                close(&got, &want, 1e-5);
                let grads = |y: &Tensor| loss(y).backward().expect("gradients");
                let (got_grads, want_grads) = (grads(&got), grads(&want));
                for var in [&q, &k, &v, &learned] {
                    match (got_grads.get(var), want_grads.get(var)) {
                        (Some(got), Some(want)) => close(got, want, 1e-4),
                        (got, want) => assert_eq!(got.is_some(), want.is_some()),
                    }
                }
                assert!(seen.iter().all(|y| distance(y, &got) > 1e-3), "every mask changes something");
                seen.push(got);
            }
        }
        let two_axes = holes(&mut rng, [1, 1, 9, 9]).reshape((9, 9)).expect("a mask");
        let got = attention.forward(&q, &k, &v, None, Some(AttentionMask::Dense(&two_axes))).expect("y");
        let bias = numbers(&two_axes);
        close(&got, &softmax_attention(&q, &k, &v, attention.spec(), causal, Some(&bias)).expect("y"), 1e-5);
        let none = attention.forward(&q, &k, &v, None, None).expect("y");
        close(&none, &softmax_attention(&q, &k, &v, attention.spec(), causal, None).expect("y"), 1e-5);
    }
    let half = |x: &Tensor| x.to_dtype(DType::BF16).expect("a cast");
    let mask = half(&normal(&mut rng, &[9, 9]));
    let y = attention(false, None).forward(
        &half(&q),
        &half(&k),
        &half(&v),
        None,
        Some(AttentionMask::Dense(&mask)),
    );
    assert_eq!(y.expect("y").dtype(), DType::BF16);
}

/// The positions of a bitmap as a 0/1 mask per head.
fn dense_of(blocks: &BlockBitmap, positions: std::ops::Range<usize>) -> Tensor {
    let (n, end) = (positions.len(), positions.end);
    let one = |i: usize| {
        let (head, token, position) = (i / end / n, positions.start + i / end % n, i % end);
        let of_head = if blocks.heads() == 1 { 0 } else { head / 3 };
        u8::from(blocks.contains(of_head, token / BlockBitmap::BLOCK, position / BlockBitmap::BLOCK))
    };
    let all: Vec<u8> = (0..6 * n * end).map(one).collect();
    Tensor::from_vec(all, (1, 6, n, end), &Device::Cpu).expect("a mask")
}

#[test]
fn blocks_are_dense_masks_of_their_positions() {
    let mut rng = Rng::new(62);
    let [q, k, v] = [24, 8, 8].map(|width| var(&mut rng, &[2, 200, width]));
    for window in [None, Some(100)] {
        let attention = attention(true, window);
        for heads in [1, 2] {
            let chosen = |head, query, key| (head + query + key) % 2 == 0;
            let blocks = BlockBitmap::from_fn(heads, 0..200, chosen).expect("a mask");
            let bias = numbers(&dense_of(&blocks, 0..200));
            let mask = Some(AttentionMask::Blocks(&blocks));
            let got = attention.forward(&q, &k, &v, None, mask).expect("y");
            let want = softmax_attention(&q, &k, &v, attention.spec(), true, Some(&bias)).expect("y");
            close(&got, &want, 1e-5);
            let grads = |y: &Tensor| loss(y).backward().expect("gradients");
            let (got_grads, want_grads) = (grads(&got), grads(&want));
            for var in [&q, &k, &v] {
                close(got_grads.get(var).expect("one"), want_grads.get(var).expect("one"), 1e-4);
            }

            // In steps, with block masks and dense masks in turn.
            let [q, k, v] = [&q, &k, &v].map(|x| x.detach());
            for precision in KvPrecision::ALL {
                let mut caches = [(); 2].map(|()| KvCache::new(2, 2, 4, 200, precision).expect("a cache"));
                for (first, n) in [(0, 70), (70, 1), (71, 129)] {
                    let [q, k, v] = [&q, &k, &v].map(|x| tokens(x, first, n));
                    let blocks = BlockBitmap::from_fn(heads, first..first + n, chosen).expect("a mask");
                    let dense = dense_of(&blocks, first..first + n);
                    let masks = [AttentionMask::Blocks(&blocks), AttentionMask::Dense(&dense)];
                    let mut outs = caches.iter_mut().zip(masks).map(|(cache, mask)| {
                        attention.forward(&q, &k, &v, Some(cache), Some(mask)).expect("y")
                    });
                    let (of_blocks, of_dense) = (outs.next().expect("one"), outs.next().expect("two"));
                    drop(outs);
                    close(&of_blocks, &of_dense, if precision == KvPrecision::F32 { 1e-5 } else { 6e-4 });
                    caches.reverse();
                }
            }
        }
    }
}

#[test]
fn masks_that_do_not_fit_are_refused_and_the_cache_stays() {
    let mut rng = Rng::new(63);
    let [q, k, v] = [24, 8, 8].map(|width| normal(&mut rng, &[2, 3, width]));
    let ones = |shape: &[usize]| Tensor::ones(shape, DType::U8, &Device::Cpu).expect("ones");
    let floats = |values: [f32; 5]| {
        let rows = [[0.0; 5], values, [0.0; 5]];
        Tensor::new(&rows, &Device::Cpu).expect("numbers")
    };
    let exact = attention(true, None);
    let popcount = exact.clone().with_scores(AttentionScores::Popcount);
    for attention in [exact.clone(), popcount] {
        let mut cache = KvCache::new(2, 2, 4, 8, KvPrecision::F16).expect("a cache");
        cache = cache.with_scores(attention.scores()).expect("a cache");
        let [q2, k2, v2] = [&q, &k, &v].map(|x| tokens(x, 0, 2));
        attention.forward(&q2, &k2, &v2, Some(&mut cache), None).expect("y");
        let mut refused = |mask: AttentionMask<'_>| {
            let error = attention.forward(&q, &k, &v, Some(&mut cache), Some(mask)).expect_err("a refusal");
            assert_eq!(cache.len(), 2);
            error
        };
        let inf = f32::INFINITY;
        for (mask, said) in [
            (ones(&[3, 4]), "positions of a mask: expected 5, got 4"),
            (ones(&[2, 5]), "tokens of a mask: expected 3, got 2"),
            (ones(&[3, 1, 3, 5]), "sequences of a mask: expected 2, got 3"),
            (ones(&[2, 2, 3, 5]), "heads of a mask: expected 6, got 2"),
            (ones(&[2, 3, 5]), "axes of a mask must be 2 or 4, got 3"),
            (ones(&[3, 5]).to_dtype(DType::U32).expect("a cast"), "dtype must be f32, f16 or bf16, got U32"),
            (
                floats([0.0, f32::NAN, 0.0, 0.0, 0.0]),
                "an element of a mask must be finite or minus infinity, got NaN at index 6",
            ),
            (
                floats([0.0, 0.0, inf, 0.0, 0.0]),
                "an element of a mask must be finite or minus infinity, got inf at index 7",
            ),
            (
                // Only a later position remains for the token at position 3.
                floats([-inf, -inf, -inf, -inf, 0.0]),
                "mask must leave each query a position that it may attend to, got none for token 1 of head 0 in sequence 0",
            ),
        ] {
            assert_eq!(refused(AttentionMask::Dense(&mask)).to_string(), said);
        }
        let short = BlockBitmap::diagonal(1, 64..67).expect("a mask");
        let error = refused(AttentionMask::Blocks(&short));
        assert!(matches!(error, CandleError::Nn(NnError::Cpu(_))), "{error}");
        let heads = BlockBitmap::diagonal(6, 0..5).expect("a mask");
        let error = refused(AttentionMask::Blocks(&heads));
        assert_eq!(error.to_string(), "heads of a mask: expected 2, got 6");
        // Without the mask, the refused inputs are valid.
        attention.forward(&q, &k, &v, Some(&mut cache), None).expect("y");
    }
    let both = attention(false, None);
    let blocks = BlockBitmap::diagonal(1, 0..3).expect("a mask");
    let said = spec_error(both.forward(&q, &k, &v, None, Some(AttentionMask::Blocks(&blocks))), "mask");
    assert_eq!(said, "mask must be dense for attention that is not causal, got blocks");
    let windowed = attention(true, Some(3)).bidirectional();
    assert_eq!(spec_error(windowed, "window"), "window must be none for attention that is not causal, got 3");
}

#[test]
fn sizes_that_do_not_fit_are_refused_by_name() {
    type Spoil = fn(&mut AttentionSpec);
    let table: [(&str, Spoil); 8] = [
        ("heads", |s| s.heads = 0),
        ("heads", |s| s.heads = (1 << 20) + 1),
        ("kv_heads", |s| s.kv_heads = 0),
        ("kv_heads", |s| s.kv_heads = 4),
        ("head_dim", |s| s.head_dim = 0),
        ("head_dim", |s| s.head_dim = usize::MAX),
        ("window", |s| s.window = Some(0)),
        ("scale", |s| s.scale = f32::NAN),
    ];
    for (field, spoil) in table {
        let mut spec = SPEC;
        spoil(&mut spec);
        spec_error(Attention::new(spec), field);
    }
    let mut rng = Rng::new(64);
    let [q, k, v] = [24, 8, 8].map(|width| normal(&mut rng, &[2, 3, width]));
    let attention = attention(true, None);
    let refused = |q: &Tensor, k: &Tensor, v: &Tensor| {
        attention.forward(q, k, v, None, None).expect_err("a refusal").to_string()
    };
    let narrow = |x: &Tensor, axis, n| x.narrow(axis, 0, n).expect("a part");
    for ((q, k, v), said) in [
        ((narrow(&q, 2, 23), k.clone(), v.clone()), "width of queries: expected 24, got 23"),
        ((q.clone(), narrow(&k, 2, 4), v.clone()), "width of keys: expected 8, got 4"),
        ((q.clone(), k.clone(), narrow(&v, 2, 4)), "width of values: expected 8, got 4"),
        ((q.clone(), narrow(&k, 1, 2), v.clone()), "tokens of keys and values: expected 3, got 2"),
        ((q.clone(), k.clone(), narrow(&v, 0, 1)), "sequences of keys and values: expected 2, got 1"),
        (
            (narrow(&q, 1, 0), narrow(&k, 1, 0), narrow(&v, 1, 0)),
            "a step needs at least one token per sequence",
        ),
    ] {
        assert_eq!(refused(&q, &k, &v), said);
    }
    let flat = q.reshape((6, 24)).expect("a shape");
    assert_eq!(refused(&flat, &k, &v), "axes of queries: expected 3, got 2");
    let wide = q.to_dtype(DType::F64).expect("a cast");
    assert_eq!(refused(&wide, &k, &v), "dtype must be f32, f16 or bf16, got F64");
}
