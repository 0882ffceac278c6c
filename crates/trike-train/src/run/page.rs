//! The page of a run: figures and curves in one file.

use std::fmt::Write as _;

use super::log::Line;
use super::{Evaluation, RunReport};

/// Size of the plot and of its margins, in pixels.
const SIZE: (f64, f64) = (720.0, 320.0);
const MARGIN: (f64, f64) = (56.0, 28.0);

/// The page as HTML, which loads nothing.
pub(super) fn page(report: &RunReport, lines: &[Line], config: &str) -> String {
    let mut html = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Training</title>\n<style>\n\
         :root{color-scheme:light dark;--line:#0b6bcb;--dot:#c2410c}\n\
         @media(prefers-color-scheme:dark){:root{--line:#6cb2ff;--dot:#fb923c}}\n\
         body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem}\n\
         dl{display:grid;grid-template-columns:max-content 1fr;gap:0 1.5rem}dd{margin:0}\n\
         svg{width:100%;height:auto}text{font-size:12px;fill:currentColor}\n\
         pre{overflow-x:auto;border:1px solid;padding:.8rem}\n</style></head><body>\n",
    );
    let _ = writeln!(html, "<h1>{}</h1>\n<dl>", escape(&report.output.display().to_string()));
    for (name, value) in facts(report) {
        let _ = writeln!(html, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
    }
    html.push_str("</dl>\n<h2>Bits per token</h2>\n");
    plot(&mut html, lines, report.teacher.as_ref());
    let _ = writeln!(html, "<h2>Configuration</h2>\n<pre>{}</pre>\n</body></html>", escape(config));
    html
}

/// Names and values of the result.
fn facts(report: &RunReport) -> Vec<(&'static str, String)> {
    let bits = |found: &Evaluation| match found.bits_per_byte {
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

/// The loss of the steps as a line, that of evaluations as dots, the teacher's as a dashed line.
fn plot(html: &mut String, lines: &[Line], teacher: Option<&Evaluation>) {
    let mut steps = Vec::new();
    let mut dots = Vec::new();
    for line in lines {
        match line {
            Line::Steps(line) => steps.push((line.step as f64, line.bits_per_token)),
            Line::Evaluation(line) => dots.push((line.step as f64, line.bits_per_token)),
        }
    }
    let all = || steps.iter().chain(&dots).filter(|(_, bits)| bits.is_finite());
    let least = all().map(|p| p.1).chain(teacher.map(|t| t.bits_per_token)).fold(f64::INFINITY, f64::min);
    let most = all().map(|p| p.1).fold(least, f64::max);
    let last = all().map(|p| p.0).fold(1.0, f64::max);
    if all().next().is_none() {
        html.push_str("<p>No step was logged.</p>\n");
        return;
    }
    let (width, height) = (SIZE.0 - 2.0 * MARGIN.0, SIZE.1 - 2.0 * MARGIN.1);
    let x = |step: f64| MARGIN.0 + width * step / last;
    let y = |bits: f64| MARGIN.1 + height * (most - bits) / (most - least).max(1e-9);
    let _ = writeln!(
        html,
        "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Bits per token over steps\">",
        SIZE.0, SIZE.1
    );
    for part in 0..=4 {
        let bits = least + (most - least) * f64::from(part) / 4.0;
        let at = y(bits);
        let _ = writeln!(
            html,
            "<line x1=\"{}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"currentColor\" opacity=\".2\"/>\
             <text x=\"4\" y=\"{:.1}\">{bits:.2}</text>",
            MARGIN.0,
            SIZE.0 - MARGIN.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        html,
        "<text x=\"{}\" y=\"{}\">0</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\">step {last}</text>",
        MARGIN.0,
        SIZE.1 - 4.0,
        SIZE.0 - MARGIN.0,
        SIZE.1 - 4.0
    );
    let points: Vec<String> = steps
        .iter()
        .filter(|(_, bits)| bits.is_finite())
        .map(|&(step, bits)| format!("{:.1},{:.1}", x(step), y(bits)))
        .collect();
    let _ = writeln!(
        html,
        "<polyline fill=\"none\" stroke=\"var(--line)\" stroke-width=\"1.5\" points=\"{}\"/>",
        points.join(" ")
    );
    if let Some(teacher) = teacher {
        let at = y(teacher.bits_per_token);
        let _ = writeln!(
            html,
            "<line x1=\"{}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"currentColor\" stroke-dasharray=\"6 4\"/>",
            MARGIN.0,
            SIZE.0 - MARGIN.0
        );
    }
    for (step, bits) in dots.into_iter().filter(|(_, bits)| bits.is_finite()) {
        let _ = writeln!(
            html,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"var(--dot)\"><title>step {step}: {bits:.4}</title></circle>",
            x(step),
            y(bits)
        );
    }
    html.push_str("</svg>\n<p>Line: training, mean of the logged steps. Dots: held-out text.");
    html.push_str(if teacher.is_some() { " Dashed: the teacher on held-out text.</p>\n" } else { "</p>\n" });
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::log::StepLine;
    use super::*;

    #[test]
    fn text_is_escaped_and_numbers_that_are_none_are_left_out() {
        let evaluation =
            |step, bits| Evaluation { step, bits_per_token: bits, bits_per_byte: Some(bits / 3.0) };
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
        let lines = [Line::Steps(line), Line::Evaluation(evaluation(10, 3.0))];
        let html = page(&report, &lines, "a = \"<b>\"");
        assert!(html.contains("&lt;out&gt;") && html.contains("a = &quot;&lt;b&gt;&quot;"));
        assert!(!html.contains("NaN") && html.contains("<title>step 10: 3.0000</title>"));
        assert!(html.contains("<dd>2.0000</dd>"), "the ratio");
        assert!(page(&report, &[], "").contains("No step was logged"));
    }
}
