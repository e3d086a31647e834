//! `quire serve`, `quire object` and `quire dsm`, with real processes that are stopped and
//! killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

#[path = "common/refusal.rs"]
mod refusal;
#[path = "common/signals.rs"]
mod signals;
#[path = "common/waiting.rs"]
mod waiting;

use refusal::assert_refused;
use waiting::{state, wait_for};

/// How long a machine that went silent keeps what it has.
const LEASE: Duration = Duration::from_secs(1);

/// A server of its own.
struct Served {
    process: Child,
    address: String,
    directory: TempDir,
}

impl Served {
    fn start() -> Served {
        let directory = TempDir::new().unwrap();
        let listen = format!("unix:{}/socket", directory.path().display());
        Served::start_with(directory, &["--listen", &listen])
    }

    fn start_with(directory: TempDir, args: &[&str]) -> Served {
        let lease = LEASE.as_secs().to_string();
        let mut process = Command::new(env!("CARGO_BIN_EXE_quire"))
            .args(["serve", "--lease", &lease])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = process.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let address = line.strip_prefix("serving at ").unwrap().trim().to_owned();
        Served {
            process,
            address,
            directory,
        }
    }

    fn quire(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        command.args(args).env("QUIRE_SERVER", &self.address);
        command.output().unwrap()
    }

    fn does(&self, args: &[&str]) -> String {
        let output = self.quire(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A node that increments the first word of `hot` for long.
    fn hot(&self) -> Node {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        command
            .args(["dsm", "member", "--object", "hot", "--program", "hotspot"])
            .args(["--size", "1000000000000", "--me", "0", "--members", "1"])
            .args(["--reconnect", "1", "--server", &self.address])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Node(command.spawn().unwrap())
    }

    /// The first word of `hot`, as the server gives it.
    fn counted(&self) -> u64 {
        let file = self.path().join("out");
        self.does(&["object", "cp", ":hot", file.to_str().unwrap()]);
        let bytes = fs::read(file).unwrap();
        u64::from_ne_bytes(bytes[..8].try_into().unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A node, which ends with the test.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn objects_are_made_shown_and_removed() {
    let served = Served::start();
    let tags = "float64:0-4K,int32:8K-12K";
    served.does(&["object", "create", "grid", "--size", "1M", "--tags", tags]);
    let list: Value = serde_json::from_str(&served.does(&["object", "ls", "--json"])).unwrap();
    assert_eq!(list[0]["name"], "grid");
    assert_eq!(list[0]["size_bytes"], 1 << 20);
    assert_eq!(list[0]["types"], "float64:0-4096,int32:8192-12288");
    let shown = served.does(&["object", "stat", "grid"]);
    assert!(shown.contains("scheduler multi, open 0 times"), "{shown}");
    served.does(&["object", "rm", "grid"]);
    assert_eq!(served.does(&["object", "ls"]).lines().count(), 1);
}

#[test]
fn files_become_objects_and_objects_files() {
    let served = Served::start();
    let bytes: Vec<u8> = (0..300_001u32).map(|n| (n * 7 % 251) as u8).collect();
    let (from, to) = (served.path().join("from"), served.path().join("to"));
    fs::write(&from, &bytes).unwrap();
    served.does(&["object", "cp", from.to_str().unwrap(), ":copied"]);
    served.does(&["object", "cp", ":copied", to.to_str().unwrap()]);
    assert!(fs::read(&to).unwrap() == bytes);
    let pages = ["object", "stat", "copied", "--pages", "0-1", "--json"];
    let shown: Value = serde_json::from_str(&served.does(&pages)).unwrap();
    assert_eq!(shown["pages"][1]["page"], 1);
    assert!(shown["faults"]["write"].as_u64().unwrap() >= 74, "{shown}");
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let served = Served::start();
    served.does(&["object", "create", "grid", "--size", "4K"]);
    let refused = |args: &[&str], words: &[&str]| assert_refused(&served.quire(args), 2, words);
    refused(
        &["object", "create", "grid", "--size", "4K"],
        &["grid already"],
    );
    refused(
        &["object", "create", "none", "--size", "0"],
        &["1 to 2^47 bytes"],
    );
    refused(&["object", "create", "a b", "--size", "4K"], &["name"]);
    let tags = ["object", "create", "odd", "--size", "4K", "--tags", "int33"];
    refused(&tags, &["--tags", "int33", "int32"]);
    let pages = [
        "object",
        "create",
        "odd",
        "--size",
        "4K",
        "--page-size",
        "5K",
    ];
    refused(&pages, &["power of two"]);
    refused(&["object", "rm", "nothing"], &["no object nothing"]);
    refused(&["object", "cp", "a", "b"], &["colon"]);
    refused(&["object", "cp", "/nonexistent", ":b"], &["/nonexistent"]);
    let served_before = ["serve", "--listen", &served.address];
    refused(&served_before, &["cannot listen"]);
    refused(
        &["serve", "--listen", "192.0.2.1:1"],
        &["certificate", "plain text"],
    );
}

#[test]
fn without_a_server_the_remedy_is_named() {
    let args = ["object", "ls", "--server", "unix:/nonexistent/socket"];
    let output = Command::new(env!("CARGO_BIN_EXE_quire"))
        .args(args)
        .output()
        .unwrap();
    assert_refused(&output, 1, &["/nonexistent/socket", "quire serve"]);
}

#[test]
fn a_server_ends_well_when_it_is_asked_to() {
    for signal in ["INT", "TERM"] {
        let mut served = Served::start();
        signals::send(signal, served.process.id());
        assert_eq!(
            served.process.wait().unwrap().code(),
            Some(0),
            "SIG{signal}"
        );
    }
}

#[test]
fn the_demonstration_runs_all_programs() {
    let args = [
        "dsm", "demo", "--quick", "--runs", "1", "--nodes", "2", "--json",
    ];
    let output = Command::new(env!("CARGO_BIN_EXE_quire"))
        .args(args)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows.len(), 5);
    for row in rows {
        for nodes in 0..2 {
            assert!(
                row["seconds_by_nodes"][nodes][0].as_f64().unwrap() > 0.0,
                "{row}"
            );
        }
    }
}

/// An object that a node writes to all the time, and what the server had of it for sure.
fn hot(served: &Served) -> (Node, u64) {
    served.does(&[
        "object",
        "create",
        "hot",
        "--size",
        "4K",
        "--scheduler",
        "simple",
    ]);
    let node = served.hot();
    wait_for(|| served.counted() > 0);
    let known = served.counted();
    // It writes again after that.
    wait_for(|| served.counted() > known);
    (node, known)
}

#[test]
fn a_node_that_is_killed_holds_nobody_up() {
    let served = Served::start();
    let (mut node, known) = hot(&served);
    node.0.kill().unwrap();
    node.0.wait().unwrap();
    let begin = Instant::now();
    assert!(served.counted() >= known);
    assert!(
        begin.elapsed() < LEASE + Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    served.does(&["object", "rm", "hot"]);
}

#[test]
fn a_node_that_is_stopped_loses_what_it_has_and_goes_on_with_what_is_there() {
    let served = Served::start();
    let (node, known) = hot(&served);
    signals::send("STOP", node.0.id());
    wait_for(|| state(node.0.id()) == 'T');
    let begin = Instant::now();
    let counted = served.counted();
    assert!(counted >= known);
    assert!(
        begin.elapsed() < LEASE + Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    // While it is stopped nothing changes.
    assert_eq!(served.counted(), counted);
    signals::send("CONT", node.0.id());
    wait_for(|| served.counted() > counted);
}

#[test]
fn memory_of_a_server_that_is_killed_fails() {
    let mut served = Served::start();
    let (mut node, _) = hot(&served);
    served.process.kill().unwrap();
    let ended = node.0.wait().unwrap();
    assert_eq!(ended.signal(), Some(7), "{ended}");
}

/// The options that make a node of this name known.
fn known_as(directory: &Path, name: &str) -> Vec<String> {
    let file = |name: &str| directory.join(name).display().to_string();
    let (pem, key) = (format!("{name}.pem"), format!("{name}.key"));
    let options = [
        "--certificate",
        &file(&pem),
        "--key",
        &file(&key),
        "--ca",
        &file("ca.pem"),
    ];
    let options = options.map(str::to_owned);
    options
        .into_iter()
        .chain(["--tls-everywhere".into()])
        .collect()
}

fn as_node(served: &Served, name: &str, files: &str, args: &[&str]) -> Output {
    let known = known_as(served.path(), files);
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    served.quire(&[args, &["--identity", name], &known].concat())
}

#[test]
fn nodes_are_known_by_their_certificates() {
    let directory = TempDir::new().unwrap();
    let keys = directory.path().to_str().unwrap();
    let certify = |names: &[&str], directory: &str| {
        let args = [&["dsm", "certify", "--directory", directory], names].concat();
        Command::new(env!("CARGO_BIN_EXE_quire"))
            .args(args)
            .output()
            .unwrap()
    };
    assert!(
        certify(&["server", "node-1", "node-2"], keys)
            .status
            .success()
    );
    assert_refused(&certify(&["node-1"], keys), 2, &["node-1.key", "exists"]);
    let other = TempDir::new().unwrap();
    assert!(
        certify(&["node-3"], other.path().to_str().unwrap())
            .status
            .success()
    );
    for file in ["node-3.pem", "node-3.key"] {
        fs::copy(other.path().join(file), directory.path().join(file)).unwrap();
    }
    let known = known_as(directory.path(), "server");
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let served = Served::start_with(directory, &[&["--listen", "127.0.0.1:0"], &*known].concat());
    let create = ["object", "create", "grid", "--size", "4K"];
    assert!(
        as_node(&served, "node-1", "node-1", &create)
            .status
            .success()
    );
    let out = served.path().join("out").display().to_string();
    let copy = ["object", "cp", ":grid", &out];
    assert_refused(
        &as_node(&served, "node-2", "node-2", &copy),
        1,
        &["node-2", "grant"],
    );
    let grant = ["object", "grant", "grid", "node-2", "r"];
    assert!(
        as_node(&served, "node-1", "node-1", &grant)
            .status
            .success()
    );
    assert!(as_node(&served, "node-2", "node-2", &copy).status.success());
    // A name that the certificate does not have, a CA that is not known, and no certificate.
    let list = ["object", "ls"];
    assert_refused(&as_node(&served, "node-1", "node-2", &list), 2, &["node-1"]);
    assert_refused(
        &as_node(&served, "node-3", "node-3", &list),
        2,
        &["node-3", "CA"],
    );
    let plain = served.quire(&list);
    assert_refused(&plain, 1, &[]);
}
