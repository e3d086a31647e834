//! Machines in network namespaces, joined by a bridge in a namespace of its own. Namespaces and
//! devices live as long as files of this process, so that nothing is left behind however it ends.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::thread;

use quire_linux::tun::own_namespace;

/// How a machine's link is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As if the cable were pulled.
    Both,
    /// What it sends goes nowhere.
    Out,
    /// What others send to it goes nowhere.
    In,
}

/// Machines that reach each other.
pub struct Network {
    bridge: File,
    machines: Vec<File>,
}

impl Network {
    /// So many machines.
    ///
    /// # Errors
    /// Where namespaces and bridges cannot be made, and why.
    pub fn of(machines: usize) -> io::Result<Network> {
        let network = Network {
            bridge: namespace()?,
            machines: (0..machines)
                .map(|_| namespace())
                .collect::<Result<_, _>>()?,
        };
        network.ip_of_bridge(&["link", "add", "quire-bridge", "type", "bridge"])?;
        network.ip_of_bridge(&["link", "set", "quire-bridge", "up"])?;
        for machine in 0..machines {
            let there = path(&network.machines[machine]);
            let port = port(machine);
            let pair = [
                "link", "add", &port, "type", "veth", "peer", "name", "quire0", "netns", &there,
            ];
            network.ip_of_bridge(&pair)?;
            network.ip_of_bridge(&["link", "set", &port, "master", "quire-bridge", "up"])?;
            let address = format!("{}/24", address(machine));
            network.ip(machine, &["link", "set", "lo", "up"])?;
            network.ip(machine, &["addr", "add", &address, "dev", "quire0"])?;
            network.ip(machine, &["link", "set", "quire0", "up"])?;
        }
        Ok(network)
    }

    /// A command that runs a program at a machine.
    pub fn at(&self, machine: usize, program: &str) -> Command {
        inside(&self.machines[machine], program)
    }

    /// Cuts the link of a machine, or mends it.
    pub fn cut(&self, machine: usize, way: Way, is_cut: bool) {
        let verb = if is_cut { "add" } else { "del" };
        let away = |from: usize, to: usize| {
            let to = address(to);
            self.ip(from, &["route", verb, "blackhole", &to])
        };
        let others = (0..self.machines.len()).filter(|other| *other != machine);
        let done: io::Result<()> = match way {
            Way::Both => {
                let state = if is_cut { "down" } else { "up" };
                self.ip_of_bridge(&["link", "set", &port(machine), state])
            }
            Way::Out => others.into_iter().try_for_each(|to| away(machine, to)),
            Way::In => others.into_iter().try_for_each(|from| away(from, machine)),
        };
        done.expect("the link changes");
    }

    fn ip(&self, machine: usize, args: &[&str]) -> io::Result<()> {
        run(self.at(machine, "ip").args(args))
    }

    fn ip_of_bridge(&self, args: &[&str]) -> io::Result<()> {
        run(inside(&self.bridge, "ip").args(args))
    }
}

/// Where others reach a machine.
pub fn address(machine: usize) -> String {
    format!("10.203.0.{}", machine + 1)
}

/// A machine's port of the bridge.
fn port(machine: usize) -> String {
    format!("port{machine}")
}

fn namespace() -> io::Result<File> {
    // A thread's own, which ends with it but for the file.
    let made = thread::spawn(own_namespace).join();
    made.map_err(|_| io::Error::other("a thread panicked"))?
}

fn path(namespace: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd())
}

fn inside(namespace: &File, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", path(namespace)));
    command.arg("--").arg(program);
    command
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("{command:?}: {why}")))
}
