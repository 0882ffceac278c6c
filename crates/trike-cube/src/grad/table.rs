//! Gradients of embedding tables.

use cubecl::prelude::*;

use super::{check_apart, each};
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{Result, check_len, check_range};
use crate::ops::Indices;

/// Rows of a table, one per token, and the tokens of each row: float additions to a row need a fixed order, which atomics do not
/// provide.
///
/// ```text
/// distinct  the different rows, ascending
/// starts    [number of distinct rows + 1]: where the tokens of each begin in `order`
/// order     tokens by row; tokens of one row in their order
/// ```
#[derive(Clone, Debug)]
pub struct Lookups {
    ids: Indices,
    distinct: Buffer<u32>,
    starts: Buffer<u32>,
    order: Buffer<u32>,
}

impl Lookups {
    /// Uploads the rows of all tokens, each below `rows`.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`](crate::CubeError::Range) for an empty slice or a row of `rows` or more.
    pub fn upload(device: &CubeDevice, ids: &[u32], rows: usize) -> Result<Self> {
        check_range("rows of a table", 1, u32::MAX as usize, rows)?;
        let indices = Indices::upload(device, ids, rows as u32)?;
        let mut order: Vec<u32> = (0..ids.len() as u32).collect();
        // Stable sort: tokens of one row stay in order.
        order.sort_by_key(|&token| ids[token as usize]);
        let (mut distinct, mut starts) = (Vec::new(), Vec::new());
        for (place, &token) in (0u32..).zip(&order) {
            let id = ids[token as usize];
            if distinct.last() != Some(&id) {
                distinct.push(id);
                starts.push(place);
            }
        }
        starts.push(ids.len() as u32);
        Ok(Self {
            ids: indices,
            distinct: device.upload(&distinct)?,
            starts: device.upload(&starts)?,
            order: device.upload(&order)?,
        })
    }

    /// The rows of the tokens, for [`CubeDevice::select_rows`].
    #[must_use]
    pub fn ids(&self) -> &Indices {
        &self.ids
    }

    /// The three lists, in the order of the diagram.
    #[doc(hidden)]
    #[must_use]
    pub fn lists(&self) -> [&Buffer<u32>; 3] {
        [&self.distinct, &self.starts, &self.order]
    }

    /// Bytes on the device.
    #[must_use]
    pub fn bytes(&self) -> usize {
        4 * self.ids.len() + self.distinct.bytes() + self.starts.bytes() + self.order.bytes()
    }
}

/// Unit `i` adds the rows of its tokens to column `i % cols` of distinct row `i / cols`.
#[cube(launch_unchecked)]
fn add_rows(
    rows: &[f32],
    distinct: &[u32],
    starts: &[u32],
    order: &[u32],
    table: &mut [f32],
    count: u32,
    cols: u32,
) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < count as usize {
        let cols = cols as usize;
        let (place, col) = (i / cols, i % cols);
        let at = distinct[place] as usize * cols + col;
        let mut sum = table[at];
        for token in starts[place]..starts[place + 1] {
            sum += rows[order[token as usize] as usize * cols + col];
        }
        table[at] = sum;
    }
}

impl CubeDevice {
    /// Adds row `i` of `rows` to the row of `table` that token `i` looked up; both have `cols` columns.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotMultiple`](crate::CubeError::NotMultiple), [`CubeError::Length`](crate::CubeError::Length) and
    /// [`CubeError::Range`](crate::CubeError::Range) for lengths that do not match,
    /// [`CubeError::Overlap`](crate::CubeError::Overlap), and those of the launch.
    pub fn add_rows_to(
        &self,
        rows: &Buffer<f32>,
        cols: usize,
        lookups: &Lookups,
        table: &Buffer<f32>,
    ) -> Result<()> {
        let of_table = super::rows_of("table", table.len(), cols)?;
        check_range("rows of a table", 1, of_table, lookups.ids.bound() as usize)?;
        check_len("rows to add", lookups.ids.len().saturating_mul(cols), rows.len())?;
        check_apart("a table and the rows that are added to it", table, &[rows])?;
        let count = lookups.distinct.len() * cols;
        let launch = Launch::new("add rows", &(), each(count, 5)?);
        self.launch(&launch, &[table], |client, cubes, units| {
            let Lookups { distinct, starts, order, .. } = lookups;
            let lists = [distinct, starts, order].map(Buffer::arg);
            let [distinct, starts, order] = lists;
            // SAFETY: `upload` made the lists: distinct rows are below the bound, which was checked against the table, and tokens
            // are below their number, which was checked against the rows; the kernel checks its index.
            unsafe {
                add_rows::launch_unchecked(
                    client,
                    cubes,
                    units,
                    rows.arg(),
                    distinct,
                    starts,
                    order,
                    table.arg(),
                    count as u32,
                    cols as u32,
                );
            }
        })
    }
}
