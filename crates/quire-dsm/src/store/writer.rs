//! The thread that writes: it takes what waits, makes it durable together, and says so.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};

use super::engine::Engine;
use super::lock::Lock;
use super::shared::Request;
use super::{NewObject, Object, ObjectId, Settings, StoreError};

type Tell<T> = Box<dyn FnOnce(Result<T, StoreError>) + Send>;

/// Who is told how something ended: once, also where it is dropped undone.
pub(super) struct Answer<T>(Option<Tell<T>>);

impl<T> Answer<T> {
    pub(super) fn new(tell: impl FnOnce(Result<T, StoreError>) + Send + 'static) -> Answer<T> {
        Answer(Some(Box::new(tell)))
    }

    fn give(mut self, result: Result<T, StoreError>) {
        if let Some(tell) = self.0.take() {
            tell(result);
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            tell(Err(StoreError::Stopped));
        }
    }
}

/// What the thread is asked for.
pub(super) enum Job {
    Write(Request, Answer<()>),
    Create(NewObject, Answer<Arc<Object>>),
    Change(ObjectId, NewObject, Answer<Arc<Object>>),
    Remove(ObjectId, Answer<()>),
    Flush(Answer<()>),
}

/// The thread. Dropping this ends it, after all that it was asked for.
pub(super) struct Writer {
    queue: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(
        engine: Engine,
        settings: Settings,
        lock: Lock,
    ) -> Result<Writer, StoreError> {
        let (queue, jobs) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("quire-store".to_owned())
            .spawn(move || {
                run(engine, &jobs, &settings);
                drop(lock);
            })
            .map_err(|error| StoreError::io("cannot start the store's thread", &error))?;
        Ok(Writer {
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    /// Gives the thread something to do. Where it is gone, the job is dropped, which
    /// answers it.
    pub(super) fn send(&self, job: Job) {
        if let Some(queue) = &self.queue {
            drop(queue.send(job));
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the store's thread has failed");
        }
    }
}

fn run(mut engine: Engine, jobs: &Receiver<Job>, settings: &Settings) {
    loop {
        let job = if engine.is_at_rest() {
            jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            jobs.recv_timeout(settings.rest)
        };
        match job {
            Ok(job) => take(&mut engine, job, jobs, settings),
            Err(RecvTimeoutError::Timeout) => engine.settle(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    engine.settle();
}

/// Does a job; where it is a write-back, together with those that wait behind it.
fn take(engine: &mut Engine, first: Job, jobs: &Receiver<Job>, settings: &Settings) {
    let mut job = Some(first);
    while let Some(Job::Write(request, done)) = job {
        let mut bytes = request.bytes();
        let (mut requests, mut told) = (vec![request], vec![done]);
        job = None;
        while bytes < settings.batch.0 {
            match jobs.try_recv() {
                Ok(Job::Write(request, done)) => {
                    bytes += request.bytes();
                    requests.push(request);
                    told.push(done);
                }
                Ok(other) => {
                    job = Some(other);
                    break;
                }
                Err(_) => break,
            }
        }
        let results = engine.commit(&requests);
        for (done, result) in told.into_iter().zip(results) {
            done.give(result);
        }
    }
    if let Some(job) = job {
        administer(engine, job);
    }
}

/// Does what is asked for rarely.
fn administer(engine: &mut Engine, job: Job) {
    match job {
        Job::Write(..) => {}
        Job::Create(object, answer) => answer.give(engine.create(object)),
        Job::Change(id, object, answer) => answer.give(engine.change(id, object)),
        Job::Remove(id, answer) => answer.give(engine.remove(id)),
        Job::Flush(answer) => answer.give(engine.checkpoint()),
    }
}
