//! Needle tests of models whose answers are known.

use trike_llm::tokenizer::Tokenizer;
use trike_testkit::assert_near;

use super::*;

/// Vocabulary size of the bundled model.
const VOCAB: usize = 512;
/// Logit of a retrieved token.
const SURE: f32 = 20.0;

/// The bundled tokenizer, with BOS as in its model.
fn tokenizer() -> Tokenizer {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny/tokenizer.json");
    let tokenizer = Tokenizer::open(path).and_then(|tokenizer| tokenizer.with_special(Some(1), vec![2]));
    tokenizer.expect("it opens").with_adds_bos(true)
}

fn days(count: usize) -> String {
    (0..count).map(|i| format!(" On day {i}, Lily saw {} birds.", i * i % 97)).collect()
}

fn some(options: &NeedleOptions) -> Vec<Haystack> {
    haystacks(&tokenizer(), &days(120), VOCAB, options).expect("haystacks")
}

/// Logits of a model that repeats the previous continuation of the question if that began at most `reach` tokens ago; otherwise
/// they are uniform.
fn copying(reach: usize, ids: &[u32], prompt: usize, on_row: &mut dyn FnMut(usize, &[f32])) {
    for i in prompt..ids.len() {
        let text = &ids[prompt..=i];
        let before = (prompt.saturating_sub(reach)..prompt).rev().find(|&at| ids[at..].starts_with(text));
        let mut row = [0.0; VOCAB];
        if let Some(at) = before {
            row[ids[at + text.len()] as usize] = SURE;
        }
        on_row(i, &row);
    }
}

#[test]
fn what_is_out_of_reach_is_not_found() {
    let options = NeedleOptions::default().with_context(256).with_haystacks(3);
    let all = some(&options);
    let mut steps = Vec::new();
    let mut run = |side: Side, ids: &[u32], prompt: usize, on_row: &mut dyn FnMut(usize, &[f32])| {
        assert_eq!(ids.len(), 255, "the last token of the answer predicts nothing");
        copying(if side == Side::Exact { 256 } else { 100 }, ids, prompt, on_row);
        Ok(())
    };
    let score = measure(&all, true, &mut run, &mut |done, total| steps.push((done, total))).expect("a score");
    assert_eq!(steps, (1..=30).map(|done| (done, 30)).collect::<Vec<_>>());
    assert_eq!((score.context, score.haystacks, score.guessed), (256, 3, 0));
    let uniform = (VOCAB as f64).ln();
    let sure = uniform - (1.0 + (VOCAB - 1) as f64 * (-f64::from(SURE)).exp()).ln();
    let mut kept = 0;
    for (i, depth) in score.depths.iter().enumerate() {
        let distances = all.iter().map(|h| h.with_needle(NeedleOptions::DEPTHS[i]).1 + h.needle().len());
        let near = distances.filter(|&distance| distance <= 100).count();
        let (exact, setting) = (&depth.figures.exact, depth.figures.setting.as_ref().expect("a setting"));
        assert_eq!(
            (depth.figures.prompts, exact.found, setting.kept, setting.answers.found),
            (3, 3, near, near)
        );
        assert_near!(exact.gain, sure, abs = 1e-6);
        assert_near!(setting.change, sure * (near as f64 / 3.0 - 1.0), abs = 1e-6);
        kept += near;
    }
    let total = score.all.setting.as_ref().expect("a setting");
    assert!(kept > 3 && kept < 27, "{kept}");
    assert_eq!((score.all.prompts, score.all.exact.found, total.kept), (27, 27, kept));
    assert_near!(total.change, sure * (kept as f64 / 27.0 - 1.0), abs = 1e-6);
}

#[test]
fn a_needle_that_is_guessed_gains_nothing() {
    let all = some(&NeedleOptions::default().with_context(256).with_haystacks(2));
    let answers: Vec<Vec<u32>> = all.iter().map(|haystack| haystack.needle().to_vec()).collect();
    let mut run = |_: Side, ids: &[u32], prompt: usize, on_row: &mut dyn FnMut(usize, &[f32])| {
        let needle = answers.iter().find(|needle| needle.starts_with(&ids[prompt..])).expect("a needle");
        for i in prompt..ids.len() {
            let mut row = [0.0; VOCAB];
            row[needle[i + 1 - prompt] as usize] = SURE;
            on_row(i, &row);
        }
        Ok(())
    };
    let score = measure(&all, false, &mut run, &mut |_, _| ()).expect("a score");
    assert_eq!(
        (score.guessed, score.all.prompts, score.all.exact.found),
        (2, 0, 0),
        "what is guessed is not found"
    );
    assert_near!(score.all.exact.gain, 0.0, abs = 1e-9);
    assert!(score.all.setting.is_none());
    let tokens = all.iter().map(|haystack| haystack.answer().len() as f64).sum::<f64>() / 2.0;
    assert_near!(score.all.exact.tokens, tokens, abs = 1e-9);
}

#[test]
fn prompts_have_the_needle_once_at_its_depth() {
    let options = NeedleOptions::default().with_haystacks(5).with_context(300);
    let text = days(120);
    let ids = tokenizer().encode(&text, false).expect("tokens");
    for haystack in some(&options) {
        let (needle, question) = (haystack.needle(), haystack.question());
        assert!((8..=37).contains(&needle.len()) && question.len() >= 4, "{needle:?}");
        assert_eq!([question, haystack.answer()].concat(), needle);
        let places = |ids: &[u32], of: &[u32]| -> Vec<usize> {
            (0..=ids.len() - of.len()).filter(|&at| ids[at..].starts_with(of)).collect()
        };
        let control = haystack.control();
        assert_eq!(places(&control, question), [300 - needle.len()], "absent from the control");
        assert_eq!(places(&ids, &control[1..300 - needle.len()]).len(), 1, "a stretch of the text");
        let room = 300 - 1 - 2 * needle.len();
        for depth in NeedleOptions::DEPTHS {
            let (prompt, distance) = haystack.with_needle(depth);
            assert_eq!(prompt.len(), 300);
            assert_eq!(prompt[0], control[0], "BOS");
            let place = 300 - 2 * needle.len() - distance;
            assert_eq!(places(&prompt, needle), [place, 300 - needle.len()]);
            // At most half the longest sentence away from the depth.
            let wanted = 1 + (depth * room as f64).round() as usize;
            assert!(place.abs_diff(wanted) <= 18, "{place} {wanted}");
            assert!(depth != 0.0 || place == 1);
            assert!(depth != 1.0 || distance == 0);
            let without = [&prompt[..place], &prompt[place + needle.len()..]].concat();
            assert!(control.ends_with(&without[1..]), "the rest is the control's");
        }
    }
}

#[test]
fn the_seed_alone_decides() {
    let options = NeedleOptions::default().with_context(256).with_haystacks(4);
    let all = some(&options);
    assert_eq!(all, some(&options));
    assert_ne!(all, some(&options.with_seed(1)));
    let needles: std::collections::BTreeSet<_> = all.iter().map(Haystack::needle).collect();
    assert_eq!(needles.len(), 4, "no needle twice");
}

#[test]
fn marks_between_stories_are_left_out() {
    let text = days(60).replace(" On day 30,", "<|endoftext|>\n On day 30,");
    let options = NeedleOptions::default().with_context(256);
    let tokenizer = tokenizer();
    let mark = tokenizer.encode("endoftext", false).expect("tokens");
    let all = haystacks(&tokenizer, &text, 256, &options).expect("haystacks");
    assert!(all.len() > 1);
    for haystack in all {
        assert!(!haystack.control().windows(mark.len() - 1).any(|ids| ids == &mark[1..]));
    }
}

#[test]
fn unsuitable_texts_and_options_are_refused() {
    let tokenizer = tokenizer();
    let refused = |text: &str, options: NeedleOptions| {
        haystacks(&tokenizer, text, 512, &options).expect_err("an error").to_string()
    };
    let default = NeedleOptions::default();
    for (text, options, parts) in [
        (days(5), default, ["expected at least 511 tokens", "got "]),
        ("the sea ".repeat(400), default, ["expected a sentence of 8 to 64 tokens", "with 0 such sentences"]),
        (
            " On this day, Lily saw the same birds.".repeat(60),
            default,
            ["its first half does not occur", "got "],
        ),
        (days(60), default.with_context(513), ["context is 513", "expected 64 to 512"]),
        (days(60), default.with_context(63), ["context is 63", "expected 64 to 512"]),
        (days(60), default.with_haystacks(0), ["haystacks is 0", "at least 1"]),
    ] {
        let error = refused(&text, options);
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}
