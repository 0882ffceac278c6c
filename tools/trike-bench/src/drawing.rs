//! An SVG drawing that is legible on light and on dark pages: it brings its own background, and all its colors follow
//! `prefers-color-scheme`.

use std::fmt::Write as _;

use crate::svg::escaped;

/// A drawing in pixels, from the top left corner.
pub(crate) struct Drawing {
    width: usize,
    height: usize,
    title: String,
    body: String,
}

/// Role of a color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    Card,
    Text,
    Muted,
    Grid,
    Band,
    /// Trike, or the first of several series.
    First,
    Second,
    Third,
    /// Other programs.
    Other,
}

impl Ink {
    const ALL: [Self; 9] = [
        Self::Card,
        Self::Text,
        Self::Muted,
        Self::Grid,
        Self::Band,
        Self::First,
        Self::Second,
        Self::Third,
        Self::Other,
    ];

    /// Name in the style sheet, color on light pages, color on dark pages.
    const fn style(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Card => ("card", "#ffffff", "#151b23"),
            Self::Text => ("text", "#1f2328", "#e6edf3"),
            Self::Muted => ("muted", "#59636e", "#9aa4af"),
            Self::Grid => ("grid", "#d8dee4", "#3a424c"),
            Self::Band => ("band", "#f2f5f8", "#1d252f"),
            Self::First => ("first", "#0b7285", "#3bc9db"),
            Self::Second => ("second", "#b54708", "#ff9f50"),
            Self::Third => ("third", "#6941c6", "#b79df7"),
            Self::Other => ("other", "#9aa5b1", "#6b7785"),
        }
    }
}

/// Size, weight and anchor of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Font {
    pub size: usize,
    pub bold: bool,
    /// `start`, `middle` or `end`.
    pub anchor: &'static str,
}

impl Font {
    /// A regular font, anchored at the start.
    pub(crate) const fn of(size: usize) -> Self {
        Self { size, bold: false, anchor: "start" }
    }

    pub(crate) const fn bold(self) -> Self {
        Self { bold: true, ..self }
    }

    pub(crate) const fn anchored(self, anchor: &'static str) -> Self {
        Self { anchor, ..self }
    }
}

impl Drawing {
    /// An empty drawing; `title` is also its alternative text.
    pub(crate) fn new(width: usize, height: usize, title: &str) -> Self {
        let mut this = Self { width, height, title: escaped(title), body: String::new() };
        this.text(24.0, 36.0, Font::of(19).bold(), Ink::Text, title);
        this
    }

    pub(crate) fn text(&mut self, x: f64, y: f64, font: Font, ink: Ink, text: &str) {
        let (class, color, _) = ink.style();
        let weight = if font.bold { " font-weight=\"bold\"" } else { "" };
        let anchor =
            if font.anchor == "start" { String::new() } else { format!(" text-anchor=\"{}\"", font.anchor) };
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{}\"{weight}{anchor} class=\"f-{class}\" fill=\"{color}\">{}</text>",
            font.size,
            escaped(text)
        );
    }

    pub(crate) fn bar(&mut self, [x, y]: [f64; 2], width: f64, height: f64, ink: Ink) {
        let (class, color, _) = ink.style();
        let _ = writeln!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\" class=\"f-{class}\" fill=\"{color}\"/>"
        );
    }

    pub(crate) fn dot(&mut self, [x, y]: [f64; 2], ink: Ink) {
        let (class, color, _) = ink.style();
        let _ = writeln!(
            self.body,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" class=\"f-{class}\" fill=\"{color}\"/>"
        );
    }

    pub(crate) fn ring(&mut self, [x, y]: [f64; 2], ink: Ink) {
        let (class, color, _) = ink.style();
        let _ = writeln!(
            self.body,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"8\" fill=\"none\" stroke-width=\"3\" class=\"s-{class}\" stroke=\"{color}\"/>"
        );
    }

    pub(crate) fn line(&mut self, points: &[[f64; 2]], width: f64, ink: Ink) {
        let (class, color, _) = ink.style();
        let points: Vec<String> = points.iter().map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            self.body,
            "<polyline points=\"{}\" fill=\"none\" stroke-width=\"{width}\" class=\"s-{class}\" stroke=\"{color}\"/>",
            points.join(" ")
        );
    }

    /// The drawing as an SVG file.
    pub(crate) fn to_svg(&self) -> String {
        let Self { width, height, title, body } = self;
        let (class, color, _) = Ink::Card.style();
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             font-family=\"-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif\">\n\
             <title>{title}</title>\n<style>\n@media (prefers-color-scheme: dark) {{\n"
        );
        for ink in Ink::ALL {
            let (class, _, dark) = ink.style();
            let _ = writeln!(svg, ".f-{class} {{ fill: {dark} }} .s-{class} {{ stroke: {dark} }}");
        }
        let _ = writeln!(
            svg,
            "}}\n</style>\n<rect width=\"{width}\" height=\"{height}\" rx=\"8\" class=\"f-{class}\" fill=\"{color}\"/>"
        );
        svg + body + "</svg>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_color_has_a_dark_variant_and_texts_are_escaped() {
        let mut drawing = Drawing::new(100, 50, "a < b");
        drawing.dot([1.0, 2.0], Ink::First);
        drawing.line(&[[0.0, 0.0], [1.5, 2.0]], 2.0, Ink::Grid);
        let svg = drawing.to_svg();
        assert!(svg.contains("<title>a &lt; b</title>") && !svg.contains("a < b"), "{svg}");
        assert!(svg.contains("points=\"0.0,0.0 1.5,2.0\"") && svg.contains("cx=\"1.0\" cy=\"2.0\""), "{svg}");
        for ink in Ink::ALL {
            let (class, light, dark) = ink.style();
            assert!(svg.contains(&format!(".f-{class} {{ fill: {dark} }}")) && light != dark, "{ink:?}");
        }
    }
}
