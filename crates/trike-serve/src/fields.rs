//! The fields of a request's body, each of which is read or refused.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::ApiError;

/// Fields that were not read yet.
#[derive(Debug)]
pub(crate) struct Fields {
    left: Map<String, Value>,
    /// Names that were asked for.
    known: Vec<&'static str>,
}

/// The start of a value, for an error message.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

impl Fields {
    /// The fields of a body.
    pub(crate) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|error| ApiError::invalid(None, format!("the body is not JSON: {error}")))?;
        match value {
            Value::Object(left) => Ok(Self { left, known: Vec::new() }),
            other => {
                let message = format!("the body: expected an object, got {}", short(&other));
                Err(ApiError::invalid(None, message))
            }
        }
    }

    /// The value of a field that was not read yet.
    pub(crate) fn peek(&self, name: &str) -> Option<&Value> {
        self.left.get(name)
    }

    /// The value of a field; `None` if it is missing or null.
    pub(crate) fn value(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.left.remove(name).filter(|value| !value.is_null())
    }

    /// Gives a field the value that another API has under another name.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.left.insert(name.to_owned(), value.into());
    }

    /// A field that is `expected`, such as `a string`.
    pub(crate) fn take<T: DeserializeOwned>(
        &mut self,
        name: &'static str,
        expected: &str,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let got = short(&value);
        serde_json::from_value(value)
            .map(Some)
            .map_err(|_| ApiError::invalid(name, format!("`{name}`: expected {expected}, got {got}")))
    }

    pub(crate) fn string(&mut self, name: &'static str) -> Result<Option<String>, ApiError> {
        self.take(name, "a string")
    }

    pub(crate) fn flag(&mut self, name: &'static str) -> Result<bool, ApiError> {
        Ok(self.take(name, "true or false")?.unwrap_or(false))
    }

    /// A finite number in f32.
    pub(crate) fn number(&mut self, name: &'static str) -> Result<Option<f32>, ApiError> {
        let number: Option<f64> = self.take(name, "a number")?;
        let fits = |number: &f64| (*number as f32).is_finite();
        match number {
            Some(number) if !fits(&number) => {
                Err(ApiError::invalid(name, format!("`{name}`: expected a number, got {number}")))
            }
            number => Ok(number.map(|number| number as f32)),
        }
    }

    pub(crate) fn count(&mut self, name: &'static str) -> Result<Option<usize>, ApiError> {
        self.take(name, "a whole number of at least 0")
    }

    /// A string or a list of strings.
    pub(crate) fn strings(&mut self, name: &'static str) -> Result<Vec<String>, ApiError> {
        match self.value(name) {
            None => Ok(Vec::new()),
            Some(Value::String(one)) => Ok(vec![one]),
            Some(list) => {
                let got = short(&list);
                serde_json::from_value(list).map_err(|_| {
                    let message = format!("`{name}`: expected a string or a list of strings, got {got}");
                    ApiError::invalid(name, message)
                })
            }
        }
    }

    /// Fields without effect on the answer of this server.
    pub(crate) fn without_effect(&mut self, names: &[&'static str]) {
        for name in names {
            self.value(name);
        }
    }

    /// Refuses a field unless it has the value that changes nothing.
    pub(crate) fn only(&mut self, name: &'static str, neutral: &[Value], why: &str) -> Result<(), ApiError> {
        match self.value(name) {
            Some(value) if !neutral.contains(&value) => {
                Err(ApiError::invalid(name, format!("`{name}` is not supported: {why}")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses every field that nobody asked for.
    pub(crate) fn end(self) -> Result<(), ApiError> {
        let Some(name) = self.left.keys().next() else { return Ok(()) };
        let near = self.known.iter().map(|known| (trike_core::edit_distance(known, name), known));
        let hint = match near.min().filter(|(distance, _)| *distance <= 2) {
            Some((_, known)) => format!("did you mean `{known}`?"),
            None => "this server does not know what it means".to_owned(),
        };
        Err(ApiError::invalid(name.as_str(), format!("unknown field `{name}`: {hint}")))
    }
}
