//! What the kernel does with userfaultfd and memory that several mappings share. Shared
//! memory across machines stands on these facts; `quire_linux::uffd::shared` lists them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quire_core::units::{AddrRange, BASE_PAGE, Bytes, ObjectOffset, SUPERPAGE, VirtAddr};
use quire_linux::huge_file::{self, Effort, Window};
use quire_linux::memory::{self, Advice};
use quire_linux::restartable::{self, Changed, Provided};
use quire_linux::touch;
use quire_linux::uffd::shared::{self, Allow, Cause, Touch, Waiters};
use quire_linux::uffd::{self, Scope, pass};
use quire_linux::{Errno, pagemap, uffd::Mode};
use rustix::fs::{FallocateFlags, MemfdFlags, OFlags};

const PAGES: u64 = 8;
const PAGE: usize = BASE_PAGE as usize;

fn memory_file() -> OwnedFd {
    let file = rustix::fs::memfd_create(c"shared", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, PAGES * BASE_PAGE).unwrap();
    file
}

/// A descriptor, unless this process may not answer faults of system calls.
fn open() -> Option<OwnedFd> {
    match shared::open() {
        Ok((fd, Scope::Full)) => Some(fd),
        other => {
            eprintln!("skipped: no full userfaultfd for shared memory here: {other:?}");
            None
        }
    }
}

/// A shared mapping of a memory file. It stays until the process ends.
struct Mapped {
    uffd: OwnedFd,
    range: AddrRange,
}

impl Mapped {
    fn bare(file: BorrowedFd<'_>) -> Option<Mapped> {
        let uffd = open()?;
        let len = Bytes(PAGES * BASE_PAGE);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let (at, flags) = (VirtAddr(0), libc::MAP_SHARED);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe { memory::map_file(at, len, prot, flags, file, ObjectOffset(0)) };
        let range = AddrRange::new(at.unwrap(), len);
        Some(Mapped { uffd, range })
    }

    fn new(file: BorrowedFd<'_>) -> Option<Mapped> {
        let mapped = Mapped::bare(file)?;
        shared::register(mapped.uffd.as_fd(), mapped.range).unwrap();
        Some(mapped)
    }

    fn page(&self, page: u64) -> AddrRange {
        let start = self.range.start + Bytes(page * BASE_PAGE);
        AddrRange::new(start, Bytes(BASE_PAGE))
    }

    fn copy(&self, page: u64, value: u8, allow: Allow) -> shared::Supplied {
        let at = self.page(page).start;
        shared::copy(self.uffd.as_fd(), at, &[value; PAGE], allow, Waiters::Wake)
    }

    fn show(&self, page: u64, allow: Allow) -> shared::Supplied {
        shared::show(self.uffd.as_fd(), self.page(page), allow, Waiters::Wake)
    }

    fn poison(&self, page: u64) -> shared::Supplied {
        shared::poison(self.uffd.as_fd(), self.page(page))
    }

    fn next(&self) -> Touch {
        self.next_within(5_000).expect("no touch was reported")
    }

    fn next_within(&self, milliseconds: i32) -> Option<Touch> {
        let mut poll = libc::pollfd {
            fd: self.uffd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor to be polled, which is written back to.
        unsafe { libc::poll(&raw mut poll, 1, milliseconds) };
        let mut touches = Vec::new();
        shared::read(self.uffd.as_fd(), &mut touches).unwrap();
        assert!(touches.len() <= 1, "{touches:?}");
        touches.pop()
    }

    /// Nobody waits.
    fn quiet(&self) {
        assert_eq!(self.next_within(50), None);
    }

    /// A thread that reads the first byte of a page by a system call, which gets an error
    /// where a program gets a signal.
    fn read(&self, page: u64) -> JoinHandle<Result<u8, Errno>> {
        let at = self.page(page).start;
        thread::spawn(move || {
            let (from, to) = rustix::pipe::pipe().unwrap();
            // SAFETY: the kernel reads one byte of a mapping that stays.
            let wrote = unsafe { libc::write(to.as_raw_fd(), at.as_ptr().cast(), 1) };
            if wrote != 1 {
                let error = std::io::Error::last_os_error();
                return Err(Errno(error.raw_os_error().unwrap_or(0)));
            }
            let mut byte = [0];
            rustix::io::read(&from, &mut byte).unwrap();
            Ok(byte[0])
        })
    }

    /// The same, for writing.
    fn write(&self, page: u64, value: u8) -> JoinHandle<Result<(), Errno>> {
        let at = self.page(page).start;
        thread::spawn(move || {
            let (from, to) = rustix::pipe::pipe().unwrap();
            rustix::io::write(&to, &[value]).unwrap();
            // SAFETY: the kernel writes one byte of a mapping that stays.
            let read = unsafe { libc::read(from.as_raw_fd(), at.as_ptr().cast(), 1) };
            if read == 1 {
                return Ok(());
            }
            let error = std::io::Error::last_os_error();
            Err(Errno(error.raw_os_error().unwrap_or(0)))
        })
    }
}

fn punch(file: &OwnedFd, page: u64) {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, how, page * BASE_PAGE, BASE_PAGE).unwrap();
}

fn in_file(file: &OwnedFd, page: u64) -> u8 {
    let mut byte = [0];
    rustix::io::pread(file, &mut byte, page * BASE_PAGE).unwrap();
    byte[0]
}

/// A thread that stores by itself, without a system call.
fn store(at: VirtAddr, value: u8) -> JoinHandle<()> {
    thread::spawn(move || {
        // SAFETY: a byte of a mapping that stays; others access it atomically, too.
        let byte = unsafe { std::sync::atomic::AtomicU8::from_ptr(at.as_ptr()) };
        byte.store(value, Ordering::SeqCst);
    })
}

/// A memory file with so many mappings, unless this process may not answer their faults.
fn mappings<const N: usize>() -> Option<(OwnedFd, [Mapped; N])> {
    let file = memory_file();
    let mut all = Vec::new();
    for _ in 0..N {
        all.push(Mapped::new(file.as_fd())?);
    }
    Some((file, all.try_into().ok()?))
}

/// Says of an open file that reads of it wait, or do not.
fn set_waiting(file: BorrowedFd<'_>, waits: bool) {
    let mut flags = rustix::fs::fcntl_getfl(file).unwrap();
    flags.set(OFlags::NONBLOCK, !waits);
    rustix::fs::fcntl_setfl(file, flags).unwrap();
}

#[test]
fn whoever_has_a_descriptor_too_cannot_make_a_read_wait() {
    let file = memory_file();
    let Some(mapped) = Mapped::new(file.as_fd()) else {
        return;
    };
    let uffd = mapped.uffd.as_fd();
    assert_eq!(shared::never_waits(uffd), Ok(true));
    set_waiting(uffd, true);
    assert_eq!(shared::never_waits(uffd), Ok(true));
    mapped.quiet();
    let reader = mapped.read(1);
    let mut touches = Vec::new();
    while touches.is_empty() {
        assert_eq!(shared::never_waits(uffd), Ok(true));
        shared::read(uffd, &mut touches).unwrap();
    }
    shared::keep_from_waiting(uffd);
    assert!(
        rustix::fs::fcntl_getfl(uffd)
            .unwrap()
            .contains(OFlags::NONBLOCK)
    );
    assert!(mapped.copy(1, 7, Allow::Read).error.is_none());
    assert_eq!(reader.join().unwrap(), Ok(7));
}

#[test]
fn what_is_no_userfaultfd_is_told_apart() {
    let (reads, _writes) = rustix::pipe::pipe().unwrap();
    assert_eq!(shared::never_waits(reads.as_fd()), Ok(false));
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(shared::never_waits(file.as_fd()), Ok(false));
    let other = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    assert_eq!(shared::never_waits(other.as_fd()), Ok(false));
}

#[test]
fn a_mapping_that_is_moved_over_another_is_told_of_touches_there() {
    let files = [memory_file(), memory_file()];
    let Some(old) = Mapped::new(files[0].as_fd()) else {
        return;
    };
    let mut new = Mapped::bare(files[1].as_fd()).unwrap();
    new.uffd = shared::open_to_be_moved().unwrap().0;
    shared::register(new.uffd.as_fd(), new.range).unwrap();
    let waiting = old.read(3);
    assert_eq!(old.next().cause, Cause::Missing);
    let (from, to) = (new.range, old.range.start);
    thread::scope(|scope| {
        // SAFETY: nobody uses either but this test, which knows of the move.
        let moving = scope.spawn(move || unsafe { memory::move_over(from, to) });
        while shared::moves(new.uffd.as_fd()).unwrap() == 0 {
            thread::yield_now();
        }
        moving.join().unwrap().unwrap();
    });
    new.range = old.range;
    // Who waited there goes on waiting, until it is woken, for the new one.
    uffd::wake(old.uffd.as_fd(), old.range).unwrap();
    let touch = new.next();
    assert_eq!(
        (touch.address, touch.cause),
        (new.page(3).start, Cause::Missing)
    );
    old.quiet();
    let _ = new.copy(3, 9, Allow::Write);
    assert_eq!(waiting.join().unwrap(), Ok(9));
}

#[test]
fn a_second_mapping_is_shown_nothing_by_accident() {
    let Some((file, [first, second])) = mappings() else {
        return;
    };
    let reader = first.read(0);
    let touch = first.next();
    assert_eq!((touch.cause, touch.write), (Cause::Missing, false));
    assert_eq!(touch.address, first.page(0).start);
    assert_ne!(touch.thread, 0);
    let filled = first.copy(0, 7, Allow::Read);
    assert_eq!((filled.done.0, filled.error), (BASE_PAGE, None));
    assert_eq!(reader.join().unwrap(), Ok(7));

    let reader = second.read(0);
    let touch = second.next();
    assert_eq!((touch.cause, touch.write), (Cause::Present, false));
    assert_eq!(second.show(0, Allow::Read).error, None);
    assert_eq!(reader.join().unwrap(), Ok(7));
    let writer = store(second.page(0).start + Bytes(5), 8);
    let touch = second.next();
    assert_eq!((touch.cause, touch.write), (Cause::Protected, true));
    assert_eq!(touch.address, second.page(0).start + Bytes(5), "exact");
    uffd::write_protect(second.uffd.as_fd(), second.page(0), false).unwrap();
    writer.join().unwrap();

    // The first is still protected, and a page shown twice is said to be there.
    let writer = first.write(0, 9);
    assert_eq!(first.next().cause, Cause::Protected);
    assert_eq!(first.show(0, Allow::Write).error, Some(Errno(libc::EEXIST)));
    uffd::write_protect(first.uffd.as_fd(), first.page(0), false).unwrap();
    assert_eq!(writer.join().unwrap(), Ok(()));
    assert_eq!(in_file(&file, 0), 9);
    let there = first.copy(0, 1, Allow::Write);
    assert_eq!((there.done.0, there.error), (0, Some(Errno(libc::EEXIST))));
    let absent = first.show(1, Allow::Write);
    assert_eq!(absent.error, Some(Errno(libc::EFAULT)));
}

#[test]
fn zeros_may_be_written_to_also_where_protection_was_left() {
    let Some((file, [first, second])) = mappings() else {
        return;
    };
    let writer = first.write(0, 7);
    assert_eq!(first.next().cause, Cause::Missing);
    let both = AddrRange {
        start: first.page(0).start,
        end: first.page(1).end,
    };
    let put = shared::zero(first.uffd.as_fd(), both, Waiters::Wake);
    assert_eq!((put.done.0, put.error), (2 * BASE_PAGE, None));
    assert_eq!(writer.join().unwrap(), Ok(()));
    assert_eq!(first.read(1).join().unwrap(), Ok(0));
    assert_eq!(in_file(&file, 0), 7);
    // Others are shown nothing by that.
    let reader = second.read(0);
    assert_eq!(second.next().cause, Cause::Present);
    assert_eq!(second.show(0, Allow::Read).error, None);
    assert_eq!(reader.join().unwrap(), Ok(7));
    let again = shared::zero(first.uffd.as_fd(), both, Waiters::Wake);
    assert_eq!((again.done.0, again.error), (0, Some(Errno(libc::EEXIST))));
    // The hole leaves the protection of the second mapping behind.
    punch(&file, 0);
    let put = shared::zero(second.uffd.as_fd(), second.page(0), Waiters::Wake);
    assert_eq!(put.error, None);
    assert_eq!(second.write(0, 8).join().unwrap(), Ok(()));
    second.quiet();
    assert_eq!(in_file(&file, 0), 8);
}

#[test]
fn without_events_for_present_pages_markers_would_be_needed() {
    let Some((file, [first])) = mappings() else {
        return;
    };
    let Some(second) = Mapped::bare(file.as_fd()) else {
        return;
    };
    uffd::register(second.uffd.as_fd(), second.range, Mode::MissingAndProtect).unwrap();
    for page in [0, 1] {
        assert_eq!(first.copy(page, 7, Allow::Read).error, None);
    }
    // No marker: the write happens, and nobody is told.
    assert_eq!(second.write(0, 8).join().unwrap(), Ok(()));
    assert_eq!(in_file(&file, 0), 8);
    second.quiet();
    // A marker: it is told.
    uffd::write_protect(second.uffd.as_fd(), second.page(2), true).unwrap();
    assert_eq!(first.copy(2, 7, Allow::Read).error, None);
    assert_eq!(second.read(2).join().unwrap(), Ok(7));
    let writer = second.write(2, 8);
    assert_eq!(second.next().cause, Cause::Protected);
    assert_eq!(in_file(&file, 2), 7);
    uffd::write_protect(second.uffd.as_fd(), second.page(2), false).unwrap();
    assert_eq!(writer.join().unwrap(), Ok(()));
}

#[test]
fn a_hole_takes_a_page_from_all_mappings_whatever_was_left_behind() {
    let Some((file, [first, second])) = mappings() else {
        return;
    };
    assert_eq!(first.copy(0, 7, Allow::Read).error, None);
    assert_eq!(second.show(0, Allow::Write).error, None);
    punch(&file, 0);
    for mapped in [&first, &second] {
        let reader = mapped.read(0);
        let touch = mapped.next();
        assert_eq!((touch.cause, touch.write), (Cause::Missing, false));
        // Writable at once, although it was protected before.
        assert_eq!(mapped.copy(0, 8, Allow::Write).error, None);
        assert_eq!(reader.join().unwrap(), Ok(8));
        assert_eq!(mapped.write(0, 9).join().unwrap(), Ok(()));
        assert_eq!(in_file(&file, 0), 9);
        punch(&file, 0);
    }
    // The same for a page that another mapping brings: what is shown is what is asked for.
    assert_eq!(first.copy(1, 7, Allow::Read).error, None);
    punch(&file, 1);
    assert_eq!(second.copy(1, 7, Allow::Write).error, None);
    let writer = first.write(1, 8);
    assert_eq!(first.next().cause, Cause::Present);
    assert_eq!(first.show(1, Allow::Write).error, None);
    assert_eq!(writer.join().unwrap(), Ok(()));
    // A write that met protection as the hole was punched finds the page missing.
    assert_eq!(first.copy(2, 7, Allow::Read).error, None);
    let writer = first.write(2, 8);
    assert_eq!(first.next().cause, Cause::Protected);
    punch(&file, 2);
    uffd::wake(first.uffd.as_fd(), first.page(2)).unwrap();
    let touch = first.next();
    assert_eq!((touch.cause, touch.write), (Cause::Missing, true));
    assert_eq!(first.copy(2, 1, Allow::Write).error, None);
    assert_eq!(writer.join().unwrap(), Ok(()));
}

#[test]
fn contents_are_read_back_whole() {
    let Some((file, [first, second])) = mappings() else {
        return;
    };
    let stop = Arc::new(AtomicBool::new(false));
    let written = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = [&first, &second]
        .map(|mapped| {
            let (at, stop) = (mapped.page(0).start, Arc::clone(&stop));
            let written = Arc::clone(&written);
            thread::spawn(move || {
                // SAFETY: an aligned word of a mapping that stays, accessed atomically.
                let word = unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) };
                while !stop.load(Ordering::SeqCst) {
                    word.fetch_add(1, Ordering::SeqCst);
                    written.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .into();
    let mut contents = [0u8; PAGE];
    for round in 0..200 {
        // One of them meets a missing page, the other one that is not shown to it.
        let (bringer, other) = match round % 2 {
            0 => (&first, &second),
            _ => (&second, &first),
        };
        bringer.next();
        let fd = bringer.uffd.as_fd();
        let at = bringer.page(0).start;
        let filled = shared::copy(fd, at, &contents, Allow::Write, Waiters::Wake);
        assert_eq!(filled.error, None);
        other.next();
        assert_eq!(other.show(0, Allow::Write).error, None);
        thread::sleep(Duration::from_micros(100));
        for mapped in [&first, &second] {
            uffd::write_protect(mapped.uffd.as_fd(), mapped.page(0), true).unwrap();
        }
        rustix::io::pread(&file, &mut contents, 0).unwrap();
        punch(&file, 0);
        for mapped in [&first, &second] {
            uffd::wake(mapped.uffd.as_fd(), mapped.page(0)).unwrap();
            // What met protection has been reported as such, perhaps; it touches again.
            while mapped.next().cause != Cause::Missing {}
            uffd::wake(mapped.uffd.as_fd(), mapped.page(0)).unwrap();
        }
    }
    stop.store(true, Ordering::SeqCst);
    first.next();
    let fd = first.uffd.as_fd();
    let at = first.page(0).start;
    let filled = shared::copy(fd, at, &contents, Allow::Write, Waiters::Wake);
    assert_eq!(filled.error, None);
    second.next();
    assert_eq!(second.show(0, Allow::Write).error, None);
    for writer in writers {
        writer.join().unwrap();
    }
    rustix::io::pread(&file, &mut contents, 0).unwrap();
    let total = u64::from_le_bytes(contents[..8].try_into().unwrap());
    assert_eq!(total, written.load(Ordering::SeqCst));
    assert!(total >= 200);
}

#[test]
fn a_poisoned_page_fails_in_its_mapping_alone_until_it_is_filled() {
    let Some((file, [first, second])) = mappings() else {
        return;
    };
    let reader = first.read(0);
    first.next();
    assert_eq!(first.poison(0).error, None);
    assert_eq!(reader.join().unwrap(), Err(Errno(libc::EFAULT)));
    assert_eq!(first.write(0, 1).join().unwrap(), Err(Errno(libc::EFAULT)));
    let reader = second.read(0);
    assert_eq!(second.next().cause, Cause::Missing);
    assert_eq!(second.poison(0).error, None);
    assert_eq!(reader.join().unwrap(), Err(Errno(libc::EFAULT)));
    // What comes later takes the place of the poison.
    assert_eq!(first.copy(0, 7, Allow::Write).error, None);
    assert_eq!(first.read(0).join().unwrap(), Ok(7));
    assert_eq!(second.read(0).join().unwrap(), Err(Errno(libc::EFAULT)));
    assert_eq!(second.show(0, Allow::Read).error, None);
    assert_eq!(second.read(0).join().unwrap(), Ok(7));
    // Not where the page is, nor where protection was left behind, before it is lifted.
    assert_eq!(first.copy(1, 7, Allow::Read).error, None);
    assert_eq!(first.poison(1).error, Some(Errno(libc::EEXIST)));
    punch(&file, 1);
    assert_eq!(first.poison(1).error, Some(Errno(libc::EEXIST)));
    uffd::lift_protection(first.uffd.as_fd(), first.page(1)).unwrap();
    assert_eq!(first.poison(1).error, None);
    assert_eq!(first.read(1).join().unwrap(), Err(Errno(libc::EFAULT)));
}

#[test]
fn a_file_cut_to_nothing_fails_in_all_mappings_and_may_grow_again() {
    let Some((file, [first, second])) = mappings() else {
        return;
    };
    assert_eq!(first.copy(0, 7, Allow::Write).error, None);
    let waits = second.read(1);
    second.next();
    rustix::fs::ftruncate(&file, 0).unwrap();
    assert_eq!(first.read(0).join().unwrap(), Err(Errno(libc::EFAULT)));
    assert_eq!(first.read(1).join().unwrap(), Err(Errno(libc::EFAULT)));
    assert_eq!(second.write(0, 1).join().unwrap(), Err(Errno(libc::EFAULT)));
    assert!(!waits.is_finished());
    uffd::wake(second.uffd.as_fd(), second.range).unwrap();
    assert_eq!(waits.join().unwrap(), Err(Errno(libc::EFAULT)));
    rustix::fs::ftruncate(&file, PAGES * BASE_PAGE).unwrap();
    let reader = first.read(0);
    assert_eq!(first.next().cause, Cause::Missing);
    assert_eq!(first.copy(0, 8, Allow::Read).error, None);
    assert_eq!(reader.join().unwrap(), Ok(8));
}

fn pair() -> (OwnedFd, OwnedFd) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// Forks. The child runs `child`, which makes system calls only, and ends.
fn fork(child: impl FnOnce()) -> i32 {
    // SAFETY: the child only makes system calls on memory that its copy holds.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        child();
        // SAFETY: ends the child without running anything of the program's.
        unsafe { libc::_exit(0) };
    }
    assert!(pid > 0);
    pid
}

fn wait_for(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: reaps our own child.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

#[test]
fn a_program_gets_a_signal_and_its_faults_are_answered_by_another_process() {
    let file = memory_file();
    if open().is_none() {
        return;
    }
    let (ours, theirs) = pair();
    let pid = fork(|| {
        let Some(mapped) = Mapped::new(file.as_fd()) else {
            return;
        };
        let at = mapped.range.start.0.to_le_bytes();
        pass::send(theirs.as_fd(), &at, &[mapped.uffd.as_fd()]).unwrap();
        // SAFETY: bytes of a mapping that stays.
        unsafe {
            let first = mapped.page(0).start.as_ptr().read_volatile();
            mapped.page(1).start.as_ptr().write_volatile(first);
            mapped.page(2).start.as_ptr().read_volatile();
        }
    });
    let mut at = [0; 8];
    let (length, mut passed) = pass::receive(ours.as_fd(), &mut at).unwrap();
    assert_eq!((length, passed.len()), (8, 1));
    let start = VirtAddr(u64::from_le_bytes(at));
    let child = Mapped {
        uffd: passed.remove(0),
        range: AddrRange::new(start, Bytes(PAGES * BASE_PAGE)),
    };
    assert_eq!(child.next().address, child.page(0).start);
    assert_eq!(child.copy(0, 7, Allow::Read).error, None);
    let touch = child.next();
    assert_eq!((touch.address, touch.write), (child.page(1).start, true));
    assert_eq!(child.copy(1, 0, Allow::Write).error, None);
    assert_eq!(child.next().address, child.page(2).start);
    assert_eq!(in_file(&file, 1), 7);
    assert_eq!(child.poison(2).error, None);
    let status = wait_for(pid);
    assert!(libc::WIFSIGNALED(status), "{status}");
    assert_eq!(libc::WTERMSIG(status), libc::SIGBUS);
    // It is gone, and says so.
    assert_eq!(
        child.copy(3, 7, Allow::Read).error,
        Some(Errno(libc::ESRCH))
    );
    let protect = uffd::write_protect(child.uffd.as_fd(), child.page(1), true);
    assert_eq!(protect, Err(Errno(libc::ESRCH)));
}

#[test]
fn a_fork_would_have_the_memory_without_any_event_unless_it_is_left_out() {
    let Some((_file, [mapped])) = mappings() else {
        return;
    };
    let at = mapped.page(0).start;
    let read = || {
        // SAFETY: a byte of a mapping that stays, unless it is left out.
        let byte = unsafe { at.as_ptr().read_volatile() };
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(byte)) };
    };
    let status = wait_for(fork(read));
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
    mapped.quiet();
    // SAFETY: the mapping itself is not changed.
    unsafe { memory::advise(mapped.range, Advice::DontFork).unwrap() };
    let status = wait_for(fork(read));
    assert!(libc::WIFSIGNALED(status), "{status}");
    assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
}

/// A process that holds a copy of the descriptors that are open now, until it is killed.
fn holder() -> i32 {
    fork(|| {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    })
}

fn kill(pid: i32) {
    // SAFETY: our own child, which has not been reaped.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    wait_for(pid);
}

#[test]
fn faults_wait_while_their_process_keeps_a_descriptor_and_see_zeros_if_not() {
    let Some((file, [mapped])) = mappings() else {
        return;
    };
    let server = holder();
    let reader = mapped.read(0);
    mapped.next();
    kill(server);
    thread::sleep(Duration::from_millis(50));
    assert!(!reader.is_finished(), "it waits");
    // The watcher's part: no zeros, but a failure.
    rustix::fs::ftruncate(&file, 0).unwrap();
    uffd::wake(mapped.uffd.as_fd(), mapped.range).unwrap();
    assert_eq!(reader.join().unwrap(), Err(Errno(libc::EFAULT)));

    // What happens where the process did not keep it.
    let Some((_file, [mapped])) = mappings() else {
        return;
    };
    let reader = mapped.read(0);
    mapped.next();
    let server = holder();
    let raw = mapped.uffd.as_raw_fd();
    std::mem::forget(mapped);
    // SAFETY: its owner was forgotten.
    drop(unsafe { OwnedFd::from_raw_fd(raw) });
    thread::sleep(Duration::from_millis(50));
    assert!(!reader.is_finished(), "the server has it");
    kill(server);
    assert_eq!(reader.join().unwrap(), Ok(0));
}

#[test]
fn contents_that_are_written_to_the_file_are_not_shown_before_they_are_whole() {
    let Some((file, [mapped])) = mappings() else {
        return;
    };
    let reader = mapped.read(0);
    assert_eq!(mapped.next().cause, Cause::Missing);
    rustix::io::pwrite(&file, &[1; 100], 0).unwrap();
    uffd::wake(mapped.uffd.as_fd(), mapped.page(0)).unwrap();
    assert_eq!(mapped.next().cause, Cause::Present, "still waits");
    rustix::io::pwrite(&file, &[2; PAGE], 0).unwrap();
    assert_eq!(mapped.show(0, Allow::Read).error, None);
    assert_eq!(reader.join().unwrap(), Ok(2));
}

/// A file whose first extent is one folio of zeros, if the kernel has one.
fn folio() -> Option<OwnedFd> {
    let file = huge_file::create_of(Bytes(SUPERPAGE)).unwrap();
    let pagemap = pagemap::open().unwrap();
    let mut window = Window::new().unwrap();
    let at = ObjectOffset(0);
    let reserved = window.reserve(file.as_fd(), pagemap.as_fd(), at, Effort::Free);
    window.close();
    match reserved.unwrap() {
        true => Some(file),
        false => {
            eprintln!("SKIP: the kernel has no free block of 2 MiB");
            None
        }
    }
}

/// How many base pages a file has.
fn held(file: &OwnedFd) -> u64 {
    rustix::fs::fstat(file).unwrap().st_blocks.unsigned_abs() * 512 / BASE_PAGE
}

#[test]
fn what_comes_to_a_mapping_is_a_base_page_also_where_its_file_gets_folios() {
    let file = huge_file::create_of(Bytes(SUPERPAGE)).unwrap();
    let Some(mapped) = Mapped::new(file.as_fd()) else {
        return;
    };
    assert_eq!(mapped.copy(0, 1, Allow::Write).error, None);
    let zeroed = shared::zero(mapped.uffd.as_fd(), mapped.page(1), Waiters::Wake);
    assert_eq!((zeroed.error, held(&file)), (None, 2));
}

#[test]
fn a_folio_is_shown_page_by_page_and_a_hole_in_it_breaks_it_up() {
    let Some(file) = folio() else {
        return;
    };
    let Some(mapped) = Mapped::new(file.as_fd()) else {
        return;
    };
    assert_eq!(held(&file), 512);
    let reader = mapped.read(1);
    let touch = mapped.next();
    assert_eq!((touch.cause, touch.write), (Cause::Present, false));
    rustix::io::pwrite(&file, &[7; PAGE], BASE_PAGE).unwrap();
    assert_eq!(mapped.show(1, Allow::Read).error, None);
    assert_eq!(reader.join().unwrap(), Ok(7));
    assert_eq!(mapped.show(2, Allow::Write).error, None);
    mapped.write(2, 9).join().unwrap().unwrap();
    // What is not in use is freed; it is an event where the rest was shown.
    punch(&file, 5);
    assert_eq!(held(&file), 511);
    for (page, value, allow) in [(1, 7, Allow::Read), (2, 9, Allow::Write)] {
        let reader = mapped.read(page);
        assert_eq!(mapped.next().cause, Cause::Present);
        assert_eq!(mapped.show(page, allow).error, None);
        assert_eq!(reader.join().unwrap(), Ok(value));
    }
    let writer = mapped.write(1, 8);
    let touch = mapped.next();
    assert_eq!((touch.cause, touch.write), (Cause::Protected, true));
    uffd::write_protect(mapped.uffd.as_fd(), mapped.page(1), false).unwrap();
    writer.join().unwrap().unwrap();
    mapped.write(2, 8).join().unwrap().unwrap();
    mapped.quiet();
}

#[test]
fn an_extent_that_has_a_page_gets_the_rest_as_smaller_folios() {
    let file = huge_file::create_of(Bytes(SUPERPAGE)).unwrap();
    let Some(mapped) = Mapped::new(file.as_fd()) else {
        return;
    };
    assert_eq!(mapped.copy(0, 1, Allow::Write).error, None);
    huge_file::allocate(file.as_fd(), ObjectOffset(0), Bytes(SUPERPAGE)).unwrap();
    assert_eq!(held(&file), 512);
    mapped.write(0, 2).join().unwrap().unwrap();
    // Shown without having been touched, they are zeros.
    assert_eq!(mapped.show(3, Allow::Read).error, None);
    assert_eq!(mapped.read(3).join().unwrap(), Ok(0));
    let reader = mapped.read(5);
    assert_eq!(mapped.next().cause, Cause::Present);
    rustix::io::pwrite(&file, &[7; PAGE], 5 * BASE_PAGE).unwrap();
    assert_eq!(mapped.show(5, Allow::Read).error, None);
    assert_eq!(reader.join().unwrap(), Ok(7));
    // A hole breaks up the folio that it is in (pages 4 to 7), and no other.
    punch(&file, 6);
    assert_eq!(held(&file), 511);
    let reader = mapped.read(5);
    assert_eq!(mapped.next().cause, Cause::Present);
    assert_eq!(mapped.show(5, Allow::Read).error, None);
    assert_eq!(reader.join().unwrap(), Ok(7));
    for (page, value) in [(0, 2), (3, 0)] {
        assert_eq!(mapped.read(page).join().unwrap(), Ok(value));
    }
    mapped.quiet();
}

/// Who wants a page to be written to, and does not write yet, gets it so.
#[test]
fn a_write_that_changes_nothing_is_told_as_a_write() {
    let Some((_file, [mapped])) = mappings::<1>() else {
        return;
    };
    // SAFETY: a word of a mapping that stays; all access it atomically.
    let word = unsafe { AtomicU64::from_ptr(mapped.page(0).start.as_ptr().cast()) };
    thread::scope(|scope| {
        let toucher = scope.spawn(|| touch::write(word));
        assert!(mapped.next().write);
        let _ = mapped.copy(0, 7, Allow::Write);
        toucher.join().unwrap();
    });
    assert_eq!(word.load(Ordering::SeqCst), u64::from_ne_bytes([7; 8]));
    mapped.quiet();
}

/// A word whose page is away is changed only if what had to be so still is when the page is there.
#[test]
fn what_waited_for_a_page_is_not_written() {
    if !restartable::is_there() {
        eprintln!("SKIP: the C library or the kernel has no restartable sequences here");
        return;
    }
    let from = u64::from_ne_bytes([7; 8]);
    for doubts in [0, 1] {
        let Some((_file, [mapped])) = mappings::<1>() else {
            return;
        };
        // SAFETY: a word of a mapping that stays; all access it atomically.
        let word = unsafe { AtomicU64::from_ptr(mapped.page(0).start.as_ptr().cast()) };
        let (sure, always) = (AtomicU64::new(0), AtomicU64::new(0));
        let provided = [&sure, &always].map(|counter| Provided { counter, is: 0 });
        thread::scope(|scope| {
            let changer = scope.spawn(|| {
                let mut all = Vec::new();
                while !matches!(all.last(), Some(Changed::Done | Changed::Refused)) {
                    all.push(restartable::change(word, from, 8, provided));
                }
                all
            });
            assert_eq!(mapped.next().cause, Cause::Missing);
            sure.store(doubts, Ordering::SeqCst);
            let _ = mapped.copy(0, 7, Allow::Write);
            let all = changer.join().unwrap();
            // It was all the same to the word, which is what it was expected to be.
            let (last, earlier) = all.split_last().unwrap();
            assert!(!earlier.is_empty(), "it waited, and wrote");
            assert!(earlier.iter().all(|it| *it == Changed::Interrupted));
            let (is, outcome) = match doubts {
                0 => (8, Changed::Done),
                _ => (from, Changed::Refused),
            };
            assert_eq!((*last, word.load(Ordering::SeqCst)), (outcome, is));
        });
    }
}
