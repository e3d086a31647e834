//! How the ten programs of Figure 3 are shown: bars side by side, and tables
//! with a row for each program and a column for each variant.

use std::fmt::Write;

use anyhow::Result;

use crate::figure3::normalised::{MEAN, METRICS, Normalised, REFERENCES, of};
use crate::report::groups::Groups;
use crate::report::plot::colour;
use crate::results::Results;
use crate::spec::Workload;
use crate::variant::Variant;

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
            page.push_str(&draw(&title, &bars)?);
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

/// The name of a program below its bars.
fn short(program: &str) -> &str {
    if program == MEAN { "mean" } else { program }
}

/// A group of bars for each program, with the 95 % intervals.
fn draw(title: &str, bars: &[Normalised]) -> Result<String> {
    let (programs, variants) = axes(bars);
    let chart = Groups {
        title,
        groups: programs.iter().map(|program| short(program)).collect(),
        series: variants.iter().map(|v| (v.name(), colour(*v))).collect(),
        line: Some(1.0),
    };
    chart.draw(|group, series| {
        let bar = find(bars, programs[group], variants[series])?;
        Some([bar.value, bar.ci_low, bar.ci_high])
    })
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
        let svg = draw("title", &bars).unwrap();
        assert!(svg.contains("gcc") && svg.contains("perl") && svg.contains("quire-reserve"));
        let mut page = String::new();
        table(&mut page, &bars);
        assert!(page.contains("0.900 [0.800, 1.300]") && page.contains("<td class=\"n\">-</td>"));
    }
}
