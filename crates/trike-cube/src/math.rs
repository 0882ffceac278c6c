//! Math functions with identical results on every device.

use cubecl::prelude::*;

/// `e^x` within 2 ULP, zero below -87, `e^88` above 88; NaN is propagated.
///
/// The polynomial of `trike-cpu`: the devices' own exponentials differ by up to a few hundred ULP, and gates feed quantizers.
#[cube]
pub(crate) fn exp(x: f32) -> f32 {
    let limited = select(x > 88.0, 88.0f32, x);
    let limited = select(limited < -87.0f32, -87.0f32, limited);
    // Near 1.5 * 2^23 the float spacing is 1, so adding it rounds to an integer.
    let shifted = u32::reinterpret(limited * comptime!(std::f32::consts::LOG2_E) + 12_582_912.0);
    let whole = i32::reinterpret(shifted) - 0x4B40_0000;
    let n = f32::cast_from(whole);
    // ln 2 in two parts: 355/512 has ten bits, so its product with a small integer is exact; the second constant is the
    // remainder.
    let r = (limited - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let p = r * comptime!(1.0f32 / 5040.0) + comptime!(1.0f32 / 720.0);
    let p = p * r + comptime!(1.0f32 / 120.0);
    let p = p * r + comptime!(1.0f32 / 24.0);
    let p = p * r + comptime!(1.0f32 / 6.0);
    let p = p * r + 0.5;
    let p = (p * r) * r + r + 1.0;
    let power = f32::reinterpret(u32::cast_from(whole + 127) << 23);
    let value = select(x < -87.0f32, 0.0f32, p * power);
    // The integer operations above do not preserve NaN.
    select(magnitude(x) > 0x7F80_0000, x, value)
}

/// Rounds a value below `2^22` to the nearest integer, ties to even, independently of the device's own rounding.
///
/// Taking the magnitude through its bits separates a preceding product from this addition: a compiler that fused the two to a
/// multiply-add would round once where the host rounds twice, and a value near a tie would get a different code.
#[cube]
pub(crate) fn nearest(x: f32) -> i32 {
    let int = i32::reinterpret(f32::reinterpret(magnitude(x)) + 8_388_608.0) - 0x4B00_0000;
    select(x < 0.0, -int, int)
}

/// Rounds a value below `2^31` to the nearest integer.
#[cube]
pub(crate) fn nearest_wide(x: f32) -> i32 {
    let size = f32::reinterpret(magnitude(x));
    let mut int = i32::reinterpret(size + 8_388_608.0) - 0x4B00_0000;
    // From `2^23` on all floats are integers.
    if size >= 8_388_608.0 {
        int = i32::cast_from(size);
    }
    select(x < 0.0, -int, int)
}

/// The bits of the magnitude. As integers, magnitudes sort like floats, with non-finite values last.
#[cube]
pub(crate) fn magnitude(x: f32) -> u32 {
    u32::reinterpret(x) & 0x7FFF_FFFF
}
