//! Element functions and scores that kernels on all hardware share.

/// The activation function of a gated MLP, applied to the gate projection `g`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GatedActivation {
    /// `g / (1 + e^-g)`: Llama, Mistral, Qwen.
    SiLu,
    /// `max(g, 0)^2`: BitNet-b1.58-2B-4T.
    SquaredReLu,
}

/// A similarity of two trit vectors of the same length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TritScore {
    /// The dot product: positions with the same sign minus positions with opposite signs.
    #[default]
    Dot,
    /// Positions with the same value, zeros included. The Hamming distance is the length minus this.
    Matches,
    /// Positions where both are nonzero and have the same sign.
    Agreements,
}

/// A search result: a row of stored trit vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TritHit {
    /// Its index.
    pub row: usize,
    /// Its score with the query.
    pub score: i32,
}
