//! Products of stored trits with f32 vectors, for random projections.

use trike_host::{Cpu, Loop};

use crate::error::{PopcountError, check_len};
use crate::lanes::{Lanes, with_lanes};
use crate::matrix::PlaneMatrix;

/// Multiply-adds of a trit with a float that take as long as one f32 multiply-add.
const TRITS_PER_F32: usize = 2;
/// Number of partial sums of a row; a divisor of 64.
const SUMS: usize = 16;

/// The sum of the floats at the positive trits of a row minus the sum at its negative trits.
struct Project<'a> {
    pos: &'a [u64],
    neg: &'a [u64],
    /// Zero-padded to a multiple of 64.
    x: &'a [[f32; 64]],
}

impl Loop for Project<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        let mut sums = [0f32; SUMS];
        for ((&pos, &neg), x) in self.pos.iter().zip(self.neg).zip(self.x) {
            for (part, x) in x.as_chunks::<SUMS>().0.iter().enumerate() {
                let (pos, neg) = ((pos >> (part * SUMS)) as u32, (neg >> (part * SUMS)) as u32);
                for lane in 0..SUMS {
                    // A mask instead of a product, so that every instruction set sums the same floats.
                    let bit = 1 << lane;
                    let plus = if pos & bit == 0 { 0.0 } else { x[lane] };
                    let minus = if neg & bit == 0 { 0.0 } else { x[lane] };
                    sums[lane] += plus - minus;
                }
            }
        }
        let mut width = SUMS;
        while width > 1 {
            width /= 2;
            for lane in 0..width {
                sums[lane] += sums[lane + width];
            }
        }
        sums[0]
    }
}

/// `out[r] = w[r] . x` for every stored row of trits.
pub(crate) fn project(cpu: &Cpu, w: &PlaneMatrix, x: &[f32], out: &mut [f32]) -> Result<(), PopcountError> {
    check_len("input of a projection", w.cols(), x.len())?;
    check_len("output of a projection", w.rows(), out.len())?;
    let mut padded = vec![[0.0; 64]; w.words()];
    padded.as_flattened_mut()[..x.len()].copy_from_slice(x);
    let work = w.rows().saturating_mul(w.cols()) / TRITS_PER_F32;
    cpu.pool().for_each_chunk(out, 1, work, |first, out| {
        for (row, out) in (first..).zip(out) {
            let [pos, neg] = w.planes(row);
            *out = with_lanes!(cpu.isa(), lanes => lanes.run(Project { pos, neg, x: &padded }));
        }
    });
    Ok(())
}
