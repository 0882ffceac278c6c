//! Gated activations, sums, rotary embeddings and lookups.

use half::{bf16, f16};
use trike_cube::attention::Positions;
use trike_cube::linear::{CubeDenseMatrix, DenseKind, DenseValues};
use trike_cube::ops::{
    CubeRopeTable, Elementwise, ElementwiseProblem, GatedActivation, Indices, LookupProblem, RopePairing,
    RopeProblem,
};
use trike_cube::{CubeDevice, CubeError, Strategy};
use trike_testkit::Rng;

use crate::session::{Session, poisoned};

/// All elementwise operations.
pub fn elementwise(session: &mut Session) {
    gates_and_sums(session);
    ropes(session);
    lookups(session);
}

fn gates_and_sums(session: &mut Session) {
    let device = session.device();
    for activation in [GatedActivation::SiLu, GatedActivation::SquaredReLu] {
        for len in [1, 3, 4, 130, 1028] {
            let problem = ElementwiseProblem { operation: Elementwise::Gated(activation), len };
            session.each(format_args!("{activation:?} of {len}"), &problem, |oracle, strategy| {
                let mut rng = Rng::new(len as u64);
                let mut gate: Vec<f32> = rng.normals(len).iter().map(|g| 8.0 * g).collect();
                if len > 4 {
                    gate[..4].copy_from_slice(&[-120.0, 0.0, 95.0, -87.5]);
                }
                let up = rng.normals(len);
                let out = poisoned(device, len)?;
                device.gated(&device.upload(&gate)?, &device.upload(&up)?, activation, &out, strategy)?;
                let silu = |g: f64| g / (1.0 + (-g).exp());
                let pairs = gate.iter().zip(&up);
                let (exact, plain): (Vec<f64>, Vec<f32>) = match activation {
                    GatedActivation::SiLu => pairs
                        .map(|(&g, &u)| (silu(f64::from(g)) * f64::from(u), g / (1.0 + (-g).exp()) * u))
                        .unzip(),
                    GatedActivation::SquaredReLu => pairs
                        .map(|(&g, &u)| {
                            (f64::from(g.max(0.0)).powi(2) * f64::from(u), g.max(0.0) * g.max(0.0) * u)
                        })
                        .unzip(),
                };
                oracle.twice_plain("gated", &device.read(&out)?, &exact, &plain, len, 2e-7)
            });
        }
    }
    for (len, period) in [(1, 1), (7, 7), (128, 128), (1030, 1030), (12, 3), (5 * 132, 132), (3 * 5, 5)] {
        let problem = ElementwiseProblem { operation: Elementwise::Add(period), len };
        session.each(format_args!("sum of {len} and {period}"), &problem, |oracle, strategy| {
            let mut rng = Rng::new(len as u64);
            let (x, y) = (rng.normals(len), rng.normals(period));
            let sum = device.upload(&x)?;
            device.add(&sum, &device.upload(&y)?, strategy)?;
            let want: Vec<f32> = x.iter().zip(y.iter().cycle()).map(|(x, y)| x + y).collect();
            oracle.exact("sum", &device.read(&sum)?, &want)
        });
    }
    session.case("gates and sums refuse what does not fit", |oracle| {
        let (x, y) = (device.upload(&[1f32; 12])?, device.upload(&[1f32; 8])?);
        let strategy = &Strategy::Inferred;
        let refused = device.add(&x, &y, strategy);
        oracle.refused("bias", refused, |e| matches!(e, CubeError::NotMultiple { unit: 8, got: 12, .. }))?;
        oracle.refused("itself", device.add(&x, &x, strategy), |e| matches!(e, CubeError::Overlap { .. }))?;
        let relu = GatedActivation::SquaredReLu;
        let refused = device.gated(&x, &y, relu, &x, strategy);
        oracle.refused("up", refused, |e| matches!(e, CubeError::Length { expected: 12, got: 8, .. }))?;
        let refused = device.gated(&x, &x, relu, &y, strategy);
        oracle.refused("output", refused, |e| matches!(e, CubeError::Length { expected: 12, got: 8, .. }))?;
        let refused = device.gated(&x, &x, relu, &x, strategy);
        oracle.refused("in place", refused, |e| matches!(e, CubeError::Overlap { .. }))
    });
    session.case("gates let NaN pass", |oracle| {
        let gate = device.upload(&[f32::NAN, 1.0])?;
        for activation in [GatedActivation::SiLu, GatedActivation::SquaredReLu] {
            let out = poisoned(device, 2)?;
            let up = device.upload(&[1f32; 2])?;
            device.gated(&gate, &up, activation, &out, &Strategy::Inferred)?;
            let nan: Vec<bool> = device.read(&out)?.iter().map(|v| v.is_nan()).collect();
            oracle.exact("NaN", &nan, &[true, false])?;
        }
        Ok(())
    });
}

fn ropes(session: &mut Session) {
    let device = session.device();
    for pairing in [RopePairing::Adjacent, RopePairing::Halves] {
        for (tokens, heads, head_dim, rotated) in
            [(1, 1, 2, 2), (3, 5, 32, 32), (2, 3, 80, 80), (4, 2, 96, 48)]
        {
            let problem = RopeProblem { tokens, heads, head_dim, rotated, pairing };
            let name = format!("{tokens}x{heads}x{head_dim}, {rotated} {pairing:?}");
            session.each(name, &problem, |oracle, strategy| {
                let mut rng = Rng::new(head_dim as u64);
                let x = rng.normals(tokens * heads * head_dim);
                let frequency = |i: usize| 10_000f64.powf(-2.0 * i as f64 / rotated as f64) as f32;
                let frequencies: Vec<f32> = (0..rotated / 2).map(frequency).collect();
                let positions: Vec<u32> = (0..tokens as u32).map(|t| (t * 37 + 11) % 100).collect();
                let turned = device.upload(&x)?;
                let table = CubeRopeTable::upload(device, &frequencies, 100, pairing)?;
                let at = Positions::upload(device, &positions)?;
                device.rope(&turned, head_dim, &at, &table, strategy)?;
                let mut want: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
                for (head, want) in want.chunks_mut(head_dim).enumerate() {
                    for (i, frequency) in frequencies.iter().enumerate() {
                        let (sin, cos) = f64::from(positions[head / heads] as f32 * frequency).sin_cos();
                        let (low, high) = match pairing {
                            RopePairing::Adjacent => (2 * i, 2 * i + 1),
                            RopePairing::Halves => (i, i + rotated / 2),
                        };
                        let (a, b) = (want[low], want[high]);
                        (want[low], want[high]) = (a * cos - b * sin, a * sin + b * cos);
                    }
                }
                oracle.within("turned", &device.read(&turned)?, &want, 1e-6)
            });
        }
    }
    session.case("rope refuses what does not fit", |oracle| {
        let pairing = RopePairing::Halves;
        let table = CubeRopeTable::upload(device, &[1.0, 0.5], 10, pairing)?;
        let x = device.upload(&[1f32; 3 * 2 * 4])?;
        let strategy = &Strategy::Inferred;
        let at = |values: &[u32]| Positions::upload(device, values);
        device.rope(&x, 4, &at(&[0, 9, 3])?, &table, strategy)?;
        let refused = device.rope(&x, 4, &at(&[0, 10, 3])?, &table, strategy);
        oracle.refused("position", refused, |e| matches!(e, CubeError::Range { maximum: 9, got: 10, .. }))?;
        let refused = device.rope(&x, 4, &at(&[0; 5])?, &table, strategy);
        oracle
            .refused("tokens", refused, |e| matches!(e, CubeError::NotMultiple { unit: 20, got: 24, .. }))?;
        let refused = device.rope(&x, 2, &at(&[0; 3])?, &table, strategy);
        oracle.refused("head", refused, |e| matches!(e, CubeError::Range { minimum: 4, got: 2, .. }))?;
        let refused = CubeRopeTable::upload(device, &[1.0, f32::NAN], 10, pairing);
        oracle.refused("frequency", refused, |e| matches!(e, CubeError::NonFinite { index: 1, .. }))?;
        for (frequencies, positions) in [(0, 10), (2, 0)] {
            let refused = CubeRopeTable::upload(device, &vec![1.0; frequencies], positions, pairing);
            oracle.refused("empty", refused, |e| matches!(e, CubeError::Range { got: 0, .. }))?;
        }
        Ok(())
    });
}

/// A table of `rows x cols`, and its values in f32.
fn table(
    device: &CubeDevice,
    rows: usize,
    cols: usize,
    kind: DenseKind,
) -> trike_cube::Result<(CubeDenseMatrix, Vec<f32>)> {
    let mut rng = Rng::new(cols as u64);
    let values = rng.normals(rows * cols);
    let (matrix, floats) = match kind {
        DenseKind::F32 => (CubeDenseMatrix::upload(device, rows, cols, DenseValues::F32(&values)), values),
        DenseKind::F16 => {
            let halves: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
            let floats = halves.iter().map(|v| v.to_f32()).collect();
            (CubeDenseMatrix::upload(device, rows, cols, DenseValues::F16(&halves)), floats)
        }
        DenseKind::Bf16 => {
            let halves: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
            let floats = halves.iter().map(|v| v.to_f32()).collect();
            (CubeDenseMatrix::upload(device, rows, cols, DenseValues::Bf16(&halves)), floats)
        }
        DenseKind::Int8 => {
            let group = 12.min(cols);
            let codes: Vec<i8> = (0..rows * cols).map(|_| rng.below(256) as u8 as i8).collect();
            let scales: Vec<f32> = rng.normals(rows * cols.div_ceil(group));
            let of_row = codes.chunks(cols).flat_map(|row| row.chunks(group));
            let floats =
                of_row.zip(&scales).flat_map(|(codes, s)| codes.iter().map(move |&c| f32::from(c) * s));
            let floats = floats.collect();
            let values = DenseValues::Int8 { codes: &codes, scales: &scales, group };
            (CubeDenseMatrix::upload(device, rows, cols, values), floats)
        }
    };
    Ok((matrix?, floats))
}

fn lookups(session: &mut Session) {
    let device = session.device();
    for kind in [DenseKind::F32, DenseKind::F16, DenseKind::Bf16, DenseKind::Int8] {
        for (rows, cols) in [(1, 1), (9, 13), (5, 64), (7, 100)] {
            let (matrix, floats) = match table(device, rows, cols, kind) {
                Ok(made) => made,
                Err(error) => {
                    session.case(format_args!("{kind:?} {rows}x{cols}"), |_| Err(error.into()));
                    continue;
                }
            };
            let ids: Vec<u32> = (0..6).map(|i| (i * 5 % rows) as u32).collect();
            let problem = LookupProblem { count: ids.len(), table: matrix.form() };
            session.each(format_args!("{kind:?} {rows}x{cols}"), &problem, |oracle, strategy| {
                let out = poisoned(device, ids.len() * cols)?;
                let on_device = Indices::upload(device, &ids, rows as u32)?;
                device.lookup(&matrix, &on_device, &out, strategy)?;
                let row = |&id: &u32| floats[id as usize * cols..][..cols].to_vec();
                oracle.exact("rows", &device.read(&out)?, &ids.iter().flat_map(row).collect::<Vec<_>>())
            });
        }
    }
    session.case("rows are selected", |oracle| {
        let x: Vec<f32> = (0..5 * 33).map(|i| i as f32).collect();
        let on_device = device.upload(&x)?;
        let rows = Indices::upload(device, &[4, 0, 4], 5)?;
        let out = poisoned(device, 3 * 33)?;
        device.select_rows(&on_device, 33, &rows, &out)?;
        let want: Vec<f32> = [4, 0, 4].into_iter().flat_map(|row| x[row * 33..][..33].to_vec()).collect();
        oracle.exact("selected", &device.read(&out)?, &want)?;
        rows.write(device, &[1, 2, 3])?;
        device.select_rows(&on_device, 33, &rows, &out)?;
        oracle.exact("selected", &device.read(&out)?, &x[33..4 * 33])?;
        let refused = rows.write(device, &[1, 2, 5]);
        oracle.refused("row", refused, |e| matches!(e, CubeError::Range { maximum: 4, got: 5, .. }))?;
        let refused = Indices::upload(device, &[5], 5);
        oracle.refused("row", refused, |e| matches!(e, CubeError::Range { maximum: 4, got: 5, .. }))?;
        let over = Indices::upload(device, &[0; 3], 6)?;
        let refused = device.select_rows(&on_device, 33, &over, &out);
        oracle.refused("bound", refused, |e| matches!(e, CubeError::Range { maximum: 5, got: 6, .. }))?;
        let refused = device.select_rows(&on_device, 34, &rows, &out);
        oracle.refused("columns", refused, |e| {
            matches!(e, CubeError::NotMultiple { unit: 34, got: 165, .. })
        })?;
        let refused = device.select_rows(&on_device, 33, &rows, &on_device);
        oracle
            .refused("output", refused, |e| matches!(e, CubeError::Length { expected: 99, got: 165, .. }))?;
        let (matrix, _) = table(device, 5, 33, DenseKind::F32)?;
        let refused = device.lookup(&matrix, &over, &out, &Strategy::Inferred);
        oracle.refused("bound", refused, |e| matches!(e, CubeError::Range { maximum: 5, got: 6, .. }))?;
        let refused = device.lookup(&matrix, &rows, &on_device, &Strategy::Inferred);
        oracle.refused("output", refused, |e| matches!(e, CubeError::Length { expected: 99, got: 165, .. }))
    });
}
