//! Asks processes for changes, on a thread of its own: an answer may take
//! seconds, and the screen must not wait for it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use quire_core::control::Change;

use super::app::{App, ProcessKey};
use crate::failure::{Failure, Outcome};
use crate::session::managed_process;
use crate::set::ask;

/// The changes that were asked for. One at a time is under way.
#[derive(Debug)]
pub struct Changes {
    sender: Sender<(ProcessKey, Change, Outcome<()>)>,
    answers: Receiver<(ProcessKey, Change, Outcome<()>)>,
    waiting_for: Option<u32>,
}

impl Changes {
    /// Nothing asked yet.
    pub fn new() -> Changes {
        let (sender, answers) = channel();
        Changes {
            sender,
            answers,
            waiting_for: None,
        }
    }

    /// Begins to ask a process for a change.
    pub fn start(&mut self, app: &mut App, key: ProcessKey, change: Change) {
        if let Some(pid) = self.waiting_for {
            app.complain(format!("still waiting for process {pid}"));
            return;
        }
        let sender = self.sender.clone();
        let asking = move || {
            // Nobody waits for the answer any more when the screen is closed.
            let _ = sender.send((key, change, make(key, &change)));
        };
        match thread::Builder::new().spawn(asking) {
            Ok(_) => {
                self.waiting_for = Some(key.pid);
                app.say(format!("asking process {} for {change} ...", key.pid));
            }
            Err(error) => app.complain(format!("cannot ask process {}: {error}", key.pid)),
        }
    }

    /// Says what came of a change, if there is an answer. Returns whether
    /// there was one.
    pub fn finish(&mut self, app: &mut App) -> bool {
        let Ok((key, change, outcome)) = self.answers.try_recv() else {
            return false;
        };
        self.waiting_for = None;
        match outcome {
            Ok(()) => app.say(format!("process {} has {change}", key.pid)),
            Err(failure) => app.complain(failure.to_string()),
        }
        true
    }
}

fn make(key: ProcessKey, change: &Change) -> Outcome<()> {
    let process = managed_process(key.pid, "top")?;
    if ProcessKey::of(&process.stat) != key {
        return Err(Failure::bad_usage(format!("process {} is gone", key.pid)));
    }
    ask(&process, change)
}
