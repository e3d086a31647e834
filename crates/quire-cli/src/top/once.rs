//! One frame as text, for scripts and for terminals that cannot be driven.

use std::io::{self, Write};
use std::thread;

use quire_core::stat::ProcessStat;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::app::App;
use super::draw::draw_body;
use super::look::Look;
use super::sample::Sample;
use crate::args::TopArgs;
use crate::failure::Outcome;
use crate::stat::objects::{self, PATIENCE};

/// The width where neither a terminal nor `COLUMNS` tells one.
const WIDTH: u16 = 120;
/// Lines that are drawn at most; those at the end that stay empty are left out.
const HEIGHT: u16 = 2000;

/// Prints one frame, with the rates over one interval.
pub fn once(options: &TopArgs, look: Look) -> Outcome<()> {
    let mut app = App::new(options.interval);
    app.update(Sample::take(options.pid, |_| Vec::new()));
    thread::sleep(options.interval);
    let asked = |seen: &[ProcessStat]| objects::look(seen, PATIENCE);
    app.update(Sample::take(options.pid, asked));
    let area = Rect::new(0, 0, width(), HEIGHT);
    let mut buffer = Buffer::empty(area);
    draw_body(area, &mut buffer, &app, look);
    let mut lines = lines(&buffer);
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    let mut out = io::stdout().lock();
    for line in lines {
        writeln!(out, "{line}")?;
    }
    Ok(out.flush()?)
}

fn width() -> u16 {
    let terminal = rustix::termios::tcgetwinsize(io::stdout()).map(|size| size.ws_col);
    let told = || std::env::var("COLUMNS").ok()?.parse().ok();
    let width = terminal.ok().filter(|columns| *columns > 0).or_else(told);
    width.unwrap_or(WIDTH)
}

/// The text of a screen, without the blanks at the ends of lines.
pub fn lines(buffer: &Buffer) -> Vec<String> {
    let area = buffer.area();
    let line = |y| -> String {
        (0..area.width)
            .map(|x| buffer[(area.x + x, y)].symbol())
            .collect()
    };
    let rows = area.y..area.y + area.height;
    rows.map(|y| line(y).trim_end().to_owned()).collect()
}
