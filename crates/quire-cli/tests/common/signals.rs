//! Signals to processes of a test.

use std::process::Command;

/// Sends a signal by its name without `SIG`.
pub fn send(signal: &str, pid: u32) {
    let pid = pid.to_string();
    let status = Command::new("kill").args(["-s", signal, &pid]).status();
    assert!(status.unwrap().success());
}
