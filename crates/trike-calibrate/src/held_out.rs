//! The calibration text in tokens, and the part of it that is held out.

use std::{
    ops::ControlFlow,
    path::Path,
    time::{Duration, Instant},
};

use trike_cpu::Cpu;
use trike_llm::{
    GenerateOptions, LanguageModel, LlmError, LoadOptions, ModelFile,
    sampler::SamplerConfig,
    sequences,
    tokenizer::{Tokenizer, TokenizerError},
};

use crate::{
    CalibrateError, Calibration, ModelQuantizationConfig, TextSource,
    config::{SEQUENCES, tokens},
    own_text::OwnText,
    report::{HeldOut, LONGEST_HELD},
    rewrite,
    weights::block_weights,
};

/// Maximum length of a calibration sequence: the scores of a whole sequence are in memory, and longer sequences add little
/// information about weights.
const LONGEST: usize = 2048;
/// Maximum length of a generated sequence.
const LONGEST_GENERATED: usize = 512;
/// Minimum number of tokens of a calibration text.
const LEAST_TOKENS: usize = 16;
/// One of this many sequences is held out.
const SHARE: usize = 10;
/// Minimum number of held-out sequences, and number of sequences generated instead if none can be held out.
const FEW: usize = 4;
/// Seed of the first sequence generated for a recovery.
const WRITTEN: u64 = 1 << 40;
/// Maximum length of a sequence generated only for measurement.
const LONGEST_STAND_IN: usize = 256;

/// The calibration sequences, empty if none are needed, and the held-out ones.
pub(crate) fn divided(
    input: &ModelFile,
    calibration: &Calibration<'_>,
    config: &ModelQuantizationConfig,
    output: &Path,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<(Vec<Vec<u32>>, HeldOut), CalibrateError> {
    let stand_in = || stand_in_for(input, config, calibration);
    if !rewrite::needs_text(config) {
        let held = match (config.hold_out, calibration) {
            (false, _) => HeldOut::Off,
            (true, Calibration::Generated { .. }) => stand_in(),
            // Without fitting, the whole text may be used for measurement.
            (true, &Calibration::Text { .. }) => {
                let limit = held_count(calibration.limit());
                let few = calibration.with_limit(limit);
                match sequences_of(input, &few, config, output, progress) {
                    Ok(ids) => HeldOut::new(ids, TextSource::HeldOut, false),
                    Err(error) => HeldOut::Missing(error.to_string()),
                }
            }
        };
        return Ok((Vec::new(), if held.is_empty() { stand_in() } else { held }));
    }
    let calibration = &limited(input, calibration, config, output, progress)?;
    if !config.hold_out {
        return Ok((calibration_ids(input, calibration, config, output, progress)?, HeldOut::Off));
    }
    let wanted = calibration.limit();
    let (mut ids, source) = match *calibration {
        Calibration::Text { .. } => {
            let more = calibration.with_limit(wanted.saturating_add(held_count(wanted)));
            (calibration_ids(input, &more, config, output, progress)?, TextSource::HeldOut)
        }
        Calibration::Generated { sequences, seed } => {
            let sequences = sequences + held_count(wanted).min(wanted);
            let more = Calibration::Generated { sequences, seed };
            (calibration_ids(input, &more, config, output, progress)?, TextSource::Generated)
        }
    };
    let held = ids.split_off(kept(ids.len(), wanted));
    let tokens: usize = ids.iter().map(Vec::len).sum();
    if tokens < LEAST_TOKENS {
        return Err(CalibrateError::CalibrationText { sequences: ids.len(), tokens, needed: LEAST_TOKENS });
    }
    let held = HeldOut::new(without(held, &ids), source, false);
    let held = if held.is_empty() { stand_in() } else { held };
    Ok((ids, held))
}

/// The calibration with a limit on sequences if it has none: those of the first [`tokens`] tokens.
pub(crate) fn limited<'a>(
    input: &ModelFile,
    calibration: &Calibration<'a>,
    config: &ModelQuantizationConfig,
    output: &Path,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<Calibration<'a>, CalibrateError> {
    let Calibration::Text { limit: None, .. } = calibration else { return Ok(*calibration) };
    let ids = sequences_of(input, &calibration.with_limit(SEQUENCES), config, output, progress)?;
    Ok(calibration.with_limit(fitting(&ids, tokens(block_weights(input)?)).max(1)))
}

/// The number of first sequences with at most `tokens` tokens together.
fn fitting(ids: &[Vec<u32>], tokens: usize) -> usize {
    let mut sum = 0;
    let fits = |ids: &&Vec<u32>| {
        sum += ids.len();
        sum <= tokens
    };
    ids.iter().take_while(fits).count()
}

/// Removes sequences that are also calibration sequences, since a text may contain duplicates.
pub(crate) fn without(mut held: Vec<Vec<u32>>, calibration: &[Vec<u32>]) -> Vec<Vec<u32>> {
    held.retain(|ids| !calibration.iter().any(|seen| seen.starts_with(&ids[..ids.len().min(LONGEST_HELD)])));
    held
}

/// Number of sequences held out of `sequences`.
fn held_count(sequences: usize) -> usize {
    sequences.div_ceil(SHARE).max(FEW)
}

/// Number of calibration sequences out of `all`, at most `wanted`. The others are held out: a tenth, at least four, at most a
/// quarter; none of fewer than four.
fn kept(all: usize, wanted: usize) -> usize {
    let held = held_count(all.min(wanted)).min(all / 4);
    wanted.min(all - held)
}

/// Text generated with a seed different from all calibration sequences. Measuring requires a tokenizer, but rounding does not:
/// without a tokenizer there is no text.
fn stand_in_for(
    input: &ModelFile,
    config: &ModelQuantizationConfig,
    calibration: &Calibration<'_>,
) -> HeldOut {
    let seed = match *calibration {
        Calibration::Text { .. } => 0,
        Calibration::Generated { sequences, seed } => seed.wrapping_add(sequences as u64),
    };
    match input.tokenizer(config.tokenizer.as_deref()) {
        Ok(_) => HeldOut::ToGenerate { seed },
        Err(error) => HeldOut::Missing(error.to_string()),
    }
}

/// The calibration sequences; an error if there are too few tokens.
pub(crate) fn calibration_ids(
    input: &ModelFile,
    calibration: &Calibration<'_>,
    config: &ModelQuantizationConfig,
    output: &Path,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<Vec<Vec<u32>>, CalibrateError> {
    let ids = sequences_of(input, calibration, config, output, progress)?;
    let tokens = ids.iter().map(Vec::len).sum();
    if tokens < LEAST_TOKENS {
        return Err(CalibrateError::CalibrationText { sequences: ids.len(), tokens, needed: LEAST_TOKENS });
    }
    Ok(ids)
}

/// The sequences of a text with at least two tokens.
fn sequences_of(
    input: &ModelFile,
    calibration: &Calibration<'_>,
    config: &ModelQuantizationConfig,
    output: &Path,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<Vec<Vec<u32>>, CalibrateError> {
    let context = input.config().spec.context.min(LONGEST);
    let mut ids = match *calibration {
        Calibration::Text { text, split, limit } => {
            let tokenizer = input.tokenizer(config.tokenizer.as_deref())?;
            sequences(&tokenizer, text, split, context, limit)?
        }
        Calibration::Generated { sequences, seed } => {
            let mut text = OwnText::open(output, input, config, seed, LONGEST_GENERATED)?;
            let step = "generating calibration text";
            let mut done = text.sequences.len();
            if done < sequences {
                let model = dense(input, config)?;
                while done < sequences {
                    progress(step, done, sequences);
                    text.push(generated(&model, seed.wrapping_add(done as u64), LONGEST_GENERATED)?)?;
                    done += 1;
                }
                progress(step, done, sequences);
            }
            text.sequences.truncate(sequences);
            text.sequences
        }
    };
    ids.retain(|ids| ids.len() > 1);
    for ids in &mut ids {
        ids.truncate(context);
    }
    Ok(ids)
}

/// The dense model, for generating text.
fn dense(input: &ModelFile, config: &ModelQuantizationConfig) -> Result<LanguageModel, CalibrateError> {
    let options = LoadOptions::default()
        .with_tokenizer(input.tokenizer(config.tokenizer.as_deref())?)
        .with_cpu(Cpu::new(config.threads)?);
    Ok(LanguageModel::load_with(input, &options, &mut |_, _| ())?)
}

/// A sequence of at most `longest` tokens, sampled at temperature 1.
fn generated(model: &LanguageModel, seed: u64, longest: usize) -> Result<Vec<u32>, LlmError> {
    let longest = model.config().spec.context.min(longest);
    let sampler = SamplerConfig::default().with_temperature(1.0).with_seed(seed);
    let options = GenerateOptions::default().with_max_tokens(longest).with_sampler(sampler);
    let tokenizer = model.tokenizer()?;
    let start = opening(tokenizer)?;
    let text = model.generate_ids(start, tokenizer.eos(), &options, |_| ControlFlow::Continue(()))?;
    Ok([text.prompt_ids, text.ids].concat())
}

/// The prompt of a text of the model's own: what every text starts with, or else the [start token](trike_eval::start_token).
fn opening(tokenizer: &Tokenizer) -> Result<Vec<u32>, TokenizerError> {
    match tokenizer.encode_prompt("") {
        Err(TokenizerError::EmptyPrompt) => Ok(vec![trike_eval::start_token(tokenizer)]),
        ids => ids,
    }
}

/// Sequences that the dense model generates in about the given time; none is calibration text of the same configuration.
pub(crate) fn written(
    input: &ModelFile,
    config: &ModelQuantizationConfig,
    time: Duration,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Vec<u32>>, CalibrateError> {
    let start = Instant::now();
    let model = dense(input, config)?;
    let mut all = Vec::new();
    while start.elapsed() < time {
        progress(start.elapsed().as_secs() as usize, time.as_secs() as usize);
        let seed = WRITTEN.wrapping_add(all.len() as u64);
        all.push(generated(&model, seed, LONGEST_GENERATED)?);
    }
    all.retain(|ids| ids.len() > 1);
    Ok(all)
}

/// Sequences that the dense model generates only for measurement.
pub(crate) fn stand_in(dense: &LanguageModel, seed: u64) -> Result<Vec<Vec<u32>>, LlmError> {
    let one = |i: usize| generated(dense, seed.wrapping_add(i as u64), LONGEST_STAND_IN);
    let mut ids = (0..FEW).map(one).collect::<Result<Vec<_>, _>>()?;
    ids.retain(|ids| ids.len() > 1);
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use trike_llm::Split;
    use trike_quant::ScaleRule;

    use super::*;
    use crate::QuantizeMethod;

    const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");

    /// Divides a text for the bundled model, whose tokenizer is used.
    fn parts(calibration: &Calibration<'_>, config: &ModelQuantizationConfig) -> (Vec<Vec<u32>>, HeldOut) {
        let dir = tempfile::tempdir().unwrap();
        let (model, output) = (ModelFile::open(MODEL).unwrap(), dir.path().join("out"));
        divided(&model, calibration, config, &output, &mut |_, _, _| ()).unwrap()
    }

    /// SmolLM2's tokenizer starts no text with a token of its own.
    #[test]
    fn text_is_generated_after_the_token_that_separates_texts() {
        let mut json: serde_json::Value =
            serde_json::from_str(&trike_testkit::byte_level_tokenizer()).unwrap();
        json.as_object_mut().unwrap().remove("post_processor");
        let tokenizer = |bos| {
            let tokenizer = Tokenizer::from_hf_json_bytes(json.to_string().as_bytes()).unwrap();
            tokenizer.with_special(bos, vec![1]).unwrap()
        };
        assert!(!tokenizer(Some(0)).adds_bos());
        assert_eq!(opening(&tokenizer(Some(0))).unwrap(), [0]);
        assert_eq!(opening(&tokenizer(None)).unwrap(), [1]);
    }

    #[test]
    fn generated_text_is_kept_and_continued() {
        let dir = tempfile::tempdir().unwrap();
        let (model, output) = (ModelFile::open(MODEL).unwrap(), dir.path().join("out"));
        let config = ModelQuantizationConfig::default();
        let start = std::time::SystemTime::now();
        let write = |sequences, seed| {
            let mut made = 0;
            let calibration = Calibration::Generated { sequences, seed };
            let mut progress = |_: &str, _: usize, _: usize| made += 1;
            let ids = calibration_ids(&model, &calibration, &config, &output, &mut progress).unwrap();
            (ids, made)
        };
        assert!(!crate::is_resumable(&output, start));
        let (two, _) = write(2, 1);
        assert!(crate::is_resumable(&output, start), "interrupted while it wrote");
        // As after a killed process: the last line is incomplete.
        let file = dir.path().join("out.text/sequences.jsonl");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, &text[..text.len() - 3]).unwrap();
        assert_eq!(write(3, 1).1, 3, "two are written, with one line before each and one at the end");
        let (three, made) = write(3, 1);
        assert_eq!((&three[..2], made), (&two[..], 0), "all are there");
        assert_ne!(write(1, 2).0, two[..1], "another seed starts over");
        assert_eq!(write(1, 1), (two[..1].to_vec(), 2));
        crate::own_text::remove(&output).unwrap();
        assert!(!crate::is_resumable(&output, start) && dir.path().read_dir().unwrap().next().is_none());
    }

    #[test]
    fn nothing_is_both_calibrated_on_and_measured_on() {
        let text: Vec<String> = (0..40).map(|i| format!("Once there was a cat that had {i} hats.")).collect();
        let text = text.join("<|endoftext|>");
        let config = ModelQuantizationConfig::default();
        for (limit, calibrated) in [(None, 36), (Some(40), 36), (Some(36), 36), (Some(20), 20)] {
            let calibration = Calibration::Text { text: &text, split: Split::Stories, limit };
            let (seen, HeldOut::Sequences { ids, source, searched }) = parts(&calibration, &config) else {
                panic!("sequences are held out")
            };
            assert_eq!((seen.len(), ids.len()), (calibrated, 4), "{limit:?}");
            assert!(ids.iter().all(|ids| !seen.contains(ids)));
            assert_eq!((source, searched), (TextSource::HeldOut, false));
            let (whole, off) = parts(&calibration, &config.clone().with_hold_out(false));
            assert!(matches!(off, HeldOut::Off) && whole.len() == limit.unwrap_or(40).min(40));
            assert_eq!(whole[..calibrated], seen, "only what is held out is missing");
        }
        let rounded = config.with_method(QuantizeMethod::Round(ScaleRule::LeastSquares));
        let calibration = Calibration::Text { text: &text, split: Split::Stories, limit: None };
        let (seen, held) = parts(&calibration, &rounded);
        assert!(seen.is_empty() && matches!(held, HeldOut::Sequences { ids, .. } if ids.len() == 40));
    }

    #[test]
    fn a_text_with_nothing_to_spare_is_replaced_by_generated_text() {
        let config = ModelQuantizationConfig::default();
        let story = "Once upon a time there was a cat that had nine hats and a very small house.";
        for (text, calibrated) in [(story.to_owned(), 1), ([story; 8].join("<|endoftext|>"), 6)] {
            let calibration = Calibration::Text { text: &text, split: Split::Stories, limit: None };
            let (seen, held) = parts(&calibration, &config);
            assert!(matches!(held, HeldOut::ToGenerate { .. }) && seen.len() == calibrated, "{held:?}");
        }
    }

    #[test]
    fn generated_text_is_held_out_under_other_seeds() {
        let config = ModelQuantizationConfig::default();
        let calibration = Calibration::Generated { sequences: 2, seed: 3 };
        let (seen, HeldOut::Sequences { ids, source, .. }) = parts(&calibration, &config) else {
            panic!("sequences are held out")
        };
        assert_eq!((seen.len(), ids.len(), source), (2, 2, TextSource::Generated));
        assert!(ids.iter().all(|ids| !seen.iter().any(|seen| seen.starts_with(ids))));
        assert_eq!(parts(&calibration, &config.with_hold_out(false)).0, seen);
    }

    #[test]
    fn a_long_text_loses_nothing_and_a_short_one_a_tenth() {
        for (all, wanted, keep) in [
            (0, 128, 0),
            (1, 128, 1),
            (3, 128, 3),
            (4, 128, 3),
            (16, 128, 12),
            (100, 128, 90),
            (128, 128, 115),
            (130, 128, 117),
            (141, 128, 128),
            (10, 6, 6),
            (2, 1, 1),
            (6, 2, 2),
        ] {
            assert_eq!(kept(all, wanted), keep, "{all} of which {wanted} are wanted");
        }
    }

    #[test]
    fn long_sequences_are_fewer() {
        let ids = [vec![1; 4], vec![2; 3], vec![3; 1]];
        for (tokens, count) in [(3, 0), (4, 1), (6, 1), (7, 2), (8, 3), (100, 3)] {
            assert_eq!(fitting(&ids, tokens), count, "{tokens}");
        }
        assert_eq!([1, 1 << 21, 1 << 30].map(tokens), [1 << 20, 1 << 19, 1 << 18]);
        // No more than `SEQUENCES` are tokenized.
        let text: Vec<String> = (0..5000).map(|i| format!("{i}")).collect();
        let text = text.join("<|endoftext|>");
        let calibration = Calibration::Text { text: &text, split: Split::Stories, limit: None };
        let (seen, held) = parts(&calibration, &ModelQuantizationConfig::default());
        assert_eq!(seen.len(), SEQUENCES);
        assert!(matches!(held, HeldOut::Sequences { ids, .. } if ids.len() == SEQUENCES.div_ceil(10)));
    }

    #[test]
    fn what_was_seen_is_not_held_out() {
        let seen = [vec![1, 2, 3], vec![4, 5]];
        assert_eq!(without(vec![vec![1, 2], vec![4, 5], vec![5, 4]], &seen), [vec![5, 4]]);
    }
}
