//! Ranks started by `mpirun`: common start and end of a command on all of them.

use std::rc::Rc;

use anyhow::Context as _;
use trike::comm::{Communicator, Mpi};

use crate::{advice, causes, exit_code, output, topics::Topic};

/// This process as a rank; without `mpirun` it is the only one.
pub(crate) fn start() -> anyhow::Result<Mpi> {
    Mpi::start().context("MPI was started before")
}

/// Whether `mpirun` has started this process.
pub(crate) fn are_started() -> bool {
    // Set by Open MPI, and by MPICH and its derivatives.
    ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].iter().any(|name| std::env::var_os(name).is_some())
}

/// Runs a command on this rank. An error of one rank ends all, with its number in the message, so that no rank waits for it; an
/// error known to all ranks ([`together`]) is printed once.
pub(crate) fn run(work: impl FnOnce(&Rc<Mpi>) -> anyhow::Result<u8>) -> anyhow::Result<u8> {
    let comm = Rc::new(start()?);
    let rank = comm.rank();
    let error = match work(&comm) {
        Ok(code) => return Ok(code),
        // The reader of the text has closed the pipe: the other ranks end with this one.
        Err(error) if comm.size() == 1 || crate::is_broken_pipe(&error) => return Err(error),
        Err(error) => error,
    };
    match error.downcast::<Known>() {
        Ok(Known { error, code }) => {
            if let Some(error) = error {
                report(error, rank);
            }
            // `mpirun` kills all ranks when the first one has failed: wait until the error is reported.
            let _ = comm.barrier();
            Ok(code)
        }
        Err(error) => comm.abort(i32::from(report(error, rank))),
    }
}

/// Prints an error of this rank, and returns its exit code.
fn report(error: anyhow::Error, rank: usize) -> u8 {
    let code = exit_code(&error);
    match error.downcast_ref::<clap::Error>() {
        // Errors are ignored: there is nowhere to report them.
        Some(usage) => _ = usage.print(),
        None => {
            let (advice, topic) = (advice::advice(&error), causes::topic(&error));
            output::error(&error.context(format!("rank {rank}")), advice.as_deref(), topic.map(Topic::name));
        }
    }
    code
}

/// An error known to all ranks, so that each can end by itself.
#[derive(Debug)]
struct Known {
    /// `None` on all ranks but the reporting one.
    error: Option<anyhow::Error>,
    code: u8,
}

impl std::fmt::Display for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.error {
            Some(error) => error.fmt(f),
            None => f.write_str("another rank has failed"),
        }
    }
}

impl std::error::Error for Known {}

/// The result of this rank if no rank has an error. Otherwise the first rank with an error reports it, and all end with its exit
/// code.
///
/// Collective, after work without communication between ranks.
pub(crate) fn together<T>(comm: &Mpi, result: anyhow::Result<T>) -> anyhow::Result<T> {
    let code = result.as_ref().map_or_else(exit_code, |_| 0);
    let codes = comm.all_gather(&[code], 1)?;
    let failed = codes.iter().enumerate().find_map(|(rank, code)| match code[..] {
        [0] => None,
        [code] => Some((rank, code)),
        _ => Some((rank, crate::FAILURE)),
    });
    match (failed, result) {
        (None, result) => result,
        (Some((first, code)), Err(error)) if first == comm.rank() => {
            Err(Known { error: Some(error), code }.into())
        }
        (Some((_, code)), _) => Err(Known { error: None, code }.into()),
    }
}

/// The result of a step that fails with the same error on all ranks, if at all: rank 0 reports it.
pub(crate) fn alike<T>(comm: &Mpi, result: anyhow::Result<T>) -> anyhow::Result<T> {
    result.map_err(|error| {
        let code = exit_code(&error);
        Known { error: (comm.rank() == 0).then_some(error), code }.into()
    })
}
