//! Weights that are not ternary: floats, and bytes with scales. Activations are f32, and so are the sums.

use half::{bf16, f16};

use crate::device::{Buffer, Device};
use crate::error::{CubeError, Result, check_len, check_range, check_shape};

/// Columns to which rows are padded with zeros.
pub(crate) const PAD: usize = 16;

/// The numbers of a [`DenseMatrix`] as they lie in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DenseKind {
    /// One f32 a word.
    F32,
    /// Two f16 a word, the first in its lower half.
    F16,
    /// Two bf16 a word, likewise.
    Bf16,
    /// Four signed bytes a word, the first in its lowest byte, with scales.
    Int8,
}

impl DenseKind {
    /// Weights of a word.
    #[must_use]
    pub fn per_word(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::Int8 => 4,
        }
    }
}

/// Weights of a [`DenseMatrix`] on the host, row-major.
#[derive(Clone, Copy, Debug)]
pub enum DenseValues<'a> {
    /// As they are.
    F32(&'a [f32]),
    /// Halves; a matrix with one that is not finite becomes f32.
    F16(&'a [f16]),
    /// The upper halves of f32.
    Bf16(&'a [bf16]),
    /// `code * scale`, one scale for every `group` columns of a row; the last group of a row may be shorter.
    Int8 {
        /// The codes.
        codes: &'a [i8],
        /// The scales, `[row][group]`.
        scales: &'a [f32],
        /// Columns that share a scale.
        group: usize,
    },
}

/// `rows x cols` weights that are not ternary, resident on a device.
///
/// ```text
/// words    [row][column / weights of a word], rows padded with zeros to 16 columns
/// scales   [row][group], of bytes only
/// ```
///
/// For embeddings, output heads, and layers that a quantizer left alone.
#[derive(Clone, Debug)]
pub struct DenseMatrix {
    form: DenseForm,
    pub(crate) words: Buffer<u32>,
    /// One value when there are no scales.
    pub(crate) scales: Buffer<f32>,
}

/// What a kernel must know about a dense matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DenseForm {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// What the words hold.
    pub kind: DenseKind,
    /// Columns that share a scale; `cols` without scales.
    pub group: usize,
}

impl DenseForm {
    /// Words of a row.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.cols.next_multiple_of(PAD) / self.kind.per_word()
    }

    /// Scales of a row.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.cols.div_ceil(self.group)
    }

    /// Bytes that a kernel reads.
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

impl DenseMatrix {
    /// Uploads weights.
    ///
    /// # Errors
    ///
    /// [`CubeError::Shape`] and [`CubeError::Range`] for sides that no kernel takes or a group that is not `1..=cols`,
    /// [`CubeError::Length`] for a wrong number of weights or scales, [`CubeError::NonFinite`] for a scale,
    /// [`CubeError::Memory`].
    pub fn upload(device: &Device, rows: usize, cols: usize, values: DenseValues<'_>) -> Result<Self> {
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

    /// What the kernels know about it.
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

    /// Bytes that the kernels read, and that it takes on the device.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.form.bytes()
    }
}

fn halves([low, high]: [u16; 2]) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

/// Rows of `N` weights a word, padded.
fn pack<T: Copy + Default, const N: usize>(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_lie_in_words_as_the_docs_say() {
        let form = |kind| DenseForm { rows: 2, cols: 3, kind, group: 3 };
        let f32s = pack(&form(DenseKind::F32), &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], |&[v]| v.to_bits());
        assert_eq!((f32s.len(), f32s[2], f32s[3], f32s[16]), (32, 3f32.to_bits(), 0, 4f32.to_bits()));
        let bytes = pack(&form(DenseKind::Int8), &[1i8, -1, 3, 4, 5, 6], |v: &[i8; 4]| {
            u32::from_le_bytes(v.map(|v| v as u8))
        });
        assert_eq!((bytes.len(), bytes[0], bytes[4]), (8, 0x0003_FF01, 0x0006_0504));
        assert_eq!(halves([0x1234, 0xABCD]), 0xABCD_1234);
        assert_eq!(form(DenseKind::Int8).bytes(), 4 * (8 + 2));
        assert_eq!(form(DenseKind::Bf16).bytes(), 4 * 16);
    }
}
