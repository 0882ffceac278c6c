//! Groups of weights with a common scale: sums over groups, and ternarization.

use cubecl::prelude::*;

use super::{SUM_UNITS, check_apart, each, per_cube};
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{Result, check_len, check_range, check_shape};
use crate::math::magnitude;
use crate::reduce::sum_floats;

/// Elements that a cube adds up, if a group has more; also the maximum number of cubes per group.
const EACH: usize = 2048;
const MOST_PARTS: usize = 256;

/// Consecutive elements of a matrix row that share a number; the last group of a row may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    /// Rows of the matrix; 1 if all elements are one group.
    pub rows: usize,
    /// Elements per row.
    pub cols: usize,
    /// Elements per group.
    pub len: usize,
}

impl Groups {
    /// All `len` elements as one group.
    #[must_use]
    pub fn whole(len: usize) -> Self {
        Self { rows: 1, cols: len, len }
    }

    /// Groups per row.
    pub(super) fn per_row(&self) -> usize {
        self.cols.div_ceil(self.len.max(1))
    }

    /// Number of groups.
    #[must_use]
    pub fn count(&self) -> usize {
        self.rows * self.per_row()
    }

    /// Checks that the groups are whole and match the number of elements.
    #[doc(hidden)]
    pub fn validate(&self, elements: usize) -> Result<()> {
        check_range("elements of a group", 1, self.cols.max(1), self.len)?;
        check_len("elements of all groups", check_shape("groups", self.rows, self.cols)?, elements)
    }

    /// Cubes that share a group.
    fn parts(&self) -> usize {
        self.len.div_ceil(EACH).min(MOST_PARTS)
    }
}

/// Summand of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Term {
    /// The element.
    Plain,
    /// Magnitude of the weight.
    Magnitude,
    /// Square of the weight.
    Square,
    /// Gradient times the derivative of the ternary weight with respect to the scale.
    Slope,
}

/// Final operation on a sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Finish {
    /// It is multiplied.
    Times(f32),
    /// Divided by the number of elements.
    Mean,
}

/// The trit of a weight, or NaN.
#[cube]
fn trit(w: f32, s: f32) -> f32 {
    let sign = select(w < 0.0, -1.0f32, 1.0f32);
    let sign = select(magnitude(w) > 0x7F80_0000, w, sign);
    select(f32::abs(w) <= 0.5 * s, 0.0f32, sign)
}

/// Cube `i` adds up part `i % parts` of group `i / parts`, `each` elements of it.
#[cube(launch_unchecked)]
fn sum_parts(
    x: &[f32],
    dy: &[f32],
    scales: &[f32],
    out: &mut [f32],
    cols: u32,
    len: u32,
    per_row: u32,
    parts: u32,
    each: u32,
    #[comptime] term: Term,
) {
    let mut shared = Shared::<[f32]>::new_slice(SUM_UNITS);
    if CUBE_POS < out.len() {
        let (cols, len, each) = (cols as usize, len as usize, each as usize);
        let (group, part) = (CUBE_POS / parts as usize, CUBE_POS % parts as usize);
        let (row, start) = (group / per_row as usize, group % per_row as usize * len);
        let end = row * cols + clamp_max(clamp_max(start + len, cols), start + (part + 1) * each);
        let mut sum = 0.0f32;
        let mut at = row * cols + start + part * each + UNIT_POS as usize;
        while at < end {
            let value = x[at];
            if comptime!(term == Term::Plain) {
                sum += value;
            } else if comptime!(term == Term::Magnitude) {
                sum += f32::abs(value);
            } else if comptime!(term == Term::Square) {
                sum += value * value;
            } else {
                let s = scales[group];
                let inner = trit(value, s) - value / s;
                let slope = select(f32::abs(value) <= s, inner, select(value < 0.0, -1.0f32, 1.0f32));
                sum += dy[at] * slope;
            }
            at += SUM_UNITS;
        }
        let total = sum_floats(sum, &mut shared, SUM_UNITS, false);
        if UNIT_POS == 0 {
            out[CUBE_POS] = total;
        }
    }
}

/// Unit `i` adds up the parts of group `i`.
#[cube(launch_unchecked)]
fn finish_sums(
    sums: &[f32],
    out: &mut [f32],
    count: u32,
    cols: u32,
    len: u32,
    per_row: u32,
    parts: u32,
    factor: f32,
    out_first: u32,
    #[comptime] mean: bool,
) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < count as usize {
        let mut sum = 0.0f32;
        for part in 0..parts as usize {
            sum += sums[i * parts as usize + part];
        }
        if comptime!(mean) {
            let start = i as u32 % per_row * len;
            sum /= f32::cast_from(min(len, cols - start));
        } else {
            sum *= factor;
        }
        out[out_first as usize + i] = sum;
    }
}

/// Unit `i` computes element `i`.
#[cube(launch_unchecked)]
fn ternarize(
    weights: &[f32],
    scales: &[f32],
    out: &mut [f32],
    cols: u32,
    len: u32,
    per_row: u32,
    lambda: f32,
    #[comptime] whole: bool,
) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < out.len() {
        let (row, col) = (i / cols as usize, i % cols as usize);
        let s = scales[row * per_row as usize + col / len as usize];
        let w = weights[i];
        let q = s * trit(w, s);
        if comptime!(whole) {
            out[i] = q;
        } else {
            out[i] = w + lambda * (q - w);
        }
    }
}

/// Unit `i` limits the gradient of element `i`.
#[cube(launch_unchecked)]
fn clip_gradient(
    weights: &[f32],
    scales: &[f32],
    gradient: &mut [f32],
    cols: u32,
    len: u32,
    per_row: u32,
    clip: f32,
    factor: f32,
) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < gradient.len() {
        let (row, col) = (i / cols as usize, i % cols as usize);
        let s = scales[row * per_row as usize + col / len as usize];
        if f32::abs(weights[i]) > clip * s {
            gradient[i] *= factor;
        }
    }
}

impl CubeDevice {
    /// One sum per group, written to `out` from element `at` on. `slope` has gradients and scales for [`Term::Slope`].
    #[expect(clippy::too_many_arguments, reason = "source, operation and destination of a sum")]
    pub(super) fn sum_groups(
        &self,
        x: &Buffer<f32>,
        groups: Groups,
        term: Term,
        slope: Option<[&Buffer<f32>; 2]>,
        finish: Finish,
        out: &Buffer<f32>,
        at: usize,
    ) -> Result<()> {
        groups.validate(x.len())?;
        let (count, parts) = (groups.count(), groups.parts());
        check_len("sums of groups", at + count, out.len().min(at + count))?;
        check_apart("elements and their sums", out, &[x])?;
        if let Some([dy, scales]) = slope {
            check_len("gradient of weights", x.len(), dy.len())?;
            check_len("scales of weights", count, scales.len())?;
            check_apart("elements and their sums", out, &[dy, scales])?;
        }
        let sums = self.empty::<f32>(check_shape("parts of groups", count, parts)?)?;
        let each_part = groups.len.div_ceil(parts);
        let [cols, len, per_row, of_group] =
            [groups.cols, groups.len, groups.per_row(), parts].map(|n| n as u32);
        let launch = Launch::new("sum parts", &term, per_cube(sums.len(), 4, SUM_UNITS));
        self.launch(&launch, &[&sums], |client, cubes, units| {
            let [dy, scales] = slope.unwrap_or([x, x]).map(Buffer::arg);
            let each = each_part as u32;
            // SAFETY: `validate` checked the groups against the elements; gradients and scales are read for slopes only, where
            // their lengths were checked, and the kernel checks its sum.
            unsafe {
                sum_parts::launch_unchecked(
                    client,
                    cubes,
                    units,
                    x.arg(),
                    dy,
                    scales,
                    sums.arg(),
                    cols,
                    len,
                    per_row,
                    of_group,
                    each,
                    term,
                );
            }
        })?;
        let (mean, factor) = match finish {
            Finish::Times(factor) => (false, factor),
            Finish::Mean => (true, 1.0),
        };
        let launch = Launch::new("finish sums", &mean, each(count, 2)?);
        self.launch(&launch, &[out], |client, cubes, units| {
            let (count, at) = (count as u32, at as u32);
            // SAFETY: there are `parts` sums per group, the end of the output was checked, and the kernel checks its group.
            unsafe {
                finish_sums::launch_unchecked(
                    client,
                    cubes,
                    units,
                    sums.arg(),
                    out.arg(),
                    count,
                    cols,
                    len,
                    per_row,
                    of_group,
                    factor,
                    at,
                    mean,
                );
            }
        })
    }

    /// The scales of groups of weights: the mean magnitude or, with `least_squares`, the least-squares scale of ternary weights.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`](crate::CubeError::Range) and [`CubeError::Length`](crate::CubeError::Length) for groups that do not
    /// match, [`CubeError::Overlap`](crate::CubeError::Overlap), and those of the launch.
    pub fn group_scales(
        &self,
        weights: &Buffer<f32>,
        groups: Groups,
        least_squares: bool,
        out: &Buffer<f32>,
    ) -> Result<()> {
        groups.validate(weights.len())?;
        check_len("scales of weights", groups.count(), out.len())?;
        if least_squares {
            return self.least_squares(weights, groups, out);
        }
        self.sum_groups(weights, groups, Term::Magnitude, None, Finish::Mean, out, 0)
    }

    /// `out = w + lambda (q - w)`, where `q` is the scale of the group times the trit of the weight: 0 if `|w| <= s / 2`, else the
    /// sign. With a `lambda` of 1, `out = q`.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::group_scales`].
    pub fn ternarize(
        &self,
        weights: &Buffer<f32>,
        scales: &Buffer<f32>,
        groups: Groups,
        lambda: f32,
        out: &Buffer<f32>,
    ) -> Result<()> {
        groups.validate(weights.len())?;
        check_len("scales of weights", groups.count(), scales.len())?;
        check_len("ternary weights", weights.len(), out.len())?;
        check_apart("weights before and after ternarization", out, &[weights, scales])?;
        let whole = lambda == 1.0;
        let launch = Launch::new("ternarize", &whole, each(out.len(), 3)?);
        self.launch(&launch, &[out], |client, cubes, units| {
            let [cols, len, per_row] = [groups.cols, groups.len, groups.per_row()].map(|n| n as u32);
            let (weights, scales) = (weights.arg(), scales.arg());
            // SAFETY: the lengths were checked above, and the kernel checks its index.
            unsafe {
                ternarize::launch_unchecked(
                    client,
                    cubes,
                    units,
                    weights,
                    scales,
                    out.arg(),
                    cols,
                    len,
                    per_row,
                    lambda,
                    whole,
                );
            }
        })
    }

    /// Multiplies the gradients of weights with `|w| > clip s` by `factor`.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::group_scales`].
    pub fn clip_gradient(
        &self,
        weights: &Buffer<f32>,
        scales: &Buffer<f32>,
        groups: Groups,
        clip: f32,
        factor: f32,
        gradient: &Buffer<f32>,
    ) -> Result<()> {
        groups.validate(weights.len())?;
        check_len("scales of weights", groups.count(), scales.len())?;
        check_len("gradient of weights", weights.len(), gradient.len())?;
        check_apart("weights and their gradient", gradient, &[weights, scales])?;
        let launch = Launch::new("clip gradient", &(), each(gradient.len(), 3)?);
        self.launch(&launch, &[gradient], |client, cubes, units| {
            let [cols, len, per_row] = [groups.cols, groups.len, groups.per_row()].map(|n| n as u32);
            let (weights, scales) = (weights.arg(), scales.arg());
            // SAFETY: the lengths were checked above, and the kernel checks its index.
            unsafe {
                clip_gradient::launch_unchecked(
                    client,
                    cubes,
                    units,
                    weights,
                    scales,
                    gradient.arg(),
                    cols,
                    len,
                    per_row,
                    clip,
                    factor,
                );
            }
        })
    }

    /// The gradients of learned scales: `lambda` times the sum of `dy (t - w / s)` over the weights of a group with `|w| <= s` and
    /// of `dy t` over the rest.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::group_scales`].
    pub fn scale_gradients(
        &self,
        weights: &Buffer<f32>,
        scales: &Buffer<f32>,
        groups: Groups,
        lambda: f32,
        dy: &Buffer<f32>,
        out: &Buffer<f32>,
    ) -> Result<()> {
        check_len("gradient of scales", groups.count(), out.len())?;
        self.sum_groups(weights, groups, Term::Slope, Some([dy, scales]), Finish::Times(lambda), out, 0)
    }
}
