//! Messages for each fault where so many write to one page, counted over the automata that
//! servers run (paper 003, section 4.1 and Table 1). Nothing of it depends on time.
//!
//! In each round every kernel takes one write fault. With `distributed`, the one that has
//! the page gives it back first and serves its own kernel before it hears of the others, and
//! messages between a kernel and its server take no time.

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Result, ensure};
use quire_core::dsm::message::{
    Access, FromKernel, KernelId, Lock, PageNumber, Pages, ServerId, ToKernel,
};
use quire_core::dsm::scheduler::distributed::{Counters, Distributed, Message, Owner};
use quire_core::dsm::scheduler::observe::Observe;
use quire_core::dsm::scheduler::options::Options;
use quire_core::dsm::scheduler::simple::Simple;
use quire_core::dsm::scheduler::{Action, Scheduler};

use crate::dsm::Part;
use crate::dsm::results::{Bound, Results};

/// The fewest and the most who write.
const PARTIES: [usize; 2] = [2, 16];
const ROUNDS: u64 = 50;
const PAGE: Pages = Pages::one(PageNumber(0));

/// What was counted for so many servers.
struct Counted {
    /// Messages between servers in the first round.
    first: u64,
    /// The least and the most in a later round.
    later: [u64; 2],
    /// Messages that each server handled for each fault that came to it.
    handled: f64,
    /// Those of them that were from or to other servers.
    remote: f64,
}

/// Counts them, and judges what was counted.
pub fn measure(results: &mut Results) -> Result<()> {
    let [mut simple, mut handled, mut remote]: [f64; 3] = [0.0; 3];
    let mut is_as_in_paper = true;
    for parties in PARTIES[0]..=PARTIES[1] {
        let centralised = simple_messages(parties)?;
        let counted = distributed_messages(parties)?;
        simple = simple.max(centralised);
        (handled, remote) = (handled.max(counted.handled), remote.max(counted.remote));
        let n = parties as u64;
        is_as_in_paper &= counted.first == 3 * n - 4
            && counted
                .later
                .iter()
                .all(|later| [2 * n, 2 * n - 1].contains(later) || n == 2 && *later == 2);
        tell(parties, centralised, &counted, results);
    }
    let bound = |value| Bound::AtMost(value);
    let part = Part::Messages;
    results.judge(
        part,
        "",
        "simple: 5.0 for each fault",
        Some(simple),
        bound(5.0),
    );
    let text = "distributed: at most 4.1 handled by each server for each fault";
    results.judge(part, "", text, Some(handled), bound(4.1));
    let text = "distributed: at most 2.0 of them remote";
    results.judge(part, "", text, Some(remote), bound(2.0));
    let text = "distributed: 3N-4 between servers in the first round, then 2N or 2N-1 (2 of 2 servers whose page-outs are in time); 1 where so";
    let so = f64::from(u8::from(is_as_in_paper));
    results.judge(part, "", text, Some(so), Bound::AtLeast(1.0));
    results.note("Messages are counted over the automata in one process, in the paper's rounds; a DataWrite and the LockCompleted behind it count as one with distributed, as in the paper.");
    Ok(())
}

fn tell(parties: usize, simple: f64, counted: &Counted, results: &mut Results) {
    let part = Part::Messages;
    let mut add = |name: String, value, paper: String| {
        results.add(part, "", &name, "", vec![value]);
        results.paper(paper);
    };
    let n = parties;
    add(
        format!("{n} kernels, simple, each fault"),
        simple,
        "5.0".into(),
    );
    add(
        format!("{n} servers, distributed, each fault"),
        counted.handled,
        "4.1".into(),
    );
    add(format!("{n} servers, remote"), counted.remote, "2.0".into());
    add(
        format!("{n} servers, first round"),
        counted.first as f64,
        (3 * n - 4).to_string(),
    );
    let later = format!("{} or {}", 2 * n, 2 * n - 1);
    add(
        format!("{n} servers, later round"),
        counted.later[1] as f64,
        later,
    );
}

/// Messages for each fault of so many kernels at one server, but for the first, for which
/// nobody had to give the page back.
fn simple_messages(kernels: usize) -> Result<f64> {
    let mut scheduler: Simple<u64> = Simple::new(Options::new(1));
    let mut before = (0, 0);
    for round in 0..=ROUNDS {
        for kernel in 0..kernels {
            // The holder has lost the page when its turn comes.
            central_fault(&mut scheduler, KernelId(kernel as u64), round)?;
        }
        if round == 0 {
            let stats = scheduler.stats();
            before = (stats.messages(), stats.faults.total());
        }
    }
    let stats = scheduler.stats();
    let messages = stats.messages() - before.0;
    Ok(messages as f64 / (stats.faults.total() - before.1) as f64)
}

/// A kernel wants to write; all that follows.
fn central_fault(scheduler: &mut Simple<u64>, kernel: KernelId, value: u64) -> Result<()> {
    let access = Access::Write;
    let request = FromKernel::DataRequest {
        pages: PAGE,
        access,
    };
    let mut said = VecDeque::from([(kernel, request)]);
    let mut is_answered = false;
    while let Some((from, message)) = said.pop_front() {
        let mut actions = Vec::new();
        scheduler.kernel_says(from, message, &mut actions)?;
        let mut queue = VecDeque::from(actions);
        while let Some(action) = queue.pop_front() {
            match action {
                Action::Tell(to, ToKernel::LockRequest { .. }) => {
                    said.extend(given_back(value).map(|message| (to, message)));
                }
                Action::Tell(to, _) => is_answered |= to == kernel,
                Action::Load(pages) => {
                    let mut more = Vec::new();
                    scheduler.loaded(pages, Some(vec![None]), &mut more);
                    queue.extend(more);
                }
                Action::TellServer(..) | Action::Save(..) => {}
            }
        }
    }
    ensure!(is_answered, "a fault is never answered");
    Ok(())
}

/// What a kernel says that gives the page back.
fn given_back(value: u64) -> [FromKernel<u64>; 2] {
    let data = vec![Some(value)];
    [
        FromKernel::DataWrite { pages: PAGE, data },
        FromKernel::LockCompleted { pages: PAGE },
    ]
}

/// Servers with a kernel each, and the links between them.
struct Servers {
    all: Vec<Distributed<u64>>,
    links: BTreeMap<(usize, usize), VecDeque<Message<u64>>>,
    /// Writes, which the page counts.
    written: Vec<Option<u64>>,
    latest: u64,
}

fn distributed_messages(parties: usize) -> Result<Counted> {
    let first = Distributed::primary(ServerId(0), 1);
    let others = (1..parties as u64).map(|me| Distributed::replica(ServerId(me), ServerId(0), 1));
    let mut servers = Servers {
        all: std::iter::once(first).chain(others).collect(),
        links: BTreeMap::new(),
        written: vec![None; parties],
        latest: 0,
    };
    let first = servers.round()?;
    let before = servers.counters();
    let mut later = [u64::MAX, 0];
    for _ in 0..ROUNDS {
        let messages = servers.round()?;
        later = [later[0].min(messages), later[1].max(messages)];
    }
    ensure!(
        servers.latest == (ROUNDS + 1) * parties as u64,
        "{parties} servers wrote {} times",
        servers.latest
    );
    let after = servers.counters();
    let since = |of: fn(&Counters) -> u64| (of(&after) - of(&before)) as f64;
    let faults = since(|c| c.local.total() + c.remote.total());
    let remote = since(|c| c.servers.sent + c.servers.received);
    let local = since(|c| c.kernels.sent + c.kernels.received - c.completions);
    Ok(Counted {
        first,
        later,
        handled: (remote + local) / faults,
        remote: remote / faults,
    })
}

impl Servers {
    /// The sums over all servers.
    fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for counters in self.all.iter().map(Distributed::counters) {
            sum.local.read += counters.local.total();
            sum.remote.read += counters.remote.total();
            sum.kernels.sent += counters.kernels.sent;
            sum.kernels.received += counters.kernels.received;
            sum.completions += counters.completions;
            sum.servers.sent += counters.servers.sent;
            sum.servers.received += counters.servers.received;
        }
        sum
    }

    /// Which of them has the page: at first it is the first one, which has not heard of it.
    fn holder(&self) -> usize {
        let owns = |server: &Distributed<u64>| {
            let stat = server.stat(PageNumber(0));
            stat.is_some_and(|stat| !matches!(stat.owner, Owner::Server(_)))
        };
        self.all.iter().position(owns).unwrap_or(0)
    }

    /// Each kernel writes once. Returns how many messages went between servers.
    fn round(&mut self) -> Result<u64> {
        let before = self.counters().servers.sent;
        let holder = self.holder();
        if let Some(value) = self.written[holder].take() {
            let data = vec![Some(value)];
            self.says(holder, FromKernel::DataWrite { pages: PAGE, data })?;
        }
        self.fault(holder)?;
        for server in (0..self.all.len()).filter(|&server| server != holder) {
            self.fault(server)?;
        }
        while let Some((link, message)) = self.next() {
            let mut actions = Vec::new();
            let (from, to) = link;
            self.all[to].server_says(ServerId(from as u64), message, &mut actions)?;
            self.carry_out(to, actions)?;
        }
        Ok(self.counters().servers.sent - before)
    }

    /// The oldest message of the first link, and that link becomes the last.
    fn next(&mut self) -> Option<((usize, usize), Message<u64>)> {
        let (&link, queue) = self.links.iter_mut().find(|(_, queue)| !queue.is_empty())?;
        let message = queue.pop_front()?;
        Some((link, message))
    }

    fn fault(&mut self, server: usize) -> Result<()> {
        let access = Access::Write;
        let request = FromKernel::DataRequest {
            pages: PAGE,
            access,
        };
        self.says(server, request)
    }

    /// The kernel of a server says something; each has the server's number.
    fn says(&mut self, server: usize, message: FromKernel<u64>) -> Result<()> {
        let mut actions = Vec::new();
        let kernel = KernelId(server as u64);
        self.all[server].kernel_says(kernel, message, &mut actions)?;
        self.carry_out(server, actions)
    }

    fn carry_out(&mut self, server: usize, actions: Vec<Action<u64>>) -> Result<()> {
        for action in actions {
            match action {
                Action::TellServer(to, message) => {
                    let link = (server, to.0 as usize);
                    self.links.entry(link).or_default().push_back(message);
                }
                Action::Tell(_, message) => self.hears(server, message)?,
                Action::Load(pages) => {
                    let mut more = Vec::new();
                    self.all[server].loaded(pages, Some(vec![None]), &mut more);
                    self.carry_out(server, more)?;
                }
                Action::Save(..) => {}
            }
        }
        Ok(())
    }

    /// The kernel of a server hears something.
    fn hears(&mut self, server: usize, message: ToKernel<u64>) -> Result<()> {
        match message {
            ToKernel::DataProvided { data, .. } => {
                let value = data.first().copied().flatten().unwrap_or(0);
                ensure!(value == self.latest, "a write was lost");
                self.latest += 1;
                self.written[server] = Some(self.latest);
                Ok(())
            }
            ToKernel::LockRequest {
                lock: Lock::Flush, ..
            } => {
                if let Some(value) = self.written[server].take() {
                    let [write, _] = given_back(value);
                    self.says(server, write)?;
                }
                self.says(server, FromKernel::LockCompleted { pages: PAGE })
            }
            other => anyhow::bail!("a kernel hears {other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_numbers_come_out() {
        let mut results = Results::default();
        measure(&mut results).unwrap();
        let missed: Vec<_> = results
            .verdicts
            .iter()
            .filter(|verdict| verdict.outcome != crate::target::Outcome::Holds)
            .collect();
        assert!(missed.is_empty(), "{missed:?}");
    }
}
