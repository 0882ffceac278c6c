//! Backward passes of a decoder's operations, on slices.
//!
//! Start from [`rms_norm`] and [`rms_norm_weight`], [`rope`], [`attention`] and [`gated`]; [`cross_entropy`], [`divergence`] and
//! [`distill`] are losses, [`round_int8`] is the fake quantization of activations. Gradients of matrices are products:
//! [`matmul`](crate::matmul). `trike-autodiff` records all of them on a tape.
//!
//! A function named like an operation of [`CpuOps`](crate::CpuOps) takes the inputs of that operation and `dy`, the
//! gradient of a scalar loss with respect to its output, and writes the gradients with respect to its inputs.
//! Everything is row-major, `tokens x width`, in f32. Sums over a token or over the positions of a sequence have a
//! fixed order, so results do not depend on the number of threads.
//!
//! ```
//! use trike_cpu::{Cpu, GatedActivation, grad};
//!
//! // y = relu(g)^2 u at g = 3, u = 0.5: dy/dg = 2 g u and dy/du = g^2.
//! let (mut d_gate, mut d_up) = ([0.0], [0.0]);
//! let cpu = Cpu::new(1)?;
//! grad::gated(&cpu, &[3.0], &[0.5], GatedActivation::SquaredReLu, &[1.0], &mut d_gate, &mut d_up)?;
//! assert_eq!((d_gate, d_up), ([3.0], [9.0]));
//! # Ok::<(), trike_cpu::CpuError>(())
//! ```

mod attention;
mod gated;
mod lanes;
mod loss;
mod norm;
mod rotary;
mod round;

pub use attention::{attend, attend_bytes, attention, attention_bytes};
pub use gated::gated;
pub use loss::{cross_entropy, distill, divergence};
pub use norm::{rms_norm, rms_norm_weight};
pub use rotary::rope;
pub use round::round_int8;
