//! The output directory of a run.

use std::fs;
use std::path::{Path, PathBuf};

use trike_format::Lock;

use super::setup::refuse_model;
use crate::TrainError;

/// The output directory of a run, locked against other runs until this is dropped.
#[derive(Debug)]
pub(super) struct RunDirectory {
    path: PathBuf,
    /// Held until it is dropped.
    lock: Option<Lock>,
}

impl RunDirectory {
    /// Creates the directory if necessary, and locks it.
    ///
    /// # Errors
    ///
    /// [`TrainError::Format`], naming the process that holds the lock; [`TrainError::Config`] for a directory with a model, which
    /// the previous holder may just have written; [`TrainError::Io`].
    pub(super) fn claim(path: &Path) -> Result<Self, TrainError> {
        fs::create_dir_all(path).map_err(|source| TrainError::Io { path: path.to_owned(), source })?;
        let claimed = Self { path: path.to_owned(), lock: Some(Lock::new(path)?) };
        refuse_model(path)?;
        Ok(claimed)
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        self.lock = None;
        // Removes the directory if the run has written nothing; otherwise this fails.
        let _ = fs::remove_dir(&self.path);
    }
}
