//! How free blocks are found (paper 003, section 7.3): one list of all of them, of which the first that
//! is large enough is taken, beside a list for each size, and beside the typed heap, which is of the
//! second kind and takes blocks from its lists in batches. Blocks of many sizes are allocated and freed
//! in an order at random, by one program and by two on machines of their own.
//!
//! The paper compared the first two within one machine, where a list's lock costs next to nothing; so
//! they are measured without locks, too.

use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};
use quire_core::dsm::sync::{Name, Request};
use quire_core::dsm::types::TypeTag;
use quire_core::units::{BASE_PAGE, ObjectOffset};
use quire_dsm::client::Shared;
use quire_dsm::heap::Heap;
use quire_dsm::programs::Team;
use serde::{Deserialize, Serialize};

use crate::dsm::orders::Orders;
use crate::dsm::results::Results;
use crate::dsm::site::{Site, Waiting};
use crate::dsm::{Part, Plan};
use crate::kernels::Numbers;
use crate::procfs;
use by_size::BySize;
use first_fit::FirstFit;

mod by_size;
mod first_fit;

/// The object, in base pages.
const ROOM: u64 = (16 << 20) / BASE_PAGE;
const WORD: usize = 8;
/// Blocks have 2 words and more, up to 2 to this power words: each power of two between as often.
const MOST_ORDER: f64 = 9.0;
/// Of so many places of a program, each holds a block half of the time.
const PLACES: usize = 1000;

/// Blocks of an object's memory, by words.
trait Lists {
    /// A block of so many words.
    fn alloc(&self, words: usize) -> Result<usize>;
    /// Frees the block that begins there.
    fn free(&self, at: usize) -> Result<()>;
    /// How many words were ever needed, those of the lists among them, which are there at first.
    fn extent(&self) -> Result<usize>;
}

/// How lists are locked.
trait Locks {
    type Held<'a>
    where
        Self: 'a;

    /// Holds the lock of a number until what is returned is dropped.
    fn lock(&self, number: usize) -> Result<Self::Held<'_>>;
}

/// Nobody else is there.
struct Unlocked;

impl Locks for Unlocked {
    type Held<'a> = ();

    fn lock(&self, _: usize) -> Result<()> {
        Ok(())
    }
}

/// Mutexes of the object's server.
struct Mutexes<'a>(&'a Shared);

struct Held<'a>(&'a Shared, Name);

impl Locks for Mutexes<'_> {
    type Held<'a>
        = Held<'a>
    where
        Self: 'a;

    fn lock(&self, number: usize) -> Result<Held<'_>> {
        let name = Name(format!("list.{number}"));
        self.0.synchronise(Request::Lock(name.clone()))?;
        Ok(Held(self.0, name))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.say(Request::Unlock(self.1.clone()));
    }
}

/// The typed heap.
struct Typed<'a>(Heap<'a>);

impl Lists for Typed<'_> {
    fn alloc(&self, words: usize) -> Result<usize> {
        let at = self.0.tmalloc(TypeTag::Int64, words as u64)?;
        Ok(at.0 as usize / WORD)
    }

    fn free(&self, at: usize) -> Result<()> {
        Ok(self.0.free(ObjectOffset((at * WORD) as u64))?)
    }

    fn extent(&self) -> Result<usize> {
        let free = self.0.free_space()?.0;
        Ok((ROOM * BASE_PAGE - free) as usize / WORD)
    }
}

/// How free blocks are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// One list, first fit
    FirstFit,
    /// A list for each size
    BySize,
    /// The typed heap
    Heap,
}

/// What a program does.
#[derive(Args, Clone, Copy, Debug)]
pub struct Listing {
    /// How free blocks are found
    #[arg(long)]
    pub kind: Kind,
    /// How many blocks are allocated or freed
    #[arg(long)]
    pub operations: usize,
    /// Nobody else is there: nothing is locked
    #[arg(long)]
    pub unlocked: bool,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Listed {
    /// Microseconds for each block that was allocated or freed.
    us: f64,
    /// Faults for each thousand of them.
    faults: f64,
    /// Memory of the object that was needed for blocks, by what the blocks of all programs that were in use at
    /// once held at most; as far as this program knows: of its own, times the number of programs.
    memory: f64,
}

/// Allocates and frees, as one member.
pub fn run(shared: &Shared, team: &dyn Team, what: Listing) -> Result<Listed> {
    let words = shared.words();
    let found = match (what.kind, what.unlocked) {
        (Kind::FirstFit, true) => measured(&FirstFit::new(words, Unlocked), team, what),
        (Kind::FirstFit, false) => measured(&FirstFit::new(words, Mutexes(shared)), team, what),
        (Kind::BySize, true) => measured(&BySize::new(words, Unlocked), team, what),
        (Kind::BySize, false) => measured(&BySize::new(words, Mutexes(shared)), team, what),
        (Kind::Heap, _) => measured(&Typed(Heap::open(shared)?), team, what),
    }?;
    // Nobody gives memory back while another one is measured.
    team.barrier()?;
    Ok(found)
}

fn measured(lists: &impl Lists, team: &dyn Team, what: Listing) -> Result<Listed> {
    let before = lists.extent()?;
    team.barrier()?;
    let mut program = Program::new(lists, team.me());
    program.steps(4 * PLACES)?;
    team.barrier()?;
    let earlier = procfs::all_faults_of_this_thread()?;
    let start = Instant::now();
    program.steps(what.operations)?;
    let seconds = start.elapsed().as_secs_f64();
    let faults = procfs::all_faults_of_this_thread()? - earlier;
    team.barrier()?;
    let most = (program.most * team.size()) as f64;
    Ok(Listed {
        us: seconds * 1e6 / what.operations as f64,
        faults: faults as f64 * 1e3 / what.operations as f64,
        memory: (lists.extent()? - before) as f64 / most,
    })
}

/// A program that allocates and frees at random.
struct Program<'a, L> {
    lists: &'a L,
    random: Numbers,
    /// Blocks with their sizes, in words.
    places: Vec<Option<(usize, usize)>>,
    used: usize,
    most: usize,
}

impl<'a, L: Lists> Program<'a, L> {
    fn new(lists: &'a L, seed: usize) -> Program<'a, L> {
        Program {
            lists,
            random: Numbers::new(seed as u64 + 1),
            places: vec![None; PLACES],
            used: 0,
            most: 0,
        }
    }

    /// Allocates a block for a place that has none, or frees the one that it has, so often.
    fn steps(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            let place = self.random.below(PLACES);
            match self.places[place].take() {
                Some((at, words)) => {
                    self.lists.free(at)?;
                    self.used -= words;
                }
                None => {
                    let order = 1.0 + self.random.unit() * (MOST_ORDER - 1.0);
                    let words = order.exp2() as usize;
                    self.places[place] = Some((self.lists.alloc(words)?, words));
                    self.used += words;
                    self.most = self.most.max(self.used);
                }
            }
        }
        Ok(())
    }
}

/// What is measured.
struct Variant {
    name: &'static str,
    kind: Kind,
    unlocked: bool,
    members: usize,
    /// How many blocks are allocated or freed, and with `--quick`.
    operations: [usize; 2],
}

const fn variant(name: &'static str, kind: Kind, unlocked: bool, members: usize) -> Variant {
    let usual = match (unlocked, members) {
        (true, _) => 200_000,
        (false, 1) => 10_000,
        (false, _) => 2_000,
    };
    Variant {
        name,
        kind,
        unlocked,
        members,
        operations: [usual, 100],
    }
}

const VARIANTS: [Variant; 8] = [
    variant("alone, nothing locked, first fit", Kind::FirstFit, true, 1),
    variant("alone, nothing locked, by size", Kind::BySize, true, 1),
    variant("alone, first fit", Kind::FirstFit, false, 1),
    variant("alone, by size", Kind::BySize, false, 1),
    variant("alone, typed heap", Kind::Heap, false, 1),
    variant("two programs, first fit", Kind::FirstFit, false, 2),
    variant("two programs, by size", Kind::BySize, false, 2),
    variant("two programs, typed heap", Kind::Heap, false, 2),
];

/// Measures all of them, in turns.
pub fn measure(site: &Site, plan: Plan, results: &mut Results) -> Result<()> {
    let mut all = vec![Vec::new(); VARIANTS.len()];
    for _ in 0..plan.rounds {
        for (variant, found) in VARIANTS.iter().zip(&mut all) {
            found.push(run_one(site, plan, variant)?);
        }
    }
    let (part, setting) = (Part::Lists, &site.setting);
    for (variant, found) in VARIANTS.iter().zip(&all) {
        let of = |value: fn(&Listed) -> f64| found.iter().map(value).collect();
        let name = variant.name;
        results.add(part, setting, name, "us", of(|it| it.us));
        let title = format!("{name}: faults for 1000");
        results.add(part, setting, &title, "", of(|it| it.faults));
        let title = format!("{name}: memory by what is used");
        results.add(part, setting, &title, "", of(|it| it.memory));
    }
    for (ratio, value) in [
        ("time", (|it| it.us) as fn(&Listed) -> f64),
        ("memory", |it| it.memory),
    ] {
        let [first_fit, by_size] = [&all[0], &all[1]];
        let pairs = first_fit.iter().zip(by_size);
        let values = pairs.map(|(first_fit, by_size)| value(by_size) / value(first_fit));
        let name = format!("alone, nothing locked, {ratio}: by size by first fit");
        results.add(part, setting, &name, "", values.collect());
        results.paper(match ratio {
            "time" => "20 to 30 % faster",
            _ => "1/4 on average",
        });
    }
    Ok(())
}

/// What the first member found.
fn run_one(site: &Site, plan: Plan, variant: &Variant) -> Result<Listed> {
    let served = site.serve(Orders::serve(Waiting::Sleeping))?;
    let [usual, quick] = variant.operations;
    let member = |me: usize| {
        let orders = Orders::at(&served, "lists", "list").with("--scheduler", "multi");
        let orders = orders.with("--room", ROOM).member(me, variant.members);
        let kind = variant.kind.to_possible_value();
        let kind = kind.map_or_else(String::new, |kind| kind.get_name().to_owned());
        let orders = orders.with("--kind", kind);
        let orders = orders.with("--operations", plan.size(usual, quick));
        orders.with_flag("--unlocked", variant.unlocked)
    };
    let found: Vec<Listed> = site.together((0..variant.members).map(member))?;
    let count = found.len() as f64;
    let mean = |of: fn(&Listed) -> f64| found.iter().map(of).sum::<f64>() / count;
    Ok(Listed {
        us: mean(|it| it.us),
        faults: mean(|it| it.faults),
        memory: mean(|it| it.memory),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use quire_dsm::programs::Word;

    use super::*;

    fn memory() -> Vec<Word> {
        (0..ROOM as usize * BASE_PAGE as usize / WORD)
            .map(|_| Word::new(0))
            .collect()
    }

    /// No two blocks that are in use overlap, and what is freed is used again.
    fn look_at(lists: &impl Lists) {
        let mut program = Program::new(lists, 0);
        let mut after_some = 0;
        for round in 0..200 {
            program.steps(100).unwrap();
            let used = program.places.iter().flatten();
            let used: BTreeMap<usize, usize> = used.copied().collect();
            let mut free_from = 0;
            for (at, words) in used {
                assert!(at >= free_from, "{at} is in two blocks");
                free_from = at + words;
            }
            assert!(free_from <= lists.extent().unwrap());
            if round == 100 {
                after_some = lists.extent().unwrap();
            }
        }
        let extent = lists.extent().unwrap();
        assert!(
            extent < after_some + after_some / 5,
            "{extent}, {after_some}"
        );
    }

    #[test]
    fn blocks_of_one_list_do_not_overlap() {
        look_at(&FirstFit::new(&memory(), Unlocked));
    }

    #[test]
    fn blocks_of_lists_by_size_do_not_overlap() {
        look_at(&BySize::new(&memory(), Unlocked));
    }

    #[test]
    fn first_fit_joins_neighbours_that_are_free() {
        let memory = memory();
        let lists = FirstFit::new(&memory, Unlocked);
        let blocks: Vec<usize> = (0..8).map(|_| lists.alloc(100).unwrap()).collect();
        let extent = lists.extent().unwrap();
        for at in [1, 3, 2, 5, 4, 6] {
            lists.free(blocks[at]).unwrap();
        }
        for _ in 0..2 {
            lists.alloc(3 * 102 - 2).unwrap();
        }
        assert_eq!(lists.extent().unwrap(), extent);
    }
}
