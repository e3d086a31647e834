//! How the ten programs of Figure 3 are shown: bars side by side, and tables
//! with a row for each program and a column for each variant.

use std::fmt::Write;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::figure3::normalised::{MEAN, METRICS, Normalised, REFERENCES, of};
use crate::report::plot::colour;
use crate::results::Results;
use crate::spec::Workload;
use crate::variant::Variant;

const SIZE: (u32, u32) = (980, 420);
/// The backend takes a size of 16 for a font of 13 pixels.
const FONT: (&str, u32) = ("sans-serif", 15);
/// The part of a program's place that its bars fill.
const FILLED: f64 = 0.84;

/// Programs and variants in their order.
fn axes(bars: &[Normalised]) -> (Vec<&str>, Vec<Variant>) {
    let (mut programs, mut variants) = (Vec::new(), Vec::new());
    for bar in bars {
        if !programs.contains(&bar.program.as_str()) {
            programs.push(bar.program.as_str());
        }
        if !variants.contains(&bar.variant) {
            variants.push(bar.variant);
        }
    }
    variants.sort();
    (programs, variants)
}

fn find<'a>(bars: &'a [Normalised], program: &str, variant: Variant) -> Option<&'a Normalised> {
    bars.iter()
        .find(|b| b.program == program && b.variant == variant)
}

fn label(metric: &str) -> &'static str {
    Workload::Figure3.metric(metric).map_or("", |m| m.label)
}

/// Bars and tables of everything that is normalised.
pub fn html(results: &Results) -> Result<String> {
    let mut page = String::new();
    for metric in METRICS {
        for over in REFERENCES {
            let bars = of(results, metric, over);
            if bars.is_empty() {
                continue;
            }
            let title = format!("{}, {} = 1; less is better", label(metric), over.name());
            draw(&mut page, &title, &bars).map_err(|e| anyhow!("{e}"))?;
            table(&mut page, &bars);
        }
    }
    Ok(page)
}

fn table(page: &mut String, bars: &[Normalised]) {
    let (programs, variants) = axes(bars);
    page.push_str("<details><summary>Figures</summary><table><tr><th></th>");
    for variant in &variants {
        let _ = write!(page, "<th>{}</th>", variant.name());
    }
    page.push_str("</tr>");
    for program in programs {
        let _ = write!(page, "<tr><td>{program}</td>");
        for variant in &variants {
            let text = find(bars, program, *variant).map_or_else(|| "-".to_owned(), text);
            let _ = write!(page, "<td class=\"n\">{text}</td>");
        }
        page.push_str("</tr>");
    }
    page.push_str("</table></details>\n");
}

fn text(bar: &Normalised) -> String {
    format!("{:.3} [{:.3}, {:.3}]", bar.value, bar.ci_low, bar.ci_high)
}

/// Prints the same as tables.
pub fn print(results: &Results) {
    for metric in METRICS {
        for over in REFERENCES {
            let bars = of(results, metric, over);
            if bars.is_empty() {
                continue;
            }
            println!("  {}, {} = 1", label(metric), over.name());
            let (programs, variants) = axes(&bars);
            let heads: String = variants
                .iter()
                .map(|v| format!("{:<22}", v.name()))
                .collect();
            println!("    {:<16} {}", "", heads.trim_end());
            for program in programs {
                let cell = |v: &Variant| find(&bars, program, *v).map(text).unwrap_or_default();
                let cells: String = variants
                    .iter()
                    .map(|v| format!("{:<22}", cell(v)))
                    .collect();
                println!("    {program:<16} {}", cells.trim_end());
            }
        }
    }
}

/// A group of bars for each program, with the 95 % intervals.
fn draw(
    svg: &mut String,
    title: &str,
    bars: &[Normalised],
) -> Result<(), Box<dyn std::error::Error>> {
    let (programs, variants) = axes(bars);
    let most = bars.iter().map(|b| b.ci_high).fold(1.0, f64::max) * 1.25;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, FONT)
            .margin(8)
            .x_label_area_size(32)
            .y_label_area_size(48)
            .build_cartesian_2d(0.0..1.0, 0.0..most)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_max_light_lines(1)
            .y_max_light_lines(0)
            .x_labels(0)
            .label_style(FONT)
            .draw()?;
        let plane = chart.plotting_area();
        let (columns, rows) = plane.get_pixel_range();
        let (x0, width) = (
            f64::from(columns.start),
            f64::from(columns.end - columns.start),
        );
        let (y0, height) = (f64::from(rows.end), f64::from(rows.end - rows.start));
        let place = width / programs.len() as f64;
        let broad = place * FILLED / variants.len() as f64;
        let y = |value: f64| (y0 - value / most * height) as i32;
        let centre = FONT
            .into_text_style(&root)
            .pos(Pos::new(HPos::Center, VPos::Top));
        for (i, program) in programs.iter().enumerate() {
            let middle = (x0 + (i as f64 + 0.5) * place) as i32;
            let name = if *program == MEAN { "mean" } else { program };
            root.draw(&Text::new(name, (middle, rows.end + 8), centre.clone()))?;
            for (k, variant) in variants.iter().enumerate() {
                let Some(bar) = find(bars, program, *variant) else {
                    continue;
                };
                let left = x0 + (i as f64 + (1.0 - FILLED) / 2.0) * place + k as f64 * broad;
                let (from, to) = (left as i32, (left + broad - 1.0) as i32);
                let corners = [(from, y(bar.value)), (to, y(0.0))];
                root.draw(&Rectangle::new(corners, colour(*variant).filled()))?;
                let middle = (from + to) / 2;
                let ends = vec![(middle, y(bar.ci_low)), (middle, y(bar.ci_high))];
                root.draw(&PathElement::new(ends, BLACK.stroke_width(1)))?;
            }
        }
        let line = vec![(columns.start, y(1.0)), (columns.end, y(1.0))];
        root.draw(&PathElement::new(line, BLACK.mix(0.5)))?;
        legend(&root, columns.start + 10, rows.start + 8, &variants)?;
        root.present()?;
    }
    svg.push_str(&text);
    Ok(())
}

/// The names of the variants in a row.
fn legend<D: DrawingBackend>(
    root: &DrawingArea<D, plotters::coord::Shift>,
    x: i32,
    y: i32,
    variants: &[Variant],
) -> Result<(), Box<dyn std::error::Error>>
where
    D::ErrorType: 'static,
{
    for (k, variant) in variants.iter().enumerate() {
        let x = x + 145 * k as i32;
        let corners = [(x, y), (x + 12, y + 12)];
        root.draw(&Rectangle::new(corners, colour(*variant).filled()))?;
        let style = FONT.into_text_style(root);
        root.draw(&Text::new(variant.name(), (x + 18, y), style))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_drawn_where_some_are_missing() {
        let bar = |program: &str, variant| Normalised {
            metric: "wall_s",
            over: Variant::QuireBase,
            program: program.to_owned(),
            variant,
            value: 0.9,
            ci_low: 0.8,
            ci_high: 1.3,
        };
        let bars = [
            bar("gcc", Variant::QuireBase),
            bar("gcc", Variant::QuireReserve),
            bar("perl", Variant::QuireBase),
        ];
        let mut svg = String::new();
        draw(&mut svg, "title", &bars).unwrap();
        assert!(svg.contains("gcc") && svg.contains("perl") && svg.contains("quire-reserve"));
        let mut page = String::new();
        table(&mut page, &bars);
        assert!(page.contains("0.900 [0.800, 1.300]") && page.contains("<td class=\"n\">-</td>"));
    }
}
