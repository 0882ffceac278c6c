//! Models by name on the HuggingFace hub: names, the cache of the hub's tools, downloads.
//!
//! Start from [`Hub`]: it is configured by the variables of the hub's own tools, and [`Hub::find`] returns the path of a model for a
//! path, `org/name` or `tiny`.
//!
//! ```
//! use trike_hub::{Hub, HubError, ModelId};
//!
//! let hub = Hub::from_variables(|name| std::env::var_os(name));
//! let id: ModelId = "org/no-such-model".parse()?;
//! assert!(matches!(hub.cached(&id), Err(HubError::NotInCache { .. } | HubError::NoCache)));
//! # Ok::<(), HubError>(())
//! ```
//!
//! The main design decision: with the feature `download` this crate implements the hub's documented HTTP interface on `ureq`,
//! because existing client libraries do not guarantee a timeout for a silent server or a check of the announced digest. It also
//! defines in one place which redirects receive the token. The cost: large files are downloaded over plain HTTP, without the hub's
//! protocol for deduplicated chunks.
//!
//! The second decision: it does not read the environment. A caller passes the variables, so that a server or a Python program can
//! have its own.
//!
//! * names: [`ModelId`], [`HubModel`]
//! * the cache: [`HubCache`], [`CachedModel`], [`hub_shards`]
//! * variables, downloads, the bundled model: [`Hub`]
//! * errors: [`HubError`]
//!
//! `trike` re-exports it as `trike::hub`; its features `hub` and `tiny` enable downloads and the bundled model, as in the command
//! and the Python package.
#![forbid(unsafe_code)]

mod bundled;
mod cache;
mod contents;
#[cfg(feature = "download")]
mod download;
mod error;
mod hub;
mod id;
mod variables;

pub use cache::{HubCache, hub_shards};
pub use contents::CachedModel;
pub use error::HubError;
pub use hub::Hub;
pub use id::{HubModel, ModelId};
