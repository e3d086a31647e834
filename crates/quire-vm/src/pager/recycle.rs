//! Recycling over all processes: where memory or contiguous blocks run short,
//! the reservation that was allocated from least recently yields, whichever
//! process of the user holds it (paper 000, sections 3.3 and 3.4). Only then is
//! the kernel left to compact memory for a new one.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use quire_core::pressure::{self, MemoryState};
use quire_core::registry::{Holding, Yield, whom_to_ask};
use quire_core::units::{Bytes, SUPERPAGE};
use quire_linux::raw::Errno;
use quire_linux::{control, registry, thread};

use super::Pager;
use crate::extent::now_ms;

/// How long another process may take to yield: a thread of the program waits.
const PATIENCE: Duration = Duration::from_millis(5);
/// How long what somebody was asked for may still come after that: meanwhile nothing
/// that was allocated from later is given back but what cannot wait.
const OWED_MS: u64 = 50;
/// How much is asked for at once, so that the next few need not ask.
const ASKED: Bytes = Bytes(8 * SUPERPAGE);
/// How often others are asked at most, in milliseconds: while they give, and
/// where nobody has anything to give.
const ASK_MS: (u64, u64) = (1, 100);
/// A reservation that was not allocated from for this long gives way to a new one
/// of the same program.
const LEFT_BEHIND_MS: u64 = 1000;

/// What is known of other processes.
#[derive(Debug, Default)]
pub(super) struct Recycling {
    /// When others may be asked again, for memory and for blocks.
    next_ask_ms: [u64; 2],
    /// Until when what others did not give in time may still come.
    owed_until_ms: u64,
    /// It is the control group in which memory runs short.
    in_group: bool,
    /// The limit by which the group was last told.
    limit: Option<Bytes>,
}

impl Pager {
    /// Whether there is room for one more reservation; if not, after recycling.
    /// Where only contiguous blocks are missing, the kernel may still make one.
    pub(super) fn has_room(&mut self) -> bool {
        if self.budget.0 < SUPERPAGE {
            self.relieve(now_ms());
        }
        if self.budget.0 < SUPERPAGE {
            if self.recycle(ASKED, false) == Bytes::ZERO {
                self.recycle_own();
            }
            self.relieve(now_ms());
        } else if !self.blocks.has_superpage() {
            self.recycling.in_group = false;
            self.recycle(Bytes(SUPERPAGE), true);
        }
        self.budget.0 >= SUPERPAGE
    }

    /// Notes whether it is the group that has no room, or the machine, and which
    /// group that is.
    pub(super) fn note_short(&mut self, memory: &MemoryState, reserved: Bytes) {
        if memory.group_limit != self.recycling.limit {
            self.recycling.limit = memory.group_limit;
            let limiting = self.group.as_ref().and_then(|group| group.limit());
            self.manager.state.lock().group = limiting.map_or(0, |(_, dir)| name_of(dir));
        }
        let machine = MemoryState {
            group_headroom: None,
            group_limit: None,
            ..*memory
        };
        let elsewhere = pressure::advise(&machine, reserved, None).may_reserve;
        self.recycling.in_group = memory.group_headroom.is_some() && elsewhere.0 >= SUPERPAGE;
    }

    /// Lets other processes of the user free what they have reserved and allocated
    /// from less recently than this one, up to about `wanted` bytes; where it is
    /// blocks that are short, only `whole` ones. Returns how much that is.
    pub(super) fn recycle(&mut self, wanted: Bytes, whole: bool) -> Bytes {
        let now = now_ms();
        if now < self.recycling.next_ask_ms[usize::from(whole)] {
            return Bytes::ZERO;
        }
        let (session, own_ms, group) = {
            let state = self.manager.state.lock();
            let session = state.config.session.clone();
            (session, state.oldest_ms(), state.group)
        };
        let others = session.map_or_else(Vec::new, |session| {
            registry::others(&session, thread::process_id())
        });
        let group = self.recycling.in_group.then_some(group);
        let holdings: Vec<Holding> = others.iter().map(|(holding, _)| *holding).collect();
        let asked = whom_to_ask(&holdings, own_ms, group, wanted, whole);
        let mut freed = Bytes::ZERO;
        for (pid, request) in &asked {
            match ask(&others, *pid, *request) {
                Some(given) => freed += given,
                None => self.recycling.owed_until_ms = now_ms() + OWED_MS,
            }
        }
        let (soon, late) = ASK_MS;
        let wait = if freed == Bytes::ZERO { late } else { soon };
        self.recycling.next_ask_ms[usize::from(whole)] = now_ms() + wait;
        self.blocks.forget();
        freed
    }

    /// Whether somebody older was asked, and may only not have come to it yet: on a
    /// busy machine that takes longer than a program can be kept waiting.
    pub(super) fn is_owed(&self) -> bool {
        now_ms() < self.recycling.owed_until_ms
    }

    /// Where nobody else has anything older, makes room at the cost of an own
    /// reservation that the program has left behind.
    fn recycle_own(&mut self) {
        self.give_back(Yield {
            wanted: Bytes(SUPERPAGE),
            before_ms: now_ms().saturating_sub(LEFT_BEHIND_MS),
            whole: false,
        });
    }

    /// Gives back what another process asks for, and returns how much.
    pub(super) fn yield_up(&mut self, request: Yield) -> Bytes {
        let freed = self.give_back(request);
        let state = self.manager.state.lock();
        self.manager
            .stats()
            .set_oldest(state.oldest_ms(), state.group);
        freed
    }
}

/// A number that stands for a control group among the processes of a machine.
fn name_of(directory: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    directory.hash(&mut hasher);
    hasher.finish().max(1)
}

/// Asks one process, and returns how much it gave; `None` where it has not answered
/// yet.
fn ask(others: &[(Holding, PathBuf)], pid: u32, request: Yield) -> Option<Bytes> {
    let Some((_, path)) = others.iter().find(|(holding, _)| holding.pid == pid) else {
        return Some(Bytes::ZERO);
    };
    match control::ask(path, &request.to_string(), PATIENCE, || true) {
        Ok(freed) => Some(Bytes(freed.parse().unwrap_or(0))),
        Err(Errno(libc::ETIMEDOUT)) => None,
        Err(_) => Some(Bytes::ZERO),
    }
}
