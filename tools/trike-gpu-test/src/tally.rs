//! Counts of case outcomes.

use std::collections::BTreeMap;
use std::fmt;

/// Outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The result matches the oracle.
    Pass,
    /// The result differs or is missing; with a description.
    Fail(String),
    /// Not run, for this reason.
    Skip(String),
}

/// Outcomes of any number of cases.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    passed: usize,
    failures: Vec<(String, String)>,
    skipped: BTreeMap<String, usize>,
}

impl Tally {
    /// Counts the outcome of a case.
    pub fn add(&mut self, case: &str, outcome: Outcome) {
        match outcome {
            Outcome::Pass => self.passed += 1,
            Outcome::Fail(found) => self.failures.push((case.to_owned(), found)),
            Outcome::Skip(reason) => self.skip(&reason, 1),
        }
    }

    /// Counts cases skipped for one reason.
    pub fn skip(&mut self, reason: &str, cases: usize) {
        *self.skipped.entry(reason.to_owned()).or_default() += cases;
    }

    /// Adds another tally to this one.
    pub fn merge(&mut self, other: Self) {
        self.passed += other.passed;
        self.failures.extend(other.failures);
        for (reason, cases) in other.skipped {
            self.skip(&reason, cases);
        }
    }

    /// Cases that passed.
    pub fn passed(&self) -> usize {
        self.passed
    }

    /// Cases that failed, with descriptions.
    pub fn failures(&self) -> &[(String, String)] {
        &self.failures
    }

    /// Reasons for skips with the number of cases, sorted alphabetically.
    pub fn skips(&self) -> impl Iterator<Item = (&str, usize)> {
        self.skipped.iter().map(|(reason, &cases)| (reason.as_str(), cases))
    }
}

/// The last line of a report: `3 passed, 0 failed, 1 skipped`.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skipped: usize = self.skipped.values().sum();
        write!(f, "{} passed, {} failed, {skipped} skipped", self.passed, self.failures.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_add_up_and_reasons_are_kept() {
        let mut tally = Tally::default();
        tally.add("a", Outcome::Pass);
        tally.add("b", Outcome::Fail("3 for 4".to_owned()));
        tally.add("c", Outcome::Skip("no planes".to_owned()));
        let mut total = Tally::default();
        total.skip("no planes", 4);
        total.merge(tally);
        assert_eq!(total.to_string(), "1 passed, 1 failed, 5 skipped");
        assert_eq!(total.skips().collect::<Vec<_>>(), [("no planes", 5)]);
        assert_eq!(total.failures(), [("b".to_owned(), "3 for 4".to_owned())]);
    }
}
