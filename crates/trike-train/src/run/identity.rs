//! What the result of a run depends on, so that it continues as the same run or not at all.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use trike_comm::{CommError, Communicator};
use trike_format::gguf_parts;

use super::setup::NONE;
use super::{Run, RunConfig, ranks, to_json};
use crate::TrainError;
use crate::checkpoint::{self, difference};

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// What the weights of a run depend on, beside what the trainer knows of itself (steps, optimizer, rounding). It is written into each
/// checkpoint, as `config.settings` of its `state.json`, and nowhere else; a run continues only if all of it is what it was.
///
/// Files are read once more for it when a run starts, on every rank: about a second per gigabyte on a processor with SHA instructions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Identity {
    /// The configuration without paths, in whose place the contents of files count, and without what changes no weight: where and how
    /// often something is written, and what computes.
    run: Value,
    /// Every file that is read: base model or architecture, tokenizer, teacher, data (from which the documents for the evaluation are
    /// taken, too).
    files: Vec<Contents>,
}

/// The contents of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    /// What it is for.
    of: Part,
    /// Its name, for messages: a file may be renamed.
    name: String,
    bytes: u64,
    sha256: String,
}

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

/// A file that is not what it was.
struct Change {
    of: Part,
    name: String,
    was: String,
    is: String,
}

impl Contents {
    /// Of what is read from the start of a file on.
    fn read(of: Part, path: &Path, file: &mut File) -> io::Result<Self> {
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
        let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { of, name, bytes, sha256 })
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.bytes, &self.sha256) == (other.bytes, &other.sha256)
    }

    fn words(&self) -> String {
        // As much of it as git shows of a commit.
        format!("{} bytes with SHA-256 {}", self.bytes, self.sha256.get(..12).unwrap_or(&self.sha256))
    }
}

impl Identity {
    /// That of a run, whose files are read.
    pub(super) fn of(run: &Run) -> Result<Self, TrainError> {
        let config = run.config();
        let mut files = Vec::new();
        let given = config.teacher.as_deref().filter(|path| path.as_os_str() != NONE);
        for (of, path) in [
            (Part::BaseModel, config.base_model.as_deref()),
            (Part::BaseModelConfig, config.base_model_config.as_deref()),
            (Part::Tokenizer, config.tokenizer.as_deref()),
            (Part::Teacher, given),
        ] {
            for path in path.map_or_else(|| Ok(Vec::new()), |path| files_of(of, path))? {
                let read = File::open(&path).and_then(|mut file| Contents::read(of, &path, &mut file));
                files.push(read.map_err(|source| TrainError::Io { path, source })?);
            }
        }
        run.documents.each_file(&mut |path, file| {
            files.push(Contents::read(Part::Data, path, file)?);
            Ok(())
        })?;
        Ok(Self { run: settings(config)?, files })
    }

    /// As the settings of a checkpoint.
    pub(super) fn to_json(&self) -> Result<Value, TrainError> {
        to_json(self)
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
        let old = Self::deserialize(&settings)
            .map_err(|e| wrong(format!("it does not say which files it was made from: {e}")))?;
        if let Some(Change { of, name: file, was: expected, is: got }) = self.change_from(&old) {
            let (checkpoint, what) = (path.to_owned(), of.words());
            return Err(TrainError::Changed { checkpoint, what, file, expected, got });
        }
        match difference("", &old.run, &self.run) {
            None => Ok(settings),
            Some((setting, was, is)) => {
                Err(wrong(format!("it belongs to another run: {setting} was {was}, and is {is} now")))
            }
        }
    }

    /// Checks that all ranks have the same.
    pub(super) fn agree(&self, comm: &dyn Communicator) -> Result<(), TrainError> {
        let all = ranks::of_all(comm, self)?;
        let Some(first) = all.first() else { return Ok(()) };
        for (rank, other) in all.iter().enumerate() {
            if let Some((what, first, theirs)) = difference("run", &first.run, &other.run) {
                let (first, theirs) = (first.to_string(), theirs.to_string());
                return Err(CommError::Differs { what, rank, first, theirs }.into());
            }
            if let Some(Change { of, name, was, is }) = other.change_from(first) {
                let what = format!("the {}, {name}", of.words());
                return Err(CommError::Differs { what, rank, first: was, theirs: is }.into());
            }
        }
        Ok(())
    }

    fn files_for(&self, of: Part) -> Vec<&Contents> {
        self.files.iter().filter(|file| file.of == of).collect()
    }

    /// The first file that is not what it was.
    fn change_from(&self, old: &Self) -> Option<Change> {
        Part::ALL.into_iter().find_map(|of| {
            let (was, is) = (old.files_for(of), self.files_for(of));
            if was.len() != is.len() {
                let is_gone = was.len() > is.len();
                let (more, fewer) = if is_gone { (&was, &is) } else { (&is, &was) };
                let is_there = |file: &Contents| fewer.iter().any(|other| file.is_same(other));
                let file = more.iter().find(|file| !is_there(file)).or(more.last())?;
                let (there, absent) = (file.words(), "absent".to_owned());
                let (was, is) = if is_gone { (there, absent) } else { (absent, there) };
                return Some(Change { of, name: file.name.clone(), was, is });
            }
            let (was, is) = was.iter().zip(&is).find(|(was, is)| !was.is_same(is))?;
            Some(Change { of, name: is.name.clone(), was: was.words(), is: is.words() })
        })
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
