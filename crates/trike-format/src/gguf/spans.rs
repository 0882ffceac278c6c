//! Byte ranges of the tensors of a GGUF file, and the block size of `Q2_0`.

use std::path::Path;

use super::{
    header::{Header, RawTensor},
    types::{GgufType, I2_S_ID, Q2_0_ID, other_name},
};
use crate::{FormatError, StoredType, TensorInfo, error::Place};

/// The tensors of a file, all inside the file and not overlapping.
pub(crate) struct Layout {
    pub(crate) tensors: Vec<TensorInfo>,
    /// Byte offset of each tensor from the start of the file.
    pub(crate) starts: Vec<usize>,
    /// Types whose layout the spans do not confirm, with the reason; their tensors are listed as unsupported.
    pub(crate) refusals: Vec<(&'static str, String)>,
}

pub(crate) fn resolve(path: &Path, header: &Header, file_len: usize) -> Result<Layout, FormatError> {
    let mut order: Vec<usize> = (0..header.tensors.len()).collect();
    order.sort_by_key(|&i| header.tensors[i].offset);
    let data_len = file_len.saturating_sub(header.data_start);

    // The span of a tensor: from its offset to the next offset or the end of the file.
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
    let i2_s = i2_s_layout(header, &spans, last);

    let mut tensors = Vec::with_capacity(header.tensors.len());
    for (i, raw) in header.tensors.iter().enumerate() {
        let place = Place { path, tensor: &raw.name };
        let known = match raw.type_id {
            Q2_0_ID => q2_0.as_ref().ok().copied(),
            I2_S_ID => i2_s.as_ref().ok().copied(),
            id => GgufType::from_id(id),
        };
        let (kind, bytes) = match known {
            None => (StoredType::Unsupported(other_name(raw.type_id)), spans[i]),
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
    let refusals = [("Q2_0", q2_0.err()), ("I2_S", i2_s.err())];
    let refusals = refusals.into_iter().filter_map(|(name, reason)| Some((name, reason?))).collect();
    Ok(Layout { tensors, starts, refusals })
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

/// The only block size that fits all `Q2_0` tensors, or the reason why it is not determined. For a file without such tensors,
/// the result is llama.cpp's size and is not used. One case is not detected: a file whose only such tensor is the last one,
/// truncated exactly where blocks of 128 would end.
fn q2_0_size(header: &Header, spans: &[usize], last: Option<usize>) -> Result<GgufType, String> {
    let entries = || header.tensors.iter().enumerate().filter(|(_, t)| t.type_id == Q2_0_ID);
    if entries().next().is_none() {
        return Ok(GgufType::Q2_0G64);
    }
    let fits = |kind: GgufType| {
        entries().all(|(i, tensor)| fits_exactly(kind, tensor, header, spans[i], last == Some(i)))
    };
    let because = "blocks of 64 (llama.cpp) and of 128 weights (PrismML) share the id 42, and the tensor offsets of \
                   this file fit";
    match (fits(GgufType::Q2_0G64), fits(GgufType::Q2_0G128)) {
        (true, false) => Ok(GgufType::Q2_0G64),
        (false, true) => Ok(GgufType::Q2_0G128),
        (true, true) => Err(format!("{because} both: use a TQ2_0 file of the model")),
        (false, false) => {
            // For a file truncated in its last tensor, the other tensors decide, and the caller reports the missing bytes.
            let cut = |kind: &GgufType| is_cut(*kind, entries(), header, spans, last);
            let sizes = [GgufType::Q2_0G64, GgufType::Q2_0G128];
            // If one of the sizes fills the last tensor, the file is not truncated: it mixes both sizes.
            let whole = last.is_some_and(|i| {
                let tensor = &header.tensors[i];
                sizes.iter().any(|&kind| fits_exactly(kind, tensor, header, spans[i], true))
            });
            let mut sizes = sizes.into_iter().filter(|kind| !whole && cut(kind));
            sizes
                .next()
                .ok_or_else(|| format!("{because} neither: the file is damaged or uses another block size"))
        }
    }
}

/// Whether the file looks truncated in its last tensor: blocks of `kind` fill the spans of all other `entries`, and the last span
/// is too short for them.
fn is_cut<'a>(
    kind: GgufType,
    mut entries: impl Iterator<Item = (usize, &'a RawTensor)>,
    header: &Header,
    spans: &[usize],
    last: Option<usize>,
) -> bool {
    let mut short = false;
    let fit = entries.all(|(i, tensor)| {
        let is_short = last == Some(i) && kind.bytes(&tensor.shape).is_some_and(|bytes| bytes > spans[i]);
        short |= is_short;
        is_short || fits_exactly(kind, tensor, header, spans[i], last == Some(i))
    });
    fit && short
}

/// Whether blocks of `kind` fill the span of a tensor exactly. Writers align every tensor, often including the last one; nothing
/// else may be between two tensors.
fn fits_exactly(kind: GgufType, tensor: &RawTensor, header: &Header, span: usize, last: bool) -> bool {
    kind.bytes(&tensor.shape)
        .is_some_and(|bytes| bytes.next_multiple_of(header.alignment) == span || (last && bytes == span))
}

/// `I2_S` if all such tensors have the size of the x86 layout, otherwise the reason why they are not read. The id determines
/// neither the layout nor the program that wrote the file: some builds of llama.cpp used it for another type for a while.
fn i2_s_layout(header: &Header, spans: &[usize], last: Option<usize>) -> Result<GgufType, String> {
    let entries = || header.tensors.iter().enumerate().filter(|(_, t)| t.type_id == I2_S_ID);
    // A single tensor is not enough evidence: it may have another layout.
    if entries().count() > 1 && is_cut(GgufType::I2S, entries(), header, spans, last) {
        return Ok(GgufType::I2S);
    }
    let misfit = entries().find(|&(i, t)| !fits_exactly(GgufType::I2S, t, header, spans[i], last == Some(i)));
    match misfit {
        None => Ok(GgufType::I2S),
        Some((i, tensor)) => Err(format!(
            "Trike reads only the x86 layout (rows of a multiple of 128 weights, 2 bits per weight, plus 32 bytes), but \
             `{}` of shape {:?} has {} bytes: use a TQ1_0 or TQ2_0 file of the model",
            tensor.name, tensor.shape, spans[i]
        )),
    }
}

/// Whether a reader can infer the block size of `Q2_0` tensors of these shapes, stored consecutively.
pub(crate) fn q2_0_is_clear<'a>(shapes: impl Iterator<Item = &'a [usize]>, alignment: usize) -> bool {
    let padded = |kind: GgufType, shape| kind.bytes(shape).map(|b| b.next_multiple_of(alignment));
    let mut shapes = shapes.peekable();
    shapes.peek().is_none() || shapes.any(|s| padded(GgufType::Q2_0G64, s) != padded(GgufType::Q2_0G128, s))
}
