//! Unmodified programs under `libquire.so`. Each of the programs in `programs/` checks itself, and what the library
//! promises of it; here it must also print the same and end in the same way as without the library. `real` does the
//! same with programs of the system, `costs` measures.
//!
//! One test is `cargo test -p quire-preload --test programs remap`; it runs the program under several policies, as
//! the user of the tests and as an ordinary one. `QUIRE_LIB` names a library to test instead of the one that Cargo
//! builds, `QUIRE_TEST_SEED` another seed for the random operations. What cannot be tested on a machine is reported
//! in lines that begin with `SKIP:`; lines with `note:` say what was measured.

mod allocators;
mod costs;
mod harness;
mod outside;
mod real;

use std::ffi::OsString;

use harness::setting::{
    ADAPTIVE, ADAPTIVE_ORDINARY, BASE, DENSE, EAGER, EAGER_ORDINARY, EVERY, SOME, Setting,
};
use harness::{Ends, Program, build};

/// A program of `programs/` with arguments.
fn program(name: &'static str, words: &[&str]) -> Program<'static> {
    let seed = std::env::var("QUIRE_TEST_SEED").unwrap_or_else(|_| "1".to_owned());
    let mut argv = vec![OsString::from(build::program(words[0]))];
    argv.extend(words[1..].iter().map(|w| w.replace("SEED", &seed).into()));
    Program {
        name,
        argv,
        ..Program::default()
    }
}

/// One test for each program.
macro_rules! programs {
    ($($name:ident = $words:expr, $settings:expr $(, $field:ident: $value:expr)*;)*) => {$(
        #[test]
        #[allow(clippy::needless_update, reason = "some have no fields of their own")]
        fn $name() {
            let settings: &[Setting] = &$settings;
            let plain = program(stringify!($name), &$words);
            Program { $($field: $value,)* ..plain }.check(settings);
        }
    )*};
}

/// What is left to the kernel is the same for every user.
const AS_ROOT: [Setting; 2] = [ADAPTIVE, EAGER];
/// Every policy, and the usual one for an ordinary user.
const WITH_BASE: [Setting; 4] = [ADAPTIVE, EAGER, BASE, ADAPTIVE_ORDINARY];

// What broke other ways of making superpages, and what people reported of similar libraries.
programs! {
    closefrom = ["closefrom"], WITH_BASE;
    dontneed_zero = ["dontneed_zero"], WITH_BASE;
    few_descriptors = ["few_descriptors"], WITH_BASE;
    // Without the library, too, it is killed when it prints its last line to a file.
    fsize = ["fsize"], WITH_BASE, ends: Ends::Anyhow;
    fsize_of_a_page = ["fsize", "4096"], AS_ROOT;
    guard_fork = ["guard_fork"], WITH_BASE;
    guard_install = ["guard_install"], WITH_BASE;
    huge_malloc = ["huge_malloc"], EVERY;
    realloc_errno = ["realloc_errno"], EVERY;
    // An ordinary user may not serve the faults of system calls.
    uffd_own = ["uffd_own"], EVERY;
    deepbind = ["deepbind"], EVERY, files: vec![build::plugin("bound")];
    dlopen_constructor = ["moments", "dlopen"], EVERY, files: vec![build::plugin("grows")];
}

// Programs of the tests of libquire_provide.so.
programs! {
    threads = ["threads", "64", "6000"], SOME;
    fork_storm = ["fork_storm", "32", "32", "112"], WITH_BASE;
    fork_write = ["fork_write", "96", "3", "800"], SOME;
    signals = ["signals", "128", "1300"], SOME;
    syscalls_untouched = ["syscalls_untouched"], WITH_BASE;
    remap = ["remap"], WITH_BASE;
    dontunmap = ["dontunmap", "40"], SOME;
    stress_single = ["stress", "SEED", "1", "2500"], SOME;
    stress_threads = ["stress", "SEED", "4", "700"], SOME;
    stress_discard = ["stress", "16", "1", "1500"], AS_ROOT;
    stress_advice = ["stress", "42003", "2", "1000"], AS_ROOT;
    limits = ["limits"], WITH_BASE;
    maps = ["maps"], SOME;
    discard = ["discard", "200"], SOME;
    align = ["align"], SOME;
    shared = ["shared"], WITH_BASE;
    churn = ["churn", "1000"], AS_ROOT;
    closefds = ["closefds"], WITH_BASE;
    // Not `eager`: it spends a superpage on each touch, which is the policy's price, and a group of this size has no
    // room for it.
    pressure = ["pressure"], [ADAPTIVE, BASE, ADAPTIVE_ORDINARY], memory_limit: Some(256 << 20);
    given = ["given"], [ADAPTIVE, BASE, ADAPTIVE_ORDINARY], memory_limit: Some(256 << 20);
    leaves = ["leaves", "posix", "64"], SOME;
    leaves_c11 = ["leaves", "c11", "64"], AS_ROOT;
    leaves_child = ["leaves", "child", "96"], AS_ROOT;
    stacks = ["stacks", "3"], SOME;
    pieces = ["pieces", "SEED"], SOME;
}

// What is promised of superpages and of memory.
programs! {
    dense_malloc = ["dense", "malloc", "512"], WITH_BASE, alone: true;
    dense_mmap = ["dense", "mmap", "1024"], DENSE, alone: true;
    dense_brk = ["dense", "brk", "256"], SOME, alone: true;
    dense_pieces = ["dense", "pieces", "384"], AS_ROOT, alone: true;
    server_anonymous = ["server", "anonymous"], WITH_BASE;
    server_memfd = ["server", "memfd"], SOME;
    scattered_each = ["scattered", "each", "1024"], DENSE;
    scattered_random = ["scattered", "random", "1024"], DENSE;
    scattered_quarter = ["scattered", "quarter", "1024"], DENSE;
    forks = ["forks"], SOME;
    advice = ["advice"], WITH_BASE;
    idle = ["idle", "512", "5"], SOME;
}

// What programs may do at any moment.
programs! {
    moves_mremap = ["moves", "mremap"], SOME;
    moves_realloc = ["moves", "realloc"], SOME;
    left_alone = ["left_alone"], SOME;
    filter_by_prctl = ["filter", "prctl", "8"], SOME;
    filter_by_seccomp = ["filter", "seccomp", "12"], SOME;
    filter_before_it_grows = ["filter", "seccomp", "4", "early"], SOME;
    moments_signal = ["moments", "signal"], SOME;
    moments_handler = ["moments", "handler"], SOME;
    moments_thread = ["moments", "thread"], SOME;
    moments_before = ["moments", "before"], SOME;
    moments_atexit = ["moments", "atexit"], SOME;
    moments_tls = ["moments", "tls"], SOME, files: vec![build::plugin("locals")];
    alone_process = ["alone"], EVERY;
    leaving_return = ["leaving", "return"], SOME;
    leaving_bare = ["leaving", "bare"], SOME;
    leaving_first = ["leaving", "first"], SOME;
    leaving_kept = ["leaving", "kept"], SOME;
    user_dumpable = ["user", "dumpable"], AS_ROOT;
    user_not_dumpable = ["user"], AS_ROOT;
    table = ["table"], SOME;
    stopped = ["stopped"], SOME;
    starts = ["starts"], WITH_BASE;
    many = ["many"], AS_ROOT;
    defines = ["defines"], [ADAPTIVE, EAGER, EAGER_ORDINARY];
}
