//! Models in the local cache of the HuggingFace tools.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::id::{CONFIG, Found, INDEX, WEIGHTS, is_inside, shown};
use crate::{HubError, HubModel, ModelId};

/// Size limit of an index: enough for a million tensors.
const MAX_INDEX_BYTES: u64 = 128 << 20;
/// Limit on the requests that an index can cause; far more shards than any model has.
const MAX_SHARDS: usize = 4096;
/// Maximum folder depth that is searched in a snapshot.
pub(crate) const MAX_DEPTH: usize = 4;

/// A folder in the layout of the hub's tools: `models--org--name/{blobs,refs,snapshots}`.
///
/// Only files already in the cache are found; [`Hub`](crate::Hub) downloads the others.
#[derive(Clone, Debug)]
pub struct HubCache {
    root: PathBuf,
}

impl HubCache {
    /// The cache at `root`, usually `~/.cache/huggingface/hub`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The root folder of the cache.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of a model, which may not exist.
    pub fn folder(&self, id: &ModelId) -> PathBuf {
        self.root.join(format!("models--{}--{}", id.org(), id.name()))
    }

    /// The path of the model: its snapshot directory, or a GGUF file in it.
    ///
    /// # Errors
    ///
    /// [`HubError::NotInCache`] when the model, its revision or a required file is missing;
    /// [`HubError::Files`] when there are several models.
    pub fn resolve(&self, id: &ModelId) -> Result<PathBuf, HubError> {
        let missing =
            |reason: String| HubError::NotInCache { id: id.to_string(), cache: self.root.clone(), reason };
        let folder = self.folder(id);
        if !folder.is_dir() {
            return Err(missing("no folder for this model".to_owned()));
        }
        let reference = folder.join("refs").join(id.revision());
        let snapshot = match read_start(&reference, 128) {
            Ok(commit) if is_commit(commit.trim()) => folder.join("snapshots").join(commit.trim()),
            Ok(_) => return Err(missing(format!("{} does not contain a commit hash", reference.display()))),
            // The revision may be a commit hash.
            Err(_) => folder.join("snapshots").join(id.revision()),
        };
        if !snapshot.is_dir() {
            return Err(missing(format!("it has no revision `{}`", id.revision())));
        }
        let mut files = Vec::new();
        list(&snapshot, "", MAX_DEPTH, &mut files);
        match id.find(&files) {
            Found::One(HubModel::File(file)) => {
                match HubModel::File(file.clone()).files().iter().find(|part| !files.contains(part)) {
                    Some(part) => Err(missing(format!("its snapshot lacks {part}"))),
                    None => Ok(snapshot.join(file)),
                }
            }
            Found::One(HubModel::Directory) => {
                // An invalid index is reported when the directory is opened.
                let shards = if files.iter().any(|file| file == WEIGHTS) {
                    Vec::new()
                } else {
                    hub_shards(&snapshot.join(INDEX)).unwrap_or_default()
                };
                match shards.iter().find(|shard| !files.contains(shard)) {
                    Some(shard) => Err(missing(format!("its snapshot lacks {shard}"))),
                    None => Ok(snapshot),
                }
            }
            Found::Several(names) => {
                Err(HubError::Files { id: id.to_string(), reason: id.which(), files: shown(names) })
            }
            Found::Nothing => Err(missing(match id.file() {
                Some(file) => format!("its snapshot has no file `{file}`"),
                None => format!("its snapshot has neither {CONFIG} with {WEIGHTS} nor a GGUF file"),
            })),
        }
    }
}

/// The safetensors files named by an index on disk, without duplicates.
///
/// # Errors
///
/// [`HubError::Io`] for a file that cannot be read, [`HubError::Index`] for one that is not an index, names anything but
/// `.safetensors` files in its own folder, or names more than 4096 of them.
pub fn hub_shards(index: &Path) -> Result<Vec<String>, HubError> {
    let text = read_start(index, MAX_INDEX_BYTES).map_err(HubError::io(index))?;
    let bad = |expected: &str, got: String| HubError::Index {
        path: index.to_owned(),
        expected: expected.to_owned(),
        got,
    };
    let value: Value = serde_json::from_str(&text).map_err(|e| bad("JSON", e.to_string()))?;
    let map = value.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| bad("an object from tensor names to files", "none".to_owned()))?;
    let mut shards: Vec<String> = Vec::new();
    for file in map.values() {
        let name = file.as_str().filter(|f| is_inside(f) && f.ends_with(".safetensors") && !f.contains('/'));
        let name = name.ok_or_else(|| bad("names of .safetensors files", file.to_string()))?;
        shards.push(name.to_owned());
    }
    shards.sort();
    shards.dedup();
    if shards.len() > MAX_SHARDS {
        return Err(bad("at most 4096 files", shards.len().to_string()));
    }
    Ok(shards)
}

/// The first `most` bytes of a text file.
pub(crate) fn read_start(path: &Path, most: u64) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(most).read_to_string(&mut text)?;
    Ok(text)
}

pub(crate) fn is_commit(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Lists the existing files under a folder by their paths relative to it, separated by `/`.
pub(crate) fn list(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<String>) {
    for entry in folder.read_dir().into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = entry.path();
        // Entries are symbolic links into `blobs`; a dangling link is a removed download.
        if path.is_file() {
            files.push(format!("{prefix}{name}"));
        } else if depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list(&path, &format!("{prefix}{name}/"), depth - 1, files);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

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
        fs::write(one.join(CONFIG), "{}").unwrap();
        fs::write(two.join("m.gguf"), "").unwrap();
        let cache = HubCache::new(dir.path());
        let resolve = |id: &str| cache.resolve(&id.parse().unwrap());
        // Tools that download only the configuration leave this state behind.
        assert!(resolve("org/name").unwrap_err().to_string().contains("neither"));
        fs::write(one.join(WEIGHTS), "").unwrap();
        assert_eq!(resolve("org/name").unwrap(), one);
        assert_eq!(resolve("org/name@pr/7").unwrap(), two.join("m.gguf"));
        assert_eq!(resolve("org/name@def456").unwrap(), two.join("m.gguf"));
        for (id, word) in [
            ("org/other", "no folder"),
            ("org/name@v2", "v2"),
            ("org/name@bad", "commit"),
            ("org/name@pr/7:n.gguf", "no file `n.gguf`"),
        ] {
            let error = resolve(id).unwrap_err();
            assert!(matches!(error, HubError::NotInCache { .. }), "{error}");
            let error = error.to_string();
            assert!(error.contains(word) && error.contains(&dir.path().display().to_string()), "{error}");
        }
        fs::create_dir(two.join("q")).unwrap();
        fs::write(two.join("q/n.gguf"), "").unwrap();
        assert!(resolve("org/name@pr/7").unwrap_err().to_string().contains("several"));
        assert_eq!(resolve("org/name@pr/7:q/n.gguf").unwrap(), two.join("q/n.gguf"));
        fs::remove_dir_all(two.join("q")).unwrap();
        fs::remove_file(two.join("m.gguf")).unwrap();
        assert!(resolve("org/name@pr/7").unwrap_err().to_string().contains("neither"));
    }

    #[test]
    fn a_split_model_is_in_the_cache_when_all_its_files_are() {
        let dir = tempfile::TempDir::new().unwrap();
        let snapshot = dir.path().join("models--a--b/snapshots/abc");
        fs::create_dir_all(&snapshot).unwrap();
        let cache = HubCache::new(dir.path());
        let resolve = || cache.resolve(&"a/b@abc".parse().unwrap());
        let parts = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"].map(|name| snapshot.join(name));
        fs::write(&parts[1], "12").unwrap();
        assert!(resolve().unwrap_err().to_string().contains("lacks m-00001-of-00002.gguf"));
        assert_eq!(cache.models().unwrap(), []);
        fs::write(&parts[0], "345").unwrap();
        assert_eq!(resolve().unwrap(), parts[0]);
        let models = cache.models().unwrap();
        assert_eq!((models.len(), models[0].bytes, &models[0].path), (1, 5, &parts[0]));
        assert_eq!(cache.remove(&"a/b@abc:m-00002-of-00002.gguf".parse().unwrap()).unwrap(), 5);
        assert_eq!(cache.models().unwrap(), []);
    }

    #[test]
    fn a_snapshot_with_a_shard_missing_is_not_in_the_cache() {
        let dir = tempfile::TempDir::new().unwrap();
        let snapshot = dir.path().join("models--a--b/snapshots/abc");
        fs::create_dir_all(&snapshot).unwrap();
        fs::write(snapshot.join(CONFIG), "{}").unwrap();
        let index = r#"{"weight_map": {"x": "2.safetensors", "y": "1.safetensors", "z": "2.safetensors"}}"#;
        fs::write(snapshot.join(INDEX), index).unwrap();
        assert_eq!(hub_shards(&snapshot.join(INDEX)).unwrap(), ["1.safetensors", "2.safetensors"]);
        fs::write(snapshot.join("1.safetensors"), "").unwrap();
        let resolve = || HubCache::new(dir.path()).resolve(&"a/b@abc".parse().unwrap());
        assert!(resolve().unwrap_err().to_string().contains("lacks 2.safetensors"));
        fs::write(snapshot.join("2.safetensors"), "").unwrap();
        assert_eq!(resolve().unwrap(), snapshot);
        for bad in ["", "[]", r#"{"weight_map": {"x": "../1.safetensors"}}"#, r#"{"weight_map": {"x": 1}}"#] {
            fs::write(snapshot.join(INDEX), bad).unwrap();
            assert!(hub_shards(&snapshot.join(INDEX)).is_err(), "{bad}");
        }
    }
}
