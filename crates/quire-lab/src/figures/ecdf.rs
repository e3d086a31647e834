//! The empirical distribution of impact factors on a logarithmic axis, a curve for each
//! variant: higher is better, because more benchmarks have a factor that is at most so
//! large (paper 002, figure 9).

use crate::figures::svg::{Axis, COLOURS, Svg, WIDTH, range};

const LEFT: f64 = 40.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 230.0;

/// A variant's curve.
#[derive(Clone, Debug)]
pub struct Curve<'a> {
    /// The variant.
    pub name: &'a str,
    /// Values in order, and the share of values that are not above each.
    pub points: Vec<(f64, f64)>,
}

/// Draws the curves. Values that are not above zero have no place and are left out.
#[must_use]
pub fn draw(id: &str, title: &str, curves: &[Curve]) -> String {
    let names: Vec<&str> = curves.iter().map(|curve| curve.name).collect();
    let description = format!("Curves that rise from 0 to 1, for {}.", names.join(", "));
    let mut svg = Svg::new(BOTTOM + 40.0, title, &description);
    let values = curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|p| p.0));
    let values = range(values.filter(|value| *value > 0.0));
    let across = Axis::log(values.unwrap_or((1.0, 10.0)), (LEFT, RIGHT));
    let up = Axis::linear((0.0, 1.0), (BOTTOM, TOP));
    across.draw_below(&mut svg, "", TOP, BOTTOM);
    up.draw_left(&mut svg, "", RIGHT, LEFT);
    for (n, curve) in curves.iter().enumerate() {
        let mut steps = Vec::new();
        let mut before = 0.0;
        for (value, share) in curve.points.iter().filter(|(value, _)| *value > 0.0) {
            let x = across.place(*value);
            steps.extend([(x, up.place(before)), (x, up.place(*share))]);
            before = *share;
        }
        steps.extend(steps.last().map(|last| (RIGHT, last.1)));
        svg.path(&steps, n, n >= COLOURS);
    }
    svg.text((RIGHT, BOTTOM + 32.0), "end", "impact factor (logarithmic)");
    svg.finish(id)
}
