//! Selection of problems and rows, and durations of the measurements.

use std::time::Duration;

use trike_bench::row_name;

use crate::catalogue::{Case, Problem};
use crate::rival::{BASES, RivalKind};

/// Numbers of threads to time, if the machine has that many cores.
const THREADS: [usize; 2] = [1, 2];
/// Cases of a quick run.
const QUICK_CASES: [&str; 3] = ["square", "square-95", "square-99"];

/// Selection of what a run times.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Fewer problems and fewer rounds.
    pub quick: bool,
    /// Substrings of row names; a row is timed if it contains any of them. Empty selects all rows.
    pub filters: Vec<String>,
}

impl Plan {
    /// Whether the run times the whole catalogue.
    #[must_use]
    pub fn is_full(&self) -> bool {
        !self.quick && self.filters.is_empty()
    }

    /// Whether a case is timed.
    #[must_use]
    pub fn has_case(&self, case: &Case) -> bool {
        !self.quick || QUICK_CASES.contains(&case.name().as_str())
    }

    /// Whether a row is timed.
    #[must_use]
    pub fn has_row(&self, problem: &str, kernel: &str, isa: &str, threads: usize) -> bool {
        let name = row_name(problem, kernel, isa, threads);
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter.as_str()))
    }

    /// Whether this kernel is a reference, which is timed at every problem that has selected rows.
    #[must_use]
    pub fn is_reference(kernel: &str) -> bool {
        kernel == BASES.rival || kernel == BASES.kernel
    }

    /// Numbers of threads to time on a machine with so many cores.
    #[must_use]
    pub fn threads(cores: usize) -> Vec<usize> {
        THREADS.into_iter().filter(|&threads| threads <= cores.max(1)).collect()
    }

    /// Rivals to time at a problem.
    #[must_use]
    pub fn rivals(problem: &Problem) -> &'static [RivalKind] {
        if problem.case.rivals { &RivalKind::ALL } else { &[] }
    }

    /// Number of rounds, and length of a burst. One token has many rounds of many calls; prefill has few rounds of one or
    /// two calls.
    #[must_use]
    pub fn turns(&self, tokens: usize) -> (usize, Duration) {
        match (tokens == 1, self.quick) {
            (true, false) => (25, Duration::from_millis(20)),
            (true, true) => (9, Duration::from_millis(10)),
            (false, false) => (11, Duration::from_millis(10)),
            (false, true) => (3, Duration::from_millis(5)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::CASES;

    #[test]
    fn filters_choose_rows_by_parts_of_their_names() {
        let plan = Plan { quick: false, filters: vec!["square m=1 /".into(), "avx2 / t=1".into()] };
        assert!(
            !plan.is_full()
                && Plan::default().is_full()
                && !Plan { quick: true, ..Plan::default() }.is_full()
        );
        assert!(plan.has_row("square m=1", "x", "scalar", 2));
        assert!(plan.has_row("ugly m=128", "x", "avx2", 1));
        assert!(!plan.has_row("square m=128", "x", "avx2", 2));
        assert!(Plan::default().has_row("a", "b", "c", 1));
    }

    #[test]
    fn a_machine_without_a_second_core_is_timed_with_one_thread() {
        assert_eq!([0, 1, 2, 64].map(|cores| Plan::threads(cores).len()), [1, 1, 2, 2]);
    }

    #[test]
    fn a_quick_run_has_the_square() {
        let quick = Plan { quick: true, ..Plan::default() };
        assert_eq!(CASES.iter().filter(|case| quick.has_case(case)).count(), QUICK_CASES.len());
        assert!(CASES.iter().all(|case| Plan::default().has_case(case)));
    }
}
