//! Text form of needle tests.

use comfy_table::presets;
use trike::eval::{NeedleAnswers, NeedleFigures};

use super::{facts, limited, plain, selected, table};
use crate::commands::NeedleOutcome;

/// The table of all depths, and the settings of the test.
pub(super) fn text(needle: &NeedleOutcome) -> String {
    let score = &needle.score;
    let mut header = vec!["depth", "tokens after it", "found, exact", "gain, exact"];
    if score.all.setting.is_some() {
        header.extend(["found, setting", "of those of exact", "gain, setting", "change"]);
    }
    let mut rows = table(presets::NOTHING, 1, header);
    for depth in &score.depths {
        let name = format!("{:.1} %", 100.0 * depth.depth);
        rows.add_row(cells(name, format!("{:.0}", depth.distance), &depth.figures));
    }
    rows.add_row(cells("all".to_owned(), "-".to_owned(), &score.all));
    let mut pairs = vec![
        ("text", needle.file.clone()),
        (
            "haystacks",
            format!(
                "{}, prompts of {} tokens, needles of {:.1}, seed {}",
                score.haystacks, score.context, score.needle_tokens, needle.seed
            ),
        ),
        ("guessed", format!("{} of {} needles, not counted as found", score.guessed, score.haystacks)),
        ("exact", format!("KV cache {}, all keys", needle.exact_kv)),
    ];
    if score.all.setting.is_some() {
        let keys = selected(needle.keys, needle.keys_top_k, needle.prompt_keys);
        let keys = if keys.is_empty() { ", all keys".to_owned() } else { keys };
        pairs.push(("setting", format!("KV cache {}{keys}{}", needle.kv, limited(needle.limit))));
    }
    plain(rows) + &facts(pairs)
}

fn cells(name: String, distance: String, figures: &NeedleFigures) -> Vec<String> {
    let found = |answers: &NeedleAnswers| format!("{} of {}", answers.found, figures.prompts);
    let gain = |answers: &NeedleAnswers| with_error(answers.gain, answers.gain_error);
    let exact = &figures.exact;
    let mut cells = vec![name, distance, found(exact), gain(exact)];
    if let Some(setting) = &figures.setting {
        let (kept, change) = (
            format!("{} of {}", setting.kept, exact.found),
            with_error(setting.change, setting.change_error),
        );
        cells.extend([found(&setting.answers), kept, gain(&setting.answers), change]);
    }
    cells
}

/// A value with its standard error, if there is one.
fn with_error(value: f64, error: Option<f64>) -> String {
    match error {
        Some(error) => format!("{value:.3} +- {error:.3}"),
        None => format!("{value:.3}"),
    }
}
