//! Hypervectors: batches of trits as bit planes, and the operations of vector-symbolic architectures (VSA).
//!
//! Every operation takes [`TritTable`]s, one hypervector per row, and works on words of 32 trits; results are bit-identical to
//! the host's kernels, because nothing is rounded. `trike-vsa` builds algebras on them.
//!
//! * binding and its inverses: [`CubeDevice::trit_combine`] with [`TritOp`]
//! * rotation: [`CubeDevice::permute`]
//! * bundling: [`CubeDevice::bundle`] computes [`TritCounts`], [`CubeDevice::decide`] converts them to trits,
//!   [`CubeDevice::nonzeros`] counts nonzeros to choose a threshold
//! * comparison and search: [`CubeDevice::trit_scores`], [`CubeDevice::nearest`] with [`TritHit`]

mod bundle;
mod combine;
mod permute;
mod search;

pub use bundle::{Decision, TritCounts};
pub use combine::{CombineProblem, TritOp};
pub use permute::PermuteProblem;
pub use search::MAX_SEARCH_DIMS;
pub use trike_core::TritHit;

use crate::plan::Settings;

#[cfg(doc)]
use crate::{CubeDevice, TritTable};

/// Units per cube of the kernels with one word per unit.
const UNITS: u32 = 128;

/// Blueprint of operations with a single kernel variant: one unit per word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OneWay;

/// Launch settings for `count` units.
fn units(count: usize, bindings: usize) -> Settings {
    let cubes = crate::plan::spread(count.div_ceil(UNITS as usize));
    Settings { cubes, ..Settings::linear(1, UNITS, bindings) }
}
