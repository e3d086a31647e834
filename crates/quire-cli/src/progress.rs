//! How far it is with what takes longer than a second: a bar on a terminal.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// What takes longer is shown as it goes on.
const SHOW_AFTER: Duration = Duration::from_secs(1);

/// A bar that comes after a second, where standard error is a terminal, and is taken away when it is
/// dropped.
pub struct LateBar {
    begun: Instant,
    /// How it looks, in the language of `indicatif`.
    template: &'static str,
    bar: Option<ProgressBar>,
    shows: bool,
}

impl LateBar {
    /// Something begins.
    pub fn new(template: &'static str) -> LateBar {
        LateBar {
            begun: Instant::now(),
            template,
            bar: None,
            shows: io::stderr().is_terminal(),
        }
    }

    /// So much of it is done.
    pub fn at(&mut self, done: u64, all: u64) {
        if !self.shows || self.begun.elapsed() <= SHOW_AFTER {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template(self.template);
            ProgressBar::new(all).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        bar.set_length(all);
        bar.set_position(done);
    }
}

impl Drop for LateBar {
    fn drop(&mut self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}
