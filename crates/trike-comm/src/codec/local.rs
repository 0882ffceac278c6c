//! Exchanges between ranks of one process.

use std::sync::{Mutex, PoisonError};

use crate::codec::{Codec, CodecConfig};
use crate::{CommError, Communicator, Threads};

/// The codecs of several ranks in one process, for evaluating a codec before a run. The exchange is that of a run, messages
/// included, so codecs of more than one round, such as [`LowRank`](crate::codec::LowRank), work too.
///
/// ```
/// use trike_comm::CodecConfig;
/// use trike_comm::codec::LocalExchange;
///
/// let mut ranks = LocalExchange::new(CodecConfig::LowRank { rank: 1 }, &[[2, 2]], 2)?;
/// // Of rank one, and so is their mean.
/// let mean = ranks.exchange(&[&[1.0, 2.0, 2.0, 4.0], &[3.0, 6.0, 6.0, 12.0]])?;
/// assert!(mean.iter().zip([2.0, 4.0, 4.0, 8.0]).all(|(a, b)| (a - b).abs() < 1e-5));
/// # Ok::<(), trike_comm::CommError>(())
/// ```
#[derive(Debug)]
pub struct LocalExchange {
    /// One per rank; each rank locks only its own.
    codecs: Vec<Mutex<Box<dyn Codec>>>,
    len: usize,
}

impl LocalExchange {
    /// Codecs for gradients of tensors of these shapes, rows and columns.
    ///
    /// # Errors
    ///
    /// Errors of [`CodecConfig::build`], and [`CommError::Range`] for zero ranks.
    pub fn new(config: CodecConfig, shapes: &[[usize; 2]], ranks: usize) -> Result<Self, CommError> {
        if ranks == 0 {
            return Err(CommError::Range { what: "ranks", expected: "1 or more", got: 0.0 });
        }
        let codecs = (0..ranks).map(|_| config.build(shapes).map(Mutex::new));
        let mut codecs = codecs.collect::<Result<Vec<_>, _>>()?;
        let len = codecs[0].get_mut().unwrap_or_else(PoisonError::into_inner).len();
        Ok(Self { codecs, len })
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.codecs.len()
    }

    /// Elements of a gradient.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether gradients have no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Maximum number of bytes that a rank sends per exchange, without message headers.
    #[must_use]
    pub fn sent_bytes(&mut self) -> usize {
        let ranks = self.ranks();
        let sent = self.codecs.iter_mut().enumerate().map(|(rank, codec)| {
            codec.get_mut().unwrap_or_else(PoisonError::into_inner).sent_bytes(rank, ranks)
        });
        sent.max().unwrap_or(0)
    }

    /// The approximate mean of the gradients, one per rank.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`] unless there is one gradient per rank, and errors of [`Codec::check`] for one of them; the state is
    /// then unchanged.
    pub fn exchange(&mut self, gradients: &[&[f32]]) -> Result<Vec<f32>, CommError> {
        let ranks = self.ranks();
        if gradients.len() != ranks {
            return Err(CommError::Length {
                what: "gradients, one per rank",
                expected: ranks,
                got: gradients.len(),
            });
        }
        // Checked before any rank waits for another.
        for (rank, gradient) in gradients.iter().enumerate() {
            let codec = self.codecs[rank].lock().unwrap_or_else(PoisonError::into_inner);
            codec.check(rank, gradient)?;
        }
        let codecs = &self.codecs;
        let means = Threads::run(ranks, |comm| {
            let rank = comm.rank();
            let mut gradient = gradients[rank].to_vec();
            let mut codec = codecs[rank].lock().unwrap_or_else(PoisonError::into_inner);
            codec.exchange(&comm, &mut gradient).map(|()| gradient)
        });
        // The mean is the same on all ranks.
        let means = means.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(means.into_iter().next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_codecs_approximate_the_mean() {
        let gradients: Vec<Vec<f32>> = (0..3)
            .map(|rank| (0..64 * 32).map(|i| ((i * 7 + rank * 13) % 29) as f32 - 14.0).collect())
            .collect();
        let all: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
        let mean: Vec<f32> =
            (0..64 * 32).map(|i| gradients.iter().map(|g| g[i]).sum::<f32>() / 3.0).collect();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        for config in CodecConfig::DEFAULTS {
            let mut ranks = LocalExchange::new(config, &[[64, 32]], 3).unwrap();
            let found = ranks.exchange(&all).unwrap();
            assert!(dot(&found, &mean) > 0.0, "{config:?}");
            assert!((1..4 * 64 * 32 * 2).contains(&ranks.sent_bytes()), "{config:?}");
        }
    }

    #[test]
    fn wrong_gradients_are_refused_before_any_rank_waits() {
        let mut ranks = LocalExchange::new(CodecConfig::Sign, &[[1, 2]], 2).unwrap();
        let length = ranks.exchange(&[&[1.0, 2.0]]).unwrap_err();
        assert!(matches!(length, CommError::Length { expected: 2, got: 1, .. }));
        let length = ranks.exchange(&[&[1.0, 2.0], &[1.0]]).unwrap_err();
        assert!(matches!(length, CommError::Length { expected: 2, got: 1, .. }));
        let rank = ranks.exchange(&[&[1.0, 2.0], &[1.0, f32::NAN]]).unwrap_err();
        assert!(matches!(rank, CommError::NonFinite { rank: 1 }));
        assert!(LocalExchange::new(CodecConfig::Sign, &[[1, 2]], 0).is_err());
    }
}
