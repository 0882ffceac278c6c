//! llama2.c checkpoints: version 0 (f32, no magic), 1 (f32) and 2 (int8 groups).

mod layout;

use std::{collections::HashMap, path::Path};

use layout::{layout, size};
use trike_trit::ScaleValues;

use crate::{
    DenseData, DenseTensor, FormatError, Int8Tensor, StoredType, Tensor, TensorInfo, TensorSource, bytes,
    bytes::Cursor, error::Place, map::MappedFile,
};

/// `ak42`, at the start of versions 1 and 2.
pub(crate) const MAGIC: u32 = 0x616b_3432;
/// Versions 1 and 2 pad their header to this size.
const HEADER_BYTES: usize = 256;
/// No transformer has a larger dimension; the limit also keeps the file size within u64.
const MAX_DIMENSION: i32 = 1 << 22;
/// No transformer has more layers; each layer adds nine entries to the list of tensors.
const MAX_LAYERS: i32 = 4096;

/// Model configuration in the header of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Llama2cConfig {
    /// 0, 1 or 2.
    pub version: u32,
    /// Hidden size (width of the residual stream).
    pub dim: usize,
    /// Intermediate size (width of the feed-forward layer).
    pub hidden_dim: usize,
    /// Number of blocks.
    pub n_layers: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Vocabulary size.
    pub vocab_size: usize,
    /// Maximum sequence length.
    pub seq_len: usize,
    /// Whether the LM head shares the weights of the embedding.
    pub shared_classifier: bool,
    /// Group size of the scales in version 2; 0 in other versions.
    pub group_size: usize,
}

impl Llama2cConfig {
    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.dim / self.n_heads
    }

    /// Total width of the keys (and of the values) of a token.
    pub fn kv_dim(&self) -> usize {
        self.head_dim() * self.n_kv_heads
    }
}

/// A llama2.c checkpoint.
///
/// Tensors have HuggingFace names, such as `model.layers.0.self_attn.q_proj.weight`, but the query and key weights
/// are in llama2.c order: RoPE rotates adjacent pairs. Versions 0 and 1 load as f32; version 2 loads matrices as
/// [`Tensor::Int8`] and norms as f32. The format groups codes regardless of rows; if groups cross rows, the tensor gets
/// the largest group size that does not, with repeated scales, which does not change any value.
///
/// A version 0 file has no magic: it is recognized by seven plausible numbers that give exactly its size.
///
/// ```no_run
/// use trike_format::{Llama2c, TensorSource};
///
/// let file = Llama2c::open("stories260K.bin")?;
/// let embedding = file.load("model.embed_tokens.weight")?;
/// assert_eq!(embedding.shape(), [file.config().vocab_size, file.config().dim]);
/// # Ok::<(), trike_format::FormatError>(())
/// ```
#[derive(Debug)]
pub struct Llama2c {
    map: MappedFile,
    config: Llama2cConfig,
    tensors: Vec<TensorInfo>,
    /// Byte offset of each tensor in the file.
    starts: Vec<usize>,
    index: HashMap<String, usize>,
}

impl Llama2c {
    /// Opens a checkpoint and checks its header against the size of the file.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, its header is not plausible, its version is unknown, or its size is not exactly
    /// the size given by the header.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FormatError> {
        let map = MappedFile::open(path.as_ref())?;
        let (config, start) = header(map.path(), &map)?;
        let size = size(&config, start);
        if size != map.len() as u64 {
            return Err(wrong_size(map.path(), &config, size, map.len()));
        }
        let (tensors, starts) = layout(&config, start);
        let index = tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Self { map, config, tensors, starts: starts.into_iter().map(|s| s as usize).collect(), index })
    }

    /// The configuration in the header.
    pub fn config(&self) -> &Llama2cConfig {
        &self.config
    }
}

/// The file size given by a version 0 header; `None` if the first bytes are not such a header.
pub(crate) fn v0_size(path: &Path, start: &[u8]) -> Option<u64> {
    let (config, at) = header(path, start).ok()?;
    (config.version == 0).then(|| size(&config, at))
}

fn wrong_size(path: &Path, config: &Llama2cConfig, expected: u64, got: usize) -> FormatError {
    if (got as u64) < expected {
        let what = format!("the weights of a llama2.c version {} checkpoint", config.version);
        return FormatError::Truncated {
            path: path.to_owned(),
            what,
            needed: expected,
            available: got as u64,
        };
    }
    FormatError::Header {
        path: path.to_owned(),
        what: format!("the size of a llama2.c version {} checkpoint", config.version),
        expected: format!("{expected} bytes for {config:?}"),
        got: got.to_string(),
    }
}

fn header(path: &Path, bytes: &[u8]) -> Result<(Llama2cConfig, usize), FormatError> {
    let mut cursor = Cursor::new(path, bytes);
    let version = if cursor.clone().u32("the header")? == MAGIC {
        cursor.u32("the magic")?;
        let version = cursor.u32("the version")?;
        if !matches!(version, 1 | 2) {
            return Err(FormatError::Unsupported {
                path: path.to_owned(),
                name: format!("llama2.c version {version}"),
                remedy: "export the model again as version 0, 1 or 2".to_owned(),
            });
        }
        version
    } else {
        0
    };
    let names = ["dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len"];
    let mut numbers = [0; 7];
    for (number, name) in numbers.iter_mut().zip(names) {
        let raw = cursor.i32(name)?;
        // In version 0, a negative vocabulary size means that the LM head does not share the embedding.
        let value = if version == 0 && name == "vocab_size" { raw.saturating_abs() } else { raw };
        let limit = if name == "n_layers" { MAX_LAYERS } else { MAX_DIMENSION };
        if !(1..=limit).contains(&value) {
            return Err(bad(path, name, &format!("1 to {limit}"), raw));
        }
        *number = raw;
    }
    let [dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len] =
        numbers.map(|n| n.unsigned_abs() as usize);
    if dim % (2 * n_heads) != 0 {
        return Err(bad(path, "dim", &format!("a multiple of twice the {n_heads} heads"), dim));
    }
    if n_heads % n_kv_heads != 0 {
        return Err(bad(path, "n_kv_heads", &format!("a divisor of the {n_heads} heads"), n_kv_heads));
    }
    let (mut shared_classifier, mut group_size) = (numbers[5] > 0, 0);
    if version > 0 {
        shared_classifier = match cursor.array::<1>("the classifier flag")? {
            [0] => false,
            [1] => true,
            [other] => return Err(bad(path, "the classifier flag", "0 or 1", other)),
        };
    }
    if version == 2 {
        let raw = cursor.i32("the group size")?;
        let kv_dim = n_kv_heads * (dim / n_heads);
        let sizes = [vocab_size, dim, kv_dim, hidden_dim].map(|rows| rows * dim);
        let fits = |n: &usize| *n > 0 && sizes.iter().all(|size| size.is_multiple_of(*n));
        group_size = usize::try_from(raw)
            .ok()
            .filter(fits)
            .ok_or_else(|| bad(path, "the group size", "a divisor of the size of every matrix", raw))?;
    }
    let start = if version == 0 { cursor.position() } else { HEADER_BYTES };
    let config = Llama2cConfig {
        version,
        dim,
        hidden_dim,
        n_layers,
        n_heads,
        n_kv_heads,
        vocab_size,
        seq_len,
        shared_classifier,
        group_size,
    };
    Ok((config, start))
}

fn bad(path: &Path, what: &str, expected: &str, got: impl ToString) -> FormatError {
    FormatError::Header {
        path: path.to_owned(),
        what: format!("`{what}` of the llama2.c header"),
        expected: expected.to_owned(),
        got: got.to_string(),
    }
}

impl TensorSource for Llama2c {
    fn path(&self) -> &Path {
        self.map.path()
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    fn load(&self, name: &str) -> Result<Tensor, FormatError> {
        let place = Place { path: self.path(), tensor: name };
        let &i = self.index.get(name).ok_or_else(|| place.missing())?;
        let info = &self.tensors[i];
        // Checked at open: the tensors end exactly at the end of the file.
        let range = self.starts[i]..self.starts[i] + info.bytes as usize;
        self.map.check()?;
        let data = &self.map[range.clone()];
        let tensor = match (&info.kind, info.shape.as_slice()) {
            (StoredType::Int8 { group }, &[rows, cols]) => {
                let (codes, scales) = data.split_at(rows * cols);
                let scales = bytes::f32s(scales);
                let repeats = self.config.group_size / group;
                let scales = scales.iter().flat_map(|&s| std::iter::repeat_n(s, repeats)).collect();
                let codes = bytemuck::cast_slice::<u8, i8>(codes).to_vec();
                Int8Tensor::new(rows, cols, *group, codes, ScaleValues::F32(scales)).map(Tensor::Int8)
            }
            _ => DenseTensor::new(info.shape.clone(), DenseData::F32(bytes::f32s(data))).map(Tensor::Dense),
        };
        self.map.release(range);
        self.map.check()?;
        tensor.map_err(|e| place.tensor_error(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::{Llama2c, MAGIC};
    use crate::{FormatError, StoredType, TensorSource};

    /// dim 4, hidden 6, 2 layers, 2 heads, 1 kv head, vocabulary 3, 5 positions.
    const NUMBERS: [i32; 7] = [4, 6, 2, 2, 1, 3, 5];
    /// Norm weights, and weights of all matrices but the classifier.
    const NORMS: usize = 5 * 4;
    const MATRICES: usize = 3 * 4 + 2 * (16 + 8 + 8 + 16 + 3 * 24);

    fn floats(n: usize) -> Vec<u8> {
        (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect()
    }

    fn write(bytes: &[u8]) -> (tempfile::TempDir, Result<Llama2c, FormatError>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.bin");
        std::fs::write(&path, bytes).unwrap();
        let file = Llama2c::open(&path);
        (dir, file)
    }

    fn v0(numbers: [i32; 7], weights: usize) -> Vec<u8> {
        let header = numbers.iter().flat_map(|n| n.to_le_bytes());
        header.chain(floats(weights)).collect()
    }

    fn padded(version: u32, shared: u8, group: Option<i32>) -> Vec<u8> {
        let mut header: Vec<u8> = [MAGIC, version].iter().flat_map(|n| n.to_le_bytes()).collect();
        header.extend(NUMBERS.iter().flat_map(|n| n.to_le_bytes()));
        header.push(shared);
        header.extend(group.iter().flat_map(|g| g.to_le_bytes()));
        header.resize(256, 0);
        header
    }

    #[test]
    fn version_0_in_order_with_and_without_its_own_classifier() {
        let (_dir, file) = write(&v0(NUMBERS, NORMS + MATRICES + 10));
        let file = file.unwrap();
        assert!(file.config().shared_classifier);
        assert_eq!(file.tensors().len(), 2 + 2 * 9);
        let first = |name: &str| file.load(name).unwrap().to_f32()[0];
        assert_eq!(first("model.embed_tokens.weight"), 0.0);
        assert_eq!(first("model.layers.1.input_layernorm.weight"), 16.0);
        assert_eq!(first("model.layers.0.self_attn.q_proj.weight"), 20.0);
        assert_eq!(first("model.layers.1.self_attn.k_proj.weight"), 60.0);
        assert_eq!(first("model.norm.weight"), (NORMS + MATRICES - 4) as f32);
        assert_eq!(file.load("model.layers.0.mlp.down_proj.weight").unwrap().shape(), [4, 6]);
        assert!(matches!(file.load("lm_head.weight"), Err(FormatError::MissingTensor { .. })));

        let mut numbers = NUMBERS;
        numbers[5] = -3;
        let (_dir, file) = write(&v0(numbers, NORMS + MATRICES + 10 + 12));
        let head = file.unwrap().load("lm_head.weight").unwrap();
        assert_eq!((head.shape(), head.to_f32()[0]), (vec![3, 4], (NORMS + MATRICES + 10) as f32));
    }

    #[test]
    fn version_1_in_order() {
        let mut bytes = padded(1, 0, None);
        bytes.extend(floats(NORMS + MATRICES + 12));
        let (_dir, file) = write(&bytes);
        let file = file.unwrap();
        let first = |name: &str| file.load(name).unwrap().to_f32()[0];
        assert_eq!(first("model.layers.1.post_attention_layernorm.weight"), 12.0);
        assert_eq!(first("model.norm.weight"), 16.0);
        assert_eq!(first("model.embed_tokens.weight"), 20.0);
        assert_eq!(first("lm_head.weight"), (NORMS + MATRICES) as f32);
    }

    #[test]
    fn version_2_splits_groups_that_cross_a_row() {
        let mut bytes = padded(2, 1, Some(4));
        bytes.extend(floats(NORMS));
        for n in [12, 16, 16, 8, 8, 8, 8, 16, 16, 24, 24, 24, 24, 24, 24] {
            bytes.extend((0..n).map(|i| i as u8));
            bytes.extend((0..n / 4).flat_map(|i| (i as f32 + 1.0).to_le_bytes()));
        }
        let (_dir, file) = write(&bytes);
        let file = file.unwrap();
        assert_eq!(file.config().group_size, 4);
        let name = "model.layers.1.mlp.down_proj.weight";
        assert_eq!(file.info(name).unwrap().kind, StoredType::Int8 { group: 2 });
        let want: Vec<f32> = (0..24).map(|i| i as f32 * ((i / 4) as f32 + 1.0)).collect();
        assert_eq!(file.load(name).unwrap().to_f32(), want);
    }

    #[test]
    fn headers_that_are_no_models() {
        let message = |bytes: &[u8]| write(bytes).1.unwrap_err().to_string();
        assert!(message(&v0(NUMBERS, NORMS + MATRICES + 9)).contains("truncated"));
        assert!(message(&v0(NUMBERS, NORMS + MATRICES + 11)).contains("the size of a llama2.c version 0"));
        for (at, value, what) in [
            (0, 0, "`dim`"),
            (0, 6, "twice the 2 heads"),
            (1, -1, "`hidden_dim`"),
            (2, 5000, "1 to 4096"),
            (4, 0, "`n_kv_heads`"),
            (5, i32::MIN, "`vocab_size`"),
            (6, i32::MAX, "`seq_len`"),
        ] {
            let mut numbers = NUMBERS;
            numbers[at] = value;
            let message = message(&v0(numbers, NORMS + MATRICES + 10));
            assert!(message.contains(what) && message.contains("m.bin"), "{message}");
        }
        assert!(message(&padded(3, 1, None)).contains("llama2.c version 3"));
        assert!(message(&padded(1, 7, None)).contains("classifier flag"));
        for group in [0, -4, 7, i32::MAX] {
            assert!(message(&padded(2, 1, Some(group))).contains("group size"));
        }
    }
}
