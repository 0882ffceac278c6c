//! Normalization, positions, gates and attention on every instruction set, compared with f64 oracles.

use crate::common::{bits, cpus, describe};
use half::f16;
use trike_cpu::{
    AttentionSpec, Cpu, CpuError, CpuOps, GatedActivation, KvData, KvView, RopePairing, RopeTable,
};
use trike_testkit::{Rng, assert_close, assert_near};

const BOUND: f32 = 1e-5;

#[test]
fn a_thousand_random_norms() {
    let (cpus, mut rng) = (cpus(), Rng::new(1));
    for _ in 0..1000 {
        let (rows, cols) = (1 + rng.below(6), 1 + rng.below(300));
        let (x, weight) = (rng.normals(rows * cols), rng.normals(cols));
        let mut want = Vec::new();
        for x in x.chunks(cols) {
            let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / cols as f64;
            want.extend(
                x.iter().zip(&weight).map(|(&x, &w)| (f64::from(x) / (mean + 1e-5).sqrt()) as f32 * w),
            );
        }
        let mut first = Vec::new();
        for cpu in &cpus {
            let mut out = vec![f32::NAN; x.len()];
            cpu.rms_norm(&x, &weight, 1e-5, &mut out).expect("valid");
            assert_close(&out, &want, BOUND);
            first = if first.is_empty() { out.clone() } else { first };
            assert_eq!(bits(&out), bits(&first), "{}", describe(cpu));
        }
    }
}

#[test]
fn norms_refuse_wrong_lengths() {
    let cpu = Cpu::new(1).expect("one thread");
    for (len, good) in [(3, false), (4, true), (5, false), (8, true)] {
        assert_eq!(
            cpu.rms_norm(&[1.0; 8][..len], &[1.0; 4], 0.0, &mut [0.0; 8][..len]).is_ok(),
            good,
            "{len}"
        );
    }
    assert!(matches!(cpu.rms_norm(&[1.0; 4], &[], 0.0, &mut [0.0; 4]), Err(CpuError::NotMultiple { .. })));
    assert!(matches!(cpu.rms_norm(&[1.0; 4], &[1.0; 4], 0.0, &mut [0.0; 5]), Err(CpuError::Length { .. })));
}

#[test]
fn a_thousand_random_gates_and_sums() {
    let (cpus, mut rng) = (cpus(), Rng::new(2));
    for case in 0..1000 {
        let n = 1 + rng.below(300);
        let scale = [0.1, 1.0, 10.0, 100.0][case % 4];
        let (gate, up) = (rng.normals(n).iter().map(|v| v * scale).collect::<Vec<f32>>(), rng.normals(n));
        for (kind, gated) in [
            (GatedActivation::SiLu, (|g: f64| g / (1.0 + (-g).exp())) as fn(f64) -> f64),
            (GatedActivation::SquaredReLu, |g| g.max(0.0).powi(2)),
        ] {
            let want: Vec<f32> =
                gate.iter().zip(&up).map(|(&g, &u)| (gated(f64::from(g)) * f64::from(u)) as f32).collect();
            for cpu in &cpus {
                let mut out = vec![f32::NAN; n];
                cpu.gated(&gate, &up, kind, &mut out).expect("valid");
                assert_close(&out, &want, BOUND);
            }
        }
        let want: Vec<f32> = gate.iter().zip(&up).map(|(g, u)| g + u).collect();
        for cpu in &cpus {
            let mut x = gate.clone();
            cpu.add(&mut x, &up).expect("valid");
            assert_eq!(x, want);
        }
    }
}

#[test]
fn gates_pass_nan_and_refuse_wrong_lengths() {
    for cpu in cpus() {
        for kind in [GatedActivation::SiLu, GatedActivation::SquaredReLu] {
            let mut out = [0.0; 2];
            cpu.gated(&[f32::NAN, -200.0], &[1.0; 2], kind, &mut out).expect("valid");
            assert!(out[0].is_nan(), "{}: {out:?}", describe(&cpu));
            assert_near!(out[1], 0.0, abs = 1e-30, "{}", describe(&cpu));
            assert!(cpu.gated(&[1.0; 2], &[1.0; 3], kind, &mut [0.0; 2]).is_err());
            assert!(cpu.gated(&[1.0; 2], &[1.0; 2], kind, &mut [0.0; 1]).is_err());
        }
        assert!(cpu.add(&mut [0.0; 2], &[0.0; 3]).is_err());
    }
}

#[test]
fn a_thousand_random_rotations() {
    let (cpus, mut rng) = (cpus(), Rng::new(3));
    for case in 0..1000 {
        let (heads, half) = (1 + rng.below(4), 1 + rng.below(20));
        let (rotated, head_dim) = (2 * half, 2 * half + rng.below(3));
        let positions: Vec<u32> = (0..1 + rng.below(5)).map(|_| rng.below(5000) as u32).collect();
        let table = RopeTable::new(rotated, 10_000.0).expect("valid");
        let table = if case % 3 == 0 { table.precompute(2500) } else { table };
        let x = rng.normals(positions.len() * heads * head_dim);
        for pairing in [RopePairing::Adjacent, RopePairing::Halves] {
            let mut want = x.clone();
            for (token, position) in want.chunks_mut(heads * head_dim).zip(&positions) {
                for head in token.chunks_mut(head_dim) {
                    for i in 0..half {
                        let (a, b) =
                            if pairing == RopePairing::Adjacent { (2 * i, 2 * i + 1) } else { (i, i + half) };
                        // The angle is f32 by definition; everything after it is exact here.
                        let frequency = 10_000f64.powf(-((2 * i) as f64) / rotated as f64) as f32;
                        let (sin, cos) = f64::from(*position as f32 * frequency).sin_cos();
                        let (u, v) = (f64::from(head[a]), f64::from(head[b]));
                        head[a] = (u * cos - v * sin) as f32;
                        head[b] = (u * sin + v * cos) as f32;
                    }
                }
            }
            for cpu in &cpus {
                let mut got = x.clone();
                cpu.rope(&mut got, heads, head_dim, &positions, &table, pairing).expect("valid");
                assert_close(&got, &want, BOUND);
            }
        }
    }
}

#[test]
fn rotations_refuse_what_does_not_fit() {
    for (rotated, good) in [(0, false), (1, false), (2, true), (3, false), (4, true)] {
        assert_eq!(RopeTable::new(rotated, 10_000.0).is_ok(), good, "{rotated}");
    }
    for theta in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(matches!(RopeTable::new(4, theta), Err(CpuError::NonFiniteParameter { .. })));
    }
    assert!(RopeTable::from_frequencies(Vec::new()).is_err());
    assert!(RopeTable::from_frequencies(vec![1.0, f32::NAN]).is_err());
    let (cpu, table) = (Cpu::new(1).expect("one thread"), RopeTable::new(4, 10_000.0).expect("valid"));
    for (head_dim, len, good) in [(3, 6, false), (4, 8, true), (5, 10, true), (4, 7, false), (4, 9, false)] {
        let mut x = vec![1.0; len];
        let result = cpu.rope(&mut x, 2, head_dim, &[3], &table, RopePairing::Halves);
        assert_eq!(result.is_ok(), good, "{head_dim} {len}: {result:?}");
    }
    assert!(cpu.rope(&mut [], usize::MAX, 8, &[1], &table, RopePairing::Halves).is_err());
    assert!(cpu.rope(&mut [], 4, 8, &[], &table, RopePairing::Halves).is_ok());
}

/// Bound for several rows from position 256 on over an f16 cache: queries, keys, values and weights are rounded to 16-bit
/// integers, with about the error of f16 (`2^-11`).
const BOUND_OF_INTS: f32 = 6e-4;

/// Keys and values at every position, and the ring that holds the last ones.
struct Cache {
    k: Vec<f32>,
    v: Vec<f32>,
    ring_k: Vec<f32>,
    ring_v: Vec<f32>,
}

impl Cache {
    fn new(rng: &mut Rng, problem: &AttentionSpec, positions: usize, capacity: usize) -> Self {
        let (heads, d) = (problem.kv_heads, problem.head_dim);
        // Values that f16 represents exactly, so that one oracle serves both.
        let mut halves = |n: usize| -> Vec<f32> {
            rng.normals(n).into_iter().map(|v| f16::from_f32(v).to_f32()).collect()
        };
        let (k, v) = (halves(heads * positions * d), halves(heads * positions * d));
        let ring = |all: &[f32]| {
            // Slots that were never written are poisoned.
            let mut ring = vec![f32::NAN; heads * capacity * d];
            for head in 0..heads {
                for p in 0..positions {
                    let (from, to) = ((head * positions + p) * d, (head * capacity + p % capacity) * d);
                    ring[to..to + d].copy_from_slice(&all[from..from + d]);
                }
            }
            ring
        };
        let (ring_k, ring_v) = (ring(&k), ring(&v));
        Self { k, v, ring_k, ring_v }
    }

    fn oracle(&self, problem: &AttentionSpec, q: &[f32], first: usize) -> Vec<f32> {
        let (heads, d) = (problem.heads, problem.head_dim);
        let positions = self.k.len() / problem.kv_heads / d;
        let mut out = Vec::new();
        for (i, q) in q.chunks(d).enumerate() {
            let (p, kv_head) = (first + i / heads, i % heads * problem.kv_heads / heads);
            let start = problem.window.map_or(0, |window| (p + 1).saturating_sub(window));
            let row = |all: &'_ [f32], p: usize| all[(kv_head * positions + p) * d..][..d].to_vec();
            let dot = |k: Vec<f32>| k.iter().zip(q).map(|(&k, &q)| f64::from(k) * f64::from(q)).sum::<f64>();
            let weights: Vec<f64> =
                (start..=p).map(|p| (dot(row(&self.k, p)) * f64::from(problem.scale)).exp()).collect();
            let mut sum = vec![0f64; d];
            for (weight, p) in weights.iter().zip(start..) {
                sum.iter_mut().zip(row(&self.v, p)).for_each(|(s, v)| *s += weight * f64::from(v));
            }
            out.extend(sum.iter().map(|s| (s / weights.iter().sum::<f64>()) as f32));
        }
        out
    }
}

#[test]
fn a_thousand_random_attentions() {
    let (cpus, mut rng) = (cpus(), Rng::new(4));
    for case in 0..1000 {
        let (kv_heads, share, d) = (1 + rng.below(3), 1 + rng.below(3), 1 + rng.below(140));
        let window = (rng.below(2) == 0).then(|| 1 + rng.below(20));
        let scale = 1.0 / (d as f32).sqrt();
        let problem = AttentionSpec { heads: kv_heads * share, kv_heads, head_dim: d, scale, window };
        let (first, tokens) = (rng.below(40), 1 + rng.below(5));
        let needed = first + tokens - problem.span(first).start;
        let capacity = needed + rng.below(4);
        let cache = Cache::new(&mut rng, &problem, first + tokens, capacity);
        let q = rng.normals(tokens * problem.heads * d);
        let want = cache.oracle(&problem, &q, first);
        let half = |x: &[f32]| x.iter().map(|&v| f16::from_f32(v)).collect::<Vec<f16>>();
        let (half_k, half_v) = (half(&cache.ring_k), half(&cache.ring_v));
        let k = if case % 2 == 0 { KvData::F32(&cache.ring_k) } else { KvData::F16(&half_k) };
        let v = if case % 4 < 2 { KvData::F32(&cache.ring_v) } else { KvData::F16(&half_v) };
        for cpu in &cpus {
            let mut out = vec![f32::NAN; q.len()];
            cpu.attention(&problem, &q, first, KvView { k, v, capacity }, &mut out).expect("valid");
            assert_close(&out, &want, BOUND);
        }
    }
}

#[test]
fn attention_over_many_blocks() {
    let (cpus, mut rng) = (cpus(), Rng::new(6));
    // Few rows over several chunks, whole panels and partial ones, more heads in a group than a panel has rows, and windows that
    // begin and end within blocks; the ring has the smallest possible capacity, so that it wraps.
    for (kv_heads, share, d, tokens, first, window) in [
        (2, 4, 128, 1, 700, None),
        (2, 5, 64, 1, 900, Some(513)),
        (1, 3, 40, 2, 600, Some(300)),
        (2, 4, 128, 30, 50, None),
        (1, 1, 64, 150, 0, None),
        (1, 1, 80, 70, 1000, Some(100)),
        (2, 2, 33, 20, 500, Some(65)),
        (1, 4, 16, 90, 300, Some(1)),
        (1, 71, 32, 3, 90, None),
        (3, 7, 96, 25, 64, Some(64)),
    ] {
        let scale = 1.0 / (d as f32).sqrt();
        let problem = AttentionSpec { heads: kv_heads * share, kv_heads, head_dim: d, scale, window };
        let capacity = first + tokens - problem.span(first).start;
        let cache = Cache::new(&mut rng, &problem, first + tokens, capacity);
        let half = |x: &[f32]| x.iter().map(|&v| f16::from_f32(v)).collect::<Vec<f16>>();
        let (half_k, half_v) = (half(&cache.ring_k), half(&cache.ring_v));
        let q = rng.normals(tokens * problem.heads * d);
        let want = cache.oracle(&problem, &q, first);
        let in_ints = tokens > 1 && first + tokens > 256;
        let half_bound = if in_ints { BOUND_OF_INTS } else { BOUND };
        for cpu in &cpus {
            for (k, v, bound) in [
                (KvData::F32(&cache.ring_k), KvData::F32(&cache.ring_v), BOUND),
                (KvData::F16(&half_k), KvData::F16(&half_v), half_bound),
            ] {
                let mut out = vec![f32::NAN; q.len()];
                cpu.attention(&problem, &q, first, KvView { k, v, capacity }, &mut out).expect("valid");
                assert_close(&out, &want, bound);
            }
        }
    }
}

#[test]
fn what_a_query_does_not_see_does_not_reach_it() {
    let mut rng = Rng::new(7);
    for (share, tokens, window) in [(1, 8, Some(3)), (4, 40, Some(10)), (4, 40, None), (60, 3, None)] {
        let problem = AttentionSpec { heads: share, kv_heads: 1, head_dim: 24, scale: 0.2, window };
        let cache = Cache::new(&mut rng, &problem, 100, 100);
        let q = rng.normals(tokens * share * 24);
        let first = 100 - tokens;
        let want = cache.oracle(&problem, &q, first);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [first, first + tokens / 2, 99] {
                let (mut k, mut v) = (cache.ring_k.clone(), cache.ring_v.clone());
                k[at * 24] = bad;
                v[at * 24 + 3] = bad;
                let kv = KvView { k: KvData::F32(&k), v: KvData::F32(&v), capacity: 100 };
                for cpu in cpus() {
                    let mut out = vec![0.0; q.len()];
                    cpu.attention(&problem, &q, first, kv, &mut out).expect("valid");
                    for (row, (out, want)) in out.chunks(24).zip(want.chunks(24)).enumerate() {
                        if problem.span(first + row / share).contains(&at) {
                            assert!(
                                !out[3].is_finite() || bad.is_infinite(),
                                "{bad} at {at}, row {row}: {out:?}"
                            );
                        } else {
                            assert_close(out, want, BOUND);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn attention_threads_change_no_bit() {
    let mut rng = Rng::new(5);
    let problem = AttentionSpec { heads: 6, kv_heads: 3, head_dim: 64, scale: 0.125, window: Some(50) };
    let cache = Cache::new(&mut rng, &problem, 130, 100);
    let q = rng.normals(40 * 6 * 64);
    // One token, few rows, and blocks of rows.
    let kv = KvView { k: KvData::F32(&cache.ring_k), v: KvData::F32(&cache.ring_v), capacity: 100 };
    for isa in trike_cpu::Isa::available() {
        for tokens in [1, 3, 40] {
            let q = &q[..tokens * 6 * 64];
            let outs = [1, 2, 5].map(|threads| {
                let cpu = Cpu::with_isa(isa, threads).expect("a few threads");
                // Repeated, because the number of parts depends on whether the workers are awake.
                let outs = [(); 3].map(|()| {
                    let mut out = vec![f32::NAN; q.len()];
                    cpu.attention(&problem, q, 90, kv, &mut out).expect("valid");
                    out
                });
                assert!(outs.iter().all(|out| bits(out) == bits(&outs[0])), "{isa} with {threads}");
                outs
            });
            assert!(outs.iter().all(|outs_of| bits(&outs_of[0]) == bits(&outs[0][0])), "{isa}");
            assert_close(&outs[0][0], &cache.oracle(&problem, q, 90), BOUND);
        }
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let problem = AttentionSpec { heads: 1, kv_heads: 1, head_dim: 2, scale: 1.0, window: None };
    let (k, v) = ([1e3, 0.0, -1e3, 0.0], [1.0, 2.0, 3.0, 4.0]);
    let kv = KvView { k: KvData::F32(&k), v: KvData::F32(&v), capacity: 2 };
    for cpu in cpus() {
        let mut out = [f32::NAN; 2];
        cpu.attention(&problem, &[1e3, 0.0], 1, kv, &mut out).expect("valid");
        assert_eq!(out, [1.0, 2.0], "{}", describe(&cpu));
        cpu.attention(&problem, &[f32::NAN, 0.0], 1, kv, &mut out).expect("valid");
        assert!(out.iter().all(|v| v.is_nan()), "NaN is passed on: {out:?}");
    }
}

#[test]
fn attention_refuses_what_does_not_fit() {
    let cpu = Cpu::new(1).expect("one thread");
    let problem = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 2, scale: 1.0, window: None };
    let attend = |problem: AttentionSpec, tokens: usize, first: usize, capacity: usize, kv_len: usize| {
        let kv = vec![0.0; kv_len];
        let kv = KvView { k: KvData::F32(&kv), v: KvData::F32(&kv), capacity };
        cpu.attention(&problem, &vec![0.0; tokens * 8], first, kv, &mut vec![0.0; tokens * 8])
    };
    for (tokens, first, good) in [(1, 4, true), (2, 4, true), (1, 5, true), (3, 4, false), (1, 6, false)] {
        assert_eq!(attend(problem, tokens, first, 6, 24).is_ok(), good, "{tokens} from {first}");
    }
    let error = attend(problem, 1, 6, 6, 24).expect_err("seven positions in six slots");
    assert!(matches!(error, CpuError::KvCapacity { needed: 7, capacity: 6 }), "{error}");
    // A window drops old positions, but the first of several queries still needs its own.
    let windowed = AttentionSpec { window: Some(4), ..problem };
    for (tokens, good) in [(1, true), (3, true), (4, false)] {
        assert_eq!(attend(windowed, tokens, 100, 6, 24).is_ok(), good, "{tokens} tokens in a window of 4");
    }
    for len in [23, 25] {
        assert!(matches!(attend(problem, 1, 0, 6, len), Err(CpuError::Length { expected: 24, .. })));
    }
    for (heads, kv_heads, good) in [(4, 1, true), (4, 2, true), (4, 3, false), (4, 0, false), (4, 5, false)] {
        let problem = AttentionSpec { heads, kv_heads, ..problem };
        assert_eq!(attend(problem, 1, 0, 6, 12 * kv_heads).is_ok(), good, "{heads} over {kv_heads}");
    }
    for problem in [AttentionSpec { heads: 0, ..problem }, AttentionSpec { head_dim: 0, ..problem }] {
        assert!(matches!(attend(problem, 1, 0, 6, 24), Err(CpuError::Range { .. })));
    }
    assert!(attend(AttentionSpec { window: Some(0), ..problem }, 1, 0, 6, 24).is_err());
    assert!(attend(problem, 1, usize::MAX, 6, 24).is_err());
    assert!(attend(problem, 1, 0, usize::MAX, 24).is_err());
    assert!(attend(problem, 0, 0, 6, 24).is_ok(), "no queries");
}
