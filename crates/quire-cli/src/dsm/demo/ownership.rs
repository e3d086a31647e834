//! From what a scheduler was told and tells to who had which page when.

use std::collections::{BTreeMap, BTreeSet};

use quire_core::dsm::message::{Access, Client, KernelId, Lock, PageNumber};
use quire_core::dsm::scheduler::trace::{Event, Peer, What};
use quire_dsm::wire::control::Watched;

/// How a page is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// Nobody has it.
    Nobody,
    /// One node or several have it to be read.
    Read,
    /// This node may write to it.
    Written(usize),
}

/// A page, over time.
#[derive(Clone, Debug, Default)]
struct Page {
    readers: BTreeSet<usize>,
    writer: Option<usize>,
    /// How it was held from when on, in nanoseconds. Before the first, nobody had it.
    changes: Vec<(u64, Held)>,
}

/// Who had which page when.
#[derive(Clone, Debug, Default)]
pub struct Ownership {
    nodes: BTreeMap<KernelId, usize>,
    pages: BTreeMap<PageNumber, Page>,
    /// When the first and the last message came, in nanoseconds since 1970.
    time: Option<(u64, u64)>,
    /// Messages that were not seen.
    pub lost: u64,
}

/// A part of the picture: some pages for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// How they were held for the longest time.
    pub held: Held,
    /// Whether several nodes could write to them, one after the other.
    pub is_shared: bool,
}

/// The picture: pages from top to bottom, time from left to right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The first and the last page of each row, and its cells.
    pub rows: Vec<((u64, u64), Vec<Cell>)>,
}

/// The name of a node, by its number.
pub fn name(node: usize) -> String {
    format!("node-{}", node + 1)
}

/// The node that a kernel is of, by what the server calls it: its name and where it is.
fn node(described: &str) -> Option<usize> {
    let name = described.split_whitespace().next()?;
    let number: usize = name.strip_prefix("node-")?.parse().ok()?;
    number.checked_sub(1)
}

impl Ownership {
    /// Goes on with what was seen next.
    pub fn learn(&mut self, watched: &Watched) {
        for known in &watched.known {
            if let Some(node) = node(&known.name) {
                self.nodes.insert(known.kernel, node);
            }
        }
        self.lost += watched.lost;
        for seen in &watched.seen {
            let begin = self.time.map_or(seen.at, |(begin, _)| begin);
            self.time = Some((begin, seen.at));
            self.see(seen.at, &seen.event);
        }
    }

    fn see(&mut self, at: u64, event: &Event) {
        let Peer::Client(Client::Kernel(kernel)) = event.peer else {
            return;
        };
        let Some(node) = self.nodes.get(&kernel).copied() else {
            return;
        };
        if matches!(event.what, What::Gone | What::Terminate) {
            for page in self.pages.values_mut() {
                page.drop_by(at, node);
            }
        }
        for number in event.pages.into_iter().flat_map(|pages| pages.iter()) {
            let page = self.pages.entry(number).or_default();
            match event.what {
                What::DataProvided(Access::Read) => page.read_by(at, node),
                What::DataProvided(Access::Write) | What::LockRequest(Lock::AllowWrite) => {
                    page.written_by(at, node);
                }
                What::DataWrite | What::LockCompleted => page.drop_by(at, node),
                _ => {}
            }
        }
    }

    /// How long all took, in seconds.
    pub fn seconds(&self) -> f64 {
        let length = self
            .time
            .map_or(0, |(begin, end)| end.saturating_sub(begin));
        length as f64 / 1e9
    }

    /// How many pages were used.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// How often the right to write to a page went to another node.
    pub fn moves(&self) -> usize {
        let of = |page: &Page| {
            let writer = |(_, held): &(u64, Held)| match held {
                Held::Written(node) => Some(*node),
                _ => None,
            };
            let writers: Vec<usize> = page.changes.iter().filter_map(writer).collect();
            writers.windows(2).filter(|pair| pair[0] != pair[1]).count()
        };
        self.pages.values().map(of).sum()
    }

    /// The picture, with at most so many rows and so many columns.
    pub fn grid(&self, rows: usize, columns: usize) -> Grid {
        let Some((begin, end)) = self.time else {
            return Grid { rows: Vec::new() };
        };
        let pages: Vec<(&PageNumber, &Page)> = self.pages.iter().collect();
        let each = pages.len().div_ceil(rows.max(1)).max(1);
        let length = (end - begin + 1) as u128;
        let place = |column: usize| begin + (length * column as u128 / columns as u128) as u64;
        let row = |chunk: &[(&PageNumber, &Page)]| {
            let (first, last) = (chunk[0].0.0, chunk[chunk.len() - 1].0.0);
            let cell = |column| {
                let mut times = BTreeMap::new();
                for (_, page) in chunk {
                    page.add_times((place(column), place(column + 1)), &mut times);
                }
                Cell::of(&times)
            };
            ((first, last), (0..columns).map(cell).collect())
        };
        Grid {
            rows: pages.chunks(each).map(row).collect(),
        }
    }
}

impl Page {
    fn read_by(&mut self, at: u64, node: usize) {
        self.readers.insert(node);
        self.writer = None;
        self.note(at);
    }

    fn written_by(&mut self, at: u64, node: usize) {
        self.readers.clear();
        self.writer = Some(node);
        self.note(at);
    }

    fn drop_by(&mut self, at: u64, node: usize) {
        self.readers.remove(&node);
        self.writer.take_if(|writer| *writer == node);
        self.note(at);
    }

    fn note(&mut self, at: u64) {
        let held = match self.writer {
            Some(node) => Held::Written(node),
            None if self.readers.is_empty() => Held::Nobody,
            None => Held::Read,
        };
        if self.changes.last().map_or(Held::Nobody, |(_, last)| *last) != held {
            self.changes.push((at, held));
        }
    }

    /// Adds for how long it was held how, between two times.
    fn add_times(&self, (from, to): (u64, u64), times: &mut BTreeMap<Held, u64>) {
        let first = self.changes.partition_point(|(at, _)| *at <= from);
        let mut held = match first.checked_sub(1) {
            Some(before) => self.changes[before].1,
            None => Held::Nobody,
        };
        let mut since = from;
        for (at, next) in &self.changes[first..] {
            if *at >= to {
                break;
            }
            *times.entry(held).or_default() += at - since;
            (since, held) = (*at, *next);
        }
        *times.entry(held).or_default() += to - since;
    }
}

impl Cell {
    fn of(times: &BTreeMap<Held, u64>) -> Cell {
        let is_writer = |(held, _): &(&Held, &u64)| matches!(held, Held::Written(_));
        let longest = times.iter().max_by_key(|(_, time)| **time);
        Cell {
            held: longest.map_or(Held::Nobody, |(held, _)| *held),
            is_shared: times.iter().filter(is_writer).count() > 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quire_core::dsm::message::Pages;
    use quire_dsm::wire::control::{Known, Seen};

    use super::*;

    fn watched(steps: &[(u64, usize, bool, What, u64)]) -> Watched {
        let seen = |(at, node, incoming, what, page): &(u64, usize, bool, What, u64)| Seen {
            at: *at,
            event: Event {
                incoming: *incoming,
                peer: Peer::Client(Client::Kernel(KernelId(*node as u64))),
                what: what.clone(),
                pages: Some(Pages::one(PageNumber(*page))),
            },
        };
        let known = |node: usize| Known {
            kernel: KernelId(node as u64),
            name: format!("{} (127.0.0.1:9)", name(node)),
        };
        Watched {
            seen: steps.iter().map(seen).collect(),
            lost: 0,
            known: (0..3).map(known).collect(),
        }
    }

    fn cells(row: &[Cell]) -> Vec<Held> {
        row.iter().map(|cell| cell.held).collect()
    }

    #[test]
    fn a_page_that_moves_is_seen_to_move() {
        let mut ownership = Ownership::default();
        let write = What::DataProvided(Access::Write);
        let read = What::DataProvided(Access::Read);
        ownership.learn(&watched(&[
            (0, 0, false, write.clone(), 5),
            (10, 0, true, What::LockCompleted, 5),
            (10, 1, false, write, 5),
            (20, 1, true, What::LockCompleted, 5),
            (20, 2, false, read, 5),
            (29, 2, true, What::LockCompleted, 5),
        ]));
        let grid = ownership.grid(10, 3);
        assert_eq!(grid.rows[0].0, (5, 5));
        let expected = [Held::Written(0), Held::Written(1), Held::Read];
        assert_eq!(cells(&grid.rows[0].1), expected);
        assert_eq!((ownership.moves(), ownership.pages()), (1, 1));
        let whole = ownership.grid(10, 1);
        assert!(whole.rows[0].1[0].is_shared);
    }

    proptest! {
        /// Cells of one page and one nanosecond each are what a naive replay says.
        #[test]
        fn the_finest_grid_is_a_replay(
            steps in proptest::collection::vec((0..3usize, 0..4u8, 0..3u64), 1..40)
        ) {
            let what = |kind| match kind {
                0 => What::DataProvided(Access::Read),
                1 => What::DataProvided(Access::Write),
                2 => What::LockRequest(Lock::AllowWrite),
                _ => What::LockCompleted,
            };
            let steps: Vec<_> = steps
                .iter()
                .enumerate()
                .map(|(at, (node, kind, page))| (at as u64, *node, *kind == 3, what(*kind), *page))
                .collect();
            let mut ownership = Ownership::default();
            ownership.learn(&watched(&steps));
            let grid = ownership.grid(3, steps.len());
            for ((page, _), row) in &grid.rows {
                let (mut writer, mut readers) = (None, BTreeSet::new());
                for (at, node, _, what, of) in &steps {
                    if of == page {
                        match what {
                            What::DataProvided(Access::Read) => { writer = None; readers.insert(*node); }
                            What::LockCompleted => {
                                readers.remove(node);
                                if writer == Some(*node) { writer = None; }
                            }
                            _ => { writer = Some(*node); readers.clear(); }
                        }
                    }
                    let expected = match writer {
                        Some(node) => Held::Written(node),
                        None if readers.is_empty() => Held::Nobody,
                        None => Held::Read,
                    };
                    prop_assert_eq!(row[*at as usize].held, expected);
                }
            }
        }
    }
}
