//! Activations as the ternary kernels read them.

use trike_trit::Hadamard;

use super::shape::ActivationShape;
use crate::device::{Buffer, Device};
use crate::error::{CubeError, Result};

/// Some tokens in the form that ternary kernels read, on the device.
///
/// ```text
/// codes    [code row][block][t][i][h]: a word is columns 128 block + 32 i + 16 h + 4 t .. + 4, low byte first
/// sums     [code row][segment], then the sum of the row and three zeros
/// factors  [token], or [token][segment]
/// ```
///
/// In that order the eight words that a lane needs of a block are two vectors, for the dot products of four bytes and for
/// the matrix instructions alike. What a code stands for is the factor times the sum over the token's rows of `256^row`
/// times the digit.
#[derive(Clone, Debug)]
pub struct Activations {
    shape: ActivationShape,
    rotation: Option<Hadamard>,
    pub(crate) codes: Buffer<u32>,
    pub(crate) sums: Buffer<i32>,
    pub(crate) factors: Buffer<f32>,
}

impl Activations {
    /// Room for some activations, which hold anything until a quantizer fills them.
    ///
    /// # Errors
    ///
    /// Those of [`ActivationShape::validate`] and [`Device::empty`].
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

    /// The same, for codes of rotated values: a quantizer rotates what it fills them from, and only weights that are stored behind
    /// that rotation take them. What [`Activations::upload`] is given must be rotated already.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotMultiple`] when rows are no whole blocks.
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

    /// What the values went through.
    #[must_use]
    pub fn rotation(&self) -> Option<Hadamard> {
        self.rotation
    }

    /// Their shape.
    #[must_use]
    pub fn shape(&self) -> ActivationShape {
        self.shape
    }

    /// The codes, as the diagram above says.
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

    /// Quantizes on the host and uploads: the specification of the quantizers on the device, and the way for the tests.
    ///
    /// A token with a value that is not finite gets the factor NaN, which reaches all of its outputs.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] for a wrong number of values, and those of [`Activations::empty`].
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
