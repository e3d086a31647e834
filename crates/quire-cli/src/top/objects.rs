//! Asks servers what happens in the objects that processes have, on a thread of its own: an
//! answer may take seconds, and the screen must not wait for it.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use quire_core::stat::ProcessStat;

use crate::stat::objects::{self, PATIENCE, SharedObject};

/// What servers have said. One round of questions at a time is under way.
#[derive(Debug, Default)]
pub struct Objects {
    asked: Option<Receiver<Vec<SharedObject>>>,
    known: Vec<SharedObject>,
}

impl Objects {
    /// What is known by now. Servers are asked again, if the last answers are there.
    pub fn look(&mut self, processes: &[ProcessStat]) -> Vec<SharedObject> {
        match self.asked.as_ref().map(Receiver::try_recv) {
            Some(Ok(known)) => self.known = known,
            Some(Err(TryRecvError::Empty)) => return self.known.clone(),
            None | Some(Err(TryRecvError::Disconnected)) => {}
        }
        let processes = processes.to_vec();
        let (told, heard) = channel();
        // Nobody waits for the answer any more when the screen is closed.
        let asking = move || drop(told.send(objects::look(&processes, PATIENCE)));
        // Without a thread there is no answer, and the next look asks again.
        self.asked = thread::Builder::new().spawn(asking).ok().map(|_| heard);
        self.known.clone()
    }
}
