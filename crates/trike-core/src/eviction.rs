//! Eviction of keys and values from a full cache.

/// The positions that a full cache evicts to make room for new ones. Evicted positions are no longer attended to; keys keep their
/// positions, so the maximum position of the model still applies.
///
/// A full cache evicts a quarter of its positions at once. The first and the last ones are kept: the first tokens are attention
/// sinks, without which models drift (Xiao et al., 2023), and the most recent tokens matter for every text. Each key/value head
/// selects its own positions.
///
/// ```
/// use trike_core::Eviction;
///
/// // Of 1024 positions 768 are kept, with the first 16 and the last 192 among them.
/// assert_eq!(Eviction::kept(1024), 768);
/// assert_eq!((Eviction::first(1024), Eviction::last(1024)), (16, 192));
/// assert_eq!(Eviction::named("attention"), Some(Eviction::Unattended));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Eviction {
    /// No eviction: a full cache ends the sequence.
    #[default]
    Never,
    /// The oldest positions, all but the first ones.
    Oldest,
    /// The positions with the least attention of the last [`QUERIES`](Self::QUERIES) tokens, summed over the heads that share their keys
    /// (after SnapKV: Li et al., 2024).
    Unattended,
}

impl Eviction {
    /// All choices.
    pub const ALL: [Self; 3] = [Self::Never, Self::Oldest, Self::Unattended];
    /// Smallest capacity of a cache that evicts.
    pub const LEAST_CAPACITY: usize = 64;
    /// Tokens whose attention decides.
    pub const QUERIES: usize = 32;

    /// Number of positions that remain when a cache of this capacity evicts.
    #[must_use]
    pub const fn kept(capacity: usize) -> usize {
        capacity - capacity / 4
    }

    /// Number of first positions, which are never evicted.
    #[must_use]
    pub fn first(capacity: usize) -> usize {
        (Self::kept(capacity) / 8).min(16)
    }

    /// Number of last positions, which are never evicted.
    #[must_use]
    pub fn last(capacity: usize) -> usize {
        (Self::kept(capacity) / 4).clamp(Self::QUERIES.min(Self::kept(capacity) / 2), 256)
    }

    /// Number of positions that remain before a step of `tokens` tokens, of a cache with `used` positions; `None` if no eviction is
    /// needed.
    #[must_use]
    pub fn before(self, used: usize, tokens: usize, capacity: usize) -> Option<usize> {
        let full = used.saturating_add(tokens) > capacity;
        (self != Self::Never && full).then(|| Self::kept(capacity))
    }

    /// `never`, `oldest` or `attention`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Oldest => "oldest",
            Self::Unattended => "attention",
        }
    }

    /// The variant with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}
