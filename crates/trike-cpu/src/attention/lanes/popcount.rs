//! Loops that count bits, with the population count of each instruction set.

use crate::kernels::{Kernels, with_shared_kernels};
use trike_host::{Isa, Loop};

/// Runs a loop that counts bits. The compiler turns `count_ones` of consecutive words into VPOPCNTQ if available, and into lookups
/// per nibble with AVX2.
pub(in crate::attention) fn count_bits<L: Loop>(isa: Isa, task: L) -> L::Output {
    #[cfg(target_arch = "x86_64")]
    if let trike_host::isa::IsaToken::Avx512(token) = isa.token()
        && let Some(token) = x86::Popcount::detect(token)
    {
        return token.run(task);
    }
    with_shared_kernels!(isa, kernels => kernels.run(task))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use trike_host::{Loop, isa::Avx512};

    /// [`Avx512`] with VPOPCNTDQ.
    #[derive(Clone, Copy)]
    pub(super) struct Popcount(());

    impl Popcount {
        pub(super) fn detect(_: Avx512) -> Option<Self> {
            is_x86_feature_detected!("avx512vpopcntdq").then_some(Self(()))
        }

        pub(super) fn run<L: Loop>(self, task: L) -> L::Output {
            // SAFETY: `detect` creates `self` from an `Avx512`, which has the other features, after detecting VPOPCNTDQ.
            unsafe { run(task) }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni,avx512vpopcntdq")]
    fn run<L: Loop>(task: L) -> L::Output {
        task.run()
    }
}
