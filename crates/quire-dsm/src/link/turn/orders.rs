//! What other threads tell the thread of a loop to do.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use mio::Waker;

use super::Turn;

/// The way to the thread of a loop. When the last one is gone, the thread is woken and finds
/// its end of the channel closed.
pub(crate) struct Orders<C> {
    /// There until the end.
    sender: Option<Sender<C>>,
    waker: Arc<Waker>,
}

impl<C> Orders<C> {
    /// The way to the thread that is to have this loop, and that thread's end of it.
    pub fn new(turn: &Turn) -> (Orders<C>, Receiver<C>) {
        let (sender, taken) = mpsc::channel();
        let orders = Orders {
            sender: Some(sender),
            waker: turn.waker(),
        };
        (orders, taken)
    }

    /// Tells the thread. Whether there is one that takes it.
    pub fn put(&self, order: C) -> bool {
        let sender = self.sender.as_ref();
        sender.is_some_and(|sender| sender.send(order).is_ok()) && self.waker.wake().is_ok()
    }
}

impl<C> Clone for Orders<C> {
    fn clone(&self) -> Orders<C> {
        Orders {
            sender: self.sender.clone(),
            waker: Arc::clone(&self.waker),
        }
    }
}

impl<C> Drop for Orders<C> {
    fn drop(&mut self) {
        self.sender = None;
        // A loop that has ended needs no waking.
        let _ = self.waker.wake();
    }
}
