//! Row look-ups: embeddings, and selected rows of activations.

use cubecl::prelude::*;

use crate::capabilities::Capabilities;
use crate::device::{Buffer, CubeDevice, Element, Launch};
use crate::error::{CubeError, Result, check_len, check_range, check_shape};
use crate::linear::kernels::dense::weight_of;
use crate::linear::{CubeDenseMatrix, DenseForm, DenseKind};
use crate::plan::{KernelProblem, Settings, Strategy, spread};
use trike_core::Cost;

/// Bounded indices on the device: token IDs or row numbers.
///
/// The bound makes look-ups memory safe: it is checked for every index uploaded from the host, and holds by construction for
/// indices written by a kernel.
#[derive(Clone, Debug)]
pub struct Indices {
    buffer: Buffer<u32>,
    below: u32,
}

impl Indices {
    /// Uploads indices, all less than `below`.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] for an empty slice or an index of `below` or more.
    pub fn upload(device: &CubeDevice, values: &[u32], below: u32) -> Result<Self> {
        check_indices(values, below)?;
        Ok(Self { buffer: device.upload(values)?, below })
    }

    /// Indices written by a kernel, all less than `below`.
    pub(super) fn over(buffer: Buffer<u32>, below: u32) -> Self {
        Self { buffer, below }
    }

    /// Overwrites the indices with the same number of new ones below the same bound.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] and [`CubeError::Length`].
    pub fn write(&self, device: &CubeDevice, values: &[u32]) -> Result<()> {
        check_indices(values, self.below)?;
        device.write(&self.buffer, values)
    }

    /// Number of indices.
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// The exclusive bound.
    #[must_use]
    pub fn bound(&self) -> u32 {
        self.below
    }

    /// Copies the indices to the host.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::read`].
    pub fn read(&self, device: &CubeDevice) -> Result<Vec<u32>> {
        device.read(&self.buffer)
    }

    /// Copies the indices and another buffer to the host with one wait.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::read_both`].
    pub fn read_with<T: Element>(
        &self,
        device: &CubeDevice,
        other: &Buffer<T>,
    ) -> Result<(Vec<u32>, Vec<T>)> {
        device.read_both(&self.buffer, other)
    }

    /// The buffer, for launches only: writing to it would bypass the bound check.
    pub(crate) fn buffer(&self) -> &Buffer<u32> {
        &self.buffer
    }
}

fn check_indices(values: &[u32], below: u32) -> Result<()> {
    check_range("bound of indices", 1, u32::MAX as usize, below as usize)?;
    let largest = values.iter().copied().max();
    check_range("indices", 1, u32::MAX as usize, values.len())?;
    check_range("index", 0, below as usize - 1, largest.unwrap_or(0) as usize)
}

/// A look-up of `count` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LookupProblem {
    /// Number of looked-up rows.
    pub count: usize,
    /// The table.
    pub table: DenseForm,
}

/// Kernel variant of [`LookupProblem`]: a unit writes the elements of one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LookupBlueprint {
    /// Units per cube.
    pub units: u32,
}

impl KernelProblem for LookupProblem {
    type Blueprint = LookupBlueprint;
    const NAME: &'static str = "lookup";

    fn validate(&self) -> Result<()> {
        check_shape("rows to look up", self.count, self.table.cols).map(|_| ())
    }

    fn candidates(&self, _: &Capabilities) -> Vec<LookupBlueprint> {
        vec![LookupBlueprint { units: 128 }]
    }

    fn settings(&self, blueprint: &LookupBlueprint, _: &Capabilities) -> Result<Settings> {
        let words = self.count * self.table.cols.div_ceil(self.table.kind.per_word());
        let cubes = spread(words.div_ceil(blueprint.units.max(1) as usize));
        Ok(Settings { cubes, ..Settings::linear(1, blueprint.units, 4) })
    }

    fn cost(&self) -> Cost {
        let rows = self.count as u64;
        let cols = self.table.cols as u64;
        let scales = if self.table.kind == DenseKind::Int8 { self.table.groups() as u64 } else { 0 };
        let read = 4 * cols.div_ceil(self.table.kind.per_word() as u64) + 4 * scales + 4;
        Cost::of_operations(rows * cols, rows * (read + 4 * cols))
    }
}

mod kernel {
    use super::*;

    /// Unit `i` writes the columns of word `i % words` of row `i / words` of the output.
    #[cube(launch_unchecked)]
    pub(super) fn lookup(
        words: &[u32],
        scales: &[f32],
        ids: &[u32],
        out: &mut [f32],
        count: u32,
        cols: u32,
        stride: u32,
        group: u32,
        #[comptime] kind: DenseKind,
    ) {
        let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
        let cols = cols as usize;
        let per_word = comptime!(kind.per_word());
        let of_row = cols.div_ceil(per_word);
        if i < count as usize * of_row {
            let (row, at) = (i / of_row, i % of_row);
            let id = ids[row] as usize;
            let word = words[id * stride as usize + at];
            #[unroll]
            for n in 0..per_word {
                let col = at * per_word + n;
                if col < cols {
                    let mut value = weight_of(word, n, kind);
                    if comptime!(kind == DenseKind::Int8) {
                        value *= scales[id * cols.div_ceil(group as usize) + col / group as usize];
                    }
                    out[row * cols + col] = value;
                }
            }
        }
    }

    /// Unit `i` copies element `i` of the output.
    #[cube(launch_unchecked)]
    pub(super) fn select_rows(x: &[f32], ids: &[u32], out: &mut [f32], cols: u32) {
        let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
        if i < out.len() {
            let (row, col) = (i / cols as usize, i % cols as usize);
            out[i] = x[ids[row] as usize * cols as usize + col];
        }
    }
}

impl CubeDevice {
    /// Copies row `ids[i]` of a table to row `i` of `out`, in f32 (embedding).
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] when the bound of the indices exceeds the rows of the table, [`CubeError::Length`] for an output of
    /// the wrong length, [`CubeError::Overlap`], and those of [`KernelProblem::plan`] and of the launch.
    pub fn lookup(
        &self,
        table: &CubeDenseMatrix,
        ids: &Indices,
        out: &Buffer<f32>,
        strategy: &Strategy<LookupBlueprint>,
    ) -> Result<()> {
        let form = table.form();
        check_range("bound of the indices of a look-up", 1, form.rows, ids.below as usize)?;
        let problem = LookupProblem { count: ids.len(), table: form };
        problem.validate()?;
        check_len("output of a look-up", problem.count * form.cols, out.len())?;
        if table.words.overlaps(out) || table.scales.overlaps(out) || ids.buffer.overlaps(out) {
            return Err(CubeError::Overlap { what: "input and output of a look-up" });
        }
        let (_, settings) = problem.plan(strategy, self.capabilities())?;
        self.launch(
            &Launch::new(LookupProblem::NAME, &form.kind, settings),
            &[out],
            |client, cubes, units| {
                let (words, scales, ids, out) =
                    (table.words.arg(), table.scales.arg(), ids.buffer.arg(), out.arg());
                let [count, cols, stride, group] =
                    [problem.count, form.cols, form.stride(), form.group].map(|n| n as u32);
                // SAFETY: indices are below the rows of the table, whose lengths its constructor checked; the length of the
                // output was checked above, and the kernel checks its index against it.
                unsafe {
                    kernel::lookup::launch_unchecked(
                        client, cubes, units, words, scales, ids, out, count, cols, stride, group, form.kind,
                    );
                }
            },
        )
    }

    /// Copies row `rows[i]` of `x`, whose rows have `cols` elements, to row `i` of `out`.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotMultiple`] when `x` is not a whole number of rows, [`CubeError::Range`] when it has fewer rows than the
    /// bound of the indices, [`CubeError::Length`], [`CubeError::Overlap`], and those of the launch.
    pub fn select_rows(&self, x: &Buffer<f32>, cols: usize, rows: &Indices, out: &Buffer<f32>) -> Result<()> {
        /// Units per cube.
        const UNITS: u32 = 128;
        if cols == 0 || !x.len().is_multiple_of(cols) {
            return Err(CubeError::NotMultiple { what: "rows to select from", unit: cols, got: x.len() });
        }
        check_range("bound of rows to select", 1, x.len() / cols, rows.below as usize)?;
        check_len("selected rows", check_shape("selected rows", rows.len(), cols)?, out.len())?;
        if x.overlaps(out) || rows.buffer.overlaps(out) {
            return Err(CubeError::Overlap { what: "input and output of a row selection" });
        }
        let cubes = spread(out.len().div_ceil(UNITS as usize));
        let settings = Settings { cubes, ..Settings::linear(1, UNITS, 3) };
        self.launch(&Launch::new("select rows", &(), settings), &[out], |client, cubes, units| {
            let (x, rows, out) = (x.arg(), rows.buffer.arg(), out.arg());
            // SAFETY: row indices are below the rows of `x`, and the kernel checks its index against the length of the output,
            // which is that of all selected rows.
            unsafe {
                kernel::select_rows::launch_unchecked(client, cubes, units, x, rows, out, cols as u32);
            };
        })
    }
}
