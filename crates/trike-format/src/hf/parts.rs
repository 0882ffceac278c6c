//! Conversion of packed tensors from and to the bytes of their parts.

use safetensors::Dtype;
use trike_core::{Int8Tiles, Tiles, TritTiles};
use trike_trit::{Encoding, ScaleValues, Scales, TritData, TritError, TritTensor};

use super::packed::{Form, Packed, Part, missing_part};
use crate::{
    FormatError, Int8Tensor, Tensor,
    bytes::{self, put_f16s, put_f32s, put_u32s, put_u64s},
    error::Place,
};

impl Packed {
    /// Builds the tensor from its parts, which must have the types and shapes of [`parts`](Self::parts).
    pub(crate) fn load<'a>(
        &self,
        place: Place<'_>,
        part: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Result<Tensor, FormatError> {
        if let Some(tiles) = self.tiles(&part) {
            return self.load_tiles(place, &tiles);
        }
        let part = |suffix: &str| part(suffix).ok_or_else(|| missing_part(place, suffix));
        let scales = scale_values(self.scales, part(".scales")?);
        match &self.form {
            Form::Int8 { group, .. } => {
                let codes = bytemuck::cast_slice::<u8, i8>(part(".int8")?).to_vec();
                let tensor = Int8Tensor::new(self.rows, self.cols, *group, codes, scales);
                tensor.map(Tensor::Int8).map_err(|e| place.tensor_error(&e))
            }
            Form::Trits { encoding, depth, coupling, granularity, means, rotation, .. } => {
                let means = match means {
                    Some(dtype) => Some(scale_values(*dtype, part(".means")?)),
                    None => None,
                };
                let trits = match rotation {
                    None => part(".trits")?,
                    Some(rotation) => {
                        let block = bytes::u32s(part(".rotation")?);
                        if block != [rotation.block() as u32] {
                            let expected = format!("`.rotation` to be {}", rotation.block());
                            return Err(place.layout(expected, format!("{block:?}")));
                        }
                        part(".rotated")?
                    }
                };
                let planes = match encoding {
                    Encoding::Bitmap => {
                        let offsets = bytes::u32s(part(".offsets")?);
                        bitmap_planes(place, *depth, trits, &offsets, part(".signs")?)?
                    }
                    Encoding::RowCompressed => {
                        let offsets = bytes::u32s(part(".offsets")?);
                        compressed_planes(place, *depth, trits, &offsets)?
                    }
                    fixed => {
                        trits.chunks_exact(trits.len() / depth).map(|b| fixed_plane(*fixed, b)).collect()
                    }
                };
                let scales = Scales::new(*granularity, scales, means);
                let tensor = TritTensor::new(self.rows, self.cols, planes, *coupling, scales);
                let tensor = tensor.and_then(|tensor| tensor.with_rotation(*rotation));
                tensor.map(Tensor::Ternary).map_err(|e| place.trits(e))
            }
        }
    }
}

impl Packed {
    /// The tensor of tiles.
    fn load_tiles(&self, place: Place<'_>, tiles: &Tiles<&[u8]>) -> Result<Tensor, FormatError> {
        match (tiles, &self.form) {
            (Tiles::Trits(tiles), Form::Trits { encoding, .. }) => {
                tiles.to_tensor(*encoding).map(Tensor::Ternary).map_err(|e| place.trits(e))
            }
            (Tiles::Trits(_), Form::Int8 { .. }) => Err(missing_part(place, ".int8")),
            (Tiles::Int8(tiles), _) => {
                tiles.to_tensor().map(Tensor::Int8).map_err(|e| place.tensor_error(&e))
            }
        }
    }
}

/// A plane of an encoding with a fixed row length.
fn fixed_plane(encoding: Encoding, plane: &[u8]) -> TritData {
    match encoding {
        Encoding::Planes => {
            let (pos, neg) = plane.split_at(plane.len() / 2);
            TritData::Planes { pos: bytes::u64s(pos), neg: bytes::u64s(neg) }
        }
        Encoding::TwoBit => TritData::TwoBit(bytes::u64s(plane)),
        _ => TritData::Base3(plane.to_vec()),
    }
}

fn bitmap_planes(
    place: Place<'_>,
    depth: usize,
    trits: &[u8],
    offsets: &[u32],
    signs: &[u8],
) -> Result<Vec<TritData>, FormatError> {
    let signs = bytes::u64s(signs);
    let mut rest = signs.as_slice();
    let mut planes = Vec::with_capacity(depth);
    for (map, offsets) in
        trits.chunks_exact(trits.len() / depth).zip(offsets.chunks_exact(offsets.len() / depth))
    {
        let negative = take_plane(place, &mut rest, offsets, "words of signs")?.to_vec();
        planes.push(TritData::Bitmap { nonzero: bytes::u64s(map), offsets: offsets.to_vec(), negative });
    }
    no_rest(place, rest, planes)
}

fn compressed_planes(
    place: Place<'_>,
    depth: usize,
    trits: &[u8],
    offsets: &[u32],
) -> Result<Vec<TritData>, FormatError> {
    let mut rest = trits;
    let mut planes = Vec::with_capacity(depth);
    for offsets in offsets.chunks_exact(offsets.len() / depth) {
        let entries = take_plane(place, &mut rest, offsets, "entries")?.to_vec();
        planes.push(TritData::RowCompressed { offsets: offsets.to_vec(), entries });
    }
    no_rest(place, rest, planes)
}

/// The next plane of a buffer of concatenated planes; the last row offset is its length.
fn take_plane<'a, T>(
    place: Place<'_>,
    rest: &mut &'a [T],
    offsets: &[u32],
    what: &str,
) -> Result<&'a [T], FormatError> {
    let n = offsets.last().map_or(0, |&n| n as usize);
    let Some((plane, after)) = rest.split_at_checked(n) else {
        return Err(place.layout(format!("{n} {what} in the next plane"), rest.len().to_string()));
    };
    *rest = after;
    Ok(plane)
}

fn no_rest<T>(place: Place<'_>, rest: &[T], planes: Vec<TritData>) -> Result<Vec<TritData>, FormatError> {
    if rest.is_empty() {
        return Ok(planes);
    }
    Err(place.layout("nothing after the last plane", format!("{} more elements", rest.len())))
}

/// A part of a tensor to write: name suffix, type, shape and bytes.
pub(crate) type Content = (&'static str, Dtype, Vec<usize>, Vec<u8>);

/// The stored parts of a tensor that `packed` describes, in the order of [`Packed::parts`].
pub(crate) fn pack(place: Place<'_>, packed: &Packed, tensor: &Tensor) -> Result<Vec<Content>, FormatError> {
    let parts = packed.parts().ok_or_else(|| place.layout("an addressable tensor", "sizes that overflow"))?;
    let contents = match tile(packed, tensor).map_err(|e| place.trits(e))? {
        Some(Tiles::Int8(tiles)) => vec![tiles.lines],
        Some(Tiles::Trits(tiles)) => {
            [tiles.codes, tiles.scales].into_iter().chain(tiles.means.map(|(bytes, _)| bytes)).collect()
        }
        None => parts.iter().map(|(suffix, ..)| content(tensor, suffix)).collect(),
    };
    let part = |((suffix, dtype, shape), bytes): (Part, Vec<u8>)| {
        let shape = shape.unwrap_or_else(|| vec![bytes.len()]);
        (suffix, dtype, shape, bytes)
    };
    Ok(parts.into_iter().zip(contents).map(part).collect())
}

/// The bytes of a part of a tensor that is not in tiles.
fn content(tensor: &Tensor, suffix: &str) -> Vec<u8> {
    match tensor {
        Tensor::Ternary(t) => trit_part(t, suffix),
        Tensor::Int8(t) if suffix == ".int8" => bytemuck::cast_slice(t.codes()).to_vec(),
        Tensor::Int8(t) => scale_bytes(t.scales()),
        Tensor::Dense(_) => Vec::new(),
    }
}

/// The tiles of a tensor, if `packed` describes tiles.
fn tile(packed: &Packed, tensor: &Tensor) -> Result<Option<Tiles<Vec<u8>>>, TritError> {
    Ok(match (tensor, &packed.form) {
        (Tensor::Ternary(tensor), Form::Trits { tiles: Some(layout), .. }) => {
            Some(Tiles::Trits(TritTiles::of(tensor, *layout)?))
        }
        (Tensor::Int8(tensor), Form::Int8 { tiled: true, .. }) => Some(Tiles::Int8(Int8Tiles::of(tensor))),
        _ => None,
    })
}

fn trit_part(tensor: &TritTensor, suffix: &str) -> Vec<u8> {
    let mut out = Vec::new();
    match suffix {
        ".scales" => return scale_bytes(tensor.scales().values()),
        ".means" => return tensor.scales().means().map_or_else(Vec::new, scale_bytes),
        ".rotation" => {
            // The block size is at most 1024.
            let block = tensor.rotation().map(|rotation| rotation.block() as u32);
            put_u32s(block.as_slice(), &mut out);
            return out;
        }
        _ => {}
    }
    for plane in (0..tensor.depth()).filter_map(|p| tensor.data(p)) {
        match (suffix, &*plane) {
            (".trits" | ".rotated", TritData::Planes { pos, neg }) => {
                put_u64s(pos, &mut out);
                put_u64s(neg, &mut out);
            }
            (".trits" | ".rotated", TritData::TwoBit(words)) => put_u64s(words, &mut out),
            (
                ".trits" | ".rotated",
                TritData::Base3(bytes) | TritData::RowCompressed { entries: bytes, .. },
            ) => {
                out.extend_from_slice(bytes);
            }
            (".trits" | ".rotated", TritData::Bitmap { nonzero, .. }) => put_u64s(nonzero, &mut out),
            (".signs", TritData::Bitmap { negative, .. }) => put_u64s(negative, &mut out),
            (_, TritData::Bitmap { offsets, .. } | TritData::RowCompressed { offsets, .. }) => {
                put_u32s(offsets, &mut out);
            }
            _ => {}
        }
    }
    out
}

fn scale_bytes(values: &ScaleValues) -> Vec<u8> {
    let mut out = Vec::with_capacity(values.bytes());
    match values {
        ScaleValues::F16(v) => put_f16s(v, &mut out),
        ScaleValues::F32(v) => put_f32s(v, &mut out),
    }
    out
}

fn scale_values(dtype: Dtype, data: &[u8]) -> ScaleValues {
    if dtype == Dtype::F16 { bytes::f16s(data).into() } else { bytes::f32s(data).into() }
}
