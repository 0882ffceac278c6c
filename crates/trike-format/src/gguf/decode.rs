//! Decoding of GGUF blocks to tensors.
//!
//! Blocks are decoded directly into the words or bytes of an encoding; [`TritTensor::new`] then validates the result,
//! so that an invalid code is rejected even if a decoder here has a bug.

use half::f16;
use trike_trit::{Coupling, Granularity, GroupSize, ScaleValues, Scales, TritData, TritTensor};

use super::{
    quants,
    types::{GgufType, I2_S_TRAILER},
};
use crate::{DenseData, DenseTensor, FormatError, Tensor, bytes, error::Place};

/// The low bit of each of 32 two-bit codes.
const LOW_BITS: u64 = 0x5555_5555_5555_5555;

/// Decodes a tensor of `shape` from `data`, which must have [`GgufType::bytes`] bytes.
pub(crate) fn decode(
    place: Place<'_>,
    kind: GgufType,
    shape: &[usize],
    data: &[u8],
) -> Result<Tensor, FormatError> {
    let dense =
        |data| DenseTensor::new(shape.to_vec(), data).map(Tensor::Dense).map_err(|e| place.tensor_error(&e));
    match kind {
        GgufType::F32 => return dense(DenseData::F32(bytes::f32s(data))),
        GgufType::F16 => return dense(DenseData::F16(bytes::f16s(data))),
        GgufType::Bf16 => return dense(DenseData::Bf16(bytes::bf16s(data))),
        _ => {}
    }
    let (rows, cols) = match *shape {
        [cols] => (1, cols),
        [rows, cols] => (rows, cols),
        _ => {
            let kind = format!("{kind} of {} dimensions", shape.len());
            return Err(
                place.unsupported(kind, "stacked experts are not implemented: use a model without them")
            );
        }
    };
    match kind {
        GgufType::Tq1_0 => trits(place, rows, cols, GroupSize::G256, base3(cols, data, &TQ1_0)),
        GgufType::Ptq1_0 => trits(place, rows, cols, GroupSize::G128, base3(cols, data, &PTQ1_0)),
        GgufType::Tq2_0 => {
            let (words, scales) = tq2_0(data);
            check_codes(place, &words, GroupSize::G256)?;
            trits(place, rows, cols, GroupSize::G256, (TritData::TwoBit(words), scales))
        }
        GgufType::I2S => i2_s(place, rows, cols, data),
        GgufType::Q2_0G64 => q2_0(place, rows, cols, data, GroupSize::G64),
        GgufType::Q2_0G128 | GgufType::Pq2_0 => q2_0(place, rows, cols, data, GroupSize::G128),
        _ => quants::decode(kind, rows, cols, data).map_err(|e| place.tensor_error(&e)),
    }
}

fn trits(
    place: Place<'_>,
    rows: usize,
    cols: usize,
    group: GroupSize,
    (data, scales): (TritData, Vec<f16>),
) -> Result<Tensor, FormatError> {
    let scales = Scales::new(Granularity::Group(group), ScaleValues::F16(scales), None);
    let tensor = TritTensor::new(rows, cols, vec![data], Coupling::Free, scales);
    tensor.map(Tensor::Ternary).map_err(|e| place.trits(e))
}

/// The same check as in the constructor, but with the GGUF block index in the error.
fn check_codes(place: Place<'_>, words: &[u64], group: GroupSize) -> Result<(), FormatError> {
    match words.iter().position(|w| w & (w >> 1) & LOW_BITS != 0) {
        Some(word) => {
            Err(place.values(format!("block {} has code 3, which is not a trit", word * 32 / group.get())))
        }
        None => Ok(()),
    }
}

/// Decodes blocks of two runs of 32 bytes and an f16 scale.
fn tq2_0(data: &[u8]) -> (Vec<u64>, Vec<f16>) {
    let blocks = data.as_chunks::<66>().0;
    let (mut words, mut scales) = (Vec::with_capacity(8 * blocks.len()), Vec::with_capacity(blocks.len()));
    for block in blocks {
        block[..64].as_chunks::<32>().0.iter().for_each(|run| put_run(run, [0, 2, 4, 6], &mut words));
        scales.push(f16::from_le_bytes([block[64], block[65]]));
    }
    (words, scales)
}

/// Byte `j` of a run holds elements `j, j + 32, j + 64, j + 96` at the four shifts, that is, a run is four interleaved words of
/// 32 codes.
fn put_run(run: &[u8; 32], shifts: [u32; 4], words: &mut Vec<u64>) {
    words.extend(shifts.map(|shift| bytes::codes_at(run, shift)));
}

/// Decodes runs of 32 bytes with the shifts in reverse order, followed by the scale of the tensor.
fn i2_s(place: Place<'_>, rows: usize, cols: usize, data: &[u8]) -> Result<Tensor, FormatError> {
    // `GgufType::bytes` includes the trailer.
    let (codes, trailer) = data.split_at(data.len() - I2_S_TRAILER);
    let mut words = Vec::with_capacity(codes.len() / 8);
    codes.as_chunks::<32>().0.iter().for_each(|run| put_run(run, [6, 4, 2, 0], &mut words));
    if check_codes(place, &words, GroupSize::G128).is_err() {
        let remedy = "Trike reads only the x86 layout, which has no such code: the file was written by another build or \
                      is damaged; use a TQ1_0 or TQ2_0 file of the model";
        return Err(place.unsupported("I2_S with a code of 3", remedy));
    }
    let scale = f32::from_le_bytes([trailer[0], trailer[1], trailer[2], trailer[3]]);
    let tensor =
        TritTensor::new(rows, cols, vec![TritData::TwoBit(words)], Coupling::Free, Scales::tensor(scale));
    tensor.map(Tensor::Ternary).map_err(|e| place.trits(e))
}

/// Table of the five trits of every byte of `TQ1_0` and `PTQ1_0`: each multiplication by 3 carries the next trit out of the byte.
const TQ1_DIGITS: [[u8; 5]; 256] = {
    let mut table = [[0; 5]; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte;
        let mut digit = 0;
        while digit < 5 {
            table[byte][digit] = ((rest * 3) >> 8) as u8;
            rest = (rest * 3) & 0xFF;
            digit += 1;
        }
        byte += 1;
    }
    table
};

/// Layout of a block of base-3 bytes: stages of `(bytes, trits per byte)`, then an f16 scale. Byte `lane` of a stage
/// of `n` bytes holds the elements `lane + n t` of the stage.
struct Stages {
    weights: usize,
    bytes: usize,
    stages: [(usize, usize); 3],
}

const TQ1_0: Stages = Stages { weights: 256, bytes: 54, stages: [(32, 5), (16, 5), (4, 4)] };
const PTQ1_0: Stages = Stages { weights: 128, bytes: 28, stages: [(16, 5), (8, 5), (2, 4)] };

fn base3(cols: usize, data: &[u8], layout: &Stages) -> (TritData, Vec<f16>) {
    let per_row = cols / layout.weights;
    let row_bytes = per_row * layout.bytes;
    let mut packed = Vec::with_capacity(data.len() / row_bytes * cols.div_ceil(5));
    let mut scales = Vec::with_capacity(data.len() / layout.bytes);
    let mut codes = vec![1u8; cols.next_multiple_of(5)];
    for row in data.chunks_exact(row_bytes) {
        for (block, codes) in row.chunks_exact(layout.bytes).zip(codes.chunks_exact_mut(layout.weights)) {
            let (mut bytes, mut codes) = (block, codes);
            for (lanes, trits) in layout.stages {
                let (stage, rest) = bytes.split_at(lanes);
                let (run, later) = codes.split_at_mut(lanes * trits);
                spread(stage, trits, run);
                (bytes, codes) = (rest, later);
            }
            scales.push(f16::from_le_bytes([bytes[0], bytes[1]]));
        }
        let byte = |c: &[u8; 5]| c[0] + 3 * c[1] + 9 * c[2] + 27 * c[3] + 81 * c[4];
        packed.extend(codes.as_chunks::<5>().0.iter().map(byte));
    }
    (TritData::Base3(packed), scales)
}

/// Writes trit `t` of byte `lane` to `codes[lane + bytes.len() * t]`.
fn spread(bytes: &[u8], trits: usize, codes: &mut [u8]) {
    for (t, run) in codes.chunks_exact_mut(bytes.len()).take(trits).enumerate() {
        run.iter_mut().zip(bytes).for_each(|(code, &byte)| *code = TQ1_DIGITS[usize::from(byte)][t]);
    }
}

/// Decodes blocks of `f16 d`, then codes in element order. Code 3 means +2 d, which is not a trit: a tensor that contains it
/// is decoded to dense f32.
fn q2_0(
    place: Place<'_>,
    rows: usize,
    cols: usize,
    data: &[u8],
    group: GroupSize,
) -> Result<Tensor, FormatError> {
    let block_bytes = 2 + group.get() / 4;
    let mut words = Vec::with_capacity(rows * cols / 32);
    let mut scales = Vec::with_capacity(rows * cols / group.get());
    for block in data.chunks_exact(block_bytes) {
        scales.push(f16::from_le_bytes([block[0], block[1]]));
        words.extend(block[2..].as_chunks::<8>().0.iter().map(|&b| u64::from_le_bytes(b)));
    }
    if check_codes(place, &words, group).is_ok() {
        return trits(place, rows, cols, group, (TritData::TwoBit(words), scales));
    }
    if let Some((block, d)) = scales.iter().enumerate().find(|(_, d)| !d.is_finite()) {
        return Err(place.values(format!("the scale of block {block} is {d}")));
    }
    let mut weights = Vec::with_capacity(rows * cols);
    for (words, d) in words.chunks_exact(group.get() / 32).zip(&scales) {
        let d = d.to_f32();
        let value = |word: u64, i: u32| ((word >> (2 * i) & 3) as f32 - 1.0) * d;
        weights.extend(words.iter().flat_map(|&word| (0..32).map(move |i| value(word, i))));
    }
    let dense = DenseTensor::new(vec![rows, cols], DenseData::F32(weights));
    dense.map(Tensor::Dense).map_err(|e| place.tensor_error(&e))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{GgufType, decode};
    use crate::{FormatError, Tensor, error::Place};

    fn place() -> Place<'static> {
        Place { path: Path::new("m.gguf"), tensor: "w" }
    }

    fn one_row(kind: GgufType, cols: usize, data: &[u8]) -> Result<Tensor, FormatError> {
        assert_eq!(Some(data.len()), kind.bytes(&[1, cols]));
        decode(place(), kind, &[1, cols], data)
    }

    /// f16 0.5 is 0x3800.
    const HALF: [u8; 2] = [0x00, 0x38];

    #[test]
    fn a_block_of_tq2_0() {
        // Byte 0: codes 2, 0, 1, 2 for elements 0, 32, 64, 96; byte 33: code 0 for 129, 2 for 161, 1, 1.
        let mut block = [0b01_01_01_01; 66];
        block[0] = 0b10_01_00_10;
        block[33] = 0b01_01_10_00;
        block[64..].copy_from_slice(&HALF);
        let mut want = [0.0; 256];
        for (i, w) in [(0, 0.5), (32, -0.5), (96, 0.5), (129, -0.5), (161, 0.5)] {
            want[i] = w;
        }
        let Tensor::Ternary(tensor) = one_row(GgufType::Tq2_0, 256, &block).unwrap() else {
            panic!("no trits")
        };
        assert_eq!(tensor.dequantize(), want);
        assert_eq!(tensor.groups_per_row(), 1);

        block[5] = 0b11;
        let error = one_row(GgufType::Tq2_0, 256, &block).unwrap_err().to_string();
        assert!(error.contains("m.gguf") && error.contains("`w`") && error.contains("block 0"), "{error}");
    }

    #[test]
    fn a_block_of_tq1_0() {
        // All trits zero: digits 11111 in base 3 are 121, and ceil(121 * 256 / 243) = 128.
        let mut block = [128; 54];
        // Byte 1, digits 2 0 1 1 2 first to last: 2*81 + 0 + 9 + 3 + 2 = 176 -> ceil(176 * 256 / 243) = 186.
        block[1] = 186;
        // Byte 33 is lane 1 of the second part: 0 1 1 2 1: 27 + 9 + 6 + 1 = 43 -> 46.
        block[33] = 46;
        // Byte 51 is lane 3 of the third stage, four trits 1 2 0 1 without a fifth: 81 + 54 + 0 + 3 = 138 -> 146.
        block[51] = 146;
        // The other three bytes of that stage have a fifth digit of 0: 81 + 27 + 9 + 3 = 120 -> 127.
        block[48..51].fill(127);
        block[52..].copy_from_slice(&HALF);
        let mut want = [0.0; 256];
        let set = [
            (1, 0.5),
            (33, -0.5),
            (129, 0.5),
            (161, -0.5),
            (160 + 49, 0.5),
            (240 + 7, 0.5),
            (240 + 11, -0.5),
        ];
        for (i, w) in set {
            want[i] = w;
        }
        let Tensor::Ternary(tensor) = one_row(GgufType::Tq1_0, 256, &block).unwrap() else {
            panic!("no trits")
        };
        assert_eq!(tensor.dequantize(), want);
    }

    #[test]
    fn a_block_of_q2_0_in_both_sizes_and_of_pq2_0() {
        for (kind, n) in [(GgufType::Q2_0G64, 64), (GgufType::Q2_0G128, 128), (GgufType::Pq2_0, 128)] {
            let mut block = vec![0b01_01_01_01; 2 + n / 4];
            block[..2].copy_from_slice(&HALF);
            block[2] = 0b10_01_00_10; // elements 0, 1, 2, 3: +, -, 0, +
            block[1 + n / 4] = 0b00_01_01_01; // the last element
            let mut want = vec![0.0; n];
            (want[0], want[1], want[3], want[n - 1]) = (0.5, -0.5, 0.5, -0.5);
            let tensor = one_row(kind, n, &block).unwrap();
            assert!(matches!(&tensor, Tensor::Ternary(t) if t.group_len() == n));
            assert_eq!(tensor.to_f32(), want);

            block[2] = 0b10_11_00_10; // code 3 is +2 d
            want[2] = 1.0;
            let tensor = one_row(kind, n, &block).unwrap();
            assert!(matches!(tensor, Tensor::Dense(_)));
            assert_eq!(tensor.to_f32(), want);

            block[..2].copy_from_slice(&[0x00, 0x7C]); // f16 infinity
            assert!(matches!(one_row(kind, n, &block), Err(FormatError::Values { .. })));
            block[2] = 0b01;
            assert!(matches!(one_row(kind, n, &block), Err(FormatError::Trits { .. })));
        }
    }

    #[test]
    fn a_block_of_ptq1_0() {
        // The bytes of the test above: 128 is all zeros, 127 is four zero trits.
        let mut block = [128; 28];
        block[1] = 186; // lane 1 of the first stage, 2 0 1 1 2
        block[18] = 46; // lane 2 of the second, 0 1 1 2 1
        (block[24], block[25]) = (127, 146); // the third, 1 1 1 1 and 1 2 0 1
        block[26..].copy_from_slice(&HALF);
        let mut want = [0.0; 128];
        let set = [
            (1, 0.5),
            (17, -0.5),
            (65, 0.5),
            (80 + 2, -0.5),
            (80 + 26, 0.5),
            (120 + 3, 0.5),
            (120 + 5, -0.5),
        ];
        for (i, w) in set {
            want[i] = w;
        }
        let tensor = one_row(GgufType::Ptq1_0, 128, &block).unwrap();
        assert!(matches!(&tensor, Tensor::Ternary(t) if t.group_len() == 128));
        assert_eq!(tensor.to_f32(), want);

        block[26..].copy_from_slice(&[0x00, 0xFC]); // minus infinity
        let error = one_row(GgufType::Ptq1_0, 128, &block).unwrap_err();
        assert!(matches!(error, FormatError::Trits { .. }), "{error}");
    }

    #[test]
    fn two_blocks_of_i2_s() {
        // Byte 0: codes 2, 0, 1, 2 for elements 0, 32, 64, 96; byte 33: 0, 2, 1, 1 for 129, 161, 193, 225.
        let mut data = [0b01_01_01_01; 2 * 32 + 32];
        data[0] = 0b10_00_01_10;
        data[33] = 0b00_10_01_01;
        data[64..68].copy_from_slice(&0.75f32.to_le_bytes());
        let mut want = [0.0; 256];
        for (i, w) in [(0, 0.75), (32, -0.75), (96, 0.75), (129, -0.75), (161, 0.75)] {
            want[i] = w;
        }
        let tensor = one_row(GgufType::I2S, 256, &data).unwrap();
        assert!(matches!(&tensor, Tensor::Ternary(t) if t.group_len() == 256));
        assert_eq!(tensor.to_f32(), want);

        data[64..68].copy_from_slice(&f32::NAN.to_le_bytes());
        let error = one_row(GgufType::I2S, 256, &data).unwrap_err();
        assert!(matches!(error, FormatError::Trits { .. }), "{error}");
        data[5] = 0b11_01_01_01;
        let error = one_row(GgufType::I2S, 256, &data).unwrap_err().to_string();
        assert!(error.contains("`w`") && error.contains("only the x86 layout"), "{error}");
    }

    #[test]
    fn dense_blocks() {
        let row = |kind, data: &[u8]| one_row(kind, 2, data).map(|t| t.to_f32());
        assert_eq!(row(GgufType::F32, &[0, 0, 0x80, 0x3F, 0, 0, 0, 0xC0]).unwrap(), [1.0, -2.0]);
        assert_eq!(row(GgufType::F16, &[0x00, 0x3C, 0x00, 0xC0]).unwrap(), [1.0, -2.0]);
        assert_eq!(row(GgufType::Bf16, &[0x80, 0x3F, 0x00, 0xC0]).unwrap(), [1.0, -2.0]);
        let error = row(GgufType::F16, &[0x00, 0x3C, 0x00, 0x7E]).unwrap_err().to_string();
        assert!(error.contains("weight 1 is NaN"), "{error}");
    }

    #[test]
    fn stacked_experts_are_refused() {
        let data = vec![0; 2 * 66];
        let error = decode(place(), GgufType::Tq2_0, &[2, 1, 256], &data).unwrap_err().to_string();
        assert!(error.contains("TQ2_0 of 3 dimensions"), "{error}");
    }
}
