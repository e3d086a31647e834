//! What the typed heap of an object costs (paper 003, Figure 5 and section 7.3): allocating and
//! freeing blocks alone, beside another program that does so with blocks of the same size or of
//! another one, and where what one machine allocates another one frees. The programs are on machines
//! of their own. How many pages go from one to the other shows in the faults.

use std::time::Instant;

use anyhow::Result;
use clap::Args;
use quire_core::dsm::types::TypeTag;
use quire_core::units::{BASE_PAGE, Bytes, ObjectOffset};
use quire_dsm::client::Shared;
use quire_dsm::heap::{Heap, HeapError, View};
use quire_dsm::programs::Team;
use serde::{Deserialize, Serialize};

use crate::dsm::orders::Orders;
use crate::dsm::results::{Bound, Results};
use crate::dsm::site::{Site, Waiting};
use crate::dsm::{Part, Plan};
use crate::procfs;

/// The object, in base pages.
const ROOM: u64 = (64 << 20) / BASE_PAGE;

/// What blocks are made of.
const TAG: TypeTag = TypeTag::Int32;

/// Lists of different sizes do not contend: no program waits for pages that another one has. Other
/// faults, of a thread's own memory, are no more than this for 1000 blocks.
const FAULTS: f64 = 5.0;

/// The counter that says where the table of blocks is which are passed on.
const TABLE: usize = 0;

/// Blocks of one size.
struct Blocks {
    bytes: Bytes,
    /// How many are in use at once, and with `--quick`.
    count: [usize; 2],
    /// How often all of them are allocated and freed.
    rounds: [usize; 2],
}

/// Those of up to 16 pages come from a segment that the heap owns; larger ones from the list, whose lock
/// is a message.
const SIZES: [Blocks; 3] = [
    Blocks {
        bytes: Bytes(64),
        count: [4096, 64],
        rounds: [50, 2],
    },
    Blocks {
        bytes: Bytes(8 << 10),
        count: [64, 4],
        rounds: [50, 2],
    },
    Blocks {
        bytes: Bytes(128 << 10),
        count: [64, 4],
        rounds: [8, 2],
    },
];

/// Who else does what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nobody,
    /// Another program has blocks of the same size.
    Same,
    /// Another program has blocks of twice the size.
    Other,
    /// Another program frees what this one allocates.
    Frees,
}

impl Beside {
    const ALL: [Beside; 4] = [Beside::Nobody, Beside::Same, Beside::Other, Beside::Frees];

    const fn members(self) -> usize {
        match self {
            Beside::Nobody => 1,
            Beside::Same | Beside::Other | Beside::Frees => 2,
        }
    }

    /// What the figures are called of each program that is told.
    const fn names(self) -> &'static [&'static str] {
        match self {
            Beside::Nobody => &["alone"],
            Beside::Same => &["beside a program with the same size"],
            Beside::Other => &["beside a program with another size"],
            Beside::Frees => &[
                "allocated after another machine has freed it",
                "freed where another machine has allocated it",
            ],
        }
    }
}

/// What one program does.
#[derive(Args, Clone, Copy, Debug)]
pub struct Allocating {
    /// How large the blocks are
    #[arg(long)]
    pub bytes: Bytes,
    /// How many of them are in use at once
    #[arg(long)]
    pub blocks: usize,
    /// How often all of them are allocated and freed
    #[arg(long)]
    pub rounds: usize,
    /// The first of two members allocates, and the other one frees
    #[arg(long)]
    pub passed: bool,
}

/// What came of it, without the first round, in which the heap gets its memory.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Allocations {
    /// Blocks that were allocated or freed, or both.
    pub blocks: u64,
    /// For how long, in seconds.
    pub seconds: f64,
    /// Faults meanwhile.
    pub faults: u64,
}

impl Allocations {
    /// Does something with so many blocks, and counts it.
    fn count<R>(
        &mut self,
        blocks: usize,
        action: impl FnOnce() -> Result<R, HeapError>,
    ) -> Result<R> {
        let earlier = procfs::all_faults_of_this_thread()?;
        let start = Instant::now();
        let done = action()?;
        self.seconds += start.elapsed().as_secs_f64();
        self.faults += procfs::all_faults_of_this_thread()? - earlier;
        self.blocks += blocks as u64;
        Ok(done)
    }

    /// Microseconds for each block.
    fn us(&self) -> f64 {
        self.seconds * 1e6 / self.blocks.max(1) as f64
    }

    /// Faults for each thousand blocks.
    fn faults(&self) -> f64 {
        self.faults as f64 * 1e3 / self.blocks.max(1) as f64
    }
}

/// Allocates and frees, as one member.
pub fn allocate(shared: &Shared, team: &dyn Team, what: Allocating) -> Result<Allocations> {
    let heap = Heap::open(shared)?;
    let found = match what.passed {
        true => passed(&heap, team, what),
        false => own(&heap, team, what),
    }?;
    // Nobody gives memory back while another one is measured.
    team.barrier()?;
    Ok(found)
}

fn some(heap: &Heap, what: Allocating) -> Result<Vec<ObjectOffset>, HeapError> {
    let elements = what.bytes.0 / TAG.element();
    let blocks = (0..what.blocks).map(|_| heap.tmalloc(TAG, elements));
    blocks.collect()
}

/// A program frees what it has allocated itself.
fn own(heap: &Heap, team: &dyn Team, what: Allocating) -> Result<Allocations> {
    let round = || {
        some(heap, what)?
            .into_iter()
            .try_for_each(|at| heap.free(at))
    };
    let mut found = Allocations::default();
    round()?;
    team.barrier()?;
    found.count(what.blocks * what.rounds, || {
        (0..what.rounds).try_for_each(|_| round())
    })?;
    Ok(found)
}

/// The first member allocates, the other one frees.
fn passed(heap: &Heap, team: &dyn Team, what: Allocating) -> Result<Allocations> {
    let is_first = team.me() == 0;
    let table = table(heap, team, what.blocks)?;
    let mut found = Allocations::default();
    for round in 0..=what.rounds {
        if is_first {
            let blocks = found.count(what.blocks, || some(heap, what))?;
            for (index, at) in blocks.into_iter().enumerate() {
                table.set(index, i64::try_from(at.0)?);
            }
        }
        team.barrier()?;
        if !is_first {
            let blocks: Vec<i64> = table.iter().collect();
            let mut blocks = blocks.into_iter().map(i64::cast_unsigned);
            found.count(what.blocks, || {
                blocks.try_for_each(|at| heap.free(ObjectOffset(at)))
            })?;
        }
        team.barrier()?;
        if round == 0 {
            found = Allocations::default();
        }
    }
    Ok(found)
}

/// Where the first member writes down what it has allocated.
fn table<'a>(heap: &Heap<'a>, team: &dyn Team, blocks: usize) -> Result<View<'a, i64>> {
    if team.me() == 0 {
        let table = heap.alloc::<i64>(blocks)?;
        team.add(TABLE, i64::try_from(table.offset().0)?)?;
        team.barrier()?;
        return Ok(table);
    }
    team.barrier()?;
    let at = team.add(TABLE, 0)?;
    Ok(heap.view(ObjectOffset(at.cast_unsigned()))?)
}

/// Measures blocks of all sizes, beside whomever.
pub fn measure(site: &Site, plan: Plan, results: &mut Results) -> Result<()> {
    let variants = SIZES
        .iter()
        .flat_map(|size| Beside::ALL.map(|it| (size, it)));
    let variants: Vec<(&Blocks, Beside)> = variants.collect();
    let mut all: Vec<Vec<Vec<Allocations>>> = vec![Vec::new(); variants.len()];
    for _ in 0..plan.rounds {
        for ((size, beside), found) in variants.iter().zip(&mut all) {
            found.push(run(site, plan, size, *beside)?);
        }
    }
    for ((size, beside), found) in variants.into_iter().zip(&all) {
        tell(site, size, beside, found, results);
    }
    Ok(())
}

/// What each member found.
fn run(site: &Site, plan: Plan, size: &Blocks, beside: Beside) -> Result<Vec<Allocations>> {
    let served = site.serve(Orders::serve(Waiting::Sleeping))?;
    let members = beside.members();
    let pick = |[usual, quick]: [usize; 2]| plan.size(usual, quick);
    let member = |me: usize| {
        let times = if beside == Beside::Other {
            me as u64 + 1
        } else {
            1
        };
        let orders = Orders::at(&served, "heap", "allocate").with("--scheduler", "multi");
        let orders = orders.with("--room", ROOM).member(me, members);
        let orders = orders.with("--bytes", size.bytes.0 * times);
        let orders = orders.with("--blocks", pick(size.count));
        let orders = orders.with("--rounds", pick(size.rounds));
        orders.with_flag("--passed", beside == Beside::Frees)
    };
    site.together((0..members).map(member))
}

fn tell(
    site: &Site,
    size: &Blocks,
    beside: Beside,
    found: &[Vec<Allocations>],
    results: &mut Results,
) {
    let (part, setting) = (Part::Heap, &site.setting);
    for (member, name) in beside.names().iter().enumerate() {
        let of = |value: fn(&Allocations) -> f64| -> Vec<f64> {
            let members = found.iter().filter_map(|all| all.get(member));
            members.map(value).collect()
        };
        let title = format!("blocks of {}, {name}", size.bytes);
        results.add(part, setting, &title, "us", of(Allocations::us));
        let title = format!("{title}: faults for 1000");
        let faults = results.add(part, setting, &title, "", of(Allocations::faults));
        if matches!(beside, Beside::Nobody | Beside::Other) {
            let text = format!("{title} at most {FAULTS}");
            results.judge(part, setting, text, faults, Bound::AtMost(FAULTS));
        }
    }
}
