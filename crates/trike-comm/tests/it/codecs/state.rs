//! Runs that stop and resume, on the same or another number of ranks.

use trike_comm::codec::{Carry, restore};
use trike_comm::{Codec, CodecConfig, CommError, Communicator, Threads};
use trike_testkit::assert_all_near;

use super::{LOSSLESS, add, all, gradient, kept, saved};

const SHAPES: [[usize; 2]; 3] = [[40, 30], [1, 30], [30, 41]];
const LEN: usize = 2460;

/// The mean of each of these steps.
fn steps(codec: &mut dyn Codec, comm: &Threads, steps: std::ops::Range<usize>) -> Vec<Vec<f32>> {
    let mean = |step| {
        let mut gradient = gradient(comm.rank(), step, LEN);
        codec.exchange(comm, &mut gradient).expect("a mean");
        gradient
    };
    steps.map(mean).collect()
}

#[test]
fn a_run_goes_on_with_the_same_bits() {
    for config in all() {
        let whole = Threads::run(2, |comm| {
            let mut codec = config.build(&SHAPES).expect("a codec");
            (steps(&mut *codec, &comm, 0..6), saved(&*codec))
        });
        let halves = Threads::run(2, |comm| {
            let mut codec = config.build(&SHAPES).expect("a codec");
            (steps(&mut *codec, &comm, 0..3), saved(&*codec))
        });
        let old: Vec<Vec<Vec<f32>>> = halves.iter().map(|(_, saved)| saved.clone()).collect();
        let rest = Threads::run(2, |comm| {
            let mut codec = config.build(&SHAPES).expect("a codec");
            restore(&mut *codec, &old, comm.rank(), 2).expect("it fits");
            (steps(&mut *codec, &comm, 3..6), saved(&*codec))
        });
        for rank in 0..2 {
            assert_eq!([&halves[rank].0[..], &rest[rank].0[..]].concat(), whole[rank].0, "{config:?}");
            assert_eq!(rest[rank].1, whole[rank].1, "{config:?}");
        }
    }
}

/// Applied updates plus the mean residual are the mean gradients, even if the number of ranks changes.
#[test]
fn nothing_is_lost_on_another_number_of_ranks() {
    for config in LOSSLESS {
        for (before, after) in [(3, 2), (1, 3), (2, 1), (2, 5)] {
            let first = Threads::run(before, |comm| {
                let mut codec = config.build(&SHAPES).expect("a codec");
                (steps(&mut *codec, &comm, 0..4), saved(&*codec))
            });
            let old: Vec<Vec<Vec<f32>>> = first.iter().map(|(_, saved)| saved.clone()).collect();
            let second = Threads::run(after, |comm| {
                let mut codec = config.build(&SHAPES).expect("a codec");
                restore(&mut *codec, &old, comm.rank(), after).expect("it fits");
                (steps(&mut *codec, &comm, 4..8), kept(&*codec))
            });
            assert!(second.iter().all(|(means, _)| *means == second[0].0), "{config:?}");
            let mut got = vec![0.0; LEN];
            first[0].0.iter().chain(&second[0].0).for_each(|mean| add(&mut got, 1.0, mean));
            second.iter().for_each(|(_, kept)| add(&mut got, 1.0 / after as f32, kept));
            let mut given = vec![0.0; LEN];
            for (ranks, steps) in [(before, 0..4), (after, 4..8)] {
                for step in steps {
                    for rank in 0..ranks {
                        add(&mut given, 1.0 / ranks as f32, &gradient(rank, step, LEN));
                    }
                }
            }
            assert_all_near!(&got, &given, abs = 1e-4, "{config:?} from {before} to {after} ranks");
        }
    }
}

#[test]
fn vectors_have_names_and_their_kind() {
    for config in all() {
        let codec = config.build(&SHAPES).expect("a codec");
        let state = codec.state();
        for (number, vector) in state.iter().enumerate() {
            assert!(state[..number].iter().all(|other| other.name != vector.name), "{config:?}");
            let want = if ["q", "step"].contains(&vector.name) { Carry::Same } else { Carry::Mean };
            assert_eq!(vector.carry, want, "{config:?} {}", vector.name);
        }
        let lens: Vec<usize> = state.iter().map(|vector| vector.values.len()).collect();
        let mut codec = config.build(&SHAPES).expect("a codec");
        assert_eq!(codec.state_mut().iter().map(|vector| vector.len()).collect::<Vec<_>>(), lens);
    }
}

#[test]
fn states_that_do_not_fit_change_nothing() {
    let mut codec = CodecConfig::LowRank { rank: 1 }.build(&[[4, 5]]).expect("a codec");
    let before = saved(&*codec);
    let good = vec![vec![1.0; 20], vec![2.0; 5]];
    let none: [Vec<Vec<f32>>; 0] = [];
    let refused = |codec: &mut dyn Codec, old: &[Vec<Vec<f32>>], rank, ranks| {
        let error = restore(codec, old, rank, ranks).expect_err("it does not fit");
        assert_eq!(saved(codec), before);
        error
    };
    let old = [good.clone(), good.clone()];
    assert_eq!(refused(&mut *codec, &old, 2, 2), CommError::Rank { rank: 2, size: 2 });
    assert!(matches!(refused(&mut *codec, &none, 0, 2), CommError::Length { got: 0, .. }));
    let fewer = [good.clone(), good[..1].to_vec()];
    assert!(matches!(refused(&mut *codec, &fewer, 0, 2), CommError::Length { expected: 2, got: 1, .. }));
    let shorter = [good.clone(), vec![vec![1.0; 19], vec![2.0; 5]]];
    assert!(matches!(refused(&mut *codec, &shorter, 0, 1), CommError::Length { expected: 20, got: 19, .. }));
    let other = [vec![vec![1.0; 20], vec![2.0; 4]]];
    assert!(matches!(
        refused(&mut *codec, &other, 0, 1),
        CommError::Length { what: "q", expected: 5, got: 4 }
    ));
    let mut differs = [good.clone(), good.clone()];
    differs[1][1][3] = 3.0;
    assert_eq!(
        refused(&mut *codec, &differs, 0, 2).to_string(),
        "ranks 1 and 0 differ in state that is the same on all ranks: 3 and 2"
    );
    restore(&mut *codec, &old, 0, 3).expect("it fits");
    assert_eq!(saved(&*codec), good);
}
