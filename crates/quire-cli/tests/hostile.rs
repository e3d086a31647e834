//! What strangers, mistakes and attackers send to a real `quire serve` with TLS: each is
//! closed with one line in the server's log that says why, and a node that works on an
//! object meanwhile goes on.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use quire_dsm::link::identity::{Authority, Pair, Validity};
use quire_dsm::wire::control::{Hello, MachineCode, Name, PageSize, Request, RequestId, Role};
use quire_dsm::wire::{Control, Outgoing, VERSION};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

#[path = "common/waiting.rs"]
mod waiting;

use waiting::{state, wait_for};

const DAY: Duration = Duration::from_secs(86400);
/// The server may take so much for strangers that say little.
const ROOM: u64 = 64 << 20;
/// And so much for answers that one peer does not read: it is cut off at half of this.
const QUEUE: u64 = 256 << 20;

type Secret = StreamOwned<ClientConnection, TcpStream>;

/// A server with TLS and what it logs, with a node that works on an object.
struct Setting {
    server: Child,
    node: Child,
    address: String,
    authority: Authority,
    directory: TempDir,
}

impl Drop for Setting {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            eprintln!("the end of the log:");
            let lines: Vec<&str> = log.lines().rev().take(5).collect();
            lines.iter().rev().for_each(|line| eprintln!("{line}"));
        }
        for process in [&mut self.node, &mut self.server] {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The options of a node with this name.
fn known_as(directory: &Path, name: &str) -> Vec<String> {
    let file = |name: String| directory.join(name).display().to_string();
    let options = [
        "--identity".to_owned(),
        name.to_owned(),
        "--certificate".to_owned(),
        file(format!("{name}.pem")),
        "--key".to_owned(),
        file(format!("{name}.key")),
        "--ca".to_owned(),
        file("ca.pem".to_owned()),
        "--tls-everywhere".to_owned(),
    ];
    options.to_vec()
}

fn quire(args: &[&str], more: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(args).args(more).stdin(Stdio::null());
    command
}

fn write_pair(directory: &Path, name: &str, pair: &Pair) {
    let file = |kind: &str| directory.join(format!("{name}.{kind}"));
    pair.write(&file("pem"), &file("key")).unwrap();
}

impl Setting {
    fn new() -> Setting {
        let directory = TempDir::new().unwrap();
        let authority = Authority::generate(Validity::days(30)).unwrap();
        let path = directory.path();
        fs::write(path.join("ca.pem"), &authority.pair().certificate).unwrap();
        for name in ["server", "good", "bad"] {
            let called: Name = name.parse().unwrap();
            let pair = authority.issue(&called, Validity::days(10)).unwrap();
            write_pair(path, name, &pair);
        }
        let mut server = quire(
            &["serve", "--listen", "127.0.0.1:0"],
            &known_as(path, "server")[2..],
        )
        .stdout(Stdio::piped())
        .stderr(File::create(path.join("log")).unwrap())
        .spawn()
        .unwrap();
        let mut line = String::new();
        let stdout = server.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let address = line.strip_prefix("serving at ").unwrap().trim().to_owned();
        let at = ["--server", &address];
        let good = known_as(path, "good");
        let create = [&["object", "create", "hot", "--size", "4K"], &at[..]].concat();
        assert!(quire(&create, &good).status().unwrap().success());
        let work = ["dsm", "member", "--object", "hot", "--program", "hotspot"];
        let long = ["--size", "1000000000000", "--me", "0", "--members", "1"];
        let node = quire(&[&work[..], &long, &at].concat(), &good)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let setting = Setting {
            server,
            node,
            address,
            authority,
            directory,
        };
        wait_for(|| setting.counted() > 0);
        setting
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path().join("log")).unwrap()
    }

    /// The word that the node increments, as a third party reads it: the page comes from
    /// the node by the server, so both answer.
    fn counted(&self) -> u64 {
        let out: PathBuf = self.path().join("out");
        let copy = ["object", "cp", ":hot", out.to_str().unwrap()];
        let copy = [&copy[..], &["--server", &self.address]].concat();
        let output = quire(&copy, &known_as(self.path(), "good"))
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        u64::from_ne_bytes(fs::read(out).unwrap()[..8].try_into().unwrap())
    }

    /// Lines of the log with all these words.
    fn lines_with(&self, words: &[&str]) -> usize {
        let log = self.log();
        let with = |line: &&str| words.iter().all(|word| line.contains(word));
        log.lines().filter(with).count()
    }

    /// Whoever was at `from` has one line in the log, with these words; the node goes on.
    fn is_told_of(&self, from: &str, words: &[&str]) {
        let words = [&["WARN", from], words].concat();
        wait_for(|| self.lines_with(&words) > 0);
        assert_eq!(self.lines_with(&["WARN", from]), 1, "{}", self.log());
        assert_ne!(state(self.node.id()), 'Z', "the node has ended");
        let before = self.counted();
        wait_for(|| self.counted() > before);
    }

    /// The server's resident memory.
    fn resident(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.server.id());
        let text = fs::read_to_string(path).unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    fn plain(&self) -> (TcpStream, String) {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let from = stream.local_addr().unwrap().to_string();
        (stream, from)
    }

    /// A TLS session with a pair of files, which sends what it likes.
    fn secret(&self, pair: &Pair) -> (Secret, String) {
        let (stream, from) = self.plain();
        let mut roots = RootCertStore::empty();
        let own = &self.authority.pair().certificate;
        roots
            .add(CertificateDer::from_pem_slice(own.as_bytes()).unwrap())
            .unwrap();
        let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes());
        let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .unwrap();
        let server = ServerName::try_from("server").unwrap();
        let connection = ClientConnection::new(Arc::new(config), server).unwrap();
        (StreamOwned::new(connection, stream), from)
    }

    fn pair(&self, name: &str, validity: Validity) -> Pair {
        self.authority
            .issue(&name.parse().unwrap(), validity)
            .unwrap()
    }

    fn bad(&self) -> (Secret, String) {
        self.secret(&self.pair("bad", Validity::days(1)))
    }

    /// Whoever sends these bytes in a TLS session is closed, with these words.
    fn sent(&self, bytes: &[u8], words: &[&str]) {
        let (mut stream, from) = self.bad();
        stream.write_all(bytes).unwrap();
        is_closed(&mut stream);
        self.is_told_of(&from, words);
    }

    /// Whoever has this pair gets no session, with these words.
    fn is_refused(&self, pair: &Pair, words: &[&str]) {
        let (mut stream, from) = self.secret(pair);
        // In TLS 1.3 the client has a session before the server has seen its certificate.
        let _ = stream.write_all(&bytes_of(hello("bad")));
        is_closed(&mut stream);
        self.is_told_of(&from, words);
    }
}

/// Waits until the other side has closed; what it says before is skipped.
fn is_closed(stream: &mut impl Read) {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                let waited = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(!waited, "it is not closed");
                return;
            }
        }
    }
}

fn hello(name: &str) -> Control {
    Control::Hello(Hello {
        name: name.parse().unwrap(),
        role: Role::Kernel,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    })
}

fn list(id: u64) -> Control {
    Control::Request {
        id: RequestId(id),
        request: Request::List { after: None },
    }
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

#[test]
fn what_is_no_message_is_cut_off() {
    let setting = Setting::new();
    let (mut stream, from) = setting.plain();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    is_closed(&mut stream);
    setting.is_told_of(&from, &["this is no TLS"]);
    setting.sent(&[0xa5; 4096], &["maybe the peer is not quire"]);
    let mut other = bytes_of(hello("bad"));
    other[4] = 1;
    let versions = format!("speaks version 1 of the protocol, we speak {VERSION}");
    setting.sent(&other, &[&versions]);
    let long = Control::Goodbye {
        reason: "x".repeat(5000),
    };
    setting.sent(&bytes_of(long), &["control part has", "more than"]);
    let mut damaged = bytes_of(hello("bad"));
    damaged[30] ^= 1;
    setting.sent(&damaged, &["checksum", "is wrong"]);
    setting.sent(&bytes_of(list(1)), &["Request when it should not"]);
}

#[test]
fn who_is_not_whom_he_says_is_cut_off() {
    let setting = Setting::new();
    let now = SystemTime::now();
    let over = Validity {
        from: now - 10 * DAY,
        until: now - 3 * DAY,
    };
    let words = ["certificate ended 3 days ago: issue a new one"];
    setting.is_refused(&setting.pair("bad", over), &words);
    let other = Authority::generate(Validity::days(30)).unwrap();
    let pair = other.issue(&"good".parse().unwrap(), Validity::days(1));
    setting.is_refused(&pair.unwrap(), &["certificate is not from our CA"]);
    let words = ["says that it is good, but its certificate is for bad"];
    setting.sent(&bytes_of(hello("good")), &words);
    // The command, too, says it in one line.
    let mut lies = known_as(setting.path(), "bad");
    lies[1] = "good".to_owned();
    let ls = quire(&["object", "ls", "--server", &setting.address], &lies)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&ls.stderr);
    assert_eq!(ls.status.code(), Some(2), "{error}");
    assert!(
        error.contains("bad") && error.lines().count() == 1,
        "{error}"
    );
}

#[test]
fn who_says_nothing_is_cut_off() {
    let setting = Setting::new();
    let before = setting.resident();
    let silent: Vec<_> = (0..200).map(|_| setting.plain()).collect();
    let (mut half, half_from) = setting.bad();
    half.write_all(&bytes_of(hello("bad"))[..20]).unwrap();
    let before_hello = setting.counted();
    wait_for(|| setting.counted() > before_hello);
    for (mut stream, from) in silent {
        is_closed(&mut stream);
        wait_for(|| setting.lines_with(&["WARN", &from, "did not say"]) == 1);
    }
    is_closed(&mut half);
    setting.is_told_of(&half_from, &["did not say within 5s who it is"]);
    let grown = setting.resident().saturating_sub(before);
    assert!(grown < ROOM, "{grown} bytes more");
}

/// Sends small requests as fast as it can, and neither reads an answer nor says that it
/// lives.
#[test]
fn who_floods_is_cut_off() {
    let setting = Setting::new();
    let before = setting.resident();
    let (mut stream, from) = setting.bad();
    stream.write_all(&bytes_of(hello("bad"))).unwrap();
    let mut peak = 0;
    let many: Vec<u8> = (0..1000).flat_map(|id| bytes_of(list(id))).collect();
    let end = Instant::now() + Duration::from_secs(120);
    while stream.write_all(&many).is_ok() {
        assert!(Instant::now() < end, "the flood goes on");
        peak = peak.max(setting.resident().saturating_sub(before));
    }
    setting.is_told_of(&from, &["no heartbeat for 5s"]);
    assert!(peak < QUEUE, "{peak} bytes more");
}
