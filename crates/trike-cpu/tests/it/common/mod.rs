//! Shared by the kernel tests: instruction sets, weights, oracles.
use half::f16;
use trike_cpu::{ActivationPrecision, Cpu, Isa};
use trike_testkit::Rng;
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, ScaleValues, Scales, TritTensor};

/// Every instruction set, with one thread and with three.
pub(crate) fn cpus() -> Vec<Cpu> {
    let cpu = |isa, threads| Cpu::with_isa(isa, threads).expect("a few threads");
    Isa::available().into_iter().flat_map(|isa| [cpu(isa, 1), cpu(isa, 3)]).collect()
}

pub(crate) fn describe(cpu: &Cpu) -> String {
    format!("{} with {} threads", cpu.isa(), cpu.threads())
}

pub(crate) const GRANULARITIES: [Granularity; 6] = [
    Granularity::Tensor,
    Granularity::Row,
    Granularity::Group(GroupSize::G32),
    Granularity::Group(GroupSize::G64),
    Granularity::Group(GroupSize::G128),
    Granularity::Group(GroupSize::G256),
];

pub(crate) const PRECISIONS: [ActivationPrecision; 7] = [
    ActivationPrecision::F32,
    ActivationPrecision::Int8PerToken,
    ActivationPrecision::Int8PerGroup(GroupSize::G32),
    ActivationPrecision::Int8PerGroup(GroupSize::G64),
    ActivationPrecision::Int8PerGroup(GroupSize::G128),
    ActivationPrecision::Int8PerGroup(GroupSize::G256),
    ActivationPrecision::Int16,
];

/// Parameters of a random tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) depth: usize,
    pub(crate) coupling: Coupling,
    pub(crate) granularity: Granularity,
    pub(crate) means: bool,
    pub(crate) halves: bool,
    pub(crate) encoding: Encoding,
}

impl Weights {
    /// One plane, no means, f32 scales.
    pub(crate) fn plain(rows: usize, cols: usize, granularity: Granularity) -> Self {
        let (depth, coupling, encoding) = (1, Coupling::Free, Encoding::TwoBit);
        Self { rows, cols, depth, coupling, granularity, means: false, halves: false, encoding }
    }

    pub(crate) fn make(&self, rng: &mut Rng) -> TritTensor {
        let set = self.granularity.count(self.rows, self.cols).expect("a small tensor");
        let sets = if self.coupling == Coupling::Free { self.depth } else { 1 };
        let mut values = |n: usize, offset: f32| {
            let values: Vec<f32> = (0..n).map(|_| offset + 0.1 * rng.f32_unit()).collect();
            if self.halves {
                ScaleValues::F16(values.into_iter().map(f16::from_f32).collect())
            } else {
                ScaleValues::F32(values)
            }
        };
        let scales =
            Scales::new(self.granularity, values(set * sets, 0.02), self.means.then(|| values(set, -0.05)));
        let trits: Vec<Vec<i8>> = (0..self.depth).map(|_| rng.trits(self.rows * self.cols, 0.6)).collect();
        let planes: Vec<&[i8]> = trits.iter().map(Vec::as_slice).collect();
        TritTensor::from_planes(self.rows, self.cols, &planes, self.encoding, self.coupling, scales)
            .expect("valid parts")
    }
}

/// The oracle: `x W^T` in f64 over the tensor's dequantized weights.
pub(crate) fn oracle(x: &[f32], w: &[f32], k: usize) -> Vec<f32> {
    let dot = |x: &[f32], w: &[f32]| {
        x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>() as f32
    };
    x.chunks(k).flat_map(|x| w.chunks(k).map(move |w| dot(x, w))).collect()
}

/// Activations after int8 quantization, implemented independently from the definition; f32 is unchanged.
pub(crate) fn as_quantized(x: &[f32], k: usize, precision: ActivationPrecision) -> Vec<f32> {
    let two_bytes = |x: &[f32]| {
        let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
        // The power of two at or below the largest magnitude, over 2^13.
        let step = if largest > 0.0 { f32::from_bits(largest.to_bits() & 0x7F80_0000) / 8192.0 } else { 1.0 };
        x.iter().map(|v| (v / step).round_ties_even() * step).collect::<Vec<f32>>()
    };
    let len = match precision {
        ActivationPrecision::F32 => return x.to_vec(),
        ActivationPrecision::Int16 => return x.chunks(k).flat_map(two_bytes).collect(),
        ActivationPrecision::Int8PerToken => k,
        ActivationPrecision::Int8PerGroup(size) => size.get(),
    };
    let group = |x: &[f32]| {
        let s = 127.0 / x.iter().fold(1e-5f32, |m, v| m.max(v.abs()));
        x.iter().map(|v| (v * s).round_ties_even().clamp(-128.0, 127.0) / s).collect::<Vec<f32>>()
    };
    x.chunks(k).flat_map(|x| x.chunks(len)).flat_map(group).collect()
}

/// The bits of floats, for an equality that distinguishes zeros and treats NaN as equal only to the same NaN.
pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}
