//! Codes back to floats.

use cubecl::prelude::*;

use crate::device::{Buffer, Device, Launch};
use crate::error::{Result, check_len};
use crate::linear::Activations;
use crate::plan::{Settings, spread};

/// Units of a cube.
const UNITS: u32 = 128;

mod kernel {
    use super::*;

    /// Unit `i` writes number `i`.
    #[cube(launch_unchecked)]
    pub(super) fn dequantize(
        codes: &[u32],
        factors: &[f32],
        out: &mut [f32],
        cols: u32,
        #[comptime] slices: usize,
        #[comptime] grouped: bool,
    ) {
        let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
        if i < out.len() {
            let (row, col) = (i / cols as usize, i % cols as usize);
            let blocks = (cols as usize).div_ceil(128);
            let quad = col / 4;
            let place = quad / 32 * 32 + quad % 4 * 8 + quad % 32 / 8 * 2 + quad % 8 / 4;
            // From the most significant digit down: every partial sum is a whole number that f32 may round once.
            let mut int = 0i32;
            #[unroll]
            for s in 0..slices {
                let word = codes[(row * slices + comptime!(slices - 1 - s)) * blocks * 32 + place];
                let byte = i32::cast_from((word >> (8 * (col % 4) as u32)) & 0xFF);
                int = int * 256 + (byte ^ 0x80) - 0x80;
            }
            let at = if comptime!(grouped) { row * blocks * 4 + col / 32 } else { row };
            out[i] = f32::cast_from(int) * factors[at];
        }
    }
}

impl Device {
    /// What codes stand for, `tokens x cols`, each number rounded to f32 twice at most.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`](crate::CubeError::Length) for an output of another length, and those of the launch.
    pub fn dequantize(&self, x: &Activations, out: &Buffer<f32>) -> Result<()> {
        let shape = x.shape();
        check_len("output of dequantize", shape.tokens * shape.cols, out.len())?;
        let (slices, grouped) = (shape.precision.slices(), shape.precision.group().is_some());
        let cubes = spread(out.len().div_ceil(UNITS as usize));
        let settings = Settings { cubes, ..Settings::linear(1, UNITS, 3) };
        self.launch(
            &Launch::new("dequantize", &(slices, grouped), settings),
            &[out],
            |client, cubes, units| {
                let (codes, factors, out) = (x.codes.arg(), x.factors.arg(), out.arg());
                // SAFETY: the lengths of the codes and factors come from `ActivationShape`, that of the output was compared, and
                // the kernel compares its index with it.
                unsafe {
                    kernel::dequantize::launch_unchecked(
                        client,
                        cubes,
                        units,
                        codes,
                        factors,
                        out,
                        shape.cols as u32,
                        slices,
                        grouped,
                    );
                }
            },
        )
    }
}
