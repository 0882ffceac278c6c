//! Keys and values as 16-bit integers in the layout that the products read, rounded once for all panels of an item.

use std::ops::Range;

use half::f16;

use super::super::{KEYS, SCALARS};
use super::{LARGEST, LONGEST, before_rounding, factor_and_step, pair};
use crate::attention::cached::Cached;
use crate::kernels::{Element, Kernels as _, with_shared_kernels};
use crate::line::FloatLine;
use crate::simd::Simd;
use trike_host::CacheLine;
use trike_host::Isa;
use trike_host::Loop;

/// Elements of a cache that attention reads as integers.
pub(in crate::attention) trait Stored: Element {
    /// Widens sixteen elements.
    fn line<S: Simd>(s: S, from: &[Self; 16], to: &mut FloatLine);

    /// The absolute maximum; NaN or infinity if any element is.
    fn largest(row: &[Self]) -> f32;
}

impl Stored for f16 {
    #[inline(always)]
    fn line<S: Simd>(s: S, from: &[Self; 16], to: &mut FloatLine) {
        s.store_floats(s.load_halves(from), to);
    }

    #[inline(always)]
    fn largest(row: &[Self]) -> f32 {
        // As integers, magnitudes sort like the floats, and non-finite values sort above all others.
        let magnitudes = row.iter().map(|half| half.to_bits() & 0x7FFF);
        f16::from_bits(magnitudes.fold(0, u16::max)).widen()
    }
}

impl Stored for i8 {
    #[inline(always)]
    fn line<S: Simd>(_: S, from: &[Self; 16], to: &mut FloatLine) {
        for l in 0..16 {
            to.0[l] = f32::from(from[l]);
        }
    }

    #[inline(always)]
    fn largest(row: &[Self]) -> f32 {
        f32::from(row.iter().fold(0, |most, code| code.unsigned_abs().max(most)))
    }
}

/// Keys and values of one block. Columns are padded with zeros to a multiple of 16.
pub(super) struct Blocks {
    /// `[KEYS][columns / 2]` pairs of columns.
    pub(super) keys: Vec<i32>,
    /// Step size of the integers of a key; NaN if it is not finite.
    pub(super) key_scales: [f32; KEYS],
    /// `[columns / SCALARS][KEYS / 2]` pairs of positions.
    pub(super) values: Vec<[[i32; SCALARS]; KEYS / 2]>,
    /// Step size of the integers of a position, nonnegative; zero for faults.
    pub(super) value_scales: [f32; KEYS],
    /// Positions with values that are not finite.
    faults: Vec<Fault>,
    /// One row in f32.
    wide: Vec<FloatLine>,
    /// `[KEYS][columns]`: integers of the values before pairing.
    codes: Vec<i16>,
    /// Unpacked codes of one row.
    room: Vec<i8>,
}

/// A position with values that are not finite.
pub(super) struct Fault {
    /// Its index in the block.
    pub(super) at: usize,
    /// All its values.
    pub(super) values: Vec<f32>,
}

/// Keys or values of some positions of a head, before and after the wrap-around of the ring.
#[derive(Clone, Copy)]
pub(super) struct Run<'a, E> {
    pub(super) stored: [&'a [E]; 2],
    /// One per position if the elements are codes, else empty.
    pub(super) scales: [&'a [f32]; 2],
}

impl<'a, E: Cached> Run<'a, E> {
    /// Number of positions.
    #[inline(always)]
    fn len(self, d: usize) -> usize {
        (self.stored[0].len() + self.stored[1].len()) / E::width(d)
    }

    /// Stored items and the scale of each position; without codes the scale is 1.
    #[inline(always)]
    fn rows(self, d: usize) -> impl Iterator<Item = (&'a [E], f32)> {
        let ([before, after], width) = (self.stored, E::width(d));
        let rows = before.chunks_exact(width).chain(after.chunks_exact(width));
        let [first, second] = self.scales;
        rows.enumerate().map(move |(n, row)| {
            let scale = if E::Element::CODES {
                *first.get(n).unwrap_or_else(|| &second[n - first.len()])
            } else {
                1.0
            };
            (row, scale)
        })
    }
}

impl Blocks {
    pub(super) fn new(d: usize) -> Self {
        let columns = d.next_multiple_of(16);
        Self {
            keys: vec![0; KEYS * columns / 2],
            key_scales: [0.0; KEYS],
            values: vec![[[0; SCALARS]; KEYS / 2]; columns / SCALARS],
            value_scales: [0.0; KEYS],
            faults: Vec::new(),
            wide: vec![CacheLine([0.0; 16]); columns / 16],
            codes: vec![0; KEYS * columns],
            room: Vec::new(),
        }
    }

    /// Padded columns.
    pub(super) fn columns(&self) -> usize {
        self.wide.len() * 16
    }

    /// Rounds the keys of some positions, starting at index `first` of the block. Stale entries of the block are finite, and no row
    /// gives them a weight.
    pub(super) fn fill_keys<K: Cached<Element: Stored>>(
        &mut self,
        isa: Isa,
        keys: Run<'_, K>,
        head_dim: usize,
        first: usize,
    ) {
        with_shared_kernels!(isa, s => s.run(FillKeys { s, blocks: self, keys, head_dim, first }));
    }

    /// Likewise rounds the values of some positions.
    pub(super) fn fill_values<V: Cached<Element: Stored>>(
        &mut self,
        isa: Isa,
        values: Run<'_, V>,
        head_dim: usize,
        first: usize,
    ) {
        with_shared_kernels!(isa, s => s.run(FillValues { s, blocks: self, values, head_dim, first }));
    }

    /// The faults at some indices of the block.
    pub(super) fn faults_in(&self, places: &Range<usize>) -> impl Iterator<Item = &Fault> {
        self.faults.iter().filter(|fault| places.contains(&fault.at))
    }
}

/// Rounds the keys of the visible positions of a block.
struct FillKeys<'a, S, K> {
    s: S,
    blocks: &'a mut Blocks,
    keys: Run<'a, K>,
    head_dim: usize,
    /// Index of the first position in the block.
    first: usize,
}

impl<S: Simd, K: Cached<Element: Stored>> Loop for FillKeys<'_, S, K> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { s, blocks, keys, head_dim: d, first } = self;
        let columns = blocks.columns();
        let longest = before_rounding(LONGEST, columns);
        let to = blocks.keys[first * columns / 2..].chunks_exact_mut(columns / 2);
        for (((row, scale), to), own) in keys.rows(d).zip(to).zip(&mut blocks.key_scales[first..]) {
            let row = K::elements(row, d, &mut blocks.room);
            widen(s, row, &mut blocks.wide);
            let (factor, step) = match K::Element::CODES {
                true => (1.0, scale),
                false => factor_and_step(longest, square(s, &blocks.wide), K::Element::largest(row)),
            };
            *own = step;
            for (line, to) in blocks.wide.iter().zip(to.as_chunks_mut::<8>().0) {
                *to = bytemuck::cast(round(s, line, factor));
            }
        }
    }
}

/// Rounds the values of the visible positions of a block.
struct FillValues<'a, S, V> {
    s: S,
    blocks: &'a mut Blocks,
    values: Run<'a, V>,
    head_dim: usize,
    /// Index of the first position in the block.
    first: usize,
}

impl<S: Simd, V: Cached<Element: Stored>> Loop for FillValues<'_, S, V> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { s, blocks, values, head_dim: d, first } = self;
        let columns = blocks.columns();
        blocks.faults.clear();
        let to = blocks.codes[first * columns..].chunks_exact_mut(columns);
        let places = first..first + values.len(d);
        for (((row, scale), to), at) in values.rows(d).zip(to).zip(places.clone()) {
            let row = V::elements(row, d, &mut blocks.room);
            widen(s, row, &mut blocks.wide);
            let largest = V::Element::largest(row);
            let (factor, own) = match V::Element::CODES {
                // The bound on the weights requires nonnegative scales.
                true => (1f32.copysign(scale), scale.abs()),
                false if largest > 0.0 => (LARGEST / largest, largest / LARGEST),
                false => (0.0, 0.0),
            };
            let is_finite = largest < f32::INFINITY && own < f32::INFINITY;
            for (line, to) in blocks.wide.iter().zip(to.as_chunks_mut::<16>().0) {
                *to = if is_finite { round(s, line, factor) } else { [0; 16] };
            }
            blocks.value_scales[at] = if is_finite { own } else { 0.0 };
            if !is_finite {
                blocks.faults.push(fault(at, row, scale));
            }
        }
        // Whole pairs; the other position of a pair at an end keeps its old value.
        let pairs = places.start / 2..places.end.div_ceil(2);
        let codes = blocks.codes[pairs.start * 2 * columns..].chunks_exact(2 * columns);
        for (n, codes) in pairs.zip(codes) {
            let (low, high) = codes.split_at(columns);
            let codes = low.as_chunks::<16>().0.iter().zip(high.as_chunks::<16>().0);
            for ((low, high), to) in codes.zip(blocks.values.as_chunks_mut::<2>().0) {
                [to[0][n], to[1][n]] = pairs_of(low, high);
            }
        }
    }
}

/// A position with values that are not finite.
#[cold]
fn fault<E: Stored>(at: usize, row: &[E], scale: f32) -> Fault {
    Fault { at, values: row.iter().map(|element| element.widen() * scale).collect() }
}

/// Widens one row; the last line is padded with zeros.
#[inline(always)]
fn widen<S: Simd, E: Stored>(s: S, row: &[E], to: &mut [FloatLine]) {
    let (whole, tail) = row.as_chunks::<16>();
    for (from, to) in whole.iter().zip(to.iter_mut()) {
        E::line(s, from, to);
    }
    if !tail.is_empty() {
        let mut padded = [E::ZERO; 16];
        padded[..tail.len()].copy_from_slice(tail);
        E::line(s, &padded, &mut to[whole.len()]);
    }
}

/// Squared norm of a row.
#[inline(always)]
fn square<S: Simd>(s: S, row: &[FloatLine]) -> f32 {
    let mut sums = s.splat(0.0);
    for line in row {
        let line = s.load_floats(line);
        sums = s.add(sums, s.mul(line, line));
    }
    let mut lanes = CacheLine([0.0; 16]);
    s.store_floats(sums, &mut lanes);
    let eight: [f32; 8] = halves_added(&lanes.0);
    let four: [f32; 4] = halves_added(&eight);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// The sums of the elements of both halves.
#[inline(always)]
fn halves_added<const N: usize, const H: usize>(from: &[f32; N]) -> [f32; H] {
    let mut sums = [0.0; H];
    for l in 0..H {
        sums[l] = from[l] + from[l + H];
    }
    sums
}

/// The nearest integers to the elements times a factor, ties to even.
#[inline(always)]
fn round<S: Simd>(s: S, line: &FloatLine, factor: f32) -> [i16; 16] {
    let mut ints = CacheLine([0; 16]);
    s.store_ints(s.round(s.mul(s.load_floats(line), s.splat(factor))), &mut ints);
    let mut codes = [0; 16];
    for l in 0..16 {
        codes[l] = ints.0[l] as i16;
    }
    codes
}

/// Pairs of the integers of two positions.
#[inline(always)]
fn pairs_of(low: &[i16; 16], high: &[i16; 16]) -> [[i32; SCALARS]; 2] {
    let mut pairs = [0; 16];
    for i in 0..16 {
        pairs[i] = pair(u32::from(low[i].cast_unsigned()), u32::from(high[i].cast_unsigned()));
    }
    bytemuck::cast(pairs)
}
