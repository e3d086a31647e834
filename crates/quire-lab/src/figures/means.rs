//! Means with their intervals, one below the other.

use quire_stats::Estimate;

use crate::figures::svg::{Axis, Svg, WIDTH, range};

const LEFT: f64 = 130.0;
const RIGHT: f64 = WIDTH - 14.0;
const ROW: f64 = 24.0;

/// A row: a name and its estimate.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// What it is for.
    pub name: &'a str,
    /// The value and its interval.
    pub estimate: Estimate,
}

/// Draws them on one scale, which need not begin at zero: what counts is whether the
/// intervals have something in common.
#[must_use]
pub fn draw(id: &str, title: &str, unit: &str, rows: &[Row]) -> String {
    let bottom = 10.0 + rows.len() as f64 * ROW;
    let description = "Means as dots, with lines as long as their intervals.";
    let mut svg = Svg::new(bottom + 36.0, title, description);
    let ends = |row: &Row| {
        [
            row.estimate.ci_low,
            row.estimate.ci_high,
            row.estimate.value,
        ]
    };
    let all = range(rows.iter().flat_map(ends)).unwrap_or((0.0, 1.0));
    let axis = Axis::linear(all, (LEFT, RIGHT));
    let name = axis.draw_below(&mut svg, unit, 6.0, bottom);
    for (n, row) in rows.iter().enumerate() {
        let y = 10.0 + (n as f64 + 0.5) * ROW;
        let [low, high, value] = ends(row).map(|value| axis.place(value));
        svg.name((LEFT - 8.0, y + 4.0), "end", row.name, 18);
        svg.path(&[(low, y), (high, y)], n, false);
        for end in [low, high] {
            svg.path(&[(end, y - 5.0), (end, y + 5.0)], n, false);
        }
        svg.dots(&[(value, y), (value, y)], n);
    }
    svg.text((RIGHT, bottom + 31.0), "end", &name);
    svg.finish(id)
}
