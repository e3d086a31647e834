//! Starts child processes: with the environment of a variant, in a cgroup,
//! bounded in time, and stopped as a whole.
//!
//! A child starts as `quire-bench launch`, which sets up its own process and
//! then executes the program in its place, so that neither this process nor
//! the setting up runs under the variant.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use quire_core::config::ENV_ALL;
use quire_core::frames::config::ENV_FRAMES;
use quire_linux::scheduling::{self, Children, Scheduling};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::cgroup::Group;
use crate::cli::{Launch, Role};
use crate::figure3::usage;
use crate::spec::Workload;
use crate::variant::Environment;

/// Variables that would put another allocator under a child. Those of Quire come to
/// these.
const CLEARED: [&str; 5] = [
    "LD_PRELOAD",
    "GLIBC_TUNABLES",
    "MALLOC_CONF",
    "MIMALLOC_LARGE_OS_PAGES",
    "MIMALLOC_ALLOW_LARGE_OS_PAGES",
];

/// So long a program that is scheduled first-in, first-out may run without waiting for
/// something. The kernel kills it then.
const REALTIME_LIMIT: Duration = Duration::from_secs(120);

/// Sets up this process and executes the program in its place.
pub fn exec(options: &Launch) -> Result<()> {
    if let Some(cgroup) = &options.cgroup {
        std::fs::write(cgroup.join("cgroup.procs"), "0")
            .with_context(|| format!("entering {}", cgroup.display()))?;
    }
    if options.no_thp {
        rustix::thread::disable_transparent_huge_pages(true).context("PR_SET_THP_DISABLE")?;
    }
    if options.realtime {
        scheduling::kill_after(REALTIME_LIMIT).context("RLIMIT_RTTIME")?;
        let class = Scheduling::Fifo(scheduling::HIGHEST);
        class.set(Children::Inherit).context("SCHED_FIFO")?;
    }
    let [program, args @ ..] = options.command.as_slice() else {
        bail!("no program");
    };
    let vars = options.vars.iter().filter_map(|v| v.split_once('='));
    let mut command = Command::new(program);
    command.args(args).envs(vars);
    if let Some(dir) = &options.measure {
        return usage::run(command, dir);
    }
    Err(command.exec()).with_context(|| format!("executing {program}"))
}

/// This program's own file.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("finding this program")
}

/// A command that runs `program` under `environment`, in `cgroup` if there is
/// one.
pub fn command<A: Into<OsString>>(
    environment: &Environment,
    cgroup: Option<&Group>,
    program: impl Into<OsString>,
    args: impl IntoIterator<Item = A>,
) -> Result<Command> {
    command_with(environment, cgroup, &[], program, args)
}

/// The same with further options of the launch.
pub fn command_with<A: Into<OsString>>(
    environment: &Environment,
    cgroup: Option<&Group>,
    options: &[OsString],
    program: impl Into<OsString>,
    args: impl IntoIterator<Item = A>,
) -> Result<Command> {
    let mut command = Command::new(own_program()?);
    command.arg("launch").args(options);
    for name in CLEARED.into_iter().chain(ENV_ALL).chain(ENV_FRAMES) {
        command.env_remove(name);
    }
    if environment.no_thp {
        command.arg("--no-thp");
    }
    if let Some(group) = cgroup {
        command.arg("--cgroup").arg(group.dir());
    }
    for (name, value) in &environment.vars {
        command.arg("--set").arg(format!("{name}={value}"));
    }
    command.arg("--").arg(program.into());
    command.args(args.into_iter().map(Into::into));
    Ok(command)
}

/// A command that runs a worker of this program under `environment`, in
/// `cgroup` if there is one.
pub fn worker(
    environment: &Environment,
    cgroup: Option<&Group>,
    workload: Workload,
    role: Option<Role>,
    quick: bool,
) -> Result<Command> {
    let own = own_program()?;
    let mut command = command(environment, cgroup, own, ["worker", workload.name()])?;
    if quick {
        command.arg("--quick");
    }
    if environment.madvise {
        command.arg("--madvise");
    }
    if let Some(role) = role {
        command.args(["--role", role.name()]);
    }
    if let Some(group) = cgroup {
        command.arg("--cgroup").arg(group.dir());
    }
    Ok(command)
}

/// Set when the user asks to stop.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for the signals that ask a program to stop, so that kernel
    /// settings are put back before it does.
    pub fn listen() -> Result<Interrupt> {
        let interrupt = Interrupt::default();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // The second one ends the program at once, wherever it is.
            signal_hook::flag::register_conditional_shutdown(signal, 130, interrupt.0.clone())
                .and_then(|_| signal_hook::flag::register(signal, interrupt.0.clone()))
                .context("listening for signals")?;
        }
        Ok(interrupt)
    }

    /// Fails if the user asked to stop.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }
}

/// A child process that is killed, with all its children, when it is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
    finished: bool,
}

/// How a process ended.
#[derive(Debug)]
pub struct Finished {
    /// Its status.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

fn collect(stream: Option<impl Read + Send + 'static>) -> Option<JoinHandle<String>> {
    let mut stream = stream?;
    Some(std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A read error leaves what was read before it.
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }))
}

/// Sends each line of `stream`, with its end.
fn lines(stream: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(stream) = stream {
        let mut stream = BufReader::new(stream);
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while stream.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                if sender
                    .send(String::from_utf8_lossy(&line).into_owned())
                    .is_err()
                {
                    break;
                }
                line.clear();
            }
        });
    }
    receiver
}

fn text(handle: Option<JoinHandle<String>>) -> String {
    handle.and_then(|h| h.join().ok()).unwrap_or_default()
}

impl Process {
    /// Starts `command` in a process group of its own.
    pub fn start(command: Command) -> Result<Process> {
        Process::spawn(command, Stdio::null())
    }

    /// Starts `command` likewise, with a standard input that ends when the
    /// process is waited for: until then it can hold what it has.
    pub fn start_held(command: Command) -> Result<Process> {
        Process::spawn(command, Stdio::piped())
    }

    fn spawn(mut command: Command, stdin: Stdio) -> Result<Process> {
        let mut child = command
            .process_group(0)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().display()))?;
        Ok(Process {
            stdin: child.stdin.take(),
            stdout: lines(child.stdout.take()),
            stderr: collect(child.stderr.take()),
            child,
            finished: false,
        })
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it a line.
    pub fn ask(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("it reads nothing")?;
        writeln!(stdin, "{line}").context("it reads nothing any more")
    }

    /// The next line that it prints.
    pub fn line(&mut self, limit: Duration, interrupt: &Interrupt) -> Result<String> {
        let start = Instant::now();
        while start.elapsed() < limit {
            interrupt.check()?;
            match self.stdout.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("ended before it was ready"),
            }
        }
        bail!("was not ready within {} s", limit.as_secs());
    }

    /// Ends its standard input and waits for its end.
    pub fn wait(mut self, limit: Duration, interrupt: &Interrupt) -> Result<Finished> {
        self.stdin = None;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            interrupt.check()?;
            if start.elapsed() > limit {
                bail!("did not end within {} s", limit.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        // What it left running would hold the pipes open.
        self.kill();
        self.finished = true;
        Ok(Finished {
            status,
            stdout: self.stdout.iter().collect(),
            stderr: text(self.stderr.take()),
        })
    }

    fn kill(&self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The group may be gone already.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.finished {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

impl Finished {
    /// What it printed, if it ended well.
    pub fn output(self) -> Result<String> {
        if !self.status.success() {
            let skip = self.stderr.len().saturating_sub(600);
            let tail: String = self.stderr.chars().skip(skip).collect();
            bail!("{}: {}", self.status, tail.trim());
        }
        Ok(self.stdout)
    }
}
