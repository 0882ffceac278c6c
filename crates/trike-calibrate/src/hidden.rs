//! The residual streams of a text, between two blocks.

use std::ops::ControlFlow;

use trike_core::{DenseData, DenseTensor};
use trike_cpu::Matrix;
use trike_nn::{
    Backend, BlockPlace, CacheSpec, CpuBackend, CpuTensor, DecoderBlock, KvPrecision, NnError, Segment, Site,
    Tensor,
};

use crate::CalibrateError;

/// Tokens of a batch, unless one sequence is longer: the activations of a block over them are what is in memory beside the
/// streams.
const TOKENS: usize = 2048;

/// Some sequences, one after the other, and their residual streams in a model.
pub(crate) struct Batch {
    /// Tokens of each sequence.
    pub(crate) lengths: Vec<usize>,
    positions: Vec<u32>,
    /// `tokens x hidden`.
    pub(crate) x: Vec<f32>,
}

/// Puts whole sequences together to batches and looks their tokens up.
pub(crate) fn embed(
    backend: &CpuBackend,
    table: &Matrix,
    sequences: &[Vec<u32>],
) -> Result<Vec<Batch>, CalibrateError> {
    let mut batches: Vec<(Vec<usize>, Vec<u32>)> = Vec::new();
    for ids in sequences {
        match batches.last_mut() {
            Some((lengths, all)) if all.len() + ids.len() <= TOKENS => {
                lengths.push(ids.len());
                all.extend(ids);
            }
            _ => batches.push((vec![ids.len()], ids.clone())),
        }
    }
    let batch = |(lengths, ids): (Vec<usize>, Vec<u32>)| {
        let positions = lengths.iter().flat_map(|&n| 0..n as u32).collect();
        let x = backend.read(backend.embed(table, &ids)?)?;
        Ok(Batch { lengths, positions, x })
    };
    batches.into_iter().map(batch).collect()
}

impl Batch {
    /// The same sequences with other residual streams.
    pub(crate) fn with(&self, x: Vec<f32>) -> Self {
        Self { lengths: self.lengths.clone(), positions: self.positions.clone(), x }
    }

    /// Runs the stream through a block and returns what comes out; `watch` sees what its linear layers read, on the host, and the
    /// stream beside it.
    pub(crate) fn through(
        &self,
        place: BlockPlace<'_, CpuBackend>,
        block: &DecoderBlock<CpuBackend>,
        mut watch: impl FnMut(Site, Vec<f32>, Vec<f32>) -> ControlFlow<()>,
        watched: Option<Site>,
    ) -> Result<Vec<f32>, NnError> {
        let BlockPlace { backend, spec, .. } = place;
        let tokens = self.positions.len();
        let table = DenseTensor::new(vec![tokens, spec.hidden], DenseData::F32(self.x.clone()))?;
        let rows: Vec<u32> = (0..tokens as u32).collect();
        let mut x = backend.embed(&backend.load_matrix(Tensor::Dense(table))?, &rows)?;
        let cache = |&capacity: &usize| {
            let precision = KvPrecision::F32;
            backend.new_cache(&CacheSpec {
                kv_heads: spec.kv_heads,
                head_dim: spec.head_dim,
                capacity,
                precision,
            })
        };
        let mut caches = self.lengths.iter().map(cache).collect::<Result<Vec<_>, _>>()?;
        let mut row = 0;
        let mut segments: Vec<_> = self
            .lengths
            .iter()
            .zip(&mut caches)
            .map(|(&n, cache)| {
                row += n;
                Segment { rows: row - n..row, first_position: 0, window: spec.window, cache }
            })
            .collect();
        let all: Vec<usize> = (0..tokens).collect();
        let host = |x: &CpuTensor| backend.read(backend.select_rows(x, &all)?);
        // Where the watcher stopped it, the stream so far is of no use to anybody.
        let _ = block.forward_watched(
            place,
            &mut x,
            &self.positions,
            &mut segments,
            &mut |site, input, stream| {
                if watched == Some(site) {
                    Ok(watch(site, host(input)?, host(stream)?))
                } else {
                    Ok(ControlFlow::Continue(()))
                }
            },
        )?;
        backend.read(x)
    }
}
