//! Hypervectors: binding, rotation, bundling, scores and search.

use trike_cube::vsa::{CombineProblem, Decision, OneWay, PermuteProblem, TritOp};
use trike_cube::{CubeDevice, CubeError, KernelProblem, Strategy, TritDotProblem, TritScore, TritTable};
use trike_testkit::Rng;
use trike_trit::TritError;

use crate::session::Session;

/// Below, at and above a word and a step; several steps.
const COLS: [usize; 7] = [1, 31, 32, 127, 129, 300, 1000];

/// Trits, and their bit planes.
struct Rows {
    cols: usize,
    trits: Vec<i8>,
    planes: Vec<[Vec<u64>; 2]>,
}

impl Rows {
    fn random(rng: &mut Rng, rows: usize, cols: usize) -> Self {
        Self::of(rng.trits(rows * cols, 0.6), cols)
    }

    fn of(trits: Vec<i8>, cols: usize) -> Self {
        let plane = |row: &[i8], sign: i8| -> Vec<u64> {
            let word = |word: &[i8]| word.iter().rev().fold(0, |bits, &t| bits << 1 | u64::from(t == sign));
            row.chunks(64).map(word).collect()
        };
        let planes = trits.chunks(cols).map(|row| [plane(row, 1), plane(row, -1)]).collect();
        Self { cols, trits, planes }
    }

    fn table(&self, device: &CubeDevice) -> trike_cube::Result<TritTable> {
        let rows = self.planes.iter().map(|[pos, neg]| [&pos[..], &neg[..]]);
        TritTable::from_planes(device, self.cols, rows)
    }

    fn rows(&self) -> std::slice::Chunks<'_, i8> {
        self.trits.chunks(self.cols)
    }
}

/// A table filled with values that the kernels must overwrite.
fn poisoned(device: &CubeDevice, rows: usize, cols: usize) -> trike_cube::Result<TritTable> {
    Rows::of(vec![1; rows * cols], cols).table(device)
}

/// All operations, and their error cases.
pub fn vsa(session: &mut Session) {
    combine(session);
    permute(session);
    bundles(session);
    scores(session);
    refusals(session);
}

fn combine(session: &mut Session) {
    let device = session.device();
    for cols in COLS {
        for (op, one) in [
            (TritOp::SumMod3, false),
            (TritOp::DifferenceMod3, true),
            (TritOp::Product, false),
            (TritOp::Product, true),
        ] {
            let mut rng = Rng::new(cols as u64);
            let (a, b) =
                (Rows::random(&mut rng, 3, cols), Rows::random(&mut rng, if one { 1 } else { 3 }, cols));
            session.case(format_args!("{} {op:?} 3x{cols}, one {one}", CombineProblem::NAME), |oracle| {
                let (on_a, on_b) = (a.table(device)?, b.table(device)?);
                let out = poisoned(device, 3, cols)?;
                device.trit_combine(op, &on_a, &on_b, &out)?;
                let got = out.read_planes(device)?;
                let of = |a: i8, b: i8| match op {
                    TritOp::SumMod3 => (a + b + 4) % 3 - 1,
                    TritOp::DifferenceMod3 => (a - b + 4) % 3 - 1,
                    TritOp::Product => a * b,
                };
                let b = b.trits.iter().cycle();
                let want = Rows::of(a.trits.iter().zip(b).map(|(&a, &b)| of(a, b)).collect(), cols);
                oracle.exact("planes", &got, &want.planes)
            });
        }
    }
}

fn permute(session: &mut Session) {
    let device = session.device();
    for cols in COLS {
        let n = cols as isize;
        let x = Rows::random(&mut Rng::new(3), 2, cols);
        session.case(format_args!("{} 2x{cols}", PermuteProblem::NAME), |oracle| {
            let (on_x, out) = (x.table(device)?, poisoned(device, 2, cols)?);
            for by in [0, 1, -1, 33, 64, n - 1, -7 * n - 3] {
                device.permute(&on_x, by, &out)?;
                let start = (-by).rem_euclid(n) as usize;
                let rotated = x.rows().flat_map(|row| [&row[start..], &row[..start]].concat());
                let want = Rows::of(rotated.collect(), cols);
                oracle.exact(&format!("planes by {by}"), &out.read_planes(device)?, &want.planes)?;
            }
            Ok(())
        });
    }
}

fn bundles(session: &mut Session) {
    let device = session.device();
    for (cols, each, weights) in [
        (1, 2, None),
        (129, 1, None),
        (300, 4, None),
        (200, 3, Some([2, 0, 1, 5, 3, 1])),
        (33, 2, Some([0; 6])),
    ] {
        let rows = if weights.is_some() { 6 } else { 2 * each };
        let x = Rows::random(&mut Rng::new(cols as u64), rows, cols);
        let ties = Rows::of((0..cols).map(|i| if i % 3 == 1 { -1 } else { 1 }).collect(), cols);
        session.case(format_args!("bundles of {each}x{cols}, weights {}", weights.is_some()), |oracle| {
            let (on_x, on_ties) = (x.table(device)?, ties.table(device)?);
            let out = poisoned(device, rows / each, cols)?;
            let counts = device.bundle(&on_x, each, weights.as_ref().map(|w| &w[..]))?;
            let weight = |row: usize| weights.map_or(1, |weights| weights[row]);
            let mut want = Vec::new();
            let (mut plural, mut major, mut signs) = (Vec::new(), Vec::new(), Vec::new());
            for first in (0..rows).step_by(each) {
                let total: u32 = (first..first + each).map(weight).sum();
                let mut both = [vec![0; cols], vec![0; cols]];
                for c in 0..cols {
                    for row in first..first + each {
                        match x.trits[row * cols + c] {
                            1 => both[0][c] += weight(row),
                            -1 => both[1][c] += weight(row),
                            _ => {}
                        }
                    }
                    let (p, n) = (both[0][c], both[1][c]);
                    // In tie-breaking order, so that the first of the largest wins.
                    let turns = [[0, 1, -1], [1, -1, 0], [-1, 0, 1]];
                    let of = |trit: i8| [n, total - p - n, p][(trit + 1) as usize];
                    let best = turns[c % 3].into_iter().rev().max_by_key(|&trit| of(trit));
                    plural.push(if total == 0 { 0 } else { best.unwrap_or(0) });
                    let sum = i64::from(p) - i64::from(n);
                    major.push(if sum.abs() > 1 { sum.signum() as i8 } else { 0 });
                    signs.push(if sum == 0 { ties.trits[c] } else { sum.signum() as i8 });
                }
                want.push(both);
            }
            oracle.exact("counts", &counts.read(device)?, &want)?;
            let cuts = vec![1; rows / each];
            for (name, decision, want) in [
                ("plurality", Decision::Plurality, plural),
                ("majority", Decision::Majority(&cuts), major),
                ("signs", Decision::Signs(&on_ties), signs),
            ] {
                device.decide(&counts, decision, &out)?;
                oracle.exact(name, &out.read_planes(device)?, &Rows::of(want, cols).planes)?;
            }
            let nonzero = |row: &[i8]| row.iter().filter(|&&t| t != 0).count() as u32;
            let want: Vec<u32> = x.rows().map(nonzero).collect();
            oracle.exact("nonzeros", &device.nonzeros(&on_x)?, &want)
        });
    }
}

fn scores(session: &mut Session) {
    let device = session.device();
    for (queries, rows, cols, k) in [(1, 1, 1, 1), (3, 70, 33, 5), (9, 41, 300, 41), (17, 300, 5, 64)] {
        let mut rng = Rng::new(cols as u64);
        let (q, t) = (Rows::random(&mut rng, queries, cols), Rows::random(&mut rng, rows, cols));
        for score in [TritScore::Matches, TritScore::Dot] {
            let of = |q: &[i8], t: &[i8]| -> i32 {
                let pairs = q.iter().zip(t);
                pairs
                    .map(
                        |(&a, &b)| if score == TritScore::Dot { i32::from(a * b) } else { i32::from(a == b) },
                    )
                    .sum()
            };
            let want: Vec<i32> = q.rows().flat_map(|q| t.rows().map(move |t| of(q, t))).collect();
            let problem = TritDotProblem { score, queries, rows, cols };
            session.each(
                format_args!("{score:?}, {queries} by {rows} of {cols}"),
                &problem,
                |oracle, strategy| {
                    let (on_q, on_t) = (q.table(device)?, t.table(device)?);
                    let out = device.upload(&vec![i32::MIN; queries * rows])?;
                    device.trit_scores(score, &on_q, &on_t, &out, strategy)?;
                    oracle.exact("scores", &device.read(&out)?, &want)
                },
            );
            session.case(format_args!("search {score:?}, {k} of {rows} by {queries} of {cols}"), |oracle| {
                let found = device.nearest(score, &q.table(device)?, &t.table(device)?, k)?;
                let got: Vec<Vec<(usize, i32)>> =
                    found.iter().map(|hits| hits.iter().map(|hit| (hit.row, hit.score)).collect()).collect();
                let best = |scores: &[i32]| {
                    let mut order: Vec<(usize, i32)> = (0..).zip(scores.iter().copied()).collect();
                    // Stable: equal scores stay in row order.
                    order.sort_by_key(|&(_, score)| std::cmp::Reverse(score));
                    order.truncate(k);
                    order
                };
                let want: Vec<Vec<(usize, i32)>> = want.chunks(rows).map(best).collect();
                oracle.exact("hits", &got, &want)
            });
        }
    }
}

fn refusals(session: &mut Session) {
    let device = session.device();
    session.case("hypervectors refuse what does not fit", |oracle| {
        let table = |rows, cols| TritTable::empty(device, rows, cols);
        let (a, b, narrow) = (table(4, 70)?, table(3, 70)?, table(4, 69)?);
        let length = |e: &CubeError| matches!(e, CubeError::Length { .. });
        let overlap = |e: &CubeError| matches!(e, CubeError::Overlap { .. });
        let range = |e: &CubeError| matches!(e, CubeError::Range { .. });
        let op = TritOp::SumMod3;
        oracle.refused("rows", device.trit_combine(op, &a, &b, &table(4, 70)?), length)?;
        oracle.refused("columns", device.trit_combine(op, &a, &narrow, &table(4, 70)?), length)?;
        oracle.refused("output", device.trit_combine(op, &a, &a, &b), length)?;
        oracle.refused("in place", device.trit_combine(op, &a, &a, &a), overlap)?;
        oracle.refused("columns", device.permute(&a, 1, &narrow), length)?;
        oracle.refused("in place", device.permute(&a, 1, &a), overlap)?;
        let multiple = |e: &CubeError| matches!(e, CubeError::NotMultiple { got: 4, .. });
        oracle.refused("runs", device.bundle(&a, 3, None), multiple)?;
        oracle.refused("no runs", device.bundle(&a, 0, None), multiple)?;
        oracle.refused("weights", device.bundle(&a, 2, Some(&[1; 3])), length)?;
        oracle.refused("weight", device.bundle(&a, 2, Some(&[1 << 30; 4])), range)?;
        let counts = device.bundle(&a, 2, None)?;
        let two = table(2, 70)?;
        oracle.refused("bundles", device.decide(&counts, Decision::Plurality, &a), length)?;
        oracle.refused("cuts", device.decide(&counts, Decision::Majority(&[1]), &two), length)?;
        oracle.refused("cut", device.decide(&counts, Decision::Majority(&[1, 1 << 31]), &two), range)?;
        oracle.refused("ties", device.decide(&counts, Decision::Signs(&a), &two), length)?;
        oracle.refused("k", device.nearest(TritScore::Dot, &a, &b, 0), range)?;
        oracle.refused("k", device.nearest(TritScore::Dot, &a, &b, 257), range)?;
        oracle.refused("queries", device.nearest(TritScore::Dot, &narrow, &b, 1), length)?;
        let planes = |pos: u64, neg: u64| {
            let (pos, neg) = ([pos], [neg]);
            TritTable::from_planes(device, 5, [[&pos[..], &neg[..]]].into_iter()).map(drop)
        };
        let tail = |e: &CubeError| matches!(e, CubeError::Trit(TritError::NonzeroPadding { row: 0, .. }));
        oracle.refused("past the last", planes(32, 0), tail)?;
        let both = |e: &CubeError| matches!(e, CubeError::Trit(TritError::BothBits { row: 0, word: 0, .. }));
        oracle.refused("both signs", planes(3, 1), both)?;
        let long = TritTable::from_planes(device, 65, [[&[0u64][..], &[0u64][..]]].into_iter());
        oracle.refused("words", long.map(drop), length)?;
        let strategy = Strategy::Forced(OneWay);
        let empty = CombineProblem { op, rows: 0, cols: 1, one: false };
        oracle.refused("shape", empty.plan(&strategy, device.capabilities()), |e| {
            matches!(e, CubeError::Shape { rows: 0, .. })
        })?;
        let wide = PermuteProblem { rows: 1, cols: i32::MAX as usize + 1 };
        oracle.refused("columns", wide.plan(&strategy, device.capabilities()), range)
    });
}
