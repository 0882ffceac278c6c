//! Plot of the divergence over bits per weight, as SVG.

use std::fmt::Write;

use super::page::escape;
use crate::CurvePoint;

/// Width and height, in the units of a 12-pixel font: a narrow screen shows it nearly unscaled.
const SIZE: (f64, f64) = (440.0, 250.0);
/// Margins: left, right, top, bottom.
const MARGINS: (f64, f64, f64, f64) = (52.0, 64.0, 22.0, 40.0);
/// The smallest divergence that is drawn, in nats per token.
const LEAST: f64 = 1e-6;

/// A linear map of a range of values to a range of the plot.
struct Axis {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        self.start + (value - self.from) / (self.to - self.from) * (self.end - self.start)
    }
}

/// Whether a point is the model of the report.
pub(super) fn is_own(point: &CurvePoint) -> bool {
    point.setting.starts_with("this")
}

/// Whether a point is no model of trits.
fn is_rival(point: &CurvePoint) -> bool {
    point.setting.starts_with('Q')
}

/// The plot, with a logarithmic axis of the divergence, which is never negative; a perplexity ratio may be below 1.
pub(super) fn svg(points: &[CurvePoint]) -> String {
    let mut sorted: Vec<&CurvePoint> = points.iter().filter(|p| p.kl.is_finite()).collect();
    sorted.sort_by(|a, b| a.bits_per_weight.total_cmp(&b.bits_per_weight));
    let kl = |p: &CurvePoint| p.kl.max(LEAST).log10();
    let low = sorted.iter().map(|p| kl(p)).fold(f64::INFINITY, f64::min).floor();
    let high = sorted.iter().map(|p| kl(p)).fold(f64::NEG_INFINITY, f64::max).ceil();
    let most = sorted.iter().map(|p| p.bits_per_weight).fold(0.0, f64::max).ceil();
    if !(low.is_finite() && high.is_finite() && most > 0.0) {
        return String::new();
    }
    let (left, right, top, bottom) = MARGINS;
    let x = Axis { from: 0.0, to: most, start: left, end: SIZE.0 - right };
    let y = Axis { from: low, to: high.max(low + 1.0), start: SIZE.1 - bottom, end: top };
    let mut svg = format!(
        "<svg role=\"img\" aria-label=\"Divergence over bits per weight\" viewBox=\"0 0 {} {}\">\n",
        SIZE.0, SIZE.1
    );
    // Writing to a `String` cannot fail.
    for decade in low as i32..=y.to as i32 {
        let at = y.at(f64::from(decade));
        let label = if (-3..=3).contains(&decade) {
            format!("{}", 10f64.powi(decade))
        } else {
            format!("1e{decade}")
        };
        let _ = writeln!(svg, "<line x1=\"{left}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>", x.end);
        let _ = writeln!(
            svg,
            "<text class=\"axis\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            left - 6.0,
            at + 4.0
        );
    }
    for bits in 0..=most as i32 {
        let at = x.at(f64::from(bits));
        let _ = writeln!(
            svg,
            "<text class=\"axis\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{bits}</text>",
            SIZE.1 - bottom + 16.0
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"axis\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">bits per weight</text>",
        (x.start + x.end) / 2.0,
        SIZE.1 - 6.0
    );
    let places: Vec<(f64, f64)> = sorted.iter().map(|p| (x.at(p.bits_per_weight), y.at(kl(p)))).collect();
    // The line connects models of trits; other formats are dots beside it.
    let trits = sorted.iter().zip(&places).filter(|(point, _)| !is_rival(point));
    let line: Vec<String> = trits.map(|(_, (x, y))| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(svg, "<polyline points=\"{}\"/>", line.join(" "));
    for (point, (px, py)) in sorted.iter().zip(&places) {
        // More bits lose less: the line leaves the upper right and the lower left of a point free.
        let (anchor, dx, dy) = if is_own(point) { ("end", -7.0, 14.0) } else { ("start", 7.0, -5.0) };
        let _ = writeln!(svg, "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"4\"/>");
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            px + dx,
            py + dy,
            escape(&point.setting)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(setting: &str, bits_per_weight: f64, ratio: f64, kl: f64) -> CurvePoint {
        CurvePoint { setting: setting.to_owned(), bits_per_weight, bytes: 1, ratio, ratio_error: 0.1, kl }
    }

    #[test]
    fn every_point_is_within_the_plot() {
        let points =
            [point("a", 1.7, 4.0, 1.5), point("b", 3.4, 0.9997, 0.0), point("<c>", 5.0, 1.01, 0.012)];
        let svg = svg(&points);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("&lt;c&gt;") && !svg.contains("NaN") && !svg.contains("inf"));
        for part in svg.split("cy=\"").skip(1) {
            let y: f64 = part.split('"').next().unwrap().parse().unwrap();
            assert!((0.0..=SIZE.1).contains(&y), "{y}");
        }
        assert_eq!(super::svg(&[]), "");
        assert_eq!(super::svg(&[point("a", 1.0, f64::NAN, f64::NAN)]), "");
        assert!(super::svg(&[point("a", 1.0, 1.1, 0.1)]).contains("<circle"));
    }
}
