//! `quire top`: a live view of every managed process and region.
//!
//! | module | holds |
//! |---|---|
//! | [`sample`] | one look at the processes and the machine |
//! | [`app`] | what is known and chosen: pure |
//! | [`columns`], [`rates`] | what the table shows and sorts by: pure |
//! | [`keys`] | what the keys do: pure |
//! | [`draw`], [`grid`], [`look`] | the screen as text and style: pure |
//! | [`screen`] | the terminal |
//! | [`changes`] | changes that processes are asked for |
//! | [`objects`] | what servers are asked about objects that processes have |
//! | [`once`] | one frame as text |

mod app;
mod changes;
mod columns;
mod draw;
mod grid;
mod keys;
mod look;
mod objects;
mod once;
mod rates;
mod sample;
mod screen;
#[cfg(test)]
mod testing;

use std::io::{self, IsTerminal};
use std::time::Instant;

use ratatui::crossterm::event::Event;

use crate::args::TopArgs;
use crate::failure::{Failure, Outcome};
use crate::session::managed_process;
use app::{Action, App};
use changes::Changes;
use look::Look;
use objects::Objects;
use sample::Sample;
use screen::{Happened, Screen};

/// Shows managed processes until the user has seen enough.
pub fn top(options: &TopArgs) -> Outcome<()> {
    if let Some(pid) = options.pid {
        managed_process(pid, "top")?;
    }
    let look = Look::from_environment(|name| std::env::var(name).ok());
    if options.once {
        return once::once(options, look);
    }
    check_terminal()?;
    let refused = |error| Failure::system(format!("cannot use the terminal: {error}"));
    let mut screen = Screen::enter().map_err(refused)?;
    let ended = watch(&mut screen, options, look).map_err(refused);
    drop(screen);
    match ended? {
        Some(signal) => Ok(screen::die_by(signal)?),
        None => Ok(()),
    }
}

fn check_terminal() -> Outcome<()> {
    let remedy = "`quire top --once` prints one frame, `quire stat` everything at once";
    if !io::stdout().is_terminal() {
        return Err(Failure::bad_usage(format!(
            "standard output is no terminal: {remedy}"
        )));
    }
    if std::env::var("TERM").is_ok_and(|term| term == "dumb") {
        return Err(Failure::bad_usage(format!(
            "a dumb terminal cannot show a moving picture: {remedy}"
        )));
    }
    Ok(())
}

/// Looks, draws and obeys. Says which signal ended it, if one did.
fn watch(screen: &mut Screen, options: &TopArgs, look: Look) -> io::Result<Option<i32>> {
    let mut app = App::new(options.interval);
    let mut changes = Changes::new();
    let mut looked = Instant::now();
    let mut objects = Objects::default();
    app.update(Sample::take(options.pid, |seen| objects.look(seen)));
    loop {
        screen.show(&app, look)?;
        let action = match next(screen, &mut app, &mut changes, looked)? {
            Ok(action) => action,
            Err(signal) => return Ok(Some(signal)),
        };
        match action {
            Action::None => {}
            Action::Quit => return Ok(None),
            Action::Suspend => screen.suspend()?,
            Action::Ask(key, change) => changes.start(&mut app, key, change),
            Action::Look => {
                looked = Instant::now();
                app.update(Sample::take(options.pid, |seen| objects.look(seen)));
            }
        }
    }
}

/// Waits for something that the screen must show, or for a signal to end.
fn next(
    screen: &Screen,
    app: &mut App,
    changes: &mut Changes,
    looked: Instant,
) -> io::Result<Result<Action, i32>> {
    loop {
        let due = (!app.paused).then(|| looked + app.interval);
        match screen.wait(due)? {
            Happened::Stop => return Ok(Ok(Action::Suspend)),
            Happened::Signal(signal) => return Ok(Err(signal)),
            Happened::Event(Event::Key(key)) => return Ok(Ok(keys::press(app, key))),
            Happened::Event(Event::Resize(..)) => return Ok(Ok(Action::None)),
            Happened::Event(_) | Happened::Nothing => {}
        }
        if changes.finish(app) {
            // What was changed shows at once.
            return Ok(Ok(Action::Look));
        }
        if due.is_some_and(|due| Instant::now() >= due) {
            return Ok(Ok(Action::Look));
        }
    }
}
