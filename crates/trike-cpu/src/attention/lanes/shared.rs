//! Instruction sets whose floats are those of another.

use super::Lanes;
use crate::isa::{AvxVnni, Scalar, Sse41};
use crate::kernels::Element;

/// Hands every operation on.
macro_rules! lanes_of {
    ($token:ty, $other:ty, $self:ident => $call:expr) => {
        impl Lanes for $token {
            type Vector = <$other as Lanes>::Vector;
            const LANES: usize = <$other as Lanes>::LANES;

            #[inline(always)]
            fn splat_lanes($self, value: f32) -> Self::Vector {
                $call.splat_lanes(value)
            }

            #[inline(always)]
            fn load_lanes<E: Element>($self, from: &[E; 16], at: usize) -> Self::Vector {
                $call.load_lanes(from, at)
            }

            #[inline(always)]
            fn store_lanes($self, to: &mut [f32; 16], at: usize, floats: Self::Vector) {
                $call.store_lanes(to, at, floats);
            }

            #[inline(always)]
            fn mul_lanes($self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                $call.mul_lanes(a, b)
            }

            #[inline(always)]
            fn mul_add($self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
                $call.mul_add(a, b, c)
            }

            #[inline(always)]
            fn fold_lanes($self, floats: [Self::Vector; 4]) -> [f32; 4] {
                $call.fold_lanes(floats)
            }
        }
    };
}

lanes_of!(AvxVnni, crate::isa::Avx2, self => self.avx2());
lanes_of!(Sse41, Scalar, self => Scalar::portable());
