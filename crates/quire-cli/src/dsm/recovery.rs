//! The recovery process of a `quire run`: brings to servers what programs had written that were killed
//! ([`quire_dsm::client::recovery`]). It is a process of its own, so that no signal to the program or to
//! `quire run` ends it, and lives as long as any program that is connected to it.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use quire_dsm::attachment::{Attachments, Pattern};
use quire_dsm::client::recovery::{self, Kept, Reach};
use quire_dsm::client::{Client, ClientError, Remains};
use quire_dsm::link::Addresses;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use tracing::Level;

use crate::failure::{Failure, Outcome};
use crate::serve;

/// Servers that cannot be reached are tried for so long: whoever starts one again takes some minutes for it. Meanwhile
/// what the program had is held in memory.
const PATIENCE: Duration = Duration::from_secs(600);
/// So long after one attempt comes the next: at first, and later.
const AGAIN: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(2)];
/// So long the server is tried often.
const OFTEN: Duration = Duration::from_secs(15);
/// So long a server that is there may take for all that it is brought.
const TAKING: Duration = Duration::from_secs(30);
/// So often the recovery process looks whether it is needed. A child that outlives `quire run` connects within that.
const LOOK: Duration = Duration::from_millis(500);
/// So long after the end of `quire run` it has lines at most, and so soon it notices that a program has ended.
const LAST_LINES: Duration = Duration::from_secs(2);
const NOTICING: Duration = Duration::from_millis(10);

/// Starts a recovery process, and says by which name programs reach it.
///
/// # Errors
/// Those of the system.
pub fn start(attachments: &Attachments) -> io::Result<String> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let number = u64::from_ne_bytes(random);
    let name = format!("quire-recovery-{}-{number:x}", std::process::id());
    let listener = recovery::listen(&name)?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["dsm", "recover"]).envs(attachments.to_env());
    command.env_remove("LD_PRELOAD");
    command.stdin(OwnedFd::from(listener)).stdout(Stdio::null());
    // Keys that end the program do not end its recovery process.
    command.process_group(0).current_dir("/");
    command.spawn()?;
    Ok(name)
}

/// How many programs are connected, and how many of those that are gone are looked after right now.
#[derive(Default)]
struct Counts {
    connected: AtomicUsize,
    bringing: AtomicUsize,
}

/// Keeps until nobody is left who may need it. Programs connect at standard input.
pub fn run() -> Outcome<()> {
    serve::log(Level::WARN);
    let all = Attachments::from_env(|name| std::env::var(name).ok());
    let Ok(Some(all)) = all else {
        return Err(Failure::bad_usage("dsm recover: quire run --dsm starts it"));
    };
    let all = Arc::new(all);
    let listener = UnixListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    let parent = getppid().filter(|parent| *parent != Pid::INIT);
    let mut parent = parent.and_then(|it| pidfd_open(it, PidfdFlags::empty()).ok());
    let counts = Arc::new(Counts::default());
    loop {
        if comes(&listener, parent.as_ref()) {
            let (program, _) = listener.accept()?;
            let (counts, all) = (Arc::clone(&counts), Arc::clone(&all));
            counts.connected.fetch_add(1, Ordering::SeqCst);
            thread::Builder::new().spawn(move || {
                watch(&all, program, &counts);
                counts.connected.fetch_sub(1, Ordering::SeqCst);
            })?;
        } else if parent.take_if(|it| is_over(it)).is_some() {
            say_the_rest(&counts)?;
        } else if parent.is_none() && counts.connected.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
    }
}

/// `quire run` has ended, and who reads what it says waits for the end of that: what is said of programs
/// that have ended just now is said, and then no more.
fn say_the_rest(counts: &Counts) -> io::Result<()> {
    let end = Instant::now() + LAST_LINES;
    thread::sleep(NOTICING);
    while counts.bringing.load(Ordering::SeqCst) > 0 && Instant::now() < end {
        thread::sleep(NOTICING);
    }
    let left = counts.bringing.load(Ordering::SeqCst);
    if left > 0 {
        tracing::warn!(
            "what {left} of the programs that have ended wrote last is not at its server yet: that is tried for {} minutes \
             more, and `quire object stat` says what is lost",
            PATIENCE.as_secs() / 60
        );
    }
    let nothing = File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stderr(&nothing)?)
}

/// Waits for a while, or until the parent is gone; whether a program wants to connect.
fn comes(listener: &UnixListener, parent: Option<&OwnedFd>) -> bool {
    let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
    fds.extend(parent.map(|parent| PollFd::new(parent, PollFlags::IN)));
    let most = rustix::time::Timespec::try_from(LOOK).ok();
    poll(&mut fds, most.as_ref()).is_ok() && fds[0].revents().contains(PollFlags::IN)
}

fn is_over(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&rustix::time::Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Waits until a program is gone, and brings what it left.
fn watch(all: &Attachments, program: UnixStream, counts: &Counts) {
    let process = recovery::process_of(&program).map_or(0, |it| it.as_raw_nonzero().get());
    let Ok(kept) = Kept::new(program) else {
        return;
    };
    let mut objects = Vec::new();
    loop {
        match kept.next() {
            Ok(Some(object)) => objects.push(object),
            Ok(None) => break,
            Err(error) => {
                tracing::error!(
                    "process {process} says what no recovery process understands: {error}"
                );
                break;
            }
        }
    }
    if objects.is_empty() {
        return;
    }
    counts.bringing.fetch_add(1, Ordering::SeqCst);
    kept.wait_until_gone();
    bring_all(all, objects, process);
    counts.bringing.fetch_sub(1, Ordering::SeqCst);
}

/// Brings what a process has left.
fn bring_all(all: &Attachments, objects: Vec<(Reach, Remains)>, process: i32) {
    for (reach, remains) in objects {
        if remains.written.ledger.session().is_none() {
            continue;
        }
        let name = remains.name.plain();
        match bring(all, &reach, remains) {
            Ok(0) => {}
            Ok(lost) => tracing::error!(
                "{name}: what process {process} wrote to {lost} of its pages before it ended is lost"
            ),
            Err(error) => tracing::error!(
                "{name}: what process {process} wrote before it ended is lost: {error}"
            ),
        }
    }
}

fn bring(all: &Attachments, reach: &Reach, remains: Remains) -> Result<u64, ClientError> {
    let options = all.options(&servers(all, &reach.address));
    let mut options = options.map_err(|error| ClientError::System(io::Error::other(error)))?;
    options.name = reach.node.clone();
    (options.own_pages, options.revoker, options.recovery) = (true, false, None);
    let begin = Instant::now();
    let client = loop {
        match Client::connect(options.clone()) {
            Err(ClientError::Unreachable { .. }) if begin.elapsed() < PATIENCE => {
                thread::sleep(AGAIN[usize::from(begin.elapsed() > OFTEN)]);
            }
            connected => break connected?,
        }
    };
    client.bring(remains, TAKING)
}

/// The server that a program had last, and those that are joined with it.
fn servers(all: &Attachments, last: &Addresses) -> Addresses {
    let listed = all.list().iter().map(|attachment| &attachment.servers);
    let mut joined = listed.chain(all.patterns.iter().map(Pattern::servers));
    let holds = |servers: &&Addresses| servers.iter().any(|it| it == last.get(0));
    match joined.find(holds) {
        Some(joined) => last.clone().and(joined),
        None => last.clone(),
    }
}
