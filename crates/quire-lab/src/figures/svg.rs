//! A drawing, and axes for it.

use std::fmt::Write;

use crate::report::number;

/// How wide a drawing is.
pub const WIDTH: f64 = 440.0;
/// How many colours the page has.
pub const COLOURS: usize = 8;

/// Text that may stand in HTML, SVG and other XML, also in an attribute.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML does not allow them.
            c if c.is_control() || c == '\u{fffe}' || c == '\u{ffff}' => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

/// So many letters of a name fit into a drawing, whatever they are.
const LETTERS: usize = 48;
/// How high a line of a name is.
pub const LINE: f64 = 15.0;

/// A name in lines that fit into a drawing; nothing of it is left out. At least one line.
#[must_use]
pub fn lines(name: &str) -> Vec<String> {
    let chars: Vec<char> = name.chars().collect();
    let lines = chars.chunks(LETTERS).map(|line| line.iter().collect());
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() {
        vec![String::new()]
    } else {
        lines
    }
}

/// The colour of the n-th thing.
#[must_use]
pub fn colour(n: usize) -> String {
    format!("var(--c{})", n % COLOURS)
}

/// A drawing that grows.
#[derive(Clone, Debug)]
pub struct Svg {
    height: f64,
    title: String,
    description: String,
    body: String,
}

impl Svg {
    /// An empty drawing.
    #[must_use]
    pub fn new(height: f64, title: &str, description: &str) -> Svg {
        Svg {
            height,
            title: title.to_owned(),
            description: description.to_owned(),
            body: String::new(),
        }
    }

    /// A line from one point to another, of a class of the page.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = write!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    /// A rectangle that is filled with the n-th colour, with a text for those who point at
    /// it.
    pub fn bar(&mut self, at: (f64, f64), size: (f64, f64), n: usize, tip: &str) {
        let ((x, y), (width, height)) = (at, size);
        let _ = write!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{}\"><title>{}</title></rect>",
            colour(n),
            escape(tip)
        );
    }

    /// A plane behind what follows.
    pub fn shade(&mut self, at: (f64, f64), size: (f64, f64)) {
        let ((x, y), (width, height)) = (at, size);
        let _ = write!(
            self.body,
            "<rect class=\"shade\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        );
    }

    /// Dots in the n-th colour.
    pub fn dots(&mut self, points: &[(f64, f64)], n: usize) {
        if points.is_empty() {
            return;
        }
        let _ = write!(
            self.body,
            "<path class=\"dots\" stroke=\"{}\" d=\"",
            colour(n)
        );
        for (x, y) in points {
            let _ = write!(self.body, "M{x:.1} {y:.1}h0");
        }
        self.body.push_str("\"/>");
    }

    /// A line through points in the n-th colour; `dashed` tells it from others of its
    /// colour.
    pub fn path(&mut self, points: &[(f64, f64)], n: usize, dashed: bool) {
        let class = if dashed { "curve dashed" } else { "curve" };
        let _ = write!(
            self.body,
            "<path class=\"{class}\" stroke=\"{}\" d=\"",
            colour(n)
        );
        for (n, (x, y)) in points.iter().enumerate() {
            let command = if n == 0 { 'M' } else { 'L' };
            let _ = write!(self.body, "{command}{x:.1} {y:.1}");
        }
        self.body.push_str("\"/>");
    }

    /// Text; `anchor` is `start`, `middle` or `end`.
    pub fn text(&mut self, at: (f64, f64), anchor: &str, text: &str) {
        let (x, y) = at;
        let _ = write!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
            escape(text)
        );
    }

    /// A name from its first line on, which stands there.
    pub fn name(&mut self, (x, y): (f64, f64), name: &str) {
        for (n, line) in lines(name).iter().enumerate() {
            self.text((x, y + n as f64 * LINE), "start", line);
        }
    }

    /// The drawing. `id` is told by nothing else of the page.
    #[must_use]
    pub fn finish(self, id: &str) -> String {
        let Svg {
            height,
            title,
            description,
            body,
        } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" \
             role=\"img\" aria-labelledby=\"{id}t {id}d\"><title id=\"{id}t\">{}</title>\
             <desc id=\"{id}d\">{}</desc>{body}</svg>",
            escape(&title),
            escape(&description)
        )
    }
}

/// How values lie along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    log: bool,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis on which values from `low` to `high` lie between the places `from` and `to`.
    /// Ends that agree are moved apart.
    #[must_use]
    pub fn linear((low, high): (f64, f64), (from, to): (f64, f64)) -> Axis {
        let room = match high - low {
            width if width > 0.0 => width * 0.04,
            _ if low == 0.0 => 1.0,
            _ => low.abs() * 0.1,
        };
        Axis {
            low: low - room,
            high: high + room,
            log: false,
            from,
            to,
        }
    }

    /// The same from zero on.
    #[must_use]
    pub fn from_zero(high: f64, (from, to): (f64, f64)) -> Axis {
        Axis {
            low: 0.0,
            high: if high > 0.0 { high * 1.04 } else { 1.0 },
            log: false,
            from,
            to,
        }
    }

    /// A logarithmic axis; the values are above zero.
    #[must_use]
    pub fn log((low, high): (f64, f64), (from, to): (f64, f64)) -> Axis {
        let (low, high) = (low.max(f64::MIN_POSITIVE), high.max(f64::MIN_POSITIVE));
        let room = (high / low).powf(0.04).max(1.05);
        Axis {
            low: low / room,
            high: high * room,
            log: true,
            from,
            to,
        }
    }

    /// Where a value lies.
    #[must_use]
    pub fn place(&self, value: f64) -> f64 {
        let part = match self.log {
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.from + part * (self.to - self.from)
    }

    /// Values to be marked: round ones, a handful.
    #[must_use]
    pub fn ticks(&self) -> Vec<f64> {
        if self.log {
            return self.log_ticks();
        }
        let rough = (self.high - self.low) / 4.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .find(|s| s * power >= rough);
        let step = step.unwrap_or(10.0) * power;
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        // The values may be too close for a step to make a difference.
        (first..=last).take(12).map(|n| n as f64 * step).collect()
    }

    fn log_ticks(&self) -> Vec<f64> {
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        let steps: &[f64] = match last - first {
            ..=1 => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
            2 => &[1.0, 2.0, 5.0],
            3 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let all = (first..=last).flat_map(|power| steps.iter().map(move |s| s * 10f64.powi(power)));
        all.filter(|tick| (self.low..=self.high).contains(tick))
            .collect()
    }

    /// The ticks, and the factor and the name of the unit that suits the largest.
    fn scaled(&self, unit: &str) -> (Vec<f64>, f64, String) {
        let ticks = self.ticks();
        let most = |most: f64, tick: &f64| most.max(tick.abs());
        let (factor, name) = number::scale(ticks.iter().fold(0.0, most), unit);
        (ticks, factor, name)
    }

    /// Marks the values of a vertical axis, with lines as far as `right`. They are counted
    /// in the unit that is returned.
    pub fn draw_left(&self, svg: &mut Svg, unit: &str, right: f64, left: f64) -> String {
        let (ticks, factor, name) = self.scaled(unit);
        for tick in ticks {
            let y = self.place(tick);
            svg.line((left, y), (right, y), "grid");
            svg.text((left - 4.0, y + 4.0), "end", &short(tick / factor));
        }
        name
    }

    /// Marks the values of a horizontal axis, with lines from `top` to `bottom`.
    pub fn draw_below(&self, svg: &mut Svg, unit: &str, top: f64, bottom: f64) -> String {
        let (ticks, factor, name) = self.scaled(unit);
        for tick in ticks {
            let x = self.place(tick);
            svg.line((x, top), (x, bottom), "grid");
            svg.text((x, bottom + 14.0), "middle", &short(tick / factor));
        }
        name
    }
}

/// A number at a mark, without zeros that say nothing.
fn short(value: f64) -> String {
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text {
        "-0" | "" => "0".to_owned(),
        text if text.len() > 8 => number::plain(value),
        text => text.to_owned(),
    }
}

/// The least and the largest value; nothing without values.
#[must_use]
pub fn range(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((low, high)) => Some((low.min(value), high.max(value))),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_cannot_break_out() {
        assert_eq!(
            escape("<a b='c'>&\"\n"),
            "&lt;a b=&#39;c&#39;&gt;&amp;&quot; "
        );
        assert_eq!(lines("abc"), ["abc"]);
        assert_eq!(lines(""), [""]);
        let long = "a name ".repeat(20);
        assert_eq!(lines(&long).concat(), long);
        assert!(
            lines(&long)
                .iter()
                .all(|line| line.chars().count() <= LETTERS)
        );
    }

    proptest! {
        #[test]
        fn every_value_lies_on_the_axis(low in -1e12f64..1e12, width in 0f64..1e12, part in 0f64..=1.0) {
            let axis = Axis::linear((low, low + width), (10.0, 110.0));
            let place = axis.place(low + width * part);
            prop_assert!((9.9..=110.1).contains(&place), "{place}");
            let ticks = axis.ticks();
            prop_assert!(ticks.len() <= 12, "{ticks:?}");
            for tick in ticks {
                prop_assert!((9.0..=111.0).contains(&axis.place(tick)));
            }
        }

        #[test]
        fn so_it_does_on_a_logarithmic_one(power in -12f64..12.0, more in 0f64..12.0, part in 0f64..=1.0) {
            let (low, high) = (10f64.powf(power), 10f64.powf(power + more));
            let axis = Axis::log((low, high), (10.0, 110.0));
            let place = axis.place(10f64.powf(power + more * part));
            prop_assert!((9.9..=110.1).contains(&place), "{place}");
            prop_assert!(axis.ticks().len() <= 30);
        }
    }
}
