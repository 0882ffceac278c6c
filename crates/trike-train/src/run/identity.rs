//! What the result of a run depends on, so that it continues as the same run or not at all.

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

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// Digits of a digest in a message: as many as git shows of a commit.
const SHOWN: usize = 12;

/// What the weights of a run depend on, beside what the trainer knows of itself (steps, optimizer, rounding). It is written into each
/// checkpoint, as `config.settings` of its `state.json`, and nowhere else; a run continues only if all of it is what it was.
///
/// Files are read once more for it when a run starts, on every rank: about a second per gigabyte on a processor with SHA instructions.
pub(super) struct RunIdentity {
    /// The version of Trike; every file that is read (base model or architecture, tokenizer, teacher, data, from which the documents for
    /// the evaluation are taken, too) by what it is for, with length and digest; and the settings without paths, in whose place the
    /// contents of files count, and without those that change no weight: where and how often something is written, and what computes.
    facts: Identity,
    /// Names of the files by their facts, for messages: a file may be renamed.
    files: BTreeMap<String, String>,
}

/// A [`RunIdentity`] in a checkpoint.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    facts: Vec<(String, String)>,
    files: BTreeMap<String, String>,
}

/// A file that is not what it was.
struct Change {
    of: Part,
    name: String,
    was: String,
    is: String,
}

/// What a file is for.
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

    /// Whether a file of a directory is read for it.
    fn reads(self, file: &Path) -> bool {
        let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let is = |name: &str| file.file_name().is_some_and(|own| own == name);
        match self {
            // Only the predictions of a teacher count.
            Self::Teacher => ending == "safetensors" || is("config.json"),
            Self::Tokenizer => ["json", "jinja", "model", "txt"].contains(&ending) || is("tokenizer.bin"),
            _ => ending == "safetensors" || Self::Tokenizer.reads(file),
        }
    }
}

/// Length and digest of what is read from the start of a file on.
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

/// What [`contents`] says, for a message; of a file that is not there, that.
fn shown(contents: Option<String>) -> String {
    let Some(contents) = contents else { return "absent".to_owned() };
    let before = contents.rsplit_once(' ').map_or(0, |(before, _)| before.chars().count() + 1);
    contents.chars().take(before + SHOWN).collect()
}

impl RunIdentity {
    /// That of a run, whose files are read.
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

    /// As the settings of a checkpoint.
    pub(super) fn to_json(&self) -> Result<Value, TrainError> {
        to_json(&self.stored())
    }

    /// The settings of a checkpoint, which are those of this run.
    ///
    /// # Errors
    ///
    /// [`TrainError::Changed`] and [`TrainError::Checkpoint`] for the first thing that differs.
    pub(super) fn settings_of(&self, path: &Path) -> Result<Value, TrainError> {
        let wrong = |problem: String| TrainError::Checkpoint { path: path.to_owned(), problem };
        let mut state = checkpoint::peek(path)?;
        let settings = state.config.get_mut("settings").map(Value::take).unwrap_or_default();
        let old = Stored::deserialize(&settings)
            .map_err(|e| wrong(format!("it does not say which files it was made from: {e}")))?;
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

    /// Checks that all ranks have the same.
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
    /// The file of a fact, with its name now or earlier; `None` for a fact of no file.
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

/// Earlier and present value of a setting.
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

/// The settings that change the weights.
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
            // Where and how often something is written.
            "output_dir",
            "save_steps",
            "saves_per_epoch",
            "save_total_limit",
            "logging_steps",
            // What computes.
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

/// The files that are read at a path: itself, all parts of a divided GGUF, or those of a directory.
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

/// All files of a GGUF model in several files that are here.
fn parts_of(path: &Path) -> Option<Vec<PathBuf>> {
    let parts = gguf_parts(path.file_name()?.to_str()?)?;
    Some(parts.iter().map(|part| path.with_file_name(part)).filter(|part| part.is_file()).collect())
}
