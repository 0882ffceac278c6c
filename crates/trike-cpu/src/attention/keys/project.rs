//! Projection of keys and queries to the channels whose signs are coded, and the coding.

use crate::attention::cached::Cached;
use crate::attention::int4::mixing;
use crate::kernels::{Element as _, Kernels as _, fold, with_float_kernels};
use crate::rotate::Rotate;
use trike_host::{Isa, Loop};
use trike_trit::Hadamard;

/// Bits of a word.
pub(super) const WORD: usize = u64::BITS as usize;

/// A linear map from the elements of a head to the coded channels: `H D_r x` for each of several rounds `r`, with the normalized
/// Hadamard transform `H` of the largest power-of-two blocks of the head, and diagonal sign matrices `D_r`.
///
/// `D_0` is the identity, and heads of 64 or more elements have only this round. Smaller ones have as many rounds as fill a word,
/// which is allocated anyway, since more signs encode a direction more precisely. A head with an odd number of elements has no
/// transform, and with signs alone every further round would repeat the first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Projection {
    head_dim: usize,
    rounds: usize,
    rotation: Option<Hadamard>,
}

impl Projection {
    pub(super) fn new(head_dim: usize) -> Self {
        let rotation = Hadamard::largest(head_dim, Hadamard::MAX);
        let rounds = if rotation.is_some() { (WORD / head_dim).max(1) } else { 1 };
        Self { head_dim, rounds, rotation }
    }

    /// Number of channels.
    pub(super) fn channels(&self) -> usize {
        self.rounds * self.head_dim
    }

    /// Words of a code.
    pub(super) fn words(&self) -> usize {
        self.channels().div_ceil(WORD)
    }

    /// Projects the vector in the first `head_dim` elements of `x`, in place.
    #[inline(always)]
    pub(super) fn apply(&self, x: &mut [f32]) {
        let (first, later) = x.split_at_mut(self.head_dim);
        for (round, copy) in later.chunks_exact_mut(self.head_dim).enumerate() {
            for (i, (to, from)) in copy.iter_mut().zip(&*first).enumerate() {
                *to = if is_flipped(round, i) { -from } else { *from };
            }
        }
        if let Some(rotation) = self.rotation {
            Rotate { x, rotation }.run();
        }
    }
}

/// A fixed sequence of signs without the structure of a Hadamard transform: one bit of a multiplicative hash.
#[inline(always)]
fn is_flipped(round: usize, i: usize) -> bool {
    ((round * WORD + i + 1) as u32).wrapping_mul(0x9E37_79B9) >> 16 & 1 == 1
}

/// The cached keys of one head: contiguous rows, and their scales if the elements are codes.
#[derive(Clone, Copy)]
pub(super) struct KeyRows<'a, E> {
    pub(super) rows: &'a [E],
    pub(super) scales: &'a [f32],
}

/// Keys that are widened at a time: few enough for the L1 cache.
const TOGETHER: usize = 16;

impl<E: Cached> KeyRows<'_, E> {
    /// Calls `see` with the index of the first key and the f32 elements of each batch of keys, with the int4 transform undone. This
    /// way the loops over keys are compiled for one element type only.
    pub(super) fn for_widened(self, isa: Isa, head_dim: usize, mut see: impl FnMut(usize, &[f32])) {
        let most = TOGETHER.min(self.rows.len() / E::width(head_dim));
        let (mut wide, mut room) = (vec![0.0; most * head_dim], Vec::new());
        let rotation = mixing(head_dim).filter(|_| E::MIXED);
        for (n, rows) in self.rows.chunks(TOGETHER * E::width(head_dim)).enumerate() {
            let (first, count) = (n * TOGETHER, rows.len() / E::width(head_dim));
            let scales = if E::Element::CODES { &self.scales[first..first + count] } else { &[] };
            let (x, room) = (&mut wide[..count * head_dim], &mut room);
            with_float_kernels!(isa, s => s.run(Widen { rows, scales, head_dim, x: &mut *x, room }));
            if let Some(rotation) = rotation {
                with_float_kernels!(isa, s => s.run(Rotate { x: &mut *x, rotation }));
            }
            see(first, x);
        }
    }
}

/// Stored keys times their scales.
struct Widen<'a, E> {
    rows: &'a [E],
    /// Empty if the elements are not codes.
    scales: &'a [f32],
    head_dim: usize,
    x: &'a mut [f32],
    /// For unpacked codes.
    room: &'a mut Vec<i8>,
}

impl<E: Cached> Loop for Widen<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { rows, scales, head_dim, x, room } = self;
        let rows = rows.chunks_exact(E::width(head_dim)).zip(x.chunks_exact_mut(head_dim));
        for (row, (stored, x)) in rows.enumerate() {
            let scale = if E::Element::CODES { scales[row] } else { 1.0 };
            for (x, element) in x.iter_mut().zip(E::elements(stored, head_dim, room)) {
                *x = element.widen() * scale;
            }
        }
    }
}

/// The byte for a key of the mean length; lengths above four times the mean saturate at 255.
pub(super) const MEAN_LENGTH: f32 = 64.0;

/// The mean channels and lengths that codes are relative to.
#[derive(Clone, Debug)]
pub(super) struct Center {
    /// The channels of the mean key.
    pub(super) mean: Vec<f32>,
    /// [`MEAN_LENGTH`] divided by the root mean square of the lengths of centred keys; 0 if all keys are equal.
    pub(super) scale: f32,
}

/// Sums over keys for computing a [`Center`].
pub(super) struct KeySums {
    elements: Vec<f64>,
    squares: f64,
    count: f64,
}

impl KeySums {
    pub(super) fn new(head_dim: usize) -> Self {
        Self { elements: vec![0.0; head_dim], squares: 0.0, count: 0.0 }
    }

    pub(super) fn center(&self, projection: &Projection) -> Center {
        let mut mean = vec![0.0; projection.channels()];
        let mut of_mean = 0.0;
        for (mean, sum) in mean.iter_mut().zip(&self.elements) {
            *mean = (sum / self.count) as f32;
            of_mean += f64::from(*mean).powi(2);
        }
        projection.apply(&mut mean);
        // A difference of nearly equal numbers is rounding noise.
        let square = self.squares / self.count - of_mean;
        let length = if square > 1e-12 * self.squares / self.count { square.sqrt() } else { f64::INFINITY };
        Center { mean, scale: (f64::from(MEAN_LENGTH) / length) as f32 }
    }
}

/// Adds some keys.
pub(super) struct AddKeys<'a> {
    pub(super) keys: &'a [f32],
    pub(super) sums: &'a mut KeySums,
}

impl Loop for AddKeys<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let d = self.sums.elements.len();
        let zero = vec![0.0; d];
        for key in self.keys.chunks_exact(d) {
            for (sum, &x) in self.sums.elements.iter_mut().zip(key) {
                *sum += f64::from(x);
            }
            self.sums.squares += f64::from(squared_distance(key, &zero));
            self.sums.count += 1.0;
        }
    }
}

/// Codes some keys: bit `c` is set if channel `c` of the key exceeds that of the mean, and the length is that of the centred key.
/// Bits past the last channel are zero.
pub(super) struct CodeKeys<'a> {
    pub(super) projection: Projection,
    pub(super) keys: &'a [f32],
    pub(super) center: &'a Center,
    pub(super) codes: &'a mut [u64],
    pub(super) lengths: &'a mut [u8],
}

impl Loop for CodeKeys<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { projection, keys, center, codes, lengths } = self;
        let mut x = vec![0.0; projection.channels()];
        // The transform of every round preserves the length of the key.
        let scale = center.scale / (projection.rounds as f32).sqrt();
        let keys = keys.chunks_exact(projection.head_dim);
        for ((code, length), key) in codes.chunks_exact_mut(projection.words()).zip(lengths).zip(keys) {
            x[..projection.head_dim].copy_from_slice(key);
            projection.apply(&mut x);
            // Saturates.
            *length = (squared_distance(&x, &center.mean).sqrt() * scale).round_ties_even() as u8;
            for (word, (x, mean)) in code.iter_mut().zip(x.chunks(WORD).zip(center.mean.chunks(WORD))) {
                *word = 0;
                for (bit, (x, mean)) in x.iter().zip(mean).enumerate() {
                    *word |= u64::from(x > mean) << bit;
                }
            }
        }
    }
}

/// In 16 lanes, whose order does not depend on the instruction set.
#[inline(always)]
fn squared_distance(a: &[f32], b: &[f32]) -> f32 {
    let mut squares = [0.0; 16];
    for (a, b) in a.chunks(16).zip(b.chunks(16)) {
        for (square, (a, b)) in squares.iter_mut().zip(a.iter().zip(b)) {
            *square += (a - b) * (a - b);
        }
    }
    fold(squares)
}
