//! Hypervectors: batches of trits in bit planes, and what vector-symbolic architectures do with them.
//!
//! Every operation takes [`TritTable`]s, a hypervector a row, and works on words of 32 trits; results are those of the host's
//! kernels to the bit, because nothing is rounded. `trike-vsa` gives them algebras.
//!
//! * binding and its inverses: [`Device::trit_combine`] with [`TritOp`]
//! * rotation: [`Device::permute`]
//! * bundling: [`Device::bundle`] makes [`TritCounts`], [`Device::decide`] trits of those, [`Device::nonzeros`] what a cut needs
//! * comparison and search: [`Device::trit_scores`], [`Device::nearest`] with [`TritHit`]

mod bundle;
mod combine;
mod permute;
mod search;

pub use bundle::{Decision, TritCounts};
pub use combine::{CombineProblem, TritOp};
pub use permute::PermuteProblem;
pub use search::{MAX_SEARCHED, TritHit};

use crate::plan::Settings;

#[cfg(doc)]
use crate::{Device, TritTable};

/// Units of a cube of the kernels that give each unit a word of its own.
const UNITS: u32 = 128;

/// How an operation is computed that has one way: a unit for each word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OneWay;

/// So many units in cubes.
fn units(count: usize, bindings: usize) -> Settings {
    let cubes = crate::plan::spread(count.div_ceil(UNITS as usize));
    Settings { cubes, ..Settings::linear(1, UNITS, bindings) }
}
