//! What happens between products, attention with masks, and hypervectors: operations without weights, as data, and their launches.

use anyhow::Result;
use std::fmt;
use trike_bench::{Attention, Heads, Limit};
use trike_core::{KeySelector, SelectedKeys};
use trike_cube::attention::{
    AttentionProblem, BlockBitmap, BlockMask, CacheSegment, CacheShape, CubeKvCache, KvPrecision, Positions,
};
use trike_cube::linear::{ActivationPrecision, ActivationShape, Activations};
use trike_cube::ops::{
    CubeRopeTable, Elementwise, ElementwiseProblem, GatedActivation, RopePairing, RopeProblem, RowInput,
    RowNorm, RowProblem, RowSource, RowTarget, TopProblem,
};
use trike_cube::{Buffer, Cost, CubeDevice, KernelProblem, Strategy, TritScore, TritTable};
use trike_testkit::Rng;
use trike_trit::{Encoding, Scales, TritTensor};

use super::entrant::{Absent, Entrant, HALVES, TRIKE, Timed, launches};

/// An operation of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// RMSNorm to f32.
    RmsNorm {
        /// Rows.
        tokens: usize,
        /// Columns.
        width: usize,
    },
    /// RMSNorm, then int8 codes for a ternary layer.
    NormAndQuantize {
        /// Rows.
        tokens: usize,
        /// Columns.
        width: usize,
    },
    /// Rotary position embedding of all query heads.
    Rotary {
        /// Tokens.
        tokens: usize,
        /// The heads; all query heads are rotated.
        heads: Heads,
    },
    /// Attention of a whole prompt over a random quarter of the key blocks, chosen for each KV head, and the diagonal.
    MaskedAttention {
        /// Tokens.
        tokens: usize,
        /// The heads.
        heads: Heads,
    },
    /// Attention of a token to 1024 of the positions before it, chosen by sign codes, and to the first and the last ones.
    SelectedAttention {
        /// Positions.
        positions: usize,
        /// The heads.
        heads: Heads,
    },
    /// Attention of one token over a cache in int8.
    Int8Attention {
        /// Positions, the token's own included.
        positions: usize,
        /// The heads.
        heads: Heads,
    },
    /// `silu(gate) * up` in f32, then int8 codes, in two launches.
    GateThenQuantize {
        /// Rows.
        tokens: usize,
        /// Columns.
        width: usize,
    },
    /// The same in one launch.
    GateAndQuantize {
        /// Rows.
        tokens: usize,
        /// Columns.
        width: usize,
    },
    /// The largest logits of a vocabulary.
    Top {
        /// Number of logits.
        vocab: usize,
        /// Number of results.
        k: usize,
    },
    /// Dot products of trit vectors with the rows of a table, by popcount.
    Scores {
        /// Query vectors.
        queries: usize,
        /// Rows of the table.
        rows: usize,
        /// Elements per vector.
        trits: usize,
    },
    /// Bundles of `each` hypervectors: both signs of each dimension counted.
    Bundle {
        /// Number of bundles.
        bundles: usize,
        /// Vectors per bundle.
        each: usize,
        /// Elements per vector.
        trits: usize,
    },
}

/// Operations of the 2b model for one token and for many, its top-k, and hypervectors of usual lengths.
pub(super) const OPERATIONS: &[Operation] = &[
    Operation::RmsNorm { tokens: 1, width: 2560 },
    Operation::RmsNorm { tokens: 2048, width: 2560 },
    Operation::NormAndQuantize { tokens: 1, width: 2560 },
    Operation::NormAndQuantize { tokens: 2048, width: 2560 },
    Operation::Rotary { tokens: 1, heads: Heads::B2 },
    Operation::Rotary { tokens: 2048, heads: Heads::B2 },
    Operation::MaskedAttention { tokens: 4096, heads: Heads::B2 },
    Operation::MaskedAttention { tokens: 4096, heads: Heads::B8 },
    Operation::SelectedAttention { positions: 32_768, heads: Heads::B8 },
    Operation::SelectedAttention { positions: 131_072, heads: Heads::B8 },
    Operation::Int8Attention { positions: 4096, heads: Heads::B2 },
    Operation::Int8Attention { positions: 4096, heads: Heads::B8 },
    Operation::Int8Attention { positions: 32_768, heads: Heads::B8 },
    Operation::GateThenQuantize { tokens: 1, width: 6912 },
    Operation::GateAndQuantize { tokens: 1, width: 6912 },
    Operation::GateThenQuantize { tokens: 2048, width: 6912 },
    Operation::GateAndQuantize { tokens: 2048, width: 6912 },
    Operation::Top { vocab: 128_256, k: 1 },
    Operation::Top { vocab: 128_256, k: 40 },
    Operation::Scores { queries: 1, rows: 65_536, trits: 10_240 },
    Operation::Scores { queries: 64, rows: 65_536, trits: 10_240 },
    Operation::Bundle { bundles: 256, each: 64, trits: 10_240 },
];

/// One of each kind, for testing the benchmark itself.
pub(super) const TINY: &[Operation] = &[
    Operation::RmsNorm { tokens: 2, width: 96 },
    Operation::NormAndQuantize { tokens: 2, width: 128 },
    Operation::Rotary { tokens: 2, heads: Heads::TINY },
    Operation::MaskedAttention { tokens: 200, heads: Heads::TINY },
    Operation::SelectedAttention { positions: 10_400, heads: Heads { head_dim: 64, ..Heads::TINY } },
    Operation::Int8Attention { positions: 200, heads: Heads::TINY },
    Operation::GateThenQuantize { tokens: 2, width: 128 },
    Operation::GateAndQuantize { tokens: 2, width: 128 },
    Operation::Top { vocab: 500, k: 4 },
    Operation::Scores { queries: 3, rows: 20, trits: 300 },
    Operation::Bundle { bundles: 2, each: 3, trits: 300 },
];

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RmsNorm { tokens, width } => write!(f, "rms-norm {width} m={tokens}"),
            Self::NormAndQuantize { tokens, width } => write!(f, "rms-norm and codes {width} m={tokens}"),
            Self::Rotary { tokens, heads } => {
                write!(f, "rotary {} x {} m={tokens}", heads.heads, heads.head_dim)
            }
            Self::MaskedAttention { tokens, heads } => {
                let whole = Attention { heads, tokens, positions: tokens, batch: 1 };
                write!(f, "{whole}, a quarter of the blocks")
            }
            Self::SelectedAttention { positions, heads } => {
                let all = Attention { heads, tokens: 1, positions, batch: 1 };
                write!(f, "{all}, {TOP_K} by sign codes")
            }
            Self::Int8Attention { positions, heads } => {
                write!(f, "{}, int8", Attention { heads, tokens: 1, positions, batch: 1 })
            }
            Self::GateThenQuantize { tokens, width } => write!(f, "swiglu, then codes {width} m={tokens}"),
            Self::GateAndQuantize { tokens, width } => write!(f, "swiglu and codes {width} m={tokens}"),
            Self::Top { vocab, k } => write!(f, "top {k} of {vocab}"),
            Self::Scores { queries, rows, trits } => write!(f, "trits {rows} x {trits} m={queries}"),
            Self::Bundle { bundles, each, trits } => write!(f, "{bundles} bundles of {each} x {trits}"),
        }
    }
}

/// Problem of rows that are quantized to int8 per token.
fn rows(tokens: usize, cols: usize, source: RowSource, norm: bool) -> RowProblem {
    let target = RowTarget::Codes(ActivationPrecision::Int8PerToken);
    RowProblem { rows: tokens, cols, source, norm, target, rotation: None }
}

const GATED: RowSource = RowSource::Gated(GatedActivation::SiLu);

impl Operation {
    /// Work and memory traffic of one call, all launches together.
    pub(super) fn cost(&self) -> Cost {
        match *self {
            Self::RmsNorm { tokens, width } => {
                let target = RowTarget::Floats;
                RowProblem { target, ..rows(tokens, width, RowSource::Plain, true) }.cost()
            }
            Self::NormAndQuantize { tokens, width } => rows(tokens, width, RowSource::Plain, true).cost(),
            Self::Rotary { tokens, heads } => rotary(tokens, heads).cost(),
            Self::MaskedAttention { tokens, heads } => {
                let Heads { heads: all, kv_heads, head_dim, .. } = heads;
                let cache = CacheShape { kv_heads, head_dim, capacity: tokens, precision: KvPrecision::F16 };
                let mask = quarter(tokens, heads).ok().map(|mask| mask.work(kv_heads, &(0..tokens), None));
                let (window, sequences, first_position) = (None, 1, 0);
                AttentionProblem { heads: all, window, tokens, sequences, first_position, cache, mask }.cost()
            }
            Self::SelectedAttention { positions, heads } => {
                let Heads { heads, kv_heads, head_dim, .. } = heads;
                let selected = keys().select(positions).map_or(positions, SelectedKeys::total);
                let kept = selected * KvPrecision::F16.bytes_per_position(head_dim);
                // Codes and lengths in words.
                let coded = positions * 4 * (head_dim.div_ceil(32) + 1);
                let bytes = kv_heads * (kept + coded) + 8 * heads * head_dim;
                Cost { macs: (2 * selected * heads * head_dim) as u64, bytes: bytes as u64 }
            }
            Self::Int8Attention { positions, heads } => {
                let Heads { heads: all, kv_heads, head_dim, .. } = heads;
                let cache =
                    CacheShape { kv_heads, head_dim, capacity: positions, precision: KvPrecision::Int8 };
                let (window, tokens, sequences, mask) = (None, 1, 1, None);
                let first_position = positions - 1;
                AttentionProblem { heads: all, window, tokens, sequences, first_position, cache, mask }.cost()
            }
            Self::GateThenQuantize { tokens, width } => {
                let operation = Elementwise::Gated(GatedActivation::SiLu);
                let gate = ElementwiseProblem { operation, len: tokens * width }.cost();
                let codes = rows(tokens, width, RowSource::Plain, false).cost();
                Cost { macs: gate.macs + codes.macs, bytes: gate.bytes + codes.bytes }
            }
            Self::GateAndQuantize { tokens, width } => rows(tokens, width, GATED, false).cost(),
            Self::Top { vocab, k } => TopProblem { rows: 1, cols: vocab, k }.cost(),
            Self::Scores { queries, rows, trits } => {
                let bytes = (rows + queries) * trits.div_ceil(4) + 4 * queries * rows;
                Cost { macs: (queries * rows * trits) as u64, bytes: bytes as u64 }
            }
            Self::Bundle { bundles, each, trits } => {
                let bytes = bundles * (each * trits.div_ceil(4) + 8 * trits);
                Cost { macs: (bundles * each * trits) as u64, bytes: bytes as u64 }
            }
        }
    }

    /// Ceilings of the operation.
    fn limits(&self) -> &'static [Limit] {
        if matches!(self, Self::MaskedAttention { .. } | Self::Int8Attention { .. }) {
            HALVES
        } else {
            &[Limit::Memory]
        }
    }

    /// The contender.
    pub(super) fn entrant<'a>(&self, device: &'a CubeDevice) -> Result<Entrant<'a>, Absent> {
        let problem = self.to_string();
        let timed = self.timed(device).map_err(|error| Absent {
            problem: Some(problem.clone()),
            kernel: TRIKE.to_owned(),
            rival: false,
            error,
        })?;
        Ok(Entrant {
            problem,
            kernel: TRIKE.to_owned(),
            blueprint: String::new(),
            rival: false,
            cost: self.cost(),
            limits: self.limits(),
            timed,
        })
    }

    fn timed<'a>(&self, device: &'a CubeDevice) -> Result<Timed<'a>> {
        let mut rng = Rng::new(13);
        match *self {
            Self::RmsNorm { tokens, width } => {
                let x = device.upload(&rng.normals(tokens * width))?;
                let weight = device.upload(&rng.normals(width))?;
                let out = device.empty(tokens * width)?;
                launches(device, 1, move |_| {
                    let norm = RowNorm { weight: &weight, eps: 1e-5 };
                    device.rms_norm(RowInput::Plain(&x), norm, &out, &Strategy::Inferred)
                })
            }
            Self::NormAndQuantize { tokens, width } => {
                let x = device.upload(&rng.normals(tokens * width))?;
                let weight = device.upload(&rng.normals(width))?;
                let out = codes(device, tokens, width)?;
                launches(device, 1, move |_| {
                    let norm = RowNorm { weight: &weight, eps: 1e-5 };
                    device.quantize(RowInput::Plain(&x), Some(norm), &out, &Strategy::Inferred)
                })
            }
            Self::Rotary { tokens, heads: Heads { heads, head_dim, .. } } => {
                let x = device.upload(&rng.normals(tokens * heads * head_dim))?;
                let frequencies: Vec<f32> =
                    (0..head_dim / 2).map(|i| 1e4f32.powf(-2.0 * i as f32 / head_dim as f32)).collect();
                let turns = CubeRopeTable::upload(device, &frequencies, tokens, RopePairing::Halves)?;
                let at: Vec<u32> = (0..tokens as u32).collect();
                let positions = Positions::upload(device, &at)?;
                launches(device, 1, move |_| {
                    device.rope(&x, head_dim, &positions, &turns, &Strategy::Inferred)
                })
            }
            Self::MaskedAttention { tokens, heads: of } => {
                let Heads { heads, kv_heads, head_dim, .. } = of;
                let halves = device.capabilities().f16;
                let precision = if halves { KvPrecision::F16 } else { KvPrecision::F32 };
                let shape = CacheShape { kv_heads, head_dim, capacity: tokens, precision };
                let cache = CubeKvCache::empty(device, shape)?;
                let at: Vec<u32> = (0..tokens as u32).collect();
                let positions = Positions::upload(device, &at)?;
                let k = device.upload(&rng.normals(tokens * kv_heads * head_dim))?;
                let v = device.upload(&rng.normals(tokens * kv_heads * head_dim))?;
                device.store(
                    &k,
                    &v,
                    &CacheSegment { rows: 0..tokens, positions: &positions, cache: &cache },
                )?;
                let q = device.upload(&rng.normals(tokens * heads * head_dim))?;
                let out = device.empty(tokens * heads * head_dim)?;
                let mask = BlockMask::upload(device, quarter(tokens, of)?)?;
                launches(device, 1, move |_| {
                    let segment = CacheSegment { rows: 0..tokens, positions: &positions, cache: &cache };
                    device.attention_masked(&of.spec(), &q, &segment, &mask, &out, &Strategy::Inferred)
                })
            }
            Self::SelectedAttention { positions, heads: of } => {
                // Stored again and again: what the keys are makes no difference to the time.
                const STORED: usize = 4096;
                let Heads { heads, kv_heads, head_dim, .. } = of;
                let halves = device.capabilities().f16;
                let precision = if halves { KvPrecision::F16 } else { KvPrecision::F32 };
                let shape = CacheShape { kv_heads, head_dim, capacity: positions, precision };
                let cache = CubeKvCache::empty(device, shape)?.with_keys(device, keys())?;
                let k = device.upload(&rng.normals(STORED * kv_heads * head_dim))?;
                let v = device.upload(&rng.normals(STORED * kv_heads * head_dim))?;
                for first in (0..positions).step_by(STORED) {
                    let at: Vec<u32> = (first as u32..).take(STORED).collect();
                    let rows = 0..STORED.min(positions - first);
                    let at = Positions::upload(device, &at)?;
                    device.store(&k, &v, &CacheSegment { rows, positions: &at, cache: &cache })?;
                }
                let last = Positions::upload(device, &[positions as u32 - 1])?;
                let q = device.upload(&rng.normals(heads * head_dim))?;
                let out = device.empty(heads * head_dim)?;
                let attend = move |_| {
                    let segment = CacheSegment { rows: 0..1, positions: &last, cache: &cache };
                    device.attention(&of.spec(), &q, &segment, &out, &Strategy::Inferred)
                };
                // All keys are coded by the first call.
                attend(0)?;
                launches(device, 1, attend)
            }
            Self::Int8Attention { positions: capacity, heads: of } => {
                let Heads { heads, kv_heads, head_dim, .. } = of;
                let shape = CacheShape { kv_heads, head_dim, capacity, precision: KvPrecision::Int8 };
                let cache = CubeKvCache::empty(device, shape)?;
                let at: Vec<u32> = (0..capacity as u32).collect();
                let all = Positions::upload(device, &at)?;
                let k = device.upload(&rng.normals(capacity * kv_heads * head_dim))?;
                let v = device.upload(&rng.normals(capacity * kv_heads * head_dim))?;
                device.store(&k, &v, &CacheSegment { rows: 0..capacity, positions: &all, cache: &cache })?;
                let last = Positions::upload(device, &at[capacity - 1..])?;
                let q = device.upload(&rng.normals(heads * head_dim))?;
                let out = device.empty(heads * head_dim)?;
                launches(device, 1, move |_| {
                    let segment = CacheSegment { rows: 0..1, positions: &last, cache: &cache };
                    device.attention(&of.spec(), &q, &segment, &out, &Strategy::Inferred)
                })
            }
            Self::GateThenQuantize { tokens, width } => {
                let [gate, up] = gates(device, tokens * width, &mut rng)?;
                let between: Buffer<f32> = device.empty(tokens * width)?;
                let out = codes(device, tokens, width)?;
                launches(device, 1, move |_| {
                    device.gated(&gate, &up, GatedActivation::SiLu, &between, &Strategy::Inferred)?;
                    device.quantize(RowInput::Plain(&between), None, &out, &Strategy::Inferred)
                })
            }
            Self::GateAndQuantize { tokens, width } => {
                let [gate, up] = gates(device, tokens * width, &mut rng)?;
                let out = codes(device, tokens, width)?;
                launches(device, 1, move |_| {
                    let input = RowInput::Gated { gate: &gate, up: &up, activation: GatedActivation::SiLu };
                    device.quantize(input, None, &out, &Strategy::Inferred)
                })
            }
            Self::Top { vocab, k } => {
                let x = device.upload(&rng.normals(vocab))?;
                let values = device.empty(k)?;
                launches(device, 1, move |_| device.top(&x, vocab, k, &values, &Strategy::Inferred).map(drop))
            }
            Self::Scores { queries, rows, trits } => {
                let table = hypervectors(device, rows, trits, &mut rng)?;
                let some = hypervectors(device, queries, trits, &mut rng)?;
                let out = device.empty(queries * rows)?;
                launches(device, 1, move |_| {
                    device.trit_scores(TritScore::Dot, &some, &table, &out, &Strategy::Inferred)
                })
            }
            Self::Bundle { bundles, each, trits } => {
                let table = hypervectors(device, bundles * each, trits, &mut rng)?;
                launches(device, 1, move |_| device.bundle(&table, each, None).map(drop))
            }
        }
    }
}

/// Keys that are chosen by their codes, as by default.
pub(super) const TOP_K: usize = 1024;

pub(super) fn keys() -> KeySelector {
    KeySelector::signs(TOP_K).unwrap_or_default()
}

fn rotary(tokens: usize, heads: Heads) -> RopeProblem {
    let Heads { heads, head_dim, .. } = heads;
    RopeProblem { tokens, heads, head_dim, rotated: head_dim, pairing: RopePairing::Halves }
}

/// A random quarter of the key blocks before each query block, for each KV head.
fn quarter(tokens: usize, heads: Heads) -> trike_cube::Result<BlockBitmap> {
    let mut rng = Rng::new(17);
    Ok(BlockBitmap::from_fn(heads.kv_heads, 0..tokens, |_, _, _| rng.below(4) == 0)?)
}

fn codes(device: &CubeDevice, tokens: usize, cols: usize) -> Result<Activations> {
    let precision = ActivationPrecision::Int8PerToken;
    Ok(Activations::empty(device, ActivationShape { tokens, cols, precision })?)
}

fn gates(device: &CubeDevice, len: usize, rng: &mut Rng) -> Result<[Buffer<f32>; 2]> {
    Ok([device.upload(&rng.normals(len))?, device.upload(&rng.normals(len))?])
}

/// Random hypervectors with a third of zeros.
fn hypervectors(device: &CubeDevice, rows: usize, trits: usize, rng: &mut Rng) -> Result<TritTable> {
    let values = rng.trits(rows * trits, 2.0 / 3.0);
    let tensor = TritTensor::from_trits(rows, trits, &values, Encoding::Planes, Scales::tensor(1.0))?;
    Ok(TritTable::upload(device, &tensor)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fusing_the_gate_saves_a_pass_over_memory() {
        let [apart, fused] = [
            Operation::GateThenQuantize { tokens: 7, width: 6912 },
            Operation::GateAndQuantize { tokens: 7, width: 6912 },
        ];
        // The product in f32, written and read again.
        assert_eq!(apart.cost().bytes - fused.cost().bytes, 2 * 4 * 7 * 6912);
        assert_eq!(apart.to_string(), "swiglu, then codes 6912 m=7");
    }

    #[test]
    fn masked_attention_is_between_a_quarter_and_the_whole() {
        let masked = Operation::MaskedAttention { tokens: 4096, heads: Heads::B2 };
        let whole = Attention { heads: Heads::B2, tokens: 4096, positions: 4096, batch: 1 }.cost();
        let share = masked.cost().macs as f64 / whole.macs as f64;
        assert!((0.24..0.28).contains(&share), "{share}");
        assert_eq!(masked.to_string(), "attention prefill 4096, a quarter of the blocks");
    }
}
