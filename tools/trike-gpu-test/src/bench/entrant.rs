//! Kernels and rivals to be timed at a problem, with their clock and the metadata of their row.

use anyhow::Result;
use trike_bench::{Contender, Limit};
use trike_cube::{Cost, Device};

/// A kernel or a rival at a problem.
pub(super) struct Entrant<'a> {
    pub(super) problem: String,
    pub(super) kernel: String,
    /// Specialization of the kernel.
    pub(super) blueprint: String,
    /// True for third-party code.
    pub(super) rival: bool,
    pub(super) cost: Cost,
    pub(super) limits: &'static [Limit],
    pub(super) contender: Contender<'a>,
}

/// A kernel or rival that could not be timed, with the reason.
pub(super) struct Absent {
    /// `None` for all problems.
    pub(super) problem: Option<String>,
    pub(super) kernel: String,
    /// Missing rivals are tolerated; a missing kernel of Trike is a failure.
    pub(super) rival: bool,
    pub(super) error: anyhow::Error,
}

/// Device copies of a weight matrix for one kernel or rival.
pub(super) trait Operands {
    /// The contenders for a product with this number of tokens; empty if it is not to be timed.
    fn entrants<'a>(&'a self, tokens: usize) -> Vec<Result<Entrant<'a>, Absent>>;
}

/// A contender timed by the device's clock, after a first launch that compiles the kernel. `launch` receives an increasing
/// index, by which it selects a copy of its operands.
pub(super) fn launches<'a>(
    device: &'a Device,
    launch: impl Fn(usize) -> trike_cube::Result<()> + Sync + 'a,
) -> Result<Contender<'a>> {
    launch(0)?;
    device.sync()?;
    let mut next = 0;
    Ok(Contender::by(move |calls| {
        let numbers = next..next + calls as usize;
        next = numbers.end;
        Ok(device.timed(|| numbers.into_iter().try_for_each(&launch))?)
    }))
}
