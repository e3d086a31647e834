//! A thread for a pager that waits: for a disk, for another program, for a computation.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use quire_core::dsm::message::{Access, Pages};

use super::{Backed, Contents, Control, Pager};

enum Told {
    Init(Backed, Control),
    Request(Pages, Access),
    Unlock(Pages),
    Write(Pages, Vec<Option<Contents>>),
    LockCompleted(Pages),
}

struct Threaded {
    told: Option<Sender<Told>>,
    thread: Option<JoinHandle<()>>,
}

/// Gives a pager a thread of its own. It is told the same, in the same order.
///
/// # Errors
/// Where no thread can be started.
pub fn threaded(pager: Box<dyn Pager>) -> std::io::Result<Box<dyn Pager>> {
    let (told, heard) = mpsc::channel();
    let thread = thread::Builder::new()
        .name("quire-pager".to_owned())
        .spawn(move || run(pager, &heard))?;
    Ok(Box::new(Threaded {
        told: Some(told),
        thread: Some(thread),
    }))
}

fn run(mut pager: Box<dyn Pager>, heard: &Receiver<Told>) {
    for told in heard {
        match told {
            Told::Init(object, control) => pager.init(&object, control),
            Told::Request(pages, access) => pager.data_request(pages, access),
            Told::Unlock(pages) => pager.data_unlock(pages),
            Told::Write(pages, data) => pager.data_write(pages, data),
            Told::LockCompleted(pages) => pager.lock_completed(pages),
        }
    }
    pager.terminate();
}

impl Threaded {
    /// Where the thread is gone, the deadline answers.
    fn tell(&self, what: Told) {
        if let Some(told) = &self.told {
            let _ = told.send(what);
        }
    }

    /// Ends the pager's thread, and waits for it.
    fn end(&mut self) {
        drop(self.told.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a pager's thread has failed");
        }
    }
}

impl Pager for Threaded {
    fn init(&mut self, object: &Backed, control: Control) {
        self.tell(Told::Init(object.clone(), control));
    }

    fn data_request(&mut self, pages: Pages, access: Access) {
        self.tell(Told::Request(pages, access));
    }

    fn data_unlock(&mut self, pages: Pages) {
        self.tell(Told::Unlock(pages));
    }

    fn data_write(&mut self, pages: Pages, data: Vec<Option<Contents>>) {
        self.tell(Told::Write(pages, data));
    }

    fn lock_completed(&mut self, pages: Pages) {
        self.tell(Told::LockCompleted(pages));
    }

    /// Waits until the pager has done what it was told, so that what it was given back is
    /// where it belongs.
    fn terminate(&mut self) {
        self.end();
    }
}

impl Drop for Threaded {
    /// Also one that was never told to terminate has done so when it is gone.
    fn drop(&mut self) {
        self.end();
    }
}
