//! Servers that these tests start.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Starts a server, and waits until it listens.
pub fn started(command: &mut Command) -> Child {
    let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.starts_with("serving at "), "{line}");
    server
}
