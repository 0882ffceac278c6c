//! Top-k of rows.

use std::cmp::Ordering;

use trike_cube::ops::{Indices, TopBlueprint, TopProblem};
use trike_cube::{CubeError, Strategy};
use trike_testkit::Rng;

use crate::session::{Session, poisoned};

/// NaN first, then descending; both zeros are equal.
fn order(a: f32, b: f32) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (false, false) => b.partial_cmp(&a).expect("numbers"),
    }
}

fn sorted(row: &[f32], k: usize) -> Vec<u32> {
    let mut columns: Vec<u32> = (0..row.len() as u32).collect();
    // Stable: equal values stay in column order.
    columns.sort_by(|&a, &b| order(row[a as usize], row[b as usize]));
    columns.truncate(k);
    columns
}

/// One row and several, one pass and more, ties, both zeros, infinities and NaN.
pub fn sampling(session: &mut Session) {
    let device = session.device();
    let mut rng = Rng::new(77);
    let mut table: Vec<(String, usize, usize, Vec<f32>)> = Vec::new();
    for (rows, cols, k) in
        [(1, 1, 1), (2, 5, 5), (3, 70, 4), (1, 1025, 1), (2, 5000, 1), (2, 5000, 40), (1, 20_011, 64)]
    {
        table.push((format!("{rows}x{cols}, {k} of them"), cols, k, rng.normals(rows * cols)));
    }
    let few = (0..3000).map(|_| rng.below(3) as f32 - 1.0).collect();
    table.push(("ties".to_owned(), 3000, 20, few));
    table.push(("all equal".to_owned(), 2100, 3, vec![f32::NEG_INFINITY; 2100]));
    table.push(("zeros".to_owned(), 4, 4, vec![-0.0, 0.0, -0.0, 1.0]));
    let edges =
        [1.0, f32::INFINITY, -f32::NAN, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, 1e-45, -1e-45];
    table.push(("edges".to_owned(), 9, 9, edges.to_vec()));
    for (name, cols, k, x) in &table {
        let problem = TopProblem { rows: x.len() / cols, cols: *cols, k: *k };
        session.each(name, &problem, |oracle, strategy| {
            let values = poisoned(device, problem.rows * k)?;
            let found = device.top(&device.upload(x)?, *cols, *k, &values, strategy)?;
            let (got, got_values) = (found.read(device)?, device.read(&values)?);
            if !oracle.compares() {
                return Ok(());
            }
            let want: Vec<u32> = x.chunks(*cols).flat_map(|row| sorted(row, *k)).collect();
            oracle.exact("columns", &got, &want)?;
            let rows = want.chunks(*k).zip(x.chunks(*cols));
            let numbers = rows.flat_map(|(columns, row)| columns.iter().map(|&c| row[c as usize]));
            // The bits of NaN and the sign of zero are ignored.
            let bits = |v: f32| if v.is_nan() { u32::MAX } else { (v + 0.0).to_bits() };
            let want: Vec<u32> = numbers.map(bits).collect();
            oracle.exact("numbers", &got_values.into_iter().map(bits).collect::<Vec<_>>(), &want)
        });
    }
    session.case("a search refuses what does not fit", |oracle| {
        let x = device.upload(&[1f32; 40])?;
        let values = poisoned(device, 4)?;
        let top = |cols, k, strategy: &Strategy<TopBlueprint>| device.top(&x, cols, k, &values, strategy);
        let strategy = &Strategy::Inferred;
        let found: Indices = top(20, 2, strategy)?;
        oracle.exact("bound", &[found.bound() as usize, found.len()], &[20, 4])?;
        for k in [0, 11] {
            oracle
                .refused("k", top(10, k, strategy), |e| matches!(e, CubeError::Range { maximum: 10, .. }))?;
        }
        oracle.refused("rows", top(39, 1, strategy), |e| {
            matches!(e, CubeError::NotMultiple { unit: 39, got: 40, .. })
        })?;
        oracle
            .refused("rows", top(0, 1, strategy), |e| matches!(e, CubeError::NotMultiple { unit: 0, .. }))?;
        oracle.refused("values", top(40, 3, strategy), |e| {
            matches!(e, CubeError::Length { expected: 3, got: 4, .. })
        })?;
        let refused = device.top(&x, 40, 40, &x, strategy);
        oracle.refused("in place", refused, |e| matches!(e, CubeError::Overlap { .. }))?;
        for (units, each) in [(48, 8), (32, 0), (1, 3)] {
            let refused = top(20, 2, &Strategy::Forced(TopBlueprint { units, each }));
            oracle.refused("blueprint", refused, |e| {
                matches!(e, CubeError::NotMultiple { .. } | CubeError::Range { .. })
            })?;
        }
        Ok(())
    });
}
