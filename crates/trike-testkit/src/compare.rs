//! Comparison of float results, based on `approx`.
//!
//! Trits and integers are compared with `==`. A float is compared with [`assert_near!`](crate::assert_near). A vector is compared
//! element by element with [`assert_all_near!`](crate::assert_all_near), or with [`assert_close`], whose tolerance is relative to
//! the largest expected value.

use approx::{AbsDiffEq, abs_diff_eq};
use std::fmt;
use std::ops::Mul;

/// Maximum deviation of a float from its expected value.
#[derive(Clone, Copy, Debug)]
pub enum Tolerance<T> {
    /// `|got - want| <= t`.
    Abs(T),
    /// `|got - want| <= t * |want|`. Relative to `want`, not to the larger of both as in `approx::relative_eq!`: the
    /// bound does not grow with the error.
    Rel(T),
}

/// `f32` and `f64`.
pub trait Real: AbsDiffEq<Epsilon = Self> + Copy + fmt::Debug + Mul<Output = Self> {
    /// The absolute value.
    fn magnitude(self) -> Self;
}

impl Real for f32 {
    fn magnitude(self) -> Self {
        self.abs()
    }
}

impl Real for f64 {
    fn magnitude(self) -> Self {
        self.abs()
    }
}

/// Whether `got` is within the tolerance of `want`; never for a NaN.
pub fn is_near<T: Real>(got: T, want: T, tolerance: Tolerance<T>) -> bool {
    let epsilon = match tolerance {
        Tolerance::Abs(bound) => bound,
        Tolerance::Rel(bound) => bound * want.magnitude(),
    };
    abs_diff_eq!(got, want, epsilon = epsilon)
}

/// Asserts that a float is within an absolute (`abs`) or relative (`rel`) tolerance of the expected value; a message
/// may follow.
///
/// ```
/// use trike_testkit::assert_near;
///
/// assert_near!(3.1416, std::f64::consts::PI, abs = 1e-5);
/// assert_near!(1001.0f32, 1000.0, rel = 1e-3, "of sample {}", 7);
/// ```
#[macro_export]
macro_rules! assert_near {
    ($got:expr, $want:expr, $kind:ident = $bound:expr $(,)?) => {
        $crate::assert_near!($got, $want, $kind = $bound, "")
    };
    ($got:expr, $want:expr, abs = $bound:expr, $($context:tt)+) => {
        $crate::check_near($got, $want, $crate::Tolerance::Abs($bound), format_args!($($context)+))
    };
    ($got:expr, $want:expr, rel = $bound:expr, $($context:tt)+) => {
        $crate::check_near($got, $want, $crate::Tolerance::Rel($bound), format_args!($($context)+))
    };
}

/// The expansion of [`assert_near!`](crate::assert_near).
///
/// # Panics
///
/// When the tolerance is exceeded, with both values and the context.
#[doc(hidden)]
#[track_caller]
pub fn check_near<T: Real>(got: T, want: T, tolerance: Tolerance<T>, context: fmt::Arguments<'_>) {
    assert!(is_near(got, want, tolerance), "expected {want:?} within {tolerance:?}, got {got:?}. {context}");
}

/// Asserts that every element of a slice is within an absolute (`abs`) or relative (`rel`) tolerance of the expected element; a
/// message may follow.
///
/// ```
/// use trike_testkit::assert_all_near;
///
/// assert_all_near!(&[0.5, 0.25], &[0.5, 0.2501], abs = 1e-3);
/// assert_all_near!(&vec![1001.0f32], &[1000.0], rel = 1e-3, "of layer {}", 7);
/// ```
#[macro_export]
macro_rules! assert_all_near {
    ($got:expr, $want:expr, $kind:ident = $bound:expr $(,)?) => {
        $crate::assert_all_near!($got, $want, $kind = $bound, "")
    };
    ($got:expr, $want:expr, abs = $bound:expr, $($context:tt)+) => {
        $crate::check_all_near($got, $want, $crate::Tolerance::Abs($bound), format_args!($($context)+))
    };
    ($got:expr, $want:expr, rel = $bound:expr, $($context:tt)+) => {
        $crate::check_all_near($got, $want, $crate::Tolerance::Rel($bound), format_args!($($context)+))
    };
}

/// The expansion of [`assert_all_near!`](crate::assert_all_near).
///
/// # Panics
///
/// When the lengths differ, or an element exceeds the tolerance, naming the first such element, both values and the context.
#[doc(hidden)]
#[track_caller]
pub fn check_all_near<T: Real>(got: &[T], want: &[T], tolerance: Tolerance<T>, context: fmt::Arguments<'_>) {
    if let Some(difference) = first_difference(got, want, tolerance) {
        panic!("{difference}. {context}");
    }
}

/// What keeps two slices from being near, in words.
fn first_difference<T: Real>(got: &[T], want: &[T], tolerance: Tolerance<T>) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("expected {} elements, got {}", want.len(), got.len()));
    }
    let i = got.iter().zip(want).position(|(&g, &w)| !is_near(g, w, tolerance))?;
    let (n, g, w) = (want.len(), got[i], want[i]);
    Some(format!("element {i} of {n}: expected {w:?} within {tolerance:?}, got {g:?}"))
}

/// `max|got - want| / max|want|`; infinite when the lengths differ or a value is not finite.
pub fn max_rel(got: &[f32], want: &[f32]) -> f32 {
    if got.len() != want.len() || got.iter().chain(want).any(|v| !v.is_finite()) {
        return f32::INFINITY;
    }
    got.iter().zip(want).fold(0f32, |m, (g, w)| m.max((g - w).abs())) / largest(want)
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()))
}

/// Asserts `max|got - want| <= bound * max|want|`.
///
/// # Panics
///
/// When the bound is exceeded, a value is not finite or the lengths differ, with the error and the index of the worst
/// element.
#[track_caller]
pub fn assert_close(got: &[f32], want: &[f32], bound: f32) {
    let finite = got.iter().chain(want).all(|v| v.is_finite());
    if !finite || !abs_diff_eq!(got, want, epsilon = bound * largest(want)) {
        let worst = (0..got.len().min(want.len()))
            .max_by(|&a, &b| (got[a] - want[a]).abs().total_cmp(&(got[b] - want[b]).abs()));
        let at = worst.map(|i| (i, got[i], want[i]));
        panic!(
            "error {:e} exceeds the bound {bound:e}; lengths {} and {}; worst (index, got, want): {at:?}",
            max_rel(got, want),
            got.len(),
            want.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn a_wrong_length_or_a_nan_is_never_close() {
        assert_eq!(max_rel(&[1.0], &[1.0, 2.0]), f32::INFINITY);
        assert_eq!(max_rel(&[f32::NAN], &[1.0]), f32::INFINITY);
        assert_eq!(max_rel(&[1.5, -2.0], &[1.0, -2.0]), 0.25);
        assert_close(&[1.5, -2.0], &[1.0, -2.0], 0.25);
        let refused: [(&[f32], &[f32], f32); 4] = [
            (&[1.5, -2.0], &[1.0, -2.0], 0.249),
            (&[1.0], &[1.0, 2.0], 1.0),
            (&[f32::NAN], &[1.0], 1.0),
            (&[f32::INFINITY], &[f32::INFINITY], 1.0),
        ];
        for (got, want, bound) in refused {
            assert!(catch_unwind(|| assert_close(got, want, bound)).is_err(), "{got:?} {want:?}");
        }
    }

    #[test]
    fn tolerances_hold_at_their_bounds() {
        for (got, want, tolerance, near) in [
            (1.25, 1.0, Tolerance::Abs(0.25), true),
            (1.25, 1.0, Tolerance::Abs(0.2499), false),
            (2.5, 2.0, Tolerance::Rel(0.25), true),
            (-2.5, -2.0, Tolerance::Rel(0.25), true),
            // A quarter of what is expected and not of what came.
            (2.51, 2.0, Tolerance::Rel(0.25), false),
            (0.0, 1e-300, Tolerance::Rel(0.5), false),
            (f64::NAN, 1.0, Tolerance::Abs(f64::INFINITY), false),
            (1.0, f64::NAN, Tolerance::Rel(1.0), false),
        ] {
            assert_eq!(is_near(got, want, tolerance), near, "{got} {want} {tolerance:?}");
        }
        let message = catch_unwind(|| assert_near!(2.0f32, 1.0, abs = 0.5, "of sample {}", 7)).unwrap_err();
        let message = message.downcast_ref::<String>().unwrap();
        assert_eq!(message, "expected 1.0 within Abs(0.5), got 2.0. of sample 7");
    }

    #[test]
    fn vectors_are_near_when_every_element_is() {
        assert_all_near!(&[1.25, -2.0], &[1.0, -2.0], abs = 0.25);
        assert_all_near!(&[1.25f32, -2.5, 0.0], &[1.0, -2.0, 0.0], rel = 0.25, "of layer {}", 7);
        assert_all_near!(&Vec::<f32>::new(), &[], abs = 0.0);
    }

    #[test]
    fn the_first_difference_is_named() {
        use Tolerance::{Abs, Rel};
        let nan = f64::NAN;
        for (got, want, tolerance, message) in [
            (
                &[1.25, 2.5, 9.0][..],
                &[1.0, 2.0, 3.0][..],
                Abs(0.25),
                "element 1 of 3: expected 2.0 within Abs(0.25), got 2.5",
            ),
            // A tolerance relative to the largest element, 100, would accept it.
            (
                &[100.0, 2.51],
                &[100.0, 2.0],
                Rel(0.25),
                "element 1 of 2: expected 2.0 within Rel(0.25), got 2.51",
            ),
            (&[1.0], &[1.0, 2.0], Abs(1.0), "expected 2 elements, got 1"),
            (&[nan], &[nan], Abs(f64::INFINITY), "element 0 of 1: expected NaN within Abs(inf), got NaN"),
        ] {
            assert_eq!(first_difference(got, want, tolerance).as_deref(), Some(message));
        }
        assert_eq!(first_difference(&[1.25, 2.0], &[1.0, 2.0], Abs(0.25)), None);
    }
}
