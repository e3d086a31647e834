//! Mutexes, conditions, barriers and counters of an object that several servers share. No
//! I/O: one message in, messages out.
//!
//! One of the servers keeps them all, the *host*: the one that has been a member for longest.
//! The others pass on what their kernels ask. When the host is gone, what it knew is gone
//! with it: who waits gets an error, mutexes are free, counters begin at 0, and every barrier
//! is broken until somebody mends it, as nobody knows who had arrived. When the link between
//! the host and another server breaks, kernels of that server count as crashed, and those
//! that wait get an error.
//!
//! A host that ends hands over all that it knows (its *minutes*) to another member, which is
//! the host from then on, and answers no request any more. When that one has them, the old
//! host tells the others. As its links keep the order, they have all its answers then; what
//! still waits they ask the new host again, which passes over what it knows already. So each
//! request is obeyed once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quire_core::dsm::message::{KernelId, ServerId};
use quire_core::dsm::sync::{
    Answer, Answered, Name, Parting, Party, REMEMBERED, Request, RequestId, SyncTable,
};
use serde::{Deserialize, Serialize};

/// What a host knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Minutes {
    /// What an earlier host knew is lost.
    has_lost: bool,
    /// Barriers that were mended since, those of late at the end: as many as the table
    /// remembers of broken ones. One that is forgotten is broken again when nobody is left who
    /// arrived there: until then the table knows it.
    mended: VecDeque<Name>,
    table: SyncTable,
    parties: BTreeMap<(ServerId, KernelId), Party>,
    last: u64,
}

impl Minutes {
    /// Somebody has mended a barrier.
    fn mend(&mut self, barrier: &Name) {
        self.mended.retain(|mended| mended != barrier);
        self.mended.push_back(barrier.clone());
        let surplus = self.mended.len().saturating_sub(REMEMBERED);
        self.mended.drain(..surplus);
    }
}

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
    /// A new host is told which kernels there are here.
    Present(ServerId),
}

/// Who meets over one object.
#[derive(Debug)]
pub(super) struct Meeting {
    me: ServerId,
    host: Option<ServerId>,
    minutes: Minutes,
    kernels: BTreeMap<Party, (ServerId, KernelId)>,
    /// What kernels of this server asked another one, and wait for.
    waiting: BTreeMap<(KernelId, u64), Request>,
    /// A host that ended, and to which server it handed over.
    moved: Option<(ServerId, ServerId)>,
}

impl Meeting {
    pub fn new(me: ServerId) -> Meeting {
        Meeting {
            me,
            host: None,
            minutes: Minutes::default(),
            kernels: BTreeMap::new(),
            waiting: BTreeMap::new(),
            moved: None,
        }
    }

    /// There is a view with these members, those who came first at the beginning.
    pub fn view(&mut self, members: &[ServerId], all: &mut Vec<Do>) {
        self.moved.take_if(|(_, to)| !members.contains(to));
        let host = match self.moved {
            Some((_, to)) => Some(to),
            None => members.first().copied(),
        };
        let before = std::mem::replace(&mut self.host, host);
        if before.is_some() && before != host {
            self.minutes.has_lost = host == Some(self.me);
            self.minutes.mended.clear();
            self.give_up(all);
        }
        let gone = self.minutes.parties.keys().map(|(server, _)| *server);
        let gone: BTreeSet<ServerId> = gone.filter(|server| !members.contains(server)).collect();
        for server in gone {
            self.crashed(server, all);
        }
    }

    /// A kernel of this server wants something.
    pub fn ask(&mut self, kernel: KernelId, number: u64, wanted: Request, all: &mut Vec<Do>) {
        match self.host {
            Some(host) if host != self.me => {
                self.waiting.insert((kernel, number), wanted.clone());
                all.push(Do::Ask(host, kernel, number, wanted));
            }
            Some(me) => self.serve((me, kernel), number, wanted, all),
            None => all.push(Do::Answer(kernel, number, None)),
        }
    }

    /// A kernel of this server is gone.
    pub fn left(&mut self, kernel: KernelId, how: Parting, all: &mut Vec<Do>) {
        self.waiting.retain(|(waits, _), _| *waits != kernel);
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
        let has_moved = self.successor().is_some();
        match self.host == Some(self.me) {
            true if self.knows(asker, number) => {}
            true => self.serve(asker, number, wanted, all),
            // It will be told to ask the new host.
            false if has_moved => {}
            false => all.push(Do::Tell(asker.0, asker.1, number, None)),
        }
    }

    /// A kernel of some server is gone.
    pub fn parted(&mut self, who: (ServerId, KernelId), how: Parting, all: &mut Vec<Do>) {
        if let Some(party) = self.minutes.parties.remove(&who) {
            let mut answers = Vec::new();
            self.minutes.table.gone(party, how, &mut answers);
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
        if self.host == Some(from) && self.waiting.remove(&(kernel, number)).is_some() {
            all.push(Do::Answer(kernel, number, answer));
        }
    }

    /// Whether this server keeps all, or did until it handed over.
    pub fn is_mine(&self) -> bool {
        self.host == Some(self.me) || self.successor().is_some()
    }

    /// The server that this one has handed over to.
    pub fn successor(&self) -> Option<ServerId> {
        let (from, to) = self.moved?;
        (from == self.me).then_some(to)
    }

    /// This server ends: another one takes its place, and gets this. From now on nothing is
    /// obeyed here. What it gets is the same each time until it has it.
    pub fn hand_over(&mut self, to: ServerId) -> Minutes {
        (self.host, self.moved) = (Some(to), Some((self.me, to)));
        self.minutes.clone()
    }

    /// The server that was to take this one's place does not.
    pub fn keep(&mut self) {
        if self.moved.take_if(|(from, _)| *from == self.me).is_some() {
            self.host = Some(self.me);
        }
    }

    /// A host that ends hands over to this server, which has these kernels.
    pub fn take_over(
        &mut self,
        from: ServerId,
        minutes: Minutes,
        living: &BTreeSet<KernelId>,
        all: &mut Vec<Do>,
    ) {
        let moved = Some((from, self.me));
        if std::mem::replace(&mut self.moved, moved) == moved {
            return;
        }
        self.host = Some(self.me);
        let parties = minutes.parties.iter();
        self.kernels = parties.map(|(who, party)| (*party, *who)).collect();
        self.minutes = minutes;
        self.present(self.me, living, all);
        for ((kernel, number), wanted) in std::mem::take(&mut self.waiting) {
            if !self.knows((self.me, kernel), number) {
                self.serve((self.me, kernel), number, wanted, all);
            }
        }
    }

    /// The host has handed over to another server.
    pub fn moved(&mut self, from: ServerId, to: ServerId, all: &mut Vec<Do>) {
        if self.host != Some(from) || to == self.me {
            return;
        }
        (self.host, self.moved) = (Some(to), Some((from, to)));
        all.push(Do::Present(to));
        for ((kernel, number), wanted) in &self.waiting {
            all.push(Do::Ask(to, *kernel, *number, wanted.clone()));
        }
    }

    /// A server has these kernels, and no others: of some it may have told the host before.
    pub fn present(&mut self, server: ServerId, living: &BTreeSet<KernelId>, all: &mut Vec<Do>) {
        let theirs = self.minutes.parties.keys().filter(|(of, _)| *of == server);
        let gone = theirs.filter(|(_, kernel)| !living.contains(kernel));
        for who in gone.copied().collect::<Vec<_>>() {
            self.parted(who, Parting::Crashed, all);
        }
    }

    /// Whether a request came already, and waits.
    fn knows(&self, asker: (ServerId, KernelId), number: u64) -> bool {
        let party = self.minutes.parties.get(&asker);
        party.is_some_and(|party| self.minutes.table.is_waiting(*party, RequestId(number)))
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
        for (kernel, number) in std::mem::take(&mut self.waiting).into_keys() {
            all.push(Do::Answer(kernel, number, None));
        }
    }

    fn crashed(&mut self, server: ServerId, all: &mut Vec<Do>) {
        let theirs = self.minutes.parties.keys().filter(|(of, _)| *of == server);
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
        let Minutes { parties, last, .. } = &mut self.minutes;
        let party = *parties.entry(asker).or_insert_with(|| {
            *last += 1;
            Party(*last)
        });
        self.kernels.insert(party, asker);
        let mut answers = Vec::new();
        let request = RequestId(number);
        match &wanted {
            Request::Mend(barrier) if self.minutes.has_lost => {
                self.minutes.mend(barrier);
            }
            Request::Arrive { barrier, .. }
                if self.minutes.has_lost
                    && !self.minutes.table.has_barrier(barrier)
                    && !self.minutes.mended.contains(barrier) =>
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
        self.minutes.table.ask(party, request, wanted, &mut answers);
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
            assert!(b.minutes.mended.len() <= REMEMBERED);
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
    fn a_host_that_ends_hands_over_and_each_request_is_obeyed_once() {
        const C: ServerId = ServerId(3);
        let mut meetings = [A, B, C].map(Meeting::new);
        for meeting in &mut meetings {
            meeting.view(&[A, B, C], &mut Vec::new());
        }
        let [mut a, mut b, mut c] = meetings;
        let add = |by| Request::Add {
            counter: Name("count".into()),
            by,
        };
        let mut all = Vec::new();
        // One waits at A, one was answered, and one comes when A obeys nothing any more.
        b.ask(K, 1, arrive(2), &mut all);
        a.asked((B, K), 1, arrive(2), &mut all);
        c.ask(K, 1, add(5), &mut all);
        a.asked((C, K), 1, add(5), &mut all);
        c.answered(A, (K, 1), Some(Answer::Value(5)), &mut all);
        c.ask(K, 2, add(1), &mut all);
        c.ask(KernelId(8), 3, arrive(9), &mut all);
        a.asked((C, KernelId(8)), 3, arrive(9), &mut all);
        let minutes = a.hand_over(B);
        all.clear();
        a.asked((C, K), 2, add(1), &mut all);
        b.take_over(A, minutes.clone(), &BTreeSet::from([K]), &mut all);
        b.take_over(A, minutes, &BTreeSet::from([K]), &mut all);
        assert_eq!(all, []);
        c.left(KernelId(8), Parting::Left, &mut Vec::new());
        c.moved(A, B, &mut all);
        assert_eq!(all, [Do::Present(B), Do::Ask(B, K, 2, add(1))]);
        all.clear();
        b.present(C, &BTreeSet::from([K]), &mut all);
        b.asked((C, K), 2, add(1), &mut all);
        assert_eq!(all, [Do::Tell(C, K, 2, Some(Answer::Value(6)))]);
        all.clear();
        c.answered(B, (K, 2), Some(Answer::Value(6)), &mut all);
        b.view(&[B, C], &mut all);
        c.view(&[B, C], &mut all);
        b.asked((C, K), 4, add(0), &mut all);
        let done = [
            Do::Answer(K, 2, Some(Answer::Value(6))),
            Do::Tell(C, K, 4, Some(Answer::Value(6))),
        ];
        assert_eq!(all, done);
        all.clear();
        // Who waited at A for another waits still.
        b.asked((C, K), 5, arrive(2), &mut all);
        let met = Some(Answer::Done);
        assert_eq!(all, [Do::Answer(K, 1, met), Do::Tell(C, K, 5, met)]);
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
