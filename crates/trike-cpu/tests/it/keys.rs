//! Top-k attention compared with exact attention over the same positions, and the selection with its definition.

use crate::common::{bits, cpus, describe};
use half::f16;
use trike_cpu::{
    AttentionSpec, Cpu, CpuError, CpuOps, KeyIndex, KeyScratch, KeySelection, KeySelector, KvData, KvView,
    quantize_head, quantize_head_int4,
};
use trike_testkit::Rng;

/// Keys or values of a ring in every precision.
struct Rows {
    floats: Vec<f32>,
    halves: Vec<f16>,
    codes: Vec<i8>,
    scales: Vec<f32>,
    nibbles: Vec<u8>,
    nibble_scales: Vec<f32>,
}

impl Rows {
    fn new(floats: Vec<f32>, d: usize) -> Self {
        let halves = floats.iter().copied().map(f16::from_f32).collect();
        let mut codes = vec![0; floats.len()];
        let scales = floats.chunks(d).zip(codes.chunks_mut(d)).map(|(x, codes)| quantize_head(x, codes));
        let scales = scales.collect();
        let width = d.div_ceil(2);
        let mut nibbles = vec![0; floats.len() / d * width];
        let rows = floats.chunks(d).zip(nibbles.chunks_mut(width));
        let nibble_scales = rows.map(|(x, codes)| quantize_head_int4(x, codes)).collect();
        Self { floats, halves, codes, scales, nibbles, nibble_scales }
    }

    fn views(&self) -> [KvData<'_>; 4] {
        [
            KvData::F32(&self.floats),
            KvData::F16(&self.halves),
            KvData::Int8 { codes: &self.codes, scales: &self.scales },
            KvData::Int4 { codes: &self.nibbles, scales: &self.nibble_scales },
        ]
    }

    /// The rows of some slots of each head.
    fn pick(&self, slots: &[Vec<usize>], capacity: usize, d: usize) -> Self {
        let (all, width) = (slots.iter().enumerate(), d.div_ceil(2));
        let rows = || all.clone().flat_map(|(head, slots)| slots.iter().map(move |s| head * capacity + s));
        Self {
            floats: rows().flat_map(|row| self.floats[row * d..][..d].to_vec()).collect(),
            halves: rows().flat_map(|row| self.halves[row * d..][..d].to_vec()).collect(),
            codes: rows().flat_map(|row| self.codes[row * d..][..d].to_vec()).collect(),
            scales: rows().map(|row| self.scales[row]).collect(),
            nibbles: rows().flat_map(|row| self.nibbles[row * width..][..width].to_vec()).collect(),
            nibble_scales: rows().map(|row| self.nibble_scales[row]).collect(),
        }
    }
}

/// Key/value heads, query heads per key/value head, `head_dim`, position, capacity, window, number of keys selected by their codes.
type Case = (usize, usize, usize, usize, usize, Option<usize>, usize);

/// Every kind of code, rings that wrap, windows, fewer positions than the selector keeps, several blocks of positions.
const CASES: [Case; 10] = [
    (1, 1, 128, 400, 401, None, 30),
    (2, 4, 128, 700, 800, None, 64),
    (5, 4, 64, 1100, 1101, Some(900), 100),
    (2, 2, 8, 511, 512, None, 64),
    (3, 2, 37, 300, 333, None, 7),
    (2, 1, 80, 1300, 450, Some(440), 40),
    (1, 7, 200, 999, 600, Some(600), 1),
    (1, 2, 32, 100, 101, None, 90),
    (2, 3, 16, 20_000, 20_001, None, 1500),
    (1, 2, 128, 40_000, 17_000, Some(16_900), 700),
];

fn spec((kv_heads, share, head_dim, _, _, window, _): Case) -> AttentionSpec {
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionSpec { heads: kv_heads * share, kv_heads, head_dim, scale, window }
}

#[test]
fn attention_to_selected_keys_is_exact_attention_to_these_positions() {
    let mut rng = Rng::new(61);
    for case in CASES {
        let (problem, (kv_heads, _, d, position, capacity, _, top_k)) = (spec(case), case);
        let selector = KeySelector::signs(top_k).expect("at least one");
        let n = kv_heads * capacity * d;
        let [k, v] = [(); 2].map(|()| Rows::new(rng.normals(n), d));
        let q = rng.normals(problem.heads * d);
        // The same precision for both, and int8 keys with int4 values.
        for (of_k, of_v) in [(0, 0), (1, 1), (2, 2), (3, 3), (2, 3)] {
            let kv = KvView { k: k.views()[of_k], v: v.views()[of_v], capacity };
            let mut first: Option<Vec<Vec<usize>>> = None;
            for cpu in cpus() {
                let (mut index, mut scratch) =
                    (KeyIndex::new(kv_heads, d, capacity).expect("valid"), KeyScratch::default());
                let selection = KeySelection { selector, index: &mut index, scratch: &mut scratch };
                let positions = cpu.select_keys(&problem, &q, position, kv, selection).expect("valid");
                let selection = KeySelection { selector, index: &mut index, scratch: &mut scratch };
                let mut out = vec![f32::NAN; q.len()];
                cpu.attention_selected(&problem, &q, position, kv, selection, &mut out).expect("valid");
                let mut want = vec![f32::NAN; q.len()];
                match &positions {
                    None => cpu.attention(&problem, &q, position, kv, &mut want).expect("valid"),
                    Some(positions) => {
                        let slots: Vec<Vec<usize>> =
                            positions.iter().map(|p| p.iter().map(|p| p % capacity).collect()).collect();
                        let (k, v) = (k.pick(&slots, capacity, d), v.pick(&slots, capacity, d));
                        let count = slots[0].len();
                        let kv = KvView { k: k.views()[of_k], v: v.views()[of_v], capacity: count };
                        let problem = AttentionSpec { window: None, ..problem };
                        cpu.attention(&problem, &q, count - 1, kv, &mut want).expect("valid");
                    }
                }
                assert_eq!(bits(&out), bits(&want), "{case:?} {}", describe(&cpu));
                // The same positions on every instruction set, for any number of threads.
                let positions = positions.unwrap_or_default();
                check_positions(&problem, position, selector, &positions);
                assert_eq!(first.get_or_insert_with(|| positions.clone()), &positions, "{}", describe(&cpu));
            }
        }
    }
}

/// As many as the selector keeps, in order, visible, including the first and the last ones.
fn check_positions(problem: &AttentionSpec, position: usize, selector: KeySelector, all: &[Vec<usize>]) {
    let visible = problem.span(position);
    let Some(selected) = selector.select(visible.len()) else {
        assert!(all.is_empty());
        return;
    };
    assert_eq!(all.len(), problem.kv_heads);
    for positions in all {
        assert_eq!(positions.len(), selected.total());
        assert!(positions.is_sorted_by(|a, b| a < b));
        assert!(positions.iter().all(|p| visible.contains(p)));
        assert_eq!(positions[selected.first - 1], visible.start + selected.first - 1);
        assert_eq!(positions[selected.total() - selected.last], visible.end - selected.last);
    }
}

/// Keys in a narrow cone, some of which point in the direction of the query: these get most of the attention.
#[test]
fn the_keys_that_a_query_looks_for_are_selected() {
    let mut rng = Rng::new(62);
    let (d, position) = (64, 2000);
    let problem = spec((1, 2, d, position, position + 1, None, 0));
    let offset: Vec<f32> = rng.normals(d).iter().map(|x| 10.0 * x).collect();
    let query = rng.normals(d);
    let mut k: Vec<f32> =
        (0..=position).flat_map(|_| rng.normals(d)).zip(offset.iter().cycle()).map(|(x, o)| x + o).collect();
    let planted = [100, 777, 778, 1500];
    for p in planted {
        k[p * d..][..d].iter_mut().zip(&query).for_each(|(k, q)| *k += 2.0 * q);
    }
    let kv = KvView { k: KvData::F32(&k), v: KvData::F32(&k), capacity: position + 1 };
    let (mut index, mut scratch) = (KeyIndex::new(1, d, position + 1).expect("valid"), KeyScratch::default());
    let selector = KeySelector::signs(8).expect("at least one");
    let selection = KeySelection { selector, index: &mut index, scratch: &mut scratch };
    let q = [query.clone(), query].concat();
    let cpu = Cpu::new(1).expect("one thread");
    let found =
        cpu.select_keys(&problem, &q, position, kv, selection).expect("valid").expect("many positions");
    for p in planted {
        assert!(found[0].contains(&p), "{p} is not in {found:?}");
    }
}

/// Equal keys have equal scores: the later positions are selected.
#[test]
fn ties_go_to_the_later_position() {
    let problem = spec((1, 1, 16, 99, 100, None, 0));
    let k = vec![1.0; 100 * 16];
    let kv = KvView { k: KvData::F32(&k), v: KvData::F32(&k), capacity: 100 };
    for cpu in cpus() {
        let (mut index, mut scratch) = (KeyIndex::new(1, 16, 100).expect("valid"), KeyScratch::default());
        let selector = KeySelector::signs(4).expect("at least one");
        let selection = KeySelection { selector, index: &mut index, scratch: &mut scratch };
        let found = cpu.select_keys(&problem, &[1.0; 16], 99, kv, selection).expect("valid");
        assert_eq!(found, Some(vec![vec![0, 95, 96, 97, 98, 99]]));
    }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_written() {
    let problem = spec((2, 1, 16, 99, 100, None, 0));
    let k = vec![1.0; 2 * 100 * 16];
    let kv = KvView { k: KvData::F32(&k), v: KvData::F32(&k), capacity: 100 };
    let cpu = Cpu::new(1).expect("one thread");
    let selector = KeySelector::signs(4).expect("at least one");
    for (shape, q, message) in [
        ((1, 16, 100), 32, "key/value heads of a key index: expected 2, got 1"),
        ((2, 8, 100), 32, "head_dim of a key index: expected 16, got 8"),
        ((2, 16, 99), 32, "capacity of a key index: expected 100, got 99"),
        ((2, 16, 100), 64, "query of attention to selected keys: expected 32 elements, got 64"),
        ((2, 16, 100), 31, "queries of attention: expected a multiple of 32 elements, got 31"),
    ] {
        let (heads, d, capacity) = shape;
        let (mut index, mut scratch) =
            (KeyIndex::new(heads, d, capacity).expect("valid"), KeyScratch::default());
        let selection = KeySelection { selector, index: &mut index, scratch: &mut scratch };
        let mut out = vec![7.0; q];
        let refused = cpu.attention_selected(&problem, &vec![1.0; q], 50, kv, selection, &mut out);
        assert_eq!(refused.expect_err("does not fit").to_string(), message);
        assert!(out.iter().all(|&v| v == 7.0));
    }
    for (heads, d, capacity) in [(0, 16, 10), (1, 0, 10), (1, 1025, 10), (1, 16, 0), (1, 16, 1 << 33)] {
        assert!(matches!(KeyIndex::new(heads, d, capacity), Err(CpuError::Range { .. })));
    }
    assert!(KeyIndex::new(1, 1024, 1).is_ok());
}
