//! Vector operations shared by attention and the kernels for float weights.
//!
//! They are methods of the instruction-set tokens and safe, because the existence of a token proves that the
//! instructions are available. Implementations use `#[inline(always)]` instead of `#[target_feature]`, because a trait
//! method cannot have the attribute and be safe; the features come from [`Kernels::run`], through which every loop
//! over these operations is entered. Called from elsewhere they are correct, but slow. Code over these operations must
//! not be in closures: a closure is a separate function, without the features.

use super::{Element, Kernels};
use trike_host::isa::Scalar;

/// Vectors of f32.
pub(crate) trait FloatLanes: Kernels {
    /// One vector.
    type Lanes: Copy;
    /// Number of lanes, a divisor of 16.
    const LANES: usize;

    /// A vector with all lanes set to `value`.
    fn splat_lanes(self, value: f32) -> Self::Lanes;

    /// `from[at..at + LANES]` as f32.
    fn load_lanes<E: Element, const N: usize>(self, from: &[E; N], at: usize) -> Self::Lanes;

    /// Writes `to[at..at + LANES]`.
    fn store_lanes<const N: usize>(self, to: &mut [f32; N], at: usize, lanes: Self::Lanes);

    /// `a * b`
    fn mul_lanes(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;

    /// `a * b + c`, fused if the machine supports it.
    fn mul_add(self, a: Self::Lanes, b: Self::Lanes, c: Self::Lanes) -> Self::Lanes;

    /// The sum of the lanes of each vector: halves are added until one lane is left.
    fn fold_lanes(self, lanes: [Self::Lanes; 4]) -> [f32; 4];
}

/// Additional operations of the vectorized kernels for float weights.
#[cfg(target_arch = "x86_64")]
pub(crate) trait Streaming: FloatLanes {
    /// Tokens whose running sums with four rows fit the registers; at most [`MOST_TOKENS`].
    const SIDE_TOKENS: usize;

    /// Prefetches a cache line to L1 (`FIRST`) or to L2; invalid addresses are ignored.
    fn prefetch_lanes<const FIRST: bool>(self, line: *const u8);
}

/// The largest [`Streaming::SIDE_TOKENS`].
#[cfg(target_arch = "x86_64")]
pub(crate) const MOST_TOKENS: usize = 6;

/// Four lanes, for portable code.
impl FloatLanes for Scalar {
    type Lanes = [f32; 4];
    const LANES: usize = 4;

    #[inline(always)]
    fn splat_lanes(self, value: f32) -> [f32; 4] {
        [value; 4]
    }

    #[inline(always)]
    fn load_lanes<E: Element, const N: usize>(self, from: &[E; N], at: usize) -> [f32; 4] {
        [from[at].widen(), from[at + 1].widen(), from[at + 2].widen(), from[at + 3].widen()]
    }

    #[inline(always)]
    fn store_lanes<const N: usize>(self, to: &mut [f32; N], at: usize, lanes: [f32; 4]) {
        to[at..at + 4].copy_from_slice(&lanes);
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
    fn fold_lanes(self, lanes: [[f32; 4]; 4]) -> [f32; 4] {
        lanes.map(|v| (v[0] + v[2]) + (v[1] + v[3]))
    }
}

#[cfg(test)]
mod tests {
    use super::FloatLanes;
    use crate::kernels::Kernels;
    use crate::kernels::with_float_kernels;
    use trike_host::Isa;
    use trike_host::Loop;

    struct Everything<S>(S);

    impl<S: FloatLanes> Loop for Everything<S> {
        type Output = ();

        fn run(self) {
            let s = self.0;
            let number = |i: usize, j: usize| (100 * i + j) as f32;
            let rows: [[f32; 16]; 4] = std::array::from_fn(|i| std::array::from_fn(|j| number(i, j)));
            let mut sums = [0.0; 4];
            for at in (0..16).step_by(S::LANES) {
                let part = s.fold_lanes([0, 1, 2, 3].map(|i| s.load_lanes(&rows[i], at)));
                sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
                let mut out = [f32::NAN; 16];
                let (two, x, y) =
                    (s.splat_lanes(2.0), s.load_lanes(&rows[1], at), s.load_lanes(&rows[2], at));
                s.store_lanes(&mut out, at, s.mul_add(two, x, s.mul_lanes(two, y)));
                for (l, value) in out.into_iter().enumerate() {
                    let want = 2.0 * number(1, l) + 2.0 * number(2, l);
                    assert!(if (at..at + S::LANES).contains(&l) { value == want } else { value.is_nan() });
                }
            }
            assert_eq!(sums, [0, 1, 2, 3].map(|i| (0..16).map(|j| number(i, j)).sum::<f32>()));
        }
    }

    #[test]
    fn every_operation_does_what_it_says() {
        for isa in Isa::available() {
            with_float_kernels!(isa, kernels => kernels.run(Everything(kernels)));
        }
    }
}
