//! KV caches.

use super::BackendBase;
use crate::{CacheSpec, NnError};

/// KV caches of a backend.
pub trait BackendCaches: BackendBase {
    /// An empty KV cache.
    ///
    /// # Errors
    ///
    /// When it does not fit in memory.
    fn new_cache(&self, spec: &CacheSpec) -> Result<Self::Cache, NnError>;

    /// Empty KV caches of the same layer of several sequences, which a backend may place so that tokens of these sequences cost
    /// fewer launches.
    ///
    /// # Errors
    ///
    /// As [`new_cache`](Self::new_cache).
    fn new_caches(&self, spec: &CacheSpec, count: usize) -> Result<Vec<Self::Cache>, NnError> {
        (0..count).map(|_| self.new_cache(spec)).collect()
    }

    /// The keys and values of the first `positions` positions of a cache that holds them, for [`restore_cache`](Self::restore_cache)
    /// of a backend with the same name on the same kind of machine.
    ///
    /// # Errors
    ///
    /// [`NnError::Unsupported`].
    fn save_cache(&self, cache: &Self::Cache, positions: usize) -> Result<Vec<u8>, NnError> {
        let _ = (cache, positions);
        Err(no_saved_caches(self.name()))
    }

    /// Writes saved keys and values of the first `positions` positions into a cache with the same shape but for its capacity.
    ///
    /// # Errors
    ///
    /// [`NnError::Unsupported`]; [`NnError::SavedCache`] when the bytes are those of another number of positions or another shape.
    fn restore_cache(&self, cache: &mut Self::Cache, positions: usize, saved: &[u8]) -> Result<(), NnError> {
        let _ = (cache, positions, saved);
        Err(no_saved_caches(self.name()))
    }
}

fn no_saved_caches(backend: String) -> NnError {
    let what = "saved keys and values".to_owned();
    NnError::Unsupported { what, backend, remedy: "only the CPU saves them" }
}
