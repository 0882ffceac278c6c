//! Characters, ordering and escaping of Python's values, used by the rest of the language.

use std::cmp::Ordering;

use minijinja::{
    Error, ErrorKind,
    value::{Value, ValueKind},
};

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Whether Python considers a character white space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `text` without white space at its ends.
pub(super) fn stripped(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Whether Python's `repr` prints a character unescaped.
pub(super) fn is_printable(c: char) -> bool {
    // The standard library escapes by the same character categories, except for the first character of a string.
    c == ' ' || c == '\'' || c == '"' || c == '\\' || format!("a{c}").escape_debug().count() == 2
}

/// The lines of `text`, with or without their ends.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let end = &rest[at..];
        let width = match end.strip_prefix("\r\n") {
            Some(_) => 2,
            None => end.chars().next().map_or(0, char::len_utf8),
        };
        lines.push(if keep_ends { &rest[..at + width] } else { &rest[..at] });
        rest = &rest[at + width..];
    }
    lines.extend(Some(rest).filter(|rest| !rest.is_empty()));
    lines
}

/// `text` with HTML special characters escaped.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// Converts true and false to 1 and 0; other values are unchanged.
pub(super) fn without_bool(value: &Value) -> Value {
    if value.kind() == ValueKind::Bool { Value::from(i64::from(value.is_true())) } else { value.clone() }
}

/// The order of two values, if Python orders them; `None` if one is NaN. Both must be charged before.
pub(super) fn order(x: &Value, y: &Value) -> Result<Option<Ordering>, Error> {
    let (x, y) = (&without_bool(x), &without_bool(y));
    match (x.kind(), y.kind()) {
        (ValueKind::Number, ValueKind::Number) => {
            let is_nan = |v: &Value| f64::try_from(v.clone()).is_ok_and(f64::is_nan);
            Ok(if is_nan(x) || is_nan(y) { None } else { Some(x.cmp(y)) })
        }
        (ValueKind::String, ValueKind::String) => Ok(Some(x.cmp(y))),
        (ValueKind::Seq, ValueKind::Seq) if x.is_tuple() == y.is_tuple() => {
            let (mut left, mut right) = (x.try_iter()?, y.try_iter()?);
            loop {
                match (left.next(), right.next()) {
                    (Some(x), Some(y)) if x == y => {}
                    (Some(x), Some(y)) => return order(&x, &y),
                    (x, y) => return Ok(Some(x.is_some().cmp(&y.is_some()))),
                }
            }
        }
        (ValueKind::Undefined, _) | (_, ValueKind::Undefined) => Err(Error::from(ErrorKind::UndefinedError)),
        (a, b) => Err(invalid(format!("a {a} and a {b} cannot be ordered"))),
    }
}

/// A value that can be iterated; an error for none.
pub(super) fn iterable(value: &Value) -> Result<&Value, Error> {
    if value.is_none() {
        return Err(invalid("none is not iterable"));
    }
    Ok(value)
}
