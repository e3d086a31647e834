//! What is chosen when an object is created, and which pages a message may name at all.

use std::num::NonZeroU32;

use super::Nonsense;
use crate::dsm::message::Pages;

/// What is chosen when an object is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// Size of the object, in pages of its scheduler.
    pub pages: u64,
    /// The most pages that one message may name.
    pub pages_per_message: u32,
    /// The most requests of one kernel that may wait at a time. Only `multi` needs it: it
    /// keeps a record for each.
    pub requests_per_kernel: u32,
    /// Whether the copy that is sent to a writer is kept here as well, so that its page goes
    /// back to it if the writer is gone (paper 003, section 5). Otherwise whoever backs the
    /// object is asked for what was saved last.
    pub keeps_latest_copy: bool,
    /// How many writers at most get a page one after the other while readers wait for it.
    /// Then all who wait to read it have it, and the next writer after them. `None`: writers
    /// always go first, as in the paper, and may starve readers. Only `simple` needs it:
    /// `multi` serves in the order of arrival.
    pub writers_in_a_row: Option<NonZeroU32>,
}

impl Options {
    /// The paper's choices for an object of some size in pages of its scheduler.
    #[must_use]
    pub const fn new(pages: u64) -> Options {
        Options {
            pages,
            pages_per_message: 8192,
            requests_per_kernel: 4096,
            keeps_latest_copy: true,
            writers_in_a_row: None,
        }
    }

    /// Whether a message may name these pages.
    ///
    /// # Errors
    /// There are none, too many, or some beyond the end of the object.
    pub(super) fn check(&self, pages: Pages) -> Result<(), Nonsense> {
        if pages.count == 0 {
            return Err(Nonsense("a message names no pages"));
        }
        if pages.count > self.pages_per_message {
            return Err(Nonsense("a message names too many pages"));
        }
        let end = pages.first.0.checked_add(u64::from(pages.count));
        if end.is_none_or(|end| end > self.pages) {
            return Err(Nonsense(
                "a message names pages beyond the end of the object",
            ));
        }
        Ok(())
    }
}
