//! Which superpages a process is advised to get at their first touch, from looks at what is populated
//! (paper 001: page sizes that follow the address space; paper 000, section 3.3: population maps).
//!
//! A region that fills up from extent to extent has a *front*: the run of extents that are known to be
//! dense, and behind it two chunks of extents that are predicted to become dense, too. Only those are
//! advised. Behind each chunk one extent stays on base pages: the *probe*. A superpage looks full after one
//! touch, a probe does not; so when a probe is full, everything before it counts as dense, and the next
//! chunk is predicted while the program is still in the one before.
//!
//! ```text
//!   dense, dense, dense, dense | advised, advised | probe | advised, advised | probe | ...
//!   `------- verified --------'
//! ```
//!
//! Both chunks together have at most a quarter of what is verified, and four extents where that is little.
//! So a program that stops being dense takes at most 1.25 times the memory that it used, and 8 MiB.

use std::ops::Range;
use std::time::Duration;

use crate::attach::Extent;
use crate::units::{PAGES_PER_SUPERPAGE, PageCount, Slot};

/// How many adjacent extents must have filled up before the next ones are predicted.
pub const DENSE_RUN: u64 = 4;
/// A chunk has one extent for so many that are verified: two chunks have a quarter.
const VERIFIED_PER_AHEAD: u64 = 8;
/// The smallest chunk.
const SMALLEST_CHUNK: u64 = 2;
/// Chunks behind the verified run of a front.
const CHUNKS: usize = 2;
/// Fronts of one region: more threads than this that fill parts of it at a time are not followed.
const MOST_FRONTS: usize = 8;

/// The shortest and the longest time between two looks.
pub const LOOKS_APART: (Duration, Duration) = (Duration::from_micros(200), Duration::from_secs(1));
/// The same while few pages come.
const SLOW_LOOK: Duration = Duration::from_millis(16);
/// Pages that come between two looks where these follow each other well: a front needs four extents, and what
/// comes in less than one is not worth a look.
const GROWTH: Range<u64> = FULL / 2..8 * FULL;
const FULL: u64 = PAGES_PER_SUPERPAGE as u64;

/// How long to wait before the next look, `last` after the one before which found `changed` pages: a program that
/// fills memory is looked at as often as it fills extents, one that does nothing once in a second.
#[must_use]
pub fn look_again(last: Duration, changed: PageCount) -> Duration {
    let again = match changed.0 {
        0 => last * 2,
        few if few < GROWTH.start => (last * 2).min(SLOW_LOOK.max(last)),
        some if some < GROWTH.end => last,
        _ => last / 2,
    };
    again.clamp(LOOKS_APART.0, LOOKS_APART.1)
}

/// A run of dense extents, and what is predicted behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Front {
    verified: Range<u64>,
    /// The chunks in order of address, of which nothing is known yet; the probe of a chunk is its end.
    chunks: Vec<Range<u64>>,
}

impl Front {
    /// The first extent that nothing is predicted for.
    fn end(&self) -> u64 {
        self.chunks.last().map_or(self.verified.end, |c| c.end + 1)
    }

    /// How long its next chunk is.
    fn chunk_len(&self) -> u64 {
        let verified = self.verified.end - self.verified.start;
        (verified / VERIFIED_PER_AHEAD).max(SMALLEST_CHUNK)
    }

    fn covers(&self, slot: u64) -> bool {
        (self.verified.start..self.end()).contains(&slot)
    }
}

/// What is predicted for one region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Predictor {
    fronts: Vec<Front>,
}

/// An extent that was looked at.
pub trait Seen {
    /// Where it is.
    fn slot(&self) -> Slot;
    /// Whether all of its pages are populated.
    fn is_full(&self) -> bool;
}

impl Seen for Extent {
    fn slot(&self) -> Slot {
        self.slot
    }

    fn is_full(&self) -> bool {
        self.populated >= PageCount(FULL)
    }
}

/// The extents of a look, in order of address.
struct Look<'a, E>(&'a [E]);

impl<E: Seen> Look<'_, E> {
    fn find(&self, slot: u64) -> Option<&E> {
        let at = self.0.binary_search_by_key(&Slot(slot), E::slot).ok()?;
        self.0.get(at)
    }

    fn is_full(&self, slot: u64) -> bool {
        self.find(slot).is_some_and(E::is_full)
    }

    fn is_touched(&self, slot: u64) -> bool {
        self.find(slot).is_some()
    }
}

impl Predictor {
    /// Takes a look at the region, whose whole extents are `region`, and says which extents are to be
    /// advised now, as runs in order of address within each front. `proves` says of a full extent whether it
    /// filled up by itself: one that was advised proves nothing.
    ///
    /// Extents that hold something already are not advised.
    pub fn look(
        &mut self,
        region: Range<Slot>,
        extents: &[impl Seen],
        proves: impl Fn(Slot) -> bool,
    ) -> Vec<Range<Slot>> {
        let look = Look(extents);
        self.advance(&region, &look, &proves);
        self.find_new(&look, &proves);
        self.predict(&region, &look)
    }

    /// The same for the fronts that are known, when only what is [`watched`](Self::watched) was looked at.
    pub fn glance(
        &mut self,
        region: Range<Slot>,
        extents: &[impl Seen],
        proves: impl Fn(Slot) -> bool,
    ) -> Vec<Range<Slot>> {
        let look = Look(extents);
        self.advance(&region, &look, &proves);
        self.predict(&region, &look)
    }

    /// Where something new is expected: for each front, from what is verified to where the next chunks will be.
    pub fn watched(&self) -> impl Iterator<Item = Range<Slot>> {
        let waits = |front: &&Front| !front.chunks.is_empty();
        self.fronts.iter().filter(waits).map(|front| {
            let next = (front.chunk_len() + 1) * CHUNKS as u64;
            Slot(front.verified.end)..Slot(front.end().saturating_add(next))
        })
    }

    fn advance<E: Seen>(
        &mut self,
        region: &Range<Slot>,
        look: &Look<'_, E>,
        proves: &impl Fn(Slot) -> bool,
    ) {
        for front in &mut self.fronts {
            advance(front, look, proves);
        }
        let region = region.start.0..region.end.0;
        self.fronts
            .retain(|front| region.contains(&front.verified.start));
        self.join();
    }

    fn predict<E: Seen>(&mut self, region: &Range<Slot>, look: &Look<'_, E>) -> Vec<Range<Slot>> {
        let region = region.start.0..region.end.0;
        let mut advised = Vec::new();
        for front in &mut self.fronts {
            predict(front, &region, look, &mut advised);
        }
        advised
    }

    /// How many extents are advised at most before the program comes to something unknown; nothing where no
    /// front has any. Looks need not be more frequent than the program takes for that.
    #[must_use]
    pub fn ahead(&self) -> Option<u64> {
        let of_front = |front: &Front| front.chunks.last().map(|c| c.end - front.verified.end);
        self.fronts.iter().filter_map(of_front).min()
    }

    /// Fronts that have met are one.
    fn join(&mut self) {
        self.fronts.sort_by_key(|front| front.verified.start);
        let mut joined: Vec<Front> = Vec::new();
        for front in self.fronts.drain(..) {
            match joined.last_mut() {
                Some(last) if last.verified.end >= front.verified.start => {
                    if front.verified.end >= last.verified.end {
                        last.verified.end = front.verified.end;
                        last.chunks = front.chunks;
                    }
                }
                _ => joined.push(front),
            }
        }
        self.fronts = joined;
    }

    /// Begins fronts where enough extents have filled up by themselves. Where there are too many, those at
    /// the highest addresses are followed: programs fill memory upward.
    fn find_new<E: Seen>(&mut self, look: &Look<'_, E>, proves: &impl Fn(Slot) -> bool) {
        let mut run: Option<Range<u64>> = None;
        let mut found = Vec::new();
        let dense = look.0.iter().filter(|e| e.is_full() && proves(e.slot()));
        for slot in dense.map(|e| e.slot().0) {
            if self.fronts.iter().any(|front| front.covers(slot)) {
                continue;
            }
            match &mut run {
                Some(run) if run.end == slot => run.end = slot + 1,
                _ => found.extend(run.replace(slot..slot + 1)),
            }
        }
        found.extend(run);
        let long = |run: &Range<u64>| run.end - run.start >= DENSE_RUN;
        let fronts = found.into_iter().filter(long).map(|verified| Front {
            verified,
            chunks: Vec::new(),
        });
        self.fronts.extend(fronts);
        self.join();
        let extra = self.fronts.len().saturating_sub(MOST_FRONTS);
        self.fronts.drain(..extra);
    }
}

/// Takes what has filled up since into the verified run.
fn advance<E: Seen>(front: &mut Front, look: &Look<'_, E>, proves: &impl Fn(Slot) -> bool) {
    while let Some(chunk) = front.chunks.first() {
        let probe = chunk.end;
        if !(look.is_full(probe) && proves(Slot(probe))) {
            return;
        }
        front.verified.end = probe + 1;
        front.chunks.remove(0);
    }
    while look.is_full(front.verified.end) && proves(Slot(front.verified.end)) {
        front.verified.end += 1;
    }
}

/// Predicts further chunks.
fn predict<E: Seen>(
    front: &mut Front,
    region: &Range<u64>,
    look: &Look<'_, E>,
    advised: &mut Vec<Range<Slot>>,
) {
    let len = front.chunk_len();
    while front.chunks.len() < CHUNKS {
        let mut start = front.end();
        // The program is there already: a prediction would come too late.
        while start < region.end && look.is_touched(start) {
            start += 1;
        }
        let end = start.saturating_add(len).min(region.end);
        let free = (start..end)
            .find(|slot| look.is_touched(*slot))
            .unwrap_or(end);
        if free <= start {
            return;
        }
        advised.push(Slot(start)..Slot(free));
        front.chunks.push(start..free);
        if free < end || end == region.end {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const REGION: Range<Slot> = Slot(100)..Slot(1124);

    /// A program's memory as the kernel has it: pages by extent, and what was advised.
    #[derive(Default)]
    struct Memory {
        used: BTreeMap<u64, u64>,
        advised: BTreeSet<u64>,
        huge: BTreeSet<u64>,
    }

    impl Memory {
        fn touch(&mut self, slot: u64, pages: u64) {
            let fresh = !self.used.contains_key(&slot);
            *self.used.entry(slot).or_default() += pages;
            if fresh && self.advised.contains(&slot) {
                self.huge.insert(slot);
            }
        }

        fn extents(&self) -> Vec<Extent> {
            let extent = |(slot, used): (&u64, &u64)| {
                let huge = self.huge.contains(slot);
                Extent {
                    slot: Slot(*slot),
                    populated: PageCount(if huge { FULL } else { *used }),
                    huge,
                    private: true,
                }
            };
            self.used.iter().map(extent).collect()
        }

        fn look(&mut self, predictor: &mut Predictor) {
            let extents = self.extents();
            let proves = |slot: Slot| !self.advised.contains(&slot.0);
            let advised = predictor.look(REGION, &extents, proves);
            self.advise(advised);
        }

        fn glance(&mut self, predictor: &mut Predictor) {
            let watched: Vec<_> = predictor.watched().collect();
            let mut extents = self.extents();
            extents.retain(|e| watched.iter().any(|run| run.contains(&e.slot)));
            let proves = |slot: Slot| !self.advised.contains(&slot.0);
            let advised = predictor.glance(REGION, &extents, proves);
            self.advise(advised);
        }

        fn advise(&mut self, advised: Vec<Range<Slot>>) {
            for run in advised {
                assert!(REGION.start <= run.start && run.end <= REGION.end);
                for slot in run.start.0..run.end.0 {
                    assert!(!self.used.contains_key(&slot), "it is in use");
                    assert!(self.advised.insert(slot), "it was advised before");
                }
            }
        }

        fn used(&self) -> u64 {
            self.used.values().sum()
        }

        fn resident(&self) -> u64 {
            self.extents().iter().map(|e| e.populated.0).sum()
        }
    }

    #[test]
    fn a_dense_region_is_on_superpages_almost_whole() {
        let (mut memory, mut predictor) = (Memory::default(), Predictor::default());
        for slot in REGION.start.0..REGION.end.0 {
            memory.touch(slot, FULL);
            memory.look(&mut predictor);
        }
        let base = memory.used.len() - memory.huge.len();
        assert!(base < 50, "{base} of {} on base pages", memory.used.len());
    }

    #[test]
    fn nothing_is_predicted_for_sparse_memory() {
        let (mut memory, mut predictor) = (Memory::default(), Predictor::default());
        for slot in REGION.start.0..REGION.end.0 {
            memory.touch(slot, FULL - 1);
            memory.look(&mut predictor);
        }
        assert!(memory.advised.is_empty());
        assert_eq!(predictor.ahead(), None);
    }

    #[test]
    fn looks_follow_the_program() {
        let after = |mut pause: Duration, pages_per_ms: f64| {
            for _ in 0..40 {
                let changed = pause.as_secs_f64() * 1e3 * pages_per_ms;
                pause = look_again(pause, PageCount(changed as u64));
            }
            pause.as_micros()
        };
        let soonest = LOOKS_APART.0;
        assert_eq!(after(LOOKS_APART.1, 6000.0), 488, "some extents at a time");
        assert_eq!(after(soonest, 100.0), 3200);
        assert_eq!(after(soonest, 1.0), 16_000);
        assert_eq!(after(soonest, 0.0), 1_000_000);
        assert_eq!(after(LOOKS_APART.1, 1e6), 200);
    }

    #[test]
    fn glances_are_enough_to_follow_a_front() {
        let (mut memory, mut predictor) = (Memory::default(), Predictor::default());
        for slot in REGION.start.0..REGION.end.0 {
            memory.touch(slot, FULL);
            match (slot - REGION.start.0) % 64 {
                0..8 => memory.look(&mut predictor),
                _ => memory.glance(&mut predictor),
            }
        }
        let base = memory.used.len() - memory.huge.len();
        assert!(base < 50, "{base} of {} on base pages", memory.used.len());
    }

    #[test]
    fn several_threads_are_followed() {
        let (mut memory, mut predictor) = (Memory::default(), Predictor::default());
        for step in 0..250 {
            for thread in 0..4 {
                memory.touch(REGION.start.0 + thread * 256 + step, FULL);
            }
            memory.look(&mut predictor);
        }
        let base = memory.used.len() - memory.huge.len();
        assert!(base < 4 * 40, "{base} on base pages");
    }

    #[test]
    fn a_region_may_grow_and_shrink() {
        let mut predictor = Predictor::default();
        let full = |slots: Range<u64>| -> Vec<Extent> {
            let extent = |slot| Extent {
                slot: Slot(slot),
                populated: PageCount(FULL),
                huge: false,
                private: true,
            };
            slots.map(extent).collect()
        };
        let all = |_: Slot| true;
        let advised = predictor.look(Slot(0)..Slot(6), &full(0..6), all);
        assert!(advised.is_empty());
        let advised = predictor.look(Slot(0)..Slot(7), &full(0..6), all);
        assert_eq!(advised, [Slot(6)..Slot(7)]);
        let advised = predictor.look(Slot(0)..Slot(100), &full(0..8), all);
        assert_eq!(advised, [Slot(8)..Slot(10), Slot(11)..Slot(13)]);
        assert!(
            predictor
                .look(Slot(50)..Slot(60), &[] as &[Extent], all)
                .is_empty()
        );
        assert_eq!(predictor, Predictor::default());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever a program does after being dense, it takes at most 1.25 times what it uses, and 8 MiB,
        /// for each front that it had.
        #[test]
        fn a_wrong_prediction_costs_little(
            dense in 0u64..600,
            sparse in vec((0u64..1024, 1u64..FULL), 0..400),
            looks in 1u64..20,
        ) {
            let (mut memory, mut predictor) = (Memory::default(), Predictor::default());
            for step in 0..dense {
                memory.touch(REGION.start.0 + step, FULL);
                if step % looks == 0 {
                    memory.look(&mut predictor);
                }
            }
            memory.look(&mut predictor);
            let whole = memory.used();
            // From now on, an extent is touched once, and not full.
            for (slot, pages) in sparse {
                let slot = REGION.start.0 + slot;
                if !memory.used.contains_key(&slot) {
                    memory.touch(slot, pages);
                }
                memory.look(&mut predictor);
            }
            let extra = memory.resident() - memory.used();
            prop_assert!(extra <= whole / 4 + 4 * FULL, "{extra} more than {whole}");
        }

        /// What holds something is not advised, and nothing is advised twice.
        #[test]
        fn any_order_is_borne(touches in vec((0u64..1024, 1u64..=FULL), 0..600)) {
            let (mut memory, mut predictor) = (Memory::default(), Predictor::default());
            for (slot, pages) in touches {
                let slot = REGION.start.0 + slot;
                let room = FULL - memory.used.get(&slot).copied().unwrap_or(0);
                if room > 0 {
                    memory.touch(slot, pages.min(room));
                }
                memory.look(&mut predictor);
                prop_assert!(predictor.fronts.len() <= MOST_FRONTS);
            }
        }
    }
}
