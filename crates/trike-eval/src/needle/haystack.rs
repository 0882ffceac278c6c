//! Haystacks and needles from the sentences of a text.

use trike_core::{Bounds, OptionError};
use trike_llm::{STORY_MARK, tokenizer::Tokenizer};

use super::NeedleOptions;
use crate::EvalError;

/// Minimum and maximum numbers of tokens of a needle; at most an eighth of the context.
const SHORTEST: usize = 8;
const LONGEST: usize = 64;
/// Inverse of the maximum fraction of the context that a needle may take.
const SHARE: usize = 8;
/// Positions tried for a haystack before another needle is chosen.
const TRIES: usize = 8;
/// Maximum number of needles that fail in a row, so that a long text in which all sentences begin alike is refused quickly.
const MOST_FAILED: usize = 1000;

/// Sentence terminators if followed by white space.
const STOPS: [&str; 4] = [".", "!", "?", "\u{2026}"];
/// Sentence terminators regardless of what follows.
const FULL_STOPS: [&str; 3] = ["\u{3002}", "\u{ff01}", "\u{ff1f}"];
/// Characters allowed between a terminator and the white space.
const CLOSERS: [&str; 8] = ["\"", "'", ")", "]", "\u{201d}", "\u{2019}", "\u{300d}", "\u{300f}"];

/// A passage of a text, the haystack, and a sentence from elsewhere in the same text, the needle. The first half of the needle does
/// not occur in the haystack.
///
/// Every prompt has as many tokens as the context and ends with a repetition of the needle: its first half is the question, the
/// second half the answer.
///
/// ```
/// use trike_eval::{NeedleOptions, haystacks};
/// use trike_llm::LanguageModel;
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// let model = LanguageModel::load(path)?;
/// let text: String = (0..60).map(|i| format!(" On day {i}, Lily saw {} birds.", i * i % 97)).collect();
/// let options = NeedleOptions::default().with_context(256).with_haystacks(2);
/// let all = haystacks(model.tokenizer()?, &text, model.config().spec.context, &options)?;
///
/// let (needle, (ids, distance)) = (all[0].needle(), all[0].with_needle(1.0));
/// // BOS, the haystack, the needle at its end, the question and the answer.
/// assert_eq!((ids.len(), distance), (256, 0));
/// assert!(ids.ends_with(&[needle, needle].concat()));
/// assert!(all[0].control().ends_with(needle) && all[0].question().len() == needle.len() / 2);
/// # Ok::<(), trike_eval::EvalError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Haystack {
    bos: Option<u32>,
    /// The text of the control; a needle replaces the same number of tokens at its start.
    text: Vec<u32>,
    needle: Vec<u32>,
    /// Candidate positions of the needle in the text without these tokens: its start, the starts of sentences, and its end.
    places: Vec<usize>,
}

impl Haystack {
    /// The needle, 8 to 64 tokens.
    pub fn needle(&self) -> &[u32] {
        &self.needle
    }

    /// The first half of the needle, the question at the end of every prompt; at least 4 tokens.
    pub fn question(&self) -> &[u32] {
        &self.needle[..self.needle.len() / 2]
    }

    /// The second half of the needle, the expected answer; at least 4 tokens.
    pub fn answer(&self) -> &[u32] {
        &self.needle[self.needle.len() / 2..]
    }

    /// The haystack with the needle inserted at the start of the sentence nearest to `depth`, 0 for the start of the haystack and 1
    /// for its end, then question and answer; and the number of tokens between the needle and the question.
    pub fn with_needle(&self, depth: f64) -> (Vec<u32>, usize) {
        let text = &self.text[self.needle.len()..];
        let wanted = depth.clamp(0.0, 1.0) * text.len() as f64;
        let far = |place: &&usize| (**place as f64 - wanted).abs();
        let place = self.places.iter().min_by(|a, b| far(a).total_cmp(&far(b))).copied().unwrap_or(0);
        let (before, after) = text.split_at(place);
        (self.prompt(&[before, &self.needle, after]), after.len())
    }

    /// The control: more of the text in place of the needle, then question and answer, to measure guessing.
    pub fn control(&self) -> Vec<u32> {
        self.prompt(&[&self.text])
    }

    fn prompt(&self, parts: &[&[u32]]) -> Vec<u32> {
        self.bos.into_iter().chain(parts.concat()).chain(self.needle.iter().copied()).collect()
    }

    /// Whether the question occurs only in the needle, so that its continuation is unambiguous.
    fn is_clear(&self) -> bool {
        let count = |ids: &[u32]| {
            ids.windows(self.question().len()).filter(|&ids| ids == self.question()).take(3).count()
        };
        let depths = NeedleOptions::DEPTHS.iter();
        count(&self.control()) == 1 && depths.copied().all(|depth| count(&self.with_needle(depth).0) == 2)
    }
}

/// At most [`NeedleOptions::haystacks`] haystacks from a text, for prompts of [`NeedleOptions::context`] tokens (default and
/// maximum: `context`). No two have the same needle, and the same seed gives the same haystacks. `<|endoftext|>` marks are removed.
///
/// # Errors
///
/// [`EvalError::Option`] for a context or a number of haystacks out of range, [`EvalError::NeedleText`] when the text is too short or
/// has no suitable sentence, and errors of the tokenizer.
pub fn haystacks(
    tokenizer: &Tokenizer,
    text: &str,
    context: usize,
    options: &NeedleOptions,
) -> Result<Vec<Haystack>, EvalError> {
    let wanted = options.context.unwrap_or(context);
    OptionError::check("context", Bounds::at_least(SHARE * SHORTEST).at_most(context), wanted)?;
    OptionError::check("haystacks", Bounds::at_least(1usize), options.haystacks)?;
    let parts: Vec<&str> = text.split(STORY_MARK).map(str::trim).filter(|part| !part.is_empty()).collect();
    let ids = tokenizer.encode(&parts.join("\n"), false)?;
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let room = wanted - usize::from(bos.is_some());
    if ids.len() < room {
        return Err(EvalError::NeedleText {
            expected: format!(
                "at least {room} tokens, for a haystack of {wanted} and a needle from elsewhere"
            ),
            got: format!("{} tokens", ids.len()),
        });
    }
    let starts = sentence_starts(tokenizer, &ids)?;
    let most = LONGEST.min(wanted / SHARE);
    let mut sentences: Vec<&[usize]> =
        starts.windows(2).filter(|s| (SHORTEST..=most).contains(&(s[1] - s[0]))).collect();
    let count = sentences.len();
    let mut rng = SplitMix64(options.seed);
    let mut found = Vec::new();
    let mut failed = 0;
    while found.len() < options.haystacks && failed < MOST_FAILED && !sentences.is_empty() {
        failed += 1;
        let sentence = sentences.swap_remove(rng.below(sentences.len()));
        let (start, end) = (sentence[0], sentence[1]);
        let needle = &ids[start..end];
        if found.iter().any(|other: &Haystack| other.needle == needle) {
            continue;
        }
        let length = room - needle.len();
        let ends = &starts[starts.partition_point(|&end| end < length)..];
        for _ in 0..if ends.is_empty() { 0 } else { TRIES } {
            let last = ends[rng.below(ends.len())];
            if last > start && last - length < end {
                continue;
            }
            let first = last - length + needle.len();
            let inner =
                starts.iter().filter(|start| (first..=last).contains(start)).map(|start| start - first);
            let mut places: Vec<usize> = std::iter::once(0).chain(inner).collect();
            places.dedup();
            let haystack =
                Haystack { bos, text: ids[last - length..last].to_vec(), needle: needle.to_vec(), places };
            if haystack.is_clear() {
                found.push(haystack);
                failed = 0;
                break;
            }
        }
    }
    if found.is_empty() {
        return Err(EvalError::NeedleText {
            expected: format!(
                "a sentence of {SHORTEST} to {most} tokens, and {room} other tokens in which its first half does not occur"
            ),
            got: format!("{} tokens with {count} such sentences", ids.len()),
        });
    }
    Ok(found)
}

/// The token indices at which sentences and lines start, and the number of tokens.
fn sentence_starts(tokenizer: &Tokenizer, ids: &[u32]) -> Result<Vec<usize>, EvalError> {
    let mut bytes = Vec::new();
    let mut ends = Vec::with_capacity(ids.len());
    for &id in ids {
        bytes.extend_from_slice(tokenizer.token_bytes(id)?);
        ends.push(bytes.len());
    }
    let starts =
        |end: usize| bytes.split_at_checked(end).is_some_and(|(before, after)| is_start(before, after));
    let inner = ends.iter().zip(1..ids.len()).filter(|&(&end, _)| starts(end)).map(|(_, token)| token);
    Ok(std::iter::once(0).chain(inner).chain([ids.len()]).collect())
}

/// Whether a sentence or a line starts between two parts of a text.
fn is_start(before: &[u8], after: &[u8]) -> bool {
    let Some(next) = after.first() else { return false };
    if before.ends_with(b"\n") {
        return !next.is_ascii_whitespace();
    }
    let ends = |text: &[u8], with: &[&str]| with.iter().any(|with| text.ends_with(with.as_bytes()));
    let closes = |text: &[u8]| CLOSERS.iter().any(|closer| text.starts_with(closer.as_bytes()));
    let mut sentence = before;
    while let Some(closer) = CLOSERS.iter().find(|closer| sentence.ends_with(closer.as_bytes())) {
        sentence = &sentence[..sentence.len() - closer.len()];
    }
    ends(sentence, &STOPS) && next.is_ascii_whitespace() || ends(sentence, &FULL_STOPS) && !closes(after)
}

/// A random number generator with the same output on every platform.
struct SplitMix64(u64);

impl SplitMix64 {
    /// Uniform in `0..n`, except for a bias of `n / 2^64`.
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (((u128::from(z ^ (z >> 31))) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_start_after_stops_and_lines() {
        for (before, after, want) in [
            ("It rained.", " Tom ran.", true),
            ("It rained", " Tom ran.", false),
            ("\u{201c}It rained!\u{201d}", " Tom", true),
            ("He has 3.", "5 dogs", false),
            ("A line\n", "Another", true),
            ("A line\n", "\nAnother", false),
            ("\u{4e0b}\u{96e8}\u{4e86}\u{3002}", "\u{4ed6}", true),
            ("\u{4e0b}\u{96e8}\u{4e86}\u{3002}", "\u{300d}", false),
            ("The end.", "", false),
        ] {
            assert_eq!(is_start(before.as_bytes(), after.as_bytes()), want, "{before}|{after}");
        }
    }

    #[test]
    fn random_numbers_are_the_published_ones() {
        // The first output of SplitMix64 from state 0 is 0xE220A8397B1DCDAF.
        assert_eq!(SplitMix64(0).below(256), 0xE2);
        let mut rng = SplitMix64(3);
        let mut counts = [0; 3];
        (0..3000).for_each(|_| counts[rng.below(3)] += 1);
        assert!(counts.iter().all(|&count| count > 900), "{counts:?}");
    }
}
