//! Interleaved timing, so that noise on the machine affects all contenders alike.
//!
//! Criterion times one benchmark after the other, so that a minute of other load falls on one of them. Here all contenders
//! run in turn in short bursts, and bursts of the same round are compared. The clock may be the host's or a device's.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;

/// A function to be timed.
pub struct Contender<'a> {
    /// Makes the given number of calls and returns their total time.
    burst: Box<dyn FnMut(u64) -> Result<Duration> + 'a>,
    /// Seconds per call, one sample per round, or the first error.
    samples: Result<Vec<f64>>,
}

impl<'a> Contender<'a> {
    /// A function timed by the host's clock.
    pub fn new<T>(mut call: impl FnMut() -> T + 'a) -> Self {
        Self::by(move |calls| Ok(clock(calls, &mut call)))
    }

    /// A function timed by any clock: `burst` makes the given number of calls and returns their total time.
    pub fn by(burst: impl FnMut(u64) -> Result<Duration> + 'a) -> Self {
        Self { burst: Box::new(burst), samples: Ok(Vec::new()) }
    }

    /// Seconds per call, one sample per round.
    ///
    /// # Errors
    ///
    /// The error of the first burst that failed.
    pub fn into_samples(self) -> Result<Vec<f64>> {
        self.samples
    }

    /// Seconds per call of one burst; `None` if it, or an earlier one, failed.
    fn time(&mut self, calls: u64) -> Option<f64> {
        if self.samples.is_err() {
            return None;
        }
        match (self.burst)(calls) {
            Ok(elapsed) => Some(elapsed.as_secs_f64() / calls as f64),
            Err(e) => {
                self.samples = Err(e);
                None
            }
        }
    }

    /// Number of calls that take about `burst` seconds.
    fn calibrate(&mut self, burst: f64) -> Option<u64> {
        // Warm-up: the first call faults memory in and may compile the kernel.
        self.time(1)?;
        let mut calls = 1;
        loop {
            let one = self.time(calls)?.max(1e-9);
            // In much shorter bursts the fixed overhead dominates.
            if one * calls as f64 >= burst / 8.0 || calls >= MOST_CALLS / 4 {
                return Some(((burst / one) as u64).clamp(1, MOST_CALLS));
            }
            calls *= 4;
        }
    }
}

/// Time of `calls` calls by the host's clock.
pub fn clock<T>(calls: u64, mut call: impl FnMut() -> T) -> Duration {
    let start = Instant::now();
    for _ in 0..calls {
        black_box(call());
    }
    start.elapsed()
}

/// Maximum number of calls per burst: enough for the resolution of any clock.
const MOST_CALLS: u64 = 1 << 20;

/// Times all contenders in turn: each round has one burst per contender, of about length `burst` and at least one call.
/// A contender that fails is dropped; the others continue.
///
/// ```
/// use std::time::Duration;
/// use trike_bench::{Contender, interleave, median};
///
/// let mut both = [Contender::new(|| (0..1000u64).sum::<u64>()), Contender::new(|| (0..90_000u64).sum::<u64>())];
/// interleave(&mut both, 5, Duration::from_micros(200));
/// for contender in both {
///     let samples = contender.into_samples()?;
///     assert!(samples.len() == 5 && median(&samples).is_some());
/// }
/// # anyhow::Ok(())
/// ```
pub fn interleave(contenders: &mut [Contender<'_>], rounds: usize, burst: Duration) {
    let calls: Vec<Option<u64>> =
        contenders.iter_mut().map(|contender| contender.calibrate(burst.as_secs_f64())).collect();
    for _ in 0..rounds {
        for (contender, &calls) in contenders.iter_mut().zip(&calls) {
            let Some(calls) = calls else { continue };
            if calls > 1 {
                // Wakes the threads and warms the caches; a call as long as a burst needs no warm-up.
                contender.time(1);
            }
            if let Some(seconds) = contender.time(calls)
                && let Ok(samples) = &mut contender.samples
            {
                samples.push(seconds);
            }
        }
    }
}

/// The median (mean of the two middle samples for an even count); `None` if there are no samples.
#[must_use]
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// The interquartile range divided by the median.
#[must_use]
pub(crate) fn spread(samples: &[f64]) -> Option<f64> {
    Some((quantile(samples, 0.75)? - quantile(samples, 0.25)?) / median(samples)?)
}

/// Time of `other` divided by that of `samples`: the median of the ratios per round, so that noise affecting a whole round
/// cancels.
#[must_use]
pub(crate) fn paired_ratio(samples: &[f64], other: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = samples.iter().zip(other).map(|(own, other)| other / own).collect();
    median(&ratios)
}

/// The `q`-quantile, interpolated linearly between the adjacent samples.
fn quantile(samples: &[f64], q: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = q * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(low + (high - low) * at.fract())
}

/// Rounds to six significant digits: more are noise, and six survive any JSON round trip.
#[must_use]
pub fn rounded(x: f64) -> f64 {
    format!("{x:.5e}").parse().unwrap_or(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use trike_testkit::assert_all_near;

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
        assert!(both.into_iter().all(|c| c.into_samples().unwrap().iter().all(|&s| s > 5e-5)));
        assert_eq!(order.borrow().iter().collect::<String>(), "aabbababab");
    }

    #[test]
    fn who_fails_drops_out_and_the_others_go_on() {
        let mut left = 5u32;
        let failing = Contender::by(|calls| {
            left = left.checked_sub(1).ok_or_else(|| anyhow::anyhow!("no more"))?;
            Ok(Duration::from_micros(20) * calls as u32)
        });
        let steady = Contender::by(|calls| Ok(Duration::from_micros(1) * calls as u32));
        let mut both = [failing, steady];
        interleave(&mut both, 7, Duration::from_micros(10));
        let [failed, timed] = both.map(Contender::into_samples);
        assert_eq!(failed.unwrap_err().to_string(), "no more");
        let timed = timed.unwrap();
        assert_all_near!(&timed, &[1e-6; 7], abs = 1e-12);
    }

    #[test]
    fn a_burst_has_the_length_that_was_asked_for() {
        // A clock with a constant of its own: one call alone would seem eight times as long.
        let bursts = RefCell::new(Vec::new());
        let contender = Contender::by(|calls| {
            bursts.borrow_mut().push(calls);
            Ok(Duration::from_nanos(700) + Duration::from_nanos(100) * calls as u32)
        });
        interleave(&mut [contender], 1, Duration::from_micros(100));
        let last = *bursts.borrow().last().unwrap();
        assert!((900..1000).contains(&last), "{last} calls of 100 ns");
    }

    #[test]
    fn six_digits_are_kept() {
        assert_eq!(rounded(123_456_789.0), 123_457_000.0);
        assert_eq!(rounded(0.000_123_456_78), 0.000_123_457);
        assert!(rounded(f64::NAN).is_nan());
    }
}
