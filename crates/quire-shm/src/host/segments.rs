//! Which objects the numbers of segments mean, and how each gets one of its own. A program may be given a
//! number by another one, also that of a segment which was removed since.

use std::ffi::c_int;

use quire_dsm::wire::control::Name;

use crate::ages::{self, Entry};
use crate::host::objects::asked;
use crate::host::{Found, Works};
use crate::numbers::Number;
use crate::trouble::{Result, Trouble};

/// So often a segment is made, for one whose number is no other's.
const TRIES: usize = 64;

impl Works {
    /// Makes a segment by the name of an attachment, as [`Works::create`] does. No other one that is in
    /// use has its number: made once more, it has another key.
    pub fn create_segment(&mut self, place: usize, size: u64, only_new: bool) -> Result<Entry> {
        let count = self.count();
        for _ in 0..TRIES {
            let (entry, is_new) = self.create(place, size, only_new)?;
            let number = self.number(entry)?;
            let is_of = |exact: &Name| number.is_of(exact, count);
            if !is_new || number.is_plain() || self.spelled_removed(place, is_of)?.is_none() {
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
        let (place, count) = (number.place, self.count());
        for (entry, exact) in ages::all(place) {
            if number.is_of(&exact, count)
                && let Some(found) = self.find(entry)?
            {
                return Ok((entry, found));
            }
        }
        let asked = match number.is_plain() {
            true => Some(self.attachment(place).object.exact()),
            false => self.spelled(place, |exact| number.is_of(exact, count))?,
        };
        let found = match asked {
            Some(asked) => self.look(place, asked)?.ok(),
            None => None,
        };
        let found = found.ok_or_else(|| Trouble::new(libc::EIDRM, "the object was removed"))?;
        Ok((ages::found(place, &found.exact), found))
    }

    /// The number of an object.
    fn number(&self, entry: Entry) -> Result<Number> {
        Ok(Number::of(entry.place, &asked(entry)?, self.count()))
    }

    /// The same, as a program gets it.
    pub fn id(&self, entry: Entry) -> Result<c_int> {
        Ok(self.number(entry)?.id(self.count()))
    }

    fn count(&self) -> usize {
        self.attachments.list().len()
    }
}
