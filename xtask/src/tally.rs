//! Totals over the output of test binaries: passed, failed, and skipped with reasons.

use std::collections::BTreeMap;
use std::fmt;

/// Totals over the output of any number of test binaries run with `--show-output`.
///
/// libtest has no skips at run time: a test that lacks its data prints `skipped: reason` and returns. It is counted
/// here as skipped instead of passed, once per test.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
    /// Tests disabled by an attribute or a doc-test flag; the project has none.
    pub(crate) ignored: u64,
    reasons: BTreeMap<String, u64>,
    /// What the failed tests printed, without the lists of their names.
    failures: Vec<String>,
    place: Place,
}

/// Lines of failures that are kept: whole messages of many tests, but no endless output.
const KEPT_LINES: usize = 400;

/// Section of a test binary's output.
#[derive(Debug, Default, PartialEq)]
enum Place {
    /// Outside the captured output of any test.
    #[default]
    Outside,
    /// In the captured output of a passed test without a skip line so far.
    Passed,
    /// In the captured output of a test counted as skipped.
    Skipped,
    /// In the failure report, where nothing is counted.
    Failures,
}

impl Tally {
    /// Processes one line of output.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(summary) = line.strip_prefix("test result: ") {
            self.summary(summary);
            self.place = Place::Outside;
        } else if line == "failures:" {
            self.place = Place::Failures;
        } else if line.starts_with("---- ") && line.ends_with(" stdout ----") && self.place != Place::Failures
        {
            self.place = Place::Passed;
        } else if let Some(reason) = line.trim_start().strip_prefix("skipped: ") {
            self.skip(reason);
        }
        if self.place == Place::Failures && self.failures.len() < KEPT_LINES {
            self.failures.push(line.to_owned());
        }
    }

    fn summary(&mut self, summary: &str) {
        // `ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s`
        let counts = summary.split_once(". ").map_or("", |(_, counts)| counts);
        for part in counts.split("; ") {
            if let Some((count, what)) = part.split_once(' ')
                && let Ok(count) = count.parse::<u64>()
            {
                match what {
                    "passed" => self.passed += count,
                    "failed" => self.failed += count,
                    "ignored" => self.ignored += count,
                    _ => {}
                }
            }
        }
    }

    fn skip(&mut self, reason: &str) {
        // Outside, the line belongs to no counted test; in the failure report it is ignored.
        if self.place != Place::Passed {
            return;
        }
        self.place = Place::Skipped;
        self.skipped += 1;
        // `no shared data (data/models/x.bin)`: the reason is the part before the parenthesis.
        let reason = reason.split_once(" (").map_or(reason, |(reason, _)| reason);
        *self.reasons.entry(reason.trim_end().to_owned()).or_default() += 1;
    }

    /// Whether no test failed or was ignored.
    pub(crate) fn is_green(&self) -> bool {
        self.failed == 0 && self.ignored == 0
    }

    /// The failure reports of all binaries, cut after [`KEPT_LINES`] lines.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// The skip reasons, with the number of tests.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = (&str, u64)> {
        self.reasons.iter().map(|(reason, count)| (reason.as_str(), *count))
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passed = self.passed.saturating_sub(self.skipped);
        write!(f, "{passed} passed, {} failed, {} skipped", self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(text: &str) -> Tally {
        let mut tally = Tally::default();
        text.lines().for_each(|line| tally.line(line));
        tally
    }

    #[test]
    fn binaries_add_up() {
        let total = tally(
            "test a ... ok\n\
             test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
             test result: FAILED. 2 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n",
        );
        assert_eq!(total.to_string(), "7 passed, 3 failed, 0 skipped");
        assert_eq!(total.ignored, 1);
        assert!(!total.is_green());
    }

    #[test]
    fn a_test_that_skips_twice_counts_once_and_not_as_passed() {
        let total = tally(
            "successes:\n\n\
             ---- reads stdout ----\n\
             skipped: no shared data (data/a.bin)\n\
             skipped: no shared data (data/b.bin)\n\n\
             ---- talks stdout ----\n\
             ran: avx2\n\n\
             ---- decodes stdout ----\n\
             skipped: no gguf package\n\n\
             successes:\n    reads\n    talks\n    decodes\n\n\
             test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
        );
        assert_eq!(total.to_string(), "1 passed, 0 failed, 2 skipped");
        assert_eq!(total.reasons().collect::<Vec<_>>(), [("no gguf package", 1), ("no shared data", 1)]);
        assert!(total.is_green());
    }

    #[test]
    fn a_failed_test_is_never_a_skipped_one() {
        let total = tally(
            "failures:\n\n\
             ---- reads stdout ----\n\
             skipped: no shared data (data/a.bin)\n\
             thread 'reads' panicked\n\n\
             failures:\n    reads\n\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
        );
        assert_eq!(total.to_string(), "0 passed, 1 failed, 0 skipped");
        assert_eq!(total.failures().first().map(String::as_str), Some("failures:"));
        assert!(total.failures().contains(&"thread 'reads' panicked".to_owned()));
        assert!(!total.failures().iter().any(|line| line.starts_with("test result")));
    }
}
