//! Objects that the program has opened, and names that it has removed: an open descriptor counts as
//! use, and a program does not find by its name what it has removed, though it uses it.

use quire_dsm::client::Known;

use crate::host::{Entry, Works};
use crate::made;
use crate::state::FileId;
use crate::trouble::{Result, Trouble};

impl Works {
    /// What a name stands for, as this program sees it: the size of the object, if there is one.
    pub fn named(&mut self, entry: Entry) -> Result<Option<u64>> {
        self.let_go();
        if self.is_removed(entry) {
            return Ok(None);
        }
        Ok(self.find(entry)?.map(|(size, _)| size))
    }

    /// Whether the program has removed an object that it still uses.
    fn is_removed(&self, entry: Entry) -> bool {
        let removed = self.removed.get(&entry);
        let is_this = removed.is_some_and(|removed| removed.made == made::times(entry));
        is_this && self.open.contains_key(&entry)
    }

    /// The program has a descriptor of an object, which stays open as long as that.
    pub fn hold(&mut self, entry: Entry, file: FileId) -> Result<Option<Known>> {
        let known = self.open(entry)?;
        self.uses.add(entry, file);
        Ok(known)
    }

    /// Removes a name. An object that is in use goes when it is not, if this program is the last;
    /// then it says how often the object had been made.
    pub fn unlink(&mut self, entry: Entry) -> Result<Option<u64>> {
        self.let_go();
        match self.is_removed(entry) {
            true => Err(Trouble::new(libc::ENOENT, "the object was removed")),
            false => self.remove(entry),
        }
    }

    /// A new object is to be made in the place of one that the program has removed. Whether it had.
    pub fn make_room(&mut self, entry: Entry) -> Result<bool> {
        match self.is_removed(entry) {
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
        match cleared {
            Ok(()) => drop(self.removed.remove(&entry)),
            Err(_) if files.is_empty() => {}
            Err(_) => {
                self.uses.put(entry, files);
                // Where it cannot be had again, the log says so when it is used.
                let _ = self.open(entry);
            }
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
