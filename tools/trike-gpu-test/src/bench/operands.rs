//! Matrices, activations and caches of the problems, and the launches that are timed.

use anyhow::Result;
use half::f16;
use trike_cube::attention::{AttentionProblem, CacheShape, KvCache, KvPrecision, Positions, Segment};
use trike_cube::linear::{
    ActivationPrecision, ActivationShape, Activations, DenseMatrix, DenseProblem, DenseValues,
    LinearBlueprint, SparseMatrix, SparseProblem, TernaryLayout, TernaryMatrix, TernaryProblem,
};
use trike_cube::{Buffer, Cost, Device, Plan, Strategy, attention::AttentionSpec};
use trike_testkit::Rng;
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, Scales, TritTensor};

use super::catalogue::{Attention, Product, Weights, Zeros};
use super::timer::{Sample, Timer};

/// Copies of a matrix, at most: so many of the smallest one leave the caches.
const MOST_COPIES: usize = 96;

/// As many copies of a matrix as leave no cache warm.
pub(super) enum Matrices {
    /// Trits in places.
    Ternary(Vec<TernaryMatrix>),
    /// Lists of nonzeros.
    Sparse(Vec<SparseMatrix>),
    /// Floats.
    Dense(Vec<DenseMatrix>),
}

impl Matrices {
    /// Random weights, packed for the device as often as `rotate` bytes take.
    pub(super) fn new(device: &Device, product: Product, weights: Weights, rotate: usize) -> Result<Self> {
        let Product { rows, cols, .. } = product;
        let mut rng = Rng::new(7);
        if weights == Weights::F16 {
            let values: Vec<f16> = rng.normals(rows * cols).into_iter().map(f16::from_f32).collect();
            let upload = || DenseMatrix::upload(device, rows, cols, DenseValues::F16(&values));
            return Ok(Self::Dense(copies(upload, DenseMatrix::bytes, rotate)?));
        }
        let (granularity, depth) = match weights {
            Weights::TwoBit(granularity) => (granularity, 1),
            Weights::ThreePlanes => (Granularity::Group(GroupSize::G128), 3),
            _ => (Granularity::Row, 1),
        };
        let planes: Vec<Vec<i8>> = (0..depth).map(|_| trits(&mut rng, product)).collect();
        let planes: Vec<&[i8]> = planes.iter().map(Vec::as_slice).collect();
        let scales = vec![f16::from_f32(0.5); rows * granularity.groups_per_row(cols)];
        let scales = Scales::new(granularity, scales, None);
        let coupling = if depth == 1 { Coupling::Free } else { Coupling::Tied };
        let tensor = TritTensor::from_planes(rows, cols, &planes, Encoding::TwoBit, coupling, scales)?;
        let layout = match weights {
            Weights::Base3 => TernaryLayout::Base3,
            Weights::Blocks => TernaryLayout::Blocks,
            Weights::Sparse => {
                let pack = || SparseMatrix::pack(device, &tensor);
                return Ok(Self::Sparse(copies(pack, SparseMatrix::bytes, rotate)?));
            }
            _ => TernaryLayout::TwoBit,
        };
        let pack = || TernaryMatrix::pack_as(device, &[&tensor], layout);
        Ok(Self::Ternary(copies(pack, TernaryMatrix::bytes, rotate)?))
    }

    /// The time of a product with so many tokens, its cost, and the blueprint that was chosen.
    pub(super) fn product(&self, timer: &Timer<'_>, tokens: usize) -> Result<(Sample, Cost, String)> {
        let device = timer.device();
        let (rows, cols) = self.shape();
        let x = || Rng::new(3).normals(tokens * cols);
        let shape = ActivationShape { tokens, cols, precision: ActivationPrecision::Int8PerToken };
        match self {
            Self::Ternary(all) => {
                let problem = TernaryProblem { x: shape, w: all[0].form().clone(), add: false };
                let (blueprint, _) = problem.plan(&Strategy::Inferred, device.capabilities())?;
                ternary(timer, all, &problem, blueprint)
            }
            Self::Sparse(all) => {
                let problem = SparseProblem { x: shape, w: all[0].form(), add: false };
                let (blueprint, _) = problem.plan(&Strategy::Inferred, device.capabilities())?;
                let x = Activations::upload(device, shape, &x())?;
                let out: Buffer<f32> = device.empty(tokens * rows)?;
                let forced = Strategy::Forced(blueprint);
                let time = timer.median(|i| device.sparse(&x, &all[i % all.len()], &out, &forced))?;
                Ok((time, problem.cost(), format!("{blueprint:?}")))
            }
            Self::Dense(all) => {
                let problem = DenseProblem { tokens, w: all[0].form(), add: false };
                let (blueprint, _) = problem.plan(&Strategy::Inferred, device.capabilities())?;
                let x = device.upload(&x())?;
                let out: Buffer<f32> = device.empty(tokens * rows)?;
                let forced = Strategy::Forced(blueprint);
                let time = timer.median(|i| device.dense(&x, &all[i % all.len()], &out, &forced))?;
                Ok((time, problem.cost(), format!("{blueprint:?}")))
            }
        }
    }

    /// The same with asynchronous copies of the activations, where the plan has that among its candidates: which of the two
    /// comes first there is for figures to say.
    pub(super) fn copied(&self, timer: &Timer<'_>, tokens: usize) -> Option<Result<(Sample, Cost, String)>> {
        let Self::Ternary(all) = self else { return None };
        let x =
            ActivationShape { tokens, cols: self.shape().1, precision: ActivationPrecision::Int8PerToken };
        let problem = TernaryProblem { x, w: all[0].form().clone(), add: false };
        let mut candidates = problem.candidates(timer.device().capabilities()).into_iter();
        let copied =
            candidates.find(|b| matches!(b, LinearBlueprint::Mma(shape) if shape.staging.is_async()))?;
        Some(ternary(timer, all, &problem, copied))
    }

    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Ternary(all) => (all[0].form().rows(), all[0].form().cols),
            Self::Sparse(all) => (all[0].form().rows, all[0].form().cols),
            Self::Dense(all) => (all[0].rows(), all[0].cols()),
        }
    }
}

/// The time of a ternary product with a blueprint.
fn ternary(
    timer: &Timer<'_>,
    all: &[TernaryMatrix],
    problem: &TernaryProblem,
    blueprint: LinearBlueprint,
) -> Result<(Sample, Cost, String)> {
    let device = timer.device();
    let x = Rng::new(3).normals(problem.x.tokens * problem.x.cols);
    let x = Activations::upload(device, problem.x, &x)?;
    let out: Buffer<f32> = device.empty(problem.x.tokens * problem.w.rows())?;
    let forced = Strategy::Forced(blueprint);
    let time = timer.median(|i| device.linear(&x, &all[i % all.len()], &[&out], &forced))?;
    Ok((time, problem.cost(), format!("{blueprint:?}")))
}

/// As many as take `rotate` bytes together, two at least.
fn copies<T>(
    make: impl Fn() -> trike_cube::Result<T>,
    bytes: impl Fn(&T) -> usize,
    rotate: usize,
) -> Result<Vec<T>> {
    let first = make()?;
    let count = rotate.div_ceil(bytes(&first).max(1)).clamp(2, MOST_COPIES);
    let mut all = vec![first];
    for _ in 1..count {
        all.push(make()?);
    }
    Ok(all)
}

/// Random trits with the zeros that a product asks for.
fn trits(rng: &mut Rng, product: Product) -> Vec<i8> {
    const USUAL: f32 = 0.6;
    let Product { rows, cols, zeros, .. } = product;
    match zeros {
        Zeros::Usual => rng.trits(rows * cols, USUAL),
        Zeros::Random(share) => rng.trits(rows * cols, 1.0 - share),
        Zeros::InBlocks(share) => {
            let mut trits = rng.trits(rows * cols, USUAL);
            for first_row in (0..rows).step_by(16) {
                for first_col in (0..cols).step_by(128) {
                    if rng.f32_unit() >= share {
                        continue;
                    }
                    for row in first_row..rows.min(first_row + 16) {
                        trits[row * cols + first_col..row * cols + cols.min(first_col + 128)].fill(0);
                    }
                }
            }
            trits
        }
    }
}

/// The time of attention over a filled cache of halves, a launch for each sequence.
pub(super) fn attention(timer: &Timer<'_>, case: &Attention) -> Result<(Sample, Cost, String)> {
    let device = timer.device();
    let &Attention { heads, kv_heads, head_dim, tokens, first, batch } = case;
    let capacity = first + tokens;
    let precision = if device.capabilities().f16 { KvPrecision::F16 } else { KvPrecision::F32 };
    let shape = CacheShape { kv_heads, head_dim, capacity, precision };
    let mut rng = Rng::new(11);
    let positions: Vec<u32> = (0..capacity as u32).collect();
    let all = Positions::upload(device, &positions)?;
    let asked = Positions::upload(device, &positions[first..])?;
    let mut caches = Vec::with_capacity(batch);
    let width = kv_heads * head_dim;
    let k = device.upload(&rng.normals(capacity * width))?;
    let v = device.upload(&rng.normals(capacity * width))?;
    for _ in 0..batch {
        let cache = KvCache::empty(device, shape)?;
        device.store(&k, &v, &Segment { rows: 0..capacity, positions: &all, cache: &cache })?;
        caches.push(cache);
    }
    let q = device.upload(&rng.normals(tokens * heads * head_dim))?;
    let out: Buffer<f32> = device.empty(tokens * heads * head_dim)?;
    let spec =
        AttentionSpec { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), window: None };
    let problem = AttentionProblem { heads, window: None, tokens, first_position: first, cache: shape };
    let (blueprint, _) = problem.plan(&Strategy::Inferred, device.capabilities())?;
    let sample = timer.median(|_| {
        caches.iter().try_for_each(|cache| {
            let segment = Segment { rows: 0..tokens, positions: &asked, cache };
            device.attention(&spec, &q, &segment, &out, &Strategy::Forced(blueprint))
        })
    })?;
    let cost = Cost { macs: case.operations() / 2, bytes: case.bytes() };
    Ok((sample, cost, format!("{blueprint:?}")))
}
