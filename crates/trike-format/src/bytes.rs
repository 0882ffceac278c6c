//! Conversion of little-endian numbers from and to bytes, and a bounds-checked cursor.

use std::path::Path;

use half::{bf16, f16};

use crate::FormatError;

macro_rules! little_endian {
    ($($decode:ident, $encode:ident: $t:ty, $n:literal;)*) => {$(
        /// Decodes whole elements. A partial element at the end is ignored; callers check the length first.
        pub(crate) fn $decode(bytes: &[u8]) -> Vec<$t> {
            bytes.as_chunks::<$n>().0.iter().map(|&b| <$t>::from_le_bytes(b)).collect()
        }

        pub(crate) fn $encode(values: &[$t], out: &mut Vec<u8>) {
            if cfg!(target_endian = "little") {
                out.extend_from_slice(bytemuck::cast_slice(values));
            } else {
                values.iter().for_each(|v| out.extend(v.to_le_bytes()));
            }
        }
    )*};
}

little_endian! {
    f16s, put_f16s: f16, 2;
    bf16s, put_bf16s: bf16, 2;
    f32s, put_f32s: f32, 4;
    u32s, put_u32s: u32, 4;
    u64s, put_u64s: u64, 8;
}

/// The two bits at `shift` of each of 32 bytes, in order.
pub(crate) fn codes_at(run: &[u8; 32], shift: u32) -> u64 {
    let gathered = run.as_chunks::<8>().0.iter().map(|&eight| gather(u64::from_le_bytes(eight) >> shift));
    gathered.enumerate().fold(0, |word, (i, codes)| word | codes << (16 * i))
}

/// The low two bits of each of eight bytes, as 16 bits.
fn gather(bytes: u64) -> u64 {
    let x = bytes & 0x0303_0303_0303_0303;
    let x = (x | x >> 6) & 0x000F_000F_000F_000F;
    let x = (x | x >> 12) & 0x0000_00FF_0000_00FF;
    (x | x >> 24) & 0xFFFF
}

/// Sequential reader of a header; every read is checked against the end of the file.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Self { path, bytes, at: 0 }
    }

    /// Bytes consumed.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// The next `n` bytes. `what` names the field in the error if the file is too short.
    pub(crate) fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8], FormatError> {
        let rest = &self.bytes[self.at..];
        let Some(taken) = rest.get(..n) else {
            return Err(FormatError::Truncated {
                path: self.path.to_owned(),
                what: format!("{what} (byte {})", self.at),
                needed: n as u64,
                available: rest.len() as u64,
            });
        };
        self.at += n;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], FormatError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, FormatError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn i32(&mut self, what: &str) -> Result<i32, FormatError> {
        self.array(what).map(i32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, FormatError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A length of at most `limit`, stored as `u64`.
    pub(crate) fn length(&mut self, what: &str, limit: usize) -> Result<usize, FormatError> {
        let got = self.u64(what)?;
        match usize::try_from(got) {
            Ok(n) if n <= limit => Ok(n),
            _ => Err(FormatError::OverLimit {
                path: self.path.to_owned(),
                what: what.to_owned(),
                limit: limit as u64,
                got,
            }),
        }
    }
}
