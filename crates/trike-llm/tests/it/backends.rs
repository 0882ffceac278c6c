//! Backends compared with each other, and with an implementation that shares no code with them.

use std::path::Path;

use crate::common::{SHAPE, Shape, ids, random_llama};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama;
use tempfile::TempDir;
use trike_cpu::{Cpu, Isa};
use trike_llm::{HeadPrecision, LanguageModel, LoadOptions, ModelFile};
use trike_nn::{
    ActivationPolicy, ActivationPrecision, Backend, CpuBackend, DecoderSequence, KvPrecision, KvSpec, Logits,
    NnError, Step,
};
use trike_reference::CandleBackend;
use trike_testkit::{Llama2cCheckpoint, Llama2cShape, assert_close, max_rel, storyteller, tiny};

fn load<B: Backend>(backend: B, path: &Path) -> LanguageModel<B> {
    let file = ModelFile::open(path).expect("a model");
    let options = LoadOptions::default().with_head(HeadPrecision::AsStored);
    LanguageModel::load_on(backend, &file, &options, &mut |_, _| ()).expect("it loads")
}

fn cpu(precision: ActivationPrecision) -> CpuBackend {
    CpuBackend::new(Cpu::new(2).expect("two threads"), precision)
}

fn logits<B: Backend>(model: &LanguageModel<B>, ids: &[u32], kv: KvPrecision) -> Vec<f32> {
    let mut all = Vec::new();
    model.logits_with(ids, &KvSpec::new(kv, ids.len()), |_, row| all.extend_from_slice(row)).expect("logits");
    all
}

/// Logits of every token by candle-transformers, one token at a time through its own cache.
fn candle_transformers(dir: &Path, shape: Shape, ids: &[u32]) -> Vec<f32> {
    let config = llama::Config {
        hidden_size: shape.hidden,
        intermediate_size: shape.inner,
        vocab_size: shape.vocab,
        num_hidden_layers: shape.layers,
        num_attention_heads: shape.heads,
        num_key_value_heads: shape.kv_heads,
        use_flash_attn: false,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: shape.context,
        tie_word_embeddings: shape.tied,
    };
    let bytes = std::fs::read(dir.join("model.safetensors")).expect("weights");
    let vb = VarBuilder::from_buffered_safetensors(bytes, DType::F32, &Device::Cpu).expect("a builder");
    let model = llama::Llama::load(vb, &config).expect("it loads");
    let mut cache = llama::Cache::new(true, DType::F32, &config, &Device::Cpu).expect("a cache");
    let mut all = Vec::new();
    for (position, id) in ids.iter().enumerate() {
        let input = Tensor::new(&[[*id]], &Device::Cpu).expect("a tensor");
        let out = model.forward(&input, position, &mut cache).expect("logits");
        all.extend(out.flatten_all().expect("flat").to_vec1::<f32>().expect("floats"));
    }
    all
}

#[test]
fn a_random_llama_agrees_with_candle_transformers() {
    for (seed, tied) in [(1, false), (2, true)] {
        let shape = Shape { tied, ..SHAPE };
        let dir = TempDir::new().expect("a directory");
        let (dense, packed) = (dir.path().join("dense"), dir.path().join("packed"));
        random_llama(&dense, shape, seed, false);
        random_llama(&packed, shape, seed, true);
        let ids = ids(40, shape.vocab, seed);
        let want = candle_transformers(&dense, shape, &ids);
        for path in [&dense, &packed] {
            assert_close(
                &logits(&load(cpu(ActivationPrecision::F32), path), &ids, KvPrecision::F32),
                &want,
                1e-3,
            );
            let candle = load(CandleBackend::new(ActivationPrecision::F32), path);
            assert_close(&logits(&candle, &ids, KvPrecision::F32), &want, 1e-3);
        }
    }
}

#[test]
fn models_of_other_formats_agree_over_backends() {
    let dir = TempDir::new().expect("a directory");
    let write = |name: &str, bytes: Vec<u8>| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    };
    let (knowing, larger) = (storyteller(), Llama2cCheckpoint::random(Llama2cShape::STORIES_3M, 4));
    for path in [
        write("dense.bin", knowing.to_f32_bytes()),
        write("int8.bin", knowing.to_int8_bytes(8)),
        write("larger.bin", larger.to_int8_bytes(64)),
        tiny(),
    ] {
        let on_cpu = load(cpu(ActivationPrecision::F32), &path);
        let on_candle = load(CandleBackend::new(ActivationPrecision::F32), &path);
        let ids = ids(60, on_cpu.decoder().spec().vocab, 3);
        let want = logits(&on_candle, &ids, KvPrecision::F32);
        assert_close(&logits(&on_cpu, &ids, KvPrecision::F32), &want, 1e-3);
        // f16 keys and values are rounded identically on both backends.
        let halves = logits(&on_cpu, &ids, KvPrecision::F16);
        assert_close(&halves, &logits(&on_candle, &ids, KvPrecision::F16), 1e-3);
        let error = max_rel(&halves, &want);
        assert!(error > 0.0 && error < 2e-2, "f16 keys and values change something, but little: {error:e}");
    }
}

#[test]
fn int8_activations_agree_over_backends_and_instruction_sets() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("packed");
    random_llama(&path, SHAPE, 5, true);
    let ids = ids(20, SHAPE.vocab, 6);
    let exact = logits(&load(cpu(ActivationPrecision::F32), &path), &ids, KvPrecision::F32);
    for precision in [
        ActivationPrecision::Int16,
        ActivationPrecision::Int8PerToken,
        ActivationPrecision::Int8PerGroup(trike_trit::GroupSize::G64),
    ] {
        let want = logits(&load(CandleBackend::new(precision), &path), &ids, KvPrecision::F32);
        let error = max_rel(&want, &exact);
        assert!(error > 1e-6 && error < 0.1, "rounding activations shows: {error:e}");
        for isa in Isa::available() {
            let cpu = CpuBackend::new(Cpu::with_isa(isa, 1).expect("a thread"), precision);
            // An activation at a rounding boundary may be rounded the other way, which changes a logit by a step.
            assert_close(&logits(&load(cpu, &path), &ids, KvPrecision::F32), &want, 2e-2);
        }
    }
}

/// The logits of a sequence do not depend on the batch or on its division into steps.
fn batches_and_steps<B: Backend>(model: &LanguageModel<B>, bound: f32) {
    let decoder = model.decoder();
    let spec = KvSpec::new(KvPrecision::F32, 40);
    let texts = [ids(17, SHAPE.vocab, 7), ids(1, SHAPE.vocab, 8), ids(30, SHAPE.vocab, 9)];
    let alone: Vec<Vec<f32>> = texts.iter().map(|ids| logits(model, ids, KvPrecision::F32)).collect();

    let mut sequences: Vec<_> = texts.iter().map(|_| decoder.sequence(spec).expect("a sequence")).collect();
    let mut steps: Vec<_> =
        sequences.iter_mut().zip(&texts).map(|(sequence, ids)| Step { sequence, ids }).collect();
    let together = decoder.forward(&mut steps, Logits::All).expect("logits");
    for (got, want) in together.iter().zip(&alone) {
        assert_close(got, want, bound);
    }
    assert_eq!(sequences.iter().map(DecoderSequence::len).collect::<Vec<_>>(), [17, 1, 30]);

    // One token of each, in one batch, after truncating the last.
    for sequence in &mut sequences[..] {
        let len = sequence.len();
        sequence.truncate(len - 1).expect("it forgets");
        assert!(matches!(sequence.truncate(len), Err(NnError::Truncate { .. })));
    }
    let mut steps: Vec<_> = sequences
        .iter_mut()
        .zip(&texts)
        .map(|(sequence, ids)| Step { sequence, ids: &ids[ids.len() - 1..] })
        .collect();
    let last = decoder.forward(&mut steps, Logits::Last).expect("logits");
    for (got, want) in last.iter().zip(&alone) {
        assert_close(got, &want[want.len() - SHAPE.vocab..], bound);
    }
}

#[test]
fn a_batch_is_ragged() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("packed");
    random_llama(&path, SHAPE, 10, true);
    batches_and_steps(&load(cpu(ActivationPrecision::F32), &path), 1e-5);
    batches_and_steps(&load(CandleBackend::new(ActivationPrecision::F32), &path), 1e-5);
}

#[test]
fn a_rolling_window_sees_what_a_mask_lets_through() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("packed");
    random_llama(&path, SHAPE, 11, true);
    let on_cpu = load(cpu(ActivationPrecision::F32), &path);
    let on_candle = load(CandleBackend::new(ActivationPrecision::F32), &path);
    let ids = ids(50, SHAPE.vocab, 12);
    // The reference keeps everything and masks; the ring buffer overwrites.
    let full = KvSpec { window: Some(9), ..KvSpec::new(KvPrecision::F32, 64) };
    let mut reference = on_candle.decoder().sequence(full).expect("a sequence");
    let mut step = [Step { sequence: &mut reference, ids: &ids }];
    let want = on_candle.decoder().forward(&mut step, Logits::All).expect("logits").remove(0);
    for step in [1, 4, 7] {
        let mut sequence =
            on_cpu.decoder().sequence(KvSpec::rolling(KvPrecision::F32, 9, step)).expect("one");
        assert_eq!((sequence.spec().capacity, sequence.max_step()), (8 + step, step));
        let mut got = Vec::new();
        for ids in ids.chunks(step) {
            let mut steps = [Step { sequence: &mut sequence, ids }];
            got.extend(on_cpu.decoder().forward(&mut steps, Logits::All).expect("logits").remove(0));
        }
        assert_close(&got, &want, 1e-4);
        let too_long = vec![1; step + 1];
        let mut steps = [Step { sequence: &mut sequence, ids: &too_long }];
        let refused = on_cpu.decoder().forward(&mut steps, Logits::Last).unwrap_err();
        assert!(matches!(refused, NnError::StepTooLong { limit, .. } if limit == step), "{refused}");
        // A sequence cannot be truncated to positions that were overwritten.
        assert!(matches!(sequence.truncate(20), Err(NnError::Truncate { .. })));
        assert!(sequence.truncate(50).is_ok());
    }
    // Without a window the logits differ, so the comparison above is meaningful.
    assert!(max_rel(&logits(&on_cpu, &ids, KvPrecision::F32), &want) > 1e-2);
}

#[test]
fn steps_that_cannot_be_taken_change_nothing() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("packed");
    random_llama(&path, SHAPE, 13, true);
    let model = load(cpu(ActivationPrecision::F32), &path);
    let decoder = model.decoder();
    let mut sequence = decoder.sequence(KvSpec::new(KvPrecision::F16, 4)).expect("a sequence");
    let mut run = |ids: &[u32]| {
        let mut steps = [Step { sequence: &mut sequence, ids }];
        (decoder.forward(&mut steps, Logits::Last).map(|l| l[0].len()), sequence.len())
    };
    assert!(matches!(run(&[]), (Err(NnError::EmptyStep), 0)));
    assert!(matches!(run(&[SHAPE.vocab as u32]), (Err(NnError::Token { vocab: 131, .. }), 0)));
    assert!(matches!(run(&[0; 5]), (Err(NnError::ContextFull { requested: 5, capacity: 4 }), 0)));
    assert!(matches!(run(&[SHAPE.vocab as u32 - 1; 4]), (Ok(131), 4)));
    assert!(matches!(run(&[0]), (Err(NnError::ContextFull { requested: 5, capacity: 4 }), 4)));
    for (capacity, window) in [(0, None), (4, Some(0)), (4, Some(5)), ((1 << 24) + 1, None)] {
        let spec = KvSpec { window, ..KvSpec::new(KvPrecision::F32, capacity) };
        assert!(matches!(decoder.sequence(spec), Err(NnError::Spec { .. })));
    }
}

/// Long sequences are distributed over the threads, one per thread.
#[test]
fn a_batch_of_long_sequences_has_the_logits_of_each_alone() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny"));
    for kv in KvPrecision::ALL {
        let model = load(CpuBackend::new(Cpu::new(2).expect("two threads"), ActivationPolicy::Int8), path);
        let decoder = model.decoder();
        let texts: Vec<Vec<u32>> = [250, 90, 201, 180].iter().map(|&n| ids(n, 512, n as u64)).collect();
        let prefilled = |text: &Vec<u32>| {
            let mut sequence = decoder.sequence(KvSpec::new(kv, 256)).expect("a sequence");
            decoder
                .forward(&mut [Step { sequence: &mut sequence, ids: text }], Logits::Last)
                .expect("logits");
            sequence
        };
        let next = [7];
        let alone = |mut sequence| {
            let step = Step { sequence: &mut sequence, ids: &next };
            decoder.forward(&mut [step], Logits::Last).expect("logits").concat()
        };
        let want: Vec<Vec<f32>> = texts.iter().map(prefilled).map(alone).collect();
        let mut sequences: Vec<_> = texts.iter().map(prefilled).collect();
        let mut steps: Vec<_> = sequences.iter_mut().map(|sequence| Step { sequence, ids: &next }).collect();
        assert_eq!(decoder.forward(&mut steps, Logits::Last).expect("logits"), want, "{kv:?}");
    }
}
