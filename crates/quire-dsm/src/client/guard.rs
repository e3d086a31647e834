//! What a client's mappings show is taken from them when its lease ends, also while its process is
//! stopped: by a warden, a process beside it (`quire_linux::warden`). The thread of the client would
//! take it, too, but where the process goes on after it was stopped, others of its threads may run
//! before that one, and see what is old.

use std::sync::Arc;
use std::time::Instant;

use quire_linux::scheduling::Scheduling;
use quire_linux::warden::{Term, Warden};

use crate::link::turn::PRIORITY;
use crate::node::{Mapping, Until};

/// The mappings of a client, and their warden.
pub(super) struct Guard {
    until: Until,
    warden: Stage,
    /// How it is scheduled.
    scheduling: Option<Scheduling>,
}

enum Stage {
    /// It is started with the first mapping.
    Wanted,
    Watches(#[expect(dead_code, reason = "it is there as long as this")] Warden),
    /// It is not wanted, or cannot be had.
    None,
}

impl Guard {
    /// Of a client that has no mappings yet, by the thread that is going to tell it all.
    pub fn new(is_wanted: bool, goes_first: bool) -> Guard {
        Guard {
            until: Until::default(),
            warden: match is_wanted {
                true => Stage::Wanted,
                false => Stage::None,
            },
            scheduling: goes_first.then_some(Scheduling::RoundRobin(PRIORITY)),
        }
    }

    /// Until when mappings show something.
    pub const fn term(&self) -> &Arc<Term> {
        self.until.term()
    }

    /// Has a mapping watched, before it shows anything.
    pub fn keep(&mut self, mapping: &mut Mapping) {
        if matches!(self.warden, Stage::Wanted) {
            self.warden = match Warden::start(Arc::clone(self.term()), self.scheduling) {
                Ok(warden) => Stage::Watches(warden),
                Err(error) => {
                    tracing::warn!(
                        "there is no warden ({error}): a program that is stopped for longer than \
                         its lease may see what is old for a moment when it goes on"
                    );
                    Stage::None
                }
            };
        }
        mapping.watch_until(self.term());
    }

    /// The lease ends then; or there is none, and nothing that it was for.
    pub fn set_end(&mut self, end: Option<Instant>) {
        self.until.set(end);
    }
}
