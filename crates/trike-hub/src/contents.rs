//! The models of a cache: listing and removing.

use std::{
    collections::{BTreeMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::cache::{MAX_DEPTH, is_commit, list, read_start};
use crate::id::{CONFIG, Found, INDEX, WEIGHTS, first_part, is_gguf_model};
use crate::{HubCache, HubError, HubModel, ModelId};

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedModel {
    /// Its name, accepted by [`HubCache::resolve`].
    pub id: ModelId,
    /// Its directory or file.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// Time of the last change of its files, if the file system reports it.
    pub modified: Option<SystemTime>,
}

impl HubCache {
    /// The complete models in the cache, by name: each directory of a repository and each GGUF file, of every branch, tag and
    /// unreferenced commit.
    ///
    /// # Errors
    ///
    /// [`HubError::Io`] for a cache that cannot be read; a missing cache is empty.
    pub fn models(&self) -> Result<Vec<CachedModel>, HubError> {
        let entries = match self.root().read_dir() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|source| HubError::Io { path: self.root().to_owned(), source })?,
        };
        let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        folders.sort();
        let mut models = Vec::new();
        for folder in folders {
            let Some(name) = folder.file_name().and_then(|name| name.to_str()) else { continue };
            for (revision, commit) in revisions(&folder) {
                if let Some(id) = ModelId::of_folder(name, &revision) {
                    self.models_of(&id, &folder.join("snapshots").join(commit), &mut models);
                }
            }
        }
        models.sort_by_cached_key(|model| model.id.to_string());
        Ok(models)
    }

    /// The models of a snapshot.
    fn models_of(&self, id: &ModelId, snapshot: &Path, models: &mut Vec<CachedModel>) {
        let mut files = Vec::new();
        list(snapshot, "", MAX_DEPTH, &mut files);
        let has = |name: &str| files.iter().any(|file| file == name);
        let directory = has(CONFIG) && (has(WEIGHTS) || has(INDEX));
        // A split model is named by its first file.
        let mut ggufs: Vec<String> =
            files.iter().filter(|file| is_gguf_model(file)).map(|file| first_part(file)).collect();
        ggufs.sort();
        ggufs.dedup();
        let mut add = |id: ModelId, of: &[&String]| {
            // A model without all its shards is incomplete.
            let Ok(path) = self.resolve(&id) else { return };
            let known: Vec<_> = of.iter().filter_map(|file| snapshot.join(file).metadata().ok()).collect();
            models.push(CachedModel {
                id,
                path,
                bytes: known.iter().map(fs::Metadata::len).sum(),
                modified: known.iter().filter_map(|file| file.modified().ok()).max(),
            });
        };
        if directory {
            let own: Vec<&String> = files.iter().filter(|file| !file.ends_with(".gguf")).collect();
            add(id.clone(), &own);
        }
        for file in &ggufs {
            // The shortest unique name.
            let short = if directory || ggufs.len() > 1 { id.with_file(file) } else { id.clone() };
            let parts = HubModel::File(file.clone()).files();
            add(short, &parts.iter().collect::<Vec<_>>());
        }
    }

    /// Whether the name is valid for [`remove`](Self::remove): it matches something in the cache, unambiguously.
    ///
    /// # Errors
    ///
    /// [`HubError::NotInCache`] when there is nothing to remove, and [`HubError::Files`] when several files match the variant.
    pub fn check_removal(&self, id: &ModelId) -> Result<(), HubError> {
        self.removal(id).map(drop)
    }

    /// Removes a model from the cache and returns the number of freed bytes: a file if `id` names one, a revision if it names one,
    /// else the whole repository. Content shared with another revision is kept. The model is also removed for other programs that
    /// use the cache.
    ///
    /// # Errors
    ///
    /// Errors of [`check_removal`](Self::check_removal), and [`HubError::Io`].
    pub fn remove(&self, id: &ModelId) -> Result<u64, HubError> {
        let folder = self.folder(id);
        let removal = self.removal(id)?;
        let before = size(&folder);
        match removal {
            Removal::Repository => {
                fs::remove_dir_all(&folder).map_err(HubError::io(&folder))?;
                return Ok(before);
            }
            Removal::Snapshot(snapshot) => fs::remove_dir_all(&snapshot).map_err(HubError::io(&snapshot))?,
            Removal::Files(links) => {
                for link in links {
                    fs::remove_file(&link).map_err(HubError::io(&link))?;
                }
            }
        }
        forget(&folder).map_err(HubError::io(&folder))?;
        Ok(before.saturating_sub(size(&folder)))
    }

    /// The part of the cache to which a name refers.
    fn removal(&self, id: &ModelId) -> Result<Removal, HubError> {
        let folder = self.folder(id);
        let missing = |reason: String| HubError::NotInCache {
            id: id.to_string(),
            cache: self.root().to_owned(),
            reason,
        };
        if !folder.is_dir() {
            return Err(missing("no folder for this model".to_owned()));
        }
        let named = id.to_string().contains('@');
        if id.file().is_none() && !named {
            return Ok(Removal::Repository);
        }
        let snapshots = folder.join("snapshots");
        let commit = read_start(&folder.join("refs").join(id.revision()), 128);
        let commit = commit.map_or(id.revision().to_owned(), |commit| commit.trim().to_owned());
        let snapshot = snapshots.join(&commit);
        if !is_commit(&commit) || !snapshot.is_dir() {
            return Err(missing(format!("it has no revision `{}`", id.revision())));
        }
        let Some(file) = id.file() else { return Ok(Removal::Snapshot(snapshot)) };
        let mut files = Vec::new();
        list(&snapshot, "", MAX_DEPTH, &mut files);
        match id.find(&files) {
            Found::One(model @ HubModel::File(_)) => {
                // Of a split model, all files that exist.
                let links = model.files().into_iter().filter(|link| files.contains(link));
                Ok(Removal::Files(links.map(|link| snapshot.join(link)).collect()))
            }
            Found::Several(files) => Err(HubError::Files { id: id.to_string(), reason: id.which(), files }),
            _ => Err(missing(format!("its snapshot has no file `{file}`"))),
        }
    }
}

/// A part of the cache.
enum Removal {
    Repository,
    Snapshot(PathBuf),
    /// Links in a snapshot.
    Files(Vec<PathBuf>),
}

/// The revisions of a repository's folder with their commits: branches and tags, then unreferenced commits.
fn revisions(folder: &Path) -> BTreeMap<String, String> {
    let mut names = Vec::new();
    list(&folder.join("refs"), "", MAX_DEPTH, &mut names);
    let commit = |name: &String| {
        let commit = read_start(&folder.join("refs").join(name), 128).ok()?.trim().to_owned();
        is_commit(&commit).then(|| (name.clone(), commit))
    };
    let mut revisions: BTreeMap<String, String> = names.iter().filter_map(commit).collect();
    let named: HashSet<String> = revisions.values().cloned().collect();
    for entry in folder.join("snapshots").read_dir().into_iter().flatten().flatten() {
        if let Some(commit) =
            entry.file_name().to_str().filter(|name| is_commit(name) && !named.contains(*name))
        {
            revisions.insert(commit.to_owned(), commit.to_owned());
        }
    }
    revisions
}

/// Removes revisions without files, then blobs that no snapshot links to.
fn forget(folder: &Path) -> io::Result<()> {
    let mut linked = HashSet::new();
    let mut left = 0;
    for entry in folder.join("snapshots").read_dir().into_iter().flatten().flatten() {
        let mut files = Vec::new();
        list(&entry.path(), "", MAX_DEPTH, &mut files);
        if files.is_empty() {
            fs::remove_dir_all(entry.path())?;
            continue;
        }
        left += 1;
        linked.extend(files.iter().filter_map(|file| entry.path().join(file).canonicalize().ok()));
    }
    if left == 0 {
        return fs::remove_dir_all(folder);
    }
    for (name, commit) in revisions(folder) {
        if name != commit && !folder.join("snapshots").join(commit).is_dir() {
            fs::remove_file(folder.join("refs").join(name))?;
        }
    }
    for entry in folder.join("blobs").read_dir().into_iter().flatten().flatten() {
        // Keep an unfinished download: it may still be running.
        let unfinished = entry.file_name().to_string_lossy().ends_with(".incomplete");
        let known = entry.path().canonicalize().is_ok_and(|path| linked.contains(&path));
        if !known && !unfinished && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Bytes of the files under a folder, links not followed.
fn size(folder: &Path) -> u64 {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => size(&entry.path()),
        Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |meta| meta.len()),
        _ => 0,
    };
    entries.map(of).sum()
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A repository with two revisions that share a file.
    fn cache() -> (tempfile::TempDir, HubCache) {
        let dir = tempfile::TempDir::new().unwrap();
        let model = dir.path().join("models--org--name");
        for folder in ["blobs", "refs", "snapshots/aaa", "snapshots/bbb"] {
            fs::create_dir_all(model.join(folder)).unwrap();
        }
        fs::write(model.join("refs/main"), "aaa").unwrap();
        for (blob, bytes) in [("one", 10), ("two", 200), ("three", 3000), ("four.incomplete", 40000)] {
            fs::write(model.join("blobs").join(blob), vec![0; bytes]).unwrap();
        }
        for (link, blob) in
            [("aaa/m-Q2_0.gguf", "one"), ("aaa/m-F16.gguf", "two"), ("bbb/m-Q2_0.gguf", "one")]
        {
            symlink(format!("../../blobs/{blob}"), model.join("snapshots").join(link)).unwrap();
        }
        symlink("../../blobs/three", model.join("snapshots/bbb/config.json")).unwrap();
        fs::create_dir_all(dir.path().join("datasets--a--b")).unwrap();
        let cache = HubCache::new(dir.path());
        (dir, cache)
    }

    fn names(cache: &HubCache) -> Vec<(String, u64)> {
        cache.models().unwrap().into_iter().map(|model| (model.id.to_string(), model.bytes)).collect()
    }

    #[test]
    fn models_are_listed_by_names_that_resolve() {
        let (dir, cache) = cache();
        let want = [("org/name:m-F16.gguf", 200), ("org/name:m-Q2_0.gguf", 10), ("org/name@bbb", 10)];
        assert_eq!(names(&cache), want.map(|(name, bytes)| (name.to_owned(), bytes)));
        for model in cache.models().unwrap() {
            assert_eq!(cache.resolve(&model.id).unwrap(), model.path);
            assert!(model.modified.is_some());
        }
        assert_eq!(HubCache::new(dir.path().join("none")).models().unwrap(), []);
    }

    #[test]
    fn a_removed_model_takes_only_its_own_content() {
        let (dir, cache) = cache();
        let remove = |id: &str| cache.remove(&id.parse().unwrap());
        for (id, word) in [("org/other", "no folder"), ("org/name@ccc", "ccc"), ("org/name:Q8_0", "Q8_0")] {
            let error = remove(id).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert_eq!(remove("org/name:Q2_0").unwrap(), 0, "the other revision has it too");
        assert_eq!(names(&cache), [("org/name".to_owned(), 200), ("org/name@bbb".to_owned(), 10)]);
        assert_eq!(remove("org/name:f16").unwrap(), 203, "and the reference to an empty revision");
        assert_eq!(names(&cache), [("org/name@bbb".to_owned(), 10)]);
        assert_eq!(remove("org/name").unwrap(), 43_010, "with what was left of a download");
        assert_eq!(dir.path().read_dir().unwrap().count(), 1, "another folder");
    }
}
