//! Schedulers that let go of contents whenever they may: all that must hold, holds with
//! them, too.

use proptest::prelude::*;

use super::model::{Checkable, Checked};
use super::random::{large, wander};
use super::world::Setup;
use crate::dsm::message::{Client, FromKernel, KernelId, PageNumber, Pages};
use crate::dsm::scheduler::multi::Multi;
use crate::dsm::scheduler::options::Options;
use crate::dsm::scheduler::simple::Simple;
use crate::dsm::scheduler::{Action, Nonsense, Scheduler};

/// After every so many calls all contents go that may go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Forgetful<S> {
    scheduler: S,
    pages: u64,
    every: u32,
    calls: u32,
}

impl<S: Scheduler<u8>> Forgetful<S> {
    fn new(scheduler: S, pages: u64, every: u32) -> Forgetful<S> {
        Forgetful {
            scheduler,
            pages,
            every,
            calls: 0,
        }
    }

    fn forget(&mut self) {
        self.calls = (self.calls + 1) % self.every;
        if self.calls == 0 {
            for page in 0..self.pages {
                self.scheduler.release(PageNumber(page));
            }
        }
    }
}

impl<S: Scheduler<u8>> Scheduler<u8> for Forgetful<S> {
    fn kernel_says(
        &mut self,
        kernel: KernelId,
        message: FromKernel<u8>,
        actions: &mut Vec<Action<u8>>,
    ) -> Result<(), Nonsense> {
        let outcome = self.scheduler.kernel_says(kernel, message, actions);
        self.forget();
        outcome
    }

    fn loaded(
        &mut self,
        pages: Pages,
        data: Option<Vec<Option<u8>>>,
        actions: &mut Vec<Action<u8>>,
    ) {
        self.scheduler.loaded(pages, data, actions);
        self.forget();
    }

    fn gone(&mut self, client: Client, actions: &mut Vec<Action<u8>>) {
        self.scheduler.gone(client, actions);
        self.forget();
    }
}

/// Three kernels and two pages, which a request may name both.
fn small(together: bool) -> Setup {
    let (ranges, first) = match together {
        true => (vec![(0, 1), (0, 2)], 1),
        false => (vec![(0, 1), (1, 1)], 2),
    };
    Setup {
        ranges: vec![ranges.clone(), ranges, vec![(0, 1)]],
        pages: 2,
        accesses: vec![first, 1, 1],
        threads: 1,
        page_outs: 0,
        crashes: 1,
        ends: 0,
    }
}

fn checked<S: Checkable>(scheduler: S, setup: Setup, name: &str) {
    let scheduler = Forgetful::new(scheduler, 2, 1);
    Checked { scheduler, setup }.check(name);
}

#[test]
fn a_forgetful_simple_scheduler_is_right_in_all_orders() {
    checked(
        Simple::new(Options::new(2)),
        small(false),
        "simple, forgetful",
    );
}

#[test]
fn a_forgetful_multi_scheduler_is_right_in_all_orders() {
    checked(Multi::new(Options::new(2)), small(true), "multi, forgetful");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn forgetful_schedulers_are_right_for_long(
        choices in prop::collection::vec(any::<u16>(), 600),
        every in 1..5_u32,
    ) {
        let setup = large([1; 6]);
        let simple = Simple::new(Options::new(6));
        wander(Forgetful::new(simple, 6, every), &setup, &choices)?;
        let setup = large([1, 1, 2, 2, 3, 6]);
        let multi = Multi::new(Options::new(6));
        wander(Forgetful::new(multi, 6, every), &setup, &choices)?;
    }
}

/// What is let go of is loaded again.
#[test]
fn contents_that_went_are_loaded_again() {
    let mut multi = Multi::new(Options::new(6));
    let (pages, access) = (Pages::one(PageNumber(3)), crate::dsm::message::Access::Read);
    let mut actions = Vec::new();
    let mut ask = |multi: &mut Multi<u8>, kernel| {
        actions.clear();
        let message = FromKernel::DataRequest { pages, access };
        multi
            .kernel_says(KernelId(kernel), message, &mut actions)
            .expect("sense");
        actions
            .iter()
            .any(|action| matches!(action, Action::Load(_)))
    };
    assert!(!multi.release(PageNumber(3)), "nobody knows the page");
    assert!(ask(&mut multi, 1));
    assert!(!multi.release(PageNumber(3)), "somebody waits");
    multi.loaded(pages, Some(vec![Some(7)]), &mut Vec::new());
    assert!(!ask(&mut multi, 2));
    assert!(multi.release(PageNumber(3)));
    assert!(!multi.release(PageNumber(3)), "they have gone already");
    assert!(ask(&mut multi, 3));
}
