//! Operations that attention needs in addition to the float kernels.

use crate::kernels::FloatKernels;
use trike_host::isa::Scalar;

#[cfg(target_arch = "x86_64")]
mod avx512;
mod codes;
mod popcount;

pub(super) use codes::CodeLanes;
pub(super) use popcount::count_bits;

/// Vectors of f32, and 16 x 16 blocks of them.
pub(super) trait Lanes: FloatKernels {
    /// Transposes a 16 x 16 block.
    #[inline(always)]
    fn transpose(self, square: &mut [[f32; 16]; 16]) {
        swap_all(square);
    }
}

/// [`Lanes::transpose`] element by element, compiled once: no instruction set shortens these moves.
#[inline(never)]
fn swap_all(square: &mut [[f32; 16]; 16]) {
    for i in 1..16 {
        for j in 0..i {
            (square[i][j], square[j][i]) = (square[j][i], square[i][j]);
        }
    }
}

impl Lanes for Scalar {}
#[cfg(target_arch = "x86_64")]
impl Lanes for trike_host::isa::Avx2 {}

#[cfg(test)]
mod tests {
    use super::Lanes;
    use crate::kernels::{Kernels as _, with_float_kernels};
    use trike_host::Isa;
    use trike_host::Loop;

    struct Transpose<S>(S);

    impl<S: Lanes> Loop for Transpose<S> {
        type Output = ();

        fn run(self) {
            let number = |i: usize, j: usize| (100 * i + j) as f32;
            let mut square: [[f32; 16]; 16] = std::array::from_fn(|i| std::array::from_fn(|j| number(i, j)));
            self.0.transpose(&mut square);
            assert!((0..16).all(|i| (0..16).all(|j| square[i][j] == number(j, i))));
        }
    }

    #[test]
    fn rows_become_columns() {
        for isa in Isa::available() {
            with_float_kernels!(isa, kernels => kernels.run(Transpose(kernels)));
        }
    }
}
