//! The links of the event loop over turmoil's network: a [`Transport`] is one end of a pipe,
//! and a task moves bytes between the pipe and a simulated TCP stream.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mio::{Interest, Registry, Token};
use quire_core::dsm::message::ToKernel;
use quire_dsm::link::turn::{Handler, Turn};
use quire_dsm::link::{Peer, Transport};
use quire_dsm::wire::{Contents, Sink};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use turmoil::net::{TcpListener, TcpStream};

use crate::world::Shared;

/// Servers listen here.
const PORT: u16 = 7000;

/// About as much as a packet holds: a page needs several, which arrive in any order.
const PACKET: usize = 1400;

/// A loop needs fewer turns than this for what happens at one moment.
const MOST_TURNS: u32 = 10_000;

/// The simulated clock of the host that asks.
pub fn clock() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// What the loop of one process waits for.
#[derive(Default)]
pub struct Hub {
    inside: Mutex<Inside>,
    notify: Notify,
    dialled: Notify,
}

#[derive(Default)]
struct Inside {
    ready: Vec<Token>,
    accepted: Vec<Simulated>,
    /// Who is to be connected, by the names of hosts.
    dials: Vec<(String, Arc<Pipe>)>,
    /// All that there ever were, by the name of the host at the other end.
    pipes: Vec<(String, Arc<Pipe>)>,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().expect("nobody panicked")
    }

    fn mark(&self, token: Option<Token>) {
        if let Some(token) = token {
            let mut inside = self.lock();
            if !inside.ready.contains(&token) {
                inside.ready.push(token);
            }
            self.notify.notify_one();
        }
    }

    /// A pipe whose bytes a task moves.
    fn pipe(self: &Arc<Hub>, to: String, is_connected: bool) -> (Simulated, Arc<Pipe>) {
        let pipe = Arc::new(Pipe::default());
        pipe.lock().is_connected = is_connected;
        self.lock().pipes.push((to, Arc::clone(&pipe)));
        let transport = Simulated {
            pipe: Arc::clone(&pipe),
            hub: Arc::clone(self),
            peer: Peer::Other("a simulated host".into()),
        };
        (transport, pipe)
    }

    /// Wakes the loop.
    pub fn wake(&self) {
        let mut inside = self.lock();
        if !inside.ready.contains(&Turn::woken()) {
            inside.ready.push(Turn::woken());
        }
        self.notify.notify_one();
    }

    /// Connects to a host, by whoever runs [`dial`].
    pub fn dial(self: &Arc<Hub>, to: &str) -> Box<dyn Transport> {
        let (transport, pipe) = self.pipe(to.to_owned(), false);
        self.lock().dials.push((to.to_owned(), pipe));
        self.dialled.notify_one();
        Box::new(transport)
    }

    /// Breaks the connections with a host.
    pub fn break_with(&self, host: &str) {
        for (to, pipe) in &self.lock().pipes {
            if to == host {
                pipe.lock().is_broken = true;
                pipe.changed.notify_one();
            }
        }
    }
}

/// Both directions of a connection.
#[derive(Default)]
struct Pipe {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    came: VecDeque<u8>,
    leaves: VecDeque<u8>,
    is_connected: bool,
    /// Nothing comes any more.
    is_over: bool,
    is_broken: bool,
    /// Nothing is sent any more.
    is_shut: bool,
    /// The loop has no use for it any more.
    is_dropped: bool,
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panicked")
    }

    /// Changes something that the loop is to look at.
    fn change(&self, hub: &Hub, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        hub.mark(state.token);
    }
}

/// The loop's end of a pipe.
pub struct Simulated {
    pipe: Arc<Pipe>,
    hub: Arc<Hub>,
    peer: Peer,
}

impl Sink for Simulated {
    fn write(&mut self, from: &[IoSlice<'_>], _: &[BorrowedFd<'_>], _: bool) -> io::Result<usize> {
        let mut state = self.pipe.lock();
        if state.is_broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        from.iter().for_each(|piece| state.leaves.extend(&**piece));
        self.pipe.changed.notify_one();
        Ok(from.iter().map(|piece| piece.len()).sum())
    }
}

impl Transport for Simulated {
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut state = self.pipe.lock();
        if state.is_broken {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if state.came.is_empty() && !state.is_over {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut read = 0;
        for piece in into {
            read += io::Read::read(&mut state.came, piece)?;
        }
        Ok(read)
    }

    fn register(&mut self, _: &Registry, token: Token, _: Interest) -> io::Result<()> {
        self.pipe
            .change(&self.hub, |state| state.token = Some(token));
        Ok(())
    }

    fn reregister(&mut self, _: &Registry, _: Token, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn connected(&mut self) -> io::Result<bool> {
        let state = self.pipe.lock();
        match state.is_broken {
            true => Err(io::ErrorKind::ConnectionRefused.into()),
            false => Ok(state.is_connected),
        }
    }

    fn shutdown(&mut self) {
        self.pipe.lock().is_shut = true;
        self.pipe.changed.notify_one();
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        let mut state = self.pipe.lock();
        (state.is_shut, state.is_dropped) = (true, true);
        drop(state);
        self.pipe.changed.notify_one();
    }
}

/// Connects what the loop of a process wants connected.
pub async fn dial(hub: Arc<Hub>, world: Shared) {
    loop {
        let dials = std::mem::take(&mut hub.lock().dials);
        for (to, pipe) in dials {
            let (hub, world) = (Arc::clone(&hub), Rc::clone(&world));
            tokio::task::spawn_local(async move {
                match TcpStream::connect((to.as_str(), PORT)).await {
                    Ok(stream) => {
                        pipe.change(&hub, |state| state.is_connected = true);
                        carry(stream, &pipe, &hub, &world).await;
                    }
                    Err(_) => pipe.change(&hub, |state| state.is_broken = true),
                }
            });
        }
        hub.dialled.notified().await;
    }
}

/// Accepts whoever connects.
pub async fn listen(hub: Arc<Hub>, world: Shared) {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await.expect("a port");
    while let Ok((stream, from)) = listener.accept().await {
        let from = turmoil::reverse_lookup(from.ip()).unwrap_or_default();
        let (transport, pipe) = hub.pipe(from, true);
        hub.lock().accepted.push(transport);
        hub.notify.notify_one();
        let (hub, world) = (Arc::clone(&hub), Rc::clone(&world));
        tokio::task::spawn_local(async move { carry(stream, &pipe, &hub, &world).await });
    }
}

/// Moves bytes between a pipe and the network, until either ends.
async fn carry(stream: TcpStream, pipe: &Pipe, hub: &Hub, world: &Shared) {
    let (mut reads, mut writes) = stream.into_split();
    let (mut came, mut is_shut) = ([0; 4096], false);
    loop {
        let (leaves, shall_shut, is_dropped) = {
            let mut state = pipe.lock();
            let leaves = Vec::from(std::mem::take(&mut state.leaves));
            (leaves, state.is_shut, state.is_dropped)
        };
        if pipe.lock().is_broken {
            return pipe.change(hub, |_| {});
        }
        for packet in leaves.chunks(PACKET) {
            world.borrow_mut().note_bytes(packet);
            if writes.write_all(packet).await.is_err() {
                return pipe.change(hub, |state| state.is_broken = true);
            }
        }
        if shall_shut && !is_shut {
            is_shut = true;
            // It may be reset already, which is as good.
            let _ = writes.shutdown().await;
        }
        if is_dropped {
            return;
        }
        let is_over = pipe.lock().is_over;
        tokio::select! {
            biased;
            () = pipe.changed.notified() => {}
            read = reads.read(&mut came), if !is_over => match read {
                Ok(0) => pipe.change(hub, |state| state.is_over = true),
                Ok(read) => pipe.change(hub, |state| state.came.extend(&came[..read])),
                Err(_) => return pipe.change(hub, |state| state.is_broken = true),
            }
        }
    }
}

/// What a server says to a cache, in a few words.
pub fn told(message: &ToKernel<Contents>) -> String {
    match message {
        ToKernel::DataProvided { pages, access, .. } => {
            format!("DataProvided {}+{} {access:?}", pages.first.0, pages.count)
        }
        other => format!("{other:?}"),
    }
}

/// The loop of a process.
pub struct Loop<'a> {
    hub: &'a Hub,
    world: &'a Shared,
    host: usize,
    /// How many turns there were at the last moment.
    spins: (Instant, u32),
}

impl<'a> Loop<'a> {
    pub fn new((hub, world, host): (&'a Hub, &'a Shared, usize)) -> Loop<'a> {
        let spins = (clock(), 0);
        Loop {
            hub,
            world,
            host,
            spins,
        }
    }

    /// Runs it until the process says that it is over.
    pub async fn run<H: Handler>(
        &mut self,
        turn: &mut Turn,
        handler: &mut H,
        is_over: impl Fn(&H) -> bool,
    ) {
        while !is_over(handler) && self.once(turn, handler, None).await {}
    }

    /// Waits until there is something to do, or so long, and does it. While the process is
    /// stopped, nothing of it runs but what the system does for it. `false` where the loop
    /// turns without end.
    pub async fn once<H: Handler>(
        &mut self,
        turn: &mut Turn,
        handler: &mut H,
        longest: Option<Duration>,
    ) -> bool {
        let (hub, world, host) = (self.hub, self.world, self.host);
        self.spins = match clock() {
            now if now == self.spins.0 => (now, self.spins.1 + 1),
            now => (now, 0),
        };
        if self.spins.1 > MOST_TURNS {
            world.borrow_mut().fail("a loop turns without end".into());
            return false;
        }
        let until = longest.map(|longest| clock() + longest);
        let due = turn.due(handler);
        let due = until.map_or(due, |until| until.min(due));
        tokio::select! {
            biased;
            () = hub.notify.notified() => {}
            () = tokio::time::sleep_until(tokio::time::Instant::from_std(due)) => {}
        }
        let stopped = world.borrow().is_stopped(host);
        if stopped {
            while world.borrow().is_stopped(host) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let (ready, accepted) = {
            let mut inside = hub.lock();
            let ready = std::mem::take(&mut inside.ready);
            (ready, std::mem::take(&mut inside.accepted))
        };
        for transport in accepted {
            turn.links.accept_over(Box::new(transport));
        }
        turn.step(handler, &ready);
        if stopped {
            world.borrow_mut().goes_on(host);
        }
        true
    }
}
