//! Nodes, far from each other or not, and the server on the first of them.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::ops::Deref;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use quire_lab::network::Network;
use quire_lab::share::Share;
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;

use crate::dsm::orders::Orders;
use crate::dsm::results::Results;

/// Nodes, with the server's.
const NODES: usize = 5;

/// Where nodes have a share of a processor each, they have so much of it in each period.
const SHARE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(2)];
/// Nodes that have one, with the server's.
const SHARING: usize = 3;

/// How those wait who answer faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Asleep.
    Sleeping,
    /// They look again and again.
    Polling,
}

impl Waiting {
    /// Both.
    pub const ALL: [Waiting; 2] = [Waiting::Sleeping, Waiting::Polling];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Waiting::Sleeping => "sleeping",
            Waiting::Polling => "polling",
        }
    }

    /// For how long they look again.
    pub const fn spin(self) -> Duration {
        match self {
            Waiting::Sleeping => Duration::ZERO,
            Waiting::Polling => Duration::from_millis(2),
        }
    }
}

/// Nodes between which packets take a time.
pub struct Site {
    network: Network,
    /// What each node has of a processor, where they have less than all of it.
    shares: Vec<Share>,
    /// How long packets take, one way.
    delay: Duration,
    /// In words.
    pub setting: String,
}

impl Site {
    /// Nodes with a delay, or all on this machine's loopback where it is zero. `None`, with a
    /// note, where that cannot be had.
    pub fn new(delay: Duration, results: &mut Results) -> Option<Site> {
        if delay.is_zero() {
            return Some(Site {
                network: Network::loopback(NODES),
                shares: Vec::new(),
                delay,
                setting: "loopback".to_owned(),
            });
        }
        let network = Network::new(NODES, delay);
        if let Some(why) = network.refused() {
            let note = format!("Nothing with a delay was measured: {why}.");
            eprintln!("{note}");
            results.note(note);
            return None;
        }
        results.note("Between nodes with a delay a relay of this program passes packets on; where the delay is short it spins, and takes a processor while packets are under way.");
        Some(Site {
            network,
            shares: Vec::new(),
            delay,
            setting: format!("{} us", delay.as_micros()),
        })
    }

    /// A server's node and two more, all on this machine's loopback, each of which has half a
    /// processor, so that none takes anything from another. `None`, with a note, where that cannot
    /// be had.
    pub fn halves(results: &mut Results) -> Option<Site> {
        let shares = shares().map_err(|why| {
            let note =
                format!("Nothing was measured on nodes with half a processor each: {why:#}.");
            eprintln!("{note}");
            results.note(note);
        });
        Some(Site {
            network: Network::loopback(SHARING),
            shares: shares.ok()?,
            delay: Duration::ZERO,
            setting: "loopback, half a processor each".to_owned(),
        })
    }

    /// Whether nodes have less than a processor each.
    pub fn has_shares(&self) -> bool {
        !self.shares.is_empty()
    }

    /// Nothing that goes to another node and back can be faster, in microseconds.
    pub fn round_trip_us(&self) -> f64 {
        self.delay.as_secs_f64() * 2e6
    }

    /// The ways to wait that this machine has the processors for: to poll, the server, the
    /// thread that answers faults and the relay take one each, and the program one more.
    pub fn waits(&self, results: &mut Results) -> Vec<Waiting> {
        let cores = processors();
        if cores < 4 && self.network.is_separate() {
            results.note(format!("With {cores} processors nothing is measured that polls between nodes with a delay: it takes four, with the relay's."));
            return vec![Waiting::Sleeping];
        }
        if cores < 3 {
            results.note(format!("With {cores} processors those who poll take them from the program that they work for: read the figures as those of too small a machine."));
        }
        Waiting::ALL.to_vec()
    }

    /// Starts a worker at a node. It ends when the `Child`'s input is closed.
    pub fn start(&self, node: usize, orders: &Orders) -> Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("dsm-worker").args(orders.arguments());
        if let Some(share) = self.shares.get(node) {
            command = share.command(node % processors(), &command);
        }
        self.network
            .command(node, command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting a worker at node {node}"))
    }

    /// Starts something that others connect to, at the first node.
    pub fn serve(&self, orders: Orders) -> Result<Served> {
        self.serve_at(&self.any_address(0), orders)
    }

    /// An address at a node, with whatever port is free.
    pub fn any_address(&self, node: usize) -> String {
        format!("{}:0", self.network.address(node))
    }

    /// Starts something that others connect to at this address, at the first node.
    pub fn serve_at(&self, listen: &str, orders: Orders) -> Result<Served> {
        self.serve_on(0, listen, orders)
    }

    /// Starts something that others connect to at this address, at a node.
    pub fn serve_on(&self, node: usize, listen: &str, orders: Orders) -> Result<Served> {
        let orders = orders.with("--listen", listen);
        let mut process = self.attend(node, &orders)?;
        let address = process.line()?;
        if address.is_empty() {
            let status = process.child.wait()?;
            bail!("{orders:?} did not start: {status}");
        }
        Ok(Served { process, address })
    }

    /// Starts a worker that answers each line of its input, at a node.
    pub fn attend(&self, node: usize, orders: &Orders) -> Result<Attending> {
        let mut child = self.start(node, orders)?;
        let output = child.stdout.take().context("no output")?;
        let output = BufReader::new(output);
        Ok(Attending { child, output })
    }

    /// An address at a node where nobody listens.
    pub fn free_address(&self, node: usize) -> Result<String> {
        let address = self.network.address(node);
        if self.network.is_separate() {
            // All there is there are workers.
            return Ok(format!("{address}:4000"));
        }
        let listener = TcpListener::bind((address.to_string(), 0))?;
        Ok(listener.local_addr()?.to_string())
    }

    /// Runs a worker to its end. Returns what it found.
    pub fn run<T: DeserializeOwned>(&self, node: usize, orders: &Orders) -> Result<T> {
        answer(self.start(node, orders)?, orders)
    }

    /// Runs workers at once, at the nodes from the second on. Returns what they found.
    pub fn together<T: DeserializeOwned>(
        &self,
        all: impl IntoIterator<Item = Orders>,
    ) -> Result<Vec<T>> {
        let mut children = Vec::new();
        for (number, orders) in all.into_iter().enumerate() {
            // More workers than nodes share them.
            let node = number % (self.network.nodes() - 1) + 1;
            children.push((self.start(node, &orders)?, orders));
        }
        let answers = children.into_iter();
        answers
            .map(|(child, orders)| answer(child, &orders))
            .collect()
    }
}

/// How many processors there are.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// One for each node, all of which fit on this machine's processors.
fn shares() -> Result<Vec<Share>> {
    let [time, period] = SHARE;
    let processors = processors();
    let needed = SHARING as f64 * time.div_duration_f64(period);
    ensure!(
        needed <= processors as f64,
        "they take {needed} processors, and there is {processors}"
    );
    let shares = (0..SHARING).map(|_| Share::new(time, period));
    shares.collect::<Result<_, _>>().context("run as root")
}

/// What a worker printed at its end.
fn answer<T: DeserializeOwned>(mut child: Child, orders: &Orders) -> Result<T> {
    let input = child.stdin.take();
    let output = child.wait_with_output()?;
    drop(input);
    ensure!(output.status.success(), "{orders:?}: {}", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("{orders:?} printed no result"))
}

/// A process that answers each line of its input, and ends with that.
pub struct Attending {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Attending {
    /// Tells it to do its part once more, and gets its answer.
    pub fn ask<T: DeserializeOwned>(&mut self) -> Result<T> {
        self.release()?;
        self.answer()
    }

    /// Tells it to do its part once more. Its answer has to be read.
    pub fn release(&mut self) -> Result<()> {
        let input = self.child.stdin.as_mut().context("no input")?;
        Ok(input.write_all(b"\n")?)
    }

    /// What it answers next, from JSON.
    pub fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("a worker answered {line:?}"))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        // Without its input it ends.
        self.child.stdin = None;
        let _ = self.child.wait();
    }
}

/// A process that others connect to.
pub struct Served {
    process: Attending,
    /// Where it is.
    pub address: String,
}

impl Served {
    /// Tells it to end, without waiting for it.
    fn end(&mut self) {
        self.process.child.stdin = None;
    }

    /// Stops it until what is returned is dropped.
    pub fn stop(&self) -> Result<Stopped> {
        let process = Pid::from_child(&self.process.child);
        kill_process(process, Signal::STOP)?;
        Ok(Stopped(process))
    }

    /// The processor time that it has used so far, in seconds.
    pub fn processor_seconds(&mut self) -> Result<f64> {
        self.process.ask()
    }
}

/// Servers that are joined. The first keeps their directory, and ends when the others have: without
/// it, these would wait for it before they give up what they could hand over to each other.
pub struct PeerServers(pub Vec<Served>);

impl Deref for PeerServers {
    type Target = [Served];

    fn deref(&self) -> &[Served] {
        &self.0
    }
}

impl Drop for PeerServers {
    fn drop(&mut self) {
        let mut others = self.0.split_off(self.0.len().min(1));
        // At once: one after the other, each would hand over to the next.
        others.iter_mut().for_each(Served::end);
    }
}

/// A process that is stopped as long as this lives.
#[must_use]
pub struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}
