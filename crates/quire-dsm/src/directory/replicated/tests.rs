//! Copies of a directory under everything that a network and a machine can do to them:
//! messages that are lost, repeated and overtaken, copies that are cut off or stopped, and
//! that begin again with what they had made durable. The crate `raft` draws its own numbers
//! for elections, so a seed gives the faults, not each step.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter;
use std::time::Instant;

use proptest::prelude::*;
use quire_core::dsm::message::ServerId;
use quire_core::dsm::types::Machine;
use quire_core::units::Bytes;

use super::replica::Broken;
use super::*;
use crate::directory::asked::Failed;
use crate::directory::state::Command;
use crate::directory::{Change, Entry, LeaseId, Member, View};
use crate::store::{NewObject, Object, ObjectId, SchedulerKind};
use crate::wire::control::{MachineCode, PageSize, Role};

const TICK: Duration = Duration::from_millis(50);
const LEASE: Duration = Duration::from_secs(3);
/// The object of which there are views.
const OBJECT: ObjectId = ObjectId(5);
/// Objects that come and go have numbers from this on.
const FIRST: u64 = 1000;

/// Numbers that follow from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// A server: a copy, the disk under it, and what the server knows of its membership.
struct Station {
    place: Place,
    /// None while it is stopped for good and not begun again.
    replica: Option<Replica>,
    disk: Log,
    /// Nothing leaves it, and nothing arrives.
    is_cut: bool,
    /// When the answer of which question was asked for, and for what.
    asked: BTreeMap<u64, (Instant, Question)>,
    /// Which object it has made under which key.
    objects: BTreeMap<String, ObjectId>,
    member: Option<Membership>,
    /// The newest view of the object when a question was asked.
    floors: BTreeMap<u64, u64>,
}

struct Membership {
    id: ServerId,
    lease: LeaseId,
    /// Until when its holder uses it.
    ends: Instant,
}

struct World {
    machines: Vec<Station>,
    network: Vec<Letter>,
    now: Instant,
    dice: Dice,
    next: u64,
    /// What the state was after which entry.
    states: BTreeMap<u64, u64>,
    /// Until when servers use their leases.
    ends: BTreeMap<ServerId, Instant>,
    /// Who made which view, and was told so.
    made: BTreeMap<u64, ServerId>,
    /// Objects that gave their names up.
    discarded: BTreeSet<ObjectId>,
    /// Objects that are gone.
    withdrawn: BTreeSet<ObjectId>,
    /// Objects whose names somebody has removed, and was told so.
    unnamed: BTreeSet<ObjectId>,
    /// So often somebody else was faster to remove one.
    too_late: usize,
    /// Which object was made of what was begun, by its key.
    sized: BTreeMap<String, ObjectId>,
    /// Keys of what was begun and removed.
    ended: BTreeSet<String>,
    /// So many objects could not be made, as one that was removed had the key.
    in_use: usize,
    expired: usize,
    restored: usize,
    /// So many answers were not known.
    unknown: usize,
}

impl World {
    fn new(servers: u64, seed: u64) -> World {
        let machine = |me: u64| Station {
            place: Place {
                list: 7,
                servers,
                me,
                copy: 100 + me,
            },
            replica: None,
            disk: Log::new(servers),
            is_cut: false,
            asked: BTreeMap::new(),
            objects: BTreeMap::new(),
            member: None,
            floors: BTreeMap::new(),
        };
        let mut world = World {
            machines: (1..=servers).map(machine).collect(),
            network: Vec::new(),
            now: Instant::now(),
            dice: Dice(seed | 1),
            next: 1,
            states: BTreeMap::new(),
            ends: BTreeMap::new(),
            made: BTreeMap::new(),
            discarded: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
            unnamed: BTreeSet::new(),
            too_late: 0,
            sized: BTreeMap::new(),
            ended: BTreeSet::new(),
            in_use: 0,
            expired: 0,
            restored: 0,
            unknown: 0,
        };
        for at in 0..world.machines.len() {
            world.begin(at);
        }
        world
    }

    fn begin(&mut self, at: usize) {
        let machine = &mut self.machines[at];
        let numbers = Box::new(random);
        let replica = Replica::new(machine.place, machine.disk.clone(), numbers);
        let mut replica = replica.unwrap();
        replica.compact_after(32);
        machine.replica = Some(replica);
        machine.asked.clear();
        machine.floors.clear();
        machine.member = None;
    }

    /// A tick: clocks go on, what is under way arrives, or not, and all say what they say.
    fn round(&mut self, trouble: bool) {
        self.now += TICK;
        for at in 0..self.machines.len() {
            let stands_still = trouble && self.dice.one_in(8);
            if !stands_still && let Some(replica) = &mut self.machines[at].replica {
                replica.tick(self.now);
            }
            self.settle(at);
        }
        for _ in 0..3 {
            for letter in self.arriving(trouble) {
                self.arrives(letter);
            }
        }
    }

    fn arriving(&mut self, trouble: bool) -> Vec<Letter> {
        let mut all = std::mem::take(&mut self.network);
        if !trouble {
            return all;
        }
        for last in (1..all.len()).rev() {
            all.swap(last, self.dice.below(last as u64 + 1) as usize);
        }
        let mut arriving = Vec::new();
        for letter in all {
            match self.dice.below(16) {
                0 => {}
                1..=3 => self.network.push(letter),
                4 => arriving.extend([letter.clone(), letter]),
                _ => arriving.push(letter),
            }
        }
        arriving
    }

    fn arrives(&mut self, letter: Letter) {
        let to = letter.mail.to as usize - 1;
        if self.machines[to].is_cut || self.machines[letter.sender as usize - 1].is_cut {
            return;
        }
        // Over the wire and back.
        let letter = postcard::from_bytes(&postcard::to_stdvec(&letter).unwrap()).unwrap();
        if let Some(replica) = &mut self.machines[to].replica {
            assert_eq!(replica.hear(letter, self.now).unwrap(), None);
        }
        self.settle(to);
    }

    fn settle(&mut self, at: usize) {
        let machine = &mut self.machines[at];
        let Some(replica) = &mut machine.replica else {
            return;
        };
        let disk = &mut machine.disk;
        let mut keep = |log: &Log| {
            *disk = log.clone();
            Ok(())
        };
        let done = replica.settle(self.now, &mut keep).unwrap();
        let mut hasher = DefaultHasher::new();
        postcard::to_stdvec(replica.agreed())
            .unwrap()
            .hash(&mut hasher);
        let state = hasher.finish();
        let agreed = *self.states.entry(replica.applied()).or_insert(state);
        assert_eq!(agreed, state, "copies differ after {}", replica.applied());
        for letter in &done.letters {
            if letter.mail.is_base() {
                replica.sent_base(letter.mail.to);
                self.restored += 1;
            }
        }
        self.network.extend(done.letters);
        for change in done.changes {
            self.changed(&change);
        }
        for (number, reply) in done.answers {
            self.answered(at, number, reply);
        }
    }

    fn changed(&mut self, change: &Change) {
        let Change::Left(id) = change else {
            return;
        };
        self.expired += 1;
        if let Some(ends) = self.ends.get(id) {
            assert!(*ends <= self.now, "{id:?} was put out while its lease held");
        }
    }

    fn ask(&mut self, at: usize, question: Question) {
        let newest = self.made.keys().next_back().copied().unwrap_or(0);
        let machine = &mut self.machines[at];
        if let Some(replica) = &mut machine.replica {
            let number = replica.ask(question.clone());
            machine.asked.insert(number, (self.now, question));
            machine.floors.insert(number, newest);
        }
    }

    /// Who has waited for so long gives up. What is not answered is said again and again until then.
    fn gives_up(&mut self, at: usize, after: Duration) {
        let machine = &mut self.machines[at];
        let (now, floors) = (self.now, &mut machine.floors);
        let replica = &mut machine.replica;
        machine.asked.retain(|number, (asked, _)| {
            let waits = now < *asked + after;
            if !waits && let Some(replica) = replica {
                replica.forget(*number);
                floors.remove(number);
            }
            waits
        });
    }

    /// What a server does of itself: it joins, renews, and makes views.
    fn acts(&mut self, at: usize) {
        let now = self.now;
        let machine = &mut self.machines[at];
        machine.member.take_if(|member| member.ends <= now);
        let joins = |(_, question): &(Instant, Question)| matches!(question, Question::Join(..));
        let Some(member) = &machine.member else {
            if !machine.asked.values().any(joins) {
                self.next += 1;
                let member = Member {
                    id: ServerId(self.next),
                    address: String::new(),
                };
                self.ask(at, Question::Join(member, LEASE));
            }
            return;
        };
        let (id, lease) = (member.id, member.lease);
        match self.dice.below(12) {
            0..=2 => self.ask(at, Question::Renew(lease)),
            3 => self.ask(at, Question::View(OBJECT)),
            5 => {
                self.next += 1;
                let entry = entry(self.key(), FIRST + self.next);
                self.ask(at, Question::Publish(entry));
            }
            6 => {
                self.next += 1;
                let key = format!("n{}~{:x}", self.next / 16, self.next);
                let mut begun = entry(key, FIRST + self.next);
                (begun.object.is.size, begun.home) = (Bytes(0), id);
                self.ask(at, Question::Begin(lease, begun));
            }
            4 => {
                let epoch = self.made.keys().next_back().map_or(1, |last| last + 1);
                let view = View {
                    object: OBJECT,
                    epoch,
                    members: vec![id],
                    by: id,
                };
                self.ask(at, Question::Propose(lease, view));
            }
            _ => {}
        }
    }

    /// A key for the next object: others of about that time have the same name, and the same key
    /// where it is plain.
    fn key(&mut self) -> String {
        let name = format!("n{}", self.next / 16);
        match self.dice.one_in(2) {
            true => name,
            false => format!("{name}~{:x}", self.next),
        }
    }

    /// What a server has made it removes again, with its name at once or first.
    fn published(&mut self, at: usize, object: &Object) {
        let key = object.is.name.clone();
        // Sometimes another one does so at the same time. It knows a key that no other object gets.
        let both = key.contains('~') && self.dice.one_in(2);
        let another = self.dice.below(self.machines.len() as u64) as usize;
        for at in iter::once(at).chain(both.then_some(another)) {
            let objects = &mut self.machines[at].objects;
            objects.insert(key.clone(), object.id);
            let next = match self.dice.one_in(3) {
                true => Question::Withdraw(key.clone()),
                false => Question::Discard(key.clone()),
            };
            self.ask(at, next);
        }
    }

    /// What a server has begun, it and another one give a size to, or remove.
    fn begun(&mut self, at: usize, key: &str) {
        let another = self.dice.below(self.machines.len() as u64) as usize;
        for at in [at, another] {
            let next = match self.dice.one_in(3) {
                true => Question::EndBegun(key.to_owned()),
                false => {
                    self.next += 1;
                    Question::GiveSize(entry(key.to_owned(), FIRST + self.next))
                }
            };
            self.ask(at, next);
        }
    }

    fn answered(&mut self, at: usize, number: u64, reply: Reply) {
        let machine = &mut self.machines[at];
        // Who asked may have given up.
        let Some((asked, question)) = machine.asked.remove(&number) else {
            return;
        };
        let floor = machine.floors.remove(&number).unwrap_or(0);
        let ends = asked + (LEASE - LEASE / 50);
        match (question, reply) {
            (Question::Join(member, _), Reply::Joined(lease, length)) => {
                assert_eq!(length, LEASE);
                let id = member.id;
                self.ends.insert(id, ends);
                machine.member = Some(Membership { id, lease, ends });
            }
            (Question::Renew(lease), Reply::Renewed(_)) => {
                let member = machine.member.as_mut().filter(|it| it.lease == lease);
                // A renewal that comes after the end does not bring back what was given up.
                if let Some(member) = member.filter(|member| self.now < member.ends) {
                    member.ends = member.ends.max(ends);
                    self.ends.insert(member.id, member.ends);
                }
            }
            (Question::Publish(entry), Reply::Done) => self.published(at, &entry.object),
            (Question::Begin(_, entry), Reply::Done) => self.begun(at, &entry.object.is.name),
            (Question::GiveSize(entry), Reply::Done) => {
                let key = entry.object.is.name.clone();
                assert!(!self.ended.contains(&key), "{key} was removed");
                let before = self.sized.insert(key, entry.object.id);
                assert_eq!(before, None, "it was made twice");
                self.published(at, &entry.object);
            }
            (Question::EndBegun(key), Reply::Done) => {
                assert!(!self.sized.contains_key(&key), "{key} has a size");
                assert!(self.ended.insert(key), "it was removed twice");
            }
            (
                Question::Publish(_) | Question::Begin(..),
                Reply::Failed(Failed::Exists(_) | Failed::Begun(_)),
            )
            | (Question::GiveSize(_), Reply::Failed(Failed::Exists(_) | Failed::Missing(_)))
            | (Question::EndBegun(_), Reply::Failed(Failed::Missing(_))) => {}
            (Question::Publish(entry), Reply::Failed(Failed::InUse(_))) => {
                let key = &entry.object.is.name;
                assert!(!key.contains('~'), "nobody else has {key}");
                self.in_use += 1;
            }
            (Question::Discard(key), Reply::Done) => {
                let id = machine.objects[&key];
                assert!(self.unnamed.insert(id), "{key} was removed twice");
                self.discarded.insert(id);
                self.ask(at, Question::Withdraw(key));
            }
            (Question::Withdraw(key), Reply::Withdrawn(had_name)) => {
                let id = machine.objects[&key];
                let is_first = !had_name || self.unnamed.insert(id);
                assert!(is_first, "{key} was removed twice");
                self.withdrawn.insert(id);
            }
            (Question::Discard(_) | Question::Withdraw(_), Reply::Failed(Failed::Missing(_))) => {
                self.too_late += 1;
            }
            (Question::View(_), Reply::Viewed(view)) => {
                let epoch = view.map_or(0, |view| view.epoch);
                assert!(epoch >= floor, "epoch {epoch} after {floor} was made");
            }
            (Question::Propose(_, view), Reply::Done) => {
                // Others may have heard of it before who made it.
                let maker = *self.made.entry(view.epoch).or_insert(view.by);
                assert_eq!(maker, view.by, "two servers made view {}", view.epoch);
            }
            (Question::Propose(..), Reply::Failed(Failed::Overtaken(view))) => {
                // It may have been made by who never heard so.
                self.made.entry(view.epoch).or_insert(view.by);
            }
            (
                Question::Renew(lease) | Question::Propose(lease, _) | Question::Begin(lease, _),
                Reply::Failed(Failed::LeaseOver),
            ) => {
                let asked_for = machine.member.take_if(|member| member.lease == lease);
                let holds = asked_for.is_some_and(|member| self.now < member.ends);
                assert!(!holds, "a lease is over before its holder knows it");
            }
            (Question::Propose(..), Reply::Failed(Failed::WrongEpoch { .. })) => {}
            // It is done all the same. Who only looks asks again instead.
            (
                Question::Join(..)
                | Question::Publish(_)
                | Question::Begin(..)
                | Question::GiveSize(_)
                | Question::EndBegun(_)
                | Question::Discard(_)
                | Question::Withdraw(_)
                | Question::Propose(..),
                Reply::Failed(Failed::Unknown(_)),
            ) => self.unknown += 1,
            (question, reply) => panic!("{question:?}: {reply:?}"),
        }
    }

    /// Something happens to one of them, now and then. Most are always left.
    fn trouble(&mut self) {
        let at = self.dice.below(self.machines.len() as u64) as usize;
        match self.dice.below(120) {
            0 => {
                self.machines[at].replica = None;
                self.machines[at].member = None;
            }
            1 => self.machines[at].is_cut = true,
            2..=9 => self.machines[at].is_cut = false,
            10..=17 if self.machines[at].replica.is_none() => self.begin(at),
            18 => {
                // It is killed and begins at once.
                self.machines[at].replica = None;
                self.begin(at);
            }
            _ => {}
        }
        for at in 0..self.machines.len() {
            if self.dice.one_in(3) {
                self.acts(at);
            }
            self.gives_up(at, Duration::from_secs(2));
        }
    }

    fn all_is_answered(&self, at: usize) {
        let asked = &self.machines[at].asked;
        assert!(asked.is_empty(), "not answered: {asked:?}");
    }

    /// Nothing happens to anybody any more: all come to the same, and all is answered.
    fn rests(&mut self) {
        for at in 0..self.machines.len() {
            self.machines[at].is_cut = false;
            if self.machines[at].replica.is_none() {
                self.begin(at);
            }
        }
        for _ in 0..200 {
            self.round(false);
        }
        for at in 0..self.machines.len() {
            self.all_is_answered(at);
            self.ask(at, Question::View(OBJECT));
        }
        for _ in 0..200 {
            self.round(false);
        }
        for at in 0..self.machines.len() {
            self.all_is_answered(at);
        }
        let all: Vec<_> = self.machines.iter().collect();
        let states: Vec<_> = all.iter().map(|it| it.replica.as_ref().unwrap()).collect();
        assert!(
            states
                .windows(2)
                .all(|two| two[0].agreed() == two[1].agreed())
        );
        assert_eq!(states.iter().filter(|replica| replica.leads()).count(), 1);
        let mut state = states[0].agreed().state.clone();
        let (entries, _) = state.apply(Command::Ask(LeaseId(0), Question::Entries));
        let Reply::Entries(entries) = entries else {
            panic!("{entries:?}");
        };
        for entry in entries {
            let (id, key) = (entry.object.id, &entry.object.is.name);
            assert!(!self.withdrawn.contains(&id), "{key} is there again");
            assert!(!self.ended.contains(key), "{key} was removed");
            let sized = self.sized.get(key);
            assert!(
                sized.is_none_or(|sized| *sized == id),
                "{key} is another one"
            );
            let is_discarded = self.discarded.contains(&id);
            assert!(entry.is_removed || !is_discarded, "{key} lives again");
        }
    }
}

fn entry(name: String, id: u64) -> Entry {
    Entry {
        object: Object {
            id: ObjectId(id),
            created: 1,
            is: NewObject {
                name,
                size: Bytes(4096),
                page_size: Bytes(4096),
                scheduler: SchedulerKind::Distributed,
                machine: Machine::Little,
                tags: Vec::new(),
                owner: String::new(),
                rights: Vec::new(),
            },
        },
        home: ServerId(1),
        store: None,
        is_removed: false,
    }
}

fn runs(servers: u64, seed: u64) -> World {
    let mut world = World::new(servers, seed);
    for _ in 0..1500 {
        world.trouble();
        world.round(true);
    }
    world.rests();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn copies_agree_whatever_happens(servers in 3u64..6, seed in any::<u64>()) {
        runs(servers, seed);
    }
}

#[test]
fn much_happens_in_a_run() {
    let worlds: Vec<World> = (1..8).map(|seed| runs(3, seed * 0x9E37_79B9)).collect();
    let views: usize = worlds.iter().map(|world| world.made.len()).sum();
    let expired: usize = worlds.iter().map(|world| world.expired).sum();
    let restored: usize = worlds.iter().map(|world| world.restored).sum();
    let withdrawn: usize = worlds.iter().map(|world| world.withdrawn.len()).sum();
    assert!(views > 100, "{views} views");
    assert!(withdrawn > 100, "{withdrawn} names came and went");
    let discarded: usize = worlds.iter().map(|world| world.discarded.len()).sum();
    let in_use: usize = worlds.iter().map(|world| world.in_use).sum();
    assert!(discarded > 50, "{discarded} names were given up");
    assert!(in_use > 0, "{in_use} keys were in use");
    let sized: usize = worlds.iter().map(|world| world.sized.len()).sum();
    let ended: usize = worlds.iter().map(|world| world.ended.len()).sum();
    assert!(sized > 50, "{sized} objects got their sizes");
    assert!(ended > 20, "{ended} were removed before");
    let too_late: usize = worlds.iter().map(|world| world.too_late).sum();
    assert!(too_late > 20, "{too_late} were removed by others");
    assert!(expired > 20, "{expired} leases have ended");
    assert!(restored > 3, "{restored} states were sent");
}

/// What came of a question is not known where it was done in a state that was sent as a whole.
#[test]
fn a_question_that_was_done_while_its_copy_was_behind_is_answered() {
    let mut world = World::new(3, 5);
    for _ in 0..100 {
        world.round(false);
    }
    let leads = |world: &World, at: usize| world.machines[at].replica.as_ref().unwrap().leads();
    let leader = (0..3).find(|at| leads(&world, *at)).expect("one leads");
    let behind = (leader + 1) % 3;
    world.ask(behind, Question::Publish(entry("asked".to_owned(), 8)));
    world.settle(behind);
    for letter in std::mem::take(&mut world.network) {
        world.arrives(letter);
    }
    world.machines[behind].is_cut = true;
    for number in 0..100 {
        world.ask(
            leader,
            Question::Publish(entry(format!("other{number}"), 9 + number)),
        );
        world.round(false);
    }
    assert_eq!((world.restored, world.unknown), (0, 0));
    world.machines[behind].is_cut = false;
    for _ in 0..20 {
        world.round(false);
    }
    assert!(world.restored > 0, "no state was sent");
    assert_eq!(world.unknown, 1);
    world.all_is_answered(behind);
}

/// A copy that was emptied and begins anew has forgotten what it promised.
#[test]
fn a_copy_that_was_lost_takes_no_part() {
    let mut world = World::new(3, 1);
    for _ in 0..200 {
        world.round(false);
    }
    let known = world.machines[0].replica.as_ref().unwrap();
    assert!((1..=3).all(|me| known.agreed().state.copy(me) == Some(100 + me)));
    let at = 1;
    world.machines[at].disk = Log::new(3);
    world.machines[at].place.copy = 999;
    world.begin(at);
    let mut refused = 0;
    let mut is_told = false;
    for _ in 0..60 {
        world.now += TICK;
        for at in 0..3 {
            if let Some(replica) = &mut world.machines[at].replica {
                replica.tick(world.now);
            }
            world.settle(at);
        }
        for letter in std::mem::take(&mut world.network) {
            let (from, to) = (letter.sender, letter.mail.to as usize - 1);
            let Some(replica) = &mut world.machines[to].replica else {
                continue;
            };
            match replica.hear(letter, world.now) {
                Ok(Some(why)) => {
                    assert_eq!(from as usize - 1, at);
                    assert!(why.contains("bring that one back"), "{why}");
                    refused += 1;
                }
                Ok(None) => world.settle(to),
                Err(Broken::Gone(_)) => {
                    assert_eq!(to, at);
                    world.machines[at].replica = None;
                    is_told = true;
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(
        is_told,
        "the lost copy was not told; {refused} of its messages were refused"
    );
}

#[test]
fn a_message_that_no_copy_sends_is_refused() {
    let mut world = World::new(3, 3);
    for _ in 0..40 {
        world.round(false);
    }
    world.now += TICK;
    let leader = (0..3).find(|at| world.machines[*at].replica.as_ref().unwrap().leads());
    let leader = leader.expect("one leads");
    for _ in 0..4 {
        world.machines[leader]
            .replica
            .as_mut()
            .unwrap()
            .tick(world.now);
        world.settle(leader);
    }
    let letter = world.network.pop().expect("a leader is heard of");
    let to = letter.mail.to as usize - 1;
    let replica = world.machines[to].replica.as_mut().unwrap();
    let mut other = letter.clone();
    other.list = 8;
    assert!(
        replica
            .hear(other, world.now)
            .unwrap()
            .unwrap()
            .contains("another list")
    );
    let mut other = letter.clone();
    other.mail.to = letter.sender;
    assert!(replica.hear(other, world.now).unwrap().is_some());
    let mut other = letter;
    other.mail = other.mail.said_by(4);
    assert!(
        replica
            .hear(other, world.now)
            .unwrap()
            .unwrap()
            .contains("nobody")
    );
}

/// What another version wrote is not taken for something else.
#[test]
fn a_copy_of_another_format_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let peers: Vec<Address> = (0..3)
        .map(|it| format!("unix:/{it}").parse().unwrap())
        .collect();
    let plan = Plan {
        own: peers[0].clone(),
        peers: peers.clone(),
        place: place.path().join("copy"),
        lease: LEASE,
        security: Security::Automatic(None),
        hello: Hello {
            name: "server".parse().unwrap(),
            role: Role::Server,
            machine: MachineCode(0),
            page_size: PageSize::BASE,
            features: 0,
        },
        realtime: false,
    };
    let names: Vec<String> = peers.iter().map(Address::to_string).collect();
    let refused = |format| {
        let (mut disk, _) = Small::open::<Kept<Log>>(&plan.place, FILE).unwrap();
        let kept = Kept {
            format,
            peers: names.clone(),
            me: 1,
            copy: 5,
            log: Log::new(3),
        };
        disk.replace(&kept).unwrap();
        drop(disk);
        opened(&plan, &names).err()
    };
    let older = refused(FORMAT - 1);
    assert!(matches!(older, Some(PlanError::Older(_))), "{older:?}");
    let newer = refused(FORMAT + 1);
    assert!(matches!(newer, Some(PlanError::Newer(_))), "{newer:?}");
    assert!(refused(FORMAT).is_none());
}
