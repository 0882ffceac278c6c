//! Variables of the hub's own tools.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    path::PathBuf,
};

/// Variables that configure cache and server, and may be printed.
pub(crate) const PLACES: [&str; 9] = [
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_DISABLE_PROGRESS_BARS",
    "HF_HUB_DOWNLOAD_TIMEOUT",
    "HF_HUB_ETAG_TIMEOUT",
    "HF_HUB_OFFLINE",
    "HF_TOKEN_PATH",
    "HUGGINGFACE_HUB_CACHE",
];
/// Variables that hold a token.
const SECRETS: [&str; 2] = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];
/// Variables of other programs, and switches.
const OTHERS: [&str; 5] =
    ["HF_HUB_DISABLE_IMPLICIT_TOKEN", "HOME", "LOCALAPPDATA", "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME"];

/// Values of the variables.
#[derive(Clone)]
pub(crate) struct Variables {
    values: HashMap<&'static str, OsString>,
}

impl Variables {
    pub(crate) fn read(get: impl Fn(&str) -> Option<OsString>) -> Self {
        let names = PLACES.into_iter().chain(SECRETS).chain(OTHERS);
        Self { values: names.filter_map(|name| Some((name, get(name)?))).collect() }
    }

    /// The value of a variable, if it is not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        self.values.get(name).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// Whether a variable has a value that the hub's tools treat as true.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        let value = self.get(name).map(|value| value.to_string_lossy().to_ascii_lowercase());
        value.is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.as_str()))
    }

    /// Home directory of the hub's tools.
    pub(crate) fn home(&self) -> Option<PathBuf> {
        let under = |name: &str, rest: &str| self.get(name).map(|folder| PathBuf::from(folder).join(rest));
        let own = self.get("HF_HOME").map(PathBuf::from);
        own.or_else(|| under("XDG_CACHE_HOME", "huggingface")).or_else(|| under("HOME", ".cache/huggingface"))
    }
}
