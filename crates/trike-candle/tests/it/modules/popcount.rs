//! `AttentionScores::Popcount` compared with products of trits in a loop.

use candle_core::{Device, Tensor, Var};
use trike_candle::{
    Attention, AttentionMask, AttentionScores, AttentionSpec, BlockBitmap, KvCache, KvPrecision,
};
use trike_cpu::Cpu;
use trike_testkit::{Rng, assert_close};

use super::{close, distance, normal, spec_error, tokens, values};

fn attention(spec: AttentionSpec) -> Attention {
    Attention::new(spec).expect("valid").with_scores(AttentionScores::Popcount)
}

fn spec(heads: usize, kv_heads: usize, head_dim: usize, window: Option<usize>) -> AttentionSpec {
    AttentionSpec { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), window }
}

fn inputs(rng: &mut Rng, spec: &AttentionSpec, batch: usize, tokens: usize) -> [Tensor; 3] {
    let widths = [spec.heads, spec.kv_heads, spec.kv_heads].map(|heads| heads * spec.head_dim);
    widths.map(|width| normal(rng, &[batch, tokens, width]))
}

/// `max(mean|x|, 1e-5)` in f32, and the trits.
fn rounded(x: &[f32]) -> (f32, Vec<i64>) {
    let mean = x.iter().map(|x| f64::from(x.abs())).sum::<f64>() / x.len() as f64;
    let inverse = 1.0 / (mean as f32).max(1e-5);
    (1.0 / inverse, x.iter().map(|x| (x * inverse).round_ties_even().clamp(-1.0, 1.0) as i64).collect())
}

/// Attention with scores of integer products. `hidden(sequence, head, token, position)` tells whether a position is masked for a
/// token.
fn oracle(
    [q, k, v]: &[Tensor; 3],
    spec: &AttentionSpec,
    causal: bool,
    hidden: impl Fn(usize, usize, usize, usize) -> bool,
) -> Vec<f32> {
    let (batch, n, _) = q.dims3().expect("three axes");
    let AttentionSpec { heads, kv_heads, head_dim: d, scale, .. } = *spec;
    let (q, k, v) = (values(q), values(k), values(v));
    let mut out = Vec::new();
    for (b, token, head) in (0..batch * n * heads).map(|i| (i / heads / n, i / heads % n, i % heads)) {
        let at = |all: &[f32], heads: usize, token: usize, head: usize| -> Vec<f32> {
            all[((b * n + token) * heads + head) * d..][..d].to_vec()
        };
        let (q_scale, q_trits) = rounded(&at(&q, heads, token, head));
        let span = if causal { spec.span(token) } else { 0..n };
        let kv_head = head / (heads / kv_heads);
        let (mut sum, mut mean) = (0f64, vec![0f64; d]);
        for position in span.filter(|position| !hidden(b, head, token, *position)) {
            let (k_scale, k_trits) = rounded(&at(&k, kv_heads, position, kv_head));
            let mut product = 0i64;
            for i in 0..d {
                product += q_trits[i] * k_trits[i];
            }
            let score = f64::from(scale) * f64::from(q_scale) * f64::from(k_scale) * product as f64;
            let weight = score.exp();
            sum += weight;
            let value = at(&v, kv_heads, position, kv_head);
            mean.iter_mut().zip(value).for_each(|(mean, v)| *mean += weight * f64::from(v));
        }
        out.extend(mean.iter().map(|mean| (mean / sum) as f32));
    }
    out
}

#[test]
fn scores_are_products_of_trits() {
    let mut rng = Rng::new(71);
    // Odd heads, heads of several words, groups, windows, several blocks of tokens.
    for (heads, kv_heads, d, window, n) in [
        (1, 1, 1, None, 5),
        (6, 2, 37, None, 20),
        (4, 4, 64, Some(7), 30),
        (4, 1, 128, None, 150),
        (3, 3, 200, Some(70), 90),
    ] {
        let spec = spec(heads, kv_heads, d, window);
        let all = inputs(&mut rng, &spec, 2, n);
        let [q, k, v] = &all;
        let causal = attention(spec).forward(q, k, v, None, None).expect("y");
        assert_close(&values(&causal), &oracle(&all, &spec, true, |_, _, _, _| false), 1e-5);
        let exact = Attention::new(spec).expect("valid").forward(q, k, v, None, None).expect("y");
        match d {
            // A single element is its sign and its scale.
            1 => close(&causal, &exact, 1e-5),
            _ => assert!(distance(&causal, &exact) > 1e-3, "rounding matters"),
        }
        let one = attention(spec).with_cpu(Cpu::new(1).expect("one thread"));
        assert_eq!(values(&one.forward(q, k, v, None, None).expect("y")), values(&causal));
        if window.is_none() {
            let both = attention(spec).bidirectional().expect("no window");
            let got = both.forward(q, k, v, None, None).expect("y");
            assert_close(&values(&got), &oracle(&all, &spec, false, |_, _, _, _| false), 1e-5);
        }
    }
}

/// Values that identify positions reveal the weights: f32 arithmetic in the same order gives the same bits, so every product is
/// exact.
#[test]
fn scores_have_the_bits_of_integer_products() {
    let mut rng = Rng::new(72);
    let spec = spec(2, 1, 300, None);
    let (n, d) = (40, 300);
    let [q, k, _] = inputs(&mut rng, &spec, 1, n);
    let unit = (0..n * d).map(|i| f32::from(u8::from(i / d == i % d))).collect();
    let v = Tensor::from_vec(unit, (1, n, d), &Device::Cpu).expect("values");
    let got = values(&attention(spec).forward(&q, &k, &v, None, None).expect("y"));
    let (q, k) = (values(&q), values(&k));
    for (row, got) in got.chunks_exact(d).enumerate() {
        let (q_scale, q_trits) = rounded(&q[row * d..][..d]);
        let scores: Vec<f32> = (0..=row / 2)
            .map(|position| {
                let (k_scale, k_trits) = rounded(&k[position * d..][..d]);
                let mut product = 0i64;
                for i in 0..d {
                    product += q_trits[i] * k_trits[i];
                }
                spec.scale * q_scale * k_scale * product as f32
            })
            .collect();
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = scores.iter().map(|score| (score - largest).exp()).collect();
        let sum: f32 = weights.iter().sum();
        let want: Vec<u32> = weights.iter().map(|weight| (weight / sum).to_bits()).collect();
        let bits: Vec<u32> = got.iter().map(|got| got.to_bits()).collect();
        assert_eq!(bits[..want.len()], want, "{row}");
        assert!(got[want.len()..].iter().all(|later| *later == 0.0));
    }
}

#[test]
fn steps_with_trits_in_the_cache_are_the_whole_sequence() {
    let mut rng = Rng::new(73);
    for (heads, kv_heads, d, window, capacity) in
        [(4, 2, 64, None, 40), (6, 1, 80, None, 64), (2, 2, 5, Some(6), 11)]
    {
        let spec = spec(heads, kv_heads, d, window);
        let all = inputs(&mut rng, &spec, 2, 40);
        let [q, k, v] = &all;
        let whole = attention(spec).forward(q, k, v, None, None).expect("y");
        // Values are rounded, with an error of half a scale for int8, or of one scale per element of a Hadamard-transformed head
        // for int4.
        for (precision, bound) in [
            (KvPrecision::F32, 1e-6),
            (KvPrecision::F16, 1e-3),
            (KvPrecision::Int8, 1e-2),
            (KvPrecision::Int8Int4, 0.5),
            (KvPrecision::Int4, 0.5),
        ] {
            let cache = KvCache::new(2, kv_heads, d, capacity, precision).expect("a cache");
            let mut cache = cache.with_scores(AttentionScores::Popcount).expect("trits");
            for _ in 0..2 {
                let mut outs = Vec::new();
                for n in [6, 1, 1, 5, 6, 1, 6, 6, 6, 2] {
                    let [q, k, v] = [q, k, v].map(|x| tokens(x, cache.len(), n));
                    outs.push(attention(spec).forward(&q, &k, &v, Some(&mut cache), None).expect("y"));
                }
                close(&Tensor::cat(&outs, 1).expect("y"), &whole, bound);
                // The second time in a cache that was cleared.
                cache.clear();
            }
            // Two bits per element in words of 64, a scale, and the values.
            let rows = 2 * kv_heads * capacity.min(40);
            let of_values = 2 * kv_heads * capacity * precision.value().bytes_per_position(d) / 2;
            assert_eq!(cache.bytes(), rows * (16 * d.div_ceil(64) + 4) + of_values, "{precision:?} {d}");
        }
    }
}

#[test]
fn masks_hide_positions_from_scores_of_trits() {
    let mut rng = Rng::new(74);
    let (spec, n) = (spec(4, 2, 16, None), 140);
    let all = inputs(&mut rng, &spec, 2, n);
    let [q, k, v] = &all;
    let blocks = BlockBitmap::from_fn(2, 0..n, |head, query, key| (head + query + key) % 2 == 1);
    let blocks = blocks.expect("a mask");
    let by_blocks = |_, head: usize, token: usize, position: usize| {
        !blocks.contains(head / 2, token / BlockBitmap::BLOCK, position / BlockBitmap::BLOCK)
    };
    let got = attention(spec).forward(q, k, v, None, Some(AttentionMask::Blocks(&blocks))).expect("y");
    assert_close(&values(&got), &oracle(&all, &spec, true, by_blocks), 1e-5);

    let by_rule = |sequence: usize, head: usize, token: usize, position: usize| {
        position != token && (sequence + 2 * head + token + position).is_multiple_of(3)
    };
    let at = |i: usize| (i / n / n / 4, i / n / n % 4, i / n % n, i % n);
    let one = |i: usize| {
        let (sequence, head, token, position) = at(i);
        u8::from(!by_rule(sequence, head, token, position))
    };
    let dense =
        Tensor::from_vec((0..2 * 4 * n * n).map(one).collect::<Vec<u8>>(), (2, 4, n, n), &Device::Cpu);
    let dense = dense.expect("a mask");
    let want = oracle(&all, &spec, true, by_rule);
    let whole = attention(spec).forward(q, k, v, None, Some(AttentionMask::Dense(&dense))).expect("y");
    assert_close(&values(&whole), &want, 1e-5);
    let cache = KvCache::new(2, 2, 16, n, KvPrecision::F32).expect("a cache");
    let mut cache = cache.with_scores(AttentionScores::Popcount).expect("trits");
    let mut outs = Vec::new();
    for (first, n) in [(0, 100), (100, 1), (101, 39)] {
        let [q, k, v] = [q, k, v].map(|x| tokens(x, first, n));
        let mask = dense.narrow(2, first, n).and_then(|mask| mask.narrow(3, 0, first + n)).expect("a part");
        let mask = Some(AttentionMask::Dense(&mask));
        outs.push(attention(spec).forward(&q, &k, &v, Some(&mut cache), mask).expect("y"));
    }
    close(&Tensor::cat(&outs, 1).expect("y"), &whole, 1e-6);
}

#[test]
fn what_trits_cannot_hold_is_refused_and_the_cache_stays() {
    let mut rng = Rng::new(75);
    let spec = spec(2, 1, 8, None);
    let [q, k, v] = inputs(&mut rng, &spec, 1, 4);
    let cache = KvCache::new(1, 1, 8, 8, KvPrecision::F32).expect("a cache");
    let mut cache = cache.with_scores(AttentionScores::Popcount).expect("trits");
    let popcount = attention(spec);
    popcount.forward(&q, &k, &v, Some(&mut cache), None).expect("y");
    let spoiled = |x: &Tensor, value: f32| {
        let mut all = values(x);
        all[11] = value;
        Tensor::from_vec(all, x.shape(), &Device::Cpu).expect("a tensor")
    };
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (field, q, k) in
            [("a query", spoiled(&q, bad), k.clone()), ("a key", q.clone(), spoiled(&k, bad))]
        {
            let said = format!("{field} must be finite, got {bad} at index 11");
            assert_eq!(spec_error(popcount.forward(&q, &k, &v, None, None), field), said);
            assert_eq!(spec_error(popcount.forward(&q, &k, &v, Some(&mut cache), None), field), said);
            assert_eq!(cache.len(), 4);
        }
    }
    // The inverse of a subnormal or overflowing mean of magnitudes is infinite or zero.
    let huge = Tensor::full(f32::MAX, q.shape(), &Device::Cpu).expect("a tensor");
    match popcount.forward(&huge, &k, &v, Some(&mut cache), None) {
        Ok(_) => cache.truncate(4).expect("fewer"),
        Err(_) => assert_eq!(cache.len(), 4),
    }
    // A non-finite value reaches the output.
    let faulty = values(&popcount.forward(&q, &k, &spoiled(&v, f32::NAN), None, None).expect("y"));
    assert!(faulty[16..].iter().any(|y| y.is_nan()) && faulty[..16].iter().all(|y| y.is_finite()));
    // Inputs rounded to zeros: every position has the same weight.
    let none = q.zeros_like().expect("zeros");
    let mean = values(&popcount.forward(&none, &k, &v, None, None).expect("y"));
    let want = values(&tokens(&v, 0, 4).mean(1).expect("a mean"));
    assert_close(&mean[3 * 16..3 * 16 + 8], &want, 1e-6);

    let tracked = Var::from_tensor(&q).expect("a variable");
    let said = spec_error(popcount.forward(&tracked, &k, &v, None, None), "an input of popcount scores");
    assert!(said.contains("detach it"), "{said}");
    popcount.forward(&tracked.detach(), &k, &v, None, None).expect("y");
    let learned = Var::from_tensor(&normal(&mut rng, &[4, 4])).expect("a variable");
    let mask = Some(AttentionMask::Dense(&learned));
    spec_error(popcount.forward(&q, &k, &v, None, mask), "a mask of popcount scores");
}
