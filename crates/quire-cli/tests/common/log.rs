//! What clients in a test's own process say.

use std::io::{self, Write};
use std::sync::{Mutex, Once, PoisonError};

static SAID: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Keeps what is said from now on, by all tests of the process.
pub fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let subscriber = tracing_subscriber::fmt().with_ansi(false);
        subscriber.with_writer(|| Keeper).init();
    });
}

/// The lines that have some words in them.
pub fn said(words: &str) -> Vec<String> {
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let said = String::from_utf8_lossy(&said);
    let lines = said.lines().filter(|line| line.contains(words));
    lines.map(str::to_owned).collect()
}

struct Keeper;

impl Write for Keeper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(bytes);
        io::stderr().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
