//! One plane of a tensor: packed, or with edited rows.

mod bitmap;
mod compressed;
mod rows;

use std::{borrow::Cow, mem::take};

use self::{bitmap::EditedBitmap, compressed::EditedCompressed};
use crate::{Encoding, Trit, TritData, TritError};

/// One plane of a tensor.
///
/// The planes, 2-bit and base-3 encodings are edited in place. A packed row of a compressed encoding has no room for another
/// nonzero: its first edit moves it to a representation with spare capacity, where later edits touch a few words. The packed
/// copy of the row is unused until [`compact`](Self::compact) repacks all rows.
#[derive(Clone, Debug)]
pub(crate) enum Plane {
    /// Packed as [`TritData`].
    Packed(TritData),
    /// A bitmap with edited rows.
    Bitmap(EditedBitmap),
    /// A row-compressed plane with edited rows.
    RowCompressed(EditedCompressed),
}

impl From<TritData> for Plane {
    fn from(data: TritData) -> Self {
        Self::Packed(data)
    }
}

/// Planes are equal if they have the same encoding and trits, whether edited or not.
impl PartialEq for Plane {
    fn eq(&self, other: &Self) -> bool {
        self.data() == other.data()
    }
}

impl Plane {
    pub(crate) fn encoding(&self) -> Encoding {
        match self {
            Self::Packed(data) => data.encoding(),
            Self::Bitmap(_) => Encoding::Bitmap,
            Self::RowCompressed(_) => Encoding::RowCompressed,
        }
    }

    /// The raw buffers, equal to a fresh encoding of the trits.
    pub(crate) fn data(&self) -> Cow<'_, TritData> {
        match self {
            Self::Packed(data) => Cow::Borrowed(data),
            Self::Bitmap(plane) => Cow::Owned(plane.data()),
            Self::RowCompressed(plane) => Cow::Owned(plane.data()),
        }
    }

    /// Repacks all rows and releases the spare capacity of edited rows.
    pub(crate) fn compact(&mut self) {
        if let Cow::Owned(data) = self.data() {
            *self = data.into();
        }
    }

    /// Size of [`data`](Self::data) in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Packed(data) => data.bytes(),
            Self::Bitmap(plane) => plane.bytes(),
            Self::RowCompressed(plane) => plane.bytes(),
        }
    }

    /// Size of all buffers in bytes, including edited rows.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Self::Packed(data) => data.bytes(),
            Self::Bitmap(plane) => plane.memory_bytes(),
            Self::RowCompressed(plane) => plane.memory_bytes(),
        }
    }

    /// Decodes the trits of row `row` from column `start` into `out`; the range must lie within the row.
    pub(crate) fn read(&self, row: usize, cols: usize, start: usize, out: &mut [i8]) {
        match self {
            Self::Packed(data) => data.read(row, cols, start, out),
            Self::Bitmap(plane) => plane.read(row, cols, start, out),
            Self::RowCompressed(plane) => plane.read(row, start, out),
        }
    }

    /// The trit at `(row, col)`, which must lie within the plane.
    pub(crate) fn get(&self, row: usize, cols: usize, col: usize) -> Trit {
        match self {
            Self::Packed(data) => data.get(row, cols, col),
            Self::Bitmap(plane) => plane.get(row, cols, col),
            Self::RowCompressed(plane) => plane.get(row, col),
        }
    }

    /// Replaces the trit at `(row, col)`; `nonzeros` is the number of nonzeros of the row before the edit. Returns the old trit
    /// and whether its block of 32 trits is all zero now.
    ///
    /// # Errors
    ///
    /// [`TritError::TooLarge`] when the offsets of a compressed encoding would overflow; the trits are then unchanged.
    #[inline]
    pub(crate) fn set(
        &mut self,
        (row, col): (usize, usize),
        cols: usize,
        nonzeros: usize,
        trit: Trit,
    ) -> Result<(Trit, bool), TritError> {
        match self {
            Self::Packed(data) => match data.swap(row, cols, col, trit) {
                Some(swapped) => Ok(swapped),
                None => self.set_first((row, col), cols, nonzeros, trit),
            },
            Self::Bitmap(plane) => plane.set((row, col), cols, nonzeros, trit),
            Self::RowCompressed(plane) => plane.set((row, col), cols, trit),
        }
    }

    /// [`set`](Self::set) for the first edit of a compressed plane.
    #[cold]
    fn set_first(
        &mut self,
        place: (usize, usize),
        cols: usize,
        nonzeros: usize,
        trit: Trit,
    ) -> Result<(Trit, bool), TritError> {
        *self = match self {
            Self::Packed(TritData::Bitmap { nonzero, offsets, negative }) => {
                Self::Bitmap(EditedBitmap::new(take(nonzero), take(offsets), take(negative)))
            }
            Self::Packed(TritData::RowCompressed { offsets, entries }) => {
                Self::RowCompressed(EditedCompressed::new(take(offsets), take(entries)))
            }
            // Unreachable: the other encodings are edited in place.
            Self::Packed(TritData::Planes { .. } | TritData::TwoBit(_) | TritData::Base3(_))
            | Self::Bitmap(_)
            | Self::RowCompressed(_) => return Ok((trit, trit == Trit::Z)),
        };
        self.set(place, cols, nonzeros, trit)
    }
}
