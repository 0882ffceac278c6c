//! Stored element types that convert to f32.

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, __m512, _mm_loadl_epi64, _mm_loadu_si128, _mm256_castsi256_ps, _mm256_cvtepi8_epi32,
    _mm256_cvtepi32_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_slli_epi32, _mm512_castsi512_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu16_epi32,
    _mm512_cvtph_ps, _mm512_loadu_ps, _mm512_slli_epi32,
};

/// An element type of the dense kernels: f32, f16, bf16 or i8. Sealed by being private.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// Zero, to pad the last chunk of a row.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "the portable kernels need no padding")
    )]
    const ZERO: Self;
    /// Whether the elements are codes with scales instead of the weights themselves.
    const CODES: bool = false;

    /// The value; exact for every element type.
    fn widen(self) -> f32;

    /// Eight values.
    ///
    /// # Safety
    ///
    /// The CPU has AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load8(chunk: &[Self; 8]) -> __m256;

    /// Sixteen values.
    ///
    /// # Safety
    ///
    /// The CPU has AVX-512 F.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load16(chunk: &[Self; 16]) -> __m512;
}

impl Element for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load8(chunk: &[Self; 8]) -> __m256 {
        // SAFETY: the array is eight readable f32, and the load has no alignment requirement.
        unsafe { _mm256_loadu_ps(chunk.as_ptr()) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load16(chunk: &[Self; 16]) -> __m512 {
        // SAFETY: the array is 16 readable f32, and the load has no alignment requirement.
        unsafe { _mm512_loadu_ps(chunk.as_ptr()) }
    }
}

impl Element for f16 {
    const ZERO: Self = f16::ZERO;

    #[inline(always)]
    fn widen(self) -> f32 {
        // `to_f32` checks the CPU features on every call; these few operations vectorize.
        let bits = u32::from(self.to_bits());
        // The shifted exponent and fraction are 2^112 too small; the product is exact, also for subnormals.
        let magnitude = f32::from_bits((bits & 0x7FFF) << 13) * f32::from_bits((127 + 112) << 23);
        let special = if bits & 0x7C00 == 0x7C00 { 0x7F80_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load8(chunk: &[Self; 8]) -> __m256 {
        // SAFETY: the array is 16 readable bytes, and the load has no alignment requirement.
        let bits = unsafe { _mm_loadu_si128(chunk.as_ptr().cast()) };
        _mm256_cvtph_ps(bits)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load16(chunk: &[Self; 16]) -> __m512 {
        // SAFETY: the array is 32 readable bytes, and the load has no alignment requirement.
        let bits = unsafe { _mm256_loadu_si256(chunk.as_ptr().cast()) };
        _mm512_cvtph_ps(bits)
    }
}

impl Element for bf16 {
    const ZERO: Self = bf16::ZERO;

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load8(chunk: &[Self; 8]) -> __m256 {
        // SAFETY: the array is 16 readable bytes, and the load has no alignment requirement.
        let bits = unsafe { _mm_loadu_si128(chunk.as_ptr().cast()) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load16(chunk: &[Self; 16]) -> __m512 {
        // SAFETY: the array is 32 readable bytes, and the load has no alignment requirement.
        let bits = unsafe { _mm256_loadu_si256(chunk.as_ptr().cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
    }
}

impl Element for i8 {
    const ZERO: Self = 0;
    const CODES: bool = true;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from(self)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load8(chunk: &[Self; 8]) -> __m256 {
        // SAFETY: the array is eight readable bytes, and the load reads eight bytes.
        let bits = unsafe { _mm_loadl_epi64(chunk.as_ptr().cast()) };
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bits))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load16(chunk: &[Self; 16]) -> __m512 {
        // SAFETY: the array is 16 readable bytes, and the load has no alignment requirement.
        let bits = unsafe { _mm_loadu_si128(chunk.as_ptr().cast()) };
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bits))
    }
}

#[cfg(test)]
mod tests {
    use super::Element;
    use half::f16;

    #[test]
    fn every_f16_widens_to_its_value() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            let (got, want) = (half.widen(), half.to_f32());
            assert!(
                got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                "{bits:#x}: {got} {want}"
            );
        }
    }
}
