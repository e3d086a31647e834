//! A team of threads in one process: what programs cost where memory is shared anyway.

use std::collections::HashMap;
use std::iter;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use quire_core::dsm::sync::{Answer, Answered, Parting, Party, Request, RequestId, SyncTable};

use super::{Member, Program, Trouble, Word};

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
                let seat = Seat { me, meeting };
                program.run(&Member::new(me, members, |wanted| seat.ask(wanted)), memory)
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

struct Seat<'a> {
    me: usize,
    meeting: &'a Meeting,
}

impl Seat<'_> {
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
                return Ok(answer);
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
}

impl Drop for Seat<'_> {
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
