//! The operators, filters, tests, functions and Python methods available to a template, all charged to the budget.

use std::{cmp::Ordering, fmt, sync::Arc, time::SystemTime};

use minijinja::{
    Environment, Error, ErrorKind, State, functions,
    value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args},
};

use super::{
    budget::Budget,
    filters, guard, python, strings,
    text::display,
    time::strftime,
    values::{self, Generator, Range, View},
};

/// Marks an error raised by the template.
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
    /// 0 = filled in by the engine.
    pub(super) line: usize,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not implemented", self.feature)
    }
}

impl std::error::Error for LeftOut {}

/// Functions that replace instructions; a template cannot contain these names.
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
    pub(in crate::chat) const ATTRIBUTE: &str = "<.>";
    pub(in crate::chat) const ITEM: &str = "<[]>";
    pub(in crate::chat) const ITERATED: &str = "<for>";
    pub(in crate::chat) const PRIVATE: &str = "<._>";
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
    filters::add(&mut env, budget);
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
        (call::LESS, |b, x, y| ordered(b, x, y, Ordering::is_lt)),
        (call::LESS_EQUAL, |b, x, y| ordered(b, x, y, Ordering::is_le)),
        (call::GREATER, |b, x, y| ordered(b, x, y, Ordering::is_gt)),
        (call::GREATER_EQUAL, |b, x, y| ordered(b, x, y, Ordering::is_ge)),
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
    env.add_filter(call::ATTRIBUTE, |value: &Value, name: &str| values::attribute(value, name));
    env.add_filter(call::ITEM, values::item);
    let b = budget.clone();
    env.add_filter(call::ITERATED, move |value: &Value| match value.downcast_object_ref::<Generator>() {
        // A loop needs the number of items.
        Some(_) => guard::collect(&b, value).map(Value::from),
        None => super::scalar::iterable(value).cloned(),
    });
    env.add_filter(call::PRIVATE, |_: &Value| -> Result<Value, Error> {
        let message = "a namespace cannot have names that start with an underscore";
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
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

/// `x < y` and similar comparisons of values that Python orders.
fn ordered(budget: &Budget, x: &Value, y: &Value, is_right: fn(Ordering) -> bool) -> Result<Value, Error> {
    budget.charge_deep(x)?;
    budget.charge_deep(y)?;
    Ok(Value::from(super::scalar::order(x, y)?.is_some_and(is_right)))
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
            if values::is_list(value) && !value.is_tuple() || value.kind() == ValueKind::Map {
                let message = format!("a {} is no key of a map", value.kind());
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
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

fn add_tests(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    use minijinja::tests;
    env.add_test("undefined", tests::is_undefined);
    env.add_test("defined", tests::is_defined);
    env.add_test("none", tests::is_none);
    env.add_test("boolean", tests::is_boolean);
    env.add_test("odd", |v: &Value| python::remainder_of_two(v).map(|rest| rest == 1));
    env.add_test("even", |v: &Value| python::remainder_of_two(v).map(|rest| rest == 0));
    let b = budget.clone();
    env.add_test("divisibleby", move |v: &Value, by: &Value| {
        Ok::<_, Error>(!python::remainder(&b, v, by)?.is_true())
    });
    env.add_test("number", |v: &Value| matches!(v.kind(), ValueKind::Bool | ValueKind::Number));
    env.add_test("integer", tests::is_integer);
    env.add_test("float", tests::is_float);
    env.add_test("string", tests::is_string);
    // As in Python's Jinja, strings, maps and undefined values (as an empty one) are sequences, too.
    env.add_test("sequence", |v: &Value| {
        matches!(v.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined)
    });
    env.add_test("iterable", |v: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(v.kind(), String | Seq | Map | Iterable | Undefined)
    });
    env.add_test("mapping", values::is_dict);
    env.add_test("true", tests::is_true);
    env.add_test("false", tests::is_false);
    env.add_test("sameas", tests::is_sameas);
    for (name, method) in [("lower", "islower"), ("upper", "isupper")] {
        let b = budget.clone();
        env.add_test(name, move |v: &Value| {
            let mut text = String::new();
            display(v, &mut text, &b)?;
            strings::call(&b, &text, method, &[])
        });
    }
    env.add_test("escaped", |_: &Value| false);
    env.add_test("callable", python::is_callable);
    env.add_test("filter", tests::is_filter);
    env.add_test("test", tests::is_test);
    type Comparison = fn(&Budget, &Value, &Value) -> Result<Value, Error>;
    let comparisons: [(&[&str], Comparison); 6] = [
        (&["eq", "equalto", "=="], |b, x, y| compared(b, x, y, |x, y| x == y)),
        (&["ne", "!="], |b, x, y| compared(b, x, y, |x, y| x != y)),
        (&["lt", "lessthan", "<"], |b, x, y| ordered(b, x, y, Ordering::is_lt)),
        (&["le", "<="], |b, x, y| ordered(b, x, y, Ordering::is_le)),
        (&["gt", "greaterthan", ">"], |b, x, y| ordered(b, x, y, Ordering::is_gt)),
        (&["ge", ">="], |b, x, y| ordered(b, x, y, Ordering::is_ge)),
    ];
    for (names, comparison) in comparisons {
        for &name in names {
            let b = budget.clone();
            env.add_test(name, move |x: &Value, y: &Value| comparison(&b, x, y));
        }
    }
    let b = budget.clone();
    env.add_test("in", move |value: &Value, container: &Value| contains(&b, value, container));
}

fn add_functions(env: &mut Environment<'_>, budget: &Arc<Budget>, now: SystemTime) {
    env.add_function("range", |start: i64, stop: Option<i64>, step: Option<i64>| {
        let (start, stop) = stop.map_or((0, start), |stop| (start, stop));
        let step = step.unwrap_or(1);
        if step == 0 {
            return Err(Error::new(ErrorKind::InvalidOperation, "range: the step must not be 0"));
        }
        // Jinja's sandbox has the same limit.
        let limit = || Error::new(ErrorKind::InvalidOperation, "range: more than 100000 items");
        Range::value(start, stop, step, 100_000).ok_or_else(limit)
    });
    let b = budget.clone();
    env.add_function("dict", move |args: Rest<ValueOrKwargs>| dict(&b, &args.into_values()));
    let b = budget.clone();
    let namespace = Value::from_function(functions::namespace);
    env.add_function("namespace", move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        namespace.call(state, &[dict(&b, &args.into_values())?])
    });
    let b = budget.clone();
    env.add_function("joiner", move |separator: Option<Value>| python::joiner(&b, separator));
    let b = budget.clone();
    env.add_function("cycler", move |items: Rest<Value>| python::cycler(&b, items.to_vec()));
    let b = budget.clone();
    env.add_function("raise_exception", move |message: &Value| -> Result<Value, Error> {
        let mut text = String::new();
        display(message, &mut text, &b)?;
        // Truncated: the relevant part of a message is at its start.
        let message: String = text.chars().take(1000).collect();
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
    if let Some(text) = value.as_str() {
        return strings::call(budget, text, method, args);
    }
    match (method, value.kind()) {
        (_, ValueKind::Map) if values::is_dict(value) => map_method(budget, value, method, args),
        ("copy", ValueKind::Seq) if !value.is_tuple() => {
            let () = from_args(args)?;
            Ok(value.clone())
        }
        ("count", ValueKind::Seq) => {
            let (item,): (&Value,) = from_args(args)?;
            budget.charge_deep(value)?;
            budget.charge_deep(item)?;
            Ok(Value::from(value.try_iter()?.filter(|other| other == item).count()))
        }
        ("index", ValueKind::Seq) => python::list_index(budget, value, args),
        // Calls the value of a name in a namespace or a loop.
        (_, ValueKind::Map) => value.get_attr(method)?.call(state, args),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn map_method(budget: &Budget, map: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "keys" => {
            let () = from_args(args)?;
            Ok(View::value("dict_keys", guard::collect(budget, map)?))
        }
        "values" => {
            let () = from_args(args)?;
            let keys = guard::collect(budget, map)?;
            let values: Result<_, Error> = keys.iter().map(|key| map.get_item(key)).collect();
            Ok(View::value("dict_values", values?))
        }
        "items" => {
            let () = from_args(args)?;
            Ok(View::value("dict_items", filters::pairs_of(budget, map)?))
        }
        "get" => {
            let (key, default): (&Value, Option<Value>) = from_args(args)?;
            let found = map.get_item(key)?;
            Ok(if found.is_undefined() { default.unwrap_or_else(|| Value::from(())) } else { found })
        }
        "copy" => {
            let () = from_args(args)?;
            Ok(map.clone())
        }
        "fromkeys" => {
            let (keys, value): (&Value, Option<Value>) = from_args(args)?;
            let value = value.unwrap_or_else(|| Value::from(()));
            let keys = guard::collect(budget, keys)?;
            Ok(Value::from_pairs(keys.into_iter().map(|key| (key, value.clone()))))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// `dict(..)`: from a map or pairs, and from keyword arguments.
fn dict(budget: &Budget, args: &[Value]) -> Result<Value, Error> {
    let (places, kwargs): (&[Value], Kwargs) = from_args(args)?;
    let mut pairs = Vec::new();
    if let Some(given) = places.first() {
        let items = match given.kind() == ValueKind::Map {
            true => filters::pairs_of(budget, given)?,
            false => guard::collect(budget, super::scalar::iterable(given)?)?,
        };
        for pair in items {
            let pair = guard::collect(budget, &pair)?;
            let [key, value] = pair.as_slice() else {
                return Err(Error::new(ErrorKind::InvalidOperation, "dict: expected pairs"));
            };
            pairs.push((key.clone(), value.clone()));
        }
    }
    for name in kwargs.args() {
        budget.charge(48)?;
        pairs.push((Value::from(name), kwargs.get::<Value>(name)?));
    }
    if places.len() > 1 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    Ok(Value::from_pairs(pairs))
}
