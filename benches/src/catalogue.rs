//! The problems, as data.

use std::fmt;

use trike_cpu::{ActivationPrecision, Cost, Isa, LinearProblem};

use crate::kernel::{BLOCKS, EVERY, Kernel, LAYER, SPARSE};

/// A weight matrix, `rows x cols` (out x in), and the numbers of tokens that it is timed with.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How reports call it.
    pub name: &'static str,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Tokens of each problem: 1 is decode, more is prefill.
    pub tokens: &'static [usize],
    /// Whether one token finds the weights in memory, as in a model, or in the cache that the last call filled.
    pub streamed: bool,
    /// Share of the weights that are not zero, outside of [`zero_blocks`](Self::zero_blocks).
    pub density: f32,
    /// Share of the blocks of 32 by 32 weights that are zero, about, at random places.
    pub zero_blocks: f32,
    /// What is timed.
    pub kernels: &'static [Kernel],
    /// Whether dense rivals are timed too; they do not care how many weights are zero.
    pub rivals: bool,
}

/// Share of nonzero weights in trained models, about.
const TRAINED: f32 = 0.6;

/// Everything that is timed: the matrices of a decoder with 2 billion weights, a square, the square with 95 and 99 % zeros
/// and with 50 and 90 % of its blocks zero, and one without a round number.
///
/// ```
/// use trike_benches::SHAPES;
///
/// let down = SHAPES.iter().find(|shape| shape.name == "down-2b").expect("in the catalogue");
/// assert_eq!((down.rows, down.cols), (2560, 6912));
/// assert_eq!(down.problems().map(|p| p.to_string()).collect::<Vec<_>>(), ["down-2b m=1", "down-2b m=128"]);
/// ```
pub const SHAPES: [Shape; 9] = [
    Shape { name: "attention-2b", rows: 2560, cols: 2560, tokens: &[1, 128, 512], ..STREAMED },
    Shape { name: "up-2b", rows: 6912, cols: 2560, tokens: &[1, 128], ..STREAMED },
    Shape { name: "down-2b", rows: 2560, cols: 6912, tokens: &[1, 128], ..STREAMED },
    Shape { name: "square", kernels: EVERY, ..STREAMED },
    Shape { name: "square-95", tokens: &[1], density: 0.05, kernels: SPARSE, rivals: false, ..STREAMED },
    Shape { name: "square-99", tokens: &[1], density: 0.01, kernels: SPARSE, rivals: false, ..STREAMED },
    Shape {
        name: "square-blocks-50",
        tokens: &[1],
        zero_blocks: 0.5,
        kernels: BLOCKS,
        rivals: false,
        ..STREAMED
    },
    Shape { name: "square-blocks-90", zero_blocks: 0.9, kernels: BLOCKS, rivals: false, ..STREAMED },
    Shape { name: "ugly", rows: 257, cols: 1001, streamed: false, ..STREAMED },
];

/// The usual square, from memory.
const STREAMED: Shape = Shape {
    name: "square",
    rows: 4096,
    cols: 4096,
    tokens: &[1, 128],
    streamed: true,
    density: TRAINED,
    zero_blocks: 0.0,
    kernels: LAYER,
    rivals: true,
};

/// Multiply-adds beyond which the portable kernels are left out: they are the specification, not a rival, and one pass
/// would take longer than all others together.
pub const PORTABLE_MACS: u64 = 1 << 27;

/// Bytes of weights that take turns when they must come from memory: as many as the bandwidth probe reads, and far
/// beyond a last-level cache.
pub(crate) const STREAM_BYTES: usize = 256 << 20;

impl Shape {
    /// The problems of this shape, in the order of [`Shape::tokens`].
    pub fn problems(self) -> impl Iterator<Item = Problem> {
        self.tokens.iter().map(move |&tokens| Problem { shape: self, tokens })
    }
}

/// One call: `tokens x cols` activations times a [`Shape`]. Its name is `shape m=tokens`.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    /// The weights.
    pub shape: Shape,
    /// Rows of the activations.
    pub tokens: usize,
}

impl Problem {
    /// Multiply-adds and compulsory bytes with weights that take `weight_bytes`. A weight counts one multiply-add,
    /// however many planes it has: the rate says how fast the product is, not how it was made.
    ///
    /// ```
    /// use trike_benches::SHAPES;
    ///
    /// let ugly = SHAPES[8].problems().next().expect("decode");
    /// let cost = ugly.cost(257 * 1001 * 4);
    /// assert_eq!((cost.macs, cost.bytes), (257_257, 4 * (257_257 + 257 + 1001)));
    /// ```
    #[must_use]
    pub fn cost(&self, weight_bytes: usize) -> Cost {
        let Shape { rows, cols, .. } = self.shape;
        let precision = ActivationPrecision::F32;
        LinearProblem { tokens: self.tokens, rows, cols, depth: 1, weight_bytes, precision }.cost()
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
        if self.shape.streamed && self.tokens == 1 { STREAM_BYTES.div_ceil(weight_bytes.max(1)) } else { 1 }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} m={}", self.shape.name, self.tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_has_decode_prefill_and_an_ugly_shape() {
        let all: Vec<Problem> = SHAPES.into_iter().flat_map(Shape::problems).collect();
        assert!(SHAPES.iter().all(|shape| shape.tokens.first() == Some(&1)), "decode at every shape");
        assert!(all.iter().any(|p| p.tokens == 512));
        assert!(SHAPES.iter().any(|shape| shape.rows % 4 != 0 && shape.cols % 32 != 0));
        let mut names: Vec<String> = all.iter().map(ToString::to_string).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len(), "names are unique");
    }

    #[test]
    fn streamed_weights_fill_the_buffer_and_no_more_than_one_over() {
        let decode = Problem { shape: SHAPES[0], tokens: 1 };
        for bytes in [1 << 20, (1 << 20) + 1, 300 << 20] {
            let copies = decode.copies(bytes);
            assert!(copies * bytes >= STREAM_BYTES && (copies - 1) * bytes < STREAM_BYTES);
        }
        assert_eq!(Problem { shape: SHAPES[0], tokens: 128 }.copies(1 << 20), 1);
        assert_eq!(Problem { shape: SHAPES[8], tokens: 1 }.copies(1 << 20), 1);
    }

    #[test]
    fn only_the_portable_kernels_have_a_limit() {
        let large = Problem { shape: SHAPES[0], tokens: 512 };
        for isa in Isa::available() {
            assert_eq!(large.is_for(isa), isa.name() != "scalar");
            assert!(Problem { shape: SHAPES[8], tokens: 128 }.is_for(isa));
        }
    }
}
