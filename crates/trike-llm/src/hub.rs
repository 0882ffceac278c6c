//! Models in the cache that HuggingFace's own tools fill.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::LlmError;

/// A model on the hub: `org/name`, and a revision after `@`.
///
/// ```
/// use trike_llm::ModelId;
///
/// let id: ModelId = "microsoft/bitnet-b1.58-2B-4T@main".parse()?;
/// assert_eq!((id.org(), id.name(), id.revision()), ("microsoft", "bitnet-b1.58-2B-4T", "main"));
/// assert!("model.gguf".parse::<ModelId>().is_err());
/// # Ok::<(), trike_llm::LlmError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelId {
    org: String,
    name: String,
    revision: Option<String>,
}

impl ModelId {
    /// Who the model belongs to.
    pub fn org(&self) -> &str {
        &self.org
    }

    /// Its name there.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The branch, tag or commit; `main` unless one was given.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.org, self.name)?;
        self.revision.as_ref().map_or(Ok(()), |revision| write!(f, "@{revision}"))
    }
}

impl FromStr for ModelId {
    type Err = LlmError;

    fn from_str(text: &str) -> Result<Self, LlmError> {
        // What the hub allows in a name; anything else could leave the cache's folder.
        let word = |s: &str| {
            let plain = s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
            plain && !s.is_empty() && !s.starts_with('.') && !s.contains("..") && !s.contains("--")
        };
        let (id, revision) = match text.split_once('@') {
            Some((id, revision)) => (id, Some(revision)),
            None => (text, None),
        };
        let revision_ok = revision.is_none_or(|r| r.split('/').all(|part| word(part) || part.contains("--")));
        match id.split_once('/') {
            Some((org, name)) if word(org) && word(name) && revision_ok => {
                Ok(Self { org: org.to_owned(), name: name.to_owned(), revision: revision.map(str::to_owned) })
            }
            _ => Err(LlmError::Option {
                option: "model",
                expected: "a path, or org/name[@revision]",
                got: text.to_owned(),
            }),
        }
    }
}

/// A folder laid out as the hub's tools lay out theirs: `models--org--name/{refs,snapshots}`.
///
/// Nothing is downloaded: what is there is found, offline too.
#[derive(Clone, Debug)]
pub struct HubCache {
    root: PathBuf,
}

impl HubCache {
    /// The cache at `root`, usually `~/.cache/huggingface/hub`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The model's directory, or its GGUF file when the snapshot is just that.
    ///
    /// # Errors
    ///
    /// [`LlmError::NotInCache`] when the model, its revision or a model file in it is not there, with what to do.
    pub fn resolve(&self, id: &ModelId) -> Result<PathBuf, LlmError> {
        let missing =
            |reason: String| LlmError::NotInCache { id: id.to_string(), cache: self.root.clone(), reason };
        let folder = self.root.join(format!("models--{}--{}", id.org, id.name));
        if !folder.is_dir() {
            return Err(missing("the model is not there".to_owned()));
        }
        let reference = folder.join("refs").join(id.revision());
        let snapshot = match std::fs::read_to_string(&reference) {
            Ok(commit) if is_commit(commit.trim()) => folder.join("snapshots").join(commit.trim()),
            Ok(_) => return Err(missing(format!("{} names no commit", reference.display()))),
            // A commit is a revision of its own.
            Err(_) => folder.join("snapshots").join(id.revision()),
        };
        if !snapshot.is_dir() {
            return Err(missing(format!("it has no revision `{}`", id.revision())));
        }
        model_in(&snapshot).map_err(missing)
    }
}

fn is_commit(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// What in a snapshot is the model.
fn model_in(snapshot: &Path) -> Result<PathBuf, String> {
    if snapshot.join("config.json").exists() {
        return Ok(snapshot.to_owned());
    }
    let entries = snapshot.read_dir().map_err(|e| e.to_string())?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "gguf"))
        .collect();
    files.sort();
    match &files[..] {
        [file] => Ok(file.clone()),
        [] => Err("its snapshot has neither a config.json nor a GGUF file".to_owned()),
        several => {
            let list: Vec<String> = several.iter().map(|path| path.display().to_string()).collect();
            Err(format!("its snapshot has several GGUF files, name one by its path: {}", list.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn ids_that_could_leave_the_cache_are_none() {
        for good in ["a/b", "a-1/b.c_d", "a/b@main", "a/b@refs/pr/1", "a/b@v1.0"] {
            assert_eq!(good.parse::<ModelId>().unwrap().to_string(), good);
        }
        for bad in
            ["", "a", "a/", "/a", "a/b/c", "../b", "a/..", "a/b@", "a/b@../x", "a--b/c", "a b/c", "a/b@x//y"]
        {
            assert!(bad.parse::<ModelId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn snapshots_are_found_by_branch_and_commit() {
        let dir = tempfile::TempDir::new().unwrap();
        let model = dir.path().join("models--org--name");
        let (one, two) = (model.join("snapshots/abc123"), model.join("snapshots/def456"));
        for folder in [&one, &two, &model.join("refs/pr")] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(model.join("refs/main"), "abc123\n").unwrap();
        fs::write(model.join("refs/pr/7"), "def456").unwrap();
        fs::write(model.join("refs/bad"), "../../../etc").unwrap();
        fs::write(one.join("config.json"), "{}").unwrap();
        fs::write(two.join("m.gguf"), "").unwrap();
        let cache = HubCache::new(dir.path());
        let resolve = |id: &str| cache.resolve(&id.parse().unwrap());
        assert_eq!(resolve("org/name").unwrap(), one);
        assert_eq!(resolve("org/name@pr/7").unwrap(), two.join("m.gguf"));
        assert_eq!(resolve("org/name@def456").unwrap(), two.join("m.gguf"));
        for (id, word) in [("org/other", "not there"), ("org/name@v2", "v2"), ("org/name@bad", "commit")] {
            let error = resolve(id).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains(&dir.path().display().to_string()), "{error}");
        }
        fs::write(two.join("n.gguf"), "").unwrap();
        assert!(resolve("org/name@pr/7").unwrap_err().to_string().contains("several"));
        fs::remove_file(two.join("n.gguf")).unwrap();
        fs::remove_file(two.join("m.gguf")).unwrap();
        assert!(resolve("org/name@pr/7").unwrap_err().to_string().contains("neither"));
    }
}
