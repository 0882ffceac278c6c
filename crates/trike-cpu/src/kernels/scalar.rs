//! The specification: what every other implementation must compute.

use std::hint::black_box;

use super::{ByteToken, Element, Kernels, Loop, Rows, fold, streams};
use crate::isa::Scalar;
use crate::line::{CodeLine, FloatLine, TILE};
use crate::probe::{Peak, WordLine};

/// The trit in field `f` of a byte of codes.
#[inline(always)]
fn trit(byte: u8, f: usize) -> i8 {
    ((byte >> (2 * f)) & 3) as i8 - 1
}

/// Exact dot products of one line with its four lines of activations: for each field, sixteen sums of four neighbours.
#[inline(always)]
fn line_sums(line: &CodeLine, x: &[crate::line::ByteLine]) -> [[i32; 16]; 4] {
    let mut sums = [[0; 16]; 4];
    for (f, sums) in sums.iter_mut().enumerate() {
        for (j, (&byte, &x)) in line.0.iter().zip(&x[f].0).enumerate() {
            sums[j / 4] += i32::from(trit(byte, f)) * i32::from(x);
        }
    }
    sums
}

/// Adds one block's four field sums to the running sums of a row, a scale for each unit.
#[inline(always)]
fn add_scaled<S: Copy, const UNIT: usize>(
    sums: &mut [f32; 16],
    fields: [[S; 16]; 4],
    add: impl Fn(S, S) -> S,
    to_f32: impl Fn(S) -> f32,
    scale: impl Fn(usize, usize) -> f32,
) {
    let units = 256 / UNIT;
    let merged = |f: usize, l: usize| match UNIT {
        128 => add(fields[2 * f][l], fields[2 * f + 1][l]),
        256 => add(add(fields[0][l], fields[1][l]), add(fields[2][l], fields[3][l])),
        _ => fields[f][l],
    };
    // Groups of 32 split the lanes of a field in two halves.
    let vectors = units.min(4);
    for f in 0..vectors {
        for (l, sum) in sums.iter_mut().enumerate() {
            *sum += scale(f, l) * to_f32(merged(f, l));
        }
    }
}

impl Kernels for Scalar {
    fn ternary_rows_i8<const T: usize>(self, tile: &[CodeLine], x: [ByteToken<'_>; T]) -> [[i32; TILE]; T] {
        x.map(|x| {
            let mut out = [0; TILE];
            for (lines, x) in tile.chunks_exact(TILE).zip(x.codes.chunks_exact(4)) {
                for (out, line) in out.iter_mut().zip(lines) {
                    *out += line_sums(line, x).iter().flatten().sum::<i32>();
                }
            }
            out
        })
    }

    fn ternary_units_i8<const T: usize, const UNIT: usize, const FACTORS: bool>(
        self,
        tile: &[CodeLine],
        scales: &[[f32; TILE]],
        x: [ByteToken<'_>; T],
    ) -> [[f32; TILE]; T] {
        let units = 256 / UNIT;
        x.map(|x| {
            let mut sums = [[0.0; 16]; TILE];
            for (b, (lines, codes)) in tile.chunks_exact(TILE).zip(x.codes.chunks_exact(4)).enumerate() {
                for (r, line) in lines.iter().enumerate() {
                    let scale = |f: usize, l: usize| {
                        let unit = if UNIT == 32 { 2 * f + l / 8 } else { f };
                        let scale = scales[b * units + unit][r];
                        if FACTORS { scale * x.factors[b * 8 + unit * UNIT / 32] } else { scale }
                    };
                    let fields = line_sums(line, codes);
                    add_scaled::<i32, UNIT>(&mut sums[r], fields, |a, b| a + b, |v| v as f32, scale);
                }
            }
            sums.map(fold)
        })
    }

    fn ternary_rows_f32<const T: usize>(self, tile: &[CodeLine], x: [&[FloatLine]; T]) -> [[f32; TILE]; T] {
        x.map(|x| {
            let mut parts = [[[0.0f32; 16]; 4]; TILE];
            for (lines, x) in tile.chunks_exact(TILE).zip(x.chunks_exact(16)) {
                for (parts, line) in parts.iter_mut().zip(lines) {
                    for c in 0..4 {
                        add_chunk(parts, line, x, c);
                    }
                }
            }
            parts.map(|p| fold(std::array::from_fn(|l| (p[0][l] + p[1][l]) + (p[2][l] + p[3][l]))))
        })
    }

    fn ternary_units_f32<const T: usize, const UNIT: usize>(
        self,
        tile: &[CodeLine],
        scales: &[[f32; TILE]],
        x: [&[FloatLine]; T],
    ) -> [[f32; TILE]; T] {
        let units = 256 / UNIT;
        x.map(|x| {
            let mut sums = [[0.0; 16]; TILE];
            for (b, (lines, x)) in tile.chunks_exact(TILE).zip(x.chunks_exact(16)).enumerate() {
                for (r, line) in lines.iter().enumerate() {
                    // A unit of 32 ends after two chunks of sixteen, the others after four.
                    let halves = if UNIT == 32 { 2 } else { 1 };
                    for h in 0..halves {
                        let mut parts = [[0.0; 16]; 4];
                        for c in 4 / halves * h..4 / halves * (h + 1) {
                            add_chunk(&mut parts, line, x, c);
                        }
                        let scale = |f: usize, _| scales[b * units + halves * f + h][r];
                        add_scaled::<f32, UNIT>(&mut sums[r], parts, |a, b| a + b, |v| v, scale);
                    }
                }
            }
            sums.map(fold)
        })
    }

    fn product<E: Element>(self, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]) {
        let mut weights = vec![0.0; w.cols];
        for row in 0..w.count() {
            weights.iter_mut().zip(w.weights(row)).for_each(|(to, weight)| *to = weight);
            for (x, out) in x.chunks_exact(w.cols).zip(out.iter_mut()) {
                out[row] = dot(&weights, x);
            }
        }
    }

    fn dense_rows<E: Element>(self, rows: &[E], x: &[f32], out: &mut [f32]) {
        for (row, out) in rows.chunks_exact(x.len()).zip(out) {
            *out = dot(row, x);
        }
    }

    fn accumulate_rows<E: Element>(self, weights: &[f32], rows: &[E], out: &mut [f32]) {
        for (weight, row) in weights.iter().zip(rows.chunks_exact(out.len())) {
            for (out, &value) in out.iter_mut().zip(row) {
                *out += weight * value.widen();
            }
        }
    }

    fn widen<E: Element>(self, from: &[E], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.widen();
        }
    }

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

    fn run<L: Loop>(self, task: L) -> L::Output {
        task.run()
    }
}

/// Adds chunk `c` (bytes `16 c..16 c + 16`) of a line, the four fields each to their own sixteen sums.
#[inline(always)]
fn add_chunk(parts: &mut [[f32; 16]; 4], line: &CodeLine, x: &[FloatLine], c: usize) {
    for (f, part) in parts.iter_mut().enumerate() {
        for (l, sum) in part.iter_mut().enumerate() {
            *sum += f32::from(trit(line.0[16 * c + l], f)) * x[4 * f + c].0[l];
        }
    }
}

/// Sixteen running sums, so that a long row loses no more than a short one.
#[inline(always)]
fn dot_lanes<E: Element>(w: &[E], x: &[f32]) -> [f32; 16] {
    let mut sums = [0.0; 16];
    for (w, x) in w.chunks(16).zip(x.chunks(16)) {
        for ((sum, &w), &x) in sums.iter_mut().zip(w).zip(x) {
            *sum += w.widen() * x;
        }
    }
    sums
}

#[inline(always)]
fn dot<E: Element>(w: &[E], x: &[f32]) -> f32 {
    fold(dot_lanes(w, x))
}

/// 256 multiply-adds a step, from the first cache.
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
