//! Sum and maximum over the units of a cube.

use cubecl::prelude::*;

/// The sum of a value over all units, returned to every unit.
///
/// With planes, the cube is a whole number of planes (`check_planes`), and each plane writes to the slot of its index: the
/// mapping of units to planes is up to the driver.
///
/// `shared` has one slot per unit, `units` is a power of two; the order of the additions depends only on `units` and `planes`.
#[cube]
pub(crate) fn sum_floats(
    value: f32,
    shared: &mut Shared<[f32]>,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) -> f32 {
    let mut total = 0.0f32;
    if comptime!(planes) {
        let part = plane_sum(value);
        if UNIT_POS_PLANE == 0 {
            shared[PLANE_POS as usize] = part;
        }
        sync_cube();
        let parts = (units as u32 / PLANE_DIM) as usize;
        for p in 0..parts {
            total += shared[p];
        }
    } else {
        shared[UNIT_POS as usize] = value;
        sync_cube();
        #[unroll]
        for level in 0..comptime!(units.ilog2() as usize) {
            let step = comptime!(units >> (level + 1));
            if (UNIT_POS as usize) < step {
                let other = shared[UNIT_POS as usize + step];
                shared[UNIT_POS as usize] += other;
            }
            sync_cube();
        }
        total = shared[0];
    }
    sync_cube();
    total
}

/// [`sum_floats`] for integers.
#[cube]
pub(crate) fn sum_ints(
    value: i32,
    shared: &mut Shared<[i32]>,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) -> i32 {
    let mut total = 0i32;
    if comptime!(planes) {
        let part = plane_sum(value);
        if UNIT_POS_PLANE == 0 {
            shared[PLANE_POS as usize] = part;
        }
        sync_cube();
        let parts = (units as u32 / PLANE_DIM) as usize;
        for p in 0..parts {
            total += shared[p];
        }
    } else {
        shared[UNIT_POS as usize] = value;
        sync_cube();
        #[unroll]
        for level in 0..comptime!(units.ilog2() as usize) {
            let step = comptime!(units >> (level + 1));
            if (UNIT_POS as usize) < step {
                let other = shared[UNIT_POS as usize + step];
                shared[UNIT_POS as usize] += other;
            }
            sync_cube();
        }
        total = shared[0];
    }
    sync_cube();
    total
}

/// The maximum of a value over all units, returned to every unit.
#[cube]
pub(crate) fn max_words(
    value: u32,
    shared: &mut Shared<[u32]>,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) -> u32 {
    let mut largest = 0u32;
    if comptime!(planes) {
        let part = plane_max(value);
        if UNIT_POS_PLANE == 0 {
            shared[PLANE_POS as usize] = part;
        }
        sync_cube();
        let parts = (units as u32 / PLANE_DIM) as usize;
        for p in 0..parts {
            largest = max(largest, shared[p]);
        }
    } else {
        shared[UNIT_POS as usize] = value;
        sync_cube();
        #[unroll]
        for level in 0..comptime!(units.ilog2() as usize) {
            let step = comptime!(units >> (level + 1));
            if (UNIT_POS as usize) < step {
                let other = shared[UNIT_POS as usize + step];
                shared[UNIT_POS as usize] = max(shared[UNIT_POS as usize], other);
            }
            sync_cube();
        }
        largest = shared[0];
    }
    sync_cube();
    largest
}
