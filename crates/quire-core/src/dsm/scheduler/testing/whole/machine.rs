//! A machine: the cache that runs, memory that it looks after, and programs that touch it.

use std::time::Duration;

use super::world::Setup;
use crate::dsm::kernel::{Action, Kernel, Settings, Space, Time};
use crate::dsm::message::{Access, FromKernel, PageNumber, Pages, ToKernel};

const SPACE: Space = Space(0);
const NOW: Time = Time(0);
/// When all that was kept for a while was kept long enough. Nothing else ever is due: a flush
/// that waits until then may be obeyed at any time after it came.
const LATER: Time = Time(1);

/// What is wrong with machines, to see whether that is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wrong {
    Nothing,
    /// Memory is kept when the session breaks.
    KeepsMemory,
    /// What was written is not given back.
    KeepsWrites,
    /// After a new session nothing is asked for anew.
    ForgetsWaiters,
    /// A flush is answered while the memory is still there.
    AnswersFirst,
}

/// A page in memory. Its value is the number of times that it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) value: u8,
    shown: Option<Access>,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Machine {
    kernel: Kernel,
    memory: Vec<Option<Held>>,
    /// What its threads wait for.
    wants: Vec<(usize, Access)>,
    /// It has touched something.
    pub(super) began: bool,
    /// What it cannot make sense of.
    pub(super) confused: Option<&'static str>,
    wrong: Wrong,
}

/// What comes of a step of a machine, beside what it sends.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) sent: Vec<FromKernel<u8>>,
    /// Pages that threads have written to.
    pub(super) written: Vec<usize>,
    /// Pages whose last writes are lost.
    pub(super) lost: Vec<usize>,
    /// Touches of threads that went on and found nothing shown.
    again: Vec<(PageNumber, Access)>,
}

impl Machine {
    /// A machine whose pages are so many of the scheduler's.
    pub(super) fn new(setup: &Setup, together: u32) -> Machine {
        let settings = Settings {
            together,
            ahead: setup.ahead,
            hold: Duration::from_nanos(u64::from(setup.holds)),
            ..Settings::new(setup.pages as u64)
        };
        Machine {
            kernel: Kernel::new(settings),
            memory: vec![None; setup.pages],
            wants: Vec::new(),
            began: false,
            confused: None,
            wrong: setup.wrong,
        }
    }

    pub(super) fn is_linked(&self) -> bool {
        self.kernel.is_linked()
    }

    pub(super) fn waits(&self) -> bool {
        !self.wants.is_empty()
    }

    /// Whether it has a flush that it has not obeyed yet.
    pub(super) fn keeps_on(&self) -> bool {
        self.kernel.deadline() == Some(LATER)
    }

    pub(super) fn held(&self, page: usize) -> Option<Held> {
        self.memory[page]
    }

    /// Whether a page may be written to here.
    pub(super) fn is_writer(&self, page: usize) -> bool {
        let claims = self.kernel.holds(PageNumber(page as u64)) == Some(Access::Write);
        claims || self.memory[page].is_some_and(|held| held.shown == Some(Access::Write))
    }

    /// Whether the cache could give a page up on its own.
    pub(super) fn may_evict(&self, page: usize) -> bool {
        self.is_linked() && self.memory[page].is_some() && self.wants.iter().all(|it| it.0 != page)
    }

    /// Whether a thread could touch a page so that it would fault.
    pub(super) fn would_fault(&self, page: usize, access: Access, threads: usize) -> bool {
        let shown = self.memory[page].and_then(|held| held.shown);
        let waits = self.wants.iter().any(|want| want.0 == page);
        shown < Some(access) && !waits && self.wants.len() < threads
    }

    pub(super) fn touch(&mut self, page: usize, access: Access) -> Outcome {
        self.began = true;
        self.wants.push((page, access));
        let number = PageNumber(page as u64);
        self.act(|kernel, actions| kernel.fault(NOW, SPACE, number, access, actions))
    }

    pub(super) fn hear(&mut self, message: ToKernel<u8>) -> Outcome {
        let mut nonsense = None;
        let outcome =
            self.act(|kernel, actions| nonsense = kernel.hear(NOW, message, actions).err());
        if let Some(nonsense) = nonsense {
            self.confused = Some(nonsense.0);
        }
        outcome
    }

    /// The time is over for which pages were kept.
    pub(super) fn pass(&mut self) -> Outcome {
        self.act(|kernel, actions| kernel.pass(LATER, actions))
    }

    pub(super) fn evict(&mut self, page: usize) -> Outcome {
        let pages = Pages::one(PageNumber(page as u64));
        self.act(|kernel, actions| kernel.evict(pages, actions))
    }

    pub(super) fn lose_session(&mut self) -> Outcome {
        self.act(|kernel, actions| kernel.lost(NOW, actions))
    }

    pub(super) fn new_session(&mut self) -> Outcome {
        let mut outcome = self.act(|kernel, actions| kernel.linked(actions));
        if self.wrong == Wrong::ForgetsWaiters {
            outcome.sent.clear();
        }
        outcome
    }

    fn act(&mut self, act: impl FnOnce(&mut Kernel, &mut Vec<Action<u8>>)) -> Outcome {
        let mut actions = Vec::new();
        act(&mut self.kernel, &mut actions);
        let mut outcome = Outcome::default();
        while !actions.is_empty() {
            for action in std::mem::take(&mut actions) {
                self.carry_out(action, &mut outcome);
            }
            for (number, access) in std::mem::take(&mut outcome.again) {
                let kernel = &mut self.kernel;
                kernel.fault(NOW, SPACE, number, access, &mut actions);
            }
        }
        outcome
    }

    fn carry_out(&mut self, action: Action<u8>, outcome: &mut Outcome) {
        match action {
            Action::Send(message) => outcome.sent.push(message),
            Action::Fill {
                pages,
                data,
                access,
                space,
            } => {
                let shown = space.map(|_| access);
                for (number, value) in pages.iter().zip(data) {
                    let held = Held {
                        value: value.unwrap_or(0),
                        shown,
                    };
                    if self.memory[number.0 as usize].replace(held).is_some() {
                        self.confused = Some("a page is filled where it is");
                    }
                }
                self.wake(outcome);
            }
            Action::Show { pages, access, .. } => self.show(pages, access, false, outcome),
            Action::Allow { pages, .. } => self.show(pages, Access::Write, true, outcome),
            Action::GiveBack(pages) => self.give_back(pages, outcome),
            Action::Remove(pages) => {
                for number in pages.iter() {
                    let held = match self.wrong {
                        Wrong::AnswersFirst => self.memory[number.0 as usize],
                        _ => self.memory[number.0 as usize].take(),
                    };
                    if held.is_none_or(|held| held.shown == Some(Access::Write)) {
                        self.confused = Some("what is removed is not there, or was written");
                    }
                }
            }
            Action::RemoveAll if self.wrong == Wrong::KeepsMemory => {}
            Action::RemoveAll => self.memory.fill(None),
            Action::Lost(pages) => {
                let lost = pages.iter().map(|number| number.0 as usize);
                outcome.lost.extend(lost);
            }
            Action::Fail { .. } | Action::FailAll(_) => self.confused = Some("a touch fails"),
        }
    }

    /// `only` raises what is shown already.
    fn show(&mut self, pages: Pages, access: Access, only: bool, outcome: &mut Outcome) {
        for number in pages.iter() {
            match &mut self.memory[number.0 as usize] {
                Some(held) if !only || held.shown.is_some() => held.shown = Some(access),
                Some(_) => {
                    // Who waits may write now, but must be shown what.
                    let page = number.0 as usize;
                    let woken = self.wants.iter().filter(|want| want.0 == page);
                    outcome.again.extend(woken.map(|want| (number, want.1)));
                }
                None => self.confused = Some("what is shown is not there"),
            }
        }
        self.wake(outcome);
    }

    fn give_back(&mut self, pages: Pages, outcome: &mut Outcome) {
        let taken = pages.iter().map(|number| {
            let held = self.memory[number.0 as usize].take();
            held.map(|held| held.value)
        });
        let data: Vec<_> = taken.collect();
        if data.contains(&None) {
            self.confused = Some("what is given back is not there");
        }
        if self.wrong != Wrong::KeepsWrites {
            outcome.sent.push(FromKernel::DataWrite { pages, data });
        }
    }

    /// Threads that are shown what they wait for do at once what they wanted: a page is kept
    /// for long enough for that.
    fn wake(&mut self, outcome: &mut Outcome) {
        let wants = std::mem::take(&mut self.wants);
        for (page, access) in wants {
            match &mut self.memory[page] {
                Some(held) if held.shown >= Some(access) => {
                    if access == Access::Write {
                        held.value += 1;
                        outcome.written.push(page);
                    }
                }
                _ => self.wants.push((page, access)),
            }
        }
    }
}
