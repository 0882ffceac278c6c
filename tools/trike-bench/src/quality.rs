//! Quality of quantized models over their size, measured by hand: the data file, its plot and its table.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::drawing::{Drawing, Font, Ink};
use crate::table::{Align, Table};

/// Contents of `benches/records/quality.json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QualityRecord {
    models: Vec<QuantizedModel>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuantizedModel {
    name: String,
    /// Number of weights, as text.
    weights: String,
    /// Weights per scale.
    group: usize,
    /// The text that perplexity was measured on.
    text: String,
    /// By increasing number of planes.
    points: Vec<QualityPoint>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct QualityPoint {
    planes: usize,
    /// Bits per weight of the ternary layers, with their scales.
    bits_per_weight: f64,
    /// Perplexity over that of the dense model.
    ratio: f64,
    /// Standard error of the ratio, if it was recorded.
    #[serde(default)]
    standard_error: Option<f64>,
    date: String,
    machine: String,
    command: String,
}

impl QualityPoint {
    /// Rise of perplexity, as a fraction.
    fn rise(&self) -> f64 {
        self.ratio - 1.0
    }
}

const WIDTH: usize = 760;
const HEIGHT: usize = 430;
/// Left, right, upper and lower end of the plot area.
const AREA: [f64; 4] = [76.0, 530.0, 112.0, 372.0];
/// Bits per weight at the left and right end.
const BITS: [f64; 2] = [1.0, 5.6];
/// Rise of perplexity at the lower and upper end, on a logarithmic scale.
const RISES: [f64; 2] = [0.004, 2.0];
const INKS: [Ink; 3] = [Ink::Second, Ink::Third, Ink::First];
/// From the baseline of a label to that of the next.
const LINE: f64 = 19.0;

fn x(bits: f64) -> f64 {
    AREA[0] + (bits - BITS[0]) / (BITS[1] - BITS[0]) * (AREA[1] - AREA[0])
}

fn y(rise: f64) -> f64 {
    AREA[3] - (rise / RISES[0]).ln() / (RISES[1] / RISES[0]).ln() * (AREA[3] - AREA[2])
}

impl QualityRecord {
    /// Parses the data file.
    ///
    /// # Errors
    ///
    /// If `text` is not JSON of this schema, has no points or too many models, or has a point outside of the plot.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let this: Self = serde_json::from_str(text)?;
        let models = this.models.len();
        ensure!((1..=INKS.len()).contains(&models), "expected 1 to {} models, got {models}", INKS.len());
        for model in &this.models {
            ensure!(!model.points.is_empty(), "{} has no points", model.name);
            for point in &model.points {
                let is_inside = (BITS[0]..=BITS[1]).contains(&point.bits_per_weight)
                    && (RISES[0]..=RISES[1]).contains(&point.rise());
                ensure!(is_inside, "{}: {} planes are outside of the plot", model.name, point.planes);
            }
        }
        Ok(this)
    }

    fn points(&self) -> impl Iterator<Item = &QualityPoint> {
        self.models.iter().flat_map(|model| &model.points)
    }

    fn title(&self) -> String {
        let most = self.points().map(|point| point.planes).max().unwrap_or(1);
        let best = || self.points().filter(|point| point.planes == most);
        let rise = best().map(QualityPoint::rise).fold(0.0, f64::max);
        let bits = best().map(|point| point.bits_per_weight).sum::<f64>() / best().count() as f64;
        let rise = (100.0 * rise).ceil();
        format!("{most} planes ({bits:.0} bits per weight) cost less than {rise:.0} % in perplexity")
    }

    /// Whether no other model has a smaller rise with the same number of planes: its labels stand below its points.
    fn is_lowest(&self, model: &QuantizedModel) -> bool {
        let is_beaten =
            |point: &QualityPoint| self.points().any(|p| p.planes == point.planes && p.ratio < point.ratio);
        !model.points.iter().any(is_beaten)
    }

    /// The plot: rise of perplexity over bits per weight, a line per model.
    pub(crate) fn plot(&self) -> String {
        let mut drawing = Drawing::new(WIDTH, HEIGHT, &self.title());
        let subtitle = "Rise of perplexity over the dense model, on held-out text (logarithmic scale)";
        drawing.text(24.0, 58.0, Font::of(14), Ink::Muted, subtitle);
        self.axes(&mut drawing);
        // Baselines of the labels at the right of a point.
        let mut taken: Vec<[f64; 2]> = Vec::new();
        for (model, ink) in self.models.iter().zip(INKS) {
            let at: Vec<[f64; 2]> =
                model.points.iter().map(|point| [x(point.bits_per_weight), y(point.rise())]).collect();
            drawing.line(&at, 2.5, ink);
            for (i, (point, &[x, y])) in model.points.iter().zip(&at).enumerate() {
                // A single point may lie on that of another model.
                if at.len() == 1 {
                    drawing.ring([x, y], ink);
                } else {
                    drawing.dot([x, y], ink);
                }
                let name = if i == 0 { model.name.as_str() } else { "" };
                let font = Font::of(14).bold();
                if self.is_lowest(model) {
                    let font = font.anchored("end");
                    drawing.text(x - 6.0, y + 20.0, font, ink, &rise_text(point.rise()));
                    if !name.is_empty() {
                        drawing.text(x - 6.0, y + 20.0 + LINE, font, ink, name);
                    }
                    continue;
                }
                let mut place = [x + 11.0, y - 4.0];
                while taken.iter().any(|t| (t[0] - place[0]).abs() < 80.0 && (t[1] - place[1]).abs() < LINE) {
                    place[1] -= 1.0;
                }
                taken.push(place);
                let label = format!("{} {name}", rise_text(point.rise()));
                drawing.text(place[0], place[1], font, ink, label.trim());
            }
        }
        drawing.to_svg()
    }

    fn axes(&self, drawing: &mut Drawing) {
        let [left, right, top, bottom] = AREA;
        let mut planes: Vec<usize> = self.points().map(|point| point.planes).collect();
        planes.sort_unstable();
        planes.dedup();
        for planes in planes {
            let bits = || self.points().filter(|p| p.planes == planes).map(|p| p.bits_per_weight);
            let (from, to) =
                (x(bits().fold(f64::INFINITY, f64::min)) - 14.0, x(bits().fold(0.0, f64::max)) + 14.0);
            drawing.bar([from, top - 26.0], to - from, bottom - top + 26.0, Ink::Band);
            let name = if planes == 1 { "1 plane".to_owned() } else { format!("{planes} planes") };
            let font = Font::of(14).bold().anchored("middle");
            drawing.text((from + to) / 2.0, top - 9.0, font, Ink::Text, &name);
        }
        for rise in [0.01, 0.1, 1.0] {
            drawing.line(&[[left, y(rise)], [right, y(rise)]], 1.0, Ink::Grid);
            let font = Font::of(14).anchored("end");
            drawing.text(left - 8.0, y(rise) + 5.0, font, Ink::Muted, &format!("+{:.0} %", 100.0 * rise));
        }
        drawing.line(&[[left, bottom], [right, bottom]], 1.0, Ink::Muted);
        let mut bits = BITS[0].ceil();
        while bits <= BITS[1] {
            let font = Font::of(14).anchored("middle");
            drawing.text(x(bits), bottom + 20.0, font, Ink::Muted, &format!("{bits:.0}"));
            bits += 1.0;
        }
        let font = Font::of(14).anchored("middle");
        drawing.text(
            (left + right) / 2.0,
            bottom + 42.0,
            font,
            Ink::Muted,
            "bits per weight of the ternary layers",
        );
    }

    /// The table of the handbook, with its provenance.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new(&[
            ("model", Align::Left),
            ("weights", Align::Right),
            ("planes", Align::Right),
            ("group", Align::Right),
            ("bits per weight", Align::Right),
            ("perplexity over the dense model's", Align::Right),
        ]);
        for model in &self.models {
            for point in &model.points {
                let error = point.standard_error.map_or(String::new(), |error| format!(" ± {error}"));
                table.row([
                    model.name.clone(),
                    model.weights.clone(),
                    point.planes.to_string(),
                    model.group.to_string(),
                    point.bits_per_weight.to_string(),
                    format!("{}{error}", point.ratio),
                ]);
            }
        }
        let mut text = format!("{table}\n");
        for model in &self.models {
            // One line per run: the points of a run differ in the number of planes only.
            let mut runs: Vec<String> = Vec::new();
            for QualityPoint { planes, date, machine, command, .. } in &model.points {
                let command = command.replace(&format!("-p {planes} "), "-p PLANES ");
                let run = format!("`{command}` ({date}, {machine})");
                if !runs.contains(&run) {
                    runs.push(run);
                }
            }
            let _ = writeln!(text, "* {}, measured on {}: {}.", model.name, model.text, runs.join("; "));
        }
        text
    }
}

/// Two significant digits from 1 % on.
fn rise_text(rise: f64) -> String {
    if rise < 0.0995 { format!("+{:.1} %", 100.0 * rise) } else { format!("+{:.0} %", 100.0 * rise) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn record(points: &[(&str, usize, f64, f64)]) -> Result<QualityRecord> {
        let mut models: Vec<(String, Vec<String>)> = Vec::new();
        for &(name, planes, bits, ratio) in points {
            let point = format!(
                r#"{{"planes": {planes}, "bits_per_weight": {bits}, "ratio": {ratio}, "standard_error": 0.01,
                "date": "2026-11-25", "machine": "a machine", "command": "trike quantize -p {planes} -g 64"}}"#
            );
            match models.iter_mut().find(|(other, _)| other == name) {
                Some((_, points)) => points.push(point),
                None => models.push((name.to_owned(), vec![point])),
            }
        }
        let models: Vec<String> = models
            .iter()
            .map(|(name, points)| {
                format!(
                    r#"{{"name": "{name}", "weights": "1 M", "group": 64, "text": "a text", "points": [{}]}}"#,
                    points.join(",")
                )
            })
            .collect();
        QualityRecord::parse(&format!("{{\"models\": [{}]}}", models.join(",")))
    }

    #[test]
    fn runs_are_named_once_and_the_title_states_the_worst_of_the_best() {
        let record = record(&[("a", 2, 3.5, 1.2), ("a", 3, 5.1, 1.018), ("b", 3, 5.3, 1.008)]).unwrap();
        expect![[r"
            | model | weights | planes | group | bits per weight | perplexity over the dense model's |
            |---|--:|--:|--:|--:|--:|
            | a | 1 M | 2 | 64 | 3.5 | 1.2 ± 0.01 |
            | a | 1 M | 3 | 64 | 5.1 | 1.018 ± 0.01 |
            | b | 1 M | 3 | 64 | 5.3 | 1.008 ± 0.01 |

            * a, measured on a text: `trike quantize -p PLANES -g 64` (2026-11-25, a machine).
            * b, measured on a text: `trike quantize -p PLANES -g 64` (2026-11-25, a machine).
        "]]
        .assert_eq(&record.table());
        let plot = record.plot();
        let title = "<title>3 planes (5 bits per weight) cost less than 2 % in perplexity</title>";
        assert!(plot.contains(title), "{plot}");
        for label in [">+20 % a<", ">+1.8 %<", ">+0.8 %<", ">b<", ">2 planes<"] {
            assert!(plot.contains(label), "{label}: {plot}");
        }
    }

    #[test]
    fn points_outside_of_the_plot_are_refused() {
        for (bits, ratio) in [(0.9, 1.1), (5.7, 1.1), (3.0, 1.001), (3.0, 3.1)] {
            let error = record(&[("a", 2, bits, ratio)]).unwrap_err().to_string();
            assert_eq!(error, "a: 2 planes are outside of the plot");
        }
        assert!(record(&[]).unwrap_err().to_string().contains("expected 1 to 3 models, got 0"));
    }
}
