//! Backward passes against central differences of a forward pass in f64 that shares no code with them.

mod oracle;

use oracle::{BlockOracle, attention, gated, rms_norm, rope};
use trike_core::ProductPrecision;
use trike_cpu::{
    AttentionSpec, Cpu, CpuError, GatedActivation, RopePairing, RopeTable,
    grad::{self, Block, BlockMatrices, BlockShape, BlockVectors, Linear},
};
use trike_testkit::{Rng, assert_all_near, assert_near};

/// Of the largest element of a gradient: far over the rounding of f32 in these sizes, far under a wrong term.
const BOUND: f64 = 1e-3;
/// Half the distance of a central difference; in f64 its error is some 1e-9.
const STEP: f64 = 1e-5;

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// Checks `got`, the gradient of `sum f(x) dy` with respect to `x`, element by element.
fn check(what: &str, got: &[f32], x: &[f32], dy: &[f32], f: impl Fn(&[f64]) -> Vec<f64>) {
    let mut x = wide(x);
    let loss = |x: &[f64]| f(x).iter().zip(dy).map(|(y, d)| y * f64::from(*d)).sum::<f64>();
    let want: Vec<f64> = (0..x.len())
        .map(|i| {
            let at = x[i];
            let mut moved = |by: f64| {
                x[i] = at + by;
                let loss = loss(&x);
                x[i] = at;
                loss
            };
            (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
        })
        .collect();
    let largest = want.iter().fold(0f64, |m, v| m.max(v.abs()));
    assert!(largest > 1e-3, "{what}: nothing to compare with");
    assert_all_near!(&wide(got), &want, abs = BOUND * largest, "{what}");
}

fn cpus() -> [Cpu; 2] {
    [1, 3].map(|threads| Cpu::new(threads).expect("a few threads"))
}

#[test]
fn rms_norms() {
    for cpu in cpus() {
        for (tokens, n, eps) in [(1, 1, 1e-2), (3, 7, 1e-5), (5, 16, 1e-5), (2, 97, 0.3)] {
            let mut rng = Rng::new(n as u64);
            let (x, w, dy) = (rng.normals(tokens * n), rng.normals(n), rng.normals(tokens * n));
            let mut dx = vec![f32::NAN; tokens * n];
            grad::rms_norm(&cpu, &x, &w, eps, &dy, &mut dx).expect("shapes fit");
            let (wide_x, wide_w, wide_eps) = (wide(&x), wide(&w), f64::from(eps));
            check(&format!("input, {n}"), &dx, &x, &dy, |x| rms_norm(x, &wide_w, wide_eps));
            let mut dw = vec![f32::NAN; n];
            grad::rms_norm_weight(&cpu, &x, eps, &dy, &mut dw).expect("shapes fit");
            check(&format!("weight, {n}"), &dw, &w, &dy, |w| rms_norm(&wide_x, w, wide_eps));
        }
    }
}

#[test]
fn gated_activations() {
    for cpu in cpus() {
        for activation in [GatedActivation::SiLu, GatedActivation::SquaredReLu] {
            for n in [1, 7, 64, 1003] {
                let mut rng = Rng::new(n as u64);
                let (gate, up, dy) = (rng.normals(n), rng.normals(n), rng.normals(n));
                // SiLu's gradient is about 1 at 0 and the other's 0: a lone element should have one.
                let gate: Vec<f32> = gate.iter().map(|g| 3.0 * g + 0.5).collect();
                let (mut d_gate, mut d_up) = (vec![f32::NAN; n], vec![f32::NAN; n]);
                grad::gated(&cpu, &gate, &up, activation, &dy, &mut d_gate, &mut d_up).expect("shapes fit");
                // Each output has one input: all differences at once.
                let both = |what: &str, got: &[f32], f: &dyn Fn(usize, f64) -> f64| {
                    for (i, got) in got.iter().enumerate() {
                        let want = (f(i, STEP) - f(i, -STEP)) / (2.0 * STEP) * f64::from(dy[i]);
                        assert_near!(
                            f64::from(*got),
                            want,
                            abs = BOUND * want.abs().max(0.1),
                            "{what}, element {i}"
                        );
                    }
                };
                let (g, u) = (|i: usize| f64::from(gate[i]), |i: usize| f64::from(up[i]));
                both("gate", &d_gate, &|i, by| gated(activation, g(i) + by, u(i)));
                both("up", &d_up, &|i, by| gated(activation, g(i), u(i) + by));
            }
        }
    }
}

#[test]
fn rotations() {
    for cpu in cpus() {
        for pairing in [RopePairing::Adjacent, RopePairing::Halves] {
            for (heads, head_dim, kept) in [(1, 2, 0), (3, 6, 4), (2, 14, 100)] {
                let positions = [0, 1, 2, 0, 1, 40];
                let table = RopeTable::new(head_dim, 100.0).expect("even").precompute(kept);
                let mut rng = Rng::new(heads as u64);
                let len = positions.len() * heads * head_dim;
                let (x, dy) = (rng.normals(len), rng.normals(len));
                let mut dx = dy.clone();
                grad::rope(&cpu, &mut dx, heads, head_dim, &positions, &table, pairing).expect("shapes fit");
                let row = heads * head_dim;
                let frequencies = wide(table.frequencies());
                check(&format!("{pairing:?} {heads}x{head_dim}"), &dx, &x, &dy, |x| {
                    let rows = x.chunks_exact(row).zip(positions);
                    rows.flat_map(|(x, p)| rope(x, head_dim, p, &frequencies, pairing)).collect()
                });
            }
        }
    }
}

#[test]
fn attentions() {
    for cpu in cpus() {
        for (heads, kv_heads, head_dim, window, lengths) in [
            (1, 1, 1, None, &[4][..]),
            (3, 3, 5, None, &[1, 6]),
            (4, 2, 7, Some(3), &[5, 1, 4]),
            (6, 1, 4, Some(1), &[3]),
            (4, 2, 2, Some(100), &[9]),
        ] {
            let spec = AttentionSpec { heads, kv_heads, head_dim, scale: 0.7, window };
            let tokens: usize = lengths.iter().sum();
            let mut rng = Rng::new(head_dim as u64);
            let (width, kv_width) = (heads * head_dim, kv_heads * head_dim);
            let all = [tokens * width, tokens * kv_width, tokens * kv_width].map(|n| rng.normals(n));
            let dy = rng.normals(tokens * width);
            let [mut dq, mut dk, mut dv] = all.each_ref().map(|x| vec![f32::NAN; x.len()]);
            let inputs = all.each_ref().map(Vec::as_slice);
            grad::attention(&cpu, &spec, inputs, lengths, &dy, [&mut dq, &mut dk, &mut dv]).expect("fits");
            let fixed = all.each_ref().map(|x| wide(x));
            for (i, got) in [dq, dk, dv].iter().enumerate() {
                // A query that sees itself alone has no gradient, nor has its key.
                if window == Some(1) && i < 2 {
                    assert_all_near!(got, &vec![0.0; got.len()], abs = 1e-6, "{spec:?}, input {i}");
                    continue;
                }
                check(&format!("{spec:?}, input {i}"), got, &all[i], &dy, |x| {
                    let mut parts = fixed.each_ref().map(Vec::as_slice);
                    parts[i] = x;
                    attention(&spec, parts, lengths)
                });
            }
        }
    }
}

#[test]
fn matrices() {
    for cpu in cpus() {
        for (tokens, rows, cols) in [(1, 1, 1), (3, 5, 7), (33, 17, 19)] {
            let mut rng = Rng::new(rows as u64);
            let (x, w, dy) =
                (rng.normals(tokens * cols), rng.normals(rows * cols), rng.normals(tokens * rows));
            let packed = Linear::new(rows, cols, w.clone()).expect("a matrix");
            let (wide_x, wide_w) = (wide(&x), wide(&w));
            let dx = packed.input(&cpu, &dy).expect("shapes fit");
            check("input", &dx, &x, &dy, |x| oracle::linear(x, &wide_w, cols));
            let dw = packed.weight(&cpu, &x, &dy).expect("shapes fit");
            check("weight", &dw, &w, &dy, |w| oracle::linear(&wide_x, w, cols));
        }
    }
}

#[test]
fn rounded_gradients() {
    let cpu = Cpu::new(1).expect("a thread");
    let w = Linear::new(1, 2, vec![1.003, 0.0]).expect("a matrix").with_gradients(ProductPrecision::Bf16);
    assert_eq!(w.forward(&cpu, &[1.003, 7.0]).expect("shapes fit"), [1.003 * 1.003]);
    assert_eq!(w.input(&cpu, &[1.003]).expect("shapes fit"), [1.0, 0.0]);
    assert_eq!(w.weight(&cpu, &[1.003, 2.0], &[1.003]).expect("shapes fit"), [1.0, 2.0]);
}

#[test]
fn divergences() {
    for cpu in cpus() {
        let (tokens, vocab) = (3, 11);
        let mut rng = Rng::new(4);
        let (out, target) = (rng.normals(tokens * vocab), rng.normals(tokens * vocab));
        let (mut gradient, mut p) = (out.clone(), target.clone());
        let loss = grad::divergence(&cpu, &mut gradient, &mut p, vocab).expect("shapes fit");
        let wide_target = wide(&target);
        let want = |out: &[f64]| vec![oracle::divergence(out, &wide_target, vocab)];
        assert_near!(loss, want(&wide(&out))[0], abs = 1e-5);
        check("logits", &gradient, &out, &[1.0], want);
        for p in p.chunks_exact(vocab) {
            assert_near!(p.iter().sum::<f32>(), 1.0, abs = 1e-5);
        }
        let same = grad::divergence(&cpu, &mut target.clone(), &mut target.clone(), vocab);
        assert_near!(same.expect("shapes fit"), 0.0, abs = 1e-6);
    }
}

fn plain() -> BlockShape {
    BlockShape {
        hidden: 10,
        intermediate: 13,
        attention: AttentionSpec { heads: 4, kv_heads: 2, head_dim: 6, scale: 0.4, window: None },
        rope: RopeTable::new(6, 100.0).expect("even"),
        pairing: RopePairing::Halves,
        activation: GatedActivation::SiLu,
        rms_eps: 1e-5,
        gradients: ProductPrecision::F32,
    }
}

/// Every switch at least once.
fn shapes() -> [(BlockShape, BlockVectors); 3] {
    let mut rng = Rng::new(8);
    let mut vectors = |shape: &BlockShape, qk_norm: bool, sub_norms: bool, biases: bool| {
        let spec = shape.attention;
        let mut norm = |n| rng.normals(n).iter().map(|v| 1.0 + 0.2 * v).collect::<Vec<f32>>();
        let (attention_norm, mlp_norm) = (norm(shape.hidden), norm(shape.hidden));
        let qk_norm = qk_norm.then(|| [norm(spec.head_dim), norm(spec.head_dim)]);
        let attention_sub_norm = sub_norms.then(|| norm(spec.heads * spec.head_dim));
        let mlp_sub_norm = sub_norms.then(|| norm(shape.intermediate));
        let biases = shape.matrices().map(|(rows, _)| biases.then(|| norm(rows)));
        BlockVectors { attention_norm, qk_norm, attention_sub_norm, mlp_norm, mlp_sub_norm, biases }
    };
    let windowed = BlockShape {
        pairing: RopePairing::Adjacent,
        attention: AttentionSpec { window: Some(3), ..plain().attention },
        ..plain()
    };
    let squared = BlockShape {
        activation: GatedActivation::SquaredReLu,
        attention: AttentionSpec { kv_heads: 4, ..plain().attention },
        ..plain()
    };
    let all = [(windowed, [false; 3]), (plain(), [true, false, true]), (squared, [false, true, false])];
    all.map(|(shape, [qk, sub, biases])| {
        let vectors = vectors(&shape, qk, sub, biases);
        (shape, vectors)
    })
}

#[test]
fn blocks() {
    let lengths = [4, 1, 5];
    for (shape, vectors) in shapes() {
        let mut rng = Rng::new(3);
        let tokens: usize = lengths.iter().sum();
        let (x, dy) = (rng.normals(tokens * shape.hidden), rng.normals(tokens * shape.hidden));
        let values =
            shape.matrices().map(|(rows, cols)| rng.normals(rows * cols).iter().map(|v| 0.3 * v).collect());
        let matrices = BlockMatrices::new(&shape, values.clone()).expect("shapes fit");
        let oracle = BlockOracle::new(&shape, &vectors, &lengths);
        let wide_values: Vec<Vec<f64>> = values.iter().map(|v: &Vec<f32>| wide(v)).collect();
        let mut bits = Vec::new();
        for cpu in cpus() {
            let block = Block { cpu: &cpu, shape: &shape, vectors: &vectors, matrices: &matrices };
            let (y, tape) = block.forward(x.clone(), &lengths).expect("it runs");
            let want = oracle.forward(&wide_values, &wide(&x));
            assert_all_near!(&wide(&y), &want, abs = 1e-4);
            let gradients = block.backward(&tape, dy.clone(), true).expect("it runs");
            let without = block.backward(&tape, dy.clone(), false).expect("it runs");
            assert_eq!(without.matrices, gradients.matrices, "without the input");
            assert_eq!(without.norms.norms(), gradients.norms.norms(), "without the input");
            let outputs = block.outputs(&tape, dy.clone()).expect("it runs");
            assert_eq!((&outputs.input, &outputs.outputs), (&gradients.input, &gradients.outputs));
            assert!(outputs.matrices.iter().all(Vec::is_empty));
            // The output of the last matrix is added to the block's.
            let squares = dy.chunks_exact(shape.hidden).map(|dy| dy.iter().map(|d| d * d).sum::<f32>());
            let means: Vec<f32> = squares.map(|sum| sum / shape.hidden as f32).collect();
            assert_all_near!(&outputs.outputs[6], &means, abs = 1e-5);
            bits.push(gradients);
        }
        let [one, more] = &bits[..] else { panic!("two of them") };
        assert!(one.input == more.input && one.matrices == more.matrices, "threads change nothing");
        assert_eq!(one.norms.norms(), more.norms.norms(), "threads change nothing");
        check("input", &one.input, &x, &dy, |x| oracle.forward(&wide_values, x));
        for (i, got) in one.matrices.iter().enumerate() {
            check(&format!("matrix {i}"), got, &values[i], &dy, |w| {
                let mut values = wide_values.clone();
                values[i] = w.to_vec();
                oracle.forward(&values, &wide(&x))
            });
        }
        for (i, squares) in one.outputs.iter().enumerate() {
            assert!(squares.len() == tokens && squares.iter().sum::<f32>() > 0.0, "{i}");
        }
        for (i, (got, weight)) in one.norms.norms().into_iter().zip(vectors.norms()).enumerate() {
            assert_eq!(got.is_some(), weight.is_some(), "norm {i}");
            let (Some(got), Some(weight)) = (got, weight) else { continue };
            check(&format!("norm {i}"), got, weight, &dy, |w| {
                let mut oracle = oracle.clone();
                oracle.norms[i] = Some(w.to_vec());
                oracle.forward(&wide_values, &wide(&x))
            });
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let cpu = Cpu::new(1).expect("a thread");
    let length = |result: Result<(), CpuError>| matches!(result, Err(CpuError::Length { .. }));
    assert!(length(grad::rms_norm(&cpu, &[1.0; 4], &[1.0; 2], 0.1, &[1.0; 3], &mut [0.0; 4])));
    assert!(length(grad::rms_norm(&cpu, &[1.0; 4], &[1.0; 2], 0.1, &[1.0; 4], &mut [0.0; 5])));
    assert!(grad::rms_norm(&cpu, &[1.0; 3], &[1.0; 2], 0.1, &[1.0; 3], &mut [0.0; 3]).is_err());
    let silu = GatedActivation::SiLu;
    assert!(length(grad::gated(&cpu, &[1.0], &[1.0; 2], silu, &[1.0], &mut [0.0], &mut [0.0])));
    assert!(length(grad::gated(&cpu, &[1.0], &[1.0], silu, &[1.0], &mut [0.0], &mut [])));
    let spec = AttentionSpec { heads: 2, kv_heads: 2, head_dim: 1, scale: 1.0, window: None };
    let attend = |spec: &AttentionSpec, q: usize, kv: usize| {
        let (q, kv) = (vec![1.0; q], vec![1.0; kv]);
        let (mut dq, mut dk, mut dv) = (q.clone(), kv.clone(), kv.clone());
        grad::attention(&cpu, spec, [&q, &kv, &kv], &[2], &q, [&mut dq, &mut dk, &mut dv])
    };
    assert!(attend(&spec, 4, 4).is_ok());
    for (q, kv) in [(3, 4), (4, 3), (5, 4), (4, 5)] {
        assert!(length(attend(&spec, q, kv)), "{q} {kv}");
    }
    let odd = AttentionSpec { heads: 3, ..spec };
    assert!(matches!(attend(&odd, 6, 4), Err(CpuError::Heads { heads: 3, kv_heads: 2 })));
    let linear = Linear::new(2, 3, vec![1.0; 6]).expect("a matrix");
    assert!(Linear::new(2, 3, vec![1.0; 5]).is_err());
    assert!(linear.forward(&cpu, &[1.0; 4]).is_err() && linear.input(&cpu, &[1.0; 3]).is_err());
    assert!(linear.weight(&cpu, &[1.0; 3], &[1.0; 4]).is_err());
    let (shape, vectors) = shapes().into_iter().next().expect("one");
    let values = shape.matrices().map(|(rows, cols)| vec![0.1; rows * cols]);
    let mut short = values.clone();
    short[3].pop();
    assert!(BlockMatrices::new(&shape, short).is_err());
    let matrices = BlockMatrices::new(&shape, values).expect("shapes fit");
    let block = Block { cpu: &cpu, shape: &shape, vectors: &vectors, matrices: &matrices };
    assert!(block.forward(vec![1.0; 3 * shape.hidden + 1], &[3]).is_err());
    let (_, tape) = block.forward(vec![1.0; 3 * shape.hidden], &[3]).expect("it runs");
    assert!(block.backward(&tape, vec![1.0; 3 * shape.hidden - 1], false).is_err());
}
