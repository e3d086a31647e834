//! Settings of the kernel are put back even if this program is killed: a process
//! of its own, which no signal to this one reaches, is told what is changed, and
//! puts back what is left when this program is gone.

use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result};

use crate::launch;

/// Where the process reads, once it runs. It lives as long as this one.
static GUARD: Mutex<Option<ChildStdin>> = Mutex::new(None);

/// Starts the process. Settings that are changed before are not looked after.
pub fn start() -> Result<()> {
    let mut child = Command::new(launch::own_program()?)
        .arg("guard")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("starting the process that puts settings back")?;
    if let Ok(mut guard) = GUARD.lock() {
        *guard = child.stdin.take();
    }
    Ok(())
}

/// A setting is about to be changed; `value` is what it was.
pub fn changes(path: &str, value: &str) {
    tell(&format!("set\t{path}\t{value}\n"));
}

/// A setting was put back.
pub fn put_back(path: &str) {
    tell(&format!("kept\t{path}\n"));
}

fn tell(line: &str) {
    if let Ok(mut guard) = GUARD.lock()
        && let Some(to) = guard.as_mut()
    {
        // Without it, settings are put back unless this program is killed.
        let _ = to.write_all(line.as_bytes());
    }
}

/// Follows what is changed until the input ends, and puts back what is left, the
/// last change first.
pub fn serve(input: impl BufRead) -> Result<()> {
    let mut changed: Vec<(String, String)> = Vec::new();
    for line in input.lines().map_while(Result::ok) {
        let mut words = line.split('\t');
        match (words.next(), words.next(), words.next()) {
            (Some("set"), Some(path), Some(value)) => changed.push((path.into(), value.into())),
            (Some("kept"), Some(path), None) => {
                if let Some(at) = changed.iter().rposition(|(other, _)| other == path) {
                    changed.remove(at);
                }
            }
            _ => {}
        }
    }
    let mut outcome = Ok(());
    for (path, value) in changed.iter().rev() {
        let written = std::fs::write(path, value);
        outcome = outcome.and(written.with_context(|| format!("writing {value} to {path}")));
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_put_back_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (kept, lost, twice) = (path("kept"), path("lost"), path("twice"));
        for file in [&kept, &lost, &twice] {
            std::fs::write(file, "now").unwrap();
        }
        let told = format!(
            "set\t{kept}\tbefore\nset\t{lost}\tbefore\nkept\t{kept}\n\
             set\t{twice}\tfirst\nset\t{twice}\tsecond\nnonsense\n"
        );
        serve(told.as_bytes()).unwrap();
        let read = |file: &str| std::fs::read_to_string(file).unwrap();
        assert_eq!(
            [read(&kept), read(&lost), read(&twice)],
            ["now", "before", "first"]
        );
    }

    #[test]
    fn what_cannot_be_put_back_is_said_and_the_rest_is() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("there").display().to_string();
        let told = format!("set\t{there}\tbefore\nset\t/nonexistent/setting\t1\n");
        assert!(serve(told.as_bytes()).is_err());
        assert_eq!(std::fs::read_to_string(&there).unwrap(), "before");
    }
}
