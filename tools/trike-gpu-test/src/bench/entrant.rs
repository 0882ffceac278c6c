//! Kernels and rivals to be timed at a problem, with their clock and the metadata of their row.

use anyhow::Result;
use std::time::Duration;
use trike_bench::{Contender, Launching, Limit, median};
use trike_cube::{Cost, CubeDevice, CubeError, Graphs};

/// Name of Trike's kernels for problems without a choice of weight formats in records.
pub(super) const TRIKE: &str = "trike";

/// Ceilings of FP16 kernels.
pub(super) const HALVES: &[Limit] = &[Limit::Memory, Limit::F16];

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
    pub(super) timed: Timed<'a>,
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

/// A function of the device with the way in which it is launched.
pub(super) struct Timed<'a> {
    pub(super) contender: Contender<'a>,
    pub(super) launching: Launching,
}

/// Calls recorded in a graph, at least: the host's time for one replay is spread over as many.
const RECORDED: usize = 64;
/// Calls that take longer are enqueued faster than they run, so that recording them would change nothing.
pub(super) const LONG: Duration = Duration::from_millis(1);
/// Windows of the time of calls that the host launches one by one.
const LIVE_WINDOWS: usize = 3;

/// A contender timed by the device's clock. `launch` receives an index, by which it selects one of `copies` copies of its
/// operands.
///
/// Calls are recorded as a graph, each copy equally often, and its replays are timed: launched one by one, short kernels
/// would wait for the host. That time is measured beside it. Calls that cannot be recorded, and long ones, are launched.
pub(super) fn launches<'a>(
    device: &'a CubeDevice,
    copies: usize,
    launch: impl Fn(usize) -> trike_cube::Result<()> + Sync + 'a,
) -> Result<Timed<'a>> {
    // The first launch compiles the kernel.
    launch(0)?;
    device.sync()?;
    let alone = device.timed(|| launch(1))?;
    let length = calls_to_record(copies);
    let recorded = if alone < LONG && device.capabilities().graphs != Graphs::None {
        match device.capture(|| (0..length).try_for_each(&launch)) {
            Ok((graph, ())) => Some(graph),
            Err(CubeError::Capture { .. }) => None,
            Err(e) => return Err(e.into()),
        }
    } else {
        None
    };
    let Some(graph) = recorded else {
        let mut next = 0;
        let contender = Contender::by(move |calls| {
            let numbers = next..next + calls as usize;
            next = numbers.end;
            Ok(device.timed(|| numbers.into_iter().try_for_each(&launch))?)
        });
        return Ok(Timed { contender, launching: Launching::default() });
    };
    let live_seconds = live_seconds(length, || Ok(device.timed(|| (0..length).try_for_each(&launch))?))?;
    let launching = Launching { recorded: length, live_seconds };
    Ok(replayed(
        launching,
        move |replays| Ok(device.timed(|| (0..replays).try_for_each(|_| graph.replay()))?),
    ))
}

/// Number of calls in a graph, with each copy of the operands equally often.
pub(super) fn calls_to_record(copies: usize) -> usize {
    RECORDED.next_multiple_of(copies.max(1))
}

/// Seconds per call where the host launches each by itself; `window` launches `calls` of them, and returns the time of all by
/// the device's clock.
pub(super) fn live_seconds(calls: usize, window: impl FnMut() -> Result<Duration>) -> Result<Option<f64>> {
    let all: Vec<Duration> = std::iter::repeat_with(window).take(LIVE_WINDOWS).collect::<Result<_>>()?;
    let seconds: Vec<f64> = all.iter().map(|all| all.as_secs_f64() / calls as f64).collect();
    Ok(median(&seconds))
}

/// A contender that replays a graph of `launching.recorded` calls; `replay` replays it a number of times, and returns the time
/// of all by the device's clock.
pub(super) fn replayed<'a>(
    launching: Launching,
    mut replay: impl FnMut(u64) -> Result<Duration> + 'a,
) -> Timed<'a> {
    let length = launching.recorded as u64;
    let contender = Contender::by(move |calls| {
        let replays = calls.div_ceil(length);
        Ok(replay(replays)?.mul_f64(calls as f64 / (replays * length) as f64))
    });
    Timed { contender, launching }
}
