//! Mutexes, conditions, barriers and counters of an object that several servers share. No
//! I/O: one message in, messages out.
//!
//! One of the servers keeps them all, the *host*: the one that has been a member for longest.
//! The others pass on what their kernels ask. When the host is gone, what it knew is gone
//! with it: who waits gets an error, mutexes are free, counters begin at 0, and every barrier
//! is broken until somebody mends it, as nobody knows who had arrived. When the link between
//! the host and another server breaks, kernels of that server count as crashed, and those
//! that wait get an error.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quire_core::dsm::message::{KernelId, ServerId};
use quire_core::dsm::sync::{
    Answer, Answered, Name, Parting, Party, REMEMBERED, Request, RequestId, SyncTable,
};

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Do {
    /// A kernel of this server gets an answer; none where nobody can say what came of it.
    Answer(KernelId, u64, Option<Answer>),
    /// The host is asked.
    Ask(ServerId, KernelId, u64, Request),
    /// The host is told that a kernel is gone.
    Part(ServerId, KernelId, Parting),
    /// A kernel of another server gets an answer.
    Tell(ServerId, KernelId, u64, Option<Answer>),
}

/// Who meets over one object.
#[derive(Debug)]
pub(super) struct Meeting {
    me: ServerId,
    host: Option<ServerId>,
    /// What an earlier host knew is lost.
    has_lost: bool,
    /// Barriers that were mended since, those of late at the end: as many as the table
    /// remembers of broken ones. One that is forgotten is broken again when nobody is left who
    /// arrived there: until then the table knows it.
    mended: VecDeque<Name>,
    table: SyncTable,
    parties: BTreeMap<(ServerId, KernelId), Party>,
    kernels: BTreeMap<Party, (ServerId, KernelId)>,
    last: u64,
    /// What kernels of this server wait for.
    waiting: BTreeSet<(KernelId, u64)>,
}

impl Meeting {
    pub fn new(me: ServerId) -> Meeting {
        Meeting {
            me,
            host: None,
            has_lost: false,
            mended: VecDeque::new(),
            table: SyncTable::default(),
            parties: BTreeMap::new(),
            kernels: BTreeMap::new(),
            last: 0,
            waiting: BTreeSet::new(),
        }
    }

    /// There is a view with these members, those who came first at the beginning.
    pub fn view(&mut self, members: &[ServerId], all: &mut Vec<Do>) {
        let host = members.first().copied();
        let before = std::mem::replace(&mut self.host, host);
        if before.is_some() && before != host {
            self.has_lost = host == Some(self.me);
            self.mended.clear();
            self.give_up(all);
        }
        let gone = self.parties.keys().map(|(server, _)| *server);
        let gone: BTreeSet<ServerId> = gone.filter(|server| !members.contains(server)).collect();
        for server in gone {
            self.crashed(server, all);
        }
    }

    /// A kernel of this server wants something.
    pub fn ask(&mut self, kernel: KernelId, number: u64, wanted: Request, all: &mut Vec<Do>) {
        match self.host {
            Some(host) if host != self.me => {
                self.waiting.insert((kernel, number));
                all.push(Do::Ask(host, kernel, number, wanted));
            }
            Some(me) => self.serve((me, kernel), number, wanted, all),
            None => all.push(Do::Answer(kernel, number, None)),
        }
    }

    /// A kernel of this server is gone.
    pub fn left(&mut self, kernel: KernelId, how: Parting, all: &mut Vec<Do>) {
        self.waiting.retain(|(waits, _)| *waits != kernel);
        match self.host {
            Some(host) if host != self.me => all.push(Do::Part(host, kernel, how)),
            _ => self.parted((self.me, kernel), how, all),
        }
    }

    /// A kernel of another server wants something.
    pub fn asked(
        &mut self,
        asker: (ServerId, KernelId),
        number: u64,
        wanted: Request,
        all: &mut Vec<Do>,
    ) {
        match self.host == Some(self.me) {
            true => self.serve(asker, number, wanted, all),
            false => all.push(Do::Tell(asker.0, asker.1, number, None)),
        }
    }

    /// A kernel of some server is gone.
    pub fn parted(&mut self, who: (ServerId, KernelId), how: Parting, all: &mut Vec<Do>) {
        if let Some(party) = self.parties.remove(&who) {
            let mut answers = Vec::new();
            self.table.gone(party, how, &mut answers);
            self.kernels.remove(&party);
            self.tell(answers, all);
        }
    }

    /// The host answers a kernel of this server.
    pub fn answered(
        &mut self,
        from: ServerId,
        (kernel, number): (KernelId, u64),
        answer: Option<Answer>,
        all: &mut Vec<Do>,
    ) {
        if self.host == Some(from) && self.waiting.remove(&(kernel, number)) {
            all.push(Do::Answer(kernel, number, answer));
        }
    }

    /// The link to another server broke.
    pub fn broke(&mut self, server: ServerId, all: &mut Vec<Do>) {
        if self.host == Some(server) {
            self.give_up(all);
        }
        self.crashed(server, all);
    }

    /// Nobody will answer what this server's kernels wait for.
    fn give_up(&mut self, all: &mut Vec<Do>) {
        for (kernel, number) in std::mem::take(&mut self.waiting) {
            all.push(Do::Answer(kernel, number, None));
        }
    }

    fn crashed(&mut self, server: ServerId, all: &mut Vec<Do>) {
        let theirs = self.parties.keys().filter(|(of, _)| *of == server);
        for who in theirs.copied().collect::<Vec<_>>() {
            self.parted(who, Parting::Crashed, all);
        }
    }

    fn serve(
        &mut self,
        asker: (ServerId, KernelId),
        number: u64,
        wanted: Request,
        all: &mut Vec<Do>,
    ) {
        let party = *self.parties.entry(asker).or_insert_with(|| {
            self.last += 1;
            Party(self.last)
        });
        self.kernels.insert(party, asker);
        let mut answers = Vec::new();
        let request = RequestId(number);
        match &wanted {
            Request::Mend(barrier) if self.has_lost => {
                self.mended.retain(|mended| mended != barrier);
                self.mended.push_back(barrier.clone());
                let surplus = self.mended.len().saturating_sub(REMEMBERED);
                self.mended.drain(..surplus);
            }
            Request::Arrive { barrier, .. }
                if self.has_lost
                    && !self.table.has_barrier(barrier)
                    && !self.mended.contains(barrier) =>
            {
                let answer = Answer::Broken;
                answers.push(Answered {
                    party,
                    request,
                    answer,
                });
                return self.tell(answers, all);
            }
            _ => {}
        }
        self.table.ask(party, request, wanted, &mut answers);
        self.tell(answers, all);
    }

    fn tell(&self, answers: Vec<Answered>, all: &mut Vec<Do>) {
        for answered in answers {
            let Some(&(server, kernel)) = self.kernels.get(&answered.party) else {
                continue;
            };
            let (number, answer) = (answered.request.0, Some(answered.answer));
            all.push(match server == self.me {
                true => Do::Answer(kernel, number, answer),
                false => Do::Tell(server, kernel, number, answer),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ServerId = ServerId(1);
    const B: ServerId = ServerId(2);
    const K: KernelId = KernelId(5);

    fn arrive(parties: u32) -> Request {
        Request::Arrive {
            barrier: Name("all".into()),
            parties,
        }
    }

    /// What two servers do, the first of which is the host.
    fn two() -> (Meeting, Meeting) {
        let (mut a, mut b) = (Meeting::new(A), Meeting::new(B));
        a.view(&[A, B], &mut Vec::new());
        b.view(&[A, B], &mut Vec::new());
        (a, b)
    }

    #[test]
    fn kernels_of_two_servers_meet() {
        let (mut a, mut b) = two();
        let (mut here, mut there) = (Vec::new(), Vec::new());
        b.ask(K, 1, arrive(2), &mut there);
        assert_eq!(there, [Do::Ask(A, K, 1, arrive(2))]);
        a.asked((B, K), 1, arrive(2), &mut here);
        assert_eq!(here, []);
        a.ask(K, 9, arrive(2), &mut here);
        let done = Some(Answer::Done);
        assert_eq!(here, [Do::Tell(B, K, 1, done), Do::Answer(K, 9, done)]);
        there.clear();
        b.answered(A, (K, 1), done, &mut there);
        b.answered(A, (K, 1), done, &mut there);
        assert_eq!(there, [Do::Answer(K, 1, done)]);
    }

    #[test]
    fn a_server_that_is_gone_breaks_barriers_and_frees_mutexes() {
        let (mut a, _) = two();
        let mutex = Name("it".into());
        let mut all = Vec::new();
        a.asked((B, K), 1, Request::Lock(mutex.clone()), &mut all);
        a.asked((B, K), 2, arrive(3), &mut all);
        a.ask(KernelId(6), 7, arrive(3), &mut all);
        a.ask(K, 3, Request::Lock(mutex), &mut all);
        all.clear();
        a.view(&[A], &mut all);
        let broken = Do::Answer(KernelId(6), 7, Some(Answer::Broken));
        assert_eq!(all, [broken, Do::Answer(K, 3, Some(Answer::Abandoned))]);
        all.clear();
        a.ask(K, 4, arrive(3), &mut all);
        assert_eq!(all, [Do::Answer(K, 4, Some(Answer::Broken))]);
    }

    /// Of two that are awaited one came, with a server that is gone.
    #[test]
    fn who_comes_after_all_who_waited_are_gone_is_told() {
        let (mut a, _) = two();
        let mut all = Vec::new();
        a.asked((B, K), 1, arrive(2), &mut all);
        a.view(&[A], &mut all);
        assert_eq!(all, []);
        a.ask(K, 2, arrive(2), &mut all);
        assert_eq!(all, [Do::Answer(K, 2, Some(Answer::Broken))]);
    }

    #[test]
    fn who_waits_is_told_that_the_host_is_gone() {
        let (_, mut b) = two();
        let mut all = Vec::new();
        b.ask(K, 1, arrive(2), &mut all);
        all.clear();
        b.view(&[B], &mut all);
        assert_eq!(all, [Do::Answer(K, 1, None)]);
        all.clear();
        // Nobody knows who had arrived.
        b.ask(K, 2, arrive(1), &mut all);
        assert_eq!(all, [Do::Answer(K, 2, Some(Answer::Broken))]);
        all.clear();
        b.ask(K, 3, Request::Mend(Name("all".into())), &mut all);
        b.ask(K, 4, arrive(1), &mut all);
        let done = Some(Answer::Done);
        assert_eq!(all, [Do::Answer(K, 3, done), Do::Answer(K, 4, done)]);
    }

    /// Names that are mended and never used again do not fill the memory; what is forgotten
    /// breaks for nobody who waits.
    #[test]
    fn as_many_mended_barriers_are_remembered_as_broken_ones() {
        let (_, mut b) = two();
        let mut all = Vec::new();
        b.view(&[B], &mut all);
        let name = |number: usize| Name(format!("barrier-{number}"));
        let at = |number| Request::Arrive {
            barrier: name(number),
            parties: 2,
        };
        for number in 0..2 {
            b.ask(K, 0, Request::Mend(name(number)), &mut all);
        }
        b.ask(K, 1, at(0), &mut all);
        for number in 2..2 + 3 * REMEMBERED {
            b.ask(K, 0, Request::Mend(name(number)), &mut all);
            assert!(b.mended.len() <= REMEMBERED);
        }
        all.clear();
        // Somebody waits at the first; nobody has come to the second.
        b.ask(KernelId(6), 2, at(0), &mut all);
        b.ask(KernelId(6), 3, at(1), &mut all);
        b.ask(KernelId(6), 4, at(1 + 3 * REMEMBERED), &mut all);
        let done = Some(Answer::Done);
        let forgotten = Do::Answer(KernelId(6), 3, Some(Answer::Broken));
        let met = [Do::Answer(K, 1, done), Do::Answer(KernelId(6), 2, done)];
        assert_eq!(all, [&met[..], &[forgotten]].concat());
        // All who met there are gone: it is broken again, too.
        b.left(K, Parting::Left, &mut all);
        b.left(KernelId(6), Parting::Left, &mut all);
        all.clear();
        b.ask(K, 5, at(0), &mut all);
        assert_eq!(all, [Do::Answer(K, 5, Some(Answer::Broken))]);
        all.clear();
        // Mended by those who come, it is as new.
        b.ask(K, 6, Request::Mend(name(0)), &mut all);
        b.ask(K, 7, at(0), &mut all);
        b.ask(KernelId(6), 8, at(0), &mut all);
        let answers = [(K, 6), (K, 7), (KernelId(6), 8)];
        assert_eq!(
            all,
            answers.map(|(who, number)| Do::Answer(who, number, done))
        );
    }

    #[test]
    fn a_link_that_broke_is_told_to_those_who_wait() {
        let (mut a, mut b) = two();
        let mut all = Vec::new();
        b.ask(K, 1, arrive(3), &mut all);
        a.asked((B, K), 1, arrive(3), &mut all);
        a.ask(K, 1, arrive(3), &mut all);
        all.clear();
        b.broke(A, &mut all);
        assert_eq!(all, [Do::Answer(K, 1, None)]);
        all.clear();
        a.broke(B, &mut all);
        assert_eq!(all, [Do::Answer(K, 1, Some(Answer::Broken))]);
    }
}
