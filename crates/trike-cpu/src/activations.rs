//! Activations in the form that the ternary kernels read, made once for every matrix that shares them.

use trike_trit::GroupSize;

use crate::error::{CpuError, Result};
use crate::kernels::{ByteToken, Kernels, Loop};
use crate::line::{BLOCK, ByteLine, FloatLine, Line, SumLine};
use crate::pool::Pool;

/// In which numbers ternary weights meet their activations; int8 and dense weights always compute in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivationPrecision {
    /// Nothing is rounded but the sums.
    F32,
    /// One factor a token: `s = 127 / max(max|x|, 1e-5)`, `code = round(x * s)` with halves to even, clamped to
    /// `-128..=127`. BitNet models were trained with this.
    Int8PerToken,
    /// The same for each group of columns.
    Int8PerGroup(GroupSize),
}

/// Columns that share an entry of the factors and of the sums.
const SEGMENT: usize = 32;
/// Segments of a block.
const SEGMENTS: usize = BLOCK / SEGMENT;
/// The smallest magnitude that a scale is made from, so that a token of zeros stays one.
const SMALLEST: f32 = 1e-5;

/// Activations of some tokens, padded with zeros to whole blocks; by default of none, for weights that read `x` itself.
#[derive(Default)]
pub(crate) struct Activations {
    blocks: usize,
    data: Data,
    /// Sums over segments, `[token][segment]`, in units of the token's factor; empty unless weights have means.
    segments: Vec<f32>,
}

enum Data {
    Floats(Vec<FloatLine>),
    Bytes {
        codes: Vec<ByteLine>,
        negated: Vec<SumLine>,
        tokens: Vec<TokenFacts>,
        factors: Vec<f32>,
        grouped: bool,
    },
}

impl Default for Data {
    fn default() -> Self {
        Self::Floats(Vec::new())
    }
}

/// Some tokens in the form that a kernel takes.
#[derive(Clone, Copy)]
pub(crate) enum Tokens<'a, const T: usize> {
    Floats([&'a [FloatLine]; T]),
    /// `grouped` says whether the factors belong to groups and not to the token.
    Bytes {
        tokens: [ByteToken<'a>; T],
        grouped: bool,
    },
}

/// What belongs to a whole token.
#[derive(Clone, Copy, Default)]
struct TokenFacts {
    sum: i32,
    factor: f32,
}

impl Activations {
    /// Brings `x` (rows of `cols`) into kernel form.
    pub(crate) fn prepare<K: Kernels>(
        kernels: K,
        pool: &Pool,
        x: &[f32],
        cols: usize,
        precision: ActivationPrecision,
        with_sums: bool,
    ) -> Result<Self> {
        let group = match precision {
            ActivationPrecision::F32 => return Ok(Self::floats(pool, x, cols, with_sums)),
            ActivationPrecision::Int8PerToken => None,
            ActivationPrecision::Int8PerGroup(size) => Some(size.get()),
        };
        let (count, blocks) = (x.len() / cols, cols.div_ceil(BLOCK));
        let mut codes = vec![Line([0; 64]); count * blocks * 4];
        let mut negated = vec![Line([0; 16]); count * blocks * 4];
        let mut factors = vec![0.0; count * blocks * SEGMENTS];
        let mut tokens = vec![TokenFacts::default(); count];
        let mut rows: Vec<_> = codes
            .chunks_mut(blocks * 4)
            .zip(negated.chunks_mut(blocks * 4))
            .zip(factors.chunks_mut(blocks * SEGMENTS))
            .zip(&mut tokens)
            .zip(x.chunks(cols))
            .map(|((((codes, negated), factors), facts), x)| Quantize {
                codes,
                negated,
                factors,
                facts,
                x,
                group,
            })
            .collect();
        pool.for_units(&mut rows, 1, 8 * x.len(), |_, rows| {
            for row in rows {
                kernels.run(row);
            }
        });
        // A quantizer that met a value that is not finite left a factor that is not either.
        if let Some(token) = tokens.iter().position(|facts| !facts.factor.is_finite()) {
            let row = &x[token * cols..][..cols];
            if let Some((index, &value)) = row.iter().enumerate().find(|(_, v)| !v.is_finite()) {
                return Err(CpuError::NonFinite { token, index, value });
            }
        }
        let mut segments = Vec::new();
        if with_sums {
            let sums = negated.as_chunks::<4>().0.iter().flatten().flat_map(|line| line.0.as_chunks::<8>().0);
            segments = sums.map(|sums| -sums.iter().sum::<i32>() as f32).collect();
            if group.is_some() {
                for (sum, factor) in segments.iter_mut().zip(&factors) {
                    *sum *= factor;
                }
            }
        }
        let data = Data::Bytes { codes, negated, tokens, factors, grouped: group.is_some() };
        Ok(Self { blocks, data, segments })
    }

    fn floats(pool: &Pool, x: &[f32], cols: usize, with_sums: bool) -> Self {
        let blocks = cols.div_ceil(BLOCK);
        let mut lines = vec![Line([0.0; 16]); x.len() / cols * blocks * 16];
        pool.for_units(&mut lines, blocks * 16, x.len(), |start, part| {
            for (lines, x) in part.chunks_mut(blocks * 16).zip(x[start * cols..].chunks(cols)) {
                for (line, x) in lines.iter_mut().zip(x.chunks(16)) {
                    line.0[..x.len()].copy_from_slice(x);
                }
            }
        });
        let sum =
            |lines: &[FloatLine]| lines.iter().flat_map(|line| line.0).map(f64::from).sum::<f64>() as f32;
        let segments = if with_sums { lines.chunks(SEGMENT / 16).map(sum).collect() } else { Vec::new() };
        Self { blocks, data: Data::Floats(lines), segments }
    }

    /// `T` tokens from `first`.
    pub(crate) fn tokens<const T: usize>(&self, first: usize) -> Tokens<'_, T> {
        match &self.data {
            Data::Floats(lines) => {
                let len = self.blocks * 16;
                Tokens::Floats(std::array::from_fn(|t| &lines[(first + t) * len..][..len]))
            }
            Data::Bytes { codes, negated, tokens, factors, grouped } => {
                let len = self.blocks * 4;
                let token = |t: usize| ByteToken {
                    codes: &codes[(first + t) * len..][..len],
                    negated: &negated[(first + t) * len..][..len],
                    sum: tokens[first + t].sum,
                    factors: &factors[(first + t) * self.blocks * SEGMENTS..][..self.blocks * SEGMENTS],
                };
                Tokens::Bytes { tokens: std::array::from_fn(token), grouped: *grouped }
            }
        }
    }

    /// What the outputs of a token are multiplied with at the end.
    pub(crate) fn factor(&self, token: usize) -> f32 {
        match &self.data {
            Data::Bytes { tokens, grouped: false, .. } => tokens[token].factor,
            _ => 1.0,
        }
    }

    /// The sums of a token over groups of `len` columns (a multiple of 32, or everything).
    pub(crate) fn group_sums(&self, token: usize, len: usize, out: &mut [f64]) {
        let segments = &self.segments[token * self.blocks * SEGMENTS..][..self.blocks * SEGMENTS];
        let per_group = if out.len() == 1 { segments.len() } else { len / SEGMENT };
        for (out, segments) in out.iter_mut().zip(segments.chunks(per_group)) {
            *out = segments.iter().copied().map(f64::from).sum();
        }
    }
}

/// Quantizes one token.
struct Quantize<'a> {
    codes: &'a mut [ByteLine],
    negated: &'a mut [SumLine],
    factors: &'a mut [f32],
    facts: &'a mut TokenFacts,
    x: &'a [f32],
    group: Option<usize>,
}

impl Loop for &mut Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let len = self.group.unwrap_or(self.codes.len() * 64);
        // Codes are written line by line; a group of 32 is half a line.
        let width = len.min(64);
        let mut finite = true;
        for (g, x) in self.x.chunks(len).enumerate() {
            // As integers, magnitudes sort like the floats they are, and anything not finite sorts above them.
            let largest = x.iter().fold(0, |m, v| (v.to_bits() & 0x7FFF_FFFF).max(m));
            finite &= largest < 0x7F80_0000;
            let scale = 127.0 / f32::from_bits(largest).max(SMALLEST);
            let factor = 1.0 / scale;
            self.facts.factor = factor;
            for segment in &mut self.factors[g * len / SEGMENT..][..x.len().div_ceil(SEGMENT)] {
                *segment = if self.group.is_some() { factor } else { 1.0 };
            }
            for (i, x) in x.chunks(width).enumerate() {
                let start = g * len + i * width;
                let codes = &mut self.codes[start / 64].0[start % 64..][..x.len()];
                for (code, &x) in codes.iter_mut().zip(x) {
                    *code = round(x * scale);
                }
            }
        }
        let mut sum = 0;
        for (codes, negated) in self.codes.iter().zip(self.negated.iter_mut()) {
            for (four, negated) in codes.0.as_chunks::<4>().0.iter().zip(&mut negated.0) {
                *negated = -four.iter().map(|&code| i32::from(code)).sum::<i32>();
                sum -= *negated;
            }
        }
        self.facts.sum = sum;
        if !finite {
            self.facts.factor = f32::NAN;
        }
    }
}

/// Rounds to the nearest integer, halves to even, and clamps to an i8.
#[inline(always)]
fn round(x: f32) -> i8 {
    // Around 1.5 * 2^23 floats are one apart, so the addition rounds, and the low bits are the integer.
    const MAGIC: f32 = 12_582_912.0;
    let integer = (x.clamp(-128.0, 127.0) + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits());
    integer as i8
}

#[cfg(test)]
mod tests {
    use super::round;

    #[test]
    fn rounding_is_to_even_and_clamped() {
        for (x, code) in [
            (0.5, 0),
            (1.5, 2),
            (-0.5, 0),
            (-2.5, -2),
            (0.500_001, 1),
            (126.5, 126),
            (127.4, 127),
            (127.6, 127),
            (1e30, 127),
            (-127.5, -128),
            (-128.6, -128),
        ] {
            assert_eq!(round(x), code, "{x}");
        }
        for i in -1280..1270 {
            let x = i as f32 / 10.0;
            assert_eq!(round(x), x.round_ties_even() as i8, "{x}");
        }
    }
}
