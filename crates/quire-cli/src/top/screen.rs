//! The terminal: taken over at the start, and given back at every end, be it a
//! panic, an error or a signal.

use std::io::{self, Stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, enable_raw_mode};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::{flag, low_level};

use super::app::App;
use super::draw::draw;
use super::look::Look;

/// How often a signal is looked for.
const ALERTNESS: Duration = Duration::from_millis(100);

/// The terminal while it is ours.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    signal: Arc<AtomicUsize>,
}

/// What happened while waiting.
pub enum Happened {
    /// An event of the terminal.
    Event(Event),
    /// The time is over.
    Nothing,
    /// A signal asks this process to stop until it is continued.
    Stop,
    /// A signal ends this process.
    Signal(i32),
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// When the terminal refuses; it is as it was then.
    pub fn enter() -> io::Result<Screen> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGTSTP] {
            flag::register_usize(number, Arc::clone(&signal), number as usize)?;
        }
        match ratatui::try_init() {
            Ok(terminal) => Ok(Screen { terminal, signal }),
            Err(error) => {
                // It may be half taken over. What went wrong is told anyway.
                let _ = ratatui::try_restore();
                Err(error)
            }
        }
    }

    /// Shows what is known.
    pub fn show(&mut self, app: &App, look: Look) -> io::Result<()> {
        self.terminal
            .draw(|frame| draw(frame.area(), frame.buffer_mut(), app, look))?;
        Ok(())
    }

    /// Waits for an event, until `end` where there is one, but not long.
    pub fn wait(&self, end: Option<Instant>) -> io::Result<Happened> {
        match self.signal.swap(0, Ordering::Relaxed) as i32 {
            0 => {}
            SIGTSTP => return Ok(Happened::Stop),
            signal => return Ok(Happened::Signal(signal)),
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if event::poll(left.unwrap_or(ALERTNESS).min(ALERTNESS))? {
            return Ok(Happened::Event(event::read()?));
        }
        Ok(Happened::Nothing)
    }

    /// Stops this process until it is continued, with the terminal as it was.
    pub fn suspend(&mut self) -> io::Result<()> {
        ratatui::try_restore()?;
        self.terminal.show_cursor()?;
        low_level::emulate_default_handler(SIGTSTP)?;
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        // A new one knows that the screen is empty. Clearing the old one would
        // ask where the cursor is, which not every terminal answers.
        self.terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = ratatui::try_restore();
        let _ = self.terminal.show_cursor();
    }
}

/// Ends this process as the signal does that it caught.
pub fn die_by(signal: i32) -> io::Result<()> {
    low_level::emulate_default_handler(signal)
}
