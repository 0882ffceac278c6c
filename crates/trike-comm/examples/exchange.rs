//! Times of messages and exchanges between ranks, as lines of JSON:
//! `cargo build --release -p trike-comm --features mpi --example exchange && mpirun -n 2 target/release/examples/exchange`.
//!
//! Messages go from rank 0 to rank 1 and back; half of the round-trip time is reported. The sum is an all-reduce of a vector, as
//! training adds gradients. Times are measured on rank 0: the median, and the first decile, which is less sensitive to other
//! programs on the machine.
#![expect(clippy::print_stdout, reason = "an example prints its figures")]

use std::error::Error;
use std::time::Instant;

use trike_comm::{CommError, Communicator as _, Mpi, PartialSum, ReductionPlan, TreeSum};

/// Message sizes in bytes, and how often each is sent.
const MESSAGES: [(usize, usize); 7] =
    [(8, 201), (64, 201), (1 << 10, 201), (16 << 10, 101), (256 << 10, 41), (2 << 20, 15), (16 << 20, 7)];
/// Vector lengths, and how often each is summed.
const SUMS: [(usize, usize); 2] = [(100_000, 21), (2_500_000, 7)];

fn main() -> Result<(), Box<dyn Error>> {
    let comm = Mpi::start().ok_or("MPI was started before")?;
    let (rank, ranks) = (comm.rank(), comm.size());
    let print = |name: &str, size: usize, [median, fast]: [f64; 2]| {
        if rank == 0 {
            println!("{{\"{name}\":{size},\"ranks\":{ranks},\"seconds\":{median:e},\"fast\":{fast:e}}}");
        }
    };
    if ranks > 1 {
        for (bytes, times) in MESSAGES {
            let message = vec![1u8; bytes];
            let back_and_forth = times_of(times, || match rank {
                0 => comm.send(1, &message).and_then(|()| comm.receive(1, bytes).map(drop)),
                1 => comm.receive(0, bytes).and_then(|back| comm.send(0, &back)),
                _ => Ok(()),
            })?;
            print("message_bytes", bytes, back_and_forth.map(|seconds| seconds / 2.0));
            // The other ranks wait in a blocking call instead of polling.
            comm.barrier()?;
        }
    }
    for (elements, times) in SUMS {
        let plan = ReductionPlan::new(4, &comm);
        let mut sum = TreeSum::default();
        for block in plan.blocks() {
            sum.push(block, Some(vec![1.0f32; elements]), |_, _| {});
        }
        let parts = sum.into_parts();
        let parts: Vec<PartialSum<&[f32]>> = parts.iter().map(PartialSum::as_ref).collect();
        let mut all = vec![0.0; elements];
        let seconds = times_of(times, || plan.all_reduce(&comm, &parts, &mut all))?;
        print("sum_elements", elements, seconds);
        comm.barrier()?;
    }
    Ok(())
}

/// Median and first decile of `times` runs after a warm-up run, which allocates the memory.
fn times_of(times: usize, mut run: impl FnMut() -> Result<(), CommError>) -> Result<[f64; 2], CommError> {
    run()?;
    let mut all = Vec::with_capacity(times);
    for _ in 0..times {
        let start = Instant::now();
        run()?;
        all.push(start.elapsed().as_secs_f64());
    }
    all.sort_by(f64::total_cmp);
    Ok([all[times / 2], all[times / 10]])
}
