//! Heartbeats: who stops when. No clock is read here: moments are counted from one of each
//! side's own, on its monotonic clock.
//!
//! A *holder* (a kernel) may use what it was given as long as its lease runs: from when it
//! sent the last heartbeat that was acknowledged. A *grantor* (a server) gives a silent
//! holder's pages to others only when the lease and a margin have gone by since it heard
//! from it. A heartbeat is heard after it was sent, so the holder's time ends first, also
//! where both clocks go wrong by up to a tenth: the margin is a quarter of the lease, and
//! `(1 + 0.1) / (1 - 0.1)` is less than 1.25.

use std::collections::VecDeque;
use std::time::Duration;

/// How long things last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// A holder has stopped all access when this has gone by without an answer.
    pub lease: Duration,
    /// A grantor waits so much longer.
    pub margin: Duration,
    /// A holder needs at most so long to stop, and so begins earlier.
    pub stopping: Duration,
    /// Between heartbeats.
    pub interval: Duration,
}

impl Terms {
    /// Terms with the usual proportions.
    #[must_use]
    pub fn new(lease: Duration) -> Terms {
        Terms {
            lease,
            margin: lease / 4,
            stopping: lease / 8,
            interval: lease / 5,
        }
    }
}

/// What a holder is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Nothing before this moment.
    WaitUntil(Duration),
    /// Send a heartbeat with this clock.
    Heartbeat(u64),
    /// Stop all access. The session is over.
    Stop,
}

/// The side that has a lease.
#[derive(Clone, Debug)]
pub struct Holder {
    terms: Terms,
    /// When the last message was sent that was acknowledged.
    renewed: Duration,
    /// Heartbeats that were sent since, oldest first.
    sent: VecDeque<Duration>,
    next: Duration,
    /// For how long its machine was asleep since then: its clock has not counted that.
    asleep: Duration,
    over: bool,
}

impl Holder {
    /// A lease that was granted by an answer to what was sent at `sent`.
    #[must_use]
    pub fn new(terms: Terms, sent: Duration) -> Holder {
        Holder {
            terms,
            renewed: sent,
            sent: VecDeque::new(),
            next: sent + terms.interval,
            asleep: Duration::ZERO,
            over: false,
        }
    }

    /// How long things last.
    #[must_use]
    pub const fn terms(&self) -> Terms {
        self.terms
    }

    /// When it begins to stop, if nothing is heard before.
    #[must_use]
    pub fn stops_at(&self) -> Duration {
        let ends = self.renewed + self.terms.lease;
        ends.saturating_sub(self.terms.stopping + self.asleep)
    }

    /// The machine was asleep for so long until now, which the clock has not counted. What is said of
    /// heartbeats that were sent before renews nothing, and the next one is due.
    pub fn slept(&mut self, length: Duration) {
        self.asleep += length;
        self.sent.clear();
        self.next = Duration::ZERO;
    }

    /// Whether it has to be stopped.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// What is to be done now. To be called again after each heartbeat.
    pub fn duty(&mut self, now: Duration) -> Duty {
        if self.over || now >= self.stops_at() {
            self.over = true;
            return Duty::Stop;
        }
        if now < self.next {
            return Duty::WaitUntil(self.next.min(self.stops_at()));
        }
        self.next = now + self.terms.interval;
        self.sent.push_back(now);
        Duty::Heartbeat(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
    }

    /// A heartbeat with this clock was acknowledged. One that was never sent renews nothing,
    /// nor does any when the lease is over. Says whether the lease runs on.
    ///
    /// Where this side was late to look, an answer that waited still counts, if the lease
    /// that it renews has not ended, too: the other side has waited on since.
    pub fn acknowledged(&mut self, now: Duration, clock: u64) -> bool {
        if self.over {
            return false;
        }
        if let Ok(at) = self.sent.binary_search(&Duration::from_nanos(clock)) {
            self.renewed = self.sent[at];
            self.asleep = Duration::ZERO;
            self.sent.drain(..=at);
        }
        self.over = now >= self.stops_at();
        !self.over
    }
}

/// The side that gave a lease.
#[derive(Clone, Debug)]
pub struct Grantor {
    terms: Terms,
    heard: Duration,
    over: bool,
}

impl Grantor {
    /// A lease that is granted now.
    #[must_use]
    pub fn new(terms: Terms, now: Duration) -> Grantor {
        Grantor {
            terms,
            heard: now,
            over: false,
        }
    }

    /// When it gives up, if nothing is heard before.
    #[must_use]
    pub fn gives_up_at(&self) -> Duration {
        self.heard + self.terms.lease + self.terms.margin
    }

    /// A heartbeat came. Says whether it is to be acknowledged: not after this side gave up.
    pub fn heartbeat(&mut self, now: Duration) -> bool {
        if !self.over {
            self.heard = self.heard.max(now);
        }
        !self.over
    }

    /// Whether the holder has been silent for so long that it has certainly stopped. Once
    /// it is so, it stays so.
    pub fn has_given_up(&mut self, now: Duration) -> bool {
        self.over = self.over || now >= self.gives_up_at();
        self.over
    }
}
