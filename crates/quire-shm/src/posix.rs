//! Shared memory of POSIX: `shm_open`, `shm_unlink`, `ftruncate`.
//!
//! For an object, `shm_open` gives a descriptor of an empty memory file of the object's size,
//! so that `fstat` tells the size and `dup`, `close` and forks do what they do. The file
//! cannot be read, written or mapped, not even by a bare system call: whoever tried would have
//! memory of his own and not notice. `mmap` here knows the file and maps the object.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_uint};

use quire_dsm::attachment::Target;
use rustix::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::path::DecInt;

use crate::ages::{self, Entry};
use crate::host::Meaning;
use crate::inherited;
use crate::real::Real;
use crate::state::{self, FileId, Opened, State, answer};
use crate::trouble::{Result, Trouble, opened_in_the_end};
use crate::uses;

type ShmOpen = unsafe extern "C" fn(*const c_char, c_int, libc::mode_t) -> c_int;
type ShmUnlink = unsafe extern "C" fn(*const c_char) -> c_int;
type Ftruncate = unsafe extern "C" fn(c_int, libc::off_t) -> c_int;

// SAFETY: the types of the C library's functions, here and below.
static SHM_OPEN: Real<ShmOpen> = unsafe { Real::new(c"shm_open") };
// SAFETY: as above.
static SHM_UNLINK: Real<ShmUnlink> = unsafe { Real::new(c"shm_unlink") };
// SAFETY: as above.
static FTRUNCATE: Real<Ftruncate> = unsafe { Real::new(c"ftruncate") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _, _) = (SHM_OPEN.get(), SHM_UNLINK.get(), FTRUNCATE.get());
}

/// The attachment that a name of the program means, with what the C library puts before it.
///
/// # Safety
/// The name is a C string, or null.
pub unsafe fn place_named(prefix: &str, name: *const c_char) -> Option<usize> {
    crate::begin();
    if !state::is_active() || name.is_null() {
        return None;
    }
    // SAFETY: the caller vouches for it.
    let name = unsafe { CStr::from_ptr(name) }.to_str().ok()?;
    // As the C library sees it.
    let name = name.trim_start_matches('/');
    state::place_of(&Target::Posix(format!("{prefix}{name}")))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shm_open(name: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the program gives a C string.
    let place = unsafe { place_named("", name) };
    let opened = place.and_then(|place| state::locked(|state| open(state, place, flags)));
    match (opened, SHM_OPEN.known()) {
        (Some(opened), _) => answer(opened, -1),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(name, flags, mode) },
        (None, None) => -1,
    }
}

/// Opens an object, or begins one.
pub fn open(state: &mut State, place: usize, flags: c_int) -> Result<c_int> {
    opened_in_the_end(flags & libc::O_CREAT != 0, || {
        open_once(state, place, flags)
    })
}

fn open_once(state: &mut State, place: usize, flags: c_int) -> Result<c_int> {
    // First, as what is begun must not stay so because there is none.
    let (descriptor, file) = descriptor()?;
    let (entry, size, cleared) = object_named(state, place, flags)?;
    let writable = flags & libc::O_ACCMODE != libc::O_RDONLY;
    inherited::note(descriptor.as_raw_fd(), entry, writable);
    follow(state, &cleared, entry, descriptor.as_raw_fd(), file)?;
    if size.is_none()
        && let Some(descriptor) = open_pending(state, entry, writable)?
    {
        return Ok(descriptor.into_raw_fd());
    }
    let mut opened = Opened {
        entry,
        writable,
        is_pending: true,
    };
    if let Some(size) = size {
        sized(descriptor.as_raw_fd(), size)?;
        opened = hold(state, file, opened)?;
    }
    state.opened(file, opened);
    Ok(descriptor.into_raw_fd())
}

/// The object that a name stands for, and its size; none where somebody has begun it, or this does. And
/// those that were removed for it, as the program empties them.
fn object_named(
    state: &mut State,
    place: usize,
    flags: c_int,
) -> Result<(Entry, Option<u64>, Vec<Entry>)> {
    let has = |flag| flags & flag != 0;
    let only_new = has(libc::O_CREAT) && has(libc::O_EXCL);
    let clears = has(libc::O_TRUNC) && flags & libc::O_ACCMODE != libc::O_RDONLY;
    let mut cleared = Vec::new();
    loop {
        match state.run(move |works| works.named(place))? {
            Meaning::Sized(entry, _) | Meaning::Begun(entry) if only_new => {
                match replaced(state, entry)? {
                    true => continue,
                    false => return Err(Trouble::new(libc::EEXIST, "the object exists")),
                }
            }
            Meaning::Sized(entry, _) if clears => {
                state.run(move |works| works.clear(entry))?;
                cleared.push(entry);
            }
            Meaning::Sized(entry, size) => return Ok((entry, Some(size), cleared)),
            Meaning::Begun(entry) => return Ok((entry, None, cleared)),
            Meaning::Nothing if has(libc::O_CREAT) => {}
            Meaning::Nothing => return Err(Trouble::new(libc::ENOENT, "there is no such object")),
        }
        may_create(state, place)?;
        match state.run(move |works| works.begin(place)) {
            // Somebody was faster.
            Err(trouble) if trouble.errno == libc::EEXIST && !only_new => {}
            begun => return Ok((begun?, None, cleared)),
        }
    }
}

/// What was emptied is the same memory to the program: its descriptors become some of the file of what was
/// begun instead, as their own keeps its size for ever. Another thread must not close them meanwhile.
fn follow(
    state: &mut State,
    cleared: &[Entry],
    entry: Entry,
    descriptor: c_int,
    file: FileId,
) -> Result<()> {
    let all = state.files.iter();
    let theirs = all.filter(|(old, opened)| **old != file && cleared.contains(&opened.entry));
    let files: BTreeSet<FileId> = theirs.map(|(old, _)| *old).collect();
    if files.is_empty() {
        return Ok(());
    }
    for old in uses::descriptors_of(&files) {
        put(descriptor, old)?;
    }
    // Who empties it may write.
    let opened = Opened {
        entry,
        writable: true,
        is_pending: true,
    };
    state.opened(file, opened);
    Ok(())
}

/// What the program, its parents or its children have begun, and given no size yet.
fn pending_of(state: &mut State, entry: Entry) -> impl Iterator<Item = (&FileId, &mut Opened)> {
    let all = state.files.iter_mut();
    all.filter(move |(_, opened)| opened.entry == entry && opened.is_pending)
}

/// Once more what they have begun.
fn open_pending(state: &mut State, entry: Entry, writable: bool) -> Result<Option<OwnedFd>> {
    let mut pending = pending_of(state, entry);
    let found = pending.find_map(|(file, opened)| Some((uses::name_of(*file)?, opened)));
    let Some((name, opened)) = found else {
        return Ok(None);
    };
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let again = rustix::fs::open(name.as_ref(), flags, Mode::empty());
    let failed = |errno: Errno| Trouble::new(errno.raw_os_error(), "a descriptor of a memory file");
    let again = again.map_err(failed)?;
    opened.writable |= writable;
    inherited::note(again.as_raw_fd(), entry, opened.writable);
    Ok(Some(again))
}

/// The object of a descriptor is in use as long as that is open.
fn hold(state: &mut State, file: FileId, opened: Opened) -> Result<Opened> {
    let entry = opened.entry;
    let known = state.run(move |works| works.hold(entry, file))?;
    state.note(entry, known);
    Ok(Opened {
        is_pending: false,
        ..opened
    })
}

/// Whether objects may be made.
pub fn may_create(state: &mut State, place: usize) -> Result<()> {
    if state::attachments().is_none_or(|all| all.create) {
        return Ok(());
    }
    let name = state::attachment(place).map_or("?", |found| found.object.as_str());
    let text = format!(
        "the program makes shared memory, and there is no object {name}: make it with \
         quire object create {name}, or leave out --no-create"
    );
    state.run(move |_| Err(Trouble::new(libc::EACCES, text)))
}

/// What a call of the system returned, if it did well.
fn checked(returned: c_int, what: &str) -> Result<c_int> {
    match returned {
        -1 => Err(Trouble::last(what)),
        returned => Ok(returned),
    }
}

/// What memory files of objects are called, and how the system shows that.
const NAME: &CStr = c"quire-dsm-object";
pub const SHOWN: &[u8] = b"/memfd:quire-dsm-object (deleted)";

/// A descriptor of a memory file whose size is not known yet.
fn descriptor() -> Result<(OwnedFd, FileId)> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string.
    let made = unsafe { libc::memfd_create(NAME.as_ptr(), flags) };
    let descriptor = checked(made, "a memory file")?;
    // SAFETY: it was made here, and nobody else has it.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    seal(descriptor, false)?;
    only_write(descriptor)?;
    let file = id(descriptor).ok_or_else(|| Trouble::last("a memory file"))?;
    Ok((owned, file))
}

/// Gives the memory file of an object its size, for ever.
fn sized(descriptor: c_int, size: u64) -> Result<()> {
    let size = libc::off_t::try_from(size).unwrap_or(libc::off_t::MAX);
    // SAFETY: the call has no conditions but its arguments' types.
    checked(unsafe { libc::ftruncate(descriptor, size) }, "the size")?;
    seal(descriptor, true)
}

/// Makes the contents of a memory file unchangeable, and its size where it has one.
fn seal(descriptor: c_int, has_size: bool) -> Result<()> {
    // SAFETY: as above.
    let sealed = unsafe { libc::fcntl(descriptor, libc::F_ADD_SEALS, seals(has_size)) };
    checked(sealed, "a seal").map(drop)
}

const fn seals(has_size: bool) -> c_int {
    match has_size {
        true => libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK,
        false => libc::F_SEAL_WRITE,
    }
}

/// Opens the file anew, only to be written, which its seal forbids, and puts that in the
/// place of the descriptor.
fn only_write(descriptor: c_int) -> Result<()> {
    let path = CString::new(format!("/proc/self/fd/{descriptor}")).unwrap_or_default();
    // SAFETY: the path is a C string, and the descriptors are the caller's and this function's own.
    unsafe {
        let again = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        checked(again, "/proc/self/fd")?;
        let put = put(again, descriptor);
        libc::close(again);
        put
    }
}

/// Puts another descriptor in the place of one, which is closed by `exec` if that was.
fn put(descriptor: c_int, old: c_int) -> Result<()> {
    // SAFETY: the calls have no conditions; what is replaced is this library's, or stands for the same.
    let put = unsafe {
        let closes = libc::fcntl(old, libc::F_GETFD) & libc::FD_CLOEXEC != 0;
        libc::dup3(descriptor, old, if closes { libc::O_CLOEXEC } else { 0 })
    };
    checked(put, "a descriptor").map(drop)
}

/// Whether a descriptor is one of an object's file, also of one that another program was given.
/// Changes no `errno`, and allocates nothing.
pub fn is_of_object(descriptor: c_int) -> bool {
    // SAFETY: nobody closes it before the caller knows.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let sealed = rustix::fs::fcntl_get_seals(file).map(|seals| seals.bits().cast_signed());
    if !sealed.is_ok_and(|sealed| sealed == seals(false) || sealed == seals(true)) {
        return false;
    }
    let mut name = [0; SHOWN.len() + 1];
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(c"/proc/self/fd", directory, Mode::empty());
    let shown = directory.and_then(|directory| {
        let number = DecInt::new(descriptor);
        rustix::fs::readlinkat_raw(directory, number.as_c_str(), &mut name[..])
    });
    shown.is_ok_and(|shown| shown == SHOWN.len()) && name.starts_with(SHOWN)
}

/// The file of an object was opened to be read: the descriptor becomes one that stands for the
/// object like the first. Gives it, or -1.
pub fn only_written(descriptor: c_int) -> c_int {
    let written = only_write(descriptor).inspect_err(|_| {
        // SAFETY: the program does not get it.
        unsafe { libc::close(descriptor) };
    });
    answer(written.map(|()| descriptor), -1)
}

fn status(descriptor: c_int) -> Option<Stat> {
    // SAFETY: nobody closes it meanwhile, or it is the program's mistake, and said to be none.
    rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(descriptor) }).ok()
}

fn id(descriptor: c_int) -> Option<FileId> {
    status(descriptor).map(|status| (status.st_dev, status.st_ino))
}

/// What a descriptor stands for, if it is one of an object, and the size of its file.
pub fn find(state: &mut State, descriptor: c_int) -> Option<(FileId, Opened, u64)> {
    // A file that is gone has left its number to others.
    let status = status(descriptor).filter(|_| is_likely(descriptor))?;
    let file = (status.st_dev, status.st_ino);
    let opened = match state.files.get(&file) {
        Some(opened) => *opened,
        None => {
            let opened = inherited::take_in(state, descriptor)?;
            state.opened(file, opened);
            opened
        }
    };
    Some((file, opened, status.st_size.unsigned_abs()))
}

/// What the program sees of the file that an object is to it.
pub struct Shown {
    /// Its number: the same for all descriptors of the object, each of which has a file of its own.
    pub number: u64,
    pub size: u64,
}

/// What it sees of a descriptor's, if that is one of an object.
pub fn shown(descriptor: c_int) -> Option<Shown> {
    if !is_likely(descriptor) {
        return None;
    }
    let found = state::locked(|state| find(state, descriptor)).flatten();
    let (_, opened, size) = found?;
    let exact = ages::exact(opened.entry)?;
    // FNV-1a.
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let number = exact.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, step);
    Some(Shown { number, size })
}

/// Whether a descriptor looks like one of an object, which can be found out without the lock.
pub fn is_likely(descriptor: c_int) -> bool {
    if !state::is_active() {
        return false;
    }
    // SAFETY: the call has no conditions.
    let sealed = unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) };
    sealed == seals(false) || sealed == seals(true)
}

/// Whether it looks like one of an object that did not exist.
pub fn may_be_pending(descriptor: c_int) -> bool {
    // SAFETY: the call has no conditions.
    state::is_active() && unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) } == seals(false)
}

/// What a descriptor stands for by now. What did not exist when it was opened may have been made
/// since: by a parent or a child, who have the same file, or by anybody else.
pub fn caught_up(state: &mut State, descriptor: c_int) -> Option<Result<(FileId, Opened, u64)>> {
    let (file, opened, size) = find(state, descriptor)?;
    if !opened.is_pending {
        return Some(Ok((file, opened, size)));
    }
    let made = match has_size(descriptor) {
        true => Ok(Some(size)),
        false => state.run(move |works| works.size_now(opened.entry)),
    };
    let settled = made.and_then(|made| match made {
        None => Ok((file, opened, size)),
        Some(size) => {
            let opened = hold(state, file, opened)?;
            if !has_size(descriptor) {
                sized(descriptor, size)?;
            }
            state.opened(file, opened);
            Ok((file, opened, size))
        }
    });
    Some(settled)
}

/// Whether the file of an object has its size for ever.
fn has_size(descriptor: c_int) -> bool {
    // SAFETY: the call has no conditions.
    unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) == seals(true) }
}

/// The file of an object that does not exist has a size now: the object is made.
pub fn settle(state: &mut State, file: FileId, opened: Opened, size: u64) -> Result<()> {
    let entry = opened.entry;
    may_create(state, entry.place)?;
    let is_removed = state.run(move |works| match size {
        0 => {
            let text = "shared memory is mapped before it has a size (ftruncate)";
            Err(Trouble::new(libc::ENXIO, text))
        }
        size => works.give_size(entry, size),
    })?;
    let opened = hold(state, file, opened)?;
    state.opened(file, opened);
    if is_removed {
        state.run(move |works| works.has_no_name(entry))?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate(descriptor: c_int, size: libc::off_t) -> c_int {
    let done = match is_likely(descriptor) {
        true => state::locked(|state| resize(state, descriptor, size)).flatten(),
        false => None,
    };
    match (done, FTRUNCATE.known()) {
        (Some(done), _) => answer(done.map(|()| 0), -1),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(descriptor, size) },
        (None, None) => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate64(descriptor: c_int, size: libc::off_t) -> c_int {
    // SAFETY: the same function by another name.
    unsafe { ftruncate(descriptor, size) }
}

/// Gives an object its size, or checks that it has it; nothing where it is no object's file.
pub fn resize(state: &mut State, descriptor: c_int, size: libc::off_t) -> Option<Result<()>> {
    let (file, opened, _) = match caught_up(state, descriptor)? {
        Ok(found) => found,
        Err(trouble) => return Some(Err(trouble)),
    };
    let entry = opened.entry;
    let Ok(size) = u64::try_from(size) else {
        return Some(Err(Trouble::new(libc::EINVAL, "a negative size")));
    };
    if !opened.writable {
        return Some(Err(Trouble::new(libc::EINVAL, "opened to be read")));
    }
    if !opened.is_pending {
        return Some(state.run(move |works| works.check_size(entry, size)));
    }
    if size == 0 {
        return Some(Ok(()));
    }
    let settled = settle(state, file, opened, size);
    Some(settled.and_then(|()| sized(descriptor, size)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shm_unlink(name: *const c_char) -> c_int {
    // SAFETY: the program gives a C string.
    let place = unsafe { place_named("", name) };
    let removed = place.and_then(|place| state::locked(|state| unlink(state, place, keeps())));
    match (removed, SHM_UNLINK.known()) {
        (Some(removed), _) => answer(removed.map(|()| 0), -1),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(name) },
        (None, None) => -1,
    }
}

/// Whether what no program of this run made stays when its name is removed.
pub fn keeps() -> bool {
    state::attachments().is_some_and(|all| all.keep)
}

/// Removes a name, also that of an object which somebody has begun. One that is in use goes when it is
/// not. Where others' objects are kept, the name of one stays, unless this program begins another one by it
/// ([`replaced`]).
pub fn unlink(state: &mut State, place: usize, keeps: bool) -> Result<()> {
    state.run(move |works| works.unlink(place, keeps))
}

/// A new object is to be made by a name. Where this process, or one that it was forked from, has removed
/// that name from what others made, and it stayed, it goes now. Whether it was so.
pub fn replaced(state: &mut State, entry: Entry) -> Result<bool> {
    if !ages::is_given_up(entry) {
        return Ok(false);
    }
    let gone = state.run(move |works| works.remove(entry));
    // Somebody was faster.
    match gone {
        Err(trouble) if trouble.errno != libc::ENOENT => Err(trouble),
        _ => Ok(true),
    }
}

/// A mode of permissions, as `shmctl` tells it.
pub const MODE: c_uint = 0o600;
