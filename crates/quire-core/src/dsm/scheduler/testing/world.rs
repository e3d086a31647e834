//! Kernels, links, a backer and a scheduler. Each thing that can happen is one [`Step`].

use std::collections::VecDeque;

use super::kernel::{Cached, Kernel};
use crate::dsm::message::{Access, Client, FromKernel, KernelId, PageNumber, Pages, ToKernel};
use crate::dsm::scheduler::{Action, Scheduler};

/// What may happen, and how often.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Which ranges of pages the programs of each kernel touch, as first and count.
    pub(crate) ranges: Vec<Vec<(u64, u32)>>,
    pub(crate) pages: usize,
    /// Accesses of each kernel.
    pub(crate) accesses: Vec<u8>,
    /// Programs of a kernel that wait at the same time.
    pub(crate) threads: usize,
    /// Pages that kernels let go of on their own.
    pub(crate) page_outs: u8,
    /// Kernels that crash, or whose link breaks, which is the same to the server.
    pub(crate) crashes: u8,
    /// Kernels that end.
    pub(crate) ends: u8,
}

/// Who is at the kernels' side of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    /// A kernel.
    Kernel(usize),
    /// A kernel said `Terminate`: only flushes are still answered.
    Ended,
    /// Nobody: when the server has heard what is still on the way, it is told so.
    Dead,
}

/// A session of a kernel with the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    pub(crate) id: KernelId,
    pub(crate) side: Side,
    pub(crate) up: VecDeque<FromKernel<u8>>,
    pub(crate) down: VecDeque<ToKernel<u8>>,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A program of a kernel accesses pages.
    Access(usize, (u64, u32), Access),
    /// A kernel lets go of a page on its own.
    PageOut(usize, u64),
    /// The next message of a link arrives at the server.
    Up(usize),
    /// The next message of a link arrives at its kernel.
    Down(usize),
    /// The backer answers the first of the loads that it was asked for.
    Load,
    /// A kernel loses all it has; of what it sent, so much still arrives.
    Crash(usize, usize),
    /// A kernel ends, and begins anew.
    End(usize),
    /// The link of a kernel that ended is closed.
    Close(usize),
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World<S> {
    pub(crate) scheduler: S,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) links: Vec<Link>,
    loads: VecDeque<Pages>,
    backer: Vec<u8>,
    /// What each page holds, in the one order in which all accesses happen.
    truth: Vec<u8>,
    /// What the server was given back last.
    given_back: Vec<u8>,
    accesses: Vec<u8>,
    page_outs: u8,
    crashes: u8,
    ends: u8,
    next_id: u64,
    /// The server could make no sense of an honest kernel.
    pub(crate) nonsense: bool,
}

impl<S: Scheduler<u8>> World<S> {
    pub(crate) fn new(scheduler: S, setup: &Setup) -> World<S> {
        let kernels = setup.ranges.len();
        let link = |kernel| Link {
            id: KernelId(kernel as u64),
            side: Side::Kernel(kernel),
            up: VecDeque::new(),
            down: VecDeque::new(),
        };
        World {
            scheduler,
            kernels: vec![Kernel::new(setup.pages); kernels],
            links: (0..kernels).map(link).collect(),
            loads: VecDeque::new(),
            backer: vec![0; setup.pages],
            truth: vec![0; setup.pages],
            given_back: vec![0; setup.pages],
            accesses: setup.accesses.clone(),
            page_outs: setup.page_outs,
            crashes: setup.crashes,
            ends: setup.ends,
            next_id: kernels as u64,
            nonsense: false,
        }
    }

    /// Everything that can happen now.
    pub(crate) fn steps(&self, setup: &Setup, steps: &mut Vec<Step>) {
        for (at, link) in self.links.iter().enumerate() {
            if !link.up.is_empty() || link.side == Side::Dead {
                steps.push(Step::Up(at));
            }
            if !link.down.is_empty() {
                steps.push(Step::Down(at));
            }
            match link.side {
                Side::Kernel(kernel) => self.steps_of(kernel, link, setup, steps),
                Side::Ended => steps.push(Step::Close(at)),
                Side::Dead => {}
            }
        }
        if !self.loads.is_empty() {
            steps.push(Step::Load);
        }
    }

    fn steps_of(&self, at: usize, link: &Link, setup: &Setup, steps: &mut Vec<Step>) {
        let kernel = &self.kernels[at];
        if self.accesses[at] > 0 && kernel.wants.len() < setup.threads {
            for &range in &setup.ranges[at] {
                let pages = pages(range);
                let writes = kernel.has(pages, Access::Write);
                if writes || kernel.may_fault(pages, Access::Write) {
                    steps.push(Step::Access(at, range, Access::Write));
                }
                if !kernel.has(pages, Access::Read) {
                    steps.push(Step::Access(at, range, Access::Read));
                }
            }
        }
        if self.page_outs > 0 {
            let has = |page: &u64| kernel.cache[*page as usize] != Cached::None;
            let all = 0..setup.pages as u64;
            let outs = all.filter(|page| has(page) && kernel.may_drop(PageNumber(*page)));
            steps.extend(outs.map(|page| Step::PageOut(at, page)));
        }
        if self.crashes > 0 {
            steps.extend((0..=link.up.len()).map(|arrive| Step::Crash(at, arrive)));
        }
        let has_something = kernel.cache.iter().any(|copy| *copy != Cached::None);
        if self.ends > 0 && kernel.wants.is_empty() && has_something {
            steps.push(Step::End(at));
        }
    }

    /// Something happens.
    pub(crate) fn step(&mut self, step: Step) {
        match step {
            Step::Access(kernel, range, access) => self.access(kernel, pages(range), access),
            Step::PageOut(kernel, page) => {
                self.page_outs -= 1;
                let out = self.kernels[kernel].let_go(PageNumber(page));
                self.link_of(kernel).up.extend(out);
            }
            Step::Up(at) => self.up(at),
            Step::Down(at) => self.down(at),
            Step::Load => {
                if let Some(pages) = self.loads.pop_front() {
                    let data = pages.iter().map(|page| Some(self.backer[page.0 as usize]));
                    let data = Some(data.collect());
                    self.server(|scheduler, actions| scheduler.loaded(pages, data, actions));
                }
            }
            Step::Crash(kernel, arrive) => self.crash(kernel, arrive),
            Step::End(kernel) => self.end(kernel),
            Step::Close(at) => {
                self.links[at].side = Side::Dead;
                self.links[at].down.clear();
            }
        }
    }

    /// Whether nothing is on its way any more.
    pub(crate) fn is_quiet(&self) -> bool {
        let quiet =
            |link: &Link| link.up.is_empty() && link.down.is_empty() && link.side != Side::Dead;
        self.loads.is_empty() && self.links.iter().all(quiet)
    }

    /// Whether a program waits.
    pub(crate) fn somebody_waits(&self) -> bool {
        self.kernels.iter().any(|kernel| !kernel.wants.is_empty())
    }

    /// Whether all that was written, and not lost with who wrote it, was given back.
    pub(crate) fn backer_has_all(&self) -> bool {
        self.backer == self.truth
    }

    /// At any time a page has one writer or any number of readers, as the kernels see it.
    pub(crate) fn one_writer_or_readers(&self) -> bool {
        (0..self.truth.len()).all(|page| {
            let copies = self.kernels.iter().map(|kernel| kernel.cache[page]);
            let copies = copies.filter(|copy| *copy != Cached::None);
            let writers = copies.clone().filter(|copy| copy.allows(Access::Write));
            writers.count() == 0 || copies.count() == 1
        })
    }

    /// Whoever reads, reads what was written last.
    pub(crate) fn copies_are_current(&self) -> bool {
        self.kernels.iter().all(|kernel| {
            let copies = kernel.cache.iter().zip(&self.truth);
            let values = copies.filter_map(|(copy, truth)| Some((copy.value()?, truth)));
            values.into_iter().all(|(value, truth)| value == *truth)
        })
    }

    /// The server makes sense of the kernels, and they of it.
    pub(crate) fn all_makes_sense(&self) -> bool {
        !self.nonsense && !self.kernels.iter().any(|kernel| kernel.confused)
    }

    /// Nobody accesses anything any more.
    pub(crate) fn calm(&mut self) {
        self.accesses.fill(0);
        (self.page_outs, self.crashes, self.ends) = (0, 0, 0);
    }

    pub(crate) fn link_of(&mut self, kernel: usize) -> &mut Link {
        let mut links = self.links.iter_mut();
        links
            .find(|link| link.side == Side::Kernel(kernel))
            .expect("each kernel has a link")
    }

    fn access(&mut self, at: usize, pages: Pages, access: Access) {
        self.accesses[at] -= 1;
        if self.kernels[at].has(pages, access) {
            self.perform(at, pages, access);
        } else {
            let messages = self.kernels[at].fault(pages, access);
            self.link_of(at).up.extend(messages);
        }
    }

    fn perform(&mut self, at: usize, pages: Pages, access: Access) {
        if access == Access::Read {
            return;
        }
        for page in pages.iter().map(|page| page.0 as usize) {
            if let Cached::Write { value, .. } = self.kernels[at].cache[page] {
                let value = value.wrapping_add(1);
                self.truth[page] = value;
                self.kernels[at].cache[page] = Cached::Write { value, dirty: true };
            }
        }
    }

    fn up(&mut self, at: usize) {
        let id = self.links[at].id;
        let Some(message) = self.links[at].up.pop_front() else {
            self.links.remove(at);
            self.server(|scheduler, actions| scheduler.gone(Client::Kernel(id), actions));
            return;
        };
        if let FromKernel::DataWrite { pages, data } = &message {
            for (page, value) in pages.iter().zip(data) {
                self.given_back[page.0 as usize] = value.unwrap_or(0);
            }
        }
        let mut outcome = Ok(());
        self.server(|scheduler, actions| outcome = scheduler.kernel_says(id, message, actions));
        self.nonsense |= outcome.is_err();
    }

    fn down(&mut self, at: usize) {
        let Some(message) = self.links[at].down.pop_front() else {
            return;
        };
        match self.links[at].side {
            Side::Dead => {}
            Side::Ended => {
                if let ToKernel::LockRequest { pages, .. } = message {
                    let answer = FromKernel::LockCompleted { pages };
                    self.links[at].up.push_back(answer);
                }
            }
            Side::Kernel(kernel) => {
                let answers = self.kernels[kernel].hear(message);
                self.links[at].up.extend(answers);
                self.wake(kernel);
            }
        }
    }

    /// Programs that have what they waited for go on.
    fn wake(&mut self, at: usize) {
        let kernel = &mut self.kernels[at];
        let wants = std::mem::take(&mut kernel.wants);
        let (done, wait): (Vec<_>, Vec<_>) = wants
            .into_iter()
            .partition(|want| kernel.has(want.pages(), want.access));
        kernel.wants = wait;
        for want in done {
            self.perform(at, want.pages(), want.access);
        }
    }

    fn crash(&mut self, at: usize, arrive: usize) {
        self.crashes -= 1;
        let lost = self.link_of(at).up.split_off(arrive);
        for message in lost {
            if let FromKernel::DataWrite { pages, .. } = message {
                for page in pages.iter().map(|page| page.0 as usize) {
                    self.truth[page] = self.given_back[page];
                }
            }
        }
        for (page, copy) in self.kernels[at].cache.clone().into_iter().enumerate() {
            if let Cached::Write { dirty: true, .. } = copy {
                self.truth[page] = self.given_back[page];
            }
        }
        self.new_session(at, Side::Dead);
    }

    fn end(&mut self, at: usize) {
        self.ends -= 1;
        for page in 0..self.truth.len() as u64 {
            let out = self.kernels[at].drop_page(PageNumber(page));
            self.link_of(at).up.extend(out);
        }
        self.link_of(at).up.push_back(FromKernel::Terminate);
        self.new_session(at, Side::Ended);
    }

    fn new_session(&mut self, at: usize, old: Side) {
        let link = self.link_of(at);
        link.side = old;
        if old == Side::Dead {
            link.down.clear();
        }
        self.kernels[at] = Kernel::new(self.truth.len());
        self.links.push(Link {
            id: KernelId(self.next_id),
            side: Side::Kernel(at),
            up: VecDeque::new(),
            down: VecDeque::new(),
        });
        self.next_id += 1;
    }

    /// The server does something, and what it wants is done.
    pub(crate) fn server(&mut self, act: impl FnOnce(&mut S, &mut Vec<Action<u8>>)) {
        let mut actions = Vec::new();
        act(&mut self.scheduler, &mut actions);
        for action in actions {
            match action {
                Action::Tell(id, message) => {
                    let mut links = self.links.iter_mut();
                    if let Some(link) = links.find(|l| l.id == id && l.side != Side::Dead) {
                        link.down.push_back(message);
                    }
                }
                Action::TellServer(..) => unreachable!("there is one server"),
                Action::Load(pages) => self.loads.push_back(pages),
                Action::Save(pages, data) => {
                    for (page, value) in pages.iter().zip(data) {
                        self.backer[page.0 as usize] = value.unwrap_or(0);
                    }
                }
            }
        }
    }
}

pub(crate) const fn pages((first, count): (u64, u32)) -> Pages {
    Pages {
        first: PageNumber(first),
        count,
    }
}
