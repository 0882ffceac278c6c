//! Vectors of trits in bit planes, against three-line oracles over plain trits, on every instruction set.

use crate::common::{cpus, describe};
use trike_popcount::{
    BitCounter, Cpu, MAX_TRITS, MAX_WEIGHT, PlaneMatrix, PlaneVector, PopcountError, TritHit, TritOps,
    TritPlanes, TritPlanesMut, TritScore,
};
use trike_testkit::Rng;
use trike_trit::{Encoding, Scales, Trit, TritError, TritTensor};

/// Around the edges of words, vectors and cache lines, and the length of a usual hypervector.
const LENGTHS: [usize; 15] = [0, 1, 2, 63, 64, 65, 127, 255, 256, 257, 511, 512, 513, 1000, 10_000];
const SCORES: [TritScore; 3] = [TritScore::Dot, TritScore::Matches, TritScore::Agreements];

/// Vectors of a length: random ones and the extremes.
fn vectors(len: usize, rng: &mut Rng) -> Vec<Vec<i8>> {
    let mut all = vec![vec![0; len], vec![1; len], vec![-1; len]];
    all.extend([0.1, 0.66, 1.0].map(|density| rng.trits(len, density)));
    all
}

fn pack(trits: &[i8]) -> PlaneVector {
    PlaneVector::from_trits(trits).expect("trits")
}

fn matrix(rows: &[Vec<i8>], cols: usize) -> PlaneMatrix {
    let mut matrix = PlaneMatrix::new(cols).expect("columns");
    rows.iter().for_each(|row| matrix.push(pack(row).view()).expect("a row"));
    matrix
}

/// The definition of a score.
fn oracle(score: TritScore, a: &[i8], b: &[i8]) -> i32 {
    let one = |(&a, &b): (&i8, &i8)| match score {
        TritScore::Dot => i32::from(a * b),
        TritScore::Matches => i32::from(a == b),
        TritScore::Agreements => i32::from(a == b && a != 0),
    };
    a.iter().zip(b).map(one).sum()
}

/// The number that is congruent modulo 3 and closest to zero.
fn mod3(n: i8) -> i8 {
    (n + 4).rem_euclid(3) - 1
}

/// A vector with all bits set, so that words that are not written show.
fn poisoned(len: usize) -> PlaneVector {
    pack(&vec![1; len])
}

fn each_cpu(mut test: impl FnMut(&Cpu)) {
    for cpu in cpus() {
        test(&cpu);
    }
}

#[test]
fn scores_of_pairs() {
    each_cpu(|cpu| {
        println!("{}", describe(cpu));
        let mut rng = Rng::new(1);
        for len in LENGTHS {
            let all = vectors(len, &mut rng);
            for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
                let (pa, pb) = (pack(a), pack(b));
                let (pa, pb) = (pa.view(), pb.view());
                let what = format!("{len} on {}", describe(cpu));
                for score in SCORES {
                    assert_eq!(
                        cpu.trit_score(score, pa, pb).unwrap(),
                        oracle(score, a, b),
                        "{score:?} {what}"
                    );
                }
                assert_eq!(cpu.trit_dot(pa, pb).unwrap(), oracle(TritScore::Dot, a, b));
                assert_eq!(cpu.trit_matches(pa, pb).unwrap(), oracle(TritScore::Matches, a, b));
                assert_eq!(cpu.trit_agreements(pa, pb).unwrap(), oracle(TritScore::Agreements, a, b));
                let differ = a.iter().zip(b).filter(|(a, b)| a != b).count();
                assert_eq!(cpu.trit_hamming(pa, pb).unwrap(), differ as i32, "{what}");
                assert_eq!(cpu.trit_nonzeros(pa), a.iter().filter(|&&t| t != 0).count() as i32, "{what}");
            }
        }
    });
}

#[test]
fn views_at_any_address() {
    // Slices of a larger buffer straddle cache lines and end in masked loads of every length.
    let mut rng = Rng::new(2);
    let (pa, pb) = (pack(&rng.trits(64 * 40, 0.66)), pack(&rng.trits(64 * 40, 0.66)));
    each_cpu(|cpu| {
        for (start, words) in (0..20).flat_map(|start| [0, 1, 3, 7, 8, 9, 17, 20].map(|words| (start, words)))
        {
            let range = start..start + words;
            let whole = (pa.view(), pb.view());
            let x = &whole.0.pos()[range.clone()];
            let x = TritPlanes::new(x, &whole.0.neg()[range.clone()], 64 * words).unwrap();
            let y = &whole.1.pos()[range.clone()];
            let y = TritPlanes::new(y, &whole.1.neg()[range.clone()], 64 * words).unwrap();
            let (a, b) = (x.to_trits(), y.to_trits());
            assert_eq!(
                a,
                (0..64 * words).map(|j| pa.view().get(64 * start + j).unwrap().value()).collect::<Vec<_>>()
            );
            let expected: Vec<i8> = a.iter().zip(&b).map(|(a, b)| mod3(a + b)).collect();
            assert_eq!(cpu.trit_dot(x, y).unwrap(), oracle(TritScore::Dot, &a, &b), "{start} {words}");
            let (mut pos, mut neg) = (vec![u64::MAX; 40], vec![u64::MAX; 40]);
            let out =
                TritPlanesMut::new(&mut pos[range.clone()], &mut neg[range.clone()], 64 * words).unwrap();
            cpu.trit_sum_mod3(x, y, out).unwrap();
            let outside = |i: usize| !range.contains(&i);
            assert!((0..40).filter(|&i| outside(i)).all(|i| (pos[i], neg[i]) == (u64::MAX, u64::MAX)));
            let out = TritPlanes::new(&pos[range.clone()], &neg[range.clone()], 64 * words).unwrap();
            assert_eq!(out.to_trits(), expected);
        }
    });
}

#[test]
fn element_wise_operations() {
    each_cpu(|cpu| {
        let mut rng = Rng::new(3);
        for len in LENGTHS {
            let all = vectors(len, &mut rng);
            for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
                let (pa, pb, mut out) = (pack(a), pack(b), poisoned(len));
                let expect =
                    |f: fn(i8, i8) -> i8| a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect::<Vec<_>>();
                // Views check their invariants in a debug build: disjoint planes, zero tails.
                cpu.trit_sum_mod3(pa.view(), pb.view(), out.view_mut()).unwrap();
                assert_eq!(out.to_trits(), expect(|a, b| mod3(a + b)), "{len}");
                let sum = std::mem::replace(&mut out, poisoned(len));
                cpu.trit_difference_mod3(sum.view(), pb.view(), out.view_mut()).unwrap();
                assert_eq!(out, pa, "{len}");
                out = poisoned(len);
                cpu.trit_product(pa.view(), pb.view(), out.view_mut()).unwrap();
                assert_eq!(out.to_trits(), expect(|a, b| a * b), "{len}");
                out = poisoned(len);
                cpu.trit_negate(pa.view(), out.view_mut()).unwrap();
                assert_eq!(out.to_trits(), expect(|a, _| -a), "{len}");
                assert_eq!(out.view(), pa.view().negated());
            }
        }
    });
}

#[test]
fn scores_of_matrices_and_the_best_of_them() {
    each_cpu(|cpu| {
        let mut rng = Rng::new(4);
        // More columns than a chunk, rows that are not whole lines, and enough work for every thread.
        for (m, n, cols) in [
            (1, 1, 1),
            (1, 13, 65),
            (2, 8, 128),
            (3, 9, 513),
            (5, 31, 1000),
            (7, 3, 40_000),
            (1, 1100, 10_000),
        ] {
            let mut rows = |count: usize| {
                let mut rows: Vec<_> = (0..count).map(|_| rng.trits(cols, 0.66)).collect();
                rows[count / 2] = vec![1; cols];
                rows[count - 1] = rows[0].clone();
                rows
            };
            let (queries, stored) = (rows(m), rows(n));
            let (x, w) = (matrix(&queries, cols), matrix(&stored, cols));
            for score in SCORES {
                let what = format!("{score:?} {m} x {n} x {cols} on {}", describe(cpu));
                let expected: Vec<i32> =
                    queries.iter().flat_map(|q| stored.iter().map(|s| oracle(score, q, s))).collect();
                let mut out = vec![i32::MIN; m * n];
                cpu.trit_scores(score, &x, &w, &mut out).unwrap();
                assert!(out == expected, "{what}");
                for k in [1, 2, 5, n, usize::MAX] {
                    let best = |scores: &[i32]| {
                        let mut all: Vec<TritHit> =
                            scores.iter().enumerate().map(|(row, &score)| TritHit { row, score }).collect();
                        // Stable, so equal scores stay in row order.
                        all.sort_by_key(|hit| -hit.score);
                        all.truncate(k);
                        all
                    };
                    let expected: Vec<Vec<TritHit>> = expected.chunks(n).map(best).collect();
                    assert_eq!(cpu.trit_top_k(score, &x, &w, k).unwrap(), expected, "best {k} of {what}");
                }
            }
            let mut out = vec![i32::MIN; m * n];
            cpu.trit_matmul(&x, &w, &mut out).unwrap();
            assert_eq!(out[0], oracle(TritScore::Dot, &queries[0], &stored[0]));
        }
    });
}

#[test]
fn equal_scores_come_in_the_order_of_the_rows() {
    let stored = matrix(&vec![vec![1; 4096]; 2000], 4096);
    let queries = matrix(&[vec![1; 4096], vec![-1; 4096]], 4096);
    each_cpu(|cpu| {
        for hits in cpu.trit_top_k(TritScore::Dot, &queries, &stored, 7).unwrap() {
            assert_eq!(hits.iter().map(|hit| hit.row).collect::<Vec<_>>(), (0..7).collect::<Vec<_>>());
        }
    });
}

/// The weighted counts of 1, -1 and 0 at each position.
fn tallies(vectors: &[(Vec<i8>, u32)], len: usize) -> Vec<[u32; 3]> {
    let count = |j: usize, value: i8| vectors.iter().filter(|(v, _)| v[j] == value).map(|(_, w)| w).sum();
    (0..len).map(|j| [1, -1, 0].map(|value| count(j, value))).collect()
}

fn check_counter(cpu: &Cpu, counter: &BitCounter, vectors: &[(Vec<i8>, u32)], what: &str) {
    let len = counter.len();
    let expected = tallies(vectors, len);
    let (mut pos, mut neg, mut sums) = (vec![u32::MAX; len], vec![u32::MAX; len], vec![i32::MIN; len]);
    counter.counts(cpu, &mut pos, &mut neg).unwrap();
    counter.sums(cpu, &mut sums).unwrap();
    let counted: Vec<[u32; 2]> = pos.iter().zip(&neg).map(|(&p, &n)| [p, n]).collect();
    assert!(counted == expected.iter().map(|c| [c[0], c[1]]).collect::<Vec<_>>(), "counts of {what}");
    assert!(sums == expected.iter().map(|c| c[0] as i32 - c[1] as i32).collect::<Vec<_>>(), "sums of {what}");
    assert_eq!(counter.total(), vectors.iter().map(|(_, w)| w).sum::<u32>());
    for threshold in [0, 1, 2, 3, 7, 100, u32::MAX] {
        let mut out = poisoned(len);
        counter.majority(cpu, threshold, out.view_mut()).unwrap();
        let far = |s: &i32| if s.unsigned_abs() > threshold { s.signum() as i8 } else { 0 };
        assert!(out.to_trits() == sums.iter().map(far).collect::<Vec<_>>(), "over {threshold} of {what}");
    }
    let mut out = poisoned(len);
    counter.plurality(cpu, out.view_mut()).unwrap();
    let frequent = |(j, counts): (usize, &[u32; 3])| {
        let order = [[0, 1, -1], [1, -1, 0], [-1, 0, 1]][j % 3];
        let of = |value: i8| counts[[2, 0, 1][value.rem_euclid(3) as usize]];
        // `max_by_key` returns the last of equal elements.
        order.into_iter().rev().max_by_key(|&value| of(value)).unwrap()
    };
    let expected: Vec<i8> = match counter.total() {
        0 => vec![0; len],
        _ => expected.iter().enumerate().map(frequent).collect(),
    };
    assert!(out.to_trits() == expected, "plurality of {what}");
}

#[test]
fn counters_count() {
    each_cpu(|cpu| {
        let mut rng = Rng::new(5);
        for len in LENGTHS {
            for n in [0, 1, 2, 3, 7, 15, 16, 17, 31, 40] {
                let density = [0.3, 0.66, 1.0][rng.below(3)];
                let mut all: Vec<(Vec<i8>, u32)> = (0..n).map(|_| (rng.trits(len, density), 1)).collect();
                if n > 20 {
                    // All counts at their maximum.
                    all.iter_mut().for_each(|(v, _)| v.fill(1));
                }
                let packed: Vec<PlaneVector> = all.iter().map(|(v, _)| pack(v)).collect();
                let views: Vec<TritPlanes<'_>> = packed.iter().map(PlaneVector::view).collect();
                let mut counter = BitCounter::new(len).unwrap();
                // In two steps, so that the second one adds to nonzero counts.
                let (first, second) = views.split_at(n / 3);
                counter.add_all(cpu, first).unwrap();
                counter.add_all(cpu, second).unwrap();
                check_counter(cpu, &counter, &all, &format!("{n} x {len} on {}", describe(cpu)));
                let extra = (rng.trits(len, 0.66), [1, 2, 5, 64, 1000][rng.below(5)]);
                counter.add(cpu, pack(&extra.0).view(), extra.1).unwrap();
                all.push(extra);
                check_counter(cpu, &counter, &all, &format!("{n} x {len} and a weight"));
            }
        }
    });
}

#[test]
fn what_was_added_can_be_taken_out_and_nothing_else() {
    each_cpu(|cpu| {
        let mut rng = Rng::new(6);
        let len = 300;
        let mut all: Vec<(Vec<i8>, u32)> =
            (0..20).map(|i| (rng.trits(len, 0.66), [1, 3, 8][i % 3])).collect();
        let mut counter = BitCounter::new(len).unwrap();
        for (vector, weight) in &all {
            counter.add(cpu, pack(vector).view(), *weight).unwrap();
        }
        // More than the total, more than the count of any position, and zeros where the counts have no zeros.
        let (ones, zeros) = (vec![1; len], vec![0; len]);
        assert!(!counter.remove(cpu, pack(&ones).view(), counter.total() + 1).unwrap());
        assert!(!counter.remove(cpu, pack(&ones).view(), counter.total() - 1).unwrap());
        assert!(!counter.remove(cpu, pack(&zeros).view(), counter.total() - 1).unwrap());
        check_counter(cpu, &counter, &all, "refused removals");
        while let Some((vector, weight)) = all.pop() {
            assert!(counter.remove(cpu, pack(&vector).view(), weight).unwrap());
            check_counter(cpu, &counter, &all, &format!("{} left", all.len()));
        }
        assert!(!counter.remove(cpu, pack(&zeros).view(), 1).unwrap());
        assert_eq!(counter.total(), 0);
    });
}

#[test]
fn counters_hold_their_limit() {
    each_cpu(|cpu| {
        let (vector, opposite) = (pack(&[1, -1, 0, 1]), pack(&[-1, 1, 0, 1]));
        let mut counter = BitCounter::new(4).unwrap();
        counter.add(cpu, vector.view(), MAX_WEIGHT - 1).unwrap();
        counter.add(cpu, opposite.view(), 1).unwrap();
        for refused in [1, u32::MAX] {
            assert!(matches!(counter.add(cpu, vector.view(), refused), Err(PopcountError::Range { .. })));
        }
        assert!(matches!(counter.add_all(cpu, &[vector.view()]), Err(PopcountError::Range { .. })));
        let mut sums = [0; 4];
        counter.sums(cpu, &mut sums).unwrap();
        let most = MAX_WEIGHT as i32;
        assert_eq!(sums, [most - 2, 2 - most, 0, most]);
        let mut out = poisoned(4);
        counter.majority(cpu, MAX_WEIGHT - 1, out.view_mut()).unwrap();
        assert_eq!(out.to_trits(), [0, 0, 0, 1]);
        counter.majority(cpu, MAX_WEIGHT - 3, out.view_mut()).unwrap();
        assert_eq!(out.to_trits(), [1, -1, 0, 1]);
        counter.plurality(cpu, out.view_mut()).unwrap();
        assert_eq!(out.to_trits(), [1, -1, 0, 1]);
        counter.add(cpu, vector.view(), 0).unwrap();
        assert!(counter.remove(cpu, opposite.view(), 1).unwrap());
        assert_eq!(counter.total(), MAX_WEIGHT - 1);
    });
}

#[test]
fn matrices_are_what_was_put_in() {
    let mut rng = Rng::new(7);
    for cols in LENGTHS.into_iter().filter(|&cols| cols > 0) {
        let trits: Vec<i8> = rng.trits(5 * cols, 0.66);
        let rows: Vec<Vec<i8>> = trits.chunks(cols).map(<[i8]>::to_vec).collect();
        let pushed = matrix(&rows, cols);
        for encoding in Encoding::ALL {
            let tensor = TritTensor::from_trits(5, cols, &trits, encoding, Scales::tensor(0.5)).unwrap();
            assert_eq!(PlaneMatrix::from_tensor(&tensor).unwrap(), pushed, "{encoding} {cols}");
        }
        assert_eq!((pushed.rows(), pushed.cols()), (5, cols));
        for (r, row) in rows.iter().enumerate() {
            let view = pushed.row(r).unwrap();
            assert_eq!(view.to_trits(), *row);
            assert_eq!(PlaneVector::from_view(view).unwrap(), pack(row));
            assert!((0..cols).all(|j| view.get(j).map(Trit::value) == Some(row[j])));
            assert!(view.get(cols).is_none());
        }
        assert!(pushed.row(5).is_none());
        let mut written = PlaneMatrix::zeros(5, cols).unwrap();
        assert!(written.row_mut(5).is_none());
        for (r, row) in rows.iter().enumerate() {
            written.row_mut(r).unwrap().copy_from(pack(row).view()).unwrap();
        }
        assert_eq!(written, pushed);
        assert!(written.swap_remove(1) && !written.swap_remove(4));
        assert_eq!(written.row(1), pushed.row(4));
        assert_eq!(written.rows(), 4);
    }
    // Padding to cache lines only where it is cheap.
    assert_eq!(PlaneMatrix::zeros(10, 10_000).unwrap().bytes(), 10 * 2560);
    assert_eq!(PlaneMatrix::zeros(10, 128).unwrap().bytes(), 10 * 32);
}

#[test]
fn what_is_no_vector_of_trits_is_refused() {
    let both = TritPlanes::new(&[0, 5], &[8, 4], 128).unwrap_err();
    assert!(matches!(both, PopcountError::Trit(TritError::BothBits { word: 1, .. })), "{both}");
    for (pos, neg) in [([1 << 10], [0]), ([0], [1 << 63])] {
        let tail = TritPlanes::new(&pos, &neg, 10).unwrap_err();
        assert!(matches!(tail, PopcountError::Trit(TritError::NonzeroPadding { .. })), "{tail}");
    }
    assert!(TritPlanes::new(&[1 << 9], &[0], 10).is_ok());
    for (pos, neg) in [(0, 1), (1, 0), (2, 1), (1, 2)] {
        let error = TritPlanes::new(&[0; 2][..pos], &[0; 2][..neg], 10).unwrap_err();
        assert!(matches!(error, PopcountError::Length { expected: 1, .. }), "{error}");
        assert!(TritPlanesMut::new(&mut [0; 2][..pos], &mut [0; 2][..neg], 10).is_err());
    }
    assert!(matches!(TritPlanes::new(&[], &[], MAX_TRITS + 1), Err(PopcountError::Range { .. })));
    assert!(matches!(PlaneVector::zeros(MAX_TRITS + 1), Err(PopcountError::Range { .. })));
    assert!(matches!(BitCounter::new(MAX_TRITS + 1), Err(PopcountError::Range { .. })));
    let value = PlaneVector::from_trits(&[0, 1, 2]).unwrap_err();
    assert!(matches!(value, PopcountError::Trit(TritError::Value { index: 2, value: 2 })), "{value}");
    for cols in [0, MAX_TRITS + 1] {
        assert!(matches!(PlaneMatrix::new(cols), Err(PopcountError::Range { .. })));
    }
    for rows in [usize::MAX, usize::MAX / 320, 1 << 50] {
        let error = PlaneMatrix::zeros(rows, 10_000).unwrap_err();
        assert!(matches!(error, PopcountError::Shape { .. } | PopcountError::Host(_)), "{error}");
    }
    let two = [[1i8, 0].as_slice(), &[0, 1]];
    let tensor =
        TritTensor::from_planes(1, 2, &two, Encoding::Planes, Default::default(), Scales::tensor(1.0));
    assert!(tensor.is_err() || PlaneMatrix::from_tensor(&tensor.unwrap()).is_err());
}

#[test]
fn lengths_that_do_not_fit_are_refused_and_nothing_is_written() {
    let cpu = Cpu::new(1).unwrap();
    let (a, b) = (pack(&[1, -1, 0]), pack(&[1, -1]));
    for score in SCORES {
        assert!(matches!(cpu.trit_score(score, a.view(), b.view()), Err(PopcountError::Length { .. })));
    }
    let mut out = poisoned(3);
    assert!(cpu.trit_sum_mod3(a.view(), b.view(), out.view_mut()).is_err());
    assert!(cpu.trit_product(b.view(), b.view(), out.view_mut()).is_err());
    assert!(cpu.trit_difference_mod3(b.view(), a.view(), out.view_mut()).is_err());
    assert!(cpu.trit_negate(b.view(), out.view_mut()).is_err());
    let mut counter = BitCounter::new(3).unwrap();
    assert!(counter.add(&cpu, b.view(), 1).is_err() && counter.add_all(&cpu, &[a.view(), b.view()]).is_err());
    assert!(counter.remove(&cpu, b.view(), 0).is_err());
    assert_eq!(counter.total(), 0);
    let mut short = poisoned(2);
    assert!(counter.majority(&cpu, 0, short.view_mut()).is_err());
    assert!(counter.plurality(&cpu, short.view_mut()).is_err());
    assert!(
        counter.sums(&cpu, &mut [0; 2]).is_err() && counter.counts(&cpu, &mut [0; 3], &mut [0; 2]).is_err()
    );
    assert_eq!((out, short), (poisoned(3), poisoned(2)));

    let (three, two) = (matrix(&[vec![1; 3]], 3), matrix(&[vec![1; 2]], 2));
    let mut scores = [7; 2];
    assert!(cpu.trit_matmul(&three, &two, &mut scores[..1]).is_err());
    assert!(cpu.trit_matmul(&three, &three, &mut scores).is_err());
    assert_eq!(scores, [7; 2]);
    assert!(PlaneMatrix::new(4).unwrap().push(a.view()).is_err());
    for (queries, stored, k) in
        [(&three, &two, 1), (&three, &three, 0), (&three, &PlaneMatrix::new(3).unwrap(), 1)]
    {
        assert!(cpu.trit_top_k(TritScore::Dot, queries, stored, k).is_err(), "{k}");
    }
    let none = PlaneMatrix::new(3).unwrap();
    assert!(cpu.trit_top_k(TritScore::Dot, &none, &three, 1).unwrap().is_empty());
    cpu.trit_matmul(&none, &three, &mut []).unwrap();
}
