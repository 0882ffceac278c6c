//! Everything that determines the result of a run, so that it resumes as the same run or not at all.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use trike_comm::{CommError, Communicator};
use trike_format::{Difference, Identity, gguf_parts};

use super::setup::NONE;
use super::{Run, RunConfig, ranks, to_json};
use crate::TrainError;
use crate::checkpoint;

/// Bytes per read.
const PIECE: usize = 1 << 20;
/// Number of digest digits in a message, as many as git shows of a commit.
const SHOWN: usize = 12;

/// The inputs that determine the weights of a run, in addition to the trainer's own settings (steps, optimizer, rounding). It is
/// stored in each checkpoint, as `config.settings` of its `state.json`; a run resumes only if all of it is unchanged.
///
/// Every rank hashes the files when a run starts: about a second per gigabyte on a CPU with SHA instructions.
pub(super) struct RunIdentity {
    /// The version of Trike; the size and digest of every input file by its role (base model or architecture, tokenizer, teacher,
    /// data, including the held-out documents); and the settings, except paths, which the digests replace, and except those without
    /// effect on the weights: output paths and intervals, and the device.
    facts: Identity,
    /// File names of the facts, for messages only: a file may be renamed.
    files: BTreeMap<String, String>,
}

/// A [`RunIdentity`] in a checkpoint.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    facts: Vec<(String, String)>,
    files: BTreeMap<String, String>,
}

/// A file that has changed.
struct Change {
    of: Part,
    name: String,
    was: String,
    is: String,
}

/// The role of a file.
#[derive(Clone, Copy)]
enum Part {
    BaseModel,
    BaseModelConfig,
    Tokenizer,
    Teacher,
    Data,
}

impl Part {
    const ALL: [Self; 5] =
        [Self::BaseModel, Self::BaseModelConfig, Self::Tokenizer, Self::Teacher, Self::Data];

    fn words(self) -> &'static str {
        match self {
            Self::BaseModel => "base model",
            Self::BaseModelConfig => "architecture",
            Self::Tokenizer => "tokenizer",
            Self::Teacher => "teacher",
            Self::Data => "data",
        }
    }

    /// Whether a file of a directory is an input of this role.
    fn reads(self, file: &Path) -> bool {
        let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let is = |name: &str| file.file_name().is_some_and(|own| own == name);
        match self {
            // Only the teacher's predictions matter.
            Self::Teacher => ending == "safetensors" || is("config.json"),
            Self::Tokenizer => ["json", "jinja", "model", "txt"].contains(&ending) || is("tokenizer.bin"),
            _ => ending == "safetensors" || Self::Tokenizer.reads(file),
        }
    }
}

/// Size and digest of a file from its current position.
fn contents(file: &mut File) -> io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => {
                hash.update(&piece[..read]);
                bytes += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{bytes} bytes with SHA-256 {digest}"))
}

/// The result of [`contents`] for a message; for a missing file, that it is absent.
fn shown(contents: Option<String>) -> String {
    let Some(contents) = contents else { return "absent".to_owned() };
    let before = contents.rsplit_once(' ').map_or(0, |(before, _)| before.chars().count() + 1);
    contents.chars().take(before + SHOWN).collect()
}

impl RunIdentity {
    /// The identity of a run; reads its files.
    pub(super) fn of(run: &Run) -> Result<Self, TrainError> {
        let config = run.config();
        let mut all = Self { facts: Identity::new(), files: BTreeMap::new() };
        let given = config.teacher.as_deref().filter(|path| path.as_os_str() != NONE);
        for (of, path) in [
            (Part::BaseModel, config.base_model.as_deref()),
            (Part::BaseModelConfig, config.base_model_config.as_deref()),
            (Part::Tokenizer, config.tokenizer.as_deref()),
            (Part::Teacher, given),
        ] {
            for path in path.map_or_else(|| Ok(Vec::new()), |path| files_of(of, path))? {
                let read = File::open(&path).and_then(|mut file| contents(&mut file));
                all = all.with_file(
                    of,
                    &path,
                    read.map_err(|source| TrainError::Io { path: path.clone(), source })?,
                );
            }
        }
        let mut data = Vec::new();
        run.documents.each_file(&mut |path, file| {
            data.push((path.to_owned(), contents(file)?));
            Ok(())
        })?;
        for (path, contents) in data {
            all = all.with_file(Part::Data, &path, contents);
        }
        let mut leaves = Vec::new();
        flatten("", &settings(config)?, &mut leaves);
        all.facts = leaves.into_iter().fold(all.facts, |facts, (name, value)| facts.with(&name, value));
        Ok(all)
    }

    fn with_file(mut self, of: Part, path: &Path, contents: String) -> Self {
        let of = of.words();
        let number = 1 + self.files.keys().filter(|fact| fact.starts_with(of)).count();
        let fact = format!("{of} {number}");
        self.facts = self.facts.with(&fact, contents);
        self.files.insert(fact, path.file_name().unwrap_or_default().to_string_lossy().into_owned());
        self
    }

    fn stored(&self) -> Stored {
        Stored { facts: self.facts.facts().to_vec(), files: self.files.clone() }
    }

    /// In the form of a checkpoint's settings.
    pub(super) fn to_json(&self) -> Result<Value, TrainError> {
        to_json(&self.stored())
    }

    /// The settings of a checkpoint, which must equal the settings of this run.
    ///
    /// # Errors
    ///
    /// [`TrainError::Changed`] and [`TrainError::Checkpoint`] for the first difference.
    pub(super) fn settings_of(&self, path: &Path) -> Result<Value, TrainError> {
        let wrong = |problem: String| TrainError::Checkpoint { path: path.to_owned(), problem };
        let mut state = checkpoint::peek(path)?;
        let settings = state.config.get_mut("settings").map(Value::take).unwrap_or_default();
        let old = Stored::deserialize(&settings)
            .map_err(|e| wrong(format!("it does not name its input files: {e}")))?;
        let Some(difference) = self.facts.differs_from(&old.facts) else { return Ok(settings) };
        Err(match Change::of(&difference, &self.files, &old.files) {
            Some(Change { of, name: file, was: expected, is: got }) => {
                TrainError::Changed { checkpoint: path.to_owned(), what: of.words(), file, expected, got }
            }
            None => {
                let [was, is] = values(&difference);
                wrong(format!("it belongs to another run: {} was {was}, and is {is} now", difference.fact))
            }
        })
    }

    /// Checks that all ranks have the same identity.
    pub(super) fn agree(&self, comm: &dyn Communicator) -> Result<(), TrainError> {
        let all = ranks::of_all(comm, &self.stored())?;
        let Some(first) = all.first() else { return Ok(()) };
        for (rank, other) in all.iter().enumerate() {
            let Some(difference) = Difference::between(&first.facts, &other.facts) else { continue };
            let (what, was, is) = match Change::of(&difference, &other.files, &first.files) {
                Some(Change { of, name, was, is }) => (format!("the {}, {name}", of.words()), was, is),
                None => {
                    let [was, is] = values(&difference);
                    (format!("run.{}", difference.fact), was, is)
                }
            };
            return Err(CommError::Differs { what, rank, first: was, theirs: is }.into());
        }
        Ok(())
    }
}

impl Change {
    /// The current or earlier file name of a fact; `None` for a fact that is not a file.
    fn of(
        difference: &Difference,
        now: &BTreeMap<String, String>,
        earlier: &BTreeMap<String, String>,
    ) -> Option<Self> {
        let Difference { fact, stored, now: is } = difference;
        let name = now.get(fact).or_else(|| earlier.get(fact))?.clone();
        let of = Part::ALL.into_iter().find(|part| fact.starts_with(part.words()))?;
        Some(Self { of, name, was: shown(stored.clone()), is: shown(is.clone()) })
    }
}

/// Earlier and current value of a setting.
fn values(Difference { stored, now, .. }: &Difference) -> [String; 2] {
    [stored, now].map(|value| value.clone().unwrap_or_else(|| "not recorded".to_owned()))
}

/// The leaves of an object, with their paths.
fn flatten(path: &str, value: &Value, leaves: &mut Vec<(String, String)>) {
    match value {
        Value::Object(object) if !object.is_empty() => object.iter().for_each(|(name, value)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            flatten(&path, value, leaves);
        }),
        value => leaves.push((path.to_owned(), value.to_string())),
    }
}

/// The settings that affect the weights.
fn settings(config: &RunConfig) -> Result<Value, TrainError> {
    let mut all = to_json(config)?;
    let teacher = match &config.teacher {
        None => "default",
        Some(path) if path.as_os_str() == NONE => NONE,
        Some(_) => "given",
    };
    if let Some(object) = all.as_object_mut() {
        for name in [
            // Files, whose contents count.
            "base_model",
            "base_model_config",
            "tokenizer",
            // Output paths and intervals.
            "output_dir",
            "save_steps",
            "saves_per_epoch",
            "save_total_limit",
            "logging_steps",
            // The executor.
            "device",
            "memory_limit",
            "parallel",
        ] {
            object.remove(name);
        }
        object.insert("teacher".to_owned(), teacher.into());
        for data in object.get_mut("datasets").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(data) = data.as_object_mut() {
                data.remove("path");
            }
        }
    }
    Ok(all)
}

/// The files of a path: itself, all parts of a split GGUF, or the files of a directory.
fn files_of(of: Part, path: &Path) -> Result<Vec<PathBuf>, TrainError> {
    let io = |source| TrainError::Io { path: path.to_owned(), source };
    if !path.is_dir() {
        return Ok(parts_of(path).unwrap_or_else(|| vec![path.to_owned()]));
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(io)? {
        let file = entry.map_err(io)?.path();
        if of.reads(&file) && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// All parts of a split GGUF model, if they exist.
fn parts_of(path: &Path) -> Option<Vec<PathBuf>> {
    let parts = gguf_parts(path.file_name()?.to_str()?)?;
    Some(parts.iter().map(|part| path.with_file_name(part)).filter(|part| part.is_file()).collect())
}
