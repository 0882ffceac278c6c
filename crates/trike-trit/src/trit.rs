//! One ternary digit.

/// A ternary digit: negative, zero or positive.
///
/// ```
/// use trike_trit::Trit;
///
/// assert_eq!(Trit::N.value(), -1);
/// assert_eq!(Trit::from_value(1), Some(Trit::P));
/// assert_eq!(-Trit::P, Trit::N);
/// assert_eq!(Trit::from_code(3), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i8)]
pub enum Trit {
    /// -1.
    N = -1,
    /// 0.
    #[default]
    Z = 0,
    /// +1.
    P = 1,
}

impl Trit {
    /// The three trits in ascending order.
    pub const ALL: [Self; 3] = [Self::N, Self::Z, Self::P];

    /// -1, 0 or 1.
    pub const fn value(self) -> i8 {
        self as i8
    }

    /// The trit with this value; `None` unless it is -1, 0 or 1.
    pub const fn from_value(value: i8) -> Option<Self> {
        match value {
            -1 => Some(Self::N),
            0 => Some(Self::Z),
            1 => Some(Self::P),
            _ => None,
        }
    }

    /// The code in the 2-bit and base-3 encodings: value + 1, that is, 0, 1 or 2.
    pub const fn code(self) -> u8 {
        (self as i8 + 1) as u8
    }

    /// The trit with this code; `None` unless it is 0, 1 or 2.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::N),
            1 => Some(Self::Z),
            2 => Some(Self::P),
            _ => None,
        }
    }
}

impl std::ops::Neg for Trit {
    type Output = Self;

    fn neg(self) -> Self {
        match self {
            Self::N => Self::P,
            Self::Z => Self::Z,
            Self::P => Self::N,
        }
    }
}

impl From<Trit> for i8 {
    fn from(trit: Trit) -> i8 {
        trit.value()
    }
}

#[cfg(test)]
mod tests {
    use super::Trit;

    #[test]
    fn values_and_codes_are_inverse_over_their_whole_range() {
        for value in i8::MIN..=i8::MAX {
            assert_eq!(Trit::from_value(value).map(Trit::value), (-1..=1).contains(&value).then_some(value));
        }
        for code in 0..=u8::MAX {
            assert_eq!(Trit::from_code(code).map(Trit::code), (code < 3).then_some(code));
        }
    }
}
