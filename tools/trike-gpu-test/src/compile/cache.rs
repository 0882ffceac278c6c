//! Caches of earlier runs, so that nothing is generated or compiled twice.
//!
//! * [`Outcomes`]: build results of forms, keyed by all parameters of the form. They are valid for one build of this
//!   program and one version of NVIDIA's compilers: kernels, CubeCL's generators and the target descriptions are all
//!   compiled into the program, so another build starts from scratch.
//! * [`machine_code`] and [`keep_machine_code`]: PTX files in a folder, keyed by the hash of their source. They remain
//!   valid for other builds: most sources are unchanged when one kernel changes.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::cuda::{Resources, Toolkit};
use super::{Code, Machine};
use crate::target::CudaSm;

/// Build results of forms, as lines of JSON in a file named after everything that they depend on.
pub(super) struct Outcomes {
    known: HashMap<String, Value>,
    path: PathBuf,
    file: Mutex<File>,
}

impl Outcomes {
    /// Opens the results of this program with these compilers in a folder, which is created if necessary.
    ///
    /// # Errors
    /// When the folder or the file cannot be written, or this program cannot be read.
    pub(super) fn open(folder: &Path, compilers: &str) -> Result<Self> {
        let program = std::env::current_exe().context("this program has no path")?;
        Self::open_for(folder, &format!("{} {compilers}", hash_of(&program)?))
    }

    fn open_for(folder: &Path, identity: &str) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(format!("{}.jsonl", hash(identity)));
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        // A truncated line was written by a run that was killed.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let known = lines.filter_map(|line| Some((line["form"].as_str()?.to_owned(), line))).collect();
        let file = File::options().create(true).append(true).open(&path);
        let mut file = file.with_context(|| format!("cannot write {}", path.display()))?;
        if !text.is_empty() && !text.ends_with('\n') {
            writeln!(file)?;
        }
        Ok(Self { known, path, file: Mutex::new(file) })
    }

    /// The source file and build result of a form, if the file still exists.
    pub(super) fn get(&self, form: &str) -> Option<(PathBuf, Code)> {
        let line = self.known.get(form)?;
        let number = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
        let source = PathBuf::from(line["source"].as_str()?);
        let machine = match &line["machine"] {
            Value::Null => None,
            machine => {
                let small = |name: &str| number(&machine[name]).and_then(|n| u32::try_from(n).ok());
                let resources = Resources {
                    registers: small("registers")?,
                    spilled: small("spilled")?,
                    shared: small("shared")?,
                };
                let instructions = machine["instructions"].as_array()?.iter();
                let instructions: Option<_> = instructions.map(|i| Some(i.as_str()?.to_owned())).collect();
                Some(Machine { resources, instructions: instructions? })
            }
        };
        let (source_bytes, dynamic_shared) =
            (number(&line["source_bytes"])?, number(&line["dynamic_shared"])?);
        source.is_file().then_some((source, Code { source_bytes, dynamic_shared, machine }))
    }

    /// Stores the result of a form. Failures are not stored: they may have other causes.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn put(&self, form: &str, source: &Path, code: &Code) -> Result<()> {
        let machine = code.machine.as_ref().map(|Machine { resources, instructions }| {
            let Resources { registers, spilled, shared } = resources;
            json!({ "registers": registers, "spilled": spilled, "shared": shared, "instructions": instructions })
        });
        let Code { source_bytes, dynamic_shared, .. } = code;
        let source = source.to_str().context("the folder's name is not text")?;
        let line = json!({
            "form": form, "source": source, "source_bytes": source_bytes, "dynamic_shared": dynamic_shared,
            "machine": machine,
        });
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // A single write, so that a killed run leaves whole lines.
        file.write_all(format!("{line}\n").as_bytes())
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Removes the results of other programs.
    pub(super) fn prune(&self) {
        let folder = self.path.parent().into_iter().flat_map(std::fs::read_dir);
        for path in folder.flatten().flatten().map(|entry| entry.path()).filter(|path| *path != self.path) {
            // Errors are ignored: leftovers only take up space.
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Reads stored PTX and its resource usage.
pub(super) fn machine_code(file: &Path) -> Option<(Resources, String)> {
    let text = std::fs::read_to_string(file).ok()?;
    let (first, ptx) = text.split_once('\n')?;
    // Without the end marker, the file was not written completely.
    let ptx = ptx.strip_suffix(END)?;
    let numbers: Vec<u32> =
        first.strip_prefix(START)?.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [registers, spilled, shared] = numbers[..] else { return None };
    Some((Resources { registers, spilled, shared }, ptx.to_owned()))
}

/// Stores PTX, with the resource usage of its machine code in the first line.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn keep_machine_code(file: &Path, resources: &Resources, ptx: &str) -> Result<()> {
    let Resources { registers, spilled, shared } = resources;
    let text = format!("{START}{registers} {spilled} {shared}\n{ptx}{END}");
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

const START: &str = "// registers, spilled, shared: ";
const END: &str = "\n// end\n";

/// The name of a source: a hash of everything that its machine code depends on.
pub(super) fn key(toolkit: &Toolkit, source: &str, sm: CudaSm) -> String {
    hash(&(toolkit.identity(), sm.arch(), comparable(source)))
}

/// Normalizes a source for comparison across runs: some variables get different numbers each time, and the kernel's
/// name ends with a hash.
pub(super) fn comparable(source: &str) -> String {
    renumbered(&source.replace(name_of(source).unwrap_or("no name"), "kernel"))
}

/// A 128-bit hash as text.
pub(super) fn hash<T: Hash + ?Sized>(value: &T) -> String {
    let half = |seed: u8| {
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        value.hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", half(0), half(1))
}

/// The hash of a file.
fn hash_of(file: &Path) -> Result<String> {
    let cannot = || format!("cannot read {}", file.display());
    let mut open = File::open(file).with_context(cannot)?;
    let mut hashers = [DefaultHasher::new(), DefaultHasher::new()];
    1u8.hash(&mut hashers[1]);
    let mut piece = vec![0; 1 << 20];
    loop {
        let read = open.read(&mut piece).with_context(cannot)?;
        if read == 0 {
            let [first, second] = hashers.map(|hasher| hasher.finish());
            return Ok(format!("{first:016x}{second:016x}"));
        }
        for hasher in &mut hashers {
            hasher.write(&piece[..read]);
        }
    }
}

/// The name of the kernel in a source: the word before the arguments.
fn name_of(source: &str) -> Option<&str> {
    let (_, behind) = source.split_once("__launch_bounds__(")?;
    let (_, behind) = behind.split_once(')')?;
    let name = behind.split_once('(')?.0.trim();
    (!name.is_empty()).then_some(name)
}

/// Renumbers the variables of a source (`v17`, `v17_store`, `info_v17`) in order of appearance.
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
        std::fs::create_dir_all(&folder).unwrap();
        let resources = Resources { registers: 40, spilled: 8, shared: 4112 };
        let file = folder.join("a.ptx");
        assert_eq!(machine_code(&file), None);
        keep_machine_code(&file, &resources, ".version 8.8\nret;").unwrap();
        assert_eq!(machine_code(&file), Some((resources, ".version 8.8\nret;".to_owned())));
        let whole = std::fs::read_to_string(&file).unwrap();
        for half in ["", START, &whole[..whole.len() - 3]] {
            std::fs::write(&file, half).unwrap();
            assert_eq!(machine_code(&file), None, "{half:?}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn outcomes_are_those_of_one_program_and_of_sources_that_are_there() {
        let folder = std::env::temp_dir().join(format!("trike-outcomes-{}", std::process::id()));
        let outcomes = Outcomes::open_for(&folder, "program 1").unwrap();
        let source = folder.join("a.cu");
        std::fs::write(&source, "text").unwrap();
        let resources = Resources { registers: 40, spilled: 8, shared: 4112 };
        let machine = Some(Machine { resources, instructions: vec!["ret".to_owned()] });
        let code = Code { source_bytes: 4, dynamic_shared: 16, machine };
        outcomes.put("first", &source, &code).unwrap();
        outcomes.put("second", &source, &Code { machine: None, ..code.clone() }).unwrap();
        assert_eq!(outcomes.get("first"), None, "read when it is opened");
        let again = Outcomes::open_for(&folder, "program 1").unwrap();
        assert_eq!(again.get("first"), Some((source.clone(), code.clone())));
        assert!(again.get("second").is_some_and(|(_, code)| code.machine.is_none()));
        let other = Outcomes::open_for(&folder, "program 2").unwrap();
        assert_eq!(other.get("first"), None);
        // A run that was ended while it wrote.
        let text = std::fs::read_to_string(&again.path).unwrap();
        std::fs::write(&again.path, &text[..text.len() - 5]).unwrap();
        let cut = Outcomes::open_for(&folder, "program 1").unwrap();
        assert!(cut.get("first").is_some() && cut.get("second").is_none());
        cut.put("third", &source, &code).unwrap();
        let mended = Outcomes::open_for(&folder, "program 1").unwrap();
        assert!(mended.get("third").is_some());
        std::fs::remove_file(&source).unwrap();
        assert_eq!(mended.get("first"), None, "its source is gone");
        mended.prune();
        assert!(mended.path.exists() && !other.path.exists());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn any_byte_of_a_program_counts() {
        let file = std::env::temp_dir().join(format!("trike-program-{}", std::process::id()));
        let hashes: Vec<String> = [&b"one program"[..], b"one pr0gram", b"one program "]
            .iter()
            .map(|bytes| {
                std::fs::write(&file, bytes).unwrap();
                hash_of(&file).unwrap()
            })
            .collect();
        assert!(hashes[0] != hashes[1] && hashes[0] != hashes[2] && hashes[1] != hashes[2]);
        std::fs::remove_file(file).unwrap();
    }
}
