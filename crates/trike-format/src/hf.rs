//! HuggingFace model directories: `config.json`, safetensors, and the files beside them.

mod container;
mod packed;
mod parts;
mod writer;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use container::{Container, Slot};
use packed::Packed;
use safetensors::Dtype;
use serde_json::Value;
pub use writer::HfDirWriter;

use crate::{
    DenseData, DenseTensor, FormatError, StoredType, Tensor, TensorInfo, TensorSource, bytes, error::Place,
    spill::io_error,
};

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const WEIGHTS: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The largest real JSON files of a model directory, indices of unmerged experts, have some 10 MB.
const MAX_JSON_BYTES: u64 = 16 << 20;
/// The largest real models have under 200 shards; each is a map that stays open.
const MAX_SHARDS: usize = 4096;

/// A HuggingFace model directory, dense or packed by Trike, in one file or in shards.
///
/// Opening reads `config.json`, the index where there is one, and the headers of the safetensors files. Tensors
/// have the checkpoint's names, sorted with numbers in numerical order. Dense tensors of `F32`, `F16` and `BF16`
/// load as [`Tensor::Dense`]; other types are listed and refused when loaded. A `quantization_config` of Trike's
/// own says which tensors are packed; they appear under the names of the originals (`<name>.weight`, not
/// `<name>.weight.trits`) and load as [`Tensor::Trits`] or [`Tensor::Int8`]. Any other `quant_method` is refused
/// by its name.
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
}

/// What is needed to load a tensor.
#[derive(Debug)]
struct Entry {
    /// Index in the list of tensors.
    info: usize,
    stored: Stored,
}

#[derive(Debug)]
enum Stored {
    /// Container and place of a dense tensor.
    Dense(usize, Slot),
    /// The parts of a packed one: how the name ends, container, place.
    Packed(Packed, Vec<(&'static str, usize, Slot)>),
}

impl HfDir {
    /// Opens a directory.
    ///
    /// # Errors
    ///
    /// Files are missing or broken, the weights are in a format that is not read (named in the error), a shard
    /// contradicts the index, a packed tensor lacks a part or has one of the wrong type or shape, or the
    /// `quantization_config` is not Trike's.
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
        let descriptions = packed::descriptions(&config_path, &config)?;
        let containers = open_containers(&path)?;

        let mut stored: Vec<(String, Stored)> = Vec::new();
        let mut parts: HashMap<String, ()> = HashMap::new();
        for (name, description) in descriptions {
            let place = Place { path: &path, tensor: &name };
            let find = |suffix: &str| packed::find_slot(&containers, &format!("{name}{suffix}"));
            let found = packed::check_parts(place, &description, find)?;
            parts.extend(found.iter().map(|(suffix, ..)| (format!("{name}{suffix}"), ())));
            stored.push((name, Stored::Packed(description, found)));
        }
        for (i, container) in containers.iter().enumerate() {
            let whole = container.names().filter(|name| !parts.contains_key(*name));
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
        Ok(Self { path, config, containers, tensors, entries })
    }

    /// `config.json`, always an object.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The path of a file of the directory, such as `tokenizer.json`; `None` when there is no such file.
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
    }
}

/// A name as a list of its parts, those that are numbers as numbers: layer 2 comes before layer 10.
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
        match &self.entries.get(name).ok_or_else(missing)?.stored {
            Stored::Dense(file, slot) => {
                let container = &self.containers[*file];
                load_dense(Place { path: container.path(), tensor: name }, slot, container.bytes(slot))
            }
            Stored::Packed(description, parts) => {
                let part = |suffix: &str| {
                    let (_, file, slot) = parts.iter().find(|(s, ..)| *s == suffix)?;
                    Some(self.containers[*file].bytes(slot))
                };
                let path =
                    parts.first().map_or(self.path.as_path(), |(_, file, _)| self.containers[*file].path());
                description.load(Place { path, tensor: name }, part)
            }
        }
    }
}

fn load_dense(place: Place<'_>, slot: &Slot, data: &[u8]) -> Result<Tensor, FormatError> {
    let data = match slot.dtype {
        Dtype::F32 => DenseData::F32(bytes::f32s(data)),
        Dtype::F16 => DenseData::F16(bytes::f16s(data)),
        Dtype::BF16 => DenseData::Bf16(bytes::bf16s(data)),
        other => {
            return Err(
                place.unsupported(other.to_string(), "use a checkpoint with F32, F16 or BF16 weights")
            );
        }
    };
    DenseTensor::new(slot.shape.clone(), data).map(Tensor::Dense).map_err(|e| place.tensor_error(&e))
}

/// Opens `model.safetensors`, or the shards that the index names.
fn open_containers(dir: &Path) -> Result<Vec<Container>, FormatError> {
    let single = dir.join(WEIGHTS);
    if single.is_file() {
        return Ok(vec![Container::open(&single)?]);
    }
    let index_path = dir.join(INDEX);
    if !index_path.is_file() {
        return Err(no_weights(dir));
    }
    let index = read_json(&index_path)?;
    let bad = |expected: &str, got: String| FormatError::Header {
        path: index_path.clone(),
        what: "`weight_map`".to_owned(),
        expected: expected.to_owned(),
        got,
    };
    let Some(map) = index.get("weight_map").and_then(Value::as_object) else {
        return Err(bad("an object from tensor names to files", "none".to_owned()));
    };
    let mut files: Vec<&str> = Vec::new();
    for (name, file) in map {
        let plain = |f: &&str| f.ends_with(".safetensors") && !f.contains(['/', '\\']) && !f.starts_with('.');
        // A path could lead out of the directory.
        let file = file.as_str().filter(plain);
        files.push(
            file.ok_or_else(|| bad("names of .safetensors files", format!("{} for `{name}`", map[name])))?,
        );
    }
    files.sort_unstable();
    files.dedup();
    if files.len() > MAX_SHARDS {
        return Err(FormatError::OverLimit {
            path: index_path,
            what: "the number of shards".to_owned(),
            limit: MAX_SHARDS as u64,
            got: files.len() as u64,
        });
    }
    let containers =
        files.iter().map(|file| Container::open(&dir.join(file))).collect::<Result<Vec<_>, _>>()?;
    for (name, file) in map {
        let shard = files.iter().position(|f| file.as_str() == Some(f)).map(|i| &containers[i]);
        if shard.is_none_or(|shard| shard.slot(name).is_none()) {
            let place = Place { path: &index_path, tensor: name };
            return Err(place.layout(format!("the tensor in {file}"), "no such tensor there"));
        }
    }
    Ok(containers)
}

/// Says what the directory holds instead of weights that Trike reads.
fn no_weights(dir: &Path) -> FormatError {
    let has = |name: &str| dir.join(name).is_file();
    let (found, remedy) = if has("pytorch_model.bin") || has("pytorch_model.bin.index.json") {
        (
            "PyTorch weights (pytorch_model.bin)",
            "save the model again as safetensors: Trike runs no pickled code",
        )
    } else if has("consolidated.safetensors") || has("consolidated.00.pth") {
        ("weights in the original authors' layout", "use the model's HuggingFace version")
    } else if has("tf_model.h5") || has("flax_model.msgpack") {
        ("TensorFlow or Flax weights", "save the model again as safetensors")
    } else {
        (
            "no model.safetensors and no model.safetensors.index.json",
            "finish the download, or give the path of a file",
        )
    };
    FormatError::NotAModel { path: dir.to_owned(), found: found.to_owned(), remedy: remedy.to_owned() }
}

fn read_json(path: &Path) -> Result<Value, FormatError> {
    let size = std::fs::metadata(path).map_err(|e| io_error(path, "open", e))?.len();
    if size > MAX_JSON_BYTES {
        return Err(FormatError::OverLimit {
            path: path.to_owned(),
            what: "the size of a JSON file".to_owned(),
            limit: MAX_JSON_BYTES,
            got: size,
        });
    }
    let bytes = std::fs::read(path).map_err(|e| io_error(path, "read", e))?;
    serde_json::from_slice(&bytes).map_err(|e| FormatError::Header {
        path: path.to_owned(),
        what: "the file".to_owned(),
        expected: "JSON".to_owned(),
        got: e.to_string(),
    })
}
