//! Plots as SVG text.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::report::number;
use crate::results::Summary;
use crate::variant::Variant;

const WIDTH: u32 = 760;
/// Room for the names of variants.
const LABELS: u32 = 150;
/// The backend takes a size of 16 for a font of 13 pixels.
const FONT: (&str, u32) = ("sans-serif", 16);

/// The colour of a variant, the same in every plot: greys for the kernel,
/// blues for other allocators, warm colours for Quire.
pub fn colour(variant: Variant) -> RGBColor {
    let (r, g, b) = match variant {
        Variant::Kernel4k => (150, 150, 150),
        Variant::Plain => (110, 110, 110),
        Variant::Thp => (70, 70, 70),
        Variant::JemallocThp => (120, 170, 220),
        Variant::Mimalloc => (50, 120, 190),
        Variant::GlibcHugetlb1 => (30, 70, 130),
        Variant::QuireBase => (230, 190, 110),
        Variant::QuireEager => (235, 140, 50),
        Variant::QuireReserve => (205, 60, 40),
        Variant::QuireAdaptive => (150, 25, 60),
        Variant::QuireStatic => (130, 60, 130),
        Variant::QuireEagerAhead => (120, 160, 60),
        Variant::QuireReserveAhead => (40, 120, 60),
    };
    RGBColor(r, g, b)
}

/// Where an axis ends that shows all of `values`.
fn upper_end(values: impl Iterator<Item = f64>) -> f64 {
    let most = values.fold(0.0, f64::max);
    if most > 0.0 { most * 1.1 } else { 1.0 }
}

/// A bar of a plot.
#[derive(Clone, Copy, Debug)]
pub struct Bar<'a> {
    /// What it is for.
    pub name: &'a str,
    /// What it is filled with.
    pub colour: RGBColor,
    /// A median.
    pub value: f64,
    /// Lower end of its 95 % interval.
    pub low: f64,
    /// Upper end of its 95 % interval.
    pub high: f64,
}

impl From<&Summary> for Bar<'static> {
    fn from(summary: &Summary) -> Bar<'static> {
        Bar {
            name: summary.variant.name(),
            colour: colour(summary.variant),
            value: summary.median,
            low: summary.ci_low,
            high: summary.ci_high,
        }
    }
}

/// Bars with the 95 % intervals of their medians.
pub fn bars(label: &str, unit: &str, rows: &[Bar]) -> Result<String> {
    let mut svg = String::new();
    draw_bars(&mut svg, label, unit, rows).map_err(|e| anyhow!("{e}"))?;
    Ok(svg)
}

fn draw_bars(
    svg: &mut String,
    label: &str,
    unit: &str,
    rows: &[Bar],
) -> Result<(), Box<dyn std::error::Error>> {
    let height = 80 + 26 * rows.len() as u32;
    let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let most = upper_end(rows.iter().map(|bar| bar.high));
    let mut chart = ChartBuilder::on(&root)
        .caption(format!("{label} ({unit})"), FONT)
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(LABELS)
        .build_cartesian_2d(0.0..most, 0.0..rows.len() as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .max_light_lines(0)
        .y_labels(0)
        .x_label_formatter(&|x| number(*x))
        .label_style(FONT)
        .draw()?;
    let right = FONT
        .into_text_style(&root)
        .pos(Pos::new(HPos::Right, VPos::Center));
    for (i, row) in rows.iter().rev().enumerate() {
        let (bottom, middle) = (i as f64, i as f64 + 0.5);
        let corners = [(0.0, bottom + 0.15), (row.value, bottom + 0.85)];
        chart.draw_series([Rectangle::new(corners, row.colour.filled())])?;
        let ends = vec![(row.low, middle), (row.high, middle)];
        chart.draw_series([PathElement::new(ends.clone(), BLACK.stroke_width(2))])?;
        chart.draw_series(ends.into_iter().map(|p| Circle::new(p, 2, BLACK.filled())))?;
        let (x, y) = chart.backend_coord(&(0.0, middle));
        root.draw(&Text::new(row.name, (x - 8, y), right.clone()))?;
    }
    root.present()?;
    Ok(())
}

/// One line of a line plot.
pub struct Line {
    /// Which variant it shows.
    pub variant: Variant,
    /// Size and value.
    pub points: Vec<(f64, f64)>,
}

/// Values over sizes, which are shown on a logarithmic axis.
pub fn lines(title: &str, unit: &str, lines: &[Line]) -> Result<String> {
    let mut svg = String::new();
    draw_lines(&mut svg, title, unit, lines).map_err(|e| anyhow!("{e}"))?;
    Ok(svg)
}

fn draw_lines(
    svg: &mut String,
    title: &str,
    unit: &str,
    lines: &[Line],
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || lines.iter().flat_map(|l| l.points.iter().copied());
    let low = points().map(|p| p.0).fold(f64::INFINITY, f64::min);
    let high = points().map(|p| p.0).fold(1.0, f64::max);
    let most = upper_end(points().map(|p| p.1));
    let root = SVGBackend::with_string(svg, (WIDTH, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, FONT)
        .margin(8)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(
            (low.min(high)..high * 1.01).log_scale().base(2.0),
            0.0..most,
        )?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_desc("dimension")
        .y_desc(unit)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .label_style(FONT)
        .draw()?;
    for line in lines {
        let colour = colour(line.variant);
        let path = LineSeries::new(line.points.iter().copied(), colour.stroke_width(2));
        chart
            .draw_series(path)?
            .label(line.variant.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)));
        let dots = line
            .points
            .iter()
            .map(|p| Circle::new(*p, 3, colour.filled()));
        chart.draw_series(dots)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .label_font(FONT)
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Results, Run, Sample, Turn};
    use crate::spec::Workload;

    fn results(variants: &[Variant], value: f64) -> Results {
        let run = |variant: &Variant| {
            let mut sample = Sample::default();
            sample.put("huge_mib", value);
            Run {
                turn: Turn {
                    workload: Workload::Random1g,
                    variant: *variant,
                    repetition: 0,
                    position: 0,
                    part: None,
                },
                seconds: 0.0,
                sample,
                error: None,
            }
        };
        Results::of(variants.iter().map(run).collect())
    }

    #[test]
    fn bars_are_drawn_for_any_number_of_variants_and_for_zeros() {
        for variants in [&[Variant::Thp][..], &[Variant::Thp, Variant::Kernel4k]] {
            for value in [0.0, 1e-9, 5.0, 1e12] {
                let results = results(variants, value);
                let rows = results.of_metric(Workload::Random1g, "huge_mib");
                let rows: Vec<Bar> = rows.into_iter().map(Bar::from).collect();
                let svg = bars("label", "unit", &rows).unwrap();
                assert!(svg.contains("<rect") && svg.contains("thp"));
            }
        }
    }

    #[test]
    fn lines_are_drawn_for_one_point() {
        let line = |points: &[(f64, f64)]| Line {
            variant: Variant::Thp,
            points: points.to_vec(),
        };
        for points in [&[(256.0, 1.0)][..], &[(256.0, 1.0), (8192.0, 9.0)]] {
            assert!(lines("t", "ns", &[line(points)]).unwrap().contains("thp"));
        }
    }
}
