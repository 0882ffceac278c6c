//! Conversion of the codes and grids of a matrix to a tensor.

use half::f16;
use trike_trit::{Coupling, Granularity, ScaleValues, Scales, TritTensor};

use crate::{Grid, QuantError, ScaleType, TritLayout};

/// The scales and means of the grids of a matrix. `grids` is in the order of means: one, one per row, or `[row][group]`.
pub(crate) fn scales(grids: &[Grid], layout: &TritLayout) -> Scales {
    let sets = if layout.coupling == Coupling::Free { layout.depth } else { 1 };
    let values: Vec<f32> = (0..sets).flat_map(|set| grids.iter().map(move |g| g.scales()[set])).collect();
    let means: Option<Vec<f32>> = layout.with_mean.then(|| grids.iter().map(Grid::mean).collect());
    stored_as(layout.granularity, values, means, layout.scales == ScaleType::F16)
}

/// Scales and means in f16 if `half` is set and all values fit, otherwise in f32.
pub(crate) fn stored_as(
    granularity: Granularity,
    values: Vec<f32>,
    means: Option<Vec<f32>>,
    half: bool,
) -> Scales {
    let half = half && fits_f16(&values) && means.as_deref().is_none_or(fits_f16);
    let store = |values: Vec<f32>| match half {
        true => ScaleValues::F16(values.into_iter().map(f16::from_f32).collect()),
        false => ScaleValues::F32(values),
    };
    Scales::new(granularity, store(values), means.map(store))
}

/// Whether all values round to f16 with the relative error of normal numbers. Values far below the largest may be less precise,
/// because they contribute little.
fn fits_f16(values: &[f32]) -> bool {
    let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
    values.iter().all(|&v| {
        let error = (f16::from_f32(v).to_f32() - v).abs();
        error.is_finite() && error <= v.abs() * 1e-3 + largest * 1e-5
    })
}

/// The grids reconstructed from the stored `scales`.
pub(crate) fn stored_grids(scales: &Scales, layout: &TritLayout, count: usize) -> Vec<Grid> {
    let value = |i: usize| scales.values().get(i).unwrap_or(0.0);
    (0..count)
        .map(|i| {
            let mean = scales.means().and_then(|m| m.get(i)).unwrap_or(0.0);
            match layout.coupling {
                Coupling::Free => {
                    let each: Vec<f32> = (0..layout.depth).map(|p| value(p * count + i)).collect();
                    Grid::free(&each, mean)
                }
                Coupling::Tied => {
                    Grid::tied(layout.depth, value(i) / 3f32.powi(layout.depth as i32 - 1), mean)
                }
            }
        })
        .collect()
}

/// A tensor of `rows * cols` codes.
pub(crate) fn tensor(
    rows: usize,
    cols: usize,
    codes: &[i16],
    scales: Scales,
    layout: &TritLayout,
) -> Result<TritTensor, QuantError> {
    let mut planes = vec![Vec::with_capacity(codes.len()); layout.depth];
    for &code in codes {
        for (plane, trit) in planes.iter_mut().zip(Grid::trits(code, layout.depth)) {
            plane.push(trit);
        }
    }
    let planes: Vec<&[i8]> = planes.iter().map(Vec::as_slice).collect();
    Ok(TritTensor::from_planes(rows, cols, &planes, layout.encoding, layout.coupling, scales)?)
}

/// Spans `(start, end)` of the row-major matrix that share a grid, in the order of the grids.
pub(crate) fn spans(rows: usize, cols: usize, granularity: Granularity) -> Vec<(usize, usize)> {
    match granularity {
        Granularity::Tensor => vec![(0, rows * cols)],
        _ => {
            let len = granularity.group_len(cols);
            (0..rows)
                .flat_map(|r| {
                    (0..cols).step_by(len).map(move |c| (r * cols + c, r * cols + (c + len).min(cols)))
                })
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fits_f16;

    #[test]
    fn what_an_f16_holds() {
        assert!(fits_f16(&[0.0, 1.0, 0.02, 6e4]));
        assert!(!fits_f16(&[7e4]), "too large");
        assert!(!fits_f16(&[1e-7]), "too small to be precise");
        assert!(fits_f16(&[1e-7, 0.1]), "negligible next to a large value");
    }
}
