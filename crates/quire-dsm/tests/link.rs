//! Links over real sockets: TCP and Unix. What one peer does wrong ends its connection, with
//! a line in the log, and no other.

mod link_support;

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use link_support::{
    Notes, Side, hello, keep_log, logged, name, rejoined, request, until, until_one,
};
use mio::{Interest, Registry, Token};
use quire_core::dsm::message::{Access, FromKernel, PageNumber, Pages, ToKernel};
use quire_core::units::ObjectOffset;
use quire_dsm::link::transport::Unix;
use quire_dsm::link::turn::{Closed, Config};
use quire_dsm::link::{
    Address, Established, Handler, Link, LinkId, Links, Peer, Security, Transport,
};
use quire_dsm::wire::control::{Handle, Reason, Refusal, Welcome};
use quire_dsm::wire::{Contents, Control, Kind, Loans, Outgoing, Pool, Sink, VERSION};

const PLAIN: Security = Security::Automatic(None);

fn listen(side: &mut Side) -> Address {
    let any = "127.0.0.1:0".parse().unwrap();
    side.turn.links.listen(&any, &PLAIN).unwrap()
}

/// A client that the server has welcomed.
fn connected(server: &mut Side, address: &Address, called: &str) -> (Side, LinkId) {
    let mut client = Side::named(called);
    let link = client.turn.links.connect(address, &PLAIN, None).unwrap();
    until(server, &mut client, |_, client| {
        !client.notes.welcomed.is_empty()
    });
    (client, link)
}

/// A request goes there and back.
fn works(server: &mut Side, client: &mut Side, link: LinkId) {
    let before = client.notes.messages.len();
    assert!(client.turn.links.send(link, request(7)));
    until(server, client, |_, client| {
        client.notes.messages.len() > before
    });
}

/// A socket that sends what it likes.
fn raw(address: &Address) -> TcpStream {
    let Address::Tcp(address) = address else {
        panic!("no TCP address");
    };
    TcpStream::connect(address).unwrap()
}

fn bytes_of(message: Control) -> Vec<u8> {
    let mut outgoing = Outgoing::new();
    outgoing.push(message, Vec::new()).unwrap();
    let mut bytes = Vec::new();
    let take = |pieces: &[IoSlice<'_>], _: &[BorrowedFd<'_>]| {
        pieces
            .iter()
            .for_each(|piece| bytes.extend_from_slice(piece));
        Ok(pieces.iter().map(|piece| piece.len()).sum())
    };
    outgoing.write_to(take).unwrap();
    bytes
}

/// Whether the other side has closed a raw socket; what it sent before is skipped.
fn is_closed(socket: &mut TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    let mut bytes = [0; 4096];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// A raw socket that sends these bytes is closed, the log says why, and a client that was
/// there before goes on.
fn is_cut_off(bytes: &[u8], words: &[&str]) {
    keep_log();
    let mut server = Side::named("server");
    let address = listen(&mut server);
    let (mut client, link) = connected(&mut server, &address, "good");
    let mut bad = raw(&address);
    let from = bad.local_addr().unwrap().to_string();
    bad.write_all(bytes).unwrap();
    until_one(&mut server, |_| is_closed(&mut bad));
    let mut all = vec!["WARN", from.as_str()];
    all.extend(words);
    assert!(
        logged(&all),
        "{all:?} is not in the log:\n{}",
        link_support::log_text()
    );
    works(&mut server, &mut client, link);
    assert_eq!(server.turn.links.len(), 1);
}

#[test]
fn tcp_carries_requests_and_answers() {
    let mut server = Side::named("server");
    let address = listen(&mut server);
    let (mut client, link) = connected(&mut server, &address, "node1");
    works(&mut server, &mut client, link);
    let (_, who) = &server.notes.greeted[0];
    assert_eq!(who.hello, hello("node1"));
    assert_eq!(who.to_string(), "anyone");
    let counters = client.turn.links.counters(link).unwrap();
    assert_eq!(counters.sent[Kind::Hello as usize], 1);
    assert_eq!(counters.sent[Kind::Request as usize], 1);
    assert_eq!(counters.received[Kind::Answer as usize], 1);
    assert_eq!((counters.sent_bytes, counters.received_bytes), (128, 128));
    client.turn.links.close(link, "done");
    until(&mut server, &mut client, |server, _| {
        server.ended_with("goodbye: done")
    });
    assert!(server.turn.links.is_empty());
}

#[test]
fn garbage_is_cut_off() {
    is_cut_off(b"GET / HTTP/1.1\r\n\r\n", &["maybe the peer is not quire"]);
}

#[test]
fn another_version_is_cut_off() {
    let mut bytes = bytes_of(Control::Hello(hello("bad")));
    bytes[4] = 1;
    let words = format!("speaks version 1 of the protocol, we speak {VERSION}");
    is_cut_off(&bytes, &[&words]);
}

#[test]
fn oversize_is_cut_off_before_the_hello() {
    let long = "x".repeat(5000);
    let bytes = bytes_of(Control::Goodbye { reason: long });
    is_cut_off(&bytes, &["control part has", "more than 2048"]);
}

#[test]
fn oversize_is_cut_off_after_the_hello() {
    let mut bytes = bytes_of(Control::Hello(hello("bad")));
    let mut long = bytes_of(request(1));
    long[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    let checksum = crc32fast::hash(&long[..20]);
    long[20..24].copy_from_slice(&checksum.to_le_bytes());
    bytes.extend(long);
    is_cut_off(
        &bytes,
        &["payload has 4294967295 bytes, more than 33554432"],
    );
}

#[test]
fn a_message_before_the_hello_is_cut_off() {
    is_cut_off(&bytes_of(request(1)), &["Request when it should not"]);
}

#[test]
fn a_second_hello_is_cut_off() {
    let mut bytes = bytes_of(Control::Hello(hello("bad")));
    bytes.extend(bytes_of(Control::Hello(hello("worse"))));
    is_cut_off(&bytes, &["Hello when it should not"]);
}

#[test]
fn a_damaged_message_is_cut_off() {
    let mut bytes = bytes_of(Control::Hello(hello("bad")));
    bytes[30] ^= 1;
    is_cut_off(&bytes, &["checksum of a frame's control part is wrong"]);
}

#[test]
fn a_peer_that_is_cut_off_is_told_why() {
    let mut server = Side::named("server");
    server.notes.refuses = Some(Refusal {
        reason: Reason::Full,
        text: "come back tomorrow".into(),
    });
    let address = listen(&mut server);
    let mut client = Side::named("node1");
    client.turn.links.connect(&address, &PLAIN, None).unwrap();
    until(&mut server, &mut client, |_, client| {
        client.ended_with("refused us: come back tomorrow")
    });
}

#[test]
fn a_peer_that_says_nothing_is_cut_off_in_time() {
    keep_log();
    let greeting = Duration::from_millis(150);
    let mut server = Side::new(Config {
        greeting,
        ..Config::new(hello("server"))
    });
    let address = listen(&mut server);
    let (mut client, link) = connected(&mut server, &address, "good");
    let begin = Instant::now();
    let mut silent = raw(&address);
    let from = silent.local_addr().unwrap().to_string();
    until_one(&mut server, |_| is_closed(&mut silent));
    assert!(begin.elapsed() >= greeting, "after {:?}", begin.elapsed());
    assert!(
        begin.elapsed() < 20 * greeting,
        "after {:?}",
        begin.elapsed()
    );
    assert!(logged(&[
        "WARN",
        &from,
        "did not say within 150ms who it is"
    ]));
    works(&mut server, &mut client, link);
}

/// What came and the end that came with it are both seen, also where they are there before
/// the loop looks.
#[test]
fn an_end_that_comes_with_a_message_is_seen() {
    let mut server = Side::named("server");
    let address = listen(&mut server);
    let (mut client, link) = connected(&mut server, &address, "good");
    // Nothing is left unread or unsent: that would break the connection, which would be seen
    // in any case.
    server.notes.answers = 0;
    for _ in 0..5 {
        let before = server.notes.closed.len();
        let greeted = server.notes.greeted.len();
        let mut short = raw(&address);
        short
            .write_all(&bytes_of(Control::Hello(hello("a"))))
            .unwrap();
        until_one(&mut server, |server| server.notes.greeted.len() > greeted);
        short.read_exact(&mut [0; 64]).unwrap();
        short.write_all(&bytes_of(request(1))).unwrap();
        drop(short);
        // Both are there when the loop looks next.
        std::thread::sleep(Duration::from_millis(20));
        until_one(&mut server, |server| server.notes.closed.len() > before);
    }
    assert_eq!(server.notes.messages.len(), 5);
    server.notes.answers = 1;
    works(&mut server, &mut client, link);
}

/// The peer sees the end only when the handler has been told, and so has stopped to use what
/// the peer gave.
#[test]
fn a_link_is_closed_after_the_handler_was_told() {
    struct Checks {
        notes: Notes,
        peer: TcpStream,
        seen_before: Option<bool>,
    }
    impl Handler for Checks {
        fn greeted(
            &mut self,
            links: &mut Links,
            link: LinkId,
            who: &Established,
        ) -> Result<Welcome, Refusal> {
            self.notes.greeted(links, link, who)
        }

        fn welcomed(&mut self, _: &mut Links, _: LinkId, _: &Welcome) {}

        fn message(&mut self, _: &mut Links, _: LinkId, _: Control, _: Vec<OwnedFd>) {}

        fn closed(&mut self, _: &mut Links, _: LinkId, _: &Closed) {
            std::thread::sleep(Duration::from_millis(20));
            self.seen_before = Some(is_closed(&mut self.peer));
        }
    }
    let mut server = Side::named("server");
    let address = listen(&mut server);
    let mut peer = raw(&address);
    let mut bytes = bytes_of(Control::Hello(hello("bad")));
    bytes.extend([7; 64]);
    peer.write_all(&bytes).unwrap();
    let mut checks = Checks {
        notes: Notes::default(),
        peer,
        seen_before: None,
    };
    while checks.seen_before.is_none() {
        server
            .turn
            .once(&mut checks, Duration::from_millis(2))
            .unwrap();
    }
    assert_eq!(checks.seen_before, Some(false));
    assert!(is_closed(&mut checks.peer));
}

#[test]
fn a_server_of_another_name_is_left() {
    let mut server = Side::named("server");
    server.notes.name = Some(name("impostor"));
    let address = listen(&mut server);
    let mut client = Side::named("node1");
    let expected = Some(name("server"));
    client
        .turn
        .links
        .connect(&address, &PLAIN, expected)
        .unwrap();
    until(&mut server, &mut client, |_, client| {
        client.ended_with("is not what was expected: server")
    });
    assert!(client.notes.welcomed.is_empty());
}

#[test]
fn nobody_listens() {
    let mut server = Side::named("server");
    let address = listen(&mut server);
    drop(server);
    let mut client = Side::named("node1");
    client.turn.links.connect(&address, &PLAIN, None).unwrap();
    until_one(&mut client, |client| client.ended_with("refused"));
}

/// A peer that asks and never reads is cut off, when so much waits for it, and when it has
/// read nothing for so long.
#[test]
fn a_slow_reader_is_cut_off() {
    keep_log();
    for (queue, stall, words) in [
        (1 << 20, Duration::from_secs(60), "the peer does not read"),
        (
            1 << 30,
            Duration::from_millis(300),
            "the peer has read nothing for",
        ),
    ] {
        let mut config = Config::new(hello("server"));
        config.patience.queue = queue;
        config.patience.stall = stall;
        let mut server = Side::new(config);
        server.notes.answers = 5000;
        let address = listen(&mut server);
        let mut bad = raw(&address);
        let from = bad.local_addr().unwrap().to_string();
        bad.write_all(&bytes_of(Control::Hello(hello("bad"))))
            .unwrap();
        for id in 0..40 {
            bad.write_all(&bytes_of(request(id))).unwrap();
        }
        until_one(&mut server, |server| server.ended_with(words));
        assert!(logged(&["WARN", &from, words]));
        server.notes.answers = 1;
        let (mut client, link) = connected(&mut server, &address, "good");
        works(&mut server, &mut client, link);
    }
}

/// While one peer floods, another is served.
#[test]
fn a_flood_does_not_keep_others_waiting() {
    let mut server = Side::named("server");
    server.notes.answers = 0;
    let address = listen(&mut server);
    let (mut client, link) = connected(&mut server, &address, "good");
    let mut bad = raw(&address);
    bad.write_all(&bytes_of(Control::Hello(hello("bad"))))
        .unwrap();
    let many = bytes_of(request(1)).repeat(10_000);
    let flood = std::thread::spawn(move || while bad.write_all(&many).is_ok() {});
    server.notes.answers = 1;
    let begin = Instant::now();
    for _ in 0..20 {
        works(&mut server, &mut client, link);
    }
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    drop(server);
    flood.join().unwrap();
}

#[test]
fn unix_sockets_know_their_peer_and_carry_descriptors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("quire.sock");
    let address = Address::Unix(path.clone());
    let mut server = Side::named("server");
    server.turn.links.listen(&address, &PLAIN).unwrap();
    let (mut client, link) = connected(&mut server, &address, "node1");
    let (_, who) = server.notes.greeted[0].clone();
    let uid = rustix::process::getuid().as_raw();
    assert_eq!(who.to_string(), format!("uid:{uid}"));
    assert!(matches!(who.peer, Peer::Local { pid, .. } if pid == std::process::id()));

    // Messages without and with descriptors, in one turn.
    let mut files = Vec::new();
    for text in ["one", "two"] {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        files.push(file);
    }
    let with = |range: std::ops::Range<usize>| {
        let chosen = files[range].iter();
        chosen
            .map(|file| file.try_clone().unwrap().into())
            .collect::<Vec<_>>()
    };
    let links = &mut client.turn.links;
    assert!(links.send(link, request(1)));
    assert!(links.send_with(link, request(2), with(0..1)));
    assert!(links.send(link, request(3)));
    assert!(links.send_with(link, request(4), with(0..2)));
    assert!(links.send(link, request(5)));
    until(&mut server, &mut client, |_, client| {
        client.notes.messages.len() == 5
    });
    let contents = |fd: &std::os::fd::OwnedFd| {
        let mut file = std::fs::File::from(fd.try_clone().unwrap());
        std::io::Seek::rewind(&mut file).unwrap();
        std::io::read_to_string(file).unwrap()
    };
    let came: Vec<String> = server.notes.descriptors.iter().map(contents).collect();
    assert_eq!(came, ["one", "one", "two"]);

    drop(client);
    until_one(&mut server, |server| {
        server.ended_with("closed the connection")
    });
    // A local peer that is gone needs no waiting.
    assert!(server.notes.closed[0].1.stopped_at <= Instant::now());
    drop(server);
    assert!(!path.exists());
}

/// Over a network, the end of a link shows that a process has ended only where that has said so.
#[test]
fn a_process_that_said_that_it_ends_has_ended_with_its_link() {
    keep_log();
    let mut server = Side::named("server");
    server.notes.lease = 60_000;
    let address = listen(&mut server);
    let silent = bytes_of(request(1));
    let ending = [bytes_of(Control::Ending), bytes_of(request(1))].concat();
    let garbage = [&ending[..], b"GET / HTTP/1.1\r\n\r\n"].concat();
    let cases = [
        (&silent, ["closed the connection", "reset by peer"], false),
        (&ending, ["process has ended"; 2], true),
        (&garbage, ["not quire"; 2], false),
    ];
    for (bytes, words, has_stopped) in cases {
        let mut peer = raw(&address);
        peer.write_all(&bytes_of(Control::Hello(hello("node1"))))
            .unwrap();
        let before = server.notes.messages.len();
        peer.write_all(bytes).unwrap();
        until_one(&mut server, |server| server.notes.messages.len() > before);
        drop(peer);
        until_one(&mut server, |server| {
            words.iter().any(|words| server.ended_with(words))
        });
        let (_, closed) = server.notes.closed.last().unwrap();
        assert_eq!(
            closed.stopped_at <= Instant::now(),
            has_stopped,
            "{closed:?}"
        );
    }
    // Who has not said who it is has nothing to end.
    let mut early = raw(&address);
    early.write_all(&bytes_of(Control::Ending)).unwrap();
    until_one(&mut server, |_| is_closed(&mut early));
}

/// What it left unread resets the connection, which tells as much as an end does.
#[test]
fn a_local_peer_that_goes_with_messages_unread_needs_no_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Unix(directory.path().join("quire.sock"));
    let mut server = Side::named("server");
    server.notes.lease = 60_000;
    server.turn.links.listen(&address, &PLAIN).unwrap();
    let (client, _) = connected(&mut server, &address, "node1");
    let link = server.notes.greeted[0].0;
    assert!(server.turn.links.send(link, request(1)));
    server.once();
    drop(client);
    until_one(&mut server, |server| !server.notes.closed.is_empty());
    let closed = &server.notes.closed[0].1;
    assert!(
        closed.why.to_string().contains("reset by peer"),
        "{closed:?}"
    );
    assert!(closed.stopped_at <= Instant::now(), "{closed:?}");
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("quire.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let address = Address::Unix(path);
    let mut server = Side::named("server");
    server.turn.links.listen(&address, &PLAIN).unwrap();
    let mut second = Side::named("second");
    let error = second.turn.links.listen(&address, &PLAIN).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    connected(&mut server, &address, "node1");
}

#[test]
fn descriptors_that_were_announced_and_did_not_come() {
    keep_log();
    let mut server = Side::named("server");
    let address = listen(&mut server);
    let mut bad = raw(&address);
    bad.write_all(&bytes_of(Control::Hello(hello("bad"))))
        .unwrap();
    let mut bytes = bytes_of(request(1));
    bytes[7] = 2;
    let checksum = crc32fast::hash(&bytes[..20]);
    bytes[20..24].copy_from_slice(&checksum.to_le_bytes());
    bad.write_all(&bytes).unwrap();
    until_one(&mut server, |server| {
        server.ended_with("without its 2 descriptors")
    });
}

/// Whoever sends descriptors without saying who it is, or more than a message may have, could
/// fill the server's table.
#[test]
fn descriptors_that_nobody_wants_are_cut_off() {
    keep_log();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("quire.sock");
    let address = Address::Unix(path.clone());
    let mut server = Side::named("server");
    server.turn.links.listen(&address, &PLAIN).unwrap();
    let (mut client, link) = connected(&mut server, &address, "good");
    let socket = || Unix::new(mio::net::UnixStream::connect(&path).unwrap()).unwrap();
    let file = tempfile::tempfile().unwrap();
    let hello = bytes_of(Control::Hello(hello("bad")));

    let mut early = socket();
    early
        .write(&[IoSlice::new(&hello)], &[file.as_fd()], false)
        .unwrap();
    let words = "sent 1 descriptors before it said who it is";
    until_one(&mut server, |_| logged(&["WARN", words]));

    let mut many = socket();
    many.write(&[IoSlice::new(&hello)], &[], false).unwrap();
    until_one(&mut server, |server| server.notes.greeted.len() == 2);
    for byte in hello.chunks(1).take(5) {
        many.write(&[IoSlice::new(byte)], &[file.as_fd(); 8], false)
            .unwrap();
    }
    until_one(&mut server, |server| {
        server.ended_with("too many descriptors")
    });
    works(&mut server, &mut client, link);
}

/// Heartbeats keep a lease; a kernel that falls silent, and one whose server does, find out,
/// the kernel first.
#[test]
fn leases_are_kept_and_end() {
    keep_log();
    let mut server = Side::named("server");
    server.notes.lease = 2000;
    let address = listen(&mut server);
    let (mut client, link) = connected(&mut server, &address, "node1");
    let beats = |client: &Side| {
        client.turn.links.counters(link).unwrap().received[Kind::HeartbeatSeen as usize]
    };
    let begin = Instant::now();
    until(&mut server, &mut client, |_, client| {
        begin.elapsed() > Duration::from_millis(1200) && beats(client) > 1
    });
    works(&mut server, &mut client, link);
    let most = begin.elapsed().as_millis() / 60;
    let beats = beats(&client);
    assert!(u128::from(beats) <= most, "{beats} heartbeats");

    // The server stops to turn; the kernel stops in time.
    let begin = Instant::now();
    until_one(&mut client, |client| client.ended_with("the lease is over"));
    let stopped = begin.elapsed();
    assert!(stopped < Duration::from_millis(2000), "{stopped:?}");
    until_one(&mut server, |server| !server.notes.closed.is_empty());
    // A link over the network that broke does not mean that the kernel has stopped.
    let (_, closed) = &server.notes.closed[0];
    assert!(closed.stopped_at > begin + stopped, "{closed:?}");

    // The kernel stops to turn; the server waits the lease and the margin.
    let (client, _) = connected(&mut server, &address, "node2");
    let begin = Instant::now();
    until_one(&mut server, |server| {
        server.ended_with("sent no heartbeat for 2.5s")
    });
    assert!(
        begin.elapsed() > Duration::from_millis(2000),
        "{:?}",
        begin.elapsed()
    );
    drop(client);
}

/// For how long the machine of a test is said to have been asleep, in milliseconds.
static ASLEEP: AtomicUsize = AtomicUsize::new(0);

/// A clock that counts that.
fn with_sleep() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed() + Duration::from_millis(ASLEEP.load(Ordering::Relaxed) as u64)
}

/// Others have counted while a machine slept. Who is on the same one has not.
#[test]
fn who_was_asleep_for_longer_than_his_lease_has_none_when_he_wakes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("quire.sock");
    let mut server = Side::named("server");
    server.notes.lease = 60_000;
    let address = Address::Unix(path.clone());
    server.turn.links.listen(&address, &PLAIN).unwrap();
    let mut client_of = |peer: Option<Peer>| {
        let mut client = Side::new(Config {
            since_boot: with_sleep,
            ..Config::new(hello("node1"))
        });
        let socket = mio::net::UnixStream::connect(&path).unwrap();
        let transport = Box::new(Counted::new(socket, peer));
        let link = client.turn.links.connect_over(transport).unwrap();
        until(&mut server, &mut client, |_, client| {
            !client.notes.welcomed.is_empty()
        });
        (client, link)
    };
    let (mut here, link) = client_of(None);
    let (mut elsewhere, distant) = client_of(Some(Peer::Other("far away".into())));
    for (slept, is_over) in [(20_000, false), (40_000, true)] {
        ASLEEP.fetch_add(slept, Ordering::Relaxed);
        for _ in 0..5 {
            elsewhere.once();
            here.once();
        }
        let ended = elsewhere.ended_with("the lease is over");
        assert_eq!(ended, is_over, "after {slept} ms more");
        works(&mut server, &mut here, link);
    }
    assert!(!elsewhere.turn.links.send(distant, request(1)));
}

/// What is given back is sent from the file that it lies in, and nobody copies it.
#[test]
fn tcp_sends_what_is_lent_from_its_file() {
    let mut server = Side::named("server");
    let address = listen(&mut server);
    let (mut client, link) = connected(&mut server, &address, "node1");
    assert!(client.turn.links.sends_files(link));
    const PAGES: u32 = 300;
    let length = PAGES as usize * 4096;
    let bytes: Vec<u8> = (0..length).map(|at| (at / 4096 + at % 251) as u8).collect();
    let file = rustix::fs::memfd_create(c"lent", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::pwrite(&file, &bytes, 4096).unwrap();
    let loans = Loans::default();
    let lent = loans.lend(&Arc::new(file), ObjectOffset(4096), length, &Pool::new());
    let all = Contents::from(Arc::clone(&lent));
    let data = (0..length).step_by(4096);
    let written = Control::FromKernel {
        object: Handle(1),
        message: FromKernel::DataWrite {
            pages: Pages {
                first: PageNumber(0),
                count: PAGES,
            },
            data: data.map(|at| Some(all.slice(at, 4096))).collect(),
        },
    };
    let came = server.notes.messages.len();
    assert!(client.turn.links.send(link, written.clone()));
    assert!(client.turn.links.send(link, request(7)));
    until(&mut server, &mut client, |server, _| {
        let last = server.notes.messages.last();
        last.is_some_and(|(_, message)| *message == request(7))
    });
    assert!(!lent.is_settled(), "it was copied");
    let messages = server.notes.messages[came..].iter();
    let messages = rejoined(messages.map(|(_, message)| message));
    assert!(messages[0] == written, "other contents came");
}

/// What comes goes to where it belongs in a file, and nobody copies it: more of it than a pipe holds,
/// with other messages in between.
#[test]
fn tcp_brings_contents_to_their_place_in_a_file() {
    let mut server = Side::named("server");
    let address = listen(&mut server);
    let (mut client, link) = connected(&mut server, &address, "node1");
    let to = server.notes.greeted[0].0;
    const PAGES: u32 = 300;
    let length = u64::from(PAGES) * 4096;
    let pool = Pool::new();
    let provided = |first: u64, count: u32| {
        let page = |page: u32| {
            let bytes: Vec<u8> = (0..4096).map(|at| (at % 251 + page) as u8).collect();
            Some(pool.copy(&bytes))
        };
        Control::ToKernel {
            object: Handle(1),
            stamp: 7,
            message: ToKernel::DataProvided {
                pages: Pages {
                    first: PageNumber(first),
                    count,
                },
                data: (0..count).map(page).collect(),
                access: Access::Read,
            },
        }
    };
    let file = rustix::fs::memfd_create(c"placed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 2 * length).unwrap();
    let file = Arc::new(file);
    client.notes.places = Some((Arc::clone(&file), Loans::default()));
    let all = [
        provided(0, PAGES),
        provided(5, 1),
        provided(u64::from(PAGES), PAGES),
    ];
    for message in &all {
        assert!(server.turn.links.send(to, message.clone()));
        assert!(server.turn.links.send(to, request(7)));
    }
    let came = |client: &Side| {
        let messages = client.notes.messages.iter();
        rejoined(messages.map(|(_, message)| message))
    };
    until(&mut server, &mut client, |_, client| {
        came(client).len() >= 6
    });
    let messages = came(&client);
    let mut lying = Vec::new();
    for (number, sent) in all.iter().enumerate() {
        let came = &messages[2 * number];
        assert!(came == sent, "other contents came");
        let Control::ToKernel {
            message: ToKernel::DataProvided { pages, data, .. },
            ..
        } = came
        else {
            panic!("another message");
        };
        let start = |page: PageNumber| ObjectOffset(page.0 * 4096);
        // To compare them has copied them: the file is asked.
        let mut there = vec![0; pages.count as usize * 4096];
        rustix::io::pread(&file, &mut there, start(pages.first).0).unwrap();
        let contents = data.iter().flatten().flat_map(|page| page.iter());
        lying.push(contents.eq(there.iter()));
    }
    assert_eq!(lying, [true, false, true]);
    let counters = *client.turn.links.counters(link).unwrap();
    // But for what came with their headers.
    let with_headers = 2 * length - counters.placed_bytes;
    assert!(with_headers < 2 * (16 << 10), "{counters:?}");
}

/// A transport that counts its system calls, and may say that its peer is somewhere else.
struct Counted {
    inner: Unix,
    elsewhere: Option<Peer>,
    reads: Arc<AtomicUsize>,
    writes: Arc<AtomicUsize>,
}

impl Counted {
    fn new(socket: mio::net::UnixStream, elsewhere: Option<Peer>) -> Counted {
        Counted {
            inner: Unix::new(socket).unwrap(),
            elsewhere,
            reads: Arc::default(),
            writes: Arc::default(),
        }
    }
}

impl Sink for Counted {
    fn write(
        &mut self,
        from: &[IoSlice<'_>],
        with: &[BorrowedFd<'_>],
        more: bool,
    ) -> std::io::Result<usize> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.inner.write(from, with, more)
    }
}

impl Transport for Counted {
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> std::io::Result<usize> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read(into)
    }

    fn may_have_more(&self) -> bool {
        self.inner.may_have_more()
    }

    fn register(&mut self, at: &Registry, token: Token, i: Interest) -> std::io::Result<()> {
        self.inner.register(at, token, i)
    }

    fn reregister(&mut self, at: &Registry, token: Token, i: Interest) -> std::io::Result<()> {
        self.inner.reregister(at, token, i)
    }

    fn shutdown(&mut self) {
        self.inner.shutdown();
    }

    fn peer(&self) -> &Peer {
        self.elsewhere.as_ref().unwrap_or_else(|| self.inner.peer())
    }
}

fn count(counter: &Arc<AtomicUsize>) -> usize {
    counter.load(Ordering::Relaxed)
}

/// A server provides a page.
fn provided(page: Contents) -> Control {
    Control::ToKernel {
        object: Handle(1),
        stamp: 7,
        message: ToKernel::DataProvided {
            pages: Pages::one(PageNumber(3)),
            data: vec![Some(page)],
            access: Access::Read,
        },
    }
}

/// A hundred requests of one turn leave in one write, and one request costs one read and one
/// write on each side.
#[test]
fn small_messages_leave_in_one_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("quire.sock");
    let mut server = Side::named("server");
    server
        .turn
        .links
        .listen(&Address::Unix(path.clone()), &PLAIN)
        .unwrap();
    let mut client = Side::named("node1");
    let (reads, writes): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
    let socket = mio::net::UnixStream::connect(&path).unwrap();
    let transport = Counted {
        reads: Arc::clone(&reads),
        writes: Arc::clone(&writes),
        ..Counted::new(socket, None)
    };
    let link = client.turn.links.connect_over(Box::new(transport)).unwrap();
    until(&mut server, &mut client, |_, client| {
        !client.notes.welcomed.is_empty()
    });

    let before = count(&writes);
    for id in 0..100 {
        assert!(client.turn.links.send(link, request(id)));
    }
    until(&mut server, &mut client, |_, client| {
        client.notes.messages.len() == 100
    });
    assert_eq!(count(&writes) - before, 1);
    let flushes = |side: &Side, link| side.turn.links.counters(link).unwrap().flushes;
    let (served, _) = server.notes.greeted[0];
    let before = flushes(&server, served);

    let [read, written] = [&reads, &writes].map(count);
    works(&mut server, &mut client, link);
    assert_eq!(count(&reads) - read, 1);
    assert_eq!(count(&writes) - written, 1);
    assert_eq!(flushes(&server, served) - before, 1);

    // So does a page with its contents: its reader needs no second read to see that no more
    // has come.
    for _ in 0..3 {
        let came = client.notes.messages.len();
        let before = count(&reads);
        let page = server.turn.links.pool().copy(&[5; 4096]);
        assert!(server.turn.links.send(served, provided(page)));
        until(&mut server, &mut client, |_, client| {
            client.notes.messages.len() > came
        });
        assert_eq!(count(&reads) - before, 1);
    }
}

/// Descriptors of the loop's owner, and a waker, wake it.
#[test]
fn other_descriptors_wake_the_loop() {
    let mut side = Side::named("server");
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    side.turn.links.watch(ours.as_fd(), 77).unwrap();
    theirs.write_all(b"x").unwrap();
    until_one(&mut side, |side| side.notes.ready == [77]);
    side.turn.links.unwatch(ours.as_fd()).unwrap();
    theirs.write_all(b"x").unwrap();
    for _ in 0..3 {
        side.once();
    }
    assert_eq!(side.notes.ready, [77]);

    let waker = side.turn.waker();
    let thread = std::thread::spawn(move || waker.wake().unwrap());
    let begin = Instant::now();
    side.turn
        .once(&mut side.notes, Duration::from_secs(30))
        .unwrap();
    assert!(begin.elapsed() < Duration::from_secs(5));
    thread.join().unwrap();
}

#[test]
fn too_many_links_are_closed_as_they_come() {
    keep_log();
    let mut server = Side::new(Config {
        most_links: 2,
        ..Config::new(hello("server"))
    });
    let address = listen(&mut server);
    let (mut client, link) = connected(&mut server, &address, "node1");
    // One that says nothing gives way to the next.
    let mut silent = raw(&address);
    until_one(&mut server, |server| server.turn.links.len() == 2);
    let _second = connected(&mut server, &address, "node2");
    until_one(&mut server, |_| is_closed(&mut silent));
    assert!(logged(&["there are 2 links, and it was the oldest"]));
    let mut third = raw(&address);
    until_one(&mut server, |_| is_closed(&mut third));
    assert!(logged(&["too many links"]));
    works(&mut server, &mut client, link);
}

/// An event for a link that has ended does not reach the one that took its place.
#[test]
fn a_link_is_not_taken_for_its_successor() {
    let mut server = Side::named("server");
    let address = listen(&mut server);
    let (mut client, first) = connected(&mut server, &address, "node1");
    client.turn.links.close(first, "done");
    let second = client.turn.links.connect(&address, &PLAIN, None).unwrap();
    until(&mut server, &mut client, |_, client| {
        client.notes.welcomed.len() == 2
    });
    assert_ne!(first, second);
    assert!(!client.turn.links.send(first, request(1)));
    assert!(client.turn.links.send(second, request(1)));
}

/// A link by itself, without a loop.
#[test]
fn a_link_works_without_a_loop() {
    let (one, other) = mio::net::UnixStream::pair().unwrap();
    let link = |socket| {
        let transport = Box::new(Unix::new(socket).unwrap());
        Link::plain(transport, Pool::new(), Default::default())
    };
    let (mut one, mut other) = (link(one), link(other));
    one.send(Control::Hello(hello("a")), Vec::new()).unwrap();
    assert!(one.flush(Instant::now()).unwrap());
    other.pull().unwrap();
    let (message, _) = other.message(&mut |_| None).unwrap().unwrap();
    assert_eq!(message, Control::Hello(hello("a")));
    assert_eq!(name("a").as_str(), "a");
}
