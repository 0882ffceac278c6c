//! Division of the calibration text into steps.

use std::{f32::consts::PI, ops::Range};

use rand_chacha::{ChaCha8Rng, rand_core::RngCore};

use crate::streams::Batch;

/// One of this many sequences is held out to measure the effect of tuning.
const HELD_OUT: usize = 16;
/// Fraction of the steps over which the learning rate increases to its full value.
const WARM_UP: f32 = 0.05;

/// A sequence: the index of its batch, and its rows there.
pub(super) type Span = (usize, Range<usize>);

/// The sequences of several batches.
pub(super) struct Text {
    pub(super) tuned: Vec<Span>,
    pub(super) held: Vec<Span>,
}

impl Text {
    pub(super) fn new(batches: &[Batch]) -> Self {
        let mut all = Vec::new();
        for (i, batch) in batches.iter().enumerate() {
            let mut row = 0;
            for length in batch.lengths() {
                all.push((i, row..row + length));
                row += length;
            }
        }
        let enough = all.len() >= HELD_OUT;
        let count = all.len();
        let (held, tuned): (Vec<_>, Vec<_>) =
            all.into_iter().enumerate().partition(|(i, _)| is_held_out(*i, count));
        let places = |v: Vec<(usize, Span)>| v.into_iter().map(|(_, p)| p).collect::<Vec<_>>();
        let tuned = places(tuned);
        Self { held: if enough { places(held) } else { tuned.clone() }, tuned }
    }

    /// Number of tokens of the training sequences.
    pub(super) fn tokens(&self) -> usize {
        lengths(&self.tuned).iter().sum()
    }

    /// Groups sequences into steps of about this many tokens.
    pub(super) fn steps(places: &[Span], tokens: usize) -> Vec<Vec<Span>> {
        let mut steps: Vec<Vec<Span>> = Vec::new();
        let mut room = 0;
        for place in places {
            let length = place.1.len();
            match steps.last_mut() {
                Some(step) if length <= room => {
                    step.push(place.clone());
                    room -= length;
                }
                _ => {
                    steps.push(vec![place.clone()]);
                    room = tokens.saturating_sub(length);
                }
            }
        }
        steps
    }

    /// The steps of several epochs over the sequences, each shuffled.
    pub(super) fn plan(&self, passes: usize, tokens: usize, rng: &mut ChaCha8Rng) -> Vec<Vec<Span>> {
        (0..passes).flat_map(|_| Self::steps(&self.shuffled(rng), tokens)).collect()
    }

    fn shuffled(&self, rng: &mut ChaCha8Rng) -> Vec<Span> {
        let mut places = self.tuned.clone();
        shuffle(&mut places, rng);
        places
    }
}

/// Whether sequence `i` of `all` is held out.
pub(crate) fn is_held_out(i: usize, all: usize) -> bool {
    all >= HELD_OUT && i % HELD_OUT == HELD_OUT - 1
}

pub(super) fn shuffle(places: &mut [Span], rng: &mut ChaCha8Rng) {
    for i in (1..places.len()).rev() {
        places.swap(i, (rng.next_u64() % (i as u64 + 1)) as usize);
    }
}

/// Concatenates the rows, `width` wide, of several sequences.
pub(super) fn gather<'a>(step: &[Span], width: usize, rows: impl Fn(usize) -> &'a [f32]) -> Vec<f32> {
    let part = |(batch, span): &Span| &rows(*batch)[span.start * width..span.end * width];
    step.iter().flat_map(part).copied().collect()
}

pub(super) fn lengths(step: &[Span]) -> Vec<usize> {
    step.iter().map(|(_, span)| span.len()).collect()
}

/// Learning rate of step `i` of `n`, relative to the full rate: linear warmup, then cosine decay.
pub(super) fn schedule(i: usize, n: usize) -> f32 {
    let at = (i as f32 + 0.5) / n.max(1) as f32;
    if at < WARM_UP { at / WARM_UP } else { 0.5 * (1.0 + (PI * (at - WARM_UP) / (1.0 - WARM_UP)).cos()) }
}

/// Number of tokens of the longest sequence.
pub(super) fn longest(batches: &[Batch]) -> usize {
    batches.iter().flat_map(Batch::lengths).max().unwrap_or(0)
}
