//! Shared memory: where it is mapped, and superpages at its first touch.
//!
//! All processes that map shared memory use the same folios; the object that
//! they share is the kernel's (a *global memory object*, paper 000, section
//! 3.1). So one process that makes superpages of it makes them for all.

use std::os::fd::AsFd;

use quire_core::config::Policy;
use quire_core::units::{AddrRange, Bytes, ObjectOffset, VirtAddr};
use quire_linux::raw::Result;
use quire_linux::{huge_file, memory};
use rustix::fs::{Mode, OFlags};

use crate::hands;
use crate::manager::Manager;
use crate::mapping::Handled;

/// Chooses an address that is congruent to `offset`, and maps there what `map`
/// maps. The address space is held meanwhile, so `map` must replace what is at
/// the address.
///
/// # Errors
/// As `map`.
pub fn place(
    len: Bytes,
    offset: u64,
    map: impl Fn(VirtAddr) -> Result<VirtAddr>,
) -> Result<VirtAddr> {
    let len = len.to_pages().to_bytes();
    let at = memory::reserve_space(len, offset)?;
    super::worker::announce();
    map(at).inspect_err(|_| {
        // SAFETY: the address space was reserved here, and nothing came there.
        let _ = unsafe { memory::unmap(AddrRange::new(at, len)) };
    })
}

impl Manager {
    /// `mmap` of anonymous shared memory whose address is left open. Under
    /// `eager` it comes from a file of huge folios, so that the first touch
    /// takes a superpage; otherwise it is the kernel's, and becomes superpages
    /// when it is full. Nothing else needs to be managed for that.
    pub fn map_shared(&self, len: Bytes, prot: i32, flags: i32) -> Handled<VirtAddr> {
        let ours = self.policy() == Policy::Eager
            && flags & libc::MAP_ANONYMOUS != 0
            && flags & libc::MAP_TYPE == libc::MAP_SHARED
            && memory::is_shared_anywhere(VirtAddr(0), len, flags);
        if !ours || may_be_refused(len) {
            return Handled::No;
        }
        let len = len.to_pages().to_bytes();
        let Ok(file) = huge_file::create_of(len) else {
            return Handled::No;
        };
        let how = flags & !libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let mapped = place(len, 0, |at| {
            // SAFETY: the address space at `at` was reserved for this.
            unsafe { memory::map_file(at, len, prot, how, file.as_fd(), ObjectOffset(0)) }
        });
        match mapped {
            Ok(at) => Handled::Yes(Ok(at)),
            Err(_) => Handled::No,
        }
    }
}

/// Whether the kernel might not give so much shared memory, which it counts when
/// it is mapped, while it counts a file when it is touched.
fn may_be_refused(len: Bytes) -> bool {
    let memory = rustix::system::sysinfo();
    let total = memory.totalram.saturating_mul(u64::from(memory.mem_unit));
    len.0 > total || counts_strictly()
}

/// Whether the kernel promises no more memory than it has
/// (`vm.overcommit_memory=2`); also where that cannot be known. Programs come
/// here in `mmap`, so the C library, which may end a thread in `read`, is left
/// out.
fn counts_strictly() -> bool {
    let path = c"/proc/sys/vm/overcommit_memory";
    let how = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut mode = [b'2'];
    let read = hands::apart(|| {
        let file = rustix::fs::open(path, how, Mode::empty())?;
        rustix::io::read(&file, &mut mode)
    });
    read.is_err() || mode == *b"2"
}
