//! Objects are made, renamed, written to and removed over a disk on which a sync, or
//! anything else, fails once, after which the process goes on or is killed, or the power
//! goes. Each is known by its owner, who never owns another one.

use std::collections::BTreeMap;

use super::*;

const NAMES: [&str; 3] = ["ant", "bee", "cow"];
/// In two parts.
const PLACES: [u64; 2] = [0, 4096];

/// How a process ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It is killed: the system still has what it wrote.
    Kill,
    /// The power goes.
    PowerCut(u64),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Create(usize),
    Rename(usize, usize),
    Remove(usize),
    Write(usize, usize),
    Keep,
    Empty,
    /// After so many operations, one fails.
    Stumble(u64, u64),
    /// After so many operations, all fail.
    Stop(u64),
    /// A new process opens the store; where it is said, an operation of that fails.
    Restart(End, Option<(u64, u64)>),
}

fn step() -> impl Strategy<Value = Step> {
    let name = || 0..NAMES.len();
    let end = || prop_oneof![Just(End::Kill), any::<u64>().prop_map(End::PowerCut)];
    let stumble = || (0..30_u64, any::<u64>());
    prop_oneof![
        5 => name().prop_map(Step::Create),
        2 => (name(), name()).prop_map(|(from, to)| Step::Rename(from, to)),
        2 => name().prop_map(Step::Remove),
        5 => (name(), 0..PLACES.len()).prop_map(|(name, place)| Step::Write(name, place)),
        1 => Just(Step::Keep),
        1 => Just(Step::Empty),
        3 => stumble().prop_map(|(after, seed)| Step::Stumble(after, seed)),
        1 => (0..30_u64).prop_map(Step::Stop),
        3 => (end(), prop::option::weighted(0.3, stumble()))
            .prop_map(|(end, stumble)| Step::Restart(end, stumble)),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum There {
    Yes,
    Maybe,
    No,
}

/// What is known of an object. Of several names and values, the first was acknowledged.
#[derive(Debug)]
struct Thing {
    there: There,
    names: Vec<String>,
    /// The name by which the running process knows it, which is not durable for that.
    shown: String,
    pages: BTreeMap<u64, Vec<u64>>,
}

impl Thing {
    fn new(name: &str, there: There) -> Thing {
        Thing {
            there,
            names: vec![name.to_owned()],
            shown: name.to_owned(),
            pages: PLACES.iter().map(|page| (*page, vec![0])).collect(),
        }
    }
}

/// What may be in a store, and a process that has it open.
struct World {
    opened: Opened,
    things: BTreeMap<String, Thing>,
    kept: Vec<Option<u64>>,
    next: u64,
    /// The store writes no more.
    failed: bool,
    /// The disk does nothing any more.
    stopped: bool,
}

impl World {
    fn new() -> World {
        World {
            opened: open(Simulated::new()).unwrap(),
            things: BTreeMap::new(),
            kept: vec![None],
            next: 0,
            failed: false,
            stopped: false,
        }
    }

    fn play(&mut self, step: Step) {
        self.next += 1;
        match step {
            Step::Create(name) => self.create(NAMES[name]),
            Step::Rename(from, to) => self.rename(NAMES[from], NAMES[to]),
            Step::Remove(name) => self.remove(NAMES[name]),
            Step::Write(name, place) => self.write(NAMES[name], PLACES[place]),
            Step::Keep => self.keep(),
            Step::Empty => {
                // A log that holds nothing is empty, whatever else failed.
                let emptied = self.opened.engine.checkpoint();
                self.failed |= matches!(emptied, Err(StoreError::Failed(_)));
            }
            Step::Stumble(after, seed) => self.opened.disk.stumble_after(after, seed),
            Step::Stop(after) => {
                self.opened.disk.fail_after(after);
                self.stopped = true;
            }
            Step::Restart(end, stumble) => self.restart(end, stumble),
        }
        if !self.stopped {
            self.look();
        }
    }

    /// Whether something was refused that may be done all the same.
    fn is_unknown<T: std::fmt::Debug>(&mut self, result: &Result<T, StoreError>) -> bool {
        assert!(
            !self.failed || result.is_err(),
            "{result:?} after a failure"
        );
        let fails = matches!(result, Err(StoreError::Failed(_)));
        fails && !std::mem::replace(&mut self.failed, true)
    }

    fn create(&mut self, name: &str) {
        let owner = format!("uid:{}", self.next);
        let object = NewObject {
            owner: owner.clone(),
            ..new_object(name)
        };
        let taken = self.opened.shared.find(name).is_some();
        let made = self.opened.engine.create(object);
        let there = match &made {
            unknown if self.is_unknown(unknown) => There::Maybe,
            Ok(_) => There::Yes,
            Err(error) => {
                let exists = matches!(error, StoreError::Exists(_));
                assert!(taken || !exists, "{error}");
                There::No
            }
        };
        assert!(!taken || made.is_err(), "{name} was made twice");
        self.things.insert(owner, Thing::new(name, there));
    }

    fn rename(&mut self, from: &str, to: &str) {
        let Some(object) = self.opened.shared.find(from) else {
            return;
        };
        let new = NewObject {
            name: to.to_owned(),
            ..object.is.clone()
        };
        let changed = self.opened.engine.change(object.id, new);
        let unknown = self.is_unknown(&changed);
        let thing = self.things.get_mut(&object.is.owner).unwrap();
        if changed.is_ok() {
            thing.names.clear();
            thing.shown = to.to_owned();
        }
        if changed.is_ok() || unknown {
            thing.names.push(to.to_owned());
        }
    }

    fn remove(&mut self, name: &str) {
        let Some(object) = self.opened.shared.find(name) else {
            return;
        };
        let removed = self.opened.engine.remove(object.id);
        let unknown = self.is_unknown(&removed);
        let thing = self.things.get_mut(&object.is.owner).unwrap();
        match removed {
            Ok(()) => thing.there = There::No,
            Err(_) if unknown => thing.there = There::Maybe,
            Err(_) => {}
        }
    }

    fn write(&mut self, name: &str, page: u64) {
        let Some(object) = self.opened.shared.find(name) else {
            return;
        };
        let failed = self.failed;
        let written = self.opened.write(object.id, page, &[self.next]);
        self.is_unknown(&written);
        let thing = self.things.get_mut(&object.is.owner).unwrap();
        let values = thing.pages.get_mut(&page).unwrap();
        if written.is_ok() {
            values.clear();
        }
        if !failed {
            values.push(self.next);
        }
    }

    fn keep(&mut self) {
        let kept = self.opened.shared.keep("count", &self.next);
        let unknown = self.is_unknown(&kept);
        if kept.is_ok() {
            self.kept.clear();
        }
        if kept.is_ok() || unknown {
            self.kept.push(Some(self.next));
        }
    }

    /// A running store has what it acknowledged, by the name that it acknowledged or found.
    fn look(&self) {
        for (owner, thing) in &self.things {
            if thing.there != There::Yes {
                continue;
            }
            let object = self.opened.shared.find(&thing.shown);
            let object = object.expect("an object is gone");
            assert_eq!(object.is.owner, *owner);
            self.look_at_pages(object.id, thing);
        }
    }

    fn look_at_pages(&self, object: ObjectId, thing: &Thing) {
        for (page, allowed) in &thing.pages {
            let found = value_of(&self.opened.read(object, *page)).expect("a page is lost");
            assert!(allowed.contains(&found), "{page}: {found}, {thing:?}");
        }
    }

    fn restart(&mut self, end: End, stumble: Option<(u64, u64)>) {
        let ended = match end {
            End::Kill => self.opened.disk.copy(),
            End::PowerCut(seed) => self.opened.disk.crash(seed),
        };
        let report = check::look(&ended, &mut || ()).unwrap();
        assert_eq!(report.damage, vec![]);
        let stumbling = ended.copy();
        if let Some((after, seed)) = stumble {
            stumbling.stumble_after(after, seed);
        }
        // Where the disk lets it, the next process finds what the last one left.
        let stumbling = Arc::new(stumbling);
        self.opened = match open_on(stumbling.clone()) {
            Ok(opened) => opened,
            Err(_) => open(stumbling.copy()).unwrap(),
        };
        assert_eq!(self.opened.shared.damage(), []);
        self.stopped = false;
        let probe = self.opened.shared.keep("probe", &self.next);
        self.failed = matches!(probe, Err(StoreError::Failed(_)));
        self.compare();
    }

    /// What is there may be, and what must be is. Once a store that works was seen to have
    /// something, it stays.
    fn compare(&mut self) {
        let mut found = BTreeMap::new();
        for object in self.opened.shared.objects() {
            let owner = object.is.owner.clone();
            let thing = self.things.get_mut(&owner).expect("nobody made that");
            assert_ne!(thing.there, There::No, "{object:?} came back");
            assert!(thing.names.contains(&object.is.name), "{object:?}");
            thing.shown.clone_from(&object.is.name);
            let thing = &self.things[&owner];
            self.look_at_pages(object.id, thing);
            assert!(found.insert(owner, object).is_none());
        }
        let kept = self.opened.shared.kept::<u64>("count").unwrap();
        assert!(self.kept.contains(&kept), "{kept:?}, not {:?}", self.kept);
        for (owner, thing) in &self.things {
            let must = thing.there == There::Yes;
            assert!(!must || found.contains_key(owner), "{thing:?} is gone");
        }
        if !self.failed {
            self.believe(&found);
            self.kept = vec![kept];
        }
    }

    fn believe(&mut self, found: &BTreeMap<String, Arc<super::super::Object>>) {
        for (owner, thing) in &mut self.things {
            let Some(object) = found.get(owner) else {
                thing.there = There::No;
                continue;
            };
            thing.there = There::Yes;
            thing.names = vec![object.is.name.clone()];
            // Pages that stay in the log need not be durable.
            if self.opened.engine.is_at_rest() {
                for (page, allowed) in &mut thing.pages {
                    *allowed = vec![value_of(&self.opened.read(object.id, *page)).unwrap()];
                }
            }
        }
    }
}

/// What the tests of each operation do first, and with whatever the next start finds.
const BEFORE: [Step; 14] = [
    Step::Create(0),
    Step::Write(0, 0),
    Step::Keep,
    Step::Rename(0, 1),
    Step::Create(0),
    Step::Create(0),
    Step::Write(0, 0),
    Step::Empty,
    Step::Write(0, 1),
    Step::Remove(1),
    Step::Create(1),
    Step::Write(1, 1),
    Step::Empty,
    Step::Keep,
];
const AFTER: [Step; 7] = [
    Step::Create(0),
    Step::Create(1),
    Step::Write(0, 1),
    Step::Write(1, 0),
    Step::Rename(0, 2),
    Step::Keep,
    Step::Remove(1),
];

/// Each operation fails, once or for good; the process goes on with what it was about, and
/// ends; the next one uses the store, too, and then the power goes.
fn each_operation(fault: impl Fn(u64) -> Step, end: impl Fn(u64) -> End) {
    let mut whole = World::new();
    let from = whole.opened.disk.operations();
    BEFORE.iter().for_each(|step| whole.play(*step));
    let operations = whole.opened.disk.operations() - from;
    assert!(operations > 60, "only {operations} operations");
    for after in 0..operations {
        let mut world = World::new();
        world.play(fault(after));
        BEFORE.iter().for_each(|step| world.play(*step));
        world.play(Step::Restart(end(after), None));
        AFTER.iter().for_each(|step| world.play(*step));
        world.play(Step::Restart(End::PowerCut(after), None));
    }
}

#[test]
fn one_operation_fails_and_the_process_is_killed() {
    for seed in 0..2 {
        each_operation(|after| Step::Stumble(after, seed), |_| End::Kill);
    }
}

#[test]
fn one_operation_fails_and_the_power_goes() {
    for seed in 0..2 {
        each_operation(|after| Step::Stumble(after, seed), End::PowerCut);
    }
}

#[test]
fn a_process_is_killed_at_any_operation() {
    each_operation(Step::Stop, |_| End::Kill);
}

/// An operation of the start fails that finds what a killed process has left.
#[test]
fn one_operation_of_a_start_fails() {
    for stop in [15, 25, 40, 80] {
        for after in 0..30 {
            let mut world = World::new();
            world.play(Step::Stop(stop));
            BEFORE.iter().for_each(|step| world.play(*step));
            world.play(Step::Restart(End::Kill, Some((after, after))));
            AFTER.iter().for_each(|step| world.play(*step));
            world.play(Step::Restart(End::PowerCut(after), None));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever fails, and whenever the process ends: what was acknowledged is there, what
    /// was refused is not there in its place, and nothing is damaged.
    #[test]
    fn whatever_fails(steps in prop::collection::vec(step(), 1..40), seed in any::<u64>()) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.play(step));
        world.play(Step::Restart(End::PowerCut(seed), None));
    }
}

/// An object that could not be removed durably is read until the store ends.
#[test]
fn an_object_is_read_after_its_removal_failed() {
    let (mut opened, object) = Opened::fresh();
    opened.write(object, 0, &[1]).unwrap();
    opened.engine.checkpoint().unwrap();
    // The rename succeeds, the sync after it does not.
    opened.disk.stumble_after(1, 0);
    let refused = opened.engine.remove(object);
    assert!(matches!(refused, Err(StoreError::Failed(_))), "{refused:?}");
    assert!(opened.shared.find("one").is_some());
    assert_eq!(value_of(&opened.read(object, 0)), Some(1));
    let opened = open(opened.disk.copy()).unwrap();
    assert_eq!(value_of(&opened.read(object, 0)), Some(1));
}

/// Two objects claim one name, as a store of an earlier version may have it: neither can be
/// found, no third can be made, and both keep what was written to them.
#[test]
fn two_objects_of_one_name_are_damage() {
    let (mut opened, first) = Opened::fresh();
    let second = opened.engine.create(new_object("two")).unwrap().id;
    opened.write(first, 0, &[1]).unwrap();
    opened.write(second, 0, &[2]).unwrap();
    let disk = opened.disk.copy();
    let claimant = super::super::Object {
        id: second,
        created: 1,
        is: new_object("one"),
    };
    let meta = super::super::object::seal(&claimant).unwrap();
    disk.damage(&format!("objects/{second}/meta"), |bytes| *bytes = meta);

    let files = [first, second].map(|id| format!("objects/{id}/meta"));
    let report = check::look(&disk, &mut || ()).unwrap();
    let named: Vec<_> = report.damage.iter().map(|damage| &damage.file).collect();
    assert_eq!(named.len(), 2, "{:?}", report.damage);
    assert!(files.iter().all(|file| named.contains(&file)));

    let mut opened = open(disk).unwrap();
    assert_eq!(opened.shared.damage().len(), 2);
    assert!(opened.shared.objects().is_empty());
    assert!(opened.shared.find("one").is_none());
    let third = opened.engine.create(new_object("one"));
    assert!(
        matches!(third, Err(StoreError::Damaged { .. })),
        "{third:?}"
    );
    // What was in the log is in its place when one of them was taken away.
    let disk = opened.disk.copy();
    disk.lose(&format!("objects/{second}"));
    let opened = open(disk).unwrap();
    assert_eq!(opened.shared.damage(), []);
    assert_eq!(opened.shared.find("one").unwrap().id, first);
    assert_eq!(value_of(&opened.read(first, 0)), Some(1));
}
