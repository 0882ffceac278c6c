//! The measured loops in portable Rust.

use std::hint::black_box;

use super::{Loops, Peak, WordLine, streams};
use crate::isa::Scalar;

impl Loops for Scalar {
    fn read<const S: usize>(self, lines: &[WordLine], ahead: usize) -> u64 {
        // Portable code cannot prefetch.
        let _ = ahead;
        let (streams, len) = streams::<S>(lines);
        let mut sums = [0u64; 8];
        for i in 0..len {
            for stream in streams {
                for (sum, word) in sums.iter_mut().zip(stream[i].0) {
                    *sum = sum.wrapping_add(word);
                }
            }
        }
        sums.iter().fold(0, |a, &b| a.wrapping_add(b))
    }

    fn peaks(self) -> &'static [Peak<Self>] {
        &[Peak { name: "portable", macs: 256, run: |_, steps| peak(steps) }]
    }
}

/// 256 multiply-adds per step, with operands in the L1 cache.
fn peak(steps: u64) {
    let (w, x) = ([1i8; 256], [2i8; 256]);
    let mut sum = 0i32;
    for _ in 0..steps {
        let (w, x) = (black_box(&w), black_box(&x));
        let dot: i32 = w.iter().zip(x).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum();
        sum = sum.wrapping_add(dot);
    }
    black_box(sum);
}
