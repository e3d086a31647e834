//! Machines in one process: each has a cache with a memory file of its own and a thread
//! that runs it. A toy server joins them, without a network.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use quire_core::dsm::kernel::{Settings, Space};
use quire_core::dsm::message::{FromKernel, KernelId, PageNumber, ToKernel};
use quire_core::units::{Bytes, ObjectOffset, VirtAddr};
use quire_dsm::node::{self, Broken, Cache, Exchange, Mapping, Part, Shape};
use quire_dsm::wire::{Contents, Pool};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use super::toy::Toy;

/// Lets tests skip where the kernel lacks what they need.
pub fn is_possible() -> bool {
    use quire_linux::uffd::{Scope, shared};
    match shared::open() {
        Ok((_, Scope::Full)) => true,
        other => {
            eprintln!("skipped: no full userfaultfd for shared memory here: {other:?}");
            false
        }
    }
}

/// What has come for a machine.
struct Inbox {
    messages: Mutex<VecDeque<ToKernel<Contents>>>,
    ready: OwnedFd,
}

/// The server, and all links to it.
pub struct Net {
    server: Mutex<Toy<Contents>>,
    inboxes: Vec<Inbox>,
    /// Whether the server says nothing any more.
    pub mute: AtomicBool,
    /// Messages of machines.
    pub messages: AtomicU64,
    /// Microseconds that each of them takes.
    pub way: AtomicU64,
    /// Pages whose contents came to where they belong.
    pub placed: AtomicU64,
}

impl Net {
    pub fn new(machines: usize) -> Arc<Net> {
        let inbox = || Inbox {
            messages: Mutex::new(VecDeque::new()),
            ready: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .unwrap(),
        };
        Arc::new(Net {
            server: Mutex::new(Toy::new()),
            inboxes: (0..machines).map(|_| inbox()).collect(),
            mute: AtomicBool::new(false),
            messages: AtomicU64::new(0),
            way: AtomicU64::new(0),
            placed: AtomicU64::new(0),
        })
    }

    /// What the server has of a page.
    pub fn content(&self, page: u64) -> Option<Contents> {
        self.server.lock().unwrap().content(PageNumber(page))
    }

    /// The server hears that a machine is gone.
    pub fn gone(&self, machine: usize) {
        let mut server = self.server.lock().unwrap();
        server.gone(KernelId(machine as u64));
        self.inboxes[machine].messages.lock().unwrap().clear();
        self.deliver(&mut server);
    }

    /// The server tells a machine something out of the order.
    pub fn tell(&self, machine: usize, message: ToKernel<Contents>) {
        let mut server = self.server.lock().unwrap();
        server.out.push((KernelId(machine as u64), message));
        self.deliver(&mut server);
    }

    fn hear(&self, machine: usize, message: FromKernel<Contents>) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(self.way.load(Ordering::Relaxed)));
        let mut server = self.server.lock().unwrap();
        server.hear(KernelId(machine as u64), message);
        self.deliver(&mut server);
    }

    /// With the server locked, so that messages stay in order.
    fn deliver(&self, server: &mut Toy<Contents>) {
        for (to, message) in std::mem::take(&mut server.out) {
            if !self.mute.load(Ordering::SeqCst) {
                let inbox = &self.inboxes[to.0 as usize];
                inbox.push(message);
                inbox.wake();
            }
        }
    }
}

/// Pages that come in one message at most, as with real servers.
const TOGETHER: u32 = 32;

impl Inbox {
    /// What is said of a page goes with what was said of the page before it, while that waits.
    fn push(&self, message: ToKernel<Contents>) {
        let mut messages = self.messages.lock().unwrap();
        let last = messages.back_mut();
        let rest = match last.filter(|last| last.pages().count < TOGETHER) {
            Some(last) => last.append(message),
            None => Some(message),
        };
        messages.extend(rest);
    }

    fn wake(&self) {
        rustix::io::write(&self.ready, &1u64.to_ne_bytes()).unwrap();
    }
}

/// A machine's end of its link.
pub struct Port {
    net: Arc<Net>,
    machine: usize,
}

impl Exchange for Port {
    fn send(&mut self, message: FromKernel<Contents>) {
        self.net.hear(self.machine, message);
    }

    fn receive(&mut self) -> Option<ToKernel<Contents>> {
        let inbox = &self.net.inboxes[self.machine];
        inbox.messages.lock().unwrap().pop_front()
    }
}

type Job = Box<dyn FnOnce(&mut Cache, &mut Port) + Send>;

pub struct Machine {
    net: Arc<Net>,
    number: usize,
    file: OwnedFd,
    size: Bytes,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<Result<(), Broken>>>,
}

impl Machine {
    pub fn start(net: &Arc<Net>, number: usize, shape: &Shape) -> Machine {
        Machine::start_with(net, number, shape, &shape.settings())
    }

    pub fn start_with(
        net: &Arc<Net>,
        number: usize,
        shape: &Shape,
        settings: &Settings,
    ) -> Machine {
        let mut cache = Cache::of_this_process(shape.page, settings.clone(), Pool::new()).unwrap();
        // Every other one lends what it gives back, and copies it before it changes.
        cache.send_in_place(number.is_multiple_of(2));
        let file = cache.file().try_clone_to_owned().unwrap();
        let (jobs, orders) = mpsc::channel();
        let port = Port {
            net: Arc::clone(net),
            machine: number,
        };
        Machine {
            net: Arc::clone(net),
            number,
            file,
            size: shape.size,
            jobs: Some(jobs),
            thread: Some(std::thread::spawn(move || run(cache, port, &orders))),
        }
    }

    /// How many pages of all machines have come to where they belong.
    pub fn placed(&self) -> u64 {
        self.net.placed.load(Ordering::Relaxed)
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// All of the object.
    pub fn part(&self) -> Part {
        Part {
            start: ObjectOffset(0),
            len: self.size,
        }
    }

    /// Does something with the cache, in its thread.
    pub fn with<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Cache, &mut Port) -> R + Send + 'static,
    ) -> R {
        let (answer, answers) = mpsc::channel();
        let job: Job = Box::new(move |cache, port| answer.send(job(cache, port)).unwrap());
        self.jobs.as_ref().unwrap().send(job).unwrap();
        self.net.inboxes[self.number].wake();
        answers.recv().unwrap()
    }

    pub fn add(&self, uffd: OwnedFd, base: VirtAddr, part: Part) -> Space {
        self.with(move |cache, _| cache.add(uffd, base, part))
    }

    /// Maps the object into this process.
    pub fn map(&self) -> Arc<Mapping> {
        self.map_part(self.part())
    }

    pub fn map_part(&self, part: Part) -> Arc<Mapping> {
        let mapping = Arc::new(Mapping::new(self.file(), part, None, true).unwrap());
        let own = Arc::clone(&mapping);
        self.with(move |cache, _| cache.add_own(&own).unwrap());
        mapping
    }

    /// The same, but the cache does not know that it is this process that maps it.
    pub fn map_as_another(&self) -> Arc<Mapping> {
        let mapping = Mapping::new(self.file(), self.part(), None, true).unwrap();
        let uffd = mapping.uffd().try_clone_to_owned().unwrap();
        self.add(uffd, mapping.range().start, self.part());
        Arc::new(mapping)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.jobs.take());
        self.net.inboxes[self.number].wake();
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

fn run(mut cache: Cache, mut port: Port, orders: &Receiver<Job>) -> Result<(), Broken> {
    let net = Arc::clone(&port.net);
    let ready = &net.inboxes[port.machine].ready;
    loop {
        while hear_in_place(&mut cache, &mut port)? || cache.turn(node::now(), &mut port)? {}
        wait(&cache, ready);
        let _ = rustix::io::read(ready, &mut [0u8; 8]);
        loop {
            match orders.try_recv() {
                Ok(job) => job(&mut cache, &mut port),
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            }
        }
    }
}

/// Hears what has come. At every other machine, contents lie where they belong by then, if there is
/// a place for them, as if a link had brought them there.
fn hear_in_place(cache: &mut Cache, port: &mut Port) -> Result<bool, Broken> {
    let mut has_heard = false;
    while port.machine.is_multiple_of(2)
        && let Some(message) = port.receive()
    {
        has_heard = true;
        let message = put_in_place(cache, &port.net, message);
        cache.hear(node::now(), message, port)?;
    }
    Ok(has_heard)
}

fn put_in_place(cache: &mut Cache, net: &Net, message: ToKernel<Contents>) -> ToKernel<Contents> {
    let ToKernel::DataProvided {
        pages,
        data,
        access,
    } = message
    else {
        return message;
    };
    let with = |data| ToKernel::DataProvided {
        pages,
        data,
        access,
    };
    let is_full = data.iter().all(Option::is_some);
    let place = is_full.then(|| cache.place(&with(Vec::new()))).flatten();
    let Some(lent) = place else {
        return with(data);
    };
    let mut start = 0;
    for page in data.iter().flatten() {
        let passed = lent.pass(start..start + page.len(), |file, at, _| {
            rustix::io::pwrite(file, page, at)
        });
        assert_eq!(passed, Some(Ok(page.len())));
        start += page.len();
    }
    net.placed.fetch_add(pages.count.into(), Ordering::Relaxed);
    let (all, size) = (Contents::from(lent), start / data.len());
    let starts = (0..start).step_by(size);
    with(starts.map(|at| Some(all.slice(at, size))).collect())
}

fn wait(cache: &Cache, ready: &OwnedFd) {
    let uffds = cache.spaces().filter_map(|space| cache.uffd(space));
    let all = uffds.chain([ready.as_fd()]);
    let mut polls: Vec<_> = all
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let timeout = cache.deadline().map(|due| {
        let rest = due.0.saturating_sub(node::now().0);
        Timespec::try_from(Duration::from_nanos(rest)).unwrap()
    });
    let _ = rustix::event::poll(&mut polls, timeout.as_ref());
}

/// A word of a mapping, by its number.
pub fn word(mapping: &Mapping, number: u64) -> &AtomicU64 {
    let offset = Bytes(number * 8);
    assert!(offset < mapping.range().len());
    let at = mapping.range().start + offset;
    // SAFETY: an aligned word inside of the mapping, which outlives the reference; all
    // access it atomically.
    unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }
}

/// How many base pages a machine has in its file.
pub fn held(machine: &Machine) -> u64 {
    let blocks = rustix::fs::fstat(machine.file()).unwrap().st_blocks;
    blocks.unsigned_abs() * 512 / 4096
}
