//! Attention over the pages of a sequence: bit-identical to that over a ring, in every precision, however a prompt is split.

use crate::common::{bits, cpus};
use trike_core::KvPrecision;
use trike_cpu::{AttentionSpec, CpuError, CpuOps, KV_PAGE, KvBuffer, KvView};
use trike_testkit::{Rng, assert_close};

const PRECISIONS: [KvPrecision; 5] =
    [KvPrecision::F32, KvPrecision::F16, KvPrecision::Int8, KvPrecision::Int4, KvPrecision::Int8Int4];

fn spec(window: Option<usize>) -> AttentionSpec {
    AttentionSpec { heads: 6, kv_heads: 2, head_dim: 32, scale: 0.2, window }
}

/// Keys and values of `[positions][kv_heads][head_dim]` in a ring of all positions, and in pages.
struct Stored {
    ring: [KvBuffer; 2],
    pages: Vec<[KvBuffer; 2]>,
    positions: usize,
}

impl Stored {
    fn new(spec: &AttentionSpec, precision: KvPrecision, [k, v]: [&[f32]; 2]) -> Self {
        let row = spec.kv_heads * spec.head_dim;
        let positions = k.len() / row;
        let buffers = |capacity: usize| {
            [precision.key(), precision.value()].map(|precision| {
                KvBuffer::new(precision, spec.kv_heads * capacity, spec.head_dim).expect("small")
            })
        };
        let mut ring = buffers(positions);
        let mut pages: Vec<_> = (0..positions.div_ceil(KV_PAGE)).map(|_| buffers(KV_PAGE)).collect();
        for position in 0..positions {
            for head in 0..spec.kv_heads {
                for (which, of) in [k, v].into_iter().enumerate() {
                    let vector = &of[position * row + head * spec.head_dim..][..spec.head_dim];
                    ring[which].write(head * positions + position, vector).expect("a slot");
                    let page = &mut pages[position / KV_PAGE][which];
                    page.write(head * KV_PAGE + position % KV_PAGE, vector).expect("a slot");
                }
            }
        }
        Self { ring, pages, positions }
    }

    fn ring(&self) -> KvView<'_> {
        KvView { k: self.ring[0].view(), v: self.ring[1].view(), capacity: self.positions }
    }

    fn pages(&self) -> Vec<KvView<'_>> {
        let mut pages = Vec::new();
        for [k, v] in &self.pages {
            pages.push(KvView { k: k.view(), v: v.view(), capacity: KV_PAGE });
        }
        pages
    }
}

#[test]
fn pages_change_no_bit() {
    let mut rng = Rng::new(91);
    let spec = spec(None);
    let row = spec.heads * spec.head_dim;
    for (first, tokens) in [(0, 1), (63, 1), (64, 1), (299, 1), (0, 70), (250, 3), (200, 130), (640, 9)] {
        let kv = [(); 2].map(|()| rng.normals((first + tokens) * spec.kv_heads * spec.head_dim));
        let q = rng.normals(tokens * row);
        for precision in PRECISIONS {
            let stored = Stored::new(&spec, precision, [&kv[0], &kv[1]]);
            for cpu in cpus() {
                let (mut ring, mut paged) = (vec![f32::NAN; q.len()], vec![f32::NAN; q.len()]);
                cpu.attention(&spec, &q, first, stored.ring(), &mut ring).expect("valid");
                cpu.attention_paged(&spec, &q, first, &stored.pages(), &mut paged).expect("valid");
                assert_eq!(bits(&paged), bits(&ring), "{tokens} from {first} on in {precision:?}");
            }
        }
    }
}

/// Every part is a prompt: more rows than decode attention takes.
#[test]
fn a_prompt_in_uneven_parts_has_the_bits_of_the_whole() {
    let mut rng = Rng::new(92);
    let spec = spec(None);
    let (row, tokens) = (spec.heads * spec.head_dim, 300);
    let kv = [(); 2].map(|()| rng.normals(tokens * spec.kv_heads * spec.head_dim));
    let q = rng.normals(tokens * row);
    for precision in PRECISIONS {
        let stored = Stored::new(&spec, precision, [&kv[0], &kv[1]]);
        for cpu in cpus() {
            let mut whole = vec![f32::NAN; q.len()];
            cpu.attention_paged(&spec, &q, 0, &stored.pages(), &mut whole).expect("valid");
            for cuts in [vec![64, 128, 192], vec![9, 30, 253, 262], vec![254, 291]] {
                let mut parts = vec![f32::NAN; q.len()];
                let ends = cuts.iter().copied().chain([tokens]);
                let mut start = 0;
                for end in ends {
                    let rows = start * row..end * row;
                    let out = &mut parts[rows.clone()];
                    cpu.attention_paged(&spec, &q[rows], start, &stored.pages(), out).expect("valid");
                    start = end;
                }
                assert_eq!(bits(&parts), bits(&whole), "{cuts:?} in {precision:?}");
            }
        }
    }
}

/// A window starts its sums in the middle of a page, a ring at the start of a chunk: other roundings of the same sums.
#[test]
fn a_window_over_pages_sees_the_same_positions() {
    let mut rng = Rng::new(93);
    let spec = spec(Some(150));
    let row = spec.heads * spec.head_dim;
    for (first, tokens) in [(400, 1), (300, 40)] {
        let kv = [(); 2].map(|()| rng.normals((first + tokens) * spec.kv_heads * spec.head_dim));
        let q = rng.normals(tokens * row);
        let stored = Stored::new(&spec, KvPrecision::F32, [&kv[0], &kv[1]]);
        for cpu in cpus() {
            let (mut ring, mut paged) = (vec![f32::NAN; q.len()], vec![f32::NAN; q.len()]);
            cpu.attention(&spec, &q, first, stored.ring(), &mut ring).expect("valid");
            cpu.attention_paged(&spec, &q, first, &stored.pages(), &mut paged).expect("valid");
            assert_close(&paged, &ring, 1e-5);
        }
    }
}

#[test]
fn pages_that_do_not_fit_are_refused() {
    let spec = spec(None);
    let zeros = vec![0.0; 70 * spec.kv_heads * spec.head_dim];
    let floats = Stored::new(&spec, KvPrecision::F32, [&zeros, &zeros]);
    let halves = Stored::new(&spec, KvPrecision::F16, [&zeros, &zeros]);
    let q = vec![0.0; spec.heads * spec.head_dim];
    for cpu in cpus() {
        let attend = |first: usize, pages: &[KvView<'_>]| {
            cpu.attention_paged(&spec, &q, first, pages, &mut vec![0.0; q.len()])
        };
        attend(127, &floats.pages()).expect("the last slot of two pages");
        let full = attend(128, &floats.pages());
        assert!(matches!(full, Err(CpuError::KvCapacity { needed: 129, capacity: 128 })), "{full:?}");
        let none = attend(0, &[]);
        assert!(matches!(none, Err(CpuError::KvCapacity { needed: 1, capacity: 0 })), "{none:?}");
        let mixed = [floats.pages()[0], halves.pages()[1]];
        assert!(matches!(attend(100, &mixed), Err(CpuError::Length { expected: 2, got: 1, .. })));
        assert!(matches!(attend(0, &[floats.ring()]), Err(CpuError::Length { expected: 64, got: 70, .. })));
    }
}
