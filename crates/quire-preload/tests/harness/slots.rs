//! How many programs run at a time. Most of them wait for most of their time; those that measure run alone.

use std::sync::{Condvar, Mutex, PoisonError};

/// So many programs at a time.
pub const ALL: u32 = 6;

/// Whose turn it is, in the order in which they came, and what is free.
struct State {
    free: u32,
    next: u64,
    turn: u64,
}

static STATE: Mutex<State> = Mutex::new(State {
    free: ALL,
    next: 0,
    turn: 0,
});
static CHANGED: Condvar = Condvar::new();

/// Some of them; dropping gives them back.
pub struct Slots(u32);

impl Slots {
    /// Waits for so many.
    pub fn take(count: u32) -> Slots {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = state.next;
        state.next += 1;
        while state.turn != ours || state.free < count {
            state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.turn += 1;
        state.free -= count;
        CHANGED.notify_all();
        Slots(count)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        state.free += self.0;
        CHANGED.notify_all();
    }
}
