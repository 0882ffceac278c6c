//! Cyclic rotations of vectors of trits.

use crate::counter::BitCounter;
use crate::error::{PopcountError, check_len};
use crate::lanes::{Lanes, with_lanes};
use crate::planes::{TritPlanes, TritPlanesMut, as_words_mut, live};
use trike_host::{Cpu, Isa, Loop};

/// Rotates `len` bits upwards by `by`, which is less than `len`.
struct Rotate<'a> {
    from: &'a [u64],
    to: &'a mut [u64],
    len: usize,
    by: usize,
}

impl Loop for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { from, to, len, by } = self;
        let (first, shift) = (by / 64, by % 64);
        // Bits shifted out at the top enter at the bottom; the bits past the end are zeros.
        let wrapped = to.len().min(by.div_ceil(64));
        read_bits(from, len - by, &mut to[..wrapped]);
        let (into, to) = to[first..].split_at_mut(1);
        let low = from[0] << shift;
        into[0] = if shift == 0 { low } else { into[0] | low };
        read_bits(from, 64 - shift, to);
        if let Some(last) = to.last_mut().or(into.last_mut()) {
            *last &= live(len);
        }
    }
}

/// Reads words starting at any bit offset; zeros past the end.
#[inline(always)]
fn read_bits(from: &[u64], bit: usize, to: &mut [u64]) {
    let from = &from[(bit / 64).min(from.len())..];
    let shift = bit % 64;
    let whole = from.len().saturating_sub(1).min(to.len());
    let (to, end) = to.split_at_mut(whole);
    if shift == 0 {
        to.copy_from_slice(&from[..whole]);
    } else {
        for ((to, low), high) in to.iter_mut().zip(from).zip(from.iter().skip(1)) {
            *to = (low >> shift) | (high << (64 - shift));
        }
    }
    for (i, to) in end.iter_mut().enumerate() {
        *to = from.get(whole + i).map_or(0, |low| low >> shift);
    }
}

/// The equivalent upward rotation, in `0..len`.
fn upwards(len: usize, by: isize) -> usize {
    // A length is at most `MAX_TRITS`, so it fits an isize.
    by.checked_rem_euclid(len as isize).unwrap_or(0) as usize
}

/// `out[(j + by) % len] = a[j]`.
pub(crate) fn rotate(
    isa: Isa,
    a: TritPlanes<'_>,
    by: isize,
    out: TritPlanesMut<'_>,
) -> Result<(), PopcountError> {
    check_len("the rotated vector of trits", a.len(), out.len)?;
    let (len, by) = (a.len(), upwards(a.len(), by));
    for (from, to) in [(a.pos(), out.pos), (a.neg(), out.neg)] {
        if len > 0 {
            with_lanes!(isa, lanes => lanes.run(Rotate { from, to, len, by }));
        }
    }
    Ok(())
}

impl BitCounter {
    /// Rotates every counted vector, as [`TritOps::trit_rotate`](crate::TritOps::trit_rotate) does.
    ///
    /// # Errors
    ///
    /// [`HostError::Memory`](trike_host::HostError::Memory).
    pub fn rotate(&mut self, cpu: &Cpu, by: isize) -> Result<(), PopcountError> {
        let (len, by, half) = (self.len(), upwards(self.len(), by), self.plane_words());
        let words = len.div_ceil(64);
        if by == 0 {
            return Ok(());
        }
        let mut plane = crate::planes::zeroed_lines(half / crate::lanes::LINE_WORDS)?;
        let plane = as_words_mut(&mut plane);
        for to in self.levels_mut().chunks_exact_mut(half) {
            plane.copy_from_slice(to);
            let (from, to) = (&plane[..words], &mut to[..words]);
            with_lanes!(cpu.isa(), lanes => lanes.run(Rotate { from, to, len, by }));
        }
        Ok(())
    }
}
