//! Unmodified programs under the library. Each of the programs in `programs/`
//! checks itself; here it must also print the same and end in the same way as
//! without the library. `real/` does the same with programs of the system.
//!
//! One test is `cargo test -p quire-preload-provide --test programs remap::eager`.
//! `QUIRE_PROVIDE_LIB` and `QUIRE_JEMALLOC_LIB` name libraries to test instead of those
//! that Cargo builds, `QUIRE_TEST_SEED` another seed for the random operations. What cannot be
//! tested on a machine is reported in lines that begin with `SKIP:`.

mod adaptive;
mod capi;
mod changing;
mod files;
mod frames;
mod global;
mod growing;
mod harness;
mod loading;
mod malloc;
mod managed;
mod real;
mod small;
mod told;

use std::ffi::OsString;

use harness::{Program, build, setting::Setting};

/// Checks one of the programs in `programs/`.
fn check(
    name: &str,
    program: &str,
    arguments: &[&str],
    memory_limit: Option<u64>,
    setting: &Setting,
) {
    let mut argv = vec![OsString::from(build::program(program))];
    let seed = std::env::var("QUIRE_TEST_SEED").unwrap_or_else(|_| "1".to_owned());
    for argument in arguments {
        argv.push(argument.replace("SEED", &seed).into());
    }
    Program {
        name,
        argv,
        prepare: &|_| (),
        result: None,
        memory_limit,
    }
    .check(setting);
}

/// One module per program, one test per setting.
macro_rules! programs {
    ($($module:ident = $program:literal $arguments:expr, limit $limit:expr, under $($test:ident)*;)*) => {$(
        mod $module {
            $(programs!(@test $module $program $arguments, $limit, $test);)*
        }
    )*};
    (@test $module:ident $program:literal $arguments:expr, $limit:expr, $test:ident) => {
        #[test]
        fn $test() {
            let setting = programs!(@setting $test);
            crate::check(stringify!($module), $program, &$arguments, $limit, &setting);
        }
    };
    (@setting plain) => { crate::harness::setting::PLAIN };
    (@setting base) => { crate::harness::setting::BASE };
    (@setting eager) => { crate::harness::setting::EAGER };
    (@setting reserve) => { crate::harness::setting::RESERVE };
    (@setting adaptive) => { crate::harness::setting::ADAPTIVE };
    (@setting base_aligned) => { crate::harness::setting::BASE.aligned() };
    (@setting eager_aligned) => { crate::harness::setting::EAGER.aligned() };
    (@setting static_aligned) => { crate::harness::setting::STATIC.aligned() };
    (@setting reserve_ahead) => { crate::harness::setting::RESERVE_AHEAD };
    (@setting reserve_limit) => { crate::harness::setting::RESERVE_LIMIT };
    (@setting reserve_small) => { crate::harness::setting::RESERVE_SMALL };
    (@setting colour) => { crate::harness::setting::COLOUR };
    (@setting stack_hint) => { crate::harness::setting::STACK_HINT };
    (@setting binhop) => { crate::harness::setting::BINHOP };
    (@setting static_pool) => { crate::harness::setting::STATIC };
    (@setting static_giga) => { crate::harness::setting::STATIC_GIGA };
    (@setting static_small) => { crate::harness::setting::STATIC_SMALL };
    (@setting eager_jemalloc) => { crate::harness::setting::EAGER_JEMALLOC };
    (@setting reserve_jemalloc) => { crate::harness::setting::RESERVE_JEMALLOC };
    (@setting adaptive_jemalloc) => { crate::harness::setting::ADAPTIVE_JEMALLOC };
    (@setting static_jemalloc) => { crate::harness::setting::STATIC_JEMALLOC };
    (@setting unprivileged_jemalloc) => { crate::harness::setting::UNPRIVILEGED_JEMALLOC };
    (@setting colour_libc) => { crate::harness::setting::COLOUR_LIBC };
    (@setting unprivileged) => { crate::harness::setting::UNPRIVILEGED };
}

// All have `reserve`, which most users of these libraries have, with what it needs of the kernel in other ways: as an
// ordinary user, with jemalloc, with superpages zeroed ahead, from the pool of `static`, and with frames by strategy. The
// other policies provide memory only beside an option, and each differs in when and what it gives. So they have the programs
// that do everything, and those that mind what a page is: forks, moves, advice. The same goes for a limit of reservations,
// small folios, another strategy, and each of these with jemalloc.
programs! {
    threads = "threads" ["64", "8000"], limit None,
        under plain eager reserve adaptive reserve_ahead static_pool unprivileged colour binhop reserve_jemalloc static_jemalloc unprivileged_jemalloc colour_libc;
    fork_storm = "fork_storm" ["32", "32", "112"], limit None,
        under plain reserve reserve_ahead static_pool unprivileged colour reserve_jemalloc;
    fork_write = "fork_write" ["96", "5", "1200"], limit None,
        under plain eager reserve adaptive reserve_ahead reserve_limit static_pool static_small unprivileged colour reserve_jemalloc static_jemalloc colour_libc;
    fork_again = "fork_again" [], limit None,
        under plain reserve static_pool unprivileged colour reserve_jemalloc unprivileged_jemalloc;
    shrunk = "shrunk" [], limit None,
        under static_pool static_small static_jemalloc;
    filter_by_prctl = "filter" ["prctl", "3", "early"], limit None,
        under plain reserve static_pool unprivileged reserve_jemalloc;
    filter_by_seccomp = "filter" ["seccomp", "3", "early"], limit None,
        under plain reserve adaptive static_pool unprivileged reserve_jemalloc;
    leaving_return = "leaving" ["return"], limit None,
        under plain reserve static_pool unprivileged colour reserve_jemalloc;
    leaving_bare = "leaving" ["bare"], limit None,
        under plain reserve static_pool unprivileged colour reserve_jemalloc;
    leaving_first = "leaving" ["first"], limit None,
        under plain reserve static_pool unprivileged colour reserve_jemalloc;
    signals = "signals" ["128", "1300"], limit None,
        under plain reserve reserve_ahead reserve_limit static_pool unprivileged colour reserve_jemalloc;
    syscalls_untouched = "syscalls_untouched" [], limit None,
        under plain base eager reserve reserve_ahead static_pool static_small unprivileged colour reserve_jemalloc;
    remap = "remap" [], limit None,
        under plain eager reserve adaptive reserve_ahead reserve_limit reserve_small static_pool unprivileged colour reserve_jemalloc colour_libc;
    addresses = "addresses" ["alone"], limit None,
        under plain eager reserve reserve_ahead static_pool static_small unprivileged;
    addresses_before = "addresses" ["before"], limit None,
        under plain reserve reserve_ahead static_pool unprivileged;
    addresses_child = "addresses" ["child"], limit None,
        under plain reserve reserve_ahead static_pool unprivileged;
    addresses_gone = "addresses" ["gone"], limit None,
        under plain reserve reserve_ahead static_pool unprivileged;
    addresses_behind = "addresses" ["behind"], limit None,
        under plain reserve reserve_ahead static_pool unprivileged;
    scattered = "scattered" [], limit None,
        under plain unprivileged;
    dontunmap = "dontunmap" ["150"], limit None,
        under plain reserve reserve_ahead static_pool unprivileged colour reserve_jemalloc;
    stress_single = "stress" ["SEED", "1", "2500"], limit None,
        under plain base eager reserve adaptive reserve_ahead reserve_limit reserve_small static_pool static_small unprivileged colour binhop reserve_jemalloc static_jemalloc unprivileged_jemalloc;
    stress_threads = "stress" ["SEED", "4", "700"], limit None,
        under plain eager reserve adaptive reserve_ahead reserve_limit reserve_small static_pool unprivileged colour binhop reserve_jemalloc static_jemalloc unprivileged_jemalloc;
    // Seeds that each fail where one mistake of the past is made again. A change
    // to the order of random numbers in the program asks for other seeds.
    stress_discard = "stress" ["16", "1", "1500"], limit None,
        under plain reserve reserve_limit reserve_jemalloc;
    stress_fork_advice = "stress" ["42003", "1", "2000"], limit None,
        under plain reserve unprivileged;
    stress_move = "stress" ["2", "1", "1300"], limit None,
        under static_small;
    stress_dry_pool = "stress" ["2", "4", "500"], limit None,
        under static_small;
    giga = "giga" [], limit None,
        under plain static_pool static_giga;
    giga_stress = "giga_stress" ["SEED", "1", "60"], limit None,
        under plain static_giga;
    giga_threads = "giga_stress" ["SEED", "3", "30"], limit None,
        under plain static_giga;
    limits = "limits" [], limit None,
        under plain reserve reserve_small static_pool unprivileged colour reserve_jemalloc;
    maps = "maps" [], limit None,
        under plain reserve reserve_ahead static_pool unprivileged colour reserve_jemalloc colour_libc;
    discard = "discard" ["200"], limit None,
        under plain eager reserve adaptive reserve_ahead reserve_limit static_pool unprivileged colour reserve_jemalloc;
    align = "align" [], limit None,
        under plain reserve static_pool unprivileged;
    aligned = "align" [], limit None,
        under base_aligned eager_aligned static_aligned;
    rest = "rest" ["1000"], limit None,
        under plain reserve_limit;
    shared = "shared" [], limit None,
        under plain reserve reserve_ahead static_pool unprivileged;
    churn = "churn" ["4000"], limit None,
        under plain reserve static_pool unprivileged colour reserve_jemalloc;
    closefds = "closefds" [], limit None,
        under plain reserve static_pool unprivileged colour reserve_jemalloc;
    // Not `eager`: it spends a superpage on each touch, which is the policy's
    // price, and a group of this size has no room for it.
    pressure = "pressure" [], limit Some(256 << 20),
        under plain reserve adaptive reserve_ahead reserve_limit reserve_small static_pool unprivileged colour reserve_jemalloc;
    leaves = "leaves" ["posix", "64"], limit None,
        under plain reserve reserve_ahead static_pool unprivileged colour reserve_jemalloc;
    leaves_c11 = "leaves" ["c11", "64"], limit None,
        under plain reserve_ahead colour;
    leaves_child = "leaves" ["child", "64"], limit None,
        under plain reserve_ahead colour;
    kept = "kept" [], limit None,
        under plain reserve eager_jemalloc reserve_jemalloc adaptive_jemalloc;
    stacks = "stacks" ["3"], limit None,
        under plain reserve unprivileged colour binhop stack_hint reserve_jemalloc;
    pieces = "pieces" ["SEED"], limit None,
        under plain reserve reserve_ahead unprivileged colour reserve_jemalloc;
    fsize = "fsize" [], limit None,
        under plain reserve reserve_ahead static_pool unprivileged colour;
    few_descriptors = "few_descriptors" [], limit None,
        under plain reserve reserve_ahead static_pool unprivileged colour;
    closes_all = "closes_all" [], limit None,
        under plain reserve reserve_ahead static_pool unprivileged colour;
    users = "users" [], limit None,
        under plain reserve reserve_ahead static_pool unprivileged colour;
    vfork_child = "vfork_child" [], limit None,
        under plain reserve reserve_ahead static_pool unprivileged colour;
    frozen = "frozen" [], limit None,
        under plain reserve static_pool;
    given = "given" [], limit Some(256 << 20),
        under plain reserve adaptive reserve_ahead reserve_jemalloc;
}
