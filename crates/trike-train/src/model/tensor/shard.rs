//! The tensor-parallel part of every matrix.

use std::ops::Range;

use trike_autodiff::Elements;
use trike_comm::{Communicator, Shards};
use trike_core::{Bounds, OptionError};
use trike_llm::WeightSource;
use trike_nn::{DecoderSpec, HookPoint, NnError, WeightName};

use super::super::partition::Partition;
use super::super::{Parameters, shapes};
use crate::TrainError;

/// A rank's rows of every matrix of the blocks. Embedding, head and norms are replicated on all ranks.
///
/// With at least as many key/value heads as ranks, the rows of queries, keys and values are divided by whole heads, and a rank
/// computes the attention of its heads. With fewer, or with norms of queries and keys, every rank computes all heads.
///
/// ```
/// use trike_nn::{DecoderSpec, WeightName};
/// use trike_train::TensorShard;
///
/// let spec = DecoderSpec { intermediate: 100, ..DecoderSpec::llama(64, 5, 4, 300) };
/// let last = TensorShard::new(&spec, 2, 3);
/// // One of four heads of 16, and a third of the rows.
/// assert_eq!(last.rows(WeightName::Query(0)), Some(48..64));
/// assert_eq!(last.rows(WeightName::Up(0)), Some(67..100));
/// assert_eq!(last.rows(WeightName::Embedding), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShard {
    rank: usize,
    ranks: usize,
    hidden: Shards,
    query: Shards,
    kv: Shards,
    intermediate: Shards,
    /// Whether queries, keys and values are divided by whole heads.
    by_heads: bool,
    head_dim: usize,
}

impl TensorShard {
    /// Shard `rank` of `ranks`: equal numbers of rows or heads, with one more on the first ranks if necessary.
    #[must_use]
    pub fn new(spec: &DecoderSpec, rank: usize, ranks: usize) -> Self {
        let even = |width| Shards::even(width, ranks);
        let by_heads = ranks <= spec.kv_heads && !spec.qk_norm;
        let heads = even(spec.kv_heads);
        let group = spec.heads / spec.kv_heads.max(1);
        let of_heads = |width: usize, per_head: usize| match by_heads {
            true => heads.times(per_head),
            false => even(width),
        };
        Self {
            rank,
            ranks,
            hidden: even(spec.hidden),
            query: of_heads(spec.query_width(), group * spec.head_dim),
            kv: of_heads(spec.kv_width(), spec.head_dim),
            intermediate: even(spec.intermediate),
            by_heads,
            head_dim: spec.head_dim,
        }
    }

    /// Refuses more ranks than rows in the smallest matrix.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`].
    pub(crate) fn check_ranks(spec: &DecoderSpec, comm: &dyn Communicator) -> Result<(), OptionError> {
        let most = spec.hidden.min(spec.kv_width()).min(spec.intermediate);
        OptionError::check("number of ranks", Bounds::at_least(1usize).at_most(most), comm.size())
    }

    /// This rank's rows of a matrix of the blocks, or elements of a bias; `None` for replicated weights.
    #[must_use]
    pub fn rows(&self, name: WeightName) -> Option<Range<usize>> {
        self.outputs(name).map(|outputs| outputs.of_rank(self.rank))
    }

    /// Whether these are whole weights instead of a shard.
    pub(crate) fn is_whole<T: Elements>(parameters: &Parameters<T>) -> bool {
        let len = |(_, (rows, cols)): (WeightName, (usize, usize))| rows * cols;
        parameters.count() == shapes(parameters.spec()).into_iter().map(len).sum::<usize>()
    }

    /// The partition of a linear layer's outputs; `None` for weights outside the layers of the blocks.
    pub(crate) fn outputs(&self, name: WeightName) -> Option<&Shards> {
        let matrix = name.matrix()?;
        Some(match matrix.read_at()? {
            HookPoint::Attention if matches!(matrix, WeightName::Query(_)) => &self.query,
            HookPoint::Attention => &self.kv,
            HookPoint::Mlp => &self.intermediate,
            HookPoint::Output | HookPoint::Down => &self.hidden,
        })
    }

    /// The partition of a linear layer's inputs.
    pub(crate) fn inputs(&self, name: WeightName) -> &Shards {
        match name.read_at() {
            Some(HookPoint::Output) => &self.query,
            Some(HookPoint::Down) => &self.intermediate,
            _ => &self.hidden,
        }
    }

    /// Number of query heads and key/value heads of this rank; `None` if it computes all heads.
    pub(in crate::model) fn heads(&self) -> Option<(usize, usize)> {
        let heads = |shards: &Shards| shards.of_rank(self.rank).len() / self.head_dim;
        self.by_heads.then(|| (heads(&self.query), heads(&self.kv)))
    }
}

impl Partition for TensorShard {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn part(&self, name: WeightName, (rows, cols): (usize, usize), rank: usize) -> Option<Range<usize>> {
        Some(match self.outputs(name).map(|outputs| outputs.of_rank(rank)) {
            None => 0..rows * cols,
            Some(own) if name.is_vector() => own,
            Some(own) => own.start * cols..own.end * cols,
        })
    }

    fn sources(&self, name: WeightName, shape: (usize, usize)) -> Vec<(usize, Range<usize>)> {
        // Replicated weights have the same bits on all ranks.
        let ranks = if self.outputs(name).is_some() { self.ranks } else { 1 };
        (0..ranks).filter_map(|rank| Some((rank, self.part(name, shape, rank)?))).collect()
    }
}

impl Parameters {
    /// A rank's part of the random weights, equal to the same elements of [`random`](Self::random).
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`].
    pub fn random_shard(spec: &DecoderSpec, seed: u64, shard: &TensorShard) -> Result<Self, NnError> {
        Self::random_part(spec, seed, shard)
    }

    /// A rank's part of the weights of a model file, which is read one whole weight at a time.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn open_shard(source: &dyn WeightSource, shard: &TensorShard) -> Result<Self, NnError> {
        Self::open_part(source, shard)
    }

    /// Reduces whole weights to a rank's shard; a shard is returned unchanged.
    ///
    /// # Errors
    ///
    /// [`TrainError::NoParameter`] for a missing weight, [`TrainError::Grad`] for one of another length.
    pub fn into_shard(self, shard: &TensorShard) -> Result<Self, TrainError> {
        self.into_part(shard)
    }
}
