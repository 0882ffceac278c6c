//! The page of a run: figures and curves in one file.

use trike_report::{Axis, Page, Plot, Point};

use super::log::LogLine;
use super::{HeldOutLoss, RunReport};
use crate::TrainError;

/// Size of the plot and its margins, in pixels.
const SIZE: (f64, f64) = (720.0, 320.0);
const MARGINS: (f64, f64, f64, f64) = (56.0, 48.0, 28.0, 28.0);
/// Lines across the plot.
const PARTS: i32 = 4;

/// The page as HTML, which loads nothing.
pub(super) fn page(report: &RunReport, lines: &[LogLine], config: &str) -> Result<String, TrainError> {
    let mut page = Page::new(report.output.display().to_string());
    page.facts(facts(report).into_iter().map(|(name, value)| (name, Some(value))));
    page.section("", "Bits per token");
    match plot(lines, report.teacher.as_ref()) {
        Some(plot) => page.plot(&plot),
        None => page.paragraph("No step was logged."),
    }
    page.section("", "Configuration");
    page.code(config);
    Ok(page.render()?)
}

/// Names and values of the result.
fn facts(report: &RunReport) -> Vec<(&'static str, String)> {
    let bits = |found: &HeldOutLoss| match found.bits_per_byte {
        Some(bytes) => format!("{:.4} bits per token, {bytes:.4} per byte", found.bits_per_token),
        None => format!("{:.4} bits per token", found.bits_per_token),
    };
    let mut facts = vec![("Steps", format!("{} of {}", report.steps, report.planned))];
    facts.push(("Tokens learned", report.tokens.to_string()));
    facts.push(("Seconds", format!("{:.0}", report.seconds)));
    if let Some(found) = &report.start {
        facts.push(("Held out, at the start", bits(found)));
    }
    if let Some(found) = &report.best {
        facts.push(("Held out, written", format!("{} (step {})", bits(found), found.step)));
    }
    if let Some(found) = &report.teacher {
        facts.push(("Held out, teacher", bits(found)));
    }
    if let Some(ratio) = report.ratio() {
        facts.push(("Ratio to the teacher", format!("{ratio:.4}")));
    }
    facts
}

/// The loss of the steps as a line, that of evaluations as dots, the teacher's as a dashed line; `None` if nothing was logged.
fn plot(lines: &[LogLine], teacher: Option<&HeldOutLoss>) -> Option<Plot> {
    let mut steps = Vec::new();
    let mut dots = Vec::new();
    for line in lines {
        match line {
            LogLine::Steps(line) => steps.push((line.step as f64, line.bits_per_token)),
            LogLine::Evaluation(line) => dots.push((line.step as f64, line.bits_per_token)),
        }
    }
    let all = || steps.iter().chain(&dots).filter(|(_, bits)| bits.is_finite());
    all().next()?;
    let least = all().map(|p| p.1).chain(teacher.map(|t| t.bits_per_token)).fold(f64::INFINITY, f64::min);
    let most = all().map(|p| p.1).fold(least, f64::max);
    let last = all().map(|p| p.0).fold(1.0, f64::max);
    let tick = |part: i32| {
        let bits = least + (most - least) * f64::from(part) / f64::from(PARTS);
        (bits, format!("{bits:.2}"))
    };
    let across = teacher.map(|t| vec![(0.0, t.bits_per_token), (last, t.bits_per_token)]);
    let point = |&(step, bits): &(f64, f64)| Point {
        at: (step, bits),
        title: format!("step {step}: {bits:.4}"),
        ..Point::default()
    };
    let dashed = if teacher.is_some() { " Dashed: the teacher on held-out text." } else { "" };
    Some(Plot {
        id: String::new(),
        label: "Bits per token over steps".to_owned(),
        caption: format!("Line: training, mean of the logged steps. Dots: held-out text.{dashed}"),
        size: SIZE,
        margins: MARGINS,
        x: Axis {
            from: 0.0,
            to: last,
            ticks: vec![(0.0, "0".to_owned()), (last, format!("step {last}"))],
            name: String::new(),
        },
        y: Axis {
            from: least,
            to: most.max(least + 1e-9),
            ticks: (0..=PARTS).map(tick).collect(),
            name: String::new(),
        },
        points: dots.iter().map(point).collect(),
        lines: std::iter::once(trike_report::Line { points: steps, dashed: false })
            .chain(across.map(|points| trike_report::Line { points, dashed: true }))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::log::StepLine;
    use super::*;

    #[test]
    fn text_is_escaped_and_numbers_that_are_none_are_left_out() {
        let evaluation =
            |step, bits| HeldOutLoss { step, bits_per_token: bits, bits_per_byte: Some(bits / 3.0) };
        let line = StepLine {
            step: 5,
            tokens: 1,
            bits_per_token: f64::NAN,
            divergence: 0.0,
            grad_norm: 1.0,
            learning_rate: 0.1,
            lambda: 1.0,
            tokens_per_second: 1.0,
            skipped: 0,
        };
        let report = RunReport {
            output: "<out>".into(),
            teacher: Some(evaluation(0, 1.5)),
            best: Some(evaluation(10, 3.0)),
            ..RunReport::default()
        };
        let lines = [LogLine::Steps(line), LogLine::Evaluation(evaluation(10, 3.0))];
        let html = page(&report, &lines, "a = \"<b>\"").unwrap();
        assert!(html.contains("&lt;out&gt;") && html.contains("a = &quot;&lt;b&gt;&quot;"));
        assert!(!html.contains("NaN") && html.contains("<title>step 10: 3.0000</title>"));
        assert!(html.contains("<dd>2.0000</dd>"), "the ratio");
        assert!(page(&report, &[], "").unwrap().contains("No step was logged"));
    }
}
