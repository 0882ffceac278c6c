//! Interpretation of the measured figures, in words.

use serde::Serialize;

use crate::{Evaluation, TextSource};

/// Loss of a ternary model compared with its dense model.
///
/// The loss is the larger of the logarithm of the perplexity ratio and the divergence, in nats per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rating {
    /// Below 0.01 nats per token.
    Equivalent,
    /// Below 0.05 nats per token.
    Close,
    /// Below 0.2 nats per token.
    Degraded,
    /// Below 0.7 nats per token, about twice the perplexity.
    Poor,
    /// 0.7 nats per token or more.
    Unusable,
}

/// Upper limits of the loss of each rating but the last, in nats per token.
const LIMITS: [(f64, Rating); 4] =
    [(0.01, Rating::Equivalent), (0.05, Rating::Close), (0.2, Rating::Degraded), (0.7, Rating::Poor)];
/// Standard errors within which a ratio is indistinguishable from 1, and a rating from its neighbors: 95 % confidence.
const SURE: f64 = 2.0;

/// A rating with the figures on which it is based.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The rating of the measured loss.
    pub rating: Rating,
    /// The rating if the loss were two standard errors higher.
    pub at_worst: Rating,
    /// One sentence, with the figures.
    pub sentence: String,
}

impl Rating {
    /// The rating of a loss in nats per token.
    fn of(loss: f64) -> Self {
        LIMITS.iter().find(|(limit, _)| loss < *limit).map_or(Self::Unusable, |(_, rating)| *rating)
    }

    /// A phrase that can start a sentence, once the first letter is capitalized.
    const fn words(self) -> &'static str {
        match self {
            Self::Equivalent => "hardly distinguishable from the dense model",
            Self::Close => "close to the dense model",
            Self::Degraded => "noticeably worse than the dense model",
            Self::Poor => "much worse than the dense model",
            Self::Unusable => "no replacement for the dense model",
        }
    }
}

impl Verdict {
    pub(crate) fn new(e: &Evaluation, before: u64, after: u64) -> Self {
        let lost = e.ratio.ln();
        let log_error = e.ratio_error / e.ratio;
        let rating = Rating::of(lost.max(e.kl));
        let at_worst = Rating::of((lost + SURE * log_error).max(e.kl + SURE * e.kl_error));
        let mut words = rating.words().to_owned();
        if let Some(first) = words.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        if at_worst != rating {
            words = format!("{words}, or {} (the text is too short to tell)", at_worst.words());
        }
        let sentence = format!(
            "{words}: perplexity is {} and the KL divergence is {:.4} ± {:.4} nats per token on {}, and the tensors take {} instead of \
             {}.",
            change(e.ratio, e.ratio_error),
            e.kl,
            e.kl_error,
            e.described(),
            size(after),
            size(before),
        );
        Self { rating, at_worst, sentence }
    }
}

impl Evaluation {
    /// The text, its length, and its other uses.
    pub(crate) fn described(&self) -> String {
        let tokens = thousands(self.tokens);
        let text = match self.source {
            TextSource::Given => format!("{tokens} tokens of {}", self.text),
            TextSource::HeldOut => format!("{tokens} tokens held out from the calibration text"),
            TextSource::Generated => {
                format!("{tokens} tokens that the dense model wrote itself (other text may lose more)")
            }
        };
        match self.searched {
            true => format!("{text}, on which the precision of the layers was also chosen"),
            false => text,
        }
    }
}

/// A perplexity ratio in words.
pub(crate) fn change(ratio: f64, error: f64) -> String {
    let figures = format!("(ratio {ratio:.4} ± {error:.4})");
    let percent = 100.0 * (ratio - 1.0);
    if (ratio - 1.0).abs() <= SURE * error {
        return format!("the same within the error {figures}");
    }
    match ratio {
        2.0.. => format!("{ratio:.2} times as high {figures}"),
        1.0.. => format!("{percent:.2} % higher {figures}"),
        _ => format!("{:.2} % lower {figures}", -percent),
    }
}

/// A size in decimal units, with one decimal.
pub(crate) fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..1_000 => return format!("{bytes} B"),
        1_000..1_000_000 => (1e3, "kB"),
        1_000_000..1_000_000_000 => (1e6, "MB"),
        _ => (1e9, "GB"),
    };
    format!("{:.1} {name}", bytes as f64 / unit)
}

/// A number with its thousands separated.
pub(crate) fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluation(ratio: f64, ratio_error: f64, kl: f64, kl_error: f64) -> Evaluation {
        Evaluation {
            text: "a.txt".to_owned(),
            source: TextSource::HeldOut,
            searched: false,
            sequences: 4,
            tokens: 1234,
            perplexity_before: 4.0,
            perplexity_after: 4.0 * ratio,
            ratio,
            ratio_error,
            nats_error: 0.01,
            kl,
            kl_error,
            top1_agreement: 0.9,
        }
    }

    #[test]
    fn ratios_below_one_are_not_called_higher() {
        for (ratio, error, words) in [
            (0.9997, 0.0005, "the same within the error (ratio 0.9997 ± 0.0005)"),
            (0.99, 0.001, "1.00 % lower (ratio 0.9900 ± 0.0010)"),
            (1.0142, 0.0011, "1.42 % higher (ratio 1.0142 ± 0.0011)"),
            (4.78, 0.2, "4.78 times as high (ratio 4.7800 ± 0.2000)"),
            (1.5, 0.3, "the same within the error (ratio 1.5000 ± 0.3000)"),
        ] {
            assert_eq!(change(ratio, error), words);
        }
    }

    #[test]
    fn the_larger_loss_decides_and_doubt_is_said() {
        for (ratio, ratio_error, kl, kl_error, rating, at_worst) in [
            (0.999, 0.0001, 0.002, 0.0001, Rating::Equivalent, Rating::Equivalent),
            (0.999, 0.0001, 0.3, 0.01, Rating::Poor, Rating::Poor),
            (1.04, 0.001, 0.03, 0.001, Rating::Close, Rating::Close),
            (1.04, 0.01, 0.03, 0.001, Rating::Close, Rating::Degraded),
            (1.15, 0.001, 0.1, 0.001, Rating::Degraded, Rating::Degraded),
            (4.0, 0.1, 1.7, 0.1, Rating::Unusable, Rating::Unusable),
            (f64::INFINITY, 0.0, 1.0, 0.0, Rating::Unusable, Rating::Unusable),
            (f64::NAN, f64::NAN, f64::NAN, f64::NAN, Rating::Unusable, Rating::Unusable),
        ] {
            let verdict = Verdict::new(&evaluation(ratio, ratio_error, kl, kl_error), 4_000_000, 1_234_567);
            assert_eq!((verdict.rating, verdict.at_worst), (rating, at_worst), "{ratio} {kl}");
            let says = verdict.sentence.contains("too short to tell");
            assert_eq!(says, rating != at_worst, "{}", verdict.sentence);
        }
        let verdict = Verdict::new(&evaluation(1.04, 0.001, 0.03, 0.001), 4_000_000, 1_234_567);
        assert_eq!(
            verdict.sentence,
            "Close to the dense model: perplexity is 4.00 % higher (ratio 1.0400 ± 0.0010) and the KL divergence is 0.0300 ± 0.0010 \
             nats per token on 1,234 tokens held out from the calibration text, and the tensors take 1.2 MB instead of 4.0 MB."
        );
    }

    #[test]
    fn numbers_are_readable() {
        for (bytes, text) in [(999, "999 B"), (1_500, "1.5 kB"), (9_949_000, "9.9 MB"), (8 << 30, "8.6 GB")] {
            assert_eq!(size(bytes), text);
        }
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(thousands(number), text);
        }
    }
}
