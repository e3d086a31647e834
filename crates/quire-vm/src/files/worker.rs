//! The thread that makes superpages of what is full: of shared memory, files and
//! stacks, and of other memory that was filled on base pages (`grow`).
//!
//! It goes through the kernel's list of mappings in rounds, and rests between
//! them, the longer the less there was to do.

mod grow;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use quire_core::config::Policy;
use quire_core::policy::Backoff;
use quire_core::stat::Counter;
use quire_core::units::{AddrRange, PAGES_PER_SUPERPAGE, PageCount, Slot, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::own_threads::Own;
use quire_linux::pagemap;
use quire_linux::raw::{Errno, Result};
use quire_linux::sysinfo::maps::Reader;
use quire_linux::{futex, lone_thread, sysinfo, thread};

use self::grow::Grower;
use super::view::View;
use super::{Noted, TABLE, reread, stacks};
use crate::extent::now_ms;
use crate::frames;
use crate::grow::advise;
use crate::hands::{self, Follower};
use crate::manager::Manager;
use crate::text::{self, Late};

/// The shortest and the longest rest between two rounds. While there is nothing
/// to do, it doubles.
const REST: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));
/// A round in which nothing was done may take this part of the time at most.
const IDLE_SHARE: u32 = 50;
/// A round ends after this time, so that what it saw is not too old.
const ROUND: Duration = Duration::from_millis(200);
/// Reading files anew may take this part of the time at most, because the pages
/// are there already and the disk may be slow.
const READ_SHARE: u64 = 20;
/// How long an extent of a file must have been fully mapped before it is read
/// anew: what is read once and left needs no superpage.
const SETTLED_MS: u64 = 500;
/// After so many failures in succession, files of a device are left alone. A
/// single one says little: the program may have touched the extent at the wrong
/// moment, or no block was free.
const FRUITLESS: u32 = 16;
/// Superpages are made of what is full, but while they are made, their pages
/// exist twice. So one part in this many of the memory must be available.
const SPARE: u64 = 20;
/// Extents whose failures are remembered.
const MAX_FAILURES: usize = 1 << 16;
/// Mappings that are looked at in a round.
const MAX_CANDIDATES: usize = 1024;
/// Extents of files that are watched at a time, until it is their turn.
const MAX_SETTLED: usize = 64;

/// Counts what there may be to do, for the thread to wait for.
static NEWS: AtomicU32 = AtomicU32::new(0);

/// Something was mapped or filled that may be promoted soon.
pub(crate) fn announce() {
    NEWS.fetch_add(1, Ordering::Release);
    futex::wake_all(&NEWS);
}

/// Starts the thread. Without it, these mappings just stay on base pages.
pub(crate) fn start(manager: &'static Manager) {
    let argument = std::ptr::from_ref(manager) as usize;
    let _ = hands::spawn(|threads| &threads.files, main, argument);
}

extern "C" fn main(manager: usize) {
    // SAFETY: `start` gave the address of what lives as long as the process.
    let manager: &'static Manager = unsafe { &*(manager as *const Manager) };
    let _own = Own::now();
    lone_thread::set_name(c"quire-files");
    if let Ok(mut worker) = Worker::new(manager) {
        worker.run();
    }
}

struct Worker {
    manager: &'static Manager,
    pagemap: OwnedFd,
    reader: Reader,
    /// What can be collapsed, in the round that is under way.
    candidates: Vec<(AddrRange, Kind)>,
    /// With more mappings than this, nothing is done.
    mappings: u64,
    /// Extents that could not become superpages.
    failures: BTreeMap<Slot, Backoff>,
    /// Extents of files that are fully mapped, and since when.
    settled: BTreeMap<Slot, u64>,
    /// How often in succession reading anew gave no huge folio, by device.
    fruitless: BTreeMap<u64, u32>,
    next_read_ns: u64,
    grower: Grower,
    /// Libraries that are loaded late, where their text is to be on superpages.
    late: Option<Late>,
}

impl Worker {
    fn new(manager: &'static Manager) -> Result<Worker> {
        let text = manager.state.lock().config.text;
        Ok(Worker {
            manager,
            pagemap: pagemap::open()?,
            reader: Reader::default(),
            candidates: Vec::with_capacity(MAX_CANDIDATES),
            mappings: sysinfo::memory::max_map_count() / 2,
            failures: BTreeMap::new(),
            settled: BTreeMap::new(),
            fruitless: BTreeMap::new(),
            next_read_ns: 0,
            grower: Grower::new(),
            late: text.then(Late::new).transpose()?,
        })
    }

    fn run(&mut self) {
        let mut rest = REST.0;
        let mut follower = Follower::default();
        loop {
            follower.follow();
            let news = NEWS.load(Ordering::Acquire);
            let began = thread::cpu_time_ns();
            let made = self.round();
            let took = Duration::from_nanos(thread::cpu_time_ns() - began);
            self.manager
                .stats()
                .set(Counter::TextSuperpages, text::superpages());
            let (part, longer) = match made {
                0 => (IDLE_SHARE, rest * 2),
                _ => (1, REST.0),
            };
            rest = longer.min(REST.1);
            std::thread::sleep((took * part).min(REST.1));
            futex::wait_for(&NEWS, news, rest);
            if NEWS.load(Ordering::Acquire) != news {
                rest = REST.0;
            }
        }
    }

    /// Goes through all mappings once. Says how many superpages were made.
    fn round(&mut self) -> u64 {
        if self.manager.policy() == Policy::Base || !self.list() || memory_is_short() {
            return 0;
        }
        let end = thread::now_ns() + ROUND.as_nanos() as u64;
        let mut made = 0;
        for at in 0..self.candidates.len() {
            let (range, kind) = self.candidates[at];
            if thread::now_ns() > end {
                break;
            }
            made += self.collapse_all(range, kind, end);
        }
        if let Some(late) = &mut self.late {
            late.promote(&mut self.reader);
        }
        made += self.read_anew();
        self.manager.stats().add(Counter::FilePromotions, made);
        made + self.grow()
    }

    /// Lists what can be collapsed. Says whether the process has mappings to
    /// spare; where it has not, superpages, which split mappings, are not made,
    /// and there may be no memory to work with.
    fn list(&mut self) -> bool {
        let (mut count, mut before) = (0, None);
        let candidates = &mut self.candidates;
        candidates.clear();
        let most = self.mappings;
        let stacks = !frames::have_stacks();
        let read = self.reader.own(|mapping, name| {
            count += 1;
            let shared = mapping.shared && mapping.is_in_memory() && mapping.is_congruent();
            let stack = stacks && stacks::is_stack(before.as_ref(), &mapping, name);
            before = Some(mapping);
            let large = !mapping.range.whole_slots().is_empty();
            if large && (shared || stack) && candidates.len() < MAX_CANDIDATES {
                let kind = if shared { Kind::Shared } else { Kind::Stack };
                candidates.push((mapping.range, kind));
            }
            if count > most {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        read.is_ok() && count <= most
    }

    /// Makes superpages of the full extents of a mapping.
    fn collapse_all(&mut self, range: AddrRange, kind: Kind, end: u64) -> u64 {
        if TABLE.lock().refuses(range) || self.manager.manages(range) {
            return 0;
        }
        let mut made = 0;
        for slot in range.whole_slots().map(Slot) {
            if thread::now_ns() > end {
                break;
            }
            if self.may_try(slot) && self.is_full(slot, kind) {
                made += u64::from(match kind {
                    Kind::Filled => self.grow_left_extent(slot),
                    Kind::Shared | Kind::Stack => self.collapse(slot, kind),
                });
            }
        }
        made
    }

    fn collapse(&mut self, slot: Slot, kind: Kind) -> bool {
        let outcome = collapse(slot, kind);
        self.note_outcome(slot, outcome.is_ok());
        outcome.is_ok()
    }

    /// Whether all pages of an extent exist, so that a superpage takes no more
    /// memory, and none maps it yet.
    fn is_full(&self, slot: Slot, kind: Kind) -> bool {
        let Ok(view) = View::of(self.pagemap.as_fd(), slot) else {
            return false;
        };
        let all = PageCount(PAGES_PER_SUPERPAGE as u64);
        match kind {
            Kind::Shared => !view.is_superpage() && memory::cached_pages(slot) == Ok(all),
            Kind::Stack | Kind::Filled => view.is_full_of_base_pages(),
        }
    }

    fn may_try(&self, slot: Slot) -> bool {
        self.failures
            .get(&slot)
            .is_none_or(|failure| failure.may_try(now_ms()))
    }

    fn note_outcome(&mut self, slot: Slot, success: bool) {
        if success {
            self.failures.remove(&slot);
            return;
        }
        if self.failures.len() >= MAX_FAILURES {
            self.failures.clear();
        }
        self.failures.entry(slot).or_default().failed(now_ms());
    }

    /// Brings in one extent of a file anew, if one is due.
    fn read_anew(&mut self) -> u64 {
        if thread::now_ns() < self.next_read_ns {
            return 0;
        }
        let Some((slot, device)) = self.next_to_read() else {
            return 0;
        };
        let began = thread::now_ns();
        let outcome = self.read_extent(slot);
        let ended = thread::now_ns();
        self.next_read_ns = ended + READ_SHARE * (ended - began);
        let success = outcome == Ok(true);
        self.note_outcome(slot, success);
        let failures = self.fruitless.entry(device).or_default();
        *failures = if success { 0 } else { *failures + 1 };
        u64::from(success)
    }

    /// An extent of a file that the program has mapped fully, for some time.
    fn next_to_read(&mut self) -> Option<(Slot, u64)> {
        let now = now_ms();
        let mut settled = BTreeMap::new();
        let mut due = None;
        let mut from = VirtAddr(0);
        while settled.len() < MAX_SETTLED
            && let Some((range, noted)) = self.next_noted(from)
        {
            from = range.end;
            let Some(device) = noted.device else { continue };
            if self.fruitless.get(&device) >= Some(&FRUITLESS) {
                continue;
            }
            for slot in range.whole_slots().map(Slot) {
                if settled.len() >= MAX_SETTLED || !self.may_try(slot) || !self.is_base(slot) {
                    continue;
                }
                let since = self.settled.get(&slot).copied().unwrap_or(now);
                settled.insert(slot, since);
                if due.is_none() && since + SETTLED_MS <= now {
                    due = Some((slot, device));
                }
            }
        }
        self.settled = settled;
        due
    }

    fn next_noted(&self, from: VirtAddr) -> Option<(AddrRange, Noted)> {
        TABLE.lock().noted.from(from).next()
    }

    /// Whether an extent is fully mapped by pages of its file, none of them by a
    /// superpage.
    fn is_base(&self, slot: Slot) -> bool {
        View::of(self.pagemap.as_fd(), slot)
            .is_ok_and(|view| view.is_full_of_base_pages() && view.own == 0)
    }

    /// Drops the pages of an extent and reads them again. Says whether that gave
    /// a superpage.
    fn read_extent(&mut self, slot: Slot) -> Result<bool> {
        {
            let table = TABLE.lock();
            let mut noted = table.noted.overlaps(slot.range());
            let noted = noted.any(|(range, _)| range.contains(slot.range()));
            if !noted || table.refuses(slot.range()) || !self.is_congruent_file(slot) {
                return Err(Errno(libc::ENOENT));
            }
            if View::of(self.pagemap.as_fd(), slot)?.own > 0 {
                return Err(Errno(libc::EBUSY));
            }
            // The program may touch the extent at any moment, and shall bring in
            // a huge folio then.
            reread::prefer_huge(slot)?;
            reread::drop_cached(slot)?;
            // SAFETY: the mapping is a file's and has no page of the process's
            // own; the program's calls that change it wait for the lock.
            unsafe { reread::forget_mapped(slot)? };
        }
        reread::bring_in(self.pagemap.as_fd(), slot)
    }

    /// Whether the kernel, too, knows a file at the extent, which can be mapped
    /// by superpages there.
    fn is_congruent_file(&mut self, slot: Slot) -> bool {
        let mut found = false;
        let read = self.reader.own(|m, _| {
            let file = m.file.is_some() && m.is_read_only() && m.is_congruent();
            found |= file && m.range.contains(slot.range());
            if m.range.end > slot.start() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        read.is_ok() && found
    }
}

/// What is collapsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Shared,
    Stack,
    /// Other memory that was filled on base pages.
    Filled,
}

/// Makes a superpage of a full extent. The kernel marks stacks as unfit for
/// superpages, so that they do not grow by whole ones. The mark is put back: what is
/// freed and touched again is touched page by page.
fn collapse(slot: Slot, kind: Kind) -> Result<()> {
    let collapsed = advise(slot, Advice::Collapse);
    if collapsed.is_ok() || kind != Kind::Stack {
        return collapsed;
    }
    advise(slot, Advice::HugePage)?;
    let collapsed = advise(slot, Advice::Collapse);
    advise(slot, Advice::NoHugePage)?;
    collapsed
}

fn memory_is_short() -> bool {
    sysinfo::meminfo().is_ok_and(|memory| memory.available.0 < memory.total.0 / SPARE)
}
