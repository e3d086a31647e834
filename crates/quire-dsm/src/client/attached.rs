//! An object whose pages the server on this machine keeps, one copy for all programs. The
//! server's file is mapped here, and the server reads the faults of the mapping itself.
//!
//! When the link to the server ends, all pages are taken from the mapping at once, as
//! nobody answers for them any more, and touches wait. A new link to the same server, which
//! still has the same file, goes on from there. A server that was started anew has another
//! file, which takes the place of the first. The memory fails where there is no link in time,
//! and where the object is not as it was.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use quire_core::units::{Bytes, VirtAddr};
use quire_linux::sysinfo::maps::FileId;

use super::ClientError;
use super::carrier::Wanted;
use crate::node::{Hold, Mapping, Part};
use crate::wire::control::{Handle, Name, Request, Rights};

/// An object that is attached.
pub(super) struct Attached {
    name: Name,
    rights: Rights,
    hold: Hold,
    base: VirtAddr,
    len: Bytes,
    file: FileId,
    /// How often the link broke.
    breaks: Arc<AtomicU64>,
    state: State,
}

enum State {
    /// The server answers its faults, or is asked to.
    Linked(Handle),
    /// There is no link, or not long enough yet; the memory fails then.
    Lost(Option<Handle>, Instant),
    /// It fails for good.
    Failed,
}

impl Attached {
    /// Maps the server's file.
    pub fn new(
        handle: Handle,
        wanted: Wanted,
        part: Part,
        file: Option<OwnedFd>,
    ) -> Result<(Attached, Mapping), ClientError> {
        let file = file.ok_or(ClientError::Confused)?;
        let Wanted { name, rights, at } = wanted;
        let mapping = Mapping::new(file.as_fd(), part, at, rights.write)?;
        let attached = Attached {
            name,
            rights,
            hold: mapping.hold(),
            base: mapping.range().start,
            len: part.len,
            file: identity(&file)?,
            breaks: Arc::default(),
            state: State::Linked(handle),
        };
        Ok((attached, mapping))
    }

    /// Its name.
    pub const fn name(&self) -> &Name {
        &self.name
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
            State::Failed => None,
        }
    }

    /// What tells the server of the mapping; none, where there is no link or descriptor.
    pub fn registration(&self) -> Option<(Request, OwnedFd)> {
        let object = self.handle()?;
        let uffd = self.hold.uffd().try_clone_to_owned().ok()?;
        let base = self.base;
        Some((Request::Register { object, base }, uffd))
    }

    /// The link has ended; the memory fails then, if there is no new one.
    pub fn lost(&mut self, until: Instant) {
        self.breaks.fetch_add(1, Ordering::SeqCst);
        let until = match self.state {
            State::Linked(_) => until,
            State::Lost(_, until) => until,
            State::Failed => return,
        };
        self.state = State::Lost(None, until);
        if !self.hold.pause() {
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
        let (name, rights) = (self.name.clone(), self.rights);
        Request::Attach { name, rights }
    }

    /// It is open again, and so long. Where the server has other memory for it, that takes
    /// the place of what is mapped.
    ///
    /// # Errors
    /// When it cannot go on.
    pub fn is_again(
        &mut self,
        handle: Handle,
        len: Bytes,
        file: Option<OwnedFd>,
    ) -> Result<(), ClientError> {
        let (State::Lost(_, until), Some(file)) = (&self.state, file) else {
            return Err(ClientError::Confused);
        };
        if len != self.len {
            return Err(ClientError::Changed(self.name.clone()));
        }
        let until = *until;
        let id = identity(&file)?;
        if id != self.file {
            let replaced = self.hold.replace(file.as_fd())?;
            // Without a mapping there is nothing to be looked after.
            self.hold = replaced.unwrap_or_else(|| self.hold.clone());
            self.file = id;
        }
        self.state = State::Lost(Some(handle), until);
        Ok(())
    }

    /// The server answers its faults again.
    pub fn is_back(&mut self) {
        if let State::Lost(Some(handle), _) = self.state {
            self.state = State::Linked(handle);
        }
    }

    /// When it fails.
    pub fn fails_at(&self) -> Option<Instant> {
        match self.state {
            State::Lost(_, until) => Some(until),
            State::Linked(_) | State::Failed => None,
        }
    }

    /// It fails for good. Says what is to be closed at the server.
    pub fn give_up(&mut self, why: &str) -> Option<Handle> {
        tracing::error!("the memory of {} fails: {why}", self.name);
        if let Err(errno) = self.hold.fail() {
            tracing::error!(
                "the memory of {} cannot be made to fail: {errno}",
                self.name
            );
        }
        let handle = self.handle();
        self.state = State::Failed;
        handle
    }
}

fn identity(file: &OwnedFd) -> Result<FileId, ClientError> {
    let id = FileId::of(file.as_fd());
    id.map_err(|errno| ClientError::System(errno.into()))
}
