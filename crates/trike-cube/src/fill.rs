//! Filling a buffer with one value.

use cubecl::prelude::*;

use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::Result;
use crate::plan::{Settings, spread};

/// Units per cube.
const UNITS: u32 = 64;
/// Words written per unit.
const EACH: usize = 16;

/// Unit `u` of cube `c` writes 16 words: `c * 1024 + u` and every 64th after it.
#[cube(launch_unchecked)]
fn fill_words(out: &mut [u32], value: u32, #[comptime] each: usize) {
    let first = CUBE_POS * CUBE_DIM as usize * each + UNIT_POS as usize;
    for i in 0..each {
        let index = first + i * CUBE_DIM as usize;
        if index < out.len() {
            out[index] = value;
        }
    }
}

impl CubeDevice {
    /// Fills a buffer with one word.
    ///
    /// # Errors
    ///
    /// [`CubeError::Limit`](crate::CubeError::Limit) for a buffer that needs more cubes than the device supports,
    /// [`CubeError::Launch`](crate::CubeError::Launch).
    pub fn fill(&self, out: &Buffer<u32>, value: u32) -> Result<()> {
        let cubes = spread(out.len().div_ceil(UNITS as usize * EACH));
        let settings = Settings { cubes, ..Settings::linear(1, UNITS, 1) };
        self.launch(&Launch::new("fill", &EACH, settings), &[out], |client, cubes, units| {
            // SAFETY: the kernel checks every index against the length, and its loop has a fixed bound.
            unsafe { fill_words::launch_unchecked(client, cubes, units, out.arg(), value, EACH) };
        })
    }
}
