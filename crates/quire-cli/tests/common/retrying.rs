//! Trying again.

use std::thread;
use std::time::{Duration, Instant};

/// Everything that waits for failures ends within this.
pub const SOON: Duration = Duration::from_secs(40);

/// Does something again until it can be done.
pub fn until_done<T, E: std::fmt::Display>(act: impl Fn() -> Result<T, E>) -> T {
    let begin = Instant::now();
    loop {
        match act() {
            Ok(done) => return done,
            Err(error) => assert!(begin.elapsed() < SOON, "{error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}
