//! Functions that are the same on every device.

use cubecl::prelude::*;

/// `e^x` within two units in the last place, zero below -87, as `e^88` above 88; NaN stays NaN.
///
/// The polynomial of `trike-cpu`: devices differ in their own exponential by up to a few hundred units, and gates feed
/// quantizers.
#[cube]
pub(crate) fn exp(x: f32) -> f32 {
    let limited = select(x > 88.0, 88.0f32, x);
    let limited = select(limited < -87.0f32, -87.0f32, limited);
    // Around 1.5 * 2^23 floats are one apart, so adding it rounds.
    let shifted = u32::reinterpret(limited * comptime!(std::f32::consts::LOG2_E) + 12_582_912.0);
    let whole = i32::reinterpret(shifted) - 0x4B40_0000;
    let n = f32::cast_from(whole);
    // 355/512 has ten bits, so its product with a small integer is exact; the second part is what is left of ln 2.
    let r = (limited - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let p = r * comptime!(1.0f32 / 5040.0) + comptime!(1.0f32 / 720.0);
    let p = p * r + comptime!(1.0f32 / 120.0);
    let p = p * r + comptime!(1.0f32 / 24.0);
    let p = p * r + comptime!(1.0f32 / 6.0);
    let p = p * r + 0.5;
    let p = (p * r) * r + r + 1.0;
    let power = f32::reinterpret((whole + 127) << 23);
    let value = select(x < -87.0f32, 0.0f32, p * power);
    // The bits of a NaN went through integers.
    select(magnitude(x) > 0x7F80_0000, x, value)
}

/// The nearest integer of a value below `2^22`, halves to even, whatever the device's own rounding does.
///
/// Between a product and this sum stand the bits of its magnitude: a compiler that joined the two to one multiply-add would
/// round once where the host rounds twice, and a value next to a half would become the other code.
#[cube]
pub(crate) fn nearest(x: f32) -> i32 {
    let int = i32::reinterpret(f32::reinterpret(magnitude(x)) + 8_388_608.0) - 0x4B00_0000;
    select(x < 0.0, -int, int)
}

/// The nearest integer of a value below `2^31`.
#[cube]
pub(crate) fn nearest_wide(x: f32) -> i32 {
    let size = f32::reinterpret(magnitude(x));
    let mut int = i32::reinterpret(size + 8_388_608.0) - 0x4B00_0000;
    // From `2^23` on floats are integers.
    if size >= 8_388_608.0 {
        int = i32::cast_from(size);
    }
    select(x < 0.0, -int, int)
}

/// The bits of the magnitude. As integers, magnitudes sort like the floats they are, and what is not finite sorts above.
#[cube]
pub(crate) fn magnitude(x: f32) -> u32 {
    u32::reinterpret(x) & 0x7FFF_FFFF
}
