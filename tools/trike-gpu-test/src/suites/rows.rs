//! Row operations before a linear layer: sums, gates, norms, quantization.

use trike_cube::linear::{ActivationPrecision, ActivationShape, Activations};
use trike_cube::ops::{GatedActivation, RowBlueprint, RowInput, RowNorm, RowProblem, RowSource, RowTarget};
use trike_cube::{CubeDevice, CubeError, KernelProblem, Strategy};
use trike_testkit::Rng;
use trike_trit::{GroupSize, Hadamard};

use crate::session::{Oracle, Session, Verdict, poisoned};

const EPS: f32 = 1e-5;

const NORMED: &[(usize, usize, RowSource)] = &[
    (1, 1, RowSource::Plain),
    (3, 4, RowSource::Plain),
    (7, 64, RowSource::Plain),
    (2, 130, RowSource::Plain),
    (5, 260, RowSource::Plain),
    (1, 2564, RowSource::Plain),
    (2, 1028, RowSource::Gated(GatedActivation::SiLu)),
    (2, 1028, RowSource::Gated(GatedActivation::SquaredReLu)),
];

const INT8: ActivationPrecision = ActivationPrecision::Int8PerToken;
const PLAIN: RowSource = RowSource::Plain;

const CODED: &[(usize, usize, RowSource, bool, ActivationPrecision)] = &[
    (1, 1, PLAIN, false, INT8),
    (3, 127, PLAIN, false, INT8),
    (2, 128, PLAIN, false, INT8),
    (2, 2564, PLAIN, false, INT8),
    (4, 200, PLAIN, false, ActivationPrecision::F32),
    (2, 300, PLAIN, false, ActivationPrecision::Int16),
    (2, 300, PLAIN, false, ActivationPrecision::Int8PerGroup(GroupSize::G32)),
    (2, 520, PLAIN, false, ActivationPrecision::Int8PerGroup(GroupSize::G256)),
    (3, 388, PLAIN, true, INT8),
    (2, 260, PLAIN, true, INT8),
    (2, 133, PLAIN, false, INT8),
    (2, 388, RowSource::Gated(GatedActivation::SquaredReLu), true, INT8),
    (2, 388, RowSource::Gated(GatedActivation::SiLu), false, INT8),
    (2, 260, PLAIN, true, ActivationPrecision::F32),
    (
        2,
        260,
        RowSource::Gated(GatedActivation::SiLu),
        false,
        ActivationPrecision::Int8PerGroup(GroupSize::G64),
    ),
];

/// Rows, columns, source, norm, precision and block of the rotation.
type Rotated = (usize, usize, RowSource, bool, ActivationPrecision, usize);

const ROTATED: &[Rotated] = &[
    (2, 130, PLAIN, false, INT8, 2),
    (3, 172, PLAIN, false, INT8, 4),
    (2, 136, PLAIN, true, ActivationPrecision::F32, 8),
    (2, 384, PLAIN, false, ActivationPrecision::F32, 128),
    (3, 1536, RowSource::Gated(GatedActivation::SquaredReLu), true, INT8, 512),
    (2, 1024, RowSource::Gated(GatedActivation::SiLu), false, INT8, 256),
    (2, 256, PLAIN, true, ActivationPrecision::Int8PerGroup(GroupSize::G64), 256),
    (2, 256, PLAIN, false, ActivationPrecision::Int8PerGroup(GroupSize::G64), 256),
    (2, 256, RowSource::Gated(GatedActivation::SquaredReLu), true, INT8, 256),
    (1, 192, PLAIN, false, ActivationPrecision::Int8PerGroup(GroupSize::G32), 64),
    (1, 2048, PLAIN, false, ActivationPrecision::Int16, 1024),
];

/// Norms and quantization with every source of rows.
pub fn rows(session: &mut Session) {
    let device = session.device();
    for (seed, &(rows, cols, source)) in NORMED.iter().enumerate() {
        let problem =
            RowProblem { rows, cols, source, norm: true, target: RowTarget::Floats, rotation: None };
        let case = Case::new(seed, rows, cols, source, true);
        session.each(format_args!("{rows}x{cols} {source:?}, norm"), &problem, |oracle, strategy| {
            case.norm(oracle, device, strategy)
        });
    }
    for (seed, &(rows, cols, source, norm, precision)) in CODED.iter().enumerate() {
        let target = RowTarget::Codes(precision);
        let problem = RowProblem { rows, cols, source, norm, target, rotation: None };
        let case = Case::new(100 + seed, rows, cols, source, norm);
        let name = format!("{rows}x{cols} {source:?}, norm {norm}, {precision:?}");
        session
            .each(name, &problem, |oracle, strategy| case.codes(oracle, device, strategy, precision, None));
    }
    for (seed, &(rows, cols, source, norm, precision, block)) in ROTATED.iter().enumerate() {
        let rotation = Hadamard::new(block).ok();
        let problem = RowProblem { rows, cols, source, norm, target: RowTarget::Codes(precision), rotation };
        let case = Case::new(200 + seed, rows, cols, source, norm);
        let name = format!("{rows}x{cols} {source:?}, norm {norm}, {precision:?}, rotated in {block}");
        session.each(name, &problem, |oracle, strategy| {
            case.codes(oracle, device, strategy, precision, rotation)
        });
    }
    refusals(session);
}

/// Model shapes: the inferred blueprints, on small buffers.
pub fn shapes(session: &mut Session) {
    let device = session.device();
    let relu = RowSource::Gated(GatedActivation::SquaredReLu);
    let silu = RowSource::Gated(GatedActivation::SiLu);
    let group = ActivationPrecision::Int8PerGroup(GroupSize::G128);
    for (rows, cols) in [(1, 128), (1, 2560), (1, 6912), (2048, 2560), (1, 28_672)] {
        for (source, norm, precision) in [
            (PLAIN, true, INT8),
            (PLAIN, false, INT8),
            (relu, true, INT8),
            (silu, false, INT8),
            (silu, false, group),
        ] {
            let target = RowTarget::Codes(precision);
            let large = RowProblem { rows, cols, source, norm, target, rotation: None };
            session.case(
                format_args!("rows {rows}x{cols} {source:?}, norm {norm}, {precision:?}"),
                |oracle| {
                    let (blueprint, _) = large.plan(&Strategy::Inferred, device.capabilities())?;
                    Case::new(1, 2, 260, source, norm).codes(
                        oracle,
                        device,
                        &Strategy::Forced(blueprint),
                        precision,
                        None,
                    )
                },
            );
        }
        let large =
            RowProblem { rows, cols, source: PLAIN, norm: true, target: RowTarget::Floats, rotation: None };
        session.case(format_args!("rows {rows}x{cols}, norm"), |oracle| {
            let (blueprint, _) = large.plan(&Strategy::Inferred, device.capabilities())?;
            Case::new(1, 2, 260, PLAIN, true).norm(oracle, device, &Strategy::Forced(blueprint))
        });
    }
}

/// Inputs of a case.
struct Case {
    rows: usize,
    cols: usize,
    source: RowSource,
    norm: bool,
    x: Vec<f32>,
    other: Vec<f32>,
    weight: Vec<f32>,
}

impl Case {
    fn new(seed: usize, rows: usize, cols: usize, source: RowSource, norm: bool) -> Self {
        let mut rng = Rng::new(seed as u64);
        let mut x = rng.normals(rows * cols);
        if rows > 2 {
            // A row of zeros.
            x[cols..2 * cols].fill(0.0);
        }
        Self { rows, cols, source, norm, x, other: rng.normals(rows * cols), weight: rng.normals(cols) }
    }

    /// The rows before the norm, in f32, with the rounding of the operation.
    fn joined(&self) -> Vec<f32> {
        let pairs = self.x.iter().zip(&self.other);
        match self.source {
            RowSource::Plain => self.x.clone(),
            RowSource::Gated(GatedActivation::SquaredReLu) => {
                pairs.map(|(&g, up)| g.max(0.0) * g.max(0.0) * up).collect()
            }
            RowSource::Gated(GatedActivation::SiLu) => {
                pairs.map(|(&g, up)| (f64::from(g) / (1.0 + f64::from(-g).exp())) as f32 * up).collect()
            }
        }
    }

    /// The normalized rows, in f64 and by an f32 loop.
    fn normed(&self) -> (Vec<f64>, Vec<f32>) {
        let (mut exact, mut plain) = (Vec::new(), Vec::new());
        for row in self.joined().chunks(self.cols) {
            let mean = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / self.cols as f64;
            let factor = 1.0 / (mean + f64::from(EPS)).sqrt();
            exact.extend(row.iter().zip(&self.weight).map(|(&v, &w)| f64::from(v) * factor * f64::from(w)));
            let mean = row.iter().map(|v| v * v).sum::<f32>() / self.cols as f32;
            let factor = 1.0 / (mean + EPS).sqrt();
            plain.extend(row.iter().zip(&self.weight).map(|(v, w)| v * factor * w));
        }
        (exact, plain)
    }

    /// Calls `run` with the input and the norm on the device, and checks that the input is unchanged.
    fn with(
        &self,
        oracle: &Oracle,
        device: &CubeDevice,
        run: impl FnOnce(RowInput<'_>, Option<RowNorm<'_>>) -> trike_cube::Result<()>,
    ) -> Verdict {
        let (x, other) = (device.upload(&self.x)?, device.upload(&self.other)?);
        let weight = device.upload(&self.weight)?;
        let input = match self.source {
            RowSource::Plain => RowInput::Plain(&x),
            RowSource::Gated(activation) => RowInput::Gated { gate: &x, up: &other, activation },
        };
        run(input, self.norm.then_some(RowNorm { weight: &weight, eps: EPS }))?;
        oracle.exact("input, which is only read", &device.read(&x)?, &self.x)
    }

    fn norm(&self, oracle: &Oracle, device: &CubeDevice, strategy: &Strategy<RowBlueprint>) -> Verdict {
        let out = poisoned(device, self.rows * self.cols)?;
        self.with(oracle, device, |input, norm| {
            device.rms_norm(input, norm.expect("a norm"), &out, strategy)
        })?;
        let (exact, plain) = self.normed();
        oracle.twice_plain("normed", &device.read(&out)?, &exact, &plain, self.cols, 3e-7)
    }

    fn codes(
        &self,
        oracle: &Oracle,
        device: &CubeDevice,
        strategy: &Strategy<RowBlueprint>,
        precision: ActivationPrecision,
        rotation: Option<Hadamard>,
    ) -> Verdict {
        let shape = ActivationShape { tokens: self.rows, cols: self.cols, precision };
        let poison = vec![f32::NAN; self.rows * self.cols];
        let out = Activations::upload(device, shape, &poison)?.with_rotation(rotation)?;
        device.write(out.codes(), &vec![0xdead_beef; shape.code_words()])?;
        device.write(out.sums(), &vec![-77; shape.code_rows() * shape.sum_stride()])?;
        device.write(out.factors(), &vec![f32::NAN; shape.factors()])?;
        self.with(oracle, device, |input, norm| device.quantize(input, norm, &out, strategy))?;
        // The oracle quantizes the float output of the same stages, so its codes must be bit-identical to the
        // device's.
        let mut floats = if self.norm {
            let normed = poisoned(device, self.rows * self.cols)?;
            // In the blueprint of the kernel that is tested: another number of units sums the squares in another order, and the
            // factor of the norm may then differ in its last bit.
            let (source, target) = (self.source, RowTarget::Codes(precision));
            let problem =
                RowProblem { rows: self.rows, cols: self.cols, source, norm: true, target, rotation };
            let (blueprint, _) = problem.plan(strategy, device.capabilities())?;
            self.with(oracle, device, |input, norm| {
                device.rms_norm(input, norm.expect("a norm"), &normed, &Strategy::Forced(blueprint))
            })?;
            device.read(&normed)?
        } else {
            self.joined()
        };
        if !oracle.compares() {
            return Ok(());
        }
        if let Some(rotation) = rotation {
            rotation.apply(&mut floats).expect("whole blocks");
        }
        let want = Activations::upload(device, shape, &floats)?;
        if self.source == RowSource::Gated(GatedActivation::SiLu) {
            // The gate may differ from the oracle's in the last bit: codes by one, factors accordingly.
            let factors = device.read(want.factors())?.iter().map(|&f| f64::from(f)).collect::<Vec<_>>();
            let largest = factors.iter().fold(0.0f64, |m, f| m.max(*f));
            oracle.within("factors", &device.read(out.factors())?, &factors, 1e-6 * largest)?;
            let sums = |a: &Activations| -> Result<Vec<f32>, CubeError> {
                Ok(device.read(a.sums())?.iter().map(|&s| s as f32).collect())
            };
            let exact: Vec<f64> = sums(&want)?.iter().map(|&s| f64::from(s)).collect();
            oracle.within("sums", &sums(&out)?, &exact, 2.0)?;
            // The dequantized values may differ by one step of the coarsest factor, plus the difference of the gates.
            let values = |a: &Activations| -> Result<Vec<f32>, CubeError> {
                Ok(dequantized(&shape, &device.read(a.codes())?, &device.read(a.factors())?))
            };
            let exact: Vec<f64> = values(&want)?.iter().map(|&v| f64::from(v)).collect();
            let most = exact.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            return oracle.within("codes", &values(&out)?, &exact, 1.001 * largest + 1e-6 * most);
        }
        oracle.exact("codes", &device.read(out.codes())?, &device.read(want.codes())?)?;
        oracle.exact("sums", &device.read(out.sums())?, &device.read(want.sums())?)?;
        oracle.exact("factors", &device.read(out.factors())?, &device.read(want.factors())?)
    }
}

/// Dequantizes codes: each digit of a column is in its own row of codes, the lowest first, four columns per word.
fn dequantized(shape: &ActivationShape, codes: &[u32], factors: &[f32]) -> Vec<f32> {
    let (slices, blocks) = (shape.precision.slices(), shape.cols.div_ceil(128));
    let places = (0..shape.tokens).flat_map(|row| (0..shape.cols).map(move |col| (row, col)));
    let values = places.map(|(row, col)| {
        let quad = col / 4;
        let place = quad / 32 * 32 + quad % 4 * 8 + quad % 32 / 8 * 2 + quad % 8 / 4;
        let code = (0..slices).rev().fold(0i64, |code, slice| {
            let word = codes[(row * slices + slice) * blocks * 32 + place];
            code * 256 + i64::from(word.to_le_bytes()[col % 4] as i8)
        });
        let factor = if shape.precision.group().is_some() { row * blocks * 4 + col / 32 } else { row };
        (code as f64 * f64::from(factors[factor])) as f32
    });
    values.collect()
}

fn refusals(session: &mut Session) {
    let device = session.device();
    session.case("rows refuse what does not fit", |oracle| {
        let x = device.upload(&[1.0f32; 24])?;
        let weight = device.upload(&[1.0f32; 8])?;
        let norm = RowNorm { weight: &weight, eps: EPS };
        let plain = RowInput::Plain(&x);
        let out = poisoned(device, 24)?;
        let strategy = &Strategy::Inferred;
        for wrong in [23, 25] {
            let out = poisoned(device, wrong)?;
            let refused = device.rms_norm(plain, norm, &out, strategy);
            oracle.refused("output", refused, |e| matches!(e, CubeError::Length { expected: 24, .. }))?;
            let activation = GatedActivation::SiLu;
            let other = RowInput::Gated { gate: &x, up: &out, activation };
            let refused = device.rms_norm(other, norm, &out, strategy);
            oracle.refused("up", refused, |e| matches!(e, CubeError::Length { expected: 24, .. }))?;
        }
        let odd = device.upload(&[1.0f32; 7])?;
        let refused = device.rms_norm(plain, RowNorm { weight: &odd, eps: EPS }, &out, strategy);
        oracle
            .refused("weight", refused, |e| matches!(e, CubeError::NotMultiple { unit: 7, got: 24, .. }))?;
        for eps in [-1e-9, f32::NAN, f32::INFINITY] {
            let refused = device.rms_norm(plain, RowNorm { weight: &weight, eps }, &out, strategy);
            oracle.refused("eps", refused, |e| matches!(e, CubeError::NonFinite { .. }))?;
        }
        oracle.refused("in place", device.rms_norm(plain, norm, &x, strategy), |e| {
            matches!(e, CubeError::Overlap { .. })
        })?;
        for units in [48, 16] {
            let odd = RowBlueprint { units, planes: false, lanes: 4 };
            let refused = device.rms_norm(plain, norm, &out, &Strategy::Forced(odd));
            oracle.refused("units", refused, |e| matches!(e, CubeError::NotMultiple { .. }))?;
        }
        let shape = ActivationShape { tokens: 3, cols: 8, precision: INT8 };
        let refused = Activations::empty(device, shape)?.with_rotation(Hadamard::new(16).ok());
        oracle.refused("blocks", refused.map(|_| ()), |e| {
            matches!(e, CubeError::NotMultiple { unit: 16, got: 8, .. })
        })?;
        let shape = ActivationShape { tokens: 3, cols: 7, precision: INT8 };
        let codes = Activations::empty(device, shape)?;
        oracle.refused("codes", device.quantize(plain, None, &codes, strategy), |e| {
            matches!(e, CubeError::NotMultiple { unit: 7, .. })
        })
    });
    session.case("values whose products are next to a half get the host's codes", |oracle| {
        // The product rounds to a half, which then rounds to even; a fused multiply-add would round once, to the other
        // side.
        let (largest, mut row) = (3.7f32, Vec::new());
        let scale = 127.0 / largest;
        for k in 0..126u8 {
            let half = f32::from(k) + 0.5;
            let near = (half / scale).to_bits();
            row.extend((near - 4..near + 4).map(f32::from_bits).filter(|v| {
                let exact = f64::from(*v) * f64::from(scale);
                let once = exact > f64::from(half);
                v * scale == half && exact != f64::from(half) && once == (k % 2 == 0)
            }));
        }
        row.extend(row.clone().iter().map(|v| -v));
        row.push(largest);
        assert!(row.len() > 20, "values that distinguish one rounding from two");
        let shape = ActivationShape { tokens: 1, cols: row.len(), precision: INT8 };
        let out = Activations::upload(device, shape, &vec![1.0; row.len()])?;
        device.quantize(RowInput::Plain(&device.upload(&row)?), None, &out, &Strategy::Inferred)?;
        let want = Activations::upload(device, shape, &row)?;
        oracle.exact("codes", &device.read(out.codes())?, &device.read(want.codes())?)
    });
    session.case("rows with what is not finite get the factor NaN", |oracle| {
        for (precision, bad) in [(INT8, f32::NAN), (ActivationPrecision::F32, f32::INFINITY)] {
            let mut x = vec![1.0; 80];
            x[50] = bad;
            let shape = ActivationShape { tokens: 2, cols: 40, precision };
            let out = Activations::empty(device, shape)?;
            device.quantize(RowInput::Plain(&device.upload(&x)?), None, &out, &Strategy::Inferred)?;
            let nan: Vec<bool> = device.read(out.factors())?.iter().map(|f| f.is_nan()).collect();
            oracle.exact("factors that are no number", &nan, &[false, true])?;
        }
        // Finite, but its square overflows.
        let x = device.upload(&[1.0f32, 3e19, 1.0, 1.0])?;
        let shape = ActivationShape { tokens: 1, cols: 4, precision: INT8 };
        let out = Activations::empty(device, shape)?;
        let ones = device.upload(&[1.0f32; 4])?;
        let norm = Some(RowNorm { weight: &ones, eps: EPS });
        device.quantize(RowInput::Plain(&x), norm, &out, &Strategy::Inferred)?;
        let nan = device.read(out.factors())?[0].is_nan();
        oracle.exact("a factor of squares that overflow", &[nan], &[true])
    });
}
