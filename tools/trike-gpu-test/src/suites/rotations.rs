//! Rotation and store in one launch, against the formula, over rings that wrap and rows of other sequences.

use std::ops::Range;

use trike_cube::attention::{CacheSegment, CacheShape, CubeKvCache, KvPrecision, Positions};
use trike_cube::ops::{CubeRopeTable, RopePairing};
use trike_cube::{CubeDevice, CubeError};
use trike_testkit::Rng;

use crate::session::{Oracle, Session, Verdict};

/// A segment within a batch, its heads, and its cache.
#[derive(Clone)]
struct Case {
    heads: usize,
    rotated: usize,
    pairing: RopePairing,
    shape: CacheShape,
    positions: Vec<u32>,
    rows: Range<usize>,
}

/// Positions of the table.
const TABLE: usize = 400;

/// All of them.
pub fn rotations(session: &mut Session) {
    let device = session.device();
    for pairing in [RopePairing::Adjacent, RopePairing::Halves] {
        for precision in [KvPrecision::F32, KvPrecision::F16, KvPrecision::Int8] {
            for (heads, kv_heads, head_dim, rotated, capacity, first, rows) in [
                (1, 1, 2, 2, 1, 0, 0..1),
                (6, 2, 64, 64, 100, 57, 0..1),
                (4, 4, 80, 48, 9, 30, 2..9),
                (5, 1, 96, 96, 300, 120, 1..140),
            ] {
                if precision == KvPrecision::Int8 && head_dim == 2 {
                    continue;
                }
                let shape = CacheShape { kv_heads, head_dim, capacity, precision };
                // Rows before and after the segment belong to other sequences.
                let mut positions: Vec<u32> = vec![3; rows.end + 1];
                positions[rows.clone()].iter_mut().zip(first..).for_each(|(p, at)| *p = at);
                let case = Case { heads, rotated, pairing, shape, positions, rows };
                let name = format!(
                    "rotate and store/{heads}/{kv_heads} heads of {head_dim}, {rotated} {pairing:?}, {} at {first} in {capacity}, {precision:?}",
                    case.rows.len()
                );
                session.case(name, |oracle| case.check(oracle, device));
            }
        }
    }
    session.case("rotate and store refuses what does not fit", |oracle| refusals(oracle, device));
}

fn table(
    device: &CubeDevice,
    rotated: usize,
    pairing: RopePairing,
) -> trike_cube::Result<(CubeRopeTable, Vec<f32>)> {
    let frequencies: Vec<f32> =
        (0..rotated / 2).map(|i| 100f64.powf(-2.0 * i as f64 / rotated as f64) as f32).collect();
    Ok((CubeRopeTable::upload(device, &frequencies, TABLE, pairing)?, frequencies))
}

impl Case {
    fn check(&self, oracle: &Oracle, device: &CubeDevice) -> Verdict {
        let Self { heads, rotated, pairing, shape, positions, rows } = self;
        let CacheShape { kv_heads, head_dim, capacity, precision } = *shape;
        let mut rng = Rng::new((heads * head_dim) as u64);
        let all = positions.len();
        let new = |rng: &mut Rng, heads: usize| rng.normals(all * heads * head_dim);
        let (q, k, v) = (new(&mut rng, *heads), new(&mut rng, kv_heads), new(&mut rng, kv_heads));
        let (table, frequencies) = table(device, *rotated, *pairing)?;
        let cache = CubeKvCache::empty(device, *shape)?;
        // What is in the cache before: 7 everywhere.
        let before = device.upload(&vec![7f32; capacity * kv_heads * head_dim])?;
        let slots = Positions::upload(device, &(0..capacity as u32).collect::<Vec<_>>())?;
        device.store(
            &before,
            &before,
            &CacheSegment { rows: 0..capacity, positions: &slots, cache: &cache },
        )?;
        let [turned, keys, values] = [device.upload(&q)?, device.upload(&k)?, device.upload(&v)?];
        let at = Positions::upload(device, positions)?;
        let segment = CacheSegment { rows: rows.clone(), positions: &at, cache: &cache };
        device.rotate_and_store(&turned, &keys, &values, &segment, &table)?;

        let turn = |x: &[f32], heads: usize| -> Vec<f64> {
            let mut out: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
            let of_rows = out.chunks_mut(heads * head_dim).zip(positions).enumerate();
            for (_, (row, position)) in of_rows.filter(|(row, _)| rows.contains(row)) {
                for head in row.chunks_mut(head_dim) {
                    for (i, frequency) in frequencies.iter().enumerate() {
                        let (sin, cos) = f64::from(*position as f32 * frequency).sin_cos();
                        let (low, high) = match pairing {
                            RopePairing::Adjacent => (2 * i, 2 * i + 1),
                            RopePairing::Halves => (i, i + rotated / 2),
                        };
                        let (a, b) = (head[low], head[high]);
                        (head[low], head[high]) = (a * cos - b * sin, a * sin + b * cos);
                    }
                }
            }
            out
        };
        oracle.within("queries", &device.read(&turned)?, &turn(&q, *heads), 2e-6)?;
        oracle.exact("keys as given", &device.read(&keys)?, &k)?;
        let turned = turn(&k, kv_heads);
        let given: Vec<f64> = v.iter().map(|&v| f64::from(v)).collect();
        let mut want =
            [vec![7f64; capacity * kv_heads * head_dim], vec![7f64; capacity * kv_heads * head_dim]];
        for row in rows.clone() {
            for head in 0..kv_heads {
                let from = (row * kv_heads + head) * head_dim;
                let to = (head * capacity + positions[row] as usize % capacity) * head_dim;
                want[0][to..][..head_dim].copy_from_slice(&turned[from..][..head_dim]);
                want[1][to..][..head_dim].copy_from_slice(&given[from..][..head_dim]);
            }
        }
        let (got_keys, got_values) = cache.read(device)?;
        for (what, got, want) in [("keys", got_keys, &want[0]), ("values", got_values, &want[1])] {
            for (got, want) in got.chunks(head_dim).zip(want.chunks(head_dim)) {
                let largest = want.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                let tolerance = match precision {
                    KvPrecision::F32 => 2e-6,
                    KvPrecision::F16 => 2e-3,
                    // Half a step of the codes, and what rounding of the rotation makes of it.
                    _ => 0.5 * largest / 127.0 + 2e-6,
                };
                oracle.within(what, got, want, tolerance)?;
            }
        }
        Ok(())
    }
}

fn refusals(oracle: &Oracle, device: &CubeDevice) -> Verdict {
    let shape = CacheShape { kv_heads: 2, head_dim: 8, capacity: 10, precision: KvPrecision::F32 };
    let cache = CubeKvCache::empty(device, shape)?;
    let (table, _) = table(device, 8, RopePairing::Halves)?;
    let [q, k, v] =
        [device.upload(&[0.5f32; 3 * 32])?, device.upload(&[0.5f32; 48])?, device.upload(&[0.5f32; 48])?];
    let at = |values: &[u32]| Positions::upload(device, values);
    let fits = at(&[7, 8, 9])?;
    let of = |positions| CacheSegment { rows: 0..3, positions, cache: &cache };
    device.rotate_and_store(&q, &k, &v, &of(&fits), &table)?;
    let odd = device.upload(&[0f32; 31])?;
    let refused = device.rotate_and_store(&odd, &k, &v, &of(&fits), &table);
    oracle.refused("queries", refused, |e| matches!(e, CubeError::NotMultiple { unit: 24, got: 31, .. }))?;
    let refused = device.rotate_and_store(&q, &q, &v, &of(&fits), &table);
    oracle.refused("keys", refused, |e| matches!(e, CubeError::Length { expected: 48, got: 96, .. }))?;
    let holes = at(&[7, 9, 10])?;
    let refused = device.rotate_and_store(&q, &k, &v, &of(&holes), &table);
    oracle.refused(
        "holes",
        refused,
        |e| matches!(e, CubeError::Mismatch { what, .. } if what == "position of row 1"),
    )?;
    let past = at(&[TABLE as u32 - 1, TABLE as u32, TABLE as u32 + 1])?;
    let refused = device.rotate_and_store(&q, &k, &v, &of(&past), &table);
    oracle.refused(
        "position",
        refused,
        |e| matches!(e, CubeError::Range { maximum, got, .. } if *maximum == TABLE - 1 && *got == TABLE + 1),
    )?;
    let refused = device.rotate_and_store(&k, &k, &v, &of(&fits), &table);
    oracle.refused("in place", refused, |e| matches!(e, CubeError::Overlap { .. }))?;
    let wide = CubeRopeTable::upload(device, &[0.5; 5], TABLE, RopePairing::Halves)?;
    let refused = device.rotate_and_store(&q, &k, &v, &of(&fits), &wide);
    oracle.refused("rotated elements", refused, |e| matches!(e, CubeError::Range { .. }))
}
