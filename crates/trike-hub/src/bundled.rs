//! The bundled model and Trike's folders. The model is unpacked into the user's cache, because models are mapped from files.

use std::path::PathBuf;

use crate::Hub;

impl Hub {
    /// Name of the bundled model.
    pub const BUNDLED: &str = "tiny";

    /// Trike's folder in the user's cache, then that in the folder for temporary files.
    pub fn folders(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let variable = |name| self.variables.get(name).map(PathBuf::from);
        let cache = variable("XDG_CACHE_HOME")
            .or_else(|| variable("LOCALAPPDATA"))
            .or_else(|| Some(variable("HOME")?.join(".cache")));
        [cache, Some(std::env::temp_dir())].into_iter().flatten().map(|folder| folder.join("trike"))
    }
}

#[cfg(feature = "bundled")]
mod unpacked {
    use std::{
        fs, io,
        path::{Path, PathBuf},
    };

    use trike_format::{Digest, OutputFile};
    use trike_models::TINY;

    use crate::{Hub, HubError};

    impl Hub {
        /// Bytes of the bundled model's files.
        #[must_use]
        pub fn bundled_bytes() -> u64 {
            TINY.iter().map(|(_, content)| content.len() as u64).sum()
        }

        /// The directory of the bundled model, written first if it is missing or incomplete.
        ///
        /// # Errors
        ///
        /// [`HubError::Io`] if it can be written neither to the cache nor to the folder for temporary files.
        pub fn bundled(&self) -> Result<PathBuf, HubError> {
            // The digest distinguishes the files of different versions.
            let digest = TINY.iter().fold(Digest::default(), |digest, (name, content)| {
                digest.bytes(name.as_bytes()).bytes(content)
            });
            let name = format!("{}-{digest}", Self::BUNDLED);
            let mut last = None;
            for folder in self.folders() {
                let place = folder.join(&name);
                if is_complete(&place) {
                    return Ok(place);
                }
                match unpack(&place) {
                    Ok(()) => return Ok(place),
                    Err(source) => last = Some(HubError::Io { path: place, source }),
                }
            }
            // The folder for temporary files always is one of them.
            Err(last.unwrap_or(HubError::NoCache))
        }
    }

    fn is_complete(place: &Path) -> bool {
        // About a megabyte: read and compared in a millisecond.
        TINY.iter().all(|(name, content)| fs::read(place.join(name)).is_ok_and(|found| found == *content))
    }

    /// Writes the files under another name, then renames the folder, so that concurrent processes do not conflict.
    fn unpack(place: &Path) -> io::Result<()> {
        let folder = place.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let temporary = place.with_extension(std::process::id().to_string());
        fs::create_dir_all(&temporary)?;
        for (name, content) in TINY {
            OutputFile::replace(temporary.join(name), content)?;
        }
        if place.is_dir() {
            // A file in it was changed or removed.
            fs::remove_dir_all(place)?;
        }
        let renamed = trike_format::publish(&temporary, place);
        if renamed.is_err() && is_complete(place) {
            // A concurrent process was faster.
            return fs::remove_dir_all(&temporary);
        }
        renamed
    }
}

#[cfg(all(test, feature = "bundled"))]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_written_again() {
        let dir = tempfile::TempDir::new().unwrap();
        let cache = dir.path().to_path_buf();
        let hub = Hub::from_variables(|name| (name == "XDG_CACHE_HOME").then(|| cache.clone().into()));
        let first = hub.bundled().unwrap();
        assert!(first.starts_with(cache.join("trike")), "{}", first.display());
        std::fs::write(first.join("config.json"), "{}").unwrap();
        assert_eq!(hub.bundled().unwrap(), first);
        assert!(std::fs::metadata(first.join("config.json")).unwrap().len() > 2);
        assert_eq!(std::fs::read_dir(cache.join("trike")).unwrap().count(), 1, "nothing else is left");
    }
}
