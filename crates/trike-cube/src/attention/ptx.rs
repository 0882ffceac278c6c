//! PTX instructions for which CubeCL has no function. Only kernels for CUDA may use them.

use cubecl::prelude::*;

/// `2^x` in one instruction, with a relative error of up to `2^-22`; results below `2^-126` are flushed to zero.
#[cube]
pub(super) fn exp2(x: f32) -> f32 {
    let power: f32;
    gpu_asm!("ex2.approx.ftz.f32 {}, {};", out(_) power, in(_) x, options(pure, nomem));
    // Forces a value: CubeCL would pass the address of the variable to another instruction.
    power * 1.0
}

/// Two numbers rounded to f16 and packed into a word, the first in the low half.
#[cube]
pub(super) fn packed(low: f32, high: f32) -> u32 {
    let word: u32;
    gpu_asm!("cvt.rn.f16x2.f32 {}, {}, {};", out(_) word, in(_) high, in(_) low, options(pure, nomem));
    // Forces a value, as in `exp2`.
    word | 0u32.runtime()
}

/// Ends the unit's current group of asynchronous copies.
#[cube]
pub(super) fn end_of_copies() {
    gpu_asm!("cp.async.commit_group;");
}

/// Waits for all asynchronous copies of the unit.
#[cube]
pub(super) fn wait_for_copies() {
    gpu_asm!("cp.async.wait_group 0;");
}

/// The byte `i` of a word, below the upper three bytes of another one.
#[cube]
pub(super) fn byte_above(word: u32, above: u32, #[comptime] i: u32) -> u32 {
    let bytes: u32;
    let selected = comptime!(0x7650 + i).runtime();
    gpu_asm!("prmt.b32 {}, {}, {}, {};", out(_) bytes, in(_) word, in(_) above, in(_) selected, options(pure, nomem));
    // Forces a value, as in `exp2`.
    bytes | 0u32.runtime()
}
