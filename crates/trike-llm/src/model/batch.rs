//! Sequences of a model that are stepped together.

use trike_core::{Bounds, OptionError};
use trike_nn::{Backend, Decoder, DecoderSequence, Eviction, KvPage, KvSpec, Logits, Step, StepLogits};

use crate::LlmError;

/// Several sequences of a model that are stepped together, from [`Model::batch`](crate::Model::batch): any of them in any step, each
/// by tokens of its own.
pub trait SequenceBatch {
    /// Number of sequences.
    fn count(&self) -> usize;

    /// Tokens of a sequence; 0 for one that the batch does not have.
    fn len(&self, of: usize) -> usize;

    /// Whether the keys and values are in [pages](KvPage), which can be [shared](Self::adopt).
    fn is_paged(&self) -> bool;

    /// Runs the next tokens of some sequences in one step, and returns the `largest` logits of the last token of each, or all logits.
    /// A sequence's logits do not depend on the others of the step.
    ///
    /// # Errors
    ///
    /// [`LlmError::Option`] for a sequence that the batch does not have, or that is in the step twice, and errors of the decoder, such
    /// as a full cache.
    fn step(
        &mut self,
        steps: &[(usize, &[u32])],
        largest: Option<usize>,
    ) -> Result<Vec<StepLogits>, LlmError>;

    /// Removes all tokens of a sequence from position `len` on.
    ///
    /// # Errors
    ///
    /// [`LlmError::Option`] for a sequence that the batch does not have, and as [`DecoderSequence::truncate`].
    fn truncate(&mut self, of: usize, len: usize) -> Result<(), LlmError>;

    /// Removes all tokens of a sequence and frees the memory of its pages.
    ///
    /// # Errors
    ///
    /// As [`truncate`](Self::truncate).
    fn clear(&mut self, of: usize) -> Result<(), LlmError>;

    /// References to the pages with the first `positions` positions of a sequence.
    ///
    /// # Errors
    ///
    /// As [`truncate`](Self::truncate), and errors of a batch without pages.
    fn pages(&self, of: usize, positions: usize) -> Result<Vec<KvPage>, LlmError>;

    /// Makes an empty sequence one of `len` tokens whose keys and values are in `pages`.
    ///
    /// # Errors
    ///
    /// As [`DecoderSequence::adopt`], and [`LlmError::Option`] for a sequence that the batch does not have.
    fn adopt(&mut self, of: usize, pages: &[KvPage], len: usize) -> Result<(), LlmError>;
}

/// The [`SequenceBatch`] of a decoder.
pub struct DecoderBatch<'a, B: Backend> {
    decoder: &'a Decoder<B>,
    kv: KvSpec,
    sequences: Vec<DecoderSequence<B>>,
    is_paged: bool,
}

impl<'a, B: Backend> DecoderBatch<'a, B> {
    /// `count` empty sequences with caches of `kv`: in pages, where the backend has them and `kv` selects and evicts nothing; otherwise
    /// made together, so that a device computes the attention of their next tokens in one launch.
    ///
    /// # Errors
    ///
    /// As [`Decoder::sequences`].
    pub fn new(decoder: &'a Decoder<B>, kv: &KvSpec, count: usize) -> Result<Self, LlmError> {
        let keeps_all = kv.window.is_none() && kv.eviction == Eviction::Never;
        let is_plain = keeps_all && kv.keys.is_all() && kv.prompt_keys.is_all();
        let is_paged = is_plain && decoder.backend().capabilities().pages;
        let sequences = match is_paged {
            true => (0..count).map(|_| decoder.paged_sequence(*kv)).collect::<Result<_, _>>()?,
            false => decoder.sequences(*kv, count)?,
        };
        Ok(Self { decoder, kv: *kv, sequences, is_paged })
    }

    /// The sequences.
    pub fn sequences_mut(&mut self) -> &mut [DecoderSequence<B>] {
        &mut self.sequences
    }

    fn check(&self, of: usize) -> Result<usize, LlmError> {
        let all = Bounds::at_least(0usize).at_most(self.sequences.len().saturating_sub(1));
        OptionError::check("sequences", all, of)?;
        Ok(of)
    }
}

impl<B: Backend> SequenceBatch for DecoderBatch<'_, B> {
    fn count(&self) -> usize {
        self.sequences.len()
    }

    fn len(&self, of: usize) -> usize {
        self.sequences.get(of).map_or(0, DecoderSequence::len)
    }

    fn is_paged(&self) -> bool {
        self.is_paged
    }

    fn step(
        &mut self,
        steps: &[(usize, &[u32])],
        largest: Option<usize>,
    ) -> Result<Vec<StepLogits>, LlmError> {
        let mut free: Vec<Option<&mut DecoderSequence<B>>> = self.sequences.iter_mut().map(Some).collect();
        let all = Bounds::at_least(0usize).at_most(free.len().saturating_sub(1));
        let mut taken = Vec::with_capacity(steps.len());
        for &(of, ids) in steps {
            OptionError::check("sequences", all, of)?;
            let other = "the same sequence in one step";
            let conflict = OptionError::Conflict { field: "sequences", other };
            taken.push(Step { sequence: free[of].take().ok_or(conflict)?, ids });
        }
        Ok(match largest {
            Some(largest) => self.decoder.forward_top(&mut taken, largest)?,
            None => {
                let all = self.decoder.forward(&mut taken, Logits::Last)?;
                all.into_iter().map(StepLogits::All).collect()
            }
        })
    }

    fn truncate(&mut self, of: usize, len: usize) -> Result<(), LlmError> {
        let of = self.check(of)?;
        Ok(self.sequences[of].truncate(len)?)
    }

    fn clear(&mut self, of: usize) -> Result<(), LlmError> {
        let of = self.check(of)?;
        match self.is_paged {
            true => self.sequences[of] = self.decoder.paged_sequence(self.kv)?,
            false => self.sequences[of].truncate(0)?,
        }
        Ok(())
    }

    fn pages(&self, of: usize, positions: usize) -> Result<Vec<KvPage>, LlmError> {
        let of = self.check(of)?;
        Ok(self.sequences[of].pages(self.decoder.backend(), positions)?)
    }

    fn adopt(&mut self, of: usize, pages: &[KvPage], len: usize) -> Result<(), LlmError> {
        let of = self.check(of)?;
        Ok(self.sequences[of].adopt(self.decoder.backend(), pages, len)?)
    }
}
