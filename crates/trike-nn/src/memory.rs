//! Memory requirements of a model, computed before it is loaded.

use std::{fmt, ops::Range};

use crate::{DecoderSpec, KeySelector, KvPrecision, KvSpec};

/// Memory that a model needs while it runs, in bytes.
///
/// Computed before anything is loaded, so that insufficient device memory is reported immediately and not after minutes.
///
/// ```
/// use trike_nn::MemoryPlan;
///
/// let plan = MemoryPlan { weights: 1_000_000, cache: 200_000, scratch: 30_000 };
/// assert_eq!(plan.total(), 1_230_000);
/// assert_eq!(plan.to_string(), "1000000 weights, 200000 keys and values, 30000 activations");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Resident matrices and vectors.
    pub weights: u64,
    /// Keys and values of one sequence, with the codes that select keys.
    pub cache: u64,
    /// Peak of the tensors alive during the longest step, and the logits.
    pub scratch: u64,
}

impl MemoryPlan {
    /// The plan for a model with `weights` bytes of weights and one sequence, run in steps of up to `step` tokens with logits
    /// for the last token only.
    pub fn new(spec: &DecoderSpec, weights: u64, kv: &KvSpec, step: usize) -> Self {
        Self::of_layers(spec, 0..spec.layers, weights, kv, step)
    }

    /// As [`new`](Self::new) for some layers of a model, which have `weights` bytes of weights.
    pub fn of_layers(
        spec: &DecoderSpec,
        layers: Range<usize>,
        weights: u64,
        kv: &KvSpec,
        step: usize,
    ) -> Self {
        Self { weights, cache: kv.cache_bytes(spec, layers), scratch: scratch_bytes(spec, step) }
    }

    /// The plan on a device, whose kernels for prompts read a copy of an int8 cache: at most one layer's keys and values in f16.
    /// A device without f16 needs twice that.
    #[must_use]
    pub fn on_device(self, spec: &DecoderSpec, kv: &KvSpec) -> Self {
        let halves = KvSpec { precision: KvPrecision::F16.into(), keys: KeySelector::All, ..*kv };
        let is_copied = (0..spec.layers).any(|layer| kv.precision.of_layer(layer) == KvPrecision::Int8);
        let copy = if is_copied { halves.cache_bytes(spec, 0..1) } else { 0 };
        Self { scratch: self.scratch.saturating_add(copy), ..self }
    }

    /// Sum of all parts.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.cache).saturating_add(self.scratch)
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { weights, cache, scratch } = self;
        write!(f, "{weights} weights, {cache} keys and values, {scratch} activations")
    }
}

/// Memory that a backend uses on a device other than the host, and its transfers between the two.
///
/// ```
/// use trike_nn::{ActivationPrecision, Backend, CpuBackend};
///
/// let host = CpuBackend::new(trike_cpu::Cpu::new(1)?, ActivationPrecision::F32);
/// assert_eq!(host.device_use(), None);
/// # Ok::<(), trike_nn::NnError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// Bytes in buffers now.
    pub in_use: u64,
    /// Peak bytes in buffers since the device was opened.
    pub peak: u64,
    /// Bytes that the runtime reserves in its pools, those in buffers included.
    pub reserved: u64,
    /// Total memory in bytes, if the runtime reports it.
    pub total: Option<u64>,
    /// Copies to the device since the model was loaded: ids, positions, rows of a table that stays on the host.
    pub uploads: u64,
    /// Bytes of these copies.
    pub uploaded_bytes: u64,
    /// Number of blocking copies to the host.
    pub read_backs: u64,
    /// Bytes of these copies.
    pub read_bytes: u64,
    /// Copies of activations from another device of a pipeline.
    pub transfers: u64,
    /// Bytes of these copies.
    pub transferred_bytes: u64,
    /// Recorded steps.
    pub captures: u64,
    /// Steps executed by replaying a recording.
    pub replays: u64,
}

impl DeviceUse {
    /// Reserved but unused bytes (free lists and fragmentation).
    pub fn unused(&self) -> u64 {
        self.reserved.saturating_sub(self.in_use)
    }

    /// Sums over two devices. Peaks are added although they may have occurred at different times; the total is known only if both
    /// are.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            in_use: self.in_use + other.in_use,
            peak: self.peak + other.peak,
            reserved: self.reserved + other.reserved,
            total: self.total.zip(other.total).map(|(a, b)| a.saturating_add(b)),
            uploads: self.uploads + other.uploads,
            uploaded_bytes: self.uploaded_bytes + other.uploaded_bytes,
            read_backs: self.read_backs + other.read_backs,
            read_bytes: self.read_bytes + other.read_bytes,
            transfers: self.transfers + other.transfers,
            transferred_bytes: self.transferred_bytes + other.transferred_bytes,
            captures: self.captures + other.captures,
            replays: self.replays + other.replays,
        }
    }
}

/// Peak of a block: the residual stream, and either queries, keys, values and the attention output, or gate, up and their
/// product, each with a copy in codes of up to four bytes per value; then the logits of one token.
fn scratch_bytes(spec: &DecoderSpec, step: usize) -> u64 {
    let attention = 2 * spec.query_width() + 2 * spec.kv_width();
    let widest = spec.hidden + attention.max(3 * spec.intermediate);
    let codes = spec.hidden.max(spec.intermediate).max(spec.query_width());
    let tokens = (widest + codes) as u64;
    4 * tokens.saturating_mul(step as u64).saturating_add(spec.vocab as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvPrecisions;
    use crate::fixtures::small;

    #[test]
    fn a_plan_counts_what_a_sequence_holds() {
        let spec = small();
        let f16 = MemoryPlan::new(&spec, 7, &KvSpec::new(KvPrecision::F16, 10), 4);
        // Two layers of keys and values of two heads of eight.
        assert_eq!((f16.weights, f16.cache), (7, 2 * 2 * 16 * 10 * 2));
        let f32 = MemoryPlan::new(&spec, 7, &KvSpec::new(KvPrecision::F32, 10), 8);
        assert_eq!(f32.cache, 2 * f16.cache);
        let int8 = MemoryPlan::new(&spec, 7, &KvSpec::new(KvPrecision::Int8, 10), 4);
        // The same, with a byte per element and four for each scale.
        assert_eq!(int8.cache, 2 * 2 * 2 * (8 + 4) * 10);
        // A copy of one of its layers in f16, for prompts on a device.
        let on_device = int8.on_device(&spec, &KvSpec::new(KvPrecision::Int8, 10));
        assert_eq!((on_device.cache, on_device.scratch), (int8.cache, int8.scratch + f16.cache / 2));
        assert_eq!(f16.on_device(&spec, &KvSpec::new(KvPrecision::F16, 10)), f16);
        // Half of a byte per element of both, and of the values only.
        let [int4, int8_int4] = [KvPrecision::Int4, KvPrecision::Int8Int4]
            .map(|precision| MemoryPlan::new(&spec, 7, &KvSpec::new(precision, 10), 4).cache);
        assert_eq!(int4, 2 * 2 * 2 * (4 + 4) * 10);
        assert_eq!(2 * int8_int4, int8.cache + int4);
        // A word and a byte per head, in the layers after the first two.
        let spec = DecoderSpec { layers: 5, ..spec };
        let [exact, signs] = [KeySelector::All, KeySelector::signs(3).unwrap()]
            .map(|keys| MemoryPlan::new(&spec, 7, &KvSpec::new(KvPrecision::F16, 10).with_keys(keys), 4));
        assert_eq!(signs.cache, exact.cache + 3 * 2 * 10 * 9);
        // Each layer in its own precision; the sizes of parts add up.
        let kv = KvSpec::new("int4,int8:1".parse::<KvPrecisions>().unwrap(), 10)
            .with_keys(KeySelector::signs(3).unwrap());
        let parts = [0..2, 2..5].map(|layers| MemoryPlan::of_layers(&spec, layers, 7, &kv, 4).cache);
        assert_eq!(parts, [2 * 10 * 2 * (8 + 12), 3 * 2 * 10 * (2 * 8 + 9)]);
        assert_eq!(MemoryPlan::new(&spec, 7, &kv, 4).cache, parts[0] + parts[1]);
        // Twice the tokens, the same logits.
        assert_eq!(f32.scratch - 4 * 97, 2 * (f16.scratch - 4 * 97));
        assert_eq!(f32.total(), f32.weights + f32.cache + f32.scratch);
    }
}
