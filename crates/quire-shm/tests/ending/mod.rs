//! What programs wrote when they end or unmap it: it is given back, or a line says that it is lost.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::harness::{Running, Served, assert_well, link};
use crate::program;

/// What a slow way carries in a second.
const SPEED: usize = 12 << 20;

/// Carries bytes as fast as that, or as they come.
fn carry(mut from: TcpStream, mut to: TcpStream, slowly: bool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..length]).is_err() {
            break;
        }
        if slowly {
            thread::sleep(Duration::from_secs_f64(length as f64 / SPEED as f64));
        }
    }
    // The other side may have gone.
    let _ = to.shutdown(Shutdown::Write);
}

/// A slow way to a server, until the test ends. Says where it begins.
fn slow_way(to: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let begin = listener.local_addr().expect("it has one");
    thread::spawn(move || {
        for program in listener.incoming() {
            let program = program.expect("a link");
            let server = TcpStream::connect(&to).expect("a server");
            let twice = |link: &TcpStream| link.try_clone().expect("a descriptor");
            let (up, down) = ((twice(&program), twice(&server)), (server, program));
            thread::spawn(|| carry(up.0, up.1, true));
            thread::spawn(|| carry(down.0, down.1, false));
        }
    });
    begin.to_string()
}

/// A program that ends waits as long as what it wrote gets to the server, however long that is.
#[test]
fn all_is_given_back_over_a_slow_way() {
    let directory = TempDir::new().expect("a directory");
    let mut served = Served::start_with(directory, &["--listen", "127.0.0.1:0"]);
    served.own_pages = true;
    let near = std::mem::take(&mut served.address);
    served.address = slow_way(near.clone());
    let fills = program("fills");
    let size = 14 * SPEED;
    let mut command = served.run("grid", &fills, &["/grid", &size.to_string()]);
    let begin = Instant::now();
    assert_well(&command.output().expect("it was built"));
    let took = begin.elapsed();
    served.address = near;
    let contents = served.contents("grid");
    assert_eq!(contents.len(), size);
    assert!(contents.iter().all(|byte| *byte == b'x'), "after {took:?}");
    assert!(took > Duration::from_secs(11), "the way was not slow");
}

/// A program that unmaps what it wrote, while its server is gone: the log says that it is lost.
#[test]
fn what_is_unmapped_without_a_server_is_said_to_be_lost() {
    for mut served in Served::both() {
        let log = served.path().join("log");
        let orders = program("orders");
        let mut command = served.run("grid", &orders, &["/grid", "4096"]);
        let file = File::create(&log).expect("it is ours");
        let mut running = Running::start(command.stderr(file));
        running.hear("done");
        running.say("set 0 5");
        running.hear("done");
        served.kill();
        // Nothing can be mapped again.
        running.say("again");
        assert!(!running.status().success());
        let said = fs::read_to_string(&log).expect("text");
        assert!(
            said.contains("grid: what was written may be lost"),
            "{said}"
        );
    }
}

/// The library's threads keep no program: it ends with its own last thread, and not before.
#[test]
fn a_program_ends_with_its_last_thread() {
    let said = "one\ntwo\nbye\n";
    for served in Served::both() {
        let last = program("last");
        for what in ["memory", "child"] {
            let output = served.run("grid", &last, &[what, "/grid"]).output();
            let output = output.expect("it was built");
            assert_well(&output);
            assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{what}");
            assert_eq!(served.contents("grid")[..3], [1, 2, 3], "{what}");
            served.does(&["object", "rm", "grid"]);
        }
        let last = link("tests/programs/last.c", &["-DLINKED"]);
        let mut command = Command::new("timeout");
        let arguments = ["-s", "KILL", "60"];
        command
            .args(arguments)
            .arg(last)
            .args(["linked", &served.address]);
        let output = command.output().expect("it was built");
        assert_well(&output);
        assert_eq!(String::from_utf8_lossy(&output.stdout), said);
    }
}
