//! Few-token kernel for base-3 weights: five trits per byte, 1.6 bits per weight.

use cubecl::prelude::*;

#[expect(unused_imports, reason = "the launch function's arguments")]
use super::DimsLaunch;
use super::decode::{Place, finish, load_ahead, scale_segment};
use super::{Dims, Form, Quad};

/// As [`decode`](super::decode::decode), over blocks of 160 columns.
///
/// Multiplying each byte by three yields the four leading digits of a word; even and odd bytes are processed separately so that
/// nothing carries into a neighbour. Five rounds yield 20 weights. That is about two operations per weight, versus half an
/// operation with two bits per weight: fewer bytes, but not faster unless memory is the bottleneck.
#[cube(launch_unchecked)]
pub(in crate::linear) fn base3<S: Float>(
    codes: &[Quad],
    scales: &[S],
    means: &[S],
    x: &[u32],
    sums: &[i32],
    factors: &[f32],
    out0: &mut [f32],
    out1: &mut [f32],
    out2: &mut [f32],
    dims: Dims,
    steps: u32,
    #[comptime] form: Form,
    #[comptime] rows: usize,
    #[comptime] splits: usize,
    #[comptime] cubes: usize,
) {
    let place = Place::new(rows, splits);
    let last = dims.code_rows as usize - 1;
    let steps = steps as usize;
    let sixteens = dims.blocks as usize * 8;
    let ahead = load_ahead(scales, factors, out0, out1, out2, &place, &dims, form, rows, splits, cubes);

    let mut ints = Array::<i32>::new(2 * rows);
    let mut totals = Array::<f32>::new(2 * rows);
    #[unroll]
    for n in 0..2 * rows {
        ints[n] = 0;
        totals[n] = 0.0;
    }

    #[unroll]
    for set in 0..form.sets {
        let plane = place.tile * form.sets + set;
        let mut step = place.k;
        while step < steps {
            let words = codes[(plane * steps + step) * 32 + place.lane];
            // Four digits per field: field `5 i + e` is row `g + 8 (field % 2)` of 16-column group `field / 2`.
            let mut fields = Array::<i32>::new(20usize);
            #[unroll]
            for i in 0..4usize {
                let word = words.extract(i);
                let mut even = word & 0x00FF_00FF;
                let mut odd = (word >> 8) & 0x00FF_00FF;
                #[unroll]
                for e in 0..5usize {
                    even *= 3;
                    odd *= 3;
                    fields[comptime!(5 * i + e)] =
                        i32::reinterpret(((even >> 8) & 0x0003_0003) | (odd & 0x0300_0300));
                    even &= 0x00FF_00FF;
                    odd &= 0x00FF_00FF;
                }
            }
            #[unroll]
            for c in 0..10usize {
                let sixteen = step * 10 + c;
                // The last block of weights may extend past the last block of activations; there are no columns there.
                let inside = sixteen < sixteens;
                let word = clamp_max(sixteen, sixteens - 1);
                let within = word / 8 * 32 + place.t * 8 + word % 8;
                #[unroll]
                for m in 0..rows {
                    let at = clamp_max(place.first + m, last) * sixteens * 4 + within;
                    let four = i32::reinterpret(select(inside, x[at], 0u32));
                    #[unroll]
                    for half in 0..2usize {
                        let n = comptime!(half * rows + m);
                        ints[n] = dp4a(fields[comptime!(2 * c + half)], four, ints[n]);
                    }
                }
                if comptime!(form.segment() != 0 && c % 2 == 1) {
                    let at32 = step * 5 + comptime!(c / 2);
                    scale_segment(
                        &mut ints,
                        &mut totals,
                        scales,
                        means,
                        sums,
                        factors,
                        at32,
                        &place,
                        &dims,
                        form,
                        rows,
                        set,
                        32usize,
                    );
                }
            }
            step += comptime!(splits * cubes);
        }
        if comptime!(form.segment() == 0 && !form.exact()) {
            scale_segment(
                &mut ints,
                &mut totals,
                scales,
                means,
                sums,
                factors,
                0usize,
                &place,
                &dims,
                form,
                rows,
                set,
                0usize,
            );
        }
    }
    finish(
        &ints, &totals, &ahead, scales, sums, factors, out0, out1, out2, &place, &dims, form, rows, splits,
        cubes,
    );
}
