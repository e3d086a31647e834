//! A server's lease: a thread renews it, and everybody can ask until when it holds.

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
        let sent = Instant::now();
        let (id, length) = directory.join(member, length)?;
        let held = Arc::new(Held {
            state: Mutex::new(State {
                ends: end(sent, length),
                over: false,
                dropped: false,
            }),
            wake: Condvar::new(),
        });
        let theirs = held.clone();
        let thread = thread::Builder::new()
            .name("quire-lease".to_owned())
            .spawn(move || keep(&directory, id, length, &theirs))
            .map_err(|error| {
                DirectoryError::Refused("lease".to_owned(), format!("no thread: {error}"))
            })?;
        Ok(Lease {
            id,
            held,
            thread: Some(thread),
        })
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

/// Renews a lease until it is over or dropped.
fn keep(directory: &Shared, id: LeaseId, mut length: Duration, held: &Held) {
    let mut pause = length / RENEWALS;
    loop {
        let (state, _) = held
            .wake
            .wait_timeout_while(held.lock(), pause, |state| !state.dropped)
            .unwrap_or_else(PoisonError::into_inner);
        if state.dropped {
            break;
        }
        drop(state);
        let sent = Instant::now();
        let renewed = directory.renew(id);
        let mut state = held.lock();
        state.over |= Instant::now() >= state.ends;
        if state.over {
            break;
        }
        match renewed {
            Ok(granted) => {
                length = granted;
                pause = length / RENEWALS;
                state.ends = end(sent, length);
            }
            Err(DirectoryError::LeaseOver) => {
                state.over = true;
                break;
            }
            Err(error) => {
                tracing::warn!("cannot renew the lease: {error}");
                pause = length / RENEWALS / 4;
            }
        }
    }
    if let Err(error) = directory.leave(id) {
        tracing::info!("the lease ends by itself: {error}");
    }
}
