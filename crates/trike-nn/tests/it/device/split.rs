//! Layers on two devices, compared with the same model on one: the software driver opened twice, each with its own queue and
//! memory.

use super::*;
use trike_core::ActivationPolicy;
use trike_cube::CubeError;
use trike_nn::{BackendBase, BackendPlacement, DeviceUse, LayerWeights, StageDevice};
use trike_trit::{Edit, Trit};

/// The software driver opened twice anew, so that only the test's own transfers are counted.
fn pair(options: DeviceOptions) -> Option<[CubeDevice; 2]> {
    let DeviceSpec::Numbered(runtime, index) = software()?.spec() else { unreachable!("a number") };
    let open = |index| {
        CubeDevice::open_with(DeviceSpec::Numbered(runtime, index), options.with_planes(Planes::Forced))
    };
    Some([index, index + 1].map(|index| open(index).expect("the software driver, and its second client")))
}

/// [`Random`] that returns the same embedding when requested again.
struct Repeated<'a> {
    random: Random<'a>,
    embedding: Option<Tensor>,
}

impl DecoderWeights for Repeated<'_> {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        match (name, &self.embedding) {
            (WeightName::Embedding, Some(known)) => Ok(known.clone()),
            (WeightName::Embedding, None) => Ok(self.embedding.insert(self.random.matrix(name)?).clone()),
            _ => self.random.matrix(name),
        }
    }

    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError> {
        self.random.vector(name)
    }
}

/// A model with some layers on each device.
fn split(
    stages: &[(&CubeDevice, usize)],
    spec: &DecoderSpec,
    kind: Kind,
    activations: impl Into<ActivationPolicy>,
) -> Result<Decoder<CubeBackend>, NnError> {
    let activations = activations.into();
    let stages =
        stages.iter().map(|(device, layers)| (CubeBackend::new((*device).clone(), activations), *layers));
    let backend = CubeBackend::pipeline(stages)?;
    Decoder::new(backend, spec.clone(), &mut Repeated { random: Random::new(spec, kind), embedding: None })
}

/// The greedy token after each of `count` steps, after a prompt.
fn greedy(decoder: &Decoder<CubeBackend>, kv: KvSpec, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut sequence = decoder.sequence(kv).expect("a sequence");
    let mut next = prompt.to_vec();
    let mut text = Vec::new();
    for _ in 0..count {
        let mut steps = [Step { sequence: &mut sequence, ids: &next }];
        let best = decoder.forward_top(&mut steps, 1).expect("the best").remove(0);
        let StepLogits::Top(best) = best else { panic!("{best:?}") };
        next = vec![best[0].0];
        text.extend(&next);
    }
    text
}

fn each_use(decoder: &Decoder<CubeBackend>) -> Vec<DeviceUse> {
    decoder.backend().device_uses().into_iter().map(|(_, used)| used).collect()
}

#[test]
fn every_architecture_on_two_devices_is_that_on_one_to_the_bit() {
    let Some([first, second]) = pair(DeviceOptions::default()) else { return };
    for (name, spec, kind) in architectures() {
        for (activations, precision, steps) in [
            (ActivationPrecision::F32, KvPrecision::F32, &[11, 1][..]),
            (ActivationPrecision::Int8PerToken, KvPrecision::F16, &[14]),
            (ActivationPrecision::F32, KvPrecision::Int8, &[11]),
        ] {
            let kv = KvSpec::new(precision, 40);
            let one = gpu(&first, &spec, kind, activations);
            let two = split(&[(&first, 1), (&second, 1)], &spec, kind, activations).expect("it loads");
            // The window of 7 is full, and the last step is not.
            let ids = ids(14, 3);
            for &step in steps {
                let got = logits(&two, &ids, kv, step);
                assert!(got.len() == 14 * spec.vocab && got.iter().all(|v| v.is_finite()), "{name}");
                assert!(got == logits(&one, &ids, kv, step), "{name}, steps of {step}");
            }
            let text = greedy(&two, kv, &ids[..5], 8);
            assert_eq!(text, greedy(&one, kv, &ids[..5], 8), "{name}");
            let used = two.backend().device_use().expect("devices");
            assert_eq!((used.captures, used.replays), (0, 0), "{name}: steps are launched");
        }
    }
}

/// Three stages, the last on the device of the first, with a tied embedding of each kind.
#[test]
fn stages_may_return_to_a_device() {
    let Some([first, second]) = pair(DeviceOptions::default()) else { return };
    for kind in [Kind::Trits, Kind::Mixed] {
        let spec = DecoderSpec { layers: 5, tied_head: true, ..base() };
        let one = gpu(&first, &spec, kind, ActivationPrecision::F32);
        let stages = [(&first, 1), (&second, 3), (&first, 1)];
        let three = split(&stages, &spec, kind, ActivationPrecision::F32).expect("it loads");
        let (kv, ids) = (KvSpec::new(KvPrecision::F32, 40), ids(20, 4));
        for step in [20, 7, 1] {
            assert!(logits(&three, &ids, kv, step) == logits(&one, &ids, kv, step), "{kind:?} {step}");
        }
        // Three times 20 tokens, to the second device and back.
        let used = three.backend().device_use().expect("devices");
        assert_eq!(used.transferred_bytes, 2 * 3 * 20 * 4 * spec.hidden as u64);
        // Hidden states are read from the last stage.
        let hidden = |decoder: &Decoder<CubeBackend>| {
            let mut sequence = decoder.sequence(kv).expect("a sequence");
            decoder.hidden(&mut [Step { sequence: &mut sequence, ids: &ids }], Logits::Last).expect("states")
        };
        assert_eq!(hidden(&three), hidden(&one));
    }
}

#[test]
fn only_the_residual_stream_crosses_a_boundary() {
    let Some([first, second]) = pair(DeviceOptions::default()) else { return };
    let spec = DecoderSpec { layers: 3, ..base() };
    let decoder =
        split(&[(&first, 2), (&second, 1)], &spec, Kind::Trits, ActivationPrecision::F32).expect("it loads");
    let mut sequence = decoder.sequence(KvSpec::new(KvPrecision::F16, 40)).expect("a sequence");
    let row = 4 * spec.hidden as u64;
    let mut before = each_use(&decoder);
    for tokens in [9u64, 1, 1, 3] {
        let ids = ids(tokens as usize, tokens);
        let mut steps = [Step { sequence: &mut sequence, ids: &ids }];
        decoder.forward_top(&mut steps, 4).expect("logits");
        let after = each_use(&decoder);
        // Nothing is copied to the first device; the residual stream of all tokens is copied to the second at once.
        assert_eq!(after[0].transfers, 0);
        assert_eq!(after[1].transfers - before[1].transfers, 1, "{tokens} tokens");
        assert_eq!(after[1].transferred_bytes - before[1].transferred_bytes, tokens * row);
        // Ids and positions are uploaded to the first device, positions and (for several tokens) the last row index to the second.
        let several = u64::from(tokens > 1);
        assert_eq!(after[0].uploaded_bytes - before[0].uploaded_bytes, 2 * 4 * tokens);
        assert_eq!(after[1].uploaded_bytes - before[1].uploaded_bytes, 4 * tokens + 4 * several);
        // Logits are read from the second: four ids with their values.
        assert_eq!(after[0].read_bytes, 0);
        assert_eq!(after[1].read_bytes - before[1].read_bytes, 8 * 4);
        before = after;
    }
    let all = decoder.backend().device_use().expect("devices");
    assert_eq!((all.transfers, all.transferred_bytes), (4, 14 * row));
    assert_eq!(all.uploads, before[0].uploads + before[1].uploads);
    assert!(
        all.reserved >= all.in_use && all.peak >= all.in_use && all.unused() == all.reserved - all.in_use
    );
    let names: Vec<String> = decoder.backend().device_uses().into_iter().map(|(name, _)| name).collect();
    assert_eq!(decoder.backend().name(), names.join(", "));
    assert!(
        names[0].starts_with(&first.spec().to_string()) && names[1].starts_with(&second.spec().to_string())
    );
}

/// Weights and caches of a layer are on its device only.
#[test]
fn each_device_holds_its_layers() {
    let spec = DecoderSpec { layers: 4, ..base() };
    let kv = KvSpec::new(KvPrecision::F32, 64);
    // Bytes of buffers on both devices with the given numbers of layers, and on one device with all layers.
    let used = |layers: &[usize], spec: &DecoderSpec| {
        let devices = pair(DeviceOptions::default())?;
        let before = devices.each_ref().map(|device| device.memory().in_use);
        let stages: Vec<_> = devices.iter().zip(layers.iter().copied()).collect();
        let decoder = split(&stages, spec, Kind::Trits, ActivationPrecision::F32).expect("it loads");
        let sequence = decoder.sequence(kv).expect("a sequence");
        let after = devices.each_ref().map(|device| device.memory().in_use);
        drop((sequence, decoder));
        // All of it is free again.
        assert_eq!(devices.each_ref().map(|device| device.memory().in_use), before);
        Some([after[0] - before[0], after[1] - before[1]])
    };
    let Some([all, none]) = used(&[4], &spec) else { return };
    let [less, _] = used(&[3], &DecoderSpec { layers: 3, ..spec.clone() }).expect("a device");
    let (layer, rest) = (all - less, less - 3 * (all - less));
    assert_eq!(none, 0);
    // Scales that are exact in f16 take two bytes, others four, so layers of random weights differ by some bytes.
    let near = |got: u64, want: u64| got.abs_diff(want) < 64;
    let embedding = (2 * spec.vocab * spec.hidden) as u64;
    let rope = (8 * (spec.head_dim / 2) * spec.context) as u64;
    for first in 1..4 {
        let [a, b] = used(&[first, 4 - first], &spec).expect("devices");
        let [a, b] = [a - first as u64 * layer, b - (4 - first as u64) * layer];
        // The embedding here, the norm and the head there, and a RoPE table on each.
        assert!(near(a, embedding + rope), "{first} layers: {a} bytes, expected {}", embedding + rope);
        assert!(near(b, rest - embedding), "{first} layers: {b} bytes, expected {}", rest - embedding);
    }
}

/// Prompts and single tokens, windows, sequences made together and one by one, truncation.
#[test]
fn batches_on_two_devices_are_those_on_one() {
    let Some([first, second]) = pair(DeviceOptions::default()) else { return };
    let spec = DecoderSpec { layers: 3, ..base() };
    let one = gpu(&first, &spec, Kind::Trits, ActivationPrecision::Int8PerToken);
    let two = split(&[(&first, 1), (&second, 2)], &spec, Kind::Trits, ActivationPrecision::Int8PerToken);
    let (long, rolling) = (KvSpec::new(KvPrecision::F16, 40), KvSpec::rolling(KvPrecision::F16, 5, 4));
    let [want, got] = [&one, &two.expect("it loads")].map(|decoder| {
        let mut sequences = decoder.sequences(long, 3).expect("three");
        sequences.extend(decoder.sequences(rolling, 2).expect("two"));
        sequences.push(decoder.sequence(long).expect("one"));
        let texts: Vec<Vec<u32>> = (0..6).map(|i| ids(24, 20 + i)).collect();
        let (mut done, mut all) = (vec![0; texts.len()], Vec::new());
        for (i, step) in [[3, 1, 4, 2, 3, 1], [1; 6], [1, 3, 1, 1, 4, 1], [1; 6], [1; 6], [4, 1, 1, 1, 1, 2]]
            .into_iter()
            .enumerate()
        {
            let mut steps = Vec::new();
            for (((sequence, ids), done), new) in sequences.iter_mut().zip(&texts).zip(&mut done).zip(step) {
                steps.push(Step { sequence, ids: &ids[*done..*done + new] });
                *done += new;
            }
            all.extend(decoder.forward(&mut steps, Logits::All).expect("logits"));
            // Three sequences made together, twice: on one device this step is recorded.
            for _ in 0..2 {
                let mut steps: Vec<_> =
                    sequences[..3].iter_mut().map(|sequence| Step { sequence, ids: &[7] }).collect();
                let best = decoder.forward_top(&mut steps, 3).expect("the best");
                all.extend(best.into_iter().map(|best| match best {
                    StepLogits::Top(best) => {
                        best.into_iter().flat_map(|(id, logit)| [id as f32, logit]).collect()
                    }
                    StepLogits::All(_) => panic!("three are enough"),
                }));
            }
            if i == 3 {
                sequences[1].truncate(2).expect("still there");
                // Replace one sequence by a new one.
                sequences[5] = decoder.sequence(long).expect("room");
            }
        }
        all
    });
    assert!(want == got, "logits differ");
}

/// A layer of each device is replaced, then edited.
#[test]
fn weights_change_on_their_device() {
    let Some([first, second]) = pair(DeviceOptions::default()) else { return };
    let spec = base();
    let mut one = gpu(&first, &spec, Kind::Trits, ActivationPrecision::F32);
    let mut two =
        split(&[(&first, 1), (&second, 1)], &spec, Kind::Trits, ActivationPrecision::F32).expect("it loads");
    let (kv, ids) = (KvSpec::new(KvPrecision::F32, 40), ids(12, 9));
    let mut last = logits(&two, &ids, kv, 12);
    let mut random = Random::new(&spec, Kind::Trits);
    for layer in [0, 1] {
        let name = WeightName::Output(layer);
        let Ok(Tensor::Ternary(mut tensor)) = random.matrix(name) else { panic!("trits") };
        for decoder in [&mut one, &mut two] {
            decoder.replace(name, Tensor::Ternary(tensor.clone())).expect("the shape");
        }
        let replaced = logits(&two, &ids, kv, 12);
        assert!(replaced != last && replaced == logits(&one, &ids, kv, 12), "layer {layer}");
        let trit = match tensor.get(0, 3, 5).expect("inside") {
            Trit::P => Trit::N,
            _ => Trit::P,
        };
        let edits = [Edit { plane: 0, row: 3, col: 5, trit }];
        tensor.edit(&edits).expect("inside");
        for decoder in [&mut one, &mut two] {
            decoder.edit(name, &edits, &tensor).expect("inside");
        }
        let edited = logits(&two, &ids, kv, 12);
        assert!(edited != replaced && edited == logits(&one, &ids, kv, 12), "layer {layer}");
        last = edited;
    }
}

#[test]
fn pipelines_that_are_none_are_refused() {
    let Some([first, second]) = pair(DeviceOptions::default()) else { return };
    let precision = ActivationPrecision::F32;
    let backend = |device: &CubeDevice| CubeBackend::new(device.clone(), precision);
    let refused = |made: Result<CubeBackend, NnError>| made.expect_err("refused").to_string();
    assert_eq!(refused(CubeBackend::pipeline([])), "stages must be one or more, got 0");
    let empty = CubeBackend::pipeline([(backend(&first), 1), (backend(&second), 0)]);
    assert_eq!(refused(empty), "stages must have one or more layers, got 0");
    let two = CubeBackend::pipeline([(backend(&first), 1), (backend(&second), 1)]).expect("two");
    assert!(!two.graphs() && two.stages() == 2 && two.devices().count() == 2);
    let nested = CubeBackend::pipeline([(two, 1), (backend(&second), 1)]);
    assert_eq!(refused(nested), "stages must be on one device each, got 2");
    // A stage without a layer of the model.
    let short = split(&[(&first, 2), (&second, 1)], &base(), Kind::Trits, precision).err().expect("refused");
    assert_eq!(short.to_string(), "layers must be one or more for each stage of the backend, got 2");
    // A single stage is the backend itself.
    let alone = split(&[(&first, 2)], &base(), Kind::Trits, precision).expect("it loads");
    assert!(alone.backend().graphs() && alone.backend().stages() == 1);
}

/// Memory limits determine the division of layers, refusals, and which allocations still succeed.
#[test]
fn limits_of_memory_divide_the_layers() {
    let limit = |bytes| DeviceOptions::default().with_memory_limit(bytes);
    let spec = DecoderSpec { layers: 4, ..base() };
    let kv = KvSpec::new(KvPrecision::F32, 16);
    let weights = LayerWeights { embedding: 0, layers: vec![1 << 20; 4], head: 0 };
    let memory = |devices: &[CubeDevice]| -> Vec<StageDevice> {
        let memory = |device: &CubeDevice| {
            let backend = CubeBackend::new(device.clone(), ActivationPrecision::F32);
            StageDevice { name: backend.name(), available: backend.available().expect("a device"), kv }
        };
        devices.iter().map(memory).collect()
    };
    let Some([large, _]) = pair(limit(6 << 20)) else { return };
    let Some([_, small]) = pair(limit(2 << 20)) else { return };
    let devices = [large, small];
    let stages = weights.split(&spec, 1, &memory(&devices)).expect("it fits");
    assert_eq!([stages[0].layers.clone(), stages[1].layers.clone()], [0..3, 3..4]);
    assert_eq!((stages[0].available, stages[1].available), (Some(6 << 20), Some(2 << 20)));
    // Memory in use does not count as free.
    let held = devices[0].upload(&vec![0u32; 1 << 20]).expect("room");
    let refused = weights.split(&spec, 1, &memory(&devices)).expect_err("two layers too many");
    let message = refused.to_string();
    for part in [devices[0].spec().to_string(), devices[1].spec().to_string(), (2 << 20).to_string()] {
        assert!(message.contains(&part), "{message}");
    }
    assert!(matches!(refused, NnError::SplitMemory { stages } if stages.len() == 2));
    drop(held);
    // A plan that was too small: loading fails with the allocation error and frees everything.
    let Some([first, _]) = pair(DeviceOptions::default()) else { return };
    let Some([_, second]) = pair(limit(10_000)) else { return };
    let refused = split(&[(&first, 2), (&second, 2)], &spec, Kind::Trits, ActivationPrecision::F32).err();
    assert!(matches!(refused, Some(NnError::Cube(CubeError::Memory { limit: 10_000, .. }))), "{refused:?}");
    assert_eq!((first.memory().in_use, second.memory().in_use), (0, 0));
}
