//! The thread that speaks with servers on behalf of the program's threads, and what it has:
//! links, open objects, and their mappings.
//!
//! It has a descriptor table of its own, with the threads that it starts: links, userfaultfds,
//! and the files of copies that a server shares lie there. A program that closes all its
//! descriptors does not reach the links, sees no foreign numbers, and a child that it forks has
//! none of them: when the program ends, servers know at once. Nothing of the program's lies there
//! either (`streams`). So nothing here may be used or dropped on another thread. Signals are
//! blocked.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{self, Receiver, RecvError, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use quire_core::dsm::message::Access;
use quire_core::dsm::sync;
use quire_core::units::{AddrRange, Bytes, ObjectOffset, VirtAddr};
use quire_dsm::attachment::{Attachment, Attachments};
use quire_dsm::client::{Client, ClientError, Known, Options, Place, Region, Shared};
use quire_dsm::node::{Part, RangeLock};
use quire_dsm::wire::control::{FailureKind, Rights};
use quire_linux::thread::block_program_signals;

use crate::ages::Entry;
use crate::ending;
use crate::leaving;
use crate::loss;
use crate::signals::{self, Blocked};
use crate::state;
use crate::streams;
use crate::taken::Copies;
use crate::trouble::{Result, Trouble};
use crate::uses::Uses;

mod descriptors;
mod objects;
mod segments;

pub use objects::{Found, Meaning};
use objects::{asked, only_read};

/// So often it is looked whether the program has closed its descriptors of an object that is open for
/// nothing else.
const CLOSING: Duration = Duration::from_secs(1);

/// So long a fork waits until servers are told that a child comes, where their links are busy.
const SENDING: Duration = Duration::from_millis(100);

/// So often who waits for a server sees whether the program is to end.
const OBEYING: Duration = Duration::from_millis(100);

type Job = Box<dyn FnOnce(&mut Works) + Send>;

/// The way to the thread.
pub struct Host {
    jobs: Sender<Job>,
}

impl Host {
    /// Starts the thread.
    pub fn start(attachments: &'static Attachments) -> Result<Host> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let run = move || {
            state::is_of_library_now();
            leaving::is_own_now();
            streams::let_go();
            streams::log();
            // Standard error is not where panics would be told.
            std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
            let mut works = Works::new(attachments);
            while let Ok(job) = next(&inbox, &works) {
                match job {
                    Some(job) => job(&mut works),
                    None => works.let_go(),
                }
            }
        };
        let last = jobs.clone();
        let give_back = move || {
            state::is_of_library_now();
            let (done, is_done) = mpsc::channel();
            let finish = move |works: &mut Works| {
                works.finish();
                // Who waits is there until then.
                let _ = done.send(());
            };
            if last.send(Box::new(finish)).is_ok() {
                let _ = is_done.recv();
            }
        };
        // Threads inherit it. What the C library sends its own threads must come through.
        let blocked = block_program_signals();
        let started = thread::Builder::new().name("quire-shm".into()).spawn(run);
        let started = started.and_then(|_| ending::start(give_back));
        drop(blocked);
        let failed = |error: io::Error| Trouble::new(libc::EAGAIN, format!("no thread: {error}"));
        started.map_err(failed)?;
        Ok(Host { jobs })
    }

    /// Has something done, and waits for it. What goes wrong is logged. The thread that waits
    /// has all signals blocked, and had some before.
    pub fn run<T: Send + 'static>(
        &self,
        before: &Blocked,
        job: impl FnOnce(&mut Works) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = mpsc::channel();
        let job = move |works: &mut Works| {
            let done = job(works);
            if let Err(trouble) = &done
                && trouble.is_worth_telling()
            {
                tracing::error!("{}", trouble.text);
            }
            // Who waits is there until it has the answer.
            let _ = reply.send(done);
        };
        let ended = || Trouble::new(libc::EIO, "the thread quire-shm has ended");
        self.jobs.send(Box::new(job)).map_err(|_| ended())?;
        loop {
            match answer.recv_timeout(OBEYING) {
                Ok(done) => return done,
                Err(RecvTimeoutError::Timeout) => signals::obey(before),
                Err(RecvTimeoutError::Disconnected) => return Err(ended()),
            }
        }
    }
}

/// What is to be done next; nothing where it is time to look for closed descriptors.
fn next(inbox: &Receiver<Job>, works: &Works) -> std::result::Result<Option<Job>, RecvError> {
    if !works.waits_for_closing() {
        return inbox.recv().map(Some);
    }
    match inbox.recv_timeout(CLOSING) {
        Ok(job) => Ok(Some(job)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(RecvError),
    }
}

/// A part of an object that is to be mapped, in bytes of the object.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub entry: Entry,
    pub offset: u64,
    pub len: u64,
    pub at: At,
    /// Whether the program is going to write.
    pub write: bool,
}

/// Where.
#[derive(Clone, Copy, Debug)]
pub enum At {
    Anywhere,
    /// Here if nothing is there, else anywhere.
    Hint(u64),
    /// Here; nothing must be there.
    Free(u64),
    /// Here, over what the program has given up.
    Over(u64),
}

/// What was mapped.
#[derive(Debug)]
pub struct Placed {
    /// What it is called here.
    pub number: u64,
    /// Where it starts.
    pub start: u64,
    /// Its addresses, for whoever changes what is allowed there.
    pub addresses: RangeLock,
    /// Whether the program may write.
    pub writable: bool,
    /// How this process has the object.
    pub copies: Copies,
    /// What a child needs to know of the object, where it was opened for this.
    pub known: Option<Known>,
}

struct Open {
    shared: Shared,
    writable: bool,
    /// How many mappings there are of it.
    mappings: usize,
    /// Whether there were some since it was last given back as a whole.
    was_mapped: bool,
}

/// What the thread has.
pub struct Works {
    attachments: &'static Attachments,
    regions: BTreeMap<u64, (Entry, Region)>,
    open: BTreeMap<Entry, Open>,
    /// By the servers' addresses, as they are given.
    clients: BTreeMap<String, Client>,
    /// What was removed while this program had it open.
    removed: BTreeSet<Entry>,
    /// What this process's parent had open, and this one has not.
    expected: BTreeMap<Entry, Known>,
    /// Descriptors that the program has of objects.
    uses: Uses,
    last: u64,
}

impl Works {
    fn new(attachments: &'static Attachments) -> Works {
        Works {
            attachments,
            regions: BTreeMap::new(),
            open: BTreeMap::new(),
            clients: BTreeMap::new(),
            removed: BTreeSet::new(),
            expected: BTreeMap::new(),
            uses: Uses::default(),
            last: 0,
        }
    }

    /// What stands at a place, all of which were given out by [`state::place_of`].
    fn attachment(&self, place: usize) -> &'static Attachment {
        state::attachment(place).unwrap_or_else(|| &self.attachments.list()[place])
    }

    /// The link to a server of an attachment.
    fn client(&mut self, place: usize) -> Result<&Client> {
        let servers = &self.attachment(place).servers;
        let key = servers.to_string();
        if !self.clients.contains_key(&key) {
            let client = Client::connect(self.options(place)?)?;
            self.clients.insert(key.clone(), client);
        }
        Ok(&self.clients[&key])
    }

    /// How to reach a server of an attachment.
    fn options(&self, place: usize) -> Result<Options> {
        let options = self.attachments.options(&self.attachment(place).servers);
        let mut options = options.map_err(|e| Trouble::new(libc::EACCES, e.to_string()))?;
        options.progress = Some(&ending::PROGRESS);
        options.on_loss = Some(loss::on_loss);
        Ok(options)
    }

    /// Maps a part of an object.
    pub fn map(&mut self, wanted: Wanted) -> Result<Placed> {
        let known = self.open(wanted.entry)?;
        let mapped = self.map_open(wanted);
        self.close_unused(wanted.entry);
        Ok(Placed { known, ..mapped? })
    }

    fn map_open(&mut self, wanted: Wanted) -> Result<Placed> {
        let gone = || Trouble::new(libc::EIO, "the object is not open");
        let open = self.open.get_mut(&wanted.entry).ok_or_else(gone)?;
        if wanted.write && !open.writable {
            return Err(only_read(&open.shared.info().name));
        }
        let part = Part {
            start: ObjectOffset(wanted.offset),
            len: Bytes(wanted.len),
        };
        let (shared, writable) = (&open.shared, open.writable);
        let anywhere = || shared.map(part, Place::Anywhere, writable);
        let free = |at| shared.map(part, Place::Free(VirtAddr(at)), writable);
        let region = match wanted.at {
            At::Anywhere => anywhere()?,
            At::Free(at) => free(at)?,
            At::Hint(at) => free(at).or_else(|_| anywhere())?,
            // SAFETY: the program has given up what is there: it asked for this address.
            At::Over(at) => unsafe { shared.map_over(part, VirtAddr(at), writable)? },
        };
        let copies = Copies::of(shared);
        open.mappings += 1;
        open.was_mapped = true;
        self.last += 1;
        let (start, addresses) = (region.range().start.0, region.addresses());
        self.regions.insert(self.last, (wanted.entry, region));
        Ok(Placed {
            number: self.last,
            start,
            addresses,
            writable,
            copies,
            known: None,
        })
    }

    /// Opens an object, unless it is open. What a parent has open can be had without a server.
    fn open(&mut self, entry: Entry) -> Result<Option<Known>> {
        match self.open.get(&entry) {
            // It may have been given up.
            Some(open) if open.mappings == 0 && open.shared.breaks() > 0 => self.close(entry),
            Some(_) => return Ok(None),
            None => {}
        }
        let expected = self.expected.remove(&entry);
        let (shared, writable) = match (self.open_now(entry), expected) {
            (Err(trouble), Some(known)) if trouble.errno == libc::EHOSTUNREACH => {
                (self.expect(entry, &known)?, known.is_writable())
            }
            (opened, _) => opened?,
        };
        let known = shared.known();
        let open = Open {
            shared,
            writable,
            mappings: 0,
            was_mapped: false,
        };
        self.open.insert(entry, open);
        Ok(Some(known))
    }

    /// Maps an object that the parent has open, though no server can be reached.
    fn expect(&mut self, entry: Entry, known: &Known) -> Result<Shared> {
        let servers = &self.attachment(entry.place).servers;
        let key = servers.to_string();
        if !self.clients.contains_key(&key) {
            let client = Client::connect_later(self.options(entry.place)?, known)?;
            self.clients.insert(key.clone(), client);
        }
        Ok(self.clients[&key].expect(known.clone())?)
    }

    /// Opens an object, to write to it if that is allowed.
    fn open_now(&mut self, entry: Entry) -> Result<(Shared, bool)> {
        let asked = asked(entry)?;
        let client = self.client(entry.place)?;
        let open = |write| {
            let rights = Rights { read: true, write };
            client.open(asked.clone(), rights)
        };
        match open(true) {
            Err(ClientError::Refused(failure)) if failure.kind == FailureKind::Denied => {
                Ok((open(false)?, false))
            }
            other => Ok((other?, true)),
        }
    }

    /// Unmaps what was mapped. What was written is given back when nothing is mapped of an
    /// object any more.
    pub fn unmap(&mut self, number: u64) -> Result<()> {
        self.end(number, drop)
    }

    /// The same where something else was put in its place: the addresses stay as they are.
    pub fn leave(&mut self, number: u64) -> Result<()> {
        self.end(number, Region::leave)
    }

    fn end(&mut self, number: u64, end: fn(Region)) -> Result<()> {
        let Some((entry, region)) = self.regions.remove(&number) else {
            return Ok(());
        };
        end(region);
        if let Some(open) = self.open.get_mut(&entry) {
            open.mappings -= 1;
        }
        if self.uses.has(entry) {
            self.uses.look();
        }
        self.close_unused(entry);
        Ok(())
    }

    /// Closes what is not mapped any more. Where the program still has a descriptor, what it wrote is
    /// given back.
    fn close_unused(&mut self, entry: Entry) {
        let Some(open) = self.open.get_mut(&entry).filter(|open| open.mappings == 0) else {
            return;
        };
        if !self.uses.has(entry) {
            self.close(entry);
        } else if std::mem::take(&mut open.was_mapped) {
            let given_back = open.shared.flush();
            self.told_if_lost(entry, given_back);
        }
    }

    /// Closes an object. The program goes on where what it wrote is lost: the log says so.
    fn close(&mut self, entry: Entry) {
        let Some(open) = self.open.remove(&entry) else {
            return;
        };
        self.removed.remove(&entry);
        self.told_if_lost(entry, open.shared.close());
    }

    fn told_if_lost(&self, entry: Entry, given_back: std::result::Result<(), ClientError>) {
        if let Err(error) = given_back {
            let name = &self.attachment(entry.place).object;
            tracing::error!("{name}: what was written may be lost: {error}");
        }
    }

    /// Has what lies at some addresses of a mapping brought, as it will be touched soon.
    pub fn need(&mut self, number: u64, addresses: AddrRange, access: Access) -> Result<()> {
        if let Some((_, region)) = self.regions.get(&number) {
            region.will_need(addresses, access);
        }
        Ok(())
    }

    /// Asks the server of an object that is open about what programs synchronise by; nothing where it
    /// cannot be reached now.
    pub fn synchronise(
        &mut self,
        entry: Entry,
        request: sync::Request,
    ) -> Result<Option<sync::Answer>> {
        let gone = || Trouble::new(libc::EIO, "the object is not open");
        let open = self.open.get(&entry).ok_or_else(gone)?;
        match open.shared.synchronise(request) {
            Err(ClientError::Unreachable { .. }) => Ok(None),
            answer => Ok(Some(answer?)),
        }
    }

    /// Gives back all that was written to an object, and waits until the server has it.
    pub fn flush(&mut self, entry: Entry) -> Result<()> {
        let Some(open) = self.open.get(&entry) else {
            return Ok(());
        };
        Ok(open.shared.flush()?)
    }

    /// The same with all objects.
    pub fn flush_all(&mut self) -> Result<()> {
        let mut behind = self.open.len();
        for entry in self.open.keys().copied().collect::<Vec<_>>() {
            behind -= 1;
            ending::gives_back(entry.place, behind);
            if let Err(trouble) = self.flush(entry) {
                tracing::error!("what was written is lost: {}", trouble.text);
            }
        }
        Ok(())
    }

    /// The process ends: what was written is given back, and what was removed is used no more, so that it
    /// goes before the program does.
    fn finish(&mut self) {
        self.clients.values().for_each(Client::process_ends);
        // What goes wrong is logged.
        let _ = self.flush_all();
        for entry in std::mem::take(&mut self.removed) {
            self.regions.retain(|_, (of, _)| *of != entry);
            self.close(entry);
        }
    }

    /// The process forks. A child has these mapped, and has the descriptors. What servers are told of that is
    /// on its way when this returns, also if the process is killed then.
    pub fn child_comes(&mut self, mapped: &BTreeSet<Entry>) -> Result<()> {
        if self.open.keys().any(|entry| !mapped.contains(entry)) {
            self.uses.look();
        }
        for (entry, open) in &self.open {
            if mapped.contains(entry) || self.uses.has(*entry) {
                open.shared.child_comes();
            }
        }
        self.send_now();
        Ok(())
    }

    /// The process is a forked child, and has all that its parent had.
    pub fn child_came(&mut self) -> Result<()> {
        self.open.values().for_each(|open| open.shared.child_came());
        self.send_now();
        Ok(())
    }

    /// Waits until what servers are told is on its way.
    fn send_now(&self) {
        let (sent, all_sent) = mpsc::channel();
        let clients = self.clients.values();
        clients.for_each(|client| client.send_now(sent.clone()));
        drop(sent);
        // It ends when nobody has an end of it any more.
        let _ = all_sent.recv_timeout(SENDING);
    }

    /// Takes over, in a forked child, what its parent has open.
    pub fn inherit(&mut self, open: BTreeMap<Entry, Known>) -> Result<()> {
        self.expected = open;
        Ok(())
    }
}
