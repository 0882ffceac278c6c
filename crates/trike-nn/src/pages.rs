//! Pages of KV caches that sequences share.

use std::any::Any;
use std::sync::Arc;

/// Keys and values of [`KV_PAGE`](crate::KV_PAGE) positions of one layer, in the memory of a backend: a reference that keeps them.
#[derive(Clone, Debug)]
pub struct SharedPage(Arc<dyn Any + Send + Sync>);

impl SharedPage {
    /// A reference to the page of a backend.
    pub fn new<P: Any + Send + Sync>(page: Arc<P>) -> Self {
        Self(page)
    }

    /// The page; `None` if it is another backend's.
    pub fn downcast<P: Any + Send + Sync>(&self) -> Option<Arc<P>> {
        Arc::clone(&self.0).downcast().ok()
    }
}

/// Keys and values of [`KV_PAGE`](crate::KV_PAGE) consecutive positions in all layers: a reference that keeps them.
///
/// From [`DecoderSequence::pages`](crate::DecoderSequence::pages), for [`DecoderSequence::adopt`](crate::DecoderSequence::adopt).
#[derive(Clone, Debug)]
pub struct KvPage {
    pub(crate) layers: Arc<[SharedPage]>,
}

impl KvPage {
    /// A number that differs between pages that exist at the same time: equal for references to the same page.
    pub fn id(&self) -> usize {
        self.layers.first().map_or(0, |page| Arc::as_ptr(&page.0).cast::<u8>().addr())
    }

    /// The number of clones of this value, itself included.
    pub fn references(&self) -> usize {
        Arc::strong_count(&self.layers)
    }
}
