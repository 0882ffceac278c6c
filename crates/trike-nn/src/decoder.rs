//! The one decoder block, and the model made of it.

use crate::{
    AttentionSpec, Backend, DecoderSpec, DecoderWeights, Input, KvSpec, NnError, Norm, Segment, Sequence, Weight,
    WeightName,
};

/// For which tokens of a step logits are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// The last of each sequence.
    Last,
    /// All.
    All,
}

/// What one sequence does in a step: it reads `ids`.
pub struct Step<'a, B: Backend> {
    /// The sequence; its cache grows.
    pub sequence: &'a mut Sequence<B>,
    /// New token ids, at least one.
    pub ids: &'a [u32],
}

/// A linear layer.
struct Linear<B: Backend> {
    weight: B::Matrix,
    bias: Option<B::Vector>,
}

/// Attention and gated MLP, each behind an RMSNorm and added to the residual stream.
struct Block<B: Backend> {
    attention_norm: B::Vector,
    query: Linear<B>,
    key: Linear<B>,
    value: Linear<B>,
    qk_norm: Option<(B::Vector, B::Vector)>,
    attention_sub_norm: Option<B::Vector>,
    output: Linear<B>,
    mlp_norm: B::Vector,
    gate: Linear<B>,
    up: Linear<B>,
    mlp_sub_norm: Option<B::Vector>,
    down: Linear<B>,
}

impl<B: Backend> Block<B> {
    fn linears(&self) -> [&Linear<B>; 7] {
        [&self.query, &self.key, &self.value, &self.output, &self.gate, &self.up, &self.down]
    }
}

/// A decoder-only language model on a backend.
///
/// ```
/// use trike_cpu::{Cpu, DenseData, DenseMatrix};
/// use trike_nn::{
///     ActivationPrecision, Biases, CpuBackend, Decoder, DecoderSpec, DecoderWeights, GatedActivation, KvPrecision,
///     KvSpec, Logits, NnError, RopePairing, RopeSpec, Step, Weight, WeightName,
/// };
///
/// /// Identity-like matrices and norms of one.
/// struct Simple;
///
/// impl DecoderWeights for Simple {
///     fn matrix(&mut self, name: WeightName) -> Result<Weight, NnError> {
///         let (rows, cols) = if name == WeightName::Embedding { (3, 4) } else { (4, 4) };
///         let values = (0..rows * cols).map(|i| f32::from(i % cols == i / cols)).collect();
///         Ok(Weight::Dense(DenseMatrix::new(rows, cols, DenseData::F32(values))?))
///     }
///
///     fn vector(&mut self, _: WeightName) -> Result<Vec<f32>, NnError> {
///         Ok(vec![1.0; 4])
///     }
/// }
///
/// let spec = DecoderSpec {
///     hidden: 4, intermediate: 4, layers: 1, heads: 2, kv_heads: 2, head_dim: 2, vocab: 3, context: 8,
///     rms_eps: 1e-5, rope: RopeSpec::new(10_000.0, RopePairing::Halves), activation: GatedActivation::SiLu,
///     tied_head: true, window: None, biases: Biases::default(), qk_norm: false, sub_norms: false,
/// };
/// let decoder = Decoder::new(CpuBackend::new(Cpu::new(1)?, ActivationPrecision::F32), spec, &mut Simple)?;
/// let mut sequence = decoder.sequence(KvSpec::new(KvPrecision::F32, 8))?;
/// let logits = decoder.forward(&mut [Step { sequence: &mut sequence, ids: &[2, 1] }], Logits::All)?;
/// assert_eq!(logits[0].len(), 2 * 3);
/// // Every matrix hands its input on, so each token predicts itself.
/// assert!(logits[0][2] > logits[0][0] && logits[0][3 + 1] > logits[0][3]);
/// assert_eq!(sequence.len(), 2);
/// # Ok::<(), NnError>(())
/// ```
pub struct Decoder<B: Backend> {
    backend: B,
    spec: DecoderSpec,
    embedding: B::Matrix,
    blocks: Vec<Block<B>>,
    norm: B::Vector,
    head: Option<B::Matrix>,
    rope: B::Rope,
}

impl<B: Backend> Decoder<B> {
    /// Loads every weight that `spec` asks for, one after the other, into `backend`.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] for a spec that does not fit together, [`NnError::WeightShape`] for a weight of another
    /// shape, and what `weights` or the backend say.
    pub fn new(backend: B, spec: DecoderSpec, weights: &mut impl DecoderWeights) -> Result<Self, NnError> {
        spec.validate()?;
        let (hidden, inner) = (spec.hidden, spec.intermediate);
        let (q, kv) = (spec.query_width(), spec.kv_width());
        let mut loader = Loader { backend: &backend, weights };
        let embedding = loader.matrix(WeightName::Embedding, spec.vocab, hidden)?;
        let mut blocks = Vec::with_capacity(spec.layers);
        for layer in 0..spec.layers {
            use WeightName as W;
            let biases = spec.biases;
            let head_norms = [W::QueryNorm(layer), W::KeyNorm(layer)];
            let bias = |wanted: bool, name: W| wanted.then_some(name);
            let [query, key, value] = loader.linears(
                hidden,
                [
                    (W::Query(layer), q, bias(biases.qkv, W::QueryBias(layer))),
                    (W::Key(layer), kv, bias(biases.qkv, W::KeyBias(layer))),
                    (W::Value(layer), kv, bias(biases.qkv, W::ValueBias(layer))),
                ],
            )?;
            let [output] =
                loader.linears(q, [(W::Output(layer), hidden, bias(biases.output, W::OutputBias(layer)))])?;
            let [gate, up] = loader.linears(
                hidden,
                [
                    (W::Gate(layer), inner, bias(biases.mlp, W::GateBias(layer))),
                    (W::Up(layer), inner, bias(biases.mlp, W::UpBias(layer))),
                ],
            )?;
            let [down] =
                loader.linears(inner, [(W::Down(layer), hidden, bias(biases.mlp, W::DownBias(layer)))])?;
            blocks.push(Block {
                attention_norm: loader.vector(W::AttentionNorm(layer), hidden)?,
                query,
                key,
                value,
                qk_norm: match spec.qk_norm {
                    false => None,
                    true => {
                        let [q, k] = head_norms.map(|name| loader.vector(name, spec.head_dim));
                        Some((q?, k?))
                    }
                },
                attention_sub_norm: loader.optional(spec.sub_norms, W::AttentionSubNorm(layer), q)?,
                output,
                mlp_norm: loader.vector(W::MlpNorm(layer), hidden)?,
                gate,
                up,
                mlp_sub_norm: loader.optional(spec.sub_norms, W::MlpSubNorm(layer), inner)?,
                down,
            });
        }
        let norm = loader.vector(WeightName::FinalNorm, hidden)?;
        let head = match spec.tied_head {
            true => None,
            false => Some(loader.matrix(WeightName::Head, spec.vocab, hidden)?),
        };
        let rope = backend.load_rope(&spec.rope, spec.head_dim, spec.context)?;
        Ok(Self { backend, spec, embedding, blocks, norm, head, rope })
    }

    /// Sizes and constants of the model.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Where the model runs.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Where the model runs, to change it between steps.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// The matrices that every step reads: those of the blocks, and the output head.
    pub(crate) fn matrices(&self) -> (impl Iterator<Item = &B::Matrix>, &B::Matrix) {
        let blocks = self.blocks.iter().flat_map(Block::linears).map(|linear| &linear.weight);
        (blocks, self.head.as_ref().unwrap_or(&self.embedding))
    }

    /// Bytes of all resident matrices.
    pub fn weight_bytes(&self) -> usize {
        let (blocks, _) = self.matrices();
        blocks.chain([&self.embedding]).chain(&self.head).map(|m| self.backend.matrix_bytes(m)).sum()
    }

    /// A new, empty sequence.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] when the capacity or window is not usable.
    pub fn sequence(&self, spec: KvSpec) -> Result<Sequence<B>, NnError> {
        Sequence::new(&self.backend, &self.spec, spec)
    }

    /// Runs all `steps` as one ragged batch and returns, for each, its logits as `[tokens, vocab]` row-major:
    /// one row or one for every new token, as `logits` says. Every sequence grows by its tokens.
    ///
    /// # Errors
    ///
    /// [`NnError::EmptyStep`], [`NnError::Token`], [`NnError::ContextFull`] and [`NnError::StepTooLong`], before
    /// anything is changed; what the backend says. After a backend's error the sequences keep their length.
    pub fn forward(&self, steps: &mut [Step<'_, B>], logits: Logits) -> Result<Vec<Vec<f32>>, NnError> {
        for step in steps.iter() {
            step.sequence.check_step(step.ids.len())?;
            if let Some(&id) = step.ids.iter().find(|&&id| id as usize >= self.spec.vocab) {
                return Err(NnError::Token { id, vocab: self.spec.vocab });
            }
        }
        if steps.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<u32> = steps.iter().flat_map(|s| s.ids).copied().collect();
        // `check_step` found that every position is a u32.
        let positions: Vec<u32> =
            steps.iter().flat_map(|s| (0..s.ids.len()).map(|i| (s.sequence.len() + i) as u32)).collect();
        let mut x = self.backend.embed(&self.embedding, &ids)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            self.block(layer, block, &mut x, &positions, steps)?;
        }
        let ends = steps.iter().scan(0, |end, s| {
            *end += s.ids.len();
            Some(*end)
        });
        let last: Vec<usize> = ends.map(|end| end - 1).collect();
        let counts: Vec<usize> = match logits {
            Logits::Last => vec![1; steps.len()],
            Logits::All => steps.iter().map(|s| s.ids.len()).collect(),
        };
        if logits == Logits::Last {
            x = self.backend.select_rows(&x, &last)?;
        }
        let normed = Input::Normed(&x, Norm { weight: &self.norm, eps: self.spec.rms_eps });
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let [out] = self.linear(normed, [head])?;
        let mut all = self.backend.read(out)?;
        for step in steps.iter_mut() {
            step.sequence.advance(step.ids.len());
        }
        // The usual case is one sequence: hand its logits over without a copy.
        if let [_] = counts[..] {
            return Ok(vec![all]);
        }
        Ok(counts.iter().map(|n| all.drain(..n * self.spec.vocab).collect()).collect())
    }

    fn block(
        &self,
        layer: usize,
        block: &Block<B>,
        x: &mut B::Tensor,
        positions: &[u32],
        steps: &mut [Step<'_, B>],
    ) -> Result<(), NnError> {
        let eps = self.spec.rms_eps;
        let normed = Input::Normed(&*x, Norm { weight: &block.attention_norm, eps });
        let [mut q, mut k, v] = self.project(normed, [&block.query, &block.key, &block.value])?;
        if let Some((q_norm, k_norm)) = &block.qk_norm {
            q = self.backend.head_norm(&q, q_norm, eps)?;
            k = self.backend.head_norm(&k, k_norm, eps)?;
        }
        self.backend.rope(&mut q, &self.rope, positions)?;
        self.backend.rope(&mut k, &self.rope, positions)?;
        let mut row = 0;
        let mut segments: Vec<_> = steps
            .iter_mut()
            .map(|step| {
                let first_position = step.sequence.len();
                let window = [step.sequence.window(), self.spec.window].into_iter().flatten().min();
                let rows = row..row + step.ids.len();
                row = rows.end;
                Segment { rows, first_position, window, cache: &mut step.sequence.caches[layer] }
            })
            .collect();
        let spec = AttentionSpec::of(&self.spec);
        let attended = self.backend.attention(&spec, &q, &k, &v, &mut segments)?;
        let attended = match &block.attention_sub_norm {
            None => Input::Plain(&attended),
            Some(weight) => Input::Normed(&attended, Norm { weight, eps }),
        };
        self.project_add(attended, &block.output, x)?;

        let normed = Input::Normed(&*x, Norm { weight: &block.mlp_norm, eps });
        let [gate, up] = self.project(normed, [&block.gate, &block.up])?;
        let norm = block.mlp_sub_norm.as_ref().map(|weight| Norm { weight, eps });
        let inner = Input::Gated { gate: &gate, up: &up, activation: self.spec.activation, norm };
        self.project_add(inner, &block.down, x)
    }

    fn project<const N: usize>(
        &self,
        input: Input<'_, B>,
        layers: [&Linear<B>; N],
    ) -> Result<[B::Tensor; N], NnError> {
        let mut outs = self.linear(input, layers.map(|layer| &layer.weight))?;
        for (out, layer) in outs.iter_mut().zip(layers) {
            if let Some(bias) = &layer.bias {
                self.backend.add_bias(out, bias)?;
            }
        }
        Ok(outs)
    }

    /// Adds a layer's output to the residual stream.
    fn project_add(&self, input: Input<'_, B>, layer: &Linear<B>, x: &mut B::Tensor) -> Result<(), NnError> {
        self.backend.linear_add(input, &layer.weight, x)?;
        match &layer.bias {
            Some(bias) => self.backend.add_bias(x, bias),
            None => Ok(()),
        }
    }

    fn linear<const N: usize>(
        &self,
        input: Input<'_, B>,
        weights: [&B::Matrix; N],
    ) -> Result<[B::Tensor; N], NnError> {
        let outs = self.backend.linear_of(input, &weights)?;
        let got = outs.len();
        outs.try_into().map_err(|_| NnError::Shape { what: "outputs of a linear pass", expected: N, got })
    }
}

/// Checks shapes on the way into the backend.
struct Loader<'a, B, W> {
    backend: &'a B,
    weights: &'a mut W,
}

impl<B: Backend, W: DecoderWeights> Loader<'_, B, W> {
    fn matrix(&mut self, name: WeightName, rows: usize, cols: usize) -> Result<B::Matrix, NnError> {
        let weight: Weight = self.weights.matrix(name)?;
        check(name, (rows, cols), (weight.rows(), weight.cols()))?;
        self.backend.load_matrix(weight)
    }

    /// Layers that share their input: name, rows and bias of each.
    fn linears<const N: usize>(
        &mut self,
        cols: usize,
        layers: [(WeightName, usize, Option<WeightName>); N],
    ) -> Result<[Linear<B>; N], NnError> {
        let weights = &mut *self.weights;
        let mut each = layers.iter().map(|&(name, rows, _)| {
            let weight = weights.matrix(name)?;
            check(name, (rows, cols), (weight.rows(), weight.cols()))?;
            Ok(weight)
        });
        let matrices = self.backend.load_matrices(&mut each)?;
        let got = matrices.len();
        let mut linears = Vec::with_capacity(N);
        for (weight, (_, rows, bias)) in matrices.into_iter().zip(layers) {
            let bias = bias.map(|name| self.vector(name, rows)).transpose()?;
            linears.push(Linear { weight, bias });
        }
        let count = NnError::Shape { what: "resident matrices", expected: N, got };
        linears.try_into().map_err(|_| count)
    }

    fn optional(&mut self, wanted: bool, name: WeightName, len: usize) -> Result<Option<B::Vector>, NnError> {
        wanted.then(|| self.vector(name, len)).transpose()
    }

    fn vector(&mut self, name: WeightName, len: usize) -> Result<B::Vector, NnError> {
        let values = self.weights.vector(name)?;
        check(name, (1, len), (1, values.len()))?;
        self.backend.load_vector(values)
    }
}

fn check(name: WeightName, expected: (usize, usize), got: (usize, usize)) -> Result<(), NnError> {
    if expected == got {
        return Ok(());
    }
    Err(NnError::WeightShape {
        name: name.to_string(),
        expected_rows: expected.0,
        expected_cols: expected.1,
        got_rows: got.0,
        got_cols: got.1,
    })
}
