//! Products of two f32 matrices, for training.

use std::marker::PhantomData;
use std::ops::Range;

use trike_core::ProductPrecision;
use trike_host::Cpu;

use crate::error::{CpuError, check_len, check_rows};
#[cfg(target_arch = "x86_64")]
use crate::kernels::pairs;
use crate::kernels::rounding::{Exact, Rounding, ToBf16, ToF16};
use crate::kernels::{Share, View, with_float_kernels};

/// Rows per thread are a multiple of this: whole tiles on every instruction set.
const TILE_ROWS: usize = 12;

/// A borrowed row-major f32 matrix, or the transpose of one.
///
/// ```
/// use trike_cpu::MatrixRef;
///
/// let w = MatrixRef::new(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3)?;
/// assert_eq!((w.rows(), w.cols()), (2, 3));
/// assert_eq!((w.t().rows(), w.t().cols()), (3, 2));
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MatrixRef<'a>(View<'a>);

impl<'a> MatrixRef<'a> {
    /// A matrix of rows of `cols` elements.
    ///
    /// # Errors
    ///
    /// [`CpuError::NotMultiple`] when `values` is not a whole number of rows.
    pub fn new(values: &'a [f32], cols: usize) -> Result<Self, CpuError> {
        let rows = check_rows("matrix", cols, values.len())?;
        Ok(Self(View::new(values, rows, cols, cols)))
    }

    /// The transpose, without a copy.
    #[must_use]
    pub fn t(self) -> Self {
        Self(self.0.t())
    }

    /// Some of the columns, without a copy.
    ///
    /// # Panics
    ///
    /// If the range exceeds the columns.
    ///
    /// ```
    /// use trike_cpu::{Cpu, MatrixRef, Store, matmul};
    ///
    /// let w = MatrixRef::new(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3)?;
    /// let mut sums = [f32::NAN; 2];
    /// matmul(&Cpu::new(1)?, w.columns(1..3), MatrixRef::new(&[1.0; 2], 1)?, &mut sums, Store::Overwrite)?;
    /// assert_eq!(sums, [5.0, 11.0]);
    /// # Ok::<(), trike_cpu::CpuError>(())
    /// ```
    #[must_use]
    pub fn columns(self, columns: Range<usize>) -> Self {
        assert!(columns.start <= columns.end && columns.end <= self.cols(), "columns of the matrix");
        Self(self.0.columns(columns))
    }

    /// Some of the rows, without a copy.
    ///
    /// # Panics
    ///
    /// If the range exceeds the rows.
    #[must_use]
    pub fn rows_of(self, rows: Range<usize>) -> Self {
        self.t().columns(rows).t()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.0.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.0.cols
    }
}

/// What a product does with the previous contents of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Overwrites them.
    Overwrite,
    /// Adds to them, as for a gradient over several batches.
    Add,
}

/// `out = a b` or `out += a b`, where `out` is `a.rows() x b.cols()`, row-major.
///
/// For a linear layer with weights `W` (`out x in`) and inputs `x` (`tokens x in`) the three products of training are
/// `y = x W^T`, `dx = dy W` and `dW = dy^T x`; none needs a transposed copy. Results do not depend on the number of
/// threads, and an output not on the other rows and columns. Unlike [`CpuOps::linear`](crate::CpuOps::linear), nothing
/// is kept in packed form between calls: for weights that change with every step.
///
/// # Errors
///
/// [`CpuError::Length`] when the inner dimensions differ or `out` does not have its length; nothing is written then.
///
/// ```
/// use trike_cpu::{Cpu, MatrixRef, Store, matmul};
///
/// let cpu = Cpu::new(1)?;
/// let w = MatrixRef::new(&[1.0, 0.0, 2.0, 0.0, -1.0, 0.0], 3)?;
/// let (x, dy) = (MatrixRef::new(&[1.0, 2.0, 3.0], 3)?, MatrixRef::new(&[1.0, 10.0], 2)?);
/// let (mut y, mut dx, mut dw) = ([f32::NAN; 2], [f32::NAN; 3], [1.0; 6]);
/// matmul(&cpu, x, w.t(), &mut y, Store::Overwrite)?;
/// matmul(&cpu, dy, w, &mut dx, Store::Overwrite)?;
/// matmul(&cpu, dy.t(), x, &mut dw, Store::Add)?;
/// assert_eq!((y, dx, dw), ([7.0, -2.0], [1.0, -10.0, 2.0], [2.0, 3.0, 4.0, 11.0, 21.0, 31.0]));
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
pub fn matmul(
    cpu: &Cpu,
    a: MatrixRef<'_>,
    b: MatrixRef<'_>,
    out: &mut [f32],
    store: Store,
) -> Result<(), CpuError> {
    product::<Exact>(cpu, a, b, out, store)
}

/// [`matmul`] of operands that are rounded to a [`ProductPrecision`], with accumulation in f32.
///
/// With bf16 on a CPU that has AVX-512 BF16, pairs of products are added per instruction, and subnormal numbers count as zero: 82
/// to 103 GMAC/s instead of 47 to 53 (one thread of an AMD EPYC, 2026-11-24, `2048 x 512 x 256` to `2048 x 2048 x 2048`).
/// Elsewhere, and with f16, it takes as long as without rounding.
///
/// # Errors
///
/// As [`matmul`].
///
/// ```
/// use trike_cpu::{Cpu, MatrixRef, Store, matmul_rounded};
/// use trike_core::ProductPrecision;
///
/// let cpu = Cpu::new(1)?;
/// let (x, w) = (MatrixRef::new(&[1.003, 2.0], 2)?, MatrixRef::new(&[4.0, 3.0], 2)?);
/// let mut y = [f32::NAN];
/// matmul_rounded(&cpu, x, w.t(), &mut y, Store::Overwrite, ProductPrecision::Bf16)?;
/// assert_eq!(y, [10.0]);
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
pub fn matmul_rounded(
    cpu: &Cpu,
    a: MatrixRef<'_>,
    b: MatrixRef<'_>,
    out: &mut [f32],
    store: Store,
    precision: ProductPrecision,
) -> Result<(), CpuError> {
    match precision {
        ProductPrecision::F32 => product::<Exact>(cpu, a, b, out, store),
        ProductPrecision::Bf16 => product::<ToBf16>(cpu, a, b, out, store),
        ProductPrecision::F16 => product::<ToF16>(cpu, a, b, out, store),
    }
}

fn product<O: Rounding>(
    cpu: &Cpu,
    a: MatrixRef<'_>,
    b: MatrixRef<'_>,
    out: &mut [f32],
    store: Store,
) -> Result<(), CpuError> {
    let (MatrixRef(a), MatrixRef(b)) = (a, b);
    check_len("rows of the second matrix of a product", a.cols, b.rows)?;
    let overflow = CpuError::Shape { what: "product", rows: a.rows, cols: b.cols };
    check_len("output of a product", a.rows.checked_mul(b.cols).ok_or(overflow)?, out.len())?;
    let add = store == Store::Add;
    if a.cols == 0 && !add {
        out.fill(0.0);
    }
    if out.is_empty() || a.cols == 0 {
        return Ok(());
    }
    let parts = cpu.pool().parts(out.len().saturating_mul(a.cols));
    let share = a.rows.div_ceil(parts).next_multiple_of(TILE_ROWS);
    let tasks = out.chunks_mut(share * b.cols).enumerate().collect();
    let isa = cpu.isa();
    cpu.pool().run(tasks, |(i, out): (usize, &mut [f32])| {
        let rows = i * share..i * share + out.len() / b.cols;
        #[cfg(target_arch = "x86_64")]
        if let (true, Some(simd)) = (O::TO == ProductPrecision::Bf16, pairs::available(isa)) {
            return pairs::multiply(simd, a, b, rows, out, add);
        }
        with_float_kernels!(isa, simd => {
            Share { simd, rounding: PhantomData::<O>, a, b, rows, out, add }.multiply();
        });
    });
    Ok(())
}
