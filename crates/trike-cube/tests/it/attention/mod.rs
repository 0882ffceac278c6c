//! Attention and its caches.

mod cache;
mod codes;
mod plan;
