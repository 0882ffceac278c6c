//! Two trits to one: binding.

use cubecl::prelude::*;

use super::{OneWay, UNITS, units};
use crate::capabilities::Capabilities;
use crate::device::{Device, Launch};
use crate::error::{CubeError, Result, check_len, check_shape};
use crate::plan::{Plan, Settings, Strategy};
use crate::popcount::{Quad, STEP, TritTable};
use trike_core::Cost;

/// What becomes of two trits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TritOp {
    /// The sum modulo 3, with -1 for 2.
    SumMod3,
    /// The difference modulo 3.
    DifferenceMod3,
    /// The product.
    Product,
}

/// An operation on each trit of `rows x cols` and one of another table: of the same shape, or of one row that meets all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CombineProblem {
    /// What is done.
    pub op: TritOp,
    /// Rows.
    pub rows: usize,
    /// Trits of a row.
    pub cols: usize,
    /// Whether the second table is one row.
    pub one: bool,
}

impl Plan for CombineProblem {
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
        // Eight words a step; ten operations make a word of each sign.
        let words = 8 * self.rows as u64 * self.cols.div_ceil(STEP) as u64;
        let second = if self.one { words / (self.rows as u64).max(1) } else { words };
        Cost::of_operations(5 * words, 4 * (2 * words + second))
    }
}

/// Unit `i` makes step `i` of the output: four words of each sign.
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
            // The difference is the sum with the other's signs turned.
            let mut bp = first;
            let mut bn = second;
            if comptime!(op == TritOp::DifferenceMod3) {
                bp = second;
                bn = first;
            }
            let (a_any, b_any) = (ap | an, bp | bn);
            // `x ^ (x & y)` is `x` without `y`. One and one are -1.
            out[2 * i] = (ap ^ (ap & b_any)) | (bp ^ (bp & a_any)) | (an & bn);
            out[2 * i + 1] = (an ^ (an & b_any)) | (bn ^ (bn & a_any)) | (ap & bp);
        }
    }
}

impl Device {
    /// `op` of each trit of `a` and that of `b` at its place, where `b` has as many rows or one, which meets every row of `a`.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] for tables of other shapes, [`CubeError::Overlap`] where the output is one of them, and those of
    /// [`Plan::plan`] and of the launch.
    pub fn trit_combine(&self, op: TritOp, a: &TritTable, b: &TritTable, out: &TritTable) -> Result<()> {
        check_len("trits of a row of the second table", a.cols(), b.cols())?;
        check_len("trits of a row of combined trits", a.cols(), out.cols())?;
        check_len("rows of combined trits", a.rows(), out.rows())?;
        let one = b.rows() == 1;
        if !one {
            check_len("rows of the second table", a.rows(), b.rows())?;
        }
        if out.words().overlaps(a.words()) || out.words().overlaps(b.words()) {
            return Err(CubeError::Overlap { what: "trits and what they are combined to" });
        }
        let problem = CombineProblem { op, rows: a.rows(), cols: a.cols(), one };
        let (_, settings) = problem.plan(&Strategy::Inferred, self.capabilities())?;
        let launch = Launch::new(CombineProblem::NAME, &(op, one, UNITS), settings);
        let steps = problem.cols.div_ceil(STEP);
        self.launch(&launch, &[out.words()], |client, cubes, units| {
            // SAFETY: all tables have the shapes that were compared above, which `TritTable` keeps in its buffer's length;
            // a unit touches the step of its number below `count`, and of one row the step modulo its steps.
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
