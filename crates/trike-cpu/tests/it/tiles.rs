//! Matrices in mapped files compared with the same tensors packed into memory.

use std::{io::Write, path::Path};

use crate::common::{GRANULARITIES, PRECISIONS, Weights, bits, cpus, describe};
use trike_core::{DenseTensor, Int8Tensor, Int8Tiles, TensorError, TileLayout, Tiles, TritTiles};
use trike_cpu::{
    ActivationPrecision, Cpu, CpuError, CpuOps, DenseData, EditOutcome, FileRange, Int8Matrix, Layout,
    Matrix, TernaryMatrix,
};
use trike_host::FileMap;
use trike_testkit::Rng;
use trike_trit::{Coupling, Edit, Encoding, Granularity, GroupSize, Trit, TritTensor};

const LAYOUTS: [(Layout, TileLayout); 2] =
    [(Layout::TwoBit, TileLayout::TwoBit), (Layout::Base3, TileLayout::Base3)];

/// The parts in a mapped file, the first one `offset` bytes after its start.
fn file(parts: &[&[u8]], offset: usize) -> Vec<FileRange> {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&vec![0; offset]).expect("it is written");
    parts.iter().for_each(|part| file.write_all(part).expect("it is written"));
    // An empty file cannot be mapped.
    file.write_all(&[0]).expect("it is written");
    // SAFETY: an anonymous temporary file that is not written any more.
    let map = unsafe { FileMap::new(&file, Path::new("parts")) }.expect("a map");
    let mut at = offset;
    let range = |part: &&[u8]| {
        at += part.len();
        map.range(at - part.len()..at).expect("inside the file")
    };
    parts.iter().map(range).collect()
}

fn mapped(tiles: TritTiles<Vec<u8>>, offset: usize) -> Tiles<FileRange> {
    let means = tiles.means.as_ref().map(|(bytes, _)| bytes.as_slice()).unwrap_or_default();
    let mut parts = file(&[&tiles.codes, &tiles.scales, means], offset).into_iter();
    let mut next = || parts.next().expect("three parts");
    Tiles::Trits(TritTiles {
        rows: tiles.rows,
        cols: tiles.cols,
        layout: tiles.layout,
        depth: tiles.depth,
        coupling: tiles.coupling,
        granularity: tiles.granularity,
        rotation: tiles.rotation,
        codes: next(),
        scales: next(),
        half_scales: tiles.half_scales,
        means: tiles.means.as_ref().map(|(_, halves)| (next(), *halves)),
    })
}

fn mapped_int8(tiles: &Int8Tiles<Vec<u8>>, offset: usize) -> Tiles<FileRange> {
    let Int8Tiles { rows, cols, group, half_scales, .. } = *tiles;
    let lines = file(&[&tiles.lines], offset).remove(0);
    Tiles::Int8(Int8Tiles { rows, cols, group, half_scales, lines })
}

fn linear(cpu: &Cpu, x: &[f32], w: &Matrix, precision: ActivationPrecision) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / w.cols() * w.rows()];
    cpu.linear(x, w, precision, &mut out).expect("valid shapes");
    out
}

/// Products and rows of two matrices on every instruction set.
fn check(cpus: &[Cpu], got: &Matrix, want: &Matrix, rng: &mut Rng) {
    assert_eq!((got.rows(), got.cols(), got.bytes()), (want.rows(), want.cols(), want.bytes()));
    let ids: Vec<u32> = (0..want.rows() as u32).collect();
    let rows = |w: &Matrix| {
        let mut out = vec![f32::NAN; w.rows() * w.cols()];
        cpus[0].embed(w, &ids, &mut out).expect("rows of the matrix");
        bits(&out)
    };
    assert_eq!(rows(got), rows(want));
    for tokens in [1, 3, 17] {
        let x = rng.normals(tokens * want.cols());
        for precision in PRECISIONS {
            for cpu in cpus {
                let [got, want] = [got, want].map(|w| bits(&linear(cpu, &x, w, precision)));
                assert!(got == want, "{}: {tokens} tokens, {precision:?}", describe(cpu));
            }
        }
    }
}

#[test]
fn ternary_tiles_compute_what_the_packed_tensor_does() {
    let (cpus, mut rng) = (cpus(), Rng::new(1));
    for (depth, coupling) in [(1, Coupling::Free), (3, Coupling::Free), (2, Coupling::Tied)] {
        for (i, granularity) in GRANULARITIES.into_iter().enumerate() {
            let spec = Weights {
                depth,
                coupling,
                means: i == 2,
                halves: i % 2 == 1,
                encoding: Encoding::ALL[i % 5],
                ..Weights::plain(37, 333, granularity)
            };
            let tensor = spec.make(&mut rng);
            for (layout, tile_layout) in LAYOUTS {
                let packed =
                    Matrix::from(TernaryMatrix::pack_as(&tensor, layout).expect("a packable tensor"));
                let tiles = TritTiles::of(&tensor, tile_layout).expect("tiles");
                // At byte 3 nothing is aligned, and the parts are copied.
                for offset in [0, 64, 3] {
                    let matrix = cpus[1].map_tiles(&mapped(tiles.clone(), offset)).expect("valid tiles");
                    check(&cpus[i % 2..i % 2 + 1], &matrix, &packed, &mut rng);
                    if offset == 64 {
                        check(&cpus, &matrix, &packed, &mut rng);
                    }
                }
            }
        }
    }
}

#[test]
fn int8_tiles_compute_what_the_packed_tensor_does() {
    let (cpus, mut rng) = (cpus(), Rng::new(2));
    for (rows, cols, group) in [(16, 64, 32), (37, 333, 32), (5, 70, 70), (40, 100, 7), (3, 9, 1)] {
        for half in [true, false] {
            let dense = DenseTensor::new(vec![rows, cols], DenseData::F32(rng.normals(rows * cols)));
            let tensor = Int8Tensor::quantize(&dense.expect("a tensor"), group, half).expect("small weights");
            let packed = Matrix::from(Int8Matrix::from_tensor(&tensor).expect("memory"));
            for offset in [0, 3] {
                let tiles = mapped_int8(&Int8Tiles::of(&tensor), offset);
                check(&cpus, &cpus[1].map_tiles(&tiles).expect("valid tiles"), &packed, &mut rng);
            }
        }
    }
}

#[test]
fn mapped_weights_are_not_edited_in_place() {
    let tensor =
        TritTensor::from_trits(16, 64, &[1; 1024], Encoding::TwoBit, trike_trit::Scales::tensor(1.0));
    let tiles = mapped(TritTiles::of(&tensor.expect("a tensor"), TileLayout::TwoBit).expect("tiles"), 0);
    let Ok(Matrix::Ternary(mut matrix)) = Cpu::new(1).expect("a thread").map_tiles(&tiles) else {
        panic!("a ternary matrix")
    };
    let edit = Edit { plane: 0, row: 3, col: 5, trit: Trit::N };
    assert_eq!(matrix.edit(&[edit]).expect("a place"), EditOutcome::NeedsRepack);
    assert!(matrix.edit(&[Edit { row: 16, ..edit }]).is_err());
}

#[test]
fn invalid_tiles_are_errors() {
    let cpu = Cpu::new(2).expect("threads");
    let mut rng = Rng::new(3);
    let spec = Weights { halves: true, ..Weights::plain(300, 512, Granularity::Group(GroupSize::G64)) };
    let tensor = spec.make(&mut rng);
    for (layout, tile_layout) in LAYOUTS {
        let tiles = TritTiles::of(&tensor, tile_layout).expect("tiles");
        for at in [0, tiles.codes.len() / 2, tiles.codes.len() - 1] {
            let mut bad = tiles.clone();
            bad.codes[at] = 0xFF;
            let error = cpu.map_tiles(&mapped(bad, 0)).expect_err("a bad code");
            let CpuError::Code { index, byte, layout: got } = error else { panic!("{error:?}") };
            assert_eq!((index, byte, got), (at, 0xFF, layout));
        }
        for at in [0, 33, tiles.scales.len() / 2 - 1] {
            let mut bad = tiles.clone();
            bad.scales[2 * at..2 * at + 2].copy_from_slice(&0x7C00u16.to_le_bytes());
            let error = cpu.map_tiles(&mapped(bad, 0)).expect_err("an infinite scale");
            let CpuError::NonFiniteParameter { index, value, .. } = error else { panic!("{error:?}") };
            assert_eq!((index, value), (at, f32::INFINITY));
        }
        let mut bad = tiles.clone();
        bad.codes.truncate(64);
        let error = cpu.map_tiles(&mapped(bad, 0)).expect_err("too short");
        assert!(matches!(error, CpuError::Tensor(TensorError::Length { got: 64, .. })), "{error:?}");
        let mut bad = tiles.clone();
        bad.depth = 0;
        assert!(matches!(cpu.map_tiles(&mapped(bad, 0)), Err(CpuError::Range { got: 0, .. })));
        let mut bad = tiles;
        bad.cols = usize::MAX / 2;
        assert!(matches!(cpu.map_tiles(&mapped(bad, 0)), Err(CpuError::Range { .. })));
    }
    let dense = DenseTensor::new(vec![20, 8], DenseData::F32(rng.normals(160))).expect("a tensor");
    let tiles = Int8Tiles::of(&Int8Tensor::quantize(&dense, 4, false).expect("small weights"));
    for (group, rows) in [(0, 20), (9, 20), (4, 0), (4, 33), (4, usize::MAX)] {
        let bad = Int8Tiles { group, rows, ..tiles.clone() };
        assert!(matches!(cpu.map_tiles(&mapped_int8(&bad, 0)), Err(CpuError::Tensor(_))), "{group} {rows}");
    }
    let mut bad = tiles;
    bad.lines[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let error = cpu.map_tiles(&mapped_int8(&bad, 0)).expect_err("a scale that is no number");
    assert!(matches!(error, CpuError::Tensor(TensorError::NonFinite { index: 0, .. })), "{error:?}");
}
