//! Names of models as users write them: links to the hub, names that no model has, and prompts in the place of a model.

use std::{error::Error, fmt, path::Path};

use trike::hub::ModelId;

use crate::output::bytes;

/// Hosts of the HuggingFace hub.
const HOSTS: [&str; 3] = ["huggingface.co", "hf.co", "www.huggingface.co"];
/// Extensions of model files.
const EXTENSIONS: [&str; 7] = [".gguf", ".bin", ".safetensors", ".pt", ".pth", ".ckpt", ".json"];
/// Maximum number of suggestions.
const SUGGESTIONS: usize = 3;

/// A model without a chat template.
#[derive(Debug)]
pub(crate) struct NoChatTemplate {
    pub(crate) path: String,
}

impl fmt::Display for NoChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: the model has no chat template; pass one with --chat-template, or use `trike run`; \
             `trike list --known` names models that can chat",
            self.path
        )
    }
}

impl Error for NoChatTemplate {}

/// A name that is neither a path nor a model of the hub.
#[derive(Debug)]
pub(crate) struct NoModel {
    pub(crate) name: String,
    /// Existing names that are close to it.
    pub(crate) similar: Vec<String>,
    /// Whether it was the only argument of `trike run`, so that it may have been meant as the prompt.
    pub(crate) may_be_prompt: bool,
}

impl fmt::Display for NoModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no model named `{}`", self.name)
    }
}

impl Error for NoModel {}

impl NoModel {
    pub(crate) fn new(name: &str, known: impl IntoIterator<Item = String>) -> Self {
        Self { name: name.to_owned(), similar: similar(name, known), may_be_prompt: false }
    }

    /// What to do next.
    pub(crate) fn advice(&self) -> String {
        let mut advice = match &self.similar[..] {
            [] => String::new(),
            names => format!("did you mean `{}`? ", names.join("` or `")),
        };
        advice += "`trike list` shows the models on this machine, `trike list --known` published ones, and a model on the \
                   HuggingFace hub is org/name";
        if self.may_be_prompt {
            advice += &format!("; to continue it as a text: trike run -p {}", self.name);
        }
        advice
    }
}

/// No model was given, and the bundled one cannot chat.
#[derive(Debug)]
pub(crate) struct NoChatModel {
    pub(crate) bundled: &'static str,
    /// A model that can chat, with the bytes of its download and of the memory that it needs.
    pub(crate) name: &'static str,
    pub(crate) download: u64,
    pub(crate) memory: u64,
}

impl fmt::Display for NoChatModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no model given, and the bundled model `{}` cannot chat", self.bundled)
    }
}

impl Error for NoChatModel {}

impl NoChatModel {
    /// What to do next.
    pub(crate) fn advice(&self) -> String {
        format!(
            "`trike chat {}` downloads {} once and needs about {} of memory; `trike list --known` shows other models",
            self.name,
            bytes(self.download),
            bytes(self.memory)
        )
    }
}

/// A link that names no model.
#[derive(Debug)]
pub(crate) struct BadLink {
    link: String,
    reason: &'static str,
}

impl fmt::Display for BadLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.link, self.reason)
    }
}

impl Error for BadLink {}

/// The model of a link to the hub, such as `https://huggingface.co/org/name/blob/main/model.gguf`, `hf.co/org/name` or
/// `hf://org/name`; `None` for a text that is not a link.
pub(crate) fn link(text: &str) -> Option<Result<ModelId, BadLink>> {
    let after = |start: &str| {
        let head = text.get(..start.len())?;
        head.eq_ignore_ascii_case(start).then(|| &text[start.len()..])
    };
    let bad = |reason| BadLink { link: text.to_owned(), reason };
    let path = if let Some(path) = after("hf://") {
        path
    } else if let Some(rest) = after("https://").or_else(|| after("http://")) {
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !HOSTS.iter().any(|known| host.eq_ignore_ascii_case(known)) {
            return Some(Err(bad(
                "only links to huggingface.co are supported: download the file and pass its path",
            )));
        }
        path
    } else {
        let (host, path) = text.split_once('/')?;
        HOSTS.iter().any(|known| host.eq_ignore_ascii_case(known)).then_some(path)?
    };
    Some(id_of(path).map_err(bad))
}

/// The model of the path of a link.
fn id_of(path: &str) -> Result<ModelId, &'static str> {
    const EXPECTED: &str = "expected a link to a model, such as https://huggingface.co/org/name";
    let path = path.split(['?', '#']).next().unwrap_or_default().replace("%2F", "/").replace("%2f", "/");
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    match parts.first() {
        Some(&"datasets") => return Err("a link to a data set, expected one to a model"),
        Some(&"spaces") => return Err("a link to a space, expected one to a model"),
        Some(&"models") => _ = parts.remove(0),
        _ => {}
    }
    let (repository, rest) = match parts[..] {
        [org, name, ..] => (format!("{org}/{name}"), &parts[2..]),
        _ => return Err(EXPECTED),
    };
    let Some((&kind, rest)) = rest.split_first() else { return repository.parse().map_err(|_| EXPECTED) };
    if !["tree", "blob", "resolve", "raw"].contains(&kind) {
        return Err(EXPECTED);
    }
    // Names of pull requests contain slashes.
    let words = if rest.first() == Some(&"refs") { 3 } else { 1 };
    let (Some(revision), Some(file)) = (rest.get(..words), rest.get(words..)) else { return Err(EXPECTED) };
    let revision = match revision.join("/").as_str() {
        "main" => String::new(),
        revision => format!("@{revision}"),
    };
    let file = match file.join("/") {
        file if file.is_empty() => file,
        _ if kind == "tree" => return Err("a link to a folder, expected one to a model or a file"),
        file if file.to_ascii_lowercase().ends_with(".gguf") => format!(":{file}"),
        // A file of the model in the root folder.
        file if !file.contains('/') => String::new(),
        _ => return Err("a link to a file that is not GGUF, expected one to a model"),
    };
    format!("{repository}{revision}{file}").parse().map_err(|_| EXPECTED)
}

/// Whether a name that does not exist was meant as a path.
pub(crate) fn is_path(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let starts = ["/", "./", "../", "~/", "\\", ".\\", "..\\"].iter().any(|start| text.starts_with(start));
    let ends = EXTENSIONS.iter().any(|end| lower.ends_with(end)) || text.ends_with(['/', '\\']);
    let has_separator = text.contains(['/', '\\']) && !text.contains(char::is_whitespace);
    starts || ends || has_separator
}

/// Whether the only argument of `trike run` is a prompt: it does not exist as a path and cannot be the name of a model, because it
/// contains white space or another character that no name has.
pub(crate) fn is_prompt(text: &str) -> bool {
    let name = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    let is_name = text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(name);
    !is_name && !is_path(text) && link(text).is_none() && !Path::new(text).exists()
}

/// The names closest to a name: those that contain it, or differ in few letters.
fn similar(name: &str, known: impl IntoIterator<Item = String>) -> Vec<String> {
    let name = name.to_ascii_lowercase();
    let mut found: Vec<(usize, String)> = known
        .into_iter()
        .filter_map(|full| {
            let lower = full.to_ascii_lowercase();
            let repository = lower.rsplit('/').next().unwrap_or_default();
            let plain = repository.split([':', '@']).next().unwrap_or_default().trim_end_matches("-gguf");
            let distance = match name.len() >= 3 && (plain.contains(&name) || name.contains(plain)) {
                true => 0,
                false => trike::core::edit_distance(&name, plain),
            };
            (distance <= name.chars().count().div_ceil(3)).then_some((distance, full))
        })
        .collect();
    // Stable: the order of the list within a distance.
    found.sort_by_key(|(distance, _)| *distance);
    found.into_iter().map(|(_, name)| name).take(SUGGESTIONS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_name_models() {
        for (text, id) in [
            ("https://huggingface.co/org/name", "org/name"),
            ("HTTPS://HuggingFace.co/org/name/", "org/name"),
            ("http://hf.co/org/name?library=x#files", "org/name"),
            ("hf.co/org/name", "org/name"),
            ("hf.co/org/name:Q2_0", "org/name:Q2_0"),
            ("huggingface.co/org/name", "org/name"),
            ("hf://org/name", "org/name"),
            ("hf://models/org/name@v1", "org/name@v1"),
            ("https://huggingface.co/org/name/tree/main", "org/name"),
            ("https://huggingface.co/org/name/tree/v1.0", "org/name@v1.0"),
            ("https://huggingface.co/org/name/tree/refs%2Fpr%2F1", "org/name@refs/pr/1"),
            ("https://huggingface.co/org/name/blob/main/m-Q2_0.gguf", "org/name:m-Q2_0.gguf"),
            ("https://huggingface.co/org/name/resolve/main/q/m.gguf?download=true", "org/name:q/m.gguf"),
            ("https://huggingface.co/org/name/resolve/v1/m.gguf", "org/name@v1:m.gguf"),
            ("https://huggingface.co/org/name/blob/main/model.safetensors", "org/name"),
            ("https://huggingface.co/org/name/blob/v1/config.json", "org/name@v1"),
        ] {
            let found = link(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(found.unwrap_or_else(|error| panic!("{error}")).to_string(), id, "{text}");
        }
        for (text, part) in [
            ("https://example.org/m.gguf", "only links to huggingface.co"),
            ("https://huggingface.co/datasets/org/name", "a data set"),
            ("https://huggingface.co/spaces/org/name", "a space"),
            ("https://huggingface.co/org", "expected a link to a model"),
            ("https://huggingface.co/org/name/discussions/1", "expected a link to a model"),
            ("https://huggingface.co/org/name/tree/main/q", "a folder"),
            ("https://huggingface.co/org/name/blob/main/q/m.bin", "not GGUF"),
            ("https://huggingface.co/org/name/blob", "expected a link to a model"),
            ("hf://../name", "expected a link to a model"),
        ] {
            let error = link(text).unwrap_or_else(|| panic!("{text}")).unwrap_err().to_string();
            assert!(error.starts_with(text) && error.contains(part), "{error}");
        }
        for text in ["org/name", "tiny", "a/b/c", "model.gguf", "hf.com/org/name", ""] {
            assert!(link(text).is_none(), "{text}");
        }
    }

    #[test]
    fn texts_are_told_from_names_and_paths() {
        for text in [
            "Once upon a time",
            "Hello!",
            "¿Qué tal?",
            "1+1=",
            "",
            "-",
            "cats/dogs or birds",
            "He said: a/b.",
            "two\nlines",
        ] {
            assert!(is_prompt(text), "{text}");
        }
        for text in [
            "llama3",
            "llama3:8b",
            "Hello",
            "org/name",
            "org/name:Q2_0",
            "missing.gguf",
            "my models/x.gguf",
            "./my model",
            "/a b/c",
            "~/my models",
            "a/b/c",
            "https://huggingface.co/org/name",
            "hf://org/name",
            "src",
        ] {
            assert!(!is_prompt(text), "{text}");
        }
    }

    #[test]
    fn close_names_are_suggested() {
        let known = ["tiny", "prism-ml/Ternary-Bonsai-1.7B-gguf:Q2_0", "microsoft/bitnet-b1.58-2B-4T"];
        let of = |name: &str| NoModel::new(name, known.map(str::to_owned)).similar;
        assert_eq!(of("tiyn"), ["tiny"]);
        assert_eq!(of("Tiny"), ["tiny"]);
        assert_eq!(of("bonsai"), [known[1]]);
        assert_eq!(of("ternary-bonsai-1.7b"), [known[1]]);
        assert_eq!(of("bitnet"), [known[2]]);
        assert!(of("llama3").is_empty() && of("x").is_empty());
        let advice =
            NoModel { may_be_prompt: true, ..NoModel::new("tiyn", known.map(str::to_owned)) }.advice();
        assert!(
            advice.starts_with("did you mean `tiny`? ") && advice.ends_with("trike run -p tiyn"),
            "{advice}"
        );
    }
}
