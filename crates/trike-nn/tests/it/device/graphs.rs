//! Recorded and replayed steps, compared with the same steps launched.

use trike_cube::{Capabilities, Graphs};
use trike_nn::MatrixEdit;
use trike_trit::Edit;

use super::*;

/// Two copies of a model, with and without recorded steps.
fn both(
    device: &CubeDevice,
    spec: &DecoderSpec,
    kind: Kind,
    precision: ActivationPrecision,
) -> [Decoder<CubeBackend>; 2] {
    [true, false].map(|on| {
        let backend = CubeBackend::new(device.clone(), precision).with_graphs(on);
        assert_eq!(backend.graphs(), on);
        Decoder::new(backend, spec.clone(), &mut Random::new(spec, kind)).expect("it loads")
    })
}

/// Number of recorded and of replayed steps.
fn counts(decoder: &Decoder<CubeBackend>) -> (u64, u64) {
    let used = decoder.backend().device_use().expect("a device");
    (used.captures, used.replays)
}

fn one(decoder: &Decoder<CubeBackend>, sequence: &mut DecoderSequence<CubeBackend>, id: u32) -> Vec<f32> {
    decoder.forward(&mut [Step { sequence, ids: &[id] }], Logits::Last).expect("logits").remove(0)
}

fn best(
    decoder: &Decoder<CubeBackend>,
    sequence: &mut DecoderSequence<CubeBackend>,
    id: u32,
    k: usize,
) -> StepLogits {
    decoder.forward_top(&mut [Step { sequence, ids: &[id] }], k).expect("the best").remove(0)
}

#[test]
fn every_architecture_is_recorded_and_equal_to_the_bit() {
    let Some(device) = software() else { return };
    for (name, spec, kind) in architectures() {
        let decoders = both(&device, &spec, kind, ActivationPrecision::F32);
        let kv = KvSpec::new(KvPrecision::F32, 40);
        let ids = ids(20, 3);
        let [with, without] = decoders.each_ref().map(|decoder| {
            let mut sequence = decoder.sequence(kv).expect("a sequence");
            let mut out = Vec::new();
            let mut prompt = [Step { sequence: &mut sequence, ids: &ids[..5] }];
            out.extend(decoder.forward(&mut prompt, Logits::Last).expect("logits").remove(0));
            for &id in &ids[5..] {
                out.extend(one(decoder, &mut sequence, id));
            }
            out
        });
        assert!(with.iter().all(|v| v.is_finite()), "{name}");
        assert_eq!(with, without, "{name}");
        // The second token is recorded; it and all later ones are replayed.
        assert_eq!((counts(&decoders[0]), counts(&decoders[1])), ((1, 14), (0, 0)), "{name}");
    }
}

/// At 64 positions, then 128, attention has more parts and the recording another grid.
#[test]
fn a_step_behind_the_horizon_is_recorded_anew() {
    let Some(device) = software() else { return };
    let spec = DecoderSpec { context: 300, layers: 1, ..base() };
    for precision in [KvPrecision::F32, KvPrecision::F16, KvPrecision::Int8] {
        let decoders = both(&device, &spec, Kind::Trits, ActivationPrecision::Int8PerToken);
        let mut sequences = decoders.each_ref().map(|decoder| {
            let mut sequence = decoder.sequence(KvSpec::new(precision, 300)).expect("a sequence");
            let mut steps = [Step { sequence: &mut sequence, ids: &ids(58, 4) }];
            decoder.forward(&mut steps, Logits::Last).expect("logits");
            sequence
        });
        for (i, id) in ids(80, 5).into_iter().enumerate() {
            let [with, without] = [0, 1].map(|i| one(&decoders[i], &mut sequences[i], id));
            assert_eq!(with, without, "position {}", 58 + i);
        }
        // Positions 58 to 63, 64 to 127, 128 to 137; the first of each is launched.
        assert_eq!(counts(&decoders[0]), (3, 5 + 63 + 9));
        // Truncate to before a boundary, and continue.
        for len in [100, 20, 0] {
            for i in [0, 1] {
                sequences[i].truncate(len).expect("still there");
            }
            for id in ids(4, len as u64) {
                let [with, without] = [0, 1].map(|i| one(&decoders[i], &mut sequences[i], id));
                assert_eq!(with, without, "after {len}");
            }
        }
        // From position 20 on the horizon is that of position 0.
        assert_eq!(counts(&decoders[0]), (5, 77 + 3 + 3 + 4));
    }
}

#[test]
fn a_window_that_rolls_is_one_recording() {
    let Some(device) = software() else { return };
    // The RoPE table covers 64 positions, and grows while the sequence rolls.
    for (spec, kv) in [
        (base(), KvSpec::rolling(KvPrecision::F32, 9, 4)),
        (DecoderSpec { window: Some(7), ..base() }, KvSpec::rolling(KvPrecision::F32, 30, 1)),
    ] {
        let decoders = both(&device, &spec, Kind::Trits, ActivationPrecision::F32);
        let mut sequences = decoders.each_ref().map(|decoder| decoder.sequence(kv).expect("a sequence"));
        for (i, id) in ids(140, 6).into_iter().enumerate() {
            let [with, without] = [0, 1].map(|i| one(&decoders[i], &mut sequences[i], id));
            assert_eq!(with, without, "position {i}");
        }
        let (captures, replays) = counts(&decoders[0]);
        // At 64 and 128 the table grows, which cannot be recorded: that step is launched, and the next one recorded.
        assert_eq!((captures, replays), (3, 140 - 1 - 2));
    }
}

#[test]
fn sequences_have_recordings_of_their_own_and_give_them_back() {
    let Some(device) = software() else { return };
    let decoders = both(&device, &base(), Kind::Mixed, ActivationPrecision::F32);
    let in_use = || decoders[0].backend().device_use().expect("a device").in_use;
    let before = in_use();
    let kvs = [KvSpec::new(KvPrecision::F32, 40), KvSpec::new(KvPrecision::F16, 30)];
    let mut sequences =
        decoders.each_ref().map(|decoder| kvs.map(|kv| decoder.sequence(kv).expect("a sequence")));
    for (i, id) in ids(24, 7).into_iter().enumerate() {
        let which = usize::from(i % 3 == 0);
        let [with, without] = [0, 1].map(|d| one(&decoders[d], &mut sequences[d][which], id));
        assert_eq!(with, without, "step {i}");
        // An interleaved batch of both is launched, and invalidates neither recording.
        if i == 12 {
            let [with, without] = [0, 1].map(|d| {
                let [a, b] = &mut sequences[d];
                let mut steps = [Step { sequence: a, ids: &[1] }, Step { sequence: b, ids: &[2] }];
                decoders[d].forward(&mut steps, Logits::Last).expect("logits")
            });
            assert_eq!(with, without);
        }
    }
    assert_eq!(counts(&decoders[0]), (2, 22));
    assert!(in_use() > before);
    drop(sequences);
    // Each model keeps the positions of its last launched step.
    assert!(in_use() <= before + 2 * 8, "{} and {before} bytes", in_use());
}

#[test]
fn a_recorded_token_is_one_read_back_of_what_is_asked_for() {
    let Some(device) = software() else { return };
    let decoders = both(&device, &base(), Kind::Trits, ActivationPrecision::F32);
    let kv = KvSpec::new(KvPrecision::F32, 60);
    let mut sequences = decoders.each_ref().map(|decoder| decoder.sequence(kv).expect("a sequence"));
    for (k, bytes) in [(1, 8), (40, 8 * 40), (113, 8 * 113), (114, 4 * 113)] {
        for (i, id) in ids(5, k as u64).into_iter().enumerate() {
            let used = || decoders[0].backend().device_use().expect("a device");
            let before = used();
            let [with, without] = [0, 1].map(|d| best(&decoders[d], &mut sequences[d], id, k));
            assert_eq!(with, without, "{k}");
            assert_eq!(matches!(with, StepLogits::Top(_)), k < 114);
            let after = used();
            assert_eq!(
                (after.read_backs, after.read_bytes),
                (before.read_backs + 1, before.read_bytes + bytes)
            );
            // The id and the position.
            assert_eq!(after.uploads, before.uploads + 2, "{k}, step {i}");
            assert_eq!(after.replays - before.replays, u64::from(i > 0));
            assert_eq!(after.captures - before.captures, u64::from(i == 1));
        }
    }
}

/// With NaN in a row there is no top-k: all logits are returned, as without a recording.
#[test]
fn logits_that_are_not_usable_come_as_a_whole() {
    struct Broken<'a>(Random<'a>);
    impl DecoderWeights for Broken<'_> {
        fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
            self.0.matrix(name)
        }

        fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError> {
            let values = self.0.vector(name)?;
            Ok(if name == WeightName::FinalNorm { vec![f32::NAN; values.len()] } else { values })
        }
    }
    let Some(device) = software() else { return };
    let spec = base();
    let backend = CubeBackend::new(device, ActivationPrecision::F32).with_graphs(true);
    let weights = &mut Broken(Random::new(&spec, Kind::Trits));
    let decoder = Decoder::new(backend, spec.clone(), weights).expect("it loads");
    let mut sequence = decoder.sequence(KvSpec::new(KvPrecision::F32, 9)).expect("a sequence");
    for id in 0..4 {
        let StepLogits::All(logits) = best(&decoder, &mut sequence, id, 3) else { panic!("nothing is best") };
        assert!(logits.len() == 113 && logits.iter().all(|v| v.is_nan()));
    }
    assert_eq!(counts(&decoder), (1, 3));
}

/// A recording is valid for the weights it was made with.
#[test]
fn a_replaced_weight_is_recorded_anew() {
    let Some(device) = software() else { return };
    let spec = base();
    let mut decoders = both(&device, &spec, Kind::F32, ActivationPrecision::F32);
    let kv = KvSpec::new(KvPrecision::F32, 40);
    let mut sequences = decoders.each_ref().map(|decoder| decoder.sequence(kv).expect("a sequence"));
    let mut last = Vec::new();
    for round in 0..3 {
        for id in [1, 2, 3] {
            let [with, without] = [0, 1].map(|d| one(&decoders[d], &mut sequences[d], id));
            assert_eq!(with, without, "round {round}");
            last = with;
        }
        for (decoder, sequence) in decoders.iter_mut().zip(&mut sequences) {
            let (rows, cols) = (spec.hidden, spec.intermediate);
            let values = Rng::new(round + 20).normals(rows * cols);
            let matrix = DenseTensor::new(vec![rows, cols], DenseData::F32(values)).expect("a matrix");
            decoder.replace(WeightName::Down(1), Tensor::Dense(matrix)).expect("its shape");
            sequence.truncate(0).expect("everything");
        }
    }
    assert_eq!(counts(&decoders[0]), (3, 6));
    let [with, without] = [0, 1].map(|d| [1, 2, 3].map(|id| one(&decoders[d], &mut sequences[d], id)));
    assert_eq!(with, without);
    assert_ne!(with[2], last, "the weight matters");
    // A sequence continued with another model of the same shape and other weights.
    let other = both(&device, &spec, Kind::Trits, ActivationPrecision::F32);
    for id in [4, 5, 6] {
        let [with, without] = [0, 1].map(|d| one(&other[d], &mut sequences[d], id));
        assert_eq!(with, without);
    }
}

/// A recording refers to weights by address, so it stays valid after edits in place.
#[test]
fn weights_edited_in_place_keep_the_recording() {
    let Some(device) = software() else { return };
    let (spec, name) = (base(), WeightName::Key(1));
    let mut decoders = both(&device, &spec, Kind::Trits, ActivationPrecision::F32);
    let edits = edits::some(&spec, name, 300);
    let mut weights = edits::EditedWeights::new(&spec, Kind::Trits, name, &edits);
    let backend = CubeBackend::new(device.clone(), ActivationPrecision::F32);
    let want = Decoder::new(backend, spec.clone(), &mut weights).expect("it loads");
    let [before, after] = weights.seen.expect("a ternary weight");
    let kv = KvSpec::new(KvPrecision::F32, 40);
    let mut sequences = decoders.each_ref().map(|decoder| decoder.sequence(kv).expect("a sequence"));
    let mut rounds = Vec::new();
    for tensor in [&after, &before, &after] {
        for id in [1, 2, 3] {
            let [with, without] = [0, 1].map(|d| one(&decoders[d], &mut sequences[d], id));
            assert_eq!(with, without);
            rounds.push(with);
        }
        for (decoder, sequence) in decoders.iter_mut().zip(&mut sequences) {
            let places = edits
                .iter()
                .map(|e| Edit { trit: tensor.get(e.plane, e.row, e.col).expect("a place"), ..*e });
            let edit = decoder.edit(name, &places.collect::<Vec<_>>(), tensor).expect("an edit");
            assert_eq!(edit, MatrixEdit::InPlace);
            sequence.truncate(0).expect("everything");
        }
    }
    assert_eq!(counts(&decoders[0]), (1, 2 + 3 + 3));
    let mut fresh = want.sequence(kv).expect("a sequence");
    let want = [1, 2, 3].map(|id| one(&want, &mut fresh, id));
    assert_eq!(rounds[3..6], want);
    assert_eq!(rounds[..3], rounds[6..]);
    assert_ne!(rounds[..3], rounds[3..6], "the weight matters");
}

#[test]
fn tokens_and_lengths_are_refused_as_without_a_recording() {
    let Some(device) = software() else { return };
    let decoders = both(&device, &base(), Kind::Trits, ActivationPrecision::F32);
    let mut sequences =
        decoders.each_ref().map(|d| d.sequence(KvSpec::new(KvPrecision::F32, 6)).expect("a sequence"));
    for (decoder, sequence) in decoders.iter().zip(&mut sequences) {
        for id in 0..5 {
            one(decoder, sequence, id);
        }
        let refused = decoder.forward(&mut [Step { sequence, ids: &[113] }], Logits::Last);
        assert!(matches!(refused, Err(NnError::Token { id: 113, vocab: 113 })));
        one(decoder, sequence, 5);
        let refused = decoder.forward(&mut [Step { sequence, ids: &[1] }], Logits::Last);
        assert!(matches!(refused, Err(NnError::ContextFull { .. })));
    }
    assert_eq!(counts(&decoders[0]), (1, 5));
}

/// Steps are recorded unless disabled or unsupported.
#[test]
fn steps_are_recorded_where_the_device_can() {
    assert_eq!(Capabilities::smallest().graphs, Graphs::None);
    let Some(device) = software() else { return };
    assert_eq!(device.capabilities().graphs, Graphs::Software);
    let backend = CubeBackend::new(device, ActivationPrecision::F32);
    assert!(backend.graphs());
    assert!(!backend.with_graphs(false).graphs());
}

/// Threads share the device, whether they record or launch.
#[test]
fn threads_share_a_model() {
    let Some(device) = software() else { return };
    let [with, without] = both(&device, &base(), Kind::Trits, ActivationPrecision::F32);
    let kv = KvSpec::new(KvPrecision::F32, 40);
    let text = |decoder: &Decoder<CubeBackend>, seed| {
        let mut sequence = decoder.sequence(kv).expect("a sequence");
        let one = |id| one(decoder, &mut sequence, id);
        ids(12, seed).into_iter().flat_map(one).collect::<Vec<f32>>()
    };
    let want: Vec<_> = (0..3).map(|seed| text(&without, seed)).collect();
    let got: Vec<_> = std::thread::scope(|scope| {
        let with = &with;
        let threads: Vec<_> = (0..3).map(|seed| scope.spawn(move || text(with, seed))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(got, want);
    assert_eq!(counts(&with), (3, 3 * 11));
}

/// Sequences made together share recordings in any combination.
#[test]
fn a_batch_is_recorded_once_per_number_of_sequences() {
    let Some(device) = software() else { return };
    for (kind, precision) in [
        (Kind::Trits, ActivationPrecision::Int8PerToken),
        (Kind::F32, ActivationPrecision::F32),
        (Kind::Mixed, ActivationPrecision::F32),
    ] {
        let decoders = both(&device, &base(), kind, precision);
        let kv = KvSpec::new(KvPrecision::F16, 60);
        let before = decoders[0].backend().device_use().expect("a device").in_use;
        let mut sequences = decoders.each_ref().map(|decoder| decoder.sequences(kv, 5).expect("five"));
        let mut step = |of: &[usize], k: Option<usize>, seed: u64| {
            let ids = ids(of.len(), seed);
            let [with, without] = [0, 1].map(|d| {
                let decoder = &decoders[d];
                let mut all: Vec<_> = sequences[d].iter_mut().map(Some).collect();
                let mut steps: Vec<_> = of
                    .iter()
                    .zip(&ids)
                    .map(|(&i, id)| Step {
                        sequence: all[i].take().expect("once"),
                        ids: std::slice::from_ref(id),
                    })
                    .collect();
                match k {
                    Some(k) => decoder.forward_top(&mut steps, k).expect("the best"),
                    None => {
                        let rows = decoder.forward(&mut steps, Logits::Last).expect("logits");
                        rows.into_iter().map(StepLogits::All).collect()
                    }
                }
            });
            assert_eq!(with.len(), of.len());
            assert_eq!(with, without, "{kind:?} {of:?}");
            counts(&decoders[0])
        };
        // The second step is recorded; it serves any four sequences, in any order, at positions below 64.
        assert_eq!(step(&[0, 1, 2, 3], Some(3), 1), (0, 0));
        assert_eq!(step(&[0, 1, 2, 3], Some(3), 2), (1, 1));
        assert_eq!(step(&[4, 2, 0, 1], Some(3), 3), (1, 2));
        // Requesting all logits needs another recording, as do five or two sequences; a single one has its own.
        for (of, k) in [(vec![0, 1, 2, 3, 4], None), (vec![1, 4], Some(2)), (vec![3], None)] {
            for round in 0..3 {
                step(&of, k, 10 + round);
            }
        }
        assert_eq!(step(&[3, 2, 1, 0], Some(3), 4), (4, 9), "four are still recorded");
        drop(sequences);
        // Each model keeps the inputs of its last launched step.
        let in_use = decoders[0].backend().device_use().expect("a device").in_use;
        assert!(in_use <= before + 4096, "{in_use} and {before} bytes");
    }
}
