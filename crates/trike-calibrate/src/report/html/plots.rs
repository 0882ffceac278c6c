//! The report's plots, as SVG.

use std::ops::Range;

use plotters::prelude::*;

use crate::{CurvePoint, Sensitivity, StoredKind};

const SIZE: (u32, u32) = (900, 320);
const COLORS: [RGBColor; 6] = [
    RGBColor(31, 91, 163),
    RGBColor(200, 90, 30),
    RGBColor(40, 130, 70),
    RGBColor(150, 50, 120),
    RGBColor(110, 110, 110),
    RGBColor(170, 140, 0),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Draws a plot; if that fails, the error message takes its place.
fn svg(
    id: &str,
    title: &str,
    draw: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn std::error::Error>>,
) -> String {
    let mut text = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(&area).and_then(|()| area.present().map_err(Into::into))
    };
    let body = match drawn {
        Ok(()) => text.replacen("<svg ", "<svg role=\"img\" ", 1),
        Err(error) => format!("<p class=\"none\">{}</p>", super::escape(&error.to_string())),
    };
    format!("<figure id=\"plot-{id}\"><figcaption>{}</figcaption>\n{body}</figure>\n", super::escape(title))
}

/// A nonempty range around values.
fn around(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(f64::NEG_INFINITY, f64::max);
    if !(low.is_finite() && high.is_finite()) {
        return 0.0..1.0;
    }
    let margin = ((high - low) * 0.08).max(high.abs() * 1e-3).max(1e-9);
    low - margin..high + margin
}

/// [`around`] for positive values on a logarithmic axis.
fn around_logs(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let logs = around(values.map(f64::log10));
    // A tenth of a decade keeps a single value visible.
    10f64.powf(logs.start - 0.05)..10f64.powf(logs.end + 0.05)
}

/// A number with two significant digits, or all digits of the integer part.
fn significant(value: f64) -> String {
    let digits = (1.0 - value.abs().max(1e-9).log10().floor()).clamp(0.0, 9.0) as usize;
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// One bar per value.
pub(crate) fn layers(id: &str, title: &str, values: &[f64]) -> String {
    svg(id, title, |area| {
        let most = values.iter().copied().filter(|v| v.is_finite()).fold(0.0, f64::max).max(1e-9);
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(28)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..values.len().max(1) as f64, 0.0..most * 1.05)?;
        chart.configure_mesh().disable_x_mesh().x_label_formatter(&|x| format!("{x:.0}")).draw()?;
        let bars =
            values.iter().enumerate().filter(|(_, v)| v.is_finite()).map(|(i, &v)| {
                Rectangle::new([(i as f64 + 0.1, 0.0), (i as f64 + 0.9, v)], COLORS[0].filled())
            });
        chart.draw_series(bars)?;
        Ok(())
    })
}

/// Plot of the perplexity ratio over bits per weight.
pub(crate) fn curve(points: &[CurvePoint]) -> String {
    let mut sorted: Vec<&CurvePoint> = points.iter().collect();
    sorted.sort_by(|a, b| a.bits_per_weight.total_cmp(&b.bits_per_weight));
    svg("curve", "Perplexity ratio to the dense model vs. bits per weight of the linear layers", |area| {
        // The increase spans orders of magnitude.
        let lost = |p: &CurvePoint| (p.ratio - 1.0).max(1e-4);
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(
                around(sorted.iter().map(|p| p.bits_per_weight)),
                around_logs(sorted.iter().map(|p| lost(p))).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_desc("bits per weight")
            .y_desc("increase over the dense model")
            .y_label_formatter(&|y| format!("{} %", significant(100.0 * y)))
            .draw()?;
        chart
            .draw_series(LineSeries::new(sorted.iter().map(|p| (p.bits_per_weight, lost(p))), &COLORS[4]))?;
        chart.draw_series(sorted.iter().map(|p| {
            EmptyElement::at((p.bits_per_weight, lost(p)))
                + Circle::new((0, 0), 4, COLORS[0].filled())
                + Text::new(p.setting.clone(), (6, -14), ("sans-serif", 12))
        }))?;
        Ok(())
    })
}

/// Plot of divergence over bits per weight, one line per layer.
pub(crate) fn sensitivity(all: &[Sensitivity]) -> String {
    svg("sensitivity", "Divergence (nats per token) of each layer alone vs. bits per weight", |area| {
        let lines: Vec<Vec<(f64, f64)>> = all
            .iter()
            .map(|s| {
                let trits = s.choices.iter().filter(|c| c.stored.kind != StoredKind::Dense);
                let mut line: Vec<(f64, f64)> =
                    trits.map(|c| (8.0 * c.bytes as f64 / s.weights.max(1) as f64, c.kl.max(1e-9))).collect();
                line.sort_by(|a, b| a.0.total_cmp(&b.0));
                line
            })
            .collect();
        let points = || lines.iter().flatten().copied();
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(
                around(points().map(|p| p.0)),
                around_logs(points().map(|p| p.1)).log_scale(),
            )?;
        chart.configure_mesh().x_desc("bits per weight").y_label_formatter(&|y| format!("{y:.0e}")).draw()?;
        for (i, line) in lines.iter().enumerate() {
            // Adjacent layers get different colors.
            chart.draw_series(LineSeries::new(
                line.iter().copied(),
                COLORS[i % COLORS.len()].stroke_width(1),
            ))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_two_digits() {
        for (value, want) in [
            (1.0, "1"),
            (0.1, "0.1"),
            (12.345, "12"),
            (0.0316, "0.032"),
            (3.0, "3"),
            (1000.0, "1000"),
            (0.0, "0"),
        ] {
            assert_eq!(significant(value), want, "{value}");
        }
        let range = around_logs([0.01, 1.0].into_iter());
        assert!(range.start > 0.005 && range.start < 0.01 && range.end > 1.0 && range.end < 2.0, "{range:?}");
    }
}
