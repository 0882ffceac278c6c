//! Formatting of values as in Python: `str()` and `json.dumps()`.

use std::fmt::Write as _;

use minijinja::{
    Error,
    value::{Value, ValueKind},
};

use super::{
    budget::{Budget, MAX_DEPTH, nested_too_deep},
    scalar::{is_printable, order},
    values::{View, is_dict, is_list},
};

/// `str(value)`.
pub(super) fn display(value: &Value, out: &mut String, budget: &Budget) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => push(out, text, budget),
        None if value.is_undefined() => Ok(()),
        None => repr(value, out, budget, 0),
    }
}

/// `repr(value)`.
pub(super) fn repr_of(value: &Value, budget: &Budget) -> Result<String, Error> {
    let mut text = String::new();
    repr(value, &mut text, budget, 0)?;
    Ok(text)
}

fn push(out: &mut String, text: &str, budget: &Budget) -> Result<(), Error> {
    budget.charge(text.len())?;
    out.push_str(text);
    Ok(())
}

fn repr(value: &Value, out: &mut String, budget: &Budget, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(nested_too_deep());
    }
    match value.kind() {
        ValueKind::Undefined => push(out, "Undefined", budget),
        ValueKind::None => push(out, "None", budget),
        ValueKind::Bool => push(out, if value.is_true() { "True" } else { "False" }, budget),
        ValueKind::Number => push(out, &number(value), budget),
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out, budget),
        ValueKind::Iterable if let Some(view) = value.downcast_object_ref::<View>() => {
            push(out, view.name, budget)?;
            push(out, "(", budget)?;
            repr(&value.try_iter()?.collect::<Value>(), out, budget, depth + 1)?;
            push(out, ")", budget)
        }
        ValueKind::Seq | ValueKind::Iterable if !is_list(value) => push(out, &value.to_string(), budget),
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ("(", ")") } else { ("[", "]") };
            push(out, open, budget)?;
            let mut count = 0;
            for item in value.try_iter()? {
                push(out, if count > 0 { ", " } else { "" }, budget)?;
                repr(&item, out, budget, depth + 1)?;
                count += 1;
            }
            push(out, if value.is_tuple() && count == 1 { ",)" } else { close }, budget)
        }
        ValueKind::Map => {
            push(out, "{", budget)?;
            for (index, key) in value.try_iter()?.enumerate() {
                push(out, if index > 0 { ", " } else { "" }, budget)?;
                repr(&key, out, budget, depth + 1)?;
                push(out, ": ", budget)?;
                repr(&value.get_item(&key)?, out, budget, depth + 1)?;
            }
            push(out, "}", budget)
        }
        // Macros, loops and similar values display as short names.
        _ => push(out, &value.to_string(), budget),
    }
}

/// A string as formatted by Python's `repr`.
fn quoted(text: &str, out: &mut String, budget: &Budget) -> Result<(), Error> {
    budget.charge(text.len() * 4 + 2)?;
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_ascii_graphic() || c == ' ' || (!c.is_ascii() && is_printable(c)) => out.push(c),
            c => {
                let _ = match c as u32 {
                    code @ ..=0xff => write!(out, "\\x{code:02x}"),
                    code @ ..=0xffff => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
    Ok(())
}

/// A number as formatted by Python: floats always have a point or an exponent, exponents a sign and at least two digits.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else { return value.to_string() };
    if float.is_nan() {
        return "nan".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let magnitude = float.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{float:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = float.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

/// The options of `json.dumps`.
pub(super) struct Dumps {
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    sort_keys: bool,
}

impl Dumps {
    pub(super) fn new(
        indent: Option<String>,
        separators: Option<(String, String)>,
        ascii: bool,
        sort_keys: bool,
    ) -> Self {
        let item = if indent.is_some() { "," } else { ", " };
        let (item, key) = separators.unwrap_or((item.to_owned(), ": ".to_owned()));
        Self { indent, item, key, ascii, sort_keys }
    }

    pub(super) fn write(&self, value: &Value, out: &mut String, budget: &Budget) -> Result<(), Error> {
        self.value(value, out, budget, 0)
    }

    fn line(&self, out: &mut String, budget: &Budget, depth: usize) -> Result<(), Error> {
        let Some(indent) = &self.indent else { return Ok(()) };
        budget.charge(indent.len().saturating_mul(depth).saturating_add(1))?;
        out.push('\n');
        out.push_str(&indent.repeat(depth));
        Ok(())
    }

    fn value(&self, value: &Value, out: &mut String, budget: &Budget, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(nested_too_deep());
        }
        match value.kind() {
            ValueKind::None => push(out, "null", budget),
            ValueKind::Bool => push(out, if value.is_true() { "true" } else { "false" }, budget),
            ValueKind::Number => push(out, &json_number(value), budget),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out, budget),
            ValueKind::Seq | ValueKind::Iterable if is_list(value) => {
                push(out, "[", budget)?;
                let mut any = false;
                for item in value.try_iter()? {
                    push(out, if any { &self.item } else { "" }, budget)?;
                    any = true;
                    self.line(out, budget, depth + 1)?;
                    self.value(&item, out, budget, depth + 1)?;
                }
                if any {
                    self.line(out, budget, depth)?;
                }
                push(out, "]", budget)
            }
            ValueKind::Map if is_dict(value) => {
                push(out, "{", budget)?;
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                budget.charge(keys.len())?;
                if self.sort_keys {
                    keys.windows(2).try_for_each(|pair| order(&pair[0], &pair[1]).map(drop))?;
                    keys.sort();
                }
                for (index, key) in keys.iter().enumerate() {
                    push(out, if index > 0 { &self.item } else { "" }, budget)?;
                    self.line(out, budget, depth + 1)?;
                    match key.kind() {
                        ValueKind::String => self.string(key.as_str().unwrap_or_default(), out, budget)?,
                        // Python converts these keys to the strings of their JSON form.
                        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                            let mut name = String::new();
                            self.value(key, &mut name, budget, depth + 1)?;
                            self.string(&name, out, budget)?;
                        }
                        _ => return Err(not_json(key)),
                    }
                    push(out, &self.key, budget)?;
                    self.value(&value.get_item(key)?, out, budget, depth + 1)?;
                }
                if !keys.is_empty() {
                    self.line(out, budget, depth)?;
                }
                push(out, "}", budget)
            }
            _ => Err(not_json(value)),
        }
    }

    fn string(&self, text: &str, out: &mut String, budget: &Budget) -> Result<(), Error> {
        budget.charge(text.len() * 2 + 2)?;
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
        Ok(())
    }
}

fn json_number(value: &Value) -> String {
    match number(value).as_str() {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        other => other.to_owned(),
    }
}

fn not_json(value: &Value) -> Error {
    let message = format!("a value of type {} is not JSON serializable", value.kind());
    Error::new(minijinja::ErrorKind::InvalidOperation, message)
}
