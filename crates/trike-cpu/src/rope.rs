//! Rotary position embedding.

use trike_core::RopePairing;

use crate::error::{CpuError, check_len, check_range};
use crate::kernels::Kernels;
use crate::kernels::with_float_kernels;
use trike_host::Cpu;
use trike_host::Loop;

/// Frequencies of a rotary embedding, and the cosines and sines of the first positions.
///
/// Frequency `i` is `theta^(-2i / rotated)`, computed in f64 and stored as f32. The angle is the f32 product of
/// position and frequency, as in the reference implementations of the models; its sine and cosine are computed in f64
/// and rounded once.
///
/// ```
/// use trike_cpu::RopeTable;
///
/// let table = RopeTable::new(4, 10_000.0)?.precompute(16);
/// assert_eq!(table.rotated(), 4);
/// assert_eq!(table.frequencies(), [1.0, 0.01]);
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RopeTable {
    frequencies: Vec<f32>,
    /// `[position][2][frequency]`: cosines, then sines.
    turns: Vec<f32>,
}

impl RopeTable {
    /// Frequencies of the first `rotated` elements of a head, an even number.
    ///
    /// # Errors
    ///
    /// [`CpuError::NotMultiple`] for an odd `rotated`, [`CpuError::Range`] for zero, [`CpuError::NonFiniteParameter`]
    /// when `theta` is not a positive finite number.
    pub fn new(rotated: usize, theta: f32) -> Result<Self, CpuError> {
        check_range("rotated elements of a head", 2, 1 << 20, rotated)?;
        if !rotated.is_multiple_of(2) {
            return Err(CpuError::NotMultiple { what: "rotated elements of a head", unit: 2, got: rotated });
        }
        if !(theta.is_finite() && theta > 0.0) {
            return Err(CpuError::NonFiniteParameter { what: "theta of rope", index: 0, value: theta });
        }
        let frequency = |i: usize| f64::from(theta).powf(-2.0 * i as f64 / rotated as f64) as f32;
        Self::from_frequencies((0..rotated / 2).map(frequency).collect())
    }

    /// Precomputed frequencies (e.g. scaled for long contexts), one per pair.
    ///
    /// # Errors
    ///
    /// [`CpuError::Range`] when there are none, [`CpuError::NonFiniteParameter`] when one is not finite.
    pub fn from_frequencies(frequencies: Vec<f32>) -> Result<Self, CpuError> {
        check_range("frequencies of rope", 1, 1 << 19, frequencies.len())?;
        match frequencies.iter().enumerate().find(|(_, f)| !f.is_finite()) {
            Some((index, &value)) => {
                Err(CpuError::NonFiniteParameter { what: "frequency of rope", index, value })
            }
            None => Ok(Self { frequencies, turns: Vec::new() }),
        }
    }

    /// Stores the sines and cosines of positions `0..positions`; further positions are computed on demand, bit-identically.
    #[must_use]
    pub fn precompute(mut self, positions: u32) -> Self {
        let n = self.frequencies.len();
        self.turns = vec![0.0; 2 * n * positions as usize];
        for (position, turns) in (0..positions).zip(self.turns.chunks_exact_mut(2 * n)) {
            write_turns(&self.frequencies, position, turns);
        }
        self
    }

    /// Number of rotated elements per head.
    pub fn rotated(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// The frequencies, in radians per position.
    pub fn frequencies(&self) -> &[f32] {
        &self.frequencies
    }

    /// The cosines and sines of a position; `scratch` is used if they are not stored.
    fn turns<'a>(&'a self, position: u32, scratch: &'a mut [f32]) -> (&'a [f32], &'a [f32]) {
        let n = self.frequencies.len();
        // Without overflow; positions beyond the table yield `None`.
        let kept = (position as usize).checked_mul(2 * n).and_then(|at| self.turns.get(at..)?.get(..2 * n));
        let turns = match kept {
            Some(kept) => kept,
            None => {
                write_turns(&self.frequencies, position, scratch);
                scratch
            }
        };
        turns.split_at(n)
    }
}

/// Computes cosines and sines of all angles of a position. The angle is the f32 product.
fn write_turns(frequencies: &[f32], position: u32, turns: &mut [f32]) {
    let (cosines, sines) = turns.split_at_mut(frequencies.len());
    for ((&frequency, cos), sin) in frequencies.iter().zip(cosines).zip(sines) {
        let (s, c) = f64::from(position as f32 * frequency).sin_cos();
        (*cos, *sin) = (c as f32, s as f32);
    }
}

/// Rotates the heads of one token.
struct Turn<'a> {
    x: &'a mut [f32],
    head_dim: usize,
    cosines: &'a [f32],
    sines: &'a [f32],
    /// 1, or -1 to rotate back.
    sign: f32,
    pairing: RopePairing,
}

impl Loop for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for head in self.x.chunks_exact_mut(self.head_dim) {
            match self.pairing {
                RopePairing::Adjacent => {
                    let pairs = head.as_chunks_mut::<2>().0.iter_mut();
                    for ((pair, &cos), &sin) in pairs.zip(self.cosines).zip(self.sines) {
                        let ([a, b], sin) = (*pair, self.sign * sin);
                        *pair = [a * cos - b * sin, a * sin + b * cos];
                    }
                }
                RopePairing::Halves => {
                    let (low, high) = head.split_at_mut(self.cosines.len());
                    for (((low, high), &cos), &sin) in
                        low.iter_mut().zip(high).zip(self.cosines).zip(self.sines)
                    {
                        let (a, b, sin) = (*low, *high, self.sign * sin);
                        (*low, *high) = (a * cos - b * sin, a * sin + b * cos);
                    }
                }
            }
        }
    }
}

/// [`CpuOps::rope`](crate::CpuOps::rope); a `sign` of -1 rotates back.
#[expect(clippy::too_many_arguments, reason = "those of the operation, and the sign")]
pub(crate) fn rope(
    cpu: &Cpu,
    x: &mut [f32],
    heads: usize,
    head_dim: usize,
    positions: &[u32],
    table: &RopeTable,
    pairing: RopePairing,
    sign: f32,
) -> Result<(), CpuError> {
    check_range("head_dim of rope", table.rotated(), usize::MAX, head_dim)?;
    let row = heads.checked_mul(head_dim);
    let len = row.and_then(|row| row.checked_mul(positions.len()));
    let overflow = CpuError::Shape { what: "heads of rope", rows: heads, cols: head_dim };
    check_len("input of rope", len.ok_or(overflow)?, x.len())?;
    let row = heads * head_dim;
    if x.is_empty() {
        return Ok(());
    }
    cpu.pool().for_each_chunk(x, row, 4 * positions.len() * row, |first, x| {
        let mut scratch = vec![0.0; table.rotated()];
        for (&position, x) in positions[first..].iter().zip(x.chunks_exact_mut(row)) {
            let (cosines, sines) = table.turns(position, &mut scratch);
            with_float_kernels!(cpu.isa(), kernels => kernels.run(Turn { x, head_dim, cosines, sines, sign, pairing }));
        }
    });
    Ok(())
}
