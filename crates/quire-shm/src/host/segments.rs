//! Which objects the numbers of segments mean, and how each gets one of its own. A program may be given a
//! number by another one, also that of a segment which was removed since.

use std::ffi::c_int;

use quire_dsm::wire::control::Name;

use crate::ages::{self, Entry};
use crate::host::{Found, Works};
use crate::numbers::Number;
use crate::trouble::{Result, Trouble};

/// So often a segment is made, for one whose number is no other's.
const TRIES: usize = 64;

impl Works {
    /// Makes a segment by the name of an attachment, as [`Works::create`] does. No other one that is in
    /// use has its number: made once more, it has another key.
    pub fn create_segment(&mut self, place: usize, size: u64, only_new: bool) -> Result<Entry> {
        for _ in 0..TRIES {
            let (entry, is_new) = self.create(place, size, only_new)?;
            let number = self.number(entry);
            if !is_new || number.is_plain() || self.removed_with(number)?.is_none() {
                return Ok(entry);
            }
            self.remove_now(entry)?;
        }
        let name = &self.attachment(place).object;
        let text = format!(
            "{name} has no number: too many segments of its key were removed, and are attached still"
        );
        Err(Trouble::new(libc::ENOSPC, text))
    }

    /// The object that a number means.
    pub fn segment(&mut self, number: Number) -> Result<(Entry, Found)> {
        let place = number.place;
        for (entry, exact) in ages::all(place) {
            if self.is_of(number, &exact)
                && let Some(found) = self.find(entry)?
            {
                return Ok((entry, found));
            }
        }
        let asked = match number.is_plain() {
            true => Some(self.attachment(place).object.exact()),
            false => self.spelled(number)?,
        };
        let found = match asked {
            Some(asked) => self.look(place, asked)?.ok(),
            None => None,
        };
        let found = found.ok_or_else(|| Trouble::new(libc::EIDRM, "the object was removed"))?;
        Ok((ages::found(place, &found.exact), found))
    }

    /// The number of an object.
    fn number(&self, entry: Entry) -> Number {
        Number::of(entry.place, &self.asked(entry), self.count())
    }

    /// The same, as a program gets it.
    pub fn id(&self, entry: Entry) -> c_int {
        self.number(entry).id(self.count())
    }

    fn count(&self) -> usize {
        self.attachments.list().len()
    }

    fn is_of(&self, number: Number, exact: &Name) -> bool {
        Number::of(number.place, exact, self.count()) == number
    }

    /// The exact spelling that a number was made of: of the object that has the name now, or of one that
    /// was removed and is in use.
    fn spelled(&mut self, number: Number) -> Result<Option<Name>> {
        let name = self.attachment(number.place).object.clone();
        let living = self.look(number.place, name)?.ok();
        let living = living.map(|found| found.exact);
        match living.filter(|exact| self.is_of(number, exact)) {
            Some(exact) => Ok(Some(exact)),
            None => self.removed_with(number),
        }
    }

    /// The exact spelling of an object with a number that was removed and is in use.
    fn removed_with(&mut self, number: Number) -> Result<Option<Name>> {
        let name = &self.attachment(number.place).object;
        let listed = self.client(number.place)?.list()?;
        let mut removed = listed.into_iter().map(|object| object.name);
        Ok(removed
            .find(|exact| !exact.is_plain() && exact.plain() == *name && self.is_of(number, exact)))
    }
}
