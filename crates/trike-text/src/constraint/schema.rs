//! JSON schemas in the keywords that the parser knows.

use serde_json::{Map, Value, json};

/// Keywords whose values are data and no schemas.
const DATA: &[&str] = &["const", "enum", "default", "examples", "required"];
/// Keywords that allow nothing less.
const NOTES: &[&str] = &["title", "description", "default", "examples", "$comment", "deprecated"];

/// The same schema with what the parser does not know in other keywords, where that has the same meaning: `oneOf` whose branches exclude
/// each other is `anyOf`, and `propertyNames` of a map are `patternProperties`.
pub(super) fn in_known_keywords(mut schema: Value) -> Value {
    let root = schema.clone();
    rewrite(&mut schema, &root);
    schema
}

fn rewrite(value: &mut Value, root: &Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|item| rewrite(item, root)),
        Value::Object(schema) => {
            one_of(schema, root);
            property_names(schema);
            let inner = schema.iter_mut().filter(|(name, _)| !DATA.contains(&name.as_str()));
            inner.for_each(|(_, value)| rewrite(value, root));
        }
        _ => {}
    }
}

/// `oneOf` as `anyOf`, if at most one branch can hold: each requires another constant for the same property.
fn one_of(schema: &mut Map<String, Value>, root: &Value) {
    let Some(Value::Array(branches)) = schema.get("oneOf") else { return };
    let resolved: Option<Vec<&Map<String, Value>>> =
        branches.iter().map(|branch| resolve(branch, root)).collect();
    let Some([first, rest @ ..]) = resolved.as_deref() else { return };
    let names = constants(first).map(|(name, _)| name);
    let is_disjoint = |name: &str| {
        let mut seen: Vec<&Value> = Vec::new();
        [*first].iter().chain(rest).all(|branch| {
            let values = constants(branch).find(|(own, _)| *own == name).map(|(_, values)| values);
            values.is_some_and(|values| {
                let is_new = values.iter().all(|value| !seen.contains(value));
                seen.extend(values);
                is_new
            })
        })
    };
    if names.into_iter().any(is_disjoint)
        && !schema.contains_key("anyOf")
        && let Some(branches) = schema.remove("oneOf")
    {
        schema.insert("anyOf".to_owned(), branches);
    }
}

/// A schema, or the one in the same document that it refers to.
fn resolve<'v>(schema: &'v Value, root: &'v Value) -> Option<&'v Map<String, Value>> {
    match schema.get("$ref").and_then(Value::as_str) {
        None => schema.as_object(),
        Some(path) => root.pointer(path.strip_prefix('#')?)?.as_object(),
    }
}

/// Required properties of an object that have one of a few constants.
fn constants(schema: &Map<String, Value>) -> impl Iterator<Item = (&str, Vec<&Value>)> {
    let is_object = schema.get("type").is_some_and(|kind| kind == "object");
    let required = schema.get("required").and_then(Value::as_array).filter(|_| is_object);
    let properties = schema.get("properties").and_then(Value::as_object);
    required.into_iter().flatten().filter_map(Value::as_str).filter_map(move |name| {
        let property = properties?.get(name)?;
        let values = match (property.get("const"), property.get("enum")) {
            (Some(value), _) => vec![value],
            (None, Some(Value::Array(values))) => values.iter().collect(),
            _ => return None,
        };
        Some((name, values))
    })
}

/// `propertyNames` of a map as `patternProperties`. Others are left, and refused by the parser.
fn property_names(schema: &mut Map<String, Value>) {
    let Some(names) = schema.get("propertyNames") else { return };
    let Some(expression) = expression(names) else { return };
    match expression {
        None => _ = schema.remove("propertyNames"),
        Some(_) if schema.contains_key("properties") || schema.contains_key("patternProperties") => {}
        Some(expression) => {
            schema.remove("propertyNames");
            let values = schema.remove("additionalProperties").unwrap_or_else(|| json!({}));
            schema.insert("patternProperties".to_owned(), json!({ expression: values }));
            schema.insert("additionalProperties".to_owned(), json!(false));
        }
    }
}

/// The expression of names with a schema; `Some(None)` if all are allowed, `None` if there is none.
fn expression(names: &Value) -> Option<Option<String>> {
    let names = match names {
        Value::Bool(true) => return Some(None),
        names => names.as_object()?,
    };
    let mut expression = None;
    for (keyword, value) in names {
        let found = match (keyword.as_str(), value) {
            ("type", value) if value == "string" => continue,
            (keyword, _) if NOTES.contains(&keyword) => continue,
            ("pattern", Value::String(pattern)) => pattern.clone(),
            ("const", Value::String(name)) => format!("^{}$", escaped(name)),
            ("enum", Value::Array(values)) => {
                let names: Option<Vec<String>> =
                    values.iter().map(|value| Some(escaped(value.as_str()?))).collect();
                format!("^({})$", names?.join("|"))
            }
            _ => return None,
        };
        if expression.replace(found).is_some() {
            return None;
        }
    }
    Some(expression)
}

/// A text as a regular expression.
fn escaped(text: &str) -> String {
    let mut expression = String::new();
    for letter in text.chars() {
        if r".+*?()|[]{}^$\/".contains(letter) {
            expression.push('\\');
        }
        expression.push(letter);
    }
    expression
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_are_replaced_where_that_has_the_same_meaning() {
        let branch = |kind: &str| json!({ "type": "object", "properties": { "k": { "const": kind } }, "required": ["k"] });
        let free =
            json!({ "type": "object", "properties": { "k": { "type": "string" } }, "required": ["k"] });
        for (schema, want) in [
            (json!({ "oneOf": [branch("a"), branch("b")] }), json!({ "anyOf": [branch("a"), branch("b")] })),
            (
                json!({ "$defs": { "x": branch("a") }, "oneOf": [{ "$ref": "#/$defs/x" }, branch("b")] }),
                json!({ "$defs": { "x": branch("a") }, "anyOf": [{ "$ref": "#/$defs/x" }, branch("b")] }),
            ),
            // Both may hold.
            (json!({ "oneOf": [branch("a"), branch("a")] }), json!({ "oneOf": [branch("a"), branch("a")] })),
            (json!({ "oneOf": [branch("a"), free] }), json!({ "oneOf": [branch("a"), free] })),
            // Data is left alone.
            (json!({ "const": { "propertyNames": true } }), json!({ "const": { "propertyNames": true } })),
            (json!({ "propertyNames": { "type": "string" } }), json!({})),
            (
                json!({ "items": { "propertyNames": { "enum": ["a", "b.c"] }, "additionalProperties": { "type": "integer" } } }),
                json!({ "items": { "patternProperties": { "^(a|b\\.c)$": { "type": "integer" } }, "additionalProperties": false } }),
            ),
            (
                json!({ "properties": { "a": {} }, "propertyNames": { "pattern": "^a" } }),
                json!({ "properties": { "a": {} }, "propertyNames": { "pattern": "^a" } }),
            ),
            (json!({ "propertyNames": { "minLength": 2 } }), json!({ "propertyNames": { "minLength": 2 } })),
        ] {
            assert_eq!(in_known_keywords(schema.clone()), want, "{schema}");
        }
    }
}
