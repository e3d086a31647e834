//! One page of the `simple` scheduler: the automaton of Figures 2 to 4.

use std::collections::VecDeque;
use std::mem::take;

use crate::dsm::message::{Access, Client, KernelId, Lock, PageNumber, Pages, ToKernel};
use crate::dsm::scheduler::Action;
use crate::dsm::scheduler::contents::Contents;
use crate::dsm::scheduler::few::Few;
use crate::dsm::scheduler::hot::Hot;
use crate::dsm::scheduler::observe::{Aside, Fault, PageStats, PageStatus, State, Stats};
use crate::dsm::scheduler::options::Options;

/// Who has the only valid copy of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    /// The server itself (the paper's `owner_self`).
    Server,
    /// Whoever backs the object, who was asked for it.
    Backer,
    /// The kernel that may write to it.
    Kernel(KernelId),
}

/// A kernel that waits to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Writer {
    kernel: KernelId,
    /// It has a copy to be read, which it keeps while the other readers answer.
    keeps_copy: bool,
}

/// What a page needs to act.
pub(super) struct Turn<'a, D> {
    pub(super) number: PageNumber,
    pub(super) options: &'a Options,
    pub(super) stats: &'a mut Stats,
    pub(super) hot: &'a mut Hot,
    pub(super) actions: &'a mut Vec<Action<D>>,
}

/// One page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Page<D> {
    state: State,
    owner: Owner,
    /// In state Read those that have a copy, else those that wait for one.
    readers: Few<KernelId>,
    /// Those that wait to write, in the order of arrival.
    writers: VecDeque<Writer>,
    /// Those that were sent a flush and have not answered it.
    answers: Few<KernelId>,
    /// The owner was sent a flush and has given the contents back, but not answered yet.
    returned: bool,
    /// Writers that were served since readers wait.
    in_a_row: u32,
    contents: Contents<D>,
    stats: Aside<PageStats>,
}

impl<D: Clone> Page<D> {
    /// A page that nobody has asked for yet.
    pub(super) fn untouched() -> Page<D> {
        Page {
            state: State::Read,
            owner: Owner::Server,
            readers: Few::new(),
            writers: VecDeque::new(),
            answers: Few::new(),
            returned: false,
            in_a_row: 0,
            contents: Contents::Absent,
            stats: Aside::default(),
        }
    }

    pub(super) fn count(&mut self, fault: Fault, turn: &mut Turn<'_, D>) {
        self.stats.0.faults.count(fault);
        turn.stats.faults.count(fault);
        turn.hot.count(turn.number, self.faults());
    }

    /// How many faults it had.
    pub(super) fn faults(&self) -> u64 {
        self.stats.0.faults.total()
    }

    /// Whether a kernel may write to it and has not given it back.
    pub(super) fn may_write_back(&self, kernel: KernelId) -> bool {
        self.owner == Owner::Kernel(kernel) && !self.returned
    }

    /// Whether a kernel was sent a flush that it has not answered.
    pub(super) fn owes_answer(&self, kernel: KernelId) -> bool {
        self.answers.contains(&kernel)
    }

    /// Figure 2.
    pub(super) fn read_fault(&mut self, kernel: KernelId, turn: &mut Turn<'_, D>) {
        match self.state {
            State::Read => match &self.contents {
                Contents::Here(data) => {
                    turn.provide(kernel, data, Access::Read);
                    self.readers.insert(kernel);
                }
                Contents::Lost => turn.error(kernel),
                Contents::Absent => {
                    self.readers.insert(kernel);
                    self.count_wait(turn);
                    self.hand_on(turn);
                }
            },
            State::Write => {
                self.state = State::ReadWait;
                self.flush_owner(turn);
                self.readers.insert(kernel);
                self.count_wait(turn);
            }
            State::ReadWait | State::WriteWait => {
                if self.waits_to_write(kernel, true) || !self.readers.insert(kernel) {
                    turn.stats.repeated += 1;
                } else {
                    self.count_wait(turn);
                }
            }
        }
    }

    /// Figure 3.
    pub(super) fn write_fault(
        &mut self,
        kernel: KernelId,
        needs_data: bool,
        turn: &mut Turn<'_, D>,
    ) {
        match self.state {
            State::Read if matches!(self.contents, Contents::Lost) => turn.error(kernel),
            State::Read => {
                let keeps_copy = self.readers.remove(&kernel) && !needs_data;
                self.writers.push_back(Writer { kernel, keeps_copy });
                self.flush_readers(turn);
                if self.answers.is_empty() {
                    self.hand_on(turn);
                }
                if self.state != State::Write {
                    self.count_wait(turn);
                }
            }
            State::Write if self.owner == Owner::Kernel(kernel) && !needs_data => {
                turn.allow_write(kernel);
                turn.stats.repeated += 1;
            }
            State::Write => {
                self.flush_owner(turn);
                self.enqueue(kernel, turn);
            }
            State::ReadWait | State::WriteWait => {
                if self.waits_to_write(kernel, needs_data) {
                    turn.stats.repeated += 1;
                } else {
                    self.enqueue(kernel, turn);
                }
            }
        }
    }

    /// The first half of Figure 4: the contents are back.
    pub(super) fn data_write(&mut self, kernel: KernelId, data: Option<D>, turn: &mut Turn<'_, D>) {
        self.contents = Contents::Here(data);
        if self.answers.contains(&kernel) {
            self.returned = true;
        } else {
            self.hand_on(turn);
        }
    }

    /// The latest contents come from somebody else than its owner, who is gone. Whether they are taken.
    pub(super) fn restore(&mut self, data: Option<D>) -> bool {
        let is_free = self.owner == Owner::Server
            && self.state == State::Read
            && self.readers.is_empty()
            && self.writers.is_empty();
        if is_free {
            self.contents = Contents::Here(data);
        }
        is_free
    }

    /// The second half of Figure 4: a kernel has no copy any more.
    pub(super) fn lock_completed(&mut self, kernel: KernelId, turn: &mut Turn<'_, D>) {
        if self.answers.remove(&kernel) && self.answers.is_empty() {
            self.hand_on(turn);
        }
    }

    /// Whoever backs the object answered; `None` if it cannot supply the contents.
    pub(super) fn loaded(&mut self, answer: Option<Option<D>>, turn: &mut Turn<'_, D>) {
        if self.owner == Owner::Backer {
            turn.stats.lost += u64::from(answer.is_none());
            self.contents = Contents::supplied(answer);
            self.hand_on(turn);
        }
    }

    /// A kernel has no copy any more and wants none: it crashed, or ended.
    pub(super) fn forget(&mut self, kernel: KernelId, crashed: bool, turn: &mut Turn<'_, D>) {
        self.readers.remove(&kernel);
        self.writers.retain(|writer| writer.kernel != kernel);
        let answered = self.answers.remove(&kernel) && self.answers.is_empty();
        let owned = self.owner == Owner::Kernel(kernel);
        if owned && crashed && !self.returned {
            self.stats.0.recoveries += 1;
            turn.stats.recoveries += 1;
        }
        if owned || answered {
            self.hand_on(turn);
        } else if matches!(self.state, State::ReadWait | State::WriteWait) {
            self.wait();
        }
    }

    /// Nobody waits for it any more, and a kernel that may write to it is asked for it.
    pub(super) fn take_back(&mut self, turn: &mut Turn<'_, D>) {
        self.writers.clear();
        match self.state {
            State::Read => {}
            State::Write => {
                self.state = State::ReadWait;
                self.flush_owner(turn);
            }
            State::ReadWait | State::WriteWait => {
                self.readers.clear();
                self.wait();
            }
        }
    }

    /// Whoever backs the object has the contents, too. They go where nobody needs them: while
    /// a kernel has the page to write to, which brings newer ones; and while nobody has it, or
    /// waits for it. A page whose contents are elsewhere has no readers.
    pub(super) fn release(&mut self) -> bool {
        let is_free = match self.owner {
            Owner::Kernel(_) => !self.returned,
            Owner::Server => self.state == State::Read && self.readers.is_empty(),
            Owner::Backer => false,
        };
        let goes = is_free && matches!(self.contents, Contents::Here(_));
        if goes {
            self.contents = Contents::Absent;
        }
        goes
    }

    /// The kernel that may write to it.
    pub(super) fn writer(&self) -> Option<KernelId> {
        match self.owner {
            Owner::Kernel(kernel) => Some(kernel),
            Owner::Server | Owner::Backer => None,
        }
    }

    /// What is known of it.
    pub(super) fn status(&self) -> PageStatus {
        let has_copies = self.state == State::Read;
        PageStatus {
            state: self.state,
            owner: self.writer().map(Client::Kernel),
            readers: if has_copies { self.readers.len() } else { 0 },
            waiting_readers: if has_copies { 0 } else { self.readers.len() },
            waiting_writers: self.writers.len(),
            here: matches!(self.contents, Contents::Here(_)),
            lost: matches!(self.contents, Contents::Lost),
            stats: self.stats.0,
        }
    }

    /// The page is the server's: nobody else has a copy, but for a first writer that keeps
    /// the one it has. Whoever is next gets it.
    fn hand_on(&mut self, turn: &mut Turn<'_, D>) {
        self.owner = Owner::Server;
        self.returned = false;
        if self.readers.is_empty() && self.writers.is_empty() {
            self.in_a_row = 0;
            self.state = State::Read;
            return;
        }
        match &self.contents {
            Contents::Absent => {
                self.owner = Owner::Backer;
                self.wait();
                turn.load();
            }
            Contents::Lost => self.give_up(turn),
            Contents::Here(_) if self.writers_turn(turn.options) => self.serve_writer(turn),
            Contents::Here(_) => self.serve_readers(turn),
        }
    }

    /// Whether the next to be served is a writer.
    fn writers_turn(&self, options: &Options) -> bool {
        let first = self.writers.front();
        first.is_some_and(|writer| {
            let limit = options.writers_in_a_row.map_or(u32::MAX, u32::from);
            writer.keeps_copy || self.readers.is_empty() || self.in_a_row < limit
        })
    }

    fn serve_writer(&mut self, turn: &mut Turn<'_, D>) {
        let (Some(writer), Contents::Here(data)) = (self.writers.pop_front(), &self.contents)
        else {
            return;
        };
        if writer.keeps_copy {
            turn.allow_write(writer.kernel);
        } else {
            turn.provide(writer.kernel, data, Access::Write);
        }
        if !turn.options.keeps_latest_copy {
            self.contents = Contents::Absent;
        }
        self.owner = Owner::Kernel(writer.kernel);
        self.state = State::Write;
        self.in_a_row = if self.readers.is_empty() {
            0
        } else {
            self.in_a_row.saturating_add(1)
        };
        if !self.readers.is_empty() || !self.writers.is_empty() {
            self.wait();
            self.flush_owner(turn);
        }
    }

    fn serve_readers(&mut self, turn: &mut Turn<'_, D>) {
        if let Contents::Here(data) = &self.contents {
            for &reader in &self.readers {
                turn.provide(reader, data, Access::Read);
            }
        }
        self.in_a_row = 0;
        self.state = State::Read;
        if !self.writers.is_empty() {
            self.flush_readers(turn);
        }
    }

    /// The contents are lost: everybody who waits is told so.
    fn give_up(&mut self, turn: &mut Turn<'_, D>) {
        let readers = take(&mut self.readers).into_iter();
        let writers = take(&mut self.writers).into_iter();
        for kernel in readers.chain(writers.map(|writer| writer.kernel)) {
            turn.error(kernel);
        }
        self.in_a_row = 0;
        self.state = State::Read;
    }

    /// The state while somebody has to return the page.
    fn wait(&mut self) {
        self.state = if self.writers.is_empty() {
            State::ReadWait
        } else {
            State::WriteWait
        };
    }

    /// From state Read on: all readers are asked to drop their copies, for a writer.
    fn flush_readers(&mut self, turn: &mut Turn<'_, D>) {
        self.answers = take(&mut self.readers);
        for &reader in &self.answers {
            turn.flush(reader);
        }
        self.count_flushes(self.answers.len(), turn);
        self.state = State::WriteWait;
    }

    fn flush_owner(&mut self, turn: &mut Turn<'_, D>) {
        if let Owner::Kernel(owner) = self.owner {
            self.answers.insert(owner);
            turn.flush(owner);
            self.count_flushes(1, turn);
        }
    }

    fn enqueue(&mut self, kernel: KernelId, turn: &mut Turn<'_, D>) {
        self.readers.remove(&kernel);
        self.writers.push_back(Writer {
            kernel,
            keeps_copy: false,
        });
        self.state = State::WriteWait;
        self.count_wait(turn);
    }

    /// Whether a kernel waits to write already. If it says that it has no copy, it gets the
    /// contents.
    fn waits_to_write(&mut self, kernel: KernelId, needs_data: bool) -> bool {
        let mut writers = self.writers.iter_mut();
        let Some(writer) = writers.find(|writer| writer.kernel == kernel) else {
            return false;
        };
        writer.keeps_copy &= !needs_data;
        true
    }

    fn count_wait(&mut self, turn: &mut Turn<'_, D>) {
        self.stats.0.waits += 1;
        turn.stats.waits += 1;
    }

    fn count_flushes(&mut self, flushes: usize, turn: &mut Turn<'_, D>) {
        self.stats.0.descheduled += flushes as u64;
        turn.stats.descheduled += flushes as u64;
    }
}

impl<D: Clone> Turn<'_, D> {
    fn provide(&mut self, kernel: KernelId, data: &Option<D>, access: Access) {
        let (pages, data) = (Pages::one(self.number), vec![data.clone()]);
        let message = ToKernel::DataProvided {
            pages,
            data,
            access,
        };
        self.actions.push(Action::Tell(kernel, message));
    }

    fn lock_request(&mut self, kernel: KernelId, lock: Lock) {
        let pages = Pages::one(self.number);
        let message = ToKernel::LockRequest { pages, lock };
        self.actions.push(Action::Tell(kernel, message));
    }

    fn flush(&mut self, kernel: KernelId) {
        self.lock_request(kernel, Lock::Flush);
    }

    fn allow_write(&mut self, kernel: KernelId) {
        self.lock_request(kernel, Lock::AllowWrite);
    }

    fn error(&mut self, kernel: KernelId) {
        let pages = Pages::one(self.number);
        let message = ToKernel::DataError { pages };
        self.actions.push(Action::Tell(kernel, message));
    }

    fn load(&mut self) {
        self.actions.push(Action::Load(Pages::one(self.number)));
    }
}
