//! Matrix products timed on the host, as data.

use std::fmt;

use trike_bench::{Product, Shape, Zeros};
use trike_cpu::{Cost, Isa};

use crate::kernel::{BLOCKS, EVERY, Kernel, LAYER, SPARSE};

/// A weight matrix, with the kernels and numbers of tokens that are timed.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Rows and columns.
    pub shape: Shape,
    /// Its zeros, in blocks of 32 x 32 weights.
    pub zeros: Zeros,
    /// Tokens of each problem: 1 for decode, more for prefill.
    pub tokens: &'static [usize],
    /// Whether decode reads the weights from memory, as in a model; otherwise they stay in the cache between calls.
    pub streamed: bool,
    /// Kernels to time.
    pub kernels: &'static [Kernel],
    /// Whether dense rivals are timed too; their speed does not depend on the number of zeros.
    pub rivals: bool,
}

/// All cases: the matrices of a 2B decoder, a square, the square with 95 and 99 % zeros and with 50 and 90 % zero blocks,
/// and a small matrix with odd dimensions.
///
/// ```
/// use trike_benches::CASES;
///
/// let down = CASES.iter().find(|case| case.name() == "down-2b").expect("in the catalogue");
/// assert_eq!((down.shape.rows, down.shape.cols), (2560, 6912));
/// assert_eq!(down.problems().map(|p| p.to_string()).collect::<Vec<_>>(), ["down-2b m=1", "down-2b m=128"]);
/// ```
pub const CASES: [Case; 9] = [
    Case { shape: Shape::ATTENTION_2B, tokens: &[1, 128, 512], ..STREAMED },
    Case { shape: Shape::UP_2B, ..STREAMED },
    Case { shape: Shape::DOWN_2B, ..STREAMED },
    Case { tokens: &[1, 16, 128], kernels: EVERY, ..STREAMED },
    Case { tokens: &[1], zeros: Zeros::Random(0.95), kernels: SPARSE, rivals: false, ..STREAMED },
    Case { tokens: &[1], zeros: Zeros::Random(0.99), kernels: SPARSE, rivals: false, ..STREAMED },
    Case { tokens: &[1], zeros: Zeros::InBlocks(0.5), kernels: BLOCKS, rivals: false, ..STREAMED },
    Case { zeros: Zeros::InBlocks(0.9), kernels: BLOCKS, rivals: false, ..STREAMED },
    Case { shape: Shape::UGLY, streamed: false, ..STREAMED },
];

/// The square, read from memory.
const STREAMED: Case = Case {
    shape: Shape::SQUARE,
    zeros: Zeros::Trained,
    tokens: &[1, 128],
    streamed: true,
    kernels: LAYER,
    rivals: true,
};

/// Maximum number of multiply-adds for the portable kernels. They are a reference implementation, and one pass over larger
/// problems would take longer than all other kernels together.
pub const PORTABLE_MACS: u64 = 1 << 27;

/// Total bytes of the copies of the weights that calls cycle through, so that each call reads from memory: as many as the
/// bandwidth probe reads, and far more than a last-level cache.
pub(crate) const STREAM_BYTES: usize = 256 << 20;

impl Case {
    /// Name in reports: the shape and its zeros.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}{}", self.shape.name, self.zeros)
    }

    /// The problems, in the order of [`Case::tokens`].
    pub fn problems(self) -> impl Iterator<Item = Problem> {
        self.tokens.iter().map(move |&tokens| Problem { case: self, tokens })
    }
}

/// One call: `tokens x cols` activations times the matrix of a [`Case`].
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    /// The weight matrix.
    pub case: Case,
    /// Rows of the activations.
    pub tokens: usize,
}

impl Problem {
    fn product(&self) -> Product {
        Product { shape: self.case.shape, zeros: self.case.zeros, tokens: self.tokens }
    }

    /// Multiply-adds and compulsory memory traffic with weights of `weight_bytes`; see [`Product::cost`].
    #[must_use]
    pub fn cost(&self, weight_bytes: usize) -> Cost {
        self.product().cost(weight_bytes)
    }

    /// Whether the problem is timed with this instruction set; see [`PORTABLE_MACS`].
    #[must_use]
    pub fn is_for(&self, isa: Isa) -> bool {
        isa.name() != "scalar" || self.cost(0).macs <= PORTABLE_MACS
    }

    /// Number of copies of the matrix that calls cycle through, so that streamed weights are read from memory.
    ///
    /// Prefill reuses each weight many times and needs one copy.
    #[must_use]
    pub fn copies(&self, weight_bytes: usize) -> usize {
        if self.case.streamed && self.tokens == 1 { STREAM_BYTES.div_ceil(weight_bytes.max(1)) } else { 1 }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.product().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_has_decode_prefill_and_an_ugly_shape() {
        let all: Vec<Problem> = CASES.into_iter().flat_map(Case::problems).collect();
        assert!(CASES.iter().all(|case| case.tokens.first() == Some(&1)), "decode at every shape");
        assert!(all.iter().any(|p| p.tokens == 512));
        assert!(CASES.iter().any(|case| case.shape.rows % 4 != 0 && case.shape.cols % 32 != 0));
        let mut names: Vec<String> = all.iter().map(ToString::to_string).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len(), "names are unique");
    }

    #[test]
    fn streamed_weights_fill_the_buffer_and_no_more_than_one_over() {
        let decode = Problem { case: CASES[0], tokens: 1 };
        for bytes in [1 << 20, (1 << 20) + 1, 300 << 20] {
            let copies = decode.copies(bytes);
            assert!(copies * bytes >= STREAM_BYTES && (copies - 1) * bytes < STREAM_BYTES);
        }
        assert_eq!(Problem { case: CASES[0], tokens: 128 }.copies(1 << 20), 1);
        assert_eq!(Problem { case: CASES[8], tokens: 1 }.copies(1 << 20), 1);
    }

    #[test]
    fn only_the_portable_kernels_have_a_limit() {
        let large = Problem { case: CASES[0], tokens: 512 };
        for isa in Isa::available() {
            assert_eq!(large.is_for(isa), isa.name() != "scalar");
            assert!(Problem { case: CASES[8], tokens: 128 }.is_for(isa));
        }
    }
}
