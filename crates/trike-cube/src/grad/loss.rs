//! Losses of logits, with their gradients.

use std::ops::Range;

use cubecl::prelude::*;

use super::groups::{Finish, Groups, Term};
use super::{SUM_UNITS, check_apart, per_cube};
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_range, check_shape};
use crate::math::{exp, magnitude};
use crate::reduce::{max_words, sum_floats};

/// The target of a row without one.
const NONE: u32 = u32::MAX;

/// One target per row, or none; each is below a number of classes.
#[derive(Clone, Debug)]
pub struct Targets {
    buffer: Buffer<u32>,
    below: u32,
}

impl Targets {
    /// Uploads targets.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] for an empty slice.
    pub fn upload(device: &CubeDevice, targets: &[Option<u32>]) -> Result<Self> {
        let largest = targets.iter().flatten().max().copied().unwrap_or(0);
        check_range("target", 0, NONE as usize - 1, largest as usize)?;
        let values: Vec<u32> = targets.iter().map(|target| target.unwrap_or(NONE)).collect();
        Ok(Self { buffer: device.upload(&values)?, below: largest + 1 })
    }

    /// Bytes on the device.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.buffer.bytes()
    }
}

/// The losses of the rows of a batch in nats: all cross-entropies, then all divergences.
#[derive(Debug)]
pub struct Losses {
    buffer: Buffer<f32>,
    rows: usize,
}

impl Losses {
    /// Zeroed losses of `rows` rows.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::empty`].
    pub fn new(device: &CubeDevice, rows: usize) -> Result<Self> {
        let buffer = device.empty(check_shape("losses", rows, 2)?)?;
        device.fill(&buffer.cast()?, 0)?;
        Ok(Self { buffer, rows })
    }

    /// Waits for the sums of both kinds.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::read`], and those of the launches.
    pub fn totals(&self, device: &CubeDevice) -> Result<[f64; 2]> {
        let groups = Groups { rows: 2, cols: self.rows, len: self.rows };
        let sums = device.empty(2)?;
        device.sum_groups(&self.buffer, groups, Term::Plain, None, Finish::Times(1.0), &sums, 0)?;
        let sums = device.read(&sums)?;
        Ok([0, 1].map(|kind| sums.get(kind).copied().map_or(f64::NAN, f64::from)))
    }
}

/// A loss of logits.
#[derive(Clone, Copy, Debug)]
pub enum HeadLoss<'b> {
    /// The cross-entropy of the targets.
    CrossEntropy {
        /// The targets of all rows of the batch.
        targets: &'b Targets,
        /// Factor of the gradient.
        scale: f32,
    },
    /// The divergence of all rows from a teacher's logits, which have the shape of the logits.
    Divergence {
        /// Logits of the teacher.
        teacher: &'b Buffer<f32>,
        /// Factor of the gradient.
        scale: f32,
    },
    /// Both, for the rows with a target.
    Both {
        /// The targets of all rows of the batch.
        targets: &'b Targets,
        /// Logits of the teacher.
        teacher: &'b Buffer<f32>,
        /// Factors of the gradients.
        scales: [f32; 2],
    },
}

/// The maximum of a row; all units call it. NaN counts as the largest.
#[cube]
fn largest_of(x: &[f32], first: usize, cols: usize, shared: &mut Shared<[u32]>) -> f32 {
    let mut key = 0u32;
    let mut col = UNIT_POS as usize;
    while col < cols {
        // Bits that sort like the numbers.
        let bits = u32::reinterpret(x[first + col]);
        let sorted = select(bits >= 0x8000_0000, !bits, bits | 0x8000_0000);
        key = max(key, select(magnitude(x[first + col]) > 0x7F80_0000, 0xFFFF_FFFFu32, sorted));
        col += SUM_UNITS;
    }
    let key = max_words(key, shared, SUM_UNITS, false);
    f32::reinterpret(select(key >= 0x8000_0000, key & 0x7FFF_FFFF, !key))
}

/// Cube `i` replaces row `i` of the logits by its gradient. With `text`, rows without a target have no loss.
#[cube(launch_unchecked)]
fn head_loss(
    logits: &mut [f32],
    teacher: &[f32],
    targets: &[u32],
    losses: &mut [f32],
    rows: u32,
    cols: u32,
    first_row: u32,
    all_rows: u32,
    text_scale: f32,
    teacher_scale: f32,
    #[comptime] text: bool,
    #[comptime] taught: bool,
) {
    let mut words = Shared::<[u32]>::new_slice(SUM_UNITS);
    let mut floats = Shared::<[f32]>::new_slice(SUM_UNITS);
    if CUBE_POS < rows as usize {
        let cols = cols as usize;
        let first = CUBE_POS * cols;
        let row = first_row as usize + CUBE_POS;
        let mut target = 0u32;
        if comptime!(text) {
            target = targets[row];
        }
        let counts = target != NONE;
        let top = largest_of(&*logits, first, cols, &mut words);
        let mut teacher_top = 0.0f32;
        if comptime!(taught) {
            teacher_top = largest_of(teacher, first, cols, &mut words);
        }
        // Sums of the exponentials, of the teacher's, and of these times the difference of the logits.
        let mut sum = 0.0f32;
        let mut teacher_sum = 0.0f32;
        let mut along = 0.0f32;
        let mut col = UNIT_POS as usize;
        while col < cols {
            let student = logits[first + col] - top;
            sum += exp(student);
            if comptime!(taught) {
                let other = teacher[first + col] - teacher_top;
                let p = exp(other);
                teacher_sum += p;
                // A token of zero probability contributes nothing, even if its logit is infinite.
                along += select(p > 0.0, p * (other - student), 0.0f32);
            }
            col += SUM_UNITS;
        }
        let sum = sum_floats(sum, &mut floats, SUM_UNITS, false);
        let logarithm = f32::ln(sum);
        if comptime!(text) {
            let writes = UNIT_POS == 0 && counts;
            if writes {
                losses[row] = logarithm - (logits[first + target as usize] - top);
            }
        }
        let mut teacher_factor = 0.0f32;
        if comptime!(taught) {
            let teacher_sum = sum_floats(teacher_sum, &mut floats, SUM_UNITS, false);
            let along = sum_floats(along, &mut floats, SUM_UNITS, false);
            teacher_factor = 1.0 / teacher_sum;
            if UNIT_POS == 0 && counts {
                losses[all_rows as usize + row] = along * teacher_factor + (logarithm - f32::ln(teacher_sum));
            }
        }
        // Unit 0 reads the logit of the target before any unit writes.
        sync_cube();
        let factor = 1.0 / sum;
        let mut col = UNIT_POS as usize;
        while col < cols {
            let q = exp(logits[first + col] - top) * factor;
            let mut d = 0.0f32;
            if comptime!(text) {
                d = q * text_scale;
                if col as u32 == target {
                    d -= text_scale;
                }
            }
            if comptime!(taught) {
                d += teacher_scale * (q - exp(teacher[first + col] - teacher_top) * teacher_factor);
            }
            logits[first + col] = select(counts, d, 0.0f32);
            col += SUM_UNITS;
        }
    }
}

impl CubeDevice {
    /// Replaces logits of `rows` of a batch by the gradient of a loss, and stores the losses of these rows.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] for rows beyond the losses or the targets and for a target beyond the logits,
    /// [`CubeError::NotMultiple`] and [`CubeError::Length`] for lengths that do not match, [`CubeError::Overlap`], and those of the
    /// launch.
    pub fn head_loss(
        &self,
        logits: &Buffer<f32>,
        rows: Range<usize>,
        loss: HeadLoss<'_>,
        losses: &Losses,
    ) -> Result<()> {
        let count = rows.len();
        if count == 0 || !logits.len().is_multiple_of(count) {
            return Err(CubeError::NotMultiple { what: "logits", unit: count, got: logits.len() });
        }
        let cols = logits.len() / count;
        check_range("rows of losses", rows.end, losses.rows, losses.rows)?;
        let (targets, teacher, scales) = match loss {
            HeadLoss::CrossEntropy { targets, scale } => (Some(targets), None, [scale, 0.0]),
            HeadLoss::Divergence { teacher, scale } => (None, Some(teacher), [0.0, scale]),
            HeadLoss::Both { targets, teacher, scales } => (Some(targets), Some(teacher), scales),
        };
        if let Some(targets) = targets {
            check_len("targets", losses.rows, targets.buffer.len())?;
            check_range("bound of the targets", 1, cols, targets.below as usize)?;
        }
        if let Some(teacher) = teacher {
            check_len("logits of the teacher", logits.len(), teacher.len())?;
            check_apart("logits and those of the teacher", logits, &[teacher])?;
        }
        check_apart("logits and losses", logits, &[&losses.buffer])?;
        let (text, taught) = (targets.is_some(), teacher.is_some());
        // Placeholder for buffers that a variant does not read.
        let unread = self.empty::<f32>(1)?;
        let launch = Launch::new("head loss", &(text, taught), per_cube(count, 4, 2 * SUM_UNITS));
        self.launch(&launch, &[logits, &losses.buffer], |client, cubes, units| {
            let [of_rows, cols, first, all] = [count, cols, rows.start, losses.rows].map(|n| n as u32);
            let (teacher, losses) = (teacher.unwrap_or(&unread).arg(), losses.buffer.arg());
            let targets = targets.map_or_else(|| unread.arg(), |targets| targets.buffer.arg());
            let [text_scale, teacher_scale] = scales;
            // SAFETY: the lengths of all buffers that the variant reads were checked above, targets are below the columns or
            // `NONE`, at which nothing is read, and the kernel checks its row and its columns.
            unsafe {
                head_loss::launch_unchecked(
                    client,
                    cubes,
                    units,
                    logits.arg(),
                    teacher,
                    targets,
                    losses,
                    of_rows,
                    cols,
                    first,
                    all,
                    text_scale,
                    teacher_scale,
                    text,
                    taught,
                );
            }
        })
    }
}
