//! Non-ternary weights: floats, and int8 with scales. Activations and accumulation are f32.

use half::{bf16, f16};

use crate::device::{Buffer, CubeDevice};
use crate::error::{CubeError, Result, check_len, check_range, check_shape};

/// Rows are padded with zeros to a multiple of this many columns.
pub(crate) const PAD: usize = 16;

/// Element type of a [`CubeDenseMatrix`], packed into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DenseKind {
    /// One f32 per word.
    F32,
    /// Two f16 per word, the first in the low half.
    F16,
    /// Two bf16 per word, likewise.
    Bf16,
    /// Four int8 per word, the first in the lowest byte, with scales.
    Int8,
}

impl DenseKind {
    /// Weights per word.
    #[must_use]
    pub fn per_word(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::Int8 => 4,
        }
    }

    /// Words per four weights, for kinds with several weights per word.
    pub(crate) fn lane_words(self) -> usize {
        4 / self.per_word()
    }
}

/// Weights of a [`CubeDenseMatrix`] on the host, row-major.
#[derive(Clone, Copy, Debug)]
pub enum DenseValues<'a> {
    /// f32 weights.
    F32(&'a [f32]),
    /// f16 weights; a matrix with a non-finite weight is stored as f32.
    F16(&'a [f16]),
    /// bf16 weights.
    Bf16(&'a [bf16]),
    /// `code * scale`, one scale for every `group` columns of a row; the last group of a row may be shorter.
    Int8 {
        /// The codes.
        codes: &'a [i8],
        /// The scales, `[row][group]`.
        scales: &'a [f32],
        /// Columns per scale.
        group: usize,
    },
}

/// `rows x cols` non-ternary weights on a device.
///
/// ```text
/// words    [row][column / weights per word], rows padded with zeros to 16 columns
/// scales   [row][group], int8 only
/// ```
///
/// For embeddings, LM heads, and layers that were not quantized.
#[derive(Clone, Debug)]
pub struct CubeDenseMatrix {
    form: DenseForm,
    pub(crate) words: Buffer<u32>,
    /// A single value when there are no scales.
    pub(crate) scales: Buffer<f32>,
}

/// Properties of a dense matrix that plans and kernels depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DenseForm {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Element type.
    pub kind: DenseKind,
    /// Columns per scale; `cols` without scales.
    pub group: usize,
}

impl DenseForm {
    /// Words per row.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.cols.next_multiple_of(PAD) / self.kind.per_word()
    }

    /// Scales per row.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.cols.div_ceil(self.group)
    }

    /// Bytes read by a kernel.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let scales = if self.kind == DenseKind::Int8 { self.rows * self.groups() } else { 0 };
        4 * (self.rows * self.stride() + scales)
    }

    pub(crate) fn validate(&self) -> Result<()> {
        check_range("columns of a dense matrix", 1, super::MAX_COLS, self.cols)?;
        check_range("group of a dense matrix", 1, self.cols, self.group)?;
        check_shape("dense matrix", self.rows, self.cols.next_multiple_of(PAD))?;
        Ok(())
    }
}

impl CubeDenseMatrix {
    /// Uploads weights.
    ///
    /// # Errors
    ///
    /// [`CubeError::Shape`] and [`CubeError::Range`] for unsupported sides or a group outside `1..=cols`, [`CubeError::Length`]
    /// for the wrong number of weights or scales, [`CubeError::NonFinite`] for a scale, [`CubeError::Memory`].
    pub fn upload(device: &CubeDevice, rows: usize, cols: usize, values: DenseValues<'_>) -> Result<Self> {
        let widened: Vec<f32>;
        let values = match values {
            DenseValues::F16(v) if v.iter().any(|v| !v.is_finite()) => {
                widened = v.iter().map(|v| v.to_f32()).collect();
                DenseValues::F32(&widened)
            }
            other => other,
        };
        let (kind, group, len) = match values {
            DenseValues::F32(v) => (DenseKind::F32, cols, v.len()),
            DenseValues::F16(v) => (DenseKind::F16, cols, v.len()),
            DenseValues::Bf16(v) => (DenseKind::Bf16, cols, v.len()),
            DenseValues::Int8 { codes, group, .. } => (DenseKind::Int8, group, codes.len()),
        };
        let form = DenseForm { rows, cols, kind, group };
        form.validate()?;
        check_len("weights of a dense matrix", rows * cols, len)?;
        let words = match values {
            DenseValues::F32(v) => pack(&form, v, |&[v]: &[f32; 1]| v.to_bits()),
            DenseValues::F16(v) => pack(&form, v, |v: &[f16; 2]| halves(v.map(f16::to_bits))),
            DenseValues::Bf16(v) => pack(&form, v, |v: &[bf16; 2]| halves(v.map(bf16::to_bits))),
            DenseValues::Int8 { codes, .. } => {
                pack(&form, codes, |v: &[i8; 4]| u32::from_le_bytes(v.map(|v| v as u8)))
            }
        };
        let scales = match values {
            DenseValues::Int8 { scales, .. } => {
                check_len("scales of a dense matrix", rows * form.groups(), scales.len())?;
                if let Some((index, &value)) = scales.iter().enumerate().find(|(_, s)| !s.is_finite()) {
                    return Err(CubeError::NonFinite { what: "int8 scale", index, value });
                }
                scales
            }
            _ => &[1.0],
        };
        Ok(Self { form, words: device.upload_weights(&words)?, scales: device.upload_weights(scales)? })
    }

    /// Properties that kernels depend on.
    #[must_use]
    pub fn form(&self) -> DenseForm {
        self.form
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.form.rows
    }

    /// Inputs.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.form.cols
    }

    /// Device memory of the matrix in bytes; equals the bytes read by a kernel.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.form.bytes()
    }
}

/// Packs two 16-bit numbers into a word.
pub fn halves([low, high]: [u16; 2]) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

/// Packs rows, `N` weights per word, padded.
pub fn pack<T: Copy + Default, const N: usize>(
    form: &DenseForm,
    values: &[T],
    word: impl Fn(&[T; N]) -> u32,
) -> Vec<u32> {
    let mut words = Vec::with_capacity(form.rows * form.stride());
    let mut padded = vec![T::default(); form.stride() * N];
    for row in values.chunks_exact(form.cols) {
        padded[..form.cols].copy_from_slice(row);
        words.extend(padded.as_chunks::<N>().0.iter().map(&word));
    }
    words
}
