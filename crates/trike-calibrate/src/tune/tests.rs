//! The block's forward pass against the backend's, its gradients against differences, and that tuning lowers what it should.

use std::ops::ControlFlow;

use trike_core::{DenseTensor, Tensor};
use trike_cpu::{Cpu, DenseData, DenseMatrix, GatedActivation, RopePairing};
use trike_nn::{
    ActivationPrecision, Backend, Biases, BlockContext, CpuBackend, DecoderBlock, DecoderSpec,
    DecoderWeights, NnError, RopeSpec, WeightName,
};
use trike_testkit::{Rng, assert_close};

use super::{
    Text,
    attend::Turns,
    block::{Fixed, Ground, Matrices, backward, forward, names},
    math::{exp, on_threads},
    schedule,
    whole::divergence,
};
use crate::hidden;

fn plain() -> DecoderSpec {
    DecoderSpec {
        hidden: 20,
        intermediate: 28,
        layers: 1,
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
        vocab: 31,
        context: 64,
        rms_eps: 1e-5,
        rope: RopeSpec::new(10_000.0, RopePairing::Halves),
        activation: GatedActivation::SiLu,
        tied_head: true,
        window: None,
        biases: Biases::default(),
        qk_norm: false,
        sub_norms: false,
    }
}

/// Every switch at least once.
fn specs() -> [DecoderSpec; 3] {
    [
        DecoderSpec { rope: RopeSpec::new(500.0, RopePairing::Adjacent), window: Some(3), ..plain() },
        DecoderSpec { biases: Biases { qkv: true, output: true, mlp: true }, qk_norm: true, ..plain() },
        DecoderSpec { activation: GatedActivation::SquaredReLu, sub_norms: true, kv_heads: 4, ..plain() },
    ]
}

/// Random weights of block 0, the same each time a name is asked for.
struct Weights<'a>(&'a DecoderSpec);

impl Weights<'_> {
    fn values(&self, name: WeightName, len: usize, around: f32, spread: f32) -> Vec<f32> {
        let seed = name.to_string().bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
        Rng::new(seed).normals(len).iter().map(|v| around + spread * v).collect()
    }

    fn matrices(&self) -> Vec<Vec<f32>> {
        let each = names(0).into_iter().zip(Matrices::shapes(self.0));
        each.map(|(name, (rows, cols))| self.values(name, rows * cols, 0.0, (cols as f32).powf(-0.5)))
            .collect()
    }
}

impl DecoderWeights for Weights<'_> {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        let i = names(0).iter().position(|n| *n == name).expect("a matrix of the block");
        let (rows, cols) = Matrices::shapes(self.0)[i];
        Ok(Tensor::Dense(DenseTensor::new(vec![rows, cols], DenseData::F32(self.matrices()[i].clone()))?))
    }

    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError> {
        use WeightName as W;
        let s = self.0;
        Ok(match name {
            W::AttentionNorm(_) | W::MlpNorm(_) => self.values(name, s.hidden, 1.0, 0.2),
            W::QueryNorm(_) | W::KeyNorm(_) => self.values(name, s.head_dim, 1.0, 0.2),
            W::AttentionSubNorm(_) => self.values(name, s.query_width(), 1.0, 0.2),
            W::MlpSubNorm(_) => self.values(name, s.intermediate, 1.0, 0.2),
            W::QueryBias(_) => self.values(name, s.query_width(), 0.0, 0.3),
            W::KeyBias(_) | W::ValueBias(_) => self.values(name, s.kv_width(), 0.0, 0.3),
            W::OutputBias(_) | W::DownBias(_) => self.values(name, s.hidden, 0.0, 0.3),
            _ => self.values(name, s.intermediate, 0.0, 0.3),
        })
    }
}

const LENGTHS: [usize; 3] = [5, 1, 9];

#[test]
fn a_block_here_is_the_block_of_the_backend() {
    for spec in specs() {
        let cpu = Cpu::new(2).unwrap();
        let backend = CpuBackend::new(cpu.clone(), ActivationPrecision::F32);
        let rope = backend.load_rope(&spec.rope, spec.head_dim, spec.context).unwrap();
        let block = DecoderBlock::load(&backend, &spec, 0, &mut Weights(&spec)).unwrap();
        let table = DenseData::F32(Rng::new(1).normals(spec.vocab * spec.hidden));
        let table = DenseMatrix::new(spec.vocab, spec.hidden, table).unwrap().into();
        let mut rng = Rng::new(2);
        let ids = LENGTHS.map(|n| (0..n).map(|_| rng.below(spec.vocab) as u32).collect::<Vec<_>>());
        let [batch] = hidden::embed(&backend, &table, &ids).unwrap().try_into().ok().expect("one batch");
        let place = BlockContext { backend: &backend, spec: &spec, rope: &rope };
        let want = batch.through(place, &block, |_, _, _| ControlFlow::Continue(()), None).unwrap();

        let turns = Turns::new(&spec, 9);
        let ground = Ground { cpu: &cpu, spec: &spec, turns: &turns };
        let fixed = Fixed::load(&spec, 0, |name| Weights(&spec).vector(name)).unwrap();
        let matrices = Matrices::new(&spec, Weights(&spec).matrices()).unwrap();
        let (got, _) = forward(&ground, &fixed, &matrices, batch.x.clone(), &LENGTHS).unwrap();
        assert_close(&got, &want, 1e-4);
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    for spec in specs() {
        let cpu = Cpu::new(2).unwrap();
        let turns = Turns::new(&spec, 9);
        let ground = Ground { cpu: &cpu, spec: &spec, turns: &turns };
        let fixed = Fixed::load(&spec, 0, |name| Weights(&spec).vector(name)).unwrap();
        let mut rng = Rng::new(3);
        let tokens: usize = LENGTHS.iter().sum();
        let (x, by) = (rng.normals(tokens * spec.hidden), rng.normals(tokens * spec.hidden));
        let values = Weights(&spec).matrices();
        let run = |values: &[Vec<f32>], x: &[f32]| {
            let matrices = Matrices::new(&spec, values.to_vec()).unwrap();
            let (y, tape) = forward(&ground, &fixed, &matrices, x.to_vec(), &LENGTHS).unwrap();
            let loss: f64 = y.iter().zip(&by).map(|(y, b)| f64::from(y * b)).sum();
            (loss, matrices, tape)
        };
        let (_, matrices, tape) = run(&values, &x);
        let (mut gradients, dx) = backward(&ground, &fixed, &matrices, &tape, by.clone(), true).unwrap();
        gradients.push(dx);
        for (i, gradient) in gradients.iter().enumerate() {
            // Along a random direction, of length 1 so that the change is small.
            let direction = rng.normals(gradient.len());
            let length = direction.iter().map(|d| d * d).sum::<f32>().sqrt();
            let moved = |h: f32| {
                let (mut values, mut x) = (values.clone(), x.clone());
                let to = if i < values.len() { &mut values[i] } else { &mut x };
                for (to, d) in to.iter_mut().zip(&direction) {
                    *to += h * d / length;
                }
                run(&values, &x).0
            };
            let h = 1e-2;
            let want = (moved(h) - moved(-h)) / f64::from(2.0 * h);
            let got: f64 = gradient.iter().zip(&direction).map(|(g, d)| f64::from(g * d / length)).sum();
            let size = gradient.iter().map(|g| f64::from(g * g)).sum::<f64>().sqrt();
            let error = (got - want).abs();
            assert!(
                error < 1e-2 * size / (gradient.len() as f64).sqrt() + 1e-2,
                "{i}: {got} {want} of {size}"
            );
        }
    }
}

#[test]
fn exponentials_and_divergence() {
    for i in -800..800 {
        let x = i as f32 * 0.1;
        let want = f64::from(x).exp();
        assert!((f64::from(exp(x)) / want - 1.0).abs() < 1e-6, "{x}");
    }
    assert!(exp(-1e9) < 1e-37 && exp(1e9).is_finite());
    let aim = [0.3f32, -1.0, 2.0, 0.0];
    let loss = |out: [f32; 4]| {
        let (mut out, mut aim) = (out, aim);
        (divergence(&mut out, &mut aim, 4), out)
    };
    assert!(loss(aim).0.abs() < 1e-6);
    let out = [1.0f32, 0.5, -0.5, 0.2];
    let (_, gradient) = loss(out);
    for i in 0..4 {
        let moved = |h: f32| {
            let mut out = out;
            out[i] += h;
            loss(out).0
        };
        let want = (moved(1e-2) - moved(-1e-2)) / 2e-2;
        assert!((f64::from(gradient[i]) - want).abs() < 1e-3, "{i}: {} {want}", gradient[i]);
    }
}

#[test]
fn steps_hold_every_sequence_once_and_rates_rise_and_fall() {
    let places: Vec<_> = [3usize, 9, 2, 2, 8].iter().map(|&n| (0, 0..n)).collect();
    let steps = Text::steps(&places, 8);
    let sizes: Vec<Vec<usize>> = steps.iter().map(|s| s.iter().map(|p| p.1.len()).collect()).collect();
    assert_eq!(sizes, [vec![3], vec![9], vec![2, 2], vec![8]]);
    let rates: Vec<f32> = (0..100).map(|i| schedule(i, 100)).collect();
    assert!(rates.iter().all(|r| (0.0..=1.0).contains(r)));
    assert!(rates[0] < 0.2 && rates[5] > 0.95 && rates[99] < 0.01);
    assert!(schedule(0, 1) > 0.0 && schedule(0, 0).is_finite());
}

#[test]
fn threads_do_everything_once() {
    for threads in [1, 2, 5] {
        let mut done = vec![0; 11];
        on_threads(threads, done.iter_mut().collect(), |n: &mut i32| *n += 1);
        assert_eq!(done, [1; 11]);
    }
}
