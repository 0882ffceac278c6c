//! Operations on a whole bundle, and rotations, against three-line oracles, on every instruction set.

use crate::common::cpus;
use trike_popcount::{
    BitCounter, Cpu, MAX_WEIGHT, PlaneMatrix, PlaneVector, PopcountError, TritOps, TritScore,
};
use trike_testkit::Rng;
use trike_trit::{Trit, TritError};

const LENGTHS: [usize; 14] = [0, 1, 2, 63, 64, 65, 127, 128, 256, 511, 512, 513, 1000, 4099];
const SCORES: [TritScore; 3] = [TritScore::Dot, TritScore::Matches, TritScore::Agreements];

fn pack(trits: &[i8]) -> PlaneVector {
    PlaneVector::from_trits(trits).expect("trits")
}

/// Random vectors with weights, and the counter that holds them.
fn bundle(cpu: &Cpu, len: usize, rng: &mut Rng) -> (Vec<(Vec<i8>, u32)>, BitCounter) {
    let weights = [1, 1, 1, 2, 5, 1, 64];
    let all: Vec<_> = weights.into_iter().map(|weight| (rng.trits(len, 0.66), weight)).collect();
    let counter = count(cpu, len, &all);
    (all, counter)
}

fn count(cpu: &Cpu, len: usize, all: &[(Vec<i8>, u32)]) -> BitCounter {
    let mut counter = BitCounter::new(len).unwrap();
    all.iter().for_each(|(v, weight)| counter.add(cpu, pack(v).view(), *weight).unwrap());
    counter
}

/// Checks that the counts equal those of a counter that was given these vectors.
fn check(cpu: &Cpu, counter: &BitCounter, all: &[(Vec<i8>, u32)], what: &str) {
    let (len, expected) = (counter.len(), count(cpu, counter.len(), all));
    let counts = |counter: &BitCounter| {
        let (mut pos, mut neg) = (vec![u32::MAX; len], vec![u32::MAX; len]);
        counter.counts(cpu, &mut pos, &mut neg).unwrap();
        (pos, neg)
    };
    assert!(counts(counter) == counts(&expected), "counts of {what}, {len} on {}", cpu.isa());
    assert_eq!(counter.total(), expected.total(), "{what}");
    // Garbage past the end would reach scores and the tails of vectors.
    let mut out = pack(&vec![1; len]);
    counter.plurality(cpu, out.view_mut()).unwrap();
    let mut same = pack(&vec![-1; len]);
    expected.plurality(cpu, same.view_mut()).unwrap();
    assert_eq!(out, same, "{what}");
    let any = pack(&vec![1; len]);
    let score = |counter: &BitCounter| counter.score(cpu, TritScore::Matches, any.view()).unwrap();
    assert_eq!(score(counter), score(&expected), "{what}");
}

fn mapped(all: &[(Vec<i8>, u32)], key: &[i8], f: fn(i8, i8) -> i8) -> Vec<(Vec<i8>, u32)> {
    all.iter().map(|(v, w)| (v.iter().zip(key).map(|(&x, &k)| f(x, k)).collect(), *w)).collect()
}

#[test]
fn rotations_of_every_distance() {
    for cpu in cpus().into_iter().step_by(2) {
        let mut rng = Rng::new(1);
        for len in LENGTHS {
            let a = rng.trits(len, 0.66);
            let far = len as isize;
            let all =
                [0, 1, 5, 63, 64, 65, 128, 200, far / 2, far - 1, far, far + 1, 3 * far + 7, isize::MAX];
            for by in all.into_iter().flat_map(|by| [by, -by]).chain([isize::MIN]) {
                let mut out = pack(&vec![1; len]);
                cpu.trit_rotate(pack(&a).view(), by, out.view_mut()).unwrap();
                let mut expected = a.clone();
                if len > 0 {
                    expected.rotate_right((by as i128).rem_euclid(len as i128) as usize);
                }
                assert!(out.to_trits() == expected, "{len} by {by}");
            }
        }
    }
}

#[test]
fn keys_bind_everything_in_a_counter() {
    for cpu in cpus().into_iter().step_by(2) {
        let mut rng = Rng::new(2);
        for len in LENGTHS {
            let (all, counter) = bundle(&cpu, len, &mut rng);
            let key = rng.trits(len, 0.66);
            let packed = pack(&key);
            let mut bound = counter.clone();
            bound.sum_mod3(&cpu, packed.view()).unwrap();
            check(&cpu, &bound, &mapped(&all, &key, |x, k| (x + k + 4).rem_euclid(3) - 1), "sums");
            bound.sum_mod3(&cpu, packed.view().negated()).unwrap();
            check(&cpu, &bound, &all, "sums and back");
            bound.product(&cpu, packed.view()).unwrap();
            check(&cpu, &bound, &mapped(&all, &key, |x, k| x * k), "products");
            let mut rotated = counter.clone();
            rotated.rotate(&cpu, 77).unwrap();
            let turned = |v: &Vec<i8>| {
                let mut v = v.clone();
                v.rotate_right(77 % len.max(1));
                v
            };
            check(&cpu, &rotated, &all.iter().map(|(v, w)| (turned(v), *w)).collect::<Vec<_>>(), "rotated");
            // A key after a removal: there are more levels than the total requires.
            let mut fewer = counter;
            assert!(fewer.remove(&cpu, pack(&all[6].0).view(), 64).unwrap());
            fewer.sum_mod3(&cpu, packed.view()).unwrap();
            check(&cpu, &fewer, &mapped(&all[..6], &key, |x, k| (x + k + 4).rem_euclid(3) - 1), "fewer");
        }
    }
}

#[test]
fn counters_merge() {
    for cpu in cpus().into_iter().step_by(2) {
        let mut rng = Rng::new(3);
        for len in LENGTHS {
            let ((mut all, mut left), (more, right)) =
                (bundle(&cpu, len, &mut rng), bundle(&cpu, len, &mut rng));
            let few = vec![(rng.trits(len, 0.66), 1)];
            for (counter, what) in [(&right, &more), (&count(&cpu, len, &few), &few)] {
                left.merge(&cpu, counter).unwrap();
                all.extend(what.iter().cloned());
                check(&cpu, &left, &all, "merged");
            }
            let mut into = count(&cpu, len, &few);
            into.merge(&cpu, &right).unwrap();
            check(&cpu, &into, &[few, more].concat(), "merged into few");
        }
    }
}

#[test]
fn scores_are_sums_over_what_was_added() {
    for cpu in cpus() {
        let mut rng = Rng::new(4);
        for len in LENGTHS {
            let (all, counter) = bundle(&cpu, len, &mut rng);
            let rows: Vec<PlaneVector> =
                [0.0, 0.3, 0.66, 1.0].map(|density| pack(&rng.trits(len, density))).into();
            for score in SCORES {
                let expected: Vec<i64> = rows
                    .iter()
                    .map(|row| {
                        let one = |v: &Vec<i8>| cpu.trit_score(score, pack(v).view(), row.view()).unwrap();
                        all.iter().map(|(v, weight)| i64::from(one(v)) * i64::from(*weight)).sum()
                    })
                    .collect();
                for (row, expected) in rows.iter().zip(&expected) {
                    assert_eq!(counter.score(&cpu, score, row.view()).unwrap(), *expected, "{len} {score:?}");
                }
                if len > 0 {
                    // Enough rows for all threads.
                    let mut stored = PlaneMatrix::new(len).unwrap();
                    (0..4000).for_each(|i| stored.push(rows[i % 4].view()).unwrap());
                    let mut out = vec![i64::MIN; 4000];
                    counter.scores(&cpu, score, &stored, &mut out).unwrap();
                    assert!(out.iter().enumerate().all(|(i, &s)| s == expected[i % 4]), "{len} {score:?}");
                }
            }
        }
    }
}

#[test]
fn single_trits_are_replaced_within_a_bundle() {
    for cpu in cpus().into_iter().step_by(2) {
        let mut rng = Rng::new(5);
        let (mut all, mut counter) = bundle(&cpu, 200, &mut rng);
        for step in 0..300 {
            let (item, index) = (rng.below(all.len()), rng.below(200));
            let [from, to] =
                [all[item].0[index], rng.trits(1, 0.66)[0]].map(|t| Trit::from_value(t).unwrap());
            assert!(counter.replace(index, from, to, all[item].1).unwrap(), "{step}");
            all[item].0[index] = to.value();
            if step % 50 == 0 {
                check(&cpu, &counter, &all, "edited");
            }
        }
        check(&cpu, &counter, &all, "edited");
        let [p, n] = counter.count(7).unwrap();
        for (from, there) in [(Trit::P, p), (Trit::N, n), (Trit::Z, counter.total() - p - n)] {
            assert!(!counter.replace(7, from, Trit::Z, there + 1).unwrap());
            assert!(counter.replace(7, from, from, there).unwrap());
        }
        check(&cpu, &counter, &all, "refused edits");
    }
}

#[test]
fn sparse_vectors_touch_their_positions() {
    for cpu in cpus().into_iter().step_by(2) {
        let mut rng = Rng::new(7);
        for len in LENGTHS {
            let (mut all, mut counter) = bundle(&cpu, len, &mut rng);
            let sparse = rng.trits(len, 0.05);
            let list: Vec<(usize, Trit)> = (0..len)
                .filter(|&i| sparse[i] != 0)
                .map(|i| (i, Trit::from_value(sparse[i]).unwrap()))
                .collect();
            for weight in [1, 6, 100] {
                counter.add_sparse(&list, weight).unwrap();
                all.push((sparse.clone(), weight));
                check(&cpu, &counter, &all, "added");
            }
            assert!(!counter.remove_sparse(&cpu, &list, counter.total() + 1).unwrap());
            // More zeros than all vectors together have.
            assert!(len == 0 || !counter.remove_sparse(&cpu, &[], counter.total()).unwrap());
            check(&cpu, &counter, &all, "not taken out");
            assert!(counter.remove_sparse(&cpu, &list, 6).unwrap());
            all.remove(all.len() - 2);
            check(&cpu, &counter, &all, "taken out");
        }
        let mut counter = count(&cpu, 10, &[(vec![1; 10], 2)]);
        for wrong in
            [[(3, Trit::P), (3, Trit::P)], [(4, Trit::P), (3, Trit::P)], [(0, Trit::P), (10, Trit::P)]]
        {
            assert!(matches!(counter.add_sparse(&wrong, 1), Err(PopcountError::Range { .. })));
            assert!(matches!(counter.remove_sparse(&cpu, &wrong, 1), Err(PopcountError::Range { .. })));
        }
        check(&cpu, &counter, &[(vec![1; 10], 2)], "refused");
        assert!(BitCounter::new(0).unwrap().add_sparse(&[(0, Trit::P)], 1).is_err());
    }
}

#[test]
fn counts_make_the_counter_that_they_are_of() {
    let cpu = Cpu::new(1).unwrap();
    let mut rng = Rng::new(8);
    for len in LENGTHS {
        let (all, counter) = bundle(&cpu, len, &mut rng);
        let (mut pos, mut neg) = (vec![0; len], vec![0; len]);
        counter.counts(&cpu, &mut pos, &mut neg).unwrap();
        check(&cpu, &BitCounter::from_counts(&pos, &neg, counter.total()).unwrap(), &all, "kept counts");
    }
    for (pos, neg, total, good) in
        [(2, 1, 3, true), (2, 1, 2, false), (u32::MAX, 1, 7, false), (0, 0, MAX_WEIGHT, true)]
    {
        assert_eq!(BitCounter::from_counts(&[pos], &[neg], total).is_ok(), good, "{pos} {neg} of {total}");
    }
    assert!(BitCounter::from_counts(&[0], &[0], MAX_WEIGHT + 1).is_err());
    assert!(matches!(BitCounter::from_counts(&[0], &[0; 2], 1), Err(PopcountError::Length { .. })));
}

#[test]
fn single_trits_of_vectors() {
    let mut rng = Rng::new(6);
    let mut trits = rng.trits(130, 0.66);
    let mut vector = pack(&trits);
    for _ in 0..300 {
        let (index, trit) = (rng.below(130), rng.trits(1, 0.66)[0]);
        vector.view_mut().set(index, Trit::from_value(trit).unwrap()).unwrap();
        trits[index] = trit;
    }
    assert_eq!(vector, pack(&trits));
    let error = vector.view_mut().set(130, Trit::P).unwrap_err();
    assert!(
        matches!(error, PopcountError::Trit(TritError::OutOfRange { index: 130, limit: 130, .. })),
        "{error}"
    );
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_changes() {
    let cpu = Cpu::new(1).unwrap();
    let all = vec![(vec![1, -1, 0], 3)];
    let (mut counter, two) = (count(&cpu, 3, &all), pack(&[1, 0]));
    assert!(matches!(counter.sum_mod3(&cpu, two.view()), Err(PopcountError::Length { .. })));
    assert!(matches!(counter.product(&cpu, two.view()), Err(PopcountError::Length { .. })));
    assert!(matches!(counter.merge(&cpu, &BitCounter::new(2).unwrap()), Err(PopcountError::Length { .. })));
    assert!(counter.score(&cpu, TritScore::Dot, two.view()).is_err());
    let stored = PlaneMatrix::zeros(2, 3).unwrap();
    assert!(counter.scores(&cpu, TritScore::Dot, &stored, &mut [0; 3]).is_err());
    assert!(counter.scores(&cpu, TritScore::Dot, &PlaneMatrix::zeros(2, 2).unwrap(), &mut [0; 2]).is_err());
    assert!(matches!(counter.count(3), Err(PopcountError::Range { .. })));
    assert!(counter.replace(3, Trit::P, Trit::N, 0).is_err());
    assert!(matches!(BitCounter::new(0).unwrap().count(0), Err(PopcountError::Range { .. })));
    let full = count(&cpu, 3, &[(vec![1, 1, 1], MAX_WEIGHT - 2)]);
    assert!(matches!(counter.merge(&cpu, &full), Err(PopcountError::Range { .. })));
    check(&cpu, &counter, &all, "refused changes");
    let (three, mut out) = (pack(&[1, 0, 0]), pack(&[1, 1]));
    assert!(cpu.trit_rotate(three.view(), 1, out.view_mut()).is_err());
    assert!(cpu.trit_overlay(three.view(), two.view(), out.view_mut()).is_err());
    assert_eq!(out, pack(&[1, 1]));
}
