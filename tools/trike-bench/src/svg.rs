//! Bar charts as SVG: the output is deterministic and independent of font metrics.

use std::fmt::Write as _;

/// A chart of horizontal bars, one group of bars per label.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Title above the chart.
    pub title: String,
    /// Names of the bars of a group, at most four.
    pub series: Vec<String>,
    /// Labels and the values of their bars; `None` draws no bar.
    pub groups: Vec<(String, Vec<Option<f64>>)>,
    /// Unit of the values.
    pub scale: Scale,
}

/// Unit of the values of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Fractions from 0 to 1, shown as percentages.
    Percent,
    /// Speedups, from 0 to the largest.
    Times,
}

const WIDTH: usize = 800;
/// Left end of the bars; labels are right-aligned before it.
const LEFT: usize = 250;
/// Right end of the longest bar; values are drawn after the bars.
const RIGHT: usize = 740;
const BAR: usize = 13;
const GAP: usize = 9;
const TOP: usize = 66;
const COLORS: [&str; 4] = ["#1f6f8b", "#e07a3f", "#7a9e4d", "#8a5a9e"];

impl Chart {
    /// Whether the chart has no bars.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.iter().all(|(_, values)| values.iter().all(Option::is_none))
    }

    /// The chart as an SVG file.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let group = self.series.len() * BAR + GAP;
        let bottom = TOP + self.groups.len() * group;
        let height = bottom + 26;
        let (step, most) = self.grid();
        let x = |value: f64| LEFT as f64 + (value / most).clamp(0.0, 1.0) * (RIGHT - LEFT) as f64;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <title>{title}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text x=\"12\" y=\"22\" font-size=\"15\" fill=\"#222222\">{title}</text>\n",
            title = escaped(&self.title)
        );
        for (i, name) in self.series.iter().enumerate() {
            let at = LEFT + i * 120;
            let _ = writeln!(
                svg,
                "<rect x=\"{at}\" y=\"36\" width=\"11\" height=\"11\" fill=\"{}\"/>\n\
                 <text x=\"{}\" y=\"46\" fill=\"#222222\">{}</text>",
                COLORS[i % COLORS.len()],
                at + 17,
                escaped(name)
            );
        }
        let lines = (most / step).round() as usize;
        for line in 0..=lines {
            let value = step * line as f64;
            let at = x(value);
            let _ = writeln!(
                svg,
                "<line x1=\"{at:.1}\" y1=\"{}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#dddddd\"/>\n\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666666\">{}</text>",
                TOP - 6,
                bottom + 16,
                self.label(value, 0)
            );
        }
        for (i, (name, values)) in self.groups.iter().enumerate() {
            let y = TOP + i * group;
            let middle = y + self.series.len() * BAR / 2 + 4;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\" fill=\"#222222\">{}</text>",
                LEFT - 8,
                escaped(name)
            );
            for (j, value) in values.iter().enumerate() {
                let Some(value) = *value else { continue };
                let (end, y) = (x(value), y + j * BAR);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{}\" fill=\"{}\"/>\n\
                     <text x=\"{:.1}\" y=\"{}\" font-size=\"11\" fill=\"#222222\">{}</text>",
                    end - LEFT as f64,
                    BAR - 2,
                    COLORS[j % COLORS.len()],
                    end + 4.0,
                    y + 10,
                    self.label(value, 1)
                );
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// Step of the grid lines and value of the last line: 25 % and 100 %, or the smallest round step with which at most
    /// eight lines reach the largest value.
    fn grid(&self) -> (f64, f64) {
        if self.scale == Scale::Percent {
            return (0.25, 1.0);
        }
        let values = self.groups.iter().flat_map(|(_, values)| values.iter().flatten().copied());
        let largest = values.filter(|value| value.is_finite()).fold(1.0, f64::max);
        let rounds = (0..12).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
        let step = rounds.into_iter().find(|step| step * 8.0 >= largest).unwrap_or(largest);
        (step, step * (largest / step).ceil())
    }

    fn label(&self, value: f64, digits: usize) -> String {
        match self.scale {
            Scale::Percent => format!("{:.0} %", 100.0 * value),
            Scale::Times => format!("{value:.digits$}x"),
        }
    }
}

/// Escapes `text` for XML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn chart(scale: Scale, values: &[Option<f64>]) -> Chart {
        Chart {
            title: "a < b".into(),
            series: vec!["one".into()],
            groups: values.iter().map(|&value| ("group".into(), vec![value])).collect(),
            scale,
        }
    }

    #[test]
    fn a_chart_is_this_text() {
        expect![[r##"
            <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 136" width="800" height="136" font-family="sans-serif" font-size="12">
            <title>a &lt; b</title>
            <rect width="800" height="136" fill="#ffffff"/>
            <text x="12" y="22" font-size="15" fill="#222222">a &lt; b</text>
            <rect x="250" y="36" width="11" height="11" fill="#1f6f8b"/>
            <text x="267" y="46" fill="#222222">one</text>
            <line x1="250.0" y1="60" x2="250.0" y2="110" stroke="#dddddd"/>
            <text x="250.0" y="126" text-anchor="middle" fill="#666666">0 %</text>
            <line x1="372.5" y1="60" x2="372.5" y2="110" stroke="#dddddd"/>
            <text x="372.5" y="126" text-anchor="middle" fill="#666666">25 %</text>
            <line x1="495.0" y1="60" x2="495.0" y2="110" stroke="#dddddd"/>
            <text x="495.0" y="126" text-anchor="middle" fill="#666666">50 %</text>
            <line x1="617.5" y1="60" x2="617.5" y2="110" stroke="#dddddd"/>
            <text x="617.5" y="126" text-anchor="middle" fill="#666666">75 %</text>
            <line x1="740.0" y1="60" x2="740.0" y2="110" stroke="#dddddd"/>
            <text x="740.0" y="126" text-anchor="middle" fill="#666666">100 %</text>
            <text x="242" y="76" text-anchor="end" fill="#222222">group</text>
            <rect x="250" y="66" width="245.0" height="11" fill="#1f6f8b"/>
            <text x="499.0" y="76" font-size="11" fill="#222222">50 %</text>
            <text x="242" y="98" text-anchor="end" fill="#222222">group</text>
            </svg>
        "##]].assert_eq(&chart(Scale::Percent, &[Some(0.5), None]).to_svg());
    }

    #[test]
    fn lines_are_round_and_reach_the_largest_value() {
        for (largest, grid) in [
            (0.3, (1.0, 1.0)),
            (8.0, (1.0, 8.0)),
            (8.1, (2.0, 10.0)),
            (17.0, (5.0, 20.0)),
            (250.0, (50.0, 250.0)),
        ] {
            assert_eq!(chart(Scale::Times, &[Some(largest)]).grid(), grid);
        }
        assert!(chart(Scale::Times, &[None]).is_empty());
        assert!(!chart(Scale::Times, &[None, Some(1.0)]).is_empty());
        // A share over 1 ends where the chart does.
        assert!(chart(Scale::Percent, &[Some(1.7)]).to_svg().contains("width=\"490.0\""));
    }
}
