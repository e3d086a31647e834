//! Folios smaller than a superpage: extents that have them because a superpage is
//! not to be had, and small mappings, for which the kernel is asked. What the
//! kernel did shows in the frames.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use quire_core::control::DONE;
use quire_core::level::Level;
use quire_core::stat::Totals;
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, VirtAddr};
use quire_linux::control;
use quire_linux::sysinfo::{self, read_stat_file};

use crate::harness::held::Held;
use crate::harness::setting::{self, Setting};
use crate::harness::{process, skip};
use crate::managed::settled;

/// What the programs fill.
const FILLED: Bytes = Bytes::mib(96);
const PATIENCE: Duration = Duration::from_secs(20);
const FOLIOS: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";

/// The same, as the programs take it.
fn mib() -> String {
    (FILLED.0 >> 20).to_string()
}

impl Held {
    /// What the process counted, once `enough` says so or after a while.
    fn totals(&self, enough: impl Fn(&Totals) -> bool) -> Totals {
        let start = Instant::now();
        loop {
            let totals = read_stat_file(&self.page())
                .expect("there are statistics")
                .totals;
            if enough(&totals) || start.elapsed() > PATIENCE {
                return totals;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Reads from each page of the mappings that `of` chooses by their line.
    fn touch(&self, of: impl Fn(&str) -> bool) {
        let pid = self.child.id();
        let memory = File::open(format!("/proc/{pid}/mem")).expect("the child is ours");
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the child is ours");
        for range in maps.lines().filter(|line| of(line)).map(addresses) {
            for at in (range.start.0..range.end.0).step_by(BASE_PAGE as usize) {
                let read = memory.read_exact_at(&mut [0], at);
                read.expect("the memory can be read");
            }
        }
    }

    /// Bytes of mappings that `of` chooses by their line in the list of mappings,
    /// and how many of them lie in aligned pieces of a level whose frames are
    /// neighbours and aligned, too.
    fn contiguous(&self, level: Level, of: impl Fn(&str) -> bool) -> (Bytes, Bytes) {
        let pid = self.child.id();
        let pagemap = File::open(format!("/proc/{pid}/pagemap")).expect("the child is ours");
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the child is ours");
        let (mut all, mut found) = (0, 0);
        for line in maps.lines().filter(|line| of(line)) {
            let range = addresses(line);
            all += range.len().0;
            let size = level.bytes().0;
            let first = range.start.0.next_multiple_of(size);
            let pieces = (first..range.end.0).step_by(size as usize);
            let fits = pieces.filter(|at| at + size <= range.end.0);
            found += size * fits.filter(|at| is_folio(&pagemap, *at, level)).count() as u64;
        }
        (Bytes(all), Bytes(found))
    }
}

fn addresses(line: &str) -> AddrRange {
    let (start, rest) = line.split_once('-').expect("mappings have ranges");
    let end = rest.split(' ').next().unwrap_or_default();
    let number = |text: &str| VirtAddr(u64::from_str_radix(text, 16).expect("a number"));
    AddrRange {
        start: number(start),
        end: number(end),
    }
}

/// Whether the pages from an address on lie in neighbouring, aligned frames.
fn is_folio(pagemap: &File, at: u64, level: Level) -> bool {
    const PRESENT: u64 = 1 << 63;
    const FRAME: u64 = (1 << 55) - 1;
    let pages = level.pages().0;
    let mut bytes = vec![0; pages as usize * 8];
    let read = pagemap.read_exact_at(&mut bytes, at / BASE_PAGE * 8);
    read.expect("the page map can be read");
    let entries = bytes.chunks_exact(8).map(|entry| {
        let entry: [u8; 8] = entry.try_into().expect("eight bytes");
        u64::from_ne_bytes(entry)
    });
    let entries: Vec<u64> = entries.collect();
    let first = entries[0] & FRAME;
    let follows = |(n, entry): (u64, &u64)| entry & PRESENT != 0 && entry & FRAME == first + n;
    first.is_multiple_of(pages) && (0..).zip(&entries).all(follows)
}

fn is_object(line: &str) -> bool {
    line.contains(" rw-s ") && line.contains("(deleted)")
}

fn level(kib: u64) -> Level {
    Level::of(Bytes(kib << 10)).expect("a power of two")
}

/// Why the frames of small folios cannot be looked at.
fn missing() -> Option<String> {
    if !process::is_root() {
        return Some("only root sees frames".to_owned());
    }
    let free = sysinfo::buddyinfo().unwrap_or_default();
    (Level::plentiful(&free) < Some(level(64)))
        .then(|| "free memory lies in pieces below 64 KiB".to_owned())
}

#[test]
fn extents_of_small_folios_are_filled_by_folios() {
    if let Some(reason) = missing() {
        return skip(&reason);
    }
    let held = Held::start(&setting::RESERVE_SMALL, "fill", &mib());
    let (all, folios) = held.contiguous(level(64), is_object);
    // In two of them the kernel finds a base page that keeps the folio small.
    assert!(all >= FILLED, "{all} are managed");
    assert!(folios.0 * 5 >= all.0 * 2, "{folios} of {all} are folios");
    let totals = held.totals(|t| t.populated_bytes >= FILLED.0);
    let extents = FILLED.0 / Level::SUPERPAGE.bytes().0;
    assert!(totals.small_reservations >= extents, "{totals:?}");
    assert_eq!((totals.superpages, totals.promotions), (0, 0), "{totals:?}");
    held.end();
}

#[test]
fn small_folios_grow_into_superpages() {
    if let Some(reason) = missing() {
        return skip(&reason);
    }
    let held = Held::start(&setting::RESERVE_SMALL, "fill", &mib());
    let pid = held.child.id();
    assert_eq!(settled(pid, 0), 0, "no superpage yet");
    let asked = control::ask(&held.control(), "largest=2M", PATIENCE, || true);
    assert_eq!(asked.expect("the process answers"), DONE);
    let grown = |t: &Totals| t.superpages * Level::SUPERPAGE.bytes().0 >= FILLED.0;
    let mut totals = held.totals(grown);
    // The kernel takes pages out of the page table before it finds that it cannot copy
    // them now, as on a busy machine; then they are not full until they are used again.
    for _ in 0..6 {
        if !grown(&totals) {
            held.touch(is_object);
            totals = held.totals(grown);
        }
    }
    assert_eq!(settled(pid, FILLED.0), FILLED.0, "{totals:?}");
    assert_eq!(totals.small_promotions, totals.promotions, "{totals:?}");
    held.end();
}

/// Lets the kernel give folios of 64 KiB to who asks; dropping restores what was.
struct Asked(String);

impl Asked {
    fn new() -> Option<Asked> {
        let text = fs::read_to_string(FOLIOS).ok()?;
        let before = text.split_once('[')?.1.split_once(']')?.0.to_owned();
        fs::write(FOLIOS, "madvise").ok()?;
        Some(Asked(before))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = fs::write(FOLIOS, &self.0);
    }
}

#[test]
fn small_mappings_have_small_folios() {
    if let Some(reason) = missing() {
        return skip(&reason);
    }
    let Some(_asked) = Asked::new() else {
        return skip("this kernel has no folios of 64 KiB for private memory");
    };
    let is_piece = |line: &str| line.contains(" rw-p ") && line.contains(" 00:00 0 ");
    let share = |setting: &Setting| {
        let held = Held::start(setting, "smaller", &mib());
        let (all, folios) = held.contiguous(level(64), is_piece);
        held.end();
        folios.0 as f64 / all.0 as f64
    };
    let (with, without) = (share(&setting::RESERVE), share(&setting::BASE));
    // At most five eighths of the pieces have room for folios, and now and then the
    // kernel has none.
    assert!(
        with > 0.4 && without < with / 2.0,
        "{with} with, {without} without"
    );
}
