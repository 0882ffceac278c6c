//! Which weights of a model become zero first, and how what is left is packed.

use trike_cpu::{Isa, Layout, choose_layout};
use trike_quant::{Hessian, HessianFactor, MatrixView, PrunePattern, PruneScore, QuantError, prune};
use trike_trit::{Encoding, TritError, TritTensor};

use crate::{ConfigError, QuantizeMethod};

/// What makes a weight worth keeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Importance {
    /// Its magnitude.
    Magnitude,
    /// Its magnitude times the norm of its input on the calibration text (Wanda, Sun et al., 2306.11695).
    Wanda,
    /// What the layer's output loses when the rest of the row has made up for it (SparseGPT, Frantar and Alistarh, 2301.00774).
    Compensated,
}

/// Weights that become zero before the rest is made ternary, and stay zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pruning {
    /// Which weights go.
    pub importance: Importance,
    /// Which of them go together.
    pub pattern: PrunePattern,
    /// Share of each layer's weights, or blocks, that become zero. Weights that round to zero come on top.
    pub share: f64,
}

impl Pruning {
    /// Checks that it goes together with the rest of the options.
    pub(crate) fn validate(&self, method: &QuantizeMethod, with_mean: bool) -> Result<(), ConfigError> {
        if !(0.0..1.0).contains(&self.share) {
            return Err(ConfigError::PruneFraction { got: self.share });
        }
        if let PrunePattern::NOfM { keep, of } = self.pattern
            && !(keep >= 1 && keep < of)
        {
            return Err(ConfigError::PrunePattern { keep, of });
        }
        if matches!(method, QuantizeMethod::Round(_)) {
            return Err(ConfigError::PruneRounded);
        }
        if with_mean {
            return Err(ConfigError::PruneMeans);
        }
        Ok(())
    }

    /// Says of each weight whether it is kept.
    pub(crate) fn keep(
        &self,
        weights: MatrixView<'_>,
        hessian: &Hessian,
        factor: &HessianFactor,
    ) -> Result<Vec<bool>, QuantError> {
        let score = match self.importance {
            Importance::Magnitude => PruneScore::Magnitude,
            Importance::Wanda => PruneScore::Wanda(hessian.diagonal()),
            Importance::Compensated => PruneScore::Compensated(factor),
        };
        prune(weights, score, self.pattern, self.share)
    }
}

/// The packing that fits a tensor: row-compressed where the kernels multiply it fastest by its nonzeros, by the crossover that
/// [`choose_layout`] was measured with; else the smaller of five trits a byte and of a bitmap with signs. Those two cost no time:
/// kernels unpack either into the same layout when a model is loaded.
pub(crate) fn packed(tensor: TritTensor) -> Result<TritTensor, TritError> {
    let base3 = tensor.to_encoding(Encoding::Base3)?;
    if choose_layout(&base3, Isa::detect()) == Layout::Sparse {
        return base3.to_encoding(Encoding::RowCompressed);
    }
    let bitmap = base3.to_encoding(Encoding::Bitmap)?;
    Ok(if bitmap.bytes() < base3.bytes() { bitmap } else { base3 })
}

#[cfg(test)]
mod tests {
    use trike_trit::Scales;

    use super::*;

    #[test]
    fn packing_follows_the_zeros() {
        for (every, want) in [(2, Encoding::Base3), (5, Encoding::Bitmap), (20, Encoding::RowCompressed)] {
            let trits: Vec<i8> = (0..64 * 256).map(|i| i8::from(i % every == 0)).collect();
            let scales = Scales::tensor(1.0);
            let tensor = TritTensor::from_trits(64, 256, &trits, Encoding::TwoBit, scales).unwrap();
            let packed = packed(tensor.clone()).unwrap();
            assert_eq!((packed.encoding(), packed.dequantize()), (want, tensor.dequantize()), "{every}");
        }
    }
}
