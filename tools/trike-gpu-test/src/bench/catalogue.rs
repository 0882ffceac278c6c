//! Problems timed on a GPU, as data: shapes of the catalogue, with numbers of tokens and weight formats.

use trike_bench::{Attention, Heads, Limit, Model, ModelRun, Product, Shape, Zeros};
use trike_trit::{Granularity, GroupSize};

pub(super) use super::entrant::{HALVES, TRIKE};
use super::operations::{OPERATIONS, Operation, TINY};

/// Weight format of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weights {
    /// Two bits per weight, with row or group scales.
    TwoBit(Granularity),
    /// Five trits per byte, one scale per row.
    Base3,
    /// Two bits per weight without the zero blocks, one scale per row.
    Blocks,
    /// List of nonzeros, one scale per row.
    Sparse,
    /// Three tied two-bit planes, groups of 128.
    ThreePlanes,
    /// Dense FP16, the fallback for layers that are not ternary.
    F16,
}

/// Name of two bits with row scales in records.
pub(super) const ROW_NAME: &str = "two bits, row scales";
/// Name of two bits with one scale per 128 weights in records.
pub(super) const G128_NAME: &str = "two bits, group128 scales";

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

    /// Ceilings of a product in this format.
    pub(super) fn limits(self) -> &'static [Limit] {
        if self == Self::F16 { HALVES } else { &[Limit::Memory, Limit::Int8] }
    }
}

/// A weight matrix, with the formats and numbers of tokens that are timed.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Rows and columns.
    pub shape: Shape,
    /// Its zeros, in blocks of 16 rows x 128 columns.
    pub zeros: Zeros,
    /// Weight formats, each with its numbers of tokens.
    pub weights: Vec<(Weights, &'static [usize])>,
}

impl Case {
    /// The product with this number of tokens.
    pub fn product(&self, tokens: usize) -> Product {
        Product { shape: self.shape, zeros: self.zeros, tokens }
    }

    /// Numbers of tokens of all formats, sorted and without duplicates.
    pub(super) fn tokens(&self) -> Vec<usize> {
        let mut all: Vec<usize> =
            self.weights.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Problems of a run.
#[derive(Clone, Debug)]
pub struct Catalogue {
    /// Products.
    pub cases: Vec<Case>,
    /// Attention.
    pub attention: Vec<Attention>,
    /// Operations without weights.
    pub operations: &'static [Operation],
    /// Whole models.
    pub models: Vec<ModelRun>,
}

/// Two bits with one scale per 128 weights.
pub(super) const G128: Weights = Weights::TwoBit(Granularity::Group(GroupSize::G128));
/// Two bits with row scales.
pub(super) const ROW: Weights = Weights::TwoBit(Granularity::Row);

/// Shapes of the models and of published benchmarks of the rivals.
const SHAPES: &[Shape] =
    &[Shape::ATTENTION_2B, Shape::DOWN_2B, Shape::GATE_UP_2B, Shape::SQUARE, Shape::DOWN_8B, Shape::DOWN_70B];
/// Shape at which the other weight formats are compared.
const COMPARED: Shape = Shape::DOWN_8B;
const TOKENS: &[usize] = &[1, 2, 4, 8, 16, 32, 64, 128, 2048, 8192];

impl Catalogue {
    /// The catalogue for GPUs.
    pub fn full() -> Self {
        let mut cases = Vec::new();
        for &shape in SHAPES {
            let mut weights = vec![(ROW, TOKENS), (G128, TOKENS)];
            if shape == COMPARED {
                weights.extend([Weights::Base3, Weights::ThreePlanes].map(|w| (w, &[1, 16][..])));
                weights.push((Weights::F16, &[1, 16, 8192]));
            }
            cases.push(Case { shape, zeros: Zeros::Trained, weights });
        }
        for share in [0.0, 0.5, 0.9, 0.95, 0.99] {
            let one = |zeros, forms: &[Weights]| Case {
                shape: COMPARED,
                zeros,
                weights: forms.iter().map(|w| (*w, &[1][..])).collect(),
            };
            let listed = if share >= 0.9 { &[ROW, Weights::Sparse][..] } else { &[ROW] };
            cases.push(one(Zeros::Random(share), listed));
            if share > 0.0 {
                cases.push(one(Zeros::InBlocks(share), &[ROW, Weights::Blocks]));
            }
        }
        let mut attention = Vec::new();
        for heads in [Heads::B7, Heads::B8, Heads::B2] {
            for positions in [512, 2048, 4096] {
                for batch in [1, 8] {
                    let prefill = Attention { heads, tokens: positions, positions, batch };
                    attention.extend([prefill, Attention { tokens: 1, ..prefill }]);
                }
            }
        }
        let models = [Model::B2, Model::B2_128K];
        let models = models.map(|model| ModelRun { model, prompt: 2048, generate: 128 }).to_vec();
        Self { cases, attention, operations: OPERATIONS, models }
    }

    /// One small case of each kind, for testing the benchmark itself on a software device.
    pub fn tiny() -> Self {
        let one = |zeros, forms: &[Weights]| Case {
            shape: Shape::TINY,
            zeros,
            weights: forms.iter().map(|w| (*w, &[1][..])).collect(),
        };
        let mut trained = one(Zeros::Trained, &[ROW, Weights::Base3, Weights::ThreePlanes, Weights::F16]);
        trained.weights.push((G128, &[1, 3, 33]));
        let cases = vec![
            trained,
            one(Zeros::Random(0.95), &[Weights::Sparse]),
            one(Zeros::InBlocks(0.5), &[Weights::Blocks]),
        ];
        let prefill = Attention { heads: Heads::TINY, tokens: 40, positions: 40, batch: 2 };
        let attention = vec![prefill, Attention { tokens: 1, ..prefill }];
        let models = vec![ModelRun { model: Model::TINY, prompt: 9, generate: 3 }];
        Self { cases, attention, operations: TINY, models }
    }

    /// All products with their weight formats.
    pub(super) fn products(&self) -> impl Iterator<Item = (Product, Weights)> {
        self.cases.iter().flat_map(|case| {
            let of = move |&(weights, tokens): &(Weights, &'static [usize])| {
                tokens.iter().map(move |&tokens| (case.product(tokens), weights))
            };
            case.weights.iter().flat_map(of)
        })
    }

    /// All pairs of problem and kernel that a record should have, without rivals.
    pub fn names(&self) -> Vec<(String, String)> {
        let products = self.products().map(|(product, weights)| (product.to_string(), weights.name()));
        let attention = self.attention.iter().map(|a| (a.to_string(), TRIKE.to_owned()));
        let operations = self.operations.iter().map(|o| (o.to_string(), TRIKE.to_owned()));
        let models = self.models.iter().flat_map(ModelRun::problems).map(|p| (p, TRIKE.to_owned()));
        products.chain(attention).chain(operations).chain(models).collect()
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
        for problem in ["down-8b m=1", "gate-up-2b m=1", "down-8b m=16", "down-8b m=8192", "2b decode"] {
            assert!(names.iter().any(|(name, _)| name == problem), "{problem}");
        }
        assert_eq!((ROW.name().as_str(), G128.name().as_str()), (ROW_NAME, G128_NAME));
    }

    #[test]
    fn a_case_has_the_tokens_of_all_its_forms() {
        let case = &Catalogue::tiny().cases[0];
        assert_eq!(case.tokens(), [1, 3, 33]);
        assert_eq!(case.product(3).to_string(), "tiny m=3");
    }
}
