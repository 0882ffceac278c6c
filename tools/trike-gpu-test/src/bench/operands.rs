//! Operands of Trike's kernels (matrices, activations, KV caches), and the launches that are timed.

use anyhow::Result;
use half::f16;
use trike_bench::{Attention, Heads, Product};
use trike_cube::attention::{
    AttentionBlueprint, AttentionProblem, CacheSegment, CacheShape, CacheToken, CubeKvCache, KvPrecision,
    Positions, TokenBatch, TokenTable,
};
use trike_cube::linear::{
    ActivationPrecision, ActivationShape, Activations, CubeDenseMatrix, CubeTernaryMatrix, DenseProblem,
    DenseValues, LinearBlueprint, SparseMatrix, SparseProblem, TernaryLayout, TernaryProblem,
};
use trike_cube::{Buffer, Cost, CubeDevice, KernelProblem, Strategy};
use trike_testkit::Rng;
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, Scales, TritTensor};

use super::catalogue::{Case, HALVES, TRIKE, Weights};
use super::entrant::{Absent, Entrant, Operands, launches};

/// Maximum number of copies of a matrix; enough for the smallest one to exceed the caches.
pub(super) const MOST_COPIES: usize = 96;
/// Rows and columns of the blocks that the kernel can skip.
const BLOCK: (usize, usize) = (16, 128);

/// Copies of a weight matrix in one format, together larger than the caches.
pub(super) struct Matrices<'a> {
    device: &'a CubeDevice,
    case: &'a Case,
    weights: Weights,
    tokens: &'static [usize],
    copies: Copies,
}

pub(super) enum Copies {
    /// Packed trits.
    Ternary(Vec<CubeTernaryMatrix>),
    /// Lists of nonzeros.
    Sparse(Vec<SparseMatrix>),
    /// FP16.
    Dense(Vec<CubeDenseMatrix>),
}

impl<'a> Matrices<'a> {
    /// Uploads copies of random weights, `rotate` bytes in total, to be timed with these numbers of tokens.
    pub(super) fn new(
        device: &'a CubeDevice,
        case: &'a Case,
        weights: Weights,
        tokens: &'static [usize],
        rotate: usize,
    ) -> Result<Self> {
        let copies = Copies::new(device, case, weights, rotate)?;
        Ok(Self { device, case, weights, tokens, copies })
    }

    /// The contender with the inferred blueprint.
    fn planned(&self, product: &Product) -> Result<Entrant<'_>> {
        let device = self.device;
        let (rows, cols) = (product.shape.rows, product.shape.cols);
        let out: Buffer<f32> = device.empty(product.tokens * rows)?;
        let shape = activations(product);
        match &self.copies {
            Copies::Ternary(all) => {
                let problem = TernaryProblem { x: shape, w: all[0].form().clone(), add: false };
                let (blueprint, _) = problem.plan(&Strategy::Inferred, device.capabilities())?;
                self.ternary(product, all, &problem, blueprint)
            }
            Copies::Sparse(all) => {
                let problem = SparseProblem { x: shape, w: all[0].form(), add: false };
                let (blueprint, _) = problem.plan(&Strategy::Inferred, device.capabilities())?;
                let x = Activations::upload(device, shape, &numbers(product.tokens * cols))?;
                let told = format!("{blueprint:?}");
                let forced = Strategy::Forced(blueprint);
                let launch = move |i: usize| device.sparse(&x, &all[i % all.len()], &out, &forced);
                self.entrant(product, (self.weights.name(), told), problem.cost(), all.len(), launch)
            }
            Copies::Dense(all) => {
                let problem = DenseProblem { tokens: product.tokens, w: all[0].form(), add: false };
                let (blueprint, _) = problem.plan(&Strategy::Inferred, device.capabilities())?;
                let x = device.upload(&numbers(product.tokens * cols))?;
                let told = format!("{blueprint:?}");
                let forced = Strategy::Forced(blueprint);
                let launch = move |i: usize| device.dense(&x, &all[i % all.len()], &out, &forced);
                self.entrant(product, (self.weights.name(), told), problem.cost(), all.len(), launch)
            }
        }
    }

    /// A ternary product with a given blueprint.
    fn ternary<'b>(
        &'b self,
        product: &Product,
        all: &'b [CubeTernaryMatrix],
        problem: &TernaryProblem,
        blueprint: LinearBlueprint,
    ) -> Result<Entrant<'b>> {
        let device = self.device;
        let x = Activations::upload(device, problem.x, &numbers(problem.x.tokens * problem.x.cols))?;
        let out: Buffer<f32> = device.empty(problem.x.tokens * problem.w.rows())?;
        let told = format!("{blueprint:?}");
        let forced = Strategy::Forced(blueprint);
        let launch = move |i: usize| device.linear(&x, &all[i % all.len()], &[&out], &forced);
        self.entrant(product, (self.weights.name(), told), problem.cost(), all.len(), launch)
    }

    fn entrant<'b>(
        &'b self,
        product: &Product,
        (kernel, blueprint): (String, String),
        cost: Cost,
        copies: usize,
        launch: impl Fn(usize) -> trike_cube::Result<()> + Sync + 'b,
    ) -> Result<Entrant<'b>> {
        let (problem, limits) = (product.to_string(), self.weights.limits());
        let timed = launches(self.device, copies, launch)?;
        Ok(Entrant { problem, kernel, blueprint, rival: false, cost, limits, timed })
    }
}

impl Operands for Matrices<'_> {
    fn entrants<'b>(&'b self, tokens: usize) -> Vec<Result<Entrant<'b>, Absent>> {
        if !self.tokens.contains(&tokens) {
            return Vec::new();
        }
        let product = self.case.product(tokens);
        let absent = |error| Absent {
            problem: Some(product.to_string()),
            kernel: self.weights.name(),
            rival: false,
            error,
        };
        vec![self.planned(&product).map_err(absent)]
    }
}

impl Copies {
    pub(super) fn new(device: &CubeDevice, case: &Case, weights: Weights, rotate: usize) -> Result<Self> {
        let (rows, cols) = (case.shape.rows, case.shape.cols);
        let mut rng = Rng::new(7);
        if weights == Weights::F16 {
            let values: Vec<f16> = rng.normals(rows * cols).into_iter().map(f16::from_f32).collect();
            let upload = || CubeDenseMatrix::upload(device, rows, cols, DenseValues::F16(&values));
            return Ok(Self::Dense(copies(upload, CubeDenseMatrix::bytes, rotate)?));
        }
        let (granularity, depth) = match weights {
            Weights::TwoBit(granularity) => (granularity, 1),
            Weights::ThreePlanes => (Granularity::Group(GroupSize::G128), 3),
            _ => (Granularity::Row, 1),
        };
        let planes: Vec<Vec<i8>> =
            (0..depth).map(|_| case.zeros.trits(case.shape, BLOCK, &mut rng)).collect();
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
        let pack = || CubeTernaryMatrix::pack_as(device, &[&tensor], layout);
        Ok(Self::Ternary(copies(pack, CubeTernaryMatrix::bytes, rotate)?))
    }
}

pub(super) fn activations(product: &Product) -> ActivationShape {
    let precision = ActivationPrecision::Int8PerToken;
    ActivationShape { tokens: product.tokens, cols: product.shape.cols, precision }
}

/// Random activations.
fn numbers(len: usize) -> Vec<f32> {
    Rng::new(3).normals(len)
}

/// Copies of `rotate` bytes in total, at least two and at most [`MOST_COPIES`].
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

/// Attention over a full FP16 KV cache (f32 if the device lacks f16): one launch for the tokens of all sequences, or one per
/// prompt.
pub(super) fn attention<'a>(device: &'a CubeDevice, case: &Attention) -> Result<Entrant<'a>, Absent> {
    let problem = case.to_string();
    attend(device, case).map_err(|error| Absent {
        problem: Some(problem),
        kernel: TRIKE.to_owned(),
        rival: false,
        error,
    })
}

fn attend<'a>(device: &'a CubeDevice, case: &Attention) -> Result<Entrant<'a>> {
    let problem = asked(device, case);
    let (blueprint, _) = problem.plan(&Strategy::Inferred, device.capabilities())?;
    let operands = Prepared::new(device, case)?;
    let timed = launches(device, 1, move |_| operands.launch(device, &Strategy::Forced(blueprint)))?;
    Ok(Entrant {
        problem: case.to_string(),
        kernel: TRIKE.to_owned(),
        blueprint: format!("{blueprint:?}"),
        rival: false,
        cost: case.cost(),
        limits: HALVES,
        timed,
    })
}

/// Whether the tokens of all sequences are one launch: single tokens are, prompts are one each.
fn together(case: &Attention) -> bool {
    case.tokens == 1 && case.batch > 1
}

/// The problem of a launch.
pub(super) fn asked(device: &CubeDevice, case: &Attention) -> AttentionProblem {
    let &Attention { heads: Heads { heads, .. }, tokens, positions, batch } = case;
    AttentionProblem {
        heads,
        window: None,
        tokens,
        sequences: if together(case) { batch } else { 1 },
        first_position: positions - tokens,
        cache: cache_of(device, case),
        mask: None,
    }
}

fn cache_of(device: &CubeDevice, case: &Attention) -> CacheShape {
    let precision = if device.capabilities().f16 { KvPrecision::F16 } else { KvPrecision::F32 };
    let Heads { kv_heads, head_dim, .. } = case.heads;
    CacheShape { kv_heads, head_dim, capacity: case.positions, precision }
}

/// Queries, filled caches and outputs of attention.
pub(super) struct Prepared {
    case: Attention,
    caches: Vec<CubeKvCache>,
    asked: Positions,
    tokens: Option<TokenTable>,
    q: Buffer<f32>,
    out: Buffer<f32>,
}

impl Prepared {
    /// Uploads random queries, and stores random keys and values in a cache for each sequence.
    pub(super) fn new(device: &CubeDevice, case: &Attention) -> Result<Self> {
        let &Attention { heads: of, tokens, positions: capacity, batch } = case;
        let Heads { heads, kv_heads, head_dim, .. } = of;
        let first = capacity - tokens;
        let mut rng = Rng::new(11);
        let positions: Vec<u32> = (0..capacity as u32).collect();
        let all = Positions::upload(device, &positions)?;
        let asked = Positions::upload(device, &positions[first..])?;
        let width = kv_heads * head_dim;
        let k = device.upload(&rng.normals(capacity * width))?;
        let v = device.upload(&rng.normals(capacity * width))?;
        let caches = CubeKvCache::several(device, cache_of(device, case), batch)?;
        for cache in &caches {
            device.store(&k, &v, &CacheSegment { rows: 0..capacity, positions: &all, cache })?;
        }
        let rows = if together(case) { batch } else { tokens };
        let q = device.upload(&rng.normals(rows * heads * head_dim))?;
        let out = device.empty(rows * heads * head_dim)?;
        let token = |(row, cache)| CacheToken { row, position: first as u32, cache };
        let table: Vec<CacheToken<'_>> = caches.iter().enumerate().map(token).collect();
        let tokens = together(case).then(|| TokenTable::upload(device, &table)).transpose()?;
        Ok(Self { case: *case, caches, asked, tokens, q, out })
    }

    /// Attention of all sequences: one launch for single tokens, one for each prompt.
    pub(super) fn launch(
        &self,
        device: &CubeDevice,
        strategy: &Strategy<AttentionBlueprint>,
    ) -> trike_cube::Result<()> {
        let spec = self.case.heads.spec();
        if let Some(tokens) = &self.tokens {
            let caches: Vec<&CubeKvCache> = self.caches.iter().collect();
            let batch = TokenBatch { tokens, caches: &caches };
            return device.attention_of_tokens(&spec, &self.q, &batch, &self.out, strategy);
        }
        self.caches.iter().try_for_each(|cache| {
            let segment = CacheSegment { rows: 0..self.case.tokens, positions: &self.asked, cache };
            device.attention(&spec, &self.q, &segment, &self.out, strategy)
        })
    }
}
