//! Finished blocks on disk, so that an interrupted walk goes on.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::json;
use trike_format::{HfDir, HfDirWriter, Tensor, TensorSource};
use trike_nn::WeightName;

use super::{LayerReport, ModelQuantizationConfig, TuningReport, io};
use crate::{LlmError, ModelFile};

pub(super) const SETTINGS: &str = "settings.txt";
const LAYERS: &str = "layers.json";
const TUNED: &str = "tuned";

/// The directory `<output>.partial`.
#[derive(Debug)]
pub(super) struct Store {
    dir: PathBuf,
}

/// Everything that a finished block depends on, as text.
pub(super) fn fingerprint(input: &ModelFile, config: &ModelQuantizationConfig, ids: &[Vec<u32>]) -> String {
    // FNV-1a over the tokens.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for id in ids.iter().flat_map(|ids| ids.iter().copied().chain([u32::MAX])) {
        hash = (hash ^ u64::from(id)).wrapping_mul(0x0100_0000_01b3);
    }
    let path = fs::canonicalize(input.path()).unwrap_or_else(|_| input.path().to_owned());
    let tensors: u64 = input.source().tensors().iter().map(|t| t.bytes).sum();
    let changed = fs::metadata(&path).and_then(|m| m.modified()).ok();
    let ModelQuantizationConfig {
        layout,
        method,
        tuning,
        salience,
        rotation,
        skip_patterns,
        min_layer_size,
        layers,
        prune,
        auto_encoding,
        ..
    } = config;
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "{version} {path:?} {tensors} {changed:?} {hash:016x} {layout:?} {method:?} {tuning:?} {salience} {rotation:?} \
         {skip_patterns:?} {min_layer_size} {layers:?} {prune:?} {auto_encoding}"
    )
}

impl Store {
    /// Opens what an earlier walk with the same settings left, or starts empty.
    pub(super) fn open(output: &Path, settings: &str) -> Result<Self, LlmError> {
        let mut name = output.as_os_str().to_owned();
        name.push(".partial");
        let dir = PathBuf::from(name);
        let path = dir.join(SETTINGS);
        if dir.exists() {
            match fs::read_to_string(&path) {
                Ok(found) if found == settings => {
                    // A model that was not finished holds nothing that the blocks do not.
                    let model = dir.join("model");
                    if model.exists() {
                        fs::remove_dir_all(&model).map_err(io(&model))?;
                    }
                    return Ok(Self { dir });
                }
                Ok(_) => fs::remove_dir_all(&dir).map_err(io(&dir))?,
                // Not one of ours: it is not for us to remove.
                Err(_) => {
                    return Err(LlmError::Option {
                        option: "output",
                        expected: "a path beside which `.partial` is free",
                        got: dir.display().to_string(),
                    });
                }
            }
        }
        fs::create_dir_all(&dir).map_err(io(&dir))?;
        fs::write(&path, settings).map_err(io(&path))?;
        Ok(Self { dir })
    }

    fn block(&self, layer: usize) -> PathBuf {
        self.dir.join(format!("block-{layer}"))
    }

    /// Where the model is put together.
    pub(super) fn model(&self) -> PathBuf {
        self.dir.join("model")
    }

    /// Opens a directory of ours that holds tensors and what is to be said about them; `None` when it is not finished.
    fn open_part<T: serde::de::DeserializeOwned>(&self, dir: &Path) -> Result<Option<(T, Block)>, LlmError> {
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
        tensors: impl Iterator<Item = (WeightName, Tensor)>,
    ) -> Result<(), LlmError> {
        let mut writer = HfDirWriter::create(dir, json!({}))?;
        for (name, tensor) in tensors {
            writer.tensor(&name.to_string(), &tensor)?;
        }
        let path = dir.join(LAYERS);
        writer.write_file(LAYERS, &serde_json::to_vec(about).map_err(|e| io(&path)(e.into()))?)?;
        Ok(writer.finish()?)
    }

    /// The reports of a finished block, and its weights; `None` when it is not finished.
    pub(super) fn load(&self, layer: usize) -> Result<Option<Finished>, LlmError> {
        let part = self.open_part(&self.block(layer))?;
        Ok(part.map(|((layers, tuned), block)| (layers, tuned, block)))
    }

    /// Keeps a finished block; one without ternary layers needs no keeping.
    pub(super) fn save(
        &self,
        layer: usize,
        layers: &[LayerReport],
        tuned: Option<TuningReport>,
        tensors: Vec<(WeightName, Tensor)>,
    ) -> Result<(), LlmError> {
        if tensors.is_empty() {
            return Ok(());
        }
        self.save_part(&self.block(layer), &(layers, tuned), tensors.into_iter())
    }

    /// The reports of all layers, of each tuned block and of the tuned model, when this is finished.
    pub(super) fn tuned(&self) -> Result<Option<TunedModel>, LlmError> {
        Ok(self.open_part(&self.dir.join(TUNED))?.map(|(about, _)| about))
    }

    /// Keeps the weights of the tuned model, which take the place of those of the blocks.
    pub(super) fn save_tuned(
        &self,
        layers: &[LayerReport],
        blocks: &[(usize, TuningReport)],
        model: &TuningReport,
        tensors: impl Iterator<Item = (WeightName, Tensor)>,
    ) -> Result<(), LlmError> {
        self.save_part(&self.dir.join(TUNED), &(layers, blocks, model), tensors)
    }

    /// Everything that is finished, what replaces something before it.
    pub(super) fn blocks(&self, layers: usize) -> Result<Vec<Block>, LlmError> {
        let tuned = self.open_part::<TunedModel>(&self.dir.join(TUNED))?.map(|(_, block)| block);
        let mut all: Vec<Block> = tuned.into_iter().collect();
        for layer in 0..layers {
            all.extend(self.load(layer)?.map(|(_, _, block)| block));
        }
        Ok(all)
    }

    /// Puts the finished model in its place and removes everything else.
    pub(super) fn finish(self, output: &Path) -> Result<(), LlmError> {
        fs::rename(self.model(), output).map_err(io(output))?;
        fs::remove_dir_all(&self.dir).map_err(io(&self.dir))
    }
}

/// A finished block: the reports of its layers and of its tuning, and its weights.
pub(super) type Finished = (Vec<LayerReport>, Option<TuningReport>, Block);

/// The reports of all layers, of each tuned block by its number, and of the tuned model.
pub(super) type TunedModel = (Vec<LayerReport>, Vec<(usize, TuningReport)>, TuningReport);

/// The ternary weights of a finished block.
#[derive(Debug)]
pub(super) struct Block(HfDir);

impl Block {
    /// A weight; `None` when it is not one of the block's.
    pub(super) fn load(&self, name: WeightName) -> Option<Result<Tensor, LlmError>> {
        let name = name.to_string();
        self.0.info(&name)?;
        Some(self.0.load(&name).map_err(LlmError::from))
    }
}
