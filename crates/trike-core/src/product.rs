//! Precision of the products of training.

/// Rounding of the operands of a floating-point product. Accumulation is always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProductPrecision {
    /// Nothing: they are f32.
    #[default]
    F32,
    /// bf16: 8 bits of precision, the range of f32.
    Bf16,
    /// f16: 11 bits of precision between 2^-14 and 65504; larger magnitudes become infinite.
    F16,
}

impl ProductPrecision {
    /// Rounds to the nearest value of this precision, ties to even.
    ///
    /// ```
    /// use trike_core::ProductPrecision as P;
    ///
    /// assert_eq!([P::F32, P::Bf16, P::F16].map(|p| p.round(1.003)), [1.003, 1.0, 1.0029297]);
    /// assert_eq!([P::F32, P::Bf16, P::F16].map(|p| p.round(65520.0)), [65520.0, 65536.0, f32::INFINITY]);
    /// ```
    #[inline]
    #[must_use]
    pub fn round(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::Bf16 => half::bf16::from_f32(value).to_f32(),
            Self::F16 => half::f16::from_f32(value).to_f32(),
        }
    }
}
