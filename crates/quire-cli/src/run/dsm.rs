//! `quire run --dsm`: objects of servers as the program's shared memory. Everything that can
//! be wrong is found out before the program starts.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf, absolute};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use quire_dsm::attachment::{
    Attachment, AttachmentError, Attachments, ENV_ALL, Pattern, Target, Tls, Wanted,
};
use quire_dsm::client::{Client, ClientError};
use quire_dsm::link::Addresses;
use quire_dsm::link::identity::Files;
use quire_dsm::wire::control::{Answer, Failure as Refusal, FailureKind, Faults, Name, Rights};
use quire_linux::uffd::{Scope, shared};
use tracing::Level;

use super::library::{self, Library};
use super::program::Program;
use super::report;
use crate::args::dsm::{AttachArgs, SERVER};
use crate::dsm::recovery::{self, Recovery};
use crate::dsm::settings::{self, Settings};
use crate::failure::{Failure, Outcome};
use crate::serve;
use crate::session::Session;

/// What the program gets.
pub struct Objects {
    attachments: Attachments,
    library: Library,
    /// The faults of objects that were there when the program was started.
    before: BTreeMap<Name, Faults>,
    recovery: Option<Recovery>,
}

/// What names of semaphores begin with, of which the summary says nothing.
const SEMAPHORE: &str = "sem.";

/// Of so many objects the summary says something.
const MOST_FIGURES: usize = 8;

/// So long it is looked what became of objects, in all.
const LOOKING: Duration = Duration::from_secs(1);

/// What the options ask for, checked; nothing where they ask for nothing.
///
/// # Errors
/// When the program cannot get them, a server cannot be reached, or an object cannot be had.
pub fn prepare(options: &AttachArgs, program: &Program) -> Outcome<Option<Objects>> {
    let tls = &options.tls;
    if options.dsm.is_empty() {
        if tls.certificate.is_some() || tls.plaintext {
            let text = "certificates and --plaintext are for --dsm: name an object with it";
            return Err(Failure::bad_usage(text));
        }
        return Ok(None);
    }
    if let Some(why) = program.unmanaged {
        return Err(Failure::bad_usage(format!(
            "--dsm: {} {why}, so no library can be preloaded: its shared memory stays the kernel's",
            program.name
        )));
    }
    let attachments = attachments(options)?;
    let library = library::find_shared_memory()?;
    // What goes wrong is told by the error.
    serve::log(Level::ERROR);
    let mut before = BTreeMap::new();
    for attachment in attachments.list() {
        let client = check(&attachments, attachment)?;
        if let Some((_, faults)) = looked(&client, &attachment.object) {
            before.insert(attachment.object.clone(), faults);
        }
    }
    for pattern in &attachments.patterns {
        connect(&attachments, pattern.text(), pattern.servers())?;
    }
    Ok(Some(Objects {
        attachments,
        library,
        before,
        recovery: None,
    }))
}

/// What does not work for this user, if something does not.
pub fn limit() -> Option<&'static str> {
    let (_, scope) = shared::open().ok()?;
    (scope == Scope::UserOnly).then_some(
        "--dsm: userfaultfd handles user mode only: reads, writes, send and recv wait for memory of \
         objects, and other system calls that touch what is not here yet fail with EFAULT (run as root, \
         or sysctl vm.unprivileged_userfaultfd=1)",
    )
}

impl Objects {
    /// Has a command start the program with them, and note in a session's directory which it
    /// asks for. The library stands before the one that manages memory, to which it passes on what
    /// is not its own.
    pub fn give_to(&mut self, command: &mut Command, session: Option<&Session>) {
        self.attachments.asked = session.map(|session| session.dir().to_owned());
        let recovery = recovery::start(&self.attachments).map_err(told_without_recovery);
        self.recovery = recovery.ok();
        self.attachments.recovery = self.recovery.as_ref().map(|it| it.name.clone());
        for name in ENV_ALL {
            command.env_remove(name);
        }
        command.envs(self.attachments.to_env());
        let list = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD");
        let list = list.and_then(|(_, list)| list.map(Into::into));
        command.env("LD_PRELOAD", library::with_first(&self.library, list));
    }

    /// The program has ended: waits a little until what it had written is with its servers.
    pub fn wait_for_recovery(&mut self) {
        if let Some(recovery) = self.recovery.take() {
            recovery.finish();
        }
    }

    /// What the program has made, which is known as long as its session is there.
    pub fn made(&self) -> Vec<Name> {
        let made = self.attachments.made();
        let memory = made
            .iter()
            .filter(|name| !name.as_str().starts_with(SEMAPHORE));
        let mut made: Vec<Name> = memory.map(Name::plain).collect();
        made.sort_unstable();
        made.dedup();
        made
    }

    /// What became of the objects while the program ran, a line for each: as their servers say it within
    /// [`LOOKING`]. Of those that a pattern stands for, these were made.
    pub fn figures(self, made: Vec<Name>) -> Vec<String> {
        let (say, said) = mpsc::channel();
        let Objects {
            attachments,
            before,
            ..
        } = self;
        // What does not answer in time is left to itself.
        thread::spawn(move || {
            let list = attachments.list().iter();
            let mut all: Vec<(&Name, &Addresses)> = list
                .map(|attachment| (&attachment.object, &attachment.servers))
                .collect();
            for name in &made {
                let is_listed = all.iter().any(|(listed, _)| *listed == name);
                if let Some((_, pattern)) = attachments.pattern_of(name.as_str())
                    && !is_listed
                {
                    all.push((name, pattern.servers()));
                }
            }
            let most = all.len() > MOST_FIGURES;
            all.truncate(MOST_FIGURES);
            for (object, servers) in all {
                let Ok(client) = connect(&attachments, object.as_str(), servers) else {
                    continue;
                };
                let figures = match looked(&client, object) {
                    Some((about, now)) => {
                        let then = before.get(object).copied().unwrap_or_default();
                        format!("{about}; {}", meanwhile(then, now))
                    }
                    None if made.contains(object) => continue,
                    None => "there is no such object (any more)".to_owned(),
                };
                let _ = say.send(format!("{object}@{servers}: {figures}"));
            }
            if most {
                let _ = say.send(format!("there were more than {MOST_FIGURES} objects"));
            }
        });
        let end = Instant::now() + LOOKING;
        let left = || end.saturating_duration_since(Instant::now());
        std::iter::from_fn(|| said.recv_timeout(left()).ok()).collect()
    }

    /// What the program never asked for, maybe because it calls it by another name.
    pub fn in_vain(&self) -> Vec<String> {
        let never = self.attachments.never_asked().into_iter();
        let words = |wanted| {
            let Attachment { object, target, .. } = match wanted {
                Wanted::One(attachment) => attachment,
                Wanted::Many(pattern) => {
                    let text = pattern.text();
                    return format!("--dsm '{text}': no program asked for shared memory called so");
                }
            };
            let call = match target {
                Target::Posix(name) => format!("shm_open(\"/{name}\")"),
                Target::SystemV(key) => format!("shmget({key:#x})"),
            };
            format!(
                "--dsm {object}: no program called {call}; name what it calls: {object}=SHM_NAME@ADDRESS"
            )
        };
        never.map(words).collect()
    }
}

/// The server that is meant where none is named.
fn usual(settings: &Settings) -> Outcome<Addresses> {
    match std::env::var(SERVER).ok().filter(|text| !text.is_empty()) {
        Some(text) => text
            .parse()
            .map_err(|error| Failure::bad_usage(format!("{SERVER}: {error}"))),
        None => settings::usual(settings),
    }
}

fn told_without_recovery(error: io::Error) {
    // Who does not listen need not know.
    let _ = writeln!(
        io::stderr(),
        "quire: --dsm: there is no recovery process ({error}): what a program with pages of its own has \
         written is lost when it is killed"
    );
}

fn attachments(options: &AttachArgs) -> Outcome<Attachments> {
    let bad = |text: String| Failure::bad_usage(format!("--dsm: {text}"));
    let settings = Settings::read()?;
    let (mut list, mut patterns) = (Vec::new(), Vec::new());
    for text in &options.dsm {
        let wanted = match text.contains('@') {
            true => text.parse(),
            false => format!("{text}@{}", usual(&settings)?).parse(),
        };
        match wanted.map_err(|error: AttachmentError| bad(error.to_string()))? {
            Wanted::One(attachment) => list.push(attachment),
            Wanted::Many(pattern) => patterns.push(pattern),
        }
    }
    let named = list.iter().map(|attachment| &attachment.servers);
    let servers = named.chain(patterns.iter().map(Pattern::servers));
    let addresses = servers.flat_map(Addresses::iter);
    let (identity, tls) = settings::identity(
        &options.tls,
        options.identity.as_ref(),
        &settings,
        addresses,
    )?;
    let made = Attachments::new(list, identity);
    let mut made = made.map_err(|error| bad(error.to_string()))?;
    made.patterns = patterns;
    made.create = !options.no_create;
    made.keep = !options.no_keep;
    made.scheduler = options.scheduler;
    made.own_pages = options.own_pages;
    made.room = options.room;
    made.realtime = !options.no_realtime;
    made.revoker = !options.no_revoker;
    made.on_loss = options.on_loss;
    made.tls = match (tls.plaintext, tls.tls_everywhere) {
        (true, _) => Tls::Plaintext,
        (_, true) => Tls::Everywhere,
        _ => Tls::Automatic,
    };
    if let (Some(certificate), Some(key), Some(ca)) = (&tls.certificate, &tls.key, &tls.ca) {
        made.files = Some(Files {
            certificate: whole(certificate)?,
            key: whole(key)?,
            authority: whole(ca)?,
        });
    }
    Ok(made)
}

/// The program may change its directory.
fn whole(path: &Path) -> Outcome<PathBuf> {
    let refused = |error| Failure::bad_usage(format!("{}: {error}", path.display()));
    absolute(path).map_err(refused)
}

/// Something is wrong with what an option names.
fn bad(what: &str, servers: &Addresses, why: &str) -> Failure {
    Failure::bad_usage(format!("--dsm {what}@{servers}: {why}"))
}

/// Whether one of the servers can be reached.
fn connect(all: &Attachments, what: &str, servers: &Addresses) -> Outcome<Client> {
    let bad = |why: String| bad(what, servers, &why);
    let options = all
        .options(servers)
        .map_err(|error| bad(error.to_string()))?;
    let secured = serve::secured(&options.security, servers.iter());
    secured.map_err(|error| bad(error.to_string()))?;
    Client::connect(options).map_err(|error| match error {
        ClientError::Unreachable {
            why,
            is_denied: true,
            ..
        } => bad(format!(
            "{why}; let this user connect there, by the rights of the socket and of its directory"
        )),
        ClientError::Unreachable { why, .. } => bad(format!(
            "{why}; start a server there with `quire serve`, or give the certificate that it wants"
        )),
        error => bad(error.to_string()),
    })
}

/// What a server says of an object, if it is there, and its faults so far.
fn looked(client: &Client, object: &Name) -> Option<(String, Faults)> {
    let Ok(Answer::Statistics { info, inside, .. }) = client.look(object.clone()) else {
        return None;
    };
    let page = info.page_size.bytes();
    let about = format!(
        "{} in pages of {page}, scheduler {}",
        info.size, info.scheduler
    );
    let faults = inside.map(|inside| inside.faults).unwrap_or_default();
    Some((about, faults))
}

/// Faults of all programs between two looks.
fn meanwhile(then: Faults, now: Faults) -> String {
    let since = |now: u64, then: u64| now.saturating_sub(then);
    format!(
        "meanwhile {} to read, {} to write, {} to write what was there",
        report::count(since(now.read, then.read), "fault"),
        since(now.write, then.write),
        since(now.unlock, then.unlock)
    )
}

/// Whether an object can be had: it is there and may be read, or may be made. The link to its server.
fn check(all: &Attachments, attachment: &Attachment) -> Outcome<Client> {
    let Attachment {
        object, servers, ..
    } = attachment;
    let bad = |why: String| bad(object.as_str(), servers, &why);
    let client = connect(all, object.as_str(), servers)?;
    let rights = Rights {
        read: true,
        write: false,
    };
    match client.open(object.clone(), rights) {
        Ok(_) => Ok(client),
        // Another program is about to say how large it is.
        Err(ClientError::Refused(Refusal {
            kind: FailureKind::Begun,
            ..
        })) => Ok(client),
        Err(ClientError::Refused(Refusal {
            kind: FailureKind::NotFound,
            ..
        })) => match all.create {
            true => Ok(client),
            false => Err(bad(format!(
                "there is no such object: make it with `quire object create {object} --size SIZE \
                 --server {servers}`, or leave out --no-create"
            ))),
        },
        Err(error) => Err(bad(error.to_string())),
    }
}
