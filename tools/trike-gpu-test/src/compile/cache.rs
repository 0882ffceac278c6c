//! Machine code of an earlier run: NVRTC and `ptxas` are asked once for each source, architecture and version of theirs.

use anyhow::{Context, Result};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::cuda::{Resources, Toolkit};
use crate::target::CudaSm;

/// A folder of PTX files, with what `ptxas` said of each as their first line.
pub(super) struct Cache {
    folder: PathBuf,
    used: Mutex<HashSet<String>>,
}

impl Cache {
    /// The cache in a folder, which is made.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn open(folder: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self { folder, used: Mutex::default() })
    }

    /// What was kept for a source.
    pub(super) fn get(&self, key: &str) -> Option<(Resources, String)> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned());
        let text = std::fs::read_to_string(self.file(key)).ok()?;
        let (first, ptx) = text.split_once('\n')?;
        // Anything else was not written by `put` to its end.
        let ptx = ptx.strip_suffix(END)?;
        let numbers: Vec<u32> =
            first.strip_prefix(START)?.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        let [registers, spilled, shared] = numbers[..] else { return None };
        Some((Resources { registers, spilled, shared }, ptx.to_owned()))
    }

    /// Keeps what came of a source.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn put(&self, key: &str, resources: &Resources, ptx: &str) -> Result<()> {
        let file = self.file(key);
        let Resources { registers, spilled, shared } = resources;
        let text = format!("{START}{registers} {spilled} {shared}\n{ptx}{END}");
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Removes what this run did not ask for.
    pub(super) fn prune(&self) {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            if stem.is_some_and(|key| !used.contains(key)) {
                // What stays is only space.
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    fn file(&self, key: &str) -> PathBuf {
        self.folder.join(key).with_extension("ptx")
    }
}

const START: &str = "// registers, spilled, shared: ";
const END: &str = "\n// end\n";

/// The name of a source with everything that its machine code depends on: 128 bits.
pub(super) fn key(toolkit: &Toolkit, source: &str, sm: CudaSm) -> String {
    // The kernel's name ends with a hash that changes with every build, and some variables have other numbers in every run.
    let source = renumbered(&source.replace(name_of(source).unwrap_or("no name"), "kernel"));
    let half = |seed: u8| {
        let mut hasher = DefaultHasher::new();
        (seed, toolkit.identity(), sm.arch(), &source).hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", half(0), half(1))
}

/// The name of the kernel of a source: the word before the arguments.
fn name_of(source: &str) -> Option<&str> {
    let (_, behind) = source.split_once("__launch_bounds__(")?;
    let (_, behind) = behind.split_once(')')?;
    let name = behind.split_once('(')?.0.trim();
    (!name.is_empty()).then_some(name)
}

/// A source with its variables (`v17`, `v17_store`, `info_v17`) numbered in the order in which they appear.
fn renumbered(source: &str) -> String {
    let mut numbers = HashMap::new();
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut before = ' ';
    while let Some(at) = rest.find('v') {
        let (head, tail) = rest.split_at(at);
        out.push_str(head);
        out.push('v');
        before = head.chars().next_back().unwrap_or(before);
        rest = &tail[1..];
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        if digits > 0 && !before.is_ascii_alphanumeric() {
            let next = numbers.len();
            let number = numbers.entry(&rest[..digits]).or_insert(next);
            out.push_str(&number.to_string());
            rest = &rest[digits..];
        }
        before = 'v';
    }
    out.push_str(rest);
    out
}

/// Length and time of a file: enough to notice another version of a compiler.
pub(super) fn stamp(file: &Path) -> String {
    let data = std::fs::metadata(file);
    let time = |data: &std::fs::Metadata| {
        data.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok().map(|since| since.as_secs())
    };
    data.map_or_else(|_| String::new(), |data| format!("{} {:?}", data.len(), time(&data)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_found_by_its_name() {
        let source = "struct s {};\nextern \"C\" __global__ void __launch_bounds__(64)  add_n_1_f8c99721(float * x) {}";
        assert_eq!(name_of(source), Some("add_n_1_f8c99721"));
        assert_eq!(name_of("void add(float * x) {}"), None);
    }

    #[test]
    fn variables_are_numbered_in_their_order() {
        let source = "int v9 = v9_store + info_v20.x; v9(v20, dv3, vv4, vector, v, uint8_t, v3);";
        let want = "int v0 = v0_store + info_v1.x; v0(v1, dv3, vv4, vector, v, uint8_t, v2);";
        assert_eq!(renumbered(source), want);
        assert_eq!(renumbered(&source.replace("20", "21")), want);
        assert_ne!(renumbered(&source.replace("(v20", "(v9")), want);
        assert_eq!(renumbered("v7"), "v0");
    }

    #[test]
    fn what_was_kept_comes_back_and_half_a_file_does_not() {
        let folder = std::env::temp_dir().join(format!("trike-cache-{}", std::process::id()));
        let cache = Cache::open(folder.clone()).unwrap();
        let resources = Resources { registers: 40, spilled: 8, shared: 4112 };
        assert_eq!(cache.get("a"), None);
        cache.put("a", &resources, ".version 8.8\nret;").unwrap();
        cache.put("b", &resources, "ret;").unwrap();
        assert_eq!(cache.get("a"), Some((resources, ".version 8.8\nret;".to_owned())));
        let whole = std::fs::read_to_string(cache.file("a")).unwrap();
        for half in ["", START, &whole[..whole.len() - 3]] {
            std::fs::write(cache.file("a"), half).unwrap();
            assert_eq!(cache.get("a"), None, "{half:?}");
        }
        cache.prune();
        assert!(cache.file("a").exists() && !cache.file("b").exists(), "asked for, not asked for");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
