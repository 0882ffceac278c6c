//! Copies from one device to another.

use super::{Buffer, CubeDevice, Element};
use crate::error::{CubeError, Result};

impl CubeDevice {
    /// Copies a buffer of this device to `other`: one read, which waits for the launches that write the buffer, and one upload.
    ///
    /// The copy goes through the host on every runtime. CubeCL copies directly between devices only with NCCL, where a failed send
    /// would block the receiver instead of returning an error; otherwise it goes through the host as well.
    ///
    /// ```no_run
    /// use trike_cube::{CubeDevice, CubeError, DeviceSpec, Runtime};
    ///
    /// let [first, second] = [0, 1].map(|index| CubeDevice::open(DeviceSpec::Numbered(Runtime::Cuda, index)));
    /// let (first, second) = (first?, second?);
    /// let x = first.upload(&[1.0f32, 2.0])?;
    /// let copy = first.copy_to(&x, &second)?;
    /// assert_eq!(second.read(&copy)?, [1.0, 2.0]);
    /// # Ok::<(), CubeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CubeError::OtherDevice`] for a buffer of another device; as [`CubeDevice::empty`] for the memory of `other`, before
    /// anything is read; as [`CubeDevice::read`]; [`CubeError::Capture`] within a capture on either device.
    pub fn copy_to<T: Element>(&self, buffer: &Buffer<T>, other: &Self) -> Result<Buffer<T>> {
        if !buffer.allocation().is_of(&self.common) {
            let device = self.spec.to_string();
            return Err(CubeError::OtherDevice { what: "the buffer to copy", device });
        }
        other.check_size::<T>(buffer.len())?;
        other.upload(&self.read(buffer)?)
    }
}
