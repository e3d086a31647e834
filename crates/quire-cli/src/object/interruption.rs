//! Signals that end a command: it stops at the next good moment, and leaves nothing half done. A
//! second one ends it at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::{Failure, Outcome};

/// Whether a signal has come.
pub struct Interruption {
    /// Which; 0 where none has.
    signal: Arc<AtomicUsize>,
}

impl Interruption {
    /// Watches for signals, until the process ends.
    pub fn watch() -> Outcome<Interruption> {
        let refused = |error: io::Error| Failure::system(error.to_string());
        let signal = Arc::new(AtomicUsize::new(0));
        let has_come = Arc::new(AtomicBool::new(false));
        for number in [SIGINT, SIGTERM] {
            let at_once = 128 + number;
            flag::register_conditional_shutdown(number, at_once, has_come.clone())
                .map_err(refused)?;
            flag::register(number, has_come.clone()).map_err(refused)?;
            flag::register_usize(number, signal.clone(), number as usize).map_err(refused)?;
        }
        Ok(Interruption { signal })
    }

    /// # Errors
    /// Where a signal has come, with the exit status that a shell gives for it.
    pub fn look(&self) -> Outcome<()> {
        match u8::try_from(self.signal.load(Ordering::Relaxed)) {
            Ok(0) => Ok(()),
            Ok(signal) => Err(Failure::with_status(128 + signal, "ended by a signal")),
            Err(_) => Ok(()),
        }
    }
}
