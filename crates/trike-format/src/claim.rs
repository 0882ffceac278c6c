//! Atomically published outputs, each written by one process at a time.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{FormatError, Lock, error::io_error, output};

/// Name of the marker file in a directory of [`Claim::staging`]: directories without it are never removed.
const MARK: &str = ".trike-staging";

/// The exclusive right to create an output.
///
/// It holds a [`Lock`] on the path. After a crash, the operating system releases the lock, and the next claim removes the leftovers
/// of the crashed process. A dangling symbolic link is kept: the output is created at its target.
///
/// ```
/// use trike_format::Claim;
///
/// # let dir = tempfile::tempdir()?;
/// let output = dir.path().join("models/new");
/// let claim = Claim::new(&output)?;
/// assert!(Claim::new(&output).is_err(), "another process is writing it");
/// let staging = claim.staging()?;
/// std::fs::write(staging.join("config.json"), "{}")?;
/// assert!(!output.exists());
/// claim.publish()?;
/// assert!(output.join("config.json").exists());
/// assert!(Claim::new(&output).is_err(), "it exists");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Claim {
    /// No link.
    output: PathBuf,
    /// Held until it is dropped.
    _lock: Lock,
}

impl Claim {
    /// Claims `output`, which must not exist, and creates its parent directories.
    ///
    /// # Errors
    ///
    /// [`FormatError::Write`] if it exists or another process has claimed it; [`FormatError::Io`].
    pub fn new(output: &Path) -> Result<Self, FormatError> {
        // Trailing separators are ignored.
        let output = output::target(&output.components().collect::<PathBuf>());
        let refuse = |reason: &str, remedy: &str| FormatError::Write {
            path: output.clone(),
            what: "the output".to_owned(),
            reason: reason.to_owned(),
            remedy: remedy.to_owned(),
        };
        if output.file_name().is_none() {
            return Err(refuse("the path has no file name", "give the path of a new file or directory"));
        }
        if let Some(parent) = output.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent).map_err(|e| io_error(parent, "create", e))?;
        }
        let lock = Lock::of_new(&output)?;
        if output.symlink_metadata().is_ok() {
            return Err(refuse("it exists", "remove it or choose another output"));
        }
        Ok(Self { output, _lock: lock })
    }

    fn staging_path(&self) -> PathBuf {
        let mut name = self.output.file_name().unwrap_or_default().to_owned();
        name.push(".incomplete");
        self.output.with_file_name(name)
    }

    /// A new directory next to the output, to be filled and then [published](Self::publish). Leftovers of an earlier process are
    /// removed.
    ///
    /// # Errors
    ///
    /// [`FormatError::Write`] if a file or directory without the marker has its name; [`FormatError::Io`].
    pub fn staging(&self) -> Result<PathBuf, FormatError> {
        let path = self.staging_path();
        if path.exists() {
            if !path.join(MARK).is_file() {
                return Err(FormatError::Write {
                    path,
                    what: "the unfinished output".to_owned(),
                    reason: "something else has this name".to_owned(),
                    remedy: "move it or choose another output".to_owned(),
                });
            }
            fs::remove_dir_all(&path).map_err(|e| io_error(&path, "remove", e))?;
        }
        fs::create_dir(&path).map_err(|e| io_error(&path, "create", e))?;
        fs::write(path.join(MARK), []).map_err(|e| io_error(&path, "write", e))?;
        Ok(path)
    }

    /// Renames the directory of [`staging`](Self::staging) to the output.
    ///
    /// # Errors
    ///
    /// [`FormatError::Io`].
    pub fn publish(self) -> Result<(), FormatError> {
        let staging = self.staging_path();
        fs::remove_file(staging.join(MARK)).map_err(|e| io_error(&staging, "write", e))?;
        output::publish(&staging, &self.output).map_err(|e| io_error(&self.output, "create", e))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let staging = self.staging_path();
        if staging.join(MARK).is_file() {
            // Best effort: the next claim removes it.
            let _ = fs::remove_dir_all(&staging);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("out");
        let claim = Claim::new(&output).unwrap();
        let staging = claim.staging().unwrap();
        fs::write(staging.join("half"), "x").unwrap();
        // As after a kill: neither dropped nor published.
        let (lock, left) = (dir.path().join(".out.lock"), staging.clone());
        std::mem::forget(claim);
        assert!(lock.exists() && left.exists());
        let message = Claim::new(&output).unwrap_err().to_string();
        assert!(message.contains("another process is writing it"), "{message}");
        // The operating system releases the lock of a dead process; here the lock file is removed instead.
        fs::remove_file(&lock).unwrap();
        let claim = Claim::new(&output).unwrap();
        assert!(!claim.staging().unwrap().join("half").exists());
        drop(claim);
        assert!(!lock.exists() && !left.exists() && !output.exists());

        fs::create_dir(&left).unwrap();
        fs::write(left.join("mine"), "x").unwrap();
        let claim = Claim::new(&output).unwrap();
        let message = claim.staging().unwrap_err().to_string();
        assert!(message.contains("something else has this name"), "{message}");
        drop(claim);
        assert!(left.join("mine").exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_nothing_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (link, real) = (dir.path().join("link"), dir.path().join("real"));
        std::os::unix::fs::symlink("real", &link).unwrap();
        let claim = Claim::new(&link).unwrap();
        assert!(Claim::new(&real).is_err(), "the same output");
        fs::write(claim.staging().unwrap().join("a"), "x").unwrap();
        claim.publish().unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink() && real.join("a").is_file());
        assert!(Claim::new(&link).is_err(), "it exists");
    }

    #[test]
    fn paths_without_a_name_are_refused() {
        for path in ["/", "..", ""] {
            assert!(Claim::new(Path::new(path)).is_err(), "{path:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        let claim = Claim::new(&dir.path().join("slash/")).unwrap();
        claim.staging().unwrap();
        claim.publish().unwrap();
        assert!(dir.path().join("slash").is_dir());
    }
}
