//! Who is timed at a problem: a kernel of ours or a rival, with a clock and what its figure says besides.

use anyhow::Result;
use trike_bench::{Contender, Limit};
use trike_cube::{Cost, Device};

/// A kernel or a rival at a problem.
pub(super) struct Entrant<'a> {
    pub(super) problem: String,
    pub(super) kernel: String,
    /// How the kernel was specialised.
    pub(super) blueprint: String,
    /// Whether somebody else's code runs.
    pub(super) rival: bool,
    pub(super) cost: Cost,
    pub(super) limits: &'static [Limit],
    pub(super) contender: Contender<'a>,
}

/// Why there is no [`Entrant`], or no time of one.
pub(super) struct Absent {
    /// None: at all problems.
    pub(super) problem: Option<String>,
    pub(super) kernel: String,
    /// Rivals may be missing; a kernel of ours is a failure.
    pub(super) rival: bool,
    pub(super) error: anyhow::Error,
}

/// Operands of a matrix for one kernel or rival.
pub(super) trait Operands {
    /// The contenders for a product with so many tokens; none where it is not asked.
    fn entrants<'a>(&'a self, tokens: usize) -> Vec<Result<Entrant<'a>, Absent>>;
}

/// Launches by the device's own clock, after one that compiles. `launch` gets a number that grows by one each time, to
/// choose among copies of its operands.
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
