//! A thread that asks a directory, for an event loop that must not wait.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use super::{Directory, Shared, Waker};

type Question<T> = Box<dyn FnOnce(&dyn Directory) -> T + Send>;

/// Asks questions in order, and collects the answers. The thread ends when this is dropped,
/// after the question that it is at.
pub struct Desk<T> {
    questions: Sender<Question<T>>,
    answers: Receiver<T>,
}

impl<T: Send + 'static> Desk<T> {
    /// Starts a thread for a directory. `wake` is called when there is an answer.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn new(directory: Shared, wake: Waker) -> std::io::Result<Desk<T>> {
        let (questions, asked) = mpsc::channel::<Question<T>>();
        let (answer, answers) = mpsc::channel();
        thread::Builder::new()
            .name("quire-directory".to_owned())
            .spawn(move || {
                for question in asked {
                    if answer.send(question(&*directory)).is_err() {
                        break;
                    }
                    wake();
                }
            })?;
        Ok(Desk { questions, answers })
    }

    /// Asks something. The answer says what it answers.
    pub fn ask(&self, question: impl FnOnce(&dyn Directory) -> T + Send + 'static) {
        // The thread lives as long as this.
        let _ = self.questions.send(Box::new(question));
    }

    /// An answer, where there is one.
    pub fn answer(&self) -> Option<T> {
        self.answers.try_recv().ok()
    }
}
