//! Attention to keys that sign codes select: the host's selection, and exact attention to what was selected.

use trike_core::KeySelector;
use trike_cpu::{Cpu, CpuOps, KeyIndex, KeyScratch, KeySelection, KvBuffer, KvView};
use trike_cube::attention::{CacheSegment, CacheShape, CubeKvCache, KvPrecision, Positions};
use trike_cube::{Buffer, CubeDevice, CubeError, Strategy};
use trike_testkit::Rng;

use super::attention::{BEFORE, Case, POISON, of};
use crate::session::{Oracle, Session, Verdict};

use KvPrecision::{F16, F32, Int8};

/// Query heads, KV heads, head dimension, capacity, keys before the first step, keys that the codes select, precision.
type Row = (usize, usize, usize, usize, usize, usize, KvPrecision);

/// Heads of one transform and of several, odd numbers of words, capacities that are no power of two, equal scores.
const CASES: &[Row] = &[
    (4, 2, 64, 1200, 512, 8, F32),
    (3, 1, 128, 600, 256, 16, F16),
    (2, 2, 80, 700, 512, 37, F32),
    (8, 2, 96, 1100, 1024, 64, F16),
    (1, 1, 256, 530, 512, 5, F32),
    (2, 1, 66, 300, 256, 9, F16),
    (4, 2, 64, 600, 512, 16, Int8),
    (2, 1, 128, 300, 256, 16, Int8),
];

/// Selection and attention, step by step.
pub fn selected(session: &mut Session) {
    let device = session.device();
    for (seed, row) in CASES.iter().enumerate() {
        let &(heads, kv_heads, head_dim, capacity, len, top_k, precision) = row;
        let name = format!(
            "attention to {top_k} keys of {len} in {capacity}, {heads}/{kv_heads} heads of {head_dim}, {precision:?}"
        );
        session.case(name, |oracle| check(oracle, device, seed as u64, *row));
    }
    session.case("attention to selected keys refuses heads without room for a code", |oracle| {
        for (head_dim, fits) in [(62, false), (64, true), (256, true), (258, false), (67, false)] {
            let shape = CacheShape { kv_heads: 1, head_dim, capacity: 10, precision: F32 };
            let cache = CubeKvCache::empty(device, shape)?.with_keys(device, signs(4));
            if fits {
                cache?;
            } else {
                oracle.refused("head_dim", cache, |e| {
                    matches!(e, CubeError::Range { .. } | CubeError::NotMultiple { .. })
                })?;
            }
        }
        Ok(())
    });
}

fn signs(top_k: usize) -> KeySelector {
    KeySelector::signs(top_k).expect("one or more")
}

/// What the host keeps of the keys.
struct Host {
    cpu: Cpu,
    index: KeyIndex,
    scratch: KeyScratch,
    /// `[kv head][capacity][head_dim]`
    keys: Vec<f32>,
}

fn check(oracle: &Oracle, device: &CubeDevice, seed: u64, row: Row) -> Verdict {
    let (heads, kv_heads, head_dim, capacity, len, top_k, precision) = row;
    // The step at which the mean is taken, some behind it, then some that are written over.
    let (steps, prompt) = (6, 3);
    let shape = CacheShape { kv_heads, head_dim, capacity, precision };
    let cache = CubeKvCache::empty(device, shape)?.with_keys(device, signs(top_k))?;
    let mut host = Host {
        cpu: Cpu::new(1).expect("one thread"),
        index: KeyIndex::new(kv_heads, head_dim, capacity).expect("a small index"),
        scratch: KeyScratch::default(),
        keys: vec![0.0; kv_heads * capacity * head_dim],
    };
    let mut case = Case::new(seed, (heads, kv_heads, head_dim, capacity, len + steps, 1, None, precision));
    whole_numbers(seed, &mut case.k, kv_heads * head_dim);
    let all: Vec<f32> = case.k[..(len - 1) * kv_heads * head_dim].to_vec();
    let values: Vec<f32> = case.v[..all.len()].to_vec();
    store(device, &cache, 0, &all, &values)?;
    host.store(0, &all, row);
    for step in 0..steps {
        attend(oracle, device, (&mut case, &cache, &mut host), row, len - 1 + step)?;
    }
    // A prompt in place of the last tokens attends to all keys, and its own are coded.
    let first = len + 1;
    let width = kv_heads * head_dim;
    whole_numbers(seed + 100, &mut case.k[first * width..], width);
    let range = first * width..(first + prompt) * width;
    let (k, v) = (case.k[range.clone()].to_vec(), case.v[range].to_vec());
    store(device, &cache, first, &k, &v)?;
    host.index.truncate(first);
    host.store(first, &k, row);
    let positions: Vec<u32> = (first as u32..).take(prompt).collect();
    let positions = Positions::upload(device, &positions)?;
    let q = device.upload(&vec![0.5f32; prompt * heads * head_dim])?;
    let out = device.upload(&vec![POISON; prompt * heads * head_dim])?;
    let segment = of(0..prompt, &positions, &cache);
    oracle.exact("prompt", &[device.selected_positions(&case.spec(), &q, &segment)?], &[None])?;
    device.attention(&case.spec(), &q, &segment, &out, &Strategy::Inferred)?;
    for step in 0..2 {
        attend(oracle, device, (&mut case, &cache, &mut host), row, first + prompt + step)?;
    }
    Ok(())
}

/// Whole numbers around others that all keys have in common: sums of them are the same in any order, and so are the codes.
fn whole_numbers(seed: u64, keys: &mut [f32], width: usize) {
    let mut rng = Rng::new(seed);
    let common: Vec<f32> = (0..width).map(|_| rng.below(9) as f32 - 4.0).collect();
    for (key, common) in keys.iter_mut().zip(common.iter().cycle()) {
        *key = common + rng.below(15) as f32 - 7.0;
    }
}

fn store(
    device: &CubeDevice,
    cache: &CubeKvCache,
    first: usize,
    k: &[f32],
    v: &[f32],
) -> trike_cube::Result<()> {
    let shape = cache.shape();
    let rows = k.len() / (shape.kv_heads * shape.head_dim);
    let positions: Vec<u32> = (first as u32..).take(rows).collect();
    let positions = Positions::upload(device, &positions)?;
    device.store(&device.upload(k)?, &device.upload(v)?, &of(0..rows, &positions, cache))
}

impl Host {
    fn store(&mut self, first: usize, keys: &[f32], row: Row) {
        let (_, kv_heads, d, capacity, ..) = row;
        for (i, key) in keys.chunks(d).enumerate() {
            let (position, head) = (first + i / kv_heads, i % kv_heads);
            self.keys[(head * capacity + position) * d..][..d].copy_from_slice(key);
        }
    }
}

/// One token: stored, selected for, attended with.
fn attend(
    oracle: &Oracle,
    device: &CubeDevice,
    (case, cache, host): (&mut Case, &CubeKvCache, &mut Host),
    row: Row,
    position: usize,
) -> Verdict {
    let (heads, kv_heads, head_dim, capacity, _, top_k, precision) = row;
    let width = kv_heads * head_dim;
    let range = position * width..(position + 1) * width;
    let (k, v) = (case.k[range.clone()].to_vec(), case.v[range].to_vec());
    store(device, cache, position, &k, &v)?;
    host.store(position, &k, row);
    case.problem.first_position = position;
    let first = position as u32;
    let positions = Positions::upload(device, &[first + 500, first, 3])?;
    let q: Buffer<f32> = device.upload(&case.q)?;
    let out = device.upload(&vec![POISON; case.q.len()])?;
    let segment = CacheSegment { rows: BEFORE..BEFORE + 1, positions: &positions, cache };
    let got = device.selected_positions(&case.spec(), &q, &segment)?;
    device.attention(&case.spec(), &q, &segment, &out, &Strategy::Inferred)?;
    let attended = device.read(&out)?;
    if !oracle.compares() {
        return Ok(());
    }
    let mut rounded = KvBuffer::new(precision, kv_heads * capacity, head_dim).expect("a small cache");
    for (slot, key) in host.keys.chunks(head_dim).enumerate() {
        rounded.write(slot, key).expect("a slot");
    }
    let kv = KvView { k: rounded.view(), v: rounded.view(), capacity };
    let selection =
        KeySelection { selector: signs(top_k), index: &mut host.index, scratch: &mut host.scratch };
    let want = host.cpu.select_keys(&case.spec(), case.queries(), position, kv, selection).expect("valid");
    let want: Option<Vec<Vec<u32>>> =
        want.map(|of| of.iter().map(|head| head.iter().map(|&p| p as u32).collect()).collect());
    oracle.exact("selected", std::slice::from_ref(&got), &[want])?;
    oracle.exact("is a selection", &[got.is_some()], &[true])?;
    case.chosen = got;
    let row = heads * head_dim;
    let rows: Vec<&[f32]> = attended.chunks(row).collect();
    oracle.exact("rows around", &[rows[0], rows[2]].concat(), &vec![POISON; 2 * row])?;
    case.compare(oracle, device, &Strategy::Inferred, rows[1])
}
