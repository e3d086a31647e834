//! A node in a process of its own: the test's program, started again. It does what it is
//! told in lines, and answers each in a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;

use quire_core::dsm::sync::{Name as Point, Request};
use quire_core::units::ObjectOffset;
use quire_dsm::client::{Client, Options, Shared};
use quire_dsm::heap::{Element, Heap, HeapError};

use crate::served::{Served, name, open};

/// What answers begin with; the test's runner prints lines, too.
const ANSWER: &str = "answer: ";
/// The variables that make the program a node.
const ADDRESS: &str = "QUIRE_TEST_ADDRESS";
const MACHINE: &str = "QUIRE_TEST_MACHINE";

/// A node, as the test sees it.
pub struct Node {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Node {
    pub fn start(served: &Served, machine: &str) -> Node {
        let mut process = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "a_node", "--ignored", "--nocapture"])
            .env(ADDRESS, served.addresses[0].to_string())
            .env(MACHINE, machine)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let orders = process.stdin.take().expect("a pipe");
        let answers = BufReader::new(process.stdout.take().expect("a pipe"));
        Node {
            process,
            orders,
            answers,
        }
    }

    /// Has it begin something.
    pub fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it listens");
    }

    /// What it says to the oldest order that it has not answered.
    pub fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.answers.read_line(&mut line).expect("it speaks");
            assert_ne!(read, 0, "the node is gone");
            if let Some(at) = line.find(ANSWER) {
                return line[at + ANSWER.len()..].trim().to_owned();
            }
        }
    }

    pub fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }

    /// The same, where the answer is an offset.
    pub fn offset(&mut self, order: &str) -> u64 {
        let answer = self.ask(order);
        answer
            .parse()
            .unwrap_or_else(|_| panic!("{order}: {answer}"))
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.process.kill().expect("it can be killed");
        self.process.wait().expect("it is gone");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Is a node, where the process was started as one.
pub fn be() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let mut options = Options::new(address.parse().expect("an address"), name("node"));
    options.own_pages = true;
    options.machine = std::env::var(MACHINE)
        .expect("both are set")
        .parse()
        .expect("a machine");
    let client = Client::connect(options).expect("a server");
    let shared = open(&client, "heap");
    let mut heap = Some(Heap::open(&shared).expect("a heap"));
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["close"] => {
                heap = None;
                "done".to_owned()
            }
            ["open"] => {
                heap = Some(Heap::open(&shared).expect("a heap"));
                "done".to_owned()
            }
            _ => obey(heap.as_ref().expect("it is open"), &shared, &words),
        };
        println!("{ANSWER}{answer}");
    }
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

fn said<R: ToString>(outcome: Result<R, HeapError>) -> String {
    match outcome {
        Ok(said) => said.to_string(),
        Err(error) => format!("error: {error}"),
    }
}

fn obey(heap: &Heap, shared: &Shared, words: &[&str]) -> String {
    match *words {
        ["tmalloc", tag, count] => {
            let tag = tag.parse().expect("a type");
            said(heap.tmalloc(tag, number(count)).map(|at| at.0))
        }
        ["free", at] => {
            let freed = heap.free(ObjectOffset(number(at)));
            said(freed.map(|()| "done"))
        }
        ["set", "f64", at, value] => fill(heap, at, |index| {
            value.parse::<f64>().expect("a number") + index as f64
        }),
        ["set", "f32", at, value] => fill(heap, at, |index| {
            value.parse::<f32>().expect("a number") + index as f32
        }),
        ["set", "i32", at, value] => fill(heap, at, |index| {
            value.parse::<i32>().expect("a number") + index as i32
        }),
        ["get", "f64", at] => first::<f64>(heap, at),
        ["get", "f32", at] => first::<f32>(heap, at),
        ["get", "i32", at] => first::<i32>(heap, at),
        ["raw", at] => {
            let word = &shared.words()[number(at) as usize / 8];
            format!("{:#x}", word.load(Ordering::Relaxed))
        }
        ["lock", list] => {
            let lock = Request::Lock(Point(format!("quire.heap.{list}")));
            format!("{:?}", shared.synchronise(lock).expect("a server"))
        }
        ["space"] => said(heap.free_space().map(|space| space.0)),
        ["recover"] => said(heap.recover()),
        ["churn", seed, steps] => crate::churn::churn(heap, number(seed), number(steps)),
        _ => panic!("no order: {words:?}"),
    }
}

/// Sets the first four elements.
fn fill<T: Element>(heap: &Heap, at: &str, value: impl Fn(usize) -> T) -> String {
    let view = heap.view::<T>(ObjectOffset(number(at)));
    said(view.map(|view| {
        (0..4).for_each(|index| view.set(index, value(index)));
        "done"
    }))
}

/// The first four elements.
fn first<T: Element + ToString>(heap: &Heap, at: &str) -> String {
    let view = heap.view::<T>(ObjectOffset(number(at)));
    said(view.map(|view| {
        let four: Vec<String> = view.iter().take(4).map(|value| value.to_string()).collect();
        four.join(" ")
    }))
}
