//! What a client's mappings show is taken from them when its lease ends, also while its process is
//! stopped: by a revoker, a process beside it (`quire_linux::revoker`). The thread of the client would
//! take it, too, but where the process goes on after it was stopped, others of its threads may run
//! before that one, and see what is old.

use std::sync::Arc;
use std::time::Instant;

use quire_linux::revoker::{Revoker, Term};
use quire_linux::scheduling::Scheduling;

use crate::link::turn::PRIORITY;
use crate::node::{Mapping, Until};

/// The mappings of a client, and their revoker.
pub(super) struct Guard {
    until: Until,
    revoker: Stage,
    /// How it is scheduled.
    scheduling: Option<Scheduling>,
}

enum Stage {
    /// It is started with the first mapping.
    Wanted,
    Watches(#[expect(dead_code, reason = "it is there as long as this")] Revoker),
    /// It is not wanted, or cannot be had.
    None,
}

impl Guard {
    /// Of a client that has no mappings yet, by the thread that is going to tell it all.
    pub fn new(is_wanted: bool, goes_first: bool) -> Guard {
        Guard {
            until: Until::default(),
            revoker: match is_wanted {
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
        if matches!(self.revoker, Stage::Wanted) {
            self.revoker = match Revoker::start(Arc::clone(self.term()), self.scheduling) {
                Ok(revoker) => Stage::Watches(revoker),
                Err(error) => {
                    tracing::warn!(
                        "there is no revoker ({error}): a program that is stopped for longer than \
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
