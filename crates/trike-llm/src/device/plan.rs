//! Device memory that a model needs, computed from file headers.

#[cfg(feature = "gpu")]
use std::{collections::BTreeMap, ops::Range};

use trike_core::Layout;
use trike_format::StoredType;
use trike_nn::{DecoderSpec, Division, KvSpec, LayerWeights, MemoryPlan, WeightName};
use trike_trit::{Coupling, Encoding};

use crate::{LlmError, LoadOptions, ModelFile, WeightSource, generate::PROMPT_STEP, load::HEAD_GROUP};

/// Device memory that a model needs: weights in the kernels' layout, a KV cache of `kv`, and the activations of a prefill
/// step. Only headers are read, so the size of the scales of packed trits is estimated from their size in the file.
///
/// # Errors
///
/// When a weight is missing.
pub fn memory_plan(file: &ModelFile, options: &LoadOptions, kv: &KvSpec) -> Result<MemoryPlan, LlmError> {
    let LayerWeights { embedding, layers, head } = layer_weights(file, options, false)?;
    let weights = layers.iter().fold(embedding.saturating_add(head), |sum, bytes| sum.saturating_add(*bytes));
    Ok(MemoryPlan::new(&file.config().spec, weights, kv, PROMPT_STEP))
}

/// The weights of a model by layer, on one device or on several.
pub(super) fn layer_weights(
    file: &ModelFile,
    options: &LoadOptions,
    several: bool,
) -> Result<LayerWeights, LlmError> {
    let spec = &file.config().spec;
    let mut weights = LayerWeights { layers: vec![0; spec.layers], ..LayerWeights::default() };
    for name in file.weights() {
        let info = file.info(name)?;
        let bytes = match info.shape[..] {
            [rows, cols] => form(file, options, name)?.bytes(rows as u64, cols as u64, info.bytes),
            // Vectors are stored in f32.
            _ => info.elements().saturating_mul(4),
        };
        let LayerWeights { embedding, layers, head } = &mut weights;
        let place = match name.layer() {
            Some(layer) => layers.get_mut(layer).unwrap_or(head),
            None if name == WeightName::Embedding => embedding,
            None => head,
        };
        *place = place.saturating_add(bytes);
    }
    if several && spec.tied_head {
        weights.head = weights.head.saturating_add(weights.embedding);
    }
    Ok(weights)
}

/// The weights of one rank.
pub(super) struct RankWeights {
    pub(super) weights: u64,
    /// Bytes of the weights that are used directly from mapped files.
    pub(super) mapped: u64,
    /// Bytes of the largest matrix of which the rank holds a shard.
    pub(super) largest_divided: u64,
}

/// The weights that a rank holds.
pub(super) fn rank_weights(
    file: &ModelFile,
    options: &LoadOptions,
    division: &Division,
    rank: usize,
) -> Result<RankWeights, LlmError> {
    let mut sum = RankWeights { weights: 0, mapped: 0, largest_divided: 0 };
    for name in file.weights() {
        let info = file.info(name)?;
        let bytes = match info.shape[..] {
            [rows, cols] => {
                let form = form(file, options, name)?;
                let part = division.rows(rank, name, rows).len();
                let stored = |part: usize| info.bytes / rows.max(1) as u64 * part as u64;
                match part == rows {
                    true if WeightSource::tiles(file, name)?.is_some() => sum.mapped += info.bytes,
                    false if part > 0 => {
                        let whole = form.bytes(rows as u64, cols as u64, info.bytes);
                        sum.largest_divided = sum.largest_divided.max(whole);
                    }
                    _ => {}
                }
                match part {
                    0 => 0,
                    part => form.bytes(part as u64, cols as u64, stored(part)),
                }
            }
            // Vectors are stored in f32.
            _ => {
                let all = usize::try_from(info.elements()).unwrap_or(usize::MAX);
                division.rows(rank, name, all).len() as u64 * 4
            }
        };
        sum.weights = sum.weights.saturating_add(bytes);
    }
    Ok(sum)
}

/// The storage of a matrix in the kernels.
fn form(file: &ModelFile, options: &LoadOptions, name: WeightName) -> Result<Form, LlmError> {
    let is_head = match name {
        WeightName::Head => true,
        WeightName::Embedding => file.config().spec.tied_head,
        _ => false,
    };
    Ok(match &file.info(name)?.kind {
        StoredType::F32 | StoredType::F16 | StoredType::Bf16 if is_head && options.head.rounds(file) => {
            Form::Int8(HEAD_GROUP)
        }
        _ if file.is_online_ternary(name) => Form::Trits { planes: 1, group: None },
        kind => Form::of(kind, options.layout),
    })
}

/// The name and size in bytes of one allocation.
#[cfg(any(feature = "gpu", test))]
pub(super) type Piece = (String, u64);

/// The potentially large allocations of a device with some layers of a model: matrices (fused ones together), and the keys or
/// values of one layer.
#[cfg(feature = "gpu")]
pub(super) fn pieces(
    file: &ModelFile,
    options: &LoadOptions,
    kv: &KvSpec,
    layers: &Range<usize>,
) -> Result<Vec<Piece>, LlmError> {
    let spec = &file.config().spec;
    let (is_first, is_last) = (layers.start == 0, layers.end == spec.layers);
    let is_here = |name: WeightName| match (name.layer(), name) {
        (Some(layer), _) => layers.contains(&layer),
        (None, WeightName::Embedding) => is_first || (is_last && spec.tied_head),
        (None, _) => is_last,
    };
    let mut together: BTreeMap<(usize, &'static str), Piece> = BTreeMap::new();
    let mut pieces = Vec::new();
    for name in file.weights().into_iter().filter(|&name| is_here(name)) {
        let info = file.info(name)?;
        let [rows, cols] = info.shape[..] else { continue };
        let form = form(file, options, name)?;
        let bytes = form.largest(rows as u64, cols as u64);
        let beside = match (name.layer(), name.read_at()) {
            (Some(layer), Some(trike_nn::HookPoint::Attention)) => Some((layer, "query")),
            (Some(layer), Some(trike_nn::HookPoint::Mlp)) => Some((layer, "gate")),
            _ => None,
        };
        match beside.filter(|_| matches!(form, Form::Trits { .. } | Form::Packed { .. })) {
            Some(key) => {
                let (names, sum) = together.entry(key).or_insert_with(|| (String::new(), 0));
                *names += if names.is_empty() { "" } else { " with " };
                *names += &info.name;
                *sum = sum.saturating_add(bytes);
            }
            None => pieces.push((info.name.clone(), bytes)),
        }
    }
    pieces.extend(together.into_values());
    // Keys and values have the same size.
    let of_layer = |layer| MemoryPlan::of_layers(spec, layer..layer + 1, 0, kv, PROMPT_STEP).cache / 2;
    let cache = layers.clone().map(of_layer).max().unwrap_or(0);
    let (capacity, copy) = (kv.capacity, MemoryPlan::default().on_device(spec, kv).scratch / 2);
    pieces.push((format!("keys of one layer at {capacity} positions"), cache));
    if copy > 0 {
        pieces.push((format!("keys of one layer at {capacity} positions, copied for prompts"), copy));
    }
    Ok(pieces)
}

/// Returns an error for the first allocation larger than `limit`.
#[cfg(any(feature = "gpu", test))]
pub(super) fn check_pieces(pieces: &[Piece], device: &str, limit: u64) -> Result<(), LlmError> {
    match pieces.iter().find(|(_, bytes)| *bytes > limit) {
        None => Ok(()),
        Some((what, requested)) => Err(LlmError::TooLarge {
            what: what.clone(),
            device: device.to_owned(),
            requested: *requested,
            limit,
            remedy: if what.starts_with("keys") {
                "shorten the sequence, use a rolling window, or run the model on the CPU"
            } else {
                "run the model on the CPU"
            },
        }),
    }
}

/// Storage of a matrix in the kernels.
enum Form {
    /// Bytes per weight.
    Dense(u64),
    /// One byte per weight and one f32 scale per group of columns.
    Int8(usize),
    /// Two bits per trit, and one scale per row or per group of columns.
    Trits { planes: u64, group: Option<u64> },
    /// Trits in a kernel layout; the number of scales is not in the header.
    Packed { planes: u64, encoding: Encoding, layout: Layout },
}

impl Form {
    /// `layout` is the requested layout.
    fn of(kind: &StoredType, layout: Option<Layout>) -> Self {
        let trits = |group| Self::Trits { planes: 1, group };
        match kind {
            StoredType::F32 => Self::Dense(4),
            StoredType::F16 | StoredType::Bf16 => Self::Dense(2),
            StoredType::Q8_0 | StoredType::Q4_0 | StoredType::Q5_0 => Self::Int8(32),
            StoredType::Q6K => Self::Int8(16),
            StoredType::Int8 { group } => Self::Int8(*group),
            StoredType::Tq1_0 | StoredType::Tq2_0 => trits(Some(256)),
            StoredType::Q2_0(group) => trits(Some(group.get() as u64)),
            StoredType::Pq2_0 | StoredType::Ptq1_0 => trits(Some(128)),
            StoredType::I2S | StoredType::BitNet => trits(None),
            StoredType::Trits { encoding, depth, coupling } => {
                let plain = *depth == 1;
                let layout = match (layout, encoding) {
                    // Row-compressed tensors are mostly zeros, so the kernels use the sparse layout; bitmaps may be too dense.
                    (None | Some(Layout::Sparse), Encoding::RowCompressed) if plain => Layout::Sparse,
                    (Some(Layout::Base3), _) if plain || *coupling == Coupling::Free => Layout::Base3,
                    _ => Layout::TwoBit,
                };
                Self::Packed { planes: *depth as u64, encoding: *encoding, layout }
            }
            // Types with minima and unknown types are dequantized to f32.
            _ => Self::Dense(4),
        }
    }

    /// Bytes of a matrix's largest allocation; scales are separate.
    #[cfg(feature = "gpu")]
    fn largest(&self, rows: u64, cols: u64) -> u64 {
        match *self {
            Self::Dense(_) => self.bytes(rows, cols, 0),
            Self::Int8(_) => rows.saturating_mul(cols.next_multiple_of(16)),
            Self::Packed { layout: Layout::Base3, planes, .. } => base3(rows, cols).saturating_mul(planes),
            Self::Trits { planes, .. } | Self::Packed { planes, .. } => {
                codes(rows, cols).saturating_mul(planes)
            }
        }
    }

    /// Bytes of a matrix whose size in the file is `stored` bytes.
    fn bytes(&self, rows: u64, cols: u64, stored: u64) -> u64 {
        let padded = rows.saturating_mul(cols.next_multiple_of(16));
        let codes = |planes: u64| codes(rows, cols).saturating_mul(planes);
        match *self {
            Self::Dense(each) => padded.saturating_mul(each),
            Self::Int8(group) => {
                let scales = rows.saturating_mul(cols.div_ceil(group.max(1) as u64));
                padded.saturating_add(scales.saturating_mul(4))
            }
            // Scales are f16 where possible; a file with f32 scales has one per tensor.
            Self::Trits { planes, group } => {
                let groups = group.map_or(1, |group| cols.div_ceil(group));
                let scales = rows.next_multiple_of(16).saturating_mul(groups).saturating_mul(planes);
                codes(planes).saturating_add(scales.saturating_mul(2))
            }
            Self::Packed { encoding: Encoding::RowCompressed, layout: Layout::Sparse, .. } => {
                // The file stores offsets, one byte per nonzero, and scales; the kernels store two bytes per nonzero, offsets,
                // and one f32 scale per row.
                let entries = stored.saturating_sub(4 * (rows + 1) + 2 * rows);
                entries.saturating_mul(2).saturating_add(4 * (2 * rows + 2))
            }
            Self::Packed { planes, encoding, layout } => {
                let weights = rows.saturating_mul(cols).saturating_mul(planes);
                // The remaining bytes in the file are scales; for a sparse encoding their size is unknown.
                let trits = match encoding {
                    Encoding::Base3 => weights / 5,
                    Encoding::TwoBit | Encoding::Planes => weights / 4,
                    _ => stored,
                };
                let row_scales = rows.next_multiple_of(16).saturating_mul(2 * planes);
                let codes = match layout {
                    Layout::Base3 => base3(rows, cols).saturating_mul(planes),
                    _ => codes(planes),
                };
                codes.saturating_add(stored.saturating_sub(trits).max(row_scales))
            }
        }
    }
}

/// Bytes of a plane with five trits per byte, in the kernels' tiles.
fn base3(rows: u64, cols: u64) -> u64 {
    rows.next_multiple_of(16).saturating_mul(cols.next_multiple_of(160)) / 5
}

/// Bytes of a plane of two-bit codes in the kernels' tiles.
fn codes(rows: u64, cols: u64) -> u64 {
    rows.next_multiple_of(16).saturating_mul(cols.next_multiple_of(128)) / 4
}

/// Memory plan of a random-trit model.
pub(super) fn synthetic_plan(spec: &DecoderSpec, kv: &KvSpec) -> MemoryPlan {
    let LayerWeights { embedding, layers, head } = synthetic_weights(spec);
    MemoryPlan::new(spec, embedding + head + layers.iter().sum::<u64>(), kv, PROMPT_STEP)
}

/// The weights of a random-trit model by layers.
pub(super) fn synthetic_weights(spec: &DecoderSpec) -> LayerWeights {
    let table = spec.vocab as u64 * spec.hidden as u64;
    let (hidden, query, keys) = (spec.hidden as u64, spec.query_width() as u64, spec.kv_width() as u64);
    let layer = hidden * (2 * query + 2 * keys + 3 * spec.intermediate as u64);
    // Two bytes per embedding weight, one byte per LM head weight, four trits per byte.
    LayerWeights { embedding: 2 * table, layers: vec![layer / 4; spec.layers], head: table }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_take_what_the_kernels_lay_out() {
        let trits = Form::Trits { planes: 2, group: Some(128) };
        // Two planes of 16 x 256 trits, and two scales for each of 16 rows and planes.
        assert_eq!(trits.bytes(10, 200, 0), 2 * 16 * 256 / 4 + 2 * 16 * 2 * 2);
        assert_eq!(Form::Dense(2).bytes(10, 20, 0), 10 * 32 * 2);
        assert_eq!(Form::Int8(32).bytes(10, 64, 0), 10 * 64 + 10 * 2 * 4);
    }

    #[test]
    fn layouts_of_their_own_take_less() {
        let kind = |encoding| StoredType::Trits { encoding, depth: 1, coupling: Coupling::Free };
        let (rows, cols) = (4096u64, 4096u64);
        let two_bits = Form::of(&kind(Encoding::TwoBit), None).bytes(rows, cols, rows * cols / 4);
        // 95 % zeros: one byte per nonzero, and offsets and an f16 scale per row.
        let stored = rows * cols / 20 + 4 * (rows + 1) + 2 * rows;
        let sparse = Form::of(&kind(Encoding::RowCompressed), None).bytes(rows, cols, stored);
        assert_eq!(sparse, 2 * (rows * cols / 20) + 8 * (rows + 1));
        let stored = rows * cols / 5;
        let base3 = Form::of(&kind(Encoding::Base3), Some(Layout::Base3)).bytes(rows, cols, stored);
        assert!(sparse < two_bits / 2 && base3 < two_bits * 17 / 20, "{sparse} {base3} {two_bits}");
        let asked = Form::of(&kind(Encoding::RowCompressed), Some(Layout::TwoBit)).bytes(rows, cols, stored);
        assert!(asked >= two_bits);
    }

    #[test]
    fn what_is_too_large_for_one_piece_is_named() {
        let pieces = [("a.weight".to_owned(), 128), ("b.weight".to_owned(), 129)];
        check_pieces(&pieces, "wgpu:0", 129).expect("at the limit");
        let refused = check_pieces(&pieces, "wgpu:0", 128).expect_err("over it").to_string();
        assert_eq!(
            refused,
            "b.weight: one allocation of 129 bytes, but wgpu:0 supports at most 128: run the model on the CPU"
        );
        check_pieces(&pieces, "wgpu:0", 127).expect_err("both");
    }
}
