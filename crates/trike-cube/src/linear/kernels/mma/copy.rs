//! Copies of weights and activations to shared memory (`cp.async`) that bypass registers.

use cubecl::prelude::barrier::copy_async;
use cubecl::prelude::*;

use super::{Form, MmaShape, Place, Quad};

/// Starts the copies of a step of blocks to a buffer, one commit group per unit; the group is empty past the last step.
///
/// Tiles, rows and blocks past the last one repeat it; their products are not stored.
#[cube]
pub(super) fn step(
    codes: &[Quad],
    x: &[Quad],
    w_stage: &mut [Quad],
    x_stage: &mut [Quad],
    step: usize,
    end: usize,
    buffer: usize,
    place: &Place,
    #[comptime] form: Form,
    #[comptime] shape: MmaShape,
    #[comptime] set: usize,
) {
    if step < end {
        let units = comptime!(shape.units());
        let last_block = place.blocks - 1;
        let per_block = comptime!(shape.weights(form.planes));
        let weights = comptime!(shape.splits * per_block);
        #[unroll]
        for c in 0..comptime!(weights.div_ceil(units)) {
            let vector = place.unit + comptime!(c * units);
            if comptime!((c + 1) * units <= weights) || vector < weights {
                let (slot, within) = (vector / per_block, vector % per_block);
                let tile = clamp_max(place.cube_tile + within / comptime!(form.planes * 32), place.last_tile);
                let block = clamp_max(step * shape.splits + slot, last_block);
                let from = ((tile * form.sets + set) * place.blocks + block) * comptime!(form.planes * 32)
                    + within % comptime!(form.planes * 32);
                let to = buffer * weights + vector;
                copy_async(&codes[from..from + 1], &mut w_stage[to..to + 1], 4u32);
            }
        }
        let per_block = comptime!(shape.code_rows() * 8);
        let vectors = comptime!(shape.splits * per_block);
        #[unroll]
        for c in 0..comptime!(vectors.div_ceil(units)) {
            let vector = place.unit + comptime!(c * units);
            if comptime!((c + 1) * units <= vectors) || vector < vectors {
                let (slot, within) = (vector / per_block, vector % per_block);
                let row = clamp_max(place.cube_row + within / 8, place.last);
                let block = clamp_max(step * shape.splits + slot, last_block);
                let from = (row * place.blocks + block) * 8 + within % 8;
                let to = (buffer * shape.splits + slot) * comptime!(shape.activations())
                    + within / 8 * MmaShape::STRIDE
                    + within % 8;
                copy_async(&x[from..from + 1], &mut x_stage[to..to + 1], 4u32);
            }
        }
    }
    gpu_asm!("cp.async.commit_group;");
}

/// Waits until at most `pending` of the unit's own copy groups are in flight.
#[cube]
pub(super) fn wait(#[comptime] pending: usize) {
    gpu_asm!("cp.async.wait_group {n};", n = const pending);
}
