//! What only the simulation sees: who may do what to which page at the moment, who waits for
//! how long, what was read and written, and a trace of all that.

use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Arguments;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use quire_core::dsm::kernel::Failure;
use quire_core::dsm::message::{Access, ServerId};
use quire_dsm::store::ObjectId;

use crate::checker::{Kind, Operation, check, forget_lost};
use crate::joined::losses::Losses;
use crate::net::Hub;

/// No access takes longer than this when all faults were repaired some time ago; it succeeds.
pub const LONGEST_IN_CALM: Duration = Duration::from_millis(800);

/// Nor does one wait in vain whose process has had a link for this long, unless several
/// sessions were lost meanwhile: each may have had the page for a lease and more.
pub const LONGEST_WITH_LINK: Duration = Duration::from_millis(1300);

/// What begins so long after the last fault succeeds, with several servers.
const RECOVERY: Duration = Duration::from_millis(2500);

/// A session that is lost so soon after its host was stopped may have been lost by that.
const AFTER_A_STOP: Duration = Duration::from_secs(1);

pub type Shared = Rc<RefCell<World>>;

/// An access that is under way.
struct Waits {
    since: Duration,
    words: String,
}

/// What was done in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses that succeeded.
    pub done: u64,
    /// Accesses that failed with an error.
    pub failed: u64,
    /// Those of them that waited in vain for the server.
    pub late: u64,
    /// Sessions that ended without being closed in order.
    pub lost: u64,
    /// Sessions whose programs were told that something is lost.
    pub told: u64,
    /// Servers that ended as they were told to.
    pub ended: u64,
    /// Objects that were removed.
    pub removed: u64,
    /// Accesses that succeeded after the faults.
    pub calm: u64,
    /// What was noted.
    pub events: u64,
}

impl Counts {
    pub fn add(&mut self, other: Counts) {
        self.done += other.done;
        self.failed += other.failed;
        self.late += other.late;
        self.lost += other.lost;
        self.told += other.told;
        self.ended += other.ended;
        self.removed += other.removed;
        self.calm += other.calm;
        self.events += other.events;
    }
}

pub struct World {
    pub now: Duration,
    /// Faults were repaired, and whatever they began is over.
    pub is_calm: bool,
    /// Nobody begins anything any more.
    pub is_ending: bool,
    pub counts: Counts,
    /// The loops of processes, by host.
    pub hubs: BTreeMap<usize, Arc<Hub>>,
    /// What is wrong, with the first that was found.
    pub wrong: Option<String>,
    pub trace: Vec<String>,
    hash: u64,
    /// The server's incarnation. Without a store, each has objects of its own.
    /// With several servers, the number in the name of their object.
    pub run: u64,
    /// The objects of several servers.
    objects: Vec<Option<ObjectId>>,
    /// Those that were removed, and in which moment that was known.
    removed: BTreeMap<u64, u64>,
    /// No access takes longer than this, whatever happens: it succeeds or fails by then.
    pub longest: Duration,
    /// When something went wrong last, with several servers.
    pub troubled: Duration,
    /// There are several servers.
    pub is_joined: bool,
    /// Who may do what, by incarnation and page.
    held: BTreeMap<(u64, u64), BTreeMap<usize, Access>>,
    /// Hosts that are stopped, and those that have not looked at the clock since.
    stopped: BTreeMap<usize, Duration>,
    waits: BTreeMap<(usize, usize), Waits>,
    /// Since when hosts have the object open.
    linked: BTreeMap<usize, Duration>,
    history: Vec<Operation>,
    /// When sessions were lost, in moments.
    losers: BTreeMap<u64, u64>,
    /// By which server a session was served.
    served: BTreeMap<u64, Option<ServerId>>,
    /// When servers were gone from the directory, in moments.
    gone: BTreeMap<ServerId, u64>,
    /// Servers whose programs have given all back, as they were told to end; of those that are
    /// gone and left nothing behind that is missing, when others were gone after them.
    emptied: BTreeSet<ServerId>,
    parted: BTreeSet<ServerId>,
    /// Hosts that were told to end, and those that have.
    told_to_end: BTreeSet<usize>,
    ended: BTreeSet<usize>,
    /// When hosts were stopped last, in moments, and until when.
    stops: BTreeMap<usize, (u64, Duration)>,
    /// When that was.
    losses: Vec<Duration>,
    moment: u64,
    sessions: u64,
}

impl World {
    pub fn new() -> World {
        World {
            now: Duration::ZERO,
            is_calm: false,
            is_ending: false,
            counts: Counts::default(),
            hubs: BTreeMap::new(),
            wrong: None,
            trace: Vec::new(),
            hash: 0xcbf2_9ce4_8422_2325,
            run: 0,
            objects: Vec::new(),
            removed: BTreeMap::new(),
            longest: Duration::from_millis(2500),
            troubled: Duration::ZERO,
            is_joined: false,
            held: BTreeMap::new(),
            stopped: BTreeMap::new(),
            waits: BTreeMap::new(),
            linked: BTreeMap::new(),
            history: Vec::new(),
            losers: BTreeMap::new(),
            served: BTreeMap::new(),
            gone: BTreeMap::new(),
            emptied: BTreeSet::new(),
            parted: BTreeSet::new(),
            told_to_end: BTreeSet::new(),
            ended: BTreeSet::new(),
            stops: BTreeMap::new(),
            losses: Vec::new(),
            moment: 0,
            sessions: 0,
        }
    }

    /// A moment that nobody else has.
    pub fn moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// A session of a process with the server, among all.
    pub fn session(&mut self) -> u64 {
        self.sessions += 1;
        self.sessions
    }

    /// A host has the object open from now on, or not any more.
    pub fn linked(&mut self, host: usize, is_linked: bool) {
        match is_linked {
            true => drop(self.linked.insert(host, self.now)),
            false => drop(self.linked.remove(&host)),
        }
    }

    /// A session ended without having given back all: what only it knew may be lost.
    pub fn lost(&mut self, session: u64, host: usize) {
        let mut moment = self.moment();
        // Others may have had what it had since it was stopped.
        if let Some((stopped, until)) = self.stops.get(&host)
            && self.now < *until + AFTER_A_STOP
        {
            moment = moment.min(*stopped);
        }
        if let Entry::Vacant(place) = self.losers.entry(session) {
            place.insert(moment);
            self.losses.push(self.now);
            self.counts.lost += 1;
        }
    }

    /// A session broke. What was written in it is brought over the next link, or its program is told
    /// that it is lost ([`World::loses`]).
    pub fn breaks(&mut self) {
        self.losses.push(self.now);
        self.counts.lost += 1;
    }

    /// A program is told that something is lost that it wrote in a session.
    pub fn loses(&mut self, session: u64) {
        let moment = self.moment();
        self.losers.entry(session).or_insert(moment);
        self.counts.told += 1;
    }

    /// A session is one with this server.
    pub fn served(&mut self, session: u64, server: Option<ServerId>) {
        self.served.insert(session, server);
    }

    /// A server is gone from the directory.
    pub fn gone(&mut self, server: ServerId) {
        let moment = self.moment();
        self.note(format_args!("server {:x} is no member", server.0));
        if self.parted.contains(&server) {
            return;
        }
        self.gone.entry(server).or_insert(moment);
        // It may have had what others left to it.
        for parted in std::mem::take(&mut self.parted) {
            self.gone.entry(parted).or_insert(moment);
        }
    }

    /// A server begins.
    pub fn begins_to_serve(&mut self, host: usize) {
        self.told_to_end.remove(&host);
        self.note(format_args!("server {host} begins"));
    }

    /// A server is told to end.
    pub fn tell_to_end(&mut self, host: usize) {
        self.told_to_end.insert(host);
        if let Some(hub) = self.hubs.get(&host) {
            hub.wake();
        }
    }

    /// Whether it was.
    pub fn is_to_end(&self, host: usize) -> bool {
        self.told_to_end.contains(&host)
    }

    /// A server that ends has all that its programs had; and others have taken what they would
    /// lose with it, or not.
    pub fn all_is_back(&mut self, server: ServerId, is_taken: bool) {
        if self.emptied.insert(server) {
            self.note(format_args!("server {:x} has all back", server.0));
        }
        let has_left = self.gone.contains_key(&server);
        if is_taken && !has_left && self.parted.insert(server) {
            self.note(format_args!("server {:x} has left all to others", server.0));
        }
    }

    /// A server's process has ended.
    pub fn has_ended(&mut self, host: usize) {
        self.note(format_args!("server {host} ends"));
        self.counts.ended += 1;
        self.ended.insert(host);
    }

    /// Those that have, since the last time.
    pub fn take_ended(&mut self) -> BTreeSet<usize> {
        std::mem::take(&mut self.ended)
    }

    /// A session has ended as its server did. Nothing of it is missing if that had all back.
    pub fn parts(&mut self, session: u64, host: usize) {
        let server = self.served.get(&session).copied().flatten();
        match server.is_some_and(|server| self.emptied.contains(&server)) {
            true => self.note(format_args!("c{host} parts")),
            false => self.lost(session, host),
        }
    }

    fn mix(&mut self, number: u64) {
        self.hash = (self.hash ^ number)
            .wrapping_mul(0x0100_0000_01b3)
            .rotate_left(29);
    }

    /// What happened, in words.
    pub fn note(&mut self, what: Arguments<'_>) {
        let line = format!("{:>9.3} {what}", self.now.as_secs_f64() * 1000.0);
        self.note_bytes(line.as_bytes());
        self.counts.events += 1;
        self.trace.push(line);
    }

    /// Bytes that somebody sent.
    pub fn note_bytes(&mut self, bytes: &[u8]) {
        self.mix(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    /// Of all that was noted.
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    pub fn fail(&mut self, what: String) {
        self.note(format_args!("WRONG: {what}"));
        self.wrong.get_or_insert(what);
    }

    /// Which object of several servers it is, by its number in their directory; another one, where
    /// that does not know it any more.
    pub fn object(&mut self, known: Option<ObjectId>) -> u64 {
        let place = self
            .objects
            .iter()
            .position(|it| known.is_some() && *it == known);
        let place = place.unwrap_or_else(|| {
            self.objects.push(known);
            self.objects.len() - 1
        });
        place as u64 + 1
    }

    /// An object was removed.
    pub fn removed(&mut self, object: u64) {
        let now = self.moment();
        self.counts.removed += 1;
        self.removed.entry(object).or_insert(now);
    }

    /// Whether an object was removed in an earlier moment.
    pub fn was_removed(&self, known: ObjectId, moment: u64) -> bool {
        let place = self.objects.iter().position(|it| *it == Some(known));
        let removed = place.and_then(|place| self.removed.get(&(place as u64 + 1)));
        removed.is_some_and(|removed| *removed < moment)
    }

    /// What a host may do to a page from now on.
    pub fn may(&mut self, host: usize, run: u64, page: u64, access: Option<Access>) {
        let holders = self.held.entry((run, page)).or_default();
        match access {
            Some(access) => drop(holders.insert(host, access)),
            None => drop(holders.remove(&host)),
        }
        if access.is_some() {
            self.look_at_page(run, page);
        }
    }

    /// A host may do nothing any more: its process is gone.
    pub fn clear(&mut self, host: usize) {
        for holders in self.held.values_mut() {
            holders.remove(&host);
        }
        self.linked.remove(&host);
        self.waits.retain(|(whose, _), _| *whose != host);
    }

    /// A writer is alone. Who is stopped cannot do anything.
    fn look_at_page(&mut self, run: u64, page: u64) {
        let holders = &self.held[&(run, page)];
        let run_on = holders
            .iter()
            .filter(|(host, _)| !self.stopped.contains_key(host));
        let able: Vec<_> = run_on.map(|(host, access)| (*host, *access)).collect();
        let writes = able.iter().any(|(_, access)| *access == Access::Write);
        if writes && able.len() > 1 {
            self.fail(format!("page {page} of server {run}: {able:?} at once"));
        }
    }

    pub fn stop(&mut self, host: usize, until: Duration) {
        for (_, waits) in self
            .waits
            .iter_mut()
            .filter(|((whose, _), _)| *whose == host)
        {
            waits.since += until - self.now;
        }
        let moment = self.moment();
        self.stops.insert(host, (moment, until));
        self.stopped.insert(host, until);
    }

    pub fn is_stopped(&self, host: usize) -> bool {
        self.stopped
            .get(&host)
            .is_some_and(|until| *until > self.now)
    }

    /// A host that was stopped has looked at the clock, or is gone.
    pub fn goes_on(&mut self, host: usize) {
        if self.stopped.remove(&host).is_some() {
            self.note(format_args!("c{host} goes on"));
            let all: Vec<_> = self.held.keys().copied().collect();
            all.into_iter()
                .for_each(|(run, page)| self.look_at_page(run, page));
        }
    }

    /// A thread of a host begins an access.
    pub fn begins(&mut self, thread: (usize, usize), words: String) {
        let since = self.now;
        self.waits.insert(thread, Waits { since, words });
    }

    /// It succeeded, for the operation that it was.
    pub fn done(&mut self, thread: (usize, usize), operation: Operation) {
        let (host, number) = thread;
        self.note(format_args!(
            "c{host}.{number} {:?} word {:#x}: {:#x}",
            operation.kind, operation.word, operation.value
        ));
        self.waits.remove(&thread);
        self.counts.done += 1;
        self.counts.calm += u64::from(self.is_calm);
        self.history.push(operation);
    }

    /// Those of some threads of a host failed, for a stated reason. Memory is given up for all who
    /// wait for it when the first of them has waited for too long.
    pub fn failed(&mut self, host: usize, threads: &[usize], why: Failure) {
        let waited = threads.iter().filter_map(|number| {
            let waits = self.waits.remove(&(host, *number))?;
            Some((*number, waits))
        });
        let waited: Vec<(usize, Waits)> = waited.collect();
        let Some(since) = waited.iter().map(|(_, waits)| waits.since).min() else {
            return;
        };
        let is_explained = self.is_explained(host, since, why);
        for (number, Waits { words, .. }) in waited {
            self.counts.failed += 1;
            self.counts.late += u64::from(why == Failure::Late);
            self.note(format_args!("c{host}.{number} {words} fails: {why}"));
            if self.is_calm || !is_explained {
                self.fail(format!("{words} fails though all is well: {why}"));
            }
        }
    }

    /// Whether what somebody has waited for since then may fail now.
    fn is_explained(&self, host: usize, since: Duration, why: Failure) -> bool {
        if self.is_joined {
            return since < self.troubled + RECOVERY;
        }
        let linked = self.linked.get(&host);
        let is_linked = linked.is_some_and(|linked| self.now > *linked + LONGEST_WITH_LINK);
        let losses = self.losses.iter().filter(|at| **at >= since).count();
        !(why == Failure::Late && is_linked && losses < 2)
    }

    /// Whether somebody waits.
    fn is_quiet(&self) -> bool {
        self.waits.is_empty()
    }

    /// Looks at the clock: all is well from the first time on, nobody begins anything from the
    /// second, and the last is the end. Whether the run is over.
    pub fn look(&mut self, (settled, ending, end): (Duration, Duration, Duration)) -> bool {
        self.is_calm = self.now >= settled;
        self.is_ending = self.now >= ending;
        self.look_at_waiting(settled);
        self.is_ending && self.is_quiet() || self.now > end || self.wrong.is_some()
    }

    /// All is done at the end.
    pub fn look_at_end(&mut self) {
        if !self.is_quiet() {
            self.fail("somebody still waits at the end".into());
        }
        if self.counts.calm == 0 {
            self.fail("nothing was done after the faults".into());
        }
    }

    /// Nobody waits too long.
    fn look_at_waiting(&mut self, calm_since: Duration) {
        let is_late = |waits: &&Waits| {
            let in_calm = self.is_calm && self.now > calm_since + LONGEST_IN_CALM;
            let calm = in_calm && self.now > waits.since + LONGEST_IN_CALM;
            calm || self.now > waits.since + self.longest
        };
        if let Some(waits) = self.waits.values().find(is_late) {
            self.fail(format!("{} waits since {:?}", waits.words, waits.since));
        }
    }

    fn losses_of_servers(&self) -> Losses<'_> {
        Losses {
            sessions: &self.losers,
            served: &self.served,
            servers: &self.gone,
        }
    }

    /// Whether all that was read and written is what one memory would have done.
    pub fn look_at_history(&mut self) {
        let mut history = std::mem::take(&mut self.history);
        match self.is_joined {
            true => self.losses_of_servers().forget(&mut history),
            false => {
                let losers: Vec<u64> = self.losers.keys().copied().collect();
                forget_lost(&mut history, &losers);
            }
        }
        debug_assert!(
            history
                .iter()
                .all(|it| it.kind == Kind::Read || it.value != 0)
        );
        if let Err(why) = check(&history) {
            let word = why.split(':').next().unwrap_or_default().to_owned();
            for it in history
                .iter()
                .filter(|it| word == format!("word {}", it.word))
            {
                self.note(format_args!("{it:?}"));
            }
            self.fail(why);
        }
    }
}
