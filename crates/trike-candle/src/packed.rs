//! Reading Trike's packed tensors through a `VarBuilder`.
//!
//! A `VarBuilder` reads tensors but not `config.json`, where Trike describes them. The description is not needed: given the
//! shape of the layer, it follows from the parts and their shapes (see `docs/src/formats.md`). No two encodings have rows
//! of the same length in bytes, and group sizes that give the same number of groups are equivalent. One mismatch cannot
//! be detected: a layer wider than the tensor by less than the padding of its rows, or by any number of columns for a
//! compressed tensor. The extra columns read as zeros.

use candle_core::{DType, Tensor};
use candle_nn::VarBuilder;
use trike_trit::{Coupling, Granularity, GroupSize, Hadamard, ScaleValues, Scales, TritData, TritTensor};

use crate::exec::check_len;
use crate::{CandleError, NnError};

/// Whether `weight` is stored in parts.
pub(crate) fn is_packed(vb: &VarBuilder<'_>) -> bool {
    vb.contains_tensor("weight.trits") || vb.contains_tensor("weight.rotated")
}

/// The `rows x cols` tensor `weight` from its parts.
pub(crate) fn read(vb: &VarBuilder<'_>, rows: usize, cols: usize) -> Result<TritTensor, CandleError> {
    let part = |suffix: &str, dtype| vb.get_unchecked_dtype(&format!("weight.{suffix}"), dtype);
    let has = |suffix: &str| vb.contains_tensor(&format!("weight.{suffix}"));
    let rotation = match has("rotated") {
        false => None,
        true => {
            let block: Vec<u32> = part("rotation", DType::U32)?.flatten_all()?.to_vec1()?;
            check_len("elements of `weight.rotation`", 1, block.len())?;
            Some(Hadamard::new(block[0] as usize)?)
        }
    };
    let trits = part(if rotation.is_some() { "rotated" } else { "trits" }, DType::U8)?;
    let bytes: Vec<u8> = trits.flatten_all()?.to_vec1()?;
    let bit_bytes = 8 * cols.div_ceil(64);
    let planes: Vec<TritData> = if has("offsets") {
        let offsets = part("offsets", DType::U32)?;
        let (depth, _) = offsets.dims2()?;
        let offsets: Vec<u32> = offsets.flatten_all()?.to_vec1()?;
        let offsets = split(&offsets, depth);
        if has("signs") {
            check_shape(&trits, &[depth, rows, bit_bytes])?;
            let signs: Vec<u8> = part("signs", DType::U8)?.flatten_all()?.to_vec1()?;
            check_len("bytes of `weight.signs` beyond whole words", 0, signs.len() % 8)?;
            let signs = cut(&words(&signs), &offsets)?;
            let maps = split(&bytes, depth).into_iter().zip(offsets).zip(signs);
            maps.map(|((map, offsets), negative)| TritData::Bitmap {
                nonzero: words(&map),
                offsets,
                negative,
            })
            .collect()
        } else {
            let entries = cut(&bytes, &offsets)?;
            let planes = offsets.into_iter().zip(entries);
            planes.map(|(offsets, entries)| TritData::RowCompressed { offsets, entries }).collect()
        }
    } else {
        match *trits.dims() {
            [depth, 2, r, w] if (r, w) == (rows, bit_bytes) => split(&bytes, depth)
                .iter()
                .map(|plane| {
                    let (pos, neg) = plane.split_at(plane.len() / 2);
                    TritData::Planes { pos: words(pos), neg: words(neg) }
                })
                .collect(),
            [depth, r, w] if (r, w) == (rows, 8 * cols.div_ceil(32)) => {
                split(&bytes, depth).iter().map(|plane| TritData::TwoBit(words(plane))).collect()
            }
            [depth, r, w] if (r, w) == (rows, cols.div_ceil(5)) => {
                if w.is_multiple_of(8) && bytes.len() >= TELLING && bytes.iter().all(is_two_bit) {
                    return Err(misfit(format!("2-bit codes with rows not of length {cols}")));
                }
                split(&bytes, depth).into_iter().map(TritData::Base3).collect()
            }
            _ => return Err(misfit(format!("{:?} for {rows} x {cols} weights", trits.dims()))),
        }
    };
    let scales = scales(&part("scales", DType::F32)?, planes.len(), cols)?;
    let means = if has("means") { Some(values(&part("means", DType::F32)?)?) } else { None };
    let (granularity, coupling, scales) = scales;
    let scales = Scales::new(granularity, scales, means);
    Ok(TritTensor::new(rows, cols, planes, coupling, scales)?.with_rotation(rotation)?)
}

/// Number of bytes that makes a false positive of the next check negligible: a third of all base-3 bytes pass it.
const TELLING: usize = 64;

/// Whether a byte is four 2-bit codes. Rows of 2-bit codes are as long as base-3 rows of about 1.25 times as many weights,
/// so this check detects a layer of the wrong width. In the opposite case the tensor rejects the code 3.
fn is_two_bit(byte: &u8) -> bool {
    byte & (byte >> 1) & 0x55 == 0
}

/// Granularity, coupling of the planes, and scales, from a shape `[sets]`, `[sets, rows]` or `[sets, rows, groups]`.
fn scales(
    scales: &Tensor,
    depth: usize,
    cols: usize,
) -> Result<(Granularity, Coupling, ScaleValues), CandleError> {
    let (sets, granularity) = match *scales.dims() {
        [sets] => (sets, Granularity::Tensor),
        [sets, _] => (sets, Granularity::Row),
        [sets, _, groups] => {
            let fits = |size: &GroupSize| cols.div_ceil(size.get()) == groups;
            let size = GroupSize::ALL.into_iter().find(fits);
            let size = size.ok_or_else(|| misfit(format!("{groups} scales per row of {cols} weights")))?;
            (sets, Granularity::Group(size))
        }
        _ => return Err(misfit(format!("`weight.scales` {:?}", scales.dims()))),
    };
    let coupling = match sets {
        sets if sets == depth => Coupling::Free,
        1 => Coupling::Tied,
        _ => return Err(misfit(format!("{sets} sets of scales for {depth} planes"))),
    };
    Ok((granularity, coupling, values(scales)?))
}

fn values(tensor: &Tensor) -> Result<ScaleValues, CandleError> {
    Ok(ScaleValues::exact(&tensor.flatten_all()?.to_vec1::<f32>()?))
}

/// `depth` parts of the same length.
fn split<T: Clone>(all: &[T], depth: usize) -> Vec<Vec<T>> {
    let len = all.len() / depth.max(1);
    all.chunks_exact(len.max(1)).map(<[T]>::to_vec).collect()
}

/// One part per plane; its length is the plane's last row offset.
fn cut<T: Clone>(all: &[T], offsets: &[Vec<u32>]) -> Result<Vec<Vec<T>>, CandleError> {
    let mut rest = all;
    let mut parts = Vec::with_capacity(offsets.len());
    for offsets in offsets {
        let len = offsets.last().map_or(0, |&n| n as usize);
        let Some((part, after)) = rest.split_at_checked(len) else {
            return Err(misfit(format!("a last row offset of {len} with {} elements left", rest.len())));
        };
        parts.push(part.to_vec());
        rest = after;
    }
    check_len("elements after the last plane", 0, rest.len())?;
    Ok(parts)
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

fn check_shape(tensor: &Tensor, expected: &[usize]) -> Result<(), CandleError> {
    if tensor.dims() == expected {
        return Ok(());
    }
    Err(misfit(format!("`weight.trits` {:?}, expected {expected:?}", tensor.dims())))
}

fn misfit(got: String) -> CandleError {
    let rule = "must have parts consistent with each other and with the layer";
    NnError::Spec { field: "a packed weight", rule, got }.into()
}
