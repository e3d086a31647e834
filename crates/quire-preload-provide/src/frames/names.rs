//! Mappings that the program names, by `prctl(PR_SET_VMA)`: the name comes after the
//! mapping, so as long as one may come, the program's own mappings stay the kernel's.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use quire_core::units::{AddrRange, VirtAddr};
use quire_linux::memory;
use quire_linux::sysinfo::maps::{Kind, Mapping, Reader};

use super::{choice, place_as, place_existing, wanted};
use crate::MANAGER;

/// The longest name that the kernel takes, with the byte that ends it.
const LONGEST: usize = 80;

/// A hint is for a name that no file has which was loaded.
static MAY_COME: AtomicBool = AtomicBool::new(false);

/// From now on a mapping may get a name for which there is a hint.
pub fn expect() {
    MAY_COME.store(true, Ordering::Relaxed);
}

/// Whether that is so.
pub fn may_come() -> bool {
    MAY_COME.load(Ordering::Relaxed)
}

/// A range was given the name at an address. What of it is private anonymous memory gets
/// the strategy for the name; pages that are there stay.
pub fn note(range: AddrRange, name: VirtAddr) {
    let Some(config) = wanted().filter(|_| may_come() && range.start.is_page_aligned()) else {
        return;
    };
    let mut room = [0; LONGEST];
    let Some(name) = memory::text_at(name, &mut room) else {
        return;
    };
    let Some(number) = choice::number_by_name(config, |hinted| hinted == name) else {
        return;
    };
    let mut found = Vec::new();
    let mut reader = Reader::default();
    let look = |mapping: Mapping, name: &str| {
        let part = mapping.range.intersect(range);
        let plain = mapping.kind(name) == Kind::Anonymous && name != "[stack]";
        if !part.is_empty() && plain {
            found.push(part);
        }
        match mapping.range.end < range.end {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    };
    let listed = quire_vm::apart(|| reader.own(look));
    if listed.is_err() {
        return;
    }
    for part in found.into_iter().filter(|part| !MANAGER.manages(*part)) {
        quire_vm::frames::forget(part);
        place_as(config, part, number, place_existing);
    }
}
