//! The KV cache on the device.

use std::ops::Range;

use cubecl::prelude::{BufferArg, ComptimeOptionArgs};
use half::f16;
use trike_core::{KeySelector, KvPrecision};

use super::codes::{OF_WORD, Scales, ScalesLaunch, values_of};
use super::index::KeyIndex;
use super::positions::Positions;
use crate::device::{AnyBuffer, Buffer, CubeDevice};
use crate::error::{CubeError, Result, check_len, check_range};

/// Shape of the KV cache of one layer of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheShape {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Head dimension.
    pub head_dim: usize,
    /// Capacity in positions; position `p` is stored in slot `p % capacity`.
    pub capacity: usize,
    /// Element type; devices store f32, f16 and, for a head dimension that is a multiple of 4, int8.
    pub precision: KvPrecision,
}

impl CacheShape {
    /// Number of elements of the keys (and of the values).
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] and [`CubeError::Shape`] for a side of zero or a product of `2^32` or more,
    /// [`CubeError::NotMultiple`] for an int8 cache whose head dimension is not a multiple of 4.
    pub fn elements(&self) -> Result<usize> {
        check_range("key/value heads of a cache", 1, 1 << 16, self.kv_heads)?;
        check_range("head_dim of a cache", 1, 1 << 16, self.head_dim)?;
        if self.precision == KvPrecision::Int8 && !self.head_dim.is_multiple_of(OF_WORD) {
            let (what, got) = ("head_dim of an int8 KV cache on a device", self.head_dim);
            return Err(CubeError::NotMultiple { what, unit: OF_WORD, got });
        }
        crate::error::check_shape("cache", self.kv_heads * self.head_dim, self.capacity)
    }

    /// Bytes of keys and values together.
    ///
    /// # Errors
    ///
    /// As [`CacheShape::elements`].
    pub fn bytes(&self) -> Result<u64> {
        let heads = self.elements()? / self.head_dim;
        Ok(self.precision.bytes_per_position(self.head_dim) as u64 * heads as u64)
    }

    /// Elements per vector load.
    pub(super) fn lanes(&self) -> usize {
        if self.head_dim.is_multiple_of(4) { 4 } else { 1 }
    }

    /// Caches in one allocation are padded to a multiple of this many elements, so that all of their views are aligned to
    /// `alignment` bytes.
    #[doc(hidden)]
    #[must_use]
    pub fn unit(&self, alignment: usize) -> usize {
        let per_position = self.precision.bytes_per_position(self.head_dim);
        match self.precision {
            // Whole slots: the two scales of a slot take eight bytes, and each code one byte.
            KvPrecision::Int8 => {
                self.head_dim * alignment.div_ceil(8.min(1 << self.head_dim.trailing_zeros()))
            }
            _ => alignment.div_ceil((per_position / (2 * self.head_dim)).max(1)),
        }
    }
}

/// Keys or values, `[kv_head][slot][head_dim]`. Lengths and offsets are in elements.
#[derive(Clone, Debug)]
pub(crate) enum KvBuffer {
    F32(Buffer<f32>),
    F16(Buffer<f16>),
    Int8(Codes),
}

/// Keys or values in int8.
#[derive(Clone, Debug)]
pub(crate) struct Codes {
    /// Words of four codes each.
    words: Buffer<u32>,
    /// `[kv_head][slot][2]`: the scales of the key and of the value, in one buffer for both.
    pub(crate) scales: Buffer<f32>,
    head_dim: usize,
}

impl KvBuffer {
    /// Keys and values of `len` elements each.
    fn both(device: &CubeDevice, shape: CacheShape, len: usize) -> Result<[Self; 2]> {
        let missing =
            |feature| Err(CubeError::Feature { kernel: "cache", feature, device: device.name().to_owned() });
        match shape.precision {
            KvPrecision::F32 => Ok([Self::F32(device.empty(len)?), Self::F32(device.empty(len)?)]),
            KvPrecision::F16 if device.capabilities().f16 => {
                Ok([Self::F16(device.empty(len)?), Self::F16(device.empty(len)?)])
            }
            KvPrecision::F16 => missing("f16"),
            KvPrecision::Int8 => {
                let head_dim = shape.head_dim;
                let scales = device.empty(2 * (len / head_dim))?;
                let words = || device.empty(len / OF_WORD);
                let k = Codes { words: words()?, scales: Buffer::clone(&scales), head_dim };
                Ok([Self::Int8(k), Self::Int8(Codes { words: words()?, scales, head_dim })])
            }
            KvPrecision::Int4 => missing("an int4 KV cache"),
            KvPrecision::Int8Int4 => missing("an int8-int4 KV cache"),
        }
    }

    pub(crate) fn vectors(&self, lanes: usize) -> BufferArg {
        match self {
            Self::F32(buffer) => buffer.vectors(lanes),
            Self::F16(buffer) => buffer.vectors(lanes),
            Self::Int8(codes) => codes.words.vectors(lanes / OF_WORD),
        }
    }

    /// The elements, or the words of codes.
    pub(super) fn numbers(&self) -> BufferArg {
        match self {
            Self::F32(buffer) => buffer.arg(),
            Self::F16(buffer) => buffer.arg(),
            Self::Int8(codes) => codes.words.arg(),
        }
    }

    /// The scales of an int8 cache.
    pub(crate) fn scales(&self) -> Option<&Buffer<f32>> {
        match self {
            Self::F32(_) | Self::F16(_) => None,
            Self::Int8(codes) => Some(&codes.scales),
        }
    }

    fn view(&self, start: usize, len: usize) -> Result<Self> {
        Ok(match self {
            Self::F32(buffer) => Self::F32(buffer.view(start, len)?),
            Self::F16(buffer) => Self::F16(buffer.view(start, len)?),
            Self::Int8(Codes { words, scales, head_dim }) => Self::Int8(Codes {
                words: words.view(start / OF_WORD, len / OF_WORD)?,
                scales: scales.view(2 * (start / head_dim), 2 * (len / head_dim))?,
                head_dim: *head_dim,
            }),
        })
    }

    /// The whole allocation of a view.
    pub(crate) fn all(&self) -> Self {
        match self {
            Self::F32(buffer) => Self::F32(buffer.all()),
            Self::F16(buffer) => Self::F16(buffer.all()),
            Self::Int8(Codes { words, scales, head_dim }) => {
                Self::Int8(Codes { words: words.all(), scales: scales.all(), head_dim: *head_dim })
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::F32(buffer) => buffer.len(),
            Self::F16(buffer) => buffer.len(),
            Self::Int8(codes) => codes.words.len() * OF_WORD,
        }
    }

    /// The first element of a view in its allocation.
    pub(super) fn start(&self) -> usize {
        match self {
            Self::F32(buffer) => buffer.start(),
            Self::F16(buffer) => buffer.start(),
            Self::Int8(codes) => codes.words.start() * OF_WORD,
        }
    }

    pub(super) fn is_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::F32(one), Self::F32(other)) => one.is_beside(other),
            (Self::F16(one), Self::F16(other)) => one.is_beside(other),
            (Self::Int8(one), Self::Int8(other)) => {
                one.words.is_beside(&other.words) && one.scales.is_beside(&other.scales)
            }
            _ => false,
        }
    }

    /// Elements or codes.
    pub(super) fn memory(&self) -> &dyn AnyBuffer {
        match self {
            Self::F32(buffer) => buffer,
            Self::F16(buffer) => buffer,
            Self::Int8(codes) => &codes.words,
        }
    }

    fn overlaps(&self, other: &Buffer<f32>) -> bool {
        match self {
            Self::F32(buffer) => buffer.overlaps(other),
            Self::F16(buffer) => buffer.overlaps(other),
            Self::Int8(codes) => codes.words.overlaps(other) || codes.scales.overlaps(other),
        }
    }

    /// The values in f32; `which` selects the scale of a slot.
    fn read(&self, device: &CubeDevice, which: usize) -> Result<Vec<f32>> {
        match self {
            Self::F32(buffer) => device.read(buffer),
            Self::F16(buffer) => Ok(device.read(buffer)?.iter().map(|v| v.to_f32()).collect()),
            Self::Int8(Codes { words, scales, head_dim }) => {
                let (words, scales) = device.read_both(words, scales)?;
                Ok(values_of(&words, scales.into_iter().skip(which).step_by(2), *head_dim))
            }
        }
    }
}

/// KV cache of one layer of one sequence, a ring buffer: position `p` is stored in slot `p % capacity`.
#[derive(Clone, Debug)]
pub struct CubeKvCache {
    pub(crate) k: KvBuffer,
    pub(crate) v: KvBuffer,
    shape: CacheShape,
    pub(super) index: Option<KeyIndex>,
}

impl CubeKvCache {
    /// Allocates keys and values, uninitialized until they are stored.
    ///
    /// # Errors
    ///
    /// As [`CacheShape::elements`] and [`CubeDevice::empty`]; [`CubeError::Feature`] for f16 on a device without
    /// it, and for int4.
    pub fn empty(device: &CubeDevice, shape: CacheShape) -> Result<Self> {
        Self::of_elements(device, shape, shape.elements()?)
    }

    /// As [`CubeKvCache::empty`], with `len` elements: whole slots.
    pub(super) fn of_elements(device: &CubeDevice, shape: CacheShape, len: usize) -> Result<Self> {
        let [k, v] = KvBuffer::both(device, shape, len)?;
        let cache = Self { k, v, shape, index: None };
        device.confirm("allocating keys and values", &cache.written())?;
        if device.capabilities().ptx {
            device.counters()?;
        }
        Ok(cache)
    }

    /// As [`CubeKvCache::empty`], without waiting for the allocations: for temporary caches.
    pub(super) fn unconfirmed(device: &CubeDevice, shape: CacheShape) -> Result<Self> {
        let [k, v] = KvBuffer::both(device, shape, shape.elements()?)?;
        Ok(Self { k, v, shape, index: None })
    }

    /// Adds sign codes of the keys: [`CubeDevice::attention`] of a single token then attends only to the positions that the
    /// selector chooses, once more than four times as many are visible at all positions of a [`horizon`](super::horizon). With a
    /// window that hides positions, all visible ones are attended to.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] for heads of fewer than 64 or more than 256 elements, [`CubeError::NotMultiple`] for an odd number, and as
    /// [`CubeKvCache::empty`].
    pub fn with_keys(self, device: &CubeDevice, selector: KeySelector) -> Result<Self> {
        let CacheShape { kv_heads, head_dim, capacity, .. } = self.shape;
        let index = match selector.is_all() {
            true => None,
            false => Some(KeyIndex::new(device, [kv_heads, head_dim, capacity], selector)?),
        };
        Ok(Self { index, ..self })
    }

    /// A cache in `len` elements of this one's memory.
    pub(super) fn part(&self, start: usize, len: usize) -> Result<Self> {
        Ok(Self { k: self.k.view(start, len)?, v: self.v.view(start, len)?, shape: self.shape, index: None })
    }

    /// The whole allocation of a part, with the shape of the part.
    pub(super) fn all(&self) -> Self {
        Self { k: self.k.all(), v: self.v.all(), shape: self.shape, index: None }
    }

    /// The scales as an argument of kernels.
    pub(super) fn scales_arg(&self) -> ComptimeOptionArgs<Scales> {
        match self.k.scales() {
            Some(scales) => ComptimeOptionArgs::Some(ScalesLaunch::new(scales.vectors(2))),
            None => ComptimeOptionArgs::None,
        }
    }

    /// Shape of the cache.
    #[must_use]
    pub fn shape(&self) -> CacheShape {
        self.shape
    }

    /// Keys, values and scales, as the buffers written by a launch.
    pub(crate) fn written(&self) -> Vec<&dyn AnyBuffer> {
        let scales = self.k.scales().map(|scales| scales as &dyn AnyBuffer);
        [self.k.memory(), self.v.memory()].into_iter().chain(scales).collect()
    }

    /// Returns true if a tensor shares memory with the cache.
    pub(crate) fn overlaps(&self, other: &Buffer<f32>) -> bool {
        let of_index = self.index.as_ref().is_some_and(|index| index.overlaps(other));
        of_index || self.k.overlaps(other) || self.v.overlaps(other)
    }

    /// The keys and the values in f32, in memory order: `[kv_head][slot][head_dim]`.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::read`].
    pub fn read(&self, device: &CubeDevice) -> Result<(Vec<f32>, Vec<f32>)> {
        Ok((self.k.read(device, 0)?, self.v.read(device, 1)?))
    }
}

/// The rows of a batch that belong to one sequence.
#[derive(Clone, Debug)]
pub struct CacheSegment<'a> {
    /// Rows of the batch, with consecutive positions.
    pub rows: Range<usize>,
    /// The position of every row of the batch.
    pub positions: &'a Positions,
    /// The sequence's cache of this layer.
    pub cache: &'a CubeKvCache,
}

impl CacheSegment<'_> {
    /// Checks new keys and values (`positions x kv_heads x head_dim`) of the segment before they are stored.
    pub(crate) fn check_new(&self, k: &Buffer<f32>, v: &Buffer<f32>, is_capturing: bool) -> Result<()> {
        let Self { rows, positions, cache } = self;
        let shape = cache.shape;
        let width = shape.kv_heads * shape.head_dim;
        check_len("new keys", positions.values().len() * width, k.len())?;
        check_len("new values", positions.values().len() * width, v.len())?;
        positions.first_of(rows)?;
        check_range("tokens to store in a cache", 1, shape.capacity, rows.len())?;
        if is_capturing && rows.len() > 1 {
            // Positions written before a replay may not be consecutive.
            return Err(CubeError::Capture { what: "keys and values of several positions" });
        }
        if [k, v].iter().any(|new| cache.overlaps(new)) {
            return Err(CubeError::Overlap { what: "new keys or values and the cache" });
        }
        Ok(())
    }
}
