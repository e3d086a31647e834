//! The thread that gives missing pages their frames.
//!
//! It touches no memory of the program, and takes no lock that a thread may hold while it
//! touches such memory.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use quire_core::config::Policy;
use quire_core::frames::strategy::{Request, Strategy};
use quire_core::stat::{Counter, FrameTally, Given, Note};
use quire_core::units::{
    AddrRange, BASE_PAGE, Bytes, Frame, PAGES_PER_SUPERPAGE, PageCount, VirtAddr,
};
use quire_linux::own_threads::Own;
use quire_linux::raw::Errno;
use quire_linux::ready::{Ready, When};
use quire_linux::uffd::{self, Fault, Scope};
use quire_linux::{lone_thread, sysinfo, thread};

use super::folios::Folios;
use super::jobs::{self, Job};
use super::moving::move_pages;
use super::stalls::Stalls;
use super::streams::{Sequence, Streams, Window};
use super::{Kind, Placed, RANGES, Setup, THREAD, UFFD, Which};
use crate::hands::{self, Follower};
use crate::manager::Manager;
use crate::outcome::Outcome;

/// How long the thread stays awake for the next touch where each is reported: waking
/// it takes longer than the answer. Where there is one processor only, it would keep the
/// program from it.
const STAY_AWAKE_NS: u64 = 50_000;
/// After so long without a touch, the program is at rest; and after so many such times, for
/// long.
const REST: Duration = Duration::from_secs(1);
const LONG: u32 = 10;
/// What it is woken by.
const TOUCH: u64 = 1 << 0;
const JOB: u64 = 1 << 1;
const STALL: u64 = 1 << 2;

/// What the thread became.
static OUTCOME: Outcome = Outcome::new();

/// Starts the thread, and waits until it is ready.
pub(super) fn start(manager: &'static Manager, setup: Setup) -> Result<(), Note> {
    hands::start().map_err(|_| Note::FramesUnserved)?;
    OUTCOME.reset();
    let given: *mut (&'static Manager, Setup) = Box::into_raw(Box::new((manager, setup)));
    if hands::spawn(|threads| &threads.frames, main, given as usize).is_err() {
        // SAFETY: there is no thread that would take it.
        drop(unsafe { Box::from_raw(given) });
        return Err(Note::FramesUnserved);
    }
    OUTCOME.wait(Note::FramesUnserved, || {
        hands::is_there(|threads| &threads.frames)
    })
}

extern "C" fn main(given: usize) {
    // SAFETY: `start` made it, and leaves it to this thread.
    let (manager, setup) = *unsafe { Box::from_raw(given as *mut (&'static Manager, Setup)) };
    let _own = Own::now();
    lone_thread::set_name(c"quire-frames");
    match Server::new(manager, setup) {
        Ok(mut server) => {
            jobs::accept(&server.event, server.strategies.len());
            UFFD.store(server.uffd.as_raw_fd(), Ordering::Release);
            THREAD.store(thread::current_id(), Ordering::Release);
            OUTCOME.report(Ok(()));
            server.run();
        }
        Err(error) => OUTCOME.report(Err(error)),
    }
}

/// How touches are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// Each: they are in no row.
    OneByOne,
    /// The first of some.
    InRuns,
}

pub(super) struct Server {
    pub manager: &'static Manager,
    pub uffd: OwnedFd,
    pub strategies: Vec<Box<dyn Strategy>>,
    pub folios: Folios,
    streams: Streams,
    /// Tells of jobs.
    event: OwnedFd,
    /// What it sleeps on.
    ready: Ready,
    stalls: Stalls,
    /// How many times the program was found at rest.
    rests: u32,
    /// What is being done, a few pages at a time.
    job: Option<Job>,
    may_stay_awake: bool,
    tally: FrameTally,
}

impl Server {
    fn new(manager: &'static Manager, setup: Setup) -> Result<Server, Note> {
        let (uffd, scope) = uffd::open_for_moves().map_err(|_| Note::FramesUnmoved)?;
        if scope != Scope::Full {
            return Err(Note::FramesUserMode);
        }
        if manager.policy() == Policy::Base {
            // The stock is made of them.
            sysinfo::process::disable_unadvised_huge_pages();
        }
        let mut folios = Folios::new(&setup.colours, uffd.as_fd(), setup.stock)
            .map_err(|_| Note::FramesUnserved)?;
        folios.refill().map_err(|_| Note::FramesUnserved)?;
        if setup.exact && !folios.shows_frames() {
            return Err(Note::FramesHidden);
        }
        manager.stats().name_strategies(&setup.names);
        let event = thread::new_event().map_err(|_| Note::FramesUnserved)?;
        let stalls = Stalls::new();
        Ok(Server {
            manager,
            ready: sleeps_on(&uffd, &event, &stalls).map_err(|_| Note::FramesUnserved)?,
            uffd,
            strategies: setup.strategies,
            folios,
            streams: Streams::default(),
            event,
            stalls,
            rests: 0,
            job: None,
            may_stay_awake: has_processors(),
            tally: FrameTally::default(),
        })
    }

    fn run(&mut self) {
        let mut follower = Follower::default();
        loop {
            follower.follow();
            if self.job.is_none() {
                self.wait();
            }
            let (mut until, mut touched) = (0, false);
            loop {
                while let Some(fault) = uffd::read_fault(self.uffd.as_fd()) {
                    touched = true;
                    if self.answer(&fault) == Pace::OneByOne && self.may_stay_awake {
                        until = thread::now_ns() + STAY_AWAKE_NS;
                    }
                }
                if thread::now_ns() >= until {
                    break;
                }
                std::hint::spin_loop();
            }
            if touched {
                self.rests = 0;
                self.prepare();
            }
            if self.stalls.look(thread::now_ns()) {
                self.folios.shrink(PageCount(0));
                self.note_stock();
            }
            self.work();
        }
    }

    /// Waits for a touch, a job or want of memory. Once the program is at rest, most of
    /// the stock goes back to the kernel, and after a while all of it.
    fn wait(&mut self) {
        let rest = (self.folios.pages() > PageCount(0)).then_some(REST);
        // Interrupted or not, what is there is answered.
        let ready = self.ready.wait(rest);
        let stalled = ready & STALL != 0;
        if ready == 0 {
            self.rests += 1;
        }
        match self.rests {
            _ if stalled => self.folios.shrink(PageCount(0)),
            0 => {}
            1 => self.folios.settle(),
            LONG.. => self.folios.shrink(PageCount(0)),
            _ => {}
        }
        self.note_stock();
    }

    /// Goes on with the jobs, for a few pages.
    fn work(&mut self) {
        if self.job.is_none() {
            thread::clear_event(&self.event);
            self.job = jobs::next();
        }
        if let Some(mut job) = self.job.take()
            && !self.advance(&mut job)
        {
            self.job = Some(job);
        }
    }

    /// The strategy at a place. Those that came later than the thread are fetched.
    pub fn strategy(&mut self, which: Which) -> Option<&mut Box<dyn Strategy>> {
        if which.0 >= self.strategies.len() {
            jobs::fetch_strategies(&mut self.strategies);
        }
        self.strategies.get_mut(which.0)
    }

    /// Gives the touched page a frame, and those after it that are wanted with it.
    fn answer(&mut self, fault: &Fault) -> Pace {
        let page = VirtAddr(fault.address.0 / BASE_PAGE * BASE_PAGE);
        let request = Request {
            page,
            thread: fault.thread,
        };
        let placed = placed_around(page);
        let Some((range, Placed { which, kind, .. })) =
            placed.filter(|(_, placed)| self.strategy(placed.which).is_some())
        else {
            self.leave(page, fault.protected, None);
            return Pace::InRuns;
        };
        let sequence = self.strategies[which.0].sequence(&request);
        let sequence: Option<Sequence> = sequence.map(|number| (which.0, number));
        self.manager.stats().add(Counter::FrameFaults, 1);
        let window = self.streams.window(sequence, page);
        let (before, after) = range.split_at(page);
        let wanted = window.pages.min(after.len().to_pages().0);
        // Before the touched one, as long as the program waits. Not on stacks: a program that
        // forks does not use their next pages, and its child would get copies of them.
        let before = match window.before.min(before.len().to_pages().0) {
            some @ 1.. if kind == Kind::Mapping => {
                self.give_before(some, which, &request, fault.protected)
            }
            _ => 0,
        };
        let pages = match fault.protected {
            true => self.replace(wanted, which, &request),
            false => self.give(wanted, which, &request),
        };
        let pages = pages.max(1);
        self.streams.note(sequence, page, Window { pages, before });
        match window.all() {
            1 => Pace::OneByOne,
            _ => Pace::InRuns,
        }
    }

    /// Moves up to `wanted` pages in before the touched one. Returns how many there are
    /// now in a row.
    fn give_before(
        &mut self,
        wanted: u64,
        which: Which,
        request: &Request,
        protected: bool,
    ) -> u64 {
        let wanted = match protected {
            true => self.guarded_before(request.page, wanted),
            false => wanted,
        };
        if wanted == 0 {
            return 0;
        }
        let first = VirtAddr(request.page.0 - wanted * BASE_PAGE);
        let request = Request {
            page: first,
            ..*request
        };
        let given = match protected {
            true => self.fill(
                AddrRange::new(first, PageCount(wanted).to_bytes()),
                which,
                &request,
            ),
            false => self.give(wanted, which, &request),
        };
        // Where some are left out, the row ends before them.
        match given == wanted {
            true => wanted,
            false => 0,
        }
    }

    /// Moves up to `wanted` pages in, from the touched one on, and lets who waits for
    /// them go on. Returns how many were answered: without any frame, the touched one is
    /// left to the kernel; none where it is there already.
    pub fn give(&mut self, wanted: u64, which: Which, request: &Request) -> u64 {
        let mut given = 0;
        while given < wanted {
            let request = request.further(given);
            match self.give_run(wanted - given, which, &request) {
                Ok(0) => break,
                Ok(pages) => given += pages,
                // Some of the pages can be those of another mapping by now, and some
                // can be there.
                Err(_) if given > 0 => break,
                Err(Errno(libc::EEXIST)) => break,
                Err(_) if wanted > 1 => return self.give(1, which, &request),
                Err(_) => {
                    self.leave(request.page, false, Some(which));
                    return 1;
                }
            }
        }
        let range = AddrRange::new(request.page, PageCount(given.max(1)).to_bytes());
        // Where nothing is mapped any more, nobody waits.
        let _ = uffd::wake(self.uffd.as_fd(), range);
        given
    }

    /// Moves neighbouring frames in, as many as there are of those that are wanted.
    fn give_run(&mut self, wanted: u64, which: Which, request: &Request) -> Result<u64, Errno> {
        let none = Errno(libc::ENOMEM);
        let strategy = self.strategies.get_mut(which.0).ok_or(none)?;
        let run = self.folios.allocate(strategy.as_mut(), request, wanted);
        let run = run.ok_or(none)?;
        let from = self.folios.address_of(run.first).ok_or(none)?;
        let to = AddrRange::new(request.page, PageCount(run.count).to_bytes());
        let moved = move_pages(self.uffd.as_fd(), self.folios.pagemap(), to, from);
        let given = moved.done.to_pages().0;
        self.folios.note_left(run.first, given);
        let rest = Frame(run.first.0 + given);
        self.folios.put_back(rest, run.count - given);
        if given < run.count && run.accepted {
            strategy.take_back(rest, &request.further(given));
        }
        if given > 0 {
            let kind = match run.accepted {
                true => Given::Chosen,
                false => Given::Other,
            };
            self.count(which, request.page, kind, PageCount(given));
        }
        match moved.error {
            Some(error) if given == 0 => Err(error),
            _ => Ok(given),
        }
    }

    fn note_stock(&self) {
        let stats = self.manager.stats();
        stats.set(Counter::FramesStocked, self.folios.pages().0);
    }

    pub fn count(&mut self, which: Which, page: VirtAddr, given: Given, pages: PageCount) {
        if pages.0 == 0 {
            return;
        }
        self.note_stock();
        let stats = self.manager.stats();
        let mapping = || placed_around(page).map(|(range, _)| range);
        self.tally
            .count(stats, (which.0, page), (given, pages), mapping);
    }

    /// Leaves a page to the kernel: one that is missing gets zeros, and a frame of the
    /// kernel's choice when it is written to; one that is protected has a frame.
    pub fn leave(&mut self, page: VirtAddr, protected: bool, which: Option<Which>) {
        self.let_go_on(page, protected);
        match which {
            Some(which) => self.count(which, page, Given::Left, PageCount(1)),
            None => self.manager.stats().add(Counter::FramesLeft, 1),
        }
    }

    /// Lets who waits for a page go on, with what the kernel gives or has given.
    pub fn let_go_on(&self, page: VirtAddr, protected: bool) {
        let one = AddrRange::new(page, Bytes(BASE_PAGE));
        let uffd = self.uffd.as_fd();
        let left = match protected {
            true => uffd::write_protect(uffd, one, false),
            false => uffd::supply_zeros(uffd, one),
        };
        if left.is_err() {
            // The mapping is gone, or has changed: the touch comes again, or ends.
            let _ = uffd::wake(uffd, one);
        }
    }

    /// Keeps a folio in stock, so that the next touch need not wait for one.
    fn prepare(&mut self) {
        let few = self.folios.pages().0 < PAGES_PER_SUPERPAGE as u64 / 2;
        if few && self.folios.has_room() {
            // Where there is none, a touch asks again.
            let _ = self.folios.refill();
        }
    }
}

/// What the thread sleeps on: a touch, a job, want of memory.
fn sleeps_on(uffd: &OwnedFd, event: &OwnedFd, stalls: &Stalls) -> Result<Ready, Errno> {
    let ready = Ready::new()?;
    ready.add(uffd, When::Readable, TOUCH)?;
    ready.add(event, When::Readable, JOB)?;
    if let Some(trigger) = stalls.trigger() {
        ready.add(&trigger, When::Urgent, STALL)?;
    }
    Ok(ready)
}

/// Whether this thread may run on more processors than one.
fn has_processors() -> bool {
    rustix::thread::sched_getaffinity(None).is_ok_and(|own| own.count() > 1)
}

/// The placed range around a page.
fn placed_around(page: VirtAddr) -> Option<(AddrRange, Placed)> {
    let one = AddrRange::new(page, Bytes(BASE_PAGE));
    RANGES.lock().overlaps(one).next()
}
