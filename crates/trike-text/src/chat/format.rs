//! Python's text formatting: `text.format(..)` and `text % values`. The engine formats single numbers and strings; fields, names
//! and conversions are parsed here, because it prints other values differently.

use minijinja::{
    Error,
    formatting::{FormatStyle, format},
    value::{Kwargs, Value, ValueKind, from_args},
};

use super::{
    budget::Budget,
    pad::{Side, pad},
    scalar::{invalid, without_bool},
    text::{display, repr_of},
    values,
};

/// Charges the numbers in a specification, which may be widths: a padding character takes up to four bytes.
fn charge_widths(budget: &Budget, spec: &str) -> Result<(), Error> {
    for digits in spec.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()) {
        budget.charge(digits.parse::<usize>().unwrap_or(usize::MAX).saturating_mul(4))?;
    }
    Ok(())
}

fn shown(budget: &Budget, value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    display(value, &mut text, budget)?;
    Ok(text)
}

/// `text.format(..)`.
pub(super) fn str_format(budget: &Budget, text: &str, args: &[Value]) -> Result<Value, Error> {
    let (places, named): (&[Value], Kwargs) = from_args(args)?;
    let mut fields = Fields { budget, places, named: &named, next: 0, are_numbered: None };
    fields.text(text, true).map(Value::from)
}

/// The arguments of `text.format(..)`.
struct Fields<'a> {
    budget: &'a Budget,
    places: &'a [Value],
    named: &'a Kwargs,
    /// The next automatic field number.
    next: usize,
    /// Whether fields are numbered explicitly; all or none must be.
    are_numbered: Option<bool>,
}

impl Fields<'_> {
    /// `text` with its fields replaced; fields within a specification cannot be nested further.
    fn text(&mut self, text: &str, has_specs: bool) -> Result<String, Error> {
        self.budget.charge(text.len())?;
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let (brace, after) = rest[at..].split_at(1);
            if let Some(after) = after.strip_prefix(brace) {
                out.push_str(brace);
                rest = after;
                continue;
            }
            let end = if brace == "{" { field_end(after) } else { None };
            let end = end.ok_or_else(|| invalid(format!("single `{brace}` in a format string")))?;
            out.push_str(&self.field(&after[..end], has_specs)?);
            rest = &after[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn field(&mut self, field: &str, has_specs: bool) -> Result<String, Error> {
        let mut inside = false;
        let name_end = field.find(|c| {
            inside = (inside || c == '[') && c != ']';
            !inside && matches!(c, '!' | ':')
        });
        let (name, rest) = field.split_at(name_end.unwrap_or(field.len()));
        let value = self.value(name)?;
        let (conversion, spec) = match rest.strip_prefix('!') {
            None => ("", rest.strip_prefix(':').unwrap_or(rest)),
            Some(rest) => rest.split_once(':').unwrap_or((rest, "")),
        };
        let spec = match spec.contains(['{', '}']) {
            true if has_specs => self.text(spec, false)?,
            true => return Err(invalid("fields of a format string are nested too deep")),
            false => spec.to_owned(),
        };
        match conversion {
            "" => formatted(self.budget, &value, &spec),
            "s" => formatted(self.budget, &Value::from(shown(self.budget, &value)?), &spec),
            "r" => formatted(self.budget, &Value::from(repr_of(&value, self.budget)?), &spec),
            other => Err(invalid(format!("the conversion `!{other}` is not implemented"))),
        }
    }

    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let (first, mut path) = name.split_at(name.find(['.', '[']).unwrap_or(name.len()));
        let is_number = !first.is_empty() && first.chars().all(|c| c.is_ascii_digit());
        if (name.is_empty() || is_number) && *self.are_numbered.get_or_insert(is_number) != is_number {
            return Err(invalid("some fields of a format string have numbers and some have not"));
        }
        let index = if name.is_empty() { Some(self.next) } else { first.parse().ok() };
        let mut value = match index {
            Some(index) => {
                self.next += usize::from(name.is_empty());
                let missing = || invalid(format!("there is no argument {index} for the format string"));
                self.places.get(index).cloned().ok_or_else(missing)?
            }
            None if self.named.has(first) => self.named.get::<Value>(first)?,
            None => return Err(invalid(format!("there is no argument `{first}` for the format string"))),
        };
        while !path.is_empty() {
            if let Some(rest) = path.strip_prefix('.') {
                let (part, after) = rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len()));
                value = values::attribute(&value, part)?;
                path = after;
            } else {
                let inside = path[1..].split_once(']');
                let (key, after) = inside.ok_or_else(|| invalid("a `[` in a format string is not closed"))?;
                let key = key.parse::<u32>().map_or_else(|_| Value::from(key), Value::from);
                value = values::item(&value, &key)?;
                path = after;
            }
        }
        Ok(value)
    }
}

/// The end of a field, whose specification may contain fields.
fn field_end(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    text.char_indices().find_map(|(at, c)| match c {
        '{' => {
            depth += 1;
            None
        }
        '}' if depth == 0 => Some(at),
        '}' => {
            depth -= 1;
            None
        }
        _ => None,
    })
}

/// `format(value, spec)`.
fn formatted(budget: &Budget, value: &Value, spec: &str) -> Result<String, Error> {
    if spec.is_empty() {
        return shown(budget, value);
    }
    charge_widths(budget, spec)?;
    let is_text = value.kind() == ValueKind::String;
    if !is_text && !matches!(value.kind(), ValueKind::Number | ValueKind::Bool) {
        return Err(invalid(format!("a {} takes no format specification, got `{spec}`", value.kind())));
    }
    budget.charge(value.as_str().map_or(0, str::len))?;
    // Braces cannot be used as fill characters.
    match spec.strip_suffix('%').filter(|_| !is_text) {
        Some(spec) => {
            let share = f64::try_from(without_bool(value))? * 100.0;
            // Padding includes the percent sign, which the engine does not support.
            let plain = spec.chars().all(|c| matches!(c, '+' | '.' | '0'..='9')) && !starts_with_width(spec);
            if !plain {
                return Err(invalid(format!("the format specification `{spec}%` is not implemented")));
            }
            Ok(format(FormatStyle::StrFormat, &format!("{{:{spec}f}}"), &[Value::from(share)])? + "%")
        }
        None => format(FormatStyle::StrFormat, &format!("{{:{spec}}}"), std::slice::from_ref(value)),
    }
}

fn starts_with_width(spec: &str) -> bool {
    spec.trim_start_matches('+').starts_with(|c: char| c.is_ascii_digit())
}

/// `text % args`: all arguments must be used, unless they are named or `may_be_left`.
pub(super) fn printf(budget: &Budget, text: &str, args: &[Value], may_be_left: bool) -> Result<Value, Error> {
    budget.charge(text.len())?;
    let map = match args {
        [map] if map.kind() == ValueKind::Map => Some(map),
        _ => None,
    };
    let mut next = args.iter();
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let mut name = None;
        if let Some(inside) = rest.strip_prefix('(') {
            let (inside, after) =
                inside.split_once(')').ok_or_else(|| invalid("a `(` of a format is not closed"))?;
            name = Some(inside);
            rest = after;
        }
        let mut argument =
            || next.next().cloned().ok_or_else(|| invalid("not enough arguments for the format"));
        let flags = taken(&mut rest, |c| matches!(c, '-' | '+' | ' ' | '#' | '0'));
        let mut flags = flags.to_owned();
        let mut width = taken(&mut rest, |c| c.is_ascii_digit()).to_owned();
        if let Some(after) = rest.strip_prefix('*') {
            let given = i64::try_from(argument()?)?;
            flags.push_str(if given < 0 { "-" } else { "" });
            width = given.unsigned_abs().to_string();
            rest = after;
        }
        let mut precision = None;
        if let Some(after) = rest.strip_prefix('.') {
            rest = after;
            precision = Some(taken(&mut rest, |c| c.is_ascii_digit()).to_owned());
            if let Some(after) = rest.strip_prefix('*') {
                precision = Some(i64::try_from(argument()?)?.max(0).to_string());
                rest = after;
            }
        }
        taken(&mut rest, |c| matches!(c, 'h' | 'l' | 'L'));
        let kind = rest.chars().next().ok_or_else(|| invalid("incomplete format"))?;
        rest = &rest[kind.len_utf8()..];
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match (name, map) {
            (None, _) => argument()?,
            (Some(name), Some(map)) => {
                let value = map.get_item(&Value::from(name))?;
                if value.is_undefined() {
                    return Err(invalid(format!("there is no `{name}` for the format")));
                }
                value
            }
            (Some(_), None) => return Err(invalid("a format with names takes a map")),
        };
        let digits = precision.as_ref().map_or(String::new(), |digits| format!(".{digits}"));
        charge_widths(budget, &format!("{width} {digits}"))?;
        out.push_str(&converted(budget, kind, &flags, &width, precision.as_deref(), &value)?);
    }
    out.push_str(rest);
    if map.is_none() && !may_be_left && next.next().is_some() {
        return Err(invalid("not all arguments converted during string formatting"));
    }
    Ok(Value::from(out))
}

/// Takes the characters at the start of `rest` for which `fits` holds.
fn taken<'a>(rest: &mut &'a str, fits: fn(char) -> bool) -> &'a str {
    let (start, after) = rest.split_at(rest.find(|c| !fits(c)).unwrap_or(rest.len()));
    *rest = after;
    start
}

/// Formats one value for a `%` conversion.
fn converted(
    budget: &Budget,
    kind: char,
    flags: &str,
    width: &str,
    precision: Option<&str>,
    value: &Value,
) -> Result<String, Error> {
    let number = without_bool(value);
    let number = match kind {
        's' | 'r' | 'c' => {
            let mut text = match (kind, value.as_str()) {
                ('r', _) => repr_of(value, budget)?,
                ('c', Some(text)) if text.chars().count() != 1 => {
                    return Err(invalid("%c takes one character"));
                }
                ('c', None) => {
                    let code = u32::try_from(number)?;
                    char::from_u32(code).ok_or_else(|| invalid("%c takes a character"))?.to_string()
                }
                _ => shown(budget, value)?,
            };
            if let Some(precision) = precision.filter(|_| kind != 'c') {
                text = text.chars().take(precision.parse().unwrap_or(0)).collect();
            }
            let side = if flags.contains('-') { Side::Right } else { Side::Left };
            let padded = pad(budget, &text, width.parse().unwrap_or(0), ' ', side)?;
            return Ok(padded.as_str().unwrap_or_default().to_owned());
        }
        _ if number.kind() != ValueKind::Number => {
            return Err(invalid(format!("%{kind} takes a number, got a {}", value.kind())));
        }
        'd' | 'i' | 'u' if !number.is_integer() => {
            let float = f64::try_from(number)?;
            if !float.is_finite() {
                return Err(invalid(format!("%{kind} takes a whole number, got {float}")));
            }
            Value::from(float.trunc() as i128)
        }
        'x' | 'X' | 'o' if !number.is_integer() => {
            return Err(invalid(format!("%{kind} takes a whole number, got a float")));
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => Value::from(f64::try_from(number)?),
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => number,
        other => return Err(invalid(format!("unsupported format character `{other}`"))),
    };
    let kind = if matches!(kind, 'i' | 'u') { 'd' } else { kind };
    let digits = precision.map_or(String::new(), |digits| format!(".{digits}"));
    format(FormatStyle::Printf, &format!("%{flags}{width}{digits}{kind}"), &[number])
}
