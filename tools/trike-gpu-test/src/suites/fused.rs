//! A row operation and the product with its codes in one launch: equal to the two launches, to the bit.

use trike_cube::fused::{RowLinearBlueprint, RowLinearProblem};
use trike_cube::linear::{
    ActivationPrecision, ActivationShape, Activations, CubeTernaryMatrix, DecodeBlueprint, LinearBlueprint,
    TernaryProblem,
};
use trike_cube::ops::{GatedActivation, RowInput, RowNorm, RowProblem, RowSource, RowTarget};
use trike_cube::{CubeDevice, CubeError, Strategy};
use trike_testkit::Rng;
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, Hadamard, Scales, TritTensor};

use crate::session::{Failure, Oracle, Session, Verdict, poisoned};

/// A case: rows of the parts, columns, planes, scales, source, norm, precision, rotation block, and whether products are added.
#[derive(Clone, Copy, Debug)]
struct Case {
    parts: &'static [usize],
    cols: usize,
    planes: usize,
    coupling: Coupling,
    granularity: Granularity,
    source: RowSource,
    norm: bool,
    precision: ActivationPrecision,
    rotation: usize,
    add: bool,
}

const PLAIN: Case = Case {
    parts: &[33],
    cols: 200,
    planes: 1,
    coupling: Coupling::Free,
    granularity: Granularity::Row,
    source: RowSource::Plain,
    norm: true,
    precision: ActivationPrecision::Int8PerToken,
    rotation: 1,
    add: false,
};

const CASES: &[Case] = &[
    PLAIN,
    Case { parts: &[1], cols: 1, norm: false, ..PLAIN },
    Case { parts: &[40, 8, 24], cols: 1030, add: true, ..PLAIN },
    Case { source: RowSource::Gated(GatedActivation::SiLu), cols: 513, norm: false, add: true, ..PLAIN },
    Case { source: RowSource::Gated(GatedActivation::SquaredReLu), cols: 300, parts: &[17, 5], ..PLAIN },
    Case { cols: 2560, rotation: 512, ..PLAIN },
    Case {
        cols: 700,
        granularity: Granularity::Group(GroupSize::G128),
        precision: ActivationPrecision::Int8PerGroup(GroupSize::G128),
        ..PLAIN
    },
    Case {
        cols: 330,
        planes: 3,
        coupling: Coupling::Tied,
        granularity: Granularity::Group(GroupSize::G64),
        add: true,
        ..PLAIN
    },
    Case { cols: 900, planes: 2, granularity: Granularity::Tensor, ..PLAIN },
    // Few rows of many columns: more groups of units.
    Case { parts: &[16], cols: 4096, ..PLAIN },
];

/// Fused products.
pub fn fused(session: &mut Session) {
    let device = session.device();
    for (seed, case) in CASES.iter().enumerate() {
        let name = format!("{case:?}");
        match case.operands(device, seed as u64) {
            Ok(operands) => {
                let problem = case.problem(&operands.w);
                session.each(name, &problem, |oracle, strategy| operands.check(oracle, case, strategy));
            }
            Err(e) => session.case(name, |_| Err(e)),
        }
    }
    session.case("rows and ternary linear refuses what does not fit", |oracle| refusals(oracle, device));
}

struct Operands<'a> {
    device: &'a CubeDevice,
    w: CubeTernaryMatrix,
    x: [trike_cube::Buffer<f32>; 3],
    before: Vec<Vec<f32>>,
}

impl Case {
    fn operands<'a>(&self, device: &'a CubeDevice, seed: u64) -> Result<Operands<'a>, Failure> {
        let mut rng = Rng::new(seed);
        let mut tensors = Vec::new();
        for &rows in self.parts {
            let planes: Vec<Vec<i8>> = (0..self.planes).map(|_| rng.trits(rows * self.cols, 0.6)).collect();
            let planes: Vec<&[i8]> = planes.iter().map(Vec::as_slice).collect();
            let sets = if self.coupling == Coupling::Free { self.planes } else { 1 };
            let count = self.granularity.count(rows, self.cols).unwrap_or(1);
            let scales = Scales::new(self.granularity, rng.normals(count * sets), None);
            let tensor =
                TritTensor::from_planes(rows, self.cols, &planes, Encoding::TwoBit, self.coupling, scales)
                    .expect("a tensor of the table is well-formed");
            tensors.push(match Hadamard::new(self.rotation) {
                Ok(rotation) if self.rotation > 1 => {
                    tensor.with_rotation(Some(rotation)).expect("whole blocks")
                }
                _ => tensor,
            });
        }
        let w = CubeTernaryMatrix::pack(device, &tensors.iter().collect::<Vec<_>>())?;
        let x = [rng.normals(self.cols), rng.normals(self.cols), rng.normals(self.cols)];
        let [a, b, c] = x.each_ref().map(|values| device.upload(values));
        let before = self.parts.iter().map(|&rows| rng.normals(rows)).collect();
        Ok(Operands { device, w, x: [a?, b?, c?], before })
    }

    fn problem(&self, w: &CubeTernaryMatrix) -> RowLinearProblem {
        let rows = RowProblem {
            rows: 1,
            cols: self.cols,
            source: self.source,
            norm: self.norm,
            target: RowTarget::Codes(self.precision),
            rotation: w.rotation(),
        };
        let x = ActivationShape { tokens: 1, cols: self.cols, precision: self.precision };
        RowLinearProblem { rows, linear: TernaryProblem { x, w: w.form().clone(), add: self.add } }
    }
}

impl Operands<'_> {
    fn outs(&self, add: bool) -> Result<Vec<trike_cube::Buffer<f32>>, Failure> {
        let one = |values: &Vec<f32>| match add {
            true => Ok(self.device.upload(values)?),
            false => Ok(poisoned(self.device, values.len())?),
        };
        self.before.iter().map(one).collect()
    }

    fn check(&self, oracle: &Oracle, case: &Case, strategy: &Strategy<RowLinearBlueprint>) -> Verdict {
        let device = self.device;
        let [x, other, weight] = &self.x;
        let input = match case.source {
            RowSource::Plain => RowInput::Plain(x),
            RowSource::Gated(activation) => RowInput::Gated { gate: x, up: other, activation },
        };
        let norm = case.norm.then_some(RowNorm { weight, eps: 1e-5 });
        let outs = self.outs(case.add)?;
        let got: Vec<_> = outs.iter().collect();
        match case.add {
            true => device.quantized_linear_add(input, norm, case.precision, &self.w, &got, strategy)?,
            false => device.quantized_linear(input, norm, case.precision, &self.w, &got, strategy)?,
        }

        // Squares are added in an order that depends on the units of a cube.
        let (rows, linear) = match *strategy {
            Strategy::Forced(RowLinearBlueprint::Fused { rows, splits }) => (
                Strategy::Forced(rows),
                Strategy::Forced(LinearBlueprint::Decode(DecodeBlueprint { rows: 1, splits })),
            ),
            Strategy::Forced(RowLinearBlueprint::Separate) => (Strategy::Inferred, Strategy::Inferred),
            Strategy::Inferred => return Ok(()),
        };
        let shape = ActivationShape { tokens: 1, cols: case.cols, precision: case.precision };
        let codes = Activations::empty(device, shape)?.with_rotation(self.w.rotation())?;
        device.quantize(input, norm, &codes, &rows)?;
        let separate = self.outs(case.add)?;
        let wanted: Vec<_> = separate.iter().collect();
        match case.add {
            true => device.linear_add(&codes, &self.w, &wanted, &linear)?,
            false => device.linear(&codes, &self.w, &wanted, &linear)?,
        }
        for (part, (got, wanted)) in outs.iter().zip(&separate).enumerate() {
            oracle.exact(&format!("output {part}"), &device.read(got)?, &device.read(wanted)?)?;
        }
        Ok(())
    }
}

fn refusals(oracle: &Oracle, device: &CubeDevice) -> Verdict {
    let operands = PLAIN.operands(device, 1)?;
    let [x, other, weight] = &operands.x;
    let norm = Some(RowNorm { weight, eps: 1e-5 });
    let precision = PLAIN.precision;
    let out = device.upload(&[7.0f32; 33])?;
    let run = |input, norm, outs: &[&_]| {
        device.quantized_linear(input, norm, precision, &operands.w, outs, &Strategy::Inferred)
    };
    let short = x.view(0, 199)?;
    let cut = run(RowInput::Plain(&short), None, &[&out]);
    let differ = RowInput::Gated { gate: x, up: &short, activation: GatedActivation::SiLu };
    let refused = [
        matches!(cut, Err(CubeError::NotMultiple { unit: 200, got: 199, .. })),
        matches!(run(differ, None, &[&out]), Err(CubeError::Length { .. })),
        matches!(
            run(RowInput::Plain(x), Some(RowNorm { weight: &short, eps: 1e-5 }), &[&out]),
            Err(CubeError::Length { expected: 200, got: 199, .. })
        ),
        matches!(
            run(RowInput::Plain(x), Some(RowNorm { weight, eps: f32::NAN }), &[&out]),
            Err(CubeError::NonFinite { .. })
        ),
        matches!(run(RowInput::Plain(x), norm, &[]), Err(CubeError::Length { expected: 1, got: 0, .. })),
        matches!(run(RowInput::Plain(x), norm, &[other]), Err(CubeError::Length { expected: 33, .. })),
    ];
    oracle.exact("refusals", &refused, &[true; 6])?;
    oracle.exact("outputs", &device.read(&out)?, &[7.0; 33])
}
