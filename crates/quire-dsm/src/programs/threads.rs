//! A team of threads in one process: what programs cost where memory is shared anyway.

use std::collections::HashMap;
use std::iter;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use quire_core::dsm::sync::{
    Answer, Answered, Name, Parting, Party, Request, RequestId, SyncTable,
};

use super::{Program, Team, Trouble, Word};

/// Runs a program with so many threads.
///
/// # Errors
/// The first that a member had, or what is wrong with the result.
pub fn run(program: Program, members: usize) -> Result<(), Trouble> {
    let words = program.memory(members).0 as usize / 8;
    let memory: Vec<Word> = iter::repeat_with(Word::default).take(words).collect();
    let meeting = Meeting::default();
    thread::scope(|scope| {
        let start = |me| {
            let (meeting, memory) = (&meeting, &memory);
            scope.spawn(move || {
                let member = Member {
                    me,
                    size: members,
                    meeting,
                };
                program.run(&member, memory)
            })
        };
        let threads: Vec<_> = (0..members).map(start).collect();
        let panicked = || Err(Trouble::Apart("a member panicked".into()));
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| panicked()));
        ended.collect::<Result<(), Trouble>>()
    })?;
    program.check(&memory, members)
}

/// Where threads meet.
#[derive(Default)]
struct Meeting {
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Default)]
struct State {
    sync: SyncTable,
    requests: u64,
    answers: HashMap<u64, Answer>,
}

struct Member<'a> {
    me: usize,
    size: usize,
    meeting: &'a Meeting,
}

impl Member<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        // What a thread that panics leaves is whole: the automaton does not panic.
        let state = self.meeting.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, wanted: Request) -> Result<Answer, Trouble> {
        let mut state = self.state();
        state.requests += 1;
        let number = state.requests;
        let mut answers = Vec::new();
        let (party, request) = (Party(self.me as u64), RequestId(number));
        state.sync.ask(party, request, wanted, &mut answers);
        self.tell(&mut state, answers);
        loop {
            if let Some(answer) = state.answers.remove(&number) {
                return match answer {
                    Answer::Done | Answer::Value(_) => Ok(answer),
                    other => Err(Trouble::Apart(format!("{other:?}"))),
                };
            }
            let waited = self.meeting.answered.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn tell(&self, state: &mut State, answers: Vec<Answered>) {
        let answers = answers.into_iter();
        state
            .answers
            .extend(answers.map(|answered| (answered.request.0, answered.answer)));
        self.meeting.answered.notify_all();
    }

    fn value(&self, wanted: Request) -> Result<i64, Trouble> {
        match self.ask(wanted)? {
            Answer::Value(value) => Ok(value),
            other => Err(Trouble::Apart(format!("{other:?}"))),
        }
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        let how = match thread::panicking() {
            true => Parting::Crashed,
            false => Parting::Left,
        };
        let mut state = self.state();
        let mut answers = Vec::new();
        state.sync.gone(Party(self.me as u64), how, &mut answers);
        self.tell(&mut state, answers);
    }
}

fn name(number: usize) -> Name {
    Name(number.to_string())
}

impl Team for Member<'_> {
    fn me(&self) -> usize {
        self.me
    }

    fn size(&self) -> usize {
        self.size
    }

    fn barrier(&self) -> Result<(), Trouble> {
        let (barrier, parties) = (name(0), self.size as u32);
        self.ask(Request::Arrive { barrier, parties }).map(drop)
    }

    fn lock(&self, mutex: usize) -> Result<(), Trouble> {
        self.ask(Request::Lock(name(mutex))).map(drop)
    }

    fn unlock(&self, mutex: usize) -> Result<(), Trouble> {
        self.ask(Request::Unlock(name(mutex))).map(drop)
    }

    fn add(&self, counter: usize, by: i64) -> Result<i64, Trouble> {
        let counter = name(counter);
        self.value(Request::Add { counter, by })
    }

    fn at_least(&self, counter: usize, value: i64) -> Result<i64, Trouble> {
        let counter = name(counter);
        self.value(Request::AtLeast { counter, value })
    }
}
