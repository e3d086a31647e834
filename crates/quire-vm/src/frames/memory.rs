//! Memory of a program that says itself what it wants: allocated with a strategy, or
//! there already.

use std::ops::ControlFlow;

use quire_core::units::{AddrRange, Bytes, VirtAddr};
use quire_linux::memory;
use quire_linux::raw::{Errno, Result};
use quire_linux::sysinfo::maps::{self, Kind, Mapping};
use quire_linux::uffd::Mode;

use super::{
    Placed, Which, arena, enter, forget, place, placed_in, ranges, serve, stop_serving, strategy_of,
};
use crate::hands;
use crate::manager::Manager;

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// What has no strategy and is known.
const KNOWN: Placed = Placed {
    which: Which::KERNEL,
    kind: super::Kind::Mapping,
    mode: Mode::Missing,
};
/// No program has so much address space.
const TOO_MUCH: Bytes = Bytes(1 << 47);

/// Maps memory, readable, writable and zero, whose pages get their frames by a strategy
/// when they are touched. The size is rounded up to whole pages.
///
/// # Errors
/// `EINVAL` for no bytes, `ENOTSUP` where the kernel does not let frames be chosen for
/// it, or as `mmap`.
pub fn allocate(size: Bytes, which: Which) -> Result<AddrRange> {
    if size == Bytes::ZERO {
        return Err(Errno(libc::EINVAL));
    }
    if size >= TOO_MUCH {
        return Err(Errno(libc::ENOMEM));
    }
    let size = size.to_pages().to_bytes();
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { memory::map_anonymous(VirtAddr(0), size, READ_WRITE, 0) }?;
    let range = AddrRange::new(start, size);
    place(range, which);
    if strategy_of(range) == Some(which) {
        return Ok(range);
    }
    // SAFETY: nobody knows the mapping yet.
    unsafe { memory::unmap(range) }?;
    Err(Errno(libc::ENOTSUP))
}

/// Unmaps memory that [`allocate`] gave, or whole pages of it.
///
/// # Errors
/// As `munmap`.
///
/// # Safety
/// Nothing may use the range afterwards.
pub unsafe fn free(range: AddrRange) -> Result<()> {
    forget(range);
    // SAFETY: as the caller says.
    unsafe { memory::unmap(range) }
}

/// Takes note of memory that was mapped before anybody asked for strategies, so that it
/// can be given one and its pages can be moved: if all of the range is private anonymous
/// memory that the kernel's own rules hold for. Otherwise it may be that not all of it is
/// the caller's own, and nothing is noted.
pub fn know(manager: &Manager, range: AddrRange) {
    if manager.manages(range) || !is_private_memory(range) {
        return;
    }
    let mut known = ranges();
    let mut parts: Vec<AddrRange> = known.overlaps(range).map(|(part, _)| part).collect();
    parts.reverse();
    let mut rest = range;
    for part in parts {
        known.insert(rest.split_at(part.start).0, KNOWN);
        rest = rest.split_at(part.end).1;
    }
    known.insert(rest, KNOWN);
}

/// Whether all of a range is private anonymous memory, no stack that grows, and not the
/// stock.
fn is_private_memory(range: AddrRange) -> bool {
    if !arena::whole().intersect(range).is_empty() {
        return false;
    }
    let mut covered = Bytes::ZERO;
    let mut list = maps::Reader::default();
    let look = |mapping: Mapping, name: &str| {
        if mapping.kind(name) == Kind::Anonymous && !name.starts_with("[stack") {
            covered = Bytes(covered.0 + mapping.range.intersect(range).len().0);
        }
        match mapping.range.end < range.end {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    };
    let read = hands::apart(|| list.own(look));
    read.is_ok() && covered == range.len()
}

/// Gives a strategy to what is known of a range; the rest of it stays as it is. Pages
/// that are there keep their frames.
pub fn place_known(range: AddrRange, which: Which) {
    for (part, Placed { kind, .. }) in placed_in(range) {
        enter(part, which, kind);
        if which == Which::KERNEL {
            stop_serving(part);
        } else if kind == super::Kind::Mapping {
            serve(part);
        }
    }
}
