//! Measured choices of kernels of one device: names by problem, without knowing of either.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The table of a device, shared by its clones.
#[derive(Debug, Default)]
pub(crate) struct Tuning {
    choices: Mutex<BTreeMap<String, String>>,
    /// Increases with every change, so that plans that matrices remember become invalid.
    changes: AtomicU64,
}

impl Tuning {
    /// Number of changes so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// The choice for a problem.
    pub(crate) fn get(&self, problem: &str) -> Option<String> {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner).get(problem).cloned()
    }

    /// All choices.
    pub(crate) fn all(&self) -> BTreeMap<String, String> {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds choices, or replaces those for the same problems.
    pub(crate) fn add(&self, more: impl IntoIterator<Item = (String, String)>) {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner).extend(more);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }
}
