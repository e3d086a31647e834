//! The tables of processes and of regions.

use quire_core::stat::RegionStat;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;

use super::put;
use crate::top::app::{App, Mode};
use crate::top::columns::{Column, size};
use crate::top::grid::{self, GAP, Placed};
use crate::top::look::Look;

/// A table as texts.
struct Texts {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    /// How many columns begin at the left edge.
    left: usize,
    /// How many columns are always shown.
    fixed: usize,
    /// The column that is shown too.
    wanted: usize,
    /// The chosen row.
    chosen: usize,
    /// Whether the keys act upon this table.
    active: bool,
}

/// What stands before the chosen row, and before all others.
const MARKS: [&str; 2] = ["> ", "  "];

/// The table of processes.
pub fn processes(area: Rect, buffer: &mut Buffer, app: &App, look: Look) {
    let visible = app.visible();
    if visible.is_empty() {
        let text = if app.all().is_empty() {
            "No managed process is known (from 64 MiB on). Try `quire run -- PROGRAM`.".to_owned()
        } else {
            format!(
                "No command holds `{}`: change the filter with /",
                app.filter
            )
        };
        put(area, buffer, 0, &Line::from(text));
        return;
    }
    let title = |column: Column| {
        let mut title = column.title().to_owned();
        if column == app.sort {
            title.push(look.sort_mark(app.reversed));
        }
        title
    };
    let texts = |row| Column::ALL.map(|column| column.text(row)).to_vec();
    let table = Texts {
        header: Column::ALL.map(title).to_vec(),
        rows: visible.into_iter().map(texts).collect(),
        left: Column::TEXT,
        fixed: 2,
        wanted: app.sort.index(),
        chosen: app.place().unwrap_or(0),
        active: app.mode != Mode::Regions,
    };
    table.draw(area, buffer, look);
}

/// The table of the chosen process's regions.
pub fn regions(area: Rect, buffer: &mut Buffer, app: &App, look: Look) {
    let Some(row) = app.chosen().filter(|row| !row.stat.regions.is_empty()) else {
        return;
    };
    const HEADER: [&str; 11] = [
        "REGION", "KIND", "POLICY", "MAPPED", "POPUL", "RESERV", "SUPER", "PROM", "DEM", "PREE",
        "FAIL",
    ];
    let table = Texts {
        header: HEADER.map(str::to_owned).to_vec(),
        rows: row.stat.regions.iter().map(region_texts).collect(),
        left: 3,
        fixed: 1,
        wanted: 0,
        chosen: app.region_place(),
        active: app.mode == Mode::Regions,
    };
    table.draw(area, buffer, look);
}

fn region_texts(region: &RegionStat) -> Vec<String> {
    vec![
        region.range.to_string(),
        region.kind.name().to_owned(),
        region.policy.to_string(),
        size(region.mapped_bytes),
        size(region.populated_bytes),
        size(region.reserved_bytes),
        region.superpages.to_string(),
        region.promotions.to_string(),
        region.demotions.to_string(),
        region.preemptions.to_string(),
        region.failed_reservations.to_string(),
    ]
}

impl Texts {
    fn draw(&self, area: Rect, buffer: &mut Buffer, look: Look) {
        let widths = grid::widths(&self.header, &self.rows);
        let room = usize::from(area.width).saturating_sub(MARKS[0].len());
        let placed = grid::place(&widths, room, self.fixed, self.wanted);
        let head = self.line(MARKS[1], &self.header, &placed);
        let style = look.coloured(Color::Cyan).add_modifier(Modifier::BOLD);
        put(area, buffer, 0, &Line::styled(head, style));
        let lines = usize::from(area.height).saturating_sub(1);
        // The chosen row stays on the screen.
        let first = (self.chosen + 1).saturating_sub(lines);
        let rows = self.rows.iter().enumerate().skip(first).take(lines);
        for (line, (number, row)) in rows.enumerate() {
            let is_chosen = number == self.chosen;
            let mark = MARKS[usize::from(!is_chosen)];
            let style = match (is_chosen, self.active) {
                (true, true) => Style::new().add_modifier(Modifier::REVERSED),
                (true, false) => Style::new().add_modifier(Modifier::BOLD),
                (false, _) => Style::new(),
            };
            let text = self.line(mark, row, &placed);
            put(area, buffer, line as u16 + 1, &Line::styled(text, style));
        }
    }

    fn line(&self, mark: &str, texts: &[String], placed: &[Placed]) -> String {
        let mut line = mark.to_owned();
        for (place, Placed { column, width }) in placed.iter().enumerate() {
            if place > 0 {
                line.push_str(&" ".repeat(GAP));
            }
            let text = texts.get(*column).map_or("", String::as_str);
            if *column < self.left {
                line.push_str(&format!("{text:<width$}"));
            } else {
                line.push_str(&format!("{text:>width$}"));
            }
        }
        line
    }
}
