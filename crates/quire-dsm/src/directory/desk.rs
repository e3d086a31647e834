//! Asks a directory, for an event loop that must not wait: by threads, unless the loop has
//! another clerk.
//!
//! There are two [`Matter`]s, each with a queue and a thread of its own. What a server needs to
//! stay one of several does not wait behind what programs ask, however much that is and however
//! long the directory takes for it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Directory, Renewal, Shared, Waker};

mod errands;

pub use errands::Errands;

/// Something that is to be asked. What it returns brings the answer to whoever asked.
pub type Errand = Box<dyn FnOnce(&dyn Directory) -> Delivery + Send>;

/// Brings an answer; whether anybody still waits for answers.
pub type Delivery = Box<dyn FnOnce() -> bool + Send>;

/// What something that is asked is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matter {
    /// Who is a member, and the views of objects: faults wait for these.
    Views,
    /// Which objects there are: programs that make, remove or look for one wait for this.
    Names,
}

/// Who goes to a directory for an event loop. Simulations have one of their own.
pub trait Clerk: Send + Sync {
    /// Takes something that is to be asked, after a pause, in which others may go before. Of one
    /// matter all is asked in order, and the answers come in order; the two do not wait for each
    /// other.
    fn take(&self, matter: Matter, pause: Duration, errand: Errand);

    /// Renews a lease until it is over or dropped. Says which thread does that, if one does.
    ///
    /// # Errors
    /// Where no thread can be started.
    fn keep(&self, renewal: Renewal) -> io::Result<Option<JoinHandle<()>>>;
}

/// An errand, and from when on it is to be done.
type Timed = (Instant, Errand);

/// Asks by a thread for each matter. They end when this is dropped, after the errands that they
/// are at.
pub(crate) struct Threaded {
    views: Sender<Timed>,
    names: Sender<Timed>,
}

impl Threaded {
    /// Starts the threads for a directory.
    ///
    /// # Errors
    /// Where one cannot be started.
    pub fn new(directory: Shared) -> io::Result<Threaded> {
        Ok(Threaded {
            views: start("quire-views", Arc::clone(&directory))?,
            names: start("quire-names", directory)?,
        })
    }
}

/// Starts a thread that does errands. What is sent to it is to be done.
fn start(name: &str, directory: Shared) -> io::Result<Sender<Timed>> {
    let (errands, taken) = mpsc::channel();
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(move || run(&*directory, &taken))?;
    Ok(errands)
}

/// Does errands until nobody waits for answers, or more of them.
fn run(directory: &dyn Directory, taken: &Receiver<Timed>) {
    let mut errands = Errands::default();
    loop {
        for (from, errand) in taken.try_iter() {
            errands.add(from, errand);
        }
        let now = Instant::now();
        if let Some(errand) = errands.next(now) {
            let deliver = errand(directory);
            if !deliver() {
                return;
            }
            continue;
        }
        let came = match errands.due() {
            Some(at) => taken.recv_timeout(at.saturating_duration_since(now)),
            None => taken.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match came {
            Ok((from, errand)) => errands.add(from, errand),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Clerk for Threaded {
    fn take(&self, matter: Matter, pause: Duration, errand: Errand) {
        let errands = match matter {
            Matter::Views => &self.views,
            Matter::Names => &self.names,
        };
        // Its thread is gone only when nobody waits for answers any more.
        let _ = errands.send((Instant::now() + pause, errand));
    }

    fn keep(&self, renewal: Renewal) -> io::Result<Option<JoinHandle<()>>> {
        renewal.by_thread().map(Some)
    }
}

/// Asks questions, those about one matter in order, and collects the answers.
pub struct Desk<T> {
    clerk: Arc<dyn Clerk>,
    wake: Waker,
    tell: Sender<T>,
    answers: Receiver<T>,
}

impl<T: Send + 'static> Desk<T> {
    /// Starts threads for a directory. `wake` is called when there is an answer.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn new(directory: Shared, wake: Waker) -> io::Result<Desk<T>> {
        Ok(Desk::with(Arc::new(Threaded::new(directory)?), wake))
    }

    /// Asks through a clerk.
    #[must_use]
    pub fn with(clerk: Arc<dyn Clerk>, wake: Waker) -> Desk<T> {
        let (tell, answers) = mpsc::channel();
        Desk {
            clerk,
            wake,
            tell,
            answers,
        }
    }

    /// Who asks.
    #[must_use]
    pub fn clerk(&self) -> Arc<dyn Clerk> {
        Arc::clone(&self.clerk)
    }

    /// Asks something. The answer says what it answers.
    pub fn ask(&self, matter: Matter, question: impl FnOnce(&dyn Directory) -> T + Send + 'static) {
        self.ask_later(matter, Duration::ZERO, question);
    }

    /// Asks something after a pause, in which others may go before.
    pub fn ask_later(
        &self,
        matter: Matter,
        pause: Duration,
        question: impl FnOnce(&dyn Directory) -> T + Send + 'static,
    ) {
        let (tell, wake) = (self.tell.clone(), Arc::clone(&self.wake));
        let errand: Errand = Box::new(move |directory| {
            let told = question(directory);
            Box::new(move || {
                let is_awaited = tell.send(told).is_ok();
                if is_awaited {
                    wake();
                }
                is_awaited
            })
        });
        self.clerk.take(matter, pause, errand);
    }

    /// An answer, where there is one.
    pub fn answer(&self) -> Option<T> {
        self.answers.try_recv().ok()
    }
}
