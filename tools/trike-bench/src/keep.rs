//! Comparison of a run with the baseline, and the decision whether to record it.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::compare::compare;
use crate::record::{Record, baseline};

/// Criteria for recording a run.
#[derive(Clone, Copy, Debug)]
pub struct Judgement {
    /// Relative slowdown that counts as a regression; 0.1 is 10 %.
    pub threshold: f64,
    /// Record the run as the new baseline despite regressions.
    pub accept: bool,
}

/// Parses a percentage into [`Judgement::threshold`].
///
/// # Errors
///
/// If `text` is not a number of at least 0 and less than 100.
pub fn parse_threshold(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|e| format!("{e}"))?;
    if (0.0..100.0).contains(&percent) {
        Ok(percent / 100.0)
    } else {
        Err("expected a number of at least 0 and less than 100".into())
    }
}

/// Outcome of [`keep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Recorded as the new baseline, to be shown in the book.
    Yes,
    /// The run is void, so its rows are not judged. A full run is recorded, with the reasons.
    Void,
    /// Not recorded, because it did not time the whole catalogue.
    Part {
        /// Whether a row regressed.
        regressed: bool,
    },
    /// Not recorded, because rows regressed.
    Regressed,
}

impl Kept {
    /// Whether the run is valid and no row regressed.
    #[must_use]
    pub fn is_good(self) -> bool {
        matches!(self, Self::Yes | Self::Part { regressed: false })
    }

    /// Exit status of a report: 0 for a good run, 1 if rows regressed, 3 for a void run (1 is also any error, and 2 wrong usage).
    #[must_use]
    pub fn exit_status(self) -> u8 {
        match self {
            Self::Yes | Self::Part { regressed: false } => 0,
            Self::Regressed | Self::Part { regressed: true } => 1,
            Self::Void => 3,
        }
    }
}

/// Compares a run with the baseline among `records` (the contents of `folder`), and writes full runs without regressions to
/// `folder`; `say` receives the report line by line.
///
/// # Errors
///
/// If the record cannot be written.
pub fn keep(
    folder: &Path,
    records: &[(PathBuf, Record)],
    run: &Record,
    judgement: Judgement,
    say: &mut dyn FnMut(&str),
) -> Result<Kept> {
    let is_full = run.complete && !run.quick;
    for reason in &run.void {
        say(&format!("void: {reason}"));
    }
    let regressed = is_regressed(records, run, judgement.threshold, say);
    let is_void = !run.void.is_empty();
    if !is_full {
        say("not recorded: only full runs are recorded");
        return Ok(if is_void { Kept::Void } else { Kept::Part { regressed } });
    }
    if regressed && !is_void && !judgement.accept {
        say("not recorded: repeat on a quiet machine, fix the regression, or accept it with --accept");
        return Ok(Kept::Regressed);
    }
    let path = run.path();
    run.write(&folder.join(&path))?;
    say(&format!("recorded: benches/records/{}", path.display()));
    if is_void {
        say("the run is void: it is not a baseline and is not shown in the book");
        return Ok(Kept::Void);
    }
    Ok(Kept::Yes)
}

/// Reports the comparison with the baseline; returns whether a row regressed.
fn is_regressed(
    records: &[(PathBuf, Record)],
    run: &Record,
    threshold: f64,
    say: &mut dyn FnMut(&str),
) -> bool {
    let Some((path, before)) = baseline(records, run) else {
        say(&format!("no earlier record of {}: nothing to compare with", run.id()));
        return false;
    };
    let comparison = compare(before, run, threshold);
    say(&format!("{} rows compared with benches/records/{}", comparison.compared, path.display()));
    if run.complete && !run.quick {
        for name in &comparison.gone {
            say(&format!("no longer timed: {name}"));
        }
    }
    for regression in &comparison.regressions {
        say(&format!("regression over {} %: {regression}", 100.0 * threshold));
    }
    !comparison.regressions.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::load_all;
    use crate::record::tests::{example, on_device};
    use trike_testkit::assert_near;

    #[test]
    fn thresholds_are_per_cent() {
        for (text, threshold) in [("0", 0.0), ("10", 0.1), ("99.9", 0.999)] {
            let parsed = parse_threshold(text).unwrap();
            assert_near!(parsed, threshold, abs = 1e-12, "{text}");
        }
        for refused in ["100", "-1", "NaN", "ten"] {
            assert!(parse_threshold(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_full_run_is_recorded_unless_it_regressed() {
        let folder = tempfile::tempdir().unwrap();
        let judged = |run: &Record, accept| {
            let mut said = String::new();
            let records = load_all(folder.path()).unwrap();
            let judgement = Judgement { threshold: 0.1, accept };
            let kept = keep(folder.path(), &records, run, judgement, &mut |line| said += line).unwrap();
            (kept, said, load_all(folder.path()).unwrap().len())
        };
        for (before, first) in [(0, example()), (1, on_device())] {
            let part = Record { quick: true, ..first.clone() };
            let (kept, said, records) = judged(&part, false);
            assert_eq!((kept, records), (Kept::Part { regressed: false }, before));
            assert!(kept.is_good() && kept.exit_status() == 0, "{said}");
            assert!(said.contains("nothing to compare with"), "{said}");
            let (kept, said, records) = judged(&first, false);
            assert!(kept == Kept::Yes && records == before + 1, "{said}");
        }
        let mut slower = Record { date: "2026-11-22T07:31:09Z".into(), ..on_device() };
        for row in &mut slower.rows {
            (row.share_of_bandwidth, row.share_of_int8_peak) = (Some(0.1), None);
            (row.share_of_f16_peak, row.x_rival, row.x_ternary) = (None, Some(1.0), None);
        }
        let (kept, said, records) = judged(&slower, false);
        assert_eq!((kept, kept.exit_status(), records), (Kept::Regressed, 1, 2), "{said}");
        let (kept, said, records) = judged(&Record { quick: true, ..slower.clone() }, false);
        assert_eq!((kept, kept.exit_status(), records), (Kept::Part { regressed: true }, 1, 2), "{said}");
        assert!(said.contains("2 rows compared with") && said.contains("regression over 10 %"), "{said}");
        let void = Record { void: vec!["busy".into()], ..slower.clone() };
        let (kept, said, records) = judged(&Record { quick: true, ..void.clone() }, false);
        assert_eq!((kept, kept.exit_status(), records), (Kept::Void, 3, 2), "{said}");
        let (kept, said, records) = judged(&void, false);
        assert!(kept == Kept::Void && records == 3 && said.contains("void: busy"), "{said}");
        let (kept, said, records) = judged(&slower, true);
        assert!(kept == Kept::Yes && records == 3, "{said}");
    }
}
