//! The host as an executor.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use trike_core::{
    AttentionSpec, DenseData, DenseTensor, GatedActivation, Int8Tensor, ProductPrecision, RopePairing,
    absmean,
};
use trike_cpu::{Cpu, CpuError, CpuOps, MatrixRef, RopeTable, Store, grad, matmul_rounded};

use super::{
    AdamW, Elements, EngineLosses, EngineMemory, EngineOps, EngineOptimization, EngineQuantization,
    EngineValues, Operand, ScaleGroups,
};
use crate::error::{GradError, check_len};

/// The rotation of the heads of some tokens, on the host.
#[derive(Clone, Debug)]
pub struct Rotary {
    /// Frequencies.
    pub table: Arc<RopeTable>,
    /// Pairing of the elements that are rotated together.
    pub pairing: RopePairing,
    /// The position of each token in its document.
    pub positions: Arc<[u32]>,
}

/// The trit of a weight, or NaN.
#[inline]
pub(crate) fn trit(w: f32, scale: f32) -> f32 {
    if w.abs() <= 0.5 * scale { 0.0 } else { w.signum() }
}

/// With the `k` largest magnitudes nonzero, the best scale is their mean and reduces the squared error by `sum^2 / k`; the best `k`
/// maximizes this.
pub(crate) fn least_squares(weights: &[f32]) -> f32 {
    // Nonnegative floats are ordered like their bits.
    let mut bits: Vec<u32> = weights.iter().map(|w| w.abs().to_bits()).collect();
    bits.sort_unstable_by(|a, b| b.cmp(a));
    let (mut sum, mut best, mut scale) = (0f64, 0f64, 0f64);
    for (k, bits) in (1u32..).zip(bits) {
        sum += f64::from(f32::from_bits(bits));
        let gain = sum * sum / f64::from(k);
        // NaN is kept, so that it reaches the output.
        if gain > best || gain.is_nan() {
            (best, scale) = (gain, sum / f64::from(k));
        }
    }
    scale as f32
}

impl Elements for Vec<f32> {
    fn elements(&self) -> usize {
        self.len()
    }
}

impl Elements for [f32] {
    fn elements(&self) -> usize {
        self.len()
    }
}

impl ScaleGroups {
    /// Groups of weights with their scales, for whole rows of a matrix.
    pub(crate) fn each<'a>(
        self,
        weights: &'a [f32],
        scales: &'a [f32],
    ) -> impl Iterator<Item = (&'a [f32], f32)> {
        // Part of a tensor with one scale is a shorter group.
        let len = self.len.max(1);
        weights.chunks(self.span()).flat_map(move |row| row.chunks(len)).zip(scales.iter().copied())
    }

    /// The scales of rows from `first` on.
    fn scales_of(self, scales: &[f32], first: usize) -> &[f32] {
        &scales[first * self.per_row..]
    }
}

fn matrix<'v>(operand: Operand<'v, [f32]>) -> Result<MatrixRef<'v>, GradError> {
    let Operand { values, first, rows, cols, transposed } = operand;
    let values = values.get(first..).and_then(|values| values.get(..rows * cols));
    let values = values.ok_or(GradError::Length { what: "matrix", expected: first + rows * cols, got: 0 })?;
    let matrix = MatrixRef::new(values, cols)?;
    Ok(if transposed { matrix.t() } else { matrix })
}

impl EngineMemory for Cpu {
    type Tensor = Vec<f32>;

    type View = [f32];

    type RopeTable = (Arc<RopeTable>, RopePairing);

    type Rotary = Rotary;

    type Segments = Arc<[usize]>;

    type Ids = Vec<u32>;

    type Targets = Vec<Option<u32>>;

    const SIDE_BY_SIDE: bool = true;

    fn allocate(&self, len: usize) -> Result<Vec<f32>, GradError> {
        let mut tensor = Vec::new();
        tensor.try_reserve_exact(len).map_err(|_| GradError::Memory { elements: len })?;
        tensor.resize(len, 0.0);
        Ok(tensor)
    }

    fn upload(&self, values: Vec<f32>) -> Result<Vec<f32>, GradError> {
        Ok(values)
    }

    fn borrow_or_upload<'v>(&self, values: &'v [f32]) -> Result<EngineValues<'v, Self>, GradError> {
        Ok(EngineValues::Borrowed(values))
    }

    fn download<'v>(&self, tensor: &'v [f32]) -> Result<Cow<'v, [f32]>, GradError> {
        Ok(Cow::Borrowed(tensor))
    }

    fn fill(&self, tensor: &mut [f32], value: f32) -> Result<(), GradError> {
        tensor.fill(value);
        Ok(())
    }

    fn copy(&self, from: &[f32], to: &mut [f32]) -> Result<(), GradError> {
        check_len("copy", from.len(), to.len())?;
        to.copy_from_slice(from);
        Ok(())
    }

    fn each_alone<I: Send, R: Send>(
        &self,
        items: Vec<I>,
        run: impl Fn(&Self, I) -> R + Sync,
        take: impl FnMut(R) + Send,
    ) -> Result<(), GradError> {
        let alone = Cpu::with_isa(self.isa(), 1).map_err(CpuError::from)?;
        self.pool().map_in_order(items, |item| run(&alone, item), take);
        Ok(())
    }
}

impl EngineOps for Cpu {
    const ROUNDS_OPERANDS: bool = true;

    fn rope_table(
        &self,
        frequencies: Vec<f32>,
        pairing: RopePairing,
        positions: usize,
    ) -> Result<Self::RopeTable, GradError> {
        // Positions beyond the table are computed when they are used.
        let positions = u32::try_from(positions).unwrap_or(u32::MAX);
        Ok((Arc::new(RopeTable::from_frequencies(frequencies)?.precompute(positions)), pairing))
    }

    fn rotary(&self, table: &Self::RopeTable, positions: Vec<u32>) -> Result<Rotary, GradError> {
        let (table, pairing) = table;
        Ok(Rotary { table: Arc::clone(table), pairing: *pairing, positions: positions.into() })
    }

    fn segments(&self, lengths: Vec<usize>) -> Result<Arc<[usize]>, GradError> {
        Ok(lengths.into())
    }

    fn ids(&self, ids: &[u32], _rows: usize) -> Result<Vec<u32>, GradError> {
        Ok(ids.to_vec())
    }

    fn targets(&self, targets: &[Option<u32>]) -> Result<Vec<Option<u32>>, GradError> {
        Ok(targets.to_vec())
    }

    fn add(&self, sum: &mut [f32], x: &[f32]) -> Result<(), GradError> {
        Ok(CpuOps::add(self, sum, x)?)
    }

    fn scale(&self, x: &mut [f32], by: f32) -> Result<(), GradError> {
        x.iter_mut().for_each(|v| *v *= by);
        Ok(())
    }

    fn scale_by(&self, x: &mut [f32], by: &[f32]) -> Result<(), GradError> {
        check_len("factor", 1, by.len())?;
        if by[0] != 1.0 {
            x.iter_mut().for_each(|v| *v *= by[0]);
        }
        Ok(())
    }

    fn add_row(&self, x: &mut [f32], row: &[f32]) -> Result<(), GradError> {
        for x in x.chunks_exact_mut(row.len().max(1)) {
            x.iter_mut().zip(row).for_each(|(x, v)| *x += v);
        }
        Ok(())
    }

    fn sum_rows(&self, x: &[f32], out: &mut [f32]) -> Result<(), GradError> {
        // Summed in f64, in order.
        let mut sums = vec![0f64; out.len()];
        for row in x.chunks_exact(out.len().max(1)) {
            sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += f64::from(*v));
        }
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum as f32);
        Ok(())
    }

    fn matmul(
        &self,
        a: Operand<'_, [f32]>,
        b: Operand<'_, [f32]>,
        out: &mut [f32],
        at: usize,
        store: Store,
        precision: ProductPrecision,
    ) -> Result<(), GradError> {
        let (a, b) = (matrix(a)?, matrix(b)?);
        let (len, got) = (a.rows() * b.cols(), out.len());
        let out = out.get_mut(at..).and_then(|out| out.get_mut(..len));
        let out = out.ok_or(GradError::Length { what: "output of a product", expected: at + len, got })?;
        Ok(matmul_rounded(self, a, b, out, store, precision)?)
    }

    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) -> Result<(), GradError> {
        Ok(CpuOps::rms_norm(self, x, weight, eps, out)?)
    }

    fn rms_norm_input(
        &self,
        x: &[f32],
        weight: &[f32],
        eps: f32,
        dy: &[f32],
        dx: &mut [f32],
    ) -> Result<(), GradError> {
        Ok(grad::rms_norm(self, x, weight, eps, dy, dx)?)
    }

    fn rms_norm_weight(&self, x: &[f32], eps: f32, dy: &[f32], dw: &mut [f32]) -> Result<(), GradError> {
        Ok(grad::rms_norm_weight(self, x, eps, dy, dw)?)
    }

    fn rope(&self, x: &mut [f32], heads: usize, how: &Rotary, back: bool) -> Result<(), GradError> {
        let Rotary { table, pairing, positions } = how;
        let tokens = positions.len().max(1);
        let head_dim = x.len() / tokens / heads.max(1);
        match back {
            true => grad::rope(self, x, heads, head_dim, positions, table, *pairing)?,
            false => CpuOps::rope(self, x, heads, head_dim, positions, table, *pairing)?,
        }
        Ok(())
    }

    fn attention(
        &self,
        spec: &AttentionSpec,
        qkv: [&[f32]; 3],
        segments: &Arc<[usize]>,
        out: &mut [f32],
    ) -> Result<(), GradError> {
        Ok(grad::attend(self, spec, qkv, segments, out)?)
    }

    fn attention_back(
        &self,
        spec: &AttentionSpec,
        qkv: [&[f32]; 3],
        segments: &Arc<[usize]>,
        dy: &[f32],
        gradients: [&mut [f32]; 3],
    ) -> Result<(), GradError> {
        Ok(grad::attention(self, spec, qkv, segments, dy, gradients)?)
    }

    fn gated(
        &self,
        gate: &[f32],
        up: &[f32],
        activation: GatedActivation,
        out: &mut [f32],
    ) -> Result<(), GradError> {
        Ok(CpuOps::gated(self, gate, up, activation, out)?)
    }

    fn gated_back(
        &self,
        gate: &[f32],
        up: &[f32],
        activation: GatedActivation,
        dy: &[f32],
        [d_gate, d_up]: [&mut [f32]; 2],
    ) -> Result<(), GradError> {
        Ok(grad::gated(self, gate, up, activation, dy, d_gate, d_up)?)
    }

    fn gather(&self, table: &[f32], cols: usize, ids: &Vec<u32>, out: &mut [f32]) -> Result<(), GradError> {
        for (out, &id) in out.chunks_exact_mut(cols).zip(ids) {
            out.copy_from_slice(&table[id as usize * cols..][..cols]);
        }
        Ok(())
    }

    fn scatter_add(
        &self,
        rows: &[f32],
        cols: usize,
        ids: &Vec<u32>,
        table: &mut [f32],
    ) -> Result<(), GradError> {
        for (row, &id) in rows.chunks_exact(cols).zip(ids) {
            let sums = &mut table[id as usize * cols..][..cols];
            sums.iter_mut().zip(row).for_each(|(sum, d)| *sum += d);
        }
        Ok(())
    }
}

impl EngineQuantization for Cpu {
    fn round_activations(
        &self,
        x: &[f32],
        width: usize,
        group: usize,
        smallest: f32,
        out: &mut [f32],
    ) -> Result<(), GradError> {
        Ok(grad::round_int8(self, x, width, group, smallest, out)?)
    }

    fn round_weights(
        &self,
        weights: &[f32],
        cols: usize,
        group: usize,
        take: impl FnOnce() -> Result<Vec<f32>, GradError>,
    ) -> Result<Vec<f32>, GradError> {
        let rows = weights.len() / cols.max(1);
        let dense = DenseTensor::new(vec![rows, cols], DenseData::F32(weights.to_vec()))?;
        let codes = Int8Tensor::quantize(&dense, group, true)?;
        // Tables are large: free each copy as early as possible.
        drop(dense);
        let rounded = codes.dequantize();
        drop(codes);
        let mut out = take()?;
        self.copy(&rounded, &mut out)?;
        Ok(out)
    }

    fn scales(&self, weights: &[f32], groups: ScaleGroups, by_squares: bool) -> Result<Vec<f32>, GradError> {
        let parts = weights.chunks(groups.span()).flat_map(|row| row.chunks(groups.len.max(1)));
        let parts: Vec<&[f32]> = parts.collect();
        let mut scales = vec![0.0; groups.count()];
        self.pool().for_each_chunk(&mut scales, 1, 16 * weights.len(), |first, scales| {
            for (scale, part) in scales.iter_mut().zip(&parts[first..]) {
                *scale = if by_squares { least_squares(part) } else { absmean(part) };
            }
        });
        Ok(scales)
    }

    fn ternarize(
        &self,
        weights: &[f32],
        scales: &[f32],
        groups: ScaleGroups,
        lambda: f32,
        out: &mut [f32],
    ) -> Result<(), GradError> {
        let cols = groups.cols;
        self.pool().for_each_chunk(out, cols, 8 * weights.len(), |first, out| {
            let weights = &weights[first * cols..][..out.len()];
            let mut rest = out;
            for (part, s) in groups.each(weights, groups.scales_of(scales, first)) {
                let (out, after) = rest.split_at_mut(part.len());
                rest = after;
                for (y, w) in out.iter_mut().zip(part) {
                    let q = s * trit(*w, s);
                    // Exact for `lambda` = 1; the general formula would round the ternary values.
                    *y = if lambda == 1.0 { q } else { w + lambda * (q - w) };
                }
            }
        });
        Ok(())
    }

    fn clip(
        &self,
        weights: &[f32],
        scales: &[f32],
        groups: ScaleGroups,
        clip: f32,
        factor: f32,
        gradient: &mut [f32],
    ) -> Result<(), GradError> {
        let mut rest = gradient;
        for (part, s) in groups.each(weights, scales) {
            let (dy, after) = std::mem::take(&mut rest).split_at_mut(part.len());
            rest = after;
            for (d, w) in dy.iter_mut().zip(part) {
                if w.abs() > clip * s {
                    *d *= factor;
                }
            }
        }
        Ok(())
    }

    fn scales_back(
        &self,
        weights: &[f32],
        scales: &[f32],
        groups: ScaleGroups,
        lambda: f32,
        dy: &[f32],
    ) -> Result<Vec<f32>, GradError> {
        let mut gradients = Vec::with_capacity(scales.len());
        let mut rest = dy;
        for (part, s) in groups.each(weights, scales) {
            let (dy, after) = rest.split_at(part.len());
            rest = after;
            let slope = |w: f32| if w.abs() <= s { trit(w, s) - w / s } else { w.signum() };
            let sum: f64 = part.iter().zip(dy).map(|(w, d)| f64::from(*d) * f64::from(slope(*w))).sum();
            gradients.push(lambda * sum as f32);
        }
        Ok(gradients)
    }
}

impl EngineLosses for Cpu {
    type Losses = [f64; 2];

    fn losses(&self, _rows: usize) -> Result<[f64; 2], GradError> {
        Ok([0.0; 2])
    }

    fn totals(&self, losses: [f64; 2]) -> Result<[f64; 2], GradError> {
        Ok(losses)
    }

    fn cross_entropy(
        &self,
        logits: &mut [f32],
        rows: Range<usize>,
        targets: &Vec<Option<u32>>,
        scale: f32,
        losses: &mut [f64; 2],
    ) -> Result<(), GradError> {
        let vocab = logits.len() / rows.len().max(1);
        losses[0] += grad::cross_entropy(self, logits, &targets[rows], vocab, scale)?;
        Ok(())
    }

    fn divergence(
        &self,
        logits: &mut [f32],
        rows: Range<usize>,
        teacher: &mut [f32],
        scale: f32,
        losses: &mut [f64; 2],
    ) -> Result<(), GradError> {
        let vocab = logits.len() / rows.len().max(1);
        losses[1] += grad::divergence(self, logits, teacher, vocab)?;
        self.scale(logits, scale)
    }

    fn distill(
        &self,
        logits: &mut [f32],
        rows: Range<usize>,
        teacher: &mut [f32],
        targets: &Vec<Option<u32>>,
        scales: [f32; 2],
        losses: &mut [f64; 2],
    ) -> Result<(), GradError> {
        let vocab = logits.len() / rows.len().max(1);
        let [entropy, divergence] = grad::distill(self, logits, teacher, &targets[rows], vocab, scales)?;
        *losses = [losses[0] + entropy, losses[1] + divergence];
        Ok(())
    }
}

impl EngineOptimization for Cpu {
    fn sum_of_squares(&self, all: &[&[f32]]) -> Result<f64, GradError> {
        all.iter().try_fold(0.0, |sum, values| Ok(sum + self.add_squares(0.0, values)?))
    }

    fn add_squares(&self, sum: f64, x: &[f32]) -> Result<f64, GradError> {
        Ok(x.iter().fold(sum, |sum, g| sum + f64::from(*g) * f64::from(*g)))
    }

    fn adamw(
        &self,
        step: &AdamW,
        value: &mut [f32],
        gradient: &[f32],
        [first, second]: [&mut [f32]; 2],
    ) -> Result<(), GradError> {
        let AdamW { limit, beta1, beta2, epsilon, rate, correction, kept } = *step;
        let each = value.iter_mut().zip(gradient).zip(first.iter_mut().zip(second));
        for ((value, g), (mean, square)) in each {
            let g = limit * g;
            *mean = beta1 * *mean + (1.0 - beta1) * g;
            *square = beta2 * *square + (1.0 - beta2) * g * g;
            *value = *value * kept - rate * *mean / ((*square / correction).sqrt() + epsilon);
        }
        Ok(())
    }

    fn momentum(
        &self,
        decay: f32,
        limit: f32,
        mean: &[f32],
        gradient: &[f32],
        out: &mut [f32],
    ) -> Result<(), GradError> {
        for (out, (mean, g)) in out.iter_mut().zip(mean.iter().zip(gradient)) {
            *out = decay * mean + limit * g;
        }
        Ok(())
    }

    fn add_momentum(
        &self,
        decay: f32,
        limit: f32,
        mean: &mut [f32],
        gradient: &[f32],
    ) -> Result<(), GradError> {
        for (mean, g) in mean.iter_mut().zip(gradient) {
            *mean = decay * *mean + limit * g;
        }
        Ok(())
    }

    fn descend(&self, kept: f32, rate: f32, value: &mut [f32], update: &[f32]) -> Result<(), GradError> {
        for (value, u) in value.iter_mut().zip(update) {
            *value = *value * kept - rate * u;
        }
        Ok(())
    }

    fn normalize(&self, x: &mut [f32]) -> Result<(), GradError> {
        let norm = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt();
        x.iter_mut().for_each(|v| *v /= (norm + 1e-7) as f32);
        Ok(())
    }

    fn polynomial(
        &self,
        [a, b, c]: [f32; 3],
        side: usize,
        gram: &[f32],
        square: &mut [f32],
    ) -> Result<(), GradError> {
        for (i, (square, gram)) in square.iter_mut().zip(gram).enumerate() {
            let diagonal = if i % (side + 1) == 0 { a } else { 0.0 };
            *square = diagonal + b * gram + c * *square;
        }
        Ok(())
    }
}
