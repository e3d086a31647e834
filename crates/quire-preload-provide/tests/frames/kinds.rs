//! Every kind of memory that can have a strategy, by default and by hint.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use quire_core::units::{AddrRange, VirtAddr};

use super::{COLOURS, Page, pages_of};
use crate::harness::scratch::Scratch;
use crate::harness::setting::{self, Setting};
use crate::harness::{process, skip};
use crate::managed::huge_bytes;

/// `kinds.c` as a program, with the library that it needs beside it.
fn program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(compile);
    &PROGRAM
}

fn compile() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frames/kinds.c");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kinds.{}", std::process::id()));
    std::fs::create_dir_all(&out).expect("the target directory is writable");
    let make = |name: &str, how: &[&str]| {
        let status = Command::new(std::env::var_os("CC").unwrap_or_else(|| "gcc".into()))
            .args(["-std=gnu11", "-Wall", "-Wextra", "-O1", "-g", "-pthread"])
            .arg("-o")
            .arg(out.join(name))
            .arg(&source)
            .args(how)
            .current_dir(&out)
            .status();
        assert!(
            status.is_ok_and(|s| s.success()),
            "kinds.c does not compile"
        );
        out.join(name)
    };
    make("libkinds.so", &["-shared", "-fPIC", "-DLIBRARY"]);
    make("kinds", &["-L.", "-lkinds", "-Wl,-rpath,$ORIGIN"])
}

/// The program, and where its memory lies.
struct Kinds {
    program: Child,
    ranges: BTreeMap<String, (u32, AddrRange)>,
    _scratch: Scratch,
}

impl Kinds {
    /// Starts the program with these hints, at addresses that are the same each time.
    fn start(setting: &Setting, hints: &str) -> Kinds {
        let scratch = Scratch::new(false);
        let mut argv: Vec<OsString> = vec!["setarch".into(), "-R".into(), "env".into()];
        if !hints.is_empty() {
            argv.push(format!("QUIRE_HINTS={hints}").into());
        }
        argv.push(program().into());
        let command = setting.command(&argv, &setting.libraries(), None);
        let mut program = process::command(&command, scratch.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program was built");
        let output = program.stdout.take().expect("stdout is a pipe");
        let mut ranges = BTreeMap::new();
        for line in BufReader::new(output).lines() {
            let line = line.expect("the pipe can be read");
            let words: Vec<&str> = line.split(' ').collect();
            let &[name, start, end, pid] = words.as_slice() else {
                assert_eq!(line, "end");
                break;
            };
            let at = |hex| VirtAddr(u64::from_str_radix(hex, 16).expect("an address"));
            let range = AddrRange {
                start: at(start),
                end: at(end),
            };
            assert!(!range.is_empty(), "{line}");
            ranges.insert(name.to_owned(), (pid.parse().expect("a number"), range));
        }
        Kinds {
            program,
            ranges,
            _scratch: scratch,
        }
    }

    fn pages(&self, name: &str) -> Vec<Page> {
        let known = self.ranges.get(name);
        let (pid, range) = known.unwrap_or_else(|| panic!("the program said nothing of {name}"));
        pages_of(*pid, *range)
    }

    /// How many pages of a range are as promised, and how many there are.
    fn count(&self, name: &str, promised: impl Fn(&Page) -> bool) -> (usize, usize) {
        let pages = self.pages(name);
        (
            pages.iter().filter(|page| promised(page)).count(),
            pages.len(),
        )
    }

    /// All pages of some ranges are as promised.
    fn check(&self, names: &[&str], promised: impl Fn(&Page) -> bool) {
        for name in names {
            let (right, all) = self.count(name, &promised);
            assert_eq!(right, all, "{name}");
        }
    }

    /// Whether some ranges are the kernel's: not all pages of any are as promised.
    fn are_unlike(&self, names: &[&str], promised: impl Fn(&Page) -> bool) -> bool {
        names.iter().all(|name| {
            let (right, all) = self.count(name, &promised);
            right < all
        })
    }

    /// Starts the program so that `unlike` says so of ranges of the kernel's. Their frames
    /// can follow each other, and then have any colours, by chance: so not each time.
    fn start_until(start: impl Fn() -> Kinds, unlike: impl Fn(&Kinds) -> bool) -> Kinds {
        for _ in 0..8 {
            let kinds = start();
            if unlike(&kinds) {
                return kinds;
            }
            kinds.end();
        }
        panic!("what is the kernel's has a strategy each time");
    }

    fn end(mut self) {
        drop(self.program.stdin.take());
        let status = self.program.wait().expect("the child is ours");
        assert!(status.success(), "{status}");
    }
}

fn coloured(page: &Page) -> bool {
    page.colour == page.number % COLOURS
}

/// By `modulo:FIRST-LAST` of four colours.
fn by_turns(first: u64) -> impl Fn(&Page) -> bool {
    move |page| page.colour == page.number % 4 + first
}

fn range_hint(range: AddrRange, strategy: &str) -> String {
    format!("{:x}-{:x}={strategy}", range.start.0, range.end.0)
}

const STACKS: [&str; 5] = [
    "stack",
    "thread",
    "thread-child",
    "child-stack",
    "child-thread",
];
const STATIC: [&str; 3] = ["static", "child-static", "library"];
const MAPPINGS: [&str; 6] = [
    "named",
    "named-by-number",
    "other",
    "large",
    "populated",
    "child-mapping",
];

/// Where the program's memory lies when there are hints for addresses.
const ELSEWHERE: &str = "100000000000-100000001000=colour";

#[test]
fn a_strategy_for_all_memory_is_for_stacks_and_static_data_too() {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    let kinds = Kinds::start(&setting::COLOUR, "");
    for names in [&STACKS[..], &STATIC, &MAPPINGS] {
        kinds.check(names, coloured);
    }
    kinds.end();
}

#[test]
fn stacks_can_have_a_strategy_of_their_own() {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    let kinds = Kinds::start(&setting::COLOUR, "stack=modulo:4-7");
    kinds.check(&STACKS, by_turns(4));
    kinds.check(&STATIC, coloured);
    kinds.check(&MAPPINGS, coloured);
    kinds.end();
}

#[test]
fn stacks_alone_can_have_a_strategy() {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    let kinds = Kinds::start_until(
        || Kinds::start(&setting::NO_STRATEGY, "stack=colour"),
        |kinds| kinds.are_unlike(&["static", "library"], coloured),
    );
    kinds.check(&STACKS, coloured);
    let huge = huge_bytes(kinds.program.id());
    assert!(huge >= 12 << 20, "{} MiB", huge >> 20);
    kinds.end();
}

#[test]
fn stacks_can_be_left_to_the_kernel() {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    let kinds = Kinds::start_until(
        || Kinds::start(&setting::COLOUR, "stack=default"),
        |kinds| kinds.are_unlike(&STACKS, coloured),
    );
    kinds.check(&STATIC, coloured);
    kinds.end();
}

#[test]
fn static_data_is_named_by_its_file() {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    let path = program().display().to_string();
    let hints = format!("map:libkinds.so=modulo:4-7\nmap:{path}=modulo:8-11");
    let kinds = Kinds::start_until(
        || Kinds::start(&setting::NO_STRATEGY, &hints),
        |kinds| kinds.are_unlike(&STACKS, coloured),
    );
    kinds.check(&["library"], by_turns(4));
    kinds.check(&["static", "child-static"], by_turns(8));
    // All names are known, so the program's mappings are on superpages.
    let huge = huge_bytes(kinds.program.id());
    assert!(huge >= 12 << 20, "{} MiB", huge >> 20);
    kinds.end();
}

#[test]
fn mappings_have_the_strategy_of_the_name_that_they_are_given() {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    let kinds = Kinds::start_until(
        || Kinds::start(&setting::NO_STRATEGY, "map:pool=colour"),
        |kinds| {
            // Any superpage has the colours of its addresses.
            kinds.are_unlike(&["other", "large"], by_turns(4))
                && kinds.are_unlike(&["static", "stack"], coloured)
        },
    );
    kinds.check(&["named", "named-by-number"], coloured);
    kinds.end();
}

/// Starts the program with hints for where these parts of its memory are to lie, which
/// `hints` makes of the ranges; again where they come to lie elsewhere.
fn start_with<const N: usize>(
    setting: &Setting,
    names: [&str; N],
    hints: impl Fn([AddrRange; N]) -> Vec<String>,
) -> Kinds {
    let mut before = ELSEWHERE.to_owned();
    let mut hinted = None;
    for _ in 0..20 {
        let kinds = Kinds::start(setting, &before);
        let ranges = names.map(|name| kinds.ranges[name].1);
        if hinted == Some(ranges) {
            return kinds;
        }
        before = hints(ranges).join("\n");
        hinted = Some(ranges);
        kinds.end();
    }
    panic!("{names:?} never lie where they did before");
}

#[test]
fn hints_for_addresses_hold_where_the_kernel_chose_them() {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    // A mapping whole, and one in pieces, of which one is a single page.
    let hints = |[other, large]: [AddrRange; 2]| {
        let (low, high) = large.split_at(VirtAddr(large.start.0 + (4 << 20)));
        let (single, rest) = high.split_at(VirtAddr(high.start.0 + 4096));
        vec![
            range_hint(other, "modulo:12-15"),
            range_hint(low, "modulo:4-7"),
            range_hint(single, "default"),
            range_hint(rest, "modulo:8-11"),
        ]
    };
    let kinds = Kinds::start_until(
        || start_with(&setting::NO_STRATEGY, ["other", "large"], hints),
        |kinds| kinds.are_unlike(&["stack", "static"], coloured),
    );
    kinds.check(&["other"], by_turns(12));
    let pages = kinds.pages("large");
    let (low, high) = pages.split_at(1024);
    assert!(low.iter().all(by_turns(4)));
    assert!(high[1..].iter().all(by_turns(8)));
    // What no hint is for is on superpages.
    let huge = huge_bytes(kinds.program.id());
    assert!(huge >= 6 << 20, "{} MiB", huge >> 20);
    kinds.end();
}

#[test]
fn hints_for_addresses_hold_for_stacks_and_static_data() {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    let names = ["stack", "thread", "static"];
    let hints =
        |ranges: [AddrRange; 3]| ranges.map(|range| range_hint(range, "modulo:4-7")).to_vec();
    let kinds = start_with(&setting::COLOUR, names, hints);
    kinds.check(&names, by_turns(4));
    kinds.check(&["library", "child-static", "thread-child"], coloured);
    kinds.end();
}
