//! Distributions, filters compared with their definitions, penalties, refusals.

use super::*;

const LOGITS: [f32; 6] = [1.0, 3.0, -2.0, 2.0, 0.5, -0.5];

fn config() -> SamplerConfig {
    SamplerConfig { temperature: 1.0, seed: 42, ..Default::default() }
}

fn draws(config: SamplerConfig, logits: &[f32], n: usize) -> Vec<u32> {
    let mut sampler = Sampler::new(config).unwrap();
    (0..n).map(|_| sampler.sample(logits, &[]).unwrap()).collect()
}

fn seen(config: SamplerConfig, logits: &[f32]) -> Vec<u32> {
    let mut ids = draws(config, logits, 4000);
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Chi-squared statistic of drawn counts for the expected probabilities.
fn chi_squared(ids: &[u32], probabilities: &[f64]) -> f64 {
    let n = ids.len() as f64;
    let count = |id: usize| ids.iter().filter(|&&i| i as usize == id).count() as f64;
    probabilities.iter().enumerate().map(|(id, p)| (count(id) - n * p).powi(2) / (n * p)).sum()
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|&l| (f64::from(l) / temperature).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

#[test]
fn draws_follow_the_distribution_at_every_temperature() {
    for temperature in [0.5, 1.0, 2.0] {
        let ids = draws(SamplerConfig { temperature, ..config() }, &LOGITS, 20_000);
        // With 5 degrees of freedom, 20.5 is exceeded for one seed in a thousand.
        let distance = chi_squared(&ids, &softmax(&LOGITS, f64::from(temperature)));
        assert!(distance < 20.5, "{temperature}: {distance}");
        let wrong = chi_squared(&ids, &softmax(&LOGITS, f64::from(temperature) * 1.2));
        assert!(wrong > 100.0, "the test must tell distributions apart: {wrong}");
    }
}

#[test]
fn filters_renormalize_what_they_keep() {
    let ids = draws(SamplerConfig { top_k: Some(3), ..config() }, &LOGITS, 20_000);
    let mut probabilities = softmax(&[1.0, 3.0, 2.0], 1.0);
    // Mapped back to ids 0, 1 and 3; with 2 degrees of freedom the bound is 13.8.
    probabilities.insert(2, 1e-12);
    assert!(ids.iter().all(|id| [0, 1, 3].contains(id)));
    assert!(chi_squared(&ids, &probabilities) < 13.8);
}

#[test]
fn every_filter_keeps_what_its_definition_says() {
    // Probabilities: 0.083, 0.614, 0.004, 0.226, 0.050, 0.019 (ids in the order of LOGITS).
    let table: [(SamplerConfig, &[u32]); 10] = [
        (config(), &[0, 1, 2, 3, 4, 5]),
        (SamplerConfig { top_k: Some(1), ..config() }, &[1]),
        (SamplerConfig { top_k: Some(3), ..config() }, &[0, 1, 3]),
        (SamplerConfig { top_k: Some(99), ..config() }, &[0, 1, 2, 3, 4, 5]),
        (SamplerConfig { top_p: 1e-6, ..config() }, &[1]),
        (SamplerConfig { top_p: 0.6, ..config() }, &[1]),
        (SamplerConfig { top_p: 0.7, ..config() }, &[1, 3]),
        (SamplerConfig { top_p: 0.9, ..config() }, &[0, 1, 3]),
        (SamplerConfig { min_p: 0.3, ..config() }, &[1, 3]),
        (SamplerConfig { min_p: 1.0, ..config() }, &[1]),
    ];
    for (config, want) in table {
        assert_eq!(seen(config.clone(), &LOGITS), want, "{config:?}");
    }
    // Temperature is applied before top-p: a flatter distribution needs more tokens to reach the same probability.
    assert_eq!(seen(SamplerConfig { temperature: 3.0, top_p: 0.7, ..config() }, &LOGITS).len(), 3);
    // Top-p is a fraction of the probability that top-k keeps.
    assert_eq!(seen(SamplerConfig { top_k: Some(2), top_p: 0.72, ..config() }, &LOGITS), [1]);
}

#[test]
fn greedy_takes_the_first_maximum() {
    let greedy = SamplerConfig::default();
    assert_eq!(draws(greedy.clone(), &[1.0, 5.0, 5.0, 5.0], 3), [1, 1, 1]);
    assert_eq!(draws(greedy.clone(), &[f32::NEG_INFINITY, -7.0], 1), [1]);
    assert_eq!(draws(greedy, &[-0.0, 0.0], 1), [0]);
    // A single candidate is chosen at any temperature, ties included.
    for narrow in [
        SamplerConfig { temperature: 9.0, top_k: Some(1), ..config() },
        SamplerConfig { temperature: 0.7, top_p: f32::MIN_POSITIVE, ..config() },
        SamplerConfig { temperature: f32::MIN_POSITIVE, top_k: Some(1), ..config() },
    ] {
        assert_eq!(draws(narrow, &[1.0, 5.0, 5.0, 5.0], 3), [1, 1, 1]);
    }
}

#[test]
fn the_penalty_lowers_recent_tokens_once_whatever_their_sign() {
    let sample = |penalty, window, logits: &[f32], history: &[u32]| {
        let config =
            SamplerConfig { repetition_penalty: penalty, repetition_window: window, ..Default::default() };
        Sampler::new(config).unwrap().sample(logits, history).unwrap()
    };
    assert_eq!(sample(1.0, 64, &[2.0, 1.5], &[0]), 0);
    assert_eq!(sample(1.5, 64, &[2.0, 1.5], &[0]), 1, "2 / 1.5 < 1.5");
    assert_eq!(sample(1.5, 64, &[-1.0, -1.4], &[0]), 1, "-1 * 1.5 < -1.4");
    assert_eq!(sample(1.5, 64, &[2.0, 1.2], &[0, 0, 0]), 0, "2 / 1.5 > 1.2: once, not thrice");
    assert_eq!(sample(1.5, 64, &[2.0, 1.5], &[]), 0);
    assert_eq!(sample(1.5, 1, &[2.0, 1.5], &[0, 1]), 0, "token 0 is out of the window");
    assert_eq!(sample(1.5, 2, &[2.0, 1.5, 1.4], &[0, 1]), 2);
    assert_eq!(sample(1.5, usize::MAX, &[2.0, 1.5], &[0]), 1);
    assert_eq!(sample(0.5, 64, &[1.0, 1.5], &[0]), 0, "below 1 it rewards");
    assert_eq!(sample(f32::MIN_POSITIVE, 64, &[f32::MAX, 1.0], &[0]), 0, "no overflow to infinity");
    assert_eq!(
        sample(f32::MAX, 64, &[f32::NEG_INFINITY, f32::MIN], &[1, 0]),
        1,
        "the forbidden stay forbidden"
    );
}

#[test]
fn penalties_count_and_a_bias_excludes() {
    let sample = |config: SamplerConfig, logits: &[f32], history: &[u32]| {
        Sampler::new(config).unwrap().sample(logits, history).unwrap()
    };
    let presence = |penalty| SamplerConfig::default().with_presence_penalty(penalty);
    assert_eq!(sample(presence(0.6), &[2.0, 1.5], &[0, 0]), 1, "2 - 0.6 < 1.5");
    assert_eq!(sample(presence(0.4), &[2.0, 1.5], &[0, 0]), 0, "once, not twice");
    assert_eq!(sample(presence(-0.6), &[1.0, 1.5], &[0]), 0, "below 0 it rewards");
    let frequency = |penalty| SamplerConfig::default().with_frequency_penalty(penalty);
    assert_eq!(sample(frequency(0.4), &[2.0, 1.5], &[0]), 0);
    assert_eq!(sample(frequency(0.4), &[2.0, 1.5], &[0, 1, 0]), 0, "2 - 0.8 > 1.5 - 0.4");
    assert_eq!(sample(frequency(0.4), &[2.0, 1.5], &[0, 0]), 1, "2 - 0.8 < 1.5");
    assert_eq!(sample(frequency(0.4).with_repetition_window(1), &[2.0, 1.5], &[0, 0]), 0);
    let bias = |bias: &[(u32, f32)]| SamplerConfig::default().with_logit_bias(bias);
    assert_eq!(sample(bias(&[(1, 0.6)]), &[2.0, 1.5], &[]), 1);
    assert_eq!(sample(bias(&[(0, f32::NEG_INFINITY)]), &[2.0, f32::MIN], &[]), 1);
    assert_eq!(
        sample(bias(&[(0, 100.0)]), &[f32::NEG_INFINITY, f32::MIN], &[]),
        1,
        "the forbidden stay forbidden"
    );
    let outside = Sampler::new(bias(&[(2, 1.0)])).unwrap().sample(&[2.0, 1.5], &[]);
    assert_eq!(outside, Err(SamplerError::HistoryOutOfRange { id: 2, vocab_size: 2 }));
    for wrong in [presence(f32::NAN), frequency(101.0), bias(&[(0, f32::INFINITY)])] {
        assert!(wrong.validate().is_err(), "{wrong:?}");
    }
    assert_eq!(bias(&[(0, 1.0)]).candidates(), None);
    assert_eq!(presence(0.1).candidates(), None);
}

#[test]
fn the_seed_alone_decides() {
    let a = draws(config(), &LOGITS, 12);
    assert_eq!(a, draws(config(), &LOGITS, 12));
    assert_ne!(a, draws(SamplerConfig { seed: 43, ..config() }, &LOGITS, 12));
    // The same on every machine: this list is part of the contract.
    assert_eq!(a, [1, 4, 1, 1, 1, 1, 1, 3, 3, 1, 1, 3]);
}

#[test]
fn a_clone_goes_on_alike() {
    let mut one = Sampler::new(config()).unwrap();
    one.sample(&LOGITS, &[]).unwrap();
    let mut two = one.clone();
    for _ in 0..20 {
        assert_eq!(one.sample(&LOGITS, &[]).unwrap(), two.sample(&LOGITS, &[]).unwrap());
    }
}

#[test]
fn broken_logits_are_errors_and_draw_nothing() {
    let mut sampler = Sampler::new(SamplerConfig { repetition_penalty: 1.1, ..config() }).unwrap();
    let mut untouched = sampler.clone();
    for (bad, at) in [(f32::NAN, 2), (f32::INFINITY, 0)] {
        let mut logits = LOGITS;
        logits[at] = bad;
        let error = sampler.sample(&logits, &[]).unwrap_err();
        assert!(
            matches!(error, SamplerError::BadLogit { index, vocab_size: 6, .. } if index == at),
            "{error}"
        );
        assert!(error.to_string().contains(&format!("logit {at} of 6 is {bad}")), "{error}");
    }
    assert_eq!(
        sampler.sample(&[f32::NEG_INFINITY; 3], &[]),
        Err(SamplerError::NoCandidate { vocab_size: 3 })
    );
    assert_eq!(sampler.sample(&[], &[]), Err(SamplerError::NoCandidate { vocab_size: 0 }));
    assert_eq!(
        sampler.sample(&LOGITS, &[1, 6]),
        Err(SamplerError::HistoryOutOfRange { id: 6, vocab_size: 6 })
    );
    assert_eq!(sampler.sample(&LOGITS, &[5]), untouched.sample(&LOGITS, &[5]));
}

#[test]
fn options_outside_their_range_are_refused_by_name() {
    let ok = SamplerConfig { temperature: f32::MAX, top_k: Some(1), top_p: 1.0, min_p: 1.0, ..config() };
    assert_eq!(ok.validate(), Ok(()));
    let table = [
        ("temperature", SamplerConfig { temperature: -0.1, ..config() }),
        ("temperature", SamplerConfig { temperature: f32::NAN, ..config() }),
        ("temperature", SamplerConfig { temperature: f32::INFINITY, ..config() }),
        ("top_k", SamplerConfig { top_k: Some(0), ..config() }),
        ("top_p", SamplerConfig { top_p: 0.0, ..config() }),
        ("top_p", SamplerConfig { top_p: 1.001, ..config() }),
        ("top_p", SamplerConfig { top_p: f32::NAN, ..config() }),
        ("min_p", SamplerConfig { min_p: -0.1, ..config() }),
        ("min_p", SamplerConfig { min_p: 1.1, ..config() }),
        ("min_p", SamplerConfig { min_p: f32::NAN, ..config() }),
        ("repetition_penalty", SamplerConfig { repetition_penalty: 0.0, ..config() }),
        ("repetition_penalty", SamplerConfig { repetition_penalty: f32::NAN, ..config() }),
        ("repetition_window", SamplerConfig { repetition_window: 0, ..config() }),
    ];
    for (name, config) in table {
        let error = Sampler::new(config).unwrap_err();
        assert!(matches!(&error, SamplerError::Option(option) if option.field() == name), "{error}");
        assert!(error.to_string().contains("expected"), "{error}");
    }
}

#[test]
fn a_large_vocabulary_gives_what_a_full_sort_gives() {
    // 128,256 logits from a small generator, so that the nucleus spans several blocks.
    let mut state = 1u32;
    let logits: Vec<f32> = (0..128_256)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 22) as f32
        })
        .collect();
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    let weights: Vec<f64> = order.iter().map(|&id| f64::from(logits[id as usize]).exp()).collect();
    let total: f64 = weights.iter().sum();
    for top_p in [0.001, 0.1, 0.5] {
        let mut sampler = Sampler::new(SamplerConfig { top_p, ..config() }).unwrap();
        sampler.sample(&logits, &[]).unwrap();
        let mut sum = 0.0;
        let size = 1 + weights
            .iter()
            .take_while(|w| {
                sum += **w;
                sum < f64::from(top_p) * total
            })
            .count();
        let mut kept: Vec<u32> = sampler.candidates.iter().map(|c| c.id).collect();
        assert_eq!(kept.len(), size, "{top_p}");
        kept.sort_unstable();
        let mut want = order[..size].to_vec();
        want.sort_unstable();
        assert_eq!(kept, want, "{top_p}");
    }
    let mut sampler = Sampler::new(SamplerConfig { top_k: Some(40), ..config() }).unwrap();
    sampler.sample(&logits, &[]).unwrap();
    let mut kept: Vec<u32> = sampler.candidates.iter().map(|c| c.id).collect();
    kept.sort_unstable();
    let mut want = order[..40].to_vec();
    want.sort_unstable();
    assert_eq!(kept, want);
}

#[test]
fn a_few_candidates_choose_as_all_of_them_do() {
    // Ties at every position, and excluded tokens.
    let logits: Vec<f32> = (0..300u32)
        .map(|i| [f32::NEG_INFINITY, 0.5, 2.0, -1.0, 2.5][(i.wrapping_mul(7919) % 5) as usize])
        .collect();
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    let top_k = |k| SamplerConfig { top_k: Some(k), ..config() };
    let table = [
        SamplerConfig::default(),
        SamplerConfig { top_k: Some(7), ..SamplerConfig::default() },
        top_k(1),
        top_k(40),
        top_k(290),
        SamplerConfig { top_p: 0.6, min_p: 0.1, ..top_k(100) },
        SamplerConfig { temperature: 3.0, ..top_k(250) },
    ];
    for config in table {
        let k = config.candidates().expect("a few decide");
        let top: Vec<(u32, f32)> = order[..k].iter().map(|&id| (id, logits[id as usize])).collect();
        let (mut all, mut few) =
            (Sampler::new(config.clone()).unwrap(), Sampler::new(config.clone()).unwrap());
        for draw in 0..100 {
            let want = all.sample(&logits, &[5]).unwrap();
            assert_eq!(few.sample_top(&top, logits.len()), Ok(want), "{config:?}, draw {draw}");
        }
    }
    let more = [config(), SamplerConfig { repetition_penalty: 1.1, ..SamplerConfig::default() }];
    assert!(more.iter().all(|config| config.candidates().is_none()));
    let mut greedy = Sampler::new(SamplerConfig::default()).unwrap();
    assert_eq!(
        greedy.sample_top(&[(9, 1.0)], 9),
        Err(SamplerError::HistoryOutOfRange { id: 9, vocab_size: 9 })
    );
    assert_eq!(greedy.sample_top(&[], 9), Err(SamplerError::NoCandidate { vocab_size: 9 }));
}
