//! The tuned block compared with the block of the backend, and the steps of tuning.

#[cfg(feature = "gpu")]
mod device;

use std::{borrow::Borrow, convert::Infallible, ops::ControlFlow};

use trike_autodiff::{EngineValues, MixedPrecision, TapeEngine};
use trike_core::{DenseTensor, Tensor};
use trike_cpu::{Cpu, DenseData, DenseMatrix, GatedActivation, RopePairing};
use trike_model::{AttentionLayer, AttentionOps, LayerInput, LayerOps, LayerSet};
use trike_nn::{
    ActivationPrecision, AttentionSpec, BackendWeights, Biases, BlockContext, CpuBackend, DecoderBlock,
    DecoderSpec, DecoderWeights, NnError, RopeSpec, ScaleFactors, WeightName,
};
use trike_testkit::{
    Rng, assert_all_near, assert_close,
    exact::{self, Heads, assert_gradient, wide},
};

use super::{
    tape::{BlockValues, Recording, TapeSpec, VectorValues, Wanted},
    text::{Text, schedule},
    vectors::Vectors,
};
use crate::streams::{Embedding, embed};

fn plain() -> DecoderSpec {
    DecoderSpec {
        intermediate: 28,
        kv_heads: 2,
        head_dim: 6,
        context: 64,
        tied_head: true,
        ..DecoderSpec::llama(20, 1, 4, 31)
    }
}

/// Specs that cover every option of the block.
fn specs() -> [DecoderSpec; 3] {
    [
        DecoderSpec { rope: RopeSpec::new(500.0, RopePairing::Adjacent), window: Some(3), ..plain() },
        DecoderSpec {
            biases: Biases { qkv: true, output: true, mlp: true },
            qk_norm: true,
            factors: ScaleFactors { residual: 0.4, ..ScaleFactors::default() },
            rms_eps: 0.1,
            // Block 0 does not rotate and has no window.
            rope_layers: LayerSet::Listed(Vec::new()),
            window: Some(2),
            window_layers: LayerSet::Listed(Vec::new()),
            ..plain()
        },
        DecoderSpec { activation: GatedActivation::SquaredReLu, sub_norms: true, kv_heads: 4, ..plain() },
    ]
}

/// Random weights of block 0, the same for each request of a name.
struct Weights<'a>(&'a DecoderSpec);

impl Weights<'_> {
    fn values(&self, name: WeightName, len: usize, around: f32, spread: f32) -> Vec<f32> {
        let seed = name.to_string().bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
        Rng::new(seed).normals(len).iter().map(|v| around + spread * v).collect()
    }

    fn matrix(&self, name: WeightName) -> (usize, usize, Vec<f32>) {
        let (rows, cols) = self.0.shape(name);
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
fn a_block_on_a_tape_is_the_block_on_a_backend() {
    for spec in specs() {
        let cpu = Cpu::new(2).unwrap();
        let backend = CpuBackend::new(cpu.clone(), ActivationPrecision::F32);
        let rope = backend.load_rope(&spec.rope, spec.head_dim, spec.context).unwrap();
        let block = DecoderBlock::load(&backend, &spec, 0, &mut Weights(&spec)).unwrap();
        let table = DenseData::F32(Rng::new(1).normals(spec.vocab * spec.hidden));
        let table = DenseMatrix::new(spec.vocab, spec.hidden, table).unwrap().into();
        let table = Embedding { table, factor: 1.0 };
        let mut rng = Rng::new(2);
        let ids = LENGTHS.map(|n| (0..n).map(|_| rng.below(spec.vocab) as u32).collect::<Vec<_>>());
        let [batch] = embed(&backend, &table, &ids).unwrap().try_into().ok().expect("one batch");
        let place = BlockContext { backend: &backend, spec: &spec, rope: &rope };
        let want = batch.through(place, &block, |_, _, _| ControlFlow::Continue(()), None).unwrap();

        let shared = TapeSpec::new(&cpu, &spec, 9).unwrap();
        let vectors = Vectors::load(&spec, 0, &mut Weights(&spec)).unwrap();
        let matrices =
            WeightName::matrices(0).map(|name| EngineValues::Owned(Weights::matrix(&Weights(&spec), name).2));
        let vectors = VectorValues::new(&cpu, &vectors).unwrap();
        let values = BlockValues { matrices, trained: [false; 7], vectors };
        let mut recording = Recording::new(&cpu, &shared, &batch.x, &LENGTHS, Wanted::default()).unwrap();
        recording.block(0, &values).unwrap();
        let got = recording.into_output().unwrap();
        assert_close(&got, &want, 1e-4);
    }
}

/// The block in f64.
struct Exact<'a> {
    spec: &'a DecoderSpec,
    matrices: &'a [Vec<f64>; 7],
    norms: &'a [Option<Vec<f64>>; 6],
    biases: &'a [Option<Vec<f32>>; 7],
}

impl Exact<'_> {
    fn run(&self, x: &[f64]) -> Vec<f64> {
        let mut x = x.to_vec();
        let mut ops = Exact { ..*self };
        trike_model::block(&mut ops, self.spec, 0, &mut x, &mut ()).expect("no failure");
        x
    }

    fn norm(&self, x: &[f64], name: WeightName) -> Vec<f64> {
        let weight = self.norms[name.norm_index().expect("a norm")].as_ref().expect("a weight");
        let is_of_stream = matches!(name, WeightName::AttentionNorm(_) | WeightName::MlpNorm(_));
        // The stream is stored divided by the factor; the norm applies to the undivided stream.
        let by = if is_of_stream { f64::from(self.spec.factors.residual) } else { 1.0 };
        let x: Vec<f64> = x.iter().map(|x| by * x).collect();
        exact::rms_norm(&x, weight, f64::from(self.spec.rms_eps))
    }

    fn linear(&self, x: &[f64], name: WeightName) -> Vec<f64> {
        let index = name.matrix_index().expect("a matrix");
        let mut y = exact::linear(x, &self.matrices[index], self.spec.shape(name).1);
        if let Some(bias) = &self.biases[index] {
            y.chunks_exact_mut(bias.len())
                .for_each(|row| row.iter_mut().zip(bias).for_each(|(y, b)| *y += f64::from(*b)));
        }
        y
    }
}

impl LayerOps for Exact<'_> {
    type Tensor = Vec<f64>;
    type Error = Infallible;

    fn project<const N: usize>(
        &mut self,
        x: &Vec<f64>,
        norm: WeightName,
        layers: [WeightName; N],
    ) -> Result<[Vec<f64>; N], Infallible> {
        let x = self.norm(x, norm);
        Ok(layers.map(|layer| self.linear(&x, layer)))
    }

    fn project_add(
        &mut self,
        input: LayerInput<'_, Vec<f64>>,
        norm: Option<WeightName>,
        layer: WeightName,
        x: &mut Vec<f64>,
    ) -> Result<(), Infallible> {
        let input = match input {
            LayerInput::Plain(input) => input.clone(),
            LayerInput::Gated { gate, up, activation } => {
                let f = match activation {
                    GatedActivation::SiLu => exact::silu,
                    GatedActivation::SquaredReLu => exact::squared_relu,
                };
                gate.iter().zip(up).map(|(g, u)| f(*g) * u).collect()
            }
        };
        let input = norm.map_or(input.clone(), |norm| self.norm(&input, norm));
        x.iter_mut().zip(self.linear(&input, layer)).for_each(|(x, y)| *x += y);
        Ok(())
    }
}

impl AttentionOps<()> for Exact<'_> {
    fn head_norm(&mut self, x: Vec<f64>, norm: WeightName) -> Result<Vec<f64>, Infallible> {
        Ok(self.norm(&x, norm))
    }

    fn attend(
        &mut self,
        layer: AttentionLayer,
        [q, k, v]: [Vec<f64>; 3],
        (): &mut (),
    ) -> Result<Vec<f64>, Infallible> {
        let AttentionSpec { heads, kv_heads, head_dim, scale, window } = self.spec.attention(layer);
        let frequencies = wide(&self.spec.rope.frequencies(head_dim));
        let adjacent = self.spec.rope.pairing == RopePairing::Adjacent;
        let [q, k] = [(q, heads), (k, kv_heads)].map(|(x, heads)| {
            let positions = LENGTHS.iter().flat_map(|&n| 0..n as u32);
            if !layer.rope {
                return x;
            }
            let rows = x.chunks_exact(heads * head_dim).zip(positions);
            rows.flat_map(|(x, at)| exact::rope(x, head_dim, at, &frequencies, adjacent))
                .collect::<Vec<f64>>()
        });
        let heads = Heads { heads, kv_heads, head_dim, scale: f64::from(scale), window };
        Ok(exact::attention(heads, [&q, &k, &v], &LENGTHS))
    }
}

/// A random block with the input and the gradient of its output.
struct RandomBlock {
    spec: DecoderSpec,
    vectors: Vectors,
    /// In the order of [`WeightName::matrices`].
    values: [Vec<f32>; 7],
    x: Vec<f32>,
    dy: Vec<f32>,
}

/// Results of both passes through a block.
#[derive(PartialEq)]
struct Passed {
    y: Vec<f32>,
    /// In the order of [`WeightName::of_block`].
    gradients: Vec<Option<Vec<f32>>>,
    /// In the order of [`WeightName::matrices`].
    outputs: Vec<Vec<f32>>,
    input: Vec<f32>,
}

impl RandomBlock {
    fn new(spec: DecoderSpec) -> Self {
        let vectors = Vectors::load(&spec, 0, &mut Weights(&spec)).unwrap();
        let values = WeightName::matrices(0).map(|name| Weights::matrix(&Weights(&spec), name).2);
        let mut rng = Rng::new(3);
        let [x, dy] = [(); 2].map(|()| rng.normals(LENGTHS.iter().sum::<usize>() * spec.hidden));
        Self { spec, vectors, values, x, dy }
    }

    /// Forward and backward pass, all products in f32.
    fn pass<E: TapeEngine>(&self, engine: &E) -> Passed {
        let mut shared = TapeSpec::new(engine, &self.spec, 9).unwrap();
        shared.precision = MixedPrecision::default();
        let matrices = self.values.each_ref().map(|values| engine.borrow_or_upload(values).unwrap());
        let vectors = VectorValues::new(engine, &self.vectors).unwrap();
        let block = BlockValues { matrices, trained: [true; 7], vectors };
        let wanted = Wanted { weights: true, input: true, outputs: true };
        let x = engine.upload(self.x.clone()).unwrap();
        let mut recording = Recording::new(engine, &shared, x.borrow(), &LENGTHS, wanted).unwrap();
        recording.block(0, &block).unwrap();
        let y = engine.download(recording.output().unwrap()).unwrap().into_owned();
        let mut found = recording.backward(engine.upload(self.dy.clone()).unwrap()).unwrap();
        let gradient = |name| found.of(engine, name).unwrap().map(std::borrow::Cow::into_owned);
        let gradients = WeightName::of_block(0).into_iter().map(gradient).collect();
        let outputs = WeightName::matrices(0).map(|name| found.of_outputs(name).to_vec()).to_vec();
        let input = found.take_input().unwrap();
        let input = engine.download(input.borrow()).unwrap().into_owned();
        Passed { y, gradients, outputs, input }
    }
}

#[test]
fn gradients_of_a_block_are_its_derivatives() {
    for spec in specs() {
        let block = RandomBlock::new(DecoderSpec { hidden: 10, intermediate: 13, ..spec });
        let one = block.pass(&Cpu::new(1).unwrap());
        assert!(one == block.pass(&Cpu::new(3).unwrap()), "threads change nothing");
        let Passed { y, gradients: all, outputs, input } = one;
        let RandomBlock { spec, vectors, values, x, dy } = block;
        let tokens = x.len() / spec.hidden;
        let (matrices, norms) = (
            values.each_ref().map(|values| wide(values)),
            vectors.norms.each_ref().map(|norm| norm.as_deref().map(wide)),
        );
        let exact = Exact { spec: &spec, matrices: &matrices, norms: &norms, biases: &vectors.biases };
        assert_all_near!(&wide(&y), &exact.run(&wide(&x)), abs = 1e-4);
        assert_gradient("input", &input, &x, &dy, |x| exact.run(x));
        for (name, got) in WeightName::of_block(0).into_iter().zip(&all) {
            let what = name.to_string();
            match (name.matrix_index(), name.norm_index()) {
                (Some(index), _) => {
                    assert_gradient(&what, got.as_ref().unwrap(), &values[index], &dy, |w| {
                        let mut matrices = matrices.clone();
                        matrices[index] = w.to_vec();
                        Exact { matrices: &matrices, ..exact }.run(&wide(&x))
                    });
                }
                (None, Some(index)) if spec.has(name) => {
                    let weight = vectors.norms[index].as_ref().unwrap();
                    assert_gradient(&what, got.as_ref().unwrap(), weight, &dy, |w| {
                        let mut norms = norms.clone();
                        norms[index] = Some(w.to_vec());
                        Exact { norms: &norms, ..exact }.run(&wide(&x))
                    });
                }
                _ => assert!(got.is_none(), "{what}"),
            }
        }
        // The output of the last matrix is added to the block's.
        let squares = dy.chunks_exact(spec.hidden).map(|dy| dy.iter().map(|d| d * d).sum::<f32>());
        let means: Vec<f32> = squares.map(|sum| sum / spec.hidden as f32).collect();
        assert_all_near!(&outputs[6], &means, abs = 1e-5);
        assert!(outputs.iter().all(|squares| squares.len() == tokens && squares.iter().sum::<f32>() > 0.0));
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
