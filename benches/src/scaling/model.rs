//! The cost of a step.
//!
//! A rank takes, per step,
//!
//! ```text
//! busy  = fixed(ranks) + tokens * token + elements * (codec(ranks) - codec(1)) + messages * alpha + bytes * beta
//! total = busy * max(1, ranks per machine * threads / cores) + rounds * latency + bytes / bandwidth
//! ```
//!
//! where `cores` are those that other programs leave, `fixed(1)` and `token` are those of one rank, `fixed(ranks)` has a part that the ranks divide, the codec's time is that of writing and reading messages, `alpha` and `beta` are
//! the time of the software per message and per byte, and latency and bandwidth are those of a network; within a machine there is
//! none. Nothing overlaps, as in the program. An exchange every sixteen steps counts for a sixteenth in each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{CodecCost, Exchange};

/// The numbers of the formula that are measured, in seconds of a processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Per message, with the software of both ends.
    pub alpha: f64,
    /// Per byte, the same.
    pub beta: f64,
    /// Per token of a rank.
    pub token: f64,
    /// Per step of one rank without others, whatever its tokens are: optimizer, codec, the weights made ternary.
    pub fixed: BTreeMap<Exchange, f64>,
    /// The part of the fixed time of [`Exchange::Exact`] that the ranks divide: each adds up the gradients of its own tensors and has the
    /// optimizer of these.
    pub divided: f64,
}

/// What is trained, per rank and step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Weights.
    pub elements: u64,
    /// Tokens of a rank.
    pub tokens: u64,
    /// Weights of the tensor that one rank has to own, if more than the equal part of all; 0: gradients are divided equally.
    pub largest: u64,
}

/// Ranks of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Ranks on a machine.
    pub ranks: usize,
    /// Threads of each.
    pub threads: usize,
    /// Cores of the machine that other programs leave to all ranks together.
    pub cores: f64,
}

impl Place {
    /// A rank that has enough cores.
    pub const ALONE: Self = Self { ranks: 1, threads: 1, cores: 1.0 };

    /// How many times longer a rank takes because cores are shared.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        ((self.ranks * self.threads) as f64 / self.cores).max(1.0)
    }
}

/// A network between machines, each with one rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Seconds that a message takes beside those of the software; messages to several ranks are on their way together.
    pub latency: f64,
    /// Bits per second of a rank in each direction.
    pub bits_per_second: f64,
}

/// The time of a step, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepTime {
    /// In which a rank computes, codecs and software of messages included.
    pub busy: f64,
    /// In which the step passes.
    pub total: f64,
    /// Bytes of a rank that has most of them.
    pub bytes: f64,
    /// Messages of a rank.
    pub messages: f64,
}

impl Model {
    /// The fixed time of a step of one of several ranks.
    #[must_use]
    pub fn fixed_of(&self, exchange: Exchange, ranks: usize) -> f64 {
        let fixed = self.fixed.get(&exchange).copied().unwrap_or_default();
        let divided = if exchange == Exchange::Exact { self.divided.min(fixed) } else { 0.0 };
        fixed - divided * (1.0 - 1.0 / ranks.max(1) as f64)
    }

    /// The time of a step. `link` is `None` for ranks of one machine.
    #[must_use]
    pub fn step(
        &self,
        exchange: Exchange,
        ranks: usize,
        task: Task,
        codec: Option<&CodecCost>,
        place: Place,
        link: Option<Link>,
    ) -> StepTime {
        let volume = exchange.volume_with_numbers(task.elements, ranks, codec);
        let per_step = 1.0 / f64::from(exchange.steps());
        let bytes = per_step * volume.bytes.max(owned_bytes(exchange, task, ranks)) as f64;
        let messages = per_step * volume.messages as f64;
        let coding = codec.map_or(0.0, |codec| codec.seconds(ranks) - codec.seconds(1));
        let busy = self.fixed_of(exchange, ranks)
            + self.token * task.tokens as f64
            + per_step * coding * task.elements as f64
            + self.alpha * messages
            + self.beta * bytes;
        let rounds = messages / ranks.saturating_sub(1).max(1) as f64;
        let on_wire = link.map_or(0.0, |link| rounds * link.latency + 8.0 * bytes / link.bits_per_second);
        StepTime { busy, total: busy * place.slowdown() + on_wire, bytes, messages }
    }
}

/// Bytes of the rank that owns the largest tensor: it gets the gradients of the tensor from all, and gives its weights to all.
fn owned_bytes(exchange: Exchange, task: Task, ranks: usize) -> u64 {
    let others = ranks.saturating_sub(1) as u64;
    match exchange {
        Exchange::Exact => 8 * others * task.largest,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scaling::Scheme;
    use trike_testkit::assert_near;

    fn model() -> Model {
        let fixed = Exchange::ALL.into_iter().map(|exchange| (exchange, 0.1)).collect();
        Model { alpha: 1e-5, beta: 1e-9, token: 1e-4, fixed, divided: 0.0 }
    }

    #[test]
    fn a_step_is_the_sum_of_its_parts() {
        let task = Task { elements: 400_000, tokens: 500, largest: 0 };
        let place = |ranks| Place { ranks, threads: 1, cores: 2.0 };
        let of = |ranks| model().step(Exchange::Exact, ranks, task, None, place(ranks), None).total;
        assert_near!(of(1), 0.15, rel = 1e-12);
        // Four messages to one rank: two with numbers; half of the vector twice; 20 bytes of header.
        let two = 0.15 + 4.0 * 1e-5 + (1_600_000.0 + 16.0 + 80.0) * 1e-9;
        assert_near!(of(2), two, rel = 1e-12);
        // Four ranks share two cores.
        let four = 0.15 + 12.0 * 1e-5 + (2_400_000.0 + 48.0 + 240.0) * 1e-9;
        assert_near!(of(4), 2.0 * four, rel = 1e-12);
        let busy = Place { cores: 0.8, ..place(2) };
        let shared = model().step(Exchange::Exact, 2, task, None, busy, None).total;
        assert_near!(shared, 2.5 * two, rel = 1e-12);
    }

    #[test]
    fn exact_ranks_divide_a_part_of_the_fixed_time() {
        let model = Model { divided: 0.06, ..model() };
        let of = |exchange, ranks| model.fixed_of(exchange, ranks);
        assert_near!(of(Exchange::Exact, 1), 0.1, rel = 1e-12);
        assert_near!(of(Exchange::Exact, 4), 0.04 + 0.06 / 4.0, rel = 1e-12);
        assert_near!(of(Exchange::Ternary, 4), 0.1, rel = 1e-12);
    }

    #[test]
    fn a_network_adds_latency_per_round_and_the_time_of_bytes() {
        let task = Task { elements: 1_000_000, tokens: 500, largest: 0 };
        let link = Link { latency: 1e-3, bits_per_second: 8e6 };
        let step = |link| model().step(Exchange::Local, 4, task, None, Place::ALONE, link);
        let (near, far) = (step(None), step(Some(link)));
        assert_near!(far.total - near.total, 3.0 / 16.0 * 1e-3 + near.bytes / 1e6, rel = 1e-9);
        assert_eq!(far.busy, near.busy);
    }

    #[test]
    fn the_owner_of_a_large_tensor_is_the_slowest() {
        let even = Task { elements: 1_000_000, tokens: 500, largest: 0 };
        let whole = Task { largest: 500_000, ..even };
        let bytes = |task| model().step(Exchange::Exact, 8, task, None, Place::ALONE, None).bytes;
        assert_near!(bytes(whole) / bytes(even), 4.0, rel = 1e-3);
    }

    #[test]
    fn a_codec_takes_time_for_the_messages_of_others() {
        let task = Task { elements: 1_000_000, tokens: 0, largest: 0 };
        let codec = CodecCost { bytes_per_element: 0.2, scheme: Scheme::Direct, encode: 2e-9, decode: 1e-9 };
        let free = Model { alpha: 0.0, beta: 0.0, ..model() };
        let of = |ranks| free.step(Exchange::Ternary, ranks, task, Some(&codec), Place::ALONE, None).busy;
        assert_near!(of(1), 0.1, rel = 1e-12);
        assert_near!(of(3), 0.1 + 2e-3, rel = 1e-12);
    }
}
