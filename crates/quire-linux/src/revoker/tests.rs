//! Tests on the real kernel: a process that shares this one's memory.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use quire_core::units::{BASE_PAGE, ObjectOffset, VirtAddr};
use rustix::fd::AsFd;
use rustix::fs::MemfdFlags;

use super::*;
use crate::futex;
use crate::thread::now_ns;

const PAGES: u64 = 16;
const LEN: Bytes = Bytes(PAGES * BASE_PAGE);
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
const SOON: Duration = Duration::from_millis(50);

/// A mapping of a memory file, each page of which holds its number.
struct Mapped {
    range: AddrRange,
    _file: OwnedFd,
}

impl Mapped {
    fn new() -> Mapped {
        let file = rustix::fs::memfd_create(c"quire-test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, LEN.0).unwrap();
        let (at, offset) = (VirtAddr(0), ObjectOffset(0));
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start =
            unsafe { memory::map_file(at, LEN, BOTH, libc::MAP_SHARED, file.as_fd(), offset) };
        let mapped = Mapped {
            range: AddrRange::new(start.unwrap(), LEN),
            _file: file,
        };
        mapped.touch();
        mapped
    }

    fn word(&self, page: u64) -> &AtomicU64 {
        let at = self.range.start + Bytes(page * BASE_PAGE);
        // SAFETY: it is mapped, and all access it as an atomic.
        unsafe { &*at.as_ptr().cast::<AtomicU64>() }
    }

    fn touch(&self) {
        (0..PAGES).for_each(|page| self.word(page).store(page, Ordering::SeqCst));
    }

    /// How many pages the mapping shows in a process that has it.
    fn shown(&self, process: u32) -> u64 {
        let pages = File::open(format!("/proc/{process}/pagemap")).unwrap();
        let is_shown = |page: &u64| {
            let mut entry = [0; 8];
            let at = (self.range.start.0 / BASE_PAGE + page) * 8;
            pages.read_exact_at(&mut entry, at).unwrap();
            u64::from_ne_bytes(entry) >> 63 == 1
        };
        (0..PAGES).filter(is_shown).count() as u64
    }
}

/// What a revoker does in tests between finding a mapping and taking its pages, so that others come
/// between the two if they can.
pub(super) fn pause() {
    futex::wait_for(&AtomicU32::new(0), 0, Duration::from_micros(200));
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn now() -> Duration {
    Duration::from_nanos(now_ns())
}

/// Whether there is a process of this number that has not ended.
fn lives(process: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit_once(") ").unwrap().1;
        !state.starts_with('Z')
    })
}

#[test]
fn pages_are_taken_when_time_is_over_and_not_before() {
    let (mapped, own) = (Mapped::new(), process_id());
    let term = Arc::new(Term::new());
    let revoker = Revoker::start(Arc::clone(&term), None).unwrap();
    let watched = term.watch(mapped.range);
    let end = now() + 2 * SOON;
    term.set_end(Some(end));
    std::thread::sleep(SOON);
    assert!(mapped.shown(own) == PAGES || now() >= end, "too early");
    until("its time is over", || mapped.shown(own) == 0);
    assert!(now() >= end && term.is_over());
    // It is all there, and the time is longer after all.
    term.set_end(Some(now() + 2 * SOON));
    (0..PAGES).for_each(|page| assert_eq!(mapped.word(page).load(Ordering::SeqCst), page));
    until("its time is over again", || mapped.shown(own) == 0);
    // Without an end, nothing is taken.
    term.set_end(None);
    mapped.touch();
    std::thread::sleep(2 * SOON);
    assert_eq!((mapped.shown(own), term.is_over()), (PAGES, false));
    // Nor where it is not watched.
    drop(watched);
    term.set_end(Some(now()));
    std::thread::sleep(2 * SOON);
    assert_eq!((mapped.shown(own), term.is_over()), (PAGES, true));
    let process = revoker.process();
    drop(revoker);
    assert!(!lives(process));
}

#[test]
fn more_mappings_are_watched_than_there_are_slots_at_first() {
    let own = process_id();
    let term = Arc::new(Term::new());
    let _revoker = Revoker::start(Arc::clone(&term), None).unwrap();
    let all: Vec<Mapped> = (0..200).map(|_| Mapped::new()).collect();
    let mut watched: Vec<Watched> = all.iter().map(|one| term.watch(one.range)).collect();
    // Slots are used again.
    watched.truncate(100);
    watched.extend(all[100..].iter().map(|one| term.watch(one.range)));
    term.set_end(Some(now()));
    for one in &all {
        until("all are taken", || one.shown(own) == 0);
    }
}

#[test]
fn addresses_that_are_not_watched_any_more_are_left_alone() {
    let term = Arc::new(Term::new());
    let _revoker = Revoker::start(Arc::clone(&term), None).unwrap();
    let file = Mapped::new();
    let end = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < end {
                term.set_end(Some(now()));
                std::thread::yield_now();
            }
        });
        let mut rounds = 0;
        while Instant::now() < end {
            let watched = term.watch(file.range);
            file.touch();
            drop(watched);
            // Now something else lies there, which nobody may empty.
            let flags = libc::MAP_FIXED;
            // SAFETY: the place is the test's own.
            unsafe { memory::map_anonymous(file.range.start, LEN, BOTH, flags).unwrap() };
            file.touch();
            std::thread::yield_now();
            for page in 0..PAGES {
                assert_eq!(file.word(page).load(Ordering::SeqCst), page, "{rounds}");
            }
            rounds += 1;
        }
    });
}

/// A child of this process does something, beside which it says what is told to the test.
fn child(does: impl FnOnce(&AtomicU64), told: &Mapped) -> (u32, u32) {
    // SAFETY: the child does what it does with memory of its own, and ends without running
    // anything of the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        does(told.word(1));
        // SAFETY: it ends this process.
        unsafe { libc::_exit(1) };
    }
    until("the child has a revoker", || {
        told.word(1).load(Ordering::SeqCst) > 1
    });
    let revoker = told.word(1).load(Ordering::SeqCst);
    (child.unsigned_abs(), revoker as u32)
}

fn kill(process: u32, signal: i32) {
    // SAFETY: it is a child of this test.
    unsafe { libc::kill(process as i32, signal) };
}

fn reap(process: u32) {
    // SAFETY: it is a child of this test; a null status is allowed.
    unsafe { libc::waitpid(process as i32, std::ptr::null_mut(), 0) };
}

#[test]
fn pages_are_taken_from_a_process_that_is_stopped_and_its_revoker_dies_with_it() {
    let (mapped, told) = (Mapped::new(), Mapped::new());
    let stops = |word: &AtomicU64| {
        let term = Arc::new(Term::new());
        let revoker = Revoker::start(Arc::clone(&term), None).unwrap();
        let _watched = term.watch(mapped.range);
        mapped.touch();
        term.set_end(Some(now() + 4 * SOON));
        word.store(revoker.process().into(), Ordering::SeqCst);
        loop {
            std::thread::sleep(SOON);
        }
    };
    let (process, revoker) = child(stops, &told);
    kill(process, libc::SIGSTOP);
    until("its time is over", || mapped.shown(process) == 0);
    assert!(lives(revoker));
    kill(process, libc::SIGKILL);
    reap(process);
    until("the revoker is dead", || !lives(revoker));
}

#[test]
fn a_revoker_ends_when_its_process_executes_another_program() {
    let told = Mapped::new();
    // In the thread that has it, or in another one.
    for is_own in [false, true] {
        told.touch();
        let executes = |word: &AtomicU64| {
            let begin = |word: &AtomicU64| {
                let term = Arc::new(Term::new());
                let revoker = Revoker::start(Arc::clone(&term), None).unwrap();
                term.set_end(Some(now()));
                word.store(revoker.process().into(), Ordering::SeqCst);
                std::mem::forget(revoker);
            };
            std::thread::scope(|scope| {
                if is_own {
                    begin(word);
                } else {
                    scope.spawn(|| {
                        begin(word);
                        std::thread::sleep(Duration::from_secs(60));
                    });
                    while word.load(Ordering::SeqCst) <= 1 {
                        std::thread::yield_now();
                    }
                }
                let _ = Command::new("sleep").arg("60").exec();
            });
        };
        let (process, revoker) = child(executes, &told);
        until("the revoker has ended", || !lives(revoker));
        assert!(lives(process));
        kill(process, libc::SIGKILL);
        reap(process);
    }
}

#[test]
fn a_program_that_waits_for_children_does_not_see_it() {
    let told = Mapped::new();
    let waits = |word: &AtomicU64| {
        let _revoker = Revoker::start(Arc::new(Term::new()), None).unwrap();
        // SAFETY: a null status is allowed.
        let waited = unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) };
        let is_alone = waited == -1
            && rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
                == Some(rustix::io::Errno::CHILD);
        word.store(2 + u64::from(is_alone), Ordering::SeqCst);
    };
    let (process, said) = child(waits, &told);
    reap(process);
    assert_eq!(said, 3);
}
