//! What is timed, as data.

use trike_trit::{Granularity, GroupSize};

/// How weights of a product are held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weights {
    /// Two bits, with scales of rows or groups.
    TwoBit(Granularity),
    /// Five trits a byte, a scale for each row.
    Base3,
    /// Two bits, blocks of zeros left out, a scale for each row.
    Blocks,
    /// The list of nonzeros, a scale for each row.
    Sparse,
    /// Three tied planes of two bits, groups of 128.
    ThreePlanes,
    /// Halves: what layers that fall back have.
    F16,
}

impl Weights {
    /// Name in reports.
    pub fn name(self) -> String {
        match self {
            Self::TwoBit(granularity) => format!("two bits, {granularity} scales"),
            Self::Base3 => "base 3".to_owned(),
            Self::Blocks => "two bits without zero blocks".to_owned(),
            Self::Sparse => "list of nonzeros".to_owned(),
            Self::ThreePlanes => "three tied planes".to_owned(),
            Self::F16 => "trike f16".to_owned(),
        }
    }
}

/// Zeros among the weights of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Zeros {
    /// As many as trained models have, 40 %.
    Usual,
    /// This share, anywhere.
    Random(f32),
    /// This share of blocks of 16 rows by 128 columns, and the usual share of the others.
    InBlocks(f32),
}

/// A product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Tokens.
    pub tokens: usize,
    /// Zeros.
    pub zeros: Zeros,
}

impl Product {
    /// The problem's name in records: `4096x14336 m=1`, `4096x14336 95 % zeros m=1`.
    pub fn name(&self) -> String {
        let Self { rows, cols, tokens, zeros } = *self;
        let zeros = match zeros {
            Zeros::Usual => String::new(),
            Zeros::Random(share) => format!(" {:.0} % zeros", 100.0 * share),
            Zeros::InBlocks(share) => format!(" {:.0} % of blocks zero", 100.0 * share),
        };
        format!("{rows}x{cols}{zeros} m={tokens}")
    }
}

/// Attention over halves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_dim: usize,
    /// Tokens of each sequence.
    pub tokens: usize,
    /// The position of the first of them.
    pub first: usize,
    /// Sequences, one launch each.
    pub batch: usize,
}

impl Attention {
    /// The problem's name in records.
    pub fn name(&self) -> String {
        let Self { heads, kv_heads, head_dim, tokens, first, batch } = *self;
        if tokens == 1 {
            format!("attention {heads}/{kv_heads}x{head_dim} decode at {first} batch {batch}")
        } else {
            format!("attention {heads}/{kv_heads}x{head_dim} prefill {tokens} batch {batch}")
        }
    }

    /// Multiply-adds of the two products, twice: what is masked is not counted.
    pub fn operations(&self) -> u64 {
        let (first, tokens) = (self.first as u64, self.tokens as u64);
        let pairs = tokens * first + tokens * (tokens + 1) / 2;
        4 * pairs * (self.heads * self.head_dim * self.batch) as u64
    }

    /// Keys, values, queries and outputs, once each.
    pub fn bytes(&self) -> u64 {
        let kept = 2 * 2 * (self.first + self.tokens) * self.kv_heads * self.head_dim;
        let rows = 2 * 4 * self.tokens * self.heads * self.head_dim;
        (self.batch * (kept + rows)) as u64
    }
}

/// A model of random trits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name: `2b` has the sizes of BitNet-b1.58-2B-4T.
    pub name: &'static str,
    /// Blocks.
    pub layers: usize,
    /// Width.
    pub hidden: usize,
    /// Width between gate and down projection.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Tokens.
    pub vocab: usize,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens generated one by one.
    pub generate: usize,
}

/// Everything that one run times.
#[derive(Clone, Debug)]
pub struct Catalogue {
    /// Products, with the forms of weights.
    pub products: Vec<(Product, Weights)>,
    /// Attention.
    pub attention: Vec<Attention>,
    /// Whole models.
    pub models: Vec<Model>,
}

const G128: Weights = Weights::TwoBit(Granularity::Group(GroupSize::G128));
const ROW: Weights = Weights::TwoBit(Granularity::Row);

/// Rows and columns: those of the models and of the rivals' tables.
const SHAPES: &[(usize, usize)] =
    &[(2560, 2560), (2560, 6912), (13824, 2560), (4096, 4096), (4096, 14336), (8192, 28672)];
/// Tokens.
const TOKENS: &[usize] = &[1, 2, 4, 8, 16, 32, 64, 128, 2048, 8192];
/// Where the other forms of weights are compared.
const COMPARED: (usize, usize) = (4096, 14336);

/// The product of a shape.
const fn product((rows, cols): (usize, usize), tokens: usize, zeros: Zeros) -> Product {
    Product { rows, cols, tokens, zeros }
}

impl Catalogue {
    /// What a GPU is timed with.
    pub fn full() -> Self {
        let mut products = Vec::new();
        for &shape in SHAPES {
            for weights in [ROW, G128] {
                products.extend(TOKENS.iter().map(|&m| (product(shape, m, Zeros::Usual), weights)));
            }
        }
        for tokens in [1, 16] {
            let usual = product(COMPARED, tokens, Zeros::Usual);
            products.extend([Weights::Base3, Weights::ThreePlanes, Weights::F16].map(|w| (usual, w)));
        }
        for share in [0.0, 0.5, 0.9, 0.95, 0.99] {
            let random = product(COMPARED, 1, Zeros::Random(share));
            products.push((random, ROW));
            if share >= 0.9 {
                products.push((random, Weights::Sparse));
            }
            if share > 0.0 {
                products.push((product(COMPARED, 1, Zeros::InBlocks(share)), Weights::Blocks));
            }
        }
        let mut attention = Vec::new();
        for (heads, kv_heads, head_dim) in [(32, 32, 128), (32, 8, 128), (20, 5, 128)] {
            for length in [512, 2048, 4096] {
                for batch in [1, 8] {
                    let prefill = Attention { heads, kv_heads, head_dim, tokens: length, first: 0, batch };
                    attention.extend([prefill, Attention { tokens: 1, first: length - 1, ..prefill }]);
                }
            }
        }
        let b2 = Model {
            name: "2b",
            layers: 30,
            hidden: 2560,
            intermediate: 6912,
            heads: 20,
            kv_heads: 5,
            vocab: 32_000,
            prompt: 2048,
            generate: 128,
        };
        Self { products, attention, models: vec![b2] }
    }

    /// A case of each kind, small enough for a driver that computes on the host: for the tests of the timing itself.
    pub fn tiny() -> Self {
        let shape = (48, 384);
        let mut products: Vec<_> =
            [1, 3, 33].into_iter().map(|m| (product(shape, m, Zeros::Usual), G128)).collect();
        let all = [ROW, Weights::Base3, Weights::ThreePlanes, Weights::F16];
        products.extend(all.map(|w| (product(shape, 1, Zeros::Usual), w)));
        products.push((product(shape, 1, Zeros::Random(0.95)), Weights::Sparse));
        products.push((product(shape, 1, Zeros::InBlocks(0.5)), Weights::Blocks));
        let prefill = Attention { heads: 4, kv_heads: 2, head_dim: 32, tokens: 40, first: 0, batch: 2 };
        let attention = vec![prefill, Attention { tokens: 1, first: 39, ..prefill }];
        let model = Model {
            name: "tiny",
            layers: 2,
            hidden: 128,
            intermediate: 256,
            heads: 4,
            kv_heads: 2,
            vocab: 64,
            prompt: 9,
            generate: 3,
        };
        Self { products, attention, models: vec![model] }
    }

    /// Every pair of problem and kernel that a record should have, rivals not among them.
    pub fn names(&self) -> Vec<(String, String)> {
        let products = self.products.iter().map(|(p, w)| (p.name(), w.name()));
        let attention = self.attention.iter().map(|a| (a.name(), "trike".to_owned()));
        let models = self.models.iter().flat_map(Model::problems).map(|p| (p, "trike".to_owned()));
        products.chain(attention).chain(models).collect()
    }
}

impl Model {
    /// The names of its problems: decode, prefill.
    pub fn problems(&self) -> [String; 2] {
        [format!("model {} decode", self.name), format!("model {} prefill {}", self.name, self.prompt)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_told_apart_and_the_bars_of_the_project_are_there() {
        let names = Catalogue::full().names();
        let unique: HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        for problem in
            ["4096x14336 m=1", "13824x2560 m=1", "4096x14336 m=16", "4096x14336 m=8192", "model 2b decode"]
        {
            assert!(names.iter().any(|(name, _)| name == problem), "{problem}");
        }
    }

    #[test]
    fn masked_products_are_not_counted() {
        let one = Attention { heads: 2, kv_heads: 1, head_dim: 8, tokens: 1, first: 9, batch: 3 };
        assert_eq!(one.operations(), 4 * 10 * 2 * 8 * 3);
        assert_eq!(one.bytes(), 3 * (4 * 10 * 8 + 8 * 2 * 8));
        let many = Attention { tokens: 4, first: 0, ..one };
        assert_eq!(many.operations(), 4 * (1 + 2 + 3 + 4) * 2 * 8 * 3);
    }
}
