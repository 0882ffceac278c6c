//! Timing in turns: a noisy machine is noisy for everybody.
//!
//! Criterion times one benchmark after the other, so that a neighbour's minute falls on one of them. Here all contenders
//! take turns in short bursts, and what is compared are the bursts of the same round.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Somebody whose calls are timed.
pub struct Contender<'a> {
    /// How long so many calls take.
    burst: Box<dyn FnMut(u64) -> Duration + 'a>,
    /// Seconds of a call, one for each round.
    samples: Vec<f64>,
}

impl<'a> Contender<'a> {
    /// A call to be timed.
    pub fn new<T>(mut call: impl FnMut() -> T + 'a) -> Self {
        Self::by(move |calls| clock(calls, &mut call))
    }

    /// For who must choose where the loop over the calls runs: `burst` makes so many calls and says how long they took.
    pub fn by(burst: impl FnMut(u64) -> Duration + 'a) -> Self {
        Self { burst: Box::new(burst), samples: Vec::new() }
    }

    /// Seconds of a call, one for each round.
    #[must_use]
    pub fn into_samples(self) -> Vec<f64> {
        self.samples
    }

    fn time(&mut self, calls: u64) -> f64 {
        (self.burst)(calls).as_secs_f64() / calls as f64
    }
}

/// How long so many calls take.
pub fn clock<T>(calls: u64, mut call: impl FnMut() -> T) -> Duration {
    let start = Instant::now();
    for _ in 0..calls {
        black_box(call());
    }
    start.elapsed()
}

/// Calls of a burst, at most: enough for any clock.
const MOST_CALLS: f64 = 1e6;
/// A call that takes this part of a burst is its own warm-up.
const LONG: f64 = 0.5;

/// Lets all contenders take turns: in each round a burst of about this length of each, and at least one call.
///
/// ```
/// use std::time::Duration;
/// use trike_benches::{Contender, interleave, median};
///
/// let mut both = [Contender::new(|| (0..1000u64).sum::<u64>()), Contender::new(|| (0..90_000u64).sum::<u64>())];
/// interleave(&mut both, 5, Duration::from_micros(200));
/// let samples = both.map(Contender::into_samples);
/// assert!(samples.iter().all(|s| s.len() == 5 && median(s).is_some()));
/// ```
pub fn interleave(contenders: &mut [Contender<'_>], rounds: usize, burst: Duration) {
    let burst = burst.as_secs_f64();
    let calls: Vec<(u64, bool)> = contenders
        .iter_mut()
        .map(|contender| {
            // The first call pages memory in; the second one says how long they take.
            contender.time(1);
            let one = contender.time(1).max(1e-9);
            ((burst / one).clamp(1.0, MOST_CALLS) as u64, one > LONG * burst)
        })
        .collect();
    for _ in 0..rounds {
        for (contender, &(calls, long)) in contenders.iter_mut().zip(&calls) {
            if !long {
                // Wakes the threads and brings the code back.
                contender.time(1);
            }
            let seconds = contender.time(calls);
            contender.samples.push(seconds);
        }
    }
}

/// The middle of the samples, the mean of the two middle ones of an even number; `None` of none.
#[must_use]
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// The distance of the quartiles over the median: how far half of the samples scatter.
#[must_use]
pub fn spread(samples: &[f64]) -> Option<f64> {
    Some((quantile(samples, 0.75)? - quantile(samples, 0.25)?) / median(samples)?)
}

/// How many times as long the calls of `other` take: the median over the rounds, so that what slows a whole round down
/// does not count.
#[must_use]
pub fn paired_ratio(samples: &[f64], other: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = samples.iter().zip(other).map(|(own, other)| other / own).collect();
    median(&ratios)
}

/// Linear between the samples around it.
fn quantile(samples: &[f64], q: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = q * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(low + (high - low) * at.fract())
}

/// Six significant digits: more are noise, and these survive every reader of JSON.
pub(crate) fn rounded(x: f64) -> f64 {
    format!("{x:.5e}").parse().unwrap_or(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn quantiles_of_known_samples() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(spread(&[5.0, 1.0, 3.0, 2.0, 4.0]), Some(2.0 / 3.0));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn a_slow_round_slows_both_and_not_their_ratio() {
        assert_eq!(paired_ratio(&[1.0, 10.0, 1.0, 2.0], &[3.0, 30.0, 3.0, 6.0]), Some(3.0));
        assert_eq!(paired_ratio(&[], &[1.0]), None);
    }

    #[test]
    fn contenders_take_turns() {
        let order = RefCell::new(Vec::new());
        let contender = |name: char| {
            let order = &order;
            Contender::new(move || {
                order.borrow_mut().push(name);
                // Longer than a burst, so that a turn is one call.
                std::thread::sleep(Duration::from_micros(50));
            })
        };
        let mut both = [contender('a'), contender('b')];
        interleave(&mut both, 3, Duration::from_micros(10));
        assert!(both.into_iter().all(|c| c.into_samples().iter().all(|&s| s > 5e-5)));
        assert_eq!(order.borrow().iter().collect::<String>(), "aabbababab");
    }

    #[test]
    fn six_digits_are_kept() {
        assert_eq!(rounded(123_456_789.0), 123_457_000.0);
        assert_eq!(rounded(0.000_123_456_78), 0.000_123_457);
        assert!(rounded(f64::NAN).is_nan());
    }
}
