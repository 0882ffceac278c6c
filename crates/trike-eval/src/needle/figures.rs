//! Results of a needle test.

use std::ops::Range;

use serde::Serialize;

use super::{Haystack, NeedleOptions};

/// An answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reply {
    /// Length of the matching prefix of the greedy continuation and the answer, in tokens.
    pub(super) tokens: usize,
    /// Mean log-probability of the answer's tokens, or its increase due to the needle.
    pub(super) nats: f64,
}

impl Reply {
    fn is_found(self) -> bool {
        self.tokens >= NeedleOptions::FOUND_TOKENS
    }
}

/// The answers to a question with the needle at one depth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// Tokens between the needle and the question.
    pub(super) distance: usize,
    pub(super) exact: Reply,
    pub(super) setting: Option<Reply>,
}

/// Result of a needle test: for each haystack, one prompt per depth and one without the needle.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NeedleScore {
    /// Tokens of every prompt.
    pub context: usize,
    /// Number of haystacks, each with its own needle.
    pub haystacks: usize,
    /// Mean number of tokens of a needle.
    pub needle_tokens: f64,
    /// Needles whose answer is given without them in the prompt, with exact attention or with the setting. They are guessable, and
    /// are excluded from the found ones.
    pub guessed: usize,
    /// By depth, in the order of [`NeedleOptions::DEPTHS`].
    pub depths: Vec<NeedleDepth>,
    /// Over all depths.
    pub all: NeedleFigures,
}

/// Result at one depth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NeedleDepth {
    /// Fraction of the haystack before the needle.
    pub depth: f64,
    /// Mean number of tokens between the needle and the question.
    pub distance: f64,
    /// The figures at this depth.
    #[serde(flatten)]
    pub figures: NeedleFigures,
}

/// Answers with exact attention, and with the compared setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NeedleFigures {
    /// Number of prompts with needles that are not guessable.
    pub prompts: usize,
    /// Attention to all keys, cached in the model's default precision.
    pub exact: NeedleAnswers,
    /// The setting on the same prompts; `None` when it is exact attention.
    pub setting: Option<NeedleSetting>,
}

/// Answers to questions whose needle is in the prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NeedleAnswers {
    /// Needles found, guessable ones excluded: the greedy continuation starts with the first [`NeedleOptions::FOUND_TOKENS`] tokens
    /// of the answer.
    pub found: usize,
    /// Mean length of the matching prefix of the greedy continuation and the answer, in tokens.
    pub tokens: f64,
    /// Mean increase of the answer's log-probability due to the needle, compared with the prompt without it, in nats per token.
    pub gain: f64,
    /// Standard error of [`gain`](Self::gain), for independent haystacks; `None` for a single one.
    pub gain_error: Option<f64>,
}

/// Answers with a setting, compared with exact attention.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NeedleSetting {
    /// The answers.
    #[serde(flatten)]
    pub answers: NeedleAnswers,
    /// Needles found with both exact attention and the setting.
    pub kept: usize,
    /// Mean difference of the gain from that of exact attention, in nats per token; negative when the setting is worse.
    pub change: f64,
    /// Standard error of [`change`](Self::change), from the differences on the same prompts; `None` for a single haystack.
    pub change_error: Option<f64>,
}

impl NeedleScore {
    /// Aggregates the trials of each haystack, one per depth, and the answers without the needle.
    pub(super) fn new(all: &[Haystack], rows: &[Vec<Trial>], guesses: &[(Reply, Option<Reply>)]) -> Self {
        let is_guessed = |&(exact, setting): &(Reply, Option<Reply>)| {
            exact.is_found() || setting.is_some_and(Reply::is_found)
        };
        let guessed: Vec<bool> = guesses.iter().map(is_guessed).collect();
        let depth = |(i, &depth): (usize, &f64)| NeedleDepth {
            depth,
            distance: mean(rows.iter().map(|row| row[i].distance as f64)),
            figures: NeedleFigures::new(rows, &guessed, i..i + 1),
        };
        Self {
            context: all.first().map_or(0, |haystack| haystack.control().len()),
            haystacks: all.len(),
            needle_tokens: mean(all.iter().map(|haystack| haystack.needle().len() as f64)),
            guessed: guessed.iter().filter(|&&guessed| guessed).count(),
            depths: NeedleOptions::DEPTHS.iter().enumerate().map(depth).collect(),
            all: NeedleFigures::new(rows, &guessed, 0..NeedleOptions::DEPTHS.len()),
        }
    }
}

impl NeedleFigures {
    fn new(rows: &[Vec<Trial>], guessed: &[bool], depths: Range<usize>) -> Self {
        // Grouped by haystack: prompts of the same haystack are not independent.
        let replies = |of: fn(&Trial) -> Option<Reply>| -> Option<Vec<Vec<Reply>>> {
            rows.iter().map(|row| row[depths.clone()].iter().map(of).collect()).collect()
        };
        let exact = replies(|trial| Some(trial.exact)).unwrap_or_default();
        let setting = replies(|trial| trial.setting).map(|setting| {
            let pairs = || exact.iter().zip(&setting).map(|(a, b)| a.iter().zip(b));
            let changes = pairs().map(|row| mean(row.map(|(exact, setting)| setting.nats - exact.nats)));
            let (change, change_error) = mean_and_error(&changes.collect::<Vec<_>>());
            let unknown = pairs().zip(guessed).filter(|&(_, guessed)| !guessed).flat_map(|(row, _)| row);
            NeedleSetting {
                kept: unknown.filter(|(exact, setting)| exact.is_found() && setting.is_found()).count(),
                answers: NeedleAnswers::new(&setting, guessed),
                change,
                change_error,
            }
        });
        let unknown = guessed.iter().filter(|&&guessed| !guessed).count();
        Self { prompts: unknown * depths.len(), exact: NeedleAnswers::new(&exact, guessed), setting }
    }
}

impl NeedleAnswers {
    fn new(rows: &[Vec<Reply>], guessed: &[bool]) -> Self {
        let unknown = rows.iter().zip(guessed).filter(|&(_, guessed)| !guessed).flat_map(|(row, _)| row);
        let gains: Vec<f64> = rows.iter().map(|row| mean(row.iter().map(|reply| reply.nats))).collect();
        let (gain, gain_error) = mean_and_error(&gains);
        Self {
            found: unknown.filter(|reply| reply.is_found()).count(),
            tokens: mean(rows.iter().flatten().map(|reply| reply.tokens as f64)),
            gain,
            gain_error,
        }
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0usize, 0.0), |(count, sum), value| (count + 1, sum + value));
    sum / count.max(1) as f64
}

/// The mean, and its standard error from the sample variance; `None` for a single value.
fn mean_and_error(values: &[f64]) -> (f64, Option<f64>) {
    let (n, mean) = (values.len() as f64, mean(values.iter().copied()));
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (values.len() > 1).then(|| (squares / (n - 1.0) / n).sqrt()))
}

#[cfg(test)]
mod tests {
    use trike_testkit::assert_near;

    use super::*;

    #[test]
    fn errors_by_hand() {
        let (mean, error) = mean_and_error(&[1.0, 3.0]);
        assert_eq!(mean, 2.0);
        assert_near!(error.expect("of two"), 1.0, abs = 1e-12);
        assert_eq!(mean_and_error(&[5.0]), (5.0, None));
    }
}
