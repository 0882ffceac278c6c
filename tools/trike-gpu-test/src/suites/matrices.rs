//! Products with weights in other layouts: floats, int8, lists of nonzeros, bitmaps, base 3; trits times trits; edits.

use half::{bf16, f16};
use trike_cube::linear::{
    ActivationPrecision, ActivationShape, Activations, CubeDenseMatrix, CubeTernaryMatrix, DecodeBlueprint,
    DenseBlueprint, DenseProblem, DenseValues, LinearBlueprint, MAX_COLS, MAX_SPARSE_COLS, SparseLayout,
    SparseMatrix, SparseProblem, SplitBlueprint, TernaryLayout, TernaryProblem,
};
use trike_cube::{CubeError, KernelProblem, Strategy, TritDotProblem, TritScore, TritTable};
use trike_testkit::Rng;
use trike_trit::{Edit, Encoding, Granularity, GroupSize, Scales, Trit, TritTensor};

use crate::session::{Oracle, Session, Verdict, poisoned};

/// All of these suites.
pub fn matrices(session: &mut Session) {
    dense(session);
    sparse(session);
    base3(session);
    blocks(session);
    trit_dot(session);
    edits(session);
}

/// Rows, columns, tokens, group size of int8.
const DENSE: &[(usize, usize, usize, usize)] = &[
    (1, 1, 1, 1),
    (5, 70, 1, 7),
    (33, 64, 3, 64),
    (66, 100, 8, 20),
    (65, 129, 9, 129),
    (64, 48, 70, 16),
    (130, 160, 35, 160),
    (40, 32, 131, 32),
];

/// What the device multiplies of an activation.
fn used(x: f32, blueprint: DenseBlueprint) -> f32 {
    match blueprint {
        DenseBlueprint::Mma { .. } => f32::from_bits((x.to_bits() + 0x1000) & !0x1FFF),
        _ => x,
    }
}

fn dense(session: &mut Session) {
    let device = session.device();
    for &(rows, cols, tokens, group) in DENSE {
        let mut rng = Rng::new((rows * cols) as u64);
        let w = rng.normals(rows * cols);
        // Half of the f16 values are subnormal.
        let small = |(i, v): (usize, &f32)| f16::from_f32(if i % 2 == 0 { v * 1e-5 } else { *v });
        let f16s: Vec<f16> = w.iter().enumerate().map(small).collect();
        let bf16s: Vec<bf16> = w.iter().map(|v| bf16::from_f32(*v)).collect();
        let codes: Vec<i8> = (0..rows * cols).map(|_| rng.next_u64() as i8).collect();
        let groups = cols.div_ceil(group);
        let scales = rng.normals(rows * groups);
        let of_code = |i: usize| scales[i / cols * groups + i % cols / group] * f32::from(codes[i]);
        let x = rng.normals(tokens * cols);
        let kinds: [(&str, DenseValues<'_>, Vec<f32>); 4] = [
            ("f32", DenseValues::F32(&w), w.clone()),
            ("f16", DenseValues::F16(&f16s), f16s.iter().map(|v| v.to_f32()).collect()),
            ("bf16", DenseValues::Bf16(&bf16s), bf16s.iter().map(|v| v.to_f32()).collect()),
            (
                "int8",
                DenseValues::Int8 { codes: &codes, scales: &scales, group },
                (0..rows * cols).map(of_code).collect(),
            ),
        ];
        for (kind, values, weights) in &kinds {
            for add in [false, true] {
                let name = format!("{kind} {rows} x {cols} m={tokens}{}", if add { ", added" } else { "" });
                let matrix = match CubeDenseMatrix::upload(device, rows, cols, *values) {
                    Ok(matrix) => matrix,
                    Err(e) => {
                        session.case(name, |_| Err(e.into()));
                        continue;
                    }
                };
                let problem = DenseProblem { tokens, w: matrix.form(), add };
                session.each(name, &problem, |oracle, strategy| {
                    let resident = device.upload(&x)?;
                    let base = vec![0.5f32; tokens * rows];
                    let out = if add { device.upload(&base)? } else { poisoned(device, tokens * rows)? };
                    if add {
                        device.dense_add(&resident, &matrix, &out, strategy)?;
                    } else {
                        device.dense(&resident, &matrix, &out, strategy)?;
                    }
                    let (blueprint, _) = problem.plan(strategy, device.capabilities())?;
                    let x: Vec<f64> = x.iter().map(|&v| f64::from(used(v, blueprint))).collect();
                    compare(oracle, &device.read(&out)?, weights, &x, cols, if add { 0.5 } else { 0.0 })
                });
            }
        }
    }
}

/// Rows, columns, tokens, precision, density.
const SPARSE: &[(usize, usize, usize, ActivationPrecision, f32)] = &[
    (1, 1, 1, ActivationPrecision::Int8PerToken, 0.0),
    (9, 700, 1, ActivationPrecision::Int8PerToken, 0.05),
    (6, 300, 3, ActivationPrecision::F32, 0.1),
    (5, 130, 17, ActivationPrecision::Int8PerToken, 0.5),
    (5, 130, 2, ActivationPrecision::Int16, 1.0),
];

fn sparse(session: &mut Session) {
    let device = session.device();
    for &(rows, cols, tokens, precision, density) in SPARSE {
        let mut rng = Rng::new((rows * cols) as u64);
        let scales = Scales::new(Granularity::Row, rng.normals(rows), None);
        let tensor =
            TritTensor::from_trits(rows, cols, &rng.trits(rows * cols, density), Encoding::Bitmap, scales)
                .expect("a tensor of the table is well-formed");
        let x = whole_numbers(&mut rng, tokens, cols);
        let shape = ActivationShape { tokens, cols, precision };
        let layouts = [SparseLayout::Entries, SparseLayout::Bitmap];
        for (layout, add) in layouts.into_iter().flat_map(|layout| [(layout, false), (layout, true)]) {
            let name = format!(
                "{layout:?} {rows} x {cols} m={tokens} {precision:?}{}",
                if add { ", added" } else { "" }
            );
            let w = match SparseMatrix::pack_as(device, &tensor, layout) {
                Ok(w) => w,
                Err(e) => {
                    session.case(name, |_| Err(e.into()));
                    continue;
                }
            };
            session.each(name, &SparseProblem { x: shape, w: w.form(), add }, |oracle, strategy| {
                let resident = Activations::upload(device, shape, &x)?;
                let base = vec![0.5f32; tokens * rows];
                let out = if add { device.upload(&base)? } else { poisoned(device, tokens * rows)? };
                if add {
                    device.sparse_add(&resident, &w, &out, strategy)?;
                } else {
                    device.sparse(&resident, &w, &out, strategy)?;
                }
                let x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
                compare(
                    oracle,
                    &device.read(&out)?,
                    &tensor.dequantize(),
                    &x,
                    cols,
                    if add { 0.5 } else { 0.0 },
                )
            });
        }
    }
    sparse_blocks(session);
}

/// Bitmaps of rows with chunks of zeros before, between and after others, one of them all zero, and rows too long for
/// lists.
fn sparse_blocks(session: &mut Session) {
    let device = session.device();
    for (rows, cols, tokens, of) in [(7, 1600, 2, 3), (3, MAX_SPARSE_COLS + 200, 1, 5)] {
        session.case(
            format_args!("sparse linear, one chunk of {of}, {rows} x {cols} m={tokens}"),
            |oracle| {
                let mut rng = Rng::new(cols as u64);
                let mut trits = rng.trits(rows * cols, 0.5);
                for (i, trit) in trits.iter_mut().enumerate() {
                    let (row, chunk) = (i / cols, i % cols / 128);
                    *trit *= i8::from(row != 1 && (row + chunk) % of == 1);
                }
                let tensor =
                    TritTensor::from_trits(rows, cols, &trits, Encoding::Bitmap, Scales::tensor(0.5))
                        .expect("a tensor of the table is well-formed");
                let w = SparseMatrix::pack_as(device, &tensor, SparseLayout::Bitmap)?;
                let x = whole_numbers(&mut rng, tokens, cols);
                let shape = ActivationShape { tokens, cols, precision: ActivationPrecision::Int8PerToken };
                let out = poisoned(device, tokens * rows)?;
                device.sparse(&Activations::upload(device, shape, &x)?, &w, &out, &Strategy::Inferred)?;
                let x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
                compare(oracle, &device.read(&out)?, &tensor.dequantize(), &x, cols, 0.0)
            },
        );
    }
    session.case("sparse linear refuses what a layout has no place for", |oracle| {
        let tensor = |cols: usize| {
            TritTensor::from_trits(1, cols, &vec![1; cols], Encoding::Bitmap, Scales::tensor(1.0))
                .expect("a tensor of ones")
        };
        for (cols, layout) in [(MAX_SPARSE_COLS, SparseLayout::Entries), (MAX_COLS, SparseLayout::Bitmap)] {
            let refused = SparseMatrix::pack_as(device, &tensor(cols + 1), layout);
            oracle.refused(
                "pack",
                refused,
                |e| matches!(e, CubeError::Range { got, .. } if *got == cols + 1),
            )?;
            SparseMatrix::pack_as(device, &tensor(cols), layout)?;
        }
        Ok(())
    });
}

/// Rows, columns, tokens, precision, scales, planes.
const BASE3: &[(usize, usize, usize, ActivationPrecision, Granularity, usize)] = &[
    (1, 1, 1, ActivationPrecision::Int8PerToken, Granularity::Tensor, 1),
    (17, 330, 2, ActivationPrecision::Int8PerToken, Granularity::Row, 1),
    (33, 2000, 1, ActivationPrecision::F32, Granularity::Row, 1),
    (20, 500, 3, ActivationPrecision::Int8PerToken, Granularity::Group(GroupSize::G128), 2),
    (20, 257, 18, ActivationPrecision::Int8PerToken, Granularity::Group(GroupSize::G32), 1),
];

fn base3(session: &mut Session) {
    let device = session.device();
    for &(rows, cols, tokens, precision, granularity, depth) in BASE3 {
        let mut rng = Rng::new((rows * cols) as u64);
        let planes: Vec<Vec<i8>> = (0..depth).map(|_| rng.trits(rows * cols, 0.6)).collect();
        let planes: Vec<&[i8]> = planes.iter().map(Vec::as_slice).collect();
        let count = granularity.count(rows, cols).expect("a small count") * depth;
        let scales = Scales::new(granularity, rng.normals(count), None);
        let free = trike_trit::Coupling::Free;
        let tensor = TritTensor::from_planes(rows, cols, &planes, Encoding::Base3, free, scales)
            .expect("a tensor of the table is well-formed");
        let x = whole_numbers(&mut rng, tokens, cols);
        let shape = ActivationShape { tokens, cols, precision };
        let name = format!("base 3, {rows} x {cols} m={tokens} {precision:?}, {granularity} x{depth}");
        let w = match CubeTernaryMatrix::pack_as(device, &[&tensor], TernaryLayout::Base3) {
            Ok(w) => w,
            Err(e) => {
                session.case(name, |_| Err(e.into()));
                continue;
            }
        };
        each_layout(session, &name, &w, &tensor, shape, &x);
    }
}

/// Rows, columns, tokens, scales, and n such that every n-th block of 128 columns is nonzero; 0 for none.
const BLOCKS: &[(usize, usize, usize, Granularity, usize)] = &[
    (5, 100, 1, Granularity::Tensor, 0),
    (37, 900, 2, Granularity::Row, 3),
    (20, 1300, 5, Granularity::Group(GroupSize::G64), 4),
    (16, 256, 17, Granularity::Group(GroupSize::G256), 1),
];

fn blocks(session: &mut Session) {
    let device = session.device();
    for &(rows, cols, tokens, granularity, every) in BLOCKS {
        let mut rng = Rng::new((rows * cols) as u64);
        let mut trits = rng.trits(rows * cols, 0.6);
        for (i, trit) in trits.iter_mut().enumerate() {
            let block = i / cols / 16 + i % cols / 128;
            *trit *= i8::from(every > 0 && block % every.max(1) == 0);
        }
        let count = granularity.count(rows, cols).expect("a small count");
        let scales = Scales::new(granularity, rng.normals(count), None);
        let tensor = TritTensor::from_trits(rows, cols, &trits, Encoding::TwoBit, scales)
            .expect("a tensor of the table is well-formed");
        let x = whole_numbers(&mut rng, tokens, cols);
        let shape = ActivationShape { tokens, cols, precision: ActivationPrecision::Int8PerToken };
        let name = format!("blocks, {rows} x {cols} m={tokens} {granularity}, one of {every}");
        let w = match CubeTernaryMatrix::pack_as(device, &[&tensor], TernaryLayout::Blocks) {
            Ok(w) => w,
            Err(e) => {
                session.case(name, |_| Err(e.into()));
                continue;
            }
        };
        each_layout(session, &name, &w, &tensor, shape, &x);
    }
}

/// A linear layer in another layout, with every blueprint, and with columns split over cubes.
fn each_layout(
    session: &mut Session,
    name: &str,
    w: &CubeTernaryMatrix,
    tensor: &TritTensor,
    shape: ActivationShape,
    x: &[f32],
) {
    let device = session.device();
    let problem = TernaryProblem { x: shape, w: w.form().clone(), add: false };
    let check = |oracle: &Oracle, strategy: &Strategy<LinearBlueprint>| {
        let resident = Activations::upload(device, shape, x)?;
        let out = poisoned(device, shape.tokens * tensor.rows())?;
        device.linear(&resident, w, &[&out], strategy)?;
        let x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        compare(oracle, &device.read(&out)?, &tensor.dequantize(), &x, shape.cols, 0.0)
    };
    session.each(name, &problem, check);
    let slices = shape.precision.slices();
    if shape.code_rows() > 4 {
        return;
    }
    let decode = DecodeBlueprint { rows: shape.code_rows().next_power_of_two().clamp(slices, 16), splits: 2 };
    let blueprint = SplitBlueprint { decode, cubes: 3 };
    session.case(format_args!("ternary linear {name}, {blueprint:?}"), |oracle| {
        check(oracle, &Strategy::Forced(LinearBlueprint::Split(blueprint)))
    });
}

fn trit_dot(session: &mut Session) {
    let device = session.device();
    for (queries, rows, cols) in [(1, 1, 1), (2, 5, 127), (3, 9, 200), (9, 6, 128 * 64 + 5), (8, 4, 256)] {
        let mut rng = Rng::new(cols as u64);
        let mut table = |rows: usize| {
            let trits = rng.trits(rows * cols, 0.7);
            let tensor = TritTensor::from_trits(rows, cols, &trits, Encoding::Planes, Scales::tensor(1.0))
                .expect("a tensor of the table is well-formed");
            (trits, tensor)
        };
        let (q, t) = (table(queries), table(rows));
        let problem = TritDotProblem { score: TritScore::Dot, queries, rows, cols };
        session.each(format_args!("{queries} by {rows} of {cols}"), &problem, |oracle, strategy| {
            let (query, codebook) = (TritTable::upload(device, &q.1)?, TritTable::upload(device, &t.1)?);
            let out = device.upload(&vec![i32::MIN; queries * rows])?;
            device.trit_dot(&query, &codebook, &out, strategy)?;
            let dot = |q: &[i8], t: &[i8]| q.iter().zip(t).map(|(a, b)| i32::from(a * b)).sum::<i32>();
            let want: Vec<i32> =
                q.0.chunks(cols).flat_map(|q| t.0.chunks(cols).map(move |t| dot(q, t))).collect();
            oracle.exact("dot products", &device.read(&out)?, &want)
        });
    }
}

fn edits(session: &mut Session) {
    let device = session.device();
    session.case("edit of trits", |oracle| {
        let mut rng = Rng::new(12);
        let (rows, cols) = (21, 150);
        let trits = rng.trits(rows * cols, 0.6);
        let mut tensor = TritTensor::from_trits(rows, cols, &trits, Encoding::TwoBit, Scales::tensor(0.5))
            .expect("a tensor of the table is well-formed");
        let w = CubeTernaryMatrix::pack(device, &[&tensor])?;
        let edits: Vec<Edit> = (0..200)
            .map(|_| Edit {
                plane: 0,
                row: rng.below(rows),
                col: rng.below(cols),
                trit: Trit::ALL[rng.below(3)],
            })
            .collect();
        device.edit(&w, 0, &edits)?;
        tensor.edit(&edits).expect("places that exist");
        let x = whole_numbers(&mut rng, 1, cols);
        let shape = ActivationShape { tokens: 1, cols, precision: ActivationPrecision::Int8PerToken };
        let out = poisoned(device, rows)?;
        device.linear(&Activations::upload(device, shape, &x)?, &w, &[&out], &Strategy::Inferred)?;
        let x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        compare(oracle, &device.read(&out)?, &tensor.dequantize(), &x, cols, 0.0)
    });
}

/// Activations that are exact in every precision: integers, with a maximum of 127 per token.
fn whole_numbers(rng: &mut Rng, tokens: usize, cols: usize) -> Vec<f32> {
    let mut x: Vec<f32> = (0..tokens * cols).map(|_| rng.below(255) as f32 - 127.0).collect();
    x.iter_mut().step_by(cols).for_each(|x| *x = 127.0);
    x
}

/// Compares with sums in f64, and with an f32 loop.
fn compare(oracle: &Oracle, got: &[f32], weights: &[f32], x: &[f64], cols: usize, base: f32) -> Verdict {
    if !oracle.compares() {
        return Ok(());
    }
    let (mut exact, mut plain) = (Vec::new(), Vec::new());
    for x in x.chunks_exact(cols) {
        for w in weights.chunks_exact(cols) {
            exact.push(f64::from(base) + x.iter().zip(w).map(|(x, &w)| x * f64::from(w)).sum::<f64>());
            plain.push(base + x.iter().zip(w).map(|(&x, &w)| x as f32 * w).sum::<f32>());
        }
    }
    oracle.twice_plain("output", got, &exact, &plain, weights.len() / cols, 1e-6)
}
