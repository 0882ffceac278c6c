//! A training step without numbers, in the order of [`Trainer::step`](crate::Trainer::step).

use std::ops::Range;

use trike_grad::TernaryScale;
use trike_nn::DecoderSpec;
use trike_trit::Granularity;

use super::RunShape;
use super::dry::{DryTape, Pool, Var, bytes};
use crate::model::{shape, targeted};
use crate::{LoraConfig, LoraTarget, OptimizerKind, TernaryPolicy};

/// Logits that exist at once, and the least number of rows of a chunk, as in the losses of `trike-grad`.
const LOGITS: u64 = 1 << 20;
const ROWS: u64 = 64;
/// Queries whose scores exist at once, as in the backward pass of attention in `trike-cpu`.
const QUERIES: u64 = 64;

pub(super) struct Step<'a> {
    pub(super) run: &'a RunShape<'a>,
    pub(super) tokens: u64,
    /// Whether matrices are ternarized once for all units.
    pub(super) prepared: bool,
    /// Whether units are computed side by side.
    pub(super) alone: bool,
}

/// A decoder on dry tapes.
struct Model<'a> {
    spec: &'a DecoderSpec,
    policy: &'a TernaryPolicy,
    adapter: Option<&'a LoraConfig>,
    tokens: u64,
    length: u64,
    /// Whether its matrices are ternary before the pass.
    prepared: bool,
    /// Whether the pass has gradients of its own, which are added to those of other passes later.
    alone: bool,
}

/// Numbers of the two factors of each targeted matrix.
pub(super) fn factors<'a>(adapter: &'a LoraConfig, spec: &'a DecoderSpec) -> impl Iterator<Item = u64> + 'a {
    let rank = adapter.rank as u64;
    targeted(adapter, spec).map(move |(_, (rows, cols))| (rows as u64 + cols as u64).saturating_mul(rank))
}

impl Step<'_> {
    /// The most bytes of a step beside weights, gradients and the optimizer's state; those of logits in it; those of a teacher's
    /// outputs.
    pub(super) fn peak(&self) -> (u64, u64, u64) {
        let run = self.run;
        let (tokens, length) = (self.tokens, run.length as u64);
        let model = Model {
            spec: run.spec,
            policy: run.policy,
            adapter: run.adapter,
            tokens,
            length,
            prepared: self.prepared,
            alone: self.alone,
        };
        let mut pool = Pool::default();
        let mut outputs = 0;
        // The second step finds the buffers of the first.
        for _ in 0..2 {
            if let Some((spec, policy)) = run.teacher {
                let teacher =
                    Model { spec, policy, adapter: None, tokens, length, prepared: false, alone: false };
                outputs = teacher.outputs(&mut pool);
            }
            model.gradients(&mut pool, run.checkpoint, run.teacher.is_some());
            pool.free(outputs);
            if run.optimizer == OptimizerKind::Muon {
                pool.transient(model.largest_update());
            }
        }
        let chunks = model.chunks(run.teacher.is_some());
        let logits = chunks
            .iter()
            .fold(0u64, |sum, (len, count)| sum.saturating_add(bytes(*len).saturating_mul(*count)));
        (pool.peak(), logits, outputs)
    }
}

impl Model<'_> {
    fn width(&self, of: usize) -> u64 {
        self.tokens.saturating_mul(of as u64)
    }

    /// What the forward pass of a teacher allocates, and the bytes of its results. Its tapes return nothing to a pool.
    fn outputs(&self, pool: &mut Pool) -> u64 {
        let mut own = Pool::default();
        let (spec, x) = (self.spec, bytes(self.width(self.spec.hidden)));
        self.embedded(&mut own);
        own.alloc(x);
        for layer in 0..spec.layers {
            self.through(&mut own, layer..layer + 1);
            // The output is copied, then the input is dropped.
            own.transient(x);
        }
        let mut tape = DryTape::default();
        let from = tape.leaf(self.width(spec.hidden), false);
        let norm = tape.leaf(spec.hidden as u64, false);
        tape.norm(&mut own, from, norm);
        let (_, head) = self.table(&mut own, &mut tape);
        let results = x.saturating_add(bytes(tape.len(head)));
        own.transient(results);
        pool.transient(own.peak());
        pool.alloc(results);
        results
    }

    /// One call of [`Trained::gradients`](crate::Trained::gradients).
    fn gradients(&self, pool: &mut Pool, segment: Option<usize>, distills: bool) {
        let layers = self.spec.layers;
        let segment = segment.unwrap_or(layers).clamp(1, layers);
        let x = self.width(self.spec.hidden);
        let segments: Vec<Range<usize>> =
            (0..layers).step_by(segment).map(|first| first..(first + segment).min(layers)).collect();
        self.embedded(pool);
        pool.alloc(bytes(x));
        for segment in &segments[..segments.len() - 1] {
            self.through(pool, segment.clone());
            pool.alloc(bytes(x));
        }
        let mut own = Vec::new();
        for (index, segment) in segments.iter().enumerate().rev() {
            let mut tape = DryTape::default();
            let from = tape.leaf(x, self.adapter.is_none() || index > 0);
            let y = segment.clone().fold(from, |x, _| self.block(pool, &mut tape, x, true));
            if index + 1 == segments.len() {
                self.head(pool, distills, self.alone.then_some(&mut own));
            }
            tape.backward(pool, y, Some(from), self.alone.then_some(&mut own));
        }
        if self.adapter.is_none() {
            let mut tape = DryTape::default();
            let (_, table) = self.table_of(pool, &mut tape, true);
            let y = tape.embed(pool, table, x);
            // That of a head which is the same table is there already.
            let first = self.alone && !self.spec.tied_head;
            tape.backward(pool, y, None, first.then_some(&mut own));
        }
        own.into_iter().for_each(|len| pool.give(len));
        pool.free(bytes(x).saturating_mul(segments.len() as u64));
    }

    /// The loss with its gradient: it leaves that of the residual stream.
    fn head(&self, pool: &mut Pool, distills: bool, own: Option<&mut Vec<u64>>) {
        let mut tape = DryTape::default();
        let tracked = self.adapter.is_none();
        let from = tape.leaf(self.width(self.spec.hidden), true);
        let norm = tape.leaf(self.spec.hidden as u64, tracked);
        let hidden = tape.norm(pool, from, norm);
        let (_, head) = self.table_of(pool, &mut tape, tracked);
        let loss = tape.loss(pool, [hidden, head], &self.chunks(distills));
        tape.backward(pool, loss, Some(from), own);
    }

    /// Lengths of the chunks of logits, and the number of buffers of each.
    fn chunks(&self, distills: bool) -> Vec<(u64, u64)> {
        let vocab = self.spec.vocab as u64;
        let step = (LOGITS / vocab.max(1)).max(ROWS);
        let (whole, rest) = (step.min(self.tokens), self.tokens % step);
        let count = if distills { 3 } else { 1 };
        let mut chunks = vec![(whole.saturating_mul(vocab), count)];
        if self.tokens > step && rest > 0 {
            chunks.push((rest.saturating_mul(vocab), count));
        }
        chunks
    }

    fn table(&self, pool: &mut Pool, tape: &mut DryTape) -> (Var, Var) {
        self.table_of(pool, tape, false)
    }

    /// The embedding or the head, which have the same size: the parameter, and as it is multiplied.
    fn table_of(&self, pool: &mut Pool, tape: &mut DryTape, tracked: bool) -> (Var, Var) {
        let len = (self.spec.vocab as u64).saturating_mul(self.spec.hidden as u64);
        let table = tape.leaf(len, tracked);
        if !self.policy.int8_embedding {
            return (table, table);
        }
        // A copy in f32 beside its codes and scales, or these beside the values that they stand for, which are then copied.
        pool.transient(bytes(len).saturating_add(len).saturating_add(len / 8));
        let rounded = tape.passing(pool, table);
        pool.transient(bytes(len));
        (table, rounded)
    }

    fn embedded(&self, pool: &mut Pool) {
        let mut tape = DryTape::default();
        let (_, table) = self.table(pool, &mut tape);
        let len = self.width(self.spec.hidden);
        tape.embed(pool, table, len);
        pool.transient(bytes(len));
        tape.drop(pool);
    }

    fn through(&self, pool: &mut Pool, layers: Range<usize>) {
        let mut tape = DryTape::default();
        let len = self.width(self.spec.hidden);
        let from = tape.leaf(len, false);
        layers.fold(from, |x, _| self.block(pool, &mut tape, x, false));
        pool.transient(bytes(len));
        tape.drop(pool);
    }

    /// As `Pass::block`.
    fn block(&self, pool: &mut Pool, tape: &mut DryTape, x: Var, tracked: bool) -> Var {
        let spec = self.spec;
        let own = tracked && self.adapter.is_none();
        let (h, q, kv) = (spec.hidden, spec.query_width(), spec.kv_width());
        let norm = |pool: &mut Pool, tape: &mut DryTape, x: Var, width: usize| {
            let weight = tape.leaf(width as u64, own);
            tape.norm(pool, x, weight)
        };
        let linear =
            |pool: &mut Pool, tape: &mut DryTape, input: [Var; 2], target: LoraTarget, bias: bool| {
                self.linear(pool, tape, input, target, bias, tracked)
            };
        let qkv = spec.biases.qkv;
        let normed = norm(pool, tape, x, h);
        let input = self.rounded(pool, tape, normed);
        let mut queries = linear(pool, tape, input, LoraTarget::Query, qkv);
        let mut keys = linear(pool, tape, input, LoraTarget::Key, qkv);
        let values = linear(pool, tape, input, LoraTarget::Value, qkv);
        if spec.qk_norm {
            queries = norm(pool, tape, queries, spec.head_dim);
            keys = norm(pool, tape, keys, spec.head_dim);
        }
        let queries = tape.passing(pool, queries);
        let keys = tape.passing(pool, keys);
        // Gradients of all heads, and the scores of some queries.
        let heads = self.width(q).saturating_add(self.width(kv).saturating_mul(2));
        let scores = QUERIES.saturating_mul(self.length).saturating_mul(2);
        let extra = bytes(heads.saturating_add(scores));
        let mut attended = tape.attention(pool, [queries, keys, values], extra);
        // Keys and values of one sequence in the order of a cache.
        pool.transient(bytes(self.length.saturating_mul(kv as u64).saturating_mul(2)));
        if spec.sub_norms {
            attended = norm(pool, tape, attended, q);
        }
        let input = self.rounded(pool, tape, attended);
        let out = linear(pool, tape, input, LoraTarget::Output, spec.biases.output);
        let x = tape.add(pool, [x, out]);

        let mlp = spec.biases.mlp;
        let normed = norm(pool, tape, x, h);
        let input = self.rounded(pool, tape, normed);
        let gate = linear(pool, tape, input, LoraTarget::Gate, mlp);
        let up = linear(pool, tape, input, LoraTarget::Up, mlp);
        let mut gated = tape.gated(pool, [gate, up]);
        if spec.sub_norms {
            gated = norm(pool, tape, gated, spec.intermediate);
        }
        let input = self.rounded(pool, tape, gated);
        let down = linear(pool, tape, input, LoraTarget::Down, mlp);
        tape.add(pool, [x, down])
    }

    /// An input as it was computed, and as ternary weights read it.
    fn rounded(&self, pool: &mut Pool, tape: &mut DryTape, x: Var) -> [Var; 2] {
        match &self.policy.blocks {
            Some(how) if how.int8_activations => [x, tape.passing(pool, x)],
            _ => [x, x],
        }
    }

    fn linear(
        &self,
        pool: &mut Pool,
        tape: &mut DryTape,
        [exact, rounded]: [Var; 2],
        target: LoraTarget,
        bias: bool,
        tracked: bool,
    ) -> Var {
        let (rows, cols) = shape(target, self.spec);
        let len = (rows as u64).saturating_mul(cols as u64);
        let own = tracked && self.adapter.is_none();
        let mut weight = tape.leaf(len, own);
        let bias = bias.then(|| tape.leaf(rows as u64, own));
        let size = [self.tokens, rows as u64];
        let Some(adapter) = self.adapter else {
            if let (Some(how), false) = (&self.policy.blocks, self.prepared) {
                weight = tape.passing(pool, weight);
                if how.weights.scale == TernaryScale::LeastSquares {
                    // The weights of a group are sorted.
                    let group = match how.weights.granularity {
                        Granularity::Tensor => len,
                        other => other.group_len(cols) as u64,
                    };
                    pool.transient(bytes(group));
                }
            }
            return tape.linear(pool, rounded, weight, bias, size);
        };
        let y = tape.linear(pool, rounded, weight, bias, size);
        if !adapter.targets.contains(&target) {
            return y;
        }
        let rank = adapter.rank as u64;
        let a = tape.leaf(rank.saturating_mul(cols as u64), tracked);
        let b = tape.leaf(rank.saturating_mul(rows as u64), tracked);
        let low = tape.linear(pool, exact, a, None, [self.tokens, rank]);
        let low = tape.passing(pool, low);
        let product = tape.linear(pool, low, b, None, size);
        tape.add(pool, [y, product])
    }

    /// What Muon needs for the update of the largest matrix: itself twice, and two squares of its smaller side.
    fn largest_update(&self) -> u64 {
        let update = |(rows, cols): (usize, usize)| {
            let (len, side) = ((rows as u64).saturating_mul(cols as u64), rows.min(cols) as u64);
            bytes(len.saturating_add(side.saturating_mul(side)).saturating_mul(2))
        };
        let sizes: Vec<(usize, usize)> = LoraTarget::ALL
            .into_iter()
            .filter(|target| self.adapter.is_none_or(|adapter| adapter.targets.contains(target)))
            .map(|target| shape(target, self.spec))
            .collect();
        let of_adapter =
            |(rows, cols)| self.adapter.map(|adapter| [(adapter.rank, cols), (rows, adapter.rank)]);
        sizes
            .into_iter()
            .flat_map(|size| of_adapter(size).map_or(vec![size], Vec::from))
            .map(update)
            .max()
            .unwrap_or(0)
    }
}
