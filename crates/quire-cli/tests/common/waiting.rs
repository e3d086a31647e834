//! Waiting for what processes do.

use std::fs;
use std::time::{Duration, Instant};

/// Waits until a condition holds, for a while.
pub fn wait_for(condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "nothing happened");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The letter of a process's state, as `ps` shows it.
pub fn state(pid: u32) -> char {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    rest.chars().next().unwrap_or('?')
}
