//! A decoder block that can be differentiated: the same sums as [`trike_nn::DecoderBlock`], with what the way back needs kept.

use trike_cpu::{Cpu, CpuError};
use trike_nn::{DecoderSpec, HookPoint, NnError, WeightName};

use super::{
    attend::{Heads, Turns, rotate},
    math::{Dense, add, gated, gated_back, norm, norm_back},
};

/// The matrices of a block, in the order of [`names`].
pub(super) const MATRICES: usize = 7;
const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const O: usize = 3;
const G: usize = 4;
const U: usize = 5;
const D: usize = 6;

/// The names of the matrices of a block: query, key, value, output, gate, up, down.
pub(super) fn names(layer: usize) -> Vec<WeightName> {
    HookPoint::ALL.iter().flat_map(|site| site.matrices(layer)).collect()
}

/// What of a block stays as it is.
pub(super) struct Fixed {
    attention_norm: Vec<f32>,
    qk_norm: Option<[Vec<f32>; 2]>,
    attention_sub_norm: Option<Vec<f32>>,
    mlp_norm: Vec<f32>,
    mlp_sub_norm: Option<Vec<f32>>,
    biases: [Option<Vec<f32>>; MATRICES],
}

impl Fixed {
    pub(super) fn load(
        spec: &DecoderSpec,
        layer: usize,
        mut vector: impl FnMut(WeightName) -> Result<Vec<f32>, NnError>,
    ) -> Result<Self, NnError> {
        use WeightName as W;
        let mut optional = |wanted: bool, name| wanted.then(|| vector(name)).transpose();
        let b = spec.biases;
        let biases = [
            optional(b.qkv, W::QueryBias(layer))?,
            optional(b.qkv, W::KeyBias(layer))?,
            optional(b.qkv, W::ValueBias(layer))?,
            optional(b.output, W::OutputBias(layer))?,
            optional(b.mlp, W::GateBias(layer))?,
            optional(b.mlp, W::UpBias(layer))?,
            optional(b.mlp, W::DownBias(layer))?,
        ];
        let attention_sub_norm = optional(spec.sub_norms, W::AttentionSubNorm(layer))?;
        let mlp_sub_norm = optional(spec.sub_norms, W::MlpSubNorm(layer))?;
        let qk_norm = match spec.qk_norm {
            false => None,
            true => Some([vector(W::QueryNorm(layer))?, vector(W::KeyNorm(layer))?]),
        };
        let (attention_norm, mlp_norm) = (vector(W::AttentionNorm(layer))?, vector(W::MlpNorm(layer))?);
        Ok(Self { attention_norm, qk_norm, attention_sub_norm, mlp_norm, mlp_sub_norm, biases })
    }
}

/// Where blocks run.
pub(super) struct Ground<'a> {
    pub(super) cpu: &'a Cpu,
    pub(super) spec: &'a DecoderSpec,
    pub(super) turns: &'a Turns,
}

/// The matrices of a block as they are in a step.
pub(super) struct Matrices([Dense; MATRICES]);

impl Matrices {
    /// Out features and in features of each matrix.
    pub(super) fn shapes(spec: &DecoderSpec) -> [(usize, usize); MATRICES] {
        let (h, i, q, kv) = (spec.hidden, spec.intermediate, spec.query_width(), spec.kv_width());
        [(q, h), (kv, h), (kv, h), (h, q), (i, h), (i, h), (h, i)]
    }

    pub(super) fn new(spec: &DecoderSpec, values: Vec<Vec<f32>>) -> Result<Self, NnError> {
        let got = values.len();
        let each = Self::shapes(spec).into_iter().zip(values);
        let all: Vec<Dense> =
            each.map(|((rows, cols), v)| Dense::new(rows, cols, v)).collect::<Result<_, _>>()?;
        let all: Result<[Dense; MATRICES], _> = all.try_into();
        all.map(Self).map_err(|_| NnError::Shape { what: "matrices of a block", expected: MATRICES, got })
    }
}

/// What the way back through a block needs.
pub(super) struct Tape {
    lengths: Vec<usize>,
    x: Vec<f32>,
    normed: Vec<f32>,
    /// Before their norms, where they have any.
    raw: Option<[Vec<f32>; 2]>,
    /// Turned.
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    attended: Vec<f32>,
    /// After its norm, where it has one.
    output_in: Option<Vec<f32>>,
    middle: Vec<f32>,
    mlp_normed: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    joined: Vec<f32>,
    down_in: Option<Vec<f32>>,
}

/// Passes `x`, whole sequences one after the other, through a block; returns what comes out, and the tape.
pub(super) fn forward(
    ground: &Ground<'_>,
    fixed: &Fixed,
    matrices: &Matrices,
    x: Vec<f32>,
    lengths: &[usize],
) -> Result<(Vec<f32>, Tape), CpuError> {
    let Ground { cpu, spec, turns } = ground;
    let (eps, threads) = (spec.rms_eps, cpu.threads());
    let linear = |x: &[f32], i: usize| -> Result<Vec<f32>, CpuError> {
        let mut y = matrices.0[i].ahead(cpu, x)?;
        if let Some(bias) = &fixed.biases[i] {
            y.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
        }
        Ok(y)
    };
    let normed = norm(&x, &fixed.attention_norm, eps);
    let (mut q, mut k, v) = (linear(&normed, Q)?, linear(&normed, K)?, linear(&normed, V)?);
    let raw = fixed.qk_norm.as_ref().map(|[q_norm, k_norm]| {
        let turned = [norm(&q, q_norm, eps), norm(&k, k_norm, eps)];
        let [q_normed, k_normed] = turned;
        [std::mem::replace(&mut q, q_normed), std::mem::replace(&mut k, k_normed)]
    });
    rotate(turns, &mut q, lengths, spec.query_width(), 1.0, threads);
    rotate(turns, &mut k, lengths, spec.kv_width(), 1.0, threads);
    let attended = Heads::of(spec).attend([&q, &k, &v], lengths, threads);
    let output_in = fixed.attention_sub_norm.as_ref().map(|w| norm(&attended, w, eps));
    let mut middle = linear(output_in.as_ref().unwrap_or(&attended), O)?;
    add(&mut middle, &x);
    let mlp_normed = norm(&middle, &fixed.mlp_norm, eps);
    let (gate, up) = (linear(&mlp_normed, G)?, linear(&mlp_normed, U)?);
    let joined = gated(spec.activation, &gate, &up);
    let down_in = fixed.mlp_sub_norm.as_ref().map(|w| norm(&joined, w, eps));
    let mut y = linear(down_in.as_ref().unwrap_or(&joined), D)?;
    add(&mut y, &middle);
    let lengths = lengths.to_vec();
    let tape = Tape {
        lengths,
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

/// The gradients by the matrices and, where it is `wanted`, by the input, from `dy`, that by the output.
pub(super) fn backward(
    ground: &Ground<'_>,
    fixed: &Fixed,
    matrices: &Matrices,
    tape: &Tape,
    dy: Vec<f32>,
    wanted: bool,
) -> Result<(Vec<Vec<f32>>, Vec<f32>), CpuError> {
    let Ground { cpu, spec, turns } = ground;
    let (eps, threads) = (spec.rms_eps, cpu.threads());
    let m = &matrices.0;
    let through = |d: Vec<f32>, x: &[f32], weight: &Option<Vec<f32>>| match weight {
        Some(w) => norm_back(x, w, eps, &d),
        None => d,
    };

    let down = m[D].gradient(cpu, &dy, tape.down_in.as_ref().unwrap_or(&tape.joined))?;
    let d_joined = through(m[D].back(cpu, &dy)?, &tape.joined, &fixed.mlp_sub_norm);
    let (d_gate, d_up) = gated_back(spec.activation, &tape.gate, &tape.up, &d_joined);
    let gate = m[G].gradient(cpu, &d_gate, &tape.mlp_normed)?;
    let up = m[U].gradient(cpu, &d_up, &tape.mlp_normed)?;
    let mut d_normed = m[G].back(cpu, &d_gate)?;
    add(&mut d_normed, &m[U].back(cpu, &d_up)?);
    let mut d_middle = dy;
    add(&mut d_middle, &norm_back(&tape.middle, &fixed.mlp_norm, eps, &d_normed));

    let output = m[O].gradient(cpu, &d_middle, tape.output_in.as_ref().unwrap_or(&tape.attended))?;
    let d_attended = through(m[O].back(cpu, &d_middle)?, &tape.attended, &fixed.attention_sub_norm);
    let heads = Heads::of(spec);
    let [mut dq, mut dk, dv] =
        heads.attend_back([&tape.q, &tape.k, &tape.v], &d_attended, &tape.lengths, threads);
    rotate(turns, &mut dq, &tape.lengths, spec.query_width(), -1.0, threads);
    rotate(turns, &mut dk, &tape.lengths, spec.kv_width(), -1.0, threads);
    if let (Some([q, k]), Some([q_norm, k_norm])) = (&tape.raw, &fixed.qk_norm) {
        dq = norm_back(q, q_norm, eps, &dq);
        dk = norm_back(k, k_norm, eps, &dk);
    }
    let query = m[Q].gradient(cpu, &dq, &tape.normed)?;
    let key = m[K].gradient(cpu, &dk, &tape.normed)?;
    let value = m[V].gradient(cpu, &dv, &tape.normed)?;
    let gradients = vec![query, key, value, output, gate, up, down];
    if !wanted {
        return Ok((gradients, Vec::new()));
    }
    let mut d_normed = m[Q].back(cpu, &dq)?;
    add(&mut d_normed, &m[K].back(cpu, &dk)?);
    add(&mut d_normed, &m[V].back(cpu, &dv)?);
    add(&mut d_middle, &norm_back(&tape.x, &fixed.attention_norm, eps, &d_normed));
    Ok((gradients, d_middle))
}
