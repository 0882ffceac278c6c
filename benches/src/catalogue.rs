//! The products that are timed on the host, as data.

use std::fmt;

use trike_bench::{Product, Shape, Zeros};
use trike_cpu::{Cost, Isa};

use crate::kernel::{BLOCKS, EVERY, Kernel, LAYER, SPARSE};

/// A matrix, and what is timed with it.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Rows and columns.
    pub shape: Shape,
    /// Its zeros; blocks are of 32 by 32 weights.
    pub zeros: Zeros,
    /// Tokens of each problem: 1 is decode, more is prefill.
    pub tokens: &'static [usize],
    /// Whether one token finds the weights in memory, as in a model, or in the cache that the last call filled.
    pub streamed: bool,
    /// The kernels.
    pub kernels: &'static [Kernel],
    /// Whether dense rivals are timed too; they do not care how many weights are zero.
    pub rivals: bool,
}

/// Everything that is timed: the matrices of a decoder with 2 billion weights, a square, the square with 95 and 99 % zeros
/// and with 50 and 90 % of its blocks zero, and one without a round number.
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
    Case { kernels: EVERY, ..STREAMED },
    Case { tokens: &[1], zeros: Zeros::Random(0.95), kernels: SPARSE, rivals: false, ..STREAMED },
    Case { tokens: &[1], zeros: Zeros::Random(0.99), kernels: SPARSE, rivals: false, ..STREAMED },
    Case { tokens: &[1], zeros: Zeros::InBlocks(0.5), kernels: BLOCKS, rivals: false, ..STREAMED },
    Case { zeros: Zeros::InBlocks(0.9), kernels: BLOCKS, rivals: false, ..STREAMED },
    Case { shape: Shape::UGLY, streamed: false, ..STREAMED },
];

/// The usual square, from memory.
const STREAMED: Case = Case {
    shape: Shape::SQUARE,
    zeros: Zeros::Trained,
    tokens: &[1, 128],
    streamed: true,
    kernels: LAYER,
    rivals: true,
};

/// Multiply-adds beyond which the portable kernels are left out: they are the specification, not a rival, and one pass
/// would take longer than all others together.
pub const PORTABLE_MACS: u64 = 1 << 27;

/// Bytes of weights that take turns when they must come from memory: as many as the bandwidth probe reads, and far
/// beyond a last-level cache.
pub(crate) const STREAM_BYTES: usize = 256 << 20;

impl Case {
    /// How reports call it: the shape and its zeros.
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
    /// The weights.
    pub case: Case,
    /// Rows of the activations.
    pub tokens: usize,
}

impl Problem {
    fn product(&self) -> Product {
        Product { shape: self.case.shape, zeros: self.case.zeros, tokens: self.tokens }
    }

    /// Multiply-adds and compulsory bytes with weights that take `weight_bytes`; see [`Product::cost`].
    #[must_use]
    pub fn cost(&self, weight_bytes: usize) -> Cost {
        self.product().cost(weight_bytes)
    }

    /// Whether an instruction set is asked to do it; see [`PORTABLE_MACS`].
    #[must_use]
    pub fn is_for(&self, isa: Isa) -> bool {
        isa.name() != "scalar" || self.cost(0).macs <= PORTABLE_MACS
    }

    /// How many equal matrices take turns, so that each call finds its weights where the problem says they are.
    ///
    /// Prefill uses a weight many times and needs one.
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
