//! Shared memory and files that the program maps: they stay the kernel's, at
//! addresses where it can map superpages, and are noted for the thread that
//! makes some of them (`quire_vm::files`).

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

use quire_core::units::{AddrRange, BASE_PAGE, Bytes, SUPERPAGE, VirtAddr};
use quire_linux::memory;
use quire_linux::raw::Result;
use quire_vm::{Handled, files};

use crate::mappings::{ask, pages, pointer, raw};
use crate::{MANAGER, align, frames};

/// `shmat`: replace what is mapped at the address.
const SHM_REMAP: c_int = 0o40000;
/// `shmat`: round the address down.
const SHM_RND: c_int = 0o20000;
/// A segment of the hugetlb pool, which has its own rules.
const SHM_HUGETLB: u32 = 0o4000;

/// `mmap` of a superpage or more of what is not managed. `target` is the range
/// asked for, and `args` are the arguments of the call.
pub fn map(target: AddrRange, args: [usize; 6]) -> Result<usize> {
    let [_, _, prot, flags, fd, offset] = args;
    let (prot, flags, fd) = (prot as c_int, flags as c_int, fd as c_int);
    let len = target.len();
    if target.start.0 == 0
        && let Handled::Yes(result) = MANAGER.map_shared(len, prot, flags)
    {
        return result.map(|at| at.0 as usize);
    }
    let anonymous = flags & libc::MAP_ANONYMOUS != 0;
    // SAFETY: the program vouches for its descriptor. Should another thread close
    // it now, what is asked of it fails.
    let file = (!anonymous && fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) });
    // Devices have their own ideas about addresses.
    let regular = file.filter(|file| files::is_regular(*file));
    let free = memory::is_shared_anywhere(target.start, len, flags);
    let at = if free && (anonymous || regular.is_some()) {
        place(len, args, offset as u64)?
    } else {
        align::map(args)?
    };
    if let Some(file) = regular {
        files::note(AddrRange::new(VirtAddr(at as u64), len), prot, file);
    }
    Ok(at)
}

/// Maps at an address that suits the offset; where no address space can be
/// reserved, at any.
fn place(len: Bytes, args: [usize; 6], offset: u64) -> Result<usize> {
    let [_, size, prot, flags, fd, at_offset] = args;
    let placed = files::shared::place(len, offset, |at| {
        let flags = flags | libc::MAP_FIXED as usize;
        let args = [at.0 as usize, size, prot, flags, fd, at_offset];
        // SAFETY: the address space was reserved for this.
        unsafe { raw(libc::SYS_mmap, args) }.map(|at| VirtAddr(at as u64))
    });
    match placed {
        Ok(at) => Ok(at.0 as usize),
        // SAFETY: passed on as it came; where it was refused for what it is, it
        // is refused again.
        Err(_) => unsafe { raw(libc::SYS_mmap, args) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shmat(id: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    let size = if at.is_null() { segment_size(id) } else { None };
    if let Some(size) = size {
        if !MANAGER.is_started() {
            ask(size);
        }
        let placed = files::shared::place(size, 0, |at| {
            let args = [
                id as usize,
                at.0 as usize,
                (flags | SHM_REMAP) as usize,
                0,
                0,
                0,
            ];
            // SAFETY: the address space was reserved for this.
            unsafe { raw(libc::SYS_shmat, args) }.map(|at| VirtAddr(at as u64))
        });
        if let Ok(at) = placed {
            return at.0 as *mut c_void;
        }
    }
    // SAFETY: passed on as it came.
    unsafe { attach(id, at, flags) }
}

/// `shmat` where the program wants it, or anywhere.
pub unsafe fn attach(id: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    let args = [id as usize, at as usize, flags as usize, 0, 0, 0];
    // SAFETY: passed on as it came.
    let attach = || unsafe { raw(libc::SYS_shmat, args) };
    let replaced = (flags & SHM_REMAP != 0 && !at.is_null())
        .then(|| about(id))
        .flatten();
    let Some(about) = replaced else {
        return pointer(attach());
    };
    let rounding = if flags & SHM_RND != 0 {
        BASE_PAGE as usize
    } else {
        1
    };
    let start = at as usize / rounding * rounding;
    let target = pages(start as *mut c_void, about.shm_segsz);
    files::forget(target);
    frames::forget(target);
    pointer(MANAGER.replace_by(target, attach))
}

/// What the kernel tells about a segment.
fn about(id: c_int) -> Option<libc::shmid_ds> {
    // SAFETY: zeros are a value of this structure.
    let mut about: libc::shmid_ds = unsafe { std::mem::zeroed() };
    let to = (&raw mut about) as usize;
    let args = [id as usize, libc::IPC_STAT as usize, to, 0, 0, 0];
    // SAFETY: the kernel fills the structure, which is of the right type.
    unsafe { raw(libc::SYS_shmctl, args).ok()? };
    Some(about)
}

/// The size of a segment that can have superpages.
fn segment_size(id: c_int) -> Option<Bytes> {
    let about = about(id)?;
    let ordinary = u32::from(about.shm_perm.mode) & SHM_HUGETLB == 0;
    (ordinary && about.shm_segsz as u64 >= SUPERPAGE).then_some(Bytes(about.shm_segsz as u64))
}
