//! Losses fused with the output head, some rows at a time, so that logits never exist as a whole.

use std::ops::Range;

use trike_cpu::{MatrixRef, Store, grad, matmul};

use super::check_shape;
use crate::error::{GradError, check_len};
use crate::tape::{Backward, Operation, Tape};
use crate::var::Var;

/// Logits that exist at once, at least [`ROWS`] rows: 4 MiB.
const LOGITS: usize = 1 << 20;
/// The least number of rows of a chunk: fewer would make products with the head slow.
const ROWS: usize = 64;

/// A loss on a tape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// The value to differentiate: [`sum`](Self::sum) times the scale that was passed.
    pub var: Var,
    /// The sum over rows in nats, in f64.
    pub sum: f64,
    /// Number of rows that count.
    pub rows: usize,
}

/// The two losses of [`Tape::distill`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distillation {
    /// The value to differentiate: the weighted sum of both.
    pub var: Var,
    /// The sum of the cross-entropies in nats.
    pub cross_entropy: f64,
    /// The sum of the divergences in nats.
    pub divergence: f64,
    /// Number of rows that count.
    pub rows: usize,
}

impl Tape<'_> {
    /// The cross-entropy `-ln softmax(h W^T)[target]` of the output head `W` (`vocabulary x width`) at the hidden states `h`
    /// (`tokens x width`), summed over the rows that have a target and multiplied by `scale`: the reciprocal of the
    /// number of such rows in all micro-batches of a step.
    ///
    /// The gradients are computed together with the value, some rows at a time (as in Liger Kernel, Hsu et al.,
    /// 2410.10989).
    ///
    /// # Errors
    ///
    /// [`GradError::Shape`] and [`GradError::Length`] for shapes that do not fit, [`GradError::Target`] for an id that is
    /// not a row of the head.
    pub fn cross_entropy(
        &mut self,
        hidden: Var,
        head: Var,
        targets: &[Option<u32>],
        scale: f32,
    ) -> Result<Loss, GradError> {
        let ((rows, _), (vocabulary, _)) = (self.shape(hidden)?, self.shape(head)?);
        let count = check_targets(targets, rows, vocabulary)?;
        let cpu = self.cpu();
        self.head_loss(hidden, head, scale, count, |rows, logits| {
            Ok(grad::cross_entropy(cpu, logits, &targets[rows], vocabulary, scale)?)
        })
    }

    /// The Kullback-Leibler divergence `sum p ln(p / q)` of `q = softmax(h W^T)` from a teacher's `p`, summed over all rows
    /// and multiplied by `scale` (distillation, Hinton et al., 1503.02531). `teacher` writes the teacher's logits of some
    /// rows.
    ///
    /// # Errors
    ///
    /// [`GradError::Shape`] for shapes that do not fit, and those of `teacher`.
    pub fn divergence(
        &mut self,
        hidden: Var,
        head: Var,
        scale: f32,
        mut teacher: impl FnMut(Range<usize>, &mut [f32]) -> Result<(), GradError>,
    ) -> Result<Loss, GradError> {
        let ((rows, _), (vocabulary, _)) = (self.shape(hidden)?, self.shape(head)?);
        let (cpu, buffers) = (self.cpu(), self.buffers().clone());
        self.head_loss(hidden, head, scale, rows, |rows, logits| {
            let mut target = buffers.take(logits.len())?;
            teacher(rows, &mut target)?;
            let sum = grad::divergence(cpu, logits, &mut target, vocabulary)?;
            logits.iter_mut().for_each(|d| *d *= scale);
            buffers.give(target);
            Ok(sum)
        })
    }

    /// `scales[0]` times [`Tape::cross_entropy`] plus `scales[1]` times [`Tape::divergence`] over the rows that have a
    /// target, from the same logits.
    ///
    /// # Errors
    ///
    /// Those of both.
    pub fn distill(
        &mut self,
        hidden: Var,
        head: Var,
        targets: &[Option<u32>],
        scales: [f32; 2],
        mut teacher: impl FnMut(Range<usize>, &mut [f32]) -> Result<(), GradError>,
    ) -> Result<Distillation, GradError> {
        let ((rows, _), (vocabulary, _)) = (self.shape(hidden)?, self.shape(head)?);
        let count = check_targets(targets, rows, vocabulary)?;
        let (cpu, buffers) = (self.cpu(), self.buffers().clone());
        let mut sums = [0.0; 2];
        let loss = self.head_loss(hidden, head, 1.0, count, |rows, logits| {
            let targets = &targets[rows.clone()];
            let mut target = buffers.take(logits.len())?;
            teacher(rows, &mut target)?;
            let [entropy, divergence] = grad::distill(cpu, logits, &mut target, targets, vocabulary, scales)?;
            buffers.give(target);
            sums = [sums[0] + entropy, sums[1] + divergence];
            Ok(f64::from(scales[0]) * entropy + f64::from(scales[1]) * divergence)
        })?;
        let [cross_entropy, divergence] = sums;
        Ok(Distillation { var: loss.var, cross_entropy, divergence, rows: count })
    }

    /// A loss of logits: `loss` gets some rows of logits, replaces them by their gradient and returns the sum of the
    /// losses.
    fn head_loss(
        &mut self,
        hidden: Var,
        head: Var,
        scale: f32,
        count: usize,
        mut loss: impl FnMut(Range<usize>, &mut [f32]) -> Result<f64, GradError>,
    ) -> Result<Loss, GradError> {
        let ((rows, width), (vocabulary, cols)) = (self.shape(hidden)?, self.shape(head)?);
        check_shape("output head", (vocabulary, width), (vocabulary, cols))?;
        let (cpu, buffers) = (self.cpu(), self.buffers().clone());
        let (h, w) = (self.value(hidden)?, MatrixRef::new(self.value(head)?, width)?);
        let mut d_hidden = self.is_tracked(hidden)?.then(|| buffers.take(h.len())).transpose()?;
        let mut d_head = self.is_tracked(head)?.then(|| buffers.take(vocabulary * width)).transpose()?;
        if let Some(d_head) = d_head.as_mut().filter(|_| rows == 0) {
            d_head.fill(0.0);
        }
        let step = (LOGITS / vocabulary.max(1)).max(ROWS);
        let mut sum = 0.0;
        for first in (0..rows).step_by(step) {
            let range = first..(first + step).min(rows);
            let x = MatrixRef::new(&h[first * width..range.end * width], width)?;
            let mut logits = buffers.take(range.len() * vocabulary)?;
            matmul(cpu, x, w.t(), &mut logits, Store::Overwrite)?;
            sum += loss(range.clone(), &mut logits)?;
            let d = MatrixRef::new(&logits, vocabulary)?;
            if let Some(dh) = &mut d_hidden {
                matmul(cpu, d, w, &mut dh[first * width..range.end * width], Store::Overwrite)?;
            }
            if let Some(dw) = &mut d_head {
                matmul(cpu, d.t(), x, dw, if first == 0 { Store::Overwrite } else { Store::Add })?;
            }
            buffers.give(logits);
        }
        let value = vec![(sum * f64::from(scale)) as f32];
        let gradients = [(hidden, d_hidden), (head, d_head)];
        let var = self.record(&[hidden, head], value, 1, HeadLoss { gradients })?;
        Ok(Loss { var, sum, rows: count })
    }
}

/// Checks the targets and returns the number of rows that have one.
fn check_targets(targets: &[Option<u32>], rows: usize, vocabulary: usize) -> Result<usize, GradError> {
    check_len("targets", rows, targets.len())?;
    for (row, target) in targets.iter().enumerate() {
        if let Some(target) = target.filter(|target| *target as usize >= vocabulary) {
            return Err(GradError::Target { row, target, vocabulary });
        }
    }
    Ok(targets.iter().flatten().count())
}

/// Gradients that are already computed.
struct HeadLoss {
    gradients: [(Var, Option<Vec<f32>>); 2],
}

impl Operation for HeadLoss {
    fn backward(self: Box<Self>, pass: &mut Backward<'_>, dy: Vec<f32>) -> Result<(), GradError> {
        for (input, gradient) in self.gradients {
            let Some(mut gradient) = gradient else { continue };
            if dy[0] != 1.0 {
                gradient.iter_mut().for_each(|d| *d *= dy[0]);
            }
            pass.add(input, gradient)?;
        }
        Ok(())
    }
}
