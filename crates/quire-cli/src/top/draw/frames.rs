//! The line about the frames of the chosen process, where strategies give any.

use quire_core::units::PageCount;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::text::{Line, Span};

use super::put;
use crate::stat::{frames, printable};
use crate::top::app::{App, Row};
use crate::top::columns::size;
use crate::top::look::Look;
use crate::top::rates::rate_text;

/// Whether there is such a line.
pub fn is_shown(app: &App) -> bool {
    let uses = |row: &Row| frames::strategies(&row.stat).next().is_some();
    app.chosen().is_some_and(uses)
}

/// What each strategy gave, how many pages a second, and what is in stock.
pub fn frames(area: Rect, buffer: &mut Buffer, app: &App, look: Look) {
    let Some(row) = app.chosen() else {
        return;
    };
    let mut line = Line::from(head(row));
    for strategy in frames::strategies(&row.stat) {
        let name = format!("{}={}", strategy.target, strategy.strategy);
        line.push_span(format!("; {} ", printable(&name)));
        let text = frames::counts(strategy.counts);
        let style = match strategy.counts.other.0 + strategy.counts.left.0 {
            0 => look.coloured(Color::Green),
            _ => look.coloured(Color::Yellow),
        };
        line.push_span(Span::styled(text, style));
    }
    put(area, buffer, 0, &line);
}

fn head(row: &Row) -> String {
    let rate = match &row.rates {
        Some(rates) => rate_text(rates.frames),
        None => "-".to_owned(),
    };
    let stock = PageCount(row.stat.totals.frames_stocked).to_bytes();
    format!("Frames: {rate} pages/s, {} in stock", size(stock))
}
