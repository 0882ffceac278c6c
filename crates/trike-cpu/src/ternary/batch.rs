//! Kernel for one plane of 2-bit codes and more than four rows of activations, for instruction sets with enough registers: the
//! weights of two tiles are unpacked in registers, again for every few rows. Masks and shifts run on execution ports that products
//! do not use, so repeating them costs less than a panel.

use super::{Units, add_means, bias};
use crate::activations::{Activations, Panel};
use crate::kernels::Kernels;
use crate::line::{CodeLine, FloatLine, ROWS};
use crate::matrix::LONG;
use crate::matrix::TernaryMatrix;
use crate::piece::Piece;
use crate::simd::{Simd, takes as is_compiled};
use trike_core::TileLayout;
use trike_host::CacheLine;
use trike_host::Loop;

/// Maximum rows of activations with scales per group: for more, a panel and its short units
/// ([`prefill`](super::prefill)) cost less.
const GROUPED_ROWS: usize = 40;
/// Prefetch distance in bytes.
const AHEAD: usize = 8192;

/// The kernel.
pub(super) struct Batch<'a, 'p, K> {
    kernels: K,
    m: &'a TernaryMatrix,
    x: &'a Activations,
    units: Units,
    piece: &'a mut Piece<'p>,
}

impl<'a, 'p, K: Kernels> Batch<'a, 'p, K> {
    pub(super) fn new(
        kernels: K,
        m: &'a TernaryMatrix,
        x: &'a Activations,
        units: Units,
        piece: &'a mut Piece<'p>,
    ) -> Self {
        Self { kernels, m, x, units, piece }
    }

    /// Whether the instruction set has enough registers.
    pub(super) const EXISTS: bool = K::WIDE && K::TILES == 2;
}

/// Whether the kernel supports a product and is the fastest for it.
pub(super) fn takes(m: &TernaryMatrix, x: &Activations, units: Units) -> bool {
    m.planes() == 1
        && m.sparse().is_none()
        && m.shape().layout() == TileLayout::TwoBit
        && (units.cols == LONG || x.rows() <= GROUPED_ROWS)
}

/// The columns of a unit.
struct Part {
    start: usize,
    end: usize,
    group: usize,
}

impl<K: Kernels> Loop for Batch<'_, '_, K> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { kernels: k, m, x, units, piece } = self;
        let parts: Vec<Part> = (0..units.count)
            .map(|unit| {
                let (start, end) = units.range(unit);
                Part { start, end, group: units.group_of(unit) }
            })
            .collect();
        // Per row of activations and unit, minus the bias of the codes times the sum of the activations.
        let negated: Vec<i32> = (0..x.rows())
            .flat_map(|row| parts.iter().map(move |part| (row, part)))
            .map(|(row, part)| bias(1).wrapping_mul(x.negated(row, part.start, part.end)))
            .collect();
        let mut groups = vec![CacheLine([0.0; ROWS]); 2 * m.groups()];
        let mut sums = vec![CacheLine([0.0; ROWS]); 2 * x.rows()];
        let mut tile = piece.tiles.start;
        while tile < piece.tiles.end {
            let tiles = 2.min(piece.tiles.end - tile);
            sums.fill(CacheLine([0.0; ROWS]));
            for set in 0..m.sets() {
                for (t, groups) in groups.chunks_exact_mut(m.groups()).enumerate().take(tiles) {
                    m.scales(k, tile + t, set, groups);
                }
                let job = Tiles { m, x, tile, set, parts: &parts, negated: &negated, groups: &groups };
                match tiles {
                    2 => job.rows::<K, 2>(k, &mut sums),
                    _ => job.rows::<K, 1>(k, &mut sums),
                }
            }
            for t in 0..tiles {
                let groups = &mut groups[..m.groups()];
                if m.means(k, tile + t, groups) {
                    add_means(k, x, units, groups, &mut sums[t * x.rows()..][..x.rows()]);
                }
            }
            piece.write(k, &x.joined(), tile..tile + tiles, &sums[..tiles * x.rows()]);
            tile += tiles;
        }
    }
}

/// One set of one or two tiles.
struct Tiles<'a> {
    m: &'a TernaryMatrix,
    x: &'a Activations,
    tile: usize,
    set: usize,
    parts: &'a [Part],
    /// `[row][unit]`.
    negated: &'a [i32],
    /// `[tile][group]`.
    groups: &'a [FloatLine],
}

impl Tiles<'_> {
    #[inline(always)]
    fn rows<S: Simd, const N: usize>(&self, s: S, sums: &mut [FloatLine]) {
        for &rows in self.x.panels() {
            match rows.rows {
                12 => self.some::<S, N, 12>(s, rows, sums),
                8 => self.some::<S, N, 8>(s, rows, sums),
                4 => self.some::<S, N, 4>(s, rows, sums),
                2 => self.some::<S, N, 2>(s, rows, sums),
                _ => self.some::<S, N, 1>(s, rows, sums),
            }
        }
    }

    #[inline(always)]
    fn some<S: Simd, const N: usize, const T: usize>(&self, s: S, rows: Panel, sums: &mut [FloatLine]) {
        // Panel widths of other instruction sets are not compiled.
        if const { !is_compiled::<S>(N, T) } {
            return;
        }
        let (m, all) = (self.m, self.x.rows());
        let x = self.x.panel::<T>(rows);
        let mut lines: [&[CodeLine]; N] = [&[]; N];
        for n in 0..N {
            lines[n] = m.tile(self.tile + n, self.set, 0);
        }
        // Later rows find the weights in the cache.
        let ahead = if rows.first == 0 { N * AHEAD } else { 0 };
        for (unit, part) in self.parts.iter().enumerate() {
            let mut acc = [[s.no_acc(); T]; N];
            let range = part.start / 16..part.end / 16;
            let x = x[part.start / 4..part.end / 4].as_chunks::<4>().0;
            let mut parts: [&[CodeLine]; N] = [&[]; N];
            for n in 0..N {
                parts[n] = &lines[n][range.clone()][..x.len()];
            }
            for (i, x) in x.iter().enumerate() {
                let mut codes = [[s.splat_byte(0); 4]; N];
                for n in 0..N {
                    s.prefetch(&parts[n][i], ahead);
                    codes[n] = s.unpack(s.load(&parts[n][i]));
                }
                for f in 0..4 {
                    for t in 0..T {
                        let x = s.four(x[f][t]);
                        for n in 0..N {
                            acc[n][t] = s.dot(acc[n][t], codes[n][f], x);
                        }
                    }
                }
            }
            for n in 0..N {
                let scale = s.load_floats(&self.groups[n * m.groups() + part.group]);
                for t in 0..T {
                    let row = rows.first + t;
                    let negated = self.negated[row * self.parts.len() + unit];
                    let exact = s.add_ints(s.to_ints(acc[n][t]), s.splat_int(negated));
                    // Without group factors, multiplying by one changes nothing.
                    let scale = s.mul(scale, s.splat(self.x.group_factor(row, part.start)));
                    let place = &mut sums[n * all + row];
                    s.store_floats(s.add(s.load_floats(place), s.mul(scale, s.to_floats(exact))), place);
                }
            }
        }
    }
}
