//! The fields of a request's body, each of which is read or refused.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::error::ApiError;

/// Fields that were not read yet.
#[derive(Debug)]
pub(crate) struct Fields {
    left: Map<String, Value>,
    /// Names that were asked for, with the JSON schemas of their values.
    known: Vec<(&'static str, Value)>,
    /// Names of another API.
    hidden: Vec<&'static str>,
}

/// The JSON schema of what an error message calls so.
fn schema(expected: &str) -> Value {
    let kind = match expected {
        "a string" => "string",
        "true or false" => "boolean",
        "a number" => "number",
        expected if expected.starts_with("a whole number") => "integer",
        expected if expected.starts_with("a list") => "array",
        "an object" => "object",
        _ => return json!({}),
    };
    json!({ "type": [kind, "null"] })
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
            Value::Object(left) => Ok(Self { left, known: Vec::new(), hidden: Vec::new() }),
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
        self.value_of(name, json!({}))
    }

    /// The value of a field with a JSON schema.
    fn value_of(&mut self, name: &'static str, schema: Value) -> Option<Value> {
        self.known.push((name, schema));
        self.left.remove(name).filter(|value| !value.is_null())
    }

    /// Gives a field the value that this API has under another name, `own`.
    pub(crate) fn set(
        &mut self,
        name: &'static str,
        own: &str,
        value: impl Into<Value>,
    ) -> Result<(), ApiError> {
        if self.left.contains_key(name) {
            return Err(ApiError::invalid(
                name,
                format!("unknown field `{name}`: this API calls it `{own}`"),
            ));
        }
        self.left.insert(name.to_owned(), value.into());
        self.hidden.push(name);
        Ok(())
    }

    /// A field that is `expected`, such as `a string`.
    pub(crate) fn take<T: DeserializeOwned>(
        &mut self,
        name: &'static str,
        expected: &str,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.value_of(name, schema(expected)) else { return Ok(None) };
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
        let schema = json!({ "type": ["string", "array", "null"], "items": { "type": "string" } });
        match self.value_of(name, schema) {
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
            self.value_of(name, json!({ "description": "Without effect." }));
        }
    }

    /// Refuses a field unless it has the value that changes nothing.
    pub(crate) fn only(&mut self, name: &'static str, neutral: &[Value], why: &str) -> Result<(), ApiError> {
        let mut values = neutral.to_vec();
        values.push(Value::Null);
        match self.value_of(name, json!({ "enum": values })) {
            // 1 and 1.0 are one number.
            Some(value)
                if !neutral
                    .iter()
                    .any(|own| *own == value || own.is_number() && own.as_f64() == value.as_f64()) =>
            {
                Err(ApiError::invalid(name, format!("`{name}` is not supported: {why}")))
            }
            _ => Ok(()),
        }
    }

    /// The JSON schemas of the fields that were asked for.
    pub(crate) fn schemas(&self) -> Map<String, Value> {
        let own = self.known.iter().filter(|(name, _)| !self.hidden.contains(name));
        own.map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect()
    }

    /// Refuses every field that nobody asked for.
    pub(crate) fn end(&self) -> Result<(), ApiError> {
        // Null is as good as missing.
        let Some((name, _)) = self.left.iter().find(|(_, value)| !value.is_null()) else { return Ok(()) };
        let near = self.known.iter().map(|(known, _)| (trike_core::edit_distance(known, name), known));
        let hint = match near.min().filter(|(distance, _)| *distance <= 2) {
            Some((_, known)) => format!("did you mean `{known}`?"),
            None => "this server does not know what it means".to_owned(),
        };
        Err(ApiError::invalid(name.as_str(), format!("unknown field `{name}`: {hint}")))
    }
}
