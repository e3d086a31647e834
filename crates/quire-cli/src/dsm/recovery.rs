//! The recovery process of a `quire run`: brings to servers what programs had written that were killed
//! ([`quire_dsm::client::recovery`]). It is a process of its own, so that no signal to the program or to
//! `quire run` ends it, and lives as long as any program that is connected to it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use quire_dsm::attachment::{Attachments, Pattern};
use quire_dsm::client::recovery::{self, Kept, Reach};
use quire_dsm::client::{Client, ClientError, Remains};
use quire_dsm::link::Addresses;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, pidfd_open};
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
/// So long `quire run` waits at its end until what programs had written is brought, and so often that is looked at.
const LAST_LINES: Duration = Duration::from_secs(3);
const NOTICING: Duration = Duration::from_millis(5);

/// A recovery process, for the `quire run` that has started it.
pub struct Recovery {
    /// By which name programs reach it.
    pub name: String,
    /// Its standard output, which `quire run` alone has.
    link: UnixStream,
}

impl Recovery {
    /// Waits until it has brought what programs had written that have ended, for [`LAST_LINES`] at most.
    pub fn finish(mut self) {
        let late = Some(2 * LAST_LINES);
        let is_asked = self.link.shutdown(Shutdown::Write).is_ok();
        if is_asked && self.link.set_read_timeout(late).is_ok() {
            // It says nothing; where it is gone, there is nothing to wait for.
            let _ = self.link.read(&mut [0]);
        }
    }
}

/// Starts a recovery process.
///
/// # Errors
/// Those of the system.
pub fn start(attachments: &Attachments) -> io::Result<Recovery> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let number = u64::from_ne_bytes(random);
    let name = format!("quire-recovery-{}-{number:x}", std::process::id());
    let listener = recovery::listen(&name)?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["dsm", "recover"]).envs(attachments.to_env());
    command.env_remove("LD_PRELOAD");
    let (link, other) = UnixStream::pair()?;
    command
        .stdin(OwnedFd::from(listener))
        .stdout(OwnedFd::from(other));
    // Keys that end the program do not end its recovery process.
    command.process_group(0).current_dir("/");
    command.spawn()?;
    Ok(Recovery { name, link })
}

/// The programs that are connected, or whose writes are being brought; nothing for one that had ended before.
#[derive(Default)]
struct Programs(Mutex<BTreeMap<u64, Option<OwnedFd>>>);

impl Programs {
    fn add(&self, number: u64, program: &UnixStream) {
        let process = recovery::process_of(program);
        let process = process.and_then(|it| pidfd_open(it, PidfdFlags::empty()).ok());
        self.with(|all| all.insert(number, process));
    }

    fn remove(&self, number: u64) {
        self.with(|all| all.remove(&number));
    }

    fn is_empty(&self) -> bool {
        self.with(|all| all.is_empty())
    }

    /// How many have ended.
    fn ended(&self) -> usize {
        let has_ended = |it: &&Option<OwnedFd>| it.as_ref().is_none_or(is_over);
        self.with(|all| all.values().filter(has_ended).count())
    }

    fn with<R>(&self, act: impl FnOnce(&mut BTreeMap<u64, Option<OwnedFd>>) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
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
    // At its end `quire run` closes its side, by itself or as it is killed.
    let mut starter = Some(io::stdout().as_fd().try_clone_to_owned()?);
    let programs = Arc::new(Programs::default());
    for number in 0.. {
        if comes(&listener, starter.as_ref()) {
            let (program, _) = listener.accept()?;
            programs.add(number, &program);
            let (programs, all) = (Arc::clone(&programs), Arc::clone(&all));
            thread::Builder::new().spawn(move || {
                watch(&all, program);
                programs.remove(number);
            })?;
        } else if starter.take_if(|it| is_over(it)).is_some() {
            say_the_rest(&programs)?;
        } else if starter.is_none() && programs.is_empty() {
            break;
        }
    }
    Ok(())
}

/// `quire run` ends when this is done: what programs had written that have ended is brought, and what there is to
/// say of it is said. Then nobody reads any more.
fn say_the_rest(programs: &Programs) -> io::Result<()> {
    let end = Instant::now() + LAST_LINES;
    while programs.ended() > 0 && Instant::now() < end {
        thread::sleep(NOTICING);
    }
    let left = programs.ended();
    if left > 0 {
        tracing::warn!(
            "what {left} of the programs that have ended wrote last is not at its server yet: that is tried for {} minutes \
             more, and `quire object stat` says what is lost",
            PATIENCE.as_secs() / 60
        );
    }
    let nothing = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(rustix::stdio::dup2_stdout(&nothing)?)
}

/// Waits for a while, or until `quire run` ends; whether a program wants to connect.
fn comes(listener: &UnixListener, starter: Option<&OwnedFd>) -> bool {
    let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
    fds.extend(starter.map(|starter| PollFd::new(starter, PollFlags::IN)));
    let most = rustix::time::Timespec::try_from(LOOK).ok();
    poll(&mut fds, most.as_ref()).is_ok() && fds[0].revents().contains(PollFlags::IN)
}

/// Whether a process has ended, or the other side of a link.
fn is_over(other: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(other, PollFlags::IN)];
    poll(&mut fds, Some(&rustix::time::Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Waits until a program is gone, and brings what it left.
fn watch(all: &Attachments, program: UnixStream) {
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
    kept.wait_until_gone();
    bring_all(all, objects, process);
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
