//! Calibration text that the model writes, kept until the quantization is finished: writing it can take an hour.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

use trike_format::OutputFile;
use trike_llm::ModelFile;

use crate::{
    CalibrateError, ModelQuantizationConfig,
    error::io,
    store::{self, SEQUENCES, beside},
};

/// The directory `<output>.text`.
fn folder(output: &Path) -> PathBuf {
    beside(output, store::TEXT)
}

/// Removes the text of a finished quantization.
pub(crate) fn remove(output: &Path) -> Result<(), CalibrateError> {
    let folder = folder(output);
    if folder.exists() { fs::remove_dir_all(&folder).map_err(io(&folder)) } else { Ok(()) }
}

/// The text of an output: sequence `i` depends only on the settings and `i`.
pub(crate) struct OwnText {
    path: PathBuf,
    file: File,
    /// What an earlier call with the same settings has written, and this one.
    pub(crate) sequences: Vec<Vec<u32>>,
}

impl OwnText {
    /// Opens what an interrupted call has left, or starts over where its settings differ.
    pub(crate) fn open(
        output: &Path,
        input: &ModelFile,
        config: &ModelQuantizationConfig,
        seed: u64,
        longest: usize,
    ) -> Result<Self, CalibrateError> {
        let folder = folder(output);
        let path = folder.join(SEQUENCES);
        let settings = store::text_identity(input, config, seed, longest)?;
        let mut sequences: Vec<Vec<u32>> = Vec::new();
        if store::resume(&folder, &settings)? == store::Opened::Same && path.exists() {
            let vocabulary = input.config().spec.vocab;
            for line in BufReader::new(File::open(&path).map_err(io(&path))?).lines() {
                // The last line may be cut.
                let Some(ids) = line.ok().and_then(|line| serde_json::from_str::<Vec<u32>>(&line).ok())
                else {
                    break;
                };
                if ids.iter().any(|&id| id as usize >= vocabulary) {
                    break;
                }
                sequences.push(ids);
            }
        }
        let whole: Result<Vec<String>, _> = sequences.iter().map(|ids| line(ids)).collect();
        OutputFile::replace(&path, whole?.concat()).map_err(io(&path))?;
        let file = File::options().append(true).open(&path).map_err(io(&path))?;
        Ok(Self { path, file, sequences })
    }

    /// Adds the next sequence.
    pub(crate) fn push(&mut self, ids: Vec<u32>) -> Result<(), CalibrateError> {
        self.file.write_all(line(&ids)?.as_bytes()).map_err(io(&self.path))?;
        self.sequences.push(ids);
        Ok(())
    }
}

fn line(ids: &[u32]) -> Result<String, CalibrateError> {
    Ok(serde_json::to_string(ids).map_err(|e| io(Path::new(SEQUENCES))(e.into()))? + "\n")
}
