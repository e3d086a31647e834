//! The wish of the user that a run ends: Ctrl-C and its like.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;
use signal_hook::{flag, low_level::pipe};

/// The signals that ask a program to end.
const SIGNALS: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// Whether a run shall end.
#[derive(Debug)]
pub struct Interrupt {
    arrived: Arc<AtomicUsize>,
    // It can be read from the first signal on.
    wakes: UnixStream,
}

impl Interrupt {
    /// Listens for signals from now on. Those that this process was started to ignore
    /// stay ignored.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn listen() -> io::Result<Interrupt> {
        let (wakes, wake) = UnixStream::pair()?;
        wakes.set_nonblocking(true)?;
        let arrived = Arc::new(AtomicUsize::new(0));
        let ignored = ignored();
        for signal in SIGNALS.map(Signal::as_raw) {
            if ignored & 1 << (signal - 1) != 0 {
                continue;
            }
            flag::register_usize(signal, arrived.clone(), signal as usize)?;
            pipe::register(signal, wake.try_clone()?)?;
        }
        Ok(Interrupt { arrived, wakes })
    }

    /// The signal that arrived, if one has.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        let signal = self.arrived.load(Ordering::Relaxed);
        i32::try_from(signal).ok().filter(|signal| *signal != 0)
    }

    /// What becomes readable when a signal arrives.
    pub(super) fn wakes(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }

    /// Puts a signal back that was forgotten, unless another one has arrived.
    pub(super) fn remember(&self, signal: Option<i32>) {
        let signal = signal.and_then(|signal| usize::try_from(signal).ok());
        let exchange = (Ordering::Relaxed, Ordering::Relaxed);
        // Where another arrived, that one counts.
        let _ = self
            .arrived
            .compare_exchange(0, signal.unwrap_or(0), exchange.0, exchange.1);
    }

    /// Forgets the signal, so that what is to be done at the end can be.
    pub(super) fn forget(&self) {
        self.arrived.store(0, Ordering::Relaxed);
        let mut bytes = [0; 64];
        while (&self.wakes).read(&mut bytes).is_ok_and(|n| n > 0) {}
    }
}

/// The signals that this process ignores, as a set of bits.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .unwrap_or(0)
}
