//! Plot of the divergence over bits per weight.

use trike_report::{Axis, Line, Plot, Point};

use crate::CurvePoint;

/// Width and height, in the units of a 12-pixel font: a narrow screen shows it nearly unscaled.
const SIZE: (f64, f64) = (440.0, 250.0);
/// Margins: left, right, top, bottom.
const MARGINS: (f64, f64, f64, f64) = (52.0, 64.0, 22.0, 40.0);
/// Lower limit of the divergence in the plot, in nats per token.
const LEAST: f64 = 1e-6;

/// Whether a point is the model of the report.
pub(super) fn is_own(point: &CurvePoint) -> bool {
    point.setting.starts_with("this")
}

/// Whether a point has another format than trits.
fn is_rival(point: &CurvePoint) -> bool {
    point.setting.starts_with('Q')
}

/// The plot, with a logarithmic axis of the divergence, which is never negative, whereas a perplexity ratio may be below 1.
pub(super) fn plot(points: &[CurvePoint]) -> Plot {
    let mut sorted: Vec<&CurvePoint> = points.iter().filter(|p| p.kl.is_finite()).collect();
    sorted.sort_by(|a, b| a.bits_per_weight.total_cmp(&b.bits_per_weight));
    let kl = |p: &CurvePoint| p.kl.max(LEAST).log10();
    let low = sorted.iter().map(|p| kl(p)).fold(f64::INFINITY, f64::min).floor();
    let high = sorted.iter().map(|p| kl(p)).fold(f64::NEG_INFINITY, f64::max).ceil();
    let high = high.max(low + 1.0);
    let most = sorted.iter().map(|p| p.bits_per_weight).fold(0.0, f64::max).ceil();
    let decade = |decade: i32| {
        let label = if (-3..=3).contains(&decade) {
            format!("{}", 10f64.powi(decade))
        } else {
            format!("1e{decade}")
        };
        (f64::from(decade), label)
    };
    let at = |p: &CurvePoint| (p.bits_per_weight, kl(p));
    Plot {
        id: "plot-curve".to_owned(),
        label: "Divergence over bits per weight".to_owned(),
        caption:
            "KL divergence from the dense model, in nats per token, over bits per weight of the linear layers"
                .to_owned(),
        size: SIZE,
        margins: MARGINS,
        x: Axis {
            from: 0.0,
            to: most,
            ticks: (0..=most as i32).map(|bits| (f64::from(bits), bits.to_string())).collect(),
            name: "bits per weight".to_owned(),
        },
        y: Axis {
            from: low,
            to: high,
            ticks: (low as i32..=high as i32).map(decade).collect(),
            name: String::new(),
        },
        // The line connects ternary models; other formats are separate points.
        lines: vec![Line {
            points: sorted.iter().filter(|p| !is_rival(p)).map(|p| at(p)).collect(),
            dashed: false,
        }],
        // The curve falls, so the upper right and the lower left of a point are free for labels.
        points: sorted
            .iter()
            .map(|p| Point { at: at(p), name: p.setting.clone(), title: String::new(), left: is_own(p) })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use trike_report::Page;

    use super::*;

    fn point(setting: &str, bits_per_weight: f64, ratio: f64, kl: f64) -> CurvePoint {
        CurvePoint { setting: setting.to_owned(), bits_per_weight, bytes: 1, ratio, ratio_error: 0.1, kl }
    }

    fn svg(points: &[CurvePoint]) -> String {
        let mut page = Page::new("");
        page.plot(&plot(points));
        let html = page.render().unwrap();
        html.split_once("<svg").map_or_else(String::new, |(_, svg)| svg.to_owned())
    }

    #[test]
    fn every_point_is_within_the_plot() {
        let points =
            [point("a", 1.7, 4.0, 1.5), point("b", 3.4, 0.9997, 0.0), point("<c>", 5.0, 1.01, 0.012)];
        let drawn = svg(&points);
        assert_eq!(drawn.matches("<circle").count(), 3);
        assert!(drawn.contains("&lt;c&gt;") && !drawn.contains("NaN") && !drawn.contains("inf"));
        for part in drawn.split("cy=\"").skip(1) {
            let y: f64 = part.split('"').next().unwrap().parse().unwrap();
            assert!((0.0..=SIZE.1).contains(&y), "{y}");
        }
        assert_eq!(svg(&[]), "");
        assert_eq!(svg(&[point("a", 1.0, f64::NAN, f64::NAN)]), "");
        assert!(svg(&[point("a", 1.0, 1.1, 0.1)]).contains("<circle"));
    }
}
