//! Plots: maps values to coordinates, drawn by the template `plot.svg`.

use serde::Serialize;

/// Offsets of axis labels, in pixels.
const GAPS: (f64, f64) = (6.0, 16.0);

/// A plot of lines and points, with a horizontal grid line per tick of its y axis.
#[derive(Clone, Debug, Default)]
pub struct Plot {
    /// The `id` of the figure.
    pub id: String,
    /// Description for screen readers.
    pub label: String,
    /// Caption above the plot.
    pub caption: String,
    /// Width and height, in the units of a 12-pixel font: a narrow screen shows 440 nearly unscaled.
    pub size: (f64, f64),
    /// Margins: left, right, top, bottom.
    pub margins: (f64, f64, f64, f64),
    /// From left to right.
    pub x: Axis,
    /// From bottom to top.
    pub y: Axis,
    /// Lines; non-finite points are left out.
    pub lines: Vec<Line>,
    /// Points; non-finite ones are left out.
    pub points: Vec<Point>,
}

/// A range of values with its labels.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// Value at the start.
    pub from: f64,
    /// Value at the end.
    pub to: f64,
    /// Values with their labels.
    pub ticks: Vec<(f64, String)>,
    /// Name of the quantity; x axis only.
    pub name: String,
}

/// A line through values.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// The values: x, y.
    pub points: Vec<(f64, f64)>,
    /// Whether it is dashed.
    pub dashed: bool,
}

/// A point with a name.
#[derive(Clone, Debug, Default)]
pub struct Point {
    /// The values: x, y.
    pub at: (f64, f64),
    /// Label next to the point; may be empty.
    pub name: String,
    /// Tooltip; may be empty.
    pub title: String,
    /// Whether the name is to its lower left, instead of its upper right.
    pub left: bool,
}

/// Input of the template: all numbers are formatted.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Drawn {
    id: String,
    label: String,
    caption: String,
    width: String,
    height: String,
    /// Start and end of the grid lines.
    across: (String, String),
    x_ticks: Vec<Text>,
    y_ticks: Vec<Tick>,
    x_name: Text,
    lines: Vec<Stroke>,
    points: Vec<Dot>,
}

#[derive(Clone, Debug, Serialize)]
struct Text {
    x: String,
    y: String,
    text: String,
}

#[derive(Clone, Debug, Serialize)]
struct Tick {
    at: String,
    label: Text,
}

#[derive(Clone, Debug, Serialize)]
struct Stroke {
    places: String,
    dashed: bool,
}

#[derive(Clone, Debug, Serialize)]
struct Dot {
    x: String,
    y: String,
    title: String,
    anchor: &'static str,
    name: Text,
}

fn text(x: f64, y: f64, text: &str) -> Text {
    Text { x: pixels(x), y: pixels(y), text: text.to_owned() }
}

fn pixels(at: f64) -> String {
    format!("{at:.1}")
}

impl Plot {
    /// Coordinates of all elements; `None` without a finite point.
    pub(crate) fn draw(&self) -> Option<Drawn> {
        let (left, right, top, bottom) = self.margins;
        let (end, floor) = (self.size.0 - right, self.size.1 - bottom);
        let x = |value: f64| left + (value - self.x.from) / (self.x.to - self.x.from) * (end - left);
        let y = |value: f64| floor + (value - self.y.from) / (self.y.to - self.y.from) * (top - floor);
        let place = |&(at, value): &(f64, f64)| {
            let (at, value) = (x(at), y(value));
            (at.is_finite() && value.is_finite()).then_some((at, value))
        };
        let stroke = |line: &Line| Stroke {
            places: Vec::from_iter(
                line.points.iter().filter_map(place).map(|(x, y)| format!("{x:.1},{y:.1}")),
            )
            .join(" "),
            dashed: line.dashed,
        };
        let dot = |point: &Point| {
            let (at, value) = place(&point.at)?;
            let (anchor, dx, dy) = if point.left { ("end", -7.0, 14.0) } else { ("start", 7.0, -5.0) };
            Some(Dot {
                x: pixels(at),
                y: pixels(value),
                title: point.title.clone(),
                anchor,
                name: text(at + dx, value + dy, &point.name),
            })
        };
        let lines: Vec<Stroke> =
            self.lines.iter().map(stroke).filter(|line| !line.places.is_empty()).collect();
        let points: Vec<Dot> = self.points.iter().filter_map(dot).collect();
        if lines.is_empty() && points.is_empty() {
            return None;
        }
        let y_tick = |(value, label): &(f64, String)| Tick {
            at: pixels(y(*value)),
            label: text(left - GAPS.0, y(*value) + 4.0, label),
        };
        Some(Drawn {
            id: self.id.clone(),
            label: self.label.clone(),
            caption: self.caption.clone(),
            width: self.size.0.to_string(),
            height: self.size.1.to_string(),
            across: (pixels(left), pixels(end)),
            x_ticks: self
                .x
                .ticks
                .iter()
                .map(|(value, label)| text(x(*value), floor + GAPS.1, label))
                .collect(),
            y_ticks: self.y.ticks.iter().map(y_tick).collect(),
            x_name: text((left + end) / 2.0, self.size.1 - GAPS.0, &self.x.name),
            lines,
            points,
        })
    }
}
