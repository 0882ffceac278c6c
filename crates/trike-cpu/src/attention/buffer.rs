//! Memory for keys or values.

use half::f16;
use half::slice::HalfFloatSliceExt;
use trike_core::KvPrecision;
use trike_host::{Lines, Loop};

use super::KvData;
use super::int4::{self, mixing, quantize_head_int4};
use super::int8::quantize_head;
use crate::error::{CpuError, check_len, check_range};
use crate::rotate::Rotate;

/// Keys or values of one layer of one sequence in one precision; owns the memory of a [`KvData`].
///
/// A slot is a vector of `head_dim` elements. A ring of `capacity` positions has `kv_heads * capacity` slots, and position `p` of a
/// head is in slot `head * capacity + p % capacity`, as in [`KvView`](super::KvView).
///
/// ```
/// use trike_core::KvPrecision;
/// use trike_cpu::KvBuffer;
///
/// let mut keys = KvBuffer::new(KvPrecision::Int8, 3, 2)?;
/// keys.write(1, &[127.0, -63.6])?;
/// let mut out = [f32::NAN; 2];
/// keys.read(1, &mut out)?;
/// // Codes 127 and -64 in steps of 1.
/// assert_eq!((out, keys.bytes()), ([127.0, -64.0], 3 * (2 + 4)));
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
#[derive(Clone, Debug)]
pub struct KvBuffer {
    elements: Elements,
    slots: usize,
    head_dim: usize,
}

#[derive(Clone, Debug)]
enum Elements {
    F32(Lines<f32>),
    F16(Lines<f16>),
    /// With one scale per slot.
    Int8(Lines<i8>, Lines<f32>),
    /// Two codes in a byte, with one scale per slot.
    Int4(Lines<u8>, Lines<f32>),
}

impl KvBuffer {
    /// A buffer of `slots` zero vectors. [`KvPrecision::Int8Int4`] is int8, the precision of its keys: use [`KvPrecision::key`] and
    /// [`KvPrecision::value`].
    ///
    /// # Errors
    ///
    /// [`CpuError::Range`] for vectors without elements, [`CpuError::Shape`] for more elements than can be addressed,
    /// [`CpuError::Host`] when out of memory.
    pub fn new(precision: KvPrecision, slots: usize, head_dim: usize) -> Result<Self, CpuError> {
        check_range("head_dim of a KV buffer", 1, 1 << 20, head_dim)?;
        let n = slots.checked_mul(head_dim).filter(|n| *n <= isize::MAX as usize / size_of::<f32>());
        let n = n.ok_or(CpuError::Shape { what: "KV buffer", rows: slots, cols: head_dim })?;
        let elements = match precision {
            KvPrecision::F32 => Elements::F32(Lines::separate(n)?),
            KvPrecision::F16 => Elements::F16(Lines::separate(n)?),
            KvPrecision::Int8 | KvPrecision::Int8Int4 => {
                Elements::Int8(Lines::separate(n)?, Lines::separate(slots)?)
            }
            KvPrecision::Int4 => {
                Elements::Int4(Lines::separate(slots * int4::bytes(head_dim))?, Lines::separate(slots)?)
            }
        };
        Ok(Self { elements, slots, head_dim })
    }

    /// Stores a vector.
    ///
    /// # Errors
    ///
    /// [`CpuError::Range`] for a slot out of range, [`CpuError::Length`] for a vector of another length. Nothing is written then.
    pub fn write(&mut self, slot: usize, values: &[f32]) -> Result<(), CpuError> {
        self.check(slot, values.len())?;
        let at = slot * self.head_dim..(slot + 1) * self.head_dim;
        match &mut self.elements {
            Elements::F32(v) => v[at].copy_from_slice(values),
            Elements::F16(v) => v[at].convert_from_f32_slice(values),
            Elements::Int8(codes, scales) => scales[slot] = quantize_head(values, &mut codes[at]),
            Elements::Int4(codes, scales) => {
                let width = int4::bytes(self.head_dim);
                scales[slot] = quantize_head_int4(values, &mut codes[slot * width..][..width]);
            }
        }
        Ok(())
    }

    /// Reads and dequantizes a vector; for int4, the Hadamard transform is undone.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn read(&self, slot: usize, out: &mut [f32]) -> Result<(), CpuError> {
        self.check(slot, out.len())?;
        let at = slot * self.head_dim..(slot + 1) * self.head_dim;
        match &self.elements {
            Elements::F32(v) => out.copy_from_slice(&v[at]),
            Elements::F16(v) => v[at].convert_to_f32_slice(out),
            Elements::Int8(codes, scales) => scale_codes(&codes[at], scales[slot], out),
            Elements::Int4(codes, scales) => {
                let (width, mut whole) = (int4::bytes(self.head_dim), vec![0; self.head_dim]);
                int4::unpack(&codes[slot * width..][..width], &mut whole);
                scale_codes(&whole, scales[slot], out);
                if let Some(rotation) = mixing(self.head_dim) {
                    Rotate { x: out, rotation }.run();
                }
            }
        }
        Ok(())
    }

    fn check(&self, slot: usize, len: usize) -> Result<(), CpuError> {
        check_len("elements of a vector of a KV buffer", self.head_dim, len)?;
        match self.slots.checked_sub(1) {
            Some(last) => check_range("slot of a KV buffer", 0, last, slot),
            None => check_len("slots of a KV buffer", slot.saturating_add(1), 0),
        }
    }

    /// The elements for the kernels.
    #[must_use]
    pub fn view(&self) -> KvData<'_> {
        match &self.elements {
            Elements::F32(v) => KvData::F32(v),
            Elements::F16(v) => KvData::F16(v),
            Elements::Int8(codes, scales) => KvData::Int8 { codes, scales },
            Elements::Int4(codes, scales) => KvData::Int4 { codes, scales },
        }
    }

    /// The precision, the number of slots and the elements of a vector.
    #[must_use]
    pub fn shape(&self) -> (KvPrecision, usize, usize) {
        let precision = match self.elements {
            Elements::F32(_) => KvPrecision::F32,
            Elements::F16(_) => KvPrecision::F16,
            Elements::Int8(..) => KvPrecision::Int8,
            Elements::Int4(..) => KvPrecision::Int4,
        };
        (precision, self.slots, self.head_dim)
    }

    /// Bytes of the elements and scales.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.arrays().iter().map(|(array, _)| array.len()).sum()
    }

    /// The memory as one part per array (elements or codes, then scales), each with its bytes per slot.
    #[must_use]
    pub fn arrays(&self) -> Vec<(&[u8], usize)> {
        let d = self.head_dim;
        match &self.elements {
            Elements::F32(v) => vec![(bytemuck::cast_slice(v), 4 * d)],
            Elements::F16(v) => vec![(bytemuck::cast_slice(v), 2 * d)],
            Elements::Int8(codes, scales) => {
                vec![(bytemuck::cast_slice(codes), d), (bytemuck::cast_slice(scales), 4)]
            }
            Elements::Int4(codes, scales) => {
                vec![(codes, int4::bytes(d)), (bytemuck::cast_slice(scales), 4)]
            }
        }
    }

    /// [`arrays`](Self::arrays), mutably; every byte pattern is a valid element.
    #[must_use]
    pub fn arrays_mut(&mut self) -> Vec<(&mut [u8], usize)> {
        let d = self.head_dim;
        match &mut self.elements {
            Elements::F32(v) => vec![(bytemuck::cast_slice_mut(v), 4 * d)],
            Elements::F16(v) => vec![(bytemuck::cast_slice_mut(v), 2 * d)],
            Elements::Int8(codes, scales) => {
                vec![(bytemuck::cast_slice_mut(codes), d), (bytemuck::cast_slice_mut(scales), 4)]
            }
            Elements::Int4(codes, scales) => {
                vec![(codes, int4::bytes(d)), (bytemuck::cast_slice_mut(scales), 4)]
            }
        }
    }
}

fn scale_codes(codes: &[i8], scale: f32, out: &mut [f32]) {
    out.iter_mut().zip(codes).for_each(|(out, code)| *out = f32::from(*code) * scale);
}

#[cfg(test)]
mod tests {
    use trike_testkit::{Rng, assert_all_near};

    use super::*;

    /// Values are read back within half a step of their precision: half an ulp of f16, half a scale of int8. An element of int4 is
    /// off by at most the norm of the errors of its transformed head, one scale per element.
    #[test]
    fn vectors_come_back_within_the_error_of_their_precision() {
        let mut rng = Rng::new(81);
        for d in [1, 2, 5, 64, 80] {
            for precision in KvPrecision::ALL {
                let mut buffer = KvBuffer::new(precision, 3, d).unwrap();
                let vectors: Vec<Vec<f32>> = (0..3).map(|_| rng.normals(d)).collect();
                for (slot, vector) in vectors.iter().enumerate() {
                    buffer.write(slot, vector).unwrap();
                }
                for (slot, vector) in vectors.iter().enumerate() {
                    let mut out = vec![f32::NAN; d];
                    buffer.read(slot, &mut out).unwrap();
                    let largest = vector.iter().fold(0f32, |most, x| most.max(x.abs()));
                    let error = match buffer.view() {
                        KvData::F32(_) => 0.0,
                        KvData::F16(_) => largest / 2048.0,
                        KvData::Int8 { scales, .. } => 0.500_01 * scales[slot],
                        KvData::Int4 { scales, .. } => 1.000_1 * scales[slot] * (d as f32).sqrt(),
                    };
                    assert_all_near!(&out, vector, abs = error, "{precision:?} {d}");
                }
                assert_eq!(buffer.bytes(), 3 * precision.key().bytes_per_position(d) / 2);
            }
        }
    }

    #[test]
    fn slots_and_lengths_are_checked() {
        let mut buffer = KvBuffer::new(KvPrecision::F32, 2, 3).unwrap();
        buffer.write(1, &[1.0; 3]).unwrap();
        for (slot, len, said) in [
            (2, 3, "slot of a KV buffer: expected at most 1, got 2"),
            (1, 2, "elements of a vector of a KV buffer: expected 3 elements, got 2"),
        ] {
            assert_eq!(buffer.write(slot, &vec![2.0; len]).unwrap_err().to_string(), said);
            assert_eq!(buffer.read(slot, &mut vec![2.0; len]).unwrap_err().to_string(), said);
        }
        let mut out = [f32::NAN; 3];
        buffer.read(1, &mut out).unwrap();
        assert_eq!(out, [1.0; 3]);
        KvBuffer::new(KvPrecision::F32, 0, 3).unwrap().read(0, &mut out).unwrap_err();
        KvBuffer::new(KvPrecision::F32, 1, 0).unwrap_err();
        KvBuffer::new(KvPrecision::Int8, usize::MAX / 2, 3).unwrap_err();
    }
}
