//! What one thread does for [`Cpu::linear`](crate::Cpu::linear): some tiles of one matrix, all tokens.

use std::ops::Range;

use trike_trit::GroupSize;

use crate::activations::{ActivationPrecision, Activations, Tokens};
use crate::kernels::Kernels;
use crate::line::{BLOCK, CodeLine, TILE};
use crate::linear::Piece;
use crate::matrix::TernaryMatrix;

/// Tokens that share one unpacking of the weights.
const TOKENS: usize = 4;
/// Weights that stay in a core's second cache while all tokens pass.
const RESIDENT_BYTES: usize = 256 << 10;

/// Calls `f` with runs of tiles that stay in the cache, and within each with the tokens in groups.
fn for_runs(tiles: Range<usize>, tile_bytes: usize, mut f: impl FnMut(Range<usize>)) {
    let step = (RESIDENT_BYTES / tile_bytes.max(1)).max(1);
    for start in tiles.clone().step_by(step) {
        f(start..(start + step).min(tiles.end));
    }
}

/// What a thread needs beside its piece.
struct Scratch {
    /// Scales or means of a tile, one for each group.
    groups: Vec<[f32; TILE]>,
    /// Scales of a tile, one for each unit.
    units: Vec<[f32; TILE]>,
    /// Sums of the activations, `[token][group]`; empty without means.
    sums: Vec<f64>,
}

pub(crate) fn ternary_piece<K: Kernels>(
    kernels: K,
    m: &TernaryMatrix,
    x: &Activations,
    precision: ActivationPrecision,
    piece: &mut Piece<'_>,
) {
    let tokens = piece.out.len();
    let unit = match (m.group(), precision) {
        (Some(weights), ActivationPrecision::Int8PerGroup(x)) => {
            Some(if x.get() < weights.get() { x } else { weights })
        }
        (Some(size), _) | (None, ActivationPrecision::Int8PerGroup(size)) => Some(size),
        (None, _) => None,
    };
    let units = unit.map_or(0, |unit| m.blocks() * BLOCK / unit.get());
    let groups = m.groups();
    let mut scratch =
        Scratch { groups: vec![[0.0; TILE]; groups], units: vec![[0.0; TILE]; units], sums: Vec::new() };
    if m.has_means() {
        scratch.sums = vec![0.0; tokens * groups];
        for (token, sums) in scratch.sums.chunks_exact_mut(groups).enumerate() {
            x.group_sums(token, m.group().map_or(m.cols(), GroupSize::get), sums);
        }
    }
    let first_row = piece.tiles.start * TILE;
    for_runs(piece.tiles.clone(), m.blocks() * m.depth() * TILE * 64, |tiles| {
        let mut token = 0;
        while token < tokens {
            let together = if tokens - token >= TOKENS { TOKENS } else { 1 };
            for tile in tiles.clone() {
                let row = tile * TILE - first_row;
                let rows = TILE.min(m.rows() - tile * TILE);
                let mut write = |t: usize, values: &[f32; TILE]| {
                    piece.out[token + t][row..row + rows].copy_from_slice(&values[..rows]);
                };
                if together == TOKENS {
                    let values = ternary_tile::<K, TOKENS>(kernels, m, x, unit, tile, token, &mut scratch);
                    values.iter().enumerate().for_each(|(t, values)| write(t, values));
                } else {
                    write(0, &ternary_tile::<K, 1>(kernels, m, x, unit, tile, token, &mut scratch)[0]);
                }
            }
            token += together;
        }
    });
}

/// Four rows times `T` tokens: all planes, means and factors.
fn ternary_tile<K: Kernels, const T: usize>(
    kernels: K,
    m: &TernaryMatrix,
    x: &Activations,
    unit: Option<GroupSize>,
    tile: usize,
    token: usize,
    scratch: &mut Scratch,
) -> [[f32; TILE]; T] {
    let mut values = [[0.0; TILE]; T];
    let tokens = x.tokens::<T>(token);
    let groups = m.groups();
    for plane in 0..m.depth() {
        let lines = m.tile(tile, plane);
        let part = match unit {
            None => {
                m.scales(kernels, tile, plane, &mut scratch.groups);
                let dots = match tokens {
                    Tokens::Floats(x) => kernels.ternary_rows_f32(lines, x),
                    Tokens::Bytes { tokens, .. } => {
                        kernels.ternary_rows_i8(lines, tokens).map(|d| d.map(|d| d as f32))
                    }
                };
                dots.map(|dots| std::array::from_fn(|r| scratch.groups[0][r] * dots[r]))
            }
            Some(unit) => {
                if m.group() == Some(unit) {
                    // Units past the last group stay zero.
                    m.scales(kernels, tile, plane, &mut scratch.units[..groups]);
                } else {
                    m.scales(kernels, tile, plane, &mut scratch.groups);
                    spread(m, unit, &scratch.groups, &mut scratch.units);
                }
                match unit {
                    GroupSize::G32 => ternary_units::<K, T, 32>(kernels, lines, &scratch.units, tokens),
                    GroupSize::G64 => ternary_units::<K, T, 64>(kernels, lines, &scratch.units, tokens),
                    GroupSize::G128 => ternary_units::<K, T, 128>(kernels, lines, &scratch.units, tokens),
                    GroupSize::G256 => ternary_units::<K, T, 256>(kernels, lines, &scratch.units, tokens),
                }
            }
        };
        for (values, part) in values.as_flattened_mut().iter_mut().zip(part.as_flattened()) {
            *values += part;
        }
    }
    if m.means(kernels, tile, &mut scratch.groups) {
        for (t, values) in values.iter_mut().enumerate() {
            let mut add = [0f64; TILE];
            for (means, sum) in scratch.groups.iter().zip(&scratch.sums[(token + t) * groups..]) {
                for (add, mean) in add.iter_mut().zip(means) {
                    *add += f64::from(*mean) * sum;
                }
            }
            for (value, add) in values.iter_mut().zip(add) {
                *value += add as f32;
            }
        }
    }
    for (t, values) in values.iter_mut().enumerate() {
        let factor = x.factor(token + t);
        for value in values {
            *value *= factor;
        }
    }
    values
}

/// Writes the scale of every unit: that of the group it lies in, zero past the last column.
fn spread(m: &TernaryMatrix, unit: GroupSize, groups: &[[f32; TILE]], units: &mut [[f32; TILE]]) {
    let per_group = m.group().map_or(units.len(), |group| group.get() / unit.get());
    for (units, group) in
        units.chunks_mut(per_group).zip(groups.iter().chain(std::iter::repeat(&[0.0; TILE])))
    {
        units.fill(*group);
    }
}

fn ternary_units<K: Kernels, const T: usize, const UNIT: usize>(
    kernels: K,
    lines: &[CodeLine],
    scales: &[[f32; TILE]],
    tokens: Tokens<'_, T>,
) -> [[f32; TILE]; T] {
    match tokens {
        Tokens::Floats(x) => kernels.ternary_units_f32::<T, UNIT>(lines, scales, x),
        Tokens::Bytes { tokens, grouped: true } => {
            kernels.ternary_units_i8::<T, UNIT, true>(lines, scales, tokens)
        }
        Tokens::Bytes { tokens, grouped: false } => {
            kernels.ternary_units_i8::<T, UNIT, false>(lines, scales, tokens)
        }
    }
}
