//! Matrix kernel for devices that expose matrix instructions only as cooperative matrices: whole matrices are loaded,
//! multiplied and stored, and the mapping of elements to units is opaque.
//!
//! Elements are bytes with int32 sums or, on devices whose cooperative matrices have no bytes (CDNA, RDNA 3, Apple), f16 with
//! f32 sums. Codes of weights and activations are exact in f16, and so is an f32 sum of their products up to
//! [`EXACT_SUM`]: both give the same integers.

use cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

#[expect(unused_imports, reason = "the launch function's arguments")]
use super::DimsLaunch;
use super::{Dims, Form, Quad, four_codes, group_of, segment_factor, store, sum_of};

/// Four elements in shared memory.
type Four<E> = Vector<E, Const<4>>;

/// Integers up to this magnitude are exact in f32.
pub(in crate::linear) const EXACT_SUM: usize = 1 << 24;

/// Elements of the cooperative matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WmmaElement {
    /// Bytes with int32 sums.
    #[default]
    I8,
    /// f16 with f32 sums.
    F16,
}

impl WmmaElement {
    /// Bytes per element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::I8 => 1,
            Self::F16 => 2,
        }
    }
}

/// Tiling of the cooperative-matrix kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WmmaShape {
    /// Rows of weights per cooperative matrix.
    pub m: usize,
    /// Code rows per cooperative matrix.
    pub n: usize,
    /// Columns per cooperative matrix.
    pub k: usize,
    /// Matrices per plane along the rows of weights.
    pub row_matrices: usize,
    /// Matrices per plane along the code rows.
    pub code_matrices: usize,
    /// Planes per cube along the rows of weights.
    pub row_planes: usize,
    /// Planes per cube along the code rows.
    pub code_planes: usize,
    /// Elements of the matrices.
    pub element: WmmaElement,
}

impl WmmaShape {
    /// Planes per cube that multiply.
    #[must_use]
    pub fn planes(self) -> usize {
        self.row_planes * self.code_planes
    }

    /// Rows of weights per cube.
    #[must_use]
    pub fn rows(self) -> usize {
        self.m * self.row_matrices * self.row_planes
    }

    /// Code rows per cube.
    #[must_use]
    pub fn code_rows(self) -> usize {
        self.n * self.code_matrices * self.code_planes
    }

    /// Accumulator matrices per plane.
    fn sums(self) -> usize {
        self.row_matrices * self.code_matrices
    }

    /// Elements of one accumulator matrix per plane, over all planes.
    fn slot(self) -> usize {
        self.planes() * self.m * self.n
    }

    /// Vectors of four elements per row of a matrix.
    fn words(self) -> usize {
        self.k / 4
    }

    /// Blocks of columns in shared memory: two for bytes, or one for f16, which has the same size.
    fn stages(self) -> usize {
        2 / self.element.bytes()
    }

    /// Bytes of shared memory: the blocks of weights and codes, and two accumulator matrices per plane.
    #[doc(hidden)]
    #[must_use]
    pub fn shared_bytes(self) -> usize {
        self.stages() * self.element.bytes() * 128 * (self.rows() + self.code_rows()) + 2 * 4 * self.slot()
    }
}

/// Cube `(x, y)` computes `shape.rows()` rows for `shape.code_rows()` code rows, one block of columns at a time.
///
/// The next block's weights and codes are held in registers while one is multiplied, then unpacked into the other half of shared
/// memory or, with one stage, over the previous block. A block is stored as `[128 / k][row][k]`, so that a matrix is contiguous; a
/// row's words are ordered by 32-column segment, because scales may change there, and within a segment in the order of the packed
/// weights.
///
/// Accumulators are read back through shared memory, one matrix per plane at a time; a unit of the cube reads the sums of one
/// row and one token, with all digits. This does not depend on a unit's plane, and a device may have several plane sizes:
/// planes beyond the required number only unpack.
#[cube(launch_unchecked)]
pub(in crate::linear) fn wmma<S: Float, E: Numeric, A: Numeric>(
    codes: &[Quad],
    scales: &[S],
    means: &[S],
    x: &[Quad],
    sums: &[i32],
    factors: &[f32],
    out0: &mut [f32],
    out1: &mut [f32],
    out2: &mut [f32],
    dims: Dims,
    tiles: u32,
    #[comptime] form: Form,
    #[comptime] shape: WmmaShape,
    #[comptime] units: usize,
) {
    let unit = UNIT_POS as usize;
    let plane = PLANE_POS as usize;
    let first_tile = CUBE_POS_X as usize * comptime!(shape.rows() / 16);
    let first = CUBE_POS_Y as usize * comptime!(shape.code_rows());
    let blocks = dims.blocks as usize;
    let last = dims.code_rows as usize - 1;
    let last_tile = tiles as usize - 1;
    let segment = comptime!(form.segment());

    let stages = comptime!(shape.stages());
    let mut w_stage = Shared::<[Four<E>]>::new_aligned_slice(comptime!(stages * shape.rows() * 32), 32usize);
    let mut x_stage =
        Shared::<[Four<E>]>::new_aligned_slice(comptime!(stages * shape.code_rows() * 32), 32usize);
    let mut scratch = Shared::<[A]>::new_aligned_slice(comptime!(2 * shape.slot()), 32usize);

    // Vectors of weights and of codes loaded per unit; the last may be out of range.
    let w_vectors = comptime!((2 * shape.rows()).div_ceil(units));
    let x_vectors = comptime!((8 * shape.code_rows()).div_ceil(units));
    let mut w_next = Array::<Quad>::new(comptime!(w_vectors * form.planes));
    let mut x_next = Array::<Quad>::new(x_vectors);

    let mut acc = Sequence::<Matrix<A>>::new();
    #[unroll]
    for _ in 0..comptime!(shape.sums()) {
        let c = Matrix::<A>::from_value(
            MatrixIdent::Accumulator,
            shape.m,
            shape.n,
            shape.k,
            MatrixLayout::Undefined,
            A::from_int(0),
        );
        acc.push(c);
    }
    // `[matrix][pair of row and token][digit]`.
    let pairs = comptime!(shape.slot() / form.slices / units);
    let numbers = comptime!(shape.sums() * pairs * form.slices);
    let mut totals = Array::<f32>::new(numbers);
    #[unroll]
    for n in 0..numbers {
        totals[n] = 0.0;
    }

    #[unroll]
    for set in 0..form.sets {
        load_block(
            codes,
            x,
            &mut w_next,
            &mut x_next,
            0usize,
            set,
            first_tile,
            first,
            last_tile,
            last,
            blocks,
            form,
            shape,
            units,
        );
        stage_block::<E>(&w_next, &x_next, &mut w_stage, &mut x_stage, 0usize, form, shape, units);
        sync_cube();
        for block in 0..blocks {
            let ahead = clamp_max(block + 1, blocks - 1);
            load_block(
                codes,
                x,
                &mut w_next,
                &mut x_next,
                ahead,
                set,
                first_tile,
                first,
                last_tile,
                last,
                blocks,
                form,
                shape,
                units,
            );
            #[unroll]
            for step in 0..comptime!(128 / shape.k) {
                if plane < shape.planes() {
                    multiply::<E, A>(&w_stage, &x_stage, &mut acc, block % stages, plane, step, shape);
                }
                if comptime!(segment != 0 && ((step + 1) * shape.k).is_multiple_of(segment)) {
                    let at32 = block * 4 + comptime!((((step + 1) * shape.k).max(segment) - segment) / 32);
                    collect::<S, A>(
                        &mut acc,
                        &mut scratch,
                        &mut totals,
                        scales,
                        means,
                        sums,
                        factors,
                        at32,
                        set,
                        plane,
                        first_tile,
                        first,
                        last_tile,
                        last,
                        &dims,
                        form,
                        shape,
                        units,
                    );
                }
            }
            if comptime!(stages == 1) {
                // All planes have multiplied the block that is about to be overwritten.
                sync_cube();
            }
            stage_block::<E>(
                &w_next,
                &x_next,
                &mut w_stage,
                &mut x_stage,
                (block + 1) % stages,
                form,
                shape,
                units,
            );
            sync_cube();
        }
        if comptime!(segment == 0) {
            collect::<S, A>(
                &mut acc,
                &mut scratch,
                &mut totals,
                scales,
                means,
                sums,
                factors,
                0usize,
                set,
                plane,
                first_tile,
                first,
                last_tile,
                last,
                &dims,
                form,
                shape,
                units,
            );
        }
    }

    #[unroll]
    for n in 0..comptime!(shape.sums()) {
        #[unroll]
        for pair in 0..pairs {
            let (weight_row, row) = place(pair, n, unit, form.slices, shape, units);
            let row = first + row;
            let (tile, r) = (first_tile + weight_row / 16, weight_row % 16);
            if row <= last && tile <= last_tile {
                let token = row / form.slices;
                let mut value = 0.0f32;
                #[unroll]
                for s in 0..form.slices {
                    let at = comptime!((n * pairs + pair) * form.slices + form.slices - 1 - s);
                    value = value * 256.0 + totals[at];
                }
                if comptime!(form.exact()) {
                    value *= f32::cast_from(scales[tile * 16 + r]);
                }
                if comptime!(form.x_group == 0) {
                    value *= factors[token];
                }
                store(out0, out1, out2, value, token, tile, r, &dims, form);
            }
        }
    }
}

/// Loads a unit's vectors of a block; rows past the last one repeat it.
#[cube]
fn load_block(
    codes: &[Quad],
    x: &[Quad],
    w_next: &mut Array<Quad>,
    x_next: &mut Array<Quad>,
    block: usize,
    #[comptime] set: usize,
    first_tile: usize,
    first: usize,
    last_tile: usize,
    last: usize,
    blocks: usize,
    #[comptime] form: Form,
    #[comptime] shape: WmmaShape,
    #[comptime] units: usize,
) {
    let unit = UNIT_POS as usize;
    #[unroll]
    for c in 0..comptime!((2 * shape.rows()).div_ceil(units)) {
        let vector = unit + comptime!(c * units);
        let tile = clamp_max(first_tile + vector / 32, last_tile) * form.sets + set;
        #[unroll]
        for p in 0..form.planes {
            w_next[c * form.planes + p] =
                codes[((tile * blocks + block) * form.planes + p) * 32 + vector % 32];
        }
    }
    #[unroll]
    for c in 0..comptime!((8 * shape.code_rows()).div_ceil(units)) {
        let vector = unit + comptime!(c * units);
        x_next[c] = x[(clamp_max(first + vector / 8, last) * blocks + block) * 8 + vector % 8];
    }
}

/// Four signed bytes as elements.
#[cube]
fn elements<E: Numeric>(four: u32, #[comptime] element: WmmaElement) -> Four<E> {
    let mut all = Four::<E>::zeroed();
    if comptime!(element == WmmaElement::I8) {
        all = Four::<E>::reinterpret(four);
    } else {
        #[unroll]
        for i in 0..4usize {
            let byte = i32::reinterpret(four << comptime!(24 - 8 * i as u32)) >> 24;
            all.insert(i, E::cast_from(byte));
        }
    }
    all
}

/// Unpacks a unit's vectors into stage `half` of shared memory.
#[cube]
fn stage_block<E: Numeric>(
    w_next: &Array<Quad>,
    x_next: &Array<Quad>,
    w_stage: &mut [Four<E>],
    x_stage: &mut [Four<E>],
    half: usize,
    #[comptime] form: Form,
    #[comptime] shape: WmmaShape,
    #[comptime] units: usize,
) {
    let unit = UNIT_POS as usize;
    #[unroll]
    for c in 0..comptime!((2 * shape.rows()).div_ceil(units)) {
        let vector = unit + comptime!(c * units);
        if vector < comptime!(2 * shape.rows()) {
            let (g, t) = (vector % 32 / 4, vector % 4);
            let mut of_tile = Array::<Quad>::new(form.planes);
            #[unroll]
            for p in 0..form.planes {
                of_tile[p] = w_next[c * form.planes + p];
            }
            #[unroll]
            for i in 0..4usize {
                #[unroll]
                for j in 0..4usize {
                    let row = vector / 32 * 16 + g + comptime!(8 * (j % 2));
                    let word = 2 * t + comptime!(8 * i + j / 2);
                    let at =
                        half * comptime!(shape.rows() * 32) + word_at(word, row, shape.rows(), shape.words());
                    let four = u32::reinterpret(four_codes(&of_tile, i, j, form.planes));
                    w_stage[at] = elements::<E>(four, shape.element);
                }
            }
        }
    }
    #[unroll]
    for c in 0..comptime!((8 * shape.code_rows()).div_ceil(units)) {
        let vector = unit + comptime!(c * units);
        if vector < comptime!(8 * shape.code_rows()) {
            #[unroll]
            for w in 0..4usize {
                // Vectors 2 t and 2 t + 1 hold words 2 i and 2 i + 1 of columns 32 i and on.
                let word = vector % 2 * 16 + vector % 8 / 2 * 2 + comptime!(w / 2 * 8 + w % 2);
                let at = half * comptime!(shape.code_rows() * 32)
                    + word_at(word, vector / 8, shape.code_rows(), shape.words());
                x_stage[at] = elements::<E>(x_next[c].extract(w), shape.element);
            }
        }
    }
}

/// Index of word `word` of a row in `[word / words][row][word % words]`.
#[cube]
fn word_at(word: usize, row: usize, #[comptime] rows: usize, #[comptime] words: usize) -> usize {
    (word / words * rows + row) * words + word % words
}

/// Multiplies a plane's matrices of step `step` of stage `half`.
#[cube]
fn multiply<E: Numeric, A: Numeric>(
    w_stage: &[Four<E>],
    x_stage: &[Four<E>],
    acc: &mut Sequence<Matrix<A>>,
    half: usize,
    plane: usize,
    #[comptime] step: usize,
    #[comptime] shape: WmmaShape,
) {
    let (row_plane, code_plane) = (plane / shape.code_planes, plane % shape.code_planes);
    let mut of_codes = Sequence::<Matrix<E>>::new();
    #[unroll]
    for b in 0..shape.code_matrices {
        let row = (code_plane * shape.code_matrices + b) * shape.n;
        let from = half * comptime!(shape.code_rows() * 32)
            + (comptime!(step * shape.code_rows()) + row) * comptime!(shape.words());
        let to = from + comptime!(shape.n * shape.words());
        // SAFETY: loaded in the next line.
        let mut matrix = unsafe {
            Matrix::<E>::uninitialized(MatrixIdent::B, shape.m, shape.n, shape.k, MatrixLayout::ColMajor)
        };
        cmma::load(&mut matrix, &x_stage[from..to], comptime!(shape.k as u32));
        of_codes.push(matrix);
    }
    #[unroll]
    for a in 0..shape.row_matrices {
        let row = (row_plane * shape.row_matrices + a) * shape.m;
        let from = half * comptime!(shape.rows() * 32)
            + (comptime!(step * shape.rows()) + row) * comptime!(shape.words());
        let to = from + comptime!(shape.m * shape.words());
        // SAFETY: loaded in the next line.
        let mut matrix = unsafe {
            Matrix::<E>::uninitialized(MatrixIdent::A, shape.m, shape.n, shape.k, MatrixLayout::RowMajor)
        };
        cmma::load(&mut matrix, &w_stage[from..to], comptime!(shape.k as u32));
        #[unroll]
        for b in 0..shape.code_matrices {
            let n = comptime!(a * shape.code_matrices + b);
            cmma::execute(&matrix, of_codes.index(b), acc.index(n), acc.index(n));
        }
    }
}

/// The row of weights and the first code row, relative to the cube's first, of a unit's pair `pair` of matrix `n`.
#[cube]
fn place(
    #[comptime] pair: usize,
    #[comptime] n: usize,
    unit: usize,
    #[comptime] slices: usize,
    #[comptime] shape: WmmaShape,
    #[comptime] units: usize,
) -> (usize, usize) {
    let index = unit + comptime!(pair * units);
    let tokens = comptime!(shape.n / slices);
    let (r, token, plane) = (index % shape.m, index / shape.m % tokens, index / comptime!(shape.m * tokens));
    let row_matrix = plane / shape.code_planes * shape.row_matrices + comptime!(n / shape.code_matrices);
    let code_matrix = plane % shape.code_planes * shape.code_matrices + comptime!(n % shape.code_matrices);
    (row_matrix * shape.m + r, code_matrix * shape.n + token * slices)
}

/// Adds the scaled integer sums of all planes to the totals and clears them, for the segment that begins at column `32 * at32`
/// or for whole rows.
#[cube]
fn collect<S: Float, A: Numeric>(
    acc: &mut Sequence<Matrix<A>>,
    scratch: &mut [A],
    totals: &mut Array<f32>,
    scales: &[S],
    means: &[S],
    sums: &[i32],
    factors: &[f32],
    at32: usize,
    #[comptime] set: usize,
    plane: usize,
    first_tile: usize,
    first: usize,
    last_tile: usize,
    last: usize,
    dims: &Dims,
    #[comptime] form: Form,
    #[comptime] shape: WmmaShape,
    #[comptime] units: usize,
) {
    let unit = UNIT_POS as usize;
    let segment = comptime!(form.segment());
    let pairs = comptime!(shape.slot() / form.slices / units);
    let groups = dims.groups as usize;
    let group = group_of(at32, dims, form.group);
    #[unroll]
    for n in 0..comptime!(shape.sums()) {
        // Two alternating slots, so that one barrier separates a matrix from the next in its slot.
        let slot = comptime!(n % 2 * shape.slot());
        if plane < shape.planes() {
            let from = comptime!(slot) + plane * comptime!(shape.m * shape.n);
            let to = from + comptime!(shape.m * shape.n);
            cmma::store(
                &mut scratch[from..to],
                acc.index(n),
                comptime!(shape.m as u32),
                MatrixLayout::ColMajor,
            );
            cmma::fill(acc.index_mut(n), A::from_int(0));
        }
        sync_cube();
        #[unroll]
        for pair in 0..pairs {
            let (weight_row, row) = place(pair, n, unit, form.slices, shape, units);
            let (tile, r) = (clamp_max(first_tile + weight_row / 16, last_tile), weight_row % 16);
            let index = unit + comptime!(pair * units);
            // `[plane][code row][row of weights]`.
            let base = slot + index / shape.m * comptime!(form.slices * shape.m) + index % shape.m;
            #[unroll]
            for s in 0..form.slices {
                let code_row = clamp_max(first + row + s, last);
                let sum = scratch[base + comptime!(s * shape.m)];
                let at = comptime!((n * pairs + pair) * form.slices + s);
                if comptime!(form.exact()) {
                    // Scaled after the digits of a token are combined.
                    totals[at] = f32::cast_from(sum);
                } else {
                    let scale = scales[((tile * form.sets + set) * groups + group) * 16 + r];
                    let mut value = f32::cast_from(sum) * f32::cast_from(scale);
                    if comptime!(form.means && set == 0) {
                        let of_x = sum_of(sums, code_row, at32, dims, segment);
                        let mean = f32::cast_from(means[(tile * groups + group) * 16 + r]);
                        value += f32::cast_from(of_x) * mean * comptime!(form.unit());
                    }
                    totals[at] +=
                        value * segment_factor(factors, code_row / form.slices, at32, dims, form.x_group);
                }
            }
        }
    }
    if comptime!(shape.sums() % 2 == 1) {
        sync_cube();
    }
}
