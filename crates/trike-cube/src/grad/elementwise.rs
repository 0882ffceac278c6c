//! Elementwise operations, and sums of rows.

use cubecl::prelude::*;
use trike_core::GatedActivation;

use super::{check_apart, each, rows_of};
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{Result, check_len};
use crate::math::exp;

/// Rows that one unit adds up.
pub(super) const SLAB: usize = 256;

/// Unit `i` copies element `i`.
#[cube(launch_unchecked)]
fn copy(from: &[f32], to: &mut [f32]) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < to.len() {
        to[i] = from[i];
    }
}

/// Unit `i` multiplies element `i`.
#[cube(launch_unchecked)]
fn scale(x: &mut [f32], by: f32) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < x.len() {
        x[i] *= by;
    }
}

/// Unit `i` multiplies element `i` by the element of `by`; a factor of one skips the read of `x`.
#[cube(launch_unchecked)]
fn scale_by(x: &mut [f32], by: &[f32]) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < x.len() {
        let factor = by[0];
        if factor != 1.0 {
            x[i] *= factor;
        }
    }
}

/// Unit `i` computes both gradients of element `i`.
#[cube(launch_unchecked)]
fn gated_back(
    gate: &[f32],
    up: &[f32],
    dy: &[f32],
    d_gate: &mut [f32],
    d_up: &mut [f32],
    #[comptime] activation: GatedActivation,
) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < dy.len() {
        let (g, u, d) = (gate[i], up[i], dy[i]);
        if comptime!(activation == GatedActivation::SiLu) {
            let s = 1.0 / (1.0 + exp(-g));
            d_gate[i] = d * u * s * (1.0 + g * (1.0 - s));
            d_up[i] = d * g * s;
        } else {
            // A comparison instead of a maximum, so that NaN propagates.
            let positive = select(g < 0.0, 0.0f32, g);
            d_gate[i] = d * u * 2.0 * positive;
            d_up[i] = d * positive * positive;
        }
    }
}

/// Unit `i` adds up column `i % cols` of slab `i / cols`: 256 rows of `x`, of which row `r` is multiplied by row `r` of `dy` and
/// `factors[r]` if `weighted`.
#[cube(launch_unchecked)]
fn sum_slabs(
    x: &[f32],
    dy: &[f32],
    factors: &[f32],
    out: &mut [f32],
    rows: u32,
    cols: u32,
    #[comptime] weighted: bool,
) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < out.len() {
        let cols = cols as usize;
        let (slab, col) = (i / cols, i % cols);
        let end = clamp_max((slab + 1) * SLAB, rows as usize);
        let mut sum = 0.0f32;
        for row in slab * SLAB..end {
            let mut value = x[row * cols + col];
            if comptime!(weighted) {
                value = value * dy[row * cols + col] * factors[row];
            }
            sum += value;
        }
        out[i] = sum;
    }
}

impl CubeDevice {
    /// Copies all elements of a buffer to another one.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`](crate::CubeError::Length), [`CubeError::Overlap`](crate::CubeError::Overlap), and those of the launch.
    pub fn copy(&self, from: &Buffer<f32>, to: &Buffer<f32>) -> Result<()> {
        check_len("copy", from.len(), to.len())?;
        check_apart("source and target of a copy", to, &[from])?;
        self.launch(&Launch::new("copy", &(), each(to.len(), 2)?), &[to], |client, cubes, units| {
            // SAFETY: the lengths are equal, and the kernel checks its index.
            unsafe { copy::launch_unchecked(client, cubes, units, from.arg(), to.arg()) };
        })
    }

    /// `x *= by`.
    ///
    /// # Errors
    ///
    /// Errors of the launch.
    pub fn scale(&self, x: &Buffer<f32>, by: f32) -> Result<()> {
        self.launch(&Launch::new("scale", &(), each(x.len(), 1)?), &[x], |client, cubes, units| {
            // SAFETY: the kernel checks its index.
            unsafe { scale::launch_unchecked(client, cubes, units, x.arg(), by) };
        })
    }

    /// `x *= by`, a buffer of one element.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`](crate::CubeError::Length), [`CubeError::Overlap`](crate::CubeError::Overlap), and those of the launch.
    pub fn scale_by(&self, x: &Buffer<f32>, by: &Buffer<f32>) -> Result<()> {
        check_len("factor", 1, by.len())?;
        check_apart("values and their factor", x, &[by])?;
        self.launch(&Launch::new("scale by", &(), each(x.len(), 2)?), &[x], |client, cubes, units| {
            // SAFETY: the factor has an element, and the kernel checks its index.
            unsafe { scale_by::launch_unchecked(client, cubes, units, x.arg(), by.arg()) };
        })
    }

    /// Gradients of [`CubeDevice::gated`] with respect to gate and up projection.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`](crate::CubeError::Length), [`CubeError::Overlap`](crate::CubeError::Overlap), and those of the launch.
    pub fn gated_back(
        &self,
        gate: &Buffer<f32>,
        up: &Buffer<f32>,
        activation: GatedActivation,
        dy: &Buffer<f32>,
        d_gate: &Buffer<f32>,
        d_up: &Buffer<f32>,
    ) -> Result<()> {
        for other in [up, dy, d_gate, d_up] {
            check_len("values of a gate's gradient", gate.len(), other.len())?;
        }
        check_apart("gradients of a gate", d_gate, &[gate, up, dy, d_up])?;
        check_apart("gradients of a gate", d_up, &[gate, up, dy])?;
        let launch = Launch::new("gated back", &activation, each(dy.len(), 5)?);
        self.launch(&launch, &[d_gate, d_up], |client, cubes, units| {
            let (gate, up, dy, d_gate, d_up) = (gate.arg(), up.arg(), dy.arg(), d_gate.arg(), d_up.arg());
            // SAFETY: all lengths are equal, and the kernel checks its index.
            unsafe {
                gated_back::launch_unchecked(client, cubes, units, gate, up, dy, d_gate, d_up, activation);
            }
        })
    }

    /// The sum of the rows of `x`, each with as many elements as `out`.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotMultiple`](crate::CubeError::NotMultiple), [`CubeError::Overlap`](crate::CubeError::Overlap), and those of
    /// the launch.
    pub fn sum_rows(&self, x: &Buffer<f32>, out: &Buffer<f32>) -> Result<()> {
        self.weighted_sum_rows(x, None, out)
    }

    /// The sum of the rows of `x`, each multiplied by the same row of the first of `weights` and by the corresponding element of
    /// the second.
    pub(super) fn weighted_sum_rows(
        &self,
        x: &Buffer<f32>,
        weights: Option<[&Buffer<f32>; 2]>,
        out: &Buffer<f32>,
    ) -> Result<()> {
        let cols = out.len();
        let rows = rows_of("rows to add up", x.len(), cols)?;
        check_apart("rows and their sum", out, &[x])?;
        if let Some([dy, factors]) = weights {
            check_len("weights of rows", x.len(), dy.len())?;
            check_len("factors of rows", rows, factors.len())?;
            check_apart("rows and their sum", out, &[dy, factors])?;
        }
        let slabs = rows.div_ceil(SLAB);
        let parts = if slabs == 1 { None } else { Some(self.empty(slabs * cols)?) };
        let target = parts.as_ref().unwrap_or(out);
        let launch = Launch::new("sum slabs", &weights.is_some(), each(target.len(), 4)?);
        self.launch(&launch, &[target], |client, cubes, units| {
            let [dy, factors] = weights.unwrap_or([x, x]).map(Buffer::arg);
            let (rows, cols) = (rows as u32, cols as u32);
            // SAFETY: the lengths were checked above; without weights only `x` is read, and the kernel checks its index.
            unsafe {
                sum_slabs::launch_unchecked(
                    client,
                    cubes,
                    units,
                    x.arg(),
                    dy,
                    factors,
                    target.arg(),
                    rows,
                    cols,
                    weights.is_some(),
                );
            }
        })?;
        // The slabs are rows again, with 256 times fewer of them.
        parts.map_or(Ok(()), |parts| self.weighted_sum_rows(&parts, None, out))
    }
}
