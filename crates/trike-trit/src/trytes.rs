//! Vectors of trytes.

use crate::{Trit, TritError, Tryte3};

/// A vector of [`Tryte3`], one byte each.
///
/// One byte per tryte is 2.7 bits per trit: more than [`Encoding::Base3`](crate::Encoding::Base3), but every operation is
/// plain byte arithmetic without unpacking, on 16 or more bytes at once with SIMD.
///
/// Operations are elementwise and in place. [`TryteVec::add_number`] adds vectors as long numbers, least significant tryte
/// first.
///
/// ```
/// use trike_trit::{Trit, TryteVec};
///
/// let mut a = TryteVec::from_values(&[13, -5, 0])?;
/// let b = TryteVec::from_values(&[1, -9, 4])?;
/// let mut carry = TryteVec::zeros(3);
/// a.add_carry(&b, &mut carry)?;
/// assert_eq!((a.values(), carry.values()), ([-13, 13, 4].as_slice(), [1, -1, 0].as_slice()));
///
/// // 13 + 27 * 13, plus 1: the carry propagates.
/// let mut long = TryteVec::from_values(&[13, 13, 0])?;
/// assert_eq!(long.add_number(&TryteVec::from_values(&[1, 0, 0])?)?, Trit::Z);
/// assert_eq!(long.values(), [-13, -13, 1]);
/// # Ok::<(), trike_trit::TritError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TryteVec {
    /// Values from -13 to 13.
    values: Vec<i8>,
}

/// Modulus of sums and products.
const COUNT: i8 = Tryte3::VALUES as i8;
/// The largest value.
const MAX: i8 = Tryte3::MAX.value();

/// Wraps a sum of two or three trytes into the range.
#[inline(always)]
fn wrap(sum: i8) -> i8 {
    if sum > MAX {
        sum - COUNT
    } else if sum < -MAX {
        sum + COUNT
    } else {
        sum
    }
}

/// Splits a product into `(low, high)` with `27 * high + low`. The product is offset to be positive and divided by a
/// multiply-high: 2428 / 2^16 is close enough to 1 / 27 for every product of two trytes (`products_split_exactly`).
#[inline(always)]
fn split(product: i16) -> (i8, i8) {
    const HALF: i16 = COUNT as i16 / 2;
    const UP: i16 = 6;
    let moved = product + HALF + UP * COUNT as i16;
    let quotient = ((u32::from(moved as u16) * 2428) >> 16) as i16;
    ((moved - HALF - COUNT as i16 * quotient) as i8, (quotient - UP) as i8)
}

impl TryteVec {
    /// A vector of `len` zeros.
    #[must_use]
    pub fn zeros(len: usize) -> Self {
        Self { values: vec![0; len] }
    }

    /// A vector of the given integers.
    ///
    /// # Errors
    ///
    /// [`TritError::Balanced`] for a value outside -13 to 13.
    pub fn from_values(values: &[i8]) -> Result<Self, TritError> {
        match values.iter().find(|v| Tryte3::new(**v).is_none()) {
            Some(&value) => {
                Err(TritError::Balanced { trits: Tryte3::TRITS, limit: MAX.into(), value: value.into() })
            }
            None => Ok(Self { values: values.to_vec() }),
        }
    }

    /// An integer as one long number of `len` trytes, least significant first; `None` if it does not fit.
    #[must_use]
    pub fn from_number(number: i64, len: usize) -> Option<Self> {
        let mut rest = i128::from(number);
        let mut out = Self::zeros(len);
        for value in &mut out.values {
            let low = rest.rem_euclid(i128::from(COUNT));
            let low = if low > i128::from(MAX) { low - i128::from(COUNT) } else { low };
            *value = low as i8;
            rest = (rest - low) / i128::from(COUNT);
        }
        (rest == 0).then_some(out)
    }

    /// The vector as one long number; `None` if it does not fit in an i64.
    pub fn to_number(&self) -> Option<i64> {
        let end = self.values.iter().rposition(|&v| v != 0).map_or(0, |highest| highest + 1);
        if end > crate::I64_TRITS.div_ceil(Tryte3::TRITS) {
            return None;
        }
        let number = self.values[..end].iter().rev().fold(0, |n, &v| n * i128::from(COUNT) + i128::from(v));
        i64::try_from(number).ok()
    }

    /// Number of trytes.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The trytes as integers from -13 to 13.
    pub fn values(&self) -> &[i8] {
        &self.values
    }

    /// The tryte at `index`; `None` if out of range.
    pub fn get(&self, index: usize) -> Option<Tryte3> {
        self.values.get(index).and_then(|&value| Tryte3::new(value))
    }

    /// Writes the tryte at `index`.
    ///
    /// # Errors
    ///
    /// [`TritError::OutOfRange`].
    pub fn set(&mut self, index: usize, tryte: Tryte3) -> Result<(), TritError> {
        let limit = self.len();
        let place = self.values.get_mut(index);
        *place.ok_or(TritError::OutOfRange { what: "tryte", index, limit })? = tryte.value();
        Ok(())
    }

    /// `self + other`, wrapping around.
    ///
    /// # Errors
    ///
    /// [`TritError::Length`] if the lengths differ; the vector is then unchanged.
    pub fn add_wrapping(&mut self, other: &Self) -> Result<(), TritError> {
        self.each(other, |a, b| wrap(a + b))
    }

    /// `self - other`, wrapping around.
    ///
    /// # Errors
    ///
    /// See [`TryteVec::add_wrapping`].
    pub fn sub_wrapping(&mut self, other: &Self) -> Result<(), TritError> {
        self.each(other, |a, b| wrap(a - b))
    }

    /// `self * other`, wrapping around.
    ///
    /// # Errors
    ///
    /// See [`TryteVec::add_wrapping`].
    pub fn mul_wrapping(&mut self, other: &Self) -> Result<(), TritError> {
        self.each(other, |a, b| split(i16::from(a) * i16::from(b)).0)
    }

    /// `self + other`, saturating at -13 and 13.
    ///
    /// # Errors
    ///
    /// See [`TryteVec::add_wrapping`].
    pub fn add_saturating(&mut self, other: &Self) -> Result<(), TritError> {
        self.each(other, |a, b| (a + b).clamp(-MAX, MAX))
    }

    /// `self - other`, saturating at -13 and 13.
    ///
    /// # Errors
    ///
    /// See [`TryteVec::add_wrapping`].
    pub fn sub_saturating(&mut self, other: &Self) -> Result<(), TritError> {
        self.each(other, |a, b| (a - b).clamp(-MAX, MAX))
    }

    /// `self * other`, saturating at -13 and 13.
    ///
    /// # Errors
    ///
    /// See [`TryteVec::add_wrapping`].
    pub fn mul_saturating(&mut self, other: &Self) -> Result<(), TritError> {
        self.each(other, |a, b| (i16::from(a) * i16::from(b)).clamp(-i16::from(MAX), i16::from(MAX)) as i8)
    }

    /// `self + other + carry`, wrapping around; `carry` receives the carries out: -1, 0 or 1. The carries in may be any
    /// trytes.
    ///
    /// # Errors
    ///
    /// See [`TryteVec::add_wrapping`].
    pub fn add_carry(&mut self, other: &Self, carry: &mut Self) -> Result<(), TritError> {
        self.with_carry(other, carry, |a, b| a + b)
    }

    /// `self - other + carry`; see [`TryteVec::add_carry`].
    ///
    /// # Errors
    ///
    /// See [`TryteVec::add_wrapping`].
    pub fn sub_carry(&mut self, other: &Self, carry: &mut Self) -> Result<(), TritError> {
        self.with_carry(other, carry, |a, b| a - b)
    }

    /// `self * other`: `self` receives the low trytes of the products, `high` the high ones.
    ///
    /// # Errors
    ///
    /// See [`TryteVec::add_wrapping`].
    pub fn mul_wide(&mut self, other: &Self, high: &mut Self) -> Result<(), TritError> {
        self.check(other)?;
        self.check(high)?;
        for ((a, b), high) in self.values.iter_mut().zip(&other.values).zip(&mut high.values) {
            (*a, *high) = split(i16::from(*a) * i16::from(*b));
        }
        Ok(())
    }

    /// `-self`.
    pub fn negate(&mut self) {
        self.values.iter_mut().for_each(|v| *v = -*v);
    }

    /// Elementwise comparison of `self` with `other`, as -1, 0 or 1.
    ///
    /// # Errors
    ///
    /// See [`TryteVec::add_wrapping`].
    pub fn compare(&mut self, other: &Self) -> Result<(), TritError> {
        self.each(other, |a, b| i8::from(a > b) - i8::from(a < b))
    }

    /// Adds as one long number, least significant tryte first, and returns the carry out.
    ///
    /// # Errors
    ///
    /// See [`TryteVec::add_wrapping`].
    pub fn add_number(&mut self, other: &Self) -> Result<Trit, TritError> {
        self.check(other)?;
        let mut carry = 0;
        for (a, b) in self.values.iter_mut().zip(&other.values) {
            let sum = *a + b + carry;
            carry = i8::from(sum > MAX) - i8::from(sum < -MAX);
            *a = sum - carry * COUNT;
        }
        Ok(if carry > 0 {
            Trit::P
        } else if carry < 0 {
            Trit::N
        } else {
            Trit::Z
        })
    }

    /// Compares as one long number, least significant tryte first.
    ///
    /// # Errors
    ///
    /// See [`TryteVec::add_wrapping`].
    pub fn compare_number(&self, other: &Self) -> Result<std::cmp::Ordering, TritError> {
        self.check(other)?;
        // Lower digits can never outweigh the highest digit that differs.
        Ok(self.values.iter().rev().cmp(other.values.iter().rev()))
    }

    fn check(&self, other: &Self) -> Result<(), TritError> {
        let (expected, got) = (self.len(), other.len());
        if expected == got { Ok(()) } else { Err(TritError::Length { what: "trytes", expected, got }) }
    }

    #[inline(always)]
    fn each(&mut self, other: &Self, f: impl Fn(i8, i8) -> i8) -> Result<(), TritError> {
        self.check(other)?;
        for (a, &b) in self.values.iter_mut().zip(&other.values) {
            *a = f(*a, b);
        }
        Ok(())
    }

    #[inline(always)]
    fn with_carry(
        &mut self,
        other: &Self,
        carry: &mut Self,
        f: impl Fn(i8, i8) -> i8,
    ) -> Result<(), TritError> {
        self.check(other)?;
        self.check(carry)?;
        for ((a, &b), carry) in self.values.iter_mut().zip(&other.values).zip(&mut carry.values) {
            // At most 39 in magnitude.
            let sum = f(*a, b) + *carry;
            *carry = i8::from(sum > MAX) - i8::from(sum < -MAX);
            *a = wrap(sum);
        }
        Ok(())
    }
}

impl FromIterator<Tryte3> for TryteVec {
    fn from_iter<I: IntoIterator<Item = Tryte3>>(trytes: I) -> Self {
        Self { values: trytes.into_iter().map(Tryte3::value).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_split_exactly() {
        for product in -169..=169 {
            let (low, high) = split(product);
            assert!(Tryte3::new(low).is_some() && Tryte3::new(high).is_some(), "{product}");
            assert_eq!(i16::from(low) + 27 * i16::from(high), product);
        }
    }

    /// Every pair of trytes, in two vectors.
    fn pairs() -> (TryteVec, TryteVec) {
        let all = || (-13..=13).map(|v| Tryte3::new(v).unwrap());
        (all().flat_map(|a| all().map(move |_| a)).collect(), all().flat_map(|_| all()).collect())
    }

    #[test]
    fn every_pair_is_as_one_by_one() {
        let (a, b) = pairs();
        let check = |what: &str, got: &TryteVec, expected: &dyn Fn(Tryte3, Tryte3) -> Tryte3| {
            for i in 0..a.len() {
                let (x, y) = (a.get(i).unwrap(), b.get(i).unwrap());
                assert_eq!(got.get(i), Some(expected(x, y)), "{x} {what} {y}");
            }
        };
        type OneByOne<'a> = &'a dyn Fn(Tryte3, Tryte3) -> Tryte3;
        type InPlace = fn(&mut TryteVec, &TryteVec) -> Result<(), TritError>;
        let operations: [(&str, InPlace, OneByOne<'_>); 7] = [
            ("+", TryteVec::add_wrapping, &Tryte3::wrapping_add),
            ("-", TryteVec::sub_wrapping, &Tryte3::wrapping_sub),
            ("*", TryteVec::mul_wrapping, &Tryte3::wrapping_mul),
            ("+, saturating,", TryteVec::add_saturating, &Tryte3::saturating_add),
            ("-, saturating,", TryteVec::sub_saturating, &Tryte3::saturating_sub),
            ("*, saturating,", TryteVec::mul_saturating, &Tryte3::saturating_mul),
            ("compared with", TryteVec::compare, &|x, y| Tryte3::new(x.compare(y).value()).unwrap()),
        ];
        for (what, operation, expected) in operations {
            let mut got = a.clone();
            operation(&mut got, &b).unwrap();
            check(what, &got, expected);
        }
        for carried in Trit::ALL {
            let mut carry: TryteVec = (0..a.len()).map(|_| Tryte3::new(carried.value()).unwrap()).collect();
            let (mut sum, mut difference, mut borrow) = (a.clone(), a.clone(), carry.clone());
            sum.add_carry(&b, &mut carry).unwrap();
            check("+ and a carry,", &sum, &|x, y| x.add_carry(y, carried).0);
            check("carries +", &carry, &|x, y| Tryte3::new(x.add_carry(y, carried).1.value()).unwrap());
            difference.sub_carry(&b, &mut borrow).unwrap();
            check("- and a carry,", &difference, &|x, y| x.sub_carry(y, carried).0);
            check("carries -", &borrow, &|x, y| Tryte3::new(x.sub_carry(y, carried).1.value()).unwrap());
        }
        let (mut low, mut high) = (a.clone(), b.clone());
        low.mul_wide(&b, &mut high).unwrap();
        check("low of *", &low, &|x, y| x.mul_wide(y).0);
        check("high of *", &high, &|x, y| x.mul_wide(y).1);
        let mut minus = a.clone();
        minus.negate();
        check("negated", &minus, &|x, _| -x);
    }

    #[test]
    fn long_numbers() {
        let numbers = [0, 1, -1, 13, 14, 40, 365, -9842, 1 << 40, i64::MAX, i64::MIN, i64::MAX / 2];
        for a in numbers {
            let x = TryteVec::from_number(a, 14).unwrap();
            assert_eq!(x.to_number(), Some(a));
            for b in numbers {
                let (mut sum, y) = (x.clone(), TryteVec::from_number(b, 14).unwrap());
                assert_eq!(x.compare_number(&y).unwrap(), a.cmp(&b));
                assert_eq!(sum.add_number(&y).unwrap(), Trit::Z);
                assert_eq!(sum.to_number(), a.checked_add(b));
            }
        }
        assert_eq!(TryteVec::from_number(14, 1), None);
        let mut top = TryteVec::from_values(&[13, 13]).unwrap();
        assert_eq!(top.add_number(&TryteVec::from_values(&[1, 0]).unwrap()).unwrap(), Trit::P);
        assert_eq!(top.values(), [-13, -13]);
        assert_eq!(TryteVec::from_values(&[1; 15]).unwrap().to_number(), None);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for value in [-14, 14, i8::MIN, i8::MAX] {
            let error = TryteVec::from_values(&[0, value]).unwrap_err();
            assert_eq!(error, TritError::Balanced { trits: 3, limit: 13, value: value.into() });
        }
        let (mut a, b) = (TryteVec::zeros(3), TryteVec::zeros(2));
        let length = TritError::Length { what: "trytes", expected: 3, got: 2 };
        assert_eq!(a.add_wrapping(&b), Err(length.clone()));
        assert_eq!(a.clone().add_carry(&a, &mut b.clone()), Err(length.clone()));
        assert_eq!(a.clone().mul_wide(&a, &mut b.clone()), Err(length.clone()));
        assert_eq!(a.add_number(&b), Err(length.clone()));
        assert_eq!(a.compare_number(&b), Err(length));
        assert!(matches!(a.set(3, Tryte3::MAX), Err(TritError::OutOfRange { index: 3, limit: 3, .. })));
        a.set(2, Tryte3::MAX).unwrap();
        assert_eq!((a.get(2), a.get(3)), (Some(Tryte3::MAX), None));
    }
}
