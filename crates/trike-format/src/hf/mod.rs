//! HuggingFace model directories: `config.json`, safetensors, and accompanying files.

mod bitnet;
mod container;
mod overwrite;
mod packed;
mod parts;
mod scheme;
mod shards;
mod writer;

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

use bitnet::{BitNet, Packing};
use container::{Container, Slot};
use packed::Packed;
use safetensors::Dtype;
use scheme::Scheme;
use serde_json::Value;
use trike_core::Tiles;
use trike_host::FileRange;
pub use writer::HfDirWriter;

use crate::{
    DenseData, DenseTensor, FormatError, StoredType, Tensor, TensorInfo, TensorSource, bytes,
    error::{Place, io_error},
    look::{self, LFS, LFS_FOUND, LFS_REMEDY, not_a_model},
};

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const WEIGHTS: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The largest real JSON files of a model directory, indices of unmerged experts, have about 10 MB.
const MAX_JSON_BYTES: u64 = 16 << 20;

/// A HuggingFace model directory, dense or packed by Trike, in one file or in shards.
///
/// Opening reads `config.json`, the index if present, and the headers of the safetensors files. Tensors have the
/// names of the checkpoint, in natural sort order. Dense tensors of `F32`, `F16` and `BF16` load as [`Tensor::Dense`];
/// other types are listed, but loading them is an error. Trike's `quantization_config` lists the packed tensors; they
/// have the names of the originals (`<name>.weight`, not `<name>.weight.trits`) and load as [`Tensor::Ternary`] or
/// [`Tensor::Int8`].
///
/// Weights packed with `quant_method: "bitnet"` load as [`Tensor::Ternary`], 2-bit, with one f32 scale; their
/// `weight_scale` is not listed separately. `linear_class` determines the meaning of that scale: with `"autobitlinear"`
/// it is a factor, with `"bitlinear"` (the default) a divisor, whose reciprocal, rounded to f32, becomes the scale.
/// With `quantization_mode: "online"`, the master weights load as stored; see
/// [`online_ternary`](Self::online_ternary). Any other method is rejected by name.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model");
/// use serde_json::json;
/// use trike_format::{HfDir, HfDirWriter, TensorSource};
/// use trike_trit::{Encoding, Scales, TritTensor};
///
/// let w = TritTensor::from_trits(2, 3, &[1, 0, -1, 0, 1, 1], Encoding::Base3, Scales::tensor(0.5))?;
/// let mut writer = HfDirWriter::create(&path, json!({ "model_type": "llama" }))?;
/// writer.tensor("q_proj.weight", &w.clone().into())?;
/// writer.finish()?;
///
/// let dir = HfDir::open(&path)?;
/// assert_eq!(dir.config()["model_type"], "llama");
/// assert_eq!(dir.tensors()[0].kind.to_string(), "trits base3");
/// assert_eq!(dir.load("q_proj.weight")?, w.into());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct HfDir {
    path: PathBuf,
    config: Value,
    containers: Vec<Container>,
    tensors: Vec<TensorInfo>,
    entries: HashMap<String, Entry>,
    bitnet: Option<BitNet>,
}

/// Location of a tensor.
#[derive(Debug)]
struct Entry {
    /// Index in the list of tensors.
    info: usize,
    stored: Stored,
}

#[derive(Debug)]
enum Stored {
    /// Container and slot of a dense tensor.
    Dense(usize, Slot),
    /// The parts of a packed tensor: name suffix, container, slot.
    Packed(Packed, Vec<(&'static str, usize, Slot)>),
    /// Container and slot of the packed weight, and of its scale.
    BitNet((usize, Slot), (usize, Slot)),
}

impl Stored {
    /// The containers of the parts.
    fn files(&self) -> impl Iterator<Item = usize> {
        let (parts, others): (&[_], Vec<usize>) = match self {
            Self::Dense(file, _) => (&[], vec![*file]),
            Self::Packed(_, parts) => (parts, Vec::new()),
            Self::BitNet((weight, _), (scale, _)) => (&[], vec![*weight, *scale]),
        };
        parts.iter().map(|(_, file, _)| *file).chain(others)
    }
}

impl HfDir {
    /// Opens a directory.
    ///
    /// # Errors
    ///
    /// Files are missing or damaged, the weights are in an unsupported format (named in the error), a shard contradicts
    /// the index, a part of a packed tensor is missing or has the wrong type or shape, or the `quantization_config`
    /// requires an unknown feature.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, FormatError> {
        let path = dir.as_ref().to_owned();
        let config_path = path.join(CONFIG);
        let config = read_json(&config_path)?;
        if !config.is_object() {
            return Err(FormatError::Header {
                path: config_path,
                what: "the configuration".to_owned(),
                expected: "a JSON object".to_owned(),
                got: "another kind of value".to_owned(),
            });
        }
        let (descriptions, bitnet) = match Scheme::of(&config_path, &config)? {
            Scheme::Dense => (Vec::new(), None),
            Scheme::Trike(descriptions) => (descriptions, None),
            Scheme::BitNet(bitnet) => (Vec::new(), Some(bitnet)),
        };
        let containers = shards::open(&path)?;

        let mut stored: Vec<(String, Stored)> = Vec::new();
        let mut parts: HashSet<String> = HashSet::new();
        for (name, description) in descriptions {
            let place = Place { path: &path, tensor: &name };
            let find = |suffix: &str| packed::find_slot(&containers, &format!("{name}{suffix}"));
            let found = packed::check_parts(place, &description, find)?;
            parts.extend(found.iter().map(|(suffix, ..)| format!("{name}{suffix}")));
            stored.push((name, Stored::Packed(description, found)));
        }
        let packings = bitnet.as_ref().map(|bitnet| bitnet.packings(&path, &containers)).transpose()?;
        for Packing { name, scale_name, weight, scale } in packings.unwrap_or_default() {
            parts.extend([name.clone(), scale_name]);
            stored.push((name, Stored::BitNet(weight, scale)));
        }
        for (i, container) in containers.iter().enumerate() {
            let whole = container.names().filter(|name| !parts.contains(*name));
            stored.extend(whole.filter_map(|name| {
                container.slot(name).map(|slot| (name.to_owned(), Stored::Dense(i, slot.clone())))
            }));
        }
        stored.sort_by_cached_key(|(name, _)| natural_key(name));

        let mut tensors: Vec<TensorInfo> = Vec::with_capacity(stored.len());
        let mut entries = HashMap::with_capacity(stored.len());
        for (name, stored) in stored {
            tensors.push(info(name.clone(), &stored));
            if entries.insert(name.clone(), Entry { info: tensors.len() - 1, stored }).is_some() {
                let place = Place { path: &path, tensor: &name };
                return Err(place.layout("unique tensor names", "the name twice"));
            }
        }
        Ok(Self { path, config, containers, tensors, entries, bitnet })
    }

    /// `config.json`, always an object.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// Whether the directory contains a BitNet model whose layers ternarize their weights in every forward pass
    /// (`quantization_mode: "online"`, often named `-bf16`). Its tensors load as stored; those for which
    /// [`is_online_ternary`](Self::is_online_ternary) is true must be converted with [`absmean_trits`](crate::absmean_trits).
    pub fn online_ternary(&self) -> bool {
        self.bitnet.as_ref().is_some_and(|bitnet| bitnet.online)
    }

    /// Whether a tensor of such a model is the weight of a layer that ternarizes it: a matrix named `<module>.weight`
    /// whose module is neither an embedding nor in `modules_to_not_convert` (by default the LM head).
    pub fn is_online_ternary(&self, name: &str) -> bool {
        let matrix = self.info(name).is_some_and(|info| info.shape.len() == 2);
        matrix && self.bitnet.as_ref().is_some_and(|bitnet| bitnet.is_online_ternary(name))
    }

    /// A tensor in the order of the host kernels, without a copy: its parts stay mapped as long as they are used. Only the lengths
    /// are checked; the code that computes with the tiles must validate codes and scales. `None` for a tensor in another order.
    ///
    /// # Errors
    ///
    /// [`FormatError::MissingTensor`], [`FormatError::Changed`].
    pub fn tiles(&self, name: &str) -> Result<Option<Tiles<FileRange>>, FormatError> {
        let missing = || Place { path: &self.path, tensor: name }.missing();
        if cfg!(target_endian = "big") {
            // Files are little-endian.
            return Ok(None);
        }
        let Stored::Packed(description, parts) = &self.entries.get(name).ok_or_else(missing)?.stored else {
            return Ok(None);
        };
        for (_, file, _) in parts {
            self.containers[*file].check()?;
        }
        Ok(description.tiles(|suffix| {
            let (_, file, slot) = parts.iter().find(|(s, ..)| *s == suffix)?;
            self.containers[*file].range(slot)
        }))
    }

    /// The path of a file of the directory, such as `tokenizer.json`; `None` if it does not exist.
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        let path = self.path.join(name);
        path.is_file().then_some(path)
    }
}

fn info(name: String, stored: &Stored) -> TensorInfo {
    match stored {
        Stored::Dense(_, slot) => {
            let kind = match slot.dtype {
                Dtype::F32 => StoredType::F32,
                Dtype::F16 => StoredType::F16,
                Dtype::BF16 => StoredType::Bf16,
                other => StoredType::Unsupported(other.to_string()),
            };
            TensorInfo { name, shape: slot.shape.clone(), kind, bytes: slot.len as u64 }
        }
        Stored::Packed(description, parts) => TensorInfo {
            name,
            shape: vec![description.rows, description.cols],
            kind: description.kind(),
            bytes: parts.iter().map(|(_, _, slot)| slot.len as u64).sum(),
        },
        Stored::BitNet((_, weight), (_, scale)) => {
            // Checked at open: the shape is valid.
            let (rows, cols) = bitnet::shape(weight).unwrap_or_default();
            let bytes = (weight.len + scale.len) as u64;
            TensorInfo { name, shape: vec![rows, cols], kind: StoredType::BitNet, bytes }
        }
    }
}

/// Key for natural sort order, with numeric name parts as numbers: layer 2 comes before layer 10.
fn natural_key(name: &str) -> Vec<(u64, String)> {
    name.split('.').map(|part| (part.parse().unwrap_or(u64::MAX), part.to_owned())).collect()
}

impl TensorSource for HfDir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.entries.get(name).map(|entry| &self.tensors[entry.info])
    }

    fn load(&self, name: &str) -> Result<Tensor, FormatError> {
        let missing = || Place { path: &self.path, tensor: name }.missing();
        let stored = &self.entries.get(name).ok_or_else(missing)?.stored;
        stored.files().try_for_each(|file| self.containers[file].check())?;
        let tensor = match stored {
            Stored::Dense(file, slot) => {
                let container = &self.containers[*file];
                let place = Place { path: container.path(), tensor: name };
                let tensor = load_dense(place, slot, container.bytes(slot));
                container.release(slot);
                tensor
            }
            Stored::Packed(description, parts) => {
                let part = |suffix: &str| {
                    let (_, file, slot) = parts.iter().find(|(s, ..)| *s == suffix)?;
                    Some(self.containers[*file].bytes(slot))
                };
                let path =
                    parts.first().map_or(self.path.as_path(), |(_, file, _)| self.containers[*file].path());
                let tensor = description.load(Place { path, tensor: name }, part);
                parts.iter().for_each(|(_, file, slot)| self.containers[*file].release(slot));
                tensor
            }
            Stored::BitNet((file, weight), (scale_file, scale)) => {
                let container = &self.containers[*file];
                let place = Place { path: container.path(), tensor: name };
                let Some(bitnet) = &self.bitnet else { return Err(missing()) };
                let scale = (scale.dtype, self.containers[*scale_file].bytes(scale));
                let tensor = bitnet.load(place, weight, container.bytes(weight), scale);
                container.release(weight);
                tensor
            }
        };
        stored.files().try_for_each(|file| self.containers[file].check())?;
        tensor
    }
}

fn load_dense(place: Place<'_>, slot: &Slot, data: &[u8]) -> Result<Tensor, FormatError> {
    let data = match slot.dtype {
        Dtype::F32 => DenseData::F32(bytes::f32s(data)),
        Dtype::F16 => DenseData::F16(bytes::f16s(data)),
        Dtype::BF16 => DenseData::Bf16(bytes::bf16s(data)),
        Dtype::U8 => {
            let remedy = "it may be packed, but config.json does not describe how: copy the whole config.json of the model, \
                          with its quantization_config, or use a checkpoint with F32, F16 or BF16 weights";
            return Err(place.unsupported("U8", remedy));
        }
        other => {
            return Err(
                place.unsupported(other.to_string(), "use a checkpoint with F32, F16 or BF16 weights")
            );
        }
    };
    DenseTensor::new(slot.shape.clone(), data).map(Tensor::Dense).map_err(|e| place.tensor_error(&e))
}

fn read_json(path: &Path) -> Result<Value, FormatError> {
    let size = look::content(path)?.len();
    if size > MAX_JSON_BYTES {
        return Err(FormatError::OverLimit {
            path: path.to_owned(),
            what: "the size of a JSON file".to_owned(),
            limit: MAX_JSON_BYTES,
            got: size,
        });
    }
    let bytes = std::fs::read(path).map_err(|e| io_error(path, "read", e))?;
    if bytes.starts_with(LFS) {
        return Err(not_a_model(path, LFS_FOUND, LFS_REMEDY));
    }
    serde_json::from_slice(&bytes).map_err(|e| FormatError::Header {
        path: path.to_owned(),
        what: "the file".to_owned(),
        expected: "JSON".to_owned(),
        got: e.to_string(),
    })
}
