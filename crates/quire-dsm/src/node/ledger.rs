//! Which pages of an object this machine has written and the server may not have: the *ledger*, a
//! file beside the memory file. Whoever has both can bring what a program had written, also when that
//! was killed at any moment.
//!
//! | entry | means |
//! |---|---|
//! | 0 | nothing is here that the server does not have |
//! | 1 | the page may be written to: what the memory file holds is the latest, and a hole was never shown |
//! | 2 + n | it was given back, as the page `n` of all that were so over this link; the memory file holds that, or what came to be read since |
//! | the same, and the highest bit | the memory file does not hold it any more |
//!
//! Beside it stands the last stamp that was heard from the server when the entry was made. Before the
//! entries stands how many of the pages that were given back the server is known to keep for good
//! ([`Session::safe`]): of these nothing has to be brought.
//!
//! An entry is changed before the page is shown, given back or freed, so that it never says that the
//! memory file holds what it does not. A page of one base page that comes to a hole is put there whole and
//! shown by one call of the kernel's: the entry says before that it may be written to, and the hole tells
//! whoever reads the ledger that the call was not made yet ([`Written::holds`](super::Written::holds)). All
//! others are in the file before the entry says so, and are shown then.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quire_core::dsm::message::{PageNumber, Pages};
use quire_core::dsm::per_page::PerPage;
use quire_core::units::BASE_PAGE;
use quire_linux::Errno;
use rustix::fs::{MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno as Code;

use crate::whole;

/// Where the entries begin, in bytes. Before them stands the session.
const ENTRIES: u64 = BASE_PAGE;
/// The length of an entry and its stamp, in bytes.
const ENTRY: u64 = 16;
/// So many entries are read at once.
const TOGETHER: u64 = 256;

const NOTHING: u64 = 0;
const WRITTEN: u64 = 1;
const GIVEN_BACK: u64 = 2;
const GONE: u64 = 1 << 63;

/// What is to be brought of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// What the memory file holds.
    Written,
    /// The same, unless the server has got, or keeps for good, so many pages and one more of the link's.
    GivenBack(u64),
    /// So it is, but the memory file does not hold it.
    Gone(u64),
}

/// The session in which the pages were had: what the server calls the link and the object there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// The number by which the server knew this side.
    pub number: u64,
    /// What it called the object.
    pub object: u32,
    /// So many pages were given back in it.
    pub given_back: u64,
    /// So many of these, the first ones, the server has said to keep for good.
    pub safe: u64,
}

/// The ledger as a file, which any process may read.
#[derive(Debug)]
pub struct Ledger {
    file: OwnedFd,
}

impl Ledger {
    /// An empty one.
    pub(super) fn new(pages: u64) -> Result<Ledger, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL;
        let file = rustix::fs::memfd_create(c"quire-dsm-ledger", flags)?;
        rustix::fs::ftruncate(&file, ENTRIES + pages * ENTRY)?;
        // Other programs may get the file, too.
        let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(Ledger { file })
    }

    /// One that another process keeps.
    #[must_use]
    pub const fn of(file: OwnedFd) -> Ledger {
        Ledger { file }
    }

    /// The session in which its pages were had; none where all was given up in order.
    #[must_use]
    pub fn session(&self) -> Option<Session> {
        let mut bytes = [0; 32];
        whole::read(&self.file, &mut bytes, 0).ok()?;
        let [number, object, given_back, safe] = [0, 8, 16, 24].map(|at| word(&bytes, at));
        let object = u32::try_from(object).ok()?;
        (object != 0).then_some(Session {
            number,
            object,
            given_back,
            safe,
        })
    }

    /// All was given up in order: nothing is to be brought.
    pub(crate) fn end(&self) {
        self.begin(Session::default());
    }

    /// Another session begins, or none.
    fn begin(&self, session: Session) {
        self.put(8, &0u64.to_le_bytes());
        self.put(0, &session.number.to_le_bytes());
        self.put(16, &session.given_back.to_le_bytes());
        self.put(24, &session.safe.to_le_bytes());
        self.put(8, &u64::from(session.object).to_le_bytes());
    }

    /// The next page from one on of which something is to be brought. Holes are passed over.
    ///
    /// # Errors
    /// Those of the system.
    pub fn next(&self, from: PageNumber) -> Result<Option<(PageNumber, Entry, u64)>, Errno> {
        let mut page = from.0;
        loop {
            let at = match rustix::fs::seek(&self.file, SeekFrom::Data(ENTRIES + page * ENTRY)) {
                Ok(at) => at.max(ENTRIES + page * ENTRY),
                Err(Code::NXIO) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            };
            page = (at - ENTRIES) / ENTRY;
            let mut bytes = [0; (TOGETHER * ENTRY) as usize];
            let read = rustix::io::pread(&self.file, &mut bytes[..], ENTRIES + page * ENTRY)?;
            if read < ENTRY as usize {
                return Ok(None);
            }
            for both in bytes[..read].chunks_exact(ENTRY as usize) {
                if let Some(entry) = meant(word(both, 0)) {
                    return Ok(Some((PageNumber(page), entry, word(both, 8))));
                }
                page += 1;
            }
        }
    }

    /// Some pages are about to be freed: those that were given back cannot be brought any more.
    pub(super) fn free(&self, pages: Pages) {
        let at = ENTRIES + pages.first.0 * ENTRY;
        let mut bytes = vec![0; pages.count as usize * ENTRY as usize];
        if whole::read(&self.file, &mut bytes, at).is_err() {
            return;
        }
        for (page, both) in pages.iter().zip(bytes.chunks_exact(ENTRY as usize)) {
            let entry = word(both, 0);
            if entry >= GIVEN_BACK {
                self.put(ENTRIES + page.0 * ENTRY, &(entry | GONE).to_le_bytes());
            }
        }
    }

    fn clear(&self) {
        let how = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let length = rustix::fs::fstat(&self.file).map_or(0, |stat| stat.st_size as u64);
        let entries = length.saturating_sub(ENTRIES);
        if entries > 0 {
            // What is left is brought once more, and refused.
            let _ = rustix::fs::fallocate(&self.file, how, ENTRIES, entries);
        }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        // The file is as long as that, and lies in memory: where there is none for it, a page that
        // was written may be lost unseen, with a machine that has no memory left.
        let _ = whole::write(&self.file, bytes, at);
    }
}

impl AsFd for Ledger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A word of some bytes; zero where there is none.
fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    word.map_or(NOTHING, u64::from_le_bytes)
}

const fn meant(entry: u64) -> Option<Entry> {
    match entry {
        NOTHING => None,
        WRITTEN => Some(Entry::Written),
        GONE.. => Some(Entry::Gone((entry & !GONE).saturating_sub(GIVEN_BACK))),
        _ => Some(Entry::GivenBack(entry - GIVEN_BACK)),
    }
}

/// A ledger as its owner keeps it, who knows without asking the file which entries are there.
pub(super) struct Book {
    ledger: std::sync::Arc<Ledger>,
    /// Pages with entries, and what they are, but for what was freed since.
    entries: PerPage<u64>,
    session: Session,
    /// The last that was heard.
    stamp: u64,
}

impl Book {
    pub(super) fn new(ledger: std::sync::Arc<Ledger>) -> Book {
        Book {
            ledger,
            entries: PerPage::new(),
            session: Session::default(),
            stamp: 0,
        }
    }

    pub(super) const fn set_stamp(&mut self, stamp: u64) {
        self.stamp = stamp;
    }

    pub(super) const fn ledger(&self) -> &std::sync::Arc<Ledger> {
        &self.ledger
    }

    /// A session begins, or all that was had is given up in order.
    pub(super) fn begin(&mut self, session: Session) {
        self.session = session;
        self.ledger.begin(session);
    }

    /// So many of the pages that were given back the server keeps for good.
    pub(super) fn is_safe(&mut self, count: u64) {
        if count > self.session.safe {
            self.session.safe = count;
            self.ledger.put(24, &count.to_le_bytes());
        }
    }

    pub(super) const fn session(&self) -> Session {
        self.session
    }

    /// Contents are about to be put in the place of what the file holds of pages. Of these nothing can be
    /// brought until they are there: none of it is shown.
    pub(super) fn fills(&mut self, pages: Pages) {
        if self.entries.is_empty() {
            return;
        }
        for page in pages.iter() {
            let entry = self.entries.get(page).copied();
            match entry {
                None => {}
                Some(entry) if self.is_owed(entry) => self.set(page, entry | GONE),
                Some(_) => {
                    self.entries.remove(page);
                    let at = ENTRIES + page.0 * ENTRY;
                    self.ledger.put(at, &NOTHING.to_le_bytes());
                }
            }
        }
    }

    /// Contents that are not to be written to are there: the latest of what was given back here, or
    /// later ones, which can be brought in their place.
    pub(super) fn came_to_be_read(&mut self, pages: Pages) {
        if self.entries.is_empty() {
            return;
        }
        for page in pages.iter() {
            let entry = self.entries.get(page).copied();
            if let Some(entry) = entry.filter(|entry| entry & GONE != 0) {
                self.set(page, entry & !GONE);
            }
        }
    }

    /// Whether an entry is of a page that was given back, and that the server may not keep.
    const fn is_owed(&self, entry: u64) -> bool {
        entry >= GIVEN_BACK && (entry & !GONE) - GIVEN_BACK >= self.session.safe
    }

    /// A program may write to pages from now on, of which the contents are there, or come to a hole next.
    pub(super) fn is_written(&mut self, pages: Pages) {
        self.set_all(pages, WRITTEN);
    }

    /// Pages are given back in a message that leaves next, after they were taken from the mappings.
    pub(super) fn gives_back(&mut self, pages: Pages) {
        let first = GIVEN_BACK + self.session.given_back;
        let entries = pages.iter().zip(first..);
        let mut bytes = Vec::with_capacity(pages.count as usize * ENTRY as usize);
        for (page, entry) in entries {
            self.entries.insert(page, entry);
            bytes.extend_from_slice(&entry.to_le_bytes());
            bytes.extend_from_slice(&self.stamp.to_le_bytes());
        }
        self.ledger.put(ENTRIES + pages.first.0 * ENTRY, &bytes);
        self.gave_back(pages.count);
    }

    /// The file is about to be freed: what was written and not given back cannot be brought any more.
    pub(super) fn loses_all(&mut self) {
        let all = self.entries.iter();
        let written = all.filter(|(_, entry)| **entry == WRITTEN);
        let written: Vec<PageNumber> = written.map(|(page, _)| page).collect();
        for page in written {
            self.set(page, GONE | (GIVEN_BACK + self.session.given_back));
            self.gave_back(1);
        }
    }

    /// So many pages leave with contents.
    pub(super) fn gave_back(&mut self, count: u32) {
        self.session.given_back += u64::from(count);
        self.ledger.put(16, &self.session.given_back.to_le_bytes());
    }

    /// How many pages were written and not given back.
    pub(super) fn written(&self) -> u64 {
        let written = self.entries.values().filter(|entry| **entry == WRITTEN);
        written.count() as u64
    }

    /// Whether there is anything to be brought.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All is brought, or lost.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.ledger.clear();
    }

    fn set(&mut self, page: PageNumber, entry: u64) {
        self.entries.insert(page, entry);
        let bytes = [entry.to_le_bytes(), self.stamp.to_le_bytes()].concat();
        self.ledger.put(ENTRIES + page.0 * ENTRY, &bytes);
    }

    fn set_all(&mut self, pages: Pages, entry: u64) {
        if pages
            .iter()
            .all(|page| self.entries.get(page) == Some(&entry))
        {
            return;
        }
        let mut bytes = Vec::with_capacity(pages.count as usize * ENTRY as usize);
        for page in pages.iter() {
            self.entries.insert(page, entry);
            bytes.extend_from_slice(&entry.to_le_bytes());
            bytes.extend_from_slice(&self.stamp.to_le_bytes());
        }
        self.ledger.put(ENTRIES + pages.first.0 * ENTRY, &bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn pages(first: u64, count: u32) -> Pages {
        Pages {
            first: PageNumber(first),
            count,
        }
    }

    #[test]
    fn a_ledger_says_what_is_to_be_brought() {
        let ledger = Arc::new(Ledger::new(100_000).unwrap());
        let mut book = Book::new(Arc::clone(&ledger));
        let all = |ledger: &Ledger| {
            let mut all = Vec::new();
            let mut from = PageNumber(0);
            while let Some((page, entry, _)) = ledger.next(from).unwrap() {
                all.push((page.0, entry));
                from = PageNumber(page.0 + 1);
            }
            all
        };
        assert!(all(&ledger).is_empty() && ledger.session().is_none());
        book.begin(Session {
            number: 7,
            object: 3,
            ..Session::default()
        });
        book.fills(pages(90_000, 2));
        assert!(all(&ledger).is_empty());
        book.is_written(pages(90_000, 2));
        book.is_written(pages(5, 1));
        let written = Entry::Written;
        assert_eq!(
            all(&ledger),
            [(5, written), (90_000, written), (90_001, written)]
        );
        book.gives_back(pages(90_000, 2));
        let given = |page, number| (page, Entry::GivenBack(number));
        let gone = |page, number| (page, Entry::Gone(number));
        assert_eq!(
            all(&ledger),
            [(5, written), given(90_000, 0), given(90_001, 1)]
        );
        assert_eq!(ledger.session().unwrap().given_back, 2);
        ledger.free(pages(90_000, 1));
        ledger.free(pages(0, 10));
        book.fills(pages(90_001, 1));
        let both = [(5, written), gone(90_000, 0), gone(90_001, 1)];
        assert_eq!(all(&ledger), both);
        book.came_to_be_read(pages(90_001, 1));
        book.fills(pages(90_000, 1));
        let both = [(5, written), gone(90_000, 0), given(90_001, 1)];
        assert_eq!(all(&ledger), both, "what was freed and did not come yet");
        book.is_safe(2);
        assert_eq!(ledger.session().unwrap().safe, 2);
        book.fills(pages(90_000, 2));
        assert_eq!(all(&ledger), [(5, written)], "the server keeps the others");
        book.clear();
        assert!(all(&ledger).is_empty() && book.is_empty());
    }
}
