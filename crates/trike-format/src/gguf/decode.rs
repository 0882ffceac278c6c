//! GGUF blocks to tensors.
//!
//! Blocks are decoded straight into the words or bytes of an encoding; [`TritTensor::new`] then checks the
//! result, so a wrong code cannot get through even if a decoder here were wrong.

use half::f16;
use trike_trit::{Coupling, Granularity, GroupSize, ScaleValues, Scales, TritData, TritTensor};

use super::types::GgufType;
use crate::{DenseData, DenseTensor, FormatError, Int8Tensor, Tensor, bytes, error::Place};

/// Bits that are set in code 3 of 32 two-bit codes.
const LOW_BITS: u64 = 0x5555_5555_5555_5555;

/// Decodes a tensor of `shape` from its `data`, which has [`GgufType::bytes`] bytes.
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
        GgufType::Q8_0 => q8_0(place, rows, cols, data).map(Tensor::Int8),
        GgufType::Tq1_0 => trits(place, rows, cols, GroupSize::G256, tq1_0(cols, data)),
        GgufType::Tq2_0 => {
            let (words, scales) = tq2_0(data);
            check_codes(place, &words, GroupSize::G256)?;
            trits(place, rows, cols, GroupSize::G256, (TritData::TwoBit(words), scales))
        }
        GgufType::Q2_0G64 => q2_0(place, rows, cols, data, GroupSize::G64),
        _ => q2_0(place, rows, cols, data, GroupSize::G128),
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
    tensor.map(Tensor::Trits).map_err(|e| place.trits(e))
}

/// The same check as the constructor's, but naming the block as the file's readers count them.
fn check_codes(place: Place<'_>, words: &[u64], group: GroupSize) -> Result<(), FormatError> {
    match words.iter().position(|w| w & (w >> 1) & LOW_BITS != 0) {
        Some(word) => {
            Err(place.values(format!("block {} has code 3, which is no trit", word * 32 / group.get())))
        }
        None => Ok(()),
    }
}

fn q8_0(place: Place<'_>, rows: usize, cols: usize, data: &[u8]) -> Result<Int8Tensor, FormatError> {
    let (mut codes, mut scales) = (Vec::with_capacity(rows * cols), Vec::with_capacity(rows * cols / 32));
    for block in data.as_chunks::<34>().0 {
        let ([d0, d1], qs) = split(block);
        scales.push(f16::from_le_bytes([d0, d1]));
        codes.extend_from_slice(bytemuck::cast_slice::<u8, i8>(qs));
    }
    Int8Tensor::new(rows, cols, 32, codes, ScaleValues::F16(scales)).map_err(|e| place.tensor_error(&e))
}

/// The scale at the front of a block, and the rest.
fn split<const N: usize>(block: &[u8; N]) -> ([u8; 2], &[u8]) {
    ([block[0], block[1]], &block[2..])
}

/// In a run of 32 bytes, byte `j` holds elements `j, j + 32, j + 64, j + 96` at shifts 0, 2, 4, 6: a run is four
/// words of 32 codes, interleaved.
fn tq2_0(data: &[u8]) -> (Vec<u64>, Vec<f16>) {
    let blocks = data.as_chunks::<66>().0;
    let (mut words, mut scales) = (Vec::with_capacity(8 * blocks.len()), Vec::with_capacity(blocks.len()));
    for block in blocks {
        for run in block[..64].as_chunks::<32>().0 {
            let eights = run.as_chunks::<8>().0;
            for shift in [0, 2, 4, 6] {
                let mut word = 0;
                for (i, &eight) in eights.iter().enumerate() {
                    word |= gather(u64::from_le_bytes(eight) >> shift) << (16 * i);
                }
                words.push(word);
            }
        }
        scales.push(f16::from_le_bytes([block[64], block[65]]));
    }
    (words, scales)
}

/// The low two bits of each of eight bytes, as 16 bits.
fn gather(bytes: u64) -> u64 {
    let x = bytes & 0x0303_0303_0303_0303;
    let x = (x | x >> 6) & 0x000F_000F_000F_000F;
    let x = (x | x >> 12) & 0x0000_00FF_0000_00FF;
    (x | x >> 24) & 0xFFFF
}

/// Trits `0..5` of every byte of `TQ1_0`: each multiplication by 3 carries the next trit out of the byte.
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

/// 32 bytes hold elements `lane + 32 t`, the next 16 `lane + 16 t`, both with five trits a byte, and the last
/// four `lane + 4 t` with four.
fn tq1_0(cols: usize, data: &[u8]) -> (TritData, Vec<f16>) {
    let blocks = data.as_chunks::<54>().0;
    let mut packed = Vec::with_capacity(data.len() / (cols / 256 * 54) * cols.div_ceil(5));
    let mut scales = Vec::with_capacity(blocks.len());
    let mut codes = vec![1u8; cols.next_multiple_of(5)];
    for row in blocks.chunks_exact(cols / 256) {
        for (block, codes) in row.iter().zip(codes.chunks_exact_mut(256)) {
            spread(&block[..32], 5, &mut codes[..160]);
            spread(&block[32..48], 5, &mut codes[160..240]);
            spread(&block[48..52], 4, &mut codes[240..]);
            scales.push(f16::from_le_bytes([block[52], block[53]]));
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

/// `f16 d`, then codes in the order of the elements. Code 3 is +2 d, which no trit says: a tensor that has one
/// becomes dense.
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
        let Tensor::Trits(tensor) = one_row(GgufType::Tq2_0, 256, &block).unwrap() else {
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
        // Byte 51 is lane 3 of the third, four trits 1 2 0 1 and no fifth: 81 + 54 + 0 + 3 = 138 -> 146.
        block[51] = 146;
        // The other three of that part end in a fifth digit of 0: 81 + 27 + 9 + 3 = 120 -> 127.
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
        let Tensor::Trits(tensor) = one_row(GgufType::Tq1_0, 256, &block).unwrap() else {
            panic!("no trits")
        };
        assert_eq!(tensor.dequantize(), want);
    }

    #[test]
    fn a_block_of_q2_0_in_both_sizes() {
        for (kind, n) in [(GgufType::Q2_0G64, 64), (GgufType::Q2_0G128, 128)] {
            let mut block = vec![0b01_01_01_01; 2 + n / 4];
            block[..2].copy_from_slice(&HALF);
            block[2] = 0b10_01_00_10; // elements 0, 1, 2, 3: +, -, 0, +
            block[1 + n / 4] = 0b00_01_01_01; // the last element
            let mut want = vec![0.0; n];
            (want[0], want[1], want[3], want[n - 1]) = (0.5, -0.5, 0.5, -0.5);
            let tensor = one_row(kind, n, &block).unwrap();
            assert!(matches!(&tensor, Tensor::Trits(t) if t.group_len() == n));
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
    fn a_block_of_q8_0() {
        let mut block = [0; 34];
        block[..2].copy_from_slice(&HALF);
        (block[2], block[3], block[33]) = (127, 0x80, 0xFF);
        let mut want = [0.0; 32];
        (want[0], want[1], want[31]) = (63.5, -64.0, -0.5);
        let tensor = one_row(GgufType::Q8_0, 32, &block).unwrap();
        assert!(matches!(tensor, Tensor::Int8(_)));
        assert_eq!(tensor.to_f32(), want);
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
