//! Progress on stderr for operations longer than a second.

use std::{
    sync::mpsc::{Sender, channel},
    thread::JoinHandle,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shorter operations show no progress.
const PATIENCE: Duration = Duration::from_secs(1);
/// Redraw interval.
const TICK: Duration = Duration::from_millis(100);

const UNKNOWN: &str = "{spinner} {msg} {elapsed}";
const KNOWN: &str = "{msg} [{bar:30}] {pos}/{len}, {eta} left";
#[cfg(feature = "hub")]
const BYTES: &str = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// A line on stderr that appears after a second and disappears on drop: a spinner until the first [`set`](Self::set),
/// then a bar. Nothing is drawn unless stderr is a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Dropped to stop the waiting thread.
    running: Option<Sender<()>>,
    waiting: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts the timer, unless `quiet` is set.
    pub(crate) fn start(what: impl Into<String>, quiet: bool) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
            .with_style(style(UNKNOWN))
            .with_message(crate::output::named(&what.into()));
        if quiet {
            return Self { bar, running: None, waiting: None };
        }
        let (running, stopped) = channel::<()>();
        let drawn = bar.clone();
        let waiting = std::thread::spawn(move || {
            if stopped.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                drawn.set_draw_target(ProgressDrawTarget::stderr());
                drawn.enable_steady_tick(TICK);
            }
        });
        Self { bar, running: Some(running), waiting: Some(waiting) }
    }

    /// Sets the bytes done and the total.
    #[cfg(feature = "hub")]
    pub(crate) fn set_bytes(&self, done: u64, total: u64) {
        if self.bar.length().is_none() {
            self.bar.set_style(style(BYTES));
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// Changes its label.
    pub(crate) fn say(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Sets the steps done and the total.
    pub(crate) fn set(&self, done: usize, total: usize) {
        if self.bar.length().is_none() {
            self.bar.set_style(style(KNOWN));
        }
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(waiting) = self.waiting.take() {
            // The thread only draws, so its result can be ignored.
            let _ = waiting.join();
        }
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    // The templates are constants of this file and covered by a test.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_templates() {
        #[cfg(feature = "hub")]
        assert!(ProgressStyle::with_template(BYTES).is_ok());
        for template in [UNKNOWN, KNOWN] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn it_goes_at_once_when_the_work_is_short() {
        let start = std::time::Instant::now();
        for quiet in [false, true] {
            let progress = Progress::start("test", quiet);
            progress.set(1, 2);
            assert_eq!((progress.bar.position(), progress.bar.length()), (1, Some(2)));
        }
        assert!(start.elapsed() < PATIENCE);
    }
}
