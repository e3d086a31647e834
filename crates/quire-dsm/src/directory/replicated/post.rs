//! The thread that has a copy of the directory, its disk, and the links to the other copies.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use quire_core::dsm::message::ServerId;

use super::log::Log;
use super::mail::Letter;
use super::replica::{Broken, Done, ELECTION, Replica};
use crate::directory::asked::{Asked, Reply};
use crate::directory::{Change, Watcher};
use crate::link::turn::{Closed, Handler, LinkId, Links, Turn};
use crate::link::{Address, Again, Established, Security, Seldom};
use crate::server::said::{self, Said};
use crate::store::StoreError;
use crate::wire::Control;
use crate::wire::control::{Reason, Refusal, Welcome};

/// Between two attempts to reach another server, at first and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];
/// A thread that waits for an answer may be so late to see that its time is over.
const LATE: Duration = Duration::from_secs(10);
/// To another server so many bytes may wait in this process: more is dropped, and said again
/// later.
const QUEUE: usize = 1 << 20;

/// What the thread is to do.
pub(super) enum Command {
    Ask(Asked),
    Watch(Watcher),
    Hear(Letter),
    /// It ends, and then drops this.
    End(Sender<()>),
}

/// Makes a log durable.
pub(super) type Keep = Box<dyn FnMut(&Log) -> Result<(), StoreError> + Send>;

/// The way to another copy.
struct Peer {
    address: Address,
    link: Option<LinkId>,
    is_up: bool,
    again: Again,
    /// What was last found wrong with what it says.
    wrong: Option<&'static str>,
    /// What is told where it cannot be reached.
    told: Seldom,
}

/// Somebody who waits for an answer.
struct Waiting {
    reply: Sender<Reply>,
    until: Instant,
}

/// The thread.
pub(super) struct Post {
    replica: Replica,
    keep: Keep,
    peers: BTreeMap<u64, Peer>,
    security: Security,
    inbox: Receiver<Command>,
    waiting: BTreeMap<u64, Waiting>,
    watchers: Vec<Watcher>,
    tick: Duration,
    next_tick: Instant,
    /// Until when it waits for another one to lead, and who waits for that.
    ending: Option<(Instant, Sender<()>)>,
    is_over: bool,
}

impl Post {
    /// What the thread needs: a copy, how it is made durable, the others and how links to
    /// them are secured, what it is to do, and how long a tick is.
    pub fn new(
        replica: Replica,
        keep: Keep,
        (others, security): (impl Iterator<Item = (Address, u64)>, Security),
        (inbox, tick): (Receiver<Command>, Duration),
    ) -> Post {
        let now = Instant::now();
        let peer = |address| Peer {
            address,
            link: None,
            is_up: false,
            again: Again::new(now, AGAIN),
            wrong: None,
            told: Seldom::default(),
        };
        Post {
            replica,
            keep,
            peers: others
                .map(|(address, number)| (number, peer(address)))
                .collect(),
            security,
            inbox,
            waiting: BTreeMap::new(),
            watchers: Vec::new(),
            tick,
            next_tick: now + tick,
            ending: None,
            is_over: false,
        }
    }

    pub fn run(mut self, mut turn: Turn) {
        let _first = turn.go_first();
        while !self.is_over {
            if let Err(error) = turn.once(&mut self, Duration::from_secs(1)) {
                tracing::error!("the directory's links: {error}");
                break;
            }
        }
    }

    /// Does what it is to do; it ends where nobody is left to say so.
    fn take_commands(&mut self) {
        loop {
            match self.inbox.try_recv() {
                Ok(command) => self.command(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.is_over = true;
                    return;
                }
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Ask(asked) => {
                let number = self.replica.ask(asked.question);
                let (reply, until) = (asked.reply, asked.until);
                self.waiting.insert(number, Waiting { reply, until });
            }
            Command::Watch(watcher) => {
                if watcher.tell(Change::Missed) {
                    self.watchers.push(watcher);
                }
            }
            Command::Hear(letter) => self.hear(letter),
            Command::End(ended) => {
                self.replica.resign();
                // Longer than that an election would take.
                let until = Instant::now() + self.tick * ELECTION as u32;
                self.ending = Some((until, ended));
            }
        }
    }

    fn hear(&mut self, letter: Letter) {
        let from = letter.sender;
        match self.replica.hear(letter, Instant::now()) {
            Ok(wrong) => {
                let Some(peer) = self.peers.get_mut(&from) else {
                    return;
                };
                if let Some(why) = wrong.filter(|_| peer.wrong != wrong) {
                    tracing::warn!("the directory's copy at {}: {why}", peer.address);
                }
                peer.wrong = wrong;
            }
            Err(broken) => self.fails(&broken),
        }
    }

    /// This copy cannot go on. Who asks hears that it has ended.
    fn fails(&mut self, broken: &Broken) {
        tracing::error!("this server's copy of the directory takes no part any more: {broken}");
        self.is_over = true;
    }

    fn ticks(&mut self, now: Instant) {
        while self.next_tick <= now {
            self.replica.tick(now);
            self.next_tick += self.tick;
            // Who was stopped for long must not think that the others were silent so long.
            if now > self.next_tick + self.tick * ELECTION as u32 {
                self.next_tick = now + self.tick;
            }
        }
    }

    fn settles(&mut self, links: &mut Links, now: Instant) {
        match self.replica.settle(now, &mut *self.keep) {
            Ok(done) => self.tell(links, done),
            Err(broken) => self.fails(&broken),
        }
    }

    fn tell(&mut self, links: &mut Links, done: Done) {
        for change in done.changes {
            self.watchers.retain(|watcher| watcher.tell(change.clone()));
        }
        for (number, reply) in done.answers {
            if let Some(waiting) = self.waiting.remove(&number) {
                // Who asked may have given up.
                let _ = waiting.reply.send(reply);
            }
        }
        for letter in done.letters {
            self.send(links, letter);
        }
    }

    fn send(&mut self, links: &mut Links, letter: Letter) {
        let to = letter.mail.to;
        let link = self.peers.get(&to).filter(|peer| peer.is_up);
        let link = link.and_then(|peer| peer.link);
        let Some(link) = link.filter(|link| links.queued(*link) < QUEUE) else {
            return self.replica.unreachable(to);
        };
        let is_base = letter.mail.is_base();
        for part in said::encode(ServerId(0), &Said::Replica(Box::new(letter)), None) {
            links.send(link, part);
        }
        if is_base {
            self.replica.sent_base(to);
        }
    }

    fn connect(&mut self, links: &mut Links, now: Instant) {
        for peer in self.peers.values_mut() {
            if peer.link.is_some() || now < peer.again.due() {
                continue;
            }
            match links.connect(&peer.address, &self.security, None) {
                Ok(link) => peer.link = Some(link),
                Err(error) => {
                    tracing::debug!("the directory's copy at {}: {error}", peer.address);
                    peer.again.later(now);
                }
            }
        }
    }

    /// Forgets questions that nobody waits for any more. Who waits sees by itself that its time is
    /// over, maybe late: it must not hear first that nobody will answer, as where the copy has ended.
    fn forget(&mut self, now: Instant) {
        let replica = &mut self.replica;
        self.waiting.retain(|number, waiting| {
            if waiting.until <= now {
                replica.forget(*number);
            }
            waiting.until + LATE > now
        });
    }

    fn peer(&mut self, link: LinkId) -> Option<(&u64, &mut Peer)> {
        let mut peers = self.peers.iter_mut();
        peers.find(|(_, peer)| peer.link == Some(link))
    }
}

impl Handler for Post {
    fn greeted(&mut self, _: &mut Links, _: LinkId, _: &Established) -> Result<Welcome, Refusal> {
        Err(Refusal {
            reason: Reason::Denied,
            text: "nobody is served here".into(),
        })
    }

    fn welcomed(&mut self, _: &mut Links, link: LinkId, _: &Welcome) {
        if let Some((_, peer)) = self.peer(link) {
            peer.is_up = true;
            peer.told
                .reached(format_args!("the directory's copy at {}", peer.address));
            peer.again.succeeded();
        }
    }

    fn message(&mut self, links: &mut Links, link: LinkId, _: Control, _: Vec<OwnedFd>) {
        links.close(
            link,
            "this side only tells what its copy of the directory says",
        );
    }

    fn closed(&mut self, links: &mut Links, link: LinkId, closed: &Closed) {
        let now = links.now();
        let Some((number, peer)) = self.peer(link) else {
            return;
        };
        let number = *number;
        let who = format_args!("the directory's copy at {}", peer.address);
        peer.told.unreachable(now, who, &closed.why);
        (peer.link, peer.is_up) = (None, false);
        peer.again.later(now);
        self.replica.unreachable(number);
    }

    fn deadline(&self) -> Option<Instant> {
        let down = self.peers.values().filter(|peer| peer.link.is_none());
        let again = down.map(|peer| peer.again.due()).min();
        [again, Some(self.next_tick)].into_iter().flatten().min()
    }

    fn turn_ends(&mut self, links: &mut Links, now: Instant) {
        self.take_commands();
        self.connect(links, now);
        self.ticks(now);
        self.settles(links, now);
        self.forget(now);
        if let Some((until, _)) = self.ending {
            self.is_over |= now >= until || !self.replica.leads();
        }
    }
}
