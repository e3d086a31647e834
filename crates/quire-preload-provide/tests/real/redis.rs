//! A key-value server that saves itself from a forked child while it goes on
//! writing: what is read back after a restart must be what was there at the
//! fork.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::harness::scratch::Scratch;
use crate::harness::setting::{self, Setting};
use crate::harness::{pool, process, skip};
use crate::managed::huge_bytes;

const KEYS: u32 = 60_000;

/// A running server; dropping kills it.
struct Server {
    child: Child,
    stream: BufReader<UnixStream>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(directory: &Path, libraries: &[PathBuf], setting: &Setting) -> Server {
        let server = process::find("redis-server").expect("it was found before");
        let socket = directory.join("socket");
        let mut argv: Vec<OsString> = vec![server.into()];
        argv.extend(
            [
                "--port",
                "0",
                "--save",
                "",
                "--daemonize",
                "no",
                "--unixsocket",
            ]
            .map(OsString::from),
        );
        argv.push(socket.clone().into());
        let log = fs::File::create(directory.join("log")).expect("the directory is ours");
        let child = process::command(&setting.command(&argv, libraries, None), directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn()
            .expect("env is a program");
        let start = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) if start.elapsed() > Duration::from_secs(20) => {
                    let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
                    panic!("redis does not answer: {error}\n{log}");
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let limit = Some(Duration::from_secs(30));
        stream
            .set_read_timeout(limit)
            .expect("the limit is not zero");
        let stream = BufReader::new(stream);
        let mut server = Server { child, stream };
        while server.ask(&["PING"]) != "PONG" {
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    fn send(&mut self, commands: &[Vec<String>]) {
        let mut text = String::new();
        for words in commands {
            text += &format!("*{}\r\n", words.len());
            for word in words {
                text += &format!("${}\r\n{word}\r\n", word.len());
            }
        }
        self.stream
            .get_mut()
            .write_all(text.as_bytes())
            .expect("redis listens");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("redis answers");
        let line = line.trim_end();
        let Some(length) = line.strip_prefix('$') else {
            return line.get(1..).unwrap_or_default().to_owned();
        };
        let Ok(length) = length.parse::<usize>() else {
            return "(nil)".to_owned();
        };
        let mut value = vec![0; length + 2];
        self.stream.read_exact(&mut value).expect("redis answers");
        value.truncate(length);
        String::from_utf8(value).expect("values are text")
    }

    fn ask(&mut self, words: &[&str]) -> String {
        self.send(&[words.iter().map(|w| (*w).to_owned()).collect()]);
        self.answer()
    }

    /// Sends many commands, a thousand at once, and checks each answer.
    fn each(&mut self, command: impl Fn(u32) -> Vec<String>, wanted: impl Fn(u32) -> String) {
        for from in (0..KEYS).step_by(1000) {
            let commands: Vec<_> = (from..from + 1000).map(&command).collect();
            self.send(&commands);
            for key in from..from + 1000 {
                let (answer, wanted) = (self.answer(), wanted(key));
                assert!(
                    answer == wanted,
                    "key {key}: {answer:.60}, wanted {wanted:.60}"
                );
            }
        }
    }

    fn set_all(&mut self, generation: u32) {
        let command = |k: u32| vec!["SET".into(), format!("key:{k}"), value(k, generation)];
        self.each(command, |_| "OK".to_owned());
    }

    fn check_all(&mut self, generation: u32) {
        let command = |k: u32| vec!["GET".into(), format!("key:{k}")];
        self.each(command, |k| value(k, generation));
    }

    /// Most of what is stored comes to lie on superpages.
    fn await_superpages(&self) {
        let start = Instant::now();
        while huge_bytes(self.child.id()) < 16 << 20 {
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "redis has {} MiB on superpages",
                huge_bytes(self.child.id()) >> 20
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn stop(mut self) {
        self.send(&[vec!["SHUTDOWN".into(), "NOSAVE".into()]]);
        let start = Instant::now();
        while self.child.try_wait().expect("the child is ours").is_none() {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "redis does not end"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn value(key: u32, generation: u32) -> String {
    let size = 40 + (key * 7 + generation * 13) % 900;
    format!("{key}.{generation};").repeat(size as usize / 8)
}

fn check(setting: &Setting) {
    if process::find("redis-server").is_none() {
        return skip("redis-server is not installed");
    }
    if let Some(reason) = setting.missing() {
        return skip(&reason);
    }
    let _pool = setting.pool_pages.map(pool::Pool::with);
    let scratch = Scratch::new(setting.unprivileged);
    let libraries: Vec<PathBuf> = setting
        .libraries()
        .iter()
        .map(|library| scratch.take_copy(library))
        .collect();
    let mut server = Server::start(scratch.path(), &libraries, setting);
    server.set_all(1);
    if setting.promises_superpages() && process::is_root() {
        server.await_superpages();
    }
    for generation in 2..5 {
        // The dump is of the generation before; meanwhile all is rewritten.
        assert_eq!(server.ask(&["BGSAVE"]), "Background saving started");
        server.set_all(generation);
        let start = Instant::now();
        while !server
            .ask(&["INFO", "persistence"])
            .contains("rdb_bgsave_in_progress:0")
        {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "BGSAVE does not end"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        let info = server.ask(&["INFO", "persistence"]);
        assert!(info.contains("rdb_last_bgsave_status:ok"), "{info}");
        server.check_all(generation);
    }
    server.stop();
    let mut server = Server::start(scratch.path(), &libraries, setting);
    server.check_all(3);
    assert_eq!(server.ask(&["DBSIZE"]), KEYS.to_string());
    assert_eq!(server.ask(&["FLUSHALL"]), "OK");
    server.set_all(9);
    server.check_all(9);
    server.stop();
}

#[test]
fn eager() {
    check(&setting::EAGER);
}

#[test]
fn reserve() {
    check(&setting::RESERVE);
}

#[test]
fn static_pool() {
    check(&setting::STATIC);
}

#[test]
fn unprivileged() {
    check(&setting::UNPRIVILEGED);
}
