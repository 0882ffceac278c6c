//! A ternary product of one token, in which every cube quantizes the activations itself.

use cubecl::prelude::*;

#[expect(unused_imports, reason = "the launch function's arguments")]
use crate::linear::kernels::DimsLaunch;
use crate::linear::kernels::decode::{
    Place, finish, load_ahead, load_words, multiply_block, ring_slots, scale_segment,
};
use crate::linear::kernels::{Dims, Form, Quad};
use crate::ops::rows::kernel::{Form as RowForm, to_codes};

/// Cube `tile` computes 16 rows like [`decode`](crate::linear::kernels::decode::decode) with one code row, except that it quantizes
/// its codes from a row of floats.
///
/// While the weights of the first blocks are loaded, the cube applies gate, norm, rotation and quantizer to its row of floats, like
/// the row kernel, and leaves codes, sums and factors in shared memory. All cubes repeat this work, which takes less time than
/// another launch.
#[cube(launch_unchecked)]
pub(super) fn fused<S: Float, N: Size>(
    codes: &[Quad],
    scales: &[S],
    means: &[S],
    x: &[Vector<f32, N>],
    other: &[Vector<f32, N>],
    weight: &[Vector<f32, N>],
    out0: &mut [f32],
    out1: &mut [f32],
    out2: &mut [f32],
    dims: Dims,
    cols: u32,
    eps: f32,
    #[comptime] form: Form,
    #[comptime] rows: RowForm,
    #[comptime] splits: usize,
    #[comptime] room: usize,
) {
    // Units are indexed linearly: WGSL has no plane indices in two-dimensional cubes.
    let (lane, slot) = (UNIT_POS as usize % 32, UNIT_POS as usize / 32);
    let place = Place { tile: CUBE_POS_X as usize, lane, g: lane / 4, t: lane % 4, k: slot, slot, first: 0 };
    let blocks = dims.blocks as usize;
    let segment = comptime!(form.segment());
    let mut x_codes = Shared::<[u32]>::new_slice(comptime!(32 * room));
    let mut sums = Shared::<[i32]>::new_slice(comptime!(4 * room + 4));
    let mut factors = Shared::<[f32]>::new_slice(comptime!(if form.x_group == 0 { 1 } else { 4 * room }));

    let mut ints = Array::<i32>::new(2usize);
    let mut totals = Array::<f32>::new(2usize);
    #[unroll]
    for n in 0..2usize {
        ints[n] = 0;
        totals[n] = 0.0;
    }
    let mut words = Array::<Quad>::new(form.planes);
    let mut xs = Array::<Quad>::new(2usize);
    let slots = comptime!(ring_slots(form, 1));
    let mut ring = Array::<Quad>::new(comptime!(slots * form.planes));

    #[unroll]
    for set in 0..form.sets {
        let plane = place.tile * form.sets + set;
        #[unroll]
        for s in 0..slots {
            // Past the last block the last one is loaded again, from cache.
            let block = clamp_max(place.k + comptime!(s * splits), blocks - 1);
            load_words(&mut ring, codes, plane * blocks + block, &place, s, form.planes);
        }
        if comptime!(set == 0) {
            to_codes::<N>(
                x,
                other,
                weight,
                &mut x_codes,
                &mut sums,
                &mut factors,
                0usize,
                cols as usize,
                eps,
                rows,
            );
            sync_cube();
        }
        let mut at = place.k;
        while at < blocks {
            #[unroll]
            for s in 0..slots {
                let block = at + comptime!(s * splits);
                if block < blocks {
                    #[unroll]
                    for p in 0..form.planes {
                        words[p] = ring[s * form.planes + p];
                    }
                    let ahead = clamp_max(block + comptime!(slots * splits), blocks - 1);
                    load_words(&mut ring, codes, plane * blocks + ahead, &place, s, form.planes);
                    #[unroll]
                    for w in 0..8usize {
                        let mut quad = xs[comptime!(w / 4)];
                        quad.insert(comptime!(w % 4), x_codes[block * 32 + place.t * 8 + w]);
                        xs[comptime!(w / 4)] = quad;
                    }
                    multiply_block(
                        &words,
                        &xs,
                        &mut ints,
                        &mut totals,
                        scales,
                        means,
                        &sums,
                        &factors,
                        block,
                        &place,
                        &dims,
                        form,
                        1usize,
                        set,
                    );
                }
            }
            at += comptime!(slots * splits);
        }
        if comptime!(segment == 0 && !form.exact()) {
            scale_segment(
                &mut ints,
                &mut totals,
                scales,
                means,
                &sums,
                &factors,
                0usize,
                &place,
                &dims,
                form,
                1usize,
                set,
                0usize,
            );
        }
    }
    let ahead = load_ahead(scales, &factors, out0, out1, out2, &place, &dims, form, 1usize, splits, 1usize);
    finish(
        &ints, &totals, &ahead, scales, &sums, &factors, out0, out1, out2, &place, &dims, form, 1usize,
        splits, 1usize,
    );
}
