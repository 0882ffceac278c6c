//! Trains a decoder of all operations; its bits do not depend on the number of threads.

use std::sync::Arc;

use trike_autodiff::{BitLinearSpec, Buffers, GradError, Rotary, Tape, TernarizeSpec, Var};
use trike_cpu::{AttentionSpec, Cpu, GatedActivation, RopePairing, RopeTable};
use trike_testkit::Rng;
use trike_trit::{Granularity, GroupSize};

const HIDDEN: usize = 64;
const LAYERS: usize = 2;
const VOCABULARY: usize = 50;
const MATRICES: [(usize, usize); 7] =
    [(64, HIDDEN), (32, HIDDEN), (32, HIDDEN), (HIDDEN, 64), (96, HIDDEN), (96, HIDDEN), (HIDDEN, 96)];

/// Elements and columns of the parameters: embedding, then two norms and seven matrices per layer, final norm.
fn parameters() -> Vec<(Vec<f32>, usize)> {
    let mut rng = Rng::new(1);
    let norm = || (vec![1.0; HIDDEN], HIDDEN);
    let mut all = vec![(rng.normals(VOCABULARY * HIDDEN).iter().map(|w| 0.1 * w).collect(), HIDDEN)];
    for _ in 0..LAYERS {
        all.extend([norm(), norm()]);
        let matrix = |&(rows, cols): &(usize, usize)| {
            (rng.normals(rows * cols).iter().map(|w| 0.1 * w).collect(), cols)
        };
        all.extend(MATRICES.iter().map(matrix));
    }
    all.push(norm());
    all
}

fn loss(
    tape: &mut Tape<'_>,
    p: &[Var],
    ids: &Arc<[u32]>,
    targets: &[Option<u32>],
    lengths: &Arc<[usize]>,
) -> Result<trike_autodiff::TapeLoss, GradError> {
    let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 16, scale: 0.25, window: None };
    let rotary = Rotary {
        table: Arc::new(RopeTable::new(16, 1e4).expect("even")),
        pairing: RopePairing::Halves,
        positions: lengths.iter().flat_map(|&n| 0..n as u32).collect(),
    };
    let weights = TernarizeSpec::default().with_granularity(Granularity::Group(GroupSize::G32));
    let how = BitLinearSpec { weights, ..BitLinearSpec::default() };
    let mut h = tape.embed(p[0], ids)?;
    for p in p[1..].chunks_exact(9) {
        let x = tape.rms_norm(h, p[0], 1e-5)?;
        let [q, k, v] = [p[2], p[3], p[4]].map(|w| tape.bit_linear(x, w, None, &how));
        let (q, k) = (tape.rope(q?, 4, &rotary)?, tape.rope(k?, 2, &rotary)?);
        let attended = tape.attention(&spec, [q, k, v?], lengths)?;
        let output = tape.bit_linear(attended, p[5], None, &how)?;
        h = tape.add(h, output)?;
        let x = tape.rms_norm(h, p[1], 1e-5)?;
        let [gate, up] = [p[6], p[7]].map(|w| tape.bit_linear(x, w, None, &how));
        let gated = tape.gated(gate?, up?, GatedActivation::SiLu)?;
        let down = tape.bit_linear(gated, p[8], None, &how)?;
        h = tape.add(h, down)?;
    }
    let h = tape.rms_norm(h, p[p.len() - 1], 1e-5)?;
    tape.cross_entropy(h, p[0], targets, 1.0 / targets.iter().flatten().count() as f32)
}

/// Trains on sequences that count upwards; returns the losses and the final weights.
fn train(threads: usize, steps: usize) -> (Vec<f64>, Vec<Vec<f32>>) {
    let cpu = Cpu::new(threads).expect("a few threads");
    let buffers = Buffers::default();
    let mut weights = parameters();
    let mut rng = Rng::new(2);
    let lengths: Arc<[usize]> = [70, 26, 32].into();
    let mut losses = Vec::new();
    for _ in 0..steps {
        let starts: Vec<usize> = lengths.iter().map(|_| rng.below(VOCABULARY)).collect();
        let token = |i: usize| (i % VOCABULARY) as u32;
        let each = || lengths.iter().zip(&starts).flat_map(|(&n, &first)| first..first + n);
        let ids: Arc<[u32]> = each().map(token).collect();
        let targets: Vec<Option<u32>> = each().map(|i| (i % 7 > 0).then(|| token(i + 1))).collect();
        let mut tape = Tape::new(&cpu, &buffers);
        let vars: Vec<Var> =
            weights.iter().map(|(w, cols)| tape.parameter(w, *cols).expect("rows")).collect();
        let loss = loss(&mut tape, &vars, &ids, &targets, &lengths).expect("it runs");
        losses.push(loss.sum / loss.rows as f64);
        let mut gradients = tape.backward(loss.var).expect("it runs");
        for ((w, _), var) in weights.iter_mut().zip(vars) {
            let gradient = gradients.take(var).expect("every parameter has a gradient");
            let length = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
            assert!(length > 0.0, "a gradient reaches every parameter");
            w.iter_mut().zip(&gradient).for_each(|(w, g)| *w -= 0.3 * g / length.max(1.0));
            buffers.give(gradient);
        }
    }
    (losses, weights.into_iter().map(|(w, _)| w).collect())
}

#[test]
fn weights_are_equal_in_every_run() {
    let (losses, weights) = train(1, 4);
    assert!(losses.iter().all(|loss| loss.is_finite()));
    for run in 0..20 {
        let again = train(1 + run % 3, 4);
        assert_eq!(losses, again.0, "run {run}");
        assert!(weights == again.1, "run {run}");
    }
}

#[test]
fn it_learns() {
    let (losses, _) = train(0, 60);
    assert!(losses[59] < 0.5 * losses[0], "{losses:?}");
}
