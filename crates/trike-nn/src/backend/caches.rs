//! KV caches.

use super::BackendBase;
use crate::{CacheSpec, NnError, SharedPage};

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

    /// An empty KV cache in pages of [`KV_PAGE`](crate::KV_PAGE) positions, which are allocated as it grows and can be shared with
    /// other sequences.
    ///
    /// # Errors
    ///
    /// [`NnError::Unsupported`] unless [`CacheCapabilities::pages`](crate::CacheCapabilities::pages).
    fn new_paged_cache(&self, spec: &CacheSpec) -> Result<Self::Cache, NnError> {
        let _ = spec;
        Err(no_pages(self.name()))
    }

    /// References to the pages of the first `positions` positions of a cache in pages that holds them.
    ///
    /// # Errors
    ///
    /// [`NnError::Unsupported`] for a cache that is not in pages.
    fn cache_pages(&self, cache: &Self::Cache, positions: usize) -> Result<Vec<SharedPage>, NnError> {
        let _ = (cache, positions);
        Err(no_pages(self.name()))
    }

    /// Makes a cache in pages refer to pages of a cache with the same shape; writing to a shared page copies it first.
    ///
    /// # Errors
    ///
    /// [`NnError::Unsupported`] for a cache that is not in pages, and for pages of another shape.
    fn adopt_pages(&self, cache: &mut Self::Cache, pages: &[SharedPage]) -> Result<(), NnError> {
        let _ = (cache, pages);
        Err(no_pages(self.name()))
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
    /// [`NnError::Unsupported`]; [`NnError::Shape`] when the bytes are those of another number of positions or another shape.
    fn restore_cache(&self, cache: &mut Self::Cache, positions: usize, saved: &[u8]) -> Result<(), NnError> {
        let _ = (cache, positions, saved);
        Err(no_saved_caches(self.name()))
    }
}

pub(crate) fn no_saved_caches(backend: String) -> NnError {
    let what = "saved keys and values".to_owned();
    NnError::Unsupported { what, backend, remedy: "only the CPU saves them, and not from pages" }
}

pub(crate) fn no_pages(backend: String) -> NnError {
    let what = "keys and values in pages".to_owned();
    NnError::Unsupported { what, backend, remedy: "the CPU has them, for caches of one shape" }
}
