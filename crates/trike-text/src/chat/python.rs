//! Parts of Python and Jinja that the engine lacks or cannot limit: the remainder, padding, numbers in text, `joiner`, `cycler`, `batch`.
//! All of them are charged to the budget.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use minijinja::{
    Error, ErrorKind, State,
    value::{Kwargs, Object, ObjectRepr, Value, ValueKind, from_args},
};

use super::{
    budget::Budget,
    format,
    guard::collect,
    scalar::{invalid, stripped, without_bool},
};

/// Merges the keyword arguments of several maps; later ones override earlier ones.
pub(super) fn merged(budget: &Budget, maps: &[Value]) -> Result<Value, Error> {
    let mut all: Vec<(String, Value)> = Vec::new();
    for map in maps {
        if map.kind() != ValueKind::Map {
            return Err(invalid(format!("attempted to apply keyword arguments from a {}", map.kind())));
        }
        for key in map.try_iter()? {
            budget.charge(48)?;
            let name = key.as_str().ok_or_else(|| invalid("names of keyword arguments must be strings"))?;
            all.push((name.to_owned(), map.get_item(&key)?));
        }
    }
    Ok(Value::from(all.into_iter().collect::<Kwargs>()))
}

/// `a % b`: the remainder of numbers with the sign of the divisor, or the formatting of a string.
pub(super) fn remainder(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(text) = a.as_str() {
        let args = match b.is_tuple() {
            true => collect(budget, b)?,
            false => vec![b.clone()],
        };
        // Python treats any value with items as a map, whose items need not all be used.
        let has_items = matches!(b.kind(), ValueKind::Seq | ValueKind::Undefined) && !b.is_tuple();
        return format::printf(budget, text, &args, has_items);
    }
    let (a, b) = (&without_bool(a), &without_bool(b));
    if a.kind() != ValueKind::Number || b.kind() != ValueKind::Number {
        let message = format!("tried to use % operator on unsupported types {} and {}", a.kind(), b.kind());
        return Err(invalid(message));
    }
    if let (true, true, Ok(x), Ok(y)) =
        (a.is_integer(), b.is_integer(), i128::try_from(a.clone()), i128::try_from(b.clone()))
    {
        let rest = x.checked_rem(y).ok_or_else(|| invalid(format!("unable to calculate {x} % {y}")))?;
        let rest = if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest };
        return Ok(i64::try_from(rest).map_or_else(|_| Value::from(rest), Value::from));
    }
    let (x, y) = (f64::try_from(a.clone())?, f64::try_from(b.clone())?);
    if y == 0.0 {
        return Err(invalid(format!("unable to calculate {x} % {y}")));
    }
    let rest = x % y;
    Ok(Value::from(if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }))
}

/// `list.index(item)`.
pub(super) fn list_index(budget: &Budget, list: &Value, args: &[Value]) -> Result<Value, Error> {
    if !matches!(list.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(Error::from(ErrorKind::UnknownMethod));
    }
    let (item,): (&Value,) = from_args(args)?;
    budget.charge_deep(list)?;
    budget.charge_deep(item)?;
    let at = list.try_iter()?.position(|other| other == *item);
    at.map(Value::from).ok_or_else(|| invalid("the item is not in the list"))
}

/// Lists of `count` items each; the last one is padded with `fill`.
pub(super) fn batch(
    budget: &Budget,
    list: &Value,
    count: usize,
    fill: Option<&Value>,
) -> Result<Vec<Value>, Error> {
    let count = Some(count).filter(|&count| count > 0).ok_or_else(|| invalid("count cannot be 0"))?;
    let items = collect(budget, list)?;
    let mut rows: Vec<Vec<Value>> = items.chunks(count).map(<[Value]>::to_vec).collect();
    budget.charge(rows.len().saturating_mul(24))?;
    if let (Some(last), Some(fill)) = (rows.last_mut(), fill) {
        budget.charge((count - last.len()).saturating_mul(24))?;
        last.resize(count, fill.clone());
    }
    Ok(rows.into_iter().map(Value::from).collect())
}

/// `count` lists of about the same length; shorter ones get `fill`.
pub(super) fn slices(
    budget: &Budget,
    list: &Value,
    count: usize,
    fill: Option<&Value>,
) -> Result<Vec<Value>, Error> {
    if count == 0 {
        return Err(invalid("count cannot be 0"));
    }
    let items = collect(budget, list)?;
    budget.charge(count.saturating_mul(48))?;
    let (each, longer) = (items.len() / count, items.len() % count);
    let mut rest = items.as_slice();
    let mut slices = Vec::with_capacity(count);
    for index in 0..count {
        let (slice, after) = rest.split_at(each + usize::from(index < longer));
        rest = after;
        let mut slice = slice.to_vec();
        slice.extend(fill.filter(|_| longer > 0 && index >= longer).cloned());
        slices.push(Value::from(slice));
    }
    Ok(slices)
}

pub(super) fn word_count(text: &str) -> usize {
    // Jinja counts runs of letters, digits and underscores.
    let word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(|c| !word(c)).filter(|piece| !piece.is_empty()).count()
}

/// Percent-encodes `text` for a URL; slashes are kept in a path.
pub(super) fn url_encoded(text: &str, is_path: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(char::from(byte)),
            b'/' if is_path => out.push('/'),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

/// Whether a value is callable: macros, functions, joiners, and in Jinja undefined values.
pub(super) fn is_callable(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined)
}

/// `value % 2`, rounded down.
pub(super) fn remainder_of_two(value: &Value) -> Result<i64, Error> {
    let value = without_bool(value);
    if value.kind() != ValueKind::Number {
        return Err(invalid(format!("expected a number, got a {}", value.kind())));
    }
    match i128::try_from(value.clone()) {
        Ok(whole) => Ok(whole.rem_euclid(2) as i64),
        // A fraction is neither odd nor even.
        Err(_) => Ok(-1),
    }
}

/// `int(text, base)`.
pub(super) fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = stripped(text);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let marked = digits.get(..2).and_then(|mark| match mark {
        "0x" | "0X" => Some(16),
        "0o" | "0O" => Some(8),
        "0b" | "0B" => Some(2),
        _ => None,
    });
    let (digits, base) = match marked {
        Some(marked) if base == 0 || base == marked => (&digits[2..], marked),
        _ => (digits, if base == 0 { 10 } else { base }),
    };
    if !(2..=36).contains(&base) {
        return None;
    }
    let number = i128::from_str_radix(&without_underscores(digits)?, base).ok()?;
    Some(if negative { -number } else { number })
}

/// `float(text)`.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    without_underscores(stripped(text))?.parse().ok()
}

/// Removes single underscores between digits; `None` for invalid digits, and for a second sign.
fn without_underscores(digits: &str) -> Option<String> {
    let wrong = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    (!wrong).then(|| digits.replace('_', ""))
}

#[derive(Debug)]
struct Joiner {
    separator: Value,
    used: AtomicBool,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let () = from_args(args)?;
        Ok(if self.used.swap(true, Ordering::Relaxed) { self.separator.clone() } else { Value::from("") })
    }
}

/// A function that returns an empty string on the first call, and then the separator.
pub(super) fn joiner(budget: &Budget, separator: Option<Value>) -> Result<Value, Error> {
    budget.charge(64)?;
    let separator = separator.unwrap_or_else(|| Value::from(", "));
    Ok(Value::from_object(Joiner { separator, used: AtomicBool::new(false) }))
}

#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let at = self.at.load(Ordering::Relaxed);
        if key.as_str() == Some("current") { self.items.get(at).cloned() } else { None }
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        let () = from_args(args)?;
        let at = self.at.load(Ordering::Relaxed);
        match method {
            "next" => {
                self.at.store((at + 1) % self.items.len().max(1), Ordering::Relaxed);
                Ok(self.items.get(at).cloned().unwrap_or_default())
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// An object whose method `next` cycles through the items.
pub(super) fn cycler(budget: &Budget, items: Vec<Value>) -> Result<Value, Error> {
    budget.charge(64 + items.len().saturating_mul(24))?;
    if items.is_empty() {
        return Err(invalid("at least one item has to be provided"));
    }
    Ok(Value::from_object(Cycler { items, at: AtomicUsize::new(0) }))
}
