//! Frames by strategy: the colours that the kernel's page tables show are what the
//! strategy promises.

mod guards;
mod kinds;
mod ordinary;
mod outside;
mod plugins;
mod remap;
mod stock;
mod swap;
mod whole;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::process::Child;

use quire_core::frames::colour::Colours;
use quire_core::units::{AddrRange, Frame, VirtAddr};
use quire_linux::pagemap;

use crate::harness::held::Held;
use crate::harness::moved::unless_moved;
use crate::harness::scratch::Scratch;
use crate::harness::setting::{self, Setting};
use crate::harness::{build, process, skip};
use crate::managed::huge_bytes;

const COLOURS: u64 = 16;

/// The program of this test, and where its memory lies.
struct Filled {
    program: Child,
    ranges: BTreeMap<String, (u32, AddrRange)>,
    _scratch: Scratch,
}

/// A page and its colour.
#[derive(Clone, Copy, Debug)]
struct Page {
    number: u64,
    colour: u64,
}

impl Filled {
    /// Starts it where its frames can be seen.
    fn seen(setting: &Setting) -> Option<Filled> {
        Filled::seen_with(setting, 8)
    }

    /// The same, with so many MiB filled in order.
    fn seen_with(setting: &Setting, mib: u32) -> Option<Filled> {
        if !process::is_root() {
            skip("only root may see frames");
            return None;
        }
        Some(Filled::start_with(setting, mib))
    }

    fn start(setting: &Setting) -> Filled {
        Filled::start_with(setting, 8)
    }

    /// With so many MiB filled in order.
    fn start_with(setting: &Setting, mib: u32) -> Filled {
        let argv = [build::program("frames").into(), mib.to_string().into()];
        Filled::start_by(setting, &argv)
    }

    /// Started by another program, which it takes the place of.
    fn start_by_shell(setting: &Setting) -> Filled {
        let program = build::program("frames").into();
        let shell = ["sh", "-c", "exec \"$0\" 8"].map(OsString::from);
        Filled::start_by(setting, &[&shell[..], &[program]].concat())
    }

    fn start_by(setting: &Setting, argv: &[OsString]) -> Filled {
        let scratch = Scratch::new(false);
        let command = setting.command(argv, &setting.libraries(), None);
        let mut program = process::start(&command, scratch.path());
        let output = program.stdout.take().expect("stdout is a pipe");
        let mut ranges = BTreeMap::new();
        let mut child = 0;
        // Five lines, of which the last two come in any order.
        for line in BufReader::new(output).lines().take(5) {
            let line = line.expect("the pipe can be read");
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["pid", pid] => child = pid.parse().expect("a number"),
                [name, start, end] => {
                    let at = |hex| VirtAddr(u64::from_str_radix(hex, 16).expect("an address"));
                    let range = AddrRange {
                        start: at(start),
                        end: at(end),
                    };
                    ranges.insert(name.to_owned(), (program.id(), range));
                }
                _ => panic!("{line}"),
            }
        }
        if let Some((pid, _)) = ranges.get_mut("child") {
            *pid = child;
        }
        Filled {
            program,
            ranges,
            _scratch: scratch,
        }
    }

    /// The pages of a range, with the colours of a cache of 16.
    fn pages(&self, name: &str) -> Vec<Page> {
        let (pid, range) = self.ranges[name];
        pages_of(pid, range)
    }

    fn end(self) {
        process::finish(self.program, "the program");
    }
}

/// The pages of a range of a process, with the colours of a cache of 16.
fn pages_of(pid: u32, range: AddrRange) -> Vec<Page> {
    let colours: Colours = "12,13,14,15".parse().expect("the colours of most caches");
    let pagemap = pagemap::open_of(pid).expect("the process is ours");
    let mut pages = Vec::new();
    pagemap::frames_of(pagemap.as_fd(), range, |at, entry| {
        let frame: Frame = entry.frame().expect("every page is there");
        pages.push(Page {
            number: at.0 / 4096,
            colour: u64::from(colours.of(frame).0),
        });
    })
    .expect("the process is ours");
    pages
}

/// All pages of some ranges have the colours that they should.
fn check(setting: &Setting, names: &[&str], promised: impl Fn(Page) -> bool) {
    check_with(setting, 8, names, promised);
}

/// The same, with so many MiB filled in order.
fn check_with(setting: &Setting, mib: u32, names: &[&str], promised: impl Fn(Page) -> bool) {
    unless_moved(|| {
        let Some(filled) = Filled::seen_with(setting, mib) else {
            return Ok(());
        };
        let looked = names.iter().try_for_each(|name| {
            let pages = filled.pages(name);
            let mut wrong = pages.iter().filter(|page| !promised(**page));
            let Some(first) = wrong.next() else {
                return Ok(());
            };
            let (wrong, all) = (1 + wrong.count(), pages.len());
            let setting = setting.name;
            Err(format!(
                "{setting}: {wrong} of {all} pages of {name}, the first {first:?}"
            ))
        });
        filled.end();
        looked
    });
}

#[test]
fn page_colouring_gives_a_page_the_colour_of_its_address() {
    let names = ["ordered", "random", "heap", "child"];
    check(&setting::COLOUR, &names, |page| {
        page.colour == page.number % COLOURS
    });
}

#[test]
fn a_program_that_takes_the_place_of_another_goes_on_with_its_strategy() {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    let filled = Filled::start_by_shell(&setting::COLOUR);
    for name in ["ordered", "random", "heap", "child"] {
        let pages = filled.pages(name);
        assert!(
            pages
                .iter()
                .all(|page| page.colour == page.number % COLOURS),
            "{name}"
        );
    }
    filled.end();
    let filled = Filled::start_by_shell(&setting::COLOUR_ALONE);
    let pages = filled.pages("ordered");
    let right = pages.iter().filter(|p| p.colour == p.number % COLOURS);
    assert!(right.count() < pages.len() / 2);
    filled.end();
}

/// So much that as many pages as a folio has are given at once.
#[test]
fn a_large_range_has_its_colours_throughout() {
    check_with(&setting::COLOUR, 160, &["ordered"], |page| {
        page.colour == page.number % COLOURS
    });
}

#[test]
fn hashed_colours_differ_from_process_to_process() {
    let Some(filled) = Filled::seen(&setting::COLOUR_HASHED) else {
        return;
    };
    let moved = |name: &str| {
        let pages = filled.pages(name);
        let by = |page: &Page| (page.colour + COLOURS - page.number % COLOURS) % COLOURS;
        let first = by(&pages[0]);
        assert!(pages.iter().all(|page| by(page) == first), "{name}");
        first
    };
    let parent = moved("ordered");
    assert_eq!(moved("random"), parent);
    assert_eq!(moved("heap"), parent);
    let pids = ["ordered", "child"].map(|name| u64::from(filled.ranges[name].0) % COLOURS);
    assert_eq!(moved("child") == parent, pids[0] == pids[1]);
    filled.end();
}

#[test]
fn bin_hopping_goes_from_colour_to_colour() {
    let Some(filled) = Filled::seen(&setting::BINHOP) else {
        return;
    };
    // What was touched in order goes through the colours in order, but where a page
    // of something else was touched between.
    let pages = filled.pages("ordered");
    let next = |pair: &&[Page]| pair[1].colour == (pair[0].colour + 1) % COLOURS;
    let hops = pages.windows(2).filter(next).count();
    assert!(hops + 8 > pages.len() - 1, "{hops} of {}", pages.len() - 1);
    // What was touched at random does so in the order of the touches.
    let pages = filled.pages("random");
    let count = pages.len();
    let touched: Vec<Page> = (0..count).map(|i| pages[(i * 389 + 7) % count]).collect();
    let hops = touched.windows(2).filter(next).count();
    assert!(hops + 8 > count - 1, "{hops} of {}", count - 1);
    filled.end();
}

#[test]
fn modulo_gives_the_listed_colours_by_turns() {
    check(&setting::MODULO, &["ordered", "random", "heap"], |page| {
        page.colour == page.number % 4 + 4
    });
}

#[test]
fn what_is_not_handed_down_ends_at_a_fork() {
    let Some(filled) = Filled::seen(&setting::COLOUR_ALONE) else {
        return;
    };
    let right = |name: &str| {
        let pages = filled.pages(name);
        let right = pages.iter().filter(|p| p.colour == p.number % COLOURS);
        (right.count(), pages.len())
    };
    let (own, of_own) = right("ordered");
    assert_eq!(own, of_own);
    let (of_child, all) = right("child");
    assert!(of_child < all / 2, "{of_child} of {all}");
    filled.end();
}

/// The heap has a strategy, and what else there is goes onto superpages.
#[test]
fn a_strategy_can_be_for_the_heap_alone() {
    let Some(filled) = Filled::seen(&setting::HEAP_HINT) else {
        return;
    };
    let heap = filled.pages("heap");
    assert!(heap.iter().all(|page| page.colour == page.number % COLOURS));
    filled.end();
    let held = Held::start(&setting::HEAP_HINT, "fill", "32");
    let huge = huge_bytes(held.child.id());
    assert!(huge >= 30 << 20, "{} MiB", huge >> 20);
    held.end();
}

#[test]
fn what_asks_for_nothing_has_no_thread() {
    let filled = Filled::start(&setting::BASE);
    let threads = std::fs::read_dir(format!("/proc/{}/task", filled.program.id()));
    let names = threads.expect("the process is ours").map(|task| {
        let path = task.expect("the process is ours").path().join("comm");
        std::fs::read_to_string(path).unwrap_or_default()
    });
    assert!(names.into_iter().all(|name| name != "quire-frames\n"));
    filled.end();
}
