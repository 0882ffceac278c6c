//! Finished blocks on disk, from which an interrupted run resumes.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde_json::json;
use trike_format::{
    Difference, Digest, HfDir, HfDirWriter, Identity, OutputFile, Tensor, TensorSource, publish,
};
use trike_llm::{LlmError, ModelFile};
use trike_nn::{HookPoint, WeightName};

use crate::{CalibrateError, LayerReport, ModelQuantizationConfig, TuningReport, error::io};

const SETTINGS: &str = "settings.txt";
/// Prefix of settings written by Trike; directories without it are not removed.
const MARK: &str = "trike quantize ";
/// Follows a [`MARK`] of this format; then come the facts of an [`Identity`] as JSON.
const FORMAT: &str = "2\n";
const LAYERS: &str = "layers.json";
const TUNED: &str = "tuned";
/// Suffix of the directory of generated text.
pub(crate) const TEXT: &str = ".text";
/// Its file: the sequences, one JSON array of tokens per line.
pub(crate) const SEQUENCES: &str = "sequences.jsonl";
/// File of measured sensitivities in the directory of an unfinished search.
pub(crate) const SENSITIVITIES: &str = "sensitivities.json";

/// The directory `<output>.partial`.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
    /// The settings that differ, if parts of an earlier run were removed.
    pub(crate) replaced: Option<Difference>,
}

/// The path of `output` with a suffix added to its name; trailing separators are ignored.
pub(crate) fn beside(output: &Path, suffix: &str) -> PathBuf {
    let mut name = output.components().collect::<PathBuf>().into_os_string();
    name.push(suffix);
    name.into()
}

/// State of a directory for unfinished work.
#[derive(Debug, PartialEq)]
pub(crate) enum Opened {
    /// Empty.
    New,
    /// Contains parts made with the same settings.
    Same,
    /// Empty, after removing parts made with other settings.
    Replaced(Difference),
}

/// Opens a directory for unfinished work. Content made with other settings is removed; a directory that Trike did not create is an
/// error.
pub(crate) fn resume(dir: &Path, settings: &Identity) -> Result<Opened, CalibrateError> {
    let path = dir.join(SETTINGS);
    let mut opened = Opened::New;
    if dir.exists() {
        // Not created by Trike: must not be removed.
        let found = fs::read_to_string(&path).ok();
        let Some(found) = found.as_deref().and_then(|found| found.strip_prefix(MARK)) else {
            return Err(CalibrateError::NotOurs { path: dir.to_owned() });
        };
        let facts = found.strip_prefix(FORMAT).and_then(|facts| serde_json::from_str(facts).ok());
        let facts: Vec<(String, String)> = facts.unwrap_or_default();
        let Some(difference) = settings.differs_from(&facts) else {
            // The time tells `is_resumable` that these parts are in use. It is informational: failing to set it is not an error.
            let _ = fs::File::options()
                .append(true)
                .open(&path)
                .and_then(|file| file.set_modified(SystemTime::now()));
            return Ok(Opened::Same);
        };
        fs::remove_dir_all(dir).map_err(io(dir))?;
        opened = Opened::Replaced(difference);
    }
    fs::create_dir_all(dir).map_err(io(dir))?;
    let facts = serde_json::to_string_pretty(settings.facts()).map_err(|e| io(&path)(e.into()))?;
    OutputFile::replace(&path, format!("{MARK}{FORMAT}{facts}")).map_err(io(&path))?;
    Ok(opened)
}

/// A note on parts of an earlier run that were removed.
pub(crate) fn note(difference: &Difference) -> String {
    format!("unfinished parts of an earlier run were not used and removed, because {difference}")
}

/// Whether a call of [`quantize`](crate::quantize()) or [`quantize_to`](crate::quantize_to()) that began at `since` and was
/// interrupted has left finished parts (generated text, blocks or sensitivities) from which the same call resumes. Parts left by an
/// earlier call with other options do not count.
pub fn is_resumable(output: &Path, since: SystemTime) -> bool {
    // Some file systems have a time resolution of two seconds.
    let since = since.checked_sub(Duration::from_secs(2)).unwrap_or(since);
    let opened = |dir: &Path| {
        let modified = fs::metadata(dir.join(SETTINGS)).and_then(|meta| meta.modified());
        modified.is_ok_and(|modified| modified >= since)
    };
    let finished = |entry: std::io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.path().join("config.json").exists())
    };
    let (partial, plan, text) = (beside(output, ".partial"), beside(output, ".plan"), beside(output, TEXT));
    let blocks = opened(&partial) && fs::read_dir(&partial).is_ok_and(|mut parts| parts.any(finished));
    let is_begun = fs::metadata(text.join(SEQUENCES)).is_ok_and(|meta| meta.len() > 0);
    let prices = opened(&plan) && plan.join(SENSITIVITIES).exists();
    !output.exists() && (blocks || prices || opened(&text) && is_begun)
}

/// A digest of the tokens.
fn digest(ids: &[Vec<u32>]) -> Digest {
    ids.iter().fold(Digest::default(), |digest, ids| {
        ids.iter().fold(digest, |digest, &id| digest.word(u64::from(id))).word(u64::MAX)
    })
}

/// All settings that determine the text generated by the model.
pub(crate) fn text_identity(
    input: &ModelFile,
    config: &ModelQuantizationConfig,
    seed: u64,
    longest: usize,
) -> Result<Identity, LlmError> {
    let tokenizer = config.tokenizer.as_deref().map_or_else(
        || Ok("that of the model".to_owned()),
        |path| {
            let digest = Digest::default().file(path);
            digest
                .map(|digest| digest.to_string())
                .map_err(|source| LlmError::Io { path: path.to_owned(), source })
        },
    )?;
    Ok(Identity::new()
        .with("the model", input.digest()?)
        .with("the tokenizer", tokenizer)
        .with("the seed", seed)
        .with("the longest sequence", longest))
}

/// All settings that determine a finished block; `texts` are those used for calibration and planning.
pub(crate) fn identity(
    input: &ModelFile,
    config: &ModelQuantizationConfig,
    texts: &[&[Vec<u32>]],
) -> Result<Identity, LlmError> {
    let ModelQuantizationConfig {
        layout,
        method,
        tuning,
        salience,
        rotation,
        input_rotation,
        skip_patterns,
        min_layer_size,
        layers,
        prune,
        auto_encoding,
        // Applied to the finished model.
        int8_head: _,
        // In `texts`.
        tokenizer: _,
        hold_out: _,
        device,
        // Results do not depend on it.
        threads: _,
    } = config;
    let texts: Vec<String> = texts.iter().map(|ids| digest(ids).to_string()).collect();
    Ok(Identity::new()
        .with("the model", input.digest()?)
        .with("the text", texts.join(" "))
        .with("the layout", format!("{layout:?}"))
        .with("the method", format!("{method:?}"))
        .with("the tuning", format!("{tuning:?}"))
        .with("the scaling of inputs", format!("{salience:?}"))
        .with("the rotation", format!("{rotation:?}"))
        .with("the rotation of inputs", format!("{input_rotation:?}"))
        .with("the list of skipped layers", format!("{skip_patterns:?}"))
        .with("the smallest layer", min_layer_size)
        .with("the plan", format!("{layers:?}"))
        .with("the pruning", format!("{prune:?}"))
        .with("the choice of encodings", auto_encoding)
        .with("the device of tuning", device))
}

impl Store {
    /// Opens the store of an earlier run with the same settings, or creates an empty one.
    pub(crate) fn open(output: &Path, settings: &Identity) -> Result<Self, CalibrateError> {
        let dir = beside(output, ".partial");
        let model = dir.join("model");
        let opened = resume(&dir, settings)?;
        // The contents of an unfinished model are all in the blocks.
        if opened == Opened::Same && model.exists() {
            fs::remove_dir_all(&model).map_err(io(&model))?;
        }
        let replaced = if let Opened::Replaced(difference) = opened { Some(difference) } else { None };
        Ok(Self { dir, replaced })
    }

    fn block(&self, layer: usize) -> PathBuf {
        self.dir.join(format!("block-{layer}"))
    }

    /// Directory in which the model is assembled.
    pub(crate) fn model(&self) -> PathBuf {
        self.dir.join("model")
    }

    /// Opens a directory of the store with tensors and their reports; `None` if it is not finished.
    fn open_part<T: serde::de::DeserializeOwned>(
        &self,
        dir: &Path,
    ) -> Result<Option<(T, Block)>, CalibrateError> {
        if !dir.join("config.json").exists() {
            if dir.exists() {
                fs::remove_dir_all(dir).map_err(io(dir))?;
            }
            return Ok(None);
        }
        let path = dir.join(LAYERS);
        let text = fs::read(&path).map_err(io(&path))?;
        let about = serde_json::from_slice(&text).map_err(|e| io(&path)(e.into()))?;
        Ok(Some((about, Block(HfDir::open(dir)?))))
    }

    fn save_part(
        &self,
        dir: &Path,
        about: &impl serde::Serialize,
        tensors: impl Iterator<Item = Result<(WeightName, Tensor), CalibrateError>>,
    ) -> Result<(), CalibrateError> {
        let mut writer = HfDirWriter::create(dir, json!({}))?;
        for tensor in tensors {
            let (name, tensor) = tensor?;
            writer.tensor(&name.to_string(), &tensor)?;
        }
        let path = dir.join(LAYERS);
        writer.write_file(LAYERS, &serde_json::to_vec(about).map_err(|e| io(&path)(e.into()))?)?;
        Ok(writer.finish()?)
    }

    /// Reports and weights of a finished block; `None` if it is not finished.
    pub(crate) fn load(&self, layer: usize) -> Result<Option<Finished>, CalibrateError> {
        let part = self.open_part(&self.block(layer))?;
        Ok(part.map(|((layers, tuned), block)| (layers, tuned, block)))
    }

    /// Saves a finished block; a block without ternary layers is not saved.
    pub(crate) fn save(
        &self,
        layer: usize,
        layers: &[LayerReport],
        tuned: Option<TuningReport>,
        tensors: Vec<(WeightName, Tensor)>,
    ) -> Result<(), CalibrateError> {
        if tensors.is_empty() {
            return Ok(());
        }
        self.save_part(&self.block(layer), &(layers, tuned), tensors.into_iter().map(Ok))
    }

    /// Reports of all layers, of each tuned block and of the tuned model, if tuning is finished.
    pub(crate) fn tuned(&self) -> Result<Option<TunedModel>, CalibrateError> {
        Ok(self.open_part(&self.dir.join(TUNED))?.map(|(about, _)| about))
    }

    /// Saves the weights of the tuned model, which replace those of the blocks.
    pub(crate) fn save_tuned(
        &self,
        layers: &[LayerReport],
        blocks: &[(usize, TuningReport)],
        model: [Option<TuningReport>; 2],
        tensors: impl Iterator<Item = Result<(WeightName, Tensor), CalibrateError>>,
    ) -> Result<(), CalibrateError> {
        self.save_part(&self.dir.join(TUNED), &(layers, blocks, model), tensors)
    }

    /// All finished parts; replacements come before the replaced parts.
    pub(crate) fn blocks(&self, layers: usize) -> Result<Vec<Block>, CalibrateError> {
        let tuned = self.open_part::<TunedModel>(&self.dir.join(TUNED))?.map(|(_, block)| block);
        let mut all: Vec<Block> = tuned.into_iter().collect();
        for layer in 0..layers {
            all.extend(self.load(layer)?.map(|(_, _, block)| block));
        }
        Ok(all)
    }

    /// Moves the finished model to its destination and removes everything else.
    pub(crate) fn finish(self, output: &Path) -> Result<(), CalibrateError> {
        publish(&self.model(), &beside(output, "")).map_err(io(output))?;
        fs::remove_dir_all(&self.dir).map_err(io(&self.dir))
    }
}

/// A finished block: the reports of its layers and of its tuning, and its weights.
pub(crate) type Finished = (Vec<LayerReport>, Option<TuningReport>, Block);

/// Reports of all layers, of each tuned block with its index, and of the tuned and the recovered model.
pub(crate) type TunedModel = (Vec<LayerReport>, Vec<(usize, TuningReport)>, [Option<TuningReport>; 2]);

/// The changed weights of a finished block.
#[derive(Debug)]
pub(crate) struct Block(HfDir);

impl Block {
    /// Loads a weight; `None` if it is not in the block.
    pub(crate) fn load(&self, name: WeightName) -> Option<Result<Tensor, CalibrateError>> {
        let name = name.to_string();
        self.0.info(&name)?;
        Some(self.0.load(&name).map_err(CalibrateError::from))
    }

    /// Loads all weights of the block, which belongs to this layer: matrices, and norms if they were tuned.
    pub(crate) fn all(&self, layer: usize) -> Result<Vec<(WeightName, Tensor)>, CalibrateError> {
        let matrices = HookPoint::ALL.into_iter().flat_map(|point| point.matrices(layer));
        let loaded = |name| self.load(name).map(|tensor| Ok((name, tensor?)));
        matrices.chain(WeightName::norms(layer)).filter_map(loaded).collect()
    }
}
