//! What an engine has done and is doing.

use std::time::Duration;

/// Counts and times since the start of an engine, for monitoring.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Metrics {
    /// Requests submitted and not refused.
    pub requests: u64,
    /// Texts that ended by themselves, by a limit or by a stop string.
    pub finished: u64,
    /// Requests that were cancelled.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests that were refused, since too many waited.
    pub refused: u64,
    /// Requests that were stopped for want of memory and run again.
    pub preempted: u64,
    /// Tokens of prompts that were read.
    pub prompt_tokens: u64,
    /// Tokens of prompts whose keys and values were reused.
    pub reused_tokens: u64,
    /// New tokens.
    pub generated_tokens: u64,
    /// Steps of the model.
    pub steps: u64,
    /// Requests that run now.
    pub running: usize,
    /// Requests that wait now.
    pub waiting: usize,
    /// Pages of keys and values in use, those kept for later texts included; 0 for a backend without pages.
    pub pages: usize,
    /// Pages kept for later texts.
    pub kept_pages: usize,
    /// Pages that fit in the memory for them.
    pub page_limit: usize,
    /// Times from the arrival of a request to its first token.
    pub first_token: Histogram,
    /// Times between two tokens of a text.
    pub between_tokens: Histogram,
}

/// A sequence of the engine's batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// The request that runs in it.
    pub request: Option<u64>,
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Tokens whose keys and values are computed.
    pub position: usize,
    /// New tokens.
    pub generated: usize,
}

/// Durations, counted in buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    counts: [u64; Self::BOUNDS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    /// Upper bounds of the buckets in seconds; longer durations are counted by [`count`](Self::count) alone.
    pub const BOUNDS: [f64; 14] =
        [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

    pub(crate) fn add(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        if let Some(bucket) = Self::BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.counts[bucket] += 1;
        }
        self.count += 1;
        self.sum += seconds;
    }

    /// The number of durations up to each bound.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut total = 0;
        Self::BOUNDS.into_iter().zip(self.counts).map(move |(bound, count)| {
            total += count;
            (bound, total)
        })
    }

    /// The number of all durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum in seconds.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_up_to_each_bound() {
        let mut times = Histogram::default();
        for milliseconds in [1, 2, 40, 100_000] {
            times.add(Duration::from_millis(milliseconds));
        }
        let counts: Vec<u64> = times.cumulative().map(|(_, count)| count).collect();
        assert_eq!(counts, [1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
        assert_eq!((times.count(), times.sum().round()), (4, 100.0));
    }
}
