//! int8 caches: quantization, storage and unpacking of keys and values.
//!
//! Quantization is that of `trike-cpu`: `s = max|x| / 127` for each key and each value of a head, `code = round(x / s)` to nearest
//! even. Codes are stored in words, because WGSL has no bytes: element `4 w + i` of a head is byte `i` of word `w`, plus 128. The
//! scales of a slot are adjacent, the key's first.

use cubecl::prelude::*;
use trike_core::RopePairing;

use super::ptx;
use crate::math::{magnitude, nearest};

/// Offset of a byte from its code.
const OFFSET: u8 = 128;
/// Codes per word.
pub(super) const OF_WORD: usize = 4;
/// Units per cube of the quantization kernels.
pub const UNITS: usize = 128;
/// Bits of f32 infinity.
const INFINITE: u32 = 0x7F80_0000;

/// Dequantizes the codes in `words` on the host, as kernels do.
pub fn values_of(words: &[u32], scales: impl Iterator<Item = f32>, head_dim: usize) -> Vec<f32> {
    let slots = words.chunks_exact(head_dim / OF_WORD).zip(scales);
    slots
        .flat_map(|(words, scale)| {
            let bytes = words.iter().flat_map(|word| word.to_le_bytes());
            bytes.map(move |byte| (f32::from(byte) - f32::from(OFFSET)) * scale)
        })
        .collect()
}

/// Scales as an argument of kernels.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Scales {
    /// `[kv_head][slot]`: the scales of the key and of the value.
    pub(super) pairs: Box<[Vector<f32, Const<2>>]>,
}

/// The scales of a slot; ones for a cache without scales.
#[cube]
pub(super) fn scales_of(scales: &ComptimeOption<Scales>, slot: usize) -> Vector<f32, Const<2>> {
    #[comptime]
    match scales {
        ComptimeOption::Some(scales) => scales.pairs[slot],
        ComptimeOption::None => Vector::new(1.0f32),
    }
}

/// The code in byte `i` of a word. Instead of a conversion, which has a lower throughput than other instructions, the byte becomes
/// the low bits of a float at `2^23`.
#[cube]
pub(super) fn code_at(word: u32, #[comptime] i: u32, #[comptime] ptx: bool) -> f32 {
    let bits = if comptime!(ptx) {
        ptx::byte_above(word, 0x4B00_0000u32, i)
    } else {
        (word >> comptime!(8 * i)) & 0xFF | 0x4B00_0000
    };
    f32::reinterpret(bits) - comptime!(8_388_608.0 + OFFSET as f32)
}

/// Element `d` of a key in a slot; dequantized if there are scales.
#[cube]
pub(super) fn element_at<E: Numeric>(
    k: &[E],
    scales: &ComptimeOption<Scales>,
    slot: usize,
    d: usize,
    #[comptime] head_dim: usize,
) -> f32 {
    #[comptime]
    match scales {
        ComptimeOption::Some(scales) => {
            let word = u32::reinterpret(k[slot * comptime!(head_dim / OF_WORD) + d / OF_WORD]);
            let byte = (word >> (8 * (d % OF_WORD) as u32)) & 0xFF;
            f32::cast_from(i32::cast_from(byte) - comptime!(OFFSET as i32))
                * scales.pairs[slot].extract(0usize)
        }
        ComptimeOption::None => f32::cast_from(k[slot * head_dim + d]),
    }
}

/// Compile-time parameters of the quantization kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvCodesForm {
    /// Head dimension, a multiple of 4.
    pub head_dim: usize,
    /// Pairing of the rotated elements of keys; `None` = no rotation.
    pub pairing: Option<RopePairing>,
}

impl KvCodesForm {
    fn words(self) -> usize {
        self.head_dim / OF_WORD
    }

    /// Units that quantize a key and its value together.
    #[must_use]
    pub fn lanes(self) -> usize {
        self.words().next_power_of_two().min(32)
    }

    /// Bytes of shared memory.
    pub(crate) fn shared_bytes() -> usize {
        4 * 2 * UNITS
    }
}

/// Destination of a new key or value, and the rotation of keys at its position.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Place {
    /// Index of the first element.
    pub(crate) from: usize,
    /// Its slot, counted from the start of the allocation.
    pub(crate) slot: usize,
    /// Index of the cosine of its first pair.
    pub(crate) turns_at: usize,
    /// Elements that are rotated.
    pub(crate) rotated: usize,
}

/// Element `d` of a key, rotated.
#[cube]
fn rotated(k: &[f32], turns: &[f32], place: &Place, d: usize, #[comptime] form: KvCodesForm) -> f32 {
    let mut value = k[place.from + d];
    if comptime!(form.pairing.is_some()) {
        let pairs = place.rotated / 2;
        if d < place.rotated {
            let mut pair = d / 2;
            let mut low = d - d % 2;
            let mut high = low + 1;
            if comptime!(form.pairing == Some(RopePairing::Halves)) {
                pair = d % pairs;
                low = pair;
                high = pair + pairs;
            }
            let (a, b) = (k[place.from + low], k[place.from + high]);
            let (cos, sin) = (turns[place.turns_at + pair], turns[place.turns_at + pair + pairs]);
            value = select(d == low, a * cos - b * sin, a * sin + b * cos);
        }
    }
    value
}

/// The scale of a vector, given the bits of its absolute maximum; NaN if that is not finite.
#[cube]
fn scale_of(largest: u32) -> f32 {
    let mut scale = f32::reinterpret(largest | 0x7FC0_0000);
    if largest < INFINITE {
        scale = f32::reinterpret(largest) / 127.0;
    }
    scale
}

/// The byte of an element. A scale of zero or NaN has codes of zero.
#[cube]
fn byte_of(x: f32, scale: f32) -> u32 {
    let mut code = 0i32;
    if scale > 0.0 {
        // A subnormal scale may be rounded down so far that a quotient exceeds 127.
        code = nearest(clamp(x / scale, -127.0f32, 127.0f32));
    }
    u32::cast_from(code + comptime!(OFFSET as i32))
}

/// Quantizes a key and its value, and stores their codes and scales, with the [`KvCodesForm::lanes`] units of a group. All units
/// must call it, `active` or not.
#[cube]
pub(crate) fn round_and_store(
    k: &[f32],
    v: &[f32],
    turns: &[f32],
    keys: &mut [u32],
    values: &mut [u32],
    scales: &mut [f32],
    place: &Place,
    active: bool,
    #[comptime] form: KvCodesForm,
) {
    let unit = UNIT_POS as usize;
    let lanes = comptime!(form.lanes());
    let words = comptime!(form.words());
    let lane = unit % lanes;
    let mut maxima = Shared::<[u32]>::new_slice(comptime!(2 * UNITS));
    let mut of_key = 0u32;
    let mut of_value = 0u32;
    if active {
        let mut w = lane;
        while w < words {
            #[unroll]
            for i in 0..OF_WORD {
                let d = w * OF_WORD + i;
                of_key = max(of_key, magnitude(rotated(k, turns, place, d, form)));
                of_value = max(of_value, magnitude(v[place.from + d]));
            }
            w += lanes;
        }
    }
    maxima[unit] = of_key;
    maxima[UNITS + unit] = of_value;
    sync_cube();
    if active {
        #[unroll]
        for l in 0..lanes {
            of_key = max(of_key, maxima[unit - lane + l]);
            of_value = max(of_value, maxima[UNITS + unit - lane + l]);
        }
        let (key_scale, value_scale) = (scale_of(of_key), scale_of(of_value));
        let mut w = lane;
        while w < words {
            let mut key = 0u32;
            let mut value = 0u32;
            #[unroll]
            for i in 0..OF_WORD {
                let d = w * OF_WORD + i;
                let shift = comptime!(8 * i as u32);
                key |= byte_of(rotated(k, turns, place, d, form), key_scale) << shift;
                value |= byte_of(v[place.from + d], value_scale) << shift;
            }
            keys[place.slot * words + w] = key;
            values[place.slot * words + w] = value;
            w += lanes;
        }
        if lane == 0 {
            scales[2 * place.slot] = key_scale;
            scales[2 * place.slot + 1] = value_scale;
        }
    }
}
