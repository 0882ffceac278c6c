//! The operators, filters, tests, functions and Python methods available to a template, all charged to the budget.

use std::{fmt, sync::Arc, time::SystemTime};

use minijinja::{
    Environment, Error, ErrorKind, State, filters, functions,
    value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs},
};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::{
    budget::Budget,
    guard, python,
    text::{Dumps, display},
    time::strftime,
};

/// Marks an error that the template raised.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Marks an error as an unsupported part of the language.
#[derive(Debug)]
pub(super) struct LeftOut {
    pub(super) feature: &'static str,
    /// 0 if the engine adds the line.
    pub(super) line: usize,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not implemented", self.feature)
    }
}

impl std::error::Error for LeftOut {}

/// Functions called in place of the replaced instructions; a template cannot contain these names.
pub(super) mod call {
    pub(in crate::chat) const ADD: &str = "<+>";
    pub(in crate::chat) const CONCAT: &str = "<~>";
    pub(in crate::chat) const MULTIPLY: &str = "<*>";
    pub(in crate::chat) const SLICE: &str = "<[:]>";
    pub(in crate::chat) const EQUAL: &str = "<==>";
    pub(in crate::chat) const UNEQUAL: &str = "<!=>";
    pub(in crate::chat) const LESS: &str = "<lt>";
    pub(in crate::chat) const LESS_EQUAL: &str = "<le>";
    pub(in crate::chat) const GREATER: &str = "<gt>";
    pub(in crate::chat) const GREATER_EQUAL: &str = "<ge>";
    pub(in crate::chat) const IN: &str = "<in>";
    pub(in crate::chat) const REMAINDER: &str = "<%>";
    pub(in crate::chat) const CHARGE: &str = "<charge>";
    pub(in crate::chat) const LISTS: &str = "<*args>";
    pub(in crate::chat) const KWARGS: &str = "<**kwargs>";
}

/// The engine, limited to `fuel` instructions and to `budget` for data.
pub(super) fn environment(budget: &Arc<Budget>, fuel: u64, now: SystemTime) -> Environment<'static> {
    let mut env = Environment::empty();
    env.set_fuel(Some(fuel));
    let b = budget.clone();
    env.set_formatter(move |out, _, value| {
        let mut text = String::new();
        display(value, &mut text, &b)?;
        out.write_str(&text).map_err(Error::from)
    });
    let b = budget.clone();
    env.set_unknown_method_callback(move |state, value, method, args| {
        call_method(&b, state, value, method, args)
    });
    add_operators(&mut env, budget);
    add_filters(&mut env, budget);
    add_tests(&mut env, budget);
    add_functions(&mut env, budget, now);
    env
}

fn add_operators(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    type Operator = fn(&Budget, &Value, &Value) -> Result<Value, Error>;
    let operators: [(&str, Operator); 11] = [
        (call::ADD, guard::add),
        (call::CONCAT, guard::concat),
        (call::MULTIPLY, guard::multiply),
        (call::EQUAL, |b, x, y| compared(b, x, y, |x, y| x == y)),
        (call::UNEQUAL, |b, x, y| compared(b, x, y, |x, y| x != y)),
        (call::LESS, |b, x, y| compared(b, x, y, |x, y| x < y)),
        (call::LESS_EQUAL, |b, x, y| compared(b, x, y, |x, y| x <= y)),
        (call::GREATER, |b, x, y| compared(b, x, y, |x, y| x > y)),
        (call::GREATER_EQUAL, |b, x, y| compared(b, x, y, |x, y| x >= y)),
        (call::IN, contains),
        (call::REMAINDER, python::remainder),
    ];
    for (name, operator) in operators {
        let b = budget.clone();
        env.add_filter(name, move |x: &Value, y: &Value| operator(&b, x, y));
    }
    let b = budget.clone();
    env.add_filter(call::SLICE, move |value: &Value, start: &Value, stop: &Value, step: &Value| {
        guard::slice(&b, value, start, stop, step)
    });
    let b = budget.clone();
    env.add_filter(call::CHARGE, move |value: &Value| {
        b.charge_deep(value)?;
        Ok::<_, Error>(value.clone())
    });
    let b = budget.clone();
    env.add_filter(call::LISTS, move |lists: Rest<ValueOrKwargs>| {
        let mut items = Vec::new();
        for list in lists.into_values() {
            items.extend(guard::collect(&b, &list)?);
        }
        Ok::<_, Error>(Value::from(items))
    });
    let b = budget.clone();
    env.add_filter(call::KWARGS, move |maps: Rest<ValueOrKwargs>| python::merged(&b, &maps.into_values()));
}

fn compared(
    budget: &Budget,
    x: &Value,
    y: &Value,
    compare: fn(&Value, &Value) -> bool,
) -> Result<Value, Error> {
    budget.charge_deep(x)?;
    budget.charge_deep(y)?;
    Ok(Value::from(compare(x, y)))
}

/// `value in container`.
fn contains(budget: &Budget, value: &Value, container: &Value) -> Result<Value, Error> {
    if let (Some(text), Some(part)) = (container.as_str(), value.as_str()) {
        budget.charge(text.len() + part.len())?;
        return Ok(Value::from(text.contains(part)));
    }
    match container.kind() {
        ValueKind::Undefined => Ok(Value::from(false)),
        ValueKind::Map => {
            budget.charge_deep(value)?;
            Ok(Value::from(container.get_item(value).is_ok_and(|found| !found.is_undefined())))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            budget.charge_deep(container)?;
            budget.charge_deep(value)?;
            Ok(Value::from(container.try_iter()?.any(|item| item == *value)))
        }
        kind => {
            let message = format!("cannot search in a value of type {kind}");
            Err(Error::new(ErrorKind::InvalidOperation, message))
        }
    }
}

/// Cost model of a filter's arguments.
#[derive(Clone, Copy)]
enum Cost {
    /// The filter accesses at most the items themselves.
    Shallow,
    /// The filter compares or converts nested values.
    Deep,
}

fn add_filters(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    use Cost::{Deep, Shallow};
    let builtin = [
        ("safe", Shallow, Value::from_function(filters::safe)),
        ("lower", Shallow, Value::from_function(filters::lower)),
        ("upper", Shallow, Value::from_function(filters::upper)),
        ("title", Shallow, Value::from_function(filters::title)),
        ("capitalize", Shallow, Value::from_function(filters::capitalize)),
        ("length", Shallow, Value::from_function(filters::length)),
        ("count", Shallow, Value::from_function(filters::length)),
        ("dictsort", Deep, Value::from_function(filters::dictsort)),
        ("items", Shallow, Value::from_function(filters::items)),
        ("trim", Shallow, Value::from_function(filters::trim)),
        ("default", Shallow, Value::from_function(filters::default)),
        ("d", Shallow, Value::from_function(filters::default)),
        ("round", Shallow, Value::from_function(filters::round)),
        ("abs", Shallow, Value::from_function(filters::abs)),
        ("int", Shallow, Value::from_function(filters::int)),
        ("float", Shallow, Value::from_function(filters::float)),
        ("attr", Shallow, Value::from_function(filters::attr)),
        ("first", Shallow, Value::from_function(filters::first)),
        ("last", Shallow, Value::from_function(filters::last)),
        ("min", Deep, Value::from_function(filters::min)),
        ("max", Deep, Value::from_function(filters::max)),
        ("sort", Deep, Value::from_function(filters::sort)),
        ("bool", Shallow, Value::from_function(filters::bool)),
        ("sum", Deep, Value::from_function(filters::sum)),
        ("select", Shallow, Value::from_function(filters::select)),
        ("reject", Shallow, Value::from_function(filters::reject)),
        ("selectattr", Shallow, Value::from_function(filters::selectattr)),
        ("rejectattr", Shallow, Value::from_function(filters::rejectattr)),
        ("map", Shallow, Value::from_function(filters::map)),
        ("groupby", Deep, Value::from_function(filters::groupby)),
        ("unique", Deep, Value::from_function(filters::unique)),
        ("urlencode", Deep, Value::from_function(python::url_encoded)),
        ("wordcount", Shallow, Value::from_function(python::word_count)),
        ("escape", Shallow, Value::from_function(python::escaped)),
        ("e", Shallow, Value::from_function(python::escaped)),
        ("forceescape", Shallow, Value::from_function(python::escaped)),
    ];
    for (name, cost, filter) in builtin {
        let b = budget.clone();
        env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            args.iter().try_for_each(|value| match cost {
                Cost::Shallow => b.charge_shallow(value),
                Cost::Deep => b.charge_deep(value),
            })?;
            filter.call(state, &args)
        });
    }
    let b = budget.clone();
    env.add_filter("string", move |value: &Value| {
        let mut text = String::new();
        display(value, &mut text, &b)?;
        Ok::<_, Error>(Value::from(text))
    });
    let b = budget.clone();
    env.add_filter("list", move |value: &Value| match value.as_str() {
        Some(text) => {
            b.charge(text.len().saturating_mul(24))?;
            Ok(Value::from(text.chars().map(Value::from).collect::<Vec<_>>()))
        }
        None => guard::collect(&b, value).map(Value::from),
    });
    let b = budget.clone();
    env.add_filter("reverse", move |value: &Value| match value.as_str() {
        Some(text) => {
            b.charge(text.len())?;
            Ok(Value::from(text.chars().rev().collect::<String>()))
        }
        None => guard::collect(&b, value).map(|mut items| {
            items.reverse();
            Value::from(items)
        }),
    });
    let b = budget.clone();
    env.add_filter("join", move |value: &Value, separator: Option<&str>| {
        guard::join(&b, value, separator.unwrap_or(""))
    });
    let b = budget.clone();
    env.add_filter("replace", move |text: &str, from: &str, to: &str, count: Option<usize>| {
        guard::replace(&b, text, from, to, count)
    });
    let b = budget.clone();
    env.add_filter(
        "indent",
        move |text: &str, width: Option<usize>, first: Option<bool>, blank: Option<bool>, kwargs: Kwargs| {
            let width = width.or(kwargs.get("width")?).unwrap_or(4);
            let first = first.or(kwargs.get("first")?).unwrap_or(false);
            let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
            kwargs.assert_all_used()?;
            guard::indent(&b, text, width, first, blank)
        },
    );
    let b = budget.clone();
    env.add_filter("format", move |format: &str, args: Rest<ValueOrKwargs>| {
        python::printf(&b, format, args.into_values())
    });
    let b = budget.clone();
    env.add_filter("batch", move |list: &Value, count: usize, fill: Option<Value>| {
        python::batch(&b, list, count, fill.as_ref())
    });
    let b = budget.clone();
    env.add_filter("slice", move |list: &Value, count: usize, fill: Option<Value>| {
        python::slices(&b, list, count, fill.as_ref())
    });
    let b = budget.clone();
    env.add_filter("center", move |text: &str, width: Option<usize>| {
        python::pad(&b, text, width.unwrap_or(80), ' ', python::Side::Both)
    });
    let b = budget.clone();
    env.add_filter("tojson", move |value: &Value, indent: Option<usize>, kwargs: Kwargs| {
        let indent = indent.or(kwargs.get("indent")?);
        let separators: Option<Vec<String>> = kwargs.get("separators")?;
        let separators = match separators.map(<[String; 2]>::try_from) {
            None => None,
            Some(Ok([item, key])) => Some((item, key)),
            Some(Err(_)) => {
                return Err(Error::new(ErrorKind::InvalidOperation, "separators must be two strings"));
            }
        };
        let ascii: Option<bool> = kwargs.get("ensure_ascii")?;
        let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
        kwargs.assert_all_used()?;
        let dumps = Dumps::new(indent, separators, ascii.unwrap_or(false), sort_keys.unwrap_or(false));
        let mut text = String::new();
        dumps.write(value, &mut text, &b)?;
        Ok(Value::from(text))
    });
}

fn add_tests(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    use minijinja::tests;
    env.add_test("undefined", tests::is_undefined);
    env.add_test("defined", tests::is_defined);
    env.add_test("none", tests::is_none);
    env.add_test("boolean", tests::is_boolean);
    env.add_test("odd", tests::is_odd);
    env.add_test("even", tests::is_even);
    env.add_test("divisibleby", tests::is_divisibleby);
    env.add_test("number", tests::is_number);
    env.add_test("integer", tests::is_integer);
    env.add_test("float", tests::is_float);
    env.add_test("string", tests::is_string);
    // As in Python's Jinja, strings and maps are sequences too, and so is what is not defined: an empty one.
    env.add_test("sequence", |v: &Value| {
        matches!(v.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined)
    });
    env.add_test("iterable", |v: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(v.kind(), String | Seq | Map | Iterable | Undefined)
    });
    env.add_test("mapping", tests::is_mapping);
    env.add_test("true", tests::is_true);
    env.add_test("false", tests::is_false);
    env.add_test("sameas", tests::is_sameas);
    env.add_test("lower", tests::is_lower);
    env.add_test("upper", tests::is_upper);
    env.add_test("escaped", |_: &Value| false);
    env.add_test("callable", python::is_callable);
    env.add_test("filter", tests::is_filter);
    env.add_test("test", tests::is_test);
    type Comparison = fn(&Value, &Value) -> bool;
    let comparisons: [(&[&str], Comparison); 6] = [
        (&["eq", "equalto", "=="], |x, y| x == y),
        (&["ne", "!="], |x, y| x != y),
        (&["lt", "lessthan", "<"], |x, y| x < y),
        (&["le", "<="], |x, y| x <= y),
        (&["gt", "greaterthan", ">"], |x, y| x > y),
        (&["ge", ">="], |x, y| x >= y),
    ];
    for (names, comparison) in comparisons {
        for &name in names {
            let b = budget.clone();
            env.add_test(name, move |x: &Value, y: &Value| compared(&b, x, y, comparison));
        }
    }
    let b = budget.clone();
    env.add_test("in", move |value: &Value, container: &Value| contains(&b, value, container));
}

fn add_functions(env: &mut Environment<'_>, budget: &Arc<Budget>, now: SystemTime) {
    env.add_function("range", functions::range);
    for (name, function) in [
        ("dict", Value::from_function(functions::dict)),
        ("namespace", Value::from_function(functions::namespace)),
    ] {
        let b = budget.clone();
        env.add_function(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            args.iter().try_for_each(|value| b.charge_shallow(value))?;
            function.call(state, &args)
        });
    }
    let b = budget.clone();
    env.add_function("joiner", move |separator: Option<Value>| python::joiner(&b, separator));
    let b = budget.clone();
    env.add_function("cycler", move |items: Rest<Value>| python::cycler(&b, items.to_vec()));
    env.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        // Truncated: the relevant part of a message is at its start.
        let message: String = message.to_string().chars().take(1000).collect();
        Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
    });
    env.add_function("strftime_now", move |format: &str| {
        strftime(now, format).map_err(|directive| {
            let message = format!("strftime_now does not support the directive {directive}");
            Error::new(ErrorKind::InvalidOperation, message)
        })
    });
}

/// Python methods of strings, lists and maps.
fn call_method(
    budget: &Budget,
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    budget.charge_shallow(value)?;
    args.iter().try_for_each(|arg| budget.charge_shallow(arg))?;
    match (method, value.as_str()) {
        ("replace", Some(text)) => {
            let (from, to, count): (&str, &str, Option<i64>) = minijinja::value::from_args(args)?;
            // A negative count replaces all occurrences.
            guard::replace(budget, text, from, to, count.and_then(|n| usize::try_from(n).ok()))
        }
        ("join", Some(separator)) => {
            let (items,): (&Value,) = minijinja::value::from_args(args)?;
            guard::join(budget, items, separator)
        }
        ("format", Some(text)) => python::str_format(budget, text, args),
        // Each piece is a separate value of 24 bytes.
        ("split" | "splitlines", Some(text)) => {
            budget.charge(text.len().saturating_mul(24))?;
            unknown_method_callback(state, value, method, args)
        }
        ("count", None) => {
            budget.charge_deep(value)?;
            unknown_method_callback(state, value, method, args)
        }
        (_, Some(text)) => match python::string_method(budget, text, method, args)? {
            Some(result) => Ok(result),
            None => unknown_method_callback(state, value, method, args),
        },
        ("index", None) => python::list_index(budget, value, args),
        ("copy", None) => Ok(value.clone()),
        _ => unknown_method_callback(state, value, method, args),
    }
}
