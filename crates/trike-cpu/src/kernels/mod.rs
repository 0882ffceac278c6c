//! The kernels that differ by instruction set, behind one trait; the scalar implementation is the specification.
//!
//! The ternary kernels, which are written over the vectors of [`crate::simd`], give the same bits on every instruction set.
//! The kernels for float and int8 weights fuse multiply and add where the machine can and sum in as many lanes as it has,
//! so they agree only within rounding: each errs at most twice as much as a plain f32 sum (`tests/dense.rs`). Within one
//! instruction set no result depends on the tokens and rows that are computed beside it.

pub(crate) mod element;
mod floats;
pub(crate) mod rows;
pub(crate) mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
mod product;
#[cfg(target_arch = "x86_64")]
mod shared;

pub(crate) use element::Element;
pub(crate) use floats::FloatLanes;
pub(crate) use rows::Rows;

use trike_host::Loop;

use crate::simd::Simd;

/// An instruction set that a loop can be compiled for, with the vectors that ternary kernels are written in.
pub(crate) trait Kernels: Simd {
    /// Runs a loop with this instruction set turned on.
    fn run<L: Loop>(self, task: L) -> L::Output;
}

/// The kernels of weights that are not ternary. Instruction sets that differ in integer products only share them
/// ([`with_float_kernels`]).
pub(crate) trait FloatKernels: FloatLanes {
    /// `out[t][r] = w[r] . x[t]` for rows of weights that are not ternary; `x` holds `out.len()` tokens, and each slice of
    /// `out` has `w.count()` places. An output has the same bits whatever rows and tokens are computed beside it.
    fn product<E: Element>(self, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]);

    /// Writes elements as f32; the slices have one length.
    fn widen<E: Element>(self, from: &[E], to: &mut [f32]);
}

/// Folds sixteen lanes in the order that every implementation follows.
#[inline(always)]
pub(crate) fn fold(mut lanes: [f32; 16]) -> f32 {
    for width in [8, 4, 2, 1] {
        for l in 0..width {
            lanes[l] += lanes[l + width];
        }
    }
    lanes[0]
}

/// Runs an expression with the kernels of an instruction set, for loops that gain from each of them.
macro_rules! with_kernels {
    ($isa:expr, $kernels:ident => $body:expr) => {
        match $isa.token() {
            trike_host::isa::Token::Scalar($kernels) => $body,
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::Token::Sse41($kernels) => $body,
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::Token::Avx2($kernels) => $body,
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::Token::AvxVnni($kernels) => $body,
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::Token::Avx512($kernels) => $body,
        }
    };
}
pub(crate) use with_kernels;

/// Runs an expression with the float kernels of an instruction set. AVX-VNNI has those of AVX2; SSSE3 and SSE4.1 add nothing to the
/// vectors that every x86-64 processor has.
macro_rules! with_float_kernels {
    ($isa:expr, $kernels:ident => $body:expr) => {
        match $isa.token() {
            trike_host::isa::Token::Scalar($kernels) => $body,
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::Token::Sse41(_) => {
                let $kernels = trike_host::isa::Scalar::portable();
                $body
            }
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::Token::Avx2($kernels) => $body,
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::Token::AvxVnni(token) => {
                let $kernels = token.avx2();
                $body
            }
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::Token::Avx512($kernels) => $body,
        }
    };
}
pub(crate) use with_float_kernels;
