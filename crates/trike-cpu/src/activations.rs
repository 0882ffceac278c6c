//! Activations in the layout that the ternary kernels read, prepared once for all matrices that share them.

use std::cell::Cell;

use trike_core::ActivationPrecision;
use trike_trit::Hadamard;

use crate::error::CpuError;
use crate::kernels::{Kernels, with_float_kernels, with_kernels, with_shared_kernels};
use crate::line::ROWS;
use crate::piece::Joined;
use crate::rotate::Rotate;
use crate::simd::Simd;
use trike_host::CacheLine;
use trike_host::Isa;
use trike_host::Loop;
use trike_host::Pool;

/// Columns per entry of the factors and of the sums.
pub(crate) const SEGMENT: usize = 32;
/// Maximum rows of codes for the in-place kernel.
pub(crate) const IN_PLACE: usize = 4;
/// Lower bound of the absolute maximum that a scale is computed from, so that a token of zeros stays zero.
const SMALLEST: f32 = 1e-5;

/// Activations of some tokens as rows of int8 codes, padded with zeros. The default is empty, for weights that read
/// `x` directly.
///
/// One row per token, two with [`ActivationPrecision::Int16`] or four with [`ActivationPrecision::F32`], the least
/// significant byte first.
#[derive(Default)]
pub(crate) struct Activations {
    tokens: usize,
    slices: usize,
    /// Blocks of 16 columns, `[row][block]`.
    codes: Vec<[i8; 16]>,
    blocks: usize,
    /// Negated prefix sums of the codes at each segment boundary, `[row][segments + 1]`.
    negated: Vec<i32>,
    /// Value of one step of a code, per token.
    factors: Vec<f32>,
    /// Factors of the segments, `[row][segment]`; empty without group factors.
    groups: Vec<f32>,
    /// Codes interleaved by 64 rows, `[block of rows][column]`, for sparse weights.
    interleaved: Vec<[i8; INTERLEAVE]>,
    panels: Vec<Panel>,
    packed: Vec<[i8; 4]>,
}

thread_local! {
    /// Buffers of the previous activations: fresh pages for every call cost more than filling them.
    static RECYCLED: Cell<Activations> = Cell::default();
    /// Scratch row of the rotation.
    static ROTATED: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Row interleave of codes for the sparse kernels.
pub(crate) const INTERLEAVE: usize = 64;

/// One value per row of a block of `INTERLEAVE` rows.
#[repr(C, align(64))]
pub(crate) struct Interleaved<T>(pub(crate) [T; INTERLEAVE]);

/// Rows for the panel kernel, interleaved by four columns: four columns of each row, then the next four.
#[derive(Clone, Copy)]
pub(crate) struct Panel {
    /// The first row.
    pub(crate) first: usize,
    /// Number of rows: one of [`Simd::TOKENS`].
    pub(crate) rows: usize,
    start: usize,
}

impl Activations {
    /// Quantizes `x` (rows of `cols`) into the kernel layout, padded to at least `padded` columns; applies the
    /// rotation of the weights first.
    #[expect(clippy::too_many_arguments, reason = "a single call site; each argument describes the codes")]
    pub(crate) fn prepare(
        isa: Isa,
        pool: &Pool,
        x: &[f32],
        cols: usize,
        padded: usize,
        precision: ActivationPrecision,
        rotation: Option<Hadamard>,
        wanted: Wanted,
    ) -> Result<Self, CpuError> {
        let (slices, group) = (precision.slices(), precision.group());
        let tokens = x.len() / cols;
        // Whole segments, so that every unit ends at a stored sum.
        let blocks = padded.div_ceil(SEGMENT) * (SEGMENT / 16);
        let segments = blocks * 16 / SEGMENT;
        let rows = tokens * slices;
        let Self {
            mut codes, mut negated, mut factors, mut groups, mut panels, packed, mut interleaved, ..
        } = RECYCLED.take();
        // All bytes except the padding are overwritten below.
        codes.resize(rows * blocks, [0; 16]);
        negated.resize(rows * (segments + 1), 0);
        factors.resize(tokens, 0.0);
        groups.clear();
        groups.resize(if group.is_some() { rows * segments } else { 0 }, 0.0);
        panels.clear();
        interleaved.clear();
        let mut group_rows = groups.chunks_mut(segments);
        let mut jobs: Vec<_> = codes
            .chunks_mut(slices * blocks)
            .zip(negated.chunks_mut(slices * (segments + 1)))
            .zip(&mut factors)
            .zip(x.chunks(cols))
            .map(|(((codes, negated), factor), x)| Quantize {
                codes,
                negated,
                factor,
                groups: group_rows.next().unwrap_or_default(),
                x,
                slices,
                group,
            })
            .collect();
        pool.for_each_chunk(&mut jobs, 1, 4 * x.len(), |_, jobs| {
            let mut row = ROTATED.take();
            for job in jobs {
                let x = match rotation {
                    None => job.x,
                    Some(rotation) => {
                        row.clear();
                        row.extend_from_slice(job.x);
                        with_float_kernels!(isa, kernels => kernels.run(Rotate { x: &mut row, rotation }));
                        &row
                    }
                };
                with_shared_kernels!(isa, kernels => kernels.run(Run { s: kernels, job, x }));
            }
            ROTATED.set(row);
        });
        // A non-finite value leaves a non-finite factor.
        if slices == 1
            && let Some(token) = factors.iter().position(|factor| !factor.is_finite())
            && let Some((index, &value)) =
                x[token * cols..][..cols].iter().enumerate().find(|(_, v)| !v.is_finite())
        {
            return Err(CpuError::NonFinite { token, index, value });
        }
        let mut this =
            Self { tokens, slices, codes, blocks, negated, factors, groups, panels, packed, interleaved };
        if rows > IN_PLACE {
            if wanted.panels {
                this.fill_panels(with_kernels!(isa, kernels => widths(kernels)), pool);
            }
            if wanted.interleaved {
                this.interleave_rows(isa, pool);
            }
        }
        Ok(this)
    }

    /// Keeps the buffers for the next call on this thread, which is likely to need the same size.
    pub(crate) fn recycle(self) {
        RECYCLED.set(self);
    }

    /// Interleaves the codes by 64 rows.
    fn interleave_rows(&mut self, isa: Isa, pool: &Pool) {
        /// Blocks of 16 columns per job.
        const SHARE: usize = 64;
        let (rows, blocks) = (self.tokens * self.slices, self.blocks);
        self.interleaved.resize(rows.div_ceil(INTERLEAVE) * blocks * 16, [0; INTERLEAVE]);
        let mut jobs: Vec<Transpose<'_>> = Vec::new();
        for (interleaved, codes) in
            self.interleaved.chunks_mut(blocks * 16).zip(self.codes.chunks(INTERLEAVE * blocks))
        {
            jobs.extend(
                interleaved.chunks_mut(SHARE * 16).enumerate().map(|(share, interleaved)| Transpose {
                    codes,
                    blocks,
                    first: share * SHARE,
                    interleaved,
                }),
            );
        }
        pool.for_each_chunk(&mut jobs, 1, rows * blocks * 4, |_, jobs| {
            for job in jobs {
                with_float_kernels!(isa, kernels => kernels.run(&mut *job));
            }
        });
    }

    /// Builds the panels; each has one of `widths` rows.
    fn fill_panels(&mut self, widths: &[usize], pool: &Pool) {
        let (rows, steps) = (self.tokens * self.slices, self.blocks * 4);
        let mut first = 0;
        while first < rows {
            let panel = Panel { first, rows: width(widths, rows - first), start: first * steps };
            self.panels.push(panel);
            first += panel.rows;
        }
        self.packed.resize(rows * steps, [0; 4]);
        let mut rest = self.packed.as_mut_slice();
        let mut jobs = Vec::with_capacity(self.panels.len());
        for panel in &self.panels {
            let (packed, tail) = rest.split_at_mut(panel.rows * steps);
            jobs.push((panel, packed));
            rest = tail;
        }
        let codes = self.codes.as_flattened().as_chunks::<4>().0;
        pool.for_each_chunk(&mut jobs, 1, rows * steps, |_, jobs| {
            for (panel, packed) in jobs {
                for (t, codes) in
                    codes[panel.first * steps..].chunks_exact(steps).take(panel.rows).enumerate()
                {
                    let places = packed[t..].iter_mut().step_by(panel.rows);
                    places.zip(codes).for_each(|(place, four)| *place = *four);
                }
            }
        });
    }

    /// Rows of codes.
    pub(crate) fn rows(&self) -> usize {
        self.tokens * self.slices
    }

    /// Whether there are few enough rows to leave the weights in place.
    pub(crate) fn in_place(&self) -> bool {
        self.rows() <= IN_PLACE
    }

    /// All columns of the `block`-th block of 64 rows; rows past the end are zeros.
    #[inline(always)]
    pub(crate) fn interleaved(&self, block: usize) -> &[[i8; INTERLEAVE]] {
        &self.interleaved[block * self.blocks * 16..][..self.blocks * 16]
    }

    /// The panels; empty when the weights are left in place.
    pub(crate) fn panels(&self) -> &[Panel] {
        &self.panels
    }

    /// Steps of four columns of a panel, each with one entry per row (`T` rows).
    #[inline(always)]
    pub(crate) fn panel<const T: usize>(&self, panel: Panel) -> &[[[i8; 4]; T]] {
        self.packed[panel.start..][..T * self.blocks * 4].as_chunks().0
    }

    /// One row in blocks of 16 columns.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &[[i8; 16]] {
        &self.codes[row * self.blocks..][..self.blocks]
    }

    /// Minus the sum of the codes of a row from column `start` (a multiple of 32) to `end` (a multiple of 32, or the
    /// last column).
    #[inline(always)]
    pub(crate) fn negated(&self, row: usize, start: usize, end: usize) -> i32 {
        let segments = self.blocks * 16 / SEGMENT;
        let sums = &self.negated[row * (segments + 1)..][..segments + 1];
        sums[end.div_ceil(SEGMENT).min(segments)] - sums[start / SEGMENT]
    }

    /// Whether groups have their own factors.
    #[inline(always)]
    pub(crate) fn grouped(&self) -> bool {
        !self.groups.is_empty()
    }

    /// The factor of the group at column `start`; 1 without group factors.
    #[inline(always)]
    pub(crate) fn group_factor(&self, row: usize, start: usize) -> f32 {
        let segments = self.blocks * 16 / SEGMENT;
        // Past the last column there is nothing to multiply.
        self.groups.get(row * segments + start / SEGMENT).copied().unwrap_or(1.0)
    }

    /// Parameters for converting the sums of the rows to outputs.
    pub(crate) fn joined(&self) -> Joined<'_> {
        Joined { slices: self.slices, base: 256.0, factors: &self.factors }
    }
}

/// Additional layouts that the kernels for many rows read.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wanted {
    /// Panels, for weights in dense layouts.
    pub(crate) panels: bool,
    /// Interleaved rows, for sparse weights.
    pub(crate) interleaved: bool,
}

/// Interleaves some columns of up to 64 rows.
struct Transpose<'a> {
    codes: &'a [[i8; 16]],
    /// Blocks per row.
    blocks: usize,
    /// The first block.
    first: usize,
    interleaved: &'a mut [[i8; INTERLEAVE]],
}

impl Loop for &mut Transpose<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (i, interleaved) in self.interleaved.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            for (eight, codes) in self.codes.chunks(8 * self.blocks).enumerate() {
                let mut words = [[0u64; 8]; 2];
                for (r, codes) in codes.chunks_exact(self.blocks).enumerate() {
                    let [low, high] = bytemuck::cast::<[i8; 16], [u64; 2]>(codes[self.first + i]);
                    (words[0][r], words[1][r]) = (u64::from_le(low), u64::from_le(high));
                }
                for half in 0..2 {
                    let words = transposed(words[half]);
                    for c in 0..8 {
                        let (word, places) = (words[c], interleaved[8 * half + c].as_chunks_mut::<8>().0);
                        places[eight] = bytemuck::cast(word.to_le_bytes());
                    }
                }
            }
        }
    }
}

/// Transposes 8 x 8 bytes: byte `c` of word `r` becomes byte `r` of word `c`.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "the level is also the distance; an iterator is not inlined here"
)]
fn transposed(mut words: [u64; 8]) -> [u64; 8] {
    const MASKS: [u64; 3] = [0x00FF_00FF_00FF_00FF, 0x0000_FFFF_0000_FFFF, 0x0000_0000_FFFF_FFFF];
    for level in 0..3 {
        let (step, bits, mask) = (1 << level, 8 << level, MASKS[level]);
        for low in 0..8 {
            if low & step == 0 {
                // Swap the upper half of the lower word with the lower half of the upper word.
                let swap = ((words[low] >> bits) ^ words[low + step]) & mask;
                words[low] ^= swap << bits;
                words[low + step] ^= swap;
            }
        }
    }
    words
}

/// Panel widths, in rows, that the panel kernel of an instruction set supports.
fn widths<S: Simd>(_: S) -> &'static [usize] {
    S::TOKENS
}

/// Rows of the next panel of `left` rows: the widest that fits, or the second widest if two of those cover the rest, since panels
/// of few rows underuse the multipliers.
fn width(widths: &[usize], left: usize) -> usize {
    match widths {
        [widest, second, ..] if (widest + 1..=2 * second).contains(&left) => *second,
        _ => widths.iter().copied().find(|&n| n <= left).unwrap_or(1),
    }
}

/// Quantizes one token.
struct Quantize<'a> {
    codes: &'a mut [[i8; 16]],
    negated: &'a mut [i32],
    factor: &'a mut f32,
    groups: &'a mut [f32],
    x: &'a [f32],
    slices: usize,
    group: Option<usize>,
}

/// One token of a job, original or rotated.
struct Run<'a, 'j, S> {
    s: S,
    job: &'a mut Quantize<'j>,
    x: &'a [f32],
}

impl<S: Simd> Loop for Run<'_, '_, S> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { s, job, x } = self;
        match job.slices {
            1 => job.int8(s, x),
            2 => job.fixed_point::<S, 2>(s, x),
            _ => job.fixed_point::<S, 4>(s, x),
        }
        let segments = job.codes.len() / job.slices * 16 / SEGMENT;
        for codes in job.codes.chunks_exact_mut(job.codes.len() / job.slices) {
            codes.as_flattened_mut()[x.len()..].fill(0);
        }
        let rows = job.codes.as_flattened().chunks_exact(segments * SEGMENT);
        for (negated, codes) in job.negated.chunks_exact_mut(segments + 1).zip(rows) {
            let mut sum = 0;
            negated[0] = 0;
            for (negated, codes) in negated[1..].iter_mut().zip(codes.as_chunks::<SEGMENT>().0) {
                sum -= i32::from(codes.iter().map(|&code| i16::from(code)).sum::<i16>());
                *negated = sum;
            }
        }
    }
}

impl Quantize<'_> {
    #[inline(always)]
    fn int8<S: Simd>(&mut self, s: S, x: &[f32]) {
        let mut ints = CacheLine([0; ROWS]);
        let codes = self.codes.as_flattened_mut();
        let len = self.group.unwrap_or(x.len());
        let mut finite = true;
        for (g, (x, codes)) in x.chunks(len).zip(codes.chunks_mut(len)).enumerate() {
            let bits = largest_bits(x);
            finite &= bits < INFINITE;
            let scale = 127.0 / f32::from_bits(bits).max(SMALLEST);
            let factor = 1.0 / scale;
            if self.group.is_some() {
                self.groups[g * len / SEGMENT..].iter_mut().take(len / SEGMENT).for_each(|f| *f = factor);
            } else {
                *self.factor = factor;
            }
            let (xs, tail) = x.as_chunks::<16>();
            for (i, x) in xs.iter().enumerate() {
                // Scaled magnitudes are at most 127 plus a rounding error, so the nearest integer fits an int8.
                s.store_ints(s.round(s.mul(s.load_any(x), s.splat(scale))), &mut ints);
                for (code, int) in codes[16 * i..16 * i + 16].iter_mut().zip(ints.0) {
                    *code = int as i8;
                }
            }
            for (code, &x) in codes[16 * xs.len()..].iter_mut().zip(tail) {
                *code = (x * scale).round_ties_even() as i8;
            }
        }
        if self.group.is_some() {
            *self.factor = 1.0;
        }
        if !finite {
            *self.factor = f32::NAN;
        }
    }

    /// As `SLICES` bytes per value, the least significant first.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "an iterator is not inlined here")]
    fn fixed_point<S: Simd, const SLICES: usize>(&mut self, s: S, x: &[f32]) {
        let Some((scale, factor)) = fixed_point(x, const { 8 * SLICES as i32 - 3 }) else {
            // A factor of NaN makes every output of the token NaN, whatever the codes.
            *self.factor = f32::NAN;
            self.codes.as_flattened_mut().fill(0);
            return;
        };
        *self.factor = factor;
        // 128 in each byte but the highest: carries each byte's sign into the next.
        let offset = const { 0x0080_8080 & ((1 << (8 * (SLICES - 1))) - 1) };
        let row = self.codes.len() / SLICES;
        let mut rows = self.codes.chunks_exact_mut(row);
        let digits: [&mut [[i8; 16]]; SLICES] = std::array::from_fn(|_| rows.next().unwrap_or_default());
        let mut ints = CacheLine([0; ROWS]);
        for (i, x) in x.chunks(16).enumerate() {
            let mut padded = [0.0; 16];
            padded[..x.len()].copy_from_slice(x);
            s.store_ints(s.round(s.mul(s.load_any(&padded), s.splat(scale))), &mut ints);
            for int in &mut ints.0 {
                // The XOR removes the offset and leaves balanced digits.
                *int = (*int + offset) ^ offset;
            }
            let mut byte = 0;
            while byte < SLICES {
                for col in 0..16 {
                    digits[byte][i][col] = (ints.0[col] >> (8 * byte)) as i8;
                }
                byte += 1;
            }
        }
    }
}

/// The factor that scales the values of a token to integers below `2^(bits + 1)`, and the value of one step; `None` for a
/// non-finite value.
#[inline(always)]
pub(crate) fn fixed_point(x: &[f32], bits: i32) -> Option<(f32, f32)> {
    let largest = largest_bits(x);
    if largest >= INFINITE {
        return None;
    }
    // The largest magnitude is below `2^(exponent + 1)`; powers of two are exact.
    let exponent = ((largest >> 23) as i32 - 127).max(bits - 120);
    let power = |exponent: i32| f32::from_bits(((127 + exponent) as u32) << 23);
    Some((power(bits - exponent), power(exponent - bits)))
}

/// The absolute maximum of a token, at least a lower bound that keeps a token of zeros at zero; `None` for a non-finite value.
#[inline(always)]
pub(crate) fn largest(x: &[f32]) -> Option<f32> {
    let bits = largest_bits(x);
    (bits < INFINITE).then(|| f32::from_bits(bits).max(SMALLEST))
}

/// Bit pattern of infinity.
const INFINITE: u32 = 0x7F80_0000;

/// Bit pattern of the absolute maximum. As integers, magnitudes sort like the floats, and non-finite values sort above all others.
#[inline(always)]
fn largest_bits(x: &[f32]) -> u32 {
    x.iter().fold(0, |m, v| (v.to_bits() & 0x7FFF_FFFF).max(m))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trike_host::{Cpu, Isa};
    use trike_testkit::{Rng, assert_near};
    use trike_trit::GroupSize;

    #[test]
    fn rounding_is_to_even_everywhere() {
        let x: Vec<f32> = (-254..=254).map(|half| half as f32 / 2.0).collect();
        let pool = Cpu::new(1).expect("one thread");
        for isa in Isa::available() {
            let precision = ActivationPrecision::Int8PerToken;
            let made = Activations::prepare(
                isa,
                pool.pool(),
                &x,
                x.len(),
                x.len(),
                precision,
                None,
                Wanted::default(),
            )
            .expect("finite");
            for (code, x) in made.row(0).as_flattened().iter().zip(&x) {
                assert_eq!(*code, x.round_ties_even() as i8, "{isa}: {x}");
            }
        }
    }

    #[test]
    fn two_bytes_hold_every_value_within_its_step() {
        let x: Vec<f32> = Rng::new(4).normals(100).iter().map(|v| v * 3.0).collect();
        let max = x.iter().fold(0f32, |m, v| m.max(v.abs()));
        let pool = Cpu::new(1).expect("one thread");
        for isa in Isa::available() {
            let made = Activations::prepare(
                isa,
                pool.pool(),
                &x,
                100,
                128,
                ActivationPrecision::Int16,
                None,
                Wanted::default(),
            )
            .expect("finite");
            for (col, &want) in x.iter().enumerate() {
                let digit = |s: usize| f32::from(made.row(s)[col / 16][col % 16]);
                let got = (digit(0) + 256.0 * digit(1)) * made.factors[0];
                assert_near!(got, want, abs = max / 8192.0 / 2.0, "{isa}, column {col}");
            }
        }
    }

    #[test]
    fn four_bytes_hold_every_value_within_its_step() {
        let mut rng = Rng::new(1);
        let pool = Cpu::new(2).expect("two threads");
        for largest in [1.0f32, 0.999_999_9, 3e38, 1e-30, 1e-20, 77.7] {
            let mut x =
                rng.normals(100).iter().map(|v| (v / 8.0).clamp(-1.0, 1.0) * largest).collect::<Vec<_>>();
            (x[3], x[50]) = (-largest, largest);
            for isa in Isa::available() {
                let made = Activations::prepare(
                    isa,
                    pool.pool(),
                    &x,
                    50,
                    96,
                    ActivationPrecision::F32,
                    None,
                    Wanted::default(),
                )
                .expect("finite");
                for (token, x) in x.chunks(50).enumerate() {
                    let max = x.iter().fold(0f32, |m, v| m.max(v.abs()));
                    for (col, &want) in x.iter().enumerate() {
                        let digit = |s: usize| f64::from(made.row(4 * token + s)[col / 16][col % 16]);
                        let value: f64 = (0..4).map(|s| digit(s) * 256f64.powi(s as i32)).sum();
                        let got = value * f64::from(made.factors[token]);
                        let bound = (f64::from(max) * 2f64.powi(-29)).max(2f64.powi(-120));
                        assert_near!(got, f64::from(want), abs = bound, "{isa}, column {col}");
                        if want.abs() >= max / 32.0 && max > 1e-26 {
                            assert_eq!(got, f64::from(want), "{isa}: exact");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn sums_cover_every_segment() {
        let x: Vec<f32> = (0..70).map(|i| (i % 9) as f32 - 4.0).collect();
        let pool = Cpu::new(1).expect("one thread");
        for isa in Isa::available() {
            let precision = ActivationPrecision::Int8PerGroup(GroupSize::G32);
            let made =
                Activations::prepare(isa, pool.pool(), &x, 70, 160, precision, None, Wanted::default())
                    .expect("finite");
            let codes: Vec<i32> = made.row(0).as_flattened().iter().map(|&v| i32::from(v)).collect();
            assert_eq!(codes.len(), 160);
            for (start, end) in [(0, 32), (32, 64), (0, 70), (64, 160), (96, 160), (128, 512)] {
                let want = -codes[start..end.min(160)].iter().sum::<i32>();
                assert_eq!(made.negated(0, start, end), want, "{isa} {start}..{end}");
            }
        }
    }
}
