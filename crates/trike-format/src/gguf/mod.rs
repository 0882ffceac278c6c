//! GGUF files.

mod decode;
pub(crate) mod encode;
mod header;
mod meta;
mod quants;
mod round;
mod spans;
mod split;
mod types;
mod writer;

use std::{collections::HashMap, path::Path};

pub use meta::{MetaArray, MetaValue, Metadata, StringArray};
pub use round::round_to_blocks;
pub use split::gguf_parts;
pub use types::GgufType;
pub use writer::GgufWriter;

use crate::{
    FormatError, Tensor, TensorInfo, TensorSource, error::Place, look::not_a_model, map::MappedFile,
};

/// A GGUF file, version 2 or 3, little-endian, or a model in several such files ([`gguf_parts`]), opened by any of them.
///
/// Opening reads the headers only. Tensors keep their GGUF names, such as `blk.0.attn_q.weight`, and load as
///
/// | type | loads as |
/// |---|---|
/// | `F32`, `F16`, `BF16` | [`Tensor::Dense`] |
/// | `Q8_0`, `Q5_0`, `Q4_0` | [`Tensor::Int8`] with groups of 32 |
/// | `Q6_K` | [`Tensor::Int8`] with groups of 16 and f32 scales |
/// | `Q4_1`, `Q5_1`, `Q4_K`, `Q5_K` | [`Tensor::Dense`] f32: four bytes per weight |
/// | `TQ1_0` | [`Tensor::Ternary`], base-3, groups of 256 |
/// | `TQ2_0` | [`Tensor::Ternary`], 2-bit, groups of 256 |
/// | `PTQ1_0` | [`Tensor::Ternary`], base-3, groups of 128 |
/// | `I2_S` | [`Tensor::Ternary`], 2-bit, one scale |
/// | `Q2_0` | [`Tensor::Ternary`], 2-bit, groups of 64 or 128; [`Tensor::Dense`] f32 if any code is 3, which means +2 d |
/// | `PQ2_0` | same as `Q2_0` with groups of 128 |
///
/// No value is rounded, except that adding a minimum to a scaled code rounds to f32, as in other engines.
///
/// `Q2_0` exists with blocks of 64 and of 128 weights under the same id. The reader infers the block size from the distances
/// between the tensors: the type is read only if exactly one size fits all such tensors of the file. The layout of `I2_S`
/// depends on the CPU architecture of the machine that wrote it, which the file does not record: the reader assumes the x86
/// layout, and rejects the tensors if a size or a code shows another layout.
///
/// Other types are listed under their names; loading them is an error. A file whose metadata requires a transform of the
/// activations or an unknown quantization scheme is rejected when opened, with the name of the key.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// use trike_format::{DenseData, DenseTensor, Gguf, GgufType, GgufWriter, TensorSource};
///
/// let norm = DenseTensor::new(vec![2], DenseData::F32(vec![1.0, 0.5]))?;
/// let mut writer = GgufWriter::create(&path)?;
/// writer.metadata("general.architecture", "llama")?;
/// writer.tensor("output_norm.weight", &norm.into(), GgufType::F32)?;
/// writer.finish()?;
///
/// let file = Gguf::open(&path)?;
/// assert_eq!(file.str("general.architecture")?, Some("llama"));
/// assert_eq!(file.load("output_norm.weight")?.to_f32(), [1.0, 0.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Gguf {
    parts: Vec<MappedFile>,
    version: u32,
    /// The metadata of the first file; the other files of a split model contain only their number.
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// File of each tensor, and its byte offset there.
    starts: Vec<(usize, usize)>,
    index: HashMap<String, usize>,
    /// Types that cannot be read because the layout is not determined: the file, the type and the reason.
    refusals: Vec<(usize, &'static str, String)>,
}

impl Gguf {
    /// Opens a file and reads its header, and those of the other files of a split model.
    ///
    /// # Errors
    ///
    /// A file cannot be opened, is not GGUF, has another version or byte order, has an invalid header (a limit exceeded, a
    /// duplicate name, a tensor that is outside the file or overlaps another), or requires an unknown transform; or a file of a
    /// split model is missing (named in the error) or belongs to another model.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FormatError> {
        let first = MappedFile::open(path.as_ref())?;
        let header = header::parse(first.path(), &first)?;
        let paths = split::paths(first.path(), &header.metadata)?;
        let mut opened = Some((first, header));
        let mut all: Option<Self> = None;
        for (number, part) in paths.iter().enumerate() {
            // The given file is already open.
            let (map, header) = match opened.take_if(|(map, _)| map.path() == part || paths.len() == 1) {
                Some(given) => given,
                None => {
                    let map = MappedFile::open(part)?;
                    let header = header::parse(map.path(), &map)?;
                    (map, header)
                }
            };
            split::check(map.path(), &header.metadata, number, paths.len())?;
            refuse_transforms(map.path(), &header.metadata)?;
            let layout = spans::resolve(map.path(), &header, map.len())?;
            let file = all.get_or_insert_with(|| Self {
                parts: Vec::with_capacity(paths.len()),
                version: header.version,
                metadata: header.metadata,
                tensors: Vec::new(),
                starts: Vec::new(),
                index: HashMap::new(),
                refusals: Vec::new(),
            });
            file.add(map, layout, number)?;
        }
        // There is at least one path.
        let file =
            all.ok_or_else(|| not_a_model(path.as_ref(), "no file", "give the path of a GGUF file"))?;
        if paths.len() > 1 {
            split::check_tensors(file.path(), &file.metadata, file.tensors.len())?;
        }
        Ok(file)
    }

    fn add(&mut self, map: MappedFile, layout: spans::Layout, number: usize) -> Result<(), FormatError> {
        for info in &layout.tensors {
            if self.index.insert(info.name.clone(), self.index.len()).is_some() {
                let place = Place { path: map.path(), tensor: &info.name };
                return Err(place.layout("unique tensor names", "the name twice"));
            }
        }
        self.tensors.extend(layout.tensors);
        self.starts.extend(layout.starts.into_iter().map(|start| (number, start)));
        self.refusals.extend(layout.refusals.into_iter().map(|(kind, reason)| (number, kind, reason)));
        self.parts.push(map);
        Ok(())
    }

    /// The paths of its files, in order: one, unless the model is split.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> + '_ {
        self.parts.iter().map(MappedFile::path)
    }

    /// The version in the header, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// All metadata, in the order of the file.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// An integer of any width; `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// [`FormatError::Header`] if the value is not an integer or does not fit.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, FormatError> {
        self.typed(key, "an integer from 0 to 4294967295", MetaValue::as_u32)
    }

    /// An integer; `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// [`FormatError::Header`] if the value is not an integer that fits i64.
    pub fn i64(&self, key: &str) -> Result<Option<i64>, FormatError> {
        self.typed(key, "an integer", MetaValue::as_i64)
    }

    /// An array of bytes; `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// [`FormatError::Header`] if the value is not an array of unsigned integers of 8 bits.
    pub fn bytes(&self, key: &str) -> Result<Option<&[u8]>, FormatError> {
        self.typed(key, "an array of bytes", |v| match v {
            MetaValue::Array(MetaArray::U8(bytes)) => Some(bytes.as_slice()),
            _ => None,
        })
    }

    /// A float; `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// [`FormatError::Header`] if the value is not a float.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, FormatError> {
        self.typed(key, "a float", MetaValue::as_f32)
    }

    /// A bool; `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// [`FormatError::Header`] if the value is not a bool.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, FormatError> {
        self.typed(key, "a bool", MetaValue::as_bool)
    }

    /// A string; `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// [`FormatError::Header`] if the value is not a string.
    pub fn str(&self, key: &str) -> Result<Option<&str>, FormatError> {
        self.typed(key, "a string", MetaValue::as_str)
    }

    /// An array of strings; `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// [`FormatError::Header`] if the value is not an array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&StringArray>, FormatError> {
        self.typed(key, "an array of strings", |v| match v {
            MetaValue::Array(MetaArray::Str(strings)) => Some(strings),
            _ => None,
        })
    }

    /// An array of f32; `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// [`FormatError::Header`] if the value is not an array of f32.
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>, FormatError> {
        self.typed(key, "an array of f32", |v| match v {
            MetaValue::Array(MetaArray::F32(values)) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// An array of integers of any width up to 32 bits; `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// [`FormatError::Header`] if the value is not such an array.
    pub fn i64s(&self, key: &str) -> Result<Option<Vec<i64>>, FormatError> {
        fn widen<T: Copy + Into<i64>>(values: &[T]) -> Option<Vec<i64>> {
            Some(values.iter().map(|&v| v.into()).collect())
        }
        self.typed(key, "an array of integers of up to 32 bits", |v| match v.as_array()? {
            MetaArray::U8(values) => widen(values),
            MetaArray::I8(values) => widen(values),
            MetaArray::U16(values) => widen(values),
            MetaArray::I16(values) => widen(values),
            MetaArray::U32(values) => widen(values),
            MetaArray::I32(values) => widen(values),
            _ => None,
        })
    }

    /// The error for a required key that is missing in the file.
    pub fn missing_key(&self, key: &str) -> FormatError {
        FormatError::Header {
            path: self.path().to_owned(),
            what: "the metadata".to_owned(),
            expected: format!("the key `{key}`"),
            got: "no such key".to_owned(),
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl Fn(&'a MetaValue) -> Option<T>,
    ) -> Result<Option<T>, FormatError> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        let error = || FormatError::Header {
            path: self.path().to_owned(),
            what: format!("`{key}`"),
            expected: expected.to_owned(),
            got: value.describe(),
        };
        read(value).map(Some).ok_or_else(error)
    }
}

impl TensorSource for Gguf {
    fn path(&self) -> &Path {
        // Never empty: opening adds every file.
        self.parts.first().map_or(Path::new(""), MappedFile::path)
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    fn load(&self, name: &str) -> Result<Tensor, FormatError> {
        let missing = || Place { path: self.path(), tensor: name }.missing();
        let &i = self.index.get(name).ok_or_else(missing)?;
        let (info, (number, start)) = (&self.tensors[i], self.starts[i]);
        let part = &self.parts[number];
        let place = Place { path: part.path(), tensor: name };
        let Some(kind) = types::of(info) else {
            let name = info.kind.to_string();
            let refusal = self.refusals.iter().find(|(file, kind, _)| *file == number && *kind == name);
            let remedy = refusal.map_or(
                "use a file with TQ1_0, TQ2_0, Q2_0, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0, BF16, F16 or F32 tensors",
                |(_, _, reason)| reason,
            );
            return Err(place.unsupported(name, remedy));
        };
        // Checked at open: the range is inside the file and has the size of the type.
        let range = start..start + info.bytes as usize;
        part.check()?;
        let tensor = decode::decode(place, kind, &info.shape, &part[range.clone()]);
        part.release(range);
        part.check()?;
        tensor
    }
}

/// Keys that mention quantization but do not affect how tensors are read.
const HARMLESS_QUANTIZATION_KEYS: [&str; 1] = ["general.quantization_version"];

/// Rejects a file whose metadata requires an unknown transform of the activations or an unknown quantization scheme: without
/// this check, the model would load and generate garbage.
fn refuse_transforms(path: &Path, metadata: &Metadata) -> Result<(), FormatError> {
    let transform = |key: &str| {
        ["hadamard", "rotation"].iter().any(|word| key.contains(word))
            || (key.contains(".quantization") && !HARMLESS_QUANTIZATION_KEYS.contains(&key))
    };
    // Tokenizer keys do not concern the weights.
    let found =
        metadata.iter().find(|(key, _)| !key.starts_with("tokenizer.") && transform(&key.to_lowercase()));
    match found {
        Some((key, _)) => Err(FormatError::Unsupported {
            path: path.to_owned(),
            name: key.to_owned(),
            remedy:
                "this key requires a transform or quantization scheme that the weights depend on: use a file \
                     of the model without it"
                    .to_owned(),
        }),
        None => Ok(()),
    }
}
