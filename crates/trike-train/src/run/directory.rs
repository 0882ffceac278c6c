//! The directory that a run writes.

use std::fs;
use std::path::{Path, PathBuf};

use trike_format::Lock;

use super::setup::refuse_model;
use crate::TrainError;

/// The directory of a run, which no other run writes until this is dropped.
#[derive(Debug)]
pub(super) struct RunDirectory {
    path: PathBuf,
    /// Held until it is dropped.
    lock: Option<Lock>,
}

impl RunDirectory {
    /// Creates the directory if it is not there, and locks it.
    ///
    /// # Errors
    ///
    /// [`TrainError::Format`] with the process that has it; [`TrainError::Config`] for one with a model, which the run that had it may
    /// have written since; [`TrainError::Io`].
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
        // A run that has written nothing leaves nothing; a directory with files stays.
        let _ = fs::remove_dir(&self.path);
    }
}
