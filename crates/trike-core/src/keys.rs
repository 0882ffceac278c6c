//! Selection of the cached keys that a decode step attends to.

use std::num::NonZeroUsize;

use crate::{Bounds, OptionError};

/// Selection of the positions that the token of a decode step attends to; attention over the selected ones is exact.
///
/// Steps of several tokens (prompts) always attend to all positions, and so do the first layers, whose attention is spread widely
/// (Tang et al., 2024).
///
/// ```
/// use trike_core::{KeySelector, SelectedKeys};
///
/// let keys = KeySelector::signs(1024)?;
/// assert_eq!(keys.of_layer(1), KeySelector::All);
/// // Too few positions for a selection to pay.
/// assert_eq!(keys.select(4096), None);
/// assert_eq!(keys.select(32_768), Some(SelectedKeys { first: 16, best: 1024, last: 256 }));
/// assert!(KeySelector::signs(0).is_err());
/// # Ok::<(), trike_core::OptionError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeySelector {
    /// All positions: exact attention.
    #[default]
    All,
    /// By sign codes: one bit per channel for the sign of the centred and rotated key, and one byte for its norm. Selects the
    /// positions whose codes agree best with the query, and always the first and the last ones.
    Signs {
        /// Number of positions selected by their codes.
        top_k: NonZeroUsize,
    },
}

/// Numbers of selected positions, per key/value head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SelectedKeys {
    /// The first visible positions, which act as attention sinks (Xiao et al., 2023).
    pub first: usize,
    /// Positions with the best codes, between the first and the last ones.
    pub best: usize,
    /// The last positions, the token's own included.
    pub last: usize,
}

impl SelectedKeys {
    /// Number of all selected positions.
    #[must_use]
    pub fn total(self) -> usize {
        self.first.saturating_add(self.best).saturating_add(self.last)
    }
}

impl KeySelector {
    /// First layers that attend to all positions.
    pub const EXACT_LAYERS: usize = 2;
    /// A selection of `n` positions is made from at least this many times `n` visible ones: below that, scoring and copying cost
    /// more than they save.
    pub const LEAST_VISIBLE: usize = 4;
    /// Maximum numbers of first and of last positions that are always selected.
    const MOST_FIRST: usize = 16;
    const MOST_LAST: usize = 256;

    /// Selection of `top_k` positions by sign codes.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`] for 0.
    pub fn signs(top_k: usize) -> Result<Self, OptionError> {
        match NonZeroUsize::new(top_k) {
            Some(top_k) => Ok(Self::Signs { top_k }),
            None => Err(OptionError::OutOfRange {
                field: "top_k",
                bounds: Bounds::at_least(1usize),
                got: top_k.to_string(),
            }),
        }
    }

    /// The selector of a layer.
    #[must_use]
    pub fn of_layer(self, layer: usize) -> Self {
        if layer < Self::EXACT_LAYERS { Self::All } else { self }
    }

    /// Number of positions selected by their codes; `None` without codes.
    #[must_use]
    pub fn top_k(self) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Signs { top_k } => Some(top_k.get()),
        }
    }

    /// Whether all positions are always selected.
    #[must_use]
    pub fn is_all(self) -> bool {
        self == Self::All
    }

    /// The selection from `visible` positions; `None` = all of them. In addition to the `top_k` best, it contains a quarter as many
    /// of the first and of the last positions, up to 16 and 256.
    #[must_use]
    pub fn select(self, visible: usize) -> Option<SelectedKeys> {
        let Self::Signs { top_k } = self else { return None };
        let (best, quarter) = (top_k.get(), top_k.get().div_ceil(4));
        let selected =
            SelectedKeys { first: quarter.min(Self::MOST_FIRST), best, last: quarter.min(Self::MOST_LAST) };
        (visible / Self::LEAST_VISIBLE >= selected.total()).then_some(selected)
    }

    /// Bytes of the codes of one head at one position: whole words of eight bytes, and one byte for the norm.
    #[must_use]
    pub fn bytes_per_head(self, head_dim: usize) -> usize {
        match self {
            Self::All => 0,
            Self::Signs { .. } => 8 * head_dim.div_ceil(64) + 1,
        }
    }

    /// `all` or `signs`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Signs { .. } => "signs",
        }
    }
}
