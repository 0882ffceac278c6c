//! Decoding of integer block types that are not ternary: `Q4_0` to `Q8_0` and `Q4_K` to `Q6_K`.
//!
//! Types whose weights are a code times a scale decode to int8, exactly: the product of an f16 and an int8 scale is
//! representable in f32. Types with a minimum decode to f32.

use half::f16;
use trike_trit::ScaleValues;

use super::types::GgufType;
use crate::{DenseData, DenseTensor, Int8Tensor, Tensor, TensorError};

/// Decodes `data`, which consists of whole blocks.
pub(super) fn decode(kind: GgufType, rows: usize, cols: usize, data: &[u8]) -> Result<Tensor, TensorError> {
    let n = rows * cols;
    let int8 = |group, codes, scales| Int8Tensor::new(rows, cols, group, codes, scales).map(Tensor::Int8);
    let dense = |weights| DenseTensor::new(vec![rows, cols], DenseData::F32(weights)).map(Tensor::Dense);
    let blocks = data.chunks_exact(kind.block_bytes());
    match kind {
        GgufType::Q6K => {
            let (mut codes, mut scales) = (Vec::with_capacity(n), Vec::with_capacity(n / 16));
            blocks.for_each(|block| q6_k(block, &mut codes, &mut scales));
            int8(16, codes, ScaleValues::F32(scales))
        }
        GgufType::Q4_0 | GgufType::Q5_0 | GgufType::Q8_0 => {
            let (mut codes, mut scales) = (Vec::with_capacity(n), Vec::with_capacity(n / 32));
            for block in blocks {
                scales.push(half_at(block, 0));
                let body = &block[2..];
                match kind {
                    GgufType::Q4_0 => codes.extend(nibbles(body).map(|q| q as i8 - 8)),
                    GgufType::Q5_0 => codes.extend(fives(body).map(|q| q as i8 - 16)),
                    _ => codes.extend_from_slice(bytemuck::cast_slice::<u8, i8>(body)),
                }
            }
            int8(32, codes, ScaleValues::F16(scales))
        }
        GgufType::Q4_1 | GgufType::Q5_1 => {
            let mut weights = Vec::with_capacity(n);
            for block in blocks {
                let (d, m) = (half_at(block, 0).to_f32(), half_at(block, 2).to_f32());
                let value = |q: u8| d * f32::from(q) + m;
                match kind {
                    GgufType::Q4_1 => weights.extend(nibbles(&block[4..]).map(value)),
                    _ => weights.extend(fives(&block[4..]).map(value)),
                }
            }
            dense(weights)
        }
        _ => {
            let mut weights = Vec::with_capacity(n);
            blocks.for_each(|block| k_block(block, kind == GgufType::Q5K, &mut weights));
            dense(weights)
        }
    }
}

fn half_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

/// The low nibbles of the bytes, then the high nibbles.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    bytes.iter().map(|b| b & 15).chain(bytes.iter().map(|b| b >> 4))
}

/// Five-bit codes: four bytes with the fifth bit of each element, then 16 bytes with the low four bits.
fn fives(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let (high, low) = bytes.split_at(4);
    let fifth = |i: usize| high[i / 8] >> (i % 8) & 1;
    nibbles(low).enumerate().map(move |(i, q)| q | fifth(i) << 4)
}

/// 128 bytes of low nibbles, 64 bytes of upper two bits, 16 int8 scales and `f16 d`. Each half of a block has 64 bytes of low
/// nibbles and 32 of upper bits: element `l + 32 k` takes its upper bits from byte `l` at shift `2 k`.
fn q6_k(block: &[u8], codes: &mut Vec<i8>, scales: &mut Vec<f32>) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    for (low, high) in low.chunks_exact(64).zip(high.chunks_exact(32)) {
        codes.extend(nibbles(low).enumerate().map(|(i, q)| {
            let upper = high[i % 32] >> (2 * (i / 32)) & 3;
            (q | upper << 4) as i8 - 32
        }));
    }
    let d = half_at(rest, 16).to_f32();
    scales.extend(rest[..16].iter().map(|&s| d * f32::from(s as i8)));
}

/// `f16 d`, `f16 dmin`, 12 bytes of six-bit scales and minima, for `Q5_K` 32 bytes with the fifth bits, and 128 bytes
/// of nibbles. Runs of 32 bytes hold 64 elements, the low nibbles first; bit `i` of byte `l` of the fifth bits belongs to
/// element `l` of sub-block `i`.
fn k_block(block: &[u8], fifth_bits: bool, weights: &mut Vec<f32>) {
    let (d, dmin) = (half_at(block, 0).to_f32(), half_at(block, 2).to_f32());
    let (packed, rest) = block[4..].split_at(12);
    let (high, low) = rest.split_at(if fifth_bits { 32 } else { 0 });
    for (sub, low) in (0..8).zip(low.chunks_exact(32).flat_map(|run| [run, run])) {
        let (scale, min) = scale_and_min(packed, sub);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let half = 4 * (sub % 2);
        weights.extend(low.iter().enumerate().map(|(l, byte)| {
            let fifth = high.get(l).map_or(0, |bits| bits >> sub & 1);
            scale * f32::from(byte >> half & 15 | fifth << 4) - min
        }));
    }
}

/// The scale and the minimum of sub-block `sub`. For the first four sub-blocks, they are the low six bits of bytes 0 to 7; for
/// the others, the low four bits are in bytes 8 to 11 and the upper two bits are the top bits of the first eight bytes.
fn scale_and_min(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        return (packed[sub] & 63, packed[sub + 4] & 63);
    }
    let low = packed[sub + 4];
    (low & 15 | packed[sub - 4] >> 6 << 4, low >> 4 | packed[sub] >> 6 << 4)
}

/// The inverse of [`scale_and_min`] for all eight sub-blocks.
pub(super) fn block_scales(all: &[(u8, u8)]) -> [u8; 12] {
    let mut packed = [0; 12];
    for (sub, (scale, min)) in all.iter().enumerate().take(8) {
        if sub < 4 {
            packed[sub] |= scale & 63;
            packed[sub + 4] |= min & 63;
        } else {
            packed[sub + 4] = scale & 15 | min << 4;
            packed[sub - 4] |= scale >> 4 << 6;
            packed[sub] |= min >> 4 << 6;
        }
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::{GgufType, block_scales, decode, scale_and_min};
    use crate::{Tensor, TensorError};

    /// f16 0.5, 0.25, -1 and -8.
    const HALF: [u8; 2] = [0x00, 0x38];
    const QUARTER: [u8; 2] = [0x00, 0x34];
    const MINUS_1: [u8; 2] = [0x00, 0xBC];
    const MINUS_8: [u8; 2] = [0x00, 0xC8];

    fn one_block(kind: GgufType, parts: &[&[u8]]) -> Result<Tensor, TensorError> {
        let block = parts.concat();
        assert_eq!(block.len(), kind.block_bytes());
        decode(kind, 1, kind.block(), &block)
    }

    /// `rest` everywhere except at the given positions.
    fn but<const N: usize>(rest: u8, places: &[(usize, u8)]) -> [u8; N] {
        let mut bytes = [rest; N];
        places.iter().for_each(|&(at, byte)| bytes[at] = byte);
        bytes
    }

    fn weights(n: usize, rest: &[(std::ops::Range<usize>, f32)], places: &[(usize, f32)]) -> Vec<f32> {
        let mut want = vec![0.0; n];
        rest.iter().for_each(|(range, w)| want[range.clone()].fill(*w));
        places.iter().for_each(|&(at, w)| want[at] = w);
        want
    }

    #[test]
    fn a_block_of_q8_0() {
        let codes: [u8; 32] = but(0, &[(0, 127), (1, 0x80), (31, 0xFF)]);
        let tensor = one_block(GgufType::Q8_0, &[&HALF, &codes]).unwrap();
        assert!(matches!(&tensor, Tensor::Int8(t) if t.group() == 32));
        assert_eq!(tensor.to_f32(), weights(32, &[], &[(0, 63.5), (1, -64.0), (31, -0.5)]));
    }

    #[test]
    fn blocks_of_four_and_five_bits() {
        // Byte 0 holds elements 0 (code 15) and 16 (code 0); the others have the code of zero.
        let want = |first, other| weights(32, &[], &[(0, first), (16, other)]);
        let q4_0: [u8; 16] = but(0x88, &[(0, 0x0F)]);
        let tensor = one_block(GgufType::Q4_0, &[&HALF, &q4_0]).unwrap();
        assert!(matches!(&tensor, Tensor::Int8(t) if t.group() == 32));
        assert_eq!(tensor.to_f32(), want(3.5, -4.0));

        let q4_1: [u8; 16] = but(0x22, &[(0, 0x0F)]);
        let tensor = one_block(GgufType::Q4_1, &[&HALF, &MINUS_1, &q4_1]).unwrap();
        assert!(matches!(tensor, Tensor::Dense(_)));
        assert_eq!(tensor.to_f32(), want(6.5, -1.0));

        // The fifth bit is set everywhere except in element 16: codes 31, 0 and otherwise 16.
        let (high, low): ([u8; 4], [u8; 16]) = (but(0xFF, &[(2, 0xFE)]), but(0, &[(0, 0x0F)]));
        let tensor = one_block(GgufType::Q5_0, &[&HALF, &high, &low]).unwrap();
        assert!(matches!(tensor, Tensor::Int8(_)));
        assert_eq!(tensor.to_f32(), want(7.5, -8.0));
        let tensor = one_block(GgufType::Q5_1, &[&HALF, &MINUS_8, &high, &low]).unwrap();
        assert_eq!(tensor.to_f32(), want(7.5, -8.0));
    }

    #[test]
    fn a_block_of_q6_k() {
        // Code 32 is zero: low half 0, upper bits 2. Element 0 has 63, 32 has 33, 255 has 0.
        let low: [u8; 128] = but(0, &[(0, 0x0F), (32, 0x01)]);
        let high: [u8; 64] = but(0b10_10_10_10, &[(0, 0b10_10_10_11), (63, 0b00_10_10_10)]);
        let scales: [u8; 16] = but(1, &[(0, 2), (15, -4i8 as u8)]);
        let tensor = one_block(GgufType::Q6K, &[&low, &high, &scales, &HALF]).unwrap();
        assert!(matches!(&tensor, Tensor::Int8(t) if t.group() == 16));
        assert_eq!(tensor.to_f32(), weights(256, &[], &[(0, 31.0), (32, 0.5), (255, 64.0)]));
    }

    #[test]
    fn blocks_of_q4_k_and_q5_k() {
        // Sub-block 0: scale 3, minimum 4. Sub-block 5: scale 33 = 2 * 16 + 1 and minimum 18 = 1 * 16 + 2, low four bits in
        // byte 9, upper two on top of bytes 1 and 5.
        let packed: [u8; 12] = but(0, &[(0, 3), (4, 4), (9, 0x21), (1, 0x80), (5, 0x40)]);
        // Codes 5 for element 0 and 15 for element 161, which is in the upper halves of the third run.
        let low: [u8; 128] = but(0, &[(0, 0x05), (65, 0xF0)]);
        let rest = [(0..32, -1.0), (160..192, -4.5)];
        let tensor = one_block(GgufType::Q4K, &[&HALF, &QUARTER, &packed, &low]).unwrap();
        assert_eq!(tensor.to_f32(), weights(256, &rest, &[(0, 6.5), (161, 243.0)]));
        // The fifth bits make them 21 and 31.
        let high: [u8; 32] = but(0, &[(0, 1), (1, 1 << 5)]);
        let tensor = one_block(GgufType::Q5K, &[&HALF, &QUARTER, &packed, &high, &low]).unwrap();
        assert!(matches!(tensor, Tensor::Dense(_)));
        assert_eq!(tensor.to_f32(), weights(256, &rest, &[(0, 30.5), (161, 507.0)]));
    }

    #[test]
    fn scales_that_are_not_finite() {
        let kinds = [
            GgufType::Q8_0,
            GgufType::Q4_0,
            GgufType::Q4_1,
            GgufType::Q5_0,
            GgufType::Q5_1,
            GgufType::Q4K,
            GgufType::Q5K,
            GgufType::Q6K,
        ];
        for kind in kinds {
            for bits in [0x7C00u16, 0xFC00, 0x7E00] {
                let mut block = vec![0; kind.block_bytes()];
                let at = if kind == GgufType::Q6K { block.len() - 2 } else { 0 };
                block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
                let error = decode(kind, 1, kind.block(), &block).unwrap_err();
                assert!(matches!(error, TensorError::NonFinite { index: 0, .. }), "{kind}: {error}");
            }
        }
    }

    #[test]
    fn packed_scales_are_read_back() {
        let all: Vec<(u8, u8)> = (0..8).map(|sub| (63 - 7 * sub, 5 + 8 * sub)).collect();
        let packed = block_scales(&all);
        let read: Vec<(u8, u8)> = (0..8).map(|sub| scale_and_min(&packed, sub)).collect();
        assert_eq!(read, all);
    }
}
