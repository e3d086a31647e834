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

    /// What a command writes that reads this.
    fn does_with(&self, args: &[&str], input: &[u8]) -> Vec<u8> {
        let from = self.path().join("input");
        fs::write(&from, input).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_quire"))
            .args(args)
            .env("QUIRE_SERVER", &self.address)
            .stdin(fs::File::open(from).unwrap())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        output.stdout
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
    assert!(shown.contains("scheduler multi, made by uid:"), "{shown}");
    assert!(shown.contains("open: nowhere"), "{shown}");
    served.does(&["object", "rm", "grid"]);
    assert_eq!(served.does(&["object", "ls"]).lines().count(), 1);
}

/// Zeros take no memory of a server that makes an object of them, nor of a disk.
#[test]
fn what_is_zero_in_a_file_is_not_written() {
    use std::os::unix::fs::MetadataExt;
    let served = Served::start();
    let (from, to) = (served.path().join("from"), served.path().join("to"));
    let mut bytes = vec![0; (64 << 20) + 7];
    bytes[20 << 20..][..5].fill(1);
    fs::write(&from, &bytes).unwrap();
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    served.does(&["object", "cp", from, ":thin"]);
    let shown = served.does(&["object", "stat", "thin", "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let used = shown["pages_used"].as_u64().unwrap();
    assert!((1..1000).contains(&used), "{used} pages");
    fs::write(to, "what was there before").unwrap();
    served.does(&["object", "cp", ":thin", to]);
    assert!(fs::read(to).unwrap() == bytes);
    let on_disk = 512 * fs::metadata(to).unwrap().blocks();
    assert!(on_disk < 1 << 20, "{on_disk} bytes");
    // An object that is there is overwritten with zeros, too.
    fs::write(to, vec![2; 100_000]).unwrap();
    served.does(&["object", "cp", to, ":thin"]);
    served.does(&["object", "cp", from, ":thin"]);
    assert!(served.does_with(&["object", "cp", ":thin", "-"], &[]) == bytes);
    served.does(&["object", "cp", ":thin", "/dev/null"]);
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
    assert!(served.does_with(&["object", "cp", ":copied", "-"], &[]) == bytes);
    let put = served.does_with(&["object", "cp", "-", ":put"], &bytes);
    assert_eq!(put, b"", "what is said is no part of an object");
    assert!(served.does_with(&["object", "cp", ":put", "-"], &[]) == bytes);
    assert!(!Path::new("-").exists(), "it is no file");
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
    refused(
        &["object", "rm", "nothing"],
        &["no object nothing", "quire object ls"],
    );
    for watched in ["trace", "stat"] {
        refused(&["object", watched, "nothing"], &["no object nothing"]);
    }
    refused(
        &["object", "stat", "grid", "--pages", "7-9"],
        &["--pages", "last page of grid is 0"],
    );
    refused(
        &["dsm", "demo", "--picture", "demo.png"],
        &["demo.png", ".html"],
    );
    refused(
        &["dsm", "demo", "--picture", "/nonexistent/demo.svg"],
        &["/nonexistent/demo.svg"],
    );
    refused(&["object", "cp", "a", "b"], &["colon"]);
    // Rights go to somebody who can be there.
    for nobody in [
        "",
        "uid:x",
        "uid:",
        "uid:-1",
        "uid:4294967295",
        "user:7",
        "a b",
    ] {
        let grant = ["object", "grant", "grid", nobody, "rw"];
        refused(&grant, &["name in a certificate, uid:NUMBER, or anyone"]);
    }
    for somebody in ["anyone", "uid:1000", "node-2", "node-2.lab"] {
        served.does(&["object", "grant", "grid", somebody, "r"]);
    }
    refused(&["object", "cp", "/nonexistent", ":b"], &["/nonexistent"]);
    let served_before = ["serve", "--listen", &served.address];
    refused(&served_before, &["cannot listen at unix:", "--listen"]);
    let nowhere = ["serve", "--listen", "unix:/nonexistent/socket"];
    refused(&nowhere, &["/nonexistent/socket", "make the directory"]);
    refused(&["dsm", "demo", "--nodes", "0"], &["--nodes", "at least 1"]);
    refused(&["dsm", "demo", "--nodes", "64"], &["--nodes", "63"]);
    refused(
        &["serve", "--listen", "192.0.2.1:1"],
        &["certificate", "plain text", "--plaintext"],
    );
}

/// Help names all schedulers, and an empty variable is as good as none.
#[test]
fn options_are_as_they_are_described() {
    let quire = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        let command = command.args(args).env_remove("QUIRE_SERVER");
        command.envs(variables.iter().copied()).output().unwrap()
    };
    for args in [["object", "create", "--help"], ["dsm", "demo", "--help"]] {
        let help = String::from_utf8(quire(&args, &[]).stdout).unwrap();
        for scheduler in ["`simple`", "`multi`", "`distributed`"] {
            assert!(help.contains(scheduler), "{help}");
        }
    }
    // Nobody listens where a server is by default, or somebody does; it is asked in any case.
    let (unset, empty) = (["object", "ls"], [("QUIRE_SERVER", "")]);
    let (unset, empty) = (quire(&unset, &[]), quire(&unset, &empty));
    assert_eq!(
        (unset.status.code(), &unset.stderr),
        (empty.status.code(), &empty.stderr)
    );
    let explicit = quire(&["object", "ls", "--server", ""], &[("QUIRE_SERVER", "")]);
    assert_refused(&explicit, 2, &["--server", "write HOST:PORT"]);
    let served = Served::start();
    let address = [("QUIRE_SERVER", &*served.address)];
    assert!(quire(&["object", "ls"], &address).status.success());
    let negative = ["object", "create", "grid", "--size", "-1"];
    assert_refused(&quire(&negative, &[]), 2, &["--size", "`-1`", "256M"]);
    for option in [["--advertise", "127.0.0.1:1"], ["--peer-server", "node-2"]] {
        let serve = [&["serve", "--listen", "127.0.0.1:0"][..], &option].concat();
        assert_refused(&quire(&serve, &[]), 2, &["--peers", "--etcd"]);
    }
}

/// What is bad input has the status of that, and says what would be good.
#[test]
fn bad_addresses_are_bad_input() {
    let refused = |args: &[&str], words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        let output = command.args(args).env_remove("QUIRE_SERVER").output();
        assert_refused(&output.unwrap(), 2, words);
    };
    let listen = ["serve", "--listen", "127.0.0.1:0"];
    for (urls, words) in [
        ("garbage", "http://HOST:PORT"),
        ("garbage:2379", "http://HOST:PORT"),
        ("ftp://127.0.0.1:2379", "http://HOST:PORT"),
        ("http://127.0.0.1", "no port; etcd's is 2379"),
    ] {
        refused(
            &[&listen[..], &["--etcd", urls]].concat(),
            &["--etcd", urls, words],
        );
    }
    let ls = ["object", "ls", "--server"];
    let remedy = ["192.0.2.1:7450", "--certificate", "--plaintext"];
    refused(&[&ls[..], &["192.0.2.1:7450"]].concat(), &remedy);
    let peers = ["--peers", "127.0.0.1:1,192.0.2.1:7450"];
    refused(&[&listen[..], &peers].concat(), &remedy);
    let advertise = ["--peers", "127.0.0.1:1", "--advertise", "192.0.2.1:7450"];
    refused(&[&listen[..], &advertise].concat(), &remedy);
    refused(
        &[&ls[..], &["here"]].concat(),
        &["no address", "write HOST:PORT"],
    );
    let unknown = &["nowhere.invalid:7450", "cannot be found", "look it up"];
    refused(&[&ls[..], &["nowhere.invalid:7450"]].concat(), unknown);
    refused(&["serve", "--listen", "nowhere.invalid:7450"], unknown);
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

#[test]
fn the_demonstration_draws_who_had_which_page() {
    let directory = TempDir::new().unwrap();
    let demo = |more: &[&str]| {
        let args = ["dsm", "demo", "--quick", "--runs", "1", "--nodes", "2"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        let output = command.args(args).args(more).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        String::from_utf8(output.stdout).unwrap()
    };
    for end in ["html", "svg"] {
        let file = directory.path().join(format!("demo.{end}"));
        let picture = ["--picture", file.to_str().unwrap()];
        let text = demo(&[&["--programs", "matrix,hotspot"], &picture[..]].concat());
        // Each node writes to pages of its own, and the table has the paper's times.
        let rows = text.lines().filter(|line| line.ends_with('|'));
        let rows: String = rows.collect();
        assert!(rows.contains('A') && rows.contains('B'), "{text}");
        assert!(
            text.contains("Matrix 128x128    29") && text.contains("hotspot 100 on 2 nodes"),
            "{text}"
        );
        assert!(!text.contains('\x1b'), "no colours in a file: {text}");
        let drawn = fs::read_to_string(&file).unwrap();
        assert!(drawn.contains("<svg") && drawn.contains("prefers-color-scheme"));
        assert!(drawn.contains("node-2"), "both nodes are named");
        assert!(!drawn.contains("src="), "it needs nothing else");
    }
    let text = demo(&["--programs", "hotspot", "--no-picture", "--loopback"]);
    assert!(!text.contains('|') && text.contains("loopback"), "{text}");
}

#[test]
fn the_unit_is_understood_and_its_options_too() {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
    let unit = fs::read_to_string(dist.join("quire-serve.service")).unwrap();
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("quire-serve.service");
    fs::write(
        &file,
        unit.replace("/usr/local/bin/quire", env!("CARGO_BIN_EXE_quire")),
    )
    .unwrap();
    // The options that it gives, with files that are not there.
    let unit = unit.replace("\\\n", " ");
    let started = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="))
        .unwrap();
    let missing = started.replace("/etc/quire/", "/nonexistent/");
    let args: Vec<&str> = missing.split_whitespace().skip(1).collect();
    let output = Command::new(env!("CARGO_BIN_EXE_quire"))
        .args(args)
        .output()
        .unwrap();
    assert_refused(&output, 2, &["/nonexistent/"]);
    let verified = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&file)
        .output();
    let Ok(output) = verified else {
        return println!("SKIP: systemd-analyze is missing");
    };
    let text = String::from_utf8_lossy(&output.stderr);
    let about_ours = text.lines().filter(|line| line.contains("quire-serve"));
    assert_eq!(about_ours.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(output.status.success(), "{text}");
}

/// A demonstration that is killed leaves no process and no file behind.
#[test]
fn a_demonstration_that_is_killed_leaves_nothing_behind() {
    let directory = TempDir::new().unwrap();
    let args = ["dsm", "demo", "--nodes", "2", "--programs", "router"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command
        .args(args)
        .env("TMPDIR", directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut demo = Node(command.spawn().unwrap());
    let files = || fs::read_dir(directory.path()).unwrap().count();
    wait_for(|| files() > 0);
    let with_its_directory = |process: &fs::DirEntry| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("host") && line.contains(directory.path().to_str().unwrap())
    };
    let servers = || {
        let processes = fs::read_dir("/proc").unwrap().map_while(Result::ok);
        processes.filter(with_its_directory).count()
    };
    wait_for(|| servers() > 0);
    demo.0.kill().unwrap();
    demo.0.wait().unwrap();
    wait_for(|| servers() == 0 && files() == 0);
}

/// The lines of a trace of `hot` in JSON, of one second.
fn traced(served: &Served, more: &[&str]) -> Vec<Value> {
    let trace = ["object", "trace", "hot", "--json", "--for", "1"];
    let text = served.does(&[&trace, more].concat());
    let line = |line| serde_json::from_str(line).unwrap();
    text.lines().map(line).collect()
}

#[test]
fn a_trace_shows_each_message_with_its_page_and_who_it_is() {
    let served = Served::start();
    served.does(&["object", "create", "hot", "--size", "64K"]);
    let trace = ["object", "trace", "hot", "--json"];
    let mut watcher = Command::new(env!("CARGO_BIN_EXE_quire"))
        .args(trace)
        .env("QUIRE_SERVER", &served.address)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(watcher.stdout.take().unwrap());
    let mut begun = String::new();
    output.read_line(&mut begun).unwrap();
    assert_eq!(begun.trim(), r#"{"watching":"hot"}"#);
    let file = served.path().join("file");
    fs::write(&file, [7; 5000]).unwrap();
    let file = file.to_str().unwrap();
    served.does(&["object", "cp", file, ":hot", "--identity", "writer"]);
    // It ends well when the object is gone.
    served.does(&["object", "rm", "hot"]);
    assert!(watcher.wait().unwrap().success());
    let lines = output.lines().map(Result::unwrap);
    let seen: Vec<Value> = lines
        .map(|line| serde_json::from_str(&line).unwrap())
        .collect();
    let is = |seen: &Value, message: &str, detail: &str, page: u64| {
        seen["message"] == message && seen["detail"] == detail && seen["first_page"] == page
    };
    let place = |message: &str, detail: &str, page: u64| {
        let found = seen.iter().position(|seen| is(seen, message, detail, page));
        found.unwrap_or_else(|| panic!("{message} {detail} {page}: {seen:?}"))
    };
    assert!(place("request", "write", 0) < place("provide", "write", 0));
    assert!(place("provide", "write", 0) < place("write-back", "", 0));
    assert!(place("request", "write", 1) < place("provide", "write", 1));
    let who = seen[place("provide", "write", 0)]["who"].as_str().unwrap();
    assert!(who.starts_with("writer (uid "), "{who}");
    let times: Vec<u64> = seen
        .iter()
        .map(|seen| seen["unix_ns"].as_u64().unwrap())
        .collect();
    assert!(times.is_sorted(), "{times:?}");
}

#[test]
fn a_watcher_sees_the_pages_that_it_asks_for() {
    let served = Served::start();
    let (_node, _) = hot(&served);
    // The node takes its page again and again, as the copies take it away.
    let copies = std::thread::scope(|scope| {
        scope.spawn(|| (0..5).map(|_| served.counted()).max());
        (
            traced(&served, &["--pages", "0-0"]),
            traced(&served, &["--pages", "5-9"]),
        )
    });
    let names_pages = |seen: &Vec<Value>| seen.iter().filter(|s| !s["pages"].is_null()).count();
    let (of_page, of_others) = copies;
    assert!(names_pages(&of_page) > 0, "{of_page:?}");
    assert_eq!(names_pages(&of_others), 0, "{of_others:?}");
}

#[test]
fn a_watcher_that_is_stopped_holds_nobody_up() {
    let served = Served::start();
    served.does(&["object", "create", "hot", "--size", "64M"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command
        .args(["object", "trace", "hot", "--server", &served.address])
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut watcher = Node(command.spawn().unwrap());
    let mut output = BufReader::new(watcher.0.stdout.take().unwrap());
    let mut heading = String::new();
    output.read_line(&mut heading).unwrap();
    assert!(heading.contains("MESSAGE"), "{heading}");
    signals::send("STOP", watcher.0.id());
    wait_for(|| state(watcher.0.id()) == 'T');
    let file = served.path().join("file");
    fs::write(&file, vec![1; 32 << 20]).unwrap();
    let begin = Instant::now();
    served.does(&["object", "cp", file.to_str().unwrap(), ":hot"]);
    assert!(
        begin.elapsed() < Duration::from_secs(60),
        "{:?}",
        begin.elapsed()
    );
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
    assert_refused(
        &certify(&["node-1"], keys),
        2,
        &["node-1.key is there already", "move it away"],
    );
    // Nobody can use one for longer than that of the CA.
    let long = certify(&["node-4", "--days", "3700"], keys);
    assert_refused(&long, 2, &["--days", "3700 days", "3649 days more"]);
    assert!(!directory.path().join("node-4.pem").exists());
    assert!(
        certify(&["node-4", "--days", "3649"], keys)
            .status
            .success()
    );
    let other = TempDir::new().unwrap();
    for days in ["2916000", "0", "36501"] {
        let never = certify(&["node-3", "--days", days], other.path().to_str().unwrap());
        assert_refused(&never, 2, &["--days", days, "1..=36500"]);
    }
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
    // What an object is everybody may know, what happens in it only who may read it.
    let watch = ["object", "trace", "grid", "--for", "0.1"];
    let watched = as_node(&served, "node-2", "node-2", &watch);
    assert_refused(&watched, 1, &["node-1", "grant"]);
    let stat = ["object", "stat", "grid", "--json"];
    let stat = |name: &str| -> Value {
        let output = as_node(&served, name, name, &stat);
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (own, others) = (stat("node-1"), stat("node-2"));
    assert_eq!(
        (&own["may_read"], &own["pages_used"]),
        (&true.into(), &0.into())
    );
    assert_eq!(
        (&others["may_read"], &others["owner"]),
        (&false.into(), &"node-1".into())
    );
    assert!(
        others["pages"].is_null() && others["faults"].is_null(),
        "{others}"
    );
    let grant = ["object", "grant", "grid", "node-2", "r"];
    assert!(
        as_node(&served, "node-1", "node-1", &grant)
            .status
            .success()
    );
    assert!(as_node(&served, "node-2", "node-2", &copy).status.success());
    assert!(
        as_node(&served, "node-2", "node-2", &watch)
            .status
            .success()
    );
    assert_eq!(stat("node-2")["may_read"], true);
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
