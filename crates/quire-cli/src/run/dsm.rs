//! `quire run --dsm`: objects of servers as the program's shared memory. Everything that can
//! be wrong is found out before the program starts.

use std::path::{Path, PathBuf, absolute};
use std::process::Command;

use quire_dsm::attachment::{Attachment, Attachments, ENV_ALL, Target, Tls};
use quire_dsm::client::{Client, ClientError};
use quire_dsm::link::identity::Files;
use quire_dsm::wire::control::{Failure as Refusal, FailureKind, Rights};
use quire_linux::uffd::{Scope, shared};
use tracing::Level;

use super::library::{self, Library};
use super::program::Program;
use crate::args::dsm::AttachArgs;
use crate::failure::{Failure, Outcome};
use crate::serve;
use crate::session::Session;

/// What the program gets.
pub struct Objects {
    attachments: Attachments,
    library: Library,
}

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
    for attachment in attachments.list() {
        check(&attachments, attachment)?;
    }
    Ok(Some(Objects {
        attachments,
        library,
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
        for name in ENV_ALL {
            command.env_remove(name);
        }
        command.envs(self.attachments.to_env());
        let list = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD");
        let list = list.and_then(|(_, list)| list.map(Into::into));
        command.env("LD_PRELOAD", library::with_first(&self.library, list));
    }

    /// What the program never asked for, maybe because it calls it by another name.
    pub fn in_vain(&self) -> Vec<String> {
        let never = self.attachments.never_asked().into_iter();
        let words = |attachment: &Attachment| {
            let Attachment { object, target, .. } = attachment;
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

fn attachments(options: &AttachArgs) -> Outcome<Attachments> {
    let bad = |text: String| Failure::bad_usage(format!("--dsm: {text}"));
    let made = Attachments::new(options.dsm.clone(), options.identity.clone());
    let mut made = made.map_err(|error| bad(error.to_string()))?;
    made.create = !options.no_create;
    made.own_pages = options.own_pages;
    made.room = options.room;
    made.realtime = !options.no_realtime;
    made.warden = !options.no_warden;
    let tls = &options.tls;
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

/// Whether an object can be had: it is there and may be read, or may be made.
fn check(all: &Attachments, attachment: &Attachment) -> Outcome<()> {
    let Attachment {
        object, servers, ..
    } = attachment;
    let bad = |why: String| Failure::bad_usage(format!("--dsm {object}@{servers}: {why}"));
    let options = all
        .options(servers)
        .map_err(|error| bad(error.to_string()))?;
    let secured = serve::secured(&options.security, servers.iter());
    secured.map_err(|error| bad(error.to_string()))?;
    let client = Client::connect(options).map_err(|error| match error {
        ClientError::Unreachable { why, .. } => bad(format!(
            "{why}; start a server there with `quire serve`, or give the certificate that it wants"
        )),
        error => bad(error.to_string()),
    })?;
    let rights = Rights {
        read: true,
        write: false,
    };
    match client.open(object.clone(), rights) {
        Ok(_) => Ok(()),
        // Another program is about to say how large it is.
        Err(ClientError::Refused(Refusal {
            kind: FailureKind::Begun,
            ..
        })) => Ok(()),
        Err(ClientError::Refused(Refusal {
            kind: FailureKind::NotFound,
            ..
        })) => match all.create {
            true => Ok(()),
            false => Err(bad(format!(
                "there is no such object: make it with `quire object create {object} --size SIZE \
                 --server {servers}`, or leave out --no-create"
            ))),
        },
        Err(error) => Err(bad(error.to_string())),
    }
}
