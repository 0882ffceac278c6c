//! Codes of the keys in a ring buffer.

use std::ops::Range;

use trike_host::{Cpu, Lines};

use super::project::{AddKeys, Center, CodeKeys, KeyRows, KeySums, Projection};
use crate::attention::cached::Cached;
use crate::attention::{KvData, Segment};
use crate::error::{CpuError, check_range};
use crate::kernels::{Element as _, Kernels as _, with_float_kernels};

/// Maximum `head_dim`: scores of this many channels fit 16 bits.
const MOST: usize = 1024;

/// Sign codes of the keys of one layer of one sequence, for estimating which keys a query attends to most: one bit per channel of
/// `H (key - mean)`, plus the length of `key - mean` as a byte, since of two keys in the same direction the longer one gets more
/// attention.
///
/// ```text
/// keys    ring  [kv_heads][capacity][head_dim]        position p in slot p % capacity, as in `KvView`
/// codes         [kv_heads][capacity][words]           bit c % 64 of word c / 64: channel c is above that of the mean
/// lengths       [kv_heads][capacity]                  64 for the root mean square of all, at most 255
/// ```
///
/// `H` is the normalized Hadamard transform of the largest power-of-two blocks of a head: the whole head of 64 or 128 elements,
/// blocks of 16 for 80, and the identity for an odd number. `mean` is the mean key of each head; keys lie in a narrow cone, so
/// without it most bits would be the same for all keys. Heads of fewer than 64 elements get additional channels, up to 64, with
/// some signs flipped before the transform.
///
/// The index is derived from the cached keys alone. Keys are coded lazily, when attention needs the codes, so a sequence that is
/// too short for a selection costs nothing. All keys are recoded with a new mean whenever their number has doubled or the ring has
/// wrapped once more, which amortizes to a constant number of times per key. Until the ring wraps, the codes depend only on the
/// cached keys and not on how they were divided into steps.
///
/// ```
/// use trike_cpu::KeyIndex;
///
/// // 17 bytes per head of 128 elements and position, an eighth of the keys in int8.
/// assert_eq!(KeyIndex::new(2, 128, 1000)?.bytes(), 2 * 1000 * 17);
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
#[derive(Clone, Debug)]
pub struct KeyIndex {
    pub(super) projection: Projection,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) capacity: usize,
    pub(super) codes: Lines<u64>,
    lengths: Lines<u8>,
    /// Of each head.
    centers: Vec<Center>,
    /// The mean covers the positions before this one.
    mean_end: usize,
    /// The positions before this one are coded.
    coded: usize,
}

impl KeyIndex {
    /// An index for a ring of keys, `[kv_heads][capacity][head_dim]`.
    ///
    /// # Errors
    ///
    /// [`CpuError::Range`] for heads of zero or more than 1024 elements, or a capacity over 32 bits; [`CpuError::Host`] when out of
    /// memory.
    pub fn new(kv_heads: usize, head_dim: usize, capacity: usize) -> Result<Self, CpuError> {
        check_range("key/value heads of a key index", 1, 1 << 20, kv_heads)?;
        check_range("head_dim of a key index", 1, MOST, head_dim)?;
        check_range("capacity of a key index", 1, u32::MAX as usize, capacity)?;
        let projection = Projection::new(head_dim);
        let slots = kv_heads.saturating_mul(capacity);
        let codes = Lines::separate(slots.saturating_mul(projection.words()))?;
        let lengths = Lines::separate(slots)?;
        let centers = vec![Center { mean: vec![0.0; projection.channels()], scale: 0.0 }; kv_heads];
        Ok(Self { projection, kv_heads, head_dim, capacity, codes, lengths, centers, mean_end: 0, coded: 0 })
    }

    /// Bytes of the codes and lengths.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.codes) + size_of_val(&*self.lengths)
    }

    /// Discards the codes of the positions from `len` on, whose keys are about to be replaced.
    pub fn truncate(&mut self, len: usize) {
        self.coded = self.coded.min(len);
        if len < self.mean_end {
            self.mean_end = 0;
        }
    }

    /// Codes the keys of all positions before `end` that are not coded yet.
    pub(super) fn update(&mut self, cpu: &Cpu, keys: KvData<'_>, end: usize) {
        match keys {
            KvData::F32(k) => self.code(cpu, Segment::plain(k), end),
            KvData::F16(k) => self.code(cpu, Segment::plain(k), end),
            KvData::Int8 { codes, scales } => self.code(cpu, Segment { elements: codes, scales }, end),
            KvData::Int4 { codes, scales } => self.code(cpu, Segment { elements: codes, scales }, end),
        }
    }

    fn code<E: Cached>(&mut self, cpu: &Cpu, ring: Segment<'_, E>, end: usize) {
        let Self { projection, head_dim, capacity, .. } = *self;
        let live = end.saturating_sub(capacity);
        let mean_end = mean_end(end, capacity);
        let is_new = mean_end != self.mean_end;
        let from = if is_new { live } else { self.coded.max(live) };
        if from >= end {
            return;
        }
        let isa = cpu.isa();
        let task = |(head, (codes, lengths, center)): (usize, (&mut [u64], &mut [u8], &mut Center))| {
            let keys = |slots: &Range<usize>| {
                let at = |width: usize| {
                    (head * capacity + slots.start) * width..(head * capacity + slots.end) * width
                };
                let scales = if E::Element::CODES { &ring.scales[at(1)] } else { &[] };
                KeyRows { rows: &ring.elements[at(E::width(head_dim))], scales }
            };
            if is_new {
                let mut sums = KeySums::new(head_dim);
                for slots in slots(live..mean_end, capacity) {
                    keys(&slots).for_widened(isa, head_dim, |_, keys| {
                        let sums = &mut sums;
                        with_float_kernels!(isa, s => s.run(AddKeys { keys, sums }));
                    });
                }
                *center = sums.center(&projection);
            }
            for slots in slots(from..end, capacity) {
                let words = projection.words();
                let center = &*center;
                let codes = &mut codes[slots.start * words..slots.end * words];
                let lengths = &mut lengths[slots.clone()];
                keys(&slots).for_widened(isa, head_dim, |first, keys| {
                    let (codes, lengths) = (&mut codes[first * words..], &mut lengths[first..]);
                    let task = CodeKeys { projection, keys, center, codes, lengths };
                    with_float_kernels!(isa, s => s.run(task));
                });
            }
        };
        // Coding a key costs about twenty multiply-adds per channel.
        let work = self.kv_heads.saturating_mul(20 * projection.channels() * (end - from));
        let codes = self.codes.chunks_exact_mut(capacity * projection.words());
        let lengths = self.lengths.chunks_exact_mut(capacity);
        let tasks =
            codes.zip(lengths).zip(&mut self.centers).map(|((c, l), center)| (c, l, center)).enumerate();
        if cpu.pool().parts(work) > 1 {
            cpu.pool().map(tasks.collect(), task);
        } else {
            tasks.for_each(task);
        }
        (self.mean_end, self.coded) = (mean_end, end);
    }

    /// The codes and lengths of a head at some positions in the ring: before and after the wrap-around.
    pub(super) fn codes_of(&self, head: usize, positions: Range<usize>) -> [(&[u64], &[u8]); 2] {
        let words = self.projection.words();
        slots(positions, self.capacity).map(|slots| {
            let (start, end) = (head * self.capacity + slots.start, head * self.capacity + slots.end);
            (&self.codes[start * words..end * words], &self.lengths[start..end])
        })
    }
}

/// End of the positions that the mean covers; they begin with the oldest one in the ring. The largest power of two up to `end`, or
/// a whole number of rounds of the ring.
fn mean_end(end: usize, capacity: usize) -> usize {
    match end {
        0 => 0,
        end if end <= capacity => 1 << end.ilog2(),
        end => end / capacity * capacity,
    }
}

/// The slots of at most `capacity` positions, before and after the wrap-around.
fn slots(positions: Range<usize>, capacity: usize) -> [Range<usize>; 2] {
    let start = positions.start % capacity;
    let before = positions.len().min(capacity - start);
    [start..start + before, 0..positions.len() - before]
}

#[cfg(test)]
mod tests {
    use super::super::project::WORD;
    use super::*;
    use crate::{quantize_head, quantize_head_int4};
    use half::f16;
    use trike_host::Isa;
    use trike_testkit::{Rng, assert_near};
    use trike_trit::Hadamard;

    /// The first channels of a vector from the definition, with the transform of `trike-trit`.
    fn rotated(x: &[f32]) -> Vec<f32> {
        let mut x = x.to_vec();
        if let Some(rotation) = Hadamard::largest(x.len(), Hadamard::MAX) {
            rotation.apply(&mut x).expect("whole blocks");
        }
        x
    }

    fn bit(index: &KeyIndex, head: usize, slot: usize, channel: usize) -> bool {
        let words = index.projection.words();
        index.codes[(head * index.capacity + slot) * words + channel / WORD] >> (channel % WORD) & 1 == 1
    }

    /// Keys of every precision, heads of every kind, steps of every length, with and without a wrap-around.
    #[test]
    fn codes_are_the_signs_of_centred_and_rotated_keys() {
        let mut rng = Rng::new(41);
        for (heads, d, capacity, end) in [
            (2, 128, 40, 37),
            (1, 8, 20, 20),
            (3, 80, 16, 70),
            (1, 37, 100, 64),
            (2, 64, 7, 100),
            (1, 200, 9, 5),
        ] {
            let live = end - end.min(capacity);
            // In a narrow cone, like real keys.
            let offset = rng.normals(heads * d);
            let keys: Vec<f32> = (0..capacity)
                .flat_map(|_| rng.normals(heads * d))
                .zip(offset.iter().cycle())
                .map(|(x, offset)| x + 5.0 * offset)
                .collect();
            // `keys` is by slot and head, the ring by head and slot.
            let mut ring = vec![0.0; keys.len()];
            for (at, key) in keys.chunks(d).enumerate() {
                ring[((at % heads) * capacity + at / heads) * d..][..d].copy_from_slice(key);
            }
            let halves: Vec<f16> = ring.iter().copied().map(f16::from_f32).collect();
            let mut codes = vec![0; ring.len()];
            let scales: Vec<f32> =
                ring.chunks(d).zip(codes.chunks_mut(d)).map(|(k, c)| quantize_head(k, c)).collect();
            let int8 = KvData::Int8 { codes: &codes, scales: &scales };
            let width = d.div_ceil(2);
            let mut packed = vec![0; heads * capacity * width];
            let rows = ring.chunks(d).zip(packed.chunks_mut(width));
            let packed_scales: Vec<f32> = rows.map(|(k, c)| quantize_head_int4(k, c)).collect();
            let int4 = KvData::Int4 { codes: &packed, scales: &packed_scales };
            for data in [KvData::F32(&ring), KvData::F16(&halves), int8, int4] {
                let mut wide = data.widened(d);
                if data.is_mixed() {
                    wide = wide.chunks(d).flat_map(rotated).collect();
                }
                let mut all = Vec::new();
                for isa in Isa::available() {
                    // After a wrap-around, the ring lacks keys that an earlier step included in the mean.
                    let all_steps = [vec![end], vec![1, end / 2, end - 1, end], (1..=end).collect()];
                    for steps in &all_steps[..if end > capacity { 1 } else { 3 }] {
                        let cpu = Cpu::with_isa(isa, 2).expect("two threads");
                        let mut index = KeyIndex::new(heads, d, capacity).expect("valid");
                        index.codes.fill(0x5555_5555_5555_5555);
                        steps.iter().for_each(|&end| index.update(&cpu, data, end));
                        all.push(index);
                    }
                }
                let first = &all[0];
                let count = mean_end(end, capacity) - live;
                for head in 0..heads {
                    let at = |slot: usize| &wide[(head * capacity + slot) * d..][..d];
                    let mut mean = vec![0.0; d];
                    for p in live..live + count {
                        mean.iter_mut().zip(at(p % capacity)).for_each(|(m, k)| *m += f64::from(*k));
                    }
                    let mean: Vec<f32> = mean.iter().map(|m| (m / count as f64) as f32).collect();
                    let length = |p: usize| {
                        let difference = at(p % capacity).iter().zip(&mean).map(|(k, m)| f64::from(k - m));
                        difference.map(|x| x * x).sum::<f64>().sqrt()
                    };
                    let of_all = (live..live + count).map(|p| length(p).powi(2)).sum::<f64>() / count as f64;
                    for p in live..end {
                        let got = f64::from(first.codes_of(head, p..p + 1)[0].1[0]);
                        // Rounding to the nearest, after rounding in f32.
                        let want = (64.0 * length(p) / of_all.sqrt()).min(255.0);
                        assert_near!(got, want, abs = 0.51, "{d}: position {p}");
                    }
                    let mean = rotated(&mean);
                    for p in live..end {
                        let key = rotated(at(p % capacity));
                        for (channel, (key, mean)) in key.iter().zip(&mean).enumerate() {
                            let got = bit(first, head, p % capacity, channel);
                            assert_eq!(got, key > mean, "{d}: position {p}, channel {channel}");
                        }
                        for channel in first.projection.channels()..WORD * first.projection.words() {
                            assert!(!bit(first, head, p % capacity, channel), "{d}: channel {channel}");
                        }
                    }
                }
                for index in &all {
                    for head in 0..heads {
                        assert_eq!(index.codes_of(head, live..end), first.codes_of(head, live..end), "{d}");
                    }
                }
            }
        }
    }

    /// Positions rewritten after a truncation are recoded.
    #[test]
    fn a_truncated_index_is_that_of_the_keys_there() {
        let mut rng = Rng::new(42);
        let (d, capacity) = (16, 50);
        let cpu = Cpu::new(1).expect("one thread");
        let mut keys = rng.normals(capacity * d);
        let mut index = KeyIndex::new(1, d, capacity).expect("valid");
        index.update(&cpu, KvData::F32(&keys), 45);
        // Truncated to the keys of the mean, with as many new ones, and to fewer.
        for (len, end) in [(40, 45), (20, 45), (10, 15)] {
            keys[len * d..].copy_from_slice(&rng.normals((capacity - len) * d));
            index.truncate(len);
            index.update(&cpu, KvData::F32(&keys), end);
            let mut fresh = KeyIndex::new(1, d, capacity).expect("valid");
            fresh.update(&cpu, KvData::F32(&keys), end);
            assert_eq!(index.codes_of(0, 0..end), fresh.codes_of(0, 0..end));
        }
    }
}
