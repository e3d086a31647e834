//! The directory of another server, asked over a link.
//!
//! A thread has the link, makes it anew when it breaks, and hears of changes. Whoever asks
//! waits at most [`PATIENCE`].

use std::collections::BTreeMap;
use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::dsm::message::ServerId;

use super::asked::{Answers, Asked, Question, Reply};
use super::{Change, DirectoryError, Watcher};
use crate::link::turn::{Closed, Config, Handler, LinkId, Links, Orders, Turn};
use crate::link::{Address, Again, Established, Security, Seldom};
use crate::server::said::{self, Parts, Said};
use crate::wire::Control;
use crate::wire::control::{Hello, Reason, Refusal, Welcome};

/// So long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two attempts to reach the server, at first and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// The directory of another server.
pub struct Remote {
    orders: Orders<Command>,
    address: String,
}

enum Command {
    Ask(Asked),
    Watch(Watcher),
}

impl Remote {
    /// The directory of the server at an address. Nothing is asked yet.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn new(address: Address, security: Security, hello: Hello) -> std::io::Result<Remote> {
        let turn = Turn::new(Config::new(hello))?;
        let (orders, inbox) = Orders::new(&turn);
        let text = address.to_string();
        let carrier = Carrier {
            address,
            security,
            inbox,
            link: None,
            is_up: false,
            again: Again::new(Instant::now(), AGAIN),
            last: 0,
            waiting: Vec::new(),
            asked: BTreeMap::new(),
            watchers: Vec::new(),
            parts: Parts::default(),
            told: Seldom::default(),
            is_over: false,
        };
        thread::Builder::new()
            .name("quire-remote".to_owned())
            .spawn(move || carrier.run(turn))?;
        Ok(Remote {
            orders,
            address: text,
        })
    }

    fn silent(&self, why: &str) -> DirectoryError {
        DirectoryError::Silent(self.address.clone(), why.to_owned())
    }
}

impl Answers for Remote {
    fn ask(&self, question: Question) -> Result<Reply, DirectoryError> {
        let put = |asked| self.orders.put(Command::Ask(asked));
        Asked::wait(question, PATIENCE, put)
            .map_err(|_| self.silent("no answer over the link to it"))
    }

    fn name(&self) -> &str {
        &self.address
    }

    fn watch(&self, watcher: Watcher) -> Result<(), DirectoryError> {
        let is_taken = self.orders.put(Command::Watch(watcher));
        is_taken
            .then_some(())
            .ok_or_else(|| self.silent("its thread has ended"))
    }
}

/// The thread that has the link.
struct Carrier {
    address: Address,
    security: Security,
    inbox: Receiver<Command>,
    link: Option<LinkId>,
    is_up: bool,
    again: Again,
    last: u64,
    /// What was not asked yet, as there was no link.
    waiting: Vec<Asked>,
    /// Who waits for which answer.
    asked: BTreeMap<u64, Sender<Reply>>,
    watchers: Vec<Watcher>,
    parts: Parts,
    /// What is told of a directory that cannot be reached.
    told: Seldom,
    is_over: bool,
}

impl Carrier {
    fn run(mut self, mut turn: Turn) {
        while !self.is_over {
            if let Err(error) = turn.once(&mut self, Duration::from_secs(1)) {
                tracing::error!("the link to the directory: {error}");
                break;
            }
        }
    }

    fn say(&mut self, links: &mut Links, said: &Said) {
        if let Some(link) = self.link.filter(|_| self.is_up) {
            for part in said::encode(ServerId(0), said, None) {
                links.send(link, part);
            }
        }
    }

    fn ask(&mut self, links: &mut Links, asked: Asked) {
        // Who asked has given up, and may have asked for the same again.
        if asked.until <= Instant::now() {
            return;
        }
        if !self.is_up {
            self.waiting.push(asked);
            return;
        }
        self.last += 1;
        let number = self.last;
        let question = asked.question;
        self.asked.insert(number, asked.reply);
        self.say(links, &Said::Ask { number, question });
    }

    /// There is no link: one line, and then one a minute. It is tried again.
    fn unreachable(&mut self, now: Instant, why: &dyn Display) {
        self.again.later(now);
        let who = format_args!("the directory at {}", self.address);
        self.told.unreachable(now, who, why);
    }

    fn tell(&mut self, change: &Change) {
        self.watchers.retain(|watcher| watcher.tell(change.clone()));
    }

    fn hear(&mut self, said: Said) {
        match said {
            Said::Told { number, reply } => {
                if let Some(asker) = self.asked.remove(&number) {
                    // Who asked may have given up.
                    let _ = asker.send(reply);
                }
            }
            Said::News(news) => self.tell(&news.into()),
            other => tracing::warn!("the directory says {other:?}"),
        }
    }
}

impl Handler for Carrier {
    fn greeted(&mut self, _: &mut Links, _: LinkId, _: &Established) -> Result<Welcome, Refusal> {
        Err(Refusal {
            reason: Reason::Denied,
            text: "nobody is served here".into(),
        })
    }

    fn welcomed(&mut self, links: &mut Links, _: LinkId, _: &Welcome) {
        self.is_up = true;
        self.told
            .reached(format_args!("the directory at {}", self.address));
        self.again.succeeded();
        self.parts = Parts::default();
        if !self.watchers.is_empty() {
            self.say(links, &Said::Watch);
        }
        for asked in std::mem::take(&mut self.waiting) {
            self.ask(links, asked);
        }
    }

    fn message(&mut self, links: &mut Links, link: LinkId, message: Control, _: Vec<OwnedFd>) {
        let Control::PeerServer { body, data, .. } = message else {
            return links.close(link, "this side only asks the directory");
        };
        match self.parts.add(&body, data) {
            Ok(all) => all.into_iter().for_each(|(said, _)| self.hear(said)),
            Err(garbage) => links.close(link, &garbage.to_string()),
        }
    }

    fn closed(&mut self, links: &mut Links, _: LinkId, closed: &Closed) {
        self.unreachable(links.now(), &closed.why);
        (self.link, self.is_up) = (None, false);
        // Who waits hears it as the end of the channel.
        self.asked.clear();
    }

    fn woken(&mut self, links: &mut Links) {
        loop {
            match self.inbox.try_recv() {
                Ok(Command::Ask(asked)) => self.ask(links, asked),
                Ok(Command::Watch(watcher)) => {
                    self.watchers.push(watcher);
                    self.say(links, &Said::Watch);
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.is_over = true;
                    return;
                }
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.link.is_none().then_some(self.again.due())
    }

    fn turn_ends(&mut self, links: &mut Links, now: Instant) {
        if self.link.is_none() && now >= self.again.due() {
            match links.connect(&self.address, &self.security, None) {
                Ok(link) => self.link = Some(link),
                Err(error) => self.unreachable(now, &error),
            }
        }
        self.waiting.retain(|asked| asked.until > now);
    }
}
