//! Products whose sums stay in registers: eight scalars times the vectors of a panel.

use super::{Row, SCALARS};
use crate::attention::lanes::Lanes;

/// Scalar operand of a product.
pub(super) trait Scalars: Copy {
    /// A float, or a pair of 16-bit integers.
    type Scalar: Copy;
    /// The first `steps` steps. With a known length the compiler removes the bounds checks.
    fn cut(self, steps: usize) -> Self;
    /// Scalar `i` of step `k`.
    fn at(&self, k: usize, i: usize) -> Self::Scalar;
}

/// Eight keys; a step is a column.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a, T>([&'a [T]; SCALARS]);

impl<'a, T> Keys<'a, T> {
    /// From eight consecutive keys of `d` columns.
    #[inline(always)]
    pub(super) fn new(keys: &'a [T], d: usize) -> Self {
        let mut rows: [&[T]; SCALARS] = [&[]; SCALARS];
        for i in 0..SCALARS {
            rows[i] = &keys[i * d..][..d];
        }
        Self(rows)
    }
}

impl<T: Copy> Scalars for Keys<'_, T> {
    type Scalar = T;

    #[inline(always)]
    fn cut(mut self, steps: usize) -> Self {
        for row in &mut self.0 {
            *row = &row[..steps];
        }
        self
    }

    #[inline(always)]
    fn at(&self, k: usize, i: usize) -> T {
        self.0[i][k]
    }
}

/// Eight columns of values; a step is a position.
#[derive(Clone, Copy)]
pub(super) struct Values<'a, T>(pub(super) &'a [[T; SCALARS]]);

impl<T: Copy> Scalars for Values<'_, T> {
    type Scalar = T;

    #[inline(always)]
    fn cut(self, steps: usize) -> Self {
        Self(&self.0[..steps])
    }

    #[inline(always)]
    fn at(&self, k: usize, i: usize) -> T {
        self.0[k][i]
    }
}

/// `out[i] = out[i] * keep + sum_k a(k, i) * b[k]`; without `keep`, `out` is overwritten.
#[inline(always)]
pub(super) fn product<S: Lanes, A: Scalars<Scalar = f32>, const V: usize>(
    s: S,
    a: A,
    b: &[Row<V>],
    keep: Option<&Row<V>>,
    out: &mut [Row<V>; SCALARS],
) {
    // As many sums as fit the registers: 24 of 32, or 12 of 16. Conditions are constants, so that each instance contains only one
    // of the tiles.
    if const { S::LANES == 16 } {
        tile::<S, A, V, 8, V>(s, a, b, keep, out, 0, 0);
    } else if const { V == 3 } {
        for vector in (0..48 / S::LANES).step_by(3) {
            tile::<S, A, V, 4, 3>(s, a, b, keep, out, 0, vector);
            tile::<S, A, V, 4, 3>(s, a, b, keep, out, 4, vector);
        }
    } else {
        for vector in (0..16 * V / S::LANES).step_by(2) {
            tile::<S, A, V, 4, 2>(s, a, b, keep, out, 0, vector);
            tile::<S, A, V, 4, 2>(s, a, b, keep, out, 4, vector);
        }
    }
}

/// [`product`] for `I` scalars from `scalar` and `N` vectors from `vector`, with the sums in registers.
#[inline(always)]
fn tile<S: Lanes, A: Scalars<Scalar = f32>, const V: usize, const I: usize, const N: usize>(
    s: S,
    a: A,
    b: &[Row<V>],
    keep: Option<&Row<V>>,
    out: &mut [Row<V>; SCALARS],
    scalar: usize,
    vector: usize,
) {
    let mut acc = [[s.splat_lanes(0.0); N]; I];
    if let Some(keep) = keep {
        for n in 0..N {
            let lane = (vector + n) * S::LANES;
            let keep = s.load_lanes(&keep[lane / 16].0, lane % 16);
            for i in 0..I {
                acc[i][n] = s.mul_lanes(s.load_lanes(&out[scalar + i][lane / 16].0, lane % 16), keep);
            }
        }
    }
    let a = a.cut(b.len());
    for (k, b) in b.iter().enumerate() {
        let mut x = [s.splat_lanes(0.0); N];
        for n in 0..N {
            let lane = (vector + n) * S::LANES;
            x[n] = s.load_lanes(&b[lane / 16].0, lane % 16);
        }
        for i in 0..I {
            let w = s.splat_lanes(a.at(k, scalar + i));
            for n in 0..N {
                acc[i][n] = s.mul_add(w, x[n], acc[i][n]);
            }
        }
    }
    for i in 0..I {
        for n in 0..N {
            let lane = (vector + n) * S::LANES;
            s.store_lanes(&mut out[scalar + i][lane / 16].0, lane % 16, acc[i][n]);
        }
    }
}
