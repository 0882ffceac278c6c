//! Backward passes, losses, ternarization and optimizers.

use trike_core::AttentionSpec;
use trike_cube::grad::{AdamWStep, DocumentBounds, Factor, Groups, HeadLoss, Lookups, Losses, Targets};
use trike_cube::ops::GatedActivation;
use trike_cube::{Buffer, CubeDevice, CubeError};
use trike_testkit::Rng;

use crate::session::{Session, Verdict, poisoned};

/// All operations that only training has.
pub fn training(session: &mut Session) {
    products(session);
    sums(session);
    attention(session);
    rounding(session);
    ternary(session);
    losses(session);
    optimizers(session);
}

/// Errors of f32 sums, relative to the largest value of an output.
const BOUND: f64 = 1e-5;

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// Compares with a bound relative to the largest exact value.
fn near(oracle: &crate::session::Oracle, what: &str, got: &[f32], exact: &[f64]) -> Verdict {
    let largest = exact.iter().fold(0f64, |m, v| m.max(v.abs()));
    oracle.within(what, got, exact, BOUND * largest)
}

fn random(device: &CubeDevice, seed: u64, len: usize) -> trike_cube::Result<(Buffer<f32>, Vec<f64>)> {
    let values = Rng::new(seed).normals(len);
    Ok((device.upload(&values)?, wide(&values)))
}

fn products(session: &mut Session) {
    let device = session.device();
    for (rows, cols, steps) in [(1, 1, 1), (67, 130, 35), (3, 65, 600)] {
        for transposed in [[false, false], [false, true], [true, false], [true, true]] {
            for add in [false, true] {
                let name = format!("product {rows}x{cols} of {steps}, transposed {transposed:?}, add {add}");
                session.case(name, |oracle| {
                    // In the middle of buffers.
                    let (a, left) = random(device, 1, rows * steps + 7)?;
                    let (b, right) = random(device, 2, cols * steps + 3)?;
                    let mut before = vec![f32::NAN; rows * cols + 5];
                    if add {
                        before.fill(0.5);
                    }
                    let out = device.upload(&before)?;
                    let factor = |values, first, [rows, cols]: [usize; 2], transposed: bool| {
                        let [rows, cols] = if transposed { [cols, rows] } else { [rows, cols] };
                        Factor { values, first, rows, cols, transposed }
                    };
                    let first = factor(&a, 7, [rows, steps], transposed[0]);
                    let second = factor(&b, 3, [steps, cols], transposed[1]);
                    device.product(first, second, &out, 5, add)?;
                    let at = |x: &[f64], first: usize, [i, j]: [usize; 2], [n, m]: [usize; 2], t: bool| {
                        if t { x[first + j * n + i] } else { x[first + i * m + j] }
                    };
                    let mut want = Vec::new();
                    for i in 0..rows {
                        for j in 0..cols {
                            let products = (0..steps).map(|k| {
                                at(&left, 7, [i, k], [rows, steps], transposed[0])
                                    * at(&right, 3, [k, j], [steps, cols], transposed[1])
                            });
                            want.push(products.sum::<f64>() + if add { 0.5 } else { 0.0 });
                        }
                    }
                    let got = device.read(&out)?;
                    near(oracle, "product", &got[5..], &want)?;
                    oracle.exact("before", &[got[0].is_nan()], &[!add])
                });
            }
        }
    }
    session.case("products refuse what does not fit", |oracle| {
        let (a, _) = random(device, 1, 12)?;
        let out = poisoned(device, 9)?;
        let factor =
            |rows: usize, cols: usize| Factor { values: &a, first: 0, rows, cols, transposed: false };
        let refused = device.product(factor(3, 4), factor(3, 4), &out, 0, false);
        oracle.refused("steps", refused, |e| matches!(e, CubeError::Length { expected: 4, got: 3, .. }))?;
        let refused = device.product(factor(3, 5), factor(4, 3), &out, 0, false);
        oracle.refused("factor", refused, |e| matches!(e, CubeError::Length { expected: 15, .. }))?;
        let refused = device.product(factor(3, 4), factor(4, 3), &out, 1, false);
        oracle.refused("output", refused, |e| matches!(e, CubeError::Length { expected: 10, got: 9, .. }))?;
        let refused = device.product(factor(3, 3), factor(3, 3), &a, 0, false);
        oracle.refused("itself", refused, |e| matches!(e, CubeError::Overlap { .. }))?;
        let beyond = Factor { first: 1, ..factor(3, 4) };
        let refused = device.product(beyond, factor(4, 3), &out, 0, false);
        oracle.refused("first", refused, |e| matches!(e, CubeError::Range { maximum: 0, got: 1, .. }))
    });
}

fn sums(session: &mut Session) {
    let device = session.device();
    for (rows, cols) in [(1, 1), (5, 97), (600, 3)] {
        session.case(format!("gradients of a norm of {rows}x{cols}"), |oracle| {
            let (x, xs) = random(device, 1, rows * cols)?;
            let (dy, ds) = random(device, 2, rows * cols)?;
            let (w, ws) = random(device, 3, cols)?;
            let (dx, dw) = (poisoned(device, rows * cols)?, poisoned(device, cols)?);
            let eps = 1e-3;
            device.rms_norm_input(&x, &w, eps, &dy, &dx)?;
            device.rms_norm_weight(&x, eps, &dy, &dw)?;
            let (mut inputs, mut weights) = (Vec::new(), vec![0f64; cols]);
            for (x, d) in xs.chunks(cols).zip(ds.chunks(cols)) {
                let mean = x.iter().map(|x| x * x).sum::<f64>() / cols as f64;
                let r = 1.0 / (mean + f64::from(eps)).sqrt();
                let along = (0..cols).map(|i| ws[i] * d[i] * x[i]).sum::<f64>() * r.powi(3) / cols as f64;
                inputs.extend((0..cols).map(|i| ws[i] * d[i] * r - x[i] * along));
                weights.iter_mut().zip(x.iter().zip(d)).for_each(|(sum, (x, d))| *sum += x * d * r);
            }
            near(oracle, "input", &device.read(&dx)?, &inputs)?;
            near(oracle, "weight", &device.read(&dw)?, &weights)?;
            let total = poisoned(device, cols)?;
            device.sum_rows(&x, &total)?;
            let want: Vec<f64> = (0..cols).map(|c| xs.iter().skip(c).step_by(cols).sum()).collect();
            oracle.within("sums", &device.read(&total)?, &want, BOUND * rows as f64)?;
            let refused = device.rms_norm_input(&x, &w, f32::NAN, &dy, &dx);
            oracle.refused("eps", refused, |e| matches!(e, CubeError::NonFinite { .. }))?;
            let refused = device.rms_norm_input(&x, &w, eps, &dy, &x);
            oracle.refused("in place", refused, |e| matches!(e, CubeError::Overlap { .. }))
        });
    }
    for activation in [GatedActivation::SiLu, GatedActivation::SquaredReLu] {
        session.case(format!("gradients of {activation:?}"), |oracle| {
            let ((gate, gs), (up, us), (dy, ds)) =
                (random(device, 1, 131)?, random(device, 2, 131)?, random(device, 3, 131)?);
            let (d_gate, d_up) = (poisoned(device, 131)?, poisoned(device, 131)?);
            device.gated_back(&gate, &up, activation, &dy, &d_gate, &d_up)?;
            let both = gs.iter().zip(&us).zip(&ds).map(|((g, u), d)| match activation {
                GatedActivation::SiLu => {
                    let s = 1.0 / (1.0 + (-g).exp());
                    (d * u * s * (1.0 + g * (1.0 - s)), d * g * s)
                }
                GatedActivation::SquaredReLu => (d * u * 2.0 * g.max(0.0), d * g.max(0.0).powi(2)),
            });
            let (gates, ups): (Vec<f64>, Vec<f64>) = both.unzip();
            near(oracle, "gate", &device.read(&d_gate)?, &gates)?;
            near(oracle, "up", &device.read(&d_up)?, &ups)?;
            let refused = device.gated_back(&gate, &up, activation, &dy, &d_gate, &d_gate);
            oracle.refused("one output", refused, |e| matches!(e, CubeError::Overlap { .. }))
        });
    }
    session.case("rows are added to a table", |oracle| {
        let ids = [4, 0, 4, 4, 2, 0];
        let lookups = Lookups::upload(device, &ids, 5)?;
        let (rows, rs) = random(device, 1, 6 * 37)?;
        let (table, mut want) = random(device, 2, 5 * 37)?;
        device.add_rows_to(&rows, 37, &lookups, &table)?;
        for (id, row) in ids.iter().zip(rs.chunks(37)) {
            want[*id as usize * 37..].iter_mut().zip(row).for_each(|(sum, v)| *sum += v);
        }
        near(oracle, "table", &device.read(&table)?, &want)?;
        let refused = device.add_rows_to(&rows, 37, &lookups, &rows);
        oracle.refused("in place", refused, |e| matches!(e, CubeError::Overlap { .. }))?;
        let refused = device.add_rows_to(&table, 37, &lookups, &rows);
        oracle.refused("rows", refused, |e| matches!(e, CubeError::Length { expected: 222, .. }))
    });
}

/// Attention and its gradients in f64: one query at a time.
fn naive(spec: &AttentionSpec, [q, k, v, dy]: [&[f64]; 4], lengths: &[usize]) -> [Vec<f64>; 4] {
    let (dim, share) = (spec.head_dim, spec.heads / spec.kv_heads);
    let [mut out, mut dq] = [(); 2].map(|()| vec![0.0; q.len()]);
    let [mut dk, mut dv] = [(); 2].map(|()| vec![0.0; k.len()]);
    let mut start = 0;
    for length in lengths {
        for token in start..start + length {
            let first = spec.window.map_or(start, |window| start.max((token + 1).saturating_sub(window)));
            for head in 0..spec.heads {
                let at = (token * spec.heads + head) * dim;
                let key = |j: usize| (j * spec.kv_heads + head / share) * dim;
                let dot = |a: &[f64], i: usize, b: &[f64], j: usize| {
                    (0..dim).map(|d| a[i + d] * b[j + d]).sum::<f64>()
                };
                let scores = (first..=token).map(|j| dot(q, at, k, key(j)) * f64::from(spec.scale));
                let weights: Vec<f64> = scores.map(f64::exp).collect();
                let total: f64 = weights.iter().sum();
                let weights: Vec<f64> = weights.iter().map(|w| w / total).collect();
                let slopes: Vec<f64> = (first..=token).map(|j| dot(dy, at, v, key(j))).collect();
                let mean: f64 = weights.iter().zip(&slopes).map(|(w, g)| w * g).sum();
                for (j, (w, g)) in (first..=token).zip(weights.iter().zip(&slopes)) {
                    let slope = w * (g - mean) * f64::from(spec.scale);
                    for d in 0..dim {
                        out[at + d] += w * v[key(j) + d];
                        dq[at + d] += slope * k[key(j) + d];
                        dk[key(j) + d] += slope * q[at + d];
                        dv[key(j) + d] += w * dy[at + d];
                    }
                }
            }
        }
        start += length;
    }
    [out, dq, dk, dv]
}

fn attention(session: &mut Session) {
    let device = session.device();
    for (heads, kv_heads, head_dim, window, lengths) in
        [(1, 1, 1, None, vec![1]), (4, 2, 12, None, vec![7, 1, 30]), (3, 1, 80, Some(5), vec![19, 4])]
    {
        let spec = AttentionSpec { heads, kv_heads, head_dim, scale: 0.3, window };
        session.case(format!("attention over documents {spec:?} {lengths:?}"), |oracle| {
            let tokens: usize = lengths.iter().sum();
            let [width, kv_width] = [heads, kv_heads].map(|heads| tokens * heads * head_dim);
            let ((q, qs), (k, ks)) = (random(device, 1, width)?, random(device, 2, kv_width)?);
            let ((v, vs), (dy, ds)) = (random(device, 3, kv_width)?, random(device, 4, width)?);
            let documents = DocumentBounds::upload(device, &lengths)?;
            let (out, dq) = (poisoned(device, width)?, poisoned(device, width)?);
            let (dk, dv) = (poisoned(device, kv_width)?, poisoned(device, kv_width)?);
            device.documents_attention(&spec, [&q, &k, &v], &documents, &out)?;
            device.documents_attention_back(&spec, [&q, &k, &v], &documents, &dy, [&dq, &dk, &dv])?;
            let want = naive(&spec, [&qs, &ks, &vs, &ds], &lengths);
            for (what, got, want) in
                [("output", &out, 0), ("queries", &dq, 1), ("keys", &dk, 2), ("values", &dv, 3)]
                    .map(|(what, got, at)| (what, got, &want[at]))
            {
                near(oracle, what, &device.read(got)?, want)?;
            }
            let refused = device.documents_attention(&spec, [&q, &k, &v], &documents, &q);
            oracle.refused("in place", refused, |e| matches!(e, CubeError::Overlap { .. }))?;
            let other = DocumentBounds::upload(device, &[tokens + 1])?;
            let refused = device.documents_attention(&spec, [&q, &k, &v], &other, &out);
            oracle.refused("tokens", refused, |e| matches!(e, CubeError::Length { .. }))?;
            let odd = AttentionSpec { heads: 3, kv_heads: 2, ..spec };
            let refused = device.documents_attention(&odd, [&q, &k, &v], &documents, &out);
            oracle.refused("heads", refused, |e| matches!(e, CubeError::NotMultiple { unit: 2, .. }))?;
            let refused =
                device.documents_attention_back(&spec, [&q, &k, &v], &documents, &dy, [&dq, &dk, &dk]);
            oracle.refused("one output", refused, |e| matches!(e, CubeError::Overlap { .. }))
        });
    }
}

fn rounding(session: &mut Session) {
    let device = session.device();
    session.case("values are rounded to int8", |oracle| {
        let x = [127.0, -2.4, 0.5, 254.0, 3.0, 0.0, 1.5, -254.0, 2.5, 0.0];
        let (values, out) = (device.upload(&x)?, poisoned(device, 10)?);
        device.round_activations(&values, 5, 3, 1e-5, &out)?;
        let want = [127.0, -2.0, 0.0, 254.0, 4.0, 0.0, 2.0, -254.0, 2.5, 0.0];
        let got = device.read(&out)?;
        oracle.exact("activations", &got[..8], &want[..8])?;
        device.round_weights(&values, 5, 3, &out)?;
        oracle.exact("weights", &device.read(&out)?[..5], &[127.0, -2.0, 0.0, 254.0, 4.0])?;
        let refused = device.round_activations(&values, 3, 3, 1e-5, &out);
        oracle.refused("width", refused, |e| matches!(e, CubeError::NotMultiple { unit: 3, got: 10, .. }))?;
        let refused = device.round_activations(&values, 5, 6, 1e-5, &out);
        oracle.refused("group", refused, |e| matches!(e, CubeError::Range { maximum: 5, got: 6, .. }))?;
        let refused = device.round_activations(&values, 5, 5, 0.0, &out);
        oracle.refused("smallest", refused, |e| matches!(e, CubeError::NonFinite { .. }))
    });
}

fn ternary(session: &mut Session) {
    let device = session.device();
    for (groups, least_squares) in [
        (Groups { rows: 9, cols: 75, len: 32 }, false),
        (Groups { rows: 9, cols: 75, len: 32 }, true),
        (Groups::whole(5000), false),
        (Groups::whole(5000), true),
    ] {
        session.case(format!("ternary weights {groups:?}, least squares {least_squares}"), |oracle| {
            let len = groups.rows * groups.cols;
            let (weights, ws) = random(device, 1, len)?;
            let (scales, out) = (poisoned(device, groups.count())?, poisoned(device, len)?);
            device.group_scales(&weights, groups, least_squares, &scales)?;
            let parts = ws.chunks(groups.cols).flat_map(|row| row.chunks(groups.len));
            let want: Vec<f64> = parts
                .map(|part| {
                    let mut sizes: Vec<f64> = part.iter().map(|w| w.abs()).collect();
                    if !least_squares {
                        return sizes.iter().sum::<f64>() / part.len() as f64;
                    }
                    sizes.sort_by(|a, b| b.total_cmp(a));
                    let (mut sum, mut best, mut scale) = (0.0, 0.0, 0.0);
                    for (k, size) in sizes.iter().enumerate() {
                        sum += size;
                        if sum * sum / (k + 1) as f64 > best {
                            (best, scale) = (sum * sum / (k + 1) as f64, sum / (k + 1) as f64);
                        }
                    }
                    scale
                })
                .collect();
            near(oracle, "scales", &device.read(&scales)?, &want)?;
            device.ternarize(&weights, &scales, groups, 0.25, &out)?;
            let per_row = groups.cols.div_ceil(groups.len);
            let scale = |i: usize| want[i / groups.cols * per_row + i % groups.cols / groups.len];
            let value = |(i, w): (usize, &f64)| {
                let s = scale(i);
                let q = if w.abs() <= 0.5 * s { 0.0 } else { s * w.signum() };
                w + 0.25 * (q - w)
            };
            let values: Vec<f64> = ws.iter().enumerate().map(value).collect();
            near(oracle, "weights", &device.read(&out)?, &values)?;
            let (dy, ds) = random(device, 2, len)?;
            let slopes = poisoned(device, groups.count())?;
            device.scale_gradients(&weights, &scales, groups, 0.5, &dy, &slopes)?;
            device.clip_gradient(&weights, &scales, groups, 1.5, 0.25, &dy)?;
            let clipped =
                ds.iter().enumerate().map(|(i, d)| if ws[i].abs() > 1.5 * scale(i) { 0.25 * d } else { *d });
            near(oracle, "gradient", &device.read(&dy)?, &clipped.collect::<Vec<_>>())?;
            let mut sums = vec![0f64; groups.count()];
            for (i, (w, d)) in ws.iter().zip(&ds).enumerate() {
                let s = scale(i);
                let trit = if w.abs() <= 0.5 * s { 0.0 } else { w.signum() };
                let slope = if w.abs() <= s { trit - w / s } else { w.signum() };
                sums[i / groups.cols * per_row + i % groups.cols / groups.len] += 0.5 * d * slope;
            }
            near(oracle, "scales' gradient", &device.read(&slopes)?, &sums)?;
            let refused = device.ternarize(&weights, &slopes, groups, 1.0, &weights);
            oracle.refused("in place", refused, |e| matches!(e, CubeError::Overlap { .. }))?;
            let refused = device.group_scales(&weights, Groups { len: 0, ..groups }, false, &scales);
            oracle.refused("group", refused, |e| matches!(e, CubeError::Range { got: 0, .. }))
        });
    }
}

fn losses(session: &mut Session) {
    let device = session.device();
    let (rows, cols) = (5, 203);
    let chosen = [Some(3u32), None, Some(202), Some(0), Some(77)];
    for (text, taught) in [(true, false), (false, true), (true, true)] {
        session.case(format!("loss, text {text}, teacher {taught}"), |oracle| {
            let (logits, ls) = random(device, 1, rows * cols)?;
            let (teacher, ts) = random(device, 2, rows * cols)?;
            let targets = Targets::upload(device, &chosen)?;
            let losses = Losses::new(device, rows)?;
            let loss = match (text, taught) {
                (true, false) => HeadLoss::CrossEntropy { targets: &targets, scale: 0.3 },
                (false, _) => HeadLoss::Divergence { teacher: &teacher, scale: 0.7 },
                _ => HeadLoss::Both { targets: &targets, teacher: &teacher, scales: [0.3, 0.7] },
            };
            device.head_loss(&logits, 0..rows, loss, &losses)?;
            let softmax = |row: &[f64]| {
                let total: f64 = row.iter().map(|v| v.exp()).sum();
                row.iter().map(|v| v.exp() / total).collect::<Vec<f64>>()
            };
            let (mut want, mut sums) = (Vec::new(), [0f64; 2]);
            for (row, target) in chosen.iter().enumerate() {
                let (q, p) = (softmax(&ls[row * cols..][..cols]), softmax(&ts[row * cols..][..cols]));
                let counts = !text || target.is_some();
                for col in 0..cols {
                    let mut d = 0.0;
                    if let Some(target) = target.filter(|_| text) {
                        d += 0.3f32 as f64 * (q[col] - if col == target as usize { 1.0 } else { 0.0 });
                    }
                    if taught && counts {
                        d += 0.7f32 as f64 * (q[col] - p[col]);
                        sums[1] += p[col] * (p[col] / q[col]).ln();
                    }
                    want.push(d);
                }
                if let Some(target) = target.filter(|_| text) {
                    sums[0] -= q[target as usize].ln();
                }
            }
            near(oracle, "gradient", &device.read(&logits)?, &want)?;
            let totals = losses.totals(device)?.map(|sum| sum as f32);
            oracle.within("losses", &totals, &sums, 1e-4)?;
            let refused = device.head_loss(&logits, 1..rows + 1, loss, &losses);
            oracle.refused("rows", refused, |e| matches!(e, CubeError::Range { .. }))?;
            let few = device.upload(&[0f32; 5 * 3])?;
            let refused = device.head_loss(&few, 0..rows, loss, &losses);
            oracle.refused("columns", refused, |e| {
                matches!(e, CubeError::Range { .. } | CubeError::Length { .. })
            })
        });
    }
}

fn optimizers(session: &mut Session) {
    let device = session.device();
    session.case("optimizers", |oracle| {
        let ((value, vs), (gradient, gs)) = (random(device, 1, 131)?, random(device, 2, 131)?);
        let (first, second) = (device.upload(&[0.5f32; 131])?, device.upload(&[0.25f32; 131])?);
        let (limit, beta1, beta2, epsilon) = (0.5f32, 0.75f32, 0.875f32, 0.125f32);
        let (rate, correction, kept) = (0.25f32, 0.5f32, 0.75f32);
        let step = AdamWStep { limit, beta1, beta2, epsilon, rate, correction, kept };
        device.adamw(&step, &value, &gradient, &first, &second)?;
        let each = vs.iter().zip(&gs).map(|(v, g)| {
            let (mean, square) = (0.375 + 0.25 * 0.5 * g, 0.21875 + 0.125 * 0.25 * g * g);
            v * 0.75 - 0.25 * mean / ((square / 0.5).sqrt() + 0.125)
        });
        near(oracle, "adamw", &device.read(&value)?, &each.collect::<Vec<_>>())?;
        let squares: f64 = gs.iter().map(|g| g * g).sum();
        let got = device.sum_of_squares(&[&gradient, &gradient])?;
        oracle.within("squares", &[got], &[2.0 * squares], BOUND * squares)?;
        let out = poisoned(device, 131)?;
        device.sum_of(&gradient, &first, [0.5, -2.0], &out)?;
        device.add_into(&out, &gradient, [2.0, -1.0])?;
        let means = wide(&device.read(&first)?);
        let want: Vec<f64> = means.iter().map(|m| -4.0 * m).collect();
        oracle.within("sums", &device.read(&out)?, &want, 1e-5)?;
        device.normalize(&gradient)?;
        let want: Vec<f64> = gs.iter().map(|g| g / squares.sqrt()).collect();
        near(oracle, "norm", &device.read(&gradient)?, &want)?;
        let ((gram, a), (square, b)) = (random(device, 3, 49)?, random(device, 4, 49)?);
        device.polynomial([3.0, -2.0, 0.5], 7, &gram, &square)?;
        let entry = |i: usize| if i.is_multiple_of(8) { 3.0 } else { 0.0 };
        let want: Vec<f64> = (0..49).map(|i| entry(i) - 2.0 * a[i] + 0.5 * b[i]).collect();
        near(oracle, "polynomial", &device.read(&square)?, &want)?;
        let refused = device.adamw(&step, &value, &gradient, &first, &first);
        oracle.refused("means", refused, |e| matches!(e, CubeError::Overlap { .. }))?;
        let refused = device.sum_of_squares(&[]);
        oracle.refused("nothing", refused, |e| matches!(e, CubeError::Range { got: 0, .. }))
    });
    session.case("elements are scaled and copied", |oracle| {
        let (x, xs) = random(device, 1, 130)?;
        let (by, out) = (device.upload(&[0.5f32])?, poisoned(device, 130)?);
        device.scale(&x, 4.0)?;
        device.scale_by(&x, &by)?;
        device.copy(&x, &out)?;
        let want: Vec<f64> = xs.iter().map(|x| 2.0 * x).collect();
        near(oracle, "copy", &device.read(&out)?, &want)?;
        let refused = device.copy(&x, &by);
        oracle
            .refused("length", refused, |e| matches!(e, CubeError::Length { expected: 130, got: 1, .. }))?;
        let refused = device.copy(&x, &x);
        oracle.refused("itself", refused, |e| matches!(e, CubeError::Overlap { .. }))
    });
}
