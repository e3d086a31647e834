//! In which share of the benchmarks each variant has which rank, as stacked bars (paper
//! 002, figures 4, 5 and 7).

use crate::figures::svg::{Axis, LINE, Svg, WIDTH, lines};

const LEFT: f64 = 14.0;
const RIGHT: f64 = WIDTH - 14.0;
/// How high a bar is.
const BAR: f64 = 20.0;

/// The name of a rank.
#[must_use]
pub fn rank(place: usize) -> String {
    match place {
        0 => "best".to_owned(),
        1 => "second".to_owned(),
        2 => "third".to_owned(),
        n => format!("{}th", n + 1),
    }
}

/// Draws the bars; `places` holds for each variant how often it has each rank, out of
/// `counted` benchmarks.
#[must_use]
pub fn draw(
    id: &str,
    title: &str,
    variants: &[String],
    places: &[Vec<usize>],
    counted: usize,
) -> String {
    let height = |variant: &String| LINE * lines(variant).len() as f64 + BAR + 12.0;
    let bottom = 10.0 + variants.iter().map(height).sum::<f64>();
    let description = "For each variant a bar of the shares of its ranks, the best first.";
    let mut svg = Svg::new(bottom + 40.0, title, description);
    let axis = Axis::from_zero(100.0, (LEFT, RIGHT));
    axis.draw_below(&mut svg, "", 6.0, bottom);
    let mut top = 10.0;
    for (variant, places) in variants.iter().zip(places) {
        svg.name((LEFT, top + 12.0), variant);
        let bar = top + LINE * lines(variant).len() as f64 + 2.0;
        top += height(variant);
        let mut before = 0.0;
        for (place, count) in places.iter().enumerate().filter(|(_, count)| **count > 0) {
            let share = 100.0 * *count as f64 / counted.max(1) as f64;
            let (from, to) = (axis.place(before), axis.place(before + share));
            let tip = format!("{variant}: {} in {share:.0} % ({count})", rank(place));
            svg.bar((from, bar), ((to - from - 1.0).max(0.5), BAR), place, &tip);
            before += share;
        }
    }
    svg.text((RIGHT, bottom + 32.0), "end", "% of benchmarks");
    svg.finish(id)
}
