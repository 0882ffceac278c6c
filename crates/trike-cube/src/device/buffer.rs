//! Typed memory of a device.

use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use cubecl::prelude::{BufferArg, CubePrimitive};
use cubecl::server::Handle;
use half::{bf16, f16};

use super::allocation::{Allocation, Common};
use crate::error::{CubeError, Result, check_range};

mod sealed {
    pub trait Sealed {}
}

/// A number that buffers hold.
pub trait Element: sealed::Sealed + Pod + CubePrimitive + Send + Sync {
    /// Its name in errors.
    const NAME: &'static str;
}

macro_rules! elements {
    ($($type:ty),*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const NAME: &'static str = stringify!($type);
        }
    )*};
}
elements!(f32, f16, bf16, u32, i32);

/// `len` numbers in the memory of a device; clones and [views](Buffer::view) share them.
///
/// Buffers are made by [`Device::empty`](crate::Device::empty) and [`Device::upload`](crate::Device::upload), and the length
/// is the buffer's own: no function takes it again.
#[derive(Clone, Debug)]
pub struct Buffer<T> {
    allocation: Arc<Allocation>,
    /// In elements.
    start: usize,
    len: usize,
    /// In bytes.
    alignment: u64,
    element: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    pub(super) fn over(handle: Handle, len: usize, alignment: u64, common: &Arc<Common>) -> Self {
        let bytes = (len * size_of::<T>()) as u64;
        let allocation = Allocation::new(handle, bytes, common);
        Self::whole(Arc::new(allocation), alignment)
    }

    /// All of an allocation, whose bytes are a whole number of elements.
    pub(super) fn whole(allocation: Arc<Allocation>, alignment: u64) -> Self {
        // It was made for a length of a `usize`.
        let len = allocation.bytes() as usize / size_of::<T>();
        Self { allocation, start: 0, len, alignment, element: PhantomData }
    }

    pub(super) fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }

    /// Numbers, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// A part of the buffer, sharing its memory.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] when the part is empty or reaches over the end, [`CubeError::NotMultiple`] when it does not start
    /// at a multiple of [`Capabilities::alignment`](crate::Capabilities::alignment) bytes.
    pub fn view(&self, start: usize, len: usize) -> Result<Self> {
        check_range("length of a part of a buffer", 1, self.len, len)?;
        check_range("start of a part of a buffer", 0, self.len - len, start)?;
        let start = self.start + start;
        let bytes = start * size_of::<T>();
        if !(bytes as u64).is_multiple_of(self.alignment) {
            let unit = usize::try_from(self.alignment).unwrap_or(usize::MAX);
            return Err(CubeError::NotMultiple { what: "bytes before a part of a buffer", unit, got: bytes });
        }
        Ok(Self { allocation: Arc::clone(&self.allocation), start, len, ..*self })
    }

    /// The same bytes as other numbers.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotMultiple`] when the bytes are no whole number of them.
    pub fn cast<U: Element>(&self) -> Result<Buffer<U>> {
        let (from, to) = (size_of::<T>(), size_of::<U>());
        for bytes in [self.bytes(), self.start * from] {
            if !bytes.is_multiple_of(to) {
                return Err(CubeError::NotMultiple {
                    what: "bytes of a buffer to be cast",
                    unit: to,
                    got: bytes,
                });
            }
        }
        Ok(Buffer {
            allocation: Arc::clone(&self.allocation),
            start: self.start * from / to,
            len: self.bytes() / to,
            alignment: self.alignment,
            element: PhantomData,
        })
    }

    /// Whether two buffers share memory.
    #[must_use]
    pub fn overlaps<U: Element>(&self, other: &Buffer<U>) -> bool {
        let (a, b) = (self.start * size_of::<T>(), other.start * size_of::<U>());
        Arc::ptr_eq(&self.allocation, &other.allocation) && a < b + other.bytes() && b < a + self.bytes()
    }

    pub(super) fn handle(&self) -> Handle {
        let (start, bytes) = ((self.start * size_of::<T>()) as u64, self.bytes() as u64);
        let handle = self.allocation.handle();
        let end = handle.size_in_used() - start - bytes;
        handle.offset_start(start).offset_end(end)
    }

    /// The handle for a launch, which a capture keeps the memory for.
    fn handle_of_launch(&self) -> Handle {
        self.allocation.captures().give(&self.allocation);
        self.handle()
    }

    /// The buffer as an argument of a kernel.
    pub(crate) fn arg(&self) -> BufferArg {
        // SAFETY: the handle covers `len` elements: allocated so by `Device`, or checked by `view` and `cast`.
        unsafe { BufferArg::from_raw_parts(self.handle_of_launch(), self.len) }
    }

    /// The buffer as an argument of vectors of `lanes` numbers; what is left over at its end is out of the kernel's reach.
    pub(crate) fn vectors(&self, lanes: usize) -> BufferArg {
        // SAFETY: as in `arg`; a vector is `lanes` elements, and the length is rounded down.
        unsafe { BufferArg::from_raw_parts(self.handle_of_launch(), self.len / lanes) }
    }
}

/// Some numbers of a device, whatever their type: what a launch writes.
pub(crate) trait Memory {
    fn handle(&self) -> Handle;
}

impl<T: Element> Memory for Buffer<T> {
    fn handle(&self) -> Handle {
        Buffer::handle(self)
    }
}
