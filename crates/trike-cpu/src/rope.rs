//! Rotary position embedding.

use crate::error::{CpuError, Result, check_len, check_range};
use crate::pool::Cpu;

/// Which two elements of a head turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopePairing {
    /// `2i` and `2i + 1`: llama2.c checkpoints and `llama` GGUF files.
    Adjacent,
    /// `i` and `i + rotated / 2`: Hugging Face checkpoints.
    Halves,
}

/// Frequencies of a rotary embedding, and the turns of the first positions.
///
/// Frequency `i` is `theta^(-2i / rotated)`, computed in f64 and kept as f32. The angle is the f32 product of position
/// and frequency, as in the models' own code; its sine and cosine are computed in f64 and rounded once.
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
    /// `[position][frequency]`, cosine and sine.
    turns: Vec<(f32, f32)>,
}

impl RopeTable {
    /// Frequencies of the first `rotated` elements of a head, an even number.
    ///
    /// # Errors
    ///
    /// [`CpuError::NotMultiple`] for an odd `rotated`, [`CpuError::Range`] for zero, [`CpuError::NonFiniteParameter`]
    /// when `theta` is not a positive finite number.
    pub fn new(rotated: usize, theta: f32) -> Result<Self> {
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

    /// Frequencies made elsewhere (scaled for long contexts), one for each pair.
    ///
    /// # Errors
    ///
    /// [`CpuError::Range`] when there are none, [`CpuError::NonFiniteParameter`] when one is not finite.
    pub fn from_frequencies(frequencies: Vec<f32>) -> Result<Self> {
        check_range("frequencies of rope", 1, 1 << 19, frequencies.len())?;
        match frequencies.iter().enumerate().find(|(_, f)| !f.is_finite()) {
            Some((index, &value)) => {
                Err(CpuError::NonFiniteParameter { what: "frequency of rope", index, value })
            }
            None => Ok(Self { frequencies, turns: Vec::new() }),
        }
    }

    /// Keeps the sines and cosines of positions `0..positions`; others are computed when they are met, to the same bits.
    #[must_use]
    pub fn precompute(mut self, positions: u32) -> Self {
        self.turns = (0..positions).flat_map(|p| self.frequencies.iter().map(move |&f| turn(p, f))).collect();
        self
    }

    /// Elements of a head that turn.
    #[must_use]
    pub fn rotated(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// The frequencies, in radians a position.
    #[must_use]
    pub fn frequencies(&self) -> &[f32] {
        &self.frequencies
    }

    fn turns(&self, position: u32, out: &mut Vec<(f32, f32)>) {
        let n = self.frequencies.len();
        out.clear();
        match self.turns.get(position as usize * n..).filter(|turns| turns.len() >= n) {
            Some(turns) => out.extend_from_slice(&turns[..n]),
            None => out.extend(self.frequencies.iter().map(|&f| turn(position, f))),
        }
    }
}

/// Cosine and sine of one angle.
fn turn(position: u32, frequency: f32) -> (f32, f32) {
    let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
    (cos as f32, sin as f32)
}

impl Cpu {
    /// Turns `x` (`tokens x heads x head_dim`) in place, each token by its position.
    ///
    /// Elements of a head beyond [`RopeTable::rotated`] stay as they are.
    ///
    /// # Errors
    ///
    /// [`CpuError::Range`] when the table turns more elements than a head has, [`CpuError::Length`] when `x` is not
    /// `positions.len() * heads * head_dim` long.
    pub fn rope(
        &self,
        x: &mut [f32],
        heads: usize,
        head_dim: usize,
        positions: &[u32],
        table: &RopeTable,
        pairing: RopePairing,
    ) -> Result<()> {
        check_range("head_dim of rope", table.rotated(), usize::MAX, head_dim)?;
        let row = heads.checked_mul(head_dim);
        let len = row.and_then(|row| row.checked_mul(positions.len()));
        let overflow = CpuError::Shape { what: "heads of rope", rows: heads, cols: head_dim };
        check_len("input of rope", len.ok_or(overflow)?, x.len())?;
        let row = heads * head_dim;
        if x.is_empty() {
            return Ok(());
        }
        let half = table.frequencies.len();
        self.pool().for_units(x, row, 4 * positions.len() * row, |first, x| {
            let mut turns = Vec::with_capacity(half);
            for (&position, x) in positions[first..].iter().zip(x.chunks_exact_mut(row)) {
                table.turns(position, &mut turns);
                for head in x.chunks_exact_mut(head_dim) {
                    match pairing {
                        RopePairing::Adjacent => {
                            for (pair, &(cos, sin)) in head.as_chunks_mut::<2>().0.iter_mut().zip(&turns) {
                                let [a, b] = *pair;
                                *pair = [a * cos - b * sin, a * sin + b * cos];
                            }
                        }
                        RopePairing::Halves => {
                            let (low, high) = head.split_at_mut(half);
                            for ((low, high), &(cos, sin)) in low.iter_mut().zip(high).zip(&turns) {
                                let (a, b) = (*low, *high);
                                (*low, *high) = (a * cos - b * sin, a * sin + b * cos);
                            }
                        }
                    }
                }
            }
        });
        Ok(())
    }
}
