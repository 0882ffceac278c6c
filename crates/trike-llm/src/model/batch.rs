//! Sequences of a model that are stepped together.

use std::ops::Range;

use trike_core::{Bounds, OptionError};
use trike_nn::{Backend, Decoder, DecoderSequence, KvSpec, Step, StepLogits};

use crate::LlmError;

/// Several sequences of a model that are stepped together, from [`Model::batch`](crate::Model::batch).
pub trait SequenceBatch {
    /// Runs `ids` as the next tokens of the sequences `of`, in one step, and returns the `best` largest logits of each.
    ///
    /// # Errors
    ///
    /// [`LlmError::Option`] for sequences that the batch does not have, and errors of the decoder, such as a full cache.
    fn step(&mut self, of: Range<usize>, ids: &[u32], best: usize) -> Result<Vec<StepLogits>, LlmError>;

    /// Removes all tokens of each sequence from position `len` on.
    ///
    /// # Errors
    ///
    /// As [`DecoderSequence::truncate`].
    fn truncate(&mut self, len: usize) -> Result<(), LlmError>;
}

/// The [`SequenceBatch`] of a decoder.
pub struct DecoderBatch<'a, B: Backend> {
    decoder: &'a Decoder<B>,
    sequences: Vec<DecoderSequence<B>>,
}

impl<'a, B: Backend> DecoderBatch<'a, B> {
    /// `count` empty sequences with caches of `kv` that are made together: a device computes the attention of their next tokens in
    /// one launch.
    ///
    /// # Errors
    ///
    /// As [`Decoder::sequences`].
    pub fn new(decoder: &'a Decoder<B>, kv: &KvSpec, count: usize) -> Result<Self, LlmError> {
        Ok(Self { decoder, sequences: decoder.sequences(*kv, count)? })
    }

    /// The sequences.
    pub fn sequences_mut(&mut self) -> &mut [DecoderSequence<B>] {
        &mut self.sequences
    }
}

impl<B: Backend> SequenceBatch for DecoderBatch<'_, B> {
    fn step(&mut self, of: Range<usize>, ids: &[u32], best: usize) -> Result<Vec<StepLogits>, LlmError> {
        let all = Bounds::at_least(of.start).at_most(self.sequences.len());
        OptionError::check("sequences", all, of.end)?;
        let mut steps: Vec<_> =
            self.sequences[of].iter_mut().map(|sequence| Step { sequence, ids }).collect();
        Ok(self.decoder.forward_top(&mut steps, best)?)
    }

    fn truncate(&mut self, len: usize) -> Result<(), LlmError> {
        self.sequences.iter_mut().try_for_each(|sequence| Ok(sequence.truncate(len)?))
    }
}
