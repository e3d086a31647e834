//! The directory of joined servers: the real one that a server has embedded, on the simulated
//! clock. Each server has a way of its own to it, on which questions, answers and news take
//! their time, or are lost.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quire_core::dsm::message::ServerId;
use quire_dsm::directory::{
    Change, Clerk, Directory, DirectoryError, Embedded, Entry, Errand, Errands, LeaseId, Matter,
    Member, Renewal, View, Watcher,
};
use quire_dsm::store::ObjectId;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::host_of;
use crate::net::clock;
use crate::random::Random;
use crate::world::Shared;

/// An answer that does not come is waited for so long.
const PATIENCE: Duration = Duration::from_millis(150);
/// How long a question, an answer or news take at most, in milliseconds.
const USUAL: u64 = 5;
const SLOW: u64 = 120;
/// What waits for something that nobody is told of looks so often.
const BLINK: Duration = Duration::from_millis(1);

/// How the way of a server to the directory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Passage {
    #[default]
    Open,
    /// All takes long.
    Slow,
    /// Nothing comes through.
    Closed,
    /// Questions come through; answers and news do not.
    OneWay,
}

/// The directory.
pub struct Office {
    directory: Embedded,
    now: Arc<AtomicU64>,
    inside: Mutex<Inside>,
}

struct Inside {
    passages: BTreeMap<String, Passage>,
    /// What changes, for the simulation.
    changes: Receiver<Change>,
    /// Under which number a server was a member last, by its host.
    numbers: BTreeMap<String, ServerId>,
}

impl fmt::Debug for Office {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a directory")
    }
}

impl Office {
    /// A directory without anything.
    pub fn new() -> Office {
        let now = Arc::new(AtomicU64::new(0));
        let (begin, time) = (Instant::now(), Arc::clone(&now));
        let clock = move || begin + Duration::from_nanos(time.load(Ordering::Relaxed));
        let directory = Embedded::with_clock(None, Arc::new(clock)).expect("it is empty");
        let (sender, changes) = mpsc::channel();
        let watcher = Watcher {
            changes: sender,
            wake: Arc::new(|| {}),
        };
        directory.watch(watcher).expect("it needs no thread");
        Office {
            directory,
            now,
            inside: Mutex::new(Inside {
                passages: BTreeMap::new(),
                changes,
                numbers: BTreeMap::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().expect("nobody panicked")
    }

    /// It is so late now. Who is no member any more, since the last time.
    pub fn tick(&self, now: Duration) -> Vec<ServerId> {
        let nanos = u64::try_from(now.as_nanos()).expect("a run is short");
        self.now.store(nanos, Ordering::Relaxed);
        // Looks at the clock.
        self.directory.expire();
        self.hear()
    }

    /// Hears of changes; says who has left.
    fn hear(&self) -> Vec<ServerId> {
        let mut inside = self.lock();
        let mut left = Vec::new();
        while let Ok(change) = inside.changes.try_recv() {
            match change {
                Change::Joined(member) => {
                    let host = member.address.parse().ok().as_ref().and_then(host_of);
                    let host = host.expect("a server of this simulation");
                    inside.numbers.insert(host, member.id);
                }
                Change::Left(id) => left.push(id),
                _ => {}
            }
        }
        left
    }

    /// The way of a server changes.
    pub fn set(&self, server: &str, passage: Passage) {
        self.lock().passages.insert(server.into(), passage);
    }

    fn passage(&self, server: &str) -> Passage {
        self.lock()
            .passages
            .get(server)
            .copied()
            .unwrap_or_default()
    }

    /// The number under which the server of a host was a member last.
    pub fn member(&self, host: &str) -> Option<ServerId> {
        self.lock().numbers.get(host).copied()
    }

    /// Which object has a name, or a key that is spelled exactly.
    pub fn object(&self, asked: &str) -> Option<ObjectId> {
        let found = self.directory.find(asked).expect("it answers");
        found.map(|entry| entry.object.id)
    }

    /// Whether all servers that had an object are gone.
    pub fn is_gone(&self, name: &str) -> bool {
        let Ok(Some(entry)) = self.directory.find(name) else {
            return false;
        };
        let view = self.directory.view(entry.object.id).expect("it answers");
        let had = view.map_or(vec![entry.home], |view| view.members);
        let living = self.directory.members().expect("it answers");
        living.iter().all(|member| !had.contains(&member.id))
    }
}

/// The way of one server's process to the directory.
pub struct Way {
    office: Arc<Office>,
    server: String,
    /// Who watches, and what it has not heard yet.
    watcher: Mutex<Option<Watcher>>,
    news: Mutex<Receiver<Change>>,
    tell: Mutex<Sender<Change>>,
}

impl Way {
    pub fn new(office: &Arc<Office>, server: String) -> Way {
        let (tell, news) = mpsc::channel();
        Way {
            office: Arc::clone(office),
            server,
            watcher: Mutex::new(None),
            news: Mutex::new(news),
            tell: Mutex::new(tell),
        }
    }

    fn passage(&self) -> Passage {
        self.office.passage(&self.server)
    }

    /// Whether no answer comes.
    fn is_silent(&self) -> bool {
        matches!(self.passage(), Passage::Closed | Passage::OneWay)
    }

    fn ask<T>(
        &self,
        question: impl FnOnce(&Embedded) -> Result<T, DirectoryError>,
    ) -> Result<T, DirectoryError> {
        let answer = match self.passage() {
            Passage::Closed => None,
            _ => Some(question(&self.office.directory)),
        };
        let silent = || Err(DirectoryError::Silent("here".into(), "no answer".into()));
        answer.filter(|_| !self.is_silent()).unwrap_or_else(silent)
    }

    fn try_hear(&self) -> Option<Change> {
        self.news.lock().expect("nobody panicked").try_recv().ok()
    }

    fn tell(&self, change: Change) {
        if let Some(watcher) = &*self.watcher.lock().expect("nobody panicked") {
            // The server may be gone.
            let _ = watcher.changes.send(change);
            (watcher.wake)();
        }
    }
}

impl Directory for Way {
    fn join(
        &self,
        member: &Member,
        lease: Duration,
    ) -> Result<(LeaseId, Duration), DirectoryError> {
        self.ask(|directory| directory.join(member, lease))
    }

    fn renew(&self, lease: LeaseId) -> Result<Duration, DirectoryError> {
        self.ask(|directory| directory.renew(lease))
    }

    fn leave(&self, lease: LeaseId) -> Result<(), DirectoryError> {
        self.ask(|directory| directory.leave(lease))
    }

    fn members(&self) -> Result<Vec<Member>, DirectoryError> {
        self.ask(Directory::members)
    }

    fn publish(&self, entry: &Entry) -> Result<(), DirectoryError> {
        self.ask(|directory| directory.publish(entry))
    }

    fn find(&self, name: &str) -> Result<Option<Entry>, DirectoryError> {
        self.ask(|directory| directory.find(name))
    }

    fn entries(&self) -> Result<Vec<Entry>, DirectoryError> {
        self.ask(Directory::entries)
    }

    fn begin(&self, lease: LeaseId, entry: &Entry) -> Result<(), DirectoryError> {
        self.ask(|directory| directory.begin(lease, entry))
    }

    fn give_size(&self, entry: &Entry) -> Result<(), DirectoryError> {
        self.ask(|directory| directory.give_size(entry))
    }

    fn end_begun(&self, key: &str) -> Result<(), DirectoryError> {
        self.ask(|directory| directory.end_begun(key))
    }

    fn discard(&self, key: &str) -> Result<(), DirectoryError> {
        self.ask(|directory| directory.discard(key))
    }

    fn withdraw(&self, key: &str) -> Result<bool, DirectoryError> {
        self.ask(|directory| directory.withdraw(key))
    }

    fn view(&self, object: ObjectId) -> Result<Option<View>, DirectoryError> {
        self.ask(|directory| directory.view(object))
    }

    fn propose(&self, lease: LeaseId, view: &View) -> Result<(), DirectoryError> {
        self.ask(|directory| directory.propose(lease, view))
    }

    fn watch(&self, watcher: Watcher) -> Result<(), DirectoryError> {
        *self.watcher.lock().expect("nobody panicked") = Some(watcher);
        let changes = self.tell.lock().expect("nobody panicked").clone();
        self.office.directory.watch(Watcher {
            changes,
            wake: Arc::new(|| {}),
        })
    }
}

/// Who goes to the directory for a server's process.
#[derive(Default)]
pub struct Messenger {
    views: Queue,
    names: Queue,
    renewals: Mutex<Vec<Renewal>>,
}

/// What is to be asked about one matter.
#[derive(Default)]
struct Queue {
    errands: Mutex<Errands<Errand>>,
    notify: Notify,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Errands<Errand>> {
        self.errands.lock().expect("nobody panicked")
    }

    /// Waits until something may be due.
    async fn wait(&self) {
        let due = self.lock().due();
        match due {
            Some(due) => {
                let pause = due.saturating_duration_since(clock());
                // Either way it is to be looked at.
                let _ = timeout(pause, self.notify.notified()).await;
            }
            None => self.notify.notified().await,
        }
    }
}

impl Messenger {
    fn of(&self, matter: Matter) -> &Queue {
        match matter {
            Matter::Views => &self.views,
            Matter::Names => &self.names,
        }
    }

    fn renewals(&self) -> MutexGuard<'_, Vec<Renewal>> {
        self.renewals.lock().expect("nobody panicked")
    }
}

impl Clerk for Messenger {
    fn take(&self, matter: Matter, pause: Duration, errand: Errand) {
        let queue = self.of(matter);
        queue.lock().add(clock() + pause, errand);
        queue.notify.notify_one();
    }

    fn keep(&self, renewal: Renewal) -> io::Result<Option<JoinHandle<()>>> {
        self.renewals().push(renewal);
        self.views.notify.notify_one();
        Ok(None)
    }
}

/// What the tasks of a server's process share.
pub struct Desk {
    pub way: Arc<Way>,
    pub messenger: Arc<Messenger>,
    pub world: Shared,
    /// The server, among the hosts.
    pub host: usize,
}

impl Desk {
    /// Lets something be on its way. A process that is stopped does nothing meanwhile.
    async fn travel(&self, random: &mut Random) {
        let most = match self.way.passage() {
            Passage::Slow => SLOW,
            _ => USUAL,
        };
        sleep(Duration::from_millis(1 + random.below(most))).await;
        while self.world.borrow().is_stopped(self.host) {
            sleep(BLINK).await;
        }
    }

    /// Goes to the directory with one question, and back.
    async fn ask<T>(&self, random: &mut Random, question: impl FnOnce(&Way) -> T) -> T {
        self.travel(random).await;
        let answer = question(&self.way);
        if self.way.is_silent() {
            sleep(PATIENCE).await;
        }
        self.travel(random).await;
        answer
    }

    /// Asks all that the server wants to know about one matter, in order. Leases are renewed
    /// beside that.
    pub async fn answers(self: Rc<Desk>, matter: Matter, seed: u64) {
        let mut random = Random::new(seed, 1);
        let queue = self.messenger.of(matter);
        loop {
            let renewals = match matter {
                Matter::Views => std::mem::take(&mut *self.messenger.renewals()),
                Matter::Names => Vec::new(),
            };
            for renewal in renewals {
                let seed = random.next();
                tokio::task::spawn_local(Rc::clone(&self).renews(renewal, seed));
            }
            let errand = queue.lock().next(clock());
            let Some(errand) = errand else {
                queue.wait().await;
                continue;
            };
            let deliver = self.ask(&mut random, |way| errand(way)).await;
            if !deliver() {
                return;
            }
        }
    }

    /// Renews a lease until it is over or dropped.
    async fn renews(self: Rc<Desk>, mut renewal: Renewal, seed: u64) {
        let mut random = Random::new(seed, 2);
        loop {
            let until = clock() + renewal.pause();
            while clock() < until && !renewal.is_dropped() {
                sleep(BLINK).await;
            }
            if renewal.is_dropped() {
                break;
            }
            let (asked, id) = (clock(), renewal.id());
            let answer = self.ask(&mut random, |way| way.renew(id)).await;
            if !renewal.renewed(asked, answer) {
                break;
            }
        }
        let id = renewal.id();
        // Where nothing comes through, the lease ends by itself.
        let _ = self.ask(&mut random, |way| way.leave(id)).await;
    }

    /// Tells the server of changes. Where it has missed some, it is told that.
    pub async fn news(self: Rc<Desk>, seed: u64) {
        let mut random = Random::new(seed, 3);
        let mut has_missed = false;
        loop {
            let change = self.way.try_hear();
            if self.way.is_silent() {
                has_missed = true;
                sleep(BLINK).await;
                continue;
            }
            let change = match change {
                _ if std::mem::take(&mut has_missed) => Change::Missed,
                Some(change) => change,
                None => {
                    sleep(BLINK).await;
                    continue;
                }
            };
            self.travel(&mut random).await;
            match self.way.is_silent() {
                true => has_missed = true,
                false => self.way.tell(change),
            }
        }
    }
}
