//! Other implementations at the same problems in the same run: cuBLAS and cubek, in f16.
//!
//! Their weights are rotated as Trike's are, and they take turns with Trike's kernels by the device's clock. A rival that
//! computes something else is none: some of its outputs are compared with a loop over f64 before it is timed. One that cannot
//! run is in the record with the reason, and is no failure of the run.
//!
//! Only with the feature `rivals`: cubek takes longer to compile than everything else here.

#[cfg(feature = "rivals")]
mod cubek;
#[cfg(feature = "rivals")]
mod cublas;
#[cfg(any(test, feature = "rivals"))]
#[cfg_attr(not(feature = "rivals"), allow(dead_code, reason = "its tests need no rivals"))]
mod oracle;

use anyhow::Result;
use trike_bench::Attention;

use super::catalogue::Case;
use super::entrant::{Absent, Entrant, Operands};
use super::run::Run;

/// cuBLAS in records.
pub(super) const CUBLAS: &str = "cuBLAS f16";
/// cubek in records.
pub(super) const CUBEK: &str = "cubek f16";

/// A rival on a device.
pub(super) trait Library {
    /// In records.
    fn name(&self) -> &'static str;

    /// Operands of a matrix for these numbers of tokens, the weights as often as `rotate` bytes take.
    fn operands<'a>(
        &'a self,
        case: &'a Case,
        tokens: &[usize],
        rotate: usize,
    ) -> Result<Box<dyn Operands + 'a>>;

    /// The contender for attention, where the rival has such a thing.
    fn attention<'a>(&'a self, _: &Attention) -> Option<Result<Entrant<'a>, Absent>> {
        None
    }
}

/// Says that nobody else is in this binary.
#[cfg(not(feature = "rivals"))]
pub(super) fn open(run: &mut Run<'_>) -> Vec<Box<dyn Library>> {
    for rival in [CUBLAS, CUBEK] {
        run.absent(absent(None, rival, anyhow::anyhow!("built without the feature `rivals`")));
    }
    Vec::new()
}

/// The rivals that run on the device; why the others do not is noted.
#[cfg(feature = "rivals")]
pub(super) fn open(run: &mut Run<'_>) -> Vec<Box<dyn Library>> {
    let device = run.device;
    let opened: [(&str, Result<Box<dyn Library>>); 2] = [
        (CUBLAS, caught(|| Ok(Box::new(cublas::Library::open(device)?) as _))),
        (CUBEK, caught(|| Ok(Box::new(cubek::Cubek::open(device)?) as _))),
    ];
    let mut rivals = Vec::new();
    for (name, opened) in opened {
        match opened {
            Ok(rival) => rivals.push(rival),
            Err(error) => run.absent(absent(None, name, error)),
        }
    }
    rivals
}

fn absent(problem: Option<String>, rival: &str, error: anyhow::Error) -> Absent {
    Absent { problem, kernel: rival.to_owned(), rival: true, error }
}

/// A library that cannot be loaded panics, and so does a kernel that its author did not think of.
#[cfg(feature = "rivals")]
fn caught<T>(run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(anyhow::anyhow!("{}", crate::session::panic_message(panic.as_ref()))))
}

#[cfg(all(test, feature = "rivals"))]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_reason() {
        let panics = caught::<()>(|| panic!("no  library\nhere"));
        assert_eq!(panics.unwrap_err().to_string(), "no  library\nhere");
        assert_eq!(caught(|| Ok(3)).unwrap(), 3);
    }
}
