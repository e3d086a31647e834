//! Objects of servers that managed processes have as their shared memory (`quire run --dsm`).
//!
//! A process says in its environment which objects it was given, and by which servers. What
//! happens in an object its server knows, and tells whoever may read it. It is asked with the
//! name and the certificate that the process has. Servers are asked at the same time, each on
//! a thread; who does not answer soon is not waited for.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::dsm::message::Client as Holder;
use quire_core::stat::ProcessStat;
use quire_core::units::Bytes;
use quire_dsm::attachment::{Attachment, Attachments};
use quire_dsm::client::{Client, ClientError};
use quire_dsm::wire::control::{Answer, FailureKind, Inside, Object};
use quire_linux::sysinfo::process;
use serde::Serialize;

use super::printable;
use crate::table::Table;

/// Of so many pages, those with the most faults, it is looked up who has them.
const PAGES: u32 = 512;
/// How long a server may take to answer.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// An object that a process was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharedObject {
    /// The process.
    pub pid: u32,
    /// The object's name.
    pub object: String,
    /// Where its server is.
    pub server: String,
    /// What is known of its use.
    pub state: State,
    /// Why nothing more is known, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What happens in it, where its server says so.
    #[serde(flatten)]
    pub inside: Option<Numbers>,
}

/// Whether an object is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The process has it open, or somebody has, where the server cannot tell.
    Open,
    /// It does not have it open now.
    Closed,
    /// There is none of this name yet.
    Missing,
    /// Its server does not tell.
    Unknown,
}

impl State {
    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            State::Open => "open",
            State::Closed => "closed",
            State::Missing => "missing",
            State::Unknown => "unknown",
        }
    }
}

/// What a server counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Numbers {
    /// The object's size.
    pub size_bytes: u64,
    /// The size of its pages.
    pub page_bytes: u64,
    /// Pages that somebody ever asked for.
    pub pages_used: u64,
    /// Pages that this process may write to; nothing where the server cannot tell which of
    /// those that have it open this process is. Only the 512 pages with the most faults count.
    pub pages_to_write: Option<u64>,
    /// Pages of which anybody has a copy to be read, among the same.
    pub pages_to_read: u64,
    /// How often it is open.
    pub open: u64,
    /// Faults of all who have it, to read.
    pub faults_read: u64,
    /// To write.
    pub faults_write: u64,
    /// To write to what was there to be read.
    pub faults_unlock: u64,
}

/// What a process was given.
struct Given {
    pid: u32,
    attachment: Attachment,
}

/// What is known of the objects of some processes.
pub fn look(processes: &[ProcessStat], patience: Duration) -> Vec<SharedObject> {
    let mut begun: Vec<(Vec<SharedObject>, Receiver<Vec<SharedObject>>)> = Vec::new();
    for process in processes {
        let Some(all) = attachments(process.pid) else {
            continue;
        };
        for (server, given) in by_server(process.pid, &all) {
            let silent = given
                .iter()
                .map(|it| unknown(it, "the server does not answer"));
            let silent: Vec<SharedObject> = silent.collect();
            let (told, heard) = mpsc::channel();
            let all = all.clone();
            let asking = move || told.send(ask(&all, &given));
            let spawned = thread::Builder::new().spawn(asking);
            match spawned {
                Ok(_) => begun.push((silent, heard)),
                Err(error) => tracing::warn!("{server} cannot be asked: {error}"),
            }
        }
    }
    let until = Instant::now() + patience;
    let answers = begun.into_iter().flat_map(|(silent, heard)| {
        let rest = until.saturating_duration_since(Instant::now());
        heard.recv_timeout(rest).unwrap_or(silent)
    });
    answers.collect()
}

/// What a process was given, if it was given anything.
fn attachments(pid: u32) -> Option<Attachments> {
    let environment = process::environment(pid);
    let get = |name: &str| environment.get(name).cloned();
    Attachments::from_env(get).ok().flatten()
}

fn by_server(pid: u32, all: &Attachments) -> BTreeMap<String, Vec<Given>> {
    let mut servers: BTreeMap<String, Vec<Given>> = BTreeMap::new();
    for attachment in all.list() {
        let given = Given {
            pid,
            attachment: attachment.clone(),
        };
        let server = attachment.servers.to_string();
        servers.entry(server).or_default().push(given);
    }
    servers
}

fn unknown(given: &Given, why: impl ToString) -> SharedObject {
    SharedObject {
        pid: given.pid,
        object: given.attachment.object.to_string(),
        server: given.attachment.servers.to_string(),
        state: State::Unknown,
        why: Some(why.to_string()),
        inside: None,
    }
}

/// Asks one server for objects of one process.
fn ask(all: &Attachments, given: &[Given]) -> Vec<SharedObject> {
    let Some(first) = given.first() else {
        return Vec::new();
    };
    let options = all.options(&first.attachment.servers);
    let options = options.map_err(|error| error.to_string());
    let connected =
        options.and_then(|options| Client::connect(options).map_err(|error| error.to_string()));
    let one = |it: &Given| match &connected {
        Ok(client) => ask_one(client, it),
        Err(why) => unknown(it, why),
    };
    given.iter().map(one).collect()
}

fn ask_one(client: &Client, given: &Given) -> SharedObject {
    match client.hottest(given.attachment.object.clone(), PAGES) {
        Ok(Answer::Statistics { info, inside, .. }) => match inside {
            Some(inside) => found(given, &info, &inside),
            None => unknown(given, "only those who may read it are told"),
        },
        Ok(_) => unknown(given, ClientError::Confused),
        Err(ClientError::Refused(failure))
            if matches!(failure.kind, FailureKind::NotFound | FailureKind::Begun) =>
        {
            SharedObject {
                state: State::Missing,
                why: None,
                ..unknown(given, "")
            }
        }
        Err(error) => unknown(given, error),
    }
}

fn found(given: &Given, object: &Object, inside: &Inside) -> SharedObject {
    let (state, pages_to_write) = use_of(given.pid, inside);
    let read = inside.pages.iter().filter(|page| page.readers > 0).count();
    SharedObject {
        state,
        why: None,
        inside: Some(Numbers {
            size_bytes: object.size.0,
            page_bytes: object.page_size.bytes().0,
            pages_used: inside.touched,
            pages_to_write,
            pages_to_read: read as u64,
            open: inside.open,
            faults_read: inside.faults.read,
            faults_write: inside.faults.write,
            faults_unlock: inside.faults.unlock,
        }),
        ..unknown(given, "")
    }
}

/// Whether a process has an object open, and to how many pages it may write. A server knows
/// the numbers of processes that come over its Unix socket.
fn use_of(pid: u32, inside: &Inside) -> (State, Option<u64>) {
    let number = |name: &str| {
        let (_, rest) = name.rsplit_once(", pid ")?;
        rest.strip_suffix(')')?.parse::<u32>().ok()
    };
    let mine = inside.kernels.iter();
    let mine: Vec<_> = mine
        .filter(|known| number(&known.name) == Some(pid))
        .map(|known| Some(Holder::Kernel(known.kernel)))
        .collect();
    if mine.is_empty() {
        let mut all = inside.kernels.iter();
        let is_told = all.all(|known| number(&known.name).is_some());
        let is_sure = is_told && inside.kernels.len() as u64 == inside.open;
        return match is_sure {
            true => (State::Closed, Some(0)),
            false => (State::Open, None),
        };
    }
    let written = inside
        .pages
        .iter()
        .filter(|page| mine.contains(&page.owner));
    (State::Open, Some(written.count() as u64))
}

impl SharedObject {
    /// What there is to say in one line, without its name.
    pub fn line(&self) -> String {
        let why = self.why.as_ref().map(|why| printable(why));
        let Some(inside) = self.inside else {
            return why.unwrap_or_else(|| "there is no such object yet".to_owned());
        };
        let to_write = match inside.pages_to_write {
            Some(pages) => format!("{pages} to write here"),
            None => "to write here not known".to_owned(),
        };
        format!(
            "{}, {} pages used: {to_write}, {} to read; open {} times; faults: {} to read, \
             {} to write, {} unlock",
            self.state.name(),
            inside.pages_used,
            inside.pages_to_read,
            inside.open,
            inside.faults_read,
            inside.faults_write,
            inside.faults_unlock
        )
    }
}

/// Writes the table of objects, where there are any.
pub fn write(out: &mut impl Write, objects: &[SharedObject]) -> io::Result<()> {
    if objects.is_empty() {
        return Ok(());
    }
    let header = [
        "PID", "OBJECT", "SERVER", "STATE", "SIZE", "PAGE", "USED", "TO WRITE", "TO READ", "OPEN",
        "READ", "WRITE", "UNLOCK",
    ];
    let mut table = Table::new(4, &header);
    for object in objects {
        let mut cells = vec![
            object.pid.to_string(),
            object.object.clone(),
            printable(&object.server),
            object.state.name().to_owned(),
        ];
        if let Some(inside) = object.inside {
            let to_write = inside.pages_to_write.map(|pages| pages.to_string());
            cells.extend([
                Bytes(inside.size_bytes).to_string(),
                Bytes(inside.page_bytes).to_string(),
                inside.pages_used.to_string(),
                to_write.unwrap_or_else(|| "-".to_owned()),
                inside.pages_to_read.to_string(),
                inside.open.to_string(),
                inside.faults_read.to_string(),
                inside.faults_write.to_string(),
                inside.faults_unlock.to_string(),
            ]);
        }
        table.row(cells);
    }
    writeln!(out, "Shared objects")?;
    table.write(out, 2)?;
    for object in objects {
        if let Some(why) = &object.why {
            writeln!(out, "  {}: {}", object.object, printable(why))?;
        }
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use quire_core::dsm::message::{KernelId, PageNumber};
    use quire_dsm::wire::control::{Known, PageState};

    use super::*;

    fn inside(names: &[&str], owners: &[u64]) -> Inside {
        let known = |(kernel, name): (usize, &&str)| Known {
            kernel: KernelId(kernel as u64),
            name: (*name).to_owned(),
        };
        let page = |owner: &u64| PageState {
            page: PageNumber(0),
            faults: Default::default(),
            owner: Some(Holder::Kernel(KernelId(*owner))),
            readers: 0,
            state: "Write".to_owned(),
            waiting: 0,
            descheduled: 0,
        };
        Inside {
            open: names.len() as u64,
            kernels: names.iter().enumerate().map(known).collect(),
            pages: owners.iter().map(page).collect(),
            ..Inside::default()
        }
    }

    #[test]
    fn a_process_is_known_by_its_number() {
        let local = ["a (uid 0, pid 7)", "b (uid 0, pid 8)", "c (uid 5, pid 7)"];
        let all = inside(&local, &[0, 1, 2, 2, 9]);
        assert_eq!(use_of(7, &all), (State::Open, Some(3)));
        assert_eq!(use_of(8, &all), (State::Open, Some(1)));
        assert_eq!(use_of(77, &all), (State::Closed, Some(0)));
    }

    #[test]
    fn who_comes_from_elsewhere_may_be_this_process() {
        let all = inside(&["a (uid 0, pid 7)", "a (10.0.0.1:999)"], &[0, 1]);
        assert_eq!(use_of(7, &all), (State::Open, Some(1)));
        assert_eq!(use_of(8, &all), (State::Open, None));
        // Not all who have it open are named.
        let more = Inside {
            open: 2,
            ..inside(&["a (uid 0, pid 7)"], &[])
        };
        assert_eq!(use_of(8, &more), (State::Open, None));
        assert_eq!(use_of(8, &inside(&[], &[])), (State::Closed, Some(0)));
    }
}
