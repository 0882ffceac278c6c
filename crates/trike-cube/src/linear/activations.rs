//! Quantized activations in the layout of the ternary kernels.

use trike_core::ActivationPrecision;
use trike_trit::Hadamard;

use crate::device::{Buffer, Device};
use crate::error::{CubeError, Result, check_range, check_shape};

/// Columns per block: 32 lanes read a block of 16 rows of weights with one vector each.
pub const BLOCK: usize = 128;
/// Columns per segment, the unit of the partial sums.
pub const SEGMENT: usize = 32;
/// Maximum columns of a ternary matrix: integer sums of digits stay below `2^31`.
pub const MAX_COLS: usize = 1 << 17;
/// Entries after a row's segment sums: the sum of the row, and zeros that pad it to a vector.
const EXTRA: usize = 4;

/// Shape of activations: `tokens x cols` in a precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActivationShape {
    /// Rows.
    pub tokens: usize,
    /// Columns.
    pub cols: usize,
    /// Quantization of the values.
    pub precision: ActivationPrecision,
}

impl ActivationShape {
    /// Code rows: one, two or four per token.
    #[must_use]
    pub fn code_rows(&self) -> usize {
        self.tokens * self.precision.slices()
    }

    /// Blocks of 128 columns per code row, the last one padded with zeros.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    /// Words of the codes: 32 per block.
    #[must_use]
    pub fn code_words(&self) -> usize {
        self.code_rows() * self.blocks() * (BLOCK / 4)
    }

    /// Sums per code row: one per segment of 32 columns, then the sum of the row and three zeros.
    #[must_use]
    pub fn sum_stride(&self) -> usize {
        self.blocks() * (BLOCK / SEGMENT) + EXTRA
    }

    /// Number of factors (activation scales): one per token, or one per segment of each token.
    #[must_use]
    pub fn factors(&self) -> usize {
        match self.precision.group() {
            None => self.tokens,
            Some(_) => self.tokens * self.blocks() * (BLOCK / SEGMENT),
        }
    }

    /// Index of the word of four columns in the codes of a row; `col` is a multiple of 4.
    #[must_use]
    pub fn word_of(col: usize) -> usize {
        let (block, i, h, t) = (col / BLOCK, col % BLOCK / 32, col % 32 / 16, col % 16 / 4);
        block * (BLOCK / 4) + t * 8 + i * 2 + h
    }

    /// Checks that kernels support the shape.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] for zero columns or more than [`MAX_COLS`], [`CubeError::Shape`] for zero tokens or too many.
    pub fn validate(&self) -> Result<()> {
        check_range("columns of activations", 1, MAX_COLS, self.cols)?;
        let rows = self.tokens.saturating_mul(self.precision.slices());
        check_shape("activations", rows, self.blocks() * BLOCK).map(|_| ())
    }
}

/// Quantized activations on the device, in the layout of the ternary kernels.
///
/// ```text
/// codes    [code row][block][t][i][h]: a word is columns 128 block + 32 i + 16 h + 4 t .. + 4, low byte first
/// sums     [code row][segment], then the sum of the row and three zeros
/// factors  [token], or [token][segment]
/// ```
///
/// In this order the eight words that a lane needs of a block are two vectors, both for 4-byte dot products and for matrix
/// instructions. A value is the factor times the sum over the token's code rows of `256^row * digit`.
#[derive(Clone, Debug)]
pub struct Activations {
    shape: ActivationShape,
    rotation: Option<Hadamard>,
    pub(crate) codes: Buffer<u32>,
    pub(crate) sums: Buffer<i32>,
    pub(crate) factors: Buffer<f32>,
}

impl Activations {
    /// Allocates activations, uninitialized until a quantizer fills them.
    ///
    /// # Errors
    ///
    /// As [`ActivationShape::validate`] and [`Device::empty`].
    pub fn empty(device: &Device, shape: ActivationShape) -> Result<Self> {
        shape.validate()?;
        Ok(Self {
            shape,
            rotation: None,
            codes: device.empty(shape.code_words())?,
            sums: device.empty(shape.code_rows() * shape.sum_stride())?,
            factors: device.empty(shape.factors())?,
        })
    }

    /// Marks the codes as those of rotated values: quantizers on the device rotate their input, and only weights stored with
    /// the same rotation accept them. Values passed to [`Activations::upload`] must already be rotated.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotMultiple`] when the columns are not a multiple of the rotation's block.
    pub fn with_rotation(mut self, rotation: Option<Hadamard>) -> Result<Self> {
        if let Some(unit) = rotation.map(Hadamard::block)
            && !self.shape.cols.is_multiple_of(unit)
        {
            let (what, got) = ("columns of rotated activations", self.shape.cols);
            return Err(CubeError::NotMultiple { what, unit, got });
        }
        self.rotation = rotation;
        Ok(self)
    }

    /// The rotation of the values.
    #[must_use]
    pub fn rotation(&self) -> Option<Hadamard> {
        self.rotation
    }

    /// Their shape.
    #[must_use]
    pub fn shape(&self) -> ActivationShape {
        self.shape
    }

    /// The codes, in the layout above.
    #[must_use]
    pub fn codes(&self) -> &Buffer<u32> {
        &self.codes
    }

    /// The sums.
    #[must_use]
    pub fn sums(&self) -> &Buffer<i32> {
        &self.sums
    }

    /// The factors.
    #[must_use]
    pub fn factors(&self) -> &Buffer<f32> {
        &self.factors
    }

    /// Quantizes on the host and uploads: the reference implementation for the device quantizers, and for tests.
    ///
    /// A token with a non-finite value gets the factor NaN, which propagates to all of its outputs.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] for the wrong number of values, and those of [`Activations::empty`].
    pub fn upload(device: &Device, shape: ActivationShape, x: &[f32]) -> Result<Self> {
        shape.validate()?;
        crate::error::check_len("activations", shape.tokens * shape.cols, x.len())?;
        let host = super::quantize::quantize(shape, x);
        Ok(Self {
            shape,
            rotation: None,
            codes: device.upload(&host.codes)?,
            sums: device.upload(&host.sums)?,
            factors: device.upload(&host.factors)?,
        })
    }
}
