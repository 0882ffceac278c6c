//! Large buffers in huge pages, or in mapped files.
//!
//! With 4 KiB pages, address translation costs one core a fifth of its streaming bandwidth. A matrix is
//! often smaller than a huge page, so matrices are allocated consecutively from shared chunks.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytemuck::{AnyBitPattern, NoUninit, Zeroable};

use crate::error::HostError;
use crate::map::{FileRange, Mapped};

/// One or more cache lines of 64 bytes, aligned so that no vector load crosses a line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct CacheLine<T>(pub T);

// SAFETY: a `CacheLine` consists of its field and possibly padding, and all zeros is valid for the field.
unsafe impl<T: Zeroable> Zeroable for CacheLine<T> {}

// SAFETY: a `CacheLine` consists of its field, for which every bit pattern is valid, and possibly padding.
unsafe impl<T: AnyBitPattern> AnyBitPattern for CacheLine<T> {}

// SAFETY: 64 bytes fill the line, so there is no padding.
unsafe impl NoUninit for CacheLine<[u8; 64]> {}

/// Minimum size in bytes of a buffer that is allocated from a chunk; smaller buffers are on the heap.
#[cfg(any(target_os = "linux", test))]
const LARGE: usize = 64 << 10;

/// A zero-initialized buffer, in huge pages if it is large and the system supports them.
///
/// For long-lived data such as weights: a chunk is returned to the system only when the last buffer allocated from it
/// is dropped.
///
/// ```
/// use trike_host::{CacheLine, Lines};
///
/// let mut lines = Lines::<CacheLine<[f32; 16]>>::zeroed(4)?;
/// lines[3].0[15] = 2.5;
/// assert_eq!((lines.len(), lines[0].0[0], lines[3].0[15]), (4, 0.0, 2.5));
/// # Ok::<(), trike_host::HostError>(())
/// ```
pub struct Lines<T>(Store<T>);

enum Store<T> {
    Heap(Vec<T>),
    Mapped(Mapped<T>),
    #[cfg(target_os = "linux")]
    Cut(chunks::Cut<T>),
}

impl<T: Copy + Zeroable> Lines<T> {
    /// A buffer of `len` zeroed elements.
    ///
    /// # Errors
    ///
    /// [`HostError::Memory`] if the allocation fails.
    pub fn zeroed(len: usize) -> Result<Self, HostError> {
        let bytes = len.saturating_mul(size_of::<T>());
        #[cfg(target_os = "linux")]
        if bytes >= LARGE
            && let Some(cut) = chunks::cut(len)
        {
            return Ok(Self(Store::Cut(cut)));
        }
        let mut heap = Vec::new();
        heap.try_reserve_exact(len).map_err(|_| HostError::Memory { requested: bytes })?;
        heap.resize(len, T::zeroed());
        Ok(Self(Store::Heap(heap)))
    }
}

impl<T: Copy + Zeroable> Lines<T> {
    /// As [`zeroed`](Self::zeroed), but a large buffer gets its own mapping, which is returned to the system when the buffer is
    /// dropped: for short-lived buffers, such as the KV cache of a sequence.
    ///
    /// # Errors
    ///
    /// [`HostError::Memory`] if the allocation fails.
    ///
    /// ```
    /// use trike_host::Lines;
    ///
    /// let cache = Lines::<f32>::separate(1 << 20)?;
    /// assert_eq!((cache.len(), cache[12345]), (1 << 20, 0.0));
    /// # Ok::<(), trike_host::HostError>(())
    /// ```
    pub fn separate(len: usize) -> Result<Self, HostError> {
        let bytes = len.saturating_mul(size_of::<T>());
        #[cfg(target_os = "linux")]
        if bytes >= chunks::HUGE
            && let Some(cut) = chunks::alone(len)
        {
            return Ok(Self(Store::Cut(cut)));
        }
        // Allocated as a whole: the system zeroes large allocations lazily, on the first access.
        let heap =
            bytemuck::allocation::try_zeroed_vec(len).map_err(|()| HostError::Memory { requested: bytes })?;
        Ok(Self(Store::Heap(heap)))
    }
}

impl<T> Deref for Lines<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.0 {
            Store::Heap(heap) => heap,
            Store::Mapped(mapped) => mapped.as_slice(),
            #[cfg(target_os = "linux")]
            Store::Cut(cut) => cut.as_slice(),
        }
    }
}

impl<T: Copy + Zeroable> DerefMut for Lines<T> {
    /// Copies the elements first if they are in a mapped file.
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        if let Store::Mapped(mapped) = &self.0 {
            *self = Self::copy_of(mapped.as_slice());
        }
        match &mut self.0 {
            Store::Heap(heap) => heap,
            // Copied above.
            Store::Mapped(_) => &mut [],
            #[cfg(target_os = "linux")]
            Store::Cut(cut) => cut.as_mut_slice(),
        }
    }
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self(Store::Heap(Vec::new()))
    }
}

impl<T: AnyBitPattern> Lines<T> {
    /// The elements of a range of a mapped file, without a copy; `None` if the range is misaligned or not a whole number of
    /// elements. Writing to the buffer copies them first.
    ///
    /// ```
    /// use std::{io::Write, path::Path};
    /// use trike_host::{FileMap, Lines};
    ///
    /// let mut file = tempfile::tempfile()?;
    /// file.write_all(&[1, 0, 0, 0, 2, 0, 0, 0, 3])?;
    /// // SAFETY: a temporary file without a name, which is not written any more.
    /// let map = unsafe { FileMap::new(&file, Path::new("numbers"))? };
    /// let part = map.range(0..8).expect("it has nine bytes");
    /// let mut lines = Lines::<[u8; 4]>::mapped(&part).expect("two elements");
    /// assert_eq!(lines[1], [2, 0, 0, 0]);
    /// lines[1] = [7; 4];
    /// assert_eq!((lines[1], map[4]), ([7; 4], 2));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn mapped(part: &FileRange) -> Option<Self> {
        Mapped::new(part).map(|mapped| Self(Store::Mapped(mapped)))
    }
}

impl<T: Copy + Zeroable> Lines<T> {
    fn copy_of(elements: &[T]) -> Self {
        match Self::zeroed(elements.len()) {
            Ok(mut copy) => {
                copy.copy_from_slice(elements);
                copy
            }
            // Out of memory: aborts the process, like any other clone.
            Err(_) => Self(Store::Heap(elements.to_vec())),
        }
    }
}

impl<T: Copy + Zeroable> Clone for Lines<T> {
    fn clone(&self) -> Self {
        match &self.0 {
            Store::Mapped(mapped) => Self(Store::Mapped(mapped.share())),
            _ => Self::copy_of(self),
        }
    }
}

impl<T> fmt::Debug for Lines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Store::Heap(_) => "heap",
            Store::Mapped(_) => "mapped file",
            #[cfg(target_os = "linux")]
            Store::Cut(_) => "huge pages",
        };
        f.debug_struct("Lines").field("len", &self.len()).field("kind", &kind).finish()
    }
}

#[cfg(target_os = "linux")]
mod chunks {
    use std::marker::PhantomData;
    use std::ptr::NonNull;
    use std::sync::{Arc, Mutex, PoisonError, Weak};

    use bytemuck::Zeroable;
    use memmap2::{Advice, MmapMut, MmapRaw};

    /// Size of a huge page in bytes.
    pub(super) const HUGE: usize = 2 << 20;
    /// Size of a chunk in bytes, unless one buffer needs more. Untouched pages take no memory.
    const CHUNK: usize = 64 << 20;
    /// Alignment of every cut: a cache line.
    const ALIGN: usize = 64;

    /// The chunk from which the next buffers are cut, as long as one of its buffers is alive.
    static OPEN: Mutex<Open> = Mutex::new(Open { chunk: Weak::new(), used: 0 });

    struct Open {
        chunk: Weak<Chunk>,
        /// Number of allocated bytes from the start of the chunk. They are never reused, so that every cut consists of memory
        /// that the system zeroed.
        used: usize,
    }

    /// An anonymous mapping, accessed only through the buffers cut from it.
    struct Chunk {
        map: MmapRaw,
        /// Offset of the first huge page, in bytes.
        skip: usize,
        /// Usable bytes from that offset.
        len: usize,
    }

    impl Chunk {
        fn new(bytes: usize) -> Option<Self> {
            let len = bytes.checked_next_multiple_of(HUGE)?;
            let map = MmapRaw::from(MmapMut::map_anon(len.checked_add(HUGE)?).ok()?);
            // Best effort: without huge pages everything works, but slower.
            let _ = map.advise(Advice::HugePage);
            let skip = map.as_ptr().align_offset(HUGE);
            Some(Self { map, skip, len })
        }
    }

    /// A range of elements in a chunk that no other cut overlaps.
    pub(super) struct Cut<T> {
        start: NonNull<T>,
        len: usize,
        /// Keeps the memory mapped.
        _chunk: Arc<Chunk>,
        _elements: PhantomData<T>,
    }

    // SAFETY: a cut owns its elements like a `Vec<T>`: no other value accesses them.
    unsafe impl<T: Send> Send for Cut<T> {}
    // SAFETY: as above; a shared reference to a cut gives only shared access to its elements.
    unsafe impl<T: Sync> Sync for Cut<T> {}

    impl<T> Cut<T> {
        #[inline]
        pub(super) fn as_slice(&self) -> &[T] {
            // SAFETY: `cut` checked that `len` elements from `start` are aligned and lie in the chunk, which `_chunk` keeps
            // mapped; its bound `T: Zeroable` makes zeroed memory valid elements, and no other cut overlaps them.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
        }

        #[inline]
        pub(super) fn as_mut_slice(&mut self) -> &mut [T] {
            // SAFETY: as in `as_slice`; `&mut self` guarantees exclusive access to the elements.
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
        }
    }

    /// `len` zeroed elements in a separate chunk; `None` if no more memory can be mapped.
    pub(super) fn alone<T: Copy + Zeroable>(len: usize) -> Option<Cut<T>> {
        const { assert!(align_of::<T>() <= ALIGN, "cuts are aligned to a cache line") };
        let chunk = Arc::new(Chunk::new(len.checked_mul(size_of::<T>())?)?);
        // In bounds: `skip < HUGE`, and the mapping is at least the buffer and `HUGE` long.
        let start = NonNull::new(chunk.map.as_mut_ptr().wrapping_add(chunk.skip).cast())?;
        Some(Cut { start, len, _chunk: chunk, _elements: PhantomData })
    }

    /// Cuts `len` zeroed elements from a chunk; `None` if no more memory can be mapped.
    pub(super) fn cut<T: Copy + Zeroable>(len: usize) -> Option<Cut<T>> {
        const { assert!(align_of::<T>() <= ALIGN, "cuts are aligned to a cache line") };
        let bytes = len.checked_mul(size_of::<T>())?.checked_next_multiple_of(ALIGN)?;
        // No panic can leave the guarded value inconsistent, so a poisoned lock is safe to use.
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let current = open.chunk.upgrade().filter(|chunk| bytes <= chunk.len - open.used);
        let (chunk, offset) = match current {
            Some(chunk) => {
                let offset = open.used;
                open.used += bytes;
                (chunk, offset)
            }
            None => {
                let chunk = Arc::new(Chunk::new(bytes.max(CHUNK))?);
                let left = open.chunk.upgrade().map_or(0, |old| old.len - open.used);
                // A chunk for one large buffer does not replace one with more free space.
                if chunk.len - bytes >= left {
                    *open = Open { chunk: Arc::downgrade(&chunk), used: bytes };
                }
                (chunk, 0)
            }
        };
        drop(open);
        // In bounds: `skip < HUGE`, `offset + bytes <= chunk.len`, and the mapping is `len + HUGE` bytes long.
        let start = NonNull::new(chunk.map.as_mut_ptr().wrapping_add(chunk.skip + offset).cast())?;
        Some(Cut { start, len, _chunk: chunk, _elements: PhantomData })
    }
}

#[cfg(test)]
mod tests {
    use super::{CacheLine, LARGE, Lines};
    use crate::HostError;

    type CodeLine = CacheLine<[u8; 64]>;

    /// Lengths in lines: empty, a heap buffer, either side of the limit, a part of a huge page, and more than a chunk.
    const LENGTHS: [usize; 7] = [0, 1, LARGE / 64 - 1, LARGE / 64, LARGE / 64 + 1, 50_001, (65 << 20) / 64];

    #[test]
    fn buffers_start_as_zeros_and_do_not_share_memory() {
        let mut all: Vec<Lines<CodeLine>> = Vec::new();
        for round in 0..3u8 {
            for len in LENGTHS {
                let mut lines = Lines::<CodeLine>::zeroed(len).expect("little memory");
                assert_eq!(lines.len(), len);
                assert!(lines.as_ptr().addr().is_multiple_of(64));
                assert!(lines.iter().all(|line| line.0 == [0; 64]), "{len} lines are zeros");
                lines.fill(CacheLine([all.len() as u8 + 1; 64]));
                all.push(lines);
            }
            // Freed chunks are returned as zeros as well.
            if round == 1 {
                all.clear();
            }
        }
        for (i, lines) in all.iter().enumerate() {
            assert!(
                lines.iter().all(|line| line.0 == [i as u8 + 1; 64]),
                "buffer {i} was written by another"
            );
        }
    }

    #[test]
    fn separate_buffers_start_as_zeros_whatever_was_freed() {
        for round in 0..3u8 {
            let mut all: Vec<Lines<CodeLine>> = Vec::new();
            for len in LENGTHS {
                let mut lines = Lines::<CodeLine>::separate(len).expect("little memory");
                assert_eq!(lines.len(), len);
                assert!(lines.iter().all(|line| line.0 == [0; 64]), "{len} lines are zeros");
                lines.fill(CacheLine([round + 1; 64]));
                all.push(lines);
            }
            assert!(all.iter().all(|lines| lines.iter().all(|line| line.0 == [round + 1; 64])));
        }
        let refused = Lines::<CodeLine>::separate(isize::MAX as usize / 64);
        assert!(matches!(refused, Err(HostError::Memory { .. })));
    }

    #[test]
    fn clones_are_equal_and_apart() {
        for len in [3, 5000] {
            let mut lines = Lines::<CacheLine<[f32; 16]>>::zeroed(len).expect("little memory");
            lines[len - 1].0[15] = 2.5;
            let mut copy = lines.clone();
            assert_eq!(copy[len - 1].0, lines[len - 1].0);
            copy[0].0[0] = 1.0;
            assert_eq!(lines[0].0[0], 0.0);
        }
    }

    #[test]
    fn buffers_pass_between_threads() {
        let mut lines = Lines::<CodeLine>::zeroed(4096).expect("little memory");
        let mut lines = std::thread::spawn(move || {
            lines[4095].0[63] = 7;
            lines
        })
        .join()
        .expect("no panic");
        lines[0].0[0] = 9;
        let seen = std::thread::scope(|s| s.spawn(|| (lines[0].0[0], lines[4095].0[63])).join());
        assert_eq!(seen.expect("no panic"), (9, 7));
    }

    #[test]
    fn too_much_is_an_error() {
        for len in [usize::MAX, usize::MAX / 64, isize::MAX as usize / 64] {
            assert!(matches!(Lines::<CodeLine>::zeroed(len), Err(HostError::Memory { .. })), "{len}");
        }
    }

    #[test]
    fn the_default_is_empty_and_debug_is_short() {
        assert!(Lines::<CodeLine>::default().is_empty());
        let text = format!("{:?}", Lines::<CodeLine>::zeroed(4096).expect("little memory"));
        assert!(text.starts_with("Lines { len: 4096"), "{text}");
    }
}
