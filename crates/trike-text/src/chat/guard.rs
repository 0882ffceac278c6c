//! Resource accounting: every operation that can create or traverse more than a little data is charged.
//!
//! The engine's fuel counts instructions, but one instruction can double a string: forty of them would request a
//! terabyte. So such operations are replaced (see `engine`) by functions here that charge a [`Budget`] first.

use minijinja::{
    Error, ErrorKind,
    value::{Value, ValueKind},
};

use super::{budget::Budget, text::display};

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// `a + b`: numbers, strings, lists.
pub(super) fn add(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        budget.charge(a.len() + b.len())?;
        return Ok(Value::from([a, b].concat()));
    }
    if a.kind() == ValueKind::Number && b.kind() == ValueKind::Number {
        let whole = (i128::try_from(a.clone()), i128::try_from(b.clone()));
        if let (true, true, (Ok(x), Ok(y))) = (a.is_integer(), b.is_integer(), whole) {
            let sum = x.checked_add(y).ok_or_else(|| invalid(format!("unable to calculate {x} + {y}")))?;
            return Ok(i64::try_from(sum).map_or_else(|_| Value::from(sum), Value::from));
        }
        return Ok(Value::from(f64::try_from(a.clone())? + f64::try_from(b.clone())?));
    }
    let list = |v: &Value| matches!(v.kind(), ValueKind::Seq | ValueKind::Iterable);
    if list(a) && list(b) {
        let mut items = collect(budget, a)?;
        items.extend(collect(budget, b)?);
        return Ok(Value::from(items));
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

/// `a * b`: product of numbers, or repetition of a string.
pub(super) fn multiply(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    if a.kind() == ValueKind::Number && b.kind() == ValueKind::Number {
        let whole = (i128::try_from(a.clone()), i128::try_from(b.clone()));
        if let (true, true, (Ok(x), Ok(y))) = (a.is_integer(), b.is_integer(), whole) {
            let product =
                x.checked_mul(y).ok_or_else(|| invalid(format!("unable to calculate {x} * {y}")))?;
            return Ok(i64::try_from(product).map_or_else(|_| Value::from(product), Value::from));
        }
        return Ok(Value::from(f64::try_from(a.clone())? * f64::try_from(b.clone())?));
    }
    let (text, times) = if a.as_str().is_some() { (a, b) } else { (b, a) };
    match (text.as_str(), i64::try_from(times.clone())) {
        (Some(text), Ok(times)) => {
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
        ValueKind::Undefined | ValueKind::None => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = collect(budget, value)?;
            Ok(Value::from(picks(items.len()).iter().map(|&i| items[i].clone()).collect::<Vec<_>>()))
        }
        kind => Err(invalid(format!("value of type {kind} cannot be sliced"))),
    }
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

/// `text` with each line indented by `width` spaces; the first line only if `first`, empty lines only if `blank`.
pub(super) fn indent(
    budget: &Budget,
    text: &str,
    width: usize,
    first: bool,
    blank: bool,
) -> Result<Value, Error> {
    let lines = text.matches('\n').count() + 1;
    budget.charge(text.len().saturating_add(lines.saturating_mul(width)))?;
    let spaces = " ".repeat(width);
    let mut out = String::new();
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if (index > 0 || first) && (blank || index == 0 || !line.is_empty()) {
            out.push_str(&spaces);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}
