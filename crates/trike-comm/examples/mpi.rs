//! A sum that is bit-identical on one to four ranks: `cargo build -p trike-comm --features mpi --example mpi && mpirun -n 4
//! target/debug/examples/mpi`.
#![expect(clippy::print_stdout, reason = "an example prints its figures")]

use std::error::Error;

use trike_comm::{Communicator as _, Mpi, PartialSum, ReductionPlan, TreeSum, agree};

/// Micro-batches of a step.
const UNITS: usize = 16;
/// Elements of a gradient.
const LEN: usize = 1_000_000;

/// Adds the gradient of a micro-batch.
fn add_unit(sum: &mut [f32], unit: usize) {
    for (i, sum) in sum.iter_mut().enumerate() {
        *sum += ((31 * i + 17 * unit) % 1009) as f32 * 1e-3;
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let comm = Mpi::start().ok_or("MPI was started before")?;
    agree(&comm, "version", env!("CARGO_PKG_VERSION"))?;
    let plan = ReductionPlan::new(UNITS, &comm);
    let mut sum = TreeSum::default();
    for block in plan.blocks() {
        let mut gradient = vec![0.0; LEN];
        plan.units(block).for_each(|unit| add_unit(&mut gradient, unit));
        sum.push(block, Some(gradient), |a, b| a.iter_mut().zip(b).for_each(|(a, b)| *a += b));
    }
    let parts = sum.into_parts();
    let parts: Vec<PartialSum<&[f32]>> = parts.iter().map(PartialSum::as_ref).collect();
    let mut all = vec![f32::NAN; LEN];
    plan.all_reduce(&comm, &parts, &mut all)?;
    let bits = all.iter().fold(0u64, |bits, x| bits.rotate_left(5) ^ u64::from(x.to_bits()));
    let (rank, size, traffic) = (comm.rank(), comm.size(), comm.traffic());
    let (sent, waited) = (traffic.sent as f64 / 1e6, traffic.waiting.as_secs_f64());
    println!("rank {rank} of {size}: sum {bits:016x}, {sent:.1} MB sent, {waited:.3} s waited");
    comm.barrier()?;
    Ok(())
}
