//! What kernels and servers say to each other about one memory object (paper 003, Figure
//! 1). The names are the paper's, without `memory_object_`.
//!
//! Messages between two parties arrive in the order in which they were sent, each once. A
//! link that cannot promise this any more has failed, and both parties are told so.
//!
//! Contents are a type parameter: a page of memory where it is run, a number where it is
//! checked. A page that nobody has ever written has none (`None`): it is all zeros, and
//! nothing is sent for it (the paper's `data_unavailable`).

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, ObjectOffset};

/// A page of an object, counted in pages of its scheduler.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PageNumber(pub u64);

/// Consecutive pages of an object, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pages {
    /// The first of them.
    pub first: PageNumber,
    /// How many there are.
    pub count: u32,
}

impl Pages {
    /// A single page.
    #[must_use]
    pub const fn one(page: PageNumber) -> Pages {
        Pages {
            first: page,
            count: 1,
        }
    }

    /// The pages of `size` bytes (at least 1) that hold `length` bytes (at least 1) from
    /// `offset` on: requests are rounded up to the pages of the scheduler (paper 003, section
    /// 3.1). `None` where there are more than a message can name.
    #[must_use]
    pub fn covering(offset: ObjectOffset, length: Bytes, size: Bytes) -> Option<Pages> {
        let first = offset.0.checked_div(size.0)?;
        let last = offset.0.checked_add(length.0.checked_sub(1)?)? / size.0;
        Some(Pages {
            first: PageNumber(first),
            count: u32::try_from(last - first + 1).ok()?,
        })
    }

    /// Each of them, in order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = PageNumber> + Clone {
        (self.first.0..self.first.0 + u64::from(self.count)).map(PageNumber)
    }

    /// Whether a page is among them.
    #[must_use]
    pub const fn contains(self, page: PageNumber) -> bool {
        page.0 >= self.first.0 && page.0 - self.first.0 < self.count as u64
    }

    /// Whether any page is among both.
    #[must_use]
    pub const fn overlaps(self, other: Pages) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    /// Whether the others begin where these end.
    #[must_use]
    pub const fn is_followed_by(self, others: Pages) -> bool {
        self.first.0 + self.count as u64 == others.first.0
    }
}

/// What a program does to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

impl Access {
    /// That of who writes, or else only reads.
    #[must_use]
    pub const fn of(writes: bool) -> Access {
        match writes {
            true => Access::Write,
            false => Access::Read,
        }
    }
}

/// A kernel, among all that ever spoke with the same server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KernelId(pub u64);

/// A server, among all of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ServerId(pub u64);

/// Who asks a scheduler for pages: a kernel, or a peer server, which is treated like one
/// (paper 003, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Client {
    /// A kernel.
    Kernel(KernelId),
    /// A peer server.
    Server(ServerId),
}

/// From a kernel to its server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FromKernel<D> {
    /// It has none of these pages and needs them, all at once.
    DataRequest {
        /// Which.
        pages: Pages,
        /// What for.
        access: Access,
    },
    /// It has these pages to be read and needs to write. Where some were flushed, meanwhile
    /// or before, it needs those with their contents. It names none that it let go of on its
    /// own, as nobody but itself knows that, and until it is answered, it lets go of none
    /// unless it is asked to.
    DataUnlock {
        /// Which.
        pages: Pages,
    },
    /// It gives back pages that it has written. It does so on its own, or before it says
    /// that a flush is done.
    DataWrite {
        /// Which.
        pages: Pages,
        /// What each of them holds.
        data: Vec<Option<D>>,
    },
    /// What [`ToKernel::LockRequest`] with [`Lock::Flush`] asked for is done, once for each
    /// that was sent: it has none of these pages any more, and has given back those that it
    /// had written.
    LockCompleted {
        /// Which.
        pages: Pages,
    },
    /// It has given back what it had written, keeps nothing, and wants nothing any more. It
    /// takes nothing that still arrives, and sends nothing after this, but for answers to
    /// flushes that reach it late; whoever wants the object again, does so under a new
    /// [`KernelId`].
    Terminate,
}

/// From a server to a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ToKernel<D> {
    /// The pages that it asked for.
    DataProvided {
        /// Which.
        pages: Pages,
        /// What each of them holds.
        data: Vec<Option<D>>,
        /// What it may do to them.
        access: Access,
    },
    /// A change of what it may do to pages that it has.
    LockRequest {
        /// Which.
        pages: Pages,
        /// The change.
        lock: Lock,
    },
    /// The latest contents of these pages are lost, for good.
    DataError {
        /// Which.
        pages: Pages,
    },
}

impl<D> ToKernel<D> {
    /// The pages that it is about.
    #[must_use]
    pub const fn pages(&self) -> Pages {
        match self {
            ToKernel::DataProvided { pages, .. }
            | ToKernel::LockRequest { pages, .. }
            | ToKernel::DataError { pages } => *pages,
        }
    }

    /// Appends what is said next to the same kernel, where it says the same of the pages behind
    /// these; otherwise gives it back.
    pub fn append(&mut self, next: ToKernel<D>) -> Option<ToKernel<D>> {
        if !self.pages().is_followed_by(next.pages()) {
            return Some(next);
        }
        match (self, next) {
            (
                ToKernel::DataProvided {
                    pages,
                    data,
                    access,
                },
                ToKernel::DataProvided {
                    pages: more,
                    data: contents,
                    access: same,
                },
            ) if *access == same => {
                pages.count += more.count;
                data.extend(contents);
                None
            }
            (
                ToKernel::LockRequest { pages, lock },
                ToKernel::LockRequest {
                    pages: more,
                    lock: same,
                },
            ) if *lock == same => {
                pages.count += more.count;
                None
            }
            (_, next) => Some(next),
        }
    }
}

/// A change of what a kernel may do to pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Lock {
    /// It shall give them back. It answers with [`FromKernel::LockCompleted`], also where it
    /// does not have them any more.
    Flush,
    /// It may write to them, as it wanted to. It passes over those that it has given back
    /// meanwhile: an answer of several messages lets it go on before the last is here.
    AllowWrite,
}
