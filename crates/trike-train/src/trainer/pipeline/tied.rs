//! The gradient of a tied embedding, whose two parts come from two ranks.
//!
//! A single machine adds both parts of a unit before those of the next one. Here the last rank computes the head's part, and the
//! first rank sends it the embedding's part, which is nonzero only in the rows of the unit's tokens. So the last rank adds the
//! head's parts as they are computed, keeps their rows for the tokens of the step, and sums these rows again in the order of a
//! single machine once it has both parts.

use std::borrow::{Borrow, BorrowMut};

use trike_autodiff::Elements;
use trike_comm::{Communicator, receive_floats, send_floats};
use trike_nn::WeightName;

use super::Pipeline;
use crate::data::Batch;
use crate::model::{count, zeros};
use crate::trainer::SMALL;
use crate::{Stage, TrainEngine, TrainError, Trainer};

/// A gradient sum of a tied embedding.
pub(super) struct TiedSum<E: TrainEngine> {
    /// `None` if there is nothing to do: for an untied head, and on intermediate ranks.
    place: Option<usize>,
    /// Whether the parts come from two ranks.
    is_split: bool,
    /// Columns and rows of the table.
    shape: [usize; 2],
    /// Whether a single machine first adds both parts of a unit to each other.
    adds_units: bool,
    /// Tokens of the step, in order.
    tokens: Vec<u32>,
    /// The sum without the unit that is being computed.
    sum: Option<E::Tensor>,
    /// Rows of the head's part for these tokens, of each unit.
    of_head: Vec<Vec<f32>>,
}

/// The distinct tokens of some batches, sorted.
fn tokens_of<'b>(batches: impl IntoIterator<Item = &'b Batch>) -> Vec<u32> {
    let mut tokens: Vec<u32> = batches.into_iter().flat_map(|batch| batch.ids.iter().copied()).collect();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

impl<E: TrainEngine> TiedSum<E> {
    pub(super) fn new(
        trainer: &Trainer<'_, E>,
        pipeline: &Pipeline<'_>,
        units: &[Batch],
    ) -> Result<Self, TrainError> {
        let parameters = trainer.parameters();
        let stage = &pipeline.stage;
        let (spec, is_split) = (parameters.spec(), stage.copies(WeightName::Embedding));
        // As in `Trainer::add_units` with separate gradients per unit.
        let adds_units = E::SIDE_BY_SIDE && units.len() > 1 && count(spec) <= SMALL;
        let is_added = is_split || spec.tied_head && adds_units && stage.is_first() && stage.is_last();
        let place = parameters.place(WeightName::Embedding).filter(|_| is_added);
        let tokens = if place.is_some() && stage.is_last() { tokens_of(units) } else { Vec::new() };
        let (sum, of_head) = (None, Vec::new());
        Ok(Self { place, is_split, shape: [spec.hidden, spec.vocab], adds_units, tokens, sum, of_head })
    }

    fn rows(&self, engine: &E, table: &E::Tensor, tokens: &[u32]) -> Result<Vec<f32>, TrainError> {
        let [cols, rows] = self.shape;
        let mut some = engine.allocate(tokens.len() * cols)?;
        engine.gather(table.borrow(), cols, &engine.ids(tokens, rows)?, some.borrow_mut())?;
        Ok(engine.download(some.borrow())?.into_owned())
    }

    /// Starts an empty gradient for the parts of a unit, on the last rank.
    pub(super) fn before_head(&mut self, engine: &E, sums: &mut [E::Tensor]) -> Result<(), TrainError> {
        let Some(place) = self.place else { return Ok(()) };
        let empty = zeros(engine, sums[place].elements())?;
        self.sum = Some(std::mem::replace(&mut sums[place], empty));
        Ok(())
    }

    /// Adds the head's part of a unit; on one rank, both parts.
    pub(super) fn after_head(&mut self, engine: &E, sums: &mut [E::Tensor]) -> Result<(), TrainError> {
        let (Some(place), Some(mut sum)) = (self.place, self.sum.take()) else { return Ok(()) };
        if self.is_split {
            self.of_head.push(self.rows(engine, &sums[place], &self.tokens)?);
        }
        engine.add(sum.borrow_mut(), sums[place].borrow())?;
        sums[place] = sum;
        Ok(())
    }

    /// Sends the embedding's part of a unit from the first rank to the last.
    pub(super) fn after_embedding(
        &self,
        engine: &E,
        comm: &dyn Communicator,
        batch: &Batch,
        sums: &mut [E::Tensor],
    ) -> Result<(), TrainError> {
        let Some(place) = self.place.filter(|_| self.is_split) else { return Ok(()) };
        let rows = self.rows(engine, &sums[place], &tokens_of([batch]))?;
        send_floats(comm, comm.size() - 1, &rows)?;
        Ok(engine.fill(sums[place].borrow_mut(), 0.0)?)
    }

    /// Adds the embedding's parts of all units, on the last rank.
    pub(super) fn finish(
        self,
        engine: &E,
        comm: &dyn Communicator,
        stage: &Stage,
        units: &[Batch],
        sums: &mut [E::Tensor],
    ) -> Result<(), TrainError> {
        let Some(place) = self.place.filter(|_| self.is_split && stage.is_last()) else { return Ok(()) };
        let [cols, rows] = self.shape;
        let added = engine.through_host(&[sums[place].borrow()], &[rows * cols], |table| {
            let mut rows = vec![0.0f32; self.tokens.len() * cols];
            for (batch, of_head) in units.iter().zip(self.of_head) {
                let tokens = tokens_of([batch]);
                let of_embedding = receive_floats(comm, 0, tokens.len() * cols)?;
                let mut parts = tokens.iter().zip(of_embedding.chunks_exact(cols)).peekable();
                let each = rows.chunks_exact_mut(cols).zip(of_head.chunks_exact(cols));
                for (token, (sum, head)) in self.tokens.iter().zip(each) {
                    let embedding = parts.next_if(|(of_unit, _)| *of_unit == token).map(|(_, row)| row);
                    for (i, sum) in sum.iter_mut().enumerate() {
                        *sum = match (embedding, self.adds_units) {
                            (None, _) => *sum + head[i],
                            (Some(embedding), true) => *sum + (head[i] + embedding[i]),
                            (Some(embedding), false) => *sum + head[i] + embedding[i],
                        };
                    }
                }
            }
            let mut table = table[0].to_vec();
            for (token, row) in self.tokens.iter().zip(rows.chunks_exact(cols)) {
                table[*token as usize * cols..][..cols].copy_from_slice(row);
            }
            Ok::<_, TrainError>(vec![table])
        });
        sums[place] = added?.swap_remove(0);
        Ok(())
    }
}
