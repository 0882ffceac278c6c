//! `Attention` with a `KvCache` of every precision and selection.

use candle_core::{Device, Tensor};
use trike_candle::{
    Attention, AttentionMask, AttentionScores, AttentionSpec, BlockBitmap, CandleError, KeySelector, KvCache,
    KvPrecision, NnError, PromptKeys, shared_cpu,
};
use trike_cpu::{CpuOps, KeyIndex, KeyScratch, KeySelection, KvBuffer, KvView};
use trike_testkit::{Rng, assert_all_near};

use super::{close, normal, softmax_attention, spec_error, tokens, values};

fn spec(heads: usize, kv_heads: usize, head_dim: usize, window: Option<usize>) -> AttentionSpec {
    AttentionSpec { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), window }
}

fn inputs(rng: &mut Rng, spec: &AttentionSpec, batch: usize, tokens: usize) -> [Tensor; 3] {
    let widths = [spec.heads, spec.kv_heads, spec.kv_heads].map(|heads| heads * spec.head_dim);
    widths.map(|width| normal(rng, &[batch, tokens, width]))
}

/// Keys or values as a cache of this precision stores them.
fn stored(x: &Tensor, precision: KvPrecision, head_dim: usize) -> Tensor {
    let mut buffer = KvBuffer::new(precision, 1, head_dim).expect("a buffer");
    let mut all = values(x);
    for vector in all.chunks_exact_mut(head_dim) {
        buffer.write(0, vector).expect("a vector");
        buffer.read(0, vector).expect("a vector");
    }
    Tensor::from_vec(all, x.shape(), &Device::Cpu).expect("a tensor")
}

/// Runs all tokens in steps of these lengths and joins the outputs.
fn in_steps(attention: &Attention, [q, k, v]: &[Tensor; 3], cache: &mut KvCache, steps: &[usize]) -> Tensor {
    let mut outs = Vec::new();
    for &n in steps {
        let [q, k, v] = [q, k, v].map(|x| tokens(x, cache.len(), n));
        outs.push(attention.forward(&q, &k, &v, Some(cache), None).expect("y"));
    }
    Tensor::cat(&outs, 1).expect("y")
}

/// The maximum norm of a vector of `head_dim` elements.
fn largest_norm(x: &Tensor, head_dim: usize) -> f32 {
    let norm = |vector: &[f32]| vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    values(x).chunks_exact(head_dim).map(norm).fold(0.0, f32::max)
}

/// Heads, key/value heads, `head_dim`, window, capacity, lengths of the steps.
type Case = (usize, usize, usize, Option<usize>, usize, &'static [usize]);

/// The kernels compared with Candle's softmax over the same rounded keys and values, and with exact ones: if keys are off by at
/// most `e`, scores are off by `delta = scale |q| e`, so weights change by factors within `exp(+-2 delta)`.
#[test]
fn every_precision_attends_to_what_it_stores() {
    let mut rng = Rng::new(51);
    // Odd heads, groups of 1, 3 and 6 heads, windows, wrapping ring buffers, contexts longer than those read in f32.
    let cases: [Case; 5] = [
        (6, 6, 8, None, 24, &[7, 1, 1, 9, 6]),
        (6, 2, 64, None, 30, &[24]),
        (6, 1, 5, Some(6), 12, &[6, 1, 1, 7, 1, 7, 1]),
        (2, 2, 80, Some(20), 26, &[7, 7, 7, 1, 1, 7, 7]),
        (4, 2, 32, None, 420, &[300, 100, 1, 1]),
    ];
    for (heads, kv_heads, d, window, capacity, steps) in cases {
        let spec = spec(heads, kv_heads, d, window);
        let attention = Attention::new(spec).expect("valid");
        let all = inputs(&mut rng, &spec, 2, steps.iter().sum());
        let [q, k, v] = &all;
        let exact = softmax_attention(q, k, v, &spec, true, None).expect("y");
        for precision in KvPrecision::ALL {
            let mut cache = KvCache::new(2, kv_heads, d, capacity, precision).expect("a cache");
            assert_eq!(cache.bytes(), 2 * kv_heads * capacity * precision.bytes_per_position(d));
            let got = in_steps(&attention, &all, &mut cache, steps);
            let (k_stored, v_stored) = (stored(k, precision.key(), d), stored(v, precision.value(), d));
            let want = softmax_attention(q, &k_stored, &v_stored, &spec, true, None).expect("y");
            // The arithmetic alone: f32, or 16-bit integers for steps of many tokens.
            close(&got, &want, if precision == KvPrecision::F32 { 1e-5 } else { 6e-4 });

            let off = |a: &Tensor, b: &Tensor| largest_norm(&(a - b).expect("a difference"), d);
            let delta = spec.scale * largest_norm(q, d) * off(k, &k_stored);
            let bound = ((2.0 * delta).exp() - 1.0) * largest_norm(v, d) + off(v, &v_stored);
            assert_all_near!(&values(&got), &values(&exact), abs = bound + 1e-3);
        }
    }
}

#[test]
fn a_mask_of_everything_changes_nothing_in_any_cache() {
    let mut rng = Rng::new(52);
    let spec = spec(6, 2, 16, None);
    let attention = Attention::new(spec).expect("valid");
    let [q, k, v] = inputs(&mut rng, &spec, 2, 100);
    let blocks = |positions| BlockBitmap::from_fn(2, positions, |_, _, _| true).expect("a mask");
    for precision in KvPrecision::ALL {
        let mut outs = Vec::new();
        for which in 0..3 {
            let mut cache = KvCache::new(2, 2, 16, 100, precision).expect("a cache");
            for (first, n) in [(0, 90), (90, 1), (91, 9)] {
                let [q, k, v] = [&q, &k, &v].map(|x| tokens(x, first, n));
                let ones = Tensor::ones((n, first + n), candle_core::DType::U8, &Device::Cpu).expect("ones");
                let blocks = blocks(first..first + n);
                let mask = [None, Some(AttentionMask::Dense(&ones)), Some(AttentionMask::Blocks(&blocks))];
                let out = attention.forward(&q, &k, &v, Some(&mut cache), mask[which]).expect("y");
                outs.push((which, n, out));
            }
        }
        for i in 0..3 {
            close(&outs[3 + i].2, &outs[i].2, 6e-4);
            close(&outs[6 + i].2, &outs[i].2, 6e-4);
        }
    }
}

/// Bit-identical to `CpuOps::attention_selected` and `CpuOps::attention_masked` over the same keys and values.
#[test]
fn selected_keys_and_blocks_are_those_of_the_kernels() {
    let (mut rng, cpu) = (Rng::new(53), shared_cpu().expect("threads"));
    let (spec, n) = (spec(4, 2, 64, None), 700);
    let attention = Attention::new(spec).expect("valid").with_cpu(cpu.clone());
    let all = inputs(&mut rng, &spec, 1, n);
    let (selector, prompt_keys) =
        (KeySelector::signs(40).expect("a count"), PromptKeys::sampled(0.4).expect("a share"));
    for precision in KvPrecision::ALL {
        let buffer = |precision| KvBuffer::new(precision, 2 * n, 64).expect("a buffer");
        let mut stores = [buffer(precision.key()), buffer(precision.value())];
        for (store, x) in stores.iter_mut().zip(&all[1..]) {
            for (row, vector) in values(x).chunks_exact(64).enumerate() {
                store.write(row % 2 * n + row / 2, vector).expect("a vector");
            }
        }
        let kv = KvView { k: stores[0].view(), v: stores[1].view(), capacity: n };
        let (mut index, mut scratch) = (KeyIndex::new(2, 64, n).expect("an index"), KeyScratch::default());
        let selection = KeySelection { selector, index: &mut index, scratch: &mut scratch };
        let q = values(&all[0]);
        let (prompt, token) = q.split_at((n - 1) * 256);
        let mut want = vec![f32::NAN; q.len()];
        let (want_prompt, want_token) = want.split_at_mut((n - 1) * 256);
        cpu.attention_selected(&spec, token, n - 1, kv, selection, want_token).expect("y");
        let mask = cpu.choose_blocks(&spec, prompt, 0, kv, prompt_keys).expect("blocks").expect("some");
        cpu.attention_masked(&spec, prompt, 0, kv, &mask, want_prompt).expect("y");

        let cache = || KvCache::new(1, 2, 64, n, precision).expect("a cache");
        let mut selected = cache().with_keys(selector).expect("an index");
        assert!(selected.bytes() > cache().bytes());
        selected = selected.with_prompt_keys(prompt_keys).expect("a selection");
        let got = in_steps(&attention, &all, &mut selected, &[n - 1, 1]);
        assert_eq!(values(&got), want, "{precision:?}");
        // Selection has an effect: exact attention gives different bits.
        let exact = in_steps(&attention, &all, &mut cache(), &[n - 1, 1]);
        assert_ne!(values(&tokens(&exact, 0, n - 1)), want[..(n - 1) * 256]);
        assert_ne!(values(&tokens(&exact, n - 1, 1)), want[(n - 1) * 256..]);
        // A selection of all keys is exact.
        let wide = KeySelector::signs(n).expect("a count");
        let mut every = cache().with_keys(wide).expect("an index");
        assert_eq!(values(&in_steps(&attention, &all, &mut every, &[n - 1, 1])), values(&exact));
    }
}

#[test]
fn truncated_positions_are_computed_again() {
    let mut rng = Rng::new(54);
    let spec = spec(4, 2, 64, None);
    let all = inputs(&mut rng, &spec, 2, 300);
    let new = |precision| KvCache::new(2, 2, 64, 320, precision).expect("a cache");
    for precision in KvPrecision::ALL {
        for which in 0..3 {
            let selector = KeySelector::signs(20).expect("a count");
            let scores = if which == 2 { AttentionScores::Popcount } else { AttentionScores::Exact };
            let empty = match which {
                1 => new(precision).with_keys(selector).expect("an index"),
                _ => new(precision).with_scores(scores).expect("a cache"),
            };
            let attention = Attention::new(spec).expect("valid").with_scores(scores);
            // A token selected by its code follows five that are always attended to.
            let singles = [1; 10];
            let whole = in_steps(&attention, &all, &mut empty.clone(), &[&[290], &singles[..]].concat());
            for before in [&[290, 1, 1][..], &[200], &[]] {
                let (len, mut other) = (before.iter().sum(), empty.clone());
                for n in before {
                    in_steps(&attention, &all, &mut other, &[*n]);
                }
                // The truncated tokens are dropped with their codes; their keys are longer than all others.
                let garbage = inputs(&mut rng, &spec, 2, 8).map(|x| (x * 10.0).expect("long vectors"));
                let [q, k, v] = &garbage;
                for (first, n) in [(0, 7), (7, 1)] {
                    let [q, k, v] = [q, k, v].map(|x| tokens(x, first, n));
                    attention.forward(&q, &k, &v, Some(&mut other), None).expect("y");
                }
                other.truncate(len).expect("fewer");
                let steps = match len {
                    292 => singles[2..].to_vec(),
                    len => [&[290 - len], &singles[..]].concat(),
                };
                let again = in_steps(&attention, &all, &mut other, &steps);
                close(&again, &tokens(&whole, len, 300 - len), 6e-4);
            }
        }
    }
}

#[test]
fn a_rolling_cache_truncates_as_far_as_its_window_is_there() {
    let mut rng = Rng::new(55);
    let spec = spec(2, 1, 4, Some(4));
    let attention = Attention::new(spec).expect("valid");
    let all = inputs(&mut rng, &spec, 1, 20);
    let mut cache = KvCache::new(1, 1, 4, 8, KvPrecision::F32).expect("a cache");
    let whole = in_steps(&attention, &all, &mut cache, &[5; 4]);
    // Positions 12 to 19 are stored; the token at 15 attends to 12 to 15.
    let refused = |cache: &mut KvCache, len| {
        let error = cache.truncate(len).expect_err("a refusal");
        assert!(matches!(error, CandleError::Nn(NnError::Truncate { oldest: 12, .. })), "{error}");
    };
    refused(&mut cache, 14);
    refused(&mut cache, 21);
    refused(&mut cache, usize::MAX);
    cache.truncate(15).expect("there");
    close(&in_steps(&attention, &all, &mut cache, &[2]), &tokens(&whole, 15, 2), 1e-5);
    // Position 9 was overwritten by position 17.
    refused(&mut cache, 12);
    assert_eq!(cache.len(), 17);
    // A wider window than before would include overwritten positions.
    let wide = Attention::new(AttentionSpec { window: Some(7), ..spec }).expect("valid");
    let [q, k, v] = all.each_ref().map(|x| tokens(x, 0, 1));
    let wider = wide.forward(&q, &k, &v, Some(&mut cache), None);
    assert!(matches!(wider, Err(CandleError::Nn(NnError::Truncate { requested: 17, oldest: 12 }))));
    // Truncating to the start is always possible.
    cache.truncate(0).expect("nothing");
    close(&in_steps(&attention, &all, &mut cache, &[5]), &tokens(&whole, 0, 5), 1e-5);
}

#[test]
fn what_a_cache_cannot_do_is_refused_by_name() {
    let mut rng = Rng::new(56);
    let spec = spec(4, 2, 8, None);
    let attention = Attention::new(spec).expect("valid");
    let popcount = attention.clone().with_scores(AttentionScores::Popcount);
    let new = || KvCache::new(1, 2, 8, 16, KvPrecision::Int8).expect("a cache");
    let trits = || new().with_scores(AttentionScores::Popcount).expect("trits");
    assert_eq!((new().scores(), trits().scores()), (AttentionScores::Exact, AttentionScores::Popcount));
    assert_eq!((trits().precision(), trits().capacity()), (KvPrecision::Int8, 16));
    let [q, k, v] = &inputs(&mut rng, &spec, 1, 3);
    let step = |attention: &Attention, cache: &mut KvCache| attention.forward(q, k, v, Some(cache), None);
    let said = spec_error(step(&attention, &mut trits()), "scores of a cache");
    assert_eq!(said, "scores of a cache must be exact, as those of the attention, got popcount");
    let said = spec_error(step(&popcount, &mut new()), "scores of a cache");
    assert_eq!(said, "scores of a cache must be popcount, as those of the attention, got exact");
    let both = attention.clone().bidirectional().expect("no window");
    spec_error(step(&both, &mut new()), "attention with a cache");

    let signs = KeySelector::signs(4).expect("a count");
    let sampled = PromptKeys::sampled(0.5).expect("a share");
    let said = spec_error(trits().with_keys(signs), "selector of keys");
    assert_eq!(said, "selector of keys must be all of them with popcount scores, got signs");
    spec_error(trits().with_prompt_keys(sampled), "selector of keys of prompts");
    let selects = new().with_keys(signs).expect("an index");
    spec_error(selects.with_scores(AttentionScores::Popcount), "selectors of keys");
    let selects = new().with_prompt_keys(sampled).expect("a selection");
    spec_error(selects.with_scores(AttentionScores::Popcount), "selectors of keys");
    trits().with_keys(KeySelector::All).expect("nothing to select");
    trits().with_prompt_keys(PromptKeys::All).expect("nothing to select");
    let exact = trits().with_scores(AttentionScores::Exact).expect("exact");
    assert_eq!(exact.bytes(), new().bytes());
    let all = new().with_keys(signs).and_then(|cache| cache.with_keys(KeySelector::All)).expect("no index");
    assert_eq!(all.bytes(), new().bytes());

    let long = KvCache::new(1, 1, 1025, 4, KvPrecision::F16).expect("a cache");
    let error = long.with_keys(signs).expect_err("a long head").to_string();
    assert_eq!(error, "head_dim of a key index: expected 1 to 1024, got 1025");
}
