//! The methods of Python's strings.

use minijinja::{
    Error, ErrorKind,
    value::{Tuple, Value, ValueKind, from_args},
};

use super::{
    arguments::bind,
    budget::Budget,
    format, guard,
    pad::{Side, pad},
    python,
    scalar::{invalid, is_printable, is_space, lines},
};

/// The first character in upper case, the rest in lower case.
pub(super) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().collect::<String>());
    first.unwrap_or_default() + &chars.as_str().to_lowercase()
}

/// Every letter after a non-letter in upper case, the rest in lower case.
fn titled(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        let is_cased = c.is_uppercase() || c.is_lowercase();
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = is_cased;
    }
    out
}

fn is_titled(text: &str) -> bool {
    let mut inside = false;
    let mut any = false;
    for c in text.chars() {
        if (c.is_uppercase() && inside) || (c.is_lowercase() && !inside) {
            return false;
        }
        inside = c.is_uppercase() || c.is_lowercase();
        any |= inside;
    }
    any
}

/// Whether a character is a decimal digit of some script: the digits of a script are consecutive, starting at zero.
fn is_decimal(c: char) -> bool {
    const ZEROS: [u32; 40] = [
        0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6,
        0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0,
        0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10, 0x104a0, 0x11066,
        0x1d7ce,
    ];
    ZEROS.iter().any(|&zero| (zero..zero + 10).contains(&(c as u32)))
        || ('\u{1d7ce}'..='\u{1d7ff}').contains(&c)
}

fn is_digit(c: char) -> bool {
    let raised = matches!(c, '\u{b2}' | '\u{b3}' | '\u{b9}' | '\u{2070}' | '\u{2074}'..='\u{2079}' | '\u{2080}'..='\u{2089}');
    is_decimal(c) || raised || matches!(c, '\u{2460}'..='\u{2468}' | '\u{2776}'..='\u{277e}')
}

/// `text.split(separator, most)`.
fn split<'a>(text: &'a str, separator: Option<&str>, most: usize) -> Result<Vec<&'a str>, Error> {
    match separator {
        Some("") => Err(invalid("empty separator")),
        Some(separator) => Ok(text.splitn(most.saturating_add(1), separator).collect()),
        None => {
            let mut pieces = Vec::new();
            let mut rest = text.trim_start_matches(is_space);
            while !rest.is_empty() {
                let end = rest.find(is_space).filter(|_| pieces.len() < most);
                let (piece, after) = rest.split_at(end.unwrap_or(rest.len()));
                pieces.push(piece);
                rest = after.trim_start_matches(is_space);
            }
            Ok(pieces)
        }
    }
}

/// `text.rsplit(separator, most)`.
fn split_right<'a>(text: &'a str, separator: Option<&str>, most: usize) -> Result<Vec<&'a str>, Error> {
    let mut pieces: Vec<&str> = match separator {
        Some("") => return Err(invalid("empty separator")),
        Some(separator) => text.rsplitn(most.saturating_add(1), separator).collect(),
        None => {
            let mut pieces = Vec::new();
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                let start = rest.rfind(is_space).filter(|_| pieces.len() < most);
                let start = start.map_or(0, |at| at + rest[at..].chars().next().map_or(1, char::len_utf8));
                let (before, piece) = rest.split_at(start);
                pieces.push(piece);
                rest = before.trim_end_matches(is_space);
            }
            pieces
        }
    };
    pieces.reverse();
    Ok(pieces)
}

/// The slice of `text` from character `start` to `end`, as in Python; `None` if `start` is past the end.
fn part<'a>(
    text: &'a str,
    start: Option<&Value>,
    end: Option<&Value>,
) -> Result<Option<(usize, &'a str)>, Error> {
    let bound = |value: Option<&Value>| match value.filter(|value| !value.is_none()) {
        None => Ok(None),
        Some(value) => i64::try_from(value.clone()).map(Some),
    };
    let (start, end) = (bound(start)?, bound(end)?);
    if start.is_none() && end.is_none() {
        return Ok(Some((0, text)));
    }
    let len = text.chars().count() as i64;
    let place = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let (start, end) = (place(start.unwrap_or(0)), place(end.unwrap_or(len)).min(len));
    if start > len || start > end {
        return Ok(None);
    }
    let at = |index: i64| text.char_indices().nth(index as usize).map_or(text.len(), |(at, _)| at);
    Ok(Some((start as usize, &text[at(start)..at(end)])))
}

/// Whether one of the strings in a list or tuple, or a single string, matches.
fn any_of(given: &Value, matches: impl Fn(&str) -> bool) -> Result<bool, Error> {
    if let Some(one) = given.as_str() {
        return Ok(matches(one));
    }
    if !given.is_tuple() {
        return Err(invalid(format!("expected a string or a tuple of strings, got a {}", given.kind())));
    }
    for one in given.try_iter()? {
        if matches(one.as_str().ok_or_else(|| invalid("expected a tuple of strings"))?) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn text_list<'a>(pieces: impl IntoIterator<Item = &'a str>) -> Value {
    pieces.into_iter().map(Value::from).collect::<Vec<_>>().into()
}

fn split_method(budget: &Budget, text: &str, args: &[Value], right: bool) -> Result<Value, Error> {
    let [separator, most] = bind(args, ["sep", "maxsplit"])?;
    // Each piece is a separate value of 24 bytes.
    budget.charge(text.len().saturating_mul(24))?;
    let separator = separator.filter(|separator| !separator.is_none());
    let separator = match &separator {
        None => None,
        Some(separator) => Some(separator.as_str().ok_or_else(|| invalid("the separator must be a string"))?),
    };
    let most = most.map_or(Ok(-1), i64::try_from)?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let split = if right { split_right } else { split };
    Ok(text_list(split(text, separator, most)?))
}

fn search_method(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (what, start, end): (&str, Option<&Value>, Option<&Value>) = from_args(args)?;
    let Some((skipped, part)) = part(text, start, end)? else {
        return match method {
            "count" => Ok(Value::from(0)),
            "find" | "rfind" => Ok(Value::from(-1)),
            _ => Err(invalid("substring not found")),
        };
    };
    let found = match method {
        "count" => return Ok(Value::from(part.matches(what).count())),
        "find" | "index" => part.find(what),
        _ => part.rfind(what),
    };
    match found {
        Some(at) => Ok(Value::from(skipped + part[..at].chars().count())),
        None if method.ends_with("index") => Err(invalid("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

fn padded(budget: &Budget, text: &str, args: &[Value], side: Side) -> Result<Value, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let fill = fill.unwrap_or(" ");
    let mut chars = fill.chars();
    let (Some(fill), None) = (chars.next(), chars.next()) else {
        return Err(invalid("the fill must be one character"));
    };
    pad(budget, text, usize::try_from(width).unwrap_or(0), fill, side)
}

fn expanded_tabs(budget: &Budget, text: &str, args: &[Value]) -> Result<Value, Error> {
    let [size] = bind(args, ["tabsize"])?;
    let size = usize::try_from(size.map_or(Ok(8), i64::try_from)?).unwrap_or(0);
    budget.charge(text.matches('\t').count().saturating_mul(size))?;
    let mut out = String::with_capacity(text.len());
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if size == 0 => {}
            '\t' => {
                let spaces = size - column % size;
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            other => {
                out.push(other);
                column = if matches!(other, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(Value::from(out))
}

fn translated(budget: &Budget, text: &str, table: &Value) -> Result<Value, Error> {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let to = table.get_item(&Value::from(c as u32))?;
        let number =
            if to.is_number() { u32::try_from(to.clone()).ok().and_then(char::from_u32) } else { None };
        match (to.as_str(), number) {
            (Some(to), _) => {
                budget.charge(to.len())?;
                out.push_str(to);
            }
            (None, Some(to)) => out.push(to),
            (None, None) if to.is_none() => {}
            (None, None) => out.push(c),
        }
    }
    Ok(Value::from(out))
}

/// Calls a method of a string.
pub(super) fn call(budget: &Budget, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    budget.charge(text.len())?;
    let strip = |strip: fn(&str, &dyn Fn(char) -> bool) -> String| {
        let (chars,): (Option<&str>,) = from_args(args)?;
        Ok::<_, Error>(Value::from(match chars {
            Some(chars) => strip(text, &|c| chars.contains(c)),
            None => strip(text, &is_space),
        }))
    };
    let parts = |right: bool| -> Result<Value, Error> {
        let (separator,): (&str,) = from_args(args)?;
        if separator.is_empty() {
            return Err(invalid("empty separator"));
        }
        let at = if right { text.rfind(separator) } else { text.find(separator) };
        let parts = match at {
            Some(at) => [&text[..at], separator, &text[at + separator.len()..]],
            None if right => ["", "", text],
            None => [text, "", ""],
        };
        Ok(Value::from(Tuple::from(parts.map(Value::from))))
    };
    let without_arguments = || -> Result<(), Error> {
        let () = from_args(args)?;
        Ok(())
    };
    let all = |test: &dyn Fn(char) -> bool| -> Result<Value, Error> {
        without_arguments()?;
        Ok(Value::from(!text.is_empty() && text.chars().all(test)))
    };
    match method {
        "split" => split_method(budget, text, args, false),
        "rsplit" => split_method(budget, text, args, true),
        "splitlines" => {
            let [keep_ends] = bind(args, ["keepends"])?;
            budget.charge(text.len().saturating_mul(24))?;
            Ok(text_list(lines(text, keep_ends.is_some_and(|keep| keep.is_true()))))
        }
        "strip" => strip(|text, test| text.trim_matches(test).to_owned()),
        "lstrip" => strip(|text, test| text.trim_start_matches(test).to_owned()),
        "rstrip" => strip(|text, test| text.trim_end_matches(test).to_owned()),
        "replace" => {
            let (from, to, count): (&str, &str, Option<i64>) = from_args(args)?;
            // A negative count replaces all occurrences.
            guard::replace(budget, text, from, to, count.and_then(|n| usize::try_from(n).ok()))
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            if items.is_none() {
                return Err(invalid("can only join an iterable"));
            }
            let items = guard::collect(budget, items)?;
            if let Some(other) = items.iter().find(|item| item.kind() != ValueKind::String) {
                return Err(invalid(format!("can only join strings, got a {}", other.kind())));
            }
            guard::join(budget, &Value::from(items), text)
        }
        "format" => format::str_format(budget, text, args),
        "format_map" => {
            let (map,): (&Value,) = from_args(args)?;
            format::str_format(budget, text, &[python::merged(budget, std::slice::from_ref(map))?])
        }
        "startswith" | "endswith" => {
            let (given, start, end): (&Value, Option<&Value>, Option<&Value>) = from_args(args)?;
            let part = part(text, start, end)?;
            let found = any_of(given, |one| match part {
                Some((_, part)) if method == "startswith" => part.starts_with(one),
                Some((_, part)) => part.ends_with(one),
                None => false,
            })?;
            Ok(Value::from(found))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search_method(text, method, args),
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => parts(false),
        "rpartition" => parts(true),
        "ljust" => padded(budget, text, args, Side::Right),
        "rjust" => padded(budget, text, args, Side::Left),
        "center" => padded(budget, text, args, Side::Both),
        "zfill" => {
            let (width,): (i64,) = from_args(args)?;
            let sign = usize::from(text.starts_with(['+', '-']));
            let width = usize::try_from(width).unwrap_or(0).saturating_sub(sign);
            let number = pad(budget, &text[sign..], width, '0', Side::Left)?;
            Ok(Value::from([&text[..sign], number.as_str().unwrap_or_default()].concat()))
        }
        "expandtabs" => expanded_tabs(budget, text, args),
        "translate" => {
            let (table,): (&Value,) = from_args(args)?;
            translated(budget, text, table)
        }
        "isalnum" => all(&|c| c.is_alphabetic() || c.is_numeric()),
        "isalpha" => all(&char::is_alphabetic),
        "isdecimal" => all(&is_decimal),
        "isdigit" => all(&is_digit),
        "isnumeric" => all(&|c| c.is_numeric()),
        "isspace" => all(&is_space),
        _ => {
            without_arguments()?;
            let any_cased = |upper: bool| {
                let wrong = |c: char| if upper { c.is_lowercase() } else { c.is_uppercase() };
                let right = |c: char| if upper { c.is_uppercase() } else { c.is_lowercase() };
                text.chars().any(right) && !text.chars().any(wrong)
            };
            Ok(match method {
                "upper" => Value::from(text.to_uppercase()),
                "lower" => Value::from(text.to_lowercase()),
                "title" => Value::from(titled(text)),
                "capitalize" => Value::from(capitalized(text)),
                "casefold" => Value::from(text.to_lowercase().replace('\u{df}', "ss")),
                "swapcase" => {
                    let swap = |c: char| match c.is_uppercase() {
                        true => c.to_lowercase().collect::<String>(),
                        false => c.to_uppercase().collect(),
                    };
                    Value::from(text.chars().map(swap).collect::<String>())
                }
                "isascii" => Value::from(text.is_ascii()),
                "islower" => Value::from(any_cased(false)),
                "isupper" => Value::from(any_cased(true)),
                "istitle" => Value::from(is_titled(text)),
                "isprintable" => Value::from(text.chars().all(is_printable)),
                "isidentifier" => {
                    let mut chars = text.chars();
                    let first = chars.next().is_some_and(|c| c == '_' || c.is_alphabetic());
                    Value::from(first && chars.all(|c| c == '_' || c.is_alphanumeric()))
                }
                _ => return Err(Error::from(ErrorKind::UnknownMethod)),
            })
        }
    }
}
