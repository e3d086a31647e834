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
    /// When the machine was found to have been asleep.
    woke: Option<Instant>,
    /// It is to be renewed now.
    is_urgent: bool,
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
                woke: None,
                is_urgent: false,
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

    /// The machine was asleep for so long until now, which the clock of the lease has not counted, and
    /// that of the directory has. What it answers to what was asked before renews nothing.
    pub fn slept(&self, now: Instant, length: Duration) {
        let mut state = self.held.lock();
        state.woke = Some(now);
        match state.ends.checked_sub(length) {
            Some(ends) => state.ends = ends,
            None => state.over = true,
        }
        state.is_urgent = true;
        self.held.wake.notify_all();
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
            Ok(_) if state.woke.is_some_and(|woke| asked < woke) => {
                self.pause = Duration::ZERO;
            }
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
        let waits = |state: &mut State| !state.dropped && !state.is_urgent;
        let waited = self.held.wake.wait_timeout_while(lock, self.pause, waits);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_urgent = false;
        state.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Embedded;
    use quire_core::dsm::message::ServerId;

    #[test]
    fn what_was_asked_before_a_sleep_renews_nothing() {
        let s = Duration::from_secs;
        let directory: Shared = Arc::new(Embedded::new(None).expect("it needs nothing"));
        let member = Member {
            id: ServerId(1),
            address: "unix:/nowhere".to_owned(),
        };
        let mut renewal = None;
        let keep = |it| {
            renewal = Some(it);
            Ok(None)
        };
        let lease = Lease::take_by(keep, Instant::now, directory, (&member, s(100)));
        let (lease, mut renewal) = (lease.expect("it is free"), renewal.expect("it is kept"));
        let asked = Instant::now();
        assert!(lease.ends() > asked + s(90));
        let woke = Instant::now() + Duration::from_millis(1);
        lease.slept(woke, s(40));
        assert!(lease.ends() < woke + s(60));
        assert!(renewal.renewed(asked, Ok(s(100))));
        assert!(lease.ends() < woke + s(60), "it was asked before");
        assert_eq!(renewal.pause(), Duration::ZERO, "it is asked again at once");
        assert!(renewal.renewed(woke, Ok(s(100))));
        assert!(lease.ends() > woke + s(90));
        assert!(!lease.is_over(woke));
        lease.slept(woke, s(400));
        assert!(lease.is_over(woke));
        assert!(!renewal.renewed(woke, Ok(s(100))), "it is not brought back");
    }
}
