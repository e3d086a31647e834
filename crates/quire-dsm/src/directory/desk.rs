//! Asks a directory, for an event loop that must not wait: by a thread, unless the loop has
//! another clerk.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Directory, Renewal, Shared, Waker};

/// Something that is to be asked. What it returns brings the answer to whoever asked.
pub type Errand = Box<dyn FnOnce(&dyn Directory) -> Delivery + Send>;

/// Brings an answer; whether anybody still waits for answers.
pub type Delivery = Box<dyn FnOnce() -> bool + Send>;

/// Who goes to a directory for an event loop. Simulations have one of their own.
pub trait Clerk: Send + Sync {
    /// Takes something that is to be asked, after a pause. All is asked in order, and the
    /// answers come in order.
    fn take(&self, pause: Duration, errand: Errand);

    /// Renews a lease until it is over or dropped. Says which thread does that, if one does.
    ///
    /// # Errors
    /// Where no thread can be started.
    fn keep(&self, renewal: Renewal) -> io::Result<Option<JoinHandle<()>>>;
}

/// Asks by a thread, which ends when this is dropped, after the errand that it is at.
pub(crate) struct Threaded {
    errands: Sender<(Duration, Errand)>,
}

impl Threaded {
    /// Starts the thread for a directory.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn new(directory: Shared) -> io::Result<Threaded> {
        let (errands, taken) = mpsc::channel::<(Duration, Errand)>();
        thread::Builder::new()
            .name("quire-directory".to_owned())
            .spawn(move || {
                for (pause, errand) in taken {
                    thread::sleep(pause);
                    let deliver = errand(&*directory);
                    if !deliver() {
                        break;
                    }
                }
            })?;
        Ok(Threaded { errands })
    }
}

impl Clerk for Threaded {
    fn take(&self, pause: Duration, errand: Errand) {
        // It is gone only when nobody waits for answers any more.
        let _ = self.errands.send((pause, errand));
    }

    fn keep(&self, renewal: Renewal) -> io::Result<Option<JoinHandle<()>>> {
        renewal.by_thread().map(Some)
    }
}

/// Asks questions in order, and collects the answers.
pub struct Desk<T> {
    clerk: Arc<dyn Clerk>,
    wake: Waker,
    tell: Sender<T>,
    answers: Receiver<T>,
}

impl<T: Send + 'static> Desk<T> {
    /// Starts a thread for a directory. `wake` is called when there is an answer.
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
    pub fn ask(&self, question: impl FnOnce(&dyn Directory) -> T + Send + 'static) {
        self.ask_later(Duration::ZERO, question);
    }

    /// Asks something after a pause.
    pub fn ask_later(
        &self,
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
        self.clerk.take(pause, errand);
    }

    /// An answer, where there is one.
    pub fn answer(&self) -> Option<T> {
        self.answers.try_recv().ok()
    }
}
