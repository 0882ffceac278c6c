//! Predicted times on an H200, written before any measurement on one.
//!
//! A prediction is the launch overhead plus the largest of the times for memory, cache, issue slots and matrix instructions.
//! Device rates are those measured by other projects. Instructions per weight, activations loaded per weight and bytes in
//! flight are counts of the compiled kernel, from the table that the compile phase checks; what remains of guesses is one
//! constant each, so that a wrong prediction can be traced to it.

use trike_bench::{Align, Attention, Heads, ModelRun, Product, Shape, Table, Zeros};
use trike_core::SelectedKeys;
use trike_cube::linear::{LinearBlueprint, TernaryForm, TernaryLayout, TernaryProblem};
use trike_cube::{Capabilities, KernelProblem, Settings, Strategy};
use trike_trit::{Granularity, GroupSize};

use super::catalogue::{Catalogue, TRIKE, Weights};
use super::counted::Counted;
use super::operands::activations;
use super::operations::{Operation, keys};
use crate::counts::{Row, table};

/// Copy bandwidth, in bytes per second.
const COPY: f64 = 4.3e12;
/// Int8 `mma` operations per second: 63 % of the rate of the asynchronous instructions, which CubeCL lacks.
const INT8: f64 = 1.0e15;
/// FP16 `mma` operations per second.
const F16: f64 = 0.5e15;
/// TF32 `mma` operations per second.
const TF32: f64 = F16 / 2.0;
/// Instructions of lanes issued per second: 132 multiprocessors with four schedulers of 32 lanes, at 1.755 GHz.
const ISSUE: f64 = 132.0 * 4.0 * 32.0 * 1.755e9;
/// Latency of a load under load, in seconds.
const LATENCY: f64 = 700e-9;
/// Bandwidth of the last-level cache, in bytes per second.
const CACHE: f64 = 5.5e12;
/// Population counts of lanes per second: 16 per multiprocessor and clock.
const POPULATION_COUNTS: f64 = PROCESSORS * 16.0 * 1.755e9;
/// Bytes per second from the last cache to a multiprocessor when the others read nothing: 64 per clock.
const ALONE: f64 = 64.0 * 1.755e9;
/// Number of multiprocessors.
const PROCESSORS: f64 = 132.0;
/// Time between the end of a kernel and full throughput of the next one, in seconds.
const LAUNCH: f64 = 1.5e-6;
/// Time from the last product of a cube until the last cube has added up the sums of all, in seconds: two barriers, a counter,
/// and loads.
const JOIN: f64 = 1.2e-6;
/// Host time per recorded step, in seconds: two small copies, the graph launch, a blocking read-back.
const STEP: f64 = 70.0e-6;

/// Fraction of the shorter of two times, for issue slots and for matrix instructions, that the longer one does not hide: the
/// planes of a cube wait at the same barriers.
const EXPOSED: f64 = 0.5;
/// Fraction of the copy bandwidth reached with a list of nonzeros, which gathers activations one by one.
const LIST: f64 = 0.35;
/// Fraction of the copy bandwidth reached by operations without weights.
const SIMPLE: f64 = 0.6;
/// The same fraction as [`EXPOSED`] in attention of a prompt: the softmax of a tile waits for its scores, and the second product
/// for the softmax.
const EXPOSED_IN_ATTENTION: f64 = 1.0;

/// The bottleneck of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Memory bandwidth.
    Memory,
    /// Bandwidth of the last-level cache.
    Cache,
    /// Issue slots.
    Instructions,
    /// Matrix instructions.
    Matrix,
}

impl Bound {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cache => "cache",
            Self::Instructions => "instructions",
            Self::Matrix => "matrix",
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

/// The target of the counts.
const H200: &str = "cuda-sm90a";

/// Counts of all kernels that are counted.
fn rows() -> impl Iterator<Item = &'static Row> {
    table().iter().filter(|row| row.target == H200)
}

/// Counts of the kernel for a problem that is counted.
fn row(counted: Counted) -> Option<&'static Row> {
    let (problem, kernel) = (counted.problem(), counted.kernel());
    rows().find(|row| row.problem == problem && row.kernel == kernel)
}

/// Counts of a product's kernel: those for the same weights and the next larger number of tokens that is counted.
fn of_product(weights: Weights, tokens: usize) -> Option<&'static Row> {
    let at = |counted: &Counted| match *counted {
        Counted::Product(product, of) if of == weights && product.shape == Shape::DOWN_8B => {
            Some(product.tokens)
        }
        _ => None,
    };
    let all = Counted::all().into_iter().filter_map(|counted| Some((at(&counted)?, counted)));
    let (_, counted) = all.min_by_key(|&(counted, _)| (counted < tokens, counted.abs_diff(tokens)))?;
    row(counted)
}

/// Fraction of the copy bandwidth that a kernel's bytes in flight sustain.
fn share(row: &Row) -> f64 {
    (row.flight_of_multiprocessor() / (COPY / PROCESSORS * LATENCY)).min(1.0)
}

/// Time for multiply-adds, and whether issue slots or matrix instructions need the larger part.
fn busy(row: &Row, macs: f64, matrix_rate: f64, exposed: f64) -> (f64, Bound) {
    let issue = macs * row.slots_per_mac() / ISSUE;
    let matrix = if row.has_matrix_instructions() { 2.0 * macs / matrix_rate } else { 0.0 };
    let bound = if issue > matrix { Bound::Instructions } else { Bound::Matrix };
    (issue.max(matrix) + exposed * issue.min(matrix), bound)
}

/// Predicts a matrix product.
pub fn product(product: &Product, weights: Weights) -> Prediction {
    use Bound::{Cache, Memory};
    let (rows, cols) = (product.shape.rows, product.shape.cols);
    let Product { tokens, zeros, .. } = *product;
    let count = (rows * cols) as f64;
    let io = (tokens * (cols + cols / 8 + 4 * rows)) as f64;
    let stored = match (weights, zeros) {
        (Weights::Blocks, Zeros::InBlocks(share)) => 1.0 - f64::from(share),
        (Weights::Sparse, Zeros::Random(share)) => 1.0 - f64::from(share),
        _ => 1.0,
    };
    let bytes = match weights {
        Weights::TwoBit(granularity) => count / 4.0 + 2.0 * (rows * granularity.groups_per_row(cols)) as f64,
        Weights::Blocks => stored * count / 4.0,
        Weights::ThreePlanes => 0.75 * count + count / 64.0,
        Weights::Base3 => count / 5.0,
        Weights::Sparse => 2.0 * stored * count,
        Weights::F16 => 2.0 * count,
    };
    let plan = planned(product, weights);
    let cubes = match plan {
        Some((_, settings)) => settings.cubes.iter().product::<u32>() as usize,
        // Cubes of 64 rows up to 64 tokens, else of 128 and 128.
        None if weights == Weights::F16 && tokens > 64 => rows.div_ceil(128) * tokens.div_ceil(128),
        None if weights == Weights::F16 && tokens > 8 => rows.div_ceil(64),
        None => rows.div_ceil(16),
    };
    let memory = |share: f64| ((bytes + io) / (COPY * share * balance(cubes)), Memory);
    let Some(row) = of_product(weights, tokens) else { return largest(&[memory(LIST)]) };
    let padded = tokens.next_multiple_of(row.reuse().round() as usize);
    let macs = stored * count * padded as f64;
    let rate = if weights == Weights::F16 { TF32 } else { INT8 };
    let (time, bound) = busy(row, macs, rate, EXPOSED);
    let mut limits = vec![memory(share(row)), (time / balance(cubes), bound)];
    // Each cube loads its weights and the activations of its code rows for itself. With dot products eight lanes share them.
    if row.has_matrix_instructions() {
        let per_weight = row.cached_per_weight() + bytes / count;
        limits.push((macs / row.reuse() * per_weight / CACHE, Cache));
    }
    let mut found = largest(&limits);
    match plan {
        Some((LinearBlueprint::Split(_), _)) => found.seconds += LAUNCH,
        Some((LinearBlueprint::Mma(shape), _)) if shape.cubes > 1 => {
            // Sums are written, and read again by the last cube.
            found.seconds += JOIN + (8 * cubes * shape.rows() * shape.code_rows()) as f64 / CACHE;
        }
        _ => {}
    }
    found
}

/// The plan for two bits per weight on an H200.
fn planned(product: &Product, weights: Weights) -> Option<(LinearBlueprint, Settings)> {
    let (group, planes) = match weights {
        Weights::TwoBit(granularity) => (granularity.group().map(GroupSize::get), 1),
        Weights::ThreePlanes => (Some(128), 3),
        _ => return None,
    };
    let mut device = Capabilities::smallest();
    device.multiprocessors = Some(PROCESSORS as u32);
    (device.max_units, device.max_unit_sides, device.max_shared_bytes) = (1024, [1024; 3], 232_448);
    (device.max_cubes, device.max_bindings) = ([u32::MAX; 3], 16);
    (device.int8_mma, device.async_copy, device.planes) = (true, true, Some((32, 32)));
    let w = TernaryForm {
        parts: vec![product.shape.rows],
        cols: product.shape.cols,
        group,
        sets: 1,
        planes,
        means: false,
        f16_scales: planes == 1,
        layout: TernaryLayout::TwoBit,
        stored: product.shape.rows.div_ceil(16) * product.shape.cols.div_ceil(128),
    };
    TernaryProblem { x: activations(product), w, add: false }.plan(&Strategy::Inferred, &device).ok()
}

/// One token of attention, of which the kernel for four query heads per key head is counted, at 4096 positions.
const DECODE: Attention = Attention { heads: Heads::B2, tokens: 1, positions: 4096, batch: 1 };

/// Attention of single tokens over `elements` of keys and values, which take `seconds` at the bandwidth of a copy.
fn decode(row: Option<&Row>, seconds: f64, elements: f64) -> Prediction {
    let sustained = row.map_or(1.0, share);
    let issue = row.map_or(0.0, |row| elements * row.per_weight() / ISSUE);
    let all = largest(&[(seconds / sustained, Bound::Memory), (issue, Bound::Instructions)]);
    Prediction { seconds: all.seconds + LAUNCH, ..all }
}

/// Predicts attention.
pub fn attention(case: &Attention) -> Prediction {
    let cost = case.cost();
    let bytes = cost.bytes as f64 / COPY;
    let batch = case.batch as f64;
    let counts = |heads: Heads, tokens: usize, positions: usize, batch: usize| {
        row(Counted::Attention(Attention { heads, tokens, positions, batch }))
    };
    // One launch per prompt; two for single tokens of all sequences, whose positions are split.
    if case.tokens == 1 {
        // Keys and values of two bytes, counted where four query heads share them.
        decode(row(Counted::Attention(DECODE)), bytes, cost.bytes as f64 / 2.0)
    } else {
        let macs = cost.operations() as f64 / 2.0;
        let time = counts(Heads::B2, 2048, 2048, 1).map(|row| busy(row, macs, F16, EXPOSED_IN_ATTENTION));
        let time = time.unwrap_or((2.0 * macs / F16, Bound::Matrix));
        let all = largest(&[(bytes, Bound::Memory), time]);
        Prediction { seconds: all.seconds + (batch - 1.0) * LAUNCH, ..all }
    }
}

/// Predicts attention of a token to selected keys: codes of the key and the query, scores, selection, attention to what was selected.
fn selected(positions: usize, heads: Heads) -> Prediction {
    let kept = keys().select(positions).map_or(positions, SelectedKeys::total);
    let attend = attention(&Attention { heads, tokens: 1, positions: kept, batch: 1 });
    let channels = (positions * heads.kv_heads * heads.head_dim) as f64;
    let all = Attention { heads: Heads::B8, tokens: 1, positions: 131_072, batch: 1 };
    let scores = row(Counted::KeyScores(all)).map_or(0.0, |row| channels * row.per_weight() / ISSUE);
    // A population count for each word and plane.
    let ones = channels / 32.0 * 4.0 / POPULATION_COUNTS;
    let bytes = channels * 20.0 / 128.0;
    let scores =
        largest(&[(bytes / COPY, Bound::Memory), (scores, Bound::Instructions), (ones, Bound::Instructions)]);
    // One cube for a head reads two bytes for each position three times.
    let choose = LAUNCH + 6.0 * positions as f64 / ALONE;
    Prediction { seconds: LAUNCH + scores.seconds + choose + attend.seconds, bound: scores.bound }
}

/// Predicts an operation without weights: its share of attention, or memory traffic, and the launches of what is not fused.
pub fn operation(operation: &Operation) -> Prediction {
    if let Operation::MaskedAttention { tokens, heads } = *operation {
        // Tiles that are left out cost nothing; finding the others does not show in the counts.
        let whole = Attention { heads, tokens, positions: tokens, batch: 1 };
        let share = operation.cost().macs as f64 / whole.cost().macs as f64;
        let all = attention(&whole);
        return Prediction { seconds: share * all.seconds, ..all };
    }
    if let Operation::SelectedAttention { positions, heads } = *operation {
        return selected(positions, heads);
    }
    if let Operation::Int8Attention { positions, heads: Heads { kv_heads, head_dim, .. } } = *operation {
        let elements = (2 * positions * kv_heads * head_dim) as f64;
        return decode(row(Counted::Int8(DECODE)), operation.cost().bytes as f64 / COPY, elements);
    }
    let memory = operation.cost().bytes as f64 / (COPY * SIMPLE);
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
    let two_bits = Weights::TwoBit(Granularity::Row);
    // 8 launches per decoder block and 4 outside the blocks (`docs/src/gpu.md`).
    let launches = (8 * model.layers + 4) as f64;
    let weights = model.weights() as f64;
    let head = (model.vocab * model.hidden) as f64;
    let one = of_product(two_bits, 1).map_or(1.0, share);
    let head = row(Counted::HEAD)
        .map_or(head / COPY, |row| (head / (COPY * share(row))).max(busy(row, head, INT8, EXPOSED).0));
    // All launches are one graph; the next token id and position are uploaded before, and the best logits read back after it.
    let decode = weights / 4.0 / (COPY * one) + head + launches * LAUNCH + STEP;
    let tokens = run.prompt as f64;
    let macs = weights * tokens;
    let products =
        of_product(two_bits, run.prompt).map_or(2.0 * macs / INT8, |row| busy(row, macs, INT8, EXPOSED).0);
    let case = Attention { heads: model.heads, tokens: run.prompt, positions: run.prompt, batch: 1 };
    let attend = model.layers as f64 * attention(&case).seconds;
    // Norms, gates and quantization read and write activations in f32: about 40 bytes per column and layer.
    let rows = model.layers as f64 * tokens * (40 * model.hidden + 12 * model.intermediate) as f64 / COPY;
    // Products of a layer have few squares more than multiprocessors, and the last ones leave most of them idle.
    let prefill = (products / 0.8 + attend + rows + 50e-6) / tokens;
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

/// The counts that predictions are made from, for the book.
pub(super) fn counts() -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("problem", Left),
        ("kernel", Left),
        ("instructions", Right),
        ("matrix or dot", Right),
        ("per product", Right),
        ("in flight, KB", Right),
        ("warps", Right),
        ("registers", Right),
        ("spilled, B", Right),
    ]);
    for row in rows() {
        table.row([
            row.problem.clone(),
            row.kernel.clone(),
            row.counts.slots.to_string(),
            row.products().to_string(),
            format!("{:.3}", row.slots_per_mac()),
            format!("{:.1}", row.flight_of_multiprocessor() / 1e3),
            format!("{:.0}", row.warps),
            row.registers.to_string(),
            row.spilled.to_string(),
        ]);
    }
    table
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
