//! Sums over ranks: bit-identical for 1, 2, 3 and 4 ranks, and errors instead of wrong results.

use std::time::Duration;

use trike_comm::{
    CommError, Communicator, PartialSum, ReductionPlan, Shards, Threads, TreeSum, broadcast_floats, mean,
};
use trike_testkit::{Rng, assert_all_near};

/// The gradient of a unit; sums in different orders give different bits.
fn gradient(unit: usize, len: usize) -> Vec<f32> {
    let mut rng = Rng::new(unit as u64 + 1);
    (0..len).map(|_| (rng.f32_unit() - 0.5) * 10f32.powi(rng.below(8) as i32)).collect()
}

fn add(sum: &mut [f32], x: &[f32]) {
    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
}

fn parts(plan: &ReductionPlan, len: usize) -> Vec<PartialSum<Vec<f32>>> {
    let mut sum = TreeSum::default();
    for block in plan.blocks() {
        let units = plan.units(block).map(|unit| gradient(unit, len));
        let block_sum = units.reduce(|mut sum, unit| {
            add(&mut sum, &unit);
            sum
        });
        sum.push(block, block_sum, |a, b| add(a, b));
    }
    sum.into_parts()
}

fn all_reduce(comm: &Threads, units: usize, len: usize) -> Vec<f32> {
    let plan = ReductionPlan::new(units, comm);
    let parts = parts(&plan, len);
    let parts: Vec<PartialSum<&[f32]>> = parts.iter().map(PartialSum::as_ref).collect();
    let mut out = vec![f32::NAN; len];
    plan.all_reduce(comm, &parts, &mut out).expect("a sum");
    out
}

/// Sixteen units in four blocks of four, and the blocks in pairs.
fn oracle(len: usize) -> Vec<f32> {
    let block = |block: usize| {
        (4 * block + 1..4 * block + 4).fold(gradient(4 * block, len), |mut sum, unit| {
            add(&mut sum, &gradient(unit, len));
            sum
        })
    };
    let pair = |first: usize| {
        let mut sum = block(first);
        add(&mut sum, &block(first + 1));
        sum
    };
    let mut sum = pair(0);
    add(&mut sum, &pair(2));
    sum
}

#[test]
fn up_to_four_ranks_have_the_same_bits() {
    for len in [0, 1, 3, 1000] {
        for ranks in 1..=4 {
            for sum in Threads::run(ranks, |comm| all_reduce(&comm, 16, len)) {
                assert_eq!(sum, oracle(len), "{ranks} ranks, {len} elements");
            }
        }
    }
    for units in 0..=9 {
        let one = Threads::run(1, |comm| all_reduce(&comm, units, 7));
        for ranks in 2..=4 {
            assert!(Threads::run(ranks, |comm| all_reduce(&comm, units, 7)).iter().all(|sum| *sum == one[0]));
        }
        // More ranks have more blocks, and all ranks have the same sum.
        for ranks in 5..=9 {
            let all = Threads::run(ranks, |comm| all_reduce(&comm, units, 7));
            assert!(all.iter().all(|sum| *sum == all[0]), "{units} units, {ranks} ranks");
            assert_all_near!(&all[0], &one[0], abs = 100.0, "{units} units, {ranks} ranks");
        }
    }
}

#[test]
fn every_unit_has_one_rank() {
    for ranks in 1..=9 {
        for units in [0, 1, 5, 16, 1000] {
            let all = Threads::run(ranks, |comm| {
                let plan = ReductionPlan::new(units, &comm);
                plan.blocks().flat_map(|block| plan.units(block)).collect::<Vec<_>>()
            });
            assert_eq!(all.concat(), (0..units).collect::<Vec<_>>(), "{ranks} ranks");
        }
    }
}

#[test]
fn parts_of_another_plan_are_refused() {
    let [comm] = &Threads::new(1)[..] else { unreachable!("one rank") };
    let (four, five) = (ReductionPlan::new(4, comm), ReductionPlan::new(5, comm));
    let sums = parts(&five, 3);
    let sums: Vec<PartialSum<&[f32]>> = sums.iter().map(PartialSum::as_ref).collect();
    assert!(four.reduce_scatter(comm, &sums, &Shards::even(2, 1)).is_err());
    assert!(four.reduce_scatter(comm, &[], &Shards::even(3, 1)).is_err());
    assert!(five.reduce_scatter(comm, &sums, &Shards::even(3, 2)).is_err());
    assert!(Shards::even(2, 1).all_gather(comm, &[1.0], &mut [0.0; 2]).is_err());
    assert!(Shards::even(1, 1).all_gather(comm, &[1.0], &mut [0.0; 2]).is_err());
    assert!(matches!(Shards::of(&[1, usize::MAX]), Err(CommError::Range { .. })));
}

/// A rank that stops, one that sends something else, and one that sends too little.
#[test]
fn what_goes_wrong_is_an_error_of_those_who_wait() {
    let results = Threads::run(3, |comm| {
        let comm = comm.with_deadline(Duration::from_millis(100));
        if comm.rank() == 2 {
            return Ok(());
        }
        comm.barrier()
    });
    // The first of the two to notice names the rank that has exited; the other one may find that one gone first.
    let gone =
        |rank: usize, by: &[usize]| by.iter().any(|&by| results[rank] == Err(CommError::Gone { rank: by }));
    assert!(gone(0, &[1, 2]) && gone(1, &[0, 2]), "{results:?}");
    assert!(gone(0, &[2]) || gone(1, &[2]), "{results:?}");

    let results = Threads::run(2, |comm| {
        let comm = comm.with_deadline(Duration::from_millis(100));
        match comm.rank() {
            0 => comm.receive(1, 10).map(drop),
            _ => {
                std::thread::sleep(Duration::from_millis(400));
                Ok(())
            }
        }
    });
    assert!(matches!(results[0], Err(CommError::Deadline { rank: 1, .. })), "{results:?}");

    let results = Threads::run(2, |comm| {
        let plan = ReductionPlan::new(4, &comm);
        let len = if comm.rank() == 0 { 10 } else { 12 };
        let sums = parts(&plan, len);
        let sums: Vec<PartialSum<&[f32]>> = sums.iter().map(PartialSum::as_ref).collect();
        plan.reduce_scatter(&comm, &sums, &Shards::even(len, 2)).map(drop)
    });
    assert!(results.iter().all(Result::is_err), "{results:?}");
}

#[test]
fn ranks_are_checked() {
    let ranks = Threads::new(2);
    for wrong in [0, 2, usize::MAX] {
        assert!(matches!(ranks[0].send(wrong, b""), Err(CommError::Rank { .. })));
        assert!(matches!(ranks[0].receive(wrong, 1), Err(CommError::Rank { .. })));
    }
    assert!(ranks[0].broadcast(2, None, 1).is_err());
    assert!(ranks[0].broadcast(0, None, 1).is_err());
    assert!(ranks[0].broadcast(1, Some(b""), 1).is_err());
    assert!(ranks[0].all_to_all(&[b""], 1).is_err());
    ranks[0].send(1, b"12345").expect("it is sent");
    assert_eq!(ranks[1].receive(0, 4), Err(CommError::TooLong { rank: 0, most: 4, got: 5 }));
    let traffic = ranks[0].traffic();
    assert_eq!((traffic.messages, traffic.sent), (1, 25));
}

/// Each rank adds up its own shard, of any length.
#[test]
fn shards_may_have_any_length() {
    for lens in [[3, 0, 4], [0, 0, 7], [7, 0, 0], [1, 5, 1]] {
        let all = Threads::run(3, |comm| {
            let shards = Shards::of(&lens).expect("shards");
            let plan = ReductionPlan::new(16, &comm);
            let parts = parts(&plan, 7);
            let parts: Vec<PartialSum<&[f32]>> = parts.iter().map(PartialSum::as_ref).collect();
            let own = plan.reduce_scatter(&comm, &parts, &shards).expect("a sum");
            assert_eq!(own.len(), lens[comm.rank()]);
            let mut all = vec![f32::NAN; 7];
            shards.all_gather(&comm, &own, &mut all).expect("all");
            all
        });
        assert!(all.iter().all(|sum| *sum == oracle(7)), "{lens:?}");
    }
}

#[test]
fn numbers_of_a_rank_reach_all() {
    for root in 0..3 {
        let all = Threads::run(3, |comm| {
            let own = [comm.rank() as f32, 0.5];
            let values = (comm.rank() == root).then_some(&own[..]);
            broadcast_floats(&comm, root, values, 2).expect("they arrive")
        });
        assert!(all.iter().all(|values| *values == [root as f32, 0.5]));
    }
    let [comm] = &Threads::new(1)[..] else { unreachable!("one rank") };
    assert!(matches!(broadcast_floats(comm, 0, Some(&[1.0]), 2), Err(CommError::Length { .. })));
}

#[test]
fn a_mean_is_the_same_on_all_ranks() {
    for (ranks, len) in [(1, 3), (2, 0), (3, 1), (3, 7), (4, 1000)] {
        let all = Threads::run(ranks, |comm| {
            let mut values = gradient(comm.rank(), len);
            mean(&comm, &mut values).expect("a mean");
            values
        });
        let mut sum = vec![0f64; len];
        for rank in 0..ranks {
            sum.iter_mut().zip(gradient(rank, len)).for_each(|(sum, x)| *sum += f64::from(x));
        }
        let want: Vec<f32> = sum.iter().map(|sum| (sum / ranks as f64) as f32).collect();
        assert!(all.iter().all(|values| *values == want), "{ranks} ranks, {len} numbers");
    }
    // The mean of numbers whose sum overflows f32.
    for (ranks, of_rank, want) in [
        (2, [3e38, 3e38, 0.0], 3e38),
        (3, [f32::MAX; 3], f32::MAX),
        (3, [f32::MAX, f32::MAX, -f32::MAX], f32::MAX / 3.0),
        (2, [f32::MAX, f32::MIN, 0.0], 0.0),
    ] {
        let all = Threads::run(ranks, |comm| {
            let mut values = [of_rank[comm.rank()]];
            mean(&comm, &mut values).map(|()| values[0])
        });
        assert!(all.iter().all(|mean| *mean == Ok(want)), "{of_rank:?}: {all:?}");
    }
    let all = Threads::run(2, |comm| mean(&comm, &mut vec![1.0; 4 + 2 * comm.rank()]));
    assert!(all.iter().all(Result::is_err), "{all:?}");
}
