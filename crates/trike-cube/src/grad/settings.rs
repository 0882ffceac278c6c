//! Settings of the kernels for training.

use crate::error::{Result, check_range};
use crate::plan::{Settings, spread};

/// Units per cube of kernels with one output per unit.
const UNITS: u32 = 128;
/// Units per cube of kernels with one sum per cube.
pub const SUM_UNITS: usize = 64;

/// Settings of a kernel with one unit per element.
pub fn each(len: usize, bindings: usize) -> Result<Settings> {
    // Indices of units in the last line of cubes exceed the length and must not wrap around.
    check_range("elements of an operation", 1, (u32::MAX - (1 << 24)) as usize, len)?;
    Ok(Settings { cubes: spread(len.div_ceil(UNITS as usize)), ..Settings::linear(1, UNITS, bindings) })
}

/// Settings of a kernel with one cube per sum; `words` of shared memory.
pub fn per_cube(cubes: usize, bindings: usize, words: usize) -> Settings {
    Settings { cubes: spread(cubes), ..Settings::linear(1, SUM_UNITS as u32, bindings) }.shared(4 * words)
}
