//! Block-sparse masks on a device.

pub use trike_core::{BlockBitmap, MaskedWork};

use crate::device::{Buffer, CubeDevice};
use crate::error::Result;

/// A [`BlockBitmap`] on the device, for [`CubeDevice::attention_masked`].
#[derive(Clone, Debug)]
pub struct BlockMask {
    bitmap: BlockBitmap,
    buffer: Buffer<u32>,
}

impl BlockMask {
    /// Uploads a bitmap.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::upload`].
    pub fn upload(device: &CubeDevice, bitmap: BlockBitmap) -> Result<Self> {
        let buffer = device.upload(bitmap.words())?;
        Ok(Self { bitmap, buffer })
    }

    /// The bitmap.
    #[must_use]
    pub fn bitmap(&self) -> &BlockBitmap {
        &self.bitmap
    }

    pub(super) fn buffer(&self) -> &Buffer<u32> {
        &self.buffer
    }
}
