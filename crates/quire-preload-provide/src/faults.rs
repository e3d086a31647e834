//! A program that serves missing pages itself.
//!
//! The kernel reports the missing pages of a mapping to one `userfaultfd`. Where the
//! program registers its own on memory that has a strategy, the program comes first:
//! from then on the frames there are its business, or the kernel's. Managed memory becomes plain
//! before, because the manager has registered it, and it is shared for the kernel.

use std::ffi::{c_int, c_ulong};

use quire_core::units::{AddrRange, Bytes, VirtAddr};
use quire_linux::memory;
use quire_linux::raw::Result;
use quire_vm::Errno;

use crate::mappings::raw;
use crate::{MANAGER, frames, set_errno};

/// `UFFDIO_REGISTER`.
const REGISTER: c_ulong = 0xC020_AA00;

#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: passed on as it came.
    let call = || unsafe {
        raw(
            libc::SYS_ioctl,
            [fd as usize, request as usize, argument, 0, 0, 0],
        )
    };
    if request == REGISTER {
        make_plain(VirtAddr(argument as u64));
    }
    let answer = match call() {
        Err(Errno(libc::EBUSY)) if request == REGISTER && frames::are_wanted() => {
            // SAFETY: the kernel has just read what is to be registered.
            let [start, len] = unsafe { (argument as *const [u64; 2]).read_unaligned() };
            frames::give_up(AddrRange::new(VirtAddr(start), Bytes(len)));
            call()
        }
        answer => answer,
    };
    status(answer)
}

/// Makes the range plain that is to be registered. Where that fails, the kernel says that it is
/// taken.
fn make_plain(argument: VirtAddr) {
    let mut range = [0; 16];
    if MANAGER.manages_nothing() || memory::read_checked(argument, &mut range).is_err() {
        return;
    }
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| range[at + i]));
    let start = VirtAddr(word(0));
    let end = VirtAddr(start.0.saturating_add(word(8)));
    let range = AddrRange { start, end };
    if start.is_page_aligned() && end.is_page_aligned() && start < end {
        let _ = MANAGER.make_plain(range);
    }
}

fn status(answer: Result<usize>) -> c_int {
    match answer {
        Ok(value) => value as c_int,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}
