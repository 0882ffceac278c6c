//! Writer of HuggingFace-style directories.

use std::{
    collections::{HashMap, HashSet},
    io::Read,
    path::{Path, PathBuf},
};

use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo as Entry},
};
use serde_json::{Map, Value, json};
use trike_core::{LINE_BYTES, TileLayout};

use super::{
    CONFIG, INDEX, WEIGHTS,
    container::PREFIX,
    packed::{Packed, ROTATED, TILED, VERSION},
    parts,
};
use crate::{
    DenseData, FormatError, Tensor,
    bytes::{put_bf16s, put_f16s, put_f32s},
    error::{Place, io_error},
    map::MappedFile,
    spill::{self, Spill},
};

/// The default shard size of HuggingFace's tools.
const DEFAULT_SHARD_BYTES: u64 = 5_000_000_000;

/// Writes a Trike directory: a standard HuggingFace directory whose safetensors files contain packed tensors, described
/// in `config.json` under `quantization_config`.
///
/// Tensors are streamed to disk, so a model need not fit in memory. `config.json` is written last: a directory without
/// it is incomplete. See [`HfDir`](crate::HfDir) for an example and `docs/src/formats.md` for the layout.
#[derive(Debug)]
pub struct HfDirWriter {
    dir: PathBuf,
    config: Map<String, Value>,
    descriptions: Map<String, Value>,
    shard_bytes: u64,
    data: Spill,
    parts: Vec<Part>,
    names: HashSet<String>,
}

/// A stored tensor and its byte range in the data.
#[derive(Debug)]
struct Part {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    start: usize,
    len: usize,
    /// Whether it starts at a multiple of 64 bytes in the file, which tiles require to be used without a copy.
    aligned: bool,
}

impl HfDirWriter {
    /// Starts a directory, and creates it if it does not exist. `config` becomes `config.json`; its
    /// `quantization_config` is replaced.
    ///
    /// # Errors
    ///
    /// [`FormatError::Write`] if the directory already contains a model or `config` is not an object;
    /// [`FormatError::Io`].
    pub fn create(dir: impl AsRef<Path>, config: Value) -> Result<Self, FormatError> {
        let dir = dir.as_ref().to_owned();
        let Value::Object(config) = config else {
            return Err(refuse(&dir, CONFIG, "the configuration is not a JSON object", "give an object"));
        };
        if let Some(file) = [CONFIG, WEIGHTS, INDEX].into_iter().find(|file| dir.join(file).exists()) {
            return Err(refuse(
                &dir,
                file,
                "the directory already contains a model",
                "give the path of a new directory",
            ));
        }
        std::fs::create_dir_all(&dir).map_err(|e| io_error(&dir, "create", e))?;
        let data = Spill::create(&dir.join(WEIGHTS))?;
        Ok(Self {
            dir,
            config,
            descriptions: Map::new(),
            shard_bytes: DEFAULT_SHARD_BYTES,
            data,
            parts: Vec::new(),
            names: HashSet::new(),
        })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Maximum size of a shard in bytes, 5 GB by default. A tensor part is never split, so a larger part gets its own shard.
    #[must_use]
    pub fn shard_limit(mut self, bytes: u64) -> Self {
        self.shard_bytes = bytes;
        self
    }

    /// Adds a tensor: a dense tensor in its own type, an int8 or ternary tensor packed.
    ///
    /// # Errors
    ///
    /// [`FormatError::Write`] if a tensor or a part of that name already exists; [`FormatError::Io`].
    pub fn tensor(&mut self, name: &str, tensor: &Tensor) -> Result<(), FormatError> {
        match Packed::of(tensor) {
            None => {
                let Tensor::Dense(dense) = tensor else { return Ok(()) };
                let mut bytes = Vec::with_capacity(dense.bytes());
                let dtype = match dense.data() {
                    DenseData::F32(v) => {
                        put_f32s(v, &mut bytes);
                        Dtype::F32
                    }
                    DenseData::F16(v) => {
                        put_f16s(v, &mut bytes);
                        Dtype::F16
                    }
                    DenseData::Bf16(v) => {
                        put_bf16s(v, &mut bytes);
                        Dtype::BF16
                    }
                };
                self.part(name.to_owned(), dtype, dense.shape().to_vec(), &bytes, false)
            }
            Some(packed) => self.packed(name, tensor, &packed),
        }
    }

    /// Adds an int8 or ternary tensor in the order of the host kernels ([`Tiles`](trike_core::Tiles)), trits in lines of `layout`:
    /// [`HfDir::tiles`](crate::HfDir::tiles) maps it without a copy, and [`HfDir::load`](crate::HfDir) returns the same tensor as
    /// for the packed form. A dense tensor is added in its own type.
    ///
    /// # Errors
    ///
    /// As [`tensor`](Self::tensor).
    pub fn tiles(&mut self, name: &str, tensor: &Tensor, layout: TileLayout) -> Result<(), FormatError> {
        match Packed::tiled(tensor, layout) {
            None => self.tensor(name, tensor),
            Some(packed) => self.packed(name, tensor, &packed),
        }
    }

    fn packed(&mut self, name: &str, tensor: &Tensor, packed: &Packed) -> Result<(), FormatError> {
        if self.descriptions.insert(name.to_owned(), packed.to_json()).is_some() || self.names.contains(name)
        {
            return Err(self.duplicate(name));
        }
        let parts = parts::pack(Place { path: &self.dir, tensor: name }, packed, tensor)?;
        for (suffix, dtype, shape, bytes) in parts {
            self.part(format!("{name}{suffix}"), dtype, shape, &bytes, packed.is_tiled())?;
        }
        Ok(())
    }

    fn part(
        &mut self,
        name: String,
        dtype: Dtype,
        shape: Vec<usize>,
        bytes: &[u8],
        aligned: bool,
    ) -> Result<(), FormatError> {
        let reserved = name == "__metadata__" || self.descriptions.contains_key(&name);
        if reserved || !self.names.insert(name.clone()) {
            return Err(self.duplicate(&name));
        }
        let start = self.data.len() as usize;
        self.data.write(bytes)?;
        self.parts.push(Part { name, dtype, shape, start, len: bytes.len(), aligned });
        Ok(())
    }

    fn duplicate(&self, name: &str) -> FormatError {
        let what = format!("`{name}`");
        refuse(&self.dir, &what, "a tensor or part of that name already exists", "use each name once")
    }

    /// Copies a file of the model, such as `tokenizer.json`, under the same name.
    ///
    /// # Errors
    ///
    /// [`FormatError::Write`] for a name that the writer uses itself; [`FormatError::Io`].
    pub fn copy_file(&self, source: impl AsRef<Path>) -> Result<(), FormatError> {
        let source = source.as_ref();
        let Some(name) = source.file_name().and_then(|n| n.to_str()) else {
            let what = source.display().to_string();
            return Err(refuse(
                &self.dir,
                &what,
                "the path has no UTF-8 file name",
                "give the path of a file",
            ));
        };
        let mut file = std::fs::File::open(source).map_err(|e| io_error(source, "open", e))?;
        self.write(name, &mut file)
    }

    /// Writes a file with the given content, such as a generated `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// See [`copy_file`](Self::copy_file).
    pub fn write_file(&self, name: &str, content: &[u8]) -> Result<(), FormatError> {
        self.write(name, &mut &*content)
    }

    fn write(&self, name: &str, content: &mut dyn Read) -> Result<(), FormatError> {
        if name == CONFIG || name == INDEX || name.ends_with(".safetensors") {
            return Err(refuse(&self.dir, name, "the writer creates this file itself", "leave it out"));
        }
        if Path::new(name).file_name().is_none_or(|file| file != name) {
            return Err(refuse(&self.dir, name, "not a file name", "give a name without a directory"));
        }
        spill::replace(&self.dir.join(name), &mut [content])
    }

    /// Writes the safetensors files, the index if there are several, and `config.json`.
    ///
    /// # Errors
    ///
    /// [`FormatError::Write`] if no tensor was added; [`FormatError::Io`].
    pub fn finish(mut self) -> Result<(), FormatError> {
        if self.parts.is_empty() {
            return Err(refuse(&self.dir, WEIGHTS, "no tensor was added", "add the model's tensors"));
        }
        let data = MappedFile::map(&self.dir.join(WEIGHTS), self.data.into_reader()?)?;
        let shards = shards(self.parts, self.shard_bytes);
        let count = shards.len();
        let mut weight_map = Map::new();
        let mut total_size = 0;
        for (i, parts) in shards.into_iter().enumerate() {
            let file = match count {
                1 => WEIGHTS.to_owned(),
                _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
            };
            for part in &parts {
                weight_map.insert(part.name.clone(), file.as_str().into());
                total_size += part.len;
            }
            write_container(&self.dir.join(file), parts, &data)?;
        }
        if count > 1 {
            let index = json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
            write_json(&self.dir.join(INDEX), &index)?;
        }
        self.config.remove("quantization_config");
        if !self.descriptions.is_empty() {
            let any = |field: &str| self.descriptions.values().any(|tensor| tensor.get(field).is_some());
            let version = if any("tiles") {
                TILED
            } else if any("rotation") {
                ROTATED
            } else {
                VERSION
            };
            let packing =
                json!({ "quant_method": "trike", "version": version, "tensors": self.descriptions });
            self.config.insert("quantization_config".to_owned(), packing);
        }
        write_json(&self.dir.join(CONFIG), &Value::Object(self.config))
    }
}

/// Splits the parts, in the order in which they were added, into shards of at most `limit` bytes.
fn shards(parts: Vec<Part>, limit: u64) -> Vec<Vec<Part>> {
    let mut shards: Vec<Vec<Part>> = Vec::new();
    let mut room = 0;
    for part in parts {
        let len = part.len as u64;
        match shards.last_mut() {
            Some(shard) if len <= room => {
                shard.push(part);
                room -= len;
            }
            _ => {
                shards.push(vec![part]);
                room = limit.saturating_sub(len);
            }
        }
    }
    shards
}

fn write_container(path: &Path, mut parts: Vec<Part>, data: &[u8]) -> Result<(), FormatError> {
    // Tiles of whole lines first, then the other parts by descending element size, so that every tensor is aligned to its element
    // size.
    let whole = |part: &Part| part.aligned && part.len.is_multiple_of(LINE_BYTES);
    let tiled = parts.iter().any(|part| part.aligned);
    parts.sort_by(|a, b| {
        let order = whole(b).cmp(&whole(a)).then_with(|| b.dtype.cmp(&a.dtype));
        order.then_with(|| a.name.cmp(&b.name))
    });
    let mut end = 0;
    let mut entries = Vec::with_capacity(parts.len());
    for part in &parts {
        let data_offsets = (end, end + part.len);
        end = data_offsets.1;
        let entry = Entry { dtype: part.dtype, shape: part.shape.clone(), data_offsets };
        entries.push((part.name.clone(), entry));
    }
    // The Python transformers library rejects files without this entry.
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let header = Metadata::new(Some(format), entries).and_then(|m| Ok(serde_json::to_vec(&m)?));
    let mut header =
        header.map_err(|e| refuse(path, "the header", &e.to_string(), "report this as a bug"))?;
    let before = if tiled { LINE_BYTES } else { 8 };
    header.resize((PREFIX + header.len()).next_multiple_of(before) - PREFIX, b' ');
    let prefix = (header.len() as u64).to_le_bytes();
    let mut slices: Vec<&[u8]> = vec![&prefix, &header];
    slices.extend(parts.iter().map(|part| &data[part.start..part.start + part.len]));
    let mut readers: Vec<&mut dyn Read> = slices.iter_mut().map(|s| s as &mut dyn Read).collect();
    spill::replace(path, &mut readers)
}

fn write_json(path: &Path, value: &Value) -> Result<(), FormatError> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|e| io_error(path, "write", e.into()))?;
    text.push(b'\n');
    spill::replace(path, &mut [&mut text.as_slice()])
}

fn refuse(dir: &Path, what: &str, reason: &str, remedy: &str) -> FormatError {
    FormatError::Write {
        path: dir.to_owned(),
        what: what.to_owned(),
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    }
}
