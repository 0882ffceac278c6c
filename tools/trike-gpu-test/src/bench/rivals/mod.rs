//! Rival implementations of the same problems, timed in the same run: cuBLAS in f16, f32 and int8, cubek in f16.
//!
//! They cycle through copies of their weights and are interleaved with Trike's kernels by the device's clock, like those.
//! Before a rival is timed, some of its outputs are compared with an f64 loop. A rival that cannot run is recorded with the
//! reason and does not fail the run.
//!
//! Requires the feature `rivals`, because cubek takes longer to compile than the rest of this package.

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
#[cfg(feature = "rivals")]
use oracle::Numbers;

/// Name of cuBLAS in records.
pub(super) const CUBLAS: &str = "cuBLAS f16";
/// Name of cubek in records.
pub(super) const CUBEK: &str = "cubek f16";

/// A rival on a device.
pub(super) trait Library {
    /// Name in records.
    fn name(&self) -> &'static str;

    /// Operands for these numbers of tokens, with copies of the weights of `rotate` bytes in total.
    fn operands<'a>(
        &'a self,
        case: &'a Case,
        tokens: &[usize],
        rotate: usize,
    ) -> Result<Box<dyn Operands + 'a>>;

    /// The contender for attention; `None` if the rival does not implement it.
    fn attention<'a>(&'a self, _: &Attention) -> Option<Result<Entrant<'a>, Absent>> {
        None
    }
}

/// Records that this binary was built without rivals.
#[cfg(not(feature = "rivals"))]
pub(super) fn open(run: &mut Run<'_>) -> Vec<Box<dyn Library>> {
    for rival in ["cuBLAS", CUBEK] {
        run.absent(absent(None, rival, anyhow::anyhow!("built without the feature `rivals`")));
    }
    Vec::new()
}

/// Opens a rival.
#[cfg(feature = "rivals")]
type Opener<'a> = Box<dyn FnOnce() -> Result<Box<dyn Library>> + 'a>;

/// The rivals that run on the device; the others are recorded with the reason.
#[cfg(feature = "rivals")]
pub(super) fn open(run: &mut Run<'_>) -> Vec<Box<dyn Library>> {
    let device = run.device;
    let mut openers: Vec<(&str, Opener<'_>)> = Vec::new();
    for numbers in [Numbers::F16, Numbers::F32, Numbers::Int8] {
        let open = move || Ok(Box::new(cublas::Library::open(device, numbers)?) as _);
        openers.push((cublas::name(numbers), Box::new(open)));
    }
    openers.push((CUBEK, Box::new(|| Ok(Box::new(cubek::Cubek::open(device)?) as _))));
    let mut rivals = Vec::new();
    for (name, open) in openers {
        let opened = match run.options.without.iter().find(|part| name.contains(part.as_str())) {
            Some(part) => Err(anyhow::anyhow!("left out by --without {part}")),
            None => caught(open),
        };
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

/// Converts panics to errors: cudarc panics if a library cannot be loaded, and cubek on unsupported problems.
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
