//! The report as a self-contained HTML page.

mod plots;

use std::fmt::Write;

use serde_json::Value;

use crate::{QuantizeReport, StoredKind};

/// Style sheet, also for print. No scripts, external fonts or images.
const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}\
h1{font-size:1.6rem;margin:0}h2{font-size:1.2rem;margin:2.2rem 0 .6rem;border-bottom:1px solid #d5dae0}\
table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums}\
th,td{padding:.2rem .7rem;border-bottom:1px solid #e8ebee;text-align:right;white-space:nowrap}\
th{text-align:right;font-weight:600}th:first-child,td:first-child{text-align:left}\
.wide{overflow-x:auto}.none,.what{color:#5b6570}svg{max-width:100%;height:auto;margin:.6rem 0}\
code{font-size:.92em}";

impl QuantizeReport {
    /// The report as one HTML page with embedded plots; nothing is loaded from elsewhere.
    pub fn html(&self) -> String {
        let mut page = Page::default();
        page.raw("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
        page.raw("<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>");
        page.text(&format!("{}: ternary quantization report", name_of(&self.input)));
        page.raw(&format!("</title><style>{STYLE}</style></head><body>\n<h1>"));
        page.text(&format!("{}: ternary quantization report", name_of(&self.input)));
        page.raw("</h1>\n");
        self.summary(&mut page);
        self.quality(&mut page);
        self.curve_section(&mut page);
        self.layer_section(&mut page);
        self.sensitivity_section(&mut page);
        self.plan_section(&mut page);
        self.tuning_section(&mut page);
        page.section("notes", "Notes");
        if self.notes.is_empty() {
            page.none("None.");
        }
        for note in &self.notes {
            page.raw("<p>");
            page.text(note);
            page.raw("</p>\n");
        }
        page.raw("</body></html>\n");
        page.0
    }

    fn summary(&self, page: &mut Page) {
        page.section("summary", "Summary");
        let t = &self.ternary;
        page.facts(&[
            ("model", self.input.clone()),
            ("output", self.output.clone()),
            ("planes", self.planes.clone()),
            ("one scale per", self.granularity.clone()),
            ("method", self.method.clone()),
            (
                "calibration",
                format!("{} sequences, {} tokens", self.calibration_sequences, self.calibration_tokens),
            ),
            ("ternary layers", format!("{} of {}", t.layers, self.layers.len())),
            ("ternary bits per weight, including scales", format!("{:.3}", t.bits_per_weight)),
            ("ternary zeros", percent(t.zeros)),
            ("bytes of all tensors", format!("{} before, {} after", self.input_bytes, self.output_bytes)),
            ("bits per weight of all tensors", format!("{:.3}", self.bits_per_weight)),
            ("time", format!("{:.1} s", self.seconds)),
        ]);
    }

    fn quality(&self, page: &mut Page) {
        page.section("quality", "Quality");
        let Some(e) = &self.evaluation else {
            page.none("Not measured: no text to evaluate on was given.");
            return;
        };
        page.raw("<p class=\"what\">");
        page.text(&format!(
            "On {} ({} tokens), f32 activations. Errors are standard errors; both models see the same tokens.",
            e.text, e.tokens
        ));
        page.raw("</p>\n");
        page.table(
            &["", "before", "after"],
            [
                vec![
                    "perplexity".to_owned(),
                    format!("{:.4}", e.perplexity_before),
                    format!("{:.4}", e.perplexity_after),
                ],
                vec!["ratio".to_owned(), "1".to_owned(), format!("{:.4} ± {:.4}", e.ratio, e.ratio_error)],
                vec![
                    "KL from the dense model, nats per token".to_owned(),
                    "0".to_owned(),
                    format!("{:.5} ± {:.5}", e.kl, e.kl_error),
                ],
                vec!["top-1 agreement".to_owned(), "100.0 %".to_owned(), percent(e.top1_agreement)],
            ],
        );
    }

    fn curve_section(&self, page: &mut Page) {
        page.section("curve", "Perplexity vs. bits per weight");
        if self.curve.is_empty() {
            page.none("Not measured: no curve of other settings of the same model was requested.");
            return;
        }
        page.raw(&plots::curve(&self.curve));
        let rows = self.curve.iter().map(|p| {
            vec![
                p.setting.clone(),
                format!("{:.3}", p.bits_per_weight),
                p.bytes.to_string(),
                format!("{:.4}", p.ratio),
                format!("{:.5}", p.kl),
            ]
        });
        page.table(&["setting", "bits/weight", "bytes of the model", "perplexity ratio", "KL"], rows);
    }

    fn layer_section(&self, page: &mut Page) {
        page.section("layers", "Layers");
        page.raw(&plots::layers(
            "bits",
            "Bits per weight of each layer, in model order",
            &self.layers.iter().map(|l| l.bits_per_weight).collect::<Vec<_>>(),
        ));
        let errors = |of: fn(&super::LayerReport) -> Option<f64>| -> Vec<f64> {
            self.layers.iter().map(|l| of(l).unwrap_or(0.0)).collect()
        };
        page.raw(&plots::layers(
            "output-error",
            "Relative error of each layer's output on the calibration text",
            &errors(|l| l.output_error),
        ));
        page.raw(&plots::layers(
            "weight-error",
            "Relative error of each layer's weights",
            &errors(|l| l.weight_error),
        ));
        let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.4}"));
        let rows = self.layers.iter().map(|l| {
            vec![
                l.name.clone(),
                format!("{} x {}", l.rows, l.cols),
                l.stored.clone(),
                format!("{:.3}", l.bits_per_weight),
                l.bytes.to_string(),
                l.zeros.map_or_else(|| "-".to_owned(), percent),
                share(l.weight_error),
                share(l.output_error),
                share(l.damping),
                format!("{:.2}", l.seconds),
            ]
        });
        page.table(
            &[
                "layer",
                "shape",
                "storage",
                "bits/weight",
                "bytes",
                "zeros",
                "weight error",
                "output error",
                "damping",
                "seconds",
            ],
            rows,
        );
        for l in &self.layers {
            if let Some(reason) = &l.kept {
                page.raw("<p>");
                page.text(&format!("{} is not quantized: {reason}.", l.name));
                page.raw("</p>\n");
            }
        }
    }

    fn sensitivity_section(&self, page: &mut Page) {
        page.section("sensitivity", "Sensitivity");
        let Some(planning) = &self.planning else {
            page.none("Not measured: sensitivities are measured to plan for a budget, and none was given.");
            return;
        };
        page.raw("<p class=\"what\">");
        page.text(
            "Divergence of the model when only this layer is stored this way and all others are dense, measured on calibration text \
             held out from fitting.",
        );
        page.raw("</p>\n");
        page.raw(&plots::sensitivity(&planning.sensitivities));
        let rows = planning.sensitivities.iter().flat_map(|s| {
            s.choices.iter().filter(|c| c.stored.kind != StoredKind::Dense).map(move |c| {
                vec![
                    s.layer.clone(),
                    c.stored.to_string(),
                    format!("{:.3}", 8.0 * c.bytes as f64 / s.weights as f64),
                    c.bytes.to_string(),
                    format!("{:.3e}", c.kl),
                ]
            })
        });
        page.raw("<details><summary>All measurements</summary>\n");
        page.table(&["layer", "storage", "bits/weight", "bytes", "KL, nats per token"], rows);
        page.raw("</details>\n");
    }

    fn plan_section(&self, page: &mut Page) {
        page.section("plan", "Plan");
        let Some(planning) = &self.planning else {
            page.none("No per-layer plan: all layers use the same options.");
            return;
        };
        page.raw("<p>");
        page.text(&format!("Budget: {}.", planning.budget));
        page.raw("</p>\n");
        if !planning.trials.is_empty() {
            let rows = planning.trials.iter().map(|t| {
                vec![
                    t.bytes.to_string(),
                    format!("{:.3}", t.bits_per_weight),
                    format!("{:.5}", t.predicted_kl),
                    format!("{:.5}", t.kl),
                    format!("{:.4}", t.ratio),
                    format!("{:.4}", t.error),
                    if t.met { "yes" } else { "no" }.to_owned(),
                ]
            });
            page.table(
                &[
                    "bytes of the planned layers",
                    "bits/weight",
                    "predicted KL",
                    "KL",
                    "perplexity ratio",
                    "error",
                    "met",
                ],
                rows,
            );
        }
        page.raw("<details><summary>The plan</summary>\n");
        page.table(
            &["layer", "storage", "reason"],
            planning.plan.layers.iter().map(|l| {
                vec![l.name.clone(), l.stored.to_string(), l.stored.reason.clone().unwrap_or_default()]
            }),
        );
        page.raw("</details>\n");
    }

    /// Tuning results, per block and for the whole model.
    fn tuning_section(&self, page: &mut Page) {
        page.section("tuning", "Tuning");
        let all = serde_json::to_value(self).unwrap_or_default();
        let mut rows: Vec<Vec<String>> = Vec::new();
        let mut bars = Vec::new();
        let mut push = |what: String, of: &Value| {
            let number = |key: &str| of.get(key).and_then(Value::as_f64);
            let (Some(before), Some(after)) = (number("before"), number("after")) else { return };
            if before > 0.0 {
                bars.push(after / before);
            }
            rows.push(vec![
                what,
                of.get("steps").map_or_else(String::new, Value::to_string),
                format!("{before:.4e}"),
                format!("{after:.4e}"),
                of.get("kept").map_or_else(String::new, Value::to_string),
                format!("{:.1}", number("seconds").unwrap_or(0.0)),
            ]);
        };
        for entry in all.get("tuned_blocks").and_then(Value::as_array).into_iter().flatten() {
            if let (Some(block), Some(of)) = (entry.get(0), entry.get(1)) {
                push(format!("block {block}"), of);
            }
        }
        if let Some(of) = all.get("tuned_model") {
            push("whole model".to_owned(), of);
        }
        if rows.is_empty() {
            page.none("No tuning against the outputs of the dense model.");
            return;
        }
        page.raw(&plots::layers(
            "tuning",
            "Ratio of the loss after tuning to the loss before, per block; last, the whole model",
            &bars,
        ));
        page.table(&["block", "steps", "loss before", "loss after", "kept", "seconds"], rows);
    }
}

/// The last component of a path.
fn name_of(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Escapes the characters that HTML reserves, and control characters.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// An HTML page under construction.
#[derive(Default)]
struct Page(String);

impl Page {
    fn raw(&mut self, html: &str) {
        self.0.push_str(html);
    }

    fn text(&mut self, text: &str) {
        self.0.push_str(&escape(text));
    }

    fn section(&mut self, id: &str, title: &str) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.0, "<h2 id=\"{id}\">{}</h2>", escape(title));
    }

    fn none(&mut self, text: &str) {
        let _ = writeln!(self.0, "<p class=\"none\">{}</p>", escape(text));
    }

    fn facts(&mut self, facts: &[(&str, String)]) {
        self.raw("<div class=\"wide\"><table>\n");
        for (name, value) in facts {
            let _ = writeln!(self.0, "<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(value));
        }
        self.raw("</table></div>\n");
    }

    fn table(&mut self, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
        self.raw("<div class=\"wide\"><table>\n<tr>");
        for name in header {
            let _ = write!(self.0, "<th>{}</th>", escape(name));
        }
        self.raw("</tr>\n");
        for row in rows {
            self.raw("<tr>");
            for cell in &row {
                let _ = write!(self.0, "<td>{}</td>", escape(cell));
            }
            self.raw("</tr>\n");
        }
        self.raw("</table></div>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_becomes_markup() {
        let mut page = Page::default();
        page.table(&["a"], [vec!["<script>\u{1b}&\"".to_owned()]]);
        assert!(page.0.contains("&lt;script&gt;\u{fffd}&amp;&quot;") && !page.0.contains("<script"));
        assert_eq!(name_of("/a/b/"), "b");
    }
}
