//! The lines about the machine, and the one about the chosen process.

use quire_core::stat::ProcessStat;
use quire_core::units::{BASE_PAGE, Bytes};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::put;
use crate::stat::printable;
use crate::top::app::{App, Row};
use crate::top::columns::size;
use crate::top::look::Look;

/// Lines of the chart of free blocks: the bars, the sizes and the numbers.
pub const CHART: u16 = BARS as u16 + 2;
const BARS: usize = 2;
/// Characters of the bar of the machine's memory.
const MEMORY_BAR: usize = 20;
/// Characters before the chart, and of one bar with the space before it.
const CHART_HEAD: usize = 6;
const CHART_COLUMN: usize = 6;

/// How many processes there are and what they have, and how they are watched.
pub fn title(area: Rect, buffer: &mut Buffer, app: &App) {
    let sum = |f: fn(&ProcessStat) -> u64| app.all().iter().map(|r| f(&r.stat)).sum::<u64>();
    let count = app.all().len();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut line = Line::styled("quire top: ", bold);
    if app.paused {
        line.push_span(Span::styled(" PAUSED ", Modifier::REVERSED));
        line.push_span(" ");
    }
    line.push_span(format!(
        "{count} process{}, {} populated, {} superpages, every {} s",
        if count == 1 { "" } else { "es" },
        size(Bytes(sum(|s| s.totals.populated_bytes))),
        sum(|s| s.totals.superpages),
        app.interval.as_secs_f64(),
    ));
    if !app.filter.is_empty() {
        line.push_span(format!(", filter `{}`", app.filter));
    }
    put(area, buffer, 0, &line);
}

/// The machine's memory and the pressure on it.
pub fn memory(area: Rect, buffer: &mut Buffer, app: &App, look: Look) {
    let mut line = Line::from("Memory ");
    if let Some(memory) = app.memory {
        let used = memory.total.saturating_sub(memory.available);
        let part = used.0 as f64 / memory.total.0.max(1) as f64;
        let filled = (part * MEMORY_BAR as f64).round() as usize;
        let bar = "|".repeat(filled) + &" ".repeat(MEMORY_BAR.saturating_sub(filled));
        line.push_span("[");
        line.push_span(Span::styled(bar, look.coloured(Color::Green)));
        line.push_span(format!(
            "] {} available of {}  ",
            size(memory.available),
            size(memory.total)
        ));
    }
    match &app.machine.pressure {
        Some(psi) => {
            let (some, full) = (psi.some.avg10, psi.full.avg10);
            let style = if some >= 1.0 {
                look.alarm()
            } else {
                Style::new()
            };
            let text = format!("Pressure some {some:.2} % full {full:.2} %");
            line.push_span(Span::styled(text, style));
        }
        None => line.push_span("Pressure unknown (boot with psi=1)"),
    }
    put(area, buffer, 0, &line);
}

/// The machine's free blocks by size: the memory in each as a bar, the number
/// below. Where there is no room for all, the largest are shown.
pub fn free_blocks(area: Rect, buffer: &mut Buffer, app: &App, look: Look) {
    let blocks = &app.machine.free_blocks;
    let memory = |order: usize| blocks[order] << order;
    let most = (0..blocks.len()).map(memory).max().unwrap_or(0).max(1);
    let room = usize::from(area.width).saturating_sub(CHART_HEAD) / CHART_COLUMN;
    let shown = blocks.len().saturating_sub(room)..blocks.len();
    let mut lines = vec![format!("{:CHART_HEAD$}", ""); BARS];
    lines.push(format!("{:CHART_HEAD$}", "Free"));
    lines.push(format!("{:CHART_HEAD$}", "blocks"));
    for order in shown {
        let bar = look.bar(memory(order) as f64 / most as f64, BARS);
        for (line, level) in lines.iter_mut().zip(bar) {
            line.push_str("  ");
            line.extend([level; CHART_COLUMN - 2]);
        }
        let block = size(Bytes(BASE_PAGE << order));
        lines[BARS].push_str(&format!("{block:>CHART_COLUMN$}"));
        let count = short_count(blocks[order]);
        lines[BARS + 1].push_str(&format!("{count:>CHART_COLUMN$}"));
    }
    for (row, line) in lines.into_iter().enumerate() {
        let style = if row < BARS {
            look.coloured(Color::Blue)
        } else {
            Style::new()
        };
        put(area, buffer, row as u16, &Line::styled(line, style));
    }
}

/// A number in at most five characters, up to thousands of millions.
fn short_count(count: u64) -> String {
    match count {
        0..100_000 => count.to_string(),
        100_000..10_000_000 => format!("{}k", count / 1000),
        _ => format!("{}M", count / 1_000_000),
    }
}

/// The chosen process: its superpages over time, and what it lacks.
pub fn process(area: Rect, buffer: &mut Buffer, app: &App, look: Look) {
    let Some(row) = app.chosen() else {
        return;
    };
    let stat = &row.stat;
    let totals = &stat.totals;
    let head = format!(
        "Process {} ({}): {} superpages, at most {} ",
        stat.pid,
        printable(&stat.comm),
        totals.superpages,
        totals.superpages_peak
    );
    let mut line = Line::styled(head, Style::new().add_modifier(Modifier::BOLD));
    line.push_span(Span::styled(course(row, look), look.coloured(Color::Green)));
    let notes: Vec<String> = stat.remarks().collect();
    if !notes.is_empty() {
        let text = format!("  note: {}", notes.join("; "));
        line.push_span(Span::styled(text, look.coloured(Color::Yellow)));
    }
    put(area, buffer, 0, &line);
}

/// Superpages at the last looks, one character for each.
fn course(row: &Row, look: Look) -> String {
    const SHOWN: usize = 30;
    let most = row.history.iter().copied().max().unwrap_or(0).max(1);
    let first = row.history.len().saturating_sub(SHOWN);
    let looks = row.history.iter().skip(first);
    looks
        .flat_map(|n| look.bar(*n as f64 / most as f64, 1))
        .collect()
}
