//! PlotLine plots as SVG. Colors are classes, which the page's style sheet defines for light and dark.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 44.0;
/// Marks on a linear axis, at most.
const TICKS_MAX: f64 = 6.0;
/// Colors of the style sheet; further lines begin again.
const COLORS: usize = 4;

/// An axis with its range and the positions of its marks.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    pub(super) label: String,
    pub(super) max: f64,
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From zero to a round number at or above `max`.
    pub(super) fn linear(label: &str, max: f64, text: impl Fn(f64) -> String) -> Self {
        let step = round_step(max);
        let count = (max / step).ceil().max(1.0);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let ticks = (0..=count as u32).map(|at| f64::from(at) * step).map(|at| (at, text(at))).collect();
        Self { label: label.to_owned(), max: count * step, ticks }
    }

    /// Quantiles up to `max` below 1, with the same width for each further nine.
    pub(super) fn quantiles(label: &str, max: f64) -> Self {
        let names = ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %", "99.99999 %"];
        let end = nines(max).clamp(1.0, 7.0);
        let ticks = (0_u8..).map(f64::from).zip(names).take_while(|(at, _)| *at <= end);
        let mut ticks: Vec<_> = ticks.map(|(at, name)| (at, name.to_owned())).collect();
        ticks.push((nines(0.5), "50 %".to_owned()));
        Self { label: label.to_owned(), max: end, ticks }
    }

    fn share(&self, value: f64) -> f64 {
        if self.max > 0.0 { (value / self.max).clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// The position of a quantile: the number of its nines.
pub(super) fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).max(1e-12).log10()
}

/// 1, 2 or 5 times a power of ten, so that at most [`TICKS_MAX`] steps reach `max`.
fn round_step(max: f64) -> f64 {
    if !(max.is_finite() && max > 0.0) {
        return 1.0;
    }
    let raw = max / TICKS_MAX;
    let power = 10_f64.powf(raw.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= raw * 0.999_999).unwrap_or(power * 10.0)
}

#[derive(Debug, Clone)]
pub(super) struct PlotLine {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

#[derive(Debug, Clone)]
pub(super) struct Plot {
    /// For screen readers.
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<PlotLine>,
}

impl Plot {
    /// The plot with its legend, as one SVG element.
    pub(super) fn svg(&self) -> String {
        let legend = if self.lines.len() > 1 { 22.0 * self.lines.len() as f64 } else { 0.0 };
        let height = HEIGHT + legend;
        let title = escaped(&self.title);
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\" xmlns=\"http://www.w3.org/2000/svg\"><title>{title}</title>\n"
        );
        self.axes(&mut out);
        for (at, line) in self.lines.iter().enumerate() {
            let color = at % COLORS;
            let points: Vec<_> =
                line.points.iter().map(|(x, y)| format!("{:.1},{:.1}", self.x(*x), self.y(*y))).collect();
            // Writing to a string cannot fail.
            let _ = writeln!(out, "<polyline class=\"line c{color}\" points=\"{}\"/>", points.join(" "));
            if legend > 0.0 {
                let y = HEIGHT + 22.0 * at as f64 + 8.0;
                let _ = writeln!(out, "<path class=\"line c{color}\" d=\"M{LEFT} {y}h24\"/>");
                let (x, y) = (LEFT + 32.0, y + 4.0);
                let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\">{}</text>", escaped(&line.name));
            }
        }
        out.push_str("</svg>\n");
        out
    }

    fn axes(&self, out: &mut String) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for (at, text) in &self.y.ticks {
            let y = self.y(*at);
            let _ = writeln!(out, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>");
            let (x, y) = (LEFT - 8.0, y + 4.0);
            let _ = writeln!(out, "<text class=\"end\" x=\"{x}\" y=\"{y:.1}\">{}</text>", escaped(text));
        }
        for (at, text) in &self.x.ticks {
            let (x, y) = (self.x(*at), bottom + 18.0);
            let _ = writeln!(out, "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom}\"/>");
            let _ = writeln!(out, "<text class=\"middle\" x=\"{x:.1}\" y=\"{y}\">{}</text>", escaped(text));
        }
        let (x, y) = ((LEFT + right) / 2.0, bottom + 38.0);
        let _ = writeln!(out, "<text class=\"middle\" x=\"{x}\" y=\"{y}\">{}</text>", escaped(&self.x.label));
        let (x, y) = (14.0, (TOP + bottom) / 2.0);
        let label = escaped(&self.y.label);
        let _ = writeln!(out, "<text class=\"middle\" transform=\"translate({x} {y}) rotate(-90)\">{label}</text>");
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.x.share(value) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.share(value) * (HEIGHT - TOP - BOTTOM)
    }
}

/// Text for XML and HTML.
pub(super) fn escaped(text: &str) -> String {
    text.chars()
        .filter(|letter| !letter.is_control())
        .map(|letter| match letter {
            '&' => "&amp;".to_owned(),
            '<' => "&lt;".to_owned(),
            '>' => "&gt;".to_owned(),
            '"' => "&quot;".to_owned(),
            '\'' => "&#39;".to_owned(),
            letter => letter.to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axis_ends_at_a_round_number() {
        for (max, end, step) in
            [(9.5, 10.0, 2.0), (1_000.0, 1_000.0, 200.0), (0.07, 0.08, 0.02), (0.0, 1.0, 1.0), (f64::NAN, 1.0, 1.0)]
        {
            let axis = Axis::linear("y", max, |at| at.to_string());
            assert!((axis.max - end).abs() < 1e-9, "{max}: {}", axis.max);
            assert!((axis.ticks[1].0 - step).abs() < 1e-9, "{max}: {:?}", axis.ticks);
            assert!(axis.ticks.len() <= TICKS_MAX as usize + 2, "{max}: {:?}", axis.ticks);
        }
    }

    #[test]
    fn quantile_axis_has_a_mark_for_each_nine() {
        let axis = Axis::quantiles("x", 0.9995);
        let names: Vec<_> = axis.ticks.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["0 %", "90 %", "99 %", "99.9 %", "50 %"]);
        assert!((nines(0.99) - 2.0).abs() < 1e-9 && nines(1.0) == 12.0);
    }

    #[test]
    fn plot_stays_inside_its_frame_and_escapes_names() {
        let axis = |max| Axis::linear("a <b>", max, |at| at.to_string());
        let line =
            |name: &str| PlotLine { name: name.to_owned(), points: vec![(-1.0, 5.0), (0.5, f64::NAN), (99.0, 1e12)] };
        let plot = Plot { title: "t\"&".to_owned(), x: axis(1.0), y: axis(1.0), lines: vec![line("<1>"), line("2")] };
        let svg = plot.svg();
        assert!(svg.contains("&lt;1&gt;") && svg.contains("t&quot;&amp;") && svg.contains("a &lt;b&gt;"), "{svg}");
        let points: Vec<_> = svg.split("points=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(points.len(), 2);
        for pair in points[0].split(' ').filter(|pair| !pair.contains("NaN")) {
            let (x, y) = pair.split_once(',').unwrap();
            assert!(
                (LEFT..=WIDTH - RIGHT).contains(&x.parse().unwrap()) && (TOP..=HEIGHT).contains(&y.parse().unwrap()),
                "{pair}"
            );
        }
    }
}
