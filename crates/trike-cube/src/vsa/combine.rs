//! Elementwise operations on two trits: binding.

use cubecl::prelude::*;

use super::{OneWay, UNITS, units};
use crate::capabilities::Capabilities;
use crate::device::{CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_shape};
use crate::plan::{KernelProblem, Settings, Strategy};
use crate::popcount::{Quad, STEP, TritTable};
use trike_core::Cost;

/// Operation on two trits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TritOp {
    /// The sum modulo 3, with -1 for 2.
    SumMod3,
    /// The difference modulo 3.
    DifferenceMod3,
    /// The product.
    Product,
}

/// An elementwise operation on a `rows x cols` table and another of the same shape, or of one row, which is broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CombineProblem {
    /// The operation.
    pub op: TritOp,
    /// Rows.
    pub rows: usize,
    /// Trits per row.
    pub cols: usize,
    /// The second table has one row, which is broadcast.
    pub one: bool,
}

impl KernelProblem for CombineProblem {
    type Blueprint = OneWay;
    const NAME: &'static str = "combine trits";

    fn validate(&self) -> Result<()> {
        check_shape("table of trits", self.rows, self.cols.next_multiple_of(STEP)).map(drop)
    }

    fn candidates(&self, _: &Capabilities) -> Vec<OneWay> {
        vec![OneWay]
    }

    fn settings(&self, _: &OneWay, _: &Capabilities) -> Result<Settings> {
        Ok(units(self.rows * self.cols.div_ceil(STEP), 3))
    }

    fn cost(&self) -> Cost {
        // Eight words per step; ten operations compute one word of each sign.
        let words = 8 * self.rows as u64 * self.cols.div_ceil(STEP) as u64;
        let second = if self.one { words / (self.rows as u64).max(1) } else { words };
        Cost::of_operations(5 * words, 4 * (2 * words + second))
    }
}

/// Unit `i` computes step `i` of the output: four words of each sign.
#[cube(launch_unchecked)]
fn combine(
    a: &[Quad],
    b: &[Quad],
    out: &mut [Quad],
    count: u32,
    steps: u32,
    #[comptime] op: TritOp,
    #[comptime] one: bool,
) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < count as usize {
        let mut other = i;
        if comptime!(one) {
            other = i % steps as usize;
        }
        let (ap, an) = (a[2 * i], a[2 * i + 1]);
        let (first, second) = (b[2 * other], b[2 * other + 1]);
        if comptime!(op == TritOp::Product) {
            out[2 * i] = (ap & first) | (an & second);
            out[2 * i + 1] = (ap & second) | (an & first);
        } else {
            // The difference is the sum with the second operand negated.
            let mut bp = first;
            let mut bn = second;
            if comptime!(op == TritOp::DifferenceMod3) {
                bp = second;
                bn = first;
            }
            let (a_any, b_any) = (ap | an, bp | bn);
            // `x ^ (x & y)` is `x` without `y`. One plus one is -1.
            out[2 * i] = (ap ^ (ap & b_any)) | (bp ^ (bp & a_any)) | (an & bn);
            out[2 * i + 1] = (an ^ (an & b_any)) | (bn ^ (bn & a_any)) | (ap & bp);
        }
    }
}

impl CubeDevice {
    /// Applies `op` elementwise to `a` and `b`. `b` has as many rows as `a`, or one row, which is broadcast.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] for tables of other shapes, [`CubeError::Overlap`] when the output is one of the inputs, and those
    /// of [`KernelProblem::plan`] and of the launch.
    pub fn trit_combine(&self, op: TritOp, a: &TritTable, b: &TritTable, out: &TritTable) -> Result<()> {
        check_len("trits of a row of the second table", a.cols(), b.cols())?;
        check_len("trits of a row of combined trits", a.cols(), out.cols())?;
        check_len("rows of combined trits", a.rows(), out.rows())?;
        let one = b.rows() == 1;
        if !one {
            check_len("rows of the second table", a.rows(), b.rows())?;
        }
        if out.words().overlaps(a.words()) || out.words().overlaps(b.words()) {
            return Err(CubeError::Overlap { what: "inputs and output of combined trits" });
        }
        let problem = CombineProblem { op, rows: a.rows(), cols: a.cols(), one };
        let (_, settings) = problem.plan(&Strategy::Inferred, self.capabilities())?;
        let launch = Launch::new(CombineProblem::NAME, &(op, one, UNITS), settings);
        let steps = problem.cols.div_ceil(STEP);
        self.launch(&launch, &[out.words()], |client, cubes, units| {
            // SAFETY: the shapes of all tables were checked above and match their buffers' lengths (`TritTable`); a unit
            // accesses the step of its index below `count`, and in a single row the index modulo `steps`.
            unsafe {
                combine::launch_unchecked(
                    client,
                    cubes,
                    units,
                    a.words().vectors(4),
                    b.words().vectors(4),
                    out.words().vectors(4),
                    (problem.rows * steps) as u32,
                    steps as u32,
                    op,
                    one,
                );
            }
        })
    }
}
