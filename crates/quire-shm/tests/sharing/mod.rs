//! Unmodified programs of one machine, which share the server's copy of each page unless they
//! are told to keep pages of their own.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::harness::{Running, Served, signal};
use crate::program;

const WORDS: usize = 512;
const PAGES: usize = 16;

/// A program that does what it is told.
struct Program(Running);

impl Program {
    fn start(served: &Served, orders: &Path) -> Program {
        Program::start_with(served, &[], orders)
    }

    fn start_with(served: &Served, options: &[&str], orders: &Path) -> Program {
        let mut command = served.run_with("grid", options, orders);
        command.args(["/grid", &(PAGES * 4096).to_string()]);
        let log = File::create(served.path().join("log")).expect("it is ours");
        let mut running = Running::start(command.stderr(log));
        running.hear("done");
        Program(running)
    }

    fn does(&mut self, order: &str) {
        self.0.say(order);
        self.0.hear("done");
    }

    fn has(&mut self, word: usize, value: &str) {
        self.0.say(&format!("get {word}"));
        self.0.hear(value);
    }
}

/// The faults and messages of the object so far.
fn counted(served: &Served) -> Vec<String> {
    let shown = served.does(&["object", "stat", "grid"]);
    let is_count = |line: &&str| line.starts_with("faults: ") || line.starts_with("messages ");
    let counts: Vec<String> = shown.lines().filter(is_count).map(Into::into).collect();
    assert_eq!(counts.len(), 2, "{shown}");
    counts
}

#[test]
fn a_page_that_one_has_written_costs_the_other_no_message() {
    for served in Served::both() {
        let orders = program("orders");
        let mut one = Program::start(&served, &orders);
        let mut other = Program::start(&served, &orders);
        for page in 0..PAGES {
            one.does(&format!("set {} 5", page * WORDS + page));
        }
        let before = counted(&served);
        for page in 0..PAGES {
            let word = page * WORDS + page;
            other.has(word, "5");
            other.does(&format!("add {word} 1"));
            other.does(&format!("part {word}"));
            other.does(&format!("add {word} 1"));
            one.has(word, "7");
            // What a child did that was killed is there, too, where it is one copy.
            if !served.own_pages {
                one.does(&format!("fork {word} 3"));
                other.has(word, "10");
            }
        }
        let is_same = before == counted(&served);
        assert_eq!(is_same, !served.own_pages, "{before:?}");
    }
}

#[test]
fn what_is_unmapped_and_mapped_again_is_the_same() {
    for served in Served::both() {
        let orders = program("orders");
        let mut one = Program::start(&served, &orders);
        let mut other = Program::start(&served, &orders);
        for round in 1..=5 {
            one.does("add 700 10");
            one.does("part 700");
            one.does("add 700 10");
            one.does("again");
            one.has(700, &(round * 40 - 20).to_string());
            other.does("add 700 20");
            one.has(700, &(round * 40).to_string());
        }
    }
}

#[test]
fn one_is_killed_and_the_other_goes_on() {
    let served = Served::start();
    let orders = program("orders");
    let mut killed = Program::start(&served, &orders);
    let mut other = Program::start(&served, &orders);
    killed.does("part 0");
    killed.does("set 0 5");
    killed.0.say("kill");
    assert_eq!(signal(killed.0.status()), Some(9));
    other.has(0, "5");
    other.does("add 0 1");
    let mut late = Program::start(&served, &orders);
    late.has(0, "6");
}

/// Some of an object's pages are unmapped or protected in part.
#[test]
fn large_pages_are_split() {
    for served in Served::both() {
        let orders = program("orders");
        let size = (PAGES * 4096).to_string();
        let object = ["object", "create", "grid", "--page-size", "16K", "--size"];
        served.does(&[&object[..], &[&size]].concat());
        let mut one = Program::start(&served, &orders);
        let mut other = Program::start(&served, &orders);
        one.does("split");
        for page in (0..PAGES).step_by(4) {
            let word = page * WORDS;
            other.does(&format!("set {} 5", word + WORDS));
            one.has(word + WORDS, "5");
            one.does(&format!("add {word} 3"));
            one.does(&format!("add {} 3", word + 3 * WORDS));
            other.has(word, "3");
            other.does(&format!("add {} 3", word + 3 * WORDS));
            one.has(word + 3 * WORDS, "6");
        }
    }
}

/// Who waits for a mutex in shared memory sleeps in the kernel, and is woken there.
#[test]
fn mutexes_in_a_shared_copy_work() {
    let served = Served::start();
    let orders = program("orders");
    let mut one = Program::start(&served, &orders);
    let mut other = Program::start(&served, &orders);
    one.does(&format!("mutex {WORDS}"));
    for program in [&mut one, &mut other] {
        program.0.say("count 0 50000");
    }
    for program in [&mut one, &mut other] {
        program.0.hear("done");
    }
    one.has(0, "100000");
}

/// The thread that answers faults has a real-time priority, unless that is not wanted.
#[test]
fn faults_are_answered_with_the_priority_that_is_wanted() {
    usually_and_with("policy 2", ("--no-realtime", "policy 0"));
}

/// A program finds one thing without options, and another with one.
fn usually_and_with(usual: &str, (option, other): (&str, &str)) {
    for served in Served::both() {
        let orders = program("orders");
        for (options, found) in [(&[][..], usual), (&[option][..], other)] {
            let mut program = Program::start_with(&served, options, &orders);
            program.does("set 0 1");
            program.does(found);
        }
    }
}

/// A program has a revoker as long as it has a link, unless that is not wanted, and does not notice it.
#[test]
fn a_program_has_a_revoker_if_one_is_wanted() {
    usually_and_with("revokers 1", ("--no-revoker", "revokers 0"));
}

/// A server with a store that is told to end keeps what programs wrote to the copies that they share with it:
/// they are not told that something is lost.
#[test]
fn nothing_is_said_to_be_lost_with_a_server_that_ends_in_order() {
    let mut served = Served::start_with_store();
    let orders = program("orders");
    let mut program = Program::start(&served, &orders);
    program.does("set 700 5");
    served.end();
    served.start_again();
    program.has(700, "5");
    let log = fs::read_to_string(served.path().join("log")).expect("text");
    assert!(!log.contains("is lost"), "{log}");
    // Of one that is killed they bring what they wrote.
    program.does("set 700 6");
    served.kill();
    served.start_again();
    program.has(700, "6");
    let log = fs::read_to_string(served.path().join("log")).expect("text");
    assert!(!log.contains("is lost"), "{log}");
}

/// While a server is away that is reached over TCP, programs say so in one line, and in another that it is back.
#[test]
fn a_server_that_is_away_is_said_to_be_in_one_line() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    let port = port.expect("a free port").to_string();
    let directory = TempDir::new().expect("a directory");
    let store = directory.path().join("store").display().to_string();
    let mut served = Served::start_with(directory, &["--listen", &port, "--store", &store]);
    served.own_pages = true;
    let orders = program("orders");
    let mut program = Program::start(&served, &orders);
    program.does("set 0 5");
    served.end();
    thread::sleep(Duration::from_secs(1));
    served.start_again();
    program.has(0, "5");
    let log = fs::read_to_string(served.path().join("log")).expect("text");
    let count = |words| log.lines().filter(|line| line.contains(words)).count();
    assert_eq!(count("connecting again"), 1, "{log}");
    assert_eq!(count("connected again"), 1, "{log}");
    assert_eq!(log.lines().count(), 2, "{log}");
}

/// A server is killed and started again with its store: what was written back is there for
/// programs that shared its memory, also where they had mapped a part of it, and for those
/// that have pages of their own.
#[test]
fn programs_outlive_the_server() {
    for own_pages in [false, true] {
        let mut served = Served::start_with_store();
        served.own_pages = own_pages;
        let orders = program("orders");
        let mut program = Program::start(&served, &orders);
        program.does("part 700");
        program.does("set 700 5");
        program.does("sync");
        served.kill();
        served.start_again();
        program.has(700, "5");
        program.does("add 700 1");
        let mut other = Program::start(&served, &orders);
        other.has(700, "6");
        other.does("add 700 1");
        program.has(700, "7");
        program.does("again");
        program.does("part 700");
        program.has(700, "7");
    }
}
