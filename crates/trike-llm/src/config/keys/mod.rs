//! The keys of a model's configuration and how Trike handles each: one list per file, the source of both the check and the page
//! `docs/src/keys/model.md`.
//!
//! Every key is in one of these classes. An unlisted key may change the result, so it is refused, with the nearest known key in the
//! message.

mod gguf;
mod hf;

use std::path::Path;

use serde_json::Value;
use trike_format::{MetaArray, MetaValue};

use super::Family;
use crate::LlmError;

pub(super) use gguf::ARCHITECTURE;
pub(crate) use gguf::NAMESPACES;
pub(crate) use hf::GENERATION;
pub(super) use hf::{CONFIG, ROPE};

/// How Trike handles a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Status {
    /// The value is used, or checked where only some values are implemented.
    Read,
    /// The value does not affect the model's output; the reason.
    NoEffect(#[allow(dead_code, reason = "for readers, and for the page")] &'static str),
    /// Not implemented: an error, unless the value is one of these neutral ones, for which the key has no effect. Null, false where
    /// 0 is listed, and empty lists are neutral too.
    Refused(&'static [f64]),
    /// Read for one family; refused for others, unless the value is one of these.
    OfFamily(Family, &'static [f64]),
}

/// A key, or a prefix if it ends with a star.
pub(crate) type Key = (&'static str, Status);

/// The keys of one file, or of one object in it.
pub(crate) struct Keys {
    /// Name of the file or object in messages.
    pub(crate) place: &'static str,
    /// The list.
    pub(crate) list: &'static [Key],
}

impl Keys {
    /// The status of a key; `None` if it is not listed.
    fn status(&self, key: &str) -> Option<Status> {
        let exact = self.list.iter().find(|(name, _)| *name == key);
        let start = || {
            let begins = |name: &str| name.strip_suffix('*').is_some_and(|start| key.starts_with(start));
            self.list.iter().find(|(name, _)| begins(name))
        };
        exact.or_else(start).map(|(_, status)| *status)
    }

    /// Whether a key is in the list.
    pub(crate) fn knows(&self, key: &str) -> bool {
        self.status(key).is_some()
    }

    /// The known key most similar to an unknown one, if any is similar.
    fn nearest(&self, key: &str) -> Option<&'static str> {
        let names = self.list.iter().map(|(name, _)| *name).filter(|name| !name.ends_with('*'));
        let (distance, name) = names.map(|name| (trike_core::edit_distance(key, name), name)).min()?;
        (distance <= (key.len() / 3).max(2)).then_some(name)
    }

    /// Checks one key; `neutral` tells whether the value is in a list of neutral ones, `value` is used in error messages only.
    fn check(
        &self,
        (path, family): (&Path, Option<Family>),
        key: &str,
        full: &str,
        neutral: impl Fn(&[f64]) -> bool,
        value: impl Fn() -> String,
    ) -> Result<(), LlmError> {
        match self.status(key) {
            Some(Status::Read | Status::NoEffect(_)) => Ok(()),
            Some(Status::OfFamily(whose, _)) if family == Some(whose) => Ok(()),
            Some(Status::Refused(values) | Status::OfFamily(_, values)) if neutral(values) => Ok(()),
            Some(Status::Refused(_)) => {
                Err(unsupported(path, format!("`{full}` {} of {}", value(), self.place)))
            }
            Some(Status::OfFamily(whose, _)) => {
                let whose = whose.name();
                Err(unsupported(path, format!("`{full}` {} of {} outside of {whose}", value(), self.place)))
            }
            // A neutral value of an unknown key has no effect.
            None if neutral(&[]) => Ok(()),
            None => Err(LlmError::UnknownKey {
                path: path.to_owned(),
                key: full.to_owned(),
                place: self.place,
                nearest: self.nearest(key),
            }),
        }
    }

    /// Checks the keys of a JSON object; `family` is that of the model, if it matters. Keys that begin with an underscore are
    /// comments.
    pub(crate) fn check_json(
        &self,
        path: &Path,
        family: Option<Family>,
        object: &Value,
    ) -> Result<(), LlmError> {
        let entries = object.as_object().into_iter().flatten();
        for (key, value) in entries.filter(|(key, _)| !key.starts_with('_')) {
            let text = || value.to_string().chars().take(60).collect();
            self.check((path, family), key, key, |values| is_neutral(value, values), text)?;
        }
        Ok(())
    }

    /// Checks a key of GGUF metadata; `full` is its name with the prefix that `key` lacks.
    pub(crate) fn check_meta(
        &self,
        path: &Path,
        family: Option<Family>,
        (key, full): (&str, &str),
        value: &MetaValue,
    ) -> Result<(), LlmError> {
        self.check((path, family), key, full, |values| is_neutral_meta(value, values), || value.describe())
    }
}

fn unsupported(path: &Path, name: String) -> LlmError {
    LlmError::Unsupported { path: path.to_owned(), name, remedy: "use a model without it".to_owned() }
}

fn is_neutral(value: &Value, values: &[f64]) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => values.contains(&f64::from(u8::from(*flag))),
        Value::Number(number) => number.as_f64().is_some_and(|number| values.contains(&number)),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
    }
}

fn is_neutral_meta(value: &MetaValue, values: &[f64]) -> bool {
    let number = |n: f64| values.contains(&n);
    match value {
        MetaValue::Bool(flag) => number(f64::from(u8::from(*flag))),
        MetaValue::Str(text) => text.is_empty(),
        MetaValue::F32(v) => number((*v).into()),
        MetaValue::F64(v) => number(*v),
        MetaValue::Array(list) => match list {
            MetaArray::Bool(flags) => flags.iter().all(|flag| number(f64::from(u8::from(*flag)))),
            MetaArray::F32(list) => list.iter().all(|v| number((*v).into())),
            MetaArray::I32(list) => list.iter().all(|v| number((*v).into())),
            MetaArray::U32(list) => list.iter().all(|v| number((*v).into())),
            list => list.is_empty(),
        },
        value => value.as_i64().is_some_and(|n| number(n as f64)),
    }
}

#[cfg(test)]
mod tests;
