//! Gradients of the root-mean-square norm.
//!
//! With `r = 1 / sqrt(mean(x^2) + eps)` a row is `y_i = x_i r w_i`, and `dr / dx_i = -r^3 x_i / n`.

use cubecl::prelude::*;

use super::{SUM_UNITS, check_apart, per_cube, rows_of};
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len};
use crate::reduce::sum_floats;

/// The reciprocal root-mean-square of a row; all units call it.
#[cube]
fn inverse_rms(x: &[f32], first: usize, cols: usize, eps: f32, shared: &mut Shared<[f32]>) -> f32 {
    let mut sum = 0.0f32;
    let mut col = UNIT_POS as usize;
    while col < cols {
        let value = x[first + col];
        sum += value * value;
        col += SUM_UNITS;
    }
    let total = sum_floats(sum, shared, SUM_UNITS, false);
    1.0 / f32::sqrt(total / f32::cast_from(cols as u32) + eps)
}

/// Cube `i` computes row `i` of the gradient; unit `u` has columns `u, u + 64, ..`.
#[cube(launch_unchecked)]
fn input(x: &[f32], weight: &[f32], dy: &[f32], dx: &mut [f32], rows: u32, cols: u32, eps: f32) {
    let mut shared = Shared::<[f32]>::new_slice(SUM_UNITS);
    if CUBE_POS < rows as usize {
        let cols = cols as usize;
        let first = CUBE_POS * cols;
        let r = inverse_rms(x, first, cols, eps, &mut shared);
        let mut sum = 0.0f32;
        let mut col = UNIT_POS as usize;
        while col < cols {
            sum += weight[col] * dy[first + col] * x[first + col];
            col += SUM_UNITS;
        }
        let along = sum_floats(sum, &mut shared, SUM_UNITS, false) * r * r * r / f32::cast_from(cols as u32);
        let mut col = UNIT_POS as usize;
        while col < cols {
            dx[first + col] = weight[col] * dy[first + col] * r - x[first + col] * along;
            col += SUM_UNITS;
        }
    }
}

/// Cube `i` writes the reciprocal root-mean-square of row `i`.
#[cube(launch_unchecked)]
fn factors(x: &[f32], out: &mut [f32], cols: u32, eps: f32) {
    let mut shared = Shared::<[f32]>::new_slice(SUM_UNITS);
    if CUBE_POS < out.len() {
        let r = inverse_rms(x, CUBE_POS * cols as usize, cols as usize, eps, &mut shared);
        if UNIT_POS == 0 {
            out[CUBE_POS] = r;
        }
    }
}

fn check_eps(eps: f32) -> Result<()> {
    match eps.is_finite() && eps >= 0.0 {
        true => Ok(()),
        false => Err(CubeError::NonFinite { what: "eps of a norm", index: 0, value: eps }),
    }
}

impl CubeDevice {
    /// Gradient of [`CubeDevice::rms_norm`] with respect to its input, rows with as many columns as the weight.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotMultiple`] and [`CubeError::Length`] for lengths that do not match, [`CubeError::NonFinite`] for an invalid
    /// `eps`, [`CubeError::Overlap`], and those of the launch.
    pub fn rms_norm_input(
        &self,
        x: &Buffer<f32>,
        weight: &Buffer<f32>,
        eps: f32,
        dy: &Buffer<f32>,
        dx: &Buffer<f32>,
    ) -> Result<()> {
        let cols = weight.len();
        let rows = rows_of("input of a norm", x.len(), cols)?;
        check_len("gradient of a norm's output", x.len(), dy.len())?;
        check_len("gradient of a norm's input", x.len(), dx.len())?;
        check_eps(eps)?;
        check_apart("gradient of a norm's input", dx, &[x, weight, dy])?;
        let launch = Launch::new("norm input", &(), per_cube(rows, 4, SUM_UNITS));
        self.launch(&launch, &[dx], |client, cubes, units| {
            let (rows, cols) = (rows as u32, cols as u32);
            // SAFETY: the lengths were checked above, and the kernel checks its row and its columns.
            unsafe {
                input::launch_unchecked(
                    client,
                    cubes,
                    units,
                    x.arg(),
                    weight.arg(),
                    dy.arg(),
                    dx.arg(),
                    rows,
                    cols,
                    eps,
                );
            }
        })
    }

    /// Gradient of [`CubeDevice::rms_norm`] with respect to its weight: the sum over all rows.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::rms_norm_input`].
    pub fn rms_norm_weight(
        &self,
        x: &Buffer<f32>,
        eps: f32,
        dy: &Buffer<f32>,
        dw: &Buffer<f32>,
    ) -> Result<()> {
        let cols = dw.len();
        let rows = rows_of("input of a norm", x.len(), cols)?;
        check_len("gradient of a norm's output", x.len(), dy.len())?;
        check_eps(eps)?;
        check_apart("gradient of a norm's weight", dw, &[x, dy])?;
        let scales = self.empty(rows)?;
        let launch = Launch::new("norm factors", &(), per_cube(rows, 2, SUM_UNITS));
        self.launch(&launch, &[&scales], |client, cubes, units| {
            // SAFETY: `x` has a row of `cols` elements per element of the output, against whose length the kernel checks its row.
            unsafe {
                factors::launch_unchecked(client, cubes, units, x.arg(), scales.arg(), cols as u32, eps);
            }
        })?;
        self.weighted_sum_rows(x, Some([dy, &scales]), dw)
    }
}
