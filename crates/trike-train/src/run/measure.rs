//! Held-out text.

use serde::{Deserialize, Deserializer, Serialize};

use crate::TrainError;
use crate::data::{Batch, DataRecord, Documents, Encoder};

/// The loss on held-out documents, with ternary weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOutLoss {
    /// Steps before it.
    pub step: usize,
    /// Cross-entropy in bits per token.
    #[serde(deserialize_with = "finite_or_nan")]
    pub bits_per_token: f64,
    /// Cross-entropy in bits per byte of text; `None` if some documents are conversations, of which only a part counts.
    pub bits_per_byte: Option<f64>,
}

/// A JSON number; infinity and NaN are written as `null` and read as NaN.
pub(super) fn finite_or_nan<'d, D: Deserializer<'d>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Held-out documents, encoded.
#[derive(Debug, Default)]
pub(super) struct HeldOutText {
    pub(super) batches: Vec<Batch>,
    tokens: usize,
    /// Bytes of text covered by the tokens.
    bytes: Option<u64>,
}

impl HeldOutText {
    /// Reads and encodes documents; those of more than `length` tokens are evaluated in pieces of that length, in batches of about
    /// `together` tokens.
    pub(super) fn read(
        documents: &Documents,
        which: &[u32],
        encoder: Encoder<'_>,
        length: usize,
        together: usize,
    ) -> Result<Self, TrainError> {
        let mut all = Self { bytes: Some(0), ..Self::default() };
        let mut batch = Batch::default();
        for &index in which {
            let index = index as usize;
            let record = documents.read(index)?;
            all.bytes = match &record {
                DataRecord::Text(text) => all.bytes.map(|bytes| bytes + text.len() as u64),
                _ => None,
            };
            let tokens = encoder.encode(&record).map_err(|e| documents.not_encoded(index, &e))?;
            let inputs = tokens.ids.len().saturating_sub(1);
            for first in (0..inputs).step_by(length) {
                let end = inputs.min(first + length);
                if batch.ids.len() + end - first > together && !batch.ids.is_empty() {
                    all.batches.push(std::mem::take(&mut batch));
                }
                let from = batch.ids.len();
                for i in first..end {
                    batch.ids.push(tokens.ids[i]);
                    batch.targets.push(tokens.learned[i + 1].then(|| tokens.ids[i + 1]));
                }
                batch.segments.push(from..batch.ids.len());
            }
        }
        if !batch.ids.is_empty() {
            all.batches.push(batch);
        }
        all.tokens = all.batches.iter().map(Batch::learned).sum();
        Ok(all)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// The evaluation for a total loss in nats over all tokens.
    pub(super) fn evaluation(&self, step: usize, nats: f64) -> HeldOutLoss {
        let bits = nats / std::f64::consts::LN_2;
        HeldOutLoss {
            step,
            bits_per_token: bits / self.tokens.max(1) as f64,
            bits_per_byte: self.bytes.filter(|&bytes| bytes > 0).map(|bytes| bits / bytes as f64),
        }
    }
}
