//! The hub, configured by the variables of its own tools.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use crate::variables::{PLACES, Variables};
use crate::{HubCache, HubError, ModelId};

/// Location of the local cache, and source of missing models.
///
/// With the feature `download`, [`path`](Self::path) downloads models missing from the cache, unless `HF_HUB_OFFLINE` or
/// `TRANSFORMERS_OFFLINE` is set.
#[derive(Clone)]
pub struct Hub {
    pub(crate) variables: Variables,
}

impl Hub {
    /// Variables of the hub's own tools that configure cache and server. Variables that hold a token are excluded, so that a
    /// program can print these.
    pub const VARIABLES: [&str; 9] = PLACES;

    /// The hub configured by these variables; `get` returns the value of a variable, as [`std::env::var_os`] does.
    pub fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> Self {
        Self { variables: Variables::read(get) }
    }

    /// Whether a variable has a value that the hub's tools treat as true.
    #[must_use]
    pub fn is_set(&self, name: &str) -> bool {
        self.variables.is_set(name)
    }

    /// The variable that forbids downloads, if it is set.
    #[must_use]
    pub fn offline(&self) -> Option<&'static str> {
        ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].into_iter().find(|name| self.is_set(name))
    }

    /// The cache, from the same variables with the same precedence as in the hub's own tools.
    ///
    /// # Errors
    ///
    /// [`HubError::NoCache`].
    pub fn cache(&self) -> Result<HubCache, HubError> {
        let named = |name| self.variables.get(name).map(PathBuf::from);
        let root = named("HF_HUB_CACHE")
            .or_else(|| named("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| self.variables.home().map(|folder| folder.join("hub")));
        root.map(HubCache::new).ok_or(HubError::NoCache)
    }

    /// The path of a model by any name: an existing path unchanged; `tiny`, the bundled model, with the feature `bundled`;
    /// `org/name` from the cache or, with the feature `download`, the server. Any other text is returned as a path. `progress` is
    /// called with the bytes downloaded and in total.
    ///
    /// ```
    /// use std::path::Path;
    /// use trike_hub::Hub;
    ///
    /// let hub = Hub::from_variables(|name| std::env::var_os(name));
    /// assert_eq!(hub.find(Path::new("."), &mut |_, _| ())?, Path::new("."));
    /// assert_eq!(hub.find(Path::new("no-such-file.gguf"), &mut |_, _| ())?, Path::new("no-such-file.gguf"));
    /// # Ok::<(), trike_hub::HubError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Errors of [`bundled`](Self::bundled), and of [`path`](Self::path) or [`cached`](Self::cached).
    pub fn find(&self, name: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<PathBuf, HubError> {
        if name.exists() {
            return Ok(name.to_owned());
        }
        #[cfg(feature = "bundled")]
        if name.as_os_str() == Self::BUNDLED {
            return self.bundled();
        }
        let Some(id) = name.to_str().and_then(|text| text.parse::<ModelId>().ok()) else {
            return Ok(name.to_owned());
        };
        #[cfg(feature = "download")]
        let found = self.path(&id, progress);
        #[cfg(not(feature = "download"))]
        let found = {
            let _ = progress;
            self.cached(&id)
        };
        match found {
            // Without a cache, it must be a path.
            Err(HubError::NoCache) => Ok(name.to_owned()),
            found => found,
        }
    }

    /// The path of a model in the cache: its snapshot directory, or a GGUF file in it. Nothing is downloaded.
    ///
    /// # Errors
    ///
    /// [`HubError::NoCache`], and errors of [`HubCache::resolve`].
    pub fn cached(&self, id: &ModelId) -> Result<PathBuf, HubError> {
        self.cache()?.resolve(id)
    }

    /// The path of a model, which is downloaded if it is not in the cache. `progress` is called with the bytes done and in total.
    ///
    /// # Errors
    ///
    /// Errors of [`cached`](Self::cached) and [`pull`](Self::pull); [`HubError::Offline`] if a variable forbids the download.
    #[cfg(feature = "download")]
    pub fn path(&self, id: &ModelId, progress: &mut dyn FnMut(u64, u64)) -> Result<PathBuf, HubError> {
        match (self.cached(id), self.offline()) {
            (Err(HubError::NotInCache { id, cache, reason }), Some(variable)) => {
                Err(HubError::Offline { id, cache, reason, variable })
            }
            (Err(HubError::NotInCache { .. }), None) => self.pull(id, progress),
            (found, _) => found,
        }
    }

    /// Downloads the missing files of the newest commit of a model's revision, and returns the model's path.
    ///
    /// # Errors
    ///
    /// [`HubError::Forbidden`], [`HubError::NoCache`], errors of the connection, of the server's responses and of the cache.
    #[cfg(feature = "download")]
    pub fn pull(&self, id: &ModelId, progress: &mut dyn FnMut(u64, u64)) -> Result<PathBuf, HubError> {
        if let Some(variable) = self.offline() {
            return Err(HubError::Forbidden { id: id.to_string(), variable });
        }
        let cache = self.cache()?;
        crate::download::download(id, &cache, crate::download::Endpoint::of(&self.variables)?, progress)?;
        cache.resolve(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(variables: &[(&str, &str)]) -> Hub {
        Hub::from_variables(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_cache_is_where_the_hubs_tools_have_it() {
        let all = [
            ("HF_HUB_CACHE", "/a", "/a"),
            ("HUGGINGFACE_HUB_CACHE", "/b", "/b"),
            ("HF_HOME", "/c", "/c/hub"),
            ("XDG_CACHE_HOME", "/d", "/d/huggingface/hub"),
            ("HOME", "/e", "/e/.cache/huggingface/hub"),
        ];
        for first in 0..all.len() {
            let set: Vec<(&str, &str)> =
                all[first..].iter().map(|(name, value, _)| (*name, *value)).collect();
            // An empty variable counts as unset.
            let set = [&[("HF_HUB_CACHE", "")][..if first == 0 { 0 } else { 1 }], &set].concat();
            assert_eq!(hub(&set).cache().unwrap().root().to_str(), Some(all[first].2));
        }
        assert!(matches!(hub(&[]).cache(), Err(HubError::NoCache)));
    }

    #[test]
    fn downloads_are_forbidden_by_what_the_hubs_tools_take_as_true() {
        for (value, forbidden) in
            [("1", true), ("ON", true), ("yes", true), ("true", true), ("0", false), ("", false)]
        {
            for name in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
                assert_eq!(hub(&[(name, value)]).offline(), forbidden.then_some(name), "{value}");
            }
        }
    }

    #[cfg(feature = "download")]
    #[test]
    fn a_missing_model_says_which_variable_forbids_its_download() {
        let dir = tempfile::TempDir::new().unwrap();
        let root = dir.path().to_str().unwrap();
        let hub = hub(&[("HF_HUB_CACHE", root), ("TRANSFORMERS_OFFLINE", "1")]);
        let id = "org/name".parse().unwrap();
        let path = hub.path(&id, &mut |_, _| ()).unwrap_err().to_string();
        assert!(path.contains(root) && path.contains("TRANSFORMERS_OFFLINE is set: unset it"), "{path}");
        let pull = hub.pull(&id, &mut |_, _| ()).unwrap_err().to_string();
        assert_eq!(pull, "TRANSFORMERS_OFFLINE is set: unset it to download org/name");
    }
}
