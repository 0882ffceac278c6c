//! The data budget of a rendering: a limit on the data that a template may create and traverse.

use std::{
    error, fmt,
    sync::atomic::{AtomicUsize, Ordering},
};

use minijinja::{
    Error, ErrorKind,
    value::{Value, ValueKind},
};

use super::values::Generator;

/// Maximum nesting depth of lists and maps. Tool descriptions have about ten levels.
pub(super) const MAX_DEPTH: usize = 64;

/// Total of bytes and items that one rendering may create and traverse. A conversation of a million characters
/// costs a few units per character.
pub(super) const DATA: usize = 128 << 20;

/// The remainder of [`DATA`].
#[derive(Debug)]
pub(super) struct Budget(AtomicUsize);

/// Marks an error as a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverLimit {
    pub(super) what: &'static str,
    pub(super) limit: u64,
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "over the limit of {} {}", self.limit, self.what)
    }
}

impl error::Error for OverLimit {}

pub(super) fn over_limit(what: &'static str, limit: usize) -> Error {
    let source = OverLimit { what, limit: limit as u64 };
    Error::new(ErrorKind::OutOfFuel, source.to_string()).with_source(source)
}

pub(super) fn nested_too_deep() -> Error {
    over_limit("nesting levels of lists and maps", MAX_DEPTH)
}

impl Budget {
    pub(super) fn new() -> Self {
        Self(AtomicUsize::new(DATA))
    }

    /// Subtracts `amount`.
    pub(super) fn charge(&self, amount: usize) -> Result<(), Error> {
        let left = self.0.load(Ordering::Relaxed);
        let left = left.checked_sub(amount).ok_or_else(|| over_limit("bytes and items of data", DATA))?;
        self.0.store(left, Ordering::Relaxed);
        Ok(())
    }

    /// Charges the size of a value itself: bytes of a string, or number of items.
    pub(super) fn charge_shallow(&self, value: &Value) -> Result<(), Error> {
        let size = match value.as_str() {
            Some(text) => text.len(),
            None if let Some(generator) = value.downcast_object_ref::<Generator>() => generator.left(),
            // The length of an unsized iterable is unknown; charge ten thousand items.
            None if value.kind() == ValueKind::Iterable => value.len().unwrap_or(10_000),
            None => value.len().unwrap_or(0),
        };
        self.charge(1 + size)
    }

    /// Charges everything inside a value recursively; shared parts are charged each time they occur.
    pub(super) fn charge_deep(&self, value: &Value) -> Result<(), Error> {
        self.walk(value, 0)
    }

    fn walk(&self, value: &Value, depth: usize) -> Result<(), Error> {
        // One traversal step takes about the time of copying this many bytes.
        const STEP: usize = 16;
        if depth > MAX_DEPTH {
            return Err(nested_too_deep());
        }
        match value.kind() {
            ValueKind::String => self.charge(STEP + value.as_str().map_or(0, str::len)),
            ValueKind::Seq | ValueKind::Iterable => {
                self.charge(STEP)?;
                // Traversing a generator here does not consume it.
                match value.downcast_object_ref::<Generator>() {
                    Some(generator) => {
                        self.charge(generator.left().saturating_mul(24))?;
                        generator.rest().iter().try_for_each(|item| self.walk(item, depth + 1))
                    }
                    None => value.try_iter()?.try_for_each(|item| self.walk(&item, depth + 1)),
                }
            }
            ValueKind::Map => {
                self.charge(STEP)?;
                value.try_iter()?.try_for_each(|key| {
                    self.walk(&key, depth + 1)?;
                    self.walk(&value.get_item(&key)?, depth + 1)
                })
            }
            _ => self.charge(STEP),
        }
    }
}
