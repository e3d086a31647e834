//! Several etcds, of which the first one is away, hangs, is cut off from its peer servers, or does what
//! it is asked and loses the answer.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::dsm::message::ServerId;
use quire_core::units::Bytes;
use quire_dsm::directory::{Change, Directory, DirectoryError, Lease, Shared};
use quire_dsm::store::ObjectId;
use rustix::process::Signal;

use super::{connect, entry, etcds, member, next, view, watch};

const NO_LEADER: &str = r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"Service Unavailable"}}"#;

/// A service that accepts connections and does something with each.
fn service(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for socket in listener.incoming() {
            let (socket, serve) = (socket.unwrap(), serve.clone());
            thread::spawn(move || serve(socket));
        }
    });
    url
}

/// Reads what is asked, as much as comes at once.
fn request(socket: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; 64 << 10];
    let length = socket.read(&mut bytes).unwrap_or(0);
    bytes.truncate(length);
    bytes
}

fn answer_no_leader(mut socket: TcpStream) {
    request(&mut socket);
    let _ = write!(
        socket,
        "HTTP/1.1 503 Service Unavailable\r\nContent-Length: {}\r\n\r\n{NO_LEADER}",
        NO_LEADER.len()
    );
}

/// Holds a connection until the other side ends it, and says nothing.
fn hold(mut socket: TcpStream) {
    while !request(&mut socket).is_empty() {}
}

/// A place whose connections are not even accepted, as on a machine that is gone.
struct Full {
    url: String,
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl Full {
    fn new() -> Full {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        let reach = || TcpStream::connect_timeout(&address, Duration::from_millis(300));
        while let Ok(socket) = reach() {
            waiting.push(socket);
        }
        Full {
            url: format!("http://{address}"),
            _listener: listener,
            _waiting: waiting,
        }
    }
}

/// A lease lives on, and changes are heard, whatever the first etcd is.
fn does_without_the_first(first: &str, good: &str, id: u64) {
    let directory: Shared = Arc::new(connect(&format!("{first},{good}"), "/quire/"));
    let heard = watch(&*directory);
    let lease = Lease::take(directory.clone(), &member(id), Duration::from_secs(4)).unwrap();
    assert_eq!(next(&heard), Change::Joined(member(id)));
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(6) {
        assert!(!lease.is_over(Instant::now()), "{:?}", start.elapsed());
        thread::sleep(Duration::from_millis(50));
    }
    drop(lease);
    assert_eq!(next(&heard), Change::Left(ServerId(id)));
}

#[test]
fn an_etcd_that_never_answers_costs_no_lease() {
    let Some(servers) = etcds(1) else { return };
    drop(connect(&servers[0].url, "/quire/"));
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let first = service(move |socket| {
        count.fetch_add(1, Ordering::Relaxed);
        hold(socket);
    });
    does_without_the_first(&first, &servers[0].url, 1);
    // The other one may have been slow, so that this one had another turn.
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked <= 3, "it is asked again and again: {asked}");
}

#[test]
fn an_etcd_that_is_gone_costs_no_lease() {
    let Some(servers) = etcds(1) else { return };
    drop(connect(&servers[0].url, "/quire/"));
    let first = Full::new();
    does_without_the_first(&first.url, &servers[0].url, 1);
}

#[test]
fn an_etcd_without_a_leader_costs_no_lease() {
    let Some(servers) = etcds(1) else { return };
    drop(connect(&servers[0].url, "/quire/"));
    let first = service(answer_no_leader);
    does_without_the_first(&first, &servers[0].url, 1);
}

/// The etcd that a server has asked until now stops, also for those who watch.
#[test]
fn an_etcd_that_stops_costs_no_lease_and_no_change() {
    let Some(servers) = etcds(3) else { return };
    let urls: Vec<_> = servers.iter().map(|server| server.url.clone()).collect();
    let directory: Shared = Arc::new(connect(&urls.join(","), "/quire/"));
    let heard = watch(&*directory);
    let lease = Lease::take(directory.clone(), &member(1), Duration::from_secs(5)).unwrap();
    assert_eq!(next(&heard), Change::Joined(member(1)));
    // It is the first one, unless that was slow to begin.
    let stops = urls.iter().position(|url| is_connected(url));
    let stops = stops.expect("changes come from one of them");
    let others = urls.iter().enumerate().filter(|(it, _)| *it != stops);
    let others: Vec<_> = others.map(|(_, url)| url.clone()).collect();
    let others = connect(&others.join(","), "/quire/");
    servers[stops].stop();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(9) {
        assert!(!lease.is_over(Instant::now()), "{:?}", start.elapsed());
        thread::sleep(Duration::from_millis(50));
    }
    others.publish(&entry("one", 1)).unwrap();
    assert_eq!(next(&heard), Change::Missed);
    assert_eq!(next(&heard), Change::Published(entry("one", 1)));
    servers[stops].signal(Signal::CONT);
}

/// Whether this process has a connection to a service: a stream of changes, as all else ends at once.
fn is_connected(url: &str) -> bool {
    let is_so = || {
        let port = url.rsplit(':').next().unwrap().parse::<u16>().unwrap();
        let to = format!(":{port:04X}");
        let sockets = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let inodes = sockets.lines().filter_map(|line| {
            let parts: Vec<&str> = line.split_whitespace().collect();
            // To whom, and whether it is established.
            let is_there = parts.get(2)?.ends_with(&to) && parts.get(3) == Some(&"01");
            is_there.then(|| format!("socket:[{}]", parts[9]))
        });
        let inodes: Vec<String> = inodes.collect();
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let mut targets = descriptors.filter_map(|it| std::fs::read_link(it.path()).ok());
        targets.any(|target| {
            inodes
                .iter()
                .any(|inode| target.as_os_str() == inode.as_str())
        })
    };
    // Twice, as a question may be under way.
    is_so() && {
        thread::sleep(Duration::from_millis(300));
        is_so()
    }
}

/// What a [`Front`] does.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// It hands all on.
    Through,
    /// It hands transactions on, and loses the answers.
    Lossy,
    /// It is cut off: streams are silent, and who asks anew is told that there is no leader.
    Silent,
    /// It is cut off, and has ended its streams.
    Ended,
}

/// An etcd that is a part of another, real one, until something else is wanted of it.
struct Front {
    url: String,
    way: Arc<Mutex<Way>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Front {
    fn new(behind: &str) -> Front {
        let behind: SocketAddr = behind.strip_prefix("http://").unwrap().parse().unwrap();
        let way = Arc::new(Mutex::new(Way::Through));
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let (now, log) = (way.clone(), asked.clone());
        let url = service(move |mut socket| {
            let is_cut = !matches!(*now.lock().unwrap(), Way::Through | Way::Lossy);
            if is_cut {
                return answer_no_leader(socket);
            }
            let request = request(&mut socket);
            let text = String::from_utf8_lossy(&request).into_owned();
            let is_change = text.starts_with("POST /v3/kv/txn ");
            log.lock().unwrap().push(text);
            let mut etcd = TcpStream::connect(behind).unwrap();
            etcd.write_all(&request).unwrap();
            if is_change && *now.lock().unwrap() == Way::Lossy {
                etcd.read_to_end(&mut Vec::new()).unwrap();
                return;
            }
            Front::answer(etcd, socket, &now);
        });
        Front { url, way, asked }
    }

    /// Hands an answer on, as long as nothing else is wanted.
    fn answer(mut etcd: TcpStream, mut socket: TcpStream, way: &Mutex<Way>) {
        let blink = Some(Duration::from_millis(20));
        etcd.set_read_timeout(blink).unwrap();
        let mut bytes = vec![0; 64 << 10];
        loop {
            match (*way.lock().unwrap(), etcd.read(&mut bytes)) {
                (Way::Silent, _) => return hold(socket),
                (Way::Ended, _) => {
                    let length = NO_LEADER.len();
                    let _ = write!(socket, "{length:x}\r\n{NO_LEADER}\r\n0\r\n\r\n");
                    return;
                }
                (_, Ok(length)) if length > 0 => {
                    if socket.write_all(&bytes[..length]).is_err() {
                        return;
                    }
                }
                (_, Err(error)) if error.kind() == ErrorKind::WouldBlock => {}
                _ => {
                    let _ = socket.shutdown(Shutdown::Write);
                    return;
                }
            }
        }
    }

    fn goes(&self, way: Way) {
        *self.way.lock().unwrap() = way;
    }
}

/// An etcd that is cut off from its peer servers does not leave those deaf who listen to it.
fn is_heard_elsewhere(cut: Way) {
    let Some(servers) = etcds(1) else { return };
    let real = connect(&servers[0].url, "/quire/");
    let front = Front::new(&servers[0].url);
    let directory = connect(&format!("{},{}", front.url, servers[0].url), "/quire/");
    let heard = watch(&directory);
    real.publish(&entry("one", 1)).unwrap();
    assert_eq!(next(&heard), Change::Published(entry("one", 1)));
    front.goes(cut);
    real.publish(&entry("two", 2)).unwrap();
    assert_eq!(next(&heard), Change::Missed);
    assert_eq!(next(&heard), Change::Published(entry("two", 2)));
    let asked = front.asked.lock().unwrap();
    let mut watches = asked.iter().filter(|asked| asked.contains("/v3/watch"));
    assert!(watches.all(|watch| watch.contains("\r\nGrpc-Metadata-hasleader: true\r\n")));
}

#[test]
fn changes_are_heard_after_a_stream_was_silent() {
    is_heard_elsewhere(Way::Silent);
}

#[test]
fn changes_are_heard_after_an_etcd_had_no_leader() {
    is_heard_elsewhere(Way::Ended);
}

/// What was done though the answer was lost is not done twice, and is no error.
#[test]
fn an_answer_that_is_lost_is_recognised_in_the_next() {
    let Some(servers) = etcds(1) else { return };
    let real = connect(&servers[0].url, "/quire/");
    let front = Front::new(&servers[0].url);
    front.goes(Way::Lossy);
    // Each begins with the first one.
    let lossy = || connect(&format!("{},{}", front.url, servers[0].url), "/quire/");
    let (lease, _) = lossy()
        .join(&member(1), Duration::from_secs(60))
        .expect("it has joined");
    lossy().publish(&entry("one", 1)).expect("it is published");
    lossy().propose(lease, &view(1, 1, 1)).expect("it is made");
    assert_eq!(real.members().unwrap(), [member(1)]);
    assert_eq!(real.find("one").unwrap(), Some(entry("one", 1)));
    assert_eq!(real.view(ObjectId(1)).unwrap(), Some(view(1, 1, 1)));
    lossy().discard("one").expect("its name is given up");
    assert_eq!(real.find("one").unwrap(), None);
    assert!(real.find("one~").unwrap().is_some());
    lossy().withdraw("one").expect("it is withdrawn");
    assert_eq!(real.find("one~").unwrap(), None);
    assert_eq!(real.view(ObjectId(1)).unwrap(), None);
    let of = |id: u64, size: u64| {
        let mut entry = entry("two~7", id);
        entry.object.is.size = Bytes(size);
        entry
    };
    for id in [2, 3] {
        lossy().begin(lease, &of(id, 0)).expect("it is begun");
        assert_eq!(real.find("two").unwrap(), Some(of(id, 0)));
        if id == 2 {
            lossy().end_begun("two~7").expect("it is ended");
            assert_eq!(real.find("two").unwrap(), None);
        }
    }
    lossy().give_size(&of(4, 4096)).expect("it has its size");
    assert_eq!(real.find("two").unwrap(), Some(of(4, 4096)));
    let taken = real.give_size(&of(5, 4096));
    assert!(matches!(taken, Err(DirectoryError::Exists(_))), "{taken:?}");
    let asked = front.asked.lock().unwrap();
    let changes = asked.iter().filter(|asked| asked.contains("/v3/kv/txn"));
    assert_eq!(changes.count(), 9);
}
