//! Rounding to the formats of llama.cpp with 4 and 8 bits, to show beside trits. Only what their weights become is computed; nothing is
//! stored in them.

use std::path::Path;

use half::f16;
use trike_core::{DenseData, DenseTensor, Tensor};
use trike_format::TensorInfo;
use trike_llm::{LlmError, ModelConfig, ModelFile, WeightSource};
use trike_nn::{NnError, WeightName};

/// A format that weights are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rival {
    /// 8 bits and a scale for 32 weights.
    Q8_0,
    /// 4 bits and a scale for 32 weights.
    Q4_0,
    /// 4 bits, a scale and a minimum of 6 bits for 32 weights, and an f16 for 256 of each.
    Q4K,
}

impl Rival {
    pub(crate) const ALL: [Self; 3] = [Self::Q8_0, Self::Q4_0, Self::Q4K];

    /// As llama.cpp calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4K => "Q4_K",
        }
    }

    /// Weights of a block, which rows are made of, and its bytes.
    pub(crate) fn block(self) -> (usize, usize) {
        match self {
            Self::Q8_0 => (32, 34),
            Self::Q4_0 => (32, 18),
            Self::Q4K => (256, 144),
        }
    }

    /// Rounds weights in place; their number is a multiple of the block.
    fn round(self, weights: &mut [f32]) {
        for block in weights.chunks_exact_mut(self.block().0) {
            match self {
                Self::Q8_0 => {
                    let largest = block.iter().fold(0f32, |most, w| most.max(w.abs()));
                    to_steps(block, largest / 127.0, -127.0, 127.0);
                }
                Self::Q4_0 => {
                    // The largest magnitude becomes -8, whatever its sign.
                    let largest = block
                        .iter()
                        .copied()
                        .fold(0f32, |most, w| if w.abs() > most.abs() { w } else { most });
                    to_steps(block, largest / -8.0, -8.0, 7.0);
                }
                Self::Q4K => round_q4k(block),
            }
        }
    }
}

/// Rounds to multiples of a step, stored in f16, from `least` to `most` of them.
fn to_steps(block: &mut [f32], step: f32, least: f32, most: f32) {
    let stored = f16::from_f32(step).to_f32();
    let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
    block.iter_mut().for_each(|w| *w = stored * (*w * inverse).round().clamp(least, most));
}

/// Eight times 32 weights: `s q - m` with `q` from 0 to 15, where `s` and `m` are stored in 6 bits each.
fn round_q4k(block: &mut [f32]) {
    let fits: Vec<(f32, f32)> = block.chunks_exact(32).map(fit_q4k).collect();
    let largest = |of: fn(&(f32, f32)) -> f32| fits.iter().map(of).fold(0f32, f32::max);
    let [step, offset] =
        [largest(|fit| fit.0), largest(|fit| fit.1)].map(|most| f16::from_f32(most / 63.0).to_f32());
    let stored =
        |value: f32, unit: f32| if unit == 0.0 { 0.0 } else { unit * (value / unit).round().min(63.0) };
    for (weights, (s, m)) in block.chunks_exact_mut(32).zip(fits) {
        let (s, m) = (stored(s, step), stored(m, offset));
        let inverse = if s == 0.0 { 0.0 } else { 1.0 / s };
        weights.iter_mut().for_each(|w| *w = s * ((*w + m) * inverse).round().clamp(0.0, 15.0) - m);
    }
}

/// The step and the offset of least squared error, with errors of large weights counted more, among those of several widths.
fn fit_q4k(weights: &[f32]) -> (f32, f32) {
    let mean = weights.iter().map(|w| w * w).sum::<f32>() / weights.len() as f32;
    let importance: Vec<f32> = weights.iter().map(|w| mean.sqrt() + w.abs()).collect();
    let least = weights.iter().copied().fold(0f32, f32::min);
    let most = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if most <= least {
        return (0.0, -least);
    }
    let error = |(s, m): (f32, f32)| -> f32 {
        let of = |(w, i): (&f32, &f32)| {
            let q = ((w + m) / s).round().clamp(0.0, 15.0);
            i * (s * q - m - w) * (s * q - m - w)
        };
        weights.iter().zip(&importance).map(of).sum()
    };
    let whole = ((most - least) / 15.0, -least);
    let mut best = (error(whole), whole);
    for width in 0..=20 {
        let inverse = (14.0 + 0.1 * width as f32) / (most - least);
        // Least squares of `s q - m` for the codes that this width gives.
        let mut sums = [0f32; 5];
        for (w, i) in weights.iter().zip(&importance) {
            let q = ((w - least) * inverse).round().clamp(0.0, 15.0);
            let terms = [*i, i * q, i * q * q, i * w, i * w * q];
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
        }
        let [n, q, qq, w, wq] = sums;
        let determinant = n * qq - q * q;
        if determinant <= 0.0 {
            continue;
        }
        let (mut s, mut m) = ((n * wq - w * q) / determinant, (q * wq - qq * w) / determinant);
        if m < 0.0 {
            (s, m) = (wq / qq, 0.0);
        }
        if s <= 0.0 {
            continue;
        }
        let error = error((s, m));
        if error < best.0 {
            best = (error, (s, m));
        }
    }
    best.1
}

/// A model whose named matrices are rounded.
pub(crate) struct Rounded<'a> {
    pub(crate) inner: &'a ModelFile,
    pub(crate) to: Rival,
    /// Names of the matrices.
    pub(crate) layers: Vec<String>,
}

impl WeightSource for Rounded<'_> {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }

    fn info(&self, name: WeightName) -> Result<&TensorInfo, LlmError> {
        self.inner.info(name)
    }

    fn load(&self, name: WeightName) -> Result<Tensor, LlmError> {
        let tensor = self.inner.load(name)?;
        if !self.layers.contains(&name.to_string()) {
            return Ok(tensor);
        }
        let shape = tensor.shape();
        let mut values = tensor.into_f32();
        self.to.round(&mut values);
        Ok(DenseTensor::new(shape, DenseData::F32(values)).map_err(NnError::from)?.into())
    }

    fn is_f32(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use trike_testkit::{Rng, assert_all_near};

    use super::*;

    #[test]
    fn errors_are_those_of_the_formats() {
        let weights = Rng::new(3).normals(64 * 256);
        let error = |to: Rival, weights: &[f32]| {
            let mut rounded = weights.to_vec();
            to.round(&mut rounded);
            let lost: f32 = rounded.iter().zip(weights).map(|(a, b)| (a - b).powi(2)).sum();
            (lost / weights.iter().map(|w| w * w).sum::<f32>()).sqrt()
        };
        // Of normal weights: a step is a 127th of the largest of 32, or an eighth, and a fifteenth of their range.
        let [q8, q4, q4k] = Rival::ALL.map(|to| error(to, &weights));
        assert!((0.004..0.007).contains(&q8), "{q8}");
        assert!((0.07..0.11).contains(&q4), "{q4}");
        assert!((0.06..0.085).contains(&q4k) && q4k < 0.9 * q4, "{q4k}");
        // Sixteen evenly spaced levels with a shift are held but for the six bits.
        let even: Vec<f32> = (0..256).map(|i| (i % 16) as f32 - 5.0).collect();
        assert!(error(Rival::Q4K, &even) < 1e-3);
        // Nothing becomes anything else, and a constant stays.
        for to in Rival::ALL {
            let mut nothing = vec![0.0; 256];
            to.round(&mut nothing);
            assert_eq!(nothing, [0.0; 256]);
            for value in [-0.5f32, 0.5] {
                let mut same = vec![value; 256];
                to.round(&mut same);
                assert_all_near!(&same, &[value; 256], abs = 0.01, "{to:?}");
            }
        }
    }
}
