//! Attention over int4 keys and values compared with an f64 oracle on the same codes.

use crate::common::{bits, cpus, describe};
use half::f16;
use trike_cpu::{
    AttentionSpec, Cpu, CpuError, CpuOps, Isa, KvData, KvView, quantize_head, quantize_head_int4,
};
use trike_testkit::{Rng, assert_close};
use trike_trit::Hadamard;

/// Relative to the largest output. The oracle reads the same codes, so this covers only the arithmetic of the kernels: that of
/// int8, whose kernels are the same, and the rounding of the transforms of queries and outputs, about `2^-24 log2(head_dim)` each.
const BOUND: f32 = 1e-4;

/// Keys or values of all slots of a ring. Slots that were never written have a scale of NaN.
struct Packed {
    head_dim: usize,
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl Packed {
    fn new(rng: &mut Rng, problem: &AttentionSpec, positions: usize, capacity: usize) -> Self {
        let d = problem.head_dim;
        let slots = problem.kv_heads * capacity;
        let mut all =
            Self { head_dim: d, codes: vec![0xA5; slots * d.div_ceil(2)], scales: vec![f32::NAN; slots] };
        for head in 0..problem.kv_heads {
            for p in 0..positions {
                // Different scales, occasionally a vector of zeros or one with an outlier.
                let mut values = rng.normals(d);
                let size = [1.0, 0.3, 3.0, 0.0][rng.below(16).min(3)];
                values.iter_mut().for_each(|v| *v *= size);
                if p % 5 == 0 {
                    values[d / 3] *= 10.0;
                }
                all.write(head * capacity + p % capacity, &values);
            }
        }
        all
    }

    fn write(&mut self, slot: usize, values: &[f32]) {
        let width = self.head_dim.div_ceil(2);
        self.scales[slot] = quantize_head_int4(values, &mut self.codes[slot * width..][..width]);
    }

    fn view(&self) -> KvData<'_> {
        KvData::Int4 { codes: &self.codes, scales: &self.scales }
    }

    /// The code of an element, from the documented layout.
    fn code(&self, slot: usize, i: usize) -> i8 {
        let width = self.head_dim.div_ceil(2);
        let byte = self.codes[slot * width + i % width];
        2 * (if i < width { byte & 15 } else { byte >> 4 }) as i8 - 15
    }

    /// All codes as consecutive bytes.
    fn unpacked(&self) -> Vec<i8> {
        let slots = 0..self.scales.len();
        slots.flat_map(|slot| (0..self.head_dim).map(move |i| self.code(slot, i))).collect()
    }

    /// The vector of a slot with the transform undone, in f64 from its definition.
    fn vector(&self, slot: usize) -> Vec<f64> {
        let mixed = |i| f64::from(self.code(slot, i)) * f64::from(self.scales[slot]);
        let block = Hadamard::largest(self.head_dim, Hadamard::MAX).map_or(1, Hadamard::block);
        let element = |i: usize| {
            let signed = |j: usize| {
                let sign = if ((i % block) & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                sign * mixed(i / block * block + j)
            };
            (0..block).map(signed).sum::<f64>() / (block as f64).sqrt()
        };
        (0..self.head_dim).map(element).collect()
    }

    fn vectors(&self) -> Vec<Vec<f64>> {
        (0..self.scales.len()).map(|slot| self.vector(slot)).collect()
    }
}

/// Keys or values in int8.
struct Bytes {
    codes: Vec<i8>,
    scales: Vec<f32>,
}

impl Bytes {
    fn new(rng: &mut Rng, slots: usize, d: usize) -> Self {
        let mut codes = vec![0; slots * d];
        let scales = codes.chunks_mut(d).map(|codes| quantize_head(&rng.normals(d), codes)).collect();
        Self { codes, scales }
    }

    fn view(&self) -> KvData<'_> {
        KvData::Int8 { codes: &self.codes, scales: &self.scales }
    }

    fn vectors(&self) -> Vec<Vec<f64>> {
        let heads = self.codes.chunks(self.codes.len() / self.scales.len()).zip(&self.scales);
        heads.map(|(c, s)| c.iter().map(|c| f64::from(*c) * f64::from(*s)).collect()).collect()
    }
}

/// Softmax attention of all query heads in f64.
fn oracle(problem: &AttentionSpec, q: &[f32], first: usize, [k, v]: [&[Vec<f64>]; 2]) -> Vec<f32> {
    let (d, capacity) = (problem.head_dim, k.len() / problem.kv_heads);
    let row = |(i, q): (usize, &[f32])| {
        let kv_head = i % problem.heads * problem.kv_heads / problem.heads;
        let span = problem.span(first + i / problem.heads);
        let slots: Vec<usize> = span.map(|p| kv_head * capacity + p % capacity).collect();
        let score = |slot: usize| q.iter().zip(&k[slot]).map(|(q, k)| f64::from(*q) * k).sum::<f64>();
        let weights: Vec<f64> = slots.iter().map(|&s| (score(s) * f64::from(problem.scale)).exp()).collect();
        let sum = |i: usize| slots.iter().zip(&weights).map(|(&slot, w)| w * v[slot][i]).sum::<f64>();
        let total = weights.iter().sum::<f64>();
        (0..d).map(|i| (sum(i) / total) as f32).collect::<Vec<f32>>()
    };
    q.chunks(d).enumerate().flat_map(row).collect()
}

/// Key/value heads, query heads per key/value head, `head_dim`, query tokens, position of the first one, window.
type Case = (usize, usize, usize, usize, usize, Option<usize>);

/// As for int8: one and several chunks of positions, every tail of a head, every remainder of a group of heads, decode and prefill,
/// windows that wrap.
const CASES: [Case; 16] = [
    (1, 1, 1, 1, 0, None),
    (2, 4, 128, 1, 700, None),
    (3, 4, 128, 1, 1100, None),
    (2, 5, 64, 1, 900, Some(513)),
    (1, 3, 40, 2, 600, Some(300)),
    (3, 2, 37, 1, 300, None),
    (2, 1, 80, 3, 260, Some(257)),
    (1, 7, 16, 1, 255, None),
    (1, 8, 15, 1, 256, Some(200)),
    (2, 4, 128, 30, 50, None),
    (1, 2, 64, 40, 240, None),
    (1, 1, 80, 70, 1000, Some(100)),
    (2, 2, 33, 20, 500, Some(65)),
    (1, 4, 16, 90, 300, Some(1)),
    (1, 71, 32, 3, 90, None),
    (1, 2, 200, 1, 70, None),
];

fn spec((kv_heads, share, head_dim, _, _, window): Case) -> AttentionSpec {
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionSpec { heads: kv_heads * share, kv_heads, head_dim, scale, window }
}

fn attention(cpu: &Cpu, problem: &AttentionSpec, q: &[f32], first: usize, kv: KvView<'_>) -> Vec<f32> {
    let mut out = vec![f32::NAN; q.len()];
    cpu.attention(problem, q, first, kv, &mut out).expect("valid");
    out
}

#[test]
fn attention_follows_the_oracle() {
    let mut rng = Rng::new(26);
    for case in CASES {
        let (problem, (kv_heads, _, d, tokens, first, _)) = (spec(case), case);
        // The smallest possible capacity, so that windows wrap, and a larger one.
        let needed = first + tokens - problem.span(first).start;
        for capacity in [needed, needed + 5] {
            let [k, v] = [(); 2].map(|()| Packed::new(&mut rng, &problem, first + tokens, capacity));
            let bytes = Bytes::new(&mut rng, kv_heads * capacity, d);
            let q = rng.normals(tokens * problem.heads * d);
            let (k_rows, v_rows, byte_rows) = (k.vectors(), v.vectors(), bytes.vectors());
            let of_int4 = oracle(&problem, &q, first, [&k_rows, &v_rows]);
            let of_both = oracle(&problem, &q, first, [&byte_rows, &v_rows]);
            for cpu in cpus() {
                let kv = KvView { k: k.view(), v: v.view(), capacity };
                assert_close(&attention(&cpu, &problem, &q, first, kv), &of_int4, BOUND);
                let kv = KvView { k: bytes.view(), v: v.view(), capacity };
                assert_close(&attention(&cpu, &problem, &q, first, kv), &of_both, BOUND);
            }
        }
    }
}

/// Unpacking to bytes is exact: attention is bit-identical to int8 attention over the same codes with transformed queries,
/// transformed back. So integer stages are equal on every instruction set if those of int8 are.
#[test]
fn attention_has_the_bits_of_the_same_codes_in_bytes() {
    let mut rng = Rng::new(27);
    for case in CASES {
        let (problem, (.., d, tokens, first, _)) = (spec(case), case);
        let capacity = first + tokens;
        let [k, v] = [(); 2].map(|()| Packed::new(&mut rng, &problem, capacity, capacity));
        let [k_codes, v_codes] = [&k, &v].map(Packed::unpacked);
        let q = rng.normals(tokens * problem.heads * d);
        let mix = |x: &[f32]| {
            let mut x = x.to_vec();
            if let Some(rotation) = Hadamard::largest(d, Hadamard::MAX) {
                rotation.apply(&mut x).expect("whole blocks");
            }
            x
        };
        for cpu in cpus() {
            let kv = KvView { k: k.view(), v: v.view(), capacity };
            let got = attention(&cpu, &problem, &q, first, kv);
            let kv = KvView {
                k: KvData::Int8 { codes: &k_codes, scales: &k.scales },
                v: KvData::Int8 { codes: &v_codes, scales: &v.scales },
                capacity,
            };
            let want = mix(&attention(&cpu, &problem, &mix(&q), first, kv));
            assert_eq!(bits(&got), bits(&want), "{case:?} {}", describe(&cpu));
        }
    }
}

#[test]
fn other_pairs_of_precisions_are_widened() {
    let mut rng = Rng::new(28);
    let problem = spec((2, 4, 48, 1, 300, None));
    let [k, v] = [(); 2].map(|()| Packed::new(&mut rng, &problem, 301, 301));
    let bytes = Bytes::new(&mut rng, 2 * 301, 48);
    let floats = |rows: Vec<Vec<f64>>| -> Vec<f32> { rows.concat().iter().map(|&x| x as f32).collect() };
    let (k_floats, v_floats) = (floats(k.vectors()), floats(v.vectors()));
    let halves: Vec<f16> = v_floats.iter().map(|&x| f16::from_f32(x)).collect();
    let q = rng.normals(problem.heads * 48);
    let (k_rows, v_rows, byte_rows) = (k.vectors(), v.vectors(), bytes.vectors());
    let of_int4 = oracle(&problem, &q, 300, [&k_rows, &v_rows]);
    let of_bytes = oracle(&problem, &q, 300, [&k_rows, &byte_rows]);
    for cpu in cpus() {
        for (k, v, want, bound) in [
            (k.view(), KvData::F32(&v_floats), &of_int4, BOUND),
            (KvData::F32(&k_floats), v.view(), &of_int4, BOUND),
            (k.view(), bytes.view(), &of_bytes, BOUND),
            // The values were rounded once more.
            (k.view(), KvData::F16(&halves), &of_int4, 1e-3),
        ] {
            let got = attention(&cpu, &problem, &q, 300, KvView { k, v, capacity: 301 });
            assert_close(&got, want, bound);
        }
    }
}

/// The error of attention itself. A weighted mean of values is off by at most the largest norm of their errors, `s sqrt(d)` with a
/// scale of `s`, since the transform preserves norms.
#[test]
fn rounding_of_values_is_bounded_by_their_scales() {
    let mut rng = Rng::new(29);
    for d in [8, 37, 64, 128] {
        let problem = spec((1, 2, d, 1, 400, None));
        let values = rng.normals(401 * d);
        let mut v = Packed::new(&mut rng, &problem, 401, 401);
        values.chunks(d).enumerate().for_each(|(slot, values)| v.write(slot, values));
        let k = rng.normals(401 * d);
        let q = rng.normals(2 * d);
        let bound = v.scales.iter().fold(0f32, |most, s| most.max(*s)) * (d as f32).sqrt();
        for cpu in cpus() {
            let with =
                |v| attention(&cpu, &problem, &q, 400, KvView { k: KvData::F32(&k), v, capacity: 401 });
            let (got, want) = (with(v.view()), with(KvData::F32(&values)));
            for (got, want) in got.chunks(d).zip(want.chunks(d)) {
                let error = got.iter().zip(want).map(|(g, w)| (g - w).powi(2)).sum::<f32>().sqrt();
                assert!(error < bound, "{d}: {error} of {bound}");
            }
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let mut rng = Rng::new(30);
    for case in CASES {
        let (problem, (.., tokens, first, _)) = (spec(case), case);
        let capacity = first + tokens;
        let [k, v] = [(); 2].map(|()| Packed::new(&mut rng, &problem, capacity, capacity));
        let kv = KvView { k: k.view(), v: v.view(), capacity };
        let q = rng.normals(tokens * problem.heads * problem.head_dim);
        for isa in Isa::available() {
            let outs = [1, 2, 5].map(|threads| {
                let cpu = Cpu::with_isa(isa, threads).expect("a few threads");
                attention(&cpu, &problem, &q, first, kv)
            });
            assert!(outs.iter().all(|out| bits(out) == bits(&outs[0])), "{isa}, {case:?}");
        }
    }
}

#[test]
fn a_fault_in_a_visible_position_is_not_hidden() {
    let mut rng = Rng::new(31);
    for tokens in [1, 12] {
        let problem = spec((1, 2, 24, tokens, 280, Some(270)));
        let [mut k, mut v] = [(); 2].map(|()| Packed::new(&mut rng, &problem, 300, 300));
        let q = rng.normals(tokens * 2 * 24);
        let want = oracle(&problem, &q, 280, [&k.vectors(), &v.vectors()]);
        let mut fault = [1.0; 24];
        fault[5] = f32::INFINITY;
        // Once invisible to all queries, once visible to all.
        for (slot, is_seen) in [(10, false), (200, true)] {
            for part in [&mut k, &mut v] {
                part.write(slot, &fault);
            }
            for cpu in cpus() {
                let kv = KvView { k: k.view(), v: v.view(), capacity: 300 };
                let out = attention(&cpu, &problem, &q, 280, kv);
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
fn codes_and_scales_of_another_length_are_refused() {
    let cpu = Cpu::new(1).expect("one thread");
    // Two bytes per head; the last one has a single code.
    let problem = AttentionSpec { heads: 2, kv_heads: 2, head_dim: 3, scale: 1.0, window: None };
    for (codes, scales, good) in
        [(16, 8, true), (16, 7, false), (16, 9, false), (15, 8, false), (17, 8, false), (24, 8, false)]
    {
        let (codes, scales) = (vec![0; codes], vec![0.0; scales]);
        let data = KvData::Int4 { codes: &codes, scales: &scales };
        let kv = KvView { k: data, v: data, capacity: 4 };
        match cpu.attention(&problem, &[1.0; 6], 3, kv, &mut [0.0; 6]) {
            Ok(()) => assert!(good),
            Err(error) => assert!(!good && matches!(error, CpuError::Length { .. }), "{error}"),
        }
    }
}
