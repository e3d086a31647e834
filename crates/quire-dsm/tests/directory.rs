//! The directory: the same tests for the embedded one, for one over a link, for one that three
//! servers keep together, and for a real etcd that they start; and what becomes of leases when an
//! etcd stops or a part of a cluster is cut off.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine};
use quire_core::dsm::message::ServerId;
use quire_core::dsm::types::Machine;
use quire_core::units::Bytes;
use quire_dsm::directory::{
    Access, Change, Desk, Directory, DirectoryError, Embedded, Entry, Etcd, EtcdUser, Lease,
    LeaseId, Matter, Member, Shared, View, Watcher,
};
use quire_dsm::store::{NewObject, Object, ObjectId, SchedulerKind, Settings, Store};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use rustls::ClientConfig;

#[path = "directory/crowd.rs"]
mod crowd;
#[path = "directory/endpoints.rs"]
mod endpoints;
#[path = "directory/names.rs"]
mod names;
#[path = "directory/remote.rs"]
mod remote;
#[path = "directory/replicated.rs"]
mod replicated;

fn member(id: u64) -> Member {
    Member {
        id: ServerId(id),
        address: format!("127.0.0.1:{}", 7000 + id),
    }
}

fn entry(name: &str, id: u64) -> Entry {
    Entry {
        object: Object {
            id: ObjectId(id),
            created: 1,
            is: NewObject {
                name: name.to_owned(),
                size: Bytes(1 << 47),
                page_size: Bytes(4096),
                scheduler: SchedulerKind::Distributed,
                machine: Machine::Little,
                tags: Vec::new(),
                owner: "uid:7".to_owned(),
                rights: Vec::new(),
            },
        },
        home: ServerId(1),
        store: None,
        is_removed: false,
    }
}

fn view(object: u64, epoch: u64, by: u64) -> View {
    View {
        object: ObjectId(object),
        epoch,
        members: vec![ServerId(by)],
        by: ServerId(by),
    }
}

fn watch(directory: &dyn Directory) -> Receiver<Change> {
    let (changes, heard) = mpsc::channel();
    let wake = Arc::new(|| ());
    directory.watch(Watcher { changes, wake }).unwrap();
    assert_eq!(next(&heard), Change::Missed);
    heard
}

/// Whether a server is one of those that these tests make members. Servers that keep a
/// directory are members of it, too, under large numbers.
fn is_ours(id: ServerId) -> bool {
    id.0 < 1000
}

/// The next change that these tests have made.
fn next(heard: &Receiver<Change>) -> Change {
    loop {
        let change = heard.recv_timeout(Duration::from_secs(20));
        match change.expect("no change is heard") {
            Change::Joined(Member { id, .. }) | Change::Left(id) if !is_ours(id) => {}
            change => return change,
        }
    }
}

fn members(directory: &Shared) -> Vec<Member> {
    let mut members = directory.members().unwrap();
    members.retain(|member| is_ours(member.id));
    members
}

/// What every directory must do.
fn behaves(directory: &Shared) {
    let heard = watch(&**directory);
    let long = Duration::from_secs(60);

    // Members.
    let (lease, granted) = directory.join(&member(1), long).unwrap();
    assert!(granted >= long);
    assert_eq!(next(&heard), Change::Joined(member(1)));
    let again = directory.join(&member(1), long);
    assert!(matches!(again, Err(DirectoryError::Exists(_))), "{again:?}");
    let (other, _) = directory.join(&member(2), long).unwrap();
    assert_eq!(members(directory), [member(1), member(2)]);
    assert_eq!(next(&heard), Change::Joined(member(2)));
    assert!(directory.renew(lease).unwrap() >= long);

    // Names.
    let (one, two) = (entry("one", u64::MAX), entry("two", 2));
    directory.publish(&one).unwrap();
    assert_eq!(next(&heard), Change::Published(one.clone()));
    let again = directory.publish(&entry("one", 3));
    assert!(matches!(again, Err(DirectoryError::Exists(_))), "{again:?}");
    directory.publish(&two).unwrap();
    assert_eq!(next(&heard), Change::Published(two.clone()));
    assert_eq!(directory.find("one").unwrap(), Some(one.clone()));
    assert_eq!(directory.find("on").unwrap(), None);
    assert_eq!(directory.entries().unwrap(), [one.clone(), two]);

    // Views.
    let object = one.object.id;
    assert_eq!(directory.view(object).unwrap(), None);
    let too_far = directory.propose(lease, &view(object.0, 2, 1));
    assert_eq!(
        too_far,
        Err(DirectoryError::WrongEpoch {
            current: 0,
            wanted: 2
        })
    );
    let first = view(object.0, 1, 1);
    directory.propose(lease, &first).unwrap();
    assert_eq!(next(&heard), Change::Viewed(first.clone()));
    let late = directory.propose(other, &view(object.0, 1, 2));
    assert_eq!(late, Err(DirectoryError::Overtaken(first)));
    let second = view(object.0, 2, 2);
    directory.propose(other, &second).unwrap();
    assert_eq!(next(&heard), Change::Viewed(second.clone()));
    assert_eq!(directory.view(object).unwrap(), Some(second));

    // Nobody makes views with another's lease, or without one.
    let forged = directory.propose(lease, &view(object.0, 3, 2));
    assert_eq!(forged, Err(DirectoryError::LeaseOver));
    directory.leave(other).unwrap();
    directory.leave(other).unwrap();
    assert_eq!(next(&heard), Change::Left(ServerId(2)));
    let gone = directory.propose(other, &view(object.0, 3, 2));
    assert_eq!(gone, Err(DirectoryError::LeaseOver));
    assert_eq!(directory.renew(other), Err(DirectoryError::LeaseOver));
    assert_eq!(members(directory), [member(1)]);

    // Names and their views go together.
    directory.withdraw("one").unwrap();
    assert_eq!(next(&heard), Change::Withdrawn("one".to_owned()));
    assert_eq!(directory.view(object).unwrap(), None);
    let again = directory.withdraw("one");
    assert!(
        matches!(again, Err(DirectoryError::Missing(_))),
        "{again:?}"
    );
    names::are_free_at_once(directory);
    names::race(directory);
    names::are_begun(directory);
    names::are_removed_once(directory);
}

/// Servers race for each epoch: exactly one makes it, and it grows by one.
fn races(directory: &Shared, rounds: u64) {
    let long = Duration::from_secs(60);
    let (servers, made) = (6, AtomicU64::new(0));
    let barrier = Barrier::new(servers);
    std::thread::scope(|scope| {
        for server in 10..10 + servers as u64 {
            let (barrier, made) = (&barrier, &made);
            scope.spawn(move || {
                let (lease, _) = directory.join(&member(server), long).unwrap();
                for epoch in 1..=rounds {
                    barrier.wait();
                    match directory.propose(lease, &view(77, epoch, server)) {
                        Ok(()) => {
                            made.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(DirectoryError::Overtaken(winner)) => {
                            assert_eq!(winner.epoch, epoch);
                            assert_ne!(winner.by, ServerId(server));
                        }
                        Err(error) => panic!("{error}"),
                    }
                    barrier.wait();
                    let current = directory.view(ObjectId(77)).unwrap().unwrap();
                    assert_eq!(current.epoch, epoch);
                }
                directory.leave(lease).unwrap();
            });
        }
    });
    assert_eq!(made.load(Ordering::SeqCst), rounds);
}

#[test]
fn the_embedded_directory() {
    let directory: Shared = Arc::new(Embedded::new(None).unwrap());
    behaves(&directory);
    races(&directory, 200);
}

/// A server that was joined through it may not have heard that it was started again.
#[test]
fn leases_of_an_earlier_directory_are_none_of_the_next() {
    let [earlier, next] = [(); 2].map(|()| Embedded::new(None).unwrap());
    let length = Duration::from_secs(60);
    let (old, _) = earlier.join(&member(1), length).unwrap();
    let (new, _) = next.join(&member(2), length).unwrap();
    assert_eq!(next.renew(old), Err(DirectoryError::LeaseOver));
    next.leave(old).unwrap();
    assert_eq!(next.members().unwrap(), [member(2)]);
    assert_eq!(next.renew(new), Ok(length));
}

#[test]
fn names_and_views_outlive_the_server() {
    let place = tempfile::tempdir().unwrap();
    let settings = Settings {
        log: Settings::SMALLEST_LOG,
        ..Settings::default()
    };
    let open = || Arc::new(Store::open(place.path(), &settings).unwrap());
    let directory = Embedded::new(Some(open())).unwrap();
    let (lease, _) = directory.join(&member(1), Duration::from_secs(9)).unwrap();
    directory.publish(&entry("one", 5)).unwrap();
    directory.propose(lease, &view(5, 1, 1)).unwrap();
    drop(directory);
    let directory = Embedded::new(Some(open())).unwrap();
    assert_eq!(directory.find("one").unwrap(), Some(entry("one", 5)));
    assert_eq!(directory.view(ObjectId(5)).unwrap(), Some(view(5, 1, 1)));
    assert_eq!(directory.members().unwrap(), []);
    assert_eq!(directory.renew(lease), Err(DirectoryError::LeaseOver));
}

#[test]
fn an_embedded_lease_ends_by_the_clock() {
    let now = Arc::new(Mutex::new(Instant::now()));
    let clock = now.clone();
    let clock = Arc::new(move || *clock.lock().unwrap());
    let directory: Shared = Arc::new(Embedded::with_clock(None, clock).unwrap());
    let length = Duration::from_secs(10);
    let (lease, _) = directory.join(&member(1), length).unwrap();
    let heard = watch(&*directory);
    *now.lock().unwrap() += Duration::from_secs(9);
    assert_eq!(directory.renew(lease), Ok(length));
    *now.lock().unwrap() += Duration::from_secs(9);
    assert_eq!(directory.members().unwrap(), [member(1)]);
    *now.lock().unwrap() += Duration::from_secs(1);
    assert_eq!(directory.renew(lease), Err(DirectoryError::LeaseOver));
    assert_eq!(next(&heard), Change::Left(ServerId(1)));
    assert_eq!(directory.members().unwrap(), []);
}

/// A directory that can be cut off, and may be slow.
struct Cut {
    inner: Shared,
    cut: Mutex<bool>,
    /// So long it takes to make a name known.
    publishing: Duration,
}

impl Cut {
    fn through(&self) -> Result<&dyn Directory, DirectoryError> {
        if *self.cut.lock().unwrap() {
            return Err(DirectoryError::Silent("it".to_owned(), "cut".to_owned()));
        }
        Ok(&*self.inner)
    }
}

impl Directory for Cut {
    fn join(
        &self,
        member: &Member,
        lease: Duration,
    ) -> Result<(LeaseId, Duration), DirectoryError> {
        self.through()?.join(member, lease)
    }
    fn renew(&self, lease: LeaseId) -> Result<Duration, DirectoryError> {
        let renewed = self.through()?.renew(lease);
        // The answer takes its time: what counts is when the question was sent.
        std::thread::sleep(Duration::from_millis(200));
        renewed
    }
    fn leave(&self, lease: LeaseId) -> Result<(), DirectoryError> {
        self.through()?.leave(lease)
    }
    fn members(&self) -> Result<Vec<Member>, DirectoryError> {
        self.through()?.members()
    }
    fn publish(&self, entry: &Entry) -> Result<(), DirectoryError> {
        std::thread::sleep(self.publishing);
        self.through()?.publish(entry)
    }
    fn find(&self, name: &str) -> Result<Option<Entry>, DirectoryError> {
        self.through()?.find(name)
    }
    fn entries(&self) -> Result<Vec<Entry>, DirectoryError> {
        self.through()?.entries()
    }
    fn begin(&self, lease: LeaseId, entry: &Entry) -> Result<(), DirectoryError> {
        self.through()?.begin(lease, entry)
    }
    fn give_size(&self, entry: &Entry) -> Result<(), DirectoryError> {
        self.through()?.give_size(entry)
    }

    fn end_begun(&self, key: &str) -> Result<(), DirectoryError> {
        self.through()?.end_begun(key)
    }
    fn discard(&self, key: &str) -> Result<(), DirectoryError> {
        self.through()?.discard(key)
    }
    fn withdraw(&self, key: &str) -> Result<bool, DirectoryError> {
        self.through()?.withdraw(key)
    }
    fn view(&self, object: ObjectId) -> Result<Option<View>, DirectoryError> {
        self.through()?.view(object)
    }
    fn propose(&self, lease: LeaseId, view: &View) -> Result<(), DirectoryError> {
        self.through()?.propose(lease, view)
    }
    fn watch(&self, watcher: Watcher) -> Result<(), DirectoryError> {
        self.through()?.watch(watcher)
    }
}

/// Waits until others see a member gone. Its lease must be over by its own clock then.
fn gone(lease: &Lease, others: &dyn Directory, id: ServerId) {
    let start = Instant::now();
    loop {
        let members = others.members().unwrap();
        let now = Instant::now();
        if members.iter().all(|member| member.id != id) {
            assert!(lease.is_over(now), "the others saw it gone first");
            return;
        }
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(30), "it stays a member");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_lease_is_over_for_its_holder_first() {
    let inner: Shared = Arc::new(Embedded::new(None).unwrap());
    let cut = Arc::new(Cut {
        inner: inner.clone(),
        cut: Mutex::new(false),
        publishing: Duration::ZERO,
    });
    let lease = Lease::take(cut.clone(), &member(1), Duration::from_secs(2)).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert!(!lease.is_over(Instant::now()), "it is renewed");
    assert!(lease.ends() > Instant::now());
    *cut.cut.lock().unwrap() = true;
    gone(&lease, &*inner, ServerId(1));
    // What was given up does not come back.
    *cut.cut.lock().unwrap() = false;
    std::thread::sleep(Duration::from_millis(500));
    assert!(lease.is_over(Instant::now()));
    drop(lease);
    assert_eq!(inner.members().unwrap(), []);
    // Dropping a lease leaves the directory.
    let lease = Lease::take(inner.clone(), &member(2), Duration::from_secs(60)).unwrap();
    drop(lease);
    assert_eq!(inner.members().unwrap(), []);
}

#[test]
fn a_desk_answers_in_order() {
    let directory: Shared = Arc::new(Embedded::new(None).unwrap());
    let (sender, woken) = mpsc::channel();
    let wake = Arc::new(move || {
        let _ = sender.send(());
    });
    let desk = Desk::new(directory, wake).unwrap();
    desk.ask(Matter::Names, |directory| {
        (1, directory.find("one").unwrap())
    });
    desk.ask(Matter::Names, |directory| {
        directory.publish(&entry("one", 5)).unwrap();
        (2, directory.find("one").unwrap())
    });
    for wanted in [(1, None), (2, Some(entry("one", 5)))] {
        woken.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(desk.answer(), Some(wanted));
    }
    assert_eq!(desk.answer(), None);
}

/// What programs ask may take as long as it likes, and what waits for its time lets others go first.
#[test]
fn questions_about_views_wait_for_no_others() {
    let directory: Shared = Arc::new(Embedded::new(None).unwrap());
    let (sender, woken) = mpsc::channel();
    let wake = Arc::new(move || {
        let _ = sender.send(());
    });
    let answer = |desk: &Desk<u32>| {
        woken.recv_timeout(Duration::from_secs(10)).unwrap();
        desk.answer().unwrap()
    };
    let desk = Desk::new(directory, wake).unwrap();
    let (go_on, waits) = mpsc::channel::<()>();
    desk.ask(Matter::Names, move |_| {
        let _ = waits.recv();
        1
    });
    let pause = Duration::from_millis(300);
    let begin = Instant::now();
    desk.ask_later(Matter::Views, pause, |_| 2);
    desk.ask(Matter::Views, |_| 3);
    assert_eq!(answer(&desk), 3);
    assert_eq!(answer(&desk), 2);
    assert!(begin.elapsed() >= pause);
    drop(go_on);
    assert_eq!(answer(&desk), 1);
}

/// An etcd, killed when it is dropped.
struct Server {
    child: Child,
    arguments: Vec<String>,
    url: String,
    _data: tempfile::TempDir,
}

impl Server {
    fn start(arguments: &[String]) -> std::io::Result<Child> {
        Command::new("etcd")
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    }

    /// Kills it, and starts it on what it has written.
    fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Server::start(&self.arguments).unwrap();
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Stops it. On other processors its threads run on for a moment, which this waits for.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn free_url() -> String {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", socket.local_addr().unwrap())
}

/// A cluster of etcds. Where there is no etcd, that is said.
fn etcds(count: usize) -> Option<Vec<Server>> {
    etcds_with(count, "http", &[])
}

fn etcds_with(count: usize, scheme: &str, options: &[String]) -> Option<Vec<Server>> {
    let name = |index: usize| format!("e{index}");
    let peers: Vec<_> = (0..count).map(|_| free_url()).collect();
    let cluster: Vec<_> = peers
        .iter()
        .enumerate()
        .map(|(index, url)| format!("{}={url}", name(index)))
        .collect();
    let mut servers = Vec::new();
    for (index, peer) in peers.iter().enumerate() {
        let data = tempfile::tempdir().unwrap();
        let url = free_url().replace("http", scheme);
        let own = [
            ("--name", name(index)),
            ("--data-dir", data.path().display().to_string()),
            ("--listen-client-urls", url.clone()),
            ("--advertise-client-urls", url.clone()),
            ("--listen-peer-urls", peer.clone()),
            ("--initial-advertise-peer-urls", peer.clone()),
            ("--initial-cluster", cluster.join(",")),
            ("--heartbeat-interval", "50".to_owned()),
            ("--election-timeout", "500".to_owned()),
        ];
        let mut arguments: Vec<String> = options.to_vec();
        for (option, value) in own {
            arguments.extend([option.to_owned(), value]);
        }
        let child = Server::start(&arguments);
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                let test = std::thread::current().name().unwrap_or("test").to_owned();
                eprintln!("SKIP: {test}: no etcd, run ./setup: {error}");
                return None;
            }
        };
        servers.push(Server {
            child,
            arguments,
            url,
            _data: data,
        });
    }
    Some(servers)
}

fn connect(urls: &str, prefix: &str) -> Etcd {
    let start = Instant::now();
    loop {
        match Etcd::connect(urls, prefix, Access::default()) {
            Ok(etcd) => return etcd,
            Err(error) if start.elapsed() > Duration::from_secs(30) => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

#[test]
fn the_directory_in_etcd() {
    let Some(servers) = etcds(1) else { return };
    let directory: Shared = Arc::new(connect(&servers[0].url, "/tests/one/"));
    behaves(&directory);
    races(&directory, 20);
    // Another prefix is another directory.
    directory.publish(&entry("here", 1)).unwrap();
    let other = connect(&servers[0].url, "/tests/two");
    assert_eq!(other.entries().unwrap(), []);
}

/// While an etcd is stopped, and when it is killed and comes back, no change gets lost.
#[test]
fn changes_are_heard_after_etcd_was_away() {
    let Some(mut servers) = etcds(1) else { return };
    let directory: Shared = Arc::new(connect(&servers[0].url, "/quire/"));
    let heard = watch(&*directory);
    directory.publish(&entry("one", 1)).unwrap();
    assert_eq!(next(&heard), Change::Published(entry("one", 1)));
    servers[0].stop();
    let silent = directory.members().unwrap_err();
    assert!(matches!(silent, DirectoryError::Silent(..)), "{silent}");
    servers[0].signal(Signal::CONT);
    let other = connect(&servers[0].url, "/quire/");
    other.publish(&entry("two", 2)).unwrap();
    // Where it was silent for long, all is to be read anew, too.
    let change = match next(&heard) {
        Change::Missed => next(&heard),
        change => change,
    };
    assert_eq!(change, Change::Published(entry("two", 2)));
    servers[0].restart();
    let other = connect(&servers[0].url, "/quire/");
    other.publish(&entry("three", 3)).unwrap();
    assert_eq!(next(&heard), Change::Published(entry("three", 3)));
    assert_eq!(other.entries().unwrap().len(), 3);
}

/// A stopped etcd holds a lease's answers back: the holder knows first that it is out.
#[test]
fn a_lease_in_etcd_is_over_for_its_holder_first() {
    let Some(servers) = etcds(3) else { return };
    let urls: Vec<_> = servers.iter().map(|server| server.url.clone()).collect();
    let near: Shared = Arc::new(connect(&urls[0], "/quire/"));
    let far: Shared = Arc::new(connect(&urls[1..].join(","), "/quire/"));
    let lease = Lease::take(near.clone(), &member(1), Duration::from_secs(4)).unwrap();
    let theirs = Lease::take(far.clone(), &member(2), Duration::from_secs(20)).unwrap();
    near.propose(lease.id(), &view(9, 1, 1)).unwrap();
    std::thread::sleep(Duration::from_secs(5));
    assert!(!lease.is_over(Instant::now()), "it is renewed");

    // The machine of the first server is cut off, with its etcd.
    servers[0].stop();
    let start = Instant::now();
    // The majority may have to elect a leader before it answers.
    while far.members().is_err() {
        assert!(start.elapsed() < Duration::from_secs(20), "no majority");
    }
    gone(&lease, &*far, ServerId(1));
    let silent = near.propose(lease.id(), &view(9, 2, 1)).unwrap_err();
    assert!(matches!(silent, DirectoryError::Silent(..)), "{silent}");

    // The others go on.
    far.propose(theirs.id(), &view(9, 2, 2)).unwrap();
    assert!(!theirs.is_over(Instant::now()));

    // What the first one tries when it is back comes too late.
    servers[0].signal(Signal::CONT);
    let start = Instant::now();
    let late = loop {
        match near.propose(lease.id(), &view(9, 3, 1)) {
            Err(DirectoryError::Silent(..)) => {
                assert!(start.elapsed() < Duration::from_secs(30), "it stays silent");
            }
            other => break other,
        }
    };
    assert_eq!(late, Err(DirectoryError::LeaseOver));
    assert_eq!(far.view(ObjectId(9)).unwrap(), Some(view(9, 2, 2)));
}

/// Certificates of one authority: for etcd, and for its client.
struct Certificates {
    place: tempfile::TempDir,
    client: Arc<ClientConfig>,
    nobody: Arc<ClientConfig>,
}

impl Certificates {
    fn new() -> Certificates {
        use rcgen::{
            BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
        };
        use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
        let place = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let signed = |name: &str| {
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.extended_key_usages = vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ];
            let key = KeyPair::generate().unwrap();
            (params.signed_by(&key, &issuer).unwrap(), key)
        };
        let (server, server_key) = signed("127.0.0.1");
        let write = |name: &str, text: String| std::fs::write(place.path().join(name), text);
        write("ca", authority.pem()).unwrap();
        write("server", server.pem()).unwrap();
        write("key", server_key.serialize_pem()).unwrap();

        let mut roots = rustls::RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let builder = || {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let builder = ClientConfig::builder_with_provider(provider);
            let builder = builder.with_safe_default_protocol_versions().unwrap();
            builder.with_root_certificates(roots.clone())
        };
        let (client, client_key) = signed("quire");
        let client_key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(client_key.serialize_der()));
        let client = builder().with_client_auth_cert(vec![client.der().clone()], client_key);
        let nobody = builder().with_no_client_auth();
        Certificates {
            client: Arc::new(client.unwrap()),
            nobody: Arc::new(nobody),
            place,
        }
    }

    fn options(&self) -> Vec<String> {
        let file = |name: &str| self.place.path().join(name).display().to_string();
        [
            "--cert-file",
            "server",
            "--key-file",
            "key",
            "--trusted-ca-file",
            "ca",
        ]
        .chunks(2)
        .flat_map(|pair| [pair[0].to_owned(), file(pair[1])])
        .chain(["--client-cert-auth".to_owned()])
        .collect()
    }
}

/// etcd with certificates on both sides: who has none is refused.
#[test]
fn etcd_with_certificates() {
    let certificates = Certificates::new();
    let Some(servers) = etcds_with(1, "https", &certificates.options()) else {
        return;
    };
    let url = &servers[0].url;
    let start = Instant::now();
    let directory: Shared = loop {
        match Etcd::connect(url, "/quire/", access(&certificates.client)) {
            Ok(etcd) => break Arc::new(etcd),
            Err(error) if start.elapsed() > Duration::from_secs(30) => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    };
    behaves(&directory);
    let nobody = Etcd::connect(url, "/quire/", access(&certificates.nobody));
    assert!(nobody.is_err(), "a client without a certificate is let in");
}

/// Over links with these certificates.
fn access(tls: &Arc<ClientConfig>) -> Access {
    Access {
        tls: Some(tls.clone()),
        user: None,
    }
}

/// A request of the one who sets up an etcd.
fn set_up(url: &str, path: &str, body: &str, token: Option<&str>) -> serde_json::Value {
    let token = token.map(|token| format!("Authorization: {token}\r\n"));
    let host = url.strip_prefix("http://").expect("no certificates");
    let mut socket = TcpStream::connect(host).unwrap();
    write!(
        socket,
        "POST /v3/{path} HTTP/1.1\r\nHost: {host}\r\n{}\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        token.unwrap_or_default(),
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    let (from, to) = (answer.find('{').unwrap(), answer.rfind('}').unwrap());
    serde_json::from_str(&answer[from..=to]).expect("JSON")
}

/// Has an etcd demand users, of whom one may use `/quire/`.
fn enable_users(url: &str) {
    let [from, to] = ["/quire/", "/quire0"].map(|key| BASE64_STANDARD.encode(key));
    for (path, body) in [
        ("auth/user/add", r#"{"name": "root", "password": "r"}"#),
        ("auth/role/add", r#"{"name": "root"}"#),
        ("auth/user/grant", r#"{"user": "root", "role": "root"}"#),
        ("auth/role/add", r#"{"name": "quire"}"#),
        (
            "auth/role/grant",
            &format!(
                r#"{{"name": "quire", "perm": {{"permType": "READWRITE", "key": "{from}", "range_end": "{to}"}}}}"#
            ),
        ),
        ("auth/user/add", r#"{"name": "node", "password": "secret"}"#),
        ("auth/user/grant", r#"{"user": "node", "role": "quire"}"#),
        ("auth/enable", "{}"),
    ] {
        set_up(url, path, body, None);
    }
}

/// etcd with users: who is none is refused, and a token that is not known any more is renewed.
#[test]
fn etcd_with_users() {
    let Some(mut servers) = etcds(1) else { return };
    let url = servers[0].url.clone();
    drop(connect(&url, "/quire/"));
    enable_users(&url);
    let file = tempfile::NamedTempFile::new().unwrap();
    let user = |password: &str, prefix: &str| {
        std::fs::write(file.path(), format!("{password}\n")).unwrap();
        let user = EtcdUser::load("node", file.path()).unwrap();
        let access = Access {
            tls: None,
            user: Some(user),
        };
        Etcd::connect(&url, prefix, access)
    };
    let refused = |answer: Result<Etcd, DirectoryError>| answer.map(drop).unwrap_err().to_string();
    let nobody = refused(Etcd::connect(&url, "/quire/", Access::default()));
    assert!(nobody.contains("user name is empty"), "{nobody}");
    let wrong = refused(user("other", "/quire/"));
    assert!(wrong.contains("invalid user ID or password"), "{wrong}");
    let elsewhere = refused(user("secret", "/other/"));
    assert!(elsewhere.contains("permission denied"), "{elsewhere}");

    let directory: Shared = Arc::new(user("secret", "/quire/").unwrap());
    behaves(&directory);
    // A change of roles makes all tokens old.
    let root = r#"{"name": "root", "password": "r"}"#;
    let root = set_up(&url, "auth/authenticate", root, None);
    let token = root["token"].as_str().expect("a token");
    set_up(&url, "auth/role/add", r#"{"name": "another"}"#, Some(token));
    let heard = watch(&*directory);
    directory.publish(&entry("later", 1)).unwrap();
    assert_eq!(next(&heard), Change::Published(entry("later", 1)));
    // An etcd that was away knows no tokens.
    servers[0].restart();
    let start = Instant::now();
    while let Err(error) = directory.find("later") {
        assert!(start.elapsed() < Duration::from_secs(30), "{error}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(directory.find("later").unwrap().is_some());
    directory.publish(&entry("last", 2)).unwrap();
    assert_eq!(next(&heard), Change::Published(entry("last", 2)));
}

#[test]
fn wrong_addresses_are_named() {
    for (url, what) in [
        ("https://a:1", "certificates are needed"),
        ("ftp://a:1", "is named as"),
        ("a", "is named as"),
        ("http://a", "no port"),
        ("http://127.0.0.1:1", "does not answer"),
    ] {
        let line = Etcd::connect(url, "/quire/", Access::default())
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(line.contains(what), "{line}");
    }
}
