//! From nothing to memory that two machines share: the commands of the documentation as they stand there,
//! and a counter. The machines are two network namespaces; each has settings and files of its own.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::harness::{assert_well, built, library, manager, path_with_command};

/// What the documentation calls the machines.
const ADDRESSES: [&str; 2] = ["10.0.0.5", "10.0.0.6"];

/// Only one test has these addresses at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Two machines with a wire between.
struct Machines {
    names: [String; 2],
    directory: TempDir,
    /// Groups of processes that are to end.
    running: Vec<Child>,
}

fn ip(arguments: &str) -> bool {
    let mut ip = Command::new("ip");
    let ip = ip.args(arguments.split(' ')).stderr(Stdio::null());
    ip.status().is_ok_and(|status| status.success())
}

impl Machines {
    /// Nothing where the system does not allow it.
    fn new() -> Option<Machines> {
        let process = std::process::id();
        let names = ["a", "b"].map(|which| format!("quire-first-{process}-{which}"));
        let machines = Machines {
            names,
            directory: TempDir::new().expect("a directory"),
            running: Vec::new(),
        };
        let [a, b] = &machines.names;
        let are_there = ip(&format!("netns add {a}")) && ip(&format!("netns add {b}"));
        let wire = format!("link add wire netns {a} type veth peer name wire netns {b}");
        let is_wired = are_there && ip(&wire);
        let mut ends = machines.names.iter().zip(ADDRESSES);
        let are_up = is_wired
            && ends.all(|(name, address)| {
                ip(&format!("-n {name} addr add {address}/24 dev wire"))
                    && ip(&format!("-n {name} link set wire up"))
                    && ip(&format!("-n {name} link set lo up"))
            });
        for address in ADDRESSES {
            fs::create_dir(machines.place(address)).expect("a directory");
        }
        are_up.then_some(machines)
    }

    /// The directory of a machine.
    fn place(&self, address: &str) -> PathBuf {
        self.directory.path().join(address)
    }

    /// What a shell does on a machine.
    fn shell(&self, address: &str, script: &str) -> Command {
        let which = ADDRESSES.iter().position(|known| *known == address);
        let name = &self.names[which.expect("one of the two")];
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", name, "bash", "-e", "-c", script])
            .current_dir(self.place(address))
            .env("XDG_CONFIG_HOME", self.place(address))
            .env("PATH", path_with_command())
            .env("QUIRE_LIB", manager())
            .env("QUIRE_DSM_LIB", library())
            .env_remove("QUIRE_SERVER")
            .process_group(0);
        command
    }

    /// Runs a script to its end. What it leaves in the background ends with the test.
    fn does(&mut self, address: &str, script: &str) -> Output {
        let output = self.directory.path().join("output");
        let file = || fs::File::create(&output).expect("a file");
        let mut shell = self.shell(address, script);
        // A server in the background holds a pipe for ever.
        let mut shell = shell
            .stdout(file())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("bash");
        let status = shell.wait().expect("it is ours");
        self.running.push(shell);
        Output {
            status,
            stdout: fs::read(&output).expect("a file"),
            stderr: Vec::new(),
        }
    }

    /// Waits until the server answers.
    fn await_server(&self, address: &str) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let mut looks = self.shell(address, "quire object ls");
            let looked = looks.output().expect("bash");
            if looked.status.success() {
                return;
            }
            let why = String::from_utf8_lossy(&looked.stderr);
            assert!(Instant::now() < end, "no server: {why}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// An invitation is brought from the first machine to the second.
    fn bring(&self, file: &str) {
        let [from, to] = ADDRESSES.map(|address| self.place(address).join(file));
        fs::copy(from, to).expect("it was made");
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for shell in &self.running {
            let group = format!("-{}", shell.id());
            let _ = Command::new("kill")
                .args(["-TERM", "--", &group])
                .stderr(Stdio::null())
                .status();
        }
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

fn machines() -> Option<Machines> {
    let machines = Machines::new();
    if machines.is_none() {
        println!("SKIP: no network namespaces can be made: needs root, and ip");
    }
    machines
}

/// The pieces of code of a section of the documentation: the language, and the text.
fn code(section: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/dsm.md");
    let text = fs::read_to_string(root).expect("the documentation");
    let (_, rest) = text
        .split_once(&format!("\n## {section}\n"))
        .expect("the section");
    let (rest, _) = rest.split_once("\n## ").unwrap_or((rest, ""));
    let mut pieces = rest.split("\n```");
    pieces.next();
    let mut all = Vec::new();
    while let Some(piece) = pieces.next() {
        let (language, text) = piece.split_once('\n').expect("a language");
        all.push((language.to_owned(), text.to_owned()));
        pieces.next();
    }
    all
}

#[test]
fn the_five_minutes_of_the_documentation_are_as_they_say() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(mut machines) = machines() else {
        return;
    };
    let mut printed = String::new();
    let all = code("Five minutes");
    assert!(all.len() >= 6, "{all:?}");
    for (language, text) in all {
        let (first, _) = text.split_once('\n').expect("lines");
        if language == "python" {
            let name = first.strip_prefix("# ").expect("the name of a file");
            for address in ADDRESSES {
                fs::write(machines.place(address).join(name), &text).expect("there is room");
            }
            continue;
        }
        let address = first.strip_prefix("# on ").expect("the name of a machine");
        if text.contains("dsm join") {
            machines.bring("node-2.invitation");
        }
        let output = machines.does(address, &text);
        assert_well(&output);
        if text.contains("quire serve") {
            machines.await_server(address);
        }
        printed.push_str(&String::from_utf8_lossy(&output.stdout));
    }
    assert!(printed.lines().any(|line| line == "499500"), "{printed}");
}

/// Two commands on the first machine, and one on the second: then each runs the same program, which makes
/// the memory where there is none.
#[test]
fn four_commands_are_enough_for_a_counter() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(mut machines) = machines() else {
        return;
    };
    let [first, second] = ADDRESSES;
    let counter = built("tests/programs/counter.c", &[]);
    assert_well(&machines.does(first, "quire dsm invite node-2 --server 10.0.0.5:7450"));
    assert_well(&machines.does(first, "quire serve > served 2>&1 &"));
    machines.await_server(first);
    machines.bring("node-2.invitation");
    assert_well(&machines.does(second, "quire dsm join node-2.invitation"));
    let count = |times| {
        format!(
            "quire run --dsm '*' -- {} /counter {times}",
            counter.display()
        )
    };
    let both: Vec<Child> = ADDRESSES
        .iter()
        .map(|address| machines.shell(address, &count(5000)).spawn().expect("bash"))
        .collect();
    for mut one in both {
        assert!(one.wait().expect("it is ours").success());
    }
    for address in ADDRESSES {
        let output = machines.does(address, &count(0));
        assert_well(&output);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "10000\n",
            "{address}"
        );
    }
    // Nobody else is let in.
    let other = "quire object ls --certificate x --key x --ca x";
    assert!(!machines.does(second, other).status.success());
    let plain = "quire object ls --plaintext";
    assert!(!machines.does(second, plain).status.success());
    // Who has joined is told so, and joins anew if he says so.
    assert!(
        !machines
            .does(second, "quire dsm join node-2.invitation")
            .status
            .success()
    );
    assert_well(&machines.does(first, "quire dsm invite node-3"));
    machines.bring("node-3.invitation");
    assert_well(&machines.does(second, "quire dsm join --replace node-3.invitation"));
    assert_well(&machines.does(second, "quire object stat counter"));
}
