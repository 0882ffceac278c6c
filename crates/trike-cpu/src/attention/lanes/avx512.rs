//! Transpose of 16 x 16 lanes.

use std::arch::x86_64::*;

use super::Lanes;
use trike_host::isa::Avx512;

impl Lanes for Avx512 {
    #[inline(always)]
    fn transpose(self, square: &mut [[f32; 16]; 16]) {
        // SAFETY: `Avx512::detect` creates `self` only on a CPU with AVX-512 F.
        unsafe { transpose(square) };
    }
}

/// Four perfect shuffles: each interleaves the lanes of rows `i` and `i + 8` into rows `2 i` and `2 i + 1`.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(square: &mut [[f32; 16]; 16]) {
    let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    let mut rows = [_mm512_setzero_ps(); 16];
    for (row, from) in rows.iter_mut().zip(square.iter()) {
        // SAFETY: the row is 16 readable f32, and the load has no alignment requirement.
        *row = unsafe { _mm512_loadu_ps(from.as_ptr()) };
    }
    for _ in 0..4 {
        let old = rows;
        for i in 0..8 {
            rows[2 * i] = _mm512_permutex2var_ps(old[i], low, old[i + 8]);
            rows[2 * i + 1] = _mm512_permutex2var_ps(old[i], high, old[i + 8]);
        }
    }
    for (to, row) in square.iter_mut().zip(rows) {
        // SAFETY: the row has room for 16 f32, and the store has no alignment requirement.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), row) };
    }
}
