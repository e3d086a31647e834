//! What users of shared memory across machines say once, in `dsm.toml`, and what they are told where
//! something is wrong.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

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
    let none = directory.path().join("none");
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
    let none = directory.path().join("none");
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
