//! Hadamard rotation of the inputs of rotated weights.

use trike_trit::Hadamard;

use crate::error::{CpuError, check_rows};
use crate::kernels::Kernels;
use crate::kernels::with_float_kernels;
use trike_host::Cpu;
use trike_host::Loop;

/// [`CpuOps::rotate`](crate::CpuOps::rotate).
pub(crate) fn rotate(cpu: &Cpu, x: &mut [f32], rotation: Hadamard) -> Result<(), CpuError> {
    check_rows("numbers to rotate", rotation.block(), x.len())?;
    let work = x.len().saturating_mul(rotation.block().ilog2() as usize);
    cpu.pool().for_each_chunk(x, rotation.block(), work, |_, x| {
        with_float_kernels!(cpu.isa(), kernels => kernels.run(Rotate { x, rotation }));
    });
    Ok(())
}

/// Rotation of whole blocks.
pub(crate) struct Rotate<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) rotation: Hadamard,
}

impl Loop for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (block, factor) = (self.rotation.block(), self.rotation.factor());
        for x in self.x.chunks_exact_mut(block) {
            // Four rounds in registers, then two per pass over the block.
            let (lines, rest) = x.as_chunks_mut::<16>();
            lines.iter_mut().for_each(sixteen);
            if block < 16 {
                few(rest);
            }
            let mut half = 16;
            while 4 * half <= block {
                for four in x.chunks_exact_mut(4 * half) {
                    let (low, high) = four.split_at_mut(2 * half);
                    let ((a, b), (c, d)) = (low.split_at_mut(half), high.split_at_mut(half));
                    for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
                        let (ab, ba, cd, dc) = (*a + *b, *a - *b, *c + *d, *c - *d);
                        (*a, *b, *c, *d) = (ab + cd, ba + dc, ab - cd, ba - dc);
                    }
                }
                half *= 4;
            }
            if 2 * half == block {
                let (low, high) = x.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            x.iter_mut().for_each(|v| *v *= factor);
        }
    }
}

/// Four rounds on 16 values: each round adds the value at distance `1 << round`, with the sign of the half.
#[inline(always)]
fn sixteen(x: &mut [f32; 16]) {
    for round in 0..4 {
        let old = *x;
        for (i, v) in x.iter_mut().enumerate() {
            let sign = if i >> round & 1 == 0 { 1.0 } else { -1.0 };
            *v = old[i ^ (1 << round)] + sign * old[i];
        }
    }
}

/// A block of fewer than 16 values.
#[inline(always)]
fn few(x: &mut [f32]) {
    let mut half = 1;
    while half < x.len() {
        for pair in x.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuError;
    use crate::CpuOps;
    use trike_host::Isa;
    use trike_testkit::Rng;

    #[test]
    fn every_block_and_instruction_set_has_the_bits_of_the_specification() {
        let mut rng = Rng::new(9);
        for bits in 1..=Hadamard::MAX.ilog2() {
            let rotation = Hadamard::new(1 << bits).expect("a power of two");
            let x = rng.normals(3 << bits);
            let mut want = x.clone();
            rotation.apply(&mut want).expect("whole blocks");
            for isa in Isa::available() {
                for threads in [1, 3] {
                    let cpu = Cpu::with_isa(isa, threads).expect("a few threads");
                    let mut got = x.clone();
                    cpu.rotate(&mut got, rotation).expect("whole blocks");
                    let same = got.iter().zip(&want).all(|(g, w)| g.to_bits() == w.to_bits());
                    assert!(same, "{isa}, {threads} threads: {bits} bits");
                    let refused = cpu.rotate(&mut [0.0; 3], rotation);
                    assert!(matches!(refused, Err(CpuError::NotMultiple { got: 3, .. })));
                }
            }
        }
    }
}
