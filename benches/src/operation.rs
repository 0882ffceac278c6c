//! Operations without weights, as data: ternary vector operations, and attention.

use trike_bench::{Attention, Heads, Limit};
use trike_cpu::{Cost, Isa};

use crate::catalogue::{PORTABLE_MACS, STREAM_BYTES};

/// A kernel without weights, at one problem size.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Name of the kernel in reports.
    pub kernel: &'static str,
    /// The computation and its size.
    pub work: Work,
}

/// Computation and size of an [`Operation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Dot product of two trit vectors, which stay in the cache.
    Dot {
        /// Elements per vector.
        trits: usize,
    },
    /// Dot products of one trit vector with all rows of a trit matrix, which is read from memory.
    Scores {
        /// Rows of the matrix.
        rows: usize,
        /// Elements of the vector and of a row.
        trits: usize,
    },
    /// Signs of the sum of many trit vectors.
    Bundle {
        /// Number of vectors.
        vectors: usize,
        /// Elements per vector.
        trits: usize,
    },
    /// Causal attention over a KV cache, which is read from memory for single tokens.
    Attention(Attention),
}

/// Heads of the 2B decoder: four query heads per key head.
pub(crate) const HEADS: Heads = Heads::B2;

/// All operations: hypervectors of typical length, a trit matrix, then attention in decode and prefill.
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

/// Bytes of the two bit planes of a vector.
const fn plane_bytes(trits: usize) -> usize {
    2 * size_of::<u64>() * trits.div_ceil(64)
}

impl Operation {
    /// Name of the problem in reports.
    #[must_use]
    pub fn problem(&self) -> String {
        match self.work {
            Work::Dot { trits } => format!("trits dot {trits}"),
            Work::Scores { rows, trits } => format!("trits {rows} x {trits} m=1"),
            Work::Bundle { vectors, trits } => format!("trits bundle {vectors} x {trits}"),
            Work::Attention(attention) => attention.to_string(),
        }
    }

    /// Work of one call: one multiply-add per product of two trits, or per trit added to a bundle; for attention see
    /// [`Attention::cost`].
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

    /// The ceilings that can limit it.
    #[must_use]
    pub fn limits(&self) -> &'static [Limit] {
        if self.is_streamed() { &[Limit::Memory] } else { &[Limit::Int8] }
    }

    /// Whether it is run with this instruction set; see [`PORTABLE_MACS`].
    #[must_use]
    pub fn is_for(&self, isa: Isa) -> bool {
        isa.name() != "scalar" || self.cost().macs <= PORTABLE_MACS
    }

    /// Number of copies of the matrix or KV cache that calls cycle through, so that each call reads from memory.
    pub(crate) fn copies(&self) -> usize {
        if self.is_streamed() { STREAM_BYTES.div_ceil(self.cost().bytes as usize) } else { 1 }
    }

    fn is_streamed(&self) -> bool {
        matches!(self.work, Work::Scores { .. } | Work::Attention(Attention { tokens: 1, .. }))
    }

    /// Whether the kernel is multithreaded.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.work, Work::Scores { .. } | Work::Attention(_))
    }

    /// Query tokens of attention, else 1; passed to [`Plan::turns`](crate::Plan::turns).
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
