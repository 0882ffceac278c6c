//! Matrices in the memory of a mapped file.

use std::sync::Mutex;

use bytemuck::{AnyBitPattern, NoUninit};
use half::f16;
use trike_core::{Int8Tiles, Layout, TileLayout, Tiles, TritTiles};
use trike_host::{Cpu, FileRange, Lines, ranges};
use trike_trit::{Coupling, Granularity};

use super::Matrix;
use super::int8::Int8Matrix;
use super::ternary::{MAX_COLS, Shared, Store, TernaryMatrix};
use crate::error::{CpuError, check_range};
use crate::line::ROWS;

/// [`CpuOps::map_tiles`](crate::CpuOps::map_tiles).
pub(crate) fn map_tiles(cpu: &Cpu, tiles: &Tiles<FileRange>) -> Result<Matrix, CpuError> {
    match tiles {
        Tiles::Trits(tiles) => trits(cpu, tiles).map(Matrix::Ternary),
        Tiles::Int8(tiles) => int8(tiles).map(Matrix::Int8),
    }
}

fn trits(cpu: &Cpu, tiles: &TritTiles<FileRange>) -> Result<TernaryMatrix, CpuError> {
    let (rows, cols, depth, coupling) = (tiles.rows, tiles.cols, tiles.depth, tiles.coupling);
    check_range("columns of a ternary matrix", 1, MAX_COLS, cols)?;
    check_range("planes of a ternary matrix", 1, trike_trit::MAX_DEPTH, depth)?;
    tiles.check()?;
    check_codes(cpu, tiles)?;
    let values = |part: &FileRange, halves: bool| shared(part, halves, tiles.granularity);
    let scales = values(&tiles.scales, tiles.half_scales)?;
    let means = tiles.means.as_ref().map(|(part, halves)| values(part, *halves)).transpose()?;
    let (sets, planes) = if coupling == Coupling::Free { (depth, 1) } else { (1, depth) };
    Ok(TernaryMatrix {
        rows,
        cols,
        coupling,
        depth,
        nonzeros: None,
        sets,
        planes,
        skipped: 0,
        group: tiles.granularity.group(),
        shape: tiles.shape(),
        store: Store::Fixed(lines(&tiles.codes)?),
        scales,
        means,
        rotation: tiles.rotation,
    })
}

/// Checks all codes, on all threads: an invalid one would be decoded as an arbitrary trit.
fn check_codes(cpu: &Cpu, tiles: &TritTiles<FileRange>) -> Result<(), CpuError> {
    let (codes, shape): (&[u8], _) = (&tiles.codes, tiles.shape());
    // A byte costs less than a multiply-add.
    let parts = cpu.pool().parts(codes.len() / 2);
    let invalid: Mutex<Option<usize>> = Mutex::new(None);
    let check = |range: std::ops::Range<usize>| {
        if let Some(at) = shape.invalid(&codes[range.clone()]) {
            // No thread panics while holding the lock.
            let mut first = invalid.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *first = Some(first.unwrap_or(usize::MAX).min(range.start + at));
        }
    };
    cpu.pool().run(ranges(codes.len(), parts).collect(), check);
    let layout = match tiles.layout {
        TileLayout::TwoBit => Layout::TwoBit,
        TileLayout::Base3 => Layout::Base3,
    };
    match invalid.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(index) => Err(CpuError::Code { index, byte: codes[index], layout }),
        None => Ok(()),
    }
}

fn int8(tiles: &Int8Tiles<FileRange>) -> Result<Int8Matrix, CpuError> {
    tiles.check_scales()?;
    let Int8Tiles { rows, cols, group, half_scales, .. } = *tiles;
    Ok(Int8Matrix { rows, cols, group, lines: lines(&tiles.lines)?, halves: half_scales })
}

/// Scales or means.
fn shared(part: &FileRange, halves: bool, granularity: Granularity) -> Result<Shared, CpuError> {
    let all = match (granularity, halves) {
        (Granularity::Tensor, true) => {
            Shared::Tensor(part.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect())
        }
        (Granularity::Tensor, false) => {
            Shared::Tensor(part.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect())
        }
        (_, true) => Shared::F16(lines::<[f16; ROWS]>(part)?),
        (_, false) => Shared::F32(lines::<[f32; ROWS]>(part)?),
    };
    match all.first_non_finite() {
        Some((index, value)) => Err(CpuError::NonFiniteParameter { what: "scale", index, value }),
        None => Ok(all),
    }
}

/// The elements of a file range, which must be a whole number of them: in place, or copied if they are misaligned.
fn lines<T>(part: &FileRange) -> Result<Lines<T>, CpuError>
where
    T: AnyBitPattern + NoUninit,
{
    if let Some(mapped) = Lines::mapped(part) {
        return Ok(mapped);
    }
    let mut copy = Lines::<T>::zeroed(part.len() / size_of::<T>())?;
    bytemuck::cast_slice_mut::<T, u8>(&mut copy).copy_from_slice(part);
    Ok(copy)
}
