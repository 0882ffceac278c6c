//! Jinja filters with Python's conversions: a text filter converts every value with `str()`.

use std::{fmt::Write as _, sync::Arc};

use minijinja::{
    Environment, Error, State, filters,
    value::{Kwargs, Rest, Tuple, Value, ValueKind, ValueOrKwargs},
};

use super::{
    arguments::{bind, by_name},
    budget::Budget,
    format, guard, python,
    scalar::{invalid, iterable},
    strings,
    text::{Dumps, display},
    values::{self, Generator},
};

const NO_ARGUMENTS: [(String, Value); 0] = [];

/// One of our filters: its value, and the arguments after it.
type Own = fn(&Budget, &Value, &[Value]) -> Result<Value, Error>;

/// Converts the arguments of one of the engine's filters.
type Names = fn(&[Value]) -> Result<Value, Error>;

pub(super) fn add(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let own: [(&str, Own); 36] = [
        ("upper", |b, value, args| plain(b, value, args, str::to_uppercase)),
        ("lower", |b, value, args| plain(b, value, args, str::to_lowercase)),
        ("capitalize", |b, value, args| plain(b, value, args, strings::capitalized)),
        ("title", |b, value, args| plain(b, value, args, titled)),
        ("trim", trim),
        ("replace", replace),
        ("wordcount", |b, value, _| Ok(Value::from(python::word_count(&text_of(b, value)?)))),
        ("escape", escape),
        ("e", escape),
        ("forceescape", escape),
        ("safe", |b, value, _| Ok(Value::from_safe_string(text_of(b, value)?))),
        ("string", |b, value, args| plain(b, value, args, str::to_owned)),
        ("urlencode", url_encoded),
        ("center", center),
        ("indent", indent),
        ("truncate", truncate),
        ("format", |b, value, args| format::printf(b, &text_of(b, value)?, args, false)),
        ("list", |b, value, _| guard::collect(b, iterable(value)?).map(Value::from)),
        ("reverse", reverse),
        ("join", join),
        ("length", |_, value, _| length(value)),
        ("count", |_, value, _| length(value)),
        ("first", |_, value, _| Ok(iterable(value)?.try_iter()?.next().unwrap_or_default())),
        ("last", last),
        ("items", items),
        ("batch", batch),
        ("slice", slices),
        ("default", default),
        ("d", default),
        ("int", int),
        ("float", float),
        ("abs", |_, value, _| filters::abs(super::scalar::without_bool(value))),
        ("attr", attr),
        ("round", round),
        ("sum", sum),
        ("tojson", to_json),
    ];
    for (name, filter) in own {
        let b = budget.clone();
        env.add_filter(name, move |value: &Value, args: Rest<ValueOrKwargs>| {
            b.charge_shallow(value)?;
            filter(&b, value, &args.into_values())
        });
    }
    // Filters that compare: nested values are charged.
    let comparing: [(&str, Names, Value); 6] = [
        (
            "dictsort",
            |a| by_name(a, ["case_sensitive", "by", "reverse"]),
            Value::from_function(filters::dictsort),
        ),
        ("min", |a| by_name(a, ["case_sensitive", "attribute"]), Value::from_function(filters::min)),
        ("max", |a| by_name(a, ["case_sensitive", "attribute"]), Value::from_function(filters::max)),
        (
            "sort",
            |a| by_name(a, ["reverse", "case_sensitive", "attribute"]),
            Value::from_function(filters::sort),
        ),
        (
            "groupby",
            |a| by_name(a, ["attribute", "default", "case_sensitive"]),
            Value::from_function(filters::groupby),
        ),
        ("unique", |a| by_name(a, ["case_sensitive", "attribute"]), Value::from_function(filters::unique)),
    ];
    for (name, names, filter) in comparing {
        let b = budget.clone();
        env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            args.iter().try_for_each(|value| b.charge_deep(value))?;
            let (value, args) = args.split_first().ok_or_else(|| invalid("a filter without a value"))?;
            iterable(value)?;
            let named = names(args)?;
            if matches!(name, "sort" | "min" | "max") && named.get_attr("attribute")?.is_undefined() {
                guard::assert_ordered(&b, value)?;
            }
            let result = filter.call(state, &[value.clone(), named])?;
            if name == "unique" { generator(&b, &result) } else { Ok(result) }
        });
    }
    let lazy = [
        ("select", Value::from_function(filters::select)),
        ("reject", Value::from_function(filters::reject)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("map", Value::from_function(filters::map)),
    ];
    for (name, filter) in lazy {
        let b = budget.clone();
        env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            args.iter().try_for_each(|value| b.charge_shallow(value))?;
            // As in Jinja, these treat none and similar values as an empty list.
            if args.first().is_none_or(|value| !value.is_true()) {
                return Ok(Generator::value(Vec::new()));
            }
            generator(&b, &filter.call(state, &args)?)
        });
    }
}

/// `str(value)`.
fn text_of(budget: &Budget, value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    display(value, &mut text, budget)?;
    Ok(text)
}

/// A text filter without arguments.
fn plain<T: Into<String>>(
    budget: &Budget,
    value: &Value,
    args: &[Value],
    change: impl FnOnce(&str) -> T,
) -> Result<Value, Error> {
    bind(args, [])?;
    Ok(Value::from(change(&text_of(budget, value)?).into()))
}

fn escape(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    bind(args, [])?;
    let text = text_of(budget, value)?;
    Ok(Value::from_safe_string(if value.is_safe() { text } else { super::scalar::escaped(&text) }))
}

fn generator(budget: &Budget, list: &Value) -> Result<Value, Error> {
    guard::collect(budget, list).map(Generator::value)
}

fn titled(text: &str) -> String {
    let is_start = |c: char| matches!(c, '-' | '(' | '{' | '[' | '<') || super::scalar::is_space(c);
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = !is_start(c);
    }
    out
}

fn trim(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [chars] = bind(args, ["chars"])?;
    let text = text_of(budget, value)?;
    Ok(Value::from(match chars.as_ref().and_then(Value::as_str) {
        Some(chars) => text.trim_matches(|c| chars.contains(c)),
        None => super::scalar::stripped(&text),
    }))
}

fn replace(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [old, new, count] = bind(args, ["old", "new", "count"])?;
    let (Some(old), Some(new)) = (old, new) else {
        return Err(invalid("replace: expected an old and a new text"));
    };
    let count = match count.filter(|count| !count.is_none()) {
        Some(count) => usize::try_from(i64::try_from(count)?).ok(),
        None => None,
    };
    let (text, old, new) = (text_of(budget, value)?, text_of(budget, &old)?, text_of(budget, &new)?);
    guard::replace(budget, &text, &old, &new, count)
}

fn url_encoded(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    bind(args, [])?;
    if value.kind() == ValueKind::String || !(values::is_dict(value) || values::is_list(value)) {
        return Ok(Value::from(python::url_encoded(&text_of(budget, value)?, true)));
    }
    let pairs = match values::is_dict(value) {
        true => pairs_of(budget, value)?,
        false => guard::collect(budget, value)?,
    };
    let mut out = String::new();
    for pair in pairs {
        let pair = guard::collect(budget, &pair)?;
        let [key, value] = pair.as_slice() else { return Err(invalid("urlencode: expected pairs")) };
        if !out.is_empty() {
            out.push('&');
        }
        let part =
            |value| Ok::<_, Error>(python::url_encoded(&text_of(budget, value)?, false).replace("%20", "+"));
        write!(out, "{}={}", part(key)?, part(value)?).map_err(Error::from)?;
    }
    Ok(Value::from(out))
}

fn center(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [width] = bind(args, ["width"])?;
    let width = usize::try_from(width.map_or(Ok(80), i64::try_from)?).unwrap_or(0);
    super::pad::pad(budget, &text_of(budget, value)?, width, ' ', super::pad::Side::Both)
}

fn indent(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [width, first, blank] = bind(args, ["width", "first", "blank"])?;
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let text =
        value.as_str().ok_or_else(|| invalid(format!("indent takes a text, got a {}", value.kind())))?;
    let indentation = match &width {
        Some(width) if width.kind() == ValueKind::String => text_of(budget, width)?,
        other => {
            let width = other.clone().map_or(Ok(4), i64::try_from)?;
            let width = usize::try_from(width).unwrap_or(0);
            budget.charge(width)?;
            " ".repeat(width)
        }
    };
    guard::indent(budget, text, &indentation, is_true(first), is_true(blank))
}

fn truncate(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [length, kill_words, end, leeway] = bind(args, ["length", "killwords", "end", "leeway"])?;
    let number = |value: Option<Value>, or: i64| match value.filter(|value| !value.is_none()) {
        Some(value) => i64::try_from(value),
        None => Ok(or),
    };
    let (length, leeway) = (number(length, 255)?, number(leeway, 5)?);
    let end = end.map_or(Ok("...".to_owned()), |end| text_of(budget, &end))?;
    let is_list = value.kind() != ValueKind::String;
    if value.is_undefined() {
        return Ok(value.clone());
    }
    if is_list && value.len().is_some_and(|len| len as i64 <= length.saturating_add(leeway)) {
        return Ok(value.clone());
    }
    let text =
        value.as_str().ok_or_else(|| invalid(format!("truncate takes a text, got a {}", value.kind())))?;
    let kept = length - end.chars().count() as i64;
    let (Ok(kept), true) = (usize::try_from(kept), leeway >= 0) else {
        return Err(invalid(format!("truncate: expected a length for the end `{end}`, got {length}")));
    };
    if text.chars().count() as i64 <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let at = text.char_indices().nth(kept).map_or(text.len(), |(at, _)| at);
    let mut text = &text[..at];
    if !kill_words.is_some_and(|kill| kill.is_true()) {
        text = text.rsplit_once(' ').map_or(text, |(before, _)| before);
    }
    Ok(Value::from([text, &end].concat()))
}

fn reverse(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    bind(args, [])?;
    if let Some(text) = value.as_str() {
        budget.charge(text.len())?;
        return Ok(Value::from(text.chars().rev().collect::<String>()));
    }
    let mut items = guard::collect(budget, iterable(value)?)?;
    items.reverse();
    // Values that cannot be read backwards are collected in a list.
    let is_generator = value.downcast_object_ref::<Generator>().is_some();
    Ok(if is_generator { Value::from(items) } else { Generator::value(items) })
}

/// The value at a path such as `a.b.0`.
fn at_path(value: &Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else { return values::item(value, path) };
    path.split('.').try_fold(value.clone(), |value, part| match part.parse::<u32>() {
        Ok(index) => values::item(&value, &Value::from(index)),
        Err(_) => values::item(&value, &Value::from(part)),
    })
}

fn join(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [separator, attribute] = bind(args, ["d", "attribute"])?;
    let separator = separator.map_or(Ok(String::new()), |separator| text_of(budget, &separator))?;
    let value = iterable(value)?;
    match attribute.filter(|attribute| !attribute.is_none()) {
        None => guard::join(budget, value, &separator),
        Some(attribute) => {
            let items = guard::collect(budget, value)?;
            let parts: Result<Vec<Value>, Error> =
                items.iter().map(|item| at_path(item, &attribute)).collect();
            guard::join(budget, &Value::from(parts?), &separator)
        }
    }
}

fn length(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Value::from(0)),
        kind => value.len().map(Value::from).ok_or_else(|| invalid(format!("a {kind} has no length"))),
    }
}

fn last(budget: &Budget, value: &Value, _: &[Value]) -> Result<Value, Error> {
    if value.downcast_object_ref::<Generator>().is_some() {
        return Err(invalid("a generator cannot be reversed"));
    }
    Ok(guard::collect(budget, iterable(value)?)?.pop().unwrap_or_default())
}

/// Keys with their values.
pub(super) fn pairs_of(budget: &Budget, map: &Value) -> Result<Vec<Value>, Error> {
    let keys = guard::collect(budget, map)?;
    budget.charge(keys.len().saturating_mul(48))?;
    let pair = |key: Value| Ok(Value::from(Tuple::from([key.clone(), map.get_item(&key)?])));
    keys.into_iter().map(pair).collect()
}

fn items(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    bind(args, [])?;
    match value.is_undefined() {
        true => Ok(Generator::value(Vec::new())),
        false if values::is_dict(value) => pairs_of(budget, value).map(Generator::value),
        false => Err(invalid("can only get item pairs from a map")),
    }
}

fn batch(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [count, fill] = bind(args, ["linecount", "fill_with"])?;
    let count = usize::try_from(count.ok_or_else(|| invalid("batch: expected a number of items"))?)?;
    let fill = fill.filter(|fill| !fill.is_none());
    python::batch(budget, iterable(value)?, count, fill.as_ref()).map(Generator::value)
}

fn slices(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [count, fill] = bind(args, ["slices", "fill_with"])?;
    let count = usize::try_from(count.ok_or_else(|| invalid("slice: expected a number of lists"))?)?;
    let fill = fill.filter(|fill| !fill.is_none());
    python::slices(budget, iterable(value)?, count, fill.as_ref()).map(Generator::value)
}

fn default(_: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [other, boolean] = bind(args, ["default_value", "boolean"])?;
    let replaced = value.is_undefined() || (boolean.is_some_and(|b| b.is_true()) && !value.is_true());
    Ok(if replaced { other.unwrap_or_else(|| Value::from("")) } else { value.clone() })
}

fn assert_defined(value: &Value) -> Result<(), Error> {
    if value.is_undefined() { Err(Error::from(minijinja::ErrorKind::UndefinedError)) } else { Ok(()) }
}

fn int(_: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [default, base] = bind(args, ["default", "base"])?;
    assert_defined(value)?;
    let base = base.map_or(Ok(10), u32::try_from)?;
    let default = default.unwrap_or_else(|| Value::from(0));
    let whole = |float: f64| float.is_finite().then(|| int_value(float.trunc() as i128));
    Ok(match value.kind() {
        ValueKind::Bool => super::scalar::without_bool(value),
        ValueKind::Number if value.is_integer() => value.clone(),
        ValueKind::Number => f64::try_from(value.clone()).ok().and_then(whole).unwrap_or(default),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            python::parse_int(text, base)
                .map(int_value)
                .or_else(|| python::parse_float(text).and_then(whole))
                .unwrap_or(default)
        }
        _ => default,
    })
}

fn int_value(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)
}

fn float(_: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [default] = bind(args, ["default"])?;
    assert_defined(value)?;
    let number = match value.as_str() {
        Some(text) => python::parse_float(text),
        None => f64::try_from(super::scalar::without_bool(value)).ok().filter(|_| !value.is_none()),
    };
    Ok(number.map(Value::from).or(default).unwrap_or_else(|| Value::from(0.0)))
}

fn round(_: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [precision, method] = bind(args, ["precision", "method"])?;
    let precision = precision.map(i32::try_from).transpose()?;
    let method =
        method.as_ref().map(|method| method.as_str().ok_or_else(|| invalid("round: a method is a text")));
    filters::round(
        super::scalar::without_bool(value),
        precision,
        method.transpose()?,
        Kwargs::from_iter(NO_ARGUMENTS),
    )
}

fn sum(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [attribute, start] = bind(args, ["attribute", "start"])?;
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    let start = start.unwrap_or_else(|| Value::from(0));
    guard::collect(budget, iterable(value)?)?.iter().try_fold(start, |sum, item| match &attribute {
        Some(attribute) => guard::add(budget, &sum, &at_path(item, attribute)?),
        None => guard::add(budget, &sum, item),
    })
}

fn attr(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [name] = bind(args, ["name"])?;
    values::own_attribute(value, &text_of(budget, &name.unwrap_or_default())?)
}

fn to_json(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [ascii, indent, separators, sort_keys] =
        bind(args, ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) if indent.kind() == ValueKind::String => Some(text_of(budget, &indent)?),
        Some(indent) => {
            let width = usize::try_from(i64::try_from(indent)?).unwrap_or(0);
            budget.charge(width)?;
            Some(" ".repeat(width))
        }
    };
    let separators = match separators.filter(|separators| !separators.is_none()) {
        None => None,
        Some(separators) => match guard::collect(budget, &separators)?.as_slice() {
            [item, key] => Some((text_of(budget, item)?, text_of(budget, key)?)),
            _ => return Err(invalid("separators must be two strings")),
        },
    };
    let dumps = Dumps::new(indent, separators, is_true(ascii), is_true(sort_keys));
    let mut text = String::new();
    dumps.write(value, &mut text, budget)?;
    Ok(Value::from(text))
}
