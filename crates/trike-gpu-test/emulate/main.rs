mod emu;
use trike_cube::linear::*;
use trike_cube::{Device, DeviceOptions, DeviceSpec, Plan, Runtime, Strategy};
use trike_gpu_test::{Session, suites};
use trike_testkit::Rng;
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, ScaleValues, Scales, TritTensor};
use ActivationPrecision as P;

#[derive(Clone, Copy, Debug)]
struct Kind { gran: Granularity, depth: usize, tied: bool, means: bool, halves: bool, precision: P, parts: usize, add: bool }

const fn gr(s: GroupSize) -> Granularity { Granularity::Group(s) }
const I8: P = P::Int8PerToken;
const fn xg(s: GroupSize) -> P { P::Int8PerGroup(s) }
const fn k(gran: Granularity, depth: usize, tied: bool, means: bool, halves: bool, precision: P, parts: usize, add: bool) -> Kind { Kind { gran, depth, tied, means, halves, precision, parts, add } }
use GroupSize::{G32, G64, G128, G256};
use Granularity::{Row, Tensor};
const KINDS: &[Kind] = &[
    k(Row, 1, false, false, false, I8, 1, false),
    k(gr(G64), 1, false, true, true, I8, 2, true),
    k(Row, 1, false, false, true, P::F16, 3, true),
    k(gr(G128), 3, true, false, false, I8, 3, false),
    k(Row, 5, true, false, false, I8, 1, true),
    k(Row, 2, false, true, true, P::F32, 1, false),
    k(gr(G32), 1, false, false, true, xg(G32), 2, false),
    k(Tensor, 1, false, false, true, I8, 3, true),
    k(gr(G32), 2, false, true, false, P::F32, 1, true),
    k(Row, 1, false, false, false, P::F32, 2, false),
    k(gr(G128), 1, false, false, true, I8, 1, false),
    k(Row, 1, false, true, false, I8, 1, false),
    k(gr(G64), 5, true, false, false, P::F16, 1, false),
    k(Row, 1, false, false, false, xg(G128), 1, true),
    k(gr(G256), 1, false, false, true, I8, 1, false),
    k(Row, 2, true, false, false, I8, 2, false),
    k(gr(G64), 2, false, false, true, xg(G128), 1, false),
    k(Row, 6, true, false, false, I8, 1, false),
    k(gr(G128), 1, false, true, false, xg(G64), 3, false),
    k(Row, 2, false, false, false, P::F16, 1, false),
    k(Tensor, 3, true, false, false, P::F32, 1, false),
    k(gr(G128), 5, true, true, false, xg(G32), 1, false),
];

fn shape(tiles: usize, octets: usize, splits: usize) -> MmaShape {
    if splits > 0 { MmaShape { tiles: 1, octets, row_planes: 1, code_planes: 1, splits, staged: false } }
    else { MmaShape { tiles, octets, row_planes: 2, code_planes: 4, splits: 1, staged: true } }
}

struct W { planes: Vec<Vec<i8>>, values: Vec<f32>, means: Option<Vec<f32>>, tensor: TritTensor, rows: usize }

fn weights(rng: &mut Rng, rows: usize, cols: usize, kd: Kind) -> W {
    let mut planes: Vec<Vec<i8>> = (0..kd.depth).map(|_| rng.trits(rows * cols, 0.7)).collect();
    for p in &mut planes {
        p[..cols].fill(1);
        if rows > 1 { p[cols..2 * cols].fill(-1); }
        if rows > 3 { p[(rows - 1) * cols..].fill(1); }
    }
    let places = match kd.gran { Granularity::Tensor => 1, g => rows * g.groups_per_row(cols) };
    let sets = if kd.tied { 1 } else { kd.depth };
    let mut numbers = |n: usize, from: f32| -> Vec<f32> { (0..n).map(|_| if kd.halves { from + rng.below(64) as f32 / 64.0 } else { from + rng.f32_unit() }).collect() };
    let values = numbers(places * sets, 0.25);
    let means = kd.means.then(|| numbers(places, -0.5));
    let of = |v: &[f32]| if kd.halves { ScaleValues::exact(v) } else { ScaleValues::F32(v.to_vec()) };
    let scales = Scales::new(kd.gran, of(&values), means.as_deref().map(of));
    let refs: Vec<&[i8]> = planes.iter().map(Vec::as_slice).collect();
    let tensor = TritTensor::from_planes(rows, cols, &refs, Encoding::TwoBit, if kd.tied { Coupling::Tied } else { Coupling::Free }, scales).expect("tensor");
    W { planes, values, means, tensor, rows }
}

/// Digits of the activations, [token][slice][col], and factors by token or by [token][segment].
struct X { digits: Vec<i8>, factors: Vec<f32>, tokens: usize, slices: usize, cols: usize, segments: usize, group: usize }

fn activations(rng: &mut Rng, tokens: usize, cols: usize, p: P) -> X {
    let slices = p.slices();
    let segments = cols.div_ceil(128) * 4;
    let group = p.group().unwrap_or(0);
    let mut digits = vec![0i8; tokens * slices * cols];
    for t in 0..tokens {
        let mode = if tokens < 3 { 0 } else { t % 7 };
        for s in 0..slices {
            for c in 0..cols {
                digits[(t * slices + s) * cols + c] = match mode {
                    1 => -128,
                    2 => 127,
                    3 if s > 0 => 0,
                    4 if s > 1 => 0,
                    _ => rng.below(256) as u8 as i8,
                };
            }
        }
    }
    let factor = |rng: &mut Rng| (0.5 + rng.f32_unit()) / 64.0;
    let factors = if group == 0 { (0..tokens).map(|_| factor(rng)).collect() } else {
        let mut f = vec![0.0; tokens * segments];
        for t in 0..tokens { for g in 0..(segments * 32).div_ceil(group) {
            let v = factor(rng);
            for s in 0..segments { if s * 32 / group == g { f[t * segments + s] = if s * 32 >= cols { 1e30 } else { v }; } }
        } }
        f
    };
    X { digits, factors, tokens, slices, cols, segments, group }
}

/// Written from the documentation of the layout.
fn upload(device: &Device, x: &X, p: P) -> Activations {
    let shape = ActivationShape { tokens: x.tokens, cols: x.cols, precision: p };
    let a = Activations::empty(device, shape).expect("activations");
    let blocks = x.cols.div_ceil(128);
    let rows = x.tokens * x.slices;
    let mut codes = vec![0u32; rows * blocks * 32];
    let mut sums = vec![0i32; rows * (blocks * 4 + 4)];
    for r in 0..rows { for c in 0..x.cols {
        let d = x.digits[r * x.cols + c];
        let (b, i, h, t, byte) = (c / 128, c % 128 / 32, c % 32 / 16, c % 16 / 4, c % 4);
        codes[r * blocks * 32 + b * 32 + t * 8 + i * 2 + h] |= u32::from(d as u8) << (8 * byte);
        sums[r * (blocks * 4 + 4) + c / 32] += i32::from(d);
        sums[r * (blocks * 4 + 4) + blocks * 4] += i32::from(d);
    } }
    device.write(a.codes(), &codes).unwrap();
    device.write(a.sums(), &sums).unwrap();
    device.write(a.factors(), &x.factors).unwrap();
    a
}

struct Want { exact: f64, magnitude: f64, bits: Option<f32> }

fn oracle(w: &W, kd: Kind, x: &X, token: usize, row: usize, base: f32) -> Want {
    let cols = x.cols;
    let (sets, planes) = if !kd.tied { (kd.depth, 1) } else if kd.depth <= 5 { (1, kd.depth) } else { (2, kd.depth / 2) };
    let glen = match kd.gran { Granularity::Group(s) => s.get(), _ => cols };
    let groups = cols.div_ceil(glen);
    let place = |g: usize| match kd.gran { Granularity::Tensor => 0, _ => row * groups + g };
    let (mut exact, mut magnitude) = (0.0f64, 0.0f64);
    let mut whole = 0i64;
    for segment in 0..cols.div_ceil(32) {
        let g = segment * 32 / glen;
        let g = if groups == 1 { 0 } else { g };
        let factor = f64::from(if x.group == 0 { x.factors[token] } else { x.factors[token * x.segments + segment] });
        let range = segment * 32..(segment * 32 + 32).min(cols);
        let value = |c: usize| -> i64 { (0..x.slices).map(|s| i64::from(x.digits[(token * x.slices + s) * cols + c]) * 256i64.pow(s as u32)).sum() };
        for set in 0..sets {
            let int: i64 = range.clone().map(|c| {
                let folded = (0..planes).fold(0i64, |f, p| 3 * f + i64::from(w.planes[set * planes + p][row * cols + c]));
                folded * value(c)
            }).sum();
            whole += int;
            let scale = if kd.tied { w.values[place(g)] / 3f32.powi((set * planes + planes - 1) as i32) } else { w.values[set * (w.values.len() / kd.depth) + place(g)] };
            let term = int as f64 * f64::from(scale) * factor;
            exact += term;
            magnitude += term.abs();
        }
        if let Some(means) = &w.means {
            let sum: i64 = range.clone().map(value).sum();
            let term = sum as f64 * f64::from(means[place(g)]) * factor;
            exact += term;
            magnitude += term.abs();
        }
    }
    let plain = sets == 1 && w.means.is_none() && groups == 1 && !matches!(kd.gran, Granularity::Group(_)) && x.group == 0 && x.slices == 1;
    let bits = plain.then(|| {
        let scale = if kd.tied { w.values[place(0)] / 3f32.powi(planes as i32 - 1) } else { w.values[place(0)] };
        let y = (whole as i32) as f32 * scale * x.factors[token];
        if kd.add { base + y } else { y }
    });
    let base = if kd.add { f64::from(base) } else { 0.0 };
    Want { exact: exact + base, magnitude: magnitude + base.abs(), bits }
}

struct Totals { cases: usize, failed: Vec<String>, numbers: usize, exact: usize, worst: f64 }

fn case(device: &Device, state: &emu::Shared, totals: &mut Totals, kd: Kind, shape: MmaShape, rows: &[usize], cols: usize, tokens: usize) {
    let name = format!("{shape:?} {kd:?} rows {rows:?} cols {cols} tokens {tokens}");
    let mut rng = Rng::new(totals.cases as u64 * 77 + cols as u64);
    let w: Vec<W> = rows.iter().map(|&r| weights(&mut rng, r, cols, kd)).collect();
    let x = activations(&mut rng, tokens, cols, kd.precision);
    let m = TernaryMatrix::pack(device, &w.iter().map(|w| &w.tensor).collect::<Vec<_>>()).expect("packed");
    let a = upload(device, &x, kd.precision);
    let base = |i: usize| (i % 13) as f32 * 0.75 - 4.0;
    let outs: Vec<_> = w.iter().map(|w| {
        let n = tokens * w.rows;
        let v: Vec<f32> = (0..n).map(|i| if kd.add { base(i) } else { f32::NAN }).collect();
        device.upload(&v).unwrap()
    }).collect();
    let refs: Vec<_> = outs.iter().collect();
    let strategy = Strategy::Forced(LinearBlueprint::Mma(shape));
    totals.cases += 1;
    let done = if kd.add { device.linear_add(&a, &m, &refs, &strategy) } else { device.linear(&a, &m, &refs, &strategy) };
    if let Err(e) = done { totals.failed.push(format!("{name}: {e}")); return; }
    let mut bad = Vec::new();
    for (part, (w, out)) in w.iter().zip(&outs).enumerate() {
        let got = device.read(out).unwrap();
        for token in 0..tokens { for row in 0..w.rows {
            let at = token * w.rows + row;
            let want = oracle(w, kd, &x, token, row, base(at));
            totals.numbers += 1;
            if let Some(bits) = want.bits {
                totals.exact += 1;
                if bits.to_bits() != got[at].to_bits() && bits != got[at] { bad.push(format!("part {part} token {token} row {row}: {} expected {bits} exactly", got[at])); }
            } else {
                let off = (f64::from(got[at]) - want.exact).abs() / want.magnitude.max(1e-30);
                if off > totals.worst { totals.worst = off; }
                if !(off <= 1e-6) && !(want.exact == 0.0 && got[at] == 0.0) { bad.push(format!("part {part} token {token} row {row}: {} expected {} off {off:e}", got[at], want.exact)); }
            }
        } }
    }
    let mut s = state.lock().unwrap();
    for f in s.failures.drain(..) { bad.insert(0, f); }
    drop(s);
    if !bad.is_empty() { let line = format!("{name}: {} bad, first: {}", bad.len(), bad[..bad.len().min(3)].join("; ")); println!("FAIL {line}"); totals.failed.push(line); }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (client, state) = emu::client();
    let device = Device::over(client, DeviceSpec::Numbered(Runtime::Cuda, 0), false, DeviceOptions::default());
    let start = std::time::Instant::now();
    if args[1] == "suite" {
        let filter = args.get(3).map(String::as_str);
        let mut session = Session::new(&device).filtered(filter);
        match args[2].as_str() {
            "linear" => suites::linear::linear(&mut session),
            "matrices" => suites::matrices::matrices(&mut session),
            "rows" => suites::rows::rows(&mut session),
            "elementwise" => suites::elementwise::elementwise(&mut session),
            "sampling" => suites::sampling::sampling(&mut session),
            "attention" => suites::attention::attention(&mut session),
            "probe" => suites::probe::probe(&mut session),
            other => panic!("{other}"),
        }
        let tally = session.finish();
        for (c, f) in tally.failures() { println!("FAILED {c}: {f}"); }
        for (r, c) in tally.skips() { println!("{c} skipped: {r}"); }
        println!("{tally}");
        let s = state.lock().unwrap();
        for f in &s.failures { println!("EMU {}", f.chars().take(900).collect::<String>()); }
        println!("{:?}; launches {} failures {} built {} compile {:.0?} run {:.0?} total {:.0?}", s.kernels, s.launches, s.failures.len(), s.built, s.compile, s.run, start.elapsed());
        return;
    }
    if args[1] == "shapes" {
        // What the plan infers for models and for the sizes around them.
        let mut seen = std::collections::BTreeMap::new();
        for parts in [vec![1usize], vec![16], vec![640], vec![2560], vec![6912, 6912], vec![2560, 640, 640], vec![14336], vec![128256]] {
            for cols in [1, 128, 200, 256, 512, 1024, 2048, 2560, 6912, 14336, 131072] {
                for slices in [P::Int8PerToken, P::F16, P::F32] {
                    for tokens in (1..140).chain([256, 512, 1024, 2048, 4096, 8192]) {
                        let w = TernaryForm { parts: parts.clone(), cols, group: None, sets: 1, planes: 1, means: false, halves: false, layout: TernaryLayout::TwoBit, stored: 0 };
                        let stored = w.tiles() * w.steps();
                        let problem = LinearProblem { x: ActivationShape { tokens, cols, precision: slices }, w: TernaryForm { stored, ..w }, add: false };
                        for c in problem.candidates(device.capabilities()) { if let LinearBlueprint::Mma(s) = c { *seen.entry(format!("{s:?}")).or_insert(0) += 1; } }
                    }
                }
            }
        }
        for (s, n) in seen { println!("{n:6} {s}"); }
        return;
    }
    // table FIRST_KIND..LAST_KIND SHAPES
    let (from, to): (usize, usize) = (args[2].parse().unwrap(), args[3].parse().unwrap());
    let mut totals = Totals { cases: 0, failed: Vec::new(), numbers: 0, exact: 0, worst: 0.0 };
    for kd in &KINDS[from..to.min(KINDS.len())] {
        for which in args[4].split(',') {
            let n: Vec<usize> = which.split('x').map(|v| v.parse().unwrap()).collect();
            let shape = shape(n[0], n[1], n[2]);
            let slices = kd.precision.slices();
            // Sizes: (rows of the parts, columns, tokens).
            let code = |rows: usize| (rows.div_ceil(slices)).max(1);
            let sizes: Vec<(Vec<usize>, usize, usize)> = if shape.staged {
                let side = 32 * shape.tiles;
                vec![(vec![side + 17, 8, 33], 520, code(133)), (vec![side - 5, 40, 1], 130, code(35)), (vec![2 * side, 16, 16], 256, code(128)), (vec![7, 1, 2], 31, code(67))]
            } else {
                let wide = 8 * shape.octets;
                vec![(vec![33, 8, 24], 1030, code(wide)), (vec![16, 31, 1], 385, code(wide - 3)), (vec![48, 16, 16], 256 * shape.splits, code(wide + 3)), (vec![1, 2, 3], 90, code(3))]
            };
            for (rows, cols, tokens) in sizes { case(&device, &state, &mut totals, *kd, shape, &rows[..kd.parts], cols, tokens); }
        }
        let s = state.lock().unwrap();
        println!("{kd:?}: cases {} numbers {} exact {} worst {:.2e} failed {} launches {} built {} compile {:.0?} run {:.0?} total {:.0?}", totals.cases, totals.numbers, totals.exact, totals.worst, totals.failed.len(), s.launches, s.built, s.compile, s.run, start.elapsed());
    }
}
