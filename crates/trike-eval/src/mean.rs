//! Means over the tokens of several sequences.

/// A mean over tokens with its standard error: the larger of the error for independent tokens and the error for independent
/// sequences, whose tokens may be correlated.
#[derive(Default)]
pub(crate) struct Mean {
    sum: f64,
    squares: f64,
    pub(crate) tokens: f64,
    /// Tokens and sum of each sequence.
    sequences: Vec<(f64, f64)>,
}

impl Mean {
    pub(crate) fn start(&mut self) {
        self.sequences.push((0.0, 0.0));
    }

    pub(crate) fn add(&mut self, value: f64) {
        self.sum += value;
        self.squares += value * value;
        self.tokens += 1.0;
        if let Some((tokens, sum)) = self.sequences.last_mut() {
            *tokens += 1.0;
            *sum += value;
        }
    }

    pub(crate) fn mean(&self) -> f64 {
        self.sum / self.tokens
    }

    pub(crate) fn error(&self) -> f64 {
        let mean = self.mean();
        let alone = (self.squares / self.tokens - mean * mean).max(0.0) / self.tokens;
        let together: f64 =
            self.sequences.iter().map(|(tokens, sum)| (sum - tokens * mean).powi(2)).sum::<f64>()
                / self.tokens.powi(2);
        alone.max(together).sqrt()
    }
}
