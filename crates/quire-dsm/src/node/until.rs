//! Until when memory may be shown, as event loops count time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quire_linux::revoker::Term;

/// A term whose end is set by who has a lease.
#[derive(Debug, Default)]
pub struct Until {
    term: Arc<Term>,
    end: Option<Instant>,
}

impl Until {
    /// The term, for mappings and caches.
    #[must_use]
    pub const fn term(&self) -> &Arc<Term> {
        &self.term
    }

    /// It ends then; or it has no end.
    pub fn set(&mut self, end: Option<Instant>) {
        if end == self.end {
            return;
        }
        self.end = end;
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let now = Duration::from_nanos(super::now().0);
        self.term.set_end(left.map(|left| now + left));
    }
}
