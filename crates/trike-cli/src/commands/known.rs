//! `trike list --known`: published models, and what they need on this machine.

use serde::Serialize;
use trike::{
    Cpu,
    cpu::{free_memory, probe},
};

/// A published model in a format that Trike reads.
#[derive(Debug, Serialize)]
pub(crate) struct KnownModel {
    pub(crate) name: &'static str,
    pub(crate) format: &'static str,
    /// Number of weights, rounded.
    pub(crate) parameters: u64,
    /// Bytes of the download, rounded.
    pub(crate) bytes: u64,
    /// Estimated bytes of memory, with a KV cache of about 4,096 tokens.
    pub(crate) memory: u64,
    /// Upper bound from the memory bandwidth; `None` if it could not be measured.
    pub(crate) tokens_per_second: Option<f64>,
    /// Whether it is trained to chat.
    pub(crate) chat: bool,
    pub(crate) license: &'static str,
}

/// The published models. The field names are the schema of `trike list --known --json`.
#[derive(Debug, Serialize)]
pub(crate) struct KnownOutcome {
    pub(crate) models: Vec<KnownModel>,
    /// Measured memory bandwidth, in bytes per second.
    pub(crate) bandwidth: Option<f64>,
    /// Free memory in bytes, if the system reports it.
    pub(crate) free: Option<u64>,
    /// The largest model that can chat, fits into memory and generates at a readable speed.
    pub(crate) recommended: Option<&'static str>,
}

/// A row of the table.
struct Row {
    name: &'static str,
    format: &'static str,
    /// Millions of weights.
    millions: u64,
    megabytes: u64,
    license: &'static str,
}

/// Chat-tuned ternary models on the hub in supported formats and architectures, smallest first. Numbers are from their pages.
const KNOWN: &[Row] = &[
    row("prism-ml/Ternary-Bonsai-1.7B-gguf:Q2_0", "GGUF Q2_0", 1_720, 460, "Apache-2.0"),
    row("tiiuae/Falcon-E-1B-Instruct", "BitNet, packed", 1_000, 665, "Falcon-LLM"),
    row("tiiuae/Falcon-E-3B-Instruct", "BitNet, packed", 3_000, 999, "Falcon-LLM"),
    row("prism-ml/Ternary-Bonsai-4B-gguf:Q2_0", "GGUF Q2_0", 4_000, 1_070, "Apache-2.0"),
    row("microsoft/bitnet-b1.58-2B-4T", "BitNet, packed", 2_400, 1_180, "MIT"),
    row("prism-ml/Ternary-Bonsai-8B-gguf:Q2_0", "GGUF Q2_0", 8_190, 2_180, "Apache-2.0"),
];

const fn row(
    name: &'static str,
    format: &'static str,
    millions: u64,
    megabytes: u64,
    license: &'static str,
) -> Row {
    Row { name, format, millions, megabytes, license }
}

/// Memory besides the weights: keys and values of 4,096 tokens in f16, at most 0.6 GB for these models, and buffers.
const BESIDES: u64 = 700_000_000;
/// The predicted speed below which a model is not recommended: it is an upper bound, and one reads about 5 tokens per second.
const READABLE: f64 = 15.0;

/// The names of the published models.
pub(super) fn names() -> impl Iterator<Item = String> {
    KNOWN.iter().map(|row| row.name.to_owned())
}

/// The published models, with predictions for this machine. Measures its memory bandwidth, which takes about a second.
pub(crate) fn known_models() -> KnownOutcome {
    // Without a measurement, the table lacks a column.
    let bandwidth = Cpu::new(0).and_then(|cpu| probe::memory_bandwidth(&cpu)).ok();
    let bandwidth = bandwidth.map(|probe| probe.best().figure);
    let free = free_memory().into_iter().map(|(_, bytes)| bytes).min();
    KnownOutcome::new(bandwidth, free)
}

impl KnownOutcome {
    fn new(bandwidth: Option<f64>, free: Option<u64>) -> Self {
        let model = |row: &Row| {
            let bytes = row.megabytes * 1_000_000;
            KnownModel {
                name: row.name,
                format: row.format,
                parameters: row.millions * 1_000_000,
                bytes,
                memory: bytes + BESIDES,
                tokens_per_second: bandwidth.map(|rate| rate / bytes as f64),
                chat: true,
                license: row.license,
            }
        };
        let models: Vec<KnownModel> = KNOWN.iter().map(model).collect();
        let fitting =
            models.iter().filter(|model| model.chat && free.is_none_or(|free| model.memory <= free));
        let fast = |model: &&KnownModel| model.tokens_per_second.is_some_and(|rate| rate >= READABLE);
        let best = fitting.clone().filter(fast).max_by_key(|model| model.parameters);
        // The smallest is the fastest.
        let recommended = best.or_else(|| fitting.clone().next()).map(|model| model.name);
        Self { bandwidth, free, recommended, models }
    }

    /// The model to chat with: the recommended one, else the smallest.
    pub(super) fn to_chat_with(&self) -> Option<&KnownModel> {
        let recommended = self.models.iter().find(|model| Some(model.name) == self.recommended);
        recommended.or(self.models.first())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recommended_model_fits_and_is_fast() {
        let recommended =
            |bandwidth, free| KnownOutcome::new(bandwidth, free).recommended.unwrap_or("none").to_owned();
        assert!(recommended(Some(100e9), Some(64 << 30)).contains("8B"));
        assert!(recommended(Some(100e9), None).contains("8B"));
        // 2.18 GB at 20 GB/s are 9 tokens/s, 1.07 GB are 19.
        assert!(recommended(Some(20e9), Some(64 << 30)).contains("4B"));
        assert!(recommended(Some(100e9), Some(1_500_000_000)).contains("1.7B"));
        // Slow everywhere, or unknown: the smallest.
        assert!(recommended(Some(1e9), None).contains("1.7B"));
        assert!(recommended(None, None).contains("1.7B"));
        assert_eq!(recommended(Some(100e9), Some(1 << 20)), "none");
        let smallest = KnownOutcome::new(None, Some(1));
        assert!(smallest.to_chat_with().is_some_and(|model| model.name.contains("1.7B")));
    }
}
