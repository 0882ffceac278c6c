//! 16-bit activations in the layout of the int8 kernels.

use trike_core::ActivationPrecision;

use crate::activations::{fixed_point, largest};
use crate::kernels::{Kernels, with_shared_kernels};
use crate::line::ROWS;
use crate::piece::Joined;
use crate::simd::Simd;
use trike_core::Spread;
use trike_host::{CacheLine, Isa, Loop, Pool};

/// Four columns as two pairs of i16, the lower column in the lower half.
#[derive(Clone, Copy, Default)]
pub(super) struct Four(pub(super) [i32; 2]);

/// Activations of some tokens as rows of i16 in pairs, zero-padded: one row per token, or two for [`ActivationPrecision::F32`], the
/// less significant one first.
#[derive(Default)]
pub(crate) struct Pairs {
    slices: usize,
    /// Lines of four columns per row.
    lines: usize,
    values: Vec<Four>,
    /// Value of one step, per token.
    factors: Vec<f32>,
}

impl Pairs {
    /// Rounds the tokens of `x`, rows of `cols`.
    pub(crate) fn prepare(
        isa: Isa,
        pool: &Pool,
        x: &[f32],
        cols: usize,
        spread: Spread,
        precision: ActivationPrecision,
    ) -> Self {
        let slices = if precision == ActivationPrecision::F32 { 2 } else { 1 };
        let (lines, tokens) = (spread.lines(cols), x.len() / cols);
        let mut values = vec![Four::default(); tokens * slices * lines];
        let mut factors = vec![0.0; tokens];
        let mut jobs: Vec<_> = values
            .chunks_mut(slices * lines)
            .zip(&mut factors)
            .zip(x.chunks(cols))
            .map(|((values, factor), x)| Round { values, factor, x, spread, slices })
            .collect();
        pool.for_each_chunk(&mut jobs, 1, 4 * x.len(), |_, jobs| {
            for job in jobs {
                with_shared_kernels!(isa, kernels => kernels.run(Run { s: kernels, job }));
            }
        });
        Self { slices, lines, values, factors }
    }

    /// Rows of fixed-point numbers.
    pub(super) fn rows(&self) -> usize {
        self.factors.len() * self.slices
    }

    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &[Four] {
        &self.values[row * self.lines..][..self.lines]
    }

    /// Parameters for converting the sums of the rows to outputs.
    pub(super) fn joined(&self) -> Joined<'_> {
        Joined { slices: self.slices, base: 65_536.0, factors: &self.factors }
    }
}

/// Rounds one token.
struct Round<'a> {
    values: &'a mut [Four],
    factor: &'a mut f32,
    x: &'a [f32],
    spread: Spread,
    slices: usize,
}

struct Run<'a, 'j, S> {
    s: S,
    job: &'a mut Round<'j>,
}

impl<S: Kernels> Loop for Run<'_, '_, S> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { s, job } = self;
        let steps = if job.slices == 1 { sixteen_bits(job.x) } else { fixed_point(job.x, 29) };
        let Some((scale, factor)) = steps else {
            // A factor of NaN makes every output of the token NaN, whatever the values.
            *job.factor = f32::NAN;
            return;
        };
        *job.factor = factor;
        let lines = job.values.len() / job.slices;
        let (low, high) = job.values.split_at_mut(lines);
        let Spread { group, padded } = job.spread;
        if group == 4 {
            round(s, job.x, scale, low, high);
            return;
        }
        let parts = low.chunks_mut(padded / 4).zip(job.x.chunks(group));
        for (g, (low, x)) in parts.enumerate() {
            let high = high.get_mut(g * padded / 4..).unwrap_or_default();
            round(s, x, scale, low, high);
        }
    }
}

/// The factor that scales the absolute maximum of a token to the largest i16, and the value of one step; `None` for a non-finite
/// value.
#[inline(always)]
fn sixteen_bits(x: &[f32]) -> Option<(f32, f32)> {
    let scale = 32_767.0 / largest(x)?;
    Some((scale, 1.0 / scale))
}

/// Rounds some columns; `high` is empty for one slice.
#[inline(always)]
fn round<S: Simd>(s: S, x: &[f32], scale: f32, low: &mut [Four], high: &mut [Four]) {
    let mut ints = CacheLine([0i32; ROWS]);
    for (i, x) in x.chunks(ROWS).enumerate() {
        let mut padded = [0.0; ROWS];
        padded[..x.len()].copy_from_slice(x);
        s.store_ints(s.round(s.mul(s.load_any(&padded), s.splat(scale))), &mut ints);
        let lows: [i16; ROWS] = ints.0.map(|int| int as i16);
        put(&lows, low, i);
        if !high.is_empty() {
            let mut highs = [0i16; ROWS];
            for lane in 0..ROWS {
                // The difference to the sign-extended low half is a multiple of `2^16`.
                highs[lane] = ((ints.0[lane] - i32::from(lows[lane])) >> 16) as i16;
            }
            put(&highs, high, i);
        }
    }
}

/// Writes up to sixteen columns.
#[inline(always)]
fn put(columns: &[i16; ROWS], to: &mut [Four], sixteen: usize) {
    for (to, four) in to.iter_mut().skip(4 * sixteen).zip(columns.as_chunks::<4>().0) {
        let pair = |low: i16, high: i16| i32::from(low) & 0xFFFF | i32::from(high) << 16;
        *to = Four([pair(four[0], four[1]), pair(four[2], four[3])]);
    }
}
