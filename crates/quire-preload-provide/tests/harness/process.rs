//! Runs one command to its end, or to its time limit, and keeps what there is
//! to compare and to show.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// How long a program may take.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// How long its children may outlive it.
const GRACE: Duration = Duration::from_secs(3);

/// What became of a command.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What it wrote.
    pub stdout: Vec<u8>,
    /// What it wrote for people; not compared.
    pub stderr: Vec<u8>,
    /// How it ended.
    pub status: String,
    /// Whether it had to be killed.
    pub timed_out: bool,
    /// A file that it left.
    pub result: Option<Vec<u8>>,
    /// Processes that outlived it, or where threads hung at the time limit.
    pub processes: String,
    /// The command line, to be repeated by hand.
    pub command: String,
}

impl Outcome {
    /// In what this outcome differs from the reference.
    pub fn difference(&self, reference: &Outcome) -> Option<String> {
        let stderr = String::from_utf8_lossy(&self.stderr);
        if self.timed_out {
            Some(format!("still running after {TIME_LIMIT:?}"))
        } else if self.status != reference.status {
            Some(format!("{}, wanted {}", self.status, reference.status))
        } else if self.stdout != reference.stdout {
            Some(first_difference(&self.stdout, &reference.stdout))
        } else if self.result != reference.result {
            Some("the resulting file differs".to_owned())
        } else if stderr.contains("cannot be preloaded") {
            Some("the library was not loaded".to_owned())
        } else if !self.processes.is_empty() {
            Some("processes are left".to_owned())
        } else {
            None
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "command: {}\nstatus: {}", self.command, self.status)?;
        writeln!(f, "stdout (end): {}", tail(&self.stdout))?;
        writeln!(f, "stderr (end): {}", tail(&self.stderr))?;
        write!(f, "{}", self.processes)
    }
}

fn tail(bytes: &[u8]) -> String {
    let from = bytes.len().saturating_sub(3000);
    String::from_utf8_lossy(&bytes[from..]).into_owned()
}

fn first_difference(got: &[u8], wanted: &[u8]) -> String {
    let line = |bytes: &[u8], n: usize| {
        let line = bytes.split(|b| *b == b'\n').nth(n).unwrap_or(b"(nothing)");
        String::from_utf8_lossy(line).into_owned()
    };
    let lines = got
        .split(|b| *b == b'\n')
        .zip(wanted.split(|b| *b == b'\n'));
    let same = lines.take_while(|(a, b)| a == b).count();
    format!(
        "output line {}: {:?}, wanted {:?}",
        same + 1,
        line(got, same),
        line(wanted, same)
    )
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where a tool is, if it is installed.
pub fn find(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(tool))
        .find(|candidate| candidate.is_file())
}

/// A command in its own process group and without what this test run or a
/// user may have set for the library.
pub fn command(argv: &[OsString], directory: &Path) -> Command {
    let mut command = Command::new(&argv[0]);
    command
        .args(&argv[1..])
        .current_dir(directory)
        .env("TMPDIR", directory)
        .env("LC_ALL", "C")
        .process_group(0);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().into_owned();
        if text.starts_with("QUIRE_") || text == "LD_PRELOAD" || text.starts_with("CARGO") {
            command.env_remove(name);
        }
    }
    command
}

/// Starts `argv` in `directory`, with a pipe to its input and one from its output.
pub fn start(argv: &[OsString], directory: &Path) -> Child {
    let pipes = &mut command(argv, directory);
    pipes.stdin(Stdio::piped()).stdout(Stdio::piped());
    let started = pipes.spawn();
    started.unwrap_or_else(|e| panic!("{}: {e}", argv[0].display()))
}

/// Ends the input of what was started, on which it must end well.
pub fn finish(mut child: Child, what: &str) {
    drop(child.stdin.take());
    let status = child.wait().expect("the child is ours");
    assert!(status.success(), "{what}: {status}");
}

/// `argv` as part of a session, whose directory it is told.
pub fn in_session(session: &Path, argv: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let variable = format!("QUIRE_SESSION={}", session.display());
    let told = [OsString::from("env"), variable.into()];
    told.into_iter().chain(argv).collect()
}

/// Runs `argv` in `directory`.
pub fn run(argv: &[OsString], directory: &Path) -> Outcome {
    let (out, err) = (directory.join(".stdout"), directory.join(".stderr"));
    let create = |path: &Path| File::create(path).expect("output files can be made");
    let mut child = command(argv, directory)
        .stdin(Stdio::null())
        .stdout(create(&out))
        .stderr(create(&err))
        .spawn()
        .unwrap_or_else(|e| panic!("{}: {e}", argv[0].display()));
    let group = Pid::from_child(&child);
    let start = Instant::now();
    let mut outcome = Outcome {
        command: shown(argv),
        ..Outcome::default()
    };
    let status = loop {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            break status;
        }
        if start.elapsed() > TIME_LIMIT {
            outcome.timed_out = true;
            outcome.processes = describe_group(group);
            let _ = kill_process_group(group, Signal::KILL);
            break child.wait().expect("the child is ours");
        }
        std::thread::sleep(Duration::from_millis(4));
    };
    if !outcome.timed_out {
        outcome.processes = wait_for_rest(group);
    }
    outcome.status = status.to_string();
    outcome.stdout = fs::read(&out).expect("the output can be read");
    outcome.stderr = fs::read(&err).expect("the output can be read");
    outcome
}

/// Waits for children that outlive the program; describes those that stay.
fn wait_for_rest(group: Pid) -> String {
    let start = Instant::now();
    while !members(group).is_empty() {
        if start.elapsed() > GRACE {
            let text = describe_group(group);
            let _ = kill_process_group(group, Signal::KILL);
            return text;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    String::new()
}

fn shown(argv: &[OsString]) -> String {
    let quoted = |word: &OsStr| {
        let text = word.to_string_lossy();
        if text.chars().any(|c| " \"$\n;&'".contains(c)) {
            format!("'{}'", text.replace('\'', r"'\''"))
        } else {
            text.into_owned()
        }
    };
    let words: Vec<String> = argv.iter().map(|w| quoted(w)).collect();
    words.join(" ")
}

/// Processes of the group that still run (zombies do not).
fn members(group: Pid) -> Vec<PathBuf> {
    let Ok(all) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let in_group = |path: &PathBuf| {
        let stat = fs::read_to_string(path.join("stat")).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let mut fields = after_name.split_whitespace();
        let state = fields.next();
        let wanted = group.as_raw_nonzero().to_string();
        fields.nth(1) == Some(wanted.as_str()) && state != Some("Z")
    };
    let paths = all.flatten().map(|entry| entry.path());
    paths.filter(in_group).collect()
}

/// Where every thread of the group is.
fn describe_group(group: Pid) -> String {
    let mut text = String::new();
    for process in members(group) {
        let _ = writeln!(text, "process {}:", process.display());
        let Ok(tasks) = fs::read_dir(process.join("task")) else {
            continue;
        };
        for task in tasks.flatten() {
            let read = |name: &str| {
                let content = fs::read_to_string(task.path().join(name));
                content.unwrap_or_default().trim_end().replace('\n', " < ")
            };
            let _ = writeln!(
                text,
                "  thread {} ({}): wchan {}, syscall {}\n    stack {}",
                task.file_name().display(),
                read("comm"),
                read("wchan"),
                read("syscall"),
                read("stack")
            );
        }
    }
    text
}
