//! The server of the demonstration, and the processes that are its nodes.

use std::env;
use std::io::{self, BufRead, BufReader};
use std::process::{self, Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use quire_core::units::Bytes;
use quire_dsm::client::{Client, Options};
use quire_dsm::link::Address;
use quire_dsm::wire::control::{
    MachineCode, Name, NameError, Object, PageSize, Rights, SchedulerKind,
};
use quire_lab::network::Network;

use super::ownership::{self, Ownership};
use crate::failure::{Failure, Outcome};
use crate::object::failed;

/// A watcher looks at least so often whether it is over.
const PATIENCE: Duration = Duration::from_secs(1);

/// A program that is to run on so many nodes.
#[derive(Clone, Debug)]
pub struct Job {
    /// What it is called where people read it.
    pub title: String,
    /// Its name.
    pub program: String,
    /// Its size.
    pub size: usize,
    /// The memory that it needs.
    pub memory: Bytes,
    /// The nodes.
    pub members: usize,
    /// What orders the faults.
    pub scheduler: SchedulerKind,
}

impl Job {
    fn object(&self) -> Outcome<Object> {
        Ok(Object {
            name: named("demo")?,
            size: self.memory,
            page_size: PageSize::BASE,
            scheduler: self.scheduler,
            machine: MachineCode(0),
            tags: Vec::new(),
        })
    }
}

/// The network of the demonstration, and its server, a process.
#[derive(Debug)]
pub struct Served {
    network: Network,
    /// Where nodes reach the server, and where this process does: a Unix socket, which is
    /// not of a network namespace.
    address: Address,
    own: Address,
    server: Child,
}

/// The node of the server; members are behind it.
const SERVER: usize = 0;
/// Where the server listens in its namespace.
const PORT: u16 = 7450;

impl Drop for Served {
    /// The server ends when its input does.
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        // It has ended, or was killed by somebody.
        let _ = self.server.wait();
    }
}

fn refused(error: io::Error) -> Failure {
    Failure::system(error.to_string())
}

fn named(text: &str) -> Outcome<Name> {
    let name: Result<Name, NameError> = text.parse();
    name.map_err(|error| Failure::bad_usage(error.to_string()))
}

fn address(text: &str) -> Outcome<Address> {
    let address = text.parse();
    address.map_err(|error| Failure::system(format!("{text}: {error}")))
}

impl Served {
    /// Starts it on a network with a node for it and one for each member.
    pub fn start(network: Network) -> Outcome<Served> {
        let directory = env::temp_dir().join(format!("quire-demo-{}", process::id()));
        let own = format!("unix:{}/socket", directory.display());
        let port = if network.is_separate() { PORT } else { 0 };
        let listen = format!("{}:{port}", network.address(SERVER));
        let mut command = Command::new(env::current_exe().map_err(refused)?);
        command.args(["dsm", "host", "--listen", &listen, "--directory"]);
        command.arg(directory);
        let mut server = network
            .command(SERVER, command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(refused)?;
        let addresses = addresses(&mut server).map_err(refused)?;
        let Some(listens) = addresses.last().filter(|_| addresses.len() == 2) else {
            return Err(Failure::system(
                "the server of the demonstration did not start",
            ));
        };
        Ok(Served {
            network,
            address: address(listens)?,
            own: address(&own)?,
            server,
        })
    }

    fn client(&self) -> Outcome<Client> {
        let mut options = Options::new(self.own.clone().into(), named("demo")?);
        // What it looks at is not to be changed by that.
        options.own_pages = true;
        Client::connect(options).map_err(failed)
    }

    /// Runs a program once. Returns how long it took, in seconds.
    pub fn run(&self, job: &Job) -> Outcome<f64> {
        let client = self.client()?;
        create(&client, job)?;
        let took = self.members(job)?;
        client.remove(named("demo")?).map_err(failed)?;
        Ok(took)
    }

    /// Runs a program once, and watches who has which page when.
    pub fn watched(&self, job: &Job) -> Outcome<Ownership> {
        let client = self.client()?;
        create(&client, job)?;
        let name = named("demo")?;
        let mut watch = client.watch(name.clone(), None).map_err(failed)?;
        let ownership = thread::scope(|scope| {
            let looking = scope.spawn(move || {
                let mut ownership = Ownership::default();
                // It ends when the object is removed.
                while let Ok(watched) = watch.next(PATIENCE) {
                    ownership.learn(&watched.unwrap_or_default());
                }
                ownership
            });
            let ran = self.members(job);
            let removed = client.remove(name).map_err(failed);
            let looked = looking.join();
            ran.and(removed)?;
            looked.map_err(|_| Failure::system("the thread that watches panicked"))
        })?;
        Ok(ownership)
    }

    /// Runs all members. Returns how long the slowest took, in seconds.
    fn members(&self, job: &Job) -> Outcome<f64> {
        let members = 0..job.members;
        let started: io::Result<Vec<Child>> = members.map(|me| self.member(job, me)).collect();
        let mut longest: f64 = 0.0;
        for child in started.map_err(refused)? {
            let output = child.wait_with_output().map_err(refused)?;
            let text = String::from_utf8_lossy(&output.stdout);
            let seconds: Option<f64> = text.trim().parse().ok();
            let seconds = seconds.filter(|_| output.status.success());
            let seconds = seconds.ok_or_else(|| {
                Failure::system(format!("{}: a node failed ({})", job.title, output.status))
            })?;
            longest = longest.max(seconds);
        }
        Ok(longest)
    }

    fn member(&self, job: &Job, me: usize) -> io::Result<Child> {
        let mut command = Command::new(env::current_exe()?);
        command
            .args([
                "dsm",
                "member",
                "--object",
                "demo",
                "--program",
                &job.program,
            ])
            .args(["--server", &self.address.to_string()])
            .args(["--identity", &ownership::name(me)])
            .args(["--size", &job.size.to_string(), "--me", &me.to_string()])
            .args(["--members", &job.members.to_string(), "--plaintext"]);
        self.network
            .command(SERVER + 1 + me, command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
    }
}

/// Where the server says that it listens.
fn addresses(server: &mut Child) -> io::Result<Vec<String>> {
    let Some(stdout) = server.stdout.take() else {
        return Ok(Vec::new());
    };
    let lines = BufReader::new(stdout).lines().take(2);
    let address = |line: String| line.strip_prefix("serving at ").map(str::to_owned);
    let lines: io::Result<Vec<String>> = lines.collect();
    Ok(lines?.into_iter().filter_map(address).collect())
}

/// Makes the object of a run, which the nodes may read and write: they come over TCP, where
/// nobody is known.
fn create(client: &Client, job: &Job) -> Outcome<()> {
    client.create(job.object()?).map_err(failed)?;
    let both = Rights {
        read: true,
        write: true,
    };
    let granted = client.grant(named("demo")?, "anyone".into(), both);
    granted.map_err(failed)
}
