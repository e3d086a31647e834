//! How long the automata of the schedulers take for a fault, without network, disk or page
//! tables: kernels take turns in writing to the same pages. Prints nanoseconds per fault
//! and per message.
//!
//! `cargo run --release -p quire-core --example faults`

use std::sync::Arc;
use std::time::Instant;

use quire_core::dsm::message::{Access, FromKernel, KernelId, PageNumber, Pages};
use quire_core::dsm::scheduler::multi::Multi;
use quire_core::dsm::scheduler::options::Options;
use quire_core::dsm::scheduler::simple::Simple;
use quire_core::dsm::scheduler::trace::Traced;
use quire_core::dsm::scheduler::{Action, Scheduler};

const KERNELS: u64 = 4;
const FAULTS: u64 = 200_000;
const RESIDENT: u64 = 1 << 16;

type Contents = Arc<[u8]>;

fn main() {
    let options = Options::new(RESIDENT);
    let one = |name, pages| measure(name, Multi::new(options), pages);
    measure("simple", Simple::new(options), 1);
    measure(
        "simple, traced by nobody",
        Traced::new(Simple::new(options)),
        1,
    );
    one("multi", 1);
    one("multi, 16 pages at once", 16);
    one("multi, 512 pages at once", 512);
}

/// The hot pages lie among many that the scheduler knows.
fn measure<S: Scheduler<Contents>>(name: &str, mut scheduler: S, count: u32) {
    let contents: Contents = Arc::from(vec![0; 4096]);
    let mut actions = Vec::new();
    for page in (0..RESIDENT).map(PageNumber) {
        let pages = Pages::one(page);
        say(
            &mut scheduler,
            0,
            request(pages, Access::Write),
            &mut actions,
        );
        scheduler.loaded(pages, Some(vec![Some(contents.clone())]), &mut actions);
    }
    let pages = Pages {
        first: PageNumber(RESIDENT / 2),
        count,
    };
    let faults = FAULTS / u64::from(count);
    let data = vec![Some(contents); count as usize];
    let begin = Instant::now();
    for fault in 1..=faults {
        let (owner, next) = ((fault - 1) % KERNELS, fault % KERNELS);
        let data = data.clone();
        actions.clear();
        say(
            &mut scheduler,
            next,
            request(pages, Access::Write),
            &mut actions,
        );
        say(
            &mut scheduler,
            owner,
            FromKernel::DataWrite { pages, data },
            &mut actions,
        );
        say(
            &mut scheduler,
            owner,
            FromKernel::LockCompleted { pages },
            &mut actions,
        );
        assert_eq!(actions.len(), 3, "a flush, the contents saved and provided");
    }
    let per_fault = begin.elapsed().as_nanos() as f64 / faults as f64;
    println!(
        "{name}: {per_fault:.0} ns per fault, {:.0} ns per message",
        per_fault / 5.0
    );
}

fn request(pages: Pages, access: Access) -> FromKernel<Contents> {
    FromKernel::DataRequest { pages, access }
}

fn say<S: Scheduler<Contents>>(
    scheduler: &mut S,
    kernel: u64,
    message: FromKernel<Contents>,
    actions: &mut Vec<Action<Contents>>,
) {
    scheduler
        .kernel_says(KernelId(kernel), message, actions)
        .expect("honest kernels make sense");
}
