//! The report as a self-contained HTML page.

mod curve;
mod top;

use trike_report::{Cell, Page, Row};

use super::{size, verdict::change};
use crate::{CalibrateError, LayerReport, Measured, QuantizeReport, Sensitivity, StoredKind, TuningReport};

/// Tables with more rows are collapsed.
const MOST_ROWS: usize = 100;

impl QuantizeReport {
    /// The report as one self-contained HTML page with embedded plots.
    ///
    /// # Errors
    ///
    /// [`CalibrateError::Report`] for an error in the templates.
    pub fn html(&self) -> Result<String, CalibrateError> {
        let by = format!("Trike {}", self.version);
        let by = self.date.as_ref().map_or(by.clone(), |date| format!("{by}, {date}"));
        let title = format!("{}: ternary quantization", name_of(&self.model));
        let mut page = Page::new(title).with_byline(by);
        self.verdict_section(&mut page);
        self.sample_section(&mut page);
        self.alternative_section(&mut page);
        self.curve_section(&mut page);
        self.summary_section(&mut page);
        self.layer_section(&mut page);
        self.sensitivity_section(&mut page);
        self.plan_section(&mut page);
        self.tuning_section(&mut page);
        if !self.notes.is_empty() {
            page.section("notes", "Notes");
            page.list(self.notes.iter().cloned());
        }
        Ok(page.render()?)
    }

    fn curve_section(&self, page: &mut Page) {
        if self.curve.is_empty() {
            return;
        }
        page.section("curve", "Quality and size");
        page.plot(&curve::plot(&self.curve));
        let rows = self.curve.iter().map(|p| {
            let cells = [
                format!("{:.2}", p.bits_per_weight),
                size(p.bytes),
                change(p.ratio, p.ratio_error),
                format!("{:.4}", p.kl),
            ];
            Row::new(p.setting.clone(), cells.map(Cell::from)).with_own(curve::is_own(p))
        });
        page.table(&["setting", "bits/weight", "all tensors", "perplexity", "KL"], rows);
    }

    fn layer_section(&self, page: &mut Page) {
        page.section("layers", "Layers");
        page.dim(
            "Bars are relative to the largest value of the column. The output error is that of the layer's outputs on the calibration \
             text, relative to the outputs of the dense layer.",
        );
        let most = |of: fn(&LayerReport) -> Option<f64>| {
            self.layers.iter().filter_map(of).filter(|v| v.is_finite()).fold(0.0, f64::max)
        };
        let (bits, weight, output) =
            (most(|l| Some(l.bits_per_weight)), most(|l| l.weight_error), most(|l| l.output_error));
        let rows = self.layers.iter().map(|l| {
            let cells = [
                format!("{} x {}", l.rows, l.cols).into(),
                l.stored.clone().into(),
                size(l.bytes).into(),
                Cell::bar(Some(l.bits_per_weight), bits, |v| format!("{v:.2}")),
                l.zeros.map_or_else(String::new, percent).into(),
                Cell::bar(l.weight_error, weight, |v| format!("{v:.3}")),
                Cell::bar(l.output_error, output, |v| format!("{v:.3}")),
                l.damping.map_or_else(String::new, |d| format!("{d}")).into(),
                format!("{:.1} s", l.seconds).into(),
            ];
            layer_row(&l.name, cells)
        });
        let header = [
            "layer",
            "shape",
            "storage",
            "size",
            "bits/weight",
            "zeros",
            "weight error",
            "output error",
            "damping",
            "time",
        ];
        let short = self.layers.len() <= MOST_ROWS;
        page.folded_table(&format!("All {} layers", self.layers.len()), short, &header, rows);
        for l in &self.layers {
            if let Some(reason) = &l.kept {
                page.paragraph(format!("`{}` is not quantized: {reason}.", l.name));
            }
        }
    }

    fn sensitivity_section(&self, page: &mut Page) {
        let Some(planning) = &self.planning else { return };
        page.section("sensitivity", "Sensitivity");
        page.dim(
            "KL divergence of the model, in nats per token, when only this layer is stored this way and all others are dense, before \
             tuning: predicted from the errors of its outputs and the gradients of the dense model, on text held out from calibration.",
        );
        let all = &planning.sensitivities;
        let smallest =
            |s: &Sensitivity| s.choices.iter().min_by_key(|c| c.bytes).map(|c| (c.stored.to_string(), c.kl));
        // Reasons are ignored in the comparison with the measured choices.
        let chosen = |s: &Sensitivity| {
            let stored = &planning.plan.layers.iter().find(|l| l.name == s.layer)?.stored;
            let alike = |c: &&Measured| {
                (c.stored.kind, c.stored.planes, &c.stored.group)
                    == (stored.kind, stored.planes, &stored.group)
            };
            s.choices.iter().find(alike).map(|c| (c.stored.to_string(), c.kl))
        };
        let most = |of: &dyn Fn(&Sensitivity) -> Option<(String, f64)>| {
            all.iter().filter_map(of).map(|(_, kl)| kl).fold(0.0, f64::max)
        };
        let (most_chosen, most_smallest) = (most(&chosen), most(&smallest));
        let rows = all.iter().map(|s| {
            let cells = [(chosen(s), most_chosen), (smallest(s), most_smallest)].map(|(found, most)| {
                let (stored, kl) = found.unzip();
                [stored.unwrap_or_default().into(), Cell::bar(kl, most, |v| format!("{v:.2e}"))]
            });
            layer_row(&s.layer, cells.into_iter().flatten())
        });
        let short = all.len() <= MOST_ROWS;
        let header = ["layer", "stored as", "KL", "smallest", "KL of the smallest"];
        page.folded_table(&format!("All {} layers", all.len()), short, &header, rows);
        let rows = all.iter().flat_map(|s| {
            s.choices.iter().filter(|c| c.stored.kind != StoredKind::Dense).map(move |c| {
                let bits = format!("{:.2}", 8.0 * c.bytes as f64 / s.weights.max(1) as f64);
                let cells = [c.stored.to_string(), bits, size(c.bytes), format!("{:.2e}", c.kl)];
                layer_row(&s.layer, cells.map(Cell::from))
            })
        });
        page.folded_table("All choices", false, &["layer", "storage", "bits/weight", "size", "KL"], rows);
    }

    fn plan_section(&self, page: &mut Page) {
        let Some(planning) = &self.planning else { return };
        page.section("plan", "Budget and plan");
        page.paragraph(format!("Budget: {}.", planning.described()));
        if !planning.trials.is_empty() {
            page.dim("Models made and measured during the search; the error is the standard error of the budgeted figure.");
            let rows = planning.trials.iter().enumerate().map(|(i, t)| {
                let cells = [
                    size(t.bytes),
                    format!("{:.2}", t.bits_per_weight),
                    format!("{:.4}", t.predicted_kl),
                    format!("{:.4}", t.kl),
                    format!("{:.4}", t.ratio),
                    format!("{:.4}", t.error),
                    if t.met { "yes" } else { "no" }.to_owned(),
                ];
                Row::new((i + 1).to_string(), cells.map(Cell::from))
            });
            let header = [
                "trial",
                "planned layers",
                "bits/weight",
                "KL predicted",
                "KL",
                "perplexity ratio",
                "error",
                "within budget",
            ];
            page.table(&header, rows);
        }
        let rows = planning.plan.layers.iter().map(|l| {
            let cells = [l.stored.to_string(), l.stored.reason.clone().unwrap_or_default()];
            layer_row(&l.name, cells.map(Cell::from))
        });
        page.folded_table("The plan", false, &["layer", "storage", "reason"], rows);
    }

    /// Tuning results, per block and for the whole model.
    fn tuning_section(&self, page: &mut Page) {
        let blocks = self.tuned_blocks.iter().map(|(block, of)| (format!("block {block}"), of));
        let model = self.tuned_model.iter().map(|of| ("whole model".to_owned(), of));
        let recovered = self.recovered.iter().map(|of| ("recovery".to_owned(), of));
        let all: Vec<(String, &TuningReport)> = blocks.chain(model).chain(recovered).collect();
        if all.is_empty() {
            return;
        }
        page.section("tuning", "Tuning");
        page.dim(
            "The loss of a block is the squared error of its output relative to that of the dense block; that of the whole model is the KL \
             divergence. The rate is a share of the configured learning rates.",
        );
        let rows = all.into_iter().map(|(name, of)| {
            let share = (of.before > 0.0).then(|| of.after / of.before);
            let cells = [
                of.steps.to_string().into(),
                format!("{:.2e}", of.before).into(),
                format!("{:.2e}", of.after).into(),
                Cell::bar(share, 1.0, percent),
                format!("{:.1e}", of.gain_error).into(),
                if of.kept { "yes" } else { "no" }.into(),
                percent(of.rate).into(),
                format!("{:.1} s", of.seconds).into(),
            ];
            Row::new(name, cells)
        });
        page.table(
            &[
                "block",
                "steps",
                "loss before",
                "loss after",
                "remaining loss",
                "error of the gain",
                "kept",
                "rate",
                "time",
            ],
            rows,
        );
    }
}

/// The last component of a path.
fn name_of(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

/// A row of a layer, under the short form of its name.
fn layer_row(name: &str, cells: impl IntoIterator<Item = Cell>) -> Row {
    let short = name.strip_prefix("model.").unwrap_or(name);
    Row::new(short.strip_suffix(".weight").unwrap_or(short), cells).with_title(name)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_last_component() {
        assert_eq!(name_of("/a/b/"), "b");
        assert_eq!(name_of("b"), "b");
    }
}
