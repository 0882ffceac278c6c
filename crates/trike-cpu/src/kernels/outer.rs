//! `A B` for f32 matrices in either order of storage: sums of outer products.
//!
//! A tile of `A` rows times two vectors of `B` columns stays in registers during the loop over the inner dimension; each step
//! broadcasts one element of each row. Both operands are first packed in read order, so a transposed operand costs no more. An
//! output is one chain of fused multiply-adds per [`DEPTH`] steps of the inner dimension, and these partial sums are added in
//! order. It therefore does not depend on the other rows and columns, and is bit-identical on every instruction set with FMA.
//!
//! Reduced-precision operands are rounded when they are packed. With AVX-512 BF16, pairs of steps are multiplied at a time
//! ([`pairs`](super::pairs)).

use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;

use super::FloatLanes;
use super::rounding::Rounding;
use trike_host::Loop;

/// Steps of the inner dimension that are summed in registers.
pub(super) const DEPTH: usize = 256;
/// Columns of `B` that are packed at a time: with [`DEPTH`] rows, half a MiB.
pub(super) const WIDTH: usize = 512;

/// An operand: `rows x cols`, stored in this order or transposed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Elements from one stored row to the next.
    pub(crate) stride: usize,
    pub(crate) transposed: bool,
}

impl<'a> View<'a> {
    /// Rows of `cols` elements, `stride` apart.
    pub(crate) fn new(values: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        Self { values, rows, cols, stride, transposed: false }
    }

    /// Some of the columns.
    pub(crate) fn columns(self, columns: Range<usize>) -> Self {
        let from = if self.transposed { columns.start * self.stride } else { columns.start };
        // An empty matrix may start past the end.
        let values = self.values.get(from..).unwrap_or_default();
        Self { values, cols: columns.len(), ..self }
    }

    /// The transpose.
    pub(crate) fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, transposed: !self.transposed, ..self }
    }
}

/// Rows and steps that are transposed at a time.
const SIDE: usize = 4;

/// One or two vectors of columns: aligned, so that no load crosses a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Step<const N: usize>([f32; N]);

impl<const N: usize> AsMut<[f32]> for Step<N> {
    #[inline(always)]
    fn as_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }
}

thread_local! {
    /// The panels of the last product, kept for the next one: clearing that much memory would take a fiftieth of a product.
    static LAST: Cell<Option<Box<dyn Any>>> = const { Cell::new(None) };
}

/// Panels of `B`, kept per thread.
struct Panels<const N: usize>(Vec<Step<N>>);

impl<const N: usize> Panels<N> {
    /// Panels of at least this many steps, uninitialized or stale.
    fn take(steps: usize) -> Self {
        let last = LAST.take().and_then(|last| last.downcast().ok());
        let mut panels: Vec<Step<N>> = last.map_or_else(Vec::new, |last| *last);
        if panels.len() < steps {
            panels.resize(steps, Step([0.0; N]));
        }
        Self(panels)
    }

    fn steps(&mut self) -> &mut [Step<N>] {
        &mut self.0
    }
}

impl<const N: usize> Drop for Panels<N> {
    fn drop(&mut self) {
        LAST.set(Some(Box::new(std::mem::take(&mut self.0))));
    }
}

/// Some rows of a product.
pub(crate) struct Share<'a, S, O> {
    pub(crate) simd: S,
    /// The rounding of the operands.
    pub(crate) rounding: PhantomData<O>,
    pub(crate) a: View<'a>,
    pub(crate) b: View<'a>,
    /// The rows of `a`.
    pub(crate) rows: Range<usize>,
    /// `rows x b.cols`.
    pub(crate) out: &'a mut [f32],
    /// Adds to `out` instead of overwriting it.
    pub(crate) add: bool,
}

impl<S: FloatLanes, O: Rounding> Share<'_, S, O> {
    /// Computes the rows. Packing and products are separate loops: the rounding matters only for packing.
    pub(crate) fn multiply(self) {
        // Accumulators, two vectors of `B` and one broadcast: 27 of 32 registers, or 15 of 16.
        if const { S::LANES == 16 } {
            self.by::<12, 32>();
        } else if const { S::LANES == 8 } {
            self.by::<6, 16>();
        } else {
            self.by::<4, 8>();
        }
    }

    fn by<const R: usize, const N: usize>(self) {
        let Self { simd, a, b, rows, out, add, .. } = self;
        let (inner, width) = (a.cols, b.cols);
        let mut kept = Panels::<N>::take(DEPTH.min(inner) * WIDTH.min(width).div_ceil(N));
        let panels = kept.steps();
        let mut tile = [[0.0; R]; DEPTH];
        for first_col in (0..width).step_by(WIDTH) {
            let cols = first_col..(first_col + WIDTH).min(width);
            for start in (0..inner).step_by(DEPTH) {
                let depth = start..(start + DEPTH).min(inner);
                let add = add || start > 0;
                let rounding = PhantomData::<O>;
                simd.run(PackColumns { rounding, b, depth: depth.clone(), cols: cols.clone(), panels });
                for row in rows.clone().step_by(R) {
                    let count = R.min(rows.end - row);
                    let tile = &mut tile[..depth.len()];
                    simd.run(PackRows { rounding, a, rows: row..row + count, depth: depth.clone(), tile });
                    let out = &mut out[(row - rows.start) * width..][..count * width];
                    simd.run(Products { simd, tile, panels, cols: cols.clone(), width, out, add });
                }
            }
        }
    }
}

/// Packs columns of `B` in read order, panel by panel.
struct PackColumns<'a, O, const N: usize> {
    rounding: PhantomData<O>,
    b: View<'a>,
    depth: Range<usize>,
    cols: Range<usize>,
    panels: &'a mut [Step<N>],
}

impl<O: Rounding, const N: usize> Loop for PackColumns<'_, O, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { b, depth, cols, panels, .. } = self;
        for (panel, col) in panels.chunks_exact_mut(depth.len()).zip(cols.clone().step_by(N)) {
            pack_columns::<O, N>(b, depth.clone(), col..(col + N).min(cols.end), panel);
        }
    }
}

/// Packs rows of `A` in read order.
struct PackRows<'a, O, const R: usize> {
    rounding: PhantomData<O>,
    a: View<'a>,
    rows: Range<usize>,
    depth: Range<usize>,
    tile: &'a mut [[f32; R]],
}

impl<O: Rounding, const R: usize> Loop for PackRows<'_, O, R> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        pack_rows::<O, R>(self.a, self.rows, self.depth, self.tile);
    }
}

/// The products of a tile with all panels.
struct Products<'a, S, const R: usize, const N: usize> {
    simd: S,
    tile: &'a [[f32; R]],
    panels: &'a [Step<N>],
    cols: Range<usize>,
    /// Columns of `out`.
    width: usize,
    /// The rows of the tile.
    out: &'a mut [f32],
    add: bool,
}

impl<S: FloatLanes, const R: usize, const N: usize> Loop for Products<'_, S, R, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { simd, tile, panels, cols, width, out, add } = self;
        for (panel, col) in panels.chunks_exact(tile.len()).zip(cols.clone().step_by(N)) {
            let sums = multiply_add(simd, tile, panel);
            for (out, sums) in out.chunks_exact_mut(width).zip(&sums) {
                let out = &mut out[col..(col + N).min(cols.end)];
                write::<S, N>(simd, sums, add, out);
            }
        }
    }
}

/// Copies and rounds a whole step.
#[inline(always)]
fn round<O: Rounding, const N: usize>(from: &[f32; N], to: &mut [f32; N]) {
    for i in 0..N {
        to[i] = O::round(from[i]);
    }
}

/// Copies and rounds the start of a step.
#[inline(always)]
fn round_some<O: Rounding>(from: &[f32], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = O::round(*from);
    }
}

/// Packs columns of `B` in read order. The unused columns of a partial panel are stale; no kernel reads them.
#[inline(always)]
fn pack_columns<O: Rounding, const N: usize>(
    b: View<'_>,
    depth: Range<usize>,
    cols: Range<usize>,
    panel: &mut [Step<N>],
) {
    if b.transposed {
        pack_lanes::<O, _>(b, cols, depth, panel);
    } else {
        for (step, p) in panel.iter_mut().zip(depth) {
            let from = &b.values[p * b.stride..][cols.clone()];
            match <&[f32; N]>::try_from(from) {
                Ok(from) => round::<O, N>(from, &mut step.0),
                Err(_) => round_some::<O>(from, &mut step.0),
            }
        }
    }
}

/// Packs rows of `A` in read order. The unused rows of a partial tile are stale; no kernel reads them.
#[inline(always)]
fn pack_rows<O: Rounding, const R: usize>(
    a: View<'_>,
    rows: Range<usize>,
    depth: Range<usize>,
    tile: &mut [[f32; R]],
) {
    if a.transposed {
        for (step, p) in tile.iter_mut().zip(depth) {
            let from = &a.values[p * a.stride..][rows.clone()];
            match <&[f32; R]>::try_from(from) {
                Ok(from) => round::<O, R>(from, step),
                Err(_) => round_some::<O>(from, step),
            }
        }
    } else {
        pack_lanes::<O, _>(a, rows, depth, tile);
    }
}

/// Copies stored rows to lanes of steps, in 4 x 4 blocks, which takes a quarter of the stores.
#[inline(always)]
fn pack_lanes<O: Rounding, T: AsMut<[f32]>>(
    x: View<'_>,
    rows: Range<usize>,
    depth: Range<usize>,
    steps: &mut [T],
) {
    let squares = rows.len() / SIDE;
    for square in 0..squares {
        let (lane, row) = (SIDE * square, rows.start + SIDE * square);
        let mut from = [&x.values[..0]; SIDE];
        for (i, from) in from.iter_mut().enumerate() {
            *from = &x.values[(row + i) * x.stride..][depth.clone()];
        }
        let (whole, rest) = steps.as_chunks_mut::<SIDE>();
        for (i, steps) in whole.iter_mut().enumerate() {
            let mut square = [[0.0; SIDE]; SIDE];
            for (square, from) in square.iter_mut().zip(from) {
                *square = from.as_chunks().0[i];
            }
            for p in 0..SIDE {
                let to = &mut steps[p].as_mut()[lane..lane + SIDE];
                for r in 0..SIDE {
                    to[r] = O::round(square[r][p]);
                }
            }
        }
        for (i, step) in rest.iter_mut().enumerate() {
            for (to, from) in step.as_mut()[lane..].iter_mut().zip(from) {
                *to = O::round(from[SIDE * whole.len() + i]);
            }
        }
    }
    for (lane, row) in rows.enumerate().skip(SIDE * squares) {
        for (step, from) in steps.iter_mut().zip(&x.values[row * x.stride..][depth.clone()]) {
            step.as_mut()[lane] = O::round(*from);
        }
    }
}

/// The products of a tile and a panel.
#[inline(always)]
fn multiply_add<S: FloatLanes, const R: usize, const N: usize>(
    simd: S,
    tile: &[[f32; R]],
    panel: &[Step<N>],
) -> [[S::Lanes; 2]; R] {
    let mut sums = [[simd.splat_lanes(0.0); 2]; R];
    for (a, b) in tile.iter().zip(panel) {
        let b = [simd.load_lanes(&b.0, 0), simd.load_lanes(&b.0, S::LANES)];
        for r in 0..R {
            let a = simd.splat_lanes(a[r]);
            sums[r] = [simd.mul_add(a, b[0], sums[r][0]), simd.mul_add(a, b[1], sums[r][1])];
        }
    }
    sums
}

/// Writes one row of a tile's sums to the outputs, or adds it to them.
#[inline(always)]
pub(super) fn write<S: FloatLanes, const N: usize>(
    simd: S,
    sums: &[S::Lanes; 2],
    add: bool,
    out: &mut [f32],
) {
    if let Ok(out) = <&mut [f32; N]>::try_from(&mut *out) {
        for (at, sum) in [0, S::LANES].into_iter().zip(sums) {
            let sum =
                if add { simd.mul_add(simd.splat_lanes(1.0), *sum, simd.load_lanes(out, at)) } else { *sum };
            simd.store_lanes(out, at, sum);
        }
        return;
    }
    let mut row = [0.0; N];
    simd.store_lanes(&mut row, 0, sums[0]);
    simd.store_lanes(&mut row, S::LANES, sums[1]);
    for (out, sum) in out.iter_mut().zip(row) {
        *out = if add { *out + sum } else { sum };
    }
}
