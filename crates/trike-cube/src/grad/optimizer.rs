//! Updates of optimizers.

use cubecl::prelude::*;

use super::groups::{Finish, Groups, Term};
use super::{check_apart, each};
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{Result, check_len};

/// The constants of one AdamW update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWStep {
    /// Factor of the gradient.
    pub limit: f32,
    /// Decay rate of the first moment.
    pub beta1: f32,
    /// Decay rate of the second moment.
    pub beta2: f32,
    /// Added to the square root of the second moment.
    pub epsilon: f32,
    /// Learning rate, divided by the bias correction of the first moment.
    pub rate: f32,
    /// Bias correction of the second moment.
    pub correction: f32,
    /// Factor of the value after weight decay.
    pub kept: f32,
}

/// Unit `i` updates element `i`.
#[cube(launch_unchecked)]
fn adamw(
    value: &mut [f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
    limit: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    rate: f32,
    correction: f32,
    kept: f32,
) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < value.len() {
        let g = limit * gradient[i];
        let mean = beta1 * first[i] + (1.0 - beta1) * g;
        let square = beta2 * second[i] + (1.0 - beta2) * g * g;
        first[i] = mean;
        second[i] = square;
        value[i] = value[i] * kept - rate * mean / (f32::sqrt(square / correction) + epsilon);
    }
}

/// Unit `i` computes `out = a x + b y` for element `i`.
#[cube(launch_unchecked)]
fn combine(x: &[f32], y: &[f32], out: &mut [f32], a: f32, b: f32) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < out.len() {
        out[i] = a * x[i] + b * y[i];
    }
}

/// Unit `i` computes `x = a x + b y` for element `i`.
#[cube(launch_unchecked)]
fn combine_in_place(x: &mut [f32], y: &[f32], a: f32, b: f32) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < x.len() {
        x[i] = a * x[i] + b * y[i];
    }
}

/// Unit `i` divides element `i` by the root of the sum of all squares.
#[cube(launch_unchecked)]
fn normalize(x: &mut [f32], squares: &[f32]) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < x.len() {
        x[i] /= f32::sqrt(squares[0]) + 1e-7;
    }
}

/// Unit `i` computes element `i` of `square`.
#[cube(launch_unchecked)]
fn polynomial(gram: &[f32], square: &mut [f32], side: u32, a: f32, b: f32, c: f32) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < square.len() {
        let diagonal = select(i / side as usize == i % side as usize, a, 0.0f32);
        square[i] = diagonal + b * gram[i] + c * square[i];
    }
}

impl CubeDevice {
    /// Waits for the sum of the squares of all elements of some buffers; infinite if it overflows f32.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`](crate::CubeError::Range) for zero buffers, and errors of the launches and of [`CubeDevice::read`].
    pub fn sum_of_squares(&self, all: &[&Buffer<f32>]) -> Result<f32> {
        let sums = self.empty(all.len())?;
        for (at, values) in all.iter().enumerate() {
            self.squares(values, &sums, at)?;
        }
        let total = self.empty(1)?;
        let finish = Finish::Times(1.0);
        self.sum_groups(&sums, Groups::whole(sums.len()), Term::Plain, None, finish, &total, 0)?;
        Ok(self.read(&total)?.first().copied().unwrap_or(f32::NAN))
    }

    fn squares(&self, x: &Buffer<f32>, out: &Buffer<f32>, at: usize) -> Result<()> {
        self.sum_groups(x, Groups::whole(x.len()), Term::Square, None, Finish::Times(1.0), out, at)
    }

    /// An AdamW update; `first` and `second` are the moments.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`](crate::CubeError::Length), [`CubeError::Overlap`](crate::CubeError::Overlap), and those of the launch.
    pub fn adamw(
        &self,
        step: &AdamWStep,
        value: &Buffer<f32>,
        gradient: &Buffer<f32>,
        first: &Buffer<f32>,
        second: &Buffer<f32>,
    ) -> Result<()> {
        for other in [gradient, first, second] {
            check_len("values of an update", value.len(), other.len())?;
        }
        check_apart("values of an update", value, &[gradient, first, second])?;
        check_apart("values of an update", first, &[gradient, second])?;
        check_apart("values of an update", second, &[gradient])?;
        let launch = Launch::new("adamw", &(), each(value.len(), 4)?);
        self.launch(&launch, &[value, first, second], |client, cubes, units| {
            let AdamWStep { limit, beta1, beta2, epsilon, rate, correction, kept } = *step;
            let (value, gradient, first, second) = (value.arg(), gradient.arg(), first.arg(), second.arg());
            // SAFETY: all lengths are equal, and the kernel checks its index.
            unsafe {
                adamw::launch_unchecked(
                    client, cubes, units, value, gradient, first, second, limit, beta1, beta2, epsilon, rate,
                    correction, kept,
                );
            }
        })
    }

    /// `out = a x + b y`.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`](crate::CubeError::Length), [`CubeError::Overlap`](crate::CubeError::Overlap), and those of the launch.
    pub fn sum_of(
        &self,
        x: &Buffer<f32>,
        y: &Buffer<f32>,
        factors: [f32; 2],
        out: &Buffer<f32>,
    ) -> Result<()> {
        check_len("summand", out.len(), x.len())?;
        check_len("summand", out.len(), y.len())?;
        check_apart("summands and their sum", out, &[x, y])?;
        self.launch(&Launch::new("combine", &(), each(out.len(), 3)?), &[out], |client, cubes, units| {
            let [a, b] = factors;
            // SAFETY: all lengths are equal, and the kernel checks its index.
            unsafe { combine::launch_unchecked(client, cubes, units, x.arg(), y.arg(), out.arg(), a, b) };
        })
    }

    /// `x = a x + b y`.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::sum_of`].
    pub fn add_into(&self, x: &Buffer<f32>, y: &Buffer<f32>, factors: [f32; 2]) -> Result<()> {
        check_len("summand", x.len(), y.len())?;
        check_apart("summands", x, &[y])?;
        let launch = Launch::new("combine in place", &(), each(x.len(), 2)?);
        self.launch(&launch, &[x], |client, cubes, units| {
            let [a, b] = factors;
            // SAFETY: the lengths are equal, and the kernel checks its index.
            unsafe { combine_in_place::launch_unchecked(client, cubes, units, x.arg(), y.arg(), a, b) };
        })
    }

    /// Divides `x` by its norm plus `1e-7`.
    ///
    /// # Errors
    ///
    /// Errors of the launches.
    pub fn normalize(&self, x: &Buffer<f32>) -> Result<()> {
        let squares = self.empty(1)?;
        self.squares(x, &squares, 0)?;
        self.launch(&Launch::new("normalize", &(), each(x.len(), 2)?), &[x], |client, cubes, units| {
            // SAFETY: there is one sum, and the kernel checks its index.
            unsafe { normalize::launch_unchecked(client, cubes, units, x.arg(), squares.arg()) };
        })
    }

    /// `square = a I + b gram + c square` for matrices of `side x side`.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::sum_of`].
    pub fn polynomial(
        &self,
        coefficients: [f32; 3],
        side: usize,
        gram: &Buffer<f32>,
        square: &Buffer<f32>,
    ) -> Result<()> {
        check_len("matrix of a polynomial", side.saturating_mul(side), gram.len())?;
        check_len("matrix of a polynomial", gram.len(), square.len())?;
        check_apart("matrices of a polynomial", square, &[gram])?;
        let launch = Launch::new("polynomial", &(), each(square.len(), 2)?);
        self.launch(&launch, &[square], |client, cubes, units| {
            let [a, b, c] = coefficients;
            // SAFETY: the lengths are equal, and the kernel checks its index.
            unsafe {
                polynomial::launch_unchecked(
                    client,
                    cubes,
                    units,
                    gram.arg(),
                    square.arg(),
                    side as u32,
                    a,
                    b,
                    c,
                );
            }
        })
    }
}
