//! A directory that all servers of a list keep together, each its copy on a disk of its own:
//! as long as a majority of them runs and is connected, it answers.
//!
//! | module | holds |
//! |---|---|
//! | `log` | the log of commands that all copies share |
//! | `mail` | what copies say to each other |
//! | `replica` | one copy, as a pure automaton |
//! | `served` | which questions were done |
//! | `post` | the thread that has the copy, its disk, and the links to the other ones |
//!
//! A copy sends over links of its own, to the addresses of the other servers. What they say
//! arrives at the server's loop, which has all links that others made, and hands it to the
//! [`Inbox`].
//!
//! # A copy that was lost
//! Who forgets what it has promised could break the agreement. So each copy has a number, all
//! know the first one of each server, and another one takes no part: bring the old one back,
//! or end all servers and begin with empty directories.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::hash::Hasher;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::asked::{Answers, Asked, Question, Reply};
use super::{DirectoryError, Watcher};
use crate::link::turn::{Config, Orders, Turn};
use crate::link::{Address, Security};
use crate::random::random;
use crate::store::{Small, StoreError};
use crate::wire::control::Hello;

mod log;
mod mail;
mod post;
mod replica;
mod served;
#[cfg(test)]
mod tests;

pub(crate) use mail::Letter;

use log::Log;
use post::{Command, Post};
use replica::{Place, Replica};

/// So long an answer is waited for, at most: a leader is found in about half of it.
const PATIENCE: Duration = Duration::from_secs(2);
/// So many ticks are in a lease: an election takes a third of one at most, unless votes are
/// split.
const TICKS: u32 = 60;
/// A tick is not shorter, however short leases are.
const SHORTEST_TICK: Duration = Duration::from_millis(1);
/// With fewer servers, one that fails takes the majority with it.
const FEWEST: usize = 3;
/// The file of a copy.
const FILE: &str = "directory";
/// The version of what is in it.
const FORMAT: u32 = 3;

/// How a directory is kept by all servers of a list.
pub struct Plan {
    /// Where the servers are reached; the same list for all.
    pub peers: Vec<Address>,
    /// Which of them this server is.
    pub own: Address,
    /// Where its copy is kept.
    pub place: PathBuf,
    /// How long a lease of a server is.
    pub lease: Duration,
    /// How links are secured.
    pub security: Security,
    /// Who this server is.
    pub hello: Hello,
    /// Whether the thread goes before programs, where the system allows it.
    pub realtime: bool,
}

/// Why a copy cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// There are too few servers.
    #[error("{0} servers cannot keep a directory together; name at least {FEWEST}")]
    Few(usize),
    /// A server is named twice.
    #[error("{0} is named twice")]
    Twice(Address),
    /// This server is not in the list.
    #[error(
        "{0} is not in the list; name it there as others reach it, or say with --advertise which address of the list it is"
    )]
    Stranger(Address),
    /// The copy is of another directory.
    #[error(
        "{place} holds the copy of {was}, of the servers {list}; give that list again, or another directory"
    )]
    Other {
        /// Where it is.
        place: String,
        /// Which server had it.
        was: String,
        /// With which others.
        list: String,
    },
    /// A newer version wrote it.
    #[error("{0} has a newer format than this version knows; use the version that made it")]
    Newer(String),
    /// An earlier version wrote it.
    #[error(
        "{0} has an older format than this version reads; use the version that made it, or end all servers and begin with empty directories"
    )]
    Older(String),
    /// The disk.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system.
    #[error("no thread for the directory: {0}")]
    Thread(#[from] std::io::Error),
}

/// What is on the disk.
#[derive(Serialize, Deserialize)]
struct Kept<L> {
    format: u32,
    peers: Vec<String>,
    me: u64,
    copy: u64,
    log: L,
}

/// The directory that all servers of a list keep together.
pub struct Replicated {
    inbox: Inbox,
    name: String,
}

/// Where this server's copy hears from others.
#[derive(Clone)]
pub struct Inbox(Orders<Command>);

impl Inbox {
    /// Another copy says something. A copy that has ended says nothing to that.
    pub(crate) fn hear(&self, letter: Letter) {
        self.0.put(Command::Hear(letter));
    }

    /// Ends this server's copy: if it leads, another one is to do so first, which may take a
    /// moment, and needs what that one says. What is returned ends then.
    pub(crate) fn end(&self) -> Option<Receiver<()>> {
        let (ended, has_ended) = mpsc::channel();
        self.0.put(Command::End(ended)).then_some(has_ended)
    }
}

impl Replicated {
    /// Opens this server's copy, and starts the thread that has it.
    ///
    /// # Errors
    /// What is wrong with the list or the copy, or what the system said.
    pub fn open(plan: Plan) -> Result<Replicated, PlanError> {
        let peers: Vec<String> = plan.peers.iter().map(Address::to_string).collect();
        let name = format!("of {}", peers.join(", "));
        let (place, log, mut disk) = opened(&plan, &peers)?;
        let replica = Replica::new(place, log, Box::new(random));
        let replica = replica.map_err(|broken| StoreError::Invalid(broken.to_string()))?;
        let keep = move |log: &Log| write(&mut disk, &peers, place, log);
        let mut config = Config::new(plan.hello);
        config.realtime = plan.realtime;
        let turn = Turn::new(config)?;
        let (orders, inbox) = Orders::new(&turn);
        let others = plan.peers.into_iter().zip(1..);
        let others = others.filter(|(_, number)| *number != place.me);
        let post = Post::new(
            replica,
            Box::new(keep),
            (others, plan.security),
            (inbox, (plan.lease / TICKS).max(SHORTEST_TICK)),
        );
        thread::Builder::new()
            .name("quire-replica".to_owned())
            .spawn(move || post.run(turn))?;
        Ok(Replicated {
            inbox: Inbox(orders),
            name,
        })
    }

    /// Where it hears from others.
    #[must_use]
    pub fn inbox(&self) -> Inbox {
        self.inbox.clone()
    }

    fn silent(&self, why: &str) -> DirectoryError {
        DirectoryError::Silent(self.name.clone(), why.to_owned())
    }
}

impl Answers for Replicated {
    fn ask(&self, question: Question) -> Result<Reply, DirectoryError> {
        let put = |asked| self.inbox.0.put(Command::Ask(asked));
        Asked::wait(question, PATIENCE, put).map_err(|why| match why {
            RecvTimeoutError::Timeout => {
                self.silent("no majority of these servers runs and is connected, or the one of them that leads does not reach this one")
            }
            RecvTimeoutError::Disconnected => self.silent("this server's copy of it has ended"),
        })
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn watch(&self, watcher: Watcher) -> Result<(), DirectoryError> {
        match self.inbox.0.put(Command::Watch(watcher)) {
            true => Ok(()),
            false => Err(self.silent("this server's copy of it has ended")),
        }
    }
}

/// The copy at a place, of servers with these names: an empty one, where there was none.
fn opened(plan: &Plan, names: &[String]) -> Result<(Place, Log, Small), PlanError> {
    let servers = plan.peers.len();
    if servers < FEWEST {
        return Err(PlanError::Few(servers));
    }
    let mut seen = BTreeSet::new();
    let mut peers = plan.peers.iter();
    if let Some(twice) = peers.find(|peer| !seen.insert(peer.to_string())) {
        return Err(PlanError::Twice(twice.clone()));
    }
    let me = plan.peers.iter().position(|peer| *peer == plan.own);
    let me = me.ok_or_else(|| PlanError::Stranger(plan.own.clone()))? as u64 + 1;
    let (mut disk, kept) = Small::open::<Kept<Log>>(&plan.place, FILE)?;
    let list = fingerprint(names);
    let place = |copy| Place {
        list,
        servers: servers as u64,
        me,
        copy,
    };
    let Some(kept) = kept else {
        let (place, log) = (place(random()), Log::new(servers as u64));
        write(&mut disk, names, place, &log)?;
        return Ok((place, log, disk));
    };
    let at = || plan.place.display().to_string();
    match kept.format.cmp(&FORMAT) {
        Ordering::Less => return Err(PlanError::Older(at())),
        Ordering::Equal => {}
        Ordering::Greater => return Err(PlanError::Newer(at())),
    }
    if (kept.me, &kept.peers[..]) != (me, names) {
        let was = kept.peers.get(kept.me as usize - 1);
        return Err(PlanError::Other {
            place: at(),
            was: was.cloned().unwrap_or_default(),
            list: kept.peers.join(","),
        });
    }
    let place = place(kept.copy);
    // It may not be durable yet, and counts from now on.
    write(&mut disk, names, place, &kept.log)?;
    Ok((place, kept.log, disk))
}

fn write(disk: &mut Small, peers: &[String], place: Place, log: &Log) -> Result<(), StoreError> {
    disk.replace(&Kept {
        format: FORMAT,
        peers: peers.to_vec(),
        me: place.me,
        copy: place.copy,
        log,
    })
}

/// A number for a list of servers, the same on all machines.
fn fingerprint(names: &[String]) -> u64 {
    let mut hasher = crc32fast::Hasher::new();
    for name in names {
        hasher.write(name.as_bytes());
        hasher.write(&[0]);
    }
    hasher.finish()
}
