//! Losses.

use trike_host::{Cpu, Loop};

use super::lanes::largest;
use crate::error::{CpuError, check_len, check_rows};
use crate::kernels::{Kernels, with_float_kernels};
use crate::math::exp;

/// The Kullback-Leibler divergence `sum p ln(p / q)` in nats, summed over tokens, with `p = softmax(target)` and `q =
/// softmax(out)`. `out` is overwritten with the gradient with respect to its logits, `q - p`, and `target` with `p`
/// (distillation, Hinton et al., 1503.02531).
///
/// Both are `tokens x vocab`.
///
/// # Errors
///
/// [`CpuError::NotMultiple`] when `out` is not a whole number of rows, [`CpuError::Length`] when the slices differ in
/// length.
///
/// ```
/// use trike_cpu::{Cpu, grad};
///
/// let (mut out, mut target) = ([0.0, 3f32.ln()], [0.0, 0.0]);
/// let loss = grad::divergence(&Cpu::new(1)?, &mut out, &mut target, 2)?;
/// assert!((loss - (0.5 * 2f64.ln() + 0.5 * (2.0f64 / 3.0).ln())).abs() < 1e-6);
/// assert!((out[0] + 0.25).abs() < 1e-6 && (out[1] - 0.25).abs() < 1e-6);
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
pub fn divergence(cpu: &Cpu, out: &mut [f32], target: &mut [f32], vocab: usize) -> Result<f64, CpuError> {
    let tokens = check_rows("logits", vocab, out.len())?;
    check_len("logits to aim at", out.len(), target.len())?;
    let mut sums = vec![0f64; tokens];
    let tasks = out.chunks_exact_mut(vocab).zip(target.chunks_exact_mut(vocab)).zip(&mut sums).collect();
    let isa = cpu.isa();
    cpu.pool().run(tasks, |((q, p), sum): ((&mut [f32], &mut [f32]), &mut f64)| {
        with_float_kernels!(isa, kernels => kernels.run(Softmax(&mut *q)));
        with_float_kernels!(isa, kernels => kernels.run(Softmax(&mut *p)));
        for (q, p) in q.iter_mut().zip(p) {
            // Smaller terms are negligible, and their logarithm may be infinite.
            if *p > 1e-12 {
                *sum += f64::from(*p) * f64::from(*p / q.max(1e-30)).ln();
            }
            *q -= *p;
        }
    });
    // In token order, independent of the thread that computed each.
    Ok(sums.iter().sum())
}

/// The cross-entropy `-ln softmax(logits)[target]` in nats, summed over the tokens with a target. `logits`, `tokens x
/// vocab`, are overwritten with their gradient times `scale`, `(softmax(logits) - onehot(target)) scale`, which is zero
/// without a target.
///
/// # Errors
///
/// [`CpuError::NotMultiple`] when `logits` is not a whole number of rows, [`CpuError::Length`] unless there is one target per
/// row, [`CpuError::IdOutOfRange`] for a target outside the vocabulary. Nothing is written then.
///
/// ```
/// use trike_cpu::{Cpu, grad};
///
/// let mut logits = [0.0, 3f32.ln(), 5.0, 6.0];
/// let loss = grad::cross_entropy(&Cpu::new(1)?, &mut logits, &[Some(1), None], 2, 2.0)?;
/// assert!((loss - (4.0f64 / 3.0).ln()).abs() < 1e-6);
/// assert!((logits[0] - 0.5).abs() < 1e-6 && (logits[1] + 0.5).abs() < 1e-6);
/// assert_eq!(logits[2..], [0.0, 0.0]);
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
pub fn cross_entropy(
    cpu: &Cpu,
    logits: &mut [f32],
    targets: &[Option<u32>],
    vocab: usize,
    scale: f32,
) -> Result<f64, CpuError> {
    let tokens = check_targets(logits, targets, vocab)?;
    let mut losses = vec![0f64; tokens];
    let tasks = logits.chunks_exact_mut(vocab).zip(targets).zip(&mut losses).collect();
    let isa = cpu.isa();
    cpu.pool().run(tasks, |((row, target), loss): ((&mut [f32], &Option<u32>), &mut f64)| {
        let Some(target) = target.map(|target| target as usize) else {
            row.fill(0.0);
            return;
        };
        let logit = row[target];
        let (largest, sum) = with_float_kernels!(isa, kernels => kernels.run(Softmax(&mut *row)));
        *loss = f64::from(largest) - f64::from(logit) + f64::from(sum).ln();
        row[target] -= 1.0;
        row.iter_mut().for_each(|d| *d *= scale);
    });
    // In token order, independent of the thread that computed each.
    Ok(losses.iter().sum())
}

/// Checks the targets of logits and returns the number of tokens.
fn check_targets(logits: &[f32], targets: &[Option<u32>], vocab: usize) -> Result<usize, CpuError> {
    let tokens = check_rows("logits", vocab, logits.len())?;
    check_len("targets of the logits", tokens, targets.len())?;
    for (position, id) in targets.iter().enumerate() {
        if let Some(id) = id.filter(|id| *id as usize >= vocab) {
            return Err(CpuError::IdOutOfRange { position, id, rows: vocab });
        }
    }
    Ok(tokens)
}

/// Replaces logits by probabilities; returns the largest logit and the sum of the exponentials of the differences from
/// it.
struct Softmax<'a>(&'a mut [f32]);

impl Loop for Softmax<'_> {
    type Output = (f32, f32);

    #[inline(always)]
    fn run(self) -> (f32, f32) {
        let Self(row) = self;
        let largest = largest(row);
        let mut lanes = [0f32; 16];
        let (chunks, tail) = row.as_chunks_mut::<16>();
        for chunk in chunks {
            for (lane, v) in lanes.iter_mut().zip(chunk) {
                *v = exp(*v - largest);
                *lane += *v;
            }
        }
        let mut sum = 0.0;
        for v in tail {
            *v = exp(*v - largest);
            sum += *v;
        }
        let sum = lanes.iter().fold(sum, |sum, lane| sum + lane);
        let factor = 1.0 / sum;
        for v in row.iter_mut() {
            *v *= factor;
        }
        (largest, sum)
    }
}

/// Cross-entropy and divergence of the same logits, in nats, each summed over the tokens with a target: `-ln q[target]`
/// and `sum p ln(p / q)` with `q = softmax(logits)` and `p = softmax(teacher)`. `logits` are overwritten with the gradient
/// of `scales[0]` times the first plus `scales[1]` times the second, which is zero without a target; the contents of
/// `teacher` are arbitrary afterwards.
///
/// Both matrices are `tokens x vocab`.
///
/// # Errors
///
/// As [`cross_entropy`] and [`divergence`].
///
/// ```
/// use trike_cpu::{Cpu, grad};
///
/// let (mut logits, mut teacher) = ([0.0, 3f32.ln()], [0.0, 0.0]);
/// let [entropy, divergence] =
///     grad::distill(&Cpu::new(1)?, &mut logits, &mut teacher, &[Some(1)], 2, [2.0, 4.0])?;
/// assert!((entropy - (4.0f64 / 3.0).ln()).abs() < 1e-6);
/// assert!((divergence - (0.5 * 2f64.ln() + 0.5 * (2.0f64 / 3.0).ln())).abs() < 1e-6);
/// assert!((logits[0] - (0.5 - 1.0)).abs() < 1e-6 && (logits[1] - (-0.5 + 1.0)).abs() < 1e-6);
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
pub fn distill(
    cpu: &Cpu,
    logits: &mut [f32],
    teacher: &mut [f32],
    targets: &[Option<u32>],
    vocab: usize,
    scales: [f32; 2],
) -> Result<[f64; 2], CpuError> {
    let tokens = check_targets(logits, targets, vocab)?;
    check_len("logits to aim at", logits.len(), teacher.len())?;
    let mut sums = vec![[0f64; 2]; tokens];
    let isa = cpu.isa();
    let rows = logits.chunks_exact_mut(vocab).zip(teacher.chunks_exact_mut(vocab));
    let tasks = rows.zip(targets).zip(&mut sums).map(|(((row, teacher), target), sum)| {
        let token = Distill { row, teacher, target: *target, scales };
        (token, sum)
    });
    cpu.pool().run(tasks.collect(), |(token, sum): (Distill<'_>, &mut [f64; 2])| {
        *sum = with_float_kernels!(isa, kernels => kernels.run(token));
    });
    // In token order, independent of the thread that computed each.
    Ok(sums.iter().fold([0.0; 2], |all, each| [all[0] + each[0], all[1] + each[1]]))
}

/// Both losses of one token.
struct Distill<'a> {
    row: &'a mut [f32],
    teacher: &'a mut [f32],
    target: Option<u32>,
    scales: [f32; 2],
}

impl Loop for Distill<'_> {
    type Output = [f64; 2];

    #[inline(always)]
    fn run(self) -> [f64; 2] {
        let Self { row, teacher, target, scales } = self;
        let Some(target) = target.map(|target| target as usize) else {
            row.fill(0.0);
            return [0.0; 2];
        };
        let (top, teacher_top) = (largest(row), largest(teacher));
        let logit = row[target] - top;
        // Exponentials, their sums, and the sum of the teacher's times the difference of the logits.
        let mut lanes = [[0f32; 16]; 3];
        let [sum, teacher_sum, along] = &mut lanes;
        let (heads, tail) = row.as_chunks_mut::<16>();
        let (teacher_heads, teacher_tail) = teacher.as_chunks_mut::<16>();
        for (q, p) in heads.iter_mut().zip(teacher_heads) {
            for lane in 0..16 {
                let (student, teacher) = (q[lane] - top, p[lane] - teacher_top);
                (q[lane], p[lane]) = (exp(student), exp(teacher));
                sum[lane] += q[lane];
                teacher_sum[lane] += p[lane];
                // A token of zero probability contributes nothing, even if its logit is infinite.
                along[lane] += if p[lane] > 0.0 { p[lane] * (teacher - student) } else { 0.0 };
            }
        }
        for (lane, (q, p)) in tail.iter_mut().zip(teacher_tail).enumerate() {
            let (student, teacher) = (*q - top, *p - teacher_top);
            (*q, *p) = (exp(student), exp(teacher));
            sum[lane] += *q;
            teacher_sum[lane] += *p;
            along[lane] += if *p > 0.0 { *p * (teacher - student) } else { 0.0 };
        }
        let [sum, teacher_sum, along] = lanes.map(|lanes| lanes.iter().sum::<f32>());
        let (factor, teacher_factor) = (1.0 / sum, 1.0 / teacher_sum);
        for (q, p) in row.iter_mut().zip(teacher.iter()) {
            let (student, teacher) = (*q * factor, *p * teacher_factor);
            *q = scales[0] * student + scales[1] * (student - teacher);
        }
        row[target] -= scales[0];
        let [log, teacher_log] = [sum, teacher_sum].map(|sum| f64::from(sum).ln());
        [log - f64::from(logit), f64::from(along * teacher_factor) + (log - teacher_log)]
    }
}
