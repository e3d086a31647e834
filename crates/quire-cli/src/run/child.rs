//! Stands in for a running child: passes signals on, stops and continues with
//! it, and waits for its end.

use std::io;

use quire_linux::sysinfo::signals::{Arrived, ChildEvent, Ended, Signals, poll_child};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, getpgrp, getpid, kill_process};

/// Waits for the end of child `pid`.
pub fn stand_in(pid: u32, signals: &Signals) -> io::Result<Ended> {
    loop {
        while let Some(event) = poll_child(pid)? {
            match event {
                ChildEvent::Ended(ended) => return Ok(ended),
                ChildEvent::Stopped(signal) if concerns_us(signal) => stop(),
                ChildEvent::Stopped(_) | ChildEvent::Continued => {}
            }
        }
        let arrived = signals.wait()?;
        if is_passed_on(arrived) {
            arrived.pass_on(pid);
        }
    }
}

/// Whether the child needs to be sent a signal that arrived here. What a key of the terminal
/// raises, or an access from the background, went to the whole process group, and so to the child
/// already; if that stops, so does this process. A broken pipe is this process's own.
pub(crate) fn is_passed_on(arrived: Arrived) -> bool {
    let is_one = |signals: &[Signal]| signals.iter().any(|it| it.as_raw() == arrived.number);
    let of_terminal = is_one(&[
        Signal::INT,
        Signal::QUIT,
        Signal::WINCH,
        Signal::TSTP,
        Signal::TTIN,
        Signal::TTOU,
    ]);
    let ours = is_one(&[Signal::CHILD, Signal::PIPE]);
    let known = of_terminal && arrived.from_kernel;
    !ours && !known
}

/// Whether a stop of the child must stop us too, so that the shell takes the
/// terminal back: it is one of job control, or we hold the terminal.
pub(crate) fn concerns_us(signal: i32) -> bool {
    signal != Signal::STOP.as_raw() || holds_terminal()
}

fn holds_terminal() -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::open(c"/dev/tty", flags, Mode::empty())
        .and_then(rustix::termios::tcgetpgrp)
        .is_ok_and(|group| group == getpgrp())
}

/// Stops this process. The SIGCONT that ends the stop is passed on like any
/// other signal.
pub(crate) fn stop() {
    // A process may always signal itself.
    let _ = kill_process(getpid(), Signal::STOP);
}
