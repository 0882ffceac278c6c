//! Tools, in the forms of the three APIs.

use serde_json::{Value, json};
use trike_text::reply::{ReplyOptions, Tool, ToolChoice};

use crate::error::ApiError;
use crate::fields::Fields;

/// Most letters of the name of a tool.
const LONGEST_NAME: usize = 128;
/// Most tools of a request.
const MOST_TOOLS: usize = 1024;

fn wrong(field: &str, message: impl std::fmt::Display) -> ApiError {
    ApiError::invalid(field, format!("`{field}`: {message}"))
}

/// A tool from the object that has its name, description and schema.
fn tool(function: &Value, schema: &str) -> Result<Tool, ApiError> {
    let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "_-.:/".contains(letter);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_letter) {
        let expected = format!("expected a name of 1 to {LONGEST_NAME} letters, digits and _ - . : /");
        return Err(wrong("tools", format!("{expected}, got {name:?}")));
    }
    let description = match function.get("description") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(_) => return Err(wrong("tools", format!("`description` of {name}: expected a string"))),
    };
    let parameters = match function.get(schema) {
        None | Some(Value::Null) => json!({}),
        Some(schema @ Value::Object(_)) => schema.clone(),
        Some(_) => return Err(wrong("tools", format!("`{schema}` of {name}: expected a JSON schema"))),
    };
    match parameters.get("type") {
        None => {}
        Some(kind) if kind == "object" => {}
        Some(kind) => {
            return Err(wrong(
                "tools",
                format!("`{schema}` of {name}: expected the type `object`, got {kind}"),
            ));
        }
    }
    Ok(Tool::new(name, description, parameters))
}

/// The list of tools, each read by `read`.
fn list(fields: &mut Fields, read: impl Fn(&Value) -> Result<Tool, ApiError>) -> Result<Vec<Tool>, ApiError> {
    let values: Vec<Value> = fields.take("tools", "a list of tools")?.unwrap_or_default();
    if values.len() > MOST_TOOLS {
        return Err(wrong("tools", format!("expected at most {MOST_TOOLS}, got {}", values.len())));
    }
    let mut tools: Vec<Tool> = Vec::with_capacity(values.len());
    for value in &values {
        let tool = read(value)?;
        if tools.iter().any(|other| other.name == tool.name) {
            return Err(wrong("tools", format!("two tools are named {:?}", tool.name)));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn unsupported(kind: &Value) -> ApiError {
    wrong("tools", format!("only functions can be called, got a tool of type {kind}"))
}

/// Checks the choice against the tools.
fn chosen(tools: Vec<Tool>, choice: ToolChoice, parallel: bool) -> Result<ReplyOptions, ApiError> {
    match &choice {
        ToolChoice::Required if tools.is_empty() => {
            return Err(wrong("tool_choice", "a call is required, but there are no tools"));
        }
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
            return Err(wrong("tool_choice", format!("no tool is named {name:?}")));
        }
        _ => {}
    }
    Ok(ReplyOptions::default().with_tools(tools).with_choice(choice).with_parallel(parallel))
}

/// The tools of `/v1/chat/completions`: functions in objects of their own.
pub(crate) fn of_chat(fields: &mut Fields) -> Result<ReplyOptions, ApiError> {
    let tools = list(fields, |value| match (value.get("type"), value.get("function")) {
        (None, Some(function)) => tool(function, "parameters"),
        (Some(kind), Some(function)) if kind == "function" => tool(function, "parameters"),
        (Some(kind), _) if kind != "function" => Err(unsupported(kind)),
        _ => Err(wrong("tools", "expected an object with `function`")),
    })?;
    let why = "send `tools` and `tool_choice`";
    fields.only("functions", &[json!([])], why)?;
    fields.only("function_call", &[json!("none"), json!("auto")], why)?;
    let parallel: Option<bool> = fields.take("parallel_tool_calls", "true or false")?;
    let choice = choice(fields.value("tool_choice"), |object| object.get("function")?.get("name")?.as_str())?;
    chosen(tools, choice, parallel.unwrap_or(true))
}

/// The tools of `/v1/responses`: functions themselves.
pub(crate) fn of_responses(fields: &mut Fields) -> Result<ReplyOptions, ApiError> {
    let tools = list(fields, |value| match value.get("type") {
        Some(kind) if kind == "function" => tool(value, "parameters"),
        Some(kind) => Err(unsupported(kind)),
        None => Err(wrong("tools", "expected a `type`")),
    })?;
    let parallel: Option<bool> = fields.take("parallel_tool_calls", "true or false")?;
    let choice = choice(fields.value("tool_choice"), |object| object.get("name")?.as_str())?;
    chosen(tools, choice, parallel.unwrap_or(true))
}

/// A choice in the form of OpenAI.
fn choice(value: Option<Value>, name: impl Fn(&Value) -> Option<&str>) -> Result<ToolChoice, ApiError> {
    let expected = "expected \"none\", \"auto\", \"required\" or a function by its name";
    match value {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" => Ok(ToolChoice::Required),
            _ => Err(wrong("tool_choice", format!("{expected}, got {word:?}"))),
        },
        Some(object) => match (object.get("type").and_then(Value::as_str), name(&object)) {
            (Some("function"), Some(name)) => Ok(ToolChoice::Named(name.to_owned())),
            _ => Err(wrong("tool_choice", expected)),
        },
    }
}

/// The tools of `/v1/messages`.
pub(crate) fn of_messages(fields: &mut Fields) -> Result<ReplyOptions, ApiError> {
    let tools = list(fields, |value| match value.get("type") {
        None | Some(Value::Null) => tool(value, "input_schema"),
        Some(kind) if kind == "custom" => tool(value, "input_schema"),
        Some(kind) => Err(unsupported(kind)),
    })?;
    let choice = fields.value("tool_choice").unwrap_or_else(|| json!({ "type": "auto" }));
    let named = choice.get("name").and_then(Value::as_str);
    let wanted = match (choice.get("type").and_then(Value::as_str), named) {
        (Some("auto"), _) => ToolChoice::Auto,
        (Some("any"), _) => ToolChoice::Required,
        (Some("none"), _) => ToolChoice::None,
        (Some("tool"), Some(name)) => ToolChoice::Named(name.to_owned()),
        _ => {
            return Err(wrong(
                "tool_choice",
                "expected the type `auto`, `any`, `none` or `tool` with a `name`",
            ));
        }
    };
    let is_single = choice.get("disable_parallel_tool_use").and_then(Value::as_bool).unwrap_or(false);
    chosen(tools, wanted, !is_single)
}
