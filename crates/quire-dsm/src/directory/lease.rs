//! A server's lease: it is renewed, by a thread unless the server has another clerk, and
//! everybody can ask until when it holds.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{DirectoryError, LeaseId, Member, Shared};

/// The part of a lease that is given away to clocks that run at different speeds.
const MARGIN: u32 = 50;
/// A lease is renewed so many times while it lasts.
const RENEWALS: u32 = 3;

struct State {
    ends: Instant,
    over: bool,
    dropped: bool,
}

struct Held {
    state: Mutex<State>,
    wake: Condvar,
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server's membership, as long as it is renewed. Dropping it leaves the directory.
pub struct Lease {
    id: LeaseId,
    held: Arc<Held>,
    thread: Option<JoinHandle<()>>,
}

impl Lease {
    /// Joins a directory and keeps the lease alive, by a thread.
    ///
    /// # Errors
    /// As [`super::Directory::join`].
    pub fn take(
        directory: Shared,
        member: &Member,
        length: Duration,
    ) -> Result<Lease, DirectoryError> {
        let keep = |renewal: Renewal| renewal.by_thread().map(Some);
        Lease::take_by(keep, Instant::now, directory, (member, length))
    }

    /// Joins a directory. Somebody keeps the lease alive, by a clock, as [`super::Clerk::keep`]
    /// does.
    ///
    /// # Errors
    /// As [`super::Directory::join`].
    pub fn take_by(
        keep: impl FnOnce(Renewal) -> io::Result<Option<JoinHandle<()>>>,
        clock: fn() -> Instant,
        directory: Shared,
        (member, length): (&Member, Duration),
    ) -> Result<Lease, DirectoryError> {
        let sent = clock();
        let (id, length) = directory.join(member, length)?;
        let held = Arc::new(Held {
            state: Mutex::new(State {
                ends: end(sent, length),
                over: false,
                dropped: false,
            }),
            wake: Condvar::new(),
        });
        let renewal = Renewal {
            directory,
            clock,
            id,
            pause: length / RENEWALS,
            length,
            held: Arc::clone(&held),
        };
        let thread = keep(renewal).map_err(|error| {
            DirectoryError::Refused("lease".to_owned(), format!("no thread: {error}"))
        })?;
        Ok(Lease { id, held, thread })
    }

    /// Which it is, for [`super::Directory::propose`].
    #[must_use]
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// Until when it holds, as far as is known now.
    #[must_use]
    pub fn ends(&self) -> Instant {
        self.held.lock().ends
    }

    /// Whether it is over. Once it is, it stays so: a renewal that comes back later does
    /// not bring back what was given up.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        let mut state = self.held.lock();
        state.over |= now >= state.ends;
        state.over
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.held.lock().dropped = true;
        self.held.wake.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a lease has failed");
        }
    }
}

/// When a lease ends whose renewal was sent then.
fn end(sent: Instant, length: Duration) -> Instant {
    sent + (length - length / MARGIN)
}

/// What a clerk does for a lease: it waits for [`Renewal::pause`], asks for another
/// [`super::Directory::renew`], and says when it asked and what came of it, as long as
/// [`Renewal::renewed`] wants more; then it leaves.
pub struct Renewal {
    directory: Shared,
    clock: fn() -> Instant,
    id: LeaseId,
    length: Duration,
    pause: Duration,
    held: Arc<Held>,
}

impl Renewal {
    /// Which lease it is.
    #[must_use]
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// So long before the next attempt.
    #[must_use]
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Nobody needs the lease any more.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.held.lock().dropped
    }

    /// What came of a renewal that was asked for then. Whether the lease lives on.
    pub fn renewed(&mut self, asked: Instant, answer: Result<Duration, DirectoryError>) -> bool {
        let mut state = self.held.lock();
        state.over |= (self.clock)() >= state.ends;
        if state.over {
            return false;
        }
        match answer {
            Ok(granted) => {
                self.length = granted;
                self.pause = granted / RENEWALS;
                state.ends = end(asked, granted);
            }
            Err(DirectoryError::LeaseOver) => state.over = true,
            Err(error) => {
                tracing::warn!("cannot renew the lease: {error}");
                self.pause = self.length / RENEWALS / 4;
            }
        }
        !state.over
    }

    /// Does it by a thread.
    pub(super) fn by_thread(self) -> io::Result<JoinHandle<()>> {
        thread::Builder::new()
            .name("quire-lease".to_owned())
            .spawn(move || self.run())
    }

    fn run(mut self) {
        while !self.waits() {
            let asked = (self.clock)();
            let answer = self.directory.renew(self.id);
            if !self.renewed(asked, answer) {
                break;
            }
        }
        if let Err(error) = self.directory.leave(self.id) {
            tracing::info!("the lease ends by itself: {error}");
        }
    }

    /// Waits for the next attempt; whether the lease was dropped meanwhile.
    fn waits(&self) -> bool {
        let lock = self.held.lock();
        let waits = self
            .held
            .wake
            .wait_timeout_while(lock, self.pause, |state| !state.dropped);
        waits.unwrap_or_else(PoisonError::into_inner).0.dropped
    }
}
