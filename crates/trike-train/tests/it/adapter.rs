//! Adapters: their gradients, runs that train them, merging.

use std::collections::HashMap;

use serde_json::json;
use trike_autodiff::{BitLinearSpec, TernarizeSpec, TernaryScale};
use trike_cpu::Cpu;
use trike_nn::{Biases, DecoderSpec, WeightName};
use trike_testkit::{assert_all_near, assert_near};
use trike_text::tokenizer::Tokenizer;
use trike_train::data::{Batch, BatchConfig, Batches, Documents, Encoder, Position};
use trike_train::{
    Adapter, LoraConfig, LoraTarget, Objective, OptimizerConfig, OptimizerKind, Parameters, Schedule,
    ScheduleShape, Teacher, TernaryPolicy, TrainError, Trained, Trainer, TrainerConfig, Weights, as_packed,
    checkpoint, packed,
};
use trike_trit::Granularity;

fn spec() -> DecoderSpec {
    DecoderSpec {
        intermediate: 24,
        kv_heads: 2,
        context: 32,
        biases: Biases { qkv: true, ..Biases::default() },
        ..DecoderSpec::llama(16, 3, 4, 29)
    }
}

fn batch() -> Batch {
    let ids: Vec<u32> = (0..13).map(|i| (i * i * 5 + 3) % 29).collect();
    let targets = ids.iter().map(|id| Some((id * 7 + 1) % 29)).collect();
    Batch { ids, targets, segments: vec![0..6, 6..13] }
}

/// Pseudorandom values from -1 to 1.
fn fill(values: &mut [f32], seed: u32, size: f32) {
    let mut n = seed;
    for value in values {
        n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *value = size * ((n >> 8) as f32 / (1 << 23) as f32 - 1.0);
    }
}

/// A model with weights large enough for gradients well above rounding.
fn model() -> Parameters {
    let mut model = Parameters::random(&spec(), 5).expect("parameters");
    for (seed, parameter) in (1..).zip(model.all_mut()) {
        if !parameter.name.is_vector() {
            fill(&mut parameter.values, seed, 0.4);
        }
    }
    model
}

/// An adapter that changes its model.
fn adapter(config: LoraConfig) -> Adapter {
    let mut adapter = Adapter::new(config, &spec(), 7).expect("an adapter");
    for (seed, parameter) in (90..).zip(adapter.parameters_mut().all_mut()) {
        fill(&mut parameter.values, seed, 0.4);
    }
    adapter
}

fn lora(targets: &[LoraTarget]) -> LoraConfig {
    LoraConfig { rank: 3, alpha: 4.0, targets: targets.iter().copied().collect(), rank_stabilized: false }
}

fn ternary() -> TernaryPolicy {
    TernaryPolicy { blocks: Some(BitLinearSpec::default()), int8_embedding: true }
}

fn gradients(
    threads: usize,
    segment: Option<usize>,
    weights: Weights<'_>,
    policy: &TernaryPolicy,
) -> (f64, Vec<Vec<f32>>) {
    let cpu = Cpu::new(threads).expect("threads");
    let trained = Trained::new(&cpu, &spec(), segment).expect("a model");
    let mut gradients = weights.trained().zeros();
    let loss = trained
        .gradients(weights, &batch(), policy, Objective::Text, 0.1, &mut gradients)
        .expect("gradients");
    (loss.sum, gradients)
}

#[test]
fn factors_have_the_gradients_of_finite_differences() {
    let (cpu, model) = (Cpu::new(2).expect("threads"), model());
    let trained = Trained::new(&cpu, &spec(), None).expect("a model");
    let mut adapter = adapter(lora(&LoraTarget::ALL));
    let (_, found) = gradients(2, None, Weights::adapted(&model, &adapter), &TernaryPolicy::DENSE);
    assert_eq!(found.len(), 3 * 7 * 2);
    for (place, gradient) in found.iter().enumerate() {
        let key = adapter.parameters().all()[place].key();
        let largest = gradient.iter().fold(0f32, |m, g| m.max(g.abs()));
        assert!(largest > 1e-4, "{key} has no gradient");
        let most = gradient.iter().position(|g| g.abs() == largest).expect("it is there");
        for at in [most, gradient.len() / 3] {
            let step = 4e-3;
            let mut loss = |to: f32| {
                let before = adapter.parameters().all()[place].values[at];
                adapter.parameters_mut().all_mut()[place].values[at] = before + to;
                let weights = Weights::adapted(&model, &adapter);
                let loss = trained.loss(weights, &batch(), &TernaryPolicy::DENSE).expect("a loss").sum;
                adapter.parameters_mut().all_mut()[place].values[at] = before;
                loss
            };
            let difference = 8.0 * (loss(step) - loss(-step)) - (loss(2.0 * step) - loss(-2.0 * step));
            let want = 0.1 * difference / (12.0 * f64::from(step));
            let bound = 1e-3 * f64::from(largest).max(1.0) + 2e-3 * want.abs();
            assert_near!(f64::from(gradient[at]), want, abs = bound, "{key}[{at}]");
        }
    }
}

/// With `W' = W + s B A` the gradients are `s B^T dW'` and `s dW' A^T`.
#[test]
fn gradients_follow_from_those_of_the_whole_matrices() {
    let (cpu, model) = (Cpu::new(1).expect("a thread"), model());
    let some = lora(&[LoraTarget::Query, LoraTarget::Value, LoraTarget::Down]);
    for config in [some.clone(), LoraConfig { rank_stabilized: true, ..some }] {
        let adapter = adapter(config.clone());
        let merged = adapter.merge_dense(&cpu, &model).expect("a model");
        let dense = TernaryPolicy::DENSE;
        let (loss, found) = gradients(1, None, Weights::adapted(&model, &adapter), &dense);
        let (want, full) = gradients(1, None, (&merged).into(), &dense);
        assert_near!(loss, want, rel = 1e-5);
        let mut pairs = adapter.parameters().all().chunks_exact(2).zip(found.chunks_exact(2));
        assert!(pairs.len() == 9);
        assert!(pairs.all(|(pair, got)| {
            let [a, b] = [&pair[0], &pair[1]];
            let dw = &full[merged.place(a.name).expect("a matrix")];
            let (rank, cols, s) = (a.rows(), a.cols, config.scale());
            let mut want = [vec![0f32; a.values.len()], vec![0f32; b.values.len()]];
            for (row, dw) in dw.chunks_exact(cols).enumerate() {
                for r in 0..rank {
                    for (col, d) in dw.iter().enumerate() {
                        want[0][r * cols + col] += s * b.values[row * rank + r] * d;
                        want[1][row * rank + r] += s * d * a.values[r * cols + col];
                    }
                }
            }
            for (got, want) in got.iter().zip(&want) {
                let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
                assert_all_near!(got, want, abs = 2e-4 * largest, "{}", a.key());
            }
            true
        }));
    }
}

/// An adapter that adds nothing, on ternary weights, gives the ternary model: trits are not fitted again.
#[test]
fn frozen_weights_are_multiplied_as_they_are() {
    let (cpu, model, policy) = (Cpu::new(1).expect("a thread"), model(), ternary());
    let frozen = as_packed(model.clone(), &policy).expect("a ternary model");
    let adapter = Adapter::new(lora(&LoraTarget::ALL), &spec(), 3).expect("an adapter");
    let trained = Trained::new(&cpu, &spec(), None).expect("a model");
    let want = trained.logits(&model, &batch(), &policy).expect("logits");
    let got = trained.logits(Weights::adapted(&frozen, &adapter), &batch(), &policy).expect("logits");
    assert_eq!(got, want);
    // `A` has no gradient while `B` is zero.
    let (_, found) = gradients(1, None, Weights::adapted(&frozen, &adapter), &policy);
    for (factor, gradient) in adapter.parameters().all().iter().zip(&found) {
        let is_zero = gradient.iter().all(|g| *g == 0.0);
        assert_eq!(is_zero, factor.key().contains("lora_A"), "{}", factor.key());
    }
}

#[test]
fn checkpoints_and_threads_change_no_bit() {
    let (model, adapter) = (model(), adapter(lora(&[LoraTarget::Value, LoraTarget::Gate])));
    let weights = Weights::adapted(&model, &adapter);
    let want = gradients(1, None, weights, &ternary());
    for (threads, segment) in [(2, None), (1, Some(1)), (2, Some(2))] {
        assert_eq!(gradients(threads, segment, weights, &ternary()), want);
    }
}

#[test]
fn merged_models_compute_what_adapted_ones_do() {
    let (cpu, adapter) = (Cpu::new(1).expect("a thread"), adapter(lora(&LoraTarget::ALL)));
    let how =
        TernarizeSpec::default().with_scale(TernaryScale::LeastSquares).with_granularity(Granularity::Row);
    let policy = TernaryPolicy {
        blocks: Some(BitLinearSpec { weights: how, ..BitLinearSpec::default() }),
        int8_embedding: false,
    };
    let frozen = as_packed(model(), &policy).expect("a ternary model");
    let dense = adapter.merge_dense(&cpu, &frozen).expect("a model");
    let trained = Trained::new(&cpu, &spec(), None).expect("a model");
    let logits =
        |weights: Weights<'_>| trained.logits(weights, &batch(), &TernaryPolicy::DENSE).expect("logits");
    let want = logits(Weights::adapted(&frozen, &adapter));
    assert_all_near!(&logits((&dense).into()), &want, abs = 1e-4);

    let (merged, report) = adapter.merge(&cpu, &frozen, &how).expect("a model");
    assert_eq!(report.matrices.len(), 3 * 7);
    let (mut error, mut squares) = (0.0, 0.0);
    for matrix in &report.matrices {
        let place = dense.place(matrix.name).expect("a matrix");
        let [sums, trits] = [&dense, &merged].map(|model| &model.all()[place].values);
        let lost: f64 = sums.iter().zip(trits).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let all: f64 = sums.iter().map(|v| f64::from(*v).powi(2)).sum();
        assert_near!(matrix.relative_error(), lost / all, rel = 1e-9, "{}", matrix.name);
        assert!(matrix.relative_error() > 0.01 && matrix.relative_error() < 1.0, "{matrix:?}");
        assert!(matrix.error_of_product() > 0.0 && matrix.product > 0.0);
        (error, squares) = (error + lost, squares + all);
    }
    assert_near!(report.relative_error(), error / squares, rel = 1e-9);
    // Packing changes no weight, merged or not.
    for parameter in merged.all() {
        assert_eq!(packed(parameter, &policy).expect("a tensor").into_f32(), parameter.values);
    }
    // A zero update of ternary weights has no error.
    let none = Adapter::new(lora(&[LoraTarget::Up]), &spec(), 1).expect("an adapter");
    let (same, report) = none.merge(&cpu, &frozen, &how).expect("a model");
    assert_eq!((same, report.relative_error()), (frozen, 0.0));
}

#[test]
fn what_does_not_fit_is_refused() {
    let cpu = Cpu::new(1).expect("a thread");
    let other = Parameters::random(&DecoderSpec::llama(32, 3, 4, 29), 1).expect("parameters");
    let fewer = Parameters::random(&DecoderSpec { layers: 2, ..spec() }, 1).expect("parameters");
    let adapter = adapter(lora(&[LoraTarget::Query]));
    assert!(matches!(adapter.merge_dense(&cpu, &other), Err(TrainError::Nn(_))));
    assert!(matches!(adapter.merge_dense(&cpu, &fewer), Err(TrainError::NoParameter { .. })));
    let refused = |config: LoraConfig| {
        assert!(matches!(Adapter::new(config, &spec(), 1), Err(TrainError::Option(_))));
    };
    // Keys have 8 rows.
    refused(LoraConfig { rank: 9, ..lora(&[LoraTarget::Key]) });
    refused(LoraConfig { rank: 0, ..lora(&[LoraTarget::Key]) });
    refused(LoraConfig { alpha: f32::NAN, ..lora(&[LoraTarget::Key]) });
    refused(lora(&[]));
    let trained = Trained::new(&cpu, &spec(), None).expect("a model");
    let model = model();
    let mut wrong = model.zeros();
    let weights = Weights::adapted(&model, &adapter);
    let grad = trained.gradients(weights, &batch(), &ternary(), Objective::Text, 1.0, &mut wrong);
    assert!(matches!(grad, Err(TrainError::Grad(_))), "gradients of all parameters");
}

/// A few sentences and the tokenizer of the shipped model.
struct Data {
    _dir: tempfile::TempDir,
    documents: Documents,
    used: Vec<u32>,
    tokenizer: Tokenizer,
}

impl Data {
    fn new() -> Self {
        let json =
            trike_models::TINY.iter().find(|(name, _)| *name == "tokenizer.json").expect("a tokenizer").1;
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a.txt");
        std::fs::write(&path, "The cat sat on the mat.<|endoftext|>The dog ate the red ball.")
            .expect("it is written");
        let documents = Documents::open(&[path]).expect("documents");
        let used = (0..documents.len() as u32).collect();
        let tokenizer = Tokenizer::from_hf_json_bytes(json).expect("a tokenizer");
        Self { _dir: dir, documents, used, tokenizer }
    }

    fn batches(&self, from: Position) -> Batches<'_> {
        let config = BatchConfig { rows: 2, length: 24, packed: true, seed: 4 };
        Batches::new(&self.documents, &self.used, Encoder::new(&self.tokenizer, None), config, from)
            .expect("batches")
    }
}

impl Data {
    /// Conditional entropy of a token given the previous one, in nats: the loss of the best bigram model.
    fn entropy_of_pairs(&self) -> f64 {
        let mut batches = self.batches(Position::default());
        let (mut pairs, mut before) = (HashMap::new(), HashMap::new());
        for _ in 0..60 {
            let batch = batches.next_batch().expect("a batch");
            for (id, target) in batch.ids.iter().zip(batch.targets) {
                *pairs.entry((*id, target)).or_insert(0.0) += 1.0;
                *before.entry(*id).or_insert(0.0) += 1.0;
            }
        }
        let all: f64 = before.values().sum();
        let each = pairs.iter().map(|((id, _), count): (_, &f64)| -count / all * (count / before[id]).ln());
        each.sum()
    }
}

fn config(kind: OptimizerKind) -> TrainerConfig {
    TrainerConfig {
        steps: 60,
        accumulation: 1,
        optimizer: OptimizerConfig { kind, learning_rate: 0.02, ..OptimizerConfig::default() },
        schedule: Schedule { warmup: 3, shape: ScheduleShape::Wsd { decay: 0.3 } },
        lambda: 0.0,
        text: 0.3,
        checkpoint: Some(1),
        ..TrainerConfig::default()
    }
}

#[test]
fn a_run_trains_the_adapter_only_and_continues_anywhere() {
    let (data, cpu) = (Data::new(), Cpu::new(2).expect("threads"));
    let spec = DecoderSpec { vocab: data.tokenizer.vocab_size(), ..DecoderSpec::llama(32, 2, 4, 1) };
    let mut model = Parameters::random(&spec, 1).expect("parameters");
    for parameter in model.all_mut() {
        // A head of this scale can tell tokens apart, and it is frozen.
        if matches!(parameter.name, WeightName::Embedding | WeightName::Head) {
            parameter.values.iter_mut().for_each(|v| *v *= 50.0);
        }
    }
    let frozen = as_packed(model, &ternary()).expect("a ternary model");
    for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
        let lora = LoraConfig { rank: 8, alpha: 16.0, ..LoraConfig::default() };
        let make = || {
            let adapter = Adapter::new(lora.clone(), &spec, 2).expect("an adapter");
            Trainer::with_adapter(&cpu, config(kind), ternary(), &frozen, adapter, None).expect("a trainer")
        };
        let (mut trainer, mut batches) = (make(), data.batches(Position::default()));
        let dir = tempfile::tempdir().expect("a folder");
        let mut losses = Vec::new();
        for step in 0..60 {
            if step == 20 {
                let keep = checkpoint::Keep { newest: 1, also: None };
                trainer
                    .save(dir.path(), batches.position(), json!(null), json!(null), keep)
                    .expect("it is saved");
            }
            losses.push(trainer.step(&mut batches).expect("a step").loss.mean());
        }
        // At random 7 nats. Below the bigram entropy, the adapter uses more context than one token.
        let paired = data.entropy_of_pairs();
        assert!(losses[0] > 6.0 && losses[59] < paired, "{kind:?}: {losses:?}, {paired}");
        let found = checkpoint::newest(dir.path()).expect("no error").expect("a checkpoint");
        let mut again = make();
        let mut batches = data.batches(again.resume(&found, json!(null)).expect("it continues").position);
        for _ in 20..60 {
            again.step(&mut batches).expect("a step");
        }
        assert!(again.parameters() == trainer.parameters(), "{kind:?}");
        let held = data.batches(Position::default()).next_batch().expect("a batch");
        let trained = Trained::new(&cpu, &spec, None).expect("a model");
        let adapter = trainer.adapter().expect("an adapter").clone();
        let loss = trained.loss(Weights::adapted(&frozen, &adapter), &held, &ternary()).expect("a loss");
        assert_eq!(trainer.evaluate([held]).expect("a loss"), loss);
        assert_eq!(trainer.into_parameters(), adapter.into_parameters());
        // Another rank is another run.
        let other = LoraConfig { alpha: 8.0, ..lora };
        let adapter = Adapter::new(other, &spec, 2).expect("an adapter");
        let mut other =
            Trainer::with_adapter(&cpu, config(kind), ternary(), &frozen, adapter, None).expect("a trainer");
        let refused = other.resume(&found, json!(null)).expect_err("another scale").to_string();
        assert!(refused.contains("adapter.alpha"), "{refused}");
    }
}

#[test]
fn the_frozen_model_can_be_the_teacher() {
    let (data, cpu) = (Data::new(), Cpu::new(1).expect("a thread"));
    let spec = DecoderSpec { vocab: data.tokenizer.vocab_size(), ..DecoderSpec::llama(32, 1, 4, 1) };
    let frozen = Parameters::random(&spec, 1).expect("parameters");
    let adapter = Adapter::new(LoraConfig::default(), &spec, 2).expect("an adapter");
    let teacher = Teacher { parameters: &frozen, policy: TernaryPolicy::DENSE };
    let config = TrainerConfig { text: 0.0, ..config(OptimizerKind::AdamW) };
    let dense = TernaryPolicy::DENSE;
    let mut trainer =
        Trainer::with_adapter(&cpu, config, dense.clone(), &frozen, adapter.clone(), Some(teacher))
            .expect("a trainer");
    let report = trainer.step(&mut data.batches(Position::default())).expect("a step");
    assert!(report.norm == 0.0 && report.loss.divergence == 0.0, "{report:?}");
    let ramp = TrainerConfig { lambda: 0.5, ..config };
    let refused = Trainer::with_adapter(&cpu, ramp, dense, &frozen, adapter, None);
    assert!(matches!(refused, Err(TrainError::Option(e)) if e.field() == "lambda"));
}
