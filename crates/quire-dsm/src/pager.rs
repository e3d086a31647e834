//! Pagers: who supplies the contents of an object, and takes them back. A user writes one
//! by implementing [`Pager`], with the messages of the external pager interface by their
//! names (paper 003, Figure 1), without `memory_object_`.
//!
//! In the paper the kernel speaks to a pager that also schedules the faults. Here the fault
//! scheduler stands between: it orders the faults of all kernels, asks the pager for what
//! it does not have, and gives it what kernels have written. So a pager has one client and
//! meets each page in one version; it needs to know nothing of other machines.
//!
//! | from the paper | here |
//! |---|---|
//! | `init`, `data_request`, `data_unlock`, `data_write`, `lock_completed`, `terminate` | what a [`Pager`] is told |
//! | `set_attributes`, `data_provided`, `data_unavailable`, `lock_request` | what it says, through its [`Control`] |
//!
//! Two messages are not the paper's: `data_error` says that contents cannot be had (the
//! paper leaves the fault without an answer), and `data_written` that what was given back
//! is safe (there the pager's word was never asked for).
//!
//! A pager is called from the server's event loop, so it must not wait. It may answer at
//! once, later, in pieces, and from another thread; [`threaded`] gives any pager a thread
//! of its own, in which it may wait as it likes. What it owes is answered with an error
//! after a deadline, because faults never hang.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use quire_core::dsm::message::{Access, Lock, Pages};
use quire_core::units::Bytes;

mod backing;
mod compressed;
mod file;
mod generated;
mod stored;
mod threaded;
mod zero;

pub use backing::{Backing, Event};
pub use compressed::Compressed;
pub use file::FilePager;
pub use generated::{Generated, Writes};
pub use stored::{Readers, Stored};
pub use threaded::threaded;
pub use zero::ZeroFill;

pub use crate::store::Contents;
pub(crate) use crate::store::is_zero;

/// What a pager is told of the object that it backs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backed {
    /// The object's name.
    pub name: String,
    /// Its size; the last page may reach beyond it.
    pub size: Bytes,
    /// The size of the pages that are spoken of.
    pub page_size: Bytes,
}

/// Supplies the contents of one object.
///
/// Messages come in order. An answer may come at any time; what was not asked for is
/// dropped, with a line in the log.
pub trait Pager: Send {
    /// The object is used for the first time. The pager keeps `control`, and answers with
    /// [`Control::set_attributes`].
    fn init(&mut self, object: &Backed, control: Control);

    /// Pages are needed. Each is answered once, with [`Control::data_provided`],
    /// [`Control::data_unavailable`] or [`Control::data_error`].
    fn data_request(&mut self, pages: Pages, access: Access);

    /// Pages that were provided for reading are to be written. Answered with
    /// [`Control::lock_request`] and [`Lock::AllowWrite`], or with [`Control::data_error`].
    /// Only a pager that provides pages for reading only is asked.
    fn data_unlock(&mut self, pages: Pages) {
        let _ = pages;
    }

    /// Pages come back that were written; one without contents is all zeros. Answered with
    /// [`Control::data_written`].
    fn data_write(&mut self, pages: Pages, data: Vec<Option<Contents>>);

    /// What [`Control::lock_request`] with [`Lock::Flush`] asked for is done: what kernels
    /// had written of these pages has come with `data_write` before.
    fn lock_completed(&mut self, pages: Pages) {
        let _ = pages;
    }

    /// The object is used no more. Nothing comes after this.
    fn terminate(&mut self) {}
}

/// What a pager promises about its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// It takes pages back. Where it does not, no kernel gets a page to write to.
    pub may_write: bool,
    /// It still has what it provided, so that clean pages need not be kept for it.
    pub keeps: bool,
}

/// What pagers say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Attributes(Attributes),
    Provided(Pages, Vec<Contents>, Access),
    Unavailable(Pages),
    Error(Pages, String),
    Lock(Pages, Lock),
    Written(Pages, Result<(), String>),
}

/// Called when a pager has said something.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// The way from a pager to whoever uses the object; it can be copied, and used from any
/// thread. After `terminate` nobody listens.
#[derive(Clone)]
pub struct Control {
    said: Sender<Said>,
    wake: Waker,
}

impl Control {
    pub(crate) fn new(wake: Waker) -> (Control, mpsc::Receiver<Said>) {
        let (said, heard) = mpsc::channel();
        (Control { said, wake }, heard)
    }

    /// The pager is ready.
    pub fn set_attributes(&self, attributes: Attributes) {
        self.say(Said::Attributes(attributes));
    }

    /// What pages hold, one after the other. With [`Access::Read`] they may not be written
    /// to before `data_unlock` was answered.
    pub fn data_provided(&self, pages: Pages, data: Vec<Contents>, access: Access) {
        self.say(Said::Provided(pages, data, access));
    }

    /// Pages that nobody has written: they are all zeros, and may be written to.
    pub fn data_unavailable(&self, pages: Pages) {
        self.say(Said::Unavailable(pages));
    }

    /// What pages hold cannot be had, or they cannot be written to, because of this.
    pub fn data_error(&self, pages: Pages, why: &str) {
        self.say(Said::Error(pages, why.to_owned()));
    }

    /// What came with `data_write` is safe, or why it is not.
    pub fn data_written(&self, pages: Pages, result: Result<(), String>) {
        self.say(Said::Written(pages, result));
    }

    /// Asks for pages to be given back ([`Lock::Flush`], answered by `lock_completed`), or
    /// lets them be written to ([`Lock::AllowWrite`]).
    pub fn lock_request(&self, pages: Pages, lock: Lock) {
        self.say(Said::Lock(pages, lock));
    }

    fn say(&self, what: Said) {
        // Nobody listens after `terminate`, and that is fine.
        if self.said.send(what).is_ok() {
            (self.wake)();
        }
    }
}

impl Backed {
    /// How many pages the object has.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.size.0.div_ceil(self.page_size.0)
    }

    /// Where a page begins in the object, in bytes.
    #[must_use]
    pub const fn offset(&self, page: quire_core::dsm::message::PageNumber) -> u64 {
        page.0 * self.page_size.0
    }

    /// A page's size as a length of memory.
    #[must_use]
    pub const fn page_length(&self) -> usize {
        self.page_size.0 as usize
    }
}

/// Answers a request page by page, as a pager does that has its contents at hand.
pub(crate) fn answer_each(
    control: &Control,
    pages: Pages,
    access: Access,
    mut page: impl FnMut(u64) -> Result<Option<Contents>, String>,
) {
    for number in pages.iter() {
        let one = Pages::one(number);
        match page(number.0) {
            Ok(Some(contents)) => control.data_provided(one, vec![contents], access),
            Ok(None) => control.data_unavailable(one),
            Err(why) => control.data_error(one, &why),
        }
    }
}
