//! Kernels per instruction set, behind one trait; the scalar implementation is the specification.
//!
//! The ternary kernels are written with the vector operations of [`crate::simd`] and are bit-identical on every
//! instruction set. The kernels for float weights use FMA and all lanes of the machine, so they agree only
//! within rounding: the error of each is at most twice that of a plain f32 sum (`tests/it/dense.rs`). Within one
//! instruction set no result depends on the other tokens and rows of the call.

pub(crate) mod element;
mod floats;
mod outer;
#[cfg(target_arch = "x86_64")]
pub(crate) mod pairs;
pub(crate) mod rounding;
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
pub(crate) use outer::{Share, View};
pub(crate) use rows::Rows;

use trike_host::Loop;

use crate::simd::Simd;

/// An instruction set that a loop can be compiled for, including the vector operations of the ternary kernels.
pub(crate) trait Kernels: Simd {
    /// Runs a loop with this instruction set enabled.
    fn run<L: Loop>(self, task: L) -> L::Output;
}

/// Kernels of dense weights. Instruction sets that differ only in integer products share them
/// ([`with_float_kernels`]).
pub(crate) trait FloatKernels: FloatLanes {
    /// `out[t][r] = w[r] . x[t]` for dense rows; `x` holds `out.len()` tokens, and each slice of `out` has
    /// `w.count()` elements. An output is bit-identical for any other rows and tokens of the call.
    fn product<E: Element>(self, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]);

    /// Converts elements to f32; the slices have the same length.
    fn widen<E: Element>(self, from: &[E], to: &mut [f32]);
}

/// Sums 16 lanes in the order that all implementations use.
#[inline(always)]
pub(crate) fn fold(mut lanes: [f32; 16]) -> f32 {
    for width in [8, 4, 2, 1] {
        for l in 0..width {
            lanes[l] += lanes[l + width];
        }
    }
    lanes[0]
}

/// Runs an expression with the kernels of an instruction set, for loops that benefit from each of them.
macro_rules! with_kernels {
    ($isa:expr, $kernels:ident => $body:expr) => {
        match $isa.token() {
            trike_host::isa::IsaToken::Scalar($kernels) => $body,
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::Sse41($kernels) => $body,
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::Avx2($kernels) => $body,
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::AvxVnni($kernels) => $body,
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::Avx512($kernels) => $body,
        }
    };
}
pub(crate) use with_kernels;

/// Runs an expression with the kernels of an instruction set, for loops without integer products, the only operations in which
/// AVX-VNNI differs from AVX2: it runs the instance of AVX2.
macro_rules! with_shared_kernels {
    ($isa:expr, $kernels:ident => $body:expr) => {
        match $isa.token() {
            trike_host::isa::IsaToken::Scalar($kernels) => $body,
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::Sse41($kernels) => $body,
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::Avx2($kernels) => $body,
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::AvxVnni(token) => {
                let $kernels = token.avx2();
                $body
            }
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::Avx512($kernels) => $body,
        }
    };
}
pub(crate) use with_shared_kernels;

/// Runs an expression with the float kernels of an instruction set. AVX-VNNI uses those of AVX2; SSSE3 and SSE4.1 add
/// nothing over the x86-64 baseline.
macro_rules! with_float_kernels {
    ($isa:expr, $kernels:ident => $body:expr) => {
        match $isa.token() {
            trike_host::isa::IsaToken::Scalar($kernels) => $body,
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::Sse41(_) => {
                let $kernels = trike_host::isa::Scalar::portable();
                $body
            }
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::Avx2($kernels) => $body,
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::AvxVnni(token) => {
                let $kernels = token.avx2();
                $body
            }
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::Avx512($kernels) => $body,
        }
    };
}
pub(crate) use with_float_kernels;
