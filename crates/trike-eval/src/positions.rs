//! Figures of a comparison by position.

use std::ops::Range;

use crate::mean::Mean;

/// Figures of a [`Comparison`](crate::Comparison) over the tokens predicted from a range of positions: 0 to 255, 256 to 511, 512 to
/// 1023, and so on.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionFigures {
    /// The positions, counted from 0 in each sequence.
    pub positions: Range<usize>,
    /// Tokens scored.
    pub tokens: usize,
    /// Mean negative log-likelihood per token, natural logarithm.
    pub nats: f64,
    /// The same of the base model.
    pub base_nats: f64,
    /// Mean Kullback-Leibler divergence of the model from the base, in nats.
    pub kl: f64,
    /// Standard error of [`kl`](Self::kl).
    pub kl_error: f64,
}

/// Sums over the tokens of a range of positions.
#[derive(Default)]
pub(crate) struct RangeSums {
    nats: f64,
    base_nats: f64,
    kl: Mean,
}

/// Positions of the first range.
const FIRST_RANGE: usize = 256;

/// The index of the range of a position.
pub(crate) fn range_of(position: usize) -> usize {
    (position / FIRST_RANGE).checked_ilog2().map_or(0, |doublings| doublings as usize + 1)
}

impl RangeSums {
    /// Begins a sequence.
    pub(crate) fn start(&mut self) {
        self.kl.start();
    }

    /// Adds a token.
    pub(crate) fn add(&mut self, nats: f64, base_nats: f64, kl: f64) {
        self.nats += nats;
        self.base_nats += base_nats;
        self.kl.add(kl);
    }

    /// The figures of the range with this index; `None` without tokens.
    pub(crate) fn figures(&self, range: usize) -> Option<PositionFigures> {
        let end = FIRST_RANGE << range;
        let start = if range == 0 { 0 } else { end / 2 };
        let tokens = self.kl.tokens;
        (tokens > 0.0).then(|| PositionFigures {
            positions: start..end,
            tokens: tokens as usize,
            nats: self.nats / tokens,
            base_nats: self.base_nats / tokens,
            kl: self.kl.mean(),
            kl_error: self.kl.error(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_double() {
        for (position, range) in [(0, 0), (255, 0), (256, 1), (511, 1), (512, 2), (1023, 2), (1024, 3)] {
            assert_eq!(range_of(position), range, "{position}");
            let mut sums = RangeSums::default();
            assert_eq!(sums.figures(range), None);
            sums.start();
            sums.add(5.0, 1.0, 1.0);
            sums.add(1.0, 3.0, 2.0);
            let figures = sums.figures(range).expect("two tokens");
            assert!(figures.positions.contains(&position));
            assert_eq!((figures.tokens, figures.nats, figures.base_nats, figures.kl), (2, 3.0, 2.0, 1.5));
        }
    }
}
