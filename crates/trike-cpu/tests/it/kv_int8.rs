//! Attention over int8 keys and values compared with an f64 oracle on the same codes.

use crate::common::{bits, cpus, describe};
use half::f16;
use trike_cpu::{AttentionSpec, Cpu, CpuError, CpuOps, KvData, KvView, quantize_head};
use trike_testkit::{Rng, assert_close};

/// Relative to the largest output. The oracle reads the same codes, so this covers only the arithmetic of the kernels.
const BOUND: f32 = 1e-4;

/// Keys or values of all slots of a ring, as codes. Slots that were never written have a scale of NaN.
struct Codes {
    codes: Vec<i8>,
    scales: Vec<f32>,
}

impl Codes {
    fn new(rng: &mut Rng, problem: &AttentionSpec, positions: usize, capacity: usize) -> Self {
        let d = problem.head_dim;
        let slots = problem.kv_heads * capacity;
        let mut all = Self { codes: vec![77; slots * d], scales: vec![f32::NAN; slots] };
        for head in 0..problem.kv_heads {
            for p in 0..positions {
                let slot = head * capacity + p % capacity;
                let mut values = rng.normals(d);
                // Different scales, and occasionally a vector of zeros.
                let size = [1.0, 0.3, 3.0, 0.0][rng.below(16).min(3)];
                values.iter_mut().for_each(|v| *v *= size);
                all.scales[slot] = quantize_head(&values, &mut all.codes[slot * d..][..d]);
            }
        }
        all
    }

    fn view(&self) -> KvData<'_> {
        KvData::Int8 { codes: &self.codes, scales: &self.scales }
    }

    /// The value of an element, in double precision.
    fn at(&self, slot: usize, i: usize) -> f64 {
        let d = self.codes.len() / self.scales.len();
        f64::from(self.codes[slot * d + i]) * f64::from(self.scales[slot])
    }

    fn floats(&self) -> Vec<f32> {
        let d = self.codes.len() / self.scales.len();
        (0..self.codes.len()).map(|i| self.at(i / d, i % d) as f32).collect()
    }
}

/// Softmax attention of one query head in f64.
fn oracle(problem: &AttentionSpec, q: &[f32], position: usize, head: usize, [k, v]: [&Codes; 2]) -> Vec<f32> {
    let d = problem.head_dim;
    let capacity = k.scales.len() / problem.kv_heads;
    let kv_head = head * problem.kv_heads / problem.heads;
    let slots: Vec<usize> = problem.span(position).map(|p| kv_head * capacity + p % capacity).collect();
    let score =
        |slot| (0..d).map(|i| f64::from(q[i]) * k.at(slot, i)).sum::<f64>() * f64::from(problem.scale);
    let weights: Vec<f64> = slots.iter().map(|&slot| score(slot).exp()).collect();
    let sum = |i| slots.iter().zip(&weights).map(|(&slot, w)| w * v.at(slot, i)).sum::<f64>();
    (0..d).map(|i| (sum(i) / weights.iter().sum::<f64>()) as f32).collect()
}

fn oracle_of_all(problem: &AttentionSpec, q: &[f32], first: usize, kv: [&Codes; 2]) -> Vec<f32> {
    let rows = q.chunks(problem.head_dim).enumerate();
    rows.flat_map(|(i, q)| oracle(problem, q, first + i / problem.heads, i % problem.heads, kv)).collect()
}

/// Key/value heads, query heads per key/value head, `head_dim`, query tokens, position of the first one, window.
type Case = (usize, usize, usize, usize, usize, Option<usize>);

/// One and several chunks of positions, every tail of a head, every remainder of a group of heads, decode and prefill, windows that
/// wrap.
const CASES: [Case; 15] = [
    (1, 1, 1, 1, 0, None),
    (2, 4, 128, 1, 700, None),
    (5, 4, 128, 1, 1100, None),
    (2, 5, 64, 1, 900, Some(513)),
    (1, 3, 40, 2, 600, Some(300)),
    (3, 2, 37, 1, 300, None),
    (2, 1, 80, 3, 260, Some(257)),
    (1, 7, 16, 1, 255, None),
    (1, 8, 15, 1, 256, Some(200)),
    (2, 4, 128, 30, 50, None),
    (1, 1, 80, 70, 1000, Some(100)),
    (2, 2, 33, 20, 500, Some(65)),
    (1, 4, 16, 90, 300, Some(1)),
    (1, 71, 32, 3, 90, None),
    (1, 2, 600, 1, 70, None),
];

fn spec((kv_heads, share, head_dim, _, _, window): Case) -> AttentionSpec {
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionSpec { heads: kv_heads * share, kv_heads, head_dim, scale, window }
}

#[test]
fn attention_follows_the_oracle() {
    let mut rng = Rng::new(16);
    for case in CASES {
        let (problem, (.., tokens, first, _)) = (spec(case), case);
        // The smallest possible capacity, so that windows wrap, and a larger one.
        let needed = first + tokens - problem.span(first).start;
        for capacity in [needed, needed + 5] {
            let [k, v] = [(); 2].map(|()| Codes::new(&mut rng, &problem, first + tokens, capacity));
            let q = rng.normals(tokens * problem.heads * problem.head_dim);
            let want = oracle_of_all(&problem, &q, first, [&k, &v]);
            for cpu in cpus() {
                let mut out = vec![f32::NAN; q.len()];
                let kv = KvView { k: k.view(), v: v.view(), capacity };
                cpu.attention(&problem, &q, first, kv, &mut out).expect("valid");
                assert_close(&out, &want, BOUND);
            }
        }
    }
}

#[test]
fn the_largest_codes_and_negative_scales_are_exact() {
    for (d, tokens) in [(128, 20), (3000, 20), (128, 1), (3000, 1)] {
        // Half of the positions have negated values, so that weights times scales would cancel.
        let problem = spec((1, 2, d, tokens, 300, None));
        let (mut k, mut v) = (
            Codes::new(&mut Rng::new(20), &problem, 320, 320),
            Codes::new(&mut Rng::new(21), &problem, 320, 320),
        );
        k.codes.fill(-128);
        for (p, scale) in v.scales.iter_mut().enumerate() {
            *scale = if p % 2 == 0 { scale.abs() } else { -scale.abs() };
        }
        let q = vec![-0.01; tokens * 2 * d];
        let want = oracle_of_all(&problem, &q, 300, [&k, &v]);
        for cpu in cpus() {
            let mut out = vec![f32::NAN; q.len()];
            let kv = KvView { k: k.view(), v: v.view(), capacity: 320 };
            cpu.attention(&problem, &q, 300, kv, &mut out).expect("valid");
            assert_close(&out, &want, 1e-3);
        }
    }
}

/// From position 256 on decoding uses integer sums, and float operations are rounded individually.
#[test]
fn decoding_gives_the_same_bits_on_every_instruction_set() {
    let mut rng = Rng::new(22);
    let mut compared = 0;
    for case in CASES {
        let (problem, (_, share, _, tokens, first, _)) = (spec(case), case);
        if tokens > 1 && tokens * share > 8 || first + tokens <= 256 {
            continue;
        }
        let capacity = first + tokens;
        let [k, v] = [(); 2].map(|()| Codes::new(&mut rng, &problem, capacity, capacity));
        let q = rng.normals(tokens * problem.heads * problem.head_dim);
        let outs = cpus().into_iter().map(|cpu| {
            let mut out = vec![f32::NAN; q.len()];
            let kv = KvView { k: k.view(), v: v.view(), capacity };
            cpu.attention(&problem, &q, first, kv, &mut out).expect("valid");
            (bits(&out), describe(&cpu))
        });
        let outs: Vec<_> = outs.collect();
        for (out, cpu) in &outs {
            assert_eq!(out, &outs[0].0, "{cpu}, {case:?}");
        }
        compared += 1;
    }
    assert!(compared > 2, "{compared}");
}

#[test]
fn mixed_precisions_are_widened() {
    let mut rng = Rng::new(17);
    let case = (2, 4, 48, 1, 300, None);
    let problem = spec(case);
    let [k, v] = [(); 2].map(|()| Codes::new(&mut rng, &problem, 301, 301));
    let (k_floats, v_floats) = (k.floats(), v.floats());
    let halves: Vec<f16> = v_floats.iter().map(|&x| f16::from_f32(x)).collect();
    let q = rng.normals(problem.heads * 48);
    let want = oracle_of_all(&problem, &q, 300, [&k, &v]);
    for cpu in cpus() {
        for (k, v, bound) in [
            (k.view(), KvData::F32(&v_floats), BOUND),
            (KvData::F32(&k_floats), v.view(), BOUND),
            // The values were rounded once more.
            (k.view(), KvData::F16(&halves), 1e-3),
        ] {
            let mut out = vec![f32::NAN; q.len()];
            cpu.attention(&problem, &q, 300, KvView { k, v, capacity: 301 }, &mut out).expect("valid");
            assert_close(&out, &want, bound);
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let mut rng = Rng::new(18);
    for case in CASES {
        let (problem, (.., tokens, first, _)) = (spec(case), case);
        let capacity = first + tokens;
        let [k, v] = [(); 2].map(|()| Codes::new(&mut rng, &problem, capacity, capacity));
        let kv = KvView { k: k.view(), v: v.view(), capacity };
        let q = rng.normals(tokens * problem.heads * problem.head_dim);
        for isa in trike_cpu::Isa::available() {
            let outs = [1, 2, 5].map(|threads| {
                let cpu = Cpu::with_isa(isa, threads).expect("a few threads");
                let mut out = vec![f32::NAN; q.len()];
                cpu.attention(&problem, &q, first, kv, &mut out).expect("valid");
                out
            });
            assert!(outs.iter().all(|out| bits(out) == bits(&outs[0])), "{isa}, {case:?}");
        }
    }
}

#[test]
fn a_fault_in_a_visible_position_is_not_hidden() {
    let mut rng = Rng::new(19);
    for tokens in [1, 12] {
        let problem = spec((1, 2, 24, tokens, 280, Some(270)));
        let [mut k, mut v] = [(); 2].map(|()| Codes::new(&mut rng, &problem, 300, 300));
        let q = rng.normals(tokens * 2 * 24);
        let want = oracle_of_all(&problem, &q, 280, [&k, &v]);
        // Once invisible to all queries, once visible to all.
        for (slot, is_seen) in [(10, false), (200, true)] {
            for part in [&mut k, &mut v] {
                part.scales[slot] = quantize_head(&[f32::INFINITY; 24], &mut [0; 24]);
            }
            for cpu in cpus() {
                let kv = KvView { k: k.view(), v: v.view(), capacity: 300 };
                let mut out = vec![0.0; q.len()];
                cpu.attention(&problem, &q, 280, kv, &mut out).expect("valid");
                if is_seen {
                    assert!(out.iter().all(|v| v.is_nan()), "{}: {out:?}", describe(&cpu));
                } else {
                    assert_close(&out, &want, BOUND);
                }
            }
        }
    }
}

#[test]
fn scales_of_another_length_are_refused() {
    let cpu = Cpu::new(1).expect("one thread");
    let problem = AttentionSpec { heads: 2, kv_heads: 2, head_dim: 3, scale: 1.0, window: None };
    for (codes, scales, good) in
        [(24, 8, true), (24, 7, false), (24, 9, false), (23, 8, false), (25, 8, false)]
    {
        let (codes, scales) = (vec![0i8; codes], vec![0.0; scales]);
        let data = KvData::Int8 { codes: &codes, scales: &scales };
        let done =
            cpu.attention(&problem, &[1.0; 6], 3, KvView { k: data, v: data, capacity: 4 }, &mut [0.0; 6]);
        match done {
            Ok(()) => assert!(good),
            Err(error) => assert!(!good && matches!(error, CpuError::Length { .. }), "{error}"),
        }
    }
}
