//! The pager of `quire serve --store`: an object's pages on disk.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use quire_core::dsm::message::{Access, Pages};

use super::{Attributes, Backed, Contents, Control, Pager, answer_each};
use crate::store::{ObjectId, Page, Store, StoreError};

/// So many threads read. Disks are fastest when they are asked for several things at once.
const THREADS: usize = 4;

/// A store, and threads that read from it, so that no event loop waits for its disk.
pub struct Readers {
    store: Arc<Store>,
    queue: Option<Sender<Wanted>>,
    threads: Vec<JoinHandle<()>>,
}

/// Pages that are to be read, and who is told.
struct Wanted {
    id: ObjectId,
    pages: Pages,
    control: Control,
}

impl Readers {
    /// Starts the threads.
    ///
    /// # Errors
    /// Where they cannot be started.
    pub fn start(store: Arc<Store>) -> std::io::Result<Readers> {
        let (queue, wanted) = mpsc::channel();
        let wanted = Arc::new(Mutex::new(wanted));
        let mut readers = Readers {
            store,
            queue: Some(queue),
            threads: Vec::new(),
        };
        for _ in 0..THREADS {
            let (store, wanted) = (readers.store.clone(), wanted.clone());
            let thread = thread::Builder::new()
                .name("quire-reader".to_owned())
                .spawn(move || run(&store, &wanted))?;
            readers.threads.push(thread);
        }
        Ok(readers)
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    fn read(&self, wanted: Wanted) {
        if let Some(queue) = &self.queue
            && let Err(mpsc::SendError(wanted)) = queue.send(wanted)
        {
            let why = "the threads that read have failed";
            wanted.control.data_error(wanted.pages, why);
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        drop(self.queue.take());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that reads from the store has failed");
            }
        }
    }
}

fn run(store: &Store, queue: &Mutex<Receiver<Wanted>>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Wanted { id, pages, control }) = next else {
            return;
        };
        answer(&control, pages, store.read(id, pages));
    }
}

fn answer(control: &Control, pages: Pages, found: Result<Vec<Page>, StoreError>) {
    let found = match found {
        Ok(found) => found,
        Err(error) => return control.data_error(pages, &error.to_string()),
    };
    let mut found = found.into_iter();
    answer_each(control, pages, Access::Write, |_| match found.next() {
        Some(Page::Held(contents)) => Ok(Some(contents)),
        Some(Page::Zero) => Ok(None),
        Some(Page::Lost) | None => Err("the page is damaged on disk".to_owned()),
    });
}

/// An object of a store. It never waits: what is not at hand is read by other threads.
pub struct Stored {
    readers: Arc<Readers>,
    id: ObjectId,
    control: Option<Control>,
}

impl Stored {
    /// The pager of an object of the readers' store.
    #[must_use]
    pub fn new(readers: Arc<Readers>, id: ObjectId) -> Stored {
        Stored {
            readers,
            id,
            control: None,
        }
    }
}

impl Pager for Stored {
    fn init(&mut self, _: &Backed, control: Control) {
        control.set_attributes(Attributes {
            may_write: true,
            keeps: true,
        });
        self.control = Some(control);
    }

    fn data_request(&mut self, pages: Pages, _: Access) {
        let Some(control) = &self.control else { return };
        match self.readers.store.at_hand(self.id, pages) {
            Some(found) => answer(control, pages, Ok(found)),
            None => self.readers.read(Wanted {
                id: self.id,
                pages,
                control: control.clone(),
            }),
        }
    }

    fn data_write(&mut self, pages: Pages, data: Vec<Option<Contents>>) {
        let Some(control) = self.control.clone() else {
            return;
        };
        let store = &self.readers.store;
        store.write(self.id, pages.first, data, move |result| {
            control.data_written(pages, result.map_err(|error| error.to_string()));
        });
    }
}
