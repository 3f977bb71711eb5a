//! Line charts as SVG.
//!
//! A chart is drawn in [`WIDTH`] by [`HEIGHT`] units, which are pixels on a phone; larger screens scale it. Colours are CSS
//! classes, which the document defines for light and dark. Values that are not finite, and on a logarithmic axis those that
//! are not above 0, have no point.

use std::fmt::Write as _;

use crate::time::time;

pub(crate) const WIDTH: f64 = 420.0;
pub(crate) const HEIGHT: f64 = 250.0;

/// The edges of the plot within the chart.
const LEFT: f64 = 52.0;
const RIGHT: f64 = WIDTH - 12.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = HEIGHT - 38.0;

/// The number of line colours.
const COLOURS: usize = 5;

/// The number of marks of a linear axis, at most.
const MARKS: f64 = 5.0;

/// How values become places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// From 0 on.
    Linear,
    /// By powers of ten.
    Log,
    /// Of quantiles: each further nine has the same length.
    Nines,
}

/// How values are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// With `k` and `M` for thousands and millions.
    Number,
    /// In the unit that suits it.
    Microseconds,
    /// A number of seconds.
    Seconds,
    /// A part of 1, in per cent.
    Quantile,
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Its name below the plot.
    pub title: String,
    /// How values become places.
    pub scale: Scale,
    /// How marks are written.
    pub unit: Unit,
}

/// A line with its name.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Values of both axes.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The heading.
    pub title: String,
    /// The axis from left to right.
    pub x: Axis,
    /// The axis from bottom to top.
    pub y: Axis,
    /// The first is on top.
    pub lines: Vec<Line>,
    /// A place on the x axis with its name.
    pub mark: Option<(f64, String)>,
}

impl Axis {
    /// Returns an axis.
    pub fn new(title: &str, scale: Scale, unit: Unit) -> Axis {
        Axis { title: title.to_owned(), scale, unit }
    }

    /// Returns the place of a value before it is scaled to the plot.
    fn place(&self, value: f64) -> Option<f64> {
        let place = match self.scale {
            Scale::Linear => value,
            Scale::Log => value.log10(),
            Scale::Nines => -(1.0 - value).max(1e-9).log10(),
        };
        place.is_finite().then_some(place)
    }

    fn write(&self, value: f64) -> String {
        match self.unit {
            Unit::Microseconds => short(&time((value * 1e3) as u64)),
            Unit::Seconds => format!("{value} s"),
            Unit::Quantile => format!("{}", (value * 100.0 * 1e6).round() / 1e6),
            Unit::Number => match value.abs() {
                ..1e3 => format!("{value}"),
                ..1e6 => format!("{}k", value / 1e3),
                _ => format!("{}M", value / 1e6),
            },
        }
    }

    /// Returns the range of places for these values, and the values at which the axis has marks.
    fn range(&self, values: impl Iterator<Item = f64>) -> ((f64, f64), Vec<f64>) {
        let places: Vec<f64> = values.filter_map(|value| self.place(value)).collect();
        let low = places.iter().copied().fold(f64::INFINITY, f64::min);
        let high = places.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if low > high {
            return ((0.0, 1.0), Vec::new());
        }
        match self.scale {
            Scale::Linear => {
                let (low, high) = (low.min(0.0), if high > low.min(0.0) { high } else { low.min(0.0) + 1.0 });
                let raw = (high - low) / MARKS;
                let power = 10f64.powf(raw.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= raw);
                let step = step.unwrap_or(power * 10.0);
                let top = (high / step).ceil() * step;
                let bottom = (low / step).floor() * step;
                let count = ((top - bottom) / step).round() as usize;
                let marks = (0..=count).map(|number| (bottom + number as f64 * step) * 1e6 / 1e6).map(rounded);
                ((bottom, top), marks.collect())
            }
            Scale::Log => {
                let (low, high) =
                    (low.floor(), if high.ceil() > low.floor() { high.ceil() } else { low.floor() + 1.0 });
                let step = ((high - low) / MARKS).ceil().max(1.0) as usize;
                let marks = (low as i32..=high as i32).step_by(step).map(|power| 10f64.powi(power));
                ((low, high), marks.collect())
            }
            Scale::Nines => {
                let high = high.ceil().max(1.0);
                let marks = (0..=high as i32).map(|nines| rounded(1.0 - 10f64.powi(-nines)));
                ((0.0, high), marks.collect())
            }
        }
    }
}

/// Returns a number without the last digits, which sums of fractions leave.
fn rounded(value: f64) -> f64 {
    (value * 1e9).round() / 1e9
}

/// Returns a time without zeros behind the point.
fn short(text: &str) -> String {
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text.to_owned(),
    }
}

/// Returns text in which the characters of markup are escaped.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() && c != '\n' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

impl Chart {
    /// Returns the chart as an SVG element, `top` below that of the document.
    pub(crate) fn svg(&self, top: Option<f64>) -> String {
        let place = top.map_or(String::new(), |top| format!(" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\""));
        let mut out = format!(
            "<svg{place} viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\" xmlns=\"http://www.w3.org/2000/svg\">\n\
             <text class=\"title\" x=\"4\" y=\"16\">{0}</text>\n",
            escaped(&self.title)
        );
        let points = || self.lines.iter().flat_map(|line| line.points.iter());
        let (xs, x_marks) = self.x.range(points().map(|point| point.0));
        let (ys, y_marks) = self.y.range(points().map(|point| point.1));
        let x_of = |value: f64| self.x.place(value).map(|place| LEFT + (place - xs.0) / (xs.1 - xs.0) * (RIGHT - LEFT));
        let y_of =
            |value: f64| self.y.place(value).map(|place| BOTTOM - (place - ys.0) / (ys.1 - ys.0) * (BOTTOM - TOP));
        for value in y_marks {
            let Some(y) = y_of(value) else { continue };
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/><text class=\"mark\" x=\"{}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                LEFT - 5.0,
                y + 4.0,
                escaped(&self.y.write(value))
            );
        }
        for value in x_marks {
            let Some(x) = x_of(value) else { continue };
            // The last mark ends at the edge of the plot, so that it is not cut off.
            let anchor = if x > RIGHT - 12.0 { "end" } else { "middle" };
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{BOTTOM}\"/><text class=\"mark\" x=\"{x:.1}\" y=\"{}\" \
                 text-anchor=\"{anchor}\">{}</text>",
                BOTTOM + 15.0,
                escaped(&self.x.write(value))
            );
        }
        let _ = writeln!(
            out,
            "<text class=\"mark\" x=\"{RIGHT}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            BOTTOM + 31.0,
            escaped(&self.x.title)
        );
        self.legend(&mut out);
        // The first line is on top of the others.
        for (number, line) in self.lines.iter().enumerate().rev() {
            let mut path = String::new();
            for (x, y) in &line.points {
                let (Some(x), Some(y)) = (x_of(*x), y_of(*y)) else { continue };
                let _ = write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { 'M' } else { 'L' });
            }
            // A line of one point is a dot.
            if !path.contains('L') && !path.is_empty() {
                path.push_str("h.1");
            }
            let _ = writeln!(out, "<path class=\"line c{}\" d=\"{path}\"/>", number % COLOURS);
        }
        if let Some((value, name)) = &self.mark
            && let Some(x) = x_of(*value)
        {
            let (anchor, at) = if x > (LEFT + RIGHT) / 2.0 { ("end", x - 4.0) } else { ("start", x + 4.0) };
            let _ = writeln!(
                out,
                "<path class=\"knee\" d=\"M{x:.1} {TOP}V{BOTTOM}\"/><text class=\"mark\" x=\"{at:.1}\" y=\"{}\" \
                 text-anchor=\"{anchor}\">{}</text>",
                TOP + 11.0,
                escaped(name)
            );
        }
        out.push_str("</svg>\n");
        out
    }

    fn legend(&self, out: &mut String) {
        let mut x = LEFT;
        for (number, line) in self.lines.iter().enumerate() {
            let colour = number % COLOURS;
            let _ = writeln!(
                out,
                "<path class=\"line c{colour}\" d=\"M{x:.0} 30h12\"/><text class=\"mark\" x=\"{:.0}\" y=\"34\">{}</text>",
                x + 16.0,
                escaped(&line.name)
            );
            x += 26.0 + 6.6 * line.name.chars().count() as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, points: Vec<(f64, f64)>) -> String {
        let chart = Chart {
            title: "a < b".to_owned(),
            x: Axis::new("time", Scale::Linear, Unit::Seconds),
            y: Axis::new("", scale, Unit::Microseconds),
            lines: vec![Line { name: "p99".to_owned(), points }],
            mark: Some((5.0, "knee".to_owned())),
        };
        chart.svg(None)
    }

    #[test]
    fn marks_are_round_numbers() {
        let marks = |scale, unit, low: f64, high: f64| {
            let axis = Axis::new("", scale, unit);
            let (_, marks) = axis.range([low, high].into_iter());
            marks.into_iter().map(|mark| axis.write(mark)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(marks(Scale::Linear, Unit::Number, 3.0, 9400.0), "0 2k 4k 6k 8k 10k");
        assert_eq!(marks(Scale::Linear, Unit::Number, 0.0, 0.0), "0 0.2 0.4 0.6 0.8 1");
        assert_eq!(marks(Scale::Linear, Unit::Seconds, 0.0, 29.0), "0 s 10 s 20 s 30 s");
        assert_eq!(marks(Scale::Log, Unit::Microseconds, 80.0, 2e6), "10 µs 1 ms 100 ms 10 s");
        assert_eq!(marks(Scale::Nines, Unit::Quantile, 0.0, 0.9995), "0 90 99 99.9 99.99");
    }

    #[test]
    fn any_points_are_drawn() {
        let strange = vec![(0.0, 0.0), (1.0, f64::NAN), (2.0, f64::INFINITY), (3.0, 1e12), (10.0, 1.0)];
        for scale in [Scale::Linear, Scale::Log] {
            for points in [Vec::new(), vec![(5.0, 7.0)], vec![(0.0, 3.0); 4], strange.clone()] {
                let svg = chart(scale, points);
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"), "{svg}");
            }
        }
        assert!(chart(Scale::Linear, vec![(0.0, 1.0), (10.0, 2.0)]).contains(">knee</text>"));
    }
}
