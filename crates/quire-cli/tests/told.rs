//! What users of shared memory across machines say once, in `dsm.toml`, and what they are told where
//! something is wrong.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use quire_dsm::client::{Client, Options};
use quire_dsm::wire::control::{Name, Rights};
use tempfile::TempDir;

#[path = "common/refusal.rs"]
mod refusal;
#[path = "common/serving.rs"]
mod serving;

use refusal::assert_refused;
use serving::started;

fn quire(settings: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.env("QUIRE_DSM_CONFIG", settings);
    command.env_remove("QUIRE_SERVER");
    command
}

fn listed(command: &mut Command) -> Output {
    command.args(["object", "ls"]).output().unwrap()
}

#[test]
fn settings_that_are_wrong_are_refused_with_the_remedy() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("dsm.toml");
    for (text, words) in [
        ("server = \"nowhere\"", &["dsm.toml", "HOST:PORT"][..]),
        ("\nserve = 5", &["dsm.toml: line 2"]),
        ("other = 1", &["line 1", "other"]),
        ("identity = \"node-2\"", &["go together"]),
        ("[serve]\ngrant = [\"anyone\"]", &["WHO=RIGHTS"]),
        ("[serve]\nlisten = \"127.0.0.1:1\"", &["line 2", "a list"]),
    ] {
        fs::write(&file, text).unwrap();
        assert_refused(&listed(&mut quire(&file)), 2, words);
    }
    fs::write(
        &file,
        "server = \"10.0.0.5:7450\"\nidentity = \"n\"\ncertificate = \"a\"\nkey = \"k\"\nca = \"c\"",
    )
    .unwrap();
    let path = directory.path().display().to_string();
    assert_refused(&listed(&mut quire(&file)), 2, &[&path, "No such file"]);
    let none = directory.path().join("none");
    let shown = none.display().to_string();
    let words = ["QUIRE_DSM_CONFIG", &shown, "there is no such file"];
    assert_refused(&listed(&mut quire(&none)), 2, &words);
    let serve = quire(&none).arg("serve").output().unwrap();
    assert_refused(&serve, 2, &words);
}

/// Settings that say nothing.
fn no_settings(directory: &TempDir) -> PathBuf {
    let file = directory.path().join("empty");
    fs::write(&file, "").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    file
}

#[test]
fn invitations_that_let_nobody_in_are_refused() {
    let directory = TempDir::new().unwrap();
    let home = directory.path().join("home");
    let settings = home.join("dsm.toml");
    let invite = |name: &str, server: &str| {
        let mut command = quire(&settings);
        command.args(["dsm", "invite", name]);
        if !server.is_empty() {
            command.args(["--server", server]);
        }
        command.current_dir(&directory).output().unwrap()
    };
    for (server, words) in [
        ("unix:/run/quire", "a socket of this machine"),
        ("127.0.0.1:7450", "the loopback of this machine"),
        ("[::1]:7450", "the loopback of this machine"),
        ("0.0.0.0:7450", "all addresses of a machine"),
        ("10.0.0.5:0", "no port"),
    ] {
        assert_refused(
            &invite("node-2", server),
            2,
            &[server, words, "--server HOST:PORT"],
        );
        assert!(!settings.exists(), "{server}");
    }
    // One for documents, which no machine has.
    let made = invite("node-2", "192.0.2.1:7450");
    let log = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{log}");
    assert!(
        log.contains("192.0.2.1 is no address of this machine"),
        "{log}"
    );
    assert!(log.contains("dsm.toml"), "{log}");
    let words = ["node-2.invitation is there already", "--output"];
    assert_refused(&invite("node-2", ""), 2, &words);
    assert!(invite("node-3", "").stderr.is_empty(), "it was said once");
}

#[test]
fn certificates_that_are_there_or_do_not_belong_together_are_named() {
    let directory = TempDir::new().unwrap();
    let none = no_settings(&directory);
    let certify = || {
        let mut command = quire(&none);
        command
            .args(["dsm", "certify", "a", "b"])
            .current_dir(&directory);
        command.output().unwrap()
    };
    assert!(certify().status.success());
    assert_refused(
        &certify(),
        2,
        &["a.key is there already", "another name or directory"],
    );
    let mut mixed = quire(&none);
    mixed.current_dir(&directory).args([
        "object",
        "ls",
        "--server",
        "10.0.0.5:7450",
        "--identity",
        "a",
        "--certificate",
        "a.pem",
        "--key",
        "b.key",
        "--ca",
        "ca.pem",
    ]);
    let words = ["the key is not that of the certificate"];
    assert_refused(&mixed.output().unwrap(), 2, &words);
}

#[test]
fn options_of_shared_memory_need_some() {
    let directory = TempDir::new().unwrap();
    let run = |options: &[&str]| {
        let mut command = quire(&no_settings(&directory));
        command.arg("run").args(options).args(["--", "true"]);
        command.output().unwrap()
    };
    let refused = run(&["--scheduler", "simple"]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("--dsm"), "{text}");
}

#[test]
fn lists_of_servers_without_this_one_or_without_ports_are_told() {
    let directory = TempDir::new().unwrap();
    let none = no_settings(&directory);
    let serve = |peers: &str| {
        let mut command = quire(&none);
        command.args(["serve", "--listen", "127.0.0.1:0", "--peers", peers]);
        command
    };
    let refused = serve("127.0.0.1:0").output().unwrap();
    assert_refused(&refused, 2, &["--peers", "127.0.0.1:0", "say the port"]);
    let away = format!("unix:{}/away", directory.path().display());
    let mut server = started(serve(&away).stderr(Stdio::piped()));
    let mut line = String::new();
    let mut log = BufReader::new(server.stderr.take().unwrap());
    log.read_line(&mut line).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(
        line.contains("is not in --peers") && line.contains("--advertise"),
        "{line}"
    );
}

#[test]
fn the_path_of_a_socket_that_is_too_long_is_told() {
    let directory = TempDir::new().unwrap();
    let mut command = quire(&no_settings(&directory));
    let address = format!("unix:/{}", "a".repeat(200));
    let refused = listed(command.env("QUIRE_SERVER", &address));
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(
        text.contains("107 bytes") && !text.contains("SUN_LEN"),
        "{text}"
    );
}

/// What is refused about an object says what helps.
#[test]
fn objects_of_others_and_objects_in_use_are_told_with_the_remedy() {
    let directory = TempDir::new().unwrap();
    let none = no_settings(&directory);
    let address = format!("unix:{}/socket", directory.path().display());
    let mut serve = quire(&none);
    serve.args(["serve", "--listen", &address, "--listen", "127.0.0.1:0"]);
    let mut server = serve
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let tcp = lines.by_ref().map_while(Result::ok).nth(1).unwrap();
    let tcp = tcp.strip_prefix("serving at ").unwrap();
    let object = |server: &str, arguments: &[&str]| {
        let mut command = quire(&none);
        command
            .arg("object")
            .args(arguments)
            .args(["--server", server]);
        command.output().unwrap()
    };
    let contents = directory.path().join("contents");
    fs::write(&contents, "contents").unwrap();
    let contents = contents.to_str().unwrap();
    for (server, name) in [(&*address, "ours"), (tcp, "theirs")] {
        assert!(
            object(server, &["cp", contents, &format!(":{name}")])
                .status
                .success()
        );
    }
    let words = [
        "no right to ours (asked for: read and write)",
        "quire object grant ours anyone rw",
    ];
    assert_refused(&object(tcp, &["cp", contents, ":ours"]), 1, &words);
    let words = ["ours belongs to uid:", "who alone removes it"];
    assert_refused(&object(tcp, &["rm", "ours"]), 1, &words);
    let words = ["theirs belongs to whoever comes over TCP without a certificate"];
    assert_refused(&object(&address, &["rm", "theirs"]), 1, &words);

    let client = |name| {
        let mut options = Options::new(address.parse().unwrap(), Name::like(name));
        // Those who share a copy count as one.
        options.own_pages = true;
        Client::connect(options).unwrap()
    };
    let (first, second) = (client("first"), client("second"));
    let rights = Rights {
        read: true,
        write: true,
    };
    let one = first.open("ours".parse().unwrap(), rights).unwrap();
    let words = ["ours is open, once;", "quire object rm --when-unused"];
    assert_refused(&object(&address, &["rm", "ours"]), 1, &words);
    let two = second.open("ours".parse().unwrap(), rights).unwrap();
    assert_refused(
        &object(&address, &["rm", "ours"]),
        1,
        &["ours is open, 2 times;"],
    );
    // As its help says, the name is free at once.
    assert!(
        object(&address, &["rm", "--when-unused", "ours"])
            .status
            .success()
    );
    assert!(
        object(&address, &["create", "ours", "--size", "4K"])
            .status
            .success()
    );
    assert_eq!(two.size(), one.size());
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn the_server_is_said_once() {
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name);
    let address = |name: &str| format!("unix:{}", path(name).display());
    let file = path("dsm.toml");
    let text = format!(
        "server = {0:?}\n[serve]\nlisten = [{0:?}]\ngrant = [\"anyone=r\"]\nstore = \"kept\"",
        address("socket")
    );
    fs::write(&file, text).unwrap();
    let mut server = started(
        quire(&file)
            .args(["serve", "--lease", "1"])
            .stderr(Stdio::null()),
    );
    let made = quire(&file)
        .args(["object", "create", "grid", "--size", "4K"])
        .status();
    assert!(made.unwrap().success());
    let shown = listed(&mut quire(&file));
    assert!(String::from_utf8_lossy(&shown.stdout).contains("grid"));
    assert!(path("kept").is_dir(), "paths begin at the file's directory");
    // What is said now goes before.
    let mut other = quire(&file);
    assert!(
        !listed(other.env("QUIRE_SERVER", address("none")))
            .status
            .success()
    );
    server.kill().unwrap();
    server.wait().unwrap();
}

/// A command as another user than root, who may do everything.
fn as_anybody(settings: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return quire(settings);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(env!("CARGO_BIN_EXE_quire"))
        .env("QUIRE_DSM_CONFIG", settings)
        .env_remove("QUIRE_SERVER");
    command
}

#[test]
fn a_socket_that_one_may_not_use_is_said_to_be_denied() {
    let directory = TempDir::new().unwrap();
    let none = no_settings(&directory);
    let version = as_anybody(&none).arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIP: no other user can run the command");
        return;
    }
    let private = directory.path().join("private");
    fs::create_dir(&private).unwrap();
    let address = format!("unix:{}/socket", private.display());
    let mut serve = quire(&none);
    let mut server = started(
        serve
            .args(["serve", "--listen", &address])
            .stderr(Stdio::null()),
    );
    let allow = |mode| fs::set_permissions(&private, fs::Permissions::from_mode(mode)).unwrap();
    allow(0o000);
    let words = ["Permission denied", "rights of the socket"];
    let mut command = as_anybody(&none);
    let looked = listed(command.env("QUIRE_SERVER", &address));
    allow(0o700);
    server.kill().unwrap();
    server.wait().unwrap();
    assert_refused(&looked, 1, &words);
}

#[test]
fn at_the_limit_of_descriptors_one_line_says_so() {
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("socket");
    let none = no_settings(&directory);
    let script = format!(
        "ulimit -n 40; exec {} serve --listen unix:{}",
        env!("CARGO_BIN_EXE_quire"),
        socket.display()
    );
    let mut shell = Command::new("bash");
    shell
        .args(["-c", &script])
        .env("QUIRE_DSM_CONFIG", &none)
        .stderr(Stdio::piped());
    let mut server = started(&mut shell);
    let links: Vec<UnixStream> = (0..60)
        .filter_map(|_| UnixStream::connect(&socket).ok())
        .collect();
    assert!(links.len() >= 40, "{}", links.len());
    thread::sleep(Duration::from_secs(2));
    server.kill().unwrap();
    let mut log = String::new();
    server
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut log)
        .unwrap();
    server.wait().unwrap();
    let told = log
        .lines()
        .filter(|line| line.contains("cannot be accepted"));
    assert_eq!(told.count(), 1, "{log}");
}
