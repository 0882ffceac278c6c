//! Eviction of keys and values from a full cache.

/// Positions that a full cache forgets, to make room for new ones. What was evicted has no part in attention any more; keys keep the
/// positions that they had, so no more positions are possible than the model has.
///
/// A full cache forgets a quarter of its positions at once. The first and the last ones stay: models park attention at the first
/// tokens, and drift without them (Xiao et al., 2023), and the last ones matter for every text. Each key/value head forgets
/// positions of its own.
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
    /// None: a full cache ends the sequence.
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

    /// Positions that stay when a cache of this capacity evicts.
    #[must_use]
    pub const fn kept(capacity: usize) -> usize {
        capacity - capacity / 4
    }

    /// The first positions, which always stay.
    #[must_use]
    pub fn first(capacity: usize) -> usize {
        (Self::kept(capacity) / 8).min(16)
    }

    /// The last positions, which always stay.
    #[must_use]
    pub fn last(capacity: usize) -> usize {
        (Self::kept(capacity) / 4).clamp(Self::QUERIES.min(Self::kept(capacity) / 2), 256)
    }

    /// Positions of a cache that stay in front of a step of `tokens` tokens, if some have to go: `used` are in the cache.
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

    /// The choice with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}
