//! `quire set`: changes the settings of a running process, through the socket
//! that it keeps in its session directory.

use std::io;
use std::time::Duration;

use quire_core::control::{Change, DONE};
use quire_linux::sysinfo::process;
use quire_linux::{Errno, control};

use crate::args::SetArgs;
use crate::failure::{Failure, Outcome};
use crate::session::{Managed, managed_process};

/// How long a process may take to answer. It answers from a thread of its own,
/// which is only held up while the machine is.
const PATIENCE: Duration = Duration::from_secs(5);

/// Changes the settings of a process.
pub fn set(options: &SetArgs) -> Outcome<()> {
    let mut change = Change::default();
    for word in &options.settings {
        change
            .add(word)
            .map_err(|error| Failure::bad_usage(error.to_string()))?;
    }
    ask(&managed_process(options.pid, "set")?, &change)
}

/// Asks a process for a change and waits until it is made.
pub fn ask(managed: &Managed, change: &Change) -> Outcome<()> {
    match ask_line(managed, &change.to_string())?.as_str() {
        DONE => Ok(()),
        refused => Err(Failure::system(format!(
            "process {}: {refused}",
            managed.stat.pid
        ))),
    }
}

/// Sends a line to a process and waits for its answer.
pub fn ask_line(managed: &Managed, line: &str) -> Outcome<String> {
    let pid = managed.stat.pid;
    let is_there = || process::is_alive(pid, managed.stat.start_time);
    let asked = control::ask(&managed.control(), line, PATIENCE, is_there);
    asked.map_err(|error| refusal(pid, error))
}

/// Why a process could not be asked.
fn refusal(pid: u32, Errno(errno): Errno) -> Failure {
    let error = io::Error::from_raw_os_error(errno);
    match errno {
        libc::ENOENT | libc::ECONNREFUSED => Failure::bad_usage(format!(
            "process {pid} takes no changes: it has not asked for enough memory to be managed, \
             or is ending"
        )),
        libc::ESRCH => Failure::bad_usage(format!("process {pid} ended before it answered")),
        libc::EACCES | libc::EPERM => Failure::bad_usage(format!(
            "process {pid} belongs to another user: try it with sudo"
        )),
        libc::ETIMEDOUT => Failure::system(format!(
            "process {pid} did not answer within {} s: it may be stopped",
            PATIENCE.as_secs()
        )),
        _ => Failure::system(format!("cannot reach process {pid}: {error}")),
    }
}
