//! The thread that gives missing pages their frames.
//!
//! It touches no memory of the program, takes no lock that a thread may hold while it
//! touches such memory, and has a descriptor table of its own, as the pager has.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use quire_core::config::Policy;
use quire_core::frames::strategy::Request;
use quire_core::stat::{Counter, Note};
use quire_core::units::{
    AddrRange, BASE_PAGE, Bytes, Frame, PAGES_PER_SUPERPAGE, PageCount, VirtAddr,
};
use quire_linux::raw::Errno;
use quire_linux::uffd::{self, Fault, Scope};
use quire_linux::{sysinfo, thread};
use rustix::event::{PollFd, PollFlags, poll};

use super::folios::Folios;
use super::streams::Streams;
use super::{RANGES, Setup, THREAD, UFFD, Which};
use crate::manager::Manager;
use crate::outcome::Outcome;

/// How long the thread stays awake for the next touch where each is reported: waking
/// it takes longer than the answer.
const STAY_AWAKE_NS: u64 = 50_000;

/// Starts the thread, and waits until it is ready.
pub(super) fn start(manager: &'static Manager, setup: Setup) -> Result<(), Note> {
    static OUTCOME: Outcome = Outcome::new();
    OUTCOME.reset();
    let signals = thread::block_program_signals();
    let spawned = std::thread::Builder::new()
        .name("quire-frames".into())
        .stack_size(256 << 10)
        .spawn(move || match Server::new(manager, setup) {
            Ok(mut server) => {
                UFFD.store(server.uffd.as_raw_fd(), Ordering::Release);
                THREAD.store(thread::current_id(), Ordering::Release);
                OUTCOME.report(Ok(()));
                server.run();
            }
            Err(error) => OUTCOME.report(Err(error)),
        });
    drop(signals);
    if spawned.is_err() {
        return Err(Note::FramesUnserved);
    }
    OUTCOME.wait(Note::FramesUnserved)
}

/// How touches of a strategy's pages are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// Each, because their order decides.
    OneByOne,
    /// The first of some.
    InRuns,
}

struct Server {
    manager: &'static Manager,
    uffd: OwnedFd,
    setup: Setup,
    folios: Folios,
    streams: Streams,
}

impl Server {
    fn new(manager: &'static Manager, setup: Setup) -> Result<Server, Note> {
        // SAFETY: a thread that has just begun holds no descriptor.
        unsafe { thread::own_descriptor_table() }.map_err(|_| Note::FramesUnserved)?;
        let (uffd, scope) = uffd::open_for_moves().map_err(|_| Note::FramesUnmoved)?;
        if scope != Scope::Full {
            return Err(Note::FramesUserMode);
        }
        if manager.policy() == Policy::Base {
            // The stock is made of them.
            sysinfo::process::disable_unadvised_huge_pages();
        }
        let mut folios =
            Folios::new(&setup.colours, uffd.as_fd()).map_err(|_| Note::FramesUnserved)?;
        folios.refill().map_err(|_| Note::FramesUnserved)?;
        if setup.exact && !folios.shows_frames() {
            return Err(Note::FramesHidden);
        }
        Ok(Server {
            manager,
            uffd,
            setup,
            folios,
            streams: Streams::default(),
        })
    }

    fn run(&mut self) {
        loop {
            // Interrupted or not, what is there is answered.
            let _ = poll(&mut [PollFd::new(&self.uffd, PollFlags::IN)], None);
            let mut until = 0;
            loop {
                while let Some(fault) = uffd::read_fault(self.uffd.as_fd()) {
                    if self.answer(&fault) == Pace::OneByOne {
                        until = thread::now_ns() + STAY_AWAKE_NS;
                    }
                }
                if thread::now_ns() >= until {
                    break;
                }
                std::hint::spin_loop();
            }
            self.prepare();
        }
    }

    /// Gives the touched page a frame, and those after it that are wanted with it.
    fn answer(&mut self, fault: &Fault) -> Pace {
        let page = VirtAddr(fault.address.0 / BASE_PAGE * BASE_PAGE);
        let request = Request {
            page,
            thread: fault.thread,
        };
        let Some((range, which)) = self.placed(page) else {
            self.leave(page);
            return Pace::InRuns;
        };
        let strategy = self.setup.strategies.get(which.0);
        let pace = match strategy.is_some_and(|strategy| strategy.depends_on_order()) {
            true => Pace::OneByOne,
            false => Pace::InRuns,
        };
        let wanted = match pace {
            Pace::OneByOne => 1,
            Pace::InRuns => self.streams.window(page).min(range.len().to_pages().0),
        };
        // Some of the pages can be those of another mapping by now.
        if !self.give(wanted, which, &request) && !self.give(1, which, &request) {
            self.leave(page);
        }
        pace
    }

    /// The rest of the placed range from a page on, and its strategy.
    fn placed(&self, page: VirtAddr) -> Option<(AddrRange, Which)> {
        let one = AddrRange::new(page, Bytes(BASE_PAGE));
        let ranges = RANGES.lock();
        let (range, which) = ranges.overlaps(one).next()?;
        Some((range.split_at(page).1, which))
    }

    /// Moves up to `wanted` pages in. Says whether the touched one is there now.
    fn give(&mut self, wanted: u64, which: Which, request: &Request) -> bool {
        let Some(strategy) = self.setup.strategies.get_mut(which.0) else {
            return false;
        };
        let run = self.folios.allocate(strategy.as_mut(), request, wanted);
        let Some((run, from)) = run.and_then(|run| Some((run, self.folios.address_of(run.first)?)))
        else {
            return false;
        };
        let to = AddrRange::new(request.page, PageCount(run.count).to_bytes());
        let moved = uffd::move_pages(self.uffd.as_fd(), to, from);
        let given = moved.done.to_pages().0;
        self.folios.note_left(run.first, given);
        self.folios
            .put_back(Frame(run.first.0 + given), run.count - given);
        if given > 0 {
            self.streams.note(request.page, given);
            self.count(run.accepted, given);
            return true;
        }
        let is_there = moved.error == Some(Errno(libc::EEXIST));
        if is_there {
            // Somebody else's touch brought it in.
            let _ = uffd::wake(self.uffd.as_fd(), to);
        }
        is_there
    }

    fn count(&self, accepted: bool, pages: u64) {
        let stats = self.manager.stats();
        stats.add(Counter::FrameFaults, 1);
        let kind = match accepted {
            true => Counter::FramesChosen,
            false => Counter::FramesOther,
        };
        stats.add(kind, pages);
        stats.set(Counter::FramesStocked, self.folios.pages().0);
    }

    /// Leaves a page to the kernel: it gets zeros, and a frame of the kernel's choice
    /// when it is written to.
    fn leave(&self, page: VirtAddr) {
        let one = AddrRange::new(page, Bytes(BASE_PAGE));
        let uffd = self.uffd.as_fd();
        if uffd::supply_zeros(uffd, one).is_err() {
            // The mapping is gone, or has changed: the touch comes again, or ends.
            let _ = uffd::wake(uffd, one);
        }
        self.manager.stats().add(Counter::FramesLeft, 1);
    }

    /// Keeps a folio in stock, so that the next touch need not wait for one.
    fn prepare(&mut self) {
        if self.folios.pages().0 < PAGES_PER_SUPERPAGE as u64 / 2 {
            // Where there is none, a touch asks again.
            let _ = self.folios.refill();
        }
    }
}
