//! Objects that the program has opened, and names that it has removed: an open descriptor counts as
//! use, and a program does not find by its name what it has removed, though it uses it.

use quire_dsm::client::Known;

use crate::ages::{self, Entry};
use crate::host::objects::{Lack, asked, removed};
use crate::host::{Meaning, Works};
use crate::state::FileId;
use crate::trouble::Result;

impl Works {
    /// What the name of an attachment stands for. What was removed and is in use has none.
    pub fn named(&mut self, place: usize) -> Result<Meaning> {
        self.let_go();
        let name = self.attachment(place).object.clone();
        Ok(match self.look(place, name)? {
            Ok(found) => Meaning::Sized(ages::found(place, &found.exact), found.size),
            Err(Lack::Begun(exact)) => Meaning::Begun(ages::found(place, &exact)),
            Err(Lack::Nothing) => Meaning::Nothing,
        })
    }

    /// The program has a descriptor of an object, which stays open as long as that.
    pub fn hold(&mut self, entry: Entry, file: FileId) -> Result<Option<Known>> {
        let known = self.open(entry)?;
        self.uses.add(entry, file);
        Ok(known)
    }

    /// Begins an object: it has a name, and no size yet.
    pub fn begin(&mut self, place: usize) -> Result<Entry> {
        let name = self.attachment(place).object.clone();
        let exact = self.client(place)?.begin(name)?;
        self.attachments.note_made(&exact);
        let entry = ages::found(place, &exact);
        ages::made(entry);
        Ok(entry)
    }

    /// The size of what had none when the program got a descriptor of it, if it has one by now.
    pub fn size_now(&mut self, entry: Entry) -> Result<Option<u64>> {
        Ok(self.find(entry)?.map(|found| found.size))
    }

    /// Removes the name of an attachment, also where that stands for what somebody has begun. An object
    /// goes when nobody uses it. One that no program of this run made can be kept.
    pub fn unlink(&mut self, place: usize, keeps: bool) -> Result<()> {
        let entry = match self.named(place)? {
            Meaning::Sized(entry, _) | Meaning::Begun(entry) => entry,
            Meaning::Nothing => return Err(removed()),
        };
        if !keeps || ages::is_made(entry) || self.attachments.was_made(&asked(entry)?) {
            return self.remove(entry);
        }
        ages::give_up(entry);
        Ok(())
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
