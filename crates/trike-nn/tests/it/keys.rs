//! Decoding with selected keys on the host.

use crate::common::Random;
use trike_cpu::Cpu;
use trike_nn::{
    ActivationPrecision, CpuBackend, Decoder, DecoderSequence, DecoderSpec, KeySelector, KvPrecision, KvSpec,
    Logits, PromptKeys, Step,
};
use trike_testkit::Rng;

const VOCAB: usize = 50;

/// Layers with full attention, and two with key selection.
fn decoder(threads: usize) -> Decoder<CpuBackend> {
    let layers = KeySelector::EXACT_LAYERS + 2;
    let spec = DecoderSpec {
        intermediate: 40,
        kv_heads: 2,
        context: 700,
        tied_head: true,
        ..DecoderSpec::llama(32, layers, 4, VOCAB)
    };
    let backend = CpuBackend::new(Cpu::new(threads).expect("a few threads"), ActivationPrecision::F32);
    Decoder::new(backend, spec.clone(), &mut Random::new(&spec, 5)).expect("a model")
}

fn ids(n: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| rng.below(VOCAB) as u32).collect()
}

/// Few enough keys that selection begins at 24 positions.
fn keys() -> KeySelector {
    KeySelector::signs(4).expect("at least one")
}

/// Runs tokens in one step, and returns the logits of the last one.
fn run(decoder: &Decoder<CpuBackend>, sequence: &mut DecoderSequence<CpuBackend>, ids: &[u32]) -> Vec<f32> {
    decoder.forward(&mut [Step { sequence, ids }], Logits::Last).expect("it runs").remove(0)
}

/// Prompts, and steps at few positions, are exact; later steps of one token are not.
#[test]
fn only_long_steps_of_one_token_select_keys() {
    let decoder = decoder(1);
    let ids = ids(100, 1);
    for precision in KvPrecision::ALL {
        let kv = KvSpec::new(precision, 100);
        let mut sequences = [kv, kv.with_keys(keys())].map(|kv| decoder.sequence(kv).expect("a sequence"));
        let mut both = |ids: &[u32]| sequences.each_mut().map(|sequence| run(&decoder, sequence, ids));
        for id in &ids[..23] {
            let [exact, selected] = both(&[*id]);
            assert_eq!(exact, selected, "{precision:?}");
        }
        let [exact, selected] = both(&ids[23..60]);
        assert_eq!(exact, selected, "{precision:?}");
        let [exact, selected] = both(&ids[60..61]);
        assert_ne!(exact, selected, "{precision:?}");
        assert!(exact.iter().zip(&selected).all(|(a, b)| a.is_finite() && b.is_finite()));
    }
    let all = KvSpec::new(KvPrecision::F32, 100).with_keys(KeySelector::signs(60).expect("at least one"));
    let mut sequences =
        [KvSpec::new(KvPrecision::F32, 100), all].map(|kv| decoder.sequence(kv).expect("a sequence"));
    for id in ids {
        let [exact, selected] = sequences.each_mut().map(|sequence| run(&decoder, sequence, &[id]));
        assert_eq!(exact, selected, "never enough positions");
    }
}

/// With and without a truncation, from a saved sequence, for any number of threads.
#[test]
fn output_is_independent_of_what_the_cache_had_before() {
    let (text, other) = (ids(90, 2), ids(40, 3));
    for precision in KvPrecision::ALL {
        let kv = KvSpec::new(precision, 90).with_keys(keys());
        let mut first: Option<Vec<f32>> = None;
        for threads in [1, 3] {
            let decoder = decoder(threads);
            let mut sequence = decoder.sequence(kv).expect("a sequence");
            run(&decoder, &mut sequence, &text[..30]);
            run(&decoder, &mut sequence, &text[30..89]);
            let layers = sequence.save(decoder.backend()).expect("the host can");
            let want = run(&decoder, &mut sequence, &text[89..]);
            let mut back = decoder.sequence(kv).expect("a sequence");
            run(&decoder, &mut back, &text[..30]);
            other.iter().for_each(|id| drop(run(&decoder, &mut back, &[*id])));
            back.truncate(30).expect("no window");
            run(&decoder, &mut back, &text[30..89]);
            assert_eq!(run(&decoder, &mut back, &text[89..]), want, "{precision:?}");
            let mut restored = decoder.sequence(KvSpec { capacity: 120, ..kv }).expect("a sequence");
            let layers: Vec<&[u8]> = layers.iter().map(Vec::as_slice).collect();
            restored.restore(decoder.backend(), 89, &layers).expect("the same shape");
            assert_eq!(run(&decoder, &mut restored, &text[89..]), want, "{precision:?}");
            assert_eq!(first.get_or_insert_with(|| want.clone()), &want, "{precision:?}, {threads} threads");
        }
    }
}

/// A batch of sequences of different lengths, with and without selection and windows, has the output of each alone.
#[test]
fn output_is_independent_of_the_batch() {
    let kv = KvSpec::new(KvPrecision::Int8Int4, 100).with_keys(keys());
    let rolling = KvSpec::rolling(KvPrecision::Int4, 30, 50).with_keys(keys());
    let specs = [(kv, 40), (KvSpec::new(KvPrecision::F16, 100), 70), (rolling, 79), (kv, 5), (rolling, 31)];
    for threads in [1, 3] {
        let decoder = decoder(threads);
        let make = || {
            let mut sequences = Vec::new();
            for (i, (spec, len)) in specs.iter().enumerate() {
                let mut sequence = decoder.sequence(*spec).expect("a sequence");
                ids(*len, i as u64).chunks(40).for_each(|ids| drop(run(&decoder, &mut sequence, ids)));
                sequences.push(sequence);
            }
            sequences
        };
        let (mut together, mut alone) = (make(), make());
        for id in 0..30 {
            let ids = [id];
            let mut steps: Vec<_> =
                together.iter_mut().map(|sequence| Step { sequence, ids: &ids }).collect();
            let all = decoder.forward(&mut steps, Logits::Last).expect("it runs");
            for (sequence, all) in alone.iter_mut().zip(all) {
                assert_eq!(run(&decoder, sequence, &ids), all, "{threads} threads, token {id}");
            }
        }
    }
}

/// Long steps of several tokens skip blocks of keys; single tokens, and prompts of few blocks, do not.
#[test]
fn only_long_prompts_attend_to_blocks_of_keys() {
    let prompt_keys = PromptKeys::sampled(0.3).expect("between 0 and 1");
    let ids = ids(600, 4);
    for precision in KvPrecision::ALL {
        let kv = KvSpec::new(precision, 600);
        let mut first: Option<Vec<f32>> = None;
        for threads in [1, 3] {
            let decoder = decoder(threads);
            let mut sequences =
                [kv, kv.with_prompt_keys(prompt_keys)].map(|kv| decoder.sequence(kv).expect("a sequence"));
            let mut both = |ids: &[u32]| sequences.each_mut().map(|sequence| run(&decoder, sequence, ids));
            let [exact, sampled] = both(&ids[..256]);
            assert_eq!(exact, sampled, "four blocks, {precision:?}");
            let [exact, sampled] = both(&ids[256..257]);
            assert_eq!(exact, sampled, "a token, {precision:?}");
            let [exact, sampled] = both(&ids[257..600]);
            assert_ne!(exact, sampled, "{precision:?}");
            assert!(sampled.iter().all(|v| v.is_finite()));
            assert_eq!(first.get_or_insert_with(|| sampled.clone()), &sampled, "{threads} threads");
        }
    }
}
