//! What ranks exchange, and how many messages and bytes it takes.

use serde::{Deserialize, Serialize};
use trike_comm::{CodecConfig, ReductionPlan, Shards, Volume};

use super::codec::{CodecCost, Scheme};

/// Bytes of a gradient's element.
const FLOAT: u64 = 4;

/// What ranks exchange in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// The exact sum in every step.
    Exact,
    /// Ternary changes of the weights in every step.
    Ternary,
    /// The mean of the weights after sixteen steps.
    Local,
    /// The signs of the changes of the weights after sixteen steps.
    LocalSigns,
}

impl Exchange {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Exact, Self::Ternary, Self::Local, Self::LocalSigns];

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Ternary => "ternary",
            Self::Local => "16 local steps",
            Self::LocalSigns => "16 local steps, signs",
        }
    }

    /// Its lines in `run.toml`.
    #[must_use]
    pub fn config(self) -> &'static str {
        match self {
            Self::Exact => "",
            Self::Ternary => "codec = 'ternary'\n",
            Self::Local => "local_steps = 16\n",
            Self::LocalSigns => "local_steps = 16\ncodec = 'sign'\n",
        }
    }

    /// Steps from one exchange to the next.
    #[must_use]
    pub fn steps(self) -> u32 {
        match self {
            Self::Exact | Self::Ternary => 1,
            Self::Local | Self::LocalSigns => 16,
        }
    }

    /// Its codec.
    #[must_use]
    pub fn codec(self) -> Option<CodecConfig> {
        match self {
            Self::Exact | Self::Local => None,
            Self::Ternary => Some(CodecConfig::Ternary),
            Self::LocalSigns => Some(CodecConfig::Sign),
        }
    }

    /// Times per exchange that all ranks tell each other a few numbers: the loss and the norm of the gradient in every step, or
    /// whether weights are finite.
    fn small(self) -> u64 {
        match self {
            Self::Exact | Self::Ternary => 2,
            Self::Local | Self::LocalSigns => 1,
        }
    }

    /// What a rank sends per exchange, in the mean over the ranks, for vectors of so many elements: gradients or weights, without
    /// the few numbers beside them. The gradient's sum is divided in equal parts.
    #[must_use]
    pub fn volume(self, elements: u64, ranks: usize, codec: Option<&CodecCost>) -> Volume {
        let others = ranks.saturating_sub(1) as u64;
        let shards = Shards::even(usize::try_from(elements).unwrap_or(usize::MAX), ranks);
        match codec {
            None if self == Self::Local => mean_of(ranks, |rank| shards.mean_volume(rank, ranks)),
            None => mean_of(ranks, |rank| {
                let plan = ReductionPlan::of_rank(units(ranks), rank, ranks);
                plan.reduce_scatter_volume(&shards) + shards.all_gather_volume(rank, ranks)
            }),
            Some(codec) => {
                let message = (codec.bytes_per_element * elements as f64).round() as u64;
                match codec.scheme {
                    Scheme::Direct => Volume::of(others, others * message),
                    // To the owners of shards, and from them.
                    Scheme::TwoStages => Volume::of(2 * others, 2 * (message * others / ranks.max(1) as u64)),
                }
            }
        }
    }

    /// The same with the few numbers beside it.
    #[must_use]
    pub fn volume_with_numbers(self, elements: u64, ranks: usize, codec: Option<&CodecCost>) -> Volume {
        let small = self.small() * ranks.saturating_sub(1) as u64;
        self.volume(elements, ranks, codec) + Volume::of(small, small * 2 * FLOAT)
    }
}

/// Units of a step of which every block of the tree has one.
fn units(ranks: usize) -> usize {
    ranks.next_power_of_two().max(4)
}

fn mean_of(ranks: usize, of: impl Fn(usize) -> Volume) -> Volume {
    let sum = (0..ranks).map(of).fold(Volume::default(), |sum, one| sum + one);
    let ranks = ranks.max(1) as u64;
    Volume { messages: sum.messages / ranks, bytes: sum.bytes / ranks }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formula of the handbook.
    #[test]
    fn the_exact_sum_takes_eight_bytes_per_weight_of_all_but_one_shard() {
        for ranks in [1, 2, 4, 8, 64] {
            let elements = 128_000;
            let volume = Exchange::Exact.volume(elements, ranks, None);
            let others = ranks as u64 - 1;
            assert_eq!(volume, Volume::of(2 * others, 8 * elements * others / ranks as u64), "{ranks} ranks");
            assert_eq!(Exchange::Local.volume(elements, ranks, None), volume, "{ranks} ranks");
        }
    }

    #[test]
    fn ranks_that_are_no_power_of_two_send_some_subtrees_apart() {
        // Of eight blocks, the second of five ranks has the second and the third, which the tree does not add to each other.
        let volume = Exchange::Exact.volume(6000, 5, None);
        let (once, shards_of_others) = (8 * 6000 * 4 / 5, 4 * 4800);
        assert_eq!(volume, Volume::of(8, once + shards_of_others / 5));
    }

    #[test]
    fn two_stages_send_less_than_a_message_to_each() {
        let cost = |scheme| CodecCost { bytes_per_element: 0.2, scheme, encode: 0.0, decode: 0.0 };
        let of = |scheme, ranks| Exchange::Ternary.volume(1000, ranks, Some(&cost(scheme)));
        assert_eq!(of(Scheme::Direct, 5), Volume::of(4, 800));
        assert_eq!(of(Scheme::TwoStages, 5), Volume::of(8, 320));
        assert_eq!(of(Scheme::TwoStages, 2).bytes - 40, of(Scheme::Direct, 2).bytes - 20);
    }
}
