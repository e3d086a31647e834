//! Objects that the program has opened, and names that it has removed: an open descriptor counts as
//! use, and a program does not find by its name what it has removed, though it uses it.

use quire_dsm::client::Known;

use crate::host::{Entry, Meaning, Works};
use crate::state::FileId;
use crate::trouble::Result;

impl Works {
    /// What a name stands for. What was removed and is in use has none.
    pub fn named(&mut self, entry: Entry) -> Result<Meaning> {
        self.let_go();
        Ok(match self.look(entry)? {
            Ok(found) if found.is_removed => Meaning::Nothing,
            Ok(found) => Meaning::Sized(found.size),
            Err(named) => named,
        })
    }

    /// The program has a descriptor of an object, which stays open as long as that.
    pub fn hold(&mut self, entry: Entry, file: FileId) -> Result<Option<Known>> {
        let known = self.open(entry)?;
        self.uses.add(entry, file);
        Ok(known)
    }

    /// Begins an object: it has a name, and no size yet.
    pub fn begin(&mut self, entry: Entry) -> Result<()> {
        let name = self.attachment(entry).object.clone();
        Ok(self.client(entry)?.begin(name)?)
    }

    /// Makes an object that the program has begun. Where somebody has removed its name since, it goes
    /// when nobody uses it; whether it has a name.
    pub fn give_size(&mut self, entry: Entry, size: u64, has_name: bool) -> Result<bool> {
        let has_name = has_name && self.named(entry)? != Meaning::Nothing;
        self.create(entry, size, !has_name)?;
        Ok(has_name)
    }

    /// A new object is to be made in the place of one whose name was removed, and that this program
    /// has open. Whether it had.
    pub fn make_room(&mut self, entry: Entry) -> Result<bool> {
        let is_removed = self.open.contains_key(&entry)
            && self.find(entry)?.is_some_and(|found| found.is_removed);
        match is_removed {
            true => self.clear(entry).map(|()| true),
            false => Ok(false),
        }
    }

    /// Removes an object that this program uses by descriptors at most, which come to nothing.
    pub fn clear(&mut self, entry: Entry) -> Result<()> {
        if self.open.get(&entry).is_some_and(|open| open.mappings > 0) {
            // The server says who has it open.
            return self.remove_now(entry);
        }
        let files = self.uses.take(entry);
        self.close(entry);
        let cleared = match self.remove_now(entry) {
            Err(trouble) if trouble.errno == libc::ENOENT => Ok(()),
            cleared => cleared,
        };
        if cleared.is_err() && !files.is_empty() {
            self.uses.put(entry, files);
            // Where it cannot be had again, the log says so when it is used.
            let _ = self.open(entry);
        }
        cleared
    }

    /// Closes what the program has no descriptor of any more, and no mapping.
    pub fn let_go(&mut self) {
        self.uses.look();
        for entry in self.open.keys().copied().collect::<Vec<_>>() {
            self.close_unused(entry);
        }
    }

    /// Whether an object is open only because of descriptors.
    pub fn waits_for_closing(&self) -> bool {
        self.open.values().any(|open| open.mappings == 0)
    }
}
