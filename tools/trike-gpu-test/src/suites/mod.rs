//! The suites, one file per operation: each runs an operation with every blueprint that the device supports and
//! compares with an independent result.
//!
//! The same functions run on computing and on recording devices, so inputs are small and no launch depends on an
//! earlier result.

pub mod attention;
pub mod elementwise;
pub mod fused;
pub mod graphs;
pub mod linear;
pub mod masks;
pub mod matrices;
pub mod probe;
pub mod rotations;
pub mod rows;
pub mod sampling;
pub mod selected;
pub mod several;
pub mod training;
pub mod vsa;

use crate::session::Session;

/// All suites.
pub fn all(session: &mut Session) {
    linear::linear(session);
    matrices::matrices(session);
    rows::rows(session);
    fused::fused(session);
    elementwise::elementwise(session);
    sampling::sampling(session);
    attention::attention(session);
    masks::masks(session);
    selected::selected(session);
    several::several(session);
    rotations::rotations(session);
    graphs::graphs(session);
    probe::probe(session);
    vsa::vsa(session);
    training::training(session);
}

/// Kernel forms that are only inferred for large problems, on small buffers: for recording devices, without
/// comparison.
///
/// Blueprints are chosen for the large problem and forced on a small one.
pub fn shapes(session: &mut Session) {
    linear::shapes(session);
    rows::shapes(session);
    attention::shapes(session);
}
