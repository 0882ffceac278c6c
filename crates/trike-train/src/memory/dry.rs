//! A tape without numbers: it takes and returns buffers as [`trike_grad::Tape`] does, and counts their bytes.

use std::collections::BTreeMap;

/// Memory of a run: buffers that tapes reuse, and other vectors.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Number of unused buffers by their length.
    unused: BTreeMap<u64, u64>,
    held: u64,
    peak: u64,
}

impl Pool {
    /// The most bytes held at once.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// A buffer of `len` numbers in f32.
    pub(super) fn take(&mut self, len: u64) {
        match self.unused.get_mut(&len).filter(|count| **count > 0) {
            Some(count) => *count -= 1,
            None => self.alloc(bytes(len)),
        }
    }

    pub(super) fn give(&mut self, len: u64) {
        *self.unused.entry(len).or_default() += 1;
    }

    pub(super) fn alloc(&mut self, bytes: u64) {
        self.held = self.held.saturating_add(bytes);
        self.peak = self.peak.max(self.held);
    }

    pub(super) fn free(&mut self, bytes: u64) {
        self.held = self.held.saturating_sub(bytes);
    }

    /// Memory that is released at once.
    pub(super) fn transient(&mut self, bytes: u64) {
        self.peak = self.peak.max(self.held.saturating_add(bytes));
    }
}

/// Bytes of numbers in f32.
pub(super) fn bytes(len: u64) -> u64 {
    len.saturating_mul(4)
}

/// A value on a tape.
pub(super) type Var = usize;

#[derive(Clone, Copy)]
enum Operation {
    Leaf,
    /// An operation that passes its gradient on, in the same buffer or in one with the same use.
    Passing(Var),
    Norm {
        x: Var,
        weight: Var,
    },
    Linear {
        x: Var,
        weight: Var,
        bias: Option<Var>,
        rows: u64,
    },
    /// With the bytes that its gradient takes beside its inputs' gradients.
    Attention {
        inputs: [Var; 3],
        extra: u64,
    },
    Gated([Var; 2]),
    Add([Var; 2]),
    Embed(Var),
    /// Gradients of the inputs that exist already.
    Loss([Var; 2]),
}

struct Node {
    len: u64,
    owned: bool,
    tracked: bool,
    operation: Operation,
}

/// A record of values and their sizes.
#[derive(Default)]
pub(super) struct DryTape {
    nodes: Vec<Node>,
}

impl DryTape {
    pub(super) fn leaf(&mut self, len: u64, tracked: bool) -> Var {
        self.nodes.push(Node { len, owned: false, tracked, operation: Operation::Leaf });
        self.nodes.len() - 1
    }

    fn record(&mut self, len: u64, inputs: &[Var], operation: Operation) -> Var {
        let tracked = inputs.iter().any(|input| self.tracked(*input));
        let operation = if tracked { operation } else { Operation::Leaf };
        self.nodes.push(Node { len, owned: true, tracked, operation });
        self.nodes.len() - 1
    }

    fn tracked(&self, var: Var) -> bool {
        self.nodes.get(var).is_some_and(|node| node.tracked)
    }

    pub(super) fn len(&self, var: Var) -> u64 {
        self.nodes.get(var).map_or(0, |node| node.len)
    }

    pub(super) fn passing(&mut self, pool: &mut Pool, x: Var) -> Var {
        pool.take(self.len(x));
        self.record(self.len(x), &[x], Operation::Passing(x))
    }

    pub(super) fn norm(&mut self, pool: &mut Pool, x: Var, weight: Var) -> Var {
        pool.take(self.len(x));
        self.record(self.len(x), &[x, weight], Operation::Norm { x, weight })
    }

    pub(super) fn linear(
        &mut self,
        pool: &mut Pool,
        x: Var,
        weight: Var,
        bias: Option<Var>,
        [tokens, rows]: [u64; 2],
    ) -> Var {
        let len = tokens.saturating_mul(rows);
        pool.take(len);
        let inputs: Vec<Var> = [x, weight].into_iter().chain(bias).collect();
        self.record(len, &inputs, Operation::Linear { x, weight, bias, rows })
    }

    pub(super) fn attention(&mut self, pool: &mut Pool, inputs: [Var; 3], extra: u64) -> Var {
        pool.take(self.len(inputs[0]));
        self.record(self.len(inputs[0]), &inputs, Operation::Attention { inputs, extra })
    }

    pub(super) fn gated(&mut self, pool: &mut Pool, inputs: [Var; 2]) -> Var {
        pool.take(self.len(inputs[0]));
        self.record(self.len(inputs[0]), &inputs, Operation::Gated(inputs))
    }

    pub(super) fn add(&mut self, pool: &mut Pool, inputs: [Var; 2]) -> Var {
        pool.take(self.len(inputs[0]));
        self.record(self.len(inputs[0]), &inputs, Operation::Add(inputs))
    }

    pub(super) fn embed(&mut self, pool: &mut Pool, table: Var, len: u64) -> Var {
        pool.take(len);
        self.record(len, &[table], Operation::Embed(table))
    }

    /// A loss of `[hidden, head]`, whose gradients are computed with it: first their buffers, then `chunks`, the sizes of logits
    /// and the number of buffers of each.
    pub(super) fn loss(&mut self, pool: &mut Pool, inputs: [Var; 2], chunks: &[(u64, u64)]) -> Var {
        for input in inputs {
            if self.tracked(input) {
                pool.take(self.len(input));
            }
        }
        for (len, count) in chunks {
            (0..*count).for_each(|_| pool.take(*len));
            (0..*count).for_each(|_| pool.give(*len));
        }
        self.record(1, &inputs, Operation::Loss(inputs))
    }

    /// The backward pass from `y`, whose gradient is given. `kept` is an input whose gradient the caller keeps; those of all
    /// other leaves are added to the gradients of parameters and returned, or kept in `own`.
    pub(super) fn backward(
        mut self,
        pool: &mut Pool,
        y: Var,
        kept: Option<Var>,
        mut own: Option<&mut Vec<u64>>,
    ) {
        let mut found = vec![false; self.nodes.len()];
        if let Some(found) = found.get_mut(y) {
            *found = true;
        }
        for index in (0..=y.min(self.nodes.len().saturating_sub(1))).rev() {
            let Node { len, owned, operation, .. } = self.nodes[index];
            if matches!(operation, Operation::Leaf) {
                continue;
            }
            if std::mem::take(&mut found[index]) {
                self.pass_on(pool, &mut found, operation, len);
            }
            if owned {
                pool.give(len);
                self.nodes[index].owned = false;
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if node.owned {
                pool.give(node.len);
            }
            if found[index] && kept != Some(index) {
                match &mut own {
                    Some(own) => own.push(node.len),
                    None => pool.give(node.len),
                }
            }
        }
    }

    fn pass_on(&self, pool: &mut Pool, found: &mut [bool], operation: Operation, len: u64) {
        match operation {
            Operation::Leaf => {}
            Operation::Passing(x) => self.give_gradient(pool, found, x),
            Operation::Norm { x, weight } => {
                for input in [weight, x] {
                    if self.tracked(input) {
                        pool.take(self.len(input));
                        self.give_gradient(pool, found, input);
                    }
                }
                pool.give(len);
            }
            Operation::Linear { x, weight, bias, rows } => {
                self.accumulate(pool, found, weight);
                self.accumulate(pool, found, x);
                if let Some(bias) = bias {
                    pool.take(rows);
                    self.give_gradient(pool, found, bias);
                }
                pool.give(len);
            }
            Operation::Attention { inputs, extra } => {
                inputs.iter().for_each(|input| pool.take(self.len(*input)));
                pool.transient(extra);
                pool.give(len);
                inputs.iter().for_each(|input| self.give_gradient(pool, found, *input));
            }
            Operation::Gated(inputs) => {
                inputs.iter().for_each(|_| pool.take(len));
                pool.give(len);
                inputs.iter().for_each(|input| self.give_gradient(pool, found, *input));
            }
            Operation::Add(inputs) => {
                pool.take(len);
                inputs.iter().for_each(|input| self.give_gradient(pool, found, *input));
            }
            Operation::Embed(table) => {
                self.accumulate(pool, found, table);
                pool.give(len);
            }
            Operation::Loss(inputs) => {
                for input in inputs.into_iter().filter(|input| self.tracked(*input)) {
                    self.give_gradient(pool, found, input);
                }
            }
        }
    }

    /// A gradient that becomes that of an input, or is added to it.
    fn give_gradient(&self, pool: &mut Pool, found: &mut [bool], input: Var) {
        if !self.tracked(input) || found[input] {
            pool.give(self.len(input));
        } else {
            found[input] = true;
        }
    }

    fn accumulate(&self, pool: &mut Pool, found: &mut [bool], input: Var) {
        if self.tracked(input) && !found[input] {
            pool.take(self.len(input));
            found[input] = true;
        }
    }

    /// Drops the tape: its values are not reused.
    pub(super) fn drop(self, pool: &mut Pool) {
        for node in self.nodes.iter().filter(|node| node.owned) {
            pool.free(bytes(node.len));
        }
    }
}
