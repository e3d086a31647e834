//! Groups of bars side by side, with the 95 % intervals of what they show.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const SIZE: (u32, u32) = (980, 420);
/// The backend takes a size of 16 for a font of 13 pixels.
const FONT: (&str, u32) = ("sans-serif", 15);
/// The part of a group's place that its bars fill.
const FILLED: f64 = 0.84;
/// Room for a name in the legend, at most.
const NAME: i32 = 145;

/// What is shown.
#[derive(Clone, Debug)]
pub struct Groups<'a> {
    /// Above the plot.
    pub title: &'a str,
    /// The names of the groups.
    pub groups: Vec<&'a str>,
    /// The names and colours of the bars in each group.
    pub series: Vec<(&'a str, RGBColor)>,
    /// A value at which a line is drawn.
    pub line: Option<f64>,
}

/// Where things lie in the plot, in pixels.
struct Plane {
    left: f64,
    bottom: f64,
    width: f64,
    height: f64,
    most: f64,
}

impl Plane {
    fn y(&self, value: f64) -> i32 {
        (self.bottom - value / self.most * self.height) as i32
    }
}

impl Groups<'_> {
    /// The plot as SVG. `value` says median and ends of the interval of a bar, by the
    /// number of the group and of the series.
    pub fn draw(&self, value: impl Fn(usize, usize) -> Option<[f64; 3]>) -> Result<String> {
        let mut svg = String::new();
        self.draw_to(&mut svg, value).map_err(|e| anyhow!("{e}"))?;
        Ok(svg)
    }

    fn draw_to(
        &self,
        svg: &mut String,
        value: impl Fn(usize, usize) -> Option<[f64; 3]>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let places = (0..self.groups.len())
            .flat_map(|group| (0..self.series.len()).map(move |series| (group, series)));
        let bars: Vec<_> = places
            .filter_map(|(group, series)| Some((group, series, value(group, series)?)))
            .collect();
        let highest = bars.iter().map(|(_, _, [_, _, high])| *high);
        let most = highest.fold(self.line.unwrap_or(0.0), f64::max) * 1.25;
        let most = if most > 0.0 { most } else { 1.0 };
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(self.title, FONT)
            .margin(8)
            .x_label_area_size(32)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..1.0, 0.0..most)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_max_light_lines(1)
            .y_max_light_lines(0)
            .x_labels(0)
            .label_style(FONT)
            .draw()?;
        let (columns, rows) = chart.plotting_area().get_pixel_range();
        let plane = Plane {
            left: f64::from(columns.start),
            bottom: f64::from(rows.end),
            width: f64::from(columns.end - columns.start),
            height: f64::from(rows.end - rows.start),
            most,
        };
        self.names(&root, &plane)?;
        for (group, series, bar) in bars {
            self.bar(&root, &plane, (group, series), bar)?;
        }
        if let Some(at) = self.line {
            let line = vec![(columns.start, plane.y(at)), (columns.end, plane.y(at))];
            root.draw(&PathElement::new(line, BLACK.mix(0.5)))?;
        }
        self.legend(&root, columns.start + 10, rows.start + 8)?;
        root.present()?;
        Ok(())
    }

    /// The names of the groups, below them.
    fn names<D: DrawingBackend>(
        &self,
        root: &DrawingArea<D, plotters::coord::Shift>,
        plane: &Plane,
    ) -> Result<(), Box<dyn std::error::Error>>
    where
        D::ErrorType: 'static,
    {
        let place = plane.width / self.groups.len() as f64;
        let centre = FONT
            .into_text_style(root)
            .pos(Pos::new(HPos::Center, VPos::Top));
        for (group, name) in self.groups.iter().enumerate() {
            let middle = (plane.left + (group as f64 + 0.5) * place) as i32;
            let at = (middle, plane.bottom as i32 + 8);
            root.draw(&Text::new(*name, at, centre.clone()))?;
        }
        Ok(())
    }

    fn bar<D: DrawingBackend>(
        &self,
        root: &DrawingArea<D, plotters::coord::Shift>,
        plane: &Plane,
        (group, series): (usize, usize),
        [value, low, high]: [f64; 3],
    ) -> Result<(), Box<dyn std::error::Error>>
    where
        D::ErrorType: 'static,
    {
        let place = plane.width / self.groups.len() as f64;
        let broad = place * FILLED / self.series.len() as f64;
        let first = plane.left + (group as f64 + (1.0 - FILLED) / 2.0) * place;
        let left = first + series as f64 * broad;
        let (from, to) = (left as i32, (left + broad - 1.0) as i32);
        let corners = [(from, plane.y(value)), (to, plane.y(0.0))];
        root.draw(&Rectangle::new(corners, self.series[series].1.filled()))?;
        let middle = (from + to) / 2;
        let ends = vec![(middle, plane.y(low)), (middle, plane.y(high))];
        root.draw(&PathElement::new(ends, BLACK.stroke_width(1)))?;
        Ok(())
    }

    /// The names of the series in a row.
    fn legend<D: DrawingBackend>(
        &self,
        root: &DrawingArea<D, plotters::coord::Shift>,
        x: i32,
        y: i32,
    ) -> Result<(), Box<dyn std::error::Error>>
    where
        D::ErrorType: 'static,
    {
        let room = (SIZE.0 as i32 - x - 10) / self.series.len().max(1) as i32;
        for (at, (name, colour)) in (0..).zip(&self.series) {
            let x = x + room.min(NAME) * at;
            let corners = [(x, y), (x + 12, y + 12)];
            root.draw(&Rectangle::new(corners, colour.filled()))?;
            let style = FONT.into_text_style(root);
            root.draw(&Text::new(*name, (x + 18, y), style))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_drawn_for_zeros_and_for_none() {
        let groups = Groups {
            title: "title",
            groups: vec!["half", "double"],
            series: vec![("one", RED), ("other", BLUE)],
            line: None,
        };
        for value in [0.0, 3.0, 1e9] {
            let svg = groups.draw(|group, _| (group == 0).then_some([value; 3]));
            let svg = svg.unwrap();
            assert!(svg.contains("double") && svg.contains("other") && svg.contains("<rect"));
        }
        assert!(groups.draw(|_, _| None).unwrap().contains("half"));
    }
}
