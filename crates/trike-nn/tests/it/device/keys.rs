//! Steps with selected keys: recorded, launched and on the host.

use trike_nn::KeySelector;

use super::*;

/// One layer with key selection, whose heads have sign codes.
fn spec() -> DecoderSpec {
    let layers = KeySelector::EXACT_LAYERS + 1;
    DecoderSpec { kv_heads: 2, context: 256, ..DecoderSpec::llama(256, layers, 4, 113) }
}

/// Positions kept, tokens of a prompt and single tokens, of each part of a text.
const LONG: &[(usize, usize, usize)] =
    &[(0, 70, 70), (20, 60, 60), (135, 3, 5), (20, 150, 30), (100, 90, 20)];
const SHORT: &[(usize, usize, usize)] = &[(0, 70, 20), (20, 150, 20), (100, 90, 12)];

/// The logits of single tokens after a prompt, repeated with parts of the text rewritten: from before the first selection to
/// positions where a recording is replayed and where none is. Steps are skipped at which the host has a new mean while a recording
/// uses the old one for the last time.
fn logits_of<B: Backend>(decoder: &Decoder<B>, kv: KvSpec, parts: &[(usize, usize, usize)]) -> Vec<Vec<f32>> {
    let mut sequence = decoder.sequence(kv).expect("a sequence");
    let mut out = Vec::new();
    for &(len, prompt, tokens) in parts {
        sequence.truncate(len).expect("it is that long");
        let seed = len as u64;
        let mut steps = [Step { sequence: &mut sequence, ids: &ids(prompt, seed) }];
        decoder.forward(&mut steps, Logits::Last).expect("logits");
        for id in ids(tokens, seed + 1) {
            let end = sequence.len() + 1;
            let mut steps = [Step { sequence: &mut sequence, ids: &[id] }];
            let logits = decoder.forward(&mut steps, Logits::Last).expect("logits");
            out.extend(logits.into_iter().filter(|_| !end.is_power_of_two()));
        }
    }
    out
}

fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    let squares = a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| f64::from(a - b).powi(2));
    squares.sum::<f64>().sqrt()
}

#[test]
fn steps_select_the_keys_of_the_host() {
    let Some(device) = software() else { return };
    let spec = spec();
    let keys = KeySelector::signs(8).expect("some");
    for (precision, parts, least, share) in [
        (KvPrecision::F32, LONG, 100, 0.1),
        (KvPrecision::F16, SHORT, 30, 0.1),
        // A key at a rounding boundary may be rounded the other way, which changes the keys that later layers select, so some keys
        // differ from the host's. The kernel tests compare selections for equal keys.
        (KvPrecision::Int8, SHORT, 30, 0.5),
    ] {
        let kv = KvSpec::new(precision, 256);
        let on_host = cpu(&spec, Kind::F32, ActivationPrecision::F32);
        let exact = logits_of(&on_host, kv, parts);
        let want = logits_of(&on_host, kv.with_keys(keys), parts);
        let run = |on| {
            let backend = CubeBackend::new(device.clone(), ActivationPrecision::F32).with_graphs(on);
            let weights = &mut Random::new(&spec, Kind::F32);
            let decoder = Decoder::new(backend, spec.clone(), weights).expect("it loads");
            let all = logits_of(&decoder, kv.with_keys(keys), parts);
            let used = decoder.backend().device_use().expect("a device");
            assert_eq!(used.replays > least, on, "{} replays", used.replays);
            all
        };
        let recorded = run(true);
        if precision == KvPrecision::F32 {
            assert_eq!(recorded, run(false), "what is recorded is what is launched");
        }
        // One key selected differently would change all later logits.
        let (lost, other) = (distance(&exact, &want), distance(&recorded, &want));
        assert!(
            other < share * lost,
            "{precision:?}: {other} from the host, which is {lost} from exact attention"
        );
    }
}

/// In a batch, each sequence selects its own keys.
#[test]
fn sequences_of_a_batch_select_their_own_keys() {
    let Some(device) = software() else { return };
    let spec = spec();
    let kv = KvSpec::new(KvPrecision::F32, 200).with_keys(KeySelector::signs(8).expect("some"));
    let decoder = gpu(&device, &spec, Kind::F32, ActivationPrecision::F32);
    let texts = [ids(100, 1), ids(90, 2)];
    let alone = texts.clone().map(|ids| {
        let mut sequence = decoder.sequence(kv).expect("a sequence");
        decoder
            .forward(&mut [Step { sequence: &mut sequence, ids: &ids[..80] }], Logits::Last)
            .expect("logits");
        ids[80..90]
            .iter()
            .map(|&id| {
                let mut steps = [Step { sequence: &mut sequence, ids: &[id] }];
                decoder.forward(&mut steps, Logits::Last).expect("logits").remove(0)
            })
            .collect::<Vec<_>>()
    });
    let mut sequences = decoder.sequences(kv, 2).expect("sequences");
    for (sequence, ids) in sequences.iter_mut().zip(&texts) {
        decoder.forward(&mut [Step { sequence, ids: &ids[..80] }], Logits::Last).expect("logits");
    }
    for i in 0..10 {
        let mut steps: Vec<_> = sequences
            .iter_mut()
            .zip(&texts)
            .map(|(sequence, ids)| Step { sequence, ids: std::slice::from_ref(&ids[80 + i]) })
            .collect();
        let both = decoder.forward(&mut steps, Logits::Last).expect("logits");
        assert_eq!(both, [alone[0][i].clone(), alone[1][i].clone()], "step {i}");
    }
    // The shared recordings give the results of one sequence at a time.
    for (sequence, ids) in sequences.iter_mut().zip(&texts) {
        sequence.truncate(80).expect("it is that long");
        let last =
            decoder.forward(&mut [Step { sequence, ids: &ids[80..81] }], Logits::Last).expect("logits");
        assert!(alone.iter().any(|alone| alone[0] == last[0]));
    }
    for i in 1..10 {
        for ((sequence, ids), alone) in sequences.iter_mut().zip(&texts).zip(&alone) {
            let mut steps = [Step { sequence, ids: std::slice::from_ref(&ids[80 + i]) }];
            assert_eq!(
                decoder.forward(&mut steps, Logits::Last).expect("logits"),
                [alone[i].clone()],
                "step {i}"
            );
        }
    }
}
