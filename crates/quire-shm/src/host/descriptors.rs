//! Objects that the program has opened, and names that it has removed: an open descriptor counts as
//! use, and a program does not find by its name what it has removed, though it uses it.

use quire_dsm::client::Known;
use quire_dsm::wire::control::Name;

use crate::ages::{self, Entry};
use crate::host::objects::{Lack, removed};
use crate::host::{Meaning, Works};
use crate::marks::Mark;
use crate::state::FileId;
use crate::trouble::{Result, Trouble};

impl Works {
    /// What the name of an attachment stands for. What was removed and is in use has none.
    pub fn named(&mut self, place: usize) -> Result<Meaning> {
        self.let_go();
        let name = self.attachment(place).object.clone();
        Ok(match self.look(place, name.clone())? {
            Ok(found) => Meaning::Sized(ages::found(place, &found.exact), found.size),
            Err(Lack::Begun) => Meaning::Begun(ages::begun(place)),
            Err(Lack::Nothing) => {
                ages::lost(place, &name);
                Meaning::Nothing
            }
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
        self.client(place)?.begin(name.clone())?;
        // What had the name before has it no more.
        ages::lost(place, &name);
        Ok(ages::begun(place))
    }

    /// The size of what had none when the program got a descriptor of it, if it has one by now.
    pub fn size_now(&mut self, entry: Entry) -> Result<Option<u64>> {
        if ages::exact(entry).is_some() {
            return Ok(self.find(entry)?.map(|found| found.size));
        }
        Ok(match self.named(entry.place)? {
            Meaning::Sized(it, size) if it == entry => Some(size),
            _ => None,
        })
    }

    /// A parent or a child has given an object its size, and marked the file that they have in common:
    /// its key is learned, if it is not known yet, though it may have lost its name.
    pub fn learn(&mut self, entry: Entry, mark: Option<Mark>) -> Result<()> {
        if let Some(mark) = mark.filter(|_| ages::exact(entry).is_none())
            && let Some(exact) = self.marked(entry, mark)?
        {
            ages::learn(entry, &exact);
        }
        Ok(())
    }

    /// The exact spelling of the key of what was made of an entry, by its mark.
    fn marked(&mut self, entry: Entry, mark: Mark) -> Result<Option<Name>> {
        let place = entry.place;
        let name = &self.attachment(place).object;
        let is_it = |exact: &Name| Mark::of(exact) == mark;
        let unnamed = ages::unnamed(entry, name).filter(is_it);
        match unnamed {
            Some(exact) => Ok(Some(exact)),
            None => self.spelled(place, is_it),
        }
    }

    /// Makes an object that somebody has begun; whether it has the name. Where that was removed since,
    /// or is another one's, the object has none, and is to go when nobody uses it.
    pub fn give_size(&mut self, entry: Entry, size: u64) -> Result<bool> {
        let place = entry.place;
        match self.named(place)? {
            Meaning::Begun(it) | Meaning::Sized(it, _) if it == entry => {
                self.create(place, size, false)?;
                Ok(true)
            }
            _ => {
                let name = ages::unname(entry, &self.attachment(place).object);
                let lost = || Trouble::new(libc::EBADF, "nothing is known of the object");
                self.make(place, name.ok_or_else(lost)?, size)?;
                Ok(false)
            }
        }
    }

    /// Removes the name of an attachment, also where that stands for what somebody has begun. An object
    /// goes when nobody uses it.
    pub fn unlink(&mut self, place: usize) -> Result<()> {
        let name = self.attachment(place).object.clone();
        match self.named(place)? {
            Meaning::Sized(entry, _) => self.remove(entry),
            Meaning::Begun(_) => {
                self.client(place)?.discard(name.clone())?;
                ages::lost(place, &name);
                Ok(())
            }
            Meaning::Nothing => Err(removed()),
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
