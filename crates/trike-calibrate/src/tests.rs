//! The walk over small random models: the gain of each stage, refusals, and reproducibility.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;
use trike_cpu::Cpu;
use trike_format::{DenseData, DenseTensor, HfDirWriter, Identity, Tensor};
use trike_llm::{HeadPrecision, LanguageModel, LoadOptions, ModelFile, hf_config};
use trike_nn::{ActivationPrecision, CpuBackend, DecoderSpec, HookPoint, KvPrecision, KvSpec, WeightName};
use trike_quant::ScaleRule;
use trike_testkit::{Rng, assert_all_near, assert_near};
use trike_trit::{Coupling, Granularity, GroupSize, Hadamard};

use crate::{
    Budget, CalibrateError, Calibration, Compensation, LayerChoice, ModelQuantizationConfig, PlanOptions,
    Planning, QuantizeMethod, ScaledInputs, Stored, TextSource, Tuning,
    assemble::assemble,
    budget,
    device::TuningDevice,
    guide::{Labels, TokenWeights},
    quantize::{quantize_ids, tuning_of},
    quantize_to,
    rewrite::Prepared,
    store::{self, Store},
    streams::{Blocks, embed},
    walk,
};

const HIDDEN: usize = 32;
const INNER: usize = 40;
const VOCAB: usize = 50;
pub(crate) const LAYERS: usize = 2;
pub(crate) static HOST: TuningDevice = TuningDevice::Host { no_gpu: false };

/// Settings that differ in a name.
pub(crate) fn named(name: &str) -> Identity {
    Identity::new().with("the name", name)
}

/// Writes a random Llama with rotary pairs as in its own format; `spoil` changes its weights by name.
pub(crate) fn model(dir: &Path, spoil: impl Fn(&str, &mut [f32])) -> ModelFile {
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu",
    });
    let mut writer = HfDirWriter::create(dir, config).unwrap();
    let mut rng = Rng::new(5);
    let mut add = |name: String, shape: Vec<usize>, around: f32, spread: f32| {
        let mut values: Vec<f32> =
            rng.normals(shape.iter().product()).iter().map(|v| around + spread * v).collect();
        spoil(&name, &mut values);
        let tensor = DenseTensor::new(shape, DenseData::F32(values)).unwrap();
        writer.tensor(&name, &tensor.into()).unwrap();
    };
    let spec =
        DecoderSpec { intermediate: INNER, kv_heads: 2, ..DecoderSpec::llama(HIDDEN, LAYERS, 4, VOCAB) };
    add(WeightName::Embedding.to_string(), vec![VOCAB, HIDDEN], 0.0, 0.5);
    for layer in 0..LAYERS {
        for name in WeightName::matrices(layer) {
            let (rows, cols) = spec.shape(name);
            add(name.to_string(), vec![rows, cols], 0.0, (cols as f32).powf(-0.5));
        }
        for name in [WeightName::AttentionNorm(layer), WeightName::MlpNorm(layer)] {
            add(name.to_string(), vec![HIDDEN], 1.0, 0.2);
        }
    }
    add(WeightName::FinalNorm.to_string(), vec![HIDDEN], 1.0, 0.1);
    writer.finish().unwrap();
    ModelFile::open(dir).unwrap()
}

pub(crate) fn text(seed: u64) -> Vec<Vec<u32>> {
    let mut rng = Rng::new(seed);
    // Some tokens are more frequent, as in natural text.
    let mut token = || (rng.below(VOCAB) * rng.below(VOCAB) / VOCAB) as u32;
    (0..64).map(|i| (0..16 + i % 24).map(|_| token()).collect()).collect()
}

pub(crate) fn options(planes: usize, tuning: Option<Tuning>) -> ModelQuantizationConfig {
    let mut config = ModelQuantizationConfig::planes(planes);
    config.layout.granularity = Granularity::Group(GroupSize::G32);
    config.tuning = tuning;
    config.threads = 1;
    config
}

pub(crate) fn short() -> Tuning {
    Tuning { block_epochs: Some(6), model_epochs: Some(8), batch_tokens: 192, ..Tuning::default() }
}

fn walk(
    input: &ModelFile,
    config: &ModelQuantizationConfig,
    store: &Store,
) -> Result<walk::Walked, CalibrateError> {
    walk_on(input, config, store, &text(1), &HOST)
}

/// [`walk`] on another text, with tuning on a device.
pub(crate) fn walk_on(
    input: &ModelFile,
    config: &ModelQuantizationConfig,
    store: &Store,
    text: &[Vec<u32>],
    on: &TuningDevice,
) -> Result<walk::Walked, CalibrateError> {
    config.validate()?;
    let cpu = Cpu::new(config.threads)?;
    let backend = CpuBackend::new(cpu, ActivationPrecision::F32).with_products(walk::PRODUCTS);
    let ids = match config.method {
        QuantizeMethod::Round(_) => &[],
        QuantizeMethod::Compensate(_) => text,
    };
    let tuning = tuning_of(input, config, &mut Vec::new())?;
    let progress = &mut |_: &str, done, all| assert!(done <= all);
    match on {
        TuningDevice::Host { .. } => {
            walk::Walk::new(input, config, (&backend, backend.cpu()), store, ids, tuning)?
                .run(input, progress)
        }
        #[cfg(feature = "gpu")]
        TuningDevice::Device(engine) => {
            walk::Walk::new(input, config, (&backend, engine), store, ids, tuning)?.run(input, progress)
        }
    }
}

/// Quantizes into the directory `name` and returns the tensors' bytes, and the divergence from the dense model on a text.
fn made(dir: &TempDir, name: &str, input: &ModelFile, config: &ModelQuantizationConfig) -> (Vec<u8>, f64) {
    let output: PathBuf = dir.path().join(name);
    let store = Store::open(&output, &named(name)).unwrap();
    walk(input, config, &store).unwrap();
    let json = hf_config(input, input.config(), &output).unwrap();
    assemble(input, input, config, &store, json, &mut Vec::new()).unwrap();
    store.finish(&output).unwrap();
    let bytes = fs::read(output.join("model.safetensors")).unwrap();
    (bytes, divergence(input, &ModelFile::open(&output).unwrap()))
}

fn divergence(dense: &ModelFile, ternary: &ModelFile) -> f64 {
    let options = LoadOptions::default()
        .with_cpu(trike_cpu::Cpu::new(1).unwrap())
        .with_activations(ActivationPrecision::F32)
        .with_head(HeadPrecision::AsStored);
    let load = |file| LanguageModel::load_with(file, &options, &mut |_, _| ()).unwrap();
    let (dense, ternary) = (load(dense), load(ternary));
    let (mut sum, mut count) = (0.0, 0);
    for ids in text(2) {
        let mut aims = Vec::new();
        let kv = KvSpec::new(KvPrecision::F32, ids.len());
        dense.logits_with(&ids, &kv, |_, row| aims.push(row.to_vec())).unwrap();
        ternary
            .logits_with(&ids, &kv, |i, row| {
                sum += trike_eval::divergence(row, &aims[i]);
                count += 1;
            })
            .unwrap();
    }
    sum / f64::from(count)
}

#[test]
fn compensation_is_better_than_rounding_and_tuning_better_still() {
    let dir = TempDir::new().unwrap();
    let input = model(&dir.path().join("dense"), |_, _| ());
    for planes in 1..=4 {
        let mut config = options(planes, None);
        let (_, compensated) = made(&dir, &format!("c{planes}"), &input, &config);
        config.method = QuantizeMethod::Round(ScaleRule::LeastSquares);
        let (_, rounded) = made(&dir, &format!("r{planes}"), &input, &config);
        assert!(compensated < rounded, "{planes}: {compensated} {rounded}");
        if planes < 3 {
            let (_, tuned) = made(&dir, &format!("t{planes}"), &input, &options(planes, Some(short())));
            // With two planes on random weights there is little to gain: the guard keeps the previous weights.
            assert!(
                tuned < compensated || planes == 2 && tuned == compensated,
                "{planes}: {tuned} {compensated}"
            );
        }
    }
}

/// Tokens that do not affect the loss get weight 0, and the sum of weights is unchanged.
#[test]
fn tokens_count_by_the_gradient_of_the_loss() {
    let dir = TempDir::new().unwrap();
    let input = model(&dir.path().join("dense"), |_, _| ());
    let mut config = options(1, None);
    let plain = made(&dir, "plain", &input, &config);
    let QuantizeMethod::Compensate(how) = config.method else { panic!("compensation") };
    config.method = QuantizeMethod::Compensate(Compensation { guided: true, ..how });
    let guided = made(&dir, "guided", &input, &config);
    assert_ne!(plain.0, guided.0);
    // Which one is better depends on the model; on random weights they differ little.
    assert!(guided.1 < 1.3 * plain.1, "{} {}", guided.1, plain.1);

    let backend = CpuBackend::new(Cpu::new(1).unwrap(), ActivationPrecision::F32);
    let blocks = Blocks::new(&input, &backend).unwrap();
    let ids = text(1);
    let starts = embed(&backend, &blocks.embedding().unwrap(), &ids).unwrap();
    let weights = TokenWeights::new(&blocks, Labels::Text, &ids, &starts, &mut |_, _| ()).unwrap();
    let tokens: usize = ids.iter().map(Vec::len).sum();
    for point in HookPoint::ALL {
        for layer in 0..LAYERS {
            let mut sum = 0.0;
            let mut at = 0;
            for (i, batch) in starts.iter().enumerate() {
                let mut ones = vec![1.0; batch.lengths().sum()];
                weights.scale(layer, point, i, &mut ones, 1);
                sum += ones.iter().map(|root| f64::from(root * root)).sum::<f64>();
                let mut row = 0;
                for length in batch.lengths() {
                    row += length;
                    // The last token of a sequence has no label, and no other token attends to it.
                    assert_eq!(ones[row - 1], 0.0, "{layer} {point:?}");
                    at += 1;
                }
            }
            assert_eq!(at, ids.len());
            assert_near!(sum, tokens as f64, rel = 1e-4);
        }
    }
}

/// The loss of each layer alone, estimated from gradients and measured.
#[test]
fn prices_are_what_layers_cost() {
    let dir = TempDir::new().unwrap();
    let input = model(&dir.path().join("dense"), |_, _| ());
    let granularity = Granularity::Group(GroupSize::G32);
    let trits = |planes| LayerChoice::Trits { planes, granularity };
    let (fitted, held) = (text(1), text(2));
    let config = options(1, None);
    let backend = CpuBackend::new(Cpu::new(1).unwrap(), ActivationPrecision::F32);
    let choices = budget::options(3, &[granularity]);
    let texts = [&fitted[..], &held];
    let prices = |with_head| {
        budget::prices(&input, &config, &backend, texts, (&choices, with_head), &mut |_, _, _| ()).unwrap()
    };
    let priced = prices(true);
    assert_eq!(prices(false), priced[..7 * LAYERS]);
    assert_eq!(priced.len(), 7 * LAYERS + 1, "the head is the embedding");
    let dense = || LayerChoice::Dense { reason: "a test".to_owned() };
    let mut sums = [0.0; 2];
    for (i, one) in priced.iter().enumerate() {
        let tried =
            if one.layer.contains("embed") { vec![LayerChoice::Int8] } else { vec![trits(2), trits(3)] };
        for (j, choice) in tried.into_iter().enumerate() {
            let mut config = options(1, None);
            config.layers = priced.iter().map(|other| (other.layer.clone(), dense())).collect();
            config.layers.insert(one.layer.clone(), choice.clone());
            let (_, measured) = made(&dir, &format!("alone-{i}-{j}"), &input, &config);
            let stored = Stored::of(&choice);
            let price = one.choices.iter().find(|other| other.stored == stored).unwrap().kl;
            assert!((0.4..2.5).contains(&(price / measured)), "{} {stored}: {price} {measured}", one.layer);
            sums = [sums[0] + price, sums[1] + measured];
        }
    }
    assert_near!(sums[0], sums[1], rel = 0.3);
}

/// With too many codes to tune together, only scales and norms are tuned: with blocks from disk, and rotated inputs.
#[test]
fn scales_and_norms_are_tuned_alone() {
    let dir = TempDir::new().unwrap();
    let input = model(&dir.path().join("dense"), |_, _| ());
    let tuning = Tuning { max_weights: 0, block_epochs: Some(0), scale_rate: 1e-2, ..short() };
    for (case, (rotation, planes, most)) in [(None, 1, 0.99), (Some(8), 2, 0.999)].into_iter().enumerate() {
        let name = |kind: &str| format!("{kind}-{case}");
        let mut config = options(planes, None);
        config.input_rotation = rotation;
        let (_, compensated) = made(&dir, &name("compensated"), &input, &config);
        config.tuning = Some(tuning);
        let (_, tuned) = made(&dir, &name("tuned"), &input, &config);
        assert!(tuned < most * compensated, "{planes}: {tuned} {compensated}");
        let load = |kind: &str, weight: WeightName| {
            ModelFile::open(dir.path().join(name(kind))).unwrap().load(weight).unwrap()
        };
        for weight in [WeightName::Query(0), WeightName::Down(1)] {
            let (Tensor::Ternary(before), Tensor::Ternary(after)) =
                (load("compensated", weight), load("tuned", weight))
            else {
                panic!("trits")
            };
            assert_ne!(before.scales(), after.scales());
            assert_eq!(after.with_scales(before.scales().clone()).unwrap(), before);
        }
        let norm = |kind| load(kind, WeightName::MlpNorm(1)).into_f32();
        let (before, after) = (norm("compensated"), norm("tuned"));
        assert_ne!(before, after);
        assert_all_near!(&after, &before, abs = 0.3);
    }
}

#[test]
fn the_same_bytes_every_time_and_on_any_number_of_threads() {
    let dir = TempDir::new().unwrap();
    let input = model(&dir.path().join("dense"), |_, _| ());
    for most in [u64::MAX, 0] {
        let tuning = Tuning { max_weights: most, ..short() };
        let mut config = options(1, Some(tuning));
        let bytes = |name: &str, config: &ModelQuantizationConfig| {
            made(&dir, &format!("{name}-{most}"), &input, config).0
        };
        let first = bytes("first", &config);
        assert!(first == bytes("again", &config));
        config.threads = 2;
        assert!(first == bytes("threads", &config));
        config.tuning = Some(Tuning { seed: 1, ..tuning });
        assert!(first != bytes("seed", &config));
    }
}

#[test]
fn steps_are_named() {
    let dir = TempDir::new().unwrap();
    let input = model(&dir.path().join("dense"), |_, _| ());
    let ids = text(1);
    let [blocks, whole] = ["quantizing and tuning layers", "tuning the whole model"];
    let scales = "tuning the scales of the whole model";
    for (i, (tuning, names)) in [
        (None, &["quantizing layers", "writing the model"][..]),
        (Some(short()), &[blocks, whole, "writing the model"]),
        (Some(Tuning { max_weights: 0, ..short() }), &[blocks, scales, "writing the model"]),
    ]
    .into_iter()
    .enumerate()
    {
        let config = options(1, tuning);
        let prepared = Prepared::new(&input, &config, &ids, &mut |_, _| ()).unwrap();
        let mut seen: Vec<String> = Vec::new();
        let mut step = |name: &str, done: usize, total: usize| {
            assert!(done <= total, "{name}");
            if seen.last().is_none_or(|last| last != name) {
                seen.push(name.to_owned());
            }
        };
        let out = dir.path().join(format!("out{i}"));
        quantize_ids(&prepared, &out, &ids, &config, &HOST, &mut step).unwrap();
        assert_eq!(seen, names);
    }
}

#[test]
fn sizes_of_alternatives_are_those_of_the_models() {
    let dir = TempDir::new().unwrap();
    let input = model(&dir.path().join("dense"), |_, _| ());
    let ids = text(1);
    let made = |name: &str, config: &ModelQuantizationConfig| {
        let prepared = Prepared::new(&input, config, &ids, &mut |_, _| ()).unwrap();
        quantize_ids(&prepared, &dir.path().join(name), &ids, config, &HOST, &mut |_, _, _| ()).unwrap()
    };
    let report = made("own", &options(2, None));
    // Rows have 32 or 40 weights: larger groups are whole rows.
    assert_eq!(report.alternatives.len(), 4);
    for (i, alternative) in report.alternatives.iter().enumerate() {
        let mut config = options(alternative.stored.planes.unwrap(), None);
        config.layout.granularity = match alternative.stored.group.as_deref() {
            Some("32") => Granularity::Group(GroupSize::G32),
            Some("64") => Granularity::Group(GroupSize::G64),
            group => panic!("{group:?}"),
        };
        let other = made(&format!("other{i}"), &config);
        assert_eq!(other.output_bytes, alternative.bytes, "{:?}", alternative.stored);
        assert_eq!(alternative.current, other.output_bytes == report.output_bytes);
    }
    // If sizes depend on the weights, no alternatives are listed.
    let config = options(1, None).with_auto_encoding(true);
    assert!(made("auto", &config).alternatives.is_empty());
}

#[test]
fn what_was_interrupted_goes_on() {
    let dir = TempDir::new().unwrap();
    let input = model(&dir.path().join("dense"), |_, _| ());
    let config = options(2, Some(short()));
    let output = dir.path().join("out");
    let start = std::time::SystemTime::now();
    assert!(!store::is_resumable(&output, start));
    let store = Store::open(&output, &named("same")).unwrap();
    let whole = walk(&input, &config, &store).unwrap();
    let part = |name: &str| dir.path().join("out.partial").join(name);
    let read = || fs::read(part("tuned").join("model.safetensors")).unwrap();
    let bytes = read();
    let written = || fs::metadata(part("block-0").join("model.safetensors")).unwrap().modified().unwrap();
    let first = written();
    assert!(store::is_resumable(&output, start));
    // The first block was finished, the second was being written.
    fs::remove_dir_all(part("tuned")).unwrap();
    fs::remove_file(part("block-1").join("config.json")).unwrap();
    let store = Store::open(&output, &named("same")).unwrap();
    let resumed = walk(&input, &config, &store).unwrap();
    assert!(bytes == read());
    assert_eq!(first, written(), "what was finished was made again");
    let blocks = |walked: &walk::Walked| walked.blocks.iter().map(|(i, t)| (*i, t.after)).collect::<Vec<_>>();
    assert_eq!(blocks(&whole), blocks(&resumed));
    assert_eq!(whole.model.unwrap().after, resumed.model.unwrap().after);
    // Everything is finished: nothing is repeated.
    let done = walk(&input, &config, &Store::open(&output, &named("same")).unwrap()).unwrap();
    assert_eq!(done.layers.len(), 7 * LAYERS);
    // Parts count only after they were opened.
    let later = start + std::time::Duration::from_secs(60);
    assert!(!store::is_resumable(&output, later));
    // With other settings it starts over.
    let other = Store::open(&output, &named("other")).unwrap();
    assert_eq!(other.replaced.map(|d| d.to_string()).as_deref(), Some("the name was same and is other"));
    assert!(!store::is_resumable(&output, start));
    assert!(!part("block-0").exists());
}

#[test]
fn nothing_of_others_is_removed_and_nothing_of_another_model_is_used() {
    let dir = TempDir::new().unwrap();
    let input = model(&dir.path().join("dense"), |_, _| ());
    // A path may end with a separator.
    let config = ModelQuantizationConfig {
        method: QuantizeMethod::Round(ScaleRule::LeastSquares),
        ..options(1, None)
    };
    made(&dir, "slash/", &input, &config);
    assert!(dir.path().join("slash").join("config.json").exists());
    assert!(!dir.path().join("slash.partial").exists());
    // A directory of another program must be kept.
    let foreign = dir.path().join("out.partial");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("settings.txt"), "theirs").unwrap();
    assert!(Store::open(&dir.path().join("out"), &named("ours")).is_err());
    assert!(foreign.join("settings.txt").exists());
    // Weights of the same size in the same file, and the same text split differently.
    let (a, b) = (text(1), text(2));
    let of = |texts: &[&[Vec<u32>]]| store::identity(&input, &config, texts).unwrap();
    let before = of(&[&a, &b]);
    let differs = |now: &Identity| now.differs_from(before.facts()).map(|difference| difference.fact);
    assert_eq!(differs(&of(&[&a, &b])), None);
    let together = [&a[..], &b[..1]].concat();
    assert_eq!(differs(&of(&[&together, &b[1..]])).as_deref(), Some("the text"));
    // Other weights of the same size and time, and the same at another time.
    let file = dir.path().join("dense").join("model.safetensors");
    let written = fs::File::options().write(true).open(&file).unwrap();
    let time = written.metadata().unwrap().modified().unwrap();
    written.set_modified(time + std::time::Duration::from_secs(1)).unwrap();
    assert_eq!(differs(&of(&[&a, &b])), None);
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    written.set_modified(time).unwrap();
    assert_eq!(differs(&of(&[&a, &b])).as_deref(), Some("the model"));
}

#[test]
fn spoiled_weights_are_named_and_dead_inputs_are_counted() {
    let dir = TempDir::new().unwrap();
    let config = options(1, Some(short()));
    for (name, value) in [("nan", f32::NAN), ("infinity", f32::INFINITY)] {
        // A number that cannot result from quantization, written to the file.
        const MARK: f32 = 1234.567;
        let path = dir.path().join(name);
        model(&path, |tensor, values| {
            if tensor.contains("layers.1.mlp.up_proj") {
                values[3] = MARK;
            }
        });
        let file = path.join("model.safetensors");
        let mut bytes = fs::read(&file).unwrap();
        let at = bytes.windows(4).position(|w| w == MARK.to_le_bytes()).unwrap();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        fs::write(&file, bytes).unwrap();
        let input = ModelFile::open(&path).unwrap();
        let store = Store::open(&dir.path().join(format!("{name}-out")), &named(name)).unwrap();
        let error = walk(&input, &config, &store).map(|_| ()).unwrap_err();
        let whole = format!("{error} {:?}", std::error::Error::source(&error));
        assert!(whole.contains("up_proj"), "{whole}");
    }
    let input = model(&dir.path().join("dead"), |tensor, values| {
        if tensor.contains("layers.0.input_layernorm") {
            values[..5].fill(0.0);
        }
        if tensor.contains("layers.0.self_attn.k_proj") {
            values.fill(0.0);
        }
        if tensor.contains("layers.1.mlp.gate_proj") {
            values.fill(0.25);
        }
        if tensor.contains("layers.1.input_layernorm") {
            // Its square underflows f32.
            values[0] = 1e-23;
        }
    });
    let store = Store::open(&dir.path().join("dead-out"), &named("dead")).unwrap();
    let walked = walk(&input, &config, &store).unwrap();
    let layer = |name: &str| walked.layers.iter().find(|l| l.name.contains(name)).unwrap();
    assert_eq!(layer("layers.0.self_attn.q_proj").dead_inputs, Some(5));
    assert!(layer("layers.0.self_attn.k_proj").weight_error.unwrap() < 1e-6);
    assert!(walked.layers.iter().all(|l| l.weight_error.unwrap().is_finite()));
}

/// A model with a few outlier inputs, as in large models.
fn lopsided(dir: &Path) -> ModelFile {
    model(dir, |name, values| {
        if name.contains("layernorm") {
            values[..3].iter_mut().for_each(|v| *v *= 12.0);
        }
    })
}

#[test]
fn rewritten_models_stay_what_they_were() {
    let dir = TempDir::new().unwrap();
    let input = lopsided(&dir.path().join("dense"));
    let mut all = Vec::new();
    use ScaledInputs::{All, None as Nowhere, Outliers};
    // The norms cause outliers at two hook points of a block, which rotation removes.
    for (salience, rotation, searched) in [
        (Nowhere, None, 0),
        (Outliers, None, 2 * LAYERS),
        (All, None, 4 * LAYERS),
        (Nowhere, Some(1), 0),
        (Nowhere, Some(2), 0),
        (All, Some(1), 4 * LAYERS),
    ] {
        let config = ModelQuantizationConfig { salience, rotation, ..options(6, None) };
        let ids = text(1);
        let prepared = Prepared::new(&input, &config, &ids, &mut |done, all| assert!(done <= all)).unwrap();
        let out = dir.path().join(format!("out-{}", all.len()));
        let report = quantize_ids(&prepared, &out, &ids, &config, &HOST, &mut |_, _, _| ()).unwrap();
        let output = ModelFile::open(&out).unwrap();
        let lost = divergence(&input, &output);
        assert!(lost < 0.01, "{salience:?} {rotation:?}: {lost}");
        assert_eq!(report.salience.len(), searched, "{salience:?} {rotation:?}");
        assert!(report.salience.iter().all(|s| s.after <= s.before));
        let scaled = searched > 0;
        assert_eq!(scaled, report.salience.iter().any(|s| s.alpha > 0.0));
        // Embedding and head are no longer tied, which is reported.
        assert_eq!(output.config().spec.tied_head, rotation.is_none());
        let says = |what: &str| report.notes.iter().any(|n| n.contains(what));
        let head = "the output head is no longer the embedding";
        assert_eq!((says("scaled the layer inputs"), says(head)), (scaled, rotation.is_some()));
        let bytes = fs::read(out.join("model.safetensors")).unwrap();
        assert!(!all.contains(&bytes));
        all.push(bytes);
    }
}

#[test]
fn rotated_inputs_meet_rotated_weights() {
    let dir = TempDir::new().unwrap();
    // Sparse outlier weights: one scale does not fit them and their neighbours.
    let input = model(&dir.path().join("dense"), |name, values| {
        if name.contains("down_proj") || name.contains("o_proj") {
            values.iter_mut().step_by(9).for_each(|v| *v *= 8.0);
        }
    });
    let even = model(&dir.path().join("even"), |_, _| ());
    let lost = |input: &ModelFile, name: &str, planes, rule: Option<ScaleRule>, input_rotation, tuning| {
        let mut config = ModelQuantizationConfig { input_rotation, ..options(planes, tuning) };
        if let Some(rule) = rule {
            config.method = QuantizeMethod::Round(rule);
        }
        let (bytes, lost) = made(&dir, name, input, &config);
        let output = ModelFile::open(dir.path().join(name)).unwrap();
        for layer in 0..LAYERS {
            for (name, block) in [
                (WeightName::Down(layer), Some(8)),
                (WeightName::Output(layer), Some(16)),
                (WeightName::Up(layer), None),
                (WeightName::Value(layer), None),
            ] {
                let Tensor::Ternary(trits) = output.load(name).unwrap() else {
                    panic!("{name} is not ternary")
                };
                let want = block.filter(|_| input_rotation.is_some());
                assert_eq!(trits.rotation().map(Hadamard::block), want, "{name}");
            }
        }
        (bytes, lost)
    };
    let rounded = Some(ScaleRule::LeastSquares);
    for (name, rule) in [("near", None), ("near-rounded", rounded)] {
        let (_, lost) = lost(&input, name, 6, rule, Some(16), None);
        assert!(lost < 0.01, "{name}: {lost}");
    }
    for (name, rule) in [("rounded", rounded), ("compensated", None)] {
        let (plain, before) = lost(&input, name, 2, rule, None, None);
        let (turned, after) = lost(&input, &format!("{name}-turned"), 2, rule, Some(16), None);
        assert!(plain != turned && after < 0.8 * before, "{name}: {before} {after}");
    }
    // Codes of random weights cannot be learned from so little text; scales can.
    let scales =
        Tuning { rate: 1e-6, scale_rate: 1e-3, block_epochs: Some(24), model_epochs: Some(24), ..short() };
    let (_, before) = lost(&even, "untuned", 1, None, Some(16), None);
    let (_, after) = lost(&even, "tuned", 1, None, Some(16), Some(scales));
    assert!(after < before, "{before} {after}");
}

#[test]
fn salience_helps_rounding_where_a_few_inputs_are_strong() {
    let dir = TempDir::new().unwrap();
    let input = lopsided(&dir.path().join("dense"));
    let mut config = options(2, None);
    config.method = QuantizeMethod::Round(ScaleRule::LeastSquares);
    let lost = |config: &ModelQuantizationConfig, name: &str| {
        let (ids, out) = (text(1), dir.path().join(name));
        let prepared = Prepared::new(&input, config, &ids, &mut |_, _| ()).unwrap();
        quantize_ids(&prepared, &out, &ids, config, &HOST, &mut |_, _, _| ()).unwrap();
        divergence(&input, &ModelFile::open(&out).unwrap())
    };
    let plain = lost(&config, "plain");
    config.salience = ScaledInputs::All;
    let scaled = lost(&config, "scaled");
    assert!(scaled < plain, "{scaled} {plain}");
}

#[test]
fn what_is_not_tuned_is_said() {
    let dir = TempDir::new().unwrap();
    let input = model(&dir.path().join("dense"), |_, _| ());
    let mut config = options(2, Some(short()));
    let mut notes = Vec::new();
    assert!(tuning_of(&input, &config, &mut notes).unwrap().is_some() && notes.is_empty());
    let large = Tuning { max_weights: 100, ..short() };
    config.tuning = Some(large);
    assert!(tuning_of(&input, &config, &mut notes).unwrap().is_some());
    config.tuning = Some(Tuning { recover: 1.0, ..large });
    let error = tuning_of(&input, &config, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("at most 100 weights"), "{error}");
    config.tuning = Some(large);
    config.layout.coupling = Coupling::Free;
    assert!(tuning_of(&input, &config, &mut notes).unwrap().is_none());
    assert!(notes[0].contains("more than 100") && notes[1].contains("free planes"), "{notes:?}");
    config.method = QuantizeMethod::Round(ScaleRule::LeastSquares);
    assert!(tuning_of(&input, &config, &mut Vec::new()).unwrap().is_none());
    type Spoil = fn(&mut Tuning);
    let table: [(&str, Spoil); 5] = [
        ("tuning.rate is", |t| t.rate = 0.0),
        ("tuning.recover", |t| t.recover = f64::NAN),
        ("tuning.scale_rate", |t| t.scale_rate = f32::NAN),
        ("tuning.batch_tokens", |t| t.batch_tokens = 0),
        ("tuning.model_epochs", |t| t.model_epochs = Some(usize::MAX)),
    ];
    for (name, spoil) in table {
        let mut tuning = short();
        spoil(&mut tuning);
        let error = options(1, Some(tuning)).validate().unwrap_err().to_string();
        assert!(error.starts_with(name), "{name}: {error}");
    }
}

#[test]
fn a_budget_that_the_model_meets_as_it_is_is_refused_with_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let input = model(&dir.path().join("dense"), |_, _| ());
    let bytes: u64 = input.source().tensors().iter().map(|tensor| tensor.bytes).sum();
    let plan = |budget| {
        let calibration = Calibration::Generated { sequences: 2, seed: 1 };
        let (output, options) = (dir.path().join("out"), PlanOptions::new(budget));
        let mut said = Vec::new();
        let result = quantize_to(
            &input,
            &output,
            &calibration,
            &self::options(1, None),
            &options,
            &mut |what, _, _| said.push(what.to_owned()),
        );
        assert!(said.is_empty() && !output.exists(), "nothing is begun: {said:?}");
        result.map(drop).unwrap_err()
    };
    for budget in [Budget::Bytes(bytes), Budget::Bytes(100_000_000), Budget::Bits(32.0)] {
        let error = plan(budget);
        assert!(matches!(error, CalibrateError::BudgetMet { .. }), "{error}");
    }
    let error = plan(Budget::Bytes(100_000_000)).to_string();
    let want = format!("at most 100000000 bytes: the dense model already meets that with {bytes} bytes");
    assert!(error.starts_with(&want), "{error}");
}

#[test]
fn a_plan_says_on_which_text_it_was_made() {
    let planning = |source| Planning {
        budget: "a ratio".to_owned(),
        source,
        sensitivities: Vec::new(),
        trials: Vec::new(),
        plan: serde_json::from_value(serde_json::json!({"format": "a plan", "layers": []})).unwrap(),
    };
    assert_eq!(planning(TextSource::HeldOut).described(), "a ratio");
    let own = planning(TextSource::Generated);
    assert_eq!(own.described(), "a ratio, on text generated by the dense model");
    assert_eq!(serde_json::to_value(&own).unwrap()["source"], "generated");
}
