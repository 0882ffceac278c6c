//! Validation of option values.

use std::fmt;

/// An invalid option value. Each variant carries the field, the accepted values and the value given, so that a command can
/// report its own flag instead of the field.
///
/// ```
/// use trike_core::{Bounds, OptionError};
///
/// let check = |top_p: f32| OptionError::check("top_p", Bounds::over(0.0).at_most(1.0), top_p);
/// assert!(check(1.0).is_ok());
/// assert_eq!(check(1.5).unwrap_err().to_string(), "top_p is 1.5: expected more than 0 and at most 1");
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// A number outside its range.
    #[error("{field} is {got}: expected {bounds}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// The range.
        bounds: Bounds,
        /// The value given.
        got: String,
    },
    /// A value that the field does not accept.
    #[error("{field} is {got}: expected {}", one_of(accepted))]
    Unknown {
        /// The field.
        field: &'static str,
        /// The accepted values.
        accepted: &'static [&'static str],
        /// The value given.
        got: String,
    },
    /// Two mutually exclusive fields.
    #[error("{field} cannot be combined with {other}")]
    Conflict {
        /// The field.
        field: &'static str,
        /// The other field, with its value if only that value is excluded.
        other: &'static str,
    },
    /// A field that has an effect only together with another.
    #[error("{field} needs {other}")]
    Requires {
        /// The field.
        field: &'static str,
        /// The missing field, with its value if only that value is accepted.
        other: &'static str,
    },
}

impl OptionError {
    /// Rejects a number outside `bounds`; NaN is outside all bounds.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`].
    pub fn check<N: Number>(field: &'static str, bounds: Bounds, got: N) -> Result<(), Self> {
        if bounds.contains(got.value()) {
            Ok(())
        } else {
            Err(Self::OutOfRange { field, bounds, got: got.to_string() })
        }
    }

    /// The field.
    pub fn field(&self) -> &'static str {
        match self {
            Self::OutOfRange { field, .. }
            | Self::Unknown { field, .. }
            | Self::Conflict { field, .. }
            | Self::Requires { field, .. } => field,
        }
    }
}

/// A numeric type of an option; integers above 2^53 are rounded to f64 before they are compared.
pub trait Number: Copy + fmt::Display {
    /// The value as f64.
    fn value(self) -> f64;
}

impl Number for f32 {
    fn value(self) -> f64 {
        self.into()
    }
}

impl Number for f64 {
    fn value(self) -> f64 {
        self
    }
}

impl Number for usize {
    fn value(self) -> f64 {
        self as f64
    }
}

/// The numbers that an option accepts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Lower bound: exclusive if `open`, otherwise inclusive.
    min: f64,
    /// Whether `min` itself is rejected.
    open: bool,
    /// Largest accepted number.
    max: f64,
}

impl Bounds {
    /// `min` and every larger finite number.
    #[must_use]
    pub fn at_least(min: impl Number) -> Self {
        Self { min: min.value(), open: false, max: f64::INFINITY }
    }

    /// Every finite number larger than `min`.
    #[must_use]
    pub fn over(min: impl Number) -> Self {
        Self { min: min.value(), open: true, max: f64::INFINITY }
    }

    /// Every finite number.
    #[must_use]
    pub fn finite() -> Self {
        Self::over(f64::NEG_INFINITY)
    }

    /// These bounds with the inclusive upper bound `max`.
    #[must_use]
    pub fn at_most(self, max: impl Number) -> Self {
        Self { max: max.value(), ..self }
    }

    /// Whether `value` is accepted.
    pub fn contains(&self, value: f64) -> bool {
        let above = if self.open { value > self.min } else { value >= self.min };
        above && value <= self.max && value.is_finite()
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, open, max } = *self;
        if min == f64::NEG_INFINITY && max == f64::INFINITY {
            return f.write_str("a finite number");
        }
        match (open, max.is_finite()) {
            (false, true) => write!(f, "{min} to {max}"),
            (false, false) => write!(f, "at least {min}"),
            (true, true) => write!(f, "more than {min} and at most {max}"),
            (true, false) => write!(f, "more than {min}"),
        }
    }
}

/// `a, b or c`.
fn one_of(accepted: &[&str]) -> String {
    match accepted {
        [] => "nothing".to_owned(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_checked_at_and_beside_their_ends() {
        for (bounds, inside, outside) in [
            (Bounds::at_least(1usize), &[1.0, 1e300][..], &[0.0, f64::INFINITY, f64::NAN][..]),
            (Bounds::at_least(1usize).at_most(6usize), &[1.0, 6.0], &[0.0, 7.0, -1.0]),
            (Bounds::over(0.0f32), &[f64::MIN_POSITIVE], &[0.0, -0.0, f64::NEG_INFINITY]),
            (Bounds::over(0.0).at_most(1.0), &[1.0, 1e-9], &[0.0, 1.0 + 1e-9]),
            (Bounds::finite(), &[f64::MIN, f64::MAX], &[f64::NEG_INFINITY, f64::INFINITY, f64::NAN]),
        ] {
            assert!(inside.iter().all(|&v| bounds.contains(v)), "{bounds}");
            assert!(!outside.iter().any(|&v| bounds.contains(v)), "{bounds}");
        }
    }

    #[test]
    fn messages_name_field_rule_and_value() {
        let range = OptionError::check("window", Bounds::at_least(1usize).at_most(64usize), 65usize);
        assert_eq!(range.unwrap_err().to_string(), "window is 65: expected 1 to 64");
        let range = OptionError::check("temperature", Bounds::at_least(0.0), f32::NAN);
        assert_eq!(range.unwrap_err().to_string(), "temperature is NaN: expected at least 0");
        let finite = OptionError::check("range", Bounds::finite(), f64::INFINITY);
        assert_eq!(finite.unwrap_err().to_string(), "range is inf: expected a finite number");
        let unknown = OptionError::Unknown { field: "kv", accepted: &["f16", "f32"], got: "f8".to_owned() };
        assert_eq!(unknown.to_string(), "kv is f8: expected f16 or f32");
        let conflict = OptionError::Conflict { field: "encoding", other: "target f16" };
        assert_eq!(conflict.to_string(), "encoding cannot be combined with target f16");
        assert_eq!(conflict.field(), "encoding");
        let requires = OptionError::Requires { field: "tuning", other: "compensation" };
        assert_eq!(requires.to_string(), "tuning needs compensation");
    }
}
