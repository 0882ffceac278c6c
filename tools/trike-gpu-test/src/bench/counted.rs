//! Problems of the catalogue whose kernels are counted by the compile phase, and the launches that show those kernels.
//!
//! The blueprint is the one inferred for the problem, forced on operands that are as small as its kernel allows: a form of a
//! kernel does not depend on rows, columns and positions, and a recording device has no use for gigabytes.

use anyhow::{Result, bail};
use trike_bench::{Attention, Heads, Product, Shape, Zeros};
use trike_core::{KeySelector, SelectedKeys};
use trike_cube::attention::{
    AttentionBlueprint, AttentionProblem, BlockBitmap, BlockMask, CacheSegment, CacheShape, CubeKvCache,
    KvPrecision, Positions,
};
use trike_cube::linear::{
    Activations, CubeDenseMatrix, DenseForm, DenseProblem, DenseValues, TernaryForm, TernaryProblem,
};
use trike_cube::{Buffer, CubeDevice, KernelProblem, Settings, Strategy};
use trike_trit::{Granularity, GroupSize};

use super::catalogue::{Case, TRIKE, Weights};
use super::operands::{Copies, activations};
use super::operations::{Operation, keys};

/// A problem whose kernel is counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Counted {
    /// A product of the catalogue.
    Product(Product, Weights),
    /// An int8 LM head, for one token.
    Head(Shape),
    /// Attention of the catalogue.
    Attention(Attention),
    /// Attention of a prompt over a quarter of the key blocks.
    Masked(Attention),
    /// Attention of a token to positions that sign codes choose, which are fewer than all of them.
    Selected(Attention),
    /// The scores of these codes.
    KeyScores(Attention),
    /// Attention of one token over a cache in int8.
    Int8(Attention),
}

/// The head of the 2b model, with its real vocabulary.
const HEAD_2B: Shape = Shape { name: "head-2b", rows: 128_256, cols: 2560 };
/// Columns that share a scale of the head.
const HEAD_GROUP: usize = 64;
/// Tokens at which products are counted. The kernels for numbers between are those of the next larger one.
const TOKENS: &[usize] = &[1, 2, 8, 16, 32, 64, 128, 8192];

impl Counted {
    /// The head of the 2b model.
    pub(crate) const HEAD: Self = Self::Head(HEAD_2B);

    /// All of them.
    pub(crate) fn all() -> Vec<Self> {
        let of_groups = |size| Weights::TwoBit(Granularity::Group(size));
        let formats: [(Weights, &[usize]); 6] = [
            (Weights::TwoBit(Granularity::Row), TOKENS),
            (of_groups(GroupSize::G128), TOKENS),
            (of_groups(GroupSize::G64), &[1, 16, 8192]),
            (Weights::ThreePlanes, &[1, 16]),
            (Weights::Base3, &[1, 16]),
            (Weights::F16, &[1, 16, 8192]),
        ];
        let product =
            |shape, tokens, weights| Self::Product(Product { shape, zeros: Zeros::Trained, tokens }, weights);
        let mut all = Vec::new();
        for (weights, tokens) in formats {
            all.extend(tokens.iter().map(|&tokens| product(Shape::DOWN_8B, tokens, weights)));
        }
        for tokens in [1, 16] {
            all.push(product(Shape::GATE_UP_2B, tokens, Weights::TwoBit(Granularity::Row)));
        }
        let halved = Product { shape: Shape::DOWN_8B, zeros: Zeros::InBlocks(0.5), tokens: 1 };
        all.push(Self::Product(halved, Weights::Blocks));
        all.push(Self::HEAD);
        for heads in [Heads::B2, Heads::B8] {
            all.push(Self::Attention(Attention { heads, tokens: 1, positions: 4096, batch: 1 }));
        }
        for (heads, batch) in [(Heads::B2, 1), (Heads::B7, 8)] {
            all.push(Self::Attention(Attention { heads, tokens: 2048, positions: 2048, batch }));
        }
        all.push(Self::Int8(Attention { heads: Heads::B2, tokens: 1, positions: 4096, batch: 1 }));
        all.push(Self::Masked(Attention { heads: Heads::B2, tokens: 4096, positions: 4096, batch: 1 }));
        let long = Attention { heads: Heads::B8, tokens: 1, positions: 131_072, batch: 1 };
        all.extend([Self::Selected(long), Self::KeyScores(long)]);
        all
    }

    /// The problem's name, as in records.
    pub(crate) fn problem(&self) -> String {
        match self {
            Self::Product(product, _) => product.to_string(),
            Self::Head(shape) => format!("{} m=1", shape.name),
            Self::Attention(attention) => attention.to_string(),
            Self::Masked(Attention { heads, tokens, .. }) => {
                Operation::MaskedAttention { tokens: *tokens, heads: *heads }.to_string()
            }
            Self::Selected(Attention { heads, positions, .. })
            | Self::KeyScores(Attention { heads, positions, .. }) => {
                Operation::SelectedAttention { positions: *positions, heads: *heads }.to_string()
            }
            Self::Int8(Attention { heads, positions, .. }) => {
                Operation::Int8Attention { positions: *positions, heads: *heads }.to_string()
            }
        }
    }

    /// The kernel's name, as in records.
    pub(crate) fn kernel(&self) -> String {
        match self {
            Self::Product(_, weights) => weights.name(),
            Self::Head(_) => "trike int8".to_owned(),
            Self::Attention(_) | Self::Masked(_) | Self::Selected(_) | Self::Int8(_) => TRIKE.to_owned(),
            Self::KeyScores(_) => "trike scores of codes".to_owned(),
        }
    }

    /// Ends of the paths of kernels that may do the main work.
    pub(crate) fn paths(&self) -> &'static [&'static str] {
        match self {
            Self::Product(_, Weights::F16) | Self::Head(_) => {
                &["dense::dense_decode::DenseDecode", "dense_mma::dense_mma::DenseMma"]
            }
            Self::Product(..) => &["decode::decode::Decode", "mma::mma::Mma", "base3::base3::Base3"],
            Self::KeyScores(_) => &["attention::keys::kernel::score::Score"],
            Self::Attention(_) | Self::Masked(_) | Self::Selected(_) | Self::Int8(_) => {
                &["attention::joined::decode_joined::DecodeJoined", "attention::mma::mma::Mma"]
            }
        }
    }

    /// Arguments of these kernels that are read from memory: the weights, or keys and values.
    pub(crate) fn streamed(&self) -> &'static [u32] {
        match self {
            Self::Product(..) | Self::Head(_) => &[0],
            Self::KeyScores(_) => &[0, 1],
            Self::Attention(_) | Self::Masked(_) | Self::Selected(_) | Self::Int8(_) => &[1, 2],
        }
    }

    /// Arguments that the cubes share: the activations of ternary products.
    pub(crate) fn cached(&self) -> &'static [u32] {
        match self {
            Self::Product(_, Weights::F16) | Self::Head(_) => &[2],
            Self::Product(..) => &[3],
            Self::KeyScores(_) => &[2],
            Self::Attention(_) | Self::Masked(_) | Self::Selected(_) | Self::Int8(_) => &[0],
        }
    }

    /// Weights, or elements of keys and values, for each byte of them.
    pub(crate) fn per_byte(&self) -> f64 {
        match self {
            Self::Product(_, Weights::F16) | Self::Attention(_) | Self::Masked(_) | Self::Selected(_) => 0.5,
            // Signs of 128 channels in 20 bytes.
            Self::KeyScores(_) => 6.4,
            Self::Product(_, Weights::Base3) => 5.0,
            Self::Product(_, Weights::ThreePlanes) => 4.0 / 3.0,
            Self::Product(..) => 4.0,
            Self::Head(_) | Self::Int8(_) => 1.0,
        }
    }

    /// Launches the kernel that is inferred for the problem, and returns the settings of its launch at the problem's size.
    pub(crate) fn launch(&self, device: &CubeDevice) -> Result<Settings> {
        match *self {
            Self::Product(product, Weights::F16) => {
                let small = vec![half::f16::ONE; 64 * 64];
                let small = CubeDenseMatrix::upload(device, 64, 64, DenseValues::F16(&small))?;
                dense(device, product.shape, product.tokens, product.shape.cols, &small)
            }
            Self::Head(shape) => {
                let values =
                    DenseValues::Int8 { codes: &[1; 64 * 128], scales: &[1.0; 128], group: HEAD_GROUP };
                let small = CubeDenseMatrix::upload(device, 64, 128, values)?;
                dense(device, shape, 1, HEAD_GROUP, &small)
            }
            Self::Product(product, weights) => ternary(device, product, weights),
            Self::Attention(attention) => attend(device, &attention, KvPrecision::F16, false),
            Self::Masked(attention) => attend(device, &attention, KvPrecision::F16, true),
            Self::Int8(attention) => attend(device, &attention, KvPrecision::Int8, false),
            Self::Selected(attention) | Self::KeyScores(attention) => {
                let selected = keys().select(attention.positions).map_or(0, SelectedKeys::total);
                let seen = Attention { positions: selected, ..attention };
                let (_, settings) =
                    asked(&seen, KvPrecision::F16).plan(&Strategy::Inferred, device.capabilities())?;
                choose(device, attention.heads)?;
                let processors = device.capabilities().multiprocessors.unwrap_or(1);
                // Eight cubes of scores on each multiprocessor.
                let kv_heads = attention.heads.kv_heads as u32;
                let scores =
                    Settings { cubes: [(8 * processors).div_ceil(kv_heads), kv_heads, 1], ..settings };
                Ok(if matches!(self, Self::KeyScores(_)) { scores } else { settings })
            }
        }
    }
}

fn ternary(device: &CubeDevice, product: Product, weights: Weights) -> Result<Settings> {
    let small = Product {
        shape: Shape { rows: 64, cols: 512, ..product.shape },
        tokens: product.tokens.min(64),
        ..product
    };
    let case = Case { shape: small.shape, zeros: small.zeros, weights: Vec::new() };
    let Copies::Ternary(matrices) = Copies::new(device, &case, weights, 0)? else {
        bail!("{} is not packed for the ternary kernels", weights.name());
    };
    let [matrix, ..] = &matrices[..] else { bail!("no matrix") };
    let w =
        TernaryForm { parts: vec![product.shape.rows], cols: product.shape.cols, ..matrix.form().clone() };
    let w = TernaryForm { stored: w.tiles() * w.steps(), ..w };
    let problem = TernaryProblem { x: activations(&product), w, add: false };
    let (blueprint, settings) = problem.plan(&Strategy::Inferred, device.capabilities())?;
    let x = Activations::upload(device, activations(&small), &vec![0.0; small.tokens * small.shape.cols])?;
    let out: Buffer<f32> = device.empty(small.tokens * small.shape.rows)?;
    device.linear(&x, matrix, &[&out], &Strategy::Forced(blueprint))?;
    Ok(settings)
}

fn dense(
    device: &CubeDevice,
    shape: Shape,
    tokens: usize,
    group: usize,
    small: &CubeDenseMatrix,
) -> Result<Settings> {
    let form = small.form();
    let problem = DenseProblem {
        tokens,
        w: DenseForm { rows: shape.rows, cols: shape.cols, group, ..form },
        add: false,
    };
    let (blueprint, settings) = problem.plan(&Strategy::Inferred, device.capabilities())?;
    let x = device.upload(&vec![0.0f32; tokens * form.cols])?;
    let out: Buffer<f32> = device.empty(tokens * form.rows)?;
    device.dense(&x, small, &out, &Strategy::Forced(blueprint))?;
    Ok(settings)
}

/// Attention of the catalogue without a mask.
fn asked(case: &Attention, precision: KvPrecision) -> AttentionProblem {
    let Heads { heads, kv_heads, head_dim, .. } = case.heads;
    let &Attention { tokens, positions: capacity, .. } = case;
    let cache = CacheShape { kv_heads, head_dim, capacity, precision };
    let first_position = capacity - tokens;
    AttentionProblem { heads, window: None, tokens, sequences: 1, first_position, cache, mask: None }
}

/// Launches all kernels of a selection among few positions.
fn choose(device: &CubeDevice, of: Heads) -> Result<()> {
    let Heads { heads, kv_heads, head_dim, .. } = of;
    let shape = CacheShape { kv_heads, head_dim, capacity: 2048, precision: KvPrecision::F16 };
    // As many as make more than one part.
    let cache = CubeKvCache::empty(device, shape)?.with_keys(device, KeySelector::signs(128)?)?;
    let positions = Positions::upload(device, &[2000])?;
    let q = device.upload(&vec![0.0f32; heads * head_dim])?;
    let out: Buffer<f32> = device.empty(heads * head_dim)?;
    let segment = CacheSegment { rows: 0..1, positions: &positions, cache: &cache };
    Ok(device.attention(&of.spec(), &q, &segment, &out, &Strategy::Inferred)?)
}

fn attend(device: &CubeDevice, case: &Attention, precision: KvPrecision, masked: bool) -> Result<Settings> {
    let Heads { heads, kv_heads, head_dim, .. } = case.heads;
    // The form depends on whether there is a mask, not on its bits.
    let bitmap = |positions| BlockBitmap::diagonal(1, positions);
    let range = case.positions - case.tokens..case.positions;
    let mask = if masked { Some(bitmap(range.clone())?.work(kv_heads, &range, None)) } else { None };
    let problem = AttentionProblem { mask, ..asked(case, precision) };
    let cache = problem.cache;
    let (blueprint, settings) = problem.plan(&Strategy::Inferred, device.capabilities())?;
    // Two parts, if any, are as good as many.
    let blueprint = match blueprint {
        AttentionBlueprint::Decode { units, heads, splits } => {
            AttentionBlueprint::Decode { units, heads, splits: splits.min(2) }
        }
        other => other,
    };
    let capacity = 128;
    let tokens = case.tokens.min(capacity / 2);
    let first = (capacity - tokens) as u32;
    let positions: Vec<u32> = (first..capacity as u32).collect();
    let positions = Positions::upload(device, &positions)?;
    let cache = CubeKvCache::empty(device, CacheShape { capacity, ..cache })?;
    let q = device.upload(&vec![0.0f32; tokens * heads * head_dim])?;
    let out: Buffer<f32> = device.empty(tokens * heads * head_dim)?;
    let small = if masked { Some(BlockMask::upload(device, bitmap(0..capacity)?)?) } else { None };
    let segment = CacheSegment { rows: 0..tokens, positions: &positions, cache: &cache };
    let (spec, forced) = (case.heads.spec(), Strategy::Forced(blueprint));
    match small {
        Some(small) => device.attention_masked(&spec, &q, &segment, &small, &out, &forced)?,
        None => device.attention(&spec, &q, &segment, &out, &forced)?,
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Catalogue;
    use std::collections::HashSet;

    #[test]
    fn products_and_attention_are_problems_of_the_catalogue() {
        let names: HashSet<(String, String)> = Catalogue::full().names().into_iter().collect();
        let mut seen = HashSet::new();
        for counted in Counted::all() {
            let name = (counted.problem(), counted.kernel());
            let is_extra = matches!(
                counted,
                Counted::Head(_)
                    | Counted::KeyScores(_)
                    | Counted::Product(_, Weights::TwoBit(Granularity::Group(GroupSize::G64)))
            );
            assert!(is_extra || names.contains(&name), "{name:?}");
            assert!(seen.insert(name.clone()), "{name:?} twice");
        }
    }
}
