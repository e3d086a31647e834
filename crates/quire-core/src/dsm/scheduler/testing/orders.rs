//! What is checked in all orders with each scheduler of a single server, and that the checker
//! finds the same mistakes in each.

use super::model::{ANSWERED, Checkable, Checked, ONE_WRITER, SENSE};
use super::mutant::{Deaf, Eager, Hasty};
use super::world::Setup;
use crate::dsm::scheduler::observe::Observe;
use crate::dsm::scheduler::options::Options;

/// A scheduler, and a small world for it.
pub(crate) struct Orders<S> {
    pub(crate) name: &'static str,
    pub(crate) make: fn(Options) -> S,
    /// Three kernels and two pages, with so many accesses of each kernel, and nothing else.
    pub(crate) small: fn([u8; 3]) -> Setup,
}

impl<S: Checkable + Observe> Orders<S> {
    /// All orders in the small world with something changed are right.
    pub(crate) fn check(&self, what: &str, accesses: [u8; 3], change: impl FnOnce(&mut Setup)) {
        self.check_with(Options::new(2), what, accesses, change);
    }

    /// The same with some options of the scheduler.
    pub(crate) fn check_with(
        &self,
        options: Options,
        what: &str,
        accesses: [u8; 3],
        change: impl FnOnce(&mut Setup),
    ) {
        let mut setup = (self.small)(accesses);
        change(&mut setup);
        let scheduler = (self.make)(options);
        Checked { scheduler, setup }.check(&format!("{}, {what}", self.name));
    }

    /// A writer that does not wait for readers is found.
    pub(crate) fn find_hasty(&self) {
        let scheduler = Hasty::new((self.make)(Options::new(2)));
        finds(scheduler, (self.small)([2, 1, 1]), &[ONE_WRITER]);
    }

    /// Contents that are taken for an answer are found.
    pub(crate) fn find_eager(&self) {
        let scheduler = Eager((self.make)(Options::new(2)));
        let setup = Setup {
            page_outs: 1,
            ranges: vec![vec![(0, 1)]; 3],
            ..(self.small)([2, 1, 1])
        };
        finds(scheduler, setup, &[ONE_WRITER, SENSE]);
    }

    /// A crash that is not heard of is found.
    pub(crate) fn find_deaf(&self) {
        let scheduler = Deaf((self.make)(Options::new(2)));
        let setup = Setup {
            crashes: 1,
            ..(self.small)([1, 1, 0])
        };
        finds(scheduler, setup, &[ANSWERED]);
    }
}

fn finds<S: Checkable>(scheduler: S, setup: Setup, properties: &[&str]) {
    let violated = Checked { scheduler, setup }.violated();
    let mut names = violated.iter().map(|(name, _)| name);
    assert!(names.any(|name| properties.contains(name)), "{violated:?}");
}
