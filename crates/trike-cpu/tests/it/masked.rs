//! Block-sparse attention, the selection of key blocks, and the attention that each position receives: on every instruction set,
//! over every cache, compared with f64 oracles.

use crate::common::{bits, cpus, describe};
use half::f16;
use trike_cpu::{
    AttentionSpec, BlockBitmap, BlockError, Cpu, CpuError, CpuOps, Isa, KvData, KvView, PromptKeys,
    quantize_head, quantize_head_int4,
};
use trike_testkit::{Rng, assert_close};
use trike_trit::Hadamard;

/// About the rounding of f16, `2^-11`.
const BOUND: f32 = 6e-4;

/// The values of one head: odd integers times the scale, transformed back.
fn int4_values(packed: &[u8], scale: f32, head_dim: usize) -> Vec<f32> {
    let bits = |i: usize| match packed.get(i) {
        Some(byte) => byte & 15,
        None => packed[i - packed.len()] >> 4,
    };
    let mut values: Vec<f32> = (0..head_dim).map(|i| scale * (2.0 * f32::from(bits(i)) - 15.0)).collect();
    if let Some(rotation) = Hadamard::largest(head_dim, Hadamard::MAX) {
        rotation.apply(&mut values).expect("whole blocks");
    }
    values
}

/// One element type of keys and values.
enum Stored {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Int8(Vec<i8>, Vec<f32>),
    /// With the dequantized values.
    Int4(Vec<u8>, Vec<f32>, Vec<f32>),
}

impl Stored {
    fn all(values: &[f32], head_dim: usize) -> [Self; 4] {
        let mut codes = vec![0; values.len()];
        let pairs = values.chunks_exact(head_dim).zip(codes.chunks_exact_mut(head_dim));
        let scales = pairs.map(|(values, codes)| quantize_head(values, codes)).collect();
        let halves = values.iter().map(|&v| f16::from_f32(v)).collect();
        let width = head_dim.div_ceil(2);
        let mut packed = vec![0; values.len() / head_dim * width];
        let pairs = values.chunks_exact(head_dim).zip(packed.chunks_exact_mut(width));
        let packed_scales: Vec<f32> =
            pairs.map(|(values, codes)| quantize_head_int4(values, codes)).collect();
        let stored: Vec<f32> = packed
            .chunks_exact(width)
            .zip(&packed_scales)
            .flat_map(|(codes, scale)| int4_values(codes, *scale, head_dim))
            .collect();
        [
            Self::F32(values.to_vec()),
            Self::F16(halves),
            Self::Int8(codes, scales),
            Self::Int4(packed, packed_scales, stored),
        ]
    }

    fn view(&self) -> KvData<'_> {
        match self {
            Self::F32(v) => KvData::F32(v),
            Self::F16(v) => KvData::F16(v),
            Self::Int8(codes, scales) => KvData::Int8 { codes, scales },
            Self::Int4(codes, scales, _) => KvData::Int4 { codes, scales },
        }
    }

    fn at(&self, i: usize, head_dim: usize) -> f64 {
        match self {
            Self::F32(v) => v[i].into(),
            Self::F16(v) => v[i].to_f64(),
            Self::Int8(codes, scales) => f64::from(codes[i]) * f64::from(scales[i / head_dim]),
            Self::Int4(.., values) => values[i].into(),
        }
    }
}

/// A problem with a ring that holds every position visible to the first query.
struct Problem {
    spec: AttentionSpec,
    first: usize,
    tokens: usize,
    capacity: usize,
    q: Vec<f32>,
    caches: [[Stored; 2]; 4],
}

impl Problem {
    fn new(rng: &mut Rng, spec: AttentionSpec, first: usize, tokens: usize, capacity: usize) -> Self {
        let width = spec.head_dim;
        let mut stored = || Stored::all(&rng.normals(spec.kv_heads * capacity * width), width);
        let ([a, b, c, d], [w, x, y, z]) = (stored(), stored());
        let q = rng.normals(tokens * spec.heads * width);
        Self { spec, first, tokens, capacity, q, caches: [[a, w], [b, x], [c, y], [d, z]] }
    }

    fn view<'a>(&self, [k, v]: &'a [Stored; 2]) -> KvView<'a> {
        KvView { k: k.view(), v: v.view(), capacity: self.capacity }
    }

    fn masked(&self, cpu: &Cpu, cache: &[Stored; 2], mask: &BlockBitmap) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.q.len()];
        let kv = self.view(cache);
        cpu.attention_masked(&self.spec, &self.q, self.first, kv, mask, &mut out).expect("valid");
        out
    }

    /// The exponentials of the scores of a row minus the maximum, for the visible positions selected by `sees`.
    fn weights(&self, k: &Stored, row: usize, sees: impl Fn(usize) -> bool) -> Vec<(usize, f64)> {
        let (d, heads) = (self.spec.head_dim, self.spec.heads);
        let kv_head = row % heads * self.spec.kv_heads / heads;
        let score = |p: usize| {
            let key = (kv_head * self.capacity + p % self.capacity) * d;
            let q = &self.q[row * d..][..d];
            let dot: f64 = q.iter().enumerate().map(|(i, q)| f64::from(*q) * k.at(key + i, d)).sum();
            dot * f64::from(self.spec.scale)
        };
        let seen: Vec<_> = self.spec.span(self.first + row / heads).filter(|&p| sees(p)).collect();
        let scores: Vec<f64> = seen.iter().map(|&p| score(p)).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        seen.into_iter().zip(weights).map(|(p, w)| (p, w / total)).collect()
    }

    fn oracle(&self, [k, v]: &[Stored; 2], mask: &BlockBitmap) -> Vec<f32> {
        let (d, heads) = (self.spec.head_dim, self.spec.heads);
        let row = |row: usize| {
            let kv_head = row % heads * self.spec.kv_heads / heads;
            let bitmap = if mask.heads() == 1 { 0 } else { kv_head };
            let block = (self.first + row / heads) / 64;
            let weights = self.weights(k, row, |p| mask.contains(bitmap, block, p / 64));
            let value =
                move |p: usize, i: usize| v.at((kv_head * self.capacity + p % self.capacity) * d + i, d);
            (0..d).map(move |i| weights.iter().map(|&(p, w)| w * value(p, i)).sum::<f64>() as f32)
        };
        (0..self.tokens * heads).flat_map(row).collect()
    }
}

fn spec(kv_heads: usize, share: usize, head_dim: usize, window: Option<usize>) -> AttentionSpec {
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionSpec { heads: kv_heads * share, kv_heads, head_dim, scale, window }
}

/// Key/value heads, query heads per key/value head, elements, window; first position, tokens, slots.
type Case = (usize, usize, usize, Option<usize>, usize, usize, usize);

const CASES: [Case; 8] = [
    (1, 1, 64, None, 0, 200, 200),
    (2, 3, 37, None, 100, 150, 260),
    // Rows for which unmasked attention uses the decode kernels.
    (1, 2, 16, None, 500, 1, 501),
    (2, 2, 24, None, 320, 2, 400),
    // Positions before and after 256, from which narrow caches use integers.
    (2, 4, 16, None, 250, 70, 320),
    (3, 1, 80, Some(100), 300, 130, 229),
    // A ring that has wrapped around, whose end is within a block.
    (1, 9, 33, Some(150), 1000, 33, 190),
    (1, 5, 8, Some(1), 63, 66, 66),
];

fn problem(rng: &mut Rng, case: Case) -> Problem {
    let (kv_heads, share, d, window, first, tokens, capacity) = case;
    Problem::new(rng, spec(kv_heads, share, d, window), first, tokens, capacity)
}

#[test]
fn only_keys_of_set_blocks_take_part() {
    let mut rng = Rng::new(71);
    for case in CASES {
        let problem = problem(&mut rng, case);
        let positions = problem.first..problem.first + problem.tokens;
        for heads in [1, problem.spec.kv_heads] {
            for quarters in [0, 1, 2] {
                let mask = BlockBitmap::from_fn(heads, positions.clone(), |_, _, _| rng.below(4) < quarters)
                    .unwrap();
                for cache in &problem.caches {
                    let want = problem.oracle(cache, &mask);
                    for cpu in cpus() {
                        let out = problem.masked(&cpu, cache, &mask);
                        let context = format!("{case:?}, {quarters} of 4, {}", describe(&cpu));
                        assert!(out.iter().all(|v| v.is_finite()), "{context}");
                        assert_close(&out, &want, BOUND);
                    }
                }
            }
        }
    }
}

#[test]
fn a_mask_of_all_blocks_changes_no_bit_and_neither_do_threads() {
    let mut rng = Rng::new(72);
    for case in CASES.into_iter().filter(|case| case.5 > 8) {
        let problem = problem(&mut rng, case);
        let positions = problem.first..problem.first + problem.tokens;
        let all = BlockBitmap::from_fn(1, positions.clone(), |_, _, _| true).unwrap();
        let some = BlockBitmap::from_fn(1, positions, |_, _, _| rng.below(2) == 0).unwrap();
        for cache in &problem.caches {
            for isa in Isa::available() {
                let one = Cpu::with_isa(isa, 1).expect("one thread");
                let mut want = vec![f32::NAN; problem.q.len()];
                one.attention(&problem.spec, &problem.q, problem.first, problem.view(cache), &mut want)
                    .expect("valid");
                let masked = problem.masked(&one, cache, &some);
                for threads in [1, 2, 5] {
                    let cpu = Cpu::with_isa(isa, threads).expect("a few threads");
                    let out = problem.masked(&cpu, cache, &all);
                    assert_eq!(bits(&out), bits(&want), "{case:?}, {}", describe(&cpu));
                    assert_eq!(
                        bits(&problem.masked(&cpu, cache, &some)),
                        bits(&masked),
                        "{}",
                        describe(&cpu)
                    );
                }
            }
        }
    }
}

#[test]
fn masked_blocks_are_not_read() {
    let mut rng = Rng::new(73);
    let mut problem = problem(&mut rng, (1, 4, 24, None, 320, 64, 384));
    let mask = BlockBitmap::from_fn(1, 320..384, |_, _, block| block != 2).unwrap();
    let cpu = Cpu::new(2).unwrap();
    for n in 0..2 {
        let want = problem.masked(&cpu, &problem.caches[n], &mask);
        for stored in &mut problem.caches[n] {
            match stored {
                Stored::F32(v) => v[128 * 24..192 * 24].fill(f32::NAN),
                Stored::F16(v) => v[128 * 24..192 * 24].fill(f16::NAN),
                Stored::Int8(..) | Stored::Int4(..) => unreachable!("a later cache"),
            }
        }
        assert_eq!(bits(&problem.masked(&cpu, &problem.caches[n], &mask)), bits(&want));
    }
}

/// The sampled positions of a query block: up to four, the last one of each quarter.
fn sampled(first: usize, end: usize) -> Vec<usize> {
    let mut positions: Vec<_> = (1..=4).map(|i| first + ((end - first) * i / 4).max(1) - 1).collect();
    positions.dedup();
    positions
}

#[test]
fn the_blocks_with_the_most_attention_of_a_sample_are_kept() {
    let mut rng = Rng::new(74);
    for (case, share) in [
        ((1, 1, 64, None, 0, 700, 700), 0.5),
        ((2, 3, 37, None, 1000, 130, 1130), 0.25),
        ((1, 12, 16, None, 640, 64, 704), 0.1),
        ((2, 2, 24, None, 650, 2, 700), 0.3),
        ((2, 1, 32, Some(500), 900, 100, 620), 0.5),
    ] {
        let problem = problem(&mut rng, case);
        let keys = PromptKeys::sampled(share).unwrap();
        let (first, end) = (problem.first, problem.first + problem.tokens);
        for cache in &problem.caches {
            let choose = |cpu: &Cpu| {
                cpu.choose_blocks(&problem.spec, &problem.q, first, problem.view(cache), keys).expect("valid")
            };
            let want = choose(&Cpu::with_isa(Isa::detect(), 1).unwrap()).expect("some blocks are left out");
            for block in want.query_blocks() {
                let (from, to) = ((block * 64).max(first), (block * 64 + 64).min(end));
                let visible = problem.spec.span(from).start / 64..block + 1;
                let kept = keys.kept(visible.len()).unwrap_or(visible.len());
                for kv_head in 0..problem.spec.kv_heads {
                    let mut sums = vec![0.0; block + 1];
                    let share = problem.spec.heads / problem.spec.kv_heads;
                    for position in sampled(from, to) {
                        for head in kv_head * share..(kv_head + 1) * share {
                            let row = (position - first) * problem.spec.heads + head;
                            for (p, w) in problem.weights(&cache[0], row, |_| true) {
                                sums[p / 64] += w;
                            }
                        }
                    }
                    let chosen: Vec<_> =
                        visible.clone().filter(|&b| want.contains(kv_head, block, b)).collect();
                    assert_eq!(chosen.len(), kept, "{case:?}, block {block}");
                    assert!(chosen.contains(&visible.start) && chosen.contains(&block));
                    let mut between: Vec<f64> =
                        sums[visible.start + 1..block.max(visible.start + 1)].to_vec();
                    between.sort_by(|a, b| b.total_cmp(a));
                    let best: f64 = between.iter().take(kept.saturating_sub(2)).sum();
                    let own: f64 =
                        chosen.iter().filter(|&&b| b != visible.start && b != block).map(|&b| sums[b]).sum();
                    // Sums that differ by less than rounding may be swapped.
                    assert!(own >= best - 0.002, "{case:?}, block {block}: {own} of {best}");
                }
            }
            for threads in [2, 5] {
                let cpu = Cpu::with_isa(Isa::detect(), threads).unwrap();
                assert_eq!(choose(&cpu).as_ref(), Some(&want), "{case:?}, {threads} threads");
            }
            for cpu in cpus() {
                let other = choose(&cpu).expect("some blocks are left out");
                let set = |mask: &BlockBitmap| mask.words().iter().map(|word| word.count_ones()).sum::<u32>();
                assert_eq!(set(&other), set(&want), "{case:?}, {}", describe(&cpu));
            }
        }
    }
}

#[test]
fn positions_get_the_attention_that_the_queries_give() {
    let mut rng = Rng::new(76);
    for case in CASES {
        let problem = problem(&mut rng, case);
        let (heads, kv_heads) = (problem.spec.heads, problem.spec.kv_heads);
        let end = problem.first + problem.tokens;
        for cache in &problem.caches {
            let mut want = vec![0.0f64; kv_heads * end];
            for row in 0..problem.tokens * heads {
                let kv_head = row % heads * kv_heads / heads;
                for (position, weight) in problem.weights(&cache[0], row, |_| true) {
                    want[kv_head * end + position] += weight;
                }
            }
            let want: Vec<f32> = want.into_iter().map(|sum| sum as f32).collect();
            for cpu in cpus() {
                let kv = problem.view(cache);
                let got =
                    cpu.attention_received(&problem.spec, &problem.q, problem.first, kv).expect("valid");
                assert!(got.iter().all(|v| v.is_finite()), "{case:?}, {}", describe(&cpu));
                assert_close(&got, &want, BOUND);
                // Masked positions receive no attention.
                assert!(got.iter().zip(&want).all(|(got, want)| *want > 0.0 || *got == 0.0), "{case:?}");
            }
        }
        let none = Cpu::new(1).unwrap().attention_received(
            &problem.spec,
            &[],
            problem.first,
            problem.view(&problem.caches[0]),
        );
        assert!(none.expect("no queries").is_empty());
        let odd = Cpu::new(1).unwrap().attention_received(
            &problem.spec,
            &problem.q[1..],
            problem.first,
            problem.view(&problem.caches[0]),
        );
        assert!(odd.is_err());
    }
}

#[test]
fn a_block_that_stands_out_is_found_and_faults_are_not_hidden() {
    let mut rng = Rng::new(75);
    let mut problem = problem(&mut rng, (1, 2, 32, None, 640, 64, 704));
    // Query and key 200 agree; all other keys are short.
    problem.q.fill(1.0);
    let Stored::F32(k) = &mut problem.caches[0][0] else { unreachable!("the first cache") };
    k.iter_mut().for_each(|k| *k *= 0.01);
    k[200 * 32..201 * 32].fill(1.0);
    let keys = PromptKeys::sampled(0.25).unwrap();
    let choose = |problem: &Problem| {
        let kv = problem.view(&problem.caches[0]);
        let cpu = Cpu::new(1).unwrap();
        cpu.choose_blocks(&problem.spec, &problem.q, 640, kv, keys).expect("valid").expect("chosen")
    };
    assert!(choose(&problem).contains(0, 10, 200 / 64));
    let Stored::F32(k) = &mut problem.caches[0][0] else { unreachable!("the first cache") };
    k[300 * 32] = f32::NAN;
    let mask = choose(&problem);
    let out = problem.masked(&Cpu::new(1).unwrap(), &problem.caches[0], &mask);
    assert!(out.iter().all(|v| v.is_nan()), "as with exact attention");
}

#[test]
fn nothing_is_chosen_where_all_blocks_are_kept() {
    let mut rng = Rng::new(76);
    let quarter = PromptKeys::sampled(0.25).unwrap();
    for (case, keys) in [
        ((1, 1, 8, None, 0, 256, 256), quarter),
        ((1, 1, 8, None, 700, 1, 701), quarter),
        ((1, 1, 8, Some(100), 700, 100, 300), quarter),
        ((1, 1, 8, None, 0, 700, 700), PromptKeys::All),
    ] {
        let problem = problem(&mut rng, case);
        let kv = problem.view(&problem.caches[0]);
        let chosen = Cpu::new(1).unwrap().choose_blocks(&problem.spec, &problem.q, problem.first, kv, keys);
        assert_eq!(chosen.expect("valid"), None, "{case:?}");
    }
}

#[test]
fn masks_that_do_not_fit_are_refused() {
    let mut rng = Rng::new(77);
    let problem = problem(&mut rng, (2, 1, 8, None, 64, 64, 128));
    let refused = |mask: &BlockBitmap| {
        let (mut out, kv) = (vec![7.0; problem.q.len()], problem.view(&problem.caches[0]));
        let cpu = Cpu::new(1).unwrap();
        let error = cpu.attention_masked(&problem.spec, &problem.q, 64, kv, mask, &mut out).unwrap_err();
        assert!(out.iter().all(|&v| v == 7.0), "written");
        error
    };
    let error = refused(&BlockBitmap::diagonal(3, 64..128).unwrap());
    assert!(matches!(error, CpuError::Blocks(BlockError::Length { expected: 2, got: 3, .. })), "{error}");
    let error = refused(&BlockBitmap::diagonal(2, 0..64).unwrap());
    assert!(matches!(error, CpuError::Blocks(BlockError::Range { .. })), "{error}");
}
