//! A compact file format for hypervectors.
//!
//! ```text
//! bytes     content
//! 0..8      "TRIKEHV1"
//! 8         algebra: 0 Z3, 1 bipolar, 2 ternary
//! 9..16     zeros
//! 16..24    dimensions, little-endian, 1 to 2^24
//! 24..32    vectors, little-endian
//! 32..      the vectors, one after the other
//! last 8    64-bit FNV-1a of all preceding bytes, little-endian
//! ```
//!
//! A vector has five trits per byte, `sum of (trit + 1) * 3^i`, or, in the bipolar algebra, eight signs per byte, 1 for +1; the
//! last byte is padded with zero trits or 0 bits. 10,000 dimensions take 2,000 or 1,250 bytes.

use std::io::{Read, Write};

use crate::algebra::{Algebra, AlgebraKind};
use crate::error::{VsaError, check_range};
use crate::memory::ItemMemory;
use crate::vector::{PackedTritVec, check_algebra};

const MAGIC: [u8; 8] = *b"TRIKEHV1";
/// Maximum number of dimensions of a vector in a file, since a vector is read as a whole.
pub const MAX_FILE_DIM: usize = 1 << 24;
const HEADER: usize = 32;

/// 64-bit FNV-1a: detects corruption, not tampering.
#[derive(Clone, Copy)]
struct Checksum(u64);

impl Checksum {
    fn new() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        self.0 =
            bytes.iter().fold(self.0, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    }
}

/// The byte that encodes an algebra.
fn code(kind: AlgebraKind) -> u8 {
    match kind {
        AlgebraKind::Z3 => 0,
        AlgebraKind::Bipolar => 1,
        AlgebraKind::Ternary => 2,
    }
}

/// Number of bytes of a vector.
fn row_bytes<A: Algebra>(dim: usize) -> usize {
    dim.div_ceil(if A::ZEROS { 5 } else { 8 })
}

impl<A: Algebra> ItemMemory<A> {
    /// Writes all vectors in the compact format: 1.6 bits per dimension, or 1 in [`Bipolar`](crate::Bipolar).
    ///
    /// ```
    /// use trike_vsa::{ItemMemory, PackedTritVec, Z3};
    ///
    /// let memory = ItemMemory::of(&PackedTritVec::<Z3>::random_set(10_000, 3, 1)?)?;
    /// let mut file = Vec::new();
    /// memory.write(&mut file)?;
    /// assert_eq!(file.len(), 32 + 3 * 2000 + 8);
    /// assert_eq!(ItemMemory::<Z3>::read(file.as_slice())?, memory);
    /// # Ok::<(), trike_vsa::VsaError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] above 2^24 dimensions, [`VsaError::Io`].
    pub fn write(&self, mut to: impl Write) -> Result<(), VsaError> {
        check_range("dimensions of vectors in a file", 1, MAX_FILE_DIM, self.dim())?;
        let mut sum = Checksum::new();
        let mut put = |bytes: &[u8]| {
            sum.add(bytes);
            to.write_all(bytes)
        };
        put(&MAGIC)?;
        put(&[code(A::KIND), 0, 0, 0, 0, 0, 0, 0])?;
        put(&(self.dim() as u64).to_le_bytes())?;
        put(&(self.len() as u64).to_le_bytes())?;
        for index in 0..self.len() {
            let trits = self.row(index)?.to_trits();
            let packed: Vec<u8> = if A::ZEROS {
                let byte = |t: &[i8]| t.iter().rev().fold(0, |byte, t| 3 * byte + (t + 1) as u8);
                // The padding at the end is zero trits, each a digit of 1.
                let chunks = trits.chunks_exact(5);
                let mut last = [0; 5];
                last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
                let partial = (!chunks.remainder().is_empty()).then(|| byte(&last));
                chunks.map(byte).chain(partial).collect()
            } else {
                let byte = |t: &[i8]| t.iter().rev().fold(0, |byte, &t| (byte << 1) | u8::from(t == 1));
                trits.chunks(8).map(byte).collect()
            };
            put(&packed)?;
        }
        to.write_all(&sum.0.to_le_bytes())?;
        Ok(to.flush()?)
    }

    /// Reads a file written by [`ItemMemory::write`]; the memory searches on the caller's thread.
    ///
    /// Memory is allocated as vectors are read, independent of the count in the header.
    ///
    /// # Errors
    ///
    /// [`VsaError::File`] for a file of another format, or one that is corrupt, truncated or longer than its header states,
    /// [`VsaError::Algebra`] for another algebra, [`VsaError::Io`].
    pub fn read(mut from: impl Read) -> Result<Self, VsaError> {
        let mut header = [0; HEADER];
        fill(&mut from, &mut header, "header")?;
        let (magic, rest) = header.split_at(8);
        if magic != MAGIC {
            return Err(wrong("magic number", format!("{MAGIC:?}"), format!("{magic:?}")));
        }
        let kind = AlgebraKind::ALL.into_iter().find(|&kind| code(kind) == rest[0]);
        let kind = kind.ok_or_else(|| wrong("algebra", "0, 1 or 2".to_owned(), rest[0].to_string()))?;
        check_algebra::<A>(kind)?;
        if let Some(&other) = rest[1..8].iter().find(|&&b| b != 0) {
            return Err(wrong("reserved byte", "0".to_owned(), other.to_string()));
        }
        let number = |at: usize| rest[at..at + 8].iter().rev().fold(0, |n, &byte| (n << 8) | u64::from(byte));
        let (dim, count) = (number(8), number(16));
        let dim = usize::try_from(dim).ok().filter(|dim| (1..=MAX_FILE_DIM).contains(dim));
        let dim =
            dim.ok_or_else(|| wrong("dimensions", format!("1 to {MAX_FILE_DIM}"), number(8).to_string()))?;

        let mut sum = Checksum::new();
        sum.add(&header);
        let mut memory = Self::new(dim)?;
        let mut packed = vec![0; row_bytes::<A>(dim)];
        let mut trits = Vec::with_capacity(dim + 8);
        for _ in 0..count {
            fill(&mut from, &mut packed, "vectors")?;
            sum.add(&packed);
            trits.clear();
            for &byte in &packed {
                if A::ZEROS {
                    if byte >= 243 {
                        return Err(wrong("byte of five trits", "0 to 242".to_owned(), byte.to_string()));
                    }
                    trits.extend((0..5).map(|i| (byte / [1, 3, 9, 27, 81][i] % 3) as i8 - 1));
                } else {
                    trits.extend((0..8).map(|i| if (byte >> i) & 1 == 1 { 1 } else { -1 }));
                }
            }
            let blank = if A::ZEROS { 0 } else { -1 };
            if let Some(&over) = trits[dim..].iter().find(|&&t| t != blank) {
                return Err(wrong("trit past the last dimension", blank.to_string(), over.to_string()));
            }
            memory.push(&PackedTritVec::from_trits(&trits[..dim])?)?;
        }
        let mut expected = [0; 8];
        fill(&mut from, &mut expected, "checksum")?;
        if expected != sum.0.to_le_bytes() {
            let got = u64::from_le_bytes(expected);
            return Err(wrong("checksum", format!("{:016x}", sum.0), format!("{got:016x}")));
        }
        match from.read(&mut [0])? {
            0 => Ok(memory),
            _ => Err(wrong("end", "no more bytes".to_owned(), "another byte".to_owned())),
        }
    }
}

fn wrong(what: &'static str, expected: String, got: String) -> VsaError {
    VsaError::File { what, expected, got }
}

/// Fills a buffer, or returns an error that names the part in which the file ends.
fn fill(from: &mut impl Read, buffer: &mut [u8], part: &'static str) -> Result<(), VsaError> {
    from.read_exact(buffer).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            wrong(part, format!("{} more bytes", buffer.len()), "the end of the file".to_owned())
        }
        _ => error.into(),
    })
}
