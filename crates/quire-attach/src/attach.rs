//! All processes that are attached to, in turn, within the budget of processor
//! time. [`Attach::turn`] does what is due and says how long nothing will be.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use quire_advise::machine::Machine;
use quire_core::attach::{Candidate, CpuBudget, CpuShare, order, samples};
use quire_core::units::{Bytes, Slot};
use quire_linux::pagemap::{self, Entries, Filter};
use quire_linux::remote::Remote;
use quire_linux::sysinfo::process::{self, Capability, is_capable};
use rustix::time::{ClockId, clock_gettime};

use crate::AttachError;
use crate::heat::{Accesses, Meter, Reading, Sample, Slots};
use crate::metrics::{Counts, ProcessSnapshot, Snapshot};
use crate::pages::Pages;
use crate::plan::{Plan, Who};
use crate::process::LinuxProcess;
use crate::select::{Selected, select};
use crate::target::{Lost, Promotion, Target};

/// How often processes are selected anew.
const SELECT_APART: Duration = Duration::from_secs(3);
/// How often memory is looked at.
const MEMORY_APART: Duration = Duration::from_secs(1);
/// How long a turn goes on promoting before signals are looked at.
const LONGEST_TURN: Duration = Duration::from_millis(100);
/// Waking up for less than this is not worth it.
const USUAL_COST: Duration = Duration::from_millis(2);
/// How many processes that ended are remembered.
const ENDED: usize = 64;
/// How many superpages on trial are sampled at once.
const TRIAL_SAMPLES: usize = 32;
/// How often the queue is made anew at most, for extents that have lived meanwhile.
const REQUEUE_APART: Duration = Duration::from_millis(250);
/// How often what is known is written down at most.
const WRITE_APART: Duration = Duration::from_millis(500);
/// Writing down takes at most this part of the budget.
const WRITE_PART: u32 = 8;

/// Whether it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// After so much time.
    Wait(Duration),
    /// There is nothing to wait for.
    Done,
}

/// Takes a line for people.
pub type Log = Box<dyn FnMut(&str)>;

/// Everything that is attached to.
pub struct Attach {
    plan: Plan,
    once: bool,
    log: Log,
    began: Instant,
    targets: BTreeMap<u32, Target<LinuxProcess>>,
    queue: VecDeque<Candidate<u32>>,
    budget: CpuBudget,
    rule_budgets: BTreeMap<usize, CpuBudget>,
    charged: Duration,
    kernel_cpu: Duration,
    meter: Meter,
    trials_wait: bool,
    select_at: Duration,
    requeue_at: Duration,
    memory_at: Duration,
    memory: Machine,
    short: bool,
    pages: Option<Pages>,
    write_at: Duration,
    denied: BTreeSet<u32>,
    ended: VecDeque<ProcessSnapshot>,
    ended_total: Counts,
    exits: u64,
}

/// Checks what must be there whatever is attached to.
///
/// # Errors
/// When the kernel cannot promote on request, or a right is missing.
pub fn preflight() -> Result<(), AttachError> {
    use rustix::io::Errno;
    // Nothing is mapped so low, and a kernel that knows the request says so.
    let answer = Remote::open(std::process::id()).and_then(|own| own.collapse(Slot(0)));
    let unknown = [Errno::INVAL, Errno::NOSYS, Errno::PERM].map(Errno::raw_os_error);
    if answer.is_err_and(|errno| unknown.contains(&errno.0)) {
        let what = "make superpages for another process (process_madvise with MADV_COLLAPSE)";
        return Err(AttachError::NotSupported(what));
    }
    // Nothing is mapped there, so a scan finds nothing.
    let scan = |own: Entries| {
        pagemap::scan(own.as_fd(), Slot(0).range(), Filter::POPULATED, drop)?;
        Ok(())
    };
    let answer: io::Result<()> = Entries::open(std::process::id()).and_then(scan);
    if answer.is_err() {
        let what = "tell which pages are populated (PAGEMAP_SCAN)";
        return Err(AttachError::NotSupported(what));
    }
    if !is_capable(Capability::SysNice) {
        let what = "advising about the memory of other processes is not permitted".to_owned();
        return Err(AttachError::NotPermitted { what });
    }
    Ok(())
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

impl Attach {
    /// Attaches to what the plan means now. With `once`, [`turn`](Self::turn)
    /// is done when everything that is due has been tried.
    ///
    /// # Errors
    /// When a process or a group is not there, or may not be attached to.
    pub fn new(plan: Plan, once: bool, log: Log) -> Result<Attach, AttachError> {
        let mut attach = Attach {
            once,
            log,
            began: Instant::now(),
            targets: BTreeMap::new(),
            queue: VecDeque::new(),
            budget: CpuBudget::new(plan.cpu, Duration::ZERO),
            rule_budgets: rule_budgets(&plan.who, Duration::ZERO),
            charged: Duration::ZERO,
            kernel_cpu: Duration::ZERO,
            meter: Meter::new(plan.accesses),
            trials_wait: false,
            plan,
            select_at: SELECT_APART,
            requeue_at: Duration::MAX,
            memory_at: Duration::ZERO,
            // The control group of this process says nothing of others.
            memory: Machine::default(),
            short: false,
            pages: None,
            write_at: Duration::ZERO,
            denied: BTreeSet::new(),
            ended: VecDeque::new(),
            ended_total: Counts::default(),
            exits: 0,
        };
        let selected = select(&attach.plan.who)?;
        attach.admit(&selected);
        attach.require_some(&selected)?;
        Ok(attach)
    }

    /// Shows what is known of the processes in a session directory from now on. The
    /// files there go with this.
    pub fn show_in(&mut self, dir: &Path) {
        self.pages = Some(Pages::new(dir));
        let pids: Vec<u32> = self.targets.keys().copied().collect();
        pids.into_iter().for_each(|pid| self.show(pid));
    }

    fn show(&mut self, pid: u32) {
        let (Some(pages), Some(target)) = (&mut self.pages, self.targets.get_mut(&pid)) else {
            return;
        };
        match pages.take(pid, &target.program) {
            Ok(page) => target.show_on(page),
            Err(error) if target.is_alive() => {
                let said = format!("`quire stat` will not show process {pid}: {error}");
                (self.log)(&said);
            }
            Err(_) => {}
        }
    }

    /// Fails where processes were asked for and none may be attached to.
    fn require_some(&self, selected: &[Selected]) -> Result<(), AttachError> {
        let by_number = matches!(self.plan.who, Who::Pids(..));
        let refused = match self.denied.first() {
            Some(pid) if by_number || self.targets.is_empty() => *pid,
            _ => match selected.first() {
                Some(first) if by_number && self.targets.is_empty() => {
                    return Err(AttachError::NoProcess(first.pid));
                }
                _ => return Ok(()),
            },
        };
        let what = format!("looking at process {refused} is not permitted");
        Err(AttachError::NotPermitted { what })
    }

    /// Goes on with another plan. What is known of processes that it also means
    /// is kept.
    ///
    /// # Errors
    /// When a process or a group is not there; the old plan stays.
    pub fn replace_plan(&mut self, plan: Plan) -> Result<(), AttachError> {
        let selected = select(&plan.who)?;
        let now = self.now();
        self.budget.set_share(plan.cpu, now);
        self.rule_budgets = rule_budgets(&plan.who, now);
        if plan.accesses != self.plan.accesses {
            self.meter = Meter::new(plan.accesses);
        }
        self.plan = plan;
        self.settle(&selected);
        Ok(())
    }

    /// The time since the beginning.
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Does what is due.
    ///
    /// # Errors
    /// When a group that was asked for is gone.
    pub fn turn(&mut self) -> Result<Next, AttachError> {
        let now = self.now();
        self.charge(now);
        if now >= self.select_at {
            self.reselect(now)?;
        }
        if now >= self.memory_at {
            self.memory_at = now + MEMORY_APART;
            self.note_memory();
        }
        self.look(now);
        if now >= self.requeue_at && self.may_go_on() {
            self.requeue();
        }
        self.examine(now);
        self.measure(now);
        self.promote();
        self.write_down();
        self.charge(self.now());
        let endless = !matches!(self.plan.who, Who::Pids(..));
        if (self.targets.is_empty() && (self.once || !endless)) || self.is_through() {
            return Ok(Next::Done);
        }
        Ok(Next::Wait(self.pause()))
    }

    /// Books what was used since the last time.
    fn charge(&mut self, now: Duration) {
        let used = cpu_time() + self.kernel_cpu;
        self.budget.spend(used.saturating_sub(self.charged), now);
        self.charged = used;
    }

    fn reselect(&mut self, now: Duration) -> Result<(), AttachError> {
        self.select_at = now + SELECT_APART;
        if matches!(self.plan.who, Who::Pids(..)) {
            self.release_dead();
            return Ok(());
        }
        let selected = select(&self.plan.who)?;
        self.settle(&selected);
        Ok(())
    }

    /// Those asked for by number are never asked for again.
    fn release_dead(&mut self) {
        let dead = |(pid, target): (&u32, &Target<_>)| (!target.is_alive()).then_some(*pid);
        let dead: Vec<u32> = self.targets.iter().filter_map(dead).collect();
        dead.into_iter().for_each(|pid| self.release(pid));
    }

    /// Lets go of what is not selected any more, and attaches to what is new.
    fn settle(&mut self, selected: &[Selected]) {
        let chosen: BTreeMap<u32, usize> = selected.iter().map(|s| (s.pid, s.rule)).collect();
        let left: Vec<u32> = self.targets.keys().copied().collect();
        for pid in left.into_iter().filter(|pid| !chosen.contains_key(pid)) {
            self.release(pid);
        }
        self.denied.retain(|pid| chosen.contains_key(pid));
        let lived = self.lived();
        for (pid, target) in &mut self.targets {
            target.rule = chosen.get(pid).copied().unwrap_or(target.rule);
            let treatment = self.plan.who.treatment(target.rule);
            target.treat(treatment, lived);
        }
        self.admit(selected);
        self.requeue();
    }

    fn admit(&mut self, selected: &[Selected]) {
        for chosen in selected {
            if self.targets.contains_key(&chosen.pid) || self.denied.contains(&chosen.pid) {
                continue;
            }
            match LinuxProcess::open(chosen.pid) {
                Ok(process) => self.add(*chosen, process),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    self.denied.insert(chosen.pid);
                }
                // It ended meanwhile.
                Err(_) => {}
            }
        }
    }

    fn add(&mut self, chosen: Selected, process: LinuxProcess) {
        let program = process::command(chosen.pid).unwrap_or_default();
        let interval = self.plan.interval;
        let mut target = Target::new(process, program, chosen.rule, interval);
        target.treat(self.plan.who.treatment(chosen.rule), self.lived());
        self.targets.insert(chosen.pid, target);
        self.show(chosen.pid);
    }

    /// How long memory must have been full enough before it is copied. What one pass
    /// leaves out, no later one takes up.
    fn lived(&self) -> Duration {
        if self.once {
            Duration::ZERO
        } else {
            self.plan.lived
        }
    }

    /// Lets go of a process, and keeps what was done to it.
    fn release(&mut self, pid: u32) {
        let Some(mut target) = self.targets.remove(&pid) else {
            return;
        };
        if let (Some(pages), Some(page)) = (&mut self.pages, target.take_page()) {
            pages.give_back(page);
        }
        self.queue.retain(|candidate| candidate.process != pid);
        self.exits += 1;
        self.ended_total += target.counts;
        if self.ended.len() == ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back(snapshot(pid, &target, 0));
    }

    fn lose(&mut self, pid: u32, lost: Lost) {
        if lost == Lost::Denied {
            self.denied.insert(pid);
            (self.log)(&format!("process {pid} may not be looked at any more"));
        }
        self.release(pid);
    }

    fn note_memory(&mut self) {
        let short = !self.memory.has_memory(self.now());
        if short != self.short {
            let word = if short { "short" } else { "there again" };
            (self.log)(&format!("memory is {word}"));
        }
        self.short = short;
    }

    /// Looks at the processes that are due, one by one within the budget.
    fn look(&mut self, now: Duration) {
        let due = |(pid, target): (&u32, &Target<_>)| (target.look_at() <= now).then_some(*pid);
        let due: Vec<u32> = self.targets.iter().filter_map(due).collect();
        let mut looked = false;
        for pid in due {
            if !self.may_go_on() {
                break;
            }
            let now = self.now();
            let Some(target) = self.targets.get_mut(&pid) else {
                continue;
            };
            looked = true;
            if let Err(lost) = target.look(now, self.plan.cpu, cpu_time) {
                self.lose(pid, lost);
            }
        }
        if looked {
            self.requeue();
        }
    }

    /// Books what was used, and says whether there is any budget left.
    fn may_go_on(&mut self) -> bool {
        let now = self.now();
        self.charge(now);
        self.budget.may_spend(now)
    }

    fn requeue(&mut self) {
        let now = self.now();
        let mut all = Vec::new();
        for (pid, target) in &self.targets {
            all.extend(target.due(now).map(|(extent, heat)| Candidate {
                process: *pid,
                extent,
                heat,
            }));
        }
        order(&mut all);
        self.queue = all.into();
        // One pass takes up nothing later.
        let targets = self.targets.values().filter(|_| !self.once);
        let next = targets.filter_map(|target| target.due_after(now)).min();
        self.requeue_at = next.map_or(Duration::MAX, |at| at.max(now + REQUEUE_APART));
    }

    /// Examines superpages on trial. While memory is not short, that waits for a
    /// measurement of accesses where there will be one.
    fn examine(&mut self, now: Duration) {
        let wait = self.meter.is_on() && !self.short && !self.once;
        self.trials_wait = false;
        let pids: Vec<u32> = self.targets.keys().copied().collect();
        for pid in pids {
            let Some(mut target) = self.targets.remove(&pid) else {
                continue;
            };
            self.trials_wait |= wait && target.lacks_heat(now);
            let result = target.examine(now, self.short, wait, || self.may_go_on());
            self.targets.insert(pid, target);
            if let Err(lost) = result {
                self.lose(pid, lost);
            }
        }
    }

    /// Begins a measurement of accesses where it is worth it, and takes over
    /// what one gave.
    fn measure(&mut self, now: Duration) {
        if let Some(reading) = self.meter.poll(now) {
            self.take_over(reading);
            self.requeue();
        }
        // One pass promotes everything, in whatever order.
        if self.once && self.plan.accesses == Accesses::Auto {
            return;
        }
        let wanted = samples(self.queue.len());
        if (wanted > 0 || self.trials_wait) && self.meter.may_start(now) && self.may_go_on() {
            let samples = self.samples(wanted);
            let mut sizes: Vec<(u32, Bytes)> = self
                .targets
                .keys()
                .filter_map(|pid| Some((*pid, process::resident(*pid)?)))
                .collect();
            sizes.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
            self.meter.start(now, samples, &sizes);
        }
    }

    fn take_over(&mut self, reading: Reading) {
        self.kernel_cpu += reading.kernel_cpu;
        self.targets.values_mut().for_each(Target::forget_heat);
        for found in reading.found {
            let Some(target) = self.targets.get_mut(&found.pid) else {
                continue;
            };
            match found.slots {
                Slots::Each(slots) => {
                    slots
                        .iter()
                        .for_each(|slot| target.note_heat(*slot, found.times));
                }
                Slots::Within(range) => target.note_heat_within(range, found.times),
            }
        }
    }

    /// One page for each of `wanted` groups of neighbouring candidates, and for
    /// each superpage on trial.
    fn samples(&self, wanted: usize) -> Vec<Sample> {
        let round = self.meter.round();
        let mut candidates: Vec<(u32, Slot)> = self
            .queue
            .iter()
            .map(|candidate| (candidate.process, candidate.extent.slot))
            .collect();
        candidates.sort_unstable();
        let size = candidates.len().div_ceil(wanted.max(1)).max(1);
        let mut samples = Vec::new();
        for group in candidates
            .chunk_by(|a, b| a.0 == b.0)
            .flat_map(|own| own.chunks(size))
        {
            let slots = group.iter().map(|(_, slot)| *slot).collect();
            let (pid, middle) = group[group.len() / 2];
            samples.extend(self.sample(pid, middle, slots, round));
        }
        samples.truncate(wanted);
        for (pid, target) in &self.targets {
            let on_trial = target.on_trial().take(TRIAL_SAMPLES);
            samples.extend(on_trial.filter_map(|slot| self.sample(*pid, slot, vec![slot], round)));
        }
        samples
    }

    fn sample(&self, pid: u32, slot: Slot, slots: Vec<Slot>, round: u64) -> Option<Sample> {
        let frame = self.targets.get(&pid)?.sample(slot, round)?;
        Some(Sample { pid, frame, slots })
    }

    /// Promotes what comes first, within the budgets.
    fn promote(&mut self) {
        // What is measured now decides the order.
        if self.short || self.meter.ends_at().is_some() {
            return;
        }
        let began = Instant::now();
        while began.elapsed() < LONGEST_TURN && self.may_go_on() {
            let now = self.now();
            let Some(place) = self.next_candidate(now) else {
                break;
            };
            let Some(candidate) = self.queue.remove(place) else {
                break;
            };
            let before = cpu_time();
            self.promote_one(candidate, now);
            let cost = cpu_time().saturating_sub(before);
            let time = self.now().saturating_sub(now);
            self.charge_promotion(candidate.process, cost, time);
        }
    }

    /// The place in the queue of the first candidate that may be tried now.
    fn next_candidate(&mut self, now: Duration) -> Option<usize> {
        let mut open = BTreeMap::new();
        for (pid, target) in &self.targets {
            let budget = self.rule_budgets.get_mut(&target.rule);
            let in_budget = budget.is_none_or(|budget| budget.may_spend(now));
            open.insert(*pid, in_budget && target.promote_at() <= now);
        }
        self.queue
            .iter()
            .position(|candidate| open.get(&candidate.process).copied().unwrap_or(false))
    }

    fn promote_one(&mut self, candidate: Candidate<u32>, now: Duration) {
        let pid = candidate.process;
        let Some(target) = self.targets.get_mut(&pid) else {
            return;
        };
        // The region of others that were refused may rest meanwhile.
        if !self.once && !target.is_due(candidate.extent.slot, now) {
            return;
        }
        match target.promote(candidate.extent, now) {
            Ok(Promotion::Done | Promotion::Refused) => {}
            Ok(Promotion::NoBlock) if self.once => self.queue.retain(|c| c.process != pid),
            // It stays where it was.
            Ok(Promotion::NoBlock) => self.queue.push_front(candidate),
            Err(lost) => self.lose(pid, lost),
        }
    }

    fn charge_promotion(&mut self, pid: u32, cost: Duration, time: Duration) {
        let now = self.now();
        let Some(target) = self.targets.get_mut(&pid) else {
            return;
        };
        target.note_cost(cost, time);
        if let Some(budget) = self.rule_budgets.get_mut(&target.rule) {
            budget.spend(cost, now);
        }
    }

    /// Writes down what is new of each process, now and then.
    fn write_down(&mut self) {
        let now = self.now();
        if now < self.write_at {
            return;
        }
        let before = cpu_time();
        let news = self.targets.values_mut().filter(|target| target.has_news());
        news.for_each(Target::write_down);
        let cost = cpu_time().saturating_sub(before);
        let wait = self.budget.share().time_to_earn(cost) * WRITE_PART;
        self.write_at = now + wait.max(WRITE_APART);
    }

    /// Whether the one pass that was asked for is made.
    fn is_through(&self) -> bool {
        let looked = |target: &Target<_>| target.counts.looks > 0;
        self.once
            && self.targets.values().all(looked)
            && self.meter.ends_at().is_none()
            && (self.queue.is_empty() || self.short)
    }

    /// How long nothing is due.
    fn pause(&mut self) -> Duration {
        let now = self.now();
        let mut next = self.select_at.min(self.memory_at).min(self.requeue_at);
        for target in self.targets.values() {
            next = next.min(target.look_at());
            if target.has_news() {
                next = next.min(self.write_at);
            }
            // What waits for a measurement is not due before it.
            if !self.trials_wait {
                next = next.min(target.examine_at().unwrap_or(next));
            }
        }
        next = match self.meter.ends_at() {
            Some(end) => next.min(end),
            None => next.min(self.promotion_at(now)),
        };
        // Nothing at all is done without any budget.
        next.saturating_sub(now)
            .max(self.budget.wait_for(USUAL_COST, now))
    }

    /// When the next promotion may be tried.
    fn promotion_at(&mut self, now: Duration) -> Duration {
        let waiting: BTreeSet<u32> = self.queue.iter().map(|c| c.process).collect();
        let mut next = Duration::MAX;
        for target in waiting.iter().filter_map(|pid| self.targets.get(pid)) {
            let budget = self.rule_budgets.get_mut(&target.rule);
            let earned = budget.map_or(Duration::ZERO, |b| b.wait_for(USUAL_COST, now));
            next = next.min(target.promote_at().max(now + earned));
        }
        if self.short { Duration::MAX } else { next }
    }

    /// The state of everything.
    pub fn snapshot(&self) -> Snapshot {
        let mut waiting: BTreeMap<u32, u64> = BTreeMap::new();
        for candidate in &self.queue {
            *waiting.entry(candidate.process).or_default() += 1;
        }
        let mut total = self.ended_total;
        let mut processes = Vec::new();
        for (pid, target) in &self.targets {
            total += target.counts;
            let waiting = waiting.get(pid).copied().unwrap_or(0);
            processes.push(snapshot(*pid, target, waiting));
        }
        Snapshot {
            processes,
            ended: self.ended.iter().cloned().collect(),
            total,
            exits: self.exits,
            denied: self.denied.len() as u64,
            cpu_seconds: (cpu_time() + self.kernel_cpu).as_secs_f64(),
            elapsed_seconds: self.now().as_secs_f64(),
            accesses: self.meter.last().name(),
            memory_short: self.short,
            ..Snapshot::default()
        }
    }
}

fn rule_budgets(who: &Who, now: Duration) -> BTreeMap<usize, CpuBudget> {
    let Who::Rules(rules) = who else {
        return BTreeMap::new();
    };
    let share = |(number, rule): (usize, &crate::plan::Rule)| Some((number, rule.cpu?));
    let shares = rules.iter().enumerate().filter_map(share);
    shares
        .map(|(number, share): (usize, CpuShare)| (number, CpuBudget::new(share, now)))
        .collect()
}

fn snapshot(pid: u32, target: &Target<LinuxProcess>, waiting: u64) -> ProcessSnapshot {
    ProcessSnapshot {
        pid,
        program: target.program.clone(),
        superpages: target.superpages(),
        waiting,
        counts: target.counts,
    }
}
