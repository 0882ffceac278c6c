//! Messages between the ranks of a run, other than gradients.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use trike_comm::{CommError, Communicator, Traffic};

use super::RanksReport;
use crate::TrainError;
use crate::trainer::all_numbers;

/// Maximum message size for values that one rank has read, in bytes.
const MOST: usize = 1 << 26;
/// Maximum size of the documents of a rank, in bytes.
const DOCUMENTS: usize = 1 << 34;

/// Whether this is the rank that reads and writes files.
pub(super) fn is_first(comm: Option<&dyn Communicator>) -> bool {
    comm.is_none_or(|comm| comm.rank() == 0)
}

/// Broadcasts a result of the first rank.
pub(super) fn from_first<T: Serialize + DeserializeOwned>(
    comm: Option<&dyn Communicator>,
    find: impl FnOnce() -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    let Some(comm) = comm else { return find() };
    let wrong = |e: serde_json::Error| TrainError::Config { problem: format!("from rank 0: {e}") };
    let found = if comm.rank() == 0 { Some(find()) } else { None };
    let message =
        found.as_ref().map(|found| serde_json::to_vec(&found.as_ref().map_err(ToString::to_string)));
    let message = message.transpose().map_err(wrong)?;
    let message = comm.broadcast(0, message.as_deref(), MOST)?;
    if let Some(found) = found {
        return found;
    }
    let found: Result<T, String> = serde_json::from_slice(&message).map_err(wrong)?;
    found.map_err(|problem| TrainError::OfRank { rank: 0, problem })
}

/// Gathers the values of all ranks, in rank order.
pub(super) fn of_all<T: Serialize + DeserializeOwned>(
    comm: &dyn Communicator,
    own: &T,
) -> Result<Vec<T>, TrainError> {
    let wrong = |e: serde_json::Error| TrainError::Config { problem: format!("from a rank: {e}") };
    let all = comm.all_gather(&serde_json::to_vec(own).map_err(wrong)?, MOST)?;
    all.iter().map(|text| serde_json::from_slice(text)).collect::<Result<_, _>>().map_err(wrong)
}

/// Time and traffic of a rank at one moment.
pub(super) struct Moment {
    traffic: Traffic,
    time: Instant,
    processor: Option<Duration>,
}

impl Moment {
    pub(super) fn now(comm: &dyn Communicator) -> Self {
        Self { traffic: comm.traffic(), time: Instant::now(), processor: processor_time() }
    }
}

/// Traffic and time of a rank during steps, excluding evaluations and checkpoints.
#[derive(Default)]
pub(super) struct StepTraffic {
    messages: u64,
    sent: u64,
    waiting: Duration,
    time: Duration,
    /// NaN if the system does not report it.
    processor: f64,
}

impl StepTraffic {
    /// Adds a step between two moments.
    pub(super) fn add(&mut self, before: &Moment, after: &Moment) {
        self.messages += after.traffic.messages - before.traffic.messages;
        self.sent += after.traffic.sent - before.traffic.sent;
        self.waiting += after.traffic.waiting - before.traffic.waiting;
        self.time += after.time - before.time;
        self.processor += match (before.processor, after.processor) {
            (Some(before), Some(after)) => after.saturating_sub(before).as_secs_f64(),
            _ => f64::NAN,
        };
    }
}

/// Traffic and time of all ranks during steps.
pub(super) fn report(comm: &dyn Communicator, steps: &StepTraffic) -> Result<RanksReport, CommError> {
    let own = [
        steps.messages as f64,
        steps.sent as f64,
        steps.waiting.as_secs_f64(),
        steps.time.as_secs_f64(),
        steps.processor,
    ];
    let all = all_numbers(comm, &own)?;
    let sum = |i: usize| all.iter().filter_map(|of_rank| of_rank.get(i)).sum::<f64>();
    let count = comm.size();
    let mean = |i: usize| sum(i) / count as f64;
    Ok(RanksReport {
        count,
        sent_messages: sum(0) as u64,
        sent_bytes: sum(1) as u64,
        waiting_seconds: mean(2),
        step_seconds: mean(3),
        processor_seconds: Some(mean(4)).filter(|seconds| seconds.is_finite()),
    })
}

/// CPU time of this process's threads so far, with a resolution of 10 ms, on Linux.
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The program name, in parentheses, may contain spaces. The twelfth and thirteenth fields after it are user and system time in
    // clock ticks, 100 per second for user space on every architecture.
    let (_, fields) = text.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    Some(Duration::from_millis(10 * (ticks.next()?? + ticks.next()??)))
}

/// Whether `says` is true on any rank.
pub(super) fn any(comm: Option<&dyn Communicator>, says: bool) -> Result<bool, CommError> {
    let Some(comm) = comm else { return Ok(says) };
    Ok(comm.all_gather(&[u8::from(says)], 1)?.iter().any(|other| *other == [1]))
}

/// The documents of all ranks, in rank order. A message has the length of each document, then the tokens, in four bytes each.
pub(super) fn all_documents(
    comm: Option<&dyn Communicator>,
    own: Vec<Vec<u32>>,
) -> Result<Vec<Vec<u32>>, CommError> {
    let Some(comm) = comm else { return Ok(own) };
    let words = own
        .iter()
        .flat_map(|document| std::iter::once(document.len() as u32).chain(document.iter().copied()));
    let message: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    let mut all = Vec::new();
    for (rank, message) in comm.all_gather(&message, DOCUMENTS)?.iter().enumerate() {
        let mut words = message.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
        while let Some(len) = words.next() {
            let expected = len as usize;
            let document: Vec<u32> = words.by_ref().take(expected).collect();
            if document.len() < expected {
                return Err(CommError::Cut { rank, expected: 4 * expected, got: 4 * document.len() });
            }
            all.push(document);
        }
    }
    Ok(all)
}
