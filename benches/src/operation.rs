//! Operations without weights, as data: products of trits with trits, and attention.

use trike_bench::{Attention, Heads, Limit};
use trike_cpu::{Cost, Isa};

use crate::catalogue::{PORTABLE_MACS, STREAM_BYTES};

/// A kernel beside the products, at one size.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// How reports call the kernel.
    pub kernel: &'static str,
    /// What is computed.
    pub work: Work,
}

/// What an [`Operation`] computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The dot product of two vectors of trits, which stay in the cache.
    Dot {
        /// Elements of a vector.
        trits: usize,
    },
    /// The dot products of one vector of trits with the rows of a matrix of trits, which comes from memory.
    Scores {
        /// Rows of the matrix.
        rows: usize,
        /// Elements of the vector and of a row.
        trits: usize,
    },
    /// The signs of the sum of many vectors of trits.
    Bundle {
        /// How many.
        vectors: usize,
        /// Elements of a vector.
        trits: usize,
    },
    /// Causal attention over a cache; keys and values for one token come from memory.
    Attention(Attention),
}

/// The heads of the decoder with 2 billion weights: four query heads share a key head.
pub(crate) const HEADS: Heads = Heads::B2;

/// All of them: hypervectors of the usual length and a matrix that no cache holds, then decode and prefill.
///
/// ```
/// use trike_benches::OPERATIONS;
///
/// let names: Vec<String> = OPERATIONS.iter().map(|operation| operation.problem()).collect();
/// assert_eq!(names[..2], ["trits dot 10000", "trits 4096 x 10240 m=1"]);
/// assert_eq!(names[3..], ["attention decode 4096", "attention prefill 512"]);
/// ```
pub const OPERATIONS: &[Operation] = &[
    Operation { kernel: TRITS, work: Work::Dot { trits: 10_000 } },
    Operation { kernel: TRITS, work: Work::Scores { rows: 4096, trits: 10_240 } },
    Operation { kernel: "bundle of trits", work: Work::Bundle { vectors: 500, trits: 10_000 } },
    Operation { kernel: ATTENTION, work: attention(1, 4096) },
    Operation { kernel: ATTENTION, work: attention(512, 512) },
];

const fn attention(tokens: usize, positions: usize) -> Work {
    Work::Attention(Attention { heads: HEADS, tokens, positions, batch: 1 })
}

const TRITS: &str = "trits x trits";
const ATTENTION: &str = "attention, f16 cache";

/// Bytes of the two planes of a vector.
const fn plane_bytes(trits: usize) -> usize {
    2 * size_of::<u64>() * trits.div_ceil(64)
}

impl Operation {
    /// How reports call the size.
    #[must_use]
    pub fn problem(&self) -> String {
        match self.work {
            Work::Dot { trits } => format!("trits dot {trits}"),
            Work::Scores { rows, trits } => format!("trits {rows} x {trits} m=1"),
            Work::Bundle { vectors, trits } => format!("trits bundle {vectors} x {trits}"),
            Work::Attention(attention) => attention.to_string(),
        }
    }

    /// Work of one call: a multiply-add for each pair of elements that meet, for each trit that is added to a bundle; for
    /// attention see [`Attention::cost`].
    #[must_use]
    pub fn cost(&self) -> Cost {
        let (macs, bytes) = match self.work {
            Work::Dot { trits } => (trits, 2 * plane_bytes(trits)),
            Work::Scores { rows, trits } => {
                (rows * trits, (rows + 1) * plane_bytes(trits) + rows * size_of::<i32>())
            }
            Work::Bundle { vectors, trits } => (vectors * trits, (vectors + 1) * plane_bytes(trits)),
            Work::Attention(attention) => return attention.cost(),
        };
        Cost { macs: macs as u64, bytes: bytes as u64 }
    }

    /// Its ceilings.
    #[must_use]
    pub fn limits(&self) -> &'static [Limit] {
        if self.is_streamed() { &[Limit::Memory] } else { &[Limit::Int8] }
    }

    /// Whether an instruction set is asked to do it; see [`PORTABLE_MACS`].
    #[must_use]
    pub fn is_for(&self, isa: Isa) -> bool {
        isa.name() != "scalar" || self.cost().macs <= PORTABLE_MACS
    }

    /// How many equal matrices or caches take turns, so that each call finds its own in memory.
    pub(crate) fn copies(&self) -> usize {
        if self.is_streamed() { STREAM_BYTES.div_ceil(self.cost().bytes as usize) } else { 1 }
    }

    fn is_streamed(&self) -> bool {
        matches!(self.work, Work::Scores { .. } | Work::Attention(Attention { tokens: 1, .. }))
    }

    /// Whether more threads than the caller's have something to do.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.work, Work::Scores { .. } | Work::Attention(_))
    }

    /// Whether it reads as many times as prefill does, so that a turn is a call or two.
    pub(crate) fn tokens(&self) -> usize {
        if let Work::Attention(attention) = self.work { attention.tokens } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::CASES;
    use crate::models::MODELS;

    #[test]
    fn problems_are_unique_in_a_report() {
        let mut names: Vec<String> = OPERATIONS.iter().map(Operation::problem).collect();
        names.extend(
            CASES.into_iter().flat_map(|case| case.problems().map(|p| p.to_string()).collect::<Vec<_>>()),
        );
        names.extend(MODELS.iter().flat_map(|timed| timed.run.problems()));
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn costs_by_hand() {
        let found: Vec<(u64, u64, usize)> =
            OPERATIONS.iter().map(|op| (op.cost().macs, op.cost().bytes, op.copies())).collect();
        let words = 157;
        let want = [
            (10_000, 2 * 2 * 8 * words, 1),
            (4096 * 10_240, 4097 * 2 * 1280 + 4 * 4096, 26),
            (500 * 10_000, 501 * 2 * 8 * words, 1),
            (2 * 20 * 128 * 4096, 10_506_240, 26),
            (2 * 20 * 128 * (512 * 513 / 2), 512 * (2 * 2 * 5 * 128 + 2 * 4 * 20 * 128), 1),
        ];
        assert_eq!(found, want);
    }
}
