//! How long a request for a page of 4 KiB takes, from sending it until its contents are
//! there, over links and over bare sockets that carry the same bytes.
//!
//! `cargo run --release -p quire-dsm --example pingpong [ROUNDS]` prints, for each kind of
//! connection, medians in microseconds and the median of their ratios. Blocks of both are
//! taken in turn, so that what else the machine does meets both. Asleep: whoever waits is woken. Spinning:
//! whoever waits looks again and again, which needs a core for each side.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::dsm::message::{Access, FromKernel, KernelId, PageNumber, Pages, ToKernel};
use quire_dsm::link::identity::{Authority, Validity};
use quire_dsm::link::turn::{Closed, Config};
use quire_dsm::link::{Address, Established, Handler, Identity, LinkId, Links, Security, Turn};
use quire_dsm::wire::control::{Handle, Hello, MachineCode, PageSize, Refusal, Role, Welcome};
use quire_dsm::wire::{Contents, Control};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Requests of each kind in a row.
const BLOCK: usize = 200;

/// Bytes of a request and of its answer.
const REQUEST: usize = 64;
const ANSWER: usize = 64 + 4096;

fn hello(name: &str) -> Result<Hello> {
    Ok(Hello {
        name: name.parse()?,
        role: Role::Kernel,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    })
}

/// Answers requests for pages.
struct Server {
    welcome: Welcome,
    page: Contents,
}

impl Handler for Server {
    fn greeted(
        &mut self,
        _: &mut Links,
        _: LinkId,
        _: &Established,
    ) -> std::result::Result<Welcome, Refusal> {
        Ok(self.welcome.clone())
    }

    fn welcomed(&mut self, _: &mut Links, _: LinkId, _: &Welcome) {}

    fn message(
        &mut self,
        links: &mut Links,
        link: LinkId,
        message: Control,
        _: Vec<std::os::fd::OwnedFd>,
    ) {
        if let Control::FromKernel {
            object,
            message: FromKernel::DataRequest { pages, access },
        } = message
        {
            let message = ToKernel::DataProvided {
                pages,
                data: vec![Some(self.page.clone())],
                access,
            };
            let stamp = 0;
            links.send(
                link,
                Control::ToKernel {
                    object,
                    stamp,
                    message,
                },
            );
        }
    }

    fn closed(&mut self, _: &mut Links, _: LinkId, _: &Closed) {}
}

/// Waits for pages.
#[derive(Default)]
struct Client {
    welcomed: bool,
    pages: usize,
    broken: Option<String>,
}

impl Handler for Client {
    fn greeted(
        &mut self,
        _: &mut Links,
        _: LinkId,
        _: &Established,
    ) -> std::result::Result<Welcome, Refusal> {
        unreachable!("nobody connects to the client")
    }

    fn welcomed(&mut self, _: &mut Links, _: LinkId, _: &Welcome) {
        self.welcomed = true;
    }

    fn message(&mut self, _: &mut Links, _: LinkId, _: Control, _: Vec<std::os::fd::OwnedFd>) {
        self.pages += 1;
    }

    fn closed(&mut self, _: &mut Links, _: LinkId, closed: &Closed) {
        self.broken = Some(closed.why.to_string());
    }
}

/// A client's loop with its link.
struct Asker {
    turn: Turn,
    client: Client,
    link: LinkId,
}

impl Asker {
    fn new(address: &Address, security: &Security, spin: Duration) -> Result<Asker> {
        let mut turn = Turn::new(Config {
            spin,
            ..Config::new(hello("client")?)
        })?;
        let link = turn.links.connect(address, security, None)?;
        let mut asker = Asker {
            turn,
            client: Client::default(),
            link,
        };
        while !asker.client.welcomed {
            asker.once()?;
        }
        Ok(asker)
    }

    fn once(&mut self) -> Result<()> {
        self.turn.once(&mut self.client, Duration::from_secs(1))?;
        match &self.client.broken {
            Some(why) => Err(why.clone().into()),
            None => Ok(()),
        }
    }

    /// Asks for a page, and waits for it.
    fn ask(&mut self) -> Result<()> {
        let message = FromKernel::DataRequest {
            pages: Pages::one(PageNumber(7)),
            access: Access::Read,
        };
        let object = Handle(1);
        let wanted = self.client.pages + 1;
        let message = Control::FromKernel { object, message };
        self.turn.links.send(self.link, message);
        while self.client.pages < wanted {
            self.once()?;
        }
        Ok(())
    }
}

/// A server's loop on a thread of its own, until it is stopped.
fn serve(
    address: &Address,
    security: &Security,
    spin: Duration,
    stop: &Arc<AtomicBool>,
) -> Result<(Address, thread::JoinHandle<()>)> {
    let mut turn = Turn::new(Config {
        spin,
        ..Config::new(hello("server")?)
    })?;
    let address = turn.links.listen(address, security)?;
    let mut server = Server {
        welcome: Welcome {
            name: "server".parse()?,
            kernel: KernelId(1),
            lease: 0,
            features: 0,
            beside: None,
        },
        page: turn.links.pool().copy(&[42; 4096]),
    };
    let stop = Arc::clone(stop);
    let thread = thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            if let Err(error) = turn.once(&mut server, Duration::from_millis(100)) {
                eprintln!("the server's loop ended: {error}");
                return;
            }
        }
    });
    Ok((address, thread))
}

/// A bare socket.
trait Bare: Read + Write + Send + 'static {}

impl<T: Read + Write + Send + 'static> Bare for T {}

/// Fills the bytes; where the socket does not wait, this does.
fn fill(socket: &mut dyn Bare, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Answers over a bare socket until the other side closes it.
fn answer_bare(mut socket: Box<dyn Bare>) {
    let (mut request, answer) = ([0; REQUEST], [42; ANSWER]);
    while fill(&mut *socket, &mut request).is_ok() && socket.write_all(&answer).is_ok() {}
}

/// Two ends of a connection like the links', without links.
fn bare(kind: Kind, spins: bool) -> Result<[Box<dyn Bare>; 2]> {
    if matches!(kind, Kind::Unix) {
        let (one, other) = UnixStream::pair()?;
        one.set_nonblocking(spins)?;
        other.set_nonblocking(spins)?;
        return Ok([Box::new(one), Box::new(other)]);
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    for socket in [&one, &other] {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(spins)?;
    }
    Ok([Box::new(one), Box::new(other)])
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Unix,
    Tcp,
    Tls,
}

/// Where the server of a kind listens, and how both sides are secured.
fn place(kind: Kind, directory: &Path) -> Result<(Address, [Security; 2])> {
    let none = || Security::Automatic(None);
    let any = "127.0.0.1:0".parse()?;
    match kind {
        Kind::Unix => Ok((Address::Unix(directory.join("socket")), [none(), none()])),
        Kind::Tcp => Ok((any, [none(), none()])),
        Kind::Tls => {
            let authority = Authority::generate(Validity::days(1))?;
            let secured = |name: &str| -> Result<Security> {
                let name = name.parse()?;
                let pair = authority.issue(&name, Validity::days(1))?;
                let certificate = &authority.pair().certificate;
                let identity = Identity::from_pem(&name, &pair, certificate)?;
                Ok(Security::Tls(Arc::new(identity)))
            };
            Ok((any, [secured("server")?, secured("client")?]))
        }
    }
}

/// The middle of times, in microseconds.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// How long something takes, in microseconds: the middle of a block.
fn block_median(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(BLOCK);
    for _ in 0..BLOCK {
        let begin = Instant::now();
        work()?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(&mut times))
}

/// Measures one kind of connection, and prints a line.
fn measure(kind: Kind, spins: bool, rounds: usize, directory: &Path) -> Result<()> {
    // So short that the server sleeps when bare sockets need its core.
    let spin = Duration::from_millis(50 * u64::from(spins));
    let stop = Arc::new(AtomicBool::new(false));
    let (address, [its, ours]) = place(kind, directory)?;
    let (address, server) = serve(&address, &its, spin, &stop)?;
    let mut asker = Asker::new(&address, &ours, spin)?;
    let (mut links, mut sockets, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for block in 0..rounds.div_ceil(BLOCK) + 1 {
        thread::sleep(Duration::from_millis(100 * u64::from(spins)));
        let [mut socket, other] = bare(kind, spins)?;
        let bare_server = thread::spawn(move || answer_bare(other));
        let mut page = [0; ANSWER];
        let bare_time = block_median(|| {
            socket.write_all(&[1; REQUEST])?;
            Ok(fill(&mut *socket, &mut page)?)
        })?;
        drop(socket);
        if bare_server.join().is_err() {
            return Err("the bare server failed".into());
        }
        let link_time = block_median(|| asker.ask())?;
        // The first block warms up.
        if block > 0 {
            sockets.push(bare_time);
            links.push(link_time);
            ratios.push(link_time / bare_time);
        }
    }
    stop.store(true, Ordering::Relaxed);
    if server.join().is_err() {
        return Err("the server failed".into());
    }
    let (bare, link) = (median(&mut sockets), median(&mut links));
    let mode = if spins { "spinning" } else { "asleep" };
    println!(
        "{kind:<6?} {mode:<9} {bare:>9.2} {link:>9.2} {:>7.2}",
        link / bare
    );
    Ok(())
}

fn main() -> Result<()> {
    let rounds = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => 10_000,
    };
    let directory = std::env::temp_dir().join(format!("quire-pingpong-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    println!(
        "{:<6} {:<9} {:>9} {:>9} {:>7}",
        "kind", "waiting", "bare us", "link us", "ratio"
    );
    let mut result = Ok(());
    for spins in [false, true] {
        for kind in [Kind::Unix, Kind::Tcp, Kind::Tls] {
            result = result.and_then(|()| measure(kind, spins, rounds, &directory));
        }
    }
    std::fs::remove_dir_all(&directory)?;
    result
}
