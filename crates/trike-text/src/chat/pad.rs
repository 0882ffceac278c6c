//! Padding of text.

use minijinja::{Error, value::Value};

use super::budget::Budget;

/// The side of a text that is padded.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Left,
    Right,
    Both,
}

/// `text` padded to `width` characters.
pub(super) fn pad(budget: &Budget, text: &str, width: usize, fill: char, side: Side) -> Result<Value, Error> {
    let missing = width.saturating_sub(text.chars().count());
    budget.charge(text.len().saturating_add(missing.saturating_mul(4)))?;
    let left = match side {
        Side::Left => missing,
        Side::Right => 0,
        // As in CPython: of an odd amount, the larger half goes to the left if the width is odd.
        Side::Both => missing / 2 + (missing & width & 1),
    };
    let fill = |count| std::iter::repeat_n(fill, count);
    Ok(Value::from(fill(left).chain(text.chars()).chain(fill(missing - left)).collect::<String>()))
}
