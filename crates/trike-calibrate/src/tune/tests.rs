//! The block that is tuned against the block of the backend, and the steps of tuning.

use std::ops::ControlFlow;

use trike_core::{DenseTensor, Tensor};
use trike_cpu::{
    Cpu, DenseData, DenseMatrix, GatedActivation, RopePairing,
    grad::{Block, BlockMatrices},
};
use trike_nn::{
    ActivationPrecision, Backend, Biases, BlockContext, CpuBackend, DecoderBlock, DecoderSpec,
    DecoderWeights, NnError, RopeSpec, WeightName,
};
use trike_testkit::{Rng, assert_close};

use super::{
    learner::names,
    norms::vectors,
    shape,
    text::{Text, schedule},
};
use crate::streams::embed;

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

    fn matrix(&self, name: WeightName) -> (usize, usize, Vec<f32>) {
        let i = names(0).iter().position(|n| *n == name).expect("a matrix of the block");
        let (rows, cols) = shape(self.0, 1).expect("a shape").matrices()[i];
        (rows, cols, self.values(name, rows * cols, 0.0, (cols as f32).powf(-0.5)))
    }
}

impl DecoderWeights for Weights<'_> {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        let (rows, cols, values) = Self::matrix(self, name);
        Ok(Tensor::Dense(DenseTensor::new(vec![rows, cols], DenseData::F32(values))?))
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
        let [batch] = embed(&backend, &table, &ids).unwrap().try_into().ok().expect("one batch");
        let place = BlockContext { backend: &backend, spec: &spec, rope: &rope };
        let want = batch.through(place, &block, |_, _, _| ControlFlow::Continue(()), None).unwrap();

        let shape = shape(&spec, 9).unwrap();
        let vectors = vectors(&spec, 0, &mut Weights(&spec)).unwrap();
        let values = names(0).map(|name| Weights::matrix(&Weights(&spec), name).2);
        let matrices = BlockMatrices::new(&shape, values).unwrap();
        let block = Block { cpu: &cpu, shape: &shape, vectors: &vectors, matrices: &matrices };
        let (got, _) = block.forward(batch.x.clone(), &LENGTHS).unwrap();
        assert_close(&got, &want, 1e-4);
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
