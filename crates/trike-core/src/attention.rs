//! Shape of an attention operation.

use std::ops::Range;

/// Shape and scale of causal attention.
///
/// Query head `h` reads key/value head `h / (heads / kv_heads)` (grouped-query attention, Ainslie et al., 2023).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; a divisor of `heads`.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Factor applied to the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Sliding window: positions that a query attends to, including its own; `None` means all positions up to its own.
    pub window: Option<usize>,
}

impl AttentionSpec {
    /// The positions that the query at `position` attends to.
    ///
    /// ```
    /// use trike_core::AttentionSpec;
    ///
    /// let spec = AttentionSpec { heads: 8, kv_heads: 2, head_dim: 64, scale: 0.125, window: Some(4) };
    /// assert_eq!(spec.span(9), 6..10);
    /// ```
    pub fn span(&self, position: usize) -> Range<usize> {
        let end = position.saturating_add(1);
        end.saturating_sub(self.window.unwrap_or(end))..end
    }

    /// The same attention with a window of at most `window` positions.
    #[must_use]
    pub fn within(self, window: Option<usize>) -> Self {
        let narrower = match (self.window, window) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self { window: narrower, ..self }
    }
}
