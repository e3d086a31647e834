//! Files that are read without the kernel's cache (`O_DIRECT`) to memory of objects.

use std::process::Command;

use crate::capi::limited;
use crate::harness::{Running, Served, link};
use crate::program;

/// Starts a program that reads such a file. `None` where the files of this test cannot be read so.
fn start(served: &Served, command: &mut Command, line: &str) -> Option<Running> {
    let mut running = Running::start(command.arg(served.path().join("file")));
    let said = running.listen();
    if said == "no" {
        eprintln!("not tested: {} has no O_DIRECT", served.path().display());
        return None;
    }
    assert_eq!(said, line);
    Some(running)
}

/// One reads, and another one takes the pages all the time.
fn read_and_take(served: &Served, read: &mut Command, take: &mut Command) {
    let Some(mut reads) = start(served, read, "reads") else {
        return;
    };
    let Some(takes) = start(served, take, "takes") else {
        return;
    };
    reads.say("");
    reads.hear("has all");
    takes.go_on();
    reads.go_on();
}

/// The pages leave while the device writes to them.
#[test]
fn what_is_read_is_not_lost_where_another_program_takes_the_page() {
    for mut served in Served::both() {
        let direct = program("direct");
        let mut read = served.run("grid", &direct, &["read", "/grid"]);
        // As on another machine.
        served.own_pages = true;
        let mut take = served.run("grid", &direct, &["take", "/grid"]);
        read_and_take(&served, &mut read, &mut take);
    }
}

#[test]
fn what_a_program_in_c_reads_is_not_lost_where_another_program_takes_the_page() {
    let served = Served::start();
    let direct = link("tests/programs/direct.c", &["-DIN_C"]);
    let mut read = limited(&direct, &["read", &served.address]);
    let mut take = limited(&direct, &["take", &served.address]);
    read_and_take(&served, &mut read, &mut take);
}

#[test]
fn files_are_read_without_a_cache_in_odd_ways() {
    for served in Served::both() {
        let direct = program("direct");
        let mut odd = served.run("grid", &direct, &["odd", "/grid"]);
        if let Some(odd) = start(&served, &mut odd, "has all") {
            odd.go_on();
        }
    }
}
