//! Shortest paths from one point of a planar graph, a grid with random weights (paper 003,
//! section 7.3). Each member has some rows of the grid. It extends the most promising paths
//! first, looks only at the neighbours of a point, and queues what leaves its rows to the
//! member whose rows they are.
//!
//! A queue is a ring in shared memory behind a mutex. Who has nothing to do waits until a
//! batch was queued to it. It is over when nobody works and no batch is on its way; so many
//! of both there are is a counter (`Work`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::{Team, Trouble, WORDS_PER_PAGE, Word, share, whole_pages};
use crate::random::Numbers;

/// Extensions that a queue holds at most.
const CAPACITY: usize = 4 * WORDS_PER_PAGE;
/// So many extensions are queued at once.
const BATCH: usize = 64;
/// Words of a queue: begin, end, and two for each extension.
const QUEUE: usize = WORDS_PER_PAGE + 2 * CAPACITY;
/// Words before the rest: whether it is over.
const HEAD: usize = WORDS_PER_PAGE;
/// The largest weight.
const WEIGHTS: usize = 100;

/// Words that it needs.
#[must_use]
pub const fn words(side: usize, members: usize) -> usize {
    HEAD + 2 * whole_pages(side * side) + members * QUEUE
}

/// A path: its length, and the point to which it leads.
type Path = (u64, usize);

/// The grid. The weight of an edge depends on its lower point and its direction.
#[derive(Clone, Copy)]
struct Grid {
    side: usize,
}

impl Grid {
    fn weights(self, point: usize) -> [u64; 2] {
        let mut numbers = Numbers(point as u64);
        [(); 2].map(|()| 1 + numbers.below(WEIGHTS) as u64)
    }

    /// The neighbours of a point, and the weights of the edges to them, where those of a
    /// point are as given.
    fn neighbours(
        self,
        point: usize,
        weights: impl Fn(usize) -> [u64; 2],
    ) -> impl Iterator<Item = (usize, u64)> {
        let (row, column) = (point / self.side, point % self.side);
        let right = (column + 1 < self.side).then(|| (point + 1, weights(point)[0]));
        let down = (row + 1 < self.side).then(|| (point + self.side, weights(point)[1]));
        let left = (column > 0).then(|| (point - 1, weights(point - 1)[0]));
        let up = (row > 0).then(|| (point - self.side, weights(point - self.side)[1]));
        [right, down, left, up].into_iter().flatten()
    }
}

/// Finds the lengths of the shortest paths from the first point of a grid.
///
/// # Errors
/// When the members cannot synchronise.
pub fn run(team: &dyn Team, memory: &[Word], side: usize) -> Result<(), Trouble> {
    let grid = Grid { side };
    let mut work = Work::new(team, memory, grid);
    work.prepare();
    team.add(work.outstanding(), 1)?;
    team.barrier()?;
    if work.rows.start == 0 && !work.rows.is_empty() {
        work.offer((0, 0));
    }
    work.whole()?;
    team.barrier()
}

/// What a member does.
struct Work<'a> {
    team: &'a dyn Team,
    grid: Grid,
    /// The rows that are its own.
    rows: Range<usize>,
    over: &'a Word,
    /// The weights of the edges right and down of each point, in one word.
    weights: &'a [Word],
    /// One more than the length of the best path known to each point; 0 where there is none.
    lengths: &'a [Word],
    queues: Vec<&'a [Word]>,
    /// The paths that are to be extended, the shortest first.
    open: BinaryHeap<Reverse<Path>>,
    /// What is to be queued to others.
    outgoing: Vec<Vec<Path>>,
    /// The shortest path that was queued to each point of others.
    told: HashMap<usize, u64>,
    /// Batches that it has taken from its queue.
    taken: i64,
}

impl<'a> Work<'a> {
    fn new(team: &'a dyn Team, memory: &'a [Word], grid: Grid) -> Work<'a> {
        let (head, rest) = memory.split_at(HEAD);
        let part = whole_pages(grid.side * grid.side);
        let (weights, rest) = rest.split_at(part);
        let (lengths, queues) = rest.split_at(part);
        Work {
            team,
            grid,
            rows: share(team, grid.side),
            over: &head[0],
            weights,
            lengths,
            queues: queues.chunks_exact(QUEUE).take(team.size()).collect(),
            open: BinaryHeap::new(),
            outgoing: vec![Vec::new(); team.size()],
            told: HashMap::new(),
            taken: 0,
        }
    }

    /// The counter of who works and of batches on their way.
    fn outstanding(&self) -> usize {
        self.team.size()
    }

    /// Writes the weights of its rows.
    fn prepare(&self) {
        let points = self.rows.start * self.grid.side..self.rows.end * self.grid.side;
        for point in points {
            let [right, down] = self.grid.weights(point);
            self.weights[point].store(right << 32 | down, Ordering::Relaxed);
        }
    }

    fn whole(&mut self) -> Result<(), Trouble> {
        loop {
            while let Some(Reverse(path)) = self.open.pop() {
                self.extend(path)?;
                if self.open.len().is_multiple_of(BATCH) {
                    let batches = self.take()?;
                    self.settle(-batches)?;
                }
            }
            for member in 0..self.team.size() {
                self.send(member)?;
            }
            if self.open.is_empty() && !self.wait()? {
                return Ok(());
            }
        }
    }

    /// A path of its own, if it is better than what is known.
    fn offer(&mut self, (length, point): Path) {
        let word = &self.lengths[point];
        let known = word.load(Ordering::Relaxed);
        if known == 0 || length + 1 < known {
            word.store(length + 1, Ordering::Relaxed);
            self.open.push(Reverse((length, point)));
        }
    }

    fn extend(&mut self, (length, point): Path) -> Result<(), Trouble> {
        if self.lengths[point].load(Ordering::Relaxed) != length + 1 {
            return Ok(());
        }
        let weights = self.weights;
        let of_point = |point: usize| {
            let both = weights[point].load(Ordering::Relaxed);
            [both >> 32, both & u64::from(u32::MAX)]
        };
        for (next, weight) in self.grid.neighbours(point, of_point) {
            let path = (length + weight, next);
            if self.rows.contains(&(next / self.grid.side)) {
                self.offer(path);
            } else {
                self.tell(path)?;
            }
        }
        Ok(())
    }

    /// A path into the rows of somebody else.
    fn tell(&mut self, (length, point): Path) -> Result<(), Trouble> {
        let told = self.told.entry(point).or_insert(u64::MAX);
        if length >= *told {
            return Ok(());
        }
        *told = length;
        let member = self.owner(point / self.grid.side);
        self.outgoing[member].push((length, point));
        match self.outgoing[member].len() >= BATCH {
            true => self.send(member),
            false => Ok(()),
        }
    }

    /// Whose row it is: the last member whose rows do not begin after it.
    fn owner(&self, row: usize) -> usize {
        let (side, members) = (self.grid.side, self.team.size());
        let first = |member: usize| side * member / members;
        let mut member = (row * members / side).min(members - 1);
        while first(member + 1) <= row {
            member += 1;
        }
        member
    }

    /// Queues what there is for a member. While its queue is full, its own is emptied, so
    /// that two who send to each other go on.
    fn send(&mut self, member: usize) -> Result<(), Trouble> {
        let mut batch = std::mem::take(&mut self.outgoing[member]);
        if batch.is_empty() {
            return Ok(());
        }
        while !batch.is_empty() {
            self.settle(1)?;
            self.team.lock(member)?;
            let queued = push(self.queues[member], &mut batch);
            self.team.unlock(member)?;
            if queued {
                self.team.add(member, 1)?;
            } else {
                self.settle(-1)?;
                let batches = self.take()?;
                self.settle(-batches)?;
            }
        }
        Ok(())
    }

    /// Takes what is in its queue. Returns how many batches it was told of.
    fn take(&mut self) -> Result<i64, Trouble> {
        let told = self.team.add(self.team.me(), 0)?;
        let batches = told - self.taken;
        if batches > 0 {
            self.taken = told;
            self.team.lock(self.team.me())?;
            let paths = pop(self.queues[self.team.me()]);
            self.team.unlock(self.team.me())?;
            for path in paths {
                self.offer(path);
            }
        }
        Ok(batches)
    }

    /// Changes how much is outstanding. Who leaves nothing tells everybody that it is over.
    fn settle(&self, by: i64) -> Result<(), Trouble> {
        if by != 0 && self.team.add(self.outstanding(), by)? == 0 {
            self.over.store(1, Ordering::Relaxed);
            for member in 0..self.team.size() {
                self.team.add(member, 1)?;
            }
        }
        Ok(())
    }

    /// Waits for a batch, with nothing to do. Returns whether there is something to do.
    fn wait(&mut self) -> Result<bool, Trouble> {
        self.settle(-1)?;
        self.team.at_least(self.team.me(), self.taken + 1)?;
        if self.over.load(Ordering::Relaxed) != 0 {
            return Ok(false);
        }
        let batches = self.take()?;
        self.settle(1 - batches)?;
        Ok(true)
    }
}

/// Queues paths as far as there is room. Returns whether any was queued.
fn push(queue: &[Word], batch: &mut Vec<Path>) -> bool {
    let (ends, slots) = queue.split_at(WORDS_PER_PAGE);
    let (begin, end) = (get(ends, 0), get(ends, 1));
    let room = CAPACITY - (end - begin) as usize;
    let count = room.min(batch.len());
    for (at, (length, point)) in (end..).zip(batch.drain(..count)) {
        let at = 2 * (at as usize % CAPACITY);
        slots[at].store(length, Ordering::Relaxed);
        slots[at + 1].store(point as u64, Ordering::Relaxed);
    }
    ends[1].store(end + count as u64, Ordering::Relaxed);
    count > 0
}

/// Takes all paths out of a queue.
fn pop(queue: &[Word]) -> Vec<Path> {
    let (ends, slots) = queue.split_at(WORDS_PER_PAGE);
    let (begin, end) = (get(ends, 0), get(ends, 1));
    ends[0].store(end, Ordering::Relaxed);
    let path = |at| {
        let at = 2 * (at as usize % CAPACITY);
        (get(slots, at), get(slots, at + 1) as usize)
    };
    (begin..end).map(path).collect()
}

fn get(words: &[Word], at: usize) -> u64 {
    words[at].load(Ordering::Relaxed)
}

/// Compares with what one who works alone finds.
///
/// # Errors
/// Which point is wrong.
pub fn check(memory: &[Word], side: usize) -> Result<(), Trouble> {
    let grid = Grid { side };
    let (weights, lengths) = memory[HEAD..].split_at(whole_pages(side * side));
    let points = grid.side * grid.side;
    let both = |point: usize| grid.weights(point)[0] << 32 | grid.weights(point)[1];
    if let Some(point) = (0..points).find(|point| get(weights, *point) != both(*point)) {
        return Err(Trouble::Wrong(format!(
            "the weights of point {point} changed"
        )));
    }
    let mut known = vec![u64::MAX; points];
    let mut open = BinaryHeap::from([Reverse((0, 0))]);
    known[0] = 0;
    while let Some(Reverse((length, point))) = open.pop() {
        if length > known[point] {
            continue;
        }
        for (next, weight) in grid.neighbours(point, |point| grid.weights(point)) {
            if length + weight < known[next] {
                known[next] = length + weight;
                open.push(Reverse((length + weight, next)));
            }
        }
    }
    match (0..points).find(|point| get(lengths, *point) != known[*point] + 1) {
        Some(point) => Err(Trouble::Wrong(format!(
            "the path to point {point} has length {} instead of {}",
            get(lengths, point).wrapping_sub(1),
            known[point]
        ))),
        None => Ok(()),
    }
}
