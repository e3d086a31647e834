//! Mean time and mean cache misses of the variants of a benchmark, both as deviations from
//! their mean over the variants, in parts of the largest: where the two lines lie upon
//! each other, the misses explain the times (paper 002, figure 10).

use crate::figures::svg::{Axis, Svg, WIDTH};

const LEFT: f64 = 40.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 170.0;

/// Deviations from the mean, in parts of the largest one; nothing where all are equal.
#[must_use]
pub fn normalised(values: &[f64]) -> Option<Vec<f64>> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let most = values.iter().map(|v| (v - mean).abs()).fold(0.0, f64::max);
    (most > 0.0 && most.is_finite()).then(|| values.iter().map(|v| (v - mean) / most).collect())
}

/// Draws two lines over so many variants, which are numbered.
#[must_use]
pub fn draw(id: &str, title: &str, variants: usize, lines: [(&str, &[f64]); 2]) -> String {
    let names = [lines[0].0, lines[1].0];
    let description = format!("Lines for {} and {} over the variants.", names[0], names[1]);
    let mut svg = Svg::new(BOTTOM + 30.0, title, &description);
    let up = Axis::linear((-1.0, 1.0), (BOTTOM, TOP));
    up.draw_left(&mut svg, "", RIGHT, LEFT);
    let last = (variants.max(2) - 1) as f64;
    let across = Axis::linear((0.0, last), (LEFT + 40.0, RIGHT - 40.0));
    for n in 0..variants {
        let x = across.place(n as f64);
        svg.line((x, TOP), (x, BOTTOM), "grid");
        svg.text((x, BOTTOM + 16.0), "middle", &(n + 1).to_string());
    }
    for (colour, (_, values)) in lines.iter().enumerate() {
        let point = |(n, value): (usize, &f64)| (across.place(n as f64), up.place(*value));
        let points: Vec<(f64, f64)> = values.iter().enumerate().map(point).collect();
        svg.path(&points, colour, colour == 1);
        svg.dots(&points, colour);
    }
    svg.finish(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_lie_between_minus_one_and_one() {
        assert_eq!(normalised(&[1.0, 2.0, 3.0]).unwrap(), [-1.0, 0.0, 1.0]);
        assert_eq!(normalised(&[5.0, 5.0]), None);
        assert_eq!(normalised(&[]), None);
    }
}
