//! Encoding of tensors to GGUF blocks; a value that a block cannot hold exactly is an error.

use half::{bf16, f16};
use trike_trit::TritTensor;

use super::types::GgufType;
use crate::{FormatError, Int8Tensor, Tensor, error::Place};

/// Encodes a tensor row by row and passes the bytes of each row to `emit`, in order.
pub(crate) fn encode(
    place: Place<'_>,
    tensor: &Tensor,
    kind: GgufType,
    mut emit: impl FnMut(&[u8]) -> Result<(), FormatError>,
) -> Result<(), FormatError> {
    let refusal = Refusal { place, kind };
    if !kind.is_writable() {
        return Err(refusal.because("a type that Trike writes", "a type that it only reads", OTHER_TYPE));
    }
    let cols = tensor.cols();
    if !cols.is_multiple_of(kind.block()) {
        let expected = format!("rows of a multiple of {} weights", kind.block());
        return Err(refusal.because(&expected, format!("rows of {cols}"), OTHER_TYPE));
    }
    match (kind, tensor) {
        (GgufType::F32 | GgufType::F16 | GgufType::Bf16, _) => dense(&refusal, tensor, emit),
        (GgufType::Q8_0, Tensor::Int8(int8)) => {
            let mut out = Vec::with_capacity(cols / 32 * kind.block_bytes());
            for row in 0..int8.rows() {
                out.clear();
                q8_0_row(&refusal, int8, row, &mut out)?;
                emit(&out)?;
            }
            Ok(())
        }
        (GgufType::Q8_0, _) => Err(refusal.because("int8 codes", what(tensor), OTHER_TYPE)),
        (_, Tensor::Ternary(trits)) => ternary(&refusal, trits, emit),
        (_, _) => Err(refusal.because("trits", what(tensor), "quantize it first")),
    }
}

const OTHER_TYPE: &str = "choose another type";

struct Refusal<'a> {
    place: Place<'a>,
    kind: GgufType,
}

impl Refusal<'_> {
    fn because(&self, expected: &str, got: impl Into<String>, remedy: &'static str) -> FormatError {
        FormatError::CannotHold {
            path: self.place.path.to_owned(),
            tensor: self.place.tensor.to_owned(),
            kind: self.kind,
            expected: expected.to_owned(),
            got: got.into(),
            remedy,
        }
    }

    /// The f16 scale of a block, from `scale(group)` of the groups of `len` weights that it covers; these must be equal.
    fn block_scale(
        &self,
        block: usize,
        len: usize,
        scale: impl Fn(usize) -> f32,
    ) -> Result<f16, FormatError> {
        let (start, size) = (block * self.kind.block(), self.kind.block());
        let first = scale(start / len);
        for group in start / len + 1..=(start + size - 1) / len {
            if scale(group) != first {
                let expected = format!("one scale for {size} weights");
                return Err(self.because(&expected, format!("{first} and {}", scale(group)), OTHER_TYPE));
            }
        }
        let half = f16::from_f32(first);
        if half.to_f32() != first {
            let got = format!("{first}");
            return Err(self.because("scales that are f16 numbers", got, "write a Trike directory instead"));
        }
        Ok(half)
    }
}

fn what(tensor: &Tensor) -> &'static str {
    match tensor {
        Tensor::Dense(_) => "dense weights",
        Tensor::Int8(_) => "int8 codes",
        Tensor::Ternary(_) => "trits",
    }
}

fn dense(
    refusal: &Refusal<'_>,
    tensor: &Tensor,
    mut emit: impl FnMut(&[u8]) -> Result<(), FormatError>,
) -> Result<(), FormatError> {
    let mut row_values = vec![0.0; tensor.cols()];
    let mut out = Vec::with_capacity(4 * tensor.cols());
    let inexact = |v: f32| {
        let expected = format!("values that are {} numbers", refusal.kind);
        refusal.because(&expected, format!("{v}"), "choose f32")
    };
    for row in 0..tensor.rows() {
        out.clear();
        tensor.read_row(row, &mut row_values).map_err(|e| refusal.place.tensor_error(&e))?;
        for &v in &row_values {
            match refusal.kind {
                GgufType::F16 => {
                    let half = f16::from_f32(v);
                    if half.to_f32() != v {
                        return Err(inexact(v));
                    }
                    out.extend(half.to_le_bytes());
                }
                GgufType::Bf16 => {
                    let half = bf16::from_f32(v);
                    if half.to_f32() != v {
                        return Err(inexact(v));
                    }
                    out.extend(half.to_le_bytes());
                }
                _ => out.extend(v.to_le_bytes()),
            }
        }
        emit(&out)?;
    }
    Ok(())
}

fn q8_0_row(
    refusal: &Refusal<'_>,
    int8: &Int8Tensor,
    row: usize,
    out: &mut Vec<u8>,
) -> Result<(), FormatError> {
    let codes = &int8.codes()[row * int8.cols()..(row + 1) * int8.cols()];
    for (block, codes) in codes.chunks_exact(32).enumerate() {
        let d = refusal.block_scale(block, int8.group(), |group| int8.scale(row, group))?;
        out.extend(d.to_le_bytes());
        out.extend_from_slice(bytemuck::cast_slice(codes));
    }
    Ok(())
}

fn ternary(
    refusal: &Refusal<'_>,
    tensor: &TritTensor,
    mut emit: impl FnMut(&[u8]) -> Result<(), FormatError>,
) -> Result<(), FormatError> {
    let elsewhere = "write a Trike directory instead";
    if tensor.depth() != 1 {
        return Err(refusal.because("one plane", format!("{} planes", tensor.depth()), elsewhere));
    }
    if tensor.scales().means().is_some() {
        return Err(refusal.because("no means", "a mean per group", elsewhere));
    }
    if let Some(rotation) = tensor.rotation() {
        let got = format!("a rotation with block size {}", rotation.block());
        return Err(refusal.because("no rotation of the inputs", got, elsewhere));
    }
    let trits_error = |e| refusal.place.trits(e);
    let block_size = refusal.kind.block();
    let mut trits = vec![0; tensor.cols()];
    let mut codes = vec![0u8; tensor.cols()];
    let mut out = Vec::with_capacity(tensor.cols() / block_size * refusal.kind.block_bytes());
    for row in 0..tensor.rows() {
        out.clear();
        tensor.read_row(0, row, &mut trits).map_err(trits_error)?;
        codes.iter_mut().zip(&trits).for_each(|(code, t)| *code = (t + 1) as u8);
        for (block, codes) in codes.chunks_exact(block_size).enumerate() {
            // `block_scale` only asks for groups below `groups_per_row`.
            let scale = |group| tensor.scale(0, row, group).unwrap_or(0.0);
            let d = refusal.block_scale(block, tensor.group_len(), scale)?.to_le_bytes();
            match refusal.kind {
                GgufType::Tq1_0 => {
                    tq1_0(codes, &mut out);
                    out.extend(d);
                }
                GgufType::Tq2_0 => {
                    tq2_0(codes, &mut out);
                    out.extend(d);
                }
                _ => {
                    out.extend(d);
                    out.extend(
                        codes.as_chunks::<4>().0.iter().map(|c| c[0] | c[1] << 2 | c[2] << 4 | c[3] << 6),
                    );
                }
            }
        }
        emit(&out)?;
    }
    Ok(())
}

/// Encodes runs of 128 codes: byte `j` of a run holds elements `j, j + 32, j + 64, j + 96`.
fn tq2_0(codes: &[u8], out: &mut Vec<u8>) {
    for run in codes.chunks_exact(128) {
        out.extend((0..32).map(|j| run[j] | run[j + 32] << 2 | run[j + 64] << 4 | run[j + 96] << 6));
    }
}

/// The first trit is the most significant digit; the byte is the number scaled by 256 / 243, rounded up, so that
/// repeated multiplication by 3 carries the digits out in order.
fn tq1_0(codes: &[u8], out: &mut Vec<u8>) {
    for (start, lanes, trits) in [(0, 32, 5), (160, 16, 5), (240, 4, 4)] {
        out.extend((0..lanes).map(|lane| {
            let digit = |t: usize| if t < trits { u16::from(codes[start + lane + lanes * t]) } else { 0 };
            let number = (0..5).fold(0, |n, t| 3 * n + digit(t));
            (number * 256).div_ceil(243) as u8
        }));
    }
}
