//! Selection of the cached keys that prompts attend to.

use std::num::NonZeroU16;

use crate::{Bounds, KeySelector, OptionError};

/// Selection of the blocks of keys that each block of a prompt attends to; attention over the selected ones is exact.
///
/// Steps of one token (generation) are not affected: see [`KeySelector`]. As with [`KeySelector`], the first layers attend to all
/// positions.
///
/// ```
/// use trike_core::PromptKeys;
///
/// let keys = PromptKeys::sampled(0.25)?;
/// assert_eq!(keys.of_layer(1), PromptKeys::All);
/// // A block with 99 others before it attends to itself and 24 of them; one with three before it to all.
/// assert_eq!((keys.kept(100), keys.kept(4)), (Some(25), None));
/// assert_eq!(PromptKeys::sampled(1.0)?, PromptKeys::All);
/// assert!(PromptKeys::sampled(0.0).is_err());
/// # Ok::<(), trike_core::OptionError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PromptKeys {
    /// All visible keys: exact attention.
    #[default]
    All,
    /// The blocks with the most attention of a sample of the query block's tokens, and always the first block and the query block's
    /// own block.
    Sampled {
        /// Share of the visible blocks that is selected, in thousandths.
        thousandths: NonZeroU16,
    },
}

impl PromptKeys {
    /// Number of visible blocks up to which all are selected: attention over so few blocks takes a negligible share of a layer's
    /// time.
    pub const LEAST_BLOCKS: usize = 4;

    /// Selects this share of the visible blocks, rounded to a thousandth.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`] for less than 0.001 or more than 1.
    pub fn sampled(share: f64) -> Result<Self, OptionError> {
        OptionError::check("share of keys", Bounds::at_least(0.001).at_most(1.0), share)?;
        // Between 1 and 1000.
        Ok(Self::of_thousandths((share * 1000.0).round() as u16).unwrap_or_default())
    }

    /// The selection of a layer.
    #[must_use]
    pub fn of_layer(self, layer: usize) -> Self {
        if layer < KeySelector::EXACT_LAYERS { Self::All } else { self }
    }

    /// Whether all keys are always selected.
    #[must_use]
    pub fn is_all(self) -> bool {
        self == Self::All
    }

    /// The share of the visible blocks that is selected.
    #[must_use]
    pub fn share(self) -> f64 {
        f64::from(self.thousandths()) / 1000.0
    }

    /// The share in thousandths, 1 to 1000.
    #[must_use]
    pub fn thousandths(self) -> u16 {
        match self {
            Self::All => 1000,
            Self::Sampled { thousandths } => thousandths.get(),
        }
    }

    /// The selection with this share in thousandths; `None` for 0 or more than 1000.
    #[must_use]
    pub fn of_thousandths(thousandths: u16) -> Option<Self> {
        match NonZeroU16::new(thousandths)? {
            thousandths if thousandths.get() < 1000 => Some(Self::Sampled { thousandths }),
            thousandths => (thousandths.get() == 1000).then_some(Self::All),
        }
    }

    /// Number of key blocks, of `visible` ones including its own, that a query block attends to; `None` for all of them.
    #[must_use]
    pub fn kept(self, visible: usize) -> Option<usize> {
        let Self::Sampled { thousandths } = self else { return None };
        let kept = visible.saturating_mul(thousandths.get().into()).div_ceil(1000).max(2);
        (visible > Self::LEAST_BLOCKS && kept < visible).then_some(kept)
    }
}
