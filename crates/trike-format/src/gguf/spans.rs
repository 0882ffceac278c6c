//! Where the tensors of a GGUF file lie, and which of its two block sizes `Q2_0` has.

use std::path::Path;

use super::{
    header::{Header, RawTensor},
    types::{GgufType, Q2_0_ID, other_name},
};
use crate::{FormatError, StoredType, TensorInfo, error::Place};

/// The tensors of a file, each inside it and over no other.
pub(crate) struct Layout {
    pub(crate) tensors: Vec<TensorInfo>,
    /// Where each starts, from the start of the file.
    pub(crate) starts: Vec<usize>,
    /// Why `Q2_0` is not readable here; its tensors are then listed as unsupported.
    pub(crate) q2_0_refusal: Option<String>,
}

pub(crate) fn resolve(path: &Path, header: &Header, file_len: usize) -> Result<Layout, FormatError> {
    let mut order: Vec<usize> = (0..header.tensors.len()).collect();
    order.sort_by_key(|&i| header.tensors[i].offset);
    let data_len = file_len.saturating_sub(header.data_start);

    // The room of a tensor: from its offset to the next one's, or to the end of the file.
    let mut spans = vec![0; header.tensors.len()];
    for (at, &i) in order.iter().enumerate() {
        let tensor = &header.tensors[i];
        let place = Place { path, tensor: &tensor.name };
        if !tensor.offset.is_multiple_of(header.alignment) {
            let expected = format!("an offset that is a multiple of {}", header.alignment);
            return Err(place.layout(expected, tensor.offset.to_string()));
        }
        if tensor.offset > data_len {
            return Err(truncated(path, &tensor.name, tensor.offset, data_len));
        }
        let end = order.get(at + 1).map_or(data_len, |&next| header.tensors[next].offset.min(data_len));
        spans[i] = end - tensor.offset;
    }
    let last = order.last().copied();
    let q2_0 = q2_0_size(header, &spans, last);

    let mut tensors = Vec::with_capacity(header.tensors.len());
    for (i, raw) in header.tensors.iter().enumerate() {
        let place = Place { path, tensor: &raw.name };
        let known = match raw.type_id {
            Q2_0_ID => q2_0.as_ref().ok().copied(),
            id => GgufType::from_id(id),
        };
        let (kind, bytes) = match known {
            None => {
                let name = if raw.type_id == Q2_0_ID { "Q2_0".to_owned() } else { other_name(raw.type_id) };
                (StoredType::Unsupported(name), spans[i])
            }
            Some(kind) => (StoredType::from(kind), size(place, kind, raw)?),
        };
        if bytes > spans[i] {
            if last == Some(i) {
                return Err(truncated(path, &raw.name, bytes, spans[i]));
            }
            let expected = format!("{bytes} bytes of {kind} before the next tensor");
            return Err(place.layout(expected, format!("{} bytes: the tensors overlap", spans[i])));
        }
        tensors.push(TensorInfo {
            name: raw.name.clone(),
            shape: raw.shape.clone(),
            kind,
            bytes: bytes as u64,
        });
    }
    let starts = header.tensors.iter().map(|t| header.data_start + t.offset).collect();
    Ok(Layout { tensors, starts, q2_0_refusal: q2_0.err() })
}

fn size(place: Place<'_>, kind: GgufType, raw: &RawTensor) -> Result<usize, FormatError> {
    kind.bytes(&raw.shape).ok_or_else(|| {
        let expected = format!("rows of a multiple of {} weights for {kind}", kind.block());
        place.layout(expected, format!("shape {:?}", raw.shape))
    })
}

fn truncated(path: &Path, tensor: &str, needed: usize, available: usize) -> FormatError {
    FormatError::Truncated {
        path: path.to_owned(),
        what: format!("the data of tensor `{tensor}`"),
        needed: needed as u64,
        available: available as u64,
    }
}

/// The one block size that fits every `Q2_0` tensor, or why there is none. A file without such tensors gets
/// llama.cpp's size, which nothing then uses. What the spans cannot show: a file whose only such tensor is its last
/// one, cut off exactly where blocks of 128 would end.
fn q2_0_size(header: &Header, spans: &[usize], last: Option<usize>) -> Result<GgufType, String> {
    let entries = || header.tensors.iter().enumerate().filter(|(_, t)| t.type_id == Q2_0_ID);
    if entries().next().is_none() {
        return Ok(GgufType::Q2_0G64);
    }
    // Writers align every tensor, the last one often too; nothing else may lie between two tensors.
    let fits = |kind: GgufType| {
        entries().all(|(i, tensor)| {
            kind.bytes(&tensor.shape).is_some_and(|bytes| {
                bytes.next_multiple_of(header.alignment) == spans[i] || (last == Some(i) && bytes == spans[i])
            })
        })
    };
    let because = "blocks of 64 (llama.cpp) and of 128 weights (PrismML) share the id 42, and the distances between \
                   the tensors of this file fit";
    match (fits(GgufType::Q2_0G64), fits(GgufType::Q2_0G128)) {
        (true, false) => Ok(GgufType::Q2_0G64),
        (false, true) => Ok(GgufType::Q2_0G128),
        (true, true) => Err(format!("{because} both: use a TQ2_0 file of the model")),
        (false, false) => Err(format!("{because} neither: the file is damaged or of a third kind")),
    }
}

/// Whether a reader could tell the block size of `Q2_0` tensors of these shapes, written one after the other.
pub(crate) fn q2_0_is_clear<'a>(shapes: impl Iterator<Item = &'a [usize]>, alignment: usize) -> bool {
    let padded = |kind: GgufType, shape| kind.bytes(shape).map(|b| b.next_multiple_of(alignment));
    let mut shapes = shapes.peekable();
    shapes.peek().is_none() || shapes.any(|s| padded(GgufType::Q2_0G64, s) != padded(GgufType::Q2_0G128, s))
}
