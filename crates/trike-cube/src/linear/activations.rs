//! Quantized activations in the layout of the ternary kernels.

use trike_trit::Hadamard;

use super::shape::ActivationShape;
use crate::device::{Buffer, CubeDevice};
use crate::error::{CubeError, Result};

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
    /// As [`ActivationShape::validate`] and [`CubeDevice::empty`].
    pub fn empty(device: &CubeDevice, shape: ActivationShape) -> Result<Self> {
        shape.validate()?;
        Ok(Self {
            shape,
            rotation: None,
            codes: device.empty(shape.code_words())?,
            sums: device.empty(shape.code_rows() * shape.sum_stride())?,
            factors: device.empty(shape.factors())?,
        })
    }

    /// Marks the codes as rotated: quantizers on the device rotate their input, and only weights stored with the same rotation
    /// accept them. Values passed to [`Activations::upload`] must already be rotated.
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

    /// Quantizes on the host and uploads: the reference implementation of the device quantizers, and for tests.
    ///
    /// A token with a non-finite value gets the factor NaN, which propagates to all of its outputs.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] for the wrong number of values, and those of [`Activations::empty`].
    pub fn upload(device: &CubeDevice, shape: ActivationShape, x: &[f32]) -> Result<Self> {
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
