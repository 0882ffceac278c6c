//! Byte permutes, available on some CPUs: fast unpacking of base-3 bytes and lookup of sparse weights.
//!
//! Only the loops that benefit are compiled with them, in addition to a version for CPUs with the same instruction set but without
//! permutes.

use crate::kernels::Kernels;
use crate::line::{CodeLine, TableLine};
use crate::simd::Simd;
use trike_host::Loop;
use trike_host::isa::Scalar;

#[cfg(target_arch = "x86_64")]
mod avx512;

/// Byte permutes, or a fallback.
pub(crate) trait Permutes<S: Simd>: Copy {
    /// The five base-3 digits of each byte of a line, as [`Simd::digits`].
    fn digits(self, s: S, line: S::Bytes) -> [S::Bytes; 5];

    /// The digits, each times a constant that makes unpacking cheapest.
    fn scaled_digits(self, s: S, line: S::Bytes) -> [S::Bytes; 5];

    /// The exact sums of digit times activation from those of the scaled digits, after at most [`Simd::LINES`] lines.
    fn finish_digits(self, s: S, sums: [S::Acc; 5]) -> [S::Ints; 5];

    /// The sums of the activations addressed by the slots of some lines, negated for slots with the sign bit; a line
    /// has `windows` windows (1, 2 or 4), with one table per window. `None` without a permute of 128 bytes.
    fn find<const T: usize>(
        self,
        s: S,
        lines: &[CodeLine],
        windows: usize,
        tables: [&[TableLine]; T],
    ) -> Option<[S::Ints; T]>;
}

/// Fallback for every instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Without;

impl<S: Simd> Permutes<S> for Without {
    #[inline(always)]
    fn digits(self, s: S, line: S::Bytes) -> [S::Bytes; 5] {
        s.digits(line)
    }

    #[inline(always)]
    fn scaled_digits(self, s: S, line: S::Bytes) -> [S::Bytes; 5] {
        s.digits(line)
    }

    #[inline(always)]
    fn finish_digits(self, s: S, sums: [S::Acc; 5]) -> [S::Ints; 5] {
        [s.to_ints(sums[0]), s.to_ints(sums[1]), s.to_ints(sums[2]), s.to_ints(sums[3]), s.to_ints(sums[4])]
    }

    #[inline(always)]
    fn find<const T: usize>(
        self,
        _: S,
        _: &[CodeLine],
        _: usize,
        _: [&[TableLine]; T],
    ) -> Option<[S::Ints; T]> {
        None
    }
}

/// A loop that benefits from byte permutes.
pub(crate) trait PermuteLoop<S: Simd> {
    /// Result of the loop.
    type Output;
    /// Runs it; marked `#[inline(always)]`, like [`Loop::run`].
    fn run<P: Permutes<S>>(self, s: S, permutes: P) -> Self::Output;
}

/// A [`PermuteLoop`] with its instruction set and permutes.
struct Bound<S, P, L> {
    s: S,
    permutes: P,
    task: L,
}

impl<S: Simd, P: Permutes<S>, L: PermuteLoop<S>> Loop for Bound<S, P, L> {
    type Output = L::Output;

    #[inline(always)]
    fn run(self) -> L::Output {
        self.task.run(self.s, self.permutes)
    }
}

/// Instruction sets that may have byte permutes.
pub(crate) trait RunPermuting: Kernels {
    /// The instruction set whose code runs loops that gain from permutes only: fewer copies of the same code.
    type Plain: RunPermuting;

    /// That instruction set.
    fn plain(self) -> Self::Plain;

    /// Runs a loop with the byte permutes of the CPU, if available.
    fn run_permuting<L: PermuteLoop<Self>>(self, task: L) -> L::Output {
        match self.try_permuting(task) {
            Ok(output) => output,
            Err(task) => self.run(Bound { s: self, permutes: Without, task }),
        }
    }

    /// Runs a loop with the byte permutes of the CPU, or returns it if there are none.
    fn try_permuting<L: PermuteLoop<Self>>(self, task: L) -> Result<L::Output, L> {
        Err(task)
    }
}

impl RunPermuting for Scalar {
    type Plain = Self;

    fn plain(self) -> Self {
        self
    }
}

#[cfg(target_arch = "x86_64")]
impl RunPermuting for trike_host::isa::Sse41 {
    type Plain = Scalar;

    fn plain(self) -> Scalar {
        Scalar::portable()
    }
}

#[cfg(target_arch = "x86_64")]
impl RunPermuting for trike_host::isa::Avx2 {
    type Plain = Self;

    fn plain(self) -> Self {
        self
    }
}

#[cfg(target_arch = "x86_64")]
impl RunPermuting for trike_host::isa::AvxVnni {
    type Plain = trike_host::isa::Avx2;

    fn plain(self) -> Self::Plain {
        self.avx2()
    }
}
