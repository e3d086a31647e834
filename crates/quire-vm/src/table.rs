//! What is mapped where: the intervals of managed address space, and the
//! extents (superpage-sized slots) that lie wholly inside them.
//!
//! Intervals carry what the program can change at the grain of a base page:
//! protection, fork behaviour, and where in the object the memory lives.
//! Extents carry what Quire decides at the grain of a superpage. Invariants:
//!
//! - intervals do not overlap, are never empty, and neighbours that could be
//!   one interval are one;
//! - a slot has an extent exactly if intervals of the object cover all of it,
//!   with one run of object offsets that is congruent to the addresses.
//!
//! The table makes no system calls: it is the caller who keeps the kernel's
//! view in step with it.

use std::collections::BTreeMap;
use std::ops::Range;

use quire_core::config::Policy;
use quire_core::kin::Start;
use quire_core::policy::{Backoff, RegionHistory};
use quire_core::pool::PoolPage;
use quire_core::popmap::Popmap;
use quire_core::slots::SlotMap;
use quire_core::stat::RegionKind;
use quire_core::units::{AddrRange, Bytes, ObjectOffset, SUPERPAGE, Slot, VirtAddr};

/// The number of a region.
pub type RegionId = u32;

/// How the kernel maps an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// The object, shared: the normal case.
    Shared,
    /// The object, private: since a fork, changed pages are copies.
    Private,
    /// Private anonymous memory: since a fork, where the object held nothing.
    Anonymous,
    /// Private anonymous memory: while reservations fail, and where the program
    /// has touched it then.
    Plain,
    /// The object of the parent process, private: in a forked child.
    Inherited,
    /// Private anonymous memory that the program has a use for which only the kernel knows. It
    /// has no extents and is never managed again.
    Left,
    /// Pages of a hugetlb pool. The interval consists of whole ones.
    Pool(PoolPage),
}

/// A run of managed addresses with one set of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The addresses.
    pub range: AddrRange,
    /// Where the first address lives in the object.
    pub offset: ObjectOffset,
    /// The protection, as `mmap` takes it.
    pub prot: i32,
    /// The region that it belongs to.
    pub region: RegionId,
    /// How the kernel maps it.
    pub backing: Backing,
    /// The program said `MADV_DONTFORK`.
    pub dont_fork: bool,
    /// The program said `MADV_WIPEONFORK`.
    pub wipe_on_fork: bool,
    /// The program said `MADV_DONTDUMP`.
    pub dont_dump: bool,
    /// The program locked it.
    pub locked: bool,
    /// The program sealed it (`mseal`).
    pub sealed: bool,
}

impl Interval {
    /// New memory that the program may read and write, mapped from the object.
    #[must_use]
    pub fn fresh(range: AddrRange, offset: ObjectOffset, region: RegionId) -> Interval {
        Interval {
            range,
            offset,
            prot: libc::PROT_READ | libc::PROT_WRITE,
            region,
            backing: Backing::Shared,
            dont_fork: false,
            wipe_on_fork: false,
            dont_dump: false,
            locked: false,
            sealed: false,
        }
    }

    /// The object offset of an address of the interval.
    #[must_use]
    pub fn offset_of(&self, at: VirtAddr) -> ObjectOffset {
        self.offset + (at - self.range.start)
    }

    /// Whether the object holds a place for it.
    #[must_use]
    pub fn is_of_object(&self) -> bool {
        !matches!(
            self.backing,
            Backing::Pool(_) | Backing::Inherited | Backing::Left
        )
    }

    /// Whether the kernel would have one mapping of this and of `next`, were it not managed.
    #[must_use]
    pub fn is_like(&self, next: &Interval) -> bool {
        let told = |i: &Interval| (i.prot, i.dont_fork, i.wipe_on_fork, i.dont_dump, i.locked);
        told(self) == told(next)
    }

    /// The part that lies in `range`, as an interval of its own.
    #[must_use]
    pub fn clip(&self, range: AddrRange) -> Interval {
        let part = self.range.intersect(range);
        Interval {
            range: part,
            offset: self.offset_of(part.start),
            ..*self
        }
    }

    fn continues(&self, next: &Interval) -> bool {
        self.range.end == next.range.start
            && *next
                == Interval {
                    range: next.range,
                    offset: self.offset_of(next.range.start),
                    ..*self
                }
    }
}

/// What Quire has done with an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentState {
    /// The object holds nothing; a first touch is reported.
    Empty,
    /// A folio is reserved; touched pages are mapped one by one.
    Reserved,
    /// It has folios smaller than a superpage; a touch maps one of them whole.
    Small,
    /// The first touch maps a whole superpage, or has done so.
    Whole,
    /// Became a superpage when it was fully populated.
    Promoted,
    /// Left to the kernel's base pages.
    Base,
}

impl ExtentState {
    /// Neighbours of one kind can be one mapping of the kernel's.
    fn kind_of_mapping(self) -> u8 {
        match self {
            ExtentState::Empty | ExtentState::Reserved => 0,
            ExtentState::Small | ExtentState::Whole | ExtentState::Promoted => 1,
            ExtentState::Base => 2,
        }
    }
}

/// A superpage-sized slot of the object that is mapped as one run.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// What has been done with it.
    pub state: ExtentState,
    /// The region that it belongs to.
    pub region: RegionId,
    /// The pager works on it without the lock; its state is about to change.
    pub busy: bool,
    /// Population at the last look.
    pub popmap: Popmap,
    /// When the population last changed, milliseconds.
    pub changed_ms: u64,
    /// One huge folio is known to back it, or small ones do. While they are not
    /// fully populated, the extent is in the queue of reservations.
    pub folio: bool,
    /// The region's history has been told what became of it.
    pub told: bool,
    /// It is reserved although a superpage was expected, to see what becomes of it.
    pub probe: bool,
    /// It is to be looked at when reservations may be tried again: plain memory
    /// that holds nothing then becomes part of the object.
    pub resting: bool,
    /// It was searched for zeros, and holds few.
    pub dense: bool,
    /// It is plain memory of which a superpage was made.
    pub grown: bool,
    /// It was mapped page by page since it was mapped anew. The kernel keeps the page
    /// table, and would go on to map page by page what it could map whole.
    pub paged: bool,
}

impl Extent {
    /// A new extent in a given state.
    #[must_use]
    pub fn new(state: ExtentState, region: RegionId) -> Extent {
        Extent {
            state,
            region,
            busy: false,
            popmap: Popmap::new(),
            changed_ms: 0,
            folio: false,
            told: false,
            probe: false,
            resting: false,
            dense: false,
            grown: false,
            paged: false,
        }
    }

    /// Whether it holds memory that its population does not fill yet, and that is
    /// given back when memory is short.
    #[must_use]
    pub fn is_reservation(&self) -> bool {
        matches!(self.state, ExtentState::Reserved | ExtentState::Small)
    }

    /// Whether it has a page table, as far as is known.
    #[must_use]
    pub fn has_page_table(&self) -> bool {
        use ExtentState::{Base, Reserved, Small};
        self.paged || matches!(self.state, Reserved | Small | Base)
    }

    /// Whether it is, or is known to be, mapped by a superpage.
    #[must_use]
    pub fn is_superpage(&self) -> bool {
        match self.state {
            ExtentState::Promoted => true,
            ExtentState::Whole => self.popmap.is_full(),
            _ => false,
        }
    }
}

/// A range of the program with one policy and one history (paper 000: a local
/// lightweight memory object).
#[derive(Debug)]
pub struct Region {
    /// What it is.
    pub kind: RegionKind,
    /// Its policy.
    pub policy: Policy,
    /// What its extents have taught.
    pub history: RegionHistory,
    /// Holds reservations back after failures.
    pub backoff: Backoff,
    /// How it began.
    pub start: Start,
    /// The size that it began with.
    pub size: Bytes,
    /// When it began, milliseconds.
    pub born_ms: u64,
    /// What it did has been noted for its kin.
    pub noted: bool,
    /// Superpages that it has given up since one was last reserved anew.
    pub given_up: u32,
    /// What it gave up and was reserved anew became dense again, as far as is
    /// known.
    pub dense_again: bool,
    /// Extents were left to base pages in a pause.
    pub left: bool,
    /// Bytes of address space that are its own; the table keeps count.
    pub mapped: Bytes,
    /// Its resting extents lie in this range.
    pub resting: Option<Range<Slot>>,
    /// Promotions so far.
    pub promotions: u64,
    /// Demotions so far.
    pub demotions: u64,
    /// Preemptions so far.
    pub preemptions: u64,
    /// Failed reservations so far.
    pub failed: u64,
}

impl Region {
    /// A region without history.
    #[must_use]
    pub fn new(kind: RegionKind, policy: Policy) -> Region {
        Region {
            kind,
            policy,
            history: RegionHistory::new(policy),
            backoff: Backoff::default(),
            start: Start::Reserve,
            size: Bytes::ZERO,
            born_ms: 0,
            noted: false,
            given_up: 0,
            dense_again: true,
            left: false,
            mapped: Bytes::ZERO,
            resting: None,
            promotions: 0,
            demotions: 0,
            preemptions: 0,
            failed: 0,
        }
    }

    /// Goes on under another policy, without history. Memory of the hugetlb pool
    /// stays what it is.
    pub fn follow(&mut self, policy: Policy) {
        if self.policy != Policy::Static {
            self.policy = policy;
            self.history = RegionHistory::new(policy);
            self.backoff = Backoff::default();
        }
    }
}

/// The table.
#[derive(Debug, Default)]
pub struct Table {
    intervals: BTreeMap<VirtAddr, Interval>,
    /// The extents by slot.
    pub extents: SlotMap<Extent>,
    /// The regions by number.
    pub regions: BTreeMap<RegionId, Region>,
    next_region: RegionId,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub const fn new() -> Table {
        Table {
            intervals: BTreeMap::new(),
            extents: SlotMap::new(),
            regions: BTreeMap::new(),
            next_region: 0,
        }
    }

    /// Adds a region and returns its number.
    pub fn add_region(&mut self, region: Region) -> RegionId {
        self.next_region += 1;
        self.regions.insert(self.next_region, region);
        self.next_region
    }

    /// Whether nothing is managed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.intervals.is_empty()
    }

    /// All intervals in order of address.
    pub fn intervals(&self) -> impl Iterator<Item = &Interval> {
        self.intervals.values()
    }

    /// The interval that holds an address.
    #[must_use]
    pub fn interval_at(&self, at: VirtAddr) -> Option<&Interval> {
        let (_, interval) = self.intervals.range(..=at).next_back()?;
        (at < interval.range.end).then_some(interval)
    }

    /// The parts of intervals that lie in `range`, in order of address.
    pub fn overlaps(&self, range: AddrRange) -> impl Iterator<Item = Interval> {
        let first = self
            .interval_at(range.start)
            .map_or(range.start, |i| i.range.start);
        self.intervals
            .range(first..range.end.max(first))
            .map(move |(_, i)| i.clip(range))
            .filter(|i| !i.range.is_empty())
    }

    /// All of `range` in order of address: what is managed, and the gaps.
    #[must_use]
    pub fn pieces(&self, range: AddrRange) -> Vec<(AddrRange, Option<Interval>)> {
        let mut pieces = Vec::new();
        let mut next = range.start;
        for part in self.overlaps(range) {
            let gap = AddrRange {
                start: next,
                end: part.range.start,
            };
            next = part.range.end;
            pieces.push((gap, None));
            pieces.push((part.range, Some(part)));
        }
        let rest = AddrRange {
            start: next,
            end: range.end,
        };
        pieces.push((rest, None));
        pieces.retain(|(piece, _)| !piece.is_empty());
        pieces
    }

    /// Whether any of `range` is managed.
    #[must_use]
    pub fn touches(&self, range: AddrRange) -> bool {
        self.overlaps(range).next().is_some()
    }

    /// Adds an interval where none is.
    pub fn insert(&mut self, interval: Interval) {
        let mut whole = interval;
        if let Some(region) = self.regions.get_mut(&interval.region) {
            region.mapped += interval.range.len();
        }
        if let Some((&key, before)) = self.intervals.range(..whole.range.start).next_back()
            && before.continues(&whole)
        {
            whole.offset = before.offset;
            whole.range.start = before.range.start;
            self.intervals.remove(&key);
        }
        if let Some(after) = self.intervals.get(&whole.range.end).copied()
            && whole.continues(&after)
        {
            whole.range.end = after.range.end;
            self.intervals.remove(&after.range.start);
        }
        self.intervals.insert(whole.range.start, whole);
    }

    /// Removes what lies in `range` and returns it, in order of address.
    pub fn remove(&mut self, range: AddrRange) -> Vec<Interval> {
        let parts: Vec<Interval> = self.overlaps(range).collect();
        for part in &parts {
            let Some(old) = self.interval_at(part.range.start).copied() else {
                continue;
            };
            self.intervals.remove(&old.range.start);
            if let Some(region) = self.regions.get_mut(&part.region) {
                region.mapped = region.mapped.saturating_sub(part.range.len());
            }
            let before = AddrRange {
                start: old.range.start,
                end: part.range.start,
            };
            let after = AddrRange {
                start: part.range.end,
                end: old.range.end,
            };
            for rest in [before, after] {
                if !rest.is_empty() {
                    let rest = old.clip(rest);
                    self.intervals.insert(rest.range.start, rest);
                }
            }
        }
        parts
    }

    /// Changes the attributes of what lies in `range`.
    pub fn update(&mut self, range: AddrRange, mut change: impl FnMut(&mut Interval)) {
        for mut part in self.remove(range) {
            change(&mut part);
            self.insert(part);
        }
    }

    /// The object offset of a slot that one run of the object covers wholly.
    #[must_use]
    pub fn slot_offset(&self, slot: Slot) -> Option<ObjectOffset> {
        let range = slot.range();
        let mut next = range.start;
        let mut first: Option<ObjectOffset> = None;
        for part in self.overlaps(range) {
            let foreign = !part.is_of_object();
            if part.range.start != next || foreign {
                return None;
            }
            let base = *first.get_or_insert(part.offset);
            if part.offset != base + (part.range.start - range.start) {
                return None;
            }
            next = part.range.end;
        }
        first.filter(|o| next == range.end && o.0.is_multiple_of(SUPERPAGE))
    }

    /// The slot that maps a superpage-aligned offset of the object, if any.
    #[must_use]
    pub fn slot_of(&self, offset: ObjectOffset) -> Option<Slot> {
        self.intervals
            .values()
            .filter(|i| i.is_of_object())
            .find(|i| i.offset <= offset && offset < i.offset + i.range.len())
            .map(|i| (i.range.start + Bytes(offset.0 - i.offset.0)).slot())
            .filter(|slot| self.slot_offset(*slot) == Some(offset))
    }

    /// Whether any interval maps a part of a range of the object.
    #[must_use]
    pub fn uses_object(&self, offset: ObjectOffset, len: Bytes) -> bool {
        self.intervals
            .values()
            .filter(|i| i.is_of_object())
            .any(|i| i.offset < offset + len && offset < i.offset + i.range.len())
    }

    /// Whether a slot is mapped in one way throughout: shared, with one
    /// protection.
    #[must_use]
    pub fn slot_is_uniform(&self, slot: Slot) -> bool {
        let mut parts = self.overlaps(slot.range());
        let (first, second) = (parts.next(), parts.next());
        first.is_some_and(|p| p.backing == Backing::Shared && p.range == slot.range())
            && second.is_none()
    }

    /// Whether all parts of a slot are the object, shared.
    #[must_use]
    pub fn slot_is_shared(&self, slot: Slot) -> bool {
        self.overlaps(slot.range())
            .all(|p| p.backing == Backing::Shared)
    }

    /// Adds extents for the slots of `range` that lie wholly in the table and
    /// have none; returns how many.
    pub fn add_extents(&mut self, range: AddrRange, state: ExtentState, region: RegionId) -> u64 {
        let mut added = 0;
        for slot in range.slots().map(Slot) {
            if !self.extents.contains(slot) && self.slot_offset(slot).is_some() {
                self.extents.insert(slot, Extent::new(state, region));
                added += 1;
            }
        }
        added
    }

    /// Notes that an extent rests, so that the end of the rest finds it.
    pub fn note_resting(&mut self, slot: Slot) {
        let Some(extent) = self.extents.get_mut(slot) else {
            return;
        };
        extent.resting = true;
        extent.grown = false;
        if let Some(region) = self.regions.get_mut(&extent.region) {
            let known = region.resting.take().unwrap_or(slot..slot.next());
            region.resting = Some(known.start.min(slot)..known.end.max(slot.next()));
        }
    }

    /// Drops regions that own no interval any more.
    pub fn drop_dead_regions(&mut self, candidates: impl Iterator<Item = RegionId>) {
        for id in candidates {
            if self
                .regions
                .get(&id)
                .is_some_and(|r| r.mapped == Bytes::ZERO)
            {
                self.regions.remove(&id);
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.intervals.clear();
        self.extents.clear();
        self.regions.clear();
    }

    /// How many mappings the kernel keeps for managed memory, about: it splits
    /// intervals where neighbouring extents are advised or watched differently.
    #[must_use]
    pub fn mappings(&self) -> u64 {
        let mut count = self.intervals.len() as u64;
        let mut before: Option<(Slot, u8)> = None;
        for (slot, extent) in self.extents.iter() {
            let kind = extent.state.kind_of_mapping();
            let splits = before.is_some_and(|(last, other)| last.next() == slot && other != kind);
            count += u64::from(splits);
            before = Some((slot, kind));
        }
        count
    }

    /// Bytes of managed address space.
    #[must_use]
    pub fn mapped(&self) -> Bytes {
        let managed = self.intervals().filter(|i| i.backing != Backing::Left);
        Bytes(managed.map(|i| i.range.len().0).sum())
    }
}
