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
    /// else the whole repository. Only the content of what was named is removed, and not if another revision has it too: files that a
    /// running download has finished but not linked yet stay. The model is also removed for other programs that use the cache.
    ///
    /// # Errors
    ///
    /// Errors of [`check_removal`](Self::check_removal), and [`HubError::Io`].
    pub fn remove(&self, id: &ModelId) -> Result<u64, HubError> {
        let folder = self.folder(id);
        let removal = self.removal(id)?;
        let before = size(&folder);
        let (snapshot, removed) = match removal {
            Removal::Repository => {
                fs::remove_dir_all(&folder).map_err(HubError::io(&folder))?;
                return Ok(before);
            }
            Removal::Snapshot(snapshot) => {
                let removed = linked(&snapshot).map_err(HubError::io(&snapshot))?;
                fs::remove_dir_all(&snapshot).map_err(HubError::io(&snapshot))?;
                (snapshot, removed)
            }
            Removal::Files { snapshot, links } => {
                let removed = links.iter().filter_map(|link| link.canonicalize().ok()).collect();
                for link in links {
                    fs::remove_file(&link).map_err(HubError::io(&link))?;
                }
                (snapshot, removed)
            }
        };
        forget(&folder, &snapshot, &removed).map_err(HubError::io(&folder))?;
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
                let links = links.map(|link| snapshot.join(link)).collect();
                Ok(Removal::Files { snapshot, links })
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
    Files {
        snapshot: PathBuf,
        links: Vec<PathBuf>,
    },
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

/// Removes what a removal from `snapshot` left behind: the snapshot if it is empty, references to it, and the blobs among
/// `removed` that no snapshot links to. Other blobs without links belong to downloads, whose links are made last.
fn forget(folder: &Path, snapshot: &Path, removed: &HashSet<PathBuf>) -> io::Result<()> {
    if snapshot.is_dir() && is_empty(snapshot)? {
        fs::remove_dir_all(snapshot)?;
    }
    let snapshots = folder.join("snapshots");
    if !snapshot.exists() {
        for (name, commit) in revisions(folder) {
            if name != commit && snapshots.join(commit) == snapshot {
                fs::remove_file(folder.join("refs").join(name))?;
            }
        }
    }
    let kept = linked(&snapshots)?;
    let blobs = folder.join("blobs");
    // A link may lead out of the cache.
    let inside = blobs.canonicalize().unwrap_or(blobs.clone());
    for blob in removed.difference(&kept).filter(|blob| blob.parent() == Some(&inside)) {
        fs::remove_file(blob)?;
    }
    match is_empty(&snapshots)? && (!blobs.exists() || is_empty(&blobs)?) {
        true => fs::remove_dir_all(folder),
        false => Ok(()),
    }
}

/// The content of all files of a folder, at any depth.
fn linked(folder: &Path) -> io::Result<HashSet<PathBuf>> {
    let mut found = HashSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir()? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                // A dangling link has no content.
                found.extend(entry.path().canonicalize());
            }
        }
    }
    Ok(found)
}

/// Whether a folder contains nothing but folders.
fn is_empty(folder: &Path) -> io::Result<bool> {
    for entry in folder.read_dir()? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() || !is_empty(&entry.path())? {
            return Ok(false);
        }
    }
    Ok(true)
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

    #[test]
    fn nothing_but_what_was_named_is_removed() {
        let (dir, cache) = cache();
        let model = dir.path().join("models--org--name");
        // A download whose links are not made yet: a finished blob, a begun one, and a folder for its revision.
        fs::write(model.join("blobs/five"), vec![0; 5]).unwrap();
        fs::create_dir_all(model.join("snapshots/ccc/q")).unwrap();
        fs::write(model.join("refs/next"), "ddd").unwrap();
        // A file deeper than models are searched.
        fs::create_dir_all(model.join("snapshots/bbb/1/2/3/4/5")).unwrap();
        symlink("../../../../../../../blobs/two", model.join("snapshots/bbb/1/2/3/4/5/w.bin")).unwrap();
        // A link out of the cache.
        fs::write(dir.path().join("mine.gguf"), "mine").unwrap();
        symlink("../../../mine.gguf", model.join("snapshots/aaa/mine.gguf")).unwrap();
        for id in ["org/name:f16", "org/name:mine.gguf"] {
            assert_eq!(cache.remove(&id.parse().unwrap()).unwrap(), 0, "{id}");
        }
        assert_eq!(cache.remove(&"org/name@aaa".parse().unwrap()).unwrap(), 3, "the reference to it");
        let has = |path: &str| dir.path().join(path).exists();
        assert!(has("mine.gguf") && !has("models--org--name/snapshots/aaa"));
        for path in
            ["blobs/one", "blobs/two", "blobs/five", "blobs/four.incomplete", "snapshots/ccc/q", "refs/next"]
        {
            assert!(model.join(path).exists(), "{path}");
        }
        assert_eq!(cache.remove(&"org/name@bbb".parse().unwrap()).unwrap(), 3210);
        assert!(has("models--org--name/blobs/five"), "the download can go on");
        fs::remove_file(model.join("blobs/five")).unwrap();
        fs::remove_file(model.join("blobs/four.incomplete")).unwrap();
        fs::create_dir_all(model.join("snapshots/eee")).unwrap();
        fs::write(model.join("snapshots/eee/m.gguf"), "m").unwrap();
        assert_eq!(
            cache.remove(&"org/name@eee".parse().unwrap()).unwrap(),
            4,
            "with the reference to nothing"
        );
        assert!(!model.exists(), "nothing is left in it");
    }
}
