//! The directory that a run writes.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::setup::refuse_model;
use crate::TrainError;

/// Name of the locked file, which names the process.
const LOCK: &str = ".trike.lock";

/// The directory of a run, which no other run writes until this is dropped.
#[derive(Debug)]
pub(super) struct RunDirectory {
    path: PathBuf,
    /// Locked until it is dropped. After a crash the system releases it.
    lock: Option<File>,
}

impl RunDirectory {
    /// Creates the directory if it is not there, and locks it.
    ///
    /// # Errors
    ///
    /// [`TrainError::Taken`] with the process that has it; [`TrainError::Config`] for one with a model, which the run that had it may
    /// have written since; [`TrainError::Io`].
    pub(super) fn claim(path: &Path) -> Result<Self, TrainError> {
        fs::create_dir_all(path).map_err(|source| TrainError::Io { path: path.to_owned(), source })?;
        let claimed = Self { path: path.to_owned(), lock: Some(lock(path)?) };
        refuse_model(path)?;
        Ok(claimed)
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // Before it is released, so that the next process makes a new one.
            let _ = fs::remove_file(self.path.join(LOCK));
        }
        self.lock = None;
        // A run that has written nothing leaves nothing; a directory with files stays.
        let _ = fs::remove_dir(&self.path);
    }
}

fn lock(dir: &Path) -> Result<File, TrainError> {
    let path = dir.join(LOCK);
    let io = |source| TrainError::Io { path: path.clone(), source };
    loop {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let mut file = file.map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut process = String::new();
                // Some systems do not let others read a locked file.
                let _ = (&file).take(20).read_to_string(&mut process);
                return Err(TrainError::Taken { dir: dir.to_owned(), process: process.trim().parse().ok() });
            }
            // A file system without locks: as much as can be done there.
            Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        // The process that had it may have removed the file since it was opened: then this lock excludes nobody.
        if is_at(&file, &path) {
            // Only the message of another process needs it.
            let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
            return Ok(file);
        }
    }
}

/// Whether a path still names the open file.
fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let id = |meta: &fs::Metadata| (meta.dev(), meta.ino());
        matches!((file.metadata(), fs::metadata(path)), (Ok(a), Ok(b)) if id(&a) == id(&b))
    }
    #[cfg(not(unix))]
    {
        let _ = (file, path);
        true
    }
}
