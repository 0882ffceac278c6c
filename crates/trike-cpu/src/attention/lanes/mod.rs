//! The few vector operations that attention is written in.
//!
//! They are methods of the tokens, so they are safe: the token's existence proves the instructions. An implementation
//! marks each `#[inline(always)]`, and the features come from [`Kernels::run`], which every loop over these operations is
//! entered through. No code over them is a closure: a closure is a function of its own, with the features off.

use crate::isa::Scalar;
use crate::kernels::{Element, Kernels};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod shared;

/// Vectors of f32.
pub(super) trait Lanes: Kernels {
    /// One vector.
    type Vector: Copy;
    /// Its lanes, which divide sixteen.
    const LANES: usize;

    /// A vector of one number.
    fn splat_lanes(self, value: f32) -> Self::Vector;
    /// `from[at..at + LANES]` as f32.
    fn load_lanes<E: Element>(self, from: &[E; 16], at: usize) -> Self::Vector;
    /// Writes `to[at..at + LANES]`.
    fn store_lanes(self, to: &mut [f32; 16], at: usize, floats: Self::Vector);
    /// `a * b`
    fn mul_lanes(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b + c`, rounded once where the machine can.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// The sum of the lanes of each vector.
    fn fold_lanes(self, floats: [Self::Vector; 4]) -> [f32; 4];
    /// Swaps rows and columns.
    #[inline(always)]
    fn transpose(self, square: &mut [[f32; 16]; 16]) {
        for i in 1..16 {
            for j in 0..i {
                (square[i][j], square[j][i]) = (square[j][i], square[i][j]);
            }
        }
    }
}

/// Four lanes: registers that every machine has.
impl Lanes for Scalar {
    type Vector = [f32; 4];
    const LANES: usize = 4;

    #[inline(always)]
    fn splat_lanes(self, value: f32) -> [f32; 4] {
        [value; 4]
    }

    #[inline(always)]
    fn load_lanes<E: Element>(self, from: &[E; 16], at: usize) -> [f32; 4] {
        [from[at].widen(), from[at + 1].widen(), from[at + 2].widen(), from[at + 3].widen()]
    }

    #[inline(always)]
    fn store_lanes(self, to: &mut [f32; 16], at: usize, floats: [f32; 4]) {
        to[at..at + 4].copy_from_slice(&floats);
    }

    #[inline(always)]
    fn mul_lanes(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        [a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]]
    }

    #[inline(always)]
    fn mul_add(self, a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        [a[0] * b[0] + c[0], a[1] * b[1] + c[1], a[2] * b[2] + c[2], a[3] * b[3] + c[3]]
    }

    #[inline(always)]
    fn fold_lanes(self, floats: [[f32; 4]; 4]) -> [f32; 4] {
        floats.map(|v| (v[0] + v[2]) + (v[1] + v[3]))
    }
}

#[cfg(test)]
mod tests {
    use super::Lanes;
    use crate::Isa;
    use crate::isa::with_kernels;
    use crate::kernels::{Kernels, Loop};

    struct Everything<S>(S);

    impl<S: Lanes> Loop for Everything<S> {
        type Output = ();

        fn run(self) {
            let s = self.0;
            let number = |i: usize, j: usize| (100 * i + j) as f32;
            let mut square: [[f32; 16]; 16] = std::array::from_fn(|i| std::array::from_fn(|j| number(i, j)));
            let mut sums = [0.0; 4];
            for at in (0..16).step_by(S::LANES) {
                let part = s.fold_lanes([0, 1, 2, 3].map(|i| s.load_lanes(&square[i], at)));
                sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
                let mut out = [f32::NAN; 16];
                let (two, x, y) =
                    (s.splat_lanes(2.0), s.load_lanes(&square[1], at), s.load_lanes(&square[2], at));
                s.store_lanes(&mut out, at, s.mul_add(two, x, s.mul_lanes(two, y)));
                for (l, value) in out.into_iter().enumerate() {
                    let want = 2.0 * number(1, l) + 2.0 * number(2, l);
                    assert!(if (at..at + S::LANES).contains(&l) { value == want } else { value.is_nan() });
                }
            }
            assert_eq!(sums, [0, 1, 2, 3].map(|i| (0..16).map(|j| number(i, j)).sum::<f32>()));
            s.transpose(&mut square);
            assert!((0..16).all(|i| (0..16).all(|j| square[i][j] == number(j, i))));
        }
    }

    #[test]
    fn every_operation_does_what_it_says() {
        for isa in Isa::available() {
            with_kernels!(isa, kernels => kernels.run(Everything(kernels)));
        }
    }
}
