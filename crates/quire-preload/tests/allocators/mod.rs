//! Programs with an allocator that is not the C library's.

use std::path::PathBuf;

use crate::harness::setting::{ADAPTIVE, EAGER};
use crate::harness::{Program, build, skip};
use crate::{AS_ROOT, program};

/// Where the library finds it; a test that needs it says so where it is missing.
fn found(name: &str, test: &str) -> Option<PathBuf> {
    let found = build::shared_library(name);
    if found.is_none() {
        skip(test, &format!("{name} is not installed"));
    }
    found
}

fn linked(name: &'static str, allocator: &str) {
    let Some(allocator) = found(allocator, name) else {
        return;
    };
    let argv = vec![build::linked_with("other", &allocator).into()];
    Program {
        name,
        argv,
        ..Program::default()
    }
    .check(&AS_ROOT);
}

/// Preloaded together with the library: before it, or behind it.
fn preloaded(name: &'static str, allocator: &str, before: bool) {
    let Some(allocator) = found(allocator, name) else {
        return;
    };
    let (mut first, mut last) = (Vec::new(), Vec::new());
    if before {
        first.push(allocator);
    } else {
        last.push(allocator);
    }
    Program {
        preloads: [first, last],
        ..program(name, &["other"])
    }
    .check(&AS_ROOT);
}

#[test]
fn of_the_c_library() {
    program("other", &["other"]).check(&AS_ROOT);
}

#[test]
fn jemalloc_linked() {
    linked("jemalloc_linked", "libjemalloc.so.2");
}

#[test]
fn jemalloc_preloaded() {
    preloaded("jemalloc_preloaded", "libjemalloc.so.2", false);
    preloaded("jemalloc_preloaded_before", "libjemalloc.so.2", true);
}

#[test]
fn mimalloc_linked() {
    linked("mimalloc_linked", "libmimalloc.so.2");
}

#[test]
fn mimalloc_preloaded() {
    preloaded("mimalloc_preloaded", "libmimalloc.so.2", false);
    preloaded("mimalloc_preloaded_before", "libmimalloc.so.2", true);
}

/// An allocator without `malloc_usable_size`, of whose blocks the C library's knows nothing.
#[test]
fn strict() {
    Program {
        preloads: [Vec::new(), vec![build::plugin("strict")]],
        ..program("strict", &["blocks"])
    }
    .check(&[ADAPTIVE, EAGER]);
    program("blocks", &["blocks"]).check(&AS_ROOT);
}
