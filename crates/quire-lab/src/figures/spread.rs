//! How executions are distributed, one variant below the other, on one axis: each execution a dot,
//! with the median of all and the interval of the mean.

use quire_stats::{Estimate, median};

use crate::figures::svg::{Axis, LINE, Svg, WIDTH, lines, range};

const LEFT: f64 = 14.0;
const RIGHT: f64 = WIDTH - 14.0;
/// How high the dots of a variant are stacked at most.
const STACK: f64 = 30.0;
/// How far dots are apart.
const DOT: f64 = 4.0;
/// Room below the dots, for the interval.
const FOOT: f64 = 14.0;
/// So many dots of a variant are drawn.
const MOST: usize = 400;

/// A variant.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Its name.
    pub name: &'a str,
    /// A value of each execution.
    pub values: Vec<f64>,
    /// The mean with its interval, where there is one.
    pub mean: Option<Estimate>,
}

/// Draws them on one axis, which need not begin at zero.
#[must_use]
pub fn draw(id: &str, title: &str, unit: &str, rows: &[Row]) -> String {
    let height = |row: &Row| LINE * lines(row.name).len() as f64 + STACK + FOOT + 10.0;
    let bottom = 6.0 + rows.iter().map(height).sum::<f64>();
    let description = "For each variant its executions as dots, their median as a long line, and the \
                       mean with its interval below.";
    let mut svg = Svg::new(bottom + 36.0, title, description);
    let ends = rows.iter().flat_map(|row| {
        let mean = row.mean.map(|mean| [mean.ci_low, mean.ci_high]);
        row.values.iter().copied().chain(mean.into_iter().flatten())
    });
    let axis = Axis::linear(range(ends).unwrap_or((0.0, 1.0)), (LEFT, RIGHT));
    let name = axis.draw_below(&mut svg, unit, 6.0, bottom);
    let mut top = 6.0;
    for (n, row) in rows.iter().enumerate() {
        svg.name((LEFT, top + 12.0), row.name);
        let base = top + LINE * lines(row.name).len() as f64 + STACK + 4.0;
        row.draw(&mut svg, n, &axis, base);
        top += height(row);
    }
    svg.text((RIGHT, bottom + 31.0), "end", &name);
    svg.finish(id)
}

impl Row<'_> {
    fn draw(&self, svg: &mut Svg, n: usize, axis: &Axis, base: f64) {
        svg.dots(&stacked(&self.values, axis, base), n);
        if let Some(middle) = median(&self.values) {
            let x = axis.place(middle);
            svg.path(&[(x, base + 3.0), (x, base - STACK)], n, false);
        }
        if let Some(mean) = self.mean {
            let y = base + FOOT / 2.0 + 2.0;
            let [low, high, value] = [mean.ci_low, mean.ci_high, mean.value].map(|v| axis.place(v));
            svg.path(&[(low, y), (high, y)], n, false);
            for end in [low, high] {
                svg.path(&[(end, y - 4.0), (end, y + 4.0)], n, false);
            }
            svg.dots(&[(value, y), (value, y)], n);
        }
    }
}

/// The places of dots: those that would lie upon each other are stacked, closer where they are many.
fn stacked(values: &[f64], axis: &Axis, base: f64) -> Vec<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let stride = sorted.len().div_ceil(MOST).max(1);
    let last = sorted.len().saturating_sub(1);
    let drawn = sorted.iter().enumerate();
    let drawn = drawn.filter(|(n, _)| n % stride == 0 || *n == last);
    let mut columns: Vec<Vec<f64>> = vec![Vec::new(); (WIDTH / DOT) as usize + 1];
    for (_, value) in drawn {
        let x = axis.place(*value);
        let column = (x.max(0.0) / DOT) as usize;
        columns[column.min((WIDTH / DOT) as usize)].push(x);
    }
    let most = columns.iter().map(Vec::len).max().unwrap_or(0);
    let step = DOT.min(STACK / most.max(1) as f64);
    let column = |column: Vec<f64>| {
        let places = column.into_iter().enumerate();
        places.map(move |(n, x)| (x, base - 2.0 - n as f64 * step))
    };
    columns.into_iter().flat_map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_keep_their_place_and_stay_within_the_stack() {
        let axis = Axis::linear((0.0, 10.0), (LEFT, RIGHT));
        let mut values = vec![3.0; 200];
        values.extend([0.0, 10.0]);
        let dots = stacked(&values, &axis, 100.0);
        assert_eq!(dots.len(), 202);
        assert!(
            dots.iter()
                .all(|(_, y)| (100.0 - STACK - 2.0..100.0).contains(y))
        );
        assert_eq!(
            dots.iter().filter(|(x, _)| *x == axis.place(3.0)).count(),
            200
        );
        assert!(stacked(&vec![1.0; 100_000], &axis, 0.0).len() <= MOST + 1);
        assert_eq!(stacked(&[], &axis, 0.0), []);
    }
}
