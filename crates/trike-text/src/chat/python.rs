//! Parts of Python and Jinja that the engine lacks or cannot limit: formatting, further methods of strings, `joiner`, `cycler`,
//! `batch`. All of them are charged to the budget.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use minijinja::{
    Error, ErrorKind, State,
    formatting::{FormatStyle, format},
    value::{Kwargs, Object, ObjectRepr, Value, ValueKind, from_args},
};

use super::{budget::Budget, guard::collect, text::display};

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Keyword arguments of several maps; a later one replaces an earlier one of the same name.
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
        return printf(budget, text, args);
    }
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

/// Printf-style formatting, of `%` and of the filter `format`.
pub(super) fn printf(budget: &Budget, text: &str, args: Vec<Value>) -> Result<Value, Error> {
    let args = printable(budget, text, args)?;
    // Python takes exactly as many as there are, unless they are named.
    let named = args.first().is_some_and(|arg| arg.kind() == ValueKind::Map);
    let fields = text.replace("%%", "").matches('%').count();
    if !named && fields < args.len() {
        return Err(invalid("not all arguments converted during string formatting"));
    }
    format(FormatStyle::Printf, text, &args).map(Value::from)
}

/// `text.format(..)`.
pub(super) fn str_format(budget: &Budget, text: &str, args: &[Value]) -> Result<Value, Error> {
    let args = printable(budget, text, args.to_vec())?;
    format(FormatStyle::StrFormat, text, &args).map(Value::from)
}

/// The arguments of a format string, charged with all that it may make of them: each may be printed once for every field, and
/// each number in the string may be a width.
fn printable(budget: &Budget, text: &str, args: Vec<Value>) -> Result<Vec<Value>, Error> {
    let mut widths = 0_usize;
    for digits in text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()) {
        widths = widths.saturating_add(digits.parse().unwrap_or(usize::MAX));
    }
    // A character of padding has up to four bytes.
    budget.charge(text.len().saturating_add(widths.saturating_mul(4)))?;
    let fields = text.matches(['%', '{']).count();
    args.iter().map(|value| shown(budget, value, fields)).collect()
}

/// A value as the engine's formatting prints it in Python's way.
fn shown(budget: &Budget, value: &Value, fields: usize) -> Result<Value, Error> {
    let value = match value.kind() {
        ValueKind::None | ValueKind::Seq | ValueKind::Iterable => {
            let mut text = String::new();
            display(value, &mut text, budget)?;
            Value::from(text)
        }
        ValueKind::Map => {
            budget.charge_deep(value)?;
            let mut pairs = Vec::new();
            for key in value.try_iter()? {
                let inner = value.get_item(&key)?;
                let plain = matches!(inner.kind(), ValueKind::Map | ValueKind::Seq);
                pairs.push((key, if plain { inner } else { shown(budget, &inner, fields)? }));
            }
            let names = |(key, value): (Value, Value)| Some((key.as_str()?.to_owned(), value));
            match value.is_kwargs() {
                true => Value::from(pairs.into_iter().filter_map(names).collect::<Kwargs>()),
                false => Value::from_pairs(pairs),
            }
        }
        _ => value.clone(),
    };
    if let Some(text) = value.as_str() {
        budget.charge(text.len().saturating_mul(fields))?;
    }
    Ok(value)
}

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
        // As in CPython: of an odd number, the larger half goes to the left if the width is odd.
        Side::Both => missing / 2 + (missing & width & 1),
    };
    let fill = |count| std::iter::repeat_n(fill, count);
    Ok(Value::from(fill(left).chain(text.chars()).chain(fill(missing - left)).collect::<String>()))
}

/// Methods of Python's strings beyond those of the engine; `None` for others.
pub(super) fn string_method(
    budget: &Budget,
    text: &str,
    method: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    let width_and_fill = || -> Result<(usize, char), Error> {
        let (width, fill): (i64, Option<&str>) = from_args(args)?;
        let fill = fill.map_or(Some(' '), |fill| fill.chars().next().filter(|_| fill.chars().count() == 1));
        Ok((
            usize::try_from(width).unwrap_or(0),
            fill.ok_or_else(|| invalid("the fill must be one character"))?,
        ))
    };
    let padded = |side| width_and_fill().and_then(|(width, fill)| pad(budget, text, width, fill, side));
    let parts = |cut: Option<usize>, separator: &str, last: bool| {
        let (before, found, after) = match cut {
            Some(at) => (&text[..at], separator, &text[at + separator.len()..]),
            None if last => ("", "", text),
            None => (text, "", ""),
        };
        minijinja::value::Tuple::from([before, found, after].map(Value::from))
    };
    let separator = || -> Result<&str, Error> {
        let (separator,): (&str,) = from_args(args)?;
        if separator.is_empty() { Err(invalid("empty separator")) } else { Ok(separator) }
    };
    budget.charge(text.len())?;
    Ok(Some(match method {
        "rsplit" => rsplit(budget, text, args)?,
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" => Value::from(separator().map(|s| parts(text.find(s), s, false))?),
        "rpartition" => Value::from(separator().map(|s| parts(text.rfind(s), s, true))?),
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let at = if method == "index" { text.find(part) } else { text.rfind(part) };
            let at = at.ok_or_else(|| invalid("substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "ljust" => padded(Side::Right)?,
        "rjust" => padded(Side::Left)?,
        "center" => padded(Side::Both)?,
        "zfill" => {
            let (width,): (i64,) = from_args(args)?;
            let sign = usize::from(text.starts_with(['+', '-']));
            let width = usize::try_from(width).unwrap_or(0).saturating_sub(sign);
            let number = pad(budget, &text[sign..], width, '0', Side::Left)?;
            Value::from([&text[..sign], number.as_str().unwrap_or_default()].concat())
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase().replace('\u{df}', "ss"))
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |c: char| match c.is_uppercase() {
                true => c.to_lowercase().collect::<String>(),
                false => c.to_uppercase().collect(),
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "isdecimal" => {
            let () = from_args(args)?;
            Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))
        }
        _ => return Ok(None),
    }))
}

/// `text.rsplit(separator, maximum)`.
fn rsplit(budget: &Budget, text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, most, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(kwargs.get("sep")?).filter(|separator| !separator.is_none());
    let most = most.or(kwargs.get("maxsplit")?).unwrap_or(-1);
    kwargs.assert_all_used()?;
    let most = usize::try_from(most).unwrap_or(usize::MAX - 1);
    // Each piece is a separate value of 24 bytes.
    budget.charge(text.len().saturating_mul(24))?;
    let mut pieces: Vec<&str> = match &separator {
        None => {
            let mut pieces = Vec::new();
            let mut rest = text.trim_end();
            while !rest.is_empty() {
                match rest.rfind(char::is_whitespace).filter(|_| pieces.len() < most) {
                    Some(at) => {
                        let word = rest[at..].trim_start();
                        pieces.push(word);
                        rest = rest[..at].trim_end();
                    }
                    None => {
                        // The rest keeps its spaces, except at the end; without a limit there are none.
                        pieces.push(if pieces.len() < most { rest.trim_start() } else { rest });
                        rest = "";
                    }
                }
            }
            pieces
        }
        Some(separator) => {
            let separator = separator.as_str().ok_or_else(|| invalid("the separator must be a string"))?;
            if separator.is_empty() {
                return Err(invalid("empty separator"));
            }
            text.rsplitn(most + 1, separator).collect()
        }
    };
    pieces.reverse();
    Ok(pieces.into_iter().map(Value::from).collect::<Vec<_>>().into())
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

/// Lists of `count` items each; the last one is filled up with `fill`.
pub(super) fn batch(
    budget: &Budget,
    list: &Value,
    count: usize,
    fill: Option<&Value>,
) -> Result<Value, Error> {
    let count = Some(count).filter(|&count| count > 0).ok_or_else(|| invalid("count cannot be 0"))?;
    let items = collect(budget, list)?;
    let mut rows: Vec<Vec<Value>> = items.chunks(count).map(<[Value]>::to_vec).collect();
    budget.charge(rows.len().saturating_mul(24))?;
    if let (Some(last), Some(fill)) = (rows.last_mut(), fill) {
        budget.charge((count - last.len()).saturating_mul(24))?;
        last.resize(count, fill.clone());
    }
    Ok(rows.into_iter().map(Value::from).collect::<Vec<_>>().into())
}

/// `count` lists of about the same length; shorter ones get `fill`.
pub(super) fn slices(
    budget: &Budget,
    list: &Value,
    count: usize,
    fill: Option<&Value>,
) -> Result<Value, Error> {
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
    Ok(slices.into())
}

pub(super) fn word_count(text: &str) -> usize {
    // Jinja counts runs of letters, digits and underscores.
    let word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(|c| !word(c)).filter(|piece| !piece.is_empty()).count()
}

/// `text` with HTML's signs as entities.
pub(super) fn escaped(text: String) -> String {
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

/// `text` for a URL.
pub(super) fn url_encoded(text: String) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' | b'/' => {
                out.push(char::from(byte));
            }
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

/// Whether a value can be called: macros, functions, joiners.
pub(super) fn is_callable(value: &Value) -> bool {
    value.kind() == ValueKind::Plain && !value.is_undefined()
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

/// A function that returns nothing when it is called first, and then the separator.
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

/// An object whose method `next` returns one item after another, over and over.
pub(super) fn cycler(budget: &Budget, items: Vec<Value>) -> Result<Value, Error> {
    budget.charge(64 + items.len().saturating_mul(24))?;
    if items.is_empty() {
        return Err(invalid("at least one item has to be provided"));
    }
    Ok(Value::from_object(Cycler { items, at: AtomicUsize::new(0) }))
}
