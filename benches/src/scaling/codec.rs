//! What a codec costs beside its bytes: the time of writing and reading messages, and to how many ranks they go.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use trike_bench::median;
use trike_comm::{CodecConfig, Communicator, Threads, mean};

/// Elements of the vectors that are exchanged: more than caches hold.
const ELEMENTS: usize = 1 << 22;
/// Ranks of the exchanges that are compared with those of one rank.
const RANKS: usize = 4;
/// Exchanges whose median counts.
const TIMES: usize = 5;

/// To how many ranks the message of a rank goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// As a whole to each other rank.
    Direct,
    /// In parts to the owners of shards, which give the mean to all.
    TwoStages,
}

/// The cost of a codec per element of the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodecCost {
    /// Bytes of a rank's message.
    pub bytes_per_element: f64,
    /// Its receivers, as counted.
    pub scheme: Scheme,
    /// Processor seconds of writing a message.
    pub encode: f64,
    /// Processor seconds of reading a message.
    pub decode: f64,
}

impl CodecCost {
    /// Processor seconds of a rank per element and exchange.
    #[must_use]
    pub fn seconds(&self, ranks: usize) -> f64 {
        let all = ranks.max(1) as f64;
        match self.scheme {
            _ if ranks <= 1 => self.encode + self.decode,
            Scheme::Direct => self.encode + all * self.decode,
            // A rank writes the shards of the others and the sum of its own; it reads its own from the others, and all sums.
            Scheme::TwoStages => self.encode + (2.0 - 1.0 / all) * self.decode,
        }
    }
}

/// Measures a codec on ranks of this process, by the processor time of each.
///
/// # Errors
///
/// Those of messages, and a system that does not tell the processor time of a thread.
pub fn measure_codec(config: CodecConfig) -> Result<CodecCost> {
    let message = config.build_message(&[[1, ELEMENTS]])?.bytes();
    let exchange = |ranks: usize| -> Result<(f64, f64)> {
        let all = Threads::run(ranks, |comm| -> Result<(f64, f64)> {
            let mut codec = config.build(&[[1, ELEMENTS]])?;
            let seconds = processor_seconds(|| Ok(codec.exchange(&comm, &mut gradient(comm.rank()))?))?;
            // One exchange more than is timed.
            Ok((seconds, comm.traffic().sent as f64 / (TIMES + 1) as f64))
        });
        let all: Vec<(f64, f64)> = all.into_iter().collect::<Result<_>>()?;
        let of = |part: fn(&(f64, f64)) -> f64| all.iter().map(part).sum::<f64>() / all.len() as f64;
        Ok((of(|one| one.0), of(|one| one.1)))
    };
    // What the gradient itself takes is not the codec's.
    let filling = processor_seconds(|| {
        std::hint::black_box(gradient(0));
        Ok(())
    })?;
    let (one, _) = exchange(1)?;
    let (several, sent) = exchange(RANKS)?;
    let elements = ELEMENTS as f64;
    let (one, several) = ((one - filling) / elements, (several - filling) / elements);
    // A message to each other rank, or all but one shard of it twice.
    let others = (RANKS - 1) as f64;
    let is_direct = sent / message as f64 > f64::midpoint(others, 2.0 * others / RANKS as f64);
    let (scheme, decode) = match is_direct {
        true => (Scheme::Direct, (several - one) / others),
        false => (Scheme::TwoStages, (several - one) / (others / RANKS as f64)),
    };
    // Within the noise a part of the time can seem to be none of it.
    let decode = decode.clamp(0.0, one);
    Ok(CodecCost { bytes_per_element: message as f64 / elements, scheme, encode: one - decode, decode })
}

/// Processor seconds per element of a mean over one rank: bytes from numbers, and back.
///
/// # Errors
///
/// As [`measure_codec`].
pub fn measure_mean() -> Result<f64> {
    let comm = &Threads::new(1)[0];
    let mut vector = gradient(0);
    Ok(processor_seconds(|| Ok(mean(comm, &mut vector)?))? / ELEMENTS as f64)
}

/// Numbers with long tails, as gradients have them.
fn gradient(rank: usize) -> Vec<f32> {
    let mut state = rank as u32 + 1;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 24) as f32 - 0.5
    };
    (0..ELEMENTS).map(|_| (uniform() + uniform() + uniform()).powi(5)).collect()
}

/// The median of the processor time of this thread, after a first time that takes memory from the system.
fn processor_seconds(mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    run()?;
    let mut all = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        let before = thread_time()?;
        run()?;
        all.push((thread_time()? - before).as_secs_f64());
    }
    median(&all).context("no times")
}

/// Time that this thread has run.
fn thread_time() -> Result<Duration> {
    let path = "/proc/thread-self/schedstat";
    let text = std::fs::read_to_string(path).with_context(|| format!("{path}: expected Linux"))?;
    let nanoseconds = text.split_whitespace().next().and_then(|n| n.parse().ok());
    Ok(Duration::from_nanos(nanoseconds.with_context(|| format!("{path}: {text}"))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trike_testkit::assert_near;

    #[test]
    fn times_of_a_codec_grow_with_the_messages_that_are_read() {
        let cost = CodecCost { bytes_per_element: 0.2, scheme: Scheme::Direct, encode: 2.0, decode: 1.0 };
        assert_eq!([1, 2, 4].map(|ranks| cost.seconds(ranks)), [3.0, 4.0, 6.0]);
        let staged = CodecCost { scheme: Scheme::TwoStages, ..cost };
        assert_eq!([1, 2, 4].map(|ranks| staged.seconds(ranks)), [3.0, 3.5, 3.75]);
    }

    #[test]
    fn a_codec_s_bytes_are_its_own() {
        if thread_time().is_err() {
            println!("skipped: the system does not tell the processor time of a thread");
            return;
        }
        let cost = measure_codec(CodecConfig::Ternary).expect("times");
        // Five trits per byte and one scale of four bytes per 4,095.
        assert_near!(cost.bytes_per_element, 0.2 + 4.0 / 4095.0, rel = 1e-3);
        // Predicted bytes are those that are sent, by whichever way.
        let elements = 1 << 20;
        for traffic in Threads::run(3, |comm| {
            let mut codec = CodecConfig::Ternary.build(&[[1, elements]]).expect("a codec");
            codec.exchange(&comm, &mut vec![1.0; elements]).expect("an exchange");
            comm.traffic()
        }) {
            let volume = crate::scaling::Exchange::Ternary.volume(elements as u64, 3, Some(&cost));
            assert_eq!(volume.messages, traffic.messages);
            assert_near!(volume.bytes as f64, traffic.sent as f64, rel = 0.01);
        }
        assert!(cost.encode >= 0.0 && cost.decode >= 0.0 && cost.encode + cost.decode > 0.0, "{cost:?}");
    }
}
