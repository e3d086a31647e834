//! What is known of one region: neighbouring mappings of one kind, taken together, because the kernel keeps them
//! apart where only advice differs.

use std::ops::{AddAssign, Range};
use std::time::Duration;

use quire_core::advise::{Predictor, Seen};
use quire_core::attach::{Extent, Tally};
use quire_core::config::Policy;
use quire_core::ranges::RangeMap;
use quire_core::stat::{
    Cell, CellState, Counter, MAX_CELLS, Picture, RegionKind, RegionStat, StatPage,
};
use quire_core::units::{
    AddrRange, Bytes, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE, Slot, VirtAddr,
};
use quire_linux::raw::Result;

use crate::known::Known;
use crate::process::{Area, Process, Refusal};

const FULL: PageCount = PageCount(PAGES_PER_SUPERPAGE as u64);
/// How long a region is left alone in which the kernel refused superpages: at first, and at most.
const REFUSED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));
/// So many extents are looked at in one go: what is noted meanwhile takes memory.
const AT_A_TIME: usize = 512;
/// So many full extents one after the other are passed over by most looks.
const LONG_RUN: usize = 4;
/// How long a region is left alone whose pages a child shares.
const SHARED: Duration = Duration::from_millis(500);

/// From how many pages on an extent of private memory is to be a superpage, where nothing else is asked for.
pub const ENOUGH: PageCount = FULL;

/// What changed in a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// By how many pages populations differ.
    pub pages: u64,
    /// Superpages that have become base pages.
    pub demoted: u64,
    /// Extents on base pages that have become as full as the region asks for.
    pub filled: u64,
}

impl Change {
    fn note(&mut self, before: Option<Known>, now: Known) {
        let had = before.map_or(0, |k| k.populated().0);
        self.pages += had.abs_diff(now.populated().0);
        self.demoted += u64::from(before.is_some_and(|k| k.is_huge()) && !now.is_huge());
        let was_full = before.is_some_and(|k| k.full_since().is_some());
        self.filled += u64::from(!was_full && now.full_since().is_some() && !now.is_huge());
    }
}

impl AddAssign for Change {
    fn add_assign(&mut self, other: Change) {
        self.pages += other.pages;
        self.demoted += other.demoted;
        self.filled += other.filled;
    }
}

/// A region.
#[derive(Clone, Debug)]
pub struct Region {
    /// Its addresses.
    pub range: AddrRange,
    /// What it is.
    pub kind: RegionKind,
    /// Its mappings, in order of address.
    pub pieces: Vec<AddrRange>,
    /// Its extents that hold something, in order of address.
    pub known: Vec<Known>,
    /// Extents made superpages by a copy, since the region is known.
    pub made: u64,
    /// Superpages that have become base pages.
    pub demoted: u64,
    /// When superpages may be made here again, after a refusal.
    pub rest_until: Duration,
    /// From how many pages on an extent is to be a superpage.
    pub enough: PageCount,
    refused_for: Duration,
    predictor: Predictor,
    /// What was advised, and as far as is known still is.
    advised: RangeMap<()>,
}

impl Region {
    /// A region of which nothing is known but its first mapping.
    pub fn new(area: Area) -> Region {
        Region {
            range: area.range,
            kind: area.kind,
            pieces: vec![area.range],
            known: Vec::new(),
            made: 0,
            demoted: 0,
            rest_until: Duration::ZERO,
            enough: ENOUGH,
            refused_for: Duration::ZERO,
            predictor: Predictor::default(),
            advised: RangeMap::new(),
        }
    }

    /// The regions of mappings in order of address: neighbours of one kind are one.
    pub fn of_areas(areas: &[Area]) -> Vec<Region> {
        let mut regions: Vec<Region> = Vec::new();
        for area in areas {
            match regions.last_mut() {
                Some(last) if last.kind == area.kind && last.range.end == area.range.start => {
                    last.range.end = area.range.end;
                    last.pieces.push(area.range);
                }
                _ => regions.push(Region::new(*area)),
            }
        }
        regions
    }

    /// Takes over what is known of a region that overlaps this one.
    pub fn inherit(&mut self, old: Region) {
        if old.kind != self.kind {
            return;
        }
        self.made += old.made;
        self.demoted += old.demoted;
        self.rest_until = self.rest_until.max(old.rest_until);
        self.refused_for = self.refused_for.max(old.refused_for);
        if self.known.is_empty() {
            self.predictor = old.predictor;
            self.known = old.known;
        } else {
            self.known.extend(old.known);
        }
        for (range, ()) in old.advised.iter() {
            self.advised.insert(range.intersect(self.range), ());
        }
    }

    /// The regions of mappings as they are now, with what is known of earlier ones, both in order of address.
    pub fn succeed(old: Vec<Region>, areas: &[Area]) -> Vec<Region> {
        let mut regions = Region::of_areas(areas);
        let mut at = 0;
        for mut old in old {
            while regions
                .get(at)
                .is_some_and(|r| r.range.end <= old.range.start)
            {
                at += 1;
            }
            // Where it was cut, each part keeps what lies there.
            while let Some(next) = regions.get(at + 1).map(|r| r.range.start)
                && next < old.range.end
            {
                let rest = old.split_off(next);
                regions[at].inherit(old);
                (old, at) = (rest, at + 1);
            }
            if let Some(region) = regions.get_mut(at)
                && !region.range.intersect(old.range).is_empty()
            {
                region.inherit(old);
            }
        }
        regions
    }

    /// Leaves this region with what lies below an address inside of it, and returns the rest. What has happened to
    /// the whole counts for the lower part.
    fn split_off(&mut self, at: VirtAddr) -> Region {
        let first = self.known.partition_point(|k| k.slot().start() < at);
        let rest = Region {
            known: self.known.split_off(first),
            range: AddrRange {
                start: at,
                ..self.range
            },
            made: 0,
            demoted: 0,
            ..self.clone()
        };
        self.range.end = at;
        rest
    }

    /// Whether its memory is private.
    #[must_use]
    pub const fn is_private(&self) -> bool {
        Area {
            range: self.range,
            kind: self.kind,
        }
        .is_private()
    }

    /// Looks at its extents. Those that were full are passed over in long runs, unless `all` are looked at: most of
    /// the time that a look takes goes into reading their page tables.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn look_at(
        &mut self,
        process: &mut impl Process,
        now: Duration,
        all: bool,
    ) -> Result<Change> {
        let parts = if all {
            vec![self.slots()]
        } else {
            self.unsettled()
        };
        self.look_in(parts, process, now)
    }

    /// Its extents without long runs of those that were full at the last look.
    fn unsettled(&self) -> Vec<Range<Slot>> {
        let whole = self.slots();
        let (mut parts, mut start) = (Vec::new(), whole.start);
        for run in self
            .known
            .chunk_by(|a, b| a.is_full() && b.is_full() && a.slot().0 + 1 == b.slot().0)
        {
            let (Some(first), Some(last)) = (run.first(), run.last()) else {
                continue;
            };
            if run.len() >= LONG_RUN {
                parts.push(start..first.slot());
                start = Slot(last.slot().0 + 1);
            }
        }
        parts.push(start..whole.end);
        parts
    }

    /// What of its whole extents is populated now.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn populated(&self, process: &mut impl Process) -> Result<Tally> {
        self.populated_in(self.range.whole_superpages(), process)
    }

    fn populated_in(&self, range: AddrRange, process: &mut impl Process) -> Result<Tally> {
        let mut tally = Tally::default();
        let private = self.is_private();
        let mut found = |run, huge| tally.add(run, huge, private);
        match self.kind {
            RegionKind::Shared => process.existing(range, &mut found)?,
            _ => process.populated(range, &mut found)?,
        }
        Ok(tally)
    }

    /// Whether an extent lies in one mapping. Others cannot become superpages.
    #[must_use]
    pub fn is_whole(&self, slot: Slot) -> bool {
        let range = slot.range();
        let after = self
            .pieces
            .partition_point(|piece| piece.start <= range.start);
        let piece = after.checked_sub(1).and_then(|at| self.pieces.get(at));
        piece.is_some_and(|piece| piece.contains(range))
    }

    /// When an extent may become a superpage ([`Known::due_at`]), with regard to the region.
    #[must_use]
    pub fn due_at(&self, known: &Known, lived: Duration) -> Option<Duration> {
        let due_at = known.due_at(lived)?;
        self.is_whole(known.slot())
            .then(|| due_at.max(self.rest_until))
    }

    /// Its whole extents.
    pub fn slots(&self) -> Range<Slot> {
        let slots = self.range.whole_slots();
        Slot(slots.start)..Slot(slots.end.max(slots.start))
    }

    /// Takes over a look at its populated pages.
    pub fn look(&mut self, tally: Tally, now: Duration, tells: bool) -> Change {
        self.take_over(self.slots(), tally, now, tells)
    }

    /// Looks only where its fronts expect something new.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn glance(&mut self, process: &mut impl Process, now: Duration) -> Result<Change> {
        let parts = self.predictor.watched().collect();
        self.look_in(parts, process, now)
    }

    fn look_in(
        &mut self,
        parts: Vec<Range<Slot>>,
        process: &mut impl Process,
        now: Duration,
    ) -> Result<Change> {
        let mut change = Change::default();
        let (whole, tells) = (self.slots(), process.tells_superpages());
        let within =
            |part: Range<Slot>| part.start.0.max(whole.start.0)..part.end.0.min(whole.end.0);
        let pieces = parts.into_iter().map(within).flat_map(|part| {
            let piece = move |start: u64| Slot(start)..Slot(part.end.min(start + AT_A_TIME as u64));
            (part.start..part.end).step_by(AT_A_TIME).map(piece)
        });
        for slots in pieces {
            let range = AddrRange {
                start: slots.start.start(),
                end: slots.end.start(),
            };
            let tally = self.populated_in(range, process)?;
            change += self.take_over(slots, tally, now, tells);
        }
        Ok(change)
    }

    /// Takes over what was found in some of its extents.
    fn take_over(
        &mut self,
        slots: Range<Slot>,
        tally: Tally,
        now: Duration,
        tells: bool,
    ) -> Change {
        let mut change = Change::default();
        let mut known = Vec::new();
        // Holes in shared memory are not filled: all its users would pay for them.
        let enough = if self.is_private() { self.enough } else { FULL };
        let first = self.known.partition_point(|k| k.slot() < slots.start);
        let after = self.known.partition_point(|k| k.slot() < slots.end);
        let old = self.known[first..after].to_vec();
        let mut old = old.into_iter().peekable();
        for extent in tally.extents() {
            while let Some(gone) = old.next_if(|k| k.slot() < extent.slot) {
                change.pages += gone.populated().0;
            }
            let before = old.next_if(|k| k.slot() == extent.slot);
            let mut next = before.unwrap_or_else(|| self.meet(extent, tells));
            next.look(extent, enough, now, tells);
            change.note(before, next);
            known.push(next);
        }
        change.pages += old.map(|k| k.populated().0).sum::<u64>();
        self.known.splice(first..after, known);
        self.demoted += change.demoted;
        change
    }

    /// So many superpages are there, of which the page table does not tell which. Where they are fewer than was
    /// known, any may be gone: all are to be made again, which costs next to nothing for those that are left.
    pub fn count_superpages(&mut self, huge: u64) -> u64 {
        let known = self.known.iter().filter(|k| k.is_huge()).count() as u64;
        let full = self.known.iter().filter(|k| k.is_full()).count() as u64;
        if !self.is_private() || huge == known {
            return 0;
        }
        for k in &mut self.known {
            let all = huge >= full && k.is_full();
            if all || huge < known {
                k.set_made(all);
            }
        }
        known.saturating_sub(huge)
    }

    /// An extent that holds something for the first time. Where it was advised and is no superpage, the advice is
    /// gone, as with a mapping that took the place of another one.
    fn meet(&mut self, extent: Extent, tells: bool) -> Known {
        let range = extent.slot.range();
        let mut advised = self.is_advised(range);
        if advised && tells && !extent.huge {
            self.advised.remove(range);
            advised = false;
        }
        Known::new(extent, advised)
    }

    /// The extents that are to be advised now: parts of one mapping each. After a glance, only the fronts that are
    /// known are followed.
    pub fn predict(&mut self, after_glance: bool) -> Vec<AddrRange> {
        let mut predictor = std::mem::take(&mut self.predictor);
        let proves = |slot: Slot| self.find(slot).is_some_and(|k| !k.is_advised());
        let runs = match after_glance {
            true => predictor.glance(self.slots(), &self.known, proves),
            false => predictor.look(self.slots(), &self.known, proves),
        };
        self.predictor = predictor;
        runs.iter().flat_map(|run| self.in_pieces(run)).collect()
    }

    /// Where it is too small for a superpage, and half of it is in use: its mappings that are to have folios of several
    /// pages, at most twice as many as there would be.
    pub fn small_pieces(&self, process: &mut impl Process) -> Vec<AddrRange> {
        if !self.slots().is_empty() || self.is_advised(self.range) {
            return Vec::new();
        }
        let mut used = PageCount(0);
        let counted = process.populated(self.range, &mut |run, _| used += run.len().to_pages());
        let is_used = counted.is_ok() && used.0 * 2 >= self.range.len().to_pages().0;
        if is_used {
            self.pieces.clone()
        } else {
            Vec::new()
        }
    }

    /// Whether a front has come to its end: only a look tells whether it has grown.
    pub fn is_at_end(&self) -> bool {
        let end = self.slots().end;
        let mut watched = self.predictor.watched();
        watched.any(|run| run.end >= end)
    }

    /// How many extents are advised before the program comes to something unknown.
    pub fn ahead(&self) -> Option<u64> {
        self.predictor.ahead()
    }

    /// Notes that extents were advised; says of how many that was not known.
    pub fn note_advised(&mut self, range: AddrRange) -> u64 {
        let new = |slot: &u64| {
            let slot = Slot(*slot);
            !self.is_advised(slot.range()) && self.find(slot).is_none()
        };
        let new = range.whole_slots().filter(new).count() as u64;
        self.advised.insert(range, ());
        new
    }

    /// Whether all of a range has been advised.
    pub fn is_advised(&self, range: AddrRange) -> bool {
        let parts = self.advised.overlaps(range);
        let advised: u64 = parts.map(|(part, ())| part.intersect(range).len().0).sum();
        advised >= range.len().0
    }

    /// The place of an extent among those that hold something.
    #[must_use]
    pub fn place(&self, slot: Slot) -> Option<usize> {
        let place = self.known.binary_search_by_key(&slot, |k| k.slot());
        place.ok()
    }

    /// What is known of an extent that holds something.
    #[must_use]
    pub fn find(&self, slot: Slot) -> Option<&Known> {
        self.known.get(self.place(slot)?)
    }

    /// A run of extents, cut at the borders of mappings; what does not fill an extent there is left out.
    fn in_pieces(&self, run: &Range<Slot>) -> Vec<AddrRange> {
        let run = AddrRange {
            start: run.start.start(),
            end: run.end.start(),
        };
        let cut = |piece: &AddrRange| piece.intersect(run).whole_superpages();
        let cut = self.pieces.iter().map(cut);
        cut.filter(|part| !part.is_empty()).collect()
    }

    /// Notes that the kernel makes no superpages here.
    pub fn refused(&mut self, now: Duration) {
        self.refused_for = (self.refused_for * 2).clamp(REFUSED.0, REFUSED.1);
        self.rest_until = now + self.refused_for;
    }

    /// Notes that an extent was refused: it is left alone, each time twice as long.
    pub fn leave_alone(&mut self, index: usize, now: Duration) {
        if let Some(known) = self.known.get_mut(index) {
            known.refused(now);
        }
    }

    /// Notes what came of asking for a superpage. Where there was no block, the extent is not to blame: that is for
    /// the caller to wait for.
    ///
    /// # Errors
    /// Why there is none.
    pub fn answered(
        &mut self,
        index: usize,
        answer: Result<()>,
        now: Duration,
    ) -> std::result::Result<(), Refusal> {
        let Err(errno) = answer else {
            self.note_made(index);
            return Ok(());
        };
        let refusal = Refusal::of(errno);
        if matches!(refusal, Refusal::Busy | Refusal::Mapping) {
            self.leave_alone(index, now);
        }
        Err(refusal)
    }

    /// Notes that a superpage with `used` pages was given up. It becomes one again only with clearly more of them.
    pub fn given_up(&mut self, index: usize, used: PageCount) {
        self.demoted += 1;
        if let Some(known) = self.known.get_mut(index) {
            known.given_up(used);
        }
    }

    /// Notes that a child of the process has the pages, too.
    pub fn is_shared(&mut self, now: Duration) {
        self.rest_until = now + SHARED;
    }

    /// Notes that an extent is a superpage now.
    pub fn note_made(&mut self, index: usize) {
        self.made += 1;
        self.refused_for = Duration::ZERO;
        if let Some(known) = self.known.get_mut(index) {
            known.set_made(true);
        }
    }

    /// Writes down what regions hold together.
    pub fn note_present(regions: &[Region], stats: &StatPage) {
        let known = || regions.iter().flat_map(|region| &region.known);
        let huge = known().filter(|k| k.is_huge()).count() as u64;
        let populated = PageCount(known().map(|k| k.populated().0).sum()).to_bytes();
        let mapped = regions.iter().map(|region| region.range.len().0).sum();
        stats.set(Counter::Mapped, mapped);
        stats.set(Counter::Populated, populated.0);
        stats.raise(Counter::PopulatedPeak, populated.0);
        stats.set(Counter::Superpages, huge);
        stats.raise(Counter::SuperpagesPeak, huge);
    }

    /// Writes regions down, with their pictures.
    pub fn list(regions: &[Region], policy: Policy, stats: &StatPage) {
        let listed = regions.iter().filter(|region| region.is_worth_listing());
        stats.set_regions(listed.map(|region| region.stat(policy)));
    }

    /// What the statistics page says of it.
    pub fn stat(&self, policy: Policy) -> RegionStat {
        let huge = self.known.iter().filter(|k| k.is_huge()).count() as u64;
        let pages = self.known.iter().map(|k| k.populated().0).sum();
        RegionStat {
            populated_bytes: PageCount(pages).to_bytes(),
            superpages: huge,
            promotions: self.made,
            demotions: self.demoted,
            picture: self.picture(),
            ..RegionStat::untouched(self.range, self.kind, policy)
        }
    }

    fn picture(&self) -> Picture {
        let slots = self.slots();
        let mut known = self.known.iter().peekable();
        let mut cell = |slot: u64| {
            while known.next_if(|k| k.slot().0 < slot).is_some() {}
            match known.peek() {
                Some(k) if k.slot().0 == slot => {
                    let state = match (k.is_huge(), k.is_made()) {
                        (true, true) => CellState::Promoted,
                        (true, false) => CellState::Whole,
                        (false, _) => CellState::Base,
                    };
                    Cell::new(state, k.populated())
                }
                _ => Cell::default(),
            }
        };
        let count = (slots.end.0 - slots.start.0) as usize;
        let cells = (0..count).map(|number| cell(slots.start.0 + number as u64));
        Picture::folding(cells, MAX_CELLS)
    }

    /// Whether it holds enough to be listed.
    pub fn is_worth_listing(&self) -> bool {
        !self.known.is_empty() && self.range.len() >= Bytes(SUPERPAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_linux::Errno;

    fn area(mib: u64, len: u64, kind: RegionKind) -> Area {
        let range = AddrRange::new(VirtAddr(mib << 20), Bytes::mib(len));
        Area { range, kind }
    }

    fn tally(extents: &[(u64, u64, bool)]) -> Tally {
        let mut tally = Tally::default();
        for (slot, pages, huge) in extents {
            let run = AddrRange::new(Slot(*slot).start(), PageCount(*pages).to_bytes());
            tally.add(run, *huge, true);
        }
        tally
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn neighbours_of_one_kind_are_one_region() {
        use RegionKind::{Anon, Heap};
        let areas = [
            area(2, 4, Heap),
            area(6, 2, Heap),
            area(8, 2, Anon),
            area(20, 2, Anon),
        ];
        let regions = Region::of_areas(&areas);
        let ranges: Vec<_> = regions.iter().map(|r| (r.range, r.pieces.len())).collect();
        assert_eq!(ranges[0], (area(2, 6, Heap).range, 2));
        assert_eq!(ranges.len(), 3);
    }

    #[test]
    fn what_is_known_outlives_looks_and_moves_of_borders() {
        let mut region = Region::new(area(2, 20, RegionKind::Anon));
        let change = region.look(tally(&[(1, 512, false), (2, 100, false)]), SECOND, true);
        assert_eq!((change.pages, change.demoted), (612, 0));
        let mut larger = Region::new(area(2, 40, RegionKind::Anon));
        larger.inherit(region);
        let change = larger.look(tally(&[(1, 512, false), (2, 90, false)]), 2 * SECOND, true);
        assert_eq!(change.pages, 10);
        assert_eq!(larger.known[0].full_since(), Some(SECOND));
        assert_eq!(larger.known[1].full_since(), None);
        larger.note_made(0);
        let change = larger.look(tally(&[(1, 512, true)]), 3 * SECOND, true);
        assert_eq!((change.pages, change.demoted), (90, 0));
        // A fork takes the superpage apart.
        let change = larger.look(tally(&[(1, 512, false)]), 4 * SECOND, true);
        assert_eq!(change.demoted, 1);
        assert!(larger.known[0].was_huge() && !larger.known[0].is_made());
    }

    #[test]
    fn a_region_that_is_cut_keeps_what_is_known_of_each_part() {
        let mut region = Region::new(area(2, 40, RegionKind::Anon));
        region.look(
            tally(&[(1, 512, false), (9, 512, false), (15, 512, false)]),
            SECOND,
            true,
        );
        region.note_made(1);
        let parts = [
            area(2, 12, RegionKind::Anon),
            area(16, 10, RegionKind::Anon),
            area(30, 4, RegionKind::Anon),
        ];
        let regions = Region::succeed(vec![region], &parts);
        let slots = |region: &Region| region.known.iter().map(|k| k.slot().0).collect::<Vec<_>>();
        let kept: Vec<_> = regions.iter().map(slots).collect();
        assert_eq!(kept, [vec![1], vec![9], vec![15]]);
        assert!(regions[1].known[0].is_made() && regions[2].known[0].full_since() == Some(SECOND));
        assert_eq!(
            regions.iter().map(|r| r.made).collect::<Vec<_>>(),
            [1, 0, 0]
        );
        // Where the gap is mapped again, all is one.
        let whole = Region::succeed(regions, &[area(2, 40, RegionKind::Anon)]);
        assert_eq!((slots(&whole[0]), whole[0].made), (vec![1, 9, 15], 1));
        assert_eq!(Region::succeed(whole, &[]).len(), 0);
    }

    #[test]
    fn extents_are_due_when_they_have_lived() {
        let mut region = Region::new(area(2, 20, RegionKind::Anon));
        region.enough = PageCount(300);
        region.look(
            tally(&[(1, 300, false), (2, 299, false), (3, 512, true)]),
            SECOND,
            true,
        );
        let due = |region: &Region| {
            region
                .known
                .iter()
                .map(|k| region.due_at(k, SECOND))
                .collect::<Vec<_>>()
        };
        assert_eq!(due(&region), [Some(2 * SECOND), None, None]);
        // What was a superpage is known to live.
        region.look(tally(&[(1, 300, false), (3, 512, false)]), 3 * SECOND, true);
        assert_eq!(due(&region), [Some(2 * SECOND), Some(SECOND)]);
        region.is_shared(3 * SECOND);
        assert_eq!(due(&region)[0], Some(3 * SECOND + SHARED));
        region.pieces = vec![
            area(2, 1, RegionKind::Anon).range,
            area(3, 19, RegionKind::Anon).range,
        ];
        assert_eq!(due(&region), [None, Some(3 * SECOND + SHARED)]);
        let mut shared = Region::new(area(2, 20, RegionKind::Shared));
        shared.enough = PageCount(300);
        shared.look(tally(&[(1, 511, false)]), SECOND, true);
        assert_eq!(due(&shared), [None]);
    }

    #[test]
    fn refused_extents_are_tried_ever_more_rarely() {
        let mut region = Region::new(area(2, 20, RegionKind::Anon));
        region.look(tally(&[(1, 512, false)]), Duration::ZERO, true);
        let waits_until = |region: &Region| {
            let due = region.known[0].due_at(Duration::ZERO);
            due.map_or(0, |at| at.as_secs())
        };
        let mut waits = Vec::new();
        for _ in 0..12 {
            let refused = region.answered(0, Err(Errno(libc::EINVAL)), Duration::ZERO);
            assert_eq!(refused, Err(Refusal::Mapping));
            waits.push(waits_until(&region));
        }
        assert_eq!((&waits[..4], waits[11]), (&[1, 2, 4, 8][..], 600));
        let refused = region.answered(0, Err(Errno(libc::ENOMEM)), SECOND);
        assert_eq!(
            (refused, waits_until(&region)),
            (Err(Refusal::NoBlock), 600)
        );
        assert_eq!(region.answered(0, Ok(()), SECOND), Ok(()));
        assert!(region.known[0].is_made() && region.made == 1);
    }

    #[test]
    fn what_was_given_up_comes_back_when_it_is_used() {
        let mut region = Region::new(area(2, 20, RegionKind::Anon));
        region.enough = PageCount(256);
        region.look(tally(&[(1, 300, false)]), Duration::ZERO, true);
        region.note_made(0);
        region.given_up(0, PageCount(300));
        for (pages, due) in [(300, None), (331, None), (332, Some(SECOND))] {
            let change = region.look(tally(&[(1, pages, false)]), SECOND, true);
            assert_eq!(
                (region.due_at(&region.known[0], SECOND), change.demoted),
                (due, 0)
            );
        }
        assert_eq!(region.demoted, 1);
    }

    #[test]
    fn what_the_page_table_does_not_tell_is_remembered() {
        let mut region = Region::new(area(2, 20, RegionKind::Anon));
        region.look(tally(&[(1, 512, false)]), SECOND, false);
        region.note_made(0);
        region.look(tally(&[(1, 512, false)]), SECOND, false);
        assert!(region.known[0].is_huge());
        region.look(tally(&[(1, 511, false)]), SECOND, false);
        assert!(!region.known[0].is_huge());
    }

    #[test]
    fn what_is_predicted_keeps_to_mappings() {
        let mut region = Region::new(area(2, 40, RegionKind::Anon));
        // Extents 5 and 6 lie in a mapping of their own.
        region.pieces = vec![
            area(2, 8, RegionKind::Anon).range,
            area(10, 3, RegionKind::Anon).range,
            area(13, 29, RegionKind::Anon).range,
        ];
        let full: Vec<_> = (1..5).map(|slot| (slot, 512, false)).collect();
        region.look(tally(&full), SECOND, true);
        let advised = region.predict(false);
        let slots: Vec<u64> = advised.iter().flat_map(|r| r.whole_slots()).collect();
        assert_eq!(slots, [5, 8, 9]);
        for range in advised {
            region.note_advised(range);
        }
        assert!(region.is_advised(Slot(8).range()) && !region.is_advised(Slot(6).range()));
    }
}
