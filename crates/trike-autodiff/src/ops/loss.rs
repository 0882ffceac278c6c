//! Losses fused with the output head, in chunks of rows, so that the logits are never materialized as a whole.

use std::borrow::{Borrow, BorrowMut};
use std::ops::Range;

use trike_cpu::Store;

use super::check_shape;
use crate::buffers::take;
use crate::engine::{Elements, Operand, TapeEngine};
use crate::error::{GradError, check_len};
use crate::tape::{Backward, Operation, Tape};
use crate::var::Var;

/// Maximum number of logits per chunk (4 MiB), unless [`ROWS`] rows have more.
const LOGITS: usize = 1 << 20;
/// Minimum number of rows per chunk: with fewer, the products with the head are slow.
const ROWS: usize = 64;

/// A loss on a tape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TapeLoss {
    /// The value to differentiate: [`sum`](Self::sum) times the scale that was passed.
    pub var: Var,
    /// The sum over rows in nats, in f64.
    pub sum: f64,
    /// Number of rows with a target, or all rows of a divergence.
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
    /// Number of rows with a target.
    pub rows: usize,
}

impl<E: TapeEngine> Tape<'_, E> {
    /// The cross-entropy `-ln softmax(h W^T)[target]` of the output head `W` (`vocabulary x width`) at the hidden states `h`
    /// (`tokens x width`), summed over the rows that have a target and multiplied by `scale`: the reciprocal of the
    /// number of such rows in all micro-batches of a step.
    ///
    /// The gradients are computed together with the value, chunk by chunk (as in Liger Kernel, Hsu et al., 2410.10989).
    ///
    /// # Errors
    ///
    /// [`GradError::Shape`] and [`GradError::Length`] for shapes that do not match, [`GradError::Target`] for an id that is not a
    /// row of the head.
    pub fn cross_entropy(
        &mut self,
        hidden: Var,
        head: Var,
        targets: &[Option<u32>],
        scale: f32,
    ) -> Result<TapeLoss, GradError> {
        let ((rows, _), (vocabulary, _)) = (self.shape(hidden)?, self.shape(head)?);
        let count = check_targets(targets, rows, vocabulary)?;
        let engine = self.engine();
        let targets = engine.targets(targets)?;
        let head_loss = self.head_loss(hidden, head, [scale, 0.0], |rows, logits, losses| {
            engine.cross_entropy(logits, rows, &targets, scale, losses)
        });
        head_loss.map(|(var, [sum, _])| TapeLoss { var, sum, rows: count })
    }

    /// The Kullback-Leibler divergence `sum p ln(p / q)` of `q = softmax(h W^T)` from a teacher's `p`, summed over all rows and
    /// multiplied by `scale` (distillation, Hinton et al., 1503.02531). `teacher` writes the teacher's logits of a range of rows.
    ///
    /// # Errors
    ///
    /// [`GradError::Shape`] for shapes that do not match, and the errors of `teacher`.
    pub fn divergence(
        &mut self,
        hidden: Var,
        head: Var,
        scale: f32,
        mut teacher: impl FnMut(Range<usize>, &mut E::View) -> Result<(), GradError>,
    ) -> Result<TapeLoss, GradError> {
        let (rows, _) = self.shape(hidden)?;
        let (engine, buffers) = (self.engine(), self.buffers().clone());
        let head_loss = self.head_loss(hidden, head, [0.0, scale], |rows, logits, losses| {
            let mut target = take(engine, &buffers, logits.elements())?;
            teacher(rows.clone(), target.borrow_mut())?;
            engine.divergence(logits, rows, target.borrow_mut(), scale, losses)?;
            buffers.give(target);
            Ok(())
        });
        head_loss.map(|(var, [_, sum])| TapeLoss { var, sum, rows })
    }

    /// `scales[0]` times [`Tape::cross_entropy`] plus `scales[1]` times [`Tape::divergence`] over the rows that have a
    /// target, from the same logits.
    ///
    /// # Errors
    ///
    /// Errors of both.
    pub fn distill(
        &mut self,
        hidden: Var,
        head: Var,
        targets: &[Option<u32>],
        scales: [f32; 2],
        mut teacher: impl FnMut(Range<usize>, &mut E::View) -> Result<(), GradError>,
    ) -> Result<Distillation, GradError> {
        let ((rows, _), (vocabulary, _)) = (self.shape(hidden)?, self.shape(head)?);
        let count = check_targets(targets, rows, vocabulary)?;
        let (engine, buffers) = (self.engine(), self.buffers().clone());
        let targets = engine.targets(targets)?;
        let (var, sums) = self.head_loss(hidden, head, scales, |rows, logits, losses| {
            let mut target = take(engine, &buffers, logits.elements())?;
            teacher(rows.clone(), target.borrow_mut())?;
            engine.distill(logits, rows, target.borrow_mut(), &targets, scales, losses)?;
            buffers.give(target);
            Ok(())
        })?;
        let [cross_entropy, divergence] = sums;
        Ok(Distillation { var, cross_entropy, divergence, rows: count })
    }

    /// A loss over chunks of logits: `loss` replaces a chunk's logits by their gradient and adds the chunk's losses. Returns both
    /// sums and, as a tape value, their sum weighted by `scales`.
    fn head_loss(
        &mut self,
        hidden: Var,
        head: Var,
        scales: [f32; 2],
        mut loss: impl FnMut(Range<usize>, &mut E::View, &mut E::Losses) -> Result<(), GradError>,
    ) -> Result<(Var, [f64; 2]), GradError> {
        let ((rows, width), (vocabulary, cols)) = (self.shape(hidden)?, self.shape(head)?);
        check_shape("output head", (vocabulary, width), (vocabulary, cols))?;
        let (engine, head_precision) = (self.engine(), self.precision().head);
        let (h, w) = (self.value(hidden)?, Operand::new(self.value(head)?, width)?);
        let mut d_hidden = self.is_tracked(hidden)?.then(|| self.take(h.elements())).transpose()?;
        let mut d_head = self.is_tracked(head)?.then(|| self.take(vocabulary * width)).transpose()?;
        if let Some(d_head) = d_head.as_mut().filter(|_| rows == 0) {
            engine.fill(d_head.borrow_mut(), 0.0)?;
        }
        let step = (LOGITS / vocabulary.max(1)).max(ROWS);
        let mut losses = engine.losses(rows)?;
        for first in (0..rows).step_by(step) {
            let range = first..(first + step).min(rows);
            let x = Operand::new(h, width)?.rows(range.clone());
            let mut logits = self.take(range.len() * vocabulary)?;
            engine.matmul(x, w.t(), logits.borrow_mut(), 0, Store::Overwrite, head_precision)?;
            loss(range.clone(), logits.borrow_mut(), &mut losses)?;
            let d = Operand::new(logits.borrow(), vocabulary)?;
            if let Some(dh) = &mut d_hidden {
                engine.matmul(d, w, dh.borrow_mut(), first * width, Store::Overwrite, head_precision)?;
            }
            if let Some(dw) = &mut d_head {
                let store = if first == 0 { Store::Overwrite } else { Store::Add };
                engine.matmul(d.t(), x, dw.borrow_mut(), 0, store, head_precision)?;
            }
            self.buffers().give(logits);
        }
        let sums = engine.totals(losses)?;
        let mut value = engine.allocate(1)?;
        let sum = sums.iter().zip(scales).map(|(sum, scale)| sum * f64::from(scale)).sum::<f64>();
        engine.fill(value.borrow_mut(), sum as f32)?;
        let gradients = [(hidden, d_hidden), (head, d_head)];
        Ok((self.record(&[hidden, head], value, 1, HeadLoss::<E> { gradients })?, sums))
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

/// Gradients that were computed in the forward pass.
struct HeadLoss<E: TapeEngine> {
    gradients: [(Var, Option<E::Tensor>); 2],
}

impl<E: TapeEngine> Operation<E> for HeadLoss<E> {
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, dy: E::Tensor) -> Result<(), GradError> {
        for (input, gradient) in self.gradients {
            let Some(mut gradient) = gradient else { continue };
            pass.engine().scale_by(gradient.borrow_mut(), dy.borrow())?;
            pass.add(input, gradient)?;
        }
        Ok(())
    }
}
