//! Sequences in pages: the logits of caches that hold everything in one piece; pages that sequences share.

use crate::common::{decoder, ids, run};
use trike_nn::{Eviction, KV_PAGE, KeySelector, KvPrecision, KvSpec, NnError, PromptKeys};

const CAPACITY: usize = 400;

#[test]
fn pages_have_the_logits_of_one_piece() {
    let (decoder, ids) = (decoder(2, 2), ids(300, 1));
    for precision in KvPrecision::ALL {
        let kv = KvSpec::new(precision, CAPACITY);
        let mut ring = decoder.sequence(kv).expect("a sequence");
        let mut paged = decoder.paged_sequence(kv).expect("a sequence");
        for part in [&ids[..130], &ids[130..131], &ids[131..190], &ids[190..191], &ids[191..]] {
            assert_eq!(run(&decoder, &mut paged, part), run(&decoder, &mut ring, part), "{precision:?}");
        }
        // Positions that were removed leave nothing behind.
        for sequence in [&mut ring, &mut paged] {
            sequence.truncate(70).expect("a part");
        }
        assert_eq!(run(&decoder, &mut paged, &ids[..1]), run(&decoder, &mut ring, &ids[..1]));
    }
}

#[test]
fn sequences_that_share_pages_go_on_as_if_alone() {
    let (decoder, ids, kv) = (decoder(2, 1), ids(200, 2), KvSpec::new(KvPrecision::F16, CAPACITY));
    for shared in [2 * KV_PAGE, 2 * KV_PAGE + 17] {
        let mut first = decoder.paged_sequence(kv).expect("a sequence");
        run(&decoder, &mut first, &ids[..150]);
        let pages = first.pages(decoder.backend(), shared).expect("pages");
        assert_eq!(pages.len(), 3 - usize::from(shared == 2 * KV_PAGE));
        let mut second = decoder.paged_sequence(kv).expect("a sequence");
        second.adopt(decoder.backend(), &pages, shared).expect("pages of this decoder");
        assert_eq!(second.len(), shared);
        // Both write to the last page of the shared ones, which belongs to each alone from then on.
        let mut alone = decoder.paged_sequence(kv).expect("a sequence");
        run(&decoder, &mut alone, &ids[..shared]);
        let other: Vec<u32> = ids.iter().rev().copied().take(40).collect();
        let continued = run(&decoder, &mut second, &other);
        assert_eq!(continued, run(&decoder, &mut alone, &other), "{shared} shared");
        let mut whole = decoder.paged_sequence(kv).expect("a sequence");
        run(&decoder, &mut whole, &ids[..150]);
        assert_eq!(run(&decoder, &mut first, &ids[150..]), run(&decoder, &mut whole, &ids[150..]));
        // The first sequence's pages outlive it.
        drop(first);
        let mut third = decoder.paged_sequence(kv).expect("a sequence");
        third.adopt(decoder.backend(), &pages, shared).expect("pages of this decoder");
        assert_eq!(run(&decoder, &mut third, &other), continued);
    }
}

#[test]
fn what_pages_cannot_do_is_refused() {
    let (decoder, kv) = (decoder(2, 1), KvSpec::new(KvPrecision::F16, CAPACITY));
    let refused = |kv: KvSpec| match decoder.paged_sequence(kv) {
        Err(NnError::Spec { field, .. }) => field,
        other => panic!("{:?}", other.map(|sequence| sequence.len())),
    };
    assert_eq!(refused(KvSpec::rolling(KvPrecision::F16, 10, 5)), "window");
    assert_eq!(refused(kv.with_eviction(Eviction::Oldest)), "eviction");
    assert_eq!(refused(kv.with_keys(KeySelector::signs(30).expect("a count"))), "keys");
    assert_eq!(refused(kv.with_prompt_keys(PromptKeys::sampled(0.5).expect("a share"))), "keys");

    let mut sequence = decoder.paged_sequence(kv).expect("a sequence");
    run(&decoder, &mut sequence, &ids(100, 3));
    let backend = decoder.backend();
    let pages = sequence.pages(backend, 100).expect("pages");
    assert!(matches!(sequence.pages(backend, 101), Err(NnError::Truncate { requested: 101, .. })));
    assert!(matches!(sequence.save(backend), Err(NnError::Unsupported { .. })));
    assert!(matches!(sequence.adopt(backend, &pages, 100), Err(NnError::Spec { field: "length", .. })));
    let adopt = |kv: KvSpec, len: usize| {
        decoder.paged_sequence(kv).expect("a sequence").adopt(backend, &pages, len).expect_err("refused")
    };
    assert!(matches!(adopt(kv, 64), NnError::Spec { field: "pages", .. }));
    assert!(matches!(
        adopt(kv.with_capacity(90), 100),
        NnError::ContextFull { requested: 100, capacity: 90 }
    ));
    assert!(matches!(adopt(KvSpec::new(KvPrecision::Int8, CAPACITY), 100), NnError::Unsupported { .. }));
    let mut ring = decoder.sequence(kv).expect("a sequence");
    assert!(matches!(ring.adopt(backend, &pages, 100), Err(NnError::Unsupported { .. })));
    run(&decoder, &mut ring, &[1]);
    assert!(matches!(ring.pages(backend, 1), Err(NnError::Unsupported { .. })));
}
