//! `y = x W^T` with ternary weights: precisions, groups, planes, parts, odd sizes, residuals.

use trike_cube::linear::{
    ActivationPrecision, ActivationShape, Activations, BLOCK, CubeTernaryMatrix, DecodeBlueprint,
    LinearBlueprint, MAX_STAGES, MmaShape, SplitBlueprint, TernaryForm, TernaryProblem, WmmaElement,
    WmmaShape,
};
use trike_cube::{CubeDevice, CubeError, KernelProblem, Strategy};
use trike_testkit::Rng;
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, ScaleValues, Scales, TritTensor};

use crate::session::{Failure, Oracle, Session, Verdict, poisoned};

/// Weights of a case.
#[derive(Clone, Copy, Debug)]
struct Weights {
    cols: usize,
    granularity: Granularity,
    depth: usize,
    coupling: Coupling,
    means: bool,
    /// Whether the scales are f32 values that f16 cannot represent.
    precise: bool,
}

const PLAIN: Weights = Weights {
    cols: 200,
    granularity: Granularity::Row,
    depth: 1,
    coupling: Coupling::Free,
    means: false,
    precise: true,
};

const fn groups(size: GroupSize) -> Granularity {
    Granularity::Group(size)
}

/// A case: rows of the parts, weights, tokens, activations, and whether the products are accumulated.
type Case = (&'static [usize], Weights, usize, ActivationPrecision, bool);

const INT8: ActivationPrecision = ActivationPrecision::Int8PerToken;

/// All kinds of weights with all kinds of activations that the kernels distinguish, sizes that do not fill tiles or
/// blocks, token counts on both sides of every limit between the blueprints.
const CASES: &[Case] = &[
    (&[1], Weights { cols: 1, ..PLAIN }, 1, INT8, false),
    (&[16], Weights { cols: 128, granularity: Granularity::Tensor, ..PLAIN }, 1, INT8, false),
    (&[33], PLAIN, 1, INT8, false),
    (&[33], Weights { precise: false, ..PLAIN }, 2, INT8, true),
    (&[17], Weights { cols: 1030, ..PLAIN }, 3, INT8, false),
    (&[40, 8, 24], Weights { cols: 384, ..PLAIN }, 5, INT8, false),
    (&[48, 31], Weights { cols: 257, ..PLAIN }, 16, INT8, true),
    (&[65], Weights { cols: 300, ..PLAIN }, 17, INT8, false),
    (&[70], Weights { cols: 130, ..PLAIN }, 66, INT8, false),
    (&[33], Weights { granularity: groups(GroupSize::G32), ..PLAIN }, 4, INT8, false),
    (&[33], Weights { granularity: groups(GroupSize::G64), precise: false, ..PLAIN }, 1, INT8, false),
    (
        &[20],
        Weights { cols: 385, granularity: groups(GroupSize::G128), means: true, ..PLAIN },
        3,
        INT8,
        false,
    ),
    (&[20], Weights { cols: 520, granularity: groups(GroupSize::G256), ..PLAIN }, 18, INT8, false),
    (&[18], Weights { means: true, ..PLAIN }, 2, INT8, false),
    (&[21], Weights { depth: 2, ..PLAIN }, 2, INT8, false),
    (&[21], Weights { depth: 3, coupling: Coupling::Tied, ..PLAIN }, 9, INT8, false),
    (&[16], Weights { depth: 6, coupling: Coupling::Tied, ..PLAIN }, 1, INT8, false),
    (
        &[19],
        Weights { depth: 3, granularity: groups(GroupSize::G64), coupling: Coupling::Free, ..PLAIN },
        20,
        INT8,
        false,
    ),
    (&[33], PLAIN, 1, ActivationPrecision::F32, false),
    (&[33], Weights { granularity: groups(GroupSize::G32), ..PLAIN }, 3, ActivationPrecision::F32, true),
    (&[50], Weights { cols: 260, ..PLAIN }, 9, ActivationPrecision::F32, false),
    (&[33], PLAIN, 1, ActivationPrecision::Int16, false),
    (&[34], PLAIN, 8, ActivationPrecision::Int16, false),
    (&[33], PLAIN, 1, ActivationPrecision::Int8PerGroup(GroupSize::G32), false),
    (
        &[18],
        Weights { cols: 300, granularity: groups(GroupSize::G64), means: true, ..PLAIN },
        19,
        ActivationPrecision::Int8PerGroup(GroupSize::G128),
        false,
    ),
];

/// Ternary linear layers.
pub fn linear(session: &mut Session) {
    let device = session.device();
    for (seed, &(rows, weights, tokens, precision, add)) in CASES.iter().enumerate() {
        let mut rng = Rng::new(seed as u64);
        let tensors: Vec<TritTensor> = rows.iter().map(|&n| tensor(&mut rng, n, weights)).collect();
        let x: Vec<f32> = rng.normals(tokens * weights.cols);
        let inputs = Inputs { tensors, x, tokens, precision, add };
        let name = format!(
            "{rows:?} x {} m={tokens} {precision:?}, {} x{}{}{}{}",
            weights.cols,
            weights.granularity,
            weights.depth,
            if weights.coupling == Coupling::Tied { " tied" } else { "" },
            if weights.means { ", means" } else { "" },
            if add { ", added" } else { "" },
        );
        match inputs.form(device) {
            Ok(form) => {
                let x = ActivationShape { tokens, cols: weights.cols, precision };
                let problem = TernaryProblem { x, w: form, add };
                session.each(name, &problem, |oracle, strategy| inputs.check(oracle, device, strategy));
            }
            Err(e) => session.case(name, |_| Err(e)),
        }
    }
    many_groups(session);
    split(session);
    forced(session);
    refusals(session);
}

/// A row of [`SPLITS`]: the weights' rows and form, tokens, precision, whether products are accumulated, the splits of
/// a cube, and the cubes.
type Split = (&'static [usize], Weights, usize, ActivationPrecision, bool, usize, usize);

/// Columns split over cubes: one integer per row, groups of every size, means, sets, digits, group factors, and cubes
/// without any block.
const SPLITS: &[Split] = &[
    (&[19], Weights { cols: 1030, ..PLAIN }, 1, INT8, false, 2, 3),
    (&[33, 5], Weights { cols: 777, granularity: groups(GroupSize::G32), ..PLAIN }, 3, INT8, false, 1, 2),
    (&[17], Weights { cols: 2049, granularity: Granularity::Tensor, ..PLAIN }, 16, INT8, true, 2, 16),
    (&[21], Weights { cols: 900, depth: 6, coupling: Coupling::Tied, ..PLAIN }, 1, INT8, false, 2, 2),
    (
        &[20],
        Weights { cols: 1300, granularity: groups(GroupSize::G128), means: true, ..PLAIN },
        2,
        ActivationPrecision::F32,
        true,
        2,
        4,
    ),
    (
        &[18],
        Weights { cols: 1500, granularity: groups(GroupSize::G256), precise: false, ..PLAIN },
        5,
        ActivationPrecision::Int8PerGroup(GroupSize::G64),
        false,
        1,
        3,
    ),
    (&[16], Weights { cols: 700, granularity: groups(GroupSize::G64), ..PLAIN }, 2, INT8, false, 2, 2),
    (&[9], Weights { cols: 500, ..PLAIN }, 1, ActivationPrecision::F32, false, 1, 2),
];

/// Columns split over cubes, which is inferred only for long rows and large devices.
fn split(session: &mut Session) {
    let device = session.device();
    for (seed, &(rows, weights, tokens, precision, add, splits, cubes)) in SPLITS.iter().enumerate() {
        let mut rng = Rng::new(seed as u64);
        let tensors: Vec<TritTensor> = rows.iter().map(|&n| tensor(&mut rng, n, weights)).collect();
        let x: Vec<f32> = rng.normals(tokens * weights.cols);
        let inputs = Inputs { tensors, x, tokens, precision, add };
        let code_rows = (tokens * precision.slices()).next_power_of_two().clamp(precision.slices(), 16);
        let decode = DecodeBlueprint { rows: code_rows, splits };
        let mut kernels =
            vec![(LinearBlueprint::Decode(decode), LinearBlueprint::Split(SplitBlueprint { decode, cubes }))];
        if device.capabilities().int8_mma {
            // The columns of a cube are also split over its planes, and the last planes may have no block.
            let shape = MmaShape {
                tiles: 2,
                octets: code_rows.div_ceil(8),
                row_planes: 1 + seed % 2,
                code_planes: 1,
                splits,
                stages: 2 + seed % 3,
                cubes,
            };
            kernels.push((
                LinearBlueprint::Mma(MmaShape { splits: 1, cubes: 1, ..shape }),
                LinearBlueprint::Mma(shape),
            ));
        }
        let exact = !matches!(weights.granularity, Granularity::Group(_)) && weights.depth == 1;
        for (alone, split) in kernels {
            let forced = Strategy::Forced(split);
            let name = format!(
                "ternary linear {rows:?} x {} m={tokens} {precision:?}, {}, {cubes} cubes share columns, {split:?}",
                weights.cols, weights.granularity
            );
            session.case(name, |oracle| {
                inputs.check(oracle, device, &forced)?;
                if exact {
                    // An integer sum does not depend on how it is split.
                    let (whole, pieces) =
                        (inputs.run(device, &Strategy::Forced(alone))?, inputs.run(device, &forced)?);
                    for (part, (whole, pieces)) in whole.1.iter().zip(&pieces.1).enumerate() {
                        oracle.exact(&format!("output {part} of all cubes"), pieces, whole)?;
                    }
                }
                Ok(())
            });
        }
    }
}

/// A row of [`FORCED`]: the weights' rows and form, tokens, precision, whether products are accumulated, and the
/// blueprint.
type Forced = (&'static [usize], Weights, usize, ActivationPrecision, bool, LinearBlueprint);

/// Matrix instructions: tiles and octets per plane, planes per cube, and steps of blocks in shared memory.
const fn mma(
    [tiles, octets]: [usize; 2],
    [row_planes, code_planes, splits]: [usize; 3],
    stages: usize,
) -> LinearBlueprint {
    LinearBlueprint::Mma(MmaShape { tiles, octets, row_planes, code_planes, splits, stages, cubes: 1 })
}

/// Cooperative matrices per plane and planes per cube.
const fn wmma(
    [m, n, k]: [usize; 3],
    [row_matrices, code_matrices]: [usize; 2],
    [row_planes, code_planes]: [usize; 2],
) -> LinearBlueprint {
    let element = WmmaElement::I8;
    LinearBlueprint::Wmma(WmmaShape {
        m,
        n,
        k,
        row_matrices,
        code_matrices,
        row_planes,
        code_planes,
        element,
    })
}

/// The same cooperative matrices with f16 elements.
const fn halves(blueprint: LinearBlueprint) -> LinearBlueprint {
    match blueprint {
        LinearBlueprint::Wmma(shape) => {
            LinearBlueprint::Wmma(WmmaShape { element: WmmaElement::F16, ..shape })
        }
        other => other,
    }
}

/// Blueprints that no plan chooses for small shapes, or not on every device that supports them.
///
/// With matrix instructions: more and fewer blocks than fit in shared memory, several sets, parts, rows that end
/// inside a cube, copies that do not divide evenly among the units, planes without a block. With cooperative matrices of each shape: the same, and every kind of scale, mean and digit.
const FORCED: &[Forced] = &[
    (&[37], Weights { cols: 700, ..PLAIN }, 21, INT8, false, mma([1, 1], [1, 2, 1], 3)),
    (
        &[21, 18],
        Weights { cols: 1030, depth: 2, coupling: Coupling::Tied, ..PLAIN },
        33,
        INT8,
        true,
        mma([1, 2], [2, 1, 1], 2),
    ),
    (
        &[20],
        Weights { cols: 500, depth: 3, granularity: groups(GroupSize::G64), means: true, ..PLAIN },
        9,
        ActivationPrecision::Int16,
        false,
        mma([1, 1], [1, 2, 4], MAX_STAGES),
    ),
    (&[9], Weights { cols: 128, ..PLAIN }, 5, INT8, false, mma([1, 1], [1, 1, 1], MAX_STAGES)),
    (&[37], Weights { cols: 700, ..PLAIN }, 21, INT8, false, mma([3, 3], [3, 1, 3], 2)),
    (&[190], Weights { cols: 260, ..PLAIN }, 70, ActivationPrecision::F32, true, mma([4, 8], [2, 2, 1], 3)),
    (
        &[150],
        Weights { cols: 600, granularity: groups(GroupSize::G128), means: true, precise: false, ..PLAIN },
        130,
        INT8,
        false,
        mma([4, 4], [2, 4, 1], 3),
    ),
    (&[37], Weights { cols: 700, ..PLAIN }, 21, INT8, false, wmma([16, 16, 16], [1, 1], [1, 2])),
    (
        &[21, 18],
        Weights { cols: 300, depth: 5, coupling: Coupling::Tied, ..PLAIN },
        33,
        INT8,
        true,
        wmma([16, 16, 16], [2, 1], [1, 1]),
    ),
    (
        &[20],
        Weights { cols: 260, depth: 3, granularity: groups(GroupSize::G64), means: true, ..PLAIN },
        9,
        ActivationPrecision::F32,
        false,
        wmma([16, 16, 16], [1, 2], [2, 1]),
    ),
    (
        &[19, 5],
        Weights { cols: 390, granularity: groups(GroupSize::G256), precise: false, ..PLAIN },
        18,
        ActivationPrecision::Int8PerGroup(GroupSize::G32),
        false,
        wmma([32, 8, 16], [1, 1], [1, 2]),
    ),
    (
        &[17],
        Weights { cols: 200, granularity: Granularity::Tensor, depth: 2, ..PLAIN },
        20,
        ActivationPrecision::Int16,
        true,
        wmma([8, 32, 16], [2, 1], [1, 1]),
    ),
    (&[33], Weights { cols: 140, ..PLAIN }, 40, INT8, false, wmma([16, 16, 32], [2, 2], [1, 1])),
    // Inferred for many tokens if there are no other matrix instructions.
    (&[70], Weights { cols: 130, precise: false, ..PLAIN }, 66, INT8, false, wmma([16; 3], [2, 2], [2, 2])),
    (
        &[70],
        Weights { cols: 130, granularity: groups(GroupSize::G128), precise: false, ..PLAIN },
        66,
        INT8,
        false,
        wmma([16; 3], [2, 2], [2, 2]),
    ),
    // f16: whole rows and groups, folded and several sets of planes, all digits.
    (&[37], Weights { cols: 700, ..PLAIN }, 21, INT8, false, halves(wmma([16; 3], [1, 1], [1, 2]))),
    (
        &[21, 18],
        Weights { cols: 300, depth: 5, coupling: Coupling::Tied, ..PLAIN },
        33,
        INT8,
        true,
        halves(wmma([16; 3], [2, 1], [1, 1])),
    ),
    (
        &[20],
        Weights { cols: 260, depth: 3, granularity: groups(GroupSize::G64), means: true, ..PLAIN },
        9,
        ActivationPrecision::F32,
        false,
        halves(wmma([16; 3], [1, 2], [2, 1])),
    ),
    (
        &[19, 5],
        Weights { cols: 390, granularity: groups(GroupSize::G256), precise: false, ..PLAIN },
        18,
        ActivationPrecision::Int8PerGroup(GroupSize::G32),
        false,
        halves(wmma([32, 8, 16], [1, 1], [1, 2])),
    ),
    (
        &[17],
        Weights { cols: 200, granularity: Granularity::Tensor, depth: 2, ..PLAIN },
        20,
        ActivationPrecision::Int16,
        true,
        halves(wmma([8, 32, 16], [2, 1], [1, 1])),
    ),
    // Inferred for many tokens where cooperative matrices have no bytes.
    (&[70], Weights { cols: 130, ..PLAIN }, 66, INT8, false, halves(wmma([16; 3], [2, 2], [2, 2]))),
    (&[33], Weights { cols: 140, ..PLAIN }, 40, INT8, false, halves(wmma([16, 16, 32], [2, 2], [1, 1]))),
    (&[33], Weights { cols: 140, ..PLAIN }, 40, INT8, false, halves(wmma([32, 32, 8], [1, 1], [2, 2]))),
    (&[70], Weights { cols: 130, ..PLAIN }, 66, INT8, false, halves(wmma([8; 3], [4, 4], [2, 1]))),
];

/// Forced blueprints.
fn forced(session: &mut Session) {
    let device = session.device();
    let capabilities = device.capabilities();
    for (seed, &(rows, weights, tokens, precision, add, blueprint)) in FORCED.iter().enumerate() {
        let there = match blueprint {
            LinearBlueprint::Wmma(shape) => {
                let shapes = match shape.element {
                    WmmaElement::I8 => &capabilities.int8_cmma,
                    WmmaElement::F16 => &capabilities.f16_cmma,
                };
                shapes.contains(&[shape.m, shape.n, shape.k])
            }
            _ => capabilities.int8_mma && capabilities.async_copy,
        };
        if !there {
            continue;
        }
        let mut rng = Rng::new(seed as u64);
        let tensors: Vec<TritTensor> = rows.iter().map(|&n| tensor(&mut rng, n, weights)).collect();
        let x: Vec<f32> = rng.normals(tokens * weights.cols);
        let inputs = Inputs { tensors, x, tokens, precision, add };
        let name = format!(
            "ternary linear {rows:?} x {} m={tokens} {precision:?}, {} x{}, {blueprint:?}",
            weights.cols, weights.granularity, weights.depth
        );
        session.case(name, |oracle| inputs.check(oracle, device, &Strategy::Forced(blueprint)));
    }
}

/// Numbers of unit groups that are inferred only for long rows on large devices.
fn many_groups(session: &mut Session) {
    let device = session.device();
    let capabilities = device.capabilities();
    for (rows, splits, weights) in [
        (1, 16, PLAIN),
        (2, 16, Weights { granularity: groups(GroupSize::G128), ..PLAIN }),
        (1, 32, Weights { depth: 2, ..PLAIN }),
        (2, 32, Weights { granularity: groups(GroupSize::G64), means: true, ..PLAIN }),
    ] {
        // Units per group, and shared memory of the partial sums.
        let (units, shared) = (32 * splits, 256 * rows * splits + 4);
        if units > capabilities.max_units as usize || shared > capabilities.max_shared_bytes {
            continue;
        }
        let weights = Weights { cols: 4170, ..weights };
        let mut rng = Rng::new(splits as u64);
        let tensors = vec![tensor(&mut rng, 19, weights)];
        let x = rng.normals(rows * weights.cols);
        let inputs = Inputs { tensors, x, tokens: rows, precision: INT8, add: false };
        let forced = Strategy::Forced(LinearBlueprint::Decode(DecodeBlueprint { rows, splits }));
        let name = format!("ternary linear [19] x {} m={rows}, {splits} groups of units", weights.cols);
        session.case(name, |oracle| inputs.check(oracle, device, &forced));
    }
}

/// Errors before any launch.
fn refusals(session: &mut Session) {
    let device = session.device();
    session.case("ternary linear refuses outputs of the wrong length", |oracle| {
        let mut rng = Rng::new(99);
        let w = CubeTernaryMatrix::pack(device, &[&tensor(&mut rng, 16, PLAIN)])?;
        let shape = ActivationShape { tokens: 2, cols: PLAIN.cols, precision: INT8 };
        let x = Activations::upload(device, shape, &rng.normals(2 * PLAIN.cols))?;
        for wrong in [31, 33] {
            let out = poisoned(device, wrong)?;
            let refused = device.linear(&x, &w, &[&out], &Strategy::Inferred);
            oracle.refused("linear", refused, |e| matches!(e, CubeError::Length { expected: 32, .. }))?;
        }
        let narrow = ActivationShape { cols: PLAIN.cols - 1, ..shape };
        let x = Activations::upload(device, narrow, &rng.normals(2 * (PLAIN.cols - 1)))?;
        let refused = device.linear(&x, &w, &[&poisoned(device, 32)?], &Strategy::Inferred);
        oracle.refused("linear", refused, |e| matches!(e, CubeError::Length { expected: 200, got: 199, .. }))
    });
}

/// Model shapes: the inferred blueprints, on small buffers.
pub fn shapes(session: &mut Session) {
    let device = session.device();
    let (one, two, three): (&[usize], &[usize], &[usize]) = (&[2560], &[6912, 6912], &[2560, 640, 640]);
    let groupings = [
        (Granularity::Row, 1, Coupling::Free),
        (groups(GroupSize::G64), 1, Coupling::Free),
        (groups(GroupSize::G128), 1, Coupling::Free),
        (groups(GroupSize::G128), 3, Coupling::Tied),
    ];
    for (granularity, depth, coupling) in groupings {
        let weights = Weights { granularity, depth, coupling, precise: false, ..PLAIN };
        // Few long rows: their columns are split over cubes.
        let few: &[usize] = &[256];
        for (parts, cols) in [(one, 2560), (two, 2560), (three, 2560), (one, 14336), (few, 57344)] {
            // On both sides of each limit between the blueprints.
            for tokens in [1, 2, 8, 16, 32, 128, 2048] {
                if parts == few && !(2..=16).contains(&tokens) {
                    continue;
                }
                let mut rng = Rng::new(tokens as u64);
                let small: Vec<TritTensor> = parts.iter().map(|_| tensor(&mut rng, 16, weights)).collect();
                let inputs = Inputs {
                    tensors: small,
                    x: vec![0.0; tokens.min(32) * weights.cols],
                    tokens: tokens.min(32),
                    precision: INT8,
                    add: false,
                };
                session.case(
                    format_args!("ternary linear {parts:?} x {cols} m={tokens}, {granularity} x{depth}"),
                    |oracle| {
                        let form = TernaryForm { parts: parts.to_vec(), cols, ..inputs.form(device)? };
                        let x = ActivationShape { tokens, cols, precision: INT8 };
                        let problem = TernaryProblem { x, w: form, add: false };
                        let (blueprint, _) = problem.plan(&Strategy::Inferred, device.capabilities())?;
                        inputs.check(oracle, device, &Strategy::Forced(blueprint))
                    },
                );
            }
        }
    }
}

fn tensor(rng: &mut Rng, rows: usize, w: Weights) -> TritTensor {
    let planes: Vec<Vec<i8>> = (0..w.depth).map(|_| rng.trits(rows * w.cols, 0.7)).collect();
    let planes: Vec<&[i8]> = planes.iter().map(Vec::as_slice).collect();
    let places = match w.granularity {
        Granularity::Tensor => 1,
        _ => rows * w.granularity.groups_per_row(w.cols),
    };
    let sets = if w.coupling == Coupling::Free { w.depth } else { 1 };
    let mut numbers = |count: usize, from: f32| -> Vec<f32> {
        // Multiples of 1/64 are exact in f16, thirds are not.
        let unit = if w.precise { 1.0 / 3.0 } else { 1.0 / 64.0 };
        (0..count).map(|_| from + unit * rng.below(16) as f32 / 4.0).collect()
    };
    let values = numbers(places * sets, 0.25);
    let means = w.means.then(|| ScaleValues::exact(&numbers(places, -0.5)));
    let scales = Scales::new(w.granularity, ScaleValues::exact(&values), means);
    TritTensor::from_planes(rows, w.cols, &planes, Encoding::TwoBit, w.coupling, scales)
        .expect("a tensor of the table is well-formed")
}

struct Inputs {
    tensors: Vec<TritTensor>,
    x: Vec<f32>,
    tokens: usize,
    precision: ActivationPrecision,
    add: bool,
}

impl Inputs {
    fn pack(&self, device: &CubeDevice) -> trike_cube::Result<CubeTernaryMatrix> {
        CubeTernaryMatrix::pack(device, &self.tensors.iter().collect::<Vec<_>>())
    }

    fn form(&self, device: &CubeDevice) -> Result<TernaryForm, Failure> {
        Ok(self.pack(device)?.form().clone())
    }

    /// Initial values of the outputs to which products are added.
    fn base(&self, rows: usize) -> Vec<f32> {
        (0..self.tokens * rows).map(|i| (i % 7) as f32 - 3.0).collect()
    }

    /// The quantized activations on the device, and the outputs.
    fn run(
        &self,
        device: &CubeDevice,
        strategy: &Strategy<LinearBlueprint>,
    ) -> Result<(Activations, Vec<Vec<f32>>), Failure> {
        let w = self.pack(device)?;
        let cols = self.tensors[0].cols();
        let shape = ActivationShape { tokens: self.tokens, cols, precision: self.precision };
        let x = Activations::upload(device, shape, &self.x)?;
        let outs = self.tensors.iter().map(|t| match self.add {
            true => device.upload(&self.base(t.rows())),
            false => poisoned(device, self.tokens * t.rows()),
        });
        let outs = outs.collect::<trike_cube::Result<Vec<_>>>()?;
        let out_refs: Vec<_> = outs.iter().collect();
        if self.add {
            device.linear_add(&x, &w, &out_refs, strategy)?;
        } else {
            device.linear(&x, &w, &out_refs, strategy)?;
        }
        let outs = outs.iter().map(|out| device.read(out)).collect::<trike_cube::Result<Vec<_>>>()?;
        Ok((x, outs))
    }

    fn check(&self, oracle: &Oracle, device: &CubeDevice, strategy: &Strategy<LinearBlueprint>) -> Verdict {
        let (x, outs) = self.run(device, strategy)?;
        if !oracle.compares() {
            return Ok(());
        }
        let seen = Seen::read(device, &x)?;
        for (part, (tensor, got)) in self.tensors.iter().zip(&outs).enumerate() {
            let base = self.add.then(|| self.base(tensor.rows()));
            let (exact, plain) = seen.times(tensor, base.as_deref());
            oracle.twice_plain(&format!("output {part}"), got, &exact, &plain, tensor.rows(), 1e-6)?;
        }
        Ok(())
    }
}

/// The dequantized activations of the device.
struct Seen {
    x: Vec<f64>,
    tokens: usize,
    cols: usize,
}

impl Seen {
    fn read(device: &CubeDevice, x: &Activations) -> Result<Self, Failure> {
        let shape = x.shape();
        let (codes, factors) = (device.read(x.codes())?, device.read(x.factors())?);
        let (slices, words) = (shape.precision.slices(), shape.blocks() * (BLOCK / 4));
        let segments = shape.factors() / shape.tokens;
        let mut values = vec![0.0; shape.tokens * shape.cols];
        for (i, value) in values.iter_mut().enumerate() {
            let (token, col) = (i / shape.cols, i % shape.cols);
            for slice in 0..slices {
                let word = codes[(token * slices + slice) * words + ActivationShape::word_of(col / 4 * 4)];
                *value += f64::from(word.to_le_bytes()[col % 4] as i8) * 256f64.powi(slice as i32);
            }
            let factor = if segments == 1 { factors[token] } else { factors[token * segments + col / 32] };
            *value *= f64::from(factor);
        }
        Ok(Self { x: values, tokens: shape.tokens, cols: shape.cols })
    }

    /// The exact products, and those of an f32 loop.
    fn times(&self, tensor: &TritTensor, base: Option<&[f32]>) -> (Vec<f64>, Vec<f32>) {
        let w = tensor.dequantize();
        let mut exact = Vec::with_capacity(self.tokens * tensor.rows());
        let mut plain = Vec::with_capacity(self.tokens * tensor.rows());
        for x in self.x.chunks_exact(self.cols) {
            for w in w.chunks_exact(self.cols) {
                let before = base.map_or(0.0, |base| base[exact.len()]);
                let sum: f64 = x.iter().zip(w).map(|(x, &w)| x * f64::from(w)).sum();
                let plain_sum: f32 = x.iter().zip(w).map(|(&x, &w)| x as f32 * w).sum();
                exact.push(f64::from(before) + sum);
                plain.push(before + plain_sum);
            }
        }
        (exact, plain)
    }
}
