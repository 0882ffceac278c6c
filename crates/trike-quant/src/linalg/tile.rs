//! Register tiles of products in f64: a few rows times two vectors of columns stay in registers over the inner dimension.

use std::ops::Range;

use trike_cpu::{Cpu, Loop};

/// Steps of the inner dimension for which a tile of rows is packed.
pub(super) const DEPTH: usize = 256;

/// Columns per panel: two registers of f64 with AVX-512.
pub(super) const COLUMNS: usize = 16;

/// The right-hand side of a product, packed into panels of [`COLUMNS`] columns in the order in which they are read. Columns past
/// the last one are zeros.
pub(super) struct Panels {
    inner: usize,
    width: usize,
    steps: Vec<[f64; COLUMNS]>,
}

impl Panels {
    /// Packs `width` columns of `inner` elements; `value(k, c)` is element `k` of column `c`.
    pub(super) fn new(inner: usize, width: usize, value: impl Fn(usize, usize) -> f64) -> Self {
        let mut steps = vec![[0.0; COLUMNS]; inner * width.div_ceil(COLUMNS)];
        for (panel, first) in steps.chunks_exact_mut(inner.max(1)).zip((0..width).step_by(COLUMNS)) {
            for (k, step) in panel.iter_mut().enumerate() {
                for (lane, c) in (first..(first + COLUMNS).min(width)).enumerate() {
                    step[lane] = value(k, c);
                }
            }
        }
        Self { inner, width, steps }
    }
}

/// `rows[to] -= rows[from] * panels` for rows of `stride` elements.
pub(super) struct Subtract<'a> {
    pub(super) rows: &'a mut [f64],
    pub(super) stride: usize,
    /// The columns of `rows` that are the left operand, as many as the panels' inner dimension.
    pub(super) from: Range<usize>,
    /// The first column of `rows` that is written.
    pub(super) to: usize,
    pub(super) panels: &'a Panels,
    /// Whether to use fused multiply-add.
    pub(super) fused: bool,
    /// Whether there are 32 registers of eight f64.
    pub(super) wide: bool,
}

impl<'a> Subtract<'a> {
    pub(super) fn new(
        cpu: &Cpu,
        rows: &'a mut [f64],
        stride: usize,
        from: Range<usize>,
        to: usize,
        panels: &'a Panels,
    ) -> Self {
        let isa = cpu.isa();
        Self { rows, stride, from, to, panels, fused: isa.has_fma(), wide: isa.name().starts_with("avx512") }
    }
}

impl Loop for Subtract<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match (self.fused, self.wide) {
            (true, true) => self.subtract::<true, 12>(),
            (true, false) => self.subtract::<true, 3>(),
            _ => self.subtract::<false, 2>(),
        }
    }
}

impl Subtract<'_> {
    #[inline(always)]
    fn subtract<const FUSED: bool, const R: usize>(self) {
        let Self { rows, stride, from, to, panels: Panels { inner, width, steps }, .. } = self;
        let mut tile = [[0.0; R]; DEPTH];
        for rows in rows.chunks_mut(R * stride) {
            for start in (0..*inner).step_by(DEPTH) {
                let depth = start..(start + DEPTH).min(*inner);
                for (lane, row) in rows.chunks_exact(stride).enumerate() {
                    let row = &row[from.start + depth.start..from.start + depth.end];
                    for (step, value) in tile.iter_mut().zip(row) {
                        step[lane] = *value;
                    }
                }
                let tile = &tile[..depth.len()];
                for (panel, first) in steps.chunks_exact(*inner).zip((0..*width).step_by(COLUMNS)) {
                    let sums = products::<FUSED, R>(tile, &panel[depth.clone()]);
                    let columns = to + first..to + (first + COLUMNS).min(*width);
                    for (row, sums) in rows.chunks_exact_mut(stride).zip(&sums) {
                        for (value, sum) in row[columns.clone()].iter_mut().zip(sums) {
                            *value -= sum;
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn products<const FUSED: bool, const R: usize>(
    tile: &[[f64; R]],
    panel: &[[f64; COLUMNS]],
) -> [[f64; COLUMNS]; R] {
    let mut sums = [[0.0; COLUMNS]; R];
    for (a, b) in tile.iter().zip(panel) {
        for r in 0..R {
            for c in 0..COLUMNS {
                sums[r][c] = if FUSED { a[r].mul_add(b[c], sums[r][c]) } else { sums[r][c] + a[r] * b[c] };
            }
        }
    }
    sums
}
