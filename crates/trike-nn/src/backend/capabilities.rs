//! Capabilities of a backend's KV caches.

use trike_core::KvPrecision;

/// Capabilities of a backend's KV caches; `new_cache` refuses any spec beyond them.
///
/// ```
/// use trike_nn::{CacheCapabilities, KvPrecision};
///
/// let kv = &[KvPrecision::F32, KvPrecision::Int8];
/// let device = CacheCapabilities { kv, ..CacheCapabilities::default() };
/// assert!(device.can_cache(KvPrecision::Int8) && !device.can_cache(KvPrecision::F16));
/// assert_eq!(device.cache_precision(KvPrecision::Int4), KvPrecision::Int8);
/// assert_eq!(device.cache_precision(KvPrecision::F16), KvPrecision::F32);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheCapabilities {
    /// Precisions of keys and values; F32 is among them.
    pub kv: &'static [KvPrecision],
    /// Whether the layers of a sequence can differ in precision.
    pub mixed: bool,
    /// Whether an index can select the keys of a decode step.
    pub select: bool,
    /// Whether steps of several tokens support block-sparse attention.
    pub select_prompt: bool,
    /// Whether a full cache can evict positions.
    pub evict: bool,
    /// Whether caches can be in pages that sequences share.
    pub pages: bool,
}

impl Default for CacheCapabilities {
    /// Keys and values in f32 only.
    fn default() -> Self {
        let kv = &[KvPrecision::F32];
        Self { kv, mixed: false, select: false, select_prompt: false, evict: false, pages: false }
    }
}

impl CacheCapabilities {
    /// Whether keys and values can be stored in that precision.
    #[must_use]
    pub fn can_cache(&self, precision: KvPrecision) -> bool {
        self.kv.contains(&precision)
    }

    /// `wanted` if keys and values can be stored in it, else int8 instead of int4, else f16, else f32.
    #[must_use]
    pub fn cache_precision(&self, wanted: KvPrecision) -> KvPrecision {
        let larger = match wanted {
            KvPrecision::Int4 | KvPrecision::Int8Int4 => KvPrecision::Int8,
            KvPrecision::F32 | KvPrecision::F16 | KvPrecision::Int8 => wanted,
        };
        let all = [wanted, larger, KvPrecision::F16, KvPrecision::F32];
        all.into_iter().find(|&precision| self.can_cache(precision)).unwrap_or(KvPrecision::F32)
    }
}
