//! Medians of many launches, by the device's own clock.

use anyhow::Result;
use std::time::Duration;
use trike_cube::Device;

/// A measured time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// Of one launch: the median of the windows.
    pub(super) seconds: f64,
    /// The quarter of windows in the middle, from the lower to the upper quartile, as a share of the median.
    pub(super) spread: f64,
}

impl Sample {
    /// The median and the spread of some times.
    pub(super) fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let n = seconds.len();
        let at = |quarter: usize| seconds[(n - 1) * quarter / 4];
        Self { seconds: at(2), spread: (at(3) - at(1)) / at(2) }
    }
}

/// How times are taken on a device.
pub(super) struct Timer<'a> {
    device: &'a Device,
    windows: usize,
    window: Duration,
}

impl<'a> Timer<'a> {
    pub(super) fn new(device: &'a Device, windows: usize, window_ms: u64) -> Self {
        Self { device, windows: windows.max(1), window: Duration::from_millis(window_ms) }
    }

    pub(super) fn device(&self) -> &'a Device {
        self.device
    }

    /// The time of a launch, after one that compiles it; `launch` gets a number that grows by one each time, to choose among
    /// copies of its operands.
    pub(super) fn median(&self, launch: impl Fn(usize) -> trike_cube::Result<()> + Sync) -> Result<Sample> {
        launch(0)?;
        self.device.sync()?;
        self.median_by(|launches, first| {
            Ok(self.device.timed(|| (first..first + launches).try_for_each(&launch))?)
        })
    }

    /// The same by any clock: `time` launches so often, counting from its second argument, and says how long that took.
    pub(super) fn median_by(&self, mut time: impl FnMut(usize, usize) -> Result<Duration>) -> Result<Sample> {
        const FEW: usize = 4;
        // Enough launches that the ends of a window do not count, judged by a short one.
        let one = (time(FEW, 0)? / FEW as u32).max(Duration::from_nanos(100));
        let launches = (self.window.as_nanos() / one.as_nanos()).clamp(2, 4096) as usize;
        let mut seconds = Vec::with_capacity(self.windows);
        for window in 0..self.windows {
            let time = time(launches, window * launches)?;
            seconds.push(time.as_secs_f64() / launches as f64);
        }
        Ok(Sample::of(seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_medians_with_quartiles() {
        let sample = Sample::of(vec![5.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(sample, Sample { seconds: 3.0, spread: 2.0 / 3.0 });
        assert_eq!(Sample::of(vec![2.0]), Sample { seconds: 2.0, spread: 0.0 });
    }
}
