//! Attention of several tokens from position 256 on over an f16 cache, in 16-bit integers: bit-identical on every instruction set,
//! with any number of threads and among any other tokens; all magnitudes; non-finite values.

use crate::common::{bits, cpus, describe};
use half::f16;
use trike_cpu::{AttentionSpec, Cpu, CpuOps, Isa, KvData, KvView};
use trike_testkit::{Rng, assert_close};

/// About the rounding of f16, `2^-11`.
const BOUND: f32 = 6e-4;

fn spec(kv_heads: usize, share: usize, head_dim: usize, window: Option<usize>) -> AttentionSpec {
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionSpec { heads: kv_heads * share, kv_heads, head_dim, scale, window }
}

fn halves(values: Vec<f32>) -> Vec<f16> {
    values.into_iter().map(f16::from_f32).collect()
}

/// Attention of tokens from `first` on, keys and values `[kv_heads][positions][head_dim]`.
fn attend(cpu: &Cpu, spec: &AttentionSpec, q: &[f32], first: usize, [k, v]: [&[f16]; 2]) -> Vec<f32> {
    let capacity = k.len() / spec.kv_heads / spec.head_dim;
    let mut out = vec![f32::NAN; q.len()];
    let kv = KvView { k: KvData::F16(k), v: KvData::F16(v), capacity };
    cpu.attention(spec, q, first, kv, &mut out).expect("valid");
    out
}

/// In f64, for one key/value head.
fn oracle(spec: &AttentionSpec, q: &[f32], first: usize, [k, v]: [&[f16]; 2]) -> Vec<f32> {
    let d = spec.head_dim;
    let at = |x: &[f16], p: usize, i: usize| f64::from(x[p * d + i].to_f32());
    let row = |(row, q): (usize, &[f32])| {
        let span = spec.span(first + row / spec.heads);
        let score = |p| (0..d).map(|i| f64::from(q[i]) * at(k, p, i)).sum::<f64>() * f64::from(spec.scale);
        let largest = span.clone().map(score).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = span.clone().map(|p| (score(p) - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        let sum = |i| span.clone().zip(&weights).map(|(p, w)| w * at(v, p, i)).sum::<f64>();
        (0..d).map(|i| (sum(i) / total) as f32).collect::<Vec<_>>()
    };
    q.chunks(d).enumerate().flat_map(row).collect()
}

#[test]
fn instruction_sets_threads_and_neighbours_change_no_bit() {
    let mut rng = Rng::new(31);
    for (kv_heads, share, d, tokens, window) in
        [(1, 4, 128, 60, None), (2, 3, 37, 70, Some(40)), (3, 1, 64, 130, None), (1, 9, 80, 33, Some(65))]
    {
        let spec = spec(kv_heads, share, d, window);
        // Some of the first tokens are before position 256.
        let (first, row) = (239, spec.heads * d);
        let [k, v] = [(); 2].map(|()| halves(rng.normals(kv_heads * (first + tokens) * d)));
        let q = rng.normals(tokens * row);
        let at = (256 - first) * row;
        let one = Cpu::with_isa(Isa::detect(), 1).expect("one thread");
        let want = attend(&one, &spec, &q, first, [&k, &v])[at..].to_vec();
        for isa in Isa::available() {
            for threads in [1, 2, 5] {
                let cpu = Cpu::with_isa(isa, threads).expect("a few threads");
                let all = attend(&cpu, &spec, &q, first, [&k, &v]);
                assert_eq!(bits(&all[at..]), bits(&want), "{isa}, {threads}");
                // In two calls, each too large for the f32 path.
                let cut = 28;
                let mut parts = attend(&cpu, &spec, &q[..cut * row], first, [&k, &v]);
                parts.extend(attend(&cpu, &spec, &q[cut * row..], first + cut, [&k, &v]));
                assert_eq!(bits(&parts[at..]), bits(&want), "{isa}, {threads}, in two calls");
            }
        }
    }
}

#[test]
fn every_size_of_number_fits() {
    let mut rng = Rng::new(32);
    for d in [1, 2, 15, 128, 3000] {
        let spec = spec(1, 2, d, None);
        let (tokens, positions) = (20, 300);
        let cases: [fn(usize, f32) -> f32; 6] = [
            // The largest norm for the largest element, and the maximum that rounding can add to it.
            |_, _| 1.0,
            |i, _| if i % 2 == 0 { 1.0 } else { 1.5 },
            |i, _| if i == 0 { 60_000.0 } else { 1e-3 },
            |_, x| x * 1e-7,
            |_, x| x * 1e4,
            |_, _| 0.0,
        ];
        for (n, case) in cases.into_iter().enumerate() {
            let mut make = |rows: usize| -> Vec<f32> {
                rng.normals(rows * d).into_iter().enumerate().map(|(i, x)| case(i % d, x)).collect()
            };
            let (q, k, v) = (make(tokens * 2), halves(make(positions)), halves(make(positions)));
            // Scores in the range of the softmax.
            let q: Vec<f32> = if matches!(n, 2 | 4) { q.iter().map(|x| x * 1e-9).collect() } else { q };
            let want = oracle(&spec, &q, positions - tokens, [&k, &v]);
            for cpu in cpus() {
                let out = attend(&cpu, &spec, &q, positions - tokens, [&k, &v]);
                // Relative to the values, since their means may be much smaller.
                let largest = v.iter().fold(0f32, |most, v| most.max(v.to_f32().abs()));
                let error = out.iter().zip(&want).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
                assert!(error <= BOUND * largest, "d = {d}, case {n}, {}: {error}", describe(&cpu));
                assert!(out.iter().all(|v| v.is_finite()));
            }
        }
    }
}

#[test]
fn a_fault_reaches_exactly_the_rows_that_see_it() {
    let mut rng = Rng::new(33);
    for (share, tokens, window) in [(1, 12, Some(3)), (4, 40, Some(10)), (4, 40, None), (60, 3, None)] {
        let spec = spec(1, share, 24, window);
        let first = 400 - tokens;
        let [k, v] = [(); 2].map(|()| rng.normals(400 * 24));
        let q = rng.normals(tokens * share * 24);
        let want = oracle(&spec, &q, first, [&halves(k.clone()), &halves(v.clone())]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [first, first + tokens / 2, 399] {
                for in_keys in [false, true] {
                    let (mut k, mut v) = (k.clone(), v.clone());
                    if in_keys {
                        k[at * 24 + 5] = bad;
                    } else {
                        v[at * 24 + 3] = bad;
                    }
                    let (k, v) = (halves(k), halves(v));
                    for cpu in cpus() {
                        let out = attend(&cpu, &spec, &q, first, [&k, &v]);
                        for (row, (out, want)) in out.chunks(24).zip(want.chunks(24)).enumerate() {
                            let sees = spec.span(first + row / share).contains(&at);
                            let case = || format!("{bad} at {at}, row {row}, {}: {out:?}", describe(&cpu));
                            match (sees, in_keys) {
                                (false, _) => assert_close(out, want, BOUND),
                                (true, true) => assert!(out.iter().all(|v| v.is_nan()), "{}", case()),
                                (true, false) => assert!(!out[3].is_finite(), "{}", case()),
                            }
                        }
                    }
                }
            }
        }
    }
}
