//! Predicted times on an H200, written before any measurement on one.
//!
//! A prediction is the launch overhead plus the larger of memory time and arithmetic time. Device rates are those measured by
//! other projects; the fraction of them that a kernel reaches is estimated from its bytes in flight. Each estimate is one
//! constant, so that a wrong prediction can be traced to it.

use trike_bench::{Attention, ModelRun, Product, Zeros};

use super::catalogue::{Catalogue, TRIKE, Weights};
use super::operations::Operation;

/// Copy bandwidth, in bytes per second.
const COPY: f64 = 4.3e12;
/// Int8 `mma` operations per second: 63 % of the rate of the asynchronous instructions, which CubeCL lacks.
const INT8: f64 = 1.0e15;
/// FP16 `mma` operations per second.
const F16: f64 = 0.5e15;
/// Integer instructions per second: 132 multiprocessors of 64 lanes at 1.755 GHz.
const INTEGER: f64 = 132.0 * 64.0 * 1.755e9;
/// Bandwidth of the last-level cache, in bytes per second.
const CACHE: f64 = 5.5e12;
/// Number of multiprocessors.
const PROCESSORS: f64 = 132.0;
/// Time between the end of a kernel and full throughput of the next one, in seconds.
const LAUNCH: f64 = 1.5e-6;
/// Host time per launch, in seconds: planning, locking, enqueueing. It limits small kernels.
const HOST: f64 = 7.0e-6;

/// Host time per recorded step, in seconds: two small copies, the graph launch, a blocking read-back.
const STEP: f64 = 70.0e-6;

/// Fraction of the copy bandwidth reached by weight reads with one or two tokens.
const DECODE: f64 = 0.75;
/// The same for more tokens, with matrix instructions and fewer subgroups.
const FEW: f64 = 0.70;
/// Fraction of the matrix rate reached with many tokens.
const MANY: f64 = 0.60;
/// Fraction of the copy bandwidth reached with a list of nonzeros, which gathers activations one by one.
const LIST: f64 = 0.35;
/// Fraction of the copy bandwidth reached with FP16 weights, which are converted by bit operations.
const HALVES: f64 = 0.60;
/// Fraction of the matrix rate reached by attention in prefill.
const ATTEND: f64 = 0.34;
/// Fraction of the copy bandwidth reached by attention of one token.
const ATTEND_ONE: f64 = 0.45;
/// Operations per second of the portable dense kernel: 30 % of the f32 rate (59 T/s).
const DENSE: f64 = 0.3 * 59.0e12;

/// The bottleneck of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Memory bandwidth.
    Memory,
    /// Bandwidth of the last-level cache.
    Cache,
    /// Integer instructions for unpacking and multiplying.
    Instructions,
    /// Matrix instructions.
    Matrix,
    /// Launch rate of the host.
    Host,
}

impl Bound {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cache => "cache",
            Self::Instructions => "instructions",
            Self::Matrix => "matrix",
            Self::Host => "host",
        }
    }
}

/// A predicted time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Seconds; per token for models.
    pub seconds: f64,
    /// The bottleneck.
    pub bound: Bound,
}

/// The launch overhead plus the largest of the parts.
fn largest(parts: &[(f64, Bound)]) -> Prediction {
    let (seconds, bound) = parts
        .iter()
        .copied()
        .fold((0.0, Bound::Memory), |most, part| if part.0 > most.0 { part } else { most });
    Prediction { seconds: LAUNCH + seconds, bound }
}

/// Utilization of the multiprocessors by this number of equal cubes.
fn balance(cubes: usize) -> f64 {
    let each = cubes as f64 / PROCESSORS;
    each / each.ceil()
}

/// Predicts a matrix product.
pub fn product(product: &Product, weights: Weights) -> Prediction {
    use Bound::{Instructions, Matrix, Memory};
    let (rows, cols) = (product.shape.rows, product.shape.cols);
    let Product { tokens, zeros, .. } = *product;
    let count = (rows * cols) as f64;
    let io = (tokens * (cols + cols / 8 + 4 * rows)) as f64;
    let stored = match (weights, zeros) {
        (Weights::Blocks, Zeros::InBlocks(share)) => 1.0 - f64::from(share),
        (Weights::Sparse, Zeros::Random(share)) => 1.0 - f64::from(share),
        _ => 1.0,
    };
    let (bytes, share) = match weights {
        Weights::TwoBit(granularity) => {
            let scales = 2.0 * (rows * granularity.groups_per_row(cols)) as f64;
            (count / 4.0 + scales, if tokens <= 2 { DECODE } else { FEW })
        }
        Weights::Blocks => (stored * count / 4.0, DECODE),
        Weights::ThreePlanes => (0.75 * count + count / 64.0, if tokens <= 2 { DECODE } else { FEW }),
        Weights::Base3 => (count / 5.0, DECODE),
        Weights::Sparse => (2.0 * stored * count, LIST),
        Weights::F16 => (2.0 * count, HALVES),
    };
    let tiles = rows.div_ceil(16);
    let memory = ((bytes + io) / (COPY * share * balance(tiles)), Memory);
    match weights {
        Weights::F16 if tokens > 8 => largest(&[memory, (2.0 * count * tokens as f64 / DENSE, Instructions)]),
        Weights::F16 | Weights::Sparse => largest(&[memory]),
        // Per weight: two instructions to extract the digit, and per token a quarter of a four-way dot product.
        Weights::Base3 => largest(&[memory, (count * (2.0 + 0.25 * tokens as f64) / INTEGER, Instructions)]),
        _ if tokens <= 2 => {
            let planes = if weights == Weights::ThreePlanes { 3.0 } else { 1.0 };
            let unpack = stored * count * (0.44 * planes + 0.25 * tokens as f64) / (INTEGER * balance(tiles));
            largest(&[memory, (unpack, Instructions)])
        }
        _ if tokens <= 32 => {
            let padded = tokens.next_multiple_of(8) as f64;
            largest(&[memory, (2.0 * count * padded / (INT8 * MANY), Matrix)])
        }
        _ => {
            // Tiles of 128 tokens by 128, 64 or 32 rows (`TernaryProblem::candidates`), one per multiprocessor at a time;
            // each tile reads the activations of all columns.
            let squares = |side: usize| rows.div_ceil(side) * tokens.div_ceil(128);
            let side = [128, 64].into_iter().find(|&side| squares(side) as f64 >= PROCESSORS).unwrap_or(32);
            let waves = (squares(side) as f64 / PROCESSORS).ceil();
            let square = 2.0 * 128.0 * (side * cols) as f64 / (INT8 * MANY / PROCESSORS);
            let activations = (squares(side) * 128 * cols) as f64 / CACHE;
            largest(&[memory, (activations, Bound::Cache), (waves * square, Matrix)])
        }
    }
}

/// Predicts attention.
pub fn attention(case: &Attention) -> Prediction {
    let cost = case.cost();
    let matrix = cost.operations() as f64 / (F16 * ATTEND);
    let memory = cost.bytes as f64 / COPY;
    let batch = case.batch as f64;
    // One launch per sequence, two if positions are split.
    if case.tokens == 1 {
        let one = (memory / ATTEND_ONE, Bound::Memory);
        let host = (2.0 * batch * HOST, Bound::Host);
        largest(&[one, host])
    } else {
        let all = largest(&[(memory, Bound::Memory), (matrix, Bound::Matrix)]);
        Prediction { seconds: all.seconds + (batch - 1.0) * LAUNCH, ..all }
    }
}

/// Predicts an operation without weights: memory traffic, and the launches of what is not fused.
pub fn operation(operation: &Operation) -> Prediction {
    let memory = operation.cost().bytes as f64 / (COPY * DECODE);
    let launches = match operation {
        Operation::GateThenQuantize { .. } | Operation::Top { .. } => 2.0,
        _ => 1.0,
    };
    let one = largest(&[(memory, Bound::Memory)]);
    Prediction { seconds: one.seconds + (launches - 1.0) * LAUNCH, ..one }
}

/// Predicts the time per token of a model: decode, then prefill.
pub fn model(run: &ModelRun) -> [Prediction; 2] {
    let model = &run.model;
    // 13 launches per decoder block and 4 outside the blocks (`docs/src/gpu.md`).
    let launches = (13 * model.layers + 4) as f64;
    let weights = model.weights() as f64;
    let head = (model.vocab * model.hidden) as f64;
    // All launches are one graph; the next token id and position are uploaded before, and the best logits read back after it.
    let decode = (weights / 4.0 + head) / (COPY * DECODE) + launches * LAUNCH + STEP;
    let tokens = run.prompt as f64;
    let products = 2.0 * weights * tokens / (INT8 * MANY * 0.8);
    let case = Attention { heads: model.heads, tokens: run.prompt, positions: run.prompt, batch: 1 };
    let attend = model.layers as f64 * attention(&case).seconds;
    // Norms, gates and quantization read and write activations in f32: about 40 bytes per column and layer.
    let rows = model.layers as f64 * tokens * (40 * model.hidden + 12 * model.intermediate) as f64 / COPY;
    let prefill = (products + attend + rows + 50e-6) / tokens;
    [
        Prediction { seconds: decode, bound: Bound::Memory },
        Prediction { seconds: prefill, bound: Bound::Matrix },
    ]
}

/// Predicts a dense f16 product of cuBLAS, the reference of the speedup targets.
pub fn cublas(product: &Product) -> Prediction {
    let cost = product.cost_in_halves();
    largest(&[(cost.bytes as f64 / COPY, Bound::Memory), (cost.operations() as f64 / 790e12, Bound::Matrix)])
}

/// Problem, kernel and prediction for all problems of the catalogue.
pub fn all(catalogue: &Catalogue) -> Vec<(String, String, Prediction)> {
    let products = catalogue.products().map(|(p, w)| (p.to_string(), w.name(), product(&p, w)));
    let attention = catalogue.attention.iter().map(|a| (a.to_string(), TRIKE.to_owned(), attention(a)));
    let operations = catalogue.operations.iter().map(|o| (o.to_string(), TRIKE.to_owned(), operation(o)));
    let models = catalogue.models.iter().flat_map(|m| m.problems().into_iter().zip(model(m)));
    let models = models.map(|(problem, prediction)| (problem, TRIKE.to_owned(), prediction));
    products.chain(attention).chain(operations).chain(models).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use trike_bench::Shape;
    use trike_trit::Granularity;

    const ROW: Weights = Weights::TwoBit(Granularity::Row);

    fn at(tokens: usize) -> Product {
        Product { shape: Shape::DOWN_8B, zeros: Zeros::Trained, tokens }
    }

    #[test]
    fn one_token_waits_for_memory_and_many_for_arithmetic() {
        let one = product(&at(1), ROW);
        assert_eq!(one.bound, Bound::Memory);
        // 14.7 MB at 3.2 TB/s.
        assert!((4e-6..8e-6).contains(&one.seconds), "{one:?}");
        let many = product(&at(8192), ROW);
        assert_eq!(many.bound, Bound::Matrix);
        assert!(many.seconds > 2.0 * product(&at(2048), ROW).seconds);
        assert!((27e-6..30e-6).contains(&cublas(&at(1)).seconds));
    }

    #[test]
    fn every_problem_of_the_catalogue_has_a_prediction() {
        let catalogue = Catalogue::full();
        let all = all(&catalogue);
        assert_eq!(all.len(), catalogue.names().len());
        assert!(all.iter().all(|(_, _, p)| p.seconds.is_finite() && p.seconds > 0.0));
    }
}
