//! Servers that are joined: what a server does beside its own objects when it has peer servers.
//!
//! They agree through a directory on who is a member, which names there are, and which
//! servers have a part in which object (its *view*). A server is a member as long as its
//! lease in the directory lives, under a number that nobody had before. When its lease is
//! over, or it has missed something that it had to know, it *starts anew*: it ends the links
//! of all programs that have a shared object open, forgets these objects, and joins under
//! another number.
//!
//! # Who may have a page
//! When a server is gone from the directory, its programs may still use what they have, as
//! long as their leases from that server run: it acknowledged their heartbeats until its own
//! lease was over at the latest, which is before the directory drops it. So others wait for
//! one lease of programs, and its margin, before they make a view without it.
//!
//! | module | holds |
//! |---|---|
//! | `outside` | what it needs from outside of the loop |
//! | `wires` | the links to peer servers |
//! | `names` | what programs ask by the name of an object |
//! | `line` | whose question of these the directory is asked next |
//! | `joint` | the objects that several servers share |
//! | `types` | the types of these objects, which all servers must know |
//! | `doubt` | names of this server that others may have got |
//! | `known` | objects as the directory has them |
//! | `roll` | who is a member, from lists and changes that cross |
//! | `discarding` | objects that go when nobody has them open |
//! | `gathering` | what a server that ends gathers of what it keeps on its disk |
//! | `handing` | what a server that ends hands over |
//! | `complaint` | what is said now and then |
//! | `home` | shared objects that one server keeps on its disk |

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use quire_core::dsm::message::ServerId;

use super::Around;
use super::core::PeerId;
use super::object::{Object, Part, Refused};
use super::said::Said;
use crate::directory::asked::Reply;
use crate::directory::{
    Change, Desk, DirectoryError, Entry, Inbox, Lease, Matter, Member, Shared, View, Watcher,
    name_of,
};
use crate::link::lease::Terms;
use crate::link::{Address, Established, LinkError, LinkId, Links, Security};
use crate::store::ObjectId;
use crate::wire::Control;
use crate::wire::control::{self, Answer, Name, Refusal, RequestId, SchedulerKind, Welcome};

mod complaint;
mod discarding;
mod doubt;
mod gathering;
mod handing;
mod home;
mod joint;
mod known;
mod line;
mod names;
mod outside;
mod roll;
mod types;
mod wires;

use complaint::Complaint;
use discarding::Discarding;
use doubt::Doubt;
use gathering::Gathering;
use home::Homes;
use joint::Joint;
use line::Line;
use names::{Lister, Listing, Waiting, Wanted};
pub use outside::{Connect, Numbers, Outside};
use roll::Roll;
use wires::{Came, Wires};

/// Between two attempts to ask a directory that does not answer.
const AGAIN: Duration = Duration::from_millis(250);

/// Where the directory is.
#[derive(Clone)]
pub enum Host {
    /// Inside of this server, which others ask for it.
    This,
    /// Somewhere else.
    Another,
    /// At all servers of a list; what their copies say goes there.
    All(Inbox),
}

/// How a server is joined to others.
pub struct Joining {
    /// Through what they agree.
    pub directory: Shared,
    /// Where that is.
    pub host: Host,
    /// Where others reach this server.
    pub address: Address,
    /// The names that certificates of peer servers are for.
    pub names: Vec<Name>,
    /// How links to them are secured.
    pub security: Security,
}

/// Whether this server is a member.
enum Stage {
    /// No; it asks to become one then.
    Out(Instant),
    /// It has asked.
    Asked,
    /// It is.
    In(ServerId, Lease),
}

/// What the directory answered.
enum Told {
    Joined(ServerId, Result<Lease, DirectoryError>),
    Members(Result<Vec<Member>, DirectoryError>),
    /// What a program wanted to know.
    Program(Box<Told>),
    Found(Name, Result<Option<Entry>, DirectoryError>),
    /// A name was withdrawn, and this is behind it now.
    Behind(Name, Result<Option<Entry>, DirectoryError>),
    Listed(Vec<Lister>, Result<Vec<Entry>, DirectoryError>),
    Published(Making, Result<(), DirectoryError>),
    /// Whether it was removed by that.
    Withdrawn(PeerId, RequestId, Name, Result<bool, DirectoryError>),
    Discarded(PeerId, RequestId, Name, Result<(), DirectoryError>),
    EndedBegun(Box<Waiting>, Result<(), DirectoryError>),
    Proposed(View, Result<(), DirectoryError>),
    /// Where changes may have been missed, with `true`.
    Viewed(ObjectId, bool, Result<Option<View>, DirectoryError>),
    /// Whether this server has another number in the directory still.
    Past(ServerId, Result<bool, DirectoryError>),
    /// An object of the store has this number there, under this one of the server.
    Offered(Name, ObjectId, ServerId, Result<(), DirectoryError>),
    /// The directory has an object of this server again.
    PublishedAgain {
        key: Name,
        /// Another one has its name by now.
        is_superseded: bool,
    },
    /// For a server that asked this one.
    Asked(LinkId, u64, Reply),
    Nothing,
}

/// An object that somebody makes.
struct Making {
    peer: PeerId,
    number: RequestId,
    /// What it is to be. Its name is its key.
    info: control::Object,
    owner: String,
    id: ObjectId,
    home: ServerId,
    how: How,
}

/// How an object is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// It is only begun: it has no size yet.
    Begun,
    /// As a new one.
    New,
    /// Of what is begun and has the name.
    Adopted,
    /// By the key of what was begun.
    Sized,
    /// The same, where that was removed meanwhile: it has no name.
    Unnamed,
}

impl Making {
    /// Whether several servers are to share it.
    fn is_joint(&self) -> bool {
        self.info.scheduler == SchedulerKind::Distributed
    }

    /// The object, of which this server has the first part where several are to share it. It is there
    /// until who gives it its size has opened it.
    fn object(&self) -> Result<Object, Refused> {
        let part = self.is_joint().then_some(Part {
            me: self.home,
            of: self.home,
        });
        let mut object = Object::new(self.info.clone(), self.owner.clone(), part)?;
        object.is_discarded = self.how == How::Unnamed;
        if matches!(self.how, How::Sized | How::Unnamed) {
            object.new.begin();
        }
        Ok(object)
    }

    /// What is answered to who has made it.
    fn made(&self) -> Answer {
        match self.how {
            How::Begun => Answer::Begun {
                exact: self.info.name.exact(),
            },
            How::New | How::Adopted => Answer::Done,
            How::Sized | How::Unnamed => Answer::Sized {
                is_removed: self.how == How::Unnamed,
            },
        }
    }
}

/// The peer servers of a server.
pub(super) struct PeerServers {
    directory: Shared,
    clock: fn() -> Instant,
    numbers: Numbers,
    desk: Desk<Told>,
    changes: Receiver<Change>,
    host: Host,
    /// Servers that want to hear what changes in the directory of this one.
    watching: BTreeSet<LinkId>,
    address: String,
    /// How long programs and servers have leases.
    lease: Duration,
    stage: Stage,
    wires: Wires,
    members: BTreeMap<ServerId, Member>,
    roll: Roll,
    /// Servers that are gone from the directory, and since when that is known.
    left: BTreeMap<ServerId, Instant>,
    /// Servers that something names, and of which nothing was heard: a list of all was asked for.
    strangers: BTreeSet<ServerId>,
    joints: BTreeMap<ObjectId, Joint>,
    ids: BTreeMap<Name, ObjectId>,
    waiting: Vec<Waiting>,
    listing: Listing,
    /// What programs ask of the directory.
    line: Line<Wanted>,
    /// Names that the directory is asked for.
    sought: BTreeSet<Name>,
    /// Those of them of which something was heard since: what the directory answers may be older.
    outdated: BTreeSet<Name>,
    /// Those of them whose servers are no members as far as is known, until all are.
    unsure: BTreeSet<Name>,
    /// Whether others may have got the names of objects that only this server has.
    doubt: Doubt,
    /// Names that were begun here, and have no size yet, as far as is known.
    begun: BTreeSet<String>,
    /// Views are to be looked at, now or then.
    look_at: Option<Instant>,
    homes: Homes,
    /// What this server gathers, as it ends.
    gathering: Gathering,
    discarding: Discarding,
    /// This server ends.
    is_ending: bool,
    /// Peer servers that end, too.
    parting: BTreeSet<ServerId>,
    /// The last thing that it does, until that ends.
    awaited: Option<Receiver<()>>,
    /// How often it has handed over an object.
    handoffs: u64,
    /// How often peer servers took something, as this server ends.
    inherited: u64,
    /// What is wrong with the directory.
    complaint: Complaint,
}

impl PeerServers {
    /// A server that joins others through a directory; with the number of its store, if it
    /// has one.
    pub fn new(
        joining: Joining,
        store: Option<u64>,
        lease: Duration,
        clock: fn() -> Instant,
        outside: Outside,
    ) -> io::Result<PeerServers> {
        let (changes, heard) = mpsc::channel();
        let watcher = Watcher {
            changes,
            wake: outside.wake.clone(),
        };
        joining.directory.watch(watcher).map_err(io::Error::other)?;
        Ok(PeerServers {
            clock,
            numbers: outside.numbers,
            desk: Desk::with(outside.clerk, outside.wake),
            directory: joining.directory,
            changes: heard,
            host: joining.host,
            watching: BTreeSet::new(),
            address: joining.address.to_string(),
            lease,
            stage: Stage::Out(clock()),
            wires: Wires::new(
                (joining.security, joining.names),
                lease,
                clock,
                outside.connect,
            ),
            members: BTreeMap::new(),
            roll: Roll::default(),
            left: BTreeMap::new(),
            strangers: BTreeSet::new(),
            joints: BTreeMap::new(),
            ids: BTreeMap::new(),
            waiting: Vec::new(),
            listing: Listing::default(),
            line: Line::default(),
            sought: BTreeSet::new(),
            outdated: BTreeSet::new(),
            unsure: BTreeSet::new(),
            doubt: Doubt::default(),
            begun: BTreeSet::new(),
            look_at: None,
            homes: Homes::new(store),
            gathering: Gathering::default(),
            discarding: Discarding::default(),
            is_ending: false,
            parting: BTreeSet::new(),
            awaited: None,
            handoffs: 0,
            inherited: 0,
            complaint: Complaint::default(),
        })
    }

    fn me(&self) -> Option<ServerId> {
        match self.stage {
            Stage::In(me, _) => Some(me),
            _ => None,
        }
    }

    /// Whether others ask this server for the directory.
    fn is_host(&self) -> bool {
        matches!(self.host, Host::This)
    }

    /// Whether a link is one to a server.
    pub fn has(&self, link: LinkId) -> bool {
        self.wires.has(link)
    }

    /// A server has connected. Whether it may stay.
    pub fn greeted(&mut self, link: LinkId, who: &Established) -> Result<(), Refusal> {
        self.wires.greeted(link, who)
    }

    /// A server to which this one connected has welcomed it.
    pub fn welcomed(&mut self, links: &mut Links, link: LinkId, welcome: &Welcome) {
        self.wires.welcomed(links, link, welcome);
        self.look_soon();
    }

    /// A link to a server has ended.
    pub fn closed(&mut self, a: &mut Around<'_>, link: LinkId, why: &LinkError) {
        self.watching.remove(&link);
        self.wires.tell(link, why);
        if let Some(peer_server) = self.wires.ended(link) {
            self.broke(a, peer_server);
        }
    }

    /// Something came over a link to a server.
    pub fn heard(&mut self, a: &mut Around<'_>, link: LinkId, message: Control) {
        let Control::PeerServer {
            from, body, data, ..
        } = message
        else {
            let why = format!("{:?} is nothing that a server says", message.kind());
            return a.links.close(link, &why);
        };
        match self.wires.came(link, from, (&body, data)) {
            Ok(all) => {
                for came in all {
                    // One of them may have ended the link.
                    if self.wires.has(link) {
                        self.obey(a, link, came);
                    }
                }
            }
            Err(garbage) => {
                tracing::warn!("{garbage}");
                a.links.close(link, &garbage.to_string());
            }
        }
    }

    fn obey(&mut self, a: &mut Around<'_>, link: LinkId, (from, said, page): Came) {
        match (from, said) {
            (Some(from), Said::Introduce { to }) => {
                if let Some(broken) = self.wires.introduced(a.links, link, (from, to)) {
                    self.broke(a, broken);
                }
                if self.wires.has(link) {
                    self.wires.up(a.links, from);
                }
                self.look_soon();
            }
            (_, Said::Ask { number, question }) if self.is_host() => {
                self.desk.ask(question.matter(), move |directory| {
                    Told::Asked(link, number, question.ask(directory))
                });
            }
            (_, Said::Watch) if self.is_host() => {
                self.watching.insert(link);
                let missed = Said::News(Change::Missed.into());
                self.wires.reply(a.links, link, &missed);
            }
            (_, Said::Replica(letter)) => match &self.host {
                Host::All(inbox) => inbox.hear(*letter),
                _ => a.links.close(
                    link,
                    "this server has no copy of the directory: \
                     give all servers of the list --replicate-directory",
                ),
            },
            (Some(from), said) => self.obey_peer_server(a, link, (from, said, page)),
            (None, _) => a
                .links
                .close(link, "this server keeps no directory for others"),
        }
    }

    /// The directory has answered, or something has changed in it.
    pub fn woken(&mut self, a: &mut Around<'_>) {
        loop {
            let told = self.desk.answer();
            // What an answer knows of has been said before it.
            while let Ok(change) = self.changes.try_recv() {
                self.changed(a, change);
            }
            match told {
                Some(told) => self.told(a, told),
                None => return,
            }
        }
    }

    fn changed(&mut self, a: &mut Around<'_>, change: Change) {
        if self.is_host() && change != Change::Missed {
            let news = Said::News(change.clone().into());
            for link in &self.watching {
                self.wires.reply(a.links, *link, &news);
            }
        }
        match change {
            Change::Joined(member) => {
                self.roll.changed(member.id, Some(&member));
                self.joined(member);
            }
            Change::Left(id) => {
                self.roll.changed(id, None);
                self.left(a, id);
            }
            Change::Published(entry) if entry.is_begun() => {}
            Change::Published(entry) if entry.is_removed => {
                self.answers_are_old(Some(&entry.object.is.name));
                self.was_discarded(a, entry.object.id);
            }
            Change::Published(entry) => {
                self.begun.remove(name_of(&entry.object.is.name));
                self.retry_away(a, Some(&entry.object.is.name));
            }
            Change::Withdrawn(slot) => {
                self.begun.remove(slot.as_str());
                self.answers_are_old(Some(&slot));
                self.look_behind(&slot);
            }
            Change::Viewed(view) => self.viewed(a, view, true),
            Change::Missed => {
                self.call_the_roll();
                self.answers_are_old(None);
                self.retry_away(a, None);
                for object in self.joints.keys().copied() {
                    self.desk.ask(Matter::Views, move |directory| {
                        Told::Viewed(object, true, directory.view(object))
                    });
                }
            }
        }
        self.look_soon();
    }

    /// Something went from a name, or from an exact spelling. What this server has may have been
    /// removed, and be there still: the directory is asked.
    fn look_behind(&self, slot: &str) {
        let name = name_of(slot);
        for key in self.ids.keys().filter(|key| name_of(key.as_str()) == name) {
            let key = key.clone();
            self.desk.ask(Matter::Names, move |directory| {
                let found = directory.find(key.exact().as_str());
                Told::Behind(key, found)
            });
        }
    }

    /// Something went from a name, or from an exact spelling, or maybe from any: what the directory is
    /// being asked for by it is to be asked once more.
    fn answers_are_old(&mut self, slot: Option<&str>) {
        let is_it =
            |asked: &&Name| slot.is_none_or(|slot| name_of(asked.as_str()) == name_of(slot));
        let old = self.sought.iter().filter(is_it).cloned();
        self.outdated.extend(old);
    }

    fn call_the_roll(&mut self) {
        self.roll.asked();
        self.desk.ask(Matter::Views, |directory| {
            Told::Members(directory.members())
        });
    }

    /// Whether a server is no member; `None` where that is not known yet. News of one that has
    /// just come may take longer than the first answer that names it, so that all are asked for then.
    fn is_absent(&mut self, id: ServerId) -> Option<bool> {
        match (self.members.contains_key(&id), self.left.contains_key(&id)) {
            (true, _) => Some(false),
            (false, true) => Some(true),
            (false, false) => {
                if self.strangers.insert(id) {
                    self.call_the_roll();
                }
                None
            }
        }
    }

    fn joined(&mut self, member: Member) {
        if Some(member.id) != self.me() {
            self.wires.joined(&member);
        }
        self.left.remove(&member.id);
        self.members.insert(member.id, member);
    }

    fn left(&mut self, a: &mut Around<'_>, id: ServerId) {
        self.members.remove(&id);
        a.core.passes_what_was_unheard();
        self.parting.remove(&id);
        self.left.entry(id).or_insert_with(self.clock);
        self.wires.left(id);
        self.knows_of_discarded(a, id, None);
        self.programs_may_come(a, id);
        self.hand_over_anew(id);
        self.home_left(a, id);
        if Some(id) == self.me() {
            self.start_anew(a, "the directory has put this server out");
        }
    }

    fn complain(&mut self, text: &str) {
        if self.complaint.is_due((self.clock)(), text) {
            tracing::warn!("{text}");
        }
    }

    fn told(&mut self, a: &mut Around<'_>, told: Told) {
        match told {
            Told::Joined(me, Ok(lease)) => self.is_in(a, me, lease),
            Told::Joined(_, Err(error)) => {
                self.complain(&format!("this server cannot join the others: {error}"));
                self.stage = Stage::Out((self.clock)() + AGAIN);
            }
            Told::Members(Ok(members)) => self.all_members(a, members),
            Told::Members(Err(error)) => {
                self.complain(&error.to_string());
                self.desk.ask_later(Matter::Views, AGAIN, |directory| {
                    Told::Members(directory.members())
                });
            }
            Told::Program(told) => {
                self.line.answered();
                self.ask_next();
                self.told(a, *told);
            }
            Told::Found(name, found) => self.found(a, name, found),
            Told::Behind(name, found) => {
                let is_mine = found
                    .ok()
                    .flatten()
                    .is_some_and(|entry| self.ids.get(&name) == Some(&entry.object.id));
                if !is_mine {
                    self.withdrawn(a, &name);
                }
            }
            Told::Listed(wanted, entries) => self.listed(a, wanted, entries),
            Told::Published(making, done) => self.published(a, making, done),
            Told::Withdrawn(peer, number, name, done) => {
                self.removed(a, (peer, number), &name, done);
            }
            Told::PublishedAgain { key, is_superseded } => {
                self.published_again(a, &key, is_superseded);
            }
            Told::Discarded(peer, number, name, done) => {
                self.discarded(a, (peer, number), &name, done);
            }
            Told::EndedBegun(waiting, done) => self.ended_begun(a, *waiting, done),
            Told::Proposed(view, done) => self.proposed(a, view, done),
            Told::Viewed(object, missed, view) => self.view_read(a, object, missed, view),
            Told::Past(me, is_there) => self.past(me, is_there),
            Told::Offered(name, id, home, done) => self.offered(a, name, (id, home), done),
            Told::Asked(link, number, reply) => {
                let told = Said::Told { number, reply };
                self.wires.reply(a.links, link, &told);
            }
            Told::Nothing => {}
        }
        self.look_soon();
    }

    /// This server is a member.
    fn is_in(&mut self, a: &mut Around<'_>, me: ServerId, lease: Lease) {
        self.stage = Stage::In(me, lease);
        self.complaint.is_over();
        self.wires.start(Some(me), a.links);
        for member in self.members.values().filter(|member| member.id != me) {
            self.wires.joined(member);
        }
        self.call_the_roll();
        self.publish_again(a.core, me);
        self.offer_all(a);
        self.retry_all(a);
    }

    fn all_members(&mut self, a: &mut Around<'_>, list: Vec<Member>) {
        let all = self.roll.answered(list);
        let gone = self.members.keys().filter(|id| !all.contains_key(id));
        for id in gone.copied().collect::<Vec<_>>() {
            self.left(a, id);
        }
        for member in all.into_values() {
            self.joined(member);
        }
        if self.roll.is_current() {
            let now = (self.clock)();
            for id in std::mem::take(&mut self.strangers) {
                if !self.members.contains_key(&id) {
                    self.left.entry(id).or_insert(now);
                }
            }
            for name in std::mem::take(&mut self.unsure) {
                self.seek_again(name);
            }
        }
    }

    /// Gives up what this server has of shared objects, and joins under another number.
    fn start_anew(&mut self, a: &mut Around<'_>, why: &str) {
        let Stage::In(_, lease) =
            std::mem::replace(&mut self.stage, Stage::Out((self.clock)() + AGAIN))
        else {
            return;
        };
        tracing::error!("{why}; what it has of shared objects is given up");
        self.doubt.begin((self.clock)() + self.lease);
        for joint in std::mem::take(&mut self.joints).into_values() {
            match joint.home.is_some() && joint.queue.is_none() {
                true => self.begin_anew(a, &joint.name, why),
                false => a.core.drop_object(&joint.name, why, a.out),
            }
        }
        self.ids.clear();
        self.begun.clear();
        self.wires.start(None, a.links);
        self.nobody_is_told(a);
        // It waits for its thread, which may wait for the directory.
        self.desk.ask(Matter::Views, move |_| {
            drop(lease);
            Told::Nothing
        });
    }

    /// Asks to become a member.
    fn join(&mut self) {
        let id = ServerId((self.numbers)());
        let member = Member {
            id,
            address: self.address.clone(),
        };
        let (directory, length) = (self.directory.clone(), self.lease);
        self.stage = Stage::Asked;
        let (clerk, clock) = (self.desk.clerk(), self.clock);
        self.desk.ask(Matter::Views, move |_| {
            let keep = |renewal| clerk.keep(renewal);
            let lease = Lease::take_by(keep, clock, directory, (&member, length));
            Told::Joined(id, lease)
        });
    }

    /// Whether the lease of this server is over; then it starts anew. To be called before
    /// anything that came is obeyed.
    pub fn look_at_lease(&mut self, a: &mut Around<'_>, now: Instant) {
        if let Stage::In(_, lease) = &self.stage
            && lease.is_over(now)
        {
            self.start_anew(a, "this server's lease in the directory is over");
        }
    }

    /// The machine was asleep for so long. So was a directory that is in this server.
    pub fn slept(&mut self, a: &mut Around<'_>, length: Duration) {
        let now = (self.clock)();
        if let (Stage::In(_, lease), false) = (&self.stage, self.is_host()) {
            lease.slept(now, length);
        }
        self.look_at_lease(a, now);
    }

    /// When its lease ends, if it has one.
    pub fn lease_ends(&self) -> Option<Instant> {
        match &self.stage {
            Stage::In(_, lease) => Some(lease.ends()),
            Stage::Out(_) | Stage::Asked => None,
        }
    }

    /// Views are to be looked at in this turn.
    fn look_soon(&mut self) {
        self.look_at = Some((self.clock)());
    }

    /// When something is due.
    pub fn deadline(&self) -> Option<Instant> {
        let stage = match &self.stage {
            Stage::Out(at) => Some(*at),
            Stage::Asked => None,
            Stage::In(_, lease) => Some(lease.ends()),
        };
        let waiting = self.waiting.iter().map(|waiting| waiting.until).min();
        let offer = self.homes.open_at;
        let unused = self.discarding.deadline();
        let (wires, doubt) = (self.wires.deadline(), self.doubt.deadline());
        let all = [stage, waiting, self.look_at, wires, offer, unused, doubt];
        all.into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn turn_ends(&mut self, a: &mut Around<'_>, now: Instant) {
        self.look_at_lease(a, now);
        if matches!(self.stage, Stage::Out(at) if at <= now) {
            self.join();
        }
        self.wires.connect(a.links, now);
        if self.doubt.is_over(now) {
            self.retry_all(a);
        }
        self.give_up_waiting(a, now);
        self.offer(a, now);
        self.send_parcels(a);
        self.go_on_gathering(a, now);
        self.look_for_unused(a, now);
        let is_due = self.look_at.is_some_and(|at| at <= now);
        if is_due {
            self.look_at = None;
        }
        if self.is_ending {
            self.hand_over(a, now);
        } else if is_due {
            self.look_at_views(a, now);
        }
    }

    /// Sends what was said to peer servers, as the turn is over.
    pub fn send(&mut self, a: &mut Around<'_>) {
        self.wires.turn_ends(a.links);
    }

    /// Leaves the directory, as this server ends: others need not wait until the lease is
    /// over.
    pub fn leave(&mut self) {
        let Stage::In(_, lease) = std::mem::replace(&mut self.stage, Stage::Asked) else {
            return;
        };
        let (left, has_left) = mpsc::channel::<()>();
        self.desk.ask(Matter::Views, move |_| {
            drop(lease);
            drop(left);
            Told::Nothing
        });
        self.awaited = Some(has_left);
    }

    /// Ends this server's copy of the directory, if it has one: another one is to lead.
    pub fn end_copy(&mut self) {
        if let Host::All(inbox) = &self.host {
            self.awaited = inbox.end();
        }
    }

    /// Whether that takes its time still. Links are needed for it.
    pub fn is_awaited(&mut self) -> bool {
        let awaited = self.awaited.as_ref();
        // The channel ends when it is done.
        awaited.is_some_and(|done| done.try_recv() == Err(TryRecvError::Empty))
    }

    /// So long after a server left the directory its programs have certainly stopped.
    fn certain(&self) -> Duration {
        let terms = Terms::new(self.lease);
        terms.lease + terms.margin
    }
}
