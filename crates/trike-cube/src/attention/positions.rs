//! Positions of tokens.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::{Buffer, CubeDevice};
use crate::error::{CubeError, Result, check_range};

/// The position of each row of a batch, on the host and on the device.
///
/// ```no_run
/// # let device = trike_cube::CubeDevice::open(trike_cube::DeviceSpec::Auto)?;
/// let positions = trike_cube::attention::Positions::upload(&device, &[7, 8, 9])?;
/// assert_eq!(positions.values(), [7, 8, 9]);
/// # Ok::<(), trike_cube::CubeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Positions {
    values: Vec<u32>,
    /// Value of the shared write counter when these values were written.
    writes: u32,
    buffer: Buffer<u32>,
    shared: Arc<OfClones>,
}

/// State shared by all clones, like the buffer.
#[derive(Debug)]
struct OfClones {
    below: AtomicU32,
    writes: AtomicU32,
}

/// Exclusive bound of positions, so that a position plus a length fits 32 bits.
pub const MAX_POSITION: usize = 1 << 30;

impl Positions {
    /// Uploads positions.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] for an empty slice or a position of `2^30` or more.
    pub fn upload(device: &CubeDevice, values: &[u32]) -> Result<Self> {
        check_values(values, MAX_POSITION)?;
        let shared = OfClones { below: AtomicU32::new(MAX_POSITION as u32), writes: AtomicU32::new(0) };
        let buffer = device.upload(values)?;
        Ok(Self { values: values.to_vec(), writes: 0, buffer, shared: Arc::new(shared) })
    }

    /// Overwrites the positions with the same number of new ones. Clones share the buffer, so launches with clones fail from then
    /// on.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] for a position that is not [below](Self::bound) the bound, and [`CubeError::Length`].
    pub fn write(&mut self, device: &CubeDevice, values: &[u32]) -> Result<()> {
        let (shared, writes) = (&self.shared, &mut self.writes);
        device.write_checked(&self.buffer, values, || {
            check_values(values, shared.below.load(Ordering::Relaxed) as usize)?;
            *writes = shared.writes.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            Ok(())
        })?;
        self.values.copy_from_slice(values);
        Ok(())
    }

    /// Returns an error when the buffer has been overwritten through a clone.
    ///
    /// # Errors
    ///
    /// [`CubeError::Overwritten`].
    #[doc(hidden)]
    pub fn check_current(&self) -> Result<()> {
        match self.writes == self.shared.writes.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(CubeError::Overwritten { what: "positions" }),
        }
    }

    /// The positions.
    #[must_use]
    pub fn values(&self) -> &[u32] {
        &self.values
    }

    /// Exclusive bound of positions that may be written: `2^30`, or the length of the shortest RoPE table that a
    /// [recorded](CubeDevice::capture) launch uses with these positions. A replay does not check positions itself.
    #[must_use]
    pub fn bound(&self) -> u32 {
        self.shared.below.load(Ordering::Relaxed)
    }

    /// Lowers the bound for later writes.
    pub(crate) fn keep_below(&self, bound: usize) {
        self.shared.below.fetch_min(u32::try_from(bound).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    pub(crate) fn buffer(&self) -> &Buffer<u32> {
        &self.buffer
    }

    /// The position of the first of `rows`, whose positions must be consecutive.
    pub(super) fn first_of(&self, rows: &Range<usize>) -> Result<usize> {
        self.check_current()?;
        check_range("end of the rows of a segment", 1, self.values.len(), rows.end)?;
        check_range("start of the rows of a segment", 0, rows.end - 1, rows.start)?;
        let values = &self.values[rows.clone()];
        match values.windows(2).position(|two| two[1] != two[0] + 1) {
            Some(at) => Err(CubeError::Mismatch {
                what: format!("position of row {}", rows.start + at + 1),
                expected: format!("{}, which follows the position before it", values[at] as usize + 1),
                got: values[at + 1].to_string(),
                remedy: "split the segment there",
            }),
            None => Ok(values[0] as usize),
        }
    }
}

/// `below` is at least 1.
fn check_values(values: &[u32], below: usize) -> Result<()> {
    check_range("positions", 1, u32::MAX as usize, values.len())?;
    let last = values.iter().copied().max().unwrap_or(0);
    check_range("position", 0, below - 1, last as usize)
}
