//! A directory that three real servers keep together, each with its copy on a disk.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use quire_dsm::directory::{DirectoryError, Lease, Plan, PlanError, Replicated, Shared};
use quire_dsm::link::turn::Config;
use quire_dsm::link::{Address, Security, Turn};
use quire_dsm::server::{self, Host, Joining, Server};
use quire_dsm::wire::control::{Hello, MachineCode, Name, PageSize, Role};
use tempfile::TempDir;

const LEASE: Duration = Duration::from_secs(2);
/// Everything that waits ends within this.
const SOON: Duration = Duration::from_secs(30);

fn hello() -> Hello {
    Hello {
        name: "server".parse::<Name>().unwrap(),
        role: Role::Server,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    }
}

fn addresses(place: &Path) -> Vec<Address> {
    let address = |number| format!("unix:{}/{number}", place.display());
    (0..3).map(|it| address(it).parse().unwrap()).collect()
}

fn plan(place: &Path, number: usize) -> Plan {
    let peers = addresses(place);
    Plan {
        own: peers[number].clone(),
        peers,
        place: place.join(format!("copy-{number}")),
        lease: LEASE,
        security: Security::Automatic(None),
        hello: hello(),
        realtime: false,
    }
}

/// A server with its copy, until it is dropped.
struct Running {
    directory: Shared,
    end: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(place: &Path, number: usize) -> Running {
        let copy = opened(place, number);
        let host = Host::All(copy.inbox());
        let directory: Shared = Arc::new(copy);
        let (end, ended) = UnixStream::pair().unwrap();
        let joining = Joining {
            directory: directory.clone(),
            host,
            address: addresses(place)[number].clone(),
            names: vec![hello().name],
            security: Security::Automatic(None),
        };
        let thread = thread::spawn(move || {
            let mut turn = Turn::new(Config::new(hello())).unwrap();
            let own = [joining.address.clone()];
            server::listen(&mut turn, &own, &Security::Automatic(None)).unwrap();
            let mut server = Server::new(hello().name, LEASE);
            server.join(&turn, joining).unwrap();
            server::serve(&mut turn, &mut server, ended.as_fd()).unwrap();
        });
        Running {
            directory,
            end: Some(end),
            thread: Some(thread),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// The copy at a place, as soon as a server that has ended lets go of it.
fn opened(place: &Path, number: usize) -> Replicated {
    let begin = Instant::now();
    loop {
        match Replicated::open(plan(place, number)) {
            Err(PlanError::Store(error)) => assert!(begin.elapsed() < SOON, "{error}"),
            opened => return opened.unwrap(),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn three(place: &Path) -> [Running; 3] {
    let all = [0, 1, 2].map(|number| Running::start(place, number));
    let begin = Instant::now();
    while let Err(error) = all[0].directory.members() {
        assert!(begin.elapsed() < SOON, "{error}");
    }
    all
}

#[test]
fn three_servers_keep_a_directory() {
    let place = TempDir::new().unwrap();
    let all = three(place.path());
    super::behaves(&all[1].directory);
    super::races(&all[1].directory, 10);
}

#[test]
fn who_asks_different_servers_sees_what_was_done_before() {
    let place = TempDir::new().unwrap();
    let all = three(place.path());
    for round in 0..20 {
        let [one, other] = [round % 3, (round + 1) % 3];
        let name = format!("n{round}");
        let entry = super::entry(&name, 7);
        all[one].directory.publish(&entry).unwrap();
        assert_eq!(all[other].directory.find(&name).unwrap(), Some(entry));
    }
}

/// What was agreed on outlives all servers at once, as long as they have their disks.
#[test]
fn copies_outlive_their_servers() {
    let place = TempDir::new().unwrap();
    let all = three(place.path());
    // More than the log keeps, so that it began anew meanwhile.
    for round in 0..300 {
        let entry = super::entry(&format!("n{round}"), round);
        all[0].directory.publish(&entry).unwrap();
    }
    drop(all);
    let all = three(place.path());
    let entries = all[2].directory.entries().unwrap();
    assert_eq!(entries.len(), 300);
}

#[test]
fn a_lease_lives_through_the_end_of_a_server() {
    let place = TempDir::new().unwrap();
    let [first, second, third] = three(place.path());
    let lease = Lease::take(third.directory.clone(), &super::member(5), LEASE).unwrap();
    for gone in [first, second] {
        drop(gone);
        thread::sleep(2 * LEASE);
        let is_over = lease.is_over(Instant::now());
        match third.directory.members() {
            Ok(members) => {
                assert!(!is_over, "two of three are there");
                assert!(members.contains(&super::member(5)));
            }
            Err(error) => {
                assert!(matches!(error, DirectoryError::Silent(..)), "{error}");
                assert!(is_over, "it is alone");
            }
        }
    }
    assert!(third.directory.members().is_err(), "one of three decides");
}

#[test]
fn a_list_that_makes_no_sense_is_refused() {
    let place = TempDir::new().unwrap();
    let refused = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan(place.path(), 0);
        change(&mut plan);
        Replicated::open(plan).err().expect("that makes no sense")
    };
    let few = refused(&|plan| plan.peers.truncate(2));
    assert!(matches!(few, PlanError::Few(2)), "{few}");
    let twice = refused(&|plan| plan.peers[2] = plan.peers[1].clone());
    assert!(matches!(twice, PlanError::Twice(_)), "{twice}");
    let stranger = refused(&|plan| plan.own = "unix:/elsewhere".parse().unwrap());
    assert!(matches!(stranger, PlanError::Stranger(_)), "{stranger}");
    // It lets go of its copy a moment later.
    drop(opened(place.path(), 0));
    let begin = Instant::now();
    let other = loop {
        match refused(&|plan| plan.own = plan.peers[1].clone()) {
            PlanError::Store(error) => assert!(begin.elapsed() < SOON, "{error}"),
            other => break other,
        }
        thread::sleep(Duration::from_millis(10));
    };
    assert!(matches!(other, PlanError::Other { .. }), "{other}");
    let foreign = refused(&|plan| plan.place = place.path().to_owned());
    assert!(foreign.to_string().contains("not empty"), "{foreign}");
    let damaged = place.path().join("copy-0/directory");
    let mut bytes = std::fs::read(&damaged).unwrap();
    // Both places, behind a first block.
    bytes[4096..].iter_mut().for_each(|byte| *byte ^= 1);
    std::fs::write(&damaged, bytes).unwrap();
    let damaged = refused(&|_| ());
    assert!(damaged.to_string().contains("damaged"), "{damaged}");
}
