//! A word whose page is away, changed only if something still holds when the page is there.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use quire_core::units::{AddrRange, BASE_PAGE, Bytes, ObjectOffset, VirtAddr};
use quire_linux::memory;
use quire_linux::restartable::{self, Changed, Provided};
use quire_linux::uffd::Scope;
use quire_linux::uffd::shared::{self, Allow, Waiters};
use rustix::fs::MemfdFlags;

const PAGE: usize = BASE_PAGE as usize;

/// A page that is not there, and by what its touches are answered.
fn away() -> Option<(OwnedFd, AddrRange)> {
    let Ok((uffd, Scope::Full)) = shared::open() else {
        eprintln!("skipped: no full userfaultfd for shared memory here");
        return None;
    };
    if !restartable::is_there() {
        eprintln!("skipped: the C library or the kernel has no restartable sequences here");
        return None;
    }
    let file = rustix::fs::memfd_create(c"away", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, BASE_PAGE).unwrap();
    let (len, prot) = (Bytes(BASE_PAGE), libc::PROT_READ | libc::PROT_WRITE);
    let start = ObjectOffset(0);
    // SAFETY: a new mapping, at an address that the kernel chooses. It stays.
    let at = unsafe {
        memory::map_file(
            VirtAddr(0),
            len,
            prot,
            libc::MAP_SHARED,
            file.as_fd(),
            start,
        )
    };
    let range = AddrRange::new(at.unwrap(), len);
    shared::register(uffd.as_fd(), range).unwrap();
    Some((uffd, range))
}

fn word(range: AddrRange) -> &'static AtomicU64 {
    // SAFETY: a word of a mapping that stays; all access it atomically.
    unsafe { AtomicU64::from_ptr(range.start.as_ptr().cast()) }
}

/// Waits for the touch, does something, and lets it find a word.
fn answer(uffd: &OwnedFd, range: AddrRange, before: impl Fn(), value: u64) {
    let mut poll = libc::pollfd {
        fd: uffd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor to be polled, which is written back to.
    assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 5_000) }, 1);
    let mut touches = Vec::new();
    shared::read(uffd.as_fd(), &mut touches).unwrap();
    before();
    let mut page = [0; PAGE];
    page[..8].copy_from_slice(&value.to_ne_bytes());
    let (allow, waiters) = (Allow::Write, Waiters::Wake);
    let _ = shared::copy(uffd.as_fd(), range.start, &page, allow, waiters);
}

#[test]
fn what_waited_for_a_page_is_not_written() {
    for doubts in [0, 1] {
        let Some((uffd, range)) = away() else {
            return;
        };
        let (sure, always) = (AtomicU64::new(0), AtomicU64::new(0));
        let provided = [&sure, &always].map(|counter| Provided { counter, is: 0 });
        thread::scope(|scope| {
            let changer = scope.spawn(|| {
                let mut all = Vec::new();
                while !matches!(all.last(), Some(Changed::Done | Changed::Refused)) {
                    all.push(restartable::change(word(range), 7, 8, provided));
                }
                all
            });
            answer(&uffd, range, || sure.store(doubts, Ordering::SeqCst), 7);
            let all = changer.join().unwrap();
            // It was all the same to the word, which is what it was expected to be.
            let (last, earlier) = all.split_last().unwrap();
            assert!(!earlier.is_empty(), "it waited, and wrote");
            assert!(earlier.iter().all(|it| *it == Changed::Interrupted));
            let (is, outcome) = match doubts {
                0 => (8, Changed::Done),
                _ => (7, Changed::Refused),
            };
            assert_eq!((*last, word(range).load(Ordering::SeqCst)), (outcome, is));
        });
    }
}
