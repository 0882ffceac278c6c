//! The device backend compared with the host backend, on the software Vulkan driver.
#![cfg(feature = "gpu")]

use trike_core::{DenseData, DenseTensor, Int8Tensor};
use trike_cpu::Cpu;
use trike_cube::{CubeDevice, DeviceOptions, DeviceSpec, Planes, Runtime};
use trike_nn::{
    ActivationPrecision, Backend, Biases, CpuBackend, CubeBackend, Decoder, DecoderSequence, DecoderSpec,
    DecoderWeights, GatedActivation, KvPrecision, KvSpec, Layout, Logits, MemoryPlan, NnError, RopePairing,
    RopeScaling, RopeSpec, Step, StepLogits, Tensor, WeightName,
};
use trike_testkit::{Rng, assert_close, skip};
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, Hadamard, ScaleValues, Scales, TritTensor};

mod batches;
mod edits;
mod graphs;
mod keys;
mod split;

/// The software Vulkan driver; if there is none, `None` after printing a line that the test runner counts.
fn software() -> Option<CubeDevice> {
    let open = |index| {
        let spec = DeviceSpec::Numbered(Runtime::Wgpu, index);
        CubeDevice::open_with(spec, DeviceOptions::default().with_planes(Planes::Forced)).ok()
    };
    let found = (0..).map_while(open).find(|device| device.is_software() && device.capabilities().f16);
    if found.is_none() {
        skip("no Vulkan driver");
    }
    found
}

/// Storage formats of the block matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Trits,
    /// As trits, with the inputs of the output and down projections rotated.
    Rotated,
    /// Groups of 32 columns with means, in planes; query and key in other formats than value.
    Mixed,
    /// 95 % zeros, one scale per row.
    Few,
    /// Zeros in blocks of 16 rows by 128 columns, three of four.
    Blocks,
    F32,
}

/// Random weights for a spec, the same each time.
struct Random<'a> {
    spec: &'a DecoderSpec,
    kind: Kind,
    rng: Rng,
}

impl<'a> Random<'a> {
    fn new(spec: &'a DecoderSpec, kind: Kind) -> Self {
        Self { spec, kind, rng: Rng::new(7) }
    }

    fn trits(&mut self, rows: usize, cols: usize, depth: usize, granularity: Granularity) -> Tensor {
        let planes: Vec<Vec<i8>> = (0..depth).map(|_| self.rng.trits(rows * cols, 0.5)).collect();
        let planes: Vec<&[i8]> = planes.iter().map(Vec::as_slice).collect();
        let count = granularity.count(rows, cols).expect("a count");
        let near = |n: usize, rng: &mut Rng, size: f32| {
            ScaleValues::exact(&rng.normals(n).iter().map(|v| size * (1.0 + 0.2 * v)).collect::<Vec<_>>())
        };
        let size = 1.4 / (cols as f32).sqrt();
        let values = near(count * depth, &mut self.rng, size / depth as f32);
        let means = (depth > 1).then(|| near(count, &mut self.rng, 0.05 * size));
        let scales = Scales::new(granularity, values, means);
        let tensor = TritTensor::from_planes(rows, cols, &planes, Encoding::TwoBit, Coupling::Free, scales);
        Tensor::Ternary(tensor.expect("a tensor"))
    }
}

impl Random<'_> {
    /// Trits with one scale per row, zero where `zero` returns true.
    fn without(&mut self, rows: usize, cols: usize, zero: impl Fn(&mut Rng, usize, usize) -> bool) -> Tensor {
        let mut trits = self.rng.trits(rows * cols, 1.0);
        for (i, trit) in trits.iter_mut().enumerate() {
            if zero(&mut self.rng, i / cols, i % cols) {
                *trit = 0;
            }
        }
        let nonzeros = trits.iter().filter(|t| **t != 0).count().max(1) as f32;
        let size = (rows as f32 / nonzeros).sqrt();
        let scales = Scales::new(Granularity::Row, vec![size; rows], None);
        let tensor = TritTensor::from_trits(rows, cols, &trits, Encoding::TwoBit, scales);
        Tensor::Ternary(tensor.expect("a tensor"))
    }
}

impl DecoderWeights for Random<'_> {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        let (rows, cols) = self.spec.shape(name);
        let values =
            |rng: &mut Rng, size: f32| rng.normals(rows * cols).iter().map(|v| size * v).collect::<Vec<_>>();
        Ok(match (self.kind, name) {
            // A ternary table, for lookups and products.
            (Kind::Mixed, WeightName::Embedding) => {
                self.trits(rows, cols, 1, Granularity::Group(GroupSize::G32))
            }
            (_, WeightName::Head) => {
                let codes = (0..rows * cols).map(|_| self.rng.below(255) as i8).collect();
                let scales = vec![0.01; rows * cols.div_ceil(32)];
                Tensor::Int8(Int8Tensor::new(rows, cols, 32.min(cols), codes, ScaleValues::F32(scales))?)
            }
            (_, WeightName::Embedding) => {
                let values = values(&mut self.rng, 1.0).into_iter().map(half::f16::from_f32).collect();
                Tensor::Dense(DenseTensor::new(vec![rows, cols], DenseData::F16(values))?)
            }
            (Kind::Rotated, WeightName::Output(_) | WeightName::Down(_)) => {
                let Tensor::Ternary(plain) = self.trits(rows, cols, 1, Granularity::Row) else {
                    unreachable!()
                };
                let rotation = Hadamard::largest(cols, 64);
                assert!(rotation.is_some(), "{cols} columns");
                Tensor::Ternary(plain.with_rotation(rotation)?)
            }
            (Kind::Few, _) => self.without(rows, cols, |rng, _, _| rng.below(20) != 0),
            (Kind::Blocks, _) => self.without(rows, cols, |_, row, col| (row / 16 + col / 128) % 4 != 0),
            (Kind::Trits | Kind::Rotated, _) => self.trits(rows, cols, 1, Granularity::Tensor),
            (Kind::Mixed, WeightName::Value(_)) => self.trits(rows, cols, 1, Granularity::Row),
            (Kind::Mixed, WeightName::Up(_)) => {
                let values = values(&mut self.rng, 1.4 / (cols as f32).sqrt());
                Tensor::Dense(DenseTensor::new(vec![rows, cols], DenseData::F32(values))?)
            }
            (Kind::Mixed, _) => self.trits(rows, cols, 2, Granularity::Group(GroupSize::G32)),
            (Kind::F32, _) => {
                let values = values(&mut self.rng, 1.4 / (cols as f32).sqrt());
                Tensor::Dense(DenseTensor::new(vec![rows, cols], DenseData::F32(values))?)
            }
        })
    }

    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError> {
        let (_, len) = self.spec.shape(name);
        Ok(self.rng.normals(len).iter().map(|v| 1.0 + 0.2 * v).collect())
    }
}

fn base() -> DecoderSpec {
    DecoderSpec { intermediate: 160, kv_heads: 2, context: 64, ..DecoderSpec::llama(96, 2, 6, 113) }
}

/// The supported model families, each with its distinctive features enabled.
fn architectures() -> [(&'static str, DecoderSpec, Kind); 8] {
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_context: 16,
        attention_factor: 1.1,
    };
    let adjacent = RopeSpec::new(10_000.0, RopePairing::Adjacent);
    [
        ("llama", base(), Kind::Trits),
        ("llama, dense, adjacent", DecoderSpec { rope: adjacent, tied_head: true, ..base() }, Kind::F32),
        ("llama, mixed kinds", DecoderSpec { tied_head: true, ..base() }, Kind::Mixed),
        ("mistral", DecoderSpec { window: Some(7), ..base() }, Kind::Trits),
        (
            "qwen2",
            DecoderSpec { biases: Biases { qkv: true, output: true, mlp: true }, tied_head: true, ..base() },
            Kind::Trits,
        ),
        (
            "qwen3",
            DecoderSpec {
                qk_norm: true,
                head_dim: 24,
                rope: RopeSpec { scaling: yarn, ..base().rope },
                ..base()
            },
            Kind::Trits,
        ),
        (
            "bitnet",
            DecoderSpec {
                sub_norms: true,
                activation: GatedActivation::SquaredReLu,
                tied_head: true,
                ..base()
            },
            Kind::Trits,
        ),
        (
            "bitnet, rotated inputs",
            DecoderSpec { sub_norms: true, activation: GatedActivation::SquaredReLu, ..base() },
            Kind::Rotated,
        ),
    ]
}

fn ids(n: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| rng.below(113) as u32).collect()
}

fn cpu(spec: &DecoderSpec, kind: Kind, precision: ActivationPrecision) -> Decoder<CpuBackend> {
    let backend = CpuBackend::new(Cpu::new(1).expect("a thread"), precision);
    Decoder::new(backend, spec.clone(), &mut Random::new(spec, kind)).expect("it loads")
}

fn gpu(
    device: &CubeDevice,
    spec: &DecoderSpec,
    kind: Kind,
    precision: ActivationPrecision,
) -> Decoder<CubeBackend> {
    let backend = CubeBackend::new(device.clone(), precision);
    Decoder::new(backend, spec.clone(), &mut Random::new(spec, kind)).expect("it loads")
}

/// Logits of every id, in steps of at most `step`.
fn logits<B: Backend>(decoder: &Decoder<B>, ids: &[u32], kv: KvSpec, step: usize) -> Vec<f32> {
    let mut sequence = decoder.sequence(kv).expect("a sequence");
    let mut all = Vec::new();
    for ids in ids.chunks(step) {
        let mut steps = [Step { sequence: &mut sequence, ids }];
        all.extend(decoder.forward(&mut steps, Logits::All).expect("logits").remove(0));
    }
    all
}

#[test]
fn every_architecture_agrees_with_the_host() {
    let Some(device) = software() else { return };
    for (name, spec, kind) in architectures() {
        let kv = KvSpec::new(KvPrecision::F32, 40);
        let ids = ids(16, 3);
        let want = logits(&cpu(&spec, kind, ActivationPrecision::F32), &ids, kv, 16);
        let decoder = gpu(&device, &spec, kind, ActivationPrecision::F32);
        for step in [16, 11, 1] {
            let got = logits(&decoder, &ids, kv, step);
            assert!(got.len() == want.len() && got.iter().all(|v| v.is_finite()), "{name}");
            assert_close(&got, &want, 1e-3);
        }
    }
}

#[test]
fn int8_activations_and_half_caches_agree_with_the_host() {
    let Some(device) = software() else { return };
    let (spec, kv, ids) = (base(), KvSpec::new(KvPrecision::F16, 40), ids(20, 5));
    for precision in [
        ActivationPrecision::Int16,
        ActivationPrecision::Int8PerToken,
        ActivationPrecision::Int8PerGroup(GroupSize::G64),
    ] {
        let want = logits(&cpu(&spec, Kind::Trits, precision), &ids, kv, 20);
        let got = logits(&gpu(&device, &spec, Kind::Trits, precision), &ids, kv, 20);
        // An activation at a rounding boundary may be rounded the other way, which changes a logit by a step.
        assert_close(&got, &want, 2e-2);
    }
}

/// A key at a rounding boundary may be rounded the other way, which changes a logit by a step.
#[test]
fn int8_caches_agree_with_the_host() {
    let Some(device) = software() else { return };
    for (name, spec, kind) in architectures() {
        let (kv, ids) = (KvSpec::new(KvPrecision::Int8, 40), ids(16, 8));
        let on_cpu = cpu(&spec, kind, ActivationPrecision::F32);
        let want = logits(&on_cpu, &ids, kv, 16);
        let decoder = gpu(&device, &spec, kind, ActivationPrecision::F32);
        for step in [16, 5, 1] {
            let got = logits(&decoder, &ids, kv, step);
            assert!(got.iter().all(|v| v.is_finite()), "{name}");
            assert_close(&got, &want, 2e-2);
        }
        // Half of the bytes of f16, and a scale for each key and value.
        let bytes = |precision| {
            let before = decoder.backend().device_use().expect("a device").in_use;
            let sequence = decoder.sequence(KvSpec::new(precision, 640)).expect("a sequence");
            let bytes = decoder.backend().device_use().expect("a device").in_use - before;
            drop(sequence);
            bytes
        };
        let slots = (2 * spec.layers * spec.kv_heads * 640) as u64;
        assert_eq!(2 * (bytes(KvPrecision::Int8) - 4 * slots), bytes(KvPrecision::F16), "{name}");
    }
}

#[test]
fn caches_that_a_device_has_not_are_refused() {
    let Some(device) = software() else { return };
    let decoder = gpu(&device, &base(), Kind::Trits, ActivationPrecision::F32);
    for precision in [KvPrecision::Int4, KvPrecision::Int8Int4] {
        assert!(!decoder.backend().capabilities().can_cache(precision));
        assert_eq!(decoder.backend().capabilities().cache_precision(precision), KvPrecision::Int8);
        let refused = decoder.sequence(KvSpec::new(precision, 8)).err().expect("refused").to_string();
        assert!(refused.contains(&format!("{} KV cache", precision.name())), "{refused}");
    }
    // Heads of six elements are not a whole number of words.
    let spec = DecoderSpec { head_dim: 6, ..base() };
    let decoder = gpu(&device, &spec, Kind::Trits, ActivationPrecision::F32);
    let refused = decoder.sequence(KvSpec::new(KvPrecision::Int8, 8)).err().expect("refused").to_string();
    assert!(refused.contains("head_dim of an int8 KV cache on a device"), "{refused}");
    decoder.sequence(KvSpec::new(KvPrecision::F32, 8)).expect("a sequence");
}

/// A model without most of its zeros and one with 1.6 bits per weight run in layouts of their own, with the logits of the host and
/// less memory than with two bits.
#[test]
fn layouts_follow_the_weights() {
    let Some(device) = software() else { return };
    // Wide enough for whole blocks, also of 160 columns.
    let spec =
        DecoderSpec { intermediate: 640, kv_heads: 2, context: 64, ..DecoderSpec::llama(320, 2, 4, 113) };
    let (kv, ids) = (KvSpec::new(KvPrecision::F32, 40), ids(10, 6));
    let activations = ActivationPrecision::Int8PerToken;
    let make = |kind, layout| {
        let backend = CubeBackend::new(device.clone(), activations).with_layout(layout);
        Decoder::new(backend, spec.clone(), &mut Random::new(&spec, kind)).expect("a model")
    };
    for (kind, asked, layout) in [
        (Kind::Few, None, Layout::Sparse),
        (Kind::Few, Some(Layout::Bitmap), Layout::Bitmap),
        (Kind::Blocks, None, Layout::Blocks),
        (Kind::Trits, None, Layout::TwoBit),
        (Kind::Trits, Some(Layout::Base3), Layout::Base3),
    ] {
        let model = make(kind, asked);
        assert_eq!(model.layouts(), [(layout, 14)].into(), "{kind:?} {asked:?}");
        let two_bits = make(kind, Some(Layout::TwoBit));
        assert_eq!(two_bits.layouts(), [(Layout::TwoBit, 14)].into());
        if layout != Layout::TwoBit {
            assert!(model.weight_bytes() < two_bits.weight_bytes(), "{kind:?} {layout}");
        }
        let want = logits(&cpu(&spec, kind, activations), &ids, kv, 10);
        for step in [10, 1] {
            let got = logits(&model, &ids, kv, step);
            assert_close(&got, &want, 2e-2);
            assert_close(&got, &logits(&two_bits, &ids, kv, step), 1e-4);
        }
    }
    // Without a kernel for its format, a matrix is stored in two bits.
    let mixed = make(Kind::Mixed, Some(Layout::Sparse));
    assert!(mixed.layouts().contains_key(&Layout::TwoBit));
}

#[test]
fn a_batch_is_ragged_and_a_window_rolls() {
    let Some(device) = software() else { return };
    let spec = base();
    let on_cpu = cpu(&spec, Kind::Trits, ActivationPrecision::F32);
    let on_gpu = gpu(&device, &spec, Kind::Trits, ActivationPrecision::F32);
    let kv = KvSpec::new(KvPrecision::F32, 40);
    let texts = [ids(17, 7), ids(1, 8), ids(30, 9)];
    let mut sequences: Vec<_> = texts.iter().map(|_| on_gpu.sequence(kv).expect("a sequence")).collect();
    let mut steps: Vec<_> =
        sequences.iter_mut().zip(&texts).map(|(sequence, ids)| Step { sequence, ids }).collect();
    let together = on_gpu.forward(&mut steps, Logits::Last).expect("logits");
    for (got, ids) in together.iter().zip(&texts) {
        let want = logits(&on_cpu, ids, kv, 40);
        assert_close(got, &want[want.len() - spec.vocab..], 1e-3);
    }
    // Past the context and around the ring several times.
    let rolling = KvSpec::rolling(KvPrecision::F32, 9, 4);
    let long = ids(90, 10);
    assert_close(&logits(&on_gpu, &long, rolling, 4), &logits(&on_cpu, &long, rolling, 4), 1e-3);
}

/// Per token, ids and positions are uploaded and the largest logits are read back, once.
#[test]
fn a_token_is_one_read_back() {
    let Some(device) = software() else { return };
    let spec = base();
    let on_cpu = cpu(&spec, Kind::Trits, ActivationPrecision::F32);
    let on_gpu = gpu(&device, &spec, Kind::Trits, ActivationPrecision::F32);
    let kv = KvSpec::new(KvPrecision::F32, 40);
    let (mut here, mut there) = (on_cpu.sequence(kv).expect("here"), on_gpu.sequence(kv).expect("there"));
    let used = || on_gpu.backend().device_use().expect("a device");
    let prompt = ids(9, 2);
    let mut before = used();
    assert_eq!((before.read_backs, before.uploads), (0, 0), "weights are not counted");
    let mut next = prompt.clone();
    for (step, k) in [1, 5, 1, 64].into_iter().enumerate() {
        let logits = on_cpu.forward(&mut [Step { sequence: &mut here, ids: &next }], Logits::Last);
        let logits = logits.expect("logits").remove(0);
        let best = on_gpu.forward_top(&mut [Step { sequence: &mut there, ids: &next }], k).expect("best");
        let [StepLogits::Top(top)] = &best[..] else { panic!("{k}: {best:?}") };
        let mut order: Vec<u32> = (0..113).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        let found: Vec<u32> = top.iter().map(|(id, _)| *id).collect();
        assert_eq!(found, order[..k], "step {step}");
        let values: Vec<f32> = top.iter().map(|(_, logit)| *logit).collect();
        let want: Vec<f32> = found.iter().map(|&id| logits[id as usize]).collect();
        assert_close(&values, &want, 1e-3);
        let after = used();
        assert_eq!(after.read_backs - before.read_backs, 1, "step {step}");
        assert_eq!(after.read_bytes - before.read_bytes, 8 * k as u64, "step {step}");
        // Ids and positions; for a prompt also the index of the last row.
        let uploads = if step == 0 { 3 } else { 2 };
        assert_eq!(after.uploads - before.uploads, uploads, "step {step}");
        (before, next) = (after, vec![found[0]]);
    }
    // More than the kernel supports: all logits are returned, in one transfer.
    let best = on_gpu.forward_top(&mut [Step { sequence: &mut there, ids: &next }], 113).expect("best");
    assert!(matches!(&best[..], [StepLogits::Top(top)] if top.len() == 113), "113 are few");
    let best = on_gpu.forward_top(&mut [Step { sequence: &mut there, ids: &next }], 114).expect("best");
    assert!(
        matches!(&best[..], [StepLogits::All(logits)] if logits.len() == 113),
        "more than the vocabulary"
    );
    assert_eq!(used().read_bytes - before.read_bytes, 8 * 113 + 4 * 113);
    assert!(used().peak >= used().in_use && used().in_use > 0);
    assert_eq!(on_cpu.backend().device_use(), None);
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_loaded() {
    let Some(device) = software() else { return };
    let backend = CubeBackend::new(device.clone(), ActivationPrecision::F32);
    let plan = MemoryPlan { weights: 1 << 60, cache: 5, scratch: 7 };
    match (device.memory().total, backend.check_memory(&plan)) {
        (Some(total), Err(NnError::Memory { needed, available, .. })) => {
            assert!(needed == plan.total() && available <= total);
        }
        // A driver that does not report its memory.
        (None, Ok(())) => {}
        other => panic!("{other:?}"),
    }
    backend.check_memory(&MemoryPlan { weights: 1, cache: 1, scratch: 1 }).expect("three bytes fit");
    let options = DeviceOptions::default().with_planes(Planes::Forced).with_memory_limit(1000);
    let limited = CubeBackend::new(
        CubeDevice::open_with(device.spec(), options).expect("there"),
        ActivationPrecision::F32,
    );
    let refused = limited.check_memory(&MemoryPlan { weights: 1001, cache: 0, scratch: 0 });
    assert!(matches!(refused, Err(NnError::Memory { needed: 1001, available: 1000, .. })), "{refused:?}");
    let decoder = gpu(&device, &base(), Kind::Trits, ActivationPrecision::F32);
    let mut sequence = decoder.sequence(KvSpec::new(KvPrecision::F32, 4)).expect("a sequence");
    let mut steps = [Step { sequence: &mut sequence, ids: &[113] }];
    assert!(matches!(decoder.forward(&mut steps, Logits::Last), Err(NnError::Token { id: 113, vocab: 113 })));
}
