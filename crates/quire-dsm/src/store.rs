//! Pages on disk: what stands behind a server that is to survive.
//!
//! ```text
//! DIR/lock                         whose the directory is (flock; the process in it)
//! DIR/format                       the version of all this
//! DIR/log                          what was acknowledged and is not in its place yet
//! DIR/kept/NAME                    small things that others keep here
//! DIR/objects/ID/meta              what an object is
//! DIR/objects/ID/parts             which parts it has
//! DIR/objects/ID/PART.pages        4096 pages: a table of checksums, and the contents
//! ```
//!
//! `layout` makes and opens that, `objects` makes and removes objects, `log` and `part` are
//! the two kinds of files, `guard` sees to it that nothing is changed after a failed sync, `levels`
//! makes the store's directory, `engine` writes, `writer` is its thread, `shared` is what readers
//! see, `check` looks for damage, and `disk` is all that any of them asks of the system.
//!
//! # What is written in which order
//! 1. Before anything else a write-back gets its space: its part is made where it is
//!    missing (file, then its name, then the list of parts, each durable before the next),
//!    and the page's place is allocated. A full disk refuses a write-back here, and only
//!    here; space that is in use is written over without any more of it.
//! 2. Write-backs that wait go into the log together, as one batch; one sync makes them all
//!    durable. Then they are acknowledged, and served from memory.
//! 3. When the log is full, or nothing has come for a moment, the pages are put into their
//!    places, with their checksums, and these files are synced.
//! 4. Only then the log begins anew.
//!
//! So an acknowledged page is in the log or, whole and synced, in its place. Pages in their
//! places may be torn by a crash only while the log still has them.
//!
//! # What recovery does
//! It makes what is in the log durable, as who wrote it may have been killed before it was; puts all
//! of its pages into their places again, which can be repeated at will; and begins the log anew.
//!
//! | found | means | done |
//! |---|---|---|
//! | the last batch is not whole | nobody was told that it was written | it is dropped |
//! | a page of an earlier batch has a wrong checksum | damage | that page is lost |
//! | the header of an earlier batch is damaged | damage; which pages it had is unknown | the store is refused: it could serve old contents |
//! | one of the log's two beginnings is damaged | a crash, or damage | the other one is used |
//! | the log or the format is missing, or the log is shorter than it was | damage | the store is refused |
//! | a page in its place has a wrong checksum, or its entry has | damage | that page is lost |
//! | a part is missing | damage | its pages are lost |
//! | the list of parts does not name a part that holds pages | damage | the part is used all the same |
//! | what an object is cannot be read | damage | that object cannot be opened; the others can |
//! | several objects have one name | damage, or an earlier version left it | none of them can be opened, nor another one made, until all but one of their directories are taken away |
//! | `objects` or `kept` is missing | damage | the store is refused |
//! | half-made and half-removed objects | a crash | they are removed |
//!
//! Damage that reaches to the end of the log, after what was there was acknowledged, looks
//! like batches that were never finished. The window is small: the log is emptied whenever
//! the store rests.
//!
//! A page that is lost is never served, neither as zeros nor with older contents. It is
//! good again when somebody writes it.
//!
//! # What can fail later
//! A sync that fails, of contents or of names, leaves it open what is durable, and a second one
//! would not tell. So does a rename that fails. What was asked for is refused; whether it was done
//! all the same shows at the next start, and nothing that was acknowledged relies on either.
//! Nothing more is written then until the store is opened anew; reading goes on. Where the
//! file system cannot allocate space ahead, or copies on write, a full disk can also stop
//! step 3. The pages then stay in the log, are served from there, and the log refuses
//! write-backs when it is full. All of that goes on when there is space.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use quire_core::dsm::message::Pages;
use quire_core::units::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

mod check;
mod disk;
mod engine;
mod error;
mod guard;
mod layout;
mod levels;
mod lock;
mod log;
mod object;
mod objects;
mod part;
mod shared;
#[cfg(test)]
mod simulated;
mod slots;
mod small;
#[cfg(test)]
mod tests;
mod writer;

pub use check::{Report, check, check_with};
pub use error::{Damage, StoreError};
pub use object::{
    Grant, LARGEST, LARGEST_PAGE, LONGEST_NAME, NewObject, Object, ObjectId, SMALLEST_PAGE,
    SchedulerKind, Tagged,
};

use engine::Engine;
use shared::{Request, Shared};
pub(crate) use small::Small;
use writer::{Answer, Job, Writer};

pub use crate::wire::Contents;

/// A page, as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    /// Nobody has written it, or with zeros only.
    Zero,
    /// This.
    Held(Contents),
    /// What was written is damaged.
    Lost,
}

/// How a store works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The size of the log of a store that is made: at least [`Settings::SMALLEST_LOG`].
    /// Putting that many bytes into their places is the longest that an acknowledgement
    /// has to wait; opening reads them.
    pub log: Bytes,
    /// About so many bytes are made durable by one sync, at most.
    pub batch: Bytes,
    /// When nothing has come for this long, the log is emptied.
    pub rest: Duration,
}

impl Settings {
    /// A page of the largest size must fit.
    pub const SMALLEST_LOG: Bytes = Bytes::mib(3);
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            log: Bytes::mib(32),
            batch: Bytes::mib(4),
            rest: Duration::from_millis(250),
        }
    }
}

/// Objects and their pages in a directory. One thread writes; everything else reads.
pub struct Store {
    shared: Arc<Shared>,
    writer: Writer,
}

impl Store {
    /// Opens the store in a directory; an empty or a missing one becomes a store.
    ///
    /// # Errors
    /// Where the directory is in use, is of a newer version, or holds something else, where
    /// the log is damaged, or what the disk said.
    pub fn open(directory: &Path, settings: &Settings) -> Result<Store, StoreError> {
        if settings.log < Settings::SMALLEST_LOG {
            return Err(StoreError::Invalid("a log has at least 3 MiB".to_owned()));
        }
        levels::make_directory(directory).map_err(|error| {
            StoreError::io(&format!("cannot make {}", directory.display()), &error)
        })?;
        let lock = lock::Lock::take(directory)?;
        let disk = Arc::new(disk::Directory::new(directory));
        let name = directory.display().to_string();
        let (shared, engine) = Engine::open(disk, settings, &name)?;
        let writer = Writer::start(engine, settings.clone(), lock)?;
        Ok(Store { shared, writer })
    }

    /// All objects, in the order of their names.
    #[must_use]
    pub fn objects(&self) -> Vec<Arc<Object>> {
        self.shared.objects()
    }

    /// The object of a name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Arc<Object>> {
        self.shared.find(name)
    }

    /// What was found damaged when the store was opened. [`check`] looks at all of it.
    #[must_use]
    pub fn damage(&self) -> &[Damage] {
        self.shared.damage()
    }

    /// Makes an object, durably. This waits for the disk, behind what is being written.
    ///
    /// # Errors
    /// What is wrong with it, that its name is taken, or what the disk said.
    pub fn create(&self, object: NewObject) -> Result<Arc<Object>, StoreError> {
        wait(|done| self.create_then(object, done))
    }

    /// The same without waiting: `done` is called from the store's thread, once.
    pub fn create_then(
        &self,
        object: NewObject,
        done: impl FnOnce(Result<Arc<Object>, StoreError>) + Send + 'static,
    ) {
        self.writer.send(Job::Create(object, Answer::new(done)));
    }

    /// Gives an object other tags, rights, or another name or scheduler. Size and page size
    /// stay. This waits for the disk.
    ///
    /// # Errors
    /// As [`Store::create`].
    pub fn change(&self, id: ObjectId, object: NewObject) -> Result<Arc<Object>, StoreError> {
        wait(|done| self.change_then(id, object, done))
    }

    /// The same without waiting: `done` is called from the store's thread, once.
    pub fn change_then(
        &self,
        id: ObjectId,
        object: NewObject,
        done: impl FnOnce(Result<Arc<Object>, StoreError>) + Send + 'static,
    ) {
        self.writer.send(Job::Change(id, object, Answer::new(done)));
    }

    /// Removes an object with all of its pages. This waits for the disk.
    ///
    /// # Errors
    /// That there is no such object, or what the disk said.
    pub fn remove(&self, id: ObjectId) -> Result<(), StoreError> {
        wait(|done| self.remove_then(id, done))
    }

    /// The same without waiting: `done` is called from the store's thread, once.
    pub fn remove_then(
        &self,
        id: ObjectId,
        done: impl FnOnce(Result<(), StoreError>) + Send + 'static,
    ) {
        self.writer.send(Job::Remove(id, Answer::new(done)));
    }

    /// What pages hold, with all that was given to [`Store::write`] before, durable or not.
    /// This waits for the disk where the page is not in the system's cache.
    ///
    /// # Errors
    /// That there is no such object, or that it has no such pages.
    pub fn read(&self, id: ObjectId, pages: Pages) -> Result<Vec<Page>, StoreError> {
        self.shared.read(id, pages)
    }

    /// The same where it needs no look at the disk and no waiting at all: pages that nobody
    /// has written, and pages that were given to [`Store::write`] a moment ago.
    #[must_use]
    pub fn at_hand(&self, id: ObjectId, pages: Pages) -> Option<Vec<Page>> {
        self.shared.at_hand(id, pages)
    }

    /// Writes pages back; without contents a page is all zeros. This does not wait. `done`
    /// is called from the store's thread, once: with success when all of them are durable.
    /// Where it is told an error, the old contents count, page by page: of a write of
    /// several pages some may have been written when the disk itself failed.
    pub fn write(
        &self,
        id: ObjectId,
        first: quire_core::dsm::message::PageNumber,
        data: Vec<Option<Contents>>,
        done: impl FnOnce(Result<(), StoreError>) + Send + 'static,
    ) {
        let ticket = self.shared.note(id, first.0, &data);
        let request = Request {
            ticket,
            object: id,
            first: first.0,
            data,
        };
        self.writer.send(Job::Write(request, Answer::new(done)));
    }

    /// How much was given to [`Store::write`] and is not done. A server that hears more
    /// than the disk takes should stop listening for a while.
    #[must_use]
    pub fn backlog(&self) -> Bytes {
        self.shared.backlog()
    }

    /// Waits until all that was given to [`Store::write`] is durable and in its place.
    ///
    /// # Errors
    /// What the disk said. Single write-backs tell theirs to `done`.
    pub fn flush(&self) -> Result<(), StoreError> {
        wait(|done| self.writer.send(Job::Flush(Answer::new(done))))
    }

    /// Keeps something small under a name of lower-case letters, durably and at once in the
    /// place of what was there. This waits for the disk.
    ///
    /// # Errors
    /// What the disk said.
    pub fn keep<T: Serialize>(&self, name: &str, value: &T) -> Result<(), StoreError> {
        self.shared.keep(name, value)
    }

    /// What was kept under a name; `None` where nothing was.
    ///
    /// # Errors
    /// That it is damaged, or what the disk said.
    pub fn kept<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, StoreError> {
        self.shared.kept(name)
    }
}

/// Waits for what is answered from another thread.
fn wait<T: Send + 'static>(
    ask: impl FnOnce(Box<dyn FnOnce(Result<T, StoreError>) + Send>),
) -> Result<T, StoreError> {
    let (sender, receiver) = mpsc::channel();
    ask(Box::new(move |result| {
        // Who asked waits.
        let _ = sender.send(result);
    }));
    receiver.recv().unwrap_or(Err(StoreError::Stopped))
}

/// Whether a page is all zeros.
#[must_use]
pub fn is_zero(page: &[u8]) -> bool {
    let (words, rest) = page.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}
