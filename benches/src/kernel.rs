//! Kernels to time, as data: one line each.

use trike_cpu::{ActivationPrecision, CpuError, Layout, Matrix, TernaryMatrix};
use trike_trit::{Granularity, GroupSize, TritTensor};

/// A weight format and an activation precision.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Name in reports: weights, then activations.
    pub name: &'static str,
    /// Format of the weights.
    pub form: Form,
    /// Precision passed to [`Cpu::linear`](trike_cpu::CpuOps::linear).
    pub activations: ActivationPrecision,
}

/// Format of the weights.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// Planes of trits with scales.
    Ternary {
        /// Number of planes, and the relation of their scales.
        planes: Planes,
        /// Granularity of the scales.
        scales: Granularity,
        /// Packs a tensor into the kernel's layout.
        pack: fn(&TritTensor) -> Result<Matrix, CpuError>,
    },
    /// Int8 with one f32 scale per 32 weights, as in embeddings and LM heads.
    Int8,
    /// Dense f16, converted to f32 in registers.
    F16,
    /// Dense f32.
    F32,
}

/// Number of trit planes per weight, and the relation of their scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planes {
    /// One plane.
    One,
    /// 2 or 3 planes; the scale of each is a third of the previous one's.
    Tied(u8),
    /// 2 or 3 planes with independent scales.
    Free(u8),
}

impl Planes {
    /// Number of planes.
    #[must_use]
    pub fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Tied(n) | Self::Free(n) => usize::from(n),
        }
    }
}

impl Kernel {
    /// A ternary kernel with int8 activations and one scale per token, as in BitNet models.
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

    /// A kernel for dense weights, always with f32 activations.
    const fn dense(name: &'static str, form: Form) -> Self {
        Self { name, form, activations: ActivationPrecision::F32 }
    }

    /// The same weights with other activations.
    const fn with(self, name: &'static str, activations: ActivationPrecision) -> Self {
        Self { name, form: self.form, activations }
    }

    /// Group scales of this size, two bits per weight, and one activation scale per group.
    const fn matched(name: &'static str, size: GroupSize) -> Self {
        let scales = Granularity::Group(size);
        let activations = ActivationPrecision::Int8PerGroup(size);
        Self::ternary(name, Planes::One, scales, two_bit).with(name, activations)
    }
}

/// Layout with two bits per weight.
fn two_bit(tensor: &TritTensor) -> Result<Matrix, CpuError> {
    Ok(TernaryMatrix::pack(tensor)?.into())
}

/// Layout with 1.6 bits per weight.
fn base3(tensor: &TritTensor) -> Result<Matrix, CpuError> {
    Ok(TernaryMatrix::pack_as(tensor, Layout::Base3)?.into())
}

/// Layout with nonzeros only.
fn sparse(tensor: &TritTensor) -> Result<Matrix, CpuError> {
    Ok(TernaryMatrix::pack_as(tensor, Layout::Sparse)?.into())
}

/// Layout without zero blocks.
fn blocks(tensor: &TritTensor) -> Result<Matrix, CpuError> {
    Ok(TernaryMatrix::pack_as(tensor, Layout::Blocks)?.into())
}

const G64: Granularity = Granularity::Group(GroupSize::G64);
const G128: Granularity = Granularity::Group(GroupSize::G128);
const G256: Granularity = Granularity::Group(GroupSize::G256);

/// Two bits per weight and one scale: the reference for the other ternary kernels.
pub const TERNARY: Kernel = Kernel::ternary("ternary x int8", Planes::One, Granularity::Tensor, two_bit);
/// Two bits per weight and group scales as in `Q2_0` files.
const GROUPED: Kernel = Kernel::ternary("ternary/128 x int8", Planes::One, G128, two_bit);
const FLOATS: Kernel = TERNARY.with("ternary x f32", ActivationPrecision::F32);
/// Embeddings and heads; what an int8 matrix is given is [`ActivationPrecision::Int16`] unless it is f32.
const INT8: Kernel =
    Kernel::dense("int8/32 x int16", Form::Int8).with("int8/32 x int16", ActivationPrecision::Int16);
const F16: Kernel = Kernel::dense("f16 x f32", Form::F16);
/// Name of the kernel with 1.6 bits per weight.
pub(crate) const BASE3: &str = "1.6 bit x int8";
/// Name of the kernel that reads nonzeros only.
pub(crate) const SLOTS: &str = "sparse x int8";
/// Name of the kernel that skips zero blocks.
pub(crate) const SKIPPING: &str = "blocks x int8";
/// Dense f32.
pub const DENSE: Kernel = Kernel::dense("f32 x f32", Form::F32);

/// Kernels for the shapes of a real model.
pub const LAYER: &[Kernel] = &[TERNARY, GROUPED, FLOATS, INT8, F16, DENSE];

/// Kernels for the square: all scale granularities of the file formats (`Q2_0` groups of 64 and 128, `TQ2_0` groups of
/// 256, rows), with one activation scale per token and with one per group, and several planes.
pub const EVERY: &[Kernel] = &[
    TERNARY,
    Kernel::ternary("ternary/row x int8", Planes::One, Granularity::Row, two_bit),
    Kernel::ternary("ternary/64 x int8", Planes::One, G64, two_bit),
    GROUPED,
    Kernel::ternary("ternary/256 x int8", Planes::One, G256, two_bit),
    Kernel::matched("ternary/32 x int8/32", GroupSize::G32),
    Kernel::matched("ternary/64 x int8/64", GroupSize::G64),
    Kernel::matched("ternary/128 x int8/128", GroupSize::G128),
    Kernel::matched("ternary/256 x int8/256", GroupSize::G256),
    Kernel::ternary(BASE3, Planes::One, Granularity::Tensor, base3),
    Kernel::ternary("1.6 bit/128 x int8", Planes::One, G128, base3),
    Kernel::ternary("1.6 bit/128 x int8/128", Planes::One, G128, base3)
        .with("1.6 bit/128 x int8/128", ActivationPrecision::Int8PerGroup(GroupSize::G128)),
    Kernel::ternary(SKIPPING, Planes::One, Granularity::Tensor, blocks),
    Kernel::ternary("2 tied planes x int8", Planes::Tied(2), Granularity::Tensor, two_bit),
    Kernel::ternary("3 tied planes x int8", Planes::Tied(3), Granularity::Tensor, two_bit),
    Kernel::ternary("2 free planes x int8", Planes::Free(2), Granularity::Tensor, two_bit),
    FLOATS,
    INT8,
    F16,
    DENSE,
];

/// Kernels for matrices with nearly all weights zero.
pub const SPARSE: &[Kernel] = &[TERNARY, Kernel::ternary(SLOTS, Planes::One, Granularity::Tensor, sparse)];

/// Kernels for matrices with whole blocks of zeros.
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
