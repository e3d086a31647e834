//! Consecutive pages as few ranges, so that few messages name them.

use crate::dsm::message::{PageNumber, Pages};

/// Pages that were pushed in rising order.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs(Vec<Pages>);

impl Runs {
    pub(super) fn push(&mut self, page: PageNumber) {
        match self.0.last_mut() {
            Some(run) if run.first.0 + u64::from(run.count) == page.0 => run.count += 1,
            _ => self.0.push(Pages::one(page)),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Pages> {
        self.0.iter().copied()
    }
}
