//! A damped Hessian and the Cholesky factor of its inverse, with columns in rounding order.

use trike_core::{Bounds, OptionError};
use trike_cpu::{Cpu, MatrixRef};
use trike_trit::Granularity;

use crate::{
    QuantError, SquareMatrix,
    error::{check_len, check_whole},
    linalg::{cholesky_blocked, invert_lower_blocked, product},
};

/// Order in which columns are rounded. The stored order of the matrix does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColumnOrder {
    /// Stored order.
    Stored,
    /// Groups by the sum of squares of their inputs, descending, and columns within a group likewise: the most important columns
    /// are rounded first, while many columns remain to compensate the error.
    #[default]
    Activation,
}

/// Largest damping, as a fraction of the mean diagonal, before a Hessian is rejected.
const MOST_DAMPING: f64 = 10.0;

/// The Hessian of a layer's inputs: damped, reordered and factored once for all matrices that read these inputs.
///
/// `damping` times the mean diagonal is added to the diagonal, and increased tenfold until the matrix is positive definite.
/// The upper triangular `U` satisfies `U^T U = H^-1` (Frantar et al., 2210.17323, step 3).
///
/// ```
/// use trike_cpu::Cpu;
/// use trike_quant::{ColumnOrder, HessianFactor, SquareMatrix};
/// use trike_trit::Granularity;
///
/// let cpu = Cpu::new(1)?;
/// // Two identical inputs: singular without damping.
/// let singular = SquareMatrix::new(2, vec![1.0, 1.0, 1.0, 1.0])?;
/// let factor = HessianFactor::new(&cpu, &singular, Granularity::Row, ColumnOrder::Activation, 0.01)?;
/// assert_eq!(factor.damping(), 0.01);
/// let indefinite = SquareMatrix::new(2, vec![1.0, -3.0, -3.0, 1.0])?;
/// assert!(HessianFactor::new(&cpu, &indefinite, Granularity::Row, ColumnOrder::Stored, 0.0)?.damping() > 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct HessianFactor {
    pub(crate) width: usize,
    pub(crate) granularity: Granularity,
    /// The stored column of each position.
    pub(crate) order: Vec<usize>,
    /// Spans `(start, end, group)` of positions that share a scale; `group` is the stored index.
    pub(crate) groups: Vec<(usize, usize, usize)>,
    /// The damped Hessian in rounding order.
    pub(crate) hessian: Vec<f32>,
    /// `U` in rounding order.
    pub(crate) upper: Vec<f32>,
    damping: f64,
    dead: usize,
}

impl HessianFactor {
    /// Factors the symmetric matrix `hessian`, for scales of this granularity.
    ///
    /// # Errors
    ///
    /// [`QuantError::Option`] for [`Granularity::Tensor`] (refitting its scale would couple all rows) or a damping outside
    /// 0 to 1; [`QuantError::Indefinite`] if no damping makes the matrix positive definite.
    pub fn new(
        cpu: &Cpu,
        hessian: &SquareMatrix,
        granularity: Granularity,
        order: ColumnOrder,
        damping: f64,
    ) -> Result<Self, QuantError> {
        let (width, hessian) = (hessian.side(), hessian.values());
        if granularity == Granularity::Tensor {
            let got = granularity.to_string();
            return Err(
                OptionError::Unknown { field: "granularity", accepted: &["row", "group"], got }.into()
            );
        }
        OptionError::check("damping", Bounds::at_least(0.0).at_most(1.0), damping)?;
        let diagonal = |c: usize| f64::from(hessian[c * width + c]);
        let dead = (0..width).filter(|&c| diagonal(c) <= 0.0).count();
        let (order, groups) = ordered(width, granularity.group_len(width), order, &diagonal);
        let mean = (0..width).map(diagonal).sum::<f64>() / width as f64;
        // For an all-zero Hessian all directions are equally important, and compensation reduces to rounding.
        let unit = if mean > 0.0 { mean } else { 1.0 };
        let mut share = if mean > 0.0 { damping } else { 1.0 };
        let lower = loop {
            let mut reversed = vec![0f64; width * width];
            let rows: Vec<_> = reversed.chunks_exact_mut(width).enumerate().collect();
            cpu.pool().run(rows, |(i, row): (usize, &mut [f64])| {
                let from = &hessian[order[width - 1 - i] * width..][..width];
                for (out, &column) in row.iter_mut().zip(order.iter().rev()) {
                    *out = f64::from(from[column]);
                }
                row[i] += share * unit;
            });
            match cholesky_blocked(cpu, &mut reversed, width) {
                Ok(()) => break reversed,
                Err((column, pivot)) if share >= MOST_DAMPING => {
                    return Err(QuantError::Indefinite {
                        column: order[width - 1 - column],
                        pivot,
                        damping: share,
                    });
                }
                Err(_) => share = (share * 10.0).max(1e-4),
            }
        };
        let mut inverse = lower;
        invert_lower_blocked(cpu, &mut inverse, width);
        let mut upper = vec![0f32; width * width];
        for i in 0..width {
            for j in i..width {
                upper[i * width + j] = inverse[(width - 1 - i) * width + width - 1 - j] as f32;
            }
        }
        drop(inverse);
        let mut damped = Vec::with_capacity(width * width);
        for (i, &from) in order.iter().enumerate() {
            damped.extend(order.iter().map(|&to| hessian[from * width + to]));
            damped[i * width + i] += (share * unit) as f32;
        }
        Ok(Self { width, granularity, order, groups, hessian: damped, upper, damping: share, dead })
    }

    /// Number of inputs.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The damping that was added, as a fraction of the mean diagonal: more than requested if positive definiteness required it,
    /// 1 for an all-zero Hessian.
    pub fn damping(&self) -> f64 {
        self.damping
    }

    /// Number of inputs that were always zero.
    pub fn dead_inputs(&self) -> usize {
        self.dead
    }

    /// The diagonal of the inverse of the damped Hessian, in stored order.
    pub fn inverse_diagonal(&self) -> Vec<f64> {
        let n = self.width;
        let mut out = vec![0f64; n];
        // H^-1 = U^T U.
        for row in self.upper.chunks_exact(n) {
            for (&column, u) in self.order.iter().zip(row) {
                out[column] += f64::from(*u).powi(2);
            }
        }
        out
    }

    /// `weights + shift H^-1`: the `rows x width` weights `V` that minimize `||X V^T - Y||^2`, regularized towards `weights` by the
    /// damping, where `shift` is `Y^T X - weights X^T X`, the correlation of the inputs with the residual of `weights`.
    ///
    /// # Errors
    ///
    /// [`QuantError::Length`], [`QuantError::Partial`] for a partial row.
    pub fn corrected(&self, cpu: &Cpu, weights: &[f32], shift: &[f32]) -> Result<Vec<f32>, QuantError> {
        check_whole("weights", self.width, weights.len())?;
        check_len("shift", weights.len(), shift.len())?;
        let ordered: Vec<f32> =
            shift.chunks_exact(self.width).flat_map(|row| self.order.iter().map(|&c| row[c])).collect();
        let upper = MatrixRef::new(&self.upper, self.width)?;
        let half = product(cpu, MatrixRef::new(&ordered, self.width)?, upper.t())?;
        let whole = product(cpu, MatrixRef::new(&half, self.width)?, upper)?;
        let mut out = weights.to_vec();
        for (out, step) in out.chunks_exact_mut(self.width).zip(whole.chunks_exact(self.width)) {
            for (&column, step) in self.order.iter().zip(step) {
                out[column] += step;
            }
        }
        Ok(out)
    }
}

/// The columns in rounding order, and the groups as spans `(start, end, group)` of that order.
fn ordered(
    width: usize,
    group_len: usize,
    order: ColumnOrder,
    diagonal: &impl Fn(usize) -> f64,
) -> (Vec<usize>, Vec<(usize, usize, usize)>) {
    let mut groups: Vec<(usize, Vec<usize>)> = (0..width.div_ceil(group_len))
        .map(|g| (g, (g * group_len..((g + 1) * group_len).min(width)).collect()))
        .collect();
    if order == ColumnOrder::Activation {
        for (_, columns) in &mut groups {
            columns.sort_by(|&a, &b| diagonal(b).total_cmp(&diagonal(a)).then(a.cmp(&b)));
        }
        let sum = |columns: &[usize]| columns.iter().map(|&c| diagonal(c)).sum::<f64>();
        groups.sort_by(|a, b| sum(&b.1).total_cmp(&sum(&a.1)).then(a.0.cmp(&b.0)));
    }
    let (mut flat, mut spans) = (Vec::with_capacity(width), Vec::with_capacity(groups.len()));
    for (group, columns) in groups {
        spans.push((flat.len(), flat.len() + columns.len(), group));
        flat.extend(columns);
    }
    (flat, spans)
}
