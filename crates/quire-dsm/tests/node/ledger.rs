//! What is left of a program that was killed while contents came to it.

use std::os::fd::OwnedFd;

use quire_core::dsm::message::PageNumber;
use quire_core::units::{BASE_PAGE, Bytes};
use quire_dsm::node::ledger::Ledger;
use quire_dsm::node::{Holds, Written};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::pwrite;

fn file(pages: u64) -> OwnedFd {
    let file = memfd_create(c"written", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, pages * BASE_PAGE).unwrap();
    file
}

/// Of a page that was to be written to, and is a hole, nothing was shown.
#[test]
fn what_a_memory_file_holds_of_a_page_is_told() {
    let memory = file(12);
    for page in [4, 5, 7] {
        pwrite(&memory, &[1], page * BASE_PAGE).unwrap();
    }
    let written = |base_pages: u64| Written {
        memory: memory.try_clone().unwrap(),
        ledger: Ledger::of(file(1)).into(),
        page: Bytes(base_pages * BASE_PAGE),
    };
    let holds = |base_pages: u64| {
        let written = written(base_pages);
        let all = 0..12 / base_pages;
        all.map(|page| written.holds(PageNumber(page)))
            .collect::<Vec<_>>()
    };
    let (all, some, nothing) = (Holds::All, Holds::Some, Holds::Nothing);
    assert_eq!(holds(1)[3..9], [nothing, all, all, nothing, all, nothing]);
    assert_eq!(holds(2), [nothing, nothing, all, some, nothing, nothing]);
    assert_eq!(holds(4), [nothing, some, nothing]);
}
