//! Files that are read without the kernel's cache (`O_DIRECT`) to memory of objects.

use crate::harness::{Running, Served};
use crate::program;

/// Starts a program that reads such a file. `None` where the files of this test cannot be read so.
fn start(served: &Served, what: &str, line: &str) -> Option<Running> {
    let direct = program(served, "direct");
    let mut run = served.run("grid", &direct, &[what, "/grid"]);
    let mut running = Running::start(run.arg(served.path().join("file")));
    let said = running.listen();
    if said == "no" {
        eprintln!("not tested: {} has no O_DIRECT", served.path().display());
        return None;
    }
    assert_eq!(said, line);
    Some(running)
}

/// The pages leave while the device writes to them.
#[test]
fn what_is_read_is_not_lost_where_another_program_takes_the_page() {
    for mut served in Served::both() {
        let Some(mut reads) = start(&served, "read", "reads") else {
            return;
        };
        // As on another machine.
        served.own_pages = true;
        let Some(takes) = start(&served, "take", "takes") else {
            return;
        };
        reads.say("");
        reads.hear("has all");
        takes.go_on();
        reads.go_on();
    }
}

#[test]
fn files_are_read_without_a_cache_in_odd_ways() {
    for served in Served::both() {
        let Some(odd) = start(&served, "odd", "has all") else {
            return;
        };
        odd.go_on();
    }
}
