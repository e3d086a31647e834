//! `quire set`: changes the settings of a running process, through the socket
//! that it keeps in its session directory.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use quire_core::control::{Change, DONE, MAX_LINE};

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
pub fn ask(process: &Managed, change: &Change) -> Outcome<()> {
    let pid = process.stat.pid;
    let answer = exchange(process, change).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Failure::bad_usage(format!(
            "process {pid} takes no changes: it has asked for too little memory to be managed, or is ending"
        )),
        io::ErrorKind::PermissionDenied => Failure::bad_usage(format!(
            "process {pid} belongs to another user: try it with sudo"
        )),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Failure::system(format!(
            "process {pid} did not answer within {} s: it may be stopped",
            PATIENCE.as_secs()
        )),
        _ => Failure::system(format!("cannot reach process {pid}: {error}")),
    })?;
    match answer.as_str() {
        DONE => Ok(()),
        refused => Err(Failure::system(format!("process {pid}: {refused}"))),
    }
}

fn exchange(process: &Managed, change: &Change) -> io::Result<String> {
    // An abstract name that the kernel chooses, so that there is a way back.
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(b"")?)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.send_to(change.to_string().as_bytes(), process.control())?;
    let mut line = [0; MAX_LINE];
    let len = socket.recv(&mut line)?;
    Ok(String::from_utf8_lossy(&line[..len]).into_owned())
}
