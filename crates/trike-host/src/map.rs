//! Files mapped into memory.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::AnyBitPattern;
use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;

use crate::bus::Watched;

/// A file mapped read-only: pages are loaded on access. Clones share the mapping.
///
/// **The file must not be truncated or rewritten in place while it is mapped.** No operating system that Rust supports can enforce
/// that, which is why [`new`](Self::new) is `unsafe`; Trike's writers replace files by renaming. A program can call
/// [`exit_on_unreadable_map`](crate::exit_on_unreadable_map) to exit with an error message if a file is truncated nevertheless.
///
/// ```
/// use std::io::Write;
/// use std::path::Path;
/// use trike_host::FileMap;
///
/// let mut file = tempfile::tempfile()?;
/// file.write_all(b"trits")?;
/// // SAFETY: a temporary file without a name, which is not written any more.
/// let map = unsafe { FileMap::new(&file, Path::new("trits"))? };
/// assert_eq!(map.range(1..3).as_deref(), Some(&b"ri"[..]));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FileMap(Arc<Mapping>);

#[derive(Debug)]
struct Mapping {
    /// Dropped before the memory is unmapped.
    _watched: Watched,
    memory: Mmap,
}

impl FileMap {
    /// Maps an open file; `path` is for error messages.
    ///
    /// # Safety
    ///
    /// Until the last clone, [`FileRange`] and [`Lines`](crate::Lines) of this map is dropped, no process may truncate the file or
    /// write to it: bytes that were read could change, and those past a new end would be gone.
    ///
    /// # Errors
    ///
    /// Errors of the operating system.
    pub unsafe fn new(file: &File, path: &Path) -> io::Result<Self> {
        // SAFETY: the map is read-only and owned by this value. The caller guarantees that the file is neither truncated nor
        // written.
        let map = unsafe { Mmap::map(file)? };
        // Best effort: an uncached file is read into huge pages.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self(Arc::new(Mapping { _watched: Watched::new(&map, path), memory: map })))
    }

    /// Bytes `range` of the file; `None` if they are not all in it.
    pub fn range(&self, range: Range<usize>) -> Option<FileRange> {
        self.get(range.clone())?;
        Some(FileRange { map: self.clone(), range })
    }

    /// Removes a range from this process's resident memory, for example after its content has been copied, so that a loaded model
    /// does not count twice. The pages stay in the system's cache, and a later access maps them again.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            // SAFETY: the mapping is read-only and backed by a file, so a dropped page is read again from the file on the next
            // access, with the same content (`new`); no write can be lost.
            let released = unsafe {
                self.0.memory.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len())
            };
            // On failure the pages stay mapped: more memory, the same result.
            drop(released);
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

impl Deref for FileMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.memory
    }
}

/// A range of a mapped file, which stays mapped.
#[derive(Clone, Debug)]
pub struct FileRange {
    map: FileMap,
    /// Inside the file.
    range: Range<usize>,
}

impl Deref for FileRange {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[self.range.clone()]
    }
}

impl AsRef<[u8]> for FileRange {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Elements in a mapped file.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    start: NonNull<T>,
    len: usize,
    /// Keeps the memory mapped.
    map: FileMap,
    _elements: PhantomData<T>,
}

// SAFETY: the elements are only read, and their memory is unmapped when the last owner is dropped, on any thread.
unsafe impl<T: Sync> Send for Mapped<T> {}
// SAFETY: as above; sharing it gives only shared access to the elements.
unsafe impl<T: Sync> Sync for Mapped<T> {}

impl<T: AnyBitPattern> Mapped<T> {
    /// The range as elements; `None` if it is misaligned or not a whole number of elements.
    pub(crate) fn new(range: &FileRange) -> Option<Self> {
        let elements: &[T] = bytemuck::try_cast_slice(range).ok()?;
        let start = NonNull::from(elements).cast();
        Some(Self { start, len: elements.len(), map: range.map.clone(), _elements: PhantomData })
    }
}

impl<T> Mapped<T> {
    #[inline]
    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: `new` cast this many elements from a slice of `map`, which keeps them mapped at the same address; the memory is
        // never written (`FileMap::new`).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The same elements again.
    pub(crate) fn share(&self) -> Self {
        Self { start: self.start, len: self.len, map: self.map.clone(), _elements: PhantomData }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::{
        fs::{self, File},
        io::{BufRead, BufReader, Read, Write},
        process::{Command, Stdio},
    };

    use crate::{FileMap, exit_on_unreadable_map};

    const FILE: &str = "TRIKE_TEST_TRUNCATED";
    /// Several pages.
    const BYTES: usize = 1 << 16;

    /// Runs in a separate process: reads a file that the test below truncates meanwhile.
    #[test]
    fn reader() {
        let Some(path) = std::env::var_os(FILE) else { return };
        exit_on_unreadable_map(7);
        let file = File::open(&path).unwrap();
        // SAFETY: the file is truncated while it is mapped, after which only the signal handler runs.
        let map = unsafe { FileMap::new(&file, path.as_ref()) }.unwrap();
        assert_eq!(map[BYTES - 1], 9);
        std::io::stdout().write_all(b"mapped\n").unwrap();
        let _ = std::io::stdin().read(&mut [0]).unwrap();
        assert_eq!(std::hint::black_box(&map)[BYTES - 1], 9);
    }

    #[test]
    fn a_truncated_file_is_a_sentence_and_no_signal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        fs::write(&path, [9; BYTES]).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["map::tests::reader", "--exact", "--nocapture"])
            .env(FILE, &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("mapped")), "the child is ready");
        File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(7), "{said}");
        let line = format!("error: {}: cannot be read any more: another process truncated", path.display());
        assert!(said.contains(&line), "{said}");
    }
}
