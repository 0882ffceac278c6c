//! What the fuzz targets share: a place for the input, since the readers open paths, and the walk over its tensors.
//!
//! A target passes when nothing panics, hangs or takes more memory than the engine allows; that errors name what is
//! wrong is checked here as well.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use trike_format::{FormatError, TensorSource};

/// A directory of this process, in memory where the system has such a place.
pub fn scratch() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let dir = base.join(format!("trike-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the scratch directory can be made");
        dir
    })
}

/// Puts an input where a reader finds it.
pub fn put(name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch().join(name);
    std::fs::write(&path, bytes).expect("the scratch directory can be written to");
    path
}

/// Loads every tensor of what opened.
pub fn load_all<S: TensorSource>(source: Result<S, FormatError>) {
    let source = match source {
        Ok(source) => source,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    for info in source.tensors() {
        match source.load(&info.name) {
            Ok(tensor) => {
                assert_eq!(tensor.shape().iter().product::<usize>() as u64, info.elements());
                assert!(tensor.to_f32().iter().all(|w| !w.is_nan()), "{} has a NaN", info.name);
            }
            Err(error) => assert!(error.to_string().contains(&info.name), "{error}"),
        }
    }
}
