//! What the `multi` scheduler knows of one page.

use super::request::Index;
use crate::dsm::message::{Client, KernelId};
use crate::dsm::scheduler::contents::Contents;
use crate::dsm::scheduler::few::Few;
use crate::dsm::scheduler::observe::{Aside, Fault, PageStats, PageStatus, State};

/// One page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Page<D> {
    pub(super) contents: Contents<D>,
    /// Who may write to it.
    pub(super) writer: Option<KernelId>,
    /// Who has a copy to be read.
    pub(super) readers: Few<KernelId>,
    /// Those of them who were sent a flush and have not answered it.
    pub(super) answers: Few<KernelId>,
    /// The writer was sent a flush and has given the contents back, but not answered yet.
    pub(super) returned: bool,
    /// Whoever backs the object was asked for it.
    pub(super) loading: bool,
    /// The request that waits for those answers.
    pub(super) awaited: Option<Index>,
    /// The last request that waits for the page.
    pub(super) last: Option<Index>,
    pub(super) stats: Aside<PageStats>,
}

/// What a request gets of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Grant<D> {
    /// Its contents.
    Contents(Option<D>),
    /// The right to write to the copy that it has.
    AllowWrite,
    /// Nothing: they are lost.
    Lost,
}

impl<D: Clone> Page<D> {
    /// A page that nobody has asked for yet.
    pub(super) fn untouched() -> Page<D> {
        Page {
            contents: Contents::Absent,
            writer: None,
            readers: Few::new(),
            answers: Few::new(),
            returned: false,
            loading: false,
            awaited: None,
            last: None,
            stats: Aside::default(),
        }
    }

    /// Everybody who stands in the way of a request has to answer. Its kernel's own copies
    /// do where it says that it has none: one to be read is dropped already, one to be
    /// written to is taken back first.
    pub(super) fn deschedule(&mut self, kernel: KernelId, fault: Fault) {
        let keeps = |holder: KernelId| holder == kernel && fault == Fault::Unlock;
        self.answers
            .extend(self.writer.filter(|&writer| !keeps(writer)));
        if fault == Fault::Write {
            self.readers.remove(&kernel);
        }
        if fault != Fault::Read {
            let others = self.readers.iter().filter(|&&reader| reader != kernel);
            self.answers.extend(others);
        }
    }

    /// Whether a request needs contents that are neither here nor will be given back.
    pub(super) fn must_load(&self, kernel: KernelId, fault: Fault) -> bool {
        let absent = matches!(self.contents, Contents::Absent);
        absent && self.answers.is_empty() && !self.keeps_copy(kernel, fault)
    }

    /// Whether somebody has to answer.
    pub(super) fn waits(&self) -> bool {
        self.loading || !self.answers.is_empty()
    }

    /// A request gets it.
    pub(super) fn grant(&mut self, kernel: KernelId, fault: Fault) -> Grant<D> {
        let keeps_copy = self.keeps_copy(kernel, fault);
        let grant = match &self.contents {
            _ if keeps_copy => Grant::AllowWrite,
            Contents::Here(data) => Grant::Contents(data.clone()),
            Contents::Absent | Contents::Lost => return Grant::Lost,
        };
        if fault == Fault::Read {
            self.readers.insert(kernel);
        } else {
            self.readers.remove(&kernel);
            self.writer = Some(kernel);
        }
        grant
    }

    /// Its writer gives back the contents.
    pub(super) fn data_write(&mut self, kernel: KernelId, data: Option<D>) {
        self.contents = Contents::Here(data);
        if self.answers.contains(&kernel) {
            self.returned = true;
        } else {
            self.writer = None;
        }
    }

    /// The latest contents come from somebody else than the writer, who is gone. Whether they are
    /// taken.
    pub(super) fn restore(&mut self, data: Option<D>) -> bool {
        let is_free = self.writer.is_none()
            && self.readers.is_empty()
            && self.answers.is_empty()
            && self.last.is_none()
            && !self.loading;
        if is_free {
            self.contents = Contents::Here(data);
        }
        is_free
    }

    /// A kernel has no copy any more. Whether that was waited for.
    pub(super) fn dropped(&mut self, kernel: KernelId) -> bool {
        if self.writer == Some(kernel) {
            self.writer = None;
            self.returned = false;
        }
        self.readers.remove(&kernel);
        self.answers.remove(&kernel)
    }

    /// Whoever backs the object has the contents, too. They go, unless somebody waits for
    /// them; who waits for a writer waits for newer ones.
    pub(super) fn release(&mut self) -> bool {
        let is_free = self.last.is_none() || (self.writer.is_some() && !self.returned);
        let goes = is_free && matches!(self.contents, Contents::Here(_));
        if goes {
            self.contents = Contents::Absent;
        }
        goes
    }

    /// How many faults it had.
    pub(super) fn faults(&self) -> u64 {
        self.stats.0.faults.total()
    }

    /// What is known of it, with how many readers and writers wait for it.
    pub(super) fn status(&self, readers: usize, writers: usize) -> PageStatus {
        let state = match (writers, self.last, self.writer) {
            (1.., _, _) => State::WriteWait,
            (0, Some(_), _) => State::ReadWait,
            (0, None, Some(_)) => State::Write,
            (0, None, None) => State::Read,
        };
        PageStatus {
            state,
            owner: self.writer.map(Client::Kernel),
            readers: self.readers.len(),
            waiting_readers: readers,
            waiting_writers: writers,
            here: matches!(self.contents, Contents::Here(_)),
            lost: matches!(self.contents, Contents::Lost),
            stats: self.stats.0,
        }
    }

    fn keeps_copy(&self, kernel: KernelId, fault: Fault) -> bool {
        let has_copy = self.writer == Some(kernel) || self.readers.contains(&kernel);
        has_copy && fault == Fault::Unlock
    }
}
