//! What runs on a node, in a process of its own: the server, programs that fault, and the
//! bare round trips to compare with.
//!
//! What others connect to prints its address and ends with its input; the rest prints what
//! it found as JSON, and ends.

use std::hint;
use std::io::{BufRead, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use quire_core::units::{BASE_PAGE, Bytes};
use quire_dsm::client::{Client, ClientError, Options, Shared};
use quire_dsm::directory::{self, Embedded, Remote};
use quire_dsm::link::turn::Config;
use quire_dsm::link::{Address, Security, Turn};
use quire_dsm::programs::{Program, Team, Trouble, WORDS_PER_PAGE, Word};
use quire_dsm::server::{self, Host, Joining, Server};
use quire_dsm::wire::control::{
    Hello, MachineCode, Name, Object, PageSize, Rights, Role, SchedulerKind,
};
use quire_linux::scheduling::{Children, Scheduling};
use serde::{Deserialize, Serialize};

use crate::cpu::cpu_seconds;
use crate::dsm::floor::Trip;
use crate::dsm::{floor, heap, lists, raw};
use crate::procfs;

/// No worker takes longer; one that hangs ends then.
const LONGEST: Duration = Duration::from_secs(600);

/// Servers that are to be joined are so after this at the latest, and all members of a program have
/// closed an object. It is tried so often.
const READY: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(20);

/// Before the threads that answer faults.
const PRIORITY: u8 = 2;

/// Options of a worker.
#[derive(Args, Debug)]
pub struct DsmWorker {
    /// What to do
    #[command(subcommand)]
    pub task: Task,
}

/// What a worker does.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Serves objects
    Serve {
        /// Where
        #[arg(long)]
        listen: Address,
        /// How long to look for more before sleeping, in microseconds
        #[arg(long)]
        spin: u64,
        /// How long leases are, in milliseconds
        #[arg(long)]
        lease: u64,
        /// The servers that it is joined to, and itself; the first keeps their directory
        #[arg(long, value_delimiter = ',')]
        peers: Vec<Address>,
        /// It does not go before others, also where it may
        #[arg(long)]
        no_realtime: bool,
    },
    /// Touches pages of an object and times each touch
    Touch {
        /// Whose object
        #[command(flatten)]
        at: At,
        /// How many pages, of the object's size or this machine's, whichever is larger
        #[arg(long)]
        pages: usize,
        /// How
        #[arg(long)]
        touch: Touch,
    },
    /// Reads some pages more, from the last one on, for each line of input
    Bursts {
        /// Whose object
        #[command(flatten)]
        at: At,
        /// How many pages each time
        #[arg(long)]
        pages: usize,
    },
    /// Says when it has the object, and increments one word once for each line of input
    Rounds {
        /// Whose object
        #[command(flatten)]
        at: At,
    },
    /// Goes through all pages: the first of two members writes, the other reads, and the first
    /// writes again
    Stream {
        /// Whose object
        #[command(flatten)]
        at: At,
        /// Which of the two this is
        #[arg(long)]
        me: usize,
        /// How many pages
        #[arg(long)]
        pages: usize,
        /// Which of them first
        #[arg(long)]
        order: Order,
    },
    /// Increments one word for a while
    Increment {
        /// Whose object
        #[command(flatten)]
        at: At,
        /// Which of them this is
        #[command(flatten)]
        of: Of,
        /// For how long, in milliseconds
        #[arg(long)]
        milliseconds: u64,
    },
    /// Allocates and frees blocks of a typed heap
    Allocate {
        /// Whose object
        #[command(flatten)]
        at: At,
        /// Which of them this is
        #[command(flatten)]
        of: Of,
        /// What it does
        #[command(flatten)]
        what: heap::Allocating,
    },
    /// Allocates and frees blocks of many sizes at random
    List {
        /// Whose object
        #[command(flatten)]
        at: At,
        /// Which of them this is
        #[command(flatten)]
        of: Of,
        /// What it does
        #[command(flatten)]
        what: lists::Listing,
    },
    /// Runs a program as one of its members
    Member {
        /// Whose object
        #[command(flatten)]
        at: At,
        /// Which of them this is
        #[command(flatten)]
        of: Of,
        /// Which program
        #[arg(long)]
        program: ProgramName,
        /// Its size
        #[arg(long)]
        size: usize,
        /// Run it on another object before
        #[arg(long)]
        warm: bool,
    },
    /// Keeps links to a server for a while, and does nothing
    Idle {
        /// Whose object
        #[command(flatten)]
        at: At,
        /// For how long, in milliseconds
        #[arg(long)]
        milliseconds: u64,
    },
    /// Takes bytes, one stream after the other, and passes them on where it is told where to
    Relay {
        /// Where
        #[arg(long)]
        listen: Address,
        /// Where to
        #[arg(long)]
        to: Option<Address>,
    },
    /// Sends bytes, and times that
    Send {
        /// Where to
        #[arg(long)]
        to: Address,
        /// How many
        #[arg(long)]
        bytes: u64,
    },
    /// Answers bare requests
    Echo {
        /// Where
        #[arg(long)]
        listen: Address,
        /// Whether to look again and again (any but 0)
        #[arg(long)]
        spin: u64,
    },
    /// Times bare round trips
    Floor {
        /// Where the echo is
        #[arg(long)]
        server: Address,
        /// Whether to look again and again (any but 0)
        #[arg(long)]
        spin: u64,
        /// What goes through the socket
        #[command(flatten)]
        trip: Trip,
        /// How many of each
        #[arg(long)]
        count: usize,
    },
}

/// An object at a server.
#[derive(Args, Clone, Debug)]
pub struct At {
    /// The server
    #[arg(long)]
    pub server: Address,
    /// The object; it is made if it is not there
    #[arg(long)]
    pub object: Name,
    /// How much it has room for, if it is made, in pages of 4 KiB; it has whole pages of its own
    #[arg(long, default_value_t = 1)]
    pub room: u64,
    /// How large its pages are, if it is made, and this machine's, unless that is said
    #[arg(long, default_value_t = Bytes(BASE_PAGE))]
    pub page_size: Bytes,
    /// How large this machine's pages are
    #[arg(long)]
    pub own_page_size: Option<Bytes>,
    /// Its scheduler, if it is made
    #[arg(long, default_value = "simple")]
    pub scheduler: Scheduler,
    /// How long to look for more before sleeping, in microseconds
    #[arg(long, default_value_t = 0)]
    pub spin: u64,
    /// Share the copy of the server's machine; otherwise this stands for a machine of its own
    #[arg(long)]
    pub one_copy: bool,
    /// Who answers faults does not go before others, also where it may
    #[arg(long)]
    pub no_realtime: bool,
}

/// Which member of how many it is.
#[derive(Args, Clone, Copy, Debug)]
pub struct Of {
    /// Which of them this is
    #[arg(long)]
    pub me: usize,
    /// How many there are
    #[arg(long)]
    pub members: usize,
}

impl Of {
    /// The member of those who have an object open.
    fn member(self, shared: &Shared) -> impl Team {
        shared.member(self.me, self.members)
    }
}

/// Schedulers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scheduler {
    /// One page size, one server
    Simple,
    /// Several page sizes, one server
    Multi,
    /// Several servers
    Distributed,
}

/// In which order somebody goes through pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// The first page first
    FirstFirst,
    /// The last page first
    LastFirst,
    /// Every seventh page, then those before these
    Strides,
    /// No two of them as far from each other as the two before
    Scattered,
}

/// How pages are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Touch {
    /// Each is written to
    Write,
    /// Each is read
    Read,
    /// Each is read, and then written to, which is what is timed
    Unlock,
}

/// Programs of Table 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgramName {
    /// Product of two matrices
    Matrix,
    /// Shortest paths
    Paths,
    /// Wires on a circuit
    Router,
    /// Particles in a wind tunnel
    Particles,
}

impl ProgramName {
    /// The program, of some size.
    pub const fn of_size(self, size: usize) -> Program {
        match self {
            ProgramName::Matrix => Program::Matrix(size),
            ProgramName::Paths => Program::Paths(size),
            ProgramName::Router => Program::Router(size),
            ProgramName::Particles => Program::Particles(size),
        }
    }
}

/// How long it took to go through all pages, in seconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Streamed {
    /// To write what nobody ever had.
    pub write: f64,
    /// To read what another has written.
    pub read: f64,
    /// To write what another has read since.
    pub rewrite: f64,
    /// To read that when it is given back.
    pub read_back: f64,
}

/// What came of incrementing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Increments {
    /// How many were done.
    pub done: u64,
    /// How many of them had to wait for the page.
    pub faults: u64,
    /// For how long, in seconds.
    pub seconds: f64,
}

/// Does it.
pub fn run(options: &DsmWorker) -> Result<()> {
    thread::spawn(|| {
        thread::sleep(LONGEST);
        eprintln!("quire-bench: a worker hangs");
        std::process::exit(1);
    });
    match &options.task {
        Task::Serve {
            listen,
            spin,
            lease,
            peers,
            no_realtime,
        } => {
            let waits = (*spin, !no_realtime);
            serve(listen, waits, *lease, peers)
        }
        Task::Touch { at, pages, touch } => {
            print(&touched(&at.open()?, (*pages, at.step()), *touch))
        }
        Task::Bursts { at, pages } => bursts(&at.open()?, *pages),
        Task::Rounds { at } => rounds(&at.open()?),
        Task::Stream {
            at,
            me,
            pages,
            order,
        } => {
            let shared = at.open()?;
            let member = shared.member(*me, 2);
            let give_back = || shared.flush();
            let found = streamed(&member, (shared.words(), &give_back), *pages, *order)?;
            print(&found)
        }
        Task::Increment {
            at,
            of,
            milliseconds,
        } => {
            let (shared, time) = (at.open()?, Duration::from_millis(*milliseconds));
            let member = of.member(&shared);
            let found = incremented(&member, shared.words(), time)?;
            print(&found)
        }
        Task::Allocate { at, of, what } => {
            let shared = at.open()?;
            print(&heap::allocate(&shared, &of.member(&shared), *what)?)
        }
        Task::List { at, of, what } => {
            let shared = at.open()?;
            print(&lists::run(&shared, &of.member(&shared), *what)?)
        }
        Task::Member {
            at,
            of,
            program,
            size,
            warm,
        } => {
            let program = program.of_size(*size);
            let client = at.connect()?;
            if *warm {
                warm_up(at, &client, *of, program)?;
            }
            let shared = at.open_over(&client)?;
            print(&took(&of.member(&shared), shared.words(), program)?)
        }
        Task::Idle { at, milliseconds } => {
            let _shared = at.open()?;
            thread::sleep(Duration::from_millis(*milliseconds));
            print(&())
        }
        Task::Relay { listen, to } => raw::relay(listen, to.as_ref()),
        Task::Send { to, bytes } => print(&raw::send(to, *bytes)?),
        Task::Echo { listen, spin } => floor::echo(listen, *spin != 0),
        Task::Floor {
            server,
            spin,
            trip,
            count,
        } => print(&floor::measure(server, *spin != 0, *trip, *count)?),
    }
}

fn print(found: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(found)?);
    Ok(())
}

/// Does something as soon as the server does it.
fn when_ready<T>(ask: impl Fn() -> Result<T, ClientError>) -> Result<T> {
    let end = Instant::now() + READY;
    loop {
        match ask() {
            Err(_) if Instant::now() < end => thread::sleep(AGAIN),
            done => return Ok(done?),
        }
    }
}

impl At {
    fn options(&self) -> Options {
        let mut options = Options::new(self.server.clone().into(), self.object.clone());
        options.security = Security::Plaintext;
        options
    }

    /// Connects to the server and opens the object.
    fn open(&self) -> Result<Shared> {
        self.open_over(&self.connect()?)
    }

    fn own_page_size(&self) -> Bytes {
        self.own_page_size.unwrap_or(self.page_size)
    }

    /// How many base pages come together at least.
    fn step(&self) -> usize {
        (self.page_size.max(self.own_page_size()).0 / BASE_PAGE) as usize
    }

    /// Connects to the server. The names of programs are those of their objects.
    fn connect(&self) -> Result<Client> {
        let mut options = self.options();
        options.spin = Duration::from_micros(self.spin);
        options.own_pages = !self.one_copy;
        options.realtime = !self.no_realtime;
        options.page_size = PageSize::try_from(self.own_page_size())?;
        Ok(Client::connect(options)?)
    }

    /// Opens the object.
    fn open_over(&self, client: &Client) -> Result<Shared> {
        let page_size = PageSize::try_from(self.page_size)?;
        // Servers that are started one after the other are joined a moment later.
        when_ready(|| self.open_at(client, page_size))
    }

    /// The same, but for another object, of the name of this one and `suffix`.
    fn another(&self, suffix: &str) -> Result<At> {
        Ok(At {
            object: format!("{}.{suffix}", self.object).parse()?,
            ..self.clone()
        })
    }

    /// Removes the object, when nobody has it open any more.
    fn remove(&self) -> Result<()> {
        let client = Client::connect(self.options())?;
        when_ready(|| client.remove(self.object.clone()))
    }

    fn open_at(&self, client: &Client, page_size: PageSize) -> Result<Shared, ClientError> {
        let room = Bytes(self.room * BASE_PAGE);
        // That there is one already is no error here; opening it tells what is.
        let _ = client.create(Object {
            name: self.object.clone(),
            size: Bytes(room.0.next_multiple_of(page_size.bytes().0)),
            page_size,
            scheduler: match self.scheduler {
                Scheduler::Simple => SchedulerKind::Simple,
                Scheduler::Multi => SchedulerKind::Multi,
                Scheduler::Distributed => SchedulerKind::Distributed,
            },
            machine: MachineCode(0),
            tags: Vec::new(),
        });
        let rights = Rights {
            read: true,
            write: true,
        };
        // The objects are for everybody, whoever makes them.
        let _ = client.grant(self.object.clone(), "anyone".into(), rights);
        client.open(self.object.clone(), rights)
    }
}

/// Serves until its input ends. For each line of input it says what processor time it used.
fn serve(
    listen: &Address,
    (spin, realtime): (u64, bool),
    lease: u64,
    peers: &[Address],
) -> Result<()> {
    let name: Name = "bench".parse()?;
    let hello = Hello {
        name: name.clone(),
        role: Role::Server,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    };
    let mut config = Config::new(hello.clone());
    config.spin = Duration::from_micros(spin);
    config.realtime = realtime;
    let mut turn = Turn::new(config)?;
    let at = server::listen(
        &mut turn,
        std::slice::from_ref(listen),
        &Security::Plaintext,
    )?;
    let address = at.first().context("no address")?.clone();
    let mut server = Server::new(name.clone(), Duration::from_millis(lease));
    if let Some(host) = peers.first() {
        let (directory, host): (directory::Shared, _) = match *host == address {
            true => (Arc::new(Embedded::new(None)?), Host::This),
            false => {
                let remote = Remote::new(host.clone(), Security::Plaintext, hello)?;
                (Arc::new(remote), Host::Another)
            }
        };
        let joining = Joining {
            directory,
            host,
            address: address.clone(),
            names: vec![name],
            security: Security::Plaintext,
        };
        server.join(&turn, joining)?;
    }
    println!("{address}");
    let (end, ended) = UnixStream::pair()?;
    thread::spawn(move || tell_time(end));
    server::serve(&mut turn, &mut server, ended.as_fd())?;
    Ok(())
}

/// Closes `end` when the input ends.
fn tell_time(end: UnixStream) {
    for line in std::io::stdin().lock().lines() {
        if line.is_err() {
            break;
        }
        println!("{}", cpu_seconds());
    }
    drop(end);
}

/// Microseconds of each touch of so many pages, which have so many base pages each.
fn touched(shared: &Shared, (pages, step): (usize, usize), touch: Touch) -> Vec<f64> {
    let words = shared.words();
    let write = |page: usize| words[page * WORDS_PER_PAGE].store(1, Ordering::Relaxed);
    let pages = || scattered(pages).map(|page| page * step);
    if touch == Touch::Unlock {
        pages().for_each(|page| read(words, page));
    }
    pages()
        .map(|page| {
            let start = Instant::now();
            match touch {
                Touch::Read => read(words, page),
                Touch::Write | Touch::Unlock => write(page),
            }
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect()
}

/// Reads a word of a page.
fn read(words: &[Word], page: usize) {
    hint::black_box(words[page * WORDS_PER_PAGE].load(Ordering::Relaxed));
}

/// Reads so many pages more for each line of input.
fn bursts(shared: &Shared, pages: usize) -> Result<()> {
    let words = shared.words();
    let mut rest = scattered(words.len() / WORDS_PER_PAGE);
    for line in std::io::stdin().lock().lines() {
        line?;
        for page in rest.by_ref().take(pages) {
            read(words, page);
        }
        print(&())?;
    }
    Ok(())
}

/// Increments the first word once for each line of input. Answers how often that was done before,
/// by anybody. Where that is allowed, it goes before those who take the page away, which is only
/// kept for a moment.
fn rounds(shared: &Shared) -> Result<()> {
    print(&())?;
    let _before = Scheduling::RoundRobin(PRIORITY).enter(Children::Reset);
    for line in std::io::stdin().lock().lines() {
        line?;
        print(&shared.words()[0].fetch_add(1, Ordering::Relaxed))?;
    }
    Ok(())
}

/// Every so many pages in [`Order::Strides`].
const STEP: usize = 7;

/// All pages, every seventh, then those before these.
fn strides(pages: usize) -> impl Iterator<Item = usize> {
    let first = (0..STEP.min(pages)).rev();
    first.flat_map(move |first| (first..pages).step_by(STEP))
}

/// All pages, each farther from the one before it than that was from its own: nobody can ask for
/// any ahead, nor is anything shown beside a page that is lacking later.
///
/// They are the sums of the numbers up to each, in a ring of a power of two, where each is met once. The
/// smallest steps come last.
fn scattered(pages: usize) -> impl Iterator<Item = usize> {
    const SMALL: usize = 64;
    let ring = pages.next_power_of_two();
    let small = SMALL.min(ring / 2);
    let steps = (small..ring).chain(0..small);
    let all = steps.map(move |step| step * (step + 1) / 2 % ring);
    all.filter(move |page| *page < pages)
}

/// One of two members goes through so many pages, as [`Task::Stream`] says. What the other
/// does is 0 here.
fn streamed(
    team: &dyn Team,
    (words, give_back): (&[Word], &dyn Fn() -> Result<(), ClientError>),
    pages: usize,
    order: Order,
) -> Result<Streamed> {
    let order: Vec<usize> = match order {
        Order::FirstFirst => (0..pages).collect(),
        Order::LastFirst => (0..pages).rev().collect(),
        Order::Strides => strides(pages).collect(),
        Order::Scattered => scattered(pages).collect(),
    };
    let timed = |is_mine: bool, touch: &dyn Fn(&Word)| -> Result<f64, Trouble> {
        team.barrier()?;
        let start = Instant::now();
        if is_mine {
            order
                .iter()
                .for_each(|page| touch(&words[page * WORDS_PER_PAGE]));
        }
        let took = start.elapsed().as_secs_f64();
        team.barrier()?;
        Ok(if is_mine { took } else { 0.0 })
    };
    let is_writer = team.me() == 0;
    let write = |word: &Word| word.store(1, Ordering::Relaxed);
    let read_one = |word: &Word| {
        hint::black_box(word.load(Ordering::Relaxed));
    };
    let [write, read, rewrite] = [
        timed(is_writer, &write)?,
        timed(!is_writer, &read_one)?,
        timed(is_writer, &write)?,
    ];
    if is_writer {
        give_back()?;
    }
    Ok(Streamed {
        write,
        read,
        rewrite,
        read_back: timed(!is_writer, &read_one)?,
    })
}

/// Increments the first word for so long.
fn incremented(team: &dyn Team, words: &[Word], time: Duration) -> Result<Increments> {
    team.barrier()?;
    let earlier = procfs::all_faults_of_this_thread()?;
    let start = Instant::now();
    let (mut done, mut before) = (0, start);
    while before < start + time {
        words[0].fetch_add(1, Ordering::Relaxed);
        before = Instant::now();
        done += 1;
    }
    let faults = procfs::all_faults_of_this_thread()? - earlier;
    team.barrier()?;
    let counter = team.add(0, i64::try_from(done)?)?;
    team.barrier()?;
    hint::black_box(counter);
    let all = team.add(0, 0)?;
    // As a write, so that nobody has a copy when it goes on. A compiler that sees the zero
    // makes a read of it.
    let counted = words[0].fetch_add(hint::black_box(0), Ordering::Relaxed);
    if i64::try_from(counted)? != all {
        bail!("{counted} increments of {all}");
    }
    // Nobody leaves before all have looked.
    team.barrier()?;
    Ok(Increments {
        done,
        faults,
        seconds: (before - start).as_secs_f64(),
    })
}

/// Runs a program on another object, so that all processes have what memory they need: what a
/// machine has not used for a while comes slowly.
fn warm_up(at: &At, client: &Client, of: Of, program: Program) -> Result<()> {
    let at = at.another("warm")?;
    let shared = at.open_over(client)?;
    program.run(&of.member(&shared), shared.words())?;
    drop(shared);
    match of.me {
        0 => at.remove(),
        _ => Ok(()),
    }
}

/// Seconds for a program, as one of its members.
fn took(team: &dyn Team, words: &[Word], program: Program) -> Result<f64, Trouble> {
    team.barrier()?;
    let start = Instant::now();
    program.run(team, words)?;
    let took = start.elapsed().as_secs_f64();
    if team.me() == 0 {
        program.check(words, team.size())?;
    }
    Ok(took)
}

/// Writes a line at once.
pub fn say(line: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_orders_have_all_pages_and_scattered_ones_no_three_at_a_distance() {
        for pages in [1, 2, 3, 80, 200, 2048] {
            let all: Vec<usize> = (0..pages).collect();
            let sorted = |mut order: Vec<usize>| {
                order.sort_unstable();
                order
            };
            assert_eq!(sorted(strides(pages).collect()), all);
            assert_eq!(sorted(scattered(pages).collect()), all);
        }
        let order: Vec<usize> = scattered(2048).collect();
        let is_row = |at: &usize| {
            let earlier = &order[at.saturating_sub(8)..*at];
            let far = |near: &usize| (2 * near).checked_sub(order[*at]);
            earlier
                .iter()
                .any(|near| far(near).is_some_and(|far| earlier.contains(&far)))
        };
        let rows = (0..order.len()).filter(is_row).count();
        assert!(rows < 100, "{rows}");
    }
}
