//! Products of two f32 matrices, either of which may be transposed.

use cubecl::prelude::*;

use super::check_apart;
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_range, check_shape};
use crate::plan::Settings;

/// Rows and columns of the output per cube.
const SIDE: usize = 64;
/// Units per cube along both axes; each holds 4 x 4 outputs.
const UNITS: usize = 16;
/// Steps of the inner dimension per tile.
const STEP: usize = 16;
/// Stride of a tile's lines; odd, so that lines start in different banks.
const STRIDE: usize = STEP + 1;
/// Tiles per chain of additions; the chains are added up at the end, which limits the error of long sums.
const CHAIN: usize = 16;

/// A matrix operand: rows of `cols` elements of a buffer, or their transpose.
#[derive(Clone, Copy, Debug)]
pub struct Factor<'b> {
    /// The buffer.
    pub values: &'b Buffer<f32>,
    /// First element of the matrix.
    pub first: usize,
    /// Rows as stored.
    pub rows: usize,
    /// Elements per row as stored.
    pub cols: usize,
    /// Whether the matrix is transposed.
    pub transposed: bool,
}

impl Factor<'_> {
    /// Rows and columns, after transposition.
    fn shape(&self) -> (usize, usize) {
        if self.transposed { (self.cols, self.rows) } else { (self.rows, self.cols) }
    }

    fn validate(&self) -> Result<()> {
        let len = check_shape("factor of a product", self.rows, self.cols)?;
        let most = self.values.len().saturating_sub(len);
        if len > self.values.len() {
            return Err(CubeError::Length {
                what: "factor of a product",
                expected: self.first + len,
                got: self.values.len(),
            });
        }
        check_range("first element of a factor", 0, most, self.first)
    }
}

/// Compile-time parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// Whether the factors are transposed.
    transposed: [bool; 2],
    add: bool,
}

/// Element `(line, step)` of a factor whose lines are rows of the output (left) or columns (right); zero past the last step.
#[cube]
fn element(
    x: &[f32],
    first: usize,
    cols: usize,
    line: usize,
    step: usize,
    steps: usize,
    #[comptime] lines_are_rows: bool,
) -> f32 {
    let inside = clamp_max(step, steps - 1);
    let at = if comptime!(lines_are_rows) { line * cols + inside } else { inside * cols + line };
    select(step < steps, x[first + at], 0.0f32)
}

/// Copies a tile of 64 lines by 16 steps. Neighbouring units read neighbouring elements in either order.
#[cube]
fn load(
    x: &[f32],
    tile: &mut Shared<[f32]>,
    first: usize,
    cols: usize,
    first_line: usize,
    last_line: usize,
    first_step: usize,
    steps: usize,
    #[comptime] lines_are_rows: bool,
) {
    let unit = UNIT_POS as usize;
    #[unroll]
    for i in 0..comptime!(SIDE * STEP / (UNITS * UNITS)) {
        let n = unit + comptime!(i * UNITS * UNITS);
        let (line, step) =
            if comptime!(lines_are_rows) { (n / STEP, n % STEP) } else { (n % SIDE, n / SIDE) };
        // Lines past the last one repeat it and are not stored.
        let from = clamp_max(first_line + line, last_line);
        tile[line * STRIDE + step] = element(x, first, cols, from, first_step + step, steps, lines_are_rows);
    }
}

/// Cube `(x, y)` computes columns `64 x ..` of rows `64 y ..`; unit `(c, r)` holds columns `c, c + 16, ..` of rows `r, r + 16, ..`.
#[cube(launch_unchecked)]
fn product(
    a: &[f32],
    b: &[f32],
    out: &mut [f32],
    rows: u32,
    cols: u32,
    steps: u32,
    a_first: u32,
    a_cols: u32,
    b_first: u32,
    b_cols: u32,
    out_first: u32,
    #[comptime] form: Form,
) {
    let (c, r) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    let (first_col, first_row) = (CUBE_POS_X as usize * SIDE, CUBE_POS_Y as usize * SIDE);
    let (last_col, last_row) = (cols as usize - 1, rows as usize - 1);
    let steps = steps as usize;

    let mut a_tile = Shared::<[f32]>::new_slice(comptime!(SIDE * STRIDE));
    let mut b_tile = Shared::<[f32]>::new_slice(comptime!(SIDE * STRIDE));
    let mut sums = Array::<f32>::new(16usize);
    let mut chain = Array::<f32>::new(16usize);
    #[unroll]
    for n in 0..16usize {
        sums[n] = 0.0;
        chain[n] = 0.0;
    }
    for tile in 0..steps.div_ceil(STEP) {
        let start = tile * STEP;
        load(
            a,
            &mut a_tile,
            a_first as usize,
            a_cols as usize,
            first_row,
            last_row,
            start,
            steps,
            comptime!(!form.transposed[0]),
        );
        load(
            b,
            &mut b_tile,
            b_first as usize,
            b_cols as usize,
            first_col,
            last_col,
            start,
            steps,
            comptime!(form.transposed[1]),
        );
        sync_cube();
        for step in 0..comptime!(STEP) {
            let mut left = Array::<f32>::new(4usize);
            #[unroll]
            for i in 0..4usize {
                left[i] = a_tile[(r + comptime!(UNITS * i)) * STRIDE + step];
            }
            #[unroll]
            for j in 0..4usize {
                let right = b_tile[(c + comptime!(UNITS * j)) * STRIDE + step];
                #[unroll]
                for i in 0..4usize {
                    chain[comptime!(4 * i + j)] += left[i] * right;
                }
            }
        }
        sync_cube();
        if tile % CHAIN == CHAIN - 1 {
            #[unroll]
            for n in 0..16usize {
                sums[n] += chain[n];
                chain[n] = 0.0;
            }
        }
    }
    #[unroll]
    for i in 0..4usize {
        let row = first_row + r + comptime!(UNITS * i);
        #[unroll]
        for j in 0..4usize {
            let col = first_col + c + comptime!(UNITS * j);
            if row <= last_row && col <= last_col {
                let at = out_first as usize + row * cols as usize + col;
                let value = sums[comptime!(4 * i + j)] + chain[comptime!(4 * i + j)];
                if comptime!(form.add) {
                    out[at] += value;
                } else {
                    out[at] = value;
                }
            }
        }
    }
}

impl CubeDevice {
    /// `out = a b`, or `out += a b` with `add`, starting at element `at` of `out`.
    ///
    /// # Errors
    ///
    /// [`CubeError::Shape`], [`CubeError::Length`] and [`CubeError::Range`] for factors or an output that do not match,
    /// [`CubeError::Overlap`], [`CubeError::Limit`] for an output of more than 4 million rows or columns, and those of the launch.
    pub fn product(
        &self,
        a: Factor<'_>,
        b: Factor<'_>,
        out: &Buffer<f32>,
        at: usize,
        add: bool,
    ) -> Result<()> {
        a.validate()?;
        b.validate()?;
        let ((rows, steps), (inner, cols)) = (a.shape(), b.shape());
        check_len("rows of the second factor of a product", steps, inner)?;
        let len = check_shape("product", rows, cols)?;
        check_len("output of a product", at + len, out.len().min(at + len))?;
        check_apart("factors and output of a product", out, &[a.values, b.values])?;
        let side = |n: usize| u32::try_from(n.div_ceil(SIDE)).unwrap_or(u32::MAX);
        let settings = Settings {
            cubes: [side(cols), side(rows), 1],
            units: [UNITS as u32, UNITS as u32],
            shared_bytes: 2 * SIDE * STRIDE * 4,
            bindings: 3,
        };
        let form = Form { transposed: [a.transposed, b.transposed], add };
        self.launch(&Launch::new("product", &form, settings), &[out], |client, cubes, units| {
            // Each is below the length of a buffer.
            let [rows, cols, steps] = [rows, cols, steps].map(|n| n as u32);
            let [a_first, a_cols, b_first, b_cols, at] =
                [a.first, a.cols, b.first, b.cols, at].map(|n| n as u32);
            let (a, b, out) = (a.values.arg(), b.values.arg(), out.arg());
            // SAFETY: `validate` and `check_len` checked that factors and output lie within their buffers, and the kernel clamps
            // or checks every row, column and step.
            unsafe {
                product::launch_unchecked(
                    client, cubes, units, a, b, out, rows, cols, steps, a_first, a_cols, b_first, b_cols, at,
                    form,
                );
            }
        })
    }
}
