//! Loss and gradients of whole decoders.

use trike_autodiff::BitLinearSpec;
use trike_core::{GatedActivation, RopePairing, RopeSpec};
use trike_cpu::Cpu;
use trike_nn::{
    ActivationPrecision, Biases, CpuBackend, Decoder, DecoderSpec, DecoderWeights, DenseData, DenseTensor,
    KvPrecision, KvSpec, LayerSet, Logits, NnError, ScaleFactors, Step, Tensor, WeightName,
};
use trike_testkit::{assert_all_near, assert_near};
use trike_train::data::Batch;
use trike_train::{Loss, Objective, Parameters, TernaryPolicy, Trained};

/// A few architectures that cover every part of a decoder.
fn specs() -> Vec<(&'static str, DecoderSpec)> {
    let llama =
        DecoderSpec { intermediate: 24, kv_heads: 2, context: 32, ..DecoderSpec::llama(16, 3, 4, 29) };
    vec![
        ("llama", llama.clone()),
        ("tied, window", DecoderSpec { tied_head: true, window: Some(4), ..llama.clone() }),
        ("qwen2", DecoderSpec { biases: Biases { qkv: true, ..Biases::default() }, ..llama.clone() }),
        ("qwen3", DecoderSpec { qk_norm: true, ..llama.clone() }),
        (
            "bitnet",
            DecoderSpec {
                sub_norms: true,
                activation: GatedActivation::SquaredReLu,
                tied_head: true,
                ..llama.clone()
            },
        ),
        (
            "all biases, adjacent pairs",
            DecoderSpec {
                biases: Biases { qkv: true, output: true, mlp: true },
                rope: RopeSpec::new(100.0, RopePairing::Adjacent),
                ..llama.clone()
            },
        ),
        (
            "minicpm",
            DecoderSpec {
                factors: ScaleFactors { embedding: 3.0, residual: 0.8, logits: 2.0 },
                ..llama.clone()
            },
        ),
        (
            "a window and RoPE in different layers",
            DecoderSpec {
                window: Some(3),
                window_layers: LayerSet::Listed(vec![0]),
                rope_layers: LayerSet::Listed(vec![1]),
                ..llama
            },
        ),
    ]
}

/// Two documents, the second of which has a masked token.
fn batch() -> Batch {
    let ids: Vec<u32> = (0..13).map(|i| (i * i * 5 + 3) % 29).collect();
    let mut targets: Vec<Option<u32>> = ids.iter().map(|id| Some((id * 7 + 1) % 29)).collect();
    targets[9] = None;
    Batch { ids, targets, segments: vec![0..6, 6..13] }
}

/// Parameters large enough for gradients well above rounding.
fn parameters(spec: &DecoderSpec) -> Parameters {
    let mut parameters = Parameters::random(spec, 5).expect("parameters");
    let mut n = 0u32;
    for parameter in parameters.all_mut() {
        let is_vector = parameter.name.is_vector();
        for value in &mut parameter.values {
            n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *value = if is_vector { *value + (n >> 16) as f32 / 200_000.0 } else { *value * 12.0 };
        }
    }
    parameters
}

fn ternary() -> TernaryPolicy {
    TernaryPolicy { blocks: Some(BitLinearSpec::default()), int8_embedding: true }
}

fn gradients(
    threads: usize,
    segment: Option<usize>,
    parameters: &Parameters,
    batch: &Batch,
    policy: &TernaryPolicy,
) -> (Loss, Vec<Vec<f32>>) {
    let cpu = Cpu::new(threads).expect("threads");
    let model = Trained::new(&cpu, parameters.spec(), segment).expect("a model");
    let mut gradients = parameters.zeros();
    let loss =
        model.gradients(parameters, batch, policy, Objective::Text, 0.1, &mut gradients).expect("gradients");
    (loss, gradients)
}

#[test]
fn every_parameter_has_the_gradient_of_finite_differences() {
    let cpu = Cpu::new(2).expect("threads");
    for (name, spec) in specs() {
        let (mut parameters, batch) = (parameters(&spec), batch());
        let (_, gradients) = gradients(2, None, &parameters, &batch, &TernaryPolicy::DENSE);
        let model = Trained::new(&cpu, &spec, None).expect("a model");
        for (place, gradient) in gradients.iter().enumerate() {
            let of = parameters.all()[place].name;
            let largest = gradient.iter().fold(0f32, |m, g| m.max(g.abs()));
            assert!(largest > 1e-4, "{name}: {of} has no gradient");
            // The element with the largest gradient, and two others.
            let most = gradient.iter().position(|g| g.abs() == largest).expect("it is there");
            for at in [most, gradient.len() / 3, gradient.len() - 1] {
                let step = 2e-3;
                let mut loss = |to: f32| {
                    let before = parameters.all()[place].values[at];
                    parameters.all_mut()[place].values[at] = before + to;
                    let loss = model.loss(&parameters, &batch, &TernaryPolicy::DENSE).expect("a loss").sum;
                    parameters.all_mut()[place].values[at] = before;
                    loss
                };
                // A fourth-order difference, since the loss is far from linear.
                let difference = 8.0 * (loss(step) - loss(-step)) - (loss(2.0 * step) - loss(-2.0 * step));
                let want = 0.1 * difference / (12.0 * f64::from(step));
                let got = f64::from(gradient[at]);
                let bound = 1e-3 * f64::from(largest).max(1.0) + 2e-3 * want.abs();
                assert_near!(got, want, abs = bound, "{name}: {of}[{at}]");
            }
        }
    }
}

#[test]
fn checkpoints_and_threads_change_no_bit() {
    for (name, spec) in specs() {
        let (parameters, batch) = (parameters(&spec), batch());
        for policy in [TernaryPolicy::DENSE, ternary()] {
            let want = gradients(1, None, &parameters, &batch, &policy);
            assert_eq!(want.0.tokens, 12);
            for (threads, segment) in [(2, None), (1, Some(1)), (2, Some(2)), (1, Some(9))] {
                let got = gradients(threads, segment, &parameters, &batch, &policy);
                assert_eq!(got, want, "{name}, {threads} threads, segments of {segment:?}");
            }
        }
    }
}

#[test]
fn packed_documents_are_the_documents() {
    let cpu = Cpu::new(1).expect("a thread");
    for (name, spec) in specs() {
        let (parameters, both) = (parameters(&spec), batch());
        let model = Trained::new(&cpu, &spec, None).expect("a model");
        let logits = model.logits(&parameters, &both, &ternary()).expect("logits");
        let mut alone = Vec::new();
        for segment in &both.segments {
            let one = Batch {
                ids: both.ids[segment.clone()].to_vec(),
                targets: both.targets[segment.clone()].to_vec(),
                segments: std::iter::once(0..segment.len()).collect(),
            };
            alone.extend(model.logits(&parameters, &one, &ternary()).expect("logits"));
        }
        assert_eq!(logits, alone, "{name}");
    }
}

/// The parameters as a checkpoint.
struct Weights<'a>(&'a Parameters);

impl DecoderWeights for Weights<'_> {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        let parameter = &self.0.all()[self.0.place(name).expect("a weight")];
        let shape = vec![parameter.rows(), parameter.cols];
        Ok(Tensor::Dense(DenseTensor::new(shape, DenseData::F32(parameter.values.clone()))?))
    }

    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError> {
        Ok(self.0.all()[self.0.place(name).expect("a vector")].values.clone())
    }
}

#[test]
fn logits_are_those_of_the_decoder_that_runs() {
    let cpu = Cpu::new(1).expect("a thread");
    for (name, spec) in specs() {
        let (parameters, batch) = (parameters(&spec), batch());
        assert_eq!(Parameters::load(&spec, &mut Weights(&parameters)).expect("parameters"), parameters);
        let backend = CpuBackend::new(Cpu::new(1).expect("a thread"), ActivationPrecision::F32);
        let decoder = Decoder::new(backend, spec.clone(), &mut Weights(&parameters)).expect("a decoder");
        let model = Trained::new(&cpu, &spec, None).expect("a model");
        let got = model.logits(&parameters, &batch, &TernaryPolicy::DENSE).expect("logits");
        let mut want = Vec::new();
        for segment in &batch.segments {
            let mut sequence = decoder.sequence(KvSpec::new(KvPrecision::F32, 16)).expect("a sequence");
            let mut steps = [Step { sequence: &mut sequence, ids: &batch.ids[segment.clone()] }];
            want.extend(decoder.forward(&mut steps, Logits::All).expect("logits").remove(0));
        }
        let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
        assert_all_near!(&got, &want, abs = 1e-4 * largest, "{name}");
    }
}
