//! Batches of sequences: results and numbers of launches.

use super::*;

/// Launches and logits of a step of one token for each of `count` sequences after their prompts; the sequences' caches are made
/// together or one by one.
fn step_of(
    decoder: &Decoder<CubeBackend>,
    kv: KvSpec,
    texts: &[Vec<u32>],
    together: bool,
) -> (u64, Vec<Vec<f32>>) {
    let mut sequences = if together {
        decoder.sequences(kv, texts.len()).expect("sequences")
    } else {
        texts.iter().map(|_| decoder.sequence(kv).expect("a sequence")).collect()
    };
    let mut step = |of: &dyn Fn(&Vec<u32>) -> std::ops::Range<usize>| {
        let mut steps: Vec<_> = sequences
            .iter_mut()
            .zip(texts)
            .map(|(sequence, ids)| Step { sequence, ids: &ids[of(ids)] })
            .collect();
        decoder.forward(&mut steps, Logits::Last).expect("logits")
    };
    step(&|ids| 0..ids.len() - 1);
    let device = decoder.backend().device();
    let before = device.launches();
    let logits = step(&|ids| ids.len() - 1..ids.len());
    (device.launches() - before, logits)
}

/// Launches of a step of two layers without attention, for any number of sequences.
const OTHERS: u64 = 19;

/// A layer stores and attends in two launches for any number of sequences whose caches were made together.
#[test]
fn launches_do_not_grow_with_the_batch() {
    let Some(device) = software() else { return };
    let spec = base();
    let on_cpu = cpu(&spec, Kind::Trits, ActivationPrecision::F32);
    // A recorded step would launch nothing.
    let backend = CubeBackend::new(device, ActivationPrecision::F32).with_graphs(false);
    let on_gpu = Decoder::new(backend, spec.clone(), &mut Random::new(&spec, Kind::Trits)).expect("it loads");
    let layers = spec.layers as u64;
    // Sequences; launches of attention per layer: together, one by one.
    for (precision, count, together, one_by_one, tolerance) in [
        (KvPrecision::F16, 1, 2, 2, 5e-3),
        (KvPrecision::F16, 3, 2, 6, 5e-3),
        (KvPrecision::F16, 64, 2, 128, 5e-3),
        // A key may be rounded to the next code.
        (KvPrecision::Int8, 3, 2, 6, 2e-2),
    ] {
        let kv = KvSpec::new(precision, 40);
        let texts: Vec<Vec<u32>> = (0..count).map(|i| ids(2 + i % 7, i as u64)).collect();
        let (launches, got) = step_of(&on_gpu, kv, &texts, true);
        assert_eq!(launches, OTHERS + together * layers, "{count} together");
        let (launches, same) = step_of(&on_gpu, kv, &texts, false);
        assert_eq!(launches, OTHERS + one_by_one * layers, "{count} one by one");
        // Kernels and order of additions are the same as for a single sequence.
        assert_eq!(got, same, "{count}");
        for (got, ids) in got.iter().zip(&texts).take(3) {
            let want = logits(&on_cpu, ids, kv, 40);
            assert_close(got, &want[want.len() - spec.vocab..], tolerance);
        }
    }
}

/// With int8 activations, norms and quantizers are fused into the products: a layer of one token takes six launches (queries, keys
/// and values; rotation and store; attention; output; gate and up; down), and seven where each cube would repeat too much of the
/// gate. In addition there are the lookup, and the head after the last norm.
#[test]
fn a_token_of_a_layer_is_six_launches() {
    let Some(device) = software() else { return };
    let spec = base();
    let backend = CubeBackend::new(device, ActivationPrecision::Int8PerToken).with_graphs(false);
    let decoder =
        Decoder::new(backend, spec.clone(), &mut Random::new(&spec, Kind::Trits)).expect("it loads");
    let (launches, _) = step_of(&decoder, KvSpec::new(KvPrecision::F16, 40), &[ids(5, 1)], true);
    assert_eq!(launches, 6 * spec.layers as u64 + 3);
}

/// Prompts and single tokens, windows, and sequences made separately in one batch.
#[test]
fn batches_are_mixed() {
    let Some(device) = software() else { return };
    let spec = base();
    let on_cpu = cpu(&spec, Kind::Trits, ActivationPrecision::F32);
    let on_gpu = gpu(&device, &spec, Kind::Trits, ActivationPrecision::F32);
    let (long, rolling) = (KvSpec::new(KvPrecision::F32, 40), KvSpec::rolling(KvPrecision::F32, 5, 4));
    let mut sequences = on_gpu.sequences(long, 3).expect("three");
    sequences.extend(on_gpu.sequences(rolling, 2).expect("two"));
    sequences.push(on_gpu.sequence(long).expect("one"));
    let texts: Vec<Vec<u32>> = (0..6).map(|i| ids(24, 20 + i)).collect();
    let mut done = vec![0; texts.len()];
    let mut got = vec![Vec::new(); texts.len()];
    // Tokens of each sequence in each step.
    for step in [[3, 1, 4, 2, 3, 1], [1; 6], [1, 3, 1, 1, 4, 1], [1; 6], [1; 6], [4, 1, 1, 1, 1, 2]] {
        let mut steps = Vec::new();
        for (((sequence, ids), done), new) in sequences.iter_mut().zip(&texts).zip(&mut done).zip(step) {
            steps.push(Step { sequence, ids: &ids[*done..*done + new] });
            *done += new;
        }
        for (got, new) in got.iter_mut().zip(on_gpu.forward(&mut steps, Logits::All).expect("logits")) {
            got.extend(new);
        }
    }
    for (i, (got, done)) in got.iter().zip(&done).enumerate() {
        let kv = if (3..5).contains(&i) { rolling } else { long };
        assert_close(got, &logits(&on_cpu, &texts[i][..*done], kv, 4), 1e-3);
    }
}
