use proptest::prelude::*;

use super::*;

/// Parties that ask, each with numbers of their own, and what they were told.
#[derive(Default)]
struct Stage {
    sync: SyncTable,
    asked: u64,
    heard: Vec<Answered>,
}

impl Stage {
    fn ask(&mut self, party: u64, wanted: Request) -> u64 {
        self.asked += 1;
        let request = RequestId(self.asked);
        self.sync
            .ask(Party(party), request, wanted, &mut self.heard);
        self.asked
    }

    fn gone(&mut self, party: u64, how: Parting) {
        self.sync.gone(Party(party), how, &mut self.heard);
    }

    /// What was answered since it was last looked at, by request.
    fn heard(&mut self) -> Vec<(u64, Answer)> {
        let heard = self.heard.drain(..);
        heard.map(|heard| (heard.request.0, heard.answer)).collect()
    }

    /// The same without the requests.
    fn answers(&mut self) -> Vec<Answer> {
        self.heard.drain(..).map(|heard| heard.answer).collect()
    }
}

fn name() -> Name {
    Name("it".into())
}

fn lock() -> Request {
    Request::Lock(name())
}

fn unlock() -> Request {
    Request::Unlock(name())
}

fn arrive(parties: u32) -> Request {
    let barrier = name();
    Request::Arrive { barrier, parties }
}

#[test]
fn a_mutex_goes_to_who_waits_longest() {
    let mut stage = Stage::default();
    let asked = [1, 2, 3].map(|party| stage.ask(party, lock()));
    assert_eq!(stage.heard(), [(asked[0], Answer::Done)]);
    let given = stage.ask(1, unlock());
    assert_eq!(
        stage.heard(),
        [(asked[1], Answer::Done), (given, Answer::Done)]
    );
    let given = stage.ask(2, unlock());
    assert_eq!(
        stage.heard(),
        [(asked[2], Answer::Done), (given, Answer::Done)]
    );
}

#[test]
fn only_the_holder_gives_a_mutex_back() {
    let mut stage = Stage::default();
    stage.ask(1, lock());
    stage.heard();
    let refused = stage.ask(2, unlock());
    let again = stage.ask(1, lock());
    let busy = stage.ask(2, Request::TryLock(name()));
    let expected = [
        (refused, Answer::NotYours),
        (again, Answer::NotYours),
        (busy, Answer::Busy),
    ];
    assert_eq!(stage.heard(), expected);
}

#[test]
fn the_next_holder_is_told_that_the_last_one_crashed() {
    let mut stage = Stage::default();
    stage.ask(1, lock());
    stage.heard();
    stage.gone(1, Parting::Crashed);
    assert_eq!(stage.heard(), []);
    let next = stage.ask(2, lock());
    assert_eq!(stage.heard(), [(next, Answer::Abandoned)]);
    let waits = stage.ask(3, lock());
    stage.gone(2, Parting::Crashed);
    assert_eq!(stage.heard(), [(waits, Answer::Abandoned)]);
    stage.ask(3, unlock());
    stage.heard();
    let last = stage.ask(4, lock());
    assert_eq!(stage.heard(), [(last, Answer::Done)]);
}

#[test]
fn who_is_woken_gets_its_mutex_back_first() {
    let mut stage = Stage::default();
    let condition = Name("changed".into());
    let wait = || Request::Wait {
        condition: condition.clone(),
        mutex: name(),
    };
    stage.ask(1, lock());
    stage.heard();
    let sleeps = stage.ask(1, wait());
    assert_eq!(stage.heard(), []);
    stage.ask(2, lock());
    let count = Some(1);
    let condition = condition.clone();
    stage.ask(2, Request::Signal { condition, count });
    stage.heard();
    stage.ask(2, unlock());
    assert_eq!(stage.heard()[0], (sleeps, Answer::Done));
}

#[test]
fn waiting_needs_the_mutex() {
    let mut stage = Stage::default();
    let condition = Name("changed".into());
    let mutex = name();
    let refused = stage.ask(1, Request::Wait { condition, mutex });
    assert_eq!(stage.heard(), [(refused, Answer::NotYours)]);
}

#[test]
fn a_barrier_opens_when_all_have_arrived_each_time() {
    let mut stage = Stage::default();
    for _ in 0..3 {
        let asked = [1, 2, 3].map(|party| stage.ask(party, arrive(3)));
        assert_eq!(stage.heard(), asked.map(|request| (request, Answer::Done)));
    }
    stage.ask(1, arrive(3));
    let other = stage.ask(2, arrive(2));
    assert_eq!(stage.heard(), [(other, Answer::Parties(3))]);
}

#[test]
fn a_crash_breaks_the_barrier_for_those_who_wait_and_come() {
    let mut stage = Stage::default();
    for party in 1..=3 {
        stage.ask(party, arrive(3));
    }
    let waits = stage.ask(1, arrive(3));
    stage.heard();
    // Not there now, but it was in the last round: nobody else will come.
    stage.gone(2, Parting::Crashed);
    let comes = stage.ask(3, arrive(3));
    assert_eq!(
        stage.heard(),
        [(waits, Answer::Broken), (comes, Answer::Broken)]
    );
    let mended = stage.ask(3, Request::Mend(name()));
    let waits = stage.ask(1, arrive(2));
    let last = stage.ask(3, arrive(2));
    let expected = [mended, waits, last].map(|request| (request, Answer::Done));
    assert_eq!(stage.heard(), expected);
}

#[test]
fn who_leaves_in_peace_breaks_no_barrier() {
    let mut stage = Stage::default();
    for party in 1..=2 {
        stage.ask(party, arrive(2));
    }
    stage.heard();
    stage.gone(1, Parting::Left);
    let waits = stage.ask(2, arrive(2));
    let comes = stage.ask(3, arrive(2));
    assert_eq!(
        stage.heard(),
        [(waits, Answer::Done), (comes, Answer::Done)]
    );
}

/// Of two that are awaited one comes, and goes again; the other is told, whenever it comes.
#[test]
fn who_comes_after_all_who_waited_are_gone_is_told() {
    for how in [Parting::Crashed, Parting::Left] {
        let mut stage = Stage::default();
        stage.ask(1, arrive(2));
        stage.gone(1, how);
        let comes = stage.ask(2, arrive(2));
        let again = stage.ask(2, arrive(2));
        let expected = [comes, again].map(|request| (request, Answer::Broken));
        assert_eq!(stage.heard(), expected);
        stage.gone(2, Parting::Left);
        stage.ask(3, Request::Mend(name()));
        assert_eq!(stage.sync, SyncTable::default());
    }
}

/// A group that is gone as a whole between two rounds leaves nothing to the next.
#[test]
fn who_comes_after_a_whole_group_is_gone_begins_anew() {
    let mut stage = Stage::default();
    stage.ask(1, arrive(2));
    stage.ask(2, arrive(2));
    stage.gone(1, Parting::Crashed);
    stage.gone(2, Parting::Crashed);
    assert_eq!(stage.sync, SyncTable::default());
}

#[test]
fn so_many_broken_barriers_are_remembered() {
    let mut stage = Stage::default();
    let arrive = |at: usize| Request::Arrive {
        barrier: Name(format!("{at:04}")),
        parties: 2,
    };
    for at in 0..=REMEMBERED {
        stage.ask(at as u64, arrive(at));
        stage.gone(at as u64, Parting::Crashed);
    }
    assert_eq!(stage.sync.barriers.len(), REMEMBERED);
    let asked = [1, REMEMBERED].map(|at| stage.ask(9999, arrive(at)));
    let expected = asked.map(|request| (request, Answer::Broken));
    assert_eq!(stage.heard(), expected);
    stage.ask(9999, arrive(0));
    assert_eq!(stage.heard(), [], "this one was forgotten, and begins anew");
}

#[test]
fn a_counter_wakes_those_whose_value_is_reached() {
    let mut stage = Stage::default();
    let at_least = |value| Request::AtLeast {
        counter: name(),
        value,
    };
    let add = |by| Request::Add {
        counter: name(),
        by,
    };
    let three = stage.ask(1, at_least(3));
    let two = stage.ask(2, at_least(2));
    let added = stage.ask(3, add(2));
    let expected = [(two, Answer::Value(2)), (added, Answer::Value(2))];
    assert_eq!(stage.heard(), expected);
    let added = stage.ask(3, add(5));
    let expected = [(three, Answer::Value(7)), (added, Answer::Value(7))];
    assert_eq!(stage.heard(), expected);
    let at_once = stage.ask(1, at_least(7));
    assert_eq!(stage.heard(), [(at_once, Answer::Value(7))]);
}

#[test]
fn names_that_anybody_makes_up_do_not_fill_the_memory() {
    let mut stage = Stage::default();
    let number = |kind: &str, n: usize| Name(format!("{kind} {n}"));
    // Held and left, one after the other: the last ones are remembered.
    for n in 0..=REMEMBERED as u64 {
        stage.ask(n, Request::Lock(number("mutex", n as usize)));
        stage.gone(n, Parting::Crashed);
    }
    stage.heard();
    assert_eq!(stage.sync.mutexes.len(), REMEMBERED);
    stage.ask(5000, Request::Lock(number("mutex", 0)));
    stage.ask(5000, Request::Lock(number("mutex", 1)));
    assert_eq!(stage.answers(), [Answer::Done, Answer::Abandoned]);
    stage.gone(5000, Parting::Left);
    // A counter that is 0 again is none.
    for by in [1, -1] {
        let counter = number("counter", 0);
        stage.ask(1, Request::Add { counter, by });
    }
    let counter = number("counter", 0);
    stage.ask(1, Request::AtLeast { counter, value: 1 });
    stage.gone(1, Parting::Left);
    assert!(stage.sync.counters.is_empty());
    stage.heard();
    // Others stay, as many as there may be.
    let add = |n| Request::Add {
        counter: number("counter", n),
        by: 1,
    };
    let room = MOST - stage.sync.mutexes.len();
    for n in 0..room {
        stage.ask(1, add(n));
    }
    stage.heard();
    stage.ask(1, add(room));
    stage.ask(1, add(0));
    stage.ask(1, Request::Lock(number("another mutex", 0)));
    let full = [Answer::Full, Answer::Value(2), Answer::Full];
    assert_eq!(stage.answers(), full);
    let long = Name("n".repeat(LONGEST + 1));
    let mut stage = Stage::default();
    stage.ask(1, Request::TryLock(long));
    assert_eq!(stage.answers(), [Answer::Full]);
}

#[test]
fn nothing_is_kept_of_what_nobody_uses() {
    let mut stage = Stage::default();
    stage.ask(1, lock());
    stage.ask(1, unlock());
    stage.ask(1, arrive(2));
    stage.ask(2, arrive(2));
    stage.gone(1, Parting::Left);
    stage.gone(2, Parting::Left);
    assert_eq!(stage.sync, SyncTable::default());
}

/// A barrier as the head of the module tells it, with lists that are searched.
#[derive(Default)]
struct NaiveBarrier {
    /// Who waits, with its request.
    waiting: Vec<(u64, u64)>,
    /// Those of the last round who are not gone.
    last_round: Vec<u64>,
    broken: bool,
    somebody_waited: bool,
}

impl NaiveBarrier {
    fn arrive(&mut self, party: u64, request: u64, parties: usize) -> Vec<(u64, Answer)> {
        if self.broken {
            return vec![(request, Answer::Broken)];
        }
        self.waiting.push((party, request));
        if self.waiting.len() < parties {
            return Vec::new();
        }
        let round = std::mem::take(&mut self.waiting);
        self.last_round = round.iter().map(|(party, _)| *party).collect();
        let done = |(_, request)| (request, Answer::Done);
        round.into_iter().map(done).collect()
    }

    fn gone(&mut self, party: u64, how: Parting) -> Vec<(u64, Answer)> {
        let waits = self.waiting.iter().any(|(who, _)| *who == party);
        let was_there = waits || self.last_round.contains(&party);
        self.last_round.retain(|who| *who != party);
        let mut told = Vec::new();
        if waits || (was_there && how == Parting::Crashed) {
            self.broken = true;
            self.somebody_waited |= !self.waiting.is_empty();
            for (who, request) in std::mem::take(&mut self.waiting) {
                if who == party {
                    continue;
                }
                told.push((request, Answer::Broken));
                self.last_round.push(who);
            }
        }
        if self.last_round.is_empty() && self.waiting.is_empty() && !self.somebody_waited {
            *self = NaiveBarrier::default();
        }
        told
    }
}

/// What happens at a barrier: somebody arrives, mends it, or is gone.
#[derive(Clone, Copy, Debug)]
enum AtBarrier {
    Arrive(u64),
    Mend(u64),
    Gone(u64, Parting),
}

fn at_barrier() -> impl Strategy<Value = AtBarrier> {
    let how = prop_oneof![Just(Parting::Left), Just(Parting::Crashed)];
    prop_oneof![
        8 => (0..5u64).prop_map(AtBarrier::Arrive),
        1 => (0..5u64).prop_map(AtBarrier::Mend),
        3 => (0..5u64, how).prop_map(|(party, how)| AtBarrier::Gone(party, how)),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Ask(u64, Request),
    Crash(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let name = prop_oneof![Just(Name("a".into())), Just(Name("b".into()))];
    let both = (name.clone(), name.clone());
    let request = prop_oneof![
        name.clone().prop_map(Request::Lock),
        name.clone().prop_map(Request::TryLock),
        name.clone().prop_map(Request::Unlock),
        both.prop_map(|(condition, mutex)| Request::Wait { condition, mutex }),
        (name.clone(), prop::option::of(0..3u32))
            .prop_map(|(condition, count)| Request::Signal { condition, count }),
        name.clone().prop_map(|barrier| Request::Arrive {
            barrier,
            parties: 2
        }),
        name.clone().prop_map(Request::Mend),
        (name.clone(), -2..3i64).prop_map(|(counter, by)| Request::Add { counter, by }),
        (name, -2..5i64).prop_map(|(counter, value)| Request::AtLeast { counter, value }),
    ];
    prop_oneof![
        9 => (0..4u64, request).prop_map(|(party, request)| Step::Ask(party, request)),
        1 => (0..4u64).prop_map(Step::Crash),
    ]
}

/// Who holds each mutex, by the answers alone.
fn holders(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut stage = Stage::default();
    let mut holder: BTreeMap<Name, Option<u64>> = BTreeMap::new();
    // The mutex that the answer to a request gives, and who asked.
    let mut gives: BTreeMap<u64, (u64, Name)> = BTreeMap::new();
    let mut open: BTreeSet<(u64, u64)> = BTreeSet::new();
    for step in steps {
        match step {
            Step::Crash(party) => {
                open.retain(|(who, _)| who != party);
                for held in holder.values_mut().filter(|held| **held == Some(*party)) {
                    *held = None;
                }
                stage.gone(*party, Parting::Crashed);
            }
            Step::Ask(party, request) => {
                let number = stage.asked + 1;
                open.insert((*party, number));
                match request {
                    Request::Lock(name) | Request::TryLock(name) => {
                        gives.insert(number, (*party, name.clone()));
                    }
                    Request::Unlock(name) if holder.get(name) == Some(&Some(*party)) => {
                        holder.insert(name.clone(), None);
                    }
                    Request::Wait { mutex, .. } => {
                        gives.insert(number, (*party, mutex.clone()));
                        if holder.get(mutex) == Some(&Some(*party)) {
                            holder.insert(mutex.clone(), None);
                        }
                    }
                    _ => {}
                }
                stage.ask(*party, request.clone());
            }
        }
        for answered in std::mem::take(&mut stage.heard) {
            let (party, number) = (answered.party.0, answered.request.0);
            prop_assert!(
                open.remove(&(party, number)),
                "answered once, and not the dead"
            );
            let is_given = matches!(answered.answer, Answer::Done | Answer::Abandoned);
            if let Some((who, name)) = gives.remove(&number).filter(|_| is_given) {
                let before = holder.insert(name, Some(who)).flatten();
                prop_assert_eq!(before, None, "two hold one mutex");
            }
        }
    }
    // A mutex that nobody holds is not waited for.
    for mutex in stage.sync.mutexes.values() {
        prop_assert!(mutex.holder.is_some() || mutex.waiting.is_empty());
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_mutex_has_one_holder_and_a_request_one_answer(
        steps in prop::collection::vec(step(), 0..120),
    ) {
        holders(&steps)?;
    }

    #[test]
    fn a_barrier_is_as_the_naive_one(
        steps in prop::collection::vec(at_barrier(), 0..80),
        parties in 1..4u32,
    ) {
        let (mut stage, mut naive) = (Stage::default(), NaiveBarrier::default());
        for step in steps {
            let mut expected = match step {
                AtBarrier::Arrive(party) => {
                    let request = stage.ask(party, arrive(parties));
                    naive.arrive(party, request, parties as usize)
                }
                AtBarrier::Mend(party) => {
                    let request = stage.ask(party, Request::Mend(name()));
                    if naive.broken {
                        naive = NaiveBarrier::default();
                    }
                    vec![(request, Answer::Done)]
                }
                AtBarrier::Gone(party, how) => {
                    stage.gone(party, how);
                    naive.gone(party, how)
                }
            };
            let mut heard = stage.heard();
            heard.sort_by_key(|(request, _)| *request);
            expected.sort_by_key(|(request, _)| *request);
            prop_assert_eq!(heard, expected, "after {:?}", step);
            let idle = naive.waiting.is_empty() && naive.last_round.is_empty() && !naive.broken;
            prop_assert_eq!(stage.sync.barriers.is_empty(), idle);
            prop_assert!(stage.sync.forsaken.len() <= 1);
        }
    }
}
