//! Keys and values in f32 in the layout of the products, copied once for all panels of an item.

use std::ops::Range;

use super::{KEYS, SCALARS};
use crate::kernels::{Kernels as _, with_float_kernels};
use trike_host::Isa;
use trike_host::Loop;

/// Keys and values of one block.
pub(super) struct Blocks {
    /// `[KEYS][head_dim]`
    pub(super) keys: Vec<f32>,
    /// `[head_dim / SCALARS][KEYS]`, the last columns padded with zeros.
    pub(super) values: Vec<[[f32; SCALARS]; KEYS]>,
    /// `[KEYS][head_dim]`, the values before packing.
    wide: Vec<f32>,
    /// Whether every value is finite, so that a weight of zero contributes zero.
    pub(super) finite: bool,
}

impl Blocks {
    pub(super) fn new(d: usize) -> Self {
        let values = vec![[[0.0; SCALARS]; KEYS]; d.div_ceil(SCALARS)];
        Self { keys: vec![0.0; KEYS * d], values, wide: vec![0.0; KEYS * d], finite: true }
    }

    /// Copies the keys and values of `positions`, which lie within the block at `start`; the rest of the block is zeroed.
    pub(super) fn fill(
        &mut self,
        isa: Isa,
        keys: [&[f32]; 2],
        values: [&[f32]; 2],
        start: usize,
        positions: &Range<usize>,
    ) {
        let d = self.keys.len() / KEYS;
        let within = (positions.start - start) * d..(positions.end - start) * d;
        self.fill_keys(keys, start, positions);
        copy_within(&mut self.wide, &within, values);
        let (wide, values) = (self.wide.as_slice(), self.values.as_mut_slice());
        self.finite = with_float_kernels!(isa, s => s.run(Pack { wide, values }));
    }

    /// [`fill`](Self::fill) without the values.
    pub(super) fn fill_keys(&mut self, keys: [&[f32]; 2], start: usize, positions: &Range<usize>) {
        let d = self.keys.len() / KEYS;
        copy_within(&mut self.keys, &((positions.start - start) * d..(positions.end - start) * d), keys);
    }
}

/// Copies a run, before and after the wrap-around of the ring, to the range `within` of `to`, and zeroes the rest.
fn copy_within(to: &mut [f32], within: &Range<usize>, [before, after]: [&[f32]; 2]) {
    to[..within.start].fill(0.0);
    to[within.end..].fill(0.0);
    let (low, high) = to[within.clone()].split_at_mut(before.len());
    low.copy_from_slice(before);
    high.copy_from_slice(after);
}

/// Packs the values of a block into groups of columns, and returns whether all of them are finite.
struct Pack<'a> {
    wide: &'a [f32],
    values: &'a mut [[[f32; SCALARS]; KEYS]],
}

impl Loop for Pack<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let d = self.wide.len() / KEYS;
        let mut highest = [0; SCALARS];
        for (n, row) in self.wide.chunks_exact(d).enumerate() {
            let (eights, tail) = row.as_chunks::<SCALARS>();
            let (whole, last) = self.values.split_at_mut(eights.len());
            for (values, eight) in whole.iter_mut().zip(eights) {
                values[n] = *eight;
                for (highest, value) in highest.iter_mut().zip(eight) {
                    // As integers, magnitudes sort like the floats, and non-finite values sort above all others.
                    let magnitude = value.to_bits() & 0x7FFF_FFFF;
                    *highest = if magnitude > *highest { magnitude } else { *highest };
                }
            }
            for values in last {
                values[n][..tail.len()].copy_from_slice(tail);
                for value in tail {
                    highest[0] = highest[0].max(value.to_bits() & 0x7FFF_FFFF);
                }
            }
        }
        highest.into_iter().all(|magnitude| magnitude < 0x7F80_0000)
    }
}
