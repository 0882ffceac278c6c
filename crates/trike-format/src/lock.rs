//! Exclusive locks on files and directories.

use std::{
    ffi::OsString,
    fs::{self, File, TryLockError},
    io::{Read, Write},
    path::{Path, PathBuf},
};

use crate::{
    FormatError,
    error::io_error,
    output::{Place, folder, forget, remember, target},
};

/// Name of the lock file in a directory.
const INSIDE: &str = ".trike.lock";
/// How many times the lock file may disappear, because another process has finished, before that is an error.
const TRIES: usize = 100;

/// The exclusive right to write a file or a directory, until it is dropped.
///
/// The lock is held on a hidden file, in the directory or next to the file, that contains the process id. After a crash, the
/// operating system releases it.
///
/// ```
/// use trike_format::Lock;
///
/// # let dir = tempfile::tempdir()?;
/// let path = dir.path().join("cache");
/// let lock = Lock::new(&path)?;
/// let message = Lock::new(&path).unwrap_err().to_string();
/// assert!(message.contains(&format!("process {}", std::process::id())), "{message}");
/// drop(lock);
/// assert!(Lock::new(&path).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Lock {
    /// The locked file and its path; `None` if there is nothing to lock.
    held: Option<(PathBuf, File)>,
}

impl Lock {
    /// Locks an existing directory, or a file that may not exist yet. A pipe or a device needs no lock. Symbolic links are
    /// followed.
    ///
    /// # Errors
    ///
    /// [`FormatError::Write`] with the process that holds it, if any; [`FormatError::Io`].
    pub fn new(path: &Path) -> Result<Self, FormatError> {
        if path.is_dir() {
            return Self::on(path.join(INSIDE), path, "the directory");
        }
        match Place::of(path) {
            Ok(Place::Special { .. }) => Ok(Self { held: None }),
            Ok(Place::File { target, .. }) => Self::next_to(&target, path, "the file"),
            Err(error) => Err(io_error(path, "lock", error)),
        }
    }

    /// Locks a path that may become a file or a directory.
    pub(crate) fn of_new(path: &Path) -> Result<Self, FormatError> {
        Self::next_to(&target(path), path, "the output")
    }

    fn next_to(target: &Path, path: &Path, what: &str) -> Result<Self, FormatError> {
        let mut hidden = OsString::from(".");
        hidden.push(target.file_name().unwrap_or_default());
        hidden.push(".lock");
        Self::on(folder(target).join(hidden), path, what)
    }

    fn on(lock: PathBuf, path: &Path, what: &str) -> Result<Self, FormatError> {
        for _ in 0..TRIES {
            let file = File::options().create(true).truncate(false).read(true).write(true).open(&lock);
            let mut file = file.map_err(|e| io_error(&lock, "create", e))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(FormatError::Write {
                        path: path.to_owned(),
                        what: what.to_owned(),
                        reason: format!("another process is writing it{}", holder(&mut file)),
                        remedy: "wait for that process or choose another output".to_owned(),
                    });
                }
                // On a file system without locks, exclusion is best effort.
                Err(TryLockError::Error(e)) if e.kind() == std::io::ErrorKind::Unsupported => {}
                Err(TryLockError::Error(e)) => return Err(io_error(&lock, "lock", e)),
            }
            // The previous holder may have removed the file since it was opened: then this lock excludes no other process.
            if is_at(&file, &lock) {
                // Best effort: the process id is only for the error message of another process.
                let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
                remember(&lock);
                return Ok(Self { held: Some((lock, file)) });
            }
        }
        let vanished = std::io::Error::other("its lock file keeps disappearing");
        Err(io_error(&lock, "lock", vanished))
    }
}

/// The process id in a lock file, in parentheses.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    // Some operating systems do not let other processes read a locked file.
    let read = file.take(20).read_to_string(&mut text);
    match (read, text.trim().parse::<u32>()) {
        (Ok(_), Ok(id)) => format!(" (process {id})"),
        _ => String::new(),
    }
}

/// Whether a path still refers to the open file.
fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let id = |meta: fs::Metadata| (meta.dev(), meta.ino());
        matches!((file.metadata().map(id), fs::metadata(path).map(id)), (Ok(a), Ok(b)) if a == b)
    }
    #[cfg(not(unix))]
    {
        let _ = (file, path);
        true
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some((path, _file)) = self.held.take() {
            // Before it is released, so that the next process creates a new one.
            let _ = fs::remove_file(&path);
            forget(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_or_directory_has_one_lock_by_all_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("model")).unwrap();
        let mut cases = vec![(at("model"), at("model/../model/")), (at("cache"), at("model/../cache"))];
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("model", at("linked")).unwrap();
            std::os::unix::fs::symlink("cache", at("link")).unwrap();
            cases.extend([(at("model"), at("linked")), (at("link"), at("cache"))]);
        }
        for (one, two) in cases {
            let lock = Lock::new(&one).unwrap();
            let message = Lock::new(&two).unwrap_err().to_string();
            let who = format!("another process is writing it (process {})", std::process::id());
            assert!(message.contains(&who), "{message}");
            drop(lock);
            drop(Lock::new(&two).unwrap());
        }
        assert!(!at("model").join(INSIDE).exists() && !at(".cache.lock").exists());
        // A lock file left by a killed process is not a lock.
        fs::write(at(".cache.lock"), "1").unwrap();
        drop(Lock::new(&at("cache")).unwrap());
        assert!(Lock::new(&at("none/cache")).is_err());
    }

    #[test]
    fn a_lock_whose_file_was_removed_excludes_the_next_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        // Opened by a second process before the first one removes it.
        let first = Lock::new(&path).unwrap();
        let opened = File::open(dir.path().join(".cache.lock")).unwrap();
        drop(first);
        opened.lock().unwrap();
        assert!(!is_at(&opened, &dir.path().join(".cache.lock")), "it would exclude no other process");
        assert!(Lock::new(&path).is_ok());
    }
}
