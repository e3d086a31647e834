//! Machines that are far from each other, on one machine: network namespaces, joined by a
//! relay that passes each packet on after a set delay.
//!
//! Each node is a network namespace with one TUN device, whose other end the relay has. The
//! relay is a thread of this process, since not every kernel has a queue that delays. A thread
//! that sleeps is woken up to 30 us late, which would be seen at a delay of 50 us: where it is
//! so short, the relay spins while packets are under way, and for a moment after, which takes a
//! processor. Where it is long, the relay sleeps until shortly before a packet is due, and goes
//! before the nodes, if it may, so that they keep it from nothing.
//! Namespaces and devices live as long as files of this process, so that nothing is left
//! behind however it ends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use quire_linux::scheduling::{Children, Scheduling};
use quire_linux::tun;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::wrapped::wrapped;

/// The name of each node's device.
const DEVICE: &str = "quire0";
/// The largest packet that is passed on, as on an Ethernet.
const MTU: usize = 1500;
/// From this delay on the relay sleeps while nothing is due.
const FAR: Duration = Duration::from_micros(200);
/// It wakes so long before a packet is due.
const EARLY: Duration = Duration::from_micros(40);
/// How late its timer may be, in nanoseconds.
const SLACK: Option<NonZeroU64> = NonZeroU64::new(1000);
/// Its priority, where it sleeps: before those of the nodes that have one.
const PRIORITY: u8 = 2;
/// With a short delay, after a packet the relay looks for more so long before it sleeps.
const SPIN: Duration = Duration::from_millis(2);
/// It looks so often whether it shall end.
const LONGEST: Duration = Duration::from_millis(50);
/// The most nodes: their addresses differ in the last number.
pub const MOST_NODES: usize = 64;

/// Nodes that reach each other by addresses of their own.
#[derive(Debug)]
pub struct Network {
    namespaces: Vec<File>,
    nodes: usize,
    shared: Arc<Shared>,
    relay: Option<JoinHandle<()>>,
    /// Why there are no namespaces.
    refused: Option<String>,
}

/// What the relay is told, and tells.
#[derive(Debug)]
struct Shared {
    ends: AtomicBool,
    /// By sender, a bit for each receiver that gets nothing from it.
    cuts: Vec<AtomicU64>,
    passed: AtomicU64,
}

/// A packet that is under way; the first to arrive is the greatest.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    due: Reverse<Instant>,
    number: Reverse<u64>,
    to: usize,
    bytes: Vec<u8>,
}

impl Network {
    /// So many nodes, each of whose packets takes `delay` to any other. Where namespaces are
    /// not allowed, the nodes are all this machine, without a delay: [`Network::refused`].
    ///
    /// # Panics
    /// When there are more than [`MOST_NODES`].
    #[must_use]
    pub fn new(nodes: usize, delay: Duration) -> Network {
        assert!(nodes <= MOST_NODES, "{nodes} nodes");
        Network::separate(nodes, delay).unwrap_or_else(|error| {
            let mut network = Network::loopback(nodes);
            network.refused = Some(format!(
                "no network namespaces, so all nodes share this machine's loopback: {error}; run as root, with /dev/net/tun, `ip` and `nsenter`"
            ));
            network
        })
    }

    /// So many nodes that are all this machine.
    #[must_use]
    pub fn loopback(nodes: usize) -> Network {
        Network {
            namespaces: Vec::new(),
            nodes,
            shared: Arc::new(Shared::new(nodes)),
            relay: None,
            refused: None,
        }
    }

    fn separate(nodes: usize, delay: Duration) -> io::Result<Network> {
        let (mut namespaces, mut devices) = (Vec::new(), Vec::new());
        for node in 0..nodes {
            // The namespace is a thread's, and the thread's children are in it.
            let made = thread::spawn(move || node_of(node)).join();
            let made = made.map_err(|_| io::Error::other("a thread panicked"))?;
            let (namespace, device) = made?;
            namespaces.push(namespace);
            devices.push(device);
        }
        let shared = Arc::new(Shared::new(nodes));
        let relay = Relay {
            devices,
            delay,
            shared: Arc::clone(&shared),
            under_way: BinaryHeap::new(),
            number: 0,
        };
        let relay = thread::Builder::new()
            .name("quire-relay".into())
            .spawn(move || relay.run())?;
        Ok(Network {
            namespaces,
            nodes,
            shared,
            relay: Some(relay),
            refused: None,
        })
    }

    /// Why there are no namespaces although they were asked for, with the remedy.
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Whether nodes are namespaces, with a relay between them.
    #[must_use]
    pub const fn is_separate(&self) -> bool {
        self.relay.is_some()
    }

    /// How many nodes there are.
    #[must_use]
    pub const fn nodes(&self) -> usize {
        self.nodes
    }

    /// Where others reach a node.
    ///
    /// # Panics
    /// When there is no such node.
    #[must_use]
    pub fn address(&self, node: usize) -> Ipv4Addr {
        assert!(node < self.nodes, "node {node} of {}", self.nodes);
        match self.is_separate() {
            true => address_of(node),
            false => Ipv4Addr::LOCALHOST,
        }
    }

    /// A command that runs the given one at a node, with its arguments, its variables and its
    /// directory. Where input and output go has to be set on the command that is returned.
    ///
    /// # Panics
    /// When there is no such node.
    #[must_use]
    pub fn command(&self, node: usize, command: Command) -> Command {
        assert!(node < self.nodes, "node {node} of {}", self.nodes);
        let Some(namespace) = self.namespaces.get(node) else {
            return command;
        };
        let (this, fd) = (std::process::id(), namespace.as_raw_fd());
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net=/proc/{this}/fd/{fd}")).arg("--");
        wrapped(inside, &command)
    }

    /// Cuts the way from one node to another, or mends it. Packets that are under way arrive.
    /// Without namespaces it changes nothing.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn cut(&self, from: usize, to: usize, is_cut: bool) {
        assert!(to < self.nodes, "node {to} of {}", self.nodes);
        let cuts = &self.shared.cuts[from];
        match is_cut {
            true => cuts.fetch_or(1 << to, Ordering::Relaxed),
            false => cuts.fetch_and(!(1 << to), Ordering::Relaxed),
        };
    }

    /// How many packets were passed on so far.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.shared.passed.load(Ordering::Relaxed)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        if let Some(relay) = self.relay.take() {
            // Its panic has been printed.
            let _ = relay.join();
        }
    }
}

impl Shared {
    fn new(nodes: usize) -> Shared {
        Shared {
            ends: AtomicBool::new(false),
            cuts: (0..nodes).map(|_| AtomicU64::new(0)).collect(),
            passed: AtomicU64::new(0),
        }
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts[from].load(Ordering::Relaxed) & (1 << to) != 0
    }
}

fn address_of(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 203, 0, node as u8 + 1)
}

/// The node of an address.
fn node_at(address: Ipv4Addr) -> Option<usize> {
    match address.octets() {
        [10, 203, 0, last] => usize::from(last).checked_sub(1),
        _ => None,
    }
}

/// Makes the namespace of a node, with its device; runs in a thread of its own.
fn node_of(node: usize) -> io::Result<(File, File)> {
    let namespace = tun::own_namespace()?;
    let device = tun::open(DEVICE)?;
    let address = format!("{}/24", address_of(node));
    ip(&["link", "set", "lo", "up"])?;
    ip(&["addr", "add", &address, "dev", DEVICE])?;
    ip(&["link", "set", DEVICE, "mtu", &MTU.to_string(), "up"])?;
    Ok((namespace, device))
}

fn ip(args: &[&str]) -> io::Result<()> {
    let output = Command::new("ip")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| io::Error::other(format!("ip: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    let args = args.join(" ");
    Err(io::Error::other(format!("ip {args}: {}", why.trim())))
}

/// Where an IPv4 packet goes; `None` for what is none.
fn destination(packet: &[u8]) -> Option<Ipv4Addr> {
    let first = packet.first()?;
    let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    (first >> 4 == 4).then(|| Ipv4Addr::from(to))
}

/// Passes packets on.
struct Relay {
    devices: Vec<File>,
    delay: Duration,
    shared: Arc<Shared>,
    under_way: BinaryHeap<Packet>,
    number: u64,
}

impl Relay {
    fn run(self) {
        match self.delay < FAR {
            true => self.spin(),
            false => self.sleep_between(),
        }
    }

    /// Looks again and again.
    fn spin(mut self) {
        let mut busy = Instant::now();
        while !self.shared.ends.load(Ordering::Relaxed) {
            let took = self.take();
            let now = Instant::now();
            if took {
                busy = now;
            }
            self.pass(now);
            if self.under_way.is_empty() && now.duration_since(busy) > SPIN {
                self.sleep(LONGEST);
            }
        }
    }

    /// Sleeps while nothing comes and nothing is due.
    fn sleep_between(mut self) {
        // Where either is refused, packets take somewhat longer.
        let _first = Scheduling::RoundRobin(PRIORITY).enter(Children::Reset);
        let _ = rustix::thread::set_current_timer_slack(SLACK);
        while !self.shared.ends.load(Ordering::Relaxed) {
            self.take();
            let now = Instant::now();
            self.pass(now);
            let due = self.under_way.peek().map(|packet| packet.due.0);
            let left = due.map_or(LONGEST, |due| due.saturating_duration_since(now));
            if left > EARLY {
                self.sleep(left.min(LONGEST) - EARLY);
            }
        }
    }

    /// Takes what the devices have. Says whether there was anything.
    fn take(&mut self) -> bool {
        let mut took = false;
        let mut packet = [0; MTU];
        for from in 0..self.devices.len() {
            // Nothing to be read is an error, too.
            while let Ok(length) = self.devices[from].read(&mut packet) {
                took = true;
                let to = destination(&packet[..length]).and_then(node_at);
                let to = to.filter(|&to| to < self.devices.len());
                let Some(to) = to.filter(|&to| !self.shared.is_cut(from, to)) else {
                    continue;
                };
                self.number += 1;
                self.under_way.push(Packet {
                    due: Reverse(Instant::now() + self.delay),
                    number: Reverse(self.number),
                    to,
                    bytes: packet[..length].to_vec(),
                });
            }
        }
        took
    }

    /// Hands out what is due.
    fn pass(&mut self, now: Instant) {
        while self
            .under_way
            .peek()
            .is_some_and(|packet| packet.due.0 <= now)
        {
            if let Some(packet) = self.under_way.pop() {
                // A device whose queue is full loses packets, as real ones do.
                if self.devices[packet.to].write_all(&packet.bytes).is_ok() {
                    self.shared.passed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Until something comes, or for so long.
    fn sleep(&self, longest: Duration) {
        let mut all: Vec<PollFd<'_>> = self
            .devices
            .iter()
            .map(|device| PollFd::new(device, PollFlags::IN))
            .collect();
        let longest = Timespec {
            tv_sec: 0,
            tv_nsec: longest.subsec_nanos().into(),
        };
        // However it ends, the devices are read next.
        let _ = poll(&mut all, Some(&longest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether node 1 answers node 0; `None` where it cannot be tried.
    fn reaches(network: &Network) -> Option<bool> {
        let script = "exec 3<>/dev/tcp/$0/9";
        let mut command = Command::new("bash");
        command.args(["-c", script, &network.address(1).to_string()]);
        let mut command = network.command(0, command);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        // Nobody listens: whoever is reached says so at once.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(700) {
            if child.try_wait().ok()?.is_some() {
                return Some(true);
            }
            thread::sleep(Duration::from_millis(5));
        }
        child.kill().ok()?;
        child.wait().ok()?;
        Some(false)
    }

    #[test]
    fn packets_take_the_delay_and_a_cut_stops_them() {
        let network = Network::new(2, Duration::from_millis(1));
        if let Some(why) = network.refused() {
            return println!("SKIP: {why}");
        }
        assert_eq!(reaches(&network), Some(true));
        let passed = network.passed();
        assert!(passed >= 2, "{passed}");
        for (from, to) in [(0, 1), (1, 0)] {
            network.cut(from, to, true);
            assert_eq!(reaches(&network), Some(false), "{from} to {to}");
            network.cut(from, to, false);
        }
        assert_eq!(reaches(&network), Some(true));
    }

    #[test]
    fn loopback_has_no_namespaces() {
        let network = Network::loopback(3);
        assert_eq!(network.address(2), Ipv4Addr::LOCALHOST);
        assert!(!network.is_separate() && network.refused().is_none());
        let command = network.command(1, Command::new("true"));
        assert_eq!(command.get_program(), "true");
    }

    #[test]
    fn addresses_are_those_of_nodes() {
        for node in 0..MOST_NODES {
            assert_eq!(node_at(address_of(node)), Some(node));
        }
        assert_eq!(node_at(Ipv4Addr::new(10, 203, 0, 0)), None);
        assert_eq!(destination(&[0x60; 40]), None);
        assert_eq!(destination(&[0x45; 10]), None);
    }

    #[test]
    fn the_first_to_arrive_is_the_greatest() {
        let now = Instant::now();
        let packet = |after: u64, number| Packet {
            due: Reverse(now + Duration::from_micros(after)),
            number: Reverse(number),
            to: 0,
            bytes: Vec::new(),
        };
        let mut heap: BinaryHeap<Packet> = [packet(5, 0), packet(1, 2), packet(1, 1)].into();
        let order = std::iter::from_fn(|| heap.pop().map(|packet| packet.number.0));
        assert_eq!(order.collect::<Vec<_>>(), [1, 2, 0]);
    }
}
