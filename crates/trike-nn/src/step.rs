//! Inputs and results of a step.

use std::borrow::Cow;
use std::ops::Range;

use crate::{KvSpec, NnError};

/// The rows of a ragged batch that belong to one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Rows of the batch.
    pub rows: Range<usize>,
    /// Position of the first row; the others are consecutive.
    pub first_position: usize,
    /// Positions that a query of this sequence attends to, its own included; all when `None`.
    pub window: Option<usize>,
}

/// The inputs of one step, built once and passed to every operation that needs them: the ids of all tokens, their positions,
/// and the rows of each sequence.
///
/// The rows of all sequences are concatenated without padding.
///
/// ```
/// use trike_nn::StepInputs;
///
/// let mut inputs = StepInputs::default();
/// inputs.push(&[7, 8, 9], 0, None)?; // A prompt of three tokens,
/// inputs.push(&[4], 12, Some(8))?; // and the thirteenth token of another sequence.
/// assert_eq!(inputs.positions(), [0, 1, 2, 12]);
/// assert_eq!(inputs.segments()[1].rows, 3..4);
/// # Ok::<(), trike_nn::NnError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepInputs {
    ids: Vec<u32>,
    positions: Vec<u32>,
    segments: Vec<Segment>,
}

impl StepInputs {
    /// Adds the tokens of a sequence, the first of them at `first_position`.
    ///
    /// # Errors
    ///
    /// [`NnError::EmptyStep`] for no tokens, [`NnError::ContextFull`] for a position over 32 bits.
    pub fn push(&mut self, ids: &[u32], first_position: usize, window: Option<usize>) -> Result<(), NnError> {
        self.push_rows(ids.len(), first_position, window)?;
        self.ids.extend_from_slice(ids);
        Ok(())
    }

    /// Adds a sequence without ids, for a step that starts from a residual stream instead of an embedding.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    pub fn push_rows(
        &mut self,
        rows: usize,
        first_position: usize,
        window: Option<usize>,
    ) -> Result<(), NnError> {
        if rows == 0 {
            return Err(NnError::EmptyStep);
        }
        let capacity = u32::MAX as usize;
        let end = first_position.checked_add(rows).filter(|end| *end <= capacity);
        let Some(end) = end else {
            return Err(NnError::ContextFull { requested: first_position.saturating_add(rows), capacity });
        };
        let first = self.positions.len();
        self.positions.extend((first_position..end).map(|position| position as u32));
        self.segments.push(Segment { rows: first..first + rows, first_position, window });
        Ok(())
    }

    /// Rows of the step's tensors.
    pub fn rows(&self) -> usize {
        self.positions.len()
    }

    /// The id of each row; empty for a step that starts from a residual stream.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The position of each row.
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// The sequences, in the order of their rows.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

/// The largest values of a row with their columns, in descending order.
pub type Largest = Vec<(u32, f32)>;

/// Logits of a sequence's last token.
#[derive(Clone, Debug, PartialEq)]
pub enum StepLogits {
    /// The tokens with the largest logits, in descending order, ties by token id. All are finite or negative infinity.
    Top(Largest),
    /// One logit per token of the vocabulary.
    All(Vec<f32>),
}

/// Whether a sampler can choose from the top of a row. The first value decides: NaN and infinity sort first, and negative infinity
/// comes first only if all logits are negative infinity.
pub(crate) fn usable(row: &[(u32, f32)]) -> bool {
    row.first().is_some_and(|(_, logit)| logit.is_finite())
}

/// Announcement of a step to the other ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepNotice<'a> {
    /// Sequences of the step; the fields are those of the first.
    pub sequences: usize,
    /// A number unique within the process.
    pub sequence: u64,
    /// Its KV cache.
    pub spec: KvSpec,
    /// Its length before the step.
    pub position: usize,
    /// Its new tokens.
    pub ids: Cow<'a, [u32]>,
    /// Whether results are requested for all tokens instead of the last.
    pub all_rows: bool,
    /// Whether the result is hidden states instead of logits.
    pub states: bool,
}
