//! Central differences along random directions.

use std::sync::Arc;

use trike_autodiff::{GradError, Rotary, Tape, Var};
use trike_cpu::{AttentionSpec, Cpu, GatedActivation, RopePairing, RopeTable};
use trike_testkit::{Rng, assert_near};

use super::{Parameters, backward, forward, normals, upstream};

/// Relative to the length of the gradient.
const BOUND: f64 = 1e-3;

/// Compares the gradients of `f` with differences, along a random direction for each parameter.
#[track_caller]
fn check(what: &str, parameters: &Parameters, f: impl Fn(&mut Tape<'_>, &[Var]) -> Result<Var, GradError>) {
    let cpu = Cpu::new(1).expect("a thread");
    let (output, gradients) = backward(&cpu, parameters, upstream, &f);
    let dy = upstream(output.len());
    let mut rng = Rng::new(5);
    for (i, gradient) in gradients.iter().enumerate() {
        let direction = rng.normals(gradient.len());
        let loss = |step: f32| {
            let mut moved = parameters.clone();
            moved[i].0.iter_mut().zip(&direction).for_each(|(w, d)| *w += step * d);
            let y = forward(&cpu, &moved, &f);
            y.iter().zip(&dy).map(|(y, d)| f64::from(*y) * f64::from(*d)).sum::<f64>()
        };
        let slope = |step: f32| (loss(step) - loss(-step)) / f64::from(2.0 * step);
        // Richardson extrapolation of two step sizes: a fourth-order error allows steps far above the rounding of f32.
        let want = (4.0 * slope(1.0 / 64.0) - slope(1.0 / 32.0)) / 3.0;
        let pairs = gradient.iter().zip(&direction);
        let got: f64 = pairs.map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
        let length = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        assert!(length > 1e-2, "{what}, parameter {i}: nothing to compare with");
        assert_near!(got, want, abs = BOUND * length, "{what}, parameter {i}");
    }
}

#[test]
fn linear() {
    check("linear", &normals(1, &[(5, 7), (4, 7), (1, 4)]), |tape, p| tape.linear(p[0], p[1], Some(p[2])));
    check("square", &normals(2, &[(3, 3)]), |tape, p| tape.linear(p[0], p[0], None));
}

#[test]
fn rms_norm() {
    check("rows", &normals(3, &[(4, 10), (1, 10)]), |tape, p| tape.rms_norm(p[0], p[1], 1e-2));
    check("heads", &normals(4, &[(4, 12), (1, 4)]), |tape, p| tape.rms_norm(p[0], p[1], 1e-2));
}

#[test]
fn gated_and_sums() {
    for activation in [GatedActivation::SiLu, GatedActivation::SquaredReLu] {
        check("gated", &normals(5, &[(3, 9), (3, 9)]), |tape, p| {
            let y = tape.gated(p[0], p[1], activation)?;
            let y = tape.add(y, p[0])?;
            tape.add(y, y)
        });
    }
}

fn rotary(head_dim: usize, lengths: &[usize], pairing: RopePairing) -> Rotary {
    let table = Arc::new(RopeTable::new(head_dim, 100.0).expect("even"));
    Rotary { table, pairing, positions: lengths.iter().flat_map(|&n| 0..n as u32).collect() }
}

#[test]
fn rope_and_attention() {
    for (pairing, window, lengths) in
        [(RopePairing::Halves, None, [5, 3]), (RopePairing::Adjacent, Some(2), [1, 7])]
    {
        let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 6, scale: 0.4, window };
        let rotary = rotary(6, &lengths, pairing);
        let lengths: Arc<[usize]> = lengths.into();
        check("attention", &normals(6, &[(8, 24), (8, 12), (8, 12)]), |tape, p| {
            let (q, k) = (tape.rope(p[0], 4, &rotary)?, tape.rope(p[1], 2, &rotary)?);
            tape.attention(&spec, [q, k, p[2]], &lengths)
        });
    }
}

#[test]
fn embedding_and_losses() {
    let ids: Arc<[u32]> = [3, 0, 3, 5].into();
    let targets = [Some(0), None, Some(5), Some(2)];
    check("cross-entropy, tied", &normals(7, &[(6, 8)]), |tape, p| {
        let h = tape.embed(p[0], &ids)?;
        Ok(tape.cross_entropy(h, p[0], &targets, 0.7)?.var)
    });
    let teacher = Rng::new(8).normals(4 * 9);
    check("divergence", &normals(9, &[(4, 8), (9, 8)]), |tape, p| {
        let loss = tape.divergence(p[0], p[1], 0.3, |rows, out| {
            out.copy_from_slice(&teacher[rows.start * 9..rows.end * 9]);
            Ok(())
        });
        Ok(loss?.var)
    });
}
