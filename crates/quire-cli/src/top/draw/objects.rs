//! The lines about objects of servers that the chosen process has, where it has any.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::text::{Line, Span};

use super::put;
use crate::stat::objects::{SharedObject, State};
use crate::stat::printable;
use crate::top::app::App;
use crate::top::look::Look;

/// Lines that are shown at most.
const MOST: usize = 4;

/// How many lines there are.
pub fn lines(app: &App) -> u16 {
    // At most `MOST`.
    of_chosen(app).take(MOST).count() as u16
}

fn of_chosen(app: &App) -> impl Iterator<Item = &SharedObject> {
    let pid = app.chosen().map(|row| row.stat.pid);
    app.objects.iter().filter(move |it| Some(it.pid) == pid)
}

/// A line for each object: who has what of it, and faults by kind.
pub fn objects(area: Rect, buffer: &mut Buffer, app: &App, look: Look) {
    for (row, object) in (0..area.height).zip(of_chosen(app)) {
        let colour = match object.state {
            State::Open => Color::Green,
            State::Closed | State::Missing => Color::Yellow,
            State::Unknown => Color::Red,
        };
        let head = format!(
            "Object {} at {}: ",
            object.object,
            printable(&object.server)
        );
        let text = Span::styled(object.line(), look.coloured(colour));
        put(area, buffer, row, &Line::from_iter([Span::raw(head), text]));
    }
}
