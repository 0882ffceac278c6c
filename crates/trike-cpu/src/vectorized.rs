//! Loops of other crates, compiled for the instruction set of the CPU.

use trike_host::{Cpu, Loop};

use crate::kernels::{Kernels, with_shared_kernels};

/// Runs a loop compiled for the instruction set of `cpu`. Functions that it calls must be inlined, or they are compiled for the
/// portable set. `f64::mul_add` and `f32::mul_add` are slow if [`Isa::has_fma`](crate::Isa::has_fma) is false.
///
/// ```
/// use trike_cpu::{Cpu, Loop, vectorized};
///
/// struct Sum<'a>(&'a [f64]);
/// impl Loop for Sum<'_> {
///     type Output = f64;
///     #[inline(always)]
///     fn run(self) -> f64 {
///         self.0.iter().sum()
///     }
/// }
/// assert_eq!(vectorized(&Cpu::new(1)?, Sum(&[1.0, 2.0])), 3.0);
/// # Ok::<(), trike_cpu::HostError>(())
/// ```
pub fn vectorized<L: Loop>(cpu: &Cpu, task: L) -> L::Output {
    with_shared_kernels!(cpu.isa(), kernels => kernels.run(task))
}
