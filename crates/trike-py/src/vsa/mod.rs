//! Hypervectors.

mod bundle;
mod capacity;
mod encoders;
mod memories;
mod memory;
mod relations;
mod structures;
pub(crate) mod vector;

use pyo3::{exceptions::PyValueError, prelude::*};
use trike::vsa::{Bipolar, PackedTritVec, Ternary, VsaError, Z3};

/// A value of one of the three algebras: separate types in the library, a property in Python.
pub(crate) enum Any<A, B, C> {
    Z3(A),
    Bipolar(B),
    Ternary(C),
}

/// A vector of any algebra.
pub(crate) type AnyVector = Any<PackedTritVec<Z3>, PackedTritVec<Bipolar>, PackedTritVec<Ternary>>;

impl<A, B, C> Any<A, B, C> {
    pub(crate) fn algebra(&self) -> &'static str {
        match self {
            Self::Z3(_) => "z3",
            Self::Bipolar(_) => "bipolar",
            Self::Ternary(_) => "ternary",
        }
    }
}

/// Evaluates an expression for a value of any algebra.
macro_rules! each {
    ($value:expr, $name:ident => $body:expr) => {
        match $value {
            $crate::vsa::Any::Z3($name) => $body,
            $crate::vsa::Any::Bipolar($name) => $body,
            $crate::vsa::Any::Ternary($name) => $body,
        }
    };
}

/// As `each`, for a result of the same algebra.
macro_rules! map {
    ($value:expr, $name:ident => $body:expr) => {
        match $value {
            $crate::vsa::Any::Z3($name) => $crate::vsa::Any::Z3($body.map_err($crate::vsa::error)?),
            $crate::vsa::Any::Bipolar($name) => $crate::vsa::Any::Bipolar($body.map_err($crate::vsa::error)?),
            $crate::vsa::Any::Ternary($name) => $crate::vsa::Any::Ternary($body.map_err($crate::vsa::error)?),
        }
    };
}

/// Evaluates an expression for two values of the same algebra.
macro_rules! both {
    ($a:expr, $b:expr, $x:ident, $y:ident => $body:expr) => {
        match ($a, $b) {
            ($crate::vsa::Any::Z3($x), $crate::vsa::Any::Z3($y)) => $body,
            ($crate::vsa::Any::Bipolar($x), $crate::vsa::Any::Bipolar($y)) => $body,
            ($crate::vsa::Any::Ternary($x), $crate::vsa::Any::Ternary($y)) => $body,
            (a, b) => return Err($crate::vsa::mixed(a.algebra(), b.algebra())),
        }
    };
}

/// As `both`, for a result of the same algebra.
macro_rules! join {
    ($a:expr, $b:expr, $x:ident, $y:ident => $body:expr) => {
        match ($a, $b) {
            ($crate::vsa::Any::Z3($x), $crate::vsa::Any::Z3($y)) => {
                $crate::vsa::Any::Z3($body.map_err($crate::vsa::error)?)
            }
            ($crate::vsa::Any::Bipolar($x), $crate::vsa::Any::Bipolar($y)) => {
                $crate::vsa::Any::Bipolar($body.map_err($crate::vsa::error)?)
            }
            ($crate::vsa::Any::Ternary($x), $crate::vsa::Any::Ternary($y)) => {
                $crate::vsa::Any::Ternary($body.map_err($crate::vsa::error)?)
            }
            (a, b) => return Err($crate::vsa::mixed(a.algebra(), b.algebra())),
        }
    };
}

/// Makes a value of a named algebra.
macro_rules! make {
    ($name:expr, $algebra:ident => $body:expr) => {
        match $name {
            "z3" => {
                type $algebra = trike::vsa::Z3;
                $crate::vsa::Any::Z3($body.map_err($crate::vsa::error)?)
            }
            "bipolar" => {
                type $algebra = trike::vsa::Bipolar;
                $crate::vsa::Any::Bipolar($body.map_err($crate::vsa::error)?)
            }
            "ternary" => {
                type $algebra = trike::vsa::Ternary;
                $crate::vsa::Any::Ternary($body.map_err($crate::vsa::error)?)
            }
            got => return Err($crate::errors::unknown("algebra", got, &$crate::vsa::ALGEBRAS)),
        }
    };
}

/// Evaluates an expression for vectors of one algebra, converted to its type.
macro_rules! of_one {
    ($vectors:expr, $name:ident => $body:expr) => {{
        let vectors = &$vectors;
        let first = vectors.first().ok_or_else(|| {
            pyo3::exceptions::PyValueError::new_err("vectors: expected at least one, got none")
        })?;
        macro_rules! pick {
            ($kind:ident) => {{
                let all = vectors.iter().map(|v| match &v.get().inner {
                    $crate::vsa::Any::$kind(v) => Ok(v),
                    other => Err($crate::vsa::mixed(first.get().inner.algebra(), other.algebra())),
                });
                let $name = all.collect::<PyResult<Vec<_>>>()?;
                $crate::vsa::Any::$kind($body.map_err($crate::vsa::error)?)
            }};
        }
        match &first.get().inner {
            $crate::vsa::Any::Z3(_) => pick!(Z3),
            $crate::vsa::Any::Bipolar(_) => pick!(Bipolar),
            $crate::vsa::Any::Ternary(_) => pick!(Ternary),
        }
    }};
}

/// Evaluates an expression for any number of values of the same algebra.
macro_rules! same {
    (($($value:expr),+), ($($name:ident),+) => $body:expr) => {
        match ($($value),+) {
            ($($crate::vsa::Any::Z3($name)),+) => $body,
            ($($crate::vsa::Any::Bipolar($name)),+) => $body,
            ($($crate::vsa::Any::Ternary($name)),+) => $body,
            ($($name),+) => return Err($crate::vsa::differing(&[$($name.algebra()),+])),
        }
    };
}

pub(crate) use {both, each, join, make, map, of_one, same};

pub(crate) const ALGEBRAS: [&str; 3] = ["z3", "bipolar", "ternary"];

/// Errors of hypervectors: `ValueError`.
pub(crate) fn error(error: VsaError) -> PyErr {
    crate::errors::value(error)
}

/// The error for values of two algebras.
pub(crate) fn mixed(a: &str, b: &str) -> PyErr {
    PyValueError::new_err(format!("expected two values of one algebra, got {a} and {b}"))
}

/// As [`mixed`], for the first of several values and the first with another algebra.
pub(crate) fn differing(algebras: &[&str]) -> PyErr {
    let first = algebras.first().copied().unwrap_or_default();
    let other = algebras.iter().copied().find(|name| *name != first);
    mixed(first, other.unwrap_or(first))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    vector::register(m)?;
    bundle::register(m)?;
    memory::register(m)?;
    structures::register(m)?;
    relations::register(m)?;
    memories::register(m)?;
    encoders::register(m)?;
    capacity::register(m)
}
