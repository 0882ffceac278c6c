//! Typed device memory.

use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use cubecl::prelude::{BufferArg, CubePrimitive};
use cubecl::server::Handle;
use half::{bf16, f16};

use super::allocation::{Allocation, Common};
use crate::error::{CubeError, Result, check_range};

mod sealed {
    pub trait SealedElement {}
}

/// Element types of buffers.
pub trait Element: sealed::SealedElement + Pod + CubePrimitive + Send + Sync {
    /// Type name for error messages.
    const NAME: &'static str;
}

macro_rules! elements {
    ($($type:ty),*) => {$(
        impl sealed::SealedElement for $type {}
        impl Element for $type {
            const NAME: &'static str = stringify!($type);
        }
    )*};
}
elements!(f32, f16, bf16, u32, i32);

/// `len` elements in device memory; clones and [views](Buffer::view) share the memory.
///
/// Create buffers with [`CubeDevice::empty`](crate::CubeDevice::empty) and [`CubeDevice::upload`](crate::CubeDevice::upload). A
/// buffer carries its length, so no function takes it as an argument.
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

    /// A buffer over a whole allocation, whose size must be a multiple of the element size.
    pub(super) fn whole(allocation: Arc<Allocation>, alignment: u64) -> Self {
        // The length of the allocation was a `usize` when it was created.
        let len = allocation.bytes() as usize / size_of::<T>();
        Self { allocation, start: 0, len, alignment, element: PhantomData }
    }

    pub(super) fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }

    /// Number of elements, at least 1.
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

    /// A view of a part of the buffer, sharing its memory.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] when the part is empty or extends past the end, [`CubeError::NotMultiple`] when it does not start
    /// at a multiple of [`Capabilities::alignment`](crate::Capabilities::alignment) bytes.
    pub fn view(&self, start: usize, len: usize) -> Result<Self> {
        check_range("length of a buffer view", 1, self.len, len)?;
        check_range("start of a buffer view", 0, self.len - len, start)?;
        let start = self.start + start;
        let bytes = start * size_of::<T>();
        if !(bytes as u64).is_multiple_of(self.alignment) {
            let unit = usize::try_from(self.alignment).unwrap_or(usize::MAX);
            return Err(CubeError::NotMultiple { what: "byte offset of a buffer view", unit, got: bytes });
        }
        Ok(Self { allocation: Arc::clone(&self.allocation), start, len, ..*self })
    }

    /// Reinterprets the bytes as another element type.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotMultiple`] when the bytes or the offset are not a multiple of its size.
    pub fn cast<U: Element>(&self) -> Result<Buffer<U>> {
        let (from, to) = (size_of::<T>(), size_of::<U>());
        for bytes in [self.bytes(), self.start * from] {
            if !bytes.is_multiple_of(to) {
                return Err(CubeError::NotMultiple { what: "bytes of a buffer cast", unit: to, got: bytes });
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

    /// The first element of a view in its allocation.
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// The whole allocation of a view.
    pub(crate) fn all(&self) -> Self {
        Self::whole(Arc::clone(&self.allocation), self.alignment)
    }

    /// Returns true if two buffers are views of one allocation.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.allocation, &other.allocation)
    }

    /// Returns true if two buffers share memory.
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

    /// The handle for a launch; a capture keeps its memory alive.
    fn handle_of_launch(&self) -> Handle {
        self.allocation.captures().give(&self.allocation);
        self.handle()
    }

    /// The buffer as a kernel argument.
    #[doc(hidden)]
    #[must_use]
    pub fn arg(&self) -> BufferArg {
        // SAFETY: the handle covers `len` elements: allocated by `CubeDevice`, or checked by `view` and `cast`.
        unsafe { BufferArg::from_raw_parts(self.handle_of_launch(), self.len) }
    }

    /// The buffer as a kernel argument of vectors of `lanes` elements; a remainder at the end is not accessible to the kernel.
    pub(crate) fn vectors(&self, lanes: usize) -> BufferArg {
        // SAFETY: as in `arg`; a vector is `lanes` elements, and the length is rounded down.
        unsafe { BufferArg::from_raw_parts(self.handle_of_launch(), self.len / lanes) }
    }
}

/// A buffer of any element type: an output of a launch.
pub trait AnyBuffer {
    /// The handle for reads and checks.
    fn handle(&self) -> Handle;
}

impl<T: Element> AnyBuffer for Buffer<T> {
    fn handle(&self) -> Handle {
        Buffer::handle(self)
    }
}
