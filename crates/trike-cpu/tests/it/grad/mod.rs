//! Backward passes compared with central differences of an independent f64 forward pass.

mod oracle;

use oracle::{attention, gated, rope};
use trike_cpu::{AttentionSpec, Cpu, CpuError, GatedActivation, RopePairing, RopeTable, grad};
use trike_testkit::{
    Rng, assert_all_near, assert_near,
    exact::{STEP, assert_gradient as check, rms_norm, wide},
};

/// Relative to an element of a gradient: far above f32 rounding, far below a wrong term.
const BOUND: f64 = 1e-3;

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
                // At 0 the gradient of SiLU is about 1 and that of the other is 0: shifted so that a single element has a gradient.
                let gate: Vec<f32> = gate.iter().map(|g| 3.0 * g + 0.5).collect();
                let (mut d_gate, mut d_up) = (vec![f32::NAN; n], vec![f32::NAN; n]);
                grad::gated(&cpu, &gate, &up, activation, &dy, &mut d_gate, &mut d_up).expect("shapes fit");
                // Each output depends on one input: all differences in one pass.
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
                // A query that sees only itself has no gradient, nor does its key.
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
}
