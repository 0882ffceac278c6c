//! KV caches whose layers differ in precision, on the host.

use std::ops::ControlFlow;

use crate::common::Random;
use trike_cpu::Cpu;
use trike_nn::{
    ActivationPrecision, BackendCaches, BackendOps, BackendTransfers, BackendWeights, BlockContext,
    CacheSpec, CpuBackend, CpuCache, Decoder, DecoderBlock, DecoderSpec, DecoderWeights, Eviction, HookPoint,
    KeySelector, KvPrecision, KvPrecisions, KvSpec, Logits, NnError, PromptKeys, Step, StepInputs,
    WeightName,
};
use trike_testkit::{Rng, assert_near};

const VOCAB: usize = 50;
const LAYERS: usize = 3;
const SEED: u64 = 5;

fn spec(layers: usize) -> DecoderSpec {
    DecoderSpec {
        intermediate: 40,
        kv_heads: 2,
        context: 700,
        tied_head: true,
        ..DecoderSpec::llama(32, layers, 4, VOCAB)
    }
}

fn backend() -> CpuBackend {
    CpuBackend::new(Cpu::new(1).expect("a thread"), ActivationPrecision::F32)
}

fn decoder(layers: usize) -> Decoder<CpuBackend> {
    let spec = spec(layers);
    Decoder::new(backend(), spec.clone(), &mut Random::new(&spec, SEED)).expect("a model")
}

fn ids(n: usize) -> Vec<u32> {
    let mut rng = Rng::new(1);
    (0..n).map(|_| rng.below(VOCAB) as u32).collect()
}

/// The hidden states of all tokens, and the caches of the layers, with each block run separately over its own cache.
fn block_by_block(steps: &[&[u32]], caches: &[CacheSpec]) -> (Vec<Vec<f32>>, Vec<Vec<u8>>) {
    let (spec, backend) = (spec(LAYERS), backend());
    let mut weights = Random::new(&spec, SEED);
    let table = backend.load_matrix(weights.matrix(WeightName::Embedding).unwrap()).unwrap();
    let rope = backend.load_rope(&spec.rope, spec.head_dim, spec.context).unwrap();
    let context = BlockContext { backend: &backend, spec: &spec, rope: &rope };
    let mut streams = Vec::new();
    let mut position = 0;
    for ids in steps {
        let mut inputs = StepInputs::default();
        inputs.push(ids, position, None).unwrap();
        position += ids.len();
        streams.push((backend.embed(&table, &inputs, 1.0).unwrap(), inputs));
    }
    let mut saved = Vec::new();
    for (layer, cache) in caches.iter().enumerate() {
        let block = DecoderBlock::load(&backend, &spec, layer, &mut weights).unwrap();
        let mut cache: CpuCache = backend.new_cache(cache).unwrap();
        for (x, inputs) in &mut streams {
            block.forward(context, x, inputs, &mut [&mut cache]).unwrap();
        }
        saved.push(backend.save_cache(&cache, position.min(cache_capacity(caches))).unwrap());
    }
    let norm = weights.vector(WeightName::FinalNorm).unwrap();
    let states = streams
        .iter()
        .map(|(x, _)| backend.to_host(&backend.rms_norm(x, &norm, spec.rms_eps).unwrap()).unwrap());
    (states.collect(), saved)
}

fn cache_capacity(caches: &[CacheSpec]) -> usize {
    caches[0].capacity
}

/// Each layer's keys, values and results are bit-identical to those of a cache of its precision alone.
#[test]
fn layers_have_the_caches_of_their_precisions() {
    let decoder = decoder(LAYERS);
    let ids = ids(90);
    let (prompt, rest) = ids.split_at(40);
    let steps: Vec<&[u32]> = std::iter::once(prompt).chain(rest.chunks(1)).collect();
    let all = KvPrecision::ALL;
    let mut cases: Vec<[KvPrecision; LAYERS]> =
        all.iter().flat_map(|&first| all.map(|second| [first, second, second])).collect();
    cases.push([KvPrecision::Int4, KvPrecision::F16, KvPrecision::Int8]);
    for layers in cases {
        for (capacity, eviction) in
            [(90, Eviction::Never), (64, Eviction::Oldest), (64, Eviction::Unattended)]
        {
            let kv = KvSpec::new(KvPrecisions::of_layers(&layers).unwrap(), capacity).with_eviction(eviction);
            let of_layer = |precision| CacheSpec {
                kv_heads: 2,
                head_dim: 8,
                capacity,
                precision,
                keys: KeySelector::All,
                prompt_keys: PromptKeys::All,
                eviction,
            };
            // A cache with eviction drops a quarter of its capacity at once.
            let steps: Vec<&[u32]> = match eviction {
                Eviction::Never => steps.clone(),
                _ => prompt.chunks(16).chain(rest.chunks(1)).collect(),
            };
            let (states, saved) = block_by_block(&steps, &layers.map(of_layer));
            let mut sequence = decoder.sequence(kv).unwrap();
            for (ids, want) in steps.iter().zip(&states) {
                let got = decoder.hidden(&mut [Step { sequence: &mut sequence, ids }], Logits::All).unwrap();
                assert_eq!(got[0], *want, "{layers:?} {eviction:?}");
            }
            if eviction == Eviction::Never {
                assert_eq!(sequence.save(decoder.backend()).unwrap(), saved, "{layers:?}");
                let bytes: usize = saved.iter().map(Vec::len).sum();
                let of_head = kv.precision.bytes_per_position(0..LAYERS, 8);
                assert_eq!(bytes as u64, of_head * 2 * 90, "the bytes of a plan");
            }
        }
    }
}

/// The residual stream of the tokens after the attention of each layer.
fn streams(ids: &[u32], caches: &[CacheSpec]) -> Vec<Vec<f32>> {
    let (spec, backend) = (spec(LAYERS), backend());
    let mut weights = Random::new(&spec, SEED);
    let table = backend.load_matrix(weights.matrix(WeightName::Embedding).unwrap()).unwrap();
    let rope = backend.load_rope(&spec.rope, spec.head_dim, spec.context).unwrap();
    let context = BlockContext { backend: &backend, spec: &spec, rope: &rope };
    let mut inputs = StepInputs::default();
    inputs.push(ids, 0, None).unwrap();
    let mut x = backend.embed(&table, &inputs, 1.0).unwrap();
    let mut seen = Vec::new();
    for (layer, cache) in caches.iter().enumerate() {
        let block = DecoderBlock::load(&backend, &spec, layer, &mut weights).unwrap();
        let mut cache = backend.new_cache(cache).unwrap();
        let _ = block
            .forward_hooked(context, &mut x, &inputs, &mut [&mut cache], &mut |point, _, stream| {
                if point == HookPoint::Mlp {
                    seen.push(backend.to_host(stream)?);
                }
                Ok(ControlFlow::Continue(()))
            })
            .unwrap();
    }
    seen
}

/// With a text in one step and in several.
#[test]
fn errors_are_those_of_one_layer() {
    let decoder = decoder(LAYERS);
    let (ids, all) = (ids(50), KvPrecision::ALL);
    let errors = decoder.cache_errors(&ids, KvPrecision::F16, &all, 50).unwrap();
    let of = |layers: [KvPrecision; LAYERS]| {
        streams(
            &ids,
            &layers.map(|precision| CacheSpec {
                kv_heads: 2,
                head_dim: 8,
                capacity: 50,
                precision,
                keys: KeySelector::All,
                prompt_keys: PromptKeys::All,
                eviction: Eviction::Never,
            }),
        )
    };
    let exact = of([KvPrecision::F16; LAYERS]);
    let square = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    for (layer, errors) in errors.iter().enumerate() {
        assert_eq!(errors[1], 0.0, "f16 against f16");
        for (precision, error) in all.into_iter().zip(errors) {
            let mut layers = [KvPrecision::F16; LAYERS];
            layers[layer] = precision;
            let rows = of(layers)[layer].clone();
            let rows = rows.chunks_exact(32).zip(exact[layer].chunks_exact(32));
            let relative = rows.map(|(got, want)| {
                square(&mut got.iter().zip(want).map(|(got, want)| got - want))
                    / square(&mut want.iter().copied())
            });
            assert_near!(*error, relative.sum::<f64>() / 50.0, abs = 1e-12);
        }
        // More bytes give a much smaller error.
        let [f32, _, int8, int4, int8_int4] = errors[..] else { panic!("five precisions") };
        assert!(f32 < int8 && int8 < int8_int4 && int8_int4 < int4, "{errors:?}");
    }
    let stepped = decoder.cache_errors(&ids, KvPrecision::F16, &all, 7).unwrap();
    for (whole, stepped) in errors.iter().flatten().zip(stepped.iter().flatten()) {
        assert_near!(*whole, *stepped, abs = 1e-6);
    }
    for (ids, step) in [(&[][..], 7), (&ids, 0), (&[VOCAB as u32], 1)] {
        decoder.cache_errors(ids, KvPrecision::F16, &all, step).expect_err("nothing to run");
    }
}

#[test]
fn saved_and_cut_sequences_go_on_as_they_were() {
    let decoder = decoder(LAYERS);
    let ids = ids(60);
    let kv = KvSpec::new("int4,f16:2,int8:0".parse::<KvPrecisions>().unwrap(), 60);
    let run = |sequence: &mut _, ids: &[u32]| decoder.forward(&mut [Step { sequence, ids }], Logits::All);
    let mut whole = decoder.sequence(kv).unwrap();
    let first = run(&mut whole, &ids[..40]).unwrap();
    let last = run(&mut whole, &ids[40..]).unwrap();
    whole.truncate(40).unwrap();
    let layers = whole.save(decoder.backend()).unwrap();
    assert_eq!(run(&mut whole, &ids[40..]).unwrap(), last);
    let layers: Vec<&[u8]> = layers.iter().map(Vec::as_slice).collect();
    let mut restored = decoder.sequence(kv).unwrap();
    restored.restore(decoder.backend(), 40, &layers).unwrap();
    assert_eq!(run(&mut restored, &ids[40..]).unwrap(), last);
    // Bytes of one precision are invalid for another.
    let mut other = decoder.sequence(KvSpec { precision: KvPrecision::Int4.into(), ..kv }).unwrap();
    assert!(matches!(
        other.restore(decoder.backend(), 40, &layers),
        Err(NnError::Shape { what: "bytes of saved keys and values", .. })
    ));
    // Sequences of different precisions in one step.
    let mut several = decoder.sequences(kv, 2).unwrap();
    let mut steps: Vec<_> = several.iter_mut().map(|sequence| Step { sequence, ids: &ids[..40] }).collect();
    assert_eq!(decoder.forward(&mut steps, Logits::All).unwrap(), [first[0].clone(), first[0].clone()]);
}

#[test]
fn precisions_of_other_decoders_are_refused() {
    let refused = |layers: usize, text: &str| {
        let kv = KvSpec::new(text.parse::<KvPrecisions>().unwrap(), 10);
        decoder(layers).sequence(kv).err().map(|error| error.to_string())
    };
    assert_eq!(refused(LAYERS, "int4,int8:2"), None);
    assert_eq!(
        refused(LAYERS, "int4,int8:1+3").unwrap(),
        "precision of keys and values must be given for layers of the decoder only, got layer 3 of 3"
    );
    assert_eq!(refused(128, "int4,int8:127"), None);
    assert!(refused(129, "int4,int8:127").unwrap().contains("more than 128"));
    assert_eq!(refused(129, "int4"), None);
}
