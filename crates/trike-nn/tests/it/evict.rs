//! Caches with eviction, compared with caches that hold everything.

use crate::common::{Random, VOCAB, decoder, ids, run, spec};
use trike_cpu::Cpu;
use trike_nn::{
    ActivationPrecision, CpuBackend, Decoder, DecoderSequence, DecoderSpec, Eviction, KeySelector,
    KvPrecision, KvSpec, Logits, NnError, Step,
};

const CAPACITY: usize = 64;
const EVICTIONS: [Eviction; 2] = [Eviction::Oldest, Eviction::Unattended];

#[test]
fn nothing_changes_before_a_cache_is_full() {
    let ids = ids(CAPACITY + 1, 1);
    for precision in KvPrecision::ALL {
        for eviction in EVICTIONS {
            let decoder = decoder(3, 2);
            let whole = KvSpec::new(precision, CAPACITY + 1);
            let small = KvSpec::new(precision, CAPACITY).with_eviction(eviction);
            let mut sequences = [whole, small].map(|kv| decoder.sequence(kv).expect("a sequence"));
            let mut both = |ids: &[u32]| sequences.each_mut().map(|sequence| run(&decoder, sequence, ids));
            let [exact, same] = both(&ids[..50]);
            assert_eq!(exact, same, "{precision:?}");
            for id in &ids[50..CAPACITY] {
                let [exact, same] = both(&[*id]);
                assert_eq!(exact, same, "{precision:?}");
            }
            let [exact, other] = both(&ids[CAPACITY..]);
            assert!(other.iter().all(|v| v.is_finite()));
            assert_ne!(exact, other, "{precision:?}, {eviction:?}");
            assert_eq!(sequences.each_ref().map(DecoderSequence::evicted), [0, CAPACITY / 4]);
        }
    }
}

/// Texts that differ in one token have different logits while it is in the cache, and equal ones after its eviction. With a single
/// layer no other state depends on it.
#[test]
fn what_is_evicted_has_no_part_in_attention() {
    // A position after the attention sinks, which are never evicted.
    let text = ids(120, 2);
    let mut other = text.clone();
    other[10] = (text[10] + 1) % VOCAB as u32;
    for precision in KvPrecision::ALL {
        let decoder = decoder(1, 1);
        let kv = KvSpec::new(precision, CAPACITY).with_eviction(Eviction::Oldest);
        let mut sequences = [kv; 2].map(|kv| decoder.sequence(kv).expect("a sequence"));
        for at in 0..text.len() {
            let [ours, others] = &mut sequences;
            let logits = run(&decoder, ours, &text[at..=at]);
            let differ = logits != run(&decoder, others, &other[at..=at]);
            assert!(logits.iter().all(|v| v.is_finite()));
            assert_eq!(differ, (10..CAPACITY).contains(&at), "{precision:?}, {at}");
        }
    }
}

/// For any number of threads, alone and in a batch, and after truncation.
#[test]
fn output_is_independent_of_threads_batches_and_tokens_taken_back() {
    let (text, other) = (ids(150, 3), ids(20, 4));
    for eviction in EVICTIONS {
        for precision in [KvPrecision::F16, KvPrecision::Int8Int4] {
            let kv = KvSpec::new(precision, CAPACITY).with_eviction(eviction);
            let kv = kv.with_keys(KeySelector::signs(4).expect("at least one"));
            let mut first: Option<Vec<f32>> = None;
            for threads in [1, 3] {
                let decoder = decoder(4, threads);
                let mut sequence = decoder.sequence(kv).expect("a sequence");
                let mut beside = decoder.sequence(kv).expect("a sequence");
                run(&decoder, &mut beside, &other);
                text[..104].chunks(16).for_each(|ids| drop(run(&decoder, &mut sequence, ids)));
                let evicted = sequence.evicted();
                assert!(evicted > 0);
                // Three tokens and back, without an eviction in between.
                run(&decoder, &mut sequence, &other[..3]);
                assert_eq!(sequence.evicted(), evicted);
                sequence.truncate(104).expect("nothing was evicted since");
                let mut last = Vec::new();
                for id in &text[104..] {
                    let ids = [*id];
                    let mut steps = [
                        Step { sequence: &mut beside, ids: &ids },
                        Step { sequence: &mut sequence, ids: &ids },
                    ];
                    last = decoder.forward(&mut steps, Logits::Last).expect("it runs").remove(1);
                }
                assert_eq!(first.get_or_insert_with(|| last.clone()), &last, "{threads} threads");
            }
        }
    }
}

#[test]
fn limits_are_errors() {
    let decoder = decoder(1, 1);
    let refused = |kv: KvSpec| matches!(decoder.sequence(kv), Err(NnError::Spec { .. }));
    let kv = KvSpec::new(KvPrecision::F32, CAPACITY).with_eviction(Eviction::Oldest);
    assert!(refused(kv.with_capacity(Eviction::LEAST_CAPACITY - 1)));
    assert!(refused(KvSpec { window: Some(10), ..kv }));
    let windowed = DecoderSpec { window: Some(100), ..spec(1) };
    let backend = CpuBackend::new(Cpu::new(1).expect("one thread"), ActivationPrecision::F32);
    let rolling = Decoder::new(backend, windowed.clone(), &mut Random::new(&windowed, 8)).expect("a model");
    assert!(matches!(rolling.sequence(kv), Err(NnError::Spec { field: "window", .. })));

    let mut sequence = decoder.sequence(kv).expect("a sequence");
    let text = ids(CAPACITY, 5);
    run(&decoder, &mut sequence, &text);
    assert!(sequence.save(decoder.backend()).is_ok());
    // A step of a full cache has at most a quarter as many tokens.
    assert_eq!(sequence.max_step(), CAPACITY / 4);
    let ids = &text[..CAPACITY / 4 + 1];
    let long = decoder.forward(&mut [Step { sequence: &mut sequence, ids }], Logits::Last);
    let limit = CAPACITY / 4;
    assert!(
        matches!(long, Err(NnError::StepTooLong { requested, limit: most }) if requested == limit + 1 && most == limit)
    );
    run(&decoder, &mut sequence, &text[..2]);
    assert_eq!((sequence.len(), sequence.evicted()), (CAPACITY + 2, CAPACITY / 4));
    assert!(sequence.save(decoder.backend()).is_err());
    assert!(sequence.truncate(CAPACITY - 1).is_err() && sequence.truncate(CAPACITY).is_ok());
    run(&decoder, &mut sequence, &text[..2]);
}
