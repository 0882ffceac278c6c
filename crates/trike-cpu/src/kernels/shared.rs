//! Instruction sets whose dense kernels are those of another: they differ in integer products only.

use trike_host::Loop;

use super::{Element, Kernels, Rows};
use trike_host::isa::{AvxVnni, Scalar, Sse41};

/// Hands the dense kernels on.
macro_rules! dense_kernels_of {
    ($self:ident => $other:expr) => {
        fn product<E: Element>($self, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]) {
            $other.product(w, x, out);
        }

        fn widen<E: Element>($self, from: &[E], to: &mut [f32]) {
            $other.widen(from, to);
        }
    };
}

impl Kernels for AvxVnni {
    dense_kernels_of!(self => self.avx2());

    fn run<L: Loop>(self, task: L) -> L::Output {
        // SAFETY: the token exists, and `AvxVnni::detect` makes one only where the processor has every feature below.
        unsafe { run_vnni(task) }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn run_vnni<L: Loop>(task: L) -> L::Output {
    task.run()
}

impl Kernels for Sse41 {
    // They gain nothing from SSSE3 and SSE4.1 over the vectors that every x86-64 processor has.
    dense_kernels_of!(self => Scalar::portable());

    fn run<L: Loop>(self, task: L) -> L::Output {
        // SAFETY: the token exists, and `Sse41::detect` makes one only where the processor has every feature below.
        unsafe { run_sse(task) }
    }
}

#[target_feature(enable = "ssse3,sse4.1")]
fn run_sse<L: Loop>(task: L) -> L::Output {
    task.run()
}
