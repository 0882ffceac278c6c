//! A session runs suites on one device: it names cases, catches panics, and compares with the oracle.

use std::fmt::{Debug, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use trike_cube::{Buffer, CubeDevice, CubeError, Element, KernelProblem, Strategy};

use crate::share::Share;
use crate::tally::{Outcome, Tally};

/// Reason why a case did not pass.
#[derive(Debug)]
pub enum Failure {
    /// The device lacks a feature; the case is skipped.
    Missing(String),
    /// The result is wrong or missing.
    Wrong(String),
}

impl From<trike_core::BlockError> for Failure {
    fn from(error: trike_core::BlockError) -> Self {
        CubeError::from(error).into()
    }
}

impl From<CubeError> for Failure {
    fn from(error: CubeError) -> Self {
        match error {
            CubeError::Feature { feature, .. } => Self::Missing(feature.to_owned()),
            // The number of bound buffers does not depend on the blueprint.
            CubeError::Limit { what: "buffers", requested, .. } => {
                Self::Missing(format!("{requested} buffers"))
            }
            other => Self::Wrong(other.to_string()),
        }
    }
}

/// Result of a case.
pub type Verdict = Result<(), Failure>;

/// Number of slowest cases to keep.
const SLOWEST: usize = 5;

/// One device, and the outcomes of the cases run on it.
pub struct Session<'a> {
    device: &'a CubeDevice,
    compared: bool,
    filter: Option<&'a str>,
    /// The part of the cases that is run, by their name after this prefix.
    share: Option<(Share, &'a str)>,
    tally: Tally,
    slowest: Vec<(Duration, String)>,
    /// Called after each case of a recording session.
    after: Option<&'a mut dyn FnMut()>,
}

impl<'a> Session<'a> {
    /// A session that runs cases on a device and compares their results.
    pub fn new(device: &'a CubeDevice) -> Self {
        Self {
            device,
            compared: true,
            filter: None,
            share: None,
            tally: Tally::default(),
            slowest: Vec::new(),
            after: None,
        }
    }

    /// A session on a recording device, for the launches only; `after` is called after each case.
    pub fn recording(device: &'a CubeDevice, after: &'a mut dyn FnMut()) -> Self {
        Self { compared: false, after: Some(after), ..Self::new(device) }
    }

    /// Restricts the session to cases whose name contains `filter`.
    #[must_use]
    pub fn filtered(self, filter: Option<&'a str>) -> Self {
        Self { filter, ..self }
    }

    /// Restricts the session to the cases of a part, if there is one; the others are skipped. Parts are of `prefix` and name, so
    /// that sessions with different prefixes run different cases.
    #[must_use]
    pub fn shared(self, share: Option<Share>, prefix: &'a str) -> Self {
        Self { share: share.map(|share| (share, prefix)), ..self }
    }

    /// The device.
    pub fn device(&self) -> &'a CubeDevice {
        self.device
    }

    /// Whether results are compared; on a recording device they are meaningless zeros.
    pub fn compares(&self) -> bool {
        self.compared
    }

    /// Runs one case. Names start with the operation: `linear/decode 33x77 m=3 groups of 32, Inferred`.
    ///
    /// A panic is a failure of the case and does not end the run.
    pub fn case(&mut self, name: impl Display, run: impl FnOnce(&Oracle) -> Verdict) {
        let name = name.to_string();
        if self.filter.is_some_and(|part| !name.contains(part)) {
            return;
        }
        if let Some((share, prefix)) = self.share
            && !share.has(&format!("{prefix} {name}"))
        {
            self.tally.add(&name, Outcome::Skip(share.reason()));
            return;
        }
        let oracle = Oracle { compares: self.compared };
        let start = Instant::now();
        let outcome = match catch_unwind(AssertUnwindSafe(|| run(&oracle))) {
            Ok(Ok(())) => Outcome::Pass,
            Ok(Err(Failure::Missing(feature))) => Outcome::Skip(format!("the device has no {feature}")),
            Ok(Err(Failure::Wrong(found))) => Outcome::Fail(found),
            Err(panic) => Outcome::Fail(format!("panic: {}", panic_message(panic.as_ref()))),
        };
        self.tally.add(&name, outcome);
        self.slowest.push((start.elapsed(), name));
        self.slowest.sort_unstable_by(|a, b| b.cmp(a));
        self.slowest.truncate(SLOWEST);
        if let Some(after) = &mut self.after {
            after();
        }
    }

    /// The slowest cases, slowest first: nearly all of the time is kernel compilation in the driver.
    pub fn slowest(&self) -> &[(Duration, String)] {
        &self.slowest
    }

    /// Runs a case with the inferred blueprint and with every candidate.
    pub fn each<P: KernelProblem>(
        &mut self,
        name: impl Display,
        problem: &P,
        run: impl Fn(&Oracle, &Strategy<P::Blueprint>) -> Verdict,
    ) {
        self.case(format_args!("{} {name}, inferred", P::NAME), |oracle| run(oracle, &Strategy::Inferred));
        for blueprint in problem.candidates(self.device.capabilities()) {
            let case = format!("{} {name}, {blueprint:?}", P::NAME);
            let forced = Strategy::Forced(blueprint);
            self.case(case, |oracle| run(oracle, &forced));
        }
    }

    /// The outcomes of the cases.
    pub fn finish(self) -> Tally {
        self.tally
    }
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// An output filled with NaN: a kernel must overwrite all of it.
///
/// # Errors
/// Those of [`CubeDevice::upload`].
pub fn poisoned(device: &CubeDevice, len: usize) -> trike_cube::Result<Buffer<f32>> {
    device.upload(&vec![f32::NAN; len])
}

/// An integer output filled with a poison value.
///
/// # Errors
/// Those of [`CubeDevice::upload`].
pub fn poisoned_words<T: Element + From<u16>>(
    device: &CubeDevice,
    len: usize,
) -> trike_cube::Result<Buffer<T>> {
    device.upload(&vec![T::from(0xdead); len])
}

/// Compares results, unless the device only records.
pub struct Oracle {
    compares: bool,
}

impl Oracle {
    /// Whether results are compared, so that expectations need to be computed.
    pub fn compares(&self) -> bool {
        self.compares
    }

    /// Integer stages: elementwise equality.
    ///
    /// # Errors
    /// The first differing element.
    pub fn exact<T: PartialEq + Debug>(&self, what: &str, got: &[T], want: &[T]) -> Verdict {
        if !self.compares {
            return Ok(());
        }
        same_length(what, got.len(), want.len())?;
        match got.iter().zip(want).position(|(g, w)| g != w) {
            None => Ok(()),
            Some(at) => Err(Failure::Wrong(format!("{what}[{at}]: {:?}, expected {:?}", got[at], want[at]))),
        }
    }

    /// Float stages, in rows of `row` elements: the error may be at most twice that of a plain computation of the row
    /// in the same precision, plus `slack` times the row's largest magnitude, in case the plain computation happens to
    /// be exact.
    ///
    /// The bound is per row, because under a common bound a row of small numbers next to one of large numbers would be
    /// unchecked.
    ///
    /// # Errors
    /// The element with the largest error in the first wrong row, or the first NaN.
    pub fn twice_plain(
        &self,
        what: &str,
        got: &[f32],
        exact: &[f64],
        plain: &[f32],
        row: usize,
        slack: f64,
    ) -> Verdict {
        if !self.compares {
            return Ok(());
        }
        same_length(what, got.len(), exact.len())?;
        same_length(what, plain.len(), exact.len())?;
        let rows = got.chunks(row).zip(exact.chunks(row)).zip(plain.chunks(row));
        for (number, ((got, exact), plain)) in rows.enumerate() {
            let largest = exact.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            let off = plain.iter().zip(exact).map(|(&v, &e)| (f64::from(v) - e).abs()).fold(0.0f64, f64::max);
            self.within(&format!("row {number} of {what}"), got, exact, 2.0 * off + slack * largest)?;
        }
        Ok(())
    }

    /// Float stages with a known bound: at most `tolerance` from the exact result.
    ///
    /// # Errors
    /// The element with the largest error, or the first NaN.
    pub fn within(&self, what: &str, got: &[f32], exact: &[f64], tolerance: f64) -> Verdict {
        if !self.compares {
            return Ok(());
        }
        same_length(what, got.len(), exact.len())?;
        let mut worst = (0, 0.0);
        for (at, (&g, &e)) in got.iter().zip(exact).enumerate() {
            let off = (f64::from(g) - e).abs();
            if off.is_nan() {
                return Err(Failure::Wrong(format!("{what}[{at}]: {g}, expected {e}")));
            }
            if off > worst.1 {
                worst = (at, off);
            }
        }
        let (at, off) = worst;
        if off <= tolerance {
            return Ok(());
        }
        Err(Failure::Wrong(format!(
            "{what}[{at}]: {}, expected {} within {tolerance:e}, off by {off:e}",
            got[at], exact[at]
        )))
    }

    /// Checks that a call failed with the expected error variant.
    ///
    /// # Errors
    /// The actual outcome.
    pub fn refused<T>(
        &self,
        what: &str,
        result: trike_cube::Result<T>,
        expected: impl Fn(&CubeError) -> bool,
    ) -> Verdict {
        match result {
            Err(error) if expected(&error) => Ok(()),
            Err(error) => Err(Failure::Wrong(format!("{what}: refused with a different error: {error}"))),
            Ok(_) => Err(Failure::Wrong(format!("{what}: not refused"))),
        }
    }
}

fn same_length(what: &str, got: usize, want: usize) -> Verdict {
    if got == want { Ok(()) } else { Err(Failure::Wrong(format!("{what}: {got} elements, expected {want}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPARES: Oracle = Oracle { compares: true };

    fn wrong(verdict: Verdict) -> String {
        match verdict {
            Err(Failure::Wrong(found)) => found,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn integers_must_be_equal() {
        COMPARES.exact("x", &[1, 2], &[1, 2]).unwrap();
        assert_eq!(wrong(COMPARES.exact("x", &[1, 3], &[1, 2])), "x[1]: 3, expected 2");
        assert_eq!(wrong(COMPARES.exact("x", &[1], &[1, 2])), "x: 1 elements, expected 2");
    }

    #[test]
    fn floats_may_be_off_by_twice_a_plain_computation() {
        let exact = [1.0f64, 2.0];
        let plain = [1.0f32, 2.125];
        COMPARES.twice_plain("y", &[1.0, 1.75], &exact, &plain, 2, 0.0).unwrap();
        assert!(wrong(COMPARES.twice_plain("y", &[1.0, 1.5], &exact, &plain, 2, 0.0)).contains("y[1]"));
        assert!(wrong(COMPARES.twice_plain("y", &[f32::NAN, 2.0], &exact, &plain, 2, 1.0)).contains("NaN"));
        COMPARES.twice_plain("y", &[1.0, 2.5], &exact, &[1.0, 2.0], 2, 0.25).unwrap();
        // What one row may be off by, another may not.
        COMPARES.twice_plain("y", &[1.125, 2.0], &exact, &plain, 2, 0.0).unwrap();
        let first = COMPARES.twice_plain("y", &[1.125, 2.0], &exact, &plain, 1, 0.0);
        assert!(wrong(first).starts_with("row 0 of y[0]"));
    }

    #[test]
    fn nothing_is_compared_where_nothing_is_computed() {
        let records = Oracle { compares: false };
        records.exact("x", &[0], &[1, 2]).unwrap();
        records.within("x", &[f32::NAN], &[1.0], 0.0).unwrap();
    }

    #[test]
    fn a_refusal_must_be_the_expected_one() {
        let refusal = || Err::<(), _>(CubeError::Overlap { what: "x" });
        COMPARES.refused("a", refusal(), |e| matches!(e, CubeError::Overlap { .. })).unwrap();
        assert!(wrong(COMPARES.refused("a", refusal(), |_| false)).contains("a different error"));
        assert!(wrong(COMPARES.refused("a", Ok(()), |_| true)).contains("not refused"));
    }
}
