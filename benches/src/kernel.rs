//! The kernels that are timed, as data: one line each.

use trike_cpu::{ActivationPrecision, CpuError, Layout, Matrix, TernaryMatrix};
use trike_trit::{Granularity, GroupSize, TritTensor};

/// How the weights are held and in which numbers they meet the activations.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// How reports call it: weights, then activations.
    pub name: &'static str,
    /// The weights.
    pub form: Form,
    /// What [`Cpu::linear`](trike_cpu::CpuOps::linear) is called with.
    pub activations: ActivationPrecision,
}

/// How the weights are held.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// Planes of trits with scales.
    Ternary {
        /// How many planes, and what they have to do with each other.
        planes: Planes,
        /// Which weights share a scale.
        scales: Granularity,
        /// The layout: what makes a kernel's matrix of a tensor.
        pack: fn(&TritTensor) -> Result<Matrix, CpuError>,
    },
    /// Bytes with a scale for 64 weights; embeddings and heads.
    Int8,
    /// Dense f16, widened in registers.
    F16,
    /// Dense f32.
    F32,
}

/// Planes of a ternary weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planes {
    /// One.
    One,
    /// So many, 2 or 3, each worth a third of the one before.
    Tied(u8),
    /// So many, 2 or 3, each with a scale of its own.
    Free(u8),
}

impl Planes {
    /// How many.
    #[must_use]
    pub fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Tied(n) | Self::Free(n) => usize::from(n),
        }
    }
}

impl Kernel {
    /// A kernel over trits with int8 activations, a factor for each token, as BitNet models run.
    #[must_use]
    pub const fn ternary(
        name: &'static str,
        planes: Planes,
        scales: Granularity,
        pack: fn(&TritTensor) -> Result<Matrix, CpuError>,
    ) -> Self {
        let form = Form::Ternary { planes, scales, pack };
        Self { name, form, activations: ActivationPrecision::Int8PerToken }
    }

    /// A kernel over other weights, which always meet f32.
    const fn dense(name: &'static str, form: Form) -> Self {
        Self { name, form, activations: ActivationPrecision::F32 }
    }

    /// The same weights with f32 activations.
    const fn with_floats(self, name: &'static str) -> Self {
        Self { name, form: self.form, activations: ActivationPrecision::F32 }
    }
}

/// The layout of two bits a weight.
fn two_bit(tensor: &TritTensor) -> Result<Matrix, CpuError> {
    Ok(TernaryMatrix::pack(tensor)?.into())
}

/// The layout of 1.6 bits a weight.
fn base3(tensor: &TritTensor) -> Result<Matrix, CpuError> {
    Ok(TernaryMatrix::pack_as(tensor, Layout::Base3)?.into())
}

/// The layout of nonzeros only.
fn sparse(tensor: &TritTensor) -> Result<Matrix, CpuError> {
    Ok(TernaryMatrix::pack_as(tensor, Layout::Sparse)?.into())
}

/// The layout without blocks of zeros.
fn blocks(tensor: &TritTensor) -> Result<Matrix, CpuError> {
    Ok(TernaryMatrix::pack_as(tensor, Layout::Blocks)?.into())
}

const G64: Granularity = Granularity::Group(GroupSize::G64);
const G128: Granularity = Granularity::Group(GroupSize::G128);
const G256: Granularity = Granularity::Group(GroupSize::G256);

/// Two bits a weight and one scale: what every other ternary kernel is compared with.
pub const TERNARY: Kernel = Kernel::ternary("ternary x int8", Planes::One, Granularity::Tensor, two_bit);
/// The group scales of `Q2_0` files.
const GROUPED: Kernel = Kernel::ternary("ternary/128 x int8", Planes::One, G128, two_bit);
const FLOATS: Kernel = TERNARY.with_floats("ternary x f32");
const INT8: Kernel = Kernel::dense("int8/64 x f32", Form::Int8);
const F16: Kernel = Kernel::dense("f16 x f32", Form::F16);
/// The name of the kernel of 1.6 bits a weight.
pub(crate) const BASE3: &str = "1.6 bit x int8";
/// The name of the kernel that reads nonzeros only.
pub(crate) const SLOTS: &str = "sparse x int8";
/// The name of the kernel that leaves out blocks of zeros.
pub(crate) const SKIPPING: &str = "blocks x int8";
/// Dense f32.
pub const DENSE: Kernel = Kernel::dense("f32 x f32", Form::F32);

/// What is timed at the shapes of a real model.
pub const LAYER: &[Kernel] = &[TERNARY, GROUPED, FLOATS, INT8, F16, DENSE];

/// What is timed at the square: each granularity that file formats have (`Q2_0` groups of 64 and 128, `TQ2_0` groups
/// of 256, a row), and several planes.
pub const EVERY: &[Kernel] = &[
    TERNARY,
    Kernel::ternary("ternary/row x int8", Planes::One, Granularity::Row, two_bit),
    Kernel::ternary("ternary/64 x int8", Planes::One, G64, two_bit),
    GROUPED,
    Kernel::ternary("ternary/256 x int8", Planes::One, G256, two_bit),
    Kernel::ternary(BASE3, Planes::One, Granularity::Tensor, base3),
    Kernel::ternary("1.6 bit/128 x int8", Planes::One, G128, base3),
    Kernel::ternary(SKIPPING, Planes::One, Granularity::Tensor, blocks),
    Kernel::ternary("2 tied planes x int8", Planes::Tied(2), Granularity::Tensor, two_bit),
    Kernel::ternary("3 tied planes x int8", Planes::Tied(3), Granularity::Tensor, two_bit),
    Kernel::ternary("2 free planes x int8", Planes::Free(2), Granularity::Tensor, two_bit),
    FLOATS,
    INT8,
    F16,
    DENSE,
];

/// What is timed where nearly all weights are zero.
pub const SPARSE: &[Kernel] = &[TERNARY, Kernel::ternary(SLOTS, Planes::One, Granularity::Tensor, sparse)];

/// What is timed where whole blocks of weights are zero.
pub const BLOCKS: &[Kernel] = &[TERNARY, Kernel::ternary(SKIPPING, Planes::One, Granularity::Tensor, blocks)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_the_reference_first_and_unique_names() {
        for list in [LAYER, EVERY, SPARSE, BLOCKS] {
            assert_eq!(list[0].name, TERNARY.name);
            let mut names: Vec<&str> = list.iter().map(|kernel| kernel.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), list.len());
        }
    }
}
