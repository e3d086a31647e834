//! Objects as servers know them: whether they are there, how large they are, and who makes and removes
//! them. Each is asked for by the exact spelling of its key (`ages`).

use std::thread;
use std::time::Duration;

use quire_core::units::{Bytes, ObjectOffset};
use quire_dsm::client::{ClientError, Known};
use quire_dsm::wire::control::{Answer, FailureKind, Name, Object};

use crate::ages::{self, Entry};
use crate::host::Works;
use crate::trouble::{Result, Trouble};

/// What somebody else makes or removes at this moment is looked at again after this.
const PAUSE: Duration = Duration::from_millis(1);

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    Nothing,
    /// What somebody has made, and given no size yet.
    Begun(Entry),
    /// An object of this size.
    Sized(Entry, u64),
}

/// An object that is there.
#[derive(Clone, Debug)]
pub struct Found {
    /// The exact spelling of its key.
    pub exact: Name,
    pub size: u64,
    /// How often it is open, as far as this program may know.
    pub open: usize,
    /// Its name was removed.
    pub is_removed: bool,
}

/// Why there is no object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    Nothing,
    /// It is begun, and has a key that is spelled so.
    Begun(Name),
}

/// Something was removed since it was found.
pub(super) fn removed() -> Trouble {
    Trouble::new(libc::ENOENT, "the object was removed")
}

/// An object may not be written to.
pub(super) fn only_read(name: &Name) -> Trouble {
    let text = format!("{name} may only be read; quire object grant {name} NODE rw");
    Trouble::new(libc::EACCES, text)
}

/// By what a server is asked for an object.
pub(super) fn asked(entry: Entry) -> Result<Name> {
    let forgotten = || Trouble::new(libc::EBADF, "nothing is known of the object");
    ages::exact(entry).ok_or_else(forgotten)
}

impl Works {
    /// An object, if it exists, also where its name was removed.
    pub fn find(&mut self, entry: Entry) -> Result<Option<Found>> {
        Ok(self.look(entry.place, asked(entry)?)?.ok())
    }

    /// What is behind a name, or an exact spelling, or why there is nothing.
    pub(super) fn look(
        &mut self,
        place: usize,
        asked: Name,
    ) -> Result<std::result::Result<Found, Lack>> {
        match self.client(place)?.look(asked) {
            Ok(Answer::Statistics {
                exact,
                info,
                inside,
                is_discarded,
                ..
            }) => Ok(Ok(Found {
                exact,
                size: info.size.0,
                open: inside.map_or(0, |inside| inside.open as usize),
                is_removed: is_discarded,
            })),
            Ok(Answer::Begun { exact }) => Ok(Err(Lack::Begun(exact))),
            Ok(_) => Err(ClientError::Confused.into()),
            Err(ClientError::Refused(failure)) if failure.kind == FailureKind::NotFound => {
                Ok(Err(Lack::Nothing))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The exact spelling of the object of an attachment's name of which something holds: of the one
    /// that has the name now, or of one that was removed and is in use.
    pub(super) fn spelled(
        &mut self,
        place: usize,
        is_it: impl Fn(&Name) -> bool,
    ) -> Result<Option<Name>> {
        let name = self.attachment(place).object.clone();
        let living = self.look(place, name)?.ok();
        let living = living.map(|found| found.exact);
        match living.filter(&is_it) {
            Some(exact) => Ok(Some(exact)),
            None => self.spelled_removed(place, is_it),
        }
    }

    /// The same, of those that were removed.
    pub(super) fn spelled_removed(
        &mut self,
        place: usize,
        is_it: impl Fn(&Name) -> bool,
    ) -> Result<Option<Name>> {
        let name = &self.attachment(place).object;
        let listed = self.client(place)?.list()?;
        let mut removed = listed.into_iter().map(|object| object.name);
        Ok(removed.find(|exact| !exact.is_plain() && exact.plain() == *name && is_it(exact)))
    }

    /// Gives a size to what was begun, or checks that it has this one. Whether its name was removed.
    pub fn give_size(&mut self, entry: Entry, size: u64) -> Result<bool> {
        let object = Object {
            scheduler: self.attachments.scheduler,
            ..Object::usual(asked(entry)?, Bytes(size))
        };
        loop {
            match self.client(entry.place)?.give_size(object.clone()) {
                Err(ClientError::Refused(failure)) if failure.kind == FailureKind::Exists => {}
                is_removed => return Ok(is_removed?),
            }
            // Somebody was faster; the store may not have it yet, or it is gone since.
            if let Some(found) = self.find(entry)? {
                self.must_have(entry, found.size, size)?;
                return Ok(found.is_removed);
            }
            thread::sleep(PAUSE);
        }
    }

    /// Makes an object by the name of an attachment, or of what is begun by that. Where there is one
    /// already it must have this size, unless it must be a new one. Whether it was made here: then it
    /// is there until it is opened, though somebody removes its name at once.
    pub fn create(&mut self, place: usize, size: u64, only_new: bool) -> Result<(Entry, bool)> {
        loop {
            match self.begin(place) {
                Ok(entry) => return self.sized(entry, size),
                Err(trouble) if trouble.errno != libc::EEXIST || only_new => return Err(trouble),
                Err(_) => {}
            }
            match self.named(place)? {
                Meaning::Sized(entry, is) => {
                    return self.must_have(entry, is, size).map(|()| (entry, false));
                }
                Meaning::Begun(entry) => return self.sized(entry, size),
                // It is gone since, or the store does not have it yet.
                Meaning::Nothing => thread::sleep(PAUSE),
            }
        }
    }

    /// Makes an object of what was begun.
    fn sized(&mut self, entry: Entry, size: u64) -> Result<(Entry, bool)> {
        if self.give_size(entry, size)? {
            self.has_no_name(entry)?;
        }
        Ok((entry, true))
    }

    /// What an object holds, and what a child needs to know of it where it was opened for this.
    pub fn read_at(
        &mut self,
        entry: Entry,
        offset: u64,
        length: usize,
    ) -> Result<(Vec<u8>, Option<Known>)> {
        let known = self.open(entry)?;
        let open = self.open.get(&entry).ok_or_else(removed)?;
        let mut bytes = vec![0; length];
        let read = open
            .shared
            .checked_read_at(ObjectOffset(offset), &mut bytes);
        self.close_unused(entry);
        read?;
        Ok((bytes, known))
    }

    /// Writes to an object.
    pub fn write_at(&mut self, entry: Entry, offset: u64, bytes: &[u8]) -> Result<Option<Known>> {
        let known = self.open(entry)?;
        let open = self.open.get(&entry).ok_or_else(removed)?;
        if !open.writable {
            return Err(only_read(&open.shared.info().name));
        }
        let written = open.shared.checked_write_at(ObjectOffset(offset), bytes);
        self.close_unused(entry);
        written?;
        Ok(known)
    }

    /// Whether an object that exists has this size.
    pub fn check_size(&mut self, entry: Entry, size: u64) -> Result<()> {
        let found = self.find(entry)?.ok_or_else(removed)?;
        self.must_have(entry, found.size, size)
    }

    fn must_have(&self, entry: Entry, is: u64, size: u64) -> Result<()> {
        if is == size {
            return Ok(());
        }
        let name = &self.attachment(entry.place).object;
        let text = format!(
            "{name} has {is} bytes, and the program asks for {size}: an object keeps its size; \
             remove it first (quire object rm {name})"
        );
        Err(Trouble::new(libc::EINVAL, text))
    }

    /// Takes its name from an object, which goes when nobody uses it any more.
    pub fn remove(&mut self, entry: Entry) -> Result<()> {
        self.client(entry.place)?.discard(asked(entry)?)?;
        self.has_no_name(entry)
    }

    /// An object has no name, and is used no more when the program ends.
    pub fn has_no_name(&mut self, entry: Entry) -> Result<()> {
        if self.open.contains_key(&entry) {
            self.removed.insert(entry);
        }
        Ok(())
    }

    /// Removes an object that nobody uses.
    pub(super) fn remove_now(&mut self, entry: Entry) -> Result<()> {
        Ok(self.client(entry.place)?.remove(asked(entry)?)?)
    }
}
