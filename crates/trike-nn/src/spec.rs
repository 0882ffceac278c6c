//! What a decoder is, read from a checkpoint's configuration.

use trike_cpu::{GatedActivation, RopePairing};

use crate::NnError;

/// Rotary position embedding: dimensions `2 i` and `2 i + 1` of a head (or `i` and `i + d / 2`, see
/// [`RopePairing`]) are rotated by `position * theta^(-2 i / d)` (Su et al., RoFormer, 2021).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies, over 1.
    pub theta: f32,
    /// Which two dimensions rotate together.
    pub pairing: RopePairing,
}

/// Sizes and constants of a decoder; all counts are elements.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderSpec {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Inner width of the gated MLP.
    pub intermediate: usize,
    /// Decoder blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads` (grouped-query attention).
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Rows of the embedding and of the output head.
    pub vocab: usize,
    /// Positions that the model was made for.
    pub context: usize,
    /// Added to the mean square in every RMSNorm.
    pub rms_eps: f32,
    /// Rotary embedding.
    pub rope: RopeSpec,
    /// Activation of the gated MLP.
    pub activation: GatedActivation,
    /// Whether the output head is the embedding.
    pub tied_head: bool,
}

/// Largest value accepted for any size, so that products of two fit in 64 bits and a hostile configuration
/// cannot ask for absurd buffers. The largest published vocabularies and widths are under 2^20.
const MAX_SIZE: usize = 1 << 24;

impl DecoderSpec {
    /// Checks that the sizes fit together.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`], which names the field, the rule and the value.
    pub fn validate(&self) -> Result<(), NnError> {
        let fail =
            |field: &'static str, rule: &'static str, got: String| Err(NnError::Spec { field, rule, got });
        for (field, n) in [
            ("hidden", self.hidden),
            ("intermediate", self.intermediate),
            ("layers", self.layers),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("vocab", self.vocab),
            ("context", self.context),
        ] {
            if !(1..=MAX_SIZE).contains(&n) {
                return fail(field, "must be 1 to 16777216", n.to_string());
            }
        }
        if self.heads > 1 << 16 || self.layers > 1 << 16 {
            return fail(
                "heads or layers",
                "must be at most 65536",
                format!("{}, {}", self.heads, self.layers),
            );
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return fail("kv_heads", "must divide heads", format!("{} of {}", self.kv_heads, self.heads));
        }
        if !self.head_dim.is_multiple_of(2) || self.head_dim > 1 << 16 {
            return fail("head_dim", "must be even and at most 65536", self.head_dim.to_string());
        }
        if !(self.rms_eps >= 0.0 && self.rms_eps < 1.0) {
            return fail("rms_eps", "must be 0 or more and under 1", self.rms_eps.to_string());
        }
        if !(self.rope.theta > 1.0 && self.rope.theta.is_finite()) {
            return fail("rope.theta", "must be finite and over 1", self.rope.theta.to_string());
        }
        Ok(())
    }

    /// Width of all query heads together.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn small() -> DecoderSpec {
        DecoderSpec {
            hidden: 48,
            intermediate: 80,
            layers: 2,
            heads: 6,
            kv_heads: 2,
            head_dim: 8,
            vocab: 97,
            context: 64,
            rms_eps: 1e-5,
            rope: RopeSpec { theta: 10_000.0, pairing: RopePairing::Halves },
            activation: GatedActivation::SiLu,
            tied_head: true,
        }
    }

    #[test]
    fn every_rule_names_its_field() {
        assert_eq!(small().validate(), Ok(()));
        type Spoil = fn(&mut DecoderSpec);
        let table: [(&str, Spoil); 9] = [
            ("hidden", |s| s.hidden = 0),
            ("vocab", |s| s.vocab = (1 << 24) + 1),
            ("layers", |s| s.layers = 0),
            ("heads or layers", |s| s.layers = (1 << 16) + 1),
            ("kv_heads", |s| s.kv_heads = 4),
            ("head_dim", |s| s.head_dim = 7),
            ("rms_eps", |s| s.rms_eps = f32::NAN),
            ("rms_eps", |s| s.rms_eps = -1e-9),
            ("rope.theta", |s| s.rope.theta = 1.0),
        ];
        for (want, spoil) in table {
            let mut spec = small();
            spoil(&mut spec);
            match spec.validate() {
                Err(NnError::Spec { field, .. }) => assert_eq!(field, want),
                other => panic!("{want}: {other:?}"),
            }
        }
    }
}
