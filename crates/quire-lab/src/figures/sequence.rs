//! Measurements in the order in which they were taken, executions told apart: what is
//! level within executions and jumps between them is non-determinism in execution (paper
//! 002, figure 1).

use quire_stats::Sample;

use crate::figures::svg::{Axis, LINE, Svg, WIDTH, lines, range};

const LEFT: f64 = 52.0;
const RIGHT: f64 = WIDTH - 6.0;
const PANEL: f64 = 120.0;
/// Room above a panel, for its unit; its name has more.
const HEAD: f64 = 20.0;

/// One variant's measurements.
#[derive(Clone, Copy, Debug)]
pub struct Panel<'a> {
    /// The variant.
    pub name: &'a str,
    /// Its measurements.
    pub sample: &'a Sample,
}

/// Panels one below the other, on one scale. Where a panel has more than `most`
/// measurements, only some of them are drawn, spread evenly, and the least and the largest.
#[must_use]
pub fn draw(id: &str, title: &str, unit: &str, panels: &[Panel], most: usize) -> String {
    let head = |panel: &Panel| LINE * lines(panel.name).len() as f64 + HEAD;
    let height = panels.iter().map(|panel| head(panel) + PANEL).sum::<f64>() + 34.0;
    let executions: usize = panels.iter().map(|p| p.sample.executions().len()).sum();
    let description = format!(
        "Measurements in their order, {} variants one below the other, {executions} executions in \
         all; neighbouring executions differ in shade.",
        panels.len()
    );
    let mut svg = Svg::new(height, title, &description);
    let all = range(panels.iter().flat_map(|panel| panel.sample.values()));
    let mut next = 0.0;
    for (n, panel) in panels.iter().enumerate() {
        svg.name((LEFT, next + 12.0), panel.name);
        let top = next + head(panel);
        next = top + PANEL;
        let axis = Axis::linear(all.unwrap_or((0.0, 1.0)), (top + PANEL, top));
        panel.draw(&mut svg, n, &axis, top, unit, most);
    }
    svg.text(
        ((LEFT + RIGHT) / 2.0, height - 8.0),
        "middle",
        "measurements in their order",
    );
    svg.finish(id)
}

impl Panel<'_> {
    fn draw(&self, svg: &mut Svg, n: usize, axis: &Axis, top: f64, unit: &str, most: usize) {
        let total = self.sample.values().count();
        let across = Axis::linear((0.0, (total.max(2) - 1) as f64), (LEFT, RIGHT));
        let mut before = 0;
        let mut points = Vec::new();
        let stride = total.div_ceil(most.max(1)).max(1);
        let ends = range(self.sample.values());
        for (execution, values) in self.sample.executions().iter().enumerate() {
            if execution % 2 == 1 {
                let from = across.place(before as f64 - 0.5);
                let to = across.place((before + values.len()) as f64 - 0.5);
                svg.shade((from, top), (to - from, PANEL));
            }
            for (at, value) in (before..).zip(values) {
                let is_end = ends.is_some_and(|(low, high)| *value == low || *value == high);
                if at % stride == 0 || (is_end && points.len() < 2 * most) {
                    points.push((across.place(at as f64), axis.place(*value)));
                }
            }
            before += values.len();
        }
        let name = axis.draw_left(svg, unit, RIGHT, LEFT);
        svg.dots(&points, n);
        svg.text((RIGHT, top - 6.0), "end", &name);
    }
}
