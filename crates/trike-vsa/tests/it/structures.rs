//! Memories, structures and encodings in every algebra, and their errors.

use trike_popcount::{Cpu, TritOps};
use trike_testkit::{Rng, assert_near};
use trike_trit::{Trit, Tryte3};
use trike_vsa::{
    Algebra, Automaton, Bipolar, Bundle, CapacityPolicy, CentroidClassifier, DistributedMemory, FullAction,
    Graph, Hierarchy, ItemMemory, Multiset, PackedTritVec, ROLES, RandomProjection, Record, ScalarEncoder,
    Sequence, SparseVec, Ternary, TextEncoder, Tree, VsaError, Z3, bind, bind_sequence, bundle_balanced,
    bundle_many, bundle_weighted, factorize, level_set, ngrams, permute, similarity,
};

fn set<A: Algebra>(dim: usize, count: usize, seed: u64) -> Vec<PackedTritVec<A>> {
    PackedTritVec::random_set(dim, count, seed).unwrap()
}

/// Runs a test in every algebra.
macro_rules! in_every_algebra {
    ($($test:ident => $body:ident),* $(,)?) => {
        $(#[test]
        fn $test() {
            $body::<Z3>();
            $body::<Bipolar>();
            $body::<Ternary>();
        })*
    };
}

in_every_algebra! {
    memories_find_what_a_loop_finds => memories,
    cleanup_settles => cleanup,
    structures_give_back_what_was_put_in => structures,
    hierarchies_hold_what_their_policy_says => hierarchies,
    distributed_memories_remove_noise => distributed,
    what_does_not_fit_is_refused => refusals,
    encodings_keep_distances => encodings,
}

fn memories<A: Algebra>() {
    let mut rng = Rng::new(1);
    for (dim, count) in [(1, 3), (64, 1), (100, 37), (1000, 500)] {
        let stored = set::<A>(dim, count, 2);
        let mut memory = ItemMemory::of(&stored).unwrap();
        let queries: Vec<_> = (0..5).map(|i| PackedTritVec::<A>::random(dim, 100 + i).unwrap()).collect();
        let check = |memory: &ItemMemory<A>, stored: &[PackedTritVec<A>]| {
            for k in [1, 3, count + 5] {
                let hits = memory.top_k_batch(&queries, k).unwrap();
                for (query, hits) in queries.iter().zip(&hits) {
                    let score = |v: &PackedTritVec<A>| {
                        memory.cpu().trit_score(A::SCORE, v.view(), query.view()).unwrap()
                    };
                    let mut order: Vec<usize> = (0..stored.len()).collect();
                    order.sort_by_key(|&i| (-score(&stored[i]), i));
                    order.truncate(k);
                    assert_eq!(hits.iter().map(|hit| hit.index).collect::<Vec<_>>(), order);
                    for hit in hits {
                        assert_eq!(hit.score, i64::from(score(&stored[hit.index])));
                        let expected = similarity(query, &stored[hit.index]).unwrap();
                        assert_near!(hit.similarity, expected, abs = 1e-12);
                    }
                    assert_eq!(memory.top_k(query, k).unwrap(), *hits);
                    // A bundle of one vector is that vector.
                    let counted = memory.top_k_in_bundle(&Bundle::of([query]).unwrap(), k).unwrap();
                    assert_eq!(
                        counted.iter().map(|h| (h.index, h.score)).collect::<Vec<_>>(),
                        hits.iter().map(|h| (h.index, h.score)).collect::<Vec<_>>()
                    );
                }
            }
        };
        check(&memory, &stored);
        let mut stored = stored;
        // Threads change nothing.
        memory = memory.on(Cpu::new(2).unwrap());
        memory.reserve(2 * count).unwrap();
        check(&memory, &stored);
        // Edits in place.
        let (index, dimension) = (rng.below(count), rng.below(dim));
        memory.set(index, dimension, Trit::P).unwrap();
        stored[index].set(dimension, Trit::P).unwrap();
        memory.replace(rng.below(1), &queries[0]).unwrap();
        stored[0] = queries[0].clone();
        check(&memory, &stored);
        if count > 1 {
            memory.swap_remove(0).unwrap();
            stored.swap_remove(0);
            check(&memory, &stored);
        }
        let back: ItemMemory<A> = serde_json::from_str(&serde_json::to_string(&memory).unwrap()).unwrap();
        assert_eq!(back, memory);
    }
}

fn cleanup<A: Algebra>() {
    let stored = set::<A>(2000, 30, 3);
    let memory = ItemMemory::of(&stored).unwrap();
    let mixed = bundle_weighted([(&stored[4], 2), (&stored[9], 1), (&stored[11], 1)]).unwrap();
    assert_eq!(memory.cleanup(&mixed, 0.3).unwrap().as_ref(), Some(&stored[4]));
    let stranger = PackedTritVec::random(2000, 77).unwrap();
    assert_eq!(memory.cleanup(&stranger, 0.3).unwrap(), None);
    let settled = memory.cleanup_iterative(&mixed, 0.5, 20).unwrap();
    assert!(settled.converged && settled.steps >= 1, "{settled:?}");
    assert_eq!(settled.vector, stored[4]);
    let unsettled = memory.cleanup_iterative(&mixed, 0.5, 1).unwrap();
    assert_eq!((unsettled.converged, unsettled.steps), (false, 1));
    // No stored vector is similar enough: the vector is unchanged.
    let stayed = memory.cleanup_iterative(&stranger, 0.5, 20).unwrap();
    assert!(stayed.converged && stayed.steps == 0 && stayed.vector == stranger);
}

fn structures<A: Algebra>() {
    let dim = 4096;
    let words = set::<A>(dim, 40, 4);
    let memory = ItemMemory::of(&words).unwrap();
    let keys: Vec<_> = (0..20).map(|i| PackedTritVec::<A>::random_dense_or_uniform(dim, 500 + i)).collect();

    let mut record = Record::new(dim).unwrap();
    for (i, key) in keys.iter().enumerate() {
        record.insert(key, &words[2 * i]).unwrap();
    }
    assert!((0..20).all(|i| record.get(&keys[i], &memory).unwrap().index == 2 * i));
    record.replace(&keys[7], &words[14], &words[39]).unwrap();
    record.remove(&keys[8], &words[16]).unwrap();
    assert_eq!((record.get(&keys[7], &memory).unwrap().index, record.len()), (39, 19));
    assert!(record.get(&keys[8], &memory).unwrap().similarity < 0.6);
    let vector = record.to_vector().unwrap();
    let found = |i: usize| memory.nearest(&Record::get_from(&vector, &keys[i]).unwrap()).unwrap().index;
    assert_eq!((found(0), found(7), found(19)), (0, 39, 38));

    let mut letters = Sequence::new(dim).unwrap();
    let order = [3, 1, 4, 1, 5, 9, 2, 6];
    order.iter().for_each(|&i| letters.push(&words[i]).unwrap());
    let read = |letters: &Sequence<A>| -> Vec<usize> {
        (0..letters.len()).map(|place| letters.get(place, &memory).unwrap().index).collect()
    };
    assert_eq!(read(&letters), order);
    letters.replace(2, &words[4], &words[30]).unwrap();
    letters.pop(&words[6]).unwrap();
    assert_eq!(read(&letters), [3, 1, 30, 1, 5, 9, 2]);

    let mut tree = Tree::new(dim, 5).unwrap();
    let paths: Vec<Vec<bool>> =
        (0..8).map(|i| (0..i / 2 + 1).map(|bit| (i >> bit) & 1 == 1).collect()).collect();
    for (path, word) in paths.iter().zip(&words) {
        tree.insert(path, word).unwrap();
    }
    let leaf = |tree: &Tree<A>, i: usize| tree.get(&paths[i], &memory).unwrap();
    assert!((0..8).filter(|&i| leaf(&tree, i).index == i).count() >= 8);
    tree.remove(&paths[6], &words[6]).unwrap();
    assert!(leaf(&tree, 6).index != 6);

    for directed in [false, true] {
        let mut graph = if directed { Graph::directed(dim) } else { Graph::undirected(dim) }.unwrap();
        let edges = [(0, 1), (1, 2), (2, 3), (3, 0), (5, 6), (5, 7)];
        edges.iter().for_each(|&(a, b)| graph.add_edge(&words[a], &words[b]).unwrap());
        let sorted = |hits: Vec<trike_vsa::Hit>| {
            let mut all: Vec<_> = hits.iter().map(|hit| hit.index).collect();
            all.sort_unstable();
            all
        };
        // A dense key preserves all of a value, a sparse key a fraction equal to its density.
        let threshold = if A::KIND == Ternary::KIND { 0.4 } else { 0.5 };
        let after =
            |graph: &Graph<A>, i: usize| sorted(graph.successors(&words[i], &memory, threshold).unwrap());
        let before = |i: usize| sorted(graph.predecessors(&words[i], &memory, threshold).unwrap());
        assert_eq!(after(&graph, 5), [6, 7]);
        assert_eq!(before(3), if directed { vec![2] } else { vec![0, 2] });
        assert_eq!(after(&graph, 3), if directed { vec![0] } else { vec![0, 2] });
        assert!(graph.has_edge(&words[1], &words[2]).unwrap() > 0.7);
        assert_eq!(graph.has_edge(&words[2], &words[1]).unwrap() > 0.7, !directed);
        graph.remove_edge(&words[5], &words[6]).unwrap();
        assert_eq!(after(&graph, 5), [7]);
    }

    // Remainders modulo three, processed digit by digit.
    let mut automaton = Automaton::new(dim).unwrap();
    let (states, digits) = (&words[..3], &words[10..20]);
    let remainders = ItemMemory::of(states).unwrap();
    for from in 0..3 {
        for digit in 0..10 {
            automaton.add(&digits[digit], &states[from], &states[(10 * from + digit) % 3]).unwrap();
        }
    }
    // Two sparse keys preserve 4/9 of a value, which is below the threshold of a transition.
    if A::KIND != Ternary::KIND {
        let mut state = 0;
        for digit in [2, 7, 1, 8, 2, 8] {
            state = automaton.next(&digits[digit], &states[state], &remainders).unwrap().unwrap().index;
        }
        assert_eq!(state, 271_828 % 3);
        assert_eq!(automaton.next(&words[30], &states[0], &remainders).unwrap(), None);
        automaton.remove(&digits[2], &states[0], &states[2]).unwrap();
        assert_eq!(automaton.next(&digits[2], &states[0], &remainders).unwrap(), None);
    }

    let mut basket = Multiset::new(dim).unwrap();
    basket.add(&words[0], 3).unwrap();
    basket.add(&words[1], 1).unwrap();
    basket.add(&words[0], 2).unwrap();
    basket.remove(&words[0], 1).unwrap();
    assert_eq!([0, 1, 2].map(|i| basket.count(&words[i]).unwrap()), [4, 1, 0]);

    let refs: Vec<_> = words[..6].iter().collect();
    let grams = ngrams(&refs, 3).unwrap();
    assert_eq!(grams.total(), 4);
    assert!(grams.similarity(&bind_sequence(refs[2..5].iter().copied()).unwrap()).unwrap() > 0.8);
    assert!(grams.similarity(&bind_sequence([refs[4], refs[3], refs[2]]).unwrap()).unwrap() < 0.2);
}

/// Keys that can be unbound exactly.
trait Keys: Sized {
    fn random_dense_or_uniform(dim: usize, seed: u64) -> Self;
}

impl<A: Algebra> Keys for PackedTritVec<A> {
    fn random_dense_or_uniform(dim: usize, seed: u64) -> Self {
        if A::KIND == Ternary::KIND { Self::random_dense(dim, seed) } else { Self::random(dim, seed) }
            .unwrap()
    }
}

fn hierarchies<A: Algebra>() {
    let dim = 1024;
    let words = set::<A>(dim, 50, 6);
    let memory = ItemMemory::of(&words).unwrap();
    let slot = |i: usize| [i, i / ROLES, 11 * i + 3].map(|v| Tryte3::new((v % ROLES) as i8 - 13).unwrap());
    for when_full in [FullAction::Warn, FullAction::Refuse] {
        let policy = CapacityPolicy::new(50, 0.99, when_full).unwrap();
        let limit =
            trike_vsa::capacity::max_items::<A>(trike_vsa::capacity::BundleForm::Counts, dim, 50, 0.99)
                .unwrap();
        let mut record = Hierarchy::<A>::new(dim, 9, policy).unwrap();
        for i in 0..limit {
            let inserted = record.insert(slot(i), &words[i % 50]).unwrap();
            assert!(inserted.sufficient && inserted.items == i + 1 && inserted.probability >= 0.99);
        }
        let found = (0..limit).filter(|&i| record.get(slot(i), &memory).unwrap().index == i % 50).count();
        assert!(found * 20 >= limit * 19, "{} {found} of {limit}", A::KIND);
        match (when_full, record.insert(slot(limit), &words[0])) {
            (FullAction::Warn, Ok(inserted)) => {
                assert!(!inserted.sufficient && inserted.probability < 0.99 && record.len() == limit + 1);
            }
            (FullAction::Refuse, Err(VsaError::Capacity { items, candidates: 50, .. })) => {
                assert!(items == limit + 1 && record.len() == limit);
            }
            (_, other) => panic!("{other:?}"),
        }
        record.remove(slot(3), &words[3]).unwrap();
        // The counts of many vectors cannot show that a vector was not added; the counts of one can.
        let mut one = Hierarchy::<A>::new(dim, 9, policy).unwrap();
        one.insert(slot(3), &words[3]).unwrap();
        assert!(matches!(one.remove(slot(3), &words[4]), Err(VsaError::NotInBundle { weight: 1 })));
        one.remove(slot(3), &words[3]).unwrap();
        assert!(one.is_empty());
    }
    // All of many slots have dissimilar keys.
    let policy = CapacityPolicy::new(50, 0.5, FullAction::Warn).unwrap();
    let record = Hierarchy::<A>::new(dim, 9, policy).unwrap();
    let keys: Vec<_> = (0..60).map(|i| record.key(slot(i)).unwrap()).collect();
    for i in 0..60 {
        assert!((0..i).all(|j| similarity(&keys[i], &keys[j]).unwrap() < 0.2), "{i}");
    }
}

fn distributed<A: Algebra>() {
    let dim = 512;
    // About 2 % of the locations.
    let threshold = 2.05 / (dim as f64 * if A::KIND == Z3::KIND { 2.0 } else { 1.0 }).sqrt();
    let mut memory = DistributedMemory::<A>::new(dim, 800, threshold, 1).unwrap();
    let data = set::<A>(dim, 10, 2);
    assert_eq!(memory.read(&data[0]).unwrap(), None);
    for vector in &data {
        let active = memory.write(vector, vector).unwrap();
        assert!((3..60).contains(&active), "{active}");
    }
    let mut noisy = data[7].clone();
    for i in 0..40 {
        noisy.set(i, if noisy.get(i) == Some(Trit::P) { Trit::N } else { Trit::P }).unwrap();
    }
    let read = memory.read(&noisy).unwrap().unwrap();
    let (before, after) = (similarity(&noisy, &data[7]).unwrap(), similarity(&read, &data[7]).unwrap());
    assert!(after > before + 0.02, "{}: {before} {after}", A::KIND);
}

fn encodings<A: Algebra>() {
    let scale = ScalarEncoder::<A>::new(5000, -1.0, 1.0, 21, 1).unwrap();
    for i in 0..21 {
        let value = -1.0 + 0.1 * f64::from(i);
        assert_near!(scale.decode(&scale.encode(value + 0.04).unwrap()).unwrap(), value, abs = 1e-9);
    }
    assert_eq!(scale.encode(f64::INFINITY).unwrap(), scale.encode(1.0).unwrap());
    assert!(scale.encode(f64::NAN).is_err());
    let wide = ScalarEncoder::<A>::new(100, f64::MIN, f64::MAX, 3, 1).unwrap();
    assert_eq!(wide.decode(&wide.encode(f64::MAX).unwrap()).unwrap(), f64::MAX);

    // Similarity decreases with the angle, independent of the norm.
    for inputs in [3, 100] {
        let projection = RandomProjection::<A>::new(inputs, 4000, 1).unwrap().on(Cpu::new(2).unwrap());
        // Two perpendicular directions with components in all inputs.
        let mut axes = [Rng::new(5).normals(inputs), Rng::new(6).normals(inputs)];
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let along = product(&axes[0], &axes[1]) / product(&axes[0], &axes[0]);
        let [first, second] = &mut axes;
        second.iter_mut().zip(first.iter()).for_each(|(b, a)| *b -= along * a);
        axes.iter_mut().for_each(|axis| {
            let norm = product(axis, axis).sqrt();
            axis.iter_mut().for_each(|x| *x /= norm);
        });
        let at = |angle: f32, length: f32| {
            let mix = |(a, b): (&f32, &f32)| length * (angle.cos() * a + angle.sin() * b);
            projection.encode(&axes[0].iter().zip(&axes[1]).map(mix).collect::<Vec<_>>()).unwrap()
        };
        let origin = at(0.0, 1.0);
        assert_eq!(at(0.0, 1e30), origin);
        let similar: Vec<f64> =
            (0..5).map(|i| similarity(&origin, &at(0.4 * i as f32, 3.0)).unwrap()).collect();
        assert!(similar.is_sorted_by(|a, b| a > b), "{} {inputs}: {similar:?}", A::KIND);
        assert!(projection.encode(&vec![f32::NAN; inputs]).is_err() && projection.encode(&[1.0; 2]).is_err());
    }

    // Texts: an encoder is the bundle of its n-grams.
    let encoder = TextEncoder::<A>::new(500, 3, 7).unwrap();
    let bytes = set::<A>(500, 256, 7);
    let text = "abracadabra, so they said, and so it was: abracadabra. Again, and again, and again!";
    let vectors: Vec<_> = text.bytes().map(|b| &bytes[usize::from(b)]).collect();
    let expected = ngrams(&vectors, 3).unwrap();
    let encoded = encoder.encode(text).unwrap();
    assert_eq!((encoded.sums().unwrap(), encoded.total()), (expected.sums().unwrap(), expected.total()));
    assert!(TextEncoder::<A>::new(500, 1, 7).unwrap().encode("x").is_ok() && encoder.encode("ab").is_err());

    // Two clusters, learned online from errors.
    let mut rng = Rng::new(3);
    let centres = set::<A>(1000, 2, 11);
    let mut example = |class: usize| {
        let noise: Vec<_> = set::<A>(1000, 6, rng.next_u64());
        bundle_many(noise.iter().chain([&centres[class]])).unwrap()
    };
    let mut classifier = CentroidClassifier::<A>::new(1000, 2).unwrap();
    let mistakes = (0..60).filter(|i| classifier.correct(i % 2, &example(i % 2)).unwrap()).count();
    assert!((1..30).contains(&mistakes), "{} {mistakes}", A::KIND);
    let right = (0..100).filter(|i| classifier.classify(&example(i % 2)).unwrap().index == i % 2).count();
    assert!(right >= 90, "{} {right}", A::KIND);
    let back: CentroidClassifier<A> =
        serde_json::from_str(&serde_json::to_string(&classifier).unwrap()).unwrap();
    assert_eq!(back.classify(&centres[1]).unwrap().index, 1);
}

fn refusals<A: Algebra>() {
    let (a, b) = (PackedTritVec::<A>::random(100, 1).unwrap(), PackedTritVec::<A>::random(101, 1).unwrap());
    let dimension = |result: Result<(), VsaError>| {
        matches!(result, Err(VsaError::Dimension { expected: 100, got: 101, .. }))
    };
    assert!(dimension(bind(&a, &b).map(|_| ())) && dimension(similarity(&a, &b).map(|_| ())));
    assert!(dimension(bundle_many([&a, &b]).map(|_| ())));
    assert!(dimension(bundle_balanced([&a, &b], 1).map(|_| ())));
    assert!(matches!(bundle_many::<A>([]), Err(VsaError::Empty { .. })));
    assert!(matches!(bundle_weighted::<A>([]), Err(VsaError::Empty { .. })));
    assert!(matches!(bundle_balanced::<A>([], 1), Err(VsaError::Empty { .. })));
    assert!(matches!(bind_sequence::<A>([]), Err(VsaError::Empty { .. })));
    assert!(ngrams(&[&a], 0).is_err() && ngrams(&[&a], 2).is_err());
    for dim in [0, usize::MAX] {
        assert!(matches!(PackedTritVec::<A>::random(dim, 1), Err(VsaError::Range { .. })));
        assert!(Bundle::<A>::new(dim).is_err() && ItemMemory::<A>::new(dim).is_err());
    }
    assert!(PackedTritVec::<A>::from_trits(&[1, 2]).is_err() && PackedTritVec::<A>::from_trits(&[]).is_err());
    assert!(permute(&a, isize::MIN).is_ok());

    let mut bundle = Bundle::of([&a]).unwrap();
    assert!(dimension(bundle.add(&b)) && dimension(bundle.remove(&b)) && dimension(bundle.bind(&b)));
    assert!(dimension(bundle.unbind(&b)) && dimension(bundle.merge(&Bundle::of([&b]).unwrap())));
    assert!(dimension(bundle.score(&b).map(|_| ())) && dimension(bundle.add_negative(&b, 1)));
    assert!(bundle.add_weighted(&a, u32::MAX).is_err() && bundle.add_negative(&a, u32::MAX).is_err());
    assert!(matches!(bundle.remove_weighted(&a, 2), Err(VsaError::NotInBundle { weight: 2 })));
    assert!(matches!(bundle.replace(100, Trit::P, Trit::N, 1), Err(VsaError::Range { .. })));
    let sparse = SparseVec::new(100, vec![(3, Trit::P)]).unwrap();
    assert_eq!(bundle.add_sparse(&sparse, 1).is_err(), A::KIND == Bipolar::KIND);
    assert!(SparseVec::new(100, vec![(3, Trit::P), (3, Trit::N)]).is_err());
    assert!(SparseVec::new(100, vec![(100, Trit::P)]).is_err());
    assert!(SparseVec::new(100, vec![(1, Trit::Z)]).is_err() && SparseVec::new(0, vec![]).is_err());

    let empty = ItemMemory::<A>::new(100).unwrap();
    assert!(matches!(empty.nearest(&a), Err(VsaError::Empty { .. })));
    assert!(matches!(empty.nearest_in_bundle(&Bundle::of([&a]).unwrap()), Err(VsaError::Empty { .. })));
    assert!(ItemMemory::<A>::of([]).is_err());
    let mut memory = ItemMemory::of([&a]).unwrap();
    assert!(matches!(memory.top_k(&a, 0), Err(VsaError::Range { .. })));
    assert!(dimension(memory.top_k(&b, 1).map(|_| ())) && dimension(memory.push(&b).map(|_| ())));
    assert!(
        memory.get(1).is_err() && memory.set(1, 0, Trit::P).is_err() && memory.set(0, 100, Trit::P).is_err()
    );
    assert!(memory.replace(1, &a).is_err() && memory.swap_remove(1).is_err());
    assert!(memory.cleanup(&a, f64::NAN).is_err() && memory.cleanup_iterative(&a, 1.5, 1).is_err());
    assert!(memory.top_k_batch([], 1).unwrap().is_empty());

    assert!(factorize(&a, &[], 1).is_err() && factorize(&a, &[&memory], 0).is_err());
    assert!(factorize(&a, &[&empty], 1).is_err() && factorize(&b, &[&memory], 1).is_err());
    assert!(CapacityPolicy::new(0, 0.9, FullAction::Warn).is_err());
    assert!(CapacityPolicy::new(1, f64::NAN, FullAction::Warn).is_err());
    assert!(level_set::<A>(100, 0, 1).is_err());
    assert!(ScalarEncoder::<A>::new(100, 1.0, 1.0, 5, 1).is_err());
    assert!(ScalarEncoder::<A>::new(100, 0.0, f64::INFINITY, 5, 1).is_err());
    assert!(RandomProjection::<A>::new(0, 100, 1).is_err());
    assert!(RandomProjection::<A>::new(usize::MAX, 100, 1).is_err());
    assert!(TextEncoder::<A>::new(100, 0, 1).is_err() && TextEncoder::<A>::new(100, 65, 1).is_err());
    assert!(CentroidClassifier::<A>::new(100, 0).is_err());
    assert!(CentroidClassifier::<A>::new(100, 1).unwrap().add(1, &a).is_err());
    assert!(DistributedMemory::<A>::new(100, 0, 0.1, 1).is_err());
    let sequence = Sequence::<A>::new(100).unwrap();
    assert!(matches!(sequence.get(0, &memory), Err(VsaError::Empty { .. })));
}

#[test]
fn bipolar_vectors_have_no_zeros() {
    assert!(matches!(PackedTritVec::<Bipolar>::from_trits(&[1, -1, 0]), Err(VsaError::Zero { index: 2 })));
    let mut a = PackedTritVec::<Bipolar>::from_trits(&[1, -1, 1]).unwrap();
    assert!(matches!(a.set(1, Trit::Z), Err(VsaError::Zero { index: 1 })));
    let mut bundle = Bundle::of([&a, &a]).unwrap();
    assert!(matches!(bundle.replace(0, Trit::P, Trit::Z, 1), Err(VsaError::Zero { index: 0 })));
    assert!(Bundle::<Bipolar>::from_counts(&[1], &[0], 2, 2).is_err());
    assert!(Bundle::<Bipolar>::from_counts(&[1], &[1], 2, 2).is_ok());
    assert!(SparseVec::new(2, vec![(0, Trit::P)]).unwrap().to_packed::<Bipolar>().is_err());
    // Bundles of an even number of vectors have no zeros either.
    let [b, c] = [1, 2].map(|seed| PackedTritVec::<Bipolar>::random(1000, seed).unwrap());
    assert_eq!(bundle_many([&b, &c]).unwrap().nonzeros().unwrap(), 1000);
}

/// Factors of triple products are found, in both algebras with exact unbinding.
#[test]
fn resonators_factorize() {
    fn check<A: Algebra>() -> usize {
        (0..20)
            .filter(|&seed| {
                let sets: Vec<_> = (0..3).map(|f| set::<A>(1500, 15, 100 * seed + f)).collect();
                let indices = [seed % 15, 3 * seed % 15, 7 * seed % 15].map(|i| i as usize);
                let mut product = PackedTritVec::identity(1500).unwrap();
                for (set, &i) in sets.iter().zip(&indices) {
                    product = bind(&product, &set[i]).unwrap();
                }
                let codebooks: Vec<_> = sets.iter().map(|set| ItemMemory::of(set).unwrap()).collect();
                let factors = factorize(&product, &codebooks.iter().collect::<Vec<_>>(), 60).unwrap();
                assert!(!factors.exact || factors.indices == indices);
                factors.exact
            })
            .count()
    }
    assert!(check::<Bipolar>() >= 18, "{}", check::<Bipolar>());
    assert!(check::<Z3>() >= 18, "{}", check::<Z3>());
}
