//! Dense and int8 weights times many f32 activations on matrix instructions: `mma` tf32 m16n8k8 with f32 accumulation.
//!
//! Weights in f16, bf16 and int8 are exact in tf32; activations are rounded to its 11 bits and keep the range of f32, which large
//! models need.

use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::barrier::copy_async;
use cubecl::prelude::*;
use half::f16;

use super::dense::{DenseCompiled, ScaleMode, put};
use crate::linear::dense::DenseKind;

/// Rows per cube: fewer if few tokens give few cubes.
pub(in crate::linear) fn rows_of(tokens: usize) -> usize {
    if tokens == 128 { 128 } else { 64 }
}
/// Columns per step.
pub(in crate::linear) const STEP: usize = 32;
/// Columns of a step that are multiplied before the next ones are loaded from shared memory: four per lane.
const HALF: usize = 16;
/// Tokens per plane, and tiles of 16 rows per plane.
pub(in crate::linear) const OF_PLANE: usize = 32;
const TILES: usize = 4;
/// Tiles of eight tokens per plane.
const OCTETS: usize = OF_PLANE / 8;
/// Units per plane.
const LANES: usize = 32;
/// Vectors of activations per token and step.
const QUADS: usize = STEP / 4;

type Quad = Vector<f32, Const<4>>;

/// Planes per cube for `tokens` tokens: each has 64 rows.
pub(in crate::linear) fn planes(tokens: usize) -> usize {
    rows_of(tokens) / (16 * TILES) * tokens / OF_PLANE
}

/// Steps in shared memory, all but one of them in flight: more if there are few cubes.
fn stages(tokens: usize) -> usize {
    match tokens {
        32 => 8,
        64 => 5,
        _ => 3,
    }
}

/// Words of a row and step.
fn words(kind: DenseKind) -> usize {
    STEP / kind.per_word()
}

/// Stride of rows in shared memory, in words: lanes of a load access different banks.
fn stride(kind: DenseKind) -> usize {
    words(kind) * 3 / 2
}

/// Shared memory for `tokens` tokens per cube.
pub(in crate::linear) fn shared_bytes(kind: DenseKind, tokens: usize) -> usize {
    4 * stages(tokens) * (rows_of(tokens) * stride(kind) + tokens * STEP)
}

/// Index of the vector `column` of a token's activations of a step: halves are swapped for odd tokens, so that the lanes of a load
/// access different banks.
#[cube]
fn swizzled(token: usize, column: usize) -> usize {
    token * QUADS + (column ^ ((token % 2) * 4))
}

/// Extents of the operands in global memory.
#[derive(CubeType, Clone, Copy)]
struct Extent {
    /// Steps of a row.
    steps: usize,
    /// Words of a row of weights.
    stride_words: usize,
    /// Columns.
    cols: usize,
    last_row: usize,
    last_token: usize,
}

/// Starts the copies of a step, one commit group per unit; the group is empty past the last step.
#[cube]
fn copy<N: Size>(
    weights: &[Vector<u32, N>],
    x: &[Quad],
    w_stage: &mut [Vector<u32, N>],
    x_stage: &mut [Quad],
    step: usize,
    of: &Extent,
    #[comptime] kind: DenseKind,
    #[comptime] tokens: usize,
) {
    if step < of.steps {
        let unit = UNIT_POS_Y as usize * LANES + UNIT_POS_X as usize;
        let units = comptime!(LANES * planes(tokens));
        let buffer = step % comptime!(stages(tokens));
        let n = comptime!(kind.lane_words());
        // Copies of 16 bytes per row.
        let per_row = comptime!(words(kind) / 4);
        #[unroll]
        for c in 0..comptime!(rows_of(tokens) * per_row / units) {
            let i = unit + comptime!(c * units);
            let (line, part) = (i / per_row, i % per_row);
            let row = clamp_max(CUBE_POS_X as usize * comptime!(rows_of(tokens)) + line, of.last_row);
            let from = (row * of.stride_words + step * comptime!(words(kind)) + 4 * part) / n;
            let to = ((buffer * comptime!(rows_of(tokens)) + line) * comptime!(stride(kind)) + 4 * part) / n;
            copy_async(
                &weights[from..from + comptime!(4 / n)],
                &mut w_stage[to..to + comptime!(4 / n)],
                4u32,
            );
        }
        #[unroll]
        for c in 0..comptime!(tokens * QUADS / units) {
            let i = unit + comptime!(c * units);
            let (line, part) = (i / QUADS, i % QUADS);
            let token = clamp_max(CUBE_POS_Y as usize * tokens + line, of.last_token);
            let from = (token * of.cols + step * STEP) / 4 + part;
            let to = buffer * comptime!(tokens * QUADS) + swizzled(line, part);
            copy_async(&x[from..from + 1], &mut x_stage[to..to + 1], 4u32);
        }
    }
    gpu_asm!("cp.async.commit_group;");
}

/// Waits until at most `pending` of the unit's own copy groups are in flight.
#[cube]
fn wait(#[comptime] pending: usize) {
    gpu_asm!("cp.async.wait_group {n};", n = const pending);
}

/// Weight `i` of the four in a lane's words.
#[cube]
fn weight<N: Size>(words: Vector<u32, N>, #[comptime] i: usize, #[comptime] kind: DenseKind) -> f32 {
    if comptime!(kind == DenseKind::Int8) {
        // The byte with its sign flipped, as the low bits of 2^23.
        let byte = (words.extract(0usize) >> comptime!(8 * i as u32)) & 0xFF;
        f32::reinterpret((byte ^ 0x80) | 0x4B00_0000) - 8_388_736.0
    } else {
        let word = words.extract(comptime!(i / 2));
        if comptime!(kind == DenseKind::F16) {
            let two = Vector::<f16, Const<2>>::reinterpret(word);
            f32::cast_from(two.extract(comptime!(i % 2)))
        } else if comptime!(i.is_multiple_of(2)) {
            f32::reinterpret(word << 16)
        } else {
            f32::reinterpret(word & 0xFFFF_0000)
        }
    }
}

/// An activation rounded to tf32: its leading bits are those of the nearest tf32 number; the instruction ignores the rest.
#[cube]
fn rounded(x: f32) -> f32 {
    f32::reinterpret(u32::reinterpret(x) + 0x1000)
}

/// Cube `(x, y)` computes 64 or 128 rows for `tokens` tokens; a plane has 64 rows and 32 tokens.
///
/// The four columns of lane `(g, t)` in each 16, `4 t ..`, are used as columns `t` and `t + 4` of two instructions, for both
/// weights and activations: the order of columns in a sum is arbitrary.
#[cube(launch_unchecked)]
pub(in crate::linear) fn dense_mma<N: Size>(
    weights: &[Vector<u32, N>],
    scales: &[f32],
    x: &[Quad],
    out: &mut [f32],
    count: u32,
    rows: u32,
    cols: u32,
    #[comptime] form: DenseCompiled,
    #[comptime] tokens: usize,
) {
    let def = MmaDefinition::<tf32, tf32, f32>::new(16usize, 8usize, 8usize);
    let size!(NA) = def.vector_size(MatrixIdent::A);
    let size!(NB) = def.vector_size(MatrixIdent::B);
    let size!(NC) = def.vector_size(MatrixIdent::Accumulator);

    let kind = form.kind;
    let n = comptime!(kind.lane_words());
    let lane = UNIT_POS_X as usize;
    let (g, t) = (lane / 4, lane % 4);
    let plane = UNIT_POS_Y as usize;
    let across = comptime!(tokens / OF_PLANE);
    let (first_row, first_token) = (plane / across * comptime!(16 * TILES), plane % across * OF_PLANE);
    let (last_row, last_token) = (rows as usize - 1, count as usize - 1);
    let cols = cols as usize;
    // Columns are a multiple of a step, so rows are not padded.
    let of = Extent { steps: cols / STEP, stride_words: cols / kind.per_word(), cols, last_row, last_token };

    let mut w_stage = Shared::<[Vector<u32, N>]>::new_aligned_slice(
        comptime!(stages(tokens) * rows_of(tokens) * stride(kind) / n),
        16usize,
    );
    let mut x_stage =
        Shared::<[Quad]>::new_aligned_slice(comptime!(stages(tokens) * tokens * QUADS), 16usize);
    let mut acc = Sequence::<Array<Vector<f32, NC>>>::new();
    #[unroll]
    for _ in 0..comptime!(TILES * OCTETS) {
        let mut c = Array::<Vector<f32, NC>>::new(2usize);
        c[0] = Vector::zeroed();
        c[1] = Vector::zeroed();
        acc.push(c);
    }
    let mut operand_a = Array::<Vector<tf32, NA>>::new(4usize);
    let mut operand_b = Array::<Vector<tf32, NB>>::new(2usize);
    let mut taken = Array::<Vector<u32, N>>::new(comptime!(2 * TILES));
    let mut xs = Array::<Quad>::new(OCTETS);

    #[unroll]
    for step in 0..comptime!(stages(tokens) - 1) {
        copy::<N>(weights, x, &mut w_stage, &mut x_stage, step, &of, kind, tokens);
    }
    for step in 0..of.steps {
        wait(comptime!(stages(tokens) - 2));
        // The previous step has been read, and its buffer is free.
        sync_cube();
        let next = step + comptime!(stages(tokens) - 1);
        copy::<N>(weights, x, &mut w_stage, &mut x_stage, next, &of, kind, tokens);
        let buffer = step % comptime!(stages(tokens));
        #[unroll]
        for half in 0..comptime!(STEP / HALF) {
            #[unroll]
            for a in 0..comptime!(2 * TILES) {
                let line = first_row + g + comptime!(8 * a);
                let at = (buffer * comptime!(rows_of(tokens)) + line) * comptime!(stride(kind) / n)
                    + comptime!(half * 4)
                    + t;
                taken[a] = w_stage[at];
            }
            #[unroll]
            for b in 0..OCTETS {
                let line = first_token + g + comptime!(8 * b);
                let column = comptime!(half * 4) + t;
                xs[b] = x_stage[buffer * comptime!(tokens * QUADS) + swizzled(line, column)];
            }
            #[unroll]
            for two in 0..2usize {
                #[unroll]
                for a in 0..TILES {
                    #[unroll]
                    for j in 0..4usize {
                        let word = taken[comptime!(2 * a + j % 2)];
                        let value = weight::<N>(word, comptime!(2 * two + j / 2), kind);
                        operand_a[j] = Vector::<tf32, NA>::reinterpret(value);
                    }
                    #[unroll]
                    for b in 0..OCTETS {
                        #[unroll]
                        for j in 0..2usize {
                            let value = rounded(xs[b].extract(comptime!(2 * two + j)));
                            operand_b[j] = Vector::<tf32, NB>::reinterpret(value);
                        }
                        def.execute_inplace(&operand_a, &operand_b, acc.index_mut(comptime!(a * OCTETS + b)));
                    }
                }
            }
        }
    }

    #[unroll]
    for a in 0..TILES {
        #[unroll]
        for half in 0..2usize {
            let row = CUBE_POS_X as usize * comptime!(rows_of(tokens))
                + first_row
                + g
                + comptime!(16 * a + 8 * half);
            let mut scale = 1.0f32;
            if comptime!(form.scale == ScaleMode::Row) {
                scale = scales[clamp_max(row, last_row)];
            }
            #[unroll]
            for b in 0..OCTETS {
                let c = acc.index_mut(comptime!(a * OCTETS + b));
                #[unroll]
                for e in 0..2usize {
                    let token = CUBE_POS_Y as usize * tokens + first_token + comptime!(8 * b + e) + 2 * t;
                    if row <= last_row && token <= last_token {
                        put(out, token * rows as usize + row, c[half].extract(e) * scale, form.add);
                    }
                }
            }
        }
    }
}
