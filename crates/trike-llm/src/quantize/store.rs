//! Finished blocks on disk, so that an interrupted walk goes on.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::json;
use trike_format::{HfDir, HfDirWriter, Tensor, TensorSource};
use trike_nn::WeightName;

use super::{LayerReport, ModelQuantizationConfig, io};
use crate::{LlmError, ModelFile};

pub(super) const SETTINGS: &str = "settings.txt";
const LAYERS: &str = "layers.json";

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
        skip_patterns,
        min_layer_size,
        layers,
        prune,
        auto_encoding,
        ..
    } = config;
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "{version} {path:?} {tensors} {changed:?} {hash:016x} {layout:?} {method:?} {skip_patterns:?} {min_layer_size} {layers:?} {prune:?} \
         {auto_encoding}"
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

    /// The report of a finished block, and its weights; `None` when it is not finished.
    pub(super) fn load(&self, layer: usize) -> Result<Option<(Vec<LayerReport>, Block)>, LlmError> {
        let dir = self.block(layer);
        if !dir.join("config.json").exists() {
            if dir.exists() {
                fs::remove_dir_all(&dir).map_err(io(&dir))?;
            }
            return Ok(None);
        }
        let path = dir.join(LAYERS);
        let text = fs::read(&path).map_err(io(&path))?;
        let layers = serde_json::from_slice(&text).map_err(|e| io(&path)(e.into()))?;
        Ok(Some((layers, Block(HfDir::open(&dir)?))))
    }

    /// Keeps a finished block; one without ternary layers needs no keeping.
    pub(super) fn save(
        &self,
        layer: usize,
        layers: &[LayerReport],
        tensors: Vec<(WeightName, Tensor)>,
    ) -> Result<(), LlmError> {
        if tensors.is_empty() {
            return Ok(());
        }
        let mut writer = HfDirWriter::create(self.block(layer), json!({}))?;
        for (name, tensor) in tensors {
            writer.tensor(&name.to_string(), &tensor)?;
        }
        let path = self.block(layer).join(LAYERS);
        writer.write_file(LAYERS, &serde_json::to_vec(layers).map_err(|e| io(&path)(e.into()))?)?;
        Ok(writer.finish()?)
    }

    /// Every finished block.
    pub(super) fn blocks(&self, layers: usize) -> Result<Vec<Block>, LlmError> {
        (0..layers)
            .filter_map(|layer| self.load(layer).map(|b| b.map(|(_, block)| block)).transpose())
            .collect()
    }

    /// Puts the finished model in its place and removes everything else.
    pub(super) fn finish(self, output: &Path) -> Result<(), LlmError> {
        fs::rename(self.model(), output).map_err(io(output))?;
        fs::remove_dir_all(&self.dir).map_err(io(&self.dir))
    }
}

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
