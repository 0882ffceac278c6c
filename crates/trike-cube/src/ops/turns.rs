//! Rotation of the pairs of a head.

use cubecl::prelude::*;
use trike_core::RopePairing;

/// Indices of the two elements of a pair in a head; unrotated pairs are adjacent elements.
#[cube]
pub(super) fn places(pair: usize, rotated: usize, #[comptime] pairing: RopePairing) -> (usize, usize) {
    let pairs = rotated / 2;
    let neighbours = comptime!(pairing == RopePairing::Adjacent) || pair >= pairs;
    let low = select(neighbours, 2 * pair, pair);
    let high = select(neighbours, 2 * pair + 1, pair + pairs);
    (low, high)
}

/// Rotates a pair of the query that starts at element `from`; the turns of its position start at `turns_at`.
#[cube]
pub(super) fn turn_query(
    q: &mut [f32],
    turns: &[f32],
    from: usize,
    pair: usize,
    turns_at: usize,
    rotated: usize,
    #[comptime] pairing: RopePairing,
) {
    if pair < rotated / 2 {
        let (low, high) = places(pair, rotated, pairing);
        let (a, b) = (q[from + low], q[from + high]);
        let (cos, sin) = (turns[turns_at + pair], turns[turns_at + pair + rotated / 2]);
        q[from + low] = a * cos - b * sin;
        q[from + high] = a * sin + b * cos;
    }
}
