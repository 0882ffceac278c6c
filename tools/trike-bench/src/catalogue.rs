//! Benchmark problems, as data.
//!
//! Names omit the defaults: the sparsity of trained models, the heads of the 2b model, one sequence.

use std::fmt;

use trike_core::{ActivationPrecision, AttentionSpec, Cost, LinearProblem};
use trike_testkit::Rng;

/// A weight matrix, `rows x cols` (out x in).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Name in reports.
    pub name: &'static str,
    /// Number of outputs.
    pub rows: usize,
    /// Number of inputs.
    pub cols: usize,
}

impl Shape {
    /// Query or output projection of the 2b model.
    pub const ATTENTION_2B: Self = Self::new("attention-2b", 2560, 2560);
    /// Gate or up projection of the 2b model.
    pub const UP_2B: Self = Self::new("up-2b", 6912, 2560);
    /// Gate and up projection of the 2b model in one matrix.
    pub const GATE_UP_2B: Self = Self::new("gate-up-2b", 13_824, 2560);
    /// Down projection of the 2b model, with long rows.
    pub const DOWN_2B: Self = Self::new("down-2b", 2560, 6912);
    /// Square matrix, as commonly benchmarked.
    pub const SQUARE: Self = Self::new("square", 4096, 4096);
    /// Down projection of Llama 3 8B.
    pub const DOWN_8B: Self = Self::new("down-8b", 4096, 14_336);
    /// Down projection of Llama 3 70B.
    pub const DOWN_70B: Self = Self::new("down-70b", 8192, 28_672);
    /// Not a multiple of any vector width or block size.
    pub const UGLY: Self = Self::new("ugly", 257, 1001);
    /// Small enough for a software device.
    pub const TINY: Self = Self::new("tiny", 48, 384);

    const fn new(name: &'static str, rows: usize, cols: usize) -> Self {
        Self { name, rows, cols }
    }
}

/// Distribution of zeros among the weights of a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Zeros {
    /// As many as in trained models (about 40 %), at random positions.
    Trained,
    /// This fraction, at random positions.
    Random(f32),
    /// This fraction of the blocks is all zero; the other blocks are as in [`Zeros::Trained`].
    InBlocks(f32),
}

/// Approximate fraction of nonzero weights in trained models.
const TRAINED: f32 = 0.6;

impl Zeros {
    /// Random trits, row-major; blocks have `block` rows and columns.
    ///
    /// ```
    /// use trike_bench::{Shape, Zeros};
    /// use trike_testkit::Rng;
    ///
    /// let trits = Zeros::InBlocks(0.9).trits(Shape::SQUARE, (32, 32), &mut Rng::new(1));
    /// let blocks = trits.chunks(32).filter(|block| block.iter().all(|trit| *trit == 0)).count();
    /// assert!((0.85..0.95).contains(&(32.0 * blocks as f64 / trits.len() as f64)));
    /// ```
    #[must_use]
    pub fn trits(self, shape: Shape, block: (usize, usize), rng: &mut Rng) -> Vec<i8> {
        let Shape { rows, cols, .. } = shape;
        let share = match self {
            Self::Random(share) => return rng.trits(rows * cols, 1.0 - share),
            Self::Trained => 0.0,
            Self::InBlocks(share) => share,
        };
        let mut trits = rng.trits(rows * cols, TRAINED);
        if share > 0.0 {
            let across = cols.div_ceil(block.1);
            let gone: Vec<bool> =
                (0..rows.div_ceil(block.0) * across).map(|_| rng.f32_unit() < share).collect();
            for (row, trits) in trits.chunks_exact_mut(cols).enumerate() {
                let blocks = trits.chunks_mut(block.1).zip(&gone[row / block.0 * across..]);
                blocks.filter(|(_, gone)| **gone).for_each(|(block, _)| block.fill(0));
            }
        }
        trits
    }
}

impl fmt::Display for Zeros {
    /// Suffix of the shape's name: empty, `-95` or `-blocks-50`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trained => Ok(()),
            Self::Random(share) => write!(f, "-{:.0}", 100.0 * share),
            Self::InBlocks(share) => write!(f, "-blocks-{:.0}", 100.0 * share),
        }
    }
}

/// One call: `tokens x cols` activations times a weight matrix. Displayed as `shape[zeros] m=tokens`.
///
/// ```
/// use trike_bench::{Product, Shape, Zeros};
///
/// let product = Product { shape: Shape::SQUARE, zeros: Zeros::Random(0.95), tokens: 1 };
/// assert_eq!(product.to_string(), "square-95 m=1");
/// assert_eq!(Product { zeros: Zeros::Trained, ..product }.to_string(), "square m=1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// Shape of the weight matrix.
    pub shape: Shape,
    /// Its zeros.
    pub zeros: Zeros,
    /// Rows of the activations: 1 for decode, more for prefill.
    pub tokens: usize,
}

impl Product {
    /// Multiply-adds and compulsory memory traffic in bytes, with weights of `weight_bytes`, and activations and outputs
    /// in f32. A weight counts as one multiply-add regardless of its number of planes, so that rates of different weight
    /// formats are comparable.
    ///
    /// ```
    /// use trike_bench::{Product, Shape, Zeros};
    ///
    /// let ugly = Product { shape: Shape::UGLY, zeros: Zeros::Trained, tokens: 1 };
    /// let cost = ugly.cost(257 * 1001 * 4);
    /// assert_eq!((cost.macs, cost.bytes), (257_257, 4 * (257_257 + 257 + 1001)));
    /// ```
    #[must_use]
    pub fn cost(&self, weight_bytes: usize) -> Cost {
        let Shape { rows, cols, .. } = self.shape;
        let precision = ActivationPrecision::F32;
        LinearProblem { tokens: self.tokens, rows, cols, depth: 1, weight_bytes, precision }.cost()
    }

    /// [`cost`](Self::cost) with weights, activations and outputs in f16.
    #[must_use]
    pub fn cost_in_halves(&self) -> Cost {
        let numbers = self.cost(4 * self.shape.rows * self.shape.cols);
        Cost { bytes: numbers.bytes / 2, ..numbers }
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{} m={}", self.shape.name, self.zeros, self.tokens)
    }
}

/// Attention heads of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Suffix of `attention` in names.
    pub suffix: &'static str,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, each shared by `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
}

impl Heads {
    /// The 2b model.
    pub const B2: Self = Self { suffix: "", heads: 20, kv_heads: 5, head_dim: 128 };
    /// Llama 2 7B: multi-head attention, one key head per query head.
    pub const B7: Self = Self { suffix: "-7b", heads: 32, kv_heads: 32, head_dim: 128 };
    /// Llama 3 8B.
    pub const B8: Self = Self { suffix: "-8b", heads: 32, kv_heads: 8, head_dim: 128 };
    /// The 125m model.
    pub const M125: Self = Self { suffix: "-125m", heads: 12, kv_heads: 12, head_dim: 64 };
    /// Small enough for a software device.
    pub const TINY: Self = Self { suffix: "-tiny", heads: 4, kv_heads: 2, head_dim: 32 };

    /// Full causal attention with these heads.
    #[must_use]
    pub fn spec(self) -> AttentionSpec {
        let Self { heads, kv_heads, head_dim, .. } = self;
        AttentionSpec { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), window: None }
    }
}

/// Causal attention of the last `tokens` tokens of each sequence, with keys and values in f16.
///
/// ```
/// use trike_bench::{Attention, Heads};
///
/// let decode = Attention { heads: Heads::B2, tokens: 1, positions: 4096, batch: 1 };
/// assert_eq!(decode.to_string(), "attention decode 4096");
/// // Keys and values of 5 heads in f16, and a query and an output of 20 heads in f32.
/// assert_eq!(decode.cost().bytes, 2 * 2 * 5 * 128 * 4096 + 2 * 4 * 20 * 128);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// The heads.
    pub heads: Heads,
    /// Query tokens per sequence.
    pub tokens: usize,
    /// Positions per sequence, query tokens included.
    pub positions: usize,
    /// Number of sequences.
    pub batch: usize,
}

impl Attention {
    /// Two multiply-adds per element of each key that a query head attends to (one for the key, one for the value); keys,
    /// values, queries and outputs are read or written once.
    #[must_use]
    pub fn cost(&self) -> Cost {
        let Heads { heads, kv_heads, head_dim, .. } = self.heads;
        let spec = self.heads.spec();
        let seen: usize = (self.positions - self.tokens..self.positions).map(|p| spec.span(p).len()).sum();
        let cached = 2 * 2 * kv_heads * head_dim * self.positions;
        let rows = 2 * 4 * heads * head_dim * self.tokens;
        Cost {
            macs: (2 * heads * head_dim * seen * self.batch) as u64,
            bytes: ((cached + rows) * self.batch) as u64,
        }
    }
}

impl fmt::Display for Attention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = if self.tokens == 1 { "decode" } else { "prefill" };
        write!(f, "attention{} {phase} {}", self.heads.suffix, self.positions)?;
        if self.batch > 1 { write!(f, " batch {}", self.batch) } else { Ok(()) }
    }
}

/// A decoder with random ternary weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Name in reports.
    pub name: &'static str,
    /// Number of decoder blocks.
    pub layers: usize,
    /// Hidden size.
    pub hidden: usize,
    /// Intermediate size of the MLP.
    pub intermediate: usize,
    /// Attention heads.
    pub heads: Heads,
    /// Vocabulary size.
    pub vocab: usize,
}

impl Model {
    /// Dimensions of BitNet-b1.58-2B-4T, with the vocabulary of Llama 2.
    pub const B2: Self =
        Self { name: "2b", layers: 30, hidden: 2560, intermediate: 6912, heads: Heads::B2, vocab: 32_000 };
    /// [`Model::B2`] with its own vocabulary, whose head is a third of what a token reads.
    pub const B2_128K: Self = Self { name: "2b-128k", vocab: 128_256, ..Self::B2 };
    /// 125 million weights.
    pub const M125: Self =
        Self { name: "125m", layers: 12, hidden: 768, intermediate: 2048, heads: Heads::M125, vocab: 32_000 };
    /// Small enough for a software device.
    pub const TINY: Self =
        Self { name: "tiny", layers: 2, hidden: 128, intermediate: 256, heads: Heads::TINY, vocab: 64 };

    /// Number of weights in the decoder blocks.
    #[must_use]
    pub fn weights(&self) -> u64 {
        let width = self.heads.head_dim * self.heads.kv_heads;
        let attention = 2 * self.hidden * self.hidden + 2 * self.hidden * width;
        (self.layers * (attention + 3 * self.hidden * self.intermediate)) as u64
    }
}

/// A model, and the numbers of tokens that are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelRun {
    /// The model.
    pub model: Model,
    /// Prompt tokens.
    pub prompt: usize,
    /// Generated tokens.
    pub generate: usize,
}

impl ModelRun {
    /// Problem names: decode, prefill.
    #[must_use]
    pub fn problems(&self) -> [String; 2] {
        let name = self.model.name;
        [format!("{name} decode"), format!("{name} prefill {}", self.prompt)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_products_are_not_counted() {
        let heads = Heads { suffix: "", heads: 2, kv_heads: 1, head_dim: 8 };
        let one = Attention { heads, tokens: 1, positions: 10, batch: 3 };
        assert_eq!(one.cost(), Cost { macs: 2 * 10 * 2 * 8 * 3, bytes: 3 * (4 * 10 * 8 + 8 * 2 * 8) });
        let many = Attention { tokens: 4, positions: 4, ..one };
        assert_eq!(many.cost().operations(), 4 * (1 + 2 + 3 + 4) * 2 * 8 * 3);
    }

    #[test]
    fn names_leave_out_the_usual() {
        let prefill = Attention { heads: Heads::B8, tokens: 2048, positions: 2048, batch: 8 };
        assert_eq!(prefill.to_string(), "attention-8b prefill 2048 batch 8");
        let blocks = Product { shape: Shape::DOWN_8B, zeros: Zeros::InBlocks(0.5), tokens: 1 };
        assert_eq!(blocks.to_string(), "down-8b-blocks-50 m=1");
        let run = ModelRun { model: Model::B2, prompt: 512, generate: 1 };
        assert_eq!(run.problems(), ["2b decode", "2b prefill 512"]);
    }

    #[test]
    fn halves_are_half_of_the_bytes_of_floats() {
        let product = Product { shape: Shape::UGLY, zeros: Zeros::Trained, tokens: 2 };
        let want = Cost { macs: 2 * 257_257, bytes: 2 * (257_257 + 2 * (257 + 1001)) };
        assert_eq!(product.cost_in_halves(), want);
    }

    #[test]
    fn zeros_are_where_they_belong() {
        let shape = Shape { name: "odd", rows: 40, cols: 300 };
        let density = |zeros: Zeros| {
            let trits = zeros.trits(shape, (16, 128), &mut Rng::new(2));
            assert_eq!(trits.len(), 40 * 300);
            trits.iter().filter(|&&t| t != 0).count() as f64 / trits.len() as f64
        };
        assert!((0.57..0.63).contains(&density(Zeros::Trained)));
        assert!((0.04..0.06).contains(&density(Zeros::Random(0.95))));
        assert_eq!(density(Zeros::InBlocks(1.0)), 0.0);
    }
}
