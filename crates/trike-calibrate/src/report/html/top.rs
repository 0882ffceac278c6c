//! Top of the page: the verdict, its figures, sample text, alternatives.

use trike_report::{Cell, Figure, Page, Row};

use super::percent;
use crate::{
    Alternative, QuantizeReport, Sample,
    report::{size, verdict::thousands},
};

impl QuantizeReport {
    /// The verdict, and the figures on which it is based.
    pub(super) fn verdict_section(&self, page: &mut Page) {
        match (&self.verdict, &self.not_measured) {
            (Some(verdict), _) => {
                // The serialized name is the class.
                let class = serde_json::to_value(verdict.rating).unwrap_or_default();
                page.verdict(class.as_str().unwrap_or_default(), &verdict.sentence);
            }
            (None, Some(reason)) => page.verdict("", format!("Quality was not measured: {reason}.")),
            (None, None) => page.verdict("", "Quality has not been measured."),
        }
        let measured = self.evaluation.iter().flat_map(|e| -> [Figure<'_>; 4] {
            [
                ("perplexity ratio", format!("{:.4}", e.ratio), format!("± {:.4}", e.ratio_error)),
                (
                    "perplexity",
                    format!("{:.3} → {:.3}", e.perplexity_before, e.perplexity_after),
                    String::new(),
                ),
                ("KL divergence", format!("{:.4}", e.kl), format!("± {:.4} nats per token", e.kl_error)),
                ("same most probable token", percent(e.top1_agreement), String::new()),
            ]
        });
        let sizes = [
            (
                "size of all tensors",
                format!("{} → {}", size(self.input_bytes), size(self.output_bytes)),
                percent(self.output_bytes as f64 / self.input_bytes.max(1) as f64),
            ),
            (
                "bits per weight",
                format!("{:.2}", self.ternary.bits_per_weight),
                "in ternary layers".to_owned(),
            ),
        ];
        page.figures(measured.chain(sizes));
        if let Some(e) = &self.evaluation {
            page.dim(format!(
                "Measured on {}, with f32 activations. ± is one standard error. Both models see the same tokens, so that the \
                 error of the ratio is smaller than that of either perplexity.",
                e.described()
            ));
        }
    }

    pub(super) fn sample_section(&self, page: &mut Page) {
        page.section("samples", "Sample text");
        if self.samples.is_empty() {
            page.dim("None: samples require a quality measurement.");
            return;
        }
        page.dim(
            "The same prompt, continued by both models with greedy decoding. The underlined text is where the ternary model no \
             longer says what the dense one does.",
        );
        let side_by_side = |sample: &Sample| {
            let (dense, ternary) = (sample.dense.trim(), sample.ternary.trim());
            let same: usize = dense
                .chars()
                .zip(ternary.chars())
                .take_while(|(a, b)| a == b)
                .map(|(c, _)| c.len_utf8())
                .sum();
            // A differing word is underlined as a whole.
            let word = if same == ternary.len() {
                same
            } else {
                ternary[..same].trim_end_matches(|c: char| !c.is_whitespace()).len()
            };
            let (shared, other) = ternary.split_at(word);
            let agreement = match sample.same_tokens {
                same if same == sample.tokens => format!("all {same} tokens are the same"),
                same => format!("{same} of {} tokens before they differ", sample.tokens),
            };
            trike_report::PairedSample {
                prompt: sample.prompt.trim().to_owned(),
                agreement,
                names: ["dense", "ternary"].map(str::to_owned),
                first: dense.to_owned(),
                same: shared.to_owned(),
                other: other.to_owned(),
            }
        };
        page.samples(self.samples.iter().map(side_by_side));
    }

    pub(super) fn alternative_section(&self, page: &mut Page) {
        page.section("alternatives", "The nearest alternatives");
        if self.alternatives.is_empty() {
            page.dim("Not listed: with these options sizes depend on the weights, and follow only from making the model.");
            return;
        }
        let curve = self.options.and_then(|options| options.curve);
        page.dim(format!(
            "Sizes follow from the shapes. Quality is given only where it was measured: {} measures one to four planes, a search the \
             models that it makes.",
            curve.map_or("a curve".to_owned(), |option| format!("`{option}`"))
        ));
        let own = self.output_bytes as f64;
        let price = |bytes: u64| format!("{:+.1} %", 100.0 * (bytes as f64 / own.max(1.0) - 1.0));
        let measured = self.alternatives.iter().any(|a| a.ratio.is_some()) || self.evaluation.is_some();
        let predicted = self.alternatives.iter().any(|a| a.predicted_kl.is_some());
        if predicted {
            page.dim(
                "The predicted KL is the sum of the sensitivities of the layers, each with the rest of the model dense and before \
                 tuning.",
            );
        }
        let mut header = vec!["setting"];
        header.extend(self.options.map(|_| "options"));
        header.extend(["bits/weight", "all tensors", "change"]);
        if measured {
            header.extend(["perplexity", "KL"]);
        }
        if predicted {
            header.push("KL predicted");
        }
        let row = |a: &Alternative| {
            let group = a.stored.group.as_deref().unwrap_or("-");
            let depth = a.stored.planes.unwrap_or(0);
            let mut cells =
                Vec::from_iter(self.options.map(|options| (options.setting)(depth, group).into()));
            cells.extend([
                Cell::from(format!("{:.2}", a.bits_per_weight)),
                size(a.bytes).into(),
                if a.current { "this model".to_owned() } else { price(a.bytes) }.into(),
            ]);
            if measured {
                let own = self.evaluation.as_ref().filter(|_| a.current);
                let ratio = a.ratio.or(own.map(|e| e.ratio));
                let kl = a.kl.or(own.map(|e| e.kl));
                let text = |v: Option<f64>| v.map_or("not measured".to_owned(), |v| format!("{v:.4}"));
                cells.extend([text(ratio).into(), text(kl).into()]);
            }
            if predicted {
                cells.push(a.predicted_kl.map_or(String::new(), |kl| format!("{kl:.4}")).into());
            }
            let name = match group {
                "row" => format!("{}, one scale per row", planes(depth)),
                size => format!("{}, groups of {size}", planes(depth)),
            };
            Row::new(name, cells).with_own(a.current)
        };
        let mut rows: Vec<Row> = self.alternatives.iter().map(row).collect();
        if !self.alternatives.iter().any(|a| a.current) {
            let at = self.alternatives.partition_point(|a| a.bytes <= self.output_bytes);
            rows.insert(at, self.own_row(measured, predicted));
        }
        page.table(&header, rows);
    }

    /// The row of a model whose layers differ.
    fn own_row(&self, measured: bool, predicted: bool) -> Row {
        let weights: f64 = self.layers.iter().map(|l| (l.rows * l.cols) as f64).sum();
        let bytes: f64 = self.layers.iter().map(|l| l.bytes as f64).sum();
        let mut cells = Vec::from_iter(self.options.map(|options| options.plan.into()));
        cells.extend([
            Cell::from(format!("{:.2}", 8.0 * bytes / weights.max(1.0))),
            size(self.output_bytes).into(),
            "this model".into(),
        ]);
        if measured {
            let text = |v: Option<f64>| v.map_or("not measured".to_owned(), |v| format!("{v:.4}"));
            let e = self.evaluation.as_ref();
            cells.extend([text(e.map(|e| e.ratio)).into(), text(e.map(|e| e.kl)).into()]);
        }
        if predicted {
            cells.push("".into());
        }
        Row::new("per layer, from the plan", cells).with_own(true)
    }

    /// The settings of the quantization.
    pub(super) fn summary_section(&self, page: &mut Page) {
        page.section("summary", "How it was made");
        if let Some(command) = &self.command {
            page.code(command);
        }
        let t = &self.ternary;
        page.facts([
            ("Trike", Some(self.version.to_owned())),
            ("date", self.date.clone()),
            ("model", Some(self.model.clone())),
            ("output", Some(self.output.clone())),
            ("planes", Some(self.planes.clone())),
            ("one scale per", Some(per(&self.granularity))),
            ("method", Some(self.method.clone())),
            (
                "calibration",
                Some(match self.calibration_sequences {
                    0 => "none needed".to_owned(),
                    n => format!("{n} sequences, {} tokens", thousands(self.calibration_tokens)),
                }),
            ),
            ("ternary layers", Some(format!("{} of {}", t.layers, self.layers.len()))),
            ("ternary zeros", Some(percent(t.zeros))),
            ("bits per weight of all tensors", Some(format!("{:.3}", self.bits_per_weight))),
            ("time", Some(duration(self.seconds))),
        ]);
    }
}

fn planes(n: usize) -> String {
    format!("{n} {}", if n == 1 { "plane" } else { "planes" })
}

/// `group32` as `32 weights`.
fn per(granularity: &str) -> String {
    match granularity.strip_prefix("group").map(|size| (size, size.parse::<usize>())) {
        Some((size, Ok(_))) => format!("{size} weights"),
        _ => granularity.to_owned(),
    }
}

/// A duration in its two largest units.
fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn granularities_are_words() {
        for (name, words) in
            [("group32", "32 weights"), ("row", "row"), ("group from the plan", "group from the plan")]
        {
            assert_eq!(per(name), words);
        }
    }

    #[test]
    fn durations_have_two_units() {
        for (seconds, text) in
            [(0.04, "0.0 s"), (59.96, "1 min 0 s"), (61.0, "1 min 1 s"), (7325.0, "2 h 2 min")]
        {
            assert_eq!(duration(seconds), text);
        }
    }
}
