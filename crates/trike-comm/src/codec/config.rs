//! Codecs by their settings.

use crate::CommError;
use crate::codec::{
    Codec, Demo, LowRank, MessageCodec, Sign, Sketch, SparseLoCo, TernaryCodec, TopK, elements,
};

/// The settings of a codec.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum CodecConfig {
    /// [`TernaryCodec`].
    Ternary,
    /// [`Sign`].
    Sign,
    /// [`TopK`].
    TopK {
        /// Fraction of the elements that are sent, in (0, 1].
        share: f32,
        /// Momentum factor per step, in [0, 1).
        momentum: f32,
    },
    /// [`Demo`].
    Demo {
        /// Fraction of the cosine coefficients that are sent, in (0, 1].
        share: f32,
        /// Momentum factor per step, in [0, 1].
        momentum: f32,
    },
    /// [`LowRank`].
    LowRank {
        /// Rank of the factorization of each matrix, at least 1.
        rank: usize,
    },
    /// [`SparseLoCo`].
    SparseLoCo {
        /// Fraction of the elements that are sent, in (0, 1].
        share: f32,
        /// Decay factor of the residual per exchange, in [0, 1].
        decay: f32,
    },
    /// [`Sketch`].
    Sketch {
        /// Numbers sent per element, in (0, 1].
        share: f32,
    },
}

impl CodecConfig {
    /// Each codec with its default settings.
    pub const DEFAULTS: [Self; 7] =
        [Self::Ternary, Self::Sign, Self::TOP_K, Self::DEMO, Self::LOW_RANK, Self::SPARSE_LOCO, Self::SKETCH];
    /// 2 % of the elements, without momentum: 97 times fewer bytes than f32.
    pub const TOP_K: Self = Self::TopK { share: 0.02, momentum: 0.0 };
    /// 2.2 % of the coefficients, 89 times fewer bytes than f32, and the paper's momentum.
    pub const DEMO: Self = Self::Demo { share: 0.022, momentum: 0.999 };
    /// Rank 4.
    pub const LOW_RANK: Self = Self::LowRank { rank: 4 };
    /// 64 of 4,096 elements, 137 times fewer bytes than f32, and the paper's decay.
    pub const SPARSE_LOCO: Self = Self::SparseLoCo { share: 0.015_625, decay: 0.95 };
    /// One number per 20 elements.
    pub const SKETCH: Self = Self::Sketch { share: 0.05 };

    /// The codec for tensors of these shapes (rows and columns); a vector of `n` elements is `[1, n]`. A gradient is one slice: the
    /// elements of all tensors in order, row-major.
    ///
    /// # Errors
    ///
    /// [`CommError::Range`] for settings out of range, [`CommError::Shape`] for tensors that do not fit in memory.
    ///
    /// ```
    /// use trike_comm::{Codec, CodecConfig, Threads};
    ///
    /// let mut codec = CodecConfig::LowRank { rank: 1 }.build(&[[64, 32], [1, 32]])?;
    /// // On two ranks, 64 + 32 numbers of the matrix's factors and the 32 of the vector, in place of 2,080.
    /// assert_eq!((codec.len(), codec.sent_bytes(0, 2)), (64 * 32 + 32, 4 * (64 + 32 + 32)));
    /// let mut gradient = vec![0.5; codec.len()];
    /// codec.exchange(&Threads::new(1)[0], &mut gradient)?;
    /// // A matrix of equal elements has rank 1.
    /// assert!(gradient.iter().all(|g| (g - 0.5).abs() < 1e-5));
    /// # Ok::<(), trike_comm::CommError>(())
    /// ```
    pub fn build(self, shapes: &[[usize; 2]]) -> Result<Box<dyn Codec>, CommError> {
        match self {
            Self::LowRank { rank } => Ok(Box::new(LowRank::new(shapes, rank)?)),
            other => Ok(other.build_message(shapes)?),
        }
    }

    /// Like [`build`](Self::build), for a codec with a single message per exchange.
    ///
    /// # Errors
    ///
    /// Errors of [`build`](Self::build), and [`CommError::Rounds`] for [`CodecConfig::LowRank`].
    pub fn build_message(self, shapes: &[[usize; 2]]) -> Result<Box<dyn MessageCodec>, CommError> {
        let len = elements(shapes)?;
        Ok(match self {
            Self::Ternary => Box::new(TernaryCodec::new(len)),
            Self::Sign => Box::new(Sign::new(len)),
            Self::TopK { share, momentum } => Box::new(TopK::new(len, share, momentum)?),
            Self::Demo { share, momentum } => Box::new(Demo::new(len, share, momentum)?),
            Self::SparseLoCo { share, decay } => Box::new(SparseLoCo::new(len, share, decay)?),
            Self::Sketch { share } => Box::new(Sketch::new(len, share)?),
            Self::LowRank { .. } => {
                return Err(CommError::Rounds { codec: "low rank", expected: 1, got: 2 });
            }
        })
    }
}
