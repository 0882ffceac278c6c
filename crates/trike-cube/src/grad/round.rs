//! Fake int8 quantization of activations and weights, in f32.

use cubecl::prelude::*;

use super::{SUM_UNITS, check_apart, each, per_cube, rows_of};
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_range};
use crate::math::{magnitude, nearest};
use crate::reduce::max_words;

/// Bits of f32 infinity.
const INFINITE: u32 = 0x7F80_0000;

/// Cube `i` rounds group `i % groups` of row `i / groups`, at most `group` columns of it.
#[cube(launch_unchecked)]
fn activations(x: &[f32], out: &mut [f32], rows: u32, width: u32, group: u32, groups: u32, smallest: f32) {
    let mut shared = Shared::<[u32]>::new_slice(SUM_UNITS);
    let (width, group, groups) = (width as usize, group as usize, groups as usize);
    if CUBE_POS < rows as usize * groups {
        let (row, start) = (CUBE_POS / groups, CUBE_POS % groups * group);
        let end = row * width + clamp_max(start + group, width);
        let mut most = u32::reinterpret(smallest);
        let mut at = row * width + start + UNIT_POS as usize;
        while at < end {
            most = max(most, magnitude(x[at]));
            at += SUM_UNITS;
        }
        // As integers, magnitudes sort like floats, with NaN last: a group with a NaN becomes NaN.
        let scale = f32::reinterpret(max_words(most, &mut shared, SUM_UNITS, false)) / 127.0;
        let mut at = row * width + start + UNIT_POS as usize;
        while at < end {
            out[at] = f32::cast_from(clamp(nearest(x[at] / scale), -128, 127)) * scale;
            at += SUM_UNITS;
        }
    }
}

/// A nonnegative number rounded to f16, ties to even; infinite from 65520 on.
#[cube]
fn half_of(x: f32) -> f32 {
    let bits = u32::reinterpret(x);
    let wide = (bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFF_E000;
    // Below 2^-14 the spacing is 2^-24.
    let small = f32::cast_from(nearest(x * 16_777_216.0)) * 5.960_464_5e-8;
    let value = select(bits < 0x3880_0000, small, f32::reinterpret(wide));
    let value = select(wide >= 0x4780_0000, f32::reinterpret(INFINITE.runtime()), value);
    select(bits > INFINITE, x, value)
}

/// Unit `i` rounds group `i % groups` of row `i / groups`.
#[cube(launch_unchecked)]
fn weights(x: &[f32], out: &mut [f32], rows: u32, cols: u32, group: u32, groups: u32) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    let (cols, group, groups) = (cols as usize, group as usize, groups as usize);
    if i < rows as usize * groups {
        let (row, start) = (i / groups, i % groups * group);
        let len = clamp_max(start + group, cols) - start;
        let first = row * cols + start;
        let mut most = 0u32;
        for col in 0..len {
            most = max(most, magnitude(x[first + col]));
        }
        let scale = half_of(f32::reinterpret(most) / 127.0);
        for col in 0..len {
            let at = first + col;
            // The scale is 0 if the group is all zeros or the scale underflows f16, but NaN propagates.
            let mut value = 0.0f32;
            if u32::reinterpret(scale) != 0 {
                value = f32::cast_from(clamp(nearest(x[at] / scale), -127, 127)) * scale;
            }
            out[at] = value;
        }
    }
}

impl CubeDevice {
    /// `out = a clamp(round(x / a), -128, 127)` with `a = max(max|x|, smallest) / 127` over `group` consecutive elements of a row of
    /// `width`, the last group of which may be shorter. Ties are rounded to even. A group with a NaN becomes NaN.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotMultiple`], [`CubeError::Length`] and [`CubeError::Range`] for lengths that do not match,
    /// [`CubeError::NonFinite`] for a `smallest` that is not positive, [`CubeError::Overlap`], and those of the launch.
    pub fn round_activations(
        &self,
        x: &Buffer<f32>,
        width: usize,
        group: usize,
        smallest: f32,
        out: &Buffer<f32>,
    ) -> Result<()> {
        let rows = rows_of("activations to round", x.len(), width)?;
        check_range("group of activations", 1, width, group)?;
        check_len("rounded activations", x.len(), out.len())?;
        check_apart("activations before and after rounding", out, &[x])?;
        if !(smallest.is_finite() && smallest > 0.0) {
            let what = "smallest magnitude of activations";
            return Err(CubeError::NonFinite { what, index: 0, value: smallest });
        }
        let groups = width.div_ceil(group);
        let launch = Launch::new("round activations", &(), per_cube(rows * groups, 2, SUM_UNITS));
        self.launch(&launch, &[out], |client, cubes, units| {
            let [rows, width, group, groups] = [rows, width, group, groups].map(|n| n as u32);
            // SAFETY: both buffers have `rows` rows of `width` elements, and the kernel checks its group and its columns.
            unsafe {
                activations::launch_unchecked(
                    client,
                    cubes,
                    units,
                    x.arg(),
                    out.arg(),
                    rows,
                    width,
                    group,
                    groups,
                    smallest,
                );
            }
        })
    }

    /// Fake int8 quantization with an f16 scale per `group` columns of a row: `out = a clamp(round(x / a), -127, 127)` with `a =
    /// max|x| / 127` rounded to f16. A group with a NaN, or with a scale beyond f16, becomes NaN.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::round_activations`].
    pub fn round_weights(&self, x: &Buffer<f32>, cols: usize, group: usize, out: &Buffer<f32>) -> Result<()> {
        let rows = rows_of("weights to round", x.len(), cols)?;
        check_range("group of weights", 1, u32::MAX as usize, group)?;
        check_len("rounded weights", x.len(), out.len())?;
        check_apart("weights before and after rounding", out, &[x])?;
        let group = group.min(cols);
        let groups = cols.div_ceil(group);
        let launch = Launch::new("round weights", &(), each(rows * groups, 2)?);
        self.launch(&launch, &[out], |client, cubes, units| {
            let [rows, cols, group, groups] = [rows, cols, group, groups].map(|n| n as u32);
            // SAFETY: both buffers have `rows` rows of `cols` elements, and the kernel checks its group and its columns.
            unsafe {
                weights::launch_unchecked(
                    client,
                    cubes,
                    units,
                    x.arg(),
                    out.arg(),
                    rows,
                    cols,
                    group,
                    groups,
                );
            }
        })
    }
}
