//! What the summary says of programs that stay plain: for a limit that is too low, or by their own wish.

use std::process::Command;

use quire_core::stat::Note;

use crate::harness::build;

/// What the summary says of a program that has 64 MiB of an allocator that takes its memory from Quire, under a limit.
fn said_under(limit: &str) -> String {
    let script = format!(
        "ulimit {limit}; exec \"$0\" run --policy reserve --malloc jemalloc -- \"$1\" posix 64"
    );
    let done = Command::new("sh")
        .args(["-c", &script])
        .args([build::command(), &build::program("leaves")])
        .env("QUIRE_JEMALLOC_LIB", build::jemalloc())
        .output()
        .expect("there is a shell");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{limit}: {}\n{said}", done.status);
    said
}

#[test]
fn the_summary_says_which_limit_it_is() {
    for (limit, note) in [
        ("-n 20", Note::FewDescriptors),
        ("-f 1000", Note::FileSizeLimit),
        ("-d 1000000", Note::DataLimit),
    ] {
        let said = said_under(limit);
        assert!(said.contains(note.text()), "{limit}: {said}");
        assert!(said.contains("nothing was managed"), "{limit}: {said}");
    }
}

/// There is no room for the statistics of a process either; and nobody claims to know more.
#[test]
fn a_limit_of_file_sizes_ends_nobody() {
    let said = said_under("-f 1");
    assert!(said.contains("no statistics"), "{said}");
}

/// A program that is left to the kernel is not said to be small.
#[test]
fn a_program_that_wants_no_superpages_used_memory() {
    const PROGRAM: &str = "import mmap\n\
                           m = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
                           m.madvise(mmap.MADV_NOHUGEPAGE)\n\
                           for i in range(0, len(m), 4096): m[i] = 1";
    let done = Command::new(build::command())
        .args(["run", "--policy", "reserve", "python3", "-c", PROGRAM])
        .output()
        .expect("it was built");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        said.starts_with("quire: reserve: nothing was managed: python3 had "),
        "{said}"
    );
}
