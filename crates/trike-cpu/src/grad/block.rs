//! Backward pass of a decoder block: attention and a gated MLP, each after an RMSNorm and added to the residual
//! stream.

use trike_core::{AttentionSpec, GatedActivation, ProductPrecision, RopePairing};
use trike_host::Cpu;

use super::{
    Linear,
    attention::{attend, attention},
    gated::gated,
    lanes::add,
    norm::{rms_norm, rms_norm_weight},
    rotary::rope,
};
use crate::error::{CpuError, check_len};
use crate::ops::CpuOps;
use crate::rope::RopeTable;

const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const O: usize = 3;
const G: usize = 4;
const U: usize = 5;
const D: usize = 6;

/// Shape and constants of a block.
#[derive(Clone, Debug)]
pub struct BlockShape {
    /// Hidden size (width of the residual stream).
    pub hidden: usize,
    /// Intermediate size of the MLP.
    pub intermediate: usize,
    /// Heads, head dimension, scale and window.
    pub attention: AttentionSpec,
    /// Rotary embedding of the heads.
    pub rope: RopeTable,
    /// Pairing of the elements that are rotated together.
    pub pairing: RopePairing,
    /// Activation function of the gate.
    pub activation: GatedActivation,
    /// Epsilon of the norms.
    pub rms_eps: f32,
    /// What the operands of the products of matrices in the backward pass are rounded to.
    pub gradients: ProductPrecision,
}

/// Norms and biases of a block; `None` for those that are absent.
#[derive(Clone, Debug, Default)]
pub struct BlockVectors {
    /// Weight of the norm before attention, `hidden`.
    pub attention_norm: Vec<f32>,
    /// Weights of the norms of each query and each key head, `head_dim`.
    pub qk_norm: Option<[Vec<f32>; 2]>,
    /// Weight of the norm of the attention output, `heads * head_dim`.
    pub attention_sub_norm: Option<Vec<f32>>,
    /// Weight of the norm before the MLP, `hidden`.
    pub mlp_norm: Vec<f32>,
    /// Weight of the norm of the gated activation, `intermediate`.
    pub mlp_sub_norm: Option<Vec<f32>>,
    /// Biases, in the order of [`BlockMatrices`].
    pub biases: [Option<Vec<f32>>; BlockMatrices::COUNT],
}

impl BlockVectors {
    /// Number of norms that a block can have.
    pub const NORMS: usize = 6;

    /// The weights of the norms of attention, queries, keys, attention's output, the MLP and the gated activation.
    pub fn norms(&self) -> [Option<&[f32]>; Self::NORMS] {
        let [q, k] = self.qk_norm.as_ref().map_or([None; 2], |qk| qk.each_ref().map(|norm| Some(&norm[..])));
        let [attention, mlp] = [&self.attention_sub_norm, &self.mlp_sub_norm].map(Option::as_deref);
        [Some(&self.attention_norm), q, k, attention, Some(&self.mlp_norm), mlp]
    }

    /// The same, to be changed.
    pub fn norms_mut(&mut self) -> [Option<&mut [f32]>; Self::NORMS] {
        let [q, k] = match &mut self.qk_norm {
            Some(qk) => qk.each_mut().map(|norm| Some(&mut norm[..])),
            None => [None, None],
        };
        let [attention, mlp] =
            [&mut self.attention_sub_norm, &mut self.mlp_sub_norm].map(Option::as_deref_mut);
        [Some(&mut self.attention_norm), q, k, attention, Some(&mut self.mlp_norm), mlp]
    }
}

/// The matrices of a block: query, key, value, output, gate, up, down.
#[derive(Clone, Debug)]
pub struct BlockMatrices([Linear; Self::COUNT]);

impl BlockMatrices {
    /// Number of matrices of a block.
    pub const COUNT: usize = 7;

    /// Takes the matrices, each `out x in` as given by [`BlockShape::matrices`].
    ///
    /// # Errors
    ///
    /// [`CpuError::Length`] when one has a different size.
    pub fn new(shape: &BlockShape, values: [Vec<f32>; Self::COUNT]) -> Result<Self, CpuError> {
        let each = shape.matrices().into_iter().zip(values);
        let all: Vec<Linear> = each
            .map(
                |((rows, cols), values)| Ok(Linear::new(rows, cols, values)?.with_gradients(shape.gradients)),
            )
            .collect::<Result<_, CpuError>>()?;
        let all = all.try_into().map_err(|all: Vec<_>| CpuError::Length {
            what: "matrices of a block",
            expected: Self::COUNT,
            got: all.len(),
        })?;
        Ok(Self(all))
    }
}

impl BlockShape {
    /// `(out, in)` features of each matrix, in the order of [`BlockMatrices`].
    pub fn matrices(&self) -> [(usize, usize); BlockMatrices::COUNT] {
        let (h, i, q, kv) = (self.hidden, self.intermediate, self.query_width(), self.kv_width());
        [(q, h), (kv, h), (kv, h), (h, q), (i, h), (i, h), (h, i)]
    }

    fn query_width(&self) -> usize {
        self.attention.heads * self.attention.head_dim
    }

    fn kv_width(&self) -> usize {
        self.attention.kv_heads * self.attention.head_dim
    }
}

/// Activations that the backward pass needs: every tensor that an operation read, unless it is cheap to recompute.
#[derive(Clone, Debug)]
pub struct Tape {
    lengths: Vec<usize>,
    positions: Vec<u32>,
    x: Vec<f32>,
    normed: Vec<f32>,
    /// Queries and keys before their norms, if any.
    raw: Option<[Vec<f32>; 2]>,
    /// After rotation.
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    attended: Vec<f32>,
    /// `attended` after its norm, if any.
    output_in: Option<Vec<f32>>,
    middle: Vec<f32>,
    mlp_normed: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    joined: Vec<f32>,
    /// `joined` after its norm, if any.
    down_in: Option<Vec<f32>>,
}

/// Gradients of a loss with respect to the matrices, the norms and the input of a block.
#[derive(Clone, Debug)]
pub struct BlockGradients {
    /// With respect to the matrices, in the order of [`BlockMatrices`], each `out x in`; empty from
    /// [`outputs`](Block::outputs).
    pub matrices: [Vec<f32>; BlockMatrices::COUNT],
    /// With respect to the outputs of the matrices: of each token, the mean square over the outputs.
    pub outputs: [Vec<f32>; BlockMatrices::COUNT],
    /// With respect to the weights of the norms, as far as the block has them; biases are absent.
    pub norms: BlockVectors,
    /// With respect to the input, `tokens x hidden`; empty unless requested.
    pub input: Vec<f32>,
}

/// A decoder block of dense matrices whose forward pass can be differentiated.
///
/// With the residual stream `x`:
///
/// ```text
/// h = x + O attention(rope(Q norm(x)), rope(K norm(x)), V norm(x))
/// y = h + D (f(G norm(h)) * U norm(h))
/// ```
///
/// plus norms of heads, of the attention output and of the gated activation, and biases, if [`BlockVectors`] has them.
/// The operations are those of [`CpuOps`]. The block used for inference (`trike_nn::DecoderBlock`) has a KV cache,
/// fuses norms into products and keeps no intermediate tensors; this block therefore has its own forward pass. A test
/// of `trike-calibrate` checks that both produce the same outputs.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// CPU to run on.
    pub cpu: &'a Cpu,
    /// Shape and constants.
    pub shape: &'a BlockShape,
    /// Norms and biases.
    pub vectors: &'a BlockVectors,
    /// Matrices.
    pub matrices: &'a BlockMatrices,
}

impl Block<'_> {
    /// Forward pass of `x`, `tokens x hidden`: concatenated sequences of `lengths` tokens, each starting at position
    /// 0. Returns the output and the activations for [`backward`](Self::backward).
    ///
    /// # Errors
    ///
    /// [`CpuError::Length`] when the parts do not match, and the errors of the operations.
    pub fn forward(&self, x: Vec<f32>, lengths: &[usize]) -> Result<(Vec<f32>, Tape), CpuError> {
        let Self { cpu, shape, vectors, .. } = *self;
        check_len("input of a block", lengths.iter().sum::<usize>() * shape.hidden, x.len())?;
        let positions: Vec<u32> = lengths.iter().flat_map(|&n| 0..n as u32).collect();
        let spec = &shape.attention;

        let normed = self.norm(&x, &vectors.attention_norm)?;
        let (mut q, mut k) = (self.linear(&normed, Q)?, self.linear(&normed, K)?);
        let v = self.linear(&normed, V)?;
        let raw = match &vectors.qk_norm {
            None => None,
            Some([q_norm, k_norm]) => {
                let (q_normed, k_normed) = (self.norm(&q, q_norm)?, self.norm(&k, k_norm)?);
                Some([std::mem::replace(&mut q, q_normed), std::mem::replace(&mut k, k_normed)])
            }
        };
        for (x, heads) in [(&mut q, spec.heads), (&mut k, spec.kv_heads)] {
            cpu.rope(x, heads, spec.head_dim, &positions, &shape.rope, shape.pairing)?;
        }
        let mut attended = vec![0.0; q.len()];
        attend(cpu, spec, [&q, &k, &v], lengths, &mut attended)?;
        let output_in = vectors.attention_sub_norm.as_ref().map(|w| self.norm(&attended, w)).transpose()?;
        let mut middle = self.linear(output_in.as_ref().unwrap_or(&attended), O)?;
        cpu.add(&mut middle, &x)?;

        let mlp_normed = self.norm(&middle, &vectors.mlp_norm)?;
        let (gate, up) = (self.linear(&mlp_normed, G)?, self.linear(&mlp_normed, U)?);
        let mut joined = vec![0.0; gate.len()];
        cpu.gated(&gate, &up, shape.activation, &mut joined)?;
        let down_in = vectors.mlp_sub_norm.as_ref().map(|w| self.norm(&joined, w)).transpose()?;
        let mut y = self.linear(down_in.as_ref().unwrap_or(&joined), D)?;
        cpu.add(&mut y, &middle)?;

        let lengths = lengths.to_vec();
        let tape = Tape {
            lengths,
            positions,
            x,
            normed,
            raw,
            q,
            k,
            v,
            attended,
            output_in,
            middle,
            mlp_normed,
            gate,
            up,
            joined,
            down_in,
        };
        Ok((y, tape))
    }

    /// Computes the gradients from `dy`, the gradient with respect to the output. That with respect to the input is
    /// returned only with `with_input`.
    ///
    /// # Errors
    ///
    /// [`CpuError::Length`] when `dy` does not have the length of the output.
    pub fn backward(&self, tape: &Tape, dy: Vec<f32>, with_input: bool) -> Result<BlockGradients, CpuError> {
        self.differentiate(tape, dy, true, with_input)
    }

    /// The same without the gradients with respect to the matrices, and with that with respect to the input.
    ///
    /// # Errors
    ///
    /// As [`backward`](Self::backward).
    pub fn outputs(&self, tape: &Tape, dy: Vec<f32>) -> Result<BlockGradients, CpuError> {
        self.differentiate(tape, dy, false, true)
    }

    fn differentiate(
        &self,
        tape: &Tape,
        dy: Vec<f32>,
        with_matrices: bool,
        with_input: bool,
    ) -> Result<BlockGradients, CpuError> {
        let Self { cpu, shape, vectors, matrices } = *self;
        check_len("gradient of a block's output", tape.x.len(), dy.len())?;
        let (m, spec) = (&matrices.0, &shape.attention);
        let mut norms = BlockVectors::default();
        let through =
            |dy: Vec<f32>, x: &[f32], weight: &Option<Vec<f32>>, dw: &mut Option<Vec<f32>>| match weight {
                Some(w) => self.norm_back(x, w, &dy, dw.insert(Vec::new())),
                None => Ok(dy),
            };

        let mut outputs = [const { Vec::new() }; BlockMatrices::COUNT];
        let mut of_matrix = |i: usize, x: &[f32], dy: &[f32]| {
            outputs[i] = mean_squares(dy, shape.matrices()[i].0);
            if with_matrices { m[i].weight(cpu, x, dy) } else { Ok(Vec::new()) }
        };
        let down = of_matrix(D, tape.down_in.as_ref().unwrap_or(&tape.joined), &dy)?;
        let d_joined =
            through(m[D].input(cpu, &dy)?, &tape.joined, &vectors.mlp_sub_norm, &mut norms.mlp_sub_norm)?;
        let (mut d_gate, mut d_up) = (vec![0.0; tape.gate.len()], vec![0.0; tape.up.len()]);
        gated(cpu, &tape.gate, &tape.up, shape.activation, &d_joined, &mut d_gate, &mut d_up)?;
        let gate = of_matrix(G, &tape.mlp_normed, &d_gate)?;
        let up = of_matrix(U, &tape.mlp_normed, &d_up)?;
        let mut d_normed = m[G].input(cpu, &d_gate)?;
        add(&mut d_normed, &m[U].input(cpu, &d_up)?);
        let mut d_middle = dy;
        add(&mut d_middle, &self.norm_back(&tape.middle, &vectors.mlp_norm, &d_normed, &mut norms.mlp_norm)?);

        let output = of_matrix(O, tape.output_in.as_ref().unwrap_or(&tape.attended), &d_middle)?;
        let d_attended = m[O].input(cpu, &d_middle)?;
        let (weight, dw) = (&vectors.attention_sub_norm, &mut norms.attention_sub_norm);
        let d_attended = through(d_attended, &tape.attended, weight, dw)?;
        let [mut dq, mut dk, mut dv] = [&tape.q, &tape.k, &tape.v].map(|x| vec![0.0; x.len()]);
        let inputs = [&tape.q[..], &tape.k, &tape.v];
        attention(cpu, spec, inputs, &tape.lengths, &d_attended, [&mut dq, &mut dk, &mut dv])?;
        for (dx, heads) in [(&mut dq, spec.heads), (&mut dk, spec.kv_heads)] {
            rope(cpu, dx, heads, spec.head_dim, &tape.positions, &shape.rope, shape.pairing)?;
        }
        if let (Some([q, k]), Some([q_norm, k_norm])) = (&tape.raw, &vectors.qk_norm) {
            let [dw_q, dw_k] = norms.qk_norm.insert([Vec::new(), Vec::new()]);
            dq = self.norm_back(q, q_norm, &dq, dw_q)?;
            dk = self.norm_back(k, k_norm, &dk, dw_k)?;
        }
        let query = of_matrix(Q, &tape.normed, &dq)?;
        let key = of_matrix(K, &tape.normed, &dk)?;
        let value = of_matrix(V, &tape.normed, &dv)?;
        let matrices = [query, key, value, output, gate, up, down];
        let mut d_normed = m[Q].input(cpu, &dq)?;
        add(&mut d_normed, &m[K].input(cpu, &dk)?);
        add(&mut d_normed, &m[V].input(cpu, &dv)?);
        let (x, weight) = (&tape.x, &vectors.attention_norm);
        if !with_input {
            norms.attention_norm = self.norm_weight(x, weight, &d_normed)?;
            return Ok(BlockGradients { matrices, outputs, norms, input: Vec::new() });
        }
        add(&mut d_middle, &self.norm_back(x, weight, &d_normed, &mut norms.attention_norm)?);
        Ok(BlockGradients { matrices, outputs, norms, input: d_middle })
    }

    fn linear(&self, x: &[f32], i: usize) -> Result<Vec<f32>, CpuError> {
        let mut y = self.matrices.0[i].forward(self.cpu, x)?;
        if let Some(bias) = &self.vectors.biases[i] {
            check_len("bias of a block", self.shape.matrices()[i].0, bias.len())?;
            y.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
        }
        Ok(y)
    }

    fn norm(&self, x: &[f32], weight: &[f32]) -> Result<Vec<f32>, CpuError> {
        let mut out = vec![0.0; x.len()];
        self.cpu.rms_norm(x, weight, self.shape.rms_eps, &mut out)?;
        Ok(out)
    }

    /// The gradient with respect to the input of a norm; `dw` becomes that with respect to its weight.
    fn norm_back(
        &self,
        x: &[f32],
        weight: &[f32],
        dy: &[f32],
        dw: &mut Vec<f32>,
    ) -> Result<Vec<f32>, CpuError> {
        *dw = self.norm_weight(x, weight, dy)?;
        let mut dx = vec![0.0; x.len()];
        rms_norm(self.cpu, x, weight, self.shape.rms_eps, dy, &mut dx)?;
        Ok(dx)
    }

    fn norm_weight(&self, x: &[f32], weight: &[f32], dy: &[f32]) -> Result<Vec<f32>, CpuError> {
        let mut dw = vec![0.0; weight.len()];
        rms_norm_weight(self.cpu, x, self.shape.rms_eps, dy, &mut dw)?;
        Ok(dw)
    }
}

/// Of each row, the mean of the squares.
fn mean_squares(rows: &[f32], width: usize) -> Vec<f32> {
    let mean = |row: &[f32]| row.iter().map(|v| v * v).sum::<f32>() / width as f32;
    rows.chunks_exact(width).map(mean).collect()
}
