//! An object whose pages the server on this machine keeps, one copy for all programs. The
//! server's file is mapped here, the whole and parts of it, and the server reads the faults of
//! all mappings itself.
//!
//! When the link to the server ends, all pages are taken from the mappings at once, as
//! nobody answers for them any more, and touches wait. A new link to the same server, which
//! still has the same file, goes on from there. A server that was started anew has another
//! file, which takes the place of the first. Before that, each program that may write brings what was
//! written to the first, as the server's ledger says, which came with it. The memory fails where there is
//! no link in time, and where the object is not as it was.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use quire_core::units::{Bytes, VirtAddr};
use quire_linux::sysinfo::maps::FileId;
use rustix::fs::MemfdFlags;

use super::ClientError;
use super::carrier::{Form, Found};
use crate::node::ledger::{Ledger, Session};
use crate::node::{Hold, Mapping, Part, Written};
use crate::wire::control::{Handle, MappingNumber, Name, Request, Rights};

/// An object that is attached.
pub(super) struct Attached {
    name: Name,
    /// The exact spelling of its key.
    exact: Name,
    rights: Rights,
    file: OwnedFd,
    /// What of it was written.
    ledger: Option<Arc<Ledger>>,
    /// A server has other files, which take the place of these when what was written is brought.
    next: Option<Next>,
    /// As it was when it was opened.
    form: Form,
    mapped: BTreeMap<MappingNumber, Mapped>,
    /// How often the link broke.
    breaks: Arc<AtomicU64>,
    /// No server has had it yet.
    is_expected: bool,
    /// The last server that it had said at its end that it has kept all.
    is_kept: bool,
    state: State,
}

/// What another server has for it.
struct Next {
    handle: Handle,
    file: OwnedFd,
    ledger: Option<Arc<Ledger>>,
}

/// A mapping of it.
struct Mapped {
    hold: Hold,
    base: VirtAddr,
    part: Part,
    /// The server answers its faults.
    is_answered: bool,
}

enum State {
    /// The server answers the faults, or is asked to.
    Linked(Handle),
    /// There is no link, or not long enough yet; the memory fails then.
    Lost(Option<Handle>, Instant),
    /// It fails for good, for a reason.
    Failed(String),
}

impl Attached {
    /// An object of which nothing is mapped yet.
    pub fn new(
        handle: Handle,
        is: &Found,
        rights: Rights,
        files: Vec<OwnedFd>,
    ) -> Result<Attached, ClientError> {
        let (file, ledger) = of(files)?;
        Ok(Attached {
            name: is.info.name.clone(),
            exact: is.exact.clone(),
            rights,
            file,
            ledger,
            next: None,
            form: Form::from(&is.info),
            mapped: BTreeMap::new(),
            breaks: Arc::default(),
            is_expected: false,
            is_kept: false,
            state: State::Linked(handle),
        })
    }

    /// An object that a server will have, or the memory fails then. Until then its file is empty.
    pub fn expected(
        is: &Found,
        rights: Rights,
        (length, until): (Bytes, Instant),
    ) -> Result<Attached, ClientError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL;
        let file = rustix::fs::memfd_create(c"quire-dsm-expected", flags);
        let file = file.map_err(io::Error::from)?;
        rustix::fs::ftruncate(&file, length.0).map_err(io::Error::from)?;
        Ok(Attached {
            name: is.info.name.clone(),
            exact: is.exact.clone(),
            rights,
            file,
            ledger: None,
            next: None,
            form: Form::from(&is.info),
            mapped: BTreeMap::new(),
            breaks: Arc::default(),
            is_expected: true,
            is_kept: false,
            state: State::Lost(None, until),
        })
    }

    /// Whether no server has had it yet, and may still come to.
    pub const fn is_expected(&self) -> bool {
        self.is_expected && matches!(self.state, State::Lost(..))
    }

    /// Its name.
    pub const fn name(&self) -> &Name {
        &self.name
    }

    /// The exact spelling of its key.
    pub const fn exact(&self) -> &Name {
        &self.exact
    }

    /// The server's file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Takes in a mapping of the file, of which the server is to be told.
    pub fn add(&mut self, number: MappingNumber, mapping: &Mapping) {
        let mapped = Mapped {
            hold: mapping.hold(),
            base: mapping.range().start,
            part: mapping.part(),
            is_answered: false,
        };
        self.mapped.insert(number, mapped);
    }

    /// A mapping is about to go; whether it is one of this object.
    pub fn forget(&mut self, number: MappingNumber) -> bool {
        let is_known = self.mapped.remove(&number).is_some();
        self.settle();
        is_known
    }

    /// Whether a mapping is one of this object.
    pub fn has(&self, number: MappingNumber) -> bool {
        self.mapped.contains_key(&number)
    }

    /// The mappings.
    pub fn mapped(&self) -> Vec<MappingNumber> {
        self.mapped.keys().copied().collect()
    }

    /// How often the link broke since it was opened, also later.
    pub fn breaks(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.breaks)
    }

    /// What the server calls it on this link.
    pub fn handle(&self) -> Option<Handle> {
        match self.state {
            State::Linked(handle) => Some(handle),
            State::Lost(handle, _) => handle,
            State::Failed(_) => None,
        }
    }

    /// Why it can never be used again, if that is so.
    pub fn failure(&self) -> Option<ClientError> {
        match &self.state {
            State::Failed(why) => Some(ClientError::Failed {
                name: self.name.clone(),
                why: why.clone(),
            }),
            State::Linked(_) | State::Lost(..) => None,
        }
    }

    /// What tells the server of a mapping; none, where there is no link or descriptor.
    pub fn registration(&self, number: MappingNumber) -> Option<(Request, OwnedFd)> {
        let object = self.handle()?;
        let mapped = self.mapped.get(&number)?;
        let uffd = mapped.hold.uffd().try_clone_to_owned().ok()?;
        let request = Request::Register {
            object,
            mapping: number,
            start: mapped.part.start,
            length: mapped.part.len,
            base: mapped.base,
        };
        Some((request, uffd))
    }

    /// The link has ended; the memory fails then, if there is no new one. Whether the server has kept all
    /// that was written.
    pub fn lost(&mut self, until: Instant, is_kept: bool) {
        self.breaks.fetch_add(1, Ordering::SeqCst);
        self.next = None;
        let until = match self.state {
            State::Linked(_) => {
                self.is_kept = is_kept;
                until
            }
            State::Lost(_, until) => until,
            State::Failed(_) => return,
        };
        self.state = State::Lost(None, until);
        let mut is_paused = true;
        for mapped in self.mapped.values_mut() {
            mapped.is_answered = false;
            is_paused &= mapped.hold.pause();
        }
        if !is_paused {
            // They must not be seen any more, whatever the price.
            self.give_up("its pages cannot be taken away");
        }
    }

    /// Whether it waits for a new link.
    pub fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost(..))
    }

    /// What asks for it over a new link.
    pub fn again(&self) -> Request {
        let (name, rights) = (self.exact.clone(), self.rights);
        Request::Attach { name, rights }
    }

    /// It is open again, and so it is now. Where the server has other memory for it, that takes the place
    /// of what is mapped: [`Attached::go_on`], before which is brought what was written, if there is
    /// something.
    ///
    /// # Errors
    /// When it cannot go on.
    pub fn is_again(
        &mut self,
        handle: Handle,
        form: Form,
        files: Vec<OwnedFd>,
    ) -> Result<Option<(Session, Written)>, ClientError> {
        let State::Lost(_, until) = self.state else {
            return Err(ClientError::Confused);
        };
        let (file, ledger) = of(files)?;
        if form != self.form {
            return Err(ClientError::Changed(self.name.clone()));
        }
        if identity(&file)? == identity(&self.file)? {
            self.state = State::Lost(Some(handle), until);
            return Ok(None);
        }
        self.next = Some(Next {
            handle,
            file,
            ledger,
        });
        match self.rights.write && !self.is_expected && !self.is_kept {
            true => self.written(),
            false => Ok(None),
        }
    }

    /// What was written to the memory of a server that is gone and did not give all back.
    fn written(&self) -> Result<Option<(Session, Written)>, ClientError> {
        let session = self.ledger.as_ref().and_then(|ledger| ledger.session());
        let (Some(session), Some(ledger)) = (session, &self.ledger) else {
            tracing::warn!(
                "{}: the server was started again: what programs of this machine wrote and did \
                 not flush may be lost with its copies",
                self.name
            );
            return Ok(None);
        };
        let written = Written {
            memory: self.file.try_clone().map_err(ClientError::System)?,
            ledger: Arc::clone(ledger),
            page: self.form.page.bytes(),
        };
        Ok(Some((session, written)))
    }

    /// What was written is brought: the server's memory takes the place of what is mapped.
    ///
    /// # Errors
    /// When it cannot.
    pub fn go_on(&mut self) -> Result<(), ClientError> {
        let (State::Lost(_, until), Some(next)) = (&self.state, self.next.take()) else {
            return Ok(());
        };
        let until = *until;
        for mapped in self.mapped.values_mut() {
            // Without a mapping there is nothing to be looked after.
            if let Some(hold) = mapped.hold.replace(next.file.as_fd())? {
                mapped.hold = hold;
            }
        }
        (self.file, self.ledger) = (next.file, next.ledger);
        self.is_expected = false;
        self.state = State::Lost(Some(next.handle), until);
        Ok(())
    }

    /// What the server calls it that is to go on when all is brought.
    pub fn next(&self) -> Option<Handle> {
        self.next.as_ref().map(|next| next.handle)
    }

    /// The server answers the faults of a mapping.
    pub fn is_answered(&mut self, number: MappingNumber) {
        if let Some(mapped) = self.mapped.get_mut(&number) {
            mapped.is_answered = true;
        }
        self.settle();
    }

    /// When the server answers the faults of all mappings, the link is long enough there.
    fn settle(&mut self) {
        if let State::Lost(Some(handle), _) = self.state
            && self.mapped.values().all(|mapped| mapped.is_answered)
        {
            self.state = State::Linked(handle);
        }
    }

    /// When it fails.
    pub fn fails_at(&self) -> Option<Instant> {
        match self.state {
            State::Lost(_, until) if self.next.is_none() => Some(until),
            State::Lost(..) | State::Linked(_) | State::Failed(_) => None,
        }
    }

    /// It fails for good. Says what is to be closed at the server.
    pub fn give_up(&mut self, why: &str) -> Option<Handle> {
        tracing::error!("the memory of {} fails: {why}", self.name);
        self.fail();
        let handle = self.handle().or_else(|| self.next());
        self.next = None;
        self.state = State::Failed(why.to_owned());
        handle
    }

    /// Touches fail from now on, in all mappings.
    pub fn fail(&self) {
        for mapped in self.mapped.values() {
            if let Err(errno) = mapped.hold.fail() {
                tracing::error!(
                    "the memory of {} cannot be made to fail: {errno}",
                    self.name
                );
            }
        }
    }
}

/// A server's file, and its ledger, where it has one.
fn of(files: Vec<OwnedFd>) -> Result<(OwnedFd, Option<Arc<Ledger>>), ClientError> {
    let mut files = files.into_iter();
    let file = files.next().ok_or(ClientError::Confused)?;
    let ledger = files.next().map(|ledger| Arc::new(Ledger::of(ledger)));
    Ok((file, ledger))
}

fn identity(file: &OwnedFd) -> Result<FileId, ClientError> {
    let id = FileId::of(file.as_fd());
    id.map_err(|errno| ClientError::System(errno.into()))
}
