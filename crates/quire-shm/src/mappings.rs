//! Mappings: `mmap` of an object's descriptor, and the calls that change mappings of objects.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use quire_core::dsm::message::Access;
use quire_core::units::{AddrRange, BASE_PAGE, VirtAddr};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::ages::Entry;
use crate::handed;
use crate::host::{At, Placed, Wanted};
use crate::loss;
use crate::pieces::{Pieces, Protection};
use crate::posix;
use crate::real::{MMAP, MUNMAP, Real};
use crate::state::{self, Mapped, State, answer};
use crate::trouble::{Result, Trouble, set_errno};

type Mprotect = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
type PkeyMprotect = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int) -> c_int;
type Mremap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;
type RemapFilePages = unsafe extern "C" fn(*mut c_void, usize, c_int, usize, c_int) -> c_int;
// Threads are cancelled in `msync`, which unwinds them.
type Advise = unsafe extern "C-unwind" fn(*mut c_void, usize, c_int) -> c_int;

// SAFETY: the types of the C library's functions, here and below.
static MPROTECT: Real<Mprotect> = unsafe { Real::new(c"mprotect") };
// SAFETY: as above.
static PKEY_MPROTECT: Real<PkeyMprotect> = unsafe { Real::new(c"pkey_mprotect") };
// SAFETY: as above; its last argument, which it may not read, is passed like any other.
static MREMAP: Real<Mremap> = unsafe { Real::new(c"mremap") };
// SAFETY: as above.
static REMAP_FILE_PAGES: Real<RemapFilePages> = unsafe { Real::new(c"remap_file_pages") };
// SAFETY: as above.
static MADVISE: Real<Advise> = unsafe { Real::new(c"madvise") };
// SAFETY: as above.
static MSYNC: Real<Advise> = unsafe { Real::new(c"msync") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _, _) = (MMAP.get(), MUNMAP.get(), MREMAP.get());
    let (_, _) = (MPROTECT.get(), PKEY_MPROTECT.get());
    let (_, _, _) = (MADVISE.get(), MSYNC.get(), REMAP_FILE_PAGES.get());
}

/// What a mapping allows that is made without more.
const ALL: Protection = libc::PROT_READ | libc::PROT_WRITE;
/// The kind of a mapping, among its flags.
const KIND: c_int = 0xf;

fn refused<T: Send + 'static>(state: &mut State, errno: c_int, text: &'static str) -> Result<T> {
    // The thread writes it to the log.
    state.run(move |_| Err(Trouble::new(errno, text)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let call = Call {
        at: at as usize,
        len,
        prot,
        flags,
        offset,
    };
    let is_file = flags & libc::MAP_ANONYMOUS == 0 && fd >= 0 && posix::is_likely(fd);
    if is_file && let Some(mapped) = state::locked(|state| map_object(state, fd, call)).flatten() {
        return answer(mapped.map(|at| at as *mut c_void), libc::MAP_FAILED);
    }
    if call.is_over()
        && let Some(range) = concerned(call.at, len)
        && let Some(Err(trouble)) = state::locked(|state| make_way(state, &range))
    {
        return answer(Err(trouble), libc::MAP_FAILED);
    }
    match MMAP.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(at, len, prot, flags, fd, offset) },
        None => libc::MAP_FAILED,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: the same function by another name.
    unsafe { mmap(at, len, prot, flags, fd, offset) }
}

/// Whole pages, if a mapping of an object takes any of them.
fn concerned(at: usize, len: usize) -> Option<Range<u64>> {
    state::pages(at, len).filter(state::concerns)
}

/// What `mmap` is asked for.
#[derive(Clone, Copy)]
struct Call {
    at: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    offset: libc::off_t,
}

impl Call {
    /// Whether it takes the place of what is mapped.
    fn is_over(&self) -> bool {
        self.flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == libc::MAP_FIXED
    }

    /// Why an object cannot be mapped so, if it cannot.
    fn refusal(&self, writable: bool) -> Option<(c_int, &'static str)> {
        let kind = self.flags & KIND;
        let aligned = (self.offset as u64).is_multiple_of(BASE_PAGE);
        if kind != libc::MAP_SHARED && kind != libc::MAP_SHARED_VALIDATE {
            let text = "an object is mapped with MAP_PRIVATE: that is not offered";
            Some((libc::ENOTSUP, text))
        } else if self.prot & libc::PROT_EXEC != 0 {
            Some((
                libc::EACCES,
                "an object is mapped to be executed: that is not offered",
            ))
        } else if self.prot & libc::PROT_WRITE != 0 && !writable {
            Some((
                libc::EACCES,
                "an object that was opened to be read is mapped to be written",
            ))
        } else if self.len == 0 || self.offset < 0 || !aligned {
            Some((
                libc::EINVAL,
                "an object is mapped at an offset that is no multiple of 4096",
            ))
        } else {
            None
        }
    }

    /// Where it is to be.
    fn place(&self) -> At {
        let at = self.at as u64;
        if self.flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE {
            At::Free(at)
        } else if self.is_over() {
            At::Over(at)
        } else if at != 0 && at.is_multiple_of(BASE_PAGE) {
            At::Hint(at)
        } else {
            At::Anywhere
        }
    }
}

/// Maps a part of an object, if the descriptor stands for one.
fn map_object(state: &mut State, fd: c_int, call: Call) -> Option<Result<u64>> {
    let (file, opened, size) = match posix::caught_up(state, fd)? {
        Ok(found) => found,
        Err(trouble) => return Some(Err(trouble)),
    };
    if let Some((errno, text)) = call.refusal(opened.writable) {
        return Some(refused(state, errno, text));
    }
    if opened.is_pending
        && let Err(trouble) = posix::settle(state, file, opened, size)
    {
        return Some(Err(trouble));
    }
    let part = Part {
        entry: opened.entry,
        offset: call.offset as u64,
        len: (call.len as u64).checked_next_multiple_of(BASE_PAGE)?,
        size,
        writable: opened.writable,
        is_attached: false,
    };
    Some(map(state, part, call.place(), call.prot))
}

/// A part of an object that a program wants.
pub struct Part {
    pub entry: Entry,
    pub offset: u64,
    pub len: u64,
    /// The size of the object.
    pub size: u64,
    /// Whether the program may make it writable.
    pub writable: bool,
    pub is_attached: bool,
}

/// Maps a part of an object, and says where.
pub fn map(state: &mut State, part: Part, at: At, prot: Protection) -> Result<u64> {
    let end = part.offset.checked_add(part.len);
    if end.is_none_or(|end| end > part.size.next_multiple_of(BASE_PAGE)) {
        let text = "an object is mapped beyond its end: that is not offered";
        return refused(state, libc::ENXIO, text);
    }
    if let At::Over(start) = at {
        reserve(state, start, part.len)?;
    }
    let wanted = Wanted {
        entry: part.entry,
        offset: part.offset,
        len: part.len,
        at,
        write: prot & libc::PROT_WRITE != 0,
    };
    let placed = state.run(move |works| works.map(wanted))?;
    let writable = part.writable && placed.writable;
    let range = placed.start..placed.start + part.len;
    if prot != allowed(&placed) {
        let _steady = placed.addresses.steady();
        protect_now(&range, prot);
    }
    let mapped = Mapped {
        entry: part.entry,
        number: placed.number,
        addresses: placed.addresses.clone(),
        offset: part.offset,
        len: part.len,
        writable,
        is_attached: part.is_attached,
        copies: placed.copies,
        pieces: Pieces::new(range, prot),
    };
    let start = placed.start;
    state.add(placed, mapped);
    Ok(start)
}

/// What a new mapping allows.
fn allowed(placed: &Placed) -> Protection {
    match placed.writable {
        true => ALL,
        false => libc::PROT_READ,
    }
}

/// Takes addresses from whatever is mapped there, for an object to be mapped there next. They are
/// free at no time.
fn reserve(state: &mut State, start: u64, len: u64) -> Result<()> {
    let range = start..start + len;
    make_way(state, &range)?;
    let failed = || Trouble::new(libc::ENOMEM, "the addresses cannot be had");
    let real = MMAP.known().ok_or_else(failed)?;
    // Shared, so that no library that manages private memory takes it for its own.
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the program asked for memory at this address, in the place of what is there.
    let at = unsafe {
        real(
            start as *mut c_void,
            len as usize,
            libc::PROT_NONE,
            flags,
            -1,
            0,
        )
    };
    match at {
        libc::MAP_FAILED => Err(failed()),
        _ => Ok(()),
    }
}

/// Puts nothing in the place of a part of a mapping of an object. The addresses stay taken:
/// whoever keeps the object's pages in order may still look there.
pub fn blank(range: &Range<u64>) -> bool {
    let (start, len) = (
        range.start as *mut c_void,
        (range.end - range.start) as usize,
    );
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the program has given up what is there.
    unsafe { rustix::mm::mmap_anonymous(start, len, ProtFlags::empty(), flags).is_ok() }
}

/// Changes what a mapping of an object allows.
pub fn protect_now(range: &Range<u64>, prot: Protection) -> bool {
    let (start, len) = (
        range.start as *mut c_void,
        (range.end - range.start) as usize,
    );
    let prot = MprotectFlags::from_bits_retain(prot as u32);
    // SAFETY: the range is a mapping that the program asked for, with this protection.
    unsafe { rustix::mm::mprotect(start, len, prot).is_ok() }
}

/// The program unmaps what it has of objects in a range. What must stay in the place of a part
/// is nothing that can be accessed.
fn give_up(state: &mut State, range: &Range<u64>) -> Result<()> {
    for start in state.within(range) {
        let Some(mapped) = state.mapped.get_mut(&start) else {
            continue;
        };
        let parts = mapped.pieces.within(range);
        mapped.pieces.remove(range);
        let (number, is_gone) = (mapped.number, mapped.pieces.is_empty());
        if is_gone {
            state.take(start);
            state.run(move |works| works.unmap(number))?;
        } else if !state.steadily(&[start], || parts.iter().all(blank)) {
            return Err(Trouble::new(libc::ENOMEM, "no memory for an address range"));
        }
    }
    Ok(())
}

/// Something else is mapped over a range next. It must not lie among addresses that a mapping
/// of an object still takes. The range is not free until then, as another thread might be given
/// a part of it: nothing that can be accessed lies there.
pub fn make_way(state: &mut State, range: &Range<u64>) -> Result<()> {
    let starts = state.overlapping(range);
    for start in &starts {
        let Some(mapped) = state.mapped.get(start) else {
            continue;
        };
        let mut left = mapped.pieces.clone();
        left.remove(range);
        if !left.is_empty() {
            let text = "something is mapped over a part of an object: unmap all of it first";
            return refused(state, libc::EINVAL, text);
        }
    }
    starts
        .into_iter()
        .try_for_each(|start| replace(state, start, range))
}

/// Ends a mapping, of which nothing is left outside of a range that stays taken.
fn replace(state: &mut State, start: u64, range: &Range<u64>) -> Result<()> {
    let Some(mapped) = state.mapped.get(&start) else {
        return Ok(());
    };
    let (number, all) = (mapped.number, start..start + mapped.len);
    let kept = all.start.max(range.start)..all.end.min(range.end);
    if !blank(&kept) {
        return Err(Trouble::new(libc::ENOMEM, "no memory for an address range"));
    }
    state.take(start);
    let done = state.run(move |works| works.leave(number));
    // What the program had unmapped around it was kept until now.
    for rest in outside(&all, vec![kept]) {
        let (at, len) = (rest.start as *mut c_void, (rest.end - rest.start) as usize);
        // SAFETY: nothing is there that anybody could use, and nobody looks there any more.
        let _ = unsafe { rustix::mm::munmap(at, len) };
    }
    done
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(at: *mut c_void, len: usize) -> c_int {
    let unmapped = concerned(at as usize, len)
        .and_then(|range| state::locked(|state| unmap(state, &range)).flatten());
    match (unmapped, MUNMAP.known()) {
        (Some(unmapped), _) => answer(unmapped.map(|()| 0), -1),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(at, len) },
        (None, None) => -1,
    }
}

/// Unmaps a range in which there are objects; nothing where there are none.
fn unmap(state: &mut State, range: &Range<u64>) -> Option<Result<()>> {
    let starts = state.overlapping(range);
    if starts.is_empty() {
        return None;
    }
    let others = outside(range, state.ranges_of(&starts));
    let mut done = give_up(state, range);
    for other in others {
        let (at, len) = (
            other.start as *mut c_void,
            (other.end - other.start) as usize,
        );
        // SAFETY: the program unmaps it.
        let unmapped = MUNMAP.known().map_or(-1, |real| unsafe { real(at, len) });
        if unmapped != 0 && done.is_ok() {
            done = Err(Trouble::new(libc::EINVAL, "munmap"));
        }
    }
    Some(done)
}

/// What of a range lies outside of others, which are in order.
fn outside(range: &Range<u64>, others: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut outside = Vec::new();
    let mut at = range.start;
    for other in others {
        outside.push(at..other.start);
        at = at.max(other.end);
    }
    outside.push(at..range.end);
    outside.retain(|part| part.start < part.end);
    outside
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(at: *mut c_void, len: usize, prot: c_int) -> c_int {
    protect(at, len, prot, || match MPROTECT.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(at, len, prot) },
        None => -1,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pkey_mprotect(at: *mut c_void, len: usize, prot: c_int, key: c_int) -> c_int {
    protect(at, len, prot, || match PKEY_MPROTECT.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(at, len, prot, key) },
        None => -1,
    })
}

/// Has the kernel change what a range allows, unless an object may not allow it.
fn protect(at: *mut c_void, len: usize, prot: c_int, real: impl Fn() -> c_int) -> c_int {
    if prot & libc::PROT_WRITE != 0
        && state::pages(at as usize, len).is_some_and(|range| handed::has_read_only(&range))
    {
        set_errno(libc::EACCES);
        return -1;
    }
    let protected = concerned(at as usize, len)
        .and_then(|range| state::locked(|state| protect_objects(state, &range, prot, &real)));
    match protected {
        Some(protected) => answer(protected.map(|()| 0), -1),
        None => match state::pages(at as usize, len).filter(handed::has_any) {
            Some(range) => handed::steadily(&range, real),
            None => real(),
        },
    }
}

/// Has the kernel change what a range allows that has objects, and notes it.
fn protect_objects(
    state: &mut State,
    range: &Range<u64>,
    prot: c_int,
    real: impl Fn() -> c_int,
) -> Result<()> {
    may_protect(state, range, prot)?;
    let starts = state.within(range);
    state.steadily(&starts, || match real() {
        0 => Ok(()),
        _ => Err(Trouble::last("mprotect")),
    })?;
    for start in starts {
        if let Some(mapped) = state.mapped.get_mut(&start) {
            mapped.pieces.protect(range, prot);
        }
    }
    Ok(())
}

/// Whether objects in a range may have a protection.
fn may_protect(state: &mut State, range: &Range<u64>, prot: c_int) -> Result<()> {
    let starts = state.within(range);
    if prot & libc::PROT_EXEC != 0 && !starts.is_empty() {
        let text = "an object is to be executed: that is not offered";
        return refused(state, libc::EACCES, text);
    }
    let is_read_only = |start: &u64| state.mapped.get(start).is_some_and(|m| !m.writable);
    if prot & libc::PROT_WRITE != 0 && starts.iter().any(is_read_only) {
        let text = "an object that may only be read is to be written";
        return refused(state, libc::EACCES, text);
    }
    Ok(())
}

/// Whether a range has anything of an object, in which case a call is refused.
fn refuse_within(at: *mut c_void, len: usize, text: &'static str) -> Option<Trouble> {
    let range = concerned(at as usize, len.max(1))?;
    let refused = state::locked(|state| match state.overlapping(&range).is_empty() {
        true => Ok(()),
        false => refused(state, libc::EINVAL, text),
    });
    refused.and_then(Result::err)
}

/// Whether a range has something of an object.
fn has_objects(at: *mut c_void, len: usize) -> bool {
    let Some(range) = concerned(at as usize, len) else {
        return false;
    };
    let overlaps = state::locked(|state| !state.overlapping(&range).is_empty());
    overlaps == Some(true)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let text = "a mapping of an object is moved or resized (mremap): that is not offered";
    let target = flags & libc::MREMAP_FIXED != 0;
    let refused = refuse_within(at, old_len, text).or_else(|| match target {
        true => refuse_within(new, new_len, text),
        false => None,
    });
    if let Some(trouble) = refused {
        return answer(Err(trouble), libc::MAP_FAILED);
    }
    match MREMAP.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(at, old_len, new_len, flags, new) },
        None => libc::MAP_FAILED,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn remap_file_pages(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    page: usize,
    flags: c_int,
) -> c_int {
    let text = "a part of an object is to be mapped elsewhere in it (remap_file_pages): use mmap";
    if let Some(trouble) = refuse_within(at, len, text) {
        return answer(Err(trouble), -1);
    }
    match REMAP_FILE_PAGES.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(at, len, prot, page, flags) },
        None => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    let refused = match advice {
        libc::MADV_DONTFORK | libc::MADV_DOFORK if has_objects(at, len) => {
            return inherit(at, len, advice);
        }
        libc::MADV_REMOVE => refuse_within(at, len, "MADV_REMOVE is not offered for objects"),
        // Pages of objects come and go one by one; advice need not be followed.
        libc::MADV_HUGEPAGE if has_objects(at, len) => return 0,
        _ => None,
    };
    // The kernel goes on with it, which waits page by page to populate a range.
    match advice {
        libc::MADV_WILLNEED | libc::MADV_POPULATE_READ => need(at, len, Access::Read),
        libc::MADV_POPULATE_WRITE => need(at, len, Access::Write),
        _ => {}
    }
    if let Some(trouble) = refused {
        return answer(Err(trouble), -1);
    }
    match MADVISE.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(at, len, advice) },
        None => -1,
    }
}

/// What a range has of objects is kept from children, or not any more. The kernel gives them none of
/// it in any case, and must not; it is told of the rest of the range.
fn inherit(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    let Some(range) = concerned(at as usize, len) else {
        return 0;
    };
    let others = state::locked(|state| {
        let of_objects = state.ranges_of(&state.overlapping(&range));
        for start in state.within(&range) {
            if let Some(mapped) = state.mapped.get_mut(&start) {
                mapped.pieces.inherit(&range, advice == libc::MADV_DOFORK);
            }
        }
        outside(&range, of_objects)
    });
    let advised = others.into_iter().flatten().map(|other| {
        let (at, len) = (
            other.start as *mut c_void,
            (other.end - other.start) as usize,
        );
        // SAFETY: a part of what the program gives that advice for.
        MADVISE
            .known()
            .map_or(-1, |real| unsafe { real(at, len, advice) })
    });
    advised.fold(0, |all, one| if one == 0 { all } else { one })
}

/// Has what a range has of objects brought, while the program goes on.
fn need(at: *mut c_void, len: usize, access: Access) {
    let Some(range) = concerned(at as usize, len) else {
        return;
    };
    state::locked(|state| {
        for start in state.within(&range) {
            let Some(mapped) = state.mapped.get(&start) else {
                continue;
            };
            let (number, parts) = (mapped.number, mapped.pieces.within(&range));
            for part in parts {
                let (start, end) = (VirtAddr(part.start), VirtAddr(part.end));
                let part = AddrRange { start, end };
                // Without the thread there is nothing mapped.
                let _ = state.run(move |works| works.need(number, part, access));
            }
        }
    });
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn msync(at: *mut c_void, len: usize, flags: c_int) -> c_int {
    let flushed = concerned(at as usize, len).filter(|_| flags & libc::MS_SYNC != 0);
    let flushed = flushed.and_then(|range| state::locked(|state| flush(state, &range)));
    match (flushed, MSYNC.known()) {
        (Some(Err(trouble)), _) => answer(Err(trouble), -1),
        // SAFETY: passed on as it came.
        (_, Some(real)) => unsafe { real(at, len, flags) },
        (_, None) => -1,
    }
}

/// Gives back what was written to the objects in a range.
fn flush(state: &mut State, range: &Range<u64>) -> Result<()> {
    loss::errno().map_err(|errno| Trouble::new(errno, "what this program wrote is lost"))?;
    for start in state.within(range) {
        if let Some(entry) = state.mapped.get(&start).map(|mapped| mapped.entry) {
            state.run(move |works| works.flush(entry))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_outside_is_what_others_leave() {
        assert_eq!(outside(&(0..10), vec![2..4, 6..12]), [0..2, 4..6]);
        assert_eq!(outside(&(3..10), vec![0..4, 5..7]), [4..5, 7..10]);
        assert!(outside(&(3..5), vec![0..4, 4..9]).is_empty());
    }

    #[test]
    fn what_is_not_offered_is_refused() {
        let call = |prot, flags, offset| Call {
            at: 0,
            len: 4096,
            prot,
            flags,
            offset,
        };
        let errno = |call: Call, writable| call.refusal(writable).map(|(errno, _)| errno);
        let shared = libc::MAP_SHARED;
        assert_eq!(errno(call(ALL, shared, 4096), true), None);
        assert_eq!(errno(call(libc::PROT_READ, shared, 0), false), None);
        assert_eq!(
            errno(call(ALL, libc::MAP_PRIVATE, 0), true),
            Some(libc::ENOTSUP)
        );
        assert_eq!(errno(call(ALL, shared, 0), false), Some(libc::EACCES));
        assert_eq!(
            errno(call(libc::PROT_EXEC, shared, 0), true),
            Some(libc::EACCES)
        );
        assert_eq!(errno(call(ALL, shared, 100), true), Some(libc::EINVAL));
    }
}
