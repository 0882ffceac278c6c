//! The cases, an operation a file: each runs an operation with every blueprint that the device allows and compares with a
//! result that shares no code with it.
//!
//! The same functions run on devices that compute and on devices that only record what is launched, so inputs are small and
//! no result decides what is launched next.

pub mod attention;
pub mod elementwise;
pub mod graphs;
pub mod linear;
pub mod matrices;
pub mod probe;
pub mod rows;
pub mod sampling;
pub mod vsa;

use crate::session::Session;

/// Every suite.
pub fn all(session: &mut Session) {
    linear::linear(session);
    matrices::matrices(session);
    rows::rows(session);
    elementwise::elementwise(session);
    sampling::sampling(session);
    attention::attention(session);
    graphs::graphs(session);
    probe::probe(session);
    vsa::vsa(session);
}

/// Forms of kernels that only large problems call for, on small buffers: for devices that record, where nothing is compared.
///
/// Blueprints are chosen for the large problem and forced on a small one.
pub fn shapes(session: &mut Session) {
    linear::shapes(session);
    rows::shapes(session);
    attention::shapes(session);
}
