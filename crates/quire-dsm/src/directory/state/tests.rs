//! The names of a directory against a naive model: a list of objects with their keys.

use proptest::collection::vec;
use proptest::prelude::*;
use quire_core::dsm::message::ServerId;
use quire_core::dsm::types::Machine;
use quire_core::units::Bytes;

use super::*;
use crate::store::{NewObject, Object, SchedulerKind};

/// What is asked for: names, keys and exact spellings.
const ASKED: [&str; 8] = ["a", "a~", "a~1", "a~2", "b", "b~", "b~1", "ab"];

/// One thing that servers do, with a key.
#[derive(Clone, Copy, Debug)]
enum Step {
    Publish(&'static str),
    /// As removed before.
    PublishRemoved(&'static str),
    Discard(&'static str),
    Withdraw(&'static str),
    Begin(&'static str),
    EndBegun(&'static str),
    GiveSize(&'static str),
    /// The home of what is begun is a member no more, and is one again under another lease.
    Leave,
}

fn step() -> impl Strategy<Value = Step> {
    let key = || prop::sample::select(vec!["a", "a~1", "a~2", "b", "b~1"]);
    prop_oneof![
        3 => key().prop_map(Step::Publish),
        1 => key().prop_map(Step::PublishRemoved),
        2 => key().prop_map(Step::Discard),
        1 => key().prop_map(Step::Withdraw),
        2 => key().prop_map(Step::Begin),
        1 => key().prop_map(Step::EndBegun),
        2 => key().prop_map(Step::GiveSize),
        1 => Just(Step::Leave),
    ]
}

fn entry(key: &str, id: u64) -> Entry {
    Entry {
        object: Object {
            id: ObjectId(id),
            created: 1,
            is: NewObject {
                name: key.to_owned(),
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

fn begun(key: &str, id: u64) -> Entry {
    let mut entry = entry(key, id);
    entry.object.is.size = Bytes(0);
    entry
}

fn removed(key: &str, id: u64) -> Entry {
    Entry {
        is_removed: true,
        ..entry(key, id)
    }
}

/// All objects, in the order in which they were made.
#[derive(Default)]
struct Model(Vec<Entry>);

impl Model {
    fn with_key(&self, key: &str) -> Option<usize> {
        let mut all = self.0.iter();
        all.position(|it| it.object.is.name == key)
    }

    fn with_name(&self, name: &str) -> Option<&Entry> {
        let is_it = |key: &str| key == name || key.starts_with(&format!("{name}~"));
        let mut living = self.0.iter().filter(|it| !it.is_removed);
        living.find(|it| is_it(&it.object.is.name))
    }

    fn find(&self, asked: &str) -> Option<&Entry> {
        match asked.split_once('~') {
            None => self.with_name(asked),
            Some((name, "")) => self.with_key(name).map(|at| &self.0[at]),
            Some(_) => self.with_key(asked).map(|at| &self.0[at]),
        }
    }

    /// What a directory answers, and says of it.
    fn take(&mut self, step: Step, id: u64) -> (Reply, Option<Change>) {
        let (Step::Publish(key)
        | Step::PublishRemoved(key)
        | Step::Discard(key)
        | Step::Withdraw(key)
        | Step::Begin(key)
        | Step::EndBegun(key)
        | Step::GiveSize(key)) = step
        else {
            self.0.retain(|it| !it.is_begun());
            return (Reply::Done, Some(Change::Left(ServerId(1))));
        };
        let name = key.split('~').next().unwrap();
        let there = self.with_key(key);
        let exists = || {
            (
                Reply::Failed(Failed::Exists(format!("an object {name}"))),
                None,
            )
        };
        match (step, there) {
            (Step::GiveSize(_), Some(at)) if self.0[at].is_begun() => {
                self.0[at] = entry(key, id);
                (Reply::Done, Some(Change::Published(entry(key, id))))
            }
            (Step::GiveSize(_), Some(_)) => exists(),
            (Step::Publish(_) | Step::Begin(_), _) if self.with_name(name).is_some() => {
                let has_it = self.with_name(name).unwrap();
                match step {
                    Step::Publish(_) if has_it.is_begun() => {
                        let key = has_it.object.is.name.clone();
                        (Reply::Failed(Failed::Begun(key)), None)
                    }
                    _ => exists(),
                }
            }
            (Step::Publish(_) | Step::PublishRemoved(_) | Step::Begin(_), Some(_)) => {
                let what = format!("object {key}");
                (Reply::Failed(Failed::InUse(what)), None)
            }
            (Step::Publish(_), None) => {
                self.0.push(entry(key, id));
                (Reply::Done, Some(Change::Published(entry(key, id))))
            }
            (Step::Begin(_), None) => {
                let entry = begun(key, id);
                self.0.push(entry.clone());
                (Reply::Done, Some(Change::Published(entry)))
            }
            (Step::EndBegun(_), there) if there.is_none_or(|at| !self.0[at].is_begun()) => {
                let what = format!("object {key} that is begun");
                (Reply::Failed(Failed::Missing(what)), None)
            }
            (Step::PublishRemoved(_), None) => {
                let entry = removed(key, id);
                self.0.push(entry.clone());
                (Reply::Done, Some(Change::Published(entry)))
            }
            (_, None) => {
                let what = format!("object {key}");
                (Reply::Failed(Failed::Missing(what)), None)
            }
            (Step::Discard(_), Some(at)) if self.0[at].is_removed => {
                let what = format!("object {key} that has its name");
                (Reply::Failed(Failed::Missing(what)), None)
            }
            (Step::Discard(_), Some(at)) if self.0[at].is_begun() => {
                let what = format!("object {key} that has a size");
                (Reply::Failed(Failed::Missing(what)), None)
            }
            (Step::Discard(_), Some(at)) => {
                self.0[at].is_removed = true;
                (Reply::Done, Some(Change::Published(self.0[at].clone())))
            }
            (_, Some(at)) => {
                let gone = self.0.remove(at);
                let reply = match step {
                    Step::Withdraw(_) => Reply::Withdrawn(!gone.is_removed),
                    _ => Reply::Done,
                };
                (reply, Some(Change::Withdrawn(slot(&gone))))
            }
        }
    }

    fn entries(&self) -> Vec<Entry> {
        let mut all = self.0.clone();
        all.sort_by_key(slot);
        all
    }
}

fn slot(entry: &Entry) -> String {
    let key = &entry.object.is.name;
    match (entry.is_removed, key.split_once('~')) {
        (false, None) | (true, Some(_)) => key.clone(),
        (false, Some((name, _))) => name.to_owned(),
        (true, None) => format!("{key}~"),
    }
}

proptest! {
    #[test]
    fn names_are_as_in_a_naive_model(steps in vec(step(), 0..60)) {
        let (mut state, mut model) = (State::default(), Model::default());
        let member = Member { id: ServerId(1), address: String::new() };
        let join = |state: &mut State, lease: LeaseId| {
            let join = Question::Join(member.clone(), Duration::from_secs(1));
            state.apply(Command::Ask(lease, join));
        };
        let mut lease = LeaseId(1000);
        join(&mut state, lease);
        for (id, step) in (1..).zip(steps) {
            let question = match step {
                Step::Publish(key) => Question::Publish(entry(key, id)),
                Step::PublishRemoved(key) => Question::Publish(removed(key, id)),
                Step::Discard(key) => Question::Discard(key.to_owned()),
                Step::Withdraw(key) => Question::Withdraw(key.to_owned()),
                Step::Begin(key) => Question::Begin(lease, begun(key, id)),
                Step::EndBegun(key) => Question::EndBegun(key.to_owned()),
                Step::GiveSize(key) => Question::GiveSize(entry(key, id)),
                Step::Leave => Question::Leave(lease),
            };
            let done = state.apply(Command::Ask(LeaseId(0), question));
            prop_assert_eq!(done, model.take(step, id), "{:?}", step);
            if let Step::Leave = step {
                let over = Question::Begin(lease, begun("c", id));
                let over = state.apply(Command::Ask(LeaseId(0), over)).0;
                prop_assert_eq!(over, Reply::Failed(Failed::LeaseOver));
                lease = LeaseId(1000 + id);
                join(&mut state, lease);
            }
            for asked in ASKED {
                let found = state.look(&Question::Find(asked.to_owned()));
                let wanted = model.find(asked).cloned();
                prop_assert_eq!(found, Some(Reply::Found(wanted)), "{}", asked);
            }
            let all = state.look(&Question::Entries);
            prop_assert_eq!(all, Some(Reply::Entries(model.entries())));
        }
    }
}

/// An exact spelling is as good as the key where one is asked for.
#[test]
fn a_plain_key_may_be_spelled_exactly() {
    let mut state = State::default();
    let mut ask = |question| state.apply(Command::Ask(LeaseId(0), question)).0;
    assert_eq!(ask(Question::Publish(entry("a", 1))), Reply::Done);
    assert_eq!(ask(Question::Discard("a~".to_owned())), Reply::Done);
    let found = ask(Question::Find("a~".to_owned()));
    assert_eq!(found, Reply::Found(Some(removed("a", 1))));
    let gone = ask(Question::Withdraw("a~".to_owned()));
    assert_eq!(gone, Reply::Withdrawn(false));
    assert_eq!(ask(Question::Entries), Reply::Entries(Vec::new()));
}
