//! Names of models on the hub, and the choice of the model among a repository's files.

use std::{fmt, str::FromStr};

use trike_format::gguf_parts;

use crate::HubError;

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const WEIGHTS: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Maximum number of file names that an error lists.
const SHOWN: usize = 24;

/// A model on the hub: `org/name`, optionally a revision after `@`, and after `:` a GGUF file or its variant, if the repository
/// has several models. A variant is a part of the file's name between separators, in either case, such as `Q2_0` in
/// `model-Q2_0.gguf`.
///
/// ```
/// use trike_hub::ModelId;
///
/// let id: ModelId = "microsoft/bitnet-b1.58-2B-4T@main".parse()?;
/// assert_eq!((id.org(), id.name(), id.revision()), ("microsoft", "bitnet-b1.58-2B-4T", "main"));
/// let id: ModelId = "org/name-gguf:model-TQ2_0.gguf".parse()?;
/// assert_eq!((id.revision(), id.file()), ("main", Some("model-TQ2_0.gguf")));
/// assert!("model.gguf".parse::<ModelId>().is_err());
/// # Ok::<(), trike_hub::HubError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelId {
    org: String,
    name: String,
    revision: Option<String>,
    file: Option<String>,
}

/// The part of a repository that is the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubModel {
    /// The root folder of the repository: `config.json` with `model.safetensors`, or with an index and its shards.
    Directory,
    /// One GGUF file, by its path in the repository, or the first one of a split model.
    File(String),
}

impl HubModel {
    /// The paths of a GGUF model's files: one, or all files of a split model.
    pub fn files(&self) -> Vec<String> {
        match self {
            Self::Directory => Vec::new(),
            Self::File(file) => gguf_parts(file).unwrap_or_else(|| vec![file.clone()]),
        }
    }
}

/// Result of a search for models among file names.
pub(crate) enum Found {
    One(HubModel),
    Several(Vec<String>),
    Nothing,
}

impl ModelId {
    /// The owner: an organization or a user.
    pub fn org(&self) -> &str {
        &self.org
    }

    /// The name of the repository, without the owner.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The branch, tag or commit; `main` unless one was given.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// The requested file, or its variant.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// Chooses the model among the files of the repository: the requested file; else the directory, when it has `config.json` and
    /// safetensors; else the only GGUF file. A split model counts as one, named by its first file.
    ///
    /// # Errors
    ///
    /// [`HubError::Files`] when there is no model, when there are several, when the requested file or a file of a split model does
    /// not exist, and for a path outside the repository's folder.
    pub fn choose(&self, files: &[String]) -> Result<HubModel, HubError> {
        let refuse = |reason: String, names: Vec<String>| {
            Err(HubError::Files { id: self.to_string(), reason, files: shown(names) })
        };
        match self.find(files) {
            Found::One(HubModel::File(file)) if !is_inside(&file) => {
                refuse("the path of its file is outside the repository".to_owned(), vec![file])
            }
            Found::One(model) => match model.files().iter().find(|file| !files.contains(file)) {
                Some(missing) => refuse(format!("it lacks {missing}"), files.to_vec()),
                None => Ok(model),
            },
            Found::Several(names) => refuse(self.which(), names),
            Found::Nothing => match &self.file {
                Some(file) => refuse(format!("it has no file `{file}`"), files.to_vec()),
                None => refuse(
                    format!("it has neither {CONFIG} with {WEIGHTS} or its index, nor a GGUF file"),
                    files.to_vec(),
                ),
            },
        }
    }

    pub(crate) fn find(&self, files: &[String]) -> Found {
        let has = |name: &str| files.iter().any(|file| file == name);
        match &self.file {
            Some(file) if has(file) => Found::One(HubModel::File(first_part(file))),
            Some(variant) => one_of(files.iter().filter(|file| is_variant(file, variant))),
            None if has(CONFIG) && (has(WEIGHTS) || has(INDEX)) => Found::One(HubModel::Directory),
            None => one_of(files.iter().filter(|file| is_gguf_model(file))),
        }
    }

    /// The error message for several models.
    pub(crate) fn which(&self) -> String {
        let repository = Self { file: None, ..self.clone() };
        format!(
            "it has several GGUF files; choose one as {repository}:FILE, or by a part of its name, such as :Q2_0"
        )
    }

    /// The same repository and revision, with this file.
    pub(crate) fn with_file(&self, file: &str) -> Self {
        Self { file: Some(file.to_owned()), ..self.clone() }
    }

    /// A model of a folder in the cache.
    pub(crate) fn of_folder(name: &str, revision: &str) -> Option<Self> {
        let (org, name) = name.strip_prefix("models--")?.split_once("--")?;
        let revision = if revision == "main" { String::new() } else { format!("@{revision}") };
        format!("{org}/{name}{revision}").parse().ok()
    }
}

/// The result of a search that found these files.
fn one_of<'a>(files: impl Iterator<Item = &'a String>) -> Found {
    let mut models: Vec<String> = files.map(|file| first_part(file)).collect();
    models.sort();
    models.dedup();
    match &models[..] {
        [] => Found::Nothing,
        [file] => Found::One(HubModel::File(file.clone())),
        _ => Found::Several(models),
    }
}

/// Whether a GGUF file of a repository has the variant in its name, between separators: `Q2_0` matches `m-q2_0.gguf`, but not
/// `m-TQ2_0.gguf`.
fn is_variant(path: &str, variant: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    let variant = variant.to_ascii_lowercase();
    let Some(stem) = name.strip_suffix(".gguf").filter(|_| is_gguf_model(path) && !variant.is_empty()) else {
        return false;
    };
    // `_` occurs in the names of types, so it is not a separator.
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    stem.match_indices(&variant).any(|(start, found)| {
        !stem[..start].ends_with(inside) && !stem[start + found.len()..].starts_with(inside)
    })
}

/// Excludes other GGUF files of a repository: image projectors (`mmproj`) and importance matrices for quantizers.
pub(crate) fn is_gguf_model(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.ends_with(".gguf") && !name.starts_with("mmproj") && !name.contains("imatrix")
}

/// The first file of a split model, or the file itself.
pub(crate) fn first_part(path: &str) -> String {
    gguf_parts(path).and_then(|parts| parts.into_iter().next()).unwrap_or_else(|| path.to_owned())
}

/// Whether a path in a repository stays inside the folder that it is joined to, on every operating system.
pub(crate) fn is_inside(path: &str) -> bool {
    path.len() <= 1024
        && path.split('/').all(|part| {
            let plain = part.chars().all(|c| !c.is_control() && !"\\:".contains(c));
            plain && !["", ".", ".."].contains(&part)
        })
}

pub(crate) fn shown(mut names: Vec<String>) -> Vec<String> {
    if names.len() > SHOWN {
        let more = names.len() - SHOWN;
        names.truncate(SHOWN);
        names.push(format!("and {more} more"));
    }
    names
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.org, self.name)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        self.file.as_ref().map_or(Ok(()), |file| write!(f, ":{file}"))
    }
}

impl FromStr for ModelId {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        // Characters that the hub allows in a name; others could form a path outside the cache folder.
        let word = |s: &str| {
            let plain = s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
            plain && !s.is_empty() && !s.starts_with('.') && !s.contains("..") && !s.contains("--")
        };
        // Neither a name nor a git revision contains a colon.
        let (rest, file) = match text.split_once(':') {
            Some((rest, file)) => (rest, Some(file)),
            None => (text, None),
        };
        let (id, revision) = match rest.split_once('@') {
            Some((id, revision)) => (id, Some(revision)),
            None => (rest, None),
        };
        let revision_ok = revision.is_none_or(|r| r.split('/').all(|part| word(&part.replace("--", "-"))));
        let own = |part: Option<&str>| part.map(str::to_owned);
        match id.split_once('/') {
            Some((org, name)) if word(org) && word(name) && revision_ok && file.is_none_or(is_inside) => {
                Ok(Self {
                    org: org.to_owned(),
                    name: name.to_owned(),
                    revision: own(revision),
                    file: own(file),
                })
            }
            _ => Err(HubError::InvalidName { got: text.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn ids_that_could_leave_the_cache_are_none() {
        for good in [
            "a/b",
            "a-1/b.c_d",
            "a/b@main",
            "a/b@refs/pr/1",
            "a/b@v1.0",
            "a/b@x--y",
            "a/b:m.gguf",
            "a/b@main:q/m.gguf",
        ] {
            assert_eq!(good.parse::<ModelId>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "a",
            "a/",
            "/a",
            "a/b/c",
            "../b",
            "a/..",
            "a/b@",
            "a/b@../x",
            "a/b@--/../..",
            "a/b@..--",
            "a--b/c",
            "a b/c",
            "a/b@x//y",
            "a/b:",
            "a/b:../m.gguf",
            "a/b:/etc/m.gguf",
            "a/b:x/../m",
            "a/b:m\\n",
            "a/b:c:m",
            "a/b:m\n",
        ] {
            assert!(bad.parse::<ModelId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_model_is_chosen_among_the_files() {
        let choose = |id: &str, files: &[&str]| id.parse::<ModelId>().unwrap().choose(&names(files));
        for weights in [WEIGHTS, INDEX] {
            assert_eq!(choose("a/b", &["x.gguf", CONFIG, weights]).unwrap(), HubModel::Directory);
        }
        let one = ["README.md", CONFIG, "q/m.gguf", "mmproj-m.gguf", "m-imatrix.gguf"];
        assert_eq!(choose("a/b", &one).unwrap(), HubModel::File("q/m.gguf".to_owned()));
        let variants = [
            "m-F16.gguf",
            "m-Q2_0.gguf",
            "m-TQ2_0.gguf",
            "m_tq1_0.gguf",
            "mmproj-Q2_0.gguf",
            CONFIG,
            WEIGHTS,
        ];
        for (variant, file) in [("Q2_0", 1), ("q2_0", 1), ("TQ2_0", 2), ("f16", 0), ("m_tq1_0", 3)] {
            let found = choose(&format!("a/b:{variant}"), &variants).unwrap();
            assert_eq!(found, HubModel::File(variants[file].to_owned()), "{variant}");
        }
        for variant in ["2_0", "TQ1_0", "gguf", "q8_0"] {
            assert!(choose(&format!("a/b:{variant}"), &variants).is_err(), "{variant}");
        }
        let split = ["q/m-Q4_0-00002-of-00002.gguf", "q/m-Q4_0-00001-of-00002.gguf", "README.md"];
        for id in ["a/b", "a/b:Q4_0", "a/b:q/m-Q4_0-00001-of-00002.gguf", "a/b:q/m-Q4_0-00002-of-00002.gguf"]
        {
            let model = choose(id, &split).unwrap();
            assert_eq!(model, HubModel::File(split[1].to_owned()), "{id}");
            assert_eq!(model.files(), [split[1], split[0]]);
        }
        let two = ["b.gguf", "a.gguf", CONFIG];
        assert_eq!(choose("a/b@v1:b.gguf", &two).unwrap(), HubModel::File("b.gguf".to_owned()));
        for (id, files, want) in [
            (
                "a/b@v1",
                &two[..],
                "choose one as a/b@v1:FILE, or by a part of its name, such as :Q2_0; files: a.gguf, b.gguf",
            ),
            ("a/b:c.gguf", &two, "no file `c.gguf`; files: b.gguf, a.gguf, config.json"),
            ("a/b", &["pytorch_model.bin", CONFIG], "neither config.json with model.safetensors"),
            ("a/b", &[], "neither"),
            ("a/b", &["../../m.gguf"], "outside the repository"),
            ("a/b", &["m-00001-of-00002.gguf"], "it lacks m-00002-of-00002.gguf"),
            ("a/b:m-00002-of-00002.gguf", &["m-00002-of-00002.gguf"], "it lacks m-00001-of-00002.gguf"),
            ("a/b", &["/m.gguf"], "outside the repository"),
            ("a/b", &["q/..\\m.gguf"], "outside the repository"),
        ] {
            let error = choose(id, files).unwrap_err().to_string();
            assert!(error.starts_with(id) && error.contains(want), "{error}");
        }
        let many: Vec<String> = (0..1000).map(|i| format!("{i:03}.gguf")).collect();
        let error = "a/b".parse::<ModelId>().unwrap().choose(&many).unwrap_err().to_string();
        assert!(error.ends_with("023.gguf, and 976 more"), "{error}");
    }
}
