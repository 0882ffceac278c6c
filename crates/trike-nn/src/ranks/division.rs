//! The part of a model that each rank holds.

use std::ops::Range;

use crate::{DecoderSpec, HookPoint, LayerSet, NnError, WeightName};

/// Rows of a kernel tile: shards of a matrix are aligned to tiles.
const TILE: usize = 16;

/// The division of a model between ranks.
///
/// ```
/// use trike_nn::{DecoderSpec, Division, WeightName};
///
/// let spec = DecoderSpec { kv_heads: 2, ..DecoderSpec::llama(64, 4, 4, 100) };
/// let tensor = Division::tensor(&spec, 2)?;
/// assert_eq!(tensor.rows(1, WeightName::Query(3), 64), 32..64);
/// let pipeline = Division::pipeline(&spec, &[3, 1])?;
/// assert_eq!(pipeline.rows(0, WeightName::Query(3), 64), 0..0);
/// assert_eq!(pipeline.rows(1, WeightName::Query(3), 64), 0..64);
/// # Ok::<(), trike_nn::NnError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Division {
    spec: DecoderSpec,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// Number of ranks.
    Tensor(usize),
    /// The first layer of each rank, and the number of layers.
    Pipeline(Vec<usize>),
}

impl Division {
    /// Each matrix sharded by rows: query, key and value projections by heads.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] unless `ranks` is 1 to the number of key/value heads, or a multiple of it that is at most the number of
    /// query heads.
    pub fn tensor(spec: &DecoderSpec, ranks: usize) -> Result<Self, NnError> {
        spec.validate()?;
        let (heads, kv_heads) = (spec.heads, spec.kv_heads);
        let shared = ranks > 0 && ranks.is_multiple_of(kv_heads) && ranks <= heads;
        let least = spec.hidden.min(spec.intermediate).min(spec.vocab);
        if ranks == 0 || (ranks > kv_heads && !shared) || ranks > least {
            return Err(NnError::Spec {
                field: "ranks",
                rule: "must be 1 to the number of key/value heads, or a multiple of it up to the number of query heads",
                got: format!("{ranks} for {kv_heads} key/value heads and {heads} query heads"),
            });
        }
        Ok(Self { spec: spec.clone(), kind: Kind::Tensor(ranks) })
    }

    /// Consecutive layers per rank, as many as `layers` says for each; the first rank has the embedding too, the last one the final
    /// norm and the LM head.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] unless every number is 1 or more and their sum is the number of layers.
    pub fn pipeline(spec: &DecoderSpec, layers: &[usize]) -> Result<Self, NnError> {
        spec.validate()?;
        let sum = layers.iter().fold(0usize, |sum, &count| sum.saturating_add(count));
        if layers.contains(&0) || sum != spec.layers {
            let got: Vec<String> = layers.iter().map(ToString::to_string).collect();
            return Err(NnError::Spec {
                field: "layers per rank",
                rule: "must be at least 1 each and add up to the layers of the model",
                got: format!("{} for a model of {} layers", got.join(","), spec.layers),
            });
        }
        let mut bounds = vec![0];
        bounds.extend(layers.iter().scan(0, |end, &count| {
            *end += count;
            Some(*end)
        }));
        Ok(Self { spec: spec.clone(), kind: Kind::Pipeline(bounds) })
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        match &self.kind {
            Kind::Tensor(ranks) => *ranks,
            Kind::Pipeline(bounds) => bounds.len() - 1,
        }
    }

    /// Whether ranks hold whole layers instead of shards of each layer.
    pub fn is_pipeline(&self) -> bool {
        matches!(self.kind, Kind::Pipeline(_))
    }

    /// `tensor` or `pipeline`.
    pub fn name(&self) -> &'static str {
        if self.is_pipeline() { "pipeline" } else { "tensor" }
    }

    /// Layers that a rank holds whole or in part.
    pub fn layers(&self, rank: usize) -> Range<usize> {
        match &self.kind {
            Kind::Tensor(_) => 0..self.spec.layers,
            Kind::Pipeline(bounds) => match bounds.get(rank..rank + 2) {
                Some(&[start, end]) => start..end,
                _ => 0..0,
            },
        }
    }

    /// The rank with a layer, in a pipeline; 0 otherwise.
    pub fn rank_of(&self, layer: usize) -> usize {
        match &self.kind {
            Kind::Tensor(_) => 0,
            Kind::Pipeline(bounds) => {
                bounds.partition_point(|&start| start <= layer).clamp(1, self.ranks()) - 1
            }
        }
    }

    /// The rows of a weight that a rank holds, out of `rows`; for a vector, its elements.
    pub fn rows(&self, rank: usize, name: WeightName, rows: usize) -> Range<usize> {
        use WeightName as W;
        let Kind::Tensor(ranks) = self.kind else {
            let last = self.ranks() - 1;
            let is_here = match (name.layer(), name) {
                (Some(layer), _) => self.rank_of(layer) == rank,
                (None, W::Embedding) => rank == 0 || (rank == last && self.spec.tied_head),
                (None, _) => rank == last,
            };
            return if is_here { 0..rows } else { 0..0 };
        };
        let by_heads = |Range { start, end }: Range<usize>| {
            (start * self.spec.head_dim).min(rows)..(end * self.spec.head_dim).min(rows)
        };
        let matrix = name.matrix();
        match (matrix.and_then(W::read_at), name) {
            (Some(HookPoint::Attention), _) if matches!(matrix, Some(W::Query(_))) => {
                by_heads(self.heads(rank))
            }
            (Some(HookPoint::Attention), _) => by_heads(self.kv_heads(rank)),
            // Every rank has the whole residual stream.
            (Some(HookPoint::Output | HookPoint::Down), _) if name.is_bias() => 0..rows,
            (Some(_), _) | (None, W::Embedding | W::Head) => cut(rows, rank, ranks),
            // Norms.
            (None, _) => 0..rows,
        }
    }

    /// Query heads of a rank.
    pub(super) fn heads(&self, rank: usize) -> Range<usize> {
        let (ranks, kv_heads) = match self.kind {
            Kind::Tensor(ranks) => (ranks, self.spec.kv_heads),
            Kind::Pipeline(_) => return 0..self.spec.heads,
        };
        let group = self.spec.heads / kv_heads;
        if ranks <= kv_heads {
            let Range { start, end } = self.kv_heads(rank);
            return start * group..end * group;
        }
        // Ranks that share key/value heads hold the same keys and values and part of the queries that attend to them.
        let sharing = ranks / kv_heads;
        let (first, part) = (rank / sharing * group, rank % sharing);
        first + group * part / sharing..first + group * (part + 1) / sharing
    }

    /// Key and value heads of a rank.
    pub(super) fn kv_heads(&self, rank: usize) -> Range<usize> {
        let (ranks, kv_heads) = match self.kind {
            Kind::Tensor(ranks) => (ranks, self.spec.kv_heads),
            Kind::Pipeline(_) => return 0..self.spec.kv_heads,
        };
        match ranks <= kv_heads {
            true => kv_heads * rank / ranks..kv_heads * (rank + 1) / ranks,
            false => {
                let head = rank / (ranks / kv_heads);
                head..head + 1
            }
        }
    }

    /// The spec of a model with the layers and key/value heads of a rank, for the size of its KV cache.
    pub fn cached(&self, rank: usize) -> DecoderSpec {
        DecoderSpec {
            layers: self.layers(rank).len(),
            kv_heads: self.kv_heads(rank).len(),
            // Caches have the same size with and without them, and layers are counted from the rank's first.
            window_layers: LayerSet::All,
            rope_layers: LayerSet::All,
            ..self.spec.clone()
        }
    }

    /// Bytes of activations sent by all ranks together per decoded token, without message headers.
    pub fn bytes_per_token(&self) -> u64 {
        let DecoderSpec { hidden, intermediate, layers, vocab, .. } = self.spec;
        let others = self.ranks() as u64 - 1;
        match &self.kind {
            // The embedding row, then four tensors per layer, to all other ranks; and the logits to rank 0.
            Kind::Tensor(ranks) => {
                let each = self.spec.query_width() + 2 * hidden + intermediate;
                let logits = vocab - cut(vocab, 0, *ranks).len();
                4 * (others * (hidden as u64 + layers as u64 * each as u64) + logits as u64)
            }
            Kind::Pipeline(_) => 4 * (others * hidden as u64 + others.min(1) * vocab as u64),
        }
    }
}

/// Row range of `rank`, aligned to tiles if every rank gets at least one.
fn cut(rows: usize, rank: usize, ranks: usize) -> Range<usize> {
    let unit = if rows >= TILE * ranks { TILE } else { 1 };
    let units = rows.div_ceil(unit);
    let at = |rank: usize| (units * rank / ranks * unit).min(rows);
    at(rank)..at(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::small;

    /// Every row is on some rank, matrix rows on exactly one (except shared key/value heads), and query heads are on the rank of
    /// their keys.
    #[test]
    fn ranks_have_all_of_a_model() {
        for (heads, kv_heads, ranks) in
            [(20, 5, 2), (20, 5, 3), (20, 5, 5), (20, 5, 10), (20, 5, 20), (6, 6, 4), (4, 2, 4)]
        {
            let spec = DecoderSpec { heads, kv_heads, head_dim: 8, ..small() };
            let division = Division::tensor(&spec, ranks).expect("it can be divided");
            for (name, rows) in [
                (WeightName::Query(0), heads * 8),
                (WeightName::Output(1), spec.hidden),
                (WeightName::Gate(1), spec.intermediate),
                (WeightName::Head, spec.vocab),
                (WeightName::Embedding, 1000),
            ] {
                let mut next = 0;
                for rank in 0..ranks {
                    let part = division.rows(rank, name, rows);
                    assert_eq!(part.start, next, "{name} {ranks}");
                    assert!(!part.is_empty(), "{name} {rank} of {ranks}");
                    next = part.end;
                }
                assert_eq!(next, rows);
            }
            for rank in 0..ranks {
                let (own, keys) = (division.heads(rank), division.kv_heads(rank));
                assert!(own.len().is_multiple_of(keys.len()), "{own:?} {keys:?}");
                for (local, head) in own.clone().enumerate() {
                    assert_eq!(keys.start + local / (own.len() / keys.len()), head / (heads / kv_heads));
                }
            }
        }
    }

    #[test]
    fn a_number_of_ranks_that_heads_do_not_allow_is_refused() {
        let spec = DecoderSpec { heads: 20, kv_heads: 5, ..small() };
        for ranks in [0, 6, 7, 19, 25, 40] {
            let refused = Division::tensor(&spec, ranks).expect_err("no division").to_string();
            assert!(refused.contains(&format!("got {ranks} for 5 key/value heads")), "{refused}");
        }
        for layers in [&[][..], &[2, 0], &[1], &[1, 2], &[usize::MAX, 3]] {
            let refused = Division::pipeline(&spec, layers).expect_err("not the layers");
            assert!(matches!(refused, NnError::Spec { field: "layers per rank", .. }), "{refused}");
        }
        let two = Division::pipeline(&spec, &[1, 1]).expect("two layers");
        assert_eq!([two.rank_of(0), two.rank_of(1), two.rank_of(9)], [0, 1, 1]);
        assert_eq!([two.layers(0), two.layers(1), two.layers(2)], [0..1, 1..2, 0..0]);
    }
}
