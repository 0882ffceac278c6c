//! A model on several ranks: processes, or threads of one.
//!
//! [`RankBackend`] runs the operations of another backend on its rank's part of the model, and sends activations between ranks as
//! messages. The decoder is the same as on a single machine.
//!
//! *Pipeline*: a rank has consecutive layers; the residual stream is passed from rank to rank, and the logits to rank 0.
//!
//! *Tensor*: a rank has a row shard of every matrix, and the keys and values of its heads. A product yields the output columns of
//! the rank's rows, and an all-gather precedes the next operation over the whole width: a norm, a product, or an addition to the
//! residual stream. No sum is split across ranks, so each element is computed by one rank, in the order of a single machine, and
//! results are bit-identical to a single machine; sharding the columns of a matrix would need fewer bytes but change the order of
//! additions, and would round activations to int8 by the absolute maximum of only a part of a token.
//!
//! Rank 0 runs the program; the others [follow](crate::Decoder::follow): they run the steps that it announces, and their
//! computation depends on nothing but the weights and the steps.

mod division;
mod notice;
mod operations;

use std::ops::Range;
use std::rc::Rc;

use trike_comm::Communicator;

use crate::{Backend, DecoderSpec, NnError};
pub use division::Division;
pub use operations::RankInputs;

/// Maximum bytes of a notice: a step of 2^24 tokens.
const MOST_NOTICE: usize = 1 << 26;

/// The part of a model on this rank, computed by another backend.
///
/// All ranks load the decoder of the same spec. On rank 0 it is used like any other backend, except that it runs one sequence at a
/// time and sharded weights cannot be replaced; the others call [`Decoder::follow`](crate::Decoder::follow). Results of steps are
/// on rank 0, and empty elsewhere. When the decoder of rank 0 is dropped, the others return.
pub struct RankBackend<B: Backend, C: Communicator> {
    inner: Rc<B>,
    comm: Rc<C>,
    division: Rc<Division>,
    spec: Rc<DecoderSpec>,
    /// The pipeline stage of this backend; the rank of the same number runs it.
    stage: usize,
    /// The later stages, if this is the backend of all stages.
    later: Vec<Self>,
    /// Whether this is the backend of all stages.
    is_whole: bool,
}

impl<B: Backend, C: Communicator> RankBackend<B, C> {
    /// The backend of this rank for a model of that spec.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] if the number of ranks differs from the division's.
    pub fn new(inner: B, comm: Rc<C>, spec: &DecoderSpec, division: Division) -> Result<Self, NnError> {
        if division.ranks() != comm.size() {
            let rule = "must be as many as the model is divided for";
            let got = format!("{} for {}", comm.size(), division.ranks());
            return Err(NnError::Spec { field: "ranks", rule, got });
        }
        let (inner, division, spec) = (Rc::new(inner), Rc::new(division), Rc::new(spec.clone()));
        let stage = |stage, later| Self {
            inner: Rc::clone(&inner),
            comm: Rc::clone(&comm),
            division: Rc::clone(&division),
            spec: Rc::clone(&spec),
            stage,
            later,
            is_whole: stage == 0,
        };
        let later = match division.is_pipeline() {
            true => (1..division.ranks()).map(|index| stage(index, Vec::new())).collect(),
            false => Vec::new(),
        };
        Ok(stage(0, later))
    }

    /// The ranks.
    pub fn comm(&self) -> &C {
        &self.comm
    }

    /// The division of the model.
    pub fn division(&self) -> &Division {
        &self.division
    }

    /// Whether this rank computes the operations of this stage.
    fn is_here(&self) -> bool {
        !self.division.is_pipeline() || self.stage == self.comm.rank()
    }

    /// The rows of a weight on this rank; in a pipeline, none for the stages of other ranks.
    fn rows_here(&self, name: crate::WeightName, rows: usize) -> Range<usize> {
        match self.is_here() {
            true => self.division.rows(self.comm.rank(), name, rows),
            false => 0..0,
        }
    }

    /// Serializes values for a message.
    ///
    /// # Errors
    ///
    /// [`NnError::RankValue`] for a value that is not finite.
    fn message(&self, values: &[f32]) -> Result<Vec<u8>, NnError> {
        check_finite(self.comm.rank(), values)?;
        Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// Receives `count` values from another rank.
    fn values(&self, from: usize, count: usize) -> Result<Vec<f32>, NnError> {
        let message = self.comm.receive(from, bytes(count))?;
        read_values(from, count, &message)
    }
}

/// Size of `count` f32 values in bytes, saturating.
fn bytes(count: usize) -> usize {
    count.saturating_mul(4)
}

/// The values of a message.
fn read_values(from: usize, count: usize, message: &[u8]) -> Result<Vec<f32>, NnError> {
    if message.len() != bytes(count) {
        let (expected, got) = (bytes(count), message.len());
        return Err(trike_comm::CommError::Cut { rank: from, expected, got }.into());
    }
    let values: Vec<f32> = message.as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v)).collect();
    check_finite(from, &values)?;
    Ok(values)
}

fn check_finite(rank: usize, values: &[f32]) -> Result<(), NnError> {
    match values.iter().find(|value| !value.is_finite()) {
        Some(&value) => Err(NnError::RankValue { rank, value }),
        None => Ok(()),
    }
}

impl<B: Backend, C: Communicator> Drop for RankBackend<B, C> {
    fn drop(&mut self) {
        if self.is_whole && self.comm.rank() == 0 {
            for rank in 1..self.comm.size() {
                // Ignore errors: a rank that has exited needs no end message.
                let _ = self.comm.send(rank, notice::END);
            }
        }
    }
}

/// A tensor that this rank holds whole, in some columns, or not at all.
#[derive(Debug)]
pub struct RankTensor<T> {
    local: Option<T>,
    rows: usize,
    width: usize,
    /// The columns of each rank, if they are divided.
    parts: Option<Parts>,
}

type Parts = Rc<[Range<usize>]>;

impl<T> RankTensor<T> {
    fn whole(local: Option<T>, rows: usize, width: usize) -> Self {
        Self { local, rows, width, parts: None }
    }
}

/// A matrix of which this rank holds all rows, some or none.
#[derive(Debug)]
pub struct RankMatrix<M> {
    local: Option<M>,
    rows: usize,
    /// The rows of each rank, if they are divided.
    parts: Option<Parts>,
}
