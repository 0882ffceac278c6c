//! Python values that are neither lists nor maps: generators, views of maps, ranges, unbound method references.
//!
//! They differ from lists in ways visible to templates: a generator is true even if it is empty and can be read only once, a view
//! cannot be indexed, and none of them is JSON-serializable.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use minijinja::{
    Error, State,
    value::{Enumerator, Object, ObjectRepr, Value, ValueKind},
};

use super::scalar::without_bool;

/// The result of filters such as `select` and `map`: items that can be read once.
#[derive(Debug)]
pub(super) struct Generator(Mutex<VecDeque<Value>>);

impl Generator {
    pub(super) fn value(items: Vec<Value>) -> Value {
        Value::from_object(Self(Mutex::new(items.into())))
    }

    fn items(&self) -> MutexGuard<'_, VecDeque<Value>> {
        // No code panics while holding the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the remaining items.
    pub(super) fn rest(&self) -> Vec<Value> {
        self.items().iter().cloned().collect()
    }

    pub(super) fn left(&self) -> usize {
        self.items().len()
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let generator = self.clone();
        Enumerator::Iter(Box::new(std::iter::from_fn(move || generator.items().pop_front())))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator object>")
    }
}

/// `keys()`, `values()` or `items()` of a map.
#[derive(Debug)]
pub(super) struct View {
    /// `dict_keys`, `dict_values` or `dict_items`.
    pub(super) name: &'static str,
    items: Vec<Value>,
}

impl View {
    pub(super) fn value(name: &'static str, items: Vec<Value>) -> Value {
        Value::from_object(Self { name, items })
    }
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }
}

/// `range(..)`.
#[derive(Debug)]
pub(super) struct Range {
    start: i64,
    stop: i64,
    step: i64,
    len: usize,
}

impl Range {
    /// `None` if there are more items than `limit`; the step must not be 0.
    pub(super) fn value(start: i64, stop: i64, step: i64, limit: usize) -> Option<Value> {
        let (start_, stop_, step_) = (i128::from(start), i128::from(stop), i128::from(step));
        let len = if step > 0 {
            (stop_ - start_ + step_ - 1).max(0) / step_
        } else {
            (start_ - stop_ - step_ - 1).max(0) / -step_
        };
        let len = usize::try_from(len).ok().filter(|&len| len <= limit)?;
        Some(Value::from_object(Self { start, stop, step, len }))
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_usize().filter(|&index| index < self.len)?;
        Some(Value::from(self.start + self.step * index as i64))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            1 => write!(f, "range({}, {})", self.start, self.stop),
            step => write!(f, "range({}, {}, {step})", self.start, self.stop),
        }
    }
}

/// A reference to a method that has not been called.
struct Method {
    of: Value,
    name: String,
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {}>", self.name)
    }
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.of.call_method(state, &self.name, args)
    }
}

/// Whether a value is a Python `dict`, not one of the engine's objects with named parts.
pub(super) fn is_dict(value: &Value) -> bool {
    value.kind() == ValueKind::Map
        && value.as_object().is_some_and(|object| {
            let name = object.type_name();
            !["Namespace", "Loop", "Module"].iter().any(|other| name.ends_with(other))
        })
}

/// Whether a value is a list or a tuple, or an engine iterable in place of one.
pub(super) fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
        && value.downcast_object_ref::<Generator>().is_none()
        && value.downcast_object_ref::<View>().is_none()
        && value.downcast_object_ref::<Range>().is_none()
}

/// Methods of Python's types that a template may access without a call, and methods of maps that the sandbox hides.
const DICT: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
const HIDDEN: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const LIST: [&str; 3] = ["copy", "count", "index"];
const STR: [&str; 46] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

/// Whether the attribute `name` may be a method.
pub(super) fn may_be_method(name: &str) -> bool {
    DICT.contains(&name) || HIDDEN.contains(&name) || LIST.contains(&name) || STR.contains(&name)
}

/// The method `name` of a value; undefined if the sandbox hides it, `None` if there is none.
fn method(value: &Value, name: &str) -> Option<Value> {
    let found = match value.kind() {
        ValueKind::Map if is_dict(value) => {
            if HIDDEN.contains(&name) {
                return Some(Value::UNDEFINED);
            }
            DICT.contains(&name)
        }
        ValueKind::String => STR.contains(&name),
        ValueKind::Seq => LIST.contains(&name) && !(name == "copy" && value.is_tuple()),
        _ => false,
    };
    found.then(|| Value::from_object(Method { of: value.clone(), name: name.to_owned() }))
}

/// `value.name`: methods take precedence over items.
pub(super) fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    match method(value, name) {
        Some(method) => Ok(method),
        None => value.get_attr(name),
    }
}

/// `value | attr(name)`: only methods, for a map.
pub(super) fn own_attribute(value: &Value, name: &str) -> Result<Value, Error> {
    match method(value, name) {
        None if is_dict(value) => Ok(Value::UNDEFINED),
        Some(method) => Ok(method),
        None => value.get_attr(name),
    }
}

/// `value[key]`: items take precedence over methods.
pub(super) fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    let unordered = || {
        value.downcast_object_ref::<Generator>().is_some() || value.downcast_object_ref::<View>().is_some()
    };
    if value.kind() == ValueKind::Iterable && unordered() {
        return Ok(Value::UNDEFINED);
    }
    let is_counted = matches!(value.kind(), ValueKind::Seq | ValueKind::String);
    if is_counted && key.is_number() && !key.is_integer() {
        return Ok(Value::UNDEFINED);
    }
    let found = match is_counted && key.kind() == ValueKind::Bool {
        true => value.get_item(&without_bool(key))?,
        false => value.get_item(key)?,
    };
    match key.as_str() {
        Some(name) if found.is_undefined() => Ok(method(value, name).unwrap_or(found)),
        _ => Ok(found),
    }
}
