//! How far it is: a bar on a terminal, failures anywhere.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use quire_lab::run::Failure;
use quire_lab::runner::{Progress, Watcher};

use crate::args::Style;
use crate::failure::called;

/// Shows how it goes.
pub struct Bar {
    bar: Option<ProgressBar>,
}

impl Bar {
    /// A bar where standard error is a terminal and it is wanted.
    pub fn new(quiet: bool, style: Style) -> Bar {
        let wanted = match style {
            Style::Basic | Style::Color | Style::None => false,
            Style::Auto | Style::Full | Style::Nocolor => !quiet && io::stderr().is_terminal(),
        };
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len}  {wide_msg}");
        let bar = style.ok().filter(|_| wanted).map(|style| {
            // It is drawn when an execution begins, and by no thread in between.
            ProgressBar::new(0).with_style(style)
        });
        Bar { bar }
    }

    /// Takes it away.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Watcher for Bar {
    fn begins(&mut self, progress: &Progress<'_>) {
        let Some(bar) = &self.bar else { return };
        let left = progress
            .left
            .map_or_else(String::new, |left| format!("{} left, ", duration(left)));
        let (benchmark, variant) = (&progress.pair.benchmark.name, &progress.pair.variant.name);
        bar.update(|state| {
            state.set_len(progress.all);
            state.set_pos(progress.done);
        });
        bar.set_message(format!("{left}now {benchmark}: {variant}"));
    }

    fn failed(&mut self, failure: &Failure) {
        let (benchmark, variant) = (&failure.benchmark, &failure.variant);
        let line = format!("{}: {benchmark}: {variant}: {}", called(), failure.reason);
        let print = || {
            // The failure is in the results, too.
            let _ = writeln!(io::stderr(), "{line}");
        };
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

/// A time as people say it.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        ..10.0 => format!("{seconds:.1} s"),
        ..100.0 => format!("{seconds:.0} s"),
        ..6000.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        let of = |seconds| duration(Duration::from_secs_f64(seconds));
        assert_eq!(of(3.24), "3.2 s");
        assert_eq!(of(59.0), "59 s");
        assert_eq!(of(600.0), "10 min");
        assert_eq!(of(7200.0), "2.0 h");
    }
}
