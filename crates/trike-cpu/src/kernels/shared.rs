//! Instruction sets whose dense kernels are those of another: they differ in integer products only.

use std::arch::x86_64::*;

use super::{Element, Kernels, Loop, Rows};
use crate::isa::{AvxVnni, Scalar, Sse41};
use crate::probe::{Peak, WordLine};

/// Hands the dense kernels on.
macro_rules! dense_kernels_of {
    ($self:ident => $other:expr) => {
        fn product<E: Element>($self, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]) {
            $other.product(w, x, out);
        }

        fn widen<E: Element>($self, from: &[E], to: &mut [f32]) {
            $other.widen(from, to);
        }

        fn read<const S: usize>($self, lines: &[WordLine], ahead: usize) -> u64 {
            $other.read::<S>(lines, ahead)
        }
    };
}

impl Kernels for AvxVnni {
    dense_kernels_of!(self => self.avx2());

    fn peaks(self) -> &'static [Peak<Self>] {
        &[Peak {
            name: "vpdpbusd, 256 bits",
            macs: 12 * 32,
            // SAFETY: the token exists, and `AvxVnni::detect` makes one only where the processor has the instructions.
            run: |_, steps| unsafe { peak_vnni(steps) },
        }]
    }

    fn run<L: Loop>(self, task: L) -> L::Output {
        // SAFETY: the token exists, and `AvxVnni::detect` makes one only where the processor has every feature below.
        unsafe { run_vnni(task) }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn run_vnni<L: Loop>(task: L) -> L::Output {
    task.run()
}

/// Twelve independent sums: more than latency times throughput.
#[target_feature(enable = "avx2,avxvnni")]
fn peak_vnni(steps: u64) {
    let (w, x) = (std::hint::black_box(_mm256_set1_epi8(2)), std::hint::black_box(_mm256_set1_epi8(3)));
    let mut acc = [_mm256_setzero_si256(); 12];
    for _ in 0..steps {
        for acc in &mut acc {
            *acc = _mm256_dpbusd_avx_epi32(*acc, w, x);
        }
    }
    std::hint::black_box(acc);
}

impl Kernels for Sse41 {
    dense_kernels_of!(self => self.scalar());

    fn peaks(self) -> &'static [Peak<Self>] {
        &[Peak {
            name: "pmaddubsw, widened every fourth",
            macs: 16 * 16,
            // SAFETY: the token exists, and `Sse41::detect` makes one only where the processor has the instructions.
            run: |_, steps| unsafe { peak_sse(steps) },
        }]
    }

    fn run<L: Loop>(self, task: L) -> L::Output {
        // SAFETY: the token exists, and `Sse41::detect` makes one only where the processor has every feature below.
        unsafe { run_sse(task) }
    }
}

impl Sse41 {
    /// The kernels that gain nothing from SSSE3 and SSE4.1 over the vectors that every x86-64 processor has.
    fn scalar(self) -> Scalar {
        Scalar::portable()
    }
}

#[target_feature(enable = "ssse3,sse4.1")]
fn run_sse<L: Loop>(task: L) -> L::Output {
    task.run()
}

/// Four sums of four products each; sixteen instructions a step multiply.
#[target_feature(enable = "ssse3")]
fn peak_sse(steps: u64) {
    let (w, x) = (std::hint::black_box(_mm_set1_epi8(2)), std::hint::black_box(_mm_set1_epi8(3)));
    let ones = _mm_set1_epi16(1);
    let mut acc = [_mm_setzero_si128(); 4];
    for _ in 0..steps {
        for acc in &mut acc {
            let mut pairs = _mm_maddubs_epi16(w, x);
            for _ in 0..3 {
                pairs = _mm_add_epi16(pairs, _mm_maddubs_epi16(std::hint::black_box(w), x));
            }
            *acc = _mm_add_epi32(*acc, _mm_madd_epi16(pairs, ones));
        }
    }
    std::hint::black_box(acc);
}
