//! Integers in balanced ternary: digits, and integer types of three and six trits.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Neg;

use crate::{Trit, TritError};

/// Number of trits that hold every i64: the smallest `n` with `(3^n - 1) / 2 > i64::MAX`.
pub const I64_TRITS: usize = 41;

/// The trits of an integer, least significant first: `value = sum of trit[i] * 3^i`.
///
/// ```
/// use trike_trit::{Trit, trits_of, value_of};
///
/// let trits = trits_of(5);
/// assert_eq!(trits[..4], [Trit::N, Trit::N, Trit::P, Trit::Z], "9 - 3 - 1");
/// assert_eq!(value_of(&trits), Some(5));
/// ```
pub const fn trits_of(value: i64) -> [Trit; I64_TRITS] {
    let mut trits = [Trit::Z; I64_TRITS];
    // i128, because rounding up to a multiple of 3 may overflow i64.
    let mut rest = value as i128;
    let mut i = 0;
    while i < I64_TRITS {
        (trits[i], rest) = match rest.rem_euclid(3) {
            0 => (Trit::Z, rest / 3),
            1 => (Trit::P, (rest - 1) / 3),
            _ => (Trit::N, (rest + 1) / 3),
        };
        i += 1;
    }
    trits
}

/// The integer with the given trits, least significant first; `None` if it does not fit in an i64. Leading zeros are ignored.
pub fn value_of(trits: &[Trit]) -> Option<i64> {
    let end = trits.iter().rposition(|&trit| trit != Trit::Z).map_or(0, |highest| highest + 1);
    if end > I64_TRITS {
        return None;
    }
    let value = trits[..end].iter().rev().fold(0i128, |value, trit| 3 * value + i128::from(trit.value()));
    i64::try_from(value).ok()
}

/// Defines a balanced ternary integer type and its arithmetic.
macro_rules! balanced {
    ($(#[$docs:meta])* $name:ident, $int:ty, $wide:ty, $trits:literal, $max:literal) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name($int);

        impl $name {
            /// Number of trits.
            pub const TRITS: usize = $trits;
            /// Number of values.
            pub const VALUES: usize = 2 * $max + 1;
            /// The smallest value.
            pub const MIN: Self = Self(-$max);
            /// Zero.
            pub const ZERO: Self = Self(0);
            /// The largest value.
            pub const MAX: Self = Self($max);

            /// Table of the trits of every value, in ascending order.
            const DIGITS: [[Trit; $trits]; 2 * $max + 1] = {
                let mut table = [[Trit::Z; $trits]; 2 * $max + 1];
                let mut i = 0;
                while i < table.len() {
                    let digits = trits_of(i as i64 - $max);
                    let mut j = 0;
                    while j < $trits {
                        table[i][j] = digits[j];
                        j += 1;
                    }
                    i += 1;
                }
                table
            };

            /// The number with this value; `None` if out of range.
            #[must_use]
            pub const fn new(value: $int) -> Option<Self> {
                if value >= -$max && value <= $max { Some(Self(value)) } else { None }
            }

            /// The number congruent to `value` modulo [`Self::VALUES`].
            #[must_use]
            pub const fn wrapping(value: i64) -> Self {
                let count = Self::VALUES as i64;
                let low = value.rem_euclid(count);
                Self((if low > $max { low - count } else { low }) as $int)
            }

            /// `value` clamped to the range.
            #[must_use]
            pub const fn saturating(value: i64) -> Self {
                if value > $max {
                    Self::MAX
                } else if value < -$max {
                    Self::MIN
                } else {
                    Self(value as $int)
                }
            }

            /// The value as an integer.
            pub const fn value(self) -> $int {
                self.0
            }

            /// The number with the given trits, least significant first.
            #[must_use]
            pub const fn from_trits(trits: [Trit; $trits]) -> Self {
                let (mut value, mut i) = (0, $trits);
                while i > 0 {
                    i -= 1;
                    value = 3 * value + trits[i].value() as $int;
                }
                Self(value)
            }

            /// The trits, least significant first (a table lookup).
            pub const fn trits(self) -> [Trit; $trits] {
                Self::DIGITS[(self.0 + $max) as usize]
            }

            /// `self + other + carry`, wrapping, and the carry out.
            #[must_use]
            pub const fn add_carry(self, other: Self, carry: Trit) -> (Self, Trit) {
                let sum = self.0 + other.0 + carry.value() as $int;
                if sum > $max {
                    (Self(sum - (2 * $max + 1)), Trit::P)
                } else if sum < -$max {
                    (Self(sum + (2 * $max + 1)), Trit::N)
                } else {
                    (Self(sum), Trit::Z)
                }
            }

            /// `self - other + carry`, wrapping, and the carry out.
            #[must_use]
            pub const fn sub_carry(self, other: Self, carry: Trit) -> (Self, Trit) {
                self.add_carry(Self(-other.0), carry)
            }

            /// The full product as `(low, high)`: `low + VALUES * high`.
            #[must_use]
            pub const fn mul_wide(self, other: Self) -> (Self, Self) {
                let (product, count) = (self.0 as $wide * other.0 as $wide, 2 * $max + 1);
                // The quotient rounded to nearest: truncating division after adding half the divisor away from zero.
                let high = (product + if product < 0 { -$max } else { $max }) / count;
                (Self((product - high * count) as $int), Self(high as $int))
            }

            /// The sum modulo [`Self::VALUES`].
            #[must_use]
            pub const fn wrapping_add(self, other: Self) -> Self {
                self.add_carry(other, Trit::Z).0
            }

            /// The difference modulo [`Self::VALUES`].
            #[must_use]
            pub const fn wrapping_sub(self, other: Self) -> Self {
                self.sub_carry(other, Trit::Z).0
            }

            /// The product modulo [`Self::VALUES`].
            #[must_use]
            pub const fn wrapping_mul(self, other: Self) -> Self {
                self.mul_wide(other).0
            }

            /// The sum, clamped to the range.
            #[must_use]
            pub const fn saturating_add(self, other: Self) -> Self {
                Self::saturating(self.0 as i64 + other.0 as i64)
            }

            /// The difference, clamped to the range.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self::saturating(self.0 as i64 - other.0 as i64)
            }

            /// The product, clamped to the range.
            #[must_use]
            pub const fn saturating_mul(self, other: Self) -> Self {
                Self::saturating(self.0 as i64 * other.0 as i64)
            }

            /// The sum; `None` if out of range.
            #[must_use]
            pub const fn checked_add(self, other: Self) -> Option<Self> {
                Self::new(self.0 + other.0)
            }

            /// The difference; `None` if out of range.
            #[must_use]
            pub const fn checked_sub(self, other: Self) -> Option<Self> {
                Self::new(self.0 - other.0)
            }

            /// The product; `None` if out of range.
            #[must_use]
            pub const fn checked_mul(self, other: Self) -> Option<Self> {
                let product = self.0 as $wide * other.0 as $wide;
                if product > $max || product < -$max { None } else { Some(Self(product as $int)) }
            }

            /// The comparison as a trit: negative for less, zero for equal, positive for greater.
            pub fn compare(self, other: Self) -> Trit {
                match self.cmp(&other) {
                    Ordering::Less => Trit::N,
                    Ordering::Equal => Trit::Z,
                    Ordering::Greater => Trit::P,
                }
            }
        }

        impl Neg for $name {
            type Output = Self;

            fn neg(self) -> Self {
                Self(-self.0)
            }
        }

        impl TryFrom<i64> for $name {
            type Error = TritError;

            fn try_from(value: i64) -> Result<Self, TritError> {
                let small = <$int>::try_from(value).ok().and_then(Self::new);
                small.ok_or(TritError::Balanced { trits: $trits, limit: $max, value })
            }
        }

        impl From<$name> for i64 {
            fn from(number: $name) -> Self {
                number.0.into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

balanced! {
    /// Three trits: the integers from -13 to 13.
    ///
    /// ```
    /// use trike_trit::{Trit, Tryte3};
    ///
    /// let (a, b) = (Tryte3::new(11).unwrap(), Tryte3::new(7).unwrap());
    /// assert_eq!(a.trits(), [Trit::N, Trit::P, Trit::P], "9 + 3 - 1");
    /// let (sum, carry) = a.add_carry(b, Trit::Z);
    /// assert_eq!((sum.value(), carry), (-9, Trit::P), "18 is 27 - 9");
    /// assert_eq!(a.saturating_add(b), Tryte3::MAX);
    /// let (low, high) = a.mul_wide(b);
    /// assert_eq!((low.value(), high.value()), (-4, 3), "77 is 3 * 27 - 4");
    /// assert_eq!(Tryte3::new(14), None);
    /// ```
    Tryte3, i8, i16, 3, 13
}

balanced! {
    /// Six trits: the integers from -364 to 364; two [`Tryte3`].
    ///
    /// ```
    /// use trike_trit::{Tryte3, Word6};
    ///
    /// let word = Word6::new(-100).unwrap();
    /// let [low, high] = word.trytes();
    /// assert_eq!((low.value(), high.value()), (8, -4), "-4 * 27 + 8");
    /// assert_eq!(Word6::from_trytes([low, high]), word);
    /// assert_eq!(word.wrapping_mul(word).value(), 10_000 - 14 * 729 + 0);
    /// ```
    Word6, i16, i32, 6, 364
}

impl Word6 {
    /// The number with the given two trytes, least significant first.
    #[must_use]
    pub const fn from_trytes([low, high]: [Tryte3; 2]) -> Self {
        Self(27 * high.0 as i16 + low.0 as i16)
    }

    /// The two trytes, least significant first.
    pub const fn trytes(self) -> [Tryte3; 2] {
        let low = Tryte3::wrapping(self.0 as i64);
        [low, Tryte3(((self.0 - low.0 as i16) / 27) as i8)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Schoolbook addition: trit by trit, with a carry.
    fn add<const N: usize>(a: [Trit; N], b: [Trit; N], mut carry: Trit) -> ([Trit; N], Trit) {
        let mut out = [Trit::Z; N];
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            let sum = a.value() + b.value() + carry.value();
            let over = i8::from(sum > 1) - i8::from(sum < -1);
            *out = Trit::from_value(sum - 3 * over).unwrap();
            carry = Trit::from_value(over).unwrap();
        }
        (out, carry)
    }

    /// The laws of a balanced number, over every pair.
    macro_rules! every_pair {
        ($test:ident, $name:ident) => {
            #[test]
            fn $test() {
                let all = (i64::from($name::MIN)..=$name::MAX.into()).map(|v| $name::try_from(v).unwrap());
                let all: Vec<$name> = all.collect();
                let count = $name::VALUES as i64;
                assert_eq!(all.len() as i64, count);
                for &a in &all {
                    let x = i64::from(a);
                    assert_eq!($name::from_trits(a.trits()), a);
                    assert_eq!(value_of(&a.trits()), Some(x));
                    assert_eq!(i64::from(-a), -x);
                    for &b in &all {
                        let y = i64::from(b);
                        for carry in Trit::ALL {
                            let (sum, over) = add(a.trits(), b.trits(), carry);
                            assert_eq!(a.add_carry(b, carry), ($name::from_trits(sum), over), "{x} + {y}");
                            let (difference, over) = add(a.trits(), (-b).trits(), carry);
                            assert_eq!(a.sub_carry(b, carry), ($name::from_trits(difference), over));
                        }
                        let (low, high) = a.mul_wide(b);
                        assert_eq!(i64::from(low) + count * i64::from(high), x * y, "{x} * {y}");
                        for (value, wrapped, saturated, checked) in [
                            (x + y, a.wrapping_add(b), a.saturating_add(b), a.checked_add(b)),
                            (x - y, a.wrapping_sub(b), a.saturating_sub(b), a.checked_sub(b)),
                            (x * y, a.wrapping_mul(b), a.saturating_mul(b), a.checked_mul(b)),
                        ] {
                            assert_eq!(wrapped, $name::wrapping(value), "{x} {y}");
                            assert_eq!((i64::from(wrapped) - value) % count, 0, "{x} {y}");
                            assert_eq!(i64::from(saturated), value.clamp(-count / 2, count / 2));
                            assert_eq!(checked, $name::try_from(value).ok());
                        }
                        assert_eq!(a.compare(b).value(), (x - y).signum() as i8);
                    }
                }
                for outside in [-count / 2 - 1, count / 2 + 1, i64::MIN, i64::MAX] {
                    let error = $name::try_from(outside).unwrap_err();
                    assert!(matches!(error, TritError::Balanced { value, .. } if value == outside));
                }
            }
        };
    }

    every_pair!(trytes_over_every_pair, Tryte3);
    every_pair!(words_over_every_pair, Word6);

    #[test]
    fn words_are_two_trytes() {
        for value in -364..=364 {
            let word = Word6::new(value).unwrap();
            assert_eq!(Word6::from_trytes(word.trytes()), word);
            let [low, high] = word.trytes();
            assert_eq!([low.trits(), high.trits()].concat(), word.trits());
        }
    }

    #[test]
    fn integers_to_trits_and_back() {
        let edges = [0, 1, -1, 2, 3, 4, 5, i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1];
        let powers = (0..40).map(|e| 3i64.pow(e)).flat_map(|p| [p, -p, p / 2, p / 2 + 1]);
        for value in edges.into_iter().chain(powers).chain(-2000..2000) {
            assert_eq!(value_of(&trits_of(value)), Some(value));
        }
        // One above `i64::MAX`, and one trit too many.
        let mut trits = trits_of(i64::MAX).to_vec();
        assert_eq!(value_of(&[trits.clone(), vec![Trit::Z; 9]].concat()), Some(i64::MAX));
        trits.push(Trit::P);
        assert_eq!(value_of(&trits), None);
        assert_eq!(value_of(&[Trit::P; I64_TRITS]), None);
        assert_eq!(value_of(&[]), Some(0));
    }
}
