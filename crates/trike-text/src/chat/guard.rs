//! Resource accounting: every operation that can create or traverse more than a little data is charged.
//!
//! The engine's fuel counts instructions, but one instruction can double a string: forty of them would request a
//! terabyte. So such operations are replaced (see `engine`) by functions here that charge a [`Budget`] first.

use minijinja::{
    Error, ErrorKind,
    value::{Tuple, Value, ValueKind},
};

use super::{
    budget::Budget,
    scalar::{escaped, iterable, lines, order, without_bool},
    text::display,
    values::{Generator, is_list},
};

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// `a + b`: numbers, strings, lists.
pub(super) fn add(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    let (a, b) = (&without_bool(a), &without_bool(b));
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        budget.charge(x.len() + y.len())?;
        if a.is_safe() == b.is_safe() {
            let text = [x, y].concat();
            return Ok(if a.is_safe() { Value::from_safe_string(text) } else { Value::from(text) });
        }
        // A safe string is HTML: text that is added to it is escaped.
        let html = |value: &Value, text: &str| if value.is_safe() { text.to_owned() } else { escaped(text) };
        let (x, y) = (html(a, x), html(b, y));
        budget.charge(x.len() + y.len())?;
        return Ok(Value::from_safe_string(x + &y));
    }
    if a.kind() == ValueKind::Number && b.kind() == ValueKind::Number {
        let whole = (i128::try_from(a.clone()), i128::try_from(b.clone()));
        if let (true, true, (Ok(x), Ok(y))) = (a.is_integer(), b.is_integer(), whole) {
            let sum = x.checked_add(y).ok_or_else(|| invalid(format!("unable to calculate {x} + {y}")))?;
            return Ok(i64::try_from(sum).map_or_else(|_| Value::from(sum), Value::from));
        }
        return Ok(Value::from(f64::try_from(a.clone())? + f64::try_from(b.clone())?));
    }
    if is_list(a) && is_list(b) && a.is_tuple() == b.is_tuple() {
        let mut items = collect(budget, a)?;
        items.extend(collect(budget, b)?);
        return Ok(list_like(a, items));
    }
    Err(invalid(format!("tried to use + operator on unsupported types {} and {}", a.kind(), b.kind())))
}

/// `a ~ b`.
pub(super) fn concat(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    let mut text = String::new();
    display(a, &mut text, budget)?;
    display(b, &mut text, budget)?;
    Ok(Value::from(text))
}

/// `a * b`: product of numbers, or repetition of a string or a list.
pub(super) fn multiply(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    let (a, b) = (&without_bool(a), &without_bool(b));
    if a.kind() == ValueKind::Number && b.kind() == ValueKind::Number {
        let whole = (i128::try_from(a.clone()), i128::try_from(b.clone()));
        if let (true, true, (Ok(x), Ok(y))) = (a.is_integer(), b.is_integer(), whole) {
            let product =
                x.checked_mul(y).ok_or_else(|| invalid(format!("unable to calculate {x} * {y}")))?;
            return Ok(i64::try_from(product).map_or_else(|_| Value::from(product), Value::from));
        }
        return Ok(Value::from(f64::try_from(a.clone())? * f64::try_from(b.clone())?));
    }
    let (text, times) = if a.kind() == ValueKind::Number { (b, a) } else { (a, b) };
    let whole = if times.is_integer() { i64::try_from(times.clone()).ok() } else { None };
    match (text.as_str(), whole) {
        (None, Some(times)) if is_list(text) => {
            let items = collect(budget, text)?;
            let times = usize::try_from(times).unwrap_or(0);
            budget.charge(items.len().saturating_mul(times).saturating_mul(24))?;
            let len = items.len().saturating_mul(times);
            Ok(list_like(text, items.into_iter().cycle().take(len).collect()))
        }
        (Some(text), Some(times)) => {
            let times = usize::try_from(times).unwrap_or(0);
            budget.charge(text.len().saturating_mul(times))?;
            Ok(Value::from(text.repeat(times)))
        }
        _ => Err(invalid(format!(
            "tried to use * operator on unsupported types {} and {}",
            a.kind(),
            b.kind()
        ))),
    }
}

/// `value[start:stop:step]`, Python slicing of strings and lists.
pub(super) fn slice(
    budget: &Budget,
    value: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<Value, Error> {
    let bound = |v: &Value| if v.is_none() { Ok(None) } else { i64::try_from(v.clone()).map(Some) };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(invalid("cannot slice by step size of 0".to_owned()));
    }
    let picks = |len: usize| -> Vec<usize> {
        let len = len as i64;
        let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let place = |bound: Option<i64>, missing: i64| match bound {
            None => missing,
            Some(n) if n < 0 => n.saturating_add(len).clamp(low, high),
            Some(n) => n.clamp(low, high),
        };
        let (first, end) = if step > 0 {
            (place(start, 0), place(stop, len))
        } else {
            (place(start, len - 1), place(stop, -1))
        };
        let steps = std::iter::successors(Some(first), |&at| at.checked_add(step));
        steps.take_while(|&at| if step > 0 { at < end } else { at > end }).map(|at| at as usize).collect()
    };
    if let Some(text) = value.as_str() {
        // The characters are first copied to a table, at four bytes per character, and indexed.
        budget.charge(text.len().saturating_mul(4))?;
        let characters: Vec<char> = text.chars().collect();
        return Ok(Value::from(picks(characters.len()).iter().map(|&i| characters[i]).collect::<String>()));
    }
    match value.kind() {
        ValueKind::Undefined => Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::Seq | ValueKind::Iterable if is_list(value) || value.kind() == ValueKind::Seq => {
            let items = collect(budget, value)?;
            Ok(list_like(value, picks(items.len()).iter().map(|&i| items[i].clone()).collect()))
        }
        kind => Err(invalid(format!("a {kind} has no slices"))),
    }
}

/// A list, or a tuple if `pattern` is one.
fn list_like(pattern: &Value, items: Vec<Value>) -> Value {
    if pattern.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) }
}

/// Checks that the items of a list can be sorted.
pub(super) fn assert_ordered(budget: &Budget, list: &Value) -> Result<(), Error> {
    let items = match list.downcast_object_ref::<Generator>() {
        Some(generator) => generator.rest(),
        None => collect(budget, iterable(list)?)?,
    };
    items.windows(2).try_for_each(|pair| order(&pair[0], &pair[1]).map(drop))
}

/// The items of a list, charged.
pub(super) fn collect(budget: &Budget, list: &Value) -> Result<Vec<Value>, Error> {
    let mut items = Vec::new();
    for item in list.try_iter()? {
        // An item has 24 bytes.
        budget.charge(24)?;
        items.push(item);
    }
    Ok(items)
}

/// `text.replace(from, to)`, at most `count` times.
pub(super) fn replace(
    budget: &Budget,
    text: &str,
    from: &str,
    to: &str,
    count: Option<usize>,
) -> Result<Value, Error> {
    budget.charge(text.len())?;
    let count = text.matches(from).count().min(count.unwrap_or(usize::MAX));
    budget.charge(text.len().saturating_add(count.saturating_mul(to.len())))?;
    Ok(Value::from(text.replacen(from, to, count)))
}

/// The items' text with `separator` between them.
pub(super) fn join(budget: &Budget, items: &Value, separator: &str) -> Result<Value, Error> {
    let mut text = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        if index > 0 {
            budget.charge(separator.len())?;
            text.push_str(separator);
        }
        budget.charge(1)?;
        display(&item, &mut text, budget)?;
    }
    Ok(Value::from(text))
}

/// `text` with each line after `indentation`; the first line only if `first`, empty lines only if `blank`.
pub(super) fn indent(
    budget: &Budget,
    text: &str,
    indentation: &str,
    first: bool,
    blank: bool,
) -> Result<Value, Error> {
    // Jinja appends a line end, so that a final line end starts an empty line.
    let text = [text, "\n"].concat();
    let lines = lines(&text, false);
    budget.charge(text.len().saturating_add(lines.len().saturating_mul(indentation.len())))?;
    let mut out = String::new();
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if if index == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(indentation);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}
